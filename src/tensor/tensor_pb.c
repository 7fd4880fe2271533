#include "tensor/tensor_pb.h"
#include "proto/pb.h"
#include "proto/pbw.h"

#include <stdlib.h>

#define MAX_VARIANT_DEPTH 32

/* ---- shapes --------------------------------------------------------------------------------------------------- */

trn_err trn_shape_from_pb(trn_shape *out, const Tensorflow__TensorShapeProto *pb)
{
    trn_shape s = {.rank = 0};
    if (pb && pb->unknown_rank) {
        if (pb->n_dim)
            return trn_errorf(TRN_INVALID_ARGUMENT, "a shape of unknown rank must have no dims; it has %zu", pb->n_dim);
        s.rank = -1;
    } else if (pb) {
        if (pb->n_dim > TRN_MAX_RANK)
            return trn_errorf(TRN_UNIMPLEMENTED, "shapes of rank %zu are not supported; the most is %d", pb->n_dim,
                              TRN_MAX_RANK);
        s.rank = (int32_t)pb->n_dim;
        for (size_t i = 0; i < pb->n_dim; i++) {
            if (pb->dim[i]->size < -1)
                return trn_errorf(TRN_INVALID_ARGUMENT, "dim %zu of a shape is %lld", i, (long long)pb->dim[i]->size);
            s.dim[i] = pb->dim[i]->size;
        }
    }
    *out = s;
    return TRN_OK;
}

Tensorflow__TensorShapeProto *trn_shape_to_pb(trn_arena *a, const trn_shape *s)
{
    Tensorflow__TensorShapeProto *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__tensor_shape_proto__init(pb);
    if (s->rank < 0) {
        pb->unknown_rank = true;
        return pb;
    }
    pb->n_dim = (size_t)s->rank;
    pb->dim = trn_arena_alloc(a, pb->n_dim * sizeof *pb->dim);
    Tensorflow__TensorShapeProto__Dim *dims = trn_arena_alloc(a, pb->n_dim * sizeof *dims);
    for (size_t i = 0; i < pb->n_dim; i++) {
        tensorflow__tensor_shape_proto__dim__init(&dims[i]);
        dims[i].size = s->dim[i] < 0 ? -1 : s->dim[i];
        pb->dim[i] = &dims[i];
    }
    return pb;
}

/* ---- handles -------------------------------------------------------------------------------------------------- */

trn_err trn_handle_from_pb(trn_handle **out, const Tensorflow__ResourceHandleProto *pb)
{
    trn_handle *h = trn_handle_new(pb->device, pb->container, pb->name, pb->maybe_type_name);
    h->hash_code = pb->hash_code;
    size_t n = pb->n_dtypes_and_shapes;
    if (n) {
        h->n_dtypes = (int)n;
        h->dtypes = calloc(n, sizeof *h->dtypes);
        h->shapes = calloc(n, sizeof *h->shapes);
        trn_err err = n > INT32_MAX || !h->dtypes || !h->shapes ? trn_err_oom() : TRN_OK;
        for (size_t i = 0; i < n && !err; i++) {
            h->dtypes[i] = (trn_dtype)pb->dtypes_and_shapes[i]->dtype;
            err = trn_shape_from_pb(&h->shapes[i], pb->dtypes_and_shapes[i]->shape);
        }
        if (err) {
            err = trn_err_wrap(err, "resource handle %s/%s", h->container, h->name);
            trn_handle_unref(h);
            return err;
        }
    }
    *out = h;
    return TRN_OK;
}

