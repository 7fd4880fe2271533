/* Fault points. The first point that is passed reads TRAINERA_FAULTS; without it they are off from then on. */
#include "base/base.h"

#include <stdlib.h>

typedef struct fault {
    char *point;
    uint64_t nth;   /* 0: always */
    bool from_nth;  /* nth and all later ones */
    double percent; /* >= 0: by chance */
    uint64_t passed;
} fault;

_Atomic int trn_faults_armed = 1; /* until the environment was read */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static bool env_read;
static fault *faults;
static size_t n_faults, cap_faults;
static uint64_t chance = 1;

static double next_chance(void) /* [0, 100) */
{
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (double)(chance >> 11) * (100.0 / 9007199254740992.0);
}

static void parse(const char *spec)
{
    for (size_t i = 0; i < n_faults; i++)
        free(faults[i].point);
    n_faults = 0;
    chance = 1;
    while (spec && *spec) {
        size_t n = strcspn(spec, ",");
        const char *colon = memchr(spec, ':', n);
        size_t name = colon ? (size_t)(colon - spec) : n;
        if (colon && name == 4 && memcmp(spec, "seed", 4) == 0) {
            chance = strtoull(colon + 1, NULL, 10);
        } else if (name) {
            fault f = {.point = trn_xstrndup(spec, name), .percent = -1};
            if (colon) {
                char *end;
                double v = strtod(colon + 1, &end);
                if (*end == '%')
                    f.percent = v;
                else
                    f.nth = v >= 1 ? (uint64_t)v : 1;
                f.from_nth = *end == '+';
            }
            TRN_PUSH(faults, n_faults, cap_faults, f);
        }
        spec += n + (spec[n] == ',');
    }
    env_read = true;
    atomic_store_explicit(&trn_faults_armed, n_faults > 0, memory_order_relaxed);
}

void trn_faults_set(const char *spec)
{
    pthread_mutex_lock(&mu);
    parse(spec);
    pthread_mutex_unlock(&mu);
}

bool trn_fault_hit(const char *point)
{
    bool hit = false;
    pthread_mutex_lock(&mu);
    if (!env_read)
        parse(getenv("TRAINERA_FAULTS"));
    for (size_t i = 0; i < n_faults; i++) {
        fault *f = &faults[i];
        if (strcmp(f->point, point) != 0)
            continue;
        f->passed++;
        if (f->percent >= 0)
            hit |= next_chance() < f->percent;
        else
            hit |= !f->nth || f->passed == f->nth || (f->from_nth && f->passed > f->nth);
    }
    pthread_mutex_unlock(&mu);
    if (hit)
        trn_log(TRN_LOG_WARN, "fault", "%s fails as asked", point);
    return hit;
}
