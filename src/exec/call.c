/* Function calls: a body becomes a plan once per (function, attrs) and is run like any other, in the caller's step: same cancellation,
 * rendezvous, containers; frames of its own. */
#include <stdlib.h>

#include "exec/run.h"
#include "proto/pb.h"
#include "graph/devname.h"
#include "ops/control.h"

#define MAX_CALL_DEPTH 10000
#define MAX_FUNC_DEPTH 100 /* of functions that datasets of functions of datasets … keep */

struct fncache {
    trn_mutex mu;
    trn_map *map;   /* key → trn_plan, one reference each */
    trn_map *funcs; /* key → trn_func, those that somebody keeps; one reference each */
    trn_map *far;   /* key and device → trn_far, what other tasks have of them; one reference each; NULL: none so far */
};

fncache *trn_fncache__new(void)
{
    fncache *c = trn_xalloc(sizeof *c);
    trn_mutex_init(&c->mu, TRN_RANK_STEP);
    c->map = trn_map_new();
    c->funcs = trn_map_new();
    return c;
}

static void plan_drop(void *p) { trn_plan_unref(p); }
static void func_drop(void *p) { trn_func_unref(p); }
static void far_drop(void *p) { trn_far_unref(p); }

void trn_fncache__free(fncache *c)
{
    trn_map_free(c->map, plan_drop);
    trn_map_free(c->funcs, func_drop);
    if (c->far)
        trn_map_free(c->far, far_drop);
    trn_mutex_fini(&c->mu);
    free(c);
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static void add_func(trn_sb *s, const trn_func_ref *f);

static void add_val(trn_sb *s, trn_attr_kind kind, const trn_attr_val *v)
{
    switch (kind) {
    case TRN_ATTR_STRING:
    case TRN_ATTR_PLACEHOLDER:
        trn_sb_addf(s, "%zu:", v->s.n);
        trn_sb_add(s, v->s.p, v->s.n);
        break;
    case TRN_ATTR_INT:
        trn_sb_addf(s, "%lld", (long long)v->i);
        break;
    case TRN_ATTR_FLOAT:
        trn_sb_addf(s, "%a", (double)v->f);
        break;
    case TRN_ATTR_BOOL:
        trn_sb_adds(s, v->b ? "t" : "f");
        break;
    case TRN_ATTR_TYPE:
        trn_sb_addf(s, "%d", (int)v->type);
        break;
    case TRN_ATTR_SHAPE: {
        trn_sb_addf(s, "%d", v->shape->rank);
        for (int i = 0; i < v->shape->rank; i++)
            trn_sb_addf(s, ",%lld", (long long)v->shape->dim[i]);
        break;
    }
    case TRN_ATTR_TENSOR:
        trn_sb_addf(s, "%p", (void *)v->tensor); /* the cache goes with the graph that has it */
        break;
    case TRN_ATTR_FUNC:
        add_func(s, v->func);
        break;
    case TRN_ATTR_NONE:
        break;
    }
}

static void add_func(trn_sb *s, const trn_func_ref *f)
{
    trn_sb_addf(s, "%s(", f->name);
    for (int i = 0; i < f->n_attrs; i++) {
        const trn_attr *a = &f->attrs[i];
        trn_sb_addf(s, "%s%c%d=", a->name, a->is_list ? '*' : ' ', (int)a->kind);
        for (int j = 0; j < (a->is_list ? a->n : 1); j++) {
            add_val(s, a->kind, a->is_list ? &a->list[j] : &a->v);
            trn_sb_adds(s, ";");
        }
    }
    trn_sb_adds(s, ")");
}

void trn_fncache__key(trn_sb *s, const trn_func_ref *f) { add_func(s, f); }

trn_far *trn_fncache__far(fncache *c, const trn_sb *key)
{
    trn_lock(&c->mu);
    trn_far *f = c->far ? trn_map_get(c->far, key->p, key->n) : NULL;
    if (f)
        atomic_fetch_add_explicit(&f->ref, 1, memory_order_relaxed);
    trn_unlock(&c->mu);
    return f;
}

void trn_fncache__keep_far(fncache *c, const trn_sb *key, trn_far *f)
{
    trn_lock(&c->mu);
    if (!c->far)
        c->far = trn_map_new();
    if (!trn_map_get(c->far, key->p, key->n)) {
        atomic_fetch_add_explicit(&f->ref, 1, memory_order_relaxed);
        trn_map_put(c->far, key->p, key->n, f);
    }
    trn_unlock(&c->mu);
}

/* ---- bodies ----------------------------------------------------------------------------------------------------- */

static void keep_inputs(const trn_graph *g, bool *keep, int *stack, int n)
{
    while (n > 0) {
        const trn_gnode *gn = g->node[stack[--n]];
        for (int i = 0; i < gn->n.n_in + gn->n_ctl; i++) {
            int src = i < gn->n.n_in ? gn->in[i].node : gn->ctl[i - gn->n.n_in];
            if (!keep[src]) {
                keep[src] = true;
                stack[n++] = src;
            }
        }
    }
}

/* Only what results, control results and effects need: bodies are traced whole, and what nobody asks for may not even be runnable. */
static trn_graph *prune_body(trn_graph *g)
{
    trn_graph_compact(g);
    bool *keep = trn_xalloc((size_t)g->n + 1);
    int *stack = trn_xalloc(((size_t)g->n + 1) * sizeof *stack), n = 0, left = 0;
    for (int id = 0; id < g->n; id++) {
        const trn_node *nd = &g->node[id]->n;
        uint32_t flags = nd->def ? nd->def->row->flags : TRN_OP_STATEFUL;
        keep[id] = strcmp(nd->op, "_Retval") == 0 || strcmp(nd->op, "_Arg") == 0 || strcmp(nd->name, "_ctl_rets") == 0 ||
                   (flags & (TRN_OP_STATEFUL | TRN_OP_BACK));
        if (keep[id])
            stack[n++] = id;
    }
    keep_inputs(g, keep, stack, n);
    for (int id = 0; id < g->n; id++)
        left += keep[id];
    if (left < g->n) {
        trn_graph *less = trn_graph_copy(g, keep);
        trn_graph_free(g);
        g = less;
    }
    free(keep);
    free(stack);
    return g;
}

static trn_err set_target(trn_graph *g, const trn_func_ref *f)
{
    const trn_attr *to = NULL;
    for (int i = 0; i < f->n_attrs; i++)
        if (!strcmp(f->attrs[i].name, TRN_CALL_TARGET) && f->attrs[i].kind == TRN_ATTR_STRING)
            to = &f->attrs[i];
    if (!to)
        return TRN_OK;
    trn_devname d;
    TRN_TRY(trn_devname_parse(&d, to->v.s.p, to->v.s.n));
    char text[TRN_DEVNAME_TEXT];
    const char *device = trn_arena_strdup(g->arena, trn_devname_text(text, &d));
    for (int id = 0; id < g->n; id++)
        if (g->node[id] && !*g->node[id]->n.device)
            g->node[id]->n.device = device;
    return TRN_OK;
}

/* As this task will run it. Takes g; frees it on error. */
static trn_err finished(trn_graph **out, TRN_OWN trn_graph *g, const trn_func_ref *f)
{
    trn_err err = f ? set_target(g, f) : TRN_OK;
    if (!err)
        err = trn_graph_lower(g);
    if (!err) {
        g = prune_body(g);
        err = trn_graph_check_ops(g);
    }
    if (!err)
        err = trn_graph_optimise(g, &(trn_opt_opts){.fold = true, .cse = true, .identity = true, .simplify = true, .fuse = true, .max_folded_bytes = 10 << 20}, trn_exec_eval);
    if (err)
        trn_graph_free(g);
    else
        *out = g;
    return err;
}

trn_err trn_exec__body(trn_graph **out, trn_funclib *lib, const trn_func_ref *f)
{
    if (!lib || !trn_funclib_has(lib, f->name))
        return trn_errorf(TRN_NOT_FOUND, "Function '%s' is not in the graph's library", f->name);
    trn_graph *g;
    TRN_TRY(trn_funclib_body(&g, lib, f));
    return finished(out, g, f);
}

trn_err trn_exec__graph_func(trn_func **out, trn_kctx *k, trn_graph *g)
{
    const run *r = (const run *)k->step;
    if (r->depth >= MAX_FUNC_DEPTH) {
        trn_graph_free(g);
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "calls nest deeper than %d", MAX_FUNC_DEPTH);
    }
    TRN_TRY(finished(&g, g, NULL));
    return trn_exec__func_of(out, g, "graph", r->plan, r->depth + 1);
}

