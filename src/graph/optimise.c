/* What a step need not compute again: constants, the same thing twice, Identity, what changes nothing (simplify.c). One pass, inputs first; edges
 * to nodes that go are moved as the pass meets them, so that one find feeds the next. After it, results for which others only wait are not computed:
 * tf.gradients makes every gradient of an op wait for all of them, also for the one with respect to the data that nobody asked for. At last chains
 * that have a kernel of their own become one node (fuse.c).
 *
 * Never touched: stateful and asynchronous ops, files, control flow and everything behind Switch or Enter (a constant there may be dead, or belong to
 * one iteration), reference edges, nodes that others are colocated with, and requests for devices: two nodes are the same only when they ask for
 * the same device. */
#include "graph/optimise_priv.h"

#include <stdlib.h>

#define ALWAYS_FOLD (INT64_C(1) << 20)       /* a result up to this may be larger than its inputs */
#define DEFAULT_MAX_FOLD (INT64_C(10) << 20) /* as TensorFlow */
#define MAX_CSE_CONST 65536                  /* bytes of a constant that are worth comparing */

enum {
    CONTROL_FLOW = TRN_OP_SWITCH | TRN_OP_MERGE | TRN_OP_ENTER | TRN_OP_EXIT | TRN_OP_NEXT | TRN_OP_LOOPCOND |
                   TRN_OP_CTRL_TRIGGER | TRN_OP_SEND | TRN_OP_RECV,
    IMPURE =
        TRN_OP_ASYNC | TRN_OP_STATEFUL | TRN_OP_DISK | TRN_OP_BACK | TRN_OP_DEAD_OK | TRN_OP_UNINIT_OK |
        TRN_OP_UNINIT_VALUE | CONTROL_FLOW,
};

bool trn_opt__is_pure(const trn_gnode *nd)
{
    if (!nd->n.def || (nd->n.def->row->flags & IMPURE))
        return false;
    if (nd->n.n_in == 0 && !trn_gnode__is(nd, "Const")) /* placeholders complain when they run */
        return false;
    for (int i = 0; i < nd->n.n_in; i++)
        if (trn_dtype_is_ref(nd->n.in_types[i]))
            return false;
    for (int i = 0; i < nd->n.n_out; i++)
        if (trn_dtype_is_ref(nd->n.out_types[i]))
            return false;
    return true;
}

void trn_opt__set_shape(trn_opt *p, int id, trn_shape *s)
{
    if (id >= p->cap_shape) {
        int cap = 2 * id + 8;
        p->shape = trn_xrealloc(p->shape, (size_t)cap * sizeof *p->shape);
        memset(p->shape + p->cap_shape, 0, (size_t)(cap - p->cap_shape) * sizeof *p->shape);
        p->cap_shape = cap;
    }
    p->shape[id] = s;
}

static trn_edge edge_now(const trn_opt *p, trn_edge e)
{
    while (e.node < p->n0 && p->moved[e.node])
        e = p->moved[e.node][e.slot];
    return e;
}

void trn_opt__move(trn_opt *p, trn_gnode *nd, const trn_edge *to)
{
    trn_edge *v = trn_arena_dup(p->g->arena, to, (size_t)TRN_MAX(nd->n.n_out, 1) * sizeof *v);
    p->moved[nd->id] = v;
    if (p->ctl_used[nd->id] && to[0].node < p->n0)
        p->ctl_used[to[0].node] = true;
}

static void update_inputs(trn_opt *p, trn_gnode *nd)
{
    for (int i = 0; i < nd->n.n_in; i++)
        nd->in[i] = edge_now(p, nd->in[i]);
    bool changed = false;
    for (int i = 0; i < nd->n_ctl; i++)
        while (nd->ctl[i] < p->n0 && p->moved[nd->ctl[i]]) {
            nd->ctl[i] = p->moved[nd->ctl[i]][0].node;
            changed = true;
        }
    if (changed)
        trn_gnode__set_ctl(p->g, nd, nd->ctl, nd->n_ctl, &p->ctls);
}

/* ---- identity ------------------------------------------------------------------------------------------------- */

