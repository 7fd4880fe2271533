/* Accumulators: sums and means, stale gradients, waiting takers, sparse merges; threads that push while one takes. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "res/accum.h"
#include "res/var.h"
#include "restest.h"

static void apply_f32(optest *a, int64_t step, float x, float y)
{
    optest t;
    ok(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f32", H(a), trn_tensor_i64(step), OPTEST_F32(x, y)));
    optest_end(&t);
}

static void set_step(optest *a, int64_t step)
{
    optest t;
    ok(RUN(&t, "ResourceAccumulatorSetGlobalStep", "", H(a), trn_tensor_i64(step)));
    optest_end(&t);
}

static int count_of(optest *a)
{
    optest t;
    ok(RUN(&t, "ResourceAccumulatorNumAccumulated", "", H(a)));
    int n = TRN_DATA(t.out[0].t, int32_t)[0];
    optest_end(&t);
    return n;
}

static void check_f32(const trn_tensor *t, int n, ...)
{
    assert_int_equal(t->dtype, TRN_FLOAT);
    assert_int_equal(t->count, n);
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        assert_float_equal(TRN_DATA(t, float)[i], va_arg(ap, double), 0);
    va_end(ap);
}

static void check_i64(const trn_tensor *t, int n, ...)
{
    assert_int_equal(t->count, n);
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(TRN_DATA(t, int64_t)[i], va_arg(ap, int));
    va_end(ap);
}

static void mean_and_stale(void **state)
{
    (void)state;
    optest a, t;
    make(&a, "ResourceConditionalAccumulator", "dtype=f32, shape=[?]");
    apply_f32(&a, 0, 1, 10);
    apply_f32(&a, 0, 2, 20);
    apply_f32(&a, 5, 6, 60); /* from the future: fine */
    assert_int_equal(count_of(&a), 3);
    ok(RUN(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(2)));
    check_f32(t.out[0].t, 2, 3.0, 30.0); /* all three, though two were enough */
    optest_end(&t);
    assert_int_equal(count_of(&a), 0);
    apply_f32(&a, 0, 100, 100); /* taking moved the step to 1: this one is stale */
    assert_int_equal(count_of(&a), 0);
    apply_f32(&a, 1, 4, 5);
    assert_int_equal(count_of(&a), 1);
    set_step(&a, 7);
    apply_f32(&a, 6, 1, 1);
    assert_int_equal(count_of(&a), 1);
    ok(RUN(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(1)));
    check_f32(t.out[0].t, 2, 4.0, 5.0);
    optest_end(&t);
    optest_end(&a);
}

static void total_and_types(void **state)
{
    (void)state;
    optest a, t;
    make(&a, "ResourceConditionalAccumulator", "dtype=f64, shape=?, reduction_type=SUM");
    for (int i = 0; i < 3; i++) {
        ok(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f64", H(&a), trn_tensor_i64(0), trn_tensor_f64(i + 0.5)));
        optest_end(&t);
    }
    ok(RUN(&t, "ResourceAccumulatorTakeGradient", "dtype=f64", H(&a), trn_tensor_i32(3)));
    assert_float_equal(TRN_DATA(t.out[0].t, double)[0], 4.5, 0);
    optest_end(&t);
    optest_end(&a);
    make(&a, "ResourceConditionalAccumulator", "dtype=f16, shape=[1]");
    for (int i = 1; i < 4; i++) {
        trn_half h = trn_half_from_f32((float)i);
        ok(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f16", H(&a), trn_tensor_i64(0),
               trn_tensor_from(TRN_HALF, 1, (int64_t[]){1}, &h)));
        optest_end(&t);
    }
    ok(RUN(&t, "ResourceAccumulatorTakeGradient", "dtype=f16", H(&a), trn_tensor_i32(3)));
    assert_float_equal(trn_half_to_f32(TRN_DATA(t.out[0].t, trn_half)[0]), 2, 0);
    optest_end(&t);
    optest_end(&a);
}

