/* Synchronous replicas.
 *
 * The protocol is TensorFlow's. A worker that holds a token (the number of a step) works out a gradient, gives it, marked with that number, to an
 * accumulator per variable on the ps, and takes the next token from a queue. Accumulators drop gradients of steps that are over. The chief's loop takes
 * the mean of N gradients from each accumulator, applies it, counts the step and puts max(N, total) tokens of the new step into the queue.
 *
 * Why it must not hang: every token of the present step is in the queue, in a worker's hand, or has become a gradient. While that holds, at least
 * N gradients come, because each worker takes as many tokens as it finds. TensorFlow's optimizer breaks it when a worker ends: between two steps
 * a worker always holds a token. So here a worker that ends puts its token back. One that died cannot: the chief, when nothing has moved for a while
 * and the queue is empty, puts one in for it (one too many does no harm: its gradient is dropped or makes the mean of the step better). When the chief
 * ends, nobody makes tokens any more: it closes the queue, and the others get OUT_OF_RANGE instead of waiting for ever.
 *
 * A queue that was closed stays closed on a ps that lives on. The next chief therefore destroys it and makes a new one under the same name, and workers
 * that find a closed queue at the start wait for that. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "graph/builder.h"
#include "session/session.h"
#include "train/optim_int.h"

/* So long an update may take that is being made when the chief ends. */
#define UPDATE_MS 100
#define UPDATE_BYTES_PER_MS 100000
#define CHIEF_GONE_MS 30000 /* a worker that finds a closed queue waits so long for a chief */

struct trn_sync_graph {
    int aggregate, total;
    trn_variable *global_step, *local_step, *stale;
    trn_out queue, local_init, chief_init, sync_op, train_op;
    const char *gs_device;
    int64_t bytes; /* of all gradients */
    /* Names for the run time, which has no builder. */
    const char *n_local_init, *n_chief_init, *n_sync, *n_leave, *n_close, *n_closed, *n_destroy, *n_reopen, *n_size, *n_counts, *n_step, *n_tokens, *n_put;
};

trn_optimizer *trn_sync_replicas(trn_builder *b, trn_optimizer *opt, int replicas_to_aggregate, int total_replicas)
{
    trn_optimizer *o = trn_builder_alloc(b, sizeof *o);
    o->b = b;
    o->name = trn_builder_strdup(b, trn_take_name(b, "sync_replicas"));
    o->inner = opt;
    o->sync = trn_builder_alloc(b, sizeof *o->sync);
    trn_sync_graph *g = o->sync;
    g->aggregate = replicas_to_aggregate;
    g->total = total_replicas;
    g->queue = g->local_init = g->chief_init = g->sync_op = g->train_op = TRN_NONE;
    if (trn_builder_ok(b) && (replicas_to_aggregate < 1 || total_replicas < 1))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: %d gradients of %d replicas", o->name, replicas_to_aggregate, total_replicas));
    else if (trn_builder_ok(b) && opt->inner)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the optimizer to wrap is one of replicas already", o->name));
    return o;
}

/* ---- the graph ------------------------------------------------------------------------------------------------------ */

/* Like tf.device(d): an empty one says nothing, while an empty trn_device_scope says "none". */
static void device_scope(trn_builder *b, const char *device)
{
    if (device && *device)
        trn_device_scope(b, device);
    else
        trn_name_scope_again(b, trn_scope_name(b));
}

static trn_variable *local_variable(trn_builder *b, const char *name, trn_dtype dtype, trn_out anchor)
{
    trn_variable *v;
    TRN_SCOPE(trn_control_scope(b, NULL, 0), b)
    TRN_SCOPE(trn_colocate_scope(b, anchor), b) /* else a device setter would put it on a ps, for all workers */
    v = trn_variable_new(b, name, trn_const_num(trn_named(b, trn_builder_printf(b, "%s/initial_value", name)), dtype, 0),
                         TRN_LOCAL | TRN_NOT_TRAINABLE | TRN_NOT_SAVED);
    return v;
}

