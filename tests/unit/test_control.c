/* Structural ops through the executor: what they say, print, keep and let through. Texts are TensorFlow's. */
#include "exec_util.h"

#include <math.h>
#include <unistd.h>

#include "ops/control.h"

static int setup(void **state)
{
    graph_util_setup(state);
    return exec_setup(state);
}

static const char *text_of(trn_sb *sb, trn_tensor *t, int64_t max)
{
    sb->n = 0;
    trn_summarize(sb, t, max);
    trn_tensor_unref(t);
    return sb->n ? sb->p : "";
}

static trn_tensor *range(trn_dtype dt, int rank, const int64_t *dims, float by)
{
    trn_shape s = {.rank = rank};
    memcpy(s.dim, dims, (size_t)rank * sizeof *dims);
    trn_tensor *t;
    assert_ok(trn_tensor_new(&t, dt, &s));
    for (int64_t i = 0; i < t->count; i++) {
        if (dt == TRN_FLOAT)
            TRN_DATA_MUT(t, float)[i] = (float)i / by;
        else
            TRN_DATA_MUT(t, int32_t)[i] = (int32_t)i;
    }
    return t;
}
#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}

static void summaries(void **state)
{
    trn_sb sb = {0};
    assert_string_equal(text_of(&sb, range(TRN_FLOAT, DIMS(2, 3), 3), 3), "[0 0.333333343 0.666666687]...");
    assert_string_equal(text_of(&sb, range(TRN_FLOAT, DIMS(2, 3), 3), 4), "[0 0.333333343 0.666666687][1...]...");
    assert_string_equal(text_of(&sb, range(TRN_FLOAT, DIMS(2, 3), 1), 100), "[0 1 2][3 4 5]");
    assert_string_equal(text_of(&sb, range(TRN_INT32, DIMS(2, 3, 4), 1), 7), "[[0 1 2 3][4 5 6...]]...");
    assert_string_equal(text_of(&sb, range(TRN_INT32, DIMS(2, 3, 4), 1), -1),
                        "[[0 1 2 3][4 5 6 7][8 9 10 11]][[12 13 14 15][16 17 18 19][20 21 22 23]]");
    assert_string_equal(text_of(&sb, range(TRN_INT32, DIMS(10), 1), 3), "0 1 2...");
    assert_string_equal(text_of(&sb, range(TRN_FLOAT, DIMS(2, 0), 1), 3), "");
    assert_string_equal(text_of(&sb, trn_tensor_str("a\001\303\251\n\"q'", 8), 3), "a\\001\303\251\\n\\\"q\\'");
    assert_string_equal(text_of(&sb, trn_tensor_bool(true), 3), "1");
    assert_string_equal(text_of(&sb, trn_tensor_f32(1e10f), 3), "1e+10");
    assert_string_equal(text_of(&sb, trn_tensor_f32(0.1f), 3), "0.1");
    assert_string_equal(text_of(&sb, trn_tensor_f64(1. / 3), 3), "0.33333333333333331");
    assert_string_equal(text_of(&sb, trn_tensor_f64(1e-20), 3), "1e-20");
    assert_string_equal(text_of(&sb, trn_tensor_f32(NAN), 3), "nan");
    assert_string_equal(text_of(&sb, trn_tensor_f32(-INFINITY), 3), "-inf");
    trn_sb_fini(&sb);
}

#define A_TYPES(nm, n_, ...) ((trn_attr){.name = nm, .kind = TRN_ATTR_TYPE, .is_list = true, .n = n_, .list = (trn_attr_val[]){__VA_ARGS__}})

/* Runs a graph of one plan and gives its error. */
static trn_err run_graph(trn_graph *g)
{
    trn_plan *p = plan_of(g);
    trn_err err = run_opts(p, (trn_run_opts){0});
    trn_plan_unref(p);
    return err;
}

static void assertions(void **state)
{
    for (int ok = 0; ok < 2; ok++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge c = konst_of(g, "c", trn_tensor_bool(ok)), x = konst_of(g, "x", trn_tensor_str("x is", 4));
        trn_edge y = konst_of(g, "y", range(TRN_FLOAT, DIMS(5), 1));
        add(g, "Assert", "as", ATTRS(A_TYPES("T", 2, {.type = TRN_STRING}, {.type = TRN_FLOAT})), INS(c, x, y));
        if (ok)
            assert_ok(run_graph(g));
        else
            assert_fails(TRN_INVALID_ARGUMENT, run_graph(g), "assertion failed: [x is] [0 1 2...]\n\t [[{{node as}}]]");
    }
}

