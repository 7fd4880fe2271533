/* Variables: made, assigned, read, counted up.
 *
 * Assigning never copies: the value tensor is immutable for everybody who holds it, so the variable shares it, and the first update that
 * finds it shared makes a new one. AssignAdd and AssignSub then write old + delta straight into the new tensor: one pass over memory
 * instead of a copy and an update. */
#include "ops/state.h"

#include <stdio.h>
#include <stdlib.h>

#define VAR_TYPE_NAME "tensorflow::Var" /* what handles say on the wire */

/* ---- ref variables -------------------------------------------------------------------------------------------- */

struct made {
    const char *name;
    trn_dtype dtype;
    const trn_shape *shape;
};

static trn_err make_var(trn_resource **out, void *arg)
{
    struct made *m = arg;
    trn_var *v;
    TRN_TRY(trn_var_new(&v, m->name, m->dtype, m->shape));
    v->base.type = &trn_refvar_type;
    *out = &v->base;
    return TRN_OK;
}

static trn_err variable(trn_kctx *k)
{
    const char *container, *name;
    trn_res_name(k->node, &container, &name);
    struct made m = {name, trn_attr_type(k->node, "dtype"), trn_attr_shape(k->node, "shape")};
    trn_shape unknown = trn_shape_unknown();
    if (m.shape->rank == 0 && strcmp(k->node->op, "Variable") == 0)
        m.shape = &unknown; /* the old op writes "unknown" as a scalar */
    trn_var *v;
    TRN_TRY(trn_resmgr_get_or_make(&v, trn_k_resmgr(k), container, name, &trn_refvar_type, make_var, &m));
    if (v->dtype != m.dtype) {
        trn_err err = TRN_BAD("variable %s exists with dtype %s, this node says %s", name, trn_dtype_name(v->dtype),
                              trn_dtype_name(m.dtype));
        trn_resource_unref(v);
        return err;
    }
    trn_out_var(k, 0, v);
    trn_resource_unref(v);
    return TRN_OK;
}

static trn_err sh_variable_old(trn_shctx *s)
{
    const trn_shape *a = trn_attr_shape(s->node, "shape");
    if (a->rank > 0)
        s->out[0] = *a;
    return TRN_OK;
}

/* One per step, frame and iteration: iterations of a loop run at the same time. */
static char *temporary_name(const trn_kctx *k)
{
    const char *name = trn_attr_str(k->node, "var_name");
    return trn_xasprintf("%s/frame:%llu/iter:%lld", *name ? name : k->node->name, (unsigned long long)k->frame_id, (long long)k->iter);
}

static trn_err temporary_variable(trn_kctx *k)
{
    trn_dtype dtype = trn_attr_type(k->node, "dtype");
    const trn_shape *shape = trn_attr_shape(k->node, "shape");
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, shape));
    if (trn_dtype_is_plain(dtype))
        memset(t->data, 0, trn_tensor_bytes(t));
    char *name = temporary_name(k);
    trn_var *v;
    trn_err err = trn_var_new(&v, name, dtype, shape);
    if (err) {
        trn_tensor_unref(t);
        free(name);
        return err;
    }
    trn_var_assign(v, t);
    trn_resource_ref(v);
    err = trn_resmgr_put(trn_k_step_resmgr(k), "", name, &v->base);
    if (!err)
        trn_out_var(k, 0, v);
    trn_resource_unref(v);
    free(name);
    return err;
}

static trn_err destroy_temporary_variable(trn_kctx *k)
{
    trn_var *v = k->in[0].var;
    trn_tensor *t;
    TRN_TRY(trn_var_read(&t, v));
    char *name = temporary_name(k);
    trn_err err = trn_resmgr_del(trn_k_step_resmgr(k), "", name, &trn_var_type);
    free(name);
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    trn_out_set(k, 0, t);
    return TRN_OK;
}

