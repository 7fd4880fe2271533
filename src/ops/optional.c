/* Optional values: what gradients of conditions keep of the branch that ran, and what an iterator's end looks like. */
#include "ops/kern.h"
#include "ops/variant.h"

#include <stdlib.h>

typedef struct optional {
    trn_variant base;
    bool has_value;
    int n;
    trn_tensor *t[];
} optional;

static void optional_free(void *obj)
{
    optional *o = obj;
    for (int i = 0; i < o->n; i++)
        trn_tensor_unref(o->t[i]);
    free(o);
}

static trn_err optional_add(trn_variant **out, const trn_variant *a, const trn_variant *b);
static trn_err optional_zeros(trn_variant **out, const trn_variant *v);

static const trn_variant_type optional_type = {
    .name = "tensorflow::data::Optional", .free = optional_free, .add = optional_add, .zeros_like = optional_zeros};

static optional *optional_new(bool has_value, int n)
{
    optional *o = trn_xalloc(sizeof *o + (size_t)n * sizeof o->t[0]);
    atomic_init(&o->base.ref, 1);
    o->base.type = &optional_type;
    o->has_value = has_value;
    o->n = n;
    return o;
}

trn_variant *trn_optional_of(trn_tensor *const *t, int n)
{
    optional *o = optional_new(t != NULL, t ? n : 0);
    for (int i = 0; i < o->n; i++)
        o->t[i] = trn_tensor_ref(t[i]);
    return &o->base;
}

static trn_err give_or_drop(trn_variant **out, TRN_OWN optional *o, TRN_OWN trn_err err)
{
    if (err)
        trn_variant_unref(&o->base);
    else
        *out = &o->base;
    return err;
}

static trn_err optional_add(trn_variant **out, const trn_variant *va, const trn_variant *vb)
{
    const optional *a = (const optional *)va, *b = (const optional *)vb;
    TRN_CHECK_ARG(a->has_value == b->has_value && a->n == b->n,
                  "Cannot add optional values because one has no value, or they differ in size");
    optional *o = optional_new(a->has_value, a->n);
    trn_err err = TRN_OK;
    for (int i = 0; i < o->n && !err; i++)
        err = trn_tensor_sum(&o->t[i], a->t[i], b->t[i]);
    return give_or_drop(out, o, err);
}

static trn_err optional_zeros(trn_variant **out, const trn_variant *v)
{
    const optional *x = (const optional *)v;
    optional *o = optional_new(x->has_value, x->n);
    trn_err err = TRN_OK;
    for (int i = 0; i < o->n && !err; i++)
        err = trn_tensor_zeros_like(&o->t[i], x->t[i]);
    return give_or_drop(out, o, err);
}

static trn_err give(trn_kctx *k, TRN_OWN trn_variant *v)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    trn_err err = trn_out_new(&y, k, 0, TRN_VARIANT, &scalar);
    if (err)
        trn_variant_unref(v);
    else
        TRN_DATA_MUT(y, trn_variant *)[0] = v;
    return err;
}

static trn_err none(trn_kctx *k) { return give(k, trn_optional_of(NULL, 0)); }

static trn_err from_value(trn_kctx *k)
{
    optional *o = optional_new(true, k->n_in);
    for (int i = 0; i < o->n; i++)
        o->t[i] = trn_tensor_ref(trn_in(k, i));
    return give(k, &o->base);
}

static trn_err in_optional(const optional **out, const trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(trn_is_scalar(t), "the optional must be a scalar variant");
    const trn_variant *v = ((trn_variant *const *)t->data)[0];
    TRN_CHECK_ARG(v && v->type == &optional_type, "the input is a %s, not an optional",
                  v ? v->type->name : "variant without a value");
    *out = (const optional *)v;
    return TRN_OK;
}

static trn_err has_value(trn_kctx *k)
{
    const optional *o;
    TRN_TRY(in_optional(&o, k));
    trn_out_set(k, 0, trn_tensor_bool(o->has_value));
    return TRN_OK;
}

static trn_err get_value(trn_kctx *k)
{
    const optional *o;
    TRN_TRY(in_optional(&o, k));
    TRN_CHECK_ARG(o->has_value, "The given optional does not have a value.");
    TRN_CHECK_ARG(o->n == k->n_out, "The given optional has %d components, expected %d.", o->n, k->n_out);
    const trn_attr *shapes = trn_node_attr(k->node, "output_shapes");
    for (int i = 0; i < o->n; i++) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(o->t[i]->dtype == k->node->out_types[i],
                      "The given optional does not match the expected type for component %d. Expected: %s. Actual: %s.",
                      i, trn_dtype_name(k->node->out_types[i]), trn_dtype_name(o->t[i]->dtype));
        const trn_shape *s =
            shapes && shapes->is_list && i < shapes->n && shapes->kind == TRN_ATTR_SHAPE ? shapes->list[i].shape : NULL;
        TRN_CHECK_ARG(
            !s || trn_shape_compatible(s, &o->t[i]->shape),
            "The given optional does not match the expected shape for component %d. Expected: %s. Actual: %s.", i,
            trn_shape_text(a, s), trn_shape_text(b, &o->t[i]->shape));
    }
    for (int i = 0; i < o->n; i++)
        trn_out_set(k, i, trn_tensor_ref(o->t[i]));
    return TRN_OK;
}

/* Stands for an output of the branch that did not run: nobody looks at the value. */
static trn_err fake_param(trn_kctx *k)
{
    trn_shape s = *trn_attr_shape(k->node, "shape");
    trn_tensor *y;
    if (s.rank < 0)
        s = trn_shape_vector(0);
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = s.dim[i] < 0 ? 0 : s.dim[i];
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    trn_zero_elems(y, 0, y->count);
    return TRN_OK;
}

const trn_op trn_ops_optional[] = {
    {"OptionalNone", " -> optional:var", trn_sh_scalar, none, TRN_OP_CHEAP},
    {"OptionalFromValue", "components:Toutput_types -> optional:var; Toutput_types:list(type)>=1", trn_sh_scalar,
     from_value, TRN_OP_CHEAP},
    {"OptionalHasValue", "optional:var -> has_value:bool", trn_sh_scalar, has_value, TRN_OP_CHEAP},
    {"OptionalGetValue",
     "optional:var -> components:output_types; output_types:list(type)>=1, output_shapes:list(shape)>=1",
     trn_sh_unknown, get_value, TRN_OP_CHEAP},
    {"FakeParam", " -> output:dtype; dtype:any, shape:shape", trn_sh_attr, fake_param, 0},
    {0},
};
