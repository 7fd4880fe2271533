/* Datasets that work ahead of who asks: Prefetch keeps elements ready, ParallelMap calls its function on several at once. Both keep the order.
 *
 * Each has an activity of its own that pulls on the input (the feeder) as long as there is room in the buffer, and stops when there is none;
 * who takes an element starts it again. Who finds nothing parks. Letting go of the iterator fires its own cancellation, which ends the feeder and
 * the calls; the last of them frees the iterator. */
#include <stdlib.h>

#include "ops/data.h"

#define AUTOTUNE (-1)
#define PREFETCH_AUTO 4     /* elements */
#define MAX_BUFFER (1 << 20) /* slots that are reserved at once; more elements than this are not kept ready */

typedef struct ahead {
    trn_ds d;
    int64_t n;     /* buffer size, or calls at once */
    bool preserve; /* ParallelMap */
} ahead;

typedef struct ahead_it ahead_it;

typedef struct slot {
    ahead_it *it;
    bool done, end;
    trn_elem *e; /* argument, then result */
    trn_err err;
} slot;

struct ahead_it {
    trn_it it;
    trn_mutex mu;
    trn_cancel *own;
    trn_waitlist waiters; /* at most one: iterators are pulled by one at a time */
    int cap, head, n;
    slot *s;     /* a ring */
    bool feeding, over, dropped;
};

static trn_err ahead_start(trn_it *it_)
{
    ahead_it *it = (ahead_it *)it_;
    trn_mutex_init(&it->mu, TRN_RANK_RES);
    it->own = trn_cancel_new();
    it->cap = (int)TRN_MIN(((ahead *)it_->d)->n, MAX_BUFFER);
    it->s = trn_xalloc(((size_t)it->cap + 1) * sizeof *it->s);
    return trn_it_start_in(it_);
}

static void ahead_drop(trn_it *it_)
{
    ahead_it *it = (ahead_it *)it_;
    if (!it->own)
        return;
    trn_lock(&it->mu);
    it->dropped = true;
    trn_unlock(&it->mu);
    trn_cancel_fire(it->own, trn_errorf(TRN_CANCELLED, "Iterator was let go"));
}

static void ahead_stop(trn_it *it_)
{
    ahead_it *it = (ahead_it *)it_;
    for (int i = 0; i < it->n; i++) {
        slot *s = &it->s[(it->head + i) % it->cap];
        trn_elem_free(s->e);
        trn_err_free(s->err);
    }
    free(it->s);
    if (it->own) {
        trn_cancel_unref(it->own);
        trn_mutex_fini(&it->mu);
    }
}

/* ---- the function --------------------------------------------------------------------------------------------------- */

/* With the lock held: whoever waits for the first slot goes on. */
static void wake(ahead_it *it, trn_waitlist *ready)
{
    if (it->waiters.first && (it->n ? it->s[it->head].done : it->over))
        trn_wait_ready(ready, it->waiters.first, TRN_OK);
}

static void call_done(void *arg, trn_err err, trn_tensor **rets, int n)
{
    slot *s = arg;
    ahead_it *it = s->it;
    bool end = false;
    if (trn_err_code(err) == TRN_OUT_OF_RANGE) {
        trn_err e = ((ahead *)it->it.d)->preserve ? TRN_BAD("Function invocation produced OutOfRangeError: %s", trn_err_msg(err)) : TRN_OK;
        trn_err_free(err);
        err = e;
        end = !e;
    }
    trn_elem *e = err || end ? NULL : trn_elem_of(rets, n), *args;
    trn_waitlist ready = {0};
    trn_lock(&it->mu);
    args = s->e;
    s->e = e;
    s->err = err;
    s->end = end;
    s->done = true;
    wake(it, &ready);
    trn_unlock(&it->mu);
    trn_elem_free(args);
    trn_wait_end_all(&ready);
    trn_it_unref(&it->it);
}

