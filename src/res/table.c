#include "res/table.h"

#include <stdlib.h>

/* Entries lie in two growing tensors, in the order of their arrival (a removed one's place is taken by the last); `slot` finds them. */
struct trn_table {
    trn_resource base;
    trn_table_kind kind;
    trn_dtype key_dtype, value_dtype;
    trn_shape key_shape, value_shape;
    int64_t key_n, value_n; /* elements of one key, of one value */
    _Atomic bool set;       /* STATIC: filled, never changes again */
    trn_mutex mu;           /* all below */
    trn_tensor *keys, *values;
    int64_t n, cap;
    int64_t *slot;         /* SLOT_FREE, SLOT_GONE, or an entry */
    int64_t n_slots, used; /* used: slots that are not free */
    /* DENSE: keys and values are the buckets, n counts those in use. */
    trn_tensor *empty, *deleted;
    float max_load;
};

enum { SLOT_FREE = -1, SLOT_GONE = -2 };

static void table_free(trn_resource *r)
{
    trn_table *t = (trn_table *)r;
    trn_tensor_unref(t->keys);
    trn_tensor_unref(t->values);
    trn_tensor_unref(t->empty);
    trn_tensor_unref(t->deleted);
    free(t->slot);
    trn_mutex_fini(&t->mu);
    free(t);
}

static size_t table_bytes(trn_resource *r)
{
    trn_table *t = (trn_table *)r;
    trn_lock(&t->mu);
    size_t n = (t->keys ? trn_tensor_bytes(t->keys) : 0) + (t->values ? trn_tensor_bytes(t->values) : 0) +
               (size_t)t->n_slots * sizeof *t->slot;
    trn_unlock(&t->mu);
    return n;
}

static void table_describe(trn_resource *r, trn_sb *out)
{
    trn_table *t = (trn_table *)r;
    trn_sb_addf(out, "%s to %s, %lld entries", trn_dtype_name(t->key_dtype), trn_dtype_name(t->value_dtype),
                (long long)trn_table_size(t));
}

const trn_restype trn_table_type = {
    .name = "LookupTable", .handle = "tensorflow::lookup::LookupInterface", .free = table_free, .bytes = table_bytes, .describe = table_describe};

static trn_table *new_table(trn_table_kind kind, trn_dtype key, trn_dtype value, const trn_shape *key_shape,
                            const trn_shape *value_shape)
{
    trn_table *t = trn_xalloc(sizeof *t);
    trn_resource_init(&t->base, &trn_table_type);
    trn_mutex_init(&t->mu, TRN_RANK_RES);
    t->kind = kind;
    t->key_dtype = key;
    t->value_dtype = value;
    t->key_shape = *key_shape;
    t->value_shape = *value_shape;
    t->key_n = t->value_n = 1;
    for (int i = 0; i < key_shape->rank; i++)
        t->key_n *= key_shape->dim[i];
    for (int i = 0; i < value_shape->rank; i++)
        t->value_n *= value_shape->dim[i];
    return t;
}

trn_table *trn_table_new(trn_table_kind kind, trn_dtype key, trn_dtype value, const trn_shape *value_shape)
{
    trn_shape scalar = trn_shape_scalar();
    return new_table(kind, key, value, &scalar, kind == TRN_TABLE_TENSORS ? value_shape : &scalar);
}

trn_table_kind trn_table_kind_of(const trn_table *t) { return t->kind; }
trn_dtype trn_table_key(const trn_table *t) { return t->key_dtype; }
trn_dtype trn_table_value(const trn_table *t) { return t->value_dtype; }
bool trn_table_is_set(trn_table *t) { return atomic_load_explicit(&t->set, memory_order_acquire); }

int64_t trn_table_size(trn_table *t)
{
    trn_lock(&t->mu);
    int64_t n = t->kind == TRN_TABLE_STATIC && !trn_table_is_set(t) ? 0 : t->n;
    trn_unlock(&t->mu);
    return n;
}

/* ---- keys ----------------------------------------------------------------------------------------------------------- */

