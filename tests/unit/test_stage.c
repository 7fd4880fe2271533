/* Barriers, staging areas, mutexes, stacks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "res/barrier.h"
#include "res/stage.h"
#include "res/var.h"
#include "restest.h"

#define STRS(...) OPTEST_VEC(TRN_STRING, const char *, __VA_ARGS__)

/* ---- barriers --------------------------------------------------------------------------------------------------- */

static trn_tensor *strings_of(optest *a)
{
    trn_tensor *t;
    ok(trn_var_read(&t, a->out[0].var));
    return t;
}

static int32_t ask(optest *b, const char *op)
{
    optest t;
    ok(RUN(&t, op, "", strings_of(b)));
    int32_t n = TRN_DATA(t.out[0].t, int32_t)[0];
    optest_end(&t);
    return n;
}

static void end_ref(optest *b)
{
    trn_resource_unref(b->out[0].var); /* also of an op that failed after it had set its output */
    optest_end(b);
}

static void barrier(void **state)
{
    (void)state;
    optest b, t, u;
    make(&b, "Barrier", "component_types=[f32,str], shapes=[[2],[]], shared_name=\"b\"");
    ok(START(&u, "BarrierTakeMany", "component_types=[f32,str]", strings_of(&b), trn_tensor_i32(2)));
    ok(RUN(&t, "BarrierInsertMany", "T=str, component_index=1", strings_of(&b), STRS("k1", "k2"), STRS("one", "two")));
    optest_end(&t);
    ok(RUN(&t, "BarrierInsertMany", "T=f32, component_index=0", strings_of(&b), STRS("k3", "k2"),
           OPTEST_MAT(TRN_FLOAT, float, 2, 2, 5, 6, 3, 4)));
    optest_end(&t);
    assert_int_equal(ask(&b, "BarrierReadySize"), 1);
    assert_int_equal(ask(&b, "BarrierIncompleteSize"), 2);
    assert_true(waiting(&u));
    fails(RUN(&t, "BarrierInsertMany", "T=str, component_index=1", strings_of(&b), STRS("k1"), STRS("again")),
          TRN_INVALID_ARGUMENT, "already has a value for component 1");
    optest_end(&t);
    fails(RUN(&t, "BarrierInsertMany", "T=f32, component_index=0", strings_of(&b), STRS("k9"),
              OPTEST_MAT(TRN_FLOAT, float, 1, 1, 5)),
          TRN_INVALID_ARGUMENT, "Shape mismatch in tuple component 2");
    optest_end(&t);
    fails(RUN(&t, "BarrierInsertMany", "T=f32, component_index=2", strings_of(&b), STRS("k9"),
              OPTEST_MAT(TRN_FLOAT, float, 1, 2, 5, 6)),
          TRN_INVALID_ARGUMENT, "out of range");
    optest_end(&t);
    fails(RUN(&t, "BarrierInsertMany", "T=f32, component_index=0", strings_of(&b), STRS("k8", "k9"),
              OPTEST_MAT(TRN_FLOAT, float, 1, 2, 5, 6)),
          TRN_INVALID_ARGUMENT, "a row for each");
    optest_end(&t);
    ok(RUN(&t, "BarrierInsertMany", "T=f32, component_index=0", strings_of(&b), STRS("k1"),
           OPTEST_MAT(TRN_FLOAT, float, 1, 2, 1, 2)));
    optest_end(&t);
    ok(optest_wait(&u, 1000));
    assert_int_equal(TRN_DATA(u.out[0].t, int64_t)[0], INT64_MIN); /* both came with the first insertion */
    assert_int_equal(TRN_DATA(u.out[0].t, int64_t)[1], INT64_MIN);
    size_t n;
    assert_memory_equal(trn_tensor_str_at(u.out[1].t, 0, &n), "k2",
                        2); /* of equal indices: the one that was ready first */
    assert_true(TRN_DATA(u.out[2].t, float)[0] == 3);
    assert_memory_equal(trn_tensor_str_at(u.out[3].t, 0, &n), "two", 3);
    optest_end(&u);
    fails(start(&t, "Barrier", "component_types=[f32], shapes=[[2]], shared_name=\"b\"", NULL, 0), TRN_INVALID_ARGUMENT,
          "other component");
    end_ref(&t);
    fails(start(&t, "Barrier", "component_types=[f32]", NULL, 0), TRN_INVALID_ARGUMENT, "must be specified");
    optest_end(&t);
    end_ref(&b);
}

