/* Attrs: from messages, to messages, copied, compared. */
#include "graph/graph_priv.h"
#include "tensor/tensor_pb.h"

#include <limits.h>

#define VARIANT_GROWTH 40 /* bytes in memory for one of a constant that is a variant */
#define MAX_FUNC_DEPTH 16 /* functions as attrs of functions as attrs … */

static void unref_tensor(void *t) { trn_tensor_unref(t); }

/* ---- from messages -------------------------------------------------------------------------------------------- */

static trn_err attr_from_pb(trn_attr *out, trn_arena *a, const char *name, const Tensorflow__AttrValue *pb, int depth);

static void set_string(trn_attr_val *v, trn_arena *a, const void *p, size_t n)
{
    char *s = trn_arena_alloc(a, n + 1); /* bytes, maybe with zeros among them */
    if (n)
        memcpy(s, p, n);
    v->s.p = s;
    v->s.n = n;
}

static trn_err set_type(trn_attr_val *v, const char *name, int type)
{
    int base = type >= TRN_REF ? type - TRN_REF : type;
    if (type < 0 || base >= TRN_DTYPE_END)
        return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' has the unknown dtype %d", name, type);
    v->type = (trn_dtype)type;
    return TRN_OK;
}

static trn_err set_shape(trn_attr_val *v, trn_arena *a, const char *name, const Tensorflow__TensorShapeProto *pb)
{
    trn_shape *s = trn_arena_alloc(a, sizeof *s);
    /* TensorFlow's optimiser numbers unknown dims from -2 down in its own notes ("_input_shapes"). */
    if (name[0] == '_' && pb && !pb->unknown_rank && pb->n_dim <= TRN_MAX_RANK) {
        s->rank = (int32_t)pb->n_dim;
        for (size_t i = 0; i < pb->n_dim; i++)
            s->dim[i] = TRN_MAX(pb->dim[i]->size, -1);
        v->shape = s;
        return TRN_OK;
    }
    trn_err err = trn_shape_from_pb(s, pb);
    if (err)
        return trn_err_wrap(err, "attr '%s'", name);
    v->shape = s;
    return TRN_OK;
}

static trn_err set_tensor(trn_attr_val *v, trn_arena *a, const char *name, const Tensorflow__TensorProto *pb)
{
    trn_tensor *t;
    /* trn_attr_pb__growth has counted what a tensor fills, but not in the variants of one. */
    size_t left = pb->dtype == TENSORFLOW__DATA_TYPE__DT_VARIANT ? VARIANT_GROWTH * (tensorflow__tensor_proto__get_packed_size(pb) + 64) : TRN_PB_FILL_MAX;
    trn_err err = trn_tensor_from_pb_within(&t, pb, &left);
    if (err)
        return trn_err_wrap(err, "attr '%s'", name);
    trn_arena_on_free(a, unref_tensor, t);
    v->tensor = t;
    return TRN_OK;
}

static trn_err set_func(trn_attr_val *v, trn_arena *a, const char *name, const Tensorflow__NameAttrList *pb, int depth)
{
    if (depth > MAX_FUNC_DEPTH)
        return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' nests functions deeper than %d", name, MAX_FUNC_DEPTH);
    if (pb->n_attr > TRN_MAX_ATTRS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s': function '%s' gets %zu attrs", name, pb->name, pb->n_attr);
    trn_func_ref *f = trn_arena_alloc(a, sizeof *f);
    trn_attr *attrs = trn_arena_alloc(a, TRN_MAX(pb->n_attr, 1) * sizeof *attrs);
    f->name = trn_arena_strdup(a, pb->name);
    f->n_attrs = (int)pb->n_attr;
    f->attrs = attrs;
    for (size_t i = 0; i < pb->n_attr; i++) {
        if (!pb->attr[i]->value)
            return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s': the function's attr '%s' has no value", name,
                              pb->attr[i]->key);
        TRN_TRY(attr_from_pb(&attrs[i], a, pb->attr[i]->key, pb->attr[i]->value, depth + 1));
    }
    v->func = f;
    return TRN_OK;
}

