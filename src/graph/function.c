/* Functions out of a builder's nodes, and back: function.h. */
#include "graph/function.h"

#include <stdlib.h>

#include "graph/graph_priv.h"

static void push_out(trn_arena *a, trn_out **v, int *n, int *cap, trn_out o)
{
    if (*n == *cap) {
        int more = TRN_MAX(8, 2 * *cap);
        trn_out *w = trn_arena_alloc(a, (size_t)more * sizeof *w);
        if (*n)
            memcpy(w, *v, (size_t)*n * sizeof *w);
        *v = w;
        *cap = more;
    }
    (*v)[(*n)++] = o;
}

static void push_int(trn_arena *a, int **v, int *n, int *cap, int x)
{
    if (*n == *cap) {
        int more = TRN_MAX(16, 2 * *cap);
        int *w = trn_arena_alloc(a, (size_t)more * sizeof *w);
        if (*n)
            memcpy(w, *v, (size_t)*n * sizeof *w);
        *v = w;
        *cap = more;
    }
    (*v)[(*n)++] = x;
}

void trn_fn__add_arg(trn_fn *f, trn_out o)
{
    push_out(f->tmp, &f->args, &f->n_args, &f->cap_args, o);
    f->n_own = f->n_args;
}

void trn_fn__add_ret(trn_fn *f, trn_out o) { push_out(f->tmp, &f->rets, &f->n_rets, &f->cap_rets, o); }

trn_attr trn_attr__types(trn_arena *a, const char *name, const trn_dtype *t, int n)
{
    trn_attr_val *v = trn_arena_alloc(a, (size_t)TRN_MAX(n, 1) * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i].type = trn_dtype_base(t[i]);
    return (trn_attr){.name = name, .kind = TRN_ATTR_TYPE, .is_list = true, .n = n, .list = v};
}

trn_out trn_fn__placeholder(trn_builder *b, trn_dtype t, const trn_shape *s)
{
    static const trn_shape unknown = {.rank = -1};
    trn_attr a[] = {trn_attr__type("dtype", trn_dtype_base(t)), {.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = s ? s : &unknown}};
    if (!trn_builder_ok(b))
        return TRN_NONE;
    return trn_builder__add_at(b, "fn/arg", "", "Placeholder", NULL, 0, a, 2);
}

/* ---- out ------------------------------------------------------------------------------------------------------------ */

