/* Matrix products on one core, beside what the core can do at best.
 *
 *     gemmbench
 *
 * Shapes are those of an MLP's step (784-512-512-10, 100 rows) and of a convnet's dense layer (50 rows): forward, gradients of inputs (B transposed) and of weights (A transposed), whole and as the
 * pieces into which threads divide them. "cold": eight sets of matrices in turn, so that they come from the last cache, as in a step. The best of
 * thirty rounds, or of half a second, counts; the peak is that of multiply-adds which wait for nothing. */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "ops/gemm.h"

enum { ROUNDS = 30, COLD = 8 };

#if defined(__x86_64__)
#define FMA(n) "vfmadd231ps %12, %13, %" #n "\n\t"
/* Twelve at a time: more than a core has under way. V: the registers' constraint. */
#define PEAK(name, V, L, target_)                                                                                                          \
    __attribute__((target(target_))) static double name(void)                                                                              \
    {                                                                                                                                      \
        typedef float v __attribute__((vector_size(4 * (L))));                                                                             \
        v x0 = {0}, x1 = x0, x2 = x0, x3 = x0, x4 = x0, x5 = x0, x6 = x0, x7 = x0, x8 = x0, x9 = x0, x10 = x0, x11 = x0;                   \
        v a = x0 + 0.5f, b = x0 + 0.25f;                                                                                                   \
        uint64_t best = UINT64_MAX;                                                                                                        \
        for (int r = 0; r < ROUNDS; r++) {                                                                                                 \
            uint64_t t = trn_now_ns();                                                                                                     \
            for (int n = 0; n < 20000; n++)                                                                                                \
                __asm__ volatile(FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10) FMA(11)                     \
                                 : "+" V(x0), "+" V(x1), "+" V(x2), "+" V(x3), "+" V(x4), "+" V(x5), "+" V(x6), "+" V(x7), "+" V(x8),      \
                                   "+" V(x9), "+" V(x10), "+" V(x11)                                                                       \
                                 : V(a), V(b));                                                                                            \
            best = TRN_MIN(best, trn_now_ns() - t);                                                                                        \
        }                                                                                                                                  \
        return 20000.0 * 12 * 2 * (L) / (double)best;                                                                                      \
    }
PEAK(peak_fma, "x", 8, "avx2,fma")
PEAK(peak_512, "v", 16, "avx512f")
#endif

static double peak(trn_gemm_isa isa)
{
#if defined(__x86_64__)
    if (isa == TRN_GEMM_FMA)
        return peak_fma();
    if (isa == TRN_GEMM_AVX512)
        return peak_512();
#endif
    (void)isa;
    return 0;
}

/* From the pool, as a tensor's: large ones lie on huge pages. */
static trn_buf *numbers(int64_t n)
{
    trn_buf *b;
    trn_err e = trn_buf_new(&b, (size_t)n * sizeof(float));
    if (e) {
        fprintf(stderr, "gemmbench: %s\n", trn_err_msg(e));
        exit(1);
    }
    for (int64_t i = 0; i < n; i++)
        ((float *)(void *)b->data)[i] = (float)(i % 97) / 97 - 0.5f;
    return b;
}

/* GFLOP/s */
static double rate(trn_gemm_isa isa, int64_t m, int64_t n, int64_t k, bool ta, bool tb, int sets)
{
    trn_gemm_args g[COLD];
    trn_buf *buf[COLD][3];
    for (int i = 0; i < sets; i++) {
        buf[i][0] = numbers(m * k);
        buf[i][1] = numbers(k * n);
        buf[i][2] = numbers(m * n);
        g[i] = (trn_gemm_args){.m = m, .n = n, .k = k, .a = buf[i][0]->data, .b = buf[i][1]->data, .c = buf[i][2]->data, .ldc = n,
                               .ars = ta ? 1 : k, .acs = ta ? m : 1, .brs = tb ? 1 : n, .bcs = tb ? k : 1, .stream = true};
    }
    uint64_t best = UINT64_MAX, end = trn_now_ns() + 500000000;
    for (int r = 0; r < ROUNDS && (r == 0 || trn_now_ns() < end); r++) {
        uint64_t t = trn_now_ns();
        for (int i = 0; i < COLD; i++)
            trn_gemm_as(TRN_FLOAT, &g[i % sets], isa);
        best = TRN_MIN(best, trn_now_ns() - t);
    }
    for (int i = 0; i < sets; i++)
        for (int q = 0; q < 3; q++)
            trn_buf_unref(buf[i][q]);
    return 2.0 * (double)(m * n * k) * COLD / (double)best;
}

int main(void)
{
    static const struct { const char *what; int64_t m, n, k; bool ta, tb; } shapes[] = {
        {"forward, 784 to 512", 100, 512, 784, false, false},   {"  a piece of it", 100, 64, 784, false, false},
        {"forward, 512 to 512", 100, 512, 512, false, false},   {"gradient of its input", 100, 512, 512, false, true},
        {"gradient of 784 x 512", 784, 512, 100, true, false},  {"  a piece of it", 204, 512, 100, true, false},
        {"gradient of 512 x 512", 512, 512, 100, true, false},  {"1024 x 1024 x 1024", 1024, 1024, 1024, false, false},
        {"forward, 3136 to 1024", 50, 1024, 3136, false, false}, {"gradient of its input", 50, 3136, 1024, false, true},
        {"gradient of 3136 x 1024", 3136, 1024, 50, true, false},
    };
    static const char *const names[] = {"plain", "AVX2 and FMA", "AVX-512"};
    for (trn_gemm_isa isa = TRN_GEMM_PLAIN; isa <= TRN_GEMM_AVX512; isa++) {
        if (!trn_gemm_has(isa))
            continue;
        double most = peak(isa);
        printf("%s: GFLOP/s", names[isa]);
        if (most > 0)
            printf(", of a peak of %.0f", most);
        printf("\n");
        for (size_t i = 0; i < TRN_COUNTOF(shapes); i++) {
            double warm = rate(isa, shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].ta, shapes[i].tb, 1);
            double cold = rate(isa, shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].ta, shapes[i].tb, COLD);
            printf("  %-24s warm %6.1f  cold %6.1f", shapes[i].what, warm, cold);
            if (most > 0)
                printf("   %3.0f %%  %3.0f %%", 100 * warm / most, 100 * cold / most);
            printf("\n");
            fflush(stdout);
        }
    }
    return 0;
}
