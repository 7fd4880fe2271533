/* Layers, initialisers, losses and metrics: built, then run in a session of this process. Numbers against TensorFlow: tests/interop/test_c_nn.py. */
#include <trainera/trainera.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "check.h"

static trn_server *server;

static int start(void **state)
{
    trn_err err = trn_server_create_local(&server);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    return 0;
}

static int stop(void **state)
{
    trn_server_close(server, 0);
    return 0;
}

/* A model under test: its builder, and a session once something runs. */
typedef struct model {
    trn_builder *b;
    trn_session *s;
} model;

static model open_model(void) { return (model){trn_builder_new(), NULL}; }

static void close_model(model *m)
{
    trn_err_free(trn_session_close(m->s));
    trn_builder_free(m->b);
}

static void sync_model(model *m)
{
    if (!m->s)
        ok(trn_session_open_on(&m->s, server, NULL));
    ok(trn_session_extend_builder(m->s, m->b));
}

static void run_op(model *m, trn_out op)
{
    sync_model(m);
    const char *name = trn_out_name(m->b, trn_out_node(op));
    ok(trn_session_run(m->s, &(trn_run){.targets = &name, .n_targets = 1}));
}

/* Fetches o, fed with one tensor at most. */
static trn_tensor *run_fed(model *m, trn_out o, trn_out where, trn_tensor *what)
{
    sync_model(m);
    trn_tensor *t;
    const char *name = trn_out_name(m->b, o), *feed = what ? trn_out_name(m->b, where) : NULL;
    ok(trn_session_run(m->s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t, .feed_names = &feed, .feeds = &what, .n_feeds = what ? 1 : 0}));
    return t;
}

static trn_tensor *run(model *m, trn_out o) { return run_fed(m, o, TRN_NONE, NULL); }

static float run_f(model *m, trn_out o)
{
    trn_tensor *t = run(m, o);
    assert_int_equal(trn_tensor_count(t), 1);
    float v = *(const float *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void is_floats(trn_tensor *t, const float *want, int64_t n, float tolerance)
{
    assert_int_equal(trn_tensor_dtype(t), TRN_FLOAT);
    assert_int_equal(trn_tensor_count(t), n);
    const float *v = trn_tensor_data(t);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(v[i] - want[i]) <= tolerance))
            fail_msg("element %lld is %g, not %g", (long long)i, (double)v[i], (double)want[i]);
    trn_tensor_unref(t);
}
#define IS(t, ...) is_floats(t, (float[]){__VA_ARGS__}, (int64_t)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), 1e-5f)

static trn_out floats(trn_builder *b, int rank, const int64_t *dims, const float *v) { return trn_const(b, trn_tensor_from(TRN_FLOAT, rank, dims, v)); }
#define VEC(b, ...) floats(b, 1, (int64_t[]){sizeof((float[]){__VA_ARGS__}) / sizeof(float)}, (float[]){__VA_ARGS__})
#define MAT(b, rows, cols, ...) floats(b, 2, (int64_t[]){rows, cols}, (float[]){__VA_ARGS__})

static void has_shape(trn_builder *b, trn_out o, const char *want)
{
    char text[TRN_SHAPE_TEXT];
    assert_string_equal(trn_shape_text(text, trn_out_shape(b, o)), want);
}

static void test_dense(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = MAT(b, 2, 3, 1, 2, 3, -4, -5, -6);
    trn_dense_opts o = {.kernel_init = trn_init_constant(0.5), .bias_init = trn_init_constant(1), .activation = trn_relu, .l2 = 0.1f};
    trn_out y = trn_dense(b, x, 2, &o), z = trn_dense(b, y, 1, NULL);
    has_shape(b, y, "[2,2]");
    trn_variable *k = trn_variable_find(b, "dense/kernel"), *k1 = trn_variable_find(b, "dense_1/kernel");
    assert_true(k && k1 && trn_variable_find(b, "dense/bias") && trn_variable_find(b, "dense_1/bias"));
    has_shape(b, k1->value, "[2,1]");
    assert_string_equal(trn_out_name(b, y), "dense/Relu:0");
    assert_string_equal(trn_out_name(b, z), "dense_1/BiasAdd:0");
    assert_string_equal(trn_out_name(b, k1->initial), "dense_1/kernel/Initializer/random_uniform:0");
    /* The same weights once more, on other data, of more dimensions. */
    o.reuse = true;
    trn_out other = floats(b, 3, (int64_t[]){1, 2, 3}, (float[]){1, 1, 1, 2, 2, 2});
    trn_out again = trn_dense(trn_named(b, "dense"), other, 2, &o);
    has_shape(b, again, "[1,2,2]");
    int n;
    trn_variables(&n, b, TRN_VARS_TRAINABLE);
    assert_int_equal(n, 4);
    int n_reg;
    const trn_out *reg = trn_collection(&n_reg, b, "regularization_losses");
    assert_int_equal(n_reg, 1);
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    IS(run(&m, y), 4, 4, 0, 0);
    IS(run(&m, again), 2.5f, 2.5f, 4, 4);
    assert_float_equal(run_f(&m, *reg), 0.1 * 6 * 0.25, 1e-6);
    /* glorot: ±√(6/(2 + 1)) */
    trn_tensor *w = run(&m, k1->value);
    for (int i = 0; i < 2; i++)
        assert_true(fabsf(((const float *)trn_tensor_data(w))[i]) <= 1.41422f);
    trn_tensor_unref(w);
    close_model(&m);
}

