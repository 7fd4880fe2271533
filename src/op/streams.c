#include "op/streams.h"

#include "base/base.h"

#include <time.h>

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int level_now(trn_streams *s, int top)
{
    int below = atomic_load_explicit(&s->below, memory_order_relaxed);
    return below < top ? top - below : 0;
}

int trn_streams_level(trn_streams *s, int top)
{
    int level = level_now(s, top);
    uint32_t pass = atomic_fetch_add_explicit(&s->passes, 1, memory_order_relaxed);
    uint32_t dice = pass * 2654435769u; /* spread, so that variables that are updated in turns all try */
    if (pass > 0 && dice >> 29 == 0)
        level += level == top || (level > 0 && dice >> 28 & 1) ? -1 : 1;
    return level < 0 ? 0 : level;
}

void trn_streams_learn(trn_streams *s, int top, int level, uint64_t cost)
{
    uint64_t was = atomic_load_explicit(&s->cost[level], memory_order_relaxed);
    cost = was ? was - was / 8 + cost / 8 : cost;
    atomic_store_explicit(&s->cost[level], cost ? cost : 1, memory_order_relaxed);

    int now = level_now(s, top);
    uint64_t here = atomic_load_explicit(&s->cost[now], memory_order_relaxed);
    uint64_t more = now < top ? atomic_load_explicit(&s->cost[now + 1], memory_order_relaxed) : 0;
    uint64_t less = now > 0 ? atomic_load_explicit(&s->cost[now - 1], memory_order_relaxed) : 0;
    if (here && more && more * 3 < here * 4) /* twice the threads for 4/3 of the time in all: half as fast again */
        now++;
    else if (here && less && here * 5 > less * 7) /* a little apart, so that it settles */
        now--;
    atomic_store_explicit(&s->below, top - now, memory_order_relaxed);
}

typedef struct timed {
    void (*fn)(void *, int64_t, int64_t);
    void *arg;
    _Atomic uint64_t ns;
} timed;

static void timed_piece(void *arg, int64_t begin, int64_t end)
{
    timed *t = arg;
    uint64_t from = thread_ns();
    t->fn(t->arg, begin, end);
    atomic_fetch_add_explicit(&t->ns, thread_ns() - from, memory_order_relaxed);
}

void trn_k_for_streams(trn_streams *s, const trn_kctx *k, size_t bytes, int64_t n, int64_t grain,
                       void (*fn)(void *, int64_t, int64_t), void *arg)
{
    int threads = trn_k_threads(k), top = 0;
    while (top < TRN_STREAMS_LEVELS - 1 && 1 << top < threads)
        top++;
    if (top == 0 || n <= grain || bytes < 1024) {
        trn_k_for(k, n, grain, fn, arg);
        return;
    }
    int level = trn_streams_level(s, top), use = TRN_MIN(1 << level, threads);
    timed t = {.fn = fn, .arg = arg};
    trn_k_for(k, n, use < threads ? TRN_MAX((n + use - 1) / use, grain) : grain, timed_piece, &t);
    trn_streams_learn(s, top, level, atomic_load_explicit(&t.ns, memory_order_relaxed) * 1000 / (bytes / 1024));
}
