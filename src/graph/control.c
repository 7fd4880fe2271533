/* trainera/control.h: decisions, loops and functions, as TensorFlow's functional ops. */
#include <trainera/control.h>

#include "graph/function.h"
#include "graph/graph_priv.h"

static trn_outs nothing(trn_builder *b, int n)
{
    trn_outs r = {n, trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *r.at)};
    for (int i = 0; i < n; i++)
        r.at[i] = TRN_NONE;
    return r;
}

static trn_outs all_of(trn_builder *b, trn_out o, int n)
{
    trn_outs r = nothing(b, n);
    for (int i = 0; i < n && trn_out_is(o); i++)
        r.at[i] = trn_out_nth(o, i);
    return r;
}

/* What a body makes: nodes from here on. */
typedef struct frame {
    int first, n_vars;
} frame;

static frame open_body(trn_builder *b, const char *scope)
{
    trn_name_scope(b, scope);
    trn_control_scope(b, NULL, 0);
    return (frame){b->g->n, b->n_vars};
}

static void close_body(trn_builder *b, const frame *fr, const char *what)
{
    if (b->n_vars != fr->n_vars)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s makes variable '%s' in its body: make it before", what, b->vars[b->n_vars - 1]->name));
    trn_end(b);
    trn_end(b);
}

static bool inside(void *arg, int node) { return node >= *(const int *)arg; }
#define MAX_CONST 16384

static const trn_shape *shapes_of(trn_builder *b, const trn_out *o, int n)
{
    trn_shape *s = trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *s);
    for (int i = 0; i < n; i++)
        s[i] = *trn_out_shape(b, o[i]);
    return s;
}

static trn_attr shapes_attr(trn_builder *b, const trn_shape *s, int n)
{
    trn_attr_val *v = trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i].shape = &s[i];
    return (trn_attr){.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = n, .list = v};
}

static trn_attr func_attr(trn_builder *b, const char *name, const char *fn)
{
    trn_func_ref *f = trn_builder_alloc(b, sizeof *f);
    f->name = fn;
    return (trn_attr){.name = name, .kind = TRN_ATTR_FUNC, .v.func = f};
}

static trn_attr types_attr(trn_builder *b, const char *name, const trn_out *o, int n)
{
    trn_dtype *t = trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = trn_out_dtype(b, o[i]);
    return trn_attr__types(b->arena, name, t, n);
}

static trn_attr lowered(void) { return trn_attr__bool("_lower_using_switch_merge", true); }

/* ---- functions */

trn_function *trn_function_new(trn_builder *b, const char *name, trn_function_fn fn, void *arg, const trn_out *like, int n_args, int n_rets)
{
    b = b->real;
    if (!trn_builder_ok(b))
        return NULL;
    trn_dtype *types = trn_builder_alloc(b, ((size_t)n_args + 1) * sizeof *types);
    trn_shape *shapes = trn_builder_alloc(b, ((size_t)n_args + 1) * sizeof *shapes);
    for (int i = 0; i < n_args; i++) {
        types[i] = trn_out_dtype(b, like[i]);
        shapes[i] = *trn_out_shape(b, like[i]);
    }
    return trn_function__of(b, name, fn, arg, types, shapes, n_args, n_rets);
}

trn_function *trn_function__of(trn_builder *b, const char *name, trn_function_fn fn, void *arg, const trn_dtype *types, const trn_shape *shapes, int n_args, int n_rets)
{
    b = b->real;
    if (!trn_builder_ok(b))
        return NULL;
    trn_arena *tmp = trn_arena_new();
    trn_fn f = {.tmp = tmp};
    frame fr = open_body(b, name);
    trn_out *in = trn_arena_alloc(tmp, ((size_t)n_args + 1) * sizeof *in);
    trn_outs out = nothing(b, n_rets);
    for (int i = 0; i < n_args; i++)
        trn_fn__add_arg(&f, in[i] = trn_fn__placeholder(b, types[i], &shapes[i]));
    if (trn_builder_ok(b))
        fn(arg, b, in, n_args, out.at, n_rets);
    close_body(b, &fr, name);
    trn_function *r = trn_builder_alloc(b, sizeof *r);
    if (trn_builder_ok(b)) {
        for (int i = 0; i < n_rets; i++)
            trn_fn__add_ret(&f, out.at[i]);
        trn_fn__add_effects(&f, b, fr.first);
        trn_fn__lift(&f, b, fr.first, name);
        *r = (trn_function){f.name, n_args, n_rets, f.stateful, trn_arena_dup(b->arena, f.args + n_args, (size_t)(f.n_args - n_args) * sizeof *f.args), f.n_args - n_args};
    }
    trn_arena_free(tmp);
    return trn_builder_ok(b) ? r : NULL;
}