static void test_errors(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_dense(b, trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)-1)), 3, NULL);
    fails_build(b, "last dimension");
    b = trn_builder_new();
    trn_dense(b, trn_placeholder(b, "x", TRN_INT32, trn_shape_of(2, (int64_t)-1, (int64_t)4)), 3, NULL);
    fails_build(b, "floats");
    b = trn_builder_new();
    trn_out x = trn_conv2d(b, trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(3, (int64_t)1, (int64_t)2, (int64_t)4)), 3, 3, 3, NULL);
    assert_false(trn_out_is(x));
    /* Whatever follows does nothing, and the first error stays. */
    x = trn_batch_norm(b, trn_max_pool2d(b, x, 2, 2, TRN_SAME), TRN_TRAIN, NULL);
    trn_out logits = trn_dense(b, trn_dropout(b, trn_flatten(b, x), 0.5f, TRN_TRAIN, NULL), 10, NULL);
    trn_loss_sparse_softmax(b, x, logits, NULL);
    trn_metric_auc(b, x, logits, NULL, 0, false);
    trn_embedding(b, x, 3, 3, NULL);
    trn_total_loss(b);
    fails_build(b, "conv2d: its input must have 4 dimensions");
    b = trn_builder_new();
    trn_out z = trn_zeros(b, TRN_FLOAT, trn_shape_of(2, (int64_t)1, (int64_t)1));
    trn_dense(trn_named(b, "nobody"), z, 3, &(trn_dense_opts){.reuse = true});
    fails_build(b, "nobody/kernel");
    b = trn_builder_new();
    trn_loss_mean_squared(b, trn_zeros(b, TRN_FLOAT, trn_shape_vector(3)), trn_zeros(b, TRN_FLOAT, trn_shape_vector(4)), NULL);
    fails_build(b, "mean_squared_error: labels are [3], predictions are [4]");
    b = trn_builder_new();
    trn_dropout(b, trn_zeros(b, TRN_FLOAT, trn_shape_vector(3)), 1, TRN_TRAIN, NULL);
    fails_build(b, "rate");
    b = trn_builder_new();
    trn_total_loss(b);
    fails_build(b, "no losses");
}

static void test_conv(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = floats(b, 4, (int64_t[]){1, 3, 3, 1}, (float[]){1, 2, 3, 4, 5, 6, 7, 8, 9});
    trn_init half = trn_init_constant(0.5), one = trn_init_ones();
    trn_out valid = trn_conv2d(b, x, 1, 2, 2, &(trn_conv_opts){.kernel_init = half});
    trn_out same = trn_conv2d(b, x, 2, 3, 3, &(trn_conv_opts){.kernel_init = one, .padding = TRN_SAME, .stride = 2, .no_bias = true});
    trn_out line = trn_conv1d(b, floats(b, 3, (int64_t[]){1, 4, 1}, (float[]){1, 2, 3, 4}), 1, 2, &(trn_conv_opts){.kernel_init = one});
    trn_out depth = trn_depthwise_conv2d(b, x, 3, 3, &(trn_conv_opts){.kernel_init = one, .multiplier = 2});
    trn_out sep = trn_separable_conv2d(b, x, 3, 2, 2, &(trn_conv_opts){.kernel_init = one, .pointwise_init = half});
    trn_out up = trn_conv2d_transpose(b, x, 1, 2, 2, &(trn_conv_opts){.kernel_init = one, .stride = 2});
    trn_out any = trn_placeholder(b, "any", TRN_FLOAT, trn_shape_of(4, (int64_t)-1, (int64_t)3, (int64_t)3, (int64_t)1));
    trn_out up_any = trn_conv2d_transpose(b, any, 1, 2, 2, &(trn_conv_opts){.kernel_init = one, .padding = TRN_SAME});
    has_shape(b, valid, "[1,2,2,1]");
    has_shape(b, same, "[1,2,2,2]");
    has_shape(b, line, "[1,3,1]");
    has_shape(b, depth, "[1,1,1,2]");
    has_shape(b, sep, "[1,2,2,3]");
    has_shape(b, up, "[1,6,6,1]");
    has_shape(b, up_any, "[?,3,3,1]");
    assert_non_null(trn_variable_find(b, "separable_conv2d/pointwise_kernel"));
    assert_non_null(trn_variable_find(b, "conv2d_1/kernel"));
    assert_null(trn_variable_find(b, "conv2d_1/bias"));
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    IS(run(&m, valid), 6, 8, 12, 14);
    IS(run(&m, same), 12, 12, 16, 16, 24, 24, 28, 28);
    IS(run(&m, line), 3, 5, 7);
    IS(run(&m, depth), 45, 45);
    trn_tensor_unref(run(&m, sep));
    trn_tensor *fed = trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, 3, 3, 1}, (float[18]){1});
    trn_tensor *t = run_fed(&m, up_any, any, fed);
    assert_int_equal(trn_tensor_count(t), 18);
    trn_tensor_unref(t);
    trn_tensor_unref(fed);
    IS(run(&m, trn_max_pool2d(b, x, 2, 1, TRN_VALID)), 5, 6, 8, 9);
    IS(run(&m, trn_avg_pool2d(b, x, 2, 2, TRN_SAME)), 3, 4.5f, 7.5f, 9);
    IS(run(&m, trn_global_avg_pool2d(b, x)), 5);
    IS(run(&m, trn_global_max_pool2d(b, x)), 9);
    has_shape(b, trn_flatten(b, any), "[?,9]");
    close_model(&m);
}

