/* TensorMaps: immutable maps from tensors to tensors that travel in variants. Few entries, so they are looked through one by one; the order is
 * the order of insertion. */
#include "ops/kern.h"
#include "ops/variant.h"

#include <stdlib.h>

#define MAX_ENTRIES (1 << 20) /* a peer's loop must not fill the memory unnoticed */

typedef struct tmap {
    trn_variant base;
    int64_t n, cap;
    trn_tensor **kv; /* key, value, key, value … */
} tmap;

static void tmap_free(void *obj)
{
    tmap *m = obj;
    for (int64_t i = 0; i < 2 * m->n; i++)
        trn_tensor_unref(m->kv[i]);
    free(m->kv);
    free(m);
}

static trn_err tmap_add(trn_variant **out, const trn_variant *a, const trn_variant *b);
static trn_err tmap_zeros(trn_variant **out, const trn_variant *v);

static const trn_variant_type tmap_type = {.name = "tensorflow::TensorMap", .free = tmap_free, .add = tmap_add, .zeros_like = tmap_zeros};

static tmap *tmap_new(void)
{
    tmap *m = trn_xalloc(sizeof *m);
    *m = (tmap){.base = {.type = &tmap_type}};
    atomic_init(&m->base.ref, 1);
    return m;
}

static trn_err tmap_push(tmap *m, const trn_tensor *key, const trn_tensor *value)
{
    if (m->n >= MAX_ENTRIES)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a map of more than %d entries", MAX_ENTRIES);
    if (m->n == m->cap) {
        int64_t cap = m->cap ? 2 * m->cap : 4;
        trn_tensor **kv = realloc(m->kv, 2 * (size_t)cap * sizeof(trn_tensor *));
        if (!kv)
            return trn_err_oom();
        m->kv = kv;
        m->cap = cap;
    }
    m->kv[2 * m->n] = trn_tensor_ref(key);
    m->kv[2 * m->n + 1] = trn_tensor_ref(value);
    m->n++;
    return TRN_OK;
}

static bool same_key(const trn_tensor *a, const trn_tensor *b)
{
    if (a == b)
        return true;
    if (a->dtype != b->dtype || !trn_shape_eq(&a->shape, &b->shape))
        return false;
    if (a->dtype != TRN_STRING)
        return memcmp(a->data, b->data, trn_tensor_bytes(a)) == 0;
    for (int64_t i = 0; i < a->count; i++) {
        size_t n, m;
        const char *p = trn_tensor_str_at(a, i, &n), *q = trn_tensor_str_at(b, i, &m);
        if (n != m || memcmp(p, q, n) != 0)
            return false;
    }
    return true;
}

static int64_t find(const tmap *m, const trn_tensor *key)
{
    for (int64_t i = 0; i < m->n; i++)
        if (same_key(m->kv[2 * i], key))
            return i;
    return -1;
}

/* All entries but `skip`. */
static trn_err tmap_copy(tmap **out, const tmap *from, int64_t skip)
{
    tmap *m = tmap_new();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < from->n && !err; i++)
        if (i != skip)
            err = tmap_push(m, from->kv[2 * i], from->kv[2 * i + 1]);
    if (err)
        trn_variant_unref(&m->base);
    else
        *out = m;
    return err;
}

static trn_err give(trn_kctx *k, TRN_OWN tmap *m, TRN_OWN trn_err err)
{
    trn_tensor *y;
    trn_shape s = trn_shape_scalar();
    if (!err)
        err = trn_out_new(&y, k, 0, TRN_VARIANT, &s);
    if (err)
        trn_variant_unref(&m->base);
    else
        TRN_DATA_MUT(y, trn_variant *)[0] = &m->base;
    return err;
}

static trn_err in_map(tmap **out, const trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(t), "Input map must be a scalar. Saw: %s", trn_shape_text(text, &t->shape));
    trn_variant *v = ((trn_variant *const *)t->data)[0];
    TRN_CHECK_ARG(v && v->type == &tmap_type, "Input handle is not a map. Saw: '%s'", v ? v->type->name : "<empty>");
    *out = (tmap *)v;
    return TRN_OK;
}

static trn_err check_key(const trn_tensor *key)
{
    TRN_CHECK_ARG(trn_dtype_is_plain(key->dtype) || key->dtype == TRN_STRING, "a %s cannot be a key", trn_dtype_name(key->dtype));
    return TRN_OK;
}

static trn_err empty(trn_kctx *k) { return give(k, tmap_new(), TRN_OK); }

static trn_err size(trn_kctx *k)
{
    tmap *m;
    trn_tensor *y;
    trn_shape s = trn_shape_scalar();
    TRN_TRY(in_map(&m, k));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &s));
    TRN_DATA_MUT(y, int32_t)[0] = (int32_t)m->n;
    return TRN_OK;
}

static trn_err insert(trn_kctx *k)
{
    tmap *m, *c;
    const trn_tensor *key = trn_in(k, 1), *value = trn_in(k, 2);
    TRN_TRY(in_map(&m, k));
    TRN_TRY(check_key(key));
    int64_t at = find(m, key);
    TRN_TRY(tmap_copy(&c, m, -1));
    if (at < 0)
        return give(k, c, tmap_push(c, key, value));
    trn_tensor_unref(c->kv[2 * at + 1]);
    c->kv[2 * at + 1] = trn_tensor_ref(value);
    return give(k, c, TRN_OK);
}

