/* Reductions along axes.
 *
 * Any set of axes comes down to [keep, reduce, keep] after merging neighbours: contiguous runs when the last part is 1, rows added to rows
 * otherwise. More alternations than that are transposed first. Sums of floats are pairwise over blocks, so their error does not grow with
 * the length; halves are widened to float and rounded once.
 */
#include <complex.h>
#include <math.h>
#undef I

#include "ops/kern.h"

typedef struct reducer {
    void (*run)(void *y, const void *x, int64_t n);              /* *y = reduction of n contiguous elements, n >= 1 */
    void (*rows)(void *y, const void *x, int64_t rows, int64_t n, int64_t stride); /* y[0..n) = reduction of `rows` rows, rows >= 1 */
    void (*identity)(void *y);
    void (*finish)(void *y, int64_t n, int64_t count); /* Mean: divide; NULL otherwise */
} reducer;

enum { BLOCK = 1024, ROW_BLOCK = 128, COLS = 512 };

/* One type of one reduction. The lanes let the loop vectorise without reordering sums behind our back. */
#define REDUCER(op, T, W, tag, init, step, lanes)                                                                      \
    TRN_SIMD_##tag static T op##_block_##tag(const T *x, int64_t n)                                                    \
    {                                                                                                                  \
        T acc[lanes];                                                                                                  \
        for (int j = 0; j < lanes; j++)                                                                                \
            acc[j] = init;                                                                                             \
        int64_t i = 0;                                                                                                 \
        for (; i + lanes <= n; i += lanes)                                                                             \
            for (int j = 0; j < lanes; j++) {                                                                          \
                T a = acc[j], b = x[i + j];                                                                            \
                acc[j] = (T)(step);                                                                                    \
            }                                                                                                          \
        for (int j = 0; i < n; i++, j++) {                                                                             \
            T a = acc[j], b = x[i];                                                                                    \
            acc[j] = (T)(step);                                                                                        \
        }                                                                                                              \
        for (int w = lanes / 2; w; w /= 2)                                                                             \
            for (int j = 0; j < w; j++) {                                                                              \
                T a = acc[j], b = acc[j + w];                                                                          \
                acc[j] = (T)(step);                                                                                    \
            }                                                                                                          \
        return acc[0];                                                                                                 \
    }                                                                                                                  \
    static T op##_pair_##tag(const T *x, int64_t n)                                                                    \
    {                                                                                                                  \
        if (n <= BLOCK)                                                                                                \
            return op##_block_##tag(x, n);                                                                             \
        int64_t h = (n / 2 + BLOCK - 1) / BLOCK * BLOCK;                                                               \
        T a = op##_pair_##tag(x, h), b = op##_pair_##tag(x + h, n - h);                                                \
        return (T)(step);                                                                                              \
    }                                                                                                                  \
    static void op##_run_##tag(void *y, const void *x, int64_t n) { *(T *)y = op##_pair_##tag(x, n); }                 \
    TRN_SIMD_##tag static void op##_rows_##tag(void *yy, const void *xx, int64_t rows, int64_t n, int64_t stride)      \
    {                                                                                                                  \
        T *y = yy;                                                                                                     \
        const T *x = xx;                                                                                               \
        T part[COLS];                                                                                                  \
        for (int64_t c = 0; c < n; c += COLS) {                                                                        \
            int64_t m = TRN_MIN((int64_t)COLS, n - c);                                                                 \
            for (int64_t r = 0; r < rows; r += ROW_BLOCK) {                                                            \
                int64_t re = TRN_MIN(r + ROW_BLOCK, rows);                                                             \
                memcpy(part, x + r * stride + c, (size_t)m * sizeof(T));                                               \
                for (int64_t q = r + 1; q < re; q++) {                                                                 \
                    const T *row = x + q * stride + c;                                                                 \
                    TRN_IVDEP for (int64_t i = 0; i < m; i++)                                                          \
                    {                                                                                                  \
                        T a = part[i], b = row[i];                                                                     \
                        part[i] = (T)(step);                                                                           \
                    }                                                                                                  \
                }                                                                                                      \
                if (r == 0)                                                                                            \
                    memcpy(y + c, part, (size_t)m * sizeof(T));                                                        \
                else                                                                                                   \
                    for (int64_t i = 0; i < m; i++) {                                                                  \
                        T a = y[c + i], b = part[i];                                                                   \
                        y[c + i] = (T)(step);                                                                          \
                    }                                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void op##_identity_##tag(void *y) { *(T *)y = init; }

#define SUM(op, T, W, tag, ...) REDUCER(op, T, W, tag, 0, (W)a + (W)b, 16)
#define PROD(op, T, W, tag, ...) REDUCER(op, T, W, tag, 1, (W)a * (W)b, 16)
TRN_EACH_INT(SUM, sum)
TRN_EACH_INT(PROD, prod)
SUM(sum, float, float, f32)
SUM(sum, double, double, f64)
PROD(prod, float, float, f32)
PROD(prod, double, double, f64)
REDUCER(sum, float _Complex, , c64, 0, a + b, 4)
REDUCER(sum, double _Complex, , c128, 0, a + b, 4)
REDUCER(prod, float _Complex, , c64, 1, a *b, 4)
REDUCER(prod, double _Complex, , c128, 1, a *b, 4)
#define LOWEST(T) ((T)-1 < 0 ? (T)(UINT64_C(1) << (sizeof(T) * 8 - 1)) : (T)0)
#define HIGHEST(T) ((T) ~LOWEST(T))
#define MAXI(op, T, W, tag, ...) REDUCER(op, T, W, tag, LOWEST(T), a > b ? a : b, 16)
#define MINI(op, T, W, tag, ...) REDUCER(op, T, W, tag, HIGHEST(T), a < b ? a : b, 16)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits"
TRN_EACH_INT(MAXI, max)
TRN_EACH_INT(MINI, min)
#pragma GCC diagnostic pop
REDUCER(max, float, , f32, -INFINITY, a > b || a != a ? a : b, 16) /* NaN wins */
REDUCER(max, double, , f64, -(double)INFINITY, a > b || a != a ? a : b, 16)
REDUCER(min, float, , f32, INFINITY, a < b || a != a ? a : b, 16)
REDUCER(min, double, , f64, (double)INFINITY, a < b || a != a ? a : b, 16)
#define TRN_SIMD_bool
REDUCER(all, uint8_t, , bool, 1, a &b, 16)
REDUCER(any, uint8_t, , bool, 0, a | b, 16)

#define DIVIDE(op, T, W, tag, ...)                                                                                     \
    static void mean_##tag(void *y, int64_t n, int64_t count)                                                          \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            ((T *)y)[i] = (T)(((T *)y)[i] / (T)count);                                                                 \
    }
#define DIVIDE_COMPLEX(op, T, W, tag, ...)                                                                             \
    static void mean_##tag(void *y, int64_t n, int64_t count)                                                          \
    {                                                                                                                  \
        for (int64_t i = 0; i < n && count; i++) /* of nothing: 0 */                                                   \
            ((T *)y)[i] = (T)(((T *)y)[i] / (T)count);                                                                 \
    }
/* The count may not fit a narrow int: divide in 64 bits. */
#define DIVIDE_INT(op, T, W, tag, ...)                                                                                 \
    static void mean_##tag(void *y, int64_t n, int64_t count)                                                          \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            ((T *)y)[i] = count ? (T)(sizeof(T) == 8 && (T)-1 > 0 ? (T)((uint64_t)((T *)y)[i] / (uint64_t)count) : (T)((int64_t)((T *)y)[i] / count)) : 0; \
    }
TRN_EACH_FLOAT(DIVIDE, mean)
TRN_EACH_COMPLEX(DIVIDE_COMPLEX, mean)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits"
TRN_EACH_INT(DIVIDE_INT, mean)
#pragma GCC diagnostic pop

#define RED(op, tag, fin) {op##_run_##tag, op##_rows_##tag, op##_identity_##tag, fin}
#define RED_INT(op, F)                                                                                                 \
    [TRN_INT8] = RED(op, i8, F(i8)), [TRN_INT16] = RED(op, i16, F(i16)), [TRN_INT32] = RED(op, i32, F(i32)),           \
    [TRN_INT64] = RED(op, i64, F(i64)), [TRN_UINT8] = RED(op, u8, F(u8)), [TRN_UINT16] = RED(op, u16, F(u16)),         \
    [TRN_UINT32] = RED(op, u32, F(u32)), [TRN_UINT64] = RED(op, u64, F(u64))
#define RED_FLT(op, F) [TRN_FLOAT] = RED(op, f32, F(f32)), [TRN_DOUBLE] = RED(op, f64, F(f64))
#define RED_CPX(op, F) [TRN_COMPLEX64] = RED(op, c64, F(c64)), [TRN_COMPLEX128] = RED(op, c128, F(c128))
#define NOFIN(tag) NULL
#define MEANFIN(tag) mean_##tag
static const reducer r_sum[TRN_DTYPE_END] = {RED_INT(sum, NOFIN), RED_FLT(sum, NOFIN), RED_CPX(sum, NOFIN)};
static const reducer r_mean[TRN_DTYPE_END] = {RED_INT(sum, MEANFIN), RED_FLT(sum, MEANFIN), RED_CPX(sum, MEANFIN)};
static const reducer r_prod[TRN_DTYPE_END] = {RED_INT(prod, NOFIN), RED_FLT(prod, NOFIN), RED_CPX(prod, NOFIN)};
static const reducer r_max[TRN_DTYPE_END] = {RED_INT(max, NOFIN), RED_FLT(max, NOFIN)};
static const reducer r_min[TRN_DTYPE_END] = {RED_INT(min, NOFIN), RED_FLT(min, NOFIN)};
static const reducer r_all[TRN_DTYPE_END] = {[TRN_BOOL] = RED(all, bool, NULL)};
static const reducer r_any[TRN_DTYPE_END] = {[TRN_BOOL] = RED(any, bool, NULL)};

/* ---- the driver -------------------------------------------------------------------------------------------------- */

typedef struct plan {
    trn_shape out;
    int rank; /* merged */
    int64_t dim[TRN_MAX_RANK];
    bool red[TRN_MAX_RANK];
} plan;

static trn_err plan_axes(plan *p, const trn_tensor *x, const trn_tensor *axes, bool keep)
{
    bool red[TRN_MAX_RANK] = {false};
    for (int64_t i = 0; i < axes->count; i++) {
        int64_t a = trn_int_at(axes, i), r = x->shape.rank;
        TRN_CHECK_ARG(a >= -r && a < r, "Invalid reduction dimension (%lld for input with %lld dimension(s))", (long long)a, (long long)r);
        a += a < 0 ? r : 0;
        TRN_CHECK_ARG(!red[a], "Invalid reduction arguments: Axes contains duplicate dimension: %lld", (long long)a);
        red[a] = true;
    }
    *p = (plan){.out = {.rank = 0}};
    for (int i = 0; i < x->shape.rank; i++) {
        int64_t d = x->shape.dim[i];
        if (!red[i])
            p->out.dim[p->out.rank++] = d;
        else if (keep)
            p->out.dim[p->out.rank++] = 1;
        if (d == 1)
            continue;
        if (p->rank && p->red[p->rank - 1] == red[i]) {
            p->dim[p->rank - 1] = trn_times(p->dim[p->rank - 1], d);
        } else {
            p->dim[p->rank] = d;
            p->red[p->rank++] = red[i];
        }
    }
    return TRN_OK;
}

typedef struct reduce_job {
    const reducer *r;
    const char *x;
    char *y;
    size_t size;
    int64_t outer, n, inner;
    int64_t chunk; /* of a whole-tensor reduction */
} reduce_job;

static void reduce_runs(void *arg, int64_t lo, int64_t hi)
{
    const reduce_job *j = arg;
    for (int64_t i = lo; i < hi; i++)
        j->r->run(j->y + (size_t)i * j->size, j->x + (size_t)(i * j->n) * j->size, j->n);
}
static void reduce_planes(void *arg, int64_t lo, int64_t hi)
{
    const reduce_job *j = arg;
    for (int64_t i = lo; i < hi; i++)
        j->r->rows(j->y + (size_t)(i * j->inner) * j->size, j->x + (size_t)(i * j->n * j->inner) * j->size, j->n, j->inner, j->inner);
}
static void reduce_cols(void *arg, int64_t lo, int64_t hi)
{
    const reduce_job *j = arg;
    j->r->rows(j->y + (size_t)lo * j->size, j->x + (size_t)lo * j->size, j->n, hi - lo, j->inner);
}
static void reduce_chunks(void *arg, int64_t lo, int64_t hi)
{
    const reduce_job *j = arg;
    for (int64_t i = lo; i < hi; i++)
        j->r->run(j->y + (size_t)i * j->size, j->x + (size_t)(i * j->chunk) * j->size, TRN_MIN(j->chunk, j->n - i * j->chunk));
}

/* x as [outer, n, inner] into y [outer, inner]; n >= 1 */
static void reduce3(trn_kctx *k, const reducer *r, void *y, const void *x, size_t size, int64_t outer, int64_t n, int64_t inner)
{
    reduce_job j = {.r = r, .x = x, .y = y, .size = size, .outer = outer, .n = n, .inner = inner};
    enum { GRAIN = 65536 };
    if (inner == 1 && outer == 1 && n >= 4 * GRAIN) {
        char part[16 * 64]; /* at most 64 partial results of at most 16 bytes */
        j.chunk = (n / 64 + BLOCK) / BLOCK * BLOCK;
        int64_t chunks = (n + j.chunk - 1) / j.chunk;
        j.y = part;
        trn_k_for(k, chunks, 1, reduce_chunks, &j);
        r->run(y, part, chunks);
    } else if (inner == 1) {
        trn_k_for(k, outer, TRN_MAX(GRAIN / n, (int64_t)1), reduce_runs, &j);
    } else if (outer == 1) {
        trn_k_for(k, inner, TRN_MAX(GRAIN / n, (int64_t)COLS), reduce_cols, &j);
    } else {
        trn_k_for(k, outer, TRN_MAX(GRAIN / (n * inner), (int64_t)1), reduce_planes, &j);
    }
}

/* dst (float) = src (half) as new tensors, and back. */
static trn_err widened(trn_tensor **out, const trn_tensor *x)
{
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &x->shape));
    trn_widen((*out)->data, x->data, x->dtype, x->count);
    return TRN_OK;
}

