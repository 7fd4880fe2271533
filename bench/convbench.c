/* Convolutions on one core: Winograd's way (ops/winograd.h) beside oneDNN's, which trn_winograd_fits chooses between.
 *
 *     convbench [ROW]
 *
 * Milliseconds, the best of ten rounds, for the convolution, the gradient of its input and that of its window; `*` marks what would be chosen (TRAINERA_WINOGRAD says more). */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "op/kctx.h"
#include "ops/winograd.h"

enum { ROUNDS = 10 };

static float *numbers(int64_t n)
{
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    for (int64_t i = 0; p && i < n; i++)
        p[i] = (float)(i % 97) / 97 - 0.5f;
    return p;
}

static double ms(uint64_t ns) { return (double)ns / 1e6; }

static void must(trn_err e)
{
    if (!e)
        return;
    fprintf(stderr, "convbench: %s\n", trn_err_msg(e));
    exit(1);
}

int main(int argc, char **argv)
{
    static const int shapes[][6] = {{50, 14, 14, 32, 64, 5}, {50, 28, 28, 16, 32, 5}, {25, 28, 28, 64, 64, 5}, {50, 14, 14, 32, 64, 3}, {8, 32, 32, 16, 16, 3}, {16, 32, 32, 32, 32, 3},
                                    {16, 28, 28, 64, 64, 3}, {16, 14, 14, 128, 128, 3}, {16, 14, 14, 256, 256, 3}, {16, 7, 7, 512, 512, 3}};
    static const trn_step_api api = {0};
    trn_step step = {.api = &api};
    trn_kctx k = {.step = &step};
    printf("%-28s %24s %24s %24s\n", "images, size, channels, window", "Winograd / oneDNN", "gradient of input", "gradient of window");
    for (size_t s = 0; s < TRN_COUNTOF(shapes); s++) {
        const int *q = shapes[s];
        if (argc > 1 && atoi(argv[1]) != (int)s)
            continue;
        int64_t pad = q[5] / 2;
        trn_conv_geom g = {.n = q[0], .ic = q[3], .oc = q[4], .groups = 1, .in = {1, q[1], q[2]}, .ker = {1, q[5], q[5]}, .out = {1, q[1], q[2]},
                           .stride = {1, 1, 1}, .dil = {1, 1, 1}, .pad = {0, pad, pad}, .pad_after = {0, pad, pad}};
        float *x = numbers(g.n * q[1] * q[2] * g.ic), *y = numbers(g.n * q[1] * q[2] * g.oc), *f = numbers(q[5] * q[5] * g.ic * g.oc);
        printf("%4d %4dx%-4d %4d %4d  %dx%d   ", q[0], q[1], q[2], q[3], q[4], q[5], q[5]);
        for (trn_conv_kind kind = TRN_CONV_FWD; kind <= TRN_CONV_BWD_FILTER; kind++) {
            uint64_t wino = UINT64_MAX, dnn = UINT64_MAX;
            for (int r = 0; r < ROUNDS; r++) {
                uint64_t t = trn_now_ns();
                must(trn_winograd(&k, kind, &g, x, f, y, NULL, NULL));
                wino = TRN_MIN(wino, trn_now_ns() - t);
            }
            trn_conv_plan *p = trn_mathlib_conv(kind, &g);
            float *packed = p && trn_conv_plan_packed(p) ? aligned_alloc(64, (trn_conv_plan_packed(p) + 63) / 64 * 64) : NULL;
            for (int r = 0; p && r < ROUNDS; r++) {
                uint64_t t = trn_now_ns();
                if (packed && kind != TRN_CONV_BWD_FILTER)
                    must(trn_conv_plan_pack(p, packed, f));
                must(trn_conv_plan_run(p, x, packed ? packed : f, y));
                if (packed && kind == TRN_CONV_BWD_FILTER)
                    must(trn_conv_plan_unpack(p, f, packed));
                dnn = TRN_MIN(dnn, trn_now_ns() - t);
            }
            trn_conv_plan_unref(p);
            free(packed);
            printf("%9.2f%s / %7.2f    ", ms(wino), trn_winograd_fits(kind, &g) ? "*" : " ", p ? ms(dnn) : 0);
        }
        printf("\n");
        free(x);
        free(y);
        free(f);
    }
    return 0;
}
