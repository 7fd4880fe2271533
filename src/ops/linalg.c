/* Linear algebra on batches of small matrices: determinants, inverses, solutions, factorisations. Half, float and double are computed in double,
 * complex types in double complex, with plain loops (linalg_loops.h). */
#include "ops/kern.h"

#include <complex.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define T double
#define NAME(x) x##_r
#define CONJ(x) (x)
#define RE(x) (x)
#define ABS(x) fabs(x)
#include "ops/linalg_loops.h"
#undef T
#undef NAME
#undef CONJ
#undef RE
#undef ABS

#define T double _Complex
#define NAME(x) x##_c
#define CONJ(x) conj(x)
#define RE(x) creal(x)
#define ABS(x) cabs(x)
#include "ops/linalg_loops.h"
#undef T

/* ---- in and out ------------------------------------------------------------------------------------------------------------ */

static bool is_complex(trn_dtype t) { return t == TRN_COMPLEX64 || t == TRN_COMPLEX128; }
/* Size of the type that is computed in. */
static size_t work_size(trn_dtype t) { return is_complex(t) ? sizeof(double _Complex) : sizeof(double); }

static void load(void *to, const trn_tensor *t, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        switch (t->dtype) {
        case TRN_FLOAT:
            ((double *)to)[i] = (double)TRN_DATA(t, float)[at + i];
            break;
        case TRN_DOUBLE:
            ((double *)to)[i] = TRN_DATA(t, double)[at + i];
            break;
        case TRN_COMPLEX64:
            ((double _Complex *)to)[i] = (double _Complex)TRN_DATA(t, float _Complex)[at + i];
            break;
        case TRN_COMPLEX128:
            ((double _Complex *)to)[i] = TRN_DATA(t, double _Complex)[at + i];
            break;
        default: {
            float f;
            trn_widen(&f, TRN_DATA(t, uint16_t) + at + i, t->dtype, 1);
            ((double *)to)[i] = (double)f;
        }
        }
}

static void store(trn_tensor *t, int64_t at, const void *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        switch (t->dtype) {
        case TRN_FLOAT:
            TRN_DATA_MUT(t, float)[at + i] = (float)((const double *)from)[i];
            break;
        case TRN_DOUBLE:
            TRN_DATA_MUT(t, double)[at + i] = ((const double *)from)[i];
            break;
        case TRN_COMPLEX64:
            TRN_DATA_MUT(t, float _Complex)[at + i] = (float _Complex)((const double _Complex *)from)[i];
            break;
        case TRN_COMPLEX128:
            TRN_DATA_MUT(t, double _Complex)[at + i] = ((const double _Complex *)from)[i];
            break;
        default: {
            float f = (float)((const double *)from)[i];
            trn_narrow(TRN_DATA_MUT(t, uint16_t) + at + i, &f, t->dtype, 1);
        }
        }
}

/* Real numbers into a tensor of any of the types. */
static void store_real(trn_tensor *t, int64_t at, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double _Complex c = from[i];
        store(t, at + i, is_complex(t->dtype) ? (const void *)&c : (const void *)&from[i], 1);
    }
}

static double _Complex get(const void *a, int64_t i, bool c)
{
    return c ? ((const double _Complex *)a)[i] : ((const double *)a)[i];
}
static void put(void *a, int64_t i, double _Complex v, bool c)
{
    if (c)
        ((double _Complex *)a)[i] = v;
    else
        ((double *)a)[i] = creal(v);
}

typedef struct mats {
    const trn_tensor *t;
    int64_t batch, m, n;
    trn_shape lead; /* without the matrix */
} mats;

static trn_err mats_in(mats *x, const trn_kctx *k, int i, bool square)
{
    x->t = trn_in(k, i);
    int r = x->t->shape.rank;
    TRN_CHECK_ARG(r >= 2, "Input tensor %d must have rank >= 2, got %d", i, r);
    x->lead = x->t->shape;
    x->lead.rank = r - 2;
    x->m = x->t->shape.dim[r - 2];
    x->n = x->t->shape.dim[r - 1];
    TRN_CHECK_ARG(!square || x->m == x->n, "Input matrix must be square, got %lld x %lld", (long long)x->m,
                  (long long)x->n);
    x->batch = 1;
    for (int d = 0; d < r - 2; d++)
        x->batch = trn_times(x->batch, x->lead.dim[d]);
    return TRN_OK;
}

