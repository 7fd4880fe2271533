/* Shapes as values, new views of old bytes, constants, and putting together and taking apart along an axis. */
#include "ops/kern.h"
#include "ops/variant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static trn_err out_view(trn_kctx *k, int i, const trn_tensor *x, const trn_shape *s)
{
    trn_tensor *y;
    TRN_TRY(trn_tensor_view(&y, x, 0, s));
    trn_out_set(k, i, y);
    return TRN_OK;
}

static trn_err scalar_out(trn_tensor **out, trn_kctx *k, int i, trn_dtype t)
{
    trn_shape s = trn_shape_scalar();
    return trn_out_new(out, k, i, t, &s);
}

/* ---- shapes as values ---------------------------------------------------------------------------------------------- */

static trn_err k_shape(trn_kctx *k) /* also ShapeN */
{
    trn_dtype t = trn_attr_type(k->node, "out_type");
    for (int i = 0; i < k->n_in; i++) {
        const trn_shape *x = &trn_in(k, i)->shape;
        trn_shape s = trn_shape_vector(x->rank);
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, i, t, &s));
        for (int d = 0; d < x->rank; d++) {
            TRN_CHECK_ARG(t == TRN_INT64 || x->dim[d] <= INT32_MAX, "dimension %d is %lld, which does not fit int32", d, (long long)x->dim[d]);
            trn_int_put(y, d, x->dim[d]);
        }
    }
    return TRN_OK;
}
static trn_err sh_shape(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = trn_shape_vector(s->in[i].rank < 0 ? -1 : s->in[i].rank);
    return TRN_OK;
}

static trn_err k_size(trn_kctx *k)
{
    trn_dtype t = trn_attr_type(k->node, "out_type");
    int64_t n = trn_in(k, 0)->count;
    TRN_CHECK_ARG(t == TRN_INT64 || n <= INT32_MAX, "%lld elements do not fit int32", (long long)n);
    trn_tensor *y;
    TRN_TRY(scalar_out(&y, k, 0, t));
    trn_int_put(y, 0, n);
    return TRN_OK;
}

static trn_err k_rank(trn_kctx *k)
{
    trn_tensor *y;
    TRN_TRY(scalar_out(&y, k, 0, TRN_INT32));
    trn_int_put(y, 0, trn_in(k, 0)->shape.rank);
    return TRN_OK;
}

static trn_err reshape_to(trn_shape *out, const trn_tensor *want, const trn_shape *x)
{
    int64_t count;
    TRN_TRY(trn_count_checked(&count, x));
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(want) || trn_is_scalar(want), "sizes input must be 1-D, not of shape %s", trn_shape_text(text, &want->shape));
    TRN_CHECK_ARG(want->count <= TRN_MAX_RANK, "too many dimensions: a shape has at most %d, not %lld", TRN_MAX_RANK, (long long)want->count);
    trn_shape s = {.rank = (int)want->count};
    int hole = -1;
    int64_t known = 1;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = trn_int_at(want, i);
        if (s.dim[i] == -1) {
            TRN_CHECK_ARG(hole < 0, "Only one input size may be -1, not both %d and %d", hole, i);
            hole = i;
            continue;
        }
        TRN_CHECK_ARG(s.dim[i] >= 0, "Size %d must be non-negative, not %lld", i, (long long)s.dim[i]);
        TRN_CHECK_ARG(!__builtin_mul_overflow(known, s.dim[i], &known), "the requested shape has too many elements");
    }
    if (hole >= 0 && known == 0) {
        /* Of an empty tensor: compare what is left without the zeros. */
        TRN_CHECK_ARG(count == 0, "a tensor with %lld values cannot be reshaped to an empty one", (long long)count);
        int64_t have = 1, asked = 1;
        bool over = false;
        for (int i = 0; i < x->rank; i++)
            over |= __builtin_mul_overflow(have, x->dim[i] ? x->dim[i] : 1, &have);
        for (int i = 0; i < s.rank; i++)
            over |= __builtin_mul_overflow(asked, s.dim[i] > 0 ? s.dim[i] : 1, &asked);
        TRN_CHECK_ARG(!over, "the requested shape has too many elements");
        s.dim[hole] = have / asked;
    } else if (hole >= 0) {
        TRN_CHECK_ARG(count % known == 0, "a tensor with %lld values cannot be reshaped: the requested shape requires a multiple of %lld",
                      (long long)count, (long long)known);
        s.dim[hole] = count / known;
        known = count;
    }
    TRN_CHECK_ARG(known == count, "Input to reshape is a tensor with %lld values, but the requested shape has %lld", (long long)count, (long long)known);
    *out = s;
    return TRN_OK;
}

