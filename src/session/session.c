/* The client's side: one blocking API over two ways to reach a master, the wire and a plain call. */
#include <trainera/session.h>

#include <inttypes.h>
#include <stdlib.h>

#include "graph/builder.h"
#include "master/master.h"
#include "master/server.h"
#include "proto/pb.h"
#include "proto/textproto.h"
#include "session/session.h"
#include "wire/codec.h"

#define PATH "/tensorflow.MasterService/"

const char *trn_version(void)
{
    return TRAINERA_VERSION;
}

/* ---- cluster, server ------------------------------------------------------------------------------------------------ */

trn_err trn_cluster_parse(trn_cluster **out, const char *json)
{
    size_t n = strlen(json);
    trn_err err = trn_cluster_from_json(out, json, n);
    if (!err)
        return TRN_OK;
    trn_err second = trn_cluster_from_tf_config(out, json, n);
    if (!second) {
        trn_err_free(err);
        return TRN_OK;
    }
    bool config = strstr(json, "\"cluster\"") && strstr(json, "\"task\"");
    trn_err_free(config ? err : second);
    return config ? second : err;
}

void trn_cluster_free(trn_cluster *c)
{
    trn_cluster_unref(c);
}

trn_err trn_server_create(trn_server **out, const trn_cluster *c, const char *job, int task)
{
    return trn_server_start(out, &(trn_server_config){.cluster = c, .job = job, .task = task, .port = -1, .listen_fd = -1});
}

trn_err trn_server_create_local(trn_server **out)
{
    trn_cluster *c;
    static const char spec[] = "{\"local\": [\"localhost:0\"]}";
    TRN_TRY(trn_cluster_from_json(&c, spec, sizeof spec - 1));
    trn_err err = trn_server_create(out, c, "local", 0);
    trn_cluster_unref(c);
    return err;
}

void trn_server_close(trn_server *s, int drain_ms)
{
    trn_server_stop(s, (uint64_t)TRN_MAX(drain_ms, 0) * 1000000);
}

/* ---- the thread that talks for clients of this process -------------------------------------------------------------- */

static pthread_mutex_t client_mu = PTHREAD_MUTEX_INITIALIZER;
static trn_loop *client_loop;
static int client_users;

static trn_err client_take(trn_loop **out)
{
    trn_err err = TRN_OK;
    pthread_mutex_lock(&client_mu);
    if (!client_loop)
        err = trn_loop_open(&client_loop, "client");
    if (!err) {
        client_users++;
        *out = client_loop;
    }
    pthread_mutex_unlock(&client_mu);
    return err;
}

