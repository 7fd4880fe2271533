/* nnmodels CASE OUT.pb
 *
 * Builds one model with the layers of nn.h, writes its GraphDef and says what is in it:
 *     out LABEL TENSOR     to be fetched
 *     run LABEL NODE       to be run
 *     var NAME             a variable, in order
 * Placeholders have the names that test_c_nn.py feeds.
 */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trn_builder *b;

static void out(const char *label, trn_out o)
{
    if (trn_builder_ok(b))
        printf("out %s %s\n", label, trn_out_name(b, o));
}

static trn_out in(const char *name, trn_dtype t, int rank, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    trn_shape s = {.rank = rank, .dim = {d0, d1, d2, d3}};
    return trn_placeholder(b, name, t, s);
}
static trn_out image(void) { return in("image", TRN_FLOAT, 4, -1, 8, 8, 3); }
static trn_out rows(void) { return in("rows", TRN_FLOAT, 2, -1, 6, 0, 0); }
static trn_out series(void) { return in("series", TRN_FLOAT, 3, -1, 5, 4, 0); }

static void dense(void)
{
    trn_out x = rows(), h = trn_dense(b, x, 16, &(trn_dense_opts){.activation = trn_relu, .l2 = 0.01f, .l1 = 0.1f});
    h = trn_dense(b, h, 8, &(trn_dense_opts){.no_bias = true, .activation = trn_tanh, .kernel_init = trn_init_he_normal()});
    out("y", trn_dense(trn_named(b, "logits"), h, 4, &(trn_dense_opts){.bias_init = trn_seeded(trn_init_normal(0, 1), 7)}));
    trn_out each = series();
    out("series", trn_dense(trn_named(b, "each"), each, 3, NULL));
    int n;
    const trn_out *reg = trn_collection(&n, b, "regularization_losses");
    out("reg", reg[0]);
}

static void conv(void)
{
    trn_out x = image();
    trn_out h = trn_conv2d(b, x, 8, 3, 3, &(trn_conv_opts){.padding = TRN_SAME, .activation = trn_relu});
    h = trn_max_pool2d(b, h, 2, 2, TRN_VALID);
    h = trn_conv2d(b, h, 4, 2, 3, &(trn_conv_opts){.stride = 2, .stride_w = 1, .bias_init = trn_init_constant(0.5)});
    out("y", h);
    out("flat", trn_dense(b, trn_flatten(b, trn_avg_pool2d(b, h, 2, 1, TRN_SAME)), 2, NULL));
    out("dilated", trn_conv2d(b, x, 2, 3, 3, &(trn_conv_opts){.dilation = 2}));
    out("line", trn_conv1d(b, series(), 6, 3, &(trn_conv_opts){.stride = 2, .activation = trn_relu}));
    out("separable", trn_separable_conv2d(b, x, 5, 3, 3, &(trn_conv_opts){.multiplier = 2}));
    out("up", trn_conv2d_transpose(b, x, 4, 3, 3, &(trn_conv_opts){.stride = 2}));
    out("up_same", trn_conv2d_transpose(b, x, 4, 3, 3, &(trn_conv_opts){.stride = 2, .padding = TRN_SAME}));
}

static void updates(void)
{
    int n;
    const trn_out *u = trn_collection(&n, b, "update_ops");
    for (int i = 0; i < n && trn_builder_ok(b); i++)
        printf("run update %s\n", trn_out_name(b, trn_out_node(u[i])));
}

static void norm(void)
{
    trn_out x = image(), r = rows();
    out("train", trn_batch_norm(b, x, TRN_TRAIN, NULL));
    out("rows", trn_batch_norm(b, r, TRN_TRAIN, &(trn_batch_norm_opts){.momentum = TRN_F(0.9f), .no_scale = true}));
    trn_batch_norm_opts again = {.reuse = true};
    out("eval", trn_batch_norm(trn_named(b, "batch_normalization"), x, TRN_EVAL, &again));
    trn_out flag = in("flag", TRN_BOOL, 0, 0, 0, 0, 0);
    out("either", trn_batch_norm(b, x, trn_training(flag), &(trn_batch_norm_opts){.epsilon = TRN_F(0.01f)}));
    updates();
}

