/* Element-wise functions of one tensor, and the gradients that are functions of two tensors of one shape. */
#include <complex.h>
#include <math.h>
#undef I
#ifndef CMPLX /* glibc keeps it from clang */
#define CMPLX(x, y) __builtin_complex((double)(x), (double)(y))
#define CMPLXF(x, y) __builtin_complex((float)(x), (float)(y))
#endif

#include "ops/kern.h"
#include "ops/vmath.h"

/* v is the element, T its type, p the op's float attr. */
#define UN(op, T, W, tag, ...)                                                                                         \
    TRN_SIMD_##tag static void op##_##tag(void *yy, const void *xx, int64_t n, float p)                                      \
    {                                                                                                                  \
        T *y = yy;                                                                                                     \
        const T *x = xx;                                                                                               \
        (void)p;                                                                                                       \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T v = x[i];                                                                                                \
            y[i] = (T)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    }
/* Output of another type U. */
#define UNTO(op, T, U, tag, ...)                                                                                       \
    TRN_SIMD_##tag static void op##_##tag(void *yy, const void *xx, int64_t n, float p)                                      \
    {                                                                                                                  \
        U *y = yy;                                                                                                     \
        const T *x = xx;                                                                                               \
        (void)p;                                                                                                       \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T v = x[i];                                                                                                \
            y[i] = (U)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    }
#define UN_SIGNED(op, ...)                                                                                             \
    UN(op, int8_t, uint32_t, i8, __VA_ARGS__)                                                                          \
    UN(op, int16_t, uint32_t, i16, __VA_ARGS__)                                                                        \
    UN(op, int32_t, uint32_t, i32, __VA_ARGS__)                                                                        \
    UN(op, int64_t, uint64_t, i64, __VA_ARGS__)
