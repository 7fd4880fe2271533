/* Slices: parts of a tensor by position, and their gradients. */
#include "ops/kern.h"

/* ---- Slice ----------------------------------------------------------------------------------------------------------- */

static trn_err slice_spec(int64_t *begin, trn_shape *size, const trn_shape *x, const trn_tensor *b, const trn_tensor *z)
{
    TRN_CHECK_ARG(trn_is_vector(b) && trn_is_vector(z) && b->count == x->rank && z->count == x->rank,
                  "Expected begin and size arguments to be 1-D tensors of size %d, but got %lld and %lld elements instead.", x->rank,
                  (long long)b->count, (long long)z->count);
    size->rank = x->rank;
    for (int i = 0; i < x->rank; i++) {
        int64_t at = trn_int_at(b, i), n = trn_int_at(z, i), d = x->dim[i];
        TRN_CHECK_ARG(at >= 0 && at <= d, "Expected begin[%d] in [0, %lld], but got %lld", i, (long long)d, (long long)at);
        if (n == -1)
            n = d - at;
        TRN_CHECK_ARG(n >= 0 && n <= d - at, "Expected size[%d] in [0, %lld], but got %lld", i, (long long)(d - at), (long long)n);
        begin[i] = at;
        size->dim[i] = n;
    }
    return TRN_OK;
}

