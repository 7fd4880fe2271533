/* Whole clusters in one process, through the public API: steps over tasks, errors, cancellation, partial runs, concurrency, a clean end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <trainera/trainera.h>

#include "check.h"
#include "base/base.h"

#define PS "device: '/job:ps/task:0'"
#define WORKER "device: '/job:worker/task:0'"
#define T64 "attr { key: 'dtype' value { type: DT_INT64 } }"

static const char graph[] =
    "node { name: 'v' op: 'VarHandleOp' " PS T64 " attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'v' } } }"
    "node { name: 'zero' op: 'Const' " T64 " attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape { } int64_val: 0 } } } }"
    "node { name: 'one' op: 'Const' " T64 " attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape { } int64_val: 1 } } } }"
    "node { name: 'init' op: 'AssignVariableOp' input: 'v' input: 'zero' " PS T64 " }"
    "node { name: 'x' op: 'Placeholder' " WORKER T64 " }"
    "node { name: 'twice' op: 'AddV2' input: 'x' input: 'x' " WORKER " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'add' op: 'AssignAddVariableOp' input: 'v' input: 'twice' " PS T64 " }"
    "node { name: 'next' op: 'ReadVariableOp' input: 'v' input: '^add' " PS T64 " }"
    "node { name: 'inc' op: 'AssignAddVariableOp' input: 'v' input: 'one' " PS T64 " }"
    "node { name: 'now' op: 'ReadVariableOp' input: 'v' " PS T64 " }"
    "node { name: 'plus' op: 'AddV2' input: 'now' input: 'twice' " WORKER " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'lost' op: 'VarHandleOp' " PS T64 " attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'lost' } } }"
    "node { name: 'read_lost' op: 'ReadVariableOp' input: 'lost' " PS T64 " }"
    "node { name: 'q' op: 'FIFOQueueV2' " PS " attr { key: 'component_types' value { list { type: DT_INT64 } } } attr { key: 'shared_name' value { s: 'q' } } }"
    "node { name: 'get' op: 'QueueDequeueV2' input: 'q' " PS " attr { key: 'component_types' value { list { type: DT_INT64 } } } }"
    "node { name: 'big' op: 'Less' input: 'one' input: 'x' " WORKER " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'way' op: 'Switch' input: 'x' input: 'big' " WORKER " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'no' op: 'Neg' input: 'way:0' " PS " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'yes' op: 'Square' input: 'way:1' " PS " attr { key: 'T' value { type: DT_INT64 } } }"
    "node { name: 'either' op: 'Merge' input: 'no' input: 'yes' " WORKER " attr { key: 'T' value { type: DT_INT64 } } attr { key: 'N' value { i: 2 } } }"
    "node { name: 'put' op: 'QueueEnqueueV2' input: 'q' input: 'x' " PS " attr { key: 'Tcomponents' value { list { type: DT_INT64 } } } }";

typedef struct cluster {
    trn_cluster *spec;
    trn_server *ps, *worker[2];
} cluster;

static int set_up(void **state)
{
    cluster *c = calloc(1, sizeof *c);
    int port[3];
    char json[200];
    free_ports(port, 3);
    snprintf(json, sizeof json, "{\"ps\": [\"127.0.0.1:%d\"], \"worker\": [\"127.0.0.1:%d\", \"127.0.0.1:%d\"]}", port[0], port[1], port[2]);
    ok(trn_cluster_parse(&c->spec, json));
    ok(trn_server_create(&c->ps, c->spec, "ps", 0));
    for (int i = 0; i < 2; i++)
        ok(trn_server_create(&c->worker[i], c->spec, "worker", i));
    *state = c;
    return 0;
}

static int tear_down(void **state)
{
    cluster *c = *state;
    for (int i = 0; i < 2; i++)
        trn_server_close(c->worker[i], 0);
    trn_server_close(c->ps, 0);
    trn_cluster_free(c->spec);
    free(c);
    return 0;
}

/* over: 0 in process, 1 over the wire */
static trn_session *open_on(cluster *c, int worker, int over)
{
    trn_session *s = NULL;
    ok(over ? trn_session_open(&s, trn_server_target(c->worker[worker]), NULL) : trn_session_open_on(&s, c->worker[worker], NULL));
    ok(trn_session_extend_text(s, graph));
    return s;
}

static void run_target(trn_session *s, const char *target)
{
    ok(trn_session_run(s, &(trn_run){.targets = &target, .n_targets = 1}));
}

