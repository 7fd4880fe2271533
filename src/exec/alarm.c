/* Calls at a later time, for those who wait between steps: a timer on one of the task's loops (trn_host_alarm). */
#include <stdlib.h>

#include "exec/plan.h"

struct trn_alarm {
    _Atomic uint32_t ref; /* whoever asked for it; the loop, until it is over */
    _Atomic bool over;
    trn_loop *loop;
    trn_timer timer;
    trn_loop_task closing;
    uint64_t at_ns;
    void (*fn)(void *arg, bool in_time);
    void *arg;
};

static void unref(trn_alarm *a)
{
    if (atomic_fetch_sub_explicit(&a->ref, 1, memory_order_acq_rel) == 1)
        free(a);
}

/* [loop], or when that is closed */
static void end(trn_alarm *a, bool in_time)
{
    if (atomic_exchange_explicit(&a->over, true, memory_order_acq_rel))
        return;
    trn_timer_stop(a->loop, &a->timer);
    trn_loop_at_close_stop(a->loop, &a->closing);
    a->fn(a->arg, in_time);
    unref(a);
}

static void rings(void *a) { end(a, true); }
static void closed(void *a) { end(a, false); }

static void begin(void *a_)
{
    trn_alarm *a = a_;
    a->closing = (trn_loop_task){.fn = closed, .arg = a};
    trn_loop_at_close(a->loop, &a->closing);
    trn_timer_start(a->loop, &a->timer, a->at_ns, rings, a);
}

static void early(void *a)
{
    end(a, true);
    unref(a);
}

trn_alarm *trn_exec__alarm(const void *env_, uint64_t ns, void (*fn)(void *arg, bool in_time), void *arg)
{
    const trn_exec_env *env = env_;
    if (!env->loop)
        return NULL;
    trn_alarm *a = trn_xalloc(sizeof *a);
    atomic_init(&a->ref, 2);
    a->loop = env->loop;
    a->at_ns = trn_now_ns() + ns;
    a->fn = fn;
    a->arg = arg;
    trn_loop_post(a->loop, begin, a);
    return a;
}

void trn_exec__alarm_end(trn_alarm *a)
{
    if (!atomic_load_explicit(&a->over, memory_order_acquire)) { /* then the loop is there, too */
        atomic_fetch_add_explicit(&a->ref, 1, memory_order_relaxed);
        trn_loop_post(a->loop, early, a);
    }
    unref(a);
}
