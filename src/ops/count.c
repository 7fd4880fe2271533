/* Counting and searching: bins, buckets, histograms, the n-th smallest, places in sorted rows. */
#include "ops/sparse.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* ---- bins --------------------------------------------------------------------------------------------------------------- */

/* What one value adds to its bin: its weight, or one. binary: bins only say whether anything was counted. */
typedef struct bins {
    trn_tensor *y;
    const trn_tensor *weights;
    int64_t size;
    bool binary;
} bins;

static void count_one(const bins *b, int64_t row, int64_t v, int64_t i)
{
    int64_t at = row * b->size + v;
    bool one = b->binary || !b->weights->count;
    switch (b->y->dtype) {
#define ADD(D, T, W)                                                                                                   \
    case D: {                                                                                                          \
        T *y = TRN_DATA_MUT(b->y, T) + at;                                                                             \
        *y = b->binary ? 1 : (T)((W)*y + (one ? (W)1 : (W)TRN_DATA(b->weights, T)[i]));                                \
        break;                                                                                                         \
    }
        ADD(TRN_FLOAT, float, float)
        ADD(TRN_DOUBLE, double, double)
        ADD(TRN_INT32, int32_t, uint32_t)
        ADD(TRN_INT64, int64_t, uint64_t)
    default:
        break;
#undef ADD
    }
}

static trn_err bins_in(bins *b, trn_kctx *k, int size, const trn_tensor *values, int64_t rows)
{
    const trn_tensor *s = trn_in(k, size), *w = trn_in(k, size + 1);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(s), "Shape must be rank 0 but is rank %d", s->shape.rank);
    b->size = trn_int_at(s, 0);
    TRN_CHECK_ARG(b->size >= 0, "size (%lld) must be non-negative", (long long)b->size);
    b->binary = trn_attr_bool(k->node, "binary_output");
    TRN_CHECK_ARG(b->binary || !w->count || w->count == values->count, "there are %s weights for %s values",
                  trn_shape_text(ta, &w->shape), trn_shape_text(tb, &values->shape));
    for (int64_t i = 0; i < values->count; i++)
        TRN_CHECK_ARG(trn_int_at(values, i) >= 0, "Input arr must be non-negative!");
    b->weights = w;
    trn_shape shape = rows < 0 ? trn_shape_vector(b->size) : trn_shape_of(2, rows, b->size);
    TRN_TRY(trn_out_new(&b->y, k, 0, w->dtype, &shape));
    trn_zero_elems(b->y, 0, b->y->count);
    return TRN_OK;
}

static trn_err bincount(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bins b;
    TRN_TRY(bins_in(&b, k, 1, x, -1));
    for (int64_t i = 0; i < x->count; i++)
        if (trn_int_at(x, i) < b.size)
            count_one(&b, 0, trn_int_at(x, i), i);
    return TRN_OK;
}

static trn_err dense_bincount(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bins b;
    TRN_CHECK_ARG(x->shape.rank <= 2, "Shape must be at most rank 2 but is rank %d", x->shape.rank);
    TRN_CHECK_ARG(!trn_in(k, 2)->count || trn_shape_eq(&trn_in(k, 2)->shape, &x->shape), "`weights` must have the shape of the values, or no elements");
    bool matrix = x->shape.rank == 2;
    TRN_TRY(bins_in(&b, k, 1, x, matrix ? x->shape.dim[0] : -1));
    for (int64_t i = 0; i < x->count; i++)
        if (trn_int_at(x, i) < b.size)
            count_one(&b, matrix ? i / x->shape.dim[1] : 0, trn_int_at(x, i), i);
    return TRN_OK;
}

static trn_err sparse_bincount(trn_kctx *k)
{
    trn_sparse s;
    bins b;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    TRN_CHECK_ARG(s.rank == 1 || s.rank == 2, "dense_shape must have 1 or 2 dimensions, not %d", s.rank);
    TRN_TRY(trn_sparse_in_bounds(&s));
    TRN_TRY(bins_in(&b, k, 3, s.values, s.rank == 2 ? s.shape.dim[0] : -1));
    for (int64_t i = 0; i < s.n; i++)
        if (trn_int_at(s.values, i) < b.size)
            count_one(&b, s.rank == 2 ? trn_sparse_row(&s, i)[0] : 0, trn_int_at(s.values, i), i);
    return TRN_OK;
}