/* y[out] = reduction of x over the plan; y has x's dtype (float when x was widened). */
static trn_err reduce_go(trn_kctx *k, const reducer *r, trn_tensor *y, const trn_tensor *x, const plan *p)
{
    size_t size = trn_dtype_size(x->dtype);
    int64_t n = 1; /* elements per result */
    for (int i = 0; i < p->rank; i++)
        n = trn_times(n, p->red[i] ? p->dim[i] : 1);
    if (y->count == 0)
        return TRN_OK;
    if (n == 0) {
        for (int64_t i = 0; i < y->count; i++)
            r->identity((char *)y->data + (size_t)i * size);
    } else {
        /* [keep] reduce [keep] reduce ... : at most three parts, or transpose */
        int first_red = p->rank > 0 && p->red[0] ? 0 : 1, last = p->rank;
        if (last - first_red <= 2) {
            int64_t outer = first_red == 1 && p->rank > 0 ? p->dim[0] : 1;
            int64_t inner = last - first_red == 2 ? p->dim[first_red + 1] : 1;
            reduce3(k, r, y->data, x->data, size, outer, n, inner);
        } else {
            int64_t stride[TRN_MAX_RANK], at = 1, ss[TRN_MAX_RANK], ds[TRN_MAX_RANK], dims[TRN_MAX_RANK];
            for (int i = p->rank - 1; i >= 0; i--) {
                stride[i] = at;
                at *= p->dim[i];
            }
            int m = 0;
            for (int pass = 0; pass < 2; pass++)
                for (int i = 0; i < p->rank; i++)
                    if (p->red[i] == (pass == 1)) {
                        dims[m] = p->dim[i];
                        ss[m++] = stride[i];
                    }
            at = 1;
            for (int i = m - 1; i >= 0; i--) {
                ds[i] = at;
                at *= dims[i];
            }
            trn_tensor *tmp;
            TRN_TRY(trn_tensor_new(&tmp, x->dtype, &x->shape));
            trn_err e = trn_block_copy(k, tmp, 0, ds, x, 0, ss, dims, m);
            if (!e)
                reduce3(k, r, y->data, tmp->data, size, y->count, n, 1);
            trn_tensor_unref(tmp);
            TRN_TRY(e);
        }
    }
    if (r->finish)
        r->finish(y->data, y->count, n);
    return TRN_OK;
}

