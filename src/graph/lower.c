/* Functional control flow → v1 control flow, and calls → bodies, so that the placer can spread a function over tasks and the executor needs no
 * second way to run one.
 *
 * Nodes are lowered in the order of their ids; what a body brings comes behind and gets its turn. A lowered node leaves a note (`low`) of what
 * stands for its outputs; all edges are moved at the end, in one pass. TensorFlow's lowering (lower_if_op.cc, lower_while_op.cc,
 * inline_function_utils.cc) decides what may run when:
 *   - nothing of a body runs before the call's control inputs: arguments pass an Identity behind them, nodes without inputs wait for them;
 *   - what waits for the call waits for the body's control outputs;
 *   - a branch's nodes are alive only in the branch, a loop's body nodes only in iterations that the condition allows. */
#include "graph/devname.h"
#include "graph/graph_priv.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_DEPTH 64            /* functions inside functions */
#define MAX_ADDED (1000 * 1000) /* nodes: a few nested functions can ask for 2^60 */
#define MAX_BYTES ((size_t)1 << 30) /* for all that lowering makes: names and lists of inputs are a peer's, and each copy of a body has them again */

/* Which functions a node came out of, innermost first: calls to one of them stay calls. */
typedef struct chain {
    const char *fn;
    const struct chain *up;
    int depth;
} chain;

/* What stands for a node that is gone. */
typedef struct low {
    trn_edge *outs; /* NULL: the node is still there */
    int n_outs;
    int ctl; /* who waited for it waits for this; -1: for nothing */
} low;

typedef struct lower {
    trn_graph *g;
    trn_arena *tmp;
    int cap, n0;
    low *low;           /* by node id */
    const chain **from; /* by node id */
    bool *ctl_used;     /* by node id: has control outputs */
    trn_map *bodies;    /* function name → trn_graph *, of those without attrs */
    trn_map *moved;     /* name of a lowered node → name of what stands for its output 0, for colocation */
    const chain *cur;   /* of the node that is being lowered */
    uint64_t growth;    /* that the constants of further bodies may take */
    size_t had, of_bodies; /* bytes of the graph's arena before; of the bodies */
    int *root, n_roots, cap_roots; /* effects that happen whether anybody looks at a result or not */
    trn_ctlset ctls;
} lower;

static void reserve(lower *l)
{
    if (l->g->n <= l->cap)
        return;
    int cap = TRN_MAX(l->g->n + 64, 2 * l->cap);
    l->low = trn_xrealloc(l->low, (size_t)cap * sizeof *l->low);
    l->from = trn_xrealloc(l->from, (size_t)cap * sizeof *l->from);
    l->ctl_used = trn_xrealloc(l->ctl_used, (size_t)cap * sizeof *l->ctl_used);
    for (int i = l->cap; i < cap; i++) {
        l->low[i] = (low){0};
        l->from[i] = NULL;
        l->ctl_used[i] = false;
    }
    l->cap = cap;
}

/* ---- new nodes ------------------------------------------------------------------------------------------------ */

static trn_err check_room(const lower *l, const char *scope)
{
    if (l->g->n - l->n0 > MAX_ADDED)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "lowering '%.1024s' makes more than %d nodes", scope, MAX_ADDED);
    if (trn_arena_bytes(l->g->arena) - l->had + trn_arena_bytes(l->tmp) + l->of_bodies > MAX_BYTES)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "lowering '%.1024s' takes more than %zu bytes", scope, MAX_BYTES);
    return TRN_OK;
}

static trn_err add(trn_gnode **out, lower *l, const char *op, const char *scope, const char *leaf, const char *device,
                   const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    trn_graph *g = l->g;
    TRN_TRY(check_room(l, scope));
    const char *name = trn_graph_unique_name(g, trn_arena_printf(l->tmp, "%s/%s", scope, leaf));
    /* Inputs may be nodes that are lowered already: their notes say where the value comes from now. */
    trn_edge *e = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_in, 1) * sizeof *e);
    for (int i = 0; i < n_in; i++) {
        e[i] = in[i];
        while (e[i].node >= 0 && l->low[e[i].node].outs)
            e[i] = l->low[e[i].node].outs[e[i].slot];
    }
    TRN_TRY(trn_graph_add(out, g, op, name, device, attrs, n_attrs, e, n_in));
    reserve(l);
    l->from[(*out)->id] = l->cur;
    return TRN_OK;
}

static void ctl(lower *l, trn_gnode *to, int from)
{
    trn_graph_add_ctl(l->g, to, from);
    l->ctl_used[from] = true;
}

static void set_ctls(lower *l, trn_gnode *to, const int *ids, int n)
{
    trn_gnode__set_ctl(l->g, to, ids, n, &l->ctls);
    for (int i = 0; i < to->n_ctl; i++)
        l->ctl_used[to->ctl[i]] = true;
}

static trn_edge resolved(const lower *l, trn_edge e)
{
    while (e.node >= 0 && l->low[e.node].outs)
        e = l->low[e.node].outs[e.slot];
    return e;
}

static trn_dtype type_of(const lower *l, trn_edge e)
{
    e = resolved(l, e);
    const trn_gnode *nd = l->g->node[e.node];
    return e.slot < nd->n.n_out ? nd->n.out_types[e.slot] : TRN_INVALID;
}

static trn_err identity(trn_gnode **out, lower *l, const char *scope, const char *leaf, trn_edge in, trn_dtype type)
{
    in = resolved(l, in);
    trn_attr t = trn_attr__type("T", type);
    return add(out, l, "Identity", scope, leaf, l->g->node[in.node]->n.device, &t, 1, &in, 1);
}

/* One node to wait for instead of several; -1 when there is none. */
static trn_err join(int *out, lower *l, const char *scope, const char *leaf, const char *device, const int *ids, int n)
{
    if (n == 0) {
        *out = -1;
        return TRN_OK;
    }
    if (n == 1) {
        *out = ids[0];
        return TRN_OK;
    }
    trn_gnode *nd;
    TRN_TRY(add(&nd, l, "NoOp", scope, leaf, device, NULL, 0, NULL, 0));
    set_ctls(l, nd, ids, n);
    *out = nd->id;
    return TRN_OK;
}

/* ---- bodies --------------------------------------------------------------------------------------------------- */

static bool calls_function(const lower *l, const trn_gnode *nd)
{
    if (!nd->n.def)
        return trn_funclib_has(l->g->lib, nd->n.op);
    return trn_gnode__is(nd, "PartitionedCall") || trn_gnode__is(nd, "StatefulPartitionedCall");
}

static bool may_have_effect(const trn_gnode *nd)
{
    return !nd->n.def || (nd->n.def->row->flags & (TRN_OP_STATEFUL | TRN_OP_BACK));
}

