/* The arrays themselves: stores, look-up, building, copying, order. */
#include "graph/graph_priv.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- stores --------------------------------------------------------------------------------------------------- */

trn_gstore *trn_gstore__new(void)
{
    trn_gstore *s = trn_xalloc(sizeof *s);
    atomic_init(&s->ref, 1);
    s->arena = trn_arena_new();
    return s;
}

trn_gstore *trn_gstore_ref(trn_gstore *s)
{
    atomic_fetch_add_explicit(&s->ref, 1, memory_order_relaxed);
    return s;
}

void trn_gstore_unref(trn_gstore *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->ref, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < s->n_parents; i++)
        trn_gstore_unref(s->parents[i]);
    trn_arena_free(s->arena);
    free(s->parents);
    free(s);
}

size_t trn_gstore__bytes(const trn_gstore *s)
{
    size_t n = trn_arena_bytes(s->arena);
    for (int i = 0; i < s->n_parents; i++)
        n += trn_gstore__bytes(s->parents[i]);
    return n;
}

void trn_gstore__adopt(trn_gstore *s, TRN_OWN trn_gstore *parent)
{
    TRN_PUSH(s->parents, s->n_parents, s->cap_parents, parent);
}

/* ---- graphs --------------------------------------------------------------------------------------------------- */

trn_dtype trn_graph__untyped[TRN_UNKNOWN_OUTS];

trn_graph *trn_graph_new(trn_funclib *lib_or_null)
{
    trn_graph *g = trn_xalloc(sizeof *g);
    g->store = trn_gstore__new();
    g->arena = g->store->arena;
    g->by_name = trn_map_new();
    g->lib = lib_or_null ? trn_funclib_ref(lib_or_null) : NULL;
    return g;
}

void trn_graph_free(trn_graph *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && g->node[i]->place_err)
            trn_err_free(g->node[i]->place_err);
    trn_map_free(g->by_name, NULL);
    trn_funclib_unref(g->lib);
    free(g->node);
    trn_gstore_unref(g->store);
    free(g);
}

trn_gnode *trn_graph_find(const trn_graph *g, const char *name, size_t len)
{
    return trn_map_get(g->by_name, name, len);
}

bool trn_tensor_name__parse(const char *text, const char **name, size_t *len, int *slot)
{
    size_t n = strlen(text);
    if (text[0] == '^') {
        *name = text + 1;
        *len = n - 1;
        *slot = -1;
        return true;
    }
    *name = text;
    *len = n;
    *slot = 0;
    size_t digits = n;
    while (digits > 1 && text[digits - 1] >= '0' && text[digits - 1] <= '9')
        digits--;
    if (digits == n || digits < 2 || text[digits - 1] != ':')
        return true;
    int64_t v = 0;
    for (size_t i = digits; i < n; i++) {
        v = v * 10 + (text[i] - '0');
        if (v > INT_MAX)
            return false;
    }
    *len = digits - 1;
    *slot = (int)v;
    return true;
}

trn_err trn_graph_tensor(trn_edge *out, const trn_graph *g, const char *tensor_name)
{
    const char *name;
    size_t len;
    int slot;
    if (!tensor_name || !trn_tensor_name__parse(tensor_name, &name, &len, &slot))
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s' is not the name of a tensor", tensor_name ? tensor_name : "");
    const trn_gnode *nd = trn_graph_find(g, name, len);
    if (!nd)
        return trn_errorf(TRN_NOT_FOUND, "the graph has no node '%.*s' (asked for as '%s')",
                          (int)TRN_MIN(len, (size_t)1024), name, tensor_name);
    if (slot >= nd->n.n_out && (nd->n.out_types != trn_graph__untyped || slot >= TRN_UNKNOWN_OUTS))
        return trn_errorf(TRN_INVALID_ARGUMENT, "'%s': node '%s' (%s) has only %d outputs", tensor_name, nd->n.name,
                          nd->n.op, nd->n.n_out);
    *out = (trn_edge){nd->id, slot};
    return TRN_OK;
}

/* ---- types ---------------------------------------------------------------------------------------------------- */

