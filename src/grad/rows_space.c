/* Gradients of images, volumes and blocks, of scattering into tensors, and of fused recurrent layers. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

static void resize_nearest(trn_grad_ctx *c)
{
    trn_out size = TRN_GE(c, "(StridedSlice (Shape x) #[1] #[3] #[1])");
    trn_grad_set(c, 0, TRN_GE(c, "(ResizeNearestNeighborGrad d $0 @)", size));
}

static void crop_and_resize(trn_grad_ctx *c)
{
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_GE(c, "(CropAndResizeGradImage d y z (Shape x) @)"));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, TRN_GE(c, "(CropAndResizeGradBoxes d x y z)")); /* of bilinear crops, whatever these are */
}

/* The gradient is seen through the inverse: a good guess, and TensorFlow's. */
static void warp(trn_grad_ctx *c)
{
    trn_out ones = TRN_GE(c, "(OnesLike (StridedSlice y #[0,0] #[0,1] #[1,1] begin_mask=1 end_mask=1))");
    trn_out flat = TRN_GE(c, "(Reshape (MatrixInverse (Reshape (ConcatV2 y $0 #1) #[-1,3,3])) #[-1,9])", ones);
    flat = TRN_GE(c, "(RealDiv $0 (StridedSlice $0 #[0,8] #[0,9] #[1,1] begin_mask=1 end_mask=1))", flat);
    flat = TRN_GE(c, "(StridedSlice $0 #[0,0] #[0,8] #[1,1] begin_mask=1 end_mask=1)", flat);
    trn_out size = TRN_GE(c, "(StridedSlice (Shape x) #[1] #[3] #[1])");
    if (c->n->n_in == 3)
        trn_grad_set(c, 0, TRN_GE(c, "(ImageProjectiveTransformV2 d $0 $1 @)", flat, size));
    else
        trn_grad_set(c, 0, TRN_GE(c, "(ImageProjectiveTransformV3 d $0 $1 $2 @)", flat, size, trn_g_num(c, TRN_FLOAT, 0)));
}

/* To images of halves and of whole numbers there is none. */
static void resize_bicubic(trn_grad_ctx *c)
{
    trn_dtype t = trn_g_type(c, IN(0));
    if (t == TRN_FLOAT || t == TRN_DOUBLE)
        trn_grad_set(c, 0, TRN_GE(c, "(ResizeBicubicGrad d x @)"));
}

/* The numbers go back to their places in the rows. */
static void top_k(trn_grad_ctx *c)
{
    trn_out last = TRN_GE(c, "(StridedSlice (Shape x) #[-1] #[0] #[1] end_mask=1 shrink_axis_mask=1)"), k = TRN_GE(c, "(StridedSlice (Shape o1) #[-1] #[0] #[1] end_mask=1 shrink_axis_mask=1)");
    trn_out rows = TRN_GE(c, "(Reshape $0 (Pack #-1 $1))", trn_g_cast(c, trn_grad_out(c, 1), TRN_INT32), k);
    trn_out n = TRN_GE(c, "(StridedSlice (Shape $0) #[0] #[1] #[1] shrink_axis_mask=1)", rows);
    trn_out at = TRN_GE(c, "(Reshape (AddV2 $0 (ExpandDims (Range #0 (Mul $1 $2) $2) #-1)) #[-1])", rows, n, last);
    trn_out all = TRN_GE(c, "(UnsortedSegmentSum (Reshape d #[-1]) $0 (Mul $1 $2))", at, n, last);
    trn_grad_set(c, 0, trn_g_like(c, all, IN(0)));
}

/* Likewise, along any dim: x is [outer, n, inner]. */
static void approx_top_k(trn_grad_ctx *c)
{
    int32_t axis = (int32_t)trn_attr_int(c->n, "reduction_dimension");
    trn_out at = trn_g_i32(c, axis), n = TRN_GE(c, "(GatherV2 (Shape x) (FloorMod $0 (Rank x)) #0)", at), k = TRN_GE(c, "(GatherV2 (Shape o1) (FloorMod $0 (Rank x)) #0)", at);
    trn_out inner = axis == -1 ? trn_g_i32(c, 1) : TRN_GE(c, "(Prod (StridedSlice (Shape x) (Reshape $0 #[1]) #[0] #[1] end_mask=1) #0)", trn_g_i32(c, axis + 1));
    trn_out lines = TRN_GE(c, "(Reshape o1 (Pack #-1 $0 $1))", k, inner);
    trn_out first = TRN_GE(c, "(Range #0 (Size x) (Mul $0 $1))", n, inner);
    trn_out to = TRN_GE(c, "(AddV2 (AddV2 (Mul $0 $1) (Range #0 $1 #1)) (Reshape $2 #[-1,1,1]))", lines, inner, first);
    trn_grad_set(c, 0, trn_g_like(c, TRN_GE(c, "(UnsortedSegmentSum (Reshape d #[-1]) (Reshape $0 #[-1]) (Size x))", to), IN(0)));
}

