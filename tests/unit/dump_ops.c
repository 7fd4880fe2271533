/* Prints our op rows as they were parsed, for tools/check-ops and tools/check-grads (g: what there is in src/grad). */
#include <math.h>
#include <jansson.h>
#include <stdio.h>

#include "grad/rows.h"
#include "op/registry.h"

static json_t *dtypes(uint64_t set)
{
    json_t *v = json_array();
    for (int t = 1; t < TRN_DTYPE_END; t++)
        if (set >> t & 1)
            json_array_append_new(v, json_string(trn_dtype_name((trn_dtype)t)));
    return v;
}

static json_t *shape(const trn_shape *s)
{
    if (s->rank < 0)
        return json_string("?");
    json_t *v = json_array();
    for (int i = 0; i < s->rank; i++)
        json_array_append_new(v, json_integer(s->dim[i]));
    return v;
}

static json_t *value(trn_attr_kind kind, const trn_attr_val *v)
{
    switch (kind) {
    case TRN_ATTR_STRING:
        return json_stringn(v->s.p, v->s.n);
    case TRN_ATTR_INT:
        return json_integer(v->i);
    case TRN_ATTR_FLOAT:
        return isinf(v->f) ? json_string(v->f < 0 ? "-inf" : "inf") : json_real((double)v->f); /* JSON has no such number */
    case TRN_ATTR_BOOL:
        return json_boolean(v->b);
    case TRN_ATTR_TYPE:
        return json_string(trn_dtype_name(v->type));
    case TRN_ATTR_SHAPE:
        return shape(v->shape);
    case TRN_ATTR_TENSOR:
        return json_string("tensor");
    case TRN_ATTR_FUNC:
        return json_string("func");
    default:
        return json_null();
    }
}

static json_t *args(const trn_opdef *d, const trn_argdef *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const trn_argdef *a = &v[i];
        int type = a->type_list_attr >= 0 ? a->type_list_attr : a->type_attr;
        json_array_append_new(list, json_sprintf("%s:%s%s%s%s", a->name, a->is_ref ? "&" : "",
                                                 a->number_attr >= 0 ? d->attrs[a->number_attr].name : "",
                                                 a->number_attr >= 0 ? "*" : "",
                                                 type >= 0 ? d->attrs[type].name : trn_dtype_name(a->type)));
    }
    return list;
}

static json_t *attr(const trn_attrdef *a)
{
    static const char *const kinds[] = {"none", "string", "int",    "float", "bool",
                                        "type", "shape",  "tensor", "func",  "placeholder"};
    json_t *def = json_null(), *allowed = json_null();
    if (a->has_default) {
        json_t *v = a->is_list ? json_array() : value(a->def.kind, &a->def.v);
        for (int i = 0; a->is_list && i < a->def.n; i++)
            json_array_append_new(v, value(a->def.kind, &a->def.list[i]));
        def = json_pack("[o]", v);
    }
    if (a->n_allowed) {
        allowed = json_array();
        for (int i = 0; i < a->n_allowed; i++)
            json_array_append_new(allowed, json_string(a->allowed[i]));
    }
    uint64_t every = 0;
    for (int t = 1; t < TRN_DTYPE_END; t++)
        if (trn_dtype_size((trn_dtype)t))
            every |= UINT64_C(1) << t;
    if (a->kind == TRN_ATTR_TYPE && (a->types & every) != every)
        allowed = dtypes(a->types);
    return json_pack("[s,o,o,o,o]", a->name, json_sprintf(a->is_list ? "list(%s)" : "%s", kinds[a->kind]),
                     a->min == INT64_MIN ? json_null() : json_integer(a->min), def, allowed);
}

static const char *gradient(const char *op)
{
    const trn_grad_row *r = trn_grad__row(op);
    return !r ? "" : r->flags & TRN_GRAD_FLAT ? "ends" : "row";
}

int main(void)
{
    for (int i = 0; i < trn_op_count(); i++) {
        const trn_opdef *d = trn_op_at(i);
        json_t *attrs = json_array();
        for (int k = 0; k < d->n_attrs; k++)
            json_array_append_new(attrs, attr(&d->attrs[k]));
        json_t *op = json_pack("{s:s,s:o,s:o,s:b,s:o,s:s}", "n", d->row->name, "i", args(d, d->in, d->n_in), "o",
                               args(d, d->out, d->n_out), "s", (d->row->flags & TRN_OP_STATEFUL) != 0, "a", attrs, "g", gradient(d->row->name));
        char *text = json_dumps(op, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_ENSURE_ASCII);
        puts(text);
        free(text);
        json_decref(op);
    }
    return 0;
}
