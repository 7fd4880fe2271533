/* tensor/tensor_pb: tensors, shapes and handles on the wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "check.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#include <stdlib.h>

static const struct golden {
    const char *name;
    int dtype, rank;
    int64_t dim[4];
    const uint8_t *msg;
    size_t n_msg;
    const uint8_t *elems;
    size_t n_elems;
} goldens[] = {
#include "golden_tensor_pb.inc"
};

static trn_tensor *decode(const uint8_t *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb;
    trn_tensor *t;
    assert_null(TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, p, n));
    trn_err e = trn_tensor_from_pb(&t, pb);
    if (e)
        fail_msg("%s", trn_err_msg(e));
    trn_arena_free(a);
    return t;
}

static void check_elems(const trn_tensor *t, const struct golden *g)
{
    trn_sb s = {0};
    if (t->dtype == TRN_STRING) {
        for (int64_t i = 0; i < t->count; i++) {
            size_t n;
            const char *p = trn_tensor_str_at(t, i, &n);
            trn_sb_add(&s, &(uint32_t){(uint32_t)n}, 4);
            trn_sb_add(&s, p, n);
        }
    } else {
        trn_sb_add(&s, t->data, trn_tensor_bytes(t));
    }
    if (s.n != g->n_elems || memcmp(s.p, g->elems, s.n) != 0)
        fail_msg("%s: elements differ", g->name);
    trn_sb_fini(&s);
}

static void golden(void **state)
{
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i++) {
        const struct golden *g = &goldens[i];
        trn_tensor *t = decode(g->msg, g->n_msg);
        trn_shape want = {.rank = g->rank};
        memcpy(want.dim, g->dim, sizeof g->dim);
        assert_int_equal(t->dtype, g->dtype);
        assert_true(trn_shape_eq(&t->shape, &want));
        check_elems(t, g);

        /* And back: what we write reads the same; where TensorFlow writes content, byte for byte what it writes. */
        trn_arena *a = trn_arena_new();
        size_t n;
        uint8_t *p = trn_pb_pack_arena(a, &n, &trn_tensor_to_pb(a, t)->base);
        trn_tensor *again = decode(p, n);
        check_elems(again, g);
        if ((strstr(g->name, " content") && t->dtype != TRN_STRING) || strstr(g->name, "serialize")) {
            assert_int_equal(n, g->n_msg);
            assert_memory_equal(p, g->msg, n);
        }
        trn_tensor_unref(again);
        trn_sb content = {0};
        assert_null(trn_tensor_to_content(&content, t));
        assert_null(trn_tensor_from_content(&again, t->dtype, &t->shape, content.p, content.n));
        check_elems(again, g);
        trn_tensor_unref(again);
        trn_sb_fini(&content);
        trn_arena_free(a);
        trn_tensor_unref(t);
    }
}

/* ---- what must be refused ------------------------------------------------------------------------------------- */

static Tensorflow__TensorProto *proto(trn_arena *a, int dtype, int rank, const int64_t *dims)
{
    Tensorflow__TensorProto *pb = trn_arena_alloc(a, sizeof *pb);
    tensorflow__tensor_proto__init(pb);
    trn_shape s = {.rank = rank};
    if (rank)
        memcpy(s.dim, dims, (size_t)rank * 8);
    pb->dtype = (Tensorflow__DataType)dtype;
    pb->tensor_shape = trn_shape_to_pb(a, &s);
    return pb;
}

