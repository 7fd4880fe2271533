/* More linear algebra on batches of matrices: LU, functions of matrices, tridiagonal systems, the gradient of Cholesky's factor. Everything is
 * computed in double complex: these are small matrices, and one version of each loop is enough. */
#include "ops/kern.h"
#include "ops/schur.h"

#include <complex.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#undef I

typedef double _Complex num;

static num get(const trn_tensor *t, int64_t i)
{
    float f;
    switch (t->dtype) {
    case TRN_FLOAT: return (num)TRN_DATA(t, float)[i];
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    case TRN_COMPLEX64: return (num)TRN_DATA(t, float _Complex)[i];
    case TRN_COMPLEX128: return TRN_DATA(t, double _Complex)[i];
    default: trn_widen(&f, TRN_DATA(t, uint16_t) + i, t->dtype, 1); return (num)f;
    }
}

static void put(trn_tensor *t, int64_t i, num v)
{
    float f = (float)creal(v);
    switch (t->dtype) {
    case TRN_FLOAT: TRN_DATA_MUT(t, float)[i] = f; break;
    case TRN_DOUBLE: TRN_DATA_MUT(t, double)[i] = creal(v); break;
    case TRN_COMPLEX64: TRN_DATA_MUT(t, float _Complex)[i] = (float _Complex)v; break;
    case TRN_COMPLEX128: TRN_DATA_MUT(t, double _Complex)[i] = v; break;
    default: trn_narrow(TRN_DATA_MUT(t, uint16_t) + i, &f, t->dtype, 1);
    }
}

/* Room for `count` matrices of n × n, one behind the other. */
static num *room(int64_t n, int count) { return malloc(((size_t)n * (size_t)n * (size_t)count + 1) * sizeof(num)); }

static trn_err square_in(int64_t *n, int64_t *batch, const trn_tensor *t)
{
    char text[TRN_SHAPE_TEXT];
    int r = t->shape.rank;
    TRN_CHECK_ARG(r >= 2, "Input tensor must have rank >= 2, not shape %s", trn_shape_text(text, &t->shape));
    TRN_CHECK_ARG(t->shape.dim[r - 1] == t->shape.dim[r - 2], "Input matrix must be square, not of shape %s", trn_shape_text(text, &t->shape));
    *n = t->shape.dim[r - 1];
    *batch = t->count ? t->count / (*n * *n) : 0; /* of none, n may be so large that n² is no number */
    return TRN_OK;
}

static double norm1(const num *a, int64_t n)
{
    double most = 0;
    for (int64_t j = 0; j < n; j++) {
        double s = 0;
        for (int64_t i = 0; i < n; i++)
            s += cabs(a[i * n + j]);
        most = s > most ? s : most;
    }
    return most;
}

/* In place, rows swapped as perm says (may be NULL). False: a pivot is zero. */
static bool lu(num *a, int64_t n, int64_t *perm)
{
    bool ok = true;
    for (int64_t i = 0; perm && i < n; i++)
        perm[i] = i;
    for (int64_t k = 0; k < n; k++) {
        int64_t p = k;
        for (int64_t i = k + 1; i < n; i++)
            if (cabs(a[i * n + k]) > cabs(a[p * n + k]))
                p = i;
        if (p != k) {
            for (int64_t j = 0; j < n; j++) {
                num t = a[k * n + j];
                a[k * n + j] = a[p * n + j];
                a[p * n + j] = t;
            }
            if (perm) {
                int64_t t = perm[k];
                perm[k] = perm[p];
                perm[p] = t;
            }
        }
        if (a[k * n + k] == 0) {
            ok = false;
            continue;
        }
        for (int64_t i = k + 1; i < n; i++) {
            num f = a[i * n + k] /= a[k * n + k];
            for (int64_t j = k + 1; j < n; j++)
                a[i * n + j] -= f * a[k * n + j];
        }
    }
    return ok;
}

/* x = a⁻¹ b; `w` is room for a matrix, `perm` for n numbers. */
static bool solve(num *x, const num *a, const num *b, num *w, int64_t *perm, int64_t n)
{
    memcpy(w, a, (size_t)(n * n) * sizeof *w);
    if (!lu(w, n, perm))
        return false;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < n; i++) {
            num s = b[perm[i] * n + j];
            for (int64_t e = 0; e < i; e++)
                s -= w[i * n + e] * x[e * n + j];
            x[i * n + j] = s;
        }
        for (int64_t i = n - 1; i >= 0; i--) {
            num s = x[i * n + j];
            for (int64_t e = i + 1; e < n; e++)
                s -= w[i * n + e] * x[e * n + j];
            x[i * n + j] = s / w[i * n + i];
        }
    }
    return true;
}