static void call_slot(void *arg)
{
    slot *s = arg;
    const trn_it *it = &s->it->it;
    int n = s->e->n, total = n + it->d->n_cap;
    trn_tensor *few[32] = {0}, **args = total <= 32 ? few : trn_xalloc((size_t)total * sizeof *args);
    for (int i = 0; i < total; i++)
        args[i] = i < n ? s->e->t[i] : it->d->cap[i - n];
    trn_func_run(it->f, s->it->own, args, total, call_done, s);
    if (args != few)
        free(args);
}

/* ---- the feeder ------------------------------------------------------------------------------------------------------ */

static bool fed(void *arg, trn_err err, trn_elem *e)
{
    ahead_it *it = arg;
    bool call = e && it->it.f;
    slot *s = NULL;
    trn_waitlist ready = {0};
    trn_lock(&it->mu);
    if (err || e) {
        s = &it->s[(it->head + it->n++) % it->cap];
        *s = (slot){.it = it, .e = e, .err = err, .done = !call};
    } else {
        it->over = true;
    }
    bool again = !it->over && !it->dropped && it->n < it->cap;
    it->feeding = again;
    wake(it, &ready);
    trn_unlock(&it->mu);
    trn_wait_end_all(&ready);
    if (call) {
        trn_it_ref(&it->it);
        if (!trn_host_submit(&it->it.root->host, TRN_ON_POOL, call_slot, s))
            call_slot(s);
    }
    if (!again)
        trn_it_unref(&it->it);
    return again;
}

/* With the lock held; returns true when the caller has to start it, after unlocking. */
static bool want_feeder(ahead_it *it)
{
    if (it->feeding || it->over || it->n >= it->cap)
        return false;
    it->feeding = true;
    return true;
}

static void start_feeder(ahead_it *it)
{
    trn_it_ref(&it->it);
    trn_act_start(it->it.in, it->own, fed, it);
}

static trn_ds_do ahead_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    ahead_it *it = (ahead_it *)it_;
    if (it->cap == 0)
        return trn_data_pass(it_, a, why);
    for (;;) {
        trn_lock(&it->mu);
        if (it->n && it->s[it->head].done) {
            slot s = it->s[it->head];
            it->head = (it->head + 1) % it->cap;
            it->n--;
            bool start = want_feeder(it);
            trn_unlock(&it->mu);
            if (start)
                start_feeder(it);
            if (s.err)
                return trn_act_fail(a, s.err);
            return s.end ? TRN_DS_END : trn_act_give(a, s.e);
        }
        if (it->n == 0 && it->over) {
            trn_unlock(&it->mu);
            return TRN_DS_END;
        }
        if (!want_feeder(it))
            return trn_act_park(a, &it->waiters, &it->mu);
        trn_unlock(&it->mu);
        start_feeder(it);
    }
}

static const trn_ds_op prefetch_op = {"PrefetchDataset", sizeof(ahead_it), NULL, ahead_start, ahead_next, ahead_drop, ahead_stop, trn_data_count_same};

static int64_t pmap_count(const trn_ds *d) { return ((const ahead *)d)->preserve ? trn_ds_count(d->in[0]) : TRN_DS_UNKNOWN; }

static const trn_ds_op pmap_op = {"ParallelMapDataset", sizeof(ahead_it), NULL, ahead_start, ahead_next, ahead_drop, ahead_stop, pmap_count};

/* ---- ops ---------------------------------------------------------------------------------------------------------------- */

static trn_err prefetch_dataset(trn_kctx *k)
{
    ahead *d;
    TRN_TRY(trn_data_on(&d, k, &prefetch_op, sizeof *d));
    trn_err err = trn_data_i64(&d->n, k, 1, "buffer_size");
    if (!err && d->n < 0 && d->n != AUTOTUNE)
        err = TRN_BAD("buffer_size must be >= 0 or set buffer_size to be %d for auto-tuning", AUTOTUNE);
    if (d->n == AUTOTUNE)
        d->n = PREFETCH_AUTO;
    return trn_data_out(k, d, err);
}