static trn_err fetch(int64_t *out, trn_session *s, const char *name, const int64_t *x)
{
    const char *feed = "x:0";
    trn_tensor *in = x ? trn_tensor_i64(*x) : NULL, *t = NULL;
    trn_err e = trn_session_run(s, &(trn_run){.feed_names = &feed, .feeds = &in, .n_feeds = x != NULL, .fetches = &name, .n_fetches = 1, .out = &t});
    if (!e)
        *out = *(const int64_t *)trn_tensor_data(t);
    trn_tensor_unref(in);
    trn_tensor_unref(t);
    return e;
}

static void test_steps(void **state)
{
    for (int over = 0; over < 2; over++) {
        trn_session *s = open_on(*state, 0, over);
        run_target(s, "init");
        int64_t v, five = 5;
        ok(fetch(&v, s, "next:0", &five));
        assert_int_equal(v, 10);
        ok(fetch(&v, s, "next", &five));
        assert_int_equal(v, 20);
        ok(fetch(&v, s, "plus:0", &five));
        assert_int_equal(v, 30);
        /* More of the graph, as bytes. */
        trn_builder *b = trn_builder_new();
        trn_const_i64(trn_named(b, "more"), 11);
        void *bytes;
        size_t n;
        ok(trn_builder_export(&bytes, &n, b));
        ok(trn_session_extend(s, bytes, n));
        ok(fetch(&v, s, "more:0", NULL));
        assert_int_equal(v, 11);
        free(bytes);
        trn_builder_free(b);
        ok(trn_session_close(s));
    }
    assert_string_equal(trn_version(), TRAINERA_VERSION);
}

/* What was fed is the program's again when a step is over, in process too: no update that reads it is put off. */
static void test_feeds_are_given_back(void **state)
{
#define F32(key) " attr { key: '" key "' value { type: DT_FLOAT } }"
    static const char train[] =
        "node { name: 'w' op: 'VarHandleOp' " WORKER F32("dtype") " attr { key: 'shape' value { shape { dim { size: 500 } dim { size: 400 } } } } }"
        "node { name: 'a' op: 'Placeholder' " WORKER F32("dtype") " }"
        "node { name: 'b' op: 'Placeholder' " WORKER F32("dtype") " }"
        "node { name: 'dims' op: 'Const' " WORKER " attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: 500 int_val: 400 } } } }"
        "node { name: 'none' op: 'Const' " WORKER F32("dtype") " attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 0 } } } }"
        "node { name: 'rate' op: 'Const' " WORKER F32("dtype") " attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: -1 } } } }"
        "node { name: 'zeros' op: 'Fill' input: 'dims' input: 'none' " WORKER F32("T") " }"
        "node { name: 'clear' op: 'AssignVariableOp' input: 'w' input: 'zeros' " WORKER F32("dtype") " }"
        "node { name: 'grad' op: 'MatMul' input: 'a' input: 'b' " WORKER F32("T") " attr { key: 'transpose_a' value { b: true } } }"
        "node { name: 'train' op: 'ResourceApplyGradientDescent' input: 'w' input: 'rate' input: 'grad' " WORKER F32("T") " }"
        "node { name: 'read' op: 'ReadVariableOp' input: 'w' " WORKER F32("dtype") " }";
    for (int over = 0; over < 2; over++) {
        trn_session *s = open_on(*state, 0, over);
        ok(trn_session_extend_text(s, train));
        run_target(s, "clear");
        const char *names[] = {"a", "b"}, *target = "train", *read = "read:0";
        trn_tensor *feeds[2], *w;
        ok(trn_tensor_new(&feeds[0], TRN_FLOAT, &(trn_shape){.rank = 2, .dim = {100, 500}}));
        ok(trn_tensor_new(&feeds[1], TRN_FLOAT, &(trn_shape){.rank = 2, .dim = {100, 400}}));
        float *a = trn_tensor_data_mut(feeds[0]), *b = trn_tensor_data_mut(feeds[1]);
        for (int step = 1; step <= 20; step++) {
            for (int i = 0; i < 50000; i++)
                a[i] = 1;
            for (int i = 0; i < 40000; i++)
                b[i] = 2;
            ok(trn_session_run(s, &(trn_run){.feed_names = names, .feeds = feeds, .n_feeds = 2, .targets = &target, .n_targets = 1}));
            memset(a, 0, 200000);
            memset(b, 0, 160000);
            ok(trn_session_run(s, &(trn_run){.fetches = &read, .n_fetches = 1, .out = &w}));
            const float *x = trn_tensor_data(w);
            for (int i = 0; i < 200000; i++)
                assert_true(x[i] == 200.f * (float)step);
            trn_tensor_unref(w);
        }
        trn_tensor_unref(feeds[0]);
        trn_tensor_unref(feeds[1]);
        ok(trn_session_close(s));
    }
}