/* ---- Lu ------------------------------------------------------------------------------------------------------------------------ */

static trn_err k_lu(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t n, batch;
    TRN_TRY(square_in(&n, &batch, x));
    trn_tensor *y, *p;
    trn_shape s = x->shape;
    s.rank--;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    TRN_TRY(trn_out_new(&p, k, 1, trn_attr_type(k->node, "output_idx_type"), &s));
    if (!batch)
        return TRN_OK;
    num *a = room(n, 1);
    int64_t *perm = malloc((size_t)(n + 1) * sizeof *perm);
    trn_err err = a && perm ? TRN_OK : trn_err_oom();
    for (int64_t b = 0; b < batch && !err; b++) {
        for (int64_t i = 0; i < n * n; i++)
            a[i] = get(x, b * n * n + i);
        if (!lu(a, n, perm))
            err = TRN_BAD("Input is not invertible.");
        for (int64_t i = 0; i < n * n && !err; i++)
            put(y, b * n * n + i, a[i]);
        for (int64_t i = 0; i < n && !err; i++)
            trn_int_put(p, b * n + i, perm[i]);
    }
    free(a);
    free(perm);
    return err;
}
static trn_err sh_lu(trn_shctx *s)
{
    s->out[0] = s->out[1] = s->in[0];
    if (s->out[1].rank > 0)
        s->out[1].rank--;
    return TRN_OK;
}

/* ---- functions of matrices ------------------------------------------------------------------------------------------------------- */

typedef struct work {
    num *m[8];
    int64_t *perm, n;
    bool real;
} work;

/* But for rounding: an eigenvalue of the triangle t. */
static bool is_real(num v, const num *t, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, cabs(t[i * (n + 1)]));
    return fabs(cimag(v)) <= 64 * (double)n * DBL_EPSILON * size;
}

/* The root of an upper triangular matrix, in place: on the diagonal roots of numbers, then diagonal by diagonal (Björck and Hammarling). */
static void triangle_root(num *t, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        t[j * n + j] = csqrt(t[j * n + j]);
        for (int64_t i = j - 1; i >= 0; i--) {
            num s = t[i * n + j], d = t[i * n + i] + t[j * n + j];
            for (int64_t e = i + 1; e < j; e++)
                s -= t[i * n + e] * t[e * n + j];
            t[i * n + j] = s == 0 ? 0 : s / d;
        }
    }
}

/* y = u f uᴴ; t is room. */
static void turn_back(num *y, const num *f, const num *u, num *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            num s = 0;
            for (int64_t e = 0; e < n; e++)
                s += f[i * n + e] * conj(u[j * n + e]);
            t[i * n + j] = s;
        }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            num s = 0;
            for (int64_t e = 0; e < n; e++)
                s += u[i * n + e] * t[e * n + j];
            y[i * n + j] = s;
        }
}

static bool square_root(num *y, const num *x, const work *w)
{
    int64_t n = w->n;
    num *a = w->m[0], *u = w->m[1];
    memcpy(a, x, (size_t)(n * n) * sizeof *a);
    if (!trn_schur(a, u, n))
        return false;
    for (int64_t i = 0; w->real && i < n; i++) /* pairs have a real root together, a negative number has none */
        if (creal(a[i * (n + 1)]) < 0 && is_real(a[i * (n + 1)], a, n))
            return false;
    triangle_root(a, n);
    turn_back(y, a, u, w->m[2], n);
    return true;
}