static trn_err k_reshape(trn_kctx *k)
{
    trn_shape s;
    TRN_TRY(reshape_to(&s, trn_in(k, 1), &trn_in(k, 0)->shape));
    return out_view(k, 0, trn_in(k, 0), &s);
}
static trn_err sh_reshape(trn_shctx *s)
{
    bool known = trn_sh_value(&s->out[0], s, 1);
    if (!known || !trn_shape_is_full(&s->in[0]))
        return TRN_OK;
    return reshape_to(&s->out[0], s->value[1], &s->in[0]);
}

static trn_err expand_at(trn_shape *out, const trn_shape *x, int64_t dim)
{
    TRN_CHECK_ARG(x->rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    TRN_CHECK_ARG(dim >= -1 - x->rank && dim <= x->rank, "Tried to expand dim index %lld for tensor with %d dimensions.", (long long)dim, x->rank);
    int at = (int)(dim < 0 ? dim + x->rank + 1 : dim);
    trn_shape s = {.rank = x->rank + 1};
    for (int i = 0, j = 0; i < s.rank; i++)
        s.dim[i] = i == at ? 1 : x->dim[j++];
    *out = s;
    return TRN_OK;
}

static trn_err k_expand_dims(trn_kctx *k)
{
    trn_shape s;
    TRN_CHECK_ARG(trn_in(k, 1)->count == 1, "'dim' must be a tensor with a single value, not %lld", (long long)trn_in(k, 1)->count);
    TRN_TRY(expand_at(&s, &trn_in(k, 0)->shape, trn_int_at(trn_in(k, 1), 0)));
    return out_view(k, 0, trn_in(k, 0), &s);
}
static trn_err sh_expand_dims(trn_shctx *s)
{
    const trn_tensor *v = s->value ? s->value[1] : NULL;
    s->out[0] = trn_shape_unknown();
    if (s->in[0].rank < 0)
        return TRN_OK;
    if (v && v->count == 1)
        return expand_at(&s->out[0], &s->in[0], trn_int_at(v, 0));
    if (s->in[0].rank < TRN_MAX_RANK) {
        s->out[0].rank = s->in[0].rank + 1;
        for (int i = 0; i < s->out[0].rank; i++)
            s->out[0].dim[i] = -1;
    }
    return TRN_OK;
}

static trn_err squeeze_dims(trn_shape *out, const trn_shape *x, const trn_node *node)
{
    const trn_attr *a = trn_node_attr(node, "squeeze_dims");
    bool drop[TRN_MAX_RANK] = {false};
    for (int i = 0; a && i < a->n; i++) {
        int at;
        TRN_TRY(trn_axis(&at, a->list[i].i, x->rank, "squeeze dimension"));
        TRN_CHECK_ARG(x->dim[at] == 1 || x->dim[at] < 0, "Can not squeeze dim[%d], expected a dimension of 1, got %lld", at, (long long)x->dim[at]);
        drop[at] = true;
    }
    trn_shape s = {.rank = 0};
    for (int i = 0; i < x->rank; i++) {
        if (a && a->n ? drop[i] : x->dim[i] == 1)
            continue;
        if ((!a || !a->n) && x->dim[i] < 0) { /* may or may not be 1: even the rank is open */
            *out = trn_shape_unknown();
            return TRN_OK;
        }
        s.dim[s.rank++] = x->dim[i];
    }
    *out = s;
    return TRN_OK;
}
static trn_err k_squeeze(trn_kctx *k)
{
    trn_shape s;
    TRN_TRY(squeeze_dims(&s, &trn_in(k, 0)->shape, k->node));
    return out_view(k, 0, trn_in(k, 0), &s);
}
static trn_err sh_squeeze(trn_shctx *s)
{
    s->out[0] = trn_shape_unknown();
    return s->in[0].rank < 0 ? TRN_OK : squeeze_dims(&s->out[0], &s->in[0], s->node);
}

static trn_err k_ensure_shape(trn_kctx *k)
{
    const trn_shape *want = trn_attr_shape(k->node, "shape");
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_compatible(&trn_in(k, 0)->shape, want), "Shape of tensor %s is not compatible with expected shape %s.",
                  trn_shape_text(a, &trn_in(k, 0)->shape), trn_shape_text(b, want));
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}
static trn_err sh_ensure_shape(trn_shctx *s) { return trn_sh_meet(&s->out[0], &s->in[0], trn_attr_shape(s->node, "shape")); }