Tensorflow__ResourceHandleProto *trn_handle_to_pb(trn_arena *a, const trn_handle *h)
{
    Tensorflow__ResourceHandleProto *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__resource_handle_proto__init(pb);
    if (!h)
        return pb;
    pb->device = h->device;
    pb->container = h->container;
    pb->name = h->name;
    pb->maybe_type_name = h->type_name;
    pb->hash_code = h->hash_code;
    pb->n_dtypes_and_shapes = (size_t)h->n_dtypes;
    pb->dtypes_and_shapes = trn_arena_alloc(a, pb->n_dtypes_and_shapes * sizeof *pb->dtypes_and_shapes);
    for (size_t i = 0; i < pb->n_dtypes_and_shapes; i++) {
        Tensorflow__ResourceHandleProto__DtypeAndShape *ds = trn_arena_alloc(a, sizeof *ds);
        tensorflow__resource_handle_proto__dtype_and_shape__init(ds);
        ds->dtype = (Tensorflow__DataType)h->dtypes[i];
        ds->shape = trn_shape_to_pb(a, &h->shapes[i]);
        pb->dtypes_and_shapes[i] = ds;
    }
    return pb;
}

/* ---- tensor_content ------------------------------------------------------------------------------------------- */

static trn_err list_error(const trn_tensor *t, const char *what)
{
    char shape[TRN_SHAPE_TEXT];
    return trn_errorf(TRN_INVALID_ARGUMENT, "tensor_content of %s%s: %s", trn_dtype_name(t->dtype),
                      trn_shape_text(shape, &t->shape), what);
}

static trn_err handle_from_bytes(trn_handle **out, const uint8_t *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__ResourceHandleProto *pb;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__resource_handle_proto__descriptor, p, n);
    if (!err)
        err = trn_handle_from_pb(out, pb);
    trn_arena_free(a);
    return err;
}

/* TensorFlow's servers send variants like this, one message in the bytes of another: the parser's own limit does not see how deep it goes. */
static trn_err variant_from_bytes(trn_variant **out, const uint8_t *p, size_t n)
{
    static _Thread_local int depth;
    if (depth == MAX_VARIANT_DEPTH)
        return trn_errorf(TRN_INVALID_ARGUMENT, "variants in variants, more than %d deep", MAX_VARIANT_DEPTH);
    trn_arena *a = trn_arena_new();
    Tensorflow__VariantTensorDataProto *pb;
    depth++;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__variant_tensor_data_proto__descriptor, p, n);
    if (!err)
        err = trn_variant_from_pb(out, pb);
    depth--;
    trn_arena_free(a);
    return err;
}

/* All lengths, then all bytes. */
static trn_err from_list(trn_tensor *t, const uint8_t *p, size_t n)
{
    trn_pbr lens = trn_pbr_init(p, n), r = lens;
    uint64_t len = 0;
    for (int64_t i = 0; i < t->count; i++)
        if (!trn_pbr_raw_varint(&r, &len))
            return list_error(t, r.why);
    for (int64_t i = 0; i < t->count; i++) {
        if (!trn_pbr_raw_varint(&lens, &len)) /* was read above: cannot happen */
            return list_error(t, lens.why);
        if (len > (uint64_t)(r.end - r.p))
            return list_error(t, "a length reaches beyond the end");
        if (t->dtype == TRN_STRING)
            TRN_TRY(trn_str_set(TRN_DATA_MUT(t, trn_str) + i, (const char *)r.p, (size_t)len));
        else if (t->dtype == TRN_VARIANT)
            TRN_TRY(variant_from_bytes(TRN_DATA_MUT(t, trn_variant *) + i, r.p, (size_t)len));
        else
            TRN_TRY(handle_from_bytes(TRN_DATA_MUT(t, trn_handle *) + i, r.p, (size_t)len));
        r.p += len;
    }
    return r.p == r.end ? TRN_OK : list_error(t, "there are bytes left over");
}

