/* tfdbg's watches: where copies and debug ops go, who waits for them, what is refused; the files of dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "ckpt/dump.h"
#include "ckpt/file.h"
#include "graph/graph_priv.h"
#include "graph/watch.h"
#include "proto/pbw.h"

#define PS "/job:ps/replica:0/task:0/device:CPU:0"

static void ok(trn_err err)
{
    if (err)
        fail_msg("%s", trn_err_msg(err));
}

static trn_edge node(trn_graph *g, const char *op, const char *name, const char *device, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    trn_gnode *nd;
    ok(trn_graph_add(&nd, g, op, name, device, attrs, n_attrs, in, n_in));
    return (trn_edge){nd->id, 0};
}

#define NODE(g, op, name, device, n_in, in, ...) node(g, op, name, device, (const trn_attr[]){__VA_ARGS__}, (int)(sizeof((const trn_attr[]){__VA_ARGS__}) / sizeof(trn_attr)), in, n_in)

/* v → a → b, c; a loop that b enters. */
static trn_graph *example(void)
{
    trn_graph *g = trn_graph_new(NULL);
    const trn_attr f32 = trn_attr__type("T", TRN_FLOAT);
    const trn_shape s = trn_shape_vector(2);
    trn_edge v = NODE(g, "VariableV2", "v", PS, 0, NULL, trn_attr__type("dtype", TRN_FLOAT), {.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &s});
    trn_edge a = NODE(g, "Identity", "a", PS, 1, &v, f32);
    trn_edge b = NODE(g, "Neg", "b", PS, 1, &a, f32);
    trn_edge both[] = {a, b};
    (void)NODE(g, "AddV2", "c", "", 2, both, f32);
    trn_edge e = NODE(g, "Enter", "e", PS, 1, &b, f32, trn_attr__str("frame_name", "f"), trn_attr__int("parallel_iterations", 10));
    (void)NODE(g, "Exit", "x", PS, 1, &e, f32);
    return g;
}

static trn_gnode *get(const trn_graph *g, const char *name) { return trn_graph_find(g, name, strlen(name)); }

static bool waits(const trn_graph *g, const char *who, const char *whom)
{
    const trn_gnode *a = get(g, who), *b = get(g, whom);
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < a->n_ctl; i++)
        if (a->ctl[i] == b->id)
            return true;
    return false;
}

#define WATCH(node_, slot_, tolerate_, op, url) \
    (trn_tensor_watch) { .node = node_, .slot = slot_, .n_ops = 1, .n_urls = 1, .ops = (const char *[]){op}, .urls = (const char *[]){url}, .tolerate = tolerate_ }

static trn_err watch(trn_graph *g, trn_tensor_watch *v, int n)
{
    trn_watches w = {.n = n, .v = v};
    return trn_graph_watch(g, &w, "/job:worker/replica:0/task:0/device:CPU:0");
}

static void places(void **state)
{
    trn_graph *g = example();
    trn_tensor_watch w[] = {WATCH("v", 0, false, "DebugIdentity", "file:///d"), WATCH("a", 0, false, "DebugNumericSummary( lower_bound=-2.5 ;mute_if_healthy=T)", "file:///d"),
                            WATCH("e", 0, false, "DebugIdentity", "file:///d"), WATCH("c", 0, false, "DebugIdentity", "file:///d"), WATCH("c", 1, false, "DebugIdentity", "grpc://h:1"),
                            WATCH("nobody", 0, false, "DebugIdentity", "grpc://h:1")};
    ok(watch(g, w, TRN_COUNTOF(w)));
    assert_int_equal(g->n, 6 + 8);
    const trn_gnode *a = get(g, "__dbg_a:0_0_DebugNumericSummary"), *v = get(g, "__dbg_v:0_0_DebugIdentity"), *c = get(g, "__dbg_c:0_0_DebugIdentity");
    assert_string_equal(a->n.device, PS);
    assert_string_equal(trn_attr_str(&a->n, "device_name"), PS);
    assert_string_equal(trn_attr_str(&a->n, "tensor_name"), "a:0");
    assert_true(trn_attr_float(&a->n, "lower_bound") == -2.5f);
    assert_true(trn_attr_bool(&a->n, "mute_if_healthy"));
    assert_int_equal(a->in[0].node, get(g, "__copy_a_0")->id);
    assert_int_equal(get(g, "__copy_a_0")->in[0].node, get(g, "a")->id);
    assert_int_equal(trn_attr_shape(&v->n, TRN_WATCHED_SHAPE)->dim[0], 2);
    assert_string_equal(c->n.device, "/job:worker/replica:0/task:0/device:CPU:0");
    assert_true(waits(g, "a", "__dbg_v:0_0_DebugIdentity"));
    assert_true(waits(g, "b", "__dbg_a:0_0_DebugNumericSummary"));
    assert_true(waits(g, "c", "__dbg_a:0_0_DebugNumericSummary"));
    assert_false(waits(g, "x", "__dbg_e:0_0_DebugIdentity"));
    assert_int_equal(get(g, "c")->in[0].node, get(g, "a")->id); /* nobody takes another input than before */
    assert_int_equal(trn_attr_int(&get(g, "e")->n, "parallel_iterations"), 1);
    trn_graph_free(g);
}

