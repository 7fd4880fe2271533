/* Between two Trainera tasks a tensor is not asked for: whoever makes it sends it to where the key says it is needed.
 *
 * The master decides per step: when every task of the step is one of us, RunGraph says "push", a remote _Recv merely waits in its own task's table, and a remote _Send
 * puts its tensor into the outbox of that peer. What one turn of the loop produced leaves as one Push call per step; small tensors share it. What is still in the outbox when
 * the part of a step ends and is meant for the step's master rides on the RunGraphResponse instead: a small step is one message each way.
 *
 * A part counts as over only when its pushes are acknowledged, so a lost connection fails the step instead of leaving a peer waiting. Steps that are over are told to
 * our kind with the next RunGraph, or after CLEAN_NS by a Push without tensors; no CleanupGraph is spent on them. */
#include <inttypes.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "wire/codec.h"
#include "worker/worker_int.h"

#define BATCH_BYTES ((size_t)256 << 10) /* a Push of many small tensors is not made longer than this */
#define ALONE_BYTES ((size_t)64 << 10)  /* a tensor of this size gets a Push of its own: it is received in place */
#define RIDE_BYTES ((size_t)512 << 10)  /* up to this the copy at the master is cheaper than waiting for a Push to be acknowledged */
#define CLEAN_NS UINT64_C(20000000)
#define MAX_CLEAN 512
#define ORPHAN_NS UINT64_C(60000000000)

/* Tensors of one step on their way to one peer. */
typedef struct batch {
    struct batch *next;
    trn_wstep *st; /* a reference */
    trn_out_msg m;
    bool full;
} batch;

struct trn_outbox {
    trn_worker *w;
    trn_channel *ch;
    trn_loop *loop;
    trn_mutex mu;
    batch *first, *last;
    bool posted; /* a flush is on its way to the loop */
    int64_t *clean;
    int n_clean, cap_clean;
    bool timing;     /* the timer runs, or is about to be started */
    bool closed;
    trn_timer timer; /* [loop] */
};

/* ---- pushes of a step and its end ----------------------------------------------------------------------------------- */

/* Ends waiting runs of the step whose last push is over. */
static void push_over(trn_wstep *st, trn_err err)
{
    trn_lock(&st->mu);
    if (err && !st->push_err) {
        st->push_err = err;
        err = TRN_OK;
    }
    step_run *ended = NULL;
    if (--st->pushes == 0) {
        ended = st->ended;
        st->ended = NULL;
    }
    trn_err why = st->push_err ? trn_err_copy(st->push_err) : TRN_OK;
    trn_unlock(&st->mu);
    trn_err_free(err);
    while (ended) {
        step_run *next = ended->next;
        trn_step_run_end(ended, why ? trn_err_copy(why) : TRN_OK);
        ended = next;
    }
    trn_err_free(why);
}

bool trn_wstep_wait_pushes(trn_wstep *st, step_run *r)
{
    trn_lock(&st->mu);
    bool wait = st->pushes > 0;
    if (wait) {
        r->next = st->ended;
        st->ended = r;
    }
    trn_unlock(&st->mu);
    return wait;
}

static void batch_free(batch *b)
{
    trn_out_fini(&b->m);
    trn_wstep_unref(b->st);
    free(b);
}

static void pushed(void *arg, trn_err err, const trn_msg *msg)
{
    trn_wstep *st = arg;
    if (err) {
        trn_lock(&st->mu);
        trn_cancel *c = st->cancel ? trn_cancel_ref(st->cancel) : NULL;
        trn_unlock(&st->mu);
        bool lost = trn_err_code(err) == TRN_UNAVAILABLE;
        err = trn_err_wrap(err, "sending tensors of step %" PRId64, st->id);
        if (!lost) /* the receiver's own RunGraph reports the cause */
            err = trn_err_set_derived(err);
        trn_wstep_abort(st, trn_err_copy(err));
        if (c) {
            trn_cancel_fire(c, trn_err_copy(err));
            trn_cancel_unref(c);
        }
    }
    push_over(st, err);
    trn_wstep_unref(st);
}

/* [loop] One call per batch; the connection writes them all at once. */
static void flush(void *arg)
{
    trn_outbox *o = arg;
    trn_lock(&o->mu);
    batch *b = o->first;
    o->first = o->last = NULL;
    o->posted = false;
    trn_unlock(&o->mu);
    while (b) {
        batch *next = b->next;
        trn_push_put_head(&b->m, b->st->id, NULL, 0);
        b->m.may_lend = true;
        trn_channel_call(NULL, o->ch, TRN_PATH_PUSH, &b->m, NULL, pushed, trn_wstep_ref(b->st));
        batch_free(b);
        b = next;
    }
}

