/* Monitored sessions in one process: hooks and their moments, waiting for the chief, lost tasks, the end of a cluster, flags. */
#include <trainera/monitor.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "base/base.h"

/* A variable and global_step, both counted by "train". */
typedef struct model {
    trn_builder *b;
    trn_variable *v;
    trn_out train;
    const char *train_name, *v_name;
} model;

static model model_new(const char *ps_device)
{
    model m = {.b = trn_builder_new()};
    trn_builder *b = m.b;
    trn_device_scope(b, ps_device ? ps_device : "");
    trn_variable *step = trn_global_step(b);
    m.v = trn_variable_new(b, "v", trn_const_f32(b, 10), 0);
    trn_out ops[] = {trn_variable_assign_add(b, step, trn_const_i64(b, 1)), trn_variable_assign_add(b, m.v, trn_const_f32(b, 2))};
    m.train = trn_group(trn_named(b, "train"), ops, 2);
    trn_end(b);
    m.train_name = trn_out_name(b, trn_out_node(m.train));
    m.v_name = trn_out_name(b, m.v->value);
    ok(trn_builder_check(b));
    return m;
}

static trn_err train_once(trn_monitored *m, const model *md)
{
    return trn_monitored_run(m, &(trn_run){.targets = &md->train_name, .n_targets = 1});
}

static float read_v(trn_monitored *m, const model *md)
{
    trn_tensor *t;
    ok(trn_session_run(trn_monitored_session(m), &(trn_run){.fetches = &md->v_name, .n_fetches = 1, .out = &t}));
    float v = *(const float *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return v;
}

static int64_t read_step(trn_monitored *m)
{
    int64_t n;
    ok(trn_monitored_global_step(&n, m));
    return n;
}

/* ---- hooks ---------------------------------------------------------------------------------------------------------- */

static void test_stop_at_step(void **state)
{
    model md = model_new(NULL);
    trn_tensor *last = NULL;
    trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.num_steps = 7}), trn_hook_final_ops(&md.v->value, 1, &last)};
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .hooks = hooks, .n_hooks = 2}));
    assert_true(trn_monitored_is_chief(m));
    int n = 0;
    while (!trn_monitored_should_stop(m)) {
        ok(train_once(m, &md));
        n++;
    }
    assert_int_equal(n, 7);
    assert_int_equal(read_step(m), 7);
    ok(trn_monitored_close(m));
    assert_non_null(last);
    assert_float_equal(*(const float *)trn_tensor_data(last), 24, 0);
    trn_tensor_unref(last);
    trn_builder_free(md.b);
}

typedef struct recorder {
    trn_hook hook;
    char *log; /* grows */
    size_t size;
    const char *fetch;
    bool fail_after;
    int seen;
} recorder;

static void note(trn_hook *h, const char *what)
{
    recorder *r = (recorder *)h;
    strncat(r->log, what, r->size - strlen(r->log) - 1);
}

static trn_err rec_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    note(h, "begin ");
    recorder *r = (recorder *)h;
    trn_out two[] = {trn_const_f32(b, 20), trn_const_f32(b, 22)};
    r->fetch = trn_out_name(b, trn_node_add(trn_named(b, "sum"), "AddV2", two, 2, NULL, 0));
    return TRN_OK;
}

static trn_err rec_created(trn_hook *h, trn_monitored *m)
{
    note(h, "created ");
    return TRN_OK;
}

static trn_err rec_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    note(h, "before ");
    assert_int_equal(trn_ask_caller(ask)->n_targets, 1);
    assert_int_equal(trn_ask_fetch(ask, ((recorder *)h)->fetch), 0);
    assert_int_equal(trn_ask_fetch(ask, "v/Read/ReadVariableOp:0"), 1);
    return TRN_OK;
}

static trn_err rec_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    note(h, "after ");
    assert_int_equal(got->n, 2);
    assert_float_equal(*(const float *)trn_tensor_data(got->fetched[0]), 42, 0);
    recorder *r = (recorder *)h;
    if (r->fail_after)
        return trn_errorf(TRN_DATA_LOSS, "no more");
    if (++r->seen == 2)
        trn_monitored_request_stop(m);
    return TRN_OK;
}

