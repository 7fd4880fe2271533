#include "worker/service.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/pb.h"
#include "proto/pbw.h"
#include "wire/codec.h"
#include "worker/stats.h"
#include "worker/worker_int.h"

/* ---- small things --------------------------------------------------------------------------------------------------- */

void trn_reply_pb(trn_call *call, const ProtobufCMessage *msg)
{
    size_t n = protobuf_c_message_get_packed_size(msg);
    trn_out_msg m = {0};
    if (n) {
        trn_buf *b;
        trn_err err = trn_buf_new(&b, n);
        if (err) {
            trn_call_reply(call, err, NULL);
            return;
        }
        protobuf_c_message_pack(msg, b->data);
        trn_out_slice(&m, b, b->data, n);
        trn_buf_unref(b);
    }
    trn_call_reply(call, TRN_OK, &m);
}

void *trn_request_pb(trn_arena *a, trn_call *call, const ProtobufCMessageDescriptor *d)
{
    const trn_msg *m = trn_call_request(call);
    ProtobufCMessage *msg = NULL;
    trn_err err = trn_pb_unpack(&msg, a, d, m->p, m->n);
    if (err) /* TensorFlow's server answers INTERNAL to what it cannot parse */
        trn_call_reply(call, trn_errorf(TRN_INTERNAL, "%s", trn_err_msg(err)), NULL);
    trn_err_free(err);
    return msg;
}

static void reply_empty(trn_call *call)
{
    trn_call_reply(call, TRN_OK, NULL);
}

static void reply_sb(trn_call *call, trn_sb *s)
{
    trn_out_msg m = {0};
    trn_out_sb(&m, s);
    trn_call_reply(call, TRN_OK, &m);
}

void trn_call_pb(trn_channel *ch, const char *path, const ProtobufCMessage *msg, uint64_t deadline_ns, bool wait_for_ready, trn_rpc **rpc, trn_rpc_done done,
                 void *arg)
{
    trn_out_msg m = {0};
    size_t n = protobuf_c_message_get_packed_size(msg);
    if (n) {
        trn_buf *b;
        trn_err err = trn_pb_pack_buf(&b, msg);
        if (err) {
            if (rpc)
                *rpc = NULL;
            done(arg, err, NULL);
            return;
        }
        trn_out_slice(&m, b, b->data, n);
        trn_buf_unref(b);
    }
    trn_channel_call(rpc, ch, path, &m, &(trn_call_opts){.deadline_ns = deadline_ns, .wait_for_ready = wait_for_ready}, done, arg);
}

Tensorflow__DeviceAttributes *trn_device_to_pb(trn_arena *a, const trn_device *d)
{
    Tensorflow__DeviceAttributes *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__device_attributes__init(pb);
    Tensorflow__DeviceLocality *loc = trn_arena_alloc(a, sizeof *loc);
    tensorflow__device_locality__init(loc);
    pb->name = (char *)d->name;
    pb->device_type = (char *)d->type;
    pb->memory_limit = 256 << 20; /* what TensorFlow's CPU devices say */
    pb->locality = loc;
    pb->incarnation = d->incarnation;
    pb->xla_global_id = -1;
    return pb;
}

/* ---- status, sessions ----------------------------------------------------------------------------------------------- */

static void get_status(void *svc, trn_call *call)
{
    trn_worker *w = svc;
    trn_arena *a = trn_arena_new();
    Tensorflow__GetStatusResponse r = TENSORFLOW__GET_STATUS_RESPONSE__INIT;
    r.n_device_attributes = (size_t)w->n_dev;
    r.device_attributes = trn_arena_alloc(a, sizeof(void *) * (size_t)w->n_dev);
    for (int i = 0; i < w->n_dev; i++)
        r.device_attributes[i] = trn_device_to_pb(a, &w->dev[i]);
    trn_reply_pb(call, &r.base);
    trn_arena_free(a);
}