static void nothing(void **state)
{
    trn_graph *g = example();
    trn_tensor_watch empty = {.node = "a"}, star = WATCH("*", -1, false, "DebugIdentity", "file:///d");
    ok(watch(g, &empty, 0));
    assert_int_equal(trn_attr_int(&get(g, "e")->n, "parallel_iterations"), 10);
    ok(watch(g, &empty, 1));
    ok(watch(g, &star, 1)); /* as TensorFlow */
    assert_int_equal(g->n, 6);
    trn_tensor_watch both[] = {star, WATCH("a", 0, false, "DebugNanCount", "file:///d")};
    ok(watch(g, both, 2));
    assert_int_equal(g->n, 6 + 12);
    assert_non_null(get(g, "__dbg_a:0_0_DebugNanCount"));
    assert_non_null(get(g, "__dbg_b:0_0_DebugIdentity"));
    trn_graph_free(g);
}

static void refused(void **state)
{
    const struct {
        trn_tensor_watch w;
        trn_code code;
        const char *why;
    } cases[] = {
        {WATCH("*", 0, false, "DebugIdentity", "file:///d"), TRN_FAILED_PRECONDITION, "\"*\" has output_slot 0"},
        {WATCH("a", -2, false, "DebugIdentity", "file:///d"), TRN_FAILED_PRECONDITION, "node a has no output -2"},
        {WATCH("a", 0, true, "DebugIdentity", "grpc://h:1"), TRN_UNIMPLEMENTED, "a:0"},
        {WATCH("a", 0, false, "NoSuchOp", "file:///d"), TRN_FAILED_PRECONDITION, "NoSuchOp"},
        {WATCH("a", 0, false, "Identity", "file:///d"), TRN_FAILED_PRECONDITION, "no debug op Identity"},
        {WATCH("a", 0, false, "DebugNanCount(x=1;y=2)", "file:///d"), TRN_FAILED_PRECONDITION, "2 attrs are not the debug op's in __dbg_a:0_0_DebugNanCount: x, y"},
        {WATCH("a", 0, false, "DebugNanCount(gated_grpc=so)", "file:///d"), TRN_FAILED_PRECONDITION, "so"},
        {WATCH("a", 0, false, "DebugNanCount(debug_urls=so)", "file:///d"), TRN_FAILED_PRECONDITION, "debug_urls"},
        {WATCH("a", 0, false, "DebugNumericSummary(lower_bound=)", "file:///d"), TRN_FAILED_PRECONDITION, "the attrs of the debug op"},
        {WATCH("a", 0, false, "DebugNumericSummary)lower_bound=1(", "file:///d"), TRN_FAILED_PRECONDITION, "is not of the form Op or"},
        {WATCH("a", 0, false, "DebugNumericSummary(lower_bound=1;lower_bound=1)", "file:///d"), TRN_FAILED_PRECONDITION, "has two values"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        trn_graph *g = example();
        trn_tensor_watch w = cases[i].w;
        trn_err err = watch(g, &w, 1);
        if (trn_err_code(err) != cases[i].code || !strstr(trn_err_msg(err), cases[i].why))
            fail_msg("case %zu: %d %s", i, trn_err_code(err), err ? trn_err_msg(err) : "");
        trn_err_free(err);
        trn_graph_free(g);
    }
    trn_graph *g = example();
    trn_tensor_watch w = WATCH("a", 0, true, "NoSuchOp", "file:///d");
    ok(watch(g, &w, 1));
    assert_int_equal(g->n, 7); /* the copy */
    trn_graph_free(g);
}

static trn_tensor_watch many(trn_arena *a, const char *node, int slot, const char *op, int n_ops, const char *url, int n_urls)
{
    trn_tensor_watch w = {.node = node, .slot = slot, .n_ops = n_ops, .n_urls = n_urls};
    w.ops = trn_arena_alloc(a, sizeof *w.ops * (size_t)n_ops);
    w.urls = trn_arena_alloc(a, sizeof *w.urls * (size_t)n_urls);
    for (int i = 0; i < n_ops; i++)
        w.ops[i] = op;
    for (int i = 0; i < n_urls; i++)
        w.urls[i] = url;
    return w;
}

static void too_many(trn_graph *g, trn_tensor_watch *v, int n)
{
    trn_err err = watch(g, v, n);
    assert_int_equal(trn_err_code(err), TRN_RESOURCE_EXHAUSTED);
    trn_err_free(err);
    trn_graph_free(g);
}

/* Messages of a megabyte that would otherwise ask for gigabytes. */
static void small_message_large_graph(void **state)
{
    trn_arena *a = trn_arena_new();
    char *name = trn_arena_alloc(a, 1 << 20), *url = trn_arena_alloc(a, 1 << 20);
    memset(name, 'x', (1 << 20) - 1);
    memset(url, 'd', (1 << 20) - 1);
    memcpy(url, "file://", 7);
    /* A long name, or many names, for each of many folders; a long folder for each of many ops. */
    trn_tensor_watch w[] = {many(a, "a", 0, name, 1, "file:///d", 100000)};
    w[0].tolerate = true;
    too_many(example(), w, 1);
    w[0] = many(a, "a", 0, "DebugIdentity", 10000, "file:///d", 10000);
    too_many(example(), w, 1);
    w[0] = many(a, "a", 0, "DebugIdentity", 1000, url, 1);
    too_many(example(), w, 1);
    w[0] = many(a, "a", 0, "DebugIdentity", 5000000, "file:///d", 1);
    too_many(example(), w, 1);
    /* Many users of one tensor, each of which waits for all that watch it. */
    trn_graph *g = example();
    const trn_attr f32 = trn_attr__type("T", TRN_FLOAT);
    trn_edge from = {get(g, "a")->id, 0};
    for (int i = 0; i < 5000; i++) {
        char *user = trn_xasprintf("user%d", i);
        (void)NODE(g, "Neg", user, PS, 1, &from, f32);
        free(user);
    }
    w[0] = many(a, "a", 0, "DebugIdentity", 5000, "file:///d", 1);
    too_many(g, w, 1);
    /* More folders than anybody reads. */
    const char *urls[2000];
    for (int i = 0; i < 2000; i++)
        urls[i] = trn_arena_printf(a, "file:///d%d", i);
    trn_watches p = {.n = 1, .v = w};
    w[0].urls = urls;
    w[0].n_urls = 1000;
    const char **found;
    int n;
    ok(trn_watches_urls(&found, &n, a, &p));
    assert_int_equal(n, 1000);
    w[0].n_urls = 2000;
    trn_err err = trn_watches_urls(&found, &n, a, &p);
    assert_int_equal(trn_err_code(err), TRN_RESOURCE_EXHAUSTED);
    trn_err_free(err);
    trn_arena_free(a);
}

static void message(void **state)
{
    trn_arena *a = trn_arena_new();
    trn_sb w = {0}, o = {0}, key = {0}, other = {0};
    trn_pbw_str(&w, 1, "n");
    trn_pbw_varint(&w, 2, (uint64_t)-1);
    trn_pbw_str(&w, 3, "DebugIdentity");
    trn_pbw_str(&w, 4, "file:///a");
    trn_pbw_str(&w, 4, "file:///b");
    trn_pbw_varint(&w, 5, 1);
    trn_pbw_bytes(&o, 4, w.p, w.n);
    trn_pbw_bytes(&o, 4, w.p, w.n);
    trn_pbw_varint(&o, 10, 7);
    trn_pbw_varint(&o, 11, 1);
    trn_watches p;
    ok(trn_watches_parse(&p, a, o.p, o.n));
    assert_int_equal(p.n, 2);
    assert_int_equal(p.v[1].slot, -1);
    assert_int_equal(p.v[1].n_urls, 2);
    assert_true(p.v[1].tolerate && p.reset_disk && p.global_step == 7);
    int n;
    const char **urls;
    ok(trn_watches_urls(&urls, &n, a, &p));
    assert_string_equal(urls[1], "file:///b");
    assert_int_equal(n, 2);
    trn_watches_key(&key, &p);
    p.global_step = 8;
    p.v[0].slot = 0;
    trn_watches_key(&other, &p);
    assert_false(key.n == other.n && !memcmp(key.p, other.p, key.n));
    trn_err err = trn_watches_parse(&p, a, o.p, o.n - 1);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    trn_sb_fini(&w);
    trn_sb_fini(&o);
    trn_sb_fini(&key);
    trn_sb_fini(&other);
    trn_arena_free(a);
}

static void dump_files(void **state)
{
    char dir[] = "/tmp/trn_watchXXXXXX";
    assert_non_null(mkdtemp(dir));
    char *base = trn_xasprintf("%s/deep/er/n_0_DebugIdentity", dir), *uri = trn_xasprintf("file://%s", base);
    trn_sb head = {0}, rest = {0};
    trn_dump_name name = {"deep/er/n", "DebugIdentity", PS, 0};
    trn_sb_adds(&rest, "xyz");
    trn_dump_tensor_head(&head, 5, &name, rest.n);
    ok(trn_dump_write(base, 5, &head, &rest));
    ok(trn_dump_write(uri, 5, &head, &rest)); /* of the URL file://file:///tmp/… */
    free(uri);
    char **found;
    int n;
    char *pattern = trn_xasprintf("%s/deep/er/*", dir);
    ok(trn_path_glob(&found, &n, pattern));
    assert_int_equal(n, 2);
    assert_string_equal(found[0] + strlen(base), "_5");
    assert_string_equal(found[1] + strlen(base), "_5-1");
    for (int i = 0; i < n; i++) {
        unlink(found[i]);
        free(found[i]);
    }
    free(found);
    trn_err err = trn_dump_write("/proc/none/x", 5, &head, &rest);
    assert_non_null(err);
    trn_err_free(err);
    trn_sb odd = {0};
    name.device = "a\"b\\c\n";
    trn_dump_tensor_head(&odd, 5, &name, rest.n);
    static const char json[] = "{\"device\":\"a\\u0022b\\u005cc\\u000a\",\"outputSlot\":0,";
    assert_non_null(memmem(odd.p, odd.n, json, sizeof json - 1));
    trn_sb_fini(&odd);
    trn_pbr r = trn_pbr_init(head.p, head.n);
    assert_true(trn_pbr_next(&r) && r.field == 1); /* the summary behind it ends in what comes next */
    trn_sb path = {0};
    trn_dump_add_device(&path, PS);
    assert_memory_equal(path.p, "/_tfdbg_device_,job_ps,replica_0,task_0,device_CPU_0", path.n);
    assert_string_equal(trn_dump_root("FILE:///a/b"), "/a/b");
    assert_null(trn_dump_root("/a/b"));
    uint64_t t = trn_dump_now();
    for (int i = 0; i < 100; i++) {
        uint64_t later = trn_dump_now();
        assert_true(later > t);
        t = later;
    }
    trn_sb_fini(&path);
    trn_sb_fini(&head);
    trn_sb_fini(&rest);
    for (int i = 0; i < 2; i++) {
        char *d = trn_path_dir(pattern);
        rmdir(d);
        free(pattern);
        pattern = d;
    }
    rmdir(dir);
    free(pattern);
    free(base);
}

static void limit(void **state)
{
    setenv("TFDBG_DISK_BYTES_LIMIT", "100", 1);
    assert_int_equal(trn_dump_limit(), 100);
    assert_true(trn_dump_take(60));
    assert_false(trn_dump_take(40)); /* less than, as TensorFlow has it */
    assert_true(trn_dump_take(39));
    assert_true(trn_dump_take(0));
    assert_false(trn_dump_take(UINT64_MAX));
    trn_dump_reset();
    assert_true(trn_dump_take(99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(places), cmocka_unit_test(nothing), cmocka_unit_test(refused), cmocka_unit_test(small_message_large_graph), cmocka_unit_test(message), cmocka_unit_test(dump_files), cmocka_unit_test(limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