static void test_batch_norm(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = MAT(b, 4, 1, 1, 2, 3, 4), training = trn_placeholder(b, "training", TRN_BOOL, trn_shape_scalar());
    trn_batch_norm_opts o = {.momentum = TRN_F(0.5f), .epsilon = TRN_F(0)};
    trn_out y = trn_batch_norm(b, x, trn_training(training), &o);
    o.reuse = true;
    trn_out eval = trn_batch_norm(trn_named(b, "batch_normalization"), x, TRN_EVAL, &o);
    trn_out image = trn_batch_norm(b, floats(b, 4, (int64_t[]){1, 2, 2, 1}, (float[]){1, 2, 3, 4}), TRN_TRAIN, &(trn_batch_norm_opts){.epsilon = TRN_F(0)});
    int n;
    const trn_out *updates = trn_collection(&n, b, "update_ops");
    assert_int_equal(n, 4);
    trn_out both = trn_group(b, updates, 2);
    trn_variables(&n, b, TRN_VARS_TRAINABLE);
    assert_int_equal(n, 4);
    trn_variable *mean = trn_variable_find(b, "batch_normalization/moving_mean"), *variance = trn_variable_find(b, "batch_normalization/moving_variance");
    assert_true(mean && variance);
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    float s = sqrtf(1.25f);
    trn_tensor *yes = trn_tensor_bool(true), *no = trn_tensor_bool(false);
    IS(run_fed(&m, y, training, yes), -1.5f / s, -.5f / s, .5f / s, 1.5f / s);
    IS(run_fed(&m, y, training, no), 1, 2, 3, 4);
    IS(run(&m, eval), 1, 2, 3, 4);
    is_floats(run(&m, image), (float[]){-1.5f / s, -.5f / s, .5f / s, 1.5f / s}, 4, 1e-4f);
    for (int i = 0; i < 2; i++) { /* first as in evaluation: nothing moves */
        const char *feed = "training:0", *target = trn_out_name(b, both);
        sync_model(&m);
        ok(trn_session_run(m.s, &(trn_run){.feed_names = &feed, .feeds = i ? &yes : &no, .n_feeds = 1, .targets = &target, .n_targets = 1}));
        assert_float_equal(run_f(&m, mean->value), i ? 1.25 : 0, 1e-6);
        assert_float_equal(run_f(&m, variance->value), i ? 1.125 : 1, 1e-6);
    }
    trn_tensor_unref(yes);
    trn_tensor_unref(no);
    IS(run(&m, trn_layer_norm(b, trn_reshape(b, x, trn_shape_of(2, (int64_t)1, (int64_t)4)), &(trn_layer_norm_opts){.no_scale = true, .no_center = true, .epsilon = TRN_F(0)})),
       -1.5f / s, -.5f / s, .5f / s, 1.5f / s);
    close_model(&m);
}