trn_outs trn_call(trn_builder *b, const trn_function *f, const trn_out *in, int n_in)
{
    if (!f || !trn_builder_ok(b))
        return nothing(b, f ? f->n_rets : 0);
    if (n_in != f->n_args) {
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' takes %d arguments, not %d", f->name, f->n_args, n_in));
        return nothing(b, f->n_rets);
    }
    trn_out *all = trn_builder_alloc(b, (size_t)(n_in + f->n_outside + 1) * sizeof *all);
    for (int i = 0; i < n_in; i++)
        all[i] = in[i];
    for (int i = 0; i < f->n_outside; i++)
        all[n_in + i] = f->outside[i];
    trn_arena *tmp = trn_arena_new();
    trn_dtype *args, *rets;
    int n_args, n_rets;
    trn_err err = trn_funclib_signature(b->g->lib, tmp, &(trn_func_ref){.name = f->name}, &n_args, &args, &n_rets, &rets);
    trn_out o = TRN_NONE;
    if (err) {
        trn_builder_fail(b, err);
    } else {
        trn_attr a[] = {func_attr(b, "f", f->name), trn_attr__types(b->arena, "Tout", rets, n_rets)};
        o = trn_node_add(b, f->stateful ? "StatefulPartitionedCall" : "PartitionedCall", all, n_in + f->n_outside, a, 2);
    }
    trn_arena_free(tmp);
    return all_of(b, o, f->n_rets);
}

/* ---- decisions */

trn_outs trn_cond(trn_builder *b, trn_out pred, trn_branch_fn if_true, trn_branch_fn if_false, void *arg, int n_out)
{
    if (!trn_builder_ok(b))
        return nothing(b, n_out);
    trn_arena *tmp = trn_arena_new();
    const char *name = trn_take_name(b, "cond");
    b = b->real;
    trn_name_scope(b, name);
    const char *scope = trn_scope_name(b);
    static const char *const side[] = {"true", "false"};
    trn_fn f[2] = {{.tmp = tmp}, {.tmp = tmp}};
    trn_outs out[2] = {nothing(b, n_out), nothing(b, n_out)};
    trn_shape *shape = trn_builder_alloc(b, (size_t)TRN_MAX(n_out, 1) * sizeof *shape);
    trn_dtype *type = trn_builder_alloc(b, (size_t)TRN_MAX(n_out, 1) * sizeof *type);
    bool stateful = false;
    /* Both are built before either is lifted out: they need the same inputs. */
    int first = b->g->n;
    for (int k = 0; k < 2; k++) {
        frame fr = open_body(b, side[k]);
        (k ? if_false : if_true)(arg, b, out[k].at, n_out);
        close_body(b, &fr, scope);
        for (int i = 0; i < n_out && trn_builder_ok(b); i++) {
            trn_fn__add_ret(&f[k], out[k].at[i]);
            const trn_shape *s = trn_out_shape(b, out[k].at[i]);
            trn_dtype t = trn_out_dtype(b, out[k].at[i]);
            if (k && t != type[i])
                trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_cond '%s': result %d is %s if true, %s if false", scope, i, trn_dtype_name(type[i]), trn_dtype_name(t)));
            type[i] = t;
            if (!k)
                shape[i] = *s;
            else if (shape[i].rank != s->rank)
                shape[i] = trn_shape_unknown();
            else
                for (int d = 0; d < s->rank; d++)
                    shape[i].dim[d] = shape[i].dim[d] == s->dim[d] ? s->dim[d] : -1;
        }
        if (trn_builder_ok(b))
            trn_fn__add_effects(&f[k], b, fr.first);
    }
    trn_fn__collect(&f[0], b, inside, &first, MAX_CONST);
    for (int i = 0; i < f[0].n_args; i++)
        trn_fn__add_arg(&f[1], f[0].args[i]);
    trn_fn__collect(&f[1], b, inside, &first, MAX_CONST);
    for (int i = f[0].n_args; i < f[1].n_args; i++)
        trn_fn__add_arg(&f[0], f[1].args[i]);
    for (int k = 0; k < 2 && trn_builder_ok(b); k++) {
        trn_fn__define(&f[k], b, trn_arena_printf(tmp, "%s_%s", scope, side[k]));
        stateful |= f[k].stateful;
    }
    trn_builder__drop(b, first);
    trn_end(b);
    trn_out o = TRN_NONE;
    if (trn_builder_ok(b)) {
        trn_out *in = trn_arena_alloc(tmp, ((size_t)f[0].n_args + 1) * sizeof *in);
        in[0] = pred;
        for (int i = 0; i < f[0].n_args; i++)
            in[i + 1] = f[0].args[i];
        trn_attr a[] = {func_attr(b, "then_branch", f[0].name), func_attr(b, "else_branch", f[1].name), trn_attr__types(b->arena, "Tout", type, n_out),
                        shapes_attr(b, shape, n_out), lowered()};
        o = trn_builder__add_in_scope(b, scope, stateful ? "If" : "StatelessIf", in, f[0].n_args + 1, a, 5);
    }
    trn_arena_free(tmp);
    return all_of(b, o, n_out);
}

