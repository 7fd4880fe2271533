/* Gradients of calls, decisions and loops whose bodies are functions.
 *
 * A body is put back into the graph for a moment (graph/function.h); the engine adds its gradients behind it; then both are lifted out again, as two
 * functions. What the second needs of the first (activations, indices, shapes…) becomes extra results of the first, so that nothing is worked out
 * twice and random numbers stay what they were. A loop keeps them in lists, one element per turn, and the loop that goes back takes them off again.
 *
 * While this happens the builder's graph looks like this:   … graph … | body | gradients of the body |     and is cut back to the first bar. */
#include "grad/rows.h"

#include "graph/function.h"

#define MAX_BRANCHES 64
#define MAX_DEPTH 40

/* Which function each of the nodes behind the first bar goes to. */
typedef struct sides {
    trn_grad_ctx *c;
    int first;
    uint8_t *of; /* by node - first; 0: none yet */
    int cap;
} sides;

typedef struct side {
    const sides *s;
    uint8_t which;
} side;

static void mark(sides *s, int from, int to, uint8_t which)
{
    if (to - s->first > s->cap) {
        int cap = TRN_MAX(256, 2 * (to - s->first));
        uint8_t *of = trn_arena_alloc(s->c->tmp, (size_t)cap);
        if (s->cap)
            memcpy(of, s->of, (size_t)s->cap);
        s->of = of;
        s->cap = cap;
    }
    for (int i = from; i < to; i++)
        s->of[i - s->first] = which;
}

static bool on_side(void *arg, int node)
{
    const side *d = arg;
    return node >= d->s->first && node - d->s->first < d->s->cap && d->s->of[node - d->s->first] == d->which;
}

static bool is_op(const trn_node *n, const char *op) { return strcmp(n->op, op) == 0; }

/* Cheap to make and small: made beside the body, so that not the tensor itself has to be kept. */
static bool is_about(const trn_node *n)
{
    static const char *const ops[] = {"Shape", "ShapeN", "Size", "Rank", "TensorListLength", "TensorListElementShape", "BroadcastGradientArgs", "VariableShape", "ConcatOffset"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        if (is_op(n, ops[i]))
            return true;
    return false;
}

/* A body is [first, mid), its gradients are [mid, end of the graph). */
static void tell_sides(sides *s, int first, int mid, uint8_t body, uint8_t back)
{
    trn_graph *g = s->c->h->b->g;
    mark(s, first, mid, body);
    mark(s, mid, g->n, back);
    int *stack = trn_arena_alloc(s->c->tmp, ((size_t)(g->n - first) + 1) * sizeof *stack), n = 0;
    for (int i = first; i < mid; i++)
        stack[n++] = i;
    while (n) { /* loops inside were given inputs that were made later */
        const trn_gnode *nd = g->node[stack[--n]];
        for (int k = 0; k < nd->n.n_in; k++)
            if (nd->in[k].node >= mid && s->of[nd->in[k].node - s->first] != body) {
                s->of[nd->in[k].node - s->first] = body;
                stack[n++] = nd->in[k].node;
            }
    }
    for (int i = mid; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        bool all = nd->n.n_in > 0 && is_about(&nd->n);
        for (int k = 0; k < nd->n.n_in && all; k++)
            all = nd->in[k].node >= first && s->of[nd->in[k].node - s->first] == body;
        if (all)
            s->of[i - s->first] = body;
    }
}

static const trn_shape **known_shapes(trn_grad_ctx *c, int from, int n)
{
    const trn_shape **s = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *s);
    for (int i = 0; i < n; i++)
        s[i] = trn_out_shape(c->h->b, trn_grad_in(c, from + i));
    return s;
}

static void run_engine(trn_grad *dx, trn_grad_ctx *c, int first, int mid, const trn_out *xs, int n_xs, const trn_out *ys, const trn_grad *dys, int n_ys)
{
    trn_ghost h = *c->h;
    h.first = first;
    h.end = mid;
    if (++h.depth > MAX_DEPTH)
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s': functions are nested deeper than %d, or one calls itself", c->n->op, c->n->name, MAX_DEPTH));
    if (trn_g_ok(c))
        trn_grad__run(dx, &h, c->tmp, xs, n_xs, ys, dys, n_ys, NULL, 0);
}

/* A tensor of this dtype that nobody looks at: what a branch that did not run gives for what only the other keeps. */
static trn_out dummy(trn_grad_ctx *c, trn_dtype t)
{
    static const trn_shape empty = {.rank = 1};
    trn_tensor *v;
    if (t == TRN_VARIANT)
        return TRN_GE(c, "(EmptyTensorList #-1 #0 element_dtype=float)");
    if (t == TRN_RESOURCE) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s' needs a resource that is made in one of its branches", c->n->op, c->n->name));
        return TRN_NONE;
    }
    trn_err err = trn_tensor_new(&v, t, &empty);
    if (err) {
        trn_g_fail(c, err);
        return TRN_NONE;
    }
    return trn_g_const(c, v);
}

/* ---- decisions of the old kind inside a body --------------------------------------------------------------------------------
 *
 * What lies on one side of a Switch is there only in the calls (the turns of a loop) that went this way, but a function has to give all its results. So what
 * the way back needs of it is made whole where it is given out, by a Merge with a dummy on the other side, and taken apart again by a Switch where it is
 * used. What is only the side of something that is always there needs no more than the Switch. */

typedef struct way {
    const struct way *outer;
    trn_out pred;
    int side, depth;
} way;

typedef struct gate {
    trn_out body, back; /* the tensor, and what stands for it on the way back */
} gate;

typedef struct gates {
    sides *s;
    uint8_t body, back;
    int end; /* of the nodes that there were */
    const way **in; /* by node - first: what lies around the node itself */
    trn_map *ways;
    gate *g;
    int n, cap;
} gates;

