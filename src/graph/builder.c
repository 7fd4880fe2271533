/* Graphs that grow call by call: names, scopes, attrs that follow from the inputs, shapes, the first error. */
#include "graph/builder.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "graph/graph_priv.h"
#include "proto/pb.h"
#include "proto/textproto.h"

/* ---- life ----------------------------------------------------------------------------------------------------------- */

trn_builder *trn_builder_new(void)
{
    trn_builder *b = trn_xalloc(sizeof *b);
    b->g = trn_graph_new(NULL);
    b->real = b;
    b->g->producer = TRN_GRAPH_PRODUCER;
    b->arena = b->g->arena;
    b->used = trn_map_new();
    b->var_by_name = trn_map_new();
    b->var_by_node = trn_map_new();
    b->inits = trn_map_new();
    b->kept = trn_map_new();
    b->scope = "";
    return b;
}

void trn_builder_free(trn_builder *b)
{
    if (!b)
        return;
    while (b->n_end) {
        b->n_end--;
        b->at_end[b->n_end].fn(b->at_end[b->n_end].arg);
    }
    free(b->at_end);
    for (int i = 0; i < b->n_coll; i++)
        free(b->coll[i].at);
    free(b->coll);
    free(b->scopes);
    free(b->vars);
    free(b->shape);
    trn_map_free(b->used, NULL);
    trn_map_free(b->var_by_name, NULL);
    trn_map_free(b->var_by_node, NULL);
    trn_map_free(b->inits, NULL);
    trn_map_free(b->kept, NULL);
    trn_err_free(b->err);
    trn_graph_free(b->g);
    free(b);
}

bool trn_builder_ok(const trn_builder *b) { b = b->real; return !b->err; }

trn_err trn_builder_check(const trn_builder *b)
{
    b = b->real;
    if (b->err)
        return trn_err_copy(b->err);
    if (b->n_scopes) {
        static const char *const kind[] = {"name", "device", "device function", "control", "colocation"};
        const trn_scope *s = &b->scopes[b->n_scopes - 1];
        return trn_errorf(TRN_FAILED_PRECONDITION, "%d scopes are still open, the innermost a %s scope%s%s: each needs its trn_end", b->n_scopes,
                          kind[s->kind], s->name && *s->name ? " " : "", s->name ? s->name : "");
    }
    return TRN_OK;
}

trn_out trn_builder_fail(trn_builder *b, trn_err err)
{
    b = b->real;
    if (b->err)
        trn_err_free(err);
    else
        b->err = err;
    return TRN_NONE;
}

void *trn_builder_alloc(trn_builder *b, size_t n) { b = b->real; return trn_arena_alloc(b->arena, n); }
const char *trn_builder_strdup(trn_builder *b, const char *s) { b = b->real; return trn_arena_strdup(b->arena, s); }

const char *trn_builder_printf(trn_builder *b, const char *fmt, ...)
{
    b = b->real;
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    const char *res = n < 0 ? "" : trn_arena_strdup(b->arena, s);
    free(s);
    return res;
}

void trn_builder_put(trn_builder *b, const char *key, void *value) { b = b->real; trn_map_puts(b->kept, key, value); }
void *trn_builder_get(const trn_builder *b, const char *key) { b = b->real; return trn_map_gets(b->kept, key); }

