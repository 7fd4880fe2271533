/* GraphDef → arrays. Everything comes from a peer: nodes are staged in a store of their own, checked, and added only when all of them are good. */
#include "graph/graph_priv.h"

#include <limits.h>
#include <stdlib.h>

#define FREE_OUTPUTS (INT64_C(1) << 20) /* outputs of one import, beside 16 for each node */

/* ---- stage ---------------------------------------------------------------------------------------------------- */

void trn_stage__init(trn_stage *s, trn_graph *g, const trn_funclib *lib)
{
    *s = (trn_stage){.g = g, .store = trn_gstore__new(), .lib = lib, .by_name = trn_map_new(), .budget = FREE_OUTPUTS};
}

void trn_stage__fini(trn_stage *s)
{
    trn_gstore_unref(s->store);
    trn_map_free(s->by_name, NULL);
    free(s->node);
}

trn_gnode *trn_stage__at(const trn_stage *s, int id) { return id < s->g->n ? s->g->node[id] : s->node[id - s->g->n]; }

static bool name_char(unsigned char c, bool first)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.')
        return true;
    return !first && (c == '_' || c == '-' || c == '/');
}

/* TensorFlow's rule: pieces of [A-Za-z0-9.][A-Za-z0-9_./-]* joined by '>'; names that a runtime made start with '_'. */
static bool name_ok(const char *s)
{
    bool first = true;
    if (*s == '_') {
        first = false;
        s++;
    }
    if (first && !*s)
        return false;
    for (; *s; s++) {
        if (*s == '>' && !first)
            first = true;
        else if (name_char((unsigned char)*s, first))
            first = false;
        else
            return false;
    }
    return !first;
}

trn_err trn_stage__node(trn_gnode **out, trn_stage *s, const char *name, const char *op, const char *device,
                        trn_attr *attrs, int n_attrs, int n_data, int n_ctl)
{
    trn_arena *a = s->store->arena;
    size_t len = strlen(name);
    if (!name_ok(name))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%.1024s': Node name contains invalid characters", name);
    if (!op[0])
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' does not specify an operation", name);
    if (trn_map_get(s->g->by_name, name, len))
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Node '%s' is not unique: an earlier GraphDef of this session already has it", name);
    const trn_opdef *def = trn_op_find(op);
    trn_gnode *nd = trn_arena_alloc(a, sizeof *nd), *last = s->n ? s->node[s->n - 1] : NULL;
    nd->dev = -1;
    nd->n.name = trn_arena_strndup(a, name, len);
    nd->n.op = def ? def->row->name : last && strcmp(last->n.op, op) == 0 ? last->n.op : trn_arena_strdup(a, op);
    nd->n.device = !device[0]                                    ? ""
                   : last && strcmp(last->n.device, device) == 0 ? last->n.device
                                                                 : trn_arena_strdup(a, device);
    nd->n.attrs = attrs;
    nd->n.n_attrs = n_attrs;
    s->budget += 16;
    TRN_TRY(trn_gnode__resolve(nd, a, s->lib, n_data, &s->budget));
    nd->in = trn_arena_alloc(a, (size_t)TRN_MAX(nd->n.n_in, 1) * sizeof *nd->in);
    nd->ctl = trn_arena_alloc(a, (size_t)TRN_MAX(n_ctl, 1) * sizeof *nd->ctl);
    nd->cap_ctl = n_ctl;
    if (trn_map_put(s->by_name, name, len, nd))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' is not unique", name);
    nd->id = s->g->n + s->n;
    TRN_PUSH(s->node, s->n, s->cap, nd);
    *out = nd;
    return TRN_OK;
}