static trn_err rec_end(trn_hook *h, trn_monitored *m)
{
    note(h, "end ");
    return TRN_OK;
}

static void rec_free(trn_hook *h)
{
    note(h, "free");
    free(h);
}

static const trn_hook_table recorder_table = {"Recorder", rec_begin, rec_created, rec_before, rec_after, rec_end, rec_free};

static trn_hook *recorder_new(char *log, size_t size, bool fail_after)
{
    recorder *r = calloc(1, sizeof *r);
    *r = (recorder){.hook = {&recorder_table}, .log = log, .size = size, .fail_after = fail_after};
    return &r->hook;
}

static void test_five_moments(void **state)
{
    model md = model_new(NULL);
    char log[200] = "";
    trn_hook *h = recorder_new(log, sizeof log, false);
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .hooks = &h, .n_hooks = 1}));
    while (!trn_monitored_should_stop(m)) {
        trn_tensor *v;
        ok(trn_monitored_step(m, md.train, &md.v->value, 1, &v));
        assert_int_equal(trn_tensor_dtype(v), TRN_FLOAT);
        trn_tensor_unref(v);
    }
    ok(trn_monitored_close(m));
    assert_string_equal(log, "begin created before after before after end free");
    trn_builder_free(md.b);
}

static void test_error_skips_end(void **state)
{
    model md = model_new(NULL);
    char log[200] = "";
    trn_hook *h = recorder_new(log, sizeof log, true);
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .hooks = &h, .n_hooks = 1}));
    fails(train_once(m, &md), TRN_DATA_LOSS, "hook Recorder after the run");
    ok(trn_monitored_close(m));
    assert_string_equal(log, "begin created before after free");
    trn_builder_free(md.b);
}

static trn_err feed_half(void *arg, trn_step_ask *ask)
{
    trn_ask_feed(ask, "x:0", trn_tensor_f32(*(float *)arg));
    return TRN_OK;
}

static void test_feeds_and_nan(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_scalar());
    trn_out y = trn_node_add(trn_named(b, "y"), "Neg", &x, 1, NULL, 0);
    float value = 0.5f;
    trn_hook *hooks[] = {trn_hook_feed_fn(feed_half, &value), trn_hook_nan(y, false)};
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .hooks = hooks, .n_hooks = 2}));
    trn_tensor *t;
    ok(trn_monitored_step(m, TRN_NONE, &y, 1, &t));
    assert_float_equal(*(const float *)trn_tensor_data(t), -0.5f, 0);
    trn_tensor_unref(t);
    fails(trn_monitored_step(m, TRN_NONE, &TRN_NONE, 1, &t), TRN_INVALID_ARGUMENT, "fetch 0");
    const char *name = "x:0";
    trn_tensor *twice = trn_tensor_f32(1);
    fails(trn_monitored_run(m, &(trn_run){.feed_names = &name, .feeds = &twice, .n_feeds = 1}), TRN_INVALID_ARGUMENT, "x:0 is fed already");
    trn_tensor_unref(twice);
    value = NAN;
    fails(trn_monitored_step(m, TRN_NONE, &y, 1, &t), TRN_INTERNAL, "y:0 is NaN");
    ok(trn_monitored_close(m));
    trn_builder_free(b);
}

static void format_it(void *arg, char *out, size_t size, trn_tensor *const *values, int n)
{
    ++*(int *)arg;
    snprintf(out, size, "v is %g", *(const float *)trn_tensor_data(values[0]));
}