trn_err trn_gnode__check_input(const trn_gnode *to, int i, trn_gnode *from, int slot)
{
    trn_node *f = &from->n;
    if (slot < 0 || slot >= f->n_out) {
        if (f->out_types != trn_graph__untyped || slot < 0 || slot >= TRN_UNKNOWN_OUTS)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Node '%s': Connecting to invalid output %d of source node %s which has %d outputs. "
                              "Try using tf.compat.v1.experimental.output_all_intermediates(True).",
                              to->n.name, slot, f->name, f->n_out);
        f->n_out = slot + 1;
    }
    trn_dtype want = to->n.in_types[i], have = f->out_types[slot];
    if (want == TRN_INVALID || have == TRN_INVALID || want == have || want == trn_dtype_base(have))
        return TRN_OK;
    return trn_errorf(TRN_INVALID_ARGUMENT,
                      "Input %d of node %s was passed %s from %s:%d incompatible with expected %s.", i, to->n.name,
                      trn_dtype_name(have), f->name, slot, trn_dtype_name(want));
}

/* How many values an argument stands for, before anything is allocated for them. */
static int64_t arg_count(const trn_opdef *def, const trn_argdef *arg, const trn_node *n)
{
    int at = arg->number_attr >= 0 ? arg->number_attr : arg->type_list_attr;
    if (at < 0)
        return 1;
    const trn_attr *attr = trn_node_attr(n, def->attrs[at].name);
    if (!attr && def->attrs[at].has_default)
        attr = &def->attrs[at].def;
    if (!attr)
        return 0;
    if (arg->number_attr >= 0)
        return attr->is_list || attr->kind != TRN_ATTR_INT ? 0 : attr->v.i;
    return attr->is_list ? attr->n : 0;
}

static trn_err check_counts(const trn_opdef *def, const trn_node *n, int n_data, int64_t *budget)
{
    int64_t in = 0, out = 0, max = n_data < 0 ? 65536 : n_data;
    for (int i = 0; i < def->n_in && in <= max; i++) {
        int64_t c = arg_count(def, &def->in[i], n);
        in = c < 0 || c > max - in ? max + 1 : in + c;
    }
    if (n_data < 0 ? in > max : in != n_data) /* the registry would allocate for as many as the attr says */
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' (%s) takes %s inputs than the %d it has", n->name, n->op,
                          in > max ? "more" : "fewer", (int)max);
    for (int i = 0; i < def->n_out; i++) {
        int64_t c = arg_count(def, &def->out[i], n);
        if (c > INT_MAX - out)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' (%s) has too many outputs", n->name, n->op);
        out += TRN_MAX(c, 0);
    }
    if (budget && (*budget -= out) < 0)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "Node '%s' (%s): the graph has more outputs than its size allows",
                          n->name, n->op);
    return TRN_OK;
}

trn_err trn_gnode__resolve(trn_gnode *nd, trn_arena *a, const trn_funclib *lib, int n_data, int64_t *budget)
{
    trn_node *n = &nd->n;
    const trn_opdef *def = trn_op_find(n->op);
    if (def && !(lib && trn_funclib_has(lib, n->op))) {
        TRN_TRY(check_counts(def, n, n_data, budget));
        trn_attr *attrs = n->attrs;
        int n_attrs = n->n_attrs;
        trn_err err = trn_node_resolve(n, a);
        if (!err && n_data >= 0 && n->n_in != n_data)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' (%s) takes %d inputs but has %d", n->name, n->op, n->n_in,
                             n_data);
        if (!err || trn_err_code(err) != TRN_UNIMPLEMENTED)
            return err;
        /* Known, but not with these types: as good as unknown until something needs it. */
        trn_err_free(err);
        n->attrs = attrs;
        n->n_attrs = n_attrs;
    } else if (lib && trn_funclib_has(lib, n->op)) {
        trn_func_ref f = {n->op, n->n_attrs, n->attrs};
        n->def = NULL;
        TRN_TRY(trn_funclib_signature(lib, a, &f, &n->n_in, &n->in_types, &n->n_out, &n->out_types));
        if (n_data >= 0 && n->n_in != n_data)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' (function %s) takes %d inputs but has %d", n->name,
                              n->op, n->n_in, n_data);
        if (budget && (*budget -= n->n_out) < 0)
            return trn_errorf(TRN_RESOURCE_EXHAUSTED,
                              "Node '%s' (function %s): the graph has more outputs than its size allows", n->name,
                              n->op);
        return TRN_OK;
    }
    n->def = NULL;
    n->n_in = TRN_MAX(n_data, 0);
    n->in_types = trn_arena_alloc(a, (size_t)TRN_MAX(n_data, 1) * sizeof *n->in_types);
    n->n_out = 0;
    n->out_types = trn_graph__untyped;
    return TRN_OK;
}

