/* Functions outside a step, datasets and iterators on our executor, with threads and without; and the streams that files come in by. */
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#include <dirent.h>

#include "ckpt/record.h"
#include "ckpt/snapshot.h"
#include "ckpt/stream.h"
#include "exec_util.h"
#include "res/iter.h"

#define ARG(name, type) "input_arg { name: '" name "' type: " type " } "
#define RET(name, type) "output_arg { name: '" name "' type: " type " } "
#define FUNC(name, sig, rest) "library { function { signature { name: '" name "' " sig "} " rest "} } "
#define IS(ret, from) "ret { key: '" ret "' value: '" from "' } "
#define L "DT_INT64"
#define T_LONG "attr { key: 'T' value { type: DT_INT64 } } "
#define FN(key, name) "attr { key: '" key "' value { func { name: '" name "' } } } "
#define TYPES(key) "attr { key: '" key "' value { list { type: DT_INT64 } } } "
#define NONE(key) "attr { key: '" key "' value { list { } } } "
#define ELEM TYPES("output_types") "attr { key: 'output_shapes' value { list { shape { unknown_rank: true } } } } "
#define LONG(name, v)                                                                                                  \
    "node { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_INT64 } } "                              \
    "attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape {} int64_val: " v " } } } } "
#define RANGE(n) LONG("r0", "0") LONG("r1", n) LONG("r2", "1") "node { name: 'range' op: 'RangeDataset' input: 'r0' input: 'r1' input: 'r2' " ELEM "} "
#define DS(name, op, in, rest) "node { name: '" name "' op: '" op "' input: '" in "' " rest ELEM "} "
#define MAP(name, in, f) DS(name, "MapDataset", in, FN("f", f) NONE("Targuments"))
#define PMAP(name, in, f, n) LONG(name "_n", n) DS(name, "ParallelMapDatasetV2", in "' input: '" name "_n", FN("f", f) NONE("Targuments"))
#define PFILTER(name, in, f, n)                                                                                        \
    LONG(name "_n", n) DS(name, "ParallelFilterDataset", in "' input: '" name "_n", FN("predicate", f) NONE("Targuments"))
#define PBATCH(name, in, size, n)                                                                                      \
    LONG(name "_s", size) LONG(name "_n", n)                                                                           \
    "node { name: '" name "_d' op: 'Const' attr { key: 'dtype' value { type: DT_BOOL } } "                             \
    "attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape {} bool_val: false } } } } "                     \
    DS(name, "ParallelBatchDataset", in "' input: '" name "_s' input: '" name "_n' input: '" name "_d", "")
#define CYCLE(name, in, f, cycle, block, n)                                                                            \
    LONG(name "_c", cycle) LONG(name "_b", block) LONG(name "_n", n)                                                   \
    DS(name, "ParallelInterleaveDatasetV3", in "' input: '" name "_c' input: '" name "_b' input: '" name "_n", FN("f", f) NONE("Targuments"))
#define PREFETCH(name, in, n) LONG(name "_n", n) DS(name, "PrefetchDataset", in "' input: '" name "_n", "")
#define ITER "node { name: 'it' op: 'IteratorV2' attr { key: 'shared_name' value { s: 'it' } } attr { key: 'container' value { s: '' } } " ELEM "} "
#define MAKE(in) ITER "node { name: 'make' op: 'MakeIterator' input: '" in "' input: 'it' } "
#define NEXT ITER "node { name: 'next' op: 'IteratorGetNext' input: 'it' " ELEM "} node { name: 'ret0' op: '_Retval' input: 'next' " T_LONG "attr { key: 'index' value { i: 0 } } } "

#define F_TWICE FUNC("twice", ARG("a", L) RET("r", L), "node_def { name: 's' op: 'AddV2' input: 'a' input: 'a' " T_LONG "} " IS("r", "s:z:0"))
#define F_COUNT                                                                                                        \
    FUNC("count", ARG("a", L) RET("r", L) "is_stateful: true ",                                                        \
         "node_def { name: 'n' op: 'DataCount' } node_def { name: 's' op: 'AddV2' input: 'a' input: 'n:y:0' " T_LONG "} " IS("r", "s:z:0"))
#define F_PARK FUNC("park", ARG("a", L) RET("r", L) "is_stateful: true ", "node_def { name: 'p' op: 'DataPark' input: 'a' } " IS("r", "p:y:0"))
#define F_LATER FUNC("later", ARG("a", L) RET("r", L) "is_stateful: true ", "node_def { name: 'p' op: 'DataLater' input: 'a' } " IS("r", "p:y:0"))
#define F_FAIL FUNC("fail", ARG("a", L) RET("r", L) "is_stateful: true ", "node_def { name: 'p' op: 'DataFail' input: 'a' } " IS("r", "p:y:0"))

#define INNER_LONG(name, v)                                                                                            \
    "node_def { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_INT64 } } "                          \
    "attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape {} int64_val: " v " } } } } "
/* more than nine, after a while */
#define F_BIG                                                                                                          \
    FUNC("big", ARG("a", L) RET("r", "DT_BOOL") "is_stateful: true ",                                                  \
         INNER_LONG("nine", "9") "node_def { name: 'p' op: 'DataLater' input: 'a' } "                                  \
         "node_def { name: 'g' op: 'Greater' input: 'p:y:0' input: 'nine:output:0' " T_LONG "} " IS("r", "g:z:0"))