trn_graph *trn_graph__without_dead_nodes(TRN_OWN trn_graph *b, bool by_name)
{
    bool *keep = trn_xalloc((size_t)TRN_MAX(b->n, 1) * sizeof *keep);
    int *stack = trn_xalloc((size_t)TRN_MAX(b->n, 1) * sizeof *stack), n = 0;
    bool has_ctl_rets = trn_graph_find(b, "_ctl_rets", 9) != NULL;
    for (int i = 0; i < b->n; i++) {
        const trn_gnode *nd = b->node[i];
        /* Functions of old, whose name is an op, say nothing about their effects, so every stateful node is one. Others name theirs. */
        bool effect = by_name && !has_ctl_rets && may_have_effect(nd);
        keep[i] = trn_gnode__is(nd, "_Arg");
        if (trn_gnode__is(nd, "_Retval") || strcmp(nd->n.name, "_ctl_rets") == 0 || (effect && !keep[i])) {
            keep[i] = true;
            stack[n++] = i;
        }
    }
    while (n) {
        const trn_gnode *nd = b->node[stack[--n]];
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            int from = k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in];
            if (!keep[from]) {
                keep[from] = true;
                stack[n++] = from;
            }
        }
    }
    bool all = true;
    for (int i = 0; i < b->n; i++)
        all &= keep[i];
    if (!all) {
        trn_graph *c = trn_graph_copy(b, keep);
        trn_graph_free(b);
        b = c;
    }
    free(keep);
    free(stack);
    return b;
}

static trn_err body_of(trn_graph **out, lower *l, const trn_func_ref *f, bool by_name)
{
    const char *key = f->n_attrs ? NULL : by_name ? trn_arena_printf(l->tmp, "%s by name", f->name) : f->name;
    trn_graph *b = key ? trn_map_gets(l->bodies, key) : NULL;
    if (!b) {
        TRN_TRY(trn_funclib__body(&b, l->g->lib, f, &l->growth));
        b = trn_graph__without_dead_nodes(b, by_name);
        /* the new nodes keep pointing into the body's strings and attrs */
        trn_gstore__adopt(l->g->store, trn_gstore_ref(b->store));
        l->of_bodies += trn_gstore__bytes(b->store);
        /* bodies with attrs are used once, but live as long as the others: they are freed together */
        trn_map_puts(l->bodies, key ? key : trn_arena_printf(l->tmp, "%s %zu", f->name, trn_map_count(l->bodies)), b);
    }
    *out = b;
    return TRN_OK;
}

/* A partial device name is completed by the caller's. */
static const char *body_device(lower *l, const char *dev, const char *caller)
{
    if (!caller[0] || strcmp(dev, caller) == 0)
        return dev;
    if (!dev[0])
        return caller;
    trn_devname d, c;
    char text[TRN_DEVNAME_TEXT];
    trn_err err = trn_devname_parse(&d, dev, strlen(dev));
    if (!err)
        err = trn_devname_parse(&c, caller, strlen(caller));
    if (err) { /* the placer says what is wrong with it */
        trn_err_free(err);
        return dev;
    }
    trn_devname_fill(&d, &c);
    return trn_arena_strdup(l->g->arena, trn_devname_text(text, &d));
}

/* "loc:@x" of the body means a node of this copy, or what the argument x is here. */
static void move_colocation(lower *l, trn_gnode *nd, const trn_graph *body, const int *ids, const trn_edge *args)
{
    trn_arena *a = l->g->arena;
    for (int i = 0; i < nd->n.n_attrs; i++) {
        trn_attr *attr = &nd->n.attrs[i];
        if (strcmp(attr->name, "_class") != 0 || !attr->is_list || attr->kind != TRN_ATTR_STRING)
            continue;
        trn_attr_val *v = trn_arena_alloc(a, (size_t)TRN_MAX(attr->n, 1) * sizeof *v);
        for (int k = 0; k < attr->n; k++) {
            v[k] = attr->list[k];
            const trn_gnode *to = v[k].s.n > 5 && memcmp(v[k].s.p, "loc:@", 5) == 0
                                      ? trn_graph_find(body, v[k].s.p + 5, v[k].s.n - 5)
                                      : NULL;
            if (!to)
                continue;
            if (trn_gnode__is(to, "_Retval"))
                to = body->node[to->in[0].node];
            int id = trn_gnode__is(to, "_Arg") ? args[trn_attr_int(&to->n, "index")].node : ids[to->id];
            v[k].s.p = trn_arena_printf(a, "loc:@%s", l->g->node[id]->n.name);
            v[k].s.n = strlen(v[k].s.p);
        }
        attr->list = v;
    }
}

typedef struct call {
    const char *scope, *device; /* of the caller */
    const trn_func_ref *f;
    int n_args;
    const trn_edge *args;
    const bool *gate; /* args that must wait for `ctl` behind an Identity */
    int ctl;          /* nothing may run before it; -1 */
    bool inner_only;  /* gated args that are only handed through are not asked for */
    bool by_name;     /* the call's op is the function's name */
} call;

typedef struct called {
    int n_outs;
    trn_edge *outs;
    int effects; /* runs when all effects are done; -1: the function says that it has none */
} called;

/* Arguments as the body sees them. One that is waited for (a control edge from it) needs a node of its own: the other end of the edge may be a
 * Switch, which runs in both branches. */
static trn_err bind_args(trn_edge *bound, lower *l, const call *c, const trn_graph *body)
{
    int n_args = 0;
    trn_dtype *types = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(c->n_args, 1) * sizeof *types);
    for (int i = 0; i < body->n; i++) {
        const trn_gnode *nd = body->node[i];
        if (!trn_gnode__is(nd, "_Arg"))
            continue;
        int64_t at = trn_attr_int(&nd->n, "index");
        trn_dtype want = trn_attr_type(&nd->n, "T"), have = at < c->n_args ? type_of(l, c->args[at]) : TRN_INVALID;
        n_args++;
        if (at < c->n_args)
            types[at] = want;
        if (at < c->n_args && have != TRN_INVALID && trn_dtype_base(have) != want)
            return trn_errorf(TRN_INVALID_ARGUMENT, "'%s': argument %d of function '%s' is %s, but gets %s", c->scope,
                              (int)at, c->f->name, trn_dtype_name(want), trn_dtype_name(have));
    }
    if (n_args != c->n_args)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s': function '%s' takes %d arguments, but gets %d", c->scope,
                          c->f->name, n_args, c->n_args);
    bool *waited = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_args, 1) * sizeof *waited);
    for (int i = 0; i < body->n; i++) {
        const trn_gnode *nd = body->node[i];
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            const trn_gnode *from = body->node[k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in]];
            if (!trn_gnode__is(from, "_Arg") || (trn_gnode__is(nd, "_Retval") && c->inner_only))
                continue;
            int64_t at = trn_attr_int(&from->n, "index");
            waited[at] |= k >= nd->n.n_in || c->gate[at];
        }
    }
    for (int i = 0; i < n_args; i++) {
        bound[i] = resolved(l, c->args[i]);
        if (!waited[i])
            continue;
        trn_gnode *nd;
        TRN_TRY(identity(&nd, l, c->scope, "input", bound[i], types[i]));
        if (c->ctl >= 0)
            ctl(l, nd, c->ctl);
        bound[i] = (trn_edge){nd->id, 0};
    }
    return TRN_OK;
}