bool trn_opt__may_bypass(const trn_opt *p, const trn_gnode *nd, trn_edge e)
{
    if (nd->n_ctl || p->ctl_used[nd->id] || p->pinned[nd->id] || trn_node_attr(&nd->n, "_class"))
        return false;
    const trn_gnode *from = p->g->node[e.node];
    if (!from->n.def || (from->n.def->row->flags & TRN_OP_SWITCH) || trn_dtype_is_ref(from->n.out_types[e.slot]))
        return false;
    return !nd->n.device[0] || strcmp(nd->n.device, from->n.device) == 0;
}

const trn_shape *trn_opt__shape(const trn_opt *p, trn_edge e)
{
    static const trn_shape unknown = {.rank = -1};
    return e.node < p->cap_shape && p->shape[e.node] ? &p->shape[e.node][e.slot] : &unknown;
}

static bool drop_identity(trn_opt *p, trn_gnode *nd)
{
    static const char *const ops[] = {"Identity", "StopGradient", "PreventGradient", "Snapshot"};
    bool is = false;
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        is |= trn_gnode__is(nd, ops[i]);
    if (!is || !trn_opt__may_bypass(p, nd, nd->in[0]))
        return false;
    trn_opt__move(p, nd, nd->in);
    return true;
}

/* ---- folding -------------------------------------------------------------------------------------------------- */

trn_tensor *trn_opt__const(const trn_opt *p, trn_edge e)
{
    const trn_gnode *nd = p->g->node[e.node];
    return trn_gnode__is(nd, "Const") ? trn_attr_tensor(&nd->n, "value") : NULL;
}

static void set_const_attrs(trn_opt *p, trn_gnode *nd, trn_tensor *t)
{
    trn_arena *a = p->g->arena;
    const trn_attr *cls = trn_node_attr(&nd->n, "_class");
    trn_attr v[] = {trn_attr__type("dtype", t->dtype), trn_attr__tensor("value", t)};
    trn_attr *attrs = trn_arena_alloc(a, 3 * sizeof *attrs);
    int n = 0;
    trn_attr__copy(&attrs[n++], a, &v[0]);
    trn_attr__copy(&attrs[n++], a, &v[1]);
    if (cls)
        attrs[n++] = *cls;
    nd->n.attrs = attrs;
    nd->n.n_attrs = n;
}

/* What the inputs waited for, their constant waits for. */
static void inherit_ctl(trn_opt *p, trn_gnode *nd, const trn_gnode *src)
{
    for (int i = 0; i < src->n.n_in; i++) {
        const trn_gnode *from = p->g->node[src->in[i].node];
        if (!trn_gnode__is(from, "Const"))
            continue;
        for (int k = 0; k < from->n_ctl; k++)
            trn_graph_add_ctl(p->g, nd, from->ctl[k]);
    }
}

/* The node becomes its value (one output), or makes way for one constant per output. */
static trn_err become(trn_opt *p, trn_gnode *nd, trn_tensor *const *vals)
{
    trn_graph *g = p->g;
    if (nd->n.n_out == 1) {
        inherit_ctl(p, nd, nd);
        nd->n.op = "Const";
        set_const_attrs(p, nd, vals[0]);
        trn_opt__set_shape(p, nd->id, trn_arena_dup(p->tmp, &vals[0]->shape, sizeof(trn_shape)));
        return trn_gnode__resolve(nd, g->arena, NULL, 0, NULL);
    }
    trn_edge *to = trn_xalloc((size_t)nd->n.n_out * sizeof *to);
    trn_err err = TRN_OK;
    for (int i = 0; i < nd->n.n_out && !err; i++) {
        trn_attr attrs[] = {trn_attr__type("dtype", vals[i]->dtype), trn_attr__tensor("value", vals[i])};
        char *base = trn_xasprintf("%s/folded_%d", nd->n.name, i);
        trn_gnode *c;
        err = trn_graph_add(&c, g, "Const", trn_graph_unique_name(g, base), nd->n.device, attrs, 2, NULL, 0);
        free(base);
        if (err)
            break;
        for (int k = 0; k < nd->n_ctl; k++)
            trn_graph_add_ctl(g, c, nd->ctl[k]);
        inherit_ctl(p, c, nd);
        trn_opt__set_shape(p, c->id, trn_arena_dup(p->tmp, &vals[i]->shape, sizeof(trn_shape)));
        to[i] = (trn_edge){c->id, 0};
    }
    if (!err)
        trn_opt__move(p, nd, to);
    free(to);
    return err;
}