/* ---- constants ------------------------------------------------------------------------------------------------------ */

static trn_err k_fill(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(v->count == 1 && v->shape.rank <= 1, "value must be a scalar, got shape %s", trn_shape_text(text, &v->shape));
    trn_shape s;
    TRN_TRY(trn_shape_from(&s, trn_in(k, 0), true));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, v->dtype, &s));
    return trn_fill_elems(y, 0, y->count, v, 0);
}

static trn_err k_zeros_like(trn_kctx *k)
{
    trn_tensor *y;
    const trn_tensor *x = trn_in(k, 0);
    if (x->dtype == TRN_VARIANT) {
        TRN_TRY(trn_tensor_zeros_like(&y, x));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    trn_zero_elems(y, 0, y->count);
    return TRN_OK;
}

static trn_err k_ones_like(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    if (!y->count)
        return TRN_OK;
    size_t size = trn_dtype_size(x->dtype);
    memset(y->data, 0, size);
    switch (x->dtype) {
    case TRN_FLOAT:
    case TRN_COMPLEX64: *TRN_DATA_MUT(y, float) = 1; break;
    case TRN_DOUBLE:
    case TRN_COMPLEX128: *TRN_DATA_MUT(y, double) = 1; break;
    case TRN_HALF: *TRN_DATA_MUT(y, uint16_t) = 0x3c00; break;
    case TRN_BFLOAT16: *TRN_DATA_MUT(y, uint16_t) = 0x3f80; break;
    case TRN_INT16:
    case TRN_UINT16: *TRN_DATA_MUT(y, uint16_t) = 1; break;
    case TRN_INT32:
    case TRN_UINT32: *TRN_DATA_MUT(y, uint32_t) = 1; break;
    case TRN_INT64:
    case TRN_UINT64: *TRN_DATA_MUT(y, uint64_t) = 1; break;
    default: *TRN_DATA_MUT(y, uint8_t) = 1; break;
    }
    return trn_fill_elems(y, 1, y->count - 1, y, 0);
}

/* Float range elements are start + i·delta, each rounded once. */
static trn_err k_range(trn_kctx *k)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1), *d = trn_in(k, 2);
    static const char *const names[] = {"start", "limit", "delta"};
    for (int i = 0; i < 3; i++)
        TRN_CHECK_ARG(trn_in(k, i)->count == 1 && trn_in(k, i)->shape.rank <= 1, "%s must be a scalar", names[i]);
    trn_tensor *y;
    trn_shape s = {.rank = 1};
    if (a->dtype == TRN_INT32 || a->dtype == TRN_INT64) {
        int64_t from = trn_int_at(a, 0), to = trn_int_at(b, 0), step = trn_int_at(d, 0);
        TRN_CHECK_ARG(step != 0, "Requires delta != 0");
        TRN_CHECK_ARG(step > 0 ? from <= to : from >= to, "Requires start %s limit when delta %s 0: %lld to %lld", step > 0 ? "<=" : ">=",
                      step > 0 ? ">" : "<", (long long)from, (long long)to);
        uint64_t span = step > 0 ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
        uint64_t by = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
        uint64_t n = span / by + (span % by != 0);
        TRN_CHECK_ARG(n <= INT64_MAX, "Requires a size that fits: (limit - start) / delta is %llu", (unsigned long long)n);
        if (n > (uint64_t)INT64_MAX / 16) /* as for all that no memory holds */
            return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a range of %llu elements", (unsigned long long)n);
        s.dim[0] = (int64_t)n;
        TRN_TRY(trn_out_new(&y, k, 0, a->dtype, &s));
        for (int64_t i = 0; i < y->count; i++)
            trn_int_put(y, i, (int64_t)((uint64_t)from + (uint64_t)i * (uint64_t)step));
        return TRN_OK;
    }
    bool f = a->dtype == TRN_FLOAT;
    double from = f ? (double)*TRN_DATA(a, float) : *TRN_DATA(a, double), to = f ? (double)*TRN_DATA(b, float) : *TRN_DATA(b, double),
           step = f ? (double)*TRN_DATA(d, float) : *TRN_DATA(d, double);
    TRN_CHECK_ARG(step != 0, "Requires delta != 0");
    TRN_CHECK_ARG(!(step > 0 ? from > to : from < to), "Requires start %s limit when delta %s 0: %g to %g", step > 0 ? "<=" : ">=",
                  step > 0 ? ">" : "<", from, to);
    double n = ceil(fabs((to - from) / step));
    if (f) /* in the type's own precision, as the number of elements depends on it */
        n = (double)ceilf(fabsf((*TRN_DATA(b, float) - *TRN_DATA(a, float)) / *TRN_DATA(d, float)));
    TRN_CHECK_ARG(n < 4611686018427387904.0, "Requires a size that fits: (limit - start) / delta is %g", n);
    s.dim[0] = (int64_t)n;
    TRN_TRY(trn_out_new(&y, k, 0, a->dtype, &s));
    for (int64_t i = 0; i < y->count; i++)
        if (f)
            TRN_DATA_MUT(y, float)[i] = *TRN_DATA(a, float) + (float)i * *TRN_DATA(d, float);
        else
            TRN_DATA_MUT(y, double)[i] = from + (double)i * step;
    return TRN_OK;
}
static trn_err sh_range(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(-1);
    const trn_tensor *const *v = s->value;
    if (!v || !v[0] || !v[1] || !v[2] || (v[0]->dtype != TRN_INT32 && v[0]->dtype != TRN_INT64) || v[0]->count != 1 || v[1]->count != 1 ||
        v[2]->count != 1)
        return TRN_OK;
    int64_t from = trn_int_at(v[0], 0), to = trn_int_at(v[1], 0), step = trn_int_at(v[2], 0), span;
    if (step == 0 || step == INT64_MIN || __builtin_sub_overflow(to, from, &span) || (span > 0) != (step > 0))
        return TRN_OK;
    s->out[0].dim[0] = span / step + (span % step != 0);
    return TRN_OK;
}