void trn_builder_on_free(trn_builder *b, void (*fn)(void *), void *arg)
{
    b = b->real;
    if (b->n_end == b->cap_end) {
        b->cap_end = TRN_MAX(8, 2 * b->cap_end);
        b->at_end = trn_xrealloc(b->at_end, (size_t)b->cap_end * sizeof *b->at_end);
    }
    b->at_end[b->n_end].fn = fn;
    b->at_end[b->n_end++].arg = arg;
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static uintptr_t times_used(const trn_builder *b, const char *name)
{
    return (uintptr_t)trn_map_gets(b->used, name);
}

static void set_used(trn_builder *b, const char *name, uintptr_t n) { trn_map_puts(b->used, name, (void *)n); }

static char *small(const char *s)
{
    char *r = trn_xstrdup(s);
    for (char *p = r; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return r;
}

const char *trn_builder__unique(trn_builder *b, const char *whole)
{
    b = b->real;
    char *key = small(whole);
    uintptr_t i = times_used(b, key);
    set_used(b, key, i + 1);
    if (i == 0) {
        free(key);
        return trn_arena_strdup(b->arena, whole);
    }
    char *base = key, *name = NULL;
    key = trn_xstrdup(base);
    while (times_used(b, key)) {
        free(key);
        free(name);
        key = trn_xasprintf("%s_%zu", base, (size_t)i);
        name = trn_xasprintf("%s_%zu", whole, (size_t)i);
        i++;
    }
    set_used(b, base, i);
    set_used(b, key, 1);
    const char *res = trn_arena_strdup(b->arena, name);
    free(base);
    free(key);
    free(name);
    return res;
}

static bool name_ok(const char *s)
{
    if (!isalnum((unsigned char)*s) && *s != '.' && *s != '_')
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("_.\\/>-", *s))
            return false;
    return true;
}

static const char *whole_name(trn_builder *b, const char *name)
{
    return *b->scope ? trn_arena_printf(b->arena, "%s/%s", b->scope, name) : name;
}

trn_builder *trn_named(trn_builder *b, const char *name)
{
    b = b->real;
    if (b->err)
        return b;
    if (!name || !name_ok(name)) {
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is no name for a node: letters, digits and _.-/> only", name ? name : "(null)"));
        return b;
    }
    trn_builder *named = trn_arena_alloc(b->arena, offsetof(trn_builder, err));
    named->real = b;
    named->g = b->g;
    named->arena = b->arena;
    named->pending = trn_arena_strdup(b->arena, name);
    return named;
}

const char *trn_take_name(trn_builder *b, const char *otherwise)
{
    const char *name = b->pending ? b->pending : otherwise;
    b->pending = NULL;
    return name;
}

const char *trn_scope_name(const trn_builder *b) { b = b->real; return b->scope; }

/* ---- scopes --------------------------------------------------------------------------------------------------------- */

/* Scopes are counted also after an error, so that every trn_end still finds its own. */
static trn_scope *push(trn_builder *b, trn_scope_kind kind)
{
    TRN_PUSH(b->scopes, b->n_scopes, b->cap_scopes, (trn_scope){.kind = kind});
    return &b->scopes[b->n_scopes - 1];
}

static void enter_name(trn_builder *b, const char *whole)
{
    trn_scope *s = push(b, TRN_SCOPE_NAME);
    s->outer = b->scope;
    s->name = b->scope = whole;
}

void trn_name_scope(trn_builder *b, const char *name)
{
    b = b->real;
    if (!b->err && (!name || !name_ok(name)))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is no name for a scope: letters, digits and _.-/> only", name ? name : "(null)"));
    enter_name(b, b->err ? b->scope : trn_builder__unique(b, whole_name(b, name)));
}

void trn_name_scope_again(trn_builder *b, const char *scope) { b = b->real; enter_name(b, trn_arena_strdup(b->arena, scope)); }

void trn_device_scope(trn_builder *b, const char *device)
{
    b = b->real;
    trn_devname d;
    trn_err err = b->err ? TRN_OK : trn_devname_parse(&d, device, strlen(device));
    if (err)
        trn_builder_fail(b, err);
    push(b, TRN_SCOPE_DEVICE)->name = trn_arena_strdup(b->arena, device);
}

void trn_device_fn_scope(trn_builder *b, trn_device_fn fn, void *arg)
{
    b = b->real;
    trn_scope *s = push(b, TRN_SCOPE_DEVICE_FN);
    s->fn = fn;
    s->arg = arg;
}

void trn_control_scope(trn_builder *b, const trn_out *deps, int n)
{
    b = b->real;
    trn_scope *s = push(b, TRN_SCOPE_CONTROL);
    s->first = b->g->n;
    s->n_deps = deps ? 0 : -1;
    if (!deps)
        return;
    s->deps = trn_arena_alloc(b->arena, (size_t)TRN_MAX(n, 1) * sizeof *deps);
    for (int i = 0; i < n; i++)
        if (trn_builder__node(b, deps[i]))
            s->deps[s->n_deps++] = deps[i];
        else if (!b->err)
            trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "control dependency %d is nothing", i));
}

void trn_colocate_scope(trn_builder *b, trn_out with)
{
    b = b->real;
    if (!b->err && !trn_builder__node(b, with))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_colocate_scope: with nothing"));
    push(b, TRN_SCOPE_COLOCATE)->with = with.node;
}

void trn_end(trn_builder *b)
{
    b = b->real;
    if (!b->n_scopes) {
        trn_builder_fail(b, trn_errorf(TRN_FAILED_PRECONDITION, "trn_end without a scope that is open"));
        return;
    }
    const trn_scope *s = &b->scopes[--b->n_scopes];
    if (s->kind == TRN_SCOPE_NAME)
        b->scope = s->outer;
}