static void test_logging_and_progress(void **state)
{
    model md = model_new(NULL);
    int lines = 0, pipefd[2];
    assert_int_equal(pipe(pipefd), 0);
    trn_hook *hooks[] = {
        trn_hook_logging(&(trn_logging_opts){.tensors = &md.v->value, .n = 1, .every_steps = 3, .at_end = true, .format = format_it, .format_arg = &lines}),
        trn_hook_progress(&(trn_progress_opts){.total_steps = 8, .loss = &md.v->value, .fd = pipefd[1], .every_secs = 1000}),
        trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 8}),
    };
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .hooks = hooks, .n_hooks = 3}));
    while (!trn_monitored_should_stop(m))
        ok(train_once(m, &md));
    ok(trn_monitored_close(m));
    assert_int_equal(lines, 4); /* 0, 3, 6, end */
    char text[400] = "";
    assert_true(read(pipefd[0], text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "step 8/8"));
    assert_non_null(strstr(text, "100%"));
    close(pipefd[0]);
    close(pipefd[1]);
    trn_builder_free(md.b);
}

static void test_input_ends(void **state)
{
    trn_builder *b = trn_builder_new();
    const trn_attr queue[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32)), trn_at_int("capacity", 4)};
    trn_out q = trn_node_add(trn_named(b, "q"), "FIFOQueueV2", NULL, 0, queue, 2);
    trn_out in[] = {q, trn_const_i32(b, 3)};
    trn_out put = trn_node_add(b, "QueueEnqueueV2", in, 2, NULL, 0);
    const trn_attr types[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32))};
    trn_out get = trn_node_add(b, "QueueDequeueV2", &q, 1, types, 1);
    trn_out close_it = trn_node_add(b, "QueueCloseV2", &q, 1, NULL, 0);
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = b}));
    ok(trn_monitored_step(m, put, NULL, 0, NULL));
    ok(trn_monitored_step(m, close_it, NULL, 0, NULL));
    trn_tensor *t = NULL;
    ok(trn_monitored_step(m, TRN_NONE, &get, 1, &t));
    assert_int_equal(*(const int32_t *)trn_tensor_data(t), 3);
    trn_tensor_unref(t);
    assert_false(trn_monitored_should_stop(m));
    ok(trn_monitored_step(m, TRN_NONE, &get, 1, &t));
    assert_null(t);
    assert_true(trn_monitored_should_stop(m));
    ok(trn_monitored_close(m));
    trn_builder_free(b);
}

static void test_needs_global_step(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_const_f32(b, 1);
    trn_hook *h = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.num_steps = 7});
    trn_monitored *m;
    fails(trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .hooks = &h, .n_hooks = 1}), TRN_FAILED_PRECONDITION, "global_step");
    h = trn_hook_stop_at_step(&(trn_stop_at_step_opts){0});
    fails(trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .hooks = &h, .n_hooks = 1}), TRN_INVALID_ARGUMENT, "exactly one");
    trn_builder_free(b);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static char dir[200];

static int count_files(const char *path, const char *part)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, "ls %s 2>/dev/null | grep -c -- '%s'", path, part);
    FILE *f = popen(cmd, "r");
    int n = 0;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void test_checkpoints(void **state)
{
    for (int round = 0; round < 2; round++) { /* the second goes on where the first ended */
        model md = model_new(NULL);
        trn_summary_scalar(md.b, "value", md.v->value);
        trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = round ? 9 : 5}),
                             trn_hook_profiler(&(trn_profiler_opts){.every_steps = 2, .dir = dir})};
        trn_monitored *m;
        ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .checkpoint_dir = dir, .save_steps = 2, .hooks = hooks, .n_hooks = 2}));
        assert_int_equal(read_step(m), round ? 5 : 0);
        assert_float_equal(read_v(m, &md), round ? 20 : 10, 0);
        while (!trn_monitored_should_stop(m))
            ok(train_once(m, &md));
        ok(trn_monitored_close(m));
        trn_builder_free(md.b);
        char *last = trn_latest_checkpoint(dir);
        assert_non_null(last);
        assert_non_null(strstr(last, round ? "model.ckpt-9" : "model.ckpt-5"));
        free(last);
    }
    assert_true(count_files(dir, "events.out.tfevents") >= 2);
    assert_true(count_files(dir, "timeline-") >= 2);
    /* Resumed at its end: no step at all. */
    model md = model_new(NULL);
    trn_hook *h = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 9});
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .checkpoint_dir = dir, .hooks = &h, .n_hooks = 1}));
    assert_true(trn_monitored_should_stop(m));
    ok(trn_monitored_close(m));
    trn_builder_free(md.b);
}