static trn_err k_linspace(trn_kctx *k)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    for (int i = 0; i < 3; i++)
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, i)), "start, stop and num must be scalars");
    int64_t n = trn_int_at(trn_in(k, 2), 0);
    TRN_CHECK_ARG(n > 0, "Requires num > 0: %lld", (long long)n);
    trn_shape s = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, a->dtype, &s));
    if (a->dtype == TRN_FLOAT) {
        float from = *TRN_DATA(a, float), to = *TRN_DATA(b, float), step = n > 1 ? (to - from) / (float)(n - 1) : 0;
        for (int64_t i = 0; i < n; i++)
            TRN_DATA_MUT(y, float)[i] = i && i == n - 1 ? to : from + step * (float)i;
    } else {
        double from = *TRN_DATA(a, double), to = *TRN_DATA(b, double), step = n > 1 ? (to - from) / (double)(n - 1) : 0;
        for (int64_t i = 0; i < n; i++)
            TRN_DATA_MUT(y, double)[i] = i && i == n - 1 ? to : from + step * (double)i;
    }
    return TRN_OK;
}

/* ---- along an axis: [outer, n, inner] ---------------------------------------------------------------------------------- */

/* Elements of dims from … to - 1; 0 when the whole shape has none. */
static int64_t span(const trn_shape *s, int from, int to)
{
    for (int i = 0; i < s->rank; i++)
        if (!s->dim[i])
            return 0;
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= s->dim[i];
    return n;
}

/* Copies columns: `rows` rows of `n` elements, row r from src[r * src_stride + src_at] to dst[r * dst_stride + dst_at]. */
static trn_err copy_cols(trn_kctx *k, trn_tensor *dst, int64_t dst_at, int64_t dst_stride, const trn_tensor *src, int64_t src_at, int64_t src_stride,
                         int64_t rows, int64_t n)
{
    return trn_block_copy(k, dst, dst_at, (int64_t[]){dst_stride, 1}, src, src_at, (int64_t[]){src_stride, 1}, (int64_t[]){rows, n}, 2);
}

