/* Gradients of variables that are read, rows that are looked up, and sums by segment. Looked-up rows have gradients as slices: values and indices. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

/* int32, of what a gather took rows from: a tensor, or the variable behind a handle. */
static trn_out params_shape(trn_grad_ctx *c, trn_shape *known)
{
    trn_out p = IN(0);
    *known = trn_g_shape(c, p);
    if (trn_g_type(c, p) != TRN_RESOURCE)
        return trn_g_shape_of(c, p);
    const trn_node *var = c->h->node(c->h->arg, p.node);
    *known = strcmp(var->op, "VarHandleOp") == 0 ? *trn_attr_shape(var, "shape") : trn_shape_unknown();
    if (trn_shape_is_full(known))
        return trn_g_ints_const(c, known->dim, known->rank);
    trn_attr a = trn_attr__type("out_type", TRN_INT32);
    return trn_g_node(c, "VariableShape", &p, 1, &a, 1);
}

/* Rows of axis 0. */
static void gather_rows(trn_grad_ctx *c)
{
    trn_shape known, ids = trn_g_shape(c, IN(1));
    trn_out shape = params_shape(c, &known), d = trn_grad_dy(c, 0), at = IN(1);
    if (ids.rank != 1) {
        at = TRN_GE(c, "(Reshape $0 #[-1])", at);
        if (trn_shape_is_full(&known) && known.rank > 0) {
            known.dim[0] = -1;
            int64_t n = 1;
            for (int i = 1; i < known.rank; i++)
                n *= known.dim[i];
            d = n ? trn_g_reshape(c, d, trn_g_ints_const(c, known.dim, known.rank)) : TRN_GE(c, "(Reshape d (ConcatV2 (Shape $0) (StridedSlice $1 #[1] #[0] #[1] end_mask=1) #0))", at, shape);
        } else {
            d = TRN_GE(c, "(Reshape d (ConcatV2 (Shape $0) (StridedSlice $1 #[1] #[0] #[1] end_mask=1) #0))", at, shape);
        }
    }
    trn_grad_set_any(c, 0, (trn_grad){d, at, shape});
}

/* Along any axis, batches in front of it: the gathered axes go to the front, rows are added up there, and the axes go back. */
static void gather_axis(trn_grad_ctx *c, int64_t axis, int64_t batch)
{
    trn_shape known, di = trn_g_shape(c, IN(1));
    trn_out shape = params_shape(c, &known), d = trn_grad_dy(c, 0), at = IN(1);
    int r = known.rank, ri = di.rank;
    if (axis < 0)
        axis += r;
    if (batch < 0)
        batch += ri;
    if (r < 0 || ri < 0 || axis < 0 || axis >= r || batch > axis || batch > ri) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s' along axis %lld: ranks must be known", c->n->op, c->n->name, (long long)axis));
        return;
    }
    /* d: batch | outer (axis - batch) | ids (ri - batch) | inner. → batch | ids | outer | inner, flat in front. */
    int rd = r - 1 + ri - (int)batch, k = 0, nb = (int)batch, no = (int)(axis - batch), ni = ri - nb;
    int64_t perm[2 * TRN_MAX_RANK];
    if (rd > TRN_MAX_RANK) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s': of rank %d", c->n->op, c->n->name, rd));
        return;
    }
    for (int i = 0; i < nb; i++)
        perm[k++] = i;
    for (int i = 0; i < ni; i++)
        perm[k++] = nb + no + i;
    for (int i = 0; i < no; i++)
        perm[k++] = nb + i;
    for (int i = nb + no + ni; i < rd; i++)
        perm[k++] = i;
    d = TRN_G(c, "Transpose", d, trn_g_ints_const(c, perm, rd));
    /* Each batch has rows of its own. */
    trn_out rows = TRN_GE(c, "(GatherV2 $0 $1 #0)", shape, trn_g_i32(c, (int32_t)axis)), n = rows;
    at = trn_g_cast(c, at, TRN_INT32);
    if (nb) {
        trn_out batches = TRN_GE(c, "(Prod (Slice $0 #[0] $1) #0)", shape, trn_g_ints_const(c, &batch, 1));
        trn_out per = TRN_GE(c, "(Reshape $0 (Pack $1 #-1))", at, batches);
        at = TRN_GE(c, "(AddV2 $0 (Reshape (Mul (Range #0 $1 #1) $2) #[-1,1]))", per, batches, rows);
        n = TRN_G(c, "Mul", rows, batches);
    }
    at = TRN_GE(c, "(Reshape $0 #[-1])", at);
    int64_t rest[TRN_MAX_RANK];
    k = 0;
    for (int i = nb; i < r; i++)
        if (i != axis)
            rest[k++] = i;
    trn_out tail = TRN_GE(c, "(GatherV2 $0 $1 #0)", shape, trn_g_ints_const(c, rest, k));
    d = TRN_GE(c, "(Reshape $0 (ConcatV2 (Shape $1) $2 #0))", d, at, tail);
    d = TRN_G(c, "UnsortedSegmentSum", d, at, n);
    trn_out whole = TRN_GE(c, "(ConcatV2 (Slice $0 #[0] $1) (Reshape $2 #[1]) $3 #0)", shape, trn_g_ints_const(c, &batch, 1), rows, tail);
    d = trn_g_reshape(c, d, whole);
    /* batch | axis | outer | inner → batch | outer | axis | inner */
    k = 0;
    for (int i = 0; i < nb; i++)
        perm[k++] = i;
    for (int i = 0; i < no; i++)
        perm[k++] = nb + 1 + i;
    perm[k++] = nb;
    for (int i = nb + no + 1; i < r; i++)
        perm[k++] = i;
    trn_grad_set(c, 0, TRN_G(c, "Transpose", d, trn_g_ints_const(c, perm, r)));
}

