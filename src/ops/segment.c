/* Segment reductions: rows of `data` gathered by id. */
#include "ops/kern.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- unsorted ----------------------------------------------------------------------------------------------------------------- */

/* What an empty segment holds, as one element. */
static void neutral(void *p, trn_dtype t, trn_accum_op op)
{
    memset(p, 0, 16);
    if (op == TRN_ACC_ADD)
        return;
    float one = 1, big = op == TRN_ACC_MAX ? -FLT_MAX : FLT_MAX;
    float f = op == TRN_ACC_MUL ? one : big;
    double d = op == TRN_ACC_MUL ? 1 : op == TRN_ACC_MAX ? -DBL_MAX : DBL_MAX;
    switch (t) {
    case TRN_FLOAT:
    case TRN_COMPLEX64: memcpy(p, &f, 4); return;
    case TRN_DOUBLE:
    case TRN_COMPLEX128: memcpy(p, &d, 8); return;
    case TRN_HALF: *(uint16_t *)p = op == TRN_ACC_MUL ? 0x3c00 : op == TRN_ACC_MAX ? 0xfbff : 0x7bff; return;
    case TRN_BFLOAT16: *(uint16_t *)p = op == TRN_ACC_MUL ? 0x3f80 : op == TRN_ACC_MAX ? 0xff7f : 0x7f7f; return;
    default: break;
    }
    bool is_signed = t == TRN_INT8 || t == TRN_INT16 || t == TRN_INT32 || t == TRN_INT64;
    unsigned bits = (unsigned)trn_dtype_size(t) * 8;
    uint64_t top = UINT64_C(1) << (bits - 1);
    uint64_t v = op == TRN_ACC_MUL ? 1 : op == TRN_ACC_MAX ? (is_signed ? top : 0) : is_signed ? top - 1 : (top - 1) | top;
    memcpy(p, &v, bits / 8); /* little-endian: the low bytes */
}

/* "[1,2]": where element i of a tensor of this shape lies; nothing for a scalar. */
static const char *place_text(char buf[static TRN_SHAPE_TEXT], const trn_shape *s, int64_t i)
{
    int64_t at[TRN_MAX_RANK];
    for (int d = s->rank - 1; d >= 0; d--) {
        at[d] = i % s->dim[d];
        i /= s->dim[d];
    }
    size_t n = 0;
    buf[0] = 0;
    for (int d = 0; d < s->rank && n + 24 < TRN_SHAPE_TEXT; d++)
        n += (size_t)snprintf(buf + n, TRN_SHAPE_TEXT - n, "%c%lld", d ? ',' : '[', (long long)at[d]);
    if (n)
        snprintf(buf + n, TRN_SHAPE_TEXT - n, "]");
    return buf;
}

/* Are the segments numbered as Unique numbers them, each by the first row that is of none before it? Then row i goes to a place no later than i. */
static bool first_come(const trn_tensor *ids, int64_t n)
{
    int64_t seen = 0;
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t v = trn_int_at(ids, i);
        if (v < 0 || v > seen)
            return false;
        seen += v == seen;
    }
    return seen == n;
}

/* Sums of such segments where the rows lie: what a sparse gradient's repeated rows need, where most come once and stay in their place. */
static trn_err sum_in_place(trn_tensor *x, const trn_tensor *ids, int64_t inner)
{
    size_t bytes = (size_t)inner * trn_dtype_size(x->dtype);
    char *zeros = calloc(1, bytes);
    if (!zeros)
        return trn_err_oom();
    int64_t seen = 0;
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t v = trn_int_at(ids, i);
        char *to = (char *)x->data + (size_t)v * bytes, *row = (char *)x->data + (size_t)i * bytes;
        if (v == seen && v < i)
            memset(to, 0, bytes);
        seen += v == seen;
        trn_accum(TRN_ACC_ADD, x->dtype, to, v < i ? row : zeros, inner); /* 0 and what comes: -0 becomes 0, as in any sum */
    }
    free(zeros);
    return TRN_OK;
}

