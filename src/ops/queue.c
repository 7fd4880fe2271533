/* Queues. The resource is in res/queue.h; here are the ops around it: making one, putting, taking, closing, asking. */
#include "ops/resop.h"

#include <inttypes.h>
#include <stdlib.h>

#include "res/queue.h"
#include "res/var.h"

#define QUEUE_TYPE_NAME "tensorflow::QueueInterface" /* what handles say on the wire */

/* ---- making --------------------------------------------------------------------------------------------------- */

typedef struct made {
    const char *name;
    trn_queue_spec spec;
} made;

static trn_err make_queue(trn_resource **out, void *arg)
{
    made *m = arg;
    trn_queue *q;
    TRN_TRY(trn_queue_new(&q, m->name, &m->spec));
    *out = (trn_resource *)q;
    return TRN_OK;
}

static trn_queue_kind kind_of(const char *op)
{
    switch (*op) {
    case 'R':
        return TRN_QUEUE_SHUFFLE;
    case 'F':
        return TRN_QUEUE_FIFO;
    default:
        return op[1] == 'a' ? TRN_QUEUE_PADDING : TRN_QUEUE_PRIORITY;
    }
}

static trn_err queue_make(trn_kctx *k)
{
    const trn_node *n = k->node;
    made m = {trn_resop_name(k), {.kind = kind_of(n->op)}};
    trn_queue_spec *s = &m.spec;
    const trn_attr *types = trn_node_attr(n, "component_types"), *shapes = trn_node_attr(n, "shapes");
    int extra = s->kind == TRN_QUEUE_PRIORITY; /* the priority, in front */
    int n_types = types ? types->n : 0, n_shapes = shapes ? shapes->n : 0;
    trn_dtype *tv = trn_xalloc(((size_t)n_types + 1) * sizeof *tv);
    trn_shape *sv = trn_xalloc(((size_t)n_shapes + 1) * sizeof *sv);
    if (extra) {
        tv[s->n++] = TRN_INT64;
        if (n_shapes || !n_types)
            sv[s->n_shapes++] = trn_shape_scalar();
    }
    for (int i = 0; i < n_types; i++)
        tv[s->n++] = types->list[i].type;
    for (int i = 0; i < n_shapes; i++)
        sv[s->n_shapes++] = *shapes->list[i].shape;
    s->types = tv;
    s->shapes = sv;
    s->capacity = trn_attr_int(n, "capacity");
    s->min_after_dequeue = trn_attr_int(n, "min_after_dequeue");
    s->seed = trn_attr_int(n, "seed");
    s->seed2 = trn_attr_int(n, "seed2");
    trn_queue *q;
    trn_err err = trn_resop(&q, k, &trn_queue_type, QUEUE_TYPE_NAME, make_queue, &m);
    if (!err) {
        err = trn_queue_match(q, s);
        trn_resource_unref(q);
    }
    free(tv);
    free(sv);
    return err;
}

/* ---- using ---------------------------------------------------------------------------------------------------- */

static void done(void *arg, trn_err err, trn_tensor **tuple)
{
    trn_kctx *k = arg;
    for (int i = 0; tuple && i < k->n_out; i++)
        trn_out_set(k, i, tuple[i]);
    trn_k_done(k, err);
}

static trn_err find(trn_queue **out, trn_kctx *k)
{
    if (trn_node_attr(k->node, "timeout_ms"))
        TRN_CHECK_ARG(trn_attr_int(k->node, "timeout_ms") == -1, "Timeout not supported yet.");
    return trn_k_resource(out, k, 0, &trn_queue_type);
}

static trn_err put(trn_kctx *k,
                   void (*call)(trn_queue *, trn_cancel *, trn_tensor *const *, int, trn_queue_done, void *))
{
    trn_queue *q;
    TRN_TRY(find(&q, k));
    int n = k->n_in - 1;
    trn_tensor **t = trn_xalloc(((size_t)n + 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = k->in[i + 1].t;
    call(q, trn_k_cancel(k), t, n, done, k);
    free(t);
    trn_resource_unref(q);
    return TRN_OK;
}

static trn_err enqueue(trn_kctx *k) { return put(k, trn_queue_enqueue); }
static trn_err enqueue_many(trn_kctx *k) { return put(k, trn_queue_enqueue_many); }

/* The queue whose elements are what the node's outputs say. */
static trn_err find_for_outputs(trn_queue **out, trn_kctx *k)
{
    trn_queue *q;
    TRN_TRY(find(&q, k));
    const trn_dtype *types;
    int n = trn_queue_components(q, &types);
    trn_err err = TRN_OK;
    if (n != k->n_out)
        err = TRN_BAD("Signature mismatch: the queue has %d components, the op has %d outputs", n, k->n_out);
    for (int i = 0; !err && i < n; i++)
        if (types[i] != k->node->out_types[i])
            err = TRN_BAD("Signature mismatch: component %d of the queue is %s, output %d of the op is %s", i,
                          trn_dtype_name(types[i]), i, trn_dtype_name(k->node->out_types[i]));
    if (err) {
        trn_resource_unref(q);
        return err;
    }
    *out = q;
    return TRN_OK;
}

static trn_err dequeue(trn_kctx *k)
{
    trn_queue *q;
    TRN_TRY(find_for_outputs(&q, k));
    trn_queue_dequeue(q, trn_k_cancel(k), done, k);
    trn_resource_unref(q);
    return TRN_OK;
}

static trn_err take_many(trn_kctx *k, bool up_to)
{
    const trn_tensor *n = trn_in(k, 1);
    TRN_CHECK_ARG(n->count == 1, "n must be one number, not %" PRId64, n->count);
    int32_t count = TRN_DATA(n, int32_t)[0];
    TRN_CHECK_ARG(count >= 0, "Dequeue%sOp requested %d < 0 elements", up_to ? "UpTo" : "Many", count);
    trn_queue *q;
    TRN_TRY(find_for_outputs(&q, k));
    trn_queue_dequeue_many(q, trn_k_cancel(k), count, up_to, done, k);
    trn_resource_unref(q);
    return TRN_OK;
}

static trn_err dequeue_many(trn_kctx *k) { return take_many(k, false); }
static trn_err dequeue_up_to(trn_kctx *k) { return take_many(k, true); }

static trn_err queue_close(trn_kctx *k)
{
    trn_queue *q;
    TRN_TRY(find(&q, k));
    trn_queue_close(q, trn_attr_bool(k->node, "cancel_pending_enqueues"), done, k);
    trn_resource_unref(q);
    return TRN_OK;
}

static trn_err queue_size(trn_kctx *k)
{
    trn_queue *q;
    TRN_TRY(find(&q, k));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)TRN_MIN(trn_queue_size(q), INT32_MAX)));
    trn_resource_unref(q);
    return TRN_OK;
}

