/* tensorflow.eager.EagerService on the wire. Calls are answered when everything in them has run: a client that has an answer has its errors too. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "eager/coordination.h"
#include "graph/devname.h"
#include "tensor/tensor_pb.h"
#include "worker/service.h"

#define PATH "/tensorflow.eager.EagerService/"
#define INLINE_BYTES (128 << 10) /* larger requests are taken apart on the pool */
#define NO_OP_ID (-1)            /* results are wanted back at once, not kept */

static void drop_cancel(void *c) { trn_cancel_unref(c); }

static void client_gone(void *c)
{
    trn_cancel_fire(c, trn_err_set_derived(trn_errorf(TRN_CANCELLED, "the call was cancelled by its client")));
}

/* ---- contexts ------------------------------------------------------------------------------------------------------- */

static trn_err make_session(trn_wsession **out, trn_eager *e, uint64_t id, uint64_t view, const Tensorflow__ServerDef *def)
{
    char handle[64];
    snprintf(handle, sizeof handle, "eager_%" PRIu64 "_%" PRIu64, id, view);
    trn_wsession_opts o = {.handle = handle, .isolate = def && def->default_session_config && def->default_session_config->isolate_session_state};
    TRN_TRY(trn_worker_session_from_def(e->w, &o, def));
    return trn_worker_session(out, e->w, handle, true);
}

static Tensorflow__DeviceAttributes **own_devices(size_t *n, trn_arena *a, trn_eager *e)
{
    int count;
    const trn_device *d = trn_worker_devices(e->w, &count);
    Tensorflow__DeviceAttributes **v = trn_arena_alloc(a, sizeof *v * (size_t)count);
    for (int i = 0; i < count; i++)
        v[i] = trn_device_to_pb(a, &d[i]);
    *n = (size_t)count;
    return v;
}

/* How long the others may take for their parts. */
static uint64_t timeout_of(const Tensorflow__ServerDef *def)
{
    int64_t ms = def && def->default_session_config ? def->default_session_config->operation_timeout_in_ms : 0;
    return ms > 0 && ms < INT32_MAX ? (uint64_t)ms * 1000000 : 0;
}

/* `*out`: a reference. */
static trn_err create(trn_ectx **out, trn_eager *e, const Tensorflow__Eager__CreateContextRequest *q)
{
    trn_ectx *old = NULL;
    trn_lock(&e->mu);
    trn_ectx *there = trn_map_geti(e->contexts, q->context_id);
    if (there)
        old = trn_ectx_ref(there);
    bool stopped = e->stopped;
    trn_unlock(&e->mu);
    if (stopped)
        return trn_errorf(TRN_UNAVAILABLE, "%s is shutting down", trn_worker_task(e->w));
    if (old) { /* a coordinator that comes back with a newer view starts over */
        bool stale = q->context_view_id < old->view;
        if (!stale)
            trn_ectx_close(old, TRN_ABORTED, "the context was made anew");
        trn_ectx_unref(old);
        if (stale)
            return trn_errorf(TRN_INVALID_ARGUMENT, "EagerService:CreateContext failed. Context id: <%" PRIu64 "> already exists.", q->context_id);
    }
    trn_wsession *s;
    TRN_TRY(make_session(&s, e, q->context_id, q->context_view_id, q->server_def));
    trn_worker_step_renew(e->w, (int64_t)q->context_id); /* the closed one's is over */
    uint64_t keep = q->keep_alive_secs > 0 && q->keep_alive_secs < INT32_MAX ? (uint64_t)q->keep_alive_secs * 1000000000 : 0;
    trn_ectx *c = trn_ectx_new(e, q->context_id, q->context_view_id, keep);
    c->session = s;
    c->timeout_ns = timeout_of(q->server_def);
    c->devices = trn_edevices_new(e->w, q->cluster_device_attributes, q->n_cluster_device_attributes, s->task);
    trn_lock(&e->mu);
    bool taken = e->stopped || trn_map_geti(e->contexts, c->id);
    if (!taken) {
        trn_map_puti(e->contexts, c->id, c);
        *out = trn_ectx_ref(c);
    }
    trn_unlock(&e->mu);
    if (taken) {
        trn_ectx_close(c, TRN_ABORTED, "");
        trn_ectx_unref(c);
        return trn_errorf(TRN_INVALID_ARGUMENT, "EagerService:CreateContext failed. Context id: <%" PRIu64 "> already exists.", q->context_id);
    }
    TRN_INFO("eager", "context %" PRIu64 " of a coordinator, kept %" PRId64 " s after its last call", q->context_id, q->keep_alive_secs);
    return TRN_OK;
}