trn_err trn_outbox_push(trn_outbox *o, trn_wstep *st, const char *key, trn_tensor *t, bool dead)
{
    size_t bytes = dead || !t ? 0 : trn_tensor_bytes(t);
    bool alone = bytes >= ALONE_BYTES, post = false;
    trn_lock(&o->mu);
    batch *b = o->last;
    if (!b || b->st != st || b->full || alone) {
        trn_lock(&st->mu);
        trn_err err = st->aborted ? trn_err_copy(st->aborted) : TRN_OK;
        st->pushes += !err;
        trn_unlock(&st->mu);
        if (err) {
            trn_unlock(&o->mu);
            return err;
        }
        b = trn_xalloc(sizeof *b);
        b->st = trn_wstep_ref(st);
        if (o->last)
            o->last->next = b;
        else
            o->first = b;
        o->last = b;
        post = !o->posted;
        o->posted = true;
    }
    trn_err err = trn_push_put_tensor(&b->m, key, t, dead || !t);
    b->full = alone || b->m.bytes >= BATCH_BYTES;
    bool now = b->full && trn_loop_here(o->loop) && !(o == st->reply_to && b->m.bytes < RIDE_BYTES);
    trn_unlock(&o->mu);
    if (now) {
        flush(o);
        trn_channel_flush(o->ch);
    }
    if (post)
        trn_loop_post(o->loop, flush, o);
    return err;
}

void trn_outbox_take(trn_outbox *o, trn_wstep *st, trn_out_msg *into)
{
    batch *taken = NULL, **tail = &taken;
    trn_lock(&o->mu);
    o->last = NULL;
    for (batch **at = &o->first; *at;) {
        batch *b = *at;
        if (b->st == st) {
            *at = b->next;
            b->next = NULL;
            *tail = b;
            tail = &b->next;
        } else {
            o->last = b;
            at = &b->next;
        }
    }
    trn_unlock(&o->mu);
    while (taken) {
        batch *b = taken;
        taken = b->next;
        for (int i = 0; i < b->m.n; i++) {
            TRN_PUSH(into->slices, into->n, into->cap, b->m.slices[i]);
            into->bytes += b->m.slices[i].n;
        }
        b->m.n = 0;
        push_over(st, TRN_OK);
        batch_free(b);
    }
}

/* ---- steps that are over -------------------------------------------------------------------------------------------- */

int trn_outbox_take_clean(trn_outbox *o, int64_t *ids, int max)
{
    trn_lock(&o->mu);
    int n = TRN_MIN(o->n_clean, max);
    if (n)
        memcpy(ids, o->clean + o->n_clean - n, sizeof *ids * (size_t)n);
    o->n_clean -= n;
    trn_unlock(&o->mu);
    return n;
}

static void ignore(void *arg, trn_err err, const trn_msg *msg)
{
    trn_err_free(err); /* a task that is gone has forgotten its steps */
}

static void tell_clean(void *arg)
{
    trn_outbox *o = arg;
    int64_t ids[MAX_CLEAN];
    int n = trn_outbox_take_clean(o, ids, MAX_CLEAN);
    if (n) {
        trn_out_msg m = {0};
        trn_push_put_head(&m, 0, ids, n);
        trn_channel_call(NULL, o->ch, TRN_PATH_PUSH, &m, &(trn_call_opts){.deadline_ns = trn_now_ns() + UINT64_C(30000000000)}, ignore, NULL);
    }
    trn_lock(&o->mu);
    o->timing = o->n_clean > 0;
    bool again = o->timing && !o->closed;
    trn_unlock(&o->mu);
    if (again)
        trn_timer_start(o->loop, &o->timer, trn_now_ns() + CLEAN_NS, tell_clean, o);
}

static void start_clean_timer(void *arg)
{
    trn_outbox *o = arg;
    trn_lock(&o->mu);
    bool closed = o->closed;
    trn_unlock(&o->mu);
    if (!closed)
        trn_timer_start(o->loop, &o->timer, trn_now_ns() + CLEAN_NS, tell_clean, o);
}

void trn_outbox_clean(trn_outbox *o, int64_t step_id)
{
    trn_lock(&o->mu);
    if (o->closed) {
        trn_unlock(&o->mu);
        return;
    }
    TRN_PUSH(o->clean, o->n_clean, o->cap_clean, step_id);
    bool start = !o->timing, many = o->n_clean >= MAX_CLEAN && o->n_clean % MAX_CLEAN == 0;
    o->timing = true;
    trn_unlock(&o->mu);
    if (start || many) {
        trn_fn fn = many ? tell_clean : start_clean_timer;
        if (trn_loop_here(o->loop))
            fn(o);
        else
            trn_loop_post(o->loop, fn, o);
    }
}

/* ---- outboxes ------------------------------------------------------------------------------------------------------- */