static trn_err reduce(trn_kctx *k, const reducer *table)
{
    const trn_tensor *x = trn_in(k, 0);
    plan p;
    TRN_TRY(plan_axes(&p, x, trn_in(k, 1), trn_attr_bool(k->node, "keep_dims")));
    bool any = false;
    for (int i = 0; i < p.rank; i++)
        any = any || p.red[i];
    trn_tensor *y;
    if (!any) { /* only dims of 1, or none */
        TRN_TRY(trn_tensor_view(&y, x, 0, &p.out));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &p.out));
    if (!trn_is_half(x->dtype))
        return reduce_go(k, &table[x->dtype], y, x, &p);
    trn_tensor *wx, *wy = NULL;
    TRN_TRY(widened(&wx, x));
    trn_err e = trn_tensor_new(&wy, TRN_FLOAT, &p.out);
    if (!e)
        e = reduce_go(k, &table[TRN_FLOAT], wy, wx, &p);
    if (!e)
        trn_narrow(y->data, TRN_DATA(wy, float), y->dtype, y->count);
    trn_tensor_unref(wx);
    trn_tensor_unref(wy);
    return e;
}

/* Whole numbers wrap around, as in TensorFlow; what then has no root becomes what its conversion of NaN gives on x86. */
#define SQUARE(op, T, W, tag, ...)                                                                                     \
    static void square_##tag(void *p, int64_t n)                                                                       \
    {                                                                                                                  \
        for (T *x = p, *end = x + n; x < end; x++)                                                                     \
            *x = (T)((W)*x * (W)*x);                                                                                   \
    }
