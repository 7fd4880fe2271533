/* Optimizers against the formulas in double, dense and sparse, resource and ref variables; schedules, clipping, placement, pieces. */
#include <trainera/trainera.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "check.h"

static trn_server *server;

static int setup(void **st)
{
    trn_err err = trn_server_create_local(&server);
    if (err)
        print_error("%s\n", trn_err_msg(err));
    return err != NULL;
}

static int teardown(void **st)
{
    trn_server_close(server, 1000);
    return 0;
}

static trn_session *open_with(trn_builder *b)
{
    trn_session *s;
    ok(trn_builder_check(b));
    ok(trn_session_open_on(&s, server, NULL));
    ok(trn_session_extend_builder(s, b));
    return s;
}

static void run(trn_builder *b, trn_session *s, trn_out op)
{
    const char *t = trn_out_name(b, op);
    ok(trn_session_run(s, &(trn_run){.targets = &t, .n_targets = 1}));
}

static trn_tensor *fetch(trn_builder *b, trn_session *s, trn_out o)
{
    const char *f = trn_out_name(b, o);
    trn_tensor *t = NULL;
    ok(trn_session_run(s, &(trn_run){.fetches = &f, .n_fetches = 1, .out = &t}));
    return t;
}

static float fetch1(trn_builder *b, trn_session *s, trn_out o)
{
    trn_tensor *t = fetch(b, s, o);
    assert_int_equal(trn_tensor_dtype(t), TRN_FLOAT);
    assert_int_equal(trn_tensor_count(t), 1);
    float v = *(const float *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void empty_containers(void)
{
    ok(trn_reset(trn_server_target(server), NULL, 0));
}

/* ---- optimizers ---------------------------------------------------------------------------------------------------- */

enum { R = 4, C = 3, STEPS = 3 };
static const double LR = 0.1;

/* One element: w, its slots in TensorFlow's order of creation, gradient, step from 0. */
typedef void (*formula)(double *w, double *s0, double *s1, double *s2, double g, int step);
typedef trn_optimizer *(*maker)(trn_builder *b, trn_out lr);

static double sgn(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
static double shrink(double prox, double lr, double l1, double l2) { return sgn(prox) * fmax(fabs(prox) - lr * l1, 0) / (1 + lr * l2); }

static trn_optimizer *mk_sgd(trn_builder *b, trn_out lr) { return trn_sgd(b, lr); }
static void f_sgd(double *w, double *a, double *c, double *d, double g, int t) { *w -= LR * g; }

static trn_optimizer *mk_momentum(trn_builder *b, trn_out lr) { return trn_momentum(b, lr, 0.9f, false); }
static void f_momentum(double *w, double *m, double *c, double *d, double g, int t) { *m = 0.9 * *m + g, *w -= LR * *m; }

static trn_optimizer *mk_nesterov(trn_builder *b, trn_out lr) { return trn_momentum(b, lr, 0.9f, true); }
static void f_nesterov(double *w, double *m, double *c, double *d, double g, int t) { *m = 0.9 * *m + g, *w -= LR * g + LR * 0.9 * *m; }

static trn_optimizer *mk_adagrad(trn_builder *b, trn_out lr) { return trn_adagrad(b, lr, 0.1f); }
static void f_adagrad(double *w, double *a, double *c, double *d, double g, int t) { *a += g * g, *w -= LR * g / sqrt(*a); }

static trn_optimizer *mk_adadelta(trn_builder *b, trn_out lr) { return trn_adadelta(b, lr, 0.95f, 1e-3f); }
static void f_adadelta(double *w, double *a, double *u, double *d, double g, int t)
{
    *a = 0.95 * *a + 0.05 * g * g;
    double x = sqrt(*u + 1e-3) / sqrt(*a + 1e-3) * g;
    *w -= LR * x;
    *u = 0.95 * *u + 0.05 * x * x;
}

static trn_optimizer *mk_adam(trn_builder *b, trn_out lr) { return trn_adam(b, lr, 0.9f, 0.999f, 1e-3f); }
static void f_adam(double *w, double *m, double *v, double *d, double g, int t)
{
    double lr = LR * sqrt(1 - pow((double)0.999f, t + 1)) / (1 - pow((double)0.9f, t + 1));
    *m += (1 - (double)0.9f) * (g - *m);
    *v += (1 - (double)0.999f) * (g * g - *v);
    *w -= lr * *m / (sqrt(*v) + 1e-3);
}

static trn_optimizer *mk_rmsprop(trn_builder *b, trn_out lr) { return trn_rmsprop(b, lr, 0.9f, 0.5f, 1e-3f, false); }
static void f_rmsprop(double *w, double *ms, double *mom, double *d, double g, int t)
{
    *ms += 0.1 * (g * g - *ms);
    *mom = 0.5 * *mom + LR * g / sqrt(*ms + 1e-3);
    *w -= *mom;
}

static trn_optimizer *mk_centered(trn_builder *b, trn_out lr) { return trn_rmsprop(b, lr, 0.9f, 0.5f, 1e-3f, true); }
static void f_centered(double *w, double *ms, double *mg, double *mom, double g, int t)
{
    *ms += 0.1 * (g * g - *ms);
    *mg += 0.1 * (g - *mg);
    *mom = 0.5 * *mom + LR * g / sqrt(*ms - *mg * *mg + 1e-3);
    *w -= *mom;
}

static void ftrl(double *w, double *n, double *z, double g, double l1, double l2, double l2s)
{
    double next = *n + g * g;
    *z += g + 2 * l2s * *w - (sqrt(next) - sqrt(*n)) / LR * *w;
    *w = fabs(*z) > l1 ? (sgn(*z) * l1 - *z) / (sqrt(next) / LR + 2 * l2) : 0;
    *n = next;
}
static trn_optimizer *mk_ftrl(trn_builder *b, trn_out lr) { return trn_ftrl(b, lr, &(trn_ftrl_opts){.l1 = 0.05f, .l2 = 0.02f}); }
static void f_ftrl(double *w, double *n, double *z, double *d, double g, int t) { ftrl(w, n, z, g, 0.05, 0.02, 0); }
static trn_optimizer *mk_ftrl_beta(trn_builder *b, trn_out lr) { return trn_ftrl(b, lr, &(trn_ftrl_opts){.beta = 0.3f, .initial_accumulator = TRN_F(1)}); }
static void f_ftrl_beta(double *w, double *n, double *z, double *d, double g, int t) { ftrl(w, n, z, g, 0, 0.3 / (2 * LR), 0); }
static trn_optimizer *mk_ftrl2(trn_builder *b, trn_out lr) { return trn_ftrl(b, lr, &(trn_ftrl_opts){.l1 = 0.05f, .l2 = 0.02f, .l2_shrinkage = 0.1f}); }
static void f_ftrl2(double *w, double *n, double *z, double *d, double g, int t) { ftrl(w, n, z, g, 0.05, 0.02, 0.1); }

static trn_optimizer *mk_psgd(trn_builder *b, trn_out lr) { return trn_proximal_sgd(b, lr, 0.1f, 0.2f); }
static void f_psgd(double *w, double *a, double *c, double *d, double g, int t) { *w = shrink(*w - LR * g, LR, 0.1, 0.2); }

static trn_optimizer *mk_padagrad(trn_builder *b, trn_out lr) { return trn_proximal_adagrad(b, lr, 0.1f, 0.1f, 0.2f); }
static void f_padagrad(double *w, double *a, double *c, double *d, double g, int t)
{
    *a += g * g;
    double lr = LR / sqrt(*a);
    *w = shrink(*w - lr * g, lr, 0.1, 0.2);
}

static trn_optimizer *mk_da(trn_builder *b, trn_out lr) { return trn_adagrad_da(b, lr, trn_global_step(b), 0.1f, 0.05f, 0.02f); }
static void f_da(double *w, double *ga, double *gg, double *d, double g, int t)
{
    *ga += g;
    *gg += g * g;
    double x = sgn(*ga) * fmax(fabs(*ga) - 0.05 * (t + 1), 0);
    *w = -LR * x / (0.02 * (t + 1) * LR + sqrt(*gg));
}

static const struct {
    const char *name;
    maker make;
    formula f;
    bool all_rows; /* sparse: rows without gradient move too */
    struct {
        const char *slot, *name;
        double initial;
    } slots[3];
} cases[] = {
    {"sgd", mk_sgd, f_sgd, false, {{0}}},
    {"momentum", mk_momentum, f_momentum, false, {{"momentum", "w/Momentum", 0}}},
    {"nesterov", mk_nesterov, f_nesterov, false, {{"momentum", "w/Momentum", 0}}},
    {"adagrad", mk_adagrad, f_adagrad, false, {{"accumulator", "w/Adagrad", 0.1}}},
    {"adadelta", mk_adadelta, f_adadelta, false, {{"accum", "w/Adadelta", 0}, {"accum_update", "w/Adadelta_1", 0}}},
    {"adam", mk_adam, f_adam, true, {{"m", "w/Adam", 0}, {"v", "w/Adam_1", 0}}},
    {"rmsprop", mk_rmsprop, f_rmsprop, false, {{"rms", "w/RMSProp", 1}, {"momentum", "w/RMSProp_1", 0}}},
    {"centered", mk_centered, f_centered, false, {{"rms", "w/RMSProp", 1}, {"mg", "w/RMSProp_1", 0}, {"momentum", "w/RMSProp_2", 0}}},
    {"ftrl", mk_ftrl, f_ftrl, false, {{"accum", "w/Ftrl", 0.1}, {"linear", "w/Ftrl_1", 0}}},
    {"ftrl with beta", mk_ftrl_beta, f_ftrl_beta, false, {{"accum", "w/Ftrl", 1}, {"linear", "w/Ftrl_1", 0}}},
    {"ftrl with shrinkage", mk_ftrl2, f_ftrl2, false, {{"accum", "w/Ftrl", 0.1}, {"linear", "w/Ftrl_1", 0}}},
    {"proximal sgd", mk_psgd, f_psgd, false, {{0}}},
    {"proximal adagrad", mk_padagrad, f_padagrad, false, {{"accumulator", "w/ProximalAdagrad", 0.1}}},
    {"adagrad da", mk_da, f_da, false, {{"gradient_accumulator", "w/AdagradDA", 0}, {"gradient_squared_accumulator", "w/AdagradDA_1", 0.1}}},
};

static void compare(const char *what, const char *of, trn_tensor *t, const double *want)
{
    const float *got = trn_tensor_data(t);
    for (int i = 0; i < R * C; i++)
        if (!(fabs((double)got[i] - want[i]) <= 2e-6 + 2e-5 * fabs(want[i])))
            fail_msg("%s: %s[%d] is %.8g, should be %.8g", what, of, i, (double)got[i], want[i]);
    trn_tensor_unref(t);
}

static void one(int k, bool sparse, bool ref, bool lr_computed)
{
    char what[96];
    snprintf(what, sizeof what, "%s %s %s", cases[k].name, sparse ? "sparse" : "dense", ref ? "ref" : "resource");
    empty_containers();
    trn_builder *b = trn_builder_new();
    trn_use_ref_variables(b, ref);
    float init[R * C];
    double w[R * C], s[3][R * C];
    for (int i = 0; i < R * C; i++) {
        init[i] = 0.3f * (float)(i % 5) - 0.5f;
        w[i] = (double)init[i];
        for (int j = 0; j < 3; j++)
            s[j][i] = cases[k].slots[j].initial;
    }
    trn_variable *v = trn_variable_new(b, "w", trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){R, C}, init)), 0);
    trn_out x = trn_placeholder(b, "g", TRN_FLOAT, trn_shape_of(2, -1L, (int64_t)C));
    trn_grad g = {x, TRN_NONE, TRN_NONE};
    enum { ROWS = 3 };
    static const int32_t rows[ROWS] = {2, 0, 2}; /* one comes twice */
    if (sparse)
        g = (trn_grad){x, trn_const_i32s(b, rows, ROWS), trn_const_i32s(b, (int32_t[]){R, C}, 2)};
    trn_out lr = trn_const_f32(b, (float)LR);
    if (lr_computed)
        lr = trn_node_add(b, "Identity", &lr, 1, NULL, 0);
    trn_optimizer *o = cases[k].make(b, lr);
    trn_out train = trn_apply_gradients(o, &(trn_grad_var){g, v}, 1, trn_global_step(b));
    ok(trn_builder_check(b));
    assert_string_equal(trn_out_name(b, train), trn_optimizer_name(o));
    int n_slots = 0, n_names;
    for (; n_slots < 3 && cases[k].slots[n_slots].slot; n_slots++) {
        trn_variable *sv = trn_optimizer_slot(o, v, cases[k].slots[n_slots].slot);
        assert_non_null(sv);
        assert_string_equal(sv->name, cases[k].slots[n_slots].name);
    }
    (void)trn_optimizer_slot_names(&n_names, o);
    assert_int_equal(n_names, n_slots);
    assert_null(trn_optimizer_slot(o, v, "nonesuch"));
    trn_out init_op = trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_session *ses = open_with(b);
    run(b, ses, init_op);
    int n_rows = sparse ? ROWS : R;
    for (int t = 0; t < STEPS; t++) {
        float grad[R * C];
        double sum[R * C] = {0};
        bool touched[R] = {false};
        for (int i = 0; i < n_rows * C; i++) {
            grad[i] = 0.25f * (float)((i * 7 + t * 3) % 9) - 1;
            int r = sparse ? rows[i / C] : i / C;
            sum[r * C + i % C] += (double)grad[i];
            touched[r] = true;
        }
        for (int i = 0; i < R * C; i++)
            if (touched[i / C] || cases[k].all_rows)
                cases[k].f(&w[i], &s[0][i], &s[1][i], &s[2][i], sum[i], t);
        trn_tensor *feed = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){n_rows, C}, grad);
        const char *fn = "g:0", *tn = trn_out_name(b, train);
        ok(trn_session_run(ses, &(trn_run){.feed_names = &fn, .feeds = &feed, .n_feeds = 1, .targets = &tn, .n_targets = 1}));
        trn_tensor_unref(feed);
    }
    compare(what, "w", fetch(b, ses, v->value), w);
    for (int j = 0; j < n_slots; j++)
        compare(what, cases[k].slots[j].name, fetch(b, ses, trn_optimizer_slot(o, v, cases[k].slots[j].slot)->value), s[j]);
    trn_tensor *gs = fetch(b, ses, trn_global_step(b)->value);
    assert_int_equal(*(const int64_t *)trn_tensor_data(gs), STEPS);
    trn_tensor_unref(gs);
    trn_err_free(trn_session_close(ses));
    trn_builder_free(b);
}

