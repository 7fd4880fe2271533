/* Placement: every node gets a device of the set.
 *
 * Nodes that must share a device form groups (union-find): a reference or resource edge joins both ends, so does `_class`
 * ("loc:@other"). A group has three names that narrow as members join it:
 *     fixed      what an earlier placement decided; never given up
 *     resource   what the program asked for where a resource or variable is made; wins over what its users asked for
 *     wanted     what the program asked for anywhere; always at least as narrow as the two others
 * Then the groups are placed in topological order: the first device that `wanted` allows, the master's own task first. Two rules save
 * transfers: Shape, Size and Rank go where their input is; nodes without inputs are placed last, where all their consumers are.
 *
 * A composite device stands for one of each of its members. Nothing is placed there but what was put there before (a packed argument), what takes a resource
 * from it without saying where, and metadata of it; `replicate.c` then makes copies.
 *
 * What cannot be placed keeps its error (place_err): only a step that needs the node fails. */
#include "graph/graph.h"

#include <stdlib.h>

#include "graph/devname.h"

#define ERR_DEVICES 64 /* names listed in a message: a large cluster must not make megabytes of it */
#define ERR_MEMBERS 8

typedef struct group {
    int parent, rank;
    const trn_devname *fixed, *resource, *wanted; /* interned; NULL: anything */
    int dev;                                      /* chosen; -1: not yet */
    bool late;                                    /* a member takes a resource out of a call that is still whole */
} group;

/* Devices that a name allows, best first. */
typedef struct choice {
    int n;
    int *dev;
} choice;

typedef struct placer {
    trn_graph *g;
    const trn_devset *ds;
    trn_place_opts opts;
    trn_arena *a;          /* dies with the call */
    group *grp;            /* by node id */
    trn_map *parsed;       /* device text → trn_devname */
    trn_map *interned;     /* trn_devname → the one copy of it */
    trn_map *choices;      /* interned address → choice */
    trn_map *members;      /* root → its group as text, for messages */
    int n_order, *order;   /* CPU devices: own task first, then by name */
    trn_devname *dev_name; /* of ds->dev[i] */
    const char **dev_text; /* the same, in the graph's arena */
} placer;

/* ---- names ------------------------------------------------------------------------------------------------------ */

static const trn_devname *intern(placer *p, const trn_devname *d)
{
    if (trn_devname_is_any(d))
        return NULL;
    trn_devname key;
    memset(&key, 0, sizeof key); /* bytes behind the zeros take part in the key */
    memcpy(key.job, d->job, strlen(d->job));
    memcpy(key.type, d->type, strlen(d->type));
    key.replica = d->replica;
    key.task = d->task;
    key.id = d->id;
    trn_devname *have = trn_map_get(p->interned, &key, sizeof key);
    if (!have) {
        have = trn_arena_dup(p->a, &key, sizeof key);
        trn_map_put(p->interned, &key, sizeof key, have);
    }
    return have;
}

static trn_err parse(const trn_devname **out, placer *p, const char *text)
{
    *out = NULL;
    if (!text || !*text)
        return TRN_OK;
    size_t n = strlen(text);
    const trn_devname *have = trn_map_get(p->parsed, text, n);
    if (!have) {
        trn_devname d;
        TRN_TRY(trn_devname_parse(&d, text, n));
        have = intern(p, &d);
        if (have)
            trn_map_put(p->parsed, text, n, (void *)have);
    }
    *out = have;
    return TRN_OK;
}

static trn_devname value(const trn_devname *d) { return d ? *d : trn_devname_any(); }

static bool compatible(const trn_devname *a, const trn_devname *b)
{
    return !a || !b || a == b || trn_devname_compatible(a, b);
}

static trn_err merge(const trn_devname **out, placer *p, const trn_devname *a, const trn_devname *b, bool soft)
{
    if (!b || a == b)
        *out = a;
    else if (!a)
        *out = b;
    else {
        trn_devname d = *a;
        TRN_TRY(trn_devname_merge(&d, b, soft));
        *out = intern(p, &d);
    }
    return TRN_OK;
}