static trn_err is_variable_initialized(trn_kctx *k)
{
    trn_var *v = k->in[0].var;
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, TRN_BOOL, &scalar));
    trn_lock(&v->mu);
    TRN_DATA_MUT(out, bool)[0] = v->value != NULL;
    trn_unlock(&v->mu);
    return TRN_OK;
}

/* ---- assign --------------------------------------------------------------------------------------------------- */

static trn_err keep(trn_tensor **out, const trn_tensor *t)
{
    if (!trn_var_may_keep(t))
        return trn_tensor_copy(out, t);
    *out = trn_tensor_ref(t);
    return TRN_OK;
}

static trn_err assign(trn_kctx *k)
{
    trn_var *v = k->in[0].var;
    const trn_tensor *in = trn_in(k, 1);
    bool validate = trn_attr_bool(k->node, "validate_shape");
    trn_tensor *t;
    TRN_TRY(keep(&t, in));
    trn_var_lock(v);
    if (validate && !(v->value ? trn_shape_eq(&v->value->shape, &t->shape) : trn_shape_compatible(&v->shape, &t->shape))) {
        trn_shape have = v->value ? v->value->shape : v->shape;
        trn_var_unlock(v);
        trn_tensor_unref(t);
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        return TRN_BAD("Assign requires shapes of both tensors to match. lhs shape= %s rhs shape= %s", trn_shape_text(a, &have),
                       trn_shape_text(b, &in->shape));
    }
    trn_tensor *old = v->value;
    v->value = t;
    v->is_init = true;
    trn_var_unlock(v);
    trn_tensor_unref(old);
    trn_out_var(k, 0, v);
    return TRN_OK;
}

static trn_err sh_assign(trn_shctx *s)
{
    if (!trn_attr_bool(s->node, "validate_shape")) {
        s->out[0] = s->in[1];
        return TRN_OK;
    }
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_compatible(&s->in[0], &s->in[1]), "Assign: variable is %s, value is %s", trn_shape_text(a, &s->in[0]),
                  trn_shape_text(b, &s->in[1]));
    s->out[0] = trn_shape_is_full(&s->in[1]) ? s->in[1] : s->in[0];
    return TRN_OK;
}

static trn_err assign_variable(trn_kctx *k)
{
    const trn_tensor *in = trn_in(k, 1);
    bool validate = trn_attr_bool(k->node, "validate_shape");
    trn_var *v;
    TRN_TRY(trn_k_var_make(&v, k, 0, trn_attr_type(k->node, "dtype")));
    trn_tensor *t;
    trn_err err = keep(&t, in);
    if (err) {
        trn_resource_unref(v);
        return err;
    }
    trn_var_lock(v);
    if (validate && v->value && !trn_shape_eq(&v->value->shape, &t->shape)) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        err = TRN_BAD("Trying to assign to variable %s with tensor with wrong shape. Expected %s got %s", v->name,
                      trn_shape_text(a, &v->value->shape), trn_shape_text(b, &t->shape));
    } else {
        trn_tensor *old = v->value;
        v->value = t;
        t = old;
        v->is_init = true;
    }
    trn_var_unlock(v);
    trn_tensor_unref(t);
    trn_resource_unref(v);
    return err;
}

/* d[i] = a[i] ± b[i]; d may be a or b itself. Integers wrap, so they are done unsigned. */
#define SUM_LOOPS(name, T)                                                                                                                 \
    TRN_SIMD static void add_##name(T *d, const T *a, const T *b, int64_t n)                                                             \
    {                                                                                                                                      \
        TRN_IVDEP for (int64_t i = 0; i < n; i++) d[i] = (T)(a[i] + b[i]);                                                      \
    }                                                                                                                                      \
    TRN_SIMD static void sub_##name(T *d, const T *a, const T *b, int64_t n)                                                             \
    {                                                                                                                                      \
        TRN_IVDEP for (int64_t i = 0; i < n; i++) d[i] = (T)(a[i] - b[i]);                                                      \
    }
