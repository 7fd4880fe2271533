/* For tests of the executor: graphs built in a line per node, rows that fail, wait and count, and a way to run and wait. */
#ifndef EXEC_UTIL_H
#define EXEC_UTIL_H

#include <semaphore.h>

#include "exec/exec.h"
#include "graph_util.h"
#include "res/var.h"

/* ---- building --------------------------------------------------------------------------------------------------- */

#define A_TYPE(nm, t) ((trn_attr){.name = nm, .kind = TRN_ATTR_TYPE, .v.type = t})
#define A_INT(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_INT, .v.i = x})
#define A_BOOL(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_BOOL, .v.b = x})
#define A_STR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_STRING, .v.s = {x, strlen(x)}})
#define A_TENSOR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_TENSOR, .v.tensor = x})
#define F32 A_TYPE("T", TRN_FLOAT)
#define ATTRS(...) (const trn_attr[]){__VA_ARGS__}, (int)(sizeof((const trn_attr[]){__VA_ARGS__}) / sizeof(trn_attr))
#define NO_ATTRS NULL, 0
#define INS(...) (const trn_edge[]){__VA_ARGS__}, (int)(sizeof((const trn_edge[]){__VA_ARGS__}) / sizeof(trn_edge))
#define NO_INS NULL, 0

static inline trn_edge add(trn_graph *g, const char *op, const char *name, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    trn_gnode *gn;
    assert_ok(trn_graph_add(&gn, g, op, name, "", attrs, n_attrs, in, n_in));
    return (trn_edge){gn->id, 0};
}

static inline trn_edge slot(trn_edge e, int s) { return (trn_edge){e.node, s}; }
static inline void ctl(trn_graph *g, trn_edge to, trn_edge from) { trn_graph_add_ctl(g, g->node[to.node], from.node); }

static inline trn_edge konst_of(trn_graph *g, const char *name, trn_tensor *t)
{
    trn_edge e = add(g, "Const", name, ATTRS(A_TENSOR("value", t), A_TYPE("dtype", t->dtype)), NO_INS);
    trn_tensor_unref(t);
    return e;
}
static inline trn_edge konst(trn_graph *g, const char *name, float v) { return konst_of(g, name, trn_tensor_f32(v)); }
static inline trn_edge addv2(trn_graph *g, const char *name, trn_edge a, trn_edge b) { return add(g, "AddV2", name, ATTRS(F32), INS(a, b)); }
static inline trn_edge ident(trn_graph *g, const char *name, trn_edge a) { return add(g, "Identity", name, ATTRS(F32), INS(a)); }
static inline trn_edge ret(trn_graph *g, int i, trn_edge a)
{
    char name[24];
    snprintf(name, sizeof name, "ret%d", i);
    return add(g, "_Retval", name, ATTRS(A_TYPE("T", g->node[a.node]->n.out_types[a.slot] % TRN_REF), A_INT("index", i)), INS(a));
}
static inline trn_edge arg(trn_graph *g, int i)
{
    char name[24];
    snprintf(name, sizeof name, "arg%d", i);
    return add(g, "_Arg", name, ATTRS(F32, A_INT("index", i)), NO_INS);
}