/* The answer to CreateContext or UpdateContext, given when the coordination service, if there is one, knows this task, or when the client leaves. Held by
 * whoever brings the answer and by the call's cancellation. */
typedef struct joining {
    _Atomic int ref;
    _Atomic bool answered;
    trn_eager *e;
    trn_call *call;
    trn_arena *arena;
    trn_ectx *ctx;    /* a reference */
    bool made, tells; /* the context is new; our devices are told */
} joining;

static void joining_unref(void *arg)
{
    joining *j = arg;
    if (atomic_fetch_sub(&j->ref, 1) != 1)
        return;
    trn_ectx_unref(j->ctx);
    trn_arena_free(j->arena);
    free(j);
}

static void join_answer(joining *j, trn_err err)
{
    if (atomic_exchange(&j->answered, true)) {
        trn_err_free(err);
        return;
    }
    if (err && j->made && j->ctx)
        trn_ectx_close(j->ctx, trn_err_code(err), trn_err_msg(err));
    if (err) {
        trn_call_reply(j->call, err, NULL);
        return;
    }
    size_t n = 0;
    Tensorflow__DeviceAttributes **devices = j->tells ? own_devices(&n, j->arena, j->e) : NULL;
    if (j->made) {
        Tensorflow__Eager__CreateContextResponse r = TENSORFLOW__EAGER__CREATE_CONTEXT_RESPONSE__INIT;
        r.device_attributes = devices;
        r.n_device_attributes = n;
        trn_reply_pb(j->call, &r.base);
    } else {
        Tensorflow__Eager__UpdateContextResponse r = TENSORFLOW__EAGER__UPDATE_CONTEXT_RESPONSE__INIT;
        r.device_attributes = devices;
        r.n_device_attributes = n;
        trn_reply_pb(j->call, &r.base);
    }
}

static void join_over(void *arg, trn_err err)
{
    join_answer(arg, err);
    joining_unref(arg);
}

static void join_gone(void *arg) { join_answer(arg, trn_errorf(TRN_CANCELLED, "the call was cancelled by its client")); }

static joining *joining_new(trn_eager *e, trn_call *call, trn_arena *a, bool made, bool tells)
{
    joining *j = trn_xalloc(sizeof *j);
    *j = (joining){.e = e, .call = call, .arena = a, .made = made, .tells = tells};
    atomic_init(&j->ref, 1);
    return j;
}

/* `s`: the context's session, new in this call; NULL: none is. */
static void join(joining *j, const Tensorflow__ServerDef *def, const trn_wsession *s, trn_err err)
{
    Tensorflow__CoordinationServiceConfig *cfg = err || !s ? NULL : trn_coord_config(&err, j->arena, def);
    if (cfg) {
        atomic_store(&j->ctx->coordinated, true);
        trn_coord_begin(j->e, cfg, s);
        if (cfg->enable_health_check) {
            atomic_fetch_add(&j->ref, 1);
            trn_call_on_cancel(j->call, join_gone, j, joining_unref);
            trn_agent_connect(j->e, cfg, s, join_over, j);
            return;
        }
    }
    join_over(j, err);
}

static void create_context(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__CreateContextRequest *q = trn_request_pb(a, call, &tensorflow__eager__create_context_request__descriptor);
    if (!q) {
        trn_arena_free(a);
        return;
    }
    joining *j = joining_new(svc, call, a, true, true);
    trn_err err = create(&j->ctx, svc, q);
    join(j, q->server_def, err ? NULL : j->ctx->session, err);
}

/* `*out`: a reference; `*now`: one to the new session, if it got one. */
static trn_err update(trn_ectx **out, trn_wsession **now, trn_eager *e, const Tensorflow__Eager__UpdateContextRequest *q)
{
    trn_ectx *c;
    TRN_TRY(trn_ectx_find(&c, e, q->context_id));
    trn_err err = TRN_OK;
    if (q->context_view_id != c->view + 1)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "EagerService:UpdateContext failed. Context id: <%" PRIu64 "> is at view #%" PRIu64 " and got an update to #%" PRIu64, c->id,
                         c->view, q->context_view_id);
    trn_wsession *s = NULL, *old = NULL;
    if (!err && q->n_cluster_device_attributes) /* none: the change concerns others */
        err = make_session(&s, e, c->id, q->context_view_id, q->server_def);
    trn_edevices *devices = s ? trn_edevices_new(e->w, q->cluster_device_attributes, q->n_cluster_device_attributes, s->task) : NULL, *old_devices = NULL;
    if (!err) {
        trn_lock(&c->mu);
        c->view = q->context_view_id;
        if (s) {
            *now = trn_wsession_ref(s);
            c->timeout_ns = timeout_of(q->server_def);
            old = c->session;
            c->session = s;
            old_devices = c->devices;
            c->devices = devices;
        }
        trn_unlock(&c->mu);
    }
    trn_edevices_unref(old_devices);
    if (old) {
        if (!trn_cluster_eq(old->cluster, s->cluster)) /* what single ops have sent and nobody has fetched goes with the old addresses */
            trn_worker_step_renew(e->w, (int64_t)c->id);
        trn_ectx__forget(c, NULL); /* tasks may have been restarted: their parts are gone */
        trn_err_free(trn_worker_session_del(e->w, old->handle));
        trn_wsession_unref(old);
    }
    *out = c;
    return err;
}