static trn_err shape_value(trn_tensor **out, const trn_node *n, const trn_shape *s)
{
    trn_dtype t = n->out_types[0];
    bool size = strcmp(n->op, "Size") == 0, rank = strcmp(n->op, "Rank") == 0;
    trn_shape os = size || rank ? trn_shape_scalar() : trn_shape_vector(s->rank);
    int64_t total = 1;
    if (size)
        TRN_TRY(trn_shape_count(&total, s));
    TRN_TRY(trn_tensor_new(out, t, &os));
    for (int64_t i = 0; i < (*out)->count; i++) {
        int64_t v = size ? total : rank ? s->rank : s->dim[i];
        if (t == TRN_INT64) {
            TRN_DATA_MUT(*out, int64_t)[i] = v;
        } else if (v <= INT32_MAX) {
            TRN_DATA_MUT(*out, int32_t)[i] = (int32_t)v;
        } else { /* the kernel has an error for it */
            trn_tensor_unref(*out);
            return trn_errorf(TRN_OUT_OF_RANGE, "too large for int32");
        }
    }
    return TRN_OK;
}

/* A variable that is read for its shape's sake alone is read to see whether it is there. */
static bool asks_whether_initialised(const trn_opt *p, int from)
{
    const trn_gnode *nd = p->g->node[from];
    return from < p->n0 && p->uses[from] == 1 && (trn_gnode__is(nd, "ReadVariableOp") || (nd->n.n_in == 1 && trn_dtype_is_ref(p->g->node[nd->in[0].node]->n.out_types[nd->in[0].slot])));
}

/* Shape, ShapeN, Size and Rank of what has a known shape need not wait for it. */
static bool fold_shape(trn_opt *p, trn_gnode *nd, trn_tensor **vals)
{
    bool rank = trn_gnode__is(nd, "Rank"), n_shapes = trn_gnode__is(nd, "ShapeN");
    if (!rank && !n_shapes && !trn_gnode__is(nd, "Shape") && !trn_gnode__is(nd, "Size"))
        return false;
    if (nd->n.n_in != nd->n.n_out || (nd->n.out_types[0] != TRN_INT32 && nd->n.out_types[0] != TRN_INT64))
        return false;
    for (int i = 0; i < nd->n.n_in; i++) {
        const trn_shape *s = p->shape[nd->in[i].node] ? &p->shape[nd->in[i].node][nd->in[i].slot] : NULL;
        if (!s)
            return false;
        if (rank ? s->rank < 0 : !trn_shape_is_full(s))
            return false;
        if (trn_dtype_is_ref(p->g->node[nd->in[i].node]->n.out_types[nd->in[i].slot]))
            return false; /* a variable may be assigned another shape */
        if (asks_whether_initialised(p, nd->in[i].node))
            return false;
    }
    for (int i = 0; i < nd->n.n_in; i++) {
        trn_err err = shape_value(&vals[i], &nd->n, &p->shape[nd->in[i].node][nd->in[i].slot]);
        if (err) {
            trn_err_free(err);
            while (i--)
                trn_tensor_unref(vals[i]);
            return false;
        }
    }
    return true;
}

static bool worth_it(const trn_opt *p, const trn_gnode *nd, trn_tensor *const *ins, int64_t out)
{
    int64_t in = 0;
    for (int i = 0; i < nd->n.n_in; i++)
        in += (int64_t)trn_tensor_total_bytes(ins[i]);
    return out <= p->max_bytes && (out <= ALWAYS_FOLD || out <= in);
}

/* Known beforehand that the result is worth keeping? */
static bool fits(const trn_opt *p, const trn_gnode *nd, trn_tensor *const *ins)
{
    int64_t out = 0, max = p->max_bytes;
    for (int i = 0; i < nd->n.n_out; i++) {
        trn_dtype t = nd->n.out_types[i];
        const trn_shape *s = &p->shape[nd->id][i];
        int64_t count;
        if ((!trn_dtype_is_plain(t) && t != TRN_STRING) || !trn_shape_is_full(s))
            return false;
        trn_err err = trn_shape_count(&count, s);
        if (err) {
            trn_err_free(err);
            return false;
        }
        if (count > max / (int64_t)trn_dtype_size(t))
            return false;
        out += count * (int64_t)trn_dtype_size(t);
    }
    return worth_it(p, nd, ins, out);
}

