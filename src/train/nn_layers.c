/* Activations, dense, flatten, normalisations, dropout, embedding. Each layer: open its scope, make its variables, its ops, close. */
#include <trainera/control.h>

#include "train/nn_priv.h"

#include <math.h>
#include <string.h>

trn_out trn_relu(trn_builder *b, trn_out x) { return OP(b, "Relu", x); }
trn_out trn_relu6(trn_builder *b, trn_out x) { return OP(b, "Relu6", x); }
trn_out trn_leaky_relu(trn_builder *b, trn_out x) { return OPA(b, "LeakyRelu", ATTRS(trn_at_float("alpha", 0.2f)), x); }
trn_out trn_elu(trn_builder *b, trn_out x) { return OP(b, "Elu", x); }
trn_out trn_selu(trn_builder *b, trn_out x) { return OP(b, "Selu", x); }
trn_out trn_sigmoid(trn_builder *b, trn_out x) { return OP(b, "Sigmoid", x); }
trn_out trn_swish(trn_builder *b, trn_out x) { return OP(b, "Mul", x, OP(b, "Sigmoid", x)); }
trn_out trn_tanh(trn_builder *b, trn_out x) { return OP(b, "Tanh", x); }
trn_out trn_softplus(trn_builder *b, trn_out x) { return OP(b, "Softplus", x); }
trn_out trn_softsign(trn_builder *b, trn_out x) { return OP(b, "Softsign", x); }
trn_out trn_softmax(trn_builder *b, trn_out x) { return OP(b, "Softmax", x); }

trn_out trn_gelu(trn_builder *b, trn_out x)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "Gelu")), b) {
        trn_dtype t = trn_out_dtype(b, x);
        trn_out e = OP(b, "Erf", OP(b, "RealDiv", x, trn_const_num(b, t, 1.4142135623730951)));
        y = OP(b, "Mul", OP(b, "Mul", trn_const_num(b, t, 0.5), x), OP(b, "AddV2", trn_const_num(b, t, 1), e));
    }
    return y;
}

/* The last dimension of x, which variables are made for; -1 (and an error in b) when it is not known. */
static int64_t channels_of(trn_builder *b, const char *layer, trn_out x)
{
    const trn_shape *s = trn_nn__shape(b, x);
    if (!trn_builder_ok(b))
        return -1;
    if (s->rank < 1 || s->dim[s->rank - 1] < 0) {
        char text[TRN_SHAPE_TEXT];
        BAD(b, "%s: the last dimension of its input must be known, but %s is %s", layer, trn_out_name(b, x), trn_shape_text(text, s));
        return -1;
    }
    if (!trn_nn__is_float(trn_out_dtype(b, x))) {
        BAD(b, "%s: its input must be of floats, but %s is of %s", layer, trn_out_name(b, x), trn_dtype_name(trn_out_dtype(b, x)));
        return -1;
    }
    return s->dim[s->rank - 1];
}

trn_out trn_dense(trn_builder *b, trn_out x, int64_t units, const trn_dense_opts *opts)
{
    static const trn_dense_opts none;
    const trn_dense_opts *o = opts ? opts : &none;
    nn_layer l = trn_nn__open(b, "dense", o->reuse, o->not_trainable);
    int64_t in = channels_of(b, "dense", x);
    trn_out y = TRN_NONE;
    if (in >= 0 && units < 1)
        BAD(b, "dense: %lld units; at least one is needed", (long long)units);
    else if (in >= 0) {
        trn_variable *k = trn_nn__var(&l, "kernel", trn_out_dtype(b, x), trn_shape_of(2, in, units), o->kernel_init, (trn_init){0}, 0);
        trn_nn__regularize(&l, "kernel", k, o->l1, o->l2);
        if (k) {
            int rank = trn_nn__rank(b, x);
            trn_out flat = rank == 2 ? x : OP(b, "Reshape", x, trn_nn__ints(b, (int64_t[]){-1, in}, 2));
            y = OP(b, "MatMul", flat, trn_nn__read(&l, k));
            if (rank != 2)
                y = trn_nn__last_dim(b, y, x, units);
            y = trn_nn__finish(&l, y, units, o->no_bias, o->bias_init, o->activation);
        }
    }
    trn_nn__close(&l);
    return y;
}

