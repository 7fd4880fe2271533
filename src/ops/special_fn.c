#include "ops/special_fn.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define EULER 0.57721566490153286060651209008240243L
#define PI 3.14159265358979323846264338327950288L

/* ---- Bessel K ------------------------------------------------------------------------------------------------------------- */

/* ∫ exp(-x (cosh t - 1)) cosh(nt) dt from 0: the trapezoidal rule is exact to the last bit for a function that is this smooth. */
static double bessel_ke(int n, double x)
{
    if (isnan(x) || x < 0)
        return NAN;
    if (x == 0)
        return INFINITY;
    const double h = fmin(0.125, 0.7 / sqrt(x)); /* the larger x, the narrower the hill */
    double sum = 0.5;
    for (int i = 1; i < 8000; i++) {
        double t = i * h, c = cosh(t), e = x * (c - 1), term = e > 745 ? 0 : exp(-e) * (n ? c : 1);
        sum += term;
        if (term <= sum * 1e-18)
            break;
    }
    return sum * h;
}
double trn_fn_k0e(double x) { return bessel_ke(0, x); }
double trn_fn_k1e(double x) { return bessel_ke(1, x); }
double trn_fn_k0(double x) { return bessel_ke(0, x) * exp(-x); }
double trn_fn_k1(double x) { return bessel_ke(1, x) * exp(-x); }

/* ---- dilogarithm ------------------------------------------------------------------------------------------------------------ */

/* Σ zᵏ/k², |z| <= 1/2 */
static double dilog_series(double z)
{
    double sum = 0, p = 1;
    for (int k = 1; k < 70; k++) {
        p *= z;
        sum += p / ((double)k * k);
    }
    return sum;
}

double trn_fn_spence(double x)
{
    if (isnan(x) || x < 0)
        return NAN;
    if (x == 0)
        return (double)(PI * PI / 6);
    if (isinf(x))
        return -INFINITY;
    if (x > 2)
        return -trn_fn_spence(1 / x) - 0.5 * log(x) * log(x);
    if (x > 1.5)
        return -dilog_series(1 - 1 / x) - 0.5 * log(x) * log(x);
    if (x < 0.5)
        return (double)(PI * PI / 6) - log(x) * log1p(-x) - dilog_series(x);
    return dilog_series(1 - x);
}

/* ---- exponential integral ---------------------------------------------------------------------------------------------------- */

double trn_fn_expint(double x)
{
    if (isnan(x))
        return x;
    if (x == 0)
        return -INFINITY;
    if (x < 0) /* defined, but not here: TensorFlow's */
        return NAN;
    if (x < 50) {
        long double sum = 0, term = 1;
        for (int k = 1; k < 500; k++) {
            term *= (long double)x / k;
            sum += term / k;
            if (fabsl(term) < fabsl(sum) * 1e-21L)
                break;
        }
        return (double)(EULER + logl(fabsl((long double)x)) + sum);
    }
    if (x > 716.5)
        return INFINITY;
    double sum = 1, term = 1;
    for (int k = 1; k < 50; k++) {
        double next = term * k / x;
        if (next >= term || next < 1e-18)
            break;
        term = next;
        sum += term;
    }
    return exp(x) / x * sum;
}

/* ---- Dawson ------------------------------------------------------------------------------------------------------------------- */

double trn_fn_dawson(double x)
{
    double ax = fabs(x);
    if (isnan(x))
        return x;
    if (ax < 0.5) { /* x Σ (-2x²)ᵏ / (2k+1)!! */
        double sum = 1, term = 1;
        for (int k = 1; k < 40; k++) {
            term *= -2 * x * x / (2 * k + 1);
            sum += term;
        }
        return x * sum;
    }
    if (ax > 25) { /* asymptotic */
        double r = 1 / (2 * x * x);
        return 1 / (2 * x) * (1 + r * (1 + r * (3 + r * (15 + r * 105))));
    }
    /* Rybicki: a sum over odd multiples of h */
    const double h = 0.2;
    int n0 = 2 * (int)lround(0.5 * ax / h);
    double sum = 0;
    for (int n = -61; n <= 61; n += 2) {
        int m = n0 + n;
        double d = ax - m * h;
        sum += exp(-d * d) / m;
    }
    return copysign(sum * 0.56418958354775628694807945156, x);
}

