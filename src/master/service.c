#include "master/service.h"

#include <stdlib.h>

#include "proto/pbw.h"
#include "wire/codec.h"
#include "worker/service.h"

#define PATH "/tensorflow.MasterService/"

/* What a call needs until it is answered. */
typedef struct job {
    trn_master *m;
    trn_call *call;
    trn_arena *arena;
    trn_cancel *cancel;
    union {
        trn_create_result created;
        trn_device_list devices;
        struct {
            trn_run_step_req q;
            trn_run_callable_req callable;
            trn_step_result result;
        } step;
        char partial_handle[17];
    };
    void *request; /* unpacked */
} job;

static job *job_new(void *svc, trn_call *call)
{
    job *j = trn_xalloc(sizeof *j);
    j->m = svc;
    j->call = call;
    j->arena = trn_arena_new();
    return j;
}

static void job_free(job *j)
{
    trn_cancel_unref(j->cancel);
    trn_arena_free(j->arena);
    free(j);
}

static void client_gone(void *c)
{
    trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "the client cancelled the call"));
}

static void drop_cancel(void *c)
{
    trn_cancel_unref(c);
}

static void watch_client(job *j)
{
    j->cancel = trn_cancel_new();
    trn_call_on_cancel(j->call, client_gone, trn_cancel_ref(j->cancel), drop_cancel);
}

/* Unpacks into j->request; false: answered and freed. */
static bool unpack(job *j, const ProtobufCMessageDescriptor *d)
{
    j->request = trn_request_pb(j->arena, j->call, d);
    if (j->request)
        return true;
    job_free(j);
    return false;
}

static void reply_err(void *arg, trn_err err)
{
    job *j = arg;
    trn_call_reply(j->call, err, NULL);
    job_free(j);
}

/* ---- create, extend, close ------------------------------------------------------------------------------------------ */

static void created(void *arg, trn_err err)
{
    job *j = arg;
    if (err) {
        reply_err(j, err);
        return;
    }
    Tensorflow__CreateSessionResponse r = TENSORFLOW__CREATE_SESSION_RESPONSE__INIT;
    r.session_handle = j->created.handle;
    r.graph_version = j->created.version;
    trn_reply_pb(j->call, &r.base);
    job_free(j);
}

static void create_session(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (!unpack(j, &tensorflow__create_session_request__descriptor))
        return;
    watch_client(j);
    trn_master_create(svc, j->request, j->cancel, &j->created, created, j);
}

static void extend_job(void *arg) /* [pool] */
{
    job *j = arg;
    if (!unpack(j, &tensorflow__extend_session_request__descriptor))
        return;
    Tensorflow__ExtendSessionResponse r = TENSORFLOW__EXTEND_SESSION_RESPONSE__INIT;
    trn_err err = trn_master_extend(j->m, j->request, &r.new_graph_version);
    if (err)
        trn_call_reply(j->call, err, NULL);
    else
        trn_reply_pb(j->call, &r.base);
    job_free(j);
}

static void extend_session(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    trn_pool_submit(trn_master_pool(svc), extend_job, j); /* importing a large graph takes milliseconds */
}

static void close_session(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (unpack(j, &tensorflow__close_session_request__descriptor))
        trn_master_close(svc, ((Tensorflow__CloseSessionRequest *)j->request)->session_handle, reply_err, j);
}

static void reset(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (unpack(j, &tensorflow__reset_request__descriptor))
        trn_master_reset(svc, j->request, reply_err, j);
}

static Tensorflow__DeviceAttributes **device_list(trn_arena *a, const trn_device *d, int n)
{
    Tensorflow__DeviceAttributes **v = trn_arena_alloc(a, sizeof *v * (size_t)(n + 1));
    for (int i = 0; i < n; i++)
        v[i] = trn_device_to_pb(a, &d[i]);
    return v;
}

static void listed(void *arg, trn_err err)
{
    job *j = arg;
    if (err) {
        reply_err(j, err);
        return;
    }
    Tensorflow__ListDevicesResponse r = TENSORFLOW__LIST_DEVICES_RESPONSE__INIT;
    r.n_local_device = (size_t)j->devices.n_local;
    r.local_device = device_list(j->arena, j->devices.local, j->devices.n_local);
    r.n_remote_device = (size_t)j->devices.n_remote;
    r.remote_device = device_list(j->arena, j->devices.remote, j->devices.n_remote);
    trn_reply_pb(j->call, &r.base);
    trn_arena_free(j->devices.arena);
    job_free(j);
}