trn_out trn_reshape(trn_builder *b, trn_out x, trn_shape dims)
{
    const char *name = trn_take_name(b, "Reshape");
    if (dims.rank < 0)
        return BAD(b, "reshape: the rank must be known");
    trn_out to = trn_nn__ints(trn_named(b, trn_builder_printf(b, "%s/shape", name)), dims.dim, dims.rank);
    return OP(trn_named(b, name), "Reshape", x, to);
}

trn_out trn_flatten(trn_builder *b, trn_out x)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "flatten")), b) {
        const trn_shape *s = trn_nn__shape(b, x);
        int64_t rest = 1, batch = s->rank > 0 ? s->dim[0] : -1;
        for (int i = 1; i < s->rank && rest >= 0; i++)
            rest = s->dim[i] < 0 || (s->dim[i] && rest > INT32_MAX / s->dim[i]) ? -1 : rest * s->dim[i];
        if (trn_builder_ok(b) && s->rank == 0)
            BAD(b, "flatten: %s is a scalar", trn_out_name(b, x));
        if (s->rank > 0 && rest >= 0)
            y = OP(b, "Reshape", x, trn_nn__ints(b, (int64_t[]){rest > 0 ? -1 : batch, rest}, 2));
        else if (batch > 0)
            y = OP(b, "Reshape", x, trn_nn__ints(b, (int64_t[]){batch, -1}, 2));
        else if (trn_builder_ok(b)) {
            y = OP(b, "Reshape", x, OP(b, "ConcatV2", trn_nn__batch(b, x), trn_nn__ints(b, (int64_t[]){-1}, 1), trn_const_i32(b, 0)));
        }
    }
    return y;
}

/* ---- normalisation ------------------------------------------------------------------------------------------------- */

static trn_out mean_over(trn_builder *b, trn_out x, const int64_t *axes, int n, bool keep)
{
    return OPA(b, "Mean", ATTRS(trn_at_bool("keep_dims", keep)), x, trn_nn__ints(b, axes, n));
}

/* x·s + (beta - mean·s), s = gamma/√(variance + epsilon): two passes over x. gamma and beta may be TRN_NONE. */
static trn_out normalize(trn_builder *b, trn_out x, trn_out mean, trn_out variance, trn_out gamma, trn_out beta, float epsilon)
{
    trn_dtype t = trn_out_dtype(b, x);
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, "batchnorm"), b) {
        trn_out s = OP(b, "Rsqrt", OP(b, "AddV2", variance, trn_const_num(b, t, epsilon)));
        if (trn_out_is(gamma))
            s = OP(b, "Mul", s, gamma);
        trn_out shift = OP(b, "Mul", mean, s);
        shift = trn_out_is(beta) ? OP(b, "Sub", beta, shift) : OP(b, "Neg", shift);
        y = OP(b, "AddV2", OP(b, "Mul", x, s), shift);
    }
    return y;
}

static void moving_average(trn_builder *b, trn_variable *v, trn_out batch, float momentum)
{
    if (!trn_builder_ok(b))
        return;
    trn_out rate = trn_const_num(b, v->dtype, 1 - trn_nn__meant(momentum)), op = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, "AssignMovingAvg"), b) {
        trn_out delta = OP(b, "Mul", OP(b, "Sub", batch, trn_variable_read(b, v)), rate);
        op = trn_variable_assign_add(b, v, delta);
    }
    if (trn_builder_ok(b))
        trn_collect(b, "update_ops", trn_out_node(op));
}

/* A batch norm in the making. Its branches give the result, and the mean and variance that it was made with. */
typedef struct batch_norm {
    trn_out x, gamma, beta; /* gamma and beta as values; TRN_NONE: left out */
    trn_variable *mean, *variance;
    float epsilon;
} batch_norm;

