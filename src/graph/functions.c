/* The function library: FunctionDefs by name, their signatures, their bodies as graphs.
 *
 * A library may be shared by threads as long as nobody adds to it: trn_graph_import adds to a copy, whose entries are shared. */
#include "graph/graph_priv.h"
#include "proto/pb.h"

#include <limits.h>
#include <stdlib.h>

#define MAX_LIST 65536 /* values of one N*T argument */
/* What one body may take in memory, beside its constants: one input of it may stand for many tensors, one attr's value be put in many places. */
#define MAX_BODY ((size_t)1 << 30)
#define MAX_ATTR_DEPTH 64 /* functions as attrs of functions: values that went from call to call, each time into another one */

typedef struct func {
    _Atomic uint32_t ref;
    trn_arena *arena;
    Tensorflow__FunctionDef *def;
    uint8_t *bytes; /* canonical: map fields in the order of their keys */
    size_t n_bytes;
} func;

struct trn_funclib {
    _Atomic uint32_t ref;
    trn_map *by_name;
    int n, cap;
    func **v; /* in the order in which they came */
    trn_map *gradients; /* name → name (owned): functions that say which function is their gradient */
};

/* ---- library -------------------------------------------------------------------------------------------------- */

trn_funclib *trn_funclib_new(void)
{
    trn_funclib *l = trn_xalloc(sizeof *l);
    atomic_init(&l->ref, 1);
    l->by_name = trn_map_new();
    l->gradients = trn_map_new();
    return l;
}

trn_funclib *trn_funclib_ref(trn_funclib *l)
{
    atomic_fetch_add_explicit(&l->ref, 1, memory_order_relaxed);
    return l;
}

static void func_unref(func *f)
{
    if (atomic_fetch_sub_explicit(&f->ref, 1, memory_order_acq_rel) == 1) {
        trn_arena_free(f->arena);
        free(f);
    }
}

void trn_funclib_unref(trn_funclib *l)
{
    if (!l || atomic_fetch_sub_explicit(&l->ref, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < l->n; i++)
        func_unref(l->v[i]);
    trn_map_free(l->by_name, NULL);
    trn_map_free(l->gradients, free);
    free(l->v);
    free(l);
}

static void put(trn_funclib *l, func *f)
{
    TRN_PUSH(l->v, l->n, l->cap, f);
    trn_map_puts(l->by_name, f->def->signature->name, f);
}

trn_funclib *trn_funclib__copy(const trn_funclib *l)
{
    trn_funclib *c = trn_funclib_new();
    for (int i = 0; l && i < l->n; i++) {
        atomic_fetch_add_explicit(&l->v[i]->ref, 1, memory_order_relaxed);
        put(c, l->v[i]);
    }
    const char *key;
    size_t n;
    void *value;
    for (size_t it = 0; l && trn_map_next(l->gradients, &it, &key, &n, &value);)
        trn_map_put(c->gradients, key, n, trn_xstrdup(value));
    return c;
}

bool trn_funclib__alone(const trn_funclib *l) { return atomic_load_explicit(&l->ref, memory_order_acquire) == 1; }

void trn_funclib__cut(trn_funclib *l, int n)
{
    while (l->n > n) {
        func *f = l->v[--l->n];
        trn_map_dels(l->by_name, f->def->signature->name);
        func_unref(f);
    }
}

const char *trn_funclib__gradient(const trn_funclib *l, const char *fn) { return trn_map_gets(l->gradients, fn); }

trn_err trn_funclib__add_gradient(trn_funclib *l, const Tensorflow__GradientDef *d)
{
    const char *fn = d->function_name ? d->function_name : "", *g = d->gradient_func ? d->gradient_func : "", *old = trn_map_gets(l->gradients, fn);
    if (!*fn || !*g || (old && strcmp(old, g) != 0))
        return trn_errorf(TRN_INVALID_ARGUMENT, "the gradient of function '%s' is said to be '%s'%s%s", fn, g, old ? " and " : "", old ? old : "");
    if (!old)
        trn_map_puts(l->gradients, fn, trn_xstrdup(g));
    return TRN_OK;
}

static bool is_map_entry(const ProtobufCMessageDescriptor *d)
{
    size_t n = strlen(d->name);
    return n > 5 && strcmp(d->name + n - 5, "Entry") == 0 && d->n_fields == 2 && strcmp(d->fields[0].name, "key") == 0;
}

static int by_key(const void *x, const void *y)
{
    const ProtobufCMessage *mx = *(ProtobufCMessage *const *)x, *my = *(ProtobufCMessage *const *)y;
    const ProtobufCFieldDescriptor *key = &mx->descriptor->fields[0];
    const void *kx = (const char *)mx + key->offset, *ky = (const char *)my + key->offset;
    if (key->type == PROTOBUF_C_TYPE_STRING)
        return strcmp(*(char *const *)kx, *(char *const *)ky);
    uint32_t ux = *(const uint32_t *)kx, uy = *(const uint32_t *)ky;
    return ux < uy ? -1 : ux > uy;
}

/* Map fields in the order of their keys, so that equal messages have equal bytes. */
static void canonicalise(ProtobufCMessage *m)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        if (f->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        void *at = (char *)m + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)((const char *)m + f->quantifier_offset);
            ProtobufCMessage **v = *(ProtobufCMessage ***)at;
            if (n && is_map_entry(f->descriptor))
                qsort(v, n, sizeof *v, by_key);
            for (size_t k = 0; k < n; k++)
                canonicalise(v[k]);
        } else {
            bool set = !(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
                       *(const uint32_t *)((const char *)m + f->quantifier_offset) == f->id;
            if (set && *(ProtobufCMessage **)at)
                canonicalise(*(ProtobufCMessage **)at);
        }
    }
}