trn_err trn_exec__graph(trn_func **out, trn_kctx *k, const void *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd;
    trn_err err = TRN_PB_UNPACK(&gd, a, tensorflow__graph_def__descriptor, p, n);
    trn_graph *g = trn_graph_new(NULL);
    if (!err)
        err = trn_graph_import(g, gd);
    trn_arena_free(a);
    if (err) {
        trn_graph_free(g);
        return err;
    }
    return trn_exec__graph_func(out, k, g);
}

static trn_err make_plan(trn_plan **out, const trn_plan *caller, const trn_func_ref *f, const trn_sb *key)
{
    trn_graph *g;
    TRN_TRY(trn_exec__body(&g, caller->g->lib, f));
    char *scope = trn_xasprintf("%s#%016llx", f->name, (unsigned long long)trn_hash(key->p, key->n));
    trn_err err = trn_plan__new(out, g, caller->env, caller->kc, caller->resmgr, caller->fns, scope);
    free(scope);
    return err;
}

/* A reference. Two threads may both build the first time; one of the plans is dropped. */
static trn_err find_plan(trn_plan **out, const trn_plan *caller, const trn_func_ref *f)
{
    trn_sb key = {0};
    add_func(&key, f);
    fncache *c = caller->fns;
    trn_lock(&c->mu);
    trn_plan *p = trn_map_get(c->map, key.p, key.n);
    if (p)
        trn_plan_ref(p);
    trn_unlock(&c->mu);
    trn_err err = TRN_OK;
    if (!p && !(err = make_plan(&p, caller, f, &key))) {
        trn_lock(&c->mu);
        trn_plan *other = trn_map_get(c->map, key.p, key.n);
        if (!other)
            trn_map_put(c->map, key.p, key.n, trn_plan_ref(p));
        trn_unlock(&c->mu);
    }
    trn_sb_fini(&key);
    if (!err)
        *out = p;
    return err ? trn_err_wrap(err, "function %s", f->name) : TRN_OK;
}