trn_err trn_tensor_from_content(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, const void *p, size_t n)
{
    int64_t count;
    TRN_TRY(trn_shape_count(&count, shape));
    bool plain = trn_dtype_is_plain(dtype);
    size_t size = trn_dtype_size(dtype), bytes;
    char text[TRN_SHAPE_TEXT];
    /* Before anything is allocated: every element, also an empty string, takes a byte at least. */
    if (plain && (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes != n))
        return trn_errorf(TRN_INVALID_ARGUMENT, "tensor_content of %s%s has %zu bytes, not %lld times %zu",
                          trn_dtype_name(dtype), trn_shape_text(text, shape), n, (long long)count, size);
    if (!plain && size && (uint64_t)count > n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "tensor_content of %s%s has %zu bytes: too few for %lld elements",
                          trn_dtype_name(dtype), trn_shape_text(text, shape), n, (long long)count);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, shape));
    if (!plain) {
        trn_err err = from_list(t, p, n);
        if (err) {
            trn_tensor_unref(t);
            return err;
        }
    } else if (dtype == TRN_BOOL) { /* a C bool that is neither 0 nor 1 is undefined */
        for (size_t i = 0; i < n; i++)
            TRN_DATA_MUT(t, uint8_t)[i] = ((const uint8_t *)p)[i] != 0;
    } else if (n) {
        memcpy(t->data, p, n);
    }
    *out = t;
    return TRN_OK;
}

trn_err trn_tensor_to_content(trn_sb *out, const trn_tensor *t)
{
    if (trn_dtype_is_plain(t->dtype)) {
        trn_sb_add(out, t->data, trn_tensor_bytes(t));
        return TRN_OK;
    }
    if (t->dtype == TRN_STRING) {
        const trn_str *s = TRN_DATA(t, trn_str);
        for (int64_t i = 0; i < t->count; i++)
            trn_pbw_raw_varint(out, s[i].len);
        for (int64_t i = 0; i < t->count; i++)
            trn_sb_add(out, trn_str_p(&s[i]), s[i].len);
        return TRN_OK;
    }
    trn_arena *a = trn_arena_new();
    trn_sb bodies = {0};
    bool whole = true;
    trn_pb_room room = TRN_PB_ROOM;
    for (int64_t i = 0; i < t->count && whole; i++) {
        size_t before = bodies.n;
        ProtobufCMessage *m = (ProtobufCMessage *)(t->dtype == TRN_VARIANT ? (void *)trn_variant_to_pb(a, TRN_DATA(t, trn_variant *)[i], &room)
                                                                           : (void *)trn_handle_to_pb(a, TRN_DATA(t, trn_handle *)[i]));
        if ((whole = m != NULL)) {
            trn_pb_pack(&bodies, m);
            trn_pbw_raw_varint(out, bodies.n - before);
        }
    }
    if (bodies.n && whole)
        trn_sb_add(out, bodies.p, bodies.n);
    trn_sb_fini(&bodies);
    trn_arena_free(a);
    return whole ? TRN_OK : trn_errorf(TRN_UNIMPLEMENTED, "variant tensors of this kind cannot be written down");
}

/* ---- value lists ---------------------------------------------------------------------------------------------- */

/* Values of the message's list, `per` of which make one element. */
static trn_err values_of(size_t *n, size_t *per, const Tensorflow__TensorProto *pb, trn_dtype dtype)
{
    *per = 1;
    switch (dtype) {
    case TRN_FLOAT:
        *n = pb->n_float_val;
        break;
    case TRN_DOUBLE:
        *n = pb->n_double_val;
        break;
    case TRN_HALF:
    case TRN_BFLOAT16:
        *n = pb->n_half_val;
        break;
    case TRN_COMPLEX64:
        *n = pb->n_scomplex_val;
        *per = 2;
        break;
    case TRN_COMPLEX128:
        *n = pb->n_dcomplex_val;
        *per = 2;
        break;
    case TRN_INT64:
        *n = pb->n_int64_val;
        break;
    case TRN_UINT32:
        *n = pb->n_uint32_val;
        break;
    case TRN_UINT64:
        *n = pb->n_uint64_val;
        break;
    case TRN_BOOL:
        *n = pb->n_bool_val;
        break;
    case TRN_STRING:
        *n = pb->n_string_val;
        break;
    case TRN_RESOURCE:
        *n = pb->n_resource_handle_val;
        break;
    case TRN_FLOAT8_E5M2:
    case TRN_FLOAT8_E4M3FN:
        *n = pb->float8_val.len;
        break;
    case TRN_VARIANT:
        *n = pb->n_variant_val;
        break;
    default: /* int32 and all that is smaller */
        *n = pb->n_int_val;
    }
    if (*n % *per)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%zu values do not make whole %s elements", *n, trn_dtype_name(dtype));
    *n /= *per;
    return TRN_OK;
}