SUM_LOOPS(f32, float)
SUM_LOOPS(f64, double)
SUM_LOOPS(u8, uint8_t)
SUM_LOOPS(u16, uint16_t)
SUM_LOOPS(u32, uint32_t)
SUM_LOOPS(u64, uint64_t)

#define BLOCK 512
struct sum {
    void *d;
    const void *a, *b;
    trn_dtype dtype;
    bool sub;
};

static void sum_wide(const struct sum *s, int64_t begin, int64_t end)
{
    float x[BLOCK], y[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = TRN_MIN(end - at, (int64_t)BLOCK);
        trn_widen(x, (const char *)s->a + 2 * at, s->dtype, n);
        trn_widen(y, (const char *)s->b + 2 * at, s->dtype, n);
        (s->sub ? sub_f32 : add_f32)(x, x, y, n);
        trn_narrow((char *)s->d + 2 * at, x, s->dtype, n);
    }
}

static void sum_piece(void *arg, int64_t begin, int64_t end)
{
    const struct sum *s = arg;
    int64_t n = end - begin;
#define PIECE(name, T, per)                                                                                                                \
    (s->sub ? sub_##name : add_##name)((T *)s->d + begin * per, (const T *)s->a + begin * per, (const T *)s->b + begin * per, n * per)
    switch (s->dtype) {
    case TRN_FLOAT: PIECE(f32, float, 1); break;
    case TRN_COMPLEX64: PIECE(f32, float, 2); break;
    case TRN_DOUBLE: PIECE(f64, double, 1); break;
    case TRN_COMPLEX128: PIECE(f64, double, 2); break;
    case TRN_INT8:
    case TRN_UINT8: PIECE(u8, uint8_t, 1); break;
    case TRN_INT16:
    case TRN_UINT16: PIECE(u16, uint16_t, 1); break;
    case TRN_INT32:
    case TRN_UINT32: PIECE(u32, uint32_t, 1); break;
    case TRN_INT64:
    case TRN_UINT64: PIECE(u64, uint64_t, 1); break;
    case TRN_HALF:
    case TRN_BFLOAT16: sum_wide(s, begin, end); break;
    default: break; /* the row lets nothing else through */
    }
#undef PIECE
}

static trn_err assign_sum(trn_kctx *k, bool sub)
{
    const trn_tensor *b = trn_in(k, 1);
    trn_vars s;
    TRN_TRY(trn_vars_lock(&s, k, 1, b->dtype));
    trn_tensor *a = s.v[0]->value, *d;
    if (!trn_shape_eq(&a->shape, &b->shape)) {
        char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
        trn_err err = TRN_BAD("Cannot update variable %s with shape %s using a Tensor with shape %s, shapes must be equal.", s.v[0]->name,
                              trn_shape_text(x, &a->shape), trn_shape_text(y, &b->shape));
        return trn_vars_done(&s, k, err);
    }
    trn_err err = trn_vars_next(&d, &s, 0, k, 1);
    if (!err) {
        struct sum job = {d->data, a->data, b->data, a->dtype, sub};
        trn_k_for(k, a->count, TRN_GRAIN, sum_piece, &job);
        trn_vars_set_next(&s, 0, d);
    }
    return trn_vars_done(&s, k, err);
}

static trn_err assign_add(trn_kctx *k) { return assign_sum(k, false); }
static trn_err assign_sub(trn_kctx *k) { return assign_sum(k, true); }

static trn_err count_up_to(trn_kctx *k)
{
    trn_dtype T = trn_attr_type(k->node, "T");
    int64_t limit = trn_attr_int(k->node, "limit"), now;
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, T, &scalar));
    trn_vars s;
    TRN_TRY(trn_vars_lock(&s, k, 1, T));
    trn_tensor *t = s.v[0]->value;
    trn_err err = TRN_OK;
    if (t->shape.rank != 0) {
        char a[TRN_SHAPE_TEXT];
        err = TRN_BAD("input is not a scalar: %s is %s", s.v[0]->name, trn_shape_text(a, &t->shape));
        return trn_vars_done(&s, k, err);
    }
    now = T == TRN_INT32 ? TRN_DATA(t, int32_t)[0] : TRN_DATA(t, int64_t)[0];
    if (now >= limit)
        err = trn_errorf(TRN_OUT_OF_RANGE, "Reached limit of %lld", (long long)limit);
    else
        err = trn_vars_write(&t, &s, 0);
    if (!err && T == TRN_INT32) {
        TRN_DATA_MUT(out, int32_t)[0] = (int32_t)now;
        TRN_DATA_MUT(t, int32_t)[0] = (int32_t)((uint32_t)now + 1);
    } else if (!err) {
        TRN_DATA_MUT(out, int64_t)[0] = now;
        TRN_DATA_MUT(t, int64_t)[0] = now + 1;
    }
    return trn_vars_done(&s, k, err);
}