/* 0, 1, … a - 1 */
#define F_UPTO                                                                                                         \
    FUNC("upto", ARG("a", L) RET("r", "DT_VARIANT") "is_stateful: true ",                                              \
         INNER_LONG("c0", "0") INNER_LONG("c1", "1") "node_def { name: 'p' op: 'DataFail' input: 'a' } "               \
         "node_def { name: 'd' op: 'RangeDataset' input: 'c0:output:0' input: 'p:y:0' input: 'c1:output:0' " ELEM "} " IS("r", "d:handle:0"))
/* 0, 1, … 999, each after a while */
#define F_SLOWLY                                                                                                       \
    F_LATER FUNC("slowly", ARG("a", L) RET("r", "DT_VARIANT") "is_stateful: true ",                                    \
         INNER_LONG("c0", "0") INNER_LONG("c1", "1") INNER_LONG("c2", "999")                                           \
         "node_def { name: 'd' op: 'RangeDataset' input: 'c0:output:0' input: 'c2:output:0' input: 'c1:output:0' " ELEM "} " \
         "node_def { name: 'm' op: 'MapDataset' input: 'd:handle:0' " FN("f", "later") NONE("Targuments") ELEM "} " IS("r", "m:handle:0"))

#define assert_err(expr, code, msg) assert_fails(code, expr, msg)

/* ---- rows that count, wait and keep functions ---------------------------------------------------------------------------- */

static trn_func *kept;
static _Atomic int parked;

static trn_err count_init(trn_kinit *ki)
{
    ki->state = trn_xalloc(sizeof(_Atomic int));
    return TRN_OK;
}

static trn_err k_count(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_i64(++*(_Atomic int *)k->state));
    return TRN_OK;
}

static void park_end(void *arg)
{
    trn_kctx *k = arg;
    parked--;
    trn_k_done(k, trn_cancel_why(trn_k_cancel(k)));
}

static trn_err k_park(trn_kctx *k)
{
    static trn_cancel_hook hooks[64]; /* more than wait at once */
    static _Atomic int n;
    parked++;
    if (!trn_cancel_add(trn_k_cancel(k), &hooks[n++ % 64], park_end, k))
        park_end(k);
    return TRN_OK;
}

static void later(void *arg)
{
    trn_kctx *k = arg;
    usleep(300);
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    trn_k_done(k, TRN_OK);
}

static trn_err k_later(trn_kctx *k)
{
    trn_pool_submit(env.pool, later, k);
    return TRN_OK;
}

