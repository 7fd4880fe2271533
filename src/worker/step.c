/* Steps: a rendezvous that reaches other tasks, and the table that finds it.
 *
 * recv of a key whose sender is this task waits in the local table; any other key becomes a RecvTensor call to the sender. What this task sends waits in
 * the local table for a kernel here or for a peer's RecvTensor. */
#include <inttypes.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "wire/codec.h"
#include "worker/stats.h"
#include "worker/worker_int.h"

/* ---- RecvTensor, asking ------------------------------------------------------------------------------------------- */

struct remote_recv {
    _Atomic uint32_t ref;          /* one for the call, one for whoever sets it up or cancels it */
    struct remote_recv *next, *prev; /* of the step, for abort; under step->mu */
    trn_wstep *step;
    trn_rpc *rpc;
    trn_cancel *cancel;
    trn_cancel_hook hook;
    bool linked, finished; /* under step->mu; linked: in the step's list and hooked to the cancel */
    trn_rdv_done done;
    void *arg;
    char *key, *address; /* for errors and the log */
    uint64_t start_us;   /* when RPCs are logged */
};

static void recv_unref(remote_recv *r)
{
    if (atomic_fetch_sub_explicit(&r->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_rpc_unref(r->rpc);
    trn_cancel_unref(r->cancel);
    trn_wstep_unref(r->step);
    free(r->key);
    free(r->address);
    free(r);
}

static void recv_cancelled(void *arg)
{
    trn_rpc_cancel(((remote_recv *)arg)->rpc);
}

static void recv_done(void *arg, trn_err err, const trn_msg *msg)
{
    remote_recv *r = arg;
    trn_wstep *st = r->step;
    trn_lock(&st->mu);
    r->finished = true;
    bool hooked = r->linked;
    if (r->linked) {
        if (r->prev)
            r->prev->next = r->next;
        else
            st->recvs = r->next;
        if (r->next)
            r->next->prev = r->prev;
        r->linked = false;
    }
    trn_err why = err && st->aborted ? trn_err_copy(st->aborted) : TRN_OK;
    trn_unlock(&st->mu);
    if (hooked)
        (void)trn_cancel_remove(r->cancel, &r->hook);
    trn_tensor *t = NULL;
    bool dead = false;
    if (!err)
        err = trn_recv_resp_parse(&t, &dead, msg);
    if (err && !why)
        why = trn_cancel_why(r->cancel);
    if (err && why) { /* we ended it ourselves: that reason is what counts */
        trn_err_free(err);
        err = trn_err_set_derived(why);
    } else if (err) {
        bool lost = trn_err_code(err) == TRN_UNAVAILABLE;
        err = trn_err_wrap(err, "RecvTensor of %s from %s, step %" PRId64, r->key, r->address, st->id);
        if (!lost) /* the sender's own RunGraph reports the cause */
            err = trn_err_set_derived(err);
    }
    if (!err && r->start_us)
        trn_rpc_log_add(st->w, st->id, r->key, r->start_us, trn_wall_us(), t ? trn_tensor_bytes(t) : 0);
    r->done(r->arg, err, t, dead);
    trn_tensor_unref(t);
    recv_unref(r);
}

static void recv_remote(trn_wstep *st, const char *key, const trn_devname *src, trn_cancel *c, trn_rdv_done done, void *arg)
{
    trn_lock(&st->mu);
    const char *address = trn_cluster_address(st->session ? st->session->cluster : st->w->cluster, src->job, src->task);
    trn_err err = st->aborted ? trn_err_copy(st->aborted) : TRN_OK;
    trn_unlock(&st->mu);
    if (!err && !address)
        err = trn_errorf(TRN_INTERNAL, "no address is known for /job:%s/task:%d, which should send %s", src->job, src->task, key);
    if (err) {
        done(arg, err, NULL, false);
        return;
    }
    remote_recv *r = trn_xalloc(sizeof *r);
    r->ref = 2;
    r->step = trn_wstep_ref(st);
    r->done = done;
    r->arg = arg;
    r->cancel = trn_cancel_ref(c);
    r->key = trn_xstrdup(key);
    r->address = trn_xstrdup(address);
    r->start_us = trn_rpc_log_on(st->w) ? trn_wall_us() : 0;

    trn_out_msg m = {0};
    trn_recv_req_put(&m, st->id, key, (int64_t)(trn_random64() >> 1));
    trn_channel *ch = trn_peers_get(st->w->peers, address);
    static const trn_call_opts opts = {.align = trn_recv_resp_align};
    trn_channel_call(&r->rpc, ch, TRN_PATH_WORKER "RecvTensor", &m, &opts, recv_done, r);
    trn_channel_unref(ch);

    /* recv_done may have run already. Cancellation may come from now on, or have come before. */
    trn_lock(&st->mu);
    bool give_up = false;
    if (!r->finished) {
        give_up = st->aborted || !trn_cancel_add(c, &r->hook, recv_cancelled, r);
        if (!give_up) {
            r->next = st->recvs;
            if (st->recvs)
                st->recvs->prev = r;
            st->recvs = r;
            r->linked = true;
        }
    }
    trn_unlock(&st->mu);
    if (give_up)
        trn_rpc_cancel(r->rpc);
    recv_unref(r);
}

/* ---- the rendezvous that kernels see ------------------------------------------------------------------------------ */

/* The task of the key's sender or receiver, without the device. */
static const char *key_task(const char *key, bool receiver, size_t *n)
{
    const char *p = key;
    for (int i = 0; receiver && i < 2; i++) {
        p = strchr(p, ';');
        if (!p++)
            return NULL;
    }
    const char *end = strstr(p, "/device:"), *semi = strchr(p, ';');
    if (!end || !semi || end > semi)
        return NULL;
    *n = (size_t)(end - p);
    return p;
}

static trn_err step_send(trn_rdv *rdv, const char *key, trn_tensor *t, bool dead)
{
    trn_wstep *st = TRN_CONTAINER(rdv, trn_wstep, rdv);
    if (st->push) {
        size_t n;
        const char *to = key_task(key, true, &n), *self = st->session->task;
        if (!to)
            return trn_errorf(TRN_INVALID_ARGUMENT, "bad rendezvous key: %s", key);
        if (strncmp(to, self, n) != 0 || self[n]) {
            trn_outbox *o = trn_wsession_outbox(st->session, to, n);
            if (!o)
                return trn_errorf(TRN_INTERNAL, "no address is known for %.*s, which should receive %s", (int)n, to, key);
            return trn_outbox_push(o, st, key, t, dead);
        }
    }
    return st->local->type->send(st->local, key, t, dead);
}

static void step_recv(trn_rdv *rdv, const char *key, trn_cancel *c, trn_rdv_done done, void *arg)
{
    trn_wstep *st = TRN_CONTAINER(rdv, trn_wstep, rdv);
    size_t len;
    const char *from = st->push ? key_task(key, false, &len) : NULL;
    if (from && trn_wsession_outbox(st->session, from, len)) { /* a task that exists: it comes by itself */
        st->local->type->recv(st->local, key, c, done, arg);
        return;
    }
    const char *semi = strchr(key, ';');
    trn_devname src;
    trn_err err = semi ? trn_devname_parse(&src, key, (size_t)(semi - key)) : trn_errorf(TRN_INVALID_ARGUMENT, "bad rendezvous key: %s", key);
    if (err) {
        done(arg, err, NULL, false);
        return;
    }
    const char *self = st->session ? st->session->task : st->w->task;
    size_t n = strlen(self);
    if (!strncmp(key, self, n) && (key[n] == '/' || key[n] == ';'))
        st->local->type->recv(st->local, key, c, done, arg);
    else
        recv_remote(st, key, &src, c, done, arg);
}

static void step_abort(trn_rdv *rdv, trn_err why)
{
    trn_wstep_abort(TRN_CONTAINER(rdv, trn_wstep, rdv), why);
}

static void step_free(trn_rdv *rdv)
{
    trn_wstep *st = TRN_CONTAINER(rdv, trn_wstep, rdv);
    trn_rdv_unref(st->local);
    if (st->session)
        trn_wsession_unref(st->session);
    if (st->resmgr) {
        trn_resmgr_clear(st->resmgr, NULL);
        trn_resmgr_unref(st->resmgr);
    }
    if (st->partial)
        st->partial_free(st->partial);
    trn_out_fini(&st->reply);
    trn_err_free(st->push_err);
    trn_err_free(st->aborted);
    trn_mutex_fini(&st->mu);
    free(st);
}

static const trn_rdv_type step_type = {step_send, step_recv, step_abort, step_free, trn_wstep_place};

trn_rdv *trn_wstep_rdv(trn_wstep *st)
{
    return &st->rdv;
}

trn_wstep *trn_wstep_ref(trn_wstep *st)
{
    trn_rdv_ref(&st->rdv);
    return st;
}

void trn_wstep_unref(trn_wstep *st)
{
    if (st)
        trn_rdv_unref(&st->rdv);
}

trn_resmgr *trn_wstep_resmgr(trn_wstep *st)
{
    trn_lock(&st->mu);
    if (!st->resmgr)
        st->resmgr = trn_resmgr_new("step");
    trn_resmgr *m = st->resmgr;
    trn_unlock(&st->mu);
    return m;
}

void trn_wstep_recv_local(trn_wstep *st, const char *key, trn_cancel *c, trn_rdv_done done, void *arg)
{
    st->local->type->recv(st->local, key, c, done, arg);
}

void trn_wstep_abort(trn_wstep *st, trn_err why)
{
    remote_recv *some[64];
    trn_lock(&st->mu);
    if (!st->aborted)
        st->aborted = trn_err_copy(why);
    trn_unlock(&st->mu);
    st->local->type->abort(st->local, why);
    for (int n = 64; n == 64;) { /* cancel outside the lock: recv_done takes it */
        n = 0;
        trn_lock(&st->mu);
        for (remote_recv *r = st->recvs; r && n < 64; r = r->next) {
            atomic_fetch_add_explicit(&r->ref, 1, memory_order_relaxed);
            some[n++] = r;
        }
        trn_unlock(&st->mu);
        for (int i = 0; i < n; i++) {
            trn_rpc_cancel(some[i]->rpc);
            recv_unref(some[i]);
        }
    }
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static step_shard *shard_of(trn_worker *w, int64_t id)
{
    return &w->shard[((uint64_t)id * UINT64_C(0x9e3779b97f4a7c15)) >> 60 & (TRN_STEP_SHARDS - 1)];
}

void trn_worker_steps_init(trn_worker *w)
{
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        trn_mutex_init(&w->shard[i].mu, TRN_RANK_WORKER);
        w->shard[i].steps = trn_map_new();
    }
}

static void unref_step(void *st)
{
    trn_wstep_unref(st);
}

void trn_worker_steps_fini(trn_worker *w)
{
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        trn_map_free(w->shard[i].steps, unref_step);
        trn_mutex_fini(&w->shard[i].mu);
    }
}

size_t trn_worker_steps_count(trn_worker *w)
{
    size_t n = 0;
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        trn_lock(&w->shard[i].mu);
        n += trn_map_count(w->shard[i].steps);
        trn_unlock(&w->shard[i].mu);
    }
    return n;
}

