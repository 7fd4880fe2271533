/* The executor: order, values, control flow, errors, cancellation, threads. */
#include "exec_util.h"

#include "op/kctx.h"
#include "res/rdv.h"

#include <sched.h>
#include <unistd.h>


/* ---- rows -------------------------------------------------------------------------------------------------------- */

static _Atomic int in_place, ran, on_pool, on_loop, on_disk, fini_calls;

static trn_err t_add(trn_kctx *k)
{
    const float *a = TRN_DATA(k->in[0].t, float), *b = TRN_DATA(k->in[1].t, float);
    trn_tensor *x = k->in[0].t, *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    in_place += x == y;
    for (int64_t i = 0; i < y->count; i++)
        TRN_DATA_MUT(y, float)[i] = a[i] + b[k->in[1].t->count == 1 ? 0 : i];
    return TRN_OK;
}

static trn_err t_where(trn_kctx *k)
{
    on_pool += trn_pool_here(env.pool);
    on_disk += trn_pool_here(env.disk);
    on_loop += trn_loop_current() != NULL;
    ran++;
    trn_out_set(k, 0, trn_tensor_ref(k->in[0].t));
    return TRN_OK;
}

/* A small input, a large output. */
static trn_err t_grow(trn_kctx *k)
{
    on_pool += trn_pool_here(env.pool);
    on_loop += trn_loop_current() != NULL;
    trn_shape shape = {.rank = 1, .dim = {(int64_t)TRN_DATA(k->in[0].t, float)[0]}};
    trn_tensor *y;
    TRN_TRY(trn_tensor_new(&y, TRN_FLOAT, &shape));
    trn_out_set(k, 0, y);
    return TRN_OK;
}

static trn_err t_fail(trn_kctx *k) { return trn_errorf((trn_code)trn_attr_int(k->node, "code"), "it went wrong"); }
static trn_err t_forget(trn_kctx *k) { return TRN_OK; }
static trn_err t_wrong(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_i32(1));
    return TRN_OK;
}

/* Parks until let_go() or cancelled. */
typedef struct parked {
    struct parked *next;
    trn_kctx *k;
    trn_cancel_hook hook;
    bool listed;
} parked;
static pthread_mutex_t park_mu = PTHREAD_MUTEX_INITIALIZER;
static parked *park_list;
static int n_parked;

static bool unlist(parked *p)
{
    pthread_mutex_lock(&park_mu);
    bool was = p->listed;
    if (was)
        for (parked **at = &park_list; *at; at = &(*at)->next)
            if (*at == p) {
                *at = p->next;
                break;
            }
    p->listed = false;
    n_parked -= was;
    pthread_mutex_unlock(&park_mu);
    return was;
}

static void unpark(parked *p, trn_err err)
{
    trn_kctx *k = p->k;
    trn_cancel_remove(trn_k_cancel(k), &p->hook);
    free(p);
    if (!err)
        trn_out_set(k, 0, trn_tensor_ref(k->in[0].t));
    trn_k_done(k, err);
}

static void park_cancelled(void *arg_)
{
    if (unlist(arg_))
        unpark(arg_, trn_errorf(TRN_CANCELLED, "parked and cancelled"));
}

static trn_err t_park(trn_kctx *k)
{
    parked *p = trn_xalloc(sizeof *p);
    p->k = k;
    if (!trn_cancel_add(trn_k_cancel(k), &p->hook, park_cancelled, p)) {
        free(p);
        return trn_errorf(TRN_CANCELLED, "cancelled before it parked");
    }
    pthread_mutex_lock(&park_mu);
    p->listed = true;
    p->next = park_list;
    park_list = p;
    n_parked++;
    pthread_mutex_unlock(&park_mu);
    if (trn_cancelled(trn_k_cancel(k)))
        park_cancelled(p);
    return TRN_OK;
}

static int let_go(int max)
{
    int n = 0;
    for (; n < max; n++) {
        pthread_mutex_lock(&park_mu);
        parked *p = park_list;
        if (p) {
            park_list = p->next;
            p->listed = false;
            n_parked--;
        }
        pthread_mutex_unlock(&park_mu);
        if (!p)
            break;
        unpark(p, TRN_OK);
    }
    return n;
}

static void wait_parked(int n)
{
    for (;;) {
        pthread_mutex_lock(&park_mu);
        int have = n_parked;
        pthread_mutex_unlock(&park_mu);
        if (have >= n)
            return;
        sched_yield();
    }
}

static void later_fn(void *arg_)
{
    trn_kctx *k = arg_;
    trn_out_set(k, 0, trn_tensor_ref(k->in[0].t));
    trn_k_done(k, TRN_OK);
}
static trn_err t_later(trn_kctx *k)
{
    trn_pool_submit(env.pool, later_fn, k);
    return TRN_OK;
}
static trn_err t_now(trn_kctx *k)
{
    later_fn(k);
    return TRN_OK;
}
static trn_err t_async_fail(trn_kctx *k) { return trn_errorf(TRN_UNAVAILABLE, "not today"); }

static trn_err count_init(trn_kinit *ki)
{
    ki->state = trn_xalloc(sizeof(_Atomic int));
    return TRN_OK;
}
static void count_fini(void *s)
{
    fini_calls++;
    free(s);
}
static trn_err t_count(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_f32((float)++*(_Atomic int *)k->state));
    return TRN_OK;
}
static trn_err bad_init(trn_kinit *ki) { return TRN_BAD("no such thing"); }

static trn_err make_var(trn_resource **out, void *arg_)
{
    trn_var *v;
    TRN_TRY(trn_var_new(&v, arg_, TRN_FLOAT, NULL));
    *out = &v->base;
    return TRN_OK;
}
static trn_err t_var(trn_kctx *k)
{
    trn_var *v;
    TRN_TRY(trn_resmgr_get_or_make(&v, trn_k_resmgr(k), "", k->node->name, &trn_var_type, make_var, (void *)k->node->name));
    trn_out_var(k, 0, v);
    trn_resource_unref(v);
    return TRN_OK;
}
static trn_err t_assign(trn_kctx *k)
{
    trn_var_assign(k->in[0].var, trn_tensor_ref(k->in[1].t));
    trn_out_var(k, 0, k->in[0].var);
    return TRN_OK;
}
static trn_err t_needs_ref(trn_kctx *k)
{
    trn_out_var(k, 0, k->in[0].var);
    return TRN_OK;
}
static void for_sum(void *arg_, int64_t b, int64_t e) { atomic_fetch_add((_Atomic int64_t *)arg_, e - b); }
static trn_err t_for(trn_kctx *k)
{
    _Atomic int64_t sum = 0;
    trn_k_for(k, 100000, 100, for_sum, &sum);
    trn_out_set(k, 0, trn_tensor_f32((float)sum));
    return TRN_OK;
}

/* x · 1e-30, here and in pieces on the pool; counts what is not zero. */
static void tiny_part(void *x, int64_t b, int64_t e)
{
    volatile float v = *(const float *)x;
    for (int64_t i = b; i < e; i++)
        ran += v * 1e-30f != 0;
    usleep(100); /* somebody else comes too */
}
static trn_err t_tiny(trn_kctx *k)
{
    float x = *TRN_DATA(k->in[0].t, float);
    trn_k_for(k, 64, 1, tiny_part, &x);
    trn_out_set(k, 0, trn_tensor_f32((float)ran));
    return TRN_OK;
}

