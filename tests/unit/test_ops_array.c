/* Kernels that move elements: golden values, every kind of dtype, errors. The broad comparison is tests/parity/kernels.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "check.h"
#include "optest.h"
#include "tensor/tensor_pb.h"

static void expect_i32(optest *t, trn_err e, int out, int n, const int32_t *want)
{
    ok(e);
    assert_int_equal(t->out[out].t->count, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(TRN_DATA(t->out[out].t, int32_t)[i], want[i]);
}

static void expect_err(optest *t, trn_err e, trn_code code, const char *text)
{
    assert_int_equal(trn_err_code(e), code);
    if (!strstr(trn_err_msg(e), text))
        fail_msg("\"%s\" does not say \"%s\"", trn_err_msg(e), text);
    trn_err_free(e);
    optest_end(t);
}

static trn_tensor *strings(int n, ...)
{
    trn_shape s = trn_shape_vector(n);
    trn_tensor *t;
    ok(trn_tensor_new(&t, TRN_STRING, &s));
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++) {
        const char *p = va_arg(ap, const char *);
        ok(trn_tensor_str_put(t, i, p, strlen(p)));
    }
    va_end(ap);
    return t;
}

static void expect_str(optest *t, int i, const char *want)
{
    size_t n;
    const char *p = trn_tensor_str_at(t->out[0].t, i, &n);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(p, want, n);
}

#define I(...) ((int32_t[]){__VA_ARGS__})
#define M23 OPTEST_MAT(TRN_INT32, int32_t, 2, 3, 1, 2, 3, 4, 5, 6)

static void moves(void **s)
{
    optest t;
    expect_i32(&t, optest_run(&t, "Transpose", NULL, M23, OPTEST_I32(1, 0), NULL), 0, 6, I(1, 4, 2, 5, 3, 6));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Tile", NULL, OPTEST_I32(1, 2), OPTEST_I32(2), NULL), 0, 4, I(1, 2, 1, 2));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "StridedSlice", "begin_mask=1, end_mask=1", M23, OPTEST_I32(0, 0), OPTEST_I32(0, 3), OPTEST_I32(-1, 2), NULL), 0, 4, I(4, 6, 1, 3));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "StridedSlice", "shrink_axis_mask=1", M23, OPTEST_I32(1), OPTEST_I32(2), OPTEST_I32(1), NULL), 0, 3, I(4, 5, 6));
    assert_int_equal(t.out[0].t->shape.rank, 1);
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "ConcatV2", NULL, M23, M23, trn_tensor_i32(1), NULL), 0, 12, I(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Pack", "axis=1", OPTEST_I32(1, 2), OPTEST_I32(3, 4), NULL), 0, 4, I(1, 3, 2, 4));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Split", "num_split=3", trn_tensor_i32(1), M23, NULL), 1, 2, I(2, 5));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "GatherV2", NULL, M23, OPTEST_I32(2, 0), trn_tensor_i32(1), NULL), 0, 4, I(3, 1, 6, 4));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Pad", NULL, OPTEST_I32(7), OPTEST_MAT(TRN_INT32, int32_t, 1, 2, 1, 2), NULL), 0, 4, I(0, 7, 0, 0));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Sum", NULL, M23, OPTEST_I32(0), NULL), 0, 3, I(5, 7, 9));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "UnsortedSegmentSum", NULL, OPTEST_I32(1, 2, 3), OPTEST_I32(1, -1, 1), trn_tensor_i32(3), NULL), 0, 3, I(0, 4, 0));
    optest_end(&t);
    expect_i32(&t, optest_run(&t, "Unique", NULL, OPTEST_I32(5, 3, 5, 1), NULL), 0, 3, I(5, 3, 1));
    expect_i32(&t, TRN_OK, 1, 4, I(0, 1, 0, 2));
    optest_end(&t);
}

/* What a peer may send us: every bad index, size and shape is an answer, not a crash. */
static void bad_input(void **s)
{
    optest t;
    expect_err(&t, optest_run(&t, "GatherV2", NULL, M23, OPTEST_I32(2), trn_tensor_i32(0), NULL), TRN_INVALID_ARGUMENT, "[0] = 2 is not in [0, 2)");
    expect_err(&t, optest_run(&t, "GatherV2", NULL, M23, OPTEST_I32(-1), trn_tensor_i32(0), NULL), TRN_INVALID_ARGUMENT, "-1");
    expect_err(&t, optest_run(&t, "Fill", NULL, OPTEST_I64(INT64_C(1) << 40, INT64_C(1) << 40), trn_tensor_f32(1), NULL), TRN_INVALID_ARGUMENT, "too many");
    expect_err(&t, optest_run(&t, "Fill", NULL, OPTEST_I64(-1), trn_tensor_f32(1), NULL), TRN_INVALID_ARGUMENT, "must be >= 0");
    expect_err(&t, optest_run(&t, "Reshape", NULL, M23, OPTEST_I32(4, -1), NULL), TRN_INVALID_ARGUMENT, "multiple of 4");
    expect_err(&t, optest_run(&t, "StridedSlice", "shrink_axis_mask=1", M23, OPTEST_I64(INT64_MIN), OPTEST_I64(0), OPTEST_I64(1), NULL), TRN_INVALID_ARGUMENT, "out of bounds");
    expect_err(&t, optest_run(&t, "StridedSlice", NULL, M23, OPTEST_I64(0), OPTEST_I64(2), OPTEST_I64(0), NULL), TRN_INVALID_ARGUMENT, "non-zero");
    expect_err(&t, optest_run(&t, "Range", NULL, trn_tensor_i64(INT64_MIN), trn_tensor_i64(INT64_MAX), trn_tensor_i64(1), NULL), TRN_INVALID_ARGUMENT, "size");
    expect_err(&t, optest_run(&t, "SegmentSum", NULL, OPTEST_F32(1, 2), OPTEST_I64(0, INT64_MAX), NULL), TRN_INVALID_ARGUMENT, "too large");
    expect_err(&t, optest_run(&t, "Tile", NULL, M23, OPTEST_I64(INT64_MAX, 2), NULL), TRN_INVALID_ARGUMENT, "too many");
    expect_err(&t, optest_run(&t, "DynamicPartition", "num_partitions=2", OPTEST_F32(1), OPTEST_I32(2), NULL), TRN_INVALID_ARGUMENT, "partitions[0] = 2");
    expect_err(&t, optest_run(&t, "MatMul", NULL, M23, M23, NULL), TRN_INVALID_ARGUMENT, "[2,3]");
    ok(optest_run(&t, "StridedSlice", NULL, M23, OPTEST_I64(INT64_MAX), OPTEST_I64(INT64_MIN), OPTEST_I64(INT64_MIN), NULL));
    assert_int_equal(t.out[0].t->count, 3);
    optest_end(&t);
}