/* Innermost first; each adds what those inside it have not said. */
static const char *device_for(trn_builder *b, const trn_node *n)
{
    const char *dev = "";
    for (int i = b->n_scopes - 1; i >= 0; i--) {
        const trn_scope *s = &b->scopes[i];
        if (s->kind == TRN_SCOPE_COLOCATE) {
            const trn_gnode *with = b->err ? NULL : b->g->node[s->with];
            return *dev || !with ? dev : with->n.device; /* stronger than the devices around it */
        }
        if (s->kind == TRN_SCOPE_DEVICE_FN) {
            const char *d = s->fn(s->arg, b, n, dev);
            dev = d ? d : dev;
        } else if (s->kind == TRN_SCOPE_DEVICE) {
            if (!*s->name)
                return dev;
            trn_devname outer, inner;
            char text[TRN_DEVNAME_TEXT];
            trn_err err = trn_devname_parse(&outer, s->name, strlen(s->name));
            if (!err)
                err = trn_devname_parse(&inner, dev, strlen(dev));
            if (err) {
                trn_builder_fail(b, err);
                return "";
            }
            trn_devname_override(&outer, &inner);
            dev = trn_arena_strdup(b->arena, trn_devname_text(text, &outer));
        }
    }
    return dev;
}

/* A node that gets something from inside a control scope waits for its dependencies already. */
static void add_controls(trn_builder *b, trn_gnode *nd)
{
    for (int i = b->n_scopes - 1; i >= 0; i--) {
        const trn_scope *s = &b->scopes[i];
        if (s->kind != TRN_SCOPE_CONTROL)
            continue;
        if (s->n_deps < 0)
            return;
        bool inside = false;
        for (int k = 0; k < nd->n.n_in && !inside; k++)
            inside = nd->in[k].node >= s->first;
        for (int k = 0; k < s->n_deps && !inside; k++)
            if (s->deps[k].node != nd->id)
                trn_graph_add_ctl(b->g, nd, s->deps[k].node);
    }
}

static void add_class(trn_builder *b, trn_attr *attrs, int *n)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(attrs[i].name, "_class") == 0)
            return;
    for (int i = b->n_scopes - 1; i >= 0; i--) {
        const trn_scope *s = &b->scopes[i];
        if (s->kind != TRN_SCOPE_COLOCATE)
            continue;
        trn_attr_val *v = trn_arena_alloc(b->arena, sizeof *v);
        v->s.p = trn_arena_printf(b->arena, "loc:@%s", b->g->node[s->with]->n.name);
        v->s.n = strlen(v->s.p);
        attrs[(*n)++] = (trn_attr){.name = "_class", .kind = TRN_ATTR_STRING, .is_list = true, .n = 1, .list = v};
        return;
    }
}

/* ---- attrs that follow from the inputs ------------------------------------------------------------------------------- */

typedef struct call {
    trn_builder *b;
    const char *op, *name;
    const trn_opdef *def;
    const trn_out *in;
    int n_in;
    trn_attr *attrs;
    int n_attrs;
} call;

static const trn_attr *given(const call *c, const char *name)
{
    for (int i = 0; i < c->n_attrs; i++)
        if (strcmp(c->attrs[i].name, name) == 0)
            return &c->attrs[i];
    return NULL;
}

/* How many inputs go to each argument whose number follows from what is left: those that share one attr divide it. */
static trn_err list_length(int64_t *out, const call *c)
{
    int64_t fixed = 0;
    int open = 0, attr = -1;
    for (int i = 0; i < c->def->n_in; i++) {
        const trn_argdef *a = &c->def->in[i];
        int which = a->number_attr >= 0 ? a->number_attr : a->type_list_attr;
        const trn_attr *at = which >= 0 ? given(c, c->def->attrs[which].name) : NULL;
        if (which < 0)
            fixed++;
        else if (at)
            fixed += a->number_attr >= 0 ? at->v.i : at->n;
        else if (open && (which != attr || a->type_list_attr >= 0))
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s': attr '%s' must be given: %d inputs can be divided in several ways", c->op, c->name,
                              c->def->attrs[which].name, c->n_in);
        else {
            open++;
            attr = which;
        }
    }
    if (c->n_in < fixed || (open && (c->n_in - fixed) % open) || (!open && c->n_in != fixed))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s' takes %lld inputs%s, not %d", c->op, c->name, (long long)fixed, open ? " and a list" : "", c->n_in);
    *out = open ? (c->n_in - fixed) / open : 0;
    return TRN_OK;
}