/* On the triangle of Schur's form: roots until it is near one, then ∫ X (1 + sX)⁻¹ ds by Gauss and Legendre's rule. */
static bool logarithm(num *y, const num *x, const work *w)
{
    int64_t n = w->n;
    num *a = w->m[0], *r = w->m[1], *t = w->m[2], *u = w->m[4], *sum = w->m[6];
    int roots = 0;
    memcpy(a, x, (size_t)(n * n) * sizeof *a);
    if (!trn_schur(a, u, n))
        return false;
    for (;; roots++) {
        for (int64_t i = 0; i < n * n; i++)
            r[i] = a[i] - (i % (n + 1) == 0);
        double far = norm1(r, n);
        if (far < 0.25)
            break;
        if (roots > 100 || !isfinite(far))
            return false;
        triangle_root(a, n);
    }
    memset(sum, 0, (size_t)(n * n) * sizeof *sum);
    enum { NODES = 12 };
    num *den = w->m[3], *part = w->m[5];
    for (int j = 0; j < NODES; j++) {
        double z = cos(3.14159265358979323846 * (j + 0.75) / (NODES + 0.5)), d = 1;
        for (int it = 0; it < 50; it++) { /* Newton on Legendre's polynomial */
            double p0 = 1, p1 = z;
            for (int m = 2; m <= NODES; m++) {
                double p2 = ((2 * m - 1) * z * p1 - (m - 1) * p0) / m;
                p0 = p1;
                p1 = p2;
            }
            d = NODES * (z * p1 - p0) / (z * z - 1);
            double step = p1 / d;
            z -= step;
            if (fabs(step) < 1e-16)
                break;
        }
        double at = 0.5 * (1 + z), weight = 1 / ((1 - z * z) * d * d);
        for (int64_t i = 0; i < n * n; i++)
            den[i] = at * r[i] + (i % (n + 1) == 0);
        if (!solve(part, den, r, t, w->perm, n))
            return false;
        for (int64_t i = 0; i < n * n; i++)
            sum[i] += weight * part[i];
    }
    for (int64_t i = 0; i < n * n; i++)
        sum[i] *= ldexp(1, roots);
    turn_back(y, sum, u, t, n);
    return true;
}

static void product(num *y, const num *a, const num *b, int64_t n)
{
    memset(y, 0, (size_t)(n * n) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0; e < n; e++)
            for (int64_t j = 0; j < n; j++)
                y[i * n + j] += a[i * n + e] * b[e * n + j];
}

/* Of x / 2ˢ by Padé's approximation of degree 13, squared s times; s so large that the approximation is as precise as a double (Higham, 2005). */
static bool exponential(num *y, const num *x, const work *w)
{
    static const double c[] = {64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800,
                               33522128640,       1323241920,        40840800,         960960,           16380,           182,            1};
    int64_t n = w->n, n2 = n * n;
    num *a = w->m[0], *a2 = w->m[1], *power = w->m[2], *t = w->m[3], *odd = w->m[4], *even = w->m[5];
    double norm = norm1(x, n);
    if (!isfinite(norm))
        return false;
    int squarings = norm > 5.4 ? (int)ceil(log2(norm / 5.4)) : 0;
    for (int64_t i = 0; i < n2; i++)
        a[i] = ldexp(1, -squarings) * x[i];
    product(a2, a, a, n);
    for (int64_t i = 0; i < n2; i++)
        power[i] = i % (n + 1) == 0;
    for (int64_t i = 0; i < n2; i++)
        even[i] = odd[i] = 0;
    for (int d = 0; d < 14; d += 2) {
        for (int64_t i = 0; i < n2; i++) {
            even[i] += c[d] * power[i];
            odd[i] += c[d + 1] * power[i];
        }
        product(t, power, a2, n);
        memcpy(power, t, (size_t)n2 * sizeof *t);
    }
    product(t, a, odd, n);
    for (int64_t i = 0; i < n2; i++) {
        a[i] = even[i] + t[i];
        a2[i] = even[i] - t[i];
    }
    if (!solve(y, a2, a, t, w->perm, n))
        return false;
    for (; squarings > 0; squarings--) {
        product(t, y, y, n);
        memcpy(y, t, (size_t)n2 * sizeof *t);
    }
    return true;
}

static trn_err of_matrix(trn_kctx *k, bool (*fn)(num *, const num *, const work *))
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t n, batch;
    TRN_TRY(square_in(&n, &batch, x));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    if (!batch)
        return TRN_OK;
    num *all = room(n, 10);
    work w = {.perm = malloc((size_t)(n + 1) * sizeof *w.perm), .n = n, .real = x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE};
    trn_err err = all && w.perm ? TRN_OK : trn_err_oom();
    for (int i = 0; i < 8 && !err; i++)
        w.m[i] = all + (i + 2) * n * n;
    for (int64_t b = 0; b < batch && !err; b++) {
        for (int64_t i = 0; i < n * n; i++)
            all[i] = get(x, b * n * n + i);
        bool ok = fn(all + n * n, all, &w);
        for (int64_t i = 0; i < n * n; i++)
            put(y, b * n * n + i, ok ? all[n * n + i] : (num)NAN);
    }
    free(all);
    free(w.perm);
    return err;
}
static trn_err k_sqrt(trn_kctx *k) { return of_matrix(k, square_root); }
static trn_err k_log(trn_kctx *k) { return of_matrix(k, logarithm); }
static trn_err k_exp(trn_kctx *k) { return of_matrix(k, exponential); }