/* Has state, yet nothing is lost when nobody asks for it. */
static bool only_reads(const char *op)
{
    static const char *const quiet[] = {"VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableV2", "Variable", "VarIsInitializedOp", "TemporaryVariable",
                                        "TensorArrayV3", "TensorArrayReadV3", "TensorArrayGatherV3", "TensorArraySizeV3", "TensorArrayGradV3", "Placeholder", "_Arg",
                                        "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "Multinomial", "RandomShuffle", "RandomGamma"};
    for (size_t i = 0; i < TRN_COUNTOF(quiet); i++)
        if (strcmp(op, quiet[i]) == 0)
            return true;
    return false;
}

static bool has_state(const trn_builder *b, const trn_gnode *nd)
{
    if (nd->n.def)
        return nd->n.def->row->flags & (TRN_OP_STATEFUL | TRN_OP_BACK);
    const Tensorflow__FunctionDef *fd = b->g->lib ? trn_funclib__find(b->g->lib, nd->n.op) : NULL;
    return !fd || fd->signature->is_stateful;
}

bool trn_fn__has_effect(const trn_builder *b, const trn_gnode *nd) { return has_state(b, nd) && !only_reads(nd->n.op); }

void trn_fn__add_root(trn_fn *f, trn_arena *tmp, int node) { push_int(tmp, &f->roots, &f->n_roots, &f->cap_roots, node); }

void trn_fn__add_effects(trn_fn *f, trn_builder *b, int first)
{
    for (int i = first; i < b->g->n; i++)
        if (trn_fn__has_effect(b, b->g->node[i]))
            trn_fn__add_root(f, f->tmp, i);
}

static bool is_arg(const trn_fn *f, trn_edge e)
{
    for (int i = 0; i < f->n_args; i++)
        if (f->args[i].node == e.node && f->args[i].slot == e.slot)
            return true;
    return false;
}

static bool is_small_const(const trn_gnode *nd, size_t max)
{
    const trn_tensor *t = trn_gnode__is(nd, "Const") ? trn_attr_tensor(&nd->n, "value") : NULL;
    return t && trn_tensor_bytes(t) <= max;
}

typedef struct hunt {
    trn_fn *f;
    trn_builder *b;
    bool (*inside)(void *arg, int node);
    void *arg;
    size_t max_const;
    uint8_t *seen; /* by node id */
    int *stack, n_stack, cap_stack;
} hunt;

static void visit(hunt *h, int id)
{
    if (!h->seen[id]) {
        h->seen[id] = 1;
        push_int(h->f->tmp, &h->stack, &h->n_stack, &h->cap_stack, id);
    }
}

/* An edge into the body: from a node that is part of it, or an argument more. */
static void follow(hunt *h, trn_edge e)
{
    if (is_arg(h->f, e))
        return;
    if (h->inside(h->arg, e.node) || is_small_const(h->b->g->node[e.node], h->max_const))
        visit(h, e.node);
    else
        push_out(h->f->tmp, &h->f->args, &h->f->n_args, &h->f->cap_args, (trn_out){e.node, e.slot});
}

static int by_id(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void drain(hunt *h)
{
    trn_fn *f = h->f;
    while (h->n_stack) {
        int id = h->stack[--h->n_stack];
        const trn_gnode *nd = h->b->g->node[id];
        push_int(f->tmp, &f->nodes, &f->n_nodes, &f->cap_nodes, id);
        f->stateful |= has_state(h->b, nd);
        for (int i = 0; i < nd->n.n_in; i++)
            follow(h, nd->in[i]);
        for (int i = 0; i < nd->n_ctl; i++)
            if (h->inside(h->arg, nd->ctl[i]) && !trn_gnode__is(h->b->g->node[nd->ctl[i]], "Placeholder"))
                visit(h, nd->ctl[i]);
    }
}

/* A root on a side of a Switch that was not taken would take the whole call with it, in TensorFlow. What results need runs without being one. */
static void needed_anyway(hunt *h)
{
    trn_fn *f = h->f;
    bool decides = false;
    for (int i = 0; i < f->n_nodes && !decides; i++)
        decides = trn_gnode__is(h->b->g->node[f->nodes[i]], "Switch") || trn_gnode__is(h->b->g->node[f->nodes[i]], "RefSwitch");
    if (!decides)
        return;
    int *roots = trn_arena_alloc(f->tmp, ((size_t)f->n_roots + 1) * sizeof *roots), n = 0;
    for (int i = 0; i < f->n_roots; i++)
        if (!h->seen[f->roots[i]])
            roots[n++] = f->roots[i];
    f->roots = roots;
    f->cap_roots = f->n_roots + 1;
    f->n_roots = n;
}

void trn_fn__collect(trn_fn *f, trn_builder *b, bool (*inside)(void *arg, int node), void *arg, size_t max_const)
{
    if (!trn_builder_ok(b))
        return;
    hunt h = {f, b, inside, arg, max_const, trn_arena_alloc(f->tmp, (size_t)b->g->n + 1)};
    f->n_nodes = 0;
    f->stateful = false;
    for (int i = 0; i < f->n_rets; i++) {
        if (!trn_builder__node(b, f->rets[i]) || f->rets[i].slot < 0) {
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "result %d of a function body is no tensor", i));
            return;
        }
        follow(&h, (trn_edge){f->rets[i].node, f->rets[i].slot});
    }
    drain(&h);
    needed_anyway(&h);
    for (int i = 0; i < f->n_roots; i++)
        visit(&h, f->roots[i]);
    drain(&h);
    /* In the order in which they were made: a body reads like the program that built it. */
    if (f->n_nodes)
        qsort(f->nodes, (size_t)f->n_nodes, sizeof *f->nodes, by_id);
}

typedef struct def {
    trn_fn *f;
    trn_builder *b;
    trn_arena *a;
    uint8_t *in; /* by node id */
} def;