static void barrier_closing(void **state)
{
    (void)state;
    optest b, t, u;
    make(&b, "Barrier", "component_types=[i32,i32], shapes=[[],[]], shared_name=\"b\"");
    ok(RUN(&t, "BarrierInsertMany", "T=i32, component_index=0", strings_of(&b), STRS("a", "b"), OPTEST_I32(1, 2)));
    optest_end(&t);
    ok(START(&u, "BarrierTakeMany", "component_types=[i32,i32]", strings_of(&b), trn_tensor_i32(3)));
    ok(RUN(&t, "BarrierClose", "", strings_of(&b)));
    optest_end(&t);
    assert_true(waiting(&u)); /* a and b may still be completed */
    fails(RUN(&t, "BarrierTakeMany", "component_types=[i32,i32]", strings_of(&b), trn_tensor_i32(3)), TRN_OUT_OF_RANGE,
          "Barrier 'b' is closed and has insufficient elements (requested 3, total size 2)");
    optest_end(&t);
    fails(RUN(&t, "BarrierInsertMany", "T=i32, component_index=0", strings_of(&b), STRS("c"), OPTEST_I32(1)),
          TRN_CANCELLED, "brand new key: c");
    optest_end(&t);
    ok(RUN(&t, "BarrierInsertMany", "T=i32, component_index=1", strings_of(&b), STRS("a", "b"), OPTEST_I32(3, 4)));
    optest_end(&t);
    fails(optest_wait(&u, 1000), TRN_OUT_OF_RANGE, "requested 3, current size 2");
    optest_end(&u);
    ok(RUN(&t, "BarrierTakeMany", "component_types=[i32,i32], allow_small_batch=true", strings_of(&b),
           trn_tensor_i32(9)));
    assert_int_equal(t.out[0].t->count, 2);
    optest_end(&t);
    fails(RUN(&t, "BarrierClose", "", strings_of(&b)), TRN_CANCELLED, "already closed");
    optest_end(&t);
    ok(RUN(&t, "BarrierClose", "cancel_pending_enqueues=true", strings_of(&b)));
    optest_end(&t);
    end_ref(&b);
    make(&b, "Barrier", "component_types=[i32,i32], shapes=[[],[]]");
    ok(RUN(&t, "BarrierInsertMany", "T=i32, component_index=0", strings_of(&b), STRS("a"), OPTEST_I32(1)));
    optest_end(&t);
    ok(RUN(&t, "BarrierClose", "cancel_pending_enqueues=true", strings_of(&b)));
    optest_end(&t);
    assert_int_equal(ask(&b, "BarrierIncompleteSize"), 0);
    fails(RUN(&t, "BarrierInsertMany", "T=i32, component_index=1", strings_of(&b), STRS("a"), OPTEST_I32(1)),
          TRN_CANCELLED, "is closed");
    optest_end(&t);
    end_ref(&b);
}

/* ---- staging areas ---------------------------------------------------------------------------------------------- */

#define AREA "shared_name=\"area\", capacity=2"

static void put(int32_t v)
{
    optest t;
    ok(RUN(&t, "Stage", "dtypes=[i32], " AREA, trn_tensor_i32(v)));
    optest_end(&t);
}

static int32_t take(void)
{
    optest t;
    ok(run_wait(&t, start(&t, "Unstage", "dtypes=[i32], " AREA, NULL, 0)));
    int32_t v = TRN_DATA(t.out[0].t, int32_t)[0];
    optest_end(&t);
    return v;
}