/* ---- building ------------------------------------------------------------------------------------------------- */

static void push_node(trn_graph *g, trn_gnode *nd)
{
    nd->id = g->n;
    TRN_PUSH(g->node, g->n, g->cap, nd);
    trn_map_puts(g->by_name, nd->n.name, nd);
}

trn_err trn_graph_add(trn_gnode **out, trn_graph *g, const char *op, const char *name, const char *device,
                      const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    if (!name[0] || trn_map_gets(g->by_name, name))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' is not unique", name);
    trn_arena *a = g->arena;
    trn_gnode *nd = trn_arena_alloc(a, sizeof *nd);
    const trn_opdef *def = trn_op_find(op);
    nd->dev = -1;
    nd->n.name = trn_arena_strdup(a, name);
    nd->n.op = def ? def->row->name : trn_arena_strdup(a, op);
    nd->n.device = device && device[0] ? trn_arena_strdup(a, device) : "";
    nd->n.n_attrs = n_attrs;
    nd->n.attrs = trn_arena_alloc(a, (size_t)TRN_MAX(n_attrs, 1) * sizeof *attrs);
    for (int i = 0; i < n_attrs; i++)
        trn_attr__copy(&nd->n.attrs[i], a, &attrs[i]);
    TRN_TRY(trn_gnode__resolve(nd, a, g->lib, n_in, NULL));
    nd->in = trn_arena_alloc(a, (size_t)TRN_MAX(n_in, 1) * sizeof *nd->in);
    for (int i = 0; i < n_in; i++) {
        if (in[i].node >= g->n || (in[i].node >= 0 && !g->node[in[i].node]))
            return trn_errorf(TRN_INTERNAL, "Node '%s': input %d comes from node %d, which is not there", name, i,
                              in[i].node);
        if (in[i].node >= 0)
            TRN_TRY(trn_gnode__check_input(nd, i, g->node[in[i].node], in[i].slot));
        nd->in[i] = in[i];
    }
    push_node(g, nd);
    if (out)
        *out = nd;
    return TRN_OK;
}

const char *trn_graph_unique_name(trn_graph *g, const char *base)
{
    if (!trn_map_gets(g->by_name, base))
        return trn_arena_strdup(g->arena, base);
    char num[24];
    size_t n = strlen(base);
    char *name = trn_xalloc(n + sizeof num + 1);
    memcpy(name, base, n);
    /* A counter for the whole graph: trying from 1 again for each new node would be quadratic. */
    do {
        int k = snprintf(num, sizeof num, "_%d", ++g->uniq);
        memcpy(name + n, num, (size_t)k + 1);
    } while (trn_map_gets(g->by_name, name));
    char *res = trn_arena_strdup(g->arena, name);
    free(name);
    return res;
}

void trn_graph_add_ctl(trn_graph *g, trn_gnode *to, int from)
{
    for (int i = 0; i < to->n_ctl; i++)
        if (to->ctl[i] == from)
            return;
    if (to->n_ctl == to->cap_ctl) {
        int cap = TRN_MAX(2 * to->cap_ctl, 4);
        int *v = trn_arena_alloc(g->arena, (size_t)cap * sizeof *v);
        if (to->n_ctl)
            memcpy(v, to->ctl, (size_t)to->n_ctl * sizeof *v);
        to->ctl = v;
        to->cap_ctl = cap;
    }
    to->ctl[to->n_ctl++] = from;
}