/* One kind at most: TensorFlow never mixes them. */
static trn_err list_from_pb(trn_attr *out, trn_arena *a, const Tensorflow__AttrValue__ListValue *l, int depth)
{
    const struct {
        size_t n;
        trn_attr_kind kind;
    } all[] = {{l->n_s, TRN_ATTR_STRING},      {l->n_i, TRN_ATTR_INT},     {l->n_f, TRN_ATTR_FLOAT},
               {l->n_b, TRN_ATTR_BOOL},        {l->n_type, TRN_ATTR_TYPE}, {l->n_shape, TRN_ATTR_SHAPE},
               {l->n_tensor, TRN_ATTR_TENSOR}, {l->n_func, TRN_ATTR_FUNC}};
    size_t n = 0;
    out->is_list = true;
    for (size_t i = 0; i < TRN_COUNTOF(all); i++) {
        if (!all[i].n)
            continue;
        if (n)
            return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' is a list of more than one kind", out->name);
        n = all[i].n;
        out->kind = all[i].kind;
    }
    if (n > INT_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' has %zu elements", out->name, n);
    trn_attr_val *v = trn_arena_alloc(a, TRN_MAX(n, 1) * sizeof *v);
    out->n = (int)n;
    out->list = v;
    for (size_t i = 0; i < n; i++) {
        switch (out->kind) {
        case TRN_ATTR_STRING:
            set_string(&v[i], a, l->s[i].data, l->s[i].len);
            break;
        case TRN_ATTR_INT:
            v[i].i = l->i[i];
            break;
        case TRN_ATTR_FLOAT:
            v[i].f = l->f[i];
            break;
        case TRN_ATTR_BOOL:
            v[i].b = l->b[i] != 0;
            break;
        case TRN_ATTR_TYPE:
            TRN_TRY(set_type(&v[i], out->name, (int)l->type[i]));
            break;
        case TRN_ATTR_SHAPE:
            TRN_TRY(set_shape(&v[i], a, out->name, l->shape[i]));
            break;
        case TRN_ATTR_TENSOR:
            TRN_TRY(set_tensor(&v[i], a, out->name, l->tensor[i]));
            break;
        default:
            TRN_TRY(set_func(&v[i], a, out->name, l->func[i], depth));
            break;
        }
    }
    return TRN_OK;
}

static trn_err attr_from_pb(trn_attr *out, trn_arena *a, const char *name, const Tensorflow__AttrValue *pb, int depth)
{
    *out = (trn_attr){.name = trn_arena_strdup(a, name)};
    switch (pb->value_case) {
    case TENSORFLOW__ATTR_VALUE__VALUE_S:
        out->kind = TRN_ATTR_STRING;
        set_string(&out->v, a, pb->s.data, pb->s.len);
        return TRN_OK;
    case TENSORFLOW__ATTR_VALUE__VALUE_I:
        out->kind = TRN_ATTR_INT;
        out->v.i = pb->i;
        return TRN_OK;
    case TENSORFLOW__ATTR_VALUE__VALUE_F:
        out->kind = TRN_ATTR_FLOAT;
        out->v.f = pb->f;
        return TRN_OK;
    case TENSORFLOW__ATTR_VALUE__VALUE_B:
        out->kind = TRN_ATTR_BOOL;
        out->v.b = pb->b != 0;
        return TRN_OK;
    case TENSORFLOW__ATTR_VALUE__VALUE_TYPE:
        out->kind = TRN_ATTR_TYPE;
        return set_type(&out->v, name, (int)pb->type);
    case TENSORFLOW__ATTR_VALUE__VALUE_SHAPE:
        out->kind = TRN_ATTR_SHAPE;
        return set_shape(&out->v, a, name, pb->shape);
    case TENSORFLOW__ATTR_VALUE__VALUE_TENSOR:
        out->kind = TRN_ATTR_TENSOR;
        if (!pb->tensor)
            break;
        return set_tensor(&out->v, a, name, pb->tensor);
    case TENSORFLOW__ATTR_VALUE__VALUE_LIST:
        if (!pb->list)
            break;
        return list_from_pb(out, a, pb->list, depth);
    case TENSORFLOW__ATTR_VALUE__VALUE_FUNC:
        out->kind = TRN_ATTR_FUNC;
        if (!pb->func)
            break;
        return set_func(&out->v, a, name, pb->func, depth);
    case TENSORFLOW__ATTR_VALUE__VALUE_PLACEHOLDER:
        out->kind = TRN_ATTR_PLACEHOLDER;
        set_string(&out->v, a, pb->placeholder, strlen(pb->placeholder));
        return TRN_OK;
    default: /* nothing set: TensorFlow takes it, too */
        return TRN_OK;
    }
    return trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' has no value", name);
}

trn_err trn_attr_from_pb(trn_attr *out, trn_arena *a, const char *name, const Tensorflow__AttrValue *pb)
{
    trn_attr v;
    TRN_TRY(attr_from_pb(&v, a, name, pb, 0));
    *out = v;
    return TRN_OK;
}

trn_err trn_attrs__from_pb(trn_attr **out, int *n_out, trn_arena *a, Tensorflow__NodeDef__AttrEntry *const *pb,
                           size_t n)
{
    if (n > TRN_MAX_ATTRS)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%zu attrs are more than %d", n, TRN_MAX_ATTRS);
    trn_attr *v = trn_arena_alloc(a, TRN_MAX(n, 1) * sizeof *v);
    trn_map *seen =
        n > 32 ? trn_map_new() : NULL; /* attr name → index + 1, where looking through all would be quadratic */
    trn_err err = TRN_OK;
    int m = 0;
    for (size_t i = 0; i < n && !err; i++) {
        const char *key = pb[i]->key;
        int at = 0;
        if (!key[0] || !pb[i]->value) {
            err = trn_errorf(TRN_INVALID_ARGUMENT, "attr '%s' has no %s", key, key[0] ? "value" : "name");
            break;
        }
        if (seen) {
            uintptr_t was = (uintptr_t)trn_map_gets(seen, key);
            at = was ? (int)was - 1 : m;
            trn_map_puts(seen, key, (void *)(uintptr_t)(at + 1));
        } else {
            while (at < m && strcmp(v[at].name, key) != 0)
                at++;
        }
        err = trn_attr_from_pb(&v[at], a, key, pb[i]->value);
        m += at == m;
    }
    trn_map_free(seen, NULL);
    if (err)
        return err;
    *out = v;
    *n_out = m;
    return TRN_OK;
}

/* Bytes that a tensor takes beyond the values in the message: what a few bytes from a peer may cost us. What is absurd counts as nothing, since
 * it will be refused for itself. */
static uint64_t tensor_growth(const Tensorflow__TensorProto *pb)
{
    uint64_t elem = trn_dtype_size(trn_dtype_base((trn_dtype)pb->dtype)), have = pb->tensor_content.len;
    if (have || !elem)
        return 0;
    if (pb->n_string_val)
        elem += pb->string_val[pb->n_string_val - 1].len; /* the last value repeats */
    for (size_t i = 0; pb->tensor_shape && i < pb->tensor_shape->n_dim; i++)
        if (pb->tensor_shape->dim[i]->size < 0 ||
            __builtin_mul_overflow(elem, (uint64_t)pb->tensor_shape->dim[i]->size, &elem))
            return 0;
    have = 4 * pb->n_float_val + 8 * pb->n_double_val + pb->n_int_val + 8 * pb->n_int64_val + pb->n_bool_val +
           2 * pb->n_half_val + 4 * pb->n_scomplex_val + 8 * pb->n_dcomplex_val + 4 * pb->n_uint32_val +
           8 * pb->n_uint64_val + sizeof(trn_str) * pb->n_string_val + pb->float8_val.len;
    return elem > have ? elem - have : 0;
}

static uint64_t growth(const Tensorflow__AttrValue *pb, int depth)
{
    uint64_t sum = 0;
    const Tensorflow__NameAttrList *const *funcs = NULL;
    size_t n_funcs = 0;
    if (pb->value_case == TENSORFLOW__ATTR_VALUE__VALUE_TENSOR && pb->tensor)
        return tensor_growth(pb->tensor);
    if (pb->value_case == TENSORFLOW__ATTR_VALUE__VALUE_LIST && pb->list) {
        for (size_t i = 0; i < pb->list->n_tensor; i++) {
            uint64_t one = tensor_growth(pb->list->tensor[i]);
            sum = one > UINT64_MAX - sum ? UINT64_MAX : sum + one;
        }
        /* each shape takes sizeof(trn_shape), whatever it says */
        sum += TRN_MIN(UINT64_MAX - sum, pb->list->n_shape * sizeof(trn_shape));
        funcs = (const Tensorflow__NameAttrList *const *)pb->list->func;
        n_funcs = pb->list->n_func;
    } else if (pb->value_case == TENSORFLOW__ATTR_VALUE__VALUE_FUNC && pb->func) {
        funcs = (const Tensorflow__NameAttrList *const *)&pb->func;
        n_funcs = 1;
    }
    for (size_t i = 0; i < n_funcs && depth <= MAX_FUNC_DEPTH; i++)
        for (size_t k = 0; k < funcs[i]->n_attr; k++)
            if (funcs[i]->attr[k]->value) {
                uint64_t one = growth(funcs[i]->attr[k]->value, depth + 1);
                sum = one > UINT64_MAX - sum ? UINT64_MAX : sum + one;
            }
    return sum;
}

uint64_t trn_attr_pb__growth(const Tensorflow__AttrValue *pb) { return growth(pb, 0); }

/* ---- to messages ---------------------------------------------------------------------------------------------- */

static Tensorflow__NameAttrList *func_to_pb(trn_arena *a, const trn_func_ref *f)
{
    Tensorflow__NameAttrList *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__name_attr_list__init(pb);
    pb->name = (char *)(uintptr_t)f->name;
    pb->n_attr = (size_t)f->n_attrs;
    pb->attr = trn_arena_alloc(a, TRN_MAX(pb->n_attr, 1) * sizeof *pb->attr);
    for (int i = 0; i < f->n_attrs; i++) {
        pb->attr[i] = trn_arena_alloc(a, sizeof **pb->attr);
        tensorflow__name_attr_list__attr_entry__init(pb->attr[i]);
        pb->attr[i]->key = (char *)(uintptr_t)f->attrs[i].name;
        pb->attr[i]->value = trn_attr_to_pb(a, &f->attrs[i]);
    }
    return pb;
}

static Tensorflow__TensorProto *tensor_to_pb(trn_arena *a, const trn_tensor *t)
{
    Tensorflow__TensorProto *pb = trn_tensor_to_pb_short(a, t);
    if (!pb) { /* a variant with a value: never an attr, since from_pb takes none */
        pb = trn_arena_alloc(a, sizeof *pb);
        tensorflow__tensor_proto__init(pb);
    }
    return pb;
}

static Tensorflow__AttrValue__ListValue *list_to_pb(trn_arena *a, const trn_attr *attr)
{
    Tensorflow__AttrValue__ListValue *l = trn_arena_alloc(a, sizeof *l);
    tensorflow__attr_value__list_value__init(l);
    size_t n = (size_t)attr->n;
#define LIST(field, expr)                                                                                              \
    l->n_##field = n;                                                                                                  \
    l->field = trn_arena_alloc(a, TRN_MAX(n, 1) * sizeof *l->field);                                                   \
    for (size_t i = 0; i < n; i++)                                                                                     \
        l->field[i] = (expr);                                                                                          \
    break
    switch (attr->kind) {
    case TRN_ATTR_STRING:
        LIST(s, ((ProtobufCBinaryData){attr->list[i].s.n, (uint8_t *)(uintptr_t)attr->list[i].s.p}));
    case TRN_ATTR_INT:
        LIST(i, attr->list[i].i);
    case TRN_ATTR_FLOAT:
        LIST(f, attr->list[i].f);
    case TRN_ATTR_BOOL:
        LIST(b, attr->list[i].b);
    case TRN_ATTR_TYPE:
        LIST(type, (Tensorflow__DataType)attr->list[i].type);
    case TRN_ATTR_SHAPE:
        LIST(shape, trn_shape_to_pb(a, attr->list[i].shape));
    case TRN_ATTR_TENSOR:
        LIST(tensor, tensor_to_pb(a, attr->list[i].tensor));
    case TRN_ATTR_FUNC:
        LIST(func, func_to_pb(a, attr->list[i].func));
    default:
        break;
    }
#undef LIST
    return l;
}

Tensorflow__AttrValue *trn_attr_to_pb(trn_arena *a, const trn_attr *attr)
{
    Tensorflow__AttrValue *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__attr_value__init(pb);
    if (attr->is_list) {
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_LIST;
        pb->list = list_to_pb(a, attr);
        return pb;
    }
    switch (attr->kind) {
    case TRN_ATTR_STRING:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_S;
        pb->s = (ProtobufCBinaryData){attr->v.s.n, (uint8_t *)(uintptr_t)attr->v.s.p};
        break;
    case TRN_ATTR_INT:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_I;
        pb->i = attr->v.i;
        break;
    case TRN_ATTR_FLOAT:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_F;
        pb->f = attr->v.f;
        break;
    case TRN_ATTR_BOOL:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_B;
        pb->b = attr->v.b;
        break;
    case TRN_ATTR_TYPE:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_TYPE;
        pb->type = (Tensorflow__DataType)attr->v.type;
        break;
    case TRN_ATTR_SHAPE:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_SHAPE;
        pb->shape = trn_shape_to_pb(a, attr->v.shape);
        break;
    case TRN_ATTR_TENSOR:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_TENSOR;
        pb->tensor = tensor_to_pb(a, attr->v.tensor);
        break;
    case TRN_ATTR_FUNC:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_FUNC;
        pb->func = func_to_pb(a, attr->v.func);
        break;
    case TRN_ATTR_PLACEHOLDER:
        pb->value_case = TENSORFLOW__ATTR_VALUE__VALUE_PLACEHOLDER;
        pb->placeholder = (char *)(uintptr_t)attr->v.s.p;
        break;
    case TRN_ATTR_NONE:
        break;
    }
    return pb;
}

/* ---- copies and comparison ------------------------------------------------------------------------------------ */

static void copy_val(trn_attr_val *out, trn_arena *a, trn_attr_kind kind, const trn_attr_val *v)
{
    *out = *v;
    switch (kind) {
    case TRN_ATTR_STRING:
    case TRN_ATTR_PLACEHOLDER:
        set_string(out, a, v->s.p, v->s.n);
        break;
    case TRN_ATTR_SHAPE:
        out->shape = trn_arena_dup(a, v->shape, sizeof *v->shape);
        break;
    case TRN_ATTR_TENSOR:
        out->tensor = trn_tensor_ref(v->tensor);
        trn_arena_on_free(a, unref_tensor, out->tensor);
        break;
    case TRN_ATTR_FUNC: {
        trn_func_ref *f = trn_arena_alloc(a, sizeof *f);
        trn_attr *attrs = trn_arena_alloc(a, (size_t)TRN_MAX(v->func->n_attrs, 1) * sizeof *attrs);
        for (int i = 0; i < v->func->n_attrs; i++)
            trn_attr__copy(&attrs[i], a, &v->func->attrs[i]);
        *f = (trn_func_ref){trn_arena_strdup(a, v->func->name), v->func->n_attrs, attrs};
        out->func = f;
        break;
    }
    default:
        break;
    }
}

void trn_attr__copy(trn_attr *out, trn_arena *a, const trn_attr *attr)
{
    trn_attr c = *attr;
    c.name = trn_arena_strdup(a, attr->name);
    if (attr->is_list) {
        trn_attr_val *v = trn_arena_alloc(a, (size_t)TRN_MAX(attr->n, 1) * sizeof *v);
        for (int i = 0; i < attr->n; i++)
            copy_val(&v[i], a, attr->kind, &attr->list[i]);
        c.list = v;
    } else {
        copy_val(&c.v, a, attr->kind, &attr->v);
    }
    *out = c;
}

static bool tensor_equal(const trn_tensor *x, const trn_tensor *y)
{
    if (x == y)
        return true;
    if (x->dtype != y->dtype || !trn_shape_eq(&x->shape, &y->shape))
        return false;
    if (trn_dtype_is_plain(x->dtype))
        return memcmp(x->data, y->data, trn_tensor_bytes(x)) == 0;
    if (x->dtype != TRN_STRING)
        return false;
    for (int64_t i = 0; i < x->count; i++)
        if (!trn_str_eq(&TRN_DATA(x, trn_str)[i], &TRN_DATA(y, trn_str)[i]))
            return false;
    return true;
}

static bool func_equal(const trn_func_ref *x, const trn_func_ref *y)
{
    if (strcmp(x->name, y->name) != 0 || x->n_attrs != y->n_attrs)
        return false;
    for (int i = 0; i < x->n_attrs; i++) {
        int k = 0;
        while (k < y->n_attrs && strcmp(x->attrs[i].name, y->attrs[k].name) != 0)
            k++;
        if (k == y->n_attrs || !trn_attr__equal(&x->attrs[i], &y->attrs[k]))
            return false;
    }
    return true;
}

static bool val_equal(trn_attr_kind kind, const trn_attr_val *x, const trn_attr_val *y)
{
    switch (kind) {
    case TRN_ATTR_STRING:
    case TRN_ATTR_PLACEHOLDER:
        return x->s.n == y->s.n && memcmp(x->s.p, y->s.p, x->s.n) == 0;
    case TRN_ATTR_INT:
        return x->i == y->i;
    case TRN_ATTR_FLOAT:
        return memcmp(&x->f, &y->f, sizeof x->f) == 0;
    case TRN_ATTR_BOOL:
        return x->b == y->b;
    case TRN_ATTR_TYPE:
        return x->type == y->type;
    case TRN_ATTR_SHAPE:
        return trn_shape_eq(x->shape, y->shape);
    case TRN_ATTR_TENSOR:
        return tensor_equal(x->tensor, y->tensor);
    case TRN_ATTR_FUNC:
        return func_equal(x->func, y->func);
    case TRN_ATTR_NONE:
        return true;
    }
    return false;
}

bool trn_attr__equal(const trn_attr *x, const trn_attr *y)
{
    if (x->is_list != y->is_list)
        return false;
    if (!x->is_list)
        return x->kind == y->kind && val_equal(x->kind, &x->v, &y->v);
    if (x->n != y->n || (x->n && x->kind != y->kind)) /* an empty list has no kind on the wire */
        return false;
    for (int i = 0; i < x->n; i++)
        if (!val_equal(x->kind, &x->list[i], &y->list[i]))
            return false;
    return true;
}

trn_attr trn_attr__type(const char *name, trn_dtype t)
{
    return (trn_attr){.name = name, .kind = TRN_ATTR_TYPE, .v.type = t};
}
trn_attr trn_attr__int(const char *name, int64_t v) { return (trn_attr){.name = name, .kind = TRN_ATTR_INT, .v.i = v}; }
trn_attr trn_attr__str(const char *name, const char *s)
{
    return (trn_attr){.name = name, .kind = TRN_ATTR_STRING, .v.s = {s, strlen(s)}};
}
trn_attr trn_attr__bool(const char *name, bool b) { return (trn_attr){.name = name, .kind = TRN_ATTR_BOOL, .v.b = b}; }
trn_attr trn_attr__tensor(const char *name, trn_tensor *t)
{
    return (trn_attr){.name = name, .kind = TRN_ATTR_TENSOR, .v.tensor = t};
}
