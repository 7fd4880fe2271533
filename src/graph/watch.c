#include "graph/watch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

#include "graph/graph_priv.h"
#include "proto/pbw.h"

/* What one graph may get, for few bytes can ask for much: "*" is a watch of every tensor, each op meets each URL, and all users of a tensor wait for all its ops. */
#define MAX_NODES (INT64_C(1) << 22)
#define MAX_EDGES (INT64_C(1) << 24)
#define MAX_TEXT (UINT64_C(1) << 29) /* bytes in attrs */
#define MAX_URLS 1024 /* folders that one step's dumps go to: each gets a file per device and step at least */

/* ---- the message --------------------------------------------------------------------------------------------------------------- */

enum { DO_WATCH = 4, DO_GLOBAL_STEP = 10, DO_RESET = 11, W_NODE = 1, W_SLOT = 2, W_OP = 3, W_URL = 4, W_TOLERATE = 5 };

static trn_err parse_watch(trn_tensor_watch *w, trn_arena *a, const void *p, size_t n)
{
    int counts[6] = {0};
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r))
        if (r.field < TRN_COUNTOF(counts))
            counts[r.field]++;
    if (r.bad)
        return trn_errorf(TRN_INVALID_ARGUMENT, "DebugTensorWatch: %s", r.why);
    *w = (trn_tensor_watch){.node = ""};
    w->ops = counts[W_OP] ? trn_arena_alloc(a, sizeof *w->ops * (size_t)counts[W_OP]) : NULL;
    w->urls = counts[W_URL] ? trn_arena_alloc(a, sizeof *w->urls * (size_t)counts[W_URL]) : NULL;
    r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        bool bytes = r.type == TRN_PB_BYTES, var = r.type == TRN_PB_VARINT;
        if (r.field == W_NODE && bytes)
            w->node = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == W_SLOT && var)
            w->slot = (int32_t)r.v;
        else if (r.field == W_OP && bytes)
            w->ops[w->n_ops++] = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == W_URL && bytes)
            w->urls[w->n_urls++] = trn_arena_strndup(a, (const char *)r.b, r.n);
        else if (r.field == W_TOLERATE && var)
            w->tolerate = r.v != 0;
    }
    return TRN_OK;
}

trn_err trn_watches_parse(trn_watches *out, trn_arena *a, const void *p, size_t n)
{
    int count = 0;
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r))
        count += r.field == DO_WATCH && r.type == TRN_PB_BYTES;
    if (r.bad)
        return trn_errorf(TRN_INVALID_ARGUMENT, "DebugOptions: %s", r.why);
    *out = (trn_watches){.v = trn_arena_alloc(a, sizeof *out->v * (size_t)(count + 1))};
    r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == DO_WATCH && r.type == TRN_PB_BYTES)
            TRN_TRY(parse_watch(&out->v[out->n++], a, r.b, r.n));
        else if (r.field == DO_GLOBAL_STEP && r.type == TRN_PB_VARINT)
            out->global_step = (int64_t)r.v;
        else if (r.field == DO_RESET && r.type == TRN_PB_VARINT)
            out->reset_disk = r.v != 0;
    }
    return TRN_OK;
}

void trn_watches_key(trn_sb *out, const trn_watches *w)
{
    for (int i = 0; i < w->n; i++) {
        const trn_tensor_watch *x = &w->v[i];
        trn_sb_addf(out, "%zu:%s:%d:%d:%d:%d", strlen(x->node), x->node, x->slot, x->tolerate, x->n_ops, x->n_urls);
        for (int k = 0; k < x->n_ops; k++)
            trn_sb_addf(out, ":%zu:%s", strlen(x->ops[k]), x->ops[k]);
        for (int k = 0; k < x->n_urls; k++)
            trn_sb_addf(out, ":%zu:%s", strlen(x->urls[k]), x->urls[k]);
    }
}

trn_err trn_watches_urls(const char ***out, int *n, trn_arena *a, const trn_watches *w)
{
    const char **urls = trn_arena_alloc(a, sizeof *urls * MAX_URLS);
    trn_map *seen = trn_map_new();
    trn_err err = TRN_OK;
    int found = 0;
    for (int i = 0; !err && i < w->n; i++)
        for (int k = 0; !err && k < w->v[i].n_urls; k++) {
            if (trn_map_puts(seen, w->v[i].urls[k], seen))
                continue;
            if (found == MAX_URLS)
                err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "debug_options: the watches have more than %d URLs", MAX_URLS);
            else
                urls[found++] = w->v[i].urls[k];
        }
    trn_map_free(seen, NULL);
    if (err)
        return err;
    *out = urls;
    *n = found;
    return TRN_OK;
}

