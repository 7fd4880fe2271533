/* Mutexes (tf.CriticalSection). A lock is a variant: whoever holds the last reference to it holds the mutex, so steps that fail or are cancelled give it back. */
#include "ops/resop.h"

#include <stdlib.h>

#include "res/wait.h"

#define HANDLE "tensorflow::Mutex"

typedef struct mutex {
    trn_resource base;
    char *name;
    trn_mutex mu;
    bool locked;
    trn_waitlist waiters;
} mutex;

typedef struct waiter {
    trn_wait w;
    mutex *m;
    trn_kctx *k;
} waiter;

typedef struct lock {
    trn_variant base;
    mutex *m;
} lock;

/* With the lock held: the mutex goes to who has waited longest. */
static void advance(mutex *m, trn_waitlist *ready)
{
    if (m->locked || !m->waiters.first)
        return;
    m->locked = true;
    trn_wait_ready(ready, m->waiters.first, TRN_OK);
}

static void lock_free(void *obj)
{
    lock *l = obj;
    trn_waitlist ready = {0};
    trn_lock(&l->m->mu);
    l->m->locked = false;
    advance(l->m, &ready);
    trn_unlock(&l->m->mu);
    trn_wait_end_all(&ready);
    trn_resource_unref(l->m);
    free(l);
}

static const trn_variant_type lock_type = {.name = "tensorflow::MutexLock", .free = lock_free};

static void waiter_end(trn_wait *base)
{
    waiter *w = (waiter *)base;
    trn_kctx *k = w->k;
    trn_err err = w->w.err;
    if (!err) {
        lock *l = trn_xalloc(sizeof *l);
        atomic_init(&l->base.ref, 1);
        l->base.type = &lock_type;
        l->m = trn_resource_ref(w->m);
        trn_shape scalar = trn_shape_scalar();
        trn_tensor *y;
        if ((err = trn_out_new(&y, k, 0, TRN_VARIANT, &scalar)))
            trn_variant_unref(&l->base);
        else
            TRN_DATA_MUT(y, trn_variant *)[0] = &l->base;
    }
    trn_resource_unref(w->m);
    free(w);
    trn_k_done(k, err);
}

static trn_err cancelled(const mutex *m) { return trn_errorf(TRN_CANCELLED, "mutex %s: Lock acquisition cancelled.", m->name); }

static void on_cancel(void *arg)
{
    waiter *w = arg;
    mutex *m = w->m;
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    if (trn_wait_in(&w->w, &m->waiters))
        trn_wait_ready(&ready, &w->w, cancelled(m));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

/* ---- the resource ------------------------------------------------------------------------------------------------------- */

static void mutex_free(trn_resource *r)
{
    mutex *m = (mutex *)r;
    trn_mutex_fini(&m->mu);
    free(m->name);
    free(m);
}

static void mutex_close(trn_resource *r)
{
    mutex *m = (mutex *)r;
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    while (m->waiters.first)
        trn_wait_ready(&ready, m->waiters.first, trn_errorf(TRN_CANCELLED, "mutex %s is gone: its container was cleared", m->name));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

static const trn_restype mutex_type = {.name = "Mutex", .handle = HANDLE, .free = mutex_free, .close = mutex_close};

static trn_err make_mutex(trn_resource **out, void *name)
{
    mutex *m = trn_xalloc(sizeof *m);
    trn_resource_init(&m->base, &mutex_type);
    trn_mutex_init(&m->mu, TRN_RANK_RES);
    m->name = trn_xstrdup(name);
    *out = &m->base;
    return TRN_OK;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------ */

static trn_err mutex_handle(trn_kctx *k) { return trn_k_handle(k, HANDLE); }

static trn_err mutex_lock(trn_kctx *k)
{
    mutex *m;
    TRN_TRY(trn_k_resource_or_make(&m, k, 0, &mutex_type, make_mutex));
    waiter *w = trn_xalloc(sizeof *w);
    w->w.cancel = trn_k_cancel(k);
    w->w.end = waiter_end;
    w->m = m;
    w->k = k;
    trn_resource_ref(m); /* the waiter may be gone before we have unlocked */
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    trn_wait_link(&m->waiters, &w->w);
    if (w->w.cancel && trn_cancelled(w->w.cancel))
        trn_wait_ready(&ready, &w->w, cancelled(m));
    else
        advance(m, &ready);
    if (trn_wait_in(&w->w, &m->waiters) && !trn_wait_hook(&w->w, on_cancel))
        trn_wait_ready(&ready, &w->w, cancelled(m));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
    trn_resource_unref(m);
    return TRN_OK;
}

/* Holds the lock until here: the executor drops it behind the kernel. */
static trn_err consume(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 0, "Expected input to be a scalar, saw shape: %s", trn_shape_text(text, &t->shape));
    const trn_variant *v = ((trn_variant *const *)t->data)[0];
    TRN_CHECK_ARG(v && v->type == &lock_type, "the input is a %s, not a lock of a mutex", v ? v->type->name : "variant without a value");
    unsigned n = atomic_load(&v->ref);
    TRN_CHECK_ARG(n == 1, "Expected use count of lock to be 1, but saw: %u", n);
    return TRN_OK;
}

const trn_op trn_ops_mutex[] = {
    {"MutexV2", " -> resource:res; container:string=\"\", shared_name:string=\"\"", trn_sh_scalar, mutex_handle, TRN_OP_STATEFUL | TRN_OP_CHEAP},
    {"MutexLock", "mutex:res -> mutex_lock:var", trn_sh_scalar, mutex_lock, TRN_OP_STATEFUL | TRN_OP_ASYNC},
    {"ConsumeMutexLock", "mutex_lock:var -> ", trn_sh_none, consume, TRN_OP_STATEFUL | TRN_OP_CHEAP},
    {0},
};
