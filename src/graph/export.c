/* Arrays → GraphDef. The message lives in the caller's arena and points into the graph for names and tensor bytes. */
#include "graph/graph_priv.h"

/* A peer of TensorFlow 1 refuses a node without one of its attrs; later ones fill defaults in themselves, and sending none keeps attrs that they do not
   know yet away from them. So the defaults are spelled out only in a TensorFlow 1 client's graph, and only those that TensorFlow 1 had. */
#define TENSORFLOW_1 134 /* the GraphDef version of 1.15 */

static bool is_later(const char *op, const char *attr)
{
    static const char *const all[] = {"allow_missing_files", "allowed_devices", "debug_name", "exponential_avg_factor", "leakyrelu_alpha",
        "metadata", "multiply_linear_by_lr", "offset", "replicate_on_split", "resize_if_index_out_of_bounds", "sparse_gradient", "Tk", "Tsegmentids"};
    static const struct {
        const char *op, *attr;
    } some[] = {{"AssignVariableOp", "validate_shape"}, {"ConcatOffset", "shape_type"}, {"TopKV2", "index_type"},
        {"DepthwiseConv2dNative", "explicit_paddings"}, {"DepthwiseConv2dNativeBackpropFilter", "explicit_paddings"},
        {"DepthwiseConv2dNativeBackpropInput", "explicit_paddings"}, {"MaxPool", "explicit_paddings"}, {"MaxPoolGrad", "explicit_paddings"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(attr, all[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (strcmp(attr, some[i].attr) == 0 && strcmp(op, some[i].op) == 0)
            return true;
    return false;
}

static bool is_default(const trn_opdef *def, const trn_attr *attr)
{
    for (int i = 0; def && i < def->n_attrs; i++)
        if (strcmp(def->attrs[i].name, attr->name) == 0)
            return def->attrs[i].has_default && trn_attr__equal(attr, &def->attrs[i].def);
    return false;
}

Tensorflow__NodeDef *trn_gnode__to_pb(trn_arena *a, const trn_graph *g, const trn_gnode *nd)
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
    bool old = g->producer > 0 && g->producer <= TENSORFLOW_1;
    pb->attr = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_attrs, 1) * sizeof *pb->attr);
    for (int i = 0; i < nd->n.n_attrs; i++) {
        const trn_attr *attr = &nd->n.attrs[i];
        if (is_default(nd->n.def, attr) && (!old || is_later(nd->n.op, attr->name)))
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
            gd->node[gd->n_node++] = trn_gnode__to_pb(a, g, g->node[i]);
    gd->versions = trn_arena_alloc(a, sizeof *gd->versions);
    tensorflow__version_def__init(gd->versions);
    gd->versions->producer = g->producer;
    gd->versions->min_consumer = g->min_consumer;
    if (g->lib)
        trn_funclib_export(g->lib, a, gd);
    return gd;
}