static trn_err deduce(call *c)
{
    int64_t len;
    TRN_TRY(list_length(&len, c));
    int at = 0;
    for (int i = 0; i < c->def->n_in; i++) {
        const trn_argdef *a = &c->def->in[i];
        int64_t count = 1;
        if (a->number_attr >= 0) {
            const char *name = c->def->attrs[a->number_attr].name;
            const trn_attr *g = given(c, name);
            count = g ? g->v.i : len;
            if (!g)
                c->attrs[c->n_attrs++] = trn_attr__int(name, count);
        } else if (a->type_list_attr >= 0) {
            const char *name = c->def->attrs[a->type_list_attr].name;
            const trn_attr *g = given(c, name);
            count = g ? g->n : len;
            if (!g && at + count <= c->n_in) {
                trn_attr_val *v = trn_arena_alloc(c->b->arena, (size_t)TRN_MAX(count, 1) * sizeof *v);
                for (int64_t k = 0; k < count; k++)
                    v[k].type = trn_out_dtype(c->b, c->in[at + k]);
                c->attrs[c->n_attrs++] = (trn_attr){.name = name, .kind = TRN_ATTR_TYPE, .is_list = true, .n = (int)count, .list = v};
            }
        }
        if (count < 0 || at + count > c->n_in)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s' has too few inputs for its argument '%s'", c->op, c->name, a->name);
        if (a->type_attr >= 0 && count > 0 && !given(c, c->def->attrs[a->type_attr].name))
            c->attrs[c->n_attrs++] = trn_attr__type(c->def->attrs[a->type_attr].name, trn_out_dtype(c->b, c->in[at]));
        at += (int)count;
    }
    return TRN_OK;
}

/* Which argument input i belongs to, for messages. */
static const char *arg_name(const call *c, int i)
{
    if (!c->def)
        return "?";
    int at = 0;
    for (int k = 0; k < c->def->n_in; k++, at++)
        if (at == i || k == c->def->n_in - 1 || c->def->in[k].number_attr >= 0 || c->def->in[k].type_list_attr >= 0)
            return c->def->in[k].name;
    return "?";
}

