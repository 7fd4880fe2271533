/* Graphs that other tasks have for us: RegisterGraph once, then RunGraph and CleanupGraph for each call, as a master would do it (res/rdv.h says for whom). The session is
 * the step's, which its master has made on every task. */
#include <stdlib.h>

#include "proto/pbw.h"
#include "wire/codec.h"
#include "worker/worker_int.h"

typedef struct far {
    trn_far f;
    trn_worker *w;
    char *session, *task, *address;
    char graph[64];
} far;

static const trn_far_type far_type;

/* ---- one call ----------------------------------------------------------------------------------------------------- */

/* A call to the other task that a cancellation ends. */
typedef struct far_rpc {
    _Atomic uint32_t ref; /* one for the call, one for whoever sets it up */
    trn_mutex mu;
    bool hooked, over;
    trn_cancel *cancel;
    trn_cancel_hook hook;
    trn_rpc *rpc;
    far *f; /* a reference */
    int64_t step;
    int n_rets;
    char **key; /* of results, zero-terminated; one block */
    trn_far_made made;
    trn_call_done done;
    void *arg;
} far_rpc;

static far_rpc *rpc_new(far *f, trn_cancel *cancel, void *arg)
{
    far_rpc *r = trn_xalloc(sizeof *r);
    r->ref = 2;
    trn_mutex_init(&r->mu, TRN_RANK_STEP);
    r->cancel = trn_cancel_ref(cancel);
    r->f = f;
    r->arg = arg;
    return r;
}

