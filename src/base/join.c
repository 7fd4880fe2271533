/* Several things that end on any thread, and one that goes on when all have. */
#include "base/base.h"

void trn_join_init(trn_join *j, int pending)
{
    atomic_init(&j->pending, pending);
    trn_mutex_init(&j->mu, TRN_RANK_LEAF);
    j->err = TRN_OK;
}

void trn_join_add(trn_join *j, int n)
{
    atomic_fetch_add_explicit(&j->pending, n, memory_order_relaxed);
}

bool trn_join_done(trn_join *j, trn_err err)
{
    if (err) {
        trn_lock(&j->mu);
        if (!j->err || (trn_err_is_derived(j->err) && !trn_err_is_derived(err))) {
            trn_err old = j->err;
            j->err = err;
            err = old;
        }
        trn_unlock(&j->mu);
        trn_err_free(err);
    }
    return atomic_fetch_sub_explicit(&j->pending, 1, memory_order_acq_rel) == 1;
}

trn_err trn_join_fini(trn_join *j)
{
    trn_mutex_fini(&j->mu);
    return j->err;
}
