/* Functions: called one by one, and lowered into the graph; both must give the same. */
#include "exec_util.h"
#include "func_text.h"

#include <unistd.h>

#define TYPES(key, list) "attr { key: '" key "' value { list { " list " } } } "
#define FN(key, name) "attr { key: '" key "' value { func { name: '" name "' } } } "
#define ONE "type: DT_FLOAT"
#define F "DT_FLOAT"
#define N_RET(in) "node { name: 'ret0' op: '_Retval' input: '" in "' " T_FLOAT "attr { key: 'index' value { i: 0 } } } "
#define N_CALL(name, op, in, fn) "node { name: '" name "' op: '" op "' input: '" in "' " FN("f", fn) TYPES("Tin", ONE) TYPES("Tout", ONE) "} "

#define F_INC FUNC("inc", ARG("a", F) RET("r", F), BODY_CONST("one", "1") BODY2("s", "AddV2", "a", "one:output:0") IS("r", "s:z:0"))
#define F_DEC FUNC("dec", ARG("a", F) RET("r", F), BODY_CONST("one", "-1") BODY2("s", "AddV2", "a", "one:output:0") IS("r", "s:z:0"))
#define F_TWICE                                                                                                        \
    FUNC("twice", ARG("a", F) RET("r", F),                                                                             \
         "node_def { name: 'x' op: 'inc' input: 'a' } node_def { name: 'y' op: 'inc' input: 'x:r:0' } " IS("r", "y:r:0"))
#define F_LESS                                                                                                         \
    FUNC("less", ARG("a", F) RET("r", "DT_BOOL"), BODY_CONST("ten", "1000") BODY2("l", "Less", "a", "ten:output:0") IS("r", "l:z:0"))
#define F_FAIL FUNC("fail", ARG("a", F) RET("r", F), "node_def { name: 'inner' op: 'TestFail' input: 'a' " T_FLOAT "} " IS("r", "inner:y:0"))
#define F_COUNT                                                                                                        \
    FUNC("count", ARG("a", F) RET("r", F) "is_stateful: true ",                                                        \
         "node_def { name: 'n' op: 'TestCount' } " BODY2("s", "AddV2", "a", "n:y:0") IS("r", "s:z:0"))
#define F_COUNT2                                                                                                       \
    FUNC("count2", ARG("a", F) RET("r", F) "is_stateful: true ",                                                       \
         "node_def { name: 'n' op: 'TestCount' } " BODY2("s", "AddV2", "a", "n:y:0") IS("r", "s:z:0"))
/* down(a) = a < 1 ? a : down(a - 1) */
#define F_DOWN                                                                                                         \
    FUNC("stop", ARG("a", F) RET("r", F), "node_def { name: 'i' op: 'Identity' input: 'a' " T_FLOAT "} " IS("r", "i:output:0"))  \
    FUNC("down", ARG("a", F) RET("r", F),                                                                              \
         BODY_CONST("one", "1") BODY2("l", "Less", "a", "one:output:0")                                                \
         "node_def { name: 'if' op: 'StatelessIf' input: 'l:z:0' input: 'a' " FN("then_branch", "stop") FN("else_branch", "go")  \
         "attr { key: 'Tcond' value { type: DT_BOOL } } " TYPES("Tin", ONE) TYPES("Tout", ONE) "} " IS("r", "if:output:0"))      \
    FUNC("go", ARG("a", F) RET("r", F), "node_def { name: 'd' op: 'dec' input: 'a' } node_def { name: 'x' op: 'down' input: 'd:r:0' } " IS("r", "x:r:0"))

static trn_err t_fail(trn_kctx *k) { return trn_errorf(TRN_OUT_OF_RANGE, "it went wrong"); }
static trn_err count_init(trn_kinit *ki)
{
    ki->state = trn_xalloc(sizeof(_Atomic int));
    return TRN_OK;
}
static trn_err t_count(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_f32((float)++*(_Atomic int *)k->state));
    return TRN_OK;
}
static const trn_op rows[] = {
    {"TestFail", "x:T -> y:T; T:f32", trn_sh_same, t_fail, 0},
    {"TestCount", "-> y:f32", trn_sh_scalar, t_count, TRN_OP_STATEFUL, count_init, free},
    {0},
};

static int setup(void **state)
{
    trn_op_register_test(rows);
    graph_util_setup(state);
    return exec_setup(state);
}