static trn_err t_may_owe(trn_kctx *k)
{
    trn_out_set(k, 0, trn_tensor_f32(trn_k_may_owe(k)));
    return TRN_OK;
}

#define SAME "x:T -> y:T; T:f32"
static const trn_op rows[] = {
    {"TestAdd", "x:T, y:T -> z:T; T:f32", trn_sh_same, t_add, 0},
    {"TestHeavyAdd", "x:T, y:T -> z:T; T:f32", trn_sh_same, t_add, TRN_OP_HEAVY},
    {"TestTiny", SAME, trn_sh_same, t_tiny, 0},
    {"TestCheap", SAME, trn_sh_same, t_where, TRN_OP_CHEAP},
    {"TestPlain", SAME, trn_sh_same, t_where, 0},
    {"TestHeavy", SAME, trn_sh_same, t_where, TRN_OP_HEAVY},
    {"TestStream", SAME, trn_sh_same, t_where, TRN_OP_STREAM},
    {"TestMayOwe", SAME, trn_sh_same, t_may_owe, 0},
    {"TestGrow", SAME, trn_sh_unknown, t_grow, 0},
    {"TestDisk", SAME, trn_sh_same, t_where, TRN_OP_DISK},
    {"TestFail", SAME ", code:int=3", trn_sh_same, t_fail, 0},
    {"TestForget", SAME, trn_sh_same, t_forget, 0},
    {"TestWrong", SAME, trn_sh_same, t_wrong, 0},
    {"TestPark", SAME, trn_sh_same, t_park, TRN_OP_ASYNC},
    {"TestLater", SAME, trn_sh_same, t_later, TRN_OP_ASYNC},
    {"TestNow", SAME, trn_sh_same, t_now, TRN_OP_ASYNC},
    {"TestAsyncFail", SAME, trn_sh_same, t_async_fail, TRN_OP_ASYNC},
    {"TestCount", "-> y:f32", trn_sh_scalar, t_count, TRN_OP_STATEFUL, count_init, count_fini},
    {"TestOwnCount", "-> y:f32", trn_sh_scalar, t_count, 0, count_init, count_fini},
    {"TestBadInit", "-> y:f32", trn_sh_scalar, t_count, 0, bad_init, NULL},
    {"TestVar", "-> ref:&f32", trn_sh_unknown, t_var, TRN_OP_STATEFUL},
    {"TestAssign", "ref:&f32, v:f32 -> out:&f32", trn_sh_unknown, t_assign, TRN_OP_UNINIT_OK | TRN_OP_STATEFUL},
    {"TestNeedsRef", "ref:&f32 -> out:&f32", trn_sh_unknown, t_needs_ref, 0},
    {"TestFor", "-> y:f32", trn_sh_scalar, t_for, TRN_OP_HEAVY},
    {0},
};

static trn_edge op1(trn_graph *g, const char *op, const char *name, trn_edge a) { return add(g, op, name, ATTRS(F32), INS(a)); }
static trn_edge tadd(trn_graph *g, const char *name, trn_edge a, trn_edge b) { return add(g, "TestAdd", name, ATTRS(F32), INS(a, b)); }

static int setup(void **state)
{
    trn_op_register_test(rows);
    graph_util_setup(state);
    return exec_setup(state);
}

/* ---- straight lines ----------------------------------------------------------------------------------------------- */

static void straight(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge x = addv2(g, "x", konst(g, "a", 2), konst(g, "b", 3));
    ret(g, 0, addv2(g, "y", x, x)); /* the same value twice */
    ret(g, 1, x);
    trn_plan *p = plan_of(g);
    assert_int_equal(trn_plan_n_rets(p), 2);
    for (int i = 0; i < 3; i++) {
        float v[2] = {0};
        assert_ok(run_f(p, v, 2));
        assert_true(v[0] == 10 && v[1] == 5);
    }
    trn_plan_unref(p);
    g = trn_graph_new(NULL);
    p = plan_of(g); /* nothing to do is fine too */
    assert_ok(run_f(p, NULL, 0));
    trn_plan_unref(p);
}

static void diamond_and_args(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge a = arg(g, 0), b = arg(g, 1);
    trn_edge l = addv2(g, "l", a, b), r = addv2(g, "r", b, b);
    ret(g, 0, addv2(g, "sum", l, r));
    trn_plan *p = plan_of(g);
    assert_int_equal(trn_plan_n_args(p), 2);
    trn_value args[2] = {{.t = trn_tensor_f32(1)}, {.t = trn_tensor_f32(10)}}, rets[1] = {0};
    assert_ok(run_opts(p, (trn_run_opts){.n_args = 2, .args = args, .n_rets = 1, .rets = rets}));
    assert_true(TRN_DATA(rets[0].t, float)[0] == 31);
    trn_tensor_unref(rets[0].t);
    rets[0].t = NULL;
    assert_fails(TRN_INVALID_ARGUMENT, run_opts(p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}), "Argument 1");
    assert_null(rets[0].t);
    trn_tensor *wrong = trn_tensor_i32(1), *right = args[1].t;
    args[1].t = wrong;
    assert_fails(TRN_INVALID_ARGUMENT, run_opts(p, (trn_run_opts){.n_args = 2, .args = args, .n_rets = 1, .rets = rets}), "int32");
    assert_true(TRN_DATA(args[0].t, float)[0] == 1); /* nobody wrote into what was lent */
    trn_tensor_unref(wrong);
    trn_tensor_unref(right);
    trn_tensor_unref(args[0].t);
    trn_plan_unref(p);
}

static void control_edges(void **state)
{
    for (int round = 0; round < 50; round++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge v = add(g, "TestVar", "cv", NO_ATTRS, NO_INS);
        trn_edge a1 = add(g, "TestAssign", "a1", NO_ATTRS, INS(v, konst(g, "one", 1)));
        trn_edge a2 = add(g, "TestAssign", "a2", NO_ATTRS, INS(v, op1(g, "TestLater", "later", konst(g, "two", 2))));
        trn_edge read = ident(g, "read", v);
        trn_edge last = add(g, "NoOp", "barrier", NO_ATTRS, NO_INS);
        ctl(g, a2, a1);
        ctl(g, last, a2);
        ctl(g, read, last);
        ret(g, 0, read);
        assert_true(run_1(g) == 2);
    }
    trn_resmgr_clear(resmgr, NULL);
}

