/* Constants, placeholders, groups and variables: the nodes that every model is made around. Node names are TensorFlow's: graphs and checkpoints are exchanged. */
#include <stdlib.h>

#include "graph/builder.h"
#include "graph/graph_priv.h"

/* ---- constants ------------------------------------------------------------------------------------------------------ */

trn_out trn_const(trn_builder *b, trn_tensor *value)
{
    if (!value)
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_const of no tensor: no memory, or dtype and dims that make none"));
    trn_attr at[] = {trn_at_type("dtype", value->dtype), trn_at_tensor("value", value)};
    trn_out o = trn_node_add(b, "Const", NULL, 0, at, 2);
    trn_tensor_unref(value);
    return o;
}

trn_out trn_const_f32(trn_builder *b, float v) { return trn_const(b, trn_tensor_f32(v)); }
trn_out trn_const_i32(trn_builder *b, int32_t v) { return trn_const(b, trn_tensor_i32(v)); }
trn_out trn_const_i64(trn_builder *b, int64_t v) { return trn_const(b, trn_tensor_i64(v)); }
trn_out trn_const_bool(trn_builder *b, bool v) { return trn_const(b, trn_tensor_bool(v)); }
trn_out trn_const_str(trn_builder *b, const char *v) { return trn_const(b, trn_tensor_str(v, strlen(v))); }
trn_out trn_const_i32s(trn_builder *b, const int32_t *v, int n) { return trn_const(b, trn_tensor_from(TRN_INT32, 1, (int64_t[]){n}, v)); }

trn_out trn_const_num(trn_builder *b, trn_dtype dtype, double v)
{
    switch (dtype) {
    case TRN_FLOAT: return trn_const(b, trn_tensor_f32((float)v));
    case TRN_DOUBLE: return trn_const(b, trn_tensor_f64(v));
    case TRN_INT32: return trn_const(b, trn_tensor_i32((int32_t)v));
    case TRN_INT64: return trn_const(b, trn_tensor_i64((int64_t)v));
    case TRN_BOOL: return trn_const(b, trn_tensor_bool(v != 0));
    case TRN_INT8: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(int8_t){(int8_t)v}));
    case TRN_UINT8: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(uint8_t){(uint8_t)v}));
    case TRN_INT16: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(int16_t){(int16_t)v}));
    case TRN_UINT16: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(uint16_t){(uint16_t)v}));
    case TRN_UINT32: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(uint32_t){(uint32_t)v}));
    case TRN_UINT64: return trn_const(b, trn_tensor_from(dtype, 0, NULL, &(uint64_t){(uint64_t)v}));
    case TRN_COMPLEX64: return trn_const(b, trn_tensor_from(dtype, 0, NULL, (float[]){(float)v, 0}));
    case TRN_COMPLEX128: return trn_const(b, trn_tensor_from(dtype, 0, NULL, (double[]){v, 0}));
    case TRN_HALF: case TRN_BFLOAT16: {
        const char *name = trn_take_name(b, "Const");
        trn_out f = trn_const(b, trn_tensor_f32((float)v));
        trn_attr at = trn_at_type("DstT", dtype);
        return trn_node_add(trn_named(b, name), "Cast", &f, 1, &at, 1);
    }
    default: return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "a number is no %s", trn_dtype_name(dtype)));
    }
}

trn_out trn_fill(trn_builder *b, trn_dtype dtype, trn_shape shape, double v)
{
    const char *name = trn_take_name(b, v == 0 ? "zeros" : "Fill");
    b = b->real;
    if (b->err)
        return TRN_NONE;
    if (!trn_shape_is_full(&shape)) {
        char text[TRN_SHAPE_TEXT];
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "'%s': a shape with unknown dims (%s) cannot be filled", name, trn_shape_text(text, &shape)));
    }
    if (shape.rank == 0)
        return trn_const_num(trn_named(b, name), dtype, v);
    trn_name_scope(b, name);
    bool wide = false;
    for (int i = 0; i < shape.rank; i++)
        wide |= shape.dim[i] > INT32_MAX;
    int32_t d32[TRN_MAX_RANK];
    for (int i = 0; i < shape.rank && !wide; i++)
        d32[i] = (int32_t)shape.dim[i];
    trn_out dims = trn_const(trn_named(b, "shape_as_tensor"), trn_tensor_from(wide ? TRN_INT64 : TRN_INT32, 1, (int64_t[]){shape.rank}, wide ? (void *)shape.dim : d32));
    trn_out x = trn_const_num(trn_named(b, "Const"), dtype, v);
    const char *whole = b->scope;
    trn_end(b);
    /* The scope's own name is the result's, as in TensorFlow's zeros. */
    if (b->err)
        return TRN_NONE;
    trn_out in[] = {dims, x};
    return trn_builder__add_in_scope(b, whole, "Fill", in, 2, NULL, 0);
}