static void test_shared_by_name(void **state)
{
    trn_session *a = open_on(*state, 0, 0), *b = open_on(*state, 1, 1);
    run_target(a, "init");
    run_target(a, "inc");
    run_target(b, "inc");
    int64_t v;
    ok(fetch(&v, a, "now:0", NULL));
    assert_int_equal(v, 2);
    ok(trn_session_close(a));
    ok(fetch(&v, b, "now:0", NULL));
    assert_int_equal(v, 2);
    ok(trn_session_close(b));
}

static void test_errors(void **state)
{
    for (int over = 0; over < 2; over++) {
        trn_session *s = open_on(*state, 0, over);
        int64_t v;
        fails(fetch(&v, s, "read_lost:0", NULL), TRN_FAILED_PRECONDITION, "lost");
        fails(fetch(&v, s, "read_lost:0", NULL), TRN_FAILED_PRECONDITION, "read_lost");
        fails(fetch(&v, s, "next:0", NULL), TRN_INVALID_ARGUMENT, "x"); /* not fed */
        fails(fetch(&v, s, "nobody:0", NULL), TRN_NOT_FOUND, "nobody");
        fails(fetch(&v, s, "now:7", NULL), TRN_INVALID_ARGUMENT, NULL);
        fails(trn_session_extend_text(s, "node { name: 'v' op: 'NoOp' }"), TRN_INVALID_ARGUMENT, "v");
        fails(trn_session_extend_text(s, "node { name: 'w' op: 'Identity' input: 'gone' attr { key: 'T' value { type: DT_FLOAT } } }"), TRN_INVALID_ARGUMENT, "gone");
        ok(trn_session_extend_text(s, "node { name: 'odd' op: 'NoSuchOp' }"));
        const char *odd = "odd";
        fails(trn_session_run(s, &(trn_run){.targets = &odd, .n_targets = 1}), TRN_UNIMPLEMENTED, "NoSuchOp");
        run_target(s, "init"); /* still alive */
        ok(trn_session_close(s));
    }
}

static void test_timeout(void **state)
{
    trn_session *s = open_on(*state, 0, 1);
    trn_tensor *t;
    const char *get = "get:0";
    fails(trn_session_run(s, &(trn_run){.fetches = &get, .n_fetches = 1, .out = &t, .timeout_ms = 50}), TRN_DEADLINE_EXCEEDED, NULL);
    int64_t v, seven = 7;
    const char *feed = "x:0", *put = "put";
    trn_tensor *in = trn_tensor_i64(seven);
    ok(trn_session_run(s, &(trn_run){.feed_names = &feed, .feeds = &in, .n_feeds = 1, .targets = &put, .n_targets = 1}));
    trn_tensor_unref(in);
    ok(fetch(&v, s, "get:0", NULL)); /* the step that timed out took nothing */
    assert_int_equal(v, 7);
    ok(trn_session_close(s));
}

typedef struct blocked {
    trn_session *s;
    trn_err err;
} blocked;

static void *block(void *arg)
{
    blocked *b = arg;
    int64_t v;
    b->err = fetch(&v, b->s, "get:0", NULL);
    return NULL;
}

/* Another session of the same master stays open; the one with the blocked step is reset away with everything else. */
static void test_reset_under_blocked(void **state)
{
    cluster *c = *state;
    trn_session *s = open_on(c, 0, 1);
    blocked b = {s, NULL};
    pthread_t t;
    pthread_create(&t, NULL, block, &b);
    usleep(50000);
    ok(trn_reset(trn_server_target(c->worker[0]), NULL, 0));
    pthread_join(t, NULL);
    fails(b.err, TRN_CANCELLED, NULL);
    fails(trn_session_close(s), TRN_ABORTED, "not found");
}

