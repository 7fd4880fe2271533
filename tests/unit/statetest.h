/* For tests of stateful kernels: nodes with attrs and kernel state, containers, values that stay between runs. No executor. */
#ifndef TRN_STATETEST_H
#define TRN_STATETEST_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/kctx.h"
#include "res/var.h"

#define ST_MAX_ATTRS 16
#define ST_MAX_IO 16

typedef struct st {
    trn_arena *a;
    trn_step step;
} st;

typedef struct st_node {
    trn_node n;
    trn_attr attrs[ST_MAX_ATTRS];
    void *state;
    bool ready;
} st_node;

static inline st *st_new(void)
{
    st *s = trn_xalloc(sizeof *s);
    s->a = trn_arena_new();
    s->step.resmgr = trn_resmgr_new("localhost");
    s->step.step_resmgr = trn_resmgr_new("step");
    return s;
}

static inline void st_free(st *s)
{
    trn_resmgr_unref(s->step.resmgr);
    trn_resmgr_unref(s->step.step_resmgr);
    trn_arena_free(s->a);
    free(s);
}

static inline void st_node_fini(void *p)
{
    st_node *n = p;
    if (n->ready && n->n.def->row->fini)
        n->n.def->row->fini(n->state);
}

static inline st_node *st_op(st *s, const char *op, const char *name)
{
    st_node *n = trn_arena_alloc(s->a, sizeof *n);
    n->n.name = trn_arena_strdup(s->a, name);
    n->n.op = trn_arena_strdup(s->a, op);
    n->n.device = "/job:localhost/replica:0/task:0/device:CPU:0";
    n->n.attrs = n->attrs;
    trn_arena_on_free(s->a, st_node_fini, n);
    return n;
}

static inline trn_attr *st_attr(st *s, st_node *n, const char *name, trn_attr_kind kind)
{
    trn_attr *a = &n->attrs[n->n.n_attrs++];
    a->name = trn_arena_strdup(s->a, name);
    a->kind = kind;
    return a;
}
static inline void st_int(st *s, st_node *n, const char *name, int64_t v) { st_attr(s, n, name, TRN_ATTR_INT)->v.i = v; }
static inline void st_bool(st *s, st_node *n, const char *name, bool v) { st_attr(s, n, name, TRN_ATTR_BOOL)->v.b = v; }
static inline void st_type(st *s, st_node *n, const char *name, trn_dtype v) { st_attr(s, n, name, TRN_ATTR_TYPE)->v.type = v; }
static inline void st_shape(st *s, st_node *n, const char *name, const trn_shape *v)
{
    st_attr(s, n, name, TRN_ATTR_SHAPE)->v.shape = trn_arena_dup(s->a, v, sizeof *v);
}
static inline void st_str(st *s, st_node *n, const char *name, const char *v)
{
    trn_attr *a = st_attr(s, n, name, TRN_ATTR_STRING);
    a->v.s.p = trn_arena_strdup(s->a, v);
    a->v.s.n = strlen(v);
}

static inline trn_err st_prepare(st *s, st_node *n)
{
    if (n->ready)
        return TRN_OK;
    TRN_TRY(trn_node_resolve(&n->n, s->a));
    if (n->n.def->row->init) {
        trn_kinit ki = {&n->n, s->step.resmgr, NULL};
        TRN_TRY(n->n.def->row->init(&ki));
        n->state = ki.state;
    }
    n->ready = true;
    return TRN_OK;
}

/* Runs once. in: borrowed (a value with var is a ref input); out: n_out values that the caller gives back with st_drop. As the executor
 * does: a variable that comes to an input which wants a value is read. A run holds its own reference to each input tensor, unless `give`
 * is set, when the caller's reference goes with the call. */
static inline trn_err st_run_give(st *s, st_node *n, trn_value *in, int n_in, trn_value *out, bool give)
{
    trn_value ins[ST_MAX_IO] = {0}, outs[ST_MAX_IO] = {0};
    trn_err err = st_prepare(s, n);
    if (!err && n_in != n->n.n_in)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s wants %d inputs", n->n.op, n->n.n_in);
    for (int i = 0; i < n_in; i++) {
        ins[i] = in[i];
        if (ins[i].t && !give)
            ins[i].t = trn_tensor_ref(ins[i].t);
        if (!err && ins[i].var && !trn_dtype_is_ref(n->n.in_types[i]))
            err = trn_var_read(&ins[i].t, ins[i].var);
    }
    if (!err) {
        trn_kctx k = {.node = &n->n, .state = n->state, .in = ins, .out = outs, .n_in = n_in, .n_out = n->n.n_out, .step = &s->step};
        err = n->n.def->row->kernel(&k);
    }
    for (int i = 0; i < n_in; i++)
        trn_tensor_unref(ins[i].t);
    for (int i = 0; n->ready && i < n->n.n_out; i++) {
        if (err) {
            trn_tensor_unref(outs[i].t);
            if (outs[i].var)
                trn_resource_unref(outs[i].var);
        } else {
            out[i] = outs[i];
        }
    }
    return err;
}
static inline trn_err st_run(st *s, st_node *n, trn_value *in, int n_in, trn_value *out)
{
    return st_run_give(s, n, in, n_in, out, false);
}
static inline void st_drop(trn_value v)
{
    trn_tensor_unref(v.t);
    if (v.var)
        trn_resource_unref(v.var);
}
static inline trn_value st_t(trn_tensor *t) { return (trn_value){.t = t}; }
static inline trn_value st_v(trn_var *v) { return (trn_value){.var = v}; }

#endif