static void test_dropout(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = trn_fill(b, TRN_FLOAT, trn_shape_of(2, (int64_t)100, (int64_t)50), 1);
    trn_out y = trn_dropout(b, x, 0.25f, TRN_TRAIN, &(trn_dropout_opts){.seed = TRN_I(7)});
    trn_shape rows = trn_shape_of(2, (int64_t)-1, (int64_t)1);
    trn_out whole = trn_dropout(b, x, 0.5f, TRN_TRAIN, &(trn_dropout_opts){.seed = TRN_I(7), .noise = &rows});
    trn_tensor *t = run(&m, y);
    int zeros = 0;
    for (int i = 0; i < 5000; i++) {
        float v = ((const float *)trn_tensor_data(t))[i];
        assert_true(v == 0 || fabsf(v - 4 / 3.f) < 1e-6f);
        zeros += v == 0;
    }
    assert_in_range(zeros, 1100, 1400);
    trn_tensor_unref(t);
    t = run(&m, whole);
    for (int i = 0; i < 5000; i++)
        assert_true(((const float *)trn_tensor_data(t))[i] == ((const float *)trn_tensor_data(t))[i / 50 * 50]);
    trn_tensor_unref(t);
    t = run(&m, trn_dropout(b, x, 0.5f, TRN_EVAL, NULL));
    assert_true(*(const float *)trn_tensor_data(t) == 1);
    trn_tensor_unref(t);
    close_model(&m);
}

static void test_seeds(void **state)
{
    trn_builder *b = trn_builder_new();
    int64_t s[2];
    trn_next_seeds(s, b, (trn_maybe_int){0});
    assert_true(s[0] == 0 && s[1] == 0);
    trn_next_seeds(s, b, TRN_I(5));
    assert_true(s[0] == 87654321 && s[1] == 5);
    trn_set_seed(b, 0);
    trn_next_seeds(s, b, (trn_maybe_int){0});
    assert_true(s[0] == 0 && s[1] == INT32_MAX); /* never two zeros */
    trn_next_seeds(s, b, (trn_maybe_int){0});
    assert_true(s[0] == 0 && s[1] == 1);
    trn_set_seed(b, -1);
    trn_next_seeds(s, b, TRN_I(-2));
    assert_true(s[0] == INT32_MAX - 1 && s[1] == INT32_MAX - 2);
    trn_builder_free(b);
}

static void test_initialisers(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_set_seed(b, 3);
    trn_shape shape = trn_shape_of(2, (int64_t)60, (int64_t)40);
    struct {
        trn_init init;
        double stddev, limit;
    } cases[] = {
        {trn_init_glorot_uniform(), sqrt(1 / 50.), sqrt(3 / 50.)},
        {trn_init_glorot_normal(), sqrt(1 / 50.), 2 * sqrt(1 / 50.) / .8796},
        {trn_init_he_normal(), sqrt(2 / 60.), 2 * sqrt(2 / 60.) / .8796},
        {trn_init_lecun_uniform(), sqrt(1 / 60.), sqrt(3 / 60.)},
        {trn_init_normal(0, 2), 2, 12},
        {trn_init_truncated_normal(0, 1), .8796, 2},
        {trn_init_orthogonal(1), sqrt(1 / 60.), 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        trn_tensor *t = run(&m, trn_initial(b, cases[c].init, TRN_FLOAT, shape));
        double sum = 0;
        const float *v = trn_tensor_data(t);
        for (int i = 0; i < 2400; i++) {
            sum += (double)v[i] * (double)v[i];
            assert_true(fabs((double)v[i]) <= cases[c].limit * 1.001);
        }
        assert_true(fabs(sqrt(sum / 2400) / cases[c].stddev - 1) < 0.05);
        trn_tensor_unref(t);
    }
    /* columns of the orthogonal one */
    trn_out q = trn_initial(b, trn_init_orthogonal(1), TRN_FLOAT, trn_shape_of(2, (int64_t)3, (int64_t)2));
    trn_attr at = trn_at_bool("transpose_a", true);
    IS(run(&m, trn_node_add(b, "MatMul", TRN_OUTS(q, q), &at, 1)), 1, 0, 0, 1);
    IS(run(&m, trn_initial(b, trn_init_identity(2), TRN_FLOAT, trn_shape_of(2, (int64_t)2, (int64_t)3))), 2, 0, 0, 0, 2, 0);
    trn_tensor *two = trn_tensor_f32(2);
    IS(run(&m, trn_initial(b, trn_init_value(two), TRN_FLOAT, trn_shape_scalar())), 2);
    trn_tensor_unref(two);
    close_model(&m);
}

static void test_embedding(void **state)
{
    for (int ref = 0; ref < 2; ref++) {
        model m = open_model();
        trn_builder *b = m.b;
        trn_use_ref_variables(b, ref);
        trn_tensor *rows = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6});
        trn_out y = trn_embedding(b, trn_const_i32s(b, (int32_t[]){2, 0}, 2), 3, 2, &(trn_embedding_opts){.init = trn_init_value(rows)});
        has_shape(b, y, "[2,2]");
        assert_non_null(trn_variable_find(b, "embedding/embeddings"));
        run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
        IS(run(&m, y), 5, 6, 1, 2);
        trn_tensor_unref(rows);
        close_model(&m);
    }
}

