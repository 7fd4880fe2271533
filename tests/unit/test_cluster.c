/* Cluster specs from flags, JSON, TF_CONFIG and protobuf, and what is said about wrong ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "check.h"
#include "cluster/cluster.h"
#include "proto/tensorflow.pb-c.h"

/* What a user typed is answered in one line. */
#define refused(e, code, part)                                                                                         \
    do {                                                                                                               \
        trn_err e_ = (e);                                                                                              \
        assert_null(strchr(trn_err_msg(e_), '\n'));                                                                    \
        fails(e_, code, part);                                                                                         \
    } while (0)

static char *text_of(const trn_cluster *c)
{
    trn_sb s = {0};
    trn_cluster_text(&s, c);
    if (c->own_job)
        trn_sb_addf(&s, " me=%s/%d", c->own_job, c->own_task);
    return s.p;
}

/* Takes the cluster by address: it may be written by the very call whose error is passed. */
static void expect_cluster(trn_err err, trn_cluster **p, const char *want)
{
    if (err)
        fail_msg("%s", trn_err_msg(err));
    char *t = text_of(*p);
    assert_string_equal(t, want);
    free(t);
    trn_cluster_unref(*p);
}

/* ---- addresses ------------------------------------------------------------------------------------------------- */

static void addresses(void **state)
{
    static const struct {
        const char *in, *host;
        int port;
    } good[] = {
        {"h:1", "h", 1},
        {"localhost:0", "localhost", 0},
        {"10.0.0.1:65535", "10.0.0.1", 65535},
        {"[::1]:2222", "::1", 2222},
        {"a-b.c_d:22", "a-b.c_d", 22},
    };
    static const struct {
        const char *in, *why;
    } bad[] = {
        {"", "no port"},
        {"localhost", "no port"},
        {"h:", "bad port"},
        {"h:x", "bad port"},
        {"h:65536", "bad port"},
        {"h:-1", "bad port"},
        {"h:000001", "bad port"},
        {":22", "no host"},
        {"[]:22", "no host"},
        {"::1:22", "several colons"},
        {"grpc://h:22", "several colons"},
        {"h h:22", "character"},
        {"a/b:1", "character"},
        {"h:1:2", "several colons"},
    };
    char host[254];
    int port;
    for (size_t i = 0; i < TRN_COUNTOF(good); i++) {
        assert_null(trn_address_parse(host, sizeof host, &port, good[i].in, strlen(good[i].in), false));
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
        char *back = trn_address_join(host, port);
        assert_string_equal(back, good[i].in);
        free(back);
    }
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++)
        refused(trn_address_parse(host, sizeof host, &port, bad[i].in, strlen(bad[i].in), false),
                     TRN_INVALID_ARGUMENT, bad[i].why);
    assert_null(trn_address_parse(host, sizeof host, &port, ":22", 3, true));
    assert_string_equal(host, "");
    char longest[400];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + 390, ":2222", 6);
    refused(trn_address_parse(host, sizeof host, &port, longest, strlen(longest), false), TRN_INVALID_ARGUMENT,
                 "characters");
}

/* ---- flags ----------------------------------------------------------------------------------------------------- */