static trn_err parallel_calls(int64_t *out, trn_kctx *k)
{
    TRN_TRY(trn_data_i64(out, k, trn_in_arg(k, "num_parallel_calls", NULL), "num_parallel_calls"));
    TRN_CHECK_ARG(*out > 0 || *out == AUTOTUNE, "num_parallel_calls must be greater than zero.");
    trn_host host = trn_k_host(k);
    int64_t threads = trn_host_threads(&host);
    *out = *out == AUTOTUNE ? threads : TRN_MIN(*out, 8 * threads + 64); /* more at once is of no use to anybody */
    return TRN_OK;
}

static trn_err pmap(ahead **out, trn_kctx *k)
{
    ahead *d;
    TRN_TRY(trn_data_on(&d, k, &pmap_op, sizeof *d));
    trn_data_elem_attrs(&d->d, k->node);
    trn_err err = trn_data_func(&d->d, k, "f", "other_arguments");
    if (!err)
        err = parallel_calls(&d->n, k);
    if (err) {
        trn_ds_unref(&d->d);
        return err;
    }
    d->preserve = trn_attr_bool(k->node, "preserve_cardinality");
    *out = d;
    return TRN_OK;
}

static trn_err parallel_map_dataset(trn_kctx *k)
{
    ahead *d;
    TRN_TRY(pmap(&d, k));
    return trn_data_out(k, d, TRN_OK);
}

static trn_err map_and_batch_dataset(trn_kctx *k)
{
    int64_t n;
    bool drop;
    TRN_TRY(trn_data_i64(&n, k, trn_in_arg(k, "batch_size", NULL), "batch_size"));
    TRN_TRY(trn_data_bool(&drop, k, trn_in_arg(k, "drop_remainder", NULL), "drop_remainder"));
    TRN_CHECK_ARG(n > 0, "batch_size must be greater than zero.");
    ahead *d;
    TRN_TRY(pmap(&d, k));
    trn_ds_elem_is(&d->d, d->d.n, d->d.types, NULL); /* the attrs speak of batches */
    trn_ds *b = NULL;
    trn_err err = trn_data_batch_on(&b, &d->d, n, drop);
    trn_ds_unref(&d->d);
    return trn_data_out(k, b, err);
}

#define F_ARGS "f:func, Targuments:list(type)>=0, "

const trn_op trn_ops_data_ahead[] = {
    {"PrefetchDataset",
     "input_dataset:var, buffer_size:i64 -> handle:var; " DS_OUT ", slack_period:int=0, legacy_autotune:bool=true, buffer_size_min:int=0" DS_META,
     trn_sh_dataset, prefetch_dataset, DS_FLAGS},
    {"ParallelMapDataset",
     "input_dataset:var, other_arguments:Targuments, num_parallel_calls:i32 -> handle:var; " F_ARGS DS_OUT
     ", use_inter_op_parallelism:bool=true, sloppy:bool=false, preserve_cardinality:bool=false" DS_META,
     trn_sh_dataset, parallel_map_dataset, DS_FLAGS},
    {"ParallelMapDatasetV2",
     "input_dataset:var, other_arguments:Targuments, num_parallel_calls:i64 -> handle:var; " F_ARGS DS_OUT
     ", use_inter_op_parallelism:bool=true, deterministic:string=\"default\", preserve_cardinality:bool=false" DS_META,
     trn_sh_dataset, parallel_map_dataset, DS_FLAGS},
    {"MapAndBatchDataset",
     "input_dataset:var, other_arguments:Targuments, batch_size:i64, num_parallel_calls:i64, drop_remainder:bool -> handle:var; " F_ARGS DS_OUT
     ", preserve_cardinality:bool=false" DS_META,
     trn_sh_dataset, map_and_batch_dataset, DS_FLAGS},
    {"ExperimentalMapAndBatchDataset",
     "input_dataset:var, other_arguments:Targuments, batch_size:i64, num_parallel_calls:i64, drop_remainder:bool -> handle:var; " F_ARGS DS_OUT
     ", preserve_cardinality:bool=false",
     trn_sh_dataset, map_and_batch_dataset, DS_FLAGS},
    {0},
};