static void test_rnn(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out any = trn_placeholder(b, "any", TRN_FLOAT, trn_shape_of(3, (int64_t)-1, (int64_t)3, (int64_t)1)), lengths = trn_const_i32s(b, (int32_t[]){3, 1}, 2);
    trn_rnn_opts o = {.kernel_init = trn_init_constant(0.5)};
    trn_rnn lstm = trn_lstm(b, any, 1, &o);
    o.reuse = true;
    o.lengths = &lengths;
    trn_rnn cut = trn_lstm(trn_named(b, "rnn"), any, 1, &o);
    trn_rnn gru = trn_gru(b, any, 1, &(trn_rnn_opts){.kernel_init = trn_init_constant(0.5)});
    has_shape(b, lstm.outputs, "[?,3,1]");
    assert_non_null(trn_variable_find(b, "rnn/basic_lstm_cell/kernel"));
    assert_non_null(trn_variable_find(b, "rnn_2/gru_cell/candidate/bias"));
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    /* by hand */
    float x[2][3] = {{1, -1, 2}, {3, 0, 1}}, h[2][3], gh[2][3], c_end[2];
    for (int r = 0; r < 2; r++) {
        float c = 0, now = 0, g = 0;
        for (int i = 0; i < 3; i++) {
            float z = .5f * (x[r][i] + now), s = 1 / (1 + expf(-z)), f = 1 / (1 + expf(-z - 1));
            c = c * f + s * tanhf(z);
            h[r][i] = now = tanhf(c) * s;
            if (i == (r ? 0 : 2))
                c_end[r] = c;
            float u = 1 / (1 + expf(-(.5f * (x[r][i] + g) + 1)));
            gh[r][i] = g = u * g + (1 - u) * tanhf(.5f * (x[r][i] + u * g));
        }
    }
    trn_tensor *fed = trn_tensor_from(TRN_FLOAT, 3, (int64_t[]){2, 3, 1}, x);
    is_floats(run_fed(&m, lstm.outputs, any, fed), h[0], 6, 1e-5f);
    is_floats(run_fed(&m, gru.outputs, any, fed), gh[0], 6, 1e-5f);
    is_floats(run_fed(&m, cut.c, any, fed), c_end, 2, 1e-5f);
    h[1][1] = h[1][2] = 0;
    is_floats(run_fed(&m, cut.outputs, any, fed), h[0], 6, 1e-5f);
    trn_tensor_unref(fed);
    close_model(&m);
}

/* As a loop: the same numbers, the same gradients, for any number of steps. */
static void test_rnn_loop(void **state)
{
    for (int gru = 0; gru < 2; gru++) {
        model m = open_model();
        trn_builder *b = m.b;
        trn_set_seed(b, 1);
        trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(3, (int64_t)-1, (int64_t)3, (int64_t)2)), lengths = trn_const_i32s(b, (int32_t[]){3, 1}, 2);
        trn_out any = trn_placeholder(b, "any", TRN_FLOAT, trn_shape_of(3, (int64_t)-1, (int64_t)-1, (int64_t)2));
        trn_rnn (*layer)(trn_builder *, trn_out, int64_t, const trn_rnn_opts *) = gru ? trn_gru : trn_lstm;
        trn_rnn flat = layer(b, x, 4, &(trn_rnn_opts){.lengths = &lengths});
        trn_rnn loop = layer(trn_named(b, "rnn"), x, 4, &(trn_rnn_opts){.lengths = &lengths, .loop = true, .reuse = true});
        trn_rnn free_time = layer(trn_named(b, "rnn"), any, 4, &(trn_rnn_opts){.reuse = true});
        has_shape(b, loop.outputs, "[?,3,4]");
        has_shape(b, free_time.outputs, "[?,?,4]");
        trn_variable *k = trn_variable_find(b, gru ? "rnn/gru_cell/gates/kernel" : "rnn/basic_lstm_cell/kernel");
        trn_grad g[2][2];
        trn_rnn all[] = {flat, loop};
        for (int i = 0; i < 2; i++) {
            trn_out loss = trn_op_add_v2(b, trn_op_l2_loss(b, all[i].outputs), trn_op_l2_loss(b, all[i].h));
            trn_gradients(g[i], b, &loss, 1, TRN_OUTS(k->handle, x), NULL);
        }
        ok(trn_builder_check(b));
        run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
        trn_tensor *fed = trn_tensor_from(TRN_FLOAT, 3, (int64_t[]){2, 3, 2}, (float[]){1, -1, 2, .5f, -.5f, 3, 0, 1, 1, 2, -2, .1f});
        trn_out pairs[][2] = {{flat.outputs, loop.outputs}, {flat.h, loop.h}, {g[0][0].values, g[1][0].values}, {g[0][1].values, g[1][1].values}};
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            trn_tensor *want = run_fed(&m, pairs[i][0], x, fed);
            is_floats(run_fed(&m, pairs[i][1], x, fed), trn_tensor_data(want), trn_tensor_count(want), 1e-5f);
            trn_tensor_unref(want);
        }
        trn_tensor *long_one = trn_tensor_from(TRN_FLOAT, 3, (int64_t[]){1, 7, 2}, (float[14]){1}), *t = run_fed(&m, free_time.outputs, any, long_one);
        assert_int_equal(trn_tensor_count(t), 28);
        trn_tensor_unref(t);
        trn_tensor_unref(long_one);
        trn_tensor_unref(fed);
        close_model(&m);
    }
}

