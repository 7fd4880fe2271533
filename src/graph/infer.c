/* Partial shapes of all outputs, by the rows' shape rules, inputs first. A rule that refuses its inputs leaves them unknown: the kernel will say it
 * better, with the real shapes, if the node ever runs. */
#include "graph/graph_priv.h"

#include <stdlib.h>

static trn_shape *unknown_shapes(trn_arena *a, int n)
{
    trn_shape *s = trn_arena_alloc(a, (size_t)TRN_MAX(n, 1) * sizeof *s);
    for (int i = 0; i < n; i++)
        s[i].rank = -1;
    return s;
}

static bool sane(const trn_shape *s)
{
    if (s->rank < -1 || s->rank > TRN_MAX_RANK)
        return false;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] < -1)
            return false;
    return true;
}

/* Rules that take a -1 in a shape as a dim that nobody knows yet. */
static bool takes_unknown(const trn_gnode *nd, int i, const trn_shape *in, int unknown)
{
    if (strcmp(nd->n.op, "Reshape") == 0)
        return i == 1 && (unknown == 1 || !trn_shape_is_full(&in[0]));
    return (strcmp(nd->n.op, "Fill") == 0 && i == 0) || (strcmp(nd->n.op, "BroadcastTo") == 0 && i == 1);
}

trn_err trn_infer__node(trn_shape **all, const trn_graph *g, const trn_gnode *nd, trn_arena *a)
{
    trn_shape *res = all[nd->id] = unknown_shapes(a, nd->n.n_out);
    int n = nd->n.n_in;
    if (!nd->n.def || !nd->n.def->row->shape || !nd->n.n_out)
        return TRN_OK;
    trn_shape few_in[8], *in = n <= 8 ? few_in : trn_xalloc((size_t)n * sizeof *in);
    const trn_tensor *few_values[8], **value = n <= 8 ? few_values : trn_xalloc((size_t)n * sizeof *value);
    for (int i = 0; i < n; i++) {
        const trn_gnode *from = nd->in[i].node >= 0 ? g->node[nd->in[i].node] : NULL;
        const trn_shape *s = from ? all[from->id] : NULL; /* NULL: a back edge, anything may come round */
        in[i] = s && nd->in[i].slot < from->n.n_out ? s[nd->in[i].slot] : trn_shape_unknown();
        value[i] = from && trn_gnode__is(from, "Const") ? trn_attr_tensor(&from->n, "value") : NULL;
    }
    trn_tensor *worked_out[4] = {0}; /* shapes, sizes, axes are among the first inputs */
    for (int i = 0; i < TRN_MIN(n, 4); i++) {
        int unknown;
        if (!value[i] && (worked_out[i] = trn_infer__value(g, all, nd->in[i], &unknown)) && (unknown == 0 || takes_unknown(nd, i, in, unknown)))
            value[i] = worked_out[i];
    }
    trn_shctx sc = {.node = &nd->n, .n_in = n, .n_out = nd->n.n_out, .in = in, .value = value, .out = res};
    trn_err err = nd->n.def->row->shape(&sc);
    for (int i = 0; i < nd->n.n_out; i++)
        if (err || !sane(&res[i]))
            res[i] = trn_shape_unknown();
    for (int i = 0; i < 4; i++)
        trn_tensor_unref(worked_out[i]);
    if (n > 8) {
        free(in);
        free(value);
    }
    return err;
}

trn_err trn_graph_infer(trn_shape ***out, const trn_graph *g)
{
    trn_arena *a = g->arena;
    int max_free = 1;
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && !g->node[i]->n.def)
            max_free = TRN_MAX(max_free, g->node[i]->n.n_out);
    trn_shape **all = trn_arena_alloc(a, (size_t)TRN_MAX(g->n, 1) * sizeof *all);
    trn_shape *nothing = unknown_shapes(a, max_free); /* shared by all nodes that we know nothing about */
    int *order = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *order), n = trn_graph_topo(g, order);
    for (int k = 0; k < n; k++) {
        const trn_gnode *nd = g->node[order[k]];
        if (nd->n.def)
            trn_err_free(trn_infer__node(all, g, nd, a));
        else
            all[nd->id] = nothing;
    }
    for (int i = 0; i < g->n; i++) /* holes, and nodes of a cycle if the caller made one */
        if (!all[i])
            all[i] = g->node[i] ? unknown_shapes(a, g->node[i]->n.n_out) : nothing;
    free(order);
    *out = all;
    return TRN_OK;
}