static void test_dense_resource(void **st)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        one((int)k, false, false, false);
}

static void test_sparse_resource(void **st)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        one((int)k, true, false, k % 2);
}

static void test_dense_ref(void **st)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        one((int)k, false, true, true);
}

static void test_sparse_ref(void **st)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        one((int)k, true, true, false);
}

/* A loss, its gradient, Adam: powers beside the first variable by name, everything in trn_optimizer_variables. */
static void test_minimize(void **st)
{
    empty_containers();
    trn_builder *b = trn_builder_new();
    trn_variable *z = trn_variable_new(b, "z", trn_const_f32(b, 3), 0), *a = trn_variable_new(b, "a", trn_const_f32(b, -2), 0);
    trn_out zz = trn_node_add(b, "Mul", TRN_OUTS(z->value, z->value), NULL, 0), aa = trn_node_add(b, "Mul", TRN_OUTS(a->value, a->value), NULL, 0);
    trn_out loss = trn_node_add(trn_named(b, "loss"), "AddV2", TRN_OUTS(zz, aa), NULL, 0);
    trn_optimizer *o = trn_adam(b, trn_const_f32(b, 0.1f), 0.9f, 0.999f, 1e-8f);
    trn_optimizer_use_locking(o, true);
    trn_out train = trn_minimize(o, loss, NULL);
    ok(trn_builder_check(b));
    assert_string_equal(trn_out_name(b, train), "Adam");
    trn_out update = trn_find(b, "Adam/update_z/ResourceApplyAdam");
    ok(trn_builder_check(b));
    assert_true(trn_attr_bool(trn_out_op(b, update), "use_locking"));
    int n;
    trn_variable *const *vars = trn_optimizer_variables(&n, o);
    assert_int_equal(n, 6);
    assert_string_equal(vars[0]->name, "beta1_power");
    assert_string_equal(vars[1]->name, "beta2_power");
    assert_string_equal(vars[2]->name, "z/Adam");
    const trn_attr *c = trn_node_attr(trn_out_op(b, vars[0]->handle), "_class");
    assert_non_null(c);
    assert_string_equal(c->list[0].s.p, "loc:@a");
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_session *s = open_with(b);
    run(b, s, init);
    float first = fetch1(b, s, loss);
    for (int i = 0; i < 60; i++)
        run(b, s, train);
    float last = fetch1(b, s, loss);
    assert_true(first == 13 && last < 0.5f);
    assert_true(fabs((double)fetch1(b, s, vars[0]->value) - pow((double)0.9f, 61)) < 1e-6);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
}