#define ROOT(op, T, W, tag, ...)                                                                                       \
    static void root_##tag(void *p, int64_t n)                                                                         \
    {                                                                                                                  \
        for (T *x = p, *end = x + n; x < end; x++) {                                                                   \
            double r = sqrt((double)*x);                                                                               \
            *x = isnan(r) ? (T)(sizeof *x == 8 ? INT64_MIN : INT32_MIN) : (T)r;                                        \
        }                                                                                                              \
    }
TRN_EACH_INT(SQUARE, square)
TRN_EACH_INT(ROOT, root)
typedef void (*each_fn)(void *, int64_t);
static const each_fn square_tab[TRN_DTYPE_END] = {TRN_TAB_INT(square)}, root_tab[TRN_DTYPE_END] = {TRN_TAB_INT(root)};

/* Squares of x (of its absolute value), half types widened. */
static trn_err squares(trn_tensor **out, const trn_tensor *x)
{
    trn_tensor *w;
    TRN_TRY(trn_is_half(x->dtype) ? widened(&w, x) : trn_tensor_copy(&w, x));
    if (square_tab[w->dtype])
        square_tab[w->dtype](w->data, w->count);
    for (int64_t i = 0; i < w->count && !square_tab[w->dtype]; i++) {
        float _Complex *c = w->data;
        double _Complex *z = w->data;
        switch (w->dtype) {
        case TRN_FLOAT: TRN_DATA_MUT(w, float)[i] *= TRN_DATA(w, float)[i]; break;
        case TRN_DOUBLE: TRN_DATA_MUT(w, double)[i] *= TRN_DATA(w, double)[i]; break;
        case TRN_COMPLEX64: c[i] = crealf(c[i]) * crealf(c[i]) + cimagf(c[i]) * cimagf(c[i]); break;
        default: z[i] = creal(z[i]) * creal(z[i]) + cimag(z[i]) * cimag(z[i]); break;
        }
    }
    *out = w;
    return TRN_OK;
}

