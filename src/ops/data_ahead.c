/* Datasets that work ahead of who asks: Prefetch keeps elements ready, ParallelMap and ParallelFilter call their functions on several at once, ParallelBatch stacks several
 * batches at once. All keep the order.
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
    bool filter;   /* the function says whether an element stays */
    int64_t batch; /* elements in a batch; 0: no batches */
    bool drop;     /* the last batch, when it is not full */
} ahead;

typedef struct ahead_it ahead_it;

typedef struct slot {
    ahead_it *it;
    bool done, end, skip;
    trn_elem *e; /* argument, then result */
    trn_elem **part; /* of a batch that is being made */
    int64_t n_part;
    trn_err err;
} slot;

struct ahead_it {
    trn_it it;
    trn_mutex mu;
    trn_cancel *own;
    trn_waitlist waiters; /* at most one: iterators are pulled by one at a time */
    int cap, head, n;
    slot *s;     /* a ring */
    trn_elem **part; /* the feeder's: what the next batch has so far */
    int64_t n_part, cap_part;
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
    for (int64_t i = 0; i < it->n_part; i++)
        trn_elem_free(it->part[i]);
    free(it->part);
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

static void slot_done(slot *s, trn_err err, trn_elem *e, bool end)
{
    ahead_it *it = s->it;
    trn_waitlist ready = {0};
    trn_lock(&it->mu);
    s->e = e;
    s->err = err;
    s->end = end;
    s->done = true;
    wake(it, &ready);
    trn_unlock(&it->mu);
    trn_wait_end_all(&ready);
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
    trn_elem *e = err || end ? NULL : trn_elem_of(rets, n), *args = s->e; /* nobody else looks at a slot that is not done */
    if (e && ((ahead *)it->it.d)->filter) {
        bool yes = false;
        err = trn_data_predicate(&yes, e, "Filter predicate `f`");
        trn_elem_free(e);
        e = yes ? args : NULL;
        args = yes ? NULL : args;
        s->skip = !yes && !err;
    }
    slot_done(s, err, e, end);
    trn_elem_free(args);
    trn_it_unref(&it->it);
}

static void stack_slot(void *arg)
{
    slot *s = arg;
    ahead_it *it = s->it;
    trn_elem *e = NULL;
    trn_err err = trn_data_batch(&e, s->part, s->n_part);
    for (int64_t i = 0; i < s->n_part; i++)
        trn_elem_free(s->part[i]);
    free(s->part);
    slot_done(s, err, e, false);
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

/* Adds to the next batch; true when the feeder has something for a slot: a batch, an error, the end. */
static bool gathered(ahead_it *it, trn_err err, trn_elem *e)
{
    const ahead *d = (ahead *)it->it.d;
    if (e) {
        TRN_PUSH(it->part, it->n_part, it->cap_part, e);
        return it->n_part == d->batch;
    }
    if (err || d->drop) { /* as with a batch that is made when it is asked for: what came before the error is lost */
        for (int64_t i = 0; i < it->n_part; i++)
            trn_elem_free(it->part[i]);
        it->n_part = 0;
    }
    return true;
}

static bool fed(void *arg, trn_err err, trn_elem *e)
{
    ahead_it *it = arg;
    const ahead *d = (ahead *)it->it.d;
    if (d->batch && !gathered(it, err, e))
        return true;
    bool call = e && it->it.f, stack = d->batch && it->n_part > 0;
    slot *s = NULL;
    trn_waitlist ready = {0};
    trn_lock(&it->mu);
    if (!err && !e)
        it->over = true;
    if (err || e || stack) {
        s = &it->s[(it->head + it->n++) % it->cap];
        *s = (slot){.it = it, .e = stack ? NULL : e, .err = err, .done = !call && !stack};
    }
    if (stack) {
        s->part = it->part;
        s->n_part = it->n_part;
        it->part = NULL;
        it->n_part = it->cap_part = 0;
    }
    bool again = !it->over && !it->dropped && it->n < it->cap;
    it->feeding = again;
    wake(it, &ready);
    trn_unlock(&it->mu);
    trn_wait_end_all(&ready);
    if (call || stack) {
        void (*work)(void *) = stack ? stack_slot : call_slot;
        trn_it_ref(&it->it);
        if (!trn_host_submit(&it->it.root->host, TRN_ON_POOL, work, s))
            work(s);
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
            if (s.skip)
                continue;
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

trn_err trn_data_ahead_of(trn_it **out, trn_ds *d, int64_t n, trn_itroot *root)
{
    ahead *p;
    TRN_TRY(trn_ds_new(&p, &prefetch_op, sizeof *p, &d, 1));
    p->n = n;
    trn_err err = trn_it_new(out, &p->d, root);
    trn_ds_unref(&p->d);
    return err;
}

void trn_data_begin(trn_it *it_)
{
    ahead_it *it = (ahead_it *)it_;
    trn_lock(&it->mu);
    bool start = want_feeder(it);
    trn_unlock(&it->mu);
    if (start)
        start_feeder(it);
}

static int64_t pmap_count(const trn_ds *d) { return ((const ahead *)d)->preserve ? trn_ds_count(d->in[0]) : TRN_DS_UNKNOWN; }

static const trn_ds_op pmap_op = {"ParallelMapDataset", sizeof(ahead_it), NULL, ahead_start, ahead_next, ahead_drop, ahead_stop, pmap_count};

static const trn_ds_op pfilter_op = {"ParallelFilterDataset", sizeof(ahead_it), NULL, ahead_start, ahead_next, ahead_drop, ahead_stop};

static int64_t pbatch_count(const trn_ds *d_)
{
    const ahead *d = (const ahead *)d_;
    int64_t n = trn_ds_count(d_->in[0]);
    return n < 0 ? n : n / d->batch + (!d->drop && n % d->batch != 0);
}

static const trn_ds_op pbatch_op = {"ParallelBatchDataset", sizeof(ahead_it), NULL, ahead_start, ahead_next, ahead_drop, ahead_stop, pbatch_count};

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

static trn_err parallel_filter_dataset(trn_kctx *k)
{
    ahead *d;
    TRN_TRY(trn_data_on(&d, k, &pfilter_op, sizeof *d));
    d->filter = true;
    trn_err err = trn_data_func(&d->d, k, "predicate", "other_arguments");
    if (!err)
        err = parallel_calls(&d->n, k);
    return trn_data_out(k, d, err);
}

static trn_err parallel_batch_dataset(trn_kctx *k)
{
    ahead *d;
    trn_ds *b;
    TRN_TRY(trn_data_on(&d, k, &pbatch_op, sizeof *d));
    trn_err err = trn_data_batch_args(&d->batch, &d->drop, k);
    if (!err)
        err = parallel_calls(&d->n, k);
    if (!err)
        err = trn_data_batch_on(&b, d->d.in[0], d->batch, d->drop);
    if (!err) {
        trn_ds_elem_is(&d->d, b->n, b->types, b->shapes);
        trn_ds_unref(b);
    }
    return trn_data_out(k, d, err);
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
    {"ParallelFilterDataset",
     "input_dataset:var, other_arguments:Targuments, num_parallel_calls:i64 -> handle:var; predicate:func, deterministic:string=\"default\", "
     "Targuments:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, parallel_filter_dataset, DS_FLAGS},
    {"ParallelBatchDataset",
     "input_dataset:var, batch_size:i64, num_parallel_calls:i64, drop_remainder:bool -> handle:var; parallel_copy:bool=false, " DS_OUT
     ", deterministic:string=\"default\"" DS_META,
     trn_sh_dataset, parallel_batch_dataset, DS_FLAGS},
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