static trn_err k_slice(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t begin[TRN_MAX_RANK], stride[TRN_MAX_RANK], at = 0;
    trn_shape s;
    TRN_TRY(slice_spec(begin, &s, &x->shape, trn_in(k, 1), trn_in(k, 2)));
    trn_row_strides(stride, &x->shape);
    bool rest_whole = true; /* only the first dim is cut: a view */
    for (int i = 0; i < s.rank; i++) {
        at += x->count ? begin[i] * stride[i] : 0;
        rest_whole = rest_whole && (i == 0 || s.dim[i] == x->shape.dim[i]);
    }
    trn_tensor *y;
    if (rest_whole) {
        int64_t n;
        TRN_TRY(trn_count_checked(&n, &s));
        TRN_TRY(trn_tensor_view(&y, x, n ? at : 0, &s));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    int64_t ds[TRN_MAX_RANK];
    trn_row_strides(ds, &s);
    return trn_block_copy(k, y, 0, ds, x, at, stride, s.dim, s.rank);
}
static trn_err sh_slice(trn_shctx *s)
{
    const trn_tensor *b = s->value ? s->value[1] : NULL, *z = s->value ? s->value[2] : NULL;
    int64_t begin[TRN_MAX_RANK];
    if (b && z && trn_shape_is_full(&s->in[0]))
        return slice_spec(begin, &s->out[0], &s->in[0], b, z);
    trn_sh_value(&s->out[0], s, 2); /* -1 means "the rest", so unknown here: just what trn_sh_value makes of it */
    if (s->out[0].rank < 0 && s->in[0].rank >= 0) {
        s->out[0].rank = s->in[0].rank;
        for (int i = 0; i < s->out[0].rank; i++)
            s->out[0].dim[i] = -1;
    }
    return TRN_OK;
}

/* ---- StridedSlice ------------------------------------------------------------------------------------------------------ */

/* The spec's entries are "sparse": an ellipsis stands for as many dims as needed, new axes for none. */
trn_err trn_strided_make(trn_strided *out, const trn_node *n, const trn_shape *x, const trn_tensor *begin, const trn_tensor *end,
                         const trn_tensor *strides)
{
    TRN_CHECK_ARG(trn_is_vector(begin) && trn_is_vector(end) && trn_is_vector(strides) && begin->count == end->count && begin->count == strides->count &&
                      begin->count < 32,
                  "Expected begin, end, and strides to be 1D equal size tensors of fewer than 32 elements, but got %lld, %lld and %lld",
                  (long long)begin->count, (long long)end->count, (long long)strides->count);
    uint64_t begin_mask = (uint64_t)trn_attr_int(n, "begin_mask"), end_mask = (uint64_t)trn_attr_int(n, "end_mask"),
             ellipsis = (uint64_t)trn_attr_int(n, "ellipsis_mask"), new_axis = (uint64_t)trn_attr_int(n, "new_axis_mask"),
             shrink = (uint64_t)trn_attr_int(n, "shrink_axis_mask");
    TRN_CHECK_ARG((ellipsis & (ellipsis - 1)) == 0, "Multiple ellipses in slice spec not allowed");
    int entries = (int)begin->count, used = 0; /* dims that entries consume */
    bool has_ellipsis = false;
    for (int i = 0; i < entries; i++) {
        if (ellipsis >> i & 1)
            has_ellipsis = true;
        else if (!(new_axis >> i & 1))
            used++;
    }
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(used <= x->rank, "Index out of range using input dim %d; input has only %d dims (shape %s)", x->rank, x->rank, trn_shape_text(text, x));
    int fill = x->rank - used; /* dims taken whole */
    trn_strided r = {.out = {.rank = 0}, .whole = true};
    int d = 0;
    for (int i = 0; i <= entries; i++) {
        bool tail = i == entries;
        if (tail && has_ellipsis)
            break;
        if (tail || ellipsis >> i & 1) { /* without an ellipsis the rest comes at the end */
            for (int q = 0; q < fill; q++, d++) {
                r.stride[d] = 1;
                r.size[d] = x->dim[d];
                TRN_CHECK_ARG(r.out.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
                r.out.dim[r.out.rank++] = x->dim[d];
            }
            continue;
        }
        if (new_axis >> i & 1) {
            TRN_CHECK_ARG(r.out.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
            r.out.dim[r.out.rank++] = 1;
            continue;
        }
        int64_t b = trn_int_at(begin, i), e = trn_int_at(end, i), s = trn_int_at(strides, i), len = x->dim[d];
        TRN_CHECK_ARG(s != 0, "strides[%d] must be non-zero", i);
        if (shrink >> i & 1) {
            TRN_CHECK_ARG(s > 0, "only stride 1 allowed on non-range indexing.");
            int64_t at = b < 0 ? b + len : b; /* the masks do not count here; b >= INT64_MIN, len >= 0 */
            TRN_CHECK_ARG(at >= 0 && at < len, "slice index %lld of dimension %d out of bounds.", (long long)b, d);
            r.begin[d] = at;
            r.stride[d] = 1;
            r.size[d] = 1;
            r.whole = r.whole && len == 1;
            d++;
            continue;
        }
        /* Clamp to [0, len] walking up, [-1, len - 1] walking down. */
        int64_t lo = s > 0 ? 0 : -1, hi = s > 0 ? len : len - 1;
        b = begin_mask >> i & 1 ? (s > 0 ? lo : hi) : b < 0 ? b + len : b;
        e = end_mask >> i & 1 ? (s > 0 ? hi : lo) : e < 0 ? e + len : e;
        b = b < lo ? lo : b > hi ? hi : b;
        e = e < lo ? lo : e > hi ? hi : e;
        int64_t size = 0;
        if (s > 0 && e > b)
            size = (e - b - 1) / s + 1;
        else if (s < 0 && b > e)
            size = (b - e - 1) / (s == INT64_MIN ? INT64_MAX : -s) + 1;
        r.begin[d] = size ? b : 0;
        r.stride[d] = size > 1 ? s : 1;
        r.size[d] = size;
        r.whole = r.whole && size == len && r.begin[d] == 0 && r.stride[d] == 1;
        TRN_CHECK_ARG(r.out.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
        r.out.dim[r.out.rank++] = size;
        d++;
    }
    *out = r;
    return TRN_OK;
}

/* Element offset and strides of the walk over a tensor of shape x. */
static int64_t strided_walk(int64_t *ss, const trn_strided *r, const trn_shape *x)
{
    int64_t at = 0;
    bool none = false;
    for (int i = 0; i < x->rank; i++)
        none |= r->size[i] == 0;
    trn_row_strides(ss, x);
    for (int i = 0; i < x->rank; i++) {
        at += none ? 0 : r->begin[i] * ss[i];
        ss[i] = trn_times(ss[i], r->stride[i]); /* a stride that leads out of x is of a dim where one element is taken */
    }
    return at;
}

static trn_err k_strided_slice(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_strided r;
    TRN_TRY(trn_strided_make(&r, k->node, &x->shape, trn_in(k, 1), trn_in(k, 2), trn_in(k, 3)));
    trn_tensor *y;
    bool view = true; /* one contiguous piece: at most the first dim that is not 1 is cut */
    bool seen = false;
    int64_t count = 1;
    for (int i = 0; i < x->shape.rank; i++) {
        view = view && r.stride[i] == 1 && (!seen || r.size[i] == x->shape.dim[i]);
        seen = seen || r.size[i] != 1;
        count = trn_times(count, r.size[i]);
    }
    int64_t ss[TRN_MAX_RANK], at = strided_walk(ss, &r, &x->shape);
    if (view && count) {
        TRN_TRY(trn_tensor_view(&y, x, at, &r.out));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &r.out));
    trn_shape s = {.rank = x->shape.rank};
    memcpy(s.dim, r.size, sizeof r.size);
    int64_t ds[TRN_MAX_RANK];
    trn_row_strides(ds, &s);
    return trn_block_copy(k, y, 0, ds, x, at, ss, r.size, x->shape.rank);
}
static trn_err sh_strided_slice(trn_shctx *s)
{
    const trn_tensor *const *v = s->value;
    s->out[0] = trn_shape_unknown();
    if (!v || !v[1] || !v[2] || !v[3] || !trn_shape_is_full(&s->in[0]))
        return TRN_OK;
    trn_strided r;
    TRN_TRY(trn_strided_make(&r, s->node, &s->in[0], v[1], v[2], v[3]));
    s->out[0] = r.out;
    return TRN_OK;
}

/* dy laid where the slice of a zero tensor was taken. */
static trn_err scatter_slice(trn_kctx *k, trn_tensor *y, const trn_strided *r, const trn_tensor *dy)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&r->out, &dy->shape), "the slice has shape %s, the values for it %s", trn_shape_text(a, &r->out), trn_shape_text(b, &dy->shape));
    int64_t stride[TRN_MAX_RANK], at = strided_walk(stride, r, &y->shape), ss[TRN_MAX_RANK];
    trn_shape s = {.rank = y->shape.rank};
    memcpy(s.dim, r->size, sizeof r->size);
    trn_row_strides(ss, &s);
    return trn_block_copy(k, y, at, stride, dy, 0, ss, r->size, y->shape.rank);
}