trn_wstep *trn_worker_step(trn_worker *w, int64_t id, trn_wsession *s)
{
    step_shard *sh = shard_of(w, id);
    trn_lock(&sh->mu);
    trn_wstep *st = trn_map_geti(sh->steps, (uint64_t)id);
    if (!st) {
        for (size_t i = 0; i < TRN_COUNTOF(sh->tomb); i++) {
            if (sh->tomb[i] == (uint64_t)id && id) {
                trn_unlock(&sh->mu);
                return NULL;
            }
        }
        st = trn_xalloc(sizeof *st);
        st->rdv.ref = 1;
        st->rdv.type = &step_type;
        st->w = w;
        st->id = id;
        st->born_ns = trn_now_ns();
        trn_mutex_init(&st->mu, TRN_RANK_STEP);
        st->local = trn_rdv_local_new();
        if (s)
            st->session = trn_wsession_ref(s);
        trn_map_puti(sh->steps, (uint64_t)id, st);
    }
    trn_wstep_ref(st);
    trn_unlock(&sh->mu);
    if (s) {
        trn_lock(&st->mu);
        if (!st->session)
            st->session = trn_wsession_ref(s);
        trn_unlock(&st->mu);
    }
    return st;
}

void trn_worker_step_clean(trn_worker *w, int64_t id)
{
    step_shard *sh = shard_of(w, id);
    trn_lock(&sh->mu);
    trn_wstep *st = trn_map_deli(sh->steps, (uint64_t)id);
    sh->tomb[sh->tomb_at++ % TRN_COUNTOF(sh->tomb)] = (uint64_t)id;
    trn_unlock(&sh->mu);
    if (!st)
        return;
    trn_lock(&st->mu);
    trn_cancel *c = st->cancel ? trn_cancel_ref(st->cancel) : NULL;
    trn_unlock(&st->mu);
    if (c) {
        trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "step %" PRId64 " was given up by its master", id));
        trn_cancel_unref(c);
    }
    trn_wstep_abort(st, trn_err_set_derived(trn_errorf(TRN_ABORTED, "step %" PRId64 " has been cleaned up", id)));
    trn_wstep_unref(st);
}