static trn_err lookup(trn_kctx *k)
{
    tmap *m;
    TRN_TRY(in_map(&m, k));
    int64_t at = find(m, trn_in(k, 1));
    TRN_CHECK_ARG(at >= 0, "Trying to lookup non-existent key.");
    trn_tensor *v = m->kv[2 * at + 1];
    TRN_CHECK_ARG(v->dtype == trn_attr_type(k->node, "value_dtype"), "the value is %s, not %s", trn_dtype_name(v->dtype),
                  trn_dtype_name(trn_attr_type(k->node, "value_dtype")));
    trn_out_set(k, 0, trn_tensor_ref(v));
    return TRN_OK;
}

static trn_err erase(trn_kctx *k)
{
    tmap *m, *c;
    TRN_TRY(in_map(&m, k));
    int64_t at = find(m, trn_in(k, 1));
    TRN_CHECK_ARG(at >= 0, "Trying to erase non-existent item.");
    TRN_TRY(tmap_copy(&c, m, at));
    return give(k, c, TRN_OK);
}

static trn_err has_key(trn_kctx *k)
{
    tmap *m;
    trn_tensor *y;
    trn_shape s = trn_shape_scalar();
    TRN_TRY(in_map(&m, k));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_BOOL, &s));
    TRN_DATA_MUT(y, uint8_t)[0] = find(m, trn_in(k, 1)) >= 0;
    return TRN_OK;
}

static trn_err stack_keys(trn_kctx *k)
{
    tmap *m;
    TRN_TRY(in_map(&m, k));
    TRN_CHECK_ARG(m->n, "TensorMapStackKeys cannot be called on empty map.");
    trn_dtype want = trn_attr_type(k->node, "key_dtype");
    for (int64_t i = 0; i < m->n; i++) {
        TRN_CHECK_ARG(m->kv[2 * i]->dtype == want, "Key does not match requested dtype.");
        TRN_CHECK_ARG(trn_shape_eq(&m->kv[2 * i]->shape, &m->kv[0]->shape), "Keys must all have the same shape.");
    }
    trn_shape s = {.rank = 1, .dim = {m->n}};
    TRN_CHECK_ARG(m->kv[0]->shape.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    for (int i = 0; i < m->kv[0]->shape.rank; i++)
        s.dim[s.rank++] = m->kv[0]->shape.dim[i];
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, want, &s));
    for (int64_t i = 0; i < m->n; i++)
        TRN_TRY(trn_tensor_copy_elems(y, i * m->kv[0]->count, m->kv[2 * i], 0, m->kv[0]->count));
    return TRN_OK;
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------------------- */

/* Entries of both; where both have a key, the sum. */
static trn_err tmap_add(trn_variant **out, const trn_variant *va, const trn_variant *vb)
{
    const tmap *a = (const tmap *)va, *b = (const tmap *)vb;
    tmap *m;
    TRN_TRY(tmap_copy(&m, a, -1));
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < b->n && !err; i++) {
        int64_t at = find(m, b->kv[2 * i]);
        if (at < 0) {
            err = tmap_push(m, b->kv[2 * i], b->kv[2 * i + 1]);
            continue;
        }
        trn_tensor *sum;
        err = trn_tensor_sum(&sum, m->kv[2 * at + 1], b->kv[2 * i + 1]);
        if (!err) {
            trn_tensor_unref(m->kv[2 * at + 1]);
            m->kv[2 * at + 1] = sum;
        }
    }
    if (err)
        trn_variant_unref(&m->base);
    else
        *out = &m->base;
    return err;
}

/* What an AddN leaves as it is: nothing. */
static trn_err tmap_zeros(trn_variant **out, const trn_variant *v)
{
    *out = &tmap_new()->base;
    return TRN_OK;
}

const trn_op trn_ops_tensor_map[] = {
    {"EmptyTensorMap", "-> handle:var", trn_sh_scalar, empty, TRN_OP_CHEAP},
    {"TensorMapSize", "input_handle:var -> size:i32", trn_sh_scalar, size, TRN_OP_CHEAP},
    {"TensorMapInsert", "input_handle:var, key:key_dtype, value:value_dtype -> output_handle:var; key_dtype:any, value_dtype:any", trn_sh_scalar, insert, 0},
    {"TensorMapLookup", "input_handle:var, key:key_dtype -> value:value_dtype; key_dtype:any, value_dtype:any", trn_sh_unknown, lookup, 0},
    {"TensorMapErase", "input_handle:var, key:key_dtype -> output_handle:var; key_dtype:any, value_dtype:any", trn_sh_scalar, erase, 0},
    {"TensorMapHasKey", "input_handle:var, key:key_dtype -> has_key:bool; key_dtype:any", trn_sh_scalar, has_key, 0},
    {"TensorMapStackKeys", "input_handle:var -> keys:key_dtype; key_dtype:any", trn_sh_unknown, stack_keys, 0},
    {0},
};
