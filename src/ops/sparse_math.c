/* Arithmetic with sparse tensors. */
#include "ops/sparse.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

static void *at(const trn_tensor *t, int64_t i) { return (char *)t->data + (size_t)i * trn_dtype_size(t->dtype); }

/* ---- union of two sparse tensors ---------------------------------------------------------------------------------------- */

/* Where entry e of a result comes from: an entry of a, of b, or of both (-1: none). */
typedef struct pair {
    int64_t a, b;
} pair;

static int64_t merge(pair *out, const trn_sparse *a, const trn_sparse *b)
{
    int64_t i = 0, j = 0, n = 0;
    while (i < a->n || j < b->n) {
        int c = i == a->n ? 1 : j == b->n ? -1 : trn_index_cmp(trn_sparse_row(a, i), trn_sparse_row(b, j), a->rank);
        out[n++] = (pair){c <= 0 ? i : -1, c >= 0 ? j : -1};
        i += c <= 0;
        j += c >= 0;
    }
    return n;
}

static trn_err two_in(trn_sparse *a, trn_sparse *b, pair **p, const trn_kctx *k)
{
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(trn_sparse_in(a, k, 0));
    TRN_TRY(trn_sparse_in(b, k, 3));
    TRN_CHECK_ARG(a->rank == b->rank, "Operands do not have the same ranks; got shapes: %s and %s", trn_shape_text(ta, &a->shape),
                  trn_shape_text(tb, &b->shape));
    TRN_CHECK_ARG(trn_shape_eq(&a->shape, &b->shape), "Operands' shapes do not match: got %s and %s",
                  trn_shape_text(ta, &a->shape), trn_shape_text(tb, &b->shape));
    *p = malloc((size_t)(a->n + b->n + 1) * sizeof **p);
    return *p ? TRN_OK : trn_err_oom();
}

static void union_row(int64_t *to, const pair *p, const trn_sparse *a, const trn_sparse *b)
{
    memcpy(to, p->a >= 0 ? trn_sparse_row(a, p->a) : trn_sparse_row(b, p->b), (size_t)a->rank * sizeof *to);
}

static double magnitude(trn_dtype t, const void *p)
{
    float f;
    switch (t) {
    case TRN_FLOAT:
        return fabsf(*(const float *)p);
    case TRN_DOUBLE:
        return fabs(*(const double *)p);
    case TRN_COMPLEX64:
        return cabsf(*(const float _Complex *)p);
    case TRN_COMPLEX128:
        return cabs(*(const double _Complex *)p);
    case TRN_INT8:
        return fabs((double)*(const int8_t *)p);
    case TRN_INT16:
        return fabs((double)*(const int16_t *)p);
    case TRN_INT32:
        return fabs((double)*(const int32_t *)p);
    case TRN_INT64:
        return fabs((double)*(const int64_t *)p);
    case TRN_UINT8:
        return *(const uint8_t *)p;
    case TRN_UINT16:
        return *(const uint16_t *)p;
    case TRN_UINT32:
        return *(const uint32_t *)p;
    case TRN_UINT64:
        return (double)*(const uint64_t *)p;
    default:
        trn_widen(&f, p, t, 1);
        return fabsf(f);
    }
}

static trn_err add_parts(trn_kctx *k, const trn_sparse *a, const trn_sparse *b, pair *p, double thresh)
{
    trn_dtype t = a->values->dtype;
    trn_shape all = trn_shape_vector(merge(p, a, b));
    trn_tensor *sum, *oi, *ov;
    TRN_TRY(trn_tensor_new(&sum, t, &all));
    trn_zero_elems(sum, 0, sum->count);
    int64_t n = 0;
    for (int64_t i = 0; i < sum->count; i++) {
        if (p[i].a >= 0)
            trn_accum(TRN_ACC_ADD, t, at(sum, n), at(a->values, p[i].a), 1);
        if (p[i].b >= 0)
            trn_accum(TRN_ACC_ADD, t, at(sum, n), at(b->values, p[i].b), 1);
        /* TensorFlow drops small sums only, not what stands alone */
        if (p[i].a < 0 || p[i].b < 0 || thresh <= magnitude(t, at(sum, n)))
            p[n++] = p[i];
        else
            trn_zero_elems(sum, n, 1);
    }
    trn_err err = trn_sparse_out(&oi, &ov, k, 0, 1, n, a->rank, t);
    if (!err) {
        for (int64_t i = 0; i < n; i++)
            union_row(TRN_DATA_MUT(oi, int64_t) + i * a->rank, &p[i], a, b);
        err = trn_tensor_copy_elems(ov, 0, sum, 0, n);
    }
    trn_tensor_unref(sum);
    return err ? err : trn_sparse_out_shape(k, 2, &a->shape);
}