static trn_err copy_node(trn_gnode **out, lower *l, const call *c, const trn_gnode *s)
{
    trn_graph *g = l->g;
    trn_arena *a = g->arena;
    TRN_TRY(check_room(l, c->scope));
    trn_gnode *nd = trn_arena_dup(a, s, sizeof *s);
    nd->n.name = trn_graph_unique_name(g, trn_arena_printf(l->tmp, "%s/%s", c->scope, s->n.name));
    nd->n.device = body_device(l, s->n.device, c->device);
    nd->n.attrs = trn_arena_dup(a, s->n.attrs, (size_t)s->n.n_attrs * sizeof *s->n.attrs);
    nd->in = trn_arena_alloc(a, (size_t)TRN_MAX(s->n.n_in, 1) * sizeof *nd->in);
    nd->ctl = NULL;
    nd->n_ctl = nd->cap_ctl = 0;
    if (s->n.def && (s->n.def->row->flags & TRN_OP_ENTER)) { /* each copy of a loop is a frame of its own */
        trn_attr fr =
            trn_attr__str("frame_name", trn_arena_printf(l->tmp, "%s/%s", c->scope, trn_attr_str(&s->n, "frame_name")));
        trn_gnode__set_attr(nd, a, &fr);
    }
    nd->id = g->n;
    TRN_PUSH(g->node, g->n, g->cap, nd);
    trn_map_puts(g->by_name, nd->n.name, nd);
    reserve(l);
    l->from[nd->id] = l->cur;
    *out = nd;
    return TRN_OK;
}

static bool splits(const trn_gnode *nd) { return trn_gnode__is(nd, "Switch") || trn_gnode__is(nd, "RefSwitch"); }
static bool merges(const trn_gnode *nd) { return trn_gnode__is(nd, "Merge") || trn_gnode__is(nd, "RefMerge"); }

static int input_at(const trn_gnode *nd, int k) { return k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in]; }

/* On how many sides of decisions of the old kind (Switch … Merge) each node lies. Nodes may come before what they need; cycles there are none. */
static int *old_sides(lower *l, const trn_graph *body)
{
    int *depth = trn_arena_alloc(l->tmp, ((size_t)body->n + 1) * sizeof *depth), n = 0;
    bool any = false, loops = false; /* of the old kind: their Switches are no decisions, their effects belong to their turns */
    for (int i = 0; i < body->n && !loops; i++) {
        any |= splits(body->node[i]);
        loops = trn_gnode__is(body->node[i], "Enter") || trn_gnode__is(body->node[i], "RefEnter");
    }
    if (!any || loops)
        return depth;
    int *stack = trn_arena_alloc(l->tmp, ((size_t)body->n + 1) * sizeof *stack), *next = trn_arena_alloc(l->tmp, ((size_t)body->n + 1) * sizeof *next);
    bool *seen = trn_arena_alloc(l->tmp, (size_t)body->n + 1);
    for (int i = 0; i < body->n; i++) {
        if (seen[i])
            continue;
        seen[i] = true;
        stack[n++] = i;
        while (n) {
            int id = stack[n - 1];
            const trn_gnode *nd = body->node[id];
            if (next[id] < nd->n.n_in + nd->n_ctl) {
                int from = input_at(nd, next[id]++);
                if (!seen[from]) {
                    seen[from] = true;
                    stack[n++] = from;
                }
                continue;
            }
            n--;
            for (int k = 0; k < nd->n.n_in + (merges(nd) ? 0 : nd->n_ctl); k++) {
                int from = input_at(nd, k);
                depth[id] = TRN_MAX(depth[id], depth[from] + (k < nd->n.n_in && splits(body->node[from])));
            }
            depth[id] -= merges(nd) && depth[id] > 0;
        }
    }
    return depth;
}

/* Runs when these are done, or will not be because they lie on a side that was not taken: what does not come by a control edge holds a Merge up no longer. */
static trn_err whichever(int *out, lower *l, const call *c, const int *ids, int n)
{
    trn_tensor *v = trn_tensor_i32(0);
    trn_attr value[] = {trn_attr__type("dtype", TRN_INT32), trn_attr__tensor("value", v)}, t[] = {trn_attr__type("T", TRN_INT32), trn_attr__int("N", 1)};
    trn_gnode *zero, *m;
    trn_err err = add(&zero, l, "Const", c->scope, "sides_done", c->device, value, 2, NULL, 0);
    trn_tensor_unref(v);
    TRN_TRY(err);
    if (c->ctl >= 0)
        ctl(l, zero, c->ctl);
    TRN_TRY(add(&m, l, "Merge", c->scope, "sides_done", c->device, t, 2, &(trn_edge){zero->id, 0}, 1));
    set_ctls(l, m, ids, n);
    *out = m->id;
    return TRN_OK;
}