static trn_out assign(trn_builder *b, const char *name, trn_variable *v, trn_out value)
{
    trn_out o = TRN_NONE;
    TRN_SCOPE(trn_colocate_scope(b, v->handle), b)
    o = trn_out_node(TRN_OP(b, name, trn_optim__is_ref(b, v) ? "Assign" : "AssignVariableOp", v->handle, value));
    return o;
}

static trn_out token_queue(trn_builder *b, const char *name)
{
    trn_attr_val type = {.type = TRN_INT64};
    trn_shape scalar = trn_shape_scalar();
    trn_attr_val shape = {.shape = &scalar};
    trn_attr at[] = {{.name = "component_types", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = &type},
                     {.name = "shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = 1, .list = &shape},
                     trn_at_int("capacity", -1),
                     trn_at_str("shared_name", "sync_token_q"),
                     trn_at_str("container", "")};
    return trn_node_add(trn_named(b, name), "FIFOQueueV2", NULL, 0, at, 5);
}

/* n[0] tokens of the step that is now. */
static trn_out put_tokens(trn_builder *b, trn_sync_graph *g, const char *name, trn_out n)
{
    trn_out tokens = TRN_OP(b, NULL, "Fill", n, trn_variable_read(b, g->global_step));
    return trn_out_node(TRN_OP(b, name, "QueueEnqueueManyV2", g->queue, tokens));
}

typedef struct accum {
    trn_out handle, apply;
    const char *device;
    bool sparse;
} accum;

/* One variable: the accumulator, this worker's contribution, and the mean for the update. */
static trn_grad aggregate(accum *a, trn_optimizer *o, const trn_grad_var *gv)
{
    trn_builder *b = o->b;
    trn_sync_graph *g = o->sync;
    const trn_variable *v = gv->var;
    trn_grad mean = TRN_NO_GRAD;
    trn_shape shape = v->shape, scalar = trn_shape_scalar();
    a->sparse = trn_grad_is_sparse(gv->grad);
    a->device = trn_out_op(b, v->handle)->device;
    trn_attr at[] = {trn_at_type("dtype", v->dtype), trn_at_shape("shape", a->sparse ? &scalar : &shape), trn_at_str("container", ""),
                     trn_at_str("shared_name", trn_builder_printf(b, "%s:0/grad_accum", v->name)), trn_at_str("reduction_type", "MEAN")};
    trn_attr type = trn_at_type("dtype", v->dtype);
    TRN_SCOPE(device_scope(b, a->device), b)
    {
        trn_out step = trn_optim__cast(b, g->local_step->value, TRN_INT64), need = trn_const_i32(trn_named(b, "num_required"), g->aggregate);
        if (!a->sparse) {
            a->handle = trn_node_add(trn_named(b, "conditional_accumulator"), "ConditionalAccumulator", NULL, 0, at, 5);
            a->apply = trn_node_add(b, "AccumulatorApplyGradient", TRN_OUTS(a->handle, step, gv->grad.values), &type, 1);
            mean.values = trn_node_add(b, "AccumulatorTakeGradient", TRN_OUTS(a->handle, need), &type, 1);
        } else {
            bool known = trn_out_is(gv->grad.dense_shape);
            trn_attr more[] = {type, trn_at_bool("has_known_shape", known)};
            trn_out dims = known ? trn_optim__cast(b, gv->grad.dense_shape, TRN_INT64)
                                 : trn_const(b, trn_tensor_from(TRN_INT64, 1, (int64_t[]){0}, &(int64_t){0}));
            a->handle = trn_node_add(trn_named(b, "sparse_conditional_accumulator"), "SparseConditionalAccumulator", NULL, 0, at, 5);
            a->apply = trn_node_add(b, "SparseAccumulatorApplyGradient",
                                    TRN_OUTS(a->handle, step, trn_optim__cast(b, gv->grad.indices, TRN_INT64), gv->grad.values, dims), more, 2);
            mean.indices = trn_node_add(b, "SparseAccumulatorTakeGradient", TRN_OUTS(a->handle, need), &type, 1);
            mean.values = trn_out_nth(mean.indices, 1);
            mean.dense_shape = trn_out_nth(mean.indices, 2);
        }
        a->apply = trn_out_node(a->apply);
    }
    return mean;
}

/* Late gradients are known to be late when global_step has passed their step: an accumulator's own step is never behind it. The look comes before the
 * gradient reaches the accumulators beside global_step, so what is counted was dropped; missed is only what falls between an update's taking and its end. */
static trn_out count_stale(trn_optimizer *o, const trn_grad_var *gv, int n, const accum *a, int n_a)
{
    trn_builder *b = o->b;
    trn_sync_graph *g = o->sync;
    trn_out *grads = trn_builder_alloc(b, (size_t)n * sizeof *grads), late = TRN_NONE, add = TRN_NONE;
    int n_grads = 0;
    for (int i = 0; i < n; i++)
        if (trn_grad_is(gv[i].grad))
            grads[n_grads++] = trn_out_node(gv[i].grad.values);
    trn_out ready = trn_group(trn_named(b, "gradients_ready"), grads, n_grads);
    TRN_SCOPE(device_scope(b, g->gs_device), b)
    {
        trn_out now = TRN_NONE;
        TRN_SCOPE(trn_control_scope(b, &ready, 1), b)
        now = trn_variable_read(b, g->global_step);
        for (int i = 0; i < n_a; i++)
            if (strcmp(a[i].device, g->gs_device) == 0)
                trn_control_add(b, a[i].apply, trn_out_node(now));
        late = TRN_OP(b, "late", "Less", g->local_step->value, now);
    }
    TRN_SCOPE(trn_colocate_scope(b, g->stale->handle), b)
    add = trn_out_node(TRN_OP(b, "count_late", trn_optim__is_ref(b, g->stale) ? "AssignAdd" : "AssignAddVariableOp", g->stale->handle,
                              trn_optim__cast(b, late, TRN_INT64)));
    return add;
}

/* What the run time needs beyond TensorFlow's ops; the names stay in a scope of their own. */
static void manage(trn_optimizer *o, const accum *a, int n_a)
{
    trn_builder *b = o->b;
    trn_sync_graph *g = o->sync;
    trn_out *counts = trn_builder_alloc(b, (size_t)n_a * sizeof *counts);
    TRN_SCOPE(trn_name_scope(b, "manage"), b)
    {
        for (int i = 0; i < n_a; i++)
            TRN_SCOPE(device_scope(b, a[i].device), b)
            counts[i] = TRN_OP(b, NULL, "AccumulatorNumAccumulated", a[i].handle);
        TRN_SCOPE(device_scope(b, g->gs_device), b)
        {
            trn_attr no = trn_at_bool("cancel_pending_enqueues", false), lost = trn_at_bool("ignore_lookup_error", true);
            g->n_counts = trn_out_name(b, trn_node_add(b, "Pack", counts, n_a, NULL, 0));
            g->n_step = trn_out_name(b, trn_variable_read(b, g->global_step));
            g->n_leave = trn_out_name(b, trn_out_node(TRN_OP(b, "leave", "QueueEnqueueV2", g->queue, g->local_step->value)));
            g->n_close = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "close"), "QueueCloseV2", &g->queue, 1, &no, 1)));
            g->n_closed = trn_out_name(b, TRN_OP(b, NULL, "QueueIsClosedV2", g->queue));
            g->n_size = trn_out_name(b, TRN_OP(b, NULL, "QueueSizeV2", g->queue));
            g->n_destroy = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "destroy"), "DestroyResourceOp", &g->queue, 1, &lost, 1)));
            g->n_reopen = trn_out_name(b, TRN_OP(b, NULL, "QueueSizeV2", token_queue(b, "sync_token_q")));
            trn_out n = trn_placeholder(b, "n_tokens", TRN_INT32, trn_shape_vector(1));
            g->n_tokens = trn_out_name(b, n);
            g->n_put = trn_out_name(b, put_tokens(b, g, "put_tokens", n));
        }
    }
}

