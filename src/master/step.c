/* One step: our own part as a plain call, every remote part as a RunGraph, all at once.
 *
 * pending counts the parts and this function itself. The first error cancels the rest; an error that merely follows from another (a peer's RecvTensor, a
 * cancelled part) never hides the one that caused it. */
#include <inttypes.h>
#include <stdlib.h>

#include "master/master_int.h"
#include "proto/pbw.h"
#include "wire/codec.h"
#include "worker/stats.h"

typedef struct part_call {
    mstep *st;
    int part;
    trn_rpc *rpc;
} part_call;

struct mstep {
    uint64_t start_ns;
    _Atomic uint32_t ref; /* one for the run, one for each thing that may still call back */
    trn_msession *s;
    built_graph *b;
    int64_t id;
    trn_wstep *wstep;
    trn_cancel *cancel;
    trn_cancel_hook on_session, on_client, on_self;
    bool client_hooked, session_hooked, self_hooked;
    trn_cancel *client;
    trn_timer timer;
    bool timed;
    _Atomic bool over;
    _Atomic int pending;
    trn_mutex mu;
    trn_err err;
    trn_sb stats; /* of remote parts */
    trn_trace *trace;
    bool stats_wanted, costs_wanted;
    bool push; /* all its tasks are ours */
    trn_sb *metadata;
    part_call *calls;
    trn_master_done done;
    void *arg;
};

