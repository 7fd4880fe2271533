/* Nodes against their rows: attrs with defaults, dtypes of inputs and outputs. */
#include <limits.h>

#include "op/registry.h"

#define MAX_LIST 65536 /* inputs or outputs of one node */

const trn_attr *trn_node_attr(const trn_node *n, const char *name)
{
    for (int i = 0; i < n->n_attrs; i++)
        if (!strcmp(n->attrs[i].name, name))
            return &n->attrs[i];
    return NULL;
}

#define SCALAR(k) const trn_attr *a = trn_node_attr(n, name); if (!a || a->is_list || a->kind != (k))

int64_t trn_attr_int(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_INT) return 0;
    return a->v.i;
}

float trn_attr_float(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_FLOAT) return 0;
    return a->v.f;
}

bool trn_attr_bool(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_BOOL) return false;
    return a->v.b;
}

trn_dtype trn_attr_type(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_TYPE) return TRN_INVALID;
    return a->v.type;
}

const char *trn_attr_str(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_STRING) return "";
    return a->v.s.p;
}

const trn_shape *trn_attr_shape(const trn_node *n, const char *name)
{
    static const trn_shape unknown = {.rank = -1};
    SCALAR(TRN_ATTR_SHAPE) return &unknown;
    return a->v.shape;
}

trn_tensor *trn_attr_tensor(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_TENSOR) return NULL;
    return a->v.tensor;
}

const trn_func_ref *trn_attr_func(const trn_node *n, const char *name)
{
    SCALAR(TRN_ATTR_FUNC) return NULL;
    return a->v.func;
}

static const char *kind_name(trn_attr_kind k)
{
    static const char *const names[] = {"nothing", "string", "int", "float", "bool", "type", "shape", "tensor", "func", "placeholder"};
    return names[k];
}

static trn_err check_type(const trn_node *n, const trn_attrdef *d, trn_dtype t)
{
    if (t <= TRN_INVALID || t >= TRN_DTYPE_END || !trn_dtype_size(t))
        return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): attr %s is not a dtype (%d)", n->name, n->op, d->name, (int)t);
    if (!(d->types >> t & 1))
        return trn_errorf(TRN_UNIMPLEMENTED, "No OpKernel was registered to support Op '%s' used by node %s with %s=DT_%s: Trainera's kernel has no such type",
                          n->op, n->name, d->name, trn_dtype_name(t));
    return TRN_OK;
}

static trn_err check_attr(const trn_node *n, const trn_attrdef *d, const trn_attr *a)
{
    if (a->kind == TRN_ATTR_PLACEHOLDER)
        return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): attr %s is still the placeholder $%s", n->name, n->op, d->name, a->v.s.p);
    bool empty_list = a->is_list && a->n == 0;
    if (a->is_list != d->is_list || (a->kind != d->kind && !(empty_list && d->is_list)))
        return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): attr %s is %s%s, expected %s%s", n->name, n->op, d->name, a->is_list ? "a list of " : "",
                          kind_name(a->kind), d->is_list ? "a list of " : "", kind_name(d->kind));
    if (d->min != INT64_MIN) {
        int64_t v = d->is_list ? a->n : a->v.i;
        if (v < d->min)
            return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): attr %s is %lld, less than the minimum %lld", n->name, n->op, d->name, (long long)v, (long long)d->min);
    }
    if (d->kind == TRN_ATTR_TYPE) {
        for (int i = 0; i < (a->is_list ? a->n : 1); i++)
            TRN_TRY(check_type(n, d, a->is_list ? a->list[i].type : a->v.type));
    }
    if (d->n_allowed) {
        for (int i = 0; i < (a->is_list ? a->n : 1); i++) {
            const char *s = a->is_list ? a->list[i].s.p : a->v.s.p;
            bool ok = false;
            for (int j = 0; j < d->n_allowed; j++)
                ok = ok || !strcmp(d->allowed[j], s);
            if (!ok)
                return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): attr %s has the value \"%.60s\", which is not allowed", n->name, n->op, d->name, s);
        }
    }
    return TRN_OK;
}