trn_out trn_sync__apply(trn_optimizer *o, const trn_grad_var *gv, int n, trn_variable *global_step)
{
    trn_builder *b = o->b;
    trn_sync_graph *g = o->sync;
    if (!global_step)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the global step is needed, it says which gradients are late", o->name));
    if (global_step->dtype != TRN_INT64)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: the global step is %s, int64 is wanted", o->name, trn_dtype_name(global_step->dtype)));
    if (g->global_step)
        return trn_builder_fail(b, trn_errorf(TRN_FAILED_PRECONDITION, "%s: gradients are applied once only", o->name));
    g->global_step = global_step;
    g->gs_device = trn_out_op(b, global_step->handle)->device;
    trn_out anchor = trn_node_add(trn_named(b, "NoOp"), "NoOp", NULL, 0, NULL, 0);
    g->local_step = local_variable(b, "sync_rep_local_step", TRN_INT64, anchor);
    g->stale = local_variable(b, "sync_rep_stale_count", TRN_INT64, anchor);
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_out set_step = assign(b, "sync_rep_local_step_init", g->local_step, global_step->value);
    g->local_init = trn_group(trn_named(b, "sync_rep_local_init"), TRN_OUTS(set_step, g->stale->init));
    accum *acc = trn_builder_alloc(b, (size_t)n * sizeof *acc);
    trn_grad_var *mean = trn_builder_alloc(b, (size_t)n * sizeof *mean);
    trn_out *applied = trn_builder_alloc(b, (size_t)(n + 1) * sizeof *applied), *first = trn_builder_alloc(b, (size_t)(n + 1) * sizeof *first);
    int n_acc = 0;
    TRN_SCOPE(trn_name_scope_again(b, ""), b)
    TRN_SCOPE(trn_name_scope(b, o->name), b)
    {
        for (int i = 0; i < n && trn_builder_ok(b); i++) {
            mean[i] = (trn_grad_var){TRN_NO_GRAD, gv[i].var};
            if (!trn_grad_is(gv[i].grad))
                continue;
            mean[i].grad = aggregate(&acc[n_acc], o, &gv[i]);
            applied[n_acc] = acc[n_acc].apply;
            int64_t count = 0;
            trn_err err = trn_shape_count(&count, &gv[i].var->shape);
            trn_err_free(err);
            g->bytes += count * (int64_t)trn_dtype_size(gv[i].var->dtype);
            n_acc++;
        }
        trn_out late = trn_builder_ok(b) ? count_stale(o, gv, n, acc, n_acc) : TRN_NONE;
        TRN_SCOPE(device_scope(b, g->gs_device), b)
        {
            trn_out update = TRN_NONE, token = TRN_NONE;
            int32_t per_step = TRN_MAX(g->aggregate, g->total);
            TRN_SCOPE(trn_name_scope_again(b, ""), b)
            {
                update = trn_apply_gradients(o->inner, mean, n, global_step);
                g->queue = token_queue(b, "sync_token_q");
            }
            trn_attr_val type = {.type = TRN_INT64};
            trn_attr types = {.name = "component_types", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = &type};
            TRN_SCOPE(trn_control_scope(b, applied, n_acc), b)
            token = trn_node_add(trn_named(b, "sync_token_q_Dequeue"), "QueueDequeueV2", &g->queue, 1, &types, 1);
            if (trn_builder_ok(b))
                TRN_SCOPE(trn_control_scope(b, &late, 1), b)
                g->train_op = assign(b, "train", g->local_step, token);
            if (trn_builder_ok(b))
                TRN_SCOPE(trn_control_scope(b, &update, 1), b)
                g->sync_op = put_tokens(b, g, "sync_token_q_EnqueueMany", trn_const_i32s(b, &per_step, 1));
        }
        first[0] = g->local_init;
        for (int i = 0; i < n_acc && trn_builder_ok(b); i++)
            TRN_SCOPE(device_scope(b, acc[i].device), b)
            first[i + 1] = trn_out_node(TRN_OP(b, "SetGlobalStep", "AccumulatorSetGlobalStep", acc[i].handle, global_step->value));
        if (trn_builder_ok(b)) {
            g->chief_init = trn_group(trn_named(b, "chief_init"), first, n_acc + 1);
            manage(o, acc, n_acc);
        }
    }
    if (!trn_builder_ok(b))
        return TRN_NONE;
    g->n_local_init = trn_out_name(b, g->local_init);
    g->n_chief_init = trn_out_name(b, g->chief_init);
    g->n_sync = trn_out_name(b, g->sync_op);
    trn_collect(b, "train_op", g->train_op);
    return g->train_op;
}