static void rpc_unref(far_rpc *r)
{
    if (atomic_fetch_sub_explicit(&r->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_rpc_unref(r->rpc);
    trn_cancel_unref(r->cancel);
    trn_mutex_fini(&r->mu);
    trn_far_unref(&r->f->f);
    free(r->key);
    free(r);
}

static void rpc_cancelled(void *arg) { trn_rpc_cancel(((far_rpc *)arg)->rpc); }

static void rpc_start(far_rpc *r, const char *method, trn_out_msg *m, const trn_call_opts *o, trn_rpc_done done)
{
    trn_channel *ch = trn_peers_get(r->f->w->peers, r->f->address);
    trn_channel_call(&r->rpc, ch, method, m, o, done, r);
    trn_channel_unref(ch);
    /* `done` may have run already. Cancellation may come from now on, or have come before. */
    trn_lock(&r->mu);
    r->hooked = !r->over && trn_cancel_add(r->cancel, &r->hook, rpc_cancelled, r);
    bool late = !r->over && !r->hooked;
    trn_unlock(&r->mu);
    if (late)
        trn_rpc_cancel(r->rpc);
    rpc_unref(r);
}

/* What the caller hears: its own cancellation is the reason when there is one. */
static trn_err rpc_over(far_rpc *r, trn_err err)
{
    trn_lock(&r->mu);
    r->over = true;
    bool hooked = r->hooked;
    trn_unlock(&r->mu);
    if (hooked)
        (void)trn_cancel_remove(r->cancel, &r->hook);
    trn_err why = err ? trn_cancel_why(r->cancel) : TRN_OK;
    if (why) {
        trn_err_free(err);
        return trn_err_set_derived(why);
    }
    return err;
}

static void ignore_reply(void *arg, trn_err err, const trn_msg *msg) { trn_err_free(err); }

static void tell(const far *f, const char *method, trn_sb *s)
{
    trn_out_msg m = {0};
    trn_out_sb(&m, s);
    trn_channel *ch = trn_peers_get(f->w->peers, f->address);
    trn_channel_call(NULL, ch, method, &m, &(trn_call_opts){.deadline_ns = trn_now_ns() + UINT64_C(30000000000)}, ignore_reply, NULL);
    trn_channel_unref(ch);
}

static trn_tensor *find(const trn_run_graph_resp *q, const char *key)
{
    for (int i = 0; i < q->n_recv; i++)
        if (!strcmp(q->recv[i].name, key))
            return q->recv[i].t;
    return NULL;
}

static void far_ran(void *arg, trn_err err, const trn_msg *msg)
{
    far_rpc *r = arg;
    trn_arena *a = trn_arena_new();
    trn_run_graph_resp q = {0};
    if (!err && !(err = trn_run_graph_resp_parse(&q, a, msg)))
        err = q.status;
    else if (trn_err_code(err) == TRN_UNAVAILABLE)
        err = trn_err_wrap(err, "RemoteCall on %s (%s)", r->f->task, r->f->address);
    trn_tensor **rets = trn_arena_alloc(a, ((size_t)r->n_rets + 1) * sizeof *rets);
    for (int i = 0; !err && i < r->n_rets; i++)
        if (!(rets[i] = find(&q, r->key[i])))
            err = trn_errorf(TRN_INTERNAL, "%s (%s) did not send result %d of a RemoteCall", r->f->task, r->f->address, i);
    trn_sb s = {0};
    trn_pbw_varint(&s, 1, (uint64_t)r->step);
    tell(r->f, TRN_PATH_WORKER "CleanupGraph", &s);
    err = rpc_over(r, err);
    r->done(r->arg, err, rets, err ? 0 : r->n_rets);
    trn_named_fini(q.recv, q.n_recv);
    trn_arena_free(a);
    rpc_unref(r);
}

static char **copy_keys(const char *const *key, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += strlen(key[i]) + 1;
    char **out = trn_xalloc((size_t)n * sizeof *out + bytes + 1), *p = (char *)(out + n);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(key[i]) + 1;
        out[i] = memcpy(p, key[i], len);
        p += len;
    }
    return out;
}

static void far_run(trn_far *f_, const trn_far_call *c)
{
    far *f = TRN_CONTAINER(f_, far, f);
    atomic_fetch_add_explicit(&f->f.ref, 1, memory_order_relaxed);
    far_rpc *r = rpc_new(f, c->cancel, c->arg);
    r->done = c->done;
    r->n_rets = c->n_rets;
    r->key = copy_keys(c->recv_key, c->n_rets);
    r->step = (int64_t)(trn_random64() >> 8 | UINT64_C(1) << 56);
    trn_named_tensor *send = trn_xalloc(((size_t)c->n_args + 1) * sizeof *send);
    for (int i = 0; i < c->n_args; i++)
        send[i] = (trn_named_tensor){c->send_key[i], c->args[i]};
    trn_run_graph_req q = {.session = f->session, .session_created = *f->session, .graph = f->graph, .step_id = r->step, .errors_in_body = true, .n_send = c->n_args,
                           .send = send, .n_recv = c->n_rets, .recv_key = (const char **)r->key, .request_id = (int64_t)(trn_random64() >> 1)};
    trn_out_msg m = {0};
    trn_err err = trn_run_graph_req_put(&m, &q);
    free(send);
    if (err) {
        trn_out_fini(&m);
        r->done(r->arg, err, NULL, 0);
        rpc_unref(r);
        rpc_unref(r);
        return;
    }
    rpc_start(r, TRN_PATH_WORKER "RunGraph", &m, &(trn_call_opts){.align = trn_run_graph_resp_align}, far_ran);
}

/* ---- coming and going ------------------------------------------------------------------------------------------------- */

static void far_free(trn_far *f_)
{
    far *f = TRN_CONTAINER(f_, far, f);
    if (*f->graph && !atomic_load(&f->w->stopped)) { /* when the session ends over there, too, this comes late and does no harm */
        trn_sb s = {0};
        trn_pbw_str(&s, 1, f->graph);
        trn_pbw_str(&s, 2, f->session);
        trn_pbw_varint(&s, 3, *f->session != 0);
        tell(f, TRN_PATH_WORKER "DeregisterGraph", &s);
    }
    free(f->session);
    free(f->task);
    free(f->address);
    free(f);
}

static const trn_far_type far_type = {far_run, far_free};

static void registered(void *arg, trn_err err, const trn_msg *msg)
{
    far_rpc *r = arg;
    far *f = r->f;
    if (!err)
        err = trn_register_graph_resp_parse(f->graph, sizeof f->graph, msg);
    if (err)
        err = trn_err_wrap(err, "RegisterGraph to %s (%s)", f->task, f->address);
    err = rpc_over(r, err);
    if (!err)
        atomic_fetch_add_explicit(&f->f.ref, 1, memory_order_relaxed);
    r->made(r->arg, err, err ? NULL : &f->f);
    rpc_unref(r);
}

void trn_wstep_place(trn_rdv *rdv, const char *job, int task, const trn_sb *graph, trn_cancel *c, trn_far_made done, void *arg)
{
    trn_wstep *st = TRN_CONTAINER(rdv, trn_wstep, rdv);
    trn_lock(&st->mu);
    const trn_wsession *s = st->session;
    const char *address = trn_cluster_address(s ? s->cluster : st->w->cluster, job, task);
    trn_unlock(&st->mu);
    if (!s || !address) {
        done(arg, trn_errorf(TRN_INVALID_ARGUMENT, "/job:%s/replica:0/task:%d is no task of this cluster", job, task), NULL);
        return;
    }
    far *f = trn_xalloc(sizeof *f);
    f->f = (trn_far){.ref = 1, .type = &far_type};
    f->w = st->w;
    f->session = trn_xstrdup(s->handle);
    f->task = trn_xasprintf("/job:%s/replica:0/task:%d", job, task);
    f->address = trn_xstrdup(address);
    far_rpc *r = rpc_new(f, c, arg);
    r->made = done;
    trn_sb b = {0};
    trn_pbw_str(&b, 1, f->session);
    trn_pbw_varint(&b, 6, *f->session != 0);
    trn_pbw_bytes(&b, 2, graph->p, graph->n);
    trn_out_msg m = {0};
    trn_out_sb(&m, &b);
    rpc_start(r, TRN_PATH_WORKER "RegisterGraph", &m, &(trn_call_opts){.deadline_ns = trn_now_ns() + UINT64_C(120000000000)}, registered);
}