static trn_err norm_go(trn_kctx *k, trn_tensor *sum, trn_tensor *sq, const plan *p, bool any)
{
    if (any)
        TRN_TRY(reduce_go(k, &r_sum[sq->dtype], sum, sq, p));
    else
        TRN_TRY(trn_tensor_copy_elems(sum, 0, sq, 0, sq->count));
    if (root_tab[sum->dtype])
        root_tab[sum->dtype](sum->data, sum->count);
    for (int64_t i = 0; i < sum->count && !root_tab[sum->dtype]; i++)
        switch (sum->dtype) {
        case TRN_FLOAT: TRN_DATA_MUT(sum, float)[i] = sqrtf(TRN_DATA(sum, float)[i]); break;
        case TRN_DOUBLE: TRN_DATA_MUT(sum, double)[i] = sqrt(TRN_DATA(sum, double)[i]); break;
        case TRN_COMPLEX64: TRN_DATA_MUT(sum, float _Complex)[i] = sqrtf(crealf(TRN_DATA(sum, float _Complex)[i])); break;
        default: TRN_DATA_MUT(sum, double _Complex)[i] = sqrt(creal(TRN_DATA(sum, double _Complex)[i])); break;
        }
    return TRN_OK;
}

static trn_err k_norm(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    plan p;
    TRN_TRY(plan_axes(&p, x, trn_in(k, 1), trn_attr_bool(k->node, "keep_dims")));
    bool any = false;
    for (int i = 0; i < p.rank; i++)
        any = any || p.red[i];
    trn_tensor *y, *sq, *wide = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &p.out));
    TRN_TRY(squares(&sq, x));
    trn_err err = trn_is_half(x->dtype) ? trn_tensor_new(&wide, TRN_FLOAT, &p.out) : TRN_OK;
    if (!err)
        err = norm_go(k, wide ? wide : y, sq, &p, any);
    if (!err && wide)
        trn_narrow(y->data, TRN_DATA(wide, float), y->dtype, y->count);
    trn_tensor_unref(sq);
    trn_tensor_unref(wide);
    return err;
}