static trn_err ragged_bincount(trn_kctx *k)
{
    const trn_tensor *splits = trn_in(k, 0), *x = trn_in(k, 1);
    bins b;
    TRN_CHECK_ARG(splits->count > 0, "Splits must be non-empty");
    int64_t rows = splits->count - 1;
    const int64_t *s = TRN_DATA(splits, int64_t);
    TRN_CHECK_ARG(s[0] == 0, "Splits must start with 0, not with %lld", (long long)s[0]);
    TRN_CHECK_ARG(s[rows] == x->count, "Splits must end with the number of values, got %lld instead of %lld", (long long)s[rows], (long long)x->count);
    for (int64_t r = 0; r < rows; r++)
        TRN_CHECK_ARG(s[r] <= s[r + 1], "Splits must not fall: %lld is followed by %lld", (long long)s[r], (long long)s[r + 1]);
    TRN_TRY(bins_in(&b, k, 2, x, rows));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = s[r]; i < s[r + 1]; i++)
            if (trn_int_at(x, i) < b.size)
                count_one(&b, r, trn_int_at(x, i), i);
    return TRN_OK;
}

/* ---- counts as sparse tensors --------------------------------------------------------------------------------------------- */

typedef struct count {
    int64_t row, value, at; /* at: which of the inputs it is; equal values of a row are added in this order */
} count;

