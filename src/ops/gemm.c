/* Matrix products on one thread.
 *
 * float and double: the classic blocked scheme. Panels of B, and of A unless its rows can be read as they are, are packed so that the inner loop
 * reads in order and keeps a tile of C in registers; packing also takes care of transposes. Other types use plain loops.
 *
 * Multiply-add is fused here, as it is in TensorFlow's and oneDNN's products, where the CPU has it.
 */
#include "ops/gemm.h"

#include <complex.h>
#undef I

#include "ops/kern.h"

#ifndef __clang__
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(TRN_NO_CLONES) && \
    !defined(__clang__)
#define GEMM_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define GEMM_CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

enum { MR = 6, KC = 256, MC = 96, NC = 1024 };

typedef float vf __attribute__((vector_size(32), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(32), aligned(8), may_alias));
typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc has the other one only since 12 */
typedef int32_t vi4 __attribute__((vector_size(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi4){__VA_ARGS__})
#endif

/* to[k·w + q] = from[q·cs + k] for w columns and kc rows. */
INLINE void turn_f32(float *to, const float *from, int64_t cs, int64_t kc, int64_t w)
{
    int64_t k = 0;
    for (; k + 4 <= kc; k += 4)
        for (int64_t q = 0; q < w; q += 4) {
            const float *f = from + q * cs + k;
            vf4 a = *(const vf4 *)f, b = *(const vf4 *)(f + cs), c = *(const vf4 *)(f + 2 * cs), d = *(const vf4 *)(f + 3 * cs);
            vf4 ab0 = SHUFFLE(a, b, 0, 4, 1, 5), ab1 = SHUFFLE(a, b, 2, 6, 3, 7);
            vf4 cd0 = SHUFFLE(c, d, 0, 4, 1, 5), cd1 = SHUFFLE(c, d, 2, 6, 3, 7);
            float *t = to + k * w + q;
            *(vf4 *)t = SHUFFLE(ab0, cd0, 0, 1, 4, 5);
            *(vf4 *)(t + w) = SHUFFLE(ab0, cd0, 2, 3, 6, 7);
            *(vf4 *)(t + 2 * w) = SHUFFLE(ab1, cd1, 0, 1, 4, 5);
            *(vf4 *)(t + 3 * w) = SHUFFLE(ab1, cd1, 2, 3, 6, 7);
        }
    for (; k < kc; k++)
        for (int64_t q = 0; q < w; q++)
            to[k * w + q] = from[q * cs + k];
}
INLINE void turn_f64(double *to, const double *from, int64_t cs, int64_t kc, int64_t w)
{
    for (int64_t k = 0; k < kc; k++)
        for (int64_t q = 0; q < w; q++)
            to[k * w + q] = from[q * cs + k];
}

/* Tile of MR x NR; NR is two vectors of L. `first`: C is overwritten, not added to. */
#define GEMM(T, V, tag, L)                                                                                             \
    /* Cloned by itself: gcc lowers vector types of a function before it clones its callers. */                        \
    GEMM_CLONES static void panel_##tag(int64_t kc, const T *a, int64_t ars, int64_t acs, const T *b, T *c, int64_t ldc,\
                                        int64_t mr, int64_t nr, bool first)                                            \
    {                                                                                                                  \
        V x[MR][2];                                                                                                    \
        _Pragma("GCC unroll 6") for (int r = 0; r < MR; r++) x[r][0] = x[r][1] = (V){0};                               \
        for (int64_t k = 0; k < kc; k++, a += acs, b += 2 * L) {                                                       \
            V b0 = *(const V *)b, b1 = *(const V *)(b + L);                                                            \
            _Pragma("GCC unroll 6") for (int r = 0; r < MR; r++)                                                       \
            {                                                                                                          \
                x[r][0] += a[r * ars] * b0;                                                                            \
                x[r][1] += a[r * ars] * b1;                                                                            \
            }                                                                                                          \
        }                                                                                                              \
        if (mr == MR && nr == 2 * L) {                                                                                 \
            _Pragma("GCC unroll 6") for (int r = 0; r < MR; r++)                                                       \
            {                                                                                                          \
                V *y = (V *)(c + r * ldc), *z = (V *)(c + r * ldc + L);                                                \
                if (!first) {                                                                                          \
                    x[r][0] += *y;                                                                                     \
                    x[r][1] += *z;                                                                                     \
                }                                                                                                      \
                *y = x[r][0];                                                                                          \
                *z = x[r][1];                                                                                          \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        T t[MR * 2 * L];                                                                                               \
        _Pragma("GCC unroll 6") for (int r = 0; r < MR; r++)                                                           \
        {                                                                                                              \
            *(V *)(t + r * 2 * L) = x[r][0];                                                                           \
            *(V *)(t + r * 2 * L + L) = x[r][1];                                                                       \
        }                                                                                                              \
        for (int64_t r = 0; r < mr; r++)                                                                               \
            for (int64_t j = 0; j < nr; j++)                                                                           \
                c[r * ldc + j] = first ? t[r * 2 * L + j] : c[r * ldc + j] + t[r * 2 * L + j];                         \
    }                                                                                                                  \
    INLINE void pack_a_##tag(T *to, const T *a, int64_t rs, int64_t cs, int64_t m, int64_t kc)                         \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + MR <= m; i += MR, to += MR * kc)                                                                    \
            if (rs == 1)                                                                                               \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    memcpy(to + k * MR, a + i + k * cs, sizeof(T) * MR);                                               \
            else                                                                                                       \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    for (int64_t r = 0; r < MR; r++)                                                                   \
                        to[k * MR + r] = a[(i + r) * rs + k * cs];                                                     \
        for (int64_t k = 0; k < kc && i < m; k++)                                                                      \
            for (int64_t r = 0; r < MR; r++)                                                                           \
                to[k * MR + r] = i + r < m ? a[(i + r) * rs + k * cs] : 0;                                             \
    }                                                                                                                  \
    INLINE void pack_b_##tag(T *to, const T *b, int64_t rs, int64_t cs, int64_t kc, int64_t n)                         \
    {                                                                                                                  \
        int64_t j = 0, full = n / (2 * L) * (2 * L);                                                                   \
        /* A few rows at a time: columns of a large matrix lie on a page each. */                                      \
        for (int64_t kb = 0; cs == 1 && kb < kc; kb += 16)                                                             \
            for (j = 0; j < full; j += 2 * L)                                                                          \
                for (int64_t k = kb, end = TRN_MIN(kb + 16, kc); k < end; k++)                                         \
                    memcpy(to + j * kc + k * 2 * L, b + k * rs + j, sizeof(T) * 2 * L);                                \
        for (; j < full; j += 2 * L)                                                                                   \
            if (rs == 1)                                                                                               \
                turn_##tag(to + j * kc, b + j * cs, cs, kc, 2 * L);                                                    \
            else                                                                                                       \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    for (int64_t q = 0; q < 2 * L; q++)                                                                \
                        to[j * kc + k * 2 * L + q] = b[k * rs + (j + q) * cs];                                         \
        for (int64_t k = 0; k < kc && j < n; k++)                                                                      \
            for (int64_t q = 0; q < 2 * L; q++)                                                                        \
                to[j * kc + k * 2 * L + q] = j + q < n ? b[k * rs + (j + q) * cs] : 0;                                 \
    }                                                                                                                  \
    static void packed_##tag(const trn_gemm_args *g, T *pa, T *pb)                                                     \
    {                                                                                                                  \
        const T *a = g->a, *b = g->b;                                                                                  \
        T *c = g->c;                                                                                                   \
        for (int64_t jc = 0; jc < g->n; jc += NC)                                                                      \
            for (int64_t kk = 0; kk < g->k; kk += KC) {                                                                \
                int64_t nc = TRN_MIN((int64_t)NC, g->n - jc), kc = TRN_MIN((int64_t)KC, g->k - kk);                    \
                pack_b_##tag(pb, b + kk * g->brs + jc * g->bcs, g->brs, g->bcs, kc, nc);                               \
                for (int64_t ic = 0; ic < g->m; ic += MC) {                                                            \
                    int64_t mc = TRN_MIN((int64_t)MC, g->m - ic);                                                      \
                    const T *from = a + ic * g->ars + kk * g->acs;                                                     \
                    /* Rows that lie in order are read where they are; only a last, incomplete tile is packed. */      \
                    int64_t whole = g->acs == 1 ? mc / MR * MR : 0;                                                    \
                    pack_a_##tag(pa, from + whole * g->ars, g->ars, g->acs, mc - whole, kc);                           \
                    for (int64_t j = 0; j < nc; j += 2 * L)                                                            \
                        for (int64_t i = 0; i < mc; i += MR) {                                                         \
                            bool direct = i < whole;                                                                   \
                            panel_##tag(kc, direct ? from + i * g->ars : pa + (i - whole) * kc, direct ? g->ars : 1,   \
                                        direct ? 1 : MR, pb + j * kc, c + (ic + i) * g->ldc + jc + j, g->ldc,          \
                                        TRN_MIN((int64_t)MR, mc - i), TRN_MIN((int64_t)2 * L, nc - j), kk == 0);       \
                        }                                                                                              \
                }                                                                                                      \
            }                                                                                                          \
    }                                                                                                                  \
    static bool gemm_##tag(const trn_gemm_args *g)                                                                     \
    {                                                                                                                  \
        int64_t kc = TRN_MIN(g->k, (int64_t)KC), mc = TRN_MIN((g->m + MR - 1) / MR * MR, (int64_t)MC),                 \
                nc = TRN_MIN((g->n + 2 * L - 1) / (2 * L) * (2 * L), (int64_t)NC);                                     \
        trn_buf *buf;                                                                                                  \
        trn_err e = trn_buf_new(&buf, sizeof(T) * (size_t)(kc * (mc + nc)));                                           \
        if (e) {                                                                                                       \
            trn_err_free(e);                                                                                           \
            return false;                                                                                              \
        }                                                                                                              \
        T *pb = (T *)(void *)buf->data;                                                                                \
        packed_##tag(g, pb + kc * nc, pb);                                                                             \
        trn_buf_unref(buf);                                                                                            \
        return true;                                                                                                   \
    }