static void refused(void **state)
{
    trn_arena *a = trn_arena_new();
    trn_tensor *t = NULL;
    int64_t three = 3, many = INT64_C(1) << 40;
    Tensorflow__TensorProto *pb;
    float f[4] = {1, 2, 3, 4};

    pb = proto(a, TRN_COMPLEX64, 1, &three);
    pb->n_scomplex_val = 3;
    pb->scomplex_val = f;
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "whole complex64");

    pb = proto(a, TRN_FLOAT, 1, &three);
    pb->tensor_content = (ProtobufCBinaryData){11, (uint8_t *)f};
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "float[3] has 11 bytes");
    pb = proto(a, TRN_FLOAT, 1, &many);
    pb->tensor_content = (ProtobufCBinaryData){12, (uint8_t *)f};
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "12 bytes");
    pb = proto(a, TRN_STRING, 1, &many);
    pb->tensor_content = (ProtobufCBinaryData){12, (uint8_t *)f};
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "too few");

    pb = proto(a, TRN_FLOAT, 1, &many); /* zeros */
    fails(trn_tensor_from_pb(&t, pb), TRN_RESOURCE_EXHAUSTED, "limit");
    pb->n_float_val = 1;
    pb->float_val = f;
    fails(trn_tensor_from_pb(&t, pb), TRN_RESOURCE_EXHAUSTED, "limit");
    int64_t lots = 1 << 20;
    static char word[10000];
    pb = proto(a, TRN_STRING, 1, &lots); /* 10 kB, a million times */
    pb->n_string_val = 1;
    pb->string_val = &(ProtobufCBinaryData){sizeof word, (uint8_t *)word};
    fails(trn_tensor_from_pb(&t, pb), TRN_RESOURCE_EXHAUSTED, "limit");

    pb = proto(a, TRN_FLOAT, 2, (int64_t[]){INT64_MAX, INT64_MAX});
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "2^62");
    pb = proto(a, TRN_FLOAT, 1, (int64_t[]){-1});
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "[?]");
    pb->tensor_shape->dim[0]->size = -2;
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "is -2");
    pb->tensor_shape->unknown_rank = true;
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "unknown rank");
    pb->tensor_shape->n_dim = 0;
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "<unknown>");
    static const int bad[] = {0, 26, 31, 77, 101, 1000, -1};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        pb = proto(a, bad[i], 0, NULL);
        fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "has dtype");
    }

    pb = proto(a, TRN_VARIANT, 0, NULL);
    Tensorflow__VariantTensorDataProto v = TENSORFLOW__VARIANT_TENSOR_DATA_PROTO__INIT, *vp = &v;
    v.type_name = "tensorflow::Unheard";
    pb->n_variant_val = 1;
    pb->variant_val = &vp;
    fails(trn_tensor_from_pb(&t, pb), TRN_UNIMPLEMENTED, "tensorflow::Unheard");
    v.type_name = "int";
    v.metadata = (ProtobufCBinaryData){3, (uint8_t *)"abc"};
    fails(trn_tensor_from_pb(&t, pb), TRN_INVALID_ARGUMENT, "3 bytes");
    assert_null(t);

    /* A list of strings whose lengths lie. */
    trn_shape two = trn_shape_vector(2);
    fails(trn_tensor_from_content(&t, TRN_STRING, &two, "\x01\x02zz", 4), TRN_INVALID_ARGUMENT, "beyond");
    fails(trn_tensor_from_content(&t, TRN_STRING, &two, "\x01\x01zzz", 5), TRN_INVALID_ARGUMENT, "left over");
    fails(trn_tensor_from_content(&t, TRN_STRING, &two, "\x81\x81", 2), TRN_INVALID_ARGUMENT, "varint");
    fails(trn_tensor_from_content(&t, TRN_STRING, &two, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01z", 12),
          TRN_INVALID_ARGUMENT, "beyond");
    fails(trn_tensor_from_content(&t, TRN_RESOURCE, &two, "\x01\x01zz", 4), TRN_INVALID_ARGUMENT,
          "ResourceHandleProto");
    fails(trn_tensor_from_content(&t, TRN_VARIANT, &two, "zz", 2), TRN_INVALID_ARGUMENT, "beyond");
    fails(trn_tensor_from_content(&t, TRN_VARIANT, &two, "\x00\x02zz", 4), TRN_INVALID_ARGUMENT, "VariantTensorDataProto");
    trn_arena_free(a);
}

/* As in TensorFlow: a list that is too long is read as far as there are elements, and for no elements nothing is read. */
static void too_many_values(void **state)
{
    trn_arena *a = trn_arena_new();
    trn_tensor *t;
    int64_t three = 3, none = 0;
    float f[4] = {1, 2, 3, 4};
    Tensorflow__TensorProto *pb = proto(a, TRN_FLOAT, 1, &three);
    pb->n_float_val = 4;
    pb->float_val = f;
    assert_null(trn_tensor_from_pb(&t, pb));
    assert_int_equal(t->count, 3);
    assert_memory_equal(t->data, f, 12);
    trn_tensor_unref(t);

    static const int dtypes[] = {TRN_STRING, TRN_FLOAT, TRN_COMPLEX64, TRN_INT32, TRN_BOOL, TRN_VARIANT};
    for (size_t i = 0; i < TRN_COUNTOF(dtypes); i++) {
        pb = proto(a, dtypes[i], 1, &none);
        pb->n_string_val = 1;
        pb->string_val = &(ProtobufCBinaryData){1, (uint8_t *)"x"};
        pb->n_float_val = pb->n_scomplex_val = pb->n_int_val = 3;
        pb->float_val = pb->scomplex_val = f;
        pb->int_val = (int32_t[]){1, 2, 3};
        pb->n_bool_val = 1;
        pb->bool_val = (protobuf_c_boolean[]){1};
        if (dtypes[i] != TRN_STRING)
            pb->tensor_content = (ProtobufCBinaryData){5, (uint8_t *)f};
        assert_null(trn_tensor_from_pb(&t, pb));
        assert_int_equal(t->dtype, dtypes[i]);
        assert_int_equal(t->count, 0);
        trn_tensor_unref(t);
    }
    trn_arena_free(a);
}

