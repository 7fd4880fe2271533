/* What a step needs: backwards from fetches and targets, over data and control edges, up to what is fed. */
#include "graph/graph_priv.h"

#include <stdlib.h>

/* Which tensors are fed. Behind the client's feeds come the joins, which are fed by another tensor of the graph. */
typedef struct feeds {
    int n, n_args; /* the first n_args are the client's */
    trn_edge *edge;
    trn_edge *from; /* of a join, in the old graph */
    bool *some;     /* by node: one of its outputs is fed */
    trn_map *at;    /* trn_edge → feed + 1: a node may have as many outputs as there are feeds */
    trn_map *types; /* trn_edge → dtype, of the outputs of ops that we do not have; NULL: not needed yet */
    bool *used;
    trn_edge *source; /* in the new graph, when used */
} feeds;

static int feed_of(const feeds *f, int node, int slot)
{
    if (!f->some[node])
        return -1;
    trn_edge e = {node, slot};
    return (int)(intptr_t)trn_map_get(f->at, &e, sizeof e) - 1;
}

/* A fed placeholder never runs, so what waits for it waits for the feed. */
static int feed_of_ctl(const feeds *f, const trn_graph *g, int node)
{
    const char *op = g->node[node]->n.op;
    if (!f->some[node] || (strcmp(op, "Placeholder") != 0 && strcmp(op, "PlaceholderV2") != 0))
        return -1;
    return feed_of(f, node, 0);
}

static void feeds_fini(feeds *f)
{
    free(f->edge);
    free(f->from);
    free(f->some);
    trn_map_free(f->at, NULL);
    trn_map_free(f->types, NULL);
    free(f->used);
    free(f->source);
}

static trn_err join_edge(trn_edge *out, const trn_graph *g, const char *name)
{
    const char *node;
    size_t len;
    int slot;
    const trn_gnode *nd = trn_tensor_name__parse(name, &node, &len, &slot) ? trn_graph_find(g, node, len) : NULL;
    if (!nd)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Requested tensor connection from unknown node: \"%s\".", name);
    if (slot < 0 || (nd->n.out_types != trn_graph__untyped && slot >= nd->n.n_out))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Requested tensor connection from unknown edge: \"%s\" (actual number of outputs = %d).", name, nd->n.n_out);
    *out = (trn_edge){nd->id, slot};
    return TRN_OK;
}

static trn_err feeds_init(feeds *f, const trn_graph *g, const trn_run_sig *sig)
{
    int all = sig->n_feeds + sig->n_joins;
    size_t n = (size_t)TRN_MAX(all, 1);
    f->n_args = sig->n_feeds;
    f->edge = trn_xalloc(n * sizeof *f->edge);
    f->from = trn_xalloc(n * sizeof *f->from);
    f->used = trn_xalloc(n * sizeof *f->used);
    f->source = trn_xalloc(n * sizeof *f->source);
    f->some = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *f->some);
    f->at = trn_map_new();
    for (int i = 0; i < all; i++) {
        bool join = i >= sig->n_feeds;
        const char *name = join ? sig->join_to[i - sig->n_feeds] : sig->feeds[i];
        if (join)
            TRN_TRY(join_edge(&f->from[i], g, sig->join_from[i - sig->n_feeds]));
        trn_edge e;
        trn_err err = trn_graph_tensor(&e, g, name);
        if (err)
            return trn_err_wrap(err, "feed %s", name);
        if (e.slot < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' cannot be fed: it is not a tensor", name);
        if (feed_of(f, e.node, e.slot) >= 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Endpoint \"%s\" fed more than once.", name);
        f->edge[i] = e;
        f->some[e.node] = true;
        trn_map_put(f->at, &e, sizeof e, (void *)(intptr_t)(i + 1));
        f->n++;
    }
    return TRN_OK;
}

static trn_err fetch_edge(trn_edge *out, const trn_graph *g, const char *name)
{
    trn_edge e;
    const char *node;
    size_t len;
    int slot;
    if (trn_tensor_name__parse(name, &node, &len, &slot)) {
        const trn_gnode *nd = trn_graph_find(g, node, len);
        if (nd && nd->n.n_out == 0 && nd->n.out_types != trn_graph__untyped)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Tried to fetch data for '%s', which produces no output.  To run to a node but not fetch "
                              "any data, pass '%s' as a target",
                              name, name);
    }
    trn_err err = trn_graph_tensor(&e, g, name);
    if (err)
        return trn_err_wrap(err, "fetch %s", name);
    if (e.slot < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' cannot be fetched: it is not a tensor", name);
    *out = e;
    return TRN_OK;
}