static int by_row(const void *pa, const void *pb)
{
    const count *a = pa, *b = pb;
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    if (a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

/* What the three ops have in common: n values, the row of each by row_of(arg, i). rows < 0: there is only one, and no index for it. */
static trn_err count_sparse(trn_kctx *k, const trn_tensor *x, const trn_tensor *w, int64_t rows, int64_t (*row_of)(const void *arg, int64_t i), const void *arg)
{
    int64_t most = 0, max = trn_attr_int(k->node, "maxlength"), min = trn_attr_int(k->node, "minlength"), n = 0;
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    for (int64_t i = 0; i < x->count; i++)
        TRN_CHECK_ARG(trn_int_at(x, i) >= 0, "Input values must all be non-negative");
    TRN_CHECK_ARG(!w->count || trn_shape_eq(&w->shape, &x->shape), "Weights and values must have the same shape. Weight shape: %s; values shape: %s", trn_shape_text(ta, &w->shape),
                  trn_shape_text(tb, &x->shape));
    count *c = malloc(((size_t)x->count + 1) * sizeof *c);
    if (!c)
        return trn_err_oom();
    for (int64_t i = 0; i < x->count; i++) {
        int64_t v = trn_int_at(x, i);
        if (max >= 0 && v >= max)
            continue;
        c[n++] = (count){rows < 0 ? 0 : row_of(arg, i), v, i};
        most = TRN_MAX(most, v);
    }
    qsort(c, (size_t)n, sizeof *c, by_row);
    int64_t cells = 0;
    for (int64_t i = 0; i < n; i++)
        cells += !i || c[i].row != c[i - 1].row || c[i].value != c[i - 1].value;
    int rank = rows < 0 ? 1 : 2;
    trn_shape is = trn_shape_of(2, cells, (int64_t)rank), vs = trn_shape_vector(cells), ds = trn_shape_vector(rank);
    trn_tensor *index, *shape;
    bins b = {.weights = w, .binary = trn_attr_bool(k->node, "binary_output")};
    trn_err err = trn_out_new(&index, k, 0, TRN_INT64, &is);
    if (!err)
        err = trn_out_new(&b.y, k, 1, w->dtype, &vs);
    if (!err)
        err = trn_out_new(&shape, k, 2, TRN_INT64, &ds);
    if (!err) {
        trn_zero_elems(b.y, 0, cells);
        for (int64_t i = 0, cell = -1; i < n; i++) {
            if (!i || c[i].row != c[i - 1].row || c[i].value != c[i - 1].value) {
                int64_t *to = TRN_DATA_MUT(index, int64_t) + ++cell * rank;
                *to = c[i].row;
                to[rank - 1] = c[i].value;
            }
            count_one(&b, 0, cell, c[i].at);
        }
        TRN_DATA_MUT(shape, int64_t)[0] = rows;
        TRN_DATA_MUT(shape, int64_t)[rank - 1] = max >= 0 ? max : TRN_MAX(most == INT64_MAX ? most : most + 1, min);
    }
    free(c);
    return err;
}

static int64_t row_of_dense(const void *arg, int64_t i) { return i / *(const int64_t *)arg; }
static int64_t row_of_sparse(const void *arg, int64_t i) { return trn_sparse_row(arg, i)[0]; }

static int64_t row_of_ragged(const void *arg, int64_t i)
{
    const trn_tensor *splits = arg;
    const int64_t *s = TRN_DATA(splits, int64_t);
    int64_t lo = 0, hi = splits->count - 1; /* s[lo] <= i < s[hi] */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (s[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static trn_err dense_count(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 1 || x->shape.rank == 2, "Input must be a 1 or 2-dimensional tensor. Got: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(x->shape.rank == 1 || x->shape.dim[0], "Invalid input: Shapes dimension cannot be 0.");
    return count_sparse(k, x, trn_in(k, 1), x->shape.rank == 1 ? -1 : x->shape.dim[0], row_of_dense, &x->shape.dim[1]);
}

static trn_err sparse_count(trn_kctx *k)
{
    trn_sparse s;
    const trn_tensor *dims = trn_in(k, 2);
    TRN_CHECK_ARG(dims->count > 0, "The shape argument requires at least one element.");
    TRN_TRY(trn_sparse_in(&s, k, 0));
    TRN_TRY(trn_sparse_in_bounds(&s));
    int64_t rows = s.rank == 1 ? -1 : TRN_DATA(dims, int64_t)[0];
    TRN_CHECK_ARG(rows == -1 || (rows > 0 && rows < INT32_MAX), "Cannot allocate %lld batches, is the dense shape too wide?", (long long)rows);
    return count_sparse(k, s.values, trn_in(k, 3), rows, row_of_sparse, &s);
}

static trn_err ragged_count(trn_kctx *k)
{
    const trn_tensor *splits = trn_in(k, 0), *x = trn_in(k, 1);
    const int64_t *s = TRN_DATA(splits, int64_t);
    TRN_CHECK_ARG(splits->count > 1, "Must provide at least 2 elements for the splits argument");
    int64_t rows = splits->count - 1;
    TRN_CHECK_ARG(s[0] == 0, "Splits must start with 0, not with %lld", (long long)s[0]);
    TRN_CHECK_ARG(s[rows] == x->count, "Splits must end with the number of values, got %lld instead of %lld", (long long)s[rows], (long long)x->count);
    for (int64_t r = 0; r < rows; r++)
        TRN_CHECK_ARG(s[r] <= s[r + 1], "Splits must not fall: %lld is followed by %lld", (long long)s[r], (long long)s[r + 1]);
    return count_sparse(k, x, trn_in(k, 2), rows, row_of_ragged, splits);
}

/* ---- histograms ----------------------------------------------------------------------------------------------------------- */

#define AS_DOUBLE(out, t, i)                                                                                           \
    switch ((t)->dtype) {                                                                                              \
    case TRN_FLOAT:                                                                                                    \
        out = (double)TRN_DATA(t, float)[i];                                                                           \
        break;                                                                                                         \
    case TRN_DOUBLE:                                                                                                   \
        out = TRN_DATA(t, double)[i];                                                                                  \
        break;                                                                                                         \
    default:                                                                                                           \
        out = (double)trn_int_at(t, i);                                                                                \
        break;                                                                                                         \
    }

static trn_err histogram(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *range = trn_in(k, 1), *nb = trn_in(k, 2);
    TRN_CHECK_ARG(trn_is_vector(range) && range->count == 2, "value_range should be a vector of 2 elements.");
    TRN_CHECK_ARG(trn_is_scalar(nb), "nbins should be a scalar.");
    double lo, hi;
    AS_DOUBLE(lo, range, 0);
    AS_DOUBLE(hi, range, 1);
    TRN_CHECK_ARG(lo < hi, "value_range should satisfy value_range[0] < value_range[1], but got '[%g, %g]'", lo, hi);
    int64_t n = TRN_DATA(nb, int32_t)[0];
    TRN_CHECK_ARG(n > 0, "nbins should be a positive number, but got '%lld'", (long long)n);
    double width = x->dtype == TRN_FLOAT ? (double)(TRN_DATA(range, float)[1] - TRN_DATA(range, float)[0]) : hi - lo,
           step = width / (double)n;
    trn_shape s = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    trn_zero_elems(y, 0, n);
    for (int64_t i = 0; i < x->count; i++) {
        double v, at;
        AS_DOUBLE(v, x, i);
        TRN_CHECK_ARG(!isnan(v), "values has a NaN at %lld", (long long)i);
        v = v > lo ? v : lo;
        at = (x->dtype == TRN_FLOAT ? (double)((float)v - (float)lo) : v - lo) / step;
        int64_t bin = at < (double)(n - 1) ? (int64_t)at : n - 1;
        trn_int_put(y, bin, trn_int_at(y, bin) + 1);
    }
    return TRN_OK;
}

/* ---- buckets ------------------------------------------------------------------------------------------------------------ */

static trn_err bucketize(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    const trn_attr *b = trn_node_attr(k->node, "boundaries");
    int n = b && b->is_list && b->kind == TRN_ATTR_FLOAT ? b->n : 0;
    for (int i = 1; i < n; i++)
        TRN_CHECK_ARG(!(b->list[i].f < b->list[i - 1].f), "Expected sorted boundaries");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        double v;
        if (x->dtype == TRN_DOUBLE)
            v = TRN_DATA(x, double)[i];
        else if (x->dtype == TRN_FLOAT)
            v = (double)TRN_DATA(x, float)[i];
        else
            v = (double)(float)trn_int_at(x, i); /* whole numbers are compared as floats */
        int lo = 0, hi = n;
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            if (v < (double)b->list[mid].f)
                hi = mid;
            else
                lo = mid + 1;
        }
        TRN_DATA_MUT(y, int32_t)[i] = lo;
    }
    return TRN_OK;
}

/* ---- order ---------------------------------------------------------------------------------------------------------------- */

#define CMP(op, T, W, tag, ...)                                                                                        \
    static int cmp_##tag(const void *a, const void *b)                                                                 \
    {                                                                                                                  \
        T x = *(const T *)a, y = *(const T *)b;                                                                        \
        return (x > y) - (x < y);                                                                                      \
    }
TRN_EACH_INT(CMP, cmp)
TRN_EACH_FLOAT(CMP, cmp)
static int cmp_f16(const void *a, const void *b)
{
    float x = trn_half_to_f32(*(const trn_half *)a), y = trn_half_to_f32(*(const trn_half *)b);
    return (x > y) - (x < y);
}
static int cmp_bf16(const void *a, const void *b)
{
    float x = trn_bf16_to_f32(*(const trn_bf16 *)a), y = trn_bf16_to_f32(*(const trn_bf16 *)b);
    return (x > y) - (x < y);
}
typedef int (*cmp_fn)(const void *, const void *);
static const cmp_fn cmp_tab[TRN_DTYPE_END] = {TRN_TAB_INT(cmp),
                                              TRN_TAB_FLOAT(cmp), [TRN_HALF] = cmp_f16, [TRN_BFLOAT16] = cmp_bf16};

static trn_err nth_element(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *nt = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_scalar(nt), "N must be scalar but has rank %d", nt->shape.rank);
    int64_t n = TRN_DATA(nt, int32_t)[0];
    TRN_CHECK_ARG(n >= 0, "n must be non-negative but is %lld", (long long)n);
    TRN_CHECK_ARG(x->shape.rank >= 1, "Input must be at least rank 1 but is rank 0");
    trn_shape s = x->shape;
    int64_t len = s.dim[--s.rank];
    TRN_CHECK_ARG(n < len, "Input must have last dimension > n = %lld", (long long)n);
    if (trn_attr_bool(k->node, "reverse"))
        n = len - n - 1;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    size_t size = trn_dtype_size(x->dtype);
    char *row = malloc((size_t)len * size);
    if (!row)
        return trn_err_oom();
    for (int64_t i = 0; i < y->count; i++) {
        memcpy(row, (const char *)x->data + (size_t)(i * len) * size, (size_t)len * size);
        qsort(row, (size_t)len, size, cmp_tab[x->dtype]);
        memcpy((char *)y->data + (size_t)i * size, row + (size_t)n * size, size);
    }
    free(row);
    return TRN_OK;
}

/* Per row: how many of the sorted elements lie before the value (upper: or are equal to it). */
static trn_err bound(trn_kctx *k, bool upper)
{
    const trn_tensor *s = trn_in(k, 0), *v = trn_in(k, 1);
    TRN_CHECK_ARG(s->shape.rank == 2 && v->shape.rank == 2, "sorted input and values argument must be 2D matrices");
    TRN_CHECK_ARG(s->shape.dim[0] == v->shape.dim[0], "Leading dim_size of both tensors must match.");
    TRN_CHECK_ARG(s->shape.dim[1] < INT32_MAX, "the sorted rows are too long");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &v->shape));
    size_t size = trn_dtype_size(s->dtype);
    cmp_fn cmp = cmp_tab[s->dtype];
    int64_t n = s->shape.dim[1], m = v->shape.dim[1];
    for (int64_t i = 0; i < v->count; i++) {
        const char *row = (const char *)s->data + (size_t)(i / m * n) * size,
                   *x = (const char *)v->data + (size_t)i * size;
        int64_t lo = 0, hi = n;
        while (lo < hi) {
            int64_t mid = (lo + hi) / 2;
            int c = cmp(row + (size_t)mid * size, x);
            if (c < 0 || (upper && c == 0))
                lo = mid + 1;
            else
                hi = mid;
        }
        trn_int_put(y, i, lo);
    }
    return TRN_OK;
}