#define EACH(T, list)                                                                                                  \
    for (size_t i = 0; i < n; i++)                                                                                     \
    ((T *)t->data)[i] = (T)(list)[i]

/* The first n elements from the list. */
static trn_err put_values(trn_tensor *t, const Tensorflow__TensorProto *pb, size_t n)
{
    switch (t->dtype) {
    case TRN_FLOAT:
        memcpy(t->data, pb->float_val, n * 4);
        break;
    case TRN_DOUBLE:
        memcpy(t->data, pb->double_val, n * 8);
        break;
    case TRN_COMPLEX64:
        memcpy(t->data, pb->scomplex_val, n * 8);
        break;
    case TRN_COMPLEX128:
        memcpy(t->data, pb->dcomplex_val, n * 16);
        break;
    case TRN_INT64:
        memcpy(t->data, pb->int64_val, n * 8);
        break;
    case TRN_UINT64:
        memcpy(t->data, pb->uint64_val, n * 8);
        break;
    case TRN_UINT32:
        memcpy(t->data, pb->uint32_val, n * 4);
        break;
    case TRN_INT32:
    case TRN_QINT32:
        memcpy(t->data, pb->int_val, n * 4);
        break;
    case TRN_FLOAT8_E5M2:
    case TRN_FLOAT8_E4M3FN:
        memcpy(t->data, pb->float8_val.data, n);
        break;
    case TRN_HALF:
    case TRN_BFLOAT16:
        EACH(uint16_t, pb->half_val);
        break;
    case TRN_INT16:
    case TRN_UINT16:
    case TRN_QINT16:
    case TRN_QUINT16:
        EACH(uint16_t, pb->int_val);
        break;
    case TRN_BOOL:
        EACH(bool, pb->bool_val);
        break;
    case TRN_STRING:
        for (size_t i = 0; i < n; i++)
            TRN_TRY(
                trn_str_set(TRN_DATA_MUT(t, trn_str) + i, (const char *)pb->string_val[i].data, pb->string_val[i].len));
        break;
    case TRN_RESOURCE:
        for (size_t i = 0; i < n; i++)
            TRN_TRY(trn_handle_from_pb(TRN_DATA_MUT(t, trn_handle *) + i, pb->resource_handle_val[i]));
        break;
    case TRN_VARIANT:
        for (size_t i = 0; i < n; i++)
            TRN_TRY(trn_variant_from_pb(TRN_DATA_MUT(t, trn_variant *) + i, pb->variant_val[i]));
        break;
    default: /* one byte each */
        EACH(uint8_t, pb->int_val);
    }
    return TRN_OK;
}

/* Element n - 1 over all that follow; n >= 1. */
static trn_err repeat_last(trn_tensor *t, int64_t n)
{
    if (!trn_dtype_is_plain(t->dtype)) {
        for (int64_t i = n; i < t->count; i++)
            TRN_TRY(trn_tensor_copy_elems(t, i, t, n - 1, 1));
        return TRN_OK;
    }
    size_t size = trn_dtype_size(t->dtype);
    char *from = (char *)t->data + (size_t)(n - 1) * size;
    size_t have = size, want = (size_t)(t->count - n + 1) * size;
    while (have < want) { /* twice as much each time */
        size_t more = TRN_MIN(have, want - have);
        memcpy(from + have, from, more);
        have += more;
    }
    return TRN_OK;
}