static trn_sync_graph *applied(const trn_optimizer *o, const char *what)
{
    if (o->sync && trn_out_is(o->sync->train_op))
        return o->sync;
    if (trn_builder_ok(o->b))
        trn_builder_fail(o->b, trn_errorf(TRN_FAILED_PRECONDITION, "%s: %s", what,
                                          o->sync ? "gradients have not been applied yet" : "this optimizer was not made by trn_sync_replicas"));
    return NULL;
}

trn_out trn_sync_local_init(const trn_optimizer *o)
{
    const trn_sync_graph *g = applied(o, "trn_sync_local_init");
    return g ? g->local_init : TRN_NONE;
}

trn_out trn_sync_chief_init(const trn_optimizer *o)
{
    const trn_sync_graph *g = applied(o, "trn_sync_chief_init");
    return g ? g->chief_init : TRN_NONE;
}

trn_out trn_sync_op(const trn_optimizer *o)
{
    const trn_sync_graph *g = applied(o, "trn_sync_op");
    return g ? g->sync_op : TRN_NONE;
}

trn_out trn_sync_local_step(const trn_optimizer *o)
{
    const trn_sync_graph *g = applied(o, "trn_sync_local_step");
    return g ? g->local_step->value : TRN_NONE;
}

trn_out trn_sync_stale_count(const trn_optimizer *o)
{
    const trn_sync_graph *g = applied(o, "trn_sync_stale_count");
    return g ? g->stale->value : TRN_NONE;
}