static trn_err lower_bound(trn_kctx *k) { return bound(k, false); }
static trn_err upper_bound(trn_kctx *k) { return bound(k, true); }

/* ---- indices -------------------------------------------------------------------------------------------------------------- */

static trn_err unravel(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *dims = trn_in(k, 1);
    TRN_CHECK_ARG(x->shape.rank <= 1, "The indices can only be scalar or vector, got rank %d", x->shape.rank);
    TRN_CHECK_ARG(trn_is_vector(dims), "The indices can only be 1-D, got rank %d", dims->shape.rank);
    int64_t total = 1, r = dims->count;
    for (int64_t d = 0; d < r; d++) {
        int64_t n = trn_int_at(dims, d);
        TRN_CHECK_ARG(n != 0, "Input dims cannot contain a dim of zero, but dims contains zero at %lld", (long long)d);
        TRN_CHECK_ARG(!__builtin_mul_overflow(total, n, &total) && (dims->dtype == TRN_INT64 || total == (int32_t)total), "Input dims product is causing integer overflow");
    }
    trn_shape s = x->shape.rank ? trn_shape_of(2, r, x->count) : trn_shape_vector(r);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    for (int64_t i = 0; i < x->count; i++) {
        int64_t v = trn_int_at(x, i);
        TRN_CHECK_ARG(v >= 0 && v < total, "index is out of bound as with dims");
        for (int64_t d = r - 1; d >= 0; d--) {
            int64_t n = trn_int_at(dims, d);
            trn_int_put(y, d * x->count + i, v % n);
            v /= n;
        }
    }
    return TRN_OK;
}

