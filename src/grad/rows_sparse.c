/* Gradients by segment, and of sparse tensors: indices have none, values do. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)
#define FIRST_DIM(t) "(StridedSlice (Shape " t ") #[0] #[1] #[1] shrink_axis_mask=1)"

/* Into as many segments as there are results. */
static trn_out sum_by_id(trn_grad_ctx *c, trn_out x)
{
    trn_out n = TRN_GE(c, FIRST_DIM("o"));
    return TRN_G(c, "UnsortedSegmentSum", x, IN(1), n);
}

/* What each number's segment has; ids below zero belong to none, what they get is cleared by the caller. */
static trn_out of_segment(trn_grad_ctx *c, trn_out x)
{
    trn_out zero = trn_g_num(c, trn_g_type(c, IN(1)), 0);
    return TRN_GE(c, "(GatherV2 $0 (Maximum y $1) #0)", x, zero);
}

/* As bools in x's shape: the id is not below zero. */
static trn_out in_a_segment(trn_grad_ctx *c)
{
    trn_out zero = trn_g_num(c, trn_g_type(c, IN(1)), 0), keep = TRN_GE(c, "(GreaterEqual y $0)", zero);
    keep = TRN_GE(c, "(Reshape $0 (ConcatV2 (Shape $0) (Fill (Reshape (Sub (Rank x) (Rank $0)) #[1]) #1) #0))", keep);
    return TRN_GE(c, "(LogicalAnd $0 (Equal (ZerosLike x) (ZerosLike x)))", keep);
}

static void segment_mean(trn_grad_ctx *c)
{
    trn_out ones = TRN_GE(c, "(Fill (ConcatV2 (Shape y) (Fill (Reshape (Sub (Rank x) #1) #[1]) #1) #0) 1)");
    trn_grad_set(c, 0, TRN_GE(c, "(GatherV2 (RealDiv d $0) y #0)", sum_by_id(c, ones)));
}

/* To those that are the greatest (or smallest) of their segment, in equal parts. */
static void segment_max(trn_grad_ctx *c)
{
    trn_dtype t = trn_g_type(c, IN(0));
    trn_out zero = trn_g_num(c, t, 0);
    trn_out is = TRN_G(c, "LogicalAnd", TRN_GE(c, "(Equal x $0)", of_segment(c, trn_grad_out(c, 0))), in_a_segment(c));
    trn_out share = TRN_GE(c, "(DivNoNan d $0)", sum_by_id(c, trn_g_cast(c, is, t)));
    trn_grad_set(c, 0, TRN_G(c, "SelectV2", is, of_segment(c, share), zero));
}

/* The product of the others: by division, but where one number is zero, which alone has a gradient then. */
static void segment_prod(trn_grad_ctx *c)
{
    trn_dtype t = trn_g_type(c, IN(0));
    trn_out zero = trn_g_num(c, t, 0), one = trn_g_num(c, t, 1), is0 = TRN_GE(c, "(Equal x $0)", zero);
    trn_out zeros = sum_by_id(c, trn_g_cast(c, is0, TRN_INT32));
    trn_out d = TRN_GE(c, "(SelectV2 (Greater $0 #1) $1 d)", zeros, zero);
    trn_out rest = TRN_GE(c, "(UnsortedSegmentProd (SelectV2 $0 $1 x) y " FIRST_DIM("o") ")", is0, one);
    trn_out others = TRN_G(c, "SelectV2", is0, of_segment(c, rest), TRN_GE(c, "(RealDiv $0 (SelectV2 $1 $2 x))", of_segment(c, trn_grad_out(c, 0)), is0, one));
    trn_grad_set(c, 0, TRN_GE(c, "(SelectV2 $0 (Mul $1 $2) $3)", in_a_segment(c), of_segment(c, d), others, zero));
}

/* ---- sparse tensors */

static trn_out column(trn_grad_ctx *c, trn_out at, int i)
{
    trn_out k = trn_g_i32(c, i);
    return TRN_GE(c, "(GatherV2 $0 $1 #1)", at, k);
}

static void sparse_dense_mat_mul(trn_grad_ctx *c)
{
    bool adj_a = trn_attr_bool(c->n, "adjoint_a"), adj_b = trn_attr_bool(c->n, "adjoint_b");
    trn_out d = trn_grad_dy(c, 0);
    if (trn_grad_wanted(c, 1)) {
        trn_out r = column(c, IN(0), adj_a ? 1 : 0), k = column(c, IN(0), adj_a ? 0 : 1), b = adj_b ? TRN_GE(c, "(Transpose w #[1,0])") : IN(3);
        trn_grad_set(c, 1, TRN_GE(c, "(Sum (Mul (GatherV2 $0 $1 #0) (GatherV2 $2 $3 #0)) #-1)", d, r, b, k));
    }
    if (trn_grad_wanted(c, 3)) {
        trn_attr a[] = {trn_attr__bool("adjoint_a", !adj_a), trn_attr__bool("adjoint_b", false)};
        trn_out g = trn_g_node(c, "SparseTensorDenseMatMul", TRN_OUTS(IN(0), IN(1), IN(2), d), a, 2);
        trn_grad_set(c, 3, adj_b ? TRN_GE(c, "(Transpose $0 #[1,0])", g) : g);
    }
}