static void step_unref(mstep *st)
{
    if (atomic_fetch_sub_explicit(&st->ref, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < st->b->n_parts; i++)
        trn_rpc_unref(st->calls[i].rpc);
    free(st->calls);
    trn_wstep_unref(st->wstep);
    trn_cancel_unref(st->cancel);
    trn_cancel_unref(st->client);
    trn_trace_free(st->trace);
    trn_sb_fini(&st->stats);
    trn_err_free(st->err);
    trn_mutex_fini(&st->mu);
    trn_built_unref(st->b);
    trn_msession_unref(st->s);
    free(st);
}

static void ignore_reply(void *arg, trn_err err, const trn_msg *msg)
{
    trn_err_free(err);
}

static void clean_up(mstep *st, bool failed)
{
    if (!st->b->partial) /* fetches of a partial run wait in our half until they are asked for: partial.c cleans it */
        trn_worker_step_clean(st->s->m->w, st->id);
    for (int i = 0; i < st->b->n_parts; i++) {
        const remote_task *t = &st->s->remote[st->b->parts[i].remote];
        if (st->push && !failed) {
            trn_outbox_clean(t->outbox, st->id);
            continue;
        }
        trn_sb s = {0};
        trn_out_msg m = {0};
        trn_pbw_varint(&s, 1, (uint64_t)st->id);
        trn_out_sb(&m, &s);
        trn_call_opts o = {.deadline_ns = trn_now_ns() + UINT64_C(30000000000)};
        trn_channel_call(NULL, t->channel, TRN_PATH_WORKER "CleanupGraph", &m, &o, ignore_reply, NULL);
    }
}

static void put_metadata(mstep *st)
{
    trn_sb all = {0};
    if (st->trace && st->b->plan)
        trn_stats_put(&all, st->trace, trn_plan_graph(st->b->plan));
    if (st->stats.n)
        trn_sb_add(&all, st->stats.p, st->stats.n); /* StepStats has one repeated field: bytes simply follow each other */
    trn_pbw_bytes(st->metadata, 1, all.p, all.n);
    trn_sb_fini(&all);
}

static void stop_timer(void *arg)
{
    mstep *st = arg;
    trn_timer_stop(st->s->m->loop, &st->timer);
    step_unref(st);
}

static void step_over(mstep *st)
{
    atomic_store(&st->over, true);
    if (st->timed) {
        if (trn_loop_here(st->s->m->loop))
            stop_timer(st);
        else
            trn_loop_post(st->s->m->loop, stop_timer, st);
    }
    if (st->session_hooked)
        (void)trn_cancel_remove(st->s->cancel, &st->on_session);
    if (st->client_hooked)
        (void)trn_cancel_remove(st->client, &st->on_client);
    if (st->self_hooked)
        (void)trn_cancel_remove(st->cancel, &st->on_self);
    trn_lock(&st->mu);
    trn_err err = st->err;
    st->err = TRN_OK;
    trn_unlock(&st->mu);
    if (!err && st->metadata) {
        if (st->stats_wanted)
            put_metadata(st);
        if (st->costs_wanted && st->b->plan) {
            trn_sb costs = {0};
            trn_costs_put(&costs, st->trace, trn_plan_graph(st->b->plan));
            trn_pbw_bytes(st->metadata, 2, costs.p, costs.n);
            trn_sb_fini(&costs);
        }
        if (st->b->partition_graphs.n)
            trn_sb_add(st->metadata, st->b->partition_graphs.p, st->b->partition_graphs.n);
    }
    clean_up(st, err != TRN_OK);
    trn_worker *w = st->s->m->w;
    trn_hist_add(st->s->m->step_time, trn_now_ns() - st->start_ns);
    atomic_fetch_add_explicit(&st->s->steps, 1, memory_order_relaxed);
    if (err && (trn_err_code(err) == TRN_UNAVAILABLE || trn_err_code(err) == TRN_DEADLINE_EXCEEDED)) /* others were noted by the part that failed */
        trn_worker_note_error(err);
    trn_msession_end(st->s);
    st->done(st->arg, err);
    step_unref(st);
    trn_worker_busy_add(w, -1);
}

/* Records an error and ends the other parts. The step may be over, and gone, when this returns. */
static void fail(mstep *st, trn_err err)
{
    trn_err copy = trn_err_copy(err);
    trn_lock(&st->mu);
    if (!st->err || (trn_err_is_derived(st->err) && !trn_err_is_derived(err))) {
        trn_err old = st->err;
        st->err = err;
        err = old;
    }
    trn_unlock(&st->mu);
    trn_err_free(err);
    trn_cancel_fire(st->cancel, trn_err_set_derived(copy));
}

static void part_done(mstep *st, trn_err err)
{
    if (err)
        fail(st, err); /* our share of pending keeps st alive */
    if (atomic_fetch_sub_explicit(&st->pending, 1, memory_order_acq_rel) == 1)
        step_over(st);
}

static void own_part_done(void *arg, trn_err err)
{
    part_done(arg, err);
}

/* Errors lose their mark on the wire. What a part says after we have cancelled it follows from that; so does a peer's broken rendezvous. */
static trn_err mark(mstep *st, trn_err err)
{
    if (trn_cancelled(st->cancel) || trn_err_code(err) == TRN_CANCELLED || strstr(trn_err_msg(err), "[_Derived_]"))
        return trn_err_set_derived(err);
    return err;
}

static void remote_part_done(void *arg, trn_err err, const trn_msg *msg)
{
    part_call *c = arg;
    mstep *st = c->st;
    const remote_task *t = &st->s->remote[st->b->parts[c->part].remote];
    if (!err) {
        trn_arena *a = trn_arena_new();
        trn_run_graph_resp r;
        err = trn_run_graph_resp_parse(&r, a, msg);
        if (!err) {
            err = r.status;
            trn_wstep_deliver(st->wstep, r.recv, r.n_recv, r.dead, r.n_dead);
            trn_named_fini(r.recv, r.n_recv);
            if (r.step_stats_n && st->trace) {
                trn_lock(&st->mu);
                trn_sb_add(&st->stats, r.step_stats, r.step_stats_n);
                trn_unlock(&st->mu);
            }
        }
        trn_arena_free(a);
    } else if (trn_err_code(err) == TRN_UNAVAILABLE)
        err = trn_err_wrap(err, "RunGraph on %s (%s)", t->task, t->address);
    part_done(st, err ? mark(st, err) : TRN_OK);
    step_unref(st);
}

static void end_remote_parts(void *arg)
{
    mstep *st = arg;
    for (int i = 0; i < st->b->n_parts; i++)
        if (st->calls[i].rpc)
            trn_rpc_cancel(st->calls[i].rpc);
}

/* A hook may end the step on this very thread, which removes the hook: it needs a reference of its own. */
static void fail_from_hook(mstep *st, trn_err err)
{
    atomic_fetch_add_explicit(&st->ref, 1, memory_order_relaxed);
    fail(st, err);
    step_unref(st);
}

static void session_closed(void *arg)
{
    mstep *st = arg;
    trn_err why = trn_cancel_why(st->s->cancel);
    fail_from_hook(st, why ? why : trn_errorf(TRN_CANCELLED, "The step was cancelled by a call to Session::Close()."));
}

static void client_cancelled(void *arg)
{
    mstep *st = arg;
    trn_err why = trn_cancel_why(st->client);
    fail_from_hook(st, why ? why : trn_errorf(TRN_CANCELLED, "the client cancelled the step"));
}

static void timed_out(void *arg)
{
    mstep *st = arg;
    if (!atomic_load(&st->over))
        fail_from_hook(st, trn_errorf(TRN_DEADLINE_EXCEEDED, "Timed out waiting for the step: it did not end within its timeout"));
}

/* Has a reference of its own: when it was posted, the step may end on the loop (and stop its timer) before it runs. */
static void start_timer(void *arg)
{
    mstep *st = arg;
    if (!atomic_load(&st->over))
        trn_timer_start(st->s->m->loop, &st->timer, st->timer.at_ns, timed_out, st);
    step_unref(st);
}

void trn_mstep_run(built_graph *b, const mstep_opts *o, trn_master_done done, void *arg)
{
    trn_msession *s = b->s;
    trn_err err = trn_msession_begin(s);
    if (err) {
        done(arg, err);
        return;
    }
    trn_worker_busy_add(s->m->w, 1);
    mstep *st = trn_xalloc(sizeof *st);
    st->ref = 1;
    st->start_ns = trn_now_ns();
    st->s = trn_msession_ref(s);
    st->b = trn_built_ref(b);
    st->done = done;
    st->arg = arg;
    st->metadata = o->metadata;
    st->cancel = trn_cancel_new();
    st->client = o->cancel ? trn_cancel_ref(o->cancel) : NULL;
    trn_mutex_init(&st->mu, TRN_RANK_LEAF);
    st->id = (int64_t)(trn_random64() >> 8 | UINT64_C(1) << 56); /* 57 bits, as TensorFlow's */
    st->wstep = trn_worker_step(s->m->w, st->id, s->local);
    st->calls = trn_xalloc(sizeof *st->calls * (size_t)(b->n_parts + 1));
    st->stats_wanted = o->trace;
    st->costs_wanted = o->costs;
    st->trace = o->trace || o->costs ? trn_trace_new() : NULL;
    /* Our own share keeps the step from ending while it is being started. */
    st->pending = 1 + b->n_parts + (b->plan != NULL);
    if (o->step_out)
        *o->step_out = trn_wstep_ref(st->wstep);
    if (o->cancel_out)
        *o->cancel_out = trn_cancel_ref(st->cancel);

    st->push = !b->partial && !o->trace;
    for (int i = 0; i < b->n_parts; i++)
        st->push = st->push && trn_channel_ours(s->remote[b->parts[i].remote].channel);
    st->wstep->push = st->push;
    int64_t clean[64];
    trn_run_graph_req q = {.push = st->push, .clean = clean, .session = s->handle, .session_created = true, .step_id = st->id, .errors_in_body = true, .record_timeline = o->trace};
    for (int i = 0; i < b->n_parts; i++) {
        part_call *c = &st->calls[i];
        *c = (part_call){st, i, NULL};
        q.graph = b->parts[i].handle;
        q.request_id = (int64_t)(trn_random64() >> 1);
        const remote_task *t = &s->remote[b->parts[i].remote];
        q.n_clean = st->push ? trn_outbox_take_clean(t->outbox, clean, TRN_COUNTOF(clean)) : 0;
        trn_out_msg m = {0};
        trn_err e = trn_run_graph_req_put(&m, &q);
        trn_err_free(e); /* no tensors in it: cannot fail */
        atomic_fetch_add_explicit(&st->ref, 1, memory_order_relaxed);
        trn_channel_call(&c->rpc, t->channel, TRN_PATH_WORKER "RunGraph", &m, &(trn_call_opts){.align = trn_run_graph_resp_align}, remote_part_done, c);
    }
    if (b->n_parts) {
        st->self_hooked = trn_cancel_add(st->cancel, &st->on_self, end_remote_parts, st);
        if (!st->self_hooked)
            end_remote_parts(st);
    }
    st->session_hooked = trn_cancel_add(s->cancel, &st->on_session, session_closed, st);
    if (!st->session_hooked)
        session_closed(st);
    if (st->client) {
        st->client_hooked = trn_cancel_add(st->client, &st->on_client, client_cancelled, st);
        if (!st->client_hooked)
            client_cancelled(st);
    }
    if (o->timeout_ms > 0) {
        st->timed = true;
        st->timer.at_ns = trn_now_ns() + (uint64_t)o->timeout_ms * 1000000;
        atomic_fetch_add_explicit(&st->ref, 2, memory_order_relaxed); /* dropped by start_timer and stop_timer */
        if (trn_loop_here(s->m->loop))
            start_timer(st);
        else
            trn_loop_post(s->m->loop, start_timer, st);
    }
    if (b->plan) {
        trn_run_opts run = {.cancel = st->cancel, .n_args = b->partial ? 0 : b->n_feeds, .n_rets = b->partial ? 0 : b->n_fetches, .args = o->args, .rets = o->rets,
                            .trace = st->trace, .may_owe = o->may_owe};
        trn_wstep_run(st->wstep, b->plan, &run, own_part_done, st);
    }
    part_done(st, TRN_OK);
}