static trn_err k_sum(trn_kctx *k) { return reduce(k, r_sum); }
static trn_err k_mean(trn_kctx *k) { return reduce(k, r_mean); }
static trn_err k_prod(trn_kctx *k) { return reduce(k, r_prod); }
static trn_err k_max(trn_kctx *k) { return reduce(k, r_max); }
static trn_err k_min(trn_kctx *k) { return reduce(k, r_min); }
static trn_err k_all(trn_kctx *k) { return reduce(k, r_all); }
static trn_err k_any(trn_kctx *k) { return reduce(k, r_any); }

/* sum(t²)/2 as a scalar, without a temporary. */
TRN_SIMD static double sum_sq_f32(const float *x, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = TRN_MIN((int64_t)BLOCK, n - i), q = 0;
        float acc[16] = {0};
        for (; q + 16 <= m; q += 16)
            for (int j = 0; j < 16; j++)
                acc[j] += x[i + q + j] * x[i + q + j];
        for (; q < m; q++)
            acc[0] += x[i + q] * x[i + q];
        for (int j = 0; j < 16; j++)
            total += (double)acc[j];
    }
    return total;
}
static trn_err k_l2loss(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape sc = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &sc));
    double s = 0;
    if (x->dtype == TRN_DOUBLE) {
        double acc[8] = {0};
        for (int64_t i = 0; i < x->count; i++)
            acc[i & 7] += TRN_DATA(x, double)[i] * TRN_DATA(x, double)[i];
        for (int j = 0; j < 8; j++)
            s += acc[j];
        *TRN_DATA_MUT(y, double) = s / 2;
    } else if (x->dtype == TRN_FLOAT) {
        *TRN_DATA_MUT(y, float) = (float)(sum_sq_f32(TRN_DATA(x, float), x->count) / 2);
    } else {
        float b[BLOCK];
        for (int64_t i = 0; i < x->count; i += BLOCK) {
            int64_t n = TRN_MIN((int64_t)BLOCK, x->count - i);
            trn_widen(b, TRN_DATA(x, uint16_t) + i, x->dtype, n);
            s += sum_sq_f32(b, n);
        }
        float f = (float)(s / 2);
        trn_narrow(y->data, &f, y->dtype, 1);
    }
    return TRN_OK;
}

/* ---- where the extreme is ------------------------------------------------------------------------------------------ */

/* [outer, n, inner] -> [outer, inner]. The first of equals; NaN is never the best. */
#define ARG(op, T, W, tag, cmp)                                                                                        \
    static void op##_##tag(trn_tensor *y, const void *xx, int64_t outer, int64_t n, int64_t inner)                     \
    {                                                                                                                  \
        const T *x = xx;                                                                                               \
        for (int64_t o = 0; o < outer; o++)                                                                            \
            for (int64_t i = 0; i < inner; i++) {                                                                      \
                const T *p = x + o * n * inner + i;                                                                    \
                int64_t at = 0;                                                                                        \
                T best = p[0];                                                                                         \
                for (int64_t q = 1; q < n; q++) {                                                                      \
                    T v = p[q * inner];                                                                                \
                    if (v cmp best || (best != best && v == v)) {                                                      \
                        best = v;                                                                                      \
                        at = q;                                                                                        \
                    }                                                                                                  \
                }                                                                                                      \
                trn_int_put(y, o * inner + i, at);                                                                     \
            }                                                                                                          \
    }