static void dropout(void)
{
    trn_out x = rows();
    out("first", trn_dropout(b, x, 0.3f, TRN_TRAIN, NULL));
    trn_shape noise = trn_shape_of(2, (int64_t)-1, (int64_t)1);
    out("rows", trn_dropout(b, x, 0.5f, TRN_TRAIN, &(trn_dropout_opts){.seed = TRN_I(11), .noise = &noise}));
    out("eval", trn_dropout(b, x, 0.5f, TRN_EVAL, NULL));
}

static void inits(void)
{
    trn_shape s = trn_shape_of(2, (int64_t)7, (int64_t)5), k = trn_shape_of(4, (int64_t)3, (int64_t)3, (int64_t)4, (int64_t)6), v = trn_shape_vector(9);
    struct {
        const char *name;
        trn_init init;
    } all[] = {
        {"default", {0}},
        {"zeros", trn_init_zeros()},
        {"ones", trn_init_ones()},
        {"constant", trn_init_constant(0.3)},
        {"uniform", trn_init_uniform(-0.2, 0.7)},
        {"normal", trn_init_normal(0.5, 2)},
        {"truncated", trn_init_truncated_normal(0.1, 0.3)},
        {"glorot_uniform", trn_init_glorot_uniform()},
        {"glorot_normal", trn_init_glorot_normal()},
        {"he_uniform", trn_init_he_uniform()},
        {"he_normal", trn_init_he_normal()},
        {"lecun_uniform", trn_init_lecun_uniform()},
        {"lecun_normal", trn_init_lecun_normal()},
        {"scaled", trn_init_scaled(TRN_INIT_SCALED_NORMAL, TRN_FAN_OUT, 3)},
        {"orthogonal", trn_init_orthogonal(2)},
        {"seeded", trn_seeded(trn_init_uniform(0, 1), 99)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        trn_get_variable(b, trn_builder_printf(b, "%s_m", all[i].name), TRN_FLOAT, s, all[i].init, 0);
        trn_get_variable(b, trn_builder_printf(b, "%s_k", all[i].name), TRN_FLOAT, k, all[i].init, 0);
        if (strcmp(all[i].name, "orthogonal") != 0)
            trn_get_variable(b, trn_builder_printf(b, "%s_v", all[i].name), TRN_DOUBLE, v, all[i].init, 0);
    }
    trn_get_variable(b, "identity", TRN_FLOAT, s, trn_init_identity(1.5), 0);
    trn_get_variable(b, "ids", TRN_INT32, v, (trn_init){0}, 0);
}

static void losses(void)
{
    trn_out l = in("labels", TRN_FLOAT, 2, -1, 3, 0, 0), p = in("preds", TRN_FLOAT, 2, -1, 3, 0, 0), ids = in("ids", TRN_INT32, 1, -1, 0, 0, 0);
    trn_out w = in("weights", TRN_FLOAT, 2, -1, 1, 0, 0), w1 = in("weights1", TRN_FLOAT, 1, -1, 0, 0, 0), half = trn_const_f32(b, 0.5f);
    struct {
        const char *name;
        trn_loss_opts o;
    } how[] = {
        {"plain", {0}},
        {"w", {.weights = &w}},
        {"half", {.weights = &half}},
        {"mean", {.weights = &w, .reduction = TRN_MEAN}},
        {"sum", {.weights = &w, .reduction = TRN_SUM}},
        {"batch", {.weights = &w, .reduction = TRN_SUM_OVER_BATCH_SIZE}},
        {"none", {.weights = &w, .reduction = TRN_UNREDUCED}},
        {"special", {.delta = TRN_F(0.5f), .epsilon = TRN_F(0.01f), .label_smoothing = 0.1f}},
    };
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        const trn_loss_opts *o = &how[i].o;
        trn_loss_opts rows_o = *o;
        if (rows_o.weights == &w)
            rows_o.weights = &w1;
        out(trn_builder_printf(b, "mse_%s", how[i].name), trn_loss_mean_squared(b, l, p, o));
        out(trn_builder_printf(b, "abs_%s", how[i].name), trn_loss_absolute(b, l, p, o));
        out(trn_builder_printf(b, "huber_%s", how[i].name), trn_loss_huber(b, l, p, o));
        out(trn_builder_printf(b, "log_%s", how[i].name), trn_loss_log(b, l, p, o));
        out(trn_builder_printf(b, "hinge_%s", how[i].name), trn_loss_hinge(b, l, p, o));
        out(trn_builder_printf(b, "sigmoid_%s", how[i].name), trn_loss_sigmoid(b, l, p, o));
        out(trn_builder_printf(b, "softmax_%s", how[i].name), trn_loss_softmax(b, l, p, &rows_o));
        out(trn_builder_printf(b, "sparse_%s", how[i].name), trn_loss_sparse_softmax(b, ids, p, &rows_o));
    }
    trn_out deep = in("deep", TRN_FLOAT, 3, -1, 2, 3, 0), deep_ids = in("deep_ids", TRN_INT64, 2, -1, 2, 0, 0);
    out("sparse_deep", trn_loss_sparse_softmax(b, deep_ids, deep, &(trn_loss_opts){.reduction = TRN_UNREDUCED}));
}