/* ---- Cross ---------------------------------------------------------------------------------------------------------------- */

#define CROSS(op, T, W, tag, ...)                                                                                      \
    static void cross_##tag(void *yp, const void *ap, const void *bp, int64_t n)                                       \
    {                                                                                                                  \
        T *y = yp;                                                                                                     \
        const T *a = ap, *b = bp;                                                                                      \
        for (int64_t i = 0; i < n; i++, y += 3, a += 3, b += 3) {                                                      \
            y[0] = (T)((W)a[1] * (W)b[2] - (W)a[2] * (W)b[1]);                                                         \
            y[1] = (T)((W)a[2] * (W)b[0] - (W)a[0] * (W)b[2]);                                                         \
            y[2] = (T)((W)a[0] * (W)b[1] - (W)a[1] * (W)b[0]);                                                         \
        }                                                                                                              \
    }
TRN_EACH_INT(CROSS, cross)
TRN_EACH_FLOAT(CROSS, cross)
typedef void (*cross_fn)(void *, const void *, const void *, int64_t);

static void cross_half(trn_tensor *y, const trn_tensor *a, const trn_tensor *b)
{
    for (int64_t i = 0; i < y->count; i += 3) {
        float f[3], g[3], h[3];
        trn_widen(f, TRN_DATA(a, uint16_t) + i, a->dtype, 3);
        trn_widen(g, TRN_DATA(b, uint16_t) + i, b->dtype, 3);
        cross_f32(h, f, g, 1);
        trn_narrow(TRN_DATA_MUT(y, uint16_t) + i, h, y->dtype, 3);
    }
}

static trn_err cross(trn_kctx *k)
{
    static const cross_fn tab[TRN_DTYPE_END] = {TRN_TAB_INT(cross), TRN_TAB_FLOAT(cross)};
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&a->shape, &b->shape), "Both inputs must be of same shape: %s vs. %s",
                  trn_shape_text(ta, &a->shape), trn_shape_text(tb, &b->shape));
    TRN_CHECK_ARG(a->shape.rank >= 1, "Input must be at least 1D");
    if (a->shape.dim[a->shape.rank - 1] != 3)
        return trn_errorf(TRN_FAILED_PRECONDITION, "Cross-products are only defined for 3-element vectors.");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, a->dtype, &a->shape));
    if (trn_is_half(a->dtype))
        cross_half(y, a, b);
    else
        tab[a->dtype](y->data, a->data, b->data, a->count / 3);
    return TRN_OK;
}