TRN_EACH_INT(ARG, argmax, >)
TRN_EACH_FLOAT(ARG, argmax, >)
TRN_EACH_INT(ARG, argmin, <)
TRN_EACH_FLOAT(ARG, argmin, <)
typedef void (*arg_fn)(trn_tensor *, const void *, int64_t, int64_t, int64_t);
static const arg_fn argmax_tab[TRN_DTYPE_END] = {TRN_TAB_INT(argmax), TRN_TAB_FLOAT(argmax), [TRN_BOOL] = argmax_u8};
static const arg_fn argmin_tab[TRN_DTYPE_END] = {TRN_TAB_INT(argmin), TRN_TAB_FLOAT(argmin), [TRN_BOOL] = argmin_u8};

static trn_err arg_reduce(trn_kctx *k, const arg_fn *tab)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_scalar(d), "dim must be a scalar, but received tensor of shape with %d dimensions", d->shape.rank);
    int64_t a = trn_int_at(d, 0), r = x->shape.rank;
    TRN_CHECK_ARG(a >= -r && a < r, "Expected dimension in the range [%lld, %lld), but got %lld", -(long long)r, (long long)r, (long long)a);
    a += a < 0 ? r : 0;
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.dim[a] > 0, "Reduction axis %lld is empty in shape %s", (long long)a, trn_shape_text(t, &x->shape));
    int64_t outer = 1, inner = 1;
    trn_shape s = {.rank = 0};
    for (int i = 0; i < r; i++) {
        if (i == a)
            continue;
        s.dim[s.rank++] = x->shape.dim[i];
        int64_t *side = i < a ? &outer : &inner;
        *side = trn_times(*side, x->shape.dim[i]);
    }
    trn_tensor *y, *w = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, trn_attr_type(k->node, "output_type"), &s));
    if (trn_is_half(x->dtype))
        TRN_TRY(widened(&w, x));
    tab[w ? TRN_FLOAT : x->dtype](y, w ? w->data : x->data, outer, x->shape.dim[a], inner);
    trn_tensor_unref(w);
    return TRN_OK;
}
static trn_err k_argmax(trn_kctx *k) { return arg_reduce(k, argmax_tab); }
static trn_err k_argmin(trn_kctx *k) { return arg_reduce(k, argmin_tab); }

/* ---- running sums --------------------------------------------------------------------------------------------------- */

#define CUM(op, T, W, tag, init, step)                                                                                 \
    static void op##_##tag(void *yy, const void *xx, int64_t outer, int64_t n, int64_t inner, bool excl, bool rev)     \
    {                                                                                                                  \
        T *y = yy;                                                                                                     \
        const T *x = xx;                                                                                               \
        for (int64_t o = 0; o < outer; o++)                                                                            \
            for (int64_t i = 0; i < inner; i++) {                                                                      \
                T a = init;                                                                                            \
                for (int64_t q = 0; q < n; q++) {                                                                      \
                    int64_t at = (o * n + (rev ? n - 1 - q : q)) * inner + i;                                          \
                    T b = x[at], was = a;                                                                              \
                    a = (T)(step);                                                                                     \
                    y[at] = excl ? was : a;                                                                            \
                }                                                                                                      \
            }                                                                                                          \
    }
#define CUMSUM(op, T, W, tag, ...) CUM(op, T, W, tag, 0, (W)a + (W)b)
#define CUMPROD(op, T, W, tag, ...) CUM(op, T, W, tag, 1, (W)a * (W)b)
TRN_EACH_INT(CUMSUM, cumsum)
TRN_EACH_FLOAT(CUMSUM, cumsum)
TRN_EACH_COMPLEX(CUMSUM, cumsum)
TRN_EACH_INT(CUMPROD, cumprod)
TRN_EACH_FLOAT(CUMPROD, cumprod)
TRN_EACH_COMPLEX(CUMPROD, cumprod)
/* log(exp(a) + exp(b)) */
static double log_add(double a, double b)
{
    double hi = a > b ? a : b, lo = a > b ? b : a;
    return hi == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}
static float log_addf(float a, float b)
{
    float hi = a > b ? a : b, lo = a > b ? b : a;
    return hi == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}
CUM(cumlse, float, float, f32, -INFINITY, log_addf(a, b))
CUM(cumlse, double, double, f64, -INFINITY, log_add(a, b))
typedef void (*cum_fn)(void *, const void *, int64_t, int64_t, int64_t, bool, bool);
static const cum_fn cumsum_tab[TRN_DTYPE_END] = {TRN_TAB_INT(cumsum), TRN_TAB_FLOAT(cumsum), TRN_TAB_COMPLEX(cumsum)};
static const cum_fn cumprod_tab[TRN_DTYPE_END] = {TRN_TAB_INT(cumprod), TRN_TAB_FLOAT(cumprod), TRN_TAB_COMPLEX(cumprod)};

