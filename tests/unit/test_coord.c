/* The coordinator in one process: steps on free workers, errors, lost workers, lost ps, the end. */
#include <trainera/coord.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "base/base.h"

enum { WORKERS = 3 };

typedef struct job {
    trn_cluster *spec;
    trn_server *ps, *worker[WORKERS];
    trn_builder *b;
    const char *count, *total, *twice, *x, *wrong, *parked, *free_it;
} job;

static int set_up(void **state)
{
    job *j = calloc(1, sizeof *j);
    int port[4];
    char json[300];
    free_ports(port, 4);
    snprintf(json, sizeof json, "{\"ps\": [\"127.0.0.1:%d\"], \"worker\": [\"127.0.0.1:%d\", \"127.0.0.1:%d\", \"127.0.0.1:%d\"]}", port[0], port[1], port[2], port[3]);
    ok(trn_cluster_parse(&j->spec, json));
    ok(trn_server_create(&j->ps, j->spec, "ps", 0));
    for (int i = 0; i < WORKERS; i++)
        ok(trn_server_create(&j->worker[i], j->spec, "worker", i));
    trn_builder *b = j->b = trn_builder_new();
    trn_device_scope(b, "/job:ps/task:0");
    trn_variable *v = trn_variable_new(b, "v", trn_const_f32(b, 0), 0);
    j->count = trn_out_name(b, trn_out_node(trn_variable_assign_add(b, v, trn_const_f32(b, 1))));
    const trn_attr queue[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32)), trn_at_str("shared_name", "parked")};
    trn_out q = trn_node_add(b, "FIFOQueueV2", NULL, 0, queue, 2);
    j->parked = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "parked"), "QueueDequeueV2", &q, 1, queue, 1)));
    trn_out in[] = {q, trn_const_i32(b, 1)};
    j->free_it = trn_out_name(b, trn_out_node(trn_node_add(b, "QueueEnqueueV2", in, 2, NULL, 0)));
    trn_end(b);
    j->total = trn_out_name(b, v->value);
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_unknown());
    trn_out xx[] = {x, x};
    j->x = trn_out_name(b, x);
    j->twice = trn_out_name(b, trn_node_add(b, "AddV2", xx, 2, NULL, 0));
    trn_out mm[] = {x, trn_zeros(b, TRN_FLOAT, trn_shape_of(2, 3L, 3L))};
    j->wrong = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "wrong"), "MatMul", mm, 2, NULL, 0)));
    ok(trn_builder_check(b));
    *state = j;
    return 0;
}

static int tear_down(void **state)
{
    job *j = *state;
    for (int i = 0; i < WORKERS; i++)
        if (j->worker[i])
            trn_server_close(j->worker[i], 0);
    if (j->ps)
        trn_server_close(j->ps, 0);
    trn_builder_free(j->b);
    trn_cluster_free(j->spec);
    free(j);
    return 0;
}

static trn_coord *coord_of(job *j)
{
    trn_coord *c;
    ok(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b, .cluster = j->spec, .wait_secs = 20}));
    return c;
}

static trn_err schedule(trn_coord *c, const char *target) { return trn_coord_schedule(NULL, c, &(trn_run){.targets = &target, .n_targets = 1}); }