static bool key_eq(const trn_table *t, const trn_tensor *a, int64_t i, const trn_tensor *b, int64_t j)
{
    if (t->key_dtype != TRN_STRING) {
        size_t bytes = trn_dtype_size(t->key_dtype) * (size_t)t->key_n;
        return !memcmp((const char *)a->data + (size_t)i * bytes, (const char *)b->data + (size_t)j * bytes, bytes);
    }
    for (int64_t e = 0; e < t->key_n; e++)
        if (!trn_str_eq(&TRN_DATA(a, trn_str)[i * t->key_n + e], &TRN_DATA(b, trn_str)[j * t->key_n + e]))
            return false;
    return true;
}

static uint64_t hash_of(const trn_table *t, const trn_tensor *keys, int64_t i)
{
    if (t->key_dtype == TRN_STRING) {
        const trn_str *s = &TRN_DATA(keys, trn_str)[i];
        return trn_hash(trn_str_p(s), s->len);
    }
    size_t size = trn_dtype_size(t->key_dtype);
    return trn_hash((const char *)keys->data + (size_t)i * size, size);
}

/* The slot that holds the key, or -1. */
static int64_t slot_of(const trn_table *t, const trn_tensor *keys, int64_t i)
{
    if (!t->n)
        return -1;
    uint64_t mask = (uint64_t)t->n_slots - 1;
    for (uint64_t s = hash_of(t, keys, i) & mask;; s = (s + 1) & mask) { /* ends: a quarter of the slots is free */
        if (t->slot[s] == SLOT_FREE)
            return -1;
        if (t->slot[s] >= 0 && key_eq(t, t->keys, t->slot[s], keys, i))
            return (int64_t)s;
    }
}

static void put_slot(trn_table *t, int64_t entry)
{
    uint64_t mask = (uint64_t)t->n_slots - 1, s = hash_of(t, t->keys, entry) & mask;
    while (t->slot[s] >= 0)
        s = (s + 1) & mask;
    t->used += t->slot[s] == SLOT_FREE;
    t->slot[s] = entry;
}

static trn_err reindex(trn_table *t, int64_t n_slots)
{
    int64_t *slot = malloc((size_t)n_slots * sizeof *slot);
    if (!slot)
        return trn_err_oom();
    for (int64_t i = 0; i < n_slots; i++)
        slot[i] = SLOT_FREE;
    free(t->slot);
    t->slot = slot;
    t->n_slots = n_slots;
    t->used = 0;
    for (int64_t e = 0; e < t->n; e++)
        put_slot(t, e);
    return TRN_OK;
}

static trn_err grow(trn_table *t)
{
    int64_t cap = t->cap ? 2 * t->cap : 16;
    trn_shape ks = trn_shape_vector(cap), vs = trn_shape_vector(cap * t->value_n);
    trn_tensor *keys, *values;
    TRN_TRY(trn_tensor_new(&keys, t->key_dtype, &ks));
    trn_err err = trn_tensor_new(&values, t->value_dtype, &vs);
    if (err) {
        trn_tensor_unref(keys);
        return err;
    }
    if (t->n) {
        err = trn_tensor_copy_elems(keys, 0, t->keys, 0, t->n);
        if (!err)
            err = trn_tensor_copy_elems(values, 0, t->values, 0, t->n * t->value_n);
    }
    if (err) {
        trn_tensor_unref(keys);
        trn_tensor_unref(values);
        return err;
    }
    trn_tensor_unref(t->keys);
    trn_tensor_unref(t->values);
    t->keys = keys;
    t->values = values;
    t->cap = cap;
    return TRN_OK;
}

static void clear(trn_table *t)
{
    trn_tensor_unref(t->keys);
    trn_tensor_unref(t->values);
    free(t->slot);
    t->keys = t->values = NULL;
    t->slot = NULL;
    t->n = t->cap = t->n_slots = t->used = 0;
}

static bool value_eq(const trn_table *t, int64_t entry, const trn_tensor *values, int64_t i)
{
    if (t->value_dtype == TRN_STRING)
        return trn_str_eq(&TRN_DATA(t->values, trn_str)[entry], &TRN_DATA(values, trn_str)[i]);
    if (!trn_dtype_is_plain(t->value_dtype))
        return false;
    size_t size = trn_dtype_size(t->value_dtype);
    return !memcmp((char *)t->values->data + (size_t)entry * size, (const char *)values->data + (size_t)i * size, size);
}