static bool is_switch(const trn_node *n) { return is_op(n, "Switch") || is_op(n, "RefSwitch"); }
static bool is_merge(const trn_node *n) { return is_op(n, "Merge") || is_op(n, "RefMerge"); }

static trn_out past_identities(trn_graph *g, int first, trn_out o)
{
    while (o.node >= first && is_op(&g->node[o.node]->n, "Identity"))
        o = (trn_out){g->node[o.node]->in[0].node, g->node[o.node]->in[0].slot};
    return o;
}

/* The same way is the same pointer. */
static const way *way_of(gates *t, const way *outer, trn_out pred, int slot)
{
    const char *key = trn_arena_printf(t->s->c->tmp, "%p %d:%d %d", (const void *)outer, pred.node, pred.slot, slot);
    way *w = trn_map_gets(t->ways, key);
    if (!w) {
        w = trn_arena_alloc(t->s->c->tmp, sizeof *w);
        *w = (way){outer, pred, slot, outer ? outer->depth + 1 : 1};
        trn_map_puts(t->ways, key, w);
    }
    return w;
}

static const way *around(gates *t, trn_edge e)
{
    trn_graph *g = t->s->c->h->b->g;
    if (e.node < t->s->first || e.node >= t->end)
        return NULL;
    const trn_gnode *nd = g->node[e.node];
    const way *w = t->in[e.node - t->s->first];
    return is_switch(&nd->n) && e.slot >= 0 ? way_of(t, w, past_identities(g, t->s->first, (trn_out){nd->in[1].node, nd->in[1].slot}), e.slot) : w;
}

static const way *deeper(const way *a, const way *b) { return !a || (b && b->depth > a->depth) ? b : a; }

static const way *common(const way *a, const way *b)
{
    while (a != b) {
        if (!a || !b)
            return NULL;
        if (a->depth >= b->depth)
            a = a->outer;
        else
            b = b->outer;
    }
    return a;
}

/* What lies around each node; again until nothing changes, since not all nodes come behind what they need. */
static bool find_ways(gates *t, int first)
{
    trn_graph *g = t->s->c->h->b->g;
    bool any = false;
    for (int i = first; i < t->end && !any; i++)
        any = t->s->of[i - t->s->first] == t->body && is_switch(&g->node[i]->n);
    for (bool more = any; more;) {
        more = false;
        for (int i = first; i < t->end; i++) {
            const trn_gnode *nd = g->node[i];
            if (t->s->of[i - t->s->first] != t->body)
                continue;
            const way *w = NULL;
            for (int k = 0; k < nd->n.n_in; k++)
                w = k && is_merge(&nd->n) ? common(w, around(t, nd->in[k])) : deeper(w, around(t, nd->in[k]));
            for (int k = 0; k < nd->n_ctl && !is_merge(&nd->n); k++)
                w = deeper(w, around(t, (trn_edge){nd->ctl[k], -1}));
            more |= w != t->in[i - t->s->first];
            t->in[i - t->s->first] = w;
        }
    }
    return any;
}

static trn_out marked(gates *t, uint8_t which, trn_out o)
{
    if (trn_out_is(o))
        mark(t->s, o.node, o.node + 1, which);
    return o;
}

static trn_out stands_for(gates *t, trn_out e);

static trn_out taken_apart(gates *t, trn_out v, const way *w)
{
    trn_grad_ctx *c = t->s->c;
    if (!w || !trn_g_ok(c))
        return v;
    v = taken_apart(t, v, w->outer);
    v = marked(t, t->back, TRN_G(c, "Switch", v, stands_for(t, w->pred)));
    return trn_out_nth(v, w->side);
}

static trn_out make_gate(gates *t, trn_out e, const way *w)
{
    trn_grad_ctx *c = t->s->c;
    const trn_gnode *nd = c->h->b->g->node[e.node];
    trn_out from = {nd->in ? nd->in[0].node : -1, nd->in ? nd->in[0].slot : -1};
    if (is_switch(&nd->n)) {
        trn_out pred = past_identities(c->h->b->g, t->s->first, (trn_out){nd->in[1].node, nd->in[1].slot});
        from = stands_for(t, from);
        return trn_out_nth(marked(t, t->back, TRN_G(c, "Switch", from, stands_for(t, pred))), e.slot);
    }
    if (is_op(&nd->n, "Identity") && around(t, (trn_edge){from.node, from.slot}) == w)
        return stands_for(t, from);
    trn_out whole = e;
    for (const way *k = w; k && trn_g_ok(c); k = k->outer) {
        int at = c->h->b->g->n;
        trn_out none = dummy(c, trn_g_type(c, e));
        none = trn_g_ok(c) ? TRN_G(c, "Switch", none, k->pred) : TRN_NONE;
        whole = trn_g_ok(c) ? TRN_G(c, "Merge", trn_out_nth(none, 1 - k->side), whole) : TRN_NONE;
        mark(t->s, at, c->h->b->g->n, t->body);
    }
    return taken_apart(t, whole, w);
}

/* What the way back reads instead of e. */
static trn_out stands_for(gates *t, trn_out e)
{
    trn_grad_ctx *c = t->s->c;
    const way *w = around(t, (trn_edge){e.node, e.slot});
    if (!w || !trn_g_ok(c) || is_op(&c->h->b->g->node[e.node]->n, "Const"))
        return e;
    for (int i = 0; i < t->n; i++)
        if (t->g[i].body.node == e.node && t->g[i].body.slot == e.slot)
            return t->g[i].back;
    trn_out v = make_gate(t, e, w);
    if (t->n == t->cap) {
        gate *g = trn_arena_alloc(c->tmp, (size_t)(t->cap = 2 * t->cap + 16) * sizeof *g);
        if (t->n)
            memcpy(g, t->g, (size_t)t->n * sizeof *g);
        t->g = g;
    }
    t->g[t->n++] = (gate){e, v};
    return v;
}