/* ---- Fresnel ------------------------------------------------------------------------------------------------------------------ */

/* Power series, in quad precision because its terms grow to 10^17 before they fall. */
static double fresnel_series(double x, bool is_cos)
{
    __float128 t = (__float128)PI / 2 * x * x, t2 = t * t, term = is_cos ? (__float128)1 : t, sum = 0;
    for (int k = 0; k < 200; k++) {
        __float128 part = term / (4 * k + (is_cos ? 1 : 3));
        sum += part;
        int a = 2 * k + (is_cos ? 1 : 2);
        term *= -t2 / ((__float128)a * (a + 1));
        if (k > 10 && part * part < sum * sum * 1e-40)
            break;
    }
    return (double)(sum * x);
}

static double fresnel(double x, bool is_cos)
{
    double ax = fabs(x);
    if (isnan(x))
        return x;
    if (ax < 5)
        return fresnel_series(x, is_cos);
    if (ax > 1e8)
        return copysign(0.5, x);
    double z = (double)PI * ax * ax, r = 1 / (z * z), f = 1, g = 1, tf = 1, tg = 1;
    for (int m = 1; m < 12; m++) {
        double nf = -tf * (4 * m - 1) * (4 * m - 3) * r, ng = -tg * (4 * m + 1) * (4 * m - 1) * r;
        if (fabs(nf) >= fabs(tf) || fabs(ng) >= fabs(tg))
            break;
        f += tf = nf;
        g += tg = ng;
    }
    f /= (double)PI * ax;
    g /= z * (double)PI * ax;
    /* the angle modulo a full turn before it is multiplied */
    double turns = fmod(ax * ax, 4) * 0.5 * (double)PI, s = sin(turns), c = cos(turns);
    double v = is_cos ? 0.5 + f * s - g * c : 0.5 - f * c - g * s;
    return copysign(v, x);
}
double trn_fn_fresnel_sin(double x) { return fresnel(x, false); }
double trn_fn_fresnel_cos(double x) { return fresnel(x, true); }

/* ---- derivatives of the incomplete gamma function ------------------------------------------------------------------------------ */

static long double digamma(long double x)
{
    long double v = 0;
    for (; x < 20; x += 1)
        v -= 1 / x;
    long double r = 1 / (x * x);
    return v + logl(x) - 0.5L / x - r * (1 / 12.0L - r * (1 / 120.0L - r * (1 / 252.0L - r * (1 / 240.0L - r * (1 / 132.0L - r * 691 / 32760.0L)))));
}

/* P = x^a e^-x / Γ(a+1) · Σ; the derivative without the factor in front. */
static long double slope(double a, double x)
{
    long double sum = 1, dsum = 0, c = 1, dc = 0, r = a;
    for (int i = 0; i < 200000; i++) {
        r += 1;
        dc = (dc - c / r) * (x / r);
        c *= x / r;
        sum += c;
        dsum += dc;
        if (c < sum * 1e-21L && fabsl(dc) < fabsl(dsum) * 1e-21L)
            break;
    }
    return dsum + sum * (logl((long double)x) - digamma((long double)a + 1));
}

double trn_fn_igamma_da(double a, double x)
{
    if (x == 0)
        return 0;
    if (!(x > 0) || !(a > 0))
        return NAN;
    if (isinf(x) || isinf(a))
        return 0;
    return (double)(expl((long double)a * logl((long double)x) - x - lgammal((long double)a + 1)) * slope(a, x));
}

double trn_fn_gamma_sample_da(double a, double x)
{
    if (x == 0)
        return 0;
    if (!(x > 0) || !(a > 0))
        return NAN;
    return (double)(-slope(a, x) * x / a);
}