/* Numbers go where the variable is, in its dtype, from float as TensorFlow's do. */
static void test_dtypes(void **st)
{
    for (int k = 0; k < 3; k++) {
        trn_dtype t = (trn_dtype[]){TRN_DOUBLE, TRN_HALF, TRN_BFLOAT16}[k];
        empty_containers();
        trn_builder *b = trn_builder_new();
        trn_variable *v = trn_variable_new(b, "w", trn_fill(b, t, trn_shape_vector(3), 1), 0);
        trn_out g = trn_fill(b, t, trn_shape_vector(3), 0.5), step[2];
        trn_out wide = trn_node_add(b, "Cast", &v->value, 1, (trn_attr[]){trn_at_type("DstT", TRN_FLOAT)}, 1);
        trn_optimizer *o = trn_adam(b, trn_const_f32(b, 0.125f), 0.5f, 0.5f, 1e-3f);
        step[0] = trn_apply_gradients(o, &(trn_grad_var){{g, TRN_NONE, TRN_NONE}, v}, 1, NULL);
        trn_out lr = trn_exponential_decay(b, 0.25f, trn_global_step(b), 1, 1, false);
        step[1] = trn_apply_gradients(trn_sgd(b, lr), &(trn_grad_var){{g, TRN_NONE, TRN_NONE}, v}, 1, NULL);
        trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
        trn_session *s = open_with(b);
        run(b, s, init);
        run(b, s, step[0]); /* the first step of Adam is the rate, but for epsilon */
        run(b, s, step[1]);
        trn_tensor *w = fetch(b, s, wide);
        double got = (double)((const float *)trn_tensor_data(w))[2], want = 1 - 0.125 - 0.125;
        trn_tensor_unref(w);
        if (fabs(got - want) > 0.01)
            fail_msg("%s: %g, should be %g", trn_dtype_name(t), got, want);
        trn_err_free(trn_session_close(s));
        trn_builder_free(b);
    }
}