static void old_decisions(sides *s, int first, uint8_t body, uint8_t back)
{
    trn_graph *g = s->c->h->b->g;
    gates t = {.s = s, .body = body, .back = back, .end = g->n, .ways = trn_map_new()};
    t.in = trn_arena_alloc(s->c->tmp, (size_t)(t.end - s->first + 1) * sizeof *t.in);
    if (find_ways(&t, first))
        for (int i = first; i < t.end && trn_g_ok(s->c); i++) {
            if (s->of[i - s->first] != back)
                continue;
            trn_gnode *nd = g->node[i];
            for (int k = 0; k < nd->n.n_in && trn_g_ok(s->c); k++)
                if (nd->in[k].node >= first && s->of[nd->in[k].node - s->first] == body) {
                    trn_out v = stands_for(&t, (trn_out){nd->in[k].node, nd->in[k].slot});
                    nd->in[k] = (trn_edge){v.node, v.slot};
                }
        }
    trn_map_free(t.ways, NULL);
}

static trn_attr func_attr(trn_grad_ctx *c, const char *name, const char *fn)
{
    trn_func_ref *f = trn_arena_alloc(c->tmp, sizeof *f);
    f->name = fn;
    return (trn_attr){.name = name, .kind = TRN_ATTR_FUNC, .v.func = f};
}

/* The shapes that the node says it gives, and unknown ones for the new results; no attr at all when it says nothing. */
static int shapes_attr(trn_attr *out, trn_grad_ctx *c, int n_new)
{
    const trn_attr *was = trn_node_attr(c->n, "output_shapes");
    if (!was || !was->is_list || !was->n)
        return 0;
    static const trn_shape unknown = {.rank = -1};
    trn_attr_val *v = trn_arena_alloc(c->tmp, (size_t)(was->n + n_new) * sizeof *v);
    memcpy(v, was->list, (size_t)was->n * sizeof *v);
    for (int i = 0; i < n_new; i++)
        v[was->n + i].shape = &unknown;
    *out = (trn_attr){.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = was->n + n_new, .list = v};
    return 1;
}

static bool can_change(trn_grad_ctx *c)
{
    if (c->id >= c->h->b->sent)
        return true;
    trn_g_fail(c, trn_errorf(TRN_FAILED_PRECONDITION, "a session has %s '%s' already; its gradient needs more results of it: build gradients before the first step", c->n->op,
                             c->n->name));
    return false;
}

#define BODY(k) ((uint8_t)(2 * (k) + 1))
#define BACK(k) ((uint8_t)(2 * (k) + 2))

/* ---- calls and decisions ---------------------------------------------------------------------------------------------------- */

typedef struct branch {
    trn_inlined body;
    trn_grad *dx;   /* one per input of the branch */
    trn_fn back;    /* what goes back; behind n_own: what it takes from the body */
} branch;

static int index_of(const trn_out *list, int n, trn_out o)
{
    for (int i = 0; i < n; i++)
        if (list[i].node == o.node && list[i].slot == o.slot)
            return i;
    return -1;
}

/* Puts one branch into the graph, with its gradients. */
static void open_branch(branch *k, trn_grad_ctx *c, sides *sd, int nr, const trn_func_ref *f, int skip)
{
    trn_builder *b = c->h->b;
    int n = c->n->n_in - skip, n_xs = 0, n_ys = 0;
    int first = b->g->n;
    trn_builder__inline(&k->body, b, c->tmp, f, known_shapes(c, skip, n));
    int mid = b->g->n;
    k->dx = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *k->dx);
    k->back.tmp = c->tmp;
    for (int i = 0; i < n; i++)
        k->dx[i] = TRN_NO_GRAD;
    if (trn_g_ok(c) && (k->body.n_args != n || k->body.n_rets != c->n->n_out))
        trn_g_fail(c, trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s' has %d inputs and %d outputs, function '%s' %d and %d", c->n->op, c->n->name, n, c->n->n_out, f->name, k->body.n_args,
                                 k->body.n_rets));
    trn_out *xs = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *xs), *ys = trn_arena_alloc(c->tmp, ((size_t)c->n->n_out + 1) * sizeof *ys);
    trn_grad *dys = trn_arena_alloc(c->tmp, ((size_t)c->n->n_out + 1) * sizeof *dys), *dx = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *dx);
    for (int i = 0; i < n && trn_g_ok(c); i++)
        if (trn_grad_wanted(c, skip + i))
            xs[n_xs++] = k->body.args[i];
    for (int i = 0; i < c->n->n_out && trn_g_ok(c); i++)
        if (trn_grad_has_dy(c, i)) {
            trn_out d = trn_fn__placeholder(b, trn_g_type(c, k->body.rets[i]), trn_out_shape(b, k->body.rets[i]));
            trn_fn__add_arg(&k->back, d);
            ys[n_ys] = k->body.rets[i];
            dys[n_ys++] = (trn_grad){d, TRN_NONE, TRN_NONE};
        }
    run_engine(dx, c, first, mid, xs, n_xs, ys, dys, n_ys);
    n_xs = 0;
    for (int i = 0; i < n && trn_g_ok(c); i++)
        if (trn_grad_wanted(c, skip + i)) {
            k->dx[i] = (trn_grad){trn_g_dense(c, dx[n_xs]), TRN_NONE, TRN_NONE};
            n_xs++;
        }
    if (trn_g_ok(c)) {
        tell_sides(sd, first, mid, BODY(nr), BACK(nr));
        old_decisions(sd, first, BODY(nr), BACK(nr));
    }
}