static trn_err queue_is_closed(trn_kctx *k)
{
    trn_queue *q;
    TRN_TRY(find(&q, k));
    trn_out_set(k, 0, trn_tensor_bool(trn_queue_is_closed(q)));
    trn_resource_unref(q);
    return TRN_OK;
}

/* ---- FakeQueue: a resource handle as the old pair of strings ----------------------------------------------------- */

static trn_err fake_init(trn_kinit *ki)
{
    trn_shape two = trn_shape_vector(2);
    trn_var *v;
    TRN_TRY(trn_var_new(&v, ki->node->name, TRN_STRING, &two));
    ki->state = v;
    return TRN_OK;
}

static void fake_fini(void *state) { trn_resource_unref(state); }

static trn_err fake_queue(trn_kctx *k)
{
    const trn_tensor *in = trn_in(k, 0);
    const trn_handle *h = in->count == 1 ? TRN_DATA(in, trn_handle *)[0] : NULL;
    TRN_CHECK_ARG(h, "one resource handle wanted");
    trn_tensor *t = trn_tensor_from(TRN_STRING, 1, (int64_t[]){2}, (const char *[]){h->container, h->name});
    if (!t)
        return trn_err_oom();
    trn_var_assign(k->state, t);
    trn_out_var(k, 0, k->state);
    return TRN_OK;
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

static trn_err sh_many(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[1].rank <= 0, "n must be a scalar");
    return TRN_OK;
}

#define SHARED "capacity:int=-1, container:string=\"\", shared_name:string=\"\""
#define SHUFFLED                                                                                                       \
    "capacity:int=-1, min_after_dequeue:int=0, seed:int=0, seed2:int=0, container:string=\"\", "                       \
    "shared_name:string=\"\""
#define MAKE(name, attrs)                                                                                              \
    {name, " -> handle:&str; " attrs, trn_sh_handle, queue_make, TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini},     \
    {                                                                                                                  \
        name "V2", " -> handle:res; " attrs, trn_sh_handle, queue_make, TRN_OP_STATEFUL, trn_resop_init,               \
            trn_resop_fini                                                                                             \
    }
#define BOTH(name, in, rest, shape, kernel, flags)                                                                     \
    {name, "handle:&str" in " -> " rest, shape, kernel, (flags) | TRN_OP_STATEFUL},                                    \
    {                                                                                                                  \
        name "V2", "handle:res" in " -> " rest, shape, kernel, (flags) | TRN_OP_STATEFUL                               \
    }

const trn_op trn_ops_queue[] = {
    MAKE("FIFOQueue", "component_types:list(type)>=1, shapes:list(shape)>=0=[], " SHARED),
    MAKE("PaddingFIFOQueue", "component_types:list(type)>=1, shapes:list(shape)>=0=[], " SHARED),
    MAKE("RandomShuffleQueue", "component_types:list(type)>=1, shapes:list(shape)>=0=[], " SHUFFLED),
    MAKE("PriorityQueue", "component_types:list(type)>=0=[], shapes:list(shape)>=0, " SHARED),
    BOTH("QueueEnqueue", ", components:Tcomponents", "; Tcomponents:list(type)>=1, timeout_ms:int=-1", trn_sh_none,
         enqueue, TRN_OP_ASYNC),
    BOTH("QueueEnqueueMany", ", components:Tcomponents", "; Tcomponents:list(type)>=1, timeout_ms:int=-1", trn_sh_none,
         enqueue_many, TRN_OP_ASYNC),
    BOTH("QueueDequeue", "", "components:component_types; component_types:list(type)>=1, timeout_ms:int=-1",
         trn_sh_unknown, dequeue, TRN_OP_ASYNC),
    BOTH("QueueDequeueMany", ", n:i32", "components:component_types; component_types:list(type)>=1, timeout_ms:int=-1",
         sh_many, dequeue_many, TRN_OP_ASYNC),
    BOTH("QueueDequeueUpTo", ", n:i32", "components:component_types; component_types:list(type)>=1, timeout_ms:int=-1",
         sh_many, dequeue_up_to, TRN_OP_ASYNC),
    BOTH("QueueClose", "", "; cancel_pending_enqueues:bool=false", trn_sh_none, queue_close, TRN_OP_ASYNC),
    BOTH("QueueIsClosed", "", "is_closed:bool", trn_sh_scalar, queue_is_closed, TRN_OP_CHEAP),
    BOTH("QueueSize", "", "size:i32", trn_sh_scalar, queue_size, TRN_OP_CHEAP),
    {"FakeQueue", "resource:res -> handle:&str", trn_sh_handle, fake_queue, TRN_OP_STATEFUL, fake_init, fake_fini},
    {0},
};
