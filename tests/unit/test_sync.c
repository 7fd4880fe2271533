/* Synchronous replicas on a ps and three workers in this process: nobody waits for a worker that has left, died, or is slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <trainera/trainera.h>

#include "check.h"
#include "base/base.h"

enum { WORKERS = 3 };
static trn_server *ps, *server[WORKERS];

static int setup(void **st)
{
    int p[1 + WORKERS];
    char json[256];
    trn_cluster *c;
    free_ports(p, 1 + WORKERS);
    snprintf(json, sizeof json, "{\"ps\": [\"127.0.0.1:%d\"], \"worker\": [\"127.0.0.1:%d\", \"127.0.0.1:%d\", \"127.0.0.1:%d\"]}", p[0], p[1], p[2], p[3]);
    ok(trn_cluster_parse(&c, json));
    ok(trn_server_create(&ps, c, "ps", 0));
    for (int i = 0; i < WORKERS; i++)
        ok(trn_server_create(&server[i], c, "worker", i));
    trn_cluster_free(c);
    return 0;
}

static int teardown(void **st)
{
    for (int i = 0; i < WORKERS; i++)
        trn_server_close(server[i], 1000);
    trn_server_close(ps, 1000);
    return 0;
}

static void nap(int ms) { nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL); }

typedef struct worker {
    int id, aggregate;
    bool sparse, over_wire;
    int64_t last_step;   /* stop at this global step */
    int leave_after;     /* of its own steps; 0: never */
    bool die;            /* leaves without a word */
    int slow_ms;
    pthread_barrier_t *ready;
    /* results */
    int steps;
    int64_t global_step, stale;
    float w;
    bool out_of_range;
    char err[512];
    pthread_t thread;
} worker;

static trn_err fetch2(int64_t *gs, int64_t *stale, float *w, trn_session *s, const char *const *names)
{
    trn_tensor *t[3];
    TRN_TRY(trn_session_run(s, &(trn_run){.fetches = names, .n_fetches = 3, .out = t}));
    *gs = *(const int64_t *)trn_tensor_data(t[0]);
    *stale = *(const int64_t *)trn_tensor_data(t[1]);
    *w = *(const float *)trn_tensor_data(t[2]);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(t[i]);
    return TRN_OK;
}

static trn_err work(worker *k)
{
    trn_builder *b = trn_builder_new();
    char dev[64];
    snprintf(dev, sizeof dev, "/job:worker/task:%d", k->id);
    trn_replica_device_setter(b, &(trn_setter_opts){.ps_tasks = 1, .worker_device = dev});
    trn_variable *w = trn_variable_new(b, "w", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, 2L, 1L)), 0);
    trn_out x = w->value; /* the gradient is one, everywhere or in a row */
    if (k->sparse)
        x = trn_embedding_lookup_pieces(b, &w, 1, trn_const_i32s(b, (int32_t[]){0}, 1), TRN_MOD);
    trn_out loss = trn_node_add(b, "Sum", TRN_OUTS(x, trn_const_i32s(b, (int32_t[]){0, 1}, 2)), NULL, 0);
    trn_optimizer *o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), k->aggregate, WORKERS);
    trn_out train = trn_minimize(o, loss, trn_global_step(b));
    trn_out init = trn_variables_init(b, TRN_VARS_GLOBAL), local = trn_variables_init(b, TRN_VARS_LOCAL);
    trn_out first = trn_node_add(b, "Reshape", TRN_OUTS(w->value, trn_const_i32s(b, (int32_t[]){-1}, 1)), NULL, 0);
    const char *names[] = {trn_out_name(b, trn_global_step(b)->value), trn_out_name(b, trn_sync_stale_count(o)), trn_out_name(b, first)};
    const char *t_train = trn_out_name(b, train), *t_init[] = {trn_out_name(b, init), trn_out_name(b, local)};
    trn_end(b);
    trn_err err = trn_builder_check(b);
    trn_session *s = NULL;
    trn_sync *sync = NULL;
    bool chief = k->id == 0;
    if (!err)
        err = k->over_wire ? trn_session_open(&s, trn_server_target(server[k->id]), NULL) : trn_session_open_on(&s, server[k->id], NULL);
    if (!err)
        err = trn_session_extend_builder(s, b);
    if (!err && chief)
        err = trn_session_run(s, &(trn_run){.targets = t_init, .n_targets = 2});
    if (!err && chief)
        err = trn_sync_start(&sync, o, s, &(trn_sync_opts){.is_chief = true, .stall_ms = 300, .num_tokens = -1});
    if (k->ready)
        pthread_barrier_wait(k->ready); /* others begin when the model is there */
    if (!err && !chief)
        err = trn_session_run(s, &(trn_run){.targets = &t_init[1], .n_targets = 1});
    if (!err && !chief)
        err = trn_sync_start(&sync, o, s, NULL);
    while (!err && (!k->leave_after || k->steps < k->leave_after)) {
        if (k->slow_ms)
            nap(k->slow_ms);
        err = trn_session_run(s, &(trn_run){.targets = &t_train, .n_targets = 1, .timeout_ms = 20000});
        if (!err)
            k->steps++;
        if (!err)
            err = fetch2(&k->global_step, &k->stale, &k->w, s, names);
        if (!err && k->last_step && k->global_step >= k->last_step)
            break;
    }
    if (err && trn_err_code(err) == TRN_OUT_OF_RANGE) {
        trn_err_free(err);
        k->out_of_range = true;
        err = fetch2(&k->global_step, &k->stale, &k->w, s, names);
    }
    if (sync && !err)
        err = trn_sync_check(sync);
    if (sync)
        trn_sync_stop(sync, !k->die);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
    return err;
}