void trn_worker_step_renew(trn_worker *w, int64_t id)
{
    step_shard *sh = shard_of(w, id);
    trn_lock(&sh->mu);
    trn_wstep *st = trn_map_deli(sh->steps, (uint64_t)id);
    for (size_t i = 0; i < TRN_COUNTOF(sh->tomb); i++)
        if (sh->tomb[i] == (uint64_t)id)
            sh->tomb[i] = 0;
    trn_unlock(&sh->mu);
    trn_wstep_unref(st);
}

void trn_worker_step_forget(trn_worker *w, trn_wstep *st)
{
    step_shard *sh = shard_of(w, st->id);
    trn_lock(&sh->mu);
    trn_lock(&st->mu);
    bool idle = !st->session && !st->peers && !st->runs;
    trn_unlock(&st->mu);
    bool mine = idle && trn_map_geti(sh->steps, (uint64_t)st->id) == st;
    if (mine)
        trn_map_deli(sh->steps, (uint64_t)st->id);
    trn_unlock(&sh->mu);
    if (mine)
        trn_wstep_unref(st);
}

int trn_worker_steps_orphans(trn_worker *w, uint64_t before_ns, int64_t *ids, int max)
{
    int found = 0;
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        step_shard *sh = &w->shard[i];
        trn_lock(&sh->mu);
        const char *key;
        size_t key_n;
        void *v;
        for (size_t it = 0; found < max && trn_map_next(sh->steps, &it, &key, &key_n, &v);) {
            trn_wstep *st = v;
            trn_lock(&st->mu);
            /* Whoever asks an aborted one learns only that. An eager context's own step is its context's. */
            bool over = !st->session || (st->aborted && (st->session == w->legacy || *st->session->master_task));
            if (over && !st->peers && !st->runs && st->born_ns < before_ns)
                ids[found++] = st->id;
            trn_unlock(&st->mu);
        }
        trn_unlock(&sh->mu);
    }
    return found;
}