static float total(trn_coord *c, job *j)
{
    trn_future *f;
    trn_tensor *t;
    ok(trn_coord_schedule(&f, c, &(trn_run){.fetches = &j->total, .n_fetches = 1}));
    ok(trn_coord_fetch(f, &t, 1));
    assert_true(trn_future_done(f));
    trn_future_free(f);
    float v = *(const float *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static void test_steps(void **state)
{
    job *j = *state;
    trn_coord *c = coord_of(j);
    for (int i = 0; i < 200; i++)
        ok(schedule(c, j->count));
    ok(trn_coord_join(c));
    assert_true(trn_coord_done(c));
    assert_float_equal(total(c, j), 200, 0);
    int64_t n = 0;
    for (int i = 0; i < WORKERS; i++)
        n += trn_coord_steps(c, i);
    assert_int_equal(n, 201);
    assert_int_equal(trn_coord_retries(c), 0);
    ok(trn_coord_close(c));
}

static void test_futures(void **state)
{
    job *j = *state;
    trn_coord *c = coord_of(j);
    trn_future *f[20];
    for (int i = 0; i < 20; i++) {
        trn_tensor *x = trn_tensor_f32((float)i);
        ok(trn_coord_schedule(&f[i], c, &(trn_run){.feed_names = &j->x, .feeds = &x, .n_feeds = 1, .fetches = &j->twice, .n_fetches = 1}));
        trn_tensor_unref(x);
    }
    for (int i = 19; i >= 0; i--) {
        trn_tensor *t;
        fails(trn_coord_fetch(f[i], &t, 2), TRN_INVALID_ARGUMENT, "1 tensors");
        for (int k = 0; k < 2; k++) {
            ok(trn_coord_fetch(f[i], &t, 1));
            assert_float_equal(*(const float *)trn_tensor_data(t), 2 * i, 0);
            trn_tensor_unref(t);
        }
        trn_future_free(f[i]);
    }
    ok(trn_coord_close(c));
}

static void test_errors_come_at_join(void **state)
{
    job *j = *state;
    trn_coord *c = coord_of(j);
    trn_tensor *x = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){1, 2}, (float[]){1, 2});
    trn_future *f;
    ok(trn_coord_schedule(&f, c, &(trn_run){.feed_names = &j->x, .feeds = &x, .n_feeds = 1, .targets = &j->wrong, .n_targets = 1}));
    trn_tensor_unref(x);
    fails(trn_coord_fetch(f, NULL, 0), TRN_INVALID_ARGUMENT, "wrong");
    trn_future_free(f);
    fails(trn_coord_join(c), TRN_INVALID_ARGUMENT, "wrong");
    ok(trn_coord_join(c)); /* once */
    ok(schedule(c, j->count));
    ok(trn_coord_join(c));
    assert_float_equal(total(c, j), 1, 0);
    ok(trn_coord_close(c));
}

static void test_bounded_queue(void **state)
{
    job *j = *state;
    trn_coord *c;
    ok(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b, .cluster = j->spec, .queue = 2, .steps_per_worker = 2}));
    trn_future *f[4];
    for (int i = 0; i < 4; i++)
        ok(trn_coord_schedule(&f[i], c, &(trn_run){.targets = &j->parked, .n_targets = 1}));
    assert_false(trn_coord_done(c));
    for (int i = 0; i < 4; i++)
        ok(schedule(c, j->free_it));
    ok(trn_coord_join(c));
    for (int i = 0; i < 4; i++) {
        ok(trn_coord_fetch(f[i], NULL, 0));
        trn_future_free(f[i]);
    }
    ok(trn_coord_close(c));
}

/* Steps that would wait for ever end with it. */
static void test_close_cancels(void **state)
{
    job *j = *state;
    trn_coord *c = coord_of(j);
    trn_future *f[8];
    for (int i = 0; i < 8; i++)
        ok(trn_coord_schedule(&f[i], c, &(trn_run){.targets = &j->parked, .n_targets = 1}));
    usleep(20000);
    ok(trn_coord_close(c));
    for (int i = 0; i < 8; i++) {
        fails(trn_coord_fetch(f[i], NULL, 0), TRN_CANCELLED, NULL);
        trn_future_free(f[i]);
    }
}

