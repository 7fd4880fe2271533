/* Convolutions and pools over [batch, height, width, channels]. */
#include "train/nn_priv.h"

#include <math.h>

static int64_t or1(int64_t v) { return v ? v : 1; }

/* What the conv layers share, checked: strides, dilations, channels. */
typedef struct conv {
    const trn_conv_opts *o;
    const char *layer;
    int64_t in, stride[2], dilation[2], multiplier;
    const char *padding;
    trn_dtype t;
} conv;

static bool conv_init(conv *c, trn_builder *b, const char *layer, trn_out x, int rank, int64_t filters, int64_t h, int64_t w, const trn_conv_opts *opts)
{
    static const trn_conv_opts none;
    const trn_conv_opts *o = opts ? opts : &none;
    const trn_shape *s = trn_nn__shape(b, x);
    char text[TRN_SHAPE_TEXT];
    if (!trn_builder_ok(b))
        return false;
    *c = (conv){.o = o, .layer = layer, .t = trn_out_dtype(b, x), .multiplier = or1(o->multiplier)};
    c->stride[0] = or1(o->stride);
    c->stride[1] = o->stride_w ? o->stride_w : c->stride[0];
    c->dilation[0] = or1(o->dilation);
    c->dilation[1] = o->dilation_w ? o->dilation_w : c->dilation[0];
    c->padding = o->padding == TRN_SAME ? "SAME" : "VALID";
    if (s->rank != rank || s->dim[rank - 1] < 1)
        BAD(b, "%s: its input must have %d dimensions and a known number of channels, but %s is %s", layer, rank, trn_out_name(b, x), trn_shape_text(text, s));
    else if (!trn_nn__is_float(c->t))
        BAD(b, "%s: its input must be of floats, but %s is of %s", layer, trn_out_name(b, x), trn_dtype_name(c->t));
    else if (filters < 1 || h < 1 || w < 1)
        BAD(b, "%s: %lld filters of %lld by %lld; all must be positive", layer, (long long)filters, (long long)h, (long long)w);
    else if (c->stride[0] < 1 || c->stride[1] < 1 || c->dilation[0] < 1 || c->dilation[1] < 1 || c->multiplier < 1)
        BAD(b, "%s: strides, dilations and the multiplier must be positive", layer);
    else if ((c->stride[0] > 1 || c->stride[1] > 1) && (c->dilation[0] > 1 || c->dilation[1] > 1))
        BAD(b, "%s: strides and dilations cannot both be over 1", layer);
    c->in = s->rank == rank ? s->dim[rank - 1] : 0;
    return trn_builder_ok(b);
}

static trn_out conv_node(trn_builder *b, const char *op, const conv *c, trn_out x, trn_out kernel)
{
    return OPA(b, op,
               ATTRS(AT_INTS(b, "strides", 1, c->stride[0], c->stride[1], 1), trn_at_str("padding", c->padding),
                     AT_INTS(b, "dilations", 1, c->dilation[0], c->dilation[1], 1)),
               x, kernel);
}

trn_out trn_conv2d(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts)
{
    conv c;
    trn_out y = TRN_NONE;
    nn_layer l = trn_nn__open(b, "conv2d", opts && opts->reuse, opts && opts->not_trainable);
    if (conv_init(&c, b, "conv2d", x, 4, filters, height, width, opts)) {
        trn_variable *k = trn_nn__var(&l, "kernel", c.t, trn_shape_of(4, height, width, c.in, filters), c.o->kernel_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "kernel", k, c.o->l1, c.o->l2);
        if (k)
            y = trn_nn__finish(&l, conv_node(b, "Conv2D", &c, x, trn_nn__read(&l, k)), filters, c.o->no_bias, c.o->bias_init, c.o->activation);
    }
    trn_nn__close(&l);
    return y;
}