static void bools_are_bools(void **state)
{
    trn_shape three = trn_shape_vector(3);
    trn_tensor *t;
    assert_null(trn_tensor_from_content(&t, TRN_BOOL, &three, "\x00\x02\xff", 3));
    assert_memory_equal(t->data, "\x00\x01\x01", 3);
    trn_tensor_unref(t);
}

/* ---- shapes, handles ------------------------------------------------------------------------------------------ */

static void shapes(void **state)
{
    trn_arena *a = trn_arena_new();
    trn_shape out,
        in[] = {trn_shape_scalar(), trn_shape_unknown(), trn_shape_of(3, (int64_t)-1, (int64_t)0, INT64_C(1) << 40)};
    for (size_t i = 0; i < TRN_COUNTOF(in); i++) {
        Tensorflow__TensorShapeProto *pb = trn_shape_to_pb(a, &in[i]), *back;
        size_t n;
        uint8_t *p = trn_pb_pack_arena(a, &n, &pb->base);
        assert_null(TRN_PB_UNPACK(&back, a, tensorflow__tensor_shape_proto__descriptor, p, n));
        assert_null(trn_shape_from_pb(&out, back));
        assert_true(trn_shape_eq(&out, &in[i]));
    }
    assert_null(trn_shape_from_pb(&out, NULL));
    assert_int_equal(out.rank, 0);
    Tensorflow__TensorShapeProto deep = TENSORFLOW__TENSOR_SHAPE_PROTO__INIT;
    Tensorflow__TensorShapeProto__Dim dim = TENSORFLOW__TENSOR_SHAPE_PROTO__DIM__INIT, *dims[33];
    for (int i = 0; i < 33; i++)
        dims[i] = &dim;
    deep.dim = dims;
    deep.n_dim = 33;
    fails(trn_shape_from_pb(&out, &deep), TRN_UNIMPLEMENTED, "rank 33");
    deep.n_dim = 32;
    assert_null(trn_shape_from_pb(&out, &deep));
    trn_arena_free(a);
}

static void handles(void **state)
{
    trn_shape two = trn_shape_vector(2);
    trn_tensor *t, *back;
    assert_null(trn_tensor_new(&t, TRN_RESOURCE, &two));
    trn_handle *h = trn_handle_new("/job:ps/replica:0/task:0/device:CPU:0", "localhost", "var", "tensorflow::Var");
    h->hash_code = UINT64_MAX - 5;
    h->n_dtypes = 1;
    h->dtypes = trn_xalloc(sizeof *h->dtypes);
    h->shapes = trn_xalloc(sizeof *h->shapes);
    h->dtypes[0] = TRN_FLOAT;
    h->shapes[0] = trn_shape_of(2, (int64_t)-1, (int64_t)10);
    TRN_DATA_MUT(t, trn_handle *)[0] = h;

    trn_arena *a = trn_arena_new();
    size_t n;
    uint8_t *p = trn_pb_pack_arena(a, &n, &trn_tensor_to_pb(a, t)->base);
    trn_sb content = {0};
    assert_null(trn_tensor_to_content(&content, t));
    for (int way = 0; way < 2; way++) {
        if (way == 0)
            back = decode(p, n);
        else
            assert_null(trn_tensor_from_content(&back, TRN_RESOURCE, &two, content.p, content.n));
        const trn_handle *g = TRN_DATA(back, trn_handle *)[0];
        assert_string_equal(g->device, h->device);
        assert_string_equal(g->container, h->container);
        assert_string_equal(g->name, h->name);
        assert_string_equal(g->type_name, h->type_name);
        assert_true(g->hash_code == h->hash_code);
        assert_int_equal(g->n_dtypes, 1);
        assert_int_equal(g->dtypes[0], TRN_FLOAT);
        assert_true(trn_shape_eq(&g->shapes[0], &h->shapes[0]));
        assert_string_equal(TRN_DATA(back, trn_handle *)[1]->name, "");
        trn_tensor_unref(back);
    }
    trn_sb_fini(&content);

    /* One value for two elements: both share it. */
    Tensorflow__TensorProto *pb = proto(a, TRN_RESOURCE, 1, (int64_t[]){2});
    Tensorflow__ResourceHandleProto *hp = trn_handle_to_pb(a, h);
    pb->n_resource_handle_val = 1;
    pb->resource_handle_val = &hp;
    assert_null(trn_tensor_from_pb(&back, pb));
    assert_ptr_equal(TRN_DATA(back, trn_handle *)[0], TRN_DATA(back, trn_handle *)[1]);
    trn_tensor_unref(back);
    hp->dtypes_and_shapes[0]->shape->dim[0]->size = -3;
    fails(trn_tensor_from_pb(&back, pb), TRN_INVALID_ARGUMENT, "localhost/var");
    trn_arena_free(a);
    trn_tensor_unref(t);

    trn_shape s = trn_shape_scalar();
    assert_null(trn_tensor_new(&t, TRN_VARIANT, &s));
    a = trn_arena_new();
    static const trn_variant_type stays = {.name = "stays here"};
    trn_variant v = {.ref = 2, .type = &stays};
    TRN_DATA_MUT(t, trn_variant *)[0] = &v;
    assert_null(trn_tensor_to_pb(a, t));
    trn_arena_free(a);
    trn_tensor_unref(t);
}