/* "node:out:0" of an edge, or the argument's name. */
static char *spelled(def *d, trn_edge e)
{
    for (int i = 0; i < d->f->n_args; i++)
        if (d->f->args[i].node == e.node && d->f->args[i].slot == e.slot)
            return trn_arena_printf(d->a, "fnarg_%d", i);
    return trn_graph__spell(d->a, d->b->g, e);
}

static bool part_of(def *d, int id) { return d->in[id]; }

static Tensorflow__NodeDef *body_node(def *d, const trn_gnode *nd)
{
    Tensorflow__NodeDef *pb = trn_gnode__to_pb(d->a, d->b->g, nd);
    pb->n_input = 0;
    for (int i = 0; i < nd->n.n_in; i++) {
        char *s = spelled(d, nd->in[i]);
        if (!s) {
            trn_builder_fail(d->b, trn_errorf(TRN_INTERNAL, "input %d of '%s' has no name in a function", i, nd->n.name));
            return pb;
        }
        pb->input[pb->n_input++] = s;
    }
    for (int i = 0; i < nd->n_ctl; i++)
        if (part_of(d, nd->ctl[i]))
            pb->input[pb->n_input++] = trn_arena_printf(d->a, "^%s", d->b->g->node[nd->ctl[i]]->n.name);
    /* Beside what is not in the body nothing can be put. */
    size_t n = 0;
    for (size_t i = 0; i < pb->n_attr; i++) {
        Tensorflow__AttrValue *v = pb->attr[i]->value;
        bool keep = true;
        if (strcmp(pb->attr[i]->key, "_class") == 0 && v->value_case == TENSORFLOW__ATTR_VALUE__VALUE_LIST && v->list)
            for (size_t k = 0; k < v->list->n_s; k++) {
                ProtobufCBinaryData s = v->list->s[k];
                const trn_gnode *with = s.len > 5 ? trn_graph_find(d->b->g, (const char *)s.data + 5, s.len - 5) : NULL;
                keep &= with && part_of(d, with->id);
            }
        if (keep)
            pb->attr[n++] = pb->attr[i];
    }
    pb->n_attr = n;
    return pb;
}

static Tensorflow__OpDef__ArgDef *arg_def(trn_arena *a, const char *name, trn_dtype t)
{
    Tensorflow__OpDef__ArgDef *d = trn_arena_alloc(a, sizeof *d);
    tensorflow__op_def__arg_def__init(d);
    d->name = (char *)(uintptr_t)name;
    d->type = (Tensorflow__DataType)t;
    return d;
}

