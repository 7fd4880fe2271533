/* Float functions as straight-line code, so that loops over them vectorise; libm's are calls. All within 2 ulp.
 *
 * exp: x = n·ln 2 + r with |r| <= ln 2 / 2, e^r by polynomial, 2^n through the exponent bits in two halves so that denormals and overflow
 * come out right. expm1 keeps e^r - 1 apart from 2^n, so nothing cancels. log: fdlibm's s = f/(2+f) series on [sqrt(1/2), sqrt 2).
 */
#ifndef TRN_OPS_VMATH_H
#define TRN_OPS_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float trn_v_bits_f(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t trn_v_f_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* c ? a : b by masks: gcc follows a clamp as a branch of its own to the end of the function, and the loop is scalar then. */
static inline float trn_v_pick(int c, float a, float b)
{
    uint32_t m = 0u - (uint32_t)(c != 0);
    return trn_v_bits_f((trn_v_f_bits(a) & m) | (trn_v_f_bits(b) & ~m));
}

#define TRN_V_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low bits */

/* e^r - 1 for |r| <= 0.35 */
static inline float trn_v_em1_poly(float r)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r;
}

static inline float trn_v_expf(float x)
{
    float c = trn_v_pick(x > 89.0f, 89.0f, x);
    c = trn_v_pick(c < -105.0f, -105.0f, c);
    float t = c * 1.44269504088896341f + TRN_V_MAGIC;
    float n = t - TRN_V_MAGIC;
    int32_t k = (int32_t)(trn_v_f_bits(t) - trn_v_f_bits(TRN_V_MAGIC));
    float r = c - n * 0.693359375f + n * 2.12194440e-4f;
    float p = trn_v_em1_poly(r) + 1.0f;
    int32_t h = k >> 1;
    return p * trn_v_bits_f((uint32_t)(h + 127) << 23) * trn_v_bits_f((uint32_t)(k - h + 127) << 23);
}

static inline float trn_v_expm1f(float x)
{
    float c = trn_v_pick(x > 88.7228f, 88.7228f, x);
    c = trn_v_pick(c < -18.0f, -18.0f, c);
    float t = c * 1.44269504088896341f + TRN_V_MAGIC;
    float n = t - TRN_V_MAGIC;
    int32_t k = (int32_t)(trn_v_f_bits(t) - trn_v_f_bits(TRN_V_MAGIC));
    float r = c - n * 0.693359375f + n * 2.12194440e-4f;
    float s = trn_v_bits_f((uint32_t)(k + 126) << 23); /* 2^(k-1): 2^128 would overflow */
    float y = (trn_v_em1_poly(r) * s + (s - 0.5f)) * 2.0f;
    y = trn_v_pick(x > 88.7228f, INFINITY, y);
    return trn_v_pick(x * x < 1e-18f, x, y);
}

static inline float trn_v_tanhf(float x)
{
    float c = trn_v_pick(x > 10.0f, 10.0f, x);
    c = trn_v_pick(c < -10.0f, -10.0f, c);
    float e = trn_v_expm1f(2.0f * c);
    return e / (e + 2.0f);
}

static inline float trn_v_sigmoidf(float x)
{
    return 1.0f / (1.0f + trn_v_expf(-x));
}

static inline float trn_v_logf(float x)
{
    uint32_t tiny = x < 1.17549435e-38f;
    float y = tiny ? x * 8388608.0f : x;
    uint32_t u = trn_v_f_bits(y);
    uint32_t m = u + (0x3f800000 - 0x3f3504f3);
    int32_t e = (int32_t)(m >> 23) - 127 - (tiny ? 23 : 0);
    float f = trn_v_bits_f((m & 0x007fffff) + 0x3f3504f3) - 1.0f;
    float k = (float)e;
    float s = f / (2.0f + f), z = s * s, w = z * z;
    float rr = z * (0.66666662693f + w * 0.28498786688f) + w * (0.40000972152f + w * 0.24279078841f);
    float hf = 0.5f * f * f;
    float r = s * (hf + rr) + k * 9.0580006145e-06f - hf + f + k * 6.9313812256e-01f;
    r = x == 0.0f ? -INFINITY : r;
    r = x < 0.0f ? NAN : r;
    return x < INFINITY ? r : x; /* inf and NaN are their own log */
}

static inline float trn_v_log1pf(float x)
{
    float u = 1.0f + x;
    float r = trn_v_logf(u) + (x - (u - 1.0f)) / u;
    r = x == -1.0f ? -INFINITY : r;
    return x < INFINITY && x != 0.0f ? r : x;
}

static inline float trn_v_softplusf(float x)
{
    float a = x < 0 ? x : -x; /* -|x| */
    return (x > 0 ? x : 0.0f) + (x == x ? trn_v_log1pf(trn_v_expf(a)) : x);
}

#endif
