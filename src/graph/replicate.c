/* Composite devices: a packed argument has one value per member device, and so has all that was placed with it. Who consumes what decides which copies there are:
 *
 *     on a member's device    that member's copy
 *     elsewhere               an _Arg's members stacked; of anything else there would have to be one, and there are several: an error
 *     on the same composite   copy by copy
 *     nobody                  all: it is there for its effect
 *
 * A control edge waits for the copy on the consumer's device, or for all of them. */
#include <stdlib.h>

#include "graph/graph_priv.h"

#define MAX_COPIES 1000000 /* as many nodes as lowering makes */

typedef struct replicator {
    trn_graph *g;
    const trn_devset *ds;
    const trn_composite *c;
    int n_c;
    int n;           /* nodes at first */
    trn_gusers users;
    bool **need;     /* by node, then member; NULL: it is on no composite */
    int **copy;      /* the same: the copy's id, -1 */
    trn_map *stacks; /* _Arg and device → its Pack + 1 */
    int n_todo, cap_todo, *todo; /* (node, member) whose inputs have not been looked at yet */
} replicator;

static const trn_composite *composite_of(const replicator *r, int id)
{
    const trn_gnode *nd = r->g->node[id];
    for (int i = 0; nd && i < r->n_c; i++)
        if (nd->dev == r->c[i].dev)
            return &r->c[i];
    return NULL;
}

static int member_on(const trn_composite *c, int dev)
{
    for (int i = 0; i < c->n; i++)
        if (c->member[i] == dev)
            return i;
    return -1;
}

static void want(replicator *r, int id, int member)
{
    if (r->need[id][member])
        return;
    r->need[id][member] = true;
    TRN_PUSH(r->todo, r->n_todo, r->cap_todo, id);
    TRN_PUSH(r->todo, r->n_todo, r->cap_todo, member);
}

static void want_all(replicator *r, int id, const trn_composite *c)
{
    for (int i = 0; i < c->n; i++)
        want(r, id, i);
}

static trn_err wants_of_users(replicator *r, int id)
{
    const trn_composite *c = composite_of(r, id);
    const trn_gnode *nd = r->g->node[id];
    int first = r->users.first[id], end = r->users.first[id + 1];
    if (trn_gnode__is(nd, "_Retval"))
        return trn_errorf(TRN_INVALID_ARGUMENT, "a packed argument has a value per device and cannot be a result\n\t [[{{node %s}}]]", nd->n.name);
    for (int k = first; k < end; k++) {
        const trn_guse *u = &r->users.use[k];
        const trn_gnode *to = r->g->node[u->to];
        if (to->dev == nd->dev)
            continue;
        int m = member_on(c, to->dev);
        if (m >= 0) {
            want(r, id, m);
            continue;
        }
        want_all(r, id, c);
        if (u->input >= 0 && (!trn_gnode__is(nd, "_Arg") || composite_of(r, u->to)))
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Dst node should be assigned to an allowed device. Found an edge from node %s assigned to %s, of which there is one on each of %d devices, to node %s "
                              "assigned to %s, which is none of them",
                              nd->n.name, r->ds->dev[nd->dev].name, c->n, to->n.name, r->ds->dev[to->dev].name);
    }
    if (first == end)
        want_all(r, id, c);
    return TRN_OK;
}

/* Copies need their inputs' copies. */
static void spread(replicator *r)
{
    while (r->n_todo) {
        int member = r->todo[--r->n_todo], id = r->todo[--r->n_todo];
        const trn_gnode *nd = r->g->node[id];
        for (int i = 0; i < nd->n.n_in; i++)
            if (r->g->node[nd->in[i].node]->dev == nd->dev)
                want(r, nd->in[i].node, member);
        for (int i = 0; i < nd->n_ctl; i++)
            if (r->g->node[nd->ctl[i]]->dev == nd->dev)
                want(r, nd->ctl[i], member);
    }
}

static trn_err make_copies(replicator *r, int id)
{
    const trn_composite *c = composite_of(r, id);
    trn_graph *g = r->g;
    const trn_gnode *from = g->node[id];
    for (int i = 0; i < c->n; i++) {
        r->copy[id][i] = -1;
        if (!r->need[id][i])
            continue;
        char *base = trn_xasprintf("%s/R%d", from->n.name, i);
        const char *name = trn_graph_unique_name(g, base);
        free(base);
        trn_gnode *nd;
        TRN_TRY(trn_graph_add(&nd, g, from->n.op, name, r->ds->dev[c->member[i]].name, from->n.attrs, from->n.n_attrs, from->in, from->n.n_in));
        nd->dev = c->member[i];
        trn_gnode__del_attr(nd, "_class"); /* placed already, and what it names may be gone */
        if (trn_gnode__is(nd, "_Arg")) {
            trn_attr sub = trn_attr__int("sub_index", i);
            trn_gnode__set_attr(nd, g->arena, &sub);
        }
        r->copy[id][i] = nd->id;
    }
    return TRN_OK;
}