static trn_err add(trn_kctx *k)
{
    trn_sparse a, b;
    pair *p;
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 6)), "The magnitude threshold must be a scalar: got rank %d",
                  trn_in(k, 6)->shape.rank);
    const void *tv = trn_in(k, 6)->data;
    trn_dtype tt = trn_in(k, 6)->dtype;
    double mag = magnitude(tt, tv), thresh = mag;
    float f = 0;
    if (trn_is_half(tt))
        trn_widen(&f, tv, tt, 1);
    if ((tt == TRN_FLOAT && *(const float *)tv < 0) || (tt == TRN_DOUBLE && *(const double *)tv < 0) || f < 0 ||
        ((tt == TRN_INT8 || tt == TRN_INT16 || tt == TRN_INT32 || tt == TRN_INT64) && trn_int_at(trn_in(k, 6), 0) < 0))
        thresh = -mag;
    TRN_TRY(two_in(&a, &b, &p, k));
    trn_err err = add_parts(k, &a, &b, p, thresh);
    free(p);
    return err;
}

static trn_err add_grad(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *sum = trn_in(k, 3);
    TRN_CHECK_ARG(trn_is_vector(g), "Input backprop_val_grad should be a vector but received rank %d", g->shape.rank);
    for (int i = 1; i < 4; i++)
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 2 && trn_in(k, i)->shape.dim[1] == trn_in(k, 1)->shape.dim[1],
                      "indices of both terms and of the sum should be matrices of as many columns");
    TRN_CHECK_ARG(
        g->count == sum->shape.dim[0],
        "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): got %lld and %lld",
        (long long)g->count, (long long)sum->shape.dim[0]);
    int rank = (int)sum->shape.dim[1];
    for (int o = 0; o < 2; o++) {
        const trn_tensor *ix = trn_in(k, 1 + o);
        trn_shape s = trn_shape_vector(ix->shape.dim[0]);
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, o, g->dtype, &s));
        trn_zero_elems(y, 0, y->count);
        int64_t j = 0;
        for (int64_t i = 0; i < y->count && j < g->count;) {
            int c = trn_index_cmp(TRN_DATA(ix, int64_t) + i * rank, TRN_DATA(sum, int64_t) + j * rank, rank);
            if (c == 0)
                TRN_TRY(trn_tensor_copy_elems(y, i, g, j, 1));
            i += c <= 0;
            j += c > 0;
        }
    }
    return TRN_OK;
}

static trn_err pick(trn_kctx *k, trn_accum_op op)
{
    trn_sparse a, b;
    pair *p;
    TRN_TRY(two_in(&a, &b, &p, k));
    int64_t n = merge(p, &a, &b);
    trn_dtype t = a.values->dtype;
    trn_tensor *oi, *ov;
    trn_err err = trn_sparse_out(&oi, &ov, k, 0, 1, n, a.rank, t);
    char zero[16] = {0};
    for (int64_t i = 0; i < n && !err; i++) {
        union_row(TRN_DATA_MUT(oi, int64_t) + i * a.rank, &p[i], &a, &b);
        memcpy(at(ov, i), p[i].a >= 0 ? at(a.values, p[i].a) : zero, trn_dtype_size(t));
        trn_accum(op, t, at(ov, i), p[i].b >= 0 ? at(b.values, p[i].b) : zero, 1);
    }
    free(p);
    return err;
}

static trn_err maximum(trn_kctx *k) { return pick(k, TRN_ACC_MAX); }
static trn_err minimum(trn_kctx *k) { return pick(k, TRN_ACC_MIN); }

/* ---- sparse with dense ------------------------------------------------------------------------------------------------------ */