static trn_shape with_matrix(const trn_shape *lead, int64_t m, int64_t n)
{
    trn_shape s = *lead;
    s.dim[s.rank++] = m;
    s.dim[s.rank++] = n;
    return s;
}

/* Scratch for one matrix each; sizes come from tensors that exist. (Of none, a matrix may be so large that n² is no number: kernels are done where nothing comes out.) */
static void *scratch(int64_t elements, trn_dtype t) { return malloc((size_t)(elements + 1) * work_size(t)); }

/* ---- square matrices --------------------------------------------------------------------------------------------------------- */

static trn_err cholesky(trn_kctx *k)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, true));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &x.t->shape));
    if (!y->count)
        return TRN_OK;
    void *a = scratch(x.n * x.n, y->dtype);
    if (!a)
        return trn_err_oom();
    bool c = is_complex(y->dtype);
    for (int64_t b = 0; b < x.batch; b++) {
        load(a, x.t, b * x.n * x.n, x.n * x.n);
        if (!(c ? cholesky_c(a, x.n) : cholesky_r(a, x.n)))
            for (int64_t i = 0; i < x.n * x.n; i++) /* not positive definite: no error in TensorFlow either */
                put(a, i, i / x.n >= i % x.n ? NAN : 0, c);
        store(y, b * x.n * x.n, a, x.n * x.n);
    }
    free(a);
    return TRN_OK;
}

/* sign: of the permutation times the phases of the diagonal; log_abs: logarithm of the modulus. */
static void determinant(const void *a, int64_t n, bool complex_, int perm_sign, double _Complex *det,
                        double _Complex *sign, double *log_abs)
{
    double _Complex d = perm_sign, s = perm_sign;
    double l = 0;
    for (int64_t i = 0; i < n; i++) {
        double _Complex v = complex_ ? ((const double _Complex *)a)[i * (n + 1)] : ((const double *)a)[i * (n + 1)];
        double r = cabs(v);
        d = complex_ ? d * v : (double _Complex)(creal(d) * creal(v));
        l += log(r);
        s = r > 0 ? s * (v / r) : 0;
    }
    if (!isfinite(l)) {
        s = 0;
        l = l > 0 ? (double)INFINITY : -(double)INFINITY;
    }
    *det = isfinite(creal(d)) && isfinite(cimag(d)) ? d : s * exp(l); /* what overflows on the way may not do so in the end */
    *sign = s;
    *log_abs = l;
}

static trn_err determinants(trn_kctx *k, bool logs)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, true));
    trn_tensor *y, *l = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &x.lead));
    if (logs)
        TRN_TRY(trn_out_new(&l, k, 1, x.t->dtype, &x.lead));
    if (!y->count)
        return TRN_OK;
    bool c = is_complex(y->dtype);
    void *a = scratch(x.n * x.n, y->dtype);
    int64_t *perm = malloc((size_t)(x.n + 1) * sizeof *perm);
    for (int64_t b = 0; b < x.batch && a && perm; b++) {
        double _Complex det, sign;
        double log_abs;
        load(a, x.t, b * x.n * x.n, x.n * x.n);
        int ps = c ? lu_c(a, x.n, perm) : lu_r(a, x.n, perm);
        determinant(a, x.n, c, ps, &det, &sign, &log_abs);
        double _Complex *v = logs ? &sign : &det;
        double re = creal(*v);
        store(y, b, c ? (void *)v : (void *)&re, 1);
        if (logs)
            store_real(l, b, &log_abs, 1);
    }
    bool ok = a && perm;
    free(a);
    free(perm);
    if (!ok)
        return trn_err_oom();
    return TRN_OK;
}

static trn_err matrix_determinant(trn_kctx *k) { return determinants(k, false); }
static trn_err log_determinant(trn_kctx *k) { return determinants(k, true); }