/* only_new: a key that is there already must have the same value. */
static trn_err put(trn_table *t, const trn_tensor *keys, const trn_tensor *values, int64_t i, bool only_new)
{
    int64_t s = slot_of(t, keys, i), e;
    if (s >= 0) {
        e = t->slot[s];
        if (only_new)
            return value_eq(t, e, values, i)
                       ? TRN_OK
                       : trn_errorf(TRN_FAILED_PRECONDITION,
                                    "HashTable has different value for same key (element %lld)", (long long)i);
        return trn_tensor_copy_elems(t->values, e * t->value_n, values, i * t->value_n, t->value_n);
    }
    if (t->n == t->cap)
        TRN_TRY(grow(t));
    if (4 * (t->used + 1) > 3 * t->n_slots)
        TRN_TRY(reindex(t, 4 * (t->n + 1) > 2 * t->n_slots ? (t->n_slots ? 2 * t->n_slots : 32) : t->n_slots));
    e = t->n;
    TRN_TRY(trn_tensor_copy_elems(t->keys, e, keys, i, 1));
    TRN_TRY(trn_tensor_copy_elems(t->values, e * t->value_n, values, i * t->value_n, t->value_n));
    t->n++;
    put_slot(t, e);
    return TRN_OK;
}

static trn_err take_out(trn_table *t, const trn_tensor *keys, int64_t i)
{
    int64_t s = slot_of(t, keys, i);
    if (s < 0)
        return TRN_OK;
    int64_t e = t->slot[s], last = t->n - 1;
    if (e != last) {
        int64_t ls = slot_of(t, t->keys, last);
        TRN_TRY(trn_tensor_copy_elems(t->keys, e, t->keys, last, 1));
        TRN_TRY(trn_tensor_copy_elems(t->values, e * t->value_n, t->values, last * t->value_n, t->value_n));
        t->slot[ls] = e;
    }
    t->slot[s] = SLOT_GONE;
    t->n--;
    return TRN_OK;
}

/* ---- TensorFlow's dense layout ---------------------------------------------------------------------------------------- */

static uint64_t dense_hash(const trn_table *t, const trn_tensor *keys, int64_t i)
{
    uint64_t h = 0;
    for (int64_t e = 0; e < t->key_n; e++) {
        uint64_t one;
        if (t->key_dtype == TRN_STRING) {
            const trn_str *s = &TRN_DATA(keys, trn_str)[i * t->key_n + e];
            one = trn_hash64_tf(trn_str_p(s), s->len);
        } else if (t->key_dtype == TRN_INT32) {
            one = (uint64_t)(int64_t)TRN_DATA(keys, int32_t)[i * t->key_n + e];
        } else {
            one = (uint64_t)TRN_DATA(keys, int64_t)[i * t->key_n + e];
        }
        if (t->key_n == 1)
            return one;
        h = trn_hash64_tf_combine(h, one);
    }
    return h;
}

static bool is_empty(const trn_table *t, const trn_tensor *keys, int64_t i) { return key_eq(t, keys, i, t->empty, 0); }
static bool is_deleted(const trn_table *t, const trn_tensor *keys, int64_t i)
{
    return t->deleted && key_eq(t, keys, i, t->deleted, 0);
}

static trn_err not_special(const trn_table *t, const trn_tensor *keys, int64_t i)
{
    if (is_empty(t, keys, i))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Using the empty_key as a table key is not allowed");
    if (is_deleted(t, keys, i))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Using the deleted_key as a table key is not allowed");
    return TRN_OK;
}