static void flags(void **state)
{
    trn_cluster_builder b = {0};
    trn_cluster *c = NULL;
    assert_null(trn_cluster_builder_list(&b, "worker", "w0:1, w1:2"));
    assert_null(trn_cluster_builder_list(&b, "ps", "p0:1"));
    assert_null(trn_cluster_builder_own(&b, "worker", 1));
    assert_null(trn_cluster_builder_finish(&c, &b));
    assert_int_equal(c->n_tasks, 3);
    assert_string_equal(trn_cluster_task_find(c, "worker", 1)->address, "w1:2");
    assert_null(trn_cluster_task_find(c, "worker", 2));
    assert_null(trn_cluster_task_find(c, "chief", 0));
    assert_null(trn_cluster_job_find(c, "w"));

    trn_cluster *d = NULL, *e = NULL;
    assert_null(trn_cluster_with_address(&d, c, "ps", 0, "[::1]:77"));
    assert_false(trn_cluster_eq(c, d));
    assert_string_equal(trn_cluster_task_find(d, "ps", 0)->host, "::1");
    assert_null(trn_cluster_as(&e, c, "ps", 0));
    assert_true(trn_cluster_eq(c, e));
    expect_cluster(NULL, &d, "ps[0 [::1]:77] worker[0 w0:1, 1 w1:2] me=worker/1");
    expect_cluster(NULL, &e, "ps[0 p0:1] worker[0 w0:1, 1 w1:2] me=ps/0");
    refused(trn_cluster_as(&e, c, "ps", 5), TRN_INVALID_ARGUMENT, "task 5 was not defined in job \"ps\"");
    refused(trn_cluster_with_address(&e, c, "ps", 0, "x"), TRN_INVALID_ARGUMENT, "no port");
    trn_cluster_unref(trn_cluster_ref(c));
    trn_cluster_unref(c);
}

