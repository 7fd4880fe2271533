#include "ops/fused.h"

#include <math.h>

#include "ops/kern.h"
#include "ops/vmath.h"

bool trn_act_of(trn_act *out, const char *op)
{
    static const char *const names[] = {[TRN_ACT_RELU] = "Relu", [TRN_ACT_RELU6] = "Relu6", [TRN_ACT_ELU] = "Elu", [TRN_ACT_LEAKY] = "LeakyRelu",
                                        [TRN_ACT_TANH] = "Tanh", [TRN_ACT_SIGMOID] = "Sigmoid"};
    for (int i = TRN_ACT_RELU; i <= TRN_ACT_SIGMOID; i++)
        if (!strcmp(op, names[i])) {
            *out = (trn_act)i;
            return true;
        }
    return false;
}

#define ACT(T, tag, EXPM1, TANH, SIGMOID)                                                                              \
    TRN_SIMD void trn_act_##tag(T *x, int64_t n, trn_act act, float alpha)                                             \
    {                                                                                                                  \
        switch (act) {                                                                                                 \
        case TRN_ACT_NONE: return;                                                                                     \
        case TRN_ACT_RELU:                                                                                             \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = x[i] < 0 ? 0 : x[i];                                                                            \
            return;                                                                                                    \
        case TRN_ACT_RELU6:                                                                                            \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = x[i] < 0 ? 0 : x[i] > 6 ? 6 : x[i];                                                             \
            return;                                                                                                    \
        case TRN_ACT_ELU:                                                                                              \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = x[i] < 0 ? EXPM1(x[i]) : x[i];                                                                  \
            return;                                                                                                    \
        case TRN_ACT_LEAKY:                                                                                            \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = x[i] > 0 ? x[i] : (T)alpha * x[i];                                                              \
            return;                                                                                                    \
        case TRN_ACT_TANH:                                                                                             \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = TANH(x[i]);                                                                                     \
            return;                                                                                                    \
        case TRN_ACT_SIGMOID:                                                                                          \
            for (int64_t i = 0; i < n; i++)                                                                            \
                x[i] = SIGMOID(x[i]);                                                                                  \
            return;                                                                                                    \
        }                                                                                                              \
    }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
ACT(float, f32, trn_v_expm1f, trn_v_tanhf, trn_v_sigmoidf)
ACT(double, f64, expm1, tanh, sigmoid)