void trn_gnode__set_ctl(trn_graph *g, trn_gnode *nd, const int *ids, int n, trn_ctlset *s)
{
    int *v = n > nd->cap_ctl ? trn_arena_alloc(g->arena, (size_t)n * sizeof *v) : nd->ctl, m = 0;
    s->stamp++;
    for (int i = 0; i < n; i++) {
        int id = ids[i];
        if (id < 0)
            continue;
        if (id >= s->cap) {
            int cap = TRN_MAX(id + 64, 2 * s->cap);
            s->seen = trn_xrealloc(s->seen, (size_t)cap * sizeof *s->seen);
            memset(s->seen + s->cap, 0, (size_t)(cap - s->cap) * sizeof *s->seen);
            s->cap = cap;
        }
        if (s->seen[id] == s->stamp)
            continue;
        s->seen[id] = s->stamp;
        v[m++] = id;
    }
    nd->cap_ctl = TRN_MAX(nd->cap_ctl, n);
    nd->ctl = v;
    nd->n_ctl = m;
}

void trn_graph_remove(trn_graph *g, int id)
{
    trn_gnode *nd = g->node[id];
    if (!nd)
        return;
    trn_map_dels(g->by_name, nd->n.name);
    if (nd->place_err)
        trn_err_free(nd->place_err);
    nd->place_err = NULL;
    g->node[id] = NULL;
}

void trn_graph_compact(trn_graph *g)
{
    int *to = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *to);
    int n = 0;
    for (int i = 0; i < g->n; i++)
        to[i] = g->node[i] ? n++ : -1;
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        nd->id = to[i];
        for (int k = 0; k < nd->n.n_in; k++)
            if (nd->in[k].node >= 0)
                nd->in[k].node = to[nd->in[k].node];
        int c = 0;
        for (int k = 0; k < nd->n_ctl; k++)
            if (to[nd->ctl[k]] >= 0)
                nd->ctl[c++] = to[nd->ctl[k]];
        nd->n_ctl = c;
        g->node[to[i]] = nd;
    }
    g->n = n;
    free(to);
}

trn_graph *trn_graph_copy(const trn_graph *g, const bool *keep)
{
    trn_graph *c = trn_graph_new(g->lib);
    trn_gstore__adopt(c->store, trn_gstore_ref(g->store));
    c->producer = g->producer;
    c->min_consumer = g->min_consumer;
    c->uniq = g->uniq;

    int *to = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *to);
    size_t n = 0, n_in = 0, n_ctl = 0, n_attrs = 0;
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        to[i] = -1;
        if (!nd || (keep && !keep[i]))
            continue;
        to[i] = (int)n++;
        n_in += (size_t)nd->n.n_in;
        n_ctl += (size_t)nd->n_ctl;
        n_attrs += (size_t)nd->n.n_attrs;
    }
    trn_gnode *nodes = trn_arena_alloc(c->arena, TRN_MAX(n, 1) * sizeof *nodes);
    trn_edge *edges = trn_arena_alloc(c->arena, TRN_MAX(n_in, 1) * sizeof *edges);
    int *ctls = trn_arena_alloc(c->arena, TRN_MAX(n_ctl, 1) * sizeof *ctls);
    trn_attr *attrs = trn_arena_alloc(c->arena, TRN_MAX(n_attrs, 1) * sizeof *attrs);
    c->cap = (int)TRN_MAX(n, 8);
    c->node = trn_xrealloc(NULL, (size_t)c->cap * sizeof *c->node);
    for (int i = 0; i < g->n; i++) {
        if (to[i] < 0)
            continue;
        const trn_gnode *s = g->node[i];
        trn_gnode *d = nodes++;
        *d = *s;
        d->place_err = s->place_err ? trn_err_copy(s->place_err) : TRN_OK;
        d->in = edges;
        for (int k = 0; k < s->n.n_in; k++) {
            int from = s->in[k].node;
            *edges++ = (trn_edge){from >= 0 ? to[from] : -1, s->in[k].slot};
        }
        d->ctl = ctls;
        d->n_ctl = 0;
        for (int k = 0; k < s->n_ctl; k++)
            if (to[s->ctl[k]] >= 0)
                d->ctl[d->n_ctl++] = to[s->ctl[k]];
        d->cap_ctl = d->n_ctl;
        ctls += d->n_ctl;
        /* The array is the copy's own, so that it may change an attr; what it points to is shared. */
        d->n.attrs = attrs;
        if (s->n.n_attrs)
            memcpy(attrs, s->n.attrs, (size_t)s->n.n_attrs * sizeof *attrs);
        attrs += s->n.n_attrs;
        push_node(c, d);
    }
    free(to);
    return c;
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

