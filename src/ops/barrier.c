/* Barriers: the ops around res/barrier.h. */
#include "ops/resop.h"

#include <inttypes.h>
#include <stdlib.h>

#include "res/barrier.h"

typedef struct made {
    const char *name;
    int n, n_shapes;
    trn_dtype *types;
    trn_shape *shapes;
} made;

static trn_err make_barrier(trn_resource **out, void *arg)
{
    made *m = arg;
    trn_barrier *b;
    TRN_TRY(trn_barrier_new(&b, m->name, m->n, m->types, m->n_shapes, m->shapes));
    *out = (trn_resource *)b;
    return TRN_OK;
}

static trn_err barrier(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_attr_int(k->node, "capacity") == -1, "Barrier only accepts capacity=-1.  Feed the inputs to your "
                                                           "Barrier through a queue to enforce a limited capacity.");
    const trn_attr *types = trn_node_attr(k->node, "component_types"), *shapes = trn_node_attr(k->node, "shapes");
    made m = {.name = trn_resop_name(k), .n = types ? types->n : 0, .n_shapes = shapes ? shapes->n : 0};
    m.types = trn_xalloc(((size_t)m.n + 1) * sizeof *m.types);
    m.shapes = trn_xalloc(((size_t)m.n_shapes + 1) * sizeof *m.shapes);
    for (int i = 0; i < m.n; i++)
        m.types[i] = types->list[i].type;
    for (int i = 0; i < m.n_shapes; i++)
        m.shapes[i] = *shapes->list[i].shape;
    trn_barrier *b;
    trn_err err = trn_resop(&b, k, &trn_barrier_type, "tensorflow::barrier::Barrier", make_barrier, &m);
    if (!err) {
        err = trn_barrier_match(b, m.n, m.types, m.n_shapes, m.shapes);
        trn_resource_unref(b);
    }
    free(m.types);
    free(m.shapes);
    return err;
}

static trn_err insert_many(trn_kctx *k)
{
    int64_t component = trn_attr_int(k->node, "component_index");
    TRN_CHECK_ARG(component >= 0 && component <= INT32_MAX, "The component ID is out of range: %" PRId64, component);
    trn_barrier *b;
    TRN_TRY(trn_k_resource(&b, k, 0, &trn_barrier_type));
    trn_err err = trn_barrier_insert(b, trn_in(k, 1), (int)component, trn_in(k, 2));
    trn_resource_unref(b);
    return err;
}

static void done(void *arg, trn_err err, trn_tensor **tuple)
{
    trn_kctx *k = arg;
    for (int i = 0; tuple && i < k->n_out; i++)
        trn_out_set(k, i, tuple[i]);
    trn_k_done(k, err);
}

static trn_err check_outputs(const trn_kctx *k, const trn_barrier *b)
{
    const trn_dtype *types;
    int n = trn_barrier_components(b, &types);
    TRN_CHECK_ARG(k->n_out == n + 2, "Signature mismatch: the barrier has %d components, the op takes %d", n,
                  k->n_out - 2);
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(types[i] == k->node->out_types[i + 2],
                      "Signature mismatch: component %d of the barrier is %s, the op wants %s", i,
                      trn_dtype_name(types[i]), trn_dtype_name(k->node->out_types[i + 2]));
    return TRN_OK;
}

static trn_err take_many(trn_kctx *k)
{
    const trn_tensor *n = trn_in(k, 1);
    TRN_CHECK_ARG(trn_attr_int(k->node, "timeout_ms") == -1, "Timeout not supported yet.");
    TRN_CHECK_ARG(n->shape.rank == 0, "num_elements must be a scalar.");
    trn_barrier *b;
    TRN_TRY(trn_k_resource(&b, k, 0, &trn_barrier_type));
    trn_err err = check_outputs(k, b);
    if (!err)
        trn_barrier_take(b, trn_k_cancel(k), TRN_DATA(n, int32_t)[0], trn_attr_bool(k->node, "allow_small_batch"), done,
                         k);
    trn_resource_unref(b);
    return err;
}

static trn_err close_barrier(trn_kctx *k)
{
    trn_barrier *b;
    TRN_TRY(trn_k_resource(&b, k, 0, &trn_barrier_type));
    trn_err err = trn_barrier_close(b, trn_attr_bool(k->node, "cancel_pending_enqueues"));
    trn_resource_unref(b);
    return err;
}

static trn_err size(trn_kctx *k, int64_t (*of)(trn_barrier *))
{
    trn_barrier *b;
    TRN_TRY(trn_k_resource(&b, k, 0, &trn_barrier_type));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)of(b)));
    trn_resource_unref(b);
    return TRN_OK;
}

static trn_err ready_size(trn_kctx *k) { return size(k, trn_barrier_ready); }
static trn_err incomplete_size(trn_kctx *k) { return size(k, trn_barrier_incomplete); }

static trn_err sh_insert(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[1].rank < 0 || s->in[1].rank == 1, "keys must be a vector");
    TRN_CHECK_ARG(s->in[2].rank != 0, "values must have a row for each key");
    return TRN_OK;
}

const trn_op trn_ops_barrier[] = {
    {"Barrier",
     " -> handle:&str; component_types:list(type)>=1, shapes:list(shape)>=0=[], capacity:int=-1, "
     "container:string=\"\", shared_name:string=\"\"",
     trn_sh_handle, barrier, TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini},
    {"BarrierInsertMany", "handle:&str, keys:str, values:T -> ; T:any, component_index:int", sh_insert, insert_many,
     TRN_OP_STATEFUL},
    {"BarrierTakeMany",
     "handle:&str, num_elements:i32 -> indices:i64, keys:str, values:component_types; component_types:list(type)>=1, "
     "allow_small_batch:bool=false, wait_for_incomplete:bool=false, timeout_ms:int=-1",
     trn_sh_unknown, take_many, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {"BarrierClose", "handle:&str -> ; cancel_pending_enqueues:bool=false", trn_sh_none, close_barrier,
     TRN_OP_STATEFUL},
    {"BarrierReadySize", "handle:&str -> size:i32", trn_sh_scalar, ready_size, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"BarrierIncompleteSize", "handle:&str -> size:i32", trn_sh_scalar, incomplete_size,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {0},
};