/* Numbers in variants, the last one repeated, go and come. */
static void variants(void **state)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__VariantTensorDataProto v = TENSORFLOW__VARIANT_TENSOR_DATA_PROTO__INIT, none = v, *vp[2] = {&none, &v};
    v.type_name = "int";
    v.metadata = (ProtobufCBinaryData){4, (uint8_t *)"\7\0\0"};
    int64_t three = 3;
    Tensorflow__TensorProto *pb = proto(a, TRN_VARIANT, 1, &three);
    pb->n_variant_val = 2;
    pb->variant_val = vp;
    trn_tensor *t;
    assert_null(trn_tensor_from_pb(&t, pb));
    assert_null(TRN_DATA(t, trn_variant *)[0]);
    assert_ptr_equal(TRN_DATA(t, trn_variant *)[1], TRN_DATA(t, trn_variant *)[2]);
    pb = trn_tensor_to_pb(a, t);
    assert_non_null(pb);
    assert_int_equal(pb->n_variant_val, 2);
    assert_string_equal(pb->variant_val[1]->type_name, "int");
    assert_int_equal(pb->variant_val[1]->metadata.len, 4);
    assert_int_equal(pb->variant_val[1]->metadata.data[0], 7);
    trn_arena_free(a);
    /* as TensorFlow's tasks send them */
    trn_sb s = {0};
    trn_tensor *back;
    trn_shape shape = t->shape;
    assert_null(trn_tensor_to_content(&s, t));
    assert_null(trn_tensor_from_content(&back, TRN_VARIANT, &shape, s.p, s.n));
    assert_null(TRN_DATA(back, trn_variant *)[0]);
    assert_non_null(TRN_DATA(back, trn_variant *)[2]);
    trn_tensor_unref(back);
    trn_sb_fini(&s);
    trn_tensor_unref(t);
}

typedef struct kept {
    trn_variant base;
    trn_tensor *t;
} kept;

static void kept_free(void *k)
{
    trn_tensor_unref(((kept *)k)->t);
    free(k);
}

static trn_err kept_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
static const trn_variant_type kept_type = {.name = "test::Kept", .free = kept_free, .unpack = kept_unpack};

static trn_err kept_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t)
{
    assert_int_equal(n_t, 1);
    kept *k = trn_xalloc(sizeof *k);
    k->base = (trn_variant){.ref = 1, .type = &kept_type};
    k->t = trn_tensor_ref(t[0]);
    *out = &k->base;
    return TRN_OK;
}