trn_err trn_worker_session_from_def(trn_worker *w, trn_wsession_opts *o, const Tensorflow__ServerDef *def)
{
    trn_cluster *cluster = NULL;
    if (def && def->cluster && def->cluster->n_job) {
        trn_sb packed = {0};
        trn_pb_pack(&packed, &def->cluster->base);
        trn_err err = trn_cluster_from_def(&cluster, packed.p, packed.n);
        trn_sb_fini(&packed);
        if (err)
            return err;
        o->cluster = cluster;
        o->job = def->job_name;
        o->task = def->task_index;
    }
    trn_err err = trn_worker_session_new(w, o);
    trn_cluster_unref(cluster);
    o->cluster = NULL;
    return err;
}

static trn_err create_session(trn_worker *w, const Tensorflow__CreateWorkerSessionRequest *q)
{
    trn_wsession_opts o = {.handle = q->session_handle, .isolate = q->isolate_session_state, .master_task = q->master_task,
                           .master_incarnation = q->master_incarnation};
    return trn_worker_session_from_def(w, &o, q->server_def);
}

static void create_worker_session(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__CreateWorkerSessionRequest *q = trn_request_pb(a, call, &tensorflow__create_worker_session_request__descriptor);
    if (q) {
        trn_worker_sweep(svc);
        trn_call_reply(call, create_session(svc, q), NULL);
    }
    trn_arena_free(a);
}

static void delete_worker_session(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__DeleteWorkerSessionRequest *q = trn_request_pb(a, call, &tensorflow__delete_worker_session_request__descriptor);
    if (q) {
        trn_worker_session_end(svc, q->session_handle);
        reply_empty(call);
    }
    trn_arena_free(a);
}

