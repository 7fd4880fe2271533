/* Gradients of what moves numbers about: shapes, slices, joins. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)
#define OUT(i) trn_grad_out(c, i)

static void transpose(trn_grad_ctx *c)
{
    int64_t p[TRN_MAX_RANK], back[TRN_MAX_RANK] = {0};
    int n;
    if (trn_g_ints(p, &n, TRN_MAX_RANK, c, IN(1))) {
        for (int i = 0; i < n; i++)
            if (p[i] >= 0 && p[i] < n)
                back[p[i]] = i;
        trn_grad_set(c, 0, TRN_G(c, "Transpose", trn_grad_dy(c, 0), trn_g_ints_const(c, back, n)));
    } else {
        trn_grad_set(c, 0, TRN_GE(c, "(Transpose d (InvertPermutation y))"));
    }
}

static void pack(trn_grad_ctx *c)
{
    trn_attr a[] = {trn_attr__int("num", c->n->n_in), trn_attr__int("axis", trn_attr_int(c->n, "axis"))};
    trn_out d = trn_grad_dy(c, 0), u = trn_g_node(c, "Unpack", &d, 1, a, 2);
    for (int i = 0; i < c->n->n_in; i++)
        trn_grad_set(c, i, trn_out_nth(u, i));
}

/* All gradients of the outputs, zeros where none came, with room for one more. */
static trn_out *all_dy(trn_grad_ctx *c)
{
    trn_out *d = trn_arena_alloc(c->tmp, ((size_t)c->n->n_out + 1) * sizeof *d);
    for (int i = 0; i < c->n->n_out; i++)
        d[i] = trn_grad_dy(c, i);
    return d;
}

static void unpack(trn_grad_ctx *c)
{
    trn_attr a = trn_attr__int("axis", trn_attr_int(c->n, "axis"));
    trn_grad_set(c, 0, trn_g_node(c, "Pack", all_dy(c), c->n->n_out, &a, 1));
}

static trn_out join(trn_grad_ctx *c, trn_out *part, int n, trn_out axis)
{
    if (n == 1)
        return part[0];
    part[n] = axis;
    return trn_g_node(c, "ConcatV2", part, n + 1, NULL, 0);
}

static void split(trn_grad_ctx *c)
{
    bool v = strcmp(c->n->op, "SplitV") == 0;
    trn_grad_set(c, v ? 0 : 1, join(c, all_dy(c), c->n->n_out, IN(v ? 2 : 0)));
}

static void concat(trn_grad_ctx *c)
{
    bool v1 = strcmp(c->n->op, "Concat") == 0;
    int n = c->n->n_in - 1, first = v1 ? 1 : 0, n_axis;
    trn_out d = trn_grad_dy(c, 0), axis = IN(v1 ? 0 : n), at;
    if (n == 1) {
        trn_grad_set(c, first, d);
        return;
    }
    trn_out *s = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *s);
    trn_shape shape = trn_g_shape(c, OUT(0));
    int64_t ax;
    /* Lengths along the axis are enough for one SplitV, when they are known. */
    if (trn_g_ints(&ax, &n_axis, 1, c, axis) && n_axis == 1 && shape.rank > 0) {
        ax = ax < 0 ? ax + shape.rank : ax;
        int64_t *len = trn_arena_alloc(c->tmp, (size_t)n * sizeof *len);
        bool known = ax >= 0 && ax < shape.rank;
        for (int i = 0; i < n && known; i++) {
            trn_shape si = trn_g_shape(c, IN(first + i));
            known = si.rank == shape.rank && si.dim[ax] >= 0;
            len[i] = known ? si.dim[ax] : 0;
        }
        if (known) {
            trn_attr num = trn_attr__int("num_split", n);
            trn_out parts = trn_g_node(c, "SplitV", TRN_OUTS(d, trn_g_ints_const(c, len, n), trn_g_i32(c, (int32_t)ax)), &num, 1);
            for (int i = 0; i < n; i++)
                trn_grad_set(c, first + i, trn_out_nth(parts, i));
            return;
        }
    }
    s[0] = TRN_GE(c, "(FloorMod $0 (Rank $1))", trn_g_cast(c, axis, TRN_INT32), d);
    for (int i = 0; i < n; i++)
        s[i + 1] = trn_g_shape_of(c, IN(first + i));
    at = trn_g_node(c, "ConcatOffset", s, n + 1, NULL, 0);
    for (int i = 0; i < n; i++)
        if (trn_grad_wanted(c, first + i))
            trn_grad_set(c, first + i, TRN_G(c, "Slice", d, trn_out_nth(at, i), s[i + 1]));
}

static void select_v2(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), zero = trn_g_num(c, trn_g_type(c, d), 0);
    for (int i = 1; i < 3; i++)
        if (trn_grad_wanted(c, i)) {
            trn_out g = i == 1 ? TRN_G(c, "SelectV2", IN(0), d, zero) : TRN_G(c, "SelectV2", IN(0), zero, d);
            trn_grad_set(c, i, trn_g_sum_to(c, g, IN(i), d));
        }
}

static void strided_slice(trn_grad_ctx *c)
{
    trn_dtype index = trn_g_type(c, IN(1)), to = index == TRN_INT64 ? TRN_INT64 : TRN_INT32;
    trn_attr t = trn_attr__type("out_type", to);
    trn_out x = IN(0), s = to == TRN_INT32 ? trn_g_shape_of(c, x) : trn_g_node(c, "Shape", &x, 1, &t, 1);
    trn_grad_set(c, 0, TRN_GE(c, "(StridedSliceGrad $0 $1 $2 $3 d @)", s, trn_g_cast(c, IN(1), to), trn_g_cast(c, IN(2), to), trn_g_cast(c, IN(3), to)));
}