/* ---- eigenvalues ----------------------------------------------------------------------------------------------------------------- */

/* By size, the smallest first, as in TensorFlow. */
static void order(num *val, num *vec, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t least = i;
        for (int64_t j = i + 1; j < n; j++)
            if (cabs(val[j]) < cabs(val[least]))
                least = j;
        num t = val[i];
        val[i] = val[least];
        val[least] = t;
        for (int64_t r = 0; vec && r < n; r++) {
            t = vec[r * n + i];
            vec[r * n + i] = vec[r * n + least];
            vec[r * n + least] = t;
        }
    }
}

static trn_err eig(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t n, batch;
    TRN_TRY(square_in(&n, &batch, x));
    bool vectors = trn_attr_bool(k->node, "compute_v"), real = x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE;
    trn_dtype type = trn_attr_type(k->node, "Tout");
    bool wide = x->dtype == TRN_DOUBLE || x->dtype == TRN_COMPLEX128;
    TRN_CHECK_ARG(type == (wide ? TRN_COMPLEX128 : TRN_COMPLEX64), "Invalid output dtype %s for an input of %s", trn_dtype_name(type), trn_dtype_name(x->dtype));
    trn_shape es = x->shape, none = trn_shape_scalar();
    es.rank--;
    trn_tensor *e, *v;
    TRN_TRY(trn_out_new(&e, k, 0, type, &es));
    TRN_TRY(trn_out_new(&v, k, 1, type, vectors ? &x->shape : &none));
    if (!vectors)
        trn_zero_elems(v, 0, v->count);
    if (!batch)
        return TRN_OK;
    num *a = room(n, 3), *u = a + n * n, *vec = vectors ? u + n * n : NULL, *val = malloc((size_t)(n + 1) * sizeof *val);
    trn_err err = a && val ? TRN_OK : trn_err_oom();
    trn_fpu fpu = trn_fpu_keep(); /* as TensorFlow does here */
    for (int64_t b = 0; b < batch && !err; b++) {
        for (int64_t i = 0; i < n * n; i++)
            a[i] = get(x, b * n * n + i);
        if (!trn_schur(a, u, n)) {
            err = TRN_BAD("Eigen decomposition was not successful. The input might not be valid.");
            break;
        }
        if (vec)
            trn_schur_vectors(vec, a, u, n);
        for (int64_t i = 0; i < n; i++)
            val[i] = real && is_real(a[i * (n + 1)], a, n) ? creal(a[i * (n + 1)]) : a[i * (n + 1)];
        if (!real)
            order(val, vec, n);
        for (int64_t i = 0; i < n; i++)
            put(e, b * n + i, val[i]);
        for (int64_t i = 0; vec && i < n * n; i++)
            put(v, b * n * n + i, vec[i]);
    }
    trn_fpu_restore(fpu);
    free(a);
    free(val);
    return err;
}

static trn_err sh_eig(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->out[0].rank > 0)
        s->out[0].rank--;
    s->out[1] = trn_attr_bool(s->node, "compute_v") ? s->in[0] : trn_shape_unknown();
    return TRN_OK;
}

/* ---- tridiagonal ----------------------------------------------------------------------------------------------------------------- */

static trn_err lead_of(const trn_shape *a, const trn_shape *b, int less_a, int less_b)
{
    bool same = a->rank - less_a == b->rank - less_b && a->rank >= less_a;
    for (int i = 0; i < a->rank - less_a && same; i++)
        same = a->dim[i] == b->dim[i];
    TRN_CHECK_ARG(same, "All input tensors must have the same outer dimensions.");
    return TRN_OK;
}