static void flag_errors(void **state)
{
    static const struct {
        const char *ps, *worker, *job;
        int64_t task;
        const char *why;
    } rows[] = {
        {"p:1", "w:1,p:1", "ps", 0, "address 'p:1' is given twice: for /job:ps/task:0 and for /job:worker/task:1"},
        {"p:1", "w:1", "ps", 1, "task 1 was not defined in job \"ps\", which has 1 task"},
        {"p:1", "w:1", "chief", 0, "job \"chief\" was not defined in cluster, which has ps, worker"},
        {"p:1", "w:1", "ps", -1, "task index -1 is out of range"},
        {"p:1", "w:1", "p s", 0, "'p s' cannot be the name of a job"},
        {"p:1", "w:1", NULL, 0, "which job"},
        {"p:1,", "w:1", "ps", 0, "the address of task 1 is empty"},
        {"", "w:1", "ps", 0, "the address of task 0 is empty"},
        {"p", "w:1", "ps", 0, "address 'p' has no port: host:port is expected | /job:ps/task:0"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        trn_cluster_builder b = {0};
        trn_cluster *c = NULL;
        trn_err err = trn_cluster_builder_list(&b, "ps", rows[i].ps);
        if (!err)
            err = trn_cluster_builder_list(&b, "worker", rows[i].worker);
        if (!err)
            err = trn_cluster_builder_own(&b, rows[i].job, rows[i].task);
        if (!err)
            err = trn_cluster_builder_finish(&c, &b);
        refused(err, TRN_INVALID_ARGUMENT, rows[i].why);
        assert_null(c);
        trn_cluster_builder_fini(&b);
    }
    trn_cluster_builder b = {0};
    trn_cluster *c = NULL;
    assert_null(trn_cluster_builder_add(&b, "ps", 3, "a:1"));
    assert_null(trn_cluster_builder_add(&b, "ps", 3, "b:1"));
    refused(trn_cluster_builder_finish(&c, &b), TRN_INVALID_ARGUMENT, "/job:ps/task:3 is given twice");
    assert_null(trn_cluster_builder_list(&b, "local", "localhost:0,localhost:0")); /* each picks its own port */
    assert_null(trn_cluster_builder_own(&b, NULL, 1));
    expect_cluster(trn_cluster_builder_finish(&c, &b), &c, "local[0 localhost:0, 1 localhost:0] me=local/1");
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void json(void **state)
{
    static const struct {
        const char *in, *out;
    } good[] = {
        {"{}", "nobody"},
        {"{\"ps\":[\"a:1\",\"b:2\"]}", "ps[0 a:1, 1 b:2]"},
        {"{\"worker\":{\"7\":\"c:1\",\"0\":\"d:1\"},\"ps\":[\"a:1\"]}", "ps[0 a:1] worker[0 d:1, 7 c:1]"},
        {"{\"ps\":[]}", "nobody"},
        {"{\"w\":[\"a:1\",\"a:2\",\"a:3\",\"a:4\",\"a:5\",\"a:6\",\"a:7\",\"a:8\",\"a:9\"]}",
         "w[0 a:1, 1 a:2, 2 a:3, 3 a:4, 4 a:5, 5 a:6, 6 a:7, 7 a:8, … 9 tasks]"},
    };
    static const struct {
        const char *in, *why;
    } bad[] = {
        {"", "not valid JSON"},
        {"{", "not valid JSON: line 1"},
        {"[]", "is a list; an object is expected"},
        {"{\"ps\":\"a:1\"}", "job 'ps' is a string"},
        {"{\"ps\":[1]}", "job 'ps', task 0: the address is a number"},
        {"{\"ps\":{\"x\":\"a:1\"}}", "'x' is not a task's number"},
        {"{\"ps\":{\"-1\":\"a:1\"}}", "'-1' is not a task's number"},
        {"{\"ps\":{\"2147483648\":\"a:1\"}}", "task 2147483648"},
        {"{\"ps\":{\"0\":null}}", "the address is null"},
        {"{\"ps\":{\"0\":\"a:1\",\"0\":\"b:1\"}}", "duplicate"},
        {"{\"p/s\":[\"a:1\"]}", "name of a job"},
        {"{\"ps\":{\"1\":\"a:1\",\"01\":\"b:1\"}}", "/job:ps/task:1 is given twice"},
        {"{\"ps\":[\"a:1\",\"a:1\"]}", "given twice"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(good); i++) {
        trn_cluster *c = NULL;
        trn_err err = trn_cluster_from_json(&c, good[i].in, strlen(good[i].in));
        expect_cluster(err, &c, good[i].out);
    }
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_cluster *c = NULL;
        refused(trn_cluster_from_json(&c, bad[i].in, strlen(bad[i].in)), TRN_INVALID_ARGUMENT, bad[i].why);
        assert_null(c);
    }
    /* Deep nesting ends in an error, not on the stack. */
    size_t n = 1 << 20;
    char *deep = malloc(n);
    memset(deep, '[', n);
    trn_cluster *c = NULL;
    refused(trn_cluster_from_json(&c, deep, n), TRN_INVALID_ARGUMENT, "not valid JSON");
    free(deep);
}

#define CLUSTER "\"cluster\":{\"ps\":[\"a:1\"],\"worker\":[\"b:1\",\"b:2\"]}"

static void tf_config(void **state)
{
    static const struct {
        const char *in, *out;
    } good[] = {
        {"{" CLUSTER ",\"task\":{\"type\":\"worker\",\"index\":1}}", "ps[0 a:1] worker[0 b:1, 1 b:2] me=worker/1"},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\",\"index\":\"0\"},\"environment\":\"cloud\"}",
         "ps[0 a:1] worker[0 b:1, 1 b:2] me=ps/0"},
        {"{\"cluster\":{\"master\":[\"m:1\"]},\"task\":{\"type\":\"master\",\"index\":0}}",
         "master[0 m:1] me=master/0"},
        {"{\"cluster\":{\"chief\":[\"m:1\"],\"evaluator\":[\"e:1\"]},\"task\":{\"type\":\"evaluator\",\"index\":0}}",
         "chief[0 m:1] evaluator[0 e:1] me=evaluator/0"},
    };
    static const struct {
        const char *in, *why;
    } bad[] = {
        {"nonsense", "TF_CONFIG is not valid JSON"},
        {"{}", "no \"cluster\""},
        {"{\"cluster\":[]}", "\"cluster\" is a list"},
        {"{" CLUSTER "}", "no \"task\""},
        {"{" CLUSTER ",\"task\":3}", "\"task\" is a number"},
        {"{" CLUSTER ",\"task\":{}}", "no \"type\""},
        {"{" CLUSTER ",\"task\":{\"type\":3,\"index\":0}}", "a bad \"type\""},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\"}}", "no \"index\""},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\",\"index\":\"x\"}}", "a bad \"index\""},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\",\"index\":0.5}}", "a bad \"index\""},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\",\"index\":-1}}", "out of range"},
        {"{" CLUSTER ",\"task\":{\"type\":\"ps\",\"index\":1}}", "task 1 was not defined in job \"ps\""},
        {"{" CLUSTER ",\"task\":{\"type\":\"chief\",\"index\":0}}", "job \"chief\" was not defined"},
        {"{" CLUSTER ",\"task\":{\"type\":\"evaluator\",\"index\":0}}", "the evaluator is no member"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(good); i++) {
        trn_cluster *c = NULL;
        trn_err err = trn_cluster_from_tf_config(&c, good[i].in, strlen(good[i].in));
        expect_cluster(err, &c, good[i].out);
    }
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_cluster *c = NULL;
        refused(trn_cluster_from_tf_config(&c, bad[i].in, strlen(bad[i].in)), TRN_INVALID_ARGUMENT, bad[i].why);
        assert_null(c);
    }
}