trn_out trn_zeros(trn_builder *b, trn_dtype dtype, trn_shape shape) { return trn_fill(b, dtype, shape, 0); }

trn_out trn_placeholder(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape)
{
    trn_attr at[] = {trn_at_type("dtype", dtype), trn_at_shape("shape", &shape)};
    return trn_node_add(trn_named(b, name), "Placeholder", NULL, 0, at, 2);
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static trn_out wait_for(trn_builder *b, const trn_out *ops, int n)
{
    trn_control_scope(b, ops, n);
    trn_out o = trn_node_add(b, "NoOp", NULL, 0, NULL, 0);
    trn_end(b);
    return o;
}

/* One message from each device, not one from each node. */
trn_out trn_group(trn_builder *b, const trn_out *ops, int n)
{
    const char *name = trn_take_name(b, "group_deps");
    b = b->real;
    if (b->err)
        return TRN_NONE;
    bool mixed = false;
    for (int i = 0; i < n; i++) {
        const trn_gnode *nd = trn_builder__node(b, ops[i]);
        if (!nd)
            return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_group '%s': member %d is nothing", name, i));
        mixed |= strcmp(nd->n.device, b->g->node[ops[0].node]->n.device) != 0;
    }
    if (!mixed) {
        trn_device_scope(b, n ? b->g->node[ops[0].node]->n.device : "");
        trn_out o = wait_for(trn_named(b, name), ops, n);
        trn_end(b);
        return o;
    }
    trn_name_scope(b, name);
    const char *whole = b->scope;
    trn_out *part = trn_arena_alloc(b->arena, (size_t)n * sizeof *part), *same = trn_arena_alloc(b->arena, (size_t)n * sizeof *same);
    bool *done = trn_arena_alloc(b->arena, (size_t)n);
    int n_parts = 0;
    for (int i = 0; i < n && !b->err; i++) {
        if (done[i])
            continue;
        const char *dev = b->g->node[ops[i].node]->n.device;
        int m = 0;
        for (int k = i; k < n; k++)
            if (!done[k] && strcmp(b->g->node[ops[k].node]->n.device, dev) == 0) {
                done[k] = true;
                same[m++] = ops[k];
            }
        trn_device_scope(b, dev);
        part[n_parts++] = wait_for(trn_named(b, "NoOp"), same, m);
        trn_end(b);
    }
    trn_end(b);
    if (b->err)
        return TRN_NONE;
    trn_control_scope(b, part, n_parts);
    trn_out o = trn_builder__add_in_scope(b, whole, "NoOp", NULL, 0, NULL, 0);
    trn_end(b);
    return o;
}

trn_out trn_with_deps(trn_builder *b, trn_out value, const trn_out *after, int n)
{
    const char *name = trn_take_name(b, "control_dependency");
    b = b->real;
    if (b->err)
        return TRN_NONE;
    if (!trn_builder__node(b, value))
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_with_deps '%s': of nothing", name));
    trn_colocate_scope(b, value);
    trn_control_scope(b, after, n);
    trn_out o = trn_node_add(trn_named(b, name), "Identity", &value, 1, NULL, 0);
    trn_end(b);
    trn_end(b);
    return o;
}

/* ---- variables ------------------------------------------------------------------------------------------------------ */

void trn_use_ref_variables(trn_builder *b, bool yes) { b = b->real; b->ref_variables = yes; }

/* What computes the initial value goes where the variable is: nothing then has to travel, and the chief does not do it alone. */
static void move_initial(trn_builder *b, trn_out o, const char *device, int depth)
{
    trn_gnode *nd = trn_builder__node(b, o);
    if (!nd || nd->id < b->sent || depth > 64 || strcmp(nd->n.device, device) == 0)
        return;
    static const char *const stay[] = {"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "VariableV2", "Variable"};
    for (size_t i = 0; i < TRN_COUNTOF(stay); i++)
        if (strcmp(nd->n.op, stay[i]) == 0)
            return;
    if (trn_node_attr(&nd->n, "_class"))
        return;
    nd->n.device = device;
    for (int i = 0; i < nd->n.n_in; i++)
        move_initial(b, (trn_out){nd->in[i].node, nd->in[i].slot}, device, depth + 1);
}

static trn_attr at_class(trn_builder *b, const char *name)
{
    trn_attr_val *v = trn_arena_alloc(b->arena, sizeof *v);
    v->s.p = trn_arena_printf(b->arena, "loc:@%s", name);
    v->s.n = strlen(v->s.p);
    return (trn_attr){.name = "_class", .kind = TRN_ATTR_STRING, .is_list = true, .n = 1, .list = v};
}

static trn_out part(trn_builder *b, const trn_variable *v, const char *dev, const char *name, const char *op, const trn_out *in, int n, const trn_attr *at, int n_at)
{
    return trn_builder__add_at(b, trn_arena_printf(b->arena, "%s/%s", v->name, name), dev, op, in, n, at, n_at);
}

static void make_resource(trn_builder *b, trn_variable *v)
{
    trn_attr at[] = {trn_at_type("dtype", v->dtype), trn_at_shape("shape", &v->shape), trn_at_str("shared_name", v->name), trn_at_str("container", "")};
    v->handle = trn_builder__add_in_scope(b, v->name, "VarHandleOp", NULL, 0, at, 4);
    const trn_gnode *h = trn_builder__node(b, v->handle);
    if (!h)
        return;
    const char *dev = h->n.device;
    move_initial(b, v->initial, dev, 0);
    v->is_initialized = part(b, v, dev, "IsInitialized/VarIsInitializedOp", "VarIsInitializedOp", &v->handle, 1, NULL, 0);
    v->init = part(b, v, dev, "Assign", "AssignVariableOp", (trn_out[]){v->handle, v->initial}, 2, NULL, 0);
    v->value = part(b, v, dev, "Read/ReadVariableOp", "ReadVariableOp", &v->handle, 1, at, 1);
}

static void make_ref(trn_builder *b, trn_variable *v)
{
    /* The shared name of a TF1 variable is its node's: the attr stays empty. */
    trn_attr at[] = {trn_at_type("dtype", v->dtype), trn_at_shape("shape", &v->shape)};
    v->handle = trn_builder__add_in_scope(b, v->name, "VariableV2", NULL, 0, at, 2);
    const trn_gnode *h = trn_builder__node(b, v->handle);
    if (!h)
        return;
    const char *dev = h->n.device;
    trn_attr with = at_class(b, v->name);
    move_initial(b, v->initial, dev, 0);
    v->init = trn_out_node(part(b, v, dev, "Assign", "Assign", (trn_out[]){v->handle, v->initial}, 2, &with, 1));
    v->value = part(b, v, dev, "read", "Identity", &v->handle, 1, &with, 1);
    v->is_initialized = part(b, v, dev, "IsVariableInitialized", "IsVariableInitialized", &v->handle, 1, &with, 1);
}

trn_variable *trn_variable_new(trn_builder *b, const char *name, trn_out initial, unsigned flags)
{
    b = b->real;
    if (b->err)
        return trn_builder__no_variable(b);
    const trn_shape *shape = trn_out_shape(b, initial);
    trn_err err = TRN_OK;
    if (!trn_builder__node(b, initial) || initial.slot < 0)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s': no initial value", name);
    else if (!trn_shape_is_full(shape)) {
        char text[TRN_SHAPE_TEXT];
        err = trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s': the shape of its initial value must be known, it is %s", name, trn_shape_text(text, shape));
    }
    if (err) {
        trn_builder_fail(b, err);
        return trn_builder__no_variable(b);
    }
    trn_variable *v = trn_arena_alloc(b->arena, sizeof *v);
    const char *asked = *b->scope ? trn_arena_printf(b->arena, "%s/%s", b->scope, name) : name;
    if (flags & TRN_SLOT)
        flags |= TRN_NOT_TRAINABLE;
    if (b->ref_variables)
        flags |= TRN_REF_VARIABLE;
    *v = (trn_variable){.name = trn_builder__unique(b, asked), .dtype = trn_out_dtype(b, initial), .shape = *shape, .flags = flags, .initial = initial,
                        .handle = TRN_NONE, .value = TRN_NONE, .init = TRN_NONE, .is_initialized = TRN_NONE};
    if (flags & TRN_REF_VARIABLE)
        make_ref(b, v);
    else
        make_resource(b, v);
    if (b->err)
        return trn_builder__no_variable(b);
    TRN_PUSH(b->vars, b->n_vars, b->cap_vars, v);
    trn_map_puts(b->var_by_name, v->name, v);
    trn_map_puti(b->var_by_node, (uint64_t)v->handle.node, v);
    trn_map_puti(b->var_by_node, (uint64_t)v->value.node, v);
    return v;
}

/* What a failed trn_variable_new gives, so that model code may go on with v->value. */
trn_variable *trn_builder__no_variable(trn_builder *b)
{
    b = b->real;
    trn_variable *v = trn_arena_alloc(b->arena, sizeof *v);
    *v = (trn_variable){.name = "", .shape = trn_shape_unknown(), .handle = TRN_NONE, .value = TRN_NONE, .initial = TRN_NONE, .init = TRN_NONE, .is_initialized = TRN_NONE};
    return v;
}

trn_out trn_variable_read(trn_builder *b, trn_variable *v)
{
    trn_attr at = trn_at_type("dtype", v->dtype);
    return v->flags & TRN_REF_VARIABLE ? trn_node_add(b, "Identity", &v->handle, 1, NULL, 0) : trn_node_add(b, "ReadVariableOp", &v->handle, 1, &at, 1);
}

static trn_out change(trn_builder *b, trn_variable *v, trn_out by, const char *ref, const char *resource)
{
    trn_out in[] = {v->handle, by};
    bool is_ref = v->flags & TRN_REF_VARIABLE;
    const char *name = trn_take_name(b, is_ref ? ref : resource);
    b = b->real;
    if (b->err)
        return TRN_NONE;
    const trn_shape *s = trn_out_shape(b, by);
    if (!trn_shape_compatible(s, &v->shape)) {
        char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
        return trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "variable '%s' has shape %s, the value to put there %s", v->name, trn_shape_text(x, &v->shape), trn_shape_text(y, s)));
    }
    const char *dev = trn_out_op(b, v->handle)->device;
    trn_device_scope(b, ""); /* the variable's own device, whatever is around */
    trn_device_scope(b, dev);
    trn_out o = trn_node_add(trn_named(b, name), is_ref ? ref : resource, in, 2, NULL, 0);
    trn_end(b);
    trn_end(b);
    return trn_out_node(o);
}

