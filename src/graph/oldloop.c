/* Loops of old graphs (Enter, Merge, Switch, NextIteration, Exit) as While ops, where their gradients are asked for: a loop that is one op with a body has
 * one. Exit nodes keep their names and users and become results of the While; the rest of the old loop stays behind, needed by nobody. */
#include "graph/function.h"

#include <stdlib.h>

#include "graph/graph_priv.h"

typedef struct var {
    int enter, merge, next, swtch; /* node ids; a constant has only an enter */
} var;

typedef struct raise {
    trn_builder *b;
    trn_arena *tmp;
    trn_frames fr;
    int *of, n_of; /* by node id, also of nodes that are new */
    int frame;
    var *v;        /* variables first, then constants */
    int n_vars, n_all;
    int *role;     /* by node id: 1 for what makes up the loop itself */
} raise;

static bool in_frame(void *arg, int node)
{
    const raise *r = arg;
    return node < r->n_of && r->of[node] == r->frame && !r->role[node];
}

static bool is(const trn_gnode *nd, const char *op) { return trn_gnode__is(nd, op); }

static trn_err odd(const raise *r, const char *why, const char *node)
{
    return trn_errorf(TRN_UNIMPLEMENTED, "the gradient of the loop '%s': %s '%s'", r->fr.frame[r->frame].name, why, node);
}

/* What the loop is made of. */
static trn_err take_apart(raise *r)
{
    trn_graph *g = r->b->g;
    int n = 0, end = TRN_MIN(g->n, r->n_of), cond = r->fr.frame[r->frame].loop_cond;
    r->v = trn_arena_alloc(r->tmp, ((size_t)end + 1) * sizeof *r->v);
    if (cond < 0)
        return odd(r, "it has no condition", "");
    r->role[cond] = 1;
    for (int i = 0; i < end; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd || r->of[i] != r->frame)
            continue;
        if (is(nd, "RefEnter") || is(nd, "RefExit") || is(nd, "RefMerge") || is(nd, "RefNextIteration"))
            return odd(r, "it carries a reference,", nd->n.name);
        if (is(nd, "Enter") || is(nd, "Exit") || is(nd, "NextIteration"))
            r->role[i] = 1;
        if (!is(nd, "Merge") || nd->n.n_in != 2 || !is(g->node[nd->in[1].node], "NextIteration"))
            continue;
        if (!is(g->node[nd->in[0].node], "Enter"))
            return odd(r, "there is no Enter for", nd->n.name);
        r->role[i] = 1;
        r->v[n++] = (var){nd->in[0].node, i, nd->in[1].node, -1};
    }
    r->n_vars = n;
    for (int i = 0; i < end; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd || r->of[i] != r->frame)
            continue;
        bool known = false;
        for (int k = 0; k < r->n_vars; k++) {
            known |= r->v[k].enter == i;
            if (is(nd, "Switch") && nd->in[0].node == r->v[k].merge && nd->in[1].node == cond) {
                r->v[k].swtch = i;
                r->role[i] = 1;
            }
        }
        if (is(nd, "Enter") && !known)
            r->v[n++] = (var){i, -1, -1, -1};
    }
    r->n_all = n;
    for (int k = 0; k < r->n_vars; k++)
        if (r->v[k].swtch < 0)
            return odd(r, "there is no Switch for", g->node[r->v[k].merge]->n.name);
    return TRN_OK;
}

static trn_out input_of(const raise *r, int node, int i)
{
    trn_edge e = r->b->g->node[node]->in[i];
    return (trn_out){e.node, e.slot};
}

static void make_function(trn_fn *f, raise *r, bool body)
{
    trn_builder *b = r->b;
    f->tmp = r->tmp;
    for (int k = 0; k < r->n_all; k++) {
        const var *v = &r->v[k];
        trn_out a = k >= r->n_vars ? (trn_out){v->enter, 0} : body ? (trn_out){v->swtch, 1} : (trn_out){v->merge, 0};
        trn_fn__add_arg(f, a);
        if (body)
            trn_fn__add_ret(f, k >= r->n_vars ? a : input_of(r, v->next, 0));
    }
    if (!body)
        trn_fn__add_ret(f, input_of(r, r->fr.frame[r->frame].loop_cond, 0));
    trn_fn__collect(f, b, in_frame, r, 0);
    if (trn_builder_ok(b) && f->n_args > f->n_own)
        trn_builder_fail(b, odd(r, body ? "its body takes" : "its condition takes", trn_out_name(b, f->args[f->n_own])));
    trn_fn__define(f, b, trn_arena_printf(r->tmp, "%s_%s", r->fr.frame[r->frame].name, body ? "body" : "cond"));
}