/* A hook that has more run in a step than was asked for, and looks at how it ran. */
typedef struct extra {
    trn_hook hook;
    const char *target;
    int traces;
    bool wrote;
} extra;

static trn_err extra_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    assert_ptr_equal(trn_monitored_builder(m), b);
    trn_variable *v = trn_variable_find(b, "v");
    ((extra *)h)->target = trn_out_name(b, trn_out_node(trn_variable_assign_add(b, v, trn_const_f32(b, 100))));
    return TRN_OK;
}

static trn_err extra_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    trn_ask_target(ask, ((extra *)h)->target);
    trn_ask_trace(ask);
    return TRN_OK;
}

static trn_err extra_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    extra *x = (extra *)h;
    x->traces += got->metadata && got->metadata_len > 0;
    trn_event_writer *w;
    TRN_TRY(trn_monitored_events(&w, m, dir));
    trn_event_writer_add_scalar(w, "mine", 1, x->traces);
    x->wrote = true;
    return TRN_OK;
}

static void extra_free(trn_hook *h) {}

/* The chief's own hooks, given by hand. */
static void test_saving_hooks(void **state)
{
    static const trn_hook_table table = {.name = "Extra", .begin = extra_begin, .before_run = extra_before, .after_run = extra_after, .free = extra_free};
    model md = model_new(NULL);
    trn_out summary = trn_summary_scalar(md.b, "value", md.v->value);
    extra x = {.hook = {&table}};
    trn_hook *hooks[] = {trn_hook_checkpoint_saver(&(trn_checkpoint_saver_opts){.dir = dir, .every_steps = 2, .basename = "mine", .blocking = true}),
                         trn_hook_step_counter(&(trn_step_counter_opts){.every_steps = 2, .dir = dir}),
                         trn_hook_summary_saver(&(trn_summary_saver_opts){.every_steps = 2, .dir = dir, .summary = &summary}), &x.hook,
                         trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 5})};
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .is_chief = true, .log_steps = -1, .hooks = hooks, .n_hooks = 5}));
    while (!trn_monitored_should_stop(m))
        ok(train_once(m, &md));
    assert_true(x.traces == 5 && x.wrote);
    assert_float_equal(read_v(m, &md), 10 + 5 * 102, 0);
    ok(trn_monitored_close(m));
    trn_builder_free(md.b);
    char path[300];
    snprintf(path, sizeof path, "%s/mine-5", dir);
    assert_true(trn_checkpoint_exists(path));
    trn_checkpoint_remove(path);
    assert_false(trn_checkpoint_exists(path));
    assert_int_equal(count_files(dir, "mine-5"), 0);
    assert_int_equal(count_files(dir, "events.out.tfevents"), 1); /* one file for all that a program writes */
    char cmd[400];
    for (int i = 0; i < 3; i++) {
        snprintf(cmd, sizeof cmd, "grep -qa %s %s/events.out.tfevents*", (const char *[]){"global_step/sec", "value", "mine"}[i], dir);
        assert_int_equal(system(cmd), 0);
    }
}

typedef struct late {
    trn_monitored *m;
    model *md;
    int64_t began_at;
    _Atomic bool begun, done;
    trn_err err;
} late;

static void *late_main(void *arg)
{
    late *l = arg;
    trn_tensor *t = NULL;
    l->begun = true;
    l->err = trn_monitored_step(l->m, l->md->train, &trn_global_step(l->md->b)->value, 1, &t);
    if (!l->err)
        l->began_at = *(const int64_t *)trn_tensor_data(t);
    trn_tensor_unref(t);
    l->done = true;
    return NULL;
}