static void sparse_reorder(trn_grad_ctx *c)
{
    trn_out n = TRN_GE(c, FIRST_DIM("x"));
    trn_out order = TRN_GE(c, "(SparseReorder x (Range #0 $0 #1) z).1", n);
    if (trn_grad_has_dy(c, 1))
        trn_grad_set(c, 1, TRN_GE(c, "(GatherV2 d1 (InvertPermutation $0) #0)", order));
}

static void sparse_add(trn_grad_ctx *c)
{
    if (!trn_grad_has_dy(c, 1))
        return;
    trn_out g = TRN_GE(c, "(SparseAddGrad d1 x w o)");
    trn_grad_set(c, 1, g);
    trn_grad_set(c, 4, trn_out_nth(g, 1));
}

static void sparse_reduce_sum(trn_grad_ctx *c)
{
    trn_out shape = trn_g_cast(c, IN(2), TRN_INT32), rank = TRN_G(c, "Size", shape);
    trn_out axes = TRN_GE(c, "(FloorMod (AddV2 (Reshape $0 #[-1]) $1) $1)", IN(3), rank);
    trn_out kept = TRN_GE(c, "(DynamicStitch (Range #0 $0 #1) $1 $2 (OnesLike $1))", rank, axes, shape);
    trn_out scale = trn_g_cast(c, TRN_GE(c, "(FloorDiv $0 $1)", shape, kept), TRN_INT64);
    trn_grad_set(c, 1, TRN_GE(c, "(GatherNd (Reshape d $0) (FloorDiv x $1))", kept, scale));
}

/* The dense side as the sparse one sees it. */
static trn_out dense_values(trn_grad_ctx *c)
{
    trn_out s = trn_g_cast(c, TRN_GE(c, "(Shape w)"), TRN_INT64), one = trn_g_const(c, trn_tensor_i64(1));
    trn_out lead = TRN_GE(c, "(Fill (Sub (Shape z) (Shape $0)) $1)", s, one);
    trn_out whole = TRN_GE(c, "(ConcatV2 $0 $1 #0)", lead, s);
    return TRN_GE(c, "(GatherNd (Reshape w $0) (FloorDiv x (FloorDiv z $0)))", whole);
}

static void cwise_mul(trn_grad_ctx *c) { trn_grad_set(c, 1, TRN_GE(c, "(Mul d $0)", dense_values(c))); }
static void cwise_div(trn_grad_ctx *c) { trn_grad_set(c, 1, TRN_GE(c, "(RealDiv d $0)", dense_values(c))); }

static void fill_empty_rows(trn_grad_ctx *c)
{
    if (!trn_grad_has_dy(c, 1))
        return;
    bool ragged = c->n->op[0] == 'R';
    trn_out g = TRN_GE(c, ragged ? "(RaggedFillEmptyRowsGrad o3 d1)" : "(SparseFillEmptyRowsGrad o3 d1)");
    trn_grad_set(c, 1, g);
    trn_grad_set(c, 3, trn_out_nth(g, 1));
}

static void sparse_slice(trn_grad_ctx *c)
{
    if (trn_grad_has_dy(c, 1))
        trn_grad_set(c, 1, TRN_GE(c, "(SparseSliceGrad d1 x w o)"));
}

#define SPARSE_SUM {"(UnsortedSegmentSum (GatherV2 d z #0) y " FIRST_DIM("x") ")"}

const trn_grad_row trn_grads_sparse[] = {
    {"SegmentMax", .fn = segment_max},
    {"SegmentMean", .fn = segment_mean},
    {"SegmentMin", .fn = segment_max},
    {"SegmentProd", .fn = segment_prod},
    {"SparseAdd", .fn = sparse_add},
    {"SparseDenseCwiseAdd", {NULL, "d"}},
    {"SparseDenseCwiseDiv", .fn = cwise_div},
    {"SparseDenseCwiseMul", .fn = cwise_mul},
    {"RaggedFillEmptyRows", .fn = fill_empty_rows},
    {"SparseFillEmptyRows", .fn = fill_empty_rows},
    {"SparseReduceSum", .fn = sparse_reduce_sum},
    {"SparseReorder", .fn = sparse_reorder},
    {"SparseSegmentMean", {"(SparseSegmentMeanGrad d y z " FIRST_DIM("x") ")"}},
    {"SparseSegmentMeanWithNumSegments", {"(SparseSegmentMeanGrad d y z " FIRST_DIM("x") ")"}},
    {"SparseSegmentSqrtN", {"(SparseSegmentSqrtNGrad d y z " FIRST_DIM("x") ")"}},
    {"SparseSegmentSqrtNWithNumSegments", {"(SparseSegmentSqrtNGrad d y z " FIRST_DIM("x") ")"}},
    {"SparseSegmentSumWithNumSegments", SPARSE_SUM},
    {"SparseSlice", .fn = sparse_slice},
    {"SparseSoftmax", {NULL, "(Mul o (SparseDenseCwiseAdd x d z (Neg (SparseReduceSum x (Mul o d) z #[-1] keep_dims=true))))"}},
    {"SparseTensorDenseAdd", {NULL, "(GatherNd d x)", NULL, "d"}},
    {"SparseTensorDenseMatMul", .fn = sparse_dense_mat_mul},
    {"UnsortedSegmentMax", .fn = segment_max},
    {"UnsortedSegmentMin", .fn = segment_max},
    {"UnsortedSegmentProd", .fn = segment_prod},
    {0},
};