static void placeholders(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    add(g, "Placeholder", "x", ATTRS(A_TYPE("dtype", TRN_FLOAT)), NO_INS);
    assert_fails(TRN_INVALID_ARGUMENT, run_graph(g), "You must feed a value for placeholder tensor 'x' with dtype float\n");
    g = trn_graph_new(NULL);
    trn_shape s = trn_shape_of(2, (int64_t)-1, (int64_t)3);
    add(g, "PlaceholderV2", "x", ATTRS(A_TYPE("dtype", TRN_FLOAT), ((trn_attr){.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &s})), NO_INS);
    assert_fails(TRN_INVALID_ARGUMENT, run_graph(g), "with dtype float and shape [?,3]");
}

static void check_numerics(void **state)
{
    static const struct {
        const char *op, *says;
        float v[4];
    } rows[] = {
        {"CheckNumerics", "m : Tensor had NaN values", {1, NAN}},
        {"CheckNumericsV2", "m : Tensor had NaN values", {1, NAN}},
        {"CheckNumerics", "m : Tensor had Inf values", {-INFINITY, 1}},
        {"CheckNumericsV2", "m : Tensor had +Inf values", {INFINITY, 1}},
        {"CheckNumerics", "m : Tensor had Inf and NaN values", {NAN, -INFINITY}},
        {"CheckNumericsV2", "m : Tensor had -Inf and NaN values", {NAN, -INFINITY}},
        {"CheckNumericsV2", "m : Tensor had -Inf, +Inf, and NaN values", {NAN, -INFINITY, INFINITY}},
        {"CheckNumerics", NULL, {1, 2, 3e38f, -3e38f}},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge x = konst_of(g, "x", trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){4}, rows[i].v));
        add(g, rows[i].op, "check", ATTRS(F32, A_STR("message", "m")), INS(x));
        trn_err err = run_graph(g);
        if (!rows[i].says) {
            assert_ok(err);
        } else {
            assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
            assert_non_null(strstr(trn_err_msg(err), rows[i].says));
            trn_err_free(err);
        }
    }
}

/* What a graph writes to stderr. */
static char *stderr_of(trn_plan *p, int times)
{
    static char buf[4096];
    int fds[2], old = dup(2);
    fflush(stderr);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], 2);
    trn_err err = TRN_OK;
    for (int i = 0; i < times && !err; i++)
        err = run_opts(p, (trn_run_opts){0});
    dup2(old, 2);
    close(old);
    close(fds[1]);
    ssize_t n = read(fds[0], buf, sizeof buf - 1);
    close(fds[0]);
    assert_ok(err);
    buf[n > 0 ? n : 0] = 0;
    return buf;
}

static void printing(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge x = konst(g, "x", 1.5f), y = konst_of(g, "y", range(TRN_INT32, DIMS(2, 2), 1));
    add(g, "Print", "p", ATTRS(F32, A_TYPES("U", 2, {.type = TRN_FLOAT}, {.type = TRN_INT32}), A_STR("message", "at: "), A_INT("first_n", 2)),
        INS(x, x, y));
    trn_plan *p = plan_of(g);
    assert_string_equal(stderr_of(p, 3), "at: [1.5][[0 1][2...]...]\nat: [1.5][[0 1][2...]...]\n");
    trn_plan_unref(p);
    g = trn_graph_new(NULL);
    add(g, "PrintV2", "p", NO_ATTRS, INS(konst_of(g, "s", trn_tensor_str("hello", 5))));
    p = plan_of(g);
    assert_string_equal(stderr_of(p, 1), "hello\n");
    trn_plan_unref(p);
    g = trn_graph_new(NULL);
    add(g, "PrintV2", "p", ATTRS(A_STR("output_stream", "nowhere")), INS(konst_of(g, "s", trn_tensor_str("hello", 5))));
    assert_fails(TRN_INVALID_ARGUMENT, run_graph(g), "Unknown output stream: nowhere");
}