static void test_global_step_waiter(void **state)
{
    trn_server *server;
    ok(trn_server_create_local(&server));
    model md = model_new(NULL), other_md = model_new(NULL);
    trn_hook *h = trn_hook_global_step_waiter(5);
    late l = {.md = &other_md};
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = server, .is_chief = true, .log_steps = -1}));
    ok(trn_monitored_open(&l.m, &(trn_monitored_opts){.builder = other_md.b, .server = server, .hooks = &h, .n_hooks = 1}));
    pthread_t thread;
    pthread_create(&thread, NULL, late_main, &l);
    for (int i = 0; i < 3; i++)
        ok(train_once(m, &md));
    while (!l.begun)
        usleep(1000);
    usleep(100000);
    assert_false(l.done);
    for (int i = 0; i < 3; i++)
        ok(train_once(m, &md));
    pthread_join(thread, NULL);
    ok(l.err);
    assert_true(l.began_at >= 5);
    ok(trn_monitored_close(l.m));
    assert_int_equal(read_step(m), 7);
    ok(trn_monitored_close(m));
    trn_builder_free(md.b);
    trn_builder_free(other_md.b);
    trn_server_close(server, 0);
}

static int dir_set_up(void **state)
{
    strcpy(dir, "/tmp/test_monitorXXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int dir_tear_down(void **state)
{
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

/* ---- clusters ------------------------------------------------------------------------------------------------------- */

typedef struct cluster {
    trn_cluster *spec;
    trn_server *ps[2], *worker[2];
} cluster;

static void start(trn_server **out, cluster *c, const char *job, int task)
{
    ok(trn_server_create(out, c->spec, job, task));
}

static cluster cluster_new(void)
{
    cluster c = {0};
    int port[4];
    char json[300];
    free_ports(port, 4);
    snprintf(json, sizeof json, "{\"ps\": [\"127.0.0.1:%d\", \"127.0.0.1:%d\"], \"worker\": [\"127.0.0.1:%d\", \"127.0.0.1:%d\"]}", port[0], port[1], port[2], port[3]);
    ok(trn_cluster_parse(&c.spec, json));
    for (int i = 0; i < 2; i++) {
        start(&c.ps[i], &c, "ps", i);
        start(&c.worker[i], &c, "worker", i);
    }
    return c;
}

static void cluster_free(cluster *c)
{
    for (int i = 0; i < 2; i++) {
        if (c->worker[i])
            trn_server_close(c->worker[i], 0);
        if (c->ps[i])
            trn_server_close(c->ps[i], 0);
    }
    trn_cluster_free(c->spec);
}

typedef struct other {
    trn_server *server;
    const char *target;
    trn_monitored *m;
    model md;
    trn_err err;
    uint64_t open_ns;
    int steps;
    trn_hook *hooks[2];
    int n_hooks;
    pthread_t thread;
} other;

static void *other_main(void *arg)
{
    other *o = arg;
    o->err = trn_monitored_open(&o->m, &(trn_monitored_opts){.builder = o->md.b, .server = o->server, .target = o->target, .hooks = o->hooks, .n_hooks = o->n_hooks, .wait_secs = 20});
    o->open_ns = trn_now_ns();
    while (!o->err && !trn_monitored_should_stop(o->m)) {
        o->err = train_once(o->m, &o->md);
        o->steps++;
        usleep(1000);
    }
    if (!o->err)
        o->err = trn_monitored_close(o->m);
    return NULL;
}

/* How long after the chief was ready the other one was, in ns. */
static int64_t wait_for_chief(void)
{
    cluster c = cluster_new();
    other o = {.server = c.worker[1], .md = model_new("/job:ps/task:1"), .n_hooks = 1};
    o.hooks[0] = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 20});
    pthread_create(&o.thread, NULL, other_main, &o);
    usleep(700000); /* its looks are far apart by now: what wakes it is the gate */
    model md = model_new("/job:ps/task:1");
    trn_hook *h = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 20});
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = c.worker[0], .is_chief = true, .hooks = &h, .n_hooks = 1}));
    uint64_t chief_ns = trn_now_ns();
    while (!trn_monitored_should_stop(m)) {
        ok(train_once(m, &md));
        usleep(2000);
    }
    pthread_join(o.thread, NULL);
    ok(o.err);
    assert_true(o.steps > 0);
    int64_t steps = read_step(m);
    assert_true(steps >= 20 && steps <= 21);
    ok(trn_monitored_close(m));
    trn_builder_free(md.b);
    trn_builder_free(o.md.b);
    cluster_free(&c);
    return (int64_t)(o.open_ns - chief_ns);
}