static void in_place_forwarding(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge a = arg(g, 0), c = konst(g, "c", 1);
    trn_edge x1 = tadd(g, "x1", c, a);  /* a constant's buffer is never taken */
    trn_edge x2 = tadd(g, "x2", x1, c); /* x1 has one user: taken */
    trn_edge x3 = tadd(g, "x3", x2, c);
    trn_edge i = ident(g, "i", x3);     /* moves, does not count */
    trn_edge x4 = tadd(g, "x4", i, c);
    trn_edge both = tadd(g, "both", x4, x4); /* the same value twice: not taken */
    ret(g, 0, both);
    trn_plan *p = plan_of(g);
    trn_value args[1] = {{.t = trn_tensor_f32(5)}};
    for (int round = 0; round < 3; round++) {
        trn_value rets[1] = {0};
        in_place = 0;
        assert_ok(run_opts(p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
        assert_int_equal(in_place, 3);
        assert_true(TRN_DATA(rets[0].t, float)[0] == 18);
        trn_tensor_unref(rets[0].t);
    }
    assert_true(TRN_DATA(args[0].t, float)[0] == 5);
    trn_tensor_unref(args[0].t);
    trn_plan_unref(p);
}

static void references(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge v = add(g, "TestVar", "rv", NO_ATTRS, NO_INS);
    ret(g, 0, addv2(g, "sum", v, v));
    trn_plan *p = plan_of(g);
    float out;
    assert_fails(TRN_FAILED_PRECONDITION, run_f(p, &out, 1), "Attempting to use uninitialized value rv\n\t [[{{node sum}}]]");
    trn_plan_unref(p);
    g = trn_graph_new(NULL);
    v = add(g, "TestVar", "rv", NO_ATTRS, NO_INS);
    ret(g, 0, ident(g, "id", add(g, "TestNeedsRef", "needs", NO_ATTRS, INS(v))));
    p = plan_of(g);
    assert_fails(TRN_FAILED_PRECONDITION, run_f(p, &out, 1), "[[{{node needs}}]]");
    trn_plan_unref(p);
    g = trn_graph_new(NULL);
    v = add(g, "TestVar", "rv", NO_ATTRS, NO_INS);
    trn_edge as = add(g, "TestAssign", "as", NO_ATTRS, INS(v, konst(g, "c", 4)));
    ret(g, 0, addv2(g, "sum", as, as));
    assert_true(run_1(g) == 8);
    trn_resmgr_clear(resmgr, NULL);
}

static void states(void **state)
{
    fini_calls = 0;
    trn_kcache *kc = trn_kcache_new();
    float v[2] = {0};
    for (int i = 1; i <= 2; i++) { /* two plans of one session */
        trn_graph *g = trn_graph_new(NULL);
        ret(g, 0, add(g, "TestCount", "n", NO_ATTRS, NO_INS));
        ret(g, 1, add(g, "TestOwnCount", "own", NO_ATTRS, NO_INS));
        trn_plan *p;
        assert_ok(trn_plan_new(&p, g, &env, kc, resmgr));
        assert_ok(run_f(p, v, 2));
        assert_true(v[0] == (float)i && v[1] == 1);
        trn_plan_unref(p);
    }
    assert_int_equal(fini_calls, 2);
    trn_kcache_unref(kc);
    assert_int_equal(fini_calls, 3);
    trn_graph *g = trn_graph_new(NULL);
    add(g, "TestBadInit", "n", NO_ATTRS, NO_INS);
    trn_plan *p;
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "no such thing\n\t [[{{node n}}]]");
}

/* ---- threads ------------------------------------------------------------------------------------------------------- */

static void parallel_for_works(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, add(g, "TestFor", "f", NO_ATTRS, NO_INS));
    assert_true(run_1(g) == 100000);
}

/* Kernels take subnormal numbers as zero; the thread that called has its own way again afterwards. */
static void subnormal_numbers_are_zero(void **state)
{
    volatile float small = 1e-15f, tiny = 1e-30f;
    trn_fpu before = trn_fpu_state();
    for (int flush = 0; flush < 2; flush++) {
        if (flush)
            trn_fpu_flush();
        ran = 0;
        trn_graph *g = trn_graph_new(NULL);
        ret(g, 0, op1(g, "TestTiny", "t", konst(g, "c", small)));
        assert_true(run_1(g) == 0);
        assert_true((small * tiny == 0) == flush);
    }
    trn_fpu_restore(before);
    assert_true(small * tiny != 0);
    /* And when constants are folded. */
    trn_graph *g = trn_graph_new(NULL);
    trn_edge c = konst(g, "c", small), t = op1(g, "TestTiny", "t", c);
    trn_tensor *in[] = {trn_tensor_f32(small)}, *out = NULL;
    ran = 0;
    assert_ok(trn_exec_eval(&out, &g->node[t.node]->n, in));
    assert_true(*TRN_DATA(out, float) == 0);
    assert_true(small * tiny != 0);
    trn_tensor_unref(out);
    trn_tensor_unref(in[0]);
    trn_graph_free(g);
}

static trn_graph *threads_graph(void)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge a = arg(g, 0);
    trn_edge c = op1(g, "TestCheap", "c", a);
    trn_edge s = op1(g, "TestPlain", "s", c);
    trn_edge h = op1(g, "TestHeavy", "h", s);
    trn_edge d = op1(g, "TestDisk", "d", h);
    ret(g, 0, d);
    return g;
}

static trn_err run_on_loop(trn_loop *loop, trn_plan *p, trn_run_opts o)
{
    loop_run l = {.p = p, .o = o};
    l.o.cancel = trn_cancel_new();
    sem_init(&l.w.sem, 0, 0);
    trn_loop_post(loop, start_on_loop, &l);
    while (sem_wait(&l.w.sem))
        ;
    sem_destroy(&l.w.sem);
    trn_cancel_unref(l.o.cancel);
    return l.w.err;
}

static void which_thread(void **state)
{
    trn_loop *loop;
    assert_ok(trn_loop_open(&loop, "test"));
    trn_plan *p = plan_of(threads_graph());
    trn_value args[1] = {{.t = trn_tensor_f32(5)}}, rets[1] = {0};
    on_loop = on_pool = on_disk = 0;
    assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
    assert_int_equal(on_loop, 2); /* cheap, and small */
    assert_int_equal(on_pool, 1); /* heavy */
    assert_int_equal(on_disk, 1);
    trn_tensor_unref(rets[0].t);
    trn_tensor_unref(args[0].t);
    int64_t dims[1] = {100000}; /* large inputs are not for the loop, unless cheap */
    float *zeros = trn_xalloc(400000);
    args[0].t = trn_tensor_from(TRN_FLOAT, 1, dims, zeros);
    free(zeros);
    rets[0].t = NULL;
    on_loop = on_pool = on_disk = 0;
    assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
    assert_int_equal(on_loop, 1);
    assert_int_equal(on_pool, 2);
    assert_int_equal(on_disk, 1);
    trn_tensor_unref(rets[0].t);
    trn_tensor_unref(args[0].t);
    trn_plan_unref(p);
    trn_loop_close(loop);
}

static void nothing(void *arg) { (void)arg; }
static void no_piece(void *arg, int64_t begin, int64_t end) { (void)arg, (void)begin, (void)end; }

/* Kernels may leave work only where nobody touches what was fed, and in sight of nobody. While some is left, runs do not start on a loop: what they read may cost. */
static void owing(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, op1(g, "TestMayOwe", "s", arg(g, 0)));
    trn_plan *p = plan_of(g);
    trn_trace *trace = trn_xalloc(sizeof *trace);
    trn_mutex_init(&trace->mu, TRN_RANK_LEAF);
    for (int i = 0; i < 4; i++) {
        trn_value args[1] = {{.t = trn_tensor_f32(1)}}, rets[1] = {0};
        env.intra = i == 3;
        assert_ok(run_opts(p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets, .may_owe = i != 0, .trace = i == 1 ? trace : NULL}));
        env.intra = 0;
        assert_int_equal(*TRN_DATA(rets[0].t, float), i == 2); /* one thread would only put it off */
        trn_tensor_unref(rets[0].t);
        trn_tensor_unref(args[0].t);
    }
    trn_mutex_fini(&trace->mu);
    free(trace->v);
    free(trace);
    trn_plan_unref(p);

    trn_loop *loop;
    assert_ok(trn_loop_open(&loop, "test"));
    g = trn_graph_new(NULL);
    ret(g, 0, op1(g, "TestCheap", "c", op1(g, "TestPlain", "p", arg(g, 0))));
    p = plan_of(g);
    for (int left = 0; left < 2; left++) {
        trn_later *l = left ? trn_later_new(1, 1, no_piece, NULL, nothing) : NULL;
        trn_value args[1] = {{.t = trn_tensor_f32(1)}}, rets[1] = {0};
        on_loop = on_pool = 0;
        assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
        assert_int_equal(on_loop, left ? 0 : 2);
        assert_int_equal(on_pool, left ? 2 : 0);
        trn_tensor_unref(rets[0].t);
        trn_tensor_unref(args[0].t);
        if (l)
            trn_later_end(l);
        trn_later_unref(l);
    }
    trn_plan_unref(p);
    trn_loop_close(loop);
}

