/* Gradients for builders: trainera/grad.h. */
#include "grad/rows.h"

#include "graph/function.h"

typedef struct host {
    trn_builder *b;
    bool colocate;
} host;

static bool b_ok(void *arg) { return trn_builder_ok(((host *)arg)->b); }
static void b_fail(void *arg, trn_err err) { trn_builder_fail(((host *)arg)->b, err); }
static const trn_node *b_node(void *arg, int id) { return trn_out_op(((host *)arg)->b, (trn_out){id, -1}); }
static trn_out b_input(void *arg, int id, int i) { return trn_out_input(((host *)arg)->b, (trn_out){id, -1}, i); }
static const trn_shape *b_shape(void *arg, trn_out o) { return trn_out_shape(((host *)arg)->b, o); }

static bool b_has_function(void *arg, const char *name)
{
    const trn_graph *g = ((host *)arg)->b->g;
    return g->lib && trn_funclib_has(g->lib, name);
}

static trn_out b_add(void *arg, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    return trn_node_add(((host *)arg)->b, op, in, n_in, attrs, n_attrs);
}

static void b_enter(void *arg, int id)
{
    host *h = arg;
    if (id < 0) {
        if (h->colocate)
            trn_end(h->b);
        trn_end(h->b);
        return;
    }
    trn_name_scope(h->b, trn_builder_printf(h->b, "%s_grad", b_node(arg, id)->name));
    if (h->colocate)
        trn_colocate_scope(h->b, (trn_out){id, -1});
}

static trn_ghost host_of(host *h)
{
    return (trn_ghost){.b = h->b, .arg = h, .add = b_add, .node = b_node, .input = b_input, .shape = b_shape, .has_function = b_has_function,
                       .ok = b_ok, .fail = b_fail, .enter = b_enter,
                       .first = 0, .end = trn_builder_node_count(h->b)};
}

static trn_out ones(trn_builder *b, trn_grad_ctx *c, trn_out y)
{
    const trn_shape *s = trn_out_shape(b, y);
    trn_out one = trn_g_num(c, trn_out_dtype(b, y), 1);
    if (s->rank == 0)
        return one;
    return TRN_G(c, "Fill", trn_g_shape_of(c, y), one);
}

static bool valid(trn_builder *b, const char *what, const trn_out *list, int n)
{
    for (int i = 0; i < n && trn_builder_ok(b); i++) {
        const trn_node *nd = trn_out_op(b, list[i]);
        if (!nd || list[i].slot < 0 || list[i].slot >= nd->n_out)
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_gradients: %s %d is no tensor", what, i));
    }
    return trn_builder_ok(b);
}

/* Of the variable behind a handle, or of the tensor. */
static trn_dtype zeros_type(trn_builder *b, trn_out x)
{
    trn_dtype t = trn_dtype_base(trn_out_dtype(b, x));
    const trn_attr *a = t == TRN_RESOURCE ? trn_node_attr(trn_out_op(b, x), "dtype") : NULL;
    return a && a->kind == TRN_ATTR_TYPE ? a->v.type : t == TRN_RESOURCE ? TRN_FLOAT : t;
}

/* What was given for the gradient of y fits it. */
static bool fits(trn_builder *b, trn_out y, trn_out dy)
{
    if (!valid(b, "grad_y of y", &dy, 1))
        return false;
    const trn_shape *s = trn_out_shape(b, y), *d = trn_out_shape(b, dy);
    bool same = s->rank < 0 || d->rank < 0 || s->rank == d->rank;
    for (int i = 0; same && i < s->rank && d->rank >= 0; i++)
        same = s->dim[i] < 0 || d->dim[i] < 0 || s->dim[i] == d->dim[i];
    char a[TRN_SHAPE_TEXT], e[TRN_SHAPE_TEXT];
    trn_dtype t = trn_out_dtype(b, y), is = trn_out_dtype(b, dy);
    if (!same)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_gradients: '%s' is %s, its gradient '%s' %s", trn_out_name(b, y), trn_shape_text(a, s), trn_out_name(b, dy),
                                       trn_shape_text(e, d)));
    else if (t != TRN_RESOURCE && t != is)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_gradients: '%s' is %s, its gradient '%s' %s", trn_out_name(b, y), trn_dtype_name(t), trn_out_name(b, dy),
                                       trn_dtype_name(is)));
    return trn_builder_ok(b);
}