GEMM(float, vf, f32, 8)
GEMM(double, vd, f64, 4)

/* A vector times a matrix or the like: packing would cost as much as the work. */
#define DOTS(T, tag, W)                                                                                                \
    TRN_SIMD static bool plain_##tag(const trn_gemm_args *g)                                                           \
    {                                                                                                                  \
        const T *a = g->a, *b = g->b;                                                                                  \
        T *c = g->c;                                                                                                   \
        for (int64_t i = 0; i < g->m; i++) {                                                                           \
            T *row = c + i * g->ldc;                                                                                   \
            if (g->bcs == 1 && g->n > 1) {                                                                             \
                memset(row, 0, sizeof(T) * (size_t)g->n);                                                              \
                for (int64_t k = 0; k < g->k; k++) {                                                                   \
                    T v = a[i * g->ars + k * g->acs];                                                                  \
                    const T *br = b + k * g->brs;                                                                      \
                    for (int64_t j = 0; j < g->n; j++)                                                                 \
                        row[j] = (T)((W)row[j] + (W)v * (W)br[j]);                                                     \
                }                                                                                                      \
            } else {                                                                                                   \
                for (int64_t j = 0; j < g->n; j++) {                                                                   \
                    W s0 = 0, s1 = 0, s2 = 0, s3 = 0;                                                                  \
                    const T *ar = a + i * g->ars, *bc = b + j * g->bcs;                                                \
                    int64_t k = 0;                                                                                     \
                    for (; k + 4 <= g->k; k += 4) {                                                                    \
                        s0 += (W)ar[k * g->acs] * (W)bc[k * g->brs];                                                   \
                        s1 += (W)ar[(k + 1) * g->acs] * (W)bc[(k + 1) * g->brs];                                       \
                        s2 += (W)ar[(k + 2) * g->acs] * (W)bc[(k + 2) * g->brs];                                       \
                        s3 += (W)ar[(k + 3) * g->acs] * (W)bc[(k + 3) * g->brs];                                       \
                    }                                                                                                  \
                    for (; k < g->k; k++)                                                                              \
                        s0 += (W)ar[k * g->acs] * (W)bc[k * g->brs];                                                   \
                    row[j] = (T)((s0 + s1) + (s2 + s3));                                                               \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }
DOTS(float, f32, float)
DOTS(double, f64, double)
DOTS(int16_t, i16, uint32_t)
DOTS(int32_t, i32, uint32_t)
DOTS(int64_t, i64, uint64_t)

#define COMPLEX_DOTS(T, tag, conj_fn)                                                                                  \
    static bool plain_##tag(const trn_gemm_args *g)                                                                        \
    {                                                                                                                  \
        const T *a = g->a, *b = g->b;                                                                                  \
        T *c = g->c;                                                                                                   \
        for (int64_t i = 0; i < g->m; i++)                                                                             \
            for (int64_t j = 0; j < g->n; j++) {                                                                       \
                T s = 0;                                                                                               \
                for (int64_t k = 0; k < g->k; k++) {                                                                   \
                    T u = a[i * g->ars + k * g->acs], v = b[k * g->brs + j * g->bcs];                                  \
                    s += (g->conj_a ? conj_fn(u) : u) * (g->conj_b ? conj_fn(v) : v);                                  \
                }                                                                                                      \
                c[i * g->ldc + j] = s;                                                                                 \
            }                                                                                                          \
        return true;                                                                                                   \
    }
COMPLEX_DOTS(float _Complex, c64, conjf)
COMPLEX_DOTS(double _Complex, c128, conj)

bool trn_gemm(trn_dtype t, const trn_gemm_args *g)
{
    bool small = g->m == 1 || g->n == 1 || g->m * g->n * g->k < 2048; /* no overflow: all three fit memory */
    switch (t) {
    case TRN_FLOAT: return small ? plain_f32(g) : gemm_f32(g);
    case TRN_DOUBLE: return small ? plain_f64(g) : gemm_f64(g);
    case TRN_INT16: return plain_i16(g);
    case TRN_INT32: return plain_i32(g);
    case TRN_INT64: return plain_i64(g);
    case TRN_COMPLEX64: return plain_c64(g);
    default: return plain_c128(g);
    }
}