/* Where the key is, or (found false) where the search for it ends: the first empty bucket, or the first deleted one if `reuse`. */
static trn_err probe(int64_t *out, bool *found, const trn_table *t, const trn_tensor *keys, int64_t i, bool reuse)
{
    int64_t n = t->keys->shape.dim[0], mask = n - 1, b = (int64_t)(dense_hash(t, keys, i) & (uint64_t)mask);
    for (int64_t tries = 0; tries < n;) {
        *found = key_eq(t, t->keys, b, keys, i);
        if (*found || is_empty(t, t->keys, b) || (reuse && is_deleted(t, t->keys, b))) {
            *out = b;
            return TRN_OK;
        }
        tries++;
        b = (b + tries) & mask;
    }
    return trn_errorf(TRN_INTERNAL, "no bucket is free in a table of %lld buckets", (long long)n);
}

static trn_err new_buckets(trn_table *t, int64_t n)
{
    if (n < 4 || (n & (n - 1)))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Number of buckets must be at least 4 and a power of 2, got: %lld",
                          (long long)n);
    trn_shape ks = trn_shape_of(2, n, t->key_n), vs = trn_shape_of(2, n, t->value_n);
    trn_tensor *keys, *values;
    TRN_TRY(trn_tensor_new(&keys, t->key_dtype, &ks));
    trn_err err = trn_tensor_new(&values, t->value_dtype, &vs);
    for (int64_t i = 0; i < n && !err; i++)
        err = trn_tensor_copy_elems(keys, i * t->key_n, t->empty, 0, t->key_n);
    if (err) {
        trn_tensor_unref(keys);
        return err;
    }
    if (trn_dtype_is_plain(t->value_dtype))
        memset(values->data, 0, trn_tensor_bytes(values));
    trn_tensor_unref(t->keys);
    trn_tensor_unref(t->values);
    t->keys = keys;
    t->values = values;
    t->n = 0;
    return TRN_OK;
}

/* Exports hand out the buckets themselves: who changes them afterwards makes a copy first. */
static trn_err own_buckets(trn_table *t)
{
    trn_tensor **both[] = {&t->keys, &t->values};
    for (int i = 0; i < 2; i++) {
        if (trn_tensor_sole(*both[i]))
            continue;
        trn_tensor *c;
        TRN_TRY(trn_tensor_copy(&c, *both[i]));
        trn_tensor_unref(*both[i]);
        *both[i] = c;
    }
    return TRN_OK;
}

static trn_err dense_put(trn_table *t, const trn_tensor *keys, const trn_tensor *values, int64_t i)
{
    int64_t b;
    bool found;
    TRN_TRY(probe(&b, &found, t, keys, i, true));
    if (!found) {
        TRN_TRY(trn_tensor_copy_elems(t->keys, b * t->key_n, keys, i * t->key_n, t->key_n));
        t->n++;
    }
    return trn_tensor_copy_elems(t->values, b * t->value_n, values, i * t->value_n, t->value_n);
}

static trn_err rebucket(trn_table *t, int64_t n)
{
    trn_tensor *keys = trn_tensor_ref(t->keys), *values = trn_tensor_ref(t->values);
    trn_err err = new_buckets(t, n);
    for (int64_t i = 0; i < keys->shape.dim[0] && !err; i++)
        if (!is_empty(t, keys, i) && !is_deleted(t, keys, i))
            err = dense_put(t, keys, values, i);
    trn_tensor_unref(keys);
    trn_tensor_unref(values);
    return err;
}

static trn_err dense_insert(trn_table *t, const trn_tensor *keys, const trn_tensor *values, int64_t count)
{
    int64_t n = t->keys->shape.dim[0];
    float want = (float)(t->n + count);
    if (want > (float)n * t->max_load) {
        while (want > (float)n * t->max_load) {
            if (n > INT64_MAX / 4)
                return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a table of %lld entries is too large", (long long)count);
            n <<= 1;
        }
        TRN_TRY(rebucket(t, n));
    }
    TRN_TRY(own_buckets(t));
    for (int64_t i = 0; i < count; i++) {
        TRN_TRY(not_special(t, keys, i));
        TRN_TRY(dense_put(t, keys, values, i));
    }
    return TRN_OK;
}

