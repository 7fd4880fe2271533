/* Elements from here to there: blocks of space to batch or depth and back, image patches, rolls, the gradient of mirrored padding. */
#include "ops/kern.h"

#include <stdlib.h>

/* ---- space and batch --------------------------------------------------------------------------------------------------- */

/* Space is n dims after the batch. Every offset inside a block is one strided copy between the two tensors. */
typedef struct blocks {
    int n;
    int64_t block[TRN_MAX_RANK], before[TRN_MAX_RANK], after[TRN_MAX_RANK];
    int64_t count; /* offsets in a block */
} blocks;

static trn_err set_block(blocks *b, int i, int64_t size)
{
    TRN_CHECK_ARG(size >= 1, "All values in block_shape must be positive, got value, %lld at index %d.",
                  (long long)size, i);
    b->block[i] = size;
    TRN_CHECK_ARG(!__builtin_mul_overflow(b->count, size, &b->count), "the blocks are too large");
    return TRN_OK;
}

/* what: "paddings" or "crops". */
static trn_err read_margins(blocks *b, const trn_kctx *k, int i, const char *what)
{
    const trn_tensor *m = trn_in(k, i);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(m->shape.rank == 2 && m->shape.dim[0] == b->n && m->shape.dim[1] == 2,
                  "%s should have shape [%d, 2] instead of %s", what, b->n, trn_shape_text(text, &m->shape));
    for (int d = 0; d < b->n; d++) {
        b->before[d] = trn_int_at(m, 2 * d);
        b->after[d] = trn_int_at(m, 2 * d + 1);
        TRN_CHECK_ARG(b->before[d] >= 0 && b->after[d] >= 0, "%s must be non-negative", what);
        TRN_CHECK_ARG(b->before[d] < INT64_C(1) << 40 && b->after[d] < INT64_C(1) << 40, "%s are too large", what);
    }
    return TRN_OK;
}

static trn_err read_blocks(blocks *b, const trn_kctx *k, const char *what)
{
    const trn_tensor *x = trn_in(k, 0);
    *b = (blocks){.count = 1};
    if (k->n_in == 2) { /* the older form: images, square blocks */
        TRN_CHECK_ARG(x->shape.rank == 4, "Input rank should be: 4 instead of: %d", x->shape.rank);
        b->n = 2;
        for (int d = 0; d < 2; d++)
            TRN_TRY(set_block(b, d, trn_attr_int(k->node, "block_size")));
        return read_margins(b, k, 1, what);
    }
    const trn_tensor *s = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_vector(s), "block_shape rank should be 1 instead of %d", s->shape.rank);
    TRN_CHECK_ARG(x->shape.rank >= 1 + s->count, "input rank should be >= %lld instead of %d",
                  (long long)(1 + s->count), x->shape.rank);
    b->n = (int)s->count;
    for (int d = 0; d < b->n; d++)
        TRN_TRY(set_block(b, d, trn_int_at(s, d)));
    return read_margins(b, k, 2, what);
}

/* Copies, for one offset per dim, between the tensor in space (sp) and the one in batches (bt). */
static trn_err copy_offset(trn_kctx *k, const blocks *b, trn_tensor *y, const trn_tensor *x, bool to_batch,
                           const int64_t *offset, int64_t index)
{
    const trn_tensor *sp = to_batch ? x : y, *bt = to_batch ? y : x;
    int64_t ss[TRN_MAX_RANK], bs[TRN_MAX_RANK], size[TRN_MAX_RANK], sat = 0, bat;
    trn_row_strides(ss, &sp->shape);
    trn_row_strides(bs, &bt->shape);
    int rank = sp->shape.rank;
    for (int d = 0; d < rank; d++)
        size[d] = sp->shape.dim[d];
    bat = index * sp->shape.dim[0] * bs[0];
    for (int d = 0; d < b->n; d++) {
        int64_t n = sp->shape.dim[d + 1], m = bt->shape.dim[d + 1], blk = b->block[d];
        int64_t first = offset[d] >= b->before[d]
                            ? 0
                            : (b->before[d] - offset[d] + blk - 1) / blk; /* first q with q·blk + offset inside */
        int64_t end = b->before[d] + n - offset[d];
        end = end <= 0 ? 0 : (end + blk - 1) / blk;
        end = end < m ? end : m;
        if (first >= end)
            return TRN_OK;
        size[d + 1] = end - first;
        sat += (first * blk + offset[d] - b->before[d]) * ss[d + 1];
        bat += first * bs[d + 1];
        ss[d + 1] *= blk;
    }
    return to_batch ? trn_block_copy(k, y, bat, bs, x, sat, ss, size, rank)
                    : trn_block_copy(k, y, sat, ss, x, bat, bs, size, rank);
}