static void metric(const char *name, trn_metric m)
{
    out(trn_builder_printf(b, "%s_update", name), m.update);
    out(trn_builder_printf(b, "%s_value", name), m.value);
}

static void metrics(void)
{
    trn_out l = in("truth", TRN_FLOAT, 1, -1, 0, 0, 0), p = in("guess", TRN_FLOAT, 1, -1, 0, 0, 0), w = in("weights1", TRN_FLOAT, 1, -1, 0, 0, 0);
    trn_out scores = in("preds", TRN_FLOAT, 2, -1, 3, 0, 0), ids = in("ids", TRN_INT32, 1, -1, 0, 0, 0);
    trn_out hard = trn_op_round(b, p);
    const trn_out *weights[] = {NULL, &w};
    for (int i = 0; i < 2; i++) {
        const char *s = i ? "w" : "plain";
        metric(trn_builder_printf(b, "mean_%s", s), trn_metric_mean(b, p, weights[i]));
        metric(trn_builder_printf(b, "accuracy_%s", s), trn_metric_accuracy(b, l, hard, weights[i]));
        metric(trn_builder_printf(b, "mse_%s", s), trn_metric_mean_squared_error(b, l, p, weights[i]));
        metric(trn_builder_printf(b, "rmse_%s", s), trn_metric_root_mean_squared_error(b, l, p, weights[i]));
        metric(trn_builder_printf(b, "mae_%s", s), trn_metric_mean_absolute_error(b, l, p, weights[i]));
        metric(trn_builder_printf(b, "precision_%s", s), trn_metric_precision(b, l, hard, weights[i]));
        metric(trn_builder_printf(b, "recall_%s", s), trn_metric_recall(b, l, hard, weights[i]));
        metric(trn_builder_printf(b, "roc_%s", s), trn_metric_auc(b, l, p, weights[i], 0, false));
        metric(trn_builder_printf(b, "pr_%s", s), trn_metric_auc(b, l, p, weights[i], 50, true));
        metric(trn_builder_printf(b, "top_%s", s), trn_metric_top_k(b, ids, scores, 2, weights[i]));
    }
}

static void rnn(void)
{
    trn_out x = series(), lengths = in("lengths", TRN_INT32, 1, -1, 0, 0, 0);
    trn_rnn l = trn_lstm(b, x, 7, NULL), g = trn_gru(trn_named(b, "gru"), x, 6, &(trn_rnn_opts){.lengths = &lengths});
    trn_rnn cut = trn_lstm(trn_named(b, "cut"), x, 3, &(trn_rnn_opts){.lengths = &lengths, .forget_bias = TRN_F(0.5f), .activation = trn_relu});
    out("lstm", l.outputs);
    out("lstm_c", l.c);
    out("lstm_h", l.h);
    out("gru", g.outputs);
    out("gru_h", g.h);
    out("cut", cut.outputs);
    out("cut_c", cut.c);
    trn_out free_x = in("series_any", TRN_FLOAT, 3, -1, -1, 4, 0);
    trn_rnn any = trn_lstm(trn_named(b, "free"), free_x, 5, &(trn_rnn_opts){.lengths = &lengths});
    out("free", any.outputs);
    out("free_c", any.c);
}

