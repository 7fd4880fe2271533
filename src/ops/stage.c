/* Staging areas and stacks. */
#include "ops/resop.h"

#include <stdlib.h>

#include "res/stage.h"
#include "res/var.h"

/* ---- staging areas: found by name by each op, there are no handles ------------------------------------------------ */

static trn_err make_stage(trn_resource **out, void *arg)
{
    const trn_node *n = arg;
    const char *container, *name;
    trn_res_name(n, &container, &name);
    *out = (trn_resource *)trn_stage_new(name, trn_attr_int(n, "capacity"), trn_attr_int(n, "memory_limit"));
    return TRN_OK;
}

static trn_err find_stage(trn_stage **out, trn_kctx *k)
{
    const char *container, *name;
    trn_res_name(k->node, &container, &name);
    return trn_resmgr_get_or_make(out, trn_k_resmgr(k), container, name, &trn_stage_type, make_stage, (void *)k->node);
}

static void done(void *arg, trn_err err, trn_tensor **tuple, int n)
{
    trn_kctx *k = arg;
    if (tuple && n != k->n_out)
        err = TRN_BAD("Mismatch stage/unstage: %d vs. %d", n, k->n_out);
    for (int i = 0; tuple && !err && i < n; i++)
        if (tuple[i]->dtype != k->node->out_types[i])
            err = TRN_BAD("Mismatch stage/unstage: component %d is %s, not %s", i, trn_dtype_name(tuple[i]->dtype),
                          trn_dtype_name(k->node->out_types[i]));
    for (int i = 0; tuple && i < n; i++) {
        if (err)
            trn_tensor_unref(tuple[i]);
        else
            trn_out_set(k, i, tuple[i]);
    }
    trn_k_done(k, err);
}

static trn_err stage(trn_kctx *k)
{
    trn_stage *s;
    TRN_TRY(find_stage(&s, k));
    trn_tensor **t = trn_xalloc(((size_t)k->n_in + 1) * sizeof *t);
    for (int i = 0; i < k->n_in; i++)
        t[i] = k->in[i].t;
    int n = k->n_in;
    trn_stage_put(s, trn_k_cancel(k), t, n, done, k);
    free(t);
    trn_resource_unref(s);
    return TRN_OK;
}

static trn_err unstage(trn_kctx *k)
{
    trn_stage *s;
    TRN_TRY(find_stage(&s, k));
    trn_stage_take(s, trn_k_cancel(k), done, k);
    trn_resource_unref(s);
    return TRN_OK;
}

static trn_err stage_peek(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 0)->shape.rank == 0, "index must be scalar");
    trn_stage *s;
    TRN_TRY(find_stage(&s, k));
    trn_stage_peek(s, trn_k_cancel(k), TRN_DATA(trn_in(k, 0), int32_t)[0], done, k);
    trn_resource_unref(s);
    return TRN_OK;
}

static trn_err stage_size(trn_kctx *k)
{
    trn_stage *s;
    TRN_TRY(find_stage(&s, k));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)trn_stage_size(s)));
    trn_resource_unref(s);
    return TRN_OK;
}

static trn_err stage_clear(trn_kctx *k)
{
    trn_stage *s;
    TRN_TRY(find_stage(&s, k));
    trn_stage_clear(s);
    trn_resource_unref(s);
    return TRN_OK;
}

/* ---- stacks: what loops push forward and their gradients pop; they live as long as their handle, or the step -------- */

#define STACKS "_stacks" /* the old handles' container */

typedef struct stack {
    trn_resource base;
    char *name;
    trn_dtype dtype;
    int64_t max;
    trn_mutex mu;
    bool closed;
    trn_tensor **t;
    int64_t n, cap;
} stack;

static void drop_elements(stack *s)
{
    for (int64_t i = 0; i < s->n; i++)
        trn_tensor_unref(s->t[i]);
    free(s->t);
    s->t = NULL;
    s->n = s->cap = 0;
}

static void stack_free(trn_resource *r)
{
    stack *s = (stack *)r;
    drop_elements(s);
    trn_mutex_fini(&s->mu);
    free(s->name);
    free(s);
}

