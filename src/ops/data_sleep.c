/* SleepDataset: a pause before each element, without a thread that sleeps. */
#include <stdlib.h>

#include "ops/data.h"

#define MAX_US (INT64_MAX / 4000) /* in nanoseconds, far from the end of the clock */

typedef struct sleeper {
    trn_ds d;
    int64_t us;
} sleeper;

/* One pause. The alarm has a reference, the iterator the other one. */
typedef struct nap {
    _Atomic uint32_t ref;
    trn_mutex mu;
    bool over;
    trn_waitlist who;
} nap;

typedef struct sleep_it {
    trn_it it;
    nap *nap;
    trn_alarm *alarm;
} sleep_it;

static void nap_unref(nap *n)
{
    if (atomic_fetch_sub_explicit(&n->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_mutex_fini(&n->mu);
    free(n);
}

static void rang(void *nap_, bool in_time)
{
    nap *n = nap_;
    trn_waitlist ready = {0};
    trn_lock(&n->mu);
    n->over = true;
    while (in_time && n->who.first)
        trn_wait_ready(&ready, n->who.first, TRN_OK);
    trn_unlock(&n->mu);
    trn_wait_end_all(&ready);
    nap_unref(n);
}

/* Whether it has been slept or was cancelled. */
static void nap_end(sleep_it *it)
{
    if (!it->nap)
        return;
    trn_host_alarm_end(&it->it.root->host, it->alarm);
    nap_unref(it->nap);
    it->nap = NULL;
    it->alarm = NULL;
}

static trn_ds_do nap_begin(sleep_it *it, trn_act *a)
{
    nap *n = trn_xalloc(sizeof *n);
    atomic_init(&n->ref, 2);
    trn_mutex_init(&n->mu, TRN_RANK_RES);
    it->nap = n;
    it->alarm = trn_host_alarm(&it->it.root->host, (uint64_t)((sleeper *)it->it.d)->us * 1000, rang, n);
    trn_lock(&n->mu);
    if (!n->over)
        return trn_act_park(a, &n->who, &n->mu);
    trn_unlock(&n->mu);
    return trn_act_pull_on(a, it->it.in);
}

static trn_ds_do sleep_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    sleep_it *it = (sleep_it *)it_;
    switch (why) {
    case TRN_DS_START:
        nap_end(it);
        if (((sleeper *)it_->d)->us > 0)
            return nap_begin(it, a);
        return trn_act_pull_on(a, it_->in);
    case TRN_DS_WOKEN:
        nap_end(it);
        return trn_act_pull_on(a, it_->in);
    case TRN_DS_GOT:
        return TRN_DS_GIVE;
    default:
        return TRN_DS_END;
    }
}

static void sleep_stop(trn_it *it) { nap_end((sleep_it *)it); }

static const trn_ds_op sleep_op = {"SleepDataset", sizeof(sleep_it), NULL, trn_it_start_in, sleep_next, .stop = sleep_stop, .count = trn_data_count_same};

static trn_err sleep_dataset(trn_kctx *k)
{
    int64_t us;
    TRN_TRY(trn_data_i64(&us, k, 1, "sleep_microseconds"));
    TRN_CHECK_ARG(us >= 0, "sleep_microseconds is negative");
    sleeper *s;
    TRN_TRY(trn_data_on(&s, k, &sleep_op, sizeof *s));
    s->us = TRN_MIN(us, MAX_US);
    return trn_data_out(k, s, TRN_OK);
}

#define SLEEP "input_dataset:var, sleep_microseconds:i64 -> handle:var; " DS_OUT

const trn_op trn_ops_data_sleep[] = {
    {"SleepDataset", SLEEP, trn_sh_dataset, sleep_dataset, DS_FLAGS},
    {"ExperimentalSleepDataset", SLEEP, trn_sh_dataset, sleep_dataset, DS_FLAGS},
    {0},
};