/* As it is, then lowered: several runs each. */
static void both(const char *text, float want)
{
    for (int lower = 0; lower < 2; lower++) {
        trn_graph *g = graph_of(text);
        if (lower)
            assert_ok(trn_graph_lower(g));
        trn_plan *p = plan_of(g);
        for (int i = 0; i < 3; i++) {
            float v = -1;
            assert_ok(run_f(p, &v, 1));
            if (v != want)
                fail_msg("%s: %g, not %g", lower ? "lowered" : "called", v, want);
        }
        trn_plan_unref(p);
    }
}

static void calls(void **state)
{
    both(F_INC N_CONST("x", "4") "node { name: 'c' op: 'inc' input: 'x' } " N_RET("c"), 5);
    both(F_INC F_TWICE N_CONST("x", "4") "node { name: 'c' op: 'twice' input: 'x' } " N_RET("c"), 6);
    both(F_INC N_CONST("x", "4") N_CALL("c", "PartitionedCall", "x", "inc") N_RET("c"), 5);
    both(F_INC F_TWICE N_CONST("x", "4") N_CALL("c", "StatefulPartitionedCall", "x", "twice") N_RET("c"), 6);
}

#define N_IF(op, cond, t, e)                                                                                           \
    "node { name: 'if' op: '" op "' input: 'cond' input: 'x' " FN("then_branch", t) FN("else_branch", e)                \
    "attr { key: 'Tcond' value { type: DT_FLOAT } } " TYPES("Tin", ONE) TYPES("Tout", ONE) "} " N_CONST("cond", cond)

static void ifs(void **state)
{
    /* lowering wants a boolean condition or makes one; a float is fine for calls */
    for (int yes = 0; yes < 2; yes++) {
        trn_graph *g = graph_of(yes ? F_INC F_DEC N_CONST("x", "4") N_IF("If", "0.5", "inc", "dec") N_RET("if")
                                    : F_INC F_DEC N_CONST("x", "4") N_IF("StatelessIf", "0", "inc", "dec") N_RET("if"));
        assert_true(run_1(g) == (yes ? 5 : 3));
    }
}

#define N_BOOL(name, v)                                                                                                \
    "node { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_BOOL } } "                               \
    "attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape {} bool_val: " v " } } } } "
#define N_INT(name, v)                                                                                                 \
    "node { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } "                              \
    "attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape {} int_val: " v " } } } } "
#define N_IFB(v)                                                                                                       \
    N_BOOL("cond", v) "node { name: 'if' op: 'If' input: 'cond' input: 'x' " FN("then_branch", "inc") FN("else_branch", "dec")   \
    "attr { key: 'Tcond' value { type: DT_BOOL } } " TYPES("Tin", ONE) TYPES("Tout", ONE) "} "
#define N_CASE(i)                                                                                                      \
    N_INT("i", i) "node { name: 'case' op: 'Case' input: 'i' input: 'x' attr { key: 'branches' value { list { func { name: 'inc' } func { name: 'dec' } " \
    "func { name: 'twice' } } } } " TYPES("Tin", ONE) TYPES("Tout", ONE) "} "
#define N_WHILE(op) "node { name: 'w' op: '" op "' input: 'x' " FN("cond", "less") FN("body", "inc") TYPES("T", ONE) "} "

static void branches(void **state)
{
    both(F_INC F_DEC N_CONST("x", "4") N_IFB("true") N_RET("if"), 5);
    both(F_INC F_DEC N_CONST("x", "4") N_IFB("false") N_RET("if"), 3);
    both(F_INC F_DEC F_TWICE N_CONST("x", "4") N_CASE("0") N_RET("case"), 5);
    both(F_INC F_DEC F_TWICE N_CONST("x", "4") N_CASE("1") N_RET("case"), 3);
    both(F_INC F_DEC F_TWICE N_CONST("x", "4") N_CASE("7") N_RET("case"), 6);
    both(F_INC F_DEC F_TWICE N_CONST("x", "4") N_CASE("-1") N_RET("case"), 6);
}

static void whiles(void **state)
{
    both(F_INC F_LESS N_CONST("x", "0") N_WHILE("While") N_RET("w"), 1000);
    both(F_INC F_LESS N_CONST("x", "5000") N_WHILE("StatelessWhile") N_RET("w"), 5000);
}