static void test_errors(void **st)
{
    trn_builder *b = trn_builder_new();
    trn_sgd(b, trn_const_i32(b, 1));
    fails_build(b, "learning rate must be a float scalar");

    b = trn_builder_new();
    trn_adagrad(b, trn_const_f32(b, 1), 0);
    fails_build(b, "initial_accumulator must be positive");

    b = trn_builder_new();
    trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_minimize(trn_sgd(b, trn_const_f32(b, 1)), trn_const_f32(b, 5), NULL);
    fails_build(b, "none of the 1 variables has a gradient");

    b = trn_builder_new();
    trn_minimize(trn_sgd(b, trn_const_f32(b, 1)), trn_const_f32(b, 5), NULL);
    fails_build(b, "no variable to train");

    b = trn_builder_new();
    trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_grad g = {trn_zeros(b, TRN_FLOAT, trn_shape_vector(2)), TRN_NONE, TRN_NONE};
    trn_apply_gradients(trn_sgd(b, trn_const_f32(b, 1)), &(trn_grad_var){g, w}, 1, NULL);
    fails_build(b, "gradient of 'w'");

    b = trn_builder_new();
    trn_variable_new(b, "n", trn_const_i32(b, 1), 0);
    trn_minimize(trn_sgd(b, trn_const_f32(b, 1)), trn_const_f32(b, 5), NULL);
    fails_build(b, "cannot be trained");

    b = trn_builder_new();
    trn_exponential_decay(b, 0.1f, trn_global_step(b), 0, 0.5f, false);
    fails_build(b, "must be positive");
}

