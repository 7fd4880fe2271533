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

/* The gradient of the gradient: what the op does, once more in small steps, which have gradients. */
static void batch_norm_grad(trn_grad_ctx *c)
{
    bool training = trn_attr_bool(c->n, "is_training"), nchw = strcmp(trn_attr_str(c->n, "data_format"), "NCHW") == 0;
    trn_dtype t = trn_g_type(c, IN(1));
    double eps = (double)trn_attr_float(c->n, "epsilon");
    trn_out in[3], first = TRN_NONE;
    for (int i = 0; i < 3; i++) {
        in[i] = TRN_GE(c, "(Identity $0)", IN(i));
        first = i ? first : in[0];
    }
    trn_out dy = trn_g_cast(c, in[0], TRN_FLOAT), x = trn_g_cast(c, in[1], TRN_FLOAT), scale = in[2];
    if (nchw) {
        dy = TRN_GE(c, "(Transpose $0 #[0,2,3,1])", dy);
        x = TRN_GE(c, "(Transpose $0 #[0,2,3,1])", x);
    }
    trn_out e = trn_g_num(c, TRN_FLOAT, eps), off, off_y, inv, dx, dscale, doffset = TRN_GE(c, "(Sum $0 #[0,1,2])", dy);
    if (training) {
        off = TRN_GE(c, "(Sub $0 (Mean $0 #[0,1,2] keep_dims=true))", x);
        off_y = TRN_GE(c, "(Sub $0 (Mean $0 #[0,1,2] keep_dims=true))", dy);
        trn_out var = TRN_GE(c, "(AddV2 (Mean (Square $0) #[0,1,2]) $1)", off, e);
        inv = TRN_GE(c, "(Rsqrt $0)", var);
        trn_out both = TRN_GE(c, "(Mean (Mul $0 $1) #[0,1,2] keep_dims=true)", off_y, off);
        dx = TRN_GE(c, "(Mul (Mul $0 $1) (Sub $2 (Mul (Mul (Reciprocal $3) $4) $5)))", scale, inv, off_y, var, both, off);
    } else { /* mean and variance came in */
        off = TRN_GE(c, "(Sub $0 $1)", x, IN(3));
        inv = TRN_GE(c, "(Rsqrt (AddV2 $0 $1))", IN(4), e);
        dx = TRN_GE(c, "(Mul $0 (Mul $1 $2))", dy, scale, inv);
    }
    dscale = TRN_GE(c, "(Mul $0 (Sum (Mul $1 $2) #[0,1,2]))", inv, dy, off);
    if (nchw)
        dx = TRN_GE(c, "(Transpose $0 #[0,3,1,2])", dx);
    dx = TRN_GE(c, "(Identity $0)", trn_g_cast(c, dx, t));
    trn_out ys[3] = {dx, dscale, doffset};
    trn_grad dys[3], d[3];
    for (int i = 0; i < 3; i++)
        dys[i] = trn_grad_dy_any(c, i);
    if (!trn_g_ok(c))
        return;
    trn_ghost h = *c->h;
    h.first = first.node;
    h.end = dx.node + 1;
    trn_grad__run(d, &h, c->tmp, in, 3, ys, dys, 3, NULL, 0);
    for (int i = 0; i < 3 && trn_g_ok(c); i++)
        trn_grad_set_any(c, i, d[i]);
}

static void global_norm(trn_grad_ctx *c)
{
    trn_out d = TRN_GE(c, "(BatchNormWithGlobalNormalizationGrad x y z i4 d @)");
    for (int i = 0; i < 5; i++)
        trn_grad_set(c, i, trn_out_nth(d, i));
}

/* One node gives the gradients of the numbers and of both ends of their range. */
static void quantized(trn_grad_ctx *c)
{
    const char *op = c->n->op;
    trn_out d = *op == 'Q'                  ? TRN_GE(c, "(QuantizeAndDequantizeV4Grad d x y z axis=@)")
                : !strstr(op, "PerChannel") ? TRN_GE(c, "(FakeQuantWithMinMaxVarsGradient d x y z @)")
                                            : TRN_GE(c, "(FakeQuantWithMinMaxVarsPerChannelGradient d x y z @)");
    for (int i = 0; i < 3; i++)
        trn_grad_set(c, i, trn_out_nth(d, i));
}

const trn_grad_row trn_grads_nn[] = {
    {"AvgPool", {"(AvgPoolGrad (Shape x) d @)"}},
    {"AvgPoolGrad", {NULL, "(AvgPool d @)"}},
    {"BatchNormWithGlobalNormalization", .fn = global_norm},
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
    {"FakeQuantWithMinMaxArgs", {"(FakeQuantWithMinMaxArgsGradient d x @)"}},
    {"FakeQuantWithMinMaxVars", .fn = quantized},
    {"FakeQuantWithMinMaxVarsPerChannel", .fn = quantized},
    {"FusedBatchNorm", .fn = batch_norm},
    {"FusedBatchNormGrad", .fn = batch_norm_grad},
    {"FusedBatchNormGradV2", .fn = batch_norm_grad},
    {"FusedBatchNormGradV3", .fn = batch_norm_grad},
    {"FusedBatchNormV2", .fn = batch_norm},
    {"FusedBatchNormV3", .fn = batch_norm},
    {"LeakyRelu", {"(LeakyReluGrad d x @)"}},
    {"LeakyReluGrad", {"(LeakyReluGrad d y @)"}},
    {"LogSoftmax", {"(Sub d (Mul (Exp o) (Sum d #-1 keep_dims=true)))"}},
    {"MaxPool", {"(MaxPoolGrad x o d @)"}},
    {"MaxPoolGrad", {NULL, NULL, "(MaxPoolGradGrad x y d @)"}},
    {"QuantizeAndDequantize", {"d"}},
    {"QuantizeAndDequantizeV2", {"d"}},
    {"QuantizeAndDequantizeV3", {"d"}},
    {"QuantizeAndDequantizeV4", .fn = quantized},
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
