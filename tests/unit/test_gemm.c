/* Matrix products of every kind of CPU that this one is, against sums in double. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "ops/gemm.h"

static uint64_t seed = 1;
static double next(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int32_t)(seed >> 32) / 2147483648.0;
}

typedef struct mats {
    double *a, *b;
    float *fa, *fb, *fc;
    double *dc;
} mats;

#define GUARD 7.5 /* what lies between rows of C stays */

static void one(const mats *x, int64_t m, int64_t n, int64_t k, int ta, int tb, trn_gemm_isa isa, bool add)
{
    int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 2, ldc = n + 5;
    trn_gemm_args g = {.m = m, .n = n, .k = k, .ars = ta ? 1 : lda, .acs = ta ? lda : 1, .brs = tb ? 1 : ldb, .bcs = tb ? ldb : 1, .ldc = ldc, .add = add};
    for (int wide = 0; wide < 2; wide++) {
        g.a = wide ? (const void *)x->a : x->fa;
        g.b = wide ? (const void *)x->b : x->fb;
        g.c = wide ? (void *)x->dc : x->fc;
        for (int64_t i = 0; i < m * ldc; i++) {
            x->fc[i] = (float)GUARD;
            x->dc[i] = GUARD;
        }
        assert_true(trn_gemm_as(wide ? TRN_DOUBLE : TRN_FLOAT, &g, isa));
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < ldc; j++) {
                double got = wide ? x->dc[i * ldc + j] : (double)x->fc[i * ldc + j], want = add ? GUARD : 0;
                if (j >= n) {
                    assert_true(got == GUARD);
                    continue;
                }
                for (int64_t q = 0; q < k; q++)
                    want += x->a[i * g.ars + q * g.acs] * x->b[q * g.brs + j * g.bcs];
                if (!(fabs(got - want) <= (wide ? 1e-13 : 2e-6) * (double)(k + 8)))
                    fail_msg("%lldx%lldx%lld ta=%d tb=%d isa %d %s%s: c[%lld,%lld] is %g, not %g", (long long)m, (long long)n, (long long)k, ta, tb, (int)isa,
                             wide ? "f64" : "f32", add ? ", added" : "", (long long)i, (long long)j, got, want);
            }
    }
}

static void products(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 70, 9},   {1, 5, 300}, {2, 40, 8},   {3, 133, 20}, {4, 33, 11},   {6, 16, 4},  {7, 64, 3},  {12, 32, 257},
                                       {13, 49, 30}, {5, 1, 64},  {97, 18, 10}, {25, 100, 5}, {1, 1, 1},     {24, 31, 1}, {30, 15, 64}, {9, 1030, 6},
                                       {100, 10, 51}, {3, 3, 600}, {11, 17, 513}, {64, 128, 2}, {100, 70, 1021}, {32, 96, 40},
                                       {28, 130, 90}, {17, 64, 700}, {40, 65, 41}, {32, 64, 35},   {56, 30, 129},
                                       {36, 65, 127}, {36, 65, 129}, {37, 64, 320}, {99, 64, 321}, {5, 9, 2100}, {50, 20, 1500}, {7, 72, 1300}, {128, 8, 390}, {3, 67, 1029}};
    enum { MOST = 200000 };
    mats x = {.a = trn_xalloc(MOST * sizeof(double)), .b = trn_xalloc(MOST * sizeof(double)), .fa = trn_xalloc(MOST * sizeof(float)),
              .fb = trn_xalloc(MOST * sizeof(float)), .fc = trn_xalloc(MOST * sizeof(float)), .dc = trn_xalloc(MOST * sizeof(double))};
    for (int64_t i = 0; i < MOST; i++) {
        x.a[i] = x.fa[i] = (float)next();
        x.b[i] = x.fb[i] = (float)next();
    }
    for (trn_gemm_isa isa = TRN_GEMM_PLAIN; isa <= TRN_GEMM_AVX512; isa++)
        for (size_t s = 0; trn_gemm_has(isa) && s < TRN_COUNTOF(sizes); s++)
            for (int t = 0; t < 8; t++)
                one(&x, sizes[s][0], sizes[s][1], sizes[s][2], t & 1, t >> 1 & 1, isa, t >> 2);
    free(x.a);
    free(x.b);
    free(x.fa);
    free(x.fb);
    free(x.fc);
    free(x.dc);
}

/* Past the cache or through it: the same bits, wherever C begins. */
static void streamed(void **state)
{
    (void)state;
    enum { M = 850, N = 704, K = 20, SPARE = 16 };
    float *a = trn_xalloc(M * K * sizeof *a), *b = trn_xalloc(K * N * sizeof *b), *c[2];
    for (int i = 0; i < 2; i++)
        c[i] = aligned_alloc(64, (M * N + SPARE) * sizeof **c);
    for (int i = 0; i < M * K; i++)
        a[i] = (float)next();
    for (int i = 0; i < K * N; i++)
        b[i] = (float)next();
    for (trn_gemm_isa isa = TRN_GEMM_PLAIN; isa <= TRN_GEMM_AVX512; isa++)
        for (int shift = 0; trn_gemm_has(isa) && shift < SPARE; shift += 5) {
            for (int i = 0; i < 2; i++) {
                memset(c[i], 0, (M * N + SPARE) * sizeof **c);
                assert_true(trn_gemm_as(TRN_FLOAT, &(trn_gemm_args){.m = M, .n = N, .k = K, .a = a, .ars = 1, .acs = M, .b = b, .brs = N, .bcs = 1,
                                                                    .c = c[i] + shift, .ldc = N, .stream = i}, isa));
            }
            assert_memory_equal(c[0], c[1], (M * N + SPARE) * sizeof **c);
        }
    free(a);
    free(b);
    free(c[0]);
    free(c[1]);
}

/* A convolution's small products read both factors where they lie, and take no memory for them. */
static void without_memory(void **state)
{
    (void)state;
    enum { M = 48, N = 64, K = 32 };
    static float a[M * K], b[K * N], c[M * N];
    for (int turned = 0; turned < 2; turned++) {
        for (int i = 0; i < M * K; i++)
            a[i] = (float)next();
        for (int i = 0; i < K * N; i++)
            b[i] = (float)next();
        trn_gemm_args g = {.m = M, .n = N, .k = K, .a = a, .ars = turned ? 1 : K, .acs = turned ? M : 1, .b = b, .brs = N, .bcs = 1, .c = c, .ldc = N};
        trn_faults_set("buf.new");
        bool done = trn_gemm(TRN_FLOAT, &g);
        trn_faults_set(NULL);
        assert_true(done);
        for (int i = 0; i < M * N; i++) {
            double want = 0;
            for (int k = 0; k < K; k++)
                want += (double)a[i / N * g.ars + k * g.acs] * (double)b[k * N + i % N];
            assert_true(fabs((double)c[i] - want) < 1e-5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(streamed), cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