static trn_err k_fail(trn_kctx *k)
{
    if (TRN_DATA(trn_in(k, 0), int64_t)[0] == 3)
        return trn_errorf(TRN_DATA_LOSS, "three");
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

static trn_err k_over(trn_kctx *k)
{
    return TRN_DATA(trn_in(k, 0), int64_t)[0] > 4 ? trn_errorf(TRN_OUT_OF_RANGE, "over") : TRN_OK;
}

static _Atomic int ended;

static trn_err k_last(trn_kctx *k)
{
    ended++;
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

static trn_err k_keep(trn_kctx *k) { return trn_k_func(&kept, k, trn_attr_func(k->node, "f")); }

static const trn_op rows[] = {
    {"DataCount", "-> y:i64", trn_sh_scalar, k_count, TRN_OP_STATEFUL, count_init, free},
    {"DataPark", "x:i64 -> y:i64", trn_sh_scalar, k_park, TRN_OP_STATEFUL | TRN_OP_ASYNC},
    {"DataLater", "x:i64 -> y:i64", trn_sh_scalar, k_later, TRN_OP_STATEFUL | TRN_OP_ASYNC},
    {"DataFail", "x:i64 -> y:i64", trn_sh_scalar, k_fail, TRN_OP_STATEFUL},
    {"DataOver", "x:i64 -> ", trn_sh_unknown, k_over, TRN_OP_STATEFUL},
    {"DataLast", "x:i64 -> y:i64", trn_sh_scalar, k_last, TRN_OP_STATEFUL},
    {"DataKeep", "-> ; f:func", trn_sh_unknown, k_keep, TRN_OP_STATEFUL},
    {0},
};

static _Atomic int background;

static int setup(void **state)
{
    trn_op_register_test(rows);
    graph_util_setup(state);
    exec_setup(state);
    env.background = &background;
    return 0;
}

/* Iterators that work ahead are let go, and nothing of them is left. */
static void settle(void)
{
    trn_resmgr_clear(resmgr, NULL);
    for (int i = 0; i < 2000 && background; i++)
        usleep(1000);
    assert_int_equal(background, 0);
}

static int teardown(void **state)
{
    settle();
    return exec_teardown(state);
}

/* ---- functions ------------------------------------------------------------------------------------------------------------ */

static trn_func *keep(const char *text)
{
    trn_plan *p = plan_of(graph_of(text));
    kept = NULL;
    assert_ok(run_opts(p, (trn_run_opts){0}));
    trn_plan_unref(p); /* the function outlives the graph it came from */
    assert_non_null(kept);
    return kept;
}

typedef struct called {
    sem_t sem;
    trn_err err;
    int64_t v;
} called;

static void on_called(void *arg_, trn_err err, trn_tensor **rets, int n)
{
    called *c = arg_;
    c->err = err;
    c->v = n == 1 ? TRN_DATA(rets[0], int64_t)[0] : -1;
    sem_post(&c->sem);
}

static trn_err call_func(trn_func *f, int64_t x, int64_t *out)
{
    called c = {0};
    sem_init(&c.sem, 0, 0);
    trn_tensor *t = trn_tensor_i64(x);
    trn_cancel *cancel = trn_cancel_new();
    trn_func_run(f, cancel, &t, 1, on_called, &c);
    while (sem_wait(&c.sem))
        ;
    trn_tensor_unref(t);
    trn_cancel_unref(cancel);
    *out = c.v;
    return c.err;
}

#define KEEP(f) "node { name: 'keep' op: 'DataKeep' " FN("f", f) "} "

static void functions(void **state)
{
    int64_t v;
    trn_func *f = keep(F_TWICE KEEP("twice"));
    assert_int_equal(f->n_args, 1);
    assert_int_equal(f->ret_types[0], TRN_INT64);
    for (int i = 0; i < 100; i++) {
        assert_ok(call_func(f, i, &v));
        assert_int_equal(v, 2 * i);
    }
    trn_func *g;
    assert_ok(trn_func_fork(&g, f));
    assert_ptr_equal(f, g); /* nothing in there has a state */
    trn_func_unref(g);
    called c = {0};
    sem_init(&c.sem, 0, 0);
    trn_func_run(f, NULL, NULL, 0, on_called, &c);
    sem_wait(&c.sem);
    assert_err(c.err, TRN_INVALID_ARGUMENT, "takes 1 arguments");
    trn_func_unref(f);
}

static void forks(void **state)
{
    int64_t v;
    trn_func *f = keep(F_COUNT KEEP("count")), *g;
    assert_ok(call_func(f, 0, &v));
    assert_ok(call_func(f, 0, &v));
    assert_int_equal(v, 2);
    assert_ok(trn_func_fork(&g, f));
    assert_ok(call_func(g, 0, &v));
    assert_int_equal(v, 1);
    trn_func_unref(f);
    assert_ok(call_func(g, 0, &v));
    assert_int_equal(v, 2);
    trn_func_unref(g);
}

static void function_errors(void **state)
{
    int64_t v;
    trn_func *f = keep(F_FAIL KEEP("fail"));
    assert_ok(call_func(f, 2, &v));
    assert_err(call_func(f, 3, &v), TRN_DATA_LOSS, "three");
    assert_ok(call_func(f, 4, &v)); /* one call's failure is its own */
    trn_func_unref(f);
    trn_plan *p = plan_of(graph_of(KEEP("nowhere")));
    assert_err(run_opts(p, (trn_run_opts){0}), TRN_NOT_FOUND, "nowhere");
    trn_plan_unref(p);
}

static void function_cancel(void **state)
{
    trn_func *f = keep(F_PARK KEEP("park"));
    trn_cancel *c = trn_cancel_new();
    called r = {0};
    sem_init(&r.sem, 0, 0);
    trn_tensor *t = trn_tensor_i64(1);
    trn_func_run(f, c, &t, 1, on_called, &r);
    trn_func_unref(f); /* the call holds it */
    while (!parked)
        usleep(100);
    assert_int_not_equal(sem_trywait(&r.sem), 0);
    trn_cancel_fire(c, trn_errorf(TRN_ABORTED, "enough"));
    sem_wait(&r.sem);
    assert_err(r.err, TRN_ABORTED, "enough");
    sem_destroy(&r.sem);
    sem_init(&r.sem, 0, 0);
    f = keep(F_PARK KEEP("park"));
    trn_func_run(f, c, &t, 1, on_called, &r); /* cancelled before it starts */
    sem_wait(&r.sem);
    assert_err(r.err, TRN_ABORTED, "enough");
    trn_func_unref(f);
    trn_tensor_unref(t);
    trn_cancel_unref(c);
}

/* ---- pipelines -------------------------------------------------------------------------------------------------------------- */

static trn_err init_with(const char *text)
{
    trn_plan *p = plan_of(graph_of(text));
    trn_err err = run_opts(p, (trn_run_opts){0});
    trn_plan_unref(p);
    return err;
}

static trn_err next(trn_plan *p, int64_t *out)
{
    trn_value ret = {0};
    trn_err err = run_opts(p, (trn_run_opts){.n_rets = 1, .rets = &ret});
    *out = ret.t ? TRN_DATA(ret.t, int64_t)[0] : -1;
    trn_tensor_unref(ret.t);
    return err;
}

static void expect(const char *text, const int64_t *want, int n)
{
    assert_ok(init_with(text));
    trn_plan *p = plan_of(graph_of(NEXT));
    for (int i = 0; i < n; i++) {
        int64_t v;
        assert_ok(next(p, &v));
        assert_int_equal(v, want[i]);
    }
    int64_t v;
    assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence");
    assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence");
    trn_plan_unref(p);
}

static void pipelines(void **state)
{
    int64_t twice[1000], counted[1000];
    for (int i = 0; i < 1000; i++) {
        twice[i] = 2 * i;
        counted[i] = i + i + 1;
    }
    expect(RANGE("5") MAKE("range"), (int64_t[]){0, 1, 2, 3, 4}, 5);
    expect(F_TWICE RANGE("1000") MAP("m", "range", "twice") MAKE("m"), twice, 1000);
    expect(F_TWICE RANGE("1000") PMAP("m", "range", "twice", "5") MAKE("m"), twice, 1000);
    expect(F_TWICE F_LATER RANGE("300") PMAP("l", "range", "later", "7") PREFETCH("q", "l", "3") MAP("m", "q", "twice") PREFETCH("p", "m", "10") MAKE("p"), twice, 300);
    expect(F_COUNT RANGE("100") MAP("m", "range", "count") MAKE("m"), counted, 100); /* every walk counts from one */
    expect(F_COUNT RANGE("100") MAP("m", "range", "count") PREFETCH("p", "m", "1") MAKE("p"), counted, 100);
    expect(RANGE("0") PREFETCH("p", "range", "4") MAKE("p"), NULL, 0);
}

static void at_once(void **state)
{
    int64_t big[300], firsts[100];
    for (int i = 0; i < 300; i++)
        big[i] = i + 10;
    for (int i = 0; i < 100; i++)
        firsts[i] = 7 * i;
    expect(F_BIG RANGE("310") PFILTER("f", "range", "big", "6") MAKE("f"), big, 300);
    expect(F_BIG RANGE("9") PFILTER("f", "range", "big", "6") MAKE("f"), NULL, 0);
    expect(RANGE("700") PBATCH("b", "range", "7", "3") MAKE("b"), firsts, 100);
    expect(RANGE("696") PBATCH("b", "range", "7", "3") PREFETCH("p", "b", "2") MAKE("p"), firsts, 100);
    expect(RANGE("0") PBATCH("b", "range", "7", "3") MAKE("b"), NULL, 0);
    /* of 0, 1, 2, 4, 5 (3 fails): nothing; 0; 0 1; 0 1 2 3; 0 1 2 3 4 */
    for (int n = 1; n <= 3; n++) {
        assert_ok(init_with(n == 1   ? F_FAIL F_UPTO RANGE("6") CYCLE("c", "range", "upto", "3", "2", "1") MAKE("c")
                            : n == 2 ? F_FAIL F_UPTO RANGE("6") CYCLE("c", "range", "upto", "3", "2", "2") MAKE("c")
                                     : F_FAIL F_UPTO RANGE("6") CYCLE("c", "range", "upto", "3", "2", "3") MAKE("c")));
        static const int64_t want[] = {0, 0, 1, -1, 0, 1, 0, 1, 2, 3, 2, 3, 4};
        trn_plan *p = plan_of(graph_of(NEXT));
        int64_t v;
        for (size_t i = 0; i < TRN_COUNTOF(want); i++) {
            if (want[i] < 0) {
                assert_err(next(p, &v), TRN_DATA_LOSS, "three");
                continue;
            }
            assert_ok(next(p, &v));
            assert_int_equal(v, want[i]);
        }
        assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence");
        trn_plan_unref(p);
    }
    int64_t pairs[3996];
    for (int i = 0; i < 999; i++)
        for (int j = 0; j < 4; j++)
            pairs[4 * i + j] = i;
    expect(F_SLOWLY RANGE("4") CYCLE("c", "range", "slowly", "4", "1", "4") MAKE("c"), pairs, 3996);
}

static void cached_in_a_file(void **state)
{
    char dir[] = "/tmp/test_data_XXXXXX", text[8000], path[100];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 4; i++) { /* written, read, dropped half way, written */
        const char *range = i % 2 ? RANGE("9") : RANGE("5");
        snprintf(path, sizeof path, "%s/c%d", dir, i / 2);
        snprintf(text, sizeof text,
                 "%s node { name: 'file' op: 'Const' attr { key: 'dtype' value { type: DT_STRING } } "
                 "attr { key: 'value' value { tensor { dtype: DT_STRING tensor_shape {} string_val: '%s' } } } } " DS("c", "CacheDataset", "range' input: 'file", "") MAKE("c"),
                 range, path);
        if (i == 2) {
            int64_t v;
            trn_plan *p = plan_of(graph_of(NEXT));
            assert_ok(init_with(text));
            assert_ok(next(p, &v));
            trn_plan_unref(p);
            settle();
            assert_int_equal(rmdir(dir), -1); /* c0 is there, of c1 nothing */
            strcat(path, "_0.lockfile");
            assert_int_equal(access(path, F_OK), -1);
            continue;
        }
        expect(text, (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, i == 3 ? 9 : 5);
    }
    settle();
    static const char *const left[] = {"c0.index", "c0.data-00000-of-00001", "c1.index", "c1.data-00000-of-00001"};
    for (size_t i = 0; i < TRN_COUNTOF(left); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, left[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

#define F_STATE FUNC("state", RET("r", L), INNER_LONG("c", "5") IS("r", "c:output:0"))
/* 10 each time, until the count says more than four */
#define F_STEP                                                                                                         \
    FUNC("step", ARG("a", L) RET("r", L) "is_stateful: true ",                                                         \
         "node_def { name: 'n' op: 'DataCount' } node_def { name: 'o' op: 'DataOver' input: 'n:y:0' } "                \
         "node_def { name: 's' op: 'AddV2' input: 'a' input: 'a' input: '^o' " T_LONG "} " IS("r", "s:z:0"))
#define F_LAST FUNC("last", ARG("a", L) RET("r", L) "is_stateful: true ", "node_def { name: 'p' op: 'DataLast' input: 'a' } " IS("r", "p:y:0"))

static void generated(void **state)
{
    static const char *const text = F_STATE F_STEP F_LAST "node { name: 'g' op: 'GeneratorDataset' " FN("init_func", "state") FN("next_func", "step") FN("finalize_func", "last")
        NONE("Tinit_func_args") NONE("Tnext_func_args") NONE("Tfinalize_func_args") ELEM "} " MAKE("g");
    int before = ended;
    expect(text, (int64_t[]){10, 10, 10, 10}, 4);
    assert_int_equal(ended, before + 1);
    int64_t v;
    trn_plan *p = plan_of(graph_of(NEXT));
    assert_ok(init_with(text));
    assert_ok(next(p, &v));
    trn_plan_unref(p);
    settle(); /* let go of: its end comes all the same */
    for (int i = 0; i < 2000 && ended < before + 2; i++)
        usleep(1000);
    assert_int_equal(ended, before + 2);
}

static void errors_pass(void **state)
{
    int64_t v;
    trn_plan *p = plan_of(graph_of(NEXT));
    for (int ahead = 0; ahead < 3; ahead++) {
        assert_ok(init_with(ahead == 0   ? F_FAIL RANGE("5") MAP("m", "range", "fail") MAKE("m")
                            : ahead == 1 ? F_FAIL RANGE("5") PMAP("m", "range", "fail", "3") MAKE("m")
                                         : F_FAIL RANGE("5") MAP("m", "range", "fail") PREFETCH("p", "m", "2") MAKE("p")));
        for (int i = 0; i < 3; i++)
            assert_ok(next(p, &v));
        assert_err(next(p, &v), TRN_DATA_LOSS, "three");
        assert_ok(next(p, &v)); /* the walk goes on behind it */
        assert_int_equal(v, 4);
        assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence");
    }
    trn_plan_unref(p);
    assert_err(init_with(RANGE("5") "node { name: 'bad' op: 'BatchDataset' input: 'range' input: 'r0' " ELEM "} " MAKE("bad")), TRN_INVALID_ARGUMENT,
               "Batch size must be greater than zero");
}

typedef struct pending {
    trn_plan *p;
    trn_cancel *c;
    waiting w;
    trn_value ret;
} pending;

static void start_next(pending *n)
{
    *n = (pending){.p = plan_of(graph_of(NEXT)), .c = trn_cancel_new()};
    sem_init(&n->w.sem, 0, 0);
    trn_plan_run(n->p, &(trn_run_opts){.cancel = n->c, .n_rets = 1, .rets = &n->ret}, on_done, &n->w);
}

static void end_next(pending *n, trn_code code)
{
    sem_wait(&n->w.sem);
    assert_int_equal(trn_err_code(n->w.err), code);
    trn_err_free(n->w.err);
    trn_tensor_unref(n->ret.t);
    trn_plan_unref(n->p);
    trn_cancel_unref(n->c);
}

static void blocked_requests(void **state)
{
    int before = parked;
    const char *kinds[] = {F_PARK RANGE("5") MAP("m", "range", "park") MAKE("m"), F_PARK RANGE("50") PMAP("m", "range", "park", "3") MAKE("m"),
                           F_PARK RANGE("5") MAP("m", "range", "park") PREFETCH("p", "m", "2") MAKE("p")};
    for (int k = 0; k < 3; k++) {
        assert_ok(init_with(kinds[k]));
        pending a, b;
        start_next(&a);
        start_next(&b); /* behind a */
        while (parked == before)
            usleep(100);
        trn_cancel_fire(b.c, trn_errorf(TRN_CANCELLED, "b"));
        end_next(&b, TRN_CANCELLED);
        trn_cancel_fire(a.c, trn_errorf(TRN_CANCELLED, "a"));
        end_next(&a, TRN_CANCELLED);
        start_next(&a);
        trn_resmgr_clear(resmgr, NULL); /* Reset */
        end_next(&a, TRN_CANCELLED);
        start_next(&a);
        end_next(&a, TRN_FAILED_PRECONDITION);
        assert_ok(init_with(kinds[k]));
        start_next(&a);
        usleep(1000);
        assert_ok(init_with(RANGE("2") MAKE("range"))); /* a new walk ends who waits for the old one */
        end_next(&a, TRN_CANCELLED);
        start_next(&a);
        end_next(&a, TRN_CODE_OK);
        for (int i = 0; i < 2000 && parked > before; i++)
            usleep(1000);
        assert_int_equal(parked, before); /* and nothing of it is left */
    }
}

static void many_clients(void **state)
{
    assert_ok(init_with(F_TWICE RANGE("400") PMAP("m", "range", "twice", "4") PREFETCH("p", "m", "5") MAKE("p")));
    static pending n[400];
    bool seen[800] = {0};
    for (int i = 0; i < 400; i++)
        start_next(&n[i]);
    for (int i = 0; i < 400; i++) {
        while (sem_wait(&n[i].w.sem))
            ;
        assert_ok(n[i].w.err);
        int64_t v = TRN_DATA(n[i].ret.t, int64_t)[0];
        assert_true(v >= 0 && v < 800 && !seen[v]);
        seen[v] = true;
        trn_tensor_unref(n[i].ret.t);
        trn_plan_unref(n[i].p);
        trn_cancel_unref(n[i].c);
    }
}

/* Iterators that are dropped while they work ahead leave nothing behind (teardown counts). */
static void dropped(void **state)
{
    for (int i = 0; i < 50; i++) {
        static const char *const kinds[] = {F_LATER RANGE("1000") PMAP("m", "range", "later", "4") PREFETCH("p", "m", "8") MAKE("p"),
                                            F_SLOWLY RANGE("9") CYCLE("c", "range", "slowly", "4", "2", "3") MAKE("c"),
                                            F_SLOWLY RANGE("9") CYCLE("c", "range", "slowly", "4", "2", "3") PBATCH("b", "c", "4", "3") MAKE("b"),
                                            F_BIG F_TWICE RANGE("1000") MAP("m", "range", "twice") PFILTER("f", "m", "big", "4") PBATCH("b", "f", "3", "2") MAKE("b")};
        assert_ok(init_with(kinds[i / 2 % 4]));
        int64_t v;
        trn_plan *p = plan_of(graph_of(NEXT));
        assert_ok(next(p, &v));
        assert_int_equal(v, i / 2 % 4 == 3 ? 10 : 0);
        trn_plan_unref(p);
        if (i % 2)
            trn_resmgr_clear(resmgr, NULL);
    }
}

static void without_threads(void **state)
{
    settle();
    settle(); /* what earlier tests left running uses the same env */
    trn_exec_env old = env;
    env.pool = env.disk = NULL;
    int64_t twice[5000];
    for (int i = 0; i < 5000; i++)
        twice[i] = 2 * i;
    expect(F_TWICE RANGE("5000") MAP("m", "range", "twice") PREFETCH("p", "m", "3") MAKE("p"), twice, 5000);
    expect(F_TWICE RANGE("300") PMAP("m", "range", "twice", "4") MAKE("m"), twice, 300);
    settle();
    env = old;
}

/* ---- saved datasets ------------------------------------------------------------------------------------------------------------ */

#define TEXT(name, v)                                                                                                  \
    "node { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_STRING } } "                             \
    "attr { key: 'value' value { tensor { dtype: DT_STRING tensor_shape {} string_val: '" v "' } } } } "
#define F_ZERO FUNC("zero", ARG("a", L) RET("r", L), INNER_LONG("c", "0") IS("r", "c:output:0"))
#define F_SAME FUNC("same", ARG("a", "DT_VARIANT") RET("r", "DT_VARIANT"), IS("r", "a"))

static char saved_in[64];

static void remove_saved(void)
{
    char sh[100];
    snprintf(sh, sizeof sh, "rm -r '%s'", saved_in);
    assert_int_equal(system(sh), 0);
}

/* init_with, where %s is the folder. */
static trn_err init_saved(const char *format)
{
    char *text = trn_xasprintf(format, saved_in);
    trn_err err = init_with(text);
    free(text);
    return err;
}

static void hold_thread(void *sem)
{
    while (sem_wait(sem))
        ;
}

/* Who asks for the end and is cancelled before all is written does not leave it unfinished for the next one. */
static void cancelled_at_the_end(void **state)
{
    strcpy(saved_in, "/tmp/test_data_XXXXXX");
    assert_non_null(mkdtemp(saved_in));
    assert_ok(init_saved(F_ZERO RANGE("3") TEXT("path", "%s") DS("s", "SaveDatasetV2", "range' input: 'path",
                                                               "attr { key: 'use_shard_func' value { b: false } } " FN("shard_func", "zero") NONE("Tshard_func_args")) MAKE("s")));
    trn_plan *p = plan_of(graph_of(NEXT));
    int64_t v;
    for (int i = 0; i < 3; i++)
        assert_ok(next(p, &v));
    sem_t go;
    pending a;
    sem_init(&go, 0, 0);
    trn_pool_submit(env.disk, hold_thread, &go); /* there is only this one */
    start_next(&a);
    usleep(50000); /* it has found the end and waits for the disk */
    trn_cancel_fire(a.c, trn_errorf(TRN_CANCELLED, "a"));
    sem_post(&go);
    end_next(&a, TRN_CANCELLED);
    assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence");
    trn_snapshot_meta m;
    bool found;
    assert_ok(trn_snapshot_meta_read(&m, &found, saved_in));
    assert_true(found && m.finished && m.elements == 3);
    trn_snapshot_meta_fini(&m);
    trn_plan_unref(p);
    settle();
    sem_destroy(&go);
    remove_saved();
}

/* A shard of as many large elements, written in no time: gzip files may be put behind each other. */
static void large_shard(int times)
{
    trn_dtype type = TRN_STRING;
    trn_snapshot_run *r;
    trn_snapshot_meta m;
    bool found;
    char **shard;
    int n;
    size_t size = 16 << 20;
    char *zeros = trn_xalloc(size);
    trn_tensor *t = trn_tensor_str(zeros, size);
    assert_ok(trn_snapshot_run_open(&r, saved_in, "", TRN_GZIP, &type, 1));
    assert_ok(trn_snapshot_run_add(r, 0, &t, 1));
    assert_ok(trn_snapshot_run_finish(r, 1));
    trn_tensor_unref(t);
    assert_ok(trn_snapshot_meta_read(&m, &found, saved_in));
    assert_ok(trn_snapshot_shards(&shard, &n, saved_in, &m));
    assert_int_equal(n, 1);
    char *name = trn_snapshot_file_name(shard[0], 0);
    FILE *f = fopen(name, "rb");
    size_t got = fread(zeros, 1, size, f);
    fclose(f);
    f = fopen(name, "wb");
    for (int i = 0; i < times; i++)
        assert_int_equal(fwrite(zeros, 1, got, f), got);
    fclose(f);
    free(zeros);
    char *link = trn_path_join(saved_in, "shard");
    assert_int_equal(symlink(shard[0], link), 0);
    free(link);
    free(name);
    free(shard[0]);
    free(shard);
    trn_snapshot_meta_fini(&m);
}

#define READER(first)                                                                                                  \
    LONG("first", first) TEXT("dir", "%s/shard") DS("d", "SnapshotDatasetReader", "dir' input: 'first",                \
                                                    "attr { key: 'version' value { i: 2 } } attr { key: 'compression' value { s: 'GZIP' } } ") MAKE("d")

/* Elements that are left out are read on a disk thread, which others need as well. */
static void cancelled_while_skipping(void **state)
{
    strcpy(saved_in, "/tmp/test_data_XXXXXX");
    assert_non_null(mkdtemp(saved_in));
    int64_t v;
    assert_ok(init_saved(READER("0")));
    trn_plan *p = plan_of(graph_of(NEXT));
    assert_err(next(p, &v), TRN_NOT_FOUND, "shard/00000000.snapshot");
    assert_err(next(p, &v), TRN_OUT_OF_RANGE, "End of sequence"); /* not the same again for those who ignore errors */
    large_shard(128);
    assert_ok(init_saved(READER("1000000")));
    pending a;
    start_next(&a);
    usleep(50000);
    uint64_t start = trn_now_ns();
    trn_cancel_fire(a.c, trn_errorf(TRN_CANCELLED, "a"));
    end_next(&a, TRN_CANCELLED);
    assert_true(trn_now_ns() - start < 1000000000); /* all of it takes several seconds */
    trn_plan_unref(p);
    settle();
    remove_saved();
}

#define NAME(name, s) "attr { key: '" name "' value { s: '" s "' } } "
#define TIMES(n) "attr { key: 'N' value { i: " n " } } "
/* A loop of TensorFlow 1: adds until there are ten. */
#define F_LOOP(by)                                                                                                     \
    FUNC("loop", ARG("a", L) RET("r", L),                                                                              \
         INNER_LONG("ten", "10") "node_def { name: 'e' op: 'Enter' input: 'a' " T_LONG NAME("frame_name", "f") "} "    \
         "node_def { name: 'l' op: 'Enter' input: 'ten:output:0' attr { key: 'is_constant' value { b: true } } " T_LONG NAME("frame_name", "f") "} " \
         "node_def { name: 'm' op: 'Merge' input: 'e:output:0' input: 'n:output:0' " T_LONG TIMES("2") "} "            \
         "node_def { name: 'c' op: 'Less' input: 'm:output:0' input: 'l:output:0' " T_LONG "} "                        \
         "node_def { name: 'k' op: 'LoopCond' input: 'c:z:0' } "                                                       \
         "node_def { name: 's' op: 'Switch' input: 'm:output:0' input: 'k:output:0' " T_LONG "} "                      \
         "node_def { name: 'i' op: 'Identity' input: 's:output_true:0' " T_LONG "} "                                   \
         "node_def { name: 'by' op: 'Const' input: '^i' attr { key: 'dtype' value { type: DT_INT64 } } "               \
         "attr { key: 'value' value { tensor { dtype: DT_INT64 tensor_shape {} int64_val: " by " } } } } "             \
         "node_def { name: 'p' op: 'AddV2' input: 'i:output:0' input: 'by:output:0' " T_LONG "} "                      \
         "node_def { name: 'n' op: 'NextIteration' input: 'p:z:0' " T_LONG "} "                                        \
         "node_def { name: 'x' op: 'Exit' input: 's:output_false:0' " T_LONG "} " IS("r", "x:output:0"))
#define SNAPSHOT(in)                                                                                                   \
    TEXT("path", "%s") DS("snap", "SnapshotDatasetV2", in "' input: 'path", FN("shard_func", "zero") FN("reader_func", "same") NONE("Tshard_func_args") \
                          NONE("Treader_func_args")) MAKE("snap")

static int snapshots_there(void)
{
    DIR *d = opendir(saved_in);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void numbers_of_snapshots(void **state)
{
    static const char *const loops[] = {F_ZERO F_SAME F_LOOP("1") RANGE("3") MAP("m", "range", "loop") SNAPSHOT("m"), F_ZERO F_SAME F_LOOP("2") RANGE("3") MAP("m", "range", "loop") SNAPSHOT("m")};
    strcpy(saved_in, "/tmp/test_data_XXXXXX");
    assert_non_null(mkdtemp(saved_in));
    trn_plan *p = plan_of(graph_of(NEXT));
    for (int i = 0; i < 4; i++) {
        int64_t v;
        assert_ok(init_saved(loops[i % 2]));
        assert_ok(next(p, &v));
        assert_int_equal(v, 10);
        assert_int_equal(snapshots_there(), TRN_MIN(i + 1, 2)); /* what goes on in a loop counts */
    }
    trn_plan_unref(p);
    settle();
    remove_saved();
}

/* Datasets that functions captured, one below the other, as deep as a peer likes: whoever freed them would run out of stack. */
static void deep(void **state)
{
#define KEEPS FN("f", "two") "attr { key: 'Targuments' value { list { type: DT_VARIANT } } } " ELEM "} "
    trn_sb s = {0};
    trn_sb_adds(&s, FUNC("two", ARG("a", L) ARG("d", "DT_VARIANT") RET("r", L), IS("r", "a")));
    trn_sb_adds(&s, RANGE("3") "node { name: 'd0' op: 'MapDataset' input: 'range' input: 'range' " KEEPS);
    for (int i = 1; i < 20000; i++)
        trn_sb_addf(&s, "node { name: 'd%d' op: 'MapDataset' input: 'range' input: 'd%d' " KEEPS, i, i - 1);
    trn_sb_adds(&s, MAKE("d19999"));
    assert_err(init_with(s.p), TRN_INVALID_ARGUMENT, "datasets on top of each other");
    trn_sb_fini(&s);
}

/* ---- pauses ------------------------------------------------------------------------------------------------------------------ */

#define SLEEP(us) RANGE("3") LONG("us", us) DS("z", "SleepDataset", "range' input: 'us", "")

static void sleeping(void **state)
{
    static const char *const forever[] = {SLEEP("1000000000000") MAKE("z"), SLEEP("1000000000000") PREFETCH("p", "z", "2") MAKE("p")};
    settle();
    trn_exec_env old = env;
    assert_ok(trn_loop_open(&env.loop, "alarms"));
    uint64_t start = trn_now_ns();
    expect(SLEEP("20000") MAKE("z"), (int64_t[]){0, 1, 2}, 3);
    assert_true(trn_now_ns() - start >= 80000000); /* before the end, too */
    for (int i = 0; i < 40; i++) {
        pending a;
        assert_ok(init_with(forever[i % 2]));
        start_next(&a);
        if (i % 4 < 2 || i % 8 >= 4)
            usleep(2000);
        if (i % 8 < 4)
            trn_cancel_fire(a.c, trn_errorf(TRN_CANCELLED, "a"));
        else
            trn_resmgr_clear(resmgr, NULL); /* Reset */
        end_next(&a, TRN_CANCELLED);
    }
    pending a;
    assert_ok(init_with(forever[0]));
    start_next(&a);
    usleep(2000);
    trn_cancel_fire(a.c, trn_errorf(TRN_CANCELLED, "a"));
    end_next(&a, TRN_CANCELLED);
    for (int i = 0; i < 2000 && background; i++)
        usleep(1000);
    trn_loop_close(env.loop); /* the task ends; the iterator is there for a little longer, and its alarm is not */
    env = old;
    settle();
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------- */

static char *write_file(const void *p, size_t n)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/trn_test_data_%d", (int)getpid());
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
    return path;
}

static void lines(void **state)
{
    static const char text[] = "one\r\ntwo\n\n\rth\rree\nlast";
    static const char *const want[] = {"one", "two", "", "three", "last"};
    trn_stream *s;
    assert_ok(trn_stream_on_memory(&s, text, sizeof text - 1, TRN_PLAIN));
    int n = 0;
    for (;;) {
        trn_cut got;
        const char *p;
        size_t len;
        assert_ok(trn_stream_line(&got, s, &p, &len));
        if (got == TRN_CUT_MORE) {
            assert_ok(trn_stream_fill(s));
            continue;
        }
        if (got == TRN_CUT_END)
            break;
        assert_true(n < 5 && len == strlen(want[n]) && !memcmp(p, want[n], len));
        n++;
    }
    assert_int_equal(n, 5);
    trn_stream_close(s);
    assert_err(trn_stream_open(&s, "/nowhere/at/all", TRN_PLAIN, 0), TRN_NOT_FOUND, "/nowhere");
    assert_err(trn_stream_open(&s, "/tmp", TRN_PLAIN, 0), TRN_FAILED_PRECONDITION, "directory");
}

static int read_records(const char *path, trn_compression c, trn_code end)
{
    trn_stream *s;
    assert_ok(trn_stream_open(&s, path, c, 5000));
    int n = 0;
    for (;;) {
        trn_cut got;
        const char *p;
        size_t len;
        trn_err err = trn_stream_record(&got, s, &p, &len);
        if (!err && got == TRN_CUT_MORE)
            err = trn_stream_fill(s);
        else if (!err && got == TRN_CUT_GOT) {
            assert_int_equal(len, (size_t)n * 37);
            for (size_t i = 0; i < len; i++)
                assert_int_equal((uint8_t)p[i], (uint8_t)n);
            n++;
        }
        if (err || got == TRN_CUT_END) {
            assert_int_equal(trn_err_code(err), end);
            trn_err_free(err);
            trn_stream_close(s);
            return n;
        }
    }
}

static void records(void **state)
{
    trn_sb all = {0};
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)i * 37;
        uint8_t *b = malloc(n + 1), head[TRN_RECORD_HEAD], tail[TRN_RECORD_TAIL];
        memset(b, i, n + 1);
        trn_record_head(head, n);
        trn_record_tail(tail, b, n);
        trn_sb_add(&all, head, sizeof head);
        trn_sb_add(&all, b, n);
        trn_sb_add(&all, tail, sizeof tail);
        free(b);
    }
    char *path = write_file(all.p, all.n);
    assert_int_equal(read_records(path, TRN_PLAIN, TRN_CODE_OK), 300);
    write_file(all.p, all.n - 3);
    assert_int_equal(read_records(path, TRN_PLAIN, TRN_DATA_LOSS), 299);
    all.p[all.n / 2] ^= 1;
    write_file(all.p, all.n);
    assert_true(read_records(path, TRN_PLAIN, TRN_DATA_LOSS) < 300);
    all.p[all.n / 2] ^= 1;
    uLongf packed = compressBound(all.n);
    uint8_t *z = malloc(packed);
    assert_int_equal(compress(z, &packed, (uint8_t *)all.p, all.n), Z_OK);
    write_file(z, packed);
    assert_int_equal(read_records(path, TRN_ZLIB, TRN_CODE_OK), 300);
    write_file(z, packed / 2);
    assert_true(read_records(path, TRN_ZLIB, TRN_DATA_LOSS) < 300);
    z[packed / 2] ^= 0x55;
    write_file(z, packed);
    assert_true(read_records(path, TRN_ZLIB, TRN_DATA_LOSS) < 300);
    free(z);
    trn_sb_fini(&all);
    unlink(path);
}

#define T(f) cmocka_unit_test(f)
int main(void)
{
    const struct CMUnitTest tests[] = {T(functions),        T(forks),        T(function_errors), T(function_cancel), T(pipelines), T(at_once), T(cached_in_a_file), T(generated), T(errors_pass),
                                       T(blocked_requests), T(many_clients), T(dropped),         T(without_threads), T(lines),     T(records),
                                       T(cancelled_at_the_end), T(cancelled_while_skipping), T(numbers_of_snapshots), T(deep), T(sleeping)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