static void client_give(void)
{
    pthread_mutex_lock(&client_mu);
    trn_loop *l = --client_users == 0 ? client_loop : NULL;
    if (l)
        client_loop = NULL;
    pthread_mutex_unlock(&client_mu);
    if (l)
        trn_loop_close(l);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------- */

typedef struct wait {
    trn_latch end;
    trn_err err;
    trn_msg msg; /* a reply, kept by reference */
} wait;

static void wait_init(wait *w)
{
    *w = (wait){0};
    trn_latch_init(&w->end);
}

static void wait_done(void *arg, trn_err err)
{
    wait *w = arg;
    w->err = err;
    trn_latch_open(&w->end);
}

static void wait_reply(void *arg, trn_err err, const trn_msg *msg)
{
    wait *w = arg;
    if (!err) {
        w->msg = *msg;
        if (msg->buf)
            trn_buf_ref(msg->buf);
    }
    wait_done(w, err);
}

static trn_err wait_for(wait *w)
{
    trn_latch_wait(&w->end);
    return w->err;
}

typedef struct call {
    trn_rpc *rpc;
    bool keep; /* the handle is wanted, to cancel */
    trn_channel *ch;
    const char *path;
    trn_out_msg *m;
    const trn_call_opts *o;
    wait w;
} call;

static void call_start(void *arg)
{
    call *c = arg;
    trn_channel_call(c->keep ? &c->rpc : NULL, c->ch, c->path, c->m, c->o, wait_reply, &c->w);
}

static void call_cancelled(void *arg) { trn_rpc_cancel(((call *)arg)->rpc); }

/* With something that may end it: the call is made first, from this thread, so that there is something to cancel. */
static void call_until(call *c, trn_cancel *cancel)
{
    trn_cancel_hook hook;
    c->keep = true;
    call_start(c);
    bool added = trn_cancel_add(cancel, &hook, call_cancelled, c);
    if (!added)
        trn_rpc_cancel(c->rpc);
    trn_latch_wait(&c->w.end);
    if (added)
        trn_cancel_remove(cancel, &hook);
    trn_rpc_unref(c->rpc);
}

static trn_err call_msg(trn_msg *reply, trn_channel *ch, const char *path, trn_out_msg *m, const trn_call_opts *o, trn_cancel *cancel)
{
    call c = {.ch = ch, .path = path, .m = m, .o = o};
    wait_init(&c.w);
    if (cancel)
        call_until(&c, cancel);
    else
        trn_loop_drive(trn_channel_loop(ch), call_start, &c, &c.w.end);
    if (c.w.err)
        return c.w.err;
    *reply = c.w.msg;
    return TRN_OK;
}

static trn_err call_pb(ProtobufCMessage **out, trn_arena *a, const ProtobufCMessageDescriptor *d, trn_channel *ch, const char *path, const ProtobufCMessage *q,
                       const trn_call_opts *o)
{
    trn_out_msg m = {0};
    trn_sb s = {0};
    trn_pb_pack(&s, q);
    trn_out_sb(&m, &s);
    trn_msg reply;
    TRN_TRY(call_msg(&reply, ch, path, &m, o, NULL));
    trn_err err = trn_pb_unpack(out, a, d, reply.p, reply.n);
    trn_msg_fini(&reply);
    return err;
}

/* ---- the session ---------------------------------------------------------------------------------------------------- */

struct trn_session {
    _Atomic int refs;
    _Atomic bool closed; /* by its owner, who is done with it */
    trn_channel *channel; /* over the wire; else NULL */
    trn_master *master;   /* in process; else NULL */
    char handle[64];
    int64_t timeout_ms;
    pthread_mutex_t mu;   /* version */
    int64_t version;
    pthread_mutex_t build_mu; /* the three below */
    const trn_builder *builder; /* whose nodes [0, built) are there */
    int built;
    uint64_t lib_version;
};

static uint64_t deadline(const trn_session *s)
{
    return s->timeout_ms > 0 ? trn_now_ns() + (uint64_t)s->timeout_ms * 1000000 : 0;
}

/* A deadline for opening a session in process: a timer on the master's loop that cancels. */
typedef struct open_deadline {
    trn_loop *loop;
    trn_cancel *cancel;
    trn_timer timer;
    uint64_t at_ns;
    trn_latch off;
} open_deadline;

static void deadline_came(void *arg)
{
    open_deadline *d = arg;
    trn_cancel_fire(d->cancel, trn_errorf(TRN_DEADLINE_EXCEEDED, "the time for opening a session is over"));
}

static void deadline_on(void *arg)
{
    open_deadline *d = arg;
    trn_timer_start(d->loop, &d->timer, d->at_ns, deadline_came, d);
}

static void deadline_off(void *arg)
{
    open_deadline *d = arg;
    trn_timer_stop(d->loop, &d->timer);
    trn_latch_open(&d->off);
}

static trn_err create_in_process(trn_create_result *r, trn_session *s, const Tensorflow__CreateSessionRequest *q)
{
    wait w;
    wait_init(&w);
    if (s->timeout_ms <= 0) {
        trn_master_create(s->master, q, NULL, r, wait_done, &w);
        return wait_for(&w);
    }
    open_deadline d = {.loop = trn_master_loop(s->master), .cancel = trn_cancel_new(), .at_ns = deadline(s)};
    trn_latch_init(&d.off);
    trn_loop_post(d.loop, deadline_on, &d);
    trn_master_create(s->master, q, d.cancel, r, wait_done, &w);
    trn_err err = wait_for(&w);
    trn_loop_post(d.loop, deadline_off, &d);
    trn_latch_wait(&d.off);
    if (trn_err_code(err) == TRN_CANCELLED && trn_cancelled(d.cancel)) {
        trn_err late = trn_errorf(TRN_DEADLINE_EXCEEDED, "%s", trn_err_msg(err));
        trn_err_free(err);
        err = late;
    }
    trn_cancel_unref(d.cancel);
    return err;
}

static trn_err create(trn_session *s, const char *target, const trn_session_opts *o)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__CreateSessionRequest q = TENSORFLOW__CREATE_SESSION_REQUEST__INIT;
    Tensorflow__GraphDef empty = TENSORFLOW__GRAPH_DEF__INIT;
    q.graph_def = &empty;
    q.target = (char *)target;
    trn_err err = TRN_OK;
    if (o && o->config)
        err = TRN_PB_UNPACK(&q.config, a, tensorflow__config_proto__descriptor, o->config, o->config_len);
    if (!err && s->master) {
        trn_create_result r;
        err = create_in_process(&r, s, &q);
        if (!err) {
            memcpy(s->handle, r.handle, sizeof r.handle);
            s->version = r.version;
        }
    } else if (!err) {
        Tensorflow__CreateSessionResponse *r = NULL;
        err = call_pb((ProtobufCMessage **)(void *)&r, a, &tensorflow__create_session_response__descriptor, s->channel, PATH "CreateSession", &q.base,
                      &(trn_call_opts){.deadline_ns = deadline(s), .wait_for_ready = true});
        if (!err && (!*r->session_handle || strlen(r->session_handle) >= sizeof s->handle))
            err = trn_errorf(TRN_INTERNAL, "the master at %s gave no usable session handle", target);
        if (!err) {
            strcpy(s->handle, r->session_handle);
            s->version = r->graph_version;
        }
    }
    trn_arena_free(a);
    return err;
}