static void branches(trn_grad_ctx *c, const trn_func_ref *const *f, int n_branches, int skip)
{
    trn_builder *b = c->h->b;
    int n = c->n->n_in - skip, n_out = c->n->n_out, first = b->g->n, n_dx = 0, n_kept = 0;
    branch *br = trn_arena_alloc(c->tmp, (size_t)n_branches * sizeof *br);
    if (!can_change(c))
        return;
    sides sd = {.c = c, .first = first};
    for (int k = 0; k < n_branches && trn_g_ok(c); k++)
        open_branch(&br[k], c, &sd, k, f[k], skip);
    if (!trn_g_ok(c))
        return;
    /* All give gradients for the same inputs. */
    trn_dtype *t = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_branches; k++)
            if (trn_grad_is(br[k].dx[i]))
                t[i] = trn_g_type(c, br[k].dx[i].values);
    for (int k = 0; k < n_branches; k++) {
        int from = b->g->n;
        for (int i = 0; i < n; i++)
            if (t[i]) {
                trn_fn__add_ret(&br[k].back, trn_grad_is(br[k].dx[i]) ? br[k].dx[i].values : trn_g_zeros(c, br[k].body.args[i], t[i]));
                n_dx += k == 0;
            }
        mark(&sd, from, b->g->n, BACK(k));
    }
    if (!n_dx) {
        trn_builder__drop(b, first);
        return;
    }
    /* What each takes from its body: an argument of the body comes from where the body has it; the rest the body has to give out. */
    bool *arg_used = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *arg_used);
    for (int k = 0; k < n_branches && trn_g_ok(c); k++) {
        trn_fn__collect(&br[k].back, b, on_side, &(side){&sd, BACK(k)}, SIZE_MAX);
        for (int i = br[k].back.n_own; i < br[k].back.n_args; i++) {
            int a = index_of(br[k].body.args, n, br[k].back.args[i]);
            if (a >= 0)
                arg_used[a] = true;
            else
                n_kept++;
        }
    }
    if (!trn_g_ok(c))
        return;
    /* Results more: those of all branches, one after the other; what another branch keeps is a dummy here. */
    trn_out *kept = trn_arena_alloc(c->tmp, ((size_t)n_kept + 1) * sizeof *kept);
    trn_dtype *kept_t = trn_arena_alloc(c->tmp, (size_t)(n_out + n_kept + 1) * sizeof *kept_t);
    int *owner = trn_arena_alloc(c->tmp, ((size_t)n_kept + 1) * sizeof *owner), j = 0;
    for (int k = 0; k < n_branches; k++)
        for (int i = br[k].back.n_own; i < br[k].back.n_args; i++)
            if (index_of(br[k].body.args, n, br[k].back.args[i]) < 0) {
                owner[j] = k;
                kept_t[n_out + j] = trn_g_type(c, br[k].back.args[i]);
                kept[j++] = br[k].back.args[i];
            }
    for (int i = 0; i < n_out; i++)
        kept_t[i] = trn_dtype_base(c->n->out_types[i]);
    const char *fwd_name[MAX_BRANCHES], *back_name[MAX_BRANCHES];
    bool stateful = false, back_stateful = false;
    for (int k = 0; k < n_branches && trn_g_ok(c); k++) {
        trn_fn fwd = {.tmp = c->tmp, .roots = br[k].body.roots, .n_roots = br[k].body.n_roots, .cap_roots = br[k].body.n_roots};
        int extra = b->g->n; /* dummies */
        for (int i = 0; i < n; i++)
            trn_fn__add_arg(&fwd, br[k].body.args[i]);
        for (int i = 0; i < n_out; i++)
            trn_fn__add_ret(&fwd, br[k].body.rets[i]);
        for (j = 0; j < n_kept; j++)
            trn_fn__add_ret(&fwd, owner[j] == k ? kept[j] : dummy(c, kept_t[n_out + j]));
        if (!trn_g_ok(c))
            return;
        mark(&sd, extra, b->g->n, BODY(k));
        trn_fn__collect(&fwd, b, on_side, &(side){&sd, BODY(k)}, SIZE_MAX);
        trn_fn__define(&fwd, b, trn_arena_printf(c->tmp, "%s_forward", f[k]->name));
        fwd_name[k] = fwd.name;
        stateful |= fwd.stateful;
        /* Back: gradients of the results, the arguments that any needs, what any keeps. */
        trn_fn back = {.tmp = c->tmp};
        for (int i = 0; i < br[k].back.n_own; i++)
            trn_fn__add_arg(&back, br[k].back.args[i]);
        for (int i = 0; i < n; i++)
            if (arg_used[i])
                trn_fn__add_arg(&back, br[k].body.args[i]);
        for (j = 0; j < n_kept; j++)
            trn_fn__add_arg(&back, owner[j] == k ? kept[j] : trn_fn__placeholder(b, kept_t[n_out + j], NULL));
        for (int i = 0; i < br[k].back.n_rets; i++)
            trn_fn__add_ret(&back, br[k].back.rets[i]);
        trn_fn__collect(&back, b, on_side, &(side){&sd, BACK(k)}, SIZE_MAX);
        trn_fn__define(&back, b, trn_arena_printf(c->tmp, "%s_backward", f[k]->name));
        back_name[k] = back.name;
        back_stateful |= back.stateful;
    }
    trn_builder__drop(b, first);
    if (!trn_g_ok(c))
        return;
    /* The op itself gives more, */
    trn_out *in = trn_arena_alloc(c->tmp, ((size_t)c->n->n_in + 1) * sizeof *in);
    for (int i = 0; i < c->n->n_in; i++)
        in[i] = trn_grad_in(c, i);
    bool is_if = skip && n_branches == 2 && strstr(c->n->op, "If"), is_call = !skip;
    trn_attr_val *lists[2];
    for (int s = 0; s < 2; s++) {
        lists[s] = trn_arena_alloc(c->tmp, (size_t)n_branches * sizeof *lists[s]);
        for (int k = 0; k < n_branches; k++)
            lists[s][k].func = func_attr(c, "", s ? back_name[k] : fwd_name[k]).v.func;
    }
    trn_attr fa[2][4];
    int n_fa[2];
    for (int s = 0; s < 2; s++) {
        n_fa[s] = 0;
        if (is_call)
            fa[s][n_fa[s]++] = func_attr(c, "f", s ? back_name[0] : fwd_name[0]);
        else if (is_if) {
            fa[s][n_fa[s]++] = func_attr(c, "then_branch", s ? back_name[0] : fwd_name[0]);
            fa[s][n_fa[s]++] = func_attr(c, "else_branch", s ? back_name[1] : fwd_name[1]);
        } else
            fa[s][n_fa[s]++] = (trn_attr){.name = "branches", .kind = TRN_ATTR_FUNC, .is_list = true, .n = n_branches, .list = lists[s]};
    }
    trn_attr *a = fa[0];
    a[n_fa[0]++] = trn_attr__types(c->tmp, "Tout", kept_t, n_out + n_kept);
    if (!is_call)
        n_fa[0] += shapes_attr(&a[n_fa[0]], c, n_kept);
    const char *op = c->n->def ? c->n->op : stateful ? "StatefulPartitionedCall" : "PartitionedCall";
    trn_grad *dys = trn_arena_alloc(c->tmp, ((size_t)n_out + 1) * sizeof *dys);
    memcpy(dys, c->dy, (size_t)n_out * sizeof *dys);
    trn_builder__become(b, c->id, op, in, n + skip, a, n_fa[0]);
    /* and there is another one that goes back. */
    int n_back = 0, n_dy = br[0].back.n_own;
    trn_out *bin = trn_arena_alloc(c->tmp, (size_t)(skip + n_dy + n + n_kept + 1) * sizeof *bin);
    if (skip)
        bin[n_back++] = in[0];
    for (int i = 0; i < n_out; i++)
        if (trn_grad_is(dys[i]))
            bin[n_back++] = trn_g_dense(c, dys[i]);
    for (int i = 0; i < n; i++)
        if (arg_used[i])
            bin[n_back++] = in[skip + i];
    for (j = 0; j < n_kept; j++)
        bin[n_back++] = trn_grad_out(c, n_out + j);
    trn_dtype *dt = trn_arena_alloc(c->tmp, ((size_t)n_dx + 1) * sizeof *dt);
    for (int i = 0, m = 0; i < n; i++)
        if (t[i])
            dt[m++] = t[i];
    trn_attr *ba = fa[1];
    ba[n_fa[1]++] = trn_attr__types(c->tmp, "Tout", dt, n_dx);
    if (!is_call)
        ba[n_fa[1]++] = trn_attr__bool("_lower_using_switch_merge", true);
    const char *bop = is_call ? (back_stateful ? "StatefulPartitionedCall" : "PartitionedCall") : is_if ? (back_stateful ? "If" : "StatelessIf") : back_stateful ? "Case" : "StatelessCase";
    trn_out g = trn_g_node(c, bop, bin, n_back, ba, n_fa[1]);
    for (int i = 0, m = 0; i < n; i++)
        if (t[i] && trn_g_ok(c))
            trn_grad_set(c, skip + i, trn_out_nth(g, m++));
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