/* The fused op knows four dimensions and no doubles. */
static bool is_fused(trn_builder *b, const batch_norm *n) { return trn_nn__rank(b, n->x) == 4 && trn_out_dtype(b, n->x) != TRN_DOUBLE; }

static void norm_fused(const batch_norm *n, trn_builder *b, trn_out *out, bool train)
{
    trn_dtype t = n->mean->dtype;
    trn_out g = trn_out_is(n->gamma) ? n->gamma : trn_fill(b, t, n->mean->shape, 1), e = trn_out_is(n->beta) ? n->beta : trn_zeros(b, t, n->mean->shape);
    trn_out mean = n->mean->value, variance = n->variance->value;
    if (train)
        mean = variance = trn_zeros(b, t, trn_shape_vector(0));
    trn_out y = OPA(b, "FusedBatchNormV3", ATTRS(trn_at_float("epsilon", n->epsilon), trn_at_bool("is_training", train)), n->x, g, e, mean, variance);
    out[0] = y;
    out[1] = train ? trn_out_nth(y, 1) : mean;
    out[2] = train ? trn_out_nth(y, 2) : variance;
}

static void norm_train(void *arg, trn_builder *b, trn_out *out, int n_out)
{
    const batch_norm *n = arg;
    if (is_fused(b, n)) {
        norm_fused(n, b, out, true);
        return;
    }
    int64_t axes[TRN_MAX_RANK];
    int rank = trn_nn__rank(b, n->x);
    trn_dtype t = trn_out_dtype(b, n->x);
    for (int i = 0; i < rank; i++)
        axes[i] = i;
    trn_out mean = TRN_NONE, variance = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, "moments"), b) {
        trn_out m = mean_over(b, n->x, axes, rank - 1, true);
        trn_out v = mean_over(b, OP(b, "SquaredDifference", n->x, OP(b, "StopGradient", m)), axes, rank - 1, true);
        mean = trn_reshape(b, m, n->mean->shape);
        variance = trn_reshape(b, v, n->mean->shape);
    }
    out[0] = normalize(b, n->x, mean, variance, trn_out_is(n->gamma) ? trn_nn__cast(b, n->gamma, t) : TRN_NONE,
                       trn_out_is(n->beta) ? trn_nn__cast(b, n->beta, t) : TRN_NONE, n->epsilon);
    out[1] = trn_nn__cast(b, mean, n->mean->dtype);
    out[2] = trn_nn__cast(b, variance, n->mean->dtype);
}

static void norm_eval(void *arg, trn_builder *b, trn_out *out, int n_out)
{
    const batch_norm *n = arg;
    if (is_fused(b, n)) {
        norm_fused(n, b, out, false);
        return;
    }
    trn_dtype t = trn_out_dtype(b, n->x);
    out[0] = normalize(b, n->x, trn_nn__cast(b, n->mean->value, t), trn_nn__cast(b, n->variance->value, t), trn_out_is(n->gamma) ? trn_nn__cast(b, n->gamma, t) : TRN_NONE,
                       trn_out_is(n->beta) ? trn_nn__cast(b, n->beta, t) : TRN_NONE, n->epsilon);
    out[1] = n->mean->value;
    out[2] = n->variance->value;
}

static bool is_flag(trn_builder *b, const char *layer, trn_mode mode)
{
    if (trn_builder_ok(b) && mode.fed && trn_out_dtype(b, mode.flag) != TRN_BOOL)
        BAD(b, "%s: the training flag must be a bool, not %s", layer, trn_dtype_name(trn_out_dtype(b, mode.flag)));
    return trn_builder_ok(b);
}