trn_out trn_conv1d(trn_builder *b, trn_out x, int64_t filters, int64_t size, const trn_conv_opts *opts)
{
    conv c;
    trn_out y = TRN_NONE;
    nn_layer l = trn_nn__open(b, "conv1d", opts && opts->reuse, opts && opts->not_trainable);
    if (conv_init(&c, b, "conv1d", x, 3, filters, 1, size, opts)) {
        trn_variable *k = trn_nn__var(&l, "kernel", c.t, trn_shape_of(3, size, c.in, filters), c.o->kernel_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "kernel", k, c.o->l1, c.o->l2);
        if (k) { /* images of height 1 */
            trn_out wide = OP(b, "ExpandDims", x, trn_const_i32(b, 1)), filter = OP(b, "ExpandDims", trn_nn__read(&l, k), trn_const_i32(b, 0));
            c.stride[1] = c.stride[0];
            c.dilation[1] = c.dilation[0];
            c.dilation[0] = 1;
            y = OPA(b, "Squeeze", ATTRS(AT_INTS(b, "squeeze_dims", 1)), conv_node(b, "Conv2D", &c, wide, filter));
            y = trn_nn__finish(&l, y, filters, c.o->no_bias, c.o->bias_init, c.o->activation);
        }
    }
    trn_nn__close(&l);
    return y;
}

/* The depthwise op has no dilations of its own in older programs, but the attr is there. */
trn_out trn_depthwise_conv2d(trn_builder *b, trn_out x, int64_t height, int64_t width, const trn_conv_opts *opts)
{
    conv c;
    trn_out y = TRN_NONE;
    nn_layer l = trn_nn__open(b, "depthwise_conv2d", opts && opts->reuse, opts && opts->not_trainable);
    if (conv_init(&c, b, "depthwise_conv2d", x, 4, 1, height, width, opts)) {
        trn_variable *k = trn_nn__var(&l, "depthwise_kernel", c.t, trn_shape_of(4, height, width, c.in, c.multiplier), c.o->kernel_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "depthwise_kernel", k, c.o->l1, c.o->l2);
        if (k)
            y = trn_nn__finish(&l, conv_node(b, "DepthwiseConv2dNative", &c, x, trn_nn__read(&l, k)), c.in * c.multiplier, c.o->no_bias, c.o->bias_init,
                               c.o->activation);
    }
    trn_nn__close(&l);
    return y;
}

trn_out trn_separable_conv2d(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts)
{
    conv c;
    trn_out y = TRN_NONE;
    nn_layer l = trn_nn__open(b, "separable_conv2d", opts && opts->reuse, opts && opts->not_trainable);
    if (conv_init(&c, b, "separable_conv2d", x, 4, filters, height, width, opts)) {
        trn_variable *dk = trn_nn__var(&l, "depthwise_kernel", c.t, trn_shape_of(4, height, width, c.in, c.multiplier), c.o->kernel_init, (trn_init){0}, 0);
        trn_variable *pk =
            trn_nn__var(&l, "pointwise_kernel", c.t, trn_shape_of(4, (int64_t)1, (int64_t)1, c.in * c.multiplier, filters), c.o->pointwise_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "depthwise_kernel", dk, c.o->l1, c.o->l2);
        trn_nn__regularize(&l, "pointwise_kernel", pk, c.o->l1, c.o->l2);
        if (dk && pk) {
            conv point = {.stride = {1, 1}, .dilation = {1, 1}, .padding = "VALID"};
            y = conv_node(b, "DepthwiseConv2dNative", &c, x, trn_nn__read(&l, dk));
            y = conv_node(b, "Conv2D", &point, y, trn_nn__read(&l, pk));
            y = trn_nn__finish(&l, y, filters, c.o->no_bias, c.o->bias_init, c.o->activation);
        }
    }
    trn_nn__close(&l);
    return y;
}