static trn_err dense_add(trn_kctx *k)
{
    const trn_tensor *ix = trn_in(k, 0), *v = trn_in(k, 1), *b = trn_in(k, 3);
    trn_shape s;
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(ix->shape.rank == 2, "Input a_indices should be a matrix but received rank %d", ix->shape.rank);
    TRN_TRY(trn_sparse_shape(&s, trn_in(k, 2), "a_shape"));
    TRN_CHECK_ARG(trn_is_vector(v), "a_values should be a vector, not of shape %s", trn_shape_text(ta, &v->shape));
    TRN_CHECK_ARG(v->count == ix->shape.dim[0], "a_indices and a_values: Dimensions %lld and %lld are not compatible",
                  (long long)ix->shape.dim[0], (long long)v->count);
    TRN_CHECK_ARG(ix->shape.dim[1] == s.rank, "a_indices and a_shape: Dimensions %lld and %d are not compatible",
                  (long long)ix->shape.dim[1], s.rank);
    TRN_CHECK_ARG(trn_shape_eq(&s, &b->shape), "Shapes of the two operands do not match: %s and %s",
                  trn_shape_text(ta, &s), trn_shape_text(tb, &b->shape));
    for (int64_t i = 0; i < v->count; i++) /* before anything is written: y may be b */
        for (int d = 0; d < s.rank; d++) {
            int64_t x = trn_int_at(ix, i * s.rank + d);
            TRN_CHECK_ARG(x >= 0 && x < s.dim[d],
                          "Sparse tensor has some invalid index on dimension %d: [%lld] while dense tensor shape: %s",
                          d, (long long)x, trn_shape_text(tb, &s));
        }
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 3));
    if (y->data != b->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, b, 0, b->count));
    for (int64_t i = 0; i < v->count; i++) {
        int64_t to = 0;
        for (int d = 0; d < s.rank; d++)
            to = to * s.dim[d] + trn_int_at(ix, i * s.rank + d);
        trn_accum(TRN_ACC_ADD, v->dtype, at(y, to), at(v, i), 1);
    }
    return TRN_OK;
}

/* y[i] /= x[i]; false when an integer is divided by zero. */
static bool divide(trn_dtype t, void *y, const void *x)
{
    float a, b;
    switch (t) {
#define INT(D, T)                                                                                                      \
    case D:                                                                                                            \
        if (!*(const T *)x)                                                                                            \
            return false;                                                                                              \
        if (*(const T *)x == (T)-1 && (T)-1 < 0)                                                                       \
            *(T *)y = (T)(0u - (uint64_t) * (T *)y);                                                                   \
        else                                                                                                           \
            *(T *)y = (T)(*(T *)y / *(const T *)x);                                                                    \
        return true;
        INT(TRN_INT8, int8_t)
        INT(TRN_INT16, int16_t)
        INT(TRN_INT32, int32_t)
        INT(TRN_INT64, int64_t)
#undef INT
#define UINT(D, T)                                                                                                     \
    case D:                                                                                                            \
        if (!*(const T *)x)                                                                                            \
            return false;                                                                                              \
        *(T *)y = (T)(*(T *)y / *(const T *)x);                                                                        \
        return true;
        UINT(TRN_UINT8, uint8_t)
        UINT(TRN_UINT16, uint16_t)
        UINT(TRN_UINT32, uint32_t)
        UINT(TRN_UINT64, uint64_t)
#undef UINT
    case TRN_FLOAT:
        *(float *)y /= *(const float *)x;
        return true;
    case TRN_DOUBLE:
        *(double *)y /= *(const double *)x;
        return true;
    case TRN_COMPLEX64:
        *(float _Complex *)y /= *(const float _Complex *)x;
        return true;
    case TRN_COMPLEX128:
        *(double _Complex *)y /= *(const double _Complex *)x;
        return true;
    default:
        trn_widen(&a, y, t, 1);
        trn_widen(&b, x, t, 1);
        a /= b;
        trn_narrow(y, &a, t, 1);
        return true;
    }
}

