/* The rendezvous inside one process: a table of keys where whoever comes first leaves a value or waits.
 *
 * A waiter's cancel hook and a send may meet. Who takes the waiter out of the table (linked → false, under the lock) completes it; the other
 * side finds it gone. The completer removes the hook before it frees the waiter, which waits for a hook that is just running. */
#include "res/rdv.h"

#include <stdlib.h>

#include "tensor/tensor.h"

typedef struct waiter {
    struct waiter *next, *prev; /* all waiters of one key, first come first served */
    struct item *item;
    struct local *r;            /* a reference */
    trn_cancel *cancel;         /* a reference, or NULL */
    trn_cancel_hook hook;
    trn_rdv_done done;
    void *arg;
    bool linked, cancelled;     /* under r->mu */
} waiter;

typedef struct item {
    waiter *first, *last; /* waiting for it; or else */
    trn_tensor *t;        /* the value that waits to be fetched (NULL when dead without a value) */
    bool has, dead;
    size_t n_key;
    char key[];
} item;

typedef struct local {
    trn_rdv base;
    trn_mutex mu;
    trn_map *map; /* key → item; an item exists only while something waits in it */
    trn_err why;  /* aborted */
} local;

void trn_far_unref(trn_far *f)
{
    if (f && atomic_fetch_sub_explicit(&f->ref, 1, memory_order_acq_rel) == 1)
        f->type->free(f);
}

trn_rdv *trn_rdv_ref(trn_rdv *r)
{
    atomic_fetch_add_explicit(&r->ref, 1, memory_order_relaxed);
    return r;
}

void trn_rdv_unref(trn_rdv *r)
{
    if (r && atomic_fetch_sub_explicit(&r->ref, 1, memory_order_acq_rel) == 1)
        r->type->free(r);
}

static item *item_new(local *l, const char *key, size_t n)
{
    item *it = trn_xalloc(sizeof *it + n + 1);
    it->n_key = n;
    memcpy(it->key, key, n);
    trn_map_put(l->map, it->key, n, it);
    return it;
}

static void item_drop(local *l, item *it)
{
    trn_map_del(l->map, it->key, it->n_key);
    free(it);
}

static void link_waiter(item *it, waiter *w)
{
    w->item = it;
    w->prev = it->last;
    if (it->last)
        it->last->next = w;
    else
        it->first = w;
    it->last = w;
    w->linked = true;
}

/* With the lock held. */
static void unlink_waiter(local *l, waiter *w)
{
    item *it = w->item;
    if (w->prev)
        w->prev->next = w->next;
    else
        it->first = w->next;
    if (w->next)
        w->next->prev = w->prev;
    else
        it->last = w->prev;
    w->linked = false;
    w->next = w->prev = NULL;
    if (!it->first && !it->has)
        item_drop(l, it);
}

/* Ends a waiter that is out of the table. Takes err; borrows t. */
static void complete(waiter *w, trn_err err, trn_tensor *t, bool dead)
{
    if (w->cancel) {
        trn_cancel_remove(w->cancel, &w->hook);
        trn_cancel_unref(w->cancel);
    }
    w->done(w->arg, err, t, dead);
    trn_rdv_unref(&w->r->base);
    free(w);
}

static trn_err cancel_error(trn_cancel *c, const char *key)
{
    trn_err why = trn_cancel_why(c);
    return why ? why : trn_errorf(TRN_CANCELLED, "RecvAsync is cancelled: %s", key);
}

static void on_cancel(void *arg)
{
    waiter *w = arg;
    local *l = w->r;
    trn_lock(&l->mu);
    bool mine = w->linked;
    if (mine)
        unlink_waiter(l, w);
    else
        w->cancelled = true; /* recv is just about to link it, or somebody else has completed it */
    trn_unlock(&l->mu);
    if (mine)
        complete(w, trn_cancel_why(w->cancel), NULL, false);
}

static trn_err local_send(trn_rdv *r, const char *key, trn_tensor *t, bool dead)
{
    local *l = (local *)r;
    size_t n = strlen(key);
    if (TRN_FAULT("rdv.send"))
        return trn_errorf(TRN_UNAVAILABLE, "fault rdv.send");
    trn_lock(&l->mu);
    if (l->why) {
        trn_err err = trn_err_copy(l->why);
        trn_unlock(&l->mu);
        return err;
    }
    item *it = trn_map_get(l->map, key, n);
    if (it && it->has) {
        trn_unlock(&l->mu);
        return trn_errorf(TRN_INTERNAL, "Duplicate send of rendezvous key %s", key);
    }
    if (!it) {
        it = item_new(l, key, n);
        it->has = true;
        it->dead = dead;
        it->t = t ? trn_tensor_ref(t) : NULL;
        trn_unlock(&l->mu);
        return TRN_OK;
    }
    waiter *w = it->first;
    unlink_waiter(l, w);
    trn_unlock(&l->mu);
    complete(w, TRN_OK, t, dead);
    return TRN_OK;
}

