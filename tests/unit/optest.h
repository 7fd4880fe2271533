/* Runs one kernel without a graph or an executor:
 *
 *     optest t;
 *     trn_err e = optest_run(&t, "Sum", "keep_dims=true, T=f32", x, axes, NULL);   // takes the inputs over
 *     ... t.out[0].t ...
 *     optest_end(&t);                                                               // also after an error; frees e's node, not e
 *
 * Attrs are text; each one's kind is looked up in the op's row: T=f32, N=2, s="a,b", l=[1,2], shape=[?,3], shape=?. A type attr that types an
 * input may be left out, and so may N of N*T when it is the last argument. An asynchronous kernel: optest_start, then optest_wait.
 */
#ifndef TRN_OPTEST_H
#define TRN_OPTEST_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "op/kctx.h"

enum { OPTEST_MAX = 64 };

typedef struct optest {
    trn_arena *arena;
    trn_node node;
    trn_attr attrs[OPTEST_MAX];
    trn_kctx k;
    trn_step step; /* set step.resmgr and so on between optest_prepare and optest_go */
    trn_value in[OPTEST_MAX], out[OPTEST_MAX];
    void (*fini)(void *);
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
    trn_err err;
} optest;

static inline void optest_done(trn_kctx *k, trn_err err)
{
    optest *t = TRN_CONTAINER(k, optest, k);
    pthread_mutex_lock(&t->lock);
    t->err = err;
    t->done = true;
    pthread_cond_broadcast(&t->cond);
    pthread_mutex_unlock(&t->lock);
}

static inline void optest_begin(optest *t, const char *op)
{
    static const trn_step_api api = {.done = optest_done};
    memset(t, 0, sizeof *t);
    t->arena = trn_arena_new();
    t->node.name = "n";
    t->node.device = "";
    t->node.op = trn_arena_strdup(t->arena, op);
    t->node.attrs = t->attrs;
    t->k.node = &t->node;
    t->k.in = t->in;
    t->k.out = t->out;
    t->k.step = &t->step;
    t->step.api = &api;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->cond, NULL);
}

static inline void optest_end(optest *t)
{
    for (int i = 0; i < OPTEST_MAX; i++) {
        trn_tensor_unref(t->in[i].t);
        trn_tensor_unref(t->out[i].t);
    }
    if (t->fini)
        t->fini(t->k.state);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->cond);
    trn_arena_free(t->arena);
}

static inline const char *optest_value(optest *t, const char *p, trn_attr_kind kind, trn_attr_val *v)
{
    char *end;
    switch (kind) {
    case TRN_ATTR_INT: v->i = strtoll(p, &end, 10); return end;
    case TRN_ATTR_FLOAT: v->f = strtof(p, &end); return end;
    case TRN_ATTR_SHAPE: {
        trn_shape s = trn_shape_unknown();
        if (*p == '?')
            p++;
        else if (*p == '[')
            for (s.rank = 0, p++; *p && *p != ']'; p += *p == ',') {
                if (*p == '?')
                    s.dim[s.rank++] = -1, p++;
                else
                    s.dim[s.rank++] = strtoll(p, &end, 10), p = end;
            }
        p += *p == ']';
        v->shape = trn_arena_dup(t->arena, &s, sizeof s);
        return p;
    }
    default: break;
    }
    bool quoted = *p == '"';
    const char *b = p + quoted;
    size_t n = quoted ? strcspn(b, "\"") : strcspn(b, ",]");
    while (!quoted && n && b[n - 1] == ' ')
        n--;
    if (kind == TRN_ATTR_BOOL)
        v->b = n == 4 && !memcmp(b, "true", 4);
    else if (kind == TRN_ATTR_TYPE)
        v->type = trn_dtype_parse(b, n);
    else
        v->s.p = trn_arena_strndup(t->arena, b, n), v->s.n = n;
    return b + n + quoted;
}

static inline void optest_attrs(optest *t, const char *text)
{
    const trn_opdef *def = trn_op_find(t->node.op);
    for (const char *p = text ? text : ""; *p && def;) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, "=");
        const trn_attrdef *d = NULL;
        for (int i = 0; i < def->n_attrs; i++)
            if (strlen(def->attrs[i].name) == n && !memcmp(def->attrs[i].name, p, n))
                d = &def->attrs[i];
        trn_attrdef flag = {.name = trn_arena_strndup(t->arena, p, n), .kind = TRN_ATTR_BOOL};
        if (*p == '_') /* what only our own optimiser writes: no op declares it */
            d = &flag;
        if (!d || p[n] != '=') {
            fprintf(stderr, "optest: %s has no attr \"%.*s\"\n", t->node.op, (int)n, p);
            abort();
        }
        p += n + 1;
        trn_attr *a = &t->attrs[t->node.n_attrs++];
        a->name = d->name;
        a->kind = d->kind;
        a->is_list = d->is_list;
        if (!d->is_list) {
            p = optest_value(t, p, d->kind, &a->v);
        } else {
            trn_attr_val *list = trn_arena_alloc(t->arena, sizeof *list * OPTEST_MAX);
            for (p += *p == '['; *p && *p != ']'; p += strspn(p, ", "))
                p = optest_value(t, p, d->kind, &list[a->n++]);
            p += *p == ']';
            a->list = list;
        }
        p += strspn(p, " ");
    }
}