static void test_waits_for_chief(void **state)
{
    /* At once, that is; a machine that is busy with other things gets more tries. */
    int tries = 1;
    while (llabs(wait_for_chief()) > 250000000)
        assert_true(tries++ < 5);
}

static void test_waits_in_vain(void **state)
{
    cluster c = cluster_new();
    model md = model_new("/job:ps/task:0");
    trn_monitored *m;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = c.worker[1], .wait_secs = 0.3});
    fails(trn_err_copy(err), TRN_DEADLINE_EXCEEDED, "global_step, v on /job:ps/task:0");
    trn_err_free(err);
    trn_builder_free(md.b);
    /* A ps that is not there is named. */
    md = model_new("/job:ps/task:0");
    trn_server_close(c.ps[0], 0);
    c.ps[0] = NULL;
    fails(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = c.worker[1], .wait_secs = 0.3}), TRN_DEADLINE_EXCEEDED, "/job:ps/replica:0/task:0");
    trn_builder_free(md.b);
    cluster_free(&c);
}

/* A ps starts anew: both workers go on, from the checkpoint. */
static void test_ps_restarts(void **state)
{
    for (int over = 0; over < 2; over++) {
        char path[300];
        snprintf(path, sizeof path, "%s/restart%d", dir, over);
        cluster c = cluster_new();
        model md = model_new("/job:ps/task:1");
        char log[400] = "";
        trn_hook *h[] = {recorder_new(log, sizeof log, false)};
        ((recorder *)h[0])->seen = 100;
        trn_monitored *m;
        ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = over ? NULL : c.worker[0], .target = over ? trn_server_target(c.worker[0]) : NULL,
                                                        .is_chief = true, .checkpoint_dir = path, .save_steps = 5, .hooks = h, .n_hooks = 1, .wait_secs = 20}));
        other o = {.server = c.worker[1], .md = model_new("/job:ps/task:1"), .n_hooks = 1};
        o.hooks[0] = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 40});
        pthread_create(&o.thread, NULL, other_main, &o);
        while (read_step(m) < 12)
            ok(train_once(m, &md));
        trn_server_close(c.ps[1], 0);
        start(&c.ps[1], &c, "ps", 1);
        ok(train_once(m, &md));
        assert_true(trn_monitored_recoveries(m) >= 1);
        assert_true(read_step(m) >= 5); /* not from the beginning */
        while (read_step(m) < 40)
            ok(train_once(m, &md));
        pthread_join(o.thread, NULL);
        ok(o.err);
        assert_float_equal(read_v(m, &md), 10 + 2 * (double)read_step(m), 4); /* steps that ran while the checkpoint was written may be half in it */
        ok(trn_monitored_close(m));
        assert_non_null(strstr(log, "created before before after") ? log : strstr(log, "created before after"));
        trn_builder_free(md.b);
        trn_builder_free(o.md.b);
        cluster_free(&c);
    }
}

/* The chief's master starts anew, the ps is still there: the variables stay what they are. */
static void test_master_restarts(void **state)
{
    cluster c = cluster_new();
    model md = model_new("/job:ps/task:1");
    trn_monitored *m;
    ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .target = trn_server_target(c.worker[0]), .is_chief = true, .wait_secs = 20}));
    for (int i = 0; i < 5; i++)
        ok(train_once(m, &md));
    trn_server_close(c.worker[0], 0);
    start(&c.worker[0], &c, "worker", 0);
    ok(train_once(m, &md));
    assert_int_equal(trn_monitored_recoveries(m), 1);
    assert_int_equal(read_step(m), 6);
    assert_float_equal(read_v(m, &md), 22, 0);
    ok(trn_monitored_close(m));
    trn_builder_free(md.b);
    cluster_free(&c);
}