trn_out trn_variable_assign(trn_builder *b, trn_variable *v, trn_out value) { return change(b, v, value, "Assign", "AssignVariableOp"); }
trn_out trn_variable_assign_add(trn_builder *b, trn_variable *v, trn_out delta) { return change(b, v, delta, "AssignAdd", "AssignAddVariableOp"); }

trn_variable *trn_variable_of(const trn_builder *b, trn_out o) { b = b->real; return o.node < 0 ? NULL : trn_map_geti(b->var_by_node, (uint64_t)o.node); }
trn_variable *trn_variable_find(const trn_builder *b, const char *name) { b = b->real; return trn_map_gets(b->var_by_name, name); }

static bool is_in(const trn_variable *v, trn_which which)
{
    bool local = v->flags & TRN_LOCAL;
    return which == TRN_VARS_ALL || (which == TRN_VARS_LOCAL) == local ? which != TRN_VARS_TRAINABLE || !(v->flags & TRN_NOT_TRAINABLE) : false;
}

trn_variable **trn_variables(int *n, trn_builder *b, trn_which which)
{
    b = b->real;
    trn_variable **v = trn_arena_alloc(b->arena, (size_t)TRN_MAX(b->n_vars, 1) * sizeof *v);
    *n = 0;
    for (int i = 0; i < b->n_vars; i++)
        if (is_in(b->vars[i], which))
            v[(*n)++] = b->vars[i];
    return v;
}