static void no_gradient(trn_grad_ctx *c)
{
    trn_g_fail(c, trn_errorf(TRN_NOT_FOUND, "No gradient defined for op: %s (node '%s')", c->n->op, c->n->name));
}

static void call(trn_grad_ctx *c)
{
    trn_func_ref *own = trn_arena_alloc(c->tmp, sizeof *own);
    *own = (trn_func_ref){c->n->op, c->n->n_attrs, c->n->attrs};
    const trn_func_ref *f = c->n->def ? trn_attr_func(c->n, "f") : own;
    if (!f || !c->h->has_function(c->h->arg, f->name))
        no_gradient(c);
    else if (c->h->b)
        branches(c, &f, 1, 0);
    else
        symbolic_call(c, f);
}

static void decision(trn_grad_ctx *c)
{
    const trn_func_ref *f[MAX_BRANCHES];
    int n = 0;
    const trn_attr *list = trn_node_attr(c->n, "branches");
    if (!c->h->b) {
        no_gradient(c);
        return;
    }
    if (list && list->is_list && list->kind == TRN_ATTR_FUNC) {
        for (; n < list->n && n < MAX_BRANCHES; n++)
            f[n] = list->list[n].func;
    } else {
        f[n++] = trn_attr_func(c->n, "then_branch");
        f[n++] = trn_attr_func(c->n, "else_branch");
    }
    for (int i = 0; i < n; i++)
        if (!f[i] || (list && list->n > MAX_BRANCHES)) {
            no_gradient(c);
            return;
        }
    branches(c, f, n, 1);
}

/* ---- loops ------------------------------------------------------------------------------------------------------------------- */

/* The argument that this is, without what only passes it on; -1: none. */
static int arg_of(trn_grad_ctx *c, const trn_inlined *body, trn_out o)
{
    for (int hops = 0; hops < 100; hops++) {
        int a = index_of(body->args, body->n_args, o);
        const trn_node *n = c->h->node(c->h->arg, o.node);
        if (a >= 0 || (!is_op(n, "Identity") && !is_op(n, "Snapshot")))
            return a;
        o = c->h->input(c->h->arg, o.node, 0);
    }
    return -1;
}

