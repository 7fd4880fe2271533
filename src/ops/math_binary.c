/* Element-wise functions of two tensors, with broadcasting. */
#include <complex.h>
#include <math.h>
#undef I
#ifndef CMPLX /* glibc keeps it from clang */
#define CMPLX(x, y) __builtin_complex((double)(x), (double)(y))
#define CMPLXF(x, y) __builtin_complex((float)(x), (float)(y))
#endif

#include "op/kctx.h"
#include "ops/kern.h"
#include "ops/variant.h"
#include "ops/vmath.h"

/* a and b are the elements, T their type, W the unsigned type that wraps. Three loops: both walk, or one stays. */
#define LOOPS(T, U, ...)                                                                                               \
    U *y = yy;                                                                                                         \
    const T *aq = aa, *bq = bb;                                                                                        \
    (void)bad, (void)p;                                                                                                \
    if (sa && sb) {                                                                                                    \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T a = aq[i], b = bq[i];                                                                                    \
            y[i] = (U)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    } else if (sa) {                                                                                                   \
        T b = *bq;                                                                                                     \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T a = aq[i];                                                                                               \
            y[i] = (U)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    } else if (sb) {                                                                                                   \
        T a = *aq;                                                                                                     \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T b = bq[i];                                                                                               \
            y[i] = (U)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    } else {                                                                                                           \
        T a = *aq, b = *bq;                                                                                            \
        U r = (U)(__VA_ARGS__);                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = r;                                                                                                  \
    }
#define ARGS void *yy, const void *aa, const void *bb, int64_t n, int sa, int sb, int *bad, float p
#define BIN(op, T, W, tag, ...)                                                                                        \
    TRN_SIMD_##tag static void op##_##tag(ARGS) { LOOPS(T, T, __VA_ARGS__) }
/* For loops that call libm or branch: a clone per instruction set would buy nothing. */
#define BIN1(op, T, W, tag, ...)                                                                                       \
    static void op##_##tag(ARGS) { LOOPS(T, T, __VA_ARGS__) }
#define BIN_FC(op, e)                                                                                                  \
    BIN(op, float, , f32, e)                                                                                           \
    BIN(op, double, , f64, e)                                                                                          \
    BIN1(op, float _Complex, , c64, e)                                                                                 \
    BIN1(op, double _Complex, , c128, e)