#define TAB_SIGNED(op) [TRN_INT8] = op##_i8, [TRN_INT16] = op##_i16, [TRN_INT32] = op##_i32, [TRN_INT64] = op##_i64
#define UN_F(op, e32, e64) UN(op, float, float, f32, e32) UN(op, double, double, f64, e64)
#define UN_C(op, e64, e128) UN(op, float _Complex, , c64, e64) UN(op, double _Complex, , c128, e128)
/* Kernel + table for float and complex. */
#define FLT(op, c)                                                                                                     \
    static const trn_unary u_##op = {.f = {TRN_TAB_FLOAT(op)}, .cost = c};                                             \
    TRN_UNARY_KERNEL(k_##op, u_##op)
#define FLTC(op, c)                                                                                                    \
    static const trn_unary u_##op = {.f = {TRN_TAB_FLOAT(op), TRN_TAB_COMPLEX(op)}, .cost = c};                        \
    TRN_UNARY_KERNEL(k_##op, u_##op)

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

UN_F(neg, -v, -v)
UN_C(neg, -v, -v)
#define NEG(op, T, W, tag, ...) UN(op, T, W, tag, (W)0 - (W)v)
NEG(neg, int8_t, uint32_t, i8)
NEG(neg, int16_t, uint32_t, i16)
NEG(neg, int32_t, uint32_t, i32)
NEG(neg, int64_t, uint64_t, i64)
static const trn_unary u_neg = {.f = {TRN_TAB_FLOAT(neg), TRN_TAB_COMPLEX(neg), TAB_SIGNED(neg)}};
TRN_UNARY_KERNEL(k_neg, u_neg)

UN_F(abs, fabsf(v), fabs(v))
#define ABS(T, W, tag) UN(abs, T, W, tag, v < 0 ? (W)0 - (W)v : (W)v)
ABS(int8_t, uint32_t, i8)
ABS(int16_t, uint32_t, i16)
ABS(int32_t, uint32_t, i32)
ABS(int64_t, uint64_t, i64)
static const trn_unary u_abs = {.f = {TRN_TAB_FLOAT(abs), TAB_SIGNED(abs)}};
TRN_UNARY_KERNEL(k_abs, u_abs)

UN_F(sign, v != v ? v : (float)((v > 0) - (v < 0)), v != v ? v : (double)((v > 0) - (v < 0)))
UN_C(sign, v == 0 ? 0 : v / cabsf(v), v == 0 ? 0 : v / cabs(v))
UN_SIGNED(sign, (v > 0) - (v < 0))
static const trn_unary u_sign = {.f = {TRN_TAB_FLOAT(sign), TRN_TAB_COMPLEX(sign), TAB_SIGNED(sign)}};
TRN_UNARY_KERNEL(k_sign, u_sign)

UN_F(square, v *v, v *v)
UN_C(square, v *v, v *v)
#define SQUARE(op, T, W, tag, ...) UN(op, T, W, tag, (W)v * (W)v)
TRN_EACH_INT(SQUARE, square)
static const trn_unary u_square = {.f = {TRN_TAB_FLOAT(square), TRN_TAB_COMPLEX(square), TRN_TAB_INT(square)}};
TRN_UNARY_KERNEL(k_square, u_square)

UN_F(sqrt, sqrtf(v), sqrt(v))
UN_C(sqrt, csqrtf(v), csqrt(v))
FLTC(sqrt, 0)
UN_F(rsqrt, 1.0f / sqrtf(v), 1.0 / sqrt(v))
UN_C(rsqrt, 1.0f / csqrtf(v), 1.0 / csqrt(v))
FLTC(rsqrt, 0)
UN_F(inv, 1.0f / v, 1.0 / v)
UN_C(inv, 1.0f / v, 1.0 / v)
FLTC(inv, 0)

UN_F(floor, floorf(v), floor(v))
FLT(floor, 0)
UN_F(ceil, ceilf(v), ceil(v))
FLT(ceil, 0)
UN_F(rint, rintf(v), rint(v)) /* the default rounding mode: half to even, which is also what Round does */
UN(rint, int32_t, , i32, v)
UN(rint, int64_t, , i64, v)
static const trn_unary u_rint = {.f = {TRN_TAB_FLOAT(rint), [TRN_INT32] = rint_i32, [TRN_INT64] = rint_i64}};
TRN_UNARY_KERNEL(k_rint, u_rint)

#define INVERT(op, T, W, tag, ...) UN(op, T, W, tag, ~(W)v)
TRN_EACH_INT(INVERT, invert)
static const trn_unary u_invert = {.f = {TRN_TAB_INT(invert)}};
TRN_UNARY_KERNEL(k_invert, u_invert)

UN(lnot, uint8_t, , u8, !v)
static const trn_unary u_lnot = {.f = {[TRN_BOOL] = lnot_u8}};
TRN_UNARY_KERNEL(k_lnot, u_lnot)

/* ---- exponentials and their kin ---------------------------------------------------------------------------------- */

static inline float _Complex expm1_c64(float _Complex v)
{
    /* e^(a+bi) - 1 = (e^a - 1) cos b - 2 sin²(b/2) + i e^a sin b */
    float a = crealf(v), b = cimagf(v), s = sinf(b * 0.5f);
    return CMPLXF(expm1f(a) * cosf(b) - 2 * s * s, expf(a) * sinf(b));
}
static inline double _Complex expm1_c128(double _Complex v)
{
    double a = creal(v), b = cimag(v), s = sin(b * 0.5);
    return CMPLX(expm1(a) * cos(b) - 2 * s * s, exp(a) * sin(b));
}
float _Complex trn_log1p_c64(float _Complex v)
{
    float a = crealf(v), b = cimagf(v);
    return CMPLXF(0.5f * log1pf(a * (2 + a) + b * b), atan2f(b, 1 + a));
}
double _Complex trn_log1p_c128(double _Complex v)
{
    double a = creal(v), b = cimag(v);
    return CMPLX(0.5 * log1p(a * (2 + a) + b * b), atan2(b, 1 + a));
}

UN_F(expo, trn_v_expf(v), exp(v))
UN_C(expo, cexpf(v), cexp(v))
FLTC(expo, 1)
UN_F(em1, trn_v_expm1f(v), expm1(v))
UN_C(em1, expm1_c64(v), expm1_c128(v))
FLTC(em1, 1)
UN_F(ln, trn_v_logf(v), log(v))
UN_C(ln, clogf(v), clog(v))
FLTC(ln, 1)
UN_F(ln1p, trn_v_log1pf(v), log1p(v))
UN_C(ln1p, trn_log1p_c64(v), trn_log1p_c128(v))
FLTC(ln1p, 1)
UN_F(sine, sinf(v), sin(v))
UN_C(sine, csinf(v), csin(v))
FLTC(sine, 1)
UN_F(cosine, cosf(v), cos(v))
UN_C(cosine, ccosf(v), ccos(v))
FLTC(cosine, 1)
UN_F(tangent, tanf(v), tan(v))
UN_C(tangent, ctanf(v), ctan(v))
FLTC(tangent, 1)
UN_F(tanhyp, trn_v_tanhf(v), tanh(v))
UN_C(tanhyp, ctanhf(v), ctanh(v))
FLTC(tanhyp, 1)
UN_F(sigmoid, trn_v_sigmoidf(v), 1.0 / (1.0 + exp(-v)))
UN_C(sigmoid, 1.0f / (1.0f + cexpf(-v)), 1.0 / (1.0 + cexp(-v)))
FLTC(sigmoid, 1)
UN_F(arcsin, asinf(v), asin(v))
UN_C(arcsin, casinf(v), casin(v))
FLTC(arcsin, 1)
UN_F(arccos, acosf(v), acos(v))
UN_C(arccos, cacosf(v), cacos(v))
FLTC(arccos, 1)
UN_F(arctan, atanf(v), atan(v))
UN_C(arctan, catanf(v), catan(v))
FLTC(arctan, 1)
UN_F(arcsinh, asinhf(v), asinh(v))
UN_C(arcsinh, casinhf(v), casinh(v))
FLTC(arcsinh, 1)
UN_F(arccosh, acoshf(v), acosh(v))
UN_C(arccosh, cacoshf(v), cacosh(v))
FLTC(arccosh, 1)
UN_F(arctanh, atanhf(v), atanh(v))
UN_C(arctanh, catanhf(v), catanh(v))
FLTC(arctanh, 1)
UN_F(sinhyp, sinhf(v), sinh(v))
UN_C(sinhyp, csinhf(v), csinh(v))
FLTC(sinhyp, 1)
UN_F(coshyp, coshf(v), cosh(v))
UN_C(coshyp, ccoshf(v), ccosh(v))
FLTC(coshyp, 1)
UN_F(erfu, erff(v), erf(v))
FLT(erfu, 1)
UN_F(erfcu, erfcf(v), erfc(v))
FLT(erfcu, 1)

/* lgamma() writes the global signgam: use the re-entrant one. */
static inline float lgam_f(float v)
{
    int sign;
    return lgammaf_r(v, &sign);
}
static inline double lgam_d(double v)
{
    int sign;
    return lgamma_r(v, &sign);
}
UN_F(lgam, lgam_f(v), lgam_d(v))
FLT(lgam, 1)

/* Recurrence up to 10, then the asymptotic series; reflection below zero. */
static double digamma(double x)
{
    double r = 0;
    if (x <= 0) {
        if (x == floor(x))
            return NAN; /* a pole */
        r = -M_PI / tan(M_PI * x);
        x = 1 - x;
    }
    for (; x < 10; x += 1)
        r -= 1 / x;
    double z = 1 / (x * x);
    return r + log(x) - 0.5 / x -
           z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
}
UN_F(digam, (float)digamma(v), digamma(v))
FLT(digam, 1)

/* ---- activations ------------------------------------------------------------------------------------------------- */

#define SELU_SCALE 1.0507009873554804934193349852946
#define SELU_SCALE_ALPHA 1.7580993408473768599402175208123

#define RELU(op, T, W, tag, ...) UN(op, T, W, tag, v < (T)0 ? (T)0 : v)
#define RELU6(op, T, W, tag, ...) UN(op, T, W, tag, v < (T)0 ? (T)0 : v > (T)6 ? (T)6 : v)
#define RELU_U(op, T, W, tag) UN(op, T, W, tag, v)
TRN_EACH_FLOAT(RELU, relu)
RELU(relu, int8_t, , i8)
RELU(relu, int16_t, , i16)
RELU(relu, int32_t, , i32)
RELU(relu, int64_t, , i64)
RELU_U(relu, uint8_t, , u8)
RELU_U(relu, uint16_t, , u16)
RELU_U(relu, uint32_t, , u32)
RELU_U(relu, uint64_t, , u64)
static const trn_unary u_relu = {.f = {TRN_TAB_FLOAT(relu), TRN_TAB_INT(relu)}};
TRN_UNARY_KERNEL(k_relu, u_relu)
TRN_EACH_FLOAT(RELU6, relu6)
RELU6(relu6, int8_t, , i8)
RELU6(relu6, int16_t, , i16)
RELU6(relu6, int32_t, , i32)
RELU6(relu6, int64_t, , i64)
#define RELU6_U(T, tag) UN(relu6, T, , tag, v > (T)6 ? (T)6 : v)
RELU6_U(uint8_t, u8)
RELU6_U(uint16_t, u16)
RELU6_U(uint32_t, u32)
RELU6_U(uint64_t, u64)
static const trn_unary u_relu6 = {.f = {TRN_TAB_FLOAT(relu6), TRN_TAB_INT(relu6)}};
TRN_UNARY_KERNEL(k_relu6, u_relu6)

UN_F(elu, v < 0 ? trn_v_expm1f(v) : v, v < 0 ? expm1(v) : v)
FLT(elu, 1)
UN_F(selu, v < 0 ? (float)SELU_SCALE_ALPHA * trn_v_expm1f(v) : (float)SELU_SCALE * v, v < 0 ? SELU_SCALE_ALPHA * expm1(v) : SELU_SCALE *v)
FLT(selu, 1)
UN_F(leaky, v > 0 ? v : v *p, v > 0 ? v : v *(double)p)
static const trn_unary u_leaky = {.f = {TRN_TAB_FLOAT(leaky)}, .attr = "alpha"};
TRN_UNARY_KERNEL(k_leaky, u_leaky)
UN_F(softplus, trn_v_softplusf(v), (v > 0 ? v : 0.0) + log1p(exp(-fabs(v))))
FLT(softplus, 1)
UN_F(softsign, v / (1 + fabsf(v)), v / (1 + fabs(v)))
FLT(softsign, 0)

/* ---- to bool, to and from complex -------------------------------------------------------------------------------- */

UNTO(is_nan, float, uint8_t, f32, v != v)
UNTO(is_nan, double, uint8_t, f64, v != v)
UNTO(is_inf, float, uint8_t, f32, fabsf(v) == INFINITY)
UNTO(is_inf, double, uint8_t, f64, fabs(v) == (double)INFINITY)
UNTO(is_finite, float, uint8_t, f32, fabsf(v) < INFINITY)
UNTO(is_finite, double, uint8_t, f64, fabs(v) < (double)INFINITY)
static const trn_unary u_is_nan = {.f = {TRN_TAB_FLOAT(is_nan)}}, u_is_inf = {.f = {TRN_TAB_FLOAT(is_inf)}},
                       u_is_finite = {.f = {TRN_TAB_FLOAT(is_finite)}};
static trn_err k_is_nan(trn_kctx *k) { return trn_ew_unary_to(k, &u_is_nan, TRN_BOOL); }
static trn_err k_is_inf(trn_kctx *k) { return trn_ew_unary_to(k, &u_is_inf, TRN_BOOL); }
static trn_err k_is_finite(trn_kctx *k) { return trn_ew_unary_to(k, &u_is_finite, TRN_BOOL); }

UNTO(cabso, float _Complex, float, c64, cabsf(v))
UNTO(cabso, double _Complex, double, c128, cabs(v))
UNTO(re, float _Complex, float, c64, crealf(v))
UNTO(re, double _Complex, double, c128, creal(v))
UNTO(im, float _Complex, float, c64, cimagf(v))
UNTO(im, double _Complex, double, c128, cimag(v))
UNTO(angle, float _Complex, float, c64, cargf(v))
UNTO(angle, double _Complex, double, c128, carg(v))
static const trn_unary u_cabso = {.f = {TRN_TAB_COMPLEX(cabso)}}, u_re = {.f = {TRN_TAB_COMPLEX(re)}}, u_im = {.f = {TRN_TAB_COMPLEX(im)}},
                       u_angle = {.f = {TRN_TAB_COMPLEX(angle)}, .cost = 1};
static trn_err complex_part(trn_kctx *k, const trn_unary *u)
{
    trn_dtype to = trn_attr_type(k->node, "Tout"), want = trn_in(k, 0)->dtype == TRN_COMPLEX64 ? TRN_FLOAT : TRN_DOUBLE;
    TRN_CHECK_ARG(to == want, "Tout is %s, the parts of %s are %s", trn_dtype_name(to), trn_dtype_name(trn_in(k, 0)->dtype), trn_dtype_name(want));
    return trn_ew_unary_to(k, u, to);
}
static trn_err k_cabs(trn_kctx *k) { return complex_part(k, &u_cabso); }
static trn_err k_real(trn_kctx *k) { return complex_part(k, &u_re); }
static trn_err k_imag(trn_kctx *k) { return complex_part(k, &u_im); }
static trn_err k_angle(trn_kctx *k) { return complex_part(k, &u_angle); }

UN_C(conj, conjf(v), conj(v))
static const trn_unary u_conj = {.f = {TRN_TAB_COMPLEX(conj)}};

static trn_err k_conj(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    if (x->dtype != TRN_VARIANT)
        return trn_ew_unary(k, &u_conj);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_VARIANT, &x->shape));
    trn_zero_elems(y, 0, y->count);
    for (int64_t i = 0; i < x->count; i++) {
        const trn_variant *v = TRN_DATA(x, trn_variant *)[i];
        if (!v || !v->type->conj)
            return trn_errorf(TRN_UNIMPLEMENTED, "there is no conjugate of a %s", v ? v->type->name : "variant without a value");
        TRN_TRY(v->type->conj(&TRN_DATA_MUT(y, trn_variant *)[i], v));
    }
    return TRN_OK;
}