static trn_err check_inputs(const call *c)
{
    for (int i = 0; i < c->n_in; i++) {
        trn_out o = c->in[i];
        const trn_gnode *from = trn_builder__node(c->b, o);
        if (!from)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s': input %d (%s) is nothing", c->op, c->name, i, arg_name(c, i));
        if (o.slot < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s': input %d (%s) is the node '%s' itself, which has no value to give", c->op, c->name, i,
                              arg_name(c, i), from->n.name);
        if (o.slot >= from->n.n_out && from->n.n_out > 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s '%s': input %d (%s) is output %d of '%s', which has %d", c->op, c->name, i, arg_name(c, i), o.slot,
                              from->n.name, from->n.n_out);
    }
    return TRN_OK;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------- */

static const trn_shape *handle_shape(const trn_builder *b, trn_edge e)
{
    const trn_gnode *h = b->g->node[e.node];
    return strcmp(h->n.op, "VarHandleOp") == 0 ? trn_attr_shape(&h->n, "shape") : NULL;
}

static trn_err infer(trn_builder *b, const trn_gnode *nd)
{
    if (nd->id >= b->cap_shape) {
        int cap = TRN_MAX(TRN_MAX(64, 2 * b->cap_shape), nd->id + 1);
        b->shape = trn_xrealloc(b->shape, (size_t)cap * sizeof *b->shape);
        memset(b->shape + b->cap_shape, 0, (size_t)(cap - b->cap_shape) * sizeof *b->shape);
        b->cap_shape = cap;
    }
    trn_err err = trn_infer__node(b->shape, b->g, nd, b->arena);
    trn_shape *s = b->shape[nd->id];
    const trn_shape *h = !err && nd->n.n_in && nd->n.n_out && s[0].rank < 0 && nd->n.in_types[0] == TRN_RESOURCE ? handle_shape(b, nd->in[0]) : NULL;
    if (h && strcmp(nd->n.op, "ReadVariableOp") == 0)
        s[0] = *h;
    else if (h && strcmp(nd->n.op, "ResourceGather") == 0 && trn_attr_int(&nd->n, "batch_dims") == 0) {
        const trn_shape *i = trn_out_shape(b, (trn_out){nd->in[1].node, nd->in[1].slot});
        if (h->rank > 0 && i->rank >= 0 && h->rank - 1 + i->rank <= TRN_MAX_RANK) {
            s[0] = *i;
            for (int k = 1; k < h->rank; k++)
                s[0].dim[s[0].rank++] = h->dim[k];
        }
    }
    return err;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------- */

trn_gnode *trn_builder__node(const trn_builder *b, trn_out o)
{
    b = b->real;
    return o.node >= 0 && o.node < b->g->n ? b->g->node[o.node] : NULL;
}

static trn_err add(trn_gnode **out, trn_builder *b, const char *name, const char *device, const char *op, const trn_out *in, int n_in, const trn_attr *attrs,
                   int n_attrs)
{
    call c = {.b = b, .op = op, .name = name, .def = trn_op_find(op), .in = in, .n_in = n_in, .n_attrs = n_attrs};
    bool function = trn_funclib_has(b->g->lib, op);
    if (!c.def && !function)
        return trn_errorf(TRN_UNIMPLEMENTED, "'%s': there is no op '%s' (trainera ops lists those there are)", name, op);
    TRN_TRY(check_inputs(&c));
    size_t room = (size_t)(n_attrs + (c.def ? c.def->n_attrs : 0) + 2);
    c.attrs = trn_arena_alloc(b->arena, room * sizeof *c.attrs);
    if (n_attrs)
        memcpy(c.attrs, attrs, (size_t)n_attrs * sizeof *attrs);
    if (c.def && !function)
        TRN_TRY(deduce(&c));
    if (!device) {
        trn_node asked = {.name = name, .op = op, .device = "", .def = c.def, .n_attrs = c.n_attrs, .attrs = c.attrs};
        device = device_for(b, &asked);
        add_class(b, c.attrs, &c.n_attrs);
        if (b->err)
            return trn_err_copy(b->err);
    }
    trn_edge few[8], *edges = n_in <= 8 ? few : trn_arena_alloc(b->arena, (size_t)n_in * sizeof *edges);
    for (int i = 0; i < n_in; i++)
        edges[i] = (trn_edge){in[i].node, in[i].slot};
    trn_gnode *nd;
    trn_err err = trn_graph_add(&nd, b->g, op, name, device, c.attrs, c.n_attrs, edges, n_in);
    if (err)
        return err;
    if (!nd->n.def && !function) { /* known, but not with these types: here that is an error at once */
        trn_node again = nd->n;
        err = trn_node_resolve(&again, b->arena);
        return err ? err : trn_errorf(TRN_UNIMPLEMENTED, "%s '%s' is not there with these types", op, name);
    }
    err = infer(b, nd);
    if (err)
        return trn_err_wrap(err, "while adding %s '%s'", op, name);
    *out = nd;
    return TRN_OK;
}

trn_out trn_node_add(trn_builder *b, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    const char *wish = trn_take_name(b, op);
    b = b->real;
    if (b->err)
        return TRN_NONE;
    const char *name = trn_builder__unique(b, whole_name(b, wish));
    return trn_builder__add_in_scope(b, name, op, in, n_in, attrs, n_attrs);
}

trn_out trn_builder__add_in_scope(trn_builder *b, const char *name, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    b = b->real;
    if (b->err)
        return TRN_NONE;
    trn_gnode *nd;
    trn_err err = add(&nd, b, name, NULL, op, in, n_in, attrs, n_attrs);
    if (err)
        return trn_builder_fail(b, err);
    add_controls(b, nd);
    return (trn_out){nd->id, nd->n.n_out ? 0 : -1};
}

trn_out trn_builder__add_at(trn_builder *b, const char *name, const char *device, const char *op, const trn_out *in, int n_in, const trn_attr *attrs,
                            int n_attrs)
{
    b = b->real;
    if (b->err)
        return TRN_NONE;
    trn_gnode *nd;
    trn_err err = add(&nd, b, trn_builder__unique(b, name), device, op, in, n_in, attrs, n_attrs);
    return err ? trn_builder_fail(b, err) : (trn_out){nd->id, nd->n.n_out ? 0 : -1};
}

trn_attr trn_at_type(const char *name, trn_dtype v) { return trn_attr__type(name, v); }
trn_attr trn_at_int(const char *name, int64_t v) { return trn_attr__int(name, v); }
trn_attr trn_at_float(const char *name, float v) { return (trn_attr){.name = name, .kind = TRN_ATTR_FLOAT, .v.f = v}; }
trn_attr trn_at_bool(const char *name, bool v) { return trn_attr__bool(name, v); }
trn_attr trn_at_str(const char *name, const char *v) { return trn_attr__str(name, v); }
trn_attr trn_at_tensor(const char *name, trn_tensor *v) { return trn_attr__tensor(name, v); }
trn_attr trn_at_shape(const char *name, const trn_shape *v) { return (trn_attr){.name = name, .kind = TRN_ATTR_SHAPE, .v.shape = v}; }
trn_attr trn_at_func(const char *name, const trn_func_ref *v) { return (trn_attr){.name = name, .kind = TRN_ATTR_FUNC, .v.func = v}; }

/* A session may have the node already. */
static trn_gnode *changeable(trn_builder *b, trn_out o, const char *what)
{
    trn_gnode *nd = b->err ? NULL : trn_builder__node(b, o);
    if (!b->err && !nd)
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "%s: of nothing", what));
    else if (nd && nd->id < b->sent)
        trn_builder_fail(b, trn_errorf(TRN_FAILED_PRECONDITION, "%s: a session has '%s' already, it cannot change any more", what, nd->n.name));
    return b->err ? NULL : nd;
}