trn_out trn_sync_init_tokens(trn_optimizer *o, int num_tokens)
{
    trn_builder *b = o->b;
    trn_sync_graph *g = applied(o, "trn_sync_init_tokens");
    trn_out op = TRN_NONE;
    if (!g)
        return op;
    int need = g->aggregate - g->total, n = num_tokens == -1 ? g->aggregate : num_tokens;
    if (n < need || n < 0)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: %d tokens to begin with, at least %d are needed for the first step", o->name, num_tokens, need));
    TRN_SCOPE(trn_name_scope_again(b, ""), b)
    TRN_SCOPE(device_scope(b, g->gs_device), b)
    op = n ? put_tokens(b, g, "init_tokens", trn_const_i32s(b, (int32_t[]){n}, 1)) : trn_node_add(trn_named(b, "no_init_tokens"), "NoOp", NULL, 0, NULL, 0);
    return op;
}

/* ---- run time ------------------------------------------------------------------------------------------------------- */

struct trn_sync {
    const trn_sync_graph *g;
    trn_session *session;
    bool chief, stopping, running, started, watching;
    int64_t stall_ms;
    pthread_t runner, watch;
    trn_cancel *cancel;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    trn_err err;       /* what ended the runner, until somebody asks */
    uint64_t moved_ns; /* the last update */
};