void trn_gradients(trn_grad *out, trn_builder *b, const trn_out *ys, int n_ys, const trn_out *xs, int n_xs, const trn_gradients_opts *opts)
{
    b = b->real;
    static const trn_gradients_opts none = {0};
    const trn_gradients_opts *o = opts ? opts : &none;
    for (int i = 0; i < n_xs; i++)
        out[i] = TRN_NO_GRAD;
    if (!trn_builder_ok(b) || !valid(b, "y", ys, n_ys) || !valid(b, "x", xs, n_xs))
        return;
    trn_arena *tmp = trn_arena_new();
    host hb = {.b = b, .colocate = o->colocate};
    trn_ghost h = host_of(&hb);
    int *exits, n_exits = trn_grad__between(&exits, &h, tmp, "Exit", xs, n_xs, ys, n_ys);
    trn_builder__raise_loops(b, exits, n_exits);
    h.end = trn_builder_node_count(b);
    trn_grad_ctx c = {.h = &h, .tmp = tmp, .args = &TRN_NONE, .spread = {TRN_NONE, TRN_NONE, TRN_NONE}};
    trn_grad *dys = trn_arena_alloc(tmp, ((size_t)n_ys + 1) * sizeof *dys);
    trn_name_scope(b, o->name ? o->name : "gradients");
    h.source = trn_scope_name(b);
    for (int i = 0; i < n_ys && trn_builder_ok(b); i++) {
        trn_dtype t = trn_out_dtype(b, ys[i]);
        dys[i] = TRN_NO_GRAD;
        if (!trn_g_trainable(t))
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_gradients: '%s' is %s: only floating-point and complex tensors have gradients", trn_out_name(b, ys[i]),
                                           trn_dtype_name(t)));
        else if (o->grad_ys && trn_out_is(o->grad_ys[i]))
            dys[i].values = fits(b, ys[i], o->grad_ys[i]) ? o->grad_ys[i] : TRN_NONE;
        else if (t == TRN_RESOURCE || t == TRN_VARIANT || trn_g_is_complex(t))
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_gradients: '%s' is %s: its gradient must be given (grad_ys)", trn_out_name(b, ys[i]), trn_dtype_name(t)));
        else
            dys[i].values = ones(b, &c, ys[i]);
    }
    if (trn_builder_ok(b))
        trn_grad__run(out, &h, tmp, xs, n_xs, ys, dys, n_ys, o->stop, o->n_stop);
    for (int i = 0; i < n_xs && o->zeros && trn_builder_ok(b); i++)
        if (!trn_grad_is(out[i]))
            out[i].values = trn_g_zeros(&c, xs[i], zeros_type(b, xs[i]));
    trn_end(b);
    if (!trn_builder_ok(b))
        for (int i = 0; i < n_xs; i++)
            out[i] = TRN_NO_GRAD;
    trn_arena_free(tmp);
}

trn_out trn_grad_dense(trn_builder *b, trn_grad g)
{
    if (!trn_builder_ok(b) || !trn_grad_is_sparse(g))
        return g.values;
    trn_arena *tmp = trn_arena_new();
    host hb = {.b = b};
    trn_ghost h = host_of(&hb);
    trn_grad_ctx c = {.h = &h, .tmp = tmp, .args = &TRN_NONE};
    trn_out o = trn_g_dense(&c, g);
    trn_arena_free(tmp);
    return o;
}

trn_out trn_stop_gradient(trn_builder *b, trn_out x) { return trn_node_add(b, "StopGradient", &x, 1, NULL, 0); }