/* A tensor in a variant in a tensor …: each in the bytes of the next one, where the parser does not look. */
static void nested_variants(void **state)
{
    trn_variant_type_add(&kept_type);
    for (int depth = 5; depth < 100000; depth *= 20) {
        trn_sb s = {0};
        for (int i = 0; i < depth && s.n < 1 << 20; i++) {
            trn_sb list = {0}, t = {0}, v = {0};
            trn_pbw_raw_varint(&list, s.n);
            trn_sb_add(&list, s.n ? s.p : "", s.n);
            trn_pbw_varint(&t, 1, TRN_VARIANT);
            trn_pbw_bytes(&t, 4, list.p, list.n);
            trn_pbw_str(&v, 1, kept_type.name);
            trn_pbw_bytes(&v, 3, t.p, t.n);
            trn_sb_fini(&list);
            trn_sb_fini(&t);
            trn_sb_fini(&s);
            s = v;
        }
        trn_sb list = {0};
        trn_tensor *t;
        trn_shape scalar = trn_shape_scalar();
        trn_pbw_raw_varint(&list, s.n);
        trn_sb_add(&list, s.p, s.n);
        if (depth == 5) {
            ok(trn_tensor_from_content(&t, TRN_VARIANT, &scalar, list.p, list.n));
            trn_tensor_unref(t);
        } else {
            fails(trn_tensor_from_content(&t, TRN_VARIANT, &scalar, list.p, list.n), TRN_INVALID_ARGUMENT, "deep");
        }
        trn_sb_fini(&list);
        trn_sb_fini(&s);
    }
}

/* What a message may take beyond its bytes is for all of its tensors together, those in variants and in their bytes among them. */
static void one_budget(void **state)
{
    trn_variant_type_add(&kept_type);
    trn_arena *a = trn_arena_new();
    Tensorflow__VariantTensorDataProto v = TENSORFLOW__VARIANT_TENSOR_DATA_PROTO__INIT, *vp[] = {&v, &v, &v, &v};
    Tensorflow__TensorProto *zeros = proto(a, TRN_FLOAT, 1, (int64_t[]){1000}), *pb = proto(a, TRN_VARIANT, 1, (int64_t[]){4});
    v.type_name = (char *)(uintptr_t)kept_type.name;
    v.n_tensors = 1;
    v.tensors = &zeros;
    pb->n_variant_val = 4;
    pb->variant_val = vp;
    trn_tensor *t;
    size_t left = 16000;
    ok(trn_tensor_from_pb_within(&t, pb, &left));
    trn_tensor_unref(t);
    assert_int_equal(left, 0);
    left = 15999;
    fails(trn_tensor_from_pb_within(&t, pb, &left), TRN_RESOURCE_EXHAUSTED, "limit");
    left = 4000;
    ok(trn_tensor_from_pb_within(&t, zeros, &left));
    trn_tensor_unref(t);
    fails(trn_tensor_from_pb_within(&t, zeros, &left), TRN_RESOURCE_EXHAUSTED, "limit");

    /* 100 kB in a variant in a variant in a variant */
    trn_sb s = {0};
    trn_sb_reserve(&s, 100000);
    memset(s.p, 0, s.n = 100000);
    for (int i = 0; i < 3; i++) {
        trn_sb tb = {0}, vb = {0}, list = {0};
        trn_pbw_varint(&tb, 1, i ? TRN_VARIANT : TRN_UINT8);
        if (!i)
            trn_pbw_bytes(&tb, 2, (const uint8_t[]){2 << 3 | 2, 4, 1 << 3, 0xa0, 0x8d, 6}, 6); /* one dim of 100000 */
        trn_pbw_bytes(&tb, 4, s.p, s.n);
        trn_pbw_str(&vb, 1, kept_type.name);
        trn_pbw_bytes(&vb, 3, tb.p, tb.n);
        trn_pbw_raw_varint(&list, vb.n);
        trn_sb_add(&list, vb.p, vb.n);
        trn_sb_fini(&tb);
        trn_sb_fini(&vb);
        trn_sb_fini(&s);
        s = list;
    }
    pb = proto(a, TRN_VARIANT, 0, NULL);
    pb->tensor_content = (ProtobufCBinaryData){s.n, (uint8_t *)s.p};
    left = 210000;
    ok(trn_tensor_from_pb_within(&t, pb, &left));
    trn_tensor_unref(t);
    assert_true(left < 10000);
    left = 150000;
    fails(trn_tensor_from_pb_within(&t, pb, &left), TRN_RESOURCE_EXHAUSTED, "3 deep");
    trn_sb_fini(&s);
    trn_arena_free(a);
}

