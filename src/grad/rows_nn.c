/* Gradients of layers: activations, losses, convolution, pooling, normalisation. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

static void bias_add_grad(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), s = trn_g_shape_of(c, IN(0));
    if (strcmp(trn_attr_str(c->n, "data_format"), "NCHW") == 0) {
        trn_shape x = trn_g_shape(c, IN(0));
        if (x.rank < 3) {
            trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of BiasAddGrad '%s' in NCHW, of a rank that is not known", c->n->name));
            return;
        }
        int64_t dims[TRN_MAX_RANK];
        dims[0] = -1;
        for (int i = 1; i < x.rank - 1; i++)
            dims[i] = 1;
        d = trn_g_reshape(c, d, trn_g_ints_const(c, dims, x.rank - 1));
    }
    trn_grad_set(c, 0, TRN_G(c, "BroadcastTo", d, s));
}

/* Loss per example, whose derivative the op has worked out already (output 1); that one may have been differentiated, too. */
static void cross_entropy(trn_grad_ctx *c)
{
    bool dense = c->n->op[0] == 'S' && c->n->op[1] == 'o'; /* not SparseSoftmax…: labels have a gradient */
    if (trn_grad_wanted(c, 0)) {
        trn_out sum[2];
        int n = 0;
        if (trn_grad_has_dy(c, 0))
            sum[n++] = TRN_GE(c, "(Mul (ExpandDims d #-1) o1)");
        if (trn_grad_has_dy(c, 1)) {
            trn_out p = TRN_GE(c, "(Softmax x)");
            sum[n++] = TRN_GE(c, "(Mul (Sub d1 (Sum (Mul d1 $0) #-1 keep_dims=true)) $0)", p);
        }
        trn_grad_set(c, 0, n == 2 ? TRN_G(c, "AddV2", sum[0], sum[1]) : sum[0]);
    }
    if (dense && trn_grad_wanted(c, 1) && trn_grad_has_dy(c, 0))
        trn_grad_set(c, 1, TRN_GE(c, "(Mul (ExpandDims d #-1) (Neg (LogSoftmax x)))"));
}

/* When it was not training, mean and variance are constants that came in. */
static void batch_norm(trn_grad_ctx *c)
{
    if (!trn_grad_has_dy(c, 0))
        return;
    bool training = trn_attr_bool(c->n, "is_training"), v3 = strcmp(c->n->op, "FusedBatchNormV3") == 0, v1 = strcmp(c->n->op, "FusedBatchNorm") == 0;
    trn_out m = training ? trn_grad_out(c, 3) : IN(3), v = training ? trn_grad_out(c, 4) : IN(4);
    trn_out d = v3   ? TRN_GE(c, "(FusedBatchNormGradV3 d x y $0 $1 o5 epsilon=@ data_format=@ is_training=@)", m, v)
                : v1 ? TRN_GE(c, "(FusedBatchNormGrad d x y $0 $1 epsilon=@ data_format=@ is_training=@)", m, v)
                     : TRN_GE(c, "(FusedBatchNormGradV2 d x y $0 $1 epsilon=@ data_format=@ is_training=@)", m, v);
    for (int i = 0; i < 3; i++)
        trn_grad_set(c, i, trn_out_nth(d, i));
}

const trn_grad_row trn_grads_nn[] = {
    {"AvgPool", {"(AvgPoolGrad (Shape x) d @)"}},
    {"AvgPoolGrad", {NULL, "(AvgPool d @)"}},
    {"BiasAdd", {"d", "(BiasAddGrad d @)"}},
    {"BiasAddGrad", .fn = bias_add_grad},
    {"BiasAddV1", {"d", "(BiasAddGrad d)"}},
    {"Conv2D", {"(Conv2DBackpropInput (Shape x) y d @)", "(Conv2DBackpropFilter x (Shape y) d @)"}},
    {"Conv2DBackpropFilter", {"(Conv2DBackpropInput (Shape x) d z @)", NULL, "(Conv2D x d @)"}},
    {"Conv2DBackpropInput", {NULL, "(Conv2DBackpropFilter d (Shape y) z @)", "(Conv2D d y @)"}},
    {"DepthwiseConv2dNative", {"(DepthwiseConv2dNativeBackpropInput (Shape x) y d @)", "(DepthwiseConv2dNativeBackpropFilter x (Shape y) d @)"}},
    {"DepthwiseConv2dNativeBackpropFilter", {"(DepthwiseConv2dNativeBackpropInput (Shape x) d z @)", NULL, "(DepthwiseConv2dNative x d @)"}},
    {"DepthwiseConv2dNativeBackpropInput", {NULL, "(DepthwiseConv2dNativeBackpropFilter d (Shape y) z @)", "(DepthwiseConv2dNative d y @)"}},
    {"Elu", {"(EluGrad d o)"}},
    {"EluGrad", {"(EluGrad d y)", "(SelectV2 (Less y (ZerosLike y)) (Mul d x) (ZerosLike y))"}},
    {"FusedBatchNorm", .fn = batch_norm},
    {"FusedBatchNormV2", .fn = batch_norm},
    {"FusedBatchNormV3", .fn = batch_norm},
    {"LeakyRelu", {"(LeakyReluGrad d x @)"}},
    {"LeakyReluGrad", {"(LeakyReluGrad d y @)"}},
    {"LogSoftmax", {"(Sub d (Mul (Exp o) (Sum d #-1 keep_dims=true)))"}},
    {"MaxPool", {"(MaxPoolGrad x o d @)"}},
    {"MaxPoolGrad", {NULL, NULL, "(MaxPoolGradGrad x y d @)"}},
    {"Relu", {"(ReluGrad d o)"}},
    {"Relu6", {"(Relu6Grad d o)"}},
    {"Relu6Grad", {"(Relu6Grad d y)"}},
    {"ReluGrad", {"(ReluGrad d y)"}},
    {"Selu", {"(SeluGrad d o)"}},
    {"SeluGrad", {"(SeluGrad d y)", "(SelectV2 (Less y (ZerosLike y)) (Mul d x) (ZerosLike y))"}},
    {"Softmax", {"(Mul (Sub d (Sum (Mul d o) #-1 keep_dims=true)) o)"}},
    {"SoftmaxCrossEntropyWithLogits", .fn = cross_entropy},
    {"Softplus", {"(SoftplusGrad d x)"}},
    {"SoftplusGrad", {"(SoftplusGrad d y)", "(RealDiv (Mul d x) (AddV2 (Exp (Neg y)) (AddV2 2 (Exp y))))"}},
    {"Softsign", {"(SoftsignGrad d x)"}},
    {"SparseSoftmaxCrossEntropyWithLogits", .fn = cross_entropy},
    {0},
};
