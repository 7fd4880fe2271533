/* Special functions of distributions: incomplete gamma and beta, zeta, inverse error function, modified Bessel functions. Computed in double,
 * rounded once. */
#include "ops/kern.h"
#include "ops/special_fn.h"

#include <float.h>
#include <math.h>

/* ---- incomplete gamma ------------------------------------------------------------------------------------------------------ */

static double gamma_factor(double a, double x)
{
    double l = a * log(x) - x - lgamma(a);
    return l < -745 ? 0 : exp(l);
}

/* Lower, by its series; for x below a or 1. */
static double gamma_series(double a, double x)
{
    double sum = 1, term = 1, r = a;
    for (int i = 0; i < 100000 && term > sum * DBL_EPSILON; i++) {
        r += 1;
        term *= x / r;
        sum += term;
    }
    return sum * gamma_factor(a, x) / a;
}

/* Upper, by its continued fraction (modified Lentz); for larger x. */
static double gamma_fraction(double a, double x)
{
    const double tiny = 1e-300;
    double b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d;
    for (int i = 1; i < 100000; i++) {
        double an = -i * (i - a);
        b += 2;
        d = an * d + b;
        d = fabs(d) < tiny ? tiny : d;
        c = b + an / c;
        c = fabs(c) < tiny ? tiny : c;
        d = 1 / d;
        double step = d * c;
        h *= step;
        if (fabs(step - 1) < DBL_EPSILON)
            break;
    }
    return h * gamma_factor(a, x);
}

static double igamma(double a, double x)
{
    if (x == 0)
        return 0;
    if (!(x >= 0) || !(a > 0))
        return NAN;
    if (isinf(a))
        return isinf(x) ? NAN : 0;
    if (isinf(x))
        return 1;
    return x > 1 && x > a ? 1 - gamma_fraction(a, x) : gamma_series(a, x);
}

static double igammac(double a, double x)
{
    if (!(x >= 0) || !(a > 0))
        return NAN;
    if (isinf(a))
        return isinf(x) ? NAN : 1;
    if (isinf(x))
        return 0;
    return x < 1 || x < a ? (x == 0 ? 1 : 1 - gamma_series(a, x)) : gamma_fraction(a, x);
}

/* ---- incomplete beta ------------------------------------------------------------------------------------------------------- */

static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1), h;
    d = 1 / (fabs(d) < tiny ? tiny : d);
    h = d;
    for (int m = 1; m < 100000; m++) {
        for (int odd = 0; odd < 2; odd++) {
            double an = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                            : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
            d = 1 + an * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + an / c;
            c = fabs(c) < tiny ? tiny : c;
            h *= d * c;
        }
        if (fabs(d * c - 1) < DBL_EPSILON)
            break;
    }
    return h;
}