trn_session *trn_session_ref(trn_session *s)
{
    s->refs++;
    return s;
}

void trn_session_unref(trn_session *s)
{
    if (--s->refs)
        return;
    if (s->channel) {
        trn_channel_unref(s->channel);
        client_give();
    }
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->build_mu);
    free(s);
}

static void session_free(trn_session *s)
{
    if (s->channel)
        trn_channel_shutdown(s->channel);
    trn_session_unref(s);
}

static trn_err open_channel(trn_channel **out, const char *target)
{
    static const char scheme[] = "grpc://";
    if (strncmp(target, scheme, sizeof scheme - 1) || !target[sizeof scheme - 1])
        return trn_errorf(TRN_INVALID_ARGUMENT, "a session's target is \"grpc://host:port\", not \"%s\"", target);
    trn_loop *loop;
    TRN_TRY(client_take(&loop));
    *out = trn_channel_new(loop, target + sizeof scheme - 1);
    return TRN_OK;
}

static trn_session *session_new(const trn_session_opts *o)
{
    trn_session *s = trn_xalloc(sizeof *s);
    s->refs = 1;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->build_mu, NULL);
    s->timeout_ms = o ? o->timeout_ms : 0;
    return s;
}

trn_err trn_session_open(trn_session **out, const char *target, const trn_session_opts *o)
{
    trn_channel *ch;
    TRN_TRY(open_channel(&ch, target));
    trn_session *s = session_new(o);
    s->channel = ch;
    trn_err err = create(s, target, o);
    if (err) {
        session_free(s);
        return trn_err_wrap(err, "opening a session on %s", target);
    }
    *out = s;
    return TRN_OK;
}

trn_err trn_session_open_on(trn_session **out, trn_server *server, const trn_session_opts *o)
{
    trn_session *s = session_new(o);
    s->master = trn_server_master(server);
    trn_err err = create(s, trn_server_target(server), o);
    if (err) {
        session_free(s);
        return err;
    }
    *out = s;
    return TRN_OK;
}