static trn_err unsorted(trn_kctx *k, trn_accum_op op)
{
    const trn_tensor *x = trn_in(k, 0), *ids = trn_in(k, 1), *num = trn_in(k, 2);
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(num), "num_segments should be a scalar, not shape %s", trn_shape_text(a, &num->shape));
    bool starts = x->shape.rank >= ids->shape.rank;
    for (int i = 0; starts && i < ids->shape.rank; i++)
        starts = x->shape.dim[i] == ids->shape.dim[i];
    TRN_CHECK_ARG(starts, "data.shape = %s does not start with segment_ids.shape = %s", trn_shape_text(a, &x->shape), trn_shape_text(b, &ids->shape));
    int64_t n = trn_int_at(num, 0), inner = 1, count;
    TRN_CHECK_ARG(n >= 0, "Input num_segments == %lld must not be negative.", (long long)n);
    TRN_CHECK_ARG(x->shape.rank - ids->shape.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    trn_shape s = {.rank = 1, .dim = {n}};
    for (int i = ids->shape.rank; i < x->shape.rank; i++)
        inner = trn_times(inner, s.dim[s.rank++] = x->shape.dim[i]);
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y, *one;
    if (op == TRN_ACC_ADD && x->count > 0 && trn_tensor_sole(x) && first_come(ids, n)) {
        TRN_TRY(trn_out_like(&y, k, 0, 0));
        if (y == x) {
            TRN_TRY(sum_in_place(y, ids, inner));
            TRN_TRY(trn_tensor_view(&y, x, 0, &s));
            trn_out_set(k, 0, y);
            return TRN_OK;
        }
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_shape sc = trn_shape_scalar();
    TRN_TRY(trn_tensor_new(&one, x->dtype, &sc));
    char buf[16];
    neutral(buf, x->dtype, op);
    memcpy(one->data, buf, trn_dtype_size(x->dtype));
    trn_err e = trn_fill_elems(y, 0, y->count, one, 0);
    trn_tensor_unref(one);
    TRN_TRY(e);
    size_t bytes = (size_t)inner * trn_dtype_size(x->dtype);
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t v = trn_int_at(ids, i);
        if (v < 0)
            continue; /* dropped on purpose */
        TRN_CHECK_ARG(v < n, "segment_ids%s = %lld is out of range [0, %lld)", place_text(a, &ids->shape, i), (long long)v, (long long)n);
        trn_accum(op, x->dtype, (char *)y->data + (size_t)v * bytes, (const char *)x->data + (size_t)i * bytes, inner);
    }
    return TRN_OK;
}
static trn_err k_unsorted_sum(trn_kctx *k) { return unsorted(k, TRN_ACC_ADD); }
static trn_err k_unsorted_prod(trn_kctx *k) { return unsorted(k, TRN_ACC_MUL); }
static trn_err k_unsorted_max(trn_kctx *k) { return unsorted(k, TRN_ACC_MAX); }
static trn_err k_unsorted_min(trn_kctx *k) { return unsorted(k, TRN_ACC_MIN); }
trn_err trn_sh_unsorted_segment(trn_shctx *s)
{
    const trn_shape *x = &s->in[0], *ids = &s->in[1];
    const trn_tensor *n = s->value ? s->value[2] : NULL;
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0 || ids->rank < 0 || ids->rank > x->rank || x->rank - ids->rank >= TRN_MAX_RANK)
        return TRN_OK;
    trn_shape r = {.rank = 1, .dim = {n && n->count == 1 && trn_int_at(n, 0) >= 0 ? trn_int_at(n, 0) : -1}};
    for (int i = ids->rank; i < x->rank; i++)
        r.dim[r.rank++] = x->dim[i];
    s->out[0] = r;
    return TRN_OK;
}

/* ---- sorted -------------------------------------------------------------------------------------------------------------------- */

/* y[0..n) /= d, in the type's arithmetic. */
static void divide(void *y, trn_dtype t, int64_t n, int64_t d)
{
    switch (t) {
    case TRN_FLOAT:
        for (int64_t i = 0; i < n; i++)
            ((float *)y)[i] /= (float)d;
        return;
    case TRN_COMPLEX64: divide(y, TRN_FLOAT, 2 * n, d); return;
    case TRN_DOUBLE:
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] /= (double)d;
        return;
    case TRN_COMPLEX128: divide(y, TRN_DOUBLE, 2 * n, d); return;
    case TRN_INT8:
        for (int64_t i = 0; i < n; i++)
            ((int8_t *)y)[i] = (int8_t)(((int8_t *)y)[i] / d);
        return;
    case TRN_INT16:
        for (int64_t i = 0; i < n; i++)
            ((int16_t *)y)[i] = (int16_t)(((int16_t *)y)[i] / d);
        return;
    case TRN_INT32:
        for (int64_t i = 0; i < n; i++)
            ((int32_t *)y)[i] = (int32_t)(((int32_t *)y)[i] / d);
        return;
    case TRN_INT64:
        for (int64_t i = 0; i < n; i++)
            ((int64_t *)y)[i] /= d;
        return;
    case TRN_UINT8:
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)y)[i] = (uint8_t)(((uint8_t *)y)[i] / d);
        return;
    case TRN_UINT16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)y)[i] = (uint16_t)(((uint16_t *)y)[i] / d);
        return;
    case TRN_UINT32:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)y)[i] = (uint32_t)(((uint32_t *)y)[i] / d);
        return;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)y)[i] /= (uint64_t)d;
    }
}

