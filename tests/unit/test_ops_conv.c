/* Convolutions on several threads: oneDNN against our own code (through double), the same bits every time, many at once. The broad comparison
 * is tests/parity/cases_conv.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/loop.h"
#include "ops/mathlib.h"
#include "ops/winograd.h"
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
static trn_tensor *run_on(int which, trn_dtype t, const trn_step_api *api, const int64_t *x, const int64_t *f, const int64_t *y, const char *attrs)
{
    static const char *const op[] = {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"};
    optest o;
    optest_begin(&o, op[which]);
    optest_attrs(&o, attrs);
    optest_input(&o, which == 1 ? sizes(x) : numbers(t, 4, x, 1));
    optest_input(&o, which == 2 ? sizes(f) : numbers(t, 4, f, 2));
    if (which)
        optest_input(&o, numbers(t, 4, y, 3));
    o.attrs[o.node.n_attrs++] = (trn_attr){.name = "T", .kind = TRN_ATTR_TYPE, .v.type = t};
    assert_null(optest_prepare(&o));
    if (api)
        o.step.api = api;
    trn_err e = optest_go(&o);
    if (e)
        fail_msg("%s", trn_err_msg(e));
    trn_tensor *out = trn_tensor_ref(o.out[0].t);
    optest_end(&o);
    return out;
}
static trn_tensor *run(int which, trn_dtype t, const trn_step_api *api) { return run_on(which, t, api, X, F, Y, ATTRS); }

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

/* Winograd's way against our own code in double: all three kinds, tiles that stick out, padding of all kinds, what follows a product, several threads. */
static void few_multiplications(void **s)
{
    static const struct { int64_t n, h, w, ic, oc, r, pad[4]; } shapes[] = {
        {9, 13, 11, 32, 48, 3, {1, 1, 1, 1}}, {6, 12, 10, 48, 32, 5, {2, 2, 2, 2}}, {4, 16, 17, 32, 32, 5, {0, 0, 0, 0}},
        {3, 21, 19, 32, 64, 3, {2, 0, 0, 1}}, {2, 16, 16, 32, 32, 5, {4, 1, 3, 0}}, {70, 4, 4, 32, 32, 3, {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < TRN_COUNTOF(shapes); i++) {
        int64_t r = shapes[i].r, oh = shapes[i].h + shapes[i].pad[0] + shapes[i].pad[1] - r + 1, ow = shapes[i].w + shapes[i].pad[2] + shapes[i].pad[3] - r + 1;
        trn_conv_geom g = {.n = shapes[i].n, .ic = shapes[i].ic, .oc = shapes[i].oc, .groups = 1, .in = {1, shapes[i].h, shapes[i].w}, .ker = {1, r, r},
                           .out = {1, oh, ow}, .stride = {1, 1, 1}, .dil = {1, 1, 1}, .pad = {0, shapes[i].pad[0], shapes[i].pad[2]},
                           .pad_after = {0, shapes[i].pad[1], shapes[i].pad[3]}};
        const int64_t x[] = {g.n, g.in[1], g.in[2], g.ic}, f[] = {r, r, g.ic, g.oc}, y[] = {g.n, oh, ow, g.oc};
        char attrs[200];
        snprintf(attrs, sizeof attrs, "strides=[1,1,1,1], padding=\"EXPLICIT\", explicit_paddings=[0,0,%d,%d,%d,%d,0,0]", (int)shapes[i].pad[0],
                 (int)shapes[i].pad[1], (int)shapes[i].pad[2], (int)shapes[i].pad[3]);
        for (int which = 0; which < 3; which++) {
            trn_tensor *a[2]; /* float and double */
            assert_true(trn_winograd_fits((trn_conv_kind)which, &g));
            for (int wide = 0; wide < 2; wide++)
                a[wide] = run_on(which, wide ? TRN_DOUBLE : TRN_FLOAT, wide ? NULL : &parallel, x, f, y, attrs);
            assert_int_equal(a[0]->count, a[1]->count);
            double size = 0, most = 0;
            for (int64_t e = 0; e < a[0]->count; e++) {
                size = fmax(size, fabs(TRN_DATA(a[1], double)[e]));
                most = fmax(most, fabs((double)TRN_DATA(a[0], float)[e] - TRN_DATA(a[1], double)[e]));
            }
            if (!(most <= 1e-5 * size))
                fail_msg("shape %d kind %d: off by %g where numbers are as large as %g", (int)i, which, most, size);
            trn_tensor *again = run_on(which, TRN_FLOAT, &parallel, x, f, y, attrs);
            assert_memory_equal(again->data, a[0]->data, trn_tensor_bytes(again));
            for (int wide = 0; wide < 2; wide++)
                trn_tensor_unref(a[wide]);
            trn_tensor_unref(again);
        }
    }
}

/* Places of tiles that are the same all over get the same bits; those that see only zeros get 0, whatever else lies in their tile. */
static void plain_places(void **s)
{
    enum { N = 3, SIDE = 16, PLAIN = 11, WHOLE = 8, IC = 32, OC = 48 }; /* an image's first columns are plain, and all that the tiles of the WHOLE first see */
    trn_step step = {.api = &parallel};
    trn_kctx k = {.step = &step};
    for (int64_t r = 3; r <= 5; r += 2) {
        int64_t half = r / 2;
        trn_conv_geom g = {.n = N, .ic = IC, .oc = OC, .groups = 1, .in = {1, SIDE, SIDE}, .ker = {1, r, r}, .out = {1, SIDE, SIDE}, .stride = {1, 1, 1}, .dil = {1, 1, 1},
                           .pad = {0, half, half}, .pad_after = {0, half, half}};
        trn_tensor *x = numbers(TRN_FLOAT, 4, (int64_t[]){N, SIDE, SIDE, IC}, 1), *f = numbers(TRN_FLOAT, 4, (int64_t[]){r, r, IC, OC}, 2),
                   *y = numbers(TRN_FLOAT, 4, (int64_t[]){N, SIDE, SIDE, OC}, 3);
        float *xs = x->data, *ys = y->data;
        for (int zero = 0; zero < 2; zero++) {
            for (int64_t i = 0; i < N * SIDE * SIDE * IC; i++)
                if (i / IC % SIDE < PLAIN)
                    xs[i] = zero ? 0 : TRN_DATA(f, float)[i % IC] / 3;
            assert_null(trn_winograd(&k, TRN_CONV_FWD, &g, xs, f->data, ys, NULL, NULL));
            for (int64_t n = 0; n < N; n++)
                for (int64_t row = 0; row < SIDE; row++) {
                    bool inside = row >= half && row < SIDE - half;
                    float *first = ys + (inside ? half * SIDE + half : (n * SIDE + row) * SIDE + half) * OC; /* at the border: of its row */
                    for (int64_t col = half; col < (zero ? PLAIN - half : WHOLE); col++)
                        assert_memory_equal(ys + ((n * SIDE + row) * SIDE + col) * OC, first, sizeof *ys * OC);
                    assert_true(zero == (first[0] == 0 && first[OC - 1] == 0));
                }
        }
        trn_tensor_unref(x);
        trn_tensor_unref(f);
        trn_tensor_unref(y);
    }
}

static void bias_and_relu_follow(void **s)
{
    const int64_t x[] = {5, 9, 10, 32}, f[] = {5, 5, 32, 32}, b[] = {32};
    trn_tensor *y[2];
    for (int wide = 0; wide < 2; wide++) {
        trn_dtype t = wide ? TRN_DOUBLE : TRN_FLOAT;
        optest o;
        optest_begin(&o, "_FusedConv2D");
        optest_attrs(&o, ATTRS ", num_args=1, fused_ops=[\"BiasAdd\",\"Relu\"]");
        optest_input(&o, numbers(t, 4, x, 1));
        optest_input(&o, numbers(t, 4, f, 2));
        optest_input(&o, numbers(t, 1, b, 3));
        o.attrs[o.node.n_attrs++] = (trn_attr){.name = "T", .kind = TRN_ATTR_TYPE, .v.type = t};
        trn_attr_val list = {.type = t};
        o.attrs[o.node.n_attrs++] = (trn_attr){.name = "TArgs", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = &list};
        assert_null(optest_prepare(&o));
        o.step.api = &parallel;
        assert_null(optest_go(&o));
        y[wide] = trn_tensor_ref(o.out[0].t);
        optest_end(&o);
    }
    int64_t zeros = 0;
    for (int64_t e = 0; e < y[0]->count; e++) {
        double got = (double)TRN_DATA(y[0], float)[e], want = TRN_DATA(y[1], double)[e];
        zeros += got == 0;
        if (!(fabs(got - want) <= 1e-3))
            fail_msg("element %lld is %g, expected %g", (long long)e, got, want);
    }
    assert_in_range(zeros, y[0]->count / 4, y[0]->count * 3 / 4);
    trn_tensor_unref(y[0]);
    trn_tensor_unref(y[1]);
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

/* The same by the quick way for windows that tile; of equal ones the first, and NaN is never larger. */
static void quads_too(void **s)
{
    const float x[] = {1, 5, 5, 5, 2, 2, 5, 1, NAN, 3, 4, NAN, 0, 7, 7, 7}, pooled[] = {5, 5, 7, 7}, g[] = {1, 10, 100, 1000};
    optest t;
    assert_null(optest_run(&t, "MaxPool", "ksize=[1,2,2,1], strides=[1,2,2,1], padding=\"VALID\"", trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 4, 4, 1}, x), NULL));
    assert_true(isnan(TRN_DATA(t.out[0].t, float)[2]));
    for (int i = 0; i < 4; i++)
        assert_true(i == 2 || TRN_DATA(t.out[0].t, float)[i] == pooled[i]);
    optest_end(&t);
    assert_null(optest_run(&t, "MaxPoolGrad", "ksize=[1,2,2,1], strides=[1,2,2,1], padding=\"VALID\"", trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 4, 4, 1}, x),
                           trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 2, 2, 1}, pooled), trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){1, 2, 2, 1}, g), NULL));
    const float want[] = {0, 1, 10, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 1000, 0};
    assert_memory_equal(t.out[0].t->data, want, sizeof want);
    optest_end(&t);
}