static void files_stay_inside(void **state)
{
    char dir[] = "/tmp/trn_control_XXXXXX", path[64], stream[96];
    assert_non_null(mkdtemp(dir));
    const char *allow[] = {dir};
    trn_exec_env old = env;
    env.allow_paths = allow;
    env.n_allow_paths = 1;
    static const struct {
        const char *tail;
        bool ok;
    } rows[] = {{"/f", true}, {"/../f", false}, {"x/f", false}, {"/no/../f", false}, {"/./f", true}};
    for (size_t i = 0; i < 2 * TRN_COUNTOF(rows); i++) { /* a URI is looked at as the path that is opened */
        const bool uri = i % 2;
        snprintf(stream, sizeof stream, "file://%s%s%s", uri ? "file://host" : "", dir, rows[i / 2].tail);
        trn_graph *g = trn_graph_new(NULL);
        add(g, "PrintV2", "p", ATTRS(A_STR("output_stream", stream)), INS(konst_of(g, "s", trn_tensor_str("hello", 5))));
        if (rows[i / 2].ok)
            assert_ok(run_graph(g));
        else
            assert_fails(TRN_PERMISSION_DENIED, run_graph(g), "--allow-path");
    }
    trn_graph *other = trn_graph_new(NULL);
    add(other, "PrintV2", "p", ATTRS(A_STR("output_stream", "file://gs://bucket/f")), INS(konst_of(other, "s", trn_tensor_str("hello", 5))));
    assert_fails(TRN_UNIMPLEMENTED, run_graph(other), "File system scheme 'gs'");
    snprintf(path, sizeof path, "%s/f", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char line[64] = "";
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "hello\n");
    for (int i = 1; i < 4; i++)
        assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    unlink(path);
    rmdir(dir);
    env = old;
}

static void session_tensors(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, add(g, "GetSessionHandle", "h", ATTRS(F32), INS(konst(g, "x", 42))));
    trn_plan *p = plan_of(g);
    trn_value r[1] = {0};
    assert_ok(run_opts(p, (trn_run_opts){.n_rets = 1, .rets = r}));
    trn_plan_unref(p);
    size_t n;
    const char *h = trn_tensor_str_at(r[0].t, 0, &n);
    assert_true(n > 2 && memcmp(h, "h;", 2) == 0);
    for (int i = 0; i < 2; i++) {
        g = trn_graph_new(NULL);
        trn_edge hc = konst_of(g, "hc", trn_tensor_ref(r[0].t));
        trn_edge get = add(g, "GetSessionTensor", "get", ATTRS(A_TYPE("dtype", TRN_FLOAT)), INS(hc));
        trn_edge del = add(g, "DeleteSessionTensor", "del", NO_ATTRS, INS(hc));
        ctl(g, del, get);
        ret(g, 0, get);
        p = plan_of(g);
        float v = 0;
        if (i == 0) {
            assert_ok(run_f(p, &v, 1));
            assert_true(v == 42);
        } else {
            assert_fails(TRN_INVALID_ARGUMENT, run_f(p, &v, 1), "is not in the session store");
        }
        trn_plan_unref(p);
    }
    trn_tensor_unref(r[0].t);
}

static void identities(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge x = konst(g, "x", 3), s = konst_of(g, "s", trn_tensor_str("s", 1));
    trn_edge n = add(g, "IdentityN", "n", ATTRS(A_TYPES("T", 2, {.type = TRN_FLOAT}, {.type = TRN_STRING})), INS(x, s));
    trn_edge a = add(g, "StopGradient", "a", ATTRS(F32), INS(n));
    a = add(g, "PreventGradient", "b", ATTRS(F32), INS(a));
    a = add(g, "Snapshot", "c", ATTRS(F32), INS(a));
    trn_shape any = trn_shape_unknown();
    a = add(g, "PlaceholderWithDefault", "d", ATTRS(A_TYPE("dtype", TRN_FLOAT), ((trn_attr){.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &any})),
            INS(a));
    ret(g, 0, a);
    ret(g, 1, slot(n, 1));
    trn_plan *p = plan_of(g);
    trn_value r[2] = {0};
    assert_ok(run_opts(p, (trn_run_opts){.n_rets = 2, .rets = r}));
    assert_true(TRN_DATA(r[0].t, float)[0] == 3);
    assert_int_equal(r[1].t->dtype, TRN_STRING);
    trn_tensor_unref(r[0].t);
    trn_tensor_unref(r[1].t);
    trn_plan_unref(p);
}

#define T(f) cmocka_unit_test(f)
int main(void)
{
    const struct CMUnitTest tests[] = {T(summaries),         T(assertions),       T(placeholders), T(check_numerics), T(printing),
                                       T(files_stay_inside), T(session_tensors), T(identities)};
    return cmocka_run_group_tests(tests, setup, exec_teardown);
}
