/* Gradients of what decides where values go: pass-throughs, Switch and Merge. Calls, If and While: rows_call.c. */
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

/* ---- Switch and Merge: decisions of the old kind. Which side ran is known to the Merge. */

static void merge(trn_grad_ctx *c)
{
    if (c->n->n_in != 2) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s' of %d inputs", c->n->op, c->n->name, c->n->n_in));
        return;
    }
    trn_out second = TRN_GE(c, "(Equal o1 #1)"), s = TRN_G(c, "Switch", trn_grad_dy(c, 0), second);
    for (int i = 0; i < 2; i++)
        trn_grad_set(c, i, trn_out_nth(s, i));
}

/* Zeros come from the side that has no gradient, so that one of the two is always alive. */
static void split_up(trn_grad_ctx *c)
{
    trn_out d[2];
    trn_dtype t = trn_g_type(c, trn_grad_dy_any(c, trn_grad_has_dy(c, 0) ? 0 : 1).values);
    for (int i = 0; i < 2; i++)
        d[i] = trn_grad_has_dy(c, i) ? trn_grad_dy(c, i) : trn_g_zeros(c, trn_grad_out(c, i), t);
    trn_grad_set(c, 0, TRN_G(c, "Merge", d[0], d[1]));
}

static void old_loop(trn_grad_ctx *c)
{
    trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of '%s', which lies inside of a loop: only what comes out of a loop (Exit) has one", c->n->name));
}

const trn_grad_row trn_grads_control[] = {
    {"CheckNumerics", {"(CheckNumerics d @)"}},
    {"CheckNumericsV2", {"(CheckNumericsV2 d @)"}},
    {"DebugGradientIdentity", .fn = pass},
    {"DebugGradientRefIdentity", .fn = pass},
    {"Identity", .fn = pass},
    {"IdentityN", .fn = pass},
    {"Enter", .fn = old_loop},
    {"Exit", .fn = old_loop},
    {"Merge", .fn = merge},
    {"PreventGradient", .fn = prevent},
    {"RefIdentity", .fn = pass},
    {"RefMerge", .fn = merge},
    {"RefSwitch", .fn = split_up},
    {"Snapshot", .fn = pass},
    {"Switch", .fn = split_up},
    {0},
};