static trn_err run_op(trn_session *s, const char *op, int64_t timeout_ms)
{
    return trn_session_run(s, &(trn_run){.targets = &op, .n_targets = 1, .timeout_ms = timeout_ms});
}

static trn_err ask_bool(bool *out, trn_session *s, const char *name)
{
    trn_tensor *t;
    TRN_TRY(trn_session_run(s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t}));
    *out = *(const bool *)trn_tensor_data(t);
    trn_tensor_unref(t);
    return TRN_OK;
}

static trn_err put(trn_session *s, const trn_sync_graph *g, int32_t n, int64_t timeout_ms)
{
    trn_tensor *t = trn_tensor_from(TRN_INT32, 1, (int64_t[]){1}, &n);
    if (!t)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "out of memory");
    trn_err err = trn_session_run(s, &(trn_run){.feed_names = &g->n_tokens, .feeds = &t, .n_feeds = 1, .targets = &g->n_put, .n_targets = 1, .timeout_ms = timeout_ms});
    trn_tensor_unref(t);
    return err;
}

static void drop(trn_err err) { trn_err_free(err); }

/* With the lock held. */
static void wait_for(trn_sync *s, uint64_t ns)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    uint64_t at = (uint64_t)ts.tv_nsec + ns;
    ts.tv_sec += (time_t)(at / 1000000000);
    ts.tv_nsec = (long)(at % 1000000000);
    pthread_cond_timedwait(&s->cv, &s->mu, &ts);
}

static void *runner_main(void *arg)
{
    trn_sync *s = arg;
    trn_err err = TRN_OK;
    while (!err) {
        err = trn_session_run_until(s->session, &(trn_run){.targets = &s->g->n_sync, .n_targets = 1}, s->cancel);
        pthread_mutex_lock(&s->mu);
        s->moved_ns = trn_now_ns();
        pthread_mutex_unlock(&s->mu);
    }
    trn_code code = trn_err_code(err);
    pthread_mutex_lock(&s->mu);
    s->running = false;
    pthread_cond_broadcast(&s->cv);
    /* A lost task is seen by the training loop itself; the end of the session, or of the queue, is no error. */
    bool ours = !s->stopping && !trn_session_is_closed(s->session) && code != TRN_CANCELLED && code != TRN_ABORTED && code != TRN_UNAVAILABLE && code != TRN_OUT_OF_RANGE;
    if (ours) {
        s->err = trn_err_wrap(err, "in the chief's aggregation of gradients");
        trn_log(TRN_LOG_ERROR, "sync", "%s", trn_err_msg(s->err));
    } else
        trn_err_free(err);
    pthread_mutex_unlock(&s->mu);
    if (ours) { /* everybody waits for tokens that will not come */
        drop(run_op(s->session, s->g->n_close, 5000));
    }
    return NULL;
}

/* What the ps knows: tokens in the queue, gradients in the emptiest accumulator, the step. */
typedef struct state {
    int32_t tokens, gradients;
    int64_t step;
} state;

static bool ask_state(state *out, trn_sync *s)
{
    const char *names[] = {s->g->n_size, s->g->n_counts, s->g->n_step};
    trn_tensor *t[3];
    trn_err err = trn_session_run_until(s->session, &(trn_run){.fetches = names, .n_fetches = 3, .out = t, .timeout_ms = 5000}, s->cancel);
    if (err) { /* whoever trains hears of it too */
        trn_err_free(err);
        return false;
    }
    out->tokens = *(const int32_t *)trn_tensor_data(t[0]);
    out->step = *(const int64_t *)trn_tensor_data(t[2]);
    out->gradients = INT32_MAX;
    for (int64_t i = 0; i < trn_tensor_count(t[1]); i++)
        out->gradients = TRN_MIN(out->gradients, ((const int32_t *)trn_tensor_data(t[1]))[i]);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(t[i]);
    return true;
}