static double betainc(double a, double b, double x)
{
    if (!(a > 0) || !(b > 0) || !(x >= 0) || !(x <= 1))
        return NAN;
    if (x == 0 || x == 1)
        return x;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/* ---- zeta, polygamma ------------------------------------------------------------------------------------------------------- */

/* Hurwitz': the sum of (q + k)^-x, a few terms and then Euler and Maclaurin's formula. */
static double zeta(double x, double q)
{
    static const double bernoulli[] = {1. / 6,       -1. / 30,       1. / 42,       -1. / 30,
                                       5. / 66,      -691. / 2730,   7. / 6,        -3617. / 510,
                                       43867. / 798, -174611. / 330, 854513. / 138, -236364091. / 2730};
    if (x == 1)
        return INFINITY;
    if (!(x > 1))
        return NAN;
    if (q <= 0) {
        if (q == floor(q)) /* a pole; its sides agree for even powers only */
            return fmod(x, 2) == 0 ? INFINITY : NAN;
        if (x != floor(x))
            return NAN;
    }
    double sum = 0;
    int k = 0;
    for (; k < 9 || q + k <= 9; k++) {
        if (k > 1000000)
            return NAN;
        sum += pow(q + k, -x);
    }
    double w = q + k, factor = x, power = pow(w, -x);
    sum += power * w / (x - 1) + power / 2;
    power /= w;
    double factorial = 2;
    for (int j = 0; j < 12; j++) { /* B(2j+2)/(2j+2)! · x(x+1)…(x+2j) · w^(-x-2j-1) */
        double term = bernoulli[j] / factorial * factor * power;
        sum += term;
        if (fabs(term) < fabs(sum) * DBL_EPSILON)
            break;
        factor *= (x + 2 * j + 1) * (x + 2 * j + 2);
        factorial *= (2 * j + 3) * (2 * j + 4);
        power /= w * w;
    }
    return sum;
}

static double digamma(double x)
{
    if (x == 0 || (x < 0 && x == floor(x)))
        return NAN;
    double r = 0;
    if (x < 0) {
        r = -M_PI / tan(M_PI * x);
        x = 1 - x;
    }
    for (; x < 10; x++)
        r -= 1 / x;
    double f = 1 / (x * x);
    return r + log(x) - 0.5 / x -
           f * (1. / 12 -
                f * (1. / 120 - f * (1. / 252 - f * (1. / 240 - f * (1. / 132 - f * (691. / 32760 - f / 12))))));
}

static double polygamma(double n, double x)
{
    if (!(n >= 0) || n != floor(n))
        return NAN;
    if (n == 0)
        return digamma(x);
    double r = exp(lgamma(n + 1)) * zeta(n + 1, x);
    return fmod(n, 2) == 0 ? -r : r;
}

/* ---- inverse error function -------------------------------------------------------------------------------------------------- */

/* Quantile of the normal distribution for p <= 1/2: a rough start, then Halley's steps on the logarithm-free form. */
static double lower_quantile(double p)
{
    double t = sqrt(-2 * log(p));
    double z = -(t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
    for (int i = 0; i < 4; i++) {
        double e = 0.5 * erfc(-z / M_SQRT2) - p, u = e * sqrt(2 * M_PI) * exp(z * z / 2);
        z -= u / (1 + z * u / 2);
    }
    return z;
}

static double ndtri(double p)
{
    if (isnan(p) || p < 0 || p > 1)
        return NAN;
    if (p == 0 || p == 1)
        return p ? INFINITY : -INFINITY;
    return p <= 0.5 ? lower_quantile(p) : -lower_quantile(1 - p);
}

static double erfinv(double x)
{
    if (isnan(x) || x < -1 || x > 1)
        return NAN;
    if (x == 0 || fabs(x) == 1)
        return x == 0 ? x : copysign(INFINITY, x);
    double z = fabs(x) < 1e-3 ? sqrt(M_PI) / 2 * (x + M_PI / 12 * x * x * x)
                              : copysign(-lower_quantile((1 - fabs(x)) / 2) / M_SQRT2, x);
    for (int i = 0; i < 2; i++)
        z -= (erf(z) - x) / (2 / sqrt(M_PI) * exp(-z * z));
    return z;
}

/* ---- Bessel ------------------------------------------------------------------------------------------------------------------ */

/* exp(-|x|)·I_n(x), n = 0 or 1. */
static double bessel_ie(int n, double x)
{
    double a = fabs(x), sum;
    if (isnan(x))
        return x;
    if (a <= 30) {
        double term = n ? a / 2 : 1, q = a * a / 4;
        sum = term;
        for (int k = 1; k < 500 && term > sum * 1e-18; k++) {
            term *= q / ((double)k * (k + n));
            sum += term;
        }
        sum *= exp(-a);
    } else {
        double term = 1, mu = 4. * n * n;
        sum = 1;
        for (int k = 1; k < 30; k++) {
            double next = term * -(mu - (2. * k - 1) * (2. * k - 1)) / (k * 8 * a);
            if (fabs(next) >= fabs(term) || isinf(a))
                break;
            term = next;
            sum += term;
        }
        sum /= sqrt(2 * M_PI * a);
    }
    return n && x < 0 ? -sum : sum;
}

static double bessel_i0e(double x) { return bessel_ie(0, x); }
static double bessel_i1e(double x) { return bessel_ie(1, x); }
static double bessel_i0(double x) { return bessel_ie(0, x) * exp(fabs(x)); }
static double bessel_i1(double x) { return bessel_ie(1, x) * exp(fabs(x)); }

/* ---- drivers ------------------------------------------------------------------------------------------------------------------ */

static double get(const trn_tensor *t, int64_t i)
{
    float f;
    switch (t->dtype) {
    case TRN_FLOAT:
        return (double)TRN_DATA(t, float)[i];
    case TRN_DOUBLE:
        return TRN_DATA(t, double)[i];
    default:
        trn_widen(&f, TRN_DATA(t, uint16_t) + i, t->dtype, 1);
        return (double)f;
    }
}

static void put(trn_tensor *t, int64_t i, double v)
{
    float f = (float)v;
    if (t->dtype == TRN_DOUBLE)
        TRN_DATA_MUT(t, double)[i] = v;
    else if (t->dtype == TRN_FLOAT)
        TRN_DATA_MUT(t, float)[i] = f;
    else
        trn_narrow(TRN_DATA_MUT(t, uint16_t) + i, &f, t->dtype, 1);
}

static trn_err unary(trn_kctx *k, double (*fn)(double))
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    for (int64_t i = 0; i < y->count; i++)
        put(y, i, fn(get(x, i)));
    return TRN_OK;
}

static trn_err binary(trn_kctx *k, double (*fn)(double, double))
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    trn_bcast bc;
    trn_tensor *y;
    TRN_TRY(trn_bcast_make(&bc, &a->shape, &b->shape));
    TRN_TRY(trn_out_new(&y, k, 0, a->dtype, &bc.out));
    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i, ia = 0, ib = 0;
        for (int d = bc.rank - 1; d >= 0; d--) {
            ia += rest % bc.dim[d] * bc.sa[d];
            ib += rest % bc.dim[d] * bc.sb[d];
            rest /= bc.dim[d];
        }
        put(y, i, fn(get(a, ia), get(b, ib)));
    }
    return TRN_OK;
}

#define UNARY(name, fn)                                                                                                \
    static trn_err name(trn_kctx *k) { return unary(k, fn); }