static void strided_slice_grad(trn_grad_ctx *c) { trn_grad_set(c, 4, TRN_GE(c, "(StridedSlice d y z w @)")); }

static void slice(trn_grad_ctx *c)
{
    trn_shape sx = trn_g_shape(c, IN(0)), so = trn_g_shape(c, OUT(0));
    int64_t begin[TRN_MAX_RANK], pads[2 * TRN_MAX_RANK];
    int n;
    if (trn_shape_is_full(&sx) && trn_shape_is_full(&so) && trn_g_ints(begin, &n, TRN_MAX_RANK, c, IN(1)) && n == sx.rank && n == so.rank && n > 0) {
        for (int i = 0; i < n; i++) {
            pads[2 * i] = begin[i];
            pads[2 * i + 1] = sx.dim[i] - so.dim[i] - begin[i];
        }
        trn_out p = trn_g_reshape(c, trn_g_ints_const(c, pads, 2 * n), trn_g_ints_const(c, (const int64_t[]){n, 2}, 2));
        trn_grad_set(c, 0, TRN_G(c, "Pad", trn_grad_dy(c, 0), p));
        return;
    }
    trn_grad_set(c, 0, TRN_GE(c, "(Pad d (Pack $0 (Sub (Sub (Shape x) (Shape o)) $0) axis=1))", trn_g_cast(c, IN(1), TRN_INT32)));
}

static void pad(trn_grad_ctx *c)
{
    trn_out begin = TRN_GE(c, "(StridedSlice y #[0,0] #[0,1] #[1,1] begin_mask=1 end_mask=1 shrink_axis_mask=2)");
    trn_out inner = TRN_GE(c, "(Slice d $0 (Shape x))", trn_g_cast(c, begin, TRN_INT32));
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, inner);
    if (c->n->n_in > 2 && trn_grad_wanted(c, 2)) /* what the border got */
        trn_grad_set(c, 2, TRN_GE(c, "(Sub (Sum d (Range #0 (Rank d) #1)) (Sum $0 (Range #0 (Rank d) #1)))", inner));
}

/* [a, b] n times along each axis is [n1, a, n2, b], added up over the n's. */
static void tile(trn_grad_ctx *c)
{
    trn_out s = trn_g_shape_of(c, IN(0)), m = trn_g_cast(c, IN(1), TRN_INT32);
    trn_out both = TRN_GE(c, "(Reshape (Transpose (Pack $0 $1) #[1,0]) #[-1])", m, s);
    trn_out axes = TRN_GE(c, "(Range #0 (Size $0) #2)", both);
    trn_grad_set(c, 0, trn_g_like(c, TRN_GE(c, "(Sum (Reshape d $0) $1)", both, axes), IN(0)));
}

/* Which places of the whole each part was taken from, and back. */
static void dynamic_partition(trn_grad_ctx *c)
{
    int n = c->n->n_out;
    trn_out p = IN(1), size = TRN_GE(c, "(Prod (Shape y) #0)");
    trn_out places = TRN_GE(c, "(Reshape (Range #0 $0 #1) (Shape y))", size);
    trn_attr num = trn_attr__int("num_partitions", n);
    trn_out from = trn_g_node(c, "DynamicPartition", TRN_OUTS(places, p), &num, 1);
    trn_out *in = trn_arena_alloc(c->tmp, (size_t)(2 * n + 1) * sizeof *in);
    for (int i = 0; i < n; i++) {
        in[i] = trn_out_nth(from, i);
        in[n + i] = trn_grad_dy(c, i);
    }
    trn_grad_set(c, 0, trn_g_like(c, trn_g_node(c, "DynamicStitch", in, 2 * n, NULL, 0), IN(0)));
}

/* A place that was written twice has what came last; the gradient goes to all its writers, as in TensorFlow. */
static void dynamic_stitch(trn_grad_ctx *c)
{
    int n = c->n->n_in / 2;
    for (int i = 0; i < n; i++)
        if (trn_grad_wanted(c, n + i))
            trn_grad_set(c, n + i, TRN_GE(c, "(GatherV2 d $0 #0)", IN(i)));
}

const trn_grad_row trn_grads_array[] = {
    {"BroadcastTo", {"(SumTo d x)"}},
    {"Concat", .fn = concat},
    {"ConcatV2", .fn = concat},
    {"DynamicPartition", .fn = dynamic_partition},
    {"DynamicStitch", .fn = dynamic_stitch},
    {"EnsureShape", {"d"}},
    {"ExpandDims", {"(Like d x)"}},
    {"Fill", {NULL, "(Sum d (Range #0 (Rank d) #1))"}},
    {"MirrorPad", {"(MirrorPadGrad d y @)"}},
    {"MirrorPadGrad", {"(MirrorPad d y @)"}},
    {"Pack", .fn = pack},
    {"Pad", .fn = pad},
    {"PadV2", .fn = pad},
    {"ParallelDynamicStitch", .fn = dynamic_stitch},
    {"Reshape", {"(Like d x)"}},
    {"ReverseV2", {"(ReverseV2 d y)"}},
    {"Select", {NULL, "(Select x d (ZerosLike d))", "(Select x (ZerosLike d) d)"}},
    {"SelectV2", .fn = select_v2},
    {"Slice", .fn = slice},
    {"Split", .fn = split},
    {"SplitV", .fn = split},
    {"Squeeze", {"(Like d x)"}},
    {"StridedSlice", .fn = strided_slice},
    {"StridedSliceGrad", .fn = strided_slice_grad},
    {"Tile", .fn = tile},
    {"Transpose", .fn = transpose},
    {"Unpack", .fn = unpack},
    {0},
};