/* Strings are as long as they turn out. */
static bool fits_now(const trn_opt *p, const trn_gnode *nd, trn_tensor *const *ins, trn_tensor *const *outs)
{
    int64_t out = 0;
    for (int i = 0; i < nd->n.n_out; i++)
        out += (int64_t)trn_tensor_total_bytes(outs[i]);
    return worth_it(p, nd, ins, out);
}

static trn_err fold(bool *done, trn_opt *p, trn_gnode *nd)
{
    *done = false;
    if (nd->n.n_out == 0 || nd->n.n_in == 0 || p->tainted[nd->id])
        return TRN_OK;
    for (int i = 0; i < nd->n.n_out; i++)
        if (nd->n.out_types[i] == TRN_VARIANT || nd->n.out_types[i] == TRN_RESOURCE)
            return TRN_OK; /* has no form as a constant that can be sent */
    trn_tensor **ins = trn_xalloc((size_t)(nd->n.n_in + nd->n.n_out) * sizeof *ins), **outs = ins + nd->n.n_in;
    bool all = true, have = fold_shape(p, nd, outs);
    for (int i = 0; i < nd->n.n_in && !have; i++)
        all &= (ins[i] = trn_opt__const(p, nd->in[i])) != NULL;
    if (!have && all && p->eval && fits(p, nd, ins)) {
        trn_err err = p->eval(outs, &nd->n, ins);
        have = !err;
        if (err)
            trn_err_free(err); /* it will fail again when it runs, and then the client hears of it */
        if (have && !fits_now(p, nd, ins, outs)) {
            for (int i = 0; i < nd->n.n_out; i++)
                trn_tensor_unref(outs[i]);
            have = false;
        }
    }
    trn_err err = TRN_OK;
    if (have) {
        int n_out = nd->n.n_out;
        err = become(p, nd, outs);
        for (int i = 0; i < n_out; i++)
            trn_tensor_unref(outs[i]);
        *done = true;
    }
    free(ins);
    return err;
}

/* ---- the same twice ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *p, size_t n) { return (h ^ trn_hash(p, n)) * UINT64_C(0x9e3779b97f4a7c15); }

static int by_int(const void *a, const void *b)
{
    return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b;
}

static uint64_t hash_node(const trn_gnode *nd)
{
    uint64_t h = mix(1, nd->n.op, strlen(nd->n.op));
    h = mix(h, nd->n.device, strlen(nd->n.device));
    for (int i = 0; i < nd->n.n_in; i++)
        h = mix(h, &nd->in[i], sizeof nd->in[i]);
    for (int i = 0; i < nd->n_ctl; i++)
        h = mix(h, &nd->ctl[i], sizeof nd->ctl[i]);
    for (int i = 0; i < nd->n.n_attrs; i++) {
        const trn_attr *t = &nd->n.attrs[i];
        if (t->is_list)
            continue;
        if (t->kind == TRN_ATTR_TYPE)
            h = mix(h, &t->v.type, sizeof t->v.type);
        else if (t->kind == TRN_ATTR_INT)
            h = mix(h, &t->v.i, sizeof t->v.i);
        else if (t->kind == TRN_ATTR_TENSOR && trn_dtype_is_plain(t->v.tensor->dtype))
            h = mix(h, t->v.tensor->data, trn_tensor_bytes(t->v.tensor));
    }
    return h;
}

static bool equal_nodes(const trn_gnode *x, const trn_gnode *y)
{
    if (x->n.def != y->n.def || strcmp(x->n.device, y->n.device) != 0 || x->n.n_in != y->n.n_in ||
        x->n_ctl != y->n_ctl || x->n.n_attrs != y->n.n_attrs || x->n.n_out != y->n.n_out)
        return false;
    for (int i = 0; i < x->n.n_in; i++)
        if (x->in[i].node != y->in[i].node || x->in[i].slot != y->in[i].slot)
            return false;
    for (int i = 0; i < x->n_ctl; i++) /* sorted by the caller */
        if (x->ctl[i] != y->ctl[i])
            return false;
    for (int i = 0; i < x->n.n_attrs; i++) {
        const trn_attr *a = trn_node_attr(&y->n, x->n.attrs[i].name);
        if (!a || !trn_attr__equal(&x->n.attrs[i], a))
            return false;
    }
    return true;
}