/* Nothing has moved for a while: is it for want of a token? */
static void look(trn_sync *s, double secs)
{
    state now;
    if (!ask_state(&now, s) || now.gradients >= s->g->aggregate)
        return;
    if (now.tokens > 0)
        trn_log(TRN_LOG_WARN, "sync", "step %lld has waited %.0f s with %d of %d gradients, and no worker takes the %d tokens that are there", (long long)now.step, secs,
                now.gradients, s->g->aggregate, now.tokens);
    else {
        trn_log(TRN_LOG_WARN, "sync", "step %lld has waited %.0f s with %d of %d gradients; a worker seems to be lost: another gets its token", (long long)now.step, secs,
                now.gradients, s->g->aggregate);
        drop(put(s->session, s->g, 1, 5000));
    }
}

/* Not the chief: only says whom everybody waits for. */
static void look_on(trn_sync *s, state *before, double secs)
{
    state now;
    if (!ask_state(&now, s))
        return;
    if (now.step == before->step && now.tokens == 0 && now.gradients < s->g->aggregate)
        trn_log(TRN_LOG_WARN, "sync", "step %lld has waited %.0f s with %d of %d gradients: other workers are slow or lost", (long long)now.step, secs, now.gradients,
                s->g->aggregate);
    else if (now.step == before->step && now.tokens == 0)
        trn_log(TRN_LOG_WARN, "sync", "step %lld has waited %.0f s with all of its %d gradients: the chief does not take them, is it there?", (long long)now.step, secs,
                s->g->aggregate);
    if (now.step != before->step) {
        pthread_mutex_lock(&s->mu);
        s->moved_ns = trn_now_ns();
        pthread_mutex_unlock(&s->mu);
    }
    *before = now;
}

static void *watch_main(void *arg)
{
    trn_sync *s = arg;
    int64_t patience = s->stall_ms;
    uint64_t seen = 0;
    state before = {.step = -1};
    pthread_mutex_lock(&s->mu);
    while (!s->stopping && (s->running || !s->chief)) {
        uint64_t now = trn_now_ns(), due = s->moved_ns + (uint64_t)patience * 1000000;
        if (s->moved_ns != seen) {
            seen = s->moved_ns;
            patience = s->stall_ms;
        } else if (now >= due) {
            double secs = (double)(now - s->moved_ns) / 1e9;
            pthread_mutex_unlock(&s->mu);
            if (s->chief)
                look(s, secs);
            else
                look_on(s, &before, secs);
            pthread_mutex_lock(&s->mu);
            patience = TRN_MIN(patience * 2, INT64_MAX / 4000000); /* slow is not lost: less often each time */
        } else
            wait_for(s, TRN_MIN(due - now, (uint64_t)1000000000));
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* A closed queue is from a run before this one. */
static trn_err open_queue(trn_sync *s)
{
    bool closed;
    uint64_t since = trn_now_ns(), said = since;
    for (int64_t nap = 20;; nap = TRN_MIN(2 * nap, 500)) {
        TRN_TRY(ask_bool(&closed, s->session, s->g->n_closed));
        if (!closed)
            return TRN_OK;
        if (s->chief) {
            TRN_TRY(run_op(s->session, s->g->n_destroy, 0));
            trn_tensor *t;
            TRN_TRY(trn_session_run(s->session, &(trn_run){.fetches = &s->g->n_reopen, .n_fetches = 1, .out = &t}));
            trn_tensor_unref(t);
            TRN_TRY(ask_bool(&closed, s->session, s->g->n_closed));
            return closed ? trn_errorf(TRN_INTERNAL, "sync replicas: the token queue of an earlier run cannot be replaced") : TRN_OK;
        }
        uint64_t now = trn_now_ns();
        if (now - since > CHIEF_GONE_MS * 1000000ull)
            return trn_errorf(TRN_OUT_OF_RANGE, "sync replicas: the chief has ended the training, and no new one came in %d s", CHIEF_GONE_MS / 1000);
        if (now - said > 5000000000ull) {
            trn_log(TRN_LOG_INFO, "sync", "the token queue is closed; waiting for the chief to begin");
            said = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)nap * 1000000}, NULL);
    }
}