void trn_worker_steps_drop(trn_worker *w, const trn_wsession *s)
{
    int64_t *ids = NULL;
    int n = 0, cap = 0;
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        step_shard *sh = &w->shard[i];
        trn_lock(&sh->mu);
        const char *key;
        size_t key_n;
        void *v;
        for (size_t it = 0; trn_map_next(sh->steps, &it, &key, &key_n, &v);) {
            trn_wstep *st = v;
            trn_lock(&st->mu);
            if (st->session == s)
                TRN_PUSH(ids, n, cap, st->id);
            trn_unlock(&st->mu);
        }
        trn_unlock(&sh->mu);
    }
    for (int i = 0; i < n; i++)
        trn_worker_step_clean(w, ids[i]);
    free(ids);
}

void trn_worker_steps_abort(trn_worker *w, trn_code code, const char *why)
{
    for (int i = 0; i < TRN_STEP_SHARDS; i++) {
        step_shard *sh = &w->shard[i];
        trn_lock(&sh->mu);
        size_t n = 0, cap = trn_map_count(sh->steps);
        trn_wstep **all = trn_xalloc(sizeof *all * (cap + 1));
        const char *key;
        size_t key_n;
        void *v;
        for (size_t it = 0; trn_map_next(sh->steps, &it, &key, &key_n, &v);)
            all[n++] = trn_wstep_ref(v);
        trn_unlock(&sh->mu);
        for (size_t j = 0; j < n; j++) {
            trn_lock(&all[j]->mu);
            trn_cancel *c = all[j]->cancel ? trn_cancel_ref(all[j]->cancel) : NULL;
            trn_unlock(&all[j]->mu);
            if (c) {
                trn_cancel_fire(c, trn_errorf(code, "%s", why));
                trn_cancel_unref(c);
            }
            trn_wstep_abort(all[j], trn_errorf(code, "%s", why));
            trn_wstep_unref(all[j]);
        }
        free(all);
    }
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static void step_ran(void *arg, trn_err err)
{
    step_run *r = arg;
    trn_wstep *st = r->step;
    r->err = err;
    if (st->push) {
        if (st->reply_to)
            trn_outbox_take(st->reply_to, st, &st->reply);
        if (trn_wstep_wait_pushes(st, r))
            return;
    }
    trn_step_run_end(r, TRN_OK);
}

void trn_worker_note_error(const trn_error *err)
{
    trn_code c = trn_err_code(err);
    if (c != TRN_OUT_OF_RANGE && c != TRN_CANCELLED && !trn_err_is_derived(err)) { /* the end of the data is no news, nor is what was asked for */
        const char *text = trn_err_msg(err);
        trn_recent_note(TRN_LOG_ERROR, trn_code_name(c), text, strlen(text));
    }
}

void trn_step_run_end(step_run *r, trn_err push_err)
{
    trn_wstep *st = r->step;
    trn_err err = r->err;
    if (!err || (trn_err_is_derived(err) && push_err && !trn_err_is_derived(push_err))) {
        trn_err_free(err);
        err = push_err;
    } else
        trn_err_free(push_err);
    trn_lock(&st->mu);
    if (--st->runs == 0) {
        trn_cancel_unref(st->cancel);
        st->cancel = NULL;
    }
    trn_unlock(&st->mu);
    if (err) { /* peers that wait for what will not come */
        trn_wstep_abort(st, trn_err_copy(err));
        trn_worker_note_error(err);
    }
    uint64_t now = trn_now_ns();
    trn_hist_add(st->w->part_time, now - r->start_ns);
    if (TRN_UNLIKELY(r->trace != NULL)) {
        trn_capture_add(st->w->capture, st->id, r->trace, trn_plan_graph(r->plan), r->start_ns, now);
        if (r->own_trace)
            trn_trace_free((trn_trace *)r->trace);
        trn_plan_unref(r->plan);
    }
    r->done(r->arg, err);
    trn_worker_busy_add(st->w, -1);
    trn_wstep_unref(st);
    free(r);
}

void trn_wstep_run(trn_wstep *st, trn_plan *p, const trn_run_opts *o, void (*done)(void *, trn_err), void *arg)
{
    step_run *r = trn_xalloc(sizeof *r);
    r->start_ns = trn_now_ns();
    r->step = trn_wstep_ref(st);
    r->done = done;
    r->arg = arg;
    trn_run_opts opts = *o;
    opts.step_id = st->id;
    opts.rdv = &st->rdv;
    opts.step_resmgr = trn_wstep_resmgr(st);
    if (trn_capture_on(st->w->capture)) {
        r->own_trace = !opts.trace;
        if (r->own_trace)
            opts.trace = trn_trace_new();
        r->trace = opts.trace;
        r->plan = trn_plan_ref(p);
    }
    trn_lock(&st->mu);
    st->runs++;
    if (!st->cancel)
        st->cancel = trn_cancel_ref(o->cancel);
    trn_unlock(&st->mu);
    trn_worker_busy_add(st->w, 1);
    atomic_fetch_add_explicit(&st->w->steps_run, 1, memory_order_relaxed);
    if (atomic_load(&st->w->stopped))
        trn_cancel_fire(o->cancel, trn_errorf(TRN_UNAVAILABLE, "%s is shutting down", st->w->task));
    trn_plan_run(p, &opts, step_ran, r);
}
