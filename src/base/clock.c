#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

uint64_t trn_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t trn_wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static _Atomic unsigned forks; /* a child must not draw what its parent draws */

static void forked(void) { atomic_fetch_add(&forks, 1); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

/* A step draws several: one system call fetches a few dozen. */
uint64_t trn_random64(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local uint64_t stock[32];
    static _Thread_local int left;
    static _Thread_local unsigned of;
    pthread_once(&once, watch_forks);
    uint64_t v = 0;
    while (v == 0) {
        if (left > 0 && of == atomic_load_explicit(&forks, memory_order_relaxed)) {
            v = stock[--left];
            continue;
        }
        ssize_t n = getrandom(stock, sizeof stock, 0);
        if (n == (ssize_t)sizeof stock) {
            left = (int)TRN_COUNTOF(stock);
            of = atomic_load(&forks);
            continue;
        }
        /* A guessable incarnation would be worse than none. Only a kernel without getrandom gets here. */
        if (n < 0 && errno != EINTR)
            abort();
    }
    return v;
}