static void embedding(void)
{
    trn_out ids = in("ids", TRN_INT32, 1, -1, 0, 0, 0);
    out("y", trn_embedding(b, ids, 10, 4, NULL));
    out("norm", trn_layer_norm(b, rows(), NULL));
    trn_activation all[] = {trn_relu, trn_relu6, trn_leaky_relu, trn_elu, trn_selu, trn_gelu, trn_swish, trn_sigmoid, trn_tanh, trn_softplus, trn_softsign, trn_softmax};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        out(trn_builder_printf(b, "act%zu", i), all[i](b, trn_find(b, "rows:0")));
}

/* ---- training ------------------------------------------------------------------------------------------------------- */

static void trains(trn_optimizer *opt, trn_out loss)
{
    out("loss", loss);
    int n;
    const trn_out *u = trn_collection(&n, b, "update_ops");
    trn_out update = TRN_NONE;
    TRN_SCOPE(trn_control_scope(b, u, n), b)
        update = trn_minimize(opt, loss, trn_global_step(b));
    if (trn_builder_ok(b))
        printf("run train %s\n", trn_out_name(b, trn_out_node(update)));
}

static void train_mlp(void)
{
    trn_out h = trn_dense(b, rows(), 32, &(trn_dense_opts){.activation = trn_relu}), ids = in("ids", TRN_INT32, 1, -1, 0, 0, 0);
    trains(trn_adam(b, trn_const_f32(b, 0.01f), 0.9f, 0.999f, 1e-8f), trn_loss_sparse_softmax(b, ids, trn_dense(b, h, 3, NULL), NULL));
}

static void train_conv(void)
{
    trn_out ids = in("ids4", TRN_INT32, 1, -1, 0, 0, 0);
    trn_out h = trn_conv2d(b, image(), 8, 3, 3, &(trn_conv_opts){.padding = TRN_SAME, .activation = trn_relu, .l2 = 0.001f});
    h = trn_flatten(b, trn_max_pool2d(b, h, 2, 2, TRN_VALID));
    h = trn_dropout(b, trn_dense(b, h, 16, &(trn_dense_opts){.activation = trn_relu}), 0.4f, TRN_TRAIN, NULL);
    trn_loss_sparse_softmax(b, ids, trn_dense(b, h, 3, NULL), NULL);
    trains(trn_momentum(b, trn_exponential_decay(b, 0.05f, trn_global_step(b), 5, 0.9f, false), 0.9f, true), trn_total_loss(b));
}

static void train_norm(void)
{
    trn_out ids = in("ids4", TRN_INT32, 1, -1, 0, 0, 0);
    trn_out h = trn_batch_norm(b, trn_conv2d(b, image(), 8, 3, 3, NULL), TRN_TRAIN, NULL);
    trn_mode fed = trn_training(in("flag", TRN_BOOL, 0, 0, 0, 0, 0));
    h = trn_batch_norm(b, trn_conv2d(b, h, 4, 3, 3, NULL), fed, NULL);
    h = trn_batch_norm(b, trn_dense(b, trn_global_avg_pool2d(b, trn_relu(b, h)), 8, NULL), fed, NULL);
    trains(trn_rmsprop(b, trn_const_f32(b, 0.01f), 0.9f, 0, 1e-10f, false), trn_loss_sparse_softmax(b, ids, trn_dense(b, h, 3, NULL), NULL));
}

static void train_rnn(bool loop)
{
    trn_out words = in("words", TRN_INT32, 2, -1, 5, 0, 0), ids = in("ids", TRN_INT32, 1, -1, 0, 0, 0);
    trn_out x = trn_embedding(b, words, 20, 6, NULL);
    trn_rnn r = trn_lstm(b, x, 12, &(trn_rnn_opts){.loop = loop});
    trains(trn_adagrad(b, trn_const_f32(b, 0.1f), 0.1f), trn_loss_sparse_softmax(b, ids, trn_dense(b, r.h, 3, NULL), NULL));
}