static void test_partial(void **state)
{
    for (int over = 0; over < 2; over++) {
        trn_session *s = open_on(*state, 0, over);
        run_target(s, "init");
        const char *feeds[] = {"x:0"}, *fetches[] = {"now:0", "twice:0"};
        char handle[17];
        ok(trn_session_partial_setup(handle, s, &(trn_run){.feed_names = feeds, .n_feeds = 1, .fetches = fetches, .n_fetches = 2}));
        trn_tensor *out, *x = trn_tensor_i64(21);
        fails(trn_session_partial_run(s, handle, &(trn_run){.fetches = fetches + 1, .n_fetches = 1, .out = &out}), TRN_INVALID_ARGUMENT, "twice");
        ok(trn_session_partial_run(s, handle, &(trn_run){.fetches = fetches, .n_fetches = 1, .out = &out}));
        assert_int_equal(*(const int64_t *)trn_tensor_data(out), 0);
        trn_tensor_unref(out);
        ok(trn_session_partial_run(s, handle, &(trn_run){.feed_names = feeds, .feeds = &x, .n_feeds = 1, .fetches = fetches + 1, .n_fetches = 1, .out = &out}));
        assert_int_equal(*(const int64_t *)trn_tensor_data(out), 42);
        trn_tensor_unref(out);
        trn_tensor_unref(x);
        fails(trn_session_partial_run(s, handle, &(trn_run){.fetches = fetches, .n_fetches = 1, .out = &out}), TRN_INVALID_ARGUMENT, NULL);
        /* one that is never finished dies with the session */
        ok(trn_session_partial_setup(handle, s, &(trn_run){.feed_names = feeds, .n_feeds = 1, .fetches = fetches, .n_fetches = 2}));
        ok(trn_session_close(s));
    }
}

static void test_devices(void **state)
{
    for (int over = 0; over < 2; over++) {
        trn_session *s = open_on(*state, 1, over);
        trn_device_info *d;
        int n;
        ok(trn_session_list_devices(&d, &n, s));
        assert_int_equal(n, 3);
        assert_string_equal(d[0].name, "/job:worker/replica:0/task:1/device:CPU:0");
        free(d);
        ok(trn_session_close(s));
    }
}

#define THREADS 4
#define COUNTS 100

static void *count(void *session)
{
    for (int i = 0; i < COUNTS; i++)
        run_target(session, "inc");
    return NULL;
}

static void test_many_at_once(void **state)
{
    cluster *c = *state;
    trn_session *s[4] = {open_on(c, 0, 0), open_on(c, 0, 1), open_on(c, 1, 0), open_on(c, 1, 1)};
    run_target(s[0], "init");
    pthread_t t[4 * THREADS];
    for (int i = 0; i < 4 * THREADS; i++)
        pthread_create(&t[i], NULL, count, s[i % 4]);
    for (int i = 0; i < 4 * THREADS; i++)
        pthread_join(t[i], NULL);
    int64_t v;
    ok(fetch(&v, s[0], "now:0", NULL));
    assert_int_equal(v, 4 * THREADS * COUNTS);
    for (int i = 0; i < 4; i++)
        ok(trn_session_close(s[i]));
}

/* A server that ends under a blocked step: the client hears of it at once. */
static void test_server_ends(void **state)
{
    trn_server *server;
    trn_session *s;
    ok(trn_server_create_local(&server));
    ok(trn_session_open(&s, trn_server_target(server), NULL));
    ok(trn_session_extend_text(s, "node { name: 'q' op: 'FIFOQueueV2' attr { key: 'component_types' value { list { type: DT_INT64 } } } }"
                                  "node { name: 'get' op: 'QueueDequeueV2' input: 'q' attr { key: 'component_types' value { list { type: DT_INT64 } } } }"));
    blocked b = {s, NULL};
    pthread_t t;
    pthread_create(&t, NULL, block, &b);
    usleep(50000);
    trn_server_close(server, 0);
    pthread_join(t, NULL);
    assert_non_null(b.err);
    trn_err_free(b.err);
    trn_err_free(trn_session_close(s));
}

static void test_lost_ps(void **state)
{
    cluster *c = *state;
    trn_session *s = open_on(c, 0, 0);
    run_target(s, "init");
    trn_server_close(c->ps, 0);
    int64_t v;
    trn_err e = fetch(&v, s, "now:0", NULL);
    assert_true(trn_err_code(e) == TRN_UNAVAILABLE || trn_err_code(e) == TRN_ABORTED);
    trn_err_free(e);
    ok(trn_server_create(&c->ps, c->spec, "ps", 0));
    for (int i = 0; i < 200; i++) { /* back, but it knows nothing of us: ABORTED, never an empty variable */
        e = fetch(&v, s, "now:0", NULL);
        trn_code code = trn_err_code(e);
        trn_err_free(e);
        if (code == TRN_ABORTED)
            break;
        assert_int_equal(code, TRN_UNAVAILABLE);
        usleep(20000);
        assert_true(i < 199);
    }
    ok(trn_session_close(s));
    s = open_on(c, 0, 0);
    run_target(s, "init");
    ok(fetch(&v, s, "now:0", NULL));
    assert_int_equal(v, 0);
    ok(trn_session_close(s));
}