static trn_err tri_mat_mul(trn_kctx *k)
{
    const trn_tensor *up = trn_in(k, 0), *main = trn_in(k, 1), *down = trn_in(k, 2), *x = trn_in(k, 3);
    int r = x->shape.rank;
    TRN_CHECK_ARG(r >= 2, "Input must have rank >= 2, but got rank %d", r);
    int64_t m = x->shape.dim[r - 2], n = x->shape.dim[r - 1];
    for (int i = 0; i < 3; i++) {
        const trn_shape *s = &trn_in(k, i)->shape;
        TRN_CHECK_ARG(s->rank == r, "Input 0-2 must have the rank of the right-hand side, %d, not %d", r, s->rank);
        TRN_TRY(lead_of(s, &x->shape, 2, 2));
        TRN_CHECK_ARG(s->dim[r - 2] == 1, "the diagonals must be matrices of one row, not %lld", (long long)s->dim[r - 2]);
        TRN_CHECK_ARG(s->dim[r - 1] == m, "the diagonals must have %lld elements, not %lld", (long long)m, (long long)s->dim[r - 1]);
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    int64_t batch = x->count ? x->count / (m * n) : 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t at = (b * m + i) * n + j;
                num s = get(main, b * m + i) * get(x, at);
                s += i + 1 < m ? get(up, b * m + i) * get(x, at + n) : 0;
                s += i > 0 ? get(down, b * m + i) * get(x, at - n) : 0;
                put(y, at, s);
            }
    return TRN_OK;
}

/* One system; the diagonals are used up. False: not invertible. */
static bool tri_solve(num *up, num *main, num *down, num *up2, num *x, int64_t m, int64_t n, bool pivot, bool perturb)
{
    for (int64_t i = 0; i < m; i++)
        up2[i] = 0;
    for (int64_t i = 0; i < m; i++) {
        if (i + 1 < m && pivot && cabs(down[i + 1]) > cabs(main[i])) { /* rows i and i + 1 change places */
            num a = main[i], b = up[i];
            main[i] = down[i + 1];
            up[i] = main[i + 1];
            up2[i] = i + 2 < m ? up[i + 1] : 0;
            down[i + 1] = a;
            main[i + 1] = b;
            if (i + 2 < m)
                up[i + 1] = 0;
            for (int64_t j = 0; j < n; j++) {
                num t = x[i * n + j];
                x[i * n + j] = x[(i + 1) * n + j];
                x[(i + 1) * n + j] = t;
            }
        }
        if (main[i] == 0) {
            if (!perturb)
                return false;
            main[i] = DBL_EPSILON;
        }
        if (i + 1 == m)
            break;
        num f = down[i + 1] / main[i];
        main[i + 1] -= f * up[i];
        if (i + 2 < m)
            up[i + 1] -= f * up2[i];
        for (int64_t j = 0; j < n; j++)
            x[(i + 1) * n + j] -= f * x[i * n + j];
    }
    for (int64_t i = m - 1; i >= 0; i--)
        for (int64_t j = 0; j < n; j++) {
            num s = x[i * n + j];
            s -= i + 1 < m ? up[i] * x[(i + 1) * n + j] : 0;
            s -= i + 2 < m ? up2[i] * x[(i + 2) * n + j] : 0;
            x[i * n + j] = s / main[i];
        }
    return true;
}

static trn_err k_tri_solve(trn_kctx *k)
{
    const trn_tensor *d = trn_in(k, 0), *x = trn_in(k, 1);
    int r = x->shape.rank;
    TRN_CHECK_ARG(d->shape.rank >= 2 && r >= 2, "Inputs must be at least matrices, not of rank %d and %d", d->shape.rank, r);
    TRN_CHECK_ARG(d->shape.rank == r, "Expected the diagonals and the right-hand side to have one rank, got %d and %d", d->shape.rank, r);
    TRN_TRY(lead_of(&d->shape, &x->shape, 2, 2));
    int64_t m = x->shape.dim[r - 2], n = x->shape.dim[r - 1];
    TRN_CHECK_ARG(d->shape.dim[r - 2] == 3, "Expected diagonals to have 3 rows, got %lld", (long long)d->shape.dim[r - 2]);
    TRN_CHECK_ARG(d->shape.dim[r - 1] == m, "The length of diagonals is expected to be equal to the number of rows of rhs: %lld and %lld",
                  (long long)d->shape.dim[r - 1], (long long)m);
    bool pivot = trn_attr_bool(k->node, "partial_pivoting"), perturb = trn_attr_bool(k->node, "perturb_singular");
    TRN_CHECK_ARG(pivot || !perturb, "Setting perturb_singular requires pivoting.");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    if (!x->count)
        return TRN_OK;
    int64_t batch = x->count / (m * n);
    num *w = malloc((size_t)(m * (n + 4) + 1) * sizeof *w);
    trn_err err = w ? TRN_OK : trn_err_oom();
    for (int64_t b = 0; b < batch && !err; b++) {
        for (int64_t i = 0; i < 3 * m; i++)
            w[i] = get(d, b * 3 * m + i);
        for (int64_t i = 0; i < m * n; i++)
            w[4 * m + i] = get(x, b * m * n + i);
        bool ok = tri_solve(w, w + m, w + 2 * m, w + 3 * m, w + 4 * m, m, n, pivot, perturb);
        for (int64_t i = 0; i < m * n; i++) /* TensorFlow has no error for it either */
            put(y, b * m * n + i, ok ? w[4 * m + i] : (num)NAN);
    }
    free(w);
    return err;
}