static trn_err k_strided_slice_grad(trn_kctx *k)
{
    trn_shape s;
    trn_strided r;
    TRN_TRY(trn_shape_from(&s, trn_in(k, 0), false));
    TRN_TRY(trn_strided_make(&r, k->node, &s, trn_in(k, 1), trn_in(k, 2), trn_in(k, 3)));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 4)->dtype, &s));
    if (!r.whole)
        trn_zero_elems(y, 0, y->count);
    return scatter_slice(k, y, &r, trn_in(k, 4));
}

static trn_err k_strided_slice_update(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_strided r;
    TRN_TRY(trn_strided_make(&r, k->node, &x->shape, trn_in(k, 1), trn_in(k, 2), trn_in(k, 3)));
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    return scatter_slice(k, y, &r, trn_in(k, 4));
}

#define MASKS "begin_mask:int=0, end_mask:int=0, ellipsis_mask:int=0, new_axis_mask:int=0, shrink_axis_mask:int=0"

const trn_op trn_ops_slice[] = {
    {"Slice", "input:T, begin:Index, size:Index -> output:T; T:any, Index:i32|i64", sh_slice, k_slice, 0},
    {"StridedSlice", "input:T, begin:Index, end:Index, strides:Index -> output:T; T:any, Index:i16|i32|i64, " MASKS, sh_strided_slice, k_strided_slice,
     0},
    {"StridedSliceGrad", "shape:Index, begin:Index, end:Index, strides:Index, dy:T -> output:T; T:any, Index:i32|i64, " MASKS, trn_sh_in0_shape,
     k_strided_slice_grad, 0},
    {"TensorStridedSliceUpdate", "input:T, begin:Index, end:Index, strides:Index, value:T -> output:T; T:any, Index:i32|i64, " MASKS, trn_sh_same,
     k_strided_slice_update, 0},
    {0},
};