static void *work_main(void *arg)
{
    worker *k = arg;
    trn_err err = work(k);
    if (err)
        snprintf(k->err, sizeof k->err, "worker %d: %s", k->id, trn_err_msg(err));
    trn_err_free(err);
    return NULL;
}

static void run_all(worker *w)
{
    pthread_barrier_t ready;
    pthread_barrier_init(&ready, NULL, WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        w[i].id = i;
        w[i].ready = &ready;
        pthread_create(&w[i].thread, NULL, work_main, &w[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(w[i].thread, NULL);
    pthread_barrier_destroy(&ready);
    for (int i = 0; i < WORKERS; i++)
        if (*w[i].err)
            fail_msg("%s", w[i].err);
}

/* Every update is the mean of gradients that are one: w = -0.5 · updates, whoever they came from. */
static void check_w(const worker *k)
{
    if (k->w != -0.5f * (float)k->global_step)
        fail_msg("w is %g after %lld updates", (double)k->w, (long long)k->global_step);
}

static void clear(void)
{
    ok(trn_reset(trn_server_target(server[0]), NULL, 0));
}

static void test_leave_early(void **st)
{
    for (int kind = 0; kind < 3; kind++) {
        clear();
        worker w[WORKERS] = {{.last_step = 12}, {.leave_after = 3}, {.leave_after = 0}};
        for (int i = 0; i < WORKERS; i++) {
            w[i].aggregate = WORKERS;
            w[i].sparse = kind == 1;
            w[i].over_wire = kind == 2;
        }
        run_all(w);
        assert_int_equal(w[0].global_step, 12);
        check_w(&w[0]);
        assert_int_equal(w[1].steps, 3);
        assert_false(w[1].out_of_range);
        assert_true(w[2].out_of_range); /* the chief had done its steps */
        check_w(&w[2]);
    }
}

static void test_again_on_the_same_ps(void **st)
{
    /* The queue of the run before is closed; nothing is cleared. */
    for (int i = 0; i < 2; i++) {
        worker w[WORKERS] = {{.aggregate = 3, .last_step = 4}, {.aggregate = 3}, {.aggregate = 3}};
        run_all(w);
        assert_int_equal(w[0].global_step, 4);
        check_w(&w[0]);
        assert_true(w[1].out_of_range && w[2].out_of_range);
    }
}

static void test_backup_worker(void **st)
{
    clear();
    worker w[WORKERS] = {{.aggregate = 2, .last_step = 30, .slow_ms = 2}, {.aggregate = 2, .slow_ms = 2}, {.aggregate = 2, .slow_ms = 40}};
    run_all(w);
    assert_true(w[0].global_step >= 30);
    check_w(&w[0]);
    assert_true(w[2].stale >= 1);
    assert_true(w[2].stale <= w[2].steps + 1);
}

/* What is logged from begin_log on. */
static int log_fd;
static void begin_log(void)
{
    log_fd = memfd_create("log", 0);
    assert_true(log_fd >= 0);
    trn_log_set_fd(log_fd);
}

static bool in_log(const char *what)
{
    char text[8192];
    ssize_t n = pread(log_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return strstr(text, what);
}

static bool logged(const char *what)
{
    trn_log_set_fd(2);
    bool yes = in_log(what);
    close(log_fd);
    return yes;
}

static void test_lost_worker(void **st)
{
    clear();
    begin_log();
    worker w[WORKERS] = {{.aggregate = 3, .last_step = 8}, {.aggregate = 3, .leave_after = 2, .die = true}, {.aggregate = 3}};
    run_all(w);
    assert_true(logged("a worker seems to be lost"));
    assert_int_equal(w[0].global_step, 8);
    check_w(&w[0]);
}

/* Gradients are there and nobody takes them; then not even those. */
static void test_says_for_whom_it_waits(void **st)
{
    for (int need = 1; need <= 2; need++) {
        clear();
        trn_builder *b = trn_builder_new();
        trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
        trn_optimizer *o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), need, need);
        trn_out train = trn_minimize(o, trn_node_add(b, "Mul", TRN_OUTS(w->value, w->value), NULL, 0), trn_global_step(b));
        trn_out init[] = {trn_variables_init(b, TRN_VARS_GLOBAL), trn_variables_init(b, TRN_VARS_LOCAL)};
        const char *names[] = {trn_out_name(b, init[0]), trn_out_name(b, init[1])}, *step = trn_out_name(b, train);
        ok(trn_builder_check(b));
        trn_session *s;
        trn_sync *sync;
        ok(trn_session_open_on(&s, server[1], NULL));
        ok(trn_session_extend_builder(s, b));
        ok(trn_session_run(s, &(trn_run){.targets = names, .n_targets = 2}));
        begin_log();
        ok(trn_sync_start(&sync, o, s, &(trn_sync_opts){.stall_ms = 50}));
        trn_err err = trn_session_run(s, &(trn_run){.targets = &step, .n_targets = 1, .timeout_ms = 250});
        assert_int_equal(trn_err_code(err), TRN_DEADLINE_EXCEEDED);
        trn_err_free(err);
        const char *what = need == 1 ? "the chief does not take them" : "with 1 of 2 gradients: other workers are slow or lost";
        for (int i = 0; i < 6000 && !in_log(what); i++) /* a busy machine may say it late */
            nap(10);
        trn_sync_stop(sync, true);
        assert_true(logged(what));
        ok(trn_session_close(s));
        trn_builder_free(b);
    }
}

/* The session goes while the chief's thread waits in it: as after a lost task. */
static void test_session_closed_first(void **st)
{
    clear();
    trn_builder *b = trn_builder_new();
    trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_optimizer *o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), 2, 2);
    trn_minimize(o, trn_node_add(b, "Mul", TRN_OUTS(w->value, w->value), NULL, 0), trn_global_step(b));
    trn_out init[] = {trn_variables_init(b, TRN_VARS_GLOBAL), trn_variables_init(b, TRN_VARS_LOCAL)};
    const char *names[] = {trn_out_name(b, init[0]), trn_out_name(b, init[1])};
    ok(trn_builder_check(b));
    for (int wire = 0; wire < 2; wire++) {
        trn_session *s;
        trn_sync *sync;
        ok(wire ? trn_session_open(&s, trn_server_target(server[0]), NULL) : trn_session_open_on(&s, server[0], NULL));
        ok(trn_session_extend_builder(s, b));
        ok(trn_session_run(s, &(trn_run){.targets = names, .n_targets = 2}));
        ok(trn_sync_start(&sync, o, s, &(trn_sync_opts){.is_chief = true}));
        nap(20);
        ok(trn_session_close(s));
        ok(trn_sync_check(sync));
        trn_sync_stop(sync, false);
    }
    trn_builder_free(b);
}