/* Kahn's order over the staged nodes; the others cannot depend on them. */
trn_err trn_stage__check_cycles(const trn_stage *s)
{
    size_t edges = 0;
    int base = s->g->n, n = s->n;
    for (int i = 0; i < n; i++)
        edges += (size_t)s->node[i]->n.n_in + (size_t)s->node[i]->n_ctl;
    if (edges > INT_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "the graph has %zu edges", edges);
    struct {
        int to, next;
    } *e = trn_xalloc(TRN_MAX(edges, 1) * sizeof *e);
    int *head = trn_xalloc((size_t)TRN_MAX(n, 1) * sizeof *head); /* edge + 1 */
    int *pending = trn_xalloc((size_t)TRN_MAX(n, 1) * sizeof *pending);
    int *order = trn_xalloc((size_t)TRN_MAX(n, 1) * sizeof *order);
    int ne = 0, done = 0;
    for (int i = 0; i < n; i++) {
        const trn_gnode *nd = s->node[i];
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            bool data = k < nd->n.n_in;
            int from = (data ? nd->in[k].node : nd->ctl[k - nd->n.n_in]) - base;
            if (from < 0 || (data && trn_gnode__is_back_edge(s->node[from], nd)))
                continue;
            e[ne].to = i;
            e[ne].next = head[from];
            head[from] = ++ne;
            pending[i]++;
        }
        if (!pending[i])
            order[done++] = i;
    }
    for (int at = 0; at < done; at++)
        for (int k = head[order[at]]; k; k = e[k - 1].next)
            if (--pending[e[k - 1].to] == 0)
                order[done++] = e[k - 1].to;
    trn_err err = TRN_OK;
    if (done < n) {
        int bad = 0;
        while (!pending[bad])
            bad++;
        err = trn_errorf(
            TRN_INVALID_ARGUMENT,
            "%d nodes in a cycle or behind one, '%s' (%s) among them; only NextIteration -> Merge may close a loop",
            n - done, s->node[bad]->n.name, s->node[bad]->n.op);
    }
    free(e);
    free(head);
    free(pending);
    free(order);
    return err;
}

void trn_stage__commit(trn_stage *s)
{
    trn_graph *g = s->g;
    if (g->n + s->n > g->cap) {
        g->cap = TRN_MAX(g->n + s->n, 2 * g->cap);
        g->node = trn_xrealloc(g->node, (size_t)g->cap * sizeof *g->node);
    }
    for (int i = 0; i < s->n; i++) {
        g->node[g->n++] = s->node[i];
        trn_map_puts(g->by_name, s->node[i]->n.name, s->node[i]);
    }
    trn_gstore__adopt(g->store, s->store);
    s->store = NULL;
}

/* ---- import --------------------------------------------------------------------------------------------------- */

static trn_err stage_node(trn_stage *s, const Tensorflow__NodeDef *pb)
{
    int n_data = 0;
    if (pb->n_input > INT_MAX / 2)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' has %zu inputs", pb->name, pb->n_input);
    for (size_t i = 0; i < pb->n_input; i++) {
        if (pb->input[i][0] == '^')
            continue;
        if ((size_t)n_data != i)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Node '%s': Control dependencies must come after regular dependencies", pb->name);
        n_data++;
    }
    trn_attr *attrs;
    int n_attrs;
    trn_gnode *nd;
    trn_err err = trn_attrs__from_pb(&attrs, &n_attrs, s->store->arena, pb->attr, pb->n_attr);
    if (err)
        return trn_err_wrap(err, "Node '%s' (%s)", pb->name, pb->op);
    return trn_stage__node(&nd, s, pb->name, pb->op, pb->device, attrs, n_attrs, n_data, (int)pb->n_input - n_data);
}

/* `seen` tells which node last had a control input from there: doubles fall out in linear time. */
static trn_err stage_inputs(trn_stage *s, trn_gnode *nd, const Tensorflow__NodeDef *pb, int *seen)
{
    for (size_t i = 0; i < pb->n_input; i++) {
        const char *name;
        size_t len;
        int slot;
        if (!trn_tensor_name__parse(pb->input[i], &name, &len, &slot))
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': input '%s' is not the name of a tensor", nd->n.name,
                              pb->input[i]);
        trn_gnode *from = trn_map_get(s->by_name, name, len);
        if (!from)
            from = trn_map_get(s->g->by_name, name, len);
        if (!from)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': Unknown input node '%.1024s'", nd->n.name,
                              pb->input[i]);
        if (slot >= 0) {
            TRN_TRY(trn_gnode__check_input(nd, (int)i, from, slot));
            nd->in[i] = (trn_edge){from->id, slot};
        } else if (seen[from->id] != nd->id + 1) {
            seen[from->id] = nd->id + 1;
            nd->ctl[nd->n_ctl++] = from->id;
        }
    }
    return TRN_OK;
}