static void hold_up(void *arg)
{
    for (uint64_t end = trn_now_ns() + *(uint64_t *)arg; trn_now_ns() < end;)
        ;
}

/* Some megabytes may be streamed through by a loop that has time. */
static void streams_where_it_arrived(void **state)
{
    trn_loop *loop;
    assert_ok(trn_loop_open(&loop, "test"));
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, op1(g, "TestStream", "s", arg(g, 0)));
    trn_plan *p = plan_of(g);
    static uint64_t busy_ns = 100000000, no_ns;
    static const struct {
        int64_t count;
        bool busy, here;
    } cases[] = {{100000, false, true}, {10, true, true}, {1000000, false, false}, {100000, true, false}, {400000, false, true}};
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        if (cases[i].busy)
            for (int k = 0; k < 4; k++)
                trn_loop_post(loop, hold_up, &busy_ns);
        else
            for (int k = 0; k < 4; k++) { /* and out of a sleep, so that it has counted it */
                nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
                trn_loop_post(loop, hold_up, &no_ns);
            }
        float *zeros = trn_xalloc((size_t)cases[i].count * 4);
        trn_value args[1] = {{.t = trn_tensor_from(TRN_FLOAT, 1, &cases[i].count, zeros)}}, rets[1] = {0};
        free(zeros);
        on_loop = on_pool = 0;
        assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
        assert_int_equal(on_loop, cases[i].here);
        assert_int_equal(on_pool, !cases[i].here);
        trn_tensor_unref(rets[0].t);
        trn_tensor_unref(args[0].t);
    }
    trn_plan_unref(p);
    trn_loop_close(loop);
}

/* What a node made the last time counts as its inputs do. */
static void large_results_leave_the_loop(void **state)
{
    trn_loop *loop;
    assert_ok(trn_loop_open(&loop, "test"));
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, op1(g, "TestGrow", "s", arg(g, 0)));
    trn_plan *p = plan_of(g);
    static const float sizes[] = {100000, 1, 1};
    for (int i = 0; i < 3; i++) {
        trn_value args[1] = {{.t = trn_tensor_f32(sizes[i])}}, rets[1] = {0};
        on_loop = on_pool = 0;
        assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_args = 1, .args = args, .n_rets = 1, .rets = rets}));
        assert_int_equal(on_loop, i != 1);
        assert_int_equal(on_pool, i == 1);
        trn_tensor_unref(rets[0].t);
        trn_tensor_unref(args[0].t);
    }
    trn_plan_unref(p);
    trn_loop_close(loop);
}

static trn_edge cheap_body(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    return plus_one(g, name, op1(g, "TestCheap", "where", i), NULL);
}

/* A loop of a hundred thousand cheap nodes leaves the loop thread after its share. */
static void leaves_the_loop_thread(void **state)
{
    trn_loop *loop;
    assert_ok(trn_loop_open(&loop, "test"));
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, while_loop(g, "w", konst(g, "zero", 0), konst(g, "n", 10000), 10, cheap_body, NULL));
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    on_loop = on_pool = 0;
    assert_ok(run_on_loop(loop, p, (trn_run_opts){.n_rets = 1, .rets = rets}));
    assert_true(TRN_DATA(rets[0].t, float)[0] == 10000);
    assert_int_equal(on_loop + on_pool, 10000);
    assert_true(on_loop > 0 && on_loop < 2000);
    trn_tensor_unref(rets[0].t);
    trn_plan_unref(p);
    trn_loop_close(loop);
}

static void asynchronous(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge c = konst(g, "c", 1);
    trn_edge a = op1(g, "TestLater", "a", c), b = op1(g, "TestNow", "b", c), d = op1(g, "TestPark", "d", c);
    ret(g, 0, addv2(g, "s2", addv2(g, "s1", a, b), d));
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    waiting w;
    sem_init(&w.sem, 0, 0);
    trn_run_opts o = {.n_rets = 1, .rets = rets, .cancel = trn_cancel_new()};
    trn_plan_run(p, &o, on_done, &w);
    wait_parked(1);
    assert_int_equal(let_go(1), 1);
    sem_wait(&w.sem);
    assert_ok(w.err);
    assert_true(TRN_DATA(rets[0].t, float)[0] == 3);
    trn_tensor_unref(rets[0].t);
    trn_cancel_unref(o.cancel);
    trn_plan_unref(p);
}

/* Reading a reference variable early is not reading its early value: who uses it after an update sees the update. */
static void reads_see_ordered_updates(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge v = add(g, "TestVar", "late", NO_ATTRS, NO_INS);
    ret(g, 0, ident(g, "id", add(g, "TestAssign", "as", NO_ATTRS, INS(v, konst(g, "c", 1)))));
    assert_true(run_1(g) == 1);
    g = trn_graph_new(NULL);
    v = add(g, "TestVar", "late", NO_ATTRS, NO_INS);
    trn_edge read = ident(g, "read", v);
    trn_edge as = add(g, "TestAssign", "as", NO_ATTRS, INS(v, op1(g, "TestPark", "park", konst(g, "c", 5))));
    trn_edge use = addv2(g, "use", read, read);
    ctl(g, use, as);
    ret(g, 0, use);
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    waiting w;
    sem_init(&w.sem, 0, 0);
    trn_run_opts o = {.n_rets = 1, .rets = rets, .cancel = trn_cancel_new()};
    trn_plan_run(p, &o, on_done, &w);
    wait_parked(1);
    usleep(5000); /* "read" has run by now */
    assert_int_equal(let_go(1), 1);
    sem_wait(&w.sem);
    assert_ok(w.err);
    assert_true(TRN_DATA(rets[0].t, float)[0] == 10);
    trn_tensor_unref(rets[0].t);
    trn_cancel_unref(o.cancel);
    trn_plan_unref(p);
    trn_resmgr_clear(resmgr, NULL);
}

/* A chain of kernels that end before they return needs no stack. */
static void long_chain(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge e = konst(g, "c", 7);
    for (int i = 0; i < 20000; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        e = op1(g, i % 2 ? "TestNow" : "TestPlain", name, e);
    }
    ret(g, 0, e);
    assert_true(run_1(g) == 7);
}

