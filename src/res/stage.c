#include "res/stage.h"

#include <inttypes.h>
#include <stdlib.h>

#include "res/wait.h"

typedef struct item {
    struct item *next;
    int n;
    int64_t bytes;
    trn_tensor *t[];
} item;

struct trn_stage {
    trn_resource base;
    char *name;
    int64_t capacity, memory_limit;
    trn_mutex mu;
    item *first, **end;
    int64_t count, bytes;
    trn_waitlist putters, takers, peekers;
};

typedef struct waiter {
    trn_wait w;
    trn_stage *s;
    item *it; /* to put, or taken; of a peek: a copy */
    bool put;
    int64_t index; /* peek */
    trn_stage_done done;
    void *arg;
} waiter;

static void item_free(item *it)
{
    for (int i = 0; it && i < it->n; i++)
        trn_tensor_unref(it->t[i]);
    free(it);
}

static item *item_of(trn_tensor *const *t, int n)
{
    item *it = trn_xalloc(sizeof *it + (size_t)n * sizeof *it->t);
    it->n = n;
    for (int i = 0; i < n; i++) {
        it->t[i] = trn_tensor_ref(t[i]);
        it->bytes += (int64_t)trn_tensor_bytes(t[i]);
    }
    return it;
}

static void waiter_end(trn_wait *base)
{
    waiter *w = (waiter *)base;
    trn_stage *s = w->s;
    if (w->w.err || w->put)
        w->done(w->arg, w->w.err, NULL, 0);
    else
        w->done(w->arg, TRN_OK, w->it->t, w->it->n);
    if (w->w.err || w->put)
        item_free(w->it);
    else
        free(w->it); /* the tensors are the callee's */
    free(w);
    trn_resource_unref(s);
}

static bool fits(const trn_stage *s, const item *it)
{
    return (!s->capacity || s->count < s->capacity) && (!s->memory_limit || s->bytes + it->bytes <= s->memory_limit);
}

static void advance(trn_stage *s, trn_waitlist *ready)
{
    for (bool progress = true; progress;) {
        progress = false;
        waiter *w = (waiter *)s->putters.first;
        if (w && fits(s, w->it)) {
            *s->end = w->it;
            s->end = &w->it->next;
            s->count++;
            s->bytes += w->it->bytes;
            w->it = NULL;
            trn_wait_ready(ready, &w->w, TRN_OK);
            progress = true;
        }
        for (trn_wait *p = s->peekers.first, *next; p; p = next) { /* they stand in nobody's way */
            next = p->next;
            w = (waiter *)p;
            if (w->index >= s->count)
                continue;
            item *it = s->first;
            for (int64_t i = 0; i < w->index; i++)
                it = it->next;
            w->it = item_of(it->t, it->n);
            trn_wait_ready(ready, p, TRN_OK);
        }
        w = (waiter *)s->takers.first;
        if (w && s->first) {
            w->it = s->first;
            s->first = w->it->next;
            if (!s->first)
                s->end = &s->first;
            s->count--;
            s->bytes -= w->it->bytes;
            trn_wait_ready(ready, &w->w, TRN_OK);
            progress = true;
        }
    }
}

static trn_err cancelled(const waiter *w)
{
    return trn_errorf(TRN_CANCELLED, "%s on staging area %s was cancelled", w->put ? "Stage" : "Unstage", w->s->name);
}

static void on_cancel(void *arg)
{
    waiter *w = arg;
    trn_stage *s = w->s;
    trn_waitlist ready = {0};
    trn_lock(&s->mu);
    if (trn_wait_in(&w->w, &s->putters) || trn_wait_in(&w->w, &s->takers) || trn_wait_in(&w->w, &s->peekers)) {
        trn_wait_ready(&ready, &w->w, cancelled(w));
        advance(s, &ready);
    }
    trn_unlock(&s->mu);
    trn_wait_end_all(&ready);
}