static void schedules(void)
{
    trn_variable *gs = trn_global_step(b);
    out("exponential", trn_exponential_decay(b, 0.1f, gs, 4, 0.5f, false));
    out("stairs", trn_exponential_decay(b, 0.1f, gs, 2, 0.5f, true));
    out("natural", trn_natural_exp_decay(b, 0.1f, gs, 4, 0.5f, false));
    out("inverse", trn_inverse_time_decay(b, 0.1f, gs, 2, 0.5f, true));
    out("piecewise", trn_piecewise_constant(b, gs, (int64_t[]){1, 20}, (float[]){1, 0.5f, 0.25f}, 2));
    out("polynomial", trn_polynomial_decay(b, 0.1f, gs, 10, 0.01f, 2, false));
    out("cycle", trn_polynomial_decay(b, 0.1f, gs, 2, 0.01f, 0.5f, true));
    out("cosine", trn_cosine_decay(b, 0.1f, gs, 10, 0.1f));
    out("restarts", trn_cosine_decay_restarts(b, 0.1f, gs, 2, 2, 0.5f, 0.1f));
    out("linear_cosine", trn_linear_cosine_decay(b, 0.1f, gs, 10, 0.5f, 0.1f, 0.001f));
    out("noisy", trn_noisy_linear_cosine_decay(b, 0.1f, gs, 10, 0.8f, 0.55f, 0.4f, 0.1f, 0.001f));
    out("noisy_late", trn_noisy_linear_cosine_decay(b, 0.1f, gs, 2, 1, 0.7f, 0.5f, 0, 0.01f));
    trn_out add = trn_variable_assign_add(b, gs, trn_const_i64(b, 3));
    printf("run update %s\n", trn_out_name(b, trn_out_node(add)));
}

static trn_out normal_piece(void *arg, trn_builder *builder, trn_dtype dtype, const trn_shape *shape, const trn_shape *full, const int64_t *offset)
{
    return trn_initial(builder, trn_init_normal(0, 0.5), dtype, *shape);
}

static void loss_and_gradients(const char *label, trn_out losses, const trn_out *xs, int n)
{
    char name[64];
    trn_grad g[8];
    trn_gradients(g, b, &losses, 1, xs, n, NULL);
    out(label, losses);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s_g%d", label, i);
        out(name, trn_grad_dense(b, g[i]));
    }
}

/* Losses over samples of 50 classes, weights and biases whole and in pieces. */
static void sampled(void)
{
    trn_out x = rows(), one = in("true1", TRN_INT32, 2, -1, 1, 0, 0), two = in("true2", TRN_INT64, 2, -1, 2, 0, 0);
    trn_variable *w = trn_get_variable(b, "w", TRN_FLOAT, trn_shape_of(2, 50L, 6L), trn_init_normal(0, 0.5), 0), *bias = trn_get_variable(b, "b", TRN_FLOAT, trn_shape_vector(50), trn_init_normal(0, 0.5), 0);
    trn_partitioned *pw = trn_partitioned_variable(b, "pw", TRN_FLOAT, trn_shape_of(2, 50L, 6L), trn_fixed_partitioner(3, 0), normal_piece, NULL, 0);
    trn_partitioned *pb = trn_partitioned_variable(b, "pb", TRN_FLOAT, trn_shape_vector(50), trn_fixed_partitioner(2, 0), normal_piece, NULL, 0);
    if (!trn_builder_ok(b))
        return;
    trn_out whole[] = {x, w->handle, bias->handle}, pieces[] = {x, pw->parts[0]->handle, pw->parts[1]->handle, pw->parts[2]->handle, pb->parts[0]->handle, pb->parts[1]->handle};
    loss_and_gradients("nce", trn_nce_loss(b, &w, 1, &bias, 1, one, x, 8, 50, NULL), whole, 3);
    loss_and_gradients("softmax", trn_sampled_softmax_loss(b, &w, 1, &bias, 1, two, x, 20, 50, &(trn_sampled_opts){.seed = TRN_I(4)}), whole, 3);
    trn_candidates c = trn_candidates_new(b, two, 30, 50, &(trn_candidates_opts){.sampler = TRN_SAMPLE_UNIFORM, .seed = TRN_I(5)});
    loss_and_gradients("nce_div", trn_nce_loss(b, pw->parts, 3, pb->parts, 2, two, x, 30, 50, &(trn_sampled_opts){.candidates = &c, .div = true, .remove_hits = TRN_B(true)}), pieces, 6);
    loss_and_gradients("nce_mod", trn_nce_loss(b, pw->parts, 3, pb->parts, 2, one, x, 5, 50, &(trn_sampled_opts){.seed = TRN_I(6)}), pieces, 6);
    c = trn_candidates_new(b, one, 12, 50, &(trn_candidates_opts){.sampler = TRN_SAMPLE_LEARNED_UNIGRAM, .repeated = true, .seed = TRN_I(7)});
    loss_and_gradients("softmax_div", trn_sampled_softmax_loss(b, pw->parts, 3, pb->parts, 2, one, x, 12, 50, &(trn_sampled_opts){.candidates = &c, .div = true, .remove_hits = TRN_B(false)}), pieces, 6);
    float counts[50];
    for (int i = 0; i < 50; i++)
        counts[i] = (float)(50 - i);
    c = trn_candidates_new(b, two, 9, 50, &(trn_candidates_opts){.sampler = TRN_SAMPLE_FIXED_UNIGRAM, .unigrams = counts, .n_unigrams = 50, .distortion = TRN_F(0.75f), .seed = TRN_I(8)});
    out("drawn", c.sampled);
    out("expected", c.true_expected);
    out("drawn_expected", c.sampled_expected);
    c = trn_candidates_new(b, one, 50, 50, &(trn_candidates_opts){.sampler = TRN_SAMPLE_ALL});
    loss_and_gradients("all", trn_sampled_softmax_loss(b, &w, 1, &bias, 1, one, x, 50, 50, &(trn_sampled_opts){.candidates = &c}), whole, 3);
}