trn_outbox *trn_worker_outbox(trn_worker *w, const char *address)
{
    trn_lock(&w->mu);
    trn_outbox *o = trn_map_gets(w->outboxes, address);
    if (!o) {
        o = trn_xalloc(sizeof *o);
        o->w = w;
        o->ch = trn_peers_get(w->peers, address);
        o->loop = trn_channel_loop(o->ch);
        trn_mutex_init(&o->mu, TRN_RANK_OUTBOX);
        trn_map_puts(w->outboxes, address, o);
    }
    trn_unlock(&w->mu);
    return o;
}

trn_outbox *trn_wsession_outbox(trn_wsession *s, const char *task, size_t n)
{
    trn_lock(&s->mu);
    trn_outbox *o = trn_map_get(s->outboxes, task, n);
    trn_unlock(&s->mu);
    if (o)
        return o;
    trn_devname d;
    trn_err err = trn_devname_parse(&d, task, n);
    const char *address = err ? NULL : trn_cluster_address(s->cluster, d.job, d.task);
    trn_err_free(err);
    if (!address)
        return NULL;
    o = trn_worker_outbox(s->w, address);
    trn_lock(&s->mu);
    if (!trn_map_get(s->outboxes, task, n)) {
        char *key = trn_xstrndup(task, n);
        trn_map_puts(s->outboxes, key, o);
        free(key);
    }
    trn_unlock(&s->mu);
    return o;
}

static void close_outbox(void *arg)
{
    trn_outbox *o = arg;
    trn_timer_stop(o->loop, &o->timer);
    trn_channel_unref(o->ch);
}

void trn_worker_close_outboxes(trn_worker *w)
{
    const char *key;
    size_t n;
    void *v;
    trn_lock(&w->mu);
    for (size_t it = 0; trn_map_next(w->outboxes, &it, &key, &n, &v);) {
        trn_outbox *o = v;
        trn_lock(&o->mu);
        o->closed = true;
        o->timing = true;
        trn_unlock(&o->mu);
        trn_loop_post(o->loop, close_outbox, o);
    }
    trn_unlock(&w->mu);
}

/* The loops are closed: nothing is in flight. */
void trn_outbox_free(void *outbox)
{
    trn_outbox *o = outbox;
    for (batch *b = o->first, *next; b; b = next) {
        next = b->next;
        batch_free(b);
    }
    free(o->clean);
    trn_mutex_fini(&o->mu);
    free(o);
}

/* ---- receiving ------------------------------------------------------------------------------------------------------ */

void trn_wstep_deliver(trn_wstep *st, const trn_named_tensor *v, int n, const char *const *dead, int n_dead)
{
    trn_err err = TRN_OK;
    for (int i = 0; i < n && !err; i++)
        err = st->local->type->send(st->local, v[i].name, v[i].t, false);
    for (int i = 0; i < n_dead && !err; i++)
        err = st->local->type->send(st->local, dead[i], NULL, true);
    if (err)
        trn_wstep_abort(st, err);
}

/* A step of which only pushed tensors are known: its RunGraph comes soon, or its master, or we, were restarted in between. */
void trn_worker_sweep(trn_worker *w)
{
    uint64_t now = trn_now_ns(), last = atomic_load_explicit(&w->swept_ns, memory_order_relaxed);
    if (now - last < ORPHAN_NS / 6 || !atomic_compare_exchange_strong(&w->swept_ns, &last, now))
        return;
    int64_t old[64];
    for (int n = 64; n == 64;) {
        n = trn_worker_steps_orphans(w, now > ORPHAN_NS ? now - ORPHAN_NS : 0, old, 64);
        for (int i = 0; i < n; i++) {
            TRN_INFO("worker", "step %" PRId64 ": tensors came for it but no RunGraph, or it failed and was never cleaned up; dropped", old[i]);
            trn_worker_step_clean(w, old[i]);
        }
    }
}

void trn_worker_push(void *svc, trn_call *call)
{
    trn_worker *w = svc;
    trn_arena *a = trn_arena_new();
    trn_push q;
    trn_err err = trn_push_parse(&q, a, trn_call_request(call));
    if (!err) {
        for (int i = 0; i < q.n_clean; i++)
            trn_worker_step_clean(w, q.clean[i]);
        trn_wstep *st = q.n || q.n_dead ? trn_worker_step(w, q.step_id, NULL) : NULL;
        if (st) { /* else it was cleaned: the step ended without waiting for this tensor */
            trn_wstep_deliver(st, q.v, q.n, q.dead, q.n_dead);
            trn_wstep_unref(st);
        }
        trn_named_fini(q.v, q.n);
        trn_worker_sweep(w);
    }
    trn_call_reply(call, err, NULL);
    trn_arena_free(a);
}