static bool same_as_before(trn_opt *p, trn_gnode *nd)
{
    if (nd->n.n_out == 0 || p->pinned[nd->id])
        return false;
    if (trn_gnode__is(nd, "Const") && trn_tensor_total_bytes(trn_attr_tensor(&nd->n, "value")) > MAX_CSE_CONST)
        return false;
    if (nd->n_ctl > 1)
        qsort(nd->ctl, (size_t)nd->n_ctl, sizeof *nd->ctl, by_int);
    uint64_t h = hash_node(nd);
    int first = (int)(intptr_t)trn_map_geti(p->same, h);
    for (int id = first, tries = 0; id && tries < 64; id = p->next_same[id - 1], tries++) {
        if (!equal_nodes(p->g->node[id - 1], nd))
            continue;
        trn_edge *to = trn_xalloc((size_t)nd->n.n_out * sizeof *to);
        for (int i = 0; i < nd->n.n_out; i++)
            to[i] = (trn_edge){id - 1, i};
        trn_opt__move(p, nd, to);
        free(to);
        return true;
    }
    p->next_same[nd->id] = first;
    trn_map_puti(p->same, h, (void *)(intptr_t)(nd->id + 1));
    return false;
}

/* ---- all together --------------------------------------------------------------------------------------------- */

static void find_pinned(trn_opt *p)
{
    trn_graph *g = p->g;
    for (int i = 0; i < g->n; i++) {
        const trn_attr *c = g->node[i] ? trn_node_attr(&g->node[i]->n, "_class") : NULL;
        for (int k = 0; c && c->is_list && c->kind == TRN_ATTR_STRING && k < c->n; k++) {
            const trn_gnode *to = c->list[k].s.n > 5 ? trn_graph_find(g, c->list[k].s.p + 5, c->list[k].s.n - 5) : NULL;
            if (to && to->id != i)
                p->pinned[to->id] = true;
        }
    }
}

static void count_uses(trn_opt *p)
{
    trn_graph *g = p->g;
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        for (int k = 0; nd && k < nd->n.n_in; k++)
            p->uses[nd->in[k].node]++;
        for (int k = 0; nd && k < nd->n_ctl; k++)
            p->uses[nd->ctl[k]]++;
    }
}

static bool in_frame(const trn_opt *p, const trn_gnode *nd)
{
    if (nd->n.def ? nd->n.def->row->flags & CONTROL_FLOW & ~(TRN_OP_SEND | TRN_OP_RECV) : 0)
        return true;
    for (int k = 0; k < nd->n.n_in; k++)
        if (nd->in[k].node < p->n0 && p->tainted[nd->in[k].node])
            return true;
    for (int k = 0; k < nd->n_ctl; k++)
        if (nd->ctl[k] < p->n0 && p->tainted[nd->ctl[k]])
            return true;
    return false;
}

/* Drops what was used before and is not any more. What had no users from the start is there for its own sake. */
static void sweep(trn_opt *p, const int *uses_before)
{
    trn_graph *g = p->g;
    int n = 0, *stack = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *stack);
    p->uses = trn_xrealloc(p->uses, (size_t)TRN_MAX(g->n, 1) * sizeof *p->uses);
    memset(p->uses, 0, (size_t)g->n * sizeof *p->uses);
    count_uses(p);
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && !p->uses[i] && (i >= p->n0 || uses_before[i]))
            stack[n++] = i;
    while (n) {
        int id = stack[--n];
        trn_gnode *nd = g->node[id];
        if (!trn_opt__is_pure(nd) || (id < p->n0 && p->pinned[id]))
            continue;
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            int from = k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in];
            if (--p->uses[from] == 0)
                stack[n++] = from;
        }
        trn_graph_remove(g, id);
    }
    free(stack);
}

/* ---- results that nobody reads -------------------------------------------------------------------------------- */

static bool checks_its_input(const trn_gnode *nd)
{
    return trn_gnode__is(nd, "CheckNumerics") || trn_gnode__is(nd, "CheckNumericsV2") || trn_gnode__is(nd, "EnsureShape");
}