static void update_context(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__UpdateContextRequest *q = trn_request_pb(a, call, &tensorflow__eager__update_context_request__descriptor);
    if (!q) {
        trn_arena_free(a);
        return;
    }
    joining *j = joining_new(svc, call, a, false, q->n_cluster_device_attributes > 0);
    trn_wsession *s = NULL;
    trn_err err = update(&j->ctx, &s, svc, q);
    join(j, q->server_def, s, err);
    trn_wsession_unref(s);
}

static void keep_alive(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__KeepAliveRequest *q = trn_request_pb(a, call, &tensorflow__eager__keep_alive_request__descriptor);
    if (q) {
        trn_ectx *c;
        trn_err err = trn_ectx_find(&c, svc, q->context_id);
        if (err)
            trn_call_reply(call, err, NULL);
        else {
            Tensorflow__Eager__KeepAliveResponse r = TENSORFLOW__EAGER__KEEP_ALIVE_RESPONSE__INIT;
            r.context_view_id = c->view;
            trn_ectx_unref(c);
            trn_reply_pb(call, &r.base);
        }
    }
    trn_arena_free(a);
}

static void close_context(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__CloseContextRequest *q = trn_request_pb(a, call, &tensorflow__eager__close_context_request__descriptor);
    if (q) {
        trn_ectx *c;
        trn_err err = trn_ectx_find(&c, svc, q->context_id);
        if (!err) { /* one that is not there is closed; an older view's wish is not heard */
            if (q->context_view_id >= c->view)
                trn_ectx_close(c, TRN_ABORTED, "the context was closed");
            trn_ectx_unref(c);
        }
        trn_err_free(err);
        trn_call_reply(call, TRN_OK, NULL);
    }
    trn_arena_free(a);
}

static void wait_queue_done(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__WaitQueueDoneRequest *q = trn_request_pb(a, call, &tensorflow__eager__wait_queue_done_request__descriptor);
    if (q) {
        trn_ectx *c;
        trn_err err = trn_ectx_find(&c, svc, q->context_id);
        if (!err) {
            trn_ectx_unref(c);
            if (q->n_op_id)
                err = trn_errorf(TRN_UNIMPLEMENTED, "WaitQueueDone for single ops");
        }
        trn_call_reply(call, err, NULL); /* what was answered has run */
    }
    trn_arena_free(a);
}

/* ---- Enqueue -------------------------------------------------------------------------------------------------------- */

typedef struct enqueue {
    trn_eager *e;
    trn_call *call;
    trn_arena *arena;
    Tensorflow__Eager__EnqueueRequest *q;
    Tensorflow__Eager__QueueResponse **r;
    trn_ectx *ctx;
    trn_cancel *cancel;
    size_t at;
    size_t left; /* of what the tensors of the request may take beyond its bytes */
    _Atomic int turn; /* an op may end before the call that started it returns, or much later */
    trn_err err;
} enqueue;

static void enqueue_end(enqueue *c)
{
    if (c->err)
        trn_call_reply(c->call, c->err, NULL);
    else {
        Tensorflow__Eager__EnqueueResponse r = TENSORFLOW__EAGER__ENQUEUE_RESPONSE__INIT;
        r.n_queue_response = c->q->n_queue;
        r.queue_response = c->r;
        trn_reply_pb(c->call, &r.base);
    }
    trn_ectx_unref(c->ctx);
    trn_cancel_unref(c->cancel);
    trn_arena_free(c->arena);
    free(c);
}

static void enqueue_go(enqueue *c);