/* dep[j]: result y depends on argument j in a way that gradients go. */
static void depends(bool *dep, trn_grad_ctx *c, const trn_inlined *body, int first, int mid, trn_out y)
{
    bool *seen = trn_arena_alloc(c->tmp, (size_t)(mid - first) + 1);
    int *stack = trn_arena_alloc(c->tmp, ((size_t)(mid - first) + 1) * sizeof *stack), n = 0;
    if (y.node >= first && trn_g_trainable(trn_g_type(c, y))) {
        stack[n++] = y.node;
        seen[y.node - first] = true;
    }
    while (n) {
        int id = stack[--n];
        int a = index_of(body->args, body->n_args, (trn_out){id, 0});
        const trn_node *nd = c->h->node(c->h->arg, id);
        const trn_grad_row *r = trn_grad__row(nd->op);
        if (a >= 0)
            dep[a] = true;
        if (r && r->flags & TRN_GRAD_FLAT)
            continue;
        for (int i = 0; i < nd->n_in; i++) {
            trn_out from = c->h->input(c->h->arg, id, i);
            if (from.node >= first && !seen[from.node - first] && trn_g_trainable(trn_g_type(c, from))) {
                seen[from.node - first] = true;
                stack[n++] = from.node;
            }
        }
    }
}

/* Shape of one element of a list of o's, as far as it is known: an int32 constant. */
static trn_out element_shape(trn_grad_ctx *c, trn_out o)
{
    trn_shape s = trn_g_shape(c, o);
    return s.rank < 0 ? trn_g_i32(c, -1) : trn_g_ints_const(c, s.dim, s.rank);
}

/* s fits both; true: it is wider than it was. */
static bool widen(trn_shape *s, const trn_shape *is)
{
    if (s->rank < 0)
        return false;
    if (s->rank != is->rank) {
        *s = trn_shape_unknown();
        return true;
    }
    bool wider = false;
    for (int d = 0; d < s->rank; d++)
        if (s->dim[d] >= 0 && s->dim[d] != is->dim[d]) {
            s->dim[d] = -1;
            wider = true;
        }
    return wider;
}