/* Calls put(type) for every flat element of the argument. */
static trn_err expand(const trn_node *n, const trn_opdef *o, const trn_argdef *d, trn_dtype *types, int *count)
{
    int64_t reps = 1;
    if (d->number_attr >= 0)
        reps = trn_attr_int(n, o->attrs[d->number_attr].name);
    const trn_attr *list = d->type_list_attr >= 0 ? trn_node_attr(n, o->attrs[d->type_list_attr].name) : NULL;
    if (list)
        reps = list->n;
    if (reps < 0 || reps > MAX_LIST || *count + reps > MAX_LIST)
        return trn_errorf(TRN_INVALID_ARGUMENT, "node %s (%s): argument %s has %lld elements", n->name, n->op, d->name, (long long)reps);
    for (int64_t i = 0; i < reps; i++) {
        trn_dtype t = list ? list->list[i].type : d->type_attr >= 0 ? trn_attr_type(n, o->attrs[d->type_attr].name) : d->type;
        if (types)
            types[*count] = d->is_ref ? (trn_dtype)(t + TRN_REF) : t;
        (*count)++;
    }
    return TRN_OK;
}

trn_err trn_node_resolve(trn_node *n, trn_arena *a)
{
    const trn_opdef *o = n->def = trn_op_find(n->op);
    if (!o)
        return trn_errorf(TRN_UNIMPLEMENTED, "Op type not registered '%s' (node %s): Trainera has no such op", n->op, n->name);
    int missing = 0;
    for (int i = 0; i < o->n_attrs; i++)
        missing += !trn_node_attr(n, o->attrs[i].name);
    if (missing) {
        trn_attr *all = trn_arena_alloc(a, sizeof *all * (size_t)(n->n_attrs + missing));
        if (n->n_attrs)
            memcpy(all, n->attrs, sizeof *all * (size_t)n->n_attrs);
        int m = n->n_attrs;
        for (int i = 0; i < o->n_attrs; i++) {
            if (trn_node_attr(n, o->attrs[i].name))
                continue;
            if (!o->attrs[i].has_default)
                return trn_errorf(TRN_INVALID_ARGUMENT, "NodeDef missing attr '%s' from Op<name=%s> (node %s)", o->attrs[i].name, n->op, n->name);
            all[m++] = o->attrs[i].def;
        }
        n->attrs = all;
        n->n_attrs = m;
    }
    for (int i = 0; i < o->n_attrs; i++)
        TRN_TRY(check_attr(n, &o->attrs[i], trn_node_attr(n, o->attrs[i].name)));
    int n_in = 0, n_out = 0;
    for (int i = 0; i < o->n_in; i++)
        TRN_TRY(expand(n, o, &o->in[i], NULL, &n_in));
    for (int i = 0; i < o->n_out; i++)
        TRN_TRY(expand(n, o, &o->out[i], NULL, &n_out));
    n->in_types = trn_arena_alloc(a, sizeof *n->in_types * (size_t)(n_in + n_out + 1));
    n->out_types = n->in_types + n_in;
    n->n_in = n->n_out = 0;
    for (int i = 0; i < o->n_in; i++)
        TRN_TRY(expand(n, o, &o->in[i], n->in_types, &n->n_in));
    for (int i = 0; i < o->n_out; i++)
        TRN_TRY(expand(n, o, &o->out[i], n->out_types, &n->n_out));
    return TRN_OK;
}

static bool arg_range(const trn_node *n, const trn_argdef *args, int n_args, const char *arg, size_t len, int *first, int *count)
{
    int at = 0;
    for (int i = 0; i < n_args; i++) {
        int start = at;
        if (expand(n, n->def, &args[i], NULL, &at))
            return false; /* cannot happen for a resolved node */
        if (strlen(args[i].name) == len && !memcmp(args[i].name, arg, len)) {
            *first = start;
            *count = at - start;
            return true;
        }
    }
    return false;
}

bool trn_node_out_arg(const trn_node *n, const char *arg, size_t len, int *first, int *count)
{
    return n->def && arg_range(n, n->def->out, n->def->n_out, arg, len, first, count);
}

bool trn_node_in_arg(const trn_node *n, const char *arg, size_t len, int *first, int *count)
{
    return n->def && arg_range(n, n->def->in, n->def->n_in, arg, len, first, count);
}