/* ---- CholeskyGrad ------------------------------------------------------------------------------------------------------------------ */

/* With P = the lower half of Lᵀ·dL, its diagonal halved: L⁻ᵀ P L⁻¹, made symmetric. */
static trn_err cholesky_grad(trn_kctx *k)
{
    const trn_tensor *l = trn_in(k, 0), *g = trn_in(k, 1);
    int64_t n, batch;
    TRN_TRY(square_in(&n, &batch, l));
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&l->shape, &g->shape), "Inputs must have same shape, got %s and %s", trn_shape_text(ta, &l->shape),
                  trn_shape_text(tb, &g->shape));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, l->dtype, &l->shape));
    if (!batch)
        return TRN_OK;
    num *w = room(n, 3);
    if (!w)
        return trn_err_oom();
    num *a = w, *d = w + n * n, *p = w + 2 * n * n;
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                a[i * n + j] = j <= i ? get(l, (b * n + i) * n + j) : 0;
                d[i * n + j] = j <= i ? get(g, (b * n + i) * n + j) : 0;
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                num s = 0;
                for (int64_t e = i; e < n && j <= i; e++)
                    s += a[e * n + i] * d[e * n + j];
                p[i * n + j] = i == j ? 0.5 * s : s;
            }
        for (int64_t j = 0; j < n; j++) /* Lᵀ X = P */
            for (int64_t i = n - 1; i >= 0; i--) {
                num s = p[i * n + j];
                for (int64_t e = i + 1; e < n; e++)
                    s -= a[e * n + i] * p[e * n + j];
                p[i * n + j] = s / a[i * n + i];
            }
        for (int64_t i = 0; i < n; i++) /* S L = X */
            for (int64_t j = n - 1; j >= 0; j--) {
                num s = p[i * n + j];
                for (int64_t e = j + 1; e < n; e++)
                    s -= p[i * n + e] * a[e * n + j];
                p[i * n + j] = s / a[j * n + j];
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                put(y, (b * n + i) * n + j, 0.5 * (p[i * n + j] + p[j * n + i]));
    }
    free(w);
    return TRN_OK;
}

const trn_op trn_ops_linalg_more[] = {
    {"Lu", "input:T -> lu:T, p:output_idx_type; T:f64|f32|f16|c64|c128, output_idx_type:i32|i64=i32", sh_lu, k_lu, TRN_OP_HEAVY},
    {"MatrixSquareRoot", "input:T -> output:T; T:f64|f32|f16|c64|c128", trn_sh_same, k_sqrt, TRN_OP_HEAVY},
    {"Eig", "input:T -> e:Tout, v:Tout; compute_v:bool=true, T:f32|f64|c64|c128, Tout:c64|c128", sh_eig, eig, TRN_OP_HEAVY},
    {"MatrixLogarithm", "input:T -> output:T; T:c64|c128", trn_sh_same, k_log, TRN_OP_HEAVY},
    {"MatrixExponential", "input:T -> output:T; T:f64|f32|f16|c64|c128", trn_sh_same, k_exp, TRN_OP_HEAVY}, /* in graphs of versions below 27 */
    {"TridiagonalMatMul", "superdiag:T, maindiag:T, subdiag:T, rhs:T -> output:T; T:f64|f32|c64|c128", trn_sh_unknown, tri_mat_mul, 0},
    {"TridiagonalSolve", "diagonals:T, rhs:T -> output:T; partial_pivoting:bool=true, perturb_singular:bool=false, T:f64|f32|c64|c128", trn_sh_like1, k_tri_solve,
     0},
    {"CholeskyGrad", "l:T, grad:T -> output:T; T:f16|f32|f64", trn_sh_same, cholesky_grad, TRN_OP_HEAVY},
    {"BatchCholeskyGrad", "l:T, grad:T -> output:T; T:f32|f64", trn_sh_same, cholesky_grad, TRN_OP_HEAVY}, /* in graphs of versions below 13 */
    {0},
};