static void string_elements(void **s)
{
    optest t;
    ok(optest_run(&t, "ReverseV2", NULL, strings(3, "a", "longer than twelve bytes", "c"), OPTEST_I32(0), NULL));
    expect_str(&t, 0, "c");
    expect_str(&t, 1, "longer than twelve bytes");
    optest_end(&t);
    ok(optest_run(&t, "StringJoin", "separator=\"/\"", strings(2, "a", "b"), trn_tensor_str("x", 1), NULL));
    expect_str(&t, 1, "b/x");
    optest_end(&t);
    ok(optest_run(&t, "StaticRegexReplace", "pattern=\"(\\w+)@(\\w+)\", rewrite=\"\\2 at \\1\"", strings(1, "me@home you@work"), NULL));
    expect_str(&t, 0, "home at me work at you");
    optest_end(&t);
    ok(optest_run(&t, "StaticRegexFullMatch", "pattern=\"^s3://.*\"", strings(2, "s3://x/y", "/tmp/y"), NULL));
    assert_memory_equal(t.out[0].t->data, "\x01\x00", 2);
    optest_end(&t);
    expect_err(&t, optest_run(&t, "StaticRegexFullMatch", "pattern=\"a(b\"", strings(1, "x"), NULL), TRN_INVALID_ARGUMENT, "missing )");
    ok(optest_run(&t, "StringToHashBucketFast", "num_buckets=1000", strings(2, "hello", ""), NULL));
    assert_int_equal(TRN_DATA(t.out[0].t, int64_t)[0], 296); /* tf.strings.to_hash_bucket_fast */
    optest_end(&t);
}

/* A pattern that makes backtracking engines run for ever. */
static void regex_is_linear(void **s)
{
    optest t;
    char text[2001];
    memset(text, 'a', 2000);
    text[2000] = 0;
    ok(optest_run(&t, "StaticRegexFullMatch", "pattern=\"(a*)*(a*)*(a|aa)+b\"", strings(1, text), NULL));
    assert_int_equal(*TRN_DATA(t.out[0].t, uint8_t), 0);
    optest_end(&t);
    expect_err(&t, optest_run(&t, "StaticRegexFullMatch", "pattern=\"((((a{999}){999}){999}){999})\"", strings(1, text), NULL), TRN_INVALID_ARGUMENT, "too large");
}