/* ---- loops */

static trn_out less_than(trn_builder *b, trn_out count, int64_t max) { return trn_node_add(b, "Less", TRN_OUTS(count, trn_const_i32(b, (int32_t)max)), NULL, 0); }

trn_outs trn_while(trn_builder *b, trn_loop_cond_fn cond, trn_loop_body_fn body, void *arg, const trn_out *vars, int n, const trn_loop_opts *opts)
{
    static const trn_loop_opts none = {0};
    const trn_loop_opts *o = opts ? opts : &none;
    if (!trn_builder_ok(b))
        return nothing(b, n);
    trn_arena *tmp = trn_arena_new();
    const char *name = trn_take_name(b, "while");
    b = b->real;
    trn_name_scope(b, name);
    const char *scope = trn_scope_name(b);
    int n_own = n + (o->max_iterations > 0); /* a counter of our own goes last */
    const trn_shape *shape = o->shapes ? o->shapes : shapes_of(b, vars, n);
    trn_out zero = n_own > n ? trn_const_i32(b, 0) : TRN_NONE;
    trn_fn f[2] = {{.tmp = tmp}, {.tmp = tmp}}; /* cond, body */
    frame fr = open_body(b, "cond");
    trn_outs v = nothing(b, n_own), next = nothing(b, n_own);
    for (int i = 0; i < n_own; i++)
        trn_fn__add_arg(&f[0], v.at[i] = trn_fn__placeholder(b, i < n ? trn_out_dtype(b, vars[i]) : TRN_INT32, i < n ? &shape[i] : &(trn_shape){0}));
    trn_out go = trn_builder_ok(b) ? cond(arg, b, v.at) : TRN_NONE;
    if (trn_builder_ok(b) && n_own > n)
        go = trn_node_add(b, "LogicalAnd", TRN_OUTS(less_than(b, v.at[n], o->max_iterations), go), NULL, 0);
    close_body(b, &fr, scope);
    if (trn_builder_ok(b) && trn_out_dtype(b, go) != TRN_BOOL)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_while '%s': the condition is %s, not a bool", scope, trn_dtype_name(trn_out_dtype(b, go))));
    int first = fr.first;
    if (trn_builder_ok(b)) {
        trn_fn__add_ret(&f[0], go);
        trn_fn__add_effects(&f[0], b, first);
    }
    fr = open_body(b, "body");
    for (int i = 0; i < n_own; i++)
        trn_fn__add_arg(&f[1], next.at[i] = trn_fn__placeholder(b, i < n ? trn_out_dtype(b, vars[i]) : TRN_INT32, i < n ? &shape[i] : &(trn_shape){0}));
    if (trn_builder_ok(b))
        body(arg, b, next.at);
    if (trn_builder_ok(b) && n_own > n)
        next.at[n] = trn_node_add(b, "AddV2", TRN_OUTS(next.at[n], trn_const_i32(b, 1)), NULL, 0);
    close_body(b, &fr, scope);
    for (int i = 0; i < n_own && trn_builder_ok(b); i++) {
        trn_fn__add_ret(&f[1], next.at[i]);
        const trn_shape *was = i < n ? &shape[i] : trn_out_shape(b, zero), *is = trn_out_shape(b, next.at[i]);
        char t1[TRN_SHAPE_TEXT], t2[TRN_SHAPE_TEXT];
        bool fits = was->rank < 0 || is->rank < 0 || was->rank == is->rank;
        for (int d = 0; d < was->rank && d < is->rank && fits; d++)
            fits = was->dim[d] < 0 || is->dim[d] < 0 || was->dim[d] == is->dim[d];
        if (i < n && trn_out_dtype(b, next.at[i]) != trn_out_dtype(b, vars[i]))
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_while '%s': variable %d is %s before the body, %s behind it", scope, i,
                                           trn_dtype_name(trn_out_dtype(b, vars[i])), trn_dtype_name(trn_out_dtype(b, next.at[i]))));
        else if (!fits)
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_while '%s': variable %d is %s before the body, %s behind it; say in opts->shapes what stays", scope, i,
                                           trn_shape_text(t1, was), trn_shape_text(t2, is)));
    }
    if (trn_builder_ok(b))
        trn_fn__add_effects(&f[1], b, fr.first);
    /* What either takes from outside goes round as variables that stay as they are. */
    trn_fn__collect(&f[0], b, inside, &first, MAX_CONST);
    trn_fn__collect(&f[1], b, inside, &first, MAX_CONST);
    int n_out0 = f[0].n_args - n_own, n_out1 = f[1].n_args - n_own;
    trn_out *outside = trn_arena_alloc(tmp, (size_t)(n_out0 + n_out1 + 1) * sizeof *outside);
    int n_outside = 0;
    for (int k = 0; k < 2; k++)
        for (int i = n_own; i < f[k].n_args; i++) {
            bool there = false;
            for (int j = 0; j < n_outside; j++)
                there |= outside[j].node == f[k].args[i].node && outside[j].slot == f[k].args[i].slot;
            if (!there)
                outside[n_outside++] = f[k].args[i];
        }
    int n_all = n_own + n_outside;
    for (int k = 0; k < 2; k++) {
        f[k].n_args = n_own;
        for (int i = 0; i < n_outside; i++) {
            trn_fn__add_arg(&f[k], outside[i]);
            if (k)
                trn_fn__add_ret(&f[k], outside[i]);
        }
        trn_fn__define(&f[k], b, trn_arena_printf(tmp, "%s_%s", scope, k ? "body" : "cond"));
    }
    trn_builder__drop(b, first);
    trn_end(b);
    trn_out r = TRN_NONE;
    if (trn_builder_ok(b)) {
        trn_out *in = trn_arena_alloc(tmp, ((size_t)n_all + 1) * sizeof *in);
        trn_shape *all = trn_builder_alloc(b, ((size_t)n_all + 1) * sizeof *all);
        for (int i = 0; i < n_all; i++) {
            in[i] = i < n ? vars[i] : i < n_own ? zero : outside[i - n_own];
            all[i] = i < n ? shape[i] : *trn_out_shape(b, in[i]);
        }
        trn_attr a[] = {func_attr(b, "cond", f[0].name), func_attr(b, "body", f[1].name), types_attr(b, "T", in, n_all), shapes_attr(b, all, n_all),
                        trn_attr__int("parallel_iterations", o->parallel_iterations ? o->parallel_iterations : 10), lowered()};
        r = trn_builder__add_in_scope(b, scope, f[0].stateful || f[1].stateful ? "While" : "StatelessWhile", in, n_all, a, 6);
    }
    trn_arena_free(tmp);
    return all_of(b, r, n);
}