static trn_err copy_blocks(trn_kctx *k, const blocks *b, trn_tensor *y, const trn_tensor *x, bool to_batch)
{
    if (!y->count || !x->count)
        return TRN_OK;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t offset[TRN_MAX_RANK], rest = i;
        for (int d = b->n - 1; d >= 0; d--) {
            offset[d] = rest % b->block[d];
            rest /= b->block[d];
        }
        TRN_TRY(copy_offset(k, b, y, x, to_batch, offset, i));
    }
    return TRN_OK;
}

static trn_err space_to_batch(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    blocks b;
    TRN_TRY(read_blocks(&b, k, "paddings"));
    trn_shape s = x->shape;
    TRN_CHECK_ARG(!__builtin_mul_overflow(s.dim[0], b.count, &s.dim[0]), "the result is too large");
    for (int d = 0; d < b.n; d++) {
        int64_t padded = x->shape.dim[d + 1] + b.before[d] + b.after[d];
        TRN_CHECK_ARG(padded % b.block[d] == 0, "padded_shape[%d]=%lld is not divisible by block_shape[%d]=%lld", d,
                      (long long)padded, d, (long long)b.block[d]);
        s.dim[d + 1] = padded / b.block[d];
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    return copy_blocks(k, &b, y, x, true);
}

static trn_err batch_to_space(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    blocks b;
    TRN_TRY(read_blocks(&b, k, "crops"));
    trn_shape s = x->shape;
    TRN_CHECK_ARG(s.dim[0] % b.count == 0,
                  "Input batch dimension (%lld) is not divisible by product of block sizes (%lld)", (long long)s.dim[0],
                  (long long)b.count);
    s.dim[0] /= b.count;
    for (int d = 0; d < b.n; d++) {
        int64_t full;
        TRN_CHECK_ARG(!__builtin_mul_overflow(x->shape.dim[d + 1], b.block[d], &full), "the result is too large");
        s.dim[d + 1] = full - b.before[d] - b.after[d];
        TRN_CHECK_ARG(s.dim[d + 1] >= 0, "cropped_shape[%d]=%lld must be non-negative", d, (long long)s.dim[d + 1]);
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    return copy_blocks(k, &b, y, x, false);
}

/* ---- space and depth --------------------------------------------------------------------------------------------------- */

static trn_err depth_args(int64_t *block, const trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    *block = trn_attr_int(k->node, "block_size");
    TRN_CHECK_ARG(!strcmp(trn_attr_str(k->node, "data_format"), "NHWC"),
                  "No OpKernel was registered to support Op '%s' with data_format %s on a CPU: only NHWC", k->node->op, trn_attr_str(k->node, "data_format"));
    TRN_CHECK_ARG(x->shape.rank == 4, "Input rank should be: 4 instead of: %d", x->shape.rank);
    TRN_CHECK_ARG(*block > 1 && *block <= INT32_MAX, "Block size should be > 1, but was: %lld", (long long)*block);
    return TRN_OK;
}

/* wide: [n, h·b, w·b, c]; deep: [n, h, w, b·b·c]. */
static trn_err copy_depth(trn_kctx *k, trn_tensor *y, const trn_tensor *x, bool to_depth, int64_t b)
{
    const trn_tensor *wide = to_depth ? x : y, *deep = to_depth ? y : x;
    int64_t c = wide->shape.dim[3], size[4] = {deep->shape.dim[0], deep->shape.dim[1], deep->shape.dim[2], c}, ws[4],
            ds[4];
    trn_row_strides(ws, &wide->shape);
    trn_row_strides(ds, &deep->shape);
    if (!y->count)
        return TRN_OK;
    int64_t row = ws[1], col = ws[2];
    ws[1] *= b;
    ws[2] *= b;
    for (int64_t i = 0; i < b; i++)
        for (int64_t j = 0; j < b; j++) {
            int64_t wat = i * row + j * col, dat = (i * b + j) * c;
            TRN_TRY(to_depth ? trn_block_copy(k, y, dat, ds, x, wat, ws, size, 4)
                             : trn_block_copy(k, y, wat, ws, x, dat, ds, size, 4));
        }
    return TRN_OK;
}

static trn_err space_to_depth(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t b;
    TRN_TRY(depth_args(&b, k));
    trn_shape s = x->shape;
    TRN_CHECK_ARG(s.dim[1] % b == 0 && s.dim[2] % b == 0,
                  "Image width %lld and height %lld should be divisible by block_size: %lld", (long long)s.dim[2],
                  (long long)s.dim[1], (long long)b);
    s.dim[1] /= b;
    s.dim[2] /= b;
    TRN_CHECK_ARG(!__builtin_mul_overflow(s.dim[3], b * b, &s.dim[3]), "the result is too large");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    return copy_depth(k, y, x, true, b);
}

static trn_err depth_to_space(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t b;
    TRN_TRY(depth_args(&b, k));
    trn_shape s = x->shape;
    TRN_CHECK_ARG(s.dim[3] % (b * b) == 0, "Input depth dimension %lld should be divisible by: %lld",
                  (long long)s.dim[3], (long long)(b * b));
    s.dim[3] /= b * b;
    TRN_CHECK_ARG(!__builtin_mul_overflow(s.dim[1], b, &s.dim[1]) && !__builtin_mul_overflow(s.dim[2], b, &s.dim[2]),
                  "the result is too large");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    return copy_depth(k, y, x, false, b);
}

/* ---- patches ----------------------------------------------------------------------------------------------------------- */

/* An attr with one number per dim of images (4) or volumes (5). */
static trn_err list_of(int64_t v[5], const trn_kctx *k, const char *name, int n)
{
    const trn_attr *a = trn_node_attr(k->node, name);
    TRN_CHECK_ARG(a && a->is_list && a->n == n && a->kind == TRN_ATTR_INT, "%s must have %d elements", name, n);
    for (int i = 0; i < n; i++) {
        v[i] = a->list[i].i;
        TRN_CHECK_ARG(v[i] > (n == 5 ? INT32_MIN : 0) && v[i] < INT32_MAX, "%s must be positive, got %lld", name, (long long)v[i]);
    }
    if (v[0] != 1 || v[n - 1] != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Only support %s across space: %s does not along batch or depth", name, k->node->op);
    for (int i = 1; i < n - 1; i++)
        if (v[i] < 1)
            return trn_errorf(TRN_OUT_OF_RANGE, "%s is out of range: %lld", name, (long long)v[i]);
    return TRN_OK;
}

/* Images (space is 2) or volumes (3). */
static trn_err patches(trn_kctx *k, int space)
{
    const trn_tensor *x = trn_in(k, 0);
    int n = space + 2;
    int64_t ks[5], st[5], ra[5] = {1, 1, 1, 1, 1}, out[3], pad[3], at[3] = {0}, c;
    TRN_TRY(list_of(ks, k, "ksizes", n));
    TRN_TRY(list_of(st, k, "strides", n));
    if (space == 2)
        TRN_TRY(list_of(ra, k, "rates", n));
    TRN_CHECK_ARG(x->shape.rank == n, "input must be %d-dimensional, not of rank %d", n, x->shape.rank);
    bool same = !strcmp(trn_attr_str(k->node, "padding"), "SAME"), fits = true;
    trn_shape s = x->shape;
    int64_t depth = c = x->shape.dim[n - 1];
    for (int d = 0; d < space; d++) {
        int64_t in = x->shape.dim[d + 1], eff = ks[d + 1] + (ks[d + 1] - 1) * (ra[d + 1] - 1);
        TRN_CHECK_ARG(in < INT64_C(1) << 61, "dimension %d is too large: %lld", d + 1, (long long)in);
        out[d] = same ? (in + st[d + 1] - 1) / st[d + 1] : (in - eff + st[d + 1]) / st[d + 1];
        TRN_CHECK_ARG(
            out[d] >= 0,
            "Computed output size would be negative: [input_size: %lld, effective_filter_size: %lld, stride: %lld]",
            (long long)in, (long long)eff, (long long)st[d + 1]);
        int64_t need = (out[d] - 1) * st[d + 1] + eff - in;
        pad[d] = same && (need > 0 || space == 3) ? need / 2 : 0; /* volumes: where windows leave pixels out, it is half of those at the end */
        s.dim[d + 1] = out[d];
        fits = fits && !__builtin_mul_overflow(depth, ks[d + 1], &depth);
    }
    TRN_CHECK_ARG(fits, "the patches are too large");
    s.dim[n - 1] = depth;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    if (!y->count || !x->count)
        return TRN_OK;
    int64_t xs[5], ys[5], size[5] = {s.dim[0]}, parts = depth / c;
    size[n - 1] = c;
    for (int64_t part = 0; part < parts; part++) { /* `at`: this place of the window */
        trn_row_strides(xs, &x->shape);
        trn_row_strides(ys, &s);
        int64_t xat = 0, yat = part * c;
        bool some = true;
        for (int d = 0; d < space; d++) { /* positions o with 0 <= o·stride + off < in */
            int64_t in = x->shape.dim[d + 1], step = st[d + 1], off = at[d] * ra[d + 1] - pad[d], end = in - off;
            int64_t first = off >= 0 ? 0 : (-off + step - 1) / step;
            end = end <= 0 ? 0 : (end + step - 1) / step;
            end = end < out[d] ? end : out[d];
            some = some && first < end;
            size[d + 1] = end - first;
            xat += (first * step + off) * xs[d + 1];
            yat += first * ys[d + 1];
            xs[d + 1] *= step;
        }
        if (some)
            TRN_TRY(trn_block_copy(k, y, yat, ys, x, xat, xs, size, n));
        for (int d = space - 1; d >= 0 && ++at[d] == ks[d + 1]; d--)
            at[d] = 0;
    }
    return TRN_OK;
}
static trn_err image_patches(trn_kctx *k) { return patches(k, 2); }
static trn_err volume_patches(trn_kctx *k) { return patches(k, 3); }

/* ---- Roll -------------------------------------------------------------------------------------------------------------- */

static trn_err roll_axis(trn_kctx *k, trn_tensor *y, const trn_tensor *x, int axis, int64_t shift)
{
    int64_t stride[TRN_MAX_RANK], size[TRN_MAX_RANK], n = x->shape.dim[axis];
    trn_row_strides(stride, &x->shape);
    memcpy(size, x->shape.dim, sizeof size);
    size[axis] = n - shift;
    TRN_TRY(trn_block_copy(k, y, shift * stride[axis], stride, x, 0, stride, size, x->shape.rank));
    size[axis] = shift;
    return trn_block_copy(k, y, 0, stride, x, (n - shift) * stride[axis], stride, size, x->shape.rank);
}

static trn_err roll(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *shift = trn_in(k, 1), *axis = trn_in(k, 2);
    int64_t by[TRN_MAX_RANK] = {0};
    TRN_CHECK_ARG(x->shape.rank >= 1, "input must be 1-D or higher");
    TRN_CHECK_ARG(shift->shape.rank <= 1, "shift must be a scalar or a 1-D vector. Found rank %d", shift->shape.rank);
    TRN_CHECK_ARG(axis->shape.rank <= 1, "axis must be a scalar or a 1-D vector. Found rank %d", axis->shape.rank);
    TRN_CHECK_ARG(trn_shape_eq(&shift->shape, &axis->shape), "shift and axis must have the same size");
    for (int64_t i = 0; i < axis->count; i++) {
        int a;
        TRN_TRY(trn_axis(&a, trn_int_at(axis, i), x->shape.rank, "axis"));
        int64_t n = x->shape.dim[a] ? x->shape.dim[a] : 1, s = trn_int_at(shift, i) % n;
        by[a] = (by[a] + (s < 0 ? s + n : s)) % n;
    }
    trn_tensor *from = trn_tensor_ref(x);
    trn_err err = TRN_OK;
    for (int a = 0; a < x->shape.rank && !err; a++) {
        if (!by[a] || !x->count)
            continue;
        trn_tensor *y;
        err = trn_tensor_new(&y, x->dtype, &x->shape);
        if (err)
            break;
        err = roll_axis(k, y, from, a, by[a]);
        trn_tensor_unref(from);
        from = y;
    }
    if (err)
        trn_tensor_unref(from);
    else
        trn_out_set(k, 0, from);
    return err;
}

/* ---- gradient of mirrored padding -------------------------------------------------------------------------------------- */

/* y = the middle of x along one dim, with the margins folded back onto it. */
static void fold(trn_tensor *y, const trn_tensor *x, int axis, int64_t before, int64_t after, int64_t skip)
{
    size_t size = trn_dtype_size(x->dtype);
    int64_t outer = 1, inner = 1, n = y->shape.dim[axis], m = x->shape.dim[axis];
    if (!y->count)
        return;
    for (int d = 0; d < x->shape.rank; d++)
        if (d != axis)
            *(d < axis ? &outer : &inner) *= x->shape.dim[d];
    for (int64_t o = 0; o < outer; o++) {
        char *to = (char *)y->data + (size_t)(o * n * inner) * size;
        const char *from = (const char *)x->data + (size_t)(o * m * inner) * size;
#define ROW(p, i) ((p) + (size_t)((i)*inner) * size)
        memcpy(to, ROW(from, before), (size_t)(n * inner) * size);
        for (int64_t i = 0; i < before; i++)
            trn_accum(TRN_ACC_ADD, x->dtype, ROW(to, before - 1 - i + skip), ROW(from, i), inner);
        for (int64_t i = 0; i < after; i++)
            trn_accum(TRN_ACC_ADD, x->dtype, ROW(to, n - 1 - i - skip), ROW(from, before + n + i), inner);
#undef ROW
    }
}

static trn_err mirror_pad_grad(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *pads = trn_in(k, 1);
    int64_t skip = !strcmp(trn_attr_str(k->node, "mode"), "REFLECT");
    int rank = x->shape.rank;
    TRN_CHECK_ARG(pads->shape.rank == 2 && pads->shape.dim[1] == 2, "paddings must be a matrix with 2 columns");
    TRN_CHECK_ARG(pads->shape.dim[0] == rank, "The first dimension of paddings must be the rank of inputs: %lld, %d",
                  (long long)pads->shape.dim[0], rank);
    for (int d = 0; d < rank; d++) {
        int64_t a = trn_int_at(pads, 2 * d), b = trn_int_at(pads, 2 * d + 1), n;
        TRN_CHECK_ARG(a >= 0 && b >= 0, "Paddings must be non-negative: %lld, %lld", (long long)a, (long long)b);
        TRN_CHECK_ARG(!__builtin_sub_overflow(x->shape.dim[d], a, &n) && !__builtin_sub_overflow(n, b, &n),
                      "paddings are too large");
        TRN_CHECK_ARG(a <= n - skip && b <= n - skip,
                      "paddings must be no greater than the output dimension size: %lld, %lld greater than %lld",
                      (long long)a, (long long)b, (long long)(n - skip));
    }
    trn_tensor *from = trn_tensor_ref(x);
    for (int d = 0; d < rank; d++) {
        int64_t a = trn_int_at(pads, 2 * d), b = trn_int_at(pads, 2 * d + 1);
        if (!a && !b)
            continue;
        trn_shape s = from->shape;
        s.dim[d] -= a + b;
        trn_tensor *y;
        trn_err err = trn_tensor_new(&y, x->dtype, &s);
        if (!err && y->count)
            fold(y, from, d, a, b, skip);
        trn_tensor_unref(from);
        if (err)
            return err;
        from = y;
    }
    trn_out_set(k, 0, from);
    return TRN_OK;
}

#define FORMAT ", block_size:int>=2, data_format:{NHWC,NCHW,NCHW_VECT_C}=NHWC"

const trn_op trn_ops_space[] = {
    {"SpaceToBatchND",
     "input:T, block_shape:Tblock_shape, paddings:Tpaddings -> output:T; T:any, Tblock_shape:i32|i64=i32, "
     "Tpaddings:i32|i64=i32",
     trn_sh_unknown, space_to_batch, 0},
    {"SpaceToBatch", "input:T, paddings:Tpaddings -> output:T; T:any, Tpaddings:i32|i64=i32, block_size:int>=2",
     trn_sh_unknown, space_to_batch, 0},
    {"BatchToSpaceND",
     "input:T, block_shape:Tblock_shape, crops:Tcrops -> output:T; T:any, Tblock_shape:i32|i64=i32, Tcrops:i32|i64=i32",
     trn_sh_unknown, batch_to_space, 0},
    {"BatchToSpace", "input:T, crops:Tidx -> output:T; T:any, block_size:int>=2, Tidx:i32|i64=i32", trn_sh_unknown,
     batch_to_space, 0},
    {"SpaceToDepth", "input:T -> output:T; T:any" FORMAT, trn_sh_unknown, space_to_depth, 0},
    {"DepthToSpace", "input:T -> output:T; T:any" FORMAT, trn_sh_unknown, depth_to_space, 0},
    {"ExtractImagePatches",
     "images:T -> patches:T; ksizes:list(int)>=4, strides:list(int)>=4, rates:list(int)>=4, T:num|bool, "
     "padding:{SAME,VALID}",
     trn_sh_unknown, image_patches, 0},
    {"ExtractVolumePatches", "input:T -> patches:T; ksizes:list(int)>=5, strides:list(int)>=5, T:real, padding:{SAME,VALID}", trn_sh_unknown, volume_patches, 0},
    {"Roll", "input:T, shift:Tshift, axis:Taxis -> output:T; T:any, Tshift:i32|i64, Taxis:i32|i64", trn_sh_same, roll,
     0},
    {"MirrorPadGrad", "input:T, paddings:Tpaddings -> output:T; T:num, Tpaddings:i32|i64=i32, mode:{REFLECT,SYMMETRIC}",
     trn_sh_unknown, mirror_pad_grad, 0},
    {0},
};