static trn_err extend(trn_session *s, trn_arena *a, Tensorflow__GraphDef *gd)
{
    Tensorflow__ExtendSessionRequest q = TENSORFLOW__EXTEND_SESSION_REQUEST__INIT;
    q.session_handle = s->handle;
    q.graph_def = gd;
    pthread_mutex_lock(&s->mu); /* versions are one after the other */
    q.current_graph_version = s->version;
    trn_err err;
    if (s->master)
        err = trn_master_extend(s->master, &q, &s->version);
    else {
        Tensorflow__ExtendSessionResponse *r = NULL;
        err = call_pb((ProtobufCMessage **)(void *)&r, a, &tensorflow__extend_session_response__descriptor, s->channel, PATH "ExtendSession", &q.base,
                      &(trn_call_opts){0});
        if (!err)
            s->version = r->new_graph_version;
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

trn_err trn_session_extend(trn_session *s, const void *graph_def, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = NULL;
    trn_err err = TRN_PB_UNPACK(&gd, a, tensorflow__graph_def__descriptor, graph_def, n);
    if (!err)
        err = extend(s, a, gd);
    trn_arena_free(a);
    return err;
}

trn_err trn_session_extend_text(trn_session *s, const char *text)
{
    trn_sb bytes = {0};
    trn_err err = trn_textproto_encode(&bytes, &tensorflow__graph_def__descriptor, text, strlen(text));
    if (!err)
        err = trn_session_extend(s, bytes.p, bytes.n);
    trn_sb_fini(&bytes);
    return err;
}

trn_err trn_session_extend_builder(trn_session *s, trn_builder *b)
{
    b = b->real;
    TRN_TRY(trn_builder_check(b));
    trn_err err = TRN_OK;
    pthread_mutex_lock(&s->build_mu);
    if (s->builder && s->builder != b)
        err = trn_errorf(TRN_FAILED_PRECONDITION, "this session follows another builder already");
    else if (s->built < b->g->n || s->lib_version != b->lib_version) {
        trn_arena *a = trn_arena_new();
        Tensorflow__GraphDef *gd = trn_builder__export(a, b, s->built);
        if (s->lib_version == b->lib_version)
            gd->library = NULL;
        err = extend(s, a, gd);
        trn_arena_free(a);
        if (!err) {
            s->builder = b;
            s->built = b->sent = b->g->n;
            s->lib_version = b->lib_version;
        }
    }
    pthread_mutex_unlock(&s->build_mu);
    return err;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static trn_err take_metadata(const trn_run *run, const void *p, size_t n)
{
    if (!run->trace || !run->metadata)
        return TRN_OK;
    void *copy = malloc(n + 1);
    if (!copy)
        return trn_err_oom();
    if (n)
        memcpy(copy, p, n);
    *run->metadata = copy;
    if (run->metadata_len)
        *run->metadata_len = n;
    return TRN_OK;
}

typedef struct own_step {
    trn_master *master;
    const trn_step_req *q;
    trn_cancel *cancel;
    trn_step_result r;
    wait w;
} own_step;

static void own_step_start(void *arg)
{
    own_step *o = arg;
    trn_master_run(o->master, o->q, o->cancel, &o->r, wait_done, &o->w);
}

static trn_err run_in_process(trn_session *s, const char *partial, const trn_run *run, trn_cancel *cancel)
{
    trn_step_req q = {.session = s->handle, .partial_handle = partial, .n_feeds = run->n_feeds, .n_fetches = run->n_fetches, .n_targets = run->n_targets,
                      .feed_names = run->feed_names, .feeds = run->feeds, .fetches = run->fetches, .targets = run->targets, .timeout_ms = run->timeout_ms,
                      .trace = run->trace};
    own_step o = {.master = s->master, .q = &q, .cancel = cancel};
    wait_init(&o.w);
    trn_loop_drive(trn_master_loop(s->master), own_step_start, &o, &o.w.end);
    if (o.w.err)
        return o.w.err;
    trn_err err = take_metadata(run, o.r.metadata.p, o.r.metadata.n);
    for (int i = 0; !err && i < o.r.n_fetches; i++) {
        run->out[i] = o.r.fetches[i];
        o.r.fetches[i] = NULL;
    }
    trn_step_result_fini(&o.r);
    return err;
}

/* Answers come by name, in any order. */
static trn_err sort_out(const trn_run *run, trn_run_step_resp *r)
{
    for (int i = 0; i < run->n_fetches; i++) {
        trn_tensor *t = NULL;
        for (int k = 0; k < r->n && !t; k++)
            if (!strcmp(r->tensors[k].name, run->fetches[i]))
                t = r->tensors[k].t;
        if (!t) {
            for (int k = 0; k < i; k++)
                trn_tensor_unref(run->out[k]);
            return trn_errorf(TRN_INTERNAL, "the master's answer lacks %s", run->fetches[i]);
        }
        run->out[i] = trn_tensor_ref(t);
    }
    return TRN_OK;
}

static trn_err run_over_wire(trn_session *s, const char *partial, const trn_run *run, trn_cancel *cancel)
{
    trn_arena *a = trn_arena_new();
    trn_named_tensor *feeds = trn_arena_alloc(a, sizeof *feeds * (size_t)(run->n_feeds + 1));
    for (int i = 0; i < run->n_feeds; i++)
        feeds[i] = (trn_named_tensor){run->feed_names[i], run->feeds[i]};
    trn_run_step_req q = {.session = s->handle, .partial_handle = partial, .n_feeds = run->n_feeds, .feeds = feeds, .n_fetches = run->n_fetches,
                          .fetches = (const char **)(void *)run->fetches, .n_targets = run->n_targets, .targets = (const char **)(void *)run->targets,
                          .errors_in_body = true, .request_id = (int64_t)(trn_random64() >> 1), .trace_level = run->trace ? 3 : 0, .timeout_ms = run->timeout_ms};
    trn_out_msg m = {0};
    trn_msg reply = {0};
    trn_err err = trn_run_step_req_put(&m, &q);
    if (err)
        trn_out_fini(&m);
    else
        err = call_msg(&reply, s->channel, PATH "RunStep", &m, &(trn_call_opts){.align = trn_run_step_resp_align}, cancel);
    trn_run_step_resp r = {0};
    if (!err)
        err = trn_run_step_resp_parse(&r, a, &reply);
    if (!err)
        err = r.status;
    if (!err)
        err = sort_out(run, &r);
    if (!err)
        err = take_metadata(run, r.metadata, r.metadata_n);
    trn_named_fini(r.tensors, r.n);
    trn_msg_fini(&reply);
    trn_arena_free(a);
    return err;
}

static trn_err run_step(trn_session *s, const char *partial, const trn_run *run, trn_cancel *cancel)
{
    if (run->n_fetches && !run->out)
        return trn_errorf(TRN_INVALID_ARGUMENT, "fetches without `out`");
    return s->master ? run_in_process(s, partial, run, cancel) : run_over_wire(s, partial, run, cancel);
}

trn_err trn_session_run(trn_session *s, const trn_run *run)
{
    return run_step(s, "", run, NULL);
}

trn_err trn_session_run_until(trn_session *s, const trn_run *run, trn_cancel *c)
{
    return run_step(s, "", run, c);
}

trn_err trn_session_partial_run(trn_session *s, const char *handle, const trn_run *run)
{
    if (!*handle)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a partial run needs the handle of its set-up");
    return run_step(s, handle, run, NULL);
}

trn_err trn_session_partial_setup(char handle[17], trn_session *s, const trn_run *names)
{
    if (s->master) {
        trn_step_req q = {.session = s->handle, .partial_handle = "", .n_feeds = names->n_feeds, .n_fetches = names->n_fetches, .n_targets = names->n_targets,
                          .feed_names = names->feed_names, .fetches = names->fetches, .targets = names->targets};
        wait w;
        wait_init(&w);
        trn_master_partial_setup(s->master, &q, handle, wait_done, &w);
        return wait_for(&w);
    }
    Tensorflow__PartialRunSetupRequest q = TENSORFLOW__PARTIAL_RUN_SETUP_REQUEST__INIT;
    q.session_handle = s->handle;
    q.n_feed = (size_t)names->n_feeds;
    q.feed = (char **)(void *)names->feed_names;
    q.n_fetch = (size_t)names->n_fetches;
    q.fetch = (char **)(void *)names->fetches;
    q.n_target = (size_t)names->n_targets;
    q.target = (char **)(void *)names->targets;
    trn_arena *a = trn_arena_new();
    Tensorflow__PartialRunSetupResponse *r = NULL;
    trn_err err = call_pb((ProtobufCMessage **)(void *)&r, a, &tensorflow__partial_run_setup_response__descriptor, s->channel, PATH "PartialRunSetup", &q.base,
                          &(trn_call_opts){0});
    if (!err && strlen(r->partial_run_handle) > 16)
        err = trn_errorf(TRN_INTERNAL, "the master gave a partial run handle of %zu bytes", strlen(r->partial_run_handle));
    if (!err)
        strcpy(handle, r->partial_run_handle);
    trn_arena_free(a);
    return err;
}

/* ---- devices, end --------------------------------------------------------------------------------------------------- */

static void put_device(trn_device_info *d, const char *name, const char *type, uint64_t incarnation)
{
    *d = (trn_device_info){.incarnation = incarnation};
    strncpy(d->name, name, sizeof d->name - 1);
    strncpy(d->type, type, sizeof d->type - 1);
}

trn_err trn_session_list_devices(trn_device_info **out, int *n, trn_session *s)
{
    if (s->master) {
        trn_device_list l;
        wait w;
        wait_init(&w);
        trn_master_list_devices(s->master, s->handle, NULL, &l, wait_done, &w);
        TRN_TRY(wait_for(&w));
        *n = l.n_local + l.n_remote;
        *out = trn_xalloc(sizeof **out * (size_t)(*n + 1));
        for (int i = 0; i < *n; i++) {
            const trn_device *d = i < l.n_local ? &l.local[i] : &l.remote[i - l.n_local];
            put_device(&(*out)[i], d->name, d->type, d->incarnation);
        }
        trn_arena_free(l.arena);
        return TRN_OK;
    }
    Tensorflow__ListDevicesRequest q = TENSORFLOW__LIST_DEVICES_REQUEST__INIT;
    q.session_handle = s->handle;
    trn_arena *a = trn_arena_new();
    Tensorflow__ListDevicesResponse *r = NULL;
    trn_err err = call_pb((ProtobufCMessage **)(void *)&r, a, &tensorflow__list_devices_response__descriptor, s->channel, PATH "ListDevices", &q.base,
                          &(trn_call_opts){.deadline_ns = deadline(s)});
    if (!err) {
        *n = (int)(r->n_local_device + r->n_remote_device);
        *out = trn_xalloc(sizeof **out * (size_t)(*n + 1));
        for (int i = 0; i < *n; i++) {
            size_t k = (size_t)i;
            const Tensorflow__DeviceAttributes *d = k < r->n_local_device ? r->local_device[k] : r->remote_device[k - r->n_local_device];
            put_device(&(*out)[i], d->name, d->device_type, d->incarnation);
        }
    }
    trn_arena_free(a);
    return err;
}

bool trn_session_is_closed(const trn_session *s) { return atomic_load(&s->closed); }

trn_err trn_session_close(trn_session *s)
{
    if (!s)
        return TRN_OK;
    trn_err err;
    atomic_store(&s->closed, true);
    if (s->master) {
        wait w;
        wait_init(&w);
        trn_master_close(s->master, s->handle, wait_done, &w);
        err = wait_for(&w);
    } else {
        Tensorflow__CloseSessionRequest q = TENSORFLOW__CLOSE_SESSION_REQUEST__INIT;
        q.session_handle = s->handle;
        trn_arena *a = trn_arena_new();
        ProtobufCMessage *r = NULL;
        err = call_pb(&r, a, &tensorflow__close_session_response__descriptor, s->channel, PATH "CloseSession", &q.base, &(trn_call_opts){.deadline_ns = deadline(s)});
        trn_arena_free(a);
    }
    session_free(s);
    return err;
}

trn_err trn_reset(const char *target, const char *const *containers, int n)
{
    trn_channel *ch;
    TRN_TRY(open_channel(&ch, target));
    Tensorflow__ResetRequest q = TENSORFLOW__RESET_REQUEST__INIT;
    q.n_container = (size_t)n;
    q.container = (char **)(void *)containers;
    trn_arena *a = trn_arena_new();
    ProtobufCMessage *r = NULL;
    trn_err err = call_pb(&r, a, &tensorflow__reset_response__descriptor, ch, PATH "Reset", &q.base, &(trn_call_opts){.wait_for_ready = true});
    trn_arena_free(a);
    trn_channel_shutdown(ch);
    trn_channel_unref(ch);
    client_give();
    return err;
}