static trn_err inline_body(called *out, lower *l, const call *c)
{
    trn_graph *body;
    TRN_TRY(check_room(l, c->scope));
    TRN_TRY(body_of(&body, l, c->f, c->by_name));
    const chain *outer = l->cur;
    chain *ch = trn_arena_alloc(l->tmp, sizeof *ch);
    *ch = (chain){c->f->name, outer, outer ? outer->depth + 1 : 1};
    if (ch->depth > MAX_DEPTH)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "'%s': functions are nested deeper than %d", c->scope, MAX_DEPTH);
    trn_edge *args = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(c->n_args, 1) * sizeof *args);
    int *to = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(body->n, 1) *
                                          sizeof *to); /* body id → id, for all but _Arg and _Retval */
    TRN_TRY(bind_args(args, l, c, body));

    out->n_outs = 0;
    out->effects = -1;
    l->cur = ch;
    for (int i = 0; i < body->n; i++) {
        const trn_gnode *s = body->node[i];
        if (trn_gnode__is(s, "_Retval"))
            out->n_outs++;
        if (trn_gnode__is(s, "_Retval") || trn_gnode__is(s, "_Arg"))
            continue;
        trn_gnode *nd;
        TRN_TRY(copy_node(&nd, l, c, s));
        to[i] = nd->id;
    }
    l->cur = outer;
    out->outs = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(out->n_outs, 1) * sizeof *out->outs);
    int *effects = trn_arena_alloc(l->tmp, ((size_t)body->n + 1) * sizeof *effects), n_effects = 0;
    int *maybe = trn_arena_alloc(l->tmp, ((size_t)body->n + 1) * sizeof *maybe), n_maybe = 0;
    const int *sides = old_sides(l, body);
    bool has_ctl_rets = trn_graph_find(body, "_ctl_rets", 9) != NULL;
    for (int i = 0; i < body->n; i++) {
        const trn_gnode *s = body->node[i];
        if (trn_gnode__is(s, "_Arg"))
            continue;
        if (trn_gnode__is(s, "_Retval")) {
            const trn_gnode *from = body->node[s->in[0].node];
            int64_t at = trn_attr_int(&s->n, "index");
            out->outs[at] = trn_gnode__is(from, "_Arg") ? args[trn_attr_int(&from->n, "index")]
                                                        : (trn_edge){to[from->id], s->in[0].slot};
            continue;
        }
        trn_gnode *nd = l->g->node[to[i]];
        move_colocation(l, nd, body, to, args);
        for (int k = 0; k < s->n.n_in; k++) {
            const trn_gnode *from = body->node[s->in[k].node];
            nd->in[k] = trn_gnode__is(from, "_Arg") ? args[trn_attr_int(&from->n, "index")]
                                                    : (trn_edge){to[from->id], s->in[k].slot};
        }
        if (s->n_ctl) {
            int *ids = trn_arena_alloc(l->tmp, (size_t)s->n_ctl * sizeof *ids);
            for (int k = 0; k < s->n_ctl; k++) {
                const trn_gnode *from = body->node[s->ctl[k]];
                ids[k] = trn_gnode__is(from, "_Arg") ? args[trn_attr_int(&from->n, "index")].node : to[from->id];
            }
            set_ctls(l, nd, ids, s->n_ctl);
        }
        /* A node without inputs would run whatever becomes of the call; a call inside may bring such nodes. */
        bool brings = calls_function(l, s) || trn_gnode__is(s, "SymbolicGradient") || trn_gnode__is(s, "RemoteCall");
        if (c->ctl >= 0 && s->n_ctl == 0 && (s->n.n_in == 0 || brings))
            ctl(l, nd, c->ctl);
        if (has_ctl_rets ? strcmp(s->n.name, "_ctl_rets") == 0 : may_have_effect(s)) {
            if (sides[i] > 0)
                maybe[n_maybe++] = to[i];
            else
                effects[n_effects++] = to[i];
        }
    }
    if (n_maybe) {
        TRN_TRY(whichever(&effects[n_effects], l, c, maybe, n_maybe));
        n_effects++;
    }
    TRN_TRY(join(&out->effects, l, c->scope, "output_control_node", c->device, effects, n_effects));
    if (out->effects >= 0 && (has_ctl_rets || c->by_name))
        TRN_PUSH(l->root, l->n_roots, l->cap_roots, out->effects);
    return TRN_OK;
}

/* ---- one op each ---------------------------------------------------------------------------------------------- */

static bool in_chain(const lower *l, const char *fn)
{
    for (const chain *c = l->cur; c; c = c->up)
        if (strcmp(c->fn, fn) == 0)
            return true;
    return false;
}

static void replace(lower *l, trn_gnode *nd, TRN_OWN trn_edge *outs, int ctl_id)
{
    int id = nd->id;
    l->low[id] = (low){outs, nd->n.n_out, ctl_id};
    if (ctl_id >= 0 && l->ctl_used[id])
        l->ctl_used[ctl_id] = true; /* it may be a call itself, whose turn comes */
    trn_map_puts(l->moved, nd->n.name, &nd->id);
    trn_graph_remove(l->g, id);
}

static int ctl_inputs(trn_err *err, lower *l, const trn_gnode *nd, const char *leaf)
{
    int id = -1;
    *err = join(&id, l, nd->n.name, leaf, nd->n.device, nd->ctl, nd->n_ctl);
    return id;
}

static trn_err check_outs(const lower *l, const trn_gnode *nd, const trn_func_ref *f, const called *r)
{
    if (r->n_outs != nd->n.n_out)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s) has %d outputs, but function '%s' returns %d", nd->n.name,
                          nd->n.op, nd->n.n_out, f->name, r->n_outs);
    for (int i = 0; i < r->n_outs; i++) {
        trn_dtype have = type_of(l, r->outs[i]);
        if (have != TRN_INVALID && nd->n.out_types[i] != TRN_INVALID &&
            trn_dtype_base(have) != trn_dtype_base(nd->n.out_types[i]))
            return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s): output %d is %s, but function '%s' returns %s",
                              nd->n.name, nd->n.op, i, trn_dtype_name(nd->n.out_types[i]), f->name,
                              trn_dtype_name(have));
    }
    return TRN_OK;
}

/* A call that stays one must be an op that has a kernel. */
static trn_err keep_call(lower *l, trn_gnode *nd, const trn_func_ref *f)
{
    if (nd->n.def)
        return TRN_OK;
    trn_arena *a = l->g->arena;
    trn_func_ref *fr = trn_arena_dup(a, f, sizeof *f);
    trn_attr_val *tin = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_in, 1) * sizeof *tin);
    trn_attr_val *tout = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_out, 1) * sizeof *tout);
    for (int i = 0; i < nd->n.n_in; i++)
        tin[i].type = trn_dtype_base(nd->n.in_types[i]);
    for (int i = 0; i < nd->n.n_out; i++)
        tout[i].type = trn_dtype_base(nd->n.out_types[i]);
    trn_attr *attrs = trn_arena_alloc(a, 3 * sizeof *attrs);
    attrs[0] = (trn_attr){.name = "f", .kind = TRN_ATTR_FUNC, .v.func = fr};
    attrs[1] = (trn_attr){.name = "Tin", .kind = TRN_ATTR_TYPE, .is_list = true, .n = nd->n.n_in, .list = tin};
    attrs[2] = (trn_attr){.name = "Tout", .kind = TRN_ATTR_TYPE, .is_list = true, .n = nd->n.n_out, .list = tout};
    nd->n.op = "StatefulPartitionedCall";
    nd->n.attrs = attrs;
    nd->n.n_attrs = 3;
    return trn_gnode__resolve(nd, a, NULL, nd->n.n_in, NULL);
}

static trn_err lower_call(lower *l, trn_gnode *nd)
{
    trn_func_ref own = {nd->n.op, nd->n.n_attrs, nd->n.attrs};
    const trn_func_ref *f = nd->n.def ? trn_attr_func(&nd->n, "f") : &own;
    if (!f || in_chain(l, f->name) || !trn_funclib_has(l->g->lib, f->name))
        return f && !nd->n.def ? keep_call(l, nd, f) : TRN_OK;
    trn_err err;
    int in_ctl = ctl_inputs(&err, l, nd, "input_control_node");
    TRN_TRY(err);
    bool *gate = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(nd->n.n_in, 1) * sizeof *gate);
    for (int i = 0; i < nd->n.n_in; i++)
        gate[i] = in_ctl >= 0;
    called r;
    TRN_TRY(inline_body(&r, l, &(call){nd->n.name, nd->n.device, f, nd->n.n_in, nd->in, gate, in_ctl, false, !nd->n.def}));
    TRN_TRY(check_outs(l, nd, f, &r));
    int done = r.effects;
    if (done < 0 && l->ctl_used[nd->id]) { /* who waits for it waits for its results, or at least for its inputs */
        int n = 0, *ids = trn_arena_alloc(l->tmp, (size_t)(r.n_outs + nd->n.n_in + 1) * sizeof *ids);
        for (int i = 0; i < r.n_outs + nd->n.n_in; i++) {
            trn_gnode *id;
            if (i >= r.n_outs && n)
                break;
            trn_edge e = i < r.n_outs ? r.outs[i] : nd->in[i - r.n_outs];
            trn_dtype t = i < r.n_outs ? nd->n.out_types[i] : nd->n.in_types[i - r.n_outs];
            /* through an Identity: e may be one side of a Switch */
            TRN_TRY(identity(&id, l, nd->n.name, "output", e, trn_dtype_base(t)));
            ids[n++] = id->id;
        }
        if (n == 0 && in_ctl >= 0)
            ids[n++] = in_ctl;
        TRN_TRY(join(&done, l, nd->n.name, "output_control_node", nd->n.device, ids, n));
    }
    replace(l, nd, r.outs, done);
    return TRN_OK;
}