static void summaries(void **s)
{
    optest t;
    static const char want[] = "\n\x0b\n\x04loss\x15\x00\x00\x00\x3f";
    ok(optest_run(&t, "ScalarSummary", NULL, trn_tensor_str("loss", 4), trn_tensor_f32(0.5f), NULL));
    size_t n;
    const char *p = trn_tensor_str_at(t.out[0].t, 0, &n);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(p, want, n);
    optest_end(&t);
    trn_tensor *one = trn_tensor_str(want, sizeof want - 1);
    expect_err(&t, optest_run(&t, "MergeSummary", NULL, trn_tensor_ref(one), one, NULL), TRN_INVALID_ARGUMENT, "Duplicate tag loss");
    expect_err(&t, optest_run(&t, "MergeSummary", NULL, trn_tensor_str("\x0a\x7f", 2), NULL), TRN_INVALID_ARGUMENT, "parse");
}

/* Segments numbered as Unique numbers them are summed where their rows lie, if nobody else holds these; the result is that of any other way. */
static void sums_in_place(void **s)
{
    enum { ROWS = 600, WIDE = 40 };
    static const struct {
        int32_t segments;
        bool first_come;
    } cases[] = {{600, true}, {599, true}, {400, true}, {1, true}, {400, false}};
    for (size_t c = 0; c < TRN_COUNTOF(cases); c++) {
        int32_t n = cases[c].segments;
        trn_shape rows = trn_shape_of(2, (int64_t)ROWS, (int64_t)WIDE), vector = trn_shape_vector(ROWS);
        trn_tensor *x, *ids;
        ok(trn_tensor_new(&x, TRN_FLOAT, &rows));
        ok(trn_tensor_new(&ids, TRN_INT32, &vector));
        for (int i = 0; i < ROWS * WIDE; i++)
            TRN_DATA_MUT(x, float)[i] = i % 7 ? (float)(i % 1000) / 64 : -0.0f;
        int32_t seen = 0; /* the last rows are all new, some before them are not */
        for (int i = 0; i < ROWS; i++) {
            bool new = ROWS - i <= n - seen || (i % 3 == 0 && seen < n) || seen == 0;
            TRN_DATA_MUT(ids, int32_t)[i] = new ? seen++ : (i * 5) % seen;
        }
        if (!cases[c].first_come) {
            TRN_DATA_MUT(ids, int32_t)[0] = 1;
            TRN_DATA_MUT(ids, int32_t)[3] = 0;
        }
        optest a, b;
        const void *data = x->data;
        trn_tensor *held = trn_tensor_ref(x);
        ok(optest_run(&a, "UnsortedSegmentSum", NULL, x, trn_tensor_ref(ids), trn_tensor_i32(n), NULL));
        assert_ptr_not_equal(a.out[0].t->data, data);
        trn_tensor_unref(a.in[0].t);
        a.in[0].t = NULL;
        ok(optest_run(&b, "UnsortedSegmentSum", NULL, held, ids, trn_tensor_i32(n), NULL));
        assert_true((b.out[0].t->data == data) == cases[c].first_come);
        assert_int_equal(b.out[0].t->shape.rank, 2);
        assert_int_equal(b.out[0].t->shape.dim[0], n);
        assert_int_equal(b.out[0].t->count, (int64_t)n * WIDE);
        assert_memory_equal(a.out[0].t->data, b.out[0].t->data, (size_t)n * WIDE * sizeof(float));
        optest_end(&a);
        optest_end(&b);
    }
}

static trn_tensor *none(trn_dtype t, int rank, ...)
{
    int64_t d[TRN_MAX_RANK];
    va_list ap;
    va_start(ap, rank);
    for (int i = 0; i < rank; i++)
        d[i] = va_arg(ap, int64_t);
    va_end(ap);
    trn_tensor *x = trn_tensor_from(t, rank, d, NULL);
    assert_non_null(x);
    return x;
}