static void raise_frame(raise *r)
{
    trn_builder *b = r->b;
    trn_err err = take_apart(r);
    if (err) {
        trn_builder_fail(b, err);
        return;
    }
    trn_fn cond = {0}, body = {0};
    make_function(&cond, r, false);
    /* What has effects runs in each turn, unless the condition runs it already. */
    for (int i = 0; i < TRN_MIN(b->g->n, r->n_of) && trn_builder_ok(b); i++) {
        bool there = !in_frame(r, i) || !trn_fn__has_effect(b, b->g->node[i]);
        for (int k = 0; k < cond.n_nodes && !there; k++)
            there = cond.nodes[k] == i;
        if (!there)
            trn_fn__add_root(&body, r->tmp, i);
    }
    make_function(&body, r, true);
    if (!trn_builder_ok(b))
        return;
    trn_out *in = trn_arena_alloc(r->tmp, ((size_t)r->n_all + 1) * sizeof *in);
    trn_dtype *t = trn_arena_alloc(r->tmp, ((size_t)r->n_all + 1) * sizeof *t);
    int64_t parallel = 10;
    for (int k = 0; k < r->n_all; k++) {
        in[k] = input_of(r, r->v[k].enter, 0);
        t[k] = trn_out_dtype(b, in[k]);
        parallel = trn_attr_int(&b->g->node[r->v[k].enter]->n, "parallel_iterations");
    }
    trn_func_ref fc = {.name = cond.name}, fb = {.name = body.name};
    trn_attr a[] = {{.name = "cond", .kind = TRN_ATTR_FUNC, .v.func = &fc}, {.name = "body", .kind = TRN_ATTR_FUNC, .v.func = &fb}, trn_attr__types(b->arena, "T", t, r->n_all),
                    trn_attr__int("parallel_iterations", parallel), trn_attr__bool("_lower_using_switch_merge", true)};
    trn_out loop = trn_builder__add_at(b, trn_arena_printf(r->tmp, "%s/functional", r->fr.frame[r->frame].name), "", cond.stateful || body.stateful ? "While" : "StatelessWhile", in,
                                       r->n_all, a, 5);
    if (!trn_builder_ok(b))
        return;
    if (loop.node >= r->n_of) {
        int *more = trn_arena_alloc(r->tmp, ((size_t)2 * (size_t)loop.node + 1) * 2 * sizeof *more), *role = more + 2 * loop.node + 1;
        memcpy(more, r->of, (size_t)r->n_of * sizeof *more);
        memcpy(role, r->role, (size_t)r->n_of * sizeof *role);
        for (int i = r->n_of; i < 2 * loop.node + 1; i++)
            more[i] = -1;
        r->of = more;
        r->role = role;
        r->n_of = 2 * loop.node + 1;
    }
    int parent = r->fr.frame[r->frame].parent;
    r->of[loop.node] = parent;
    for (int i = 0; i < TRN_MIN(b->g->n, r->n_of) && trn_builder_ok(b); i++) {
        const trn_gnode *nd = b->g->node[i];
        if (r->of[i] != r->frame || !is(nd, "Exit"))
            continue;
        for (int k = 0; k < r->n_vars; k++)
            if (nd->in[0].node == r->v[k].swtch) {
                trn_out o = trn_out_nth(loop, k);
                trn_attr type = trn_attr__type("T", t[k]);
                trn_builder__become(b, i, "Identity", &o, 1, &type, 1);
                r->of[i] = parent;
                r->role[i] = 0;
                break;
            }
    }
}

void trn_builder__raise_loops(trn_builder *b, const int *exits, int n)
{
    raise r = {.b = b};
    if (!trn_builder_ok(b) || !n)
        return;
    trn_err err = trn_graph_frames(&r.fr, b->g);
    if (err) {
        trn_builder_fail(b, err);
        return;
    }
    r.tmp = trn_arena_new();
    r.n_of = b->g->n;
    r.of = trn_arena_dup(r.tmp, r.fr.of, (size_t)r.n_of * sizeof *r.of);
    r.role = trn_arena_alloc(r.tmp, ((size_t)r.n_of + 1) * sizeof *r.role);
    bool *wanted = trn_arena_alloc(r.tmp, (size_t)r.fr.n + 1);
    for (int i = 0; i < n; i++)
        if (r.of[exits[i]] > 0)
            wanted[r.of[exits[i]]] = true;
    for (int f = 1; f < r.fr.n; f++) /* parents come first */
        wanted[f] |= wanted[r.fr.frame[f].parent];
    for (r.frame = r.fr.n - 1; r.frame > 0 && trn_builder_ok(b); r.frame--)
        if (wanted[r.frame])
            raise_frame(&r);
    trn_frames_fini(&r.fr);
    trn_arena_free(r.tmp);
}