static const trn_restype stack_type = {.name = "Stack", .free = stack_free};

static trn_err max_size(int64_t *out, const trn_kctx *k)
{
    *out = INT32_MAX;
    if (k->n_in == 0)
        return TRN_OK;
    const trn_tensor *t = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 0, "Stack size must be a scalar, but had shape: %s",
                  trn_shape_text(text, &t->shape));
    if (TRN_DATA(t, int32_t)[0] >= 0)
        *out = TRN_DATA(t, int32_t)[0];
    return TRN_OK;
}

/* The handle itself holds the stack: nothing to look up, nothing left behind. */
static trn_err give_handle(trn_kctx *k, TRN_OWN stack *s)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    trn_err err = trn_out_new(&t, k, 0, TRN_RESOURCE, &scalar);
    if (err) {
        trn_resource_unref(s);
        return err;
    }
    trn_handle *h = trn_handle_new(k->node->device, STACKS, s->name, "tensorflow::Stack");
    h->res = s;
    h->res_unref = trn_resource_unref;
    TRN_DATA_MUT(t, trn_handle *)[0] = h;
    return TRN_OK;
}

static trn_err give_strings(trn_kctx *k, TRN_OWN stack *s)
{
    trn_shape two = trn_shape_vector(2);
    trn_tensor *t = trn_tensor_from(TRN_STRING, 1, (int64_t[]){2}, (const char *[]){STACKS, s->name});
    trn_var *v = NULL;
    trn_err err = t ? trn_var_new(&v, s->name, TRN_STRING, &two) : trn_err_oom();
    if (err) {
        trn_tensor_unref(t);
        trn_resource_unref(s);
        return err;
    }
    trn_var_assign(v, t);
    err = trn_resmgr_put(trn_k_step_resmgr(k), STACKS, s->name, &s->base);
    if (!err)
        trn_out_var(k, 0, v);
    trn_resource_unref(v);
    return err;
}

static trn_err stack_make(trn_kctx *k)
{
    static _Atomic uint64_t counter;
    int64_t max;
    TRN_TRY(max_size(&max, k));
    const char *name = trn_attr_str(k->node, "stack_name");
    stack *s = trn_xalloc(sizeof *s);
    trn_resource_init(&s->base, &stack_type);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    s->name = trn_xasprintf("%s_%llu", *name ? name : k->node->name, (unsigned long long)atomic_fetch_add(&counter, 1));
    s->dtype = trn_attr_type(k->node, "elem_type");
    s->max = max;
    return trn_dtype_is_ref(k->node->out_types[0]) ? give_strings(k, s) : give_handle(k, s);
}

static trn_err find_by_strings(stack **out, trn_kctx *k, const trn_tensor *t)
{
    TRN_CHECK_ARG(t->dtype == TRN_STRING && t->count == 2, "Stack handle must have two elements, but had %lld",
                  (long long)t->count);
    size_t n;
    const char *p = trn_tensor_str_at(t, 1, &n);
    char *name = trn_xstrndup(p, n);
    trn_err err = trn_resmgr_get(out, trn_k_step_resmgr(k), STACKS, name, &stack_type);
    free(name);
    return err;
}

static trn_err find_stack(stack **out, trn_kctx *k)
{
    if (trn_in(k, 0) && trn_in(k, 0)->dtype == TRN_RESOURCE)
        return trn_k_resource(out, k, 0, &stack_type);
    if (trn_in(k, 0))
        return find_by_strings(out, k, trn_in(k, 0));
    trn_tensor *t;
    TRN_TRY(trn_var_read(&t, k->in[0].var));
    trn_err err = find_by_strings(out, k, t);
    trn_tensor_unref(t);
    return err;
}

static trn_err push_locked(stack *s, const trn_tensor *t)
{
    TRN_CHECK_ARG(!s->closed, "Stack[%s] has already been closed.", s->name);
    TRN_CHECK_ARG(s->n < s->max, "Stack[%s] overflowed its max_size (%lld)", s->name, (long long)s->max);
    TRN_PUSH(s->t, s->n, s->cap, trn_tensor_ref(t));
    return TRN_OK;
}