static void staging(void **state)
{
    (void)state;
    optest t, u, p;
    ok(start(&u, "Unstage", "dtypes=[i32], " AREA, NULL, 0));
    ok(START(&p, "StagePeek", "dtypes=[i32], " AREA, trn_tensor_i32(1)));
    assert_true(waiting(&u));
    put(1);
    ok(optest_wait(&u, 1000));
    assert_int_equal(TRN_DATA(u.out[0].t, int32_t)[0], 1);
    optest_end(&u);
    put(2);
    assert_true(waiting(&p));
    put(3);
    ok(optest_wait(&p, 1000));
    assert_int_equal(TRN_DATA(p.out[0].t, int32_t)[0], 3);
    optest_end(&p);
    ok(START(&t, "Stage", "dtypes=[i32], " AREA, trn_tensor_i32(4)));
    assert_true(waiting(&t)); /* full */
    assert_int_equal(take(), 2);
    ok(optest_wait(&t, 1000));
    optest_end(&t);
    ok(start(&t, "StageSize", "dtypes=[i32], " AREA, NULL, 0));
    assert_int_equal(TRN_DATA(t.out[0].t, int32_t)[0], 2);
    optest_end(&t);
    fails(run_wait(&t, start(&t, "Unstage", "dtypes=[i32,i32], " AREA, NULL, 0)), TRN_INVALID_ARGUMENT,
          "Mismatch stage/unstage: 1 vs. 2");
    optest_end(&t);
    ok(start(&t, "StageClear", "dtypes=[i32], " AREA, NULL, 0));
    optest_end(&t);
    ok(start(&u, "Unstage", "dtypes=[i32], " AREA, NULL, 0));
    assert_true(waiting(&u));
    trn_cancel_fire(cancel, trn_errorf(TRN_CANCELLED, "over"));
    fails(optest_wait(&u, 1000), TRN_CANCELLED, "area");
    optest_end(&u);
    fails(RUN(&t, "Stage", "dtypes=[i32], shared_name=\"m\", memory_limit=4", OPTEST_I32(1, 2)), TRN_RESOURCE_EXHAUSTED,
          "memory limit of '4'");
    optest_end(&t);
}

/* ---- mutexes ---------------------------------------------------------------------------------------------------- */

static void mutexes(void **state)
{
    (void)state;
    optest m, a, b, c, d, t;
    make(&m, "MutexV2", "shared_name=\"m\"");
    ok(RUN(&a, "MutexLock", "", H(&m)));
    ok(START(&b, "MutexLock", "", H(&m)));
    ok(START(&c, "MutexLock", "", H(&m)));
    assert_true(waiting(&b));
    ok(RUN(&t, "ConsumeMutexLock", "", H(&a))); /* looks at it only */
    optest_end(&t);
    assert_true(waiting(&b));
    optest_end(&a); /* the last reference */
    ok(optest_wait(&b, 1000));
    assert_true(waiting(&c));
    optest_end(&b);
    ok(optest_wait(&c, 1000));
    ok(START(&d, "MutexLock", "", H(&m)));
    assert_true(waiting(&d));
    trn_cancel_fire(cancel, trn_errorf(TRN_CANCELLED, "over"));
    fails(optest_wait(&d, 1000), TRN_CANCELLED, "Lock acquisition cancelled");
    optest_end(&d);
    fails(RUN(&t, "MutexLock", "", H(&m)), TRN_CANCELLED, "Lock acquisition cancelled");
    optest_end(&t);
    optest_end(&c);
    optest_end(&m);
}