/* ---- resource variables --------------------------------------------------------------------------------------- */

struct handle_state {
    trn_tensor *handle; /* NULL: anonymous */
};

static trn_err var_handle_init(trn_kinit *ki)
{
    struct handle_state *st = trn_xalloc(sizeof *st);
    if (strcmp(trn_attr_str(ki->node, "shared_name"), TRN_VAR_ANONYMOUS) != 0) {
        const char *container, *name;
        trn_res_name(ki->node, &container, &name);
        trn_err err = trn_res_handle(&st->handle, ki->node, container, name, VAR_TYPE_NAME, trn_attr_type(ki->node, "dtype"),
                                     trn_attr_shape(ki->node, "shape"));
        if (err) {
            free(st);
            return err;
        }
    }
    ki->state = st;
    return TRN_OK;
}

static void var_handle_fini(void *state)
{
    struct handle_state *st = state;
    if (st)
        trn_tensor_unref(st->handle);
    free(st);
}

/* A variable that lives as long as a handle to it. */
static trn_err anonymous_var(trn_kctx *k)
{
    trn_dtype dtype = trn_attr_type(k->node, "dtype");
    const trn_shape *shape = trn_attr_shape(k->node, "shape");
    const char *debug = trn_attr_str(k->node, "debug_name");
    char name[128];
    snprintf(name, sizeof name, "%.80s_anonymous_%016llx", *debug ? debug : k->node->name, (unsigned long long)trn_random64());
    trn_var *v;
    TRN_TRY(trn_var_new(&v, name, dtype, shape));
    trn_tensor *t;
    trn_err err = trn_res_handle(&t, k->node, trn_attr_str(k->node, "container"), name, VAR_TYPE_NAME, dtype, shape);
    if (err) {
        trn_resource_unref(v);
        return err;
    }
    trn_handle *h = TRN_DATA_MUT(t, trn_handle *)[0];
    h->res = v;
    h->res_unref = trn_resource_unref;
    trn_out_set(k, 0, t);
    return TRN_OK;
}

static trn_err var_handle(trn_kctx *k)
{
    const struct handle_state *st = k->state;
    if (!st->handle)
        return anonymous_var(k);
    trn_out_set(k, 0, trn_tensor_ref(st->handle));
    return TRN_OK;
}

static trn_err var_handles(trn_kctx *k)
{
    const trn_attr *containers = trn_node_attr(k->node, "containers"), *names = trn_node_attr(k->node, "shared_names"),
                   *dtypes = trn_node_attr(k->node, "dtypes"), *shapes = trn_node_attr(k->node, "shapes");
    int n = k->n_out;
    TRN_CHECK_ARG(containers && names && dtypes && shapes && containers->n == n && names->n == n && dtypes->n == n && shapes->n == n,
                  "containers, shared_names, dtypes and shapes must have N = %d elements each", n);
    for (int i = 0; i < n; i++) {
        trn_tensor *t;
        TRN_TRY(trn_res_handle(&t, k->node, containers->list[i].s.p, names->list[i].s.p, VAR_TYPE_NAME, dtypes->list[i].type,
                               shapes->list[i].shape));
        trn_out_set(k, i, t);
    }
    return TRN_OK;
}