/* A call whose target is known is its body on that device. Others are up to the kernel. */
static trn_err lower_remote_call(lower *l, trn_gnode *nd)
{
    const trn_func_ref *f = trn_attr_func(&nd->n, "f");
    const trn_gnode *src = nd->n.n_in ? l->g->node[resolved(l, nd->in[0]).node] : NULL;
    const trn_tensor *target = src && trn_gnode__is(src, "Const") ? trn_attr_tensor(&src->n, "value") : NULL;
    trn_devname d;
    size_t n;
    if (!f || !target || target->dtype != TRN_STRING || target->count != 1 || in_chain(l, f->name) || !trn_funclib_has(l->g->lib, f->name))
        return TRN_OK;
    const char *text = trn_tensor_str_at(target, 0, &n);
    trn_err err = n ? trn_devname_parse(&d, text, n) : TRN_OK;
    if (!n || err) {
        trn_err_free(err);
        return TRN_OK;
    }
    const char *device = body_device(l, trn_arena_strndup(l->g->arena, text, n), nd->n.device);
    int in_ctl = ctl_inputs(&err, l, nd, "input_control_node"), n_args = nd->n.n_in - 1;
    TRN_TRY(err);
    bool *gate = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_args, 1) * sizeof *gate);
    for (int i = 0; i < n_args; i++)
        gate[i] = in_ctl >= 0;
    called r;
    TRN_TRY(inline_body(&r, l, &(call){nd->n.name, device, f, n_args, nd->in + 1, gate, in_ctl, false, true}));
    TRN_TRY(check_outs(l, nd, f, &r));
    int done = r.effects;
    if (done < 0 && l->ctl_used[nd->id]) {
        int k = 0, *ids = trn_arena_alloc(l->tmp, (size_t)(r.n_outs + 1) * sizeof *ids);
        for (int i = 0; i < r.n_outs; i++) {
            trn_gnode *id;
            TRN_TRY(identity(&id, l, nd->n.name, "output", r.outs[i], trn_dtype_base(nd->n.out_types[i])));
            ids[k++] = id->id;
        }
        TRN_TRY(join(&done, l, nd->n.name, "output_control_node", nd->n.device, ids, k));
    }
    replace(l, nd, r.outs, done);
    return TRN_OK;
}

typedef struct grad_ctx {
    lower *l;
    const char *scope, *device;
} grad_ctx;

static trn_err grad_add(void *ctx, trn_gnode **out, const char *op, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    grad_ctx *c = ctx;
    return add(out, c->l, op, c->scope, op, c->device, attrs, n_attrs, in, n_in);
}

static void grad_wait(void *ctx, trn_gnode *nd, int from) { ctl(((grad_ctx *)ctx)->l, nd, from); }

/* Inputs: the arguments of a function and the gradients of its results. Outputs: the gradients of the arguments. Worked out by the function that is
 * said to do it, else from the function's body. */
static trn_err lower_gradient(lower *l, trn_gnode *nd)
{
    const trn_func_ref *f = trn_attr_func(&nd->n, "f");
    const char *scope = nd->n.name, *own = f ? trn_funclib__gradient(l->g->lib, f->name) : NULL;
    int n_x = nd->n.n_out, n_y = nd->n.n_in - n_x;
    if (!f || !trn_funclib_has(l->g->lib, f->name) || (own && !trn_funclib_has(l->g->lib, own)))
        return trn_errorf(TRN_NOT_FOUND, "'%s': the library has no function '%s' to take the gradient of", scope, own ? own : f ? f->name : "");
    if (n_y < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' has %d inputs for %d arguments and the gradients of the results", scope, nd->n.n_in, n_x);
    if (in_chain(l, own ? own : f->name))
        return trn_errorf(TRN_UNIMPLEMENTED, "'%s': the gradient of function '%s', which calls itself", scope, f->name);
    trn_err err;
    int in_ctl = ctl_inputs(&err, l, nd, "input_control_node");
    TRN_TRY(err);
    /* Every argument as a node of its own: two may come from one place. */
    trn_edge *in = trn_arena_alloc(l->tmp, (size_t)nd->n.n_in * sizeof *in), *dx = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_x, 1) * sizeof *dx);
    bool *gate = trn_arena_alloc(l->tmp, (size_t)nd->n.n_in * sizeof *gate);
    int first = l->g->n;
    for (int i = 0; i < nd->n.n_in; i++) {
        trn_gnode *id;
        TRN_TRY(identity(&id, l, scope, "input", nd->in[i], trn_dtype_base(nd->n.in_types[i])));
        if (in_ctl >= 0)
            ctl(l, id, in_ctl);
        in[i] = (trn_edge){id->id, 0};
    }
    called r;
    if (own) {
        TRN_TRY(inline_body(&r, l, &(call){scope, nd->n.device, &(trn_func_ref){.name = own}, nd->n.n_in, in, gate, in_ctl, false, true}));
        TRN_TRY(check_outs(l, nd, f, &r));
        replace(l, nd, r.outs, r.effects);
        return TRN_OK;
    }
    TRN_TRY(inline_body(&r, l, &(call){scope, nd->n.device, f, n_x, in, gate, in_ctl, false, true}));
    if (r.n_outs != n_y)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s': function '%s' has %d results, but %d gradients are given", scope, f->name, r.n_outs, n_y);
    grad_ctx ctx = {l, scope, nd->n.device};
    const chain *outer = l->cur;
    chain *ch = trn_arena_alloc(l->tmp, sizeof *ch); /* a call inside becomes another gradient: that must end, too */
    *ch = (chain){f->name, outer, outer ? outer->depth + 1 : 1};
    if (ch->depth > MAX_DEPTH)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "'%s': functions are nested deeper than %d", scope, MAX_DEPTH);
    l->cur = ch;
    err = trn_gradient_of(dx, &(trn_gradient){l->g, l->tmp, first, l->g->n, in[0].node, &ctx, grad_add, grad_wait}, in, n_x, r.outs, in + n_x, n_y);
    l->cur = outer;
    TRN_TRY(err);
    int done = -1;
    if (l->ctl_used[nd->id]) {
        int *ids = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_x, 1) * sizeof *ids);
        for (int i = 0; i < n_x; i++)
            ids[i] = dx[i].node;
        TRN_TRY(join(&done, l, scope, "output_control_node", nd->n.device, ids, n_x));
    }
    replace(l, nd, dx, done);
    return TRN_OK;
}

