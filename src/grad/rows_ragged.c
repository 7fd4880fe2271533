/* Gradients of ragged tensors, and of what travels in variants: maps, optionals. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

static trn_out flat(trn_grad_ctx *c, trn_out x) { return TRN_GE(c, "(Reshape $0 #[-1])", x); }

/* Where the rows of the values that were gathered lie: the splits of all levels become one. */
static void ragged_gather(trn_grad_ctx *c)
{
    int levels = c->n->n_in - 2;
    trn_out splits = IN(0), at = flat(c, IN(levels + 1)), v = IN(levels);
    for (int i = 1; i < levels; i++)
        splits = TRN_GE(c, "(GatherV2 $0 $1 #0)", IN(i), splits);
    trn_out from = TRN_GE(c, "(GatherV2 $0 $1 #0)", splits, at);
    trn_out to = TRN_GE(c, "(GatherV2 (StridedSlice $0 #[1] #[0] #[1] end_mask=1) $1 #0)", splits, at);
    trn_out ids = TRN_GE(c, "(RaggedRange $0 $1 $2 Tsplits=int64).1", from, to, trn_g_num(c, trn_g_type(c, splits), 1));
    trn_grad_set_any(c, levels, (trn_grad){trn_grad_dy(c, c->n->n_out - 1), ids, trn_g_shape_of(c, v)});
}

/* The same op on the places of the values says which of them each place of the result has; -1 is the default. */
static void ragged_to_tensor(trn_grad_ctx *c)
{
    const trn_attr *kinds = trn_node_attr(c->n, "row_partition_types");
    int ragged = 0, n = c->n->n_in;
    for (int i = 0; kinds && i < kinds->n; i++)
        ragged += strcmp(kinds->list[i].s.p, "FIRST_DIM_SIZE") != 0;
    trn_out d = trn_grad_dy(c, 0), v = IN(1), *in = trn_arena_alloc(c->tmp, (size_t)n * sizeof *in), outer, rows;
    trn_out upto = trn_g_ints_const(c, (const int64_t[]){1 + ragged}, 1);
    outer = TRN_GE(c, "(StridedSlice (Shape d) #[0] $0 #[1])", upto);
    rows = TRN_GE(c, "(StridedSlice (Shape $0) #[0] #[1] #[1] shrink_axis_mask=1)", v);
    in[0] = outer;
    in[1] = TRN_GE(c, "(Range #0 $0 #1)", rows);
    in[2] = trn_g_i32(c, -1);
    for (int i = 3; i < n; i++)
        in[i] = IN(i);
    trn_out at = trn_g_node(c, "RaggedTensorToTensor", in, n, kinds, 1);
    if (trn_grad_wanted(c, 1)) {
        trn_out parts = TRN_GE(c, "(Reshape d (ConcatV2 (Reshape (Size $0) #[1]) (StridedSlice (Shape d) $1 #[0] #[1] end_mask=1) #0))", at, upto);
        trn_grad_set(c, 1, TRN_GE(c, "(UnsortedSegmentSum $0 (Reshape $1 #[-1]) $2)", parts, at, rows));
    }
    if (trn_grad_wanted(c, 2)) {
        trn_out is = TRN_GE(c, "(Reshape (NotEqual $0 #-1) (ConcatV2 $1 (Fill (Reshape (Sub (Rank d) $2) #[1]) #1) #0))", at, outer, trn_g_i32(c, 1 + ragged));
        d = TRN_GE(c, "(SelectV2 $0 (ZerosLike d) d)", is);
        trn_grad_set(c, 2, trn_g_sum_to(c, d, IN(2), d));
    }
}

static void ragged_to_sparse(trn_grad_ctx *c)
{
    if (trn_grad_has_dy(c, 1))
        trn_grad_set(c, c->n->n_in - 1, trn_g_like(c, trn_grad_dy(c, 1), IN(c->n->n_in - 1)));
}

/* A variant per row, or one for all: what comes back is packed the same way. */
static void ragged_to_variant(trn_grad_ctx *c)
{
    int levels = c->n->n_in - 1;
    bool rows = trn_attr_bool(c->n, "batched_input");
    trn_out d = trn_grad_dy(c, 0), v = IN(levels);
    if (rows && levels == 0) { /* rows of a tensor without splits */
        trn_attr t[] = {trn_attr__type("Tvalues", trn_g_type(c, v)), trn_attr__type("Tsplits", TRN_INT32)};
        trn_grad_set(c, 0, trn_g_node(c, "RaggedTensorToVariantGradient", TRN_OUTS(d, trn_g_i32(c, 0), trn_g_shape_of(c, v)), t, 2));
        return;
    }
    trn_attr a[] = {trn_attr__int("input_ragged_rank", rows ? levels - 1 : levels), trn_attr__int("output_ragged_rank", levels),
                    trn_attr__type("Tvalues", trn_g_type(c, v)), trn_attr__type("Tsplits", trn_attr_type(c->n, "Tsplits"))};
    trn_out g = trn_g_node(c, "RaggedTensorFromVariant", &d, 1, a, 4);
    if (trn_out_is(g))
        trn_grad_set(c, levels, trn_g_like(c, trn_out_nth(g, levels), v));
}