static trn_err read_one(trn_kctx *k, int i, trn_dtype dtype)
{
    trn_var *v;
    TRN_TRY(trn_var_missing_as(trn_k_var(&v, k, i, dtype), TRN_FAILED_PRECONDITION));
    trn_tensor *t;
    trn_err err = trn_var_read(&t, v);
    trn_resource_unref(v);
    TRN_TRY(err);
    trn_out_set(k, i, t);
    return TRN_OK;
}

static trn_err read_variable(trn_kctx *k) { return read_one(k, 0, trn_attr_type(k->node, "dtype")); }

static trn_err read_variables(trn_kctx *k)
{
    TRN_CHECK_ARG(k->n_in == k->n_out, "%d variables, %d dtypes", k->n_in, k->n_out);
    for (int i = 0; i < k->n_in; i++)
        TRN_TRY(read_one(k, i, k->node->out_types[i]));
    return TRN_OK;
}

static trn_err var_is_initialized(trn_kctx *k)
{
    trn_var *v;
    bool is = false;
    trn_err err = trn_k_var(&v, k, 0, TRN_INVALID);
    if (!err) {
        trn_lock(&v->mu);
        is = v->value != NULL;
        trn_unlock(&v->mu);
        trn_resource_unref(v);
    } else if (trn_err_code(err) != TRN_NOT_FOUND) {
        return err;
    }
    trn_err_free(err);
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, TRN_BOOL, &scalar));
    TRN_DATA_MUT(out, bool)[0] = is;
    return TRN_OK;
}

static trn_err variable_shape(trn_kctx *k)
{
    trn_var *v;
    TRN_TRY(trn_k_var(&v, k, 0, TRN_INVALID));
    trn_tensor *t, *out;
    trn_err err = trn_var_read(&t, v);
    trn_resource_unref(v);
    TRN_TRY(err);
    trn_shape shape = t->shape, vec = trn_shape_vector(shape.rank);
    trn_tensor_unref(t);
    trn_dtype dtype = trn_attr_type(k->node, "out_type");
    TRN_TRY(trn_out_new(&out, k, 0, dtype, &vec));
    for (int i = 0; i < shape.rank; i++) {
        if (dtype == TRN_INT64) {
            TRN_DATA_MUT(out, int64_t)[i] = shape.dim[i];
            continue;
        }
        TRN_CHECK_ARG(shape.dim[i] <= INT32_MAX, "dim %d of the variable is %lld: it does not fit out_type int32", i,
                      (long long)shape.dim[i]);
        TRN_DATA_MUT(out, int32_t)[i] = (int32_t)shape.dim[i];
    }
    return TRN_OK;
}

static trn_err sh_vector(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(-1);
    return TRN_OK;
}

static trn_err destroy_resource(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->count == 1 && TRN_DATA(t, trn_handle *)[0], "input is not a resource handle");
    const trn_handle *h = TRN_DATA(t, trn_handle *)[0];
    if (h->res)
        return TRN_OK; /* goes with its last handle */
    trn_err err = trn_resmgr_del_handle(trn_k_resmgr(k), h);
    if (err && trn_err_code(err) == TRN_NOT_FOUND && trn_attr_bool(k->node, "ignore_lookup_error")) {
        trn_err_free(err);
        err = TRN_OK;
    }
    return err;
}

/* Reads never copy here, so there is nothing to disable; the variable must be there all the same. */
static trn_err disable_copy_on_read(trn_kctx *k)
{
    trn_var *v;
    TRN_TRY(trn_var_missing_as(trn_k_var(&v, k, 0, TRN_INVALID), TRN_FAILED_PRECONDITION));
    trn_resource_unref(v);
    return TRN_OK;
}