static void nth_element(trn_grad_ctx *c)
{
    trn_out is = trn_g_cast(c, TRN_GE(c, "(Equal (ExpandDims o #-1) x)"), trn_g_type(c, trn_grad_dy(c, 0)));
    trn_grad_set(c, 0, TRN_GE(c, "(Mul (ExpandDims d #-1) (RealDiv $0 (Sum $0 #-1 keep_dims=true)))", is));
}

/* Each run of equal results was a mean. */
static void isotonic(trn_grad_ctx *c)
{
    trn_out n = TRN_GE(c, "(StridedSlice (Shape x) #[-1] #[0] #[1] end_mask=1 shrink_axis_mask=1)"), rows = TRN_GE(c, "(Reshape o1 (Pack #-1 $0))", n);
    trn_out first = TRN_GE(c, "(Mul (Range #0 (StridedSlice (Shape $0) #[0] #[1] #[1] shrink_axis_mask=1) #1) $1)", rows, n);
    trn_out at = TRN_GE(c, "(Reshape (AddV2 $0 (ExpandDims $1 #-1)) #[-1])", rows, first), d = TRN_GE(c, "(Reshape d #[-1])");
    trn_out mean = TRN_GE(c, "(DivNoNan (UnsortedSegmentSum $0 $1 (Size x)) (UnsortedSegmentSum (OnesLike $0) $1 (Size x)))", d, at);
    trn_grad_set(c, 0, trn_g_like(c, TRN_GE(c, "(GatherV2 $0 $1 #0)", mean, at), IN(0)));
}

static void sparse_to_dense(trn_grad_ctx *c)
{
    trn_shape s = trn_g_shape(c, IN(0));
    trn_out at = s.rank == 2 ? IN(0) : TRN_GE(c, "(Reshape x (Pack #-1 (Size y)))"), v = TRN_GE(c, "(GatherNd d $0)", at);
    if (trn_grad_wanted(c, 2))
        trn_grad_set(c, 2, trn_g_like(c, v, IN(2)));
    if (trn_grad_wanted(c, 3))
        trn_grad_set(c, 3, TRN_GE(c, "(Sub (Sum d (Range #0 (Rank d) #1)) (Sum $0 (Range #0 (Rank $0) #1)))", v));
}

/* What is scattered and what was there have a part each, where they are equal. */
static void scatter_extreme(trn_grad_ctx *c)
{
    trn_dtype t = trn_g_type(c, IN(0));
    trn_out x_is = trn_g_cast(c, TRN_GE(c, "(Equal x o)"), t), y_is = trn_g_cast(c, TRN_GE(c, "(Equal z (GatherNd o y))"), t);
    trn_out shape = trn_g_cast(c, TRN_GE(c, "(Shape x)"), trn_g_type(c, IN(1)));
    trn_out share = TRN_GE(c, "(RealDiv d (AddV2 $0 (ScatterNd y $1 $2)))", x_is, y_is, shape);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_G(c, "Mul", share, x_is));
    if (trn_grad_wanted(c, 2))
        trn_grad_set(c, 2, TRN_GE(c, "(Mul (GatherNd $0 y) $1)", share, y_is));
}

static void strided_update(trn_grad_ctx *c)
{
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_GE(c, "(TensorStridedSliceUpdate d y z w (ZerosLike i4) @)"));
    if (trn_grad_wanted(c, 4))
        trn_grad_set(c, 4, TRN_GE(c, "(StridedSlice d y z w @)"));
}

static void max_pool_grad_v2(trn_grad_ctx *c) { trn_grad_set(c, 2, TRN_GE(c, "(MaxPoolGradGradV2 x y d w i4 @)")); }

static void frac_avg_pool(trn_grad_ctx *c)
{
    trn_out shape = trn_g_cast(c, TRN_GE(c, "(Shape x)"), TRN_INT64);
    trn_grad_set(c, 0, TRN_GE(c, "(FractionalAvgPoolGrad $0 d o1 o2 @)", shape));
}

static void first_only(trn_grad_ctx *c) { trn_grad_set_any(c, 0, trn_grad_dy_any(c, 0)); }

/* Whatever the op has worked out goes into the op that goes back. */
static void block_lstm(trn_grad_ctx *c)
{
    bool v2 = strcmp(c->n->op, "BlockLSTMV2") == 0;
    trn_out in[18];
    for (int i = 0; i < 9; i++)
        in[i] = IN(i);
    for (int i = 0; i < 7; i++)
        in[9 + i] = trn_grad_out(c, i);
    in[16] = trn_grad_dy(c, 1);
    in[17] = trn_grad_dy(c, 6);
    trn_attr a = trn_attr__bool("use_peephole", trn_attr_bool(c->n, "use_peephole"));
    trn_out g = trn_g_node(c, v2 ? "BlockLSTMGradV2" : "BlockLSTMGrad", in, 18, &a, 1);
    for (int i = 0; i < 8 && trn_g_ok(c); i++)
        trn_grad_set(c, i + 1, trn_out_nth(g, i));
}