static trn_err inverse(trn_kctx *k)
{
    mats x;
    bool adjoint = trn_attr_bool(k->node, "adjoint"), ok = true;
    TRN_TRY(mats_in(&x, k, 0, true));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &x.t->shape));
    if (!y->count)
        return TRN_OK;
    int64_t n2 = x.n * x.n;
    bool c = is_complex(y->dtype);
    void *a = scratch(n2, y->dtype), *eye = scratch(n2, y->dtype), *out = scratch(n2, y->dtype);
    int64_t *perm = malloc((size_t)(x.n + 1) * sizeof *perm);
    bool mem = a && eye && out && perm;
    for (int64_t i = 0; i < n2 && mem; i++) {
        if (c)
            ((double _Complex *)eye)[i] = i % (x.n + 1) == 0;
        else
            ((double *)eye)[i] = i % (x.n + 1) == 0;
    }
    for (int64_t b = 0; b < x.batch && mem && ok; b++) {
        load(a, x.t, b * n2, n2);
        ok = c ? solve_c(a, x.n, eye, x.n, adjoint, out, perm) : solve_r(a, x.n, eye, x.n, adjoint, out, perm);
        store(y, b * n2, out, n2);
    }
    free(a);
    free(eye);
    free(out);
    free(perm);
    if (!mem)
        return trn_err_oom();
    TRN_CHECK_ARG(ok, "Input is not invertible.");
    return TRN_OK;
}

static trn_err solve(trn_kctx *k)
{
    mats x, r;
    bool adjoint = trn_attr_bool(k->node, "adjoint"), ok = true;
    TRN_TRY(mats_in(&x, k, 0, true));
    TRN_TRY(mats_in(&r, k, 1, false));
    TRN_CHECK_ARG(trn_shape_eq(&x.lead, &r.lead), "All input tensors must have the same outer dimensions.");
    TRN_CHECK_ARG(x.m == r.m, "Input matrix and rhs are incompatible: %lld rows and %lld", (long long)x.m,
                  (long long)r.m);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &r.t->shape));
    if (!y->count)
        return TRN_OK;
    bool c = is_complex(y->dtype);
    void *a = scratch(x.n * x.n, y->dtype), *b = scratch(r.m * r.n, y->dtype), *out = scratch(r.m * r.n, y->dtype);
    int64_t *perm = malloc((size_t)(x.n + 1) * sizeof *perm);
    bool mem = a && b && out && perm;
    for (int64_t i = 0; i < x.batch && mem && ok; i++) {
        load(a, x.t, i * x.n * x.n, x.n * x.n);
        load(b, r.t, i * r.m * r.n, r.m * r.n);
        ok = c ? solve_c(a, x.n, b, r.n, adjoint, out, perm) : solve_r(a, x.n, b, r.n, adjoint, out, perm);
        store(y, i * r.m * r.n, out, r.m * r.n);
    }
    free(a);
    free(b);
    free(out);
    free(perm);
    if (!mem)
        return trn_err_oom();
    TRN_CHECK_ARG(ok, "Input matrix is not invertible.");
    return TRN_OK;
}

/* Zeros on the diagonal of the first matrix are an error, those of others are not: as in TensorFlow. */
static bool band_ok(const trn_tensor *t, int64_t at, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++) {
        double _Complex v = 0;
        load(&v, t, at + i, 1);
        ok = v != 0;
    }
    return ok;
}