static void list_devices(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (!unpack(j, &tensorflow__list_devices_request__descriptor))
        return;
    watch_client(j);
    trn_master_list_devices(svc, ((Tensorflow__ListDevicesRequest *)j->request)->session_handle, j->cancel, &j->devices, listed, j);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* RunStepResponse: tensor = 1, metadata = 2, status_code = 3, status_error_message = 4. */
static void step_done(void *arg, trn_err err)
{
    job *j = arg;
    trn_out_msg m = {0};
    trn_sb s = {0};
    trn_step_result *r = &j->step.result;
    trn_map *sent = r->n_fetches > 1 ? trn_map_new() : NULL; /* one answer per name */
    for (int i = 0; !err && i < r->n_fetches; i++)
        if (!sent || !trn_map_puts(sent, j->step.q.fetches[i], sent))
            err = trn_named_put(&m, 1, j->step.q.fetches[i], r->fetches[i]);
    trn_map_free(sent, NULL);
    if (!err && r->metadata.n)
        trn_pbw_bytes(&s, 2, r->metadata.p, r->metadata.n);
    if (err && j->step.q.errors_in_body) {
        trn_out_fini(&m);
        m = (trn_out_msg){0};
        trn_pbw_varint(&s, 3, (uint64_t)trn_err_code(err));
        trn_pbw_str(&s, 4, trn_err_msg(err));
        trn_err_free(err);
        err = TRN_OK;
    }
    trn_out_sb(&m, &s);
    trn_call_reply_last(j->call, err, &m);
    trn_step_result_fini(r);
    trn_run_step_req_fini(&j->step.q);
    job_free(j);
}

static void run_step(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    trn_run_step_req *q = &j->step.q;
    trn_err err = trn_run_step_req_parse(q, j->arena, trn_call_request(call));
    if (err) {
        reply_err(j, err);
        return;
    }
    const char **names = trn_arena_alloc(j->arena, sizeof *names * (size_t)(q->n_feeds + 1));
    trn_tensor **feeds = trn_arena_alloc(j->arena, sizeof *feeds * (size_t)(q->n_feeds + 1));
    for (int i = 0; i < q->n_feeds; i++) {
        names[i] = q->feeds[i].name;
        feeds[i] = q->feeds[i].t;
    }
    watch_client(j);
    trn_step_req req = {.session = q->session, .partial_handle = q->partial_handle, .n_feeds = q->n_feeds, .n_fetches = q->n_fetches, .n_targets = q->n_targets,
                        .feed_names = names, .feeds = feeds, .fetches = q->fetches, .targets = q->targets, .timeout_ms = q->timeout_ms,
                        .trace = q->trace_level > 0, .partition_graphs = q->partition_graphs, .feeds_stay = true, .debug = q->debug, .debug_n = q->debug_n};
    trn_master_run(svc, &req, j->cancel, &j->step.result, step_done, j);
}

static void partial_ready(void *arg, trn_err err)
{
    job *j = arg;
    if (err) {
        reply_err(j, err);
        return;
    }
    Tensorflow__PartialRunSetupResponse r = TENSORFLOW__PARTIAL_RUN_SETUP_RESPONSE__INIT;
    r.partial_run_handle = j->partial_handle;
    trn_reply_pb(j->call, &r.base);
    job_free(j);
}

static void partial_run_setup(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (!unpack(j, &tensorflow__partial_run_setup_request__descriptor))
        return;
    const Tensorflow__PartialRunSetupRequest *q = j->request;
    trn_step_req req = {.session = q->session_handle, .partial_handle = "", .n_feeds = (int)q->n_feed, .n_fetches = (int)q->n_fetch, .n_targets = (int)q->n_target,
                        .feed_names = (const char *const *)q->feed, .fetches = (const char *const *)q->fetch, .targets = (const char *const *)q->target};
    trn_master_partial_setup(svc, &req, j->partial_handle, partial_ready, j);
}

/* ---- callables ------------------------------------------------------------------------------------------------------ */

static void make_callable(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (!unpack(j, &tensorflow__make_callable_request__descriptor))
        return;
    Tensorflow__MakeCallableResponse r = TENSORFLOW__MAKE_CALLABLE_RESPONSE__INIT;
    trn_err err = trn_master_make_callable(svc, j->request, &r.handle);
    if (err)
        trn_call_reply(call, err, NULL);
    else
        trn_reply_pb(call, &r.base);
    job_free(j);
}

static void release_callable(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    if (!unpack(j, &tensorflow__release_callable_request__descriptor))
        return;
    const Tensorflow__ReleaseCallableRequest *q = j->request;
    reply_err(j, trn_master_release_callable(svc, q->session_handle, q->handle));
}

static void callable_done(void *arg, trn_err err)
{
    job *j = arg;
    trn_out_msg m = {0};
    trn_step_result *r = &j->step.result;
    for (int i = 0; !err && i < r->n_fetches; i++)
        err = trn_tensor_put(&m, 1, r->fetches[i]);
    if (!err && r->metadata.n) {
        trn_sb s = {0};
        trn_pbw_bytes(&s, 2, r->metadata.p, r->metadata.n);
        trn_out_sb(&m, &s);
    }
    if (err)
        trn_out_fini(&m);
    trn_call_reply_last(j->call, err, err ? NULL : &m);
    trn_step_result_fini(r);
    trn_run_callable_req_fini(&j->step.callable);
    job_free(j);
}

static void run_callable(void *svc, trn_call *call)
{
    job *j = job_new(svc, call);
    trn_run_callable_req *q = &j->step.callable;
    trn_err err = trn_run_callable_req_parse(q, j->arena, trn_call_request(call));
    if (err) {
        reply_err(j, err);
        return;
    }
    watch_client(j);
    trn_master_run_callable(svc, q->session, q->handle, q->feeds, q->n_feeds, j->cancel, &j->step.result, callable_done, j);
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

#define SMALL (16 << 20)
static const trn_rpc_method methods[] = {
    {PATH "CreateSession", create_session, NULL, 0},
    {PATH "ExtendSession", extend_session, NULL, 0},
    {PATH "PartialRunSetup", partial_run_setup, NULL, SMALL},
    {PATH "RunStep", run_step, trn_run_step_req_align, 0},
    {PATH "CloseSession", close_session, NULL, SMALL},
    {PATH "ListDevices", list_devices, NULL, SMALL},
    {PATH "Reset", reset, NULL, SMALL},
    {PATH "MakeCallable", make_callable, NULL, SMALL},
    {PATH "RunCallable", run_callable, NULL, 0},
    {PATH "ReleaseCallable", release_callable, NULL, SMALL},
    {0},
};

void trn_master_serve(trn_rpc_server *s, trn_master *m)
{
    trn_rpc_server_add(s, methods, m);
}