static inline void optest_input(optest *t, TRN_OWN trn_tensor *x) { t->in[t->k.n_in++].t = x; }

/* Attrs that the inputs tell: types of plain arguments, N of a last N*T. */
static inline void optest_infer(optest *t)
{
    const trn_opdef *def = trn_op_find(t->node.op);
    for (int i = 0, at = 0; def && i < def->n_in; i++) {
        const trn_argdef *d = &def->in[i];
        if (d->type_list_attr >= 0)
            return;
        if (at < t->k.n_in && d->type_attr >= 0 && t->in[at].t && !trn_node_attr(&t->node, def->attrs[d->type_attr].name)) {
            trn_attr *a = &t->attrs[t->node.n_attrs++];
            *a = (trn_attr){.name = def->attrs[d->type_attr].name, .kind = TRN_ATTR_TYPE, .v.type = t->in[at].t->dtype};
        }
        if (d->number_attr < 0) {
            at++;
            continue;
        }
        const char *n = def->attrs[d->number_attr].name;
        if (!trn_node_attr(&t->node, n)) {
            trn_attr *a = &t->attrs[t->node.n_attrs++];
            *a = (trn_attr){.name = n, .kind = TRN_ATTR_INT, .v.i = t->k.n_in - at - (def->n_in - 1 - i)};
        }
        at += (int)trn_attr_int(&t->node, n);
    }
}

/* Checks what the executor would check, makes the kernel's state. Inputs and attrs are in place. */
static inline trn_err optest_prepare(optest *t)
{
    TRN_TRY(trn_node_resolve(&t->node, t->arena));
    const trn_op *row = t->node.def->row;
    TRN_CHECK_ARG(t->k.n_in == t->node.n_in && t->node.n_out <= OPTEST_MAX, "%s has %d inputs, not %d", t->node.op, t->node.n_in, t->k.n_in);
    for (int i = 0; i < t->k.n_in; i++)
        TRN_CHECK_ARG(!t->in[i].t || t->in[i].t->dtype == trn_dtype_base(t->node.in_types[i]), "input %d is %s, not %s", i,
                      trn_dtype_name(t->in[i].t->dtype), trn_dtype_name(t->node.in_types[i]));
    t->k.n_out = t->node.n_out;
    if (row->init) {
        trn_kinit ki = {.node = &t->node, .resmgr = t->step.resmgr};
        TRN_TRY(row->init(&ki));
        t->k.state = ki.state;
        t->fini = row->fini;
    }
    return TRN_OK;
}

/* Starts an asynchronous kernel, runs any other. */
static inline trn_err optest_go(optest *t) { return t->node.def->row->kernel(&t->k); }

/* The asynchronous kernel's result; DEADLINE_EXCEEDED when it has not ended (it still runs then). */
static inline trn_err optest_wait(optest *t, int ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += ms % 1000 * 1000000L;
    if (ts.tv_nsec >= 1000000000L)
        ts.tv_sec++, ts.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&t->lock);
    while (!t->done && !pthread_cond_timedwait(&t->cond, &t->lock, &ts)) {
    }
    bool done = t->done;
    pthread_mutex_unlock(&t->lock);
    return done ? t->err : trn_errorf(TRN_DEADLINE_EXCEEDED, "%s has not ended", t->node.op);
}

static inline trn_err optest_vstart(optest *t, const char *op, const char *attrs, va_list ap)
{
    optest_begin(t, op);
    optest_attrs(t, attrs);
    for (trn_tensor *x; (x = va_arg(ap, trn_tensor *));)
        optest_input(t, x);
    optest_infer(t);
    TRN_TRY(optest_prepare(t));
    return optest_go(t);
}

static inline trn_err optest_start(optest *t, const char *op, const char *attrs, ...)
{
    va_list ap;
    va_start(ap, attrs);
    trn_err e = optest_vstart(t, op, attrs, ap);
    va_end(ap);
    return e;
}

static inline trn_err optest_run(optest *t, const char *op, const char *attrs, ...)
{
    va_list ap;
    va_start(ap, attrs);
    trn_err e = optest_vstart(t, op, attrs, ap);
    va_end(ap);
    if (!e && t->node.def->row->flags & TRN_OP_ASYNC)
        e = optest_wait(t, 5000);
    return e;
}

/* Tensors in one line: dims as a list that ends with -1. OPTEST_T(TRN_FLOAT, float, ((int64_t[]){2, 2}), 1, 2, 3, 4) */
#define OPTEST_VEC(dt, T, ...)                                                                                         \
    trn_tensor_from(dt, 1, (int64_t[]){(int64_t)(sizeof((T[]){__VA_ARGS__}) / sizeof(T))}, (T[]){__VA_ARGS__})
#define OPTEST_MAT(dt, T, r, c, ...) trn_tensor_from(dt, 2, (int64_t[]){r, c}, (T[]){__VA_ARGS__})
#define OPTEST_F32(...) OPTEST_VEC(TRN_FLOAT, float, __VA_ARGS__)
#define OPTEST_I32(...) OPTEST_VEC(TRN_INT32, int32_t, __VA_ARGS__)
#define OPTEST_I64(...) OPTEST_VEC(TRN_INT64, int64_t, __VA_ARGS__)

#endif