static trn_err begin(trn_sync *s, trn_optimizer *o, int num_tokens)
{
    TRN_TRY(open_queue(s));
    TRN_TRY(run_op(s->session, s->chief ? s->g->n_chief_init : s->g->n_local_init, 0));
    if (!s->chief)
        return TRN_OK;
    int n = num_tokens == 0 ? s->g->aggregate : num_tokens < 0 ? 0 : num_tokens, need = s->g->aggregate - s->g->total;
    if (n < need)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: %d tokens to begin with, at least %d are needed for the first step", o->name, n, need);
    return n ? put(s->session, s->g, n, 0) : TRN_OK;
}

trn_err trn_sync_start(trn_sync **out, trn_optimizer *o, trn_session *session, const trn_sync_opts *opts)
{
    static const trn_sync_opts none;
    opts = opts ? opts : &none;
    if (!o->sync || !trn_out_is(o->sync->train_op))
        return trn_errorf(TRN_FAILED_PRECONDITION, "trn_sync_start: %s",
                          o->sync ? "gradients have not been applied yet" : "this optimizer was not made by trn_sync_replicas");
    trn_sync *s = trn_xalloc(sizeof *s);
    s->g = o->sync;
    s->session = trn_session_ref(session);
    s->chief = opts->is_chief;
    s->stall_ms = opts->stall_ms ? opts->stall_ms : 30000;
    s->cancel = trn_cancel_new();
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->cv, &attr);
    pthread_condattr_destroy(&attr);
    s->moved_ns = trn_now_ns();
    trn_err err = begin(s, o, opts->num_tokens);
    if (!err && s->chief) {
        s->running = s->started = true;
        if (pthread_create(&s->runner, NULL, runner_main, s)) {
            s->running = s->started = false;
            err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "sync replicas: no thread for the aggregation");
        }
    }
    if (!err && s->stall_ms > 0)
        s->watching = !pthread_create(&s->watch, NULL, watch_main, s);
    if (err) {
        trn_sync_stop(s, false);
        return err;
    }
    *out = s;
    return TRN_OK;
}

trn_err trn_sync_check(trn_sync *s)
{
    pthread_mutex_lock(&s->mu);
    trn_err err = s->err;
    s->err = NULL;
    pthread_mutex_unlock(&s->mu);
    return err;
}

void trn_sync_stop(trn_sync *s, bool clean)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mu);
    s->stopping = true;
    pthread_cond_broadcast(&s->cv);
    pthread_mutex_unlock(&s->mu);
    if (clean && !s->chief)
        drop(run_op(s->session, s->g->n_leave, 10000)); /* a queue that is closed already needs no token */
    else if (clean) { /* an update that is being made shall not be torn: it ends by itself, at the closed queue */
        drop(run_op(s->session, s->g->n_close, 10000));
        pthread_mutex_lock(&s->mu);
        uint64_t end = trn_now_ns() + (UPDATE_MS + (uint64_t)(s->g->bytes / UPDATE_BYTES_PER_MS)) * 1000000;
        while (s->running && trn_now_ns() < end)
            wait_for(s, 50000000);
        pthread_mutex_unlock(&s->mu);
    }
    trn_cancel_fire(s->cancel, trn_errorf(TRN_CANCELLED, "this worker ends"));
    if (s->started)
        pthread_join(s->runner, NULL);
    if (s->watching)
        pthread_join(s->watch, NULL);
    trn_err_free(s->err);
    trn_cancel_unref(s->cancel);
    trn_session_unref(s->session);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->cv);
    free(s);
}