trn_err trn_funclib_add(trn_funclib *l, const Tensorflow__FunctionDef *fd)
{
    if (!fd->signature || !fd->signature->name[0])
        return trn_errorf(TRN_INVALID_ARGUMENT, "a function of the library has no name");
    const char *name = fd->signature->name;
    if (fd->signature->n_attr > TRN_MAX_ATTRS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' has %zu attrs", name, fd->signature->n_attr);
    for (size_t i = 0; i < fd->n_node_def; i++)
        for (size_t k = 0; k < fd->node_def[i]->n_attr; k++)
            if (!fd->node_def[i]->attr[k]->value)
                return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': attr '%s' of node '%s' has no value", name,
                                  fd->node_def[i]->attr[k]->key, fd->node_def[i]->name);
    uint64_t growth;
    TRN_TRY(trn_nodes__growth(&growth, fd->node_def, fd->n_node_def));
    func *f = trn_xalloc(sizeof *f);
    atomic_init(&f->ref, 1);
    f->arena = trn_arena_new();
    size_t n = tensorflow__function_def__get_packed_size(fd);
    uint8_t *bytes = trn_arena_alloc(f->arena, TRN_MAX(n, 1));
    tensorflow__function_def__pack(fd, bytes);
    ProtobufCAllocator alloc = trn_pb_allocator(f->arena);
    f->def = tensorflow__function_def__unpack(&alloc, n, bytes);
    if (!f->def) {
        func_unref(f);
        return trn_errorf(TRN_INTERNAL, "function '%s' cannot be copied", name);
    }
    canonicalise(&f->def->base);
    f->bytes = bytes;
    f->n_bytes = tensorflow__function_def__pack(f->def, bytes);
    const func *was = trn_map_gets(l->by_name, name);
    if (!was) {
        put(l, f);
        return TRN_OK;
    }
    bool same = was->n_bytes == f->n_bytes && memcmp(was->bytes, f->bytes, f->n_bytes) == 0;
    func_unref(f);
    if (!same)
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Cannot add function '%s' because a different function with the same name already exists.",
                          name);
    return TRN_OK;
}

/* Datasets inside of functions count as stateful so that they are never folded; what they give depends on nothing else. */
static bool is_stateful(const char *op)
{
    const trn_opdef *d = trn_op_find(op);
    const char *ds = strstr(op, "Dataset");
    bool dataset = ds && (!ds[7] || ds[7] == 'V');
    return d && d->row->flags & TRN_OP_STATEFUL && !dataset && strcmp(op, "Assert") != 0;
}

/* Twice the same name is twice the same function, or an error: a graph has one library. */
static trn_err add_from(trn_funclib *l, const trn_funclib *from, const char *name)
{
    func *f = from && name ? trn_map_gets(from->by_name, name) : NULL, *was = f ? trn_map_gets(l->by_name, name) : NULL;
    if (was)
        return was == f ? TRN_OK : trn_funclib_add(l, f->def);
    if (f) {
        atomic_fetch_add_explicit(&f->ref, 1, memory_order_relaxed);
        put(l, f);
    }
    return TRN_OK;
}