static void gather(trn_grad_ctx *c)
{
    int64_t axis = 0, batch = trn_attr_int(c->n, "batch_dims");
    int n = 1;
    if (c->n->n_in > 2 && (!trn_g_ints(&axis, &n, 1, c, IN(2)) || n != 1)) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of GatherV2 '%s': the axis must be a constant", c->n->name));
        return;
    }
    if (c->n->n_in == 2)
        axis = batch; /* of a variable */
    if (axis == 0 && batch == 0)
        gather_rows(c);
    else
        gather_axis(c, axis, batch);
}

static void gather_nd(trn_grad_ctx *c)
{
    trn_shape known, ids = trn_g_shape(c, IN(1));
    trn_out shape = params_shape(c, &known);
    if (ids.rank == 2 && ids.dim[1] == 1) {
        trn_grad_set_any(c, 0, (trn_grad){trn_grad_dy(c, 0), TRN_GE(c, "(Reshape y #[-1])"), shape});
        return;
    }
    trn_grad_set(c, 0, TRN_GE(c, "(ScatterNd y d $0)", trn_g_cast(c, shape, trn_g_type(c, IN(1)))));
}

/* Rows whose number is negative were dropped: their gradient is zero. */
static void unsorted_segment_sum(trn_grad_ctx *c)
{
    trn_out ids = IN(1), zero = trn_g_num(c, trn_g_type(c, ids), 0);
    trn_out g = TRN_GE(c, "(GatherV2 d (Maximum $0 $1) #0)", ids, zero), keep = TRN_G(c, "GreaterEqual", ids, zero);
    trn_shape sg = trn_g_shape(c, g), si = trn_g_shape(c, ids);
    if (sg.rank >= 0 && si.rank >= 0) {
        for (int i = si.rank; i < sg.rank; i++)
            keep = TRN_GE(c, "(ExpandDims $0 #-1)", keep);
    } else {
        keep = TRN_GE(c, "(Reshape $0 (ConcatV2 (Shape $0) (Fill (Reshape (Sub (Rank $1) (Rank $0)) #[1]) #1) #0))", keep, g);
    }
    trn_grad_set(c, 0, TRN_GE(c, "(SelectV2 $0 $1 $2)", keep, g, trn_g_num(c, trn_g_type(c, g), 0)));
}

/* As it came, slices or not. */
static void pass(trn_grad_ctx *c) { trn_grad_set_any(c, 0, trn_grad_dy_any(c, 0)); }

const trn_grad_row trn_grads_state[] = {
    {"Gather", .fn = gather},
    {"GatherNd", .fn = gather_nd},
    {"GatherV2", .fn = gather},
    {"ReadVariableOp", .fn = pass},
    {"ResourceGather", .fn = gather},
    {"ResourceGatherNd", .fn = gather_nd},
    {"ScatterNd", {NULL, "(GatherNd d x)"}},
    {"SegmentSum", {"(GatherV2 d y #0)"}},
    {"SparseSegmentSum", {"(UnsortedSegmentSum (GatherV2 d z #0) y (StridedSlice (Shape x) #[0] #[1] #[1] shrink_axis_mask=1))"}},
    {"UnsortedSegmentSum", .fn = unsorted_segment_sum},
    {0},
};