/* Values with the elements of a dense tensor that is broadcast to the sparse one's shape. op -1: division. */
static trn_err cwise(trn_kctx *k, int op)
{
    trn_sparse s;
    const trn_tensor *dense = trn_in(k, 3);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(trn_sparse_in(&s, k, 0));
    int shift = s.rank - dense->shape.rank;
    bool fits = shift >= 0;
    int64_t stride[TRN_MAX_RANK], step = 1;
    for (int d = dense->shape.rank - 1; d >= 0 && fits; d--) {
        fits = dense->shape.dim[d] == 1 || dense->shape.dim[d] == s.shape.dim[d + shift];
        stride[d] = dense->shape.dim[d] == 1 ? 0 : step;
        step = trn_times(step, dense->shape.dim[d]);
    }
    TRN_CHECK_ARG(fits, "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: %s vs. %s",
                  trn_shape_text(ta, &s.shape), trn_shape_text(tb, &dense->shape));
    TRN_TRY(trn_sparse_in_bounds(&s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, s.values->dtype, &s.values->shape));
    TRN_TRY(trn_tensor_copy_elems(y, 0, s.values, 0, s.n));
    for (int64_t i = 0; i < s.n; i++) {
        int64_t from = 0;
        for (int d = 0; d < dense->shape.rank; d++)
            from += stride[d] * trn_sparse_row(&s, i)[d + shift];
        if (op >= 0)
            trn_accum((trn_accum_op)op, y->dtype, at(y, i), at(dense, from), 1);
        else
            TRN_CHECK_ARG(divide(y->dtype, at(y, i), at(dense, from)), "Integer division by zero");
    }
    return TRN_OK;
}

static trn_err cwise_add(trn_kctx *k) { return cwise(k, TRN_ACC_ADD); }
static trn_err cwise_mul(trn_kctx *k) { return cwise(k, TRN_ACC_MUL); }
static trn_err cwise_div(trn_kctx *k) { return cwise(k, -1); }

/* ---- matrix product --------------------------------------------------------------------------------------------------------- */

/* y[0 … n) += v · b[0], b[step], … */
#define AXPY(T, name)                                                                                                  \
    static void axpy_##name(void *yp, const void *vp, const void *bp, int64_t n, int64_t step, bool adj_a, bool adj_b) \
    {                                                                                                                  \
        T *y = yp, v = *(const T *)vp;                                                                                 \
        const T *b = bp;                                                                                               \
        (void)adj_a;                                                                                                   \
        (void)adj_b;                                                                                                   \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] += v * b[i * step];                                                                                   \
    }
AXPY(float, f32)
AXPY(double, f64)
static void axpy_i32(void *yp, const void *vp, const void *bp, int64_t n, int64_t step, bool adj_a, bool adj_b)
{
    (void)adj_a;
    (void)adj_b;
    uint32_t *y = yp, v = *(const uint32_t *)vp;
    const uint32_t *b = bp;
    for (int64_t i = 0; i < n; i++)
        y[i] += v * b[i * step];
}
#define CAXPY(T, name, conj)                                                                                           \
    static void axpy_##name(void *yp, const void *vp, const void *bp, int64_t n, int64_t step, bool adj_a, bool adj_b) \
    {                                                                                                                  \
        T *y = yp, v = *(const T *)vp;                                                                                 \
        const T *b = bp;                                                                                               \
        v = adj_a ? conj(v) : v;                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] += v * (adj_b ? conj(b[i * step]) : b[i * step]);                                                     \
    }
CAXPY(float _Complex, c64, conjf)
CAXPY(double _Complex, c128, conj)

typedef void (*axpy_fn)(void *, const void *, const void *, int64_t, int64_t, bool, bool);

static trn_err widen_all(trn_tensor **out, const trn_tensor *t)
{
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &t->shape));
    trn_widen((*out)->data, t->data, t->dtype, t->count);
    return TRN_OK;
}

static trn_err product(trn_tensor *y, const trn_tensor *ix, const trn_tensor *v, const trn_tensor *b, bool adj_a,
                       bool adj_b, int64_t rows, int64_t inner)
{
    static const axpy_fn fns[TRN_DTYPE_END] = {[TRN_FLOAT] = axpy_f32,
                                               [TRN_DOUBLE] = axpy_f64,
                                               [TRN_INT32] = axpy_i32,
                                               [TRN_COMPLEX64] = axpy_c64,
                                               [TRN_COMPLEX128] = axpy_c128};
    axpy_fn fn = fns[v->dtype];
    int64_t cols = y->shape.dim[1], bcols = b->shape.dim[1];
    for (int64_t e = 0; e < v->count; e++) {
        int64_t m = trn_int_at(ix, 2 * e + adj_a), j = trn_int_at(ix, 2 * e + !adj_a);
        TRN_CHECK_ARG(j >= 0 && j < inner, "k (%lld) from index[%lld,%d] out of bounds (>=%lld)", (long long)j,
                      (long long)e, !adj_a, (long long)inner);
        TRN_CHECK_ARG(m >= 0 && m < rows, "m (%lld) from index[%lld,%d] out of bounds (>=%lld)", (long long)m,
                      (long long)e, adj_a, (long long)rows);
        fn(at(y, m * cols), at(v, e), adj_b ? at(b, j) : at(b, j * bcols), cols, adj_b ? bcols : 1, adj_a, adj_b);
    }
    return TRN_OK;
}