static void wrong_use(void **state)
{
    (void)state;
    optest a, t;
    make(&a, "ResourceConditionalAccumulator", "dtype=f32, shape=[2], shared_name=\"a\"");
    fails(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f32", H(&a), trn_tensor_i64(0), OPTEST_F32(1)),
          TRN_INVALID_ARGUMENT, "Shape mismatch: expected [2], got [1]");
    optest_end(&t);
    fails(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f64", H(&a), trn_tensor_i64(0), trn_tensor_f64(1)),
          TRN_INVALID_ARGUMENT, "dtype float");
    optest_end(&t);
    fails(RUN(&t, "ResourceAccumulatorApplyGradient", "dtype=f32", H(&a), OPTEST_I64(0), OPTEST_F32(1, 2)),
          TRN_INVALID_ARGUMENT, "local_step must be scalar");
    optest_end(&t);
    fails(RUN(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(0)), TRN_INVALID_ARGUMENT,
          "num_required must be positive, but was 0");
    optest_end(&t);
    fails(start(&t, "ResourceConditionalAccumulator", "dtype=f64, shape=[2], shared_name=\"a\"", NULL, 0),
          TRN_INVALID_ARGUMENT, "dtype float");
    optest_end(&t);
    fails(start(&t, "ResourceConditionalAccumulator", "dtype=i32, shape=[2]", NULL, 0), TRN_UNIMPLEMENTED, "dtype");
    optest_end(&t);
    assert_int_equal(count_of(&a), 0);
    optest_end(&a);
}

static void waiting_takers(void **state)
{
    (void)state;
    optest a, t, u;
    make(&a, "ResourceConditionalAccumulator", "dtype=f32, shape=[2]");
    ok(START(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(2)));
    ok(START(&u, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(1)));
    apply_f32(&a, 0, 1, 2);
    assert_true(waiting(&t) && waiting(&u));
    apply_f32(&a, 0, 3, 4);
    ok(optest_wait(&t, 1000));
    check_f32(t.out[0].t, 2, 2.0, 3.0);
    assert_true(waiting(&u));
    apply_f32(&a, 0, 3, 4); /* stale by now */
    assert_true(waiting(&u));
    apply_f32(&a, 1, 9, 9);
    ok(optest_wait(&u, 1000));
    check_f32(u.out[0].t, 2, 9.0, 9.0);
    optest_end(&t);
    optest_end(&u);
    /* The first one leaves: what is there is enough for the next. */
    trn_cancel *first = cancel;
    ok(START(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(2)));
    cancel = trn_cancel_new();
    ok(START(&u, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(1)));
    apply_f32(&a, 9, 5, 5);
    trn_cancel_fire(first, trn_errorf(TRN_CANCELLED, "over"));
    fails(optest_wait(&t, 1000), TRN_CANCELLED, "TakeGrad operation was cancelled");
    ok(optest_wait(&u, 1000));
    optest_end(&t);
    optest_end(&u);
    trn_cancel_unref(first);
    ok(START(&t, "ResourceAccumulatorTakeGradient", "dtype=f32", H(&a), trn_tensor_i32(1)));
    trn_resmgr_clear(mgr, NULL);
    fails(optest_wait(&t, 1000), TRN_CANCELLED, "container was cleared");
    optest_end(&t);
    optest_end(&a);
}

static trn_tensor *strings_of(optest *a)
{
    trn_tensor *t;
    ok(trn_var_read(&t, a->out[0].var));
    return t;
}

static trn_err apply_rows(optest *t, optest *a, int64_t step, TRN_OWN trn_tensor *idx, TRN_OWN trn_tensor *val,
                          TRN_OWN trn_tensor *shape)
{
    return RUN(t, "SparseAccumulatorApplyGradient",
               shape->count ? "dtype=f32, has_known_shape=true" : "dtype=f32, has_known_shape=false", strings_of(a),
               trn_tensor_i64(step), idx, val, shape);
}

static trn_tensor *no_shape(void) { return trn_tensor_from(TRN_INT64, 1, (int64_t[]){0}, NULL); }