/* Letters, digits and _ only. */
static const char *function_name(trn_builder *b, trn_arena *a, const char *base)
{
    char *s = trn_arena_strdup(a, base);
    for (char *p = s; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9')))
            *p = '_';
    const char *name = s;
    for (int i = 1; (b->g->lib && trn_funclib_has(b->g->lib, name)) || trn_op_find(name); i++)
        name = trn_arena_printf(a, "%s_%d", s, i);
    return name;
}

void trn_fn__define(trn_fn *f, trn_builder *b, const char *base)
{
    if (!trn_builder_ok(b))
        return;
    trn_arena *a = f->tmp;
    def d = {f, b, a, trn_arena_alloc(a, (size_t)b->g->n + 1)};
    for (int i = 0; i < f->n_nodes; i++)
        d.in[f->nodes[i]] = 1;
    Tensorflow__FunctionDef *fd = trn_arena_alloc(a, sizeof *fd);
    Tensorflow__OpDef *sig = trn_arena_alloc(a, sizeof *sig);
    tensorflow__function_def__init(fd);
    tensorflow__op_def__init(sig);
    fd->signature = sig;
    sig->name = (char *)(uintptr_t)function_name(b, a, base);
    sig->is_stateful = f->stateful;
    sig->input_arg = trn_arena_alloc(a, ((size_t)f->n_args + 1) * sizeof *sig->input_arg);
    sig->output_arg = trn_arena_alloc(a, ((size_t)f->n_rets + 1) * sizeof *sig->output_arg);
    fd->ret = trn_arena_alloc(a, ((size_t)f->n_rets + 1) * sizeof *fd->ret);
    fd->node_def = trn_arena_alloc(a, ((size_t)f->n_nodes + 1) * sizeof *fd->node_def);
    fd->control_ret = trn_arena_alloc(a, ((size_t)f->n_roots + 1) * sizeof *fd->control_ret);
    sig->control_output = trn_arena_alloc(a, ((size_t)f->n_roots + 1) * sizeof *sig->control_output);
    for (int i = 0; i < f->n_args; i++)
        sig->input_arg[sig->n_input_arg++] = arg_def(a, trn_arena_printf(a, "fnarg_%d", i), trn_out_dtype(b, f->args[i]));
    for (int i = 0; i < f->n_nodes && trn_builder_ok(b); i++)
        fd->node_def[fd->n_node_def++] = body_node(&d, b->g->node[f->nodes[i]]);
    for (int i = 0; i < f->n_rets; i++) {
        Tensorflow__FunctionDef__RetEntry *r = trn_arena_alloc(a, sizeof *r);
        tensorflow__function_def__ret_entry__init(r);
        r->key = trn_arena_printf(a, "fnret_%d", i);
        r->value = spelled(&d, (trn_edge){f->rets[i].node, f->rets[i].slot});
        sig->output_arg[sig->n_output_arg++] = arg_def(a, r->key, trn_out_dtype(b, f->rets[i]));
        fd->ret[fd->n_ret++] = r;
    }
    for (int i = 0; i < f->n_roots; i++) {
        Tensorflow__FunctionDef__ControlRetEntry *r = trn_arena_alloc(a, sizeof *r);
        tensorflow__function_def__control_ret_entry__init(r);
        r->key = r->value = (char *)(uintptr_t)b->g->node[f->roots[i]]->n.name;
        sig->control_output[sig->n_control_output++] = r->key;
        fd->control_ret[fd->n_control_ret++] = r;
    }
    trn_builder__add_functions(b, &fd, 1);
    f->name = trn_arena_strdup(b->arena, sig->name);
}

void trn_builder__drop(trn_builder *b, int first)
{
    for (int i = first; i < b->g->n; i++) {
        trn_graph_remove(b->g, i);
        if (i < b->cap_shape)
            b->shape[i] = NULL;
    }
    b->g->n = TRN_MIN(b->g->n, first);
    for (int i = 0; i < b->n_coll; i++) { /* what a body left in a collection means nothing outside of it */
        trn_collected *k = &b->coll[i];
        int n = 0;
        for (int j = 0; j < k->n; j++)
            if (k->at[j].node < first)
                k->at[n++] = k->at[j];
        k->n = n;
    }
}

static bool from_first(void *arg, int node) { return node >= *(const int *)arg; }

void trn_fn__lift(trn_fn *f, trn_builder *b, int first, const char *base)
{
    trn_fn__collect(f, b, from_first, &first, 16384);
    trn_fn__define(f, b, base);
    trn_builder__drop(b, first);
}

/* ---- and back -------------------------------------------------------------------------------------------------------- */

static void add_inlined(trn_inlined *out, trn_builder *b, trn_arena *tmp, const trn_graph *g, const trn_shape *const *shape)
{
    int *order = trn_arena_alloc(tmp, ((size_t)g->n + 1) * sizeof *order), n = trn_graph_topo(g, order);
    int *to = trn_arena_alloc(tmp, ((size_t)g->n + 1) * sizeof *to);
    for (int k = 0; k < n; k++) {
        const trn_gnode *nd = g->node[order[k]];
        out->n_args += trn_gnode__is(nd, "_Arg");
        out->n_rets += trn_gnode__is(nd, "_Retval");
    }
    out->args = trn_arena_alloc(tmp, ((size_t)out->n_args + 1) * sizeof *out->args);
    out->rets = trn_arena_alloc(tmp, ((size_t)out->n_rets + 1) * sizeof *out->rets);
    for (int k = 0; k < n && trn_builder_ok(b); k++) {
        const trn_gnode *nd = g->node[order[k]];
        int64_t i = trn_attr_int(&nd->n, "index");
        if (trn_gnode__is(nd, "_Arg")) {
            out->args[i] = trn_fn__placeholder(b, nd->n.out_types[0], shape ? shape[i] : NULL);
            to[nd->id] = out->args[i].node;
            continue;
        }
        if (trn_gnode__is(nd, "_Retval")) {
            out->rets[i] = (trn_out){to[nd->in[0].node], nd->in[0].slot};
            continue;
        }
        if (strcmp(nd->n.name, "_ctl_rets") == 0) {
            out->roots = trn_arena_alloc(tmp, ((size_t)nd->n_ctl + 1) * sizeof *out->roots);
            for (int c = 0; c < nd->n_ctl; c++)
                out->roots[out->n_roots++] = to[nd->ctl[c]];
            continue;
        }
        trn_out *in = trn_arena_alloc(tmp, ((size_t)nd->n.n_in + 1) * sizeof *in);
        for (int c = 0; c < nd->n.n_in; c++)
            in[c] = (trn_out){to[nd->in[c].node], nd->in[c].slot};
        trn_out o = trn_builder__add_at(b, nd->n.name, nd->n.device, nd->n.op, in, nd->n.n_in, nd->n.attrs, nd->n.n_attrs);
        to[nd->id] = o.node;
        for (int c = 0; c < nd->n_ctl && trn_builder_ok(b); c++)
            trn_graph_add_ctl(b->g, b->g->node[o.node], to[nd->ctl[c]]);
    }
}

void trn_builder__inline(trn_inlined *out, trn_builder *b, trn_arena *tmp, const trn_func_ref *f, const trn_shape *const *shape)
{
    trn_graph *g;
    *out = (trn_inlined){0};
    if (!trn_builder_ok(b))
        return;
    trn_err err = b->g->lib ? trn_funclib_body(&g, b->g->lib, f) : trn_errorf(TRN_NOT_FOUND, "there is no function '%s'", f->name);
    if (err) {
        trn_builder_fail(b, err);
        return;
    }
    add_inlined(out, b, tmp, g, shape);
    trn_graph_free(g);
}

void trn_builder__become(trn_builder *b, int id, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    if (!trn_builder_ok(b))
        return;
    trn_gnode *old = b->g->node[id];
    if (id < b->sent) {
        trn_builder_fail(b, trn_errorf(TRN_FAILED_PRECONDITION, "a session has '%s' (%s) already; its gradient needs more results of it: build gradients before the first step",
                                       old->n.name, old->n.op));
        return;
    }
    trn_attr *all = trn_arena_alloc(b->arena, ((size_t)(n_attrs + old->n.n_attrs) + 1) * sizeof *all);
    int n = n_attrs;
    memcpy(all, attrs, (size_t)n_attrs * sizeof *all);
    for (int i = 0; i < old->n.n_attrs; i++) {
        bool given = false;
        for (int k = 0; k < n_attrs; k++)
            given |= strcmp(attrs[k].name, old->n.attrs[i].name) == 0;
        const trn_opdef *was = old->n.def;
        for (int k = 0; was && strcmp(op, old->n.op) != 0 && k < was->n_attrs; k++)
            given |= strcmp(was->attrs[k].name, old->n.attrs[i].name) == 0; /* another op has other attrs; what users and tools left ("_…") stays */
        if (!given && (was || old->n.attrs[i].name[0] == '_'))
            all[n++] = old->n.attrs[i];
    }
    trn_out o = trn_builder__add_at(b, "fn/new", old->n.device, op, in, n_in, all, n);
    if (!trn_builder_ok(b))
        return;
    trn_gnode *nd = b->g->node[o.node];
    trn_node was = old->n;
    old->n = nd->n;
    old->n.name = was.name;
    old->n.device = was.device;
    old->in = nd->in;
    trn_shape *known = b->shape[id];
    b->shape[id] = b->shape[o.node];
    for (int i = 0; i < was.n_out && i < old->n.n_out && known && b->shape[id]; i++)
        if (b->shape[id][i].rank < 0)
            b->shape[id][i] = known[i];
    trn_builder__drop(b, o.node);
}