static void list_concat(trn_grad_ctx *c) { trn_grad_set(c, 0, TRN_GE(c, "(TensorListSplit d (TensorListElementShape x shape_type=int32) o1)")); }
static void list_split(trn_grad_ctx *c) { trn_grad_set(c, 0, TRN_GE(c, "(TensorListConcatV2 d y z element_dtype=@)")); }

const trn_grad_row trn_grads_space[] = {
    {"ApproxTopK", .fn = approx_top_k},
    {"AvgPool3D", {"(AvgPool3DGrad (Shape x) d @)"}},
    {"AvgPool3DGrad", {NULL, "(AvgPool3D d @)"}},
    {"BatchToSpace", {"(SpaceToBatch d y @)"}},
    {"BatchToSpaceND", {"(SpaceToBatchND d y z)"}},
    {"BlockLSTM", .fn = block_lstm},
    {"BlockLSTMV2", .fn = block_lstm},
    {"CTCLoss", {"(Mul (Reshape d #[1,-1,1]) o1)"}},
    {"Conv3D", {"(Conv3DBackpropInputV2 (Shape x) y d @)", "(Conv3DBackpropFilterV2 x (Shape y) d @)"}},
    {"Conv3DBackpropFilterV2", {"(Conv3DBackpropInputV2 (Shape x) d z @)", NULL, "(Conv3D x d @)"}},
    {"Conv3DBackpropInputV2", {NULL, "(Conv3DBackpropFilterV2 d (Shape y) z @)", "(Conv3D d y @)"}},
    {"CropAndResize", .fn = crop_and_resize},
    {"DepthToSpace", {"(SpaceToDepth d @)"}},
    {"Dilation2D", {"(Dilation2DBackpropInput x y d @)", "(Dilation2DBackpropFilter x y d @)"}},
    {"FractionalAvgPool", .fn = frac_avg_pool},
    {"FractionalMaxPool", {"(FractionalMaxPoolGrad x o d o1 o2 @)"}},
    {"ImageProjectiveTransformV2", .fn = warp},
    {"ImageProjectiveTransformV3", .fn = warp},
    {"IsotonicRegression", .fn = isotonic},
    {"LRN", {"(LRNGrad d x o @)"}},
    {"MaxPool3D", {"(MaxPool3DGrad x o d @)"}},
    {"MaxPool3DGrad", {NULL, NULL, "(MaxPool3DGradGrad x y d @)"}},
    {"MaxPool3DGradGrad", {NULL, NULL, "(MaxPool3DGrad x y d @)"}},
    {"MaxPoolGradGrad", {NULL, NULL, "(MaxPoolGrad x y d @)"}},
    {"MaxPoolGradV2", .fn = max_pool_grad_v2},
    {"MaxPoolV2", {"(MaxPoolGradV2 x o d y z @)"}},
    {"MaxPoolWithArgmax", {"(MaxPoolGradWithArgmax x d o1 @)"}},
    {"NthElement", .fn = nth_element},
    {"PlaceholderWithDefault", {"d"}},
    {"Print", .fn = first_only},
    {"ResizeBicubic", .fn = resize_bicubic},
    {"ResizeBilinear", {"(ResizeBilinearGrad d x @)"}},
    {"ResizeNearestNeighbor", .fn = resize_nearest},
    {"Reverse", {"(Reverse d y)"}},
    {"ReverseSequence", {"(ReverseSequence d y @)"}},
    {"Roll", {"(Roll d (Neg y) z)"}},
    {"ScaleAndTranslate", {"(ScaleAndTranslateGrad d x z w @)"}},
    {"ScatterNdNonAliasingAdd", {"d", NULL, "(GatherNd d y)"}},
    {"SpaceToBatch", {"(BatchToSpace d y @)"}},
    {"SpaceToBatchND", {"(BatchToSpaceND d y z)"}},
    {"SpaceToDepth", {"(DepthToSpace d @)"}},
    {"SparseToDense", .fn = sparse_to_dense},
    {"TensorListConcat", .fn = list_concat},
    {"TensorListConcatV2", .fn = list_concat},
    {"TensorListSplit", .fn = list_split},
    {"TensorScatterAdd", {"d", NULL, "(GatherNd d y)"}},
    {"TensorScatterMax", .fn = scatter_extreme},
    {"TensorScatterMin", .fn = scatter_extreme},
    {"TensorScatterSub", {"d", NULL, "(Neg (GatherNd d y))"}},
    {"TensorScatterUpdate", {"(TensorScatterUpdate d y (ZerosLike z))", NULL, "(GatherNd d y)"}},
    {"TensorStridedSliceUpdate", .fn = strided_update},
    {"TopK", .fn = top_k},
    {"TopKV2", .fn = top_k},
    {0},
};
