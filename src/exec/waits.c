/* Asynchronous kernels that are parked, for whoever asks what a step waits for. Only those that really wait get here: they have a network or
 * another worker to wait for, next to which two turns of an uncontended lock are nothing. */
#include "exec/waits.h"

#include <stdlib.h>
#include <time.h>

#define SHARDS 16

typedef struct shard {
    trn_mutex mu;
    trn_parked *first;
    char apart[64]; /* from the next one's cache line */
} shard;

struct trn_waits {
    shard s[SHARDS];
};

trn_waits *trn_waits_new(void)
{
    trn_waits *w = trn_xalloc(sizeof *w);
    for (int i = 0; i < SHARDS; i++)
        trn_mutex_init(&w->s[i].mu, TRN_RANK_LEAF);
    return w;
}

void trn_waits_free(trn_waits *w)
{
    if (!w)
        return;
    for (int i = 0; i < SHARDS; i++)
        trn_mutex_fini(&w->s[i].mu);
    free(w);
}

static shard *shard_of(trn_waits *w, const trn_parked *p)
{
    return &w->s[((uintptr_t)p >> 6) * UINT64_C(0x9e3779b97f4a7c15) >> 60];
}

void trn_waits_add(trn_waits *w, trn_parked *p)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    p->since_ns = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    p->listed = true;
    shard *s = shard_of(w, p);
    trn_lock(&s->mu);
    p->prev = NULL;
    p->next = s->first;
    if (s->first)
        s->first->prev = p;
    s->first = p;
    trn_unlock(&s->mu);
}

void trn_waits_del(trn_waits *w, trn_parked *p)
{
    shard *s = shard_of(w, p);
    trn_lock(&s->mu);
    *(p->prev ? &p->prev->next : &s->first) = p->next;
    if (p->next)
        p->next->prev = p->prev;
    trn_unlock(&s->mu);
    p->listed = false;
}

void trn_waits_each(trn_waits *w, int max, void (*fn)(void *arg, const trn_parked *p), void *arg)
{
    for (int i = 0; i < SHARDS; i++) {
        int seen = 0;
        trn_lock(&w->s[i].mu);
        for (const trn_parked *p = w->s[i].first; p && seen < max; p = p->next, seen++)
            fn(arg, p);
        trn_unlock(&w->s[i].mu);
    }
}
