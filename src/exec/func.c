/* Functions that outlive the graph they came from (op/func.h): each is a root plan of its own, with its own kernel states and its own cache of
 * the functions that it calls. A call is a run of that plan, under a cancellation of its own that the caller's fires. */
#include <stdlib.h>

#include "exec/run.h"

typedef struct func {
    trn_func f;
    char *name;
    trn_plan *plan;
    int depth;
    bool stateful; /* a fork needs states of its own */
    trn_dtype *types;
} func;

static const trn_func_type func_type;

static bool keeps_state(const trn_graph *g)
{
    for (int id = 0; id < g->n; id++) {
        const trn_gnode *gn = g->node[id];
        if (!gn)
            continue;
        if (!gn->n.def || (gn->n.def->row->init && (gn->n.def->row->flags & TRN_OP_STATEFUL)))
            return true;
        for (int i = 0; i < gn->n.n_attrs; i++)
            if (gn->n.attrs[i].kind == TRN_ATTR_FUNC)
                return true;
    }
    return false;
}

/* What TensorFlow counts as state of a dataset's function: stateful ops, but for those that make datasets, look up or only report. */
static const char *external_op(const trn_graph *g)
{
    static const char *const fine[] = {"Assert", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2", "Print", "PrintV2", "Timestamp"};
    for (int id = 0; id < g->n; id++) {
        const trn_gnode *gn = g->node[id];
        if (!gn || !gn->n.def || !(gn->n.def->row->flags & TRN_OP_STATEFUL))
            continue;
        const char *op = gn->n.def->row->name;
        bool ok = *op == '_'; /* arguments and results */
        ok |= gn->n.n_out == 1 && gn->n.out_types[0] == TRN_VARIANT && strstr(op, "Dataset");
        for (size_t i = 0; i < TRN_COUNTOF(fine); i++)
            ok |= !strcmp(op, fine[i]);
        if (!ok)
            return op;
    }
    return NULL;
}

static trn_err func_of(trn_func **out, trn_graph *g, const char *name, const trn_exec_env *env, trn_resmgr *resmgr, int depth)
{
    bool stateful = keeps_state(g);
    const char *external = external_op(g);
    trn_kcache *kc = trn_kcache_new();
    trn_plan *p;
    trn_err err = trn_plan_new(&p, g, env, kc, resmgr);
    trn_kcache_unref(kc);
    if (err)
        return err;
    func *f = trn_xalloc(sizeof *f);
    f->name = trn_xstrdup(name);
    f->plan = p;
    f->depth = depth;
    f->stateful = stateful;
    f->types = trn_xalloc(((size_t)p->n_args + (size_t)p->n_rets + 1) * sizeof *f->types);
    for (int id = 0; id < p->n; id++)
        if (!strcmp(p->node[id].node->op, "_Arg"))
            f->types[trn_attr_int(p->node[id].node, "index")] = p->node[id].node->out_types[0];
    for (int i = 0; i < p->n_rets; i++)
        if (p->ret[i])
            f->types[p->n_args + i] = p->ret[i]->node->in_types[0];
    f->f = (trn_func){.ref = 1, .type = &func_type, .name = f->name, .n_args = p->n_args, .n_rets = p->n_rets, .arg_types = f->types,
                      .ret_types = f->types + p->n_args, .external = external};
    *out = &f->f;
    return TRN_OK;
}

trn_err trn_exec__func_new(trn_func **out, const trn_plan *from, const trn_func_ref *ref, int depth)
{
    trn_graph *g;
    TRN_TRY(trn_exec__body(&g, from->g->lib, ref));
    return func_of(out, g, ref->name, from->env, from->resmgr, depth);
}

trn_err trn_exec__func_of(trn_func **out, trn_graph *g, const char *name, const trn_plan *from, int depth)
{
    return func_of(out, g, name, from->env, from->resmgr, depth);
}

static void func_free(trn_func *f_)
{
    func *f = (func *)f_;
    trn_plan_unref(f->plan);
    free(f->name);
    free(f->types);
    free(f);
}

static trn_err func_fork(trn_func **out, trn_func *f_)
{
    func *f = (func *)f_;
    if (!f->stateful) {
        *out = trn_func_ref_add(f_);
        return TRN_OK;
    }
    return func_of(out, trn_graph_copy(f->plan->g, NULL), f->name, f->plan->env, f->plan->resmgr, f->depth);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

typedef struct fcall {
    func *f;
    trn_call_done done;
    void *arg;
    trn_cancel *outer, *own;
    trn_cancel_hook hook;
    int n_args, n_rets;
    trn_value v[]; /* arguments, then results */
} fcall;

static void note_background(const void *env_, int n)
{
    const trn_exec_env *env = env_;
    if (env->background)
        atomic_fetch_add_explicit(env->background, n, memory_order_acq_rel);
}

static void outer_fired(void *arg)
{
    fcall *c = arg;
    trn_cancel_fire(c->own, trn_cancel_why(c->outer));
}

static void fcall_done(void *arg, trn_err err)
{
    fcall *c = arg;
    if (c->outer)
        trn_cancel_remove(c->outer, &c->hook);
    trn_tensor *few[16], **rets = c->n_rets <= 16 ? few : trn_xalloc((size_t)c->n_rets * sizeof *rets);
    for (int i = 0; i < c->n_rets; i++)
        rets[i] = c->v[c->n_args + i].t;
    c->done(c->arg, err, rets, err ? 0 : c->n_rets);
    if (rets != few)
        free(rets);
    for (int i = 0; i < c->n_args + c->n_rets; i++)
        value_unref(c->v[i]);
    trn_cancel_unref(c->own);
    note_background(c->f->plan->env, -1);
    trn_func_unref(&c->f->f);
    free(c);
}

static void func_run(trn_func *f_, trn_cancel *cancel, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    static _Atomic int64_t step_ids = 1;
    func *f = (func *)f_;
    trn_plan *p = f->plan;
    if (n_args < p->n_args) {
        done(arg, trn_errorf(TRN_INVALID_ARGUMENT, "Function %s takes %d arguments, got %d", f->name, p->n_args, n_args), NULL, 0);
        return;
    }
    fcall *c = trn_xalloc(sizeof *c + ((size_t)n_args + (size_t)p->n_rets) * sizeof *c->v);
    *c = (fcall){.f = (func *)trn_func_ref_add(f_), .done = done, .arg = arg, .outer = cancel, .own = trn_cancel_new(), .n_args = n_args, .n_rets = p->n_rets};
    for (int i = 0; i < n_args; i++)
        if (args[i])
            c->v[i].t = trn_tensor_ref(args[i]);
    note_background(p->env, 1);
    if (cancel && !trn_cancel_add(cancel, &c->hook, outer_fired, c)) {
        c->outer = NULL;
        c->n_rets = 0;
        fcall_done(c, trn_cancel_why(cancel));
        return;
    }
    trn_run_opts o = {.step_id = atomic_fetch_add(&step_ids, 1),
                      .cancel = c->own,
                      .n_args = n_args,
                      .n_rets = p->n_rets,
                      .args = c->v,
                      .rets = c->v + n_args};
    trn_plan__run(p, &o, f->depth, fcall_done, c);
}

static const trn_func_type func_type = {.free = func_free, .fork = func_fork, .run = func_run};

/* ---- the task ----------------------------------------------------------------------------------------------------- */

static trn_pool *pool_of(const void *env_, trn_where where)
{
    const trn_exec_env *env = env_;
    return where == TRN_ON_DISK ? env->disk : env->pool;
}

static bool host_submit(const void *env, trn_where where, void (*fn)(void *), void *arg)
{
    trn_pool *p = pool_of(env, where);
    if (p)
        trn_pool_submit(p, fn, arg);
    return p != NULL;
}

static bool host_here(const void *env, trn_where where)
{
    trn_pool *p = pool_of(env, where);
    return p && trn_pool_here(p);
}

static bool host_on_loop(void) { return trn_loop_current() != NULL; }

static int host_threads(const void *env)
{
    trn_pool *p = pool_of(env, TRN_ON_POOL);
    return p ? trn_pool_threads(p) : 1;
}

static trn_err host_check_path(const void *env, const char *path) { return trn_exec_check_path(env, path); }

static const trn_host_api host_api = {host_submit, host_here, host_on_loop, host_threads, note_background, host_check_path, trn_exec__alarm, trn_exec__alarm_end};

trn_host trn_exec__host(const trn_kctx *k) { return (trn_host){&host_api, ((const run *)k->step)->plan->env}; }