/* A node of which only the end matters becomes a NoOp that waits for what the node read. Users first, so that what only it read follows. */
static trn_err drop_unread(trn_opt *p, const int *order, int n)
{
    trn_graph *g = p->g;
    int *reads = trn_xalloc((size_t)g->n * sizeof *reads);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; g->node[i] && k < g->node[i]->n.n_in; k++)
            reads[g->node[i]->in[k].node]++;
    trn_err err = TRN_OK;
    for (int k = n - 1; k >= 0 && !err; k--) {
        trn_gnode *nd = g->node[order[k]];
        if (!nd || reads[nd->id] || !p->ctl_used[nd->id] || p->pinned[nd->id] || p->tainted[nd->id] || !nd->n.n_in || !nd->n.n_out || !trn_opt__is_pure(nd) ||
            checks_its_input(nd)) /* what gives nothing is there for what it does */
            continue;
        for (int i = 0; i < nd->n.n_in; i++) {
            int from = nd->in[i].node;
            reads[from]--;
            if (from < p->n0)
                p->ctl_used[from] = true;
            trn_graph_add_ctl(g, nd, from);
        }
        const trn_attr *cls = trn_node_attr(&nd->n, "_class");
        nd->n.op = "NoOp";
        nd->n.n_attrs = cls != NULL;
        if (cls)
            nd->n.attrs = trn_arena_dup(g->arena, cls, sizeof *cls);
        err = trn_gnode__resolve(nd, g->arena, NULL, 0, NULL);
    }
    free(reads);
    return err;
}

static trn_err pass(trn_opt *p, const int *order, int n)
{
    for (int k = 0; k < n; k++) {
        trn_gnode *nd = p->g->node[order[k]];
        update_inputs(p, nd);
        p->tainted[nd->id] = in_frame(p, nd);
        if (nd->n.def)
            trn_err_free(trn_infer__node(p->shape, p->g, nd, p->tmp));
        if (!trn_opt__is_pure(nd))
            continue;
        if (p->o->identity && drop_identity(p, nd))
            continue;
        bool done = false;
        if (p->o->fold)
            TRN_TRY(fold(&done, p, nd));
        if (p->moved[nd->id])
            continue;
        if (p->o->simplify && !done) {
            TRN_TRY(trn_opt__simplify(&done, p, nd));
            if (done)
                continue;
        }
        if (p->o->cse)
            (void)same_as_before(p, nd);
    }
    return TRN_OK;
}

trn_err trn_graph_optimise(trn_graph *g, const trn_opt_opts *o, trn_eval_fn eval)
{
    if (g->n == 0 || (!o->fold && !o->cse && !o->identity && !o->simplify && !o->fuse))
        return TRN_OK;
    size_t n = (size_t)g->n;
    trn_opt p = {.g = g,
             .o = o,
             .eval = eval,
             .n0 = g->n,
             .max_bytes = o->max_folded_bytes > 0 ? o->max_folded_bytes : DEFAULT_MAX_FOLD,
             .tmp = trn_arena_new(),
             .tainted = trn_xalloc(n),
             .pinned = trn_xalloc(n),
             .ctl_used = trn_xalloc(n),
             .uses = trn_xalloc(n * sizeof(int)),
             .moved = trn_xalloc(n * sizeof(trn_edge *)),
             .same = trn_map_new(),
             .next_same = trn_xalloc(n * sizeof(int))};
    int *order = trn_xalloc(n * sizeof *order), *uses_before = trn_xalloc(n * sizeof *uses_before);
    trn_opt__set_shape(&p, g->n - 1, NULL);
    find_pinned(&p);
    count_uses(&p);
    memcpy(uses_before, p.uses, n * sizeof *uses_before);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; g->node[i] && k < g->node[i]->n_ctl; k++)
            p.ctl_used[g->node[i]->ctl[k]] = true;
    int n_order = trn_graph_topo(g, order);
    trn_err err = pass(&p, order, n_order);
    if (!err) {
        for (int i = 0; i < g->n; i++) /* back edges, and nodes that came later */
            if (g->node[i])
                update_inputs(&p, g->node[i]);
        for (int i = 0; i < p.n0; i++)
            if (p.moved[i])
                trn_graph_remove(g, i);
        if (o->identity)
            err = drop_unread(&p, order, n_order);
        sweep(&p, uses_before);
        if (!err && o->fuse) {
            err = trn_opt__fuse(&p);
            if (!err)
                sweep(&p, uses_before);
        }
        trn_graph_compact(g);
    }
    trn_arena_free(p.tmp);
    free(p.shape);
    free(p.tainted);
    free(p.pinned);
    free(p.ctl_used);
    free(p.uses);
    free(p.moved);
    trn_map_free(p.same, NULL);
    free(p.next_same);
    free(p.ctls.seen);
    free(order);
    free(uses_before);
    return err;
}