static const trn_devname * override(placer *p, const trn_devname *d, const trn_devname *over)
{
    if (!over || d == over)
        return d;
    trn_devname r = value(d);
    trn_devname_override(&r, over);
    return intern(p, &r);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

static int root_of(placer *p, int id)
{
    group *grp = p->grp;
    while (grp[id].parent != id)
        id = grp[id].parent = grp[grp[id].parent].parent;
    return id;
}

static trn_err join(placer *p, int x, int y)
{
    int rx = root_of(p, x), ry = root_of(p, y);
    if (rx == ry)
        return TRN_OK;
    group *into = &p->grp[rx], *from = &p->grp[ry];
    const trn_devname *fixed, *resource, *wanted;
    trn_err err = merge(&fixed, p, into->fixed, from->fixed, false);
    if (!err)
        err = merge(&resource, p, into->resource, from->resource, false);
    if (!err)
        err = merge(&wanted, p, into->wanted, from->wanted, p->opts.soft);
    if (err) {
        trn_err up = trn_errorf(TRN_INVALID_ARGUMENT,
                                "Cannot colocate nodes {{colocation_node %s}} and {{colocation_node %s}}: %s",
                                p->g->node[x]->n.name, p->g->node[y]->n.name, trn_err_msg(err));
        trn_err_free(err);
        return up;
    }
    if (into->rank < from->rank) {
        group *t = into;
        into = from;
        from = t;
        rx = ry;
    }
    into->rank += into->rank == from->rank;
    into->fixed = fixed;
    into->resource = resource;
    into->wanted = override(p, override(p, wanted, resource), fixed);
    into->late |= from->late;
    if (into->dev < 0)
        into->dev = from->dev;
    from->parent = rx;
    return TRN_OK;
}

static bool is_composite(const trn_devname *d) { return d && !strcmp(d->type, TRN_COMPOSITE); }

/* A member of a composite device is taken where the consumer's own device says which. */
static bool picks_member(const trn_devname *src, const trn_devname *dst)
{
    return is_composite(src) && dst && dst->type[0] && !is_composite(dst);
}

/* Both ends of a reference or resource edge. What the consumer's program text asked for gives way to where the resource is. */
static trn_err join_edge(placer *p, int src, int dst)
{
    int rs = root_of(p, src), rd = root_of(p, dst);
    if (rs == rd)
        return TRN_OK;
    const group *s = &p->grp[rs];
    group *d = &p->grp[rd];
    if (picks_member(s->fixed, d->fixed) || picks_member(s->wanted, d->wanted))
        return TRN_OK;
    const trn_node *sn = &p->g->node[src]->n, *dn = &p->g->node[dst]->n;
    for (int k = 0; k < 2; k++) {
        const trn_devname *a = k ? s->resource : s->fixed, *b = k ? d->resource : d->fixed;
        if (!compatible(a, b)) {
            char ta[TRN_DEVNAME_TEXT], tb[TRN_DEVNAME_TEXT];
            return trn_errorf(
                TRN_INVALID_ARGUMENT,
                "Cannot place the graph because a reference or resource edge connects colocation groups with "
                "incompatible %s devices: %s vs %s. The edge goes from '%s' (op %s) to '%s' (op %s).",
                k ? "resource" : "assigned", trn_devname_text(ta, a), trn_devname_text(tb, b), sn->name, sn->op,
                dn->name, dn->op);
        }
    }
    if (!compatible(s->wanted, d->wanted)) {
        if (p->opts.log) {
            char ta[TRN_DEVNAME_TEXT], tb[TRN_DEVNAME_TEXT];
            TRN_INFO("place", "%s: the requested device %s gives way to %s, where its input '%s' is", dn->name,
                     trn_devname_text(ta, d->wanted), trn_devname_text(tb, s->wanted), sn->name);
        }
        d->wanted = override(p, override(p, s->wanted, d->fixed), d->resource);
    }
    trn_err err = join(p, src, dst);
    if (!err)
        return TRN_OK;
    trn_err up = trn_errorf(
        TRN_INVALID_ARGUMENT,
        "'%s' takes a reference or resource from '%s' and must be on the same device, but they were assigned "
        "different ones: %s",
        dn->name, sn->name, trn_err_msg(err));
    trn_err_free(err);
    return up;
}

/* ---- what binds nodes ------------------------------------------------------------------------------------------- */

static bool ends_with_dataset(const char *op)
{
    const char *at = strstr(op, "Dataset"), *next;
    if (!at)
        return false;
    while ((next = strstr(at + 1, "Dataset")))
        at = next;
    at += strlen("Dataset");
    if (*at == 'V')
        for (at++; *at >= '0' && *at <= '9';)
            at++;
    return *at == 0;
}

/* Calls and control flow that lowering replaces by their bodies. */
static bool is_call(const trn_graph *g, const trn_gnode *nd)
{
    static const char *const ops[] = {"If",   "StatelessIf",   "While",           "StatelessWhile",
                                      "Case", "StatelessCase", "PartitionedCall", "StatefulPartitionedCall"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        if (!strcmp(nd->n.op, ops[i]))
            return true;
    return !nd->n.def && g->lib && trn_funclib_has(g->lib, nd->n.op);
}

/* These hand resources on to where they belong instead of using them. */
static bool forwards_resources(const trn_graph *g, const trn_gnode *nd)
{
    static const char *const ops[] = {"IdentityN",
                                      "MapDataset",
                                      "FlatMapDataset",
                                      "FilterDataset",
                                      "ReduceDataset",
                                      "GeneratorDataset",
                                      "InterleaveDataset",
                                      "ParallelMapDataset",
                                      "ParallelMapDatasetV2",
                                      "ParallelInterleaveDatasetV2",
                                      "ParallelInterleaveDatasetV3",
                                      "ParallelInterleaveDatasetV4",
                                      "MapAndBatchDataset",
                                      "TakeWhileDataset",
                                      "ScanDataset",
                                      "GroupByWindowDataset",
                                      "GroupByReducerDataset",
                                      "ParallelFilterDataset",
                                      "DeleteMultiDeviceIterator"};
    for (size_t i = 0; i < TRN_COUNTOF(ops); i++)
        if (!strcmp(nd->n.op, ops[i]))
            return true;
    return is_call(g, nd);
}

static bool same_device_edge(const trn_graph *g, const trn_gnode *src, const trn_gnode *dst, int i)
{
    if (!dst->n.in_types)
        return false;
    trn_dtype t = dst->n.in_types[i];
    if (t == TRN_VARIANT)
        return ends_with_dataset(src->n.op) && ends_with_dataset(dst->n.op);
    return (t == TRN_RESOURCE || trn_dtype_is_ref(t)) && !forwards_resources(g, dst);
}

static bool makes_resource(const trn_node *n)
{
    return n->n_in == 0 && n->n_out == 1 && n->out_types &&
           (n->out_types[0] == TRN_RESOURCE || trn_dtype_is_ref(n->out_types[0]));
}

static void fail(trn_gnode *node, TRN_OWN trn_err err)
{
    if (node->place_err || node->dev >= 0) { /* the first reason counts; what is placed stays */
        trn_err_free(err);
        return;
    }
    node->place_err = trn_errorf(trn_err_code(err), "%s\n\t [[{{node %s}}]]", trn_err_msg(err), node->n.name);
    trn_err_free(err);
}

static trn_err init_groups(placer *p)
{
    trn_graph *g = p->g;
    p->grp = trn_arena_alloc(p->a, sizeof *p->grp * (size_t)TRN_MAX(g->n, 1));
    for (int id = 0; id < g->n; id++) {
        trn_gnode *node = g->node[id];
        group *grp = &p->grp[id];
        grp->parent = id;
        grp->dev = -1;
        if (!node)
            continue;
        if (node->dev >= p->ds->n)
            return trn_errorf(TRN_INTERNAL, "node %s is placed on device %d of %d", node->n.name, node->dev, p->ds->n);
        if (node->dev >= 0) {
            grp->dev = node->dev;
            grp->fixed = grp->wanted = intern(p, &p->dev_name[node->dev]);
            continue;
        }
        const trn_devname *d;
        trn_err err = parse(&d, p, node->n.device);
        if (err) {
            fail(node, err);
            continue;
        }
        grp->wanted = d;
        if (makes_resource(&node->n))
            grp->resource = d;
    }
    return TRN_OK;
}

static void join_edges(placer *p)
{
    trn_graph *g = p->g;
    for (int id = 0; id < g->n; id++) {
        trn_gnode *dst = g->node[id];
        if (!dst || dst->place_err)
            continue;
        for (int i = 0; i < dst->n.n_in; i++) {
            if (dst->in[i].node < 0)
                continue;
            trn_gnode *src = g->node[dst->in[i].node];
            if (!same_device_edge(g, src, dst, i))
                continue;
            if (p->opts.unlowered && is_call(g, src)) {
                p->grp[root_of(p, id)].late = true;
                continue;
            }
            trn_err err = join_edge(p, src->id, id);
            if (err)
                fail(dst, err);
        }
    }
}

static void join_classes(placer *p)
{
    static const char prefix[] = "loc:@";
    trn_graph *g = p->g;
    trn_map *nameless =
        trn_map_new(); /* groups called after a node that is not here: their first member stands for it */
    for (int id = 0; id < g->n; id++) {
        trn_gnode *node = g->node[id];
        if (!node || node->place_err)
            continue;
        const trn_attr *cls = trn_node_attr(&node->n, "_class");
        if (!cls || !cls->is_list || cls->kind != TRN_ATTR_STRING)
            continue;
        for (int i = 0; i < cls->n; i++) {
            const char *s = cls->list[i].s.p;
            size_t n = cls->list[i].s.n;
            if (n <= strlen(prefix) || memcmp(s, prefix, strlen(prefix)) != 0)
                continue;
            s += strlen(prefix);
            n -= strlen(prefix);
            trn_gnode *to = trn_graph_find(g, s, n);
            if (!to)
                to = trn_map_get(nameless, s, n);
            if (!to) {
                trn_map_put(nameless, s, n, node);
                continue;
            }
            trn_err err = join(p, to->id, id);
            if (!err)
                continue;
            if (p->opts.soft) { /* a wish, then */
                if (p->opts.log)
                    TRN_INFO("place", "%s: not colocated with '%.*s': %s", node->n.name, (int)n, s, trn_err_msg(err));
                trn_err_free(err);
            } else {
                fail(node, err);
            }
        }
    }
    trn_map_free(nameless, NULL);
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static int by_preference(const void *a, const void *b, void *arg)
{
    const trn_devset *ds = arg;
    const trn_device *x = &ds->dev[*(const int *)a], *y = &ds->dev[*(const int *)b], *own = &ds->dev[ds->def];
    if (x == own || y == own)
        return (y == own) - (x == own);
    bool x_own = !strcmp(x->task, own->task), y_own = !strcmp(y->task, own->task);
    return x_own != y_own ? y_own - x_own : strcmp(x->name, y->name);
}

static trn_err init_devices(placer *p)
{
    const trn_devset *ds = p->ds;
    p->order = trn_arena_alloc(p->a, sizeof *p->order * (size_t)ds->n);
    p->dev_name = trn_arena_alloc(p->a, sizeof *p->dev_name * (size_t)ds->n);
    p->dev_text = trn_arena_alloc(p->a, sizeof *p->dev_text * (size_t)ds->n);
    for (int i = 0; i < ds->n; i++) {
        TRN_TRY(trn_devname_parse(&p->dev_name[i], ds->dev[i].name, strlen(ds->dev[i].name)));
        if (!strcmp(ds->dev[i].type, "CPU")) /* all that our ops run on */
            p->order[p->n_order++] = i;
    }
    qsort_r(p->order, (size_t)p->n_order, sizeof *p->order, by_preference, (void *)ds);
    return TRN_OK;
}

static const choice *choices_for(placer *p, const trn_devname *want)
{
    choice *c = trn_map_geti(p->choices, (uintptr_t)want);
    if (c)
        return c;
    c = trn_arena_alloc(p->a, sizeof *c);
    c->dev = trn_arena_alloc(p->a, sizeof *c->dev * (size_t)TRN_MAX(p->n_order, 1));
    for (int i = 0; i < p->n_order; i++)
        if (!want || trn_devname_match(want, &p->dev_name[p->order[i]]))
            c->dev[c->n++] = p->order[i];
    trn_map_puti(p->choices, (uintptr_t)want, c);
    return c;
}

/* Under soft placement a type or id that nobody has gives way, first where only users asked for it, then where a resource is made.
 * Job, replica and task never do. */
static const choice *soft_choices_for(placer *p, const group *grp)
{
    for (int k = 0; k < 2; k++) {
        trn_devname d = value(grp->wanted), fixed = value(grp->fixed),
                    resource = k ? trn_devname_any() : value(grp->resource);
        if (!fixed.type[0] && !resource.type[0])
            d.type[0] = 0;
        if (fixed.id < 0 && resource.id < 0)
            d.id = -1;
        const choice *c = choices_for(p, intern(p, &d));
        if (c->n)
            return c;
    }
    return choices_for(p, grp->wanted);
}

/* ---- saying why not --------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void add_devices(trn_sb *s, const trn_devset *ds)
{
    const char **name = trn_xalloc(sizeof *name * (size_t)ds->n);
    for (int i = 0; i < ds->n; i++)
        name[i] = ds->dev[i].name;
    qsort(name, (size_t)ds->n, sizeof *name, by_name);
    for (int i = 0; i < ds->n && i < ERR_DEVICES; i++)
        trn_sb_addf(s, "%s%s", i ? ", " : "", name[i]);
    if (ds->n > ERR_DEVICES)
        trn_sb_addf(s, " and %d more", ds->n - ERR_DEVICES);
    free(name);
}

static void add_members(trn_sb *s, placer *p, int root)
{
    const char *have = trn_map_geti(p->members, (uint64_t)root);
    if (have) {
        trn_sb_adds(s, have);
        return;
    }
    size_t start = s->n;
    int n = 0;
    for (int id = 0; id < p->g->n; id++) {
        const trn_gnode *m = p->g->node[id];
        if (!m || root_of(p, id) != root)
            continue;
        if (n++ < ERR_MEMBERS)
            trn_sb_addf(s, "\n  %s (%s) %s", m->n.name, m->n.op, m->n.device ? m->n.device : "");
    }
    if (n > ERR_MEMBERS)
        trn_sb_addf(s, "\n  and %d more", n - ERR_MEMBERS);
    trn_map_puti(p->members, (uint64_t)root, trn_arena_strdup(p->a, s->p + start));
}

static void fail_unplaceable(placer *p, trn_gnode *node, int root)
{
    const char *asked = node->n.device ? node->n.device : "";
    const trn_devname *want = p->grp[root].wanted, *own = NULL;
    trn_err ignored = parse(&own, p, asked);
    trn_err_free(ignored);
    trn_sb s = {0};
    trn_sb_addf(&s, "Cannot assign a device for operation %s: ", node->n.name);
    if (own == want) {
        bool exists = false;
        for (int i = 0; i < p->ds->n; i++)
            exists |= trn_devname_match(want, &p->dev_name[i]);
        if (exists) {
            trn_sb_addf(&s,
                        "Could not satisfy explicit device specification '%s' because no supported kernel for %s "
                        "devices is available.",
                        asked, want->type[0] ? want->type : "these");
        } else {
            trn_sb_addf(&s, "{{node %s}} was explicitly assigned to %s but available devices are [ ", node->n.name,
                        asked);
            add_devices(&s, p->ds);
            trn_sb_adds(&s, " ]. Make sure the device specification refers to a valid device.");
            if (!strcmp(want->type, "GPU"))
                trn_sb_adds(&s, " Trainera runs ops on CPUs: with allow_soft_placement they take the place of GPUs.");
        }
    } else {
        char text[TRN_DEVNAME_TEXT];
        trn_sb_addf(&s,
                    "Could not satisfy explicit device specification '%s' because the node {{colocation_node %s}} was "
                    "colocated with a "
                    "group of nodes that required incompatible device '%s'. All available devices [",
                    asked, node->n.name, trn_devname_text(text, want));
        add_devices(&s, p->ds);
        trn_sb_adds(&s, "]. The group:");
        add_members(&s, p, root);
    }
    fail(node, trn_errorf(TRN_INVALID_ARGUMENT, "%s", s.p));
    trn_sb_fini(&s);
}

/* ---- choosing --------------------------------------------------------------------------------------------------- */

static bool is_generator(const trn_node *n)
{
    return n->n_in == 0 && n->n_out == 1 && n->out_types && !trn_dtype_is_ref(n->out_types[0]);
}

static bool is_metadata(const trn_node *n)
{
    return n->n_in == 1 && (!strcmp(n->op, "Shape") || !strcmp(n->op, "Size") || !strcmp(n->op, "Rank"));
}

/* `hint`: a device that would save a transfer, or -1. */
static void assign(placer *p, trn_gnode *node, int hint)
{
    int root = root_of(p, node->id);
    group *grp = &p->grp[root];
    if (grp->late && !grp->fixed && !grp->resource)
        return;
    if (grp->dev < 0) {
        const choice *c = choices_for(p, grp->wanted);
        if (!c->n && p->opts.soft)
            c = soft_choices_for(p, grp);
        if (!c->n) {
            fail_unplaceable(p, node, root);
            return;
        }
        grp->dev = c->dev[0];
        for (int i = 0; i < c->n; i++)
            if (c->dev[i] == hint)
                grp->dev = hint;
        if (hint >= 0 && is_composite(&p->dev_name[hint]) && !grp->wanted)
            grp->dev = hint;
    }
    node->dev = grp->dev;
    if (!p->dev_text[node->dev])
        p->dev_text[node->dev] = trn_arena_strdup(p->g->arena, p->ds->dev[node->dev].name);
    if (!is_call(p->g, node)) /* its body must not be pinned to where the call itself would run */
        node->n.device = p->dev_text[node->dev];
    if (p->opts.log)
        TRN_INFO("place", "%s: (%s): %s", node->n.name, node->n.op, p->dev_text[node->dev]);
}

#define NO_USER (-2)
#define MANY_DEVICES (-1)

static void note_user(int *users, int src, int dev)
{
    users[src] = users[src] == NO_USER || users[src] == dev ? dev : MANY_DEVICES;
}

static void assign_all(placer *p)
{
    trn_graph *g = p->g;
    int *order = trn_arena_alloc(p->a, sizeof *order * (size_t)TRN_MAX(g->n, 1));
    int n = trn_graph_topo(g, order);
    for (int k = 0; k < n; k++) {
        trn_gnode *node = g->node[order[k]];
        if (node->dev < 0 && !node->place_err && !is_generator(&node->n))
            assign(p, node, is_metadata(&node->n) && node->in[0].node >= 0 ? g->node[node->in[0].node]->dev : -1);
    }
    int *users = trn_arena_alloc(p->a, sizeof *users * (size_t)TRN_MAX(g->n, 1));
    for (int id = 0; id < g->n; id++)
        users[id] = NO_USER;
    /* Backwards, so that a generator which only orders another one (a control edge) knows where that went. */
    for (int k = n - 1; k >= 0; k--) {
        trn_gnode *node = g->node[order[k]];
        if (node->dev < 0 && !node->place_err)
            assign(p, node, users[node->id]);
        for (int i = 0; i < node->n.n_in; i++)
            if (node->in[i].node >= 0)
                note_user(users, node->in[i].node, node->dev);
        for (int i = 0; i < node->n_ctl; i++)
            note_user(users, node->ctl[i], node->dev);
    }
}

trn_err trn_graph_place(trn_graph *g, const trn_devset *ds, const trn_place_opts *o)
{
    if (ds->n <= 0 || ds->def < 0 || ds->def >= ds->n)
        return trn_errorf(TRN_FAILED_PRECONDITION, "No devices are registered");
    placer p = {.g = g,
                .ds = ds,
                .opts = *o,
                .a = trn_arena_new(),
                .parsed = trn_map_new(),
                .interned = trn_map_new(),
                .choices = trn_map_new(),
                .members = trn_map_new()};
    trn_err err = init_devices(&p);
    if (!err)
        err = init_groups(&p);
    if (!err) {
        join_edges(&p);
        join_classes(&p);
        assign_all(&p);
    }
    trn_map_free(p.parsed, NULL);
    trn_map_free(p.interned, NULL);
    trn_map_free(p.choices, NULL);
    trn_map_free(p.members, NULL);
    trn_arena_free(p.a);
    return err;
}

trn_err trn_graph_place_errors(const trn_graph *g)
{
    for (int id = 0; id < g->n; id++)
        if (g->node[id] && g->node[id]->place_err)
            return trn_err_copy(g->node[id]->place_err);
    return TRN_OK;
}