static const cum_fn cumlse_tab[TRN_DTYPE_END] = {TRN_TAB_FLOAT(cumlse)};

static trn_err cumulate(trn_kctx *k, const cum_fn *tab)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    bool excl = trn_attr_bool(k->node, "exclusive"), rev = trn_attr_bool(k->node, "reverse");
    TRN_CHECK_ARG(trn_is_scalar(d), "ScanOp: axis must be a scalar, not of rank %d", d->shape.rank);
    int64_t a = trn_int_at(d, 0), r = x->shape.rank;
    TRN_CHECK_ARG(a >= -r && a < r, "ScanOp: Expected scan axis in the range [%lld, %lld), but got %lld", -(long long)r, (long long)r, (long long)a);
    a += a < 0 ? r : 0;
    trn_tensor *y, *w = NULL;
    TRN_TRY(trn_out_like(&y, k, 0, 0)); /* each element is read before it is written */
    if (!y->count) /* the other dimensions may be of any size */
        return TRN_OK;
    int64_t outer = 1, inner = 1, n = x->shape.dim[a];
    for (int i = 0; i < r; i++)
        if (i != a)
            *(i < a ? &outer : &inner) *= x->shape.dim[i];
    if (!trn_is_half(x->dtype)) {
        tab[x->dtype](y->data, x->data, outer, n, inner, excl, rev);
        return TRN_OK;
    }
    TRN_TRY(widened(&w, x));
    tab[TRN_FLOAT](w->data, w->data, outer, n, inner, excl, rev);
    trn_narrow(y->data, TRN_DATA(w, float), y->dtype, y->count);
    trn_tensor_unref(w);
    return TRN_OK;
}
static trn_err k_cumsum(trn_kctx *k) { return cumulate(k, cumsum_tab); }
static trn_err k_cumprod(trn_kctx *k) { return cumulate(k, cumprod_tab); }
static trn_err k_cumlse(trn_kctx *k) { return cumulate(k, cumlse_tab); }

#define R(set) "input:T, reduction_indices:Tidx -> output:T; keep_dims:bool=false, T:" set ", Tidx:i32|i64=i32"
#define RB "input:bool, reduction_indices:Tidx -> output:bool; keep_dims:bool=false, Tidx:i32|i64=i32"
#define CUM_SIG "x:T, axis:Tidx -> out:T; exclusive:bool=false, reverse:bool=false, T:num, Tidx:i32|i64=i32"

const trn_op trn_ops_reduce[] = {
    {"Sum", R("num"), trn_sh_reduce, k_sum, 0},
    {"Mean", R("num"), trn_sh_reduce, k_mean, 0},
    {"Prod", R("num"), trn_sh_reduce, k_prod, 0},
    {"Max", R("real"), trn_sh_reduce, k_max, 0},
    {"Min", R("real"), trn_sh_reduce, k_min, 0},
    {"EuclideanNorm", R("num"), trn_sh_reduce, k_norm, 0},
    {"All", RB, trn_sh_reduce, k_all, 0},
    {"Any", RB, trn_sh_reduce, k_any, 0},
    {"L2Loss", "t:T -> output:T; T:float", trn_sh_scalar, k_l2loss, 0},
    {"ArgMax", "input:T, dimension:Tidx -> output:output_type; T:real|bool, Tidx:i16|i32|i64=i32, output_type:i16|u16|i32|i64=i64",
     trn_sh_arg_reduce, k_argmax, 0},
    {"ArgMin", "input:T, dimension:Tidx -> output:output_type; T:real|bool, Tidx:i32|i64=i32, output_type:i32|i64=i64", trn_sh_arg_reduce,
     k_argmin, 0},
    {"Cumsum", CUM_SIG, trn_sh_same, k_cumsum, 0},
    {"Cumprod", CUM_SIG, trn_sh_same, k_cumprod, 0},
    {"CumulativeLogsumexp", "x:T, axis:Tidx -> out:T; exclusive:bool=false, reverse:bool=false, T:float, Tidx:i32|i64=i32", trn_sh_same,
     k_cumlse, 0},
    {0},
};