static trn_err add_callees(trn_funclib *l, const trn_funclib *from, const Tensorflow__FunctionDef *fd, const char **stateful)
{
    const char *gradient = trn_funclib__gradient(from, fd->signature->name);
    if (gradient && !trn_map_gets(l->gradients, fd->signature->name))
        trn_map_puts(l->gradients, fd->signature->name, trn_xstrdup(gradient));
    TRN_TRY(add_from(l, from, gradient));
    for (size_t i = 0; i < fd->n_node_def; i++) {
        const Tensorflow__NodeDef *n = fd->node_def[i];
        if (stateful && is_stateful(n->op))
            *stateful = n->op;
        TRN_TRY(add_from(l, from, n->op));
        for (size_t k = 0; k < n->n_attr; k++) {
            const Tensorflow__AttrValue *v = n->attr[k]->value;
            if (v->value_case == TENSORFLOW__ATTR_VALUE__VALUE_FUNC)
                TRN_TRY(add_from(l, from, v->func->name));
            for (size_t j = 0; v->value_case == TENSORFLOW__ATTR_VALUE__VALUE_LIST && j < v->list->n_func; j++)
                TRN_TRY(add_from(l, from, v->list->func[j]->name));
        }
    }
    return TRN_OK;
}

trn_err trn_funclib_add_called(trn_funclib *l, const trn_funclib *from, const trn_attr *a, const char **stateful)
{
    int first = l->n;
    for (int i = 0; a->kind == TRN_ATTR_FUNC && i < (a->is_list ? a->n : 1); i++)
        TRN_TRY(add_from(l, from, (a->is_list ? a->list[i].func : a->v.func)->name));
    for (int i = first; i < l->n; i++) /* callees come in behind */
        TRN_TRY(add_callees(l, from, l->v[i]->def, stateful));
    return TRN_OK;
}

bool trn_funclib_has(const trn_funclib *l, const char *name) { return l && trn_map_gets(l->by_name, name); }

const Tensorflow__FunctionDef *trn_funclib__find(const trn_funclib *l, const char *name)
{
    const func *f = l ? trn_map_gets(l->by_name, name) : NULL;
    return f ? f->def : NULL;
}

void trn_funclib_export(const trn_funclib *l, trn_arena *a, Tensorflow__GraphDef *gd)
{
    if (!l || !l->n)
        return;
    gd->library = trn_arena_alloc(a, sizeof *gd->library);
    tensorflow__function_def_library__init(gd->library);
    gd->library->n_function = (size_t)l->n;
    gd->library->function = trn_arena_alloc(a, (size_t)l->n * sizeof *gd->library->function);
    for (int i = 0; i < l->n; i++)
        gd->library->function[i] = l->v[i]->def;
    const char *key;
    size_t n;
    void *value;
    gd->library->gradient = trn_arena_alloc(a, (trn_map_count(l->gradients) + 1) * sizeof *gd->library->gradient);
    for (size_t it = 0; trn_map_next(l->gradients, &it, &key, &n, &value);) {
        Tensorflow__GradientDef *d = trn_arena_alloc(a, sizeof *d);
        tensorflow__gradient_def__init(d);
        d->function_name = trn_arena_strndup(a, key, n);
        d->gradient_func = trn_arena_strdup(a, value);
        gd->library->gradient[gd->library->n_gradient++] = d;
    }
}

void trn_funclib_remove(trn_funclib *l, const char *name)
{
    func *f = trn_map_dels(l->by_name, name);
    if (!f)
        return;
    int k = 0;
    for (int i = 0; i < l->n; i++)
        if (l->v[i] != f)
            l->v[k++] = l->v[i];
    l->n = k;
    func_unref(f);
}

trn_map *trn_funclib__rets(const Tensorflow__FunctionDef *fd)
{
    trn_map *from = trn_map_new();
    for (size_t k = fd->n_ret; k-- > 0;) /* the first one of a name counts */
        trn_map_puts(from, fd->ret[k]->key, fd->ret[k]->value);
    return from;
}

size_t trn_funclib_count(const trn_funclib *l) { return (size_t)l->n; }

/* ---- signatures ----------------------------------------------------------------------------------------------- */

static trn_err not_found(const char *name)
{
    return trn_errorf(TRN_NOT_FOUND, "the function library has no function '%s'", name);
}

static trn_err charge(uint64_t *left, uint64_t need, const Tensorflow__FunctionDef *fd, const char *attr)
{
    if (need > *left)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED,
                          "function '%s'%s%s: constants need %llu bytes beyond their values; the graph may take %llu more",
                          fd->signature->name, *attr ? ", attr " : "", attr, (unsigned long long)need,
                          (unsigned long long)*left);
    *left -= need;
    return TRN_OK;
}