static void thousand_runs(void **state)
{
    enum { N = 1000 };
    trn_graph *g = trn_graph_new(NULL);
    trn_edge a = arg(g, 0);
    ret(g, 0, addv2(g, "s", op1(g, "TestPark", "p", a), op1(g, "TestLater", "l", a)));
    trn_plan *p = plan_of(g);
    trn_value *args = trn_xalloc(N * sizeof *args), *rets = trn_xalloc(N * sizeof *rets);
    waiting *w = trn_xalloc(N * sizeof *w);
    trn_cancel *c = trn_cancel_new();
    for (int i = 0; i < N; i++) {
        args[i].t = trn_tensor_f32((float)i);
        sem_init(&w[i].sem, 0, 0);
        trn_run_opts o = {.n_args = 1, .args = &args[i], .n_rets = 1, .rets = &rets[i], .cancel = c};
        trn_plan_run(p, &o, on_done, &w[i]);
    }
    wait_parked(N);
    assert_int_equal(let_go(N), N);
    for (int i = 0; i < N; i++) {
        sem_wait(&w[i].sem);
        sem_destroy(&w[i].sem);
        assert_ok(w[i].err);
        assert_true(TRN_DATA(rets[i].t, float)[0] == 2 * (float)i);
        trn_tensor_unref(rets[i].t);
        trn_tensor_unref(args[i].t);
    }
    trn_cancel_unref(c);
    trn_plan_unref(p);
    free(args);
    free(rets);
    free(w);
}

/* Random graphs of everything above give what a plain evaluation gives. */
static void random_graphs(void **state)
{
    unsigned seed = 1;
    for (int round = 0; round < 40; round++) {
        enum { N = 120 };
        trn_graph *g = trn_graph_new(NULL);
        trn_edge e[N];
        float v[N], want = 0;
        for (int i = 0; i < N; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%d", i);
            int kind = i < 3 ? 0 : rand_r(&seed) % 9;
            int a = i ? rand_r(&seed) % i : 0, b = i ? rand_r(&seed) % i : 0;
            static const char *one[] = {"TestLater", "TestNow", "TestHeavy", "TestDisk", "TestPlain"};
            if (kind == 0) {
                e[i] = konst(g, name, v[i] = (float)(i % 5));
            } else if (kind <= 3) {
                e[i] = add(g, kind == 1 ? "TestHeavyAdd" : kind == 2 ? "TestAdd" : "AddV2", name, ATTRS(F32), INS(e[a], e[b]));
                v[i] = v[a] + v[b];
                if (v[i] > 1e6f) { /* keep sums exact */
                    v[i] = v[a];
                    g->node[e[i].node]->in[1] = e[0];
                    v[i] = v[a] + v[0];
                }
            } else {
                e[i] = op1(g, one[kind - 4], name, e[a]);
                v[i] = v[a];
            }
            if (i && rand_r(&seed) % 3 == 0 && b != i)
                ctl(g, e[i], e[b]);
        }
        want = v[N - 1] + v[N - 2];
        ret(g, 0, addv2(g, "sum", e[N - 1], e[N - 2]));
        trn_plan *p = plan_of(g);
        for (int i = 0; i < 3; i++) {
            float got;
            assert_ok(run_f(p, &got, 1));
            assert_true(got == want);
        }
        trn_plan_unref(p);
    }
}

/* ---- control flow --------------------------------------------------------------------------------------------------- */

static trn_edge boolean(trn_graph *g, const char *name, bool v) { return konst_of(g, name, trn_tensor_bool(v)); }

static void switch_and_merge(void **state)
{
    for (int yes = 0; yes < 2; yes++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge x = konst(g, "x", 10);
        trn_edge sw = add(g, "Switch", "sw", ATTRS(F32), INS(x, boolean(g, "p", yes)));
        trn_edge no = addv2(g, "no", sw, konst(g, "one", 1)), ya = addv2(g, "yes", slot(sw, 1), konst(g, "two", 2));
        trn_edge m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 2)), INS(no, ya));
        ret(g, 0, m);
        ret(g, 1, slot(m, 1));
        trn_plan *p = plan_of(g);
        trn_value r[2] = {0};
        assert_ok(run_opts(p, (trn_run_opts){.n_rets = 2, .rets = r}));
        assert_true(TRN_DATA(r[0].t, float)[0] == (yes ? 12 : 11));
        assert_int_equal(TRN_DATA(r[1].t, int32_t)[0], yes);
        trn_tensor_unref(r[0].t);
        trn_tensor_unref(r[1].t);
        trn_plan_unref(p);
    }
}

static void dead_things(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge sw = add(g, "Switch", "sw", ATTRS(F32), INS(konst(g, "x", 1), boolean(g, "p", false)));
    trn_edge fail = op1(g, "TestFail", "never", slot(sw, 1)); /* dead: does not run */
    trn_edge m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 1)), INS(fail));
    trn_edge behind = op1(g, "TestFail", "behind", m);
    ret(g, 0, behind);
    trn_edge trig = add(g, "ControlTrigger", "t", NO_ATTRS, NO_INS), alive = op1(g, "TestCheap", "alive", konst(g, "y", 2));
    ctl(g, trig, fail);
    ctl(g, alive, trig); /* a trigger revives */
    ret(g, 1, alive);
    trn_edge dead = op1(g, "TestFail", "dead_by_control", konst(g, "z", 2));
    ctl(g, dead, fail);
    trn_plan *p = plan_of(g);
    trn_value r[2] = {0};
    ran = 0;
    assert_fails(TRN_INVALID_ARGUMENT, run_opts(p, (trn_run_opts){.n_rets = 2, .rets = r}), "The tensor returned for behind:0 was not valid.");
    assert_int_equal(ran, 1);
    assert_null(r[1].t);
    trn_plan_unref(p);
}

static void merge_takes_the_first(void **state)
{
    trn_graph *g = trn_graph_new(NULL); /* two live inputs: not sound, but harmless */
    trn_edge a = konst(g, "a", 1), b = op1(g, "TestLater", "b", konst(g, "b0", 1));
    trn_edge m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 2)), INS(a, b));
    ret(g, 0, op1(g, "TestLater", "after", m));
    trn_plan *p = plan_of(g);
    for (int i = 0; i < 50; i++) {
        float v;
        assert_ok(run_f(p, &v, 1));
        assert_true(v == 1);
    }
    trn_plan_unref(p);
    g = trn_graph_new(NULL); /* waits for its control inputs */
    trn_edge c = op1(g, "TestLater", "c", konst(g, "c0", 1));
    m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 1)), INS(op1(g, "TestCheap", "x", konst(g, "a", 3))));
    ctl(g, m, c);
    ret(g, 0, m);
    assert_true(run_1(g) == 3);
}

static void switch_n(void **state)
{
    for (int i = -1; i < 4; i++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge sw = add(g, "_SwitchN", "sw", ATTRS(F32, A_INT("num_outs", 3)), INS(konst(g, "x", 1), konst_of(g, "i", trn_tensor_i32(i))));
        trn_edge b[3];
        for (int j = 0; j < 3; j++) {
            char name[8];
            snprintf(name, sizeof name, "b%d", j);
            b[j] = addv2(g, name, slot(sw, j), konst(g, name + 1, (float)j));
        }
        trn_edge m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 3)), INS(b[0], b[1], b[2]));
        ret(g, 0, m);
        assert_true(run_1(g) == (float)(1 + (i < 0 || i > 2 ? 2 : i)));
    }
}

static void loops(void **state)
{
    static const int parallel[] = {1, 2, 10, 1000};
    for (size_t i = 0; i < TRN_COUNTOF(parallel); i++)
        for (int n = 0; n <= 100; n += n < 3 ? 1 : 97) {
            trn_graph *g = trn_graph_new(NULL);
            trn_edge w = while_loop(g, "w", konst(g, "zero", 0), konst(g, "n", (float)n), parallel[i], plus_one, NULL);
            ret(g, 0, addv2(g, "after", w, konst(g, "h", 100)));
            assert_true(run_1(g) == (float)(100 + n));
        }
}