static void sparse(void **state)
{
    (void)state;
    optest a, t;
    make(&a, "SparseConditionalAccumulator", "dtype=f32, shape=[8,?]");
    ok(apply_rows(&t, &a, 0, OPTEST_I64(1, 4), OPTEST_MAT(TRN_FLOAT, float, 2, 2, 1, 2, 3, 4), no_shape()));
    optest_end(&t);
    ok(apply_rows(&t, &a, 0, OPTEST_I64(0, 4, 7), OPTEST_MAT(TRN_FLOAT, float, 3, 2, 10, 20, 5, 6, 70, 80),
                  OPTEST_I64(8, 2)));
    optest_end(&t);
    ok(apply_rows(&t, &a, 0, OPTEST_I64(4), OPTEST_MAT(TRN_FLOAT, float, 1, 2, 1, 2), no_shape()));
    optest_end(&t);
    ok(RUN(&t, "SparseAccumulatorTakeGradient", "dtype=f32", strings_of(&a), trn_tensor_i32(3)));
    check_i64(t.out[0].t, 4, 0, 1, 4, 7);
    check_f32(t.out[1].t, 8, 10.0, 20.0, 1.0, 2.0, 3.0, 4.0, 70.0, 80.0); /* every row over those who had it */
    check_i64(t.out[2].t, 2, 8, 2);
    optest_end(&t);
    ok(apply_rows(&t, &a, 0, OPTEST_I64(99), OPTEST_MAT(TRN_FLOAT, float, 1, 2, 1, 2),
                  no_shape())); /* stale: not even looked at */
    optest_end(&t);
    static const struct {
        const char *why;
        int64_t idx;
        int rank;
        int64_t dims[2], shape[2];
    } bad[] = {
        {"exceeded limits", 8, 2, {1, 2}, {0}},
        {"Expected 1 non-empty input values, got 2", 1, 2, {2, 2}, {0}},
        {"rank at least 2", 1, 1, {1}, {0}},
        {"expected shape dim 0 to be 8, got 9", 1, 2, {1, 2}, {9, 2}},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_tensor *shape = bad[i].shape[0] ? OPTEST_I64(bad[i].shape[0], bad[i].shape[1]) : no_shape();
        fails(apply_rows(&t, &a, 1, OPTEST_I64(bad[i].idx),
                         trn_tensor_from(TRN_FLOAT, bad[i].rank, bad[i].dims, (float[4]){0}), shape),
              TRN_INVALID_ARGUMENT, bad[i].why);
        optest_end(&t);
    }
    fails(RUN(&t, "AccumulatorApplyGradient", "dtype=f32", strings_of(&a), trn_tensor_i64(1), OPTEST_F32(1)),
          TRN_INVALID_ARGUMENT, "sparse");
    optest_end(&t);
    /* No rows at all is a gradient too. */
    ok(apply_rows(&t, &a, 1, no_shape(), trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){0, 2}, NULL), no_shape()));
    optest_end(&t);
    ok(apply_rows(&t, &a, 1, no_shape(), trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){0, 2}, NULL), no_shape()));
    optest_end(&t);
    ok(RUN(&t, "SparseAccumulatorTakeGradient", "dtype=f32", strings_of(&a), trn_tensor_i32(2)));
    assert_int_equal(t.out[1].t->shape.dim[0], 0);
    optest_end(&t);
    trn_resource_unref(a.out[0].var);
    optest_end(&a);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

enum { WORKERS = 4, STEPS = 300 };
static trn_accum *shared;
static _Atomic int applied;

static void *worker(void *arg)
{
    (void)arg;
    for (int i = 0; i < STEPS; i++) {
        trn_tensor *g = OPTEST_F32(1, 2, 3);
        ok(trn_accum_apply(shared, 1 << 30, g));
        trn_tensor_unref(g);
        applied++;
    }
    return NULL;
}

typedef struct taken {
    _Atomic bool over;
    double sum;
    bool cancelled;
} taken;

static void on_taken(void *arg, trn_err err, trn_tensor **parts)
{
    taken *t = arg;
    t->cancelled = err != NULL;
    trn_err_free(err);
    if (parts) {
        t->sum = TRN_DATA(parts[0], float)[2];
        trn_tensor_unref(parts[0]);
    }
    atomic_store(&t->over, true);
}

static void many_threads(void **state)
{
    (void)state;
    trn_shape s = trn_shape_vector(3);
    ok(trn_accum_new(&shared, "t", TRN_FLOAT, &s, false, false));
    pthread_t w[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&w[i], NULL, worker, NULL);
    double sum = 0;
    for (int i = 0; i < 100000 && (applied < WORKERS * STEPS || trn_accum_count(shared)); i++) {
        trn_cancel *c = trn_cancel_new();
        taken t = {0};
        trn_accum_take(shared, c, 1 + i % 5, on_taken, &t);
        if (i % 3 || applied == WORKERS * STEPS)
            trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "test"));
        while (!t.over && applied < WORKERS * STEPS)
            sched_yield();
        trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "test"));
        while (!t.over)
            sched_yield();
        sum += t.sum;
        trn_cancel_unref(c);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(w[i], NULL);
    assert_float_equal(sum, 3.0 * WORKERS * STEPS, 0); /* nothing lost, nothing twice */
    trn_resource_unref(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mean_and_stale, setup, teardown),
        cmocka_unit_test_setup_teardown(total_and_types, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_use, setup, teardown),
        cmocka_unit_test_setup_teardown(waiting_takers, setup, teardown),
        cmocka_unit_test_setup_teardown(sparse, setup, teardown),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