/* The function's own attr for this instance, or its default, for which *left is charged. NULL when neither is there. */
static trn_err func_attr(const trn_attr **out, trn_arena *a, const Tensorflow__FunctionDef *fd, const trn_func_ref *f,
                         const char *name, uint64_t *left)
{
    *out = NULL;
    for (int i = 0; i < f->n_attrs; i++)
        if (strcmp(f->attrs[i].name, name) == 0) {
            *out = &f->attrs[i];
            return TRN_OK;
        }
    for (size_t i = 0; i < fd->signature->n_attr; i++) {
        const Tensorflow__OpDef__AttrDef *d = fd->signature->attr[i];
        if (strcmp(d->name, name) == 0 && d->default_value) {
            TRN_TRY(charge(left, trn_attr_pb__growth(d->default_value), fd, name));
            trn_attr *v = trn_arena_alloc(a, sizeof *v);
            TRN_TRY(trn_attr_from_pb(v, a, name, d->default_value));
            *out = v;
        }
    }
    return TRN_OK;
}

/* Types of one argument. */
static trn_err arg_types(trn_dtype **out, int *n, trn_arena *a, const Tensorflow__FunctionDef *fd,
                         const trn_func_ref *f, const Tensorflow__OpDef__ArgDef *arg)
{
    const char *fname = fd->signature->name;
    uint64_t left = 0; /* types and numbers take nothing */
    const trn_attr *attr;
    if (arg->type_list_attr[0]) {
        TRN_TRY(func_attr(&attr, a, fd, f, arg->type_list_attr, &left));
        if (!attr || !attr->is_list || (attr->n && attr->kind != TRN_ATTR_TYPE))
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': argument '%s' needs attr '%s', a list of types",
                              fname, arg->name, arg->type_list_attr);
        *n = attr->n;
        *out = trn_arena_alloc(a, (size_t)TRN_MAX(attr->n, 1) * sizeof **out);
        for (int i = 0; i < attr->n; i++)
            (*out)[i] = trn_dtype_base(attr->list[i].type);
        return TRN_OK;
    }
    trn_dtype t = (trn_dtype)arg->type;
    if (arg->type_attr[0]) {
        TRN_TRY(func_attr(&attr, a, fd, f, arg->type_attr, &left));
        if (!attr || attr->is_list || attr->kind != TRN_ATTR_TYPE)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': argument '%s' needs attr '%s', a type", fname,
                              arg->name, arg->type_attr);
        t = attr->v.type;
    }
    t = trn_dtype_base(t);
    if (t <= TRN_INVALID || t >= TRN_DTYPE_END)
        return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': argument '%s' has no type", fname, arg->name);
    int64_t count = 1;
    if (arg->number_attr[0]) {
        TRN_TRY(func_attr(&attr, a, fd, f, arg->number_attr, &left));
        if (!attr || attr->is_list || attr->kind != TRN_ATTR_INT || attr->v.i < 0 || attr->v.i > MAX_LIST)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': argument '%s' needs attr '%s', a number up to %d",
                              fname, arg->name, arg->number_attr, MAX_LIST);
        count = attr->v.i;
    }
    *n = (int)count;
    *out = trn_arena_alloc(a, (size_t)TRN_MAX(count, 1) * sizeof **out);
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = t;
    return TRN_OK;
}

/* All arguments (or results) one after the other; first[i] is where argument i starts, first[n_args] the end. */
static trn_err flat_types(trn_dtype **out, int **first, trn_arena *a, const Tensorflow__FunctionDef *fd,
                          const trn_func_ref *f, Tensorflow__OpDef__ArgDef *const *args, size_t n_args)
{
    int n = 0, cap = 0;
    trn_dtype *v = NULL;
    *first = trn_arena_alloc(a, (n_args + 1) * sizeof **first);
    for (size_t i = 0; i < n_args; i++) {
        trn_dtype *t;
        int count;
        trn_err err = arg_types(&t, &count, a, fd, f, args[i]);
        if (!err && n > 16 * MAX_LIST)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' has too many arguments", fd->signature->name);
        if (err) {
            free(v);
            return err;
        }
        (*first)[i] = n;
        for (int k = 0; k < count; k++)
            TRN_PUSH(v, n, cap, t[k]);
    }
    (*first)[n_args] = n;
    *out = trn_arena_alloc(a, (size_t)TRN_MAX(n, 1) * sizeof **out);
    if (n)
        memcpy(*out, v, (size_t)n * sizeof *v);
    free(v);
    return TRN_OK;
}