/* Results stay here under the op's id; the client learns their shapes. */
static void keep_results(Tensorflow__TensorShapeProto ***shapes, size_t *n_shapes, Tensorflow__TensorProto ***tensors, size_t *n_tensors, trn_arena *a, trn_ectx *ctx,
                         int64_t op_id, const int32_t *output_num, size_t n_num, const trn_eout *outs, int n)
{
    *shapes = trn_arena_alloc(a, sizeof **shapes * (size_t)(n + 1));
    *tensors = trn_arena_alloc(a, sizeof **tensors * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        if (op_id == NO_OP_ID) {
            Tensorflow__TensorProto *pb = outs[i].t ? trn_tensor_to_pb(a, outs[i].t) : NULL;
            if (!pb)
                continue;
            if (pb->tensor_content.len) { /* the reply outlives the tensor */
                uint8_t *copy = trn_arena_alloc(a, pb->tensor_content.len);
                memcpy(copy, pb->tensor_content.data, pb->tensor_content.len);
                pb->tensor_content.data = copy;
            }
            (*tensors)[(*n_tensors)++] = pb;
            continue;
        }
        (*shapes)[(*n_shapes)++] = trn_shape_to_pb(a, &outs[i].shape);
        if (outs[i].t)
            trn_ectx_put(ctx, op_id, i < (int)n_num ? output_num[i] : i, outs[i].t);
    }
}

static void op_done(void *arg, trn_err err, const trn_eout *outs, int n)
{
    enqueue *c = arg;
    const Tensorflow__Eager__Operation *op = c->q->queue[c->at]->operation;
    Tensorflow__Eager__QueueResponse *r = c->r[c->at];
    c->err = err;
    if (!err)
        keep_results(&r->shape, &r->n_shape, &r->tensor, &r->n_tensor, c->arena, c->ctx, op->id, NULL, 0, outs, n);
    if (!err && op->is_function && op->id != NO_OP_ID) {
        r->device = trn_arena_alloc(c->arena, sizeof *r->device * (size_t)(n + 1));
        r->n_device = (size_t)n;
        for (int i = 0; i < n; i++)
            r->device[i] = outs[i].device ? trn_arena_strdup(c->arena, outs[i].device) : ""; /* TensorFlow's name for a task's own CPU */
    }
    c->at++;
    if (atomic_exchange(&c->turn, 1) == 1)
        enqueue_go(c);
}

static trn_err check_device(trn_ectx *ctx, const char *name)
{
    trn_devname d, me;
    trn_lock(&ctx->mu);
    const char *task = ctx->session->task;
    trn_err err = trn_devname_parse(&me, task, strlen(task));
    trn_unlock(&ctx->mu);
    if (!err && *name) {
        err = trn_devname_parse(&d, name, strlen(name));
        if (err || !trn_devname_compatible(&d, &me)) {
            trn_err_free(err);
            err = trn_errorf(TRN_INVALID_ARGUMENT, "%s unknown device.", name);
        }
    }
    return err;
}

static trn_err send_tensor(trn_ectx *ctx, const Tensorflow__Eager__SendTensorOp *s, size_t *left)
{
    TRN_TRY(check_device(ctx, s->device_name));
    for (size_t i = 0; i < s->n_tensors; i++) {
        trn_tensor *t;
        TRN_TRY(trn_etensor_from_pb(&t, s->tensors[i], left));
        trn_ectx_put(ctx, s->op_id, (int)i, t);
        trn_tensor_unref(t);
    }
    return TRN_OK;
}

/* Everything but an op is done at once. */
static trn_err small_item(trn_ectx *ctx, const Tensorflow__Eager__QueueItem *i, size_t *left)
{
    switch (i->item_case) {
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_HANDLE_TO_DECREF:
        return trn_ectx_drop(ctx, i->handle_to_decref);
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_SEND_TENSOR:
        return send_tensor(ctx, i->send_tensor, left);
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_SEND_PACKED_HANDLE:
        return trn_ectx_pack(ctx, i->send_packed_handle, left);
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_REGISTER_FUNCTION:
        return trn_ectx_add_functions(ctx, i->register_function);
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_REMOVE_FUNCTION:
        return trn_ectx_remove_function(ctx, i->remove_function->function_name);
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_CLEANUP_FUNCTION:
        trn_ectx_clean_step(ctx, i->cleanup_function->step_id);
        return TRN_OK;
    case TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_SYNC_REMOTE_EXECUTOR_FOR_STREAM:
        return TRN_OK;
    default:
        return trn_errorf(TRN_UNIMPLEMENTED, "a queue item of a kind that is not known here");
    }
}