static void mutex_container_cleared(void **state)
{
    (void)state;
    optest m, a, b;
    make(&m, "MutexV2", "shared_name=\"m\"");
    ok(RUN(&a, "MutexLock", "", H(&m)));
    ok(START(&b, "MutexLock", "", H(&m)));
    assert_true(waiting(&b));
    trn_resmgr_clear(mgr, NULL);
    fails(optest_wait(&b, 1000), TRN_CANCELLED, "is gone");
    optest_end(&b);
    ok(RUN(&b, "MutexLock", "", H(&m))); /* a new one */
    optest_end(&b);
    optest_end(&a);
    optest_end(&m);
}

/* ---- stacks ----------------------------------------------------------------------------------------------------- */

static void stacks(void **state)
{
    (void)state;
    optest s, t;
    ok(START(&s, "StackV2", "elem_type=f32", trn_tensor_i32(2)));
    for (int i = 0; i < 2; i++) {
        ok(RUN(&t, "StackPushV2", "T=f32", H(&s), trn_tensor_f32((float)i)));
        assert_true(TRN_DATA(t.out[0].t, float)[0] == (float)i);
        optest_end(&t);
    }
    fails(RUN(&t, "StackPushV2", "T=f32", H(&s), trn_tensor_f32(1)), TRN_INVALID_ARGUMENT,
          "overflowed its max_size (2)");
    optest_end(&t);
    fails(RUN(&t, "StackPushV2", "T=i32", H(&s), trn_tensor_i32(1)), TRN_INVALID_ARGUMENT, "Must have type");
    optest_end(&t);
    for (int i = 1; i >= 0; i--) {
        ok(RUN(&t, "StackPopV2", "elem_type=f32", H(&s)));
        assert_true(TRN_DATA(t.out[0].t, float)[0] == (float)i);
        optest_end(&t);
    }
    fails(RUN(&t, "StackPopV2", "elem_type=f32", H(&s)), TRN_INVALID_ARGUMENT, "is empty when calling Pop()");
    optest_end(&t);
    ok(RUN(&t, "StackPushV2", "T=f32", H(&s), trn_tensor_f32(1)));
    optest_end(&t);
    ok(RUN(&t, "StackCloseV2", "", H(&s)));
    optest_end(&t);
    fails(RUN(&t, "StackPopV2", "elem_type=f32", H(&s)), TRN_INVALID_ARGUMENT, "already been closed");
    optest_end(&t);
    optest_end(&s);
}

static trn_err run_in_step(optest *t, const char *op, const char *attrs, trn_resmgr *step, trn_tensor **in, int n)
{
    optest_begin(t, op);
    t->step.resmgr = mgr;
    t->step.step_resmgr = step;
    optest_attrs(t, attrs);
    for (int i = 0; i < n; i++)
        optest_input(t, in[i]);
    TRN_TRY(optest_prepare(t));
    return optest_go(t);
}

static void old_stacks(void **state)
{
    (void)state;
    optest s, t;
    trn_resmgr *step = trn_resmgr_new("");
    ok(run_in_step(&s, "Stack", "elem_type=i32, stack_name=\"st\"", step, NULL, 0));
    ok(run_in_step(&t, "StackPush", "T=i32", step, (trn_tensor *[]){strings_of(&s), trn_tensor_i32(7)}, 2));
    optest_end(&t);
    ok(run_in_step(&t, "StackPop", "elem_type=i32", step, (trn_tensor *[]){strings_of(&s)}, 1));
    assert_int_equal(TRN_DATA(t.out[0].t, int32_t)[0], 7);
    optest_end(&t);
    ok(run_in_step(&t, "StackClose", "", step, (trn_tensor *[]){strings_of(&s)}, 1));
    optest_end(&t);
    end_ref(&s);
    trn_resmgr_unref(step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(barrier, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_closing, setup, teardown),
        cmocka_unit_test_setup_teardown(staging, setup, teardown),
        cmocka_unit_test_setup_teardown(mutexes, setup, teardown),
        cmocka_unit_test_setup_teardown(mutex_container_cleared, setup, teardown),
        cmocka_unit_test_setup_teardown(stacks, setup, teardown),
        cmocka_unit_test_setup_teardown(old_stacks, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