/* ---- small things --------------------------------------------------------------------------------------------------------- */

static trn_err timestamp(trn_kctx *k)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    trn_out_set(k, 0, trn_tensor_f64((double)now.tv_sec + (double)(now.tv_nsec / 1000) * 1e-6));
    return TRN_OK;
}

static trn_err population_count(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_UINT8, &x->shape));
    uint64_t mask = UINT64_MAX >> (64 - 8 * trn_dtype_size(x->dtype));
    for (int64_t i = 0; i < x->count; i++)
        TRN_DATA_MUT(y, uint8_t)[i] = (uint8_t)__builtin_popcountll((uint64_t)trn_int_at(x, i) & mask);
    return TRN_OK;
}

static trn_err guarantee(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 0)->dtype != TRN_RESOURCE, "Input tensor cannot be a resource variable handle: what it names is not constant");
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

#define BOUND "sorted_inputs:T, values:T -> output:out_type; T:real, out_type:i32|i64=i32"

#define COUNTS                                                                                                         \
    " -> output_indices:i64, output_values:output_type, output_dense_shape:i64; T:i32|i64, minlength:int>=-1=-1, "     \
    "maxlength:int>=-1=-1, binary_output:bool, output_type:i32|i64|f32|f64"

const trn_op trn_ops_count[] = {
    {"Bincount", "arr:i32, size:i32, weights:T -> bins:T; T:i32|i64|f32|f64", trn_sh_vector, bincount, 0},
    {"DenseBincount",
     "input:Tidx, size:Tidx, weights:T -> output:T; Tidx:i32|i64, T:i32|i64|f32|f64, binary_output:bool=false",
     trn_sh_unknown, dense_bincount, 0},
    {"SparseBincount",
     "indices:i64, values:Tidx, dense_shape:i64, size:Tidx, weights:T -> output:T; Tidx:i32|i64, T:i32|i64|f32|f64, "
     "binary_output:bool=false",
     trn_sh_unknown, sparse_bincount, 0},
    {"RaggedBincount",
     "splits:i64, values:Tidx, size:Tidx, weights:T -> output:T; Tidx:i32|i64, T:i32|i64|f32|f64, binary_output:bool=false",
     trn_sh_unknown, ragged_bincount, 0},
    {"DenseCountSparseOutput", "values:T, weights:output_type" COUNTS, trn_sh_unknown, dense_count, 0},
    {"SparseCountSparseOutput", "indices:i64, values:T, dense_shape:i64, weights:output_type" COUNTS, trn_sh_unknown, sparse_count, 0},
    {"RaggedCountSparseOutput", "splits:i64, values:T, weights:output_type" COUNTS, trn_sh_unknown, ragged_count, 0},
    {"HistogramFixedWidth", "values:T, value_range:T, nbins:i32 -> out:dtype; T:i32|i64|f32|f64, dtype:i32|i64=i32",
     trn_sh_vector, histogram, 0},
    {"Bucketize", "input:T -> output:i32; T:i32|i64|f32|f64, boundaries:list(float)", trn_sh_same, bucketize, 0},
    {"NthElement", "input:T, n:i32 -> values:T; reverse:bool=false, T:real", trn_sh_unknown, nth_element, 0},
    {"LowerBound", BOUND, trn_sh_like1, lower_bound, 0},
    {"UpperBound", BOUND, trn_sh_like1, upper_bound, 0},
    {"UnravelIndex", "indices:Tidx, dims:Tidx -> output:Tidx; Tidx:i32|i64=i32", trn_sh_unknown, unravel, 0},
    {"Cross", "a:T, b:T -> product:T; T:real", trn_sh_same, cross, 0},
    {"Timestamp", " -> ts:f64", trn_sh_scalar, timestamp, TRN_OP_STATEFUL | TRN_OP_CHEAP},
    {"PopulationCount", "x:T -> y:u8; T:int", trn_sh_same, population_count, 0},
    {"GuaranteeConst", "input:T -> output:T; T:any", trn_sh_same, guarantee, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {0},
};