static trn_err k_pack(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t axis = trn_attr_int(k->node, "axis");
    int axes = x->shape.rank + 1;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(axes <= TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    TRN_CHECK_ARG(axis >= -axes && axis < axes, "axis = %lld not in [%d, %d)", (long long)axis, -axes, axes);
    axis += axis < 0 ? axes : 0;
    for (int i = 1; i < k->n_in; i++)
        TRN_CHECK_ARG(trn_shape_eq(&x->shape, &trn_in(k, i)->shape), "Shapes of all inputs must match: values[0].shape = %s != values[%d].shape = %s",
                      trn_shape_text(a, &x->shape), i, trn_shape_text(b, &trn_in(k, i)->shape));
    trn_shape s;
    TRN_TRY(expand_at(&s, &x->shape, axis));
    s.dim[axis] = k->n_in;
    if (k->n_in == 1)
        return out_view(k, 0, x, &s);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    int64_t outer = span(&x->shape, 0, (int)axis), inner = span(&x->shape, (int)axis, x->shape.rank);
    for (int i = 0; i < k->n_in; i++)
        TRN_TRY(copy_cols(k, y, i * inner, k->n_in * inner, trn_in(k, i), 0, inner, outer, inner));
    return TRN_OK;
}
static trn_err sh_pack(trn_shctx *s)
{
    trn_shape r = trn_shape_unknown();
    for (int i = 0; i < s->n_in; i++)
        TRN_TRY(trn_sh_meet(&r, &r, &s->in[i]));
    s->out[0] = trn_shape_unknown();
    if (r.rank < 0)
        return TRN_OK;
    int64_t axis = trn_attr_int(s->node, "axis");
    TRN_TRY(expand_at(&s->out[0], &r, axis));
    s->out[0].dim[axis < 0 ? axis + r.rank + 1 : axis] = s->n_in;
    return TRN_OK;
}

static trn_err k_unpack(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int axis;
    TRN_TRY(trn_axis(&axis, trn_attr_int(k->node, "axis"), x->shape.rank, "axis"));
    TRN_CHECK_ARG(x->shape.dim[axis] == k->n_out, "Input shape axis %d must equal %d, got %lld", axis, k->n_out, (long long)x->shape.dim[axis]);
    trn_shape s = {.rank = x->shape.rank - 1};
    for (int i = 0, j = 0; i < x->shape.rank; i++)
        if (i != axis)
            s.dim[j++] = x->shape.dim[i];
    int64_t outer = span(&x->shape, 0, axis), inner = span(&x->shape, axis + 1, x->shape.rank);
    for (int i = 0; i < k->n_out; i++) {
        trn_tensor *y;
        if (outer == 1) {
            TRN_TRY(trn_tensor_view(&y, x, i * inner, &s));
            trn_out_set(k, i, y);
            continue;
        }
        TRN_TRY(trn_out_new(&y, k, i, x->dtype, &s));
        TRN_TRY(copy_cols(k, y, 0, inner, x, i * inner, k->n_out * inner, outer, inner));
    }
    return TRN_OK;
}
static trn_err sh_unpack(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    int axis;
    if (x->rank < 0)
        return trn_sh_unknown(s);
    TRN_TRY(trn_axis(&axis, trn_attr_int(s->node, "axis"), x->rank, "axis"));
    trn_shape r = {.rank = x->rank - 1};
    for (int i = 0, j = 0; i < x->rank; i++)
        if (i != axis)
            r.dim[j++] = x->dim[i];
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = r;
    return TRN_OK;
}

static trn_err concat(trn_kctx *k, const trn_tensor *dim, int first, int n)
{
    TRN_CHECK_ARG(dim->count == 1 && dim->shape.rank <= 1, "Concat dim tensor should be a scalar integer, but got rank %d", dim->shape.rank);
    const trn_tensor *x = trn_in(k, first);
    int64_t axis = trn_int_at(dim, 0), rank = x->shape.rank;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(trn_in(k, first + i)->shape.rank > 0, "ConcatOp : Can't concatenate scalars (use tf.stack instead)");
    TRN_CHECK_ARG(axis >= -rank && axis < rank, "ConcatOp : Expected concatenating dimensions in the range [%lld, %lld), but got %lld",
                  -(long long)rank, (long long)rank, (long long)axis);
    axis += axis < 0 ? rank : 0;
    trn_shape s = x->shape;
    for (int i = 1; i < n; i++) {
        const trn_shape *q = &trn_in(k, first + i)->shape;
        TRN_CHECK_ARG(q->rank == rank, "ConcatOp : Ranks of all input tensors should match: shape[0] = %s vs. shape[%d] = %s", trn_shape_text(a, &x->shape), i,
                      trn_shape_text(b, q));
        for (int d = 0; d < rank; d++)
            TRN_CHECK_ARG(d == axis || q->dim[d] == s.dim[d], "ConcatOp : Dimension %d in both shapes must be equal: shape[0] = %s vs. shape[%d] = %s", d,
                          trn_shape_text(a, &x->shape), i, trn_shape_text(b, q));
        TRN_CHECK_ARG(!__builtin_add_overflow(s.dim[axis], q->dim[axis], &s.dim[axis]), "the result has too many elements");
    }
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    int64_t outer = span(&s, 0, (int)axis), inner = span(&s, (int)axis + 1, (int)rank), at = 0;
    for (int i = 0; i < n; i++) {
        int64_t w = trn_in(k, first + i)->shape.dim[axis] * inner;
        TRN_TRY(copy_cols(k, y, at, s.dim[axis] * inner, trn_in(k, first + i), 0, w, outer, w));
        at += w;
    }
    return TRN_OK;
}
static trn_err k_concat(trn_kctx *k) { return concat(k, trn_in(k, 0), 1, k->n_in - 1); }
static trn_err k_concat_v2(trn_kctx *k) { return concat(k, trn_in(k, k->n_in - 1), 0, k->n_in - 1); }
static trn_err sh_concat_of(trn_shctx *s, int dim, int first, int n)
{
    const trn_tensor *v = s->value ? s->value[dim] : NULL;
    trn_shape r = trn_shape_unknown();
    for (int i = 0; i < n; i++)
        if (s->in[first + i].rank >= 0)
            r = s->in[first + i];
    s->out[0] = trn_shape_unknown();
    if (r.rank < 0)
        return TRN_OK;
    int axis = -1;
    if (v && v->count == 1)
        TRN_TRY(trn_axis(&axis, trn_int_at(v, 0), r.rank, "concat dimension"));
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        const trn_shape *q = &s->in[first + i];
        if (q->rank < 0) {
            sum = -1;
            continue;
        }
        TRN_CHECK_ARG(q->rank == r.rank, "inputs of rank %d and %d cannot be concatenated", r.rank, q->rank);
        for (int d = 0; d < r.rank; d++) {
            if (axis < 0) {
                r.dim[d] = -1;
            } else if (d == axis) {
                if (sum >= 0 && (q->dim[d] < 0 || __builtin_add_overflow(sum, q->dim[d], &sum)))
                    sum = -1;
            } else if (r.dim[d] < 0) {
                r.dim[d] = q->dim[d];
            } else {
                TRN_CHECK_ARG(q->dim[d] < 0 || q->dim[d] == r.dim[d], "dimension %d differs: %lld and %lld", d, (long long)r.dim[d], (long long)q->dim[d]);
            }
        }
    }
    if (axis >= 0)
        r.dim[axis] = sum;
    s->out[0] = r;
    return TRN_OK;
}
static trn_err sh_concat(trn_shctx *s) { return sh_concat_of(s, 0, 1, s->n_in - 1); }
static trn_err sh_concat_v2(trn_shctx *s) { return sh_concat_of(s, s->n_in - 1, 0, s->n_in - 1); }

