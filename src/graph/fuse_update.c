/* A MatMul whose product is the gradient of a variable, and nothing else, becomes one node with the variable's update, which keeps the update's name.
 *
 * So the gradient of a dense layer goes into the variable piece by piece, out of the cache, instead of being written to memory and read again. Between
 * the two there may be Identity nodes (tf.gradients puts them there to make updates wait for all gradients of an op); what these and the product waited
 * for, the update waits for. All must be on one device, of this task. The sums are the same, so the variable keeps its bits. */
#include "graph/optimise_priv.h"

#include <stdlib.h>

enum { MOST_STEPS = 8 };

typedef struct match {
    trn_gnode *update, *product;
    int grad, n_vars;            /* which input is the gradient; how many variables stand first */
    trn_gnode *between[MOST_STEPS];
    int n_between;
} match;

/* Of a float variable, with float numbers only: those are the ones that ops/train.c has as part of a product (a test sees to it). */
static bool is_update(match *m, const trn_opt *p, trn_gnode *nd)
{
    static const char prefix[] = "ResourceApply";
    if (strncmp(nd->n.op, prefix, sizeof prefix - 1) != 0 || !trn_fuse__is_ours(p, nd))
        return false;
    *m = (match){.update = nd, .grad = -1};
    for (int i = 0; i < nd->n.n_in; i++) {
        const char *name = nd->n.def->in[i].name;
        if (nd->n.in_types[i] == TRN_RESOURCE && i == m->n_vars)
            m->n_vars++;
        else if (nd->n.in_types[i] != TRN_FLOAT)
            return false;
        else if (strcmp(name, "grad") == 0 || strcmp(name, "delta") == 0)
            m->grad = i;
    }
    return m->n_vars > 0 && m->grad >= 0;
}

/* Does nobody else read it or ask for its shape? Who only waits for it can wait for what it is made of. */
static bool serves_only(const trn_gusers *u, const trn_gnode *nd, const trn_gnode *user)
{
    int reads = 0;
    for (int i = u->first[nd->id]; i < u->first[nd->id + 1]; i++)
        if (u->use[i].input >= 0 && (u->use[i].to != user->id || reads++))
            return false;
    return reads == 1;
}

/* Is anybody colocated with it who stays? */
static bool is_anchor(const trn_opt *p, const match *m, const trn_gnode *nd)
{
    for (int i = 0; p->pinned[nd->id] && i < p->g->n; i++) {
        const trn_gnode *by = p->g->node[i];
        const trn_attr *c = by && by != nd ? trn_node_attr(&by->n, "_class") : NULL;
        bool goes = false;
        for (int k = 0; k < m->n_between; k++)
            goes |= m->between[k] == by;
        for (int k = 0; !goes && c && c->is_list && c->kind == TRN_ATTR_STRING && k < c->n; k++)
            if (c->list[k].s.n > 5 && trn_graph_find(p->g, c->list[k].s.p + 5, c->list[k].s.n - 5) == nd)
                return true;
    }
    return false;
}

static bool find_product(match *m, const trn_opt *p, const trn_gusers *u)
{
    trn_gnode *user = m->update, *nd = p->g->node[user->in[m->grad].node];
    for (;; user = nd, nd = p->g->node[nd->in[0].node]) {
        if (!nd || nd->id >= p->n0 || !nd->n.def || !trn_fuse__is_value(nd) || is_anchor(p, m, nd) || !trn_fuse__same_place(nd, m->update) || !serves_only(u, nd, user))
            return false;
        if (trn_gnode__is(nd, "MatMul")) {
            m->product = nd;
            return true;
        }
        if (!trn_gnode__is(nd, "Identity") || m->n_between == MOST_STEPS)
            return false;
        m->between[m->n_between++] = nd;
    }
}

