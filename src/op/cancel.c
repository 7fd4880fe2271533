#include "op/cancel.h"

#include <stdlib.h>

struct trn_cancel {
    _Atomic uint32_t ref;
    _Atomic bool fired;
    pthread_mutex_t mu;
    pthread_cond_t ran;     /* a hook has returned */
    trn_err why;
    trn_cancel_hook *first;
    trn_cancel_hook *running; /* on `runner` */
    pthread_t runner;
};

trn_cancel *trn_cancel_new(void)
{
    trn_cancel *c = trn_xalloc(sizeof *c);
    c->ref = 1;
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->ran, NULL);
    return c;
}

trn_cancel *trn_cancel_ref(trn_cancel *c)
{
    atomic_fetch_add_explicit(&c->ref, 1, memory_order_relaxed);
    return c;
}

void trn_cancel_unref(trn_cancel *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_err_free(c->why);
    pthread_cond_destroy(&c->ran);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

static void unlink_hook(trn_cancel *c, trn_cancel_hook *h)
{
    if (h->prev)
        h->prev->next = h->next;
    else
        c->first = h->next;
    if (h->next)
        h->next->prev = h->prev;
    h->linked = false;
}

void trn_cancel_fire(trn_cancel *c, trn_err why)
{
    pthread_mutex_lock(&c->mu);
    if (atomic_load_explicit(&c->fired, memory_order_relaxed)) {
        pthread_mutex_unlock(&c->mu);
        trn_err_free(why);
        return;
    }
    c->why = why;
    atomic_store_explicit(&c->fired, true, memory_order_release);
    trn_cancel_ref(c); /* a hook may drop the last reference */
    c->runner = pthread_self();
    trn_cancel_hook *h;
    while ((h = c->first)) {
        unlink_hook(c, h);
        c->running = h;
        void (*fn)(void *) = h->fn;
        void *arg = h->arg;
        pthread_mutex_unlock(&c->mu);
        fn(arg); /* h may be gone after this */
        pthread_mutex_lock(&c->mu);
        c->running = NULL;
        pthread_cond_broadcast(&c->ran);
    }
    pthread_mutex_unlock(&c->mu);
    trn_cancel_unref(c);
}

bool trn_cancelled(const trn_cancel *c)
{
    return atomic_load_explicit(&c->fired, memory_order_acquire);
}

trn_err trn_cancel_why(trn_cancel *c)
{
    return trn_cancelled(c) ? trn_err_copy(c->why) : TRN_OK;
}

bool trn_cancel_add(trn_cancel *c, trn_cancel_hook *h, void (*fn)(void *), void *arg)
{
    *h = (trn_cancel_hook){.fn = fn, .arg = arg};
    pthread_mutex_lock(&c->mu);
    bool ok = !atomic_load_explicit(&c->fired, memory_order_relaxed);
    if (ok) {
        h->next = c->first;
        if (c->first)
            c->first->prev = h;
        c->first = h;
        h->linked = true;
    }
    pthread_mutex_unlock(&c->mu);
    return ok;
}

bool trn_cancel_remove(trn_cancel *c, trn_cancel_hook *h)
{
    pthread_mutex_lock(&c->mu);
    bool removed = h->linked;
    if (removed)
        unlink_hook(c, h);
    else
        while (c->running == h && !pthread_equal(c->runner, pthread_self()))
            pthread_cond_wait(&c->ran, &c->mu);
    pthread_mutex_unlock(&c->mu);
    return removed;
}