/* What is there for the key without waiting: true when `done` has been called. Called with the lock, returns without it when true. */
static bool recv_now(local *l, const char *key, size_t n, trn_rdv_done done, void *arg)
{
    if (l->why) {
        trn_err err = trn_err_copy(l->why);
        trn_unlock(&l->mu);
        done(arg, err, NULL, false);
        return true;
    }
    item *it = trn_map_get(l->map, key, n);
    if (!it || !it->has)
        return false;
    trn_tensor *t = it->t;
    bool dead = it->dead;
    item_drop(l, it);
    trn_unlock(&l->mu);
    done(arg, TRN_OK, t, dead);
    trn_tensor_unref(t);
    return true;
}

static void local_recv(trn_rdv *r, const char *key, trn_cancel *c, trn_rdv_done done, void *arg)
{
    local *l = (local *)r;
    size_t n = strlen(key);
    trn_lock(&l->mu);
    if (recv_now(l, key, n, done, arg))
        return;
    trn_unlock(&l->mu);

    waiter *w = trn_xalloc(sizeof *w);
    w->r = (local *)trn_rdv_ref(r);
    w->done = done;
    w->arg = arg;
    if (c) {
        if (!trn_cancel_add(c, &w->hook, on_cancel, w)) {
            trn_rdv_unref(r);
            free(w);
            done(arg, cancel_error(c, key), NULL, false);
            return;
        }
        w->cancel = trn_cancel_ref(c);
    }
    trn_lock(&l->mu);
    bool gone = w->cancelled;
    if (!gone && !recv_now(l, key, n, done, arg)) {
        item *it = trn_map_get(l->map, key, n);
        link_waiter(it ? it : item_new(l, key, n), w);
        trn_unlock(&l->mu);
        return;
    }
    if (gone)
        trn_unlock(&l->mu);
    if (c) {
        trn_cancel_remove(c, &w->hook);
        trn_cancel_unref(c);
    }
    trn_rdv_unref(r);
    free(w);
    if (gone)
        done(arg, cancel_error(c, key), NULL, false);
}

static void local_abort(trn_rdv *r, trn_err why)
{
    local *l = (local *)r;
    if (!why)
        why = trn_errorf(TRN_ABORTED, "The rendezvous was aborted");
    trn_lock(&l->mu);
    if (l->why) {
        trn_unlock(&l->mu);
        trn_err_free(why);
        return;
    }
    l->why = why;
    waiter *all = NULL;
    trn_map *old = l->map;
    l->map = trn_map_new();
    const char *key;
    size_t n;
    void *v;
    for (size_t pos = 0; trn_map_next(old, &pos, &key, &n, &v);) {
        item *it = v;
        for (waiter *w = it->first, *next; w; w = next) {
            next = w->next;
            w->linked = false;
            w->next = all;
            all = w;
        }
        trn_tensor_unref(it->t);
    }
    trn_unlock(&l->mu);
    trn_map_free(old, free);
    trn_rdv_ref(r); /* a waiter may hold the last one; l->why is written once, so it needs no lock from here on */
    while (all) {
        waiter *w = all;
        all = w->next;
        complete(w, trn_err_copy(l->why), NULL, false);
    }
    trn_rdv_unref(r);
}

static void local_free(trn_rdv *r)
{
    local *l = (local *)r; /* nobody waits: waiters hold references */
    const char *key;
    size_t n;
    void *v;
    for (size_t pos = 0; trn_map_next(l->map, &pos, &key, &n, &v);)
        trn_tensor_unref(((item *)v)->t);
    trn_map_free(l->map, free);
    trn_err_free(l->why);
    trn_mutex_fini(&l->mu);
    free(l);
}

static const trn_rdv_type local_type = {.send = local_send, .recv = local_recv, .abort = local_abort, .free = local_free};

trn_rdv *trn_rdv_local_new(void)
{
    local *l = trn_xalloc(sizeof *l);
    atomic_init(&l->base.ref, 1);
    l->base.type = &local_type;
    trn_mutex_init(&l->mu, TRN_RANK_RDV);
    l->map = trn_map_new();
    return &l->base;
}