/* ---- schedules ----------------------------------------------------------------------------------------------------- */

static void test_schedules(void **st)
{
    empty_containers();
    trn_builder *b = trn_builder_new();
    trn_variable *gs = trn_global_step(b);
    trn_out lr[] = {
        trn_exponential_decay(b, 0.1f, gs, 10, 0.5f, false),
        trn_exponential_decay(b, 0.1f, gs, 10, 0.5f, true),
        trn_natural_exp_decay(b, 0.1f, gs, 10, 0.5f, false),
        trn_inverse_time_decay(b, 0.1f, gs, 10, 0.5f, true),
        trn_piecewise_constant(b, gs, (int64_t[]){5, 20}, (float[]){1, 0.5f, 0.25f}, 2),
        trn_polynomial_decay(b, 0.1f, gs, 10, 0.01f, 2, false),
        trn_polynomial_decay(b, 0.1f, gs, 10, 0.01f, 2, true),
        trn_cosine_decay(b, 0.1f, gs, 10, 0.1f),
        trn_cosine_decay_restarts(b, 0.1f, gs, 10, 2, 0.5f, 0.1f),
        trn_cosine_decay_restarts(b, 0.1f, gs, 10, 1, 0.5f, 0),
        trn_linear_cosine_decay(b, 0.1f, gs, 10, 0.5f, 0.1f, 0.001f),
        trn_noisy_linear_cosine_decay(b, 0.1f, gs, 10, 0, 0.55f, 0.5f, 0.1f, 0.001f), /* no noise */
        trn_warm_up(b, trn_const_f32(b, 0.8f), gs, 10),
    };
    enum { N = sizeof lr / sizeof *lr };
    trn_out in = trn_placeholder(b, "to", TRN_INT64, trn_shape_scalar());
    const char *set = trn_out_name(b, trn_variable_assign(b, gs, in)), *feed_name = "to:0";
    const char *names[N];
    for (int i = 0; i < N; i++)
        names[i] = trn_out_name(b, lr[i]);
    trn_session *s = open_with(b);
    static const int64_t at[] = {0, 3, 5, 6, 10, 20, 21, 33};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        trn_tensor *feed = trn_tensor_i64(at[i]), *out[N];
        ok(trn_session_run(s, &(trn_run){.feed_names = &feed_name, .feeds = &feed, .n_feeds = 1, .targets = &set, .n_targets = 1}));
        trn_tensor_unref(feed);
        ok(trn_session_run(s, &(trn_run){.fetches = names, .n_fetches = N, .out = out}));
        double t = (double)at[i], p = t / 10, part = fmin(t, 10) / 10, rounds = t == 0 ? 1 : ceil(p);
        double r2 = floor(log(1 + p) / log(2)), in2 = (p - (pow(2, r2) - 1)) / pow(2, r2);
        double want[N] = {
            0.1 * pow(0.5, p), 0.1 * pow(0.5, floor(p)), 0.1 * exp(-0.5 * p), 0.1 / (1 + 0.5 * floor(p)), t <= 5 ? 1 : t <= 20 ? 0.5 : 0.25,
            0.09 * pow(1 - part, 2) + 0.01, 0.09 * pow(1 - t / (10 * rounds), 2) + 0.01, 0.1 * (0.9 * 0.5 * (1 + cos(M_PI * part)) + 0.1),
            0.1 * (0.9 * pow(0.5, r2) * 0.5 * (1 + cos(M_PI * in2)) + 0.1), 0.1 * pow(0.5, floor(p)) * 0.5 * (1 + cos(M_PI * (p - floor(p)))),
            0.1 * ((0.1 + 1 - part) * 0.5 * (1 + cos(M_PI * part)) + 0.001), 0.1 * ((0.1 + 1 - part) * 0.5 * (1 + cos(M_PI * part)) + 0.001), 0.8 * fmin(1, (t + 1) / 10),
        };
        for (int k = 0; k < N; k++) {
            double got = (double)*(const float *)trn_tensor_data(out[k]);
            if (!(fabs(got - want[k]) < 1e-6))
                fail_msg("schedule %d at step %lld: %.8g, should be %.8g", k, (long long)at[i], got, want[k]);
            trn_tensor_unref(out[k]);
        }
    }
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
}