static void train_sampled(void)
{
    trn_out x = rows(), labels = in("true1", TRN_INT32, 2, -1, 1, 0, 0);
    trn_variable *w = trn_get_variable(b, "w", TRN_FLOAT, trn_shape_of(2, 50L, 6L), trn_init_normal(0, 0.5), 0), *bias = trn_get_variable(b, "b", TRN_FLOAT, trn_shape_vector(50), trn_init_zeros(), 0);
    trn_out losses = trn_nce_loss(b, &w, 1, &bias, 1, labels, trn_dense(b, x, 6, NULL), 10, 50, NULL);
    trains(trn_adagrad(b, trn_const_f32(b, 0.5f), 0.1f), trn_op_mean(b, losses, trn_const_i32(b, 0), NULL));
}

static void train_lstm(void) { train_rnn(false); }
static void train_loop(void) { train_rnn(true); }

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*build)(void);
    } cases[] = {{"dense", dense}, {"conv", conv}, {"norm", norm}, {"dropout", dropout}, {"inits", inits}, {"losses", losses}, {"metrics", metrics}, {"rnn", rnn}, {"embedding", embedding}, {"schedules", schedules}, {"sampled", sampled}, {"train_sampled", train_sampled},
                 {"train_mlp", train_mlp}, {"train_conv", train_conv}, {"train_norm", train_norm}, {"train_lstm", train_lstm}, {"train_loop", train_loop}};
    if (argc != 3) {
        fprintf(stderr, "usage: nnmodels CASE OUT.pb\n");
        return 2;
    }
    b = trn_builder_new();
    trn_set_seed(b, 42);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, argv[1]) == 0)
            cases[i].build();
    int n;
    trn_variable **v = trn_variables(&n, b, TRN_VARS_ALL);
    for (int i = 0; i < n; i++)
        printf("var %s\n", v[i]->name);
    printf("run init %s\n", trn_out_name(b, trn_out_node(trn_variables_init(b, TRN_VARS_GLOBAL))));
    printf("run init %s\n", trn_out_name(b, trn_out_node(trn_variables_init(b, TRN_VARS_LOCAL))));
    void *graph = NULL;
    size_t size = 0;
    trn_err err = trn_builder_export(&graph, &size, b);
    if (err) {
        fprintf(stderr, "nnmodels: %s\n", trn_err_msg(err));
        trn_err_free(err);
    } else {
        FILE *f = fopen(argv[2], "wb");
        if (!f || fwrite(graph, 1, size, f) != size || fclose(f) != 0) {
            perror(argv[2]);
            return 1;
        }
    }
    free(graph);
    trn_builder_free(b);
    return err ? 1 : 0;
}