typedef enum { PLAIN, MEAN, SQRT_N } finish_kind;

/* Rows of x (row indices[i], or row i) with segment ids that do not decrease, into `rows` output rows. Halves go through float. */
static trn_err sorted(trn_kctx *k, const trn_tensor *x, const trn_tensor *indices, const trn_tensor *ids, int64_t rows, trn_accum_op op, finish_kind fin)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank >= 1, "input must be at least rank 1");
    TRN_CHECK_ARG(trn_is_vector(ids), "segment_ids should be a vector, not of shape %s", trn_shape_text(t, &ids->shape));
    int64_t n = ids->count, inner = 1, limit = x->shape.dim[0];
    if (indices) {
        TRN_CHECK_ARG(trn_is_vector(indices) && indices->count == n, "segment_ids and indices should be vectors of one size");
    } else {
        TRN_CHECK_ARG(n == limit, "segment_ids should be the same size as dimension 0 of input");
    }
    /* The last id says how many rows come out, so that one is judged first, then the resulting shape, then the ids in their order. */
    int64_t last = n ? trn_int_at(ids, n - 1) : -1;
    TRN_CHECK_ARG(last < INT64_MAX, "segment id %lld is too large", (long long)last);
    TRN_CHECK_ARG(rows < 0 || last < rows, "segment ids must be < num_segments, which is %lld", (long long)rows);
    trn_shape s = x->shape;
    s.dim[0] = rows < 0 ? last + 1 : rows;
    TRN_CHECK_ARG(s.dim[0] >= (n > 0), "segment ids must be >= 0");
    for (int i = 1; i < s.rank; i++)
        inner = trn_times(inner, s.dim[i]);
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    for (int64_t i = 0; i < n; i++) {
        int64_t v = trn_int_at(ids, i);
        TRN_CHECK_ARG(i == 0 || v >= trn_int_at(ids, i - 1), "segment ids are not increasing");
        TRN_CHECK_ARG(v >= 0 && v < s.dim[0], "Segment id %lld out of range [0, %lld), possibly because 'segment_ids' input is not sorted.", (long long)v,
                      (long long)s.dim[0]);
        int64_t at = indices ? trn_int_at(indices, i) : 0;
        TRN_CHECK_ARG(!indices || (at >= 0 && at < limit), "Bad: indices[%lld] == %lld out of range [0, %lld)", (long long)i, (long long)at, (long long)limit);
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    trn_dtype dt = x->dtype;
    size_t bytes = (size_t)inner * trn_dtype_size(dt);
    if (op == TRN_ACC_MUL && !indices && y->count) { /* the product of nothing is 1 */
        char one[16];
        neutral(one, dt, TRN_ACC_MUL);
        for (int64_t i = 0; i < y->count; i++)
            memcpy((char *)y->data + (size_t)i * trn_dtype_size(dt), one, trn_dtype_size(dt));
    }
    float *wide = NULL, *row = NULL; /* sum and one row of halves */
    if (trn_is_half(dt) && inner) {
        wide = malloc(2 * sizeof *wide * (size_t)inner);
        if (!wide)
            return trn_err_oom();
        row = wide + inner;
    }
    for (int64_t i = 0; i < n && inner;) {
        int64_t id = trn_int_at(ids, i), end = i + 1;
        while (end < n && trn_int_at(ids, end) == id)
            end++;
        char *out = (char *)y->data + (size_t)id * bytes;
        for (int64_t q = i; q < end; q++) {
            const char *from = (const char *)x->data + (size_t)(indices ? trn_int_at(indices, q) : q) * bytes;
            if (wide) {
                trn_widen(q == i ? wide : row, from, dt, inner);
                if (q > i)
                    trn_accum(op, TRN_FLOAT, wide, row, inner);
            } else if (q == i) {
                memcpy(out, from, bytes);
            } else {
                trn_accum(op, dt, out, from, inner);
            }
        }
        if (fin == MEAN)
            divide(wide ? (void *)wide : out, wide ? TRN_FLOAT : dt, inner, end - i);
        if (fin == SQRT_N) {
            double scale = 1 / sqrt((double)(end - i));
            for (int64_t q = 0; q < inner; q++)
                if (wide)
                    wide[q] *= (float)scale;
                else if (dt == TRN_FLOAT)
                    ((float *)(void *)out)[q] *= (float)scale;
                else
                    ((double *)(void *)out)[q] *= scale;
        }
        if (wide)
            trn_narrow(out, wide, dt, inner);
        i = end;
    }
    free(wide);
    return TRN_OK;
}