/* ---- clipping ------------------------------------------------------------------------------------------------------ */

static void check_vec(trn_builder *b, trn_session *s, trn_out o, int n, const double *want)
{
    trn_tensor *t = fetch(b, s, o);
    assert_int_equal(trn_tensor_count(t), n);
    for (int i = 0; i < n; i++) {
        double got = (double)((const float *)trn_tensor_data(t))[i];
        if (!(fabs(got - want[i]) < 1e-6) && !(isnan(got) && isnan(want[i])))
            fail_msg("%s[%d]: %.8g, should be %.8g", trn_out_name(b, o), i, got, want[i]);
    }
    trn_tensor_unref(t);
}

static trn_out vec(trn_builder *b, int n, const float *v) { return trn_const(b, trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){n}, v)); }

static void test_clip(void **st)
{
    trn_builder *b = trn_builder_new();
    trn_out x = vec(b, 3, (float[]){3, -4, 0}), zero = vec(b, 2, (float[]){0, 0}), one = trn_const_f32(b, 1), ten = trn_const_f32(b, 10);
    trn_out by_value = trn_clip_by_value(b, x, trn_const_f32(b, -2), one), by_norm = trn_clip_by_norm(b, x, one), loose = trn_clip_by_norm(b, x, ten);
    trn_out of_zero = trn_clip_by_norm(b, zero, one), average = trn_clip_by_average_norm(b, x, one);
    trn_variable *v = trn_variable_new(b, "v", trn_zeros(b, TRN_FLOAT, trn_shape_vector(3)), 0);
    trn_grad_var gv[] = {{{x, TRN_NONE, TRN_NONE}, v},
                         {TRN_NO_GRAD, v},
                         {{vec(b, 1, (float[]){12}), trn_const_i32s(b, (int32_t[]){1}, 1), trn_const_i32s(b, (int32_t[]){3}, 1)}, v}};
    trn_grad_var same[3], each[3], bad[] = {{{vec(b, 2, (float[]){INFINITY, 1}), TRN_NONE, TRN_NONE}, v}};
    memcpy(same, gv, sizeof gv);
    memcpy(each, gv, sizeof gv);
    trn_out norm = trn_clip_by_global_norm(b, gv, 3, trn_const_f32(b, 6.5f));
    trn_clip_by_global_norm(b, same, 3, trn_const_f32(b, 100));
    trn_clip_by_global_norm(b, bad, 1, one);
    trn_clip_gradients_by_norm(b, each, 3, one);
    trn_grad_var cut[3];
    memcpy(cut, gv, sizeof gv); /* 1.5, -2, 0 and 6 */
    trn_clip_gradients_by_value(b, cut, 3, trn_const_f32(b, -1), trn_const_f32(b, 5));
    trn_out cut_norm = trn_global_norm(b, cut, 3);
    ok(trn_builder_check(b));
    assert_true(!trn_grad_is(cut[1].grad) && trn_grad_is_sparse(cut[2].grad));
    assert_false(trn_grad_is(gv[1].grad));
    assert_true(trn_grad_is_sparse(gv[2].grad));
    trn_session *s = open_with(b);
    check_vec(b, s, by_value, 3, (double[]){1, -2, 0});
    check_vec(b, s, by_norm, 3, (double[]){0.6, -0.8, 0});
    check_vec(b, s, loose, 3, (double[]){3, -4, 0});
    check_vec(b, s, of_zero, 2, (double[]){0, 0});
    check_vec(b, s, average, 3, (double[]){3 * 3.0 / 5, -4 * 3.0 / 5, 0});
    check_vec(b, s, norm, 1, (double[]){13});
    check_vec(b, s, gv[0].grad.values, 3, (double[]){1.5, -2, 0});
    check_vec(b, s, gv[2].grad.values, 1, (double[]){6});
    check_vec(b, s, same[0].grad.values, 3, (double[]){3, -4, 0});
    check_vec(b, s, bad[0].grad.values, 2, (double[]){NAN, NAN});
    check_vec(b, s, each[0].grad.values, 3, (double[]){0.6, -0.8, 0});
    check_vec(b, s, each[2].grad.values, 1, (double[]){1});
    check_vec(b, s, cut[0].grad.values, 3, (double[]){1.5, -1, 0});
    check_vec(b, s, cut[2].grad.values, 1, (double[]){5});
    check_vec(b, s, cut_norm, 1, (double[]){sqrt(1.5 * 1.5 + 1 + 25)});
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
}