static _Atomic uint64_t max_growth = UINT64_C(1) << 30;

uint64_t trn_graph__max_growth(void) { return atomic_load_explicit(&max_growth, memory_order_relaxed); }

void trn_graph_allow_growth(uint64_t bytes)
{
    uint64_t now = trn_graph__max_growth();
    while (bytes > now && !atomic_compare_exchange_weak(&max_growth, &now, bytes))
        ;
}

trn_err trn_nodes__growth(uint64_t *out, Tensorflow__NodeDef *const *node, size_t n)
{
    uint64_t most = trn_graph__max_growth(), left = most;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < node[i]->n_attr; k++) {
            const Tensorflow__NodeDef__AttrEntry *e = node[i]->attr[k];
            uint64_t need = e->value ? trn_attr_pb__growth(e->value) : 0;
            if (need > left)
                return trn_errorf(TRN_RESOURCE_EXHAUSTED,
                                  "Node '%s' (%s), attr '%s': the constants of this graph need more than %llu MiB "
                                  "beyond their values",
                                  node[i]->name, node[i]->op, e->key, (unsigned long long)(most >> 20));
            left -= need;
        }
    *out = most - left;
    return TRN_OK;
}

static trn_err stage_all(trn_stage *s, const Tensorflow__GraphDef *gd)
{
    for (size_t i = 0; i < gd->n_node; i++)
        TRN_TRY(stage_node(s, gd->node[i]));
    int *seen = trn_xalloc((size_t)(s->g->n + s->n + 1) * sizeof *seen);
    trn_err err = TRN_OK;
    for (size_t i = 0; i < gd->n_node && !err; i++)
        err = stage_inputs(s, s->node[i], gd->node[i], seen);
    free(seen);
    return err ? err : trn_stage__check_cycles(s);
}

trn_err trn_graph_import(trn_graph *g, const Tensorflow__GraphDef *gd)
{
    if (gd->n_node > (size_t)(INT_MAX / 2 - g->n))
        return trn_errorf(TRN_INVALID_ARGUMENT, "a graph of %zu nodes is too large", gd->n_node);
    uint64_t growth;
    TRN_TRY(trn_nodes__growth(&growth, gd->node, gd->n_node));

    /* Functions of the new part are seen by its nodes; the old library stays as it is for those who share it. */
    trn_funclib *lib = NULL;
    trn_err err = TRN_OK;
    if (gd->library && (gd->library->n_function || gd->library->n_gradient)) {
        lib = trn_funclib__copy(g->lib);
        for (size_t i = 0; i < gd->library->n_function && !err; i++)
            err = trn_funclib_add(lib, gd->library->function[i]);
        for (size_t i = 0; i < gd->library->n_gradient && !err; i++)
            err = trn_funclib__add_gradient(lib, gd->library->gradient[i]);
    }
    trn_stage s;
    trn_stage__init(&s, g, lib ? lib : g->lib);
    if (!err)
        err = stage_all(&s, gd);
    if (!err) {
        trn_stage__commit(&s);
        if (lib) {
            trn_funclib_unref(g->lib);
            g->lib = trn_funclib_ref(lib);
        }
        int producer = gd->versions ? gd->versions->producer : gd->version;
        bool first = g->producer == 0 && g->n == (int)gd->n_node;
        g->producer = first ? producer : TRN_MIN(g->producer, producer);
        if (gd->versions)
            g->min_consumer = TRN_MAX(g->min_consumer, gd->versions->min_consumer);
    }
    trn_stage__fini(&s);
    trn_funclib_unref(lib);
    return err;
}