static trn_err from_values(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, const Tensorflow__TensorProto *pb)
{
    int64_t count;
    size_t n, per, size = trn_dtype_size(dtype), bytes;
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(trn_shape_count(&count, shape));
    TRN_TRY(values_of(&n, &per, pb, dtype));
    n = TRN_MIN(n, (size_t)count); /* TensorFlow looks at no more; its Python puts one value into an empty Const of strings */
    /* A few bytes may stand for many: they must not take all memory. */
    size_t last = dtype == TRN_STRING && n && pb->string_val[n - 1].len > sizeof(((trn_str *)0)->in)
                      ? pb->string_val[n - 1].len
                      : 0;
    if (__builtin_mul_overflow((size_t)count, size + last, &bytes) || (bytes > TRN_PB_FILL_MAX && n < (size_t)count))
        return trn_errorf(TRN_RESOURCE_EXHAUSTED,
                          "a tensor of shape %s and type %s from %zu values: over the limit of %zu bytes",
                          trn_shape_text(text, shape), trn_dtype_name(dtype), n, TRN_PB_FILL_MAX);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, shape));
    trn_err err = TRN_OK;
    if (n) {
        err = put_values(t, pb, n);
        if (!err)
            err = repeat_last(t, (int64_t)n);
    } else if (trn_dtype_is_plain(dtype) && count) {
        memset(t->data, 0, trn_tensor_bytes(t));
    }
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    *out = t;
    return TRN_OK;
}

trn_err trn_tensor_from_pb(trn_tensor **out, const Tensorflow__TensorProto *pb)
{
    trn_dtype dtype = (trn_dtype)pb->dtype;
    trn_shape shape;
    TRN_TRY(trn_shape_from_pb(&shape, pb->tensor_shape));
    if (trn_dtype_is_ref(dtype) || !trn_dtype_size(dtype))
        return trn_errorf(TRN_INVALID_ARGUMENT, "a tensor message has dtype %d (%s)", (int)dtype,
                          trn_dtype_name(dtype));
    int64_t count;
    TRN_TRY(trn_shape_count(&count, &shape));
    if (!count)
        return trn_tensor_new(out, dtype, &shape); /* whatever the message holds */
    if (pb->tensor_content.len)
        return trn_tensor_from_content(out, dtype, &shape, pb->tensor_content.data, pb->tensor_content.len);
    return from_values(out, dtype, &shape, pb);
}

Tensorflow__TensorProto *trn_tensor_to_pb(trn_arena *a, const trn_tensor *t) { return trn_tensor__to_pb(a, t, &TRN_PB_ROOM); }

Tensorflow__TensorProto *trn_tensor__to_pb(trn_arena *a, const trn_tensor *t, trn_pb_room *room)
{
    Tensorflow__TensorProto *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__tensor_proto__init(pb);
    pb->dtype = (Tensorflow__DataType)t->dtype;
    pb->tensor_shape = trn_shape_to_pb(a, &t->shape);
    size_t n = (size_t)t->count;
    if (t->dtype == TRN_STRING) {
        const trn_str *s = TRN_DATA(t, trn_str);
        pb->n_string_val = n;
        pb->string_val = trn_arena_alloc(a, n * sizeof *pb->string_val);
        for (size_t i = 0; i < n; i++)
            pb->string_val[i] = (ProtobufCBinaryData){s[i].len, (uint8_t *)trn_str_p(&s[i])};
    } else if (t->dtype == TRN_RESOURCE) {
        /* A few bytes may have stood for many handles; written out, they could be more than a reader lets a message grow. */
        trn_handle **h = t->data;
        while (n > 1 && h[n - 1] == h[n - 2])
            n--;
        pb->n_resource_handle_val = n;
        pb->resource_handle_val = trn_arena_alloc(a, n * sizeof *pb->resource_handle_val);
        for (size_t i = 0; i < n; i++)
            pb->resource_handle_val[i] = trn_handle_to_pb(a, h[i]);
    } else if (t->dtype == TRN_VARIANT) {
        trn_variant **v = t->data;
        while (n > 1 && v[n - 1] == v[n - 2])
            n--;
        pb->n_variant_val = n;
        pb->variant_val = trn_arena_alloc(a, (n + 1) * sizeof *pb->variant_val);
        for (size_t i = 0; i < n; i++)
            if (!(pb->variant_val[i] = trn_variant_to_pb(a, v[i], room)))
                return NULL;
    } else {
        pb->tensor_content = (ProtobufCBinaryData){trn_tensor_bytes(t), t->data};
    }
    return pb;
}