/* ---- the end of a cluster ------------------------------------------------------------------------------------------- */

typedef struct ps_task {
    trn_server *server;
    trn_err err;
    pthread_t thread;
} ps_task;

static void *ps_main(void *arg)
{
    ps_task *p = arg;
    p->err = trn_ps_wait_done(p->server, NULL);
    trn_server_close(p->server, 2000);
    return NULL;
}

static void test_done(void **state)
{
    cluster c = cluster_new();
    ps_task ps[2];
    for (int i = 0; i < 2; i++) {
        ps[i].server = c.ps[i];
        c.ps[i] = NULL;
        pthread_create(&ps[i].thread, NULL, ps_main, &ps[i]);
    }
    /* Worker 0 ends twice, which does not count for worker 1. */
    for (int k = 0; k < 3; k++) {
        model md = model_new("/job:ps/task:0");
        trn_hook *h[] = {trn_hook_done(NULL), trn_hook_stop_at_step(&(trn_stop_at_step_opts){.num_steps = 3})};
        trn_monitored *m;
        ok(trn_monitored_open(&m, &(trn_monitored_opts){.builder = md.b, .server = c.worker[k == 2], .is_chief = k == 0, .hooks = h, .n_hooks = 2}));
        while (!trn_monitored_should_stop(m))
            ok(train_once(m, &md));
        ok(trn_monitored_close(m));
        trn_builder_free(md.b);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(ps[i].thread, NULL);
        ok(ps[i].err);
    }
    cluster_free(&c);
}

static void test_done_names_the_missing(void **state)
{
    cluster c = cluster_new();
    fails(trn_ps_wait_done(c.ps[1], &(trn_wait_done_opts){.patience_s = 0.1}), TRN_DEADLINE_EXCEEDED, "/job:worker/task:0, /job:worker/task:1");
    cluster_free(&c);
}

static void *kill_soon(void *arg)
{
    usleep(100000);
    kill(getpid(), SIGTERM);
    return NULL;
}

static void test_join(void **state)
{
    trn_server *s;
    ok(trn_server_create_local(&s));
    pthread_t t;
    pthread_create(&t, NULL, kill_soon, NULL);
    ok(trn_server_join(s));
    pthread_join(t, NULL);
    trn_server_close(s, 0);
    struct sigaction now;
    sigaction(SIGTERM, NULL, &now);
    assert_true(now.sa_handler == SIG_DFL);
}

/* ---- flags ---------------------------------------------------------------------------------------------------------- */

static trn_err flags(trn_role *r, const trn_flag *own, const char *a1, const char *a2, const char *a3, const char *a4)
{
    const char *argv[6] = {"program", a1, a2, a3, a4, NULL};
    int argc = 1;
    while (argv[argc])
        argc++;
    return trn_flags_cluster(r, argc, (char **)(void *)argv, own);
}