/* Dims beside a 0 are of any size: their products are no numbers, and loops along them do not end. (test_odd_inputs looks for more of this.) */
static void nothing_of_any_size(void **s)
{
    (void)s;
    const int64_t big = INT64_C(1) << 32, many = INT64_C(1) << 50, zero = 0;
#define CUBE none(TRN_FLOAT, 3, zero, big, big)
#define NONE(...)                                                                                                      \
    do {                                                                                                               \
        optest t;                                                                                                      \
        ok(optest_run(&t, __VA_ARGS__, NULL));                                                                         \
        assert_int_equal(t.out[0].t->count, 0);                                                                        \
        optest_end(&t);                                                                                                \
    } while (0)
    NONE("Add", NULL, CUBE, CUBE);
    NONE("SelectV2", NULL, trn_tensor_bool(true), CUBE, trn_tensor_f32(1));
    NONE("GatherV2", NULL, CUBE, none(TRN_INT32, 1, zero), trn_tensor_i32(0));
    NONE("GatherNd", NULL, CUBE, none(TRN_INT32, 2, zero, (int64_t)1));
    NONE("TensorScatterAdd", NULL, CUBE, none(TRN_INT32, 2, zero, (int64_t)1), CUBE);
    NONE("TensorScatterUpdate", NULL, none(TRN_FLOAT, 1, zero), none(TRN_INT32, 2, many, zero), none(TRN_FLOAT, 2, many, zero));
    NONE("ConcatV2", NULL, CUBE, CUBE, trn_tensor_i32(0));
    NONE("ReverseV2", NULL, CUBE, OPTEST_I32(1));
    NONE("StridedSlice", NULL, CUBE, OPTEST_I64(0, 5), OPTEST_I64(1, big), OPTEST_I64(INT64_MAX, 1));
    NONE("DepthToSpace", "block_size=2", none(TRN_FLOAT, 4, zero, big, big, (int64_t)4));
    NONE("FFT2D", NULL, none(TRN_COMPLEX64, 4, zero, big, big, big));
    NONE("BiasAdd", NULL, none(TRN_FLOAT, 2, many, zero), none(TRN_FLOAT, 1, zero));
    NONE("MatMul", "transpose_b=true", none(TRN_FLOAT, 2, zero, INT64_MAX), none(TRN_FLOAT, 2, zero, INT64_MAX));
    NONE("SparseReshape", NULL, none(TRN_INT64, 2, many, zero), none(TRN_INT64, 1, zero), none(TRN_INT64, 1, zero));
    NONE("EncodePng", "T=u16", none(TRN_UINT16, 4, zero, INT64_C(1) << 62, (int64_t)3, (int64_t)2));
#undef NONE
    optest t;
    ok(optest_run(&t, "Sum", NULL, CUBE, OPTEST_I32(0, 1, 2), NULL));
    assert_int_equal(t.out[0].t->count, 1);
    optest_end(&t);
    ok(optest_run(&t, "BiasAddGrad", "data_format=NCHW", none(TRN_FLOAT, 4, zero, (int64_t)2, big, big), NULL));
    assert_int_equal(t.out[0].t->count, 2);
    assert_true(TRN_DATA(t.out[0].t, float)[0] == 0 && TRN_DATA(t.out[0].t, float)[1] == 0);
    optest_end(&t);
    expect_err(&t, optest_run(&t, "UniqueV2", "out_idx=i64", none(TRN_FLOAT, 2, INT64_C(1) << 62, zero), OPTEST_I64(0), NULL), TRN_RESOURCE_EXHAUSTED, "");
    expect_err(&t, optest_run(&t, "FakeQuantWithMinMaxVarsPerChannel", NULL, none(TRN_FLOAT, 2, zero, many), none(TRN_FLOAT, 1, zero), none(TRN_FLOAT, 1, zero), NULL), TRN_INVALID_ARGUMENT,
               "incorrect size");
    expect_err(&t, optest_run(&t, "Equal", "incompatible_shape_error=false", none(TRN_FLOAT, 3, big, (int64_t)1, zero), none(TRN_FLOAT, 3, (int64_t)1, big, zero), NULL), TRN_INVALID_ARGUMENT,
               "too many elements");
    expect_err(&t, optest_run(&t, "RaggedTensorFromVariant", "input_ragged_rank=9223372036854775807, output_ragged_rank=1, Tvalues=f32, Tsplits=i64", none(TRN_VARIANT, 1, zero), NULL),
               TRN_INVALID_ARGUMENT, "output_ragged_rank must be equal");
    expect_err(&t, optest_run(&t, "FixedUnigramCandidateSampler", "num_true=1, num_sampled=1, unique=false, range_max=3, unigrams=[1], num_reserved_ids=2147483647", OPTEST_MAT(TRN_INT64, int64_t, 1, 1, 0), NULL),
               TRN_INVALID_ARGUMENT, "weights size");
}