static trn_edge async_plus(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    char n[64];
    snprintf(n, sizeof n, "%s/later", name);
    return plus_one(g, name, op1(g, "TestLater", n, i), NULL);
}

/* for (i < 5) i = inner(i) where inner runs (j from i to i + 3), then i + 1 is taken from a third level. */
static trn_edge inner_body(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    int depth = *(int *)arg_;
    if (depth == 0)
        return async_plus(g, name, i, NULL);
    int less = depth - 1;
    char n[64];
    snprintf(n, sizeof n, "%s/in", name);
    char k[80];
    snprintf(k, sizeof k, "%s/zero", n);
    trn_edge zero = konst_in(g, k, 0, i);
    snprintf(k, sizeof k, "%s/three", n);
    trn_edge three = konst_in(g, k, 3, i);
    trn_edge in = while_loop(g, n, zero, three, 3, inner_body, &less);
    snprintf(k, sizeof k, "%s/third", n);
    trn_edge minus = konst_in(g, k, -2, i); /* 3 - 2: one more */
    snprintf(k, sizeof k, "%s/s1", n);
    trn_edge one = addv2(g, k, in, minus);
    snprintf(k, sizeof k, "%s/s2", n);
    return addv2(g, k, i, one);
}

static void nested_loops(void **state)
{
    for (int depth = 0; depth < 4; depth++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge w = while_loop(g, "w", konst(g, "zero", 0), konst(g, "n", 5), 4, inner_body, &depth);
        ret(g, 0, w);
        trn_plan *p = plan_of(g);
        for (int i = 0; i < 3; i++) {
            float v;
            assert_ok(run_f(p, &v, 1));
            assert_true(v == 5);
        }
        trn_plan_unref(p);
    }
}

/* A loop in a branch that is not taken: its exits die, and die once. */
static void dead_loop(void **state)
{
    for (int yes = 0; yes < 2; yes++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge sw = add(g, "Switch", "sw", ATTRS(F32), INS(konst(g, "zero", 0), boolean(g, "p", yes)));
        trn_edge lim = add(g, "Switch", "swl", ATTRS(F32), INS(konst(g, "n", 4), boolean(g, "p2", yes)));
        int depth = 1;
        trn_edge w = while_loop(g, "w", slot(sw, 1), slot(lim, 1), 10, inner_body, &depth);
        trn_edge m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 2)), INS(addv2(g, "no", sw, konst(g, "c", 77)), w));
        ret(g, 0, m);
        assert_true(run_1(g) == (yes ? 4 : 77));
    }
}

static trn_edge failing_body(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    trn_edge five = konst_in(g, "five", 5, i);
    trn_edge lt = add(g, "Less", "lt", ATTRS(F32), INS(i, five));
    trn_edge sw = add(g, "Switch", "isw", ATTRS(F32), INS(i, lt));
    trn_edge bad = op1(g, "TestFail", "bad", sw);
    trn_edge m = add(g, "Merge", "im", ATTRS(F32, A_INT("N", 2)), INS(bad, slot(sw, 1)));
    return async_plus(g, name, m, NULL);
}

static void errors_in_loops(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, while_loop(g, "w", konst(g, "zero", 0), konst(g, "n", 100), 10, failing_body, NULL));
    trn_plan *p = plan_of(g);
    float v;
    assert_fails(TRN_INVALID_ARGUMENT, run_f(p, &v, 1), "it went wrong\n\t [[{{node bad}}]]");
    trn_plan_unref(p);
}

static void malformed_frames(void **state)
{
    trn_plan *p;
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, add(g, "Exit", "e", ATTRS(F32), INS(konst(g, "c", 1))));
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "outside of a loop");
    g = trn_graph_new(NULL);
    add(g, "NextIteration", "e", ATTRS(F32), INS(konst(g, "c", 1)));
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "outside of a loop");
    g = trn_graph_new(NULL);
    trn_edge c = konst(g, "c", 1), en = add(g, "Enter", "en", ATTRS(F32, A_STR("frame_name", "f")), INS(c));
    addv2(g, "mix", en, c);
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "Node 'mix' has inputs from different frames");
    g = trn_graph_new(NULL);
    c = konst(g, "c", 1);
    trn_edge x = addv2(g, "x", c, c), y = addv2(g, "y", x, c);
    g->node[x.node]->in[1] = y;
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "cycle");
    g = trn_graph_new(NULL);
    ret(g, 0, c = konst(g, "c", 1));
    add(g, "_Retval", "again", ATTRS(F32, A_INT("index", 0)), INS(c));
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "taken");
    g = trn_graph_new(NULL);
    c = konst(g, "c", 1);
    for (int i = 0; i < 600; i++) {
        char name[16];
        snprintf(name, sizeof name, "e%d", i);
        c = add(g, "Enter", name, ATTRS(F32, A_STR("frame_name", "f")), INS(c));
    }
    assert_fails(TRN_INVALID_ARGUMENT, trn_plan_new(&p, g, &env, NULL, resmgr), "loops nest deeper");
    /* An Enter without an Exit and a NextIteration that nobody waits for end quietly. */
    g = trn_graph_new(NULL);
    en = add(g, "Enter", "en", ATTRS(F32, A_STR("frame_name", "f")), INS(konst(g, "c", 1)));
    add(g, "NextIteration", "next", ATTRS(F32), INS(op1(g, "TestCheap", "x", en)));
    p = plan_of(g);
    assert_ok(run_f(p, NULL, 0));
    trn_plan_unref(p);
}

/* ---- rendezvous ------------------------------------------------------------------------------------------------------- */

#define TRANSFER(nm)                                                                                                              \
    A_STR("tensor_name", nm), A_STR("send_device", "/job:a/replica:0/task:0/device:CPU:0"), A_INT("send_device_incarnation", 0xabc), \
        A_STR("recv_device", "/job:b/replica:0/task:0/device:CPU:0")
#define KEY(nm, tail) "/job:a/replica:0/task:0/device:CPU:0;0000000000000abc;/job:b/replica:0/task:0/device:CPU:0;" nm ";" tail

static trn_edge send_to(trn_graph *g, const char *name, trn_edge x) { return add(g, "_Send", name, ATTRS(F32, TRANSFER("edge")), INS(x)); }
static trn_edge recv_from(trn_graph *g, const char *name)
{
    return add(g, "_Recv", name, ATTRS(A_TYPE("tensor_type", TRN_FLOAT), TRANSFER("edge")), NO_INS);
}

typedef struct seen {
    int n, dead;
    float v;
} seen;
static void on_key(void *arg_, trn_err err, trn_tensor *t, bool dead)
{
    seen *s = arg_;
    s->n += !err;
    s->dead += dead;
    s->v = t ? TRN_DATA(t, float)[0] : -1;
    trn_err_free(err);
}