/* while (i < limit) body(i): i starts at `start`. The body gets i and gives the next one. Returns the Exit. */
typedef trn_edge (*loop_body)(trn_graph *g, const char *name, trn_edge i, void *arg);
static inline trn_edge while_loop(trn_graph *g, const char *name, trn_edge start, trn_edge limit, int parallel, loop_body body, void *arg_)
{
    char n[64];
#define NM(s) (snprintf(n, sizeof n, "%s/%s", name, s), n)
    trn_attr frame = A_STR("frame_name", name), par = A_INT("parallel_iterations", parallel);
    trn_edge enter = add(g, "Enter", NM("enter"), ATTRS(F32, frame, par), INS(start));
    trn_edge lim = add(g, "Enter", NM("limit"), ATTRS(F32, frame, par, A_BOOL("is_constant", true)), INS(limit));
    trn_edge merge = add(g, "Merge", NM("merge"), ATTRS(F32, A_INT("N", 2)), INS(enter, ((trn_edge){-1, 0})));
    trn_edge less = add(g, "Less", NM("less"), ATTRS(F32), INS(merge, lim));
    trn_edge cond = add(g, "LoopCond", NM("cond"), NO_ATTRS, INS(less));
    trn_edge sw = add(g, "Switch", NM("switch"), ATTRS(F32), INS(merge, cond));
    trn_edge out = add(g, "Exit", NM("exit"), ATTRS(F32), INS(sw));
    trn_edge i = ident(g, NM("i"), slot(sw, 1));
    trn_edge next = add(g, "NextIteration", NM("next"), ATTRS(F32), INS(body(g, name, i, arg_)));
    g->node[merge.node]->in[1] = next;
#undef NM
    return out;
}

/* A constant inside a loop's body: pinned there by a control edge. */
static inline trn_edge konst_in(trn_graph *g, const char *name, float v, trn_edge after)
{
    trn_edge c = konst(g, name, v);
    ctl(g, c, after);
    return c;
}

static inline trn_edge plus_one(trn_graph *g, const char *name, trn_edge i, void *arg_)
{
    char n[64];
    snprintf(n, sizeof n, "%s/one", name);
    trn_edge one = konst_in(g, n, 1, i);
    snprintf(n, sizeof n, "%s/add", name);
    return addv2(g, n, i, one);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static trn_exec_env env;
static trn_resmgr *resmgr;

static inline int exec_setup(void **state)
{
    assert_ok(trn_pool_open(&env.pool, 3, "pool"));
    assert_ok(trn_pool_open(&env.disk, 1, "disk"));
    resmgr = trn_resmgr_new("");
    return 0;
}

static inline int exec_teardown(void **state)
{
    trn_pool_close(env.disk); /* first, as a server does: its threads hand on to the pool's */
    trn_pool_close(env.pool);
    trn_resmgr_unref(resmgr);
    return 0;
}

static inline trn_plan *plan_of(trn_graph *g)
{
    trn_plan *p;
    assert_ok(trn_plan_new(&p, g, &env, NULL, resmgr));
    return p;
}

typedef struct waiting {
    sem_t sem;
    trn_err err;
} waiting;

static inline void on_done(void *arg_, trn_err err)
{
    waiting *w = arg_;
    w->err = err;
    sem_post(&w->sem);
}

static inline trn_err run_opts(trn_plan *p, trn_run_opts o)
{
    waiting w;
    sem_init(&w.sem, 0, 0);
    trn_cancel *c = o.cancel ? trn_cancel_ref(o.cancel) : trn_cancel_new();
    o.cancel = c;
    trn_plan_run(p, &o, on_done, &w);
    while (sem_wait(&w.sem))
        ;
    sem_destroy(&w.sem);
    trn_cancel_unref(c);
    return w.err;
}

typedef struct loop_run {
    trn_plan *p;
    trn_run_opts o;
    waiting w;
} loop_run;

static inline void start_on_loop(void *arg_)
{
    loop_run *l = arg_;
    trn_plan_run(l->p, &l->o, on_done, &l->w);
}

/* Runs and gives the floats of the first n results. */
static inline trn_err run_f(trn_plan *p, float *out, int n)
{
    trn_value rets[8] = {0};
    trn_err err = run_opts(p, (trn_run_opts){.n_rets = n, .rets = rets});
    for (int i = 0; i < n; i++) {
        if (rets[i].t)
            out[i] = TRN_DATA(rets[i].t, float)[0];
        trn_tensor_unref(rets[i].t);
    }
    return err;
}

static inline float run_1(trn_graph *g)
{
    trn_plan *p = plan_of(g);
    float v = -1;
    assert_ok(run_f(p, &v, 1));
    trn_plan_unref(p);
    return v;
}

#endif
