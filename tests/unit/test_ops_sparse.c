/* Sparse matrices of compressed rows: what no other test reaches. Their numbers are compared with TensorFlow's by tests/interop/test_csr.py. */
#include "check.h"
#include "optest.h"

static trn_cancel *cancelled(void)
{
    trn_cancel *c = trn_cancel_new();
    trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "nobody waits"));
    return c;
}

static trn_tensor *dims(int rank, const int64_t *dim) { return trn_tensor_from(TRN_INT64, 1, (int64_t[]){rank}, dim); }

/* n elements, 1, 2, …, at (i · row, i · col). */
static trn_tensor *sparse(int64_t m, int64_t cols, int64_t n, int64_t row, int64_t col)
{
    int64_t *at = trn_xalloc(2 * (size_t)n * sizeof *at + 1);
    float *v = trn_xalloc((size_t)n * sizeof *v + 1);
    for (int64_t i = 0; i < n; i++) {
        at[2 * i] = i * row;
        at[2 * i + 1] = i * col;
        v[i] = (float)(i + 1);
    }
    optest t;
    ok(optest_run(&t, "SparseTensorToCSRSparseMatrix", NULL, trn_tensor_from(TRN_INT64, 2, (int64_t[]){n, 2}, at), trn_tensor_from(TRN_FLOAT, 1, &n, v),
                  dims(2, (int64_t[]){m, cols}), NULL));
    trn_tensor *y = trn_tensor_ref(t.out[0].t);
    optest_end(&t);
    free(at);
    free(v);
    return y;
}

static trn_tensor *none(int64_t batch, int64_t m, int64_t n)
{
    optest t;
    ok(optest_run(&t, "SparseTensorToCSRSparseMatrix", NULL, trn_tensor_from(TRN_INT64, 2, (int64_t[]){0, 3}, NULL), trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){0}, NULL),
                  dims(3, (int64_t[]){batch, m, n}), NULL));
    trn_tensor *y = trn_tensor_ref(t.out[0].t);
    optest_end(&t);
    return y;
}

/* One matrix goes with a batch of any size; none is one, too. */
static void products_of_no_matrices(void **state)
{
    (void)state;
    static const int64_t batches[][3] = {{0, 1, 0}, {1, 0, 0}, {0, 0, 0}, {1, 1, 1}, {1, 3, 3}, {3, 1, 3}};
    for (size_t i = 0; i < TRN_COUNTOF(batches); i++) {
        optest t, u;
        ok(optest_run(&t, "SparseMatrixSparseMatMul", "type=f32", none(batches[i][0], 500, 4), none(batches[i][1], 4, 6), NULL));
        ok(optest_run(&u, "CSRSparseMatrixToDense", "type=f32", trn_tensor_ref(t.out[0].t), NULL));
        trn_shape want = trn_shape_of(3, batches[i][2], (int64_t)500, (int64_t)6);
        assert_true(trn_shape_eq(&u.out[0].t->shape, &want));
        optest_end(&u);
        optest_end(&t);
    }
    optest t;
    fails(optest_run(&t, "SparseMatrixSparseMatMul", "type=f32", none(0, 5, 4), none(2, 4, 6), NULL), TRN_INVALID_ARGUMENT, NULL);
    optest_end(&t);
}

static trn_err run_cancelled(optest *t, const char *op, const char *attrs, trn_tensor *a, trn_tensor *b)
{
    trn_cancel *c = cancelled();
    optest_begin(t, op);
    optest_attrs(t, attrs);
    optest_input(t, a);
    optest_input(t, b);
    optest_infer(t);
    t->step.cancel = c;
    trn_err err = optest_prepare(t);
    if (!err)
        err = optest_go(t);
    trn_cancel_unref(c);
    return err;
}

/* One place may be named any number of times: a row of n elements times a row of n others. */
static void cancelled_products(void **state)
{
    (void)state;
    enum { N = 1 << 14 };
    optest t;
    fails(run_cancelled(&t, "SparseMatrixSparseMatMul", "type=f32", sparse(1, 1, N, 0, 0), sparse(1, N, N, 0, 1)), TRN_CANCELLED, "nobody waits");
    optest_end(&t);
    trn_shape s = trn_shape_of(2, (int64_t)1, (int64_t)N);
    trn_tensor *b;
    ok(trn_tensor_new(&b, TRN_FLOAT, &s));
    memset(b->data, 0, trn_tensor_bytes(b));
    fails(run_cancelled(&t, "SparseMatrixMatMul", NULL, sparse(1, 1, N, 0, 0), b), TRN_CANCELLED, "nobody waits");
    optest_end(&t);
}

/* A row of more elements than are multiplied between two looks: nothing is lost where one part of it ends. */
static void long_rows(void **state)
{
    (void)state;
    enum { N = 3000, COLS = 1 << 14 };
    trn_shape s = trn_shape_of(2, (int64_t)1, (int64_t)COLS);
    trn_tensor *b;
    ok(trn_tensor_new(&b, TRN_FLOAT, &s));
    for (int i = 0; i < COLS; i++)
        TRN_DATA_MUT(b, float)[i] = 1;
    optest t;
    ok(optest_run(&t, "SparseMatrixMatMul", NULL, sparse(1, 1, N, 0, 0), b, NULL));
    for (int i = 0; i < COLS; i++)
        assert_true(TRN_DATA(t.out[0].t, float)[i] == (float)N * (N + 1) / 2);
    optest_end(&t);
}

/* A matrix may say that it has any number of columns: what has no elements costs no memory that is touched. */
static void wide_and_empty(void **state)
{
    (void)state;
    optest t, u;
    ok(optest_run(&t, "SparseMatrixSparseMatMul", "type=f32", sparse(1, 1, 1, 0, 0), sparse(1, 1 << 26, 2, 0, (1 << 26) - 1), NULL));
    ok(optest_run(&u, "CSRSparseMatrixComponents", "type=f32", trn_tensor_ref(t.out[0].t), trn_tensor_i32(0), NULL));
    assert_memory_equal(u.out[1].t->data, ((int32_t[]){0, (1 << 26) - 1}), 8);
    assert_memory_equal(u.out[2].t->data, ((float[]){1, 2}), 8);
    optest_end(&u);
    trn_tensor *x = trn_tensor_ref(t.out[0].t);
    optest_end(&t);
    ok(optest_run(&t, "AddN", NULL, trn_tensor_ref(x), x, NULL));
    ok(optest_run(&u, "CSRSparseMatrixComponents", "type=f32", trn_tensor_ref(t.out[0].t), trn_tensor_i32(0), NULL));
    assert_memory_equal(u.out[0].t->data, ((int32_t[]){0, 2}), 8);
    assert_memory_equal(u.out[2].t->data, ((float[]){2, 4}), 8);
    optest_end(&u);
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_no_matrices), cmocka_unit_test(cancelled_products), cmocka_unit_test(long_rows), cmocka_unit_test(wide_and_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