/* Half and bfloat16 are computed in float. */
static trn_err product_half(trn_tensor *y, const trn_tensor *ix, const trn_tensor *v, const trn_tensor *b, bool adj_a,
                            bool adj_b, int64_t rows, int64_t inner)
{
    trn_tensor *wv = NULL, *wb = NULL, *wy = NULL;
    trn_err err = widen_all(&wv, v);
    if (!err)
        err = widen_all(&wb, b);
    if (!err)
        err = trn_tensor_new(&wy, TRN_FLOAT, &y->shape);
    if (!err) {
        trn_zero_elems(wy, 0, wy->count);
        err = product(wy, ix, wv, wb, adj_a, adj_b, rows, inner);
        trn_narrow(y->data, wy->data, y->dtype, y->count);
    }
    trn_tensor_unref(wv);
    trn_tensor_unref(wb);
    trn_tensor_unref(wy);
    return err;
}

static trn_err matmul(trn_kctx *k)
{
    const trn_tensor *ix = trn_in(k, 0), *v = trn_in(k, 1), *b = trn_in(k, 3);
    bool adj_a = trn_attr_bool(k->node, "adjoint_a"), adj_b = trn_attr_bool(k->node, "adjoint_b");
    trn_shape a;
    TRN_CHECK_ARG(b->shape.rank == 2, "Tensor 'b' is not a matrix");
    TRN_CHECK_ARG(trn_is_vector(trn_in(k, 2)) && trn_in(k, 2)->count == 2, "Tensor 'a_shape' must have 2 elements");
    TRN_TRY(trn_sparse_shape(&a, trn_in(k, 2), "a_shape"));
    TRN_CHECK_ARG(trn_is_vector(v), "Tensor 'a_values' is not a vector");
    TRN_CHECK_ARG(ix->shape.rank == 2, "Tensor 'a_indices' is not a matrix");
    TRN_CHECK_ARG(ix->shape.dim[0] == v->count,
                  "Number of rows of a_indices does not match number of entries in a_values");
    TRN_CHECK_ARG(ix->shape.dim[1] == 2, "Number of columns of a_indices does not match number of entries in a_shape");
    int64_t rows = a.dim[adj_a], inner = a.dim[!adj_a], cols = b->shape.dim[!adj_b];
    TRN_CHECK_ARG(inner == b->shape.dim[adj_b],
                  "Cannot multiply A and B because inner dimension does not match: %lld vs. %lld", (long long)inner,
                  (long long)b->shape.dim[adj_b]);
    trn_shape s = trn_shape_of(2, rows, cols);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, v->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    if (!y->count && !v->count)
        return TRN_OK;
    return (trn_is_half(v->dtype) ? product_half : product)(y, ix, v, b, adj_a, adj_b, rows, inner);
}

/* ---- reductions ------------------------------------------------------------------------------------------------------------- */

typedef struct reduction {
    int group[TRN_MAX_RANK], n_group; /* dims that stay */
    trn_shape out;
} reduction;

static trn_err plan(reduction *r, const trn_sparse *s, const trn_tensor *axes, bool keep)
{
    bool drop[TRN_MAX_RANK] = {false};
    TRN_CHECK_ARG(axes->shape.rank <= 1, "Expected reduction_axes to be a scalar or a vector; got rank %d",
                  axes->shape.rank);
    for (int64_t i = 0; i < axes->count; i++) {
        int d = TRN_DATA(axes, int32_t)[i];
        TRN_CHECK_ARG(d >= -s->rank && d < s->rank, "Invalid reduction dimension %d, for input with %d dimensions.", d,
                      s->rank);
        drop[d < 0 ? d + s->rank : d] = true;
    }
    *r = (reduction){0};
    for (int d = 0; d < s->rank; d++) {
        if (!drop[d])
            r->group[r->n_group++] = d;
        if (!drop[d] || keep)
            r->out.dim[r->out.rank++] = drop[d] ? 1 : s->shape.dim[d];
    }
    return TRN_OK;
}