/* ---- protobuf -------------------------------------------------------------------------------------------------- */

static void cluster_def(void **state)
{
    const char *text = "{\"ps\":[\"a:1\"],\"worker\":{\"7\":\"c:1\",\"0\":\"d:1\"}}";
    trn_cluster *c = NULL, *d = NULL;
    assert_null(trn_cluster_from_json(&c, text, strlen(text)));
    trn_sb bytes = {0};
    trn_cluster_to_def(&bytes, c);
    assert_null(trn_cluster_from_def(&d, bytes.p, bytes.n));
    assert_true(trn_cluster_eq(c, d));
    trn_cluster_unref(c);
    trn_cluster_unref(d);
    /* Cut anywhere it is an error or a smaller cluster, never a crash. */
    for (size_t n = 0; n < bytes.n; n++) {
        trn_err err = trn_cluster_from_def(&d, bytes.p, n);
        if (err)
            trn_err_free(err);
        else
            trn_cluster_unref(d);
    }
    trn_sb_fini(&bytes);
    /* As TensorFlow takes them: one address twice, an empty host. */
    trn_cluster_builder b = {.lenient = true};
    assert_null(trn_cluster_builder_add(&b, "a", 0, ":22"));
    assert_null(trn_cluster_builder_add(&b, "b", 0, "localhost:22"));
    trn_log_set_level(TRN_LOG_OFF);
    expect_cluster(trn_cluster_builder_finish(&c, &b), &c, "a[0 localhost:22] b[0 localhost:22]");
    trn_log_set_level(TRN_LOG_INFO);
}

static const char server_text[] =
    "# a comment\n"
    "cluster {\n  job { name: \"ps\" tasks { key: 0 value: \"a:1\" } }\n"
    "  job < name: 'worker', tasks: { key: 1; value: \"b\" \":2\" } >\n}\n"
    "job_name: \"work\\x65r\"\ntask_index: 0x1\n"
    "default_session_config {\n  device_count { key: \"CPU\" value: 3 }\n  device_count { key: \"GPU\" value: 9 }\n"
    "  intra_op_parallelism_threads: 2\n  inter_op_parallelism_threads: -1\n  gpu_options { "
    "per_process_gpu_memory_fraction: 0.5 }\n"
    "  device_filters: [\"/job:ps\", '/job:worker/task:1']\n  allow_soft_placement: true\n"
    "  graph_options { optimizer_options { opt_level: -1 } rewrite_options { a: [1, {b: 2}] } }\n"
    "  brand_new_option { deep < er: 1.5e3f > } [some.extension/x] { y: 1 }\n}\n"
    "protocol: \"grpc\"\nport: 2223\n";