/* ---- placement ----------------------------------------------------------------------------------------------------- */

static const char *device_of(trn_builder *b, trn_out o) { return trn_out_op(b, o)->device; }

static void test_setter(void **st)
{
    trn_builder *b = trn_builder_new();
    trn_setter *set = trn_replica_device_setter(b, &(trn_setter_opts){.ps_tasks = 2, .worker_device = "/job:worker/task:3"});
    trn_variable *big = trn_variable_new(b, "big", trn_zeros(b, TRN_FLOAT, trn_shape_vector(1000)), 0);
    trn_variable *small = trn_variable_new(b, "small", trn_zeros(b, TRN_FLOAT, trn_shape_vector(10)), 0);
    trn_variable *mid = trn_variable_new(b, "mid", trn_zeros(b, TRN_FLOAT, trn_shape_vector(100)), 0);
    trn_out sum = trn_node_add(b, "Sum", TRN_OUTS(big->value, trn_const_i32s(b, (int32_t[]){0}, 1)), NULL, 0);
    trn_device_scope(b, "/job:ps/task:0");
    trn_variable *pinned = trn_variable_new(b, "pinned", trn_zeros(b, TRN_FLOAT, trn_shape_vector(5)), 0);
    trn_end(b);
    trn_out train = trn_minimize(trn_momentum(b, trn_const_f32(b, 0.1f), 0.9f, false), sum, trn_global_step(b));
    trn_end(b);
    ok(trn_builder_check(b));
    assert_string_equal(device_of(b, big->handle), "/job:ps/task:0");
    assert_string_equal(device_of(b, big->value), "/job:ps/task:0");
    assert_string_equal(device_of(b, big->initial), "/job:ps/task:0");
    assert_string_equal(device_of(b, small->handle), "/job:ps/task:1");
    assert_string_equal(device_of(b, mid->handle), "/job:ps/task:1");
    assert_string_equal(device_of(b, pinned->handle), "/job:ps/task:0");
    assert_string_equal(device_of(b, sum), "/job:worker/task:3");
    assert_string_equal(device_of(b, train), "/job:ps/task:1"); /* global_step is small */
    assert_string_equal(device_of(b, trn_variable_find(b, "big/Momentum")->handle), "/job:ps/task:0");
    const char *plan = trn_setter_plan(b, set);
    assert_non_null(strstr(plan, "/job:ps/task:0: "));
    assert_non_null(strstr(plan, "4000"));
    trn_builder_free(b);

    b = trn_builder_new();
    trn_cluster *c;
    ok(trn_cluster_parse(&c, "{\"ps\": {\"0\": \"a:1\", \"4\": \"b:1\"}, \"worker\": [\"c:1\"]}"));
    trn_replica_device_setter(b, &(trn_setter_opts){.cluster = c, .strategy = TRN_ROUND_ROBIN});
    trn_variable *v[3];
    for (int i = 0; i < 3; i++)
        v[i] = trn_variable_new(b, "v", trn_zeros(b, TRN_FLOAT, trn_shape_vector(i ? 1 : 1000)), 0);
    trn_end(b);
    trn_replica_device_setter(b, &(trn_setter_opts){0});
    trn_out k = trn_const_f32(b, 1);
    trn_end(b);
    ok(trn_builder_check(b));
    assert_string_equal(device_of(b, v[0]->handle), "/job:ps/task:0");
    assert_string_equal(device_of(b, v[1]->handle), "/job:ps/task:4");
    assert_string_equal(device_of(b, v[2]->handle), "/job:ps/task:0");
    assert_string_equal(device_of(b, k), "");
    trn_cluster_free(c);
    trn_builder_free(b);
}

static trn_out count_up(void *arg, trn_builder *b, trn_dtype dtype, const trn_shape *shape, const trn_shape *full, const int64_t *offset)
{
    float v[64];
    for (int64_t i = 0; i < shape->dim[0] * shape->dim[1]; i++)
        v[i] = (float)(offset[0] * full->dim[1] + i);
    return trn_const(b, trn_tensor_from(TRN_FLOAT, 2, shape->dim, v));
}