static trn_err stack(int *out, replicator *r, int id, int dev)
{
    int key[2] = {id, dev};
    *out = (int)(intptr_t)trn_map_get(r->stacks, key, sizeof key) - 1;
    if (*out >= 0)
        return TRN_OK;
    const trn_composite *c = composite_of(r, id);
    const trn_gnode *arg = r->g->node[id];
    trn_edge *in = trn_arena_alloc(r->g->arena, sizeof *in * (size_t)c->n);
    for (int i = 0; i < c->n; i++)
        in[i] = (trn_edge){r->copy[id][i], 0};
    trn_attr at[] = {trn_attr__int("N", c->n), trn_attr__type("T", arg->n.out_types[0]), trn_attr__int("axis", 0)};
    char *base = trn_xasprintf("%s/Packed", arg->n.name);
    const char *name = trn_graph_unique_name(r->g, base);
    free(base);
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, r->g, "Pack", name, r->ds->dev[dev].name, at, TRN_COUNTOF(at), in, c->n));
    nd->dev = dev;
    *out = nd->id;
    trn_map_put(r->stacks, key, sizeof key, (void *)(intptr_t)(nd->id + 1));
    return TRN_OK;
}

/* Copy `member` of its composite (-1: a node of its own) takes the copies of what was copied. */
static trn_err rewire(replicator *r, trn_gnode *nd, const trn_composite *own, int member)
{
    for (int i = 0; i < nd->n.n_in; i++) {
        int from = nd->in[i].node;
        if (from >= r->n || !r->copy[from])
            continue;
        const trn_composite *c = composite_of(r, from);
        int m = own == c ? member : member_on(c, nd->dev);
        if (m >= 0)
            nd->in[i].node = r->copy[from][m];
        else
            TRN_TRY(stack(&nd->in[i].node, r, from, nd->dev));
    }
    return TRN_OK;
}

static void rewire_waits(replicator *r, trn_gnode *nd, const int *ctl, int n, const trn_composite *own, int member, trn_ctlset *set)
{
    int *ids = NULL, n_ids = 0, cap = 0;
    for (int i = 0; i < n; i++) {
        if (ctl[i] >= r->n || !r->copy[ctl[i]]) {
            TRN_PUSH(ids, n_ids, cap, ctl[i]);
            continue;
        }
        const trn_composite *c = composite_of(r, ctl[i]);
        int m = own == c ? member : member_on(c, nd->dev);
        for (int k = 0; k < c->n; k++)
            if (m < 0 || k == m)
                TRN_PUSH(ids, n_ids, cap, r->copy[ctl[i]][k]);
    }
    trn_gnode__set_ctl(r->g, nd, ids, n_ids, set);
    free(ids);
}

static trn_err replicate(replicator *r, trn_ctlset *set)
{
    trn_graph *g = r->g;
    for (int id = 0; id < r->n; id++)
        if (r->need[id])
            TRN_TRY(wants_of_users(r, id));
    spread(r);
    for (int id = 0; id < r->n; id++)
        if (r->copy[id])
            TRN_TRY(make_copies(r, id));
    for (int id = 0; id < r->n; id++) {
        trn_gnode *nd = g->node[id];
        if (!nd)
            continue;
        const trn_composite *c = composite_of(r, id);
        if (!c) {
            TRN_TRY(rewire(r, nd, NULL, -1));
            rewire_waits(r, nd, nd->ctl, nd->n_ctl, NULL, -1, set);
            continue;
        }
        for (int i = 0; i < c->n; i++)
            if (r->copy[id][i] >= 0) {
                trn_gnode *to = g->node[r->copy[id][i]];
                TRN_TRY(rewire(r, to, c, i));
                rewire_waits(r, to, nd->ctl, nd->n_ctl, c, i, set);
            }
    }
    for (int id = 0; id < r->n; id++)
        if (r->copy[id])
            trn_graph_remove(g, id);
    return TRN_OK;
}

trn_err trn_graph_replicate(trn_graph *g, const trn_devset *ds, const trn_composite *c, int n)
{
    replicator r = {.g = g, .ds = ds, .c = c, .n_c = n, .n = g->n, .stacks = trn_map_new()};
    size_t copies = 0;
    for (int id = 0; id < g->n; id++)
        copies += composite_of(&r, id) ? (size_t)composite_of(&r, id)->n : 0;
    if (copies > MAX_COPIES) {
        trn_map_free(r.stacks, NULL);
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a packed argument's nodes would be copied %zu times; at most %d copies are made", copies, MAX_COPIES);
    }
    r.need = trn_xalloc(((size_t)g->n + 1) * sizeof *r.need);
    r.copy = trn_xalloc(((size_t)g->n + 1) * sizeof *r.copy);
    for (int id = 0; id < g->n; id++) {
        const trn_composite *on = composite_of(&r, id);
        if (on) {
            r.need[id] = trn_xalloc((size_t)on->n * sizeof **r.need);
            r.copy[id] = trn_xalloc((size_t)on->n * sizeof **r.copy);
        }
    }
    trn_gusers__init(&r.users, g);
    trn_ctlset set = {0};
    trn_err err = replicate(&r, &set);
    trn_gusers__fini(&r.users);
    for (int id = 0; id < r.n; id++) {
        free(r.need[id]);
        free(r.copy[id]);
    }
    free(r.need);
    free(r.copy);
    free(r.todo);
    free(set.seen);
    trn_map_free(r.stacks, NULL);
    return err;
}
