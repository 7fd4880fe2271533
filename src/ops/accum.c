/* Conditional accumulators: the ops around res/accum.h. */
#include "ops/resop.h"

#include <inttypes.h>

#include "res/accum.h"

#define ACCUM_TYPE_NAME "tensorflow::ConditionalAccumulatorBase" /* what handles say on the wire */

typedef struct made {
    const char *name;
    const trn_node *node;
    bool sparse;
} made;

static trn_err make_accum(trn_resource **out, void *arg)
{
    made *m = arg;
    trn_accum *a;
    TRN_TRY(trn_accum_new(&a, m->name, trn_attr_type(m->node, "dtype"), trn_attr_shape(m->node, "shape"), m->sparse,
                          strcmp(trn_attr_str(m->node, "reduction_type"), "SUM") != 0));
    *out = (trn_resource *)a;
    return TRN_OK;
}

static trn_err accum_make(trn_kctx *k)
{
    made m = {trn_resop_name(k), k->node, *k->node->op == 'S'};
    trn_accum *a;
    TRN_TRY(trn_resop(&a, k, &trn_accum_type, ACCUM_TYPE_NAME, make_accum, &m));
    trn_err err = trn_accum_check(a, trn_attr_type(k->node, "dtype"), m.sparse);
    trn_resource_unref(a);
    return err;
}

static trn_err local_step(int64_t *out, const trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 0, "Argument %s must be scalar, but had bad shape %s",
                  k->n_in > 2 ? "local_step" : "new_global_step", trn_shape_text(text, &t->shape));
    *out = TRN_DATA(t, int64_t)[0];
    return TRN_OK;
}

static trn_err apply(trn_kctx *k)
{
    int64_t step;
    TRN_TRY(local_step(&step, k));
    trn_accum *a;
    TRN_TRY(trn_k_resource(&a, k, 0, &trn_accum_type));
    trn_err err = trn_accum_apply(a, step, trn_in(k, 2));
    trn_resource_unref(a);
    return err;
}

static trn_err apply_sparse(trn_kctx *k)
{
    int64_t step;
    TRN_TRY(local_step(&step, k));
    trn_accum *a;
    TRN_TRY(trn_k_resource(&a, k, 0, &trn_accum_type));
    bool known = trn_attr_bool(k->node, "has_known_shape");
    trn_err err = trn_accum_apply_sparse(a, step, trn_in(k, 2), trn_in(k, 3), known ? trn_in(k, 4) : NULL);
    trn_resource_unref(a);
    return err;
}

static void done(void *arg, trn_err err, trn_tensor **parts)
{
    trn_kctx *k = arg;
    for (int i = 0; parts && i < k->n_out; i++)
        trn_out_set(k, i, parts[i]);
    trn_k_done(k, err);
}

static trn_err take(trn_kctx *k)
{
    const trn_tensor *n = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(n->shape.rank == 0, "Argument num_required must be scalar, but had bad shape %s",
                  trn_shape_text(text, &n->shape));
    trn_accum *a;
    TRN_TRY(trn_k_resource(&a, k, 0, &trn_accum_type));
    trn_err err = trn_accum_check(a, trn_attr_type(k->node, "dtype"), k->n_out == 3);
    if (!err)
        trn_accum_take(a, trn_k_cancel(k), TRN_DATA(n, int32_t)[0], done, k);
    trn_resource_unref(a);
    return err;
}

static trn_err set_global_step(trn_kctx *k)
{
    int64_t step;
    TRN_TRY(local_step(&step, k));
    trn_accum *a;
    TRN_TRY(trn_k_resource(&a, k, 0, &trn_accum_type));
    trn_accum_set_global_step(a, step);
    trn_resource_unref(a);
    return TRN_OK;
}

static trn_err num_accumulated(trn_kctx *k)
{
    trn_accum *a;
    TRN_TRY(trn_k_resource(&a, k, 0, &trn_accum_type));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)trn_accum_count(a)));
    trn_resource_unref(a);
    return TRN_OK;
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

static trn_err sh_take(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[1].rank <= 0, "num_required must be a scalar");
    return TRN_OK;
}

static trn_err sh_step(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[1].rank <= 0, "the step must be a scalar");
    return TRN_OK;
}

#define DTYPE "dtype:f16|f32|f64"
#define MADE DTYPE ", shape:shape, container:string=\"\", shared_name:string=\"\", reduction_type:{MEAN,SUM}=MEAN"
#define MAKE(name, handle)                                                                                             \
    {                                                                                                                  \
        name, " -> handle:" handle "; " MADE, trn_sh_handle, accum_make, TRN_OP_STATEFUL, trn_resop_init,              \
            trn_resop_fini                                                                                             \
    }
#define BOTH(name, in, rest, shape, kernel, flags)                                                                     \
    {name, "handle:&str" in " -> " rest, shape, kernel, (flags) | TRN_OP_STATEFUL},                                    \
    {                                                                                                                  \
        "Resource" name, "handle:res" in " -> " rest, shape, kernel, (flags) | TRN_OP_STATEFUL                         \
    }

const trn_op trn_ops_accum[] = {
    MAKE("ConditionalAccumulator", "&str"),
    MAKE("ResourceConditionalAccumulator", "res"),
    MAKE("SparseConditionalAccumulator", "&str"),
    BOTH("AccumulatorApplyGradient", ", local_step:i64, gradient:dtype", "; " DTYPE, sh_step, apply, 0),
    BOTH("AccumulatorTakeGradient", ", num_required:i32", "average:dtype; " DTYPE, sh_take, take, TRN_OP_ASYNC),
    BOTH("AccumulatorSetGlobalStep", ", new_global_step:i64", "", sh_step, set_global_step, TRN_OP_CHEAP),
    BOTH("AccumulatorNumAccumulated", "", "num_accumulated:i32", trn_sh_scalar, num_accumulated, TRN_OP_CHEAP),
    {"SparseAccumulatorApplyGradient",
     "handle:&str, local_step:i64, gradient_indices:i64, gradient_values:dtype, gradient_shape:i64 -> ; " DTYPE
     ", has_known_shape:bool",
     sh_step, apply_sparse, TRN_OP_STATEFUL},
    {"SparseAccumulatorTakeGradient", "handle:&str, num_required:i32 -> indices:i64, values:dtype, shape:i64; " DTYPE,
     sh_take, take, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {0},
};