/* Who waited for nd waits for its inputs, and for what it waited for. */
static void pass_waiters_on(trn_opt *p, const trn_gusers *u, trn_gnode *nd)
{
    for (int i = u->first[nd->id]; i < u->first[nd->id + 1]; i++) {
        trn_gnode *to = u->use[i].input < 0 ? p->g->node[u->use[i].to] : NULL;
        bool waits = false;
        for (int k = 0; to && k < to->n_ctl; k++)
            if (to->ctl[k] == nd->id) {
                to->ctl[k] = to->ctl[--to->n_ctl];
                waits = true;
            }
        for (int k = 0; waits && k < nd->n.n_in; k++)
            trn_graph_add_ctl(p->g, to, nd->in[k].node);
        for (int k = 0; waits && k < nd->n_ctl; k++)
            trn_graph_add_ctl(p->g, to, nd->ctl[k]);
    }
    p->pinned[nd->id] = false;
}

static void rewrite(trn_opt *p, const trn_gusers *u, const match *m)
{
    trn_arena *a = p->g->arena;
    trn_gnode *nd = m->update, *product = m->product;
    int n_in = nd->n.n_in + 1, n = 0;
    trn_edge *in = trn_arena_alloc(a, (size_t)n_in * sizeof *in);
    for (int i = 0; i < m->n_vars; i++)
        in[n++] = nd->in[i];
    in[n++] = product->in[0];
    in[n++] = product->in[1];
    for (int i = m->n_vars; i < nd->n.n_in; i++)
        if (i != m->grad)
            in[n++] = nd->in[i];
    static const char *const flags[] = {"use_nesterov", "update_slots", "multiply_linear_by_lr"};
    trn_attr given[] = {trn_attr__str("update", nd->n.op),
                        trn_attr__int("num_vars", m->n_vars),
                        trn_attr__int("num_args", n_in - m->n_vars - 2),
                        trn_attr__bool("transpose_a", trn_attr_bool(&product->n, "transpose_a")),
                        trn_attr__bool("transpose_b", trn_attr_bool(&product->n, "transpose_b"))};
    trn_attr *attrs = trn_arena_alloc(a, (TRN_COUNTOF(given) + TRN_COUNTOF(flags) + 1) * sizeof *attrs);
    int n_attrs = 0;
    for (size_t i = 0; i < TRN_COUNTOF(given); i++)
        trn_attr__copy(&attrs[n_attrs++], a, &given[i]);
    for (size_t i = 0; i < TRN_COUNTOF(flags); i++) {
        trn_attr flag = trn_attr__bool(flags[i], trn_attr_bool(&nd->n, flags[i]));
        trn_attr__copy(&attrs[n_attrs++], a, &flag);
    }
    const trn_attr *cls = trn_node_attr(&nd->n, "_class");
    if (cls)
        attrs[n_attrs++] = *cls;
    trn_node was = nd->n;
    nd->n.op = "_MatMulUpdate";
    nd->n.attrs = attrs;
    nd->n.n_attrs = n_attrs;
    trn_err err = trn_gnode__resolve(nd, a, NULL, n_in, NULL);
    if (err || nd->n.n_in != n_in) { /* left as it was */
        trn_err_free(err);
        nd->n = was;
        return;
    }
    nd->in = in;
    for (int i = -1; i < m->n_between; i++) {
        trn_gnode *gone = i < 0 ? product : m->between[i];
        for (int k = 0; k < gone->n_ctl; k++)
            trn_graph_add_ctl(p->g, nd, gone->ctl[k]);
        pass_waiters_on(p, u, gone);
    }
}

trn_err trn_fuse__updates(trn_opt *p)
{
    trn_gusers u;
    trn_gusers__init(&u, p->g);
    for (int i = 0; i < p->n0; i++) {
        match m;
        trn_gnode *nd = p->g->node[i];
        if (nd && nd->n.def && is_update(&m, p, nd) && find_product(&m, p, &u))
            rewrite(p, &u, &m);
    }
    trn_gusers__fini(&u);
    return TRN_OK;
}