static void enqueue_go(enqueue *c)
{
    while (c->at < c->q->n_queue && !c->err) {
        const Tensorflow__Eager__QueueItem *i = c->q->queue[c->at];
        if (i->item_case != TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_OPERATION) {
            c->err = small_item(c->ctx, i, &c->left);
            c->at++;
            continue;
        }
        atomic_store(&c->turn, 0);
        trn_ectx_run(c->ctx, i->operation, &c->left, c->cancel, op_done, c);
        if (atomic_exchange(&c->turn, 1) == 0)
            return; /* op_done goes on */
    }
    enqueue_end(c);
}

static void enqueue_parse(void *arg)
{
    enqueue *c = arg;
    c->arena = trn_arena_new();
    c->q = trn_request_pb(c->arena, c->call, &tensorflow__eager__enqueue_request__descriptor);
    if (!c->q) { /* answered */
        trn_cancel_unref(c->cancel);
        trn_arena_free(c->arena);
        free(c);
        return;
    }
    c->r = trn_arena_alloc(c->arena, sizeof *c->r * (c->q->n_queue + 1));
    for (size_t i = 0; i < c->q->n_queue; i++) {
        c->r[i] = trn_arena_alloc(c->arena, sizeof **c->r);
        tensorflow__eager__queue_response__init(c->r[i]);
    }
    c->err = trn_ectx_find(&c->ctx, c->e, c->q->context_id);
    enqueue_go(c);
}

static void enqueue_call(void *svc, trn_call *call)
{
    enqueue *c = trn_xalloc(sizeof *c);
    *c = (enqueue){.e = svc, .call = call, .left = TRN_PB_FILL_MAX, .cancel = trn_cancel_new()};
    trn_call_on_cancel(call, client_gone, trn_cancel_ref(c->cancel), drop_cancel);
    if (trn_call_request(call)->n > INLINE_BYTES)
        trn_pool_submit(c->e->w->env->pool, enqueue_parse, c);
    else
        enqueue_parse(c);
}

/* ---- RunComponentFunction ------------------------------------------------------------------------------------------- */

typedef struct component {
    trn_call *call;
    trn_arena *arena;
    Tensorflow__Eager__RunComponentFunctionRequest *q;
    trn_ectx *ctx;
    trn_cancel *cancel;
} component;

static void component_done(void *arg, trn_err err, const trn_eout *outs, int n)
{
    component *c = arg;
    if (err)
        trn_call_reply(c->call, err, NULL);
    else {
        Tensorflow__Eager__RunComponentFunctionResponse r = TENSORFLOW__EAGER__RUN_COMPONENT_FUNCTION_RESPONSE__INIT;
        keep_results(&r.shape, &r.n_shape, &r.tensor, &r.n_tensor, c->arena, c->ctx, c->q->operation->id, c->q->output_num, c->q->n_output_num, outs, n);
        trn_reply_pb(c->call, &r.base);
    }
    trn_ectx_unref(c->ctx);
    trn_cancel_unref(c->cancel);
    trn_arena_free(c->arena);
    free(c);
}

static void run_component(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__Eager__RunComponentFunctionRequest *q = trn_request_pb(a, call, &tensorflow__eager__run_component_function_request__descriptor);
    if (!q) {
        trn_arena_free(a);
        return;
    }
    trn_ectx *ctx = NULL;
    trn_err err = trn_ectx_find(&ctx, svc, q->context_id);
    if (!err && (!q->operation || !q->operation->is_function || !q->operation->is_component_function))
        err = trn_errorf(TRN_INTERNAL, "RunComponentFunction runs component functions only");
    if (err) {
        trn_call_reply(call, err, NULL);
        trn_ectx_unref(ctx);
        trn_arena_free(a);
        return;
    }
    component *c = trn_xalloc(sizeof *c);
    *c = (component){call, a, q, ctx, trn_cancel_new()};
    trn_call_on_cancel(call, client_gone, trn_cancel_ref(c->cancel), drop_cancel);
    size_t left = TRN_PB_FILL_MAX;
    trn_ectx_run(ctx, q->operation, &left, c->cancel, component_done, c);
}

void trn_eager_serve(trn_rpc_server *s, trn_eager *e)
{
    static const trn_rpc_method methods[] = {
        {PATH "CreateContext", create_context, NULL, 0},
        {PATH "UpdateContext", update_context, NULL, 0},
        {PATH "Enqueue", enqueue_call, NULL, 0},
        {PATH "StreamingEnqueue", enqueue_call, NULL, 0, true},
        {PATH "RunComponentFunction", run_component, NULL, 0},
        {PATH "WaitQueueDone", wait_queue_done, NULL, 0},
        {PATH "KeepAlive", keep_alive, NULL, 0},
        {PATH "CloseContext", close_context, NULL, 0},
        {0},
    };
    trn_rpc_server_add(s, methods, e);
    trn_coord_serve(s, e);
}