void trn_control_add(trn_builder *b, trn_out node, trn_out after)
{
    b = b->real;
    trn_gnode *nd = changeable(b, node, "trn_control_add");
    if (nd && !trn_builder__node(b, after))
        trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "trn_control_add: '%s' shall wait for nothing", nd->n.name));
    else if (nd)
        trn_graph_add_ctl(b->g, nd, after.node);
}

void trn_node_set_attr(trn_builder *b, trn_out node, const trn_attr *attr)
{
    b = b->real;
    trn_gnode *nd = changeable(b, node, "trn_node_set_attr");
    if (!nd)
        return;
    trn_attr *copy = trn_arena_alloc(b->arena, sizeof *copy);
    trn_attr__copy(copy, b->arena, attr);
    trn_gnode__set_attr(nd, b->arena, copy);
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

trn_dtype trn_out_dtype(const trn_builder *b, trn_out o)
{
    b = b->real;
    const trn_gnode *nd = trn_builder__node(b, o);
    return nd && o.slot >= 0 && o.slot < nd->n.n_out ? trn_dtype_base(nd->n.out_types[o.slot]) : TRN_INVALID;
}

const trn_shape *trn_out_shape(const trn_builder *b, trn_out o)
{
    b = b->real;
    static const trn_shape unknown = {.rank = -1};
    const trn_gnode *nd = trn_builder__node(b, o);
    return nd && o.slot >= 0 && o.slot < nd->n.n_out && o.node < b->cap_shape && b->shape[o.node] ? &b->shape[o.node][o.slot] : &unknown;
}

const char *trn_out_name(trn_builder *b, trn_out o)
{
    b = b->real;
    const trn_gnode *nd = trn_builder__node(b, o);
    return !nd ? "" : o.slot < 0 ? nd->n.name : trn_arena_printf(b->arena, "%s:%d", nd->n.name, o.slot);
}

const trn_node *trn_out_op(const trn_builder *b, trn_out o)
{
    b = b->real;
    const trn_gnode *nd = trn_builder__node(b, o);
    return nd ? &nd->n : NULL;
}

trn_out trn_out_input(const trn_builder *b, trn_out o, int i)
{
    b = b->real;
    const trn_gnode *nd = trn_builder__node(b, o);
    return nd && i >= 0 && i < nd->n.n_in ? (trn_out){nd->in[i].node, nd->in[i].slot} : TRN_NONE;
}

const trn_tensor *trn_out_const(const trn_builder *b, trn_out o)
{
    b = b->real;
    const trn_gnode *nd = trn_builder__node(b, o);
    return nd && strcmp(nd->n.op, "Const") == 0 ? trn_attr_tensor(&nd->n, "value") : NULL;
}

trn_out trn_find(trn_builder *b, const char *name)
{
    b = b->real;
    trn_edge e;
    if (b->err)
        return TRN_NONE;
    const trn_gnode *nd = trn_graph_find(b->g, name, strlen(name));
    if (nd && nd->n.n_out == 0)
        return (trn_out){nd->id, -1};
    trn_err err = trn_graph_tensor(&e, b->g, name);
    if (err)
        return trn_builder_fail(b, err);
    return (trn_out){e.node, e.slot};
}

int trn_builder_node_count(const trn_builder *b) { b = b->real; return b->g->n; }

/* ---- collections ---------------------------------------------------------------------------------------------------- */

static trn_collected *collection(const trn_builder *b, const char *name)
{
    for (int i = 0; i < b->n_coll; i++)
        if (strcmp(b->coll[i].name, name) == 0)
            return &b->coll[i];
    return NULL;
}

void trn_collect(trn_builder *b, const char *name, trn_out o)
{
    b = b->real;
    if (b->err)
        return;
    trn_collected *c = collection(b, name);
    if (!c) {
        TRN_PUSH(b->coll, b->n_coll, b->cap_coll, (trn_collected){.name = trn_arena_strdup(b->arena, name)});
        c = &b->coll[b->n_coll - 1];
    }
    TRN_PUSH(c->at, c->n, c->cap, o);
}

const trn_out *trn_collection(int *n, const trn_builder *b, const char *name)
{
    b = b->real;
    const trn_collected *c = collection(b, name);
    *n = c ? c->n : 0;
    return c ? c->at : NULL;
}

/* ---- GraphDef ------------------------------------------------------------------------------------------------------- */

void trn_builder__adopt(trn_builder *b, int first)
{
    b = b->real;
    int *order = trn_xalloc((size_t)TRN_MAX(b->g->n, 1) * sizeof *order), n = trn_graph_topo(b->g, order);
    for (int k = 0; k < n; k++)
        if (order[k] >= first) /* what a peer's graph says of its shapes is not worth an error */
            trn_err_free(infer(b, b->g->node[order[k]]));
    free(order);
    for (int i = first; i < b->g->n; i++) {
        const char *name = b->g->node[i]->n.name;
        char *key = small(name);
        for (char *end = key + strlen(key); end; end = strrchr(key, '/')) { /* the scopes that it lies in are taken too */
            *end = 0;
            if (!times_used(b, key))
                set_used(b, key, 1);
        }
        free(key);
    }
}

/* While a GraphDef is taken in: every node below a prefix (NULL: as they are), some inputs from tensors that we have. */
typedef struct taking {
    trn_arena *a;
    trn_builder *b;
    const char *prefix;
    const trn_named_out *input;
    int n_inputs;
    bool *used;
} taking;

/* "x" is "x:0". */
static bool same_tensor(const char *x, const char *y)
{
    size_t n = strlen(x), m = strlen(y);
    if (n > 2 && strcmp(x + n - 2, ":0") == 0)
        n -= 2;
    if (m > 2 && strcmp(y + m - 2, ":0") == 0)
        m -= 2;
    return n == m && memcmp(x, y, n) == 0;
}

static char *new_input(taking *t, char *name)
{
    for (int i = 0; i < t->n_inputs; i++)
        if (same_tensor(name, t->input[i].name)) {
            t->used[i] = true;
            trn_out o = t->input[i].tensor;
            return *name == '^' ? trn_arena_printf(t->a, "^%s", trn_out_name(t->b, trn_out_node(o))) : trn_arena_printf(t->a, "%s", trn_out_name(t->b, o));
        }
    if (!t->prefix)
        return name;
    return *name == '^' ? trn_arena_printf(t->a, "^%s/%s", t->prefix, name + 1) : trn_arena_printf(t->a, "%s/%s", t->prefix, name);
}

static void rename_all(taking *t, Tensorflow__GraphDef *gd)
{
    for (size_t i = 0; i < gd->n_node; i++) {
        Tensorflow__NodeDef *nd = gd->node[i];
        for (size_t k = 0; k < nd->n_input; k++)
            nd->input[k] = new_input(t, nd->input[k]);
        if (!t->prefix)
            continue;
        nd->name = trn_arena_printf(t->a, "%s/%s", t->prefix, nd->name);
        for (size_t k = 0; k < nd->n_attr; k++) {
            Tensorflow__AttrValue *v = nd->attr[k]->value;
            if (strcmp(nd->attr[k]->key, "_class") || !v || v->value_case != TENSORFLOW__ATTR_VALUE__VALUE_LIST)
                continue;
            for (size_t j = 0; j < v->list->n_s; j++) {
                ProtobufCBinaryData *s = &v->list->s[j];
                if (s->len < 5 || memcmp(s->data, "loc:@", 5))
                    continue;
                char *to = trn_arena_printf(t->a, "loc:@%s/%.*s", t->prefix, (int)s->len - 5, (const char *)s->data + 5);
                *s = (ProtobufCBinaryData){strlen(to), (uint8_t *)to};
            }
        }
    }
}

/* Inputs from elsewhere must be tensors of this builder, and be asked for. */
static trn_err take_in(taking *t, Tensorflow__GraphDef *gd)
{
    for (int i = 0; i < t->n_inputs; i++) {
        const trn_gnode *nd = trn_builder__node(t->b, t->input[i].tensor);
        if (!t->input[i].name || !nd || t->input[i].tensor.slot >= nd->n.n_out || (t->input[i].tensor.slot < 0 && *t->input[i].name != '^'))
            return trn_errorf(TRN_INVALID_ARGUMENT, "input %d, '%s', has no tensor", i, t->input[i].name ? t->input[i].name : "");
    }
    rename_all(t, gd);
    for (int i = 0; i < t->n_inputs; i++)
        if (!t->used[i])
            return trn_errorf(TRN_NOT_FOUND, "no node takes anything from '%s'", t->input[i].name);
    return trn_graph_import(t->b->g, gd);
}

const char *trn_builder__import(trn_builder *b, const void *graph_def, size_t n, const char *prefix, const trn_named_out *inputs, int n_inputs)
{
    b = b->real;
    if (b->err)
        return NULL;
    taking t = {.a = trn_arena_new(), .b = b, .input = inputs, .n_inputs = TRN_MAX(n_inputs, 0)};
    Tensorflow__GraphDef *gd;
    int first = b->g->n;
    t.used = trn_arena_alloc(t.a, (size_t)t.n_inputs + 1);
    trn_err err = TRN_PB_UNPACK(&gd, t.a, tensorflow__graph_def__descriptor, graph_def, n);
    if (!err) {
        if (prefix)
            t.prefix = trn_builder_strdup(b, trn_builder__unique(b, whole_name(b, prefix)));
        err = take_in(&t, gd);
        b->g->producer = TRN_GRAPH_PRODUCER;
    }
    trn_arena_free(t.a);
    if (err)
        trn_builder_fail(b, trn_err_wrap(err, "while importing a graph"));
    else
        trn_builder__adopt(b, first);
    b->lib_version++;
    return err ? NULL : t.prefix ? t.prefix : "";
}

void trn_builder_import(trn_builder *b, const void *graph_def, size_t n, const char *prefix) { trn_builder__import(b, graph_def, n, prefix, NULL, 0); }

void trn_builder_import_with(trn_builder *b, const void *graph_def, size_t n, const char *prefix, const trn_named_out *inputs, int n_inputs)
{
    trn_builder__import(b, graph_def, n, prefix, inputs, n_inputs);
}

void trn_builder__add_functions(trn_builder *b, Tensorflow__FunctionDef *const *f, int n)
{
    b = b->real;
    if (b->err)
        return;
    trn_funclib *lib = b->g->lib ? trn_funclib__copy(b->g->lib) : trn_funclib_new();
    trn_err err = TRN_OK;
    for (int i = 0; i < n && !err; i++)
        err = trn_funclib_add(lib, f[i]);
    if (err) {
        trn_funclib_unref(lib);
        trn_builder_fail(b, err);
        return;
    }
    trn_funclib_unref(b->g->lib);
    b->g->lib = lib;
    b->lib_version++;
}

Tensorflow__GraphDef *trn_builder__export(trn_arena *a, const trn_builder *b, int first)
{
    Tensorflow__GraphDef *gd = trn_graph_export(a, b->g);
    gd->node += first; /* a builder's graph has no holes */
    gd->n_node -= (size_t)first;
    return gd;
}

trn_err trn_builder_export(void **out, size_t *n, const trn_builder *b)
{
    b = b->real;
    TRN_TRY(trn_builder_check(b));
    trn_arena *a = trn_arena_new();
    trn_sb s = {0};
    trn_pb_pack(&s, &trn_builder__export(a, b, 0)->base);
    trn_arena_free(a);
    *out = s.p ? s.p : trn_xalloc(1);
    *n = s.n;
    return TRN_OK;
}

trn_err trn_builder_export_text(char **out, const trn_builder *b)
{
    b = b->real;
    TRN_TRY(trn_builder_check(b));
    trn_arena *a = trn_arena_new();
    trn_sb s = {0};
    trn_textproto_write(&s, &trn_builder__export(a, b, 0)->base);
    trn_sb_add(&s, "", 1);
    trn_arena_free(a);
    *out = (char *)s.p;
    return TRN_OK;
}