static trn_err solve_triangles(trn_kctx *k, bool banded)
{
    mats x, r;
    bool lower = trn_attr_bool(k->node, "lower"), adjoint = trn_attr_bool(k->node, "adjoint");
    TRN_TRY(mats_in(&x, k, 0, !banded));
    TRN_TRY(mats_in(&r, k, 1, false));
    TRN_CHECK_ARG(!banded || (x.t->count && r.t->count), "the bands and the right-hand side must not be empty");
    TRN_CHECK_ARG(x.n == r.m, "In[0] and In[1] have incompatible rows: %lld and %lld", (long long)x.n, (long long)r.m);
    trn_bcast lead;
    TRN_TRY(trn_bcast_make(&lead, &x.lead, &r.lead));
    TRN_CHECK_ARG(lead.out.rank + 2 <= TRN_MAX_RANK, "too many dimensions");
    trn_shape s = with_matrix(&lead.out, r.m, r.n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &s));
    if (!y->count)
        return TRN_OK;
    TRN_CHECK_ARG(!banded || band_ok(x.t, lower ? 0 : (x.m - 1) * x.n, x.n), "Input matrix is not invertible.");
    bool c = is_complex(y->dtype);
    void *a = scratch(x.m * x.n, y->dtype), *b = scratch(r.m * r.n, y->dtype);
    bool mem = a && b;
    int64_t n_out = y->count / (r.m * r.n);
    for (int64_t i = 0; i < n_out && mem; i++) {
        int64_t rest = i, ia = 0, ib = 0;
        for (int d = lead.rank - 1; d >= 0; d--) {
            ia += rest % lead.dim[d] * lead.sa[d];
            ib += rest % lead.dim[d] * lead.sb[d];
            rest /= lead.dim[d];
        }
        load(a, x.t, ia * x.m * x.n, x.m * x.n);
        load(b, r.t, ib * r.m * r.n, r.m * r.n);
        if (banded && c)
            band_solve_c(a, x.m, x.n, b, r.n, lower, adjoint);
        else if (banded)
            band_solve_r(a, x.m, x.n, b, r.n, lower, adjoint);
        else if (c)
            tri_solve_c(a, x.n, b, r.n, lower, adjoint, false);
        else
            tri_solve_r(a, x.n, b, r.n, lower, adjoint, false);
        store(y, i * r.m * r.n, b, r.m * r.n);
    }
    free(a);
    free(b);
    return mem ? TRN_OK : trn_err_oom();
}
static trn_err triangular_solve(trn_kctx *k) { return solve_triangles(k, false); }
static trn_err banded_solve(trn_kctx *k) { return solve_triangles(k, true); }

/* ---- least squares ----------------------------------------------------------------------------------------------------------- */

/* y[p × q] = op(a)·b, a is [m × n]; adj: aᴴ. */
static void times(void *y, const void *a, int64_t m, int64_t n, bool adj, const void *b, int64_t q, bool c)
{
    int64_t rows = adj ? n : m, inner = adj ? m : n;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < q; j++) {
            double _Complex s = 0;
            for (int64_t e = 0; e < inner; e++) {
                double _Complex v = adj ? conj(get(a, e * n + i, c)) : get(a, i * n + e, c);
                s += v * get(b, e * q + j, c);
            }
            put(y, i * q + j, s, c);
        }
}

static bool least_squares(const void *a, int64_t m, int64_t n, const void *b, int64_t q, double l2, void *g, void *t,
                          void *x, bool c)
{
    int64_t k = m >= n ? n : m;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < k; j++) {
            double _Complex s = i == j ? l2 : 0;
            for (int64_t e = 0; e < (m >= n ? m : n); e++)
                s += m >= n ? conj(get(a, e * n + i, c)) * get(a, e * n + j, c)
                            : get(a, i * n + e, c) * conj(get(a, j * n + e, c));
            put(g, i * k + j, s, c);
        }
    if (!(c ? cholesky_c(g, k) : cholesky_r(g, k)))
        return false;
    void *r = m >= n ? x : t;
    if (m >= n)
        times(x, a, m, n, true, b, q, c);
    else
        memcpy(t, b, (size_t)(m * q) * (c ? sizeof(double _Complex) : sizeof(double)));
    for (int pass = 0; pass < 2; pass++)
        if (c)
            tri_solve_c(g, k, r, q, true, pass, false);
        else
            tri_solve_r(g, k, r, q, true, pass, false);
    if (m < n)
        times(x, a, m, n, true, t, q, c);
    return true;
}