void trn_gusers__init(trn_gusers *u, const trn_graph *g)
{
    size_t total = 0;
    u->first = trn_xalloc((size_t)(g->n + 2) * sizeof *u->first);
    int *at = u->first + 1; /* at[i] becomes the end of i's range while filling: first[i + 1] */
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        for (int k = 0; k < nd->n.n_in; k++)
            if (nd->in[k].node >= 0)
                at[nd->in[k].node]++, total++;
        for (int k = 0; k < nd->n_ctl; k++)
            at[nd->ctl[k]]++, total++;
    }
    u->use = trn_xalloc(TRN_MAX(total, 1) * sizeof *u->use);
    int sum = 0;
    for (int i = 0; i < g->n; i++) {
        int c = at[i];
        at[i] = sum;
        sum += c;
    }
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        for (int k = 0; k < nd->n.n_in; k++)
            if (nd->in[k].node >= 0)
                u->use[at[nd->in[k].node]++] = (trn_guse){i, k};
        for (int k = 0; k < nd->n_ctl; k++)
            u->use[at[nd->ctl[k]]++] = (trn_guse){i, -1};
    }
}

void trn_gusers__fini(trn_gusers *u)
{
    free(u->first);
    free(u->use);
}

int trn_graph_topo(const trn_graph *g, int *order)
{
    trn_gusers u;
    trn_gusers__init(&u, g);
    int *pending = trn_xalloc((size_t)TRN_MAX(g->n, 1) * sizeof *pending);
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd)
            continue;
        for (int k = 0; k < nd->n.n_in; k++)
            pending[i] += nd->in[k].node >= 0 && !trn_gnode__is_back_edge(g->node[nd->in[k].node], nd);
        pending[i] += nd->n_ctl;
        if (pending[i] == 0)
            order[n++] = i;
    }
    for (int at = 0; at < n; at++) {
        const trn_gnode *nd = g->node[order[at]];
        for (int k = u.first[order[at]]; k < u.first[order[at] + 1]; k++) {
            const trn_guse *use = &u.use[k];
            if (use->input >= 0 && trn_gnode__is_back_edge(nd, g->node[use->to]))
                continue;
            if (--pending[use->to] == 0)
                order[n++] = use->to;
        }
    }
    free(pending);
    trn_gusers__fini(&u);
    return n;
}

/* ---- attrs of a node ------------------------------------------------------------------------------------------ */

void trn_gnode__set_attr(trn_gnode *nd, trn_arena *a, const trn_attr *attr)
{
    for (int i = 0; i < nd->n.n_attrs; i++)
        if (strcmp(nd->n.attrs[i].name, attr->name) == 0) {
            trn_attr__copy(&nd->n.attrs[i], a, attr);
            return;
        }
    trn_attr *v = trn_arena_alloc(a, (size_t)(nd->n.n_attrs + 1) * sizeof *v);
    if (nd->n.n_attrs)
        memcpy(v, nd->n.attrs, (size_t)nd->n.n_attrs * sizeof *v);
    trn_attr__copy(&v[nd->n.n_attrs], a, attr);
    nd->n.attrs = v;
    nd->n.n_attrs++;
}

void trn_gnode__del_attr(trn_gnode *nd, const char *name)
{
    for (int i = 0; i < nd->n.n_attrs; i++)
        if (strcmp(nd->n.attrs[i].name, name) == 0) {
            memmove(&nd->n.attrs[i], &nd->n.attrs[i + 1], (size_t)(nd->n.n_attrs - i - 1) * sizeof *nd->n.attrs);
            nd->n.n_attrs--;
            return;
        }
}