#define BINARY(name, fn)                                                                                               \
    static trn_err name(trn_kctx *k) { return binary(k, fn); }
UNARY(k_erfinv, erfinv)
UNARY(k_ndtri, ndtri)
UNARY(k_i0e, bessel_i0e)
UNARY(k_i1e, bessel_i1e)
UNARY(k_i0, bessel_i0)
UNARY(k_i1, bessel_i1)
UNARY(k_j0, j0)
UNARY(k_j1, j1)
UNARY(k_y0, y0)
UNARY(k_y1, y1)
UNARY(k_k0, trn_fn_k0)
UNARY(k_k1, trn_fn_k1)
UNARY(k_k0e, trn_fn_k0e)
UNARY(k_k1e, trn_fn_k1e)
UNARY(k_spence, trn_fn_spence)
UNARY(k_expint, trn_fn_expint)
UNARY(k_dawson, trn_fn_dawson)
UNARY(k_fresnel_sin, trn_fn_fresnel_sin)
UNARY(k_fresnel_cos, trn_fn_fresnel_cos)
BINARY(k_igamma_da, trn_fn_igamma_da)
BINARY(k_sample_da, trn_fn_gamma_sample_da)
BINARY(k_igamma, igamma)
BINARY(k_igammac, igammac)
BINARY(k_zeta, zeta)
BINARY(k_polygamma, polygamma)

/* All of one shape, or scalars. */
static trn_err k_betainc(trn_kctx *k)
{
    const trn_shape *s = NULL;
    for (int i = 0; i < 3; i++) {
        const trn_shape *si = &trn_in(k, i)->shape;
        if (si->rank == 0)
            continue;
        TRN_CHECK_ARG(!s || trn_shape_eq(s, si), "Shapes of a, b and x are inconsistent");
        s = si;
    }
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 0)->dtype, s ? s : &scalar));
    for (int64_t i = 0; i < y->count; i++) {
        double v[3];
        for (int j = 0; j < 3; j++)
            v[j] = get(trn_in(k, j), trn_in(k, j)->shape.rank ? i : 0);
        put(y, i, betainc(v[0], v[1], v[2]));
    }
    return TRN_OK;
}

const trn_op trn_ops_special[] = {
    {"Erfinv", "x:T -> y:T; T:float", trn_sh_same, k_erfinv, 0},
    {"Ndtri", "x:T -> y:T; T:float", trn_sh_same, k_ndtri, 0},
    {"BesselI0e", "x:T -> y:T; T:float", trn_sh_same, k_i0e, 0},
    {"BesselI1e", "x:T -> y:T; T:float", trn_sh_same, k_i1e, 0},
    {"BesselI0", "x:T -> y:T; T:float", trn_sh_same, k_i0, 0},
    {"BesselI1", "x:T -> y:T; T:float", trn_sh_same, k_i1, 0},
    {"BesselJ0", "x:T -> y:T; T:float", trn_sh_same, k_j0, 0},
    {"BesselJ1", "x:T -> y:T; T:float", trn_sh_same, k_j1, 0},
    {"BesselY0", "x:T -> y:T; T:float", trn_sh_same, k_y0, 0},
    {"BesselY1", "x:T -> y:T; T:float", trn_sh_same, k_y1, 0},
    {"BesselK0", "x:T -> y:T; T:float", trn_sh_same, k_k0, 0},
    {"BesselK1", "x:T -> y:T; T:float", trn_sh_same, k_k1, 0},
    {"BesselK0e", "x:T -> y:T; T:float", trn_sh_same, k_k0e, 0},
    {"BesselK1e", "x:T -> y:T; T:float", trn_sh_same, k_k1e, 0},
    {"Spence", "x:T -> y:T; T:float", trn_sh_same, k_spence, 0},
    {"Expint", "x:T -> y:T; T:float", trn_sh_same, k_expint, 0},
    {"Dawsn", "x:T -> y:T; T:float", trn_sh_same, k_dawson, 0},
    {"FresnelSin", "x:T -> y:T; T:float", trn_sh_same, k_fresnel_sin, 0},
    {"FresnelCos", "x:T -> y:T; T:float", trn_sh_same, k_fresnel_cos, 0},
    {"IgammaGradA", "a:T, x:T -> z:T; T:f32|f64", trn_sh_bcast, k_igamma_da, 0},
    {"RandomGammaGrad", "alpha:T, sample:T -> output:T; T:f32|f64", trn_sh_bcast, k_sample_da, 0},
    {"Igamma", "a:T, x:T -> z:T; T:float", trn_sh_bcast, k_igamma, 0},
    {"Igammac", "a:T, x:T -> z:T; T:float", trn_sh_bcast, k_igammac, 0},
    {"Zeta", "x:T, q:T -> z:T; T:f32|f64", trn_sh_bcast, k_zeta, 0},
    {"Polygamma", "a:T, x:T -> z:T; T:f32|f64", trn_sh_bcast, k_polygamma, 0},
    {"Betainc", "a:T, b:T, x:T -> z:T; T:f32|f64", trn_sh_unknown, k_betainc, 0},
    {0},
};