static trn_attr colocate_with(lower *l, const char *name)
{
    trn_attr_val *v = trn_arena_alloc(l->tmp, sizeof *v);
    v->s.p = trn_arena_printf(l->tmp, "loc:@%s", name);
    v->s.n = strlen(v->s.p);
    return (trn_attr){.name = "_class", .kind = TRN_ATTR_STRING, .is_list = true, .n = 1, .list = v};
}

/* One value that is alive in one of `n` branches: Switch for a bool, _SwitchN for a number. */
static trn_err branch_switch(trn_gnode **out, lower *l, const trn_gnode *nd, const char *leaf, int input,
                             int n_branches, bool is_case)
{
    trn_edge data = resolved(l, nd->in[input]), pred = nd->in[0];
    const trn_gnode *src = l->g->node[data.node];
    trn_attr attrs[3] = {trn_attr__type("T", trn_dtype_base(nd->n.in_types[input])), colocate_with(l, src->n.name),
                         trn_attr__int("num_outs", n_branches)};
    trn_edge in[2] = {data, pred};
    return add(out, l, is_case ? "_SwitchN" : "Switch", nd->n.name, leaf, src->n.device, attrs, is_case ? 3 : 2, in, 2);
}

/* If (n = 2, branch 0 is else: Switch's output 0 is false) and Case. */
static trn_err lower_branches(lower *l, trn_gnode *nd, const trn_func_ref *const *fs, int n, bool is_case)
{
    const char *scope = nd->n.name;
    for (int i = 0; i < n; i++)
        if (!fs[i] || in_chain(l, fs[i]->name) || !trn_funclib_has(l->g->lib, fs[i]->name))
            return TRN_OK;
    trn_dtype pt = trn_dtype_base(nd->n.in_types[0]);
    if (pt != (is_case ? TRN_INT32 : TRN_BOOL) || !trn_op_find(is_case ? "_SwitchN" : "Switch"))
        return TRN_OK; /* the op's own kernel knows what is true about a float */

    trn_gnode *sw, **pivot = trn_arena_alloc(l->tmp, (size_t)n * sizeof *pivot);
    TRN_TRY(branch_switch(&sw, l, nd, "switch_pred", 0, n, is_case));
    set_ctls(l, sw, nd->ctl, nd->n_ctl);
    for (int i = 0; i < n; i++) {
        char leaf[32];
        if (is_case)
            snprintf(leaf, sizeof leaf, "pivot_%d", i);
        else
            snprintf(leaf, sizeof leaf, "pivot_%c", i ? 't' : 'f');
        TRN_TRY(identity(&pivot[i], l, scope, leaf, (trn_edge){sw->id, i}, pt));
        pivot[i]->n.device = nd->n.device[0] ? nd->n.device : pivot[i]->n.device;
    }
    int n_args = nd->n.n_in - 1;
    trn_gnode **args = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_args, 1) * sizeof *args);
    trn_edge *in = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_args, 1) * sizeof *in);
    bool *gate = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(n_args, 1) * sizeof *gate);
    for (int i = 0; i < n_args; i++) {
        TRN_TRY(branch_switch(&args[i], l, nd, l->g->node[resolved(l, nd->in[i + 1]).node]->n.name, i + 1, n, is_case));
        gate[i] = nd->n_ctl > 0; /* the pivots wait for the control inputs, these switches do not */
    }
    called *r = trn_arena_alloc(l->tmp, (size_t)n * sizeof *r);
    for (int b = 0; b < n; b++) {
        char leaf[32];
        if (is_case)
            snprintf(leaf, sizeof leaf, "branch%d", b);
        for (int i = 0; i < n_args; i++)
            in[i] = (trn_edge){args[i]->id, b};
        const char *sub = trn_graph_unique_name(l->g, trn_arena_printf(l->tmp, "%s/%s", scope,
                                                                       is_case ? leaf
                                                                       : b     ? "then"
                                                                               : "else"));
        TRN_TRY(inline_body(&r[b], l, &(call){sub, nd->n.device, fs[b], n_args, in, gate, pivot[b]->id, false, false}));
        TRN_TRY(check_outs(l, nd, fs[b], &r[b]));
    }
    trn_edge *outs = trn_arena_alloc(l->tmp, (size_t)TRN_MAX(nd->n.n_out, 1) * sizeof *outs);
    trn_edge *sides = trn_arena_alloc(l->tmp, (size_t)n * sizeof *sides);
    for (int i = 0; i < nd->n.n_out; i++) {
        trn_attr attrs[] = {trn_attr__type("T", trn_dtype_base(nd->n.out_types[i])), trn_attr__int("N", n)};
        for (int b = 0; b < n; b++)
            sides[b] = r[b].outs[i];
        trn_gnode *m;
        TRN_TRY(add(&m, l, "Merge", scope, "output", nd->n.device, attrs, 2, sides, n));
        outs[i] = (trn_edge){m->id, 0};
    }
    int done = -1;
    if (l->ctl_used[nd->id]) {
        trn_attr attrs[] = {trn_attr__type("T", pt), trn_attr__int("N", n)};
        for (int b = 0; b < n; b++)
            sides[b] = (trn_edge){pivot[b]->id, 0};
        trn_gnode *m;
        TRN_TRY(add(&m, l, "Merge", scope, "branch_executed", nd->n.device, attrs, 2, sides, n));
        for (int b = 0; b < n; b++)
            if (r[b].effects >= 0)
                ctl(l, m, r[b].effects);
        done = m->id;
    }
    replace(l, nd, outs, done);
    return TRN_OK;
}

static trn_err lower_if(lower *l, trn_gnode *nd)
{
    const trn_func_ref *fs[2] = {trn_attr_func(&nd->n, "else_branch"), trn_attr_func(&nd->n, "then_branch")};
    return lower_branches(l, nd, fs, 2, false);
}

static trn_err lower_case(lower *l, trn_gnode *nd)
{
    const trn_attr *b = trn_node_attr(&nd->n, "branches");
    if (!b || !b->is_list || b->kind != TRN_ATTR_FUNC || b->n < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s) has no branches", nd->n.name, nd->n.op);
    const trn_func_ref **fs = trn_arena_alloc(l->tmp, (size_t)b->n * sizeof *fs);
    for (int i = 0; i < b->n; i++)
        fs[i] = b->list[i].func;
    return lower_branches(l, nd, fs, b->n, true);
}