static uint64_t calls(const char *method)
{
    char name[80];
    snprintf(name, sizeof name, "rpc_calls_total{method=\"%s\"}", method);
    return trn_metric_counter(name, "")->v;
}

/* The value of a metric on the page, all its lines added. */
static double metric(const char *name)
{
    trn_sb s = {0};
    trn_metrics_text(&s);
    trn_sb_add(&s, "", 1);
    double sum = 0;
    for (const char *p = (const char *)s.p; (p = strstr(p, name)); p++)
        if ((p == (const char *)s.p || p[-1] == '\n') && p[strlen(name)] == ' ')
            sum += atof(p + strlen(name));
    trn_sb_fini(&s);
    return sum;
}

/* Among our own tasks a step is one RunGraph per task and what it makes is pushed: nothing is asked for, nothing is cleaned by a call of its own. */
static void test_pushed(void **state)
{
    trn_session *s = open_on(*state, 0, 1);
    run_target(s, "init");
    int64_t v, five = 5, one = 1;
    ok(fetch(&v, s, "next:0", &five));
    ok(fetch(&v, s, "now:0", NULL));
    uint64_t asked = calls("RecvTensor"), cleaned = calls("CleanupGraph"), pushed = calls("Push"), ran = calls("RunGraph");
    for (int i = 0; i < 50; i++)
        ok(fetch(&v, s, "now:0", NULL)); /* rides on the answer */
    assert_int_equal(calls("RunGraph") - ran, 50);
    assert_true(calls("Push") - pushed < 25); /* now and then one that says which steps are over */
    pushed = calls("Push");
    for (int i = 0; i < 50; i++)
        ok(fetch(&v, s, "next:0", &five)); /* the worker's part comes by a Push */
    assert_int_equal(v, 510);
    assert_int_equal(calls("RunGraph") - ran, 100);
    assert_true(calls("Push") - pushed >= 50);
    assert_int_equal(calls("RecvTensor") - asked, 0);
    assert_int_equal(calls("CleanupGraph") - cleaned, 0);
    ok(fetch(&v, s, "either:0", &five)); /* a dead tensor each way */
    assert_int_equal(v, 25);
    ok(fetch(&v, s, "either:0", &one));
    assert_int_equal(v, -1);
    ok(trn_session_close(s));
    for (int i = 0; i < 300 && metric("trainera_steps_live") > 0; i++)
        usleep(10000);
    assert_true(metric("trainera_steps_run_total") >= 200);
    assert_true(metric("trainera_steps_live") == 0);
}

/* Connections break at every possible write; no step may wait for a tensor that is lost. */
static void test_push_lost(void **state)
{
    for (int n = 1; n <= 40; n++) {
        trn_session *s = open_on(*state, 0, 0);
        run_target(s, "init");
        char spec[32];
        snprintf(spec, sizeof spec, "io.write:%d", n);
        trn_faults_set(spec);
        trn_code code = TRN_CODE_OK;
        for (int i = 0; i < 8 && code == TRN_CODE_OK; i++) {
            const char *feed = "x:0", *name = i % 2 ? "next:0" : "either:0";
            trn_tensor *in = trn_tensor_i64(i), *t = NULL;
            trn_err e = trn_session_run(s, &(trn_run){.feed_names = &feed, .feeds = &in, .n_feeds = 1, .fetches = &name, .n_fetches = 1, .out = &t, .timeout_ms = 20000});
            code = trn_err_code(e);
            if (code != TRN_CODE_OK && code != TRN_UNAVAILABLE && code != TRN_ABORTED && code != TRN_CANCELLED)
                fail_msg("write %d, step %d: %s: %s", n, i, trn_code_name(code), trn_err_msg(e));
            trn_err_free(e);
            trn_tensor_unref(in);
            trn_tensor_unref(t);
        }
        trn_faults_set(NULL);
        trn_err_free(trn_session_close(s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),   cmocka_unit_test(test_feeds_are_given_back), cmocka_unit_test(test_shared_by_name), cmocka_unit_test(test_errors),      cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_partial), cmocka_unit_test(test_devices),        cmocka_unit_test(test_many_at_once), cmocka_unit_test(test_server_ends),
        cmocka_unit_test(test_lost_ps), cmocka_unit_test(test_reset_under_blocked),
        cmocka_unit_test(test_pushed),  cmocka_unit_test(test_push_lost),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