/* "[2 7 10]": a vector of sizes as text. */
static const char *ints_text(char buf[static TRN_SHAPE_TEXT], const trn_tensor *t)
{
    size_t n = 0;
    buf[n++] = '[';
    for (int64_t i = 0; i < t->count && n + 24 < TRN_SHAPE_TEXT; i++)
        n += (size_t)snprintf(buf + n, TRN_SHAPE_TEXT - n, "%s%lld", i ? " " : "", (long long)trn_int_at(t, i));
    buf[n++] = ']';
    buf[n] = 0;
    return buf;
}
static trn_err k_concat_offset(trn_kctx *k)
{
    const trn_tensor *dim = trn_in(k, 0), *x = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_scalar(dim), "Concat dim tensor should be a scalar integer, but got rank %d", dim->shape.rank);
    TRN_CHECK_ARG(trn_is_vector(x), "input 0 should be a vector");
    int64_t axis = trn_int_at(dim, 0), rank = x->count;
    TRN_CHECK_ARG(axis >= -rank && axis < rank, "Concat dim is out of range: %lld vs. %lld", (long long)axis, (long long)rank);
    axis += axis < 0 ? rank : 0;
    uint64_t offset = 0;
    for (int i = 0; i < k->n_out; i++) {
        const trn_tensor *q = trn_in(k, 1 + i);
        TRN_CHECK_ARG(trn_is_vector(q) && q->count == rank, "input %d should contain %lld elements in one dimension", i, (long long)rank);
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, i, q->dtype, &q->shape));
        for (int64_t d = 0; d < rank; d++) {
            if (d == axis) {
                trn_int_put(y, d, (int64_t)offset);
                offset += (uint64_t)trn_int_at(q, d);
            } else {
                if (trn_int_at(q, d) != trn_int_at(x, d)) {
                    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
                    return TRN_BAD("All dimensions except %lld must match. Input %d has shape %s and doesn't match input 0 with shape %s.", (long long)axis, i,
                                   ints_text(a, q), ints_text(b, x));
                }
                trn_int_put(y, d, 0);
            }
        }
    }
    return TRN_OK;
}
static trn_err sh_concat_offset(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = s->in[1 + i];
    return TRN_OK;
}