static void test_losses(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out l = MAT(b, 2, 2, 1, 0, 0, 1), p = MAT(b, 2, 2, .5f, 0, .25f, 3), w = MAT(b, 2, 1, 2, 0);
    trn_out mse = trn_loss_mean_squared(b, l, p, NULL);
    assert_string_equal(trn_out_name(b, mse), "mean_squared_error/value:0");
    assert_float_equal(run_f(&m, mse), (.25 + .0625 + 4) / 4, 1e-6);
    assert_float_equal(run_f(&m, trn_loss_mean_squared(b, l, p, &(trn_loss_opts){.weights = &w})), 2 * .25 / 2, 1e-6);
    assert_float_equal(run_f(&m, trn_loss_mean_squared(b, l, p, &(trn_loss_opts){.weights = &w, .reduction = TRN_MEAN})), .5 / 4, 1e-6);
    assert_float_equal(run_f(&m, trn_loss_mean_squared(b, l, p, &(trn_loss_opts){.weights = &w, .reduction = TRN_SUM_OVER_BATCH_SIZE})), .5 / 4, 1e-6);
    assert_float_equal(run_f(&m, trn_loss_absolute(b, l, p, &(trn_loss_opts){.reduction = TRN_SUM})), 2.75, 1e-6);
    IS(run(&m, trn_loss_absolute(b, l, p, &(trn_loss_opts){.reduction = TRN_UNREDUCED, .weights = &w})), 1, 0, 0, 0);
    IS(run(&m, trn_loss_huber(b, l, p, &(trn_loss_opts){.reduction = TRN_UNREDUCED})), .125f, 0, .03125f, 1.5f);
    IS(run(&m, trn_loss_hinge(b, l, p, &(trn_loss_opts){.reduction = TRN_UNREDUCED})), .5f, 1, 1.25f, 0);
    trn_out logits = MAT(b, 2, 2, 1, 2, 3, 3), classes = trn_const_i32s(b, (int32_t[]){0, 1}, 2);
    float soft = (float)(log(exp(1) + exp(2)) - 1);
    assert_float_equal(run_f(&m, trn_loss_sparse_softmax(b, classes, logits, NULL)), (soft + logf(2)) / 2, 1e-6);
    assert_float_equal(run_f(&m, trn_loss_softmax(b, l, logits, NULL)), (soft + logf(2)) / 2, 1e-6);
    trn_out nothing = MAT(b, 2, 2, 0, 0, 0, 0);
    assert_float_equal(run_f(&m, trn_loss_mean_squared(b, l, p, &(trn_loss_opts){.weights = &nothing, .collection = ""})), 0, 0);
    int n;
    trn_collection(&n, b, "losses");
    assert_int_equal(n, 10);
    close_model(&m);
    m = open_model();
    trn_loss_absolute(m.b, VEC(m.b, 1, 2), VEC(m.b, 2, 4), NULL);
    trn_regularize(m.b, VEC(m.b, 1, -2), 1, 10);
    assert_float_equal(run_f(&m, trn_total_loss(m.b)), 1.5 + 3 + 50, 1e-5);
    close_model(&m);
}

static trn_out all_nines(void *arg, trn_builder *b, trn_dtype dtype, const trn_shape *shape)
{
    ++*(int *)arg;
    return trn_fill(b, dtype, *shape, 9);
}

static void check_random(model *m, trn_out o, double mean, double stddev, double most)
{
    trn_tensor *t = run(m, o), *u = run(m, o);
    const float *v = trn_tensor_data(t);
    int64_t n = trn_tensor_count(t);
    assert_memory_not_equal(v, trn_tensor_data(u), (size_t)n * sizeof *v); /* others in each step */
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(fabs((double)v[i] - mean) <= most);
        sum += (double)v[i];
        squares += ((double)v[i] - mean) * ((double)v[i] - mean);
    }
    assert_true(fabs(sum / (double)n - mean) < 0.1 && fabs(sqrt(squares / (double)n) - stddev) < 0.1);
    trn_tensor_unref(t);
    trn_tensor_unref(u);
}