static trn_err dense_remove(trn_table *t, const trn_tensor *keys, int64_t count)
{
    if (!t->deleted)
        return trn_errorf(TRN_UNIMPLEMENTED, "this table was made without a deleted_key: nothing can be removed");
    TRN_TRY(own_buckets(t));
    for (int64_t i = 0; i < count; i++) {
        int64_t b;
        bool found;
        TRN_TRY(not_special(t, keys, i));
        TRN_TRY(probe(&b, &found, t, keys, i, false));
        if (!found)
            continue;
        TRN_TRY(trn_tensor_copy_elems(t->keys, b * t->key_n, t->deleted, 0, t->key_n));
        t->n--;
    }
    return TRN_OK;
}

static trn_err dense_find(trn_table *t, trn_tensor *values, const trn_tensor *keys, const trn_tensor *dflt,
                          int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t b;
        bool found;
        TRN_TRY(not_special(t, keys, i));
        TRN_TRY(probe(&b, &found, t, keys, i, false));
        TRN_TRY(trn_tensor_copy_elems(values, i * t->value_n, found ? t->values : dflt, found ? b * t->value_n : 0,
                                      t->value_n));
    }
    return TRN_OK;
}

static trn_err dense_import(trn_table *t, const trn_tensor *keys, const trn_tensor *values)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    int64_t n = keys->shape.rank == 2 ? keys->shape.dim[0] : 0;
    if (n < 1 || keys->shape.dim[1] != t->key_n || values->shape.rank != 2 || values->shape.dim[0] != n ||
        values->shape.dim[1] != t->value_n)
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "keys and values have shapes %s and %s; the buckets of this table are [n,%lld] and [n,%lld]",
                          trn_shape_text(a, &keys->shape), trn_shape_text(b, &values->shape), (long long)t->key_n,
                          (long long)t->value_n);
    trn_tensor_unref(t->keys);
    trn_tensor_unref(t->values);
    t->keys = trn_tensor_ref(keys);
    t->values = trn_tensor_ref(values);
    t->n = 0;
    for (int64_t i = 0; i < n; i++)
        t->n += !is_empty(t, keys, i) && !is_deleted(t, keys, i);
    return TRN_OK;
}

trn_err trn_table_new_dense(trn_table **out, const trn_tensor *empty, const trn_tensor *deleted, trn_dtype value,
                            const trn_shape *value_shape, int64_t buckets, float max_load)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    if (!(max_load > 0 && max_load < 1))
        return trn_errorf(TRN_INVALID_ARGUMENT, "max_load_factor must be between 0 and 1, got: %g", (double)max_load);
    if (value_shape->rank > 1 || !trn_shape_is_full(value_shape))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Empty value must be a scalar or a vector, got shape %s",
                          trn_shape_text(a, value_shape));
    if (empty->shape.rank > 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Empty key must be a scalar or a vector, got shape %s",
                          trn_shape_text(a, &empty->shape));
    if (deleted && !trn_shape_eq(&empty->shape, &deleted->shape))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Empty and deleted keys must have same shape, got shapes: %s and %s",
                          trn_shape_text(a, &empty->shape), trn_shape_text(b, &deleted->shape));
    trn_table *t = new_table(TRN_TABLE_DENSE, empty->dtype, value, &empty->shape, value_shape);
    t->max_load = max_load;
    t->empty = trn_tensor_ref(empty);
    t->deleted = deleted ? trn_tensor_ref(deleted) : NULL;
    trn_err err = deleted && key_eq(t, empty, 0, deleted, 0)
                      ? trn_errorf(TRN_INVALID_ARGUMENT, "Empty and deleted keys cannot be equal")
                      : new_buckets(t, buckets);
    if (err)
        trn_resource_unref(t);
    else
        *out = t;
    return err;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

static trn_err check_dtypes(const trn_table *t, trn_dtype key, trn_dtype value)
{
    if (key != t->key_dtype)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Key must be type %s but got %s", trn_dtype_name(t->key_dtype),
                          trn_dtype_name(key));
    if (value != t->value_dtype)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Value must be type %s but got %s", trn_dtype_name(t->value_dtype),
                          trn_dtype_name(value));
    return TRN_OK;
}