static void cleanup_all(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__CleanupAllRequest *q = trn_request_pb(a, call, &tensorflow__cleanup_all_request__descriptor);
    if (q) {
        trn_worker_cleanup_all(svc, (const char *const *)q->container, (int)q->n_container);
        reply_empty(call);
    }
    trn_arena_free(a);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------- */

typedef struct graph_job {
    trn_worker *w;
    trn_call *call;
    trn_wsession *session;
    trn_graph *graph;
} graph_job;

static void graph_job_end(graph_job *j, trn_err err, const char *handle)
{
    if (err)
        trn_call_reply(j->call, err, NULL);
    else {
        Tensorflow__RegisterGraphResponse r = TENSORFLOW__REGISTER_GRAPH_RESPONSE__INIT;
        r.graph_handle = (char *)handle;
        trn_reply_pb(j->call, &r.base);
    }
    if (j->graph)
        trn_graph_free(j->graph);
    if (j->session)
        trn_wsession_unref(j->session);
    free(j);
}

static void graph_watched(void *arg, trn_err err)
{
    graph_job *j = arg;
    char handle[17];
    if (!err) {
        err = trn_wsession_register(handle, j->session, j->graph);
        j->graph = NULL;
    }
    graph_job_end(j, err, handle);
}

static trn_err import_graph(graph_job *j, const Tensorflow__RegisterGraphRequest *q)
{
    TRN_TRY(trn_worker_session(&j->session, j->w, q->session_handle, q->create_worker_session_called));
    trn_funclib *lib = trn_funclib_new();
    j->graph = trn_graph_new(lib);
    trn_funclib_unref(lib);
    return q->graph_def ? trn_graph_import(j->graph, q->graph_def) : TRN_OK;
}

static void register_job(void *arg)
{
    graph_job *j = arg;
    trn_arena *a = trn_arena_new();
    Tensorflow__RegisterGraphRequest *q = trn_request_pb(a, j->call, &tensorflow__register_graph_request__descriptor);
    trn_err err = q ? import_graph(j, q) : TRN_OK;
    if (!q)
        free(j);
    else if (err)
        graph_job_end(j, err, NULL);
    else
        trn_worker_watch(j->w, j->graph, q->debug_options.data, q->debug_options.len, graph_watched, j);
    trn_arena_free(a);
}

static void register_graph(void *svc, trn_call *call)
{
    graph_job *j = trn_xalloc(sizeof *j);
    *j = (graph_job){.w = svc, .call = call};
    trn_worker_sweep(svc);
    trn_pool_submit(j->w->env->pool, register_job, j); /* parsing a large graph takes milliseconds: not on the loop */
}

static void deregister_graph(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__DeregisterGraphRequest *q = trn_request_pb(a, call, &tensorflow__deregister_graph_request__descriptor);
    if (q) {
        trn_wsession *s;
        trn_err err = trn_worker_session(&s, svc, q->session_handle, q->create_worker_session_called);
        if (!err) {
            err = trn_wsession_deregister(s, q->graph_handle);
            trn_wsession_unref(s);
        }
        trn_call_reply(call, err, NULL);
    }
    trn_arena_free(a);
}

/* ---- RunGraph ------------------------------------------------------------------------------------------------------- */

/* One RunGraph call. Waits for several things: the run (unless it is a partial one that goes on), and each recv_key. */
typedef struct graph_call {
    trn_worker *w;
    trn_call *call;
    trn_arena *arena;
    trn_run_graph_req q;
    trn_wsession *session;
    trn_wstep *step;
    trn_plan *plan;
    trn_cancel *cancel;
    trn_trace *trace;
    trn_join join;
    trn_tensor **recvd; /* by recv_key */
    bool *dead;
} graph_call;

/* A run that is fed call by call (PartialRun): made by the first call, ended by the last or by CleanupGraph. */
typedef struct partial_run {
    trn_cancel *cancel;
    bool finished;
    trn_err err;
    graph_call *last; /* waits for the end */
} partial_run;

static void partial_free(partial_run *p)
{
    trn_err_free(p->err);
    trn_cancel_unref(p->cancel);
    free(p);
}

static void graph_reply(graph_call *g)
{
    trn_out_msg m = {0};
    trn_sb s = {0};
    trn_err err = trn_join_fini(&g->join);
    for (int i = 0; !err && i < g->q.n_recv; i++) {
        if (g->dead[i] || !g->recvd[i])
            err = trn_errorf(TRN_INVALID_ARGUMENT, "The tensor returned for %s was not valid.", g->q.recv_key[i]);
        else
            err = trn_named_put(&m, 1, g->q.recv_key[i], g->recvd[i]);
    }
    if (g->trace && !err) {
        trn_sb stats = {0};
        trn_stats_put(&stats, g->trace, trn_plan_graph(g->plan));
        trn_pbw_bytes(&s, 2, stats.p, stats.n);
        trn_sb_fini(&stats);
    }
    if (err && g->q.errors_in_body) {
        trn_out_fini(&m);
        m = (trn_out_msg){0};
        trn_pbw_varint(&s, 5, (uint64_t)trn_err_code(err));
        trn_pbw_str(&s, 6, trn_err_msg(err));
        trn_err_free(err);
        err = TRN_OK;
    }
    trn_out_sb(&m, &s);
    if (!err && g->step && g->step->push) { /* what the part made for its master at the very end */
        for (int i = 0; i < g->step->reply.n; i++) {
            TRN_PUSH(m.slices, m.n, m.cap, g->step->reply.slices[i]);
            m.bytes += g->step->reply.slices[i].n;
        }
        g->step->reply.n = 0;
    }
    trn_call_reply_last(g->call, err, &m);

    for (int i = 0; i < g->q.n_recv; i++)
        trn_tensor_unref(g->recvd[i]);
    trn_run_graph_req_fini(&g->q);
    trn_trace_free(g->trace);
    trn_plan_unref(g->plan);
    trn_wstep_unref(g->step);
    trn_wsession_unref(g->session);
    trn_cancel_unref(g->cancel);
    trn_arena_free(g->arena);
    free(g);
}

static void graph_one_done(graph_call *g, trn_err err)
{
    if (trn_join_done(&g->join, err))
        graph_reply(g);
}

static void graph_ran(void *arg, trn_err err)
{
    graph_one_done(arg, err);
}

typedef struct key_wait {
    graph_call *g;
    int i;
} key_wait;

static void key_arrived(void *arg, trn_err err, trn_tensor *t, bool dead)
{
    key_wait *k = arg;
    graph_call *g = k->g;
    if (!err) {
        g->recvd[k->i] = t ? trn_tensor_ref(t) : NULL;
        g->dead[k->i] = dead;
    }
    graph_one_done(g, err);
}

/* The call may be answered on another thread at any moment, so its hooks hold the cancel, not the call. */
static void drop_cancel(void *c)
{
    trn_cancel_unref(c);
}

static void graph_cancelled(void *arg)
{
    trn_cancel_fire(arg, trn_err_set_derived(trn_errorf(TRN_CANCELLED, "RunGraph was cancelled by its master")));
}

static void partial_ran(void *arg, trn_err err)
{
    trn_wstep *st = arg;
    trn_lock(&st->mu);
    partial_run *p = st->partial;
    p->finished = true;
    p->err = err;
    graph_call *last = p->last;
    p->last = NULL;
    trn_err copy = last && err ? trn_err_copy(err) : TRN_OK;
    trn_unlock(&st->mu);
    if (last)
        graph_one_done(last, copy);
    trn_wstep_unref(st);
}

/* Starts the step's partial run, if this is its first call; the last call waits for its end. */
static void run_partial(graph_call *g)
{
    trn_wstep *st = g->step;
    bool start = false, finished = true;
    trn_err err = TRN_OK;
    trn_lock(&st->mu);
    if (!st->partial) {
        partial_run *p = trn_xalloc(sizeof *p);
        p->cancel = trn_cancel_new();
        st->partial = p;
        st->partial_free = partial_free;
        start = true;
    }
    partial_run *p = st->partial;
    if (g->q.is_last_partial && !p->finished && p->last) { /* that one gets the answer */
        err = trn_errorf(TRN_INVALID_ARGUMENT, "the last call of the partial run of step %lld is under way already", (long long)st->id);
    } else if (g->q.is_last_partial && !p->finished) {
        p->last = g;
        finished = false;
    } else if (p->err)
        err = trn_err_copy(p->err);
    trn_unlock(&st->mu);
    if (start) {
        trn_run_opts o = {.cancel = p->cancel};
        trn_wstep_ref(st);
        trn_wstep_run(st, g->plan, &o, partial_ran, st);
    }
    if (finished)
        graph_one_done(g, err);
}

static trn_err graph_start(graph_call *g)
{
    TRN_TRY(trn_worker_session(&g->session, g->w, g->q.session, g->q.session_created));
    TRN_TRY(trn_wsession_plan(&g->plan, g->session, g->q.graph));
    g->step = trn_worker_step(g->w, g->q.step_id, g->session);
    if (!g->step)
        return trn_errorf(TRN_ABORTED, "RunGraph for a step that has been cleaned up");
    if (g->q.push) {
        g->step->push = true;
        g->step->reply_to = trn_wsession_outbox(g->session, g->session->master_task, strlen(g->session->master_task));
    }
    trn_rdv *rdv = trn_wstep_rdv(g->step);
    for (int i = 0; i < g->q.n_send; i++)
        TRN_TRY(rdv->type->send(rdv, g->q.send[i].name, g->q.send[i].t, false));
    return TRN_OK;
}

static void run_graph(void *svc, trn_call *call)
{
    graph_call *g = trn_xalloc(sizeof *g);
    g->w = svc;
    g->call = call;
    g->arena = trn_arena_new();
    g->cancel = trn_cancel_new();
    trn_join_init(&g->join, 1);
    trn_err err = trn_run_graph_req_parse(&g->q, g->arena, trn_call_request(call));
    if (err)
        g->q = (trn_run_graph_req){.session = "", .graph = ""};
    else {
        g->recvd = trn_arena_alloc(g->arena, sizeof *g->recvd * (size_t)(g->q.n_recv + 1));
        g->dead = trn_arena_alloc(g->arena, sizeof *g->dead * (size_t)(g->q.n_recv + 1));
        for (int i = 0; i < g->q.n_clean; i++)
            trn_worker_step_clean(g->w, g->q.clean[i]);
        err = graph_start(g);
    }
    if (err) {
        g->q.n_recv = 0;
        graph_one_done(g, err);
        return;
    }
    trn_call_on_cancel(call, graph_cancelled, trn_cancel_ref(g->cancel), drop_cancel);
    if (g->q.record_timeline || g->q.record_costs)
        g->trace = trn_trace_new();
    trn_join_add(&g->join, 1 + g->q.n_recv); /* our own, the run, the keys */
    for (int i = 0; i < g->q.n_recv; i++) {
        key_wait *k = trn_arena_alloc(g->arena, sizeof *k);
        *k = (key_wait){g, i};
        trn_wstep_recv_local(g->step, g->q.recv_key[i], g->cancel, key_arrived, k);
    }
    if (g->q.is_partial)
        run_partial(g);
    else {
        trn_run_opts o = {.cancel = g->cancel, .trace = g->trace};
        trn_wstep_run(g->step, g->plan, &o, graph_ran, g);
    }
    graph_one_done(g, TRN_OK);
}

static void cleanup_graph(void *svc, trn_call *call)
{
    const trn_msg *m = trn_call_request(call);
    trn_pbr r = trn_pbr_init(m->p, m->n);
    int64_t step = 0;
    while (trn_pbr_next(&r))
        if (r.field == 1 && r.type == TRN_PB_VARINT)
            step = (int64_t)r.v;
    trn_worker_step_clean(svc, step);
    reply_empty(call);
}

/* ---- RecvTensor, answering ------------------------------------------------------------------------------------------ */

typedef struct peer_recv {
    trn_worker *w;
    trn_call *call;
    trn_wstep *step;
    trn_cancel *cancel;
} peer_recv;

static void peer_done(void *arg, trn_err err, trn_tensor *t, bool dead)
{
    peer_recv *p = arg;
    trn_out_msg m = {0};
    bool failed = err != TRN_OK;
    if (!err)
        err = trn_recv_resp_put(&m, dead ? NULL : t, dead);
    if (err)
        trn_out_fini(&m);
    trn_call_reply(p->call, err, err ? NULL : &m);
    trn_lock(&p->step->mu);
    bool idle = --p->step->peers == 0 && !p->step->session;
    trn_unlock(&p->step->mu);
    if (failed && idle)
        trn_worker_step_forget(p->w, p->step);
    trn_wstep_unref(p->step);
    trn_cancel_unref(p->cancel);
    free(p);
}

static void peer_gone(void *arg)
{
    trn_cancel_fire(arg, trn_errorf(TRN_CANCELLED, "RecvTensor was cancelled by the peer"));
}

/* "send_device;incarnation;recv_device;name;frame:iter" with one of our incarnations. */
static trn_err check_key(const trn_worker *w, const char *key)
{
    const char *p = key;
    const char *part[5];
    int n = 0;
    for (; n < 5; n++) {
        part[n] = p;
        p = strchr(p, ';');
        if (!p)
            break;
        p++;
    }
    if (n != 4)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Invalid rendezvous key: %.200s", key);
    char *end;
    uint64_t inc = strtoull(part[1], &end, 16);
    if (*end != ';' || end == part[1])
        return trn_errorf(TRN_INVALID_ARGUMENT, "Invalid rendezvous key: %.200s", key);
    for (int i = 0; i < w->n_dev; i++)
        if (w->dev[i].incarnation == inc)
            return TRN_OK;
    return trn_errorf(TRN_ABORTED, "RecvTensor expects a different device incarnation: %016llx vs. %016llx. %s was restarted, or an earlier task has had its address.",
                      (unsigned long long)inc, (unsigned long long)w->dev[0].incarnation, w->task);
}

static void recv_tensor(void *svc, trn_call *call)
{
    trn_worker *w = svc;
    trn_arena *a = trn_arena_new();
    trn_recv_req q;
    trn_err err = trn_recv_req_parse(&q, a, trn_call_request(call));
    if (!err)
        err = check_key(w, q.key);
    trn_wstep *st = NULL;
    if (!err && !(st = trn_worker_step(w, q.step_id, NULL)))
        err = trn_err_set_derived(trn_errorf(TRN_ABORTED, "RecvTensor for step %lld, which has been cleaned up", (long long)q.step_id));
    if (err) {
        trn_call_reply(call, err, NULL);
        trn_arena_free(a);
        return;
    }
    peer_recv *p = trn_xalloc(sizeof *p);
    *p = (peer_recv){w, call, st, trn_cancel_new()};
    trn_lock(&st->mu);
    st->peers++;
    trn_unlock(&st->mu);
    trn_call_on_cancel(call, peer_gone, trn_cancel_ref(p->cancel), drop_cancel);
    trn_wstep_recv_local(st, q.key, p->cancel, peer_done, p);
    trn_arena_free(a);
}

/* ---- the rest ------------------------------------------------------------------------------------------------------- */

static void mark_recv_finished(void *svc, trn_call *call)
{
    reply_empty(call); /* nothing is kept for a second try: RecvTensor answers hold no cache */
}

#define MAX_LOGGED 1024 /* steps that one call may ask for; masters ask for one */

/* Each step once, however often it is asked for: a byte of the request would stand for all of its entries. */
static trn_err put_logs(trn_sb *out, trn_worker *w, const Tensorflow__LoggingRequest *q)
{
    if (q->n_fetch_step_id > MAX_LOGGED)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Logging of %zu steps at once; the most is %d", q->n_fetch_step_id, MAX_LOGGED);
    trn_map *seen = trn_map_new();
    for (size_t i = 0; i < q->n_fetch_step_id; i++)
        if (!trn_map_puti(seen, (uint64_t)q->fetch_step_id[i], seen))
            trn_rpc_log_put(out, w, q->fetch_step_id[i]);
    trn_map_free(seen, NULL);
    return TRN_OK;
}

static void logging(void *svc, trn_call *call)
{
    trn_worker *w = svc;
    trn_arena *a = trn_arena_new();
    Tensorflow__LoggingRequest *q = trn_request_pb(a, call, &tensorflow__logging_request__descriptor);
    if (q) {
        if (q->enable_rpc_logging)
            trn_rpc_log_enable(w, true);
        if (q->disable_rpc_logging)
            trn_rpc_log_enable(w, false);
        trn_sb s = {0};
        trn_err err = put_logs(&s, w, q);
        if (q->clear)
            trn_rpc_log_clear(w);
        if (err)
            trn_call_reply(call, err, NULL);
        else
            reply_sb(call, &s);
    }
    trn_arena_free(a);
}

static void tracing(void *svc, trn_call *call)
{
    reply_empty(call);
}

#define NOT_HERE(name)                                                                                                 \
    static void name(void *svc, trn_call *call)                                                                        \
    {                                                                                                                  \
        trn_call_reply(call, trn_errorf(TRN_UNIMPLEMENTED, "WorkerService." #name ": Trainera has no collective operations"), NULL); \
    }
NOT_HERE(RecvBuf)
NOT_HERE(CompleteGroup)
NOT_HERE(CompleteInstance)
NOT_HERE(GetStepSequence)

#define SMALL (1 << 20)
static const trn_rpc_method methods[] = {
    {TRN_PATH_WORKER "GetStatus", get_status, NULL, SMALL},
    {TRN_PATH_WORKER "CreateWorkerSession", create_worker_session, NULL, 64 << 20},
    {TRN_PATH_WORKER "DeleteWorkerSession", delete_worker_session, NULL, SMALL},
    {TRN_PATH_WORKER "RegisterGraph", register_graph, NULL, 0},
    {TRN_PATH_WORKER "DeregisterGraph", deregister_graph, NULL, SMALL},
    {TRN_PATH_WORKER "RunGraph", run_graph, trn_run_graph_req_align, 0},
    {TRN_PATH_WORKER "CleanupGraph", cleanup_graph, NULL, SMALL},
    {TRN_PATH_WORKER "CleanupAll", cleanup_all, NULL, SMALL},
    {TRN_PATH_WORKER "RecvTensor", recv_tensor, NULL, SMALL},
    {TRN_PATH_WORKER "MarkRecvFinished", mark_recv_finished, NULL, SMALL},
    {TRN_PATH_WORKER "Logging", logging, NULL, SMALL},
    {TRN_PATH_WORKER "Tracing", tracing, NULL, SMALL},
    {TRN_PATH_WORKER "RecvBuf", RecvBuf, NULL, SMALL},
    {TRN_PATH_WORKER "CompleteGroup", CompleteGroup, NULL, SMALL},
    {TRN_PATH_WORKER "CompleteInstance", CompleteInstance, NULL, SMALL},
    {TRN_PATH_WORKER "GetStepSequence", GetStepSequence, NULL, SMALL},
    {TRN_PATH_PUSH, trn_worker_push, trn_push_align, 0},
    {0},
};

void trn_worker_serve(trn_rpc_server *s, trn_worker *w)
{
    trn_rpc_server_add(s, methods, w);
}