static void recursion(void **state)
{
    both(F_DEC F_DOWN N_CONST("x", "500") "node { name: 'c' op: 'down' input: 'x' } " N_RET("c"), 0);
    trn_graph *g = graph_of(FUNC("ever", ARG("a", F) RET("r", F), "node_def { name: 'x' op: 'ever' input: 'a' } " IS("r", "x:r:0"))
                            N_CONST("x", "1") "node { name: 'c' op: 'ever' input: 'x' } " N_RET("c"));
    trn_plan *p = plan_of(g);
    float v;
    assert_fails(TRN_RESOURCE_EXHAUSTED, run_f(p, &v, 1), "nest deeper");
    trn_plan_unref(p);
}

static void errors(void **state)
{
    trn_graph *g = graph_of(F_FAIL N_CONST("x", "1") "node { name: 'c' op: 'fail' input: 'x' } " N_RET("c"));
    trn_plan *p = plan_of(g);
    float v;
    for (int i = 0; i < 3; i++)
        assert_fails(TRN_OUT_OF_RANGE, run_f(p, &v, 1), "it went wrong\n\t [[{{node inner}}]]");
    trn_plan_unref(p);
    g = graph_of(N_CONST("x", "1") N_CALL("c", "PartitionedCall", "x", "nowhere") N_RET("c"));
    p = plan_of(g);
    assert_fails(TRN_NOT_FOUND, run_f(p, &v, 1), "'nowhere'");
    trn_plan_unref(p);
    g = graph_of(F_INC N_CONST("x", "1") N_CONST("y", "1")
                 "node { name: 'c' op: 'PartitionedCall' input: 'x' " FN("f", "inc") TYPES("Tin", ONE) TYPES("Tout", ONE " " ONE) "} " N_RET("c"));
    p = plan_of(g); /* says two results, the function has one */
    assert_fails(TRN_INVALID_ARGUMENT, run_f(p, &v, 1), "1 results, 2");
    trn_plan_unref(p);
    g = graph_of(F_INC "node { name: 'c' op: 'PartitionedCall' " FN("f", "inc") TYPES("Tin", "") TYPES("Tout", ONE) "} " N_RET("c"));
    p = plan_of(g);
    assert_fails(TRN_INVALID_ARGUMENT, run_f(p, &v, 1), "takes 1 arguments, got 0");
    trn_plan_unref(p);
}

/* Each function's stateful nodes have a state of their own, which lasts. */
static void states_of_bodies(void **state)
{
    trn_kcache *kc = trn_kcache_new();
    for (int i = 1; i <= 3; i++) {
        trn_graph *g = graph_of(F_COUNT F_COUNT2 N_CONST("x", "0") "node { name: 'a' op: 'count' input: 'x' } "
                                "node { name: 'b' op: 'count2' input: 'a' } " N_RET("b"));
        trn_plan *p;
        assert_ok(trn_plan_new(&p, g, &env, kc, resmgr));
        float v;
        assert_ok(run_f(p, &v, 1));
        assert_true(v == 2 * (float)i);
        trn_plan_unref(p);
    }
    trn_kcache_unref(kc);
}

/* Many at once, the first of them making the plan of the body. */
static void concurrent_calls(void **state)
{
    trn_graph *g = graph_of(F_INC F_LESS N_CONST("x", "0") N_WHILE("While") N_RET("w"));
    trn_plan *p = plan_of(g);
    enum { N = 16 };
    trn_value rets[N] = {0};
    loop_run r[N];
    trn_cancel *c = trn_cancel_new();
    trn_loop *loops[2];
    for (int i = 0; i < 2; i++)
        assert_ok(trn_loop_open(&loops[i], "l"));
    for (int i = 0; i < N; i++) {
        r[i] = (loop_run){.p = p, .o = {.n_rets = 1, .rets = &rets[i], .cancel = c}};
        sem_init(&r[i].w.sem, 0, 0);
        if (i % 3 == 0)
            start_on_loop(&r[i]); /* here */
        else
            trn_loop_post(loops[i % 2], start_on_loop, &r[i]);
    }
    for (int i = 0; i < N; i++) {
        sem_wait(&r[i].w.sem);
        assert_ok(r[i].w.err);
        assert_true(TRN_DATA(rets[i].t, float)[0] == 1000);
        trn_tensor_unref(rets[i].t);
    }
    for (int i = 0; i < 2; i++)
        trn_loop_close(loops[i]);
    trn_cancel_unref(c);
    trn_plan_unref(p);
}

#define T(f) cmocka_unit_test(f)
int main(void)
{
    const struct CMUnitTest tests[] = {T(calls), T(ifs), T(branches), T(whiles), T(recursion), T(errors), T(states_of_bodies), T(concurrent_calls)};
    return cmocka_run_group_tests(tests, setup, exec_teardown);
}