/* The chief's aggregation fails: nobody is left waiting for tokens, and the chief's loop gets the reason. */
static void test_failed_update(void **st)
{
    clear();
    trn_builder *b = trn_builder_new();
    trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_optimizer *o = trn_sync_replicas(b, trn_momentum(b, trn_const_f32(b, 0.5f), 0.9f, false), 1, 1);
    trn_out train = trn_minimize(o, trn_node_add(b, "Mul", TRN_OUTS(w->value, w->value), NULL, 0), trn_global_step(b));
    /* All but the slot. */
    const char *init[] = {trn_out_name(b, trn_out_node(w->init)), trn_out_name(b, trn_out_node(trn_global_step(b)->init)), NULL};
    init[2] = trn_out_name(b, trn_variables_init(b, TRN_VARS_LOCAL));
    const char *step = trn_out_name(b, train);
    ok(trn_builder_check(b));
    trn_session *s;
    trn_sync *sync;
    ok(trn_session_open_on(&s, server[0], NULL));
    ok(trn_session_extend_builder(s, b));
    ok(trn_session_run(s, &(trn_run){.targets = init, .n_targets = 3}));
    begin_log();
    ok(trn_sync_start(&sync, o, s, &(trn_sync_opts){.is_chief = true, .num_tokens = -1}));
    trn_err err = trn_session_run(s, &(trn_run){.targets = &step, .n_targets = 1, .timeout_ms = 10000});
    assert_int_equal(trn_err_code(err), TRN_OUT_OF_RANGE);
    trn_err_free(err);
    err = trn_sync_check(sync);
    assert_int_equal(trn_err_code(err), TRN_INTERNAL);
    assert_non_null(strstr(trn_err_msg(err), "w/Momentum"));
    assert_non_null(strstr(trn_err_msg(err), "the chief's aggregation"));
    trn_err_free(err);
    ok(trn_sync_check(sync));
    trn_sync_stop(sync, true);
    assert_true(logged("w/Momentum"));
    ok(trn_session_close(s));
    trn_builder_free(b);
}