static void test_pieces(void **st)
{
    empty_containers();
    trn_builder *b = trn_builder_new();
    trn_partitioned *p = trn_partitioned_variable(b, "table", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_fixed_partitioner(3, 0), count_up, NULL, 0);
    ok(trn_builder_check(b));
    assert_int_equal(p->n, 3);
    assert_int_equal(p->parts[0]->shape.dim[0], 3);
    assert_int_equal(p->parts[1]->shape.dim[0], 2);
    assert_string_equal(p->parts[2]->name, "table/part_2");
    assert_string_equal(p->parts[2]->full_name, "table");
    assert_int_equal(p->parts[2]->offset[0], 5);
    /* 7 rows of 8 bytes: at most 16 bytes each → 4; at least 20 bytes each → 3, or 2 when no more are allowed */
    assert_int_equal(trn_partitioned_variable(b, "a", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_axis_size_partitioner(16, 0, 0), NULL, NULL, 0)->n, 4);
    assert_int_equal(trn_partitioned_variable(b, "m", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_min_max_partitioner(8, 0, 20), NULL, NULL, 0)->n, 3);
    assert_int_equal(trn_partitioned_variable(b, "n", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_min_max_partitioner(2, 0, 20), NULL, NULL, 0)->n, 2);
    trn_out whole = trn_partitioned_value(b, p);
    trn_out ids = trn_const(b, trn_tensor_from(TRN_INT64, 2, (int64_t[]){2, 2}, (int64_t[]){6, 0, 3, 6}));
    trn_out rows = trn_embedding_lookup_pieces(b, p->parts, p->n, ids, TRN_DIV);
    trn_out mod = trn_embedding_lookup_pieces(b, p->parts, p->n, trn_const_i32s(b, (int32_t[]){4, 2}, 2), TRN_MOD);
    trn_out one = trn_embedding_lookup_pieces(b, p->parts, 1, trn_const_i32s(b, (int32_t[]){2}, 1), TRN_MOD);
    trn_out loss = trn_node_add(b, "Sum", TRN_OUTS(rows, trn_const_i32s(b, (int32_t[]){0, 1, 2}, 3)), NULL, 0);
    int n;
    trn_optimizer *o = trn_adagrad(b, trn_const_f32(b, 1), 0.1f);
    trn_grad_var *gv = trn_compute_gradients(&n, o, loss, p->parts, p->n);
    ok(trn_builder_check(b));
    for (int i = 0; i < n; i++)
        assert_true(trn_grad_is_sparse(gv[i].grad));
    trn_out train = trn_apply_gradients(o, gv, n, NULL);
    ok(trn_builder_check(b));
    trn_variable *slot = trn_optimizer_slot(o, p->parts[2], "accumulator");
    assert_string_equal(slot->name, "table/part_2/Adagrad");
    assert_string_equal(slot->full_name, "table/Adagrad");
    assert_int_equal(slot->offset[0], 5);
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL);
    trn_session *s = open_with(b);
    run(b, s, init);
    double all[14];
    for (int i = 0; i < 14; i++)
        all[i] = i;
    check_vec(b, s, whole, 14, all);
    check_vec(b, s, rows, 8, (double[]){12, 13, 0, 1, 6, 7, 12, 13});
    check_vec(b, s, mod, 4, (double[]){8, 9, 10, 11}); /* 4: row 1 of piece 1; 2: row 0 of piece 2 */
    check_vec(b, s, one, 2, (double[]){4, 5});
    run(b, s, train);
    /* row 6 came twice: its gradient is 2 */
    double twice = 2 / sqrt(4.1), once = 1 / sqrt(1.1);
    all[0] -= once, all[1] -= once, all[6] -= once, all[7] -= once, all[12] -= twice, all[13] -= twice;
    check_vec(b, s, whole, 14, all);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);

    b = trn_builder_new();
    trn_partitioned_variable(b, "t", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_fixed_partitioner(3, 2), NULL, NULL, 0);
    fails_build(b, "axis 2 of rank 2");

    b = trn_builder_new();
    for (int i = 0; i < 2; i++)
        trn_partitioned_variable(b, "t", TRN_FLOAT, trn_shape_of(2, 7L, 2L), trn_fixed_partitioner(3, 0), NULL, NULL, 0);
    fails_build(b, "a partitioned variable 't' already");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_resource), cmocka_unit_test(test_sparse_resource), cmocka_unit_test(test_dense_ref), cmocka_unit_test(test_sparse_ref),
        cmocka_unit_test(test_minimize), cmocka_unit_test(test_dtypes), cmocka_unit_test(test_errors), cmocka_unit_test(test_schedules), cmocka_unit_test(test_clip),
        cmocka_unit_test(test_setter), cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