static trn_err stack_push(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 1);
    stack *s;
    TRN_TRY(find_stack(&s, k));
    trn_err err;
    if (t->dtype != s->dtype) {
        err = TRN_BAD("Must have type %s but got %s", trn_dtype_name(s->dtype), trn_dtype_name(t->dtype));
    } else {
        trn_lock(&s->mu);
        err = push_locked(s, t);
        trn_unlock(&s->mu);
    }
    trn_resource_unref(s);
    if (!err)
        trn_out_set(k, 0, trn_tensor_ref(t));
    return err;
}

static trn_err pop_locked(trn_tensor **out, stack *s)
{
    TRN_CHECK_ARG(!s->closed, "Stack[%s] has already been closed.", s->name);
    TRN_CHECK_ARG(s->n, "Stack[%s] is empty when calling Pop().", s->name);
    *out = s->t[--s->n];
    return TRN_OK;
}

static trn_err stack_pop(trn_kctx *k)
{
    stack *s;
    TRN_TRY(find_stack(&s, k));
    trn_tensor *t = NULL;
    trn_lock(&s->mu);
    trn_err err = pop_locked(&t, s);
    trn_unlock(&s->mu);
    trn_resource_unref(s);
    if (!err && t->dtype != k->node->out_types[0]) {
        err = TRN_BAD("Must have type %s but got %s", trn_dtype_name(k->node->out_types[0]), trn_dtype_name(t->dtype));
        trn_tensor_unref(t);
    }
    if (!err)
        trn_out_set(k, 0, t);
    return err;
}

static trn_err stack_close(trn_kctx *k)
{
    stack *s;
    TRN_TRY(find_stack(&s, k));
    trn_lock(&s->mu);
    s->closed = true;
    drop_elements(s);
    trn_unlock(&s->mu);
    trn_resource_unref(s);
    return TRN_OK;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

static trn_err sh_push(trn_shctx *s)
{
    s->out[0] = s->in[1];
    return TRN_OK;
}

#define AREA "capacity:int>=0=0, memory_limit:int>=0=0, "
#define NAMED ", container:string=\"\", shared_name:string=\"\""
#define ASYNC (TRN_OP_ASYNC | TRN_OP_STATEFUL)
#define CHEAP (TRN_OP_CHEAP | TRN_OP_STATEFUL)

const trn_op trn_ops_stage[] = {
    {"Stage", "values:dtypes -> ; " AREA "dtypes:list(type)>=1" NAMED, trn_sh_none, stage, ASYNC},
    {"Unstage", " -> values:dtypes; " AREA "dtypes:list(type)>=1" NAMED, trn_sh_unknown, unstage, ASYNC},
    {"StagePeek", "index:i32 -> values:dtypes; " AREA "dtypes:list(type)>=1" NAMED, trn_sh_unknown, stage_peek, ASYNC},
    {"StageSize", " -> size:i32; " AREA "dtypes:list(type)" NAMED, trn_sh_scalar, stage_size, CHEAP},
    {"StageClear", " -> ; " AREA "dtypes:list(type)" NAMED, trn_sh_none, stage_clear, TRN_OP_STATEFUL},
    {"Stack", " -> handle:&str; elem_type:type, stack_name:string=\"\"", trn_sh_handle, stack_make, CHEAP},
    {"StackPush", "handle:&str, elem:T -> output:T; T:any, swap_memory:bool=false", sh_push, stack_push, CHEAP},
    {"StackPop", "handle:&str -> elem:elem_type; elem_type:any", trn_sh_unknown, stack_pop, CHEAP},
    {"StackClose", "handle:&str -> ", trn_sh_none, stack_close, CHEAP},
    {"StackV2", "max_size:i32 -> handle:res; elem_type:type, stack_name:string=\"\"", trn_sh_handle, stack_make, CHEAP},
    {"StackPushV2", "handle:res, elem:T -> output:T; T:any, swap_memory:bool=false", sh_push, stack_push, CHEAP},
    {"StackPopV2", "handle:res -> elem:elem_type; elem_type:any", trn_sh_unknown, stack_pop, CHEAP},
    {"StackCloseV2", "handle:res -> ", trn_sh_none, stack_close, CHEAP},
    {0},
};