static trn_err missing_op(const trn_graph *g, const trn_gnode *nd)
{
    if (trn_op_find(nd->n.op)) { /* we have it, but not like this */
        trn_arena *a = trn_arena_new();
        trn_node n = nd->n;
        trn_err err = trn_node_resolve(&n, a);
        trn_arena_free(a);
        if (err)
            return err;
    }
    const char *why = "";
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *user = g->node[i];
        for (int k = 0; user && k < user->n.n_in; k++)
            if (user->in[k].node == nd->id)
                return trn_errorf(
                    TRN_UNIMPLEMENTED,
                    "Op type not registered '%s'%s: Trainera has no kernel for it; node '%s' needs it for '%s' (%s)",
                    nd->n.op, why, nd->n.name, user->n.name, user->n.op);
    }
    return trn_errorf(TRN_UNIMPLEMENTED,
                      "Op type not registered '%s'%s: Trainera has no kernel for it; it is the op of node '%s'",
                      nd->n.op, why, nd->n.name);
}

static trn_dtype own_type(const trn_graph *g, trn_edge e)
{
    const trn_gnode *nd = g->node[e.node];
    return e.slot < nd->n.n_out ? trn_dtype_base(nd->n.out_types[e.slot]) : TRN_INVALID;
}

/* dtype of a tensor; of an op that we do not have, what one of its users takes it for. */
static trn_dtype edge_type(feeds *f, const trn_graph *g, trn_edge e)
{
    trn_dtype t = own_type(g, e);
    if (t != TRN_INVALID)
        return t;
    if (!f->types) {
        f->types = trn_map_new();
        for (int i = g->n - 1; i >= 0; i--) { /* the first user counts */
            const trn_gnode *user = g->node[i];
            for (int k = user ? user->n.n_in - 1 : -1; k >= 0; k--)
                if (user->in[k].node >= 0 && own_type(g, user->in[k]) == TRN_INVALID && user->n.in_types[k] != TRN_INVALID)
                    trn_map_put(f->types, &user->in[k], sizeof user->in[k], (void *)(intptr_t)trn_dtype_base(user->n.in_types[k]));
        }
    }
    return (trn_dtype)(intptr_t)trn_map_get(f->types, &e, sizeof e);
}

static void keep_node(bool *keep, int *stack, int *n, int node)
{
    if (keep[node])
        return;
    keep[node] = true;
    stack[(*n)++] = node;
}

/* What comes from a feed needs nothing else of the graph; what comes from a join needs its source. */
static void use_feed(feeds *f, bool *keep, int *stack, int *n, int feed)
{
    f->used[feed] = true;
    if (feed >= f->n_args)
        keep_node(keep, stack, n, f->from[feed].node);
}

/* Reverse reachability. `keep` and `stack` have room for all nodes. */
static void reach(const trn_graph *g, feeds *f, bool *keep, int *stack, int n)
{
    while (n) {
        const trn_gnode *nd = g->node[stack[--n]];
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            bool data = k < nd->n.n_in;
            int from = data ? nd->in[k].node : nd->ctl[k - nd->n.n_in];
            int feed = !f->some[from] ? -1 : data ? feed_of(f, from, nd->in[k].slot) : feed_of_ctl(f, g, from);
            if (feed >= 0)
                use_feed(f, keep, stack, &n, feed);
            else
                keep_node(keep, stack, &n, from);
        }
    }
}

static trn_err add_arg(trn_graph *ng, const trn_graph *g, feeds *f, int i, const char *device)
{
    const trn_gnode *nd = g->node[f->edge[i].node];
    trn_dtype t = edge_type(f, g, f->edge[i]);
    if (t == TRN_INVALID)
        return missing_op(g, nd);
    char *base = trn_xasprintf("_arg_%s_%d_%d", nd->n.name, f->edge[i].slot, i);
    trn_attr attrs[] = {trn_attr__type("T", t), trn_attr__int("index", i)};
    trn_gnode *arg;
    trn_err err = trn_graph_add(&arg, ng, "_Arg", trn_graph_unique_name(ng, base), device, attrs, 2, NULL, 0);
    free(base);
    if (!err)
        f->source[i] = (trn_edge){arg->id, 0};
    return err;
}

static trn_err add_retval(trn_graph *ng, const trn_graph *g, feeds *f, trn_edge e, trn_edge from, int i, const char *device)
{
    const trn_gnode *nd = g->node[e.node];
    trn_dtype t = edge_type(f, g, e);
    if (t == TRN_INVALID)
        return missing_op(g, nd);
    char *base = trn_xasprintf("_retval_%s_%d_%d", nd->n.name, e.slot, i);
    trn_attr attrs[] = {trn_attr__type("T", t), trn_attr__int("index", i)};
    trn_err err = trn_graph_add(NULL, ng, "_Retval", trn_graph_unique_name(ng, base), device, attrs, 2, &from, 1);
    free(base);
    return err;
}