trn_out trn_batch_norm(trn_builder *b, trn_out x, trn_mode mode, const trn_batch_norm_opts *opts)
{
    static const trn_batch_norm_opts none;
    const trn_batch_norm_opts *o = opts ? opts : &none;
    nn_layer l = trn_nn__open(b, "batch_normalization", o->reuse, o->not_trainable);
    int64_t n = channels_of(b, "batch_normalization", x);
    trn_out y[3] = {TRN_NONE, TRN_NONE, TRN_NONE};
    if (n >= 0 && is_flag(b, "batch_normalization", mode)) {
        trn_dtype t = trn_out_dtype(b, x) == TRN_DOUBLE ? TRN_DOUBLE : TRN_FLOAT;
        trn_shape s = trn_shape_vector(n);
        trn_variable *gamma = o->no_scale ? NULL : trn_nn__var(&l, "gamma", t, s, o->gamma_init, trn_init_ones(), 0);
        trn_variable *beta = o->no_center ? NULL : trn_nn__var(&l, "beta", t, s, o->beta_init, trn_init_zeros(), 0);
        batch_norm bn = {.x = x, .gamma = gamma ? gamma->value : TRN_NONE, .beta = beta ? beta->value : TRN_NONE, .epsilon = o->epsilon.given ? o->epsilon.v : 1e-3f};
        bn.mean = trn_nn__var(&l, "moving_mean", t, s, o->mean_init, trn_init_zeros(), TRN_NOT_TRAINABLE);
        bn.variance = trn_nn__var(&l, "moving_variance", t, s, o->variance_init, trn_init_ones(), TRN_NOT_TRAINABLE);
        if (!trn_builder_ok(b))
            ;
        else if (mode.fed) {
            trn_outs either = trn_cond(b, mode.flag, norm_train, norm_eval, &bn, 3);
            for (int i = 0; i < 3 && trn_builder_ok(b); i++)
                y[i] = either.at[i];
        } else
            (mode.train ? norm_train : norm_eval)(&bn, b, y, 3);
        /* Not in training, the averages move towards themselves: not at all. */
        float momentum = o->momentum.given ? o->momentum.v : 0.99f;
        if (trn_builder_ok(b) && (mode.fed || mode.train)) {
            moving_average(b, bn.mean, y[1], momentum);
            moving_average(b, bn.variance, y[2], momentum);
        }
    }
    trn_nn__close(&l);
    return trn_builder_ok(b) ? y[0] : TRN_NONE;
}

trn_out trn_layer_norm(trn_builder *b, trn_out x, const trn_layer_norm_opts *opts)
{
    static const trn_layer_norm_opts none;
    const trn_layer_norm_opts *o = opts ? opts : &none;
    nn_layer l = trn_nn__open(b, "layer_normalization", o->reuse, o->not_trainable);
    int64_t n = channels_of(b, "layer_normalization", x), last = -1;
    trn_out y = TRN_NONE;
    if (n >= 0) {
        trn_dtype t = trn_out_dtype(b, x);
        trn_variable *gamma = o->no_scale ? NULL : trn_nn__var(&l, "gamma", t, trn_shape_vector(n), o->gamma_init, trn_init_ones(), 0);
        trn_variable *beta = o->no_center ? NULL : trn_nn__var(&l, "beta", t, trn_shape_vector(n), o->beta_init, trn_init_zeros(), 0);
        trn_out m = mean_over(b, x, &last, 1, true);
        trn_out v = mean_over(b, OP(b, "SquaredDifference", x, OP(b, "StopGradient", m)), &last, 1, true);
        if (trn_builder_ok(b))
            y = normalize(b, x, m, v, gamma ? gamma->value : TRN_NONE, beta ? beta->value : TRN_NONE, o->epsilon.given ? o->epsilon.v : 1e-3f);
    }
    trn_nn__close(&l);
    return y;
}

/* ---- dropout ------------------------------------------------------------------------------------------------------- */

/* The shape of the noise: its own dims where given, x's otherwise, known now or when it runs. */
static trn_out noise_shape(trn_builder *b, trn_out x, const trn_shape *own)
{
    const trn_shape *s = trn_nn__shape(b, x);
    trn_shape want = *s;
    if (own && own->rank >= 0) {
        if (s->rank >= 0 && own->rank != s->rank)
            return BAD(b, "dropout: the noise has %d dimensions, its input %d", own->rank, s->rank);
        want.rank = own->rank;
        for (int i = 0; i < own->rank; i++)
            want.dim[i] = own->dim[i] >= 0 ? own->dim[i] : s->rank >= 0 ? s->dim[i] : -1;
    }
    if (trn_shape_is_full(&want))
        return trn_nn__ints(b, want.dim, want.rank);
    trn_out real = OP(b, "Shape", x);
    if (!own || own->rank < 0)
        return real;
    trn_out dims[TRN_MAX_RANK];
    for (int i = 0; i < want.rank; i++)
        dims[i] = want.dim[i] >= 0 ? trn_const_i32(b, (int32_t)want.dim[i])
                                   : trn_nn__squeeze_last(b, trn_nn__part(b, real, i, i + 1));
    return trn_node_add(b, "Pack", dims, want.rank, NULL, 0);
}