trn_err trn_funclib_signature(const trn_funclib *l, trn_arena *a, const trn_func_ref *f, int *n_args, trn_dtype **args,
                              int *n_rets, trn_dtype **rets)
{
    const Tensorflow__FunctionDef *fd = trn_funclib__find(l, f->name);
    if (!fd)
        return not_found(f->name);
    trn_dtype *in, *out;
    int *first_in, *first_out;
    const Tensorflow__OpDef *sig = fd->signature;
    TRN_TRY(flat_types(&in, &first_in, a, fd, f, sig->input_arg, sig->n_input_arg));
    TRN_TRY(flat_types(&out, &first_out, a, fd, f, sig->output_arg, sig->n_output_arg));
    *args = in;
    *n_args = first_in[sig->n_input_arg];
    *rets = out;
    *n_rets = first_out[sig->n_output_arg];
    return TRN_OK;
}

/* ---- bodies --------------------------------------------------------------------------------------------------- */

typedef struct body {
    trn_stage s;
    trn_arena *a;
    const Tensorflow__FunctionDef *fd;
    const trn_func_ref *f;
    trn_map *args;  /* argument name → its index + 1 in the signature */
    int *first_arg; /* flat index of argument i; node ids are the same numbers */
    trn_map *
        results; /* "id:name" → int[2]: first and count of a result of a function that node id calls; "id": those are known */
    trn_ctlset ctls;
    uint64_t *left; /* of trn_graph__max_growth */
    int uniq;       /* for names of results */
} body;

static trn_err check_size(const body *b)
{
    return trn_arena_bytes(b->a) <= MAX_BODY ? TRN_OK
                                             : trn_errorf(TRN_RESOURCE_EXHAUSTED, "function '%s': its body takes more than %zu bytes",
                                                          b->fd->signature->name, MAX_BODY);
}

static int depth_of_func(const trn_func_ref *f);

/* Functions in functions in this value. */
static int depth_of(const trn_attr *attr)
{
    int most = 0;
    if (attr->kind == TRN_ATTR_FUNC)
        for (int i = 0; i < (attr->is_list ? attr->n : 1); i++) {
            int one = depth_of_func(attr->is_list ? attr->list[i].func : attr->v.func);
            most = TRN_MAX(most, one);
        }
    return most;
}

static int depth_of_func(const trn_func_ref *f)
{
    int most = 0;
    for (int i = 0; i < f->n_attrs; i++) {
        int one = depth_of(&f->attrs[i]);
        most = TRN_MAX(most, one);
    }
    return most + 1;
}

static trn_err substitute(trn_attr *attr, body *b, int depth);

static trn_err substitute_func(const trn_func_ref **f, body *b, int depth)
{
    trn_func_ref *c = trn_arena_alloc(b->a, sizeof *c);
    trn_attr *attrs = trn_arena_alloc(b->a, (size_t)TRN_MAX((*f)->n_attrs, 1) * sizeof *attrs);
    for (int i = 0; i < (*f)->n_attrs; i++) {
        attrs[i] = (*f)->attrs[i];
        TRN_TRY(substitute(&attrs[i], b, depth + 1));
    }
    *c = (trn_func_ref){(*f)->name, (*f)->n_attrs, attrs};
    *f = c;
    return TRN_OK;
}

/* Placeholders become the values of this instance; the attr itself is in b's arena already. */
static trn_err substitute(trn_attr *attr, body *b, int depth)
{
    if (attr->kind == TRN_ATTR_PLACEHOLDER) {
        const trn_attr *v;
        TRN_TRY(func_attr(&v, b->a, b->fd, b->f, attr->v.s.p, b->left));
        if (!v)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' is used without its attr '%s'",
                              b->fd->signature->name, attr->v.s.p);
        TRN_TRY(check_size(b));
        if (depth + depth_of(v) > MAX_ATTR_DEPTH)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': attr '%s' nests functions deeper than %d",
                              b->fd->signature->name, attr->v.s.p, MAX_ATTR_DEPTH);
        const char *name = attr->name;
        trn_attr__copy(attr, b->a, v);
        attr->name = name;
    } else if (attr->kind == TRN_ATTR_FUNC && !attr->is_list) {
        TRN_TRY(substitute_func(&attr->v.func, b, depth));
    } else if (attr->kind == TRN_ATTR_FUNC) {
        trn_attr_val *v = trn_arena_alloc(b->a, (size_t)TRN_MAX(attr->n, 1) * sizeof *v);
        for (int i = 0; i < attr->n; i++) {
            v[i] = attr->list[i];
            TRN_TRY(substitute_func(&v[i].func, b, depth));
        }
        attr->list = v;
    }
    return TRN_OK;
}