static void test_flags(void **state)
{
    unsetenv("TF_CONFIG");
    trn_role r;
    ok(flags(&r, NULL, NULL, NULL, NULL, NULL));
    assert_null(r.cluster);
    assert_true(r.is_chief);
    trn_role_fini(&r);

    int64_t steps = 100;
    double rate = 0.5;
    bool sync = false;
    const char *out = "here";
    const trn_flag own[] = {{"train_steps", TRN_FLAG_INT, &steps, "how many"}, {"learning_rate", TRN_FLAG_FLOAT, &rate, "how fast"},
                            {"sync", TRN_FLAG_BOOL, &sync, "together"}, {"dir", TRN_FLAG_STR, &out, "where"}, {0}};
    ok(flags(&r, own, "--train-steps=7", "--sync", "--learning_rate=1e-3", "--dir=there"));
    assert_int_equal(steps, 7);
    assert_true(sync);
    assert_float_equal(rate, 1e-3, 1e-12);
    assert_string_equal(out, "there");
    ok(flags(&r, own, "--nosync", NULL, NULL, NULL));
    assert_false(sync);
    fails(flags(&r, own, "--train_step=7", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "did you mean --train_steps?");
    fails(flags(&r, own, "--train_steps=many", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "whole number");
    fails(flags(&r, own, "--train_steps", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "needs a value");
    fails(flags(&r, own, "here", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "'here'");
    fails(flags(&r, own, "--job_name=ps", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "without hosts");
    fails(flags(&r, own, "--ps_hosts=h:1", NULL, NULL, NULL), TRN_INVALID_ARGUMENT, "--job_name");

    ok(flags(&r, own, "--ps_hosts=h:1,h:2", "--worker_hosts=h:3,h:4,h:5", "--job_name=worker", "--task_index=0"));
    assert_true(r.is_chief && !r.is_ps && !r.is_coordinator);
    assert_int_equal(r.n_ps, 2);
    assert_int_equal(r.n_workers, 3);
    assert_string_equal(r.job, "worker");
    trn_role_fini(&r);
    ok(flags(&r, own, "--ps_hosts=h:1,h:2", "--worker_hosts=h:3,h:4,h:5", "--job_name=ps", "--task_index=1"));
    assert_true(r.is_ps && !r.is_chief);
    assert_int_equal(r.task, 1);
    trn_role_fini(&r);

    const char *json = "{\"cluster\": {\"ps\": [\"h:1\"], \"worker\": [\"h:2\", \"h:3\"], \"chief\": [\"h:4\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}";
    setenv("TF_CONFIG", json, 1);
    ok(flags(&r, NULL, NULL, NULL, NULL, NULL));
    assert_true(!r.is_chief && !r.is_ps);
    assert_int_equal(r.n_workers, 3);
    trn_role_fini(&r);
    ok(flags(&r, NULL, "--job_name=chief", NULL, NULL, NULL));
    assert_true(r.is_chief && r.is_coordinator);
    trn_role_fini(&r);
    unsetenv("TF_CONFIG");
    char path[300];
    snprintf(path, sizeof path, "%s/tf_config.json", dir);
    FILE *f = fopen(path, "w");
    fputs(json, f);
    fclose(f);
    char flag[400];
    snprintf(flag, sizeof flag, "--tf_config=%s", path);
    ok(flags(&r, NULL, flag, NULL, NULL, NULL));
    assert_string_equal(r.job, "worker");
    trn_role_fini(&r);
    fails(flags(&r, NULL, "--tf_config=/nowhere/at/all", NULL, NULL, NULL), TRN_NOT_FOUND, "/nowhere/at/all");
}

static void test_trace_of_rubbish(void **state)
{
    char *text;
    ok(trn_chrome_trace(&text, "", 0));
    assert_non_null(strstr(text, "traceEvents"));
    free(text);
    trn_err err = trn_chrome_trace(&text, "\x0a\xff\xff", 3);
    assert_non_null(err);
    trn_err_free(err);
}

int main(void)
{
    trn_log_set_level(getenv("TRAINERA_LOG") ? TRN_LOG_DEBUG : TRN_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_at_step),
        cmocka_unit_test(test_five_moments),
        cmocka_unit_test(test_error_skips_end),
        cmocka_unit_test(test_feeds_and_nan),
        cmocka_unit_test(test_logging_and_progress),
        cmocka_unit_test(test_input_ends),
        cmocka_unit_test(test_needs_global_step),
        cmocka_unit_test_setup_teardown(test_checkpoints, dir_set_up, dir_tear_down),
        cmocka_unit_test_setup_teardown(test_saving_hooks, dir_set_up, dir_tear_down),
        cmocka_unit_test(test_global_step_waiter),
        cmocka_unit_test(test_waits_for_chief),
        cmocka_unit_test(test_waits_in_vain),
        cmocka_unit_test_setup_teardown(test_ps_restarts, dir_set_up, dir_tear_down),
        cmocka_unit_test(test_master_restarts),
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_done_names_the_missing),
        cmocka_unit_test(test_join),
        cmocka_unit_test_setup_teardown(test_flags, dir_set_up, dir_tear_down),
        cmocka_unit_test(test_trace_of_rubbish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
