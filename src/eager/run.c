/* Ops and functions, one by one: each becomes a plan once (kept by what makes it unique) and then runs as any other. */
#include <stdio.h>
#include <stdlib.h>

#include "eager/eager_int.h"
#include "graph/graph_priv.h"
#include "proto/pb.h"
#include "tensor/tensor_pb.h"

#define MAX_PLANS 8192 /* more than programs have; then all are made anew */

/* ---- plans ---------------------------------------------------------------------------------------------------------- */

static trn_err attrs_of(trn_attr **out, int *n, trn_arena *a, const Tensorflow__Eager__Operation *op)
{
    trn_attr *attrs = trn_arena_alloc(a, (op->n_attrs + 1) * sizeof *attrs);
    *n = 0;
    if (op->n_attrs > TRN_MAX_ATTRS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s has %zu attrs", op->name, op->n_attrs);
    for (size_t i = 0; i < op->n_attrs; i++) {
        if (!op->attrs[i]->value)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: attr '%s' has no value", op->name, op->attrs[i]->key);
        TRN_TRY(trn_attr_from_pb(&attrs[(*n)++], a, op->attrs[i]->key, op->attrs[i]->value));
    }
    *out = attrs;
    return TRN_OK;
}

/* An op that takes a packed handle gets its members stacked. */
static trn_err stack_packed(trn_graph *g, const Tensorflow__Eager__Operation *op, const char *device, trn_edge *edge, int *n, const int *packed)
{
    int at = 0, to = 0;
    for (int k = 0; k < (int)op->n_op_inputs; k++) {
        if (!packed[k]) {
            edge[to++] = edge[at++];
            continue;
        }
        trn_dtype t = g->node[edge[at].node]->n.out_types[0];
        if (t == TRN_RESOURCE)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: input %d is a packed handle of %d resources; an op takes one", op->name, k, packed[k]);
        char name[32];
        snprintf(name, sizeof name, "packed%d", k);
        trn_attr attrs[] = {trn_attr__int("N", packed[k]), trn_attr__type("T", t), trn_attr__int("axis", 0)};
        trn_gnode *nd;
        TRN_TRY(trn_graph_add(&nd, g, "Pack", name, device, attrs, TRN_COUNTOF(attrs), &edge[at], packed[k]));
        at += packed[k];
        edge[to++] = (trn_edge){nd->id, 0};
    }
    *n = to;
    return TRN_OK;
}

static trn_err one_node(trn_graph *g, trn_arena *a, const Tensorflow__Eager__Operation *op, const char *device, const trn_dtype *in, int n_in, const int *packed)
{
    trn_attr *attrs;
    int n_attrs;
    trn_edge *edge = trn_arena_alloc(a, (size_t)(n_in + 1) * sizeof *edge);
    TRN_TRY(attrs_of(&attrs, &n_attrs, a, op));
    for (int i = 0; i < n_in; i++) {
        char name[32];
        snprintf(name, sizeof name, "arg%d", i);
        trn_attr at[] = {trn_attr__type("T", in[i]), trn_attr__int("index", i)};
        trn_gnode *nd;
        TRN_TRY(trn_graph_add(&nd, g, "_Arg", name, device, at, 2, NULL, 0));
        edge[i] = (trn_edge){nd->id, 0};
    }
    if (packed)
        TRN_TRY(stack_packed(g, op, device, edge, &n_in, packed));
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, g, op->name, op->name[0] == '_' ? op->name + 1 : op->name, device, attrs, n_attrs, edge, n_in));
    if (!nd->n.def)
        return trn_graph_check_ops(g);
    for (int i = 0; i < nd->n.n_out; i++) {
        char name[32];
        snprintf(name, sizeof name, "ret%d", i);
        trn_attr at[] = {trn_attr__type("T", trn_dtype_base(nd->n.out_types[i])), trn_attr__int("index", i)};
        TRN_TRY(trn_graph_add(NULL, g, "_Retval", name, device, at, 2, &(trn_edge){nd->id, i}, 1));
    }
    return TRN_OK;
}