static bool same_group(const reduction *r, const int64_t *a, const int64_t *b)
{
    for (int i = 0; i < r->n_group; i++)
        if (a[r->group[i]] != b[r->group[i]])
            return false;
    return true;
}

/* Calls for each group of entries: sum or maximum of its values in acc. */
static int64_t next_group(void *acc, const trn_sparse *s, const reduction *r, const int64_t *p, int64_t i,
                          trn_accum_op op)
{
    trn_dtype t = s->values->dtype;
    const int64_t *first = trn_sparse_row(s, p[i]);
    memcpy(acc, at(s->values, p[i]), trn_dtype_size(t));
    for (i++; i < s->n && same_group(r, first, trn_sparse_row(s, p[i])); i++)
        trn_accum(op, t, acc, at(s->values, p[i]), 1);
    return i;
}

static trn_err reduce_dense(trn_kctx *k, const trn_sparse *s, const reduction *r, const int64_t *p, trn_accum_op op)
{
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, s->values->dtype, &r->out));
    trn_zero_elems(y, 0, y->count);
    char acc[16];
    for (int64_t i = 0; i < s->n;) {
        const int64_t *row = trn_sparse_row(s, p[i]);
        int64_t to = 0;
        for (int d = 0; d < r->n_group; d++)
            to = (int64_t)((uint64_t)to * (uint64_t)s->shape.dim[r->group[d]] + (uint64_t)row[r->group[d]]);
        i = next_group(acc, s, r, p, i, op);
        if (to < 0 || to >= y->count)
            return trn_errorf(TRN_INTERNAL, "Obtained a write index of %lld which is outside of bounds of [0, %lld)",
                              (long long)to, (long long)y->count);
        memcpy(at(y, to), acc, trn_dtype_size(y->dtype));
    }
    return TRN_OK;
}

static trn_err reduce_sparse(trn_kctx *k, const trn_sparse *s, const reduction *r, const int64_t *p, trn_accum_op op)
{
    char acc[16];
    int64_t n = 0, e = 0;
    for (int64_t i = 0; i < s->n; n++)
        i = next_group(acc, s, r, p, i, op);
    trn_tensor *oi, *ov;
    TRN_TRY(trn_sparse_out(&oi, &ov, k, 0, 1, n, r->out.rank, s->values->dtype));
    trn_zero_elems(oi, 0, oi->count);
    for (int64_t i = 0; i < s->n; e++) {
        const int64_t *row = trn_sparse_row(s, p[i]);
        for (int d = 0; d < r->n_group; d++)
            TRN_DATA_MUT(oi, int64_t)[e * r->out.rank + (r->out.rank == s->rank ? r->group[d] : d)] = row[r->group[d]];
        i = next_group(at(ov, e), s, r, p, i, op);
    }
    return trn_sparse_out_shape(k, 2, &r->out);
}

static trn_err reduce(trn_kctx *k, trn_accum_op op, bool sparse)
{
    trn_sparse s;
    reduction r;
    int64_t *p;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    TRN_TRY(plan(&r, &s, trn_in(k, 3), trn_attr_bool(k->node, "keep_dims")));
    TRN_TRY(trn_sparse_sort(&p, s.ix, s.n, s.rank, r.group, r.n_group));
    trn_err err = (sparse ? reduce_sparse : reduce_dense)(k, &s, &r, p, op);
    free(p);
    return err;
}

static trn_err reduce_sum(trn_kctx *k) { return reduce(k, TRN_ACC_ADD, false); }
static trn_err reduce_max(trn_kctx *k) { return reduce(k, TRN_ACC_MAX, false); }
static trn_err reduce_sum_sparse(trn_kctx *k) { return reduce(k, TRN_ACC_ADD, true); }
static trn_err reduce_max_sparse(trn_kctx *k) { return reduce(k, TRN_ACC_MAX, true); }

/* Softmax over the entries of each row (same indices but for the last). */
#define SOFTMAX(T, name, exp)                                                                                          \
    static void softmax_##name(T *y, const T *x, int64_t n)                                                            \
    {                                                                                                                  \
        T max = x[0], sum = 0;                                                                                         \
        for (int64_t i = 1; i < n; i++)                                                                                \
            max = x[i] > max ? x[i] : max;                                                                             \
        for (int64_t i = 0; i < n; i++)                                                                                \
            sum += y[i] = exp(x[i] - max);                                                                             \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] /= sum;                                                                                               \
    }
