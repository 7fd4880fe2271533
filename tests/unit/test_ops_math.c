/* Element-wise kernels: a few golden values each, errors, aliasing. The broad comparison is tests/parity/kernels.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "optest.h"

static void expect_f32(optest *t, trn_err e, int n, const float *want)
{
    if (e)
        print_error("%s\n", trn_err_msg(e));
    assert_null(e);
    assert_int_equal(t->out[0].t->dtype, TRN_FLOAT);
    assert_int_equal(t->out[0].t->count, n);
    for (int i = 0; i < n; i++) {
        float g = TRN_DATA(t->out[0].t, float)[i], w = want[i];
        if (!(g == w || (isnan(g) && isnan(w)) || fabsf(g - w) <= 2e-6f * fabsf(w)))
            fail_msg("%s: element %d is %g, expected %g", t->node.op, i, (double)g, (double)w);
    }
    optest_end(t);
}

static void expect_err(optest *t, trn_err e, trn_code code, const char *text)
{
    assert_int_equal(trn_err_code(e), code);
    assert_non_null(strstr(trn_err_msg(e), text));
    trn_err_free(e);
    optest_end(t);
}

#define F(...) ((float[]){__VA_ARGS__})

static void unary(void **s)
{
    optest t;
    expect_f32(&t, optest_run(&t, "Neg", NULL, OPTEST_F32(1, -2, 0), NULL), 3, F(-1, 2, 0));
    expect_f32(&t, optest_run(&t, "Round", NULL, OPTEST_F32(0.5, 1.5, 2.5, -0.5, -2.5), NULL), 5, F(0, 2, 2, 0, -2));
    expect_f32(&t, optest_run(&t, "Exp", NULL, OPTEST_F32(0, 1, -1, 89, -200), NULL), 5, F(1, 2.7182817f, 0.36787945f, INFINITY, 0));
    expect_f32(&t, optest_run(&t, "Log", NULL, OPTEST_F32(1, 10, 0, -1), NULL), 4, F(0, 2.3025851f, -INFINITY, NAN));
    expect_f32(&t, optest_run(&t, "Tanh", NULL, OPTEST_F32(0.5f, -20, 1e-6f), NULL), 3, F(0.46211717f, -1, 1e-6f));
    expect_f32(&t, optest_run(&t, "LeakyRelu", "alpha=0.5", OPTEST_F32(2, -2), NULL), 2, F(2, -1));
    expect_f32(&t, optest_run(&t, "ReluGrad", NULL, OPTEST_F32(5, 6, 7), OPTEST_F32(1, 0, -1), NULL), 3, F(5, 0, 0));
    expect_err(&t, optest_run(&t, "ReluGrad", NULL, OPTEST_F32(5, 6, 7), OPTEST_F32(1, 0), NULL), TRN_INVALID_ARGUMENT, "[3]");
    expect_err(&t, optest_run(&t, "Exp", NULL, OPTEST_I32(1), NULL), TRN_UNIMPLEMENTED, "int32");
}

static void broadcasting(void **s)
{
    optest t;
    expect_f32(&t, optest_run(&t, "AddV2", NULL, OPTEST_MAT(TRN_FLOAT, float, 2, 3, 1, 2, 3, 4, 5, 6), OPTEST_F32(10, 20, 30), NULL), 6,
               F(11, 22, 33, 14, 25, 36));
    expect_f32(&t, optest_run(&t, "Sub", NULL, OPTEST_MAT(TRN_FLOAT, float, 2, 1, 1, 2), OPTEST_MAT(TRN_FLOAT, float, 1, 3, 1, 2, 3), NULL), 6,
               F(0, -1, -2, 1, 0, -1));
    expect_f32(&t, optest_run(&t, "Mul", NULL, trn_tensor_f32(2), OPTEST_F32(1, 2), NULL), 2, F(2, 4));
    expect_err(&t, optest_run(&t, "Mul", NULL, OPTEST_F32(1, 2), OPTEST_F32(1, 2, 3), NULL), TRN_INVALID_ARGUMENT, "Incompatible shapes: [2] vs. [3]");
    expect_err(&t, optest_run(&t, "FloorDiv", NULL, OPTEST_I32(1, 2), OPTEST_I32(1, 0), NULL), TRN_INVALID_ARGUMENT, "Integer division by zero");
    expect_err(&t, optest_run(&t, "AddV2", NULL, OPTEST_F32(1), OPTEST_I32(1), NULL), TRN_INVALID_ARGUMENT, "int32");
    expect_f32(&t, optest_run(&t, "Maximum", NULL, OPTEST_F32(1, NAN, 3), OPTEST_F32(NAN, 2, 2), NULL), 3, F(NAN, NAN, 3));
}

/* A kernel overwrites an input only when it is the only holder. */
static void forwarding(void **s)
{
    optest t;
    trn_tensor *x = OPTEST_F32(1, 2);
    const void *data = x->data;
    assert_null(optest_run(&t, "Neg", NULL, trn_tensor_ref(x), NULL));
    assert_ptr_not_equal(t.out[0].t->data, data);
    assert_true(TRN_DATA(x, float)[0] == 1);
    optest_end(&t);
    assert_null(optest_run(&t, "Neg", NULL, x, NULL));
    assert_ptr_equal(t.out[0].t->data, data);
    optest_end(&t);
}

