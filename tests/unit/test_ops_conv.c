/* Convolutions on several threads: oneDNN against our own code (through double), the same bits every time, many at once. The broad comparison
 * is tests/parity/cases_conv.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/loop.h"
#include "ops/mathlib.h"
#include "optest.h"

static trn_pool *pool;
static void on_pool(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg) { trn_pool_for(pool, n, grain, fn, arg); }
static int three(const trn_kctx *k) { return 3; }
static const trn_step_api parallel = {.parallel_for = on_pool, .threads = three};

static trn_tensor *numbers(trn_dtype t, int rank, const int64_t *dim, unsigned seed)
{
    trn_shape s = {.rank = rank};
    memcpy(s.dim, dim, sizeof *dim * (size_t)rank);
    trn_tensor *x;
    assert_null(trn_tensor_new(&x, t, &s));
    for (int64_t i = 0; i < x->count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = (float)(int)(seed >> 16) / 32768.0f - 1;
        if (t == TRN_DOUBLE)
            TRN_DATA_MUT(x, double)[i] = (double)v;
        else
            TRN_DATA_MUT(x, float)[i] = v;
    }
    return x;
}
static trn_tensor *sizes(const int64_t *dim)
{
    return OPTEST_I32((int32_t)dim[0], (int32_t)dim[1], (int32_t)dim[2], (int32_t)dim[3]);
}

static const int64_t X[] = {7, 18, 16, 16}, F[] = {3, 3, 16, 24}, Y[] = {7, 18, 16, 24};
#define ATTRS "strides=[1,1,1,1], padding=\"SAME\""

/* which: 0 Conv2D, 1 its gradient to the input, 2 to the filter. A counted tensor. */
static trn_tensor *run(int which, trn_dtype t, const trn_step_api *api)
{
    static const char *const op[] = {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"};
    optest o;
    optest_begin(&o, op[which]);
    optest_attrs(&o, ATTRS);
    optest_input(&o, which == 1 ? sizes(X) : numbers(t, 4, X, 1));
    optest_input(&o, which == 2 ? sizes(F) : numbers(t, 4, F, 2));
    if (which)
        optest_input(&o, numbers(t, 4, Y, 3));
    o.attrs[o.node.n_attrs++] = (trn_attr){.name = "T", .kind = TRN_ATTR_TYPE, .v.type = t};
    assert_null(optest_prepare(&o));
    if (api)
        o.step.api = api;
    trn_err e = optest_go(&o);
    if (e)
        fail_msg("%s", trn_err_msg(e));
    trn_tensor *y = trn_tensor_ref(o.out[0].t);
    optest_end(&o);
    return y;
}

static void library_and_own_code_agree(void **s)
{
    print_message("%s\n", trn_mathlib_text());
    for (int which = 0; which < 3; which++) {
        trn_tensor *a = run(which, TRN_FLOAT, &parallel), *b = run(which, TRN_DOUBLE, NULL);
        assert_int_equal(a->count, b->count);
        for (int64_t i = 0; i < a->count; i++) {
            double got = (double)TRN_DATA(a, float)[i], want = TRN_DATA(b, double)[i];
            if (!(fabs(got - want) <= 1e-4))
                fail_msg("kind %d element %lld is %g, expected %g", which, (long long)i, got, want);
        }
        trn_tensor_unref(a);
        trn_tensor_unref(b);
    }
}

static void same_bits_every_time(void **s)
{
    for (int which = 0; which < 3; which++) {
        trn_tensor *a = run(which, TRN_FLOAT, &parallel);
        for (int i = 0; i < 5; i++) {
            trn_tensor *b = run(which, TRN_FLOAT, &parallel);
            assert_memory_equal(a->data, b->data, trn_tensor_bytes(a));
            trn_tensor_unref(b);
        }
        trn_tensor_unref(a);
    }
}

static trn_tensor *golden[3];
static void *hammer(void *arg)
{
    for (int i = 0; i < 6; i++) {
        int which = (i + (int)(intptr_t)arg) % 3;
        trn_tensor *y = run(which, TRN_FLOAT, &parallel);
        bool same = !memcmp(y->data, golden[which]->data, trn_tensor_bytes(y));
        trn_tensor_unref(y);
        if (!same)
            return (void *)1;
    }
    return NULL;
}
static void many_at_once(void **s)
{
    pthread_t t[4];
    void *bad = NULL, *r;
    for (int i = 0; i < 3; i++)
        golden[i] = run(i, TRN_FLOAT, &parallel);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, hammer, (void *)(intptr_t)i), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &r);
        bad = r ? r : bad;
    }
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(golden[i]);
    assert_null(bad);
}

/* More geometries than the cache of plans holds. */
static void cache_is_bounded(void **s)
{
    for (int64_t i = 1; i <= 600; i++) {
        trn_conv_geom g = {.n = 1, .ic = 1, .oc = 8, .groups = 1, .in = {1, 1, i}, .ker = {1, 1, 1}, .out = {1, 1, i}, .stride = {1, 1, 1}, .dil = {1, 1, 1}};
        trn_conv_plan *p = trn_mathlib_conv(TRN_CONV_FWD, &g);
        if (i == 1 && !p)
            return; /* no library */
        trn_conv_plan_unref(p);
    }
}

static void first_maximum_gets_the_gradient(void **s)
{
    optest t;
    trn_err e = optest_run(&t, "MaxPoolGrad", "ksize=[1,2,2,1], strides=[1,1,1,1], padding=\"VALID\"", trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 2, 3, 1}, (float[]){1, 5, 5, 5, 2, 5}),
                           trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 1, 2, 1}, (float[]){5, 5}), trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 1, 2, 1}, (float[]){1, 10}), NULL);
    assert_null(e);
    const float want[] = {0, 11, 0, 0, 0, 0};
    assert_memory_equal(t.out[0].t->data, want, sizeof want);
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_and_own_code_agree),
        cmocka_unit_test(same_bits_every_time),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(cache_is_bounded),
        cmocka_unit_test(first_maximum_gets_the_gradient),
    };
    if (trn_pool_open(&pool, 3, "pool"))
        return 1;
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    trn_pool_close(pool);
    return r;
}
