/* Work in pieces that is owed: a thread with nothing better to do takes pieces of it, and so does whoever cannot go on without it. */
#include "base/base.h"

#include <sched.h>
#include <stdlib.h>

#define LOOK_NS 100000 /* for others' last pieces, before sleeping */

static _Atomic int owed;

int trn_later_count(void) { return atomic_load_explicit(&owed, memory_order_relaxed); }

trn_later *trn_later_new(int64_t n, int64_t piece, void (*fn)(void *, int64_t, int64_t), void *arg, void (*over)(void *))
{
    trn_later *l = trn_xalloc(sizeof *l);
    l->fn = fn;
    l->over = over;
    l->arg = arg;
    l->n = n;
    l->piece = piece;
    atomic_init(&l->refs, 1);
    trn_mutex_init(&l->mu, TRN_RANK_LEAF);
    pthread_cond_init(&l->ended, NULL);
    atomic_fetch_add_explicit(&owed, 1, memory_order_relaxed);
    return l;
}

trn_later *trn_later_ref(trn_later *l)
{
    atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void trn_later_unref(trn_later *l)
{
    if (!l || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    trn_mutex_fini(&l->mu);
    pthread_cond_destroy(&l->ended);
    free(l);
}

static void end(trn_later *l)
{
    l->over(l->arg);
    atomic_fetch_sub_explicit(&owed, 1, memory_order_relaxed);
    trn_lock(&l->mu);
    atomic_store_explicit(&l->is_over, true, memory_order_release);
    pthread_cond_broadcast(&l->ended);
    trn_unlock(&l->mu);
}

bool trn_later_piece(trn_later *l)
{
    int64_t begin = atomic_load_explicit(&l->next, memory_order_relaxed), size;
    do {
        if (begin >= l->n)
            return false;
        size = TRN_MIN(l->piece, l->n - begin);
    } while (!atomic_compare_exchange_weak_explicit(&l->next, &begin, begin + size, memory_order_relaxed, memory_order_relaxed));
    l->fn(l->arg, begin, begin + size);
    if (atomic_fetch_add_explicit(&l->done, size, memory_order_acq_rel) + size == l->n)
        end(l);
    return true;
}

void trn_later_end(trn_later *l)
{
    if (atomic_load_explicit(&l->is_over, memory_order_acquire))
        return;
    trn_fpu fpu = trn_fpu_flush();
    while (trn_later_piece(l))
        ;
    trn_fpu_restore(fpu);
    for (uint64_t until = trn_now_ns() + LOOK_NS; trn_now_ns() < until; sched_yield())
        if (atomic_load_explicit(&l->is_over, memory_order_acquire))
            return;
    trn_lock(&l->mu);
    while (!atomic_load_explicit(&l->is_over, memory_order_relaxed))
        pthread_cond_wait(&l->ended, &l->mu.m);
    trn_unlock(&l->mu);
}
