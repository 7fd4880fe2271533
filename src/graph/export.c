/* Arrays → GraphDef. The message lives in the caller's arena and points into the graph for names and tensor bytes. */
#include "graph/graph_priv.h"

static bool is_default(const trn_opdef *def, const trn_attr *attr)
{
    for (int i = 0; def && i < def->n_attrs; i++)
        if (strcmp(def->attrs[i].name, attr->name) == 0)
            return def->attrs[i].has_default && trn_attr__equal(attr, &def->attrs[i].def);
    return false;
}

static Tensorflow__NodeDef *node_to_pb(trn_arena *a, const trn_graph *g, const trn_gnode *nd)
{
    Tensorflow__NodeDef *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__node_def__init(pb);
    pb->name = (char *)(uintptr_t)nd->n.name;
    pb->op = (char *)(uintptr_t)nd->n.op;
    pb->device = (char *)(uintptr_t)nd->n.device;
    pb->input = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_in + nd->n_ctl, 1) * sizeof *pb->input);
    for (int i = 0; i < nd->n.n_in; i++) {
        const char *from = g->node[nd->in[i].node]->n.name;
        int slot = nd->in[i].slot;
        pb->input[pb->n_input++] = slot ? trn_arena_printf(a, "%s:%d", from, slot) : (char *)(uintptr_t)from;
    }
    for (int i = 0; i < nd->n_ctl; i++) {
        const char *from = g->node[nd->ctl[i]]->n.name;
        size_t n = strlen(from);
        char *s = trn_arena_alloc(a, n + 2);
        s[0] = '^';
        memcpy(s + 1, from, n);
        pb->input[pb->n_input++] = s;
    }
    pb->attr = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_attrs, 1) * sizeof *pb->attr);
    for (int i = 0; i < nd->n.n_attrs; i++) {
        const trn_attr *attr = &nd->n.attrs[i];
        if (is_default(nd->n.def, attr))
            continue;
        Tensorflow__NodeDef__AttrEntry *e = trn_arena_alloc(a, sizeof *e);
        tensorflow__node_def__attr_entry__init(e);
        e->key = (char *)(uintptr_t)attr->name;
        e->value = trn_attr_to_pb(a, attr);
        pb->attr[pb->n_attr++] = e;
    }
    return pb;
}

Tensorflow__GraphDef *trn_graph_export(trn_arena *a, const trn_graph *g)
{
    Tensorflow__GraphDef *gd = trn_arena_alloc(a, sizeof *gd);
    tensorflow__graph_def__init(gd);
    gd->node = trn_arena_alloc(a, (size_t)TRN_MAX(g->n, 1) * sizeof *gd->node);
    for (int i = 0; i < g->n; i++)
        if (g->node[i])
            gd->node[gd->n_node++] = node_to_pb(a, g, g->node[i]);
    gd->versions = trn_arena_alloc(a, sizeof *gd->versions);
    tensorflow__version_def__init(gd->versions);
    gd->versions->producer = g->producer;
    gd->versions->min_consumer = g->min_consumer;
    if (g->lib)
        trn_funclib_export(g->lib, a, gd);
    return gd;
}