/* With a Relu's gradient on its way (graph/fuse.c): the same as one after the other, to the last bit, for windows that tile and others. */
static void relu_on_the_way(void **s)
{
    static const char *const windows[] = {"ksize=[1,2,2,1], strides=[1,2,2,1], padding=\"VALID\"", "ksize=[1,3,3,1], strides=[1,1,1,1], padding=\"SAME\"",
                                          "ksize=[1,2,2,1], strides=[1,2,2,1], padding=\"SAME\""};
    for (int w = 0; w < 3; w++) {
        enum { SIZE = 6, C = 5, N = 2 * SIZE * SIZE * C };
        int64_t side = w == 1 ? SIZE : SIZE / 2, n = 2 * side * side * C;
        float x[N], g[N];
        for (int i = 0; i < N; i++) {
            x[i] = (float)(i * 7919 % 13 - 6); /* also windows with nothing above 0, and several largest */
            x[i] = i / C % 6 < 2 && x[i] > 0 ? -x[i] : x[i];
            g[i] = (float)(i % 17 + 1);
        }
        x[40] = NAN;
        optest t, both, relu;
        assert_null(optest_run(&t, "MaxPool", windows[w], trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, SIZE, SIZE, C}, x), NULL));
        float pooled[N];
        memcpy(pooled, t.out[0].t->data, sizeof(float) * (size_t)n);
        optest_end(&t);
        for (int r = 0; r < 2; r++) {
            char attrs[128];
            snprintf(attrs, sizeof attrs, "%s%s", windows[w], r ? ", _relu=true" : "");
            assert_null(optest_run(r ? &both : &t, "MaxPoolGrad", attrs, trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, SIZE, SIZE, C}, x),
                                   trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, side, side, C}, pooled), trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, side, side, C}, g), NULL));
        }
        assert_null(optest_run(&relu, "ReluGrad", "", trn_tensor_ref(t.out[0].t), trn_tensor_from(TRN_FLOAT, 4, (int64_t[]){2, SIZE, SIZE, C}, x), NULL));
        assert_memory_equal(both.out[0].t->data, relu.out[0].t->data, sizeof x);
        assert_memory_not_equal(both.out[0].t->data, t.out[0].t->data, sizeof x);
        optest_end(&relu);
        optest_end(&both);
        optest_end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_and_own_code_agree),
        cmocka_unit_test(same_bits_every_time),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(few_multiplications),
        cmocka_unit_test(plain_places),
        cmocka_unit_test(bias_and_relu_follow),
        cmocka_unit_test(cache_is_bounded),
        cmocka_unit_test(first_maximum_gets_the_gradient),
        cmocka_unit_test(quads_too),
        cmocka_unit_test(relu_on_the_way),
    };
    setenv("TRAINERA_WINOGRAD", "all", 1);
    if (trn_pool_open(&pool, 3, "pool"))
        return 1;
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    trn_pool_close(pool);
    return r;
}
