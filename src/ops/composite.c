/* Composite tensors (sparse, ragged, extension types) in a variant: their tensors, and a message that says what they make up. */
#include <ctype.h>
#include <stdlib.h>

#include "ops/kern.h"
#include "proto/pbw.h"

typedef struct composite {
    trn_variant base;
    trn_sb meta; /* a CompositeTensorVariantMetadata */
    uint64_t kind;
    int n;
    trn_tensor *t[];
} composite;

static void composite_free(void *obj)
{
    composite *c = obj;
    for (int i = 0; i < c->n; i++)
        trn_tensor_unref(c->t[i]);
    trn_sb_fini(&c->meta);
    free(c);
}

static trn_err pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v);
static trn_err unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
static const trn_variant_type composite_type = {.name = "CompositeTensorVariant", .free = composite_free, .pack = pack, .unpack = unpack};

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&composite_type); }

/* Which kind of composite tensor: field 1 (type_spec_class) of field 1 (type_spec_proto). */
static trn_err kind_of(uint64_t *out, const void *meta, size_t n)
{
    *out = 0;
    trn_pbr r = trn_pbr_init(meta, n);
    while (trn_pbr_next(&r)) {
        if (r.field != 1 || r.type != TRN_PB_BYTES)
            continue;
        trn_pbr s = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&s))
            if (s.field == 1 && s.type == TRN_PB_VARINT)
                *out = s.v;
        TRN_CHECK_ARG(!s.bad, "Error parsing `metadata`: %s", s.why);
    }
    TRN_CHECK_ARG(!r.bad, "Error parsing `metadata`: %s", r.why);
    return TRN_OK;
}

static trn_err make(trn_variant **out, const void *meta, size_t n_meta, trn_tensor *const *t, int n)
{
    uint64_t kind;
    TRN_TRY(kind_of(&kind, meta, n_meta));
    composite *c = trn_xalloc(sizeof *c + (size_t)n * sizeof c->t[0]);
    atomic_init(&c->base.ref, 1);
    c->base.type = &composite_type;
    c->kind = kind;
    c->n = n;
    trn_sb_add(&c->meta, meta, n_meta);
    for (int i = 0; i < n; i++)
        c->t[i] = trn_tensor_ref(t[i]);
    *out = &c->base;
    return TRN_OK;
}

static trn_err pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    const composite *c = (const composite *)v;
    trn_sb_add(meta, c->meta.p, c->meta.n);
    *t = trn_xalloc(((size_t)c->n + 1) * sizeof **t);
    *n = c->n;
    for (int i = 0; i < c->n; i++)
        (*t)[i] = c->t[i];
    return TRN_OK;
}

static trn_err unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t) { return make(out, meta, n, t, n_t); }

static const char *kind_name(uint64_t kind)
{
    static const char *const names[] = {"UNKNOWN",           "SPARSE_TENSOR_SPEC", "INDEXED_SLICES_SPEC", "RAGGED_TENSOR_SPEC", "TENSOR_ARRAY_SPEC",  "DATA_DATASET_SPEC", "DATA_ITERATOR_SPEC",
                                        "OPTIONAL_SPEC",     "PER_REPLICA_SPEC",   "VARIABLE_SPEC",       "ROW_PARTITION_SPEC", "",                   "REGISTERED_TYPE_SPEC",
                                        "EXTENSION_TYPE_SPEC"};
    return kind < TRN_COUNTOF(names) ? names[kind] : "composite tensor of a kind unknown here";
}

static const char *upper(char *out, size_t room, const char *s)
{
    size_t n = 0;
    for (; s[n] && n + 1 < room; n++)
        out[n] = (char)toupper((unsigned char)s[n]);
    out[n] = 0;
    return out;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------ */

static trn_err from_components(trn_kctx *k)
{
    const trn_attr *meta = trn_node_attr(k->node, "metadata");
    trn_tensor **t = trn_xalloc(((size_t)k->n_in + 1) * sizeof *t), *y;
    for (int i = 0; i < k->n_in; i++)
        t[i] = k->in[i].t;
    trn_variant *v;
    trn_err err = make(&v, meta->v.s.p, meta->v.s.n, t, k->n_in);
    free(t);
    TRN_TRY(err);
    trn_shape scalar = trn_shape_scalar();
    if ((err = trn_out_new(&y, k, 0, TRN_VARIANT, &scalar)))
        trn_variant_unref(v);
    else
        TRN_DATA_MUT(y, trn_variant *)[0] = v;
    return err;
}

static trn_err to_components(trn_kctx *k)
{
    const trn_attr *meta = trn_node_attr(k->node, "metadata");
    const trn_tensor *x = trn_in(k, 0);
    uint64_t kind;
    TRN_TRY(kind_of(&kind, meta->v.s.p, meta->v.s.n));
    TRN_CHECK_ARG(x->count > 0, "Input `encoded` must not be an empty variant tensor");
    const trn_variant *v = ((trn_variant *const *)x->data)[0];
    TRN_CHECK_ARG(v && v->type == &composite_type, "The input `encoded` is not a valid CompositeTensorVariant tensor, got %s", v ? v->type->name : "a variant without a value");
    const composite *c = (const composite *)v;
    TRN_CHECK_ARG(kind == c->kind, "Expected a %s (based on `type_spec`), but `encoded` contains a %s", kind_name(kind), kind_name(c->kind));
    TRN_CHECK_ARG(c->n == k->n_out, "Encoded value has %d tensor components; expected %d components based on type_spec", c->n, k->n_out);
    for (int i = 0; i < c->n; i++) {
        char a[32], b[32];
        TRN_CHECK_ARG(c->t[i]->dtype == k->node->out_types[i], "Tensor component %d had dtype DT_%s; expected dtype DT_%s", i, upper(a, sizeof a, trn_dtype_name(c->t[i]->dtype)),
                      upper(b, sizeof b, trn_dtype_name(k->node->out_types[i])));
    }
    for (int i = 0; i < c->n; i++)
        trn_out_set(k, i, trn_tensor_ref(c->t[i]));
    return TRN_OK;
}

const trn_op trn_ops_composite[] = {
    {"CompositeTensorVariantFromComponents", "components:Tcomponents -> encoded:var; metadata:string, Tcomponents:list(type)>=0", trn_sh_scalar, from_components, TRN_OP_CHEAP},
    {"CompositeTensorVariantToComponents", "encoded:var -> components:Tcomponents; metadata:string, Tcomponents:list(type)>=0", trn_sh_unknown, to_components, TRN_OP_CHEAP},
    {0},
};