/* The function that somebody wants to keep; same rules. */
trn_err trn_exec__func(trn_func **out, trn_kctx *k, const trn_func_ref *f)
{
    const run *r = (const run *)k->step;
    if (r->depth >= MAX_FUNC_DEPTH)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "Function %s: calls nest deeper than %d", f->name, MAX_FUNC_DEPTH);
    trn_sb key = {0};
    add_func(&key, f);
    fncache *c = r->plan->fns;
    trn_lock(&c->mu);
    trn_func *fn = trn_map_get(c->funcs, key.p, key.n);
    if (fn)
        trn_func_ref_add(fn);
    trn_unlock(&c->mu);
    trn_err err = TRN_OK;
    if (!fn && !(err = trn_exec__func_new(&fn, r->plan, f, r->depth + 1))) {
        trn_lock(&c->mu);
        if (!trn_map_get(c->funcs, key.p, key.n))
            trn_map_put(c->funcs, key.p, key.n, trn_func_ref_add(fn));
        trn_unlock(&c->mu);
    }
    trn_sb_fini(&key);
    if (!err)
        *out = fn;
    return err ? trn_err_wrap(err, "function %s", f->name) : TRN_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

typedef struct call {
    trn_call_done done;
    void *arg;
    int n_args, n_rets;
    trn_value *args, *rets;
    trn_value v[]; /* arguments, then results */
} call;

static void call_free(call *c)
{
    for (int i = 0; i < c->n_args + c->n_rets; i++)
        value_unref(c->v[i]);
    free(c);
}

static void call_done(void *arg, trn_err err)
{
    call *c = arg;
    trn_tensor *few[16], **rets = c->n_rets <= 16 ? few : trn_xalloc((size_t)c->n_rets * sizeof *rets);
    for (int i = 0; i < c->n_rets; i++)
        rets[i] = c->rets[i].t;
    c->done(c->arg, err, rets, err ? 0 : c->n_rets);
    if (rets != few)
        free(rets);
    call_free(c);
}

void trn_exec__call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    run *r = (run *)k->step;
    trn_plan *p = NULL;
    trn_err err = TRN_OK;
    if (r->depth >= MAX_CALL_DEPTH)
        err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "Function %s: calls nest deeper than %d", f->name, MAX_CALL_DEPTH);
    else
        err = find_plan(&p, r->plan, f);
    if (!err && n_args < p->n_args)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "Function %s takes %d arguments, got %d", f->name, p->n_args, n_args);
    if (err) {
        trn_plan_unref(p);
        done(arg, err, NULL, 0);
        return;
    }
    call *c = trn_xalloc(sizeof *c + ((size_t)n_args + (size_t)p->n_rets) * sizeof *c->v);
    c->done = done;
    c->arg = arg;
    c->n_args = n_args;
    c->n_rets = p->n_rets;
    c->args = c->v;
    c->rets = c->v + n_args;
    for (int i = 0; i < n_args; i++)
        if (args[i])
            c->args[i].t = trn_tensor_ref(args[i]);
    trn_run_opts o = {.step_id = r->step.step_id,
                      .rdv = r->step.rdv,
                      .cancel = r->step.cancel,
                      .step_resmgr = trn_k_step_resmgr(k),
                      .n_args = n_args,
                      .n_rets = p->n_rets,
                      .args = c->args,
                      .rets = c->rets,
                      .trace = r->trace};
    trn_plan__run(p, &o, r->depth + 1, call_done, c);
    trn_plan_unref(p);
}

trn_err trn_exec__call_node(trn_kctx *k)
{
    trn_func_ref f = {.name = k->node->op, .n_attrs = k->node->n_attrs, .attrs = k->node->attrs};
    return trn_ops_call(k, &f, 0);
}