static void loop(trn_grad_ctx *c)
{
    trn_builder *b = c->h->b;
    const trn_func_ref *fb = trn_attr_func(c->n, "body"), *fc = trn_attr_func(c->n, "cond");
    if (!b || !fb || !fc) {
        no_gradient(c);
        return;
    }
    if (!can_change(c))
        return;
    int n = c->n->n_in, first = b->g->n;
    trn_inlined body;
    /* What the loop says of shapes holds in every turn. Where it says nothing: what they are at first, less what the body changes. */
    trn_shape *shape = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *shape);
    const trn_shape **at = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *at);
    const trn_attr *says = trn_node_attr(c->n, "output_shapes");
    bool said = says && says->is_list && says->n == n && says->kind == TRN_ATTR_SHAPE;
    for (int i = 0; i < n; i++) {
        shape[i] = said ? *says->list[i].shape : *trn_out_shape(b, trn_grad_in(c, i));
        at[i] = &shape[i];
    }
    for (bool again = true; again;) {
        again = false;
        trn_builder__drop(b, first);
        trn_builder__inline(&body, b, c->tmp, fb, at);
        if (!trn_g_ok(c))
            return;
        if (body.n_args != n || body.n_rets != n) {
            trn_g_fail(c, trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s' has %d variables, its body '%s' %d arguments and %d results", c->n->op, c->n->name, n, fb->name, body.n_args, body.n_rets));
            return;
        }
        for (int i = 0; i < n && !said; i++)
            again |= widen(&shape[i], trn_out_shape(b, body.rets[i]));
    }
    bool *fixed = trn_arena_alloc(c->tmp, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        fixed[i] = arg_of(c, &body, body.rets[i]) == i;
    int mid = b->g->n;
    /* Variables that carry something of an x, and on which something with a gradient depends. */
    bool *dep = trn_arena_alloc(c->tmp, (size_t)n * (size_t)n + 1), *carries = trn_arena_alloc(c->tmp, (size_t)n + 1), *matters = trn_arena_alloc(c->tmp, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        depends(dep + (size_t)i * (size_t)n, c, &body, first, mid, body.rets[i]);
        carries[i] = trn_grad_wanted(c, i);
        matters[i] = trn_grad_has_dy(c, i);
    }
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                if (dep[(size_t)i * (size_t)n + (size_t)j]) {
                    more |= (carries[j] && !carries[i]) || (matters[i] && !matters[j]);
                    carries[i] |= carries[j];
                    matters[j] |= matters[i];
                }
    }
    trn_out *xs = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *xs), *ys = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *ys);
    trn_out *d = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *d), *next = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *next);
    trn_grad *dys = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *dys), *dx = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *dx);
    int *who = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *who), n_xs = 0, n_ys = 0;
    for (int i = 0; i < n && trn_g_ok(c); i++) {
        d[i] = next[i] = TRN_NONE;
        if (!carries[i] || !matters[i])
            continue;
        who[n_xs] = i;
        xs[n_xs++] = body.args[i];
        if (fixed[i])
            continue;
        d[i] = trn_fn__placeholder(b, trn_g_type(c, body.rets[i]), trn_out_shape(b, body.rets[i]));
        ys[n_ys] = body.rets[i];
        dys[n_ys++] = (trn_grad){d[i], TRN_NONE, TRN_NONE};
    }
    run_engine(dx, c, first, mid, xs, n_xs, ys, dys, n_ys);
    trn_dtype *dt = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *dt);
    for (int k = 0; k < n_xs && trn_g_ok(c); k++) {
        int i = who[k];
        trn_out g = trn_g_dense(c, dx[k]);
        if (!fixed[i]) {
            next[i] = trn_out_is(g) ? g : trn_g_zeros_like(c, d[i]);
        } else if (trn_out_is(g)) { /* added up over the turns */
            d[i] = trn_fn__placeholder(b, trn_g_type(c, g), trn_out_shape(b, g));
            next[i] = trn_g_node(c, "AddN", TRN_OUTS(d[i], g), NULL, 0);
        } else if (trn_grad_has_dy(c, i)) {
            d[i] = next[i] = trn_fn__placeholder(b, trn_g_type(c, body.rets[i]), NULL);
        }
        dt[i] = trn_g_type(c, d[i]);
    }
    static const trn_shape scalar = {.rank = 0};
    trn_out count = trn_fn__placeholder(b, TRN_INT32, &scalar), down = TRN_GE(c, "(Sub $0 #1)", count);
    if (!trn_g_ok(c))
        return;
    sides sd = {.c = c, .first = first};
    tell_sides(&sd, first, mid, BODY(0), BACK(0));
    old_decisions(&sd, first, BODY(0), BACK(0));
    if (!trn_g_ok(c))
        return;
    trn_fn probe = {.tmp = c->tmp};
    trn_fn__add_arg(&probe, count);
    for (int i = 0; i < n; i++)
        if (trn_out_is(d[i]))
            trn_fn__add_arg(&probe, d[i]);
    trn_fn__add_ret(&probe, down);
    for (int i = 0; i < n; i++)
        if (trn_out_is(d[i]))
            trn_fn__add_ret(&probe, next[i]);
    trn_fn__collect(&probe, b, on_side, &(side){&sd, BACK(0)}, SIZE_MAX);

    /* What the way back takes from the body: of what goes round unchanged there is one, of all else one per turn. */
    int n_found = probe.n_args - probe.n_own, n_lists = 0, n_fixed = 0;
    trn_out *kept = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *kept), *pop = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *pop);
    trn_out *list = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *list), *push = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *push);
    int *fixed_arg = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *fixed_arg);
    trn_dtype *kept_t = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *kept_t);
    trn_shape *kept_s = trn_arena_alloc(c->tmp, ((size_t)n_found + 1) * sizeof *kept_s);
    trn_fn back = {.tmp = c->tmp};
    for (int i = 0; i < probe.n_own; i++)
        trn_fn__add_arg(&back, probe.args[i]);
    for (int i = 0; i < probe.n_rets; i++)
        trn_fn__add_ret(&back, probe.rets[i]);
    int from = b->g->n;
    for (int i = probe.n_own; i < probe.n_args && trn_g_ok(c); i++) {
        trn_out e = probe.args[i];
        int a = arg_of(c, &body, e);
        if (a >= 0 && fixed[a]) {
            fixed_arg[n_fixed++] = a;
            continue;
        }
        trn_dtype t = trn_g_type(c, e);
        if (t == TRN_RESOURCE) {
            trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of %s '%s' needs a resource that each turn makes anew ('%s')", c->n->op, c->n->name, trn_out_name(b, e)));
            return;
        }
        kept[n_lists] = e;
        kept_t[n_lists] = t;
        kept_s[n_lists] = *trn_out_shape(b, e);
        list[n_lists] = trn_fn__placeholder(b, TRN_VARIANT, &scalar);
        trn_attr el = trn_attr__type("element_dtype", t);
        pop[n_lists] = trn_g_node(c, "TensorListPopBack", TRN_OUTS(list[n_lists], element_shape(c, e)), &el, 1);
        n_lists++;
    }
    if (!trn_g_ok(c))
        return;
    mark(&sd, from, b->g->n, BACK(0));
    for (int id = first; id < b->g->n; id++) { /* the nodes that go back read the lists, and what goes round where it came in */
        if (sd.of[id - first] != BACK(0))
            continue;
        trn_gnode *nd = b->g->node[id];
        for (int i = 0; i < nd->n.n_in; i++) {
            trn_out e = {nd->in[i].node, nd->in[i].slot};
            int k = index_of(kept, n_lists, e), a = k < 0 && e.node >= first && sd.of[e.node - first] == BODY(0) ? arg_of(c, &body, e) : -1;
            if (k >= 0)
                nd->in[i] = (trn_edge){pop[k].node, 1};
            else if (a >= 0 && fixed[a])
                nd->in[i] = (trn_edge){body.args[a].node, 0};
        }
    }
    for (int i = 0; i < back.n_rets; i++) {
        int k = index_of(kept, n_lists, back.rets[i]), a = k < 0 ? arg_of(c, &body, back.rets[i]) : -1;
        if (k >= 0)
            back.rets[i] = trn_out_nth(pop[k], 1);
        else if (a >= 0 && fixed[a])
            back.rets[i] = body.args[a];
    }
    for (int k = 0; k < n_lists; k++) {
        trn_fn__add_arg(&back, list[k]);
        trn_fn__add_ret(&back, pop[k]);
    }
    for (int k = 0; k < n_fixed; k++) { /* each once */
        bool before = false;
        for (int m = 0; m < k; m++)
            before |= fixed_arg[m] == fixed_arg[k];
        if (before) {
            fixed_arg[k--] = fixed_arg[--n_fixed];
            continue;
        }
    }
    for (int k = 0; k < n_fixed; k++) {
        trn_fn__add_arg(&back, body.args[fixed_arg[k]]);
        trn_fn__add_ret(&back, body.args[fixed_arg[k]]);
    }
    trn_fn__collect(&back, b, on_side, &(side){&sd, BACK(0)}, SIZE_MAX);
    if (trn_g_ok(c) && back.n_args != back.n_own) {
        trn_g_fail(c, trn_errorf(TRN_INTERNAL, "the gradient of %s '%s' takes '%s' from its body", c->n->op, c->n->name, trn_out_name(b, back.args[back.n_own])));
        return;
    }
    trn_fn__define(&back, b, trn_arena_printf(c->tmp, "%s_backward", fb->name));

    /* The loop itself counts its turns and keeps what is needed. */
    trn_fn fwd = {.tmp = c->tmp, .roots = body.roots, .n_roots = body.n_roots, .cap_roots = body.n_roots}, cond = {.tmp = c->tmp}, on = {.tmp = c->tmp};
    from = b->g->n;
    trn_out turns = trn_fn__placeholder(b, TRN_INT32, &scalar), up = TRN_GE(c, "(AddV2 $0 #1)", turns);
    for (int i = 0; i < n; i++) {
        trn_fn__add_arg(&fwd, body.args[i]);
        trn_fn__add_ret(&fwd, body.rets[i]);
    }
    trn_fn__add_arg(&fwd, turns);
    trn_fn__add_ret(&fwd, up);
    for (int k = 0; k < n_lists; k++) {
        trn_out l = trn_fn__placeholder(b, TRN_VARIANT, &scalar);
        push[k] = TRN_G(c, "TensorListPushBack", l, kept[k]);
        trn_fn__add_arg(&fwd, l);
        trn_fn__add_ret(&fwd, push[k]);
    }
    if (!trn_g_ok(c))
        return;
    mark(&sd, from, b->g->n, BODY(0));
    trn_fn__collect(&fwd, b, on_side, &(side){&sd, BODY(0)}, SIZE_MAX);
    trn_fn__define(&fwd, b, trn_arena_printf(c->tmp, "%s_forward", fb->name));
    /* Conditions with as many arguments. */
    trn_inlined test;
    int test_first = b->g->n;
    trn_builder__inline(&test, b, c->tmp, fc, NULL);
    if (!trn_g_ok(c))
        return;
    cond.roots = test.roots;
    cond.n_roots = cond.cap_roots = test.n_roots;
    for (int i = 0; i < test.n_args; i++)
        trn_fn__add_arg(&cond, test.args[i]);
    for (int k = 0; k <= n_lists; k++)
        trn_fn__add_arg(&cond, trn_fn__placeholder(b, k ? TRN_VARIANT : TRN_INT32, &scalar));
    trn_fn__add_ret(&cond, test.rets[0]);
    mark(&sd, test_first, b->g->n, BODY(1));
    trn_fn__collect(&cond, b, on_side, &(side){&sd, BODY(1)}, SIZE_MAX);
    trn_fn__define(&cond, b, trn_arena_printf(c->tmp, "%s_forward", fc->name));
    from = b->g->n;
    for (int i = 0; i < back.n_args; i++)
        trn_fn__add_arg(&on, trn_fn__placeholder(b, trn_g_type(c, back.args[i]), NULL));
    trn_out go = trn_g_ok(c) ? TRN_GE(c, "(Greater $0 #0)", on.args[0]) : TRN_NONE;
    trn_fn__add_ret(&on, go);
    mark(&sd, from, b->g->n, BODY(2));
    trn_fn__collect(&on, b, on_side, &(side){&sd, BODY(2)}, SIZE_MAX);
    trn_fn__define(&on, b, trn_arena_printf(c->tmp, "%s_backward", fc->name));
    trn_builder__drop(b, first);
    if (!trn_g_ok(c))
        return;

    /* There. */
    int n_new = 1 + n_lists, n_attrs = 0;
    trn_out *in = trn_arena_alloc(c->tmp, (size_t)(n + n_new) * sizeof *in);
    trn_dtype *types = trn_arena_alloc(c->tmp, (size_t)(n + n_new) * sizeof *types);
    for (int i = 0; i < n; i++) {
        in[i] = trn_grad_in(c, i);
        types[i] = c->n->in_types[i];
    }
    in[n] = trn_g_i32(c, 0);
    types[n] = TRN_INT32;
    for (int k = 0; k < n_lists; k++) {
        trn_attr el = trn_attr__type("element_dtype", kept_t[k]);
        trn_out es = kept_s[k].rank < 0 ? trn_g_i32(c, -1) : trn_g_ints_const(c, kept_s[k].dim, kept_s[k].rank);
        in[n + 1 + k] = trn_g_node(c, "EmptyTensorList", TRN_OUTS(es, trn_g_i32(c, -1)), &el, 1);
        types[n + 1 + k] = TRN_VARIANT;
    }
    trn_attr a[5] = {func_attr(c, "body", fwd.name), func_attr(c, "cond", cond.name), trn_attr__types(c->tmp, "T", types, n + n_new)};
    n_attrs = 3 + shapes_attr(&a[3], c, n_new);
    trn_grad *dy = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *dy);
    memcpy(dy, c->dy, (size_t)n * sizeof *dy);
    int64_t parallel = trn_attr_int(c->n, "parallel_iterations");
    trn_builder__become(b, c->id, c->n->op, in, n + n_new, a, n_attrs);
    /* And back. */
    int n_back = 0;
    trn_out *bin = trn_arena_alloc(c->tmp, ((size_t)back.n_args + 1) * sizeof *bin);
    bin[n_back++] = trn_grad_out(c, n);
    for (int i = 0; i < n && trn_g_ok(c); i++)
        if (trn_out_is(d[i]))
            bin[n_back++] = trn_grad_is(dy[i]) ? trn_g_dense(c, dy[i]) : fixed[i] ? trn_g_zeros(c, in[i], dt[i]) : trn_g_zeros_like(c, trn_grad_out(c, i));
    for (int k = 0; k < n_lists; k++)
        bin[n_back++] = trn_grad_out(c, n + 1 + k);
    for (int k = 0; k < n_fixed; k++)
        bin[n_back++] = in[fixed_arg[k]];
    trn_attr ba[] = {func_attr(c, "body", back.name), func_attr(c, "cond", on.name), trn_attr__int("parallel_iterations", parallel ? parallel : 10),
                     trn_attr__bool("_lower_using_switch_merge", true)};
    trn_out g = trn_g_node(c, back.stateful ? "While" : "StatelessWhile", bin, n_back, ba, 4);
    for (int i = 0, k = 1; i < n && trn_g_ok(c); i++)
        if (trn_out_is(d[i]))
            trn_grad_set(c, i, trn_out_nth(g, k++));
}

const trn_grad_row trn_grads_call[] = {
    {"Case", .fn = decision},
    {"If", .fn = decision},
    {"PartitionedCall", .fn = call},
    {"StatefulPartitionedCall", .fn = call},
    {"StatelessCase", .fn = decision},
    {"StatelessIf", .fn = decision},
    {"StatelessWhile", .fn = loop},
    {"While", .fn = loop},
    {0},
};