static trn_err body_args(body *b)
{
    const Tensorflow__OpDef *sig = b->fd->signature;
    trn_dtype *types;
    TRN_TRY(flat_types(&types, &b->first_arg, b->a, b->fd, b->f, sig->input_arg, sig->n_input_arg));
    for (size_t i = 0; i < sig->n_input_arg; i++) {
        const char *name = sig->input_arg[i]->name;
        int first = b->first_arg[i], count = b->first_arg[i + 1] - first;
        if (trn_map_puts(b->args, name, (void *)(uintptr_t)(i + 1)))
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': Duplicated arg name: %s", sig->name, name);
        TRN_TRY(check_size(b));
        for (int k = 0; k < count; k++) {
            trn_attr *attrs = trn_arena_alloc(b->a, 2 * sizeof *attrs);
            attrs[0] = trn_attr__type("T", types[first + k]);
            attrs[1] = trn_attr__int("index", first + k);
            trn_gnode *nd;
            TRN_TRY(trn_stage__node(&nd, &b->s, count > 1 ? trn_arena_printf(b->a, "%s_%d", name, k) : name, "_Arg", "",
                                    attrs, 2, 0, 0));
        }
    }
    return TRN_OK;
}

static trn_err body_node(body *b, const Tensorflow__NodeDef *pb)
{
    trn_attr *attrs;
    int n_attrs, n_ctl = 0;
    TRN_TRY(trn_attrs__from_pb(&attrs, &n_attrs, b->a, pb->attr, pb->n_attr));
    for (int i = 0; i < n_attrs; i++)
        TRN_TRY(substitute(&attrs[i], b, 0));
    TRN_TRY(check_size(b));
    for (size_t i = 0; i < pb->n_input; i++)
        n_ctl += pb->input[i][0] == '^';
    trn_gnode *nd;
    TRN_TRY(trn_stage__node(&nd, &b->s, pb->name, pb->op, pb->device, attrs, n_attrs, -1, n_ctl));
    if (nd->n.out_types == trn_graph__untyped) {
        trn_node n = nd->n;
        trn_err err = trn_node_resolve(&n, b->a);
        return err ? err : trn_errorf(TRN_UNIMPLEMENTED, "Op type not registered '%s' (node '%s')", pb->op, pb->name);
    }
    return TRN_OK;
}

/* What an input string of the body stands for: `count` tensors. Arguments are nodes of their own, a node's results are slots of one. */
typedef struct span {
    trn_gnode *nd;
    int first, count;
    bool is_arg;
} span;

/* Flat range of a named result of a function node. The whole signature is laid out once: a node may have many results and be asked for all. */
static bool function_result(body *b, const trn_gnode *nd, const char *name, size_t len, int *first, int *count)
{
    trn_sb key = {0};
    trn_sb_addf(&key, "%d", nd->id);
    size_t id_len = key.n;
    const Tensorflow__FunctionDef *fd = trn_funclib__find(b->s.lib, nd->n.op);
    if (fd && !trn_map_get(b->results, key.p, key.n)) {
        trn_func_ref f = {nd->n.op, nd->n.n_attrs, nd->n.attrs};
        trn_dtype *types;
        int *firsts = NULL;
        trn_err err = flat_types(&types, &firsts, b->a, fd, &f, fd->signature->output_arg, fd->signature->n_output_arg);
        trn_map_put(b->results, key.p, key.n, b);
        for (size_t i = 0; !err && i < fd->signature->n_output_arg; i++) {
            int *range = trn_arena_alloc(b->a, 2 * sizeof *range);
            range[0] = firsts[i];
            range[1] = firsts[i + 1] - firsts[i];
            key.n = id_len;
            trn_sb_addf(&key, ":%s", fd->signature->output_arg[i]->name);
            trn_map_put(b->results, key.p, key.n, range);
        }
        if (err)
            trn_err_free(err); /* the node was resolved by the same signature: cannot be */
    }
    key.n = id_len;
    trn_sb_add(&key, ":", 1);
    trn_sb_add(&key, name, len);
    const int *range = trn_map_get(b->results, key.p, key.n);
    trn_sb_fini(&key);
    if (!range)
        return false;
    *first = range[0];
    *count = range[1];
    return true;
}