static double number(trn_session *s, trn_builder *b, trn_out o)
{
    trn_tensor *t;
    const char *name = trn_out_name(b, o);
    ok(trn_session_run(s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t}));
    double v = trn_tensor_dtype(t) == TRN_FLOAT ? (double)*(const float *)trn_tensor_data(t) : (double)*(const int64_t *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void run_node(trn_session *s, trn_builder *b, trn_out o)
{
    const char *name = trn_out_name(b, trn_out_node(o));
    ok(trn_session_run(s, &(trn_run){.targets = &name, .n_targets = 1, .timeout_ms = 60000}));
}

/* The ops one after the other, as trn_sync_start and the chief's thread run them. */
static void test_by_hand(void **st)
{
    clear();
    trn_builder *b = trn_builder_new();
    trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_optimizer *o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), 1, 1);
    trn_out train = trn_minimize(o, w->value, trn_global_step(b)), init = trn_variables_init(b, TRN_VARS_GLOBAL), tokens = trn_sync_init_tokens(o, -1);
    ok(trn_builder_check(b));
    trn_session *s;
    ok(trn_session_open_on(&s, server[0], NULL));
    ok(trn_session_extend_builder(s, b));
    run_node(s, b, init);
    run_node(s, b, trn_sync_chief_init(o));
    run_node(s, b, tokens);
    assert_float_equal(number(s, b, trn_sync_local_step(o)), 0, 0);
    run_node(s, b, train); /* the gradient goes in, the token from the start comes out */
    assert_float_equal(number(s, b, w->value), 1, 0);
    run_node(s, b, trn_sync_op(o));
    assert_float_equal(number(s, b, w->value), 0.5, 0);
    assert_float_equal(number(s, b, trn_global_step(b)->value), 1, 0);
    run_node(s, b, train); /* for step 0, too late; the token is that of step 1 */
    assert_float_equal(number(s, b, trn_sync_local_step(o)), 1, 0);
    assert_float_equal(number(s, b, trn_sync_stale_count(o)), 1, 0);
    run_node(s, b, trn_sync_local_init(o)); /* another worker begins where the job is */
    assert_float_equal(number(s, b, trn_sync_local_step(o)), 1, 0);
    ok(trn_session_close(s));
    trn_builder_free(b);
}

static void test_errors(void **st)
{
    trn_builder *b = trn_builder_new();
    trn_variable *w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    trn_optimizer *o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), 2, 2);
    trn_sync *s;
    trn_err err = trn_sync_start(&s, o, NULL, NULL);
    assert_int_equal(trn_err_code(err), TRN_FAILED_PRECONDITION);
    trn_err_free(err);
    trn_minimize(o, w->value, NULL);
    fails_build(b, "the global step is needed");

    b = trn_builder_new();
    trn_sync_op(trn_sgd(b, trn_const_f32(b, 0.5f)));
    fails_build(b, "not made by trn_sync_replicas");

    b = trn_builder_new();
    trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), 0, 2);
    fails_build(b, "0 gradients of 2 replicas");

    b = trn_builder_new();
    w = trn_variable_new(b, "w", trn_const_f32(b, 1), 0);
    o = trn_sync_replicas(b, trn_sgd(b, trn_const_f32(b, 0.5f)), 4, 2);
    trn_minimize(o, w->value, trn_global_step(b));
    assert_true(trn_out_is(trn_sync_init_tokens(o, -1)));
    trn_sync_init_tokens(o, 1);
    fails_build(b, "at least 2 are needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_early), cmocka_unit_test(test_again_on_the_same_ps), cmocka_unit_test(test_backup_worker),
        cmocka_unit_test(test_lost_worker), cmocka_unit_test(test_says_for_whom_it_waits), cmocka_unit_test(test_session_closed_first), cmocka_unit_test(test_failed_update), cmocka_unit_test(test_by_hand), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