static trn_err solve_ls(trn_kctx *k)
{
    mats x, r;
    TRN_TRY(mats_in(&x, k, 0, false));
    TRN_TRY(mats_in(&r, k, 1, false));
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 2)), "l2_regularizer must be scalar");
    double l2 = TRN_DATA(trn_in(k, 2), double)[0];
    TRN_CHECK_ARG(l2 >= 0, "l2_regularizer must be >= 0.");
    TRN_CHECK_ARG(trn_shape_eq(&x.lead, &r.lead), "All input tensors must have the same outer dimensions.");
    TRN_CHECK_ARG(x.m == r.m, "Input matrix and rhs are incompatible: %lld rows and %lld", (long long)x.m,
                  (long long)r.m);
    trn_shape s = with_matrix(&x.lead, x.n, r.n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    if (!y->count || !x.m)
        return TRN_OK;
    bool c = is_complex(y->dtype), ok = true;
    int64_t small = TRN_MIN(x.m, x.n);
    void *a = scratch(x.m * x.n, y->dtype), *b = scratch(r.m * r.n, y->dtype), *g = scratch(small * small, y->dtype),
         *t = scratch(x.m * r.n, y->dtype), *out = scratch(x.n * r.n, y->dtype);
    bool mem = a && b && g && t && out;
    for (int64_t i = 0; i < x.batch && mem && ok; i++) {
        load(a, x.t, i * x.m * x.n, x.m * x.n);
        load(b, r.t, i * r.m * r.n, r.m * r.n);
        ok = least_squares(a, x.m, x.n, b, r.n, trn_attr_bool(k->node, "fast") ? l2 : 0, g, t, out, c);
        store(y, i * x.n * r.n, out, x.n * r.n);
    }
    free(a);
    free(b);
    free(g);
    free(t);
    free(out);
    if (!mem)
        return trn_err_oom();
    TRN_CHECK_ARG(ok, "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide a larger "
                      "l2_regularizer > 0.");
    return TRN_OK;
}

/* ---- factors ----------------------------------------------------------------------------------------------------------------- */

static trn_err qr(trn_kctx *k)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, false));
    bool full = trn_attr_bool(k->node, "full_matrices");
    int64_t small = TRN_MIN(x.m, x.n), p = full ? x.m : small;
    trn_shape qs = with_matrix(&x.lead, x.m, p), rs = with_matrix(&x.lead, p, x.n);
    trn_tensor *q, *r;
    TRN_TRY(trn_out_new(&q, k, 0, x.t->dtype, &qs));
    TRN_TRY(trn_out_new(&r, k, 1, x.t->dtype, &rs));
    if (!q->count && !r->count)
        return TRN_OK;
    bool c = is_complex(q->dtype);
    void *a = scratch(x.m * x.n, q->dtype), *w = scratch(x.m * p, q->dtype), *tau = scratch(small, q->dtype);
    bool mem = a && w && tau;
    for (int64_t b = 0; b < x.batch && mem; b++) {
        load(a, x.t, b * x.m * x.n, x.m * x.n);
        if (c)
            qr_c(a, x.m, x.n, w, p, tau);
        else
            qr_r(a, x.m, x.n, w, p, tau);
        store(q, b * x.m * p, w, x.m * p);
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j < TRN_MIN(i, x.n); j++)
                put(a, i * x.n + j, 0, c);
        store(r, b * p * x.n, a, p * x.n);
    }
    free(a);
    free(w);
    free(tau);
    return mem ? TRN_OK : trn_err_oom();
}

/* Columns of y[.., n × p] = rows of w (p × n). */
static void store_columns(trn_tensor *y, int64_t at, const void *w, int64_t n, int64_t p)
{
    size_t size = work_size(y->dtype);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < p; j++)
            store(y, at + i * p + j, (const char *)w + (size_t)(j * n + i) * size, 1);
}

/* Of each matrix: the values to e, the vectors to v (NULL: they are not wanted); or, in one, both to e, the values as a row above the vectors. */
static trn_err eigh_each(const mats *x, trn_tensor *e, trn_tensor *v, bool in_one)
{
    if (!e->count)
        return TRN_OK;
    bool c = is_complex(x->t->dtype);
    int64_t n = x->n, n2 = n * n, step = in_one ? n + n2 : n;
    void *a = scratch(n2, e->dtype), *w = scratch(n2, e->dtype);
    double *val = malloc((size_t)(n + 1) * sizeof *val);
    bool mem = a && w && val;
    trn_fpu fpu = trn_fpu_keep(); /* as TensorFlow does here */
    for (int64_t b = 0; b < x->batch && mem; b++) {
        load(a, x->t, b * n2, n2);
        if (c)
            eigh_c(a, n, val, w);
        else
            eigh_r(a, n, val, w);
        store_real(e, b * step, val, n);
        if (in_one)
            store_columns(e, b * step + n, w, n, n);
        else if (v)
            store_columns(v, b * n2, w, n, n);
    }
    trn_fpu_restore(fpu);
    free(a);
    free(w);
    free(val);
    return mem ? TRN_OK : trn_err_oom();
}