static void check_server_def(const void *p, size_t n)
{
    trn_server_def d;
    trn_err err = trn_server_def_read(&d, p, n);
    if (err)
        fail_msg("%s", trn_err_msg(err));
    char *t = text_of(d.cluster);
    assert_string_equal(t, "ps[0 a:1] worker[1 b:2] me=worker/1");
    free(t);
    assert_int_equal(d.port, 2223);
    assert_int_equal(d.n_cpu_devices, 3);
    assert_int_equal(d.intra_threads, 2);
    assert_int_equal(d.inter_threads, 1);
    Tensorflow__ConfigProto *c = tensorflow__config_proto__unpack(NULL, d.session_config_len, d.session_config);
    assert_non_null(c);
    assert_true(c->allow_soft_placement);
    assert_int_equal(c->n_device_filters, 2);
    assert_string_equal(c->device_filters[1], "/job:worker/task:1");
    assert_int_equal(c->graph_options->optimizer_options->opt_level, -1);
    tensorflow__config_proto__free_unpacked(c, NULL);
    trn_server_def_fini(&d);
}

static void server_def(void **state)
{
    check_server_def(server_text, sizeof server_text - 1);
    /* The same in binary. */
    Tensorflow__ServerDef s = TENSORFLOW__SERVER_DEF__INIT;
    Tensorflow__ClusterDef c = TENSORFLOW__CLUSTER_DEF__INIT;
    Tensorflow__JobDef ps = TENSORFLOW__JOB_DEF__INIT, worker = TENSORFLOW__JOB_DEF__INIT, *jobs[] = {&ps, &worker};
    Tensorflow__JobDef__TasksEntry t0 = TENSORFLOW__JOB_DEF__TASKS_ENTRY__INIT, t1 = t0, *e0[] = {&t0}, *e1[] = {&t1};
    Tensorflow__ConfigProto cfg = TENSORFLOW__CONFIG_PROTO__INIT;
    Tensorflow__ConfigProto__DeviceCountEntry n = TENSORFLOW__CONFIG_PROTO__DEVICE_COUNT_ENTRY__INIT, *counts[] = {&n};
    Tensorflow__GraphOptions go = TENSORFLOW__GRAPH_OPTIONS__INIT;
    Tensorflow__OptimizerOptions oo = TENSORFLOW__OPTIMIZER_OPTIONS__INIT;
    char *filters[] = {"/job:ps", "/job:worker/task:1"};
    t0.value = "a:1", t1.key = 1, t1.value = "b:2";
    ps.name = "ps", ps.n_tasks = 1, ps.tasks = e0;
    worker.name = "worker", worker.n_tasks = 1, worker.tasks = e1;
    c.n_job = 2, c.job = jobs;
    n.key = "CPU", n.value = 3;
    cfg.n_device_count = 1, cfg.device_count = counts, cfg.intra_op_parallelism_threads = 2,
    cfg.inter_op_parallelism_threads = -1;
    cfg.n_device_filters = 2, cfg.device_filters = filters, cfg.allow_soft_placement = 1, cfg.graph_options = &go;
    go.optimizer_options = &oo, oo.opt_level = -1;
    s.cluster = &c, s.job_name = "worker", s.task_index = 1, s.default_session_config = &cfg, s.port = 2223;
    uint8_t bytes[1024];
    size_t len = tensorflow__server_def__pack(&s, bytes);
    check_server_def(bytes, len);
    for (size_t cut = 0; cut < len; cut++) {
        trn_server_def d;
        trn_err err = trn_server_def_read(&d, bytes, cut);
        if (err)
            trn_err_free(err);
        else
            trn_server_def_fini(&d);
    }
}