SOFTMAX(float, f32, expf)
SOFTMAX(double, f64, exp)

static trn_err softmax(trn_kctx *k)
{
    trn_sparse s;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    TRN_CHECK_ARG(s.rank >= 2, "Input should have rank >= 2, but received shape of rank %d", s.rank);
    trn_tensor *y, *wide = NULL;
    trn_dtype t = s.values->dtype;
    TRN_TRY(trn_out_new(&y, k, 0, t, &s.values->shape));
    if (trn_is_half(t))
        TRN_TRY(widen_all(&wide, s.values));
    for (int64_t i = 0, j; i < s.n; i = j) {
        for (j = i + 1; j < s.n && !trn_index_cmp(trn_sparse_row(&s, i), trn_sparse_row(&s, j), s.rank - 1); j++)
            ;
        if (wide)
            softmax_f32(TRN_DATA_MUT(wide, float) + i, TRN_DATA(wide, float) + i, j - i);
        else if (t == TRN_FLOAT)
            softmax_f32(at(y, i), at(s.values, i), j - i);
        else
            softmax_f64(at(y, i), at(s.values, i), j - i);
    }
    if (wide)
        trn_narrow(y->data, wide->data, t, s.n);
    trn_tensor_unref(wide);
    return TRN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

#define A "a_indices:i64, a_values:T, a_shape:i64"
#define B "b_indices:i64, b_values:T, b_shape:i64"
#define IN "input_indices:i64, input_values:T, input_shape:i64, reduction_axes:i32"
#define CWISE "sp_indices:i64, sp_values:T, sp_shape:i64, dense:T -> output:T; T:num"
#define OUT "output_indices:i64, output_values:T, output_shape:i64"

const trn_op trn_ops_sparse_math[] = {
    {"SparseAdd", A ", " B ", thresh:Treal -> sum_indices:i64, sum_values:T, sum_shape:i64; T:num, Treal:real",
     trn_sh_unknown, add, 0},
    {"SparseAddGrad",
     "backprop_val_grad:T, a_indices:i64, b_indices:i64, sum_indices:i64 -> a_val_grad:T, b_val_grad:T; T:num",
     trn_sh_unknown, add_grad, 0},
    {"SparseSparseMaximum", A ", " B " -> output_indices:i64, output_values:T; T:real", trn_sh_unknown, maximum, 0},
    {"SparseSparseMinimum", A ", " B " -> output_indices:i64, output_values:T; T:real", trn_sh_unknown, minimum, 0},
    {"SparseTensorDenseAdd",
     "a_indices:Tindices, a_values:T, a_shape:Tindices, b:T -> output:T; T:num, Tindices:i32|i64", trn_sh_unknown,
     dense_add, 0},
    {"SparseDenseCwiseAdd", CWISE, trn_sh_unknown, cwise_add, 0},
    {"SparseDenseCwiseMul", CWISE, trn_sh_unknown, cwise_mul, 0},
    {"SparseDenseCwiseDiv", CWISE, trn_sh_unknown, cwise_div, 0},
    {"SparseTensorDenseMatMul",
     "a_indices:Tindices, a_values:T, a_shape:i64, b:T -> product:T; T:float|i32|c64|c128, Tindices:i32|i64=i64, "
     "adjoint_a:bool=false, "
     "adjoint_b:bool=false",
     trn_sh_unknown, matmul, 0},
    {"SparseReduceSum", IN " -> output:T; keep_dims:bool=false, T:num", trn_sh_unknown, reduce_sum, 0},
    {"SparseReduceMax", IN " -> output:T; keep_dims:bool=false, T:real", trn_sh_unknown, reduce_max, 0},
    {"SparseReduceSumSparse", IN " -> " OUT "; keep_dims:bool=false, T:num", trn_sh_unknown, reduce_sum_sparse, 0},
    {"SparseReduceMaxSparse", IN " -> " OUT "; keep_dims:bool=false, T:real", trn_sh_unknown, reduce_max_sparse, 0},
    {"SparseSoftmax", "sp_indices:i64, sp_values:T, sp_shape:i64 -> output:T; T:f16|f32|f64", trn_sh_like1, softmax, 0},
    {0},
};