/* A resource that the body hands through unchanged need not go round: it enters once, as a constant of the frame. */
static bool is_invariant(const lower *l, const trn_gnode *nd, int i, const trn_func_ref *body, const trn_map *rets)
{
    const Tensorflow__FunctionDef *fd = trn_funclib__find(l->g->lib, body->name);
    const Tensorflow__OpDef *sig = fd->signature;
    if (trn_dtype_base(nd->n.in_types[i]) != TRN_RESOURCE || sig->n_input_arg != (size_t)nd->n.n_in ||
        sig->n_output_arg != (size_t)nd->n.n_in)
        return false; /* with list arguments the positions differ; then it goes round */
    const char *from = trn_map_gets(rets, sig->output_arg[i]->name);
    return from && strcmp(from, sig->input_arg[i]->name) == 0;
}

static bool returns_bool(const lower *l, const trn_func_ref *f)
{
    int n_args, n_rets;
    trn_dtype *args, *rets;
    trn_err err = trn_funclib_signature(l->g->lib, l->tmp, f, &n_args, &args, &n_rets, &rets);
    if (err) {
        trn_err_free(err);
        return false;
    }
    return n_rets == 1 && rets[0] == TRN_BOOL;
}

typedef struct loop_var {
    bool invariant;
    trn_gnode *enter, *merge, *sw;
} loop_var;

static trn_err lower_while(lower *l, trn_gnode *nd)
{
    const trn_func_ref *cond = trn_attr_func(&nd->n, "cond"), *body = trn_attr_func(&nd->n, "body");
    const char *scope = nd->n.name;
    int n = nd->n.n_in, n_moving = 0;
    if (!cond || !body || in_chain(l, cond->name) || in_chain(l, body->name) ||
        !trn_funclib_has(l->g->lib, cond->name) || !trn_funclib_has(l->g->lib, body->name) || !returns_bool(l, cond))
        return TRN_OK;
    int64_t parallel = trn_attr_int(&nd->n, "parallel_iterations");
    if (parallel < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s): parallel_iterations must be > 0", scope, nd->n.op);
    if (n == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s) has no loop variables", scope, nd->n.op);
    if (nd->n.n_out != n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s) has %d inputs and %d outputs", scope, nd->n.op, n,
                          nd->n.n_out);
    loop_var *v = trn_arena_alloc(l->tmp, (size_t)n * sizeof *v);
    trn_map *rets = trn_funclib__rets(trn_funclib__find(l->g->lib, body->name));
    for (int i = 0; i < n; i++) {
        v[i].invariant = is_invariant(l, nd, i, body, rets);
        n_moving += !v[i].invariant;
    }
    trn_map_free(rets, NULL);
    for (int i = 0; i < n && !n_moving; i++)
        v[i].invariant = false; /* something must go round */

    trn_err err;
    int in_ctl = ctl_inputs(&err, l, nd, "LoopControlInputs"), first = -1;
    TRN_TRY(err);
    for (int i = 0; i < n; i++) {
        trn_edge in = resolved(l, nd->in[i]);
        const char *dev = l->g->node[in.node]->n.device;
        trn_attr t = trn_attr__type("T", trn_dtype_base(nd->n.in_types[i]));
        trn_attr attrs[] = {t, trn_attr__str("frame_name", scope), trn_attr__int("parallel_iterations", parallel),
                            trn_attr__bool("is_constant", v[i].invariant)};
        TRN_TRY(add(&v[i].enter, l, "Enter", scope, "enter", dev, attrs, 4, &in, 1));
        if (in_ctl >= 0)
            ctl(l, v[i].enter, in_ctl);
        if (v[i].invariant)
            continue;
        trn_attr mattrs[] = {t, trn_attr__int("N", 2)};
        trn_edge min[] = {{v[i].enter->id, 0}, {-1, 0}};
        TRN_TRY(add(&v[i].merge, l, "Merge", scope, "merge", dev, mattrs, 2, min, 2));
        if (first < 0)
            first = i;
    }
    trn_edge *args = trn_arena_alloc(l->tmp, (size_t)n * sizeof *args);
    bool *gate = trn_arena_alloc(l->tmp, (size_t)n * sizeof *gate);
    for (int i = 0; i < n; i++) {
        args[i] = (trn_edge){v[i].invariant ? v[i].enter->id : v[i].merge->id, 0};
        gate[i] = v[i].invariant; /* there from the start of an iteration: must wait for its turn */
    }
    called rc, rb;
    const char *sub = trn_graph_unique_name(l->g, trn_arena_printf(l->tmp, "%s/cond", scope));
    TRN_TRY(inline_body(&rc, l, &(call){sub, nd->n.device, cond, n, args, gate, v[first].merge->id, true, false}));
    if (rc.n_outs != 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' (%s): function '%s' returns %d values, not one bool", scope,
                          nd->n.op, cond->name, rc.n_outs);
    trn_gnode *lc, *pivot;
    TRN_TRY(add(&lc, l, "LoopCond", scope, "LoopCond", nd->n.device, NULL, 0, rc.outs, 1));
    for (int i = 0; i < n; i++) {
        if (v[i].invariant)
            continue;
        trn_attr t = trn_attr__type("T", v[i].merge->n.out_types[0]);
        trn_edge in[] = {{v[i].merge->id, 0}, {lc->id, 0}};
        TRN_TRY(add(&v[i].sw, l, "Switch", scope, "switch", v[i].merge->n.device, &t, 1, in, 2));
        args[i] = (trn_edge){v[i].sw->id, 1};
    }
    TRN_TRY(
        identity(&pivot, l, scope, "loop_body_control", (trn_edge){v[first].sw->id, 1}, v[first].sw->n.out_types[1]));
    sub = trn_graph_unique_name(l->g, trn_arena_printf(l->tmp, "%s/body", scope));
    TRN_TRY(inline_body(&rb, l, &(call){sub, nd->n.device, body, n, args, gate, pivot->id, true, false}));
    TRN_TRY(check_outs(l, nd, body, &rb));

    trn_edge *outs = trn_arena_alloc(l->tmp, (size_t)n * sizeof *outs);
    int n_exits = 0, *exits = trn_arena_alloc(l->tmp, (size_t)n * sizeof *exits);
    for (int i = 0; i < n; i++) {
        if (v[i].invariant) {
            outs[i] = nd->in[i];
            continue;
        }
        trn_attr t = trn_attr__type("T", v[i].merge->n.out_types[0]);
        trn_edge in = {v[i].sw->id, 0};
        trn_gnode *ex, *next;
        TRN_TRY(add(&ex, l, "Exit", scope, "exit", v[i].merge->n.device, &t, 1, &in, 1));
        outs[i] = (trn_edge){ex->id, 0};
        exits[n_exits++] = ex->id;
        /* An iteration is over when its effects are: the next one starts behind them. */
        TRN_TRY(add(&next, l, "NextIteration", scope, "next_iteration", v[i].merge->n.device, &t, 1, &rb.outs[i], 1));
        if (rb.effects >= 0)
            ctl(l, next, rb.effects);
        v[i].merge->in[1] = (trn_edge){next->id, 0};
    }
    int done = -1;
    if (l->ctl_used[nd->id])
        TRN_TRY(join(&done, l, scope, "LoopExecuted", nd->n.device, exits, n_exits));
    replace(l, nd, outs, done);
    return TRN_OK;
}

