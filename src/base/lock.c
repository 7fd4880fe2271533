/* Mutexes with ranks. Built with TRN_DEBUG_LOCKS, every thread keeps what it holds and stops at the first lock that is taken
 * out of order: a deadlock that would need luck to happen becomes an error that always happens. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef TRN_DEBUG_LOCKS
#define MAX_HELD 16
static _Thread_local struct {
    const trn_mutex *m[MAX_HELD];
    int n;
} held;

static void check_order(const trn_mutex *m)
{
    for (int i = 0; i < held.n; i++) {
        if (held.m[i]->rank < m->rank || (held.m[i]->rank == m->rank && (uintptr_t)held.m[i] < (uintptr_t)m))
            continue;
        fprintf(stderr, "trainera: lock order: rank %d (%p) taken while holding rank %d (%p)\n", m->rank,
                (const void *)m, held.m[i]->rank, (const void *)held.m[i]);
        abort();
    }
    if (held.n == MAX_HELD) {
        fprintf(stderr, "trainera: one thread holds %d locks\n", MAX_HELD);
        abort();
    }
}

static void note_taken(const trn_mutex *m) { held.m[held.n++] = m; }

static void note_given(const trn_mutex *m)
{
    for (int i = held.n - 1; i >= 0; i--) {
        if (held.m[i] != m)
            continue;
        held.n--;
        for (; i < held.n; i++)
            held.m[i] = held.m[i + 1];
        return;
    }
    fprintf(stderr, "trainera: rank %d lock (%p) released by a thread that does not hold it\n", m->rank,
            (const void *)m);
    abort();
}
#else
static inline void check_order(const trn_mutex *m) { (void)m; }
static inline void note_taken(const trn_mutex *m) { (void)m; }
static inline void note_given(const trn_mutex *m) { (void)m; }
#endif

void trn_mutex_init(trn_mutex *m, trn_lock_rank rank)
{
    pthread_mutex_init(&m->m, NULL);
    m->rank = (int)rank;
}

void trn_mutex_fini(trn_mutex *m) { pthread_mutex_destroy(&m->m); }

void trn_lock(trn_mutex *m)
{
    check_order(m);
    pthread_mutex_lock(&m->m);
    note_taken(m);
}

bool trn_lock_waits(trn_mutex *m)
{
    check_order(m);
    bool waits = pthread_mutex_trylock(&m->m) != 0;
    if (waits)
        pthread_mutex_lock(&m->m);
    note_taken(m);
    return waits;
}

/* Cannot deadlock, so the order does not matter; but what is taken while it is held must follow it. */
bool trn_trylock(trn_mutex *m)
{
    if (pthread_mutex_trylock(&m->m) != 0)
        return false;
    note_taken(m);
    return true;
}

void trn_unlock(trn_mutex *m)
{
    note_given(m);
    pthread_mutex_unlock(&m->m);
}