static trn_err segment(trn_kctx *k, trn_accum_op op, finish_kind fin) { return sorted(k, trn_in(k, 0), NULL, trn_in(k, 1), -1, op, fin); }
static trn_err k_segment_sum(trn_kctx *k) { return segment(k, TRN_ACC_ADD, PLAIN); }
static trn_err k_segment_mean(trn_kctx *k) { return segment(k, TRN_ACC_ADD, MEAN); }
static trn_err k_segment_prod(trn_kctx *k) { return segment(k, TRN_ACC_MUL, PLAIN); }
static trn_err k_segment_max(trn_kctx *k) { return segment(k, TRN_ACC_MAX, PLAIN); }
static trn_err k_segment_min(trn_kctx *k) { return segment(k, TRN_ACC_MIN, PLAIN); }

static trn_err sparse_segment(trn_kctx *k, finish_kind fin)
{
    int64_t rows = -1;
    if (k->n_in > 3) {
        const trn_tensor *num = trn_in(k, 3);
        TRN_CHECK_ARG(num->count == 1, "num_segments should be a scalar");
        rows = trn_int_at(num, 0);
        TRN_CHECK_ARG(rows >= 0, "segment ids must be >= 0");
    }
    return sorted(k, trn_in(k, 0), trn_in(k, 1), trn_in(k, 2), rows, TRN_ACC_ADD, fin);
}
static trn_err k_sparse_sum(trn_kctx *k) { return sparse_segment(k, PLAIN); }
static trn_err k_sparse_mean(trn_kctx *k) { return sparse_segment(k, MEAN); }
static trn_err k_sparse_sqrt_n(trn_kctx *k) { return sparse_segment(k, SQRT_N); }

/* Each gradient row of a segment goes back to the rows that were summed into it, scaled as they were. `to`: where row i goes, in place of
 * indices[i]. */
static trn_err spread(trn_kctx *k, const trn_tensor *g, const trn_tensor *ids, const int64_t *to, int64_t rows, finish_kind fin)
{
    int64_t n = ids->count, segs = g->shape.dim[0], inner = 1, count;
    trn_shape s = g->shape;
    s.dim[0] = rows;
    for (int i = 1; i < s.rank; i++)
        inner = trn_times(inner, s.dim[i]);
    TRN_TRY(trn_count_checked(&count, &s));
    if (!count)
        inner = 0; /* nothing is added up, whatever a row would be */
    bool half = trn_is_half(g->dtype);
    trn_tensor *y, *sum;
    TRN_TRY(trn_out_new(&y, k, 0, g->dtype, &s));
    double *scale = calloc((size_t)segs + 1, sizeof *scale);
    float *row = malloc(sizeof *row * (size_t)(inner + 1));
    trn_err e = scale && row ? trn_tensor_new(&sum, half ? TRN_FLOAT : g->dtype, &s) : trn_err_oom();
    if (e) {
        free(scale);
        free(row);
        return e;
    }
    trn_zero_elems(sum, 0, sum->count);
    for (int64_t i = 0; i < n; i++)
        scale[trn_int_at(ids, i)] += 1;
    for (int64_t i = 0; i < segs; i++)
        scale[i] = fin == PLAIN || scale[i] == 0 ? 1 : fin == MEAN ? 1 / scale[i] : 1 / sqrt(scale[i]);
    for (int64_t i = 0; i < n; i++) {
        int64_t v = trn_int_at(ids, i), at = to[i];
        if (g->dtype == TRN_DOUBLE) {
            for (int64_t q = 0; q < inner; q++)
                TRN_DATA_MUT(sum, double)[at * inner + q] += TRN_DATA(g, double)[v * inner + q] * scale[v];
            continue;
        }
        const float *from = row;
        if (half)
            trn_widen(row, TRN_DATA(g, uint16_t) + v * inner, g->dtype, inner);
        else
            from = TRN_DATA(g, float) + v * inner;
        for (int64_t q = 0; q < inner; q++)
            TRN_DATA_MUT(sum, float)[at * inner + q] += from[q] * (float)scale[v];
    }
    if (half)
        trn_narrow(y->data, TRN_DATA(sum, float), y->dtype, y->count);
    else
        memcpy(y->data, sum->data, trn_tensor_bytes(y));
    trn_tensor_unref(sum);
    free(scale);
    free(row);
    return TRN_OK;
}