/* Pieces of `size[i]` along the axis. */
static trn_err split_into(trn_kctx *k, const trn_tensor *x, int axis, const int64_t *size)
{
    int64_t outer = span(&x->shape, 0, axis), inner = span(&x->shape, axis + 1, x->shape.rank), at = 0;
    for (int i = 0; i < k->n_out; i++) {
        trn_shape s = x->shape;
        s.dim[axis] = size[i];
        trn_tensor *y;
        if (outer == 1) {
            TRN_TRY(trn_tensor_view(&y, x, at, &s));
            trn_out_set(k, i, y);
        } else {
            TRN_TRY(trn_out_new(&y, k, i, x->dtype, &s));
            TRN_TRY(copy_cols(k, y, 0, size[i] * inner, x, at, x->shape.dim[axis] * inner, outer, size[i] * inner));
        }
        at += size[i] * inner;
    }
    return TRN_OK;
}

static trn_err split_axis(int *axis, const trn_tensor *dim, const trn_tensor *x)
{
    TRN_CHECK_ARG(dim->count == 1, "split_dim must have exactly one element, not %lld", (long long)dim->count);
    return trn_axis(axis, trn_int_at(dim, 0), x->shape.rank, "split_dim");
}

static trn_err k_split(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 1);
    int axis;
    TRN_TRY(split_axis(&axis, trn_in(k, 0), x));
    int64_t n = x->shape.dim[axis];
    TRN_CHECK_ARG(n % k->n_out == 0, "Number of ways to split should evenly divide the split dimension, but got split_dim %d (size = %lld) and num_split %d",
                  axis, (long long)n, k->n_out);
    if (k->n_out == 1) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    int64_t *size = malloc(sizeof *size * (size_t)k->n_out);
    if (!size)
        return trn_err_oom();
    for (int i = 0; i < k->n_out; i++)
        size[i] = n / k->n_out;
    trn_err e = split_into(k, x, axis, size);
    free(size);
    return e;
}
static trn_err sh_split(trn_shctx *s)
{
    const trn_shape *x = &s->in[1];
    const trn_tensor *v = s->value ? s->value[0] : NULL;
    trn_shape r = *x;
    int axis = -1;
    if (x->rank >= 0 && v && v->count == 1)
        TRN_TRY(trn_axis(&axis, trn_int_at(v, 0), x->rank, "split_dim"));
    for (int d = 0; d < r.rank; d++)
        if (axis < 0)
            r.dim[d] = -1;
    if (axis >= 0 && r.dim[axis] >= 0) {
        TRN_CHECK_ARG(r.dim[axis] % s->n_out == 0, "%d pieces do not divide dimension %d of size %lld", s->n_out, axis, (long long)r.dim[axis]);
        r.dim[axis] /= s->n_out;
    }
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = r;
    return TRN_OK;
}