static trn_err eigh(trn_kctx *k)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, true));
    bool vectors = trn_attr_bool(k->node, "compute_v");
    trn_shape es = x.lead, none = trn_shape_scalar();
    es.dim[es.rank++] = x.n;
    trn_tensor *e, *v;
    TRN_TRY(trn_out_new(&e, k, 0, x.t->dtype, &es));
    TRN_TRY(trn_out_new(&v, k, 1, x.t->dtype,
                        vectors ? &x.t->shape : &none)); /* without vectors TensorFlow gives this shape */
    if (!vectors)
        trn_zero_elems(v, 0, v->count);
    return eigh_each(&x, e, vectors ? v : NULL, false);
}

static trn_err eigh_in_one(trn_kctx *k)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, true));
    TRN_CHECK_ARG(x.n < INT64_MAX, "a matrix of %lld rows is too large", (long long)x.n);
    trn_shape s = with_matrix(&x.lead, x.n + 1, x.n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x.t->dtype, &s));
    return eigh_each(&x, y, NULL, true);
}

/* The matrix, or its adjoint, with its columns as rows. */
static void load_columns(void *to, const trn_tensor *t, int64_t at, int64_t m, int64_t n, bool adjoint)
{
    size_t size = work_size(t->dtype);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            char *p = (char *)to + (size_t)(adjoint ? i * n + j : j * m + i) * size;
            load(p, t, at + i * n + j, 1);
            if (adjoint && is_complex(t->dtype))
                *(double _Complex *)p = conj(*(double _Complex *)p);
        }
}

static trn_err svd(trn_kctx *k)
{
    mats x;
    TRN_TRY(mats_in(&x, k, 0, false));
    bool vectors = trn_attr_bool(k->node, "compute_uv"), full = trn_attr_bool(k->node, "full_matrices"),
         c = is_complex(x.t->dtype);
    int64_t small = TRN_MIN(x.m, x.n), large = TRN_MAX(x.m, x.n), pu = full ? x.m : small, pv = full ? x.n : small;
    trn_shape ss = x.lead, us = with_matrix(&x.lead, x.m, pu), vs = with_matrix(&x.lead, x.n, pv),
              none = trn_shape_scalar();
    ss.dim[ss.rank++] = small;
    trn_tensor *s, *u, *v;
    TRN_TRY(trn_out_new(&s, k, 0, x.t->dtype, &ss));
    TRN_TRY(trn_out_new(&u, k, 1, x.t->dtype, vectors ? &us : &none));
    TRN_TRY(trn_out_new(&v, k, 2, x.t->dtype, vectors ? &vs : &none));
    if (!vectors) {
        trn_zero_elems(u, 0, u->count);
        trn_zero_elems(v, 0, v->count);
    }
    if (!s->count && (!vectors || (!u->count && !v->count)))
        return TRN_OK;
    bool wide = x.m < x.n;
    void *a = scratch(large * (full ? large : small), s->dtype), *w = scratch(small * small, s->dtype);
    double *val = malloc((size_t)(small + 1) * sizeof *val);
    bool mem = a && w && val;
    for (int64_t b = 0; b < x.batch && mem; b++) {
        load_columns(a, x.t, b * x.m * x.n, x.m, x.n, wide);
        if (c)
            svd_c(a, large, small, val, w);
        else
            svd_r(a, large, small, val, w);
        if (full && c)
            complete_c(a, large, small, large);
        else if (full)
            complete_r(a, large, small, large);
        store_real(s, b * small, val, small);
        if (!vectors)
            continue;
        store_columns(u, b * x.m * pu, wide ? w : a, x.m, pu);
        store_columns(v, b * x.n * pv, wide ? a : w, x.n, pv);
    }
    free(a);
    free(w);
    free(val);
    return mem ? TRN_OK : trn_err_oom();
}

