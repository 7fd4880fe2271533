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

uint64_t trn_random64(void)
{
    uint64_t v = 0;
    while (v == 0) {
        ssize_t n = getrandom(&v, sizeof v, 0);
        if (n == (ssize_t)sizeof v)
            continue;
        v = 0;
        /* A guessable incarnation would be worse than none. Only a kernel without getrandom gets here. */
        if (n < 0 && errno != EINTR)
            abort();
    }
    return v;
}