static void ragged_from_variant(trn_grad_ctx *c)
{
    int levels = c->n->n_out - 1;
    int64_t inside = trn_attr_int(c->n, "input_ragged_rank");
    trn_shape s = trn_g_shape(c, IN(0));
    int rank = inside >= 0 ? levels - (int)inside : s.rank >= 0 ? s.rank : levels > 0; /* of the tensor of variants */
    if (rank > 1) {
        trn_g_fail(c, trn_errorf(TRN_INVALID_ARGUMENT, "the gradient of RaggedTensorFromVariant '%s': of a scalar or a vector of variants only", c->n->name));
        return;
    }
    trn_out *in = trn_arena_alloc(c->tmp, ((size_t)levels + 1) * sizeof *in);
    for (int i = 0; i < levels; i++)
        in[i] = trn_grad_out(c, i);
    in[levels] = trn_grad_dy(c, levels);
    trn_attr a[] = {trn_attr__bool("batched_input", rank == 1), trn_attr__int("RAGGED_RANK", levels),
                    trn_attr__type("Tsplits", trn_attr_type(c->n, "Tsplits"))};
    trn_grad_set(c, 0, trn_g_node(c, "RaggedTensorToVariant", in, levels + 1, a, 3));
}

/* ---- maps: the gradient of one is a map that has what was looked up */

static void map_lookup(trn_grad_ctx *c) { trn_grad_set(c, 0, TRN_GE(c, "(TensorMapInsert (EmptyTensorMap) y d)")); }

static void map_insert(trn_grad_ctx *c)
{
    trn_out has = TRN_GE(c, "(TensorMapHasKey d y)"), map = TRN_GE(c, "(Switch d $0)", has), key = TRN_GE(c, "(Switch y $0)", has), v = TRN_GE(c, "(Switch z $0)", has);
    if (!trn_g_ok(c))
        return;
    trn_attr t = trn_attr__type("value_dtype", trn_g_type(c, IN(2)));
    key = trn_out_nth(key, 1); /* in use only where there is one */
    trn_out with = trn_out_nth(map, 1);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_G(c, "Merge", map, trn_g_node(c, "TensorMapErase", TRN_OUTS(with, key), &t, 1)));
    if (trn_grad_wanted(c, 2))
        trn_grad_set(c, 2, TRN_G(c, "Merge", TRN_G(c, "ZerosLike", v), trn_g_node(c, "TensorMapLookup", TRN_OUTS(with, key), &t, 1)));
}

/* ---- optionals */

static void optional_from(trn_grad_ctx *c)
{
    int n = c->n->n_in;
    trn_attr_val *t = trn_arena_alloc(c->tmp, (size_t)n * sizeof *t), *s = trn_arena_alloc(c->tmp, (size_t)n * sizeof *s);
    for (int i = 0; i < n; i++) {
        trn_shape *shape = trn_arena_alloc(c->tmp, sizeof *shape);
        *shape = trn_g_shape(c, IN(i));
        t[i].type = trn_g_type(c, IN(i));
        s[i].shape = shape;
    }
    trn_attr a[] = {{.name = "output_types", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n, .list = t},
                    {.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = n, .list = s}};
    trn_out d = trn_grad_dy(c, 0), g = trn_g_node(c, "OptionalGetValue", &d, 1, a, 2);
    for (int i = 0; i < n && trn_out_is(g); i++)
        trn_grad_set(c, i, trn_out_nth(g, i));
}

static void optional_get(trn_grad_ctx *c)
{
    trn_out *d = trn_arena_alloc(c->tmp, (size_t)c->n->n_out * sizeof *d);
    for (int i = 0; i < c->n->n_out; i++)
        d[i] = trn_grad_dy(c, i);
    trn_grad_set(c, 0, trn_g_node(c, "OptionalFromValue", d, c->n->n_out, NULL, 0));
}

/* ---- composite tensors: their gradient is one of the same kind */

static void composite_from(trn_grad_ctx *c)
{
    int n = c->n->n_in;
    trn_attr_val *t = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i].type = trn_g_type(c, IN(i));
    trn_attr a[] = {*trn_node_attr(c->n, "metadata"), {.name = "Tcomponents", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n, .list = t}};
    trn_out d = trn_grad_dy(c, 0), g = trn_g_node(c, "CompositeTensorVariantToComponents", &d, 1, a, 2);
    for (int i = 0; i < n && trn_out_is(g); i++)
        trn_grad_set(c, i, trn_out_nth(g, i));
}

static void composite_to(trn_grad_ctx *c)
{
    trn_out *d = trn_arena_alloc(c->tmp, ((size_t)c->n->n_out + 1) * sizeof *d);
    for (int i = 0; i < c->n->n_out; i++)
        d[i] = trn_g_trainable(c->n->out_types[i]) ? trn_grad_dy(c, i) : trn_grad_out(c, i); /* splits, indices and the like stay what they are */
    trn_grad_set(c, 0, trn_g_node(c, "CompositeTensorVariantFromComponents", d, c->n->n_out, trn_node_attr(c->n, "metadata"), 1));
}

const trn_grad_row trn_grads_ragged[] = {
    {"CompositeTensorVariantFromComponents", .fn = composite_from},
    {"CompositeTensorVariantToComponents", .fn = composite_to},
    {"OptionalFromValue", .fn = optional_from},
    {"OptionalGetValue", .fn = optional_get},
    {"RaggedGather", .fn = ragged_gather},
    {"RaggedTensorFromVariant", .fn = ragged_from_variant},
    {"RaggedTensorToSparse", .fn = ragged_to_sparse},
    {"RaggedTensorToTensor", .fn = ragged_to_tensor},
    {"RaggedTensorToVariant", .fn = ragged_to_variant},
    {"TensorMapErase", {"d"}},
    {"TensorMapInsert", .fn = map_insert},
    {"TensorMapLookup", .fn = map_lookup},
    {0},
};