/* clang-format off */
#define STATEFUL TRN_OP_STATEFUL
#define CHEAP (TRN_OP_STATEFUL | TRN_OP_CHEAP)
const trn_op trn_ops_var[] = {
    {"VariableV2", "-> ref:&dtype; shape:shape, dtype:any, container:string=\"\", shared_name:string=\"\"", trn_sh_attr, variable, CHEAP},
    {"Variable", "-> ref:&dtype; shape:shape, dtype:any, container:string=\"\", shared_name:string=\"\"", sh_variable_old, variable, CHEAP},
    {"TemporaryVariable", "-> ref:&dtype; shape:shape, dtype:any, var_name:string=\"\"", trn_sh_attr, temporary_variable, STATEFUL},
    {"DestroyTemporaryVariable", "ref:&T -> value:T; T:any, var_name:string", trn_sh_same, destroy_temporary_variable, CHEAP},
    {"Assign", "ref:&T, value:T -> output_ref:&T; T:any, validate_shape:bool=true, use_locking:bool=true", sh_assign, assign,
     CHEAP | TRN_OP_UNINIT_OK},
    {"AssignAdd", "ref:&T, value:T -> output_ref:&T; T:num, use_locking:bool=false", trn_sh_update, assign_add, STATEFUL | TRN_OP_STREAM},
    {"AssignSub", "ref:&T, value:T -> output_ref:&T; T:num, use_locking:bool=false", trn_sh_update, assign_sub, STATEFUL | TRN_OP_STREAM},
    {"IsVariableInitialized", "ref:&dtype -> is_initialized:bool; dtype:any", trn_sh_scalar, is_variable_initialized,
     CHEAP | TRN_OP_UNINIT_OK},
    {"CountUpTo", "ref:&T -> output:T; limit:int, T:i32|i64", trn_sh_scalar, count_up_to, CHEAP},
    {"ResourceCountUpTo", "resource:res -> output:T; limit:int, T:i32|i64", trn_sh_scalar, count_up_to, CHEAP},
    {"VarHandleOp",
     "-> resource:res; container:string=\"\", shared_name:string=\"\", debug_name:string=\"\", dtype:any, shape:shape, "
     "allowed_devices:list(string)=[]", trn_sh_scalar, var_handle, CHEAP, var_handle_init, var_handle_fini},
    {"_VarHandlesOp",
     "-> resources:N*res; containers:list(string), shared_names:list(string), N:int>=0, dtypes:list(type), shapes:list(shape)",
     trn_sh_scalar, var_handles, CHEAP},
    {"ReadVariableOp", "resource:res -> value:dtype; dtype:any", trn_sh_unknown, read_variable, CHEAP},
    {"_ReadVariablesOp", "resources:N*res -> values:dtypes; N:int>=0, dtypes:list(type)>=1", trn_sh_unknown, read_variables, CHEAP},
    {"AssignVariableOp", "resource:res, value:dtype ->; dtype:any, validate_shape:bool=false", trn_sh_unknown, assign_variable, CHEAP},
    {"AssignAddVariableOp", "resource:res, value:dtype ->; dtype:num", trn_sh_unknown, assign_add, STATEFUL | TRN_OP_STREAM},
    {"AssignSubVariableOp", "resource:res, value:dtype ->; dtype:num", trn_sh_unknown, assign_sub, STATEFUL | TRN_OP_STREAM},
    {"VarIsInitializedOp", "resource:res -> is_initialized:bool", trn_sh_scalar, var_is_initialized, CHEAP},
    {"VariableShape", "input:res -> output:out_type; out_type:i32|i64=i32", sh_vector, variable_shape, CHEAP},
    {"DestroyResourceOp", "resource:res ->; ignore_lookup_error:bool=true", trn_sh_unknown, destroy_resource, CHEAP},
    {"DisableCopyOnRead", "resource:res ->", trn_sh_unknown, disable_copy_on_read, CHEAP},
    {0},
};
/* clang-format on */
