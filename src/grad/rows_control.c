/* Gradients of what decides where values go: pass-throughs, calls. */
#include "grad/rows.h"

static void pass(trn_grad_ctx *c)
{
    for (int i = 0; i < c->n->n_in && i < c->n->n_out; i++)
        trn_grad_set_any(c, i, trn_grad_dy_any(c, i));
}

static void prevent(trn_grad_ctx *c)
{
    trn_g_fail(c, trn_errorf(TRN_INVALID_ARGUMENT, "Gradient explicitly disabled at node '%s' (PreventGradient): %s", c->n->name, trn_attr_str(c->n, "message")));
}

/* A call inside a function whose gradient is being lowered: its gradient is the gradient of that function, whose turn comes. */
static void symbolic_call(trn_grad_ctx *c, const trn_func_ref *f)
{
    const trn_node *n = c->n;
    int all = n->n_in + n->n_out;
    trn_out *in = trn_arena_alloc(c->tmp, ((size_t)all + 1) * sizeof *in);
    trn_attr_val *t = trn_arena_alloc(c->tmp, ((size_t)all + 1) * sizeof *t);
    for (int i = 0; i < n->n_in; i++)
        in[i] = trn_grad_in(c, i);
    for (int i = 0; i < n->n_out; i++)
        in[n->n_in + i] = trn_grad_dy(c, i);
    if (!trn_g_ok(c))
        return;
    for (int i = 0; i < all; i++)
        t[i].type = trn_g_type(c, in[i]);
    trn_attr a[] = {{.name = "f", .kind = TRN_ATTR_FUNC, .v.func = f},
                    {.name = "Tin", .kind = TRN_ATTR_TYPE, .is_list = true, .n = all, .list = t},
                    {.name = "Tout", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n->n_in, .list = t}};
    trn_out g = trn_g_node(c, "SymbolicGradient", in, all, a, 3);
    for (int i = 0; i < n->n_in; i++)
        trn_grad_set(c, i, trn_out_nth(g, i));
}

static void call(trn_grad_ctx *c)
{
    trn_func_ref *own = trn_arena_alloc(c->tmp, sizeof *own);
    *own = (trn_func_ref){c->n->op, c->n->n_attrs, c->n->attrs};
    const trn_func_ref *f = c->n->def ? trn_attr_func(c->n, "f") : own;
    if (!f || !c->h->has_function(c->h->arg, f->name))
        trn_g_fail(c, trn_errorf(TRN_NOT_FOUND, "No gradient defined for op: %s (node '%s')", c->n->op, c->n->name));
    else
        symbolic_call(c, f);
}

const trn_grad_row trn_grads_control[] = {
    {"CheckNumerics", {"(CheckNumerics d @)"}},
    {"CheckNumericsV2", {"(CheckNumericsV2 d @)"}},
    {"Identity", .fn = pass},
    {"IdentityN", .fn = pass},
    {"PartitionedCall", .fn = call},
    {"PreventGradient", .fn = prevent},
    {"RefIdentity", .fn = pass},
    {"Snapshot", .fn = pass},
    {"StatefulPartitionedCall", .fn = call},
    {0},
};