#define OP(name, c, ...)                                                                                               \
    static const trn_binary b_##name = {.f = {__VA_ARGS__}, .cost = c};                                                \
    TRN_BINARY_KERNEL(k_##name, b_##name)

/* ---- + - * / ----------------------------------------------------------------------------------------------------- */

#define ADD(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a + (W)b)
#define SUB(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a - (W)b)
#define MUL(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a * (W)b)
TRN_EACH_INT(ADD, add)
TRN_EACH_INT(SUB, sub)
TRN_EACH_INT(MUL, mul)
BIN_FC(add, a + b)
BIN_FC(sub, a - b)
BIN_FC(mul, a *b)

static void add_str(ARGS)
{
    trn_str *y = yy;
    const trn_str *a = aa, *b = bb;
    (void)p;
    for (int64_t i = 0; i < n; i++) {
        const trn_str *s = &a[i * sa], *t = &b[i * sb];
        char *q;
        trn_err e = trn_str_alloc(&q, &y[i], (size_t)s->len + t->len);
        if (e) {
            trn_err_free(e);
            *bad |= TRN_EW_OOM;
            return;
        }
        memcpy(q, trn_str_p(s), s->len);
        memcpy(q + s->len, trn_str_p(t), t->len);
    }
}

OP(add, 0, TRN_TAB_INT(add), TRN_TAB_FLOAT(add), TRN_TAB_COMPLEX(add), [TRN_STRING] = add_str)
OP(sub, 0, TRN_TAB_INT(sub), TRN_TAB_FLOAT(sub), TRN_TAB_COMPLEX(sub))
OP(mul, 0, TRN_TAB_INT(mul), TRN_TAB_FLOAT(mul), TRN_TAB_COMPLEX(mul))

/* Truncating; the one overflow (MIN / -1) wraps. */
#define TDIV(op, T, W, tag, ...) BIN1(op, T, W, tag, b == 0 ? (*bad |= TRN_EW_DIV0, 0) : (T)-1 < 0 && b == (T)-1 ? (T)((W)0 - (W)a) : a / b)
#define TMOD(op, T, W, tag, ...) BIN1(op, T, W, tag, b == 0 ? (*bad |= TRN_EW_DIV0, 0) : (T)-1 < 0 && b == (T)-1 ? 0 : a % b)
#define FDIV_INT(op, T, W, tag, ...)                                                                                   \
    static inline T op##1_##tag(T a, T b)                                                                              \
    {                                                                                                                  \
        if ((T)-1 < 0 && b == (T)-1)                                                                                   \
            return (T)((W)0 - (W)a);                                                                                   \
        T q = (T)(a / b);                                                                                              \
        return (T)(a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q);                                                      \
    }                                                                                                                  \
    BIN1(op, T, W, tag, b == 0 ? (*bad |= TRN_EW_DIV0, 0) : op##1_##tag(a, b))
#define FMOD_INT(op, T, W, tag, ...)                                                                                   \
    static inline T op##1_##tag(T a, T b)                                                                              \
    {                                                                                                                  \
        if ((T)-1 < 0 && b == (T)-1)                                                                                   \
            return 0;                                                                                                  \
        T r = (T)(a % b);                                                                                              \
        return (T)(r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r);                                                     \
    }                                                                                                                  \
    BIN1(op, T, W, tag, b == 0 ? (*bad |= TRN_EW_DIV0, 0) : op##1_##tag(a, b))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits"
TRN_EACH_INT(TDIV, tdiv)
TRN_EACH_INT(TMOD, tmod)
TRN_EACH_INT(FDIV_INT, fdiv)
TRN_EACH_INT(FMOD_INT, fmodu)
#pragma GCC diagnostic pop
BIN_FC(divide, a / b)
OP(divide, 0, TRN_TAB_INT(tdiv), TRN_TAB_FLOAT(divide), TRN_TAB_COMPLEX(divide))

BIN1(truncdiv, float, , f32, truncf(a / b))
BIN1(truncdiv, double, , f64, trunc(a / b))
OP(truncdiv, 0, TRN_TAB_INT(tdiv), TRN_TAB_FLOAT(truncdiv))
BIN(fdiv, float, , f32, floorf(a / b))
BIN(fdiv, double, , f64, floor(a / b))
/* The quotient is rounded to half first, as TensorFlow does: floor would show the difference. */
#define FDIV_HALF(T, tag, to, from)                                                                                    \
    static void fdiv_##tag(ARGS)                                                                                       \
    {                                                                                                                  \
        T *y = yy;                                                                                                     \
        const T *a = aa, *b = bb;                                                                                      \
        (void)bad, (void)p;                                                                                            \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = from(floorf(to(from(to(a[i * sa]) / to(b[i * sb])))));                                              \
    }
FDIV_HALF(trn_half, f16, trn_half_to_f32, trn_half_from_f32)
FDIV_HALF(trn_bf16, bf16, trn_bf16_to_f32, trn_bf16_from_f32)
OP(fdiv, 0, TRN_TAB_INT(fdiv), TRN_TAB_FLOAT(fdiv), [TRN_HALF] = fdiv_f16, [TRN_BFLOAT16] = fdiv_bf16)
BIN1(tmod, float, , f32, fmodf(a, b))
BIN1(tmod, double, , f64, fmod(a, b))
OP(tmod, 1, TRN_TAB_INT(tmod), TRN_TAB_FLOAT(tmod))
static inline float fmodu1_f32(float a, float b)
{
    float r = fmodf(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
static inline double fmodu1_f64(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
BIN1(fmodu, float, , f32, fmodu1_f32(a, b))
BIN1(fmodu, double, , f64, fmodu1_f64(a, b))
OP(fmodu, 1, TRN_TAB_INT(fmodu), TRN_TAB_FLOAT(fmodu))

BIN_FC(divnonan, b == 0 ? 0 : a / b)
OP(divnonan, 0, TRN_TAB_FLOAT(divnonan), TRN_TAB_COMPLEX(divnonan))
BIN_FC(mulnonan, b == 0 ? 0 : a *b)
OP(mulnonan, 0, TRN_TAB_FLOAT(mulnonan), TRN_TAB_COMPLEX(mulnonan))
BIN_FC(xdivy, a == 0 ? 0 : a / b)
OP(xdivy, 0, TRN_TAB_FLOAT(xdivy), TRN_TAB_COMPLEX(xdivy))
/* Of half and bfloat16 the logarithm is rounded before it is multiplied, as in TensorFlow. */
#define XLOG_HALF(op, tag, log_)                                                                                    \
    static inline uint16_t op##_of_##tag(uint16_t a, uint16_t b)                                                       \
    {                                                                                                                  \
        float x = trn_##tag##_to_f32((trn_##tag){a}), l = trn_##tag##_to_f32(trn_##tag##_from_f32(log_(trn_##tag##_to_f32((trn_##tag){b})))); \
        return x == 0 ? 0 : trn_##tag##_from_f32(x * l).bits;                                                          \
    }                                                                                                                  \
    BIN1(op, uint16_t, , tag, op##_of_##tag(a, b))
XLOG_HALF(xlogy, half, logf)
XLOG_HALF(xlogy, bf16, logf)
XLOG_HALF(xlog1py, half, log1pf)
XLOG_HALF(xlog1py, bf16, log1pf)
#define TAB_HALF(op) [TRN_HALF] = op##_half, [TRN_BFLOAT16] = op##_bf16

BIN1(xlogy, float, , f32, a == 0 ? 0 : a *logf(b))
BIN1(xlogy, double, , f64, a == 0 ? 0 : a *log(b))
BIN1(xlogy, float _Complex, , c64, a == 0 ? 0 : a *clogf(b))
BIN1(xlogy, double _Complex, , c128, a == 0 ? 0 : a *clog(b))
OP(xlogy, 1, TAB_HALF(xlogy), TRN_TAB_FLOAT(xlogy), TRN_TAB_COMPLEX(xlogy))
BIN1(xlog1py, float, , f32, a == 0 ? 0 : a *log1pf(b))
BIN1(xlog1py, double, , f64, a == 0 ? 0 : a *log1p(b))
BIN1(xlog1py, float _Complex, , c64, a == 0 ? 0 : a *trn_log1p_c64(b))
BIN1(xlog1py, double _Complex, , c128, a == 0 ? 0 : a *trn_log1p_c128(b))
OP(xlog1py, 1, TAB_HALF(xlog1py), TRN_TAB_FLOAT(xlog1py), TRN_TAB_COMPLEX(xlog1py))

#define SQD(op, T, W, tag, ...) BIN(op, T, W, tag, ((W)a - (W)b) * ((W)a - (W)b))
SQD(sqdiff, int32_t, uint32_t, i32)
SQD(sqdiff, int64_t, uint64_t, i64)
BIN(sqdiff, float, , f32, (a - b) * (a - b))
BIN(sqdiff, double, , f64, (a - b) * (a - b))
BIN1(sqdiff, float _Complex, , c64, (a - b) * conjf(a - b))
BIN1(sqdiff, double _Complex, , c128, (a - b) * conj(a - b))
OP(sqdiff, 0, TRN_TAB_FLOAT(sqdiff), TRN_TAB_COMPLEX(sqdiff), [TRN_INT32] = sqdiff_i32, [TRN_INT64] = sqdiff_i64)

/* ---- larger, smaller, powers ------------------------------------------------------------------------------------- */

/* NaN wins, from whichever side. */
#define MAXF(T, tag) BIN(maxi, T, , tag, a > b || a != a ? a : b)
#define MINF(T, tag) BIN(mini, T, , tag, a < b || a != a ? a : b)
#define MAXI(op, T, W, tag, ...) BIN(op, T, W, tag, a > b ? a : b)
#define MINI(op, T, W, tag, ...) BIN(op, T, W, tag, a < b ? a : b)
MAXF(float, f32)
MAXF(double, f64)
MINF(float, f32)
MINF(double, f64)
TRN_EACH_INT(MAXI, maxi)
TRN_EACH_INT(MINI, mini)
OP(maxi, 0, TRN_TAB_INT(maxi), TRN_TAB_FLOAT(maxi))
OP(mini, 0, TRN_TAB_INT(mini), TRN_TAB_FLOAT(mini))

/* By squaring, wrapping. */
static inline uint64_t ipow(uint64_t a, uint64_t b)
{
    uint64_t r = 1;
    for (; b; b >>= 1, a *= a)
        if (b & 1)
            r *= a;
    return r;
}
#define POWI(T, tag) BIN1(power, T, , tag, b < 0 ? (*bad |= TRN_EW_NEGPOW, 0) : (T)ipow((uint64_t)a, (uint64_t)b))
POWI(int8_t, i8)
POWI(int16_t, i16)
POWI(int32_t, i32)
POWI(int64_t, i64)
BIN1(power, float, , f32, powf(a, b))
BIN1(power, double, , f64, pow(a, b))
BIN1(power, float _Complex, , c64, cpowf(a, b))
BIN1(power, double _Complex, , c128, cpow(a, b))
OP(power, 1, TRN_TAB_FLOAT(power), TRN_TAB_COMPLEX(power), [TRN_INT8] = power_i8, [TRN_INT16] = power_i16, [TRN_INT32] = power_i32,
   [TRN_INT64] = power_i64)
BIN1(arctan2, float, , f32, atan2f(a, b))
BIN1(arctan2, double, , f64, atan2(a, b))
OP(arctan2, 1, TRN_TAB_FLOAT(arctan2))
BIN1(nextaft, float, , f32, nextafterf(a, b))
BIN1(nextaft, double, , f64, nextafter(a, b))
OP(nextaft, 1, TRN_TAB_FLOAT(nextaft))

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

#define AND(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a & (W)b)
#define OR(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a | (W)b)
#define XOR(op, T, W, tag, ...) BIN(op, T, W, tag, (W)a ^ (W)b)
TRN_EACH_INT(AND, bitand_)
TRN_EACH_INT(OR, bitor_)
TRN_EACH_INT(XOR, bitxor_)
OP(bitand_, 0, TRN_TAB_INT(bitand_))
OP(bitor_, 0, TRN_TAB_INT(bitor_))
OP(bitxor_, 0, TRN_TAB_INT(bitxor_))
/* A shift by too much or by a negative count is clamped to [0, bits - 1]. */
#define BITS(T) ((T)(sizeof(T) * 8 - 1))
#define CLAMP(T) (b > BITS(T) ? BITS(T) : b < 1 ? 0 : b)
#define SHL(op, T, W, tag, ...) BIN1(op, T, W, tag, (W)a << CLAMP(T))
#define SHR(op, T, W, tag, ...) BIN1(op, T, W, tag, a >> CLAMP(T))
TRN_EACH_INT(SHL, shl)
TRN_EACH_INT(SHR, shr)
OP(shl, 0, TRN_TAB_INT(shl))
OP(shr, 0, TRN_TAB_INT(shr))

/* ---- two parts to one complex number ------------------------------------------------------------------------------- */

static void make_complex_f32(ARGS)
{
    LOOPS(float, float _Complex, CMPLXF(a, b))
}
static void make_complex_f64(ARGS)
{
    LOOPS(double, double _Complex, CMPLX(a, b))
}
static const trn_binary b_complex = {.f = {TRN_TAB_FLOAT(make_complex)}};
static trn_err k_complex(trn_kctx *k)
{
    trn_dtype to = trn_attr_type(k->node, "Tout"), want = trn_in(k, 0)->dtype == TRN_FLOAT ? TRN_COMPLEX64 : TRN_COMPLEX128;
    TRN_CHECK_ARG(to == want, "Tout is %s, parts of type %s make %s", trn_dtype_name(to), trn_dtype_name(trn_in(k, 0)->dtype), trn_dtype_name(want));
    return trn_ew_binary_to(k, &b_complex, to);
}

/* ---- accumulating -------------------------------------------------------------------------------------------------------- */

static const trn_binary *const accums[] = {
    [TRN_ACC_ADD] = &b_add, [TRN_ACC_SUB] = &b_sub, [TRN_ACC_MUL] = &b_mul, [TRN_ACC_MAX] = &b_maxi, [TRN_ACC_MIN] = &b_mini};

bool trn_accum_has(trn_accum_op op, trn_dtype t) { return t != TRN_STRING && (trn_is_half(t) || accums[op]->f[t]); }

void trn_accum(trn_accum_op op, trn_dtype t, void *y, const void *x, int64_t n)
{
    int bad;
    if (!trn_is_half(t)) {
        accums[op]->f[t](y, y, x, n, 1, 1, &bad, 0);
        return;
    }
    float a[256], b[256];
    for (int64_t i = 0; i < n; i += 256) {
        int64_t m = TRN_MIN((int64_t)256, n - i);
        trn_widen(a, (uint16_t *)y + i, t, m);
        trn_widen(b, (const uint16_t *)x + i, t, m);
        accums[op]->f[TRN_FLOAT](a, a, b, m, 1, 1, &bad, 0);
        trn_narrow((uint16_t *)y + i, a, t, m);
    }
}

/* ---- sums of many ---------------------------------------------------------------------------------------------------- */

typedef struct addn_job {
    trn_kctx *k;
    trn_binary_fn add;
    trn_tensor *y;
    size_t size;
} addn_job;

static void addn_part(void *arg, int64_t lo, int64_t hi)
{
    addn_job *j = arg;
    trn_kctx *k = j->k;
    enum { STEP = 4096 }; /* elements that stay in cache while all inputs are added */
    int bad;
    if (trn_is_half(j->y->dtype)) { /* one rounding at the end */
        float sum[512], x[512];
        for (int64_t i = lo; i < hi; i += 512) {
            int64_t n = TRN_MIN((int64_t)512, hi - i);
            trn_widen(sum, TRN_DATA(trn_in(k, 0), uint16_t) + i, j->y->dtype, n);
            for (int t = 1; t < k->n_in; t++) {
                trn_widen(x, TRN_DATA(trn_in(k, t), uint16_t) + i, j->y->dtype, n);
                j->add(sum, sum, x, n, 1, 1, &bad, 0);
            }
            trn_narrow(TRN_DATA_MUT(j->y, uint16_t) + i, sum, j->y->dtype, n);
        }
        return;
    }
    for (int64_t i = lo; i < hi; i += STEP) {
        int64_t n = TRN_MIN((int64_t)STEP, hi - i);
        size_t at = (size_t)i * j->size;
        char *y = (char *)j->y->data + at;
        j->add(y, (char *)trn_in(k, 0)->data + at, (char *)trn_in(k, 1)->data + at, n, 1, 1, &bad, 0);
        for (int t = 2; t < k->n_in; t++)
            j->add(y, y, (char *)trn_in(k, t)->data + at, n, 1, 1, &bad, 0);
    }
}

static trn_err addn_variants(trn_kctx *k)
{
    trn_tensor *sum = trn_tensor_ref(trn_in(k, 0));
    for (int i = 1; i < k->n_in; i++) {
        trn_tensor *next;
        trn_err err = trn_tensor_sum(&next, sum, trn_in(k, i));
        trn_tensor_unref(sum);
        if (err)
            return err;
        sum = next;
    }
    trn_out_set(k, 0, sum);
    return TRN_OK;
}

static trn_err k_addn(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    for (int i = 1; i < k->n_in; i++)
        if (!trn_shape_eq(&x->shape, &trn_in(k, i)->shape)) {
            char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
            return TRN_BAD("Inputs to operation %s must have the same size and shape.  Input 0: %s != input %d: %s", k->node->op,
                           trn_shape_text(a, &x->shape), i, trn_shape_text(b, &trn_in(k, i)->shape));
        }
    if (k->n_in == 1) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    if (x->dtype == TRN_VARIANT)
        return addn_variants(k);
    addn_job j = {.k = k, .add = b_add.f[trn_is_half(x->dtype) ? TRN_FLOAT : x->dtype], .size = trn_dtype_size(x->dtype)};
    /* Input 0 or 1 may become the result: both are read before y is first written. */
    TRN_TRY(trn_out_like(&j.y, k, 0, trn_tensor_sole(x) ? 0 : 1));
    int64_t grain = trn_grain(TRN_MAX((int64_t)65536 / k->n_in, (int64_t)4096));
    if (j.y->count < 2 * grain)
        addn_part(&j, 0, j.y->count);
    else
        trn_k_for(k, j.y->count, grain, addn_part, &j);
    return TRN_OK;
}

#define B2(set) "x:T, y:T -> z:T; T:" set

const trn_op trn_ops_math_binary[] = {
    {"Add", B2("float|i8|i16|i32|i64|u8|c64|c128|str"), trn_sh_bcast, k_add, 0},
    {"AddV2", B2("num"), trn_sh_bcast, k_add, 0},
    {"Sub", B2("num"), trn_sh_bcast, k_sub, 0},
    {"Mul", B2("num"), trn_sh_bcast, k_mul, 0},
    {"MulNoNan", B2("float|c64|c128"), trn_sh_bcast, k_mulnonan, 0},
    {"Div", B2("num"), trn_sh_bcast, k_divide, 0},
    {"RealDiv", B2("num"), trn_sh_bcast, k_divide, 0},
    {"TruncateDiv", B2("real"), trn_sh_bcast, k_truncdiv, 0},
    {"FloorDiv", B2("real"), trn_sh_bcast, k_fdiv, 0},
    {"FloorMod", B2("real"), trn_sh_bcast, k_fmodu, 0},
    {"Mod", B2("float|i32|i64"), trn_sh_bcast, k_tmod, 0},
    {"TruncateMod", B2("float|i32|i64"), trn_sh_bcast, k_tmod, 0},
    {"DivNoNan", B2("float|c64|c128"), trn_sh_bcast, k_divnonan, 0},
    {"Xdivy", B2("float|c64|c128"), trn_sh_bcast, k_xdivy, 0},
    {"Xlogy", B2("float|c64|c128"), trn_sh_bcast, k_xlogy, 0},
    {"Xlog1py", B2("float|c64|c128"), trn_sh_bcast, k_xlog1py, 0},
    {"SquaredDifference", B2("float|i32|i64|c64|c128"), trn_sh_bcast, k_sqdiff, 0},
    {"Maximum", B2("real"), trn_sh_bcast, k_maxi, 0},
    {"Minimum", B2("real"), trn_sh_bcast, k_mini, 0},
    {"Pow", B2("float|i8|i16|i32|i64|c64|c128"), trn_sh_bcast, k_power, 0},
    {"Atan2", "y:T, x:T -> z:T; T:float", trn_sh_bcast, k_arctan2, 0},
    {"NextAfter", "x1:T, x2:T -> output:T; T:f32|f64=f32", trn_sh_bcast, k_nextaft, 0},
    {"BitwiseAnd", B2("int"), trn_sh_bcast, k_bitand_, 0},
    {"BitwiseOr", B2("int"), trn_sh_bcast, k_bitor_, 0},
    {"BitwiseXor", B2("int"), trn_sh_bcast, k_bitxor_, 0},
    {"LeftShift", B2("int"), trn_sh_bcast, k_shl, 0},
    {"RightShift", B2("int"), trn_sh_bcast, k_shr, 0},
    {"Complex", "real:T, imag:T -> out:Tout; T:f32|f64=f32, Tout:c64|c128=c64", trn_sh_bcast, k_complex, 0},
    {"AddN", "inputs:N*T -> sum:T; N:int>=1, T:num|var", trn_sh_merge, k_addn, 0},
    {"AccumulateNV2", "inputs:N*T -> sum:T; N:int>=1, T:num, shape:shape", trn_sh_merge, k_addn, 0},
    {0},
};