typedef struct target {
    int64_t index, at; /* the row, and which element of `indices` names it */
} target;

static int by_index(const void *a, const void *b)
{
    int64_t x = ((const target *)a)->index, y = ((const target *)b)->index;
    return (x > y) - (x < y);
}

static trn_err sparse_grad(trn_kctx *k, finish_kind fin)
{
    const trn_tensor *g = trn_in(k, 0), *indices = trn_in(k, 1), *ids = trn_in(k, 2), *dim = trn_in(k, 3);
    TRN_CHECK_ARG(trn_is_vector(indices), "indices should be a vector");
    TRN_CHECK_ARG(trn_is_vector(ids), "segment_ids should be a vector");
    TRN_CHECK_ARG(indices->count == ids->count, "segment_ids and indices should be vectors of one size");
    TRN_CHECK_ARG(trn_is_scalar(dim) && trn_int_at(dim, 0) >= 0, "output_dim0 should be a scalar >= 0");
    TRN_CHECK_ARG(g->shape.rank >= 1, "grad must be at least rank 1");
    int64_t rows = trn_int_at(dim, 0), n = ids->count, segs = g->shape.dim[0];
    bool compact = k->n_out > 1; /* only the rows that are named, and their list */
    if (!rows)
        n = 0; /* nothing to give back to; the ids are not looked at */
    TRN_CHECK_ARG(!n || trn_int_at(ids, n - 1) < segs, "Invalid number of segments: id %lld of %lld", (long long)trn_int_at(ids, n - 1), (long long)segs);
    for (int64_t i = 0; i < n; i++) {
        int64_t v = trn_int_at(ids, i), at = trn_int_at(indices, i);
        TRN_CHECK_ARG(at >= 0 && at < rows, "Index %lld out of range [0, %lld).", (long long)at, (long long)rows);
        TRN_CHECK_ARG(v >= 0 && v < segs, "Segment id %lld out of range [0, %lld).", (long long)v, (long long)segs);
    }
    int64_t *to = malloc(sizeof *to * (size_t)(n + 1));
    if (!to)
        return trn_err_oom();
    for (int64_t i = 0; i < n; i++)
        to[i] = trn_int_at(indices, i);
    trn_err e = TRN_OK;
    if (compact) {
        target *t = malloc(sizeof *t * (size_t)(n + 1));
        if (!t) {
            free(to);
            return trn_err_oom();
        }
        for (int64_t i = 0; i < n; i++)
            t[i] = (target){to[i], i};
        qsort(t, (size_t)n, sizeof *t, by_index);
        int64_t unique = 0;
        for (int64_t i = 0; i < n; i++) {
            unique += i == 0 || t[i].index != t[i - 1].index;
            to[t[i].at] = unique - 1;
        }
        trn_tensor *names;
        e = trn_out_new(&names, k, 1, indices->dtype, &(trn_shape){.rank = 1, .dim = {unique}});
        for (int64_t i = 0; i < n && !e; i++)
            trn_int_put(names, to[t[i].at], t[i].index);
        free(t);
        rows = unique;
    }
    if (!e)
        e = n == ids->count ? spread(k, g, ids, to, rows, fin) : TRN_OK;
    if (!e && n != ids->count) {
        trn_tensor *y;
        trn_shape s = g->shape;
        s.dim[0] = 0;
        e = trn_out_new(&y, k, 0, g->dtype, &s);
    }
    free(to);
    return e;
}
static trn_err k_sparse_sum_grad(trn_kctx *k) { return sparse_grad(k, PLAIN); }
static trn_err k_sparse_mean_grad(trn_kctx *k) { return sparse_grad(k, MEAN); }
static trn_err k_sparse_sqrt_n_grad(trn_kctx *k) { return sparse_grad(k, SQRT_N); }

static trn_err sh_segment(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->out[0].rank > 0)
        s->out[0].dim[0] = -1;
    return TRN_OK;
}