static void as_many_dims_as_can_be(void **s)
{
    (void)s;
    int64_t d[TRN_MAX_RANK];
    for (int i = 0; i < TRN_MAX_RANK; i++)
        d[i] = 1;
    optest t;
    expect_err(&t, optest_run(&t, "DynamicPartition", "num_partitions=2", trn_tensor_from(TRN_FLOAT, TRN_MAX_RANK, d, &(float){1}), trn_tensor_i32(0), NULL), TRN_INVALID_ARGUMENT,
               "more than 32 dimensions");
}

/* ---- variants that hold variants ----------------------------------------------------------------------------------- */

static trn_tensor *out_of(optest *t, trn_err e)
{
    ok(e);
    trn_tensor *y = trn_tensor_ref(t->out[0].t);
    optest_end(t);
    return y;
}

static void handle_unref(void *h) { trn_handle_unref(h); }

/* As deep as a graph makes them: nobody calls himself once for each. */
static void long_chains(void **state)
{
    (void)state;
    optest t;
    trn_tensor *x = trn_tensor_f32(1);
    for (int i = 0; i < 200000; i++)
        x = out_of(&t, optest_run(&t, "OptionalFromValue", i ? "Toutput_types=[var]" : "Toutput_types=[f32]", x, NULL));
    expect_err(&t, optest_run(&t, "ZerosLike", "T=var", trn_tensor_ref(x), NULL), TRN_RESOURCE_EXHAUSTED, "more than 100 deep");
    expect_err(&t, optest_run(&t, "AddN", "N=2, T=var", trn_tensor_ref(x), trn_tensor_ref(x), NULL), TRN_RESOURCE_EXHAUSTED, "more than 100 deep");
    trn_tensor_unref(x);

    trn_handle *h = NULL;
    for (int i = 0; i < 200000; i++) {
        trn_handle *next = trn_handle_new("", "", "h", "t");
        next->res = h;
        next->res_unref = handle_unref;
        h = next;
    }
    trn_handle_unref(h);
}

/* Each list holds the one before it twice: 30 of them are 2^30, looked at one by one. */
static void doubled(void **state)
{
    (void)state;
    optest t;
    trn_tensor *x = trn_tensor_f32(1);
    for (int i = 0; i < 30; i++) {
        trn_tensor *two = out_of(&t, optest_run(&t, "Pack", i ? "N=2, T=var" : "N=2, T=f32", x, trn_tensor_ref(x), NULL));
        x = out_of(&t, optest_run(&t, "TensorListFromTensor", i ? "element_dtype=var, shape_type=i32" : "element_dtype=f32, shape_type=i32", two, trn_tensor_i32(-1), NULL));
    }
    expect_err(&t, optest_run(&t, "ZerosLike", "T=var", trn_tensor_ref(x), NULL), TRN_RESOURCE_EXHAUSTED, "or more than");
    trn_arena *a = trn_arena_new();
    assert_null(trn_tensor_to_pb(a, x));
    trn_arena_free(a);
    trn_tensor_unref(x);
}

/* A few bytes hold many, too. */
static void heavy(void **state)
{
    (void)state;
    optest t;
    trn_shape s = trn_shape_vector(1 << 20), n = trn_shape_vector(1000);
    trn_tensor *mega, *x;
    ok(trn_tensor_new(&mega, TRN_FLOAT, &s));
    memset(TRN_DATA_MUT(mega, float), 0, trn_tensor_bytes(mega));
    mega = out_of(&t, optest_run(&t, "TensorListFromTensor", "element_dtype=f32, shape_type=i32", out_of(&t, optest_run(&t, "Pack", "N=1, T=f32", mega, NULL)), trn_tensor_i32(-1), NULL));
    ok(trn_tensor_new(&x, TRN_VARIANT, &n));
    for (int i = 0; i < 999; i++) /* the last one is empty: a repeated value is written once */
        TRN_DATA_MUT(x, trn_variant *)[i] = trn_variant_ref(TRN_DATA_MUT(mega, trn_variant *)[0]);
    trn_tensor_unref(mega);
    trn_arena *a = trn_arena_new();
    assert_null(trn_tensor_to_pb(a, x)); /* 4 GB */
    trn_arena_free(a);
    trn_tensor_unref(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_any_size),
        cmocka_unit_test(as_many_dims_as_can_be),
        cmocka_unit_test(long_chains),
        cmocka_unit_test(doubled),
        cmocka_unit_test(heavy),
        cmocka_unit_test(moves),
        cmocka_unit_test(sums_in_place),
        cmocka_unit_test(bad_input),
        cmocka_unit_test(string_elements),
        cmocka_unit_test(regex_is_linear),
        cmocka_unit_test(summaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