#define SET "f16|f32|f64|c64|c128"

const trn_op trn_ops_linalg[] = {
    {"Cholesky", "input:T -> output:T; T:" SET, trn_sh_same, cholesky, TRN_OP_HEAVY},
    {"MatrixDeterminant", "input:T -> output:T; T:" SET, trn_sh_unknown, matrix_determinant, TRN_OP_HEAVY},
    {"LogMatrixDeterminant", "input:T -> sign:T, log_abs_determinant:T; T:" SET, trn_sh_unknown, log_determinant,
     TRN_OP_HEAVY},
    {"MatrixInverse", "input:T -> output:T; adjoint:bool=false, T:" SET, trn_sh_same, inverse, TRN_OP_HEAVY},
    {"MatrixSolve", "matrix:T, rhs:T -> output:T; adjoint:bool=false, T:" SET, trn_sh_like1, solve, TRN_OP_HEAVY},
    {"MatrixTriangularSolve", "matrix:T, rhs:T -> output:T; lower:bool=true, adjoint:bool=false, T:bf16|" SET,
     trn_sh_unknown, triangular_solve, TRN_OP_HEAVY},
    {"BandedTriangularSolve", "matrix:T, rhs:T -> output:T; lower:bool=true, adjoint:bool=false, T:f32|f64|c64|c128",
     trn_sh_unknown, banded_solve, TRN_OP_HEAVY},
    {"MatrixSolveLs", "matrix:T, rhs:T, l2_regularizer:f64 -> output:T; T:" SET ", fast:bool=true", trn_sh_unknown,
     solve_ls, TRN_OP_HEAVY},
    {"Qr", "input:T -> q:T, r:T; full_matrices:bool=false, T:" SET, trn_sh_unknown, qr, TRN_OP_HEAVY},
    {"SelfAdjointEigV2", "input:T -> e:T, v:T; compute_v:bool=true, T:" SET, trn_sh_unknown, eigh, TRN_OP_HEAVY},
    {"Svd", "input:T -> s:T, u:T, v:T; compute_uv:bool=true, full_matrices:bool=false, T:" SET, trn_sh_unknown, svd,
     TRN_OP_HEAVY},
    /* Names that graphs of versions below 11 and 13 may hold. */
    {"BatchCholesky", "input:T -> output:T; T:f64|f32", trn_sh_same, cholesky, TRN_OP_HEAVY},
    {"BatchMatrixDeterminant", "input:T -> output:T; T:f32|f64|c64|c128", trn_sh_unknown, matrix_determinant, TRN_OP_HEAVY},
    {"BatchMatrixInverse", "input:T -> output:T; adjoint:bool=false, T:f64|f32", trn_sh_same, inverse, TRN_OP_HEAVY},
    {"BatchMatrixSolve", "matrix:T, rhs:T -> output:T; adjoint:bool=false, T:f64|f32", trn_sh_like1, solve, TRN_OP_HEAVY},
    {"BatchMatrixSolveLs", "matrix:T, rhs:T, l2_regularizer:f64 -> output:T; T:f64|f32, fast:bool=true", trn_sh_unknown, solve_ls, TRN_OP_HEAVY},
    {"BatchMatrixTriangularSolve", "matrix:T, rhs:T -> output:T; lower:bool=true, adjoint:bool=false, T:f64|f32", trn_sh_unknown, triangular_solve,
     TRN_OP_HEAVY},
    {"BatchSelfAdjointEig", "input:T -> output:T; T:f64|f32", trn_sh_unknown, eigh_in_one, TRN_OP_HEAVY},
    {"BatchSelfAdjointEigV2", "input:T -> e:T, v:T; compute_v:bool=true, T:f64|f32", trn_sh_unknown, eigh, TRN_OP_HEAVY},
    {"BatchSvd", "input:T -> s:T, u:T, v:T; compute_uv:bool=true, full_matrices:bool=false, T:f64|f32|c64|c128", trn_sh_unknown, svd, TRN_OP_HEAVY},
    {"SelfAdjointEig", "input:T -> output:T; T:f64|f32|f16", trn_sh_unknown, eigh_in_one, TRN_OP_HEAVY},
    {0},
};