static trn_err sh_segment_grad2(trn_shctx *s)
{
    TRN_TRY(sh_segment(s));
    s->out[1] = (trn_shape){.rank = 1, .dim = {-1}};
    return TRN_OK;
}

#define UNSORTED(set) "data:T, segment_ids:Tindices, num_segments:Tnumsegments -> output:T; T:" set ", Tindices:i16|i32|i64, Tnumsegments:i32|i64=i32"
#define UNSORTED32(set) "data:T, segment_ids:Tindices, num_segments:Tnumsegments -> output:T; T:" set ", Tindices:i32|i64, Tnumsegments:i32|i64=i32"
#define SORTED(set) "data:T, segment_ids:Tindices -> output:T; T:" set ", Tindices:i32|i64"
#define SPARSE(set)                                                                                                    \
    "data:T, indices:Tidx, segment_ids:Tsegmentids -> output:T; T:" set ", Tidx:i32|i64=i32, Tsegmentids:i32|i64=i32, sparse_gradient:bool=false"
#define SPARSE_N(set)                                                                                                  \
    "data:T, indices:Tidx, segment_ids:Tsegmentids, num_segments:Tnumsegments -> output:T; T:" set                     \
    ", Tidx:i32|i64=i32, Tnumsegments:i32|i64=i32, Tsegmentids:i32|i64=i32, sparse_gradient:bool=false"
#define SPARSE_GRAD                                                                                                    \
    "grad:T, indices:Tidx, segment_ids:Tsegmentids, output_dim0:i32 -> output:T; T:float, Tidx:i32|i64=i32, Tsegmentids:i32|i64=i32"
#define SPARSE_GRAD2                                                                                                   \
    "grad:T, indices:Tidx, segment_ids:Tsegmentids, dense_output_dim0:i32 -> output:T, sorted_unique_indices:Tidx; T:float, Tidx:i32|i64=i32, " \
    "Tsegmentids:i32|i64=i32"

const trn_op trn_ops_segment[] = {
    {"UnsortedSegmentSum", UNSORTED("num"), trn_sh_unsorted_segment, k_unsorted_sum, 0},
    {"UnsortedSegmentProd", UNSORTED32("num"), trn_sh_unsorted_segment, k_unsorted_prod, 0},
    {"UnsortedSegmentMax", UNSORTED32("real"), trn_sh_unsorted_segment, k_unsorted_max, 0},
    {"UnsortedSegmentMin", UNSORTED32("real"), trn_sh_unsorted_segment, k_unsorted_min, 0},
    {"SegmentSum", SORTED("num"), sh_segment, k_segment_sum, 0},
    {"SegmentMean", SORTED("num"), sh_segment, k_segment_mean, 0},
    {"SegmentProd", SORTED("num"), sh_segment, k_segment_prod, 0},
    {"SegmentMax", SORTED("real"), sh_segment, k_segment_max, 0},
    {"SegmentMin", SORTED("real"), sh_segment, k_segment_min, 0},
    {"SparseSegmentSum", SPARSE("real"), sh_segment, k_sparse_sum, 0},
    {"SparseSegmentMean", SPARSE("float"), sh_segment, k_sparse_mean, 0},
    {"SparseSegmentSqrtN", SPARSE("float"), sh_segment, k_sparse_sqrt_n, 0},
    {"SparseSegmentSumWithNumSegments", SPARSE_N("real"), sh_segment, k_sparse_sum, 0},
    {"SparseSegmentMeanWithNumSegments", SPARSE_N("float"), sh_segment, k_sparse_mean, 0},
    {"SparseSegmentSqrtNWithNumSegments", SPARSE_N("float"), sh_segment, k_sparse_sqrt_n, 0},
    {"SparseSegmentSumGrad", SPARSE_GRAD, sh_segment, k_sparse_sum_grad, 0},
    {"SparseSegmentMeanGrad", SPARSE_GRAD, sh_segment, k_sparse_mean_grad, 0},
    {"SparseSegmentSqrtNGrad", SPARSE_GRAD, sh_segment, k_sparse_sqrt_n_grad, 0},
    {"SparseSegmentSumGradV2", SPARSE_GRAD2, sh_segment_grad2, k_sparse_sum_grad, 0},
    {"SparseSegmentMeanGradV2", SPARSE_GRAD2, sh_segment_grad2, k_sparse_mean_grad, 0},
    {"SparseSegmentSqrtNGradV2", SPARSE_GRAD2, sh_segment_grad2, k_sparse_sqrt_n_grad, 0},
    {0},
};