static void test_random_and_own(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_set_seed(b, 3);
    trn_shape many = trn_shape_of(2, (int64_t)40, (int64_t)100);
    check_random(&m, trn_random_uniform(b, TRN_FLOAT, many, 1, 3, (trn_maybe_int){0}), 2, sqrt(4.0 / 12), 1);
    check_random(&m, trn_random_normal(b, TRN_FLOAT, many, -1, 0.5, TRN_I(4)), -1, 0.5, 4);
    check_random(&m, trn_truncated_normal(b, TRN_FLOAT, many, 0, 1, (trn_maybe_int){0}), 0, 0.88, 2);
    int calls = 0;
    trn_variable *table = trn_get_variable(b, "own", TRN_FLOAT, trn_shape_of(2, (int64_t)3, (int64_t)2), trn_init_with(all_nines, &calls), 0);
    trn_out rows = trn_embedding_lookup(b, table, trn_const_i32s(b, (int32_t[]){2, 0}, 2));
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    assert_int_equal(calls, 1);
    IS(run(&m, rows), 9, 9, 9, 9);
    /* A loss of one's own: weights, reduction, collection. */
    trn_out w = VEC(b, 1, 0, 3), mine = trn_loss_weighted(b, VEC(b, 1, 2, 3), &(trn_loss_opts){.weights = &w, .reduction = TRN_MEAN, .collection = "mine"});
    int n;
    assert_true(trn_collection(&n, b, "mine")[0].node == mine.node && n == 1);
    IS(run(&m, mine), 10.0f / 4);
    close_model(&m);
}

static void test_sampled(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_variable *w = trn_variable_new(b, "w", MAT(b, 3, 2, 1, 0, 0, 1, -1, 2), 0), *bias = trn_variable_new(b, "b", VEC(b, 0.5f, 0, -0.5f), 0);
    trn_out x = MAT(b, 2, 2, 1, 2, -1, 0.5f), labels = trn_const(b, trn_tensor_from(TRN_INT32, 2, (int64_t[]){2, 1}, (int32_t[]){2, 0}));
    /* All classes as candidates, hits left out: the whole softmax. */
    trn_candidates all = trn_candidates_new(b, labels, 3, 3, &(trn_candidates_opts){.sampler = TRN_SAMPLE_ALL});
    trn_out loss = trn_sampled_softmax_loss(b, &w, 1, &bias, 1, labels, x, 3, 3, &(trn_sampled_opts){.candidates = &all});
    trn_out nce = trn_nce_loss(b, &w, 1, &bias, 1, labels, x, 3, 3, &(trn_sampled_opts){.candidates = &all});
    trn_grad g[2];
    trn_gradients(g, b, &loss, 1, TRN_OUTS(w->handle, bias->handle), NULL);
    ok(trn_builder_check(b));
    assert_true(trn_grad_is_sparse(g[0]) && trn_grad_is_sparse(g[1]));
    has_shape(b, loss, "[2]");
    run_op(&m, trn_variables_init(b, TRN_VARS_GLOBAL));
    const double logit[2][3] = {{1.5, 2, 2.5}, {-0.5, 0.5, 1.5}};
    float want[2], want_nce[2];
    for (int i = 0; i < 2; i++) {
        double sum = 0, t = logit[i][i ? 0 : 2], entropy = log1p(exp(-t)); /* of the label, and of every class as a candidate */
        for (int k = 0; k < 3; k++) {
            sum += exp(logit[i][k]);
            entropy += log1p(exp(logit[i][k]));
        }
        want[i] = (float)(log(sum) - t);
        want_nce[i] = (float)entropy;
    }
    is_floats(run(&m, loss), want, 2, 1e-5f);
    is_floats(run(&m, nce), want_nce, 2, 1e-5f);
    run_op(&m, trn_grad_dense(b, g[0]));
    close_model(&m);

#define WRONG(part, call)                                                                                              \
    do {                                                                                                               \
        b = trn_builder_new();                                                                                         \
        w = trn_variable_new(b, "w", MAT(b, 3, 2, 1, 0, 0, 1, -1, 2), 0), bias = trn_variable_new(b, "b", VEC(b, 0, 0, 0), 0); \
        x = MAT(b, 2, 2, 1, 2, -1, 0.5f), labels = trn_const(b, trn_tensor_from(TRN_INT32, 2, (int64_t[]){2, 1}, (int32_t[]){2, 0})); \
        call;                                                                                                          \
        fails_build(b, part);                                                                                                \
    } while (0)
    WRONG("candidates: labels must be int32 or int64 [batch, number of true classes] with a known number, not float [2,2]", trn_candidates_new(b, x, 2, 3, NULL));
    WRONG("candidates: 4 candidates of 3 classes, each at most once", trn_candidates_new(b, labels, 4, 3, NULL));
    WRONG("needs counts", trn_candidates_new(b, labels, 2, 3, &(trn_candidates_opts){.sampler = TRN_SAMPLE_FIXED_UNIGRAM}));
    WRONG("nce_loss: labels must be", trn_nce_loss(b, &w, 1, &bias, 1, x, x, 2, 3, NULL));
    WRONG("nce_loss: weights 'b' are [3] and inputs [2,2]", trn_nce_loss(b, &bias, 1, &bias, 1, labels, x, 2, 3, NULL));
    WRONG("nce_loss: biases 'w' are [3,2]", trn_nce_loss(b, &w, 1, &w, 1, labels, x, 2, 3, NULL));
    WRONG("sampled_softmax_loss: 0 pieces of weights", trn_sampled_softmax_loss(b, NULL, 0, &bias, 1, labels, x, 2, 3, NULL));
    WRONG("2 candidates were drawn, not 3", {
        trn_candidates c = trn_candidates_new(b, labels, 2, 3, NULL);
        trn_sampled_softmax_loss(b, &w, 1, &bias, 1, labels, x, 3, 3, &(trn_sampled_opts){.candidates = &c});
    });
#undef WRONG
}