/* ---- gradients: a, b of one shape -------------------------------------------------------------------------------- */

#define BIN(op, T, tag, ...)                                                                                           \
    TRN_SIMD_##tag static void op##_##tag(void *yy, const void *aa, const void *bb, int64_t n, int sa, int sb, int *bad, float p) \
    {                                                                                                                  \
        T *y = yy;                                                                                                     \
        const T *aq = aa, *bq = bb;                                                                                    \
        (void)sa, (void)sb, (void)bad, (void)p;                                                                        \
        TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                              \
            T a = aq[i], b = bq[i];                                                                                    \
            y[i] = (T)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    }
/* Equal shapes merge to one walk of stride 1; a single element may come with stride 0, where i is 0 anyway. */
#define GRAD_KERNEL(op, nm, tab, c, at)                                                                                \
    static const trn_binary b_##op = {.f = tab, .cost = c, .attr = at};                                                \
    static trn_err nm(trn_kctx *k) { return trn_ew_binary_same(k, &b_##op); }
#define GRAD_F(op, e32, e64, c)                                                                                        \
    BIN(op, float, f32, e32)                                                                                           \
    BIN(op, double, f64, e64)                                                                                          \
    GRAD_KERNEL(op, k_##op, {TRN_TAB_FLOAT(op)}, c, NULL)
#define BRACE(...) {__VA_ARGS__}
#define GRAD_FC(op, e32, e64, e_c64, e_c128)                                                                           \
    BIN(op, float, f32, e32)                                                                                           \
    BIN(op, double, f64, e64)                                                                                          \
    BIN(op, float _Complex, c64, e_c64)                                                                                \
    BIN(op, double _Complex, c128, e_c128)                                                                             \
    GRAD_KERNEL(op, k_##op, BRACE(TRN_TAB_FLOAT(op), TRN_TAB_COMPLEX(op)), 0, NULL)

GRAD_FC(sigmoid_grad, b *a *(1 - a), b *a *(1 - a), b *a *(1 - a), b *a *(1 - a)) /* as TensorFlow: no conjugate here */
GRAD_FC(tanh_grad, b *(1 - a * a), b *(1 - a * a), b *(1 - a * a), b *(1 - a * a))
GRAD_FC(sqrt_grad, 0.5f * b / a, 0.5 * b / a, 0.5f * b / conjf(a), 0.5 * b / conj(a))
GRAD_FC(rsqrt_grad, -0.5f * b *a *a *a, -0.5 * b *a *a *a, -0.5f * b *conjf(a *a *a), -0.5 * b *conj(a *a *a))
GRAD_FC(inv_grad, -b *a *a, -b *a *a, -b *conjf(a *a), -b *conj(a *a))

#define RGRAD(op, T, W, tag, ...) BIN(op, T, tag, b > (T)0 ? a : (T)0)
#define R6GRAD(op, T, W, tag, ...) BIN(op, T, tag, b > (T)0 && b < (T)6 ? a : (T)0)
TRN_EACH_FLOAT(RGRAD, relu_grad)
TRN_EACH_INT(RGRAD, relu_grad)
GRAD_KERNEL(relu_grad, k_relu_grad, BRACE(TRN_TAB_FLOAT(relu_grad), TRN_TAB_INT(relu_grad)), 0, NULL)
TRN_EACH_FLOAT(R6GRAD, relu6_grad)
TRN_EACH_INT(R6GRAD, relu6_grad)
GRAD_KERNEL(relu6_grad, k_relu6_grad, BRACE(TRN_TAB_FLOAT(relu6_grad), TRN_TAB_INT(relu6_grad)), 0, NULL)
GRAD_F(elu_grad, b < 0 ? (b + 1) * a : a, b < 0 ? (b + 1) * a : a, 0)
GRAD_F(selu_grad, b < 0 ? a *(b + (float)SELU_SCALE_ALPHA) : a *(float)SELU_SCALE, b < 0 ? a *(b + SELU_SCALE_ALPHA) : a *SELU_SCALE, 0)
GRAD_F(softplus_grad, a *trn_v_sigmoidf(b), a / (exp(-b) + 1), 1)
GRAD_F(softsign_grad, a / ((1 + fabsf(b)) * (1 + fabsf(b))), a / ((1 + fabs(b)) * (1 + fabs(b))), 0)
BIN(leaky_grad, float, f32, b > 0 ? a : a *p)
BIN(leaky_grad, double, f64, b > 0 ? a : a *(double)p)
GRAD_KERNEL(leaky_grad, k_leaky_grad, {TRN_TAB_FLOAT(leaky_grad)}, 0, "alpha")

#define FC "x:T -> y:T; T:float|c64|c128"
#define GRAD_SIG "y:T, dy:T -> z:T; T:float|c64|c128"
#define ACT_GRAD(in) "gradients:T, " in ":T -> backprops:T; T:float"
#define CPART "input:T -> output:Tout; T:c64|c128=c64, Tout:f32|f64=f32"

static trn_err k_composition(trn_kctx *k);

const trn_op trn_ops_math_unary[] = {
    {"Neg", "x:T -> y:T; T:float|i8|i16|i32|i64|c64|c128", trn_sh_same, k_neg, 0},
    {"Abs", "x:T -> y:T; T:float|i8|i16|i32|i64", trn_sh_same, k_abs, 0},
    {"Sign", "x:T -> y:T; T:float|i8|i16|i32|i64|c64|c128", trn_sh_same, k_sign, 0},
    {"Square", "x:T -> y:T; T:num", trn_sh_same, k_square, 0},
    {"Sqrt", FC, trn_sh_same, k_sqrt, 0},
    {"Rsqrt", FC, trn_sh_same, k_rsqrt, 0},
    {"Reciprocal", FC, trn_sh_same, k_inv, 0},
    {"Inv", FC, trn_sh_same, k_inv, 0},
    {"Exp", FC, trn_sh_same, k_expo, 0},
    {"Expm1", FC, trn_sh_same, k_em1, 0},
    {"Log", FC, trn_sh_same, k_ln, 0},
    {"Log1p", FC, trn_sh_same, k_ln1p, 0},
    {"Sin", FC, trn_sh_same, k_sine, 0},
    {"Cos", FC, trn_sh_same, k_cosine, 0},
    {"Tan", FC, trn_sh_same, k_tangent, 0},
    {"Tanh", FC, trn_sh_same, k_tanhyp, 0},
    {"Sigmoid", FC, trn_sh_same, k_sigmoid, 0},
    {"Asin", FC, trn_sh_same, k_arcsin, 0},
    {"Acos", FC, trn_sh_same, k_arccos, 0},
    {"Atan", FC, trn_sh_same, k_arctan, 0},
    {"Asinh", FC, trn_sh_same, k_arcsinh, 0},
    {"Acosh", FC, trn_sh_same, k_arccosh, 0},
    {"Atanh", FC, trn_sh_same, k_arctanh, 0},
    {"Sinh", FC, trn_sh_same, k_sinhyp, 0},
    {"Cosh", FC, trn_sh_same, k_coshyp, 0},
    {"Erf", "x:T -> y:T; T:float", trn_sh_same, k_erfu, 0},
    {"Erfc", "x:T -> y:T; T:float", trn_sh_same, k_erfcu, 0},
    {"Lgamma", "x:T -> y:T; T:float", trn_sh_same, k_lgam, 0},
    {"Digamma", "x:T -> y:T; T:float", trn_sh_same, k_digam, 0},
    {"Floor", "x:T -> y:T; T:float", trn_sh_same, k_floor, 0},
    {"Ceil", "x:T -> y:T; T:float", trn_sh_same, k_ceil, 0},
    {"Round", "x:T -> y:T; T:float|i32|i64", trn_sh_same, k_rint, 0},
    {"Rint", "x:T -> y:T; T:float", trn_sh_same, k_rint, 0},
    {"IsNan", "x:T -> y:bool; T:float", trn_sh_same, k_is_nan, 0},
    {"IsInf", "x:T -> y:bool; T:float", trn_sh_same, k_is_inf, 0},
    {"IsFinite", "x:T -> y:bool; T:float", trn_sh_same, k_is_finite, 0},
    {"LogicalNot", "x:bool -> y:bool", trn_sh_same, k_lnot, 0},
    {"Invert", "x:T -> y:T; T:int", trn_sh_same, k_invert, 0},
    {"ComplexAbs", "x:T -> y:Tout; T:c64|c128=c64, Tout:f32|f64=f32", trn_sh_same, k_cabs, 0},
    {"Real", CPART, trn_sh_same, k_real, 0},
    {"Imag", CPART, trn_sh_same, k_imag, 0},
    {"Angle", CPART, trn_sh_same, k_angle, 0},
    {"Conj", "input:T -> output:T; T:c64|c128|var=c64", trn_sh_same, k_conj, 0},
    {"Relu", "features:T -> activations:T; T:real", trn_sh_same, k_relu, 0},
    {"Relu6", "features:T -> activations:T; T:real", trn_sh_same, k_relu6, 0},
    {"Elu", "features:T -> activations:T; T:float", trn_sh_same, k_elu, 0},
    {"Selu", "features:T -> activations:T; T:float", trn_sh_same, k_selu, 0},
    {"LeakyRelu", "features:T -> activations:T; alpha:float=0.2, T:float=f32", trn_sh_same, k_leaky, 0},
    {"Softplus", "features:T -> activations:T; T:float", trn_sh_same, k_softplus, 0},
    {"Softsign", "features:T -> activations:T; T:float", trn_sh_same, k_softsign, 0},
    {"ReluGrad", "gradients:T, features:T -> backprops:T; T:real", trn_sh_merge, k_relu_grad, 0},
    {"Relu6Grad", "gradients:T, features:T -> backprops:T; T:real", trn_sh_merge, k_relu6_grad, 0},
    {"EluGrad", ACT_GRAD("outputs"), trn_sh_merge, k_elu_grad, 0},
    {"SeluGrad", ACT_GRAD("outputs"), trn_sh_merge, k_selu_grad, 0},
    {"LeakyReluGrad", "gradients:T, features:T -> backprops:T; alpha:float=0.2, T:float=f32", trn_sh_merge, k_leaky_grad, 0},
    {"SoftplusGrad", ACT_GRAD("features"), trn_sh_merge, k_softplus_grad, 0},
    {"SoftsignGrad", ACT_GRAD("features"), trn_sh_merge, k_softsign_grad, 0},
    {"SigmoidGrad", GRAD_SIG, trn_sh_merge, k_sigmoid_grad, 0},
    {"TanhGrad", GRAD_SIG, trn_sh_merge, k_tanh_grad, 0},
    {"RsqrtGrad", GRAD_SIG, trn_sh_merge, k_rsqrt_grad, 0},
    {"SqrtGrad", GRAD_SIG, trn_sh_merge, k_sqrt_grad, 0},
    {"ReciprocalGrad", GRAD_SIG, trn_sh_merge, k_inv_grad, 0},
    {"InvGrad", GRAD_SIG, trn_sh_merge, k_inv_grad, 0},
    {"_UnaryOpsComposition", "x:T -> y:T; T:f16|f32|f64, op_names:list(string)", trn_sh_same, k_composition, 0},
    {0},
};

/* What TensorFlow's optimiser makes of a chain of ops, before it sends us our part of a function. */
static trn_err k_composition(trn_kctx *k)
{
    static const char *const may[] = {"Abs",   "Acos", "Acosh",      "Asin", "Asinh", "Atan",  "Atanh",   "Ceil", "Cos",  "Cosh", "Expm1",  "Exp",  "Floor", "Inv",   "Log",  "Log1p",
                                      "Neg",   "Reciprocal", "Rint", "Round", "Rsqrt", "Sigmoid", "Sin",  "Sinh", "Sqrt", "Square", "Tan",  "Tanh",  "Elu",   "Relu", "Relu6", "Selu"};
    const trn_attr *names = trn_node_attr(k->node, "op_names");
    TRN_CHECK_ARG(names && names->n > 0, "_UnaryOpsComposition has no op_names");
    trn_value x = {0};
    for (int i = 0; i < names->n; i++) {
        const char *name = names->list[i].s.p;
        bool known = false;
        for (size_t j = 0; j < TRN_COUNTOF(may) && !known; j++)
            known = !strcmp(name, may[j]);
        const trn_op *op = trn_ops_math_unary;
        while (known && op->name && strcmp(op->name, name) != 0)
            op++;
        trn_value y = {0};
        trn_kctx one = *k;
        one.in = i ? &x : k->in;
        one.out = &y;
        trn_err err = known && op->name ? op->kernel(&one) : TRN_BAD("Do not have a compute function registered for op: %.40s", name);
        trn_tensor_unref(x.t);
        x = y;
        if (err) {
            trn_tensor_unref(x.t);
            return err;
        }
    }
    trn_out_set(k, 0, x.t);
    return TRN_OK;
}