trn_out trn_dropout(trn_builder *b, trn_out x, float rate, trn_mode mode, const trn_dropout_opts *opts)
{
    static const trn_dropout_opts none;
    const trn_dropout_opts *o = opts ? opts : &none;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "dropout")), b) {
        trn_dtype t = trn_out_dtype(b, x);
        if (!trn_builder_ok(b))
            ;
        else if (!(rate >= 0 && rate < 1))
            BAD(b, "dropout: the rate must be in [0, 1), it is %g", (double)rate);
        else if (!trn_nn__is_float(t))
            BAD(b, "dropout: its input must be of floats, but %s is of %s", trn_out_name(b, x), trn_dtype_name(t));
        else if (!is_flag(b, "dropout", mode))
            ;
        else if (!mode.fed && !mode.train)
            y = OP(b, "Identity", x);
        else {
            int64_t seeds[2];
            trn_next_seeds(seeds, b, o->seed);
            trn_out scaled = OP(b, "Mul", x, trn_const_num(b, t, 1 / (1 - trn_nn__meant(rate))));
            trn_out noise = OPA(b, "RandomUniform", ATTRS(trn_at_type("dtype", t), trn_at_int("seed", seeds[0]), trn_at_int("seed2", seeds[1])),
                                noise_shape(b, x, o->noise));
            trn_out keep = OP(b, "GreaterEqual", noise, trn_const_num(b, t, rate));
            y = OP(b, "SelectV2", keep, scaled, trn_const_num(b, t, 0));
            if (mode.fed)
                y = OP(b, "SelectV2", mode.flag, y, x);
        }
    }
    return y;
}

/* ---- embedding ----------------------------------------------------------------------------------------------------- */

trn_out trn_embedding_lookup(trn_builder *b, trn_variable *table, trn_out ids)
{
    const char *name = trn_take_name(b, "embedding_lookup");
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_dtype t = trn_out_dtype(b, ids);
    if (t != TRN_INT32 && t != TRN_INT64)
        return BAD(b, "%s: ids must be int32 or int64, not %s", table->name, trn_dtype_name(t));
    /* Straight from the table: only the rows that are asked for leave the ps. */
    if (trn_out_dtype(b, table->handle) == TRN_RESOURCE)
        return OPA(trn_named(b, name), "ResourceGather", ATTRS(trn_at_type("dtype", table->dtype)), table->handle, ids);
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_colocate_scope(b, table->handle), b) {
        trn_out axis = trn_const_i32(b, 0);
        y = OP(trn_named(b, name), "GatherV2", table->value, ids, axis);
    }
    return y;
}

trn_out trn_embedding(trn_builder *b, trn_out ids, int64_t rows, int64_t dims, const trn_embedding_opts *opts)
{
    static const trn_embedding_opts none;
    const trn_embedding_opts *o = opts ? opts : &none;
    nn_layer l = trn_nn__open(b, "embedding", o->reuse, o->not_trainable);
    trn_out y = TRN_NONE;
    if (trn_builder_ok(b) && (rows < 1 || dims < 1))
        BAD(b, "embedding: %lld rows of %lld; both must be positive", (long long)rows, (long long)dims);
    trn_variable *table = trn_nn__var(&l, "embeddings", TRN_FLOAT, trn_shape_of(2, rows, dims), o->init, trn_init_uniform(-0.05, 0.05), 0);
    if (table)
        y = trn_embedding_lookup(b, table, ids);
    trn_nn__close(&l);
    return y;
}