/* How large the image of the transposed convolution is, from `in` pixels. */
static int64_t grown(const conv *c, int i, int64_t in, int64_t size)
{
    if (in < 0)
        return -1;
    int64_t more = size - c->stride[i];
    return in * c->stride[i] + (c->o->padding == TRN_VALID && more > 0 ? more : 0);
}

trn_out trn_conv2d_transpose(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts)
{
    conv c;
    trn_out y = TRN_NONE;
    nn_layer l = trn_nn__open(b, "conv2d_transpose", opts && opts->reuse, opts && opts->not_trainable);
    if (conv_init(&c, b, "conv2d_transpose", x, 4, filters, height, width, opts)) {
        trn_variable *k = trn_nn__var(&l, "kernel", c.t, trn_shape_of(4, height, width, filters, c.in), c.o->kernel_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "kernel", k, c.o->l1, c.o->l2);
        const trn_shape *s = trn_nn__shape(b, x);
        int64_t h = grown(&c, 0, s->dim[1], height), w = grown(&c, 1, s->dim[2], width);
        if (c.dilation[0] > 1 || c.dilation[1] > 1 || h < 0 || w < 0)
            BAD(b, "conv2d_transpose: height and width of %s must be known, and there are no dilations", trn_out_name(b, x));
        else if (k) {
            trn_out size;
            if (s->dim[0] >= 0)
                size = trn_nn__ints(b, (int64_t[]){s->dim[0], h, w, filters}, 4);
            else {
                size = OP(b, "ConcatV2", trn_nn__batch(b, x), trn_nn__ints(b, (int64_t[]){h, w, filters}, 3), trn_const_i32(b, 0));
            }
            y = OPA(b, "Conv2DBackpropInput", ATTRS(AT_INTS(b, "strides", 1, c.stride[0], c.stride[1], 1), trn_at_str("padding", c.padding)), size,
                    trn_nn__read(&l, k), x);
            const trn_shape *now = trn_nn__shape(b, y);
            if (now->rank != 4 || now->dim[1] < 0 || now->dim[3] < 0) /* the next layer wants to know */
                y = trn_reshape(b, y, trn_shape_of(4, (int64_t)-1, h, w, filters));
            y = trn_nn__finish(&l, y, filters, c.o->no_bias, c.o->bias_init, c.o->activation);
        }
    }
    trn_nn__close(&l);
    return y;
}

/* ---- pools --------------------------------------------------------------------------------------------------------- */

static trn_out pool(trn_builder *b, const char *layer, const char *op, trn_out x, int64_t size, int64_t stride, trn_padding padding)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, layer)), b) {
        if (trn_builder_ok(b) && (size < 1 || stride < 1))
            BAD(b, "%s: size %lld and stride %lld must be positive", layer, (long long)size, (long long)stride);
        y = OPA(b, op,
                ATTRS(AT_INTS(b, "ksize", 1, size, size, 1), AT_INTS(b, "strides", 1, stride, stride, 1),
                      trn_at_str("padding", padding == TRN_SAME ? "SAME" : "VALID")),
                x);
    }
    return y;
}

trn_out trn_max_pool2d(trn_builder *b, trn_out x, int64_t size, int64_t stride, trn_padding padding)
{
    return pool(b, "max_pooling2d", "MaxPool", x, size, stride, padding);
}

trn_out trn_avg_pool2d(trn_builder *b, trn_out x, int64_t size, int64_t stride, trn_padding padding)
{
    return pool(b, "average_pooling2d", "AvgPool", x, size, stride, padding);
}

static trn_out global_pool(trn_builder *b, const char *layer, const char *op, trn_out x)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, layer)), b)
        y = OP(b, op, x, trn_nn__ints(b, (int64_t[]){1, 2}, 2));
    return y;
}

trn_out trn_global_avg_pool2d(trn_builder *b, trn_out x) { return global_pool(b, "global_average_pooling2d", "Mean", x); }
trn_out trn_global_max_pool2d(trn_builder *b, trn_out x) { return global_pool(b, "global_max_pooling2d", "Max", x); }