/* A message of a few bytes makes a tensor that we can also send: what we write, we can read. */
static void many_from_few(void **state)
{
    static const trn_dtype types[] = {TRN_RESOURCE, TRN_STRING};
    for (size_t i = 0; i < TRN_COUNTOF(types); i++) {
        trn_arena *a = trn_arena_new();
        trn_tensor *t, *back;
        assert_null(trn_tensor_from_pb(&t, proto(a, types[i], 2, (int64_t[]){1024, 1024})));
        size_t n;
        uint8_t *p = trn_pb_pack_arena(a, &n, &trn_tensor_to_pb(a, t)->base);
        back = decode(p, n);
        assert_true(trn_shape_eq(&back->shape, &t->shape));
        if (types[i] == TRN_RESOURCE)
            assert_true(n < 64);
        trn_tensor_unref(back);
        trn_tensor_unref(t);
        trn_arena_free(a);
    }
}

static void short_form(void **state)
{
    trn_shape shape = trn_shape_of(2, (int64_t)300, (int64_t)7);
    for (trn_dtype d = TRN_INVALID; d < TRN_DTYPE_END; d++) {
        if (!trn_dtype_size(d) || !trn_dtype_is_plain(d))
            continue;
        size_t size = trn_dtype_size(d), n, full;
        trn_tensor *t, *back;
        assert_null(trn_tensor_new(&t, d, &shape));
        for (size_t distinct = 1; distinct <= 2100; distinct += distinct == 3 ? 2097 : 1) {
            for (size_t i = 0; i < (size_t)t->count * size; i++) /* negative numbers among them */
                ((uint8_t *)t->data)[i] = d == TRN_BOOL ? (TRN_MIN(i, distinct - 1) & 1)
                                                        : (uint8_t)(250 - 77 * TRN_MIN(i / size, distinct - 1) - i % size);
            trn_arena *a = trn_arena_new();
            (void)trn_pb_pack_arena(a, &full, &trn_tensor_to_pb(a, t)->base);
            uint8_t *p = trn_pb_pack_arena(a, &n, &trn_tensor_to_pb_short(a, t)->base);
            if (distinct <= 3 ? n > 64 : n != full)
                fail_msg("%s, %zu values: %zu bytes (%zu in full)", trn_dtype_name(d), distinct, n, full);
            back = decode(p, n);
            assert_int_equal(back->dtype, d);
            assert_true(trn_shape_eq(&back->shape, &shape));
            assert_memory_equal(back->data, t->data, (size_t)t->count * size);
            trn_tensor_unref(back);
            trn_arena_free(a);
        }
        trn_tensor_unref(t);
    }
    /* small ones stay as they are */
    trn_arena *a = trn_arena_new();
    trn_tensor *t;
    assert_null(trn_tensor_from_pb(&t, proto(a, TRN_FLOAT, 1, (int64_t[]){4})));
    assert_int_equal(trn_tensor_to_pb_short(a, t)->tensor_content.len, 16);
    trn_tensor_unref(t);
    trn_arena_free(a);
}

/* Every golden message cut short or with one bit flipped: an error or a tensor, never a crash (the sanitizers look). */
static void broken_bytes(void **state)
{
    for (size_t i = 0; i < TRN_COUNTOF(goldens); i += 3) {
        const struct golden *g = &goldens[i];
        uint8_t *copy = malloc(g->n_msg);
        for (size_t k = 0; k < g->n_msg * 9 && k < 700; k++) {
            memcpy(copy, g->msg, g->n_msg);
            size_t n = k < g->n_msg ? k : g->n_msg;
            if (k >= g->n_msg)
                copy[(k - g->n_msg) / 8] ^= (uint8_t)(1 << (k - g->n_msg) % 8);
            uint8_t *exact = malloc(n ? n : 1); /* so that a read past the end is seen */
            memcpy(exact, copy, n);
            trn_arena *a = trn_arena_new();
            Tensorflow__TensorProto *pb;
            trn_tensor *t = NULL;
            trn_err e = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, exact, n);
            if (!e)
                e = trn_tensor_from_pb(&t, pb);
            trn_err_free(e);
            trn_tensor_unref(t);
            trn_arena_free(a);
            free(exact);
        }
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden), cmocka_unit_test(refused), cmocka_unit_test(too_many_values), cmocka_unit_test(bools_are_bools),
        cmocka_unit_test(shapes), cmocka_unit_test(handles),
        cmocka_unit_test(variants),
        cmocka_unit_test(nested_variants),
        cmocka_unit_test(one_budget),
        cmocka_unit_test(broken_bytes),
        cmocka_unit_test(many_from_few), cmocka_unit_test(short_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