/* How many keys these are; *values: the shape that their values have together. */
static trn_err check_keys(int64_t *count, trn_shape *values, const trn_table *t, const trn_tensor *keys)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    int batch = keys->shape.rank - t->key_shape.rank;
    if (batch < 0 || (t->key_shape.rank == 1 && keys->shape.dim[batch] != t->key_shape.dim[0]))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Expected key shape %s to end with the table's key shape %s",
                          trn_shape_text(a, &keys->shape), trn_shape_text(b, &t->key_shape));
    if (batch + t->value_shape.rank > TRN_MAX_RANK)
        return trn_errorf(TRN_INVALID_ARGUMENT, "the values would have %d dimensions", batch + t->value_shape.rank);
    /* TensorFlow's: the first dimension numbers the keys, so a vector alone is no key; what lies between may only be ones. */
    if (t->kind == TRN_TABLE_DENSE && keys->count != (keys->shape.rank ? keys->shape.dim[0] : 1) * t->key_n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Expected key shape of a list of keys, not %s",
                          trn_shape_text(a, &keys->shape));
    *count = 1;
    values->rank = batch;
    for (int i = 0; i < batch; i++) {
        values->dim[i] = keys->shape.dim[i];
        *count *= values->dim[i];
    }
    for (int i = 0; i < t->value_shape.rank; i++)
        values->dim[values->rank++] = t->value_shape.dim[i];
    return TRN_OK;
}

static trn_err check_pairs(int64_t *count, const trn_table *t, const trn_tensor *keys, const trn_tensor *values)
{
    trn_shape want;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(check_dtypes(t, keys->dtype, values->dtype));
    TRN_TRY(check_keys(count, &want, t, keys));
    if (!trn_shape_eq(&want, &values->shape))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Expected shape %s for value, got %s", trn_shape_text(a, &want),
                          trn_shape_text(b, &values->shape));
    return TRN_OK;
}

trn_err trn_table_check_find(trn_shape *out, trn_table *t, const trn_tensor *keys, const trn_tensor *dflt)
{
    int64_t n;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT], c[TRN_SHAPE_TEXT];
    TRN_TRY(check_dtypes(t, keys->dtype, dflt->dtype));
    TRN_TRY(check_keys(&n, out, t, keys));
    if (!trn_shape_eq(&dflt->shape, &t->value_shape) && !trn_shape_eq(&dflt->shape, out))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Expected shape %s or %s for default value, got %s",
                          trn_shape_text(a, &t->value_shape), trn_shape_text(b, out), trn_shape_text(c, &dflt->shape));
    return TRN_OK;
}

static trn_err find_each(trn_table *t, trn_tensor *values, const trn_tensor *keys, const trn_tensor *dflt)
{
    bool each = t->kind != TRN_TABLE_STATIC && dflt->count == values->count; /* one default per key */
    for (int64_t i = 0; i < keys->count; i++) {
        int64_t s = slot_of(t, keys, i);
        const trn_tensor *from = s >= 0 ? t->values : dflt;
        int64_t at = s >= 0 ? t->slot[s] : each ? i : 0;
        TRN_TRY(trn_tensor_copy_elems(values, i * t->value_n, from, at * t->value_n, t->value_n));
    }
    return TRN_OK;
}

trn_err trn_table_find(trn_table *t, trn_tensor *values, const trn_tensor *keys, const trn_tensor *dflt)
{
    if (t->kind == TRN_TABLE_STATIC) {
        if (!trn_table_is_set(t))
            return trn_errorf(TRN_FAILED_PRECONDITION, "Table not initialized.");
        return find_each(t, values, keys, dflt);
    }
    trn_lock(&t->mu);
    trn_err err = t->kind == TRN_TABLE_DENSE ? dense_find(t, values, keys, dflt, t->key_n ? keys->count / t->key_n : 0)
                                             : find_each(t, values, keys, dflt);
    trn_unlock(&t->mu);
    return err;
}

static trn_err not_static(const trn_table *t, const char *what)
{
    if (t->kind == TRN_TABLE_STATIC)
        return trn_errorf(TRN_UNIMPLEMENTED, "%s not supported by InitializableLookupTable implementations", what);
    return TRN_OK;
}