/* ---- all of them ---------------------------------------------------------------------------------------------- */

static trn_err lower_node(lower *l, trn_gnode *nd)
{
    const char *op = nd->n.op;
    if (calls_function(l, nd))
        return lower_call(l, nd);
    if (strcmp(op, "RemoteCall") == 0)
        return lower_remote_call(l, nd);
    if (strcmp(op, "SymbolicGradient") == 0)
        return lower_gradient(l, nd);
    if (l->g->keep_branches || !trn_attr_bool(&nd->n, "_lower_using_switch_merge")) /* whoever leaves the attr out wants to see one node */
        return TRN_OK;
    if (strcmp(op, "If") == 0 || strcmp(op, "StatelessIf") == 0)
        return lower_if(l, nd);
    if (strcmp(op, "While") == 0 || strcmp(op, "StatelessWhile") == 0)
        return lower_while(l, nd);
    if (strcmp(op, "Case") == 0 || strcmp(op, "StatelessCase") == 0)
        return lower_case(l, nd);
    return TRN_OK;
}

/* Edges from nodes that are gone come from what stands for them. */
static void rewire(lower *l)
{
    trn_graph *g = l->g;
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        for (int k = 0; k < nd->n.n_in; k++)
            nd->in[k] = resolved(l, nd->in[k]);
        bool moved = false;
        for (int k = 0; k < nd->n_ctl; k++)
            while (nd->ctl[k] >= 0 && l->low[nd->ctl[k]].outs) {
                nd->ctl[k] = l->low[nd->ctl[k]].ctl;
                moved = true;
            }
        if (moved)
            trn_gnode__set_ctl(g, nd, nd->ctl, nd->n_ctl, &l->ctls);
    }
}

/* "loc:@call" means the node that makes the call's first result; entries that mean nothing any more go. */
static void fix_colocation(lower *l)
{
    trn_graph *g = l->g;
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        for (int k = 0; nd && k < nd->n.n_attrs; k++) {
            trn_attr *attr = &nd->n.attrs[k];
            if (strcmp(attr->name, "_class") != 0 || !attr->is_list || attr->kind != TRN_ATTR_STRING)
                continue;
            trn_attr_val *v = NULL;
            int n = 0;
            for (int m = 0; m < attr->n; m++) {
                const trn_attr_val *c = &attr->list[m];
                const int *id = c->s.n > 5 && !trn_graph_find(g, c->s.p + 5, c->s.n - 5)
                                    ? trn_map_get(l->moved, c->s.p + 5, c->s.n - 5)
                                    : NULL;
                if (id && !v) {
                    v = trn_arena_alloc(g->arena, (size_t)attr->n * sizeof *v);
                    memcpy(v, attr->list, (size_t)m * sizeof *v);
                }
                if (!id) {
                    if (v)
                        v[n] = *c;
                    n++;
                    continue;
                }
                trn_edge e = l->low[*id].n_outs ? resolved(l, l->low[*id].outs[0]) : (trn_edge){-1, 0};
                if (e.node < 0 || e.node == i)
                    continue;
                v[n].s.p = trn_arena_printf(g->arena, "loc:@%s", g->node[e.node]->n.name);
                v[n].s.n = strlen(v[n].s.p);
                n++;
            }
            if (v) {
                attr->list = v;
                attr->n = n;
            }
        }
    }
}

/* What nobody uses, in a graph where that means: what is there for its own sake. */
static bool *sinks_of(const trn_graph *g)
{
    bool *sink = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *sink);
    for (int i = 0; i < g->n; i++)
        sink[i] = g->node[i] != NULL;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; g->node[i] && k < g->node[i]->n.n_in + g->node[i]->n_ctl; k++) {
            const trn_gnode *nd = g->node[i];
            sink[k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in]] = false;
        }
    return sink;
}

/* A branch's result that nobody asks for is not worked out, whatever effect that would have had. */
static void sweep(lower *l, const bool *sink)
{
    trn_graph *g = l->g;
    bool *keep = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *keep);
    int *stack = NULL, n = 0, cap = 0;
    for (int i = 0; i < l->n0; i++) {
        if (!sink[i])
            continue;
        int at = i;
        while (at >= 0 && l->low[at].outs) {
            for (int k = 0; k < l->low[at].n_outs; k++) /* a call is wanted as a whole */
                TRN_PUSH(stack, n, cap, resolved(l, l->low[at].outs[k]).node);
            at = l->low[at].ctl;
        }
        if (at >= 0)
            TRN_PUSH(stack, n, cap, at);
    }
    for (int i = 0; i < l->n_roots; i++) {
        int at = l->root[i];
        while (at >= 0 && l->low[at].outs)
            at = l->low[at].ctl;
        if (at >= 0)
            TRN_PUSH(stack, n, cap, at);
    }
    while (n) {
        int id = stack[--n];
        if (id < 0 || keep[id] || !g->node[id])
            continue;
        keep[id] = true;
        const trn_gnode *nd = g->node[id];
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++)
            TRN_PUSH(stack, n, cap, k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in]);
    }
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && !keep[i])
            trn_graph_remove(g, i);
    free(keep);
    free(stack);
}

static void free_body(void *b) { trn_graph_free(b); }

trn_err trn_graph_lower(trn_graph *g)
{
    if (!g->lib)
        return TRN_OK;
    lower l = {.g = g, .n0 = g->n, .tmp = trn_arena_new(), .bodies = trn_map_new(), .moved = trn_map_new(),
               .growth = trn_graph__max_growth(), .had = trn_arena_bytes(g->arena)};
    reserve(&l);
    bool *sink = sinks_of(g);
    for (int i = 0; i < g->n; i++)
        l.ctl_used[i] = sink[i];
    for (int i = 0; i < g->n; i++)
        for (int k = 0; g->node[i] && k < g->node[i]->n_ctl; k++)
            l.ctl_used[g->node[i]->ctl[k]] = true;
    trn_err err = TRN_OK;
    for (int i = 0; i < g->n && !err; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        l.cur = l.from[i];
        err = lower_node(&l, nd);
        if (err)
            err = trn_err_wrap(err, "lowering '%s' (%s)", nd->n.name, nd->n.op);
    }
    if (!err) {
        rewire(&l);
        sweep(&l, sink);
        fix_colocation(&l);
        trn_graph_compact(g);
    }
    trn_map_free(l.bodies, free_body);
    trn_map_free(l.moved, NULL);
    trn_arena_free(l.tmp);
    free(l.low);
    free(l.from);
    free(l.ctl_used);
    free(l.ctls.seen);
    free(l.root);
    free(sink);
    return err;
}