/* Edges of kept nodes that come from a feed. */
static trn_err rewire(trn_graph *ng, const trn_graph *g, const feeds *f, const bool *keep, const int *to)
{
    trn_ctlset ctls = {0};
    int *ids = NULL, cap = 0;
    for (int i = 0, at = 0; i < g->n && f->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!keep[i])
            continue;
        trn_gnode *nn = ng->node[at++];
        for (int k = 0; k < nd->n.n_in; k++) {
            int feed = feed_of(f, nd->in[k].node, nd->in[k].slot);
            if (feed < 0)
                continue;
            if (feed < f->n_args && trn_dtype_is_ref(nd->n.in_types[k])) {
                free(ctls.seen);
                free(ids);
                return trn_errorf(TRN_INVALID_ARGUMENT,
                                  "'%s:%d' cannot be fed: node '%s' (%s) needs it as a reference to a variable",
                                  g->node[f->edge[feed].node]->n.name, f->edge[feed].slot, nd->n.name, nd->n.op);
            }
            nn->in[k] = f->source[feed];
        }
        /* if a placeholder itself is kept (it cannot run) the edge from it must go */
        bool some = false;
        int n = 0;
        for (int k = 0; k < nd->n_ctl; k++) {
            int feed = feed_of_ctl(f, g, nd->ctl[k]);
            some |= feed >= 0;
            TRN_PUSH(ids, n, cap, feed >= 0 ? f->source[feed].node : to[nd->ctl[k]]);
        }
        if (some)
            trn_gnode__set_ctl(ng, nn, ids, n, &ctls);
    }
    free(ctls.seen);
    free(ids);
    return TRN_OK;
}

static trn_err prune(trn_graph **out, const trn_graph *g, const trn_run_sig *sig, const char *device, feeds *f,
                     trn_edge *fetch, bool *keep, int *stack)
{
    int n = 0;
    TRN_TRY(feeds_init(f, g, sig));
    for (int i = 0; i < sig->n_fetches; i++) {
        TRN_TRY(fetch_edge(&fetch[i], g, sig->fetches[i]));
        int feed = feed_of(f, fetch[i].node, fetch[i].slot);
        if (feed >= 0)
            use_feed(f, keep, stack, &n, feed);
        else
            keep_node(keep, stack, &n, fetch[i].node);
    }
    for (int i = 0; i < sig->n_targets; i++) {
        const trn_gnode *nd = trn_graph_find(g, sig->targets[i], strlen(sig->targets[i]));
        if (!nd)
            return trn_errorf(TRN_NOT_FOUND, "PruneForTargets: Some target nodes not found: %.1024s", sig->targets[i]);
        int feed = feed_of_ctl(f, g, nd->id);
        if (feed >= 0)
            use_feed(f, keep, stack, &n, feed);
        else
            keep_node(keep, stack, &n, nd->id);
    }
    reach(g, f, keep, stack, n);

    trn_graph *ng = trn_graph_copy(g, keep);
    int *to = stack; /* old id → new id; the stack is empty */
    for (int i = 0, at = 0; i < g->n; i++)
        to[i] = keep[i] ? at++ : -1;
    trn_err err = TRN_OK;
    for (int i = 0; i < f->n && !err; i++) {
        if (f->used[i] && i < f->n_args)
            err = add_arg(ng, g, f, i, device);
        else if (f->used[i])
            f->source[i] = (trn_edge){to[f->from[i].node], f->from[i].slot};
    }
    if (!err)
        err = rewire(ng, g, f, keep, to);
    for (int i = 0; i < sig->n_fetches && !err; i++) {
        int feed = feed_of(f, fetch[i].node, fetch[i].slot);
        trn_edge from = feed >= 0 ? f->source[feed] : (trn_edge){to[fetch[i].node], fetch[i].slot};
        err = add_retval(ng, g, f, fetch[i], from, i, device);
    }
    if (!err && sig->n_joins) { /* a join may close a cycle, which no import has seen */
        trn_frames frames;
        err = trn_graph_frames(&frames, ng);
        if (!err)
            trn_frames_fini(&frames);
    }
    if (err) {
        trn_graph_free(ng);
        return err;
    }
    *out = ng;
    return TRN_OK;
}

trn_err trn_graph_prune(trn_graph **out, const trn_graph *g, const trn_run_sig *sig, const char *client_device)
{
    if (sig->n_fetches == 0 && sig->n_targets == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Must specify at least one target to fetch or execute.");
    feeds f = {0};
    trn_edge *fetch = trn_xalloc((size_t)TRN_MAX(sig->n_fetches, 1) * sizeof *fetch);
    bool *keep = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *keep);
    int *stack = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *stack);
    trn_err err = prune(out, g, sig, client_device, &f, fetch, keep, stack);
    feeds_fini(&f);
    free(fetch);
    free(keep);
    free(stack);
    return err;
}

trn_err trn_graph_check_ops(const trn_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (nd && !nd->n.def && !(g->lib && trn_funclib_has(g->lib, nd->n.op)))
            return missing_op(g, nd);
    }
    return TRN_OK;
}