static void send_and_recv(void **state)
{
    trn_rdv *r = trn_rdv_local_new();
    trn_graph *g = trn_graph_new(NULL);
    send_to(g, "s", op1(g, "TestLater", "x", konst(g, "c", 6)));
    ret(g, 0, addv2(g, "y", recv_from(g, "r"), konst(g, "one", 1)));
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    assert_ok(run_opts(p, (trn_run_opts){.rdv = r, .n_rets = 1, .rets = rets}));
    assert_true(TRN_DATA(rets[0].t, float)[0] == 7);
    trn_tensor_unref(rets[0].t);
    rets[0].t = NULL;
    assert_fails(TRN_INTERNAL, run_opts(p, (trn_run_opts){.n_rets = 1, .rets = rets}), "rendezvous");
    trn_plan_unref(p);

    g = trn_graph_new(NULL); /* the key as TensorFlow writes it */
    send_to(g, "s", konst(g, "c", 5));
    p = plan_of(g);
    assert_ok(run_opts(p, (trn_run_opts){.rdv = r}));
    seen s = {0};
    r->type->recv(r, KEY("edge", "0:0"), NULL, on_key, &s);
    assert_true(s.n == 1 && s.v == 5);
    trn_plan_unref(p);

    g = trn_graph_new(NULL); /* a dead tensor travels, and what comes out is dead */
    trn_edge sw = add(g, "Switch", "sw", ATTRS(F32), INS(konst(g, "x", 1), boolean(g, "p", true)));
    send_to(g, "s", sw);
    trn_edge rc = recv_from(g, "r"), m = add(g, "Merge", "m", ATTRS(F32, A_INT("N", 2)), INS(op1(g, "TestFail", "no", rc), konst(g, "k", 9)));
    ret(g, 0, m);
    p = plan_of(g);
    assert_ok(run_opts(p, (trn_run_opts){.rdv = r, .n_rets = 1, .rets = rets}));
    assert_true(TRN_DATA(rets[0].t, float)[0] == 9);
    trn_tensor_unref(rets[0].t);
    rets[0].t = NULL;
    trn_plan_unref(p);
    trn_rdv_unref(r);

    r = trn_rdv_local_new(); /* the wrong type from a peer */
    trn_tensor *i = trn_tensor_i32(1);
    assert_ok(r->type->send(r, KEY("edge", "0:0"), i, false));
    trn_tensor_unref(i);
    g = trn_graph_new(NULL);
    ret(g, 0, recv_from(g, "r"));
    p = plan_of(g);
    assert_fails(TRN_INTERNAL, run_opts(p, (trn_run_opts){.rdv = r, .n_rets = 1, .rets = rets}), "Received int32, float expected");
    trn_plan_unref(p);
    trn_rdv_unref(r);
}

static trn_edge send_body(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    send_to(g, "s", i);
    return plus_one(g, name, i, NULL);
}

static void keys_of_loop(int producer, uint64_t id)
{
    trn_rdv *r = trn_rdv_local_new();
    trn_graph *g = trn_graph_new(NULL);
    g->producer = producer;
    while_loop(g, "w/frame", konst(g, "zero", 0), konst(g, "n", 3), 10, send_body, NULL);
    trn_plan *p = plan_of(g);
    assert_ok(run_opts(p, (trn_run_opts){.rdv = r}));
    for (int i = 0; i <= 3; i++) {
        char key[200];
        snprintf(key, sizeof key, KEY("edge", "%llu:%d"), (unsigned long long)id, i);
        seen s = {0};
        r->type->recv(r, key, NULL, on_key, &s);
        assert_int_equal(s.n, 1);
        assert_int_equal(s.dead, i == 3); /* the last iteration only finds out that it is over */
        if (i < 3)
            assert_true(s.v == (float)i);
    }
    trn_plan_unref(p);
    trn_rdv_unref(r);
}

static void keys_in_loops(void **state)
{
    uint64_t combined = trn_hash64_tf_combine(0, trn_hash64_tf_combine(0, trn_hash64_tf("w/frame", 7)));
    uint64_t named = trn_hash64_tf(";0;w/frame", 10);
    keys_of_loop(0, combined);
    keys_of_loop(134, named);    /* 1.15 */
    keys_of_loop(440, combined); /* 2.3 */
}

/* ---- errors, cancellation ---------------------------------------------------------------------------------------------- */

static void errors(void **state)
{
    static const struct {
        const char *op;
        trn_code code;
        const char *says;
    } bad[] = {
        {"TestFail", TRN_INVALID_ARGUMENT, "it went wrong\n\t [[{{node bad}}]] | TestFail"},
        {"TestForget", TRN_INTERNAL, "Missing 0-th output from TestForget\n\t [[{{node bad}}]]"},
        {"TestWrong", TRN_INTERNAL, "Output 0 of type int32 does not match declared output type float"},
        {"TestAsyncFail", TRN_UNAVAILABLE, "not today\n\t [[{{node bad}}]]"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_edge c = konst(g, "c", 1), b = op1(g, bad[i].op, "bad", op1(g, "TestLater", "l", c));
        ret(g, 0, addv2(g, "sum", b, op1(g, "TestPark", "park", c))); /* parked: the error must end it */
        ret(g, 1, op1(g, "TestHeavy", "h", c));
        trn_plan *p = plan_of(g);
        trn_rdv *r = trn_rdv_local_new();
        trn_cancel *cancel = trn_cancel_new();
        trn_value rets[2] = {0};
        trn_err e = run_opts(p, (trn_run_opts){.rdv = r, .cancel = cancel, .n_rets = 2, .rets = rets});
        assert_int_equal(trn_err_code(e), bad[i].code);
        assert_non_null(strstr(trn_err_msg(e), bad[i].says));
        assert_null(strstr(strstr(trn_err_msg(e), "[[{{node") + 1, "[[{{node"));
        trn_err_free(e);
        assert_null(rets[1].t);
        assert_true(trn_cancelled(cancel));
        e = trn_cancel_why(cancel);
        assert_true(trn_err_is_derived(e));
        trn_err_free(e);
        seen s = {0};
        r->type->recv(r, "any", NULL, on_key, &s); /* aborted: ends at once */
        assert_int_equal(s.n, 0);
        trn_cancel_unref(cancel);
        trn_rdv_unref(r);
        trn_plan_unref(p);
    }
}

static void cancelled_from_outside(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge c = konst(g, "c", 1);
    ret(g, 0, op1(g, "TestPark", "p2", op1(g, "TestPark", "park", c)));
    trn_plan *p = plan_of(g);
    for (int i = 0; i < 20; i++) {
        trn_value rets[1] = {0};
        waiting w;
        sem_init(&w.sem, 0, 0);
        trn_run_opts o = {.n_rets = 1, .rets = rets, .cancel = trn_cancel_new()};
        trn_plan_run(p, &o, on_done, &w);
        wait_parked(1);
        trn_cancel_fire(o.cancel, trn_errorf(TRN_DEADLINE_EXCEEDED, "Timed out waiting for notification"));
        sem_wait(&w.sem);
        assert_fails(TRN_DEADLINE_EXCEEDED, w.err, "Timed out");
        trn_cancel_unref(o.cancel);
    }
    trn_cancel *gone = trn_cancel_new();
    trn_cancel_fire(gone, trn_errorf(TRN_CANCELLED, "before it began"));
    assert_fails(TRN_CANCELLED, run_opts(p, (trn_run_opts){.cancel = gone}), "before it began");
    trn_cancel_unref(gone);
    trn_plan_unref(p);
}

/* Cancelling while a loop spins on the pool. */
static void cancel_a_busy_run(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, while_loop(g, "w", konst(g, "zero", 0), konst(g, "n", 1e9f), 10, async_plus, NULL));
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    waiting w;
    sem_init(&w.sem, 0, 0);
    trn_run_opts o = {.n_rets = 1, .rets = rets, .cancel = trn_cancel_new()};
    trn_plan_run(p, &o, on_done, &w);
    usleep(20000);
    trn_cancel_fire(o.cancel, trn_errorf(TRN_CANCELLED, "enough"));
    sem_wait(&w.sem);
    assert_fails(TRN_CANCELLED, w.err, "enough");
    trn_cancel_unref(o.cancel);
    trn_plan_unref(p);
}