/* ---- "Op(attr=value;attr=value)" ----------------------------------------------------------------------------------------------- */

typedef struct setting {
    char *key, *value;
} setting;

/* A debug op as a watch asks for it. */
typedef struct asked {
    const char *op;
    int n;
    setting *set; /* by key */
} asked;

static char *trimmed(char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')
        s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\n\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

static trn_err parse_setting(asked *out, char *part, const char *text)
{
    part = trimmed(part);
    if (!*part)
        return TRN_OK;
    char *eq = strchr(part, '=');
    if (!eq || eq == part || !eq[1])
        return trn_errorf(TRN_INVALID_ARGUMENT, "the attrs of the debug op \"%s\" are not of the form (name=value;name=value)", text);
    *eq = 0;
    for (int i = 0; i < out->n; i++)
        if (strcmp(out->set[i].key, part) == 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "attr \"%s\" has two values in the debug op \"%s\"", part, text);
    out->set[out->n++] = (setting){part, eq + 1};
    return TRN_OK;
}

static trn_err parse_asked(asked *out, trn_arena *a, const char *text)
{
    char *s = trn_arena_strdup(a, text), *open = strchr(s, '('), *close = strchr(s, ')');
    *out = (asked){.op = s};
    if (!open && !close)
        return TRN_OK;
    if (!open || open == s || !close || close[1])
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is not of the form Op or Op(name=value)", text);
    *open = *close = 0;
    size_t parts = 1;
    for (char *p = open + 1; *p; p++)
        parts += *p == ';';
    if (parts > 64) /* no op has as many; a double is looked for among all of them */
        return trn_errorf(TRN_INVALID_ARGUMENT, "the attrs of the debug op \"%s\" are not of the form (name=value;name=value)", text);
    out->set = trn_arena_alloc(a, sizeof *out->set * parts);
    for (char *p = open + 1, *next; p; p = next) {
        next = strchr(p, ';');
        if (next)
            *next++ = 0;
        TRN_TRY(parse_setting(out, p, text));
    }
    return TRN_OK;
}

static bool parse_bool(bool *out, const char *s)
{
    static const char *const yes[] = {"true", "t", "1"}, *const no[] = {"false", "f", "0"};
    for (size_t i = 0; i < TRN_COUNTOF(yes); i++) {
        *out = strcasecmp(s, yes[i]) == 0;
        if (*out || strcasecmp(s, no[i]) == 0)
            return true;
    }
    return false;
}

static bool parse_value(trn_attr *out, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (out->kind) {
    case TRN_ATTR_STRING: out->v.s.p = text; out->v.s.n = strlen(text); return true;
    case TRN_ATTR_INT: out->v.i = strtoll(text, &end, 10); return !*end && !errno;
    case TRN_ATTR_FLOAT: out->v.f = strtof(text, &end); return !*end;
    case TRN_ATTR_BOOL: return parse_bool(&out->v.b, text);
    default: return false;
    }
}

/* ---- debug nodes --------------------------------------------------------------------------------------------------------------- */

typedef struct inserter {
    trn_graph *g;
    trn_arena *tmp;
    const char *device; /* for nodes without */
    trn_map *by_tensor; /* "node:slot" → trn_tensor_watch */
    const trn_tensor_watch *rest; /* of "*"; NULL: none */
    int n0;             /* nodes before */
    int **first;        /* by node: NULL, or two ids for each slot: its first debug node and what comes behind its last */
    int64_t nodes; /* added */
    uint64_t text;
    int left_out; /* debug ops that do not take their tensor */
} inserter;

static trn_attr strings(inserter *in, const char *name, const char *const *v, int n)
{
    trn_attr_val *list = trn_arena_alloc(in->tmp, sizeof *list * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        list[i].s.p = v[i];
        list[i].s.n = strlen(v[i]);
    }
    return (trn_attr){.name = name, .kind = TRN_ATTR_STRING, .is_list = true, .n = n, .list = list};
}

static trn_err add_copy(trn_gnode **out, inserter *in, const trn_gnode *src, int slot, const trn_tensor_watch *w)
{
    const char **spec = trn_arena_alloc(in->tmp, sizeof *spec * (size_t)(w->n_ops * w->n_urls + 1));
    int n = 0;
    for (int i = 0; i < w->n_ops; i++) {
        asked op;
        bool gated = false;
        TRN_TRY(parse_asked(&op, in->tmp, w->ops[i]));
        for (int k = 0; k < op.n; k++)
            if (strcmp(op.set[k].key, "gated_grpc") == 0 && !parse_bool(&gated, op.set[k].value))
                return trn_errorf(TRN_INVALID_ARGUMENT, "%s is neither true nor false", op.set[k].value);
        for (int k = 0; k < w->n_urls; k++)
            spec[n++] = trn_arena_printf(in->tmp, "%s;%s;%d", op.op, w->urls[k], gated);
    }
    trn_attr attrs[] = {trn_attr__type("T", trn_dtype_base(src->n.out_types[slot])), strings(in, "debug_ops_spec", spec, n)};
    trn_edge from = {src->id, slot};
    const char *name = trn_arena_printf(in->tmp, "__copy_%s_%d", src->n.name, slot);
    return trn_graph_add(out, in->g, "Copy", name, src->n.device[0] ? src->n.device : in->device, attrs, TRN_COUNTOF(attrs), &from, 1);
}

static const trn_attrdef *attr_of(const trn_opdef *def, const char *name)
{
    for (int i = 0; i < def->n_attrs; i++)
        if (strcmp(def->attrs[i].name, name) == 0)
            return &def->attrs[i];
    return NULL;
}

static trn_err custom_attrs(trn_attr *attrs, int *n, inserter *in, const asked *op, const trn_opdef *def, const char *node)
{
    trn_sb wrong = {0};
    int n_wrong = 0;
    for (int i = 0; i < op->n; i++) {
        const setting *s = &op->set[i];
        const trn_attrdef *d = attr_of(def, s->key);
        if (!d) {
            trn_sb_addf(&wrong, "%s%s", n_wrong++ ? ", " : "", s->key);
            continue;
        }
        trn_attr v = {.name = d->name, .kind = d->kind};
        bool known = !d->is_list && (d->kind == TRN_ATTR_STRING || d->kind == TRN_ATTR_INT || d->kind == TRN_ATTR_FLOAT || d->kind == TRN_ATTR_BOOL);
        if (!known || !parse_value(&v, s->value)) {
            trn_sb_fini(&wrong);
            return trn_errorf(TRN_INVALID_ARGUMENT, "attribute %s of debug node %s cannot be \"%s\"", s->key, node, s->value);
        }
        int at = 0;
        while (at < *n && strcmp(attrs[at].name, v.name) != 0)
            at++;
        attrs[at] = v;
        *n = TRN_MAX(*n, at + 1);
    }
    trn_err err = n_wrong ? trn_errorf(TRN_INVALID_ARGUMENT, "%d attrs are not the debug op's in %s: %.*s", n_wrong, node, (int)wrong.n, wrong.p) : TRN_OK;
    trn_sb_fini(&wrong);
    return err;
}

/* What a ref variable would hold, were it initialised. */
static const trn_attr *src_shape(const trn_gnode *src)
{
    const trn_attr *a = trn_gnode__is(src, "VariableV2") || trn_gnode__is(src, "Variable") ? trn_node_attr(&src->n, "shape") : NULL;
    return a && a->kind == TRN_ATTR_SHAPE && !a->is_list && trn_shape_is_full(a->v.shape) ? a : NULL;
}

/* Nothing is added unless the op takes the tensor. */
static trn_err add_debug(inserter *in, const trn_gnode *copy, const char *tensor, const trn_tensor_watch *w, int number)
{
    asked op;
    TRN_TRY(parse_asked(&op, in->tmp, w->ops[number]));
    const trn_opdef *def = trn_op_find(op.op);
    if (!def || def->n_in != 1 || !attr_of(def, "tensor_name") || !attr_of(def, "debug_urls"))
        return trn_errorf(TRN_FAILED_PRECONDITION, "there is no debug op %s", op.op);
    const char *name = trn_arena_printf(in->tmp, "__dbg_%s_%d_%s", tensor, number, op.op);
    const trn_attr *shape = src_shape(in->g->node[copy->in[0].node]);
    trn_attr attrs[5 + 64] = {trn_attr__type("T", copy->n.out_types[0]), trn_attr__str("device_name", copy->n.device), trn_attr__str("tensor_name", tensor),
                              strings(in, "debug_urls", w->urls, w->n_urls)};
    int n = 4;
    if (shape) {
        attrs[n] = *shape;
        attrs[n++].name = TRN_WATCHED_SHAPE;
    }
    TRN_TRY(custom_attrs(attrs, &n, in, &op, def, name));
    trn_node check = {.name = name, .op = op.op, .device = copy->n.device, .n_attrs = n, .attrs = trn_arena_dup(in->tmp, attrs, sizeof *attrs * (size_t)n)};
    TRN_TRY(trn_node_resolve(&check, in->tmp));
    trn_edge from = {copy->id, 0};
    return trn_graph_add(NULL, in->g, op.op, name, copy->n.device, attrs, n, &from, 1);
}

static trn_err check_urls(const trn_tensor_watch *w, const char *tensor)
{
    for (int i = 0; i < w->n_urls; i++)
        if (strncasecmp(w->urls[i], "file://", 7) != 0)
            return trn_errorf(TRN_UNIMPLEMENTED, "debug_options: the watch of %s asks for its dumps at %s; Trainera dumps to file:// URLs only", tensor, w->urls[i]);
    return TRN_OK;
}

/* Lists of texts as they lie in attrs. */
static uint64_t text_bytes(const char *const *v, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += sizeof(trn_attr_val) + strlen(v[i]);
    return sum;
}

/* The copy names each op with each URL, each op has all URLs. */
static trn_err check_room(inserter *in, const trn_tensor_watch *w)
{
    in->nodes += 1 + w->n_ops;
    bool fits = in->nodes <= MAX_NODES && w->n_urls <= MAX_NODES;
    if (fits) {
        uint64_t ops = text_bytes(w->ops, w->n_ops), urls = text_bytes(w->urls, w->n_urls); /* of one message, so no product overflows */
        in->text += ops + ops * (uint64_t)w->n_urls + 2 * urls * (uint64_t)w->n_ops;
        fits = in->text <= MAX_TEXT;
    }
    return fits ? TRN_OK : trn_errorf(TRN_RESOURCE_EXHAUSTED, "debug_options: there are too many debug ops and URLs for %d nodes", in->n0);
}

static trn_err watch_tensor(inserter *in, trn_gnode *src, int slot, const char *tensor, const trn_tensor_watch *w)
{
    TRN_TRY(check_room(in, w));
    TRN_TRY(check_urls(w, tensor));
    trn_gnode *copy;
    trn_err err = add_copy(&copy, in, src, slot, w);
    if (err) {
        trn_err why = trn_errorf(TRN_FAILED_PRECONDITION, "tensor %s cannot be copied for a debugger: %s", tensor, trn_err_msg(err));
        trn_err_free(err);
        return why;
    }
    if (!in->first[src->id])
        in->first[src->id] = trn_arena_alloc(in->tmp, sizeof(int) * 2 * (size_t)src->n.n_out);
    for (int i = 0; i < w->n_ops; i++) {
        err = add_debug(in, copy, tensor, w, i);
        if (err && !w->tolerate) {
            trn_err why = trn_errorf(TRN_FAILED_PRECONDITION, "debug op %s cannot watch tensor %s: %s", w->ops[i], tensor, trn_err_msg(err));
            trn_err_free(err);
            return why;
        }
        if (err && !in->left_out++) /* there may be one for every tensor: the first stands for all */
            TRN_INFO("graph", "tfdbg's %.200s of %.200s is left out: %.400s", w->ops[i], tensor, trn_err_msg(err));
        trn_err_free(err);
    }
    int *range = in->first[src->id] + 2 * slot;
    range[0] = copy->id + 1;
    range[1] = in->g->n;
    return TRN_OK;
}

/* Who uses a watched tensor waits for its debug ops. Not when it comes from Enter or NextIteration: they are in another iteration than what uses them. */
static trn_err let_users_wait(inserter *in)
{
    trn_graph *g = in->g;
    trn_ctlset set = {0};
    int64_t edges = 0;
    for (int id = 0; edges <= MAX_EDGES && id < in->n0; id++) {
        trn_gnode *nd = g->node[id];
        int n = 0, cap = 0, *ids = NULL;
        for (int k = 0; nd && edges <= MAX_EDGES && k < nd->n.n_in; k++) {
            const trn_gnode *src = g->node[nd->in[k].node];
            const int *range = in->first[src->id];
            if (!range || !src->n.def || (src->n.def->row->flags & (TRN_OP_ENTER | TRN_OP_NEXT)))
                continue;
            range += 2 * nd->in[k].slot;
            edges += range[1] - range[0];
            for (int d = range[0]; edges <= MAX_EDGES && d < range[1]; d++)
                TRN_PUSH(ids, n, cap, d);
        }
        if (n) {
            for (int k = 0; k < nd->n_ctl; k++)
                TRN_PUSH(ids, n, cap, nd->ctl[k]);
            trn_gnode__set_ctl(g, nd, ids, n, &set);
        }
        free(ids);
    }
    free(set.seen);
    return edges <= MAX_EDGES ? TRN_OK : trn_errorf(TRN_RESOURCE_EXHAUSTED, "debug_options: too many nodes would wait for too many debug ops");
}

static void one_iteration_at_a_time(trn_graph *g)
{
    trn_attr one = trn_attr__int("parallel_iterations", 1);
    for (int i = 0; i < g->n; i++) {
        trn_gnode *nd = g->node[i];
        if (nd && nd->n.def && (nd->n.def->row->flags & TRN_OP_ENTER))
            trn_gnode__set_attr(nd, g->arena, &one);
    }
}

static trn_err find_watches(inserter *in, const trn_watches *w)
{
    trn_tensor_watch *rest = trn_arena_alloc(in->tmp, sizeof *rest);
    int n_ops = 0, n_urls = 0;
    for (int i = 0; i < w->n; i++) {
        trn_tensor_watch *x = &w->v[i];
        if (!x->n_ops || !x->n_urls)
            continue;
        bool all = strcmp(x->node, "*") == 0;
        if (all && x->slot != -1)
            return trn_errorf(TRN_FAILED_PRECONDITION, "debug_options: the watch of \"*\" has output_slot %d; all outputs, -1, is what it can have", x->slot);
        if (!all && x->slot < 0)
            return trn_errorf(TRN_FAILED_PRECONDITION, "debug_options: node %s has no output %d to watch; only \"*\" may be without a number", x->node, x->slot);
        n_ops += all ? x->n_ops : 0;
        n_urls += all ? x->n_urls : 0;
        if (!all)
            trn_map_puts(in->by_tensor, trn_arena_printf(in->tmp, "%s:%d", x->node, x->slot), x);
    }
    if (!n_ops)
        return TRN_OK;
    *rest = (trn_tensor_watch){.node = "*", .slot = -1, .ops = trn_arena_alloc(in->tmp, sizeof *rest->ops * (size_t)n_ops), .urls = trn_arena_alloc(in->tmp, sizeof *rest->urls * (size_t)n_urls)};
    for (int i = 0; i < w->n; i++) {
        const trn_tensor_watch *x = &w->v[i];
        if (strcmp(x->node, "*") != 0 || !x->n_ops || !x->n_urls)
            continue;
        for (int k = 0; k < x->n_ops; k++)
            rest->ops[rest->n_ops++] = x->ops[k];
        for (int k = 0; k < x->n_urls; k++)
            rest->urls[rest->n_urls++] = x->urls[k];
    }
    in->rest = rest;
    return TRN_OK;
}

static trn_err insert(inserter *in, const trn_watches *w)
{
    TRN_TRY(find_watches(in, w));
    if (!trn_map_count(in->by_tensor)) /* TensorFlow, too, watches "*" only when something is watched by name */
        return TRN_OK;
    for (int id = 0; id < in->n0; id++) {
        trn_gnode *nd = in->g->node[id];
        for (int slot = 0; nd && nd->n.out_types != trn_graph__untyped && slot < nd->n.n_out; slot++) {
            char *tensor = trn_xasprintf("%s:%d", nd->n.name, slot);
            const trn_tensor_watch *x = trn_map_gets(in->by_tensor, tensor);
            x = x ? x : in->rest;
            trn_err err = x ? watch_tensor(in, nd, slot, trn_arena_strdup(in->tmp, tensor), x) : TRN_OK;
            free(tensor);
            if (err)
                return err;
        }
    }
    if (in->left_out > 1)
        TRN_INFO("graph", "tfdbg's watches: %d debug ops in all are left out", in->left_out);
    return let_users_wait(in);
}

trn_err trn_graph_watch(trn_graph *g, const trn_watches *w, const char *device)
{
    if (!w->n)
        return TRN_OK;
    one_iteration_at_a_time(g);
    inserter in = {.g = g, .tmp = trn_arena_new(), .device = device, .by_tensor = trn_map_new(), .n0 = g->n, .first = trn_xalloc(sizeof(int *) * (size_t)(g->n + 1))};
    trn_err err = insert(&in, w);
    free(in.first);
    trn_map_free(in.by_tensor, NULL);
    trn_arena_free(in.tmp);
    return err;
}