trn_err trn_table_insert(trn_table *t, const trn_tensor *keys, const trn_tensor *values)
{
    int64_t n;
    TRN_TRY(check_pairs(&n, t, keys, values));
    TRN_TRY(not_static(t, "Insert"));
    trn_err err = TRN_OK;
    trn_lock(&t->mu);
    if (t->kind == TRN_TABLE_DENSE)
        err = dense_insert(t, keys, values, n);
    else
        for (int64_t i = 0; i < n && !err; i++)
            err = put(t, keys, values, i, false);
    trn_unlock(&t->mu);
    return err;
}

trn_err trn_table_remove(trn_table *t, const trn_tensor *keys)
{
    int64_t n;
    trn_shape values;
    TRN_TRY(check_dtypes(t, keys->dtype, t->value_dtype));
    TRN_TRY(check_keys(&n, &values, t, keys));
    TRN_TRY(not_static(t, "Remove"));
    trn_err err = TRN_OK;
    trn_lock(&t->mu);
    if (t->kind == TRN_TABLE_DENSE)
        err = dense_remove(t, keys, n);
    else
        for (int64_t i = 0; i < n && !err; i++)
            err = take_out(t, keys, i);
    trn_unlock(&t->mu);
    return err;
}

static trn_err fill_locked(trn_table *t, const trn_tensor *keys, const trn_tensor *values)
{
    if (t->kind == TRN_TABLE_STATIC && trn_table_is_set(t)) {
        if (keys->count == t->n)
            return TRN_OK; /* as TensorFlow: so many entries are taken for the same ones */
        return trn_errorf(TRN_FAILED_PRECONDITION, "Table was already initialized with different data.");
    }
    clear(t);
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < keys->count && !err; i++)
        err = put(t, keys, values, i, t->kind == TRN_TABLE_STATIC);
    if (err)
        clear(t);
    else if (t->kind == TRN_TABLE_STATIC)
        atomic_store_explicit(&t->set, true, memory_order_release);
    return err;
}

trn_err trn_table_import(trn_table *t, const trn_tensor *keys, const trn_tensor *values)
{
    int64_t n;
    if (t->kind == TRN_TABLE_DENSE)
        TRN_TRY(check_dtypes(t, keys->dtype, values->dtype));
    else
        TRN_TRY(check_pairs(&n, t, keys, values));
    if (t->kind == TRN_TABLE_STATIC && !keys->count)
        return trn_errorf(TRN_INVALID_ARGUMENT, "keys and values cannot be empty tensors.");
    trn_lock(&t->mu);
    trn_err err = t->kind == TRN_TABLE_DENSE ? dense_import(t, keys, values) : fill_locked(t, keys, values);
    trn_unlock(&t->mu);
    return err;
}

static trn_err export_locked(trn_table *t, trn_tensor **keys, trn_tensor **values)
{
    if (t->kind == TRN_TABLE_STATIC && !trn_table_is_set(t))
        return trn_errorf(TRN_ABORTED, "HashTable is not initialized.");
    trn_shape ks = trn_shape_vector(t->n), vs = t->value_shape.rank ? trn_shape_of(2, t->n, t->value_n) : ks;
    trn_tensor *k, *v;
    TRN_TRY(trn_tensor_new(&k, t->key_dtype, &ks));
    trn_err err = trn_tensor_new(&v, t->value_dtype, &vs);
    if (!err && t->n) {
        err = trn_tensor_copy_elems(k, 0, t->keys, 0, t->n);
        if (!err)
            err = trn_tensor_copy_elems(v, 0, t->values, 0, t->n * t->value_n);
        if (err)
            trn_tensor_unref(v);
    }
    if (err) {
        trn_tensor_unref(k);
        return err;
    }
    *keys = k;
    *values = v;
    return TRN_OK;
}

trn_err trn_table_export(trn_table *t, trn_tensor **keys, trn_tensor **values)
{
    trn_err err = TRN_OK;
    trn_lock(&t->mu);
    if (t->kind == TRN_TABLE_DENSE) {
        *keys = trn_tensor_ref(t->keys);
        *values = trn_tensor_ref(t->values);
    } else {
        err = export_locked(t, keys, values);
    }
    trn_unlock(&t->mu);
    return err;
}