static void test_worker_lost(void **state)
{
    job *j = *state;
    trn_coord *c = coord_of(j);
    while (trn_coord_workers(c) < WORKERS)
        usleep(1000);
    /* Every worker has a step that is parked; one of them goes. */
    trn_future *f[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        ok(trn_coord_schedule(&f[i], c, &(trn_run){.targets = &j->parked, .n_targets = 1}));
    usleep(50000);
    trn_server_close(j->worker[1], 0);
    j->worker[1] = NULL;
    usleep(50000);
    trn_session *s; /* feeds them from outside */
    ok(trn_session_open(&s, trn_server_target(j->ps), &(trn_session_opts){.config = "\x22\x07/job:ps", .config_len = 9}));
    ok(trn_session_extend_builder(s, j->b));
    for (int i = 0; i < WORKERS + 1; i++)
        ok(trn_session_run(s, &(trn_run){.targets = &j->free_it, .n_targets = 1}));
    ok(trn_session_close(s));
    ok(trn_coord_join(c));
    for (int i = 0; i < WORKERS; i++) {
        ok(trn_coord_fetch(f[i], NULL, 0));
        trn_future_free(f[i]);
    }
    assert_int_equal(trn_coord_retries(c), 1);
    assert_int_equal(trn_coord_workers(c), WORKERS - 1);
    for (int i = 0; i < 20; i++)
        ok(schedule(c, j->count));
    ok(trn_coord_join(c));
    assert_float_equal(total(c, j), 20, 0);
    /* It comes back and works. */
    ok(trn_server_create(&j->worker[1], j->spec, "worker", 1));
    for (int i = 0; i < 400 && trn_coord_workers(c) < WORKERS; i++)
        usleep(10000);
    assert_int_equal(trn_coord_workers(c), WORKERS);
    int64_t before = trn_coord_steps(c, 1);
    for (int i = 0; i < 2000 && trn_coord_steps(c, 1) == before; i++)
        ok(schedule(c, j->count));
    assert_true(trn_coord_steps(c, 1) > before);
    ok(trn_coord_join(c));
    ok(trn_coord_close(c));
}

static void test_ps_lost(void **state)
{
    job *j = *state;
    for (int again = 0; again < 2; again++) { /* gone, or there but empty */
        trn_coord *c = coord_of(j);
        for (int i = 0; i < 5; i++)
            ok(schedule(c, j->count));
        ok(trn_coord_join(c));
        trn_server_close(j->ps, 0);
        j->ps = NULL;
        if (again)
            ok(trn_server_create(&j->ps, j->spec, "ps", 0));
        trn_future *f;
        ok(trn_coord_schedule(&f, c, &(trn_run){.targets = &j->count, .n_targets = 1}));
        fails(trn_coord_join(c), TRN_UNAVAILABLE, "/job:ps/replica:0/task:0");
        fails(trn_coord_fetch(f, NULL, 0), TRN_UNAVAILABLE, "/job:ps/replica:0/task:0");
        trn_future_free(f);
        fails(schedule(c, j->count), TRN_UNAVAILABLE, "/job:ps/replica:0/task:0");
        ok(trn_coord_close(c));
        if (!j->ps)
            ok(trn_server_create(&j->ps, j->spec, "ps", 0));
    }
}

static trn_err note_worker(void *arg, trn_session *s, int worker)
{
    atomic_fetch_add((_Atomic int *)arg, 1 << 8 * worker);
    return TRN_OK;
}

static trn_err init_fails(void *arg, trn_session *s) { return trn_errorf(TRN_DATA_LOSS, "nothing to load"); }

static void test_init(void **state)
{
    job *j = *state;
    _Atomic int seen = 0;
    trn_coord *c;
    ok(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b, .cluster = j->spec, .worker_init_fn = note_worker, .worker_init_arg = &seen}));
    while (trn_coord_workers(c) < WORKERS)
        usleep(1000);
    assert_int_equal(atomic_load(&seen), 0x010101);
    ok(trn_coord_close(c));
    fails(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b, .cluster = j->spec, .init_fn = init_fails}), TRN_DATA_LOSS, "nothing to load");
    for (int i = 0; i < WORKERS; i++) {
        trn_server_close(j->worker[i], 0);
        j->worker[i] = NULL;
    }
    fails(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b, .cluster = j->spec, .wait_secs = 0.2}), TRN_DEADLINE_EXCEEDED, "/job:worker/task:2");
    fails(trn_coord_open(&c, &(trn_coord_opts){.builder = j->b}), TRN_INVALID_ARGUMENT, "workers");
}

int main(void)
{
    trn_log_set_level(getenv("TRAINERA_LOG") ? TRN_LOG_DEBUG : TRN_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_steps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_futures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_errors_come_at_join, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bounded_queue, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_close_cancels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_worker_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ps_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_init, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