static trn_err k_split_v(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *sizes = trn_in(k, 1);
    int axis;
    TRN_TRY(split_axis(&axis, trn_in(k, 2), x));
    TRN_CHECK_ARG(trn_is_vector(sizes) && sizes->count == k->n_out, "size_splits must be a vector of %d elements", k->n_out);
    int64_t *size = malloc(sizeof *size * (size_t)k->n_out);
    if (!size)
        return trn_err_oom();
    int64_t sum = 0, n = x->shape.dim[axis];
    int hole = -1;
    trn_err e = TRN_OK;
    for (int i = 0; i < k->n_out && !e; i++) {
        size[i] = trn_int_at(sizes, i);
        if (size[i] == -1 && hole < 0)
            hole = i;
        else if (size[i] < 0)
            e = TRN_BAD("Split size at index %d must be >= 0. Got: %lld", i, (long long)size[i]);
        else if (__builtin_add_overflow(sum, size[i], &sum))
            e = TRN_BAD("split sizes are too large");
    }
    if (!e && (hole >= 0 ? sum > n : sum != n))
        e = TRN_BAD("Determined shape must either match input shape along split_dim exactly if fully specified, or be less than the size of the input along split_dim "
                    "if not fully specified.  Got: %lld",
                    (long long)sum);
    if (!e) {
        if (hole >= 0)
            size[hole] = n - sum;
        e = split_into(k, x, axis, size);
    }
    free(size);
    return e;
}
static trn_err sh_split_v(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++) {
        s->out[i] = s->in[0];
        for (int d = 0; d < s->out[i].rank; d++)
            s->out[i].dim[d] = -1;
    }
    return TRN_OK;
}

#define ANY1 "input:T -> output:"

const trn_op trn_ops_array[] = {
    {"Shape", ANY1 "out_type; T:any, out_type:i32|i64=i32", sh_shape, k_shape, TRN_OP_CHEAP},
    {"ShapeN", "input:N*T -> output:N*out_type; N:int>=1, T:any, out_type:i32|i64=i32", sh_shape, k_shape, TRN_OP_CHEAP},
    {"Size", ANY1 "out_type; T:any, out_type:i32|i64=i32", trn_sh_scalar, k_size, TRN_OP_CHEAP},
    {"Rank", ANY1 "i32; T:any", trn_sh_scalar, k_rank, TRN_OP_CHEAP},
    {"Reshape", "tensor:T, shape:Tshape -> output:T; T:any, Tshape:i32|i64=i32", sh_reshape, k_reshape, TRN_OP_CHEAP},
    {"ExpandDims", "input:T, dim:Tdim -> output:T; T:any, Tdim:i32|i64=i32", sh_expand_dims, k_expand_dims, TRN_OP_CHEAP},
    {"Squeeze", "input:T -> output:T; T:any, squeeze_dims:list(int)>=0=[]", sh_squeeze, k_squeeze, TRN_OP_CHEAP},
    {"EnsureShape", "input:T -> output:T; shape:shape, T:any", sh_ensure_shape, k_ensure_shape, TRN_OP_CHEAP},
    {"Fill", "dims:index_type, value:T -> output:T; T:any, index_type:i32|i64=i32", trn_sh_in0_shape, k_fill, 0},
    {"ZerosLike", "x:T -> y:T; T:any", trn_sh_same, k_zeros_like, 0},
    {"OnesLike", "x:T -> y:T; T:num|bool", trn_sh_same, k_ones_like, 0},
    {"Range", "start:Tidx, limit:Tidx, delta:Tidx -> output:Tidx; Tidx:f32|f64|i32|i64=i32", sh_range, k_range, 0},
    {"LinSpace", "start:T, stop:T, num:Tidx -> output:T; T:f32|f64, Tidx:i32|i64=i32", trn_sh_vector, k_linspace, 0},
    {"Pack", "values:N*T -> output:T; N:int>=1, T:any, axis:int=0", sh_pack, k_pack, 0},
    {"Unpack", "value:T -> output:num*T; num:int>=0, T:any, axis:int=0", sh_unpack, k_unpack, 0},
    {"Concat", "concat_dim:i32, values:N*T -> output:T; N:int>=2, T:any", sh_concat, k_concat, 0},
    {"ConcatV2", "values:N*T, axis:Tidx -> output:T; N:int>=2, T:any, Tidx:i32|i64=i32", sh_concat_v2, k_concat_v2, 0},
    {"ConcatOffset", "concat_dim:i32, shape:N*shape_type -> offset:N*shape_type; N:int>=2, shape_type:i32|i64=i32", sh_concat_offset, k_concat_offset,
     TRN_OP_CHEAP},
    {"Split", "split_dim:i32, value:T -> output:num_split*T; num_split:int>=1, T:any", sh_split, k_split, 0},
    {"SplitV", "value:T, size_splits:Tlen, split_dim:i32 -> output:num_split*T; num_split:int>=1, T:any, Tlen:i8|i32|i64=i64", sh_split_v, k_split_v,
     0},
    {0},
};