#define SHORT_MIN 1024 /* bytes that are not worth a look */
#define SHORT_VALUE 32 /* twice what a value takes in a message at most, and more */

/* Values up to the last one that differs from the one before it. */
static size_t distinct(const trn_tensor *t)
{
    size_t n = (size_t)t->count, size = trn_dtype_size(t->dtype);
    const char *p = t->data;
    while (n > 1 && memcmp(p + (n - 1) * size, p + (n - 2) * size, size) == 0)
        n--;
    return n;
}

#define WIDEN(T, W, field)                                                                                             \
    do {                                                                                                               \
        pb->n_##field = n;                                                                                             \
        pb->field = trn_arena_alloc(a, n * sizeof(W));                                                                 \
        for (size_t i = 0; i < n; i++)                                                                                 \
            pb->field[i] = (W)TRN_DATA(t, T)[i];                                                                       \
    } while (0)

#define POINT(field, count)                                                                                            \
    do {                                                                                                               \
        pb->n_##field = (count);                                                                                       \
        pb->field = t->data;                                                                                           \
    } while (0)

Tensorflow__TensorProto *trn_tensor_to_pb_short(trn_arena *a, const trn_tensor *t)
{
    Tensorflow__TensorProto *pb = trn_tensor_to_pb(a, t);
    size_t bytes = pb ? pb->tensor_content.len : 0;
    if (bytes < SHORT_MIN)
        return pb;
    size_t n = distinct(t);
    if (n > bytes / SHORT_VALUE)
        return pb;
    pb->tensor_content = (ProtobufCBinaryData){0};
    switch (t->dtype) {
    case TRN_FLOAT:
        POINT(float_val, n);
        break;
    case TRN_DOUBLE:
        POINT(double_val, n);
        break;
    case TRN_COMPLEX64:
        POINT(scomplex_val, 2 * n);
        break;
    case TRN_COMPLEX128:
        POINT(dcomplex_val, 2 * n);
        break;
    case TRN_INT64:
        POINT(int64_val, n);
        break;
    case TRN_UINT64:
        POINT(uint64_val, n);
        break;
    case TRN_UINT32:
        POINT(uint32_val, n);
        break;
    case TRN_INT32:
    case TRN_QINT32:
        POINT(int_val, n);
        break;
    case TRN_HALF:
    case TRN_BFLOAT16:
        WIDEN(uint16_t, int32_t, half_val);
        break;
    case TRN_UINT16:
    case TRN_QUINT16:
        WIDEN(uint16_t, int32_t, int_val);
        break;
    case TRN_INT16:
    case TRN_QINT16:
        WIDEN(int16_t, int32_t, int_val);
        break;
    case TRN_UINT8:
    case TRN_QUINT8:
    case TRN_UINT4:
        WIDEN(uint8_t, int32_t, int_val);
        break;
    case TRN_INT8:
    case TRN_QINT8:
    case TRN_INT4:
        WIDEN(int8_t, int32_t, int_val);
        break;
    case TRN_BOOL:
        WIDEN(uint8_t, protobuf_c_boolean, bool_val);
        break;
    case TRN_FLOAT8_E5M2:
    case TRN_FLOAT8_E4M3FN:
        pb->float8_val = (ProtobufCBinaryData){n, t->data};
        break;
    default: /* what is yet to come */
        pb->tensor_content = (ProtobufCBinaryData){bytes, t->data};
    }
    return pb;
}