static void submit(trn_stage *s, trn_waitlist *list, waiter *w)
{
    w->w.end = waiter_end;
    w->s = trn_resource_ref(s);
    trn_waitlist ready = {0};
    trn_lock(&s->mu);
    trn_wait_link(list, &w->w);
    if (w->w.cancel && trn_cancelled(w->w.cancel))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    else
        advance(s, &ready);
    if (trn_wait_in(&w->w, list) && !trn_wait_hook(&w->w, on_cancel))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    trn_unlock(&s->mu);
    trn_wait_end_all(&ready);
}

static waiter *waiter_new(trn_cancel *cancel, trn_stage_done done, void *arg)
{
    waiter *w = trn_xalloc(sizeof *w);
    w->w.cancel = cancel;
    w->done = done;
    w->arg = arg;
    return w;
}

void trn_stage_put(trn_stage *s, trn_cancel *cancel, trn_tensor *const *tuple, int n, trn_stage_done done, void *arg)
{
    item *it = item_of(tuple, n);
    if (s->memory_limit && it->bytes > s->memory_limit) {
        trn_err err = trn_errorf(TRN_RESOURCE_EXHAUSTED,
                                 "Attempted to insert tensors with combined size of '%" PRId64
                                 "' bytes into Staging Area with a memory limit of '%" PRId64 "'.",
                                 it->bytes, s->memory_limit);
        item_free(it);
        done(arg, err, NULL, 0);
        return;
    }
    waiter *w = waiter_new(cancel, done, arg);
    w->put = true;
    w->it = it;
    submit(s, &s->putters, w);
}

void trn_stage_take(trn_stage *s, trn_cancel *cancel, trn_stage_done done, void *arg)
{
    submit(s, &s->takers, waiter_new(cancel, done, arg));
}

void trn_stage_peek(trn_stage *s, trn_cancel *cancel, int64_t index, trn_stage_done done, void *arg)
{
    waiter *w = waiter_new(cancel, done, arg);
    w->index = index < 0 ? INT64_MAX : index; /* TensorFlow waits for ever, too */
    submit(s, &s->peekers, w);
}

int64_t trn_stage_size(trn_stage *s)
{
    trn_lock(&s->mu);
    int64_t n = s->count;
    trn_unlock(&s->mu);
    return n;
}

static void free_all(item *it)
{
    for (item *next; it; it = next) {
        next = it->next;
        item_free(it);
    }
}

void trn_stage_clear(trn_stage *s)
{
    trn_waitlist ready = {0};
    trn_lock(&s->mu);
    item *gone = s->first;
    s->first = NULL;
    s->end = &s->first;
    s->count = s->bytes = 0;
    advance(s, &ready);
    trn_unlock(&s->mu);
    free_all(gone);
    trn_wait_end_all(&ready);
}

/* ---- the resource ----------------------------------------------------------------------------------------------- */

static void stage_free(trn_resource *r)
{
    trn_stage *s = (trn_stage *)r;
    free_all(s->first);
    trn_mutex_fini(&s->mu);
    free(s->name);
    free(s);
}

static size_t stage_bytes(trn_resource *r)
{
    trn_stage *s = (trn_stage *)r;
    trn_lock(&s->mu);
    size_t n = (size_t)s->bytes;
    trn_unlock(&s->mu);
    return n;
}

static void stage_close(trn_resource *r)
{
    trn_stage *s = (trn_stage *)r;
    trn_waitlist ready = {0}, *lists[] = {&s->putters, &s->takers, &s->peekers};
    trn_lock(&s->mu);
    for (size_t i = 0; i < TRN_COUNTOF(lists); i++)
        while (lists[i]->first)
            trn_wait_ready(&ready, lists[i]->first,
                           trn_errorf(TRN_CANCELLED, "staging area %s is gone: its container was cleared", s->name));
    trn_unlock(&s->mu);
    trn_wait_end_all(&ready);
}

const trn_restype trn_stage_type = {
    .name = "StagingArea", .free = stage_free, .bytes = stage_bytes, .close = stage_close};

trn_stage *trn_stage_new(const char *name, int64_t capacity, int64_t memory_limit)
{
    trn_stage *s = trn_xalloc(sizeof *s);
    trn_resource_init(&s->base, &trn_stage_type);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    s->name = trn_xstrdup(name);
    s->capacity = capacity;
    s->memory_limit = memory_limit;
    s->end = &s->first;
    return s;
}