static trn_edge storm_body(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    trn_edge lim = *(trn_edge *)arg_;
    trn_edge lt = add(g, "Less", "ok?", ATTRS(F32), INS(i, lim)); /* past the limit that this run was given, it fails */
    trn_edge sw = add(g, "Switch", "ssw", ATTRS(F32), INS(i, lt));
    trn_edge m = add(g, "Merge", "sm", ATTRS(F32, A_INT("N", 2)), INS(op1(g, "TestFail", "bad", sw), slot(sw, 1)));
    trn_edge h = op1(g, "TestHeavy", "heavy", m), l = op1(g, "TestNow", "now", m);
    trn_edge both = tadd(g, "both", h, l);
    trn_edge minus = add(g, "Sub", "minus", ATTRS(F32), INS(both, op1(g, "TestLater", "later", m)));
    int depth = 0;
    trn_edge zero = konst_in(g, "z", 0, i), two = konst_in(g, "t", 2, i);
    trn_edge in = while_loop(g, "inner", zero, two, 2, inner_body, &depth);
    trn_edge one = add(g, "Sub", "one1", ATTRS(F32), INS(in, konst_in(g, "o", 1, i)));
    return addv2(g, "next_i", minus, one);
}

/* Everything at once: loops, threads, errors, cancellations. Every run ends once, with its own result. */
static void storm(void **state)
{
    enum { N = 120, END = 12 };
    trn_graph *g = trn_graph_new(NULL);
    trn_edge start = arg(g, 0), lim = arg(g, 1);
    trn_edge inv = add(g, "Enter", "lim_in", ATTRS(F32, A_STR("frame_name", "w"), A_BOOL("is_constant", true), A_INT("parallel_iterations", 3)), INS(lim));
    ret(g, 0, while_loop(g, "w", start, konst(g, "end", END), 3, storm_body, &inv));
    trn_plan *p = plan_of(g);
    trn_loop *loops[2];
    for (int i = 0; i < 2; i++)
        assert_ok(trn_loop_open(&loops[i], "l"));
    trn_value *args = trn_xalloc(2 * N * sizeof *args), *rets = trn_xalloc(N * sizeof *rets);
    loop_run *r = trn_xalloc(N * sizeof *r);
    for (int i = 0; i < N; i++) {
        args[2 * i].t = trn_tensor_f32((float)(i % 5));
        args[2 * i + 1].t = trn_tensor_f32(i % 4 == 1 ? 8 : 100);
        r[i] = (loop_run){.p = p, .o = {.n_args = 2, .args = &args[2 * i], .n_rets = 1, .rets = &rets[i], .cancel = trn_cancel_new()}};
        sem_init(&r[i].w.sem, 0, 0);
        if (i % 3 == 0)
            start_on_loop(&r[i]);
        else
            trn_loop_post(loops[i % 2], start_on_loop, &r[i]);
        if (i % 5 == 2)
            trn_cancel_fire(r[i - i % 7].o.cancel, trn_errorf(TRN_CANCELLED, "that one"));
    }
    int good = 0, failed = 0, cancelled = 0;
    for (int i = 0; i < N; i++) {
        while (sem_wait(&r[i].w.sem))
            ;
        sem_destroy(&r[i].w.sem);
        trn_code c = trn_err_code(r[i].w.err);
        good += c == TRN_CODE_OK;
        failed += c == TRN_INVALID_ARGUMENT;
        cancelled += c == TRN_CANCELLED;
        if (c == TRN_CODE_OK)
            assert_true(i % 4 != 1 && TRN_DATA(rets[i].t, float)[0] == END);
        else
            assert_null(rets[i].t);
        trn_err_free(r[i].w.err);
        trn_cancel_unref(r[i].o.cancel);
        trn_tensor_unref(rets[i].t);
        trn_tensor_unref(args[2 * i].t);
        trn_tensor_unref(args[2 * i + 1].t);
    }
    assert_int_equal(good + failed + cancelled, N);
    assert_true(good > 0 && failed > 0);
    for (int i = 0; i < 2; i++)
        trn_loop_close(loops[i]);
    trn_plan_unref(p);
    free(args);
    free(rets);
    free(r);
}

/* ---- the rest ------------------------------------------------------------------------------------------------------------ */

static void tracing(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    ret(g, 0, addv2(g, "sum", konst(g, "a", 1), op1(g, "TestLater", "l", konst(g, "b", 1))));
    trn_plan *p = plan_of(g);
    trn_value rets[1] = {0};
    trn_trace t = {0};
    trn_mutex_init(&t.mu, TRN_RANK_LEAF);
    assert_ok(run_opts(p, (trn_run_opts){.n_rets = 1, .rets = rets, .trace = &t}));
    trn_tensor_unref(rets[0].t);
    assert_int_equal(t.n, 5);
    for (int i = 0; i < t.n; i++) {
        assert_true(t.v[i].start_ns && t.v[i].end_ns >= t.v[i].start_ns);
        if (strcmp(t.v[i].name, "sum") == 0) {
            assert_int_equal(t.v[i].dtype, TRN_FLOAT);
            assert_int_equal(t.v[i].out_bytes, 4);
        }
    }
    free(t.v);
    trn_mutex_fini(&t.mu);
    trn_plan_unref(p);
}

static void eval(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge a = konst(g, "a", 1), s = tadd(g, "s", a, a), f = op1(g, "TestFail", "f", a), park = op1(g, "TestPark", "p", a);
    trn_tensor *in[2] = {trn_tensor_f32(2), trn_tensor_f32(3)}, *out = NULL;
    assert_ok(trn_exec_eval(&out, &g->node[s.node]->n, in));
    assert_true(TRN_DATA(out, float)[0] == 5 && TRN_DATA(in[0], float)[0] == 2);
    trn_tensor_unref(out);
    assert_fails(TRN_INVALID_ARGUMENT, trn_exec_eval(&out, &g->node[f.node]->n, in), "wrong");
    assert_fails(TRN_INVALID_ARGUMENT, trn_exec_eval(&out, &g->node[park.node]->n, in), "TestPark");
    trn_tensor_unref(in[0]);
    trn_tensor_unref(in[1]);
    trn_graph_free(g);
}

#define T(f) cmocka_unit_test(f)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(straight), T(diamond_and_args), T(control_edges), T(in_place_forwarding), T(references), T(reads_see_ordered_updates), T(states), T(parallel_for_works), T(subnormal_numbers_are_zero),
        T(which_thread), T(owing), T(streams_where_it_arrived), T(large_results_leave_the_loop), T(leaves_the_loop_thread), T(asynchronous), T(long_chain), T(thousand_runs), T(random_graphs), T(switch_and_merge),
        T(dead_things), T(merge_takes_the_first), T(switch_n), T(loops), T(nested_loops), T(dead_loop), T(errors_in_loops), T(malformed_frames),
        T(send_and_recv), T(keys_in_loops), T(errors), T(cancelled_from_outside), T(cancel_a_busy_run), T(storm), T(tracing), T(eval),
    };
    return cmocka_run_group_tests(tests, setup, exec_teardown);
}