static trn_err find_span(span *out, body *b, const char *in)
{
    const char *fname = b->fd->signature->name, *colon = strchr(in, ':');
    size_t len = colon ? (size_t)(colon - in) : strlen(in);
    const char *rest = colon ? colon + 1 : NULL;
    span r = {0};
    uintptr_t arg = (uintptr_t)trn_map_get(b->args, in, len);
    if (arg) {
        r.is_arg = true;
        r.first = b->first_arg[arg - 1];
        r.count = b->first_arg[arg] - r.first;
    } else {
        r.nd = trn_map_get(b->s.by_name, in, len);
        if (!r.nd)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': input %.1024s is not found", fname, in);
        if (rest) {
            colon = strchr(rest, ':');
            size_t out_len = colon ? (size_t)(colon - rest) : strlen(rest);
            if (!(r.nd->n.def ? trn_node_out_arg(&r.nd->n, rest, out_len, &r.first, &r.count)
                              : function_result(b, r.nd, rest, out_len, &r.first, &r.count)))
                return trn_errorf(TRN_INVALID_ARGUMENT,
                                  "function '%s': input %.1024s is not found: '%s' (%s) has no such output", fname, in,
                                  r.nd->n.name, r.nd->n.op);
            rest = colon ? colon + 1 : NULL;
        } else if (r.nd->n.n_out == 1) {
            r.count = 1;
        } else {
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "function '%s': input %.1024s does not say which output of '%s' (%s)", fname, in,
                              r.nd->n.name, r.nd->n.op);
        }
    }
    if (rest) {
        char *end;
        long i = strtol(rest, &end, 10);
        if (!rest[0] || *end || i < 0 || i >= r.count)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': input %.1024s is out of range", fname, in);
        r.first += (int)i;
        r.count = 1;
    }
    *out = r;
    return TRN_OK;
}

static trn_err connect(body *b, trn_gnode *nd, int *at, const char *in)
{
    span r;
    TRN_TRY(find_span(&r, b, in));
    for (int k = 0; k < r.count; k++, ++*at) {
        trn_edge e = r.is_arg ? (trn_edge){r.first + k, 0} : (trn_edge){r.nd->id, r.first + k};
        if (*at >= nd->n.n_in)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': node '%s' (%s) takes %d inputs but has more",
                              b->fd->signature->name, nd->n.name, nd->n.op, nd->n.n_in);
        TRN_TRY(trn_gnode__check_input(nd, *at, trn_stage__at(&b->s, e.node), e.slot));
        nd->in[*at] = e;
    }
    return TRN_OK;
}

static trn_err body_inputs(body *b, trn_gnode *nd, const Tensorflow__NodeDef *pb)
{
    int at = 0, n_ctl = 0; /* nd->ctl has room for all of them */
    for (size_t i = 0; i < pb->n_input; i++) {
        const char *in = pb->input[i];
        if (in[0] != '^') {
            if (n_ctl)
                return trn_errorf(TRN_INVALID_ARGUMENT,
                                  "function '%s': Expected input[%zu] == '%s' of node '%s' to be a control input.",
                                  b->fd->signature->name, i, in, pb->name);
            TRN_TRY(connect(b, nd, &at, in));
            continue;
        }
        uintptr_t arg = (uintptr_t)trn_map_gets(b->args, in + 1);
        const trn_gnode *from = arg ? NULL : trn_map_gets(b->s.by_name, in + 1);
        if (!arg && !from)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': input[%zu] == '%.1024s' of node '%s' is not found.",
                              b->fd->signature->name, i, in, pb->name);
        if (arg && b->first_arg[arg - 1] == b->first_arg[arg])
            nd->ctl[n_ctl++] = -1; /* an empty list is there at once */
        else
            nd->ctl[n_ctl++] = arg ? b->first_arg[arg - 1] : from->id;
    }
    trn_gnode__set_ctl(b->s.g, nd, nd->ctl, n_ctl, &b->ctls);
    if (at != nd->n.n_in)
        return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': node '%s' (%s) takes %d inputs but has %d",
                          b->fd->signature->name, nd->n.name, nd->n.op, nd->n.n_in, at);
    return TRN_OK;
}

static const char *fresh_name(body *b, const char *name)
{
    const char *base = name;
    while (trn_map_gets(b->s.by_name, name))
        name = trn_arena_printf(b->a, "%s_%d", base, ++b->uniq);
    return name;
}