static void test_metrics(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(1, (int64_t)-1)), labels = VEC(b, 1, 0, 1, 1);
    trn_metric mean = trn_metric_mean(b, x, NULL);
    trn_metric accuracy = trn_metric_accuracy(b, labels, VEC(b, 1, 1, 0, 1), NULL);
    trn_metric precision = trn_metric_precision(b, labels, VEC(b, 1, 1, 0, 1), NULL), recall = trn_metric_recall(b, labels, VEC(b, 1, 1, 1, 0), NULL);
    trn_metric auc = trn_metric_auc(b, labels, VEC(b, .9f, .2f, .8f, .1f), NULL, 0, false);
    trn_metric top = trn_metric_top_k(b, trn_const_i32s(b, (int32_t[]){0, 1}, 2), MAT(b, 2, 3, 1, 2, 3, 1, 2, 3), 2, NULL);
    trn_metric rmse = trn_metric_root_mean_squared_error(b, labels, VEC(b, 1, 2, 1, 1), NULL);
    trn_variable **v;
    int n, n_global;
    v = trn_variables(&n, b, TRN_VARS_LOCAL);
    trn_variables(&n_global, b, TRN_VARS_GLOBAL);
    assert_int_equal(n, 2 + 2 + 2 + 2 + 4 + 2 + 2);
    assert_int_equal(n_global, 0);
    assert_string_equal(v[0]->name, "mean/total");
    run_op(&m, trn_variables_init(b, TRN_VARS_LOCAL));
    trn_tensor *one = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){2}, (float[]){1, 2}), *two = trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){1}, (float[]){6});
    IS(run_fed(&m, mean.update, x, one), 1.5f);
    IS(run_fed(&m, mean.update, x, two), 3);
    assert_float_equal(run_f(&m, mean.value), 3, 1e-6);
    trn_tensor_unref(one);
    trn_tensor_unref(two);
    assert_float_equal(run_f(&m, accuracy.update), .5, 1e-6);
    assert_float_equal(run_f(&m, precision.update), 2 / 3., 1e-6);
    assert_float_equal(run_f(&m, recall.update), 2 / 3., 1e-6);
    assert_float_equal(run_f(&m, auc.update), 2 / 3., 1e-3);
    assert_float_equal(run_f(&m, auc.value), 2 / 3., 1e-3);
    assert_float_equal(run_f(&m, top.update), .5, 1e-6);
    assert_float_equal(run_f(&m, rmse.update), 1, 1e-6);
    assert_float_equal(run_f(&m, trn_accuracy(b, trn_const_i32s(b, (int32_t[]){2, 1}, 2), MAT(b, 2, 3, 1, 2, 3, 1, 2, 3))), .5, 1e-6);
    close_model(&m);
}

static void test_activations(void **state)
{
    model m = open_model();
    trn_builder *b = m.b;
    trn_out x = VEC(b, -1, 0, 2);
    IS(run(&m, trn_relu(b, x)), 0, 0, 2);
    IS(run(&m, trn_leaky_relu(b, x)), -.2f, 0, 2);
    IS(run(&m, trn_gelu(b, x)), -0.15865526f, 0, 1.9544997f);
    IS(run(&m, trn_swish(b, x)), -0.26894143f, 0, 1.7615942f);
    IS(run(&m, trn_softmax(b, x)), 0.04201007f, 0.11419519f, 0.8437947f);
    trn_activation all[] = {trn_relu6, trn_elu, trn_selu, trn_sigmoid, trn_tanh, trn_softplus, trn_softsign};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        trn_tensor_unref(run(&m, all[i](b, x)));
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),   cmocka_unit_test(test_errors),       cmocka_unit_test(test_conv),      cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_seeds),        cmocka_unit_test(test_initialisers), cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_losses),  cmocka_unit_test(test_random_and_own), cmocka_unit_test(test_sampled), cmocka_unit_test(test_metrics),      cmocka_unit_test(test_activations),  cmocka_unit_test(test_rnn), cmocka_unit_test(test_rnn_loop),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