static void server_def_errors(void **state)
{
#define PS "cluster { job { name: \"ps\" tasks { key: 0 value: \"a:1\" } } } job_name: \"ps\" "
    static const struct {
        const char *in;
        trn_code code;
        const char *why;
    } bad[] = {
        {"", TRN_INTERNAL, "which job"},
        {"cluster { job { name: \"ps\" tasks { key: 0 value: \"a\" } } } job_name: \"ps\"", TRN_INVALID_ARGUMENT,
         "has no port"},
        {PS "task_index: 1", TRN_INTERNAL, "task 1 was not defined in job \"ps\""},
        {"cluster { job { name: \"ps\" tasks { key: 0 value: \"a:1\" } } } job_name: \"x\"", TRN_INTERNAL, "job \"x\" was not defined in cluster"},
        {PS "protocol: \"grpc+mpi\"", TRN_NOT_FOUND, "protocol 'grpc+mpi'"},
        {PS "replica: 1", TRN_UNIMPLEMENTED, "replica 1"},
        {PS "port: 70000", TRN_INVALID_ARGUMENT, "port is 70000"},
        {PS "default_session_config { device_count { key: \"CPU\" value: 2000 } }", TRN_INVALID_ARGUMENT,
         "device_count"},
        {PS "\n\ntask_index: nine", TRN_INVALID_ARGUMENT, "line 3: task_index: 'nine' is not an integer"},
        {PS "task_index: 2147483648", TRN_INVALID_ARGUMENT, "out of range"},
        {PS "task_index { }", TRN_INVALID_ARGUMENT, "unexpected '{'"},
        {PS "task_index 3", TRN_INVALID_ARGUMENT, "':' or '{' is expected after 'task_index'"},
        {PS "task_index: [1, 2]", TRN_INVALID_ARGUMENT, "one value"},
        {PS "protocol: \"grpc", TRN_INVALID_ARGUMENT, "a string has no end"},
        {PS "protocol: grpc", TRN_INVALID_ARGUMENT, "a string in quotes"},
        {PS "protocol: \"\\q\"", TRN_INVALID_ARGUMENT, "bad escape"},
        {PS "default_session_config { allow_soft_placement: maybe }", TRN_INVALID_ARGUMENT, "neither true nor false"},
        {"\ncluster {", TRN_INVALID_ARGUMENT, "line 2: '{' without '}'"},
        {"cluster: 3", TRN_INVALID_ARGUMENT, "a message in { }"},
        {PS "}", TRN_INVALID_ARGUMENT, "unexpected '}'"},
        {PS "x", TRN_INVALID_ARGUMENT, "':' or '{' is expected"},
        {PS "\nprotocol: \"grpc\" protocol: \"grpc\"", TRN_INVALID_ARGUMENT, "line 2: protocol: takes one value and has one already"},
        {PS "default_session_config { } default_session_config { }", TRN_INVALID_ARGUMENT, "has one already"},
        {"cluster { job { name: \"ps\" } job { name: \"ps\" } }", TRN_INVALID_ARGUMENT, "job 'ps' is defined twice"},
        {"\x12\x02", TRN_INVALID_ARGUMENT, "beyond the end"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_server_def d = {.port = -7};
        refused(trn_server_def_read(&d, bad[i].in, strlen(bad[i].in)), bad[i].code, bad[i].why);
        assert_int_equal(d.port, -7);
    }
    for (int list = 0; list < 2; list++) {
        trn_sb s = {0};
        trn_sb_adds(&s, "x: ");
        for (int i = 0; i < 100000; i++)
            trn_sb_adds(&s, list ? "[" : "{ x ");
        trn_server_def d;
        refused(trn_server_def_read(&d, s.p, s.n), TRN_INVALID_ARGUMENT, "levels of nesting");
        trn_sb_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),   cmocka_unit_test(flags),
        cmocka_unit_test(flag_errors), cmocka_unit_test(json),
        cmocka_unit_test(tf_config),   cmocka_unit_test(cluster_def),
        cmocka_unit_test(server_def),  cmocka_unit_test(server_def_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