static trn_err function_graph(trn_graph **out, trn_arena *a, trn_funclib *lib, const Tensorflow__Eager__Operation *op)
{
    trn_attr *attrs;
    int n_attrs;
    TRN_TRY(attrs_of(&attrs, &n_attrs, a, op));
    trn_func_ref ref = {op->name, n_attrs, attrs};
    return trn_funclib_body(out, lib, &ref);
}

trn_err trn_ectx__graph(trn_graph **out, trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in, const int *packed)
{
    trn_arena *a = trn_arena_new();
    trn_graph *g = NULL;
    trn_err err;
    const char *device = op->device && *op->device ? op->device : trn_arena_printf(a, "%s/device:CPU:0", s->task);
    if (trn_funclib_has(lib, op->name))
        err = function_graph(&g, a, lib, op);
    else if (op->is_function)
        err = trn_errorf(TRN_NOT_FOUND, "'%s' is neither a type of a primitive operation nor a name of a function registered in context %llu on %s", op->name,
                         (unsigned long long)c->id, s->task);
    else {
        g = trn_graph_new(lib);
        err = one_node(g, a, op, device, in, n_in, packed);
    }
    trn_arena_free(a);
    if (err) {
        trn_graph_free(g);
        return err;
    }
    *out = g;
    return TRN_OK;
}

/* A part of a function that another task has divided comes as it is to run. */
static trn_err make_plan(trn_plan **out, trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in)
{
    trn_graph *g;
    TRN_TRY(trn_ectx__graph(&g, c, s, lib, op, in, n_in, NULL));
    trn_err err = trn_graph_lower(g);
    if (!err)
        err = trn_graph_check_ops(g);
    if (!err)
        trn_graph_note_ops(g);
    if (err) {
        trn_graph_free(g);
        return err;
    }
    /* Kernel states of its own: node names repeat from function to function. */
    trn_kcache *kc = trn_kcache_new();
    err = trn_plan_new(out, g, s->w->env, kc, s->resmgr);
    trn_kcache_unref(kc);
    return err;
}

void trn_ectx__plan_key(trn_sb *key, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in)
{
    trn_sb_add(key, op->name, strlen(op->name) + 1);
    trn_sb_add(key, op->device, strlen(op->device) + 1);
    trn_sb_add(key, op->is_component_function ? "c" : "-", 1);
    for (int i = 0; i < n_in; i++)
        trn_sb_add(key, &(uint8_t){(uint8_t)in[i]}, 1);
    for (size_t i = 0; i < op->n_attrs; i++)
        trn_pb_pack(key, &op->attrs[i]->base);
}

static void unref_plan(void *p) { trn_plan_unref(p); }

static trn_err plan_for(trn_plan **out, trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in)
{
    trn_sb key = {0};
    trn_ectx__plan_key(&key, op, in, n_in);
    trn_lock(&c->mu);
    trn_plan *p = trn_map_get(c->plans, key.p, key.n);
    if (p)
        trn_plan_ref(p);
    trn_unlock(&c->mu);
    trn_err err = p ? TRN_OK : make_plan(&p, c, s, lib, op, in, n_in);
    if (err) {
        trn_sb_fini(&key);
        return err;
    }
    *out = p;
    /* A variable's op has its name among its attrs and comes once. */
    if (strcmp(op->name, "VarHandleOp") == 0) {
        trn_sb_fini(&key);
        return TRN_OK;
    }
    trn_map *full = NULL;
    trn_lock(&c->mu);
    if (!trn_map_get(c->plans, key.p, key.n)) {
        if (trn_map_count(c->plans) >= MAX_PLANS) {
            full = c->plans;
            c->plans = trn_map_new();
        }
        trn_map_put(c->plans, key.p, key.n, trn_plan_ref(p));
    }
    trn_unlock(&c->mu);
    trn_map_free(full, unref_plan);
    trn_sb_fini(&key);
    return TRN_OK;
}