trn_out trn_variables_init(trn_builder *b, trn_which which)
{
    b = b->real;
    static const char *const name[] = {"init", "init_trainable", "init_local", "init_all"};
    int n;
    trn_variable **v = trn_variables(&n, b, which);
    /* The key holds how many there were: variables that came since make a new one. */
    uint64_t key = (uint64_t)which << 32 | (uint32_t)n;
    trn_out *made = trn_map_geti(b->inits, key);
    if (made)
        return *made;
    trn_out *ops = trn_arena_alloc(b->arena, (size_t)TRN_MAX(n, 1) * sizeof *ops);
    for (int i = 0; i < n; i++)
        ops[i] = v[i]->init;
    trn_name_scope_again(b, "");
    trn_control_scope(b, NULL, 0);
    trn_out o = trn_group(trn_named(b, name[which]), ops, n);
    trn_end(b);
    trn_end(b);
    if (!b->err) {
        made = trn_arena_alloc(b->arena, sizeof *made);
        *made = o;
        trn_map_puti(b->inits, key, made);
    }
    return o;
}

trn_variable *trn_global_step(trn_builder *b)
{
    b = b->real;
    trn_variable *v = trn_variable_find(b, "global_step");
    if (v)
        return v;
    trn_name_scope_again(b, "");
    trn_control_scope(b, NULL, 0);
    trn_out zero = trn_const_i64(trn_named(b, "global_step/Initializer/zeros"), 0);
    v = trn_variable_new(b, "global_step", zero, TRN_NOT_TRAINABLE);
    trn_end(b);
    trn_end(b);
    return v;
}