static void integers(void **s)
{
    optest t;
    assert_null(optest_run(&t, "FloorMod", NULL, OPTEST_I32(-7, 7, -7, INT32_MIN), OPTEST_I32(2, -2, -2, -1), NULL));
    assert_memory_equal(t.out[0].t->data, ((int32_t[]){1, -1, -1, 0}), 16);
    optest_end(&t);
    assert_null(optest_run(&t, "FloorDiv", NULL, OPTEST_I32(-7, 7, -7, INT32_MIN), OPTEST_I32(2, -2, -2, -1), NULL));
    assert_memory_equal(t.out[0].t->data, ((int32_t[]){-4, -4, 3, INT32_MIN}), 16);
    optest_end(&t);
    assert_null(optest_run(&t, "Less", NULL, OPTEST_I64(1, 2, 3), OPTEST_I64(2), NULL));
    assert_memory_equal(t.out[0].t->data, ((uint8_t[]){1, 0, 0}), 3);
    optest_end(&t);
}

/* Of no matrices, each may be so large that the square of its size is no number; and there may be any number of matrices without elements. */
static void no_matrices(void **s)
{
    static const char *const ops[] = {"Cholesky", "MatrixDeterminant", "MatrixInverse", "Qr", "SelfAdjointEig", "SelfAdjointEigV2", "Svd", "Lu", "MatrixSquareRoot",
                                      "MatrixExponential", "Eig"};
    static const int64_t dims[][3] = {{0, INT64_C(1) << 32, INT64_C(1) << 32}, {0, INT64_C(3037000500), INT64_C(3037000500)}, {INT64_C(1) << 50, 0, 0}};
    for (size_t i = 0; i < TRN_COUNTOF(ops) * TRN_COUNTOF(dims); i++) {
        const char *op = ops[i / TRN_COUNTOF(dims)];
        const int64_t *d = dims[i % TRN_COUNTOF(dims)];
        if (*d && strcmp(op, "MatrixDeterminant") == 0) /* one each */
            continue;
        optest t;
        assert_null(optest_run(&t, op, strcmp(op, "Eig") == 0 ? "Tout=c64" : "", trn_tensor_from(TRN_FLOAT, 3, d, NULL), NULL));
        assert_int_equal(t.out[0].t->count, 0);
        optest_end(&t);
    }
    static const char *const along[] = {"Cumsum", "Cumprod", "CumulativeLogsumexp"};
    for (size_t i = 0; i < TRN_COUNTOF(along); i++) {
        optest t;
        assert_null(optest_run(&t, along[i], NULL, trn_tensor_from(TRN_FLOAT, 3, dims[2], NULL), trn_tensor_i32(0), NULL));
        optest_end(&t);
        assert_null(optest_run(&t, along[i], NULL, trn_tensor_from(TRN_FLOAT, 3, dims[0], NULL), trn_tensor_i32(0), NULL));
        optest_end(&t);
    }
    optest t;
    assert_null(optest_run(&t, "MatrixDiagPartV3", NULL, trn_tensor_from(TRN_FLOAT, 3, dims[2], NULL), trn_tensor_i32(0), trn_tensor_f32(0), NULL));
    optest_end(&t);
    assert_null(optest_run(&t, "MatrixDiagV3", NULL, trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){INT64_C(1) << 50, 0}, NULL), trn_tensor_i32(0), trn_tensor_i32(-1), trn_tensor_i32(-1),
                           trn_tensor_f32(0), NULL));
    optest_end(&t);
    trn_tensor *x = trn_tensor_from(TRN_FLOAT, 3, dims[0], NULL);
    assert_null(optest_run(&t, "CholeskyGrad", NULL, trn_tensor_ref(x), trn_tensor_ref(x), NULL));
    optest_end(&t);
    assert_null(optest_run(&t, "TridiagonalSolve", NULL, trn_tensor_from(TRN_FLOAT, 3, (int64_t[]){0, 3, INT64_C(1) << 32}, NULL), trn_tensor_ref(x), NULL));
    optest_end(&t);
    trn_tensor *band = trn_tensor_from(TRN_FLOAT, 3, (int64_t[]){0, 1, INT64_C(1) << 32}, NULL);
    assert_null(optest_run(&t, "TridiagonalMatMul", NULL, trn_tensor_ref(band), trn_tensor_ref(band), band, x, NULL));
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary),
        cmocka_unit_test(broadcasting),
        cmocka_unit_test(forwarding),
        cmocka_unit_test(integers),
        cmocka_unit_test(no_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