/* ---- inputs --------------------------------------------------------------------------------------------------------- */

/* Of a packed handle: the member on the op's device. */
static trn_err one_of(trn_tensor **out, trn_ectx *c, const trn_wsession *s, const Tensorflow__Eager__Operation *op, const Tensorflow__Eager__RemoteTensorHandle *h)
{
    trn_epacked *p = trn_ectx_packed(c, h);
    if (!p)
        return trn_ectx_get(out, c, h);
    char *own = *op->device ? NULL : trn_xasprintf("%s/device:CPU:0", s->task);
    trn_err err = trn_epacked_on(out, p, own ? own : op->device, op->name);
    free(own);
    trn_epacked_unref(p);
    return err;
}

static trn_err inputs_of(trn_tensor **in, int *n, trn_ectx *c, const trn_wsession *s, const Tensorflow__Eager__Operation *op, size_t *left)
{
    for (*n = 0; *n < (int)op->n_op_inputs; (*n)++) {
        const Tensorflow__Eager__Operation__Input *i = op->op_inputs[*n];
        if (i->item_case == TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE)
            TRN_TRY(one_of(&in[*n], c, s, op, i->remote_handle));
        else if (i->item_case == TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_TENSOR)
            TRN_TRY(trn_tensor_from_pb_within(&in[*n], i->tensor, left));
        else
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: input %d is empty", op->name, *n);
    }
    return TRN_OK;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static void run_free(trn_erun *r)
{
    for (int i = 0; i < r->n_args + r->n_rets; i++)
        trn_tensor_unref(r->v[i].t);
    free(r->outs);
    trn_rdv_unref(r->rdv);
    trn_plan_unref(r->plan);
    trn_cancel_unref(r->cancel);
    trn_cancel_unref(r->outer);
    trn_ectx_unref(r->ctx);
    free(r);
}

void trn_erun__end(trn_erun *r, trn_err err)
{
    trn_worker *w = r->ctx->e->w;
    if (r->hooked)
        trn_cancel_remove(r->outer, &r->hook);
    trn_lock(&r->ctx->mu);
    *r->at = r->next;
    if (r->next)
        r->next->at = r->at;
    trn_unlock(&r->ctx->mu);
    for (int i = 0; i < r->n_rets && !err; i++) {
        trn_eout *o = &r->outs[i];
        o->t = r->v[r->n_args + i].t;
        if (o->t)
            o->shape = o->t->shape;
    }
    r->done(r->arg, err, r->outs, err ? 0 : r->n_rets);
    run_free(r);
    trn_worker_busy_add(w, -1);
}

static void ran(void *arg, trn_err err) { trn_erun__end(arg, err); }

static void outer_fired(void *arg)
{
    trn_erun *r = arg;
    trn_cancel_fire(r->cancel, trn_cancel_why(r->outer));
}

trn_erun *trn_erun__new(trn_ectx *c, trn_plan *p, trn_tensor **in, int n, int n_rets)
{
    trn_erun *r = trn_xalloc(sizeof *r + (size_t)(n + n_rets) * sizeof *r->v);
    r->n_args = n;
    r->n_rets = n_rets;
    r->outs = trn_xalloc((size_t)(n_rets + 1) * sizeof *r->outs);
    r->plan = p;
    r->ctx = trn_ectx_ref(c);
    r->cancel = trn_cancel_new();
    for (int i = 0; i < n; i++)
        r->v[i].t = in[i];
    free(in);
    return r;
}

void trn_erun__begin(trn_erun *r, trn_cancel *outer, trn_eager_done done, void *arg)
{
    trn_ectx *c = r->ctx;
    r->done = done;
    r->arg = arg;
    trn_lock(&c->mu);
    bool closed = c->closed;
    r->next = c->running;
    if (r->next)
        r->next->at = &r->next;
    r->at = &c->running;
    c->running = r;
    trn_unlock(&c->mu);
    trn_worker_busy_add(c->e->w, 1);
    if (outer) {
        r->outer = trn_cancel_ref(outer);
        r->hooked = trn_cancel_add(outer, &r->hook, outer_fired, r);
        if (!r->hooked)
            trn_cancel_fire(r->cancel, trn_errorf(TRN_CANCELLED, "the call was cancelled"));
    }
    if (closed)
        trn_cancel_fire(r->cancel, trn_errorf(TRN_ABORTED, "the context is closed"));
}

/* The context's own step as single ops see it: one that fails or is cancelled ends its own wait, never the place where all the others meet. */
typedef struct meeting {
    trn_rdv base;
    trn_wstep *st;
} meeting;

static trn_rdv *place(trn_rdv *r) { return trn_wstep_rdv(TRN_CONTAINER(r, meeting, base)->st); }
static trn_err meeting_send(trn_rdv *r, const char *key, trn_tensor *t, bool dead) { return place(r)->type->send(place(r), key, t, dead); }

static void meeting_recv(trn_rdv *r, const char *key, trn_cancel *c, trn_rdv_done done, void *arg)
{
    place(r)->type->recv(place(r), key, c, done, arg);
}

static void meeting_abort(trn_rdv *r, trn_err why)
{
    (void)r;
    trn_err_free(why);
}

static void meeting_free(trn_rdv *r)
{
    meeting *m = TRN_CONTAINER(r, meeting, base);
    trn_wstep_unref(m->st);
    free(m);
}

static trn_rdv *meeting_new(TRN_OWN trn_wstep *st)
{
    static const trn_rdv_type type = {meeting_send, meeting_recv, meeting_abort, meeting_free};
    meeting *m = trn_xalloc(sizeof *m);
    *m = (meeting){{1, &type}, st};
    return &m->base;
}

/* Where _Send and _Recv meet: a component's step; for single ops the context's own. */
static trn_err start(trn_erun *r, trn_wsession *s, const Tensorflow__Eager__Operation *op)
{
    bool component = op->is_component_function, meets = component || strstr(op->name, "Send") || strstr(op->name, "Recv");
    trn_wstep *st = meets ? trn_worker_step(r->ctx->e->w, component ? op->func_step_id : (int64_t)r->ctx->id, s) : NULL;
    if (meets && !st)
        return trn_errorf(TRN_ABORTED, "%s: step %lld has been cleaned up already", op->name, (long long)op->func_step_id);
    trn_run_opts o = {.cancel = r->cancel, .n_args = r->n_args, .n_rets = r->n_rets, .args = r->v, .rets = r->v + r->n_args};
    if (component) {
        trn_lock(&r->ctx->mu);
        trn_map_puti(r->ctx->steps, (uint64_t)op->func_step_id, r->ctx);
        trn_unlock(&r->ctx->mu);
        trn_wstep_run(st, r->plan, &o, ran, r);
    } else {
        if (st)
            r->rdv = o.rdv = meeting_new(st);
        st = NULL;
        o.step_id = (int64_t)r->ctx->id;
        trn_plan_run(r->plan, &o, ran, r);
    }
    trn_wstep_unref(st);
    return TRN_OK;
}

static trn_err prepare(trn_erun **out, trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, size_t *left)
{
    trn_tensor **in = trn_xalloc((op->n_op_inputs + 1) * sizeof *in);
    trn_dtype *types = trn_xalloc((op->n_op_inputs + 1) * sizeof *types);
    int n = 0;
    trn_plan *p = NULL;
    trn_err err = inputs_of(in, &n, c, s, op, left);
    for (int i = 0; i < n; i++)
        types[i] = in[i]->dtype;
    if (!err)
        err = plan_for(&p, c, s, lib, op, types, n);
    free(types);
    if (!err && n < trn_plan_n_args(p))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s takes %d arguments and got %d", op->name, trn_plan_n_args(p), n);
    if (err) {
        for (int i = 0; i < n; i++)
            trn_tensor_unref(in[i]);
        trn_plan_unref(p);
        free(in);
        return err;
    }
    *out = trn_erun__new(c, p, in, n, trn_plan_n_rets(p));
    return TRN_OK;
}

/* Whole functions, and ops with inputs on other tasks or packed ones, may have to be divided. */
static bool is_whole(trn_ectx *c, const trn_wsession *s, const trn_funclib *lib, const Tensorflow__Eager__Operation *op)
{
    if (op->is_component_function)
        return false;
    if (op->is_function || trn_funclib_has(lib, op->name))
        return true;
    for (size_t i = 0; i < op->n_op_inputs; i++) {
        if (op->op_inputs[i]->item_case != TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE)
            continue;
        const Tensorflow__Eager__RemoteTensorHandle *h = op->op_inputs[i]->remote_handle;
        trn_epacked *p = trn_ectx_packed(c, h);
        trn_epacked_unref(p);
        if (p || trn_ectx__elsewhere(s, h))
            return true;
    }
    return false;
}

void trn_ectx_run(trn_ectx *c, const Tensorflow__Eager__Operation *op, size_t *left, trn_cancel *cancel, trn_eager_done done, void *arg)
{
    if (op->n_op_inputs > TRN_MAX_INPUTS) {
        done(arg, trn_errorf(TRN_INVALID_ARGUMENT, "%s has %zu inputs", op->name, op->n_op_inputs), NULL, 0);
        return;
    }
    trn_lock(&c->mu);
    trn_wsession *s = trn_wsession_ref(c->session);
    trn_funclib *lib = trn_funclib_ref(c->lib);
    trn_unlock(&c->mu);
    if (is_whole(c, s, lib, op)) {
        trn_ectx__divide(c, s, lib, op, left, cancel, done, arg);
        trn_funclib_unref(lib);
        trn_wsession_unref(s);
        return;
    }
    trn_erun *r = NULL;
    trn_err err = prepare(&r, c, s, lib, op, left);
    trn_funclib_unref(lib);
    if (err) {
        trn_wsession_unref(s);
        done(arg, err, NULL, 0);
        return;
    }
    trn_erun__begin(r, cancel, done, arg);
    err = start(r, s, op);
    trn_wsession_unref(s);
    if (err)
        ran(r, err);
}

void trn_ectx_close(trn_ectx *c, trn_code code, const char *why)
{
    trn_eager *e = c->e;
    trn_lock(&e->mu);
    bool found = trn_map_geti(e->contexts, c->id) == c;
    if (found)
        trn_map_deli(e->contexts, c->id);
    trn_unlock(&e->mu);
    trn_lock(&c->mu);
    c->closed = true;
    int n = 0, cap = 0;
    trn_cancel **all = NULL;
    for (trn_erun *r = c->running; r; r = r->next)
        TRN_PUSH(all, n, cap, trn_cancel_ref(r->cancel));
    int64_t *steps = NULL;
    int n_steps = 0, cap_steps = 0;
    const char *key;
    size_t len;
    void *v;
    for (size_t it = 0; trn_map_next(c->steps, &it, &key, &len, &v);) {
        int64_t id;
        memcpy(&id, key, sizeof id);
        TRN_PUSH(steps, n_steps, cap_steps, id);
    }
    trn_wsession *s = c->session;
    trn_unlock(&c->mu);
    for (int i = 0; i < n; i++) {
        trn_cancel_fire(all[i], trn_errorf(code, "%s", why));
        trn_cancel_unref(all[i]);
    }
    for (int i = 0; i < n_steps; i++)
        trn_worker_step_clean(e->w, steps[i]);
    trn_worker_step_clean(e->w, (int64_t)c->id);
    if (s)
        trn_err_free(trn_worker_session_del(e->w, s->handle));
    free(all);
    free(steps);
    if (found)
        trn_ectx_unref(c);
}