static trn_err put_rets(body *b, const trn_map *from_of)
{
    const Tensorflow__OpDef *sig = b->fd->signature;
    trn_dtype *types;
    int *first;
    TRN_TRY(flat_types(&types, &first, b->a, b->fd, b->f, sig->output_arg, sig->n_output_arg));
    for (size_t i = 0; i < sig->n_output_arg; i++) {
        const char *name = sig->output_arg[i]->name, *from = trn_map_gets(from_of, name);
        TRN_TRY(check_size(b));
        if (!from)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': Return %s missing.", sig->name, name);
        span r;
        TRN_TRY(find_span(&r, b, from));
        if (r.count != first[i + 1] - first[i])
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': result %s is %d tensors, but %s is %d", sig->name,
                              name, first[i + 1] - first[i], from, r.count);
        for (int k = 0; k < r.count; k++) {
            trn_attr *attrs = trn_arena_alloc(b->a, 2 * sizeof *attrs);
            attrs[0] = trn_attr__type("T", types[first[i] + k]);
            attrs[1] = trn_attr__int("index", first[i] + k);
            const char *base = r.count > 1 ? trn_arena_printf(b->a, "%s_RetVal_%d", name, k)
                                           : trn_arena_printf(b->a, "%s_RetVal", name);
            trn_gnode *nd;
            TRN_TRY(trn_stage__node(&nd, &b->s, fresh_name(b, base), "_Retval", "", attrs, 2, 1, 0));
            nd->in[0] = r.is_arg ? (trn_edge){r.first + k, 0} : (trn_edge){r.nd->id, r.first + k};
            TRN_TRY(trn_gnode__check_input(nd, 0, trn_stage__at(&b->s, nd->in[0].node), nd->in[0].slot));
        }
    }
    return TRN_OK;
}

static trn_err body_rets(body *b)
{
    trn_map *from = trn_funclib__rets(b->fd);
    trn_err err = put_rets(b, from);
    trn_map_free(from, NULL);
    return err;
}

static trn_err body_ctl_rets(body *b)
{
    const Tensorflow__FunctionDef *fd = b->fd;
    if (!fd->n_control_ret)
        return TRN_OK;
    if (trn_map_gets(b->s.by_name, "_ctl_rets"))
        return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' has a node called _ctl_rets", fd->signature->name);
    trn_gnode *nd;
    if (fd->n_control_ret > INT_MAX / 2)
        return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s' has %zu control outputs", fd->signature->name,
                          fd->n_control_ret);
    TRN_TRY(trn_stage__node(&nd, &b->s, "_ctl_rets", "NoOp", "", NULL, 0, 0, (int)fd->n_control_ret));
    for (size_t i = 0; i < fd->n_control_ret; i++) {
        const trn_gnode *from = trn_map_gets(b->s.by_name, fd->control_ret[i]->value);
        if (!from || from == nd)
            return trn_errorf(TRN_INVALID_ARGUMENT, "function '%s': control output %s -> %s is not found.",
                              fd->signature->name, fd->control_ret[i]->key, fd->control_ret[i]->value);
        nd->ctl[i] = from->id;
    }
    trn_gnode__set_ctl(b->s.g, nd, nd->ctl, (int)fd->n_control_ret, &b->ctls);
    return TRN_OK;
}

static trn_err build(body *b)
{
    const Tensorflow__FunctionDef *fd = b->fd;
    TRN_TRY(body_args(b));
    int first = b->s.n;
    for (size_t i = 0; i < fd->n_node_def; i++)
        TRN_TRY(body_node(b, fd->node_def[i]));
    for (size_t i = 0; i < fd->n_node_def; i++)
        TRN_TRY(body_inputs(b, b->s.node[first + (int)i], fd->node_def[i]));
    TRN_TRY(body_rets(b));
    TRN_TRY(body_ctl_rets(b));
    return trn_stage__check_cycles(&b->s);
}

trn_err trn_funclib_body(trn_graph **out, trn_funclib *l, const trn_func_ref *f)
{
    uint64_t left = trn_graph__max_growth();
    return trn_funclib__body(out, l, f, &left);
}

trn_err trn_funclib__body(trn_graph **out, trn_funclib *l, const trn_func_ref *f, uint64_t *left)
{
    body b = {.fd = trn_funclib__find(l, f->name), .f = f, .left = left};
    if (!b.fd)
        return not_found(f->name);
    uint64_t growth;
    TRN_TRY(trn_nodes__growth(&growth, b.fd->node_def, b.fd->n_node_def));
    TRN_TRY(charge(left, growth, b.fd, ""));
    trn_graph *g = trn_graph_new(l);
    trn_stage__init(&b.s, g, l);
    b.a = b.s.store->arena;
    b.args = trn_map_new();
    b.results = trn_map_new();
    trn_err err = build(&b);
    if (err) {
        err = trn_err_wrap(err, "function %s", f->name);
        trn_graph_free(g);
    } else {
        trn_stage__commit(&b.s);
        *out = g;
    }
    trn_map_free(b.args, NULL);
    trn_map_free(b.results, NULL);
    free(b.ctls.seen);
    trn_stage__fini(&b.s);
    return err;
}
