/* Matrix products on one thread.
 *
 * float and double: the classic blocked scheme. Panels of B, and of A unless its rows can be read as they are, are packed so that the inner loop
 * reads in order and keeps a tile of C in registers; packing also takes care of transposes. The first tile that needs a panel of B packs it while it
 * multiplies. With few rows packing B would cost more than it saves, so B is read where it is. Other types use plain loops.
 *
 * The same text is compiled for several kinds of CPU, each with the largest tile its registers hold; the first product chooses. Multiply-add is
 * fused, as it is in TensorFlow's and oneDNN's products, where the CPU has it.
 */
#include "ops/gemm.h"

#include <complex.h>
#undef I

#include "ops/kern.h"

#ifndef __clang__
#pragma GCC optimize("fp-contract=fast")
#endif

#define INLINE static inline __attribute__((always_inline))
#if TRN_ASAN || TRN_TSAN
#define UNROLL /* a sanitizer's checks in every copy take a minute to compile, and nobody waits for the product's speed there */
#else
#define UNROLL _Pragma("GCC unroll 12")
#endif

enum { L1_BYTES = 32 << 10, PANEL_BYTES = 20 << 10, FEW_BYTES = 16 << 10, KC = 320, MC = 96, NC = 512, STREAM_FROM = 2 << 20, ALONG_LEAST = 128 };

/* How much of k is taken at once: equal parts, none of them a small rest, and a panel of B (`wide` bytes for each of k) leaves a third of the first cache to A and C. What is
 * written past the cache is written once. */
static int64_t depth(const trn_gemm_args *g, int64_t wide, int64_t size)
{
    bool once = g->stream && g->k <= KC && g->m * g->n * size >= STREAM_FROM;
    int64_t most = once ? KC : TRN_MIN((int64_t)KC, PANEL_BYTES / wide), parts = (g->k + most - 1) / most;
    return ((g->k + parts - 1) / parts + 3) / 4 * 4;
}

/* How the factors are read: where they lie, or packed. */
typedef struct layout {
    bool direct;     /* B's columns, but for those of a last, incomplete tile */
    bool rows, cols; /* A's, likewise */
} layout;
static layout layout_of(const trn_gemm_args *g, int64_t size, int64_t mr, int64_t kc)
{
    bool thin = g->m <= 2 * mr && g->bcs == 1;         /* B would be packed to be read once or twice */
    bool small = g->bcs == 1 && g->brs * size <= 1024; /* B is as good as packed */
    /* A's rows that lie in order, and columns close to each other. Not those that would all want the same few places of the cache. */
    bool crowd = mr > 8 && g->ars * size % 4096 == 0;
    int64_t apart = g->acs * size, places = TRN_MAX(apart & -apart, (int64_t)64);
    return (layout){.direct = thin || small,
                    .rows = !thin && g->acs == 1 && !crowd,
                    .cols = !thin && g->ars == 1 && apart < 2048 && kc * places <= L1_BYTES};
}

typedef float vf __attribute__((vector_size(32), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(32), aligned(8), may_alias));
typedef float vf16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef double vd8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double vd2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef int32_t bits4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t bits16 __attribute__((vector_size(64), aligned(4), may_alias));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define SHUFFLE16(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc has the other one only since 12 */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (bits4){__VA_ARGS__})
#define SHUFFLE16(a, b, ...) __builtin_shuffle(a, b, (bits16){__VA_ARGS__})
#endif

/* to[k·w + q] = from[q·cs + k] for w columns and kc rows. Sixteen columns at a time, four by four, and of each what lies in two cache lines: more
 * columns, a power of two apart, would push each other out of the cache. */
INLINE void turn_f32(float *to, const float *from, int64_t cs, int64_t kc, int64_t w)
{
    int64_t whole = kc / 4 * 4;
    for (int64_t qb = 0; qb < w; qb += 16)
        for (int64_t kb = 0; kb < whole; kb += 32)
            for (int64_t q = qb; q < TRN_MIN(qb + 16, w); q += 4) {
                for (int64_t i = q; i < q + 4; i++) { /* so many columns side by side are more than the CPU follows by itself */
                    __builtin_prefetch(from + i * cs + kb + 32);
                    __builtin_prefetch(from + i * cs + kb + 48);
                }
                for (int64_t k = kb; k < TRN_MIN(kb + 32, whole); k += 4) {
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
            }
    for (int64_t k = whole; k < kc; k++)
        for (int64_t q = 0; q < w; q++)
            to[k * w + q] = from[q * cs + k];
}
INLINE void turn_f64(double *to, const double *from, int64_t cs, int64_t kc, int64_t w)
{
    for (int64_t k = 0; k < kc; k++)
        for (int64_t q = 0; q < w; q++)
            to[k * w + q] = from[q * cs + k];
}

/* Where a tile finds A: packed, column after column of MR rows, or in R rows or columns as they lie (`ars` apart). Three rows share a pointer, since a processor adds one or two
 * strides to it for nothing; left alone, the compiler keeps a dozen offsets in memory instead. */
#define PACKED_AT(r, at) p[0][(r) + (at) * (stride)]
#define PACKED_STEP(n) p[0] += (n) * (stride)
#define ROWS_AT(r, at) p[(r) / 3][(r) % 3 * ars + (at)]
#define COLS_AT(r, at) p[0][(r) + (at) * ars]
#define COLS_STEP(n) p[0] += (n) * ars
#define ROWS_STEP(n)                                                                                                   \
    for (int q = 0; q < 4; q++) {                                                                                      \
        p[q] += (n);                                                                                                   \
        __asm__("" : "+r"(p[q]));                                                                                      \
    }

/* x += a·b, into the register where x is: left to itself, the compiler moves accumulators about. */
#define FMA_ANY(x, a, b) x += (a) * (b)
#define FMA_PS(x, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(x) : "v"(a), "v"(b))
#define FMA_PD(x, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+v"(x) : "v"(a), "v"(b))
/* Past the cache; what lies there is aligned to a vector. */
#define FMA_ANY_STREAM(to, x) *(to) = (x)
#define FMA_PS_STREAM(to, x) __asm__("vmovntps %1, %0" : "=m"(*(to)) : "v"(x))
#define FMA_PD_STREAM(to, x) __asm__("vmovntpd %1, %0" : "=m"(*(to)) : "v"(x))
#define ALL_2(V, s) (V){s, s}
#define ALL_4(V, s) (V){s, s, s, s}
#define ALL_8(V, s) (V){s, s, s, s, s, s, s, s}
#define ALL_16(V, s) (V){s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s}

/* And B: packed, as it lies, or as it lies and packed on the way for the tiles below: waiting for memory and multiplying go on side by side. */
#define TIGHT_STRIDE (2 * lanes)
#define TIGHT_KEEP(V, L, at)
#define LOOSE_STRIDE brs
#define LOOSE_KEEP(V, L, at)
#define TAKEN_STRIDE brs
#define TAKEN_KEEP(V, L, at)                                                                                           \
    __builtin_prefetch(b + ((at) + 32) * brs);                                                                         \
    __builtin_prefetch(b + ((at) + 32) * brs + (L));                                                                   \
    *(V *)(keep + (at) * 2 * (L)) = b0;                                                                                \
    *(V *)(keep + (at) * 2 * (L) + (L)) = b1;

/* One product of a column of A and a row of B, added to the tile. */
#define TILE_STEP(V, L, R, A, B, FMA, at)                                                                              \
    {                                                                                                                  \
        V b0 = *(const V *)(b + (at) * B##_STRIDE), b1 = *(const V *)(b + (at) * B##_STRIDE + (L));                    \
        B##_KEEP(V, L, at)                                                                                             \
        UNROLL for (int r = 0; r < (R); r++)                                                                           \
        {                                                                                                              \
            V s = ALL_##L(V, A##_AT(r, at));                                                                           \
            FMA(x[r][0], s, b0);                                                                                       \
            FMA(x[r][1], s, b1);                                                                                       \
        }                                                                                                              \
    }

#if defined(__x86_64__)
#define FENCE() __builtin_ia32_sfence() /* what went past the cache is there for other threads */
#else
#define FENCE() (void)0
#endif

/* What becomes of C: added to, overwritten, or overwritten past the cache: a large one that is not read soon would otherwise be read before it is written. */
enum { ADD, SET, STREAM };

/* Parts of a tile's MR rows. */
#define PART_WHOLE(MR) (MR)
#define PART_TWO(MR) (2 * (MR) / 3)
#define PART_THIRD(MR) ((MR) / 3)

/* A tile, or the upper PART of one, of 2·L columns of C; A: PACKED, ROWS or COLS. `ahead`: a quarter of the next panel of B, or NULL; it is fetched meanwhile. (Written out in each function:
 * gcc takes vectors larger than the caller's own target apart before it inlines.) */
#define TILE(T, V, name, L, PART, MR, FMA, TARGET, A, B)                                                               \
    TARGET static void name(int64_t kc, const T *a, int64_t ars, const T *b, int64_t brs, T *keep, T *c, int64_t ldc,  \
                            int64_t mr, int64_t nr, int how, const T *ahead)                                           \
    {                                                                                                                  \
        enum { stride = (MR), lanes = (L), R = PART_##PART(MR) };                                                      \
        (void)ars;                                                                                                     \
        (void)brs;                                                                                                     \
        (void)keep;                                                                                                    \
        const T *p[4] = {a, a + 3 * ars, a + 6 * ars, a + 9 * ars};                                                    \
        V x[R][2];                                                                                                     \
        UNROLL for (int r = 0; r < R; r++) x[r][0] = x[r][1] = (V){0};                                                 \
        for (int64_t r = 0; r < mr && how != STREAM; r++) {                                                            \
            __builtin_prefetch(c + r * ldc, 1);                                                                        \
            __builtin_prefetch(c + r * ldc + (L), 1);                                                                  \
        }                                                                                                              \
        int64_t k = kc;                                                                                                \
        for (; k >= 4; k -= 4) {                                                                                       \
            TILE_STEP(V, L, R, A, B, FMA, 0)                                                                           \
            TILE_STEP(V, L, R, A, B, FMA, 1)                                                                           \
            TILE_STEP(V, L, R, A, B, FMA, 2)                                                                           \
            TILE_STEP(V, L, R, A, B, FMA, 3)                                                                           \
            A##_STEP(4);                                                                                               \
            b += 4 * B##_STRIDE;                                                                                       \
            keep += 4 * 2 * (L);                                                                                       \
            if (ahead) {                                                                                               \
                __builtin_prefetch(ahead, 0, 2);                                                                       \
                __builtin_prefetch(ahead + (L), 0, 2);                                                                 \
                ahead += brs;                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        for (; k > 0; k--) {                                                                                           \
            TILE_STEP(V, L, R, A, B, FMA, 0)                                                                           \
            A##_STEP(1);                                                                                               \
            b += B##_STRIDE;                                                                                           \
            keep += 2 * (L);                                                                                           \
        }                                                                                                              \
        if (mr == R && nr == 2 * (L)) {                                                                                \
            UNROLL for (int r = 0; r < R; r++)                                                                         \
            {                                                                                                          \
                V *y = (V *)(c + r * ldc), *z = (V *)(c + r * ldc + (L));                                              \
                if (how == ADD) {                                                                                      \
                    x[r][0] += *y;                                                                                     \
                    x[r][1] += *z;                                                                                     \
                }                                                                                                      \
                if (how == STREAM) {                                                                                   \
                    FMA##_STREAM(y, x[r][0]);                                                                          \
                    FMA##_STREAM(z, x[r][1]);                                                                          \
                } else {                                                                                               \
                    *y = x[r][0];                                                                                      \
                    *z = x[r][1];                                                                                      \
                }                                                                                                      \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        T t[R * 2 * (L)];                                                                                              \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
        {                                                                                                              \
            *(V *)(t + r * 2 * (L)) = x[r][0];                                                                         \
            *(V *)(t + r * 2 * (L) + (L)) = x[r][1];                                                                   \
        }                                                                                                              \
        for (int64_t r = 0; r < mr; r++)                                                                               \
            for (int64_t j = 0; j < nr; j++)                                                                           \
                c[r * ldc + j] = how ? t[r * 2 * (L) + j] : c[r * ldc + j] + t[r * 2 * (L) + j];                       \
    }

/* R rows of A times B as it lies. */
#define THIN(T, V, name, L, R, Q, TARGET)                                                                              \
    TARGET static void name(const trn_gemm_args *g)                                                                    \
    {                                                                                                                  \
        int64_t j = 0, ars = g->ars;                                                                                   \
        T *c = g->c;                                                                                                   \
        for (; j + (Q) * (L) <= g->n; j += (Q) * (L)) {                                                                \
            const T *a = g->a, *b = (const T *)g->b + j;                                                               \
            V x[R][Q];                                                                                                 \
            UNROLL for (int r = 0; r < (R); r++) UNROLL for (int q = 0; q < (Q); q++) x[r][q] = (V){0};                \
            for (int64_t k = 0; k < g->k; k++, a += g->acs, b += g->brs)                                               \
                UNROLL for (int q = 0; q < (Q); q++)                                                                   \
                {                                                                                                      \
                    V v = *(const V *)(b + q * (L));                                                                   \
                    UNROLL for (int r = 0; r < (R); r++) x[r][q] += a[r * ars] * v;                                    \
                }                                                                                                      \
            UNROLL for (int r = 0; r < (R); r++)                                                                       \
                UNROLL for (int q = 0; q < (Q); q++) *(V *)(c + r * g->ldc + j + q * (L)) = x[r][q];                   \
        }                                                                                                              \
        int64_t rest = g->n - j; /* fewer than Q·L */                                                                  \
        for (int64_t r = 0; r < (R) && rest; r++) {                                                                    \
            const T *a = (const T *)g->a + r * ars, *b = (const T *)g->b + j;                                          \
            T t[(Q) * (L)] = {0};                                                                                      \
            for (int64_t k = 0; k < g->k; k++, a += g->acs, b += g->brs)                                               \
                for (int64_t q = 0; q < rest; q++)                                                                     \
                    t[q] += *a * b[q];                                                                                 \
            memcpy(c + r * g->ldc + j, t, sizeof(T) * (size_t)rest);                                                   \
        }                                                                                                              \
    }

/* B transposed, with too few rows of A to pack it for: both lie along k, so R rows times Q columns of sums of products are vectors of L, added up at the end (SUMS). The columns stay in the
 * first cache while A passes, in the order in which it is read where that pays. The last rows and columns, and the end of k, reach back into what came before. I: vectors of bits. */
#define ALONG_STEP(V, L, Q, R, FMA, MASK)                                                                              \
    {                                                                                                                  \
        UNROLL for (int r = 0; r < (R); r++) v[r] = MASK(*(const V *)(pa + r * rs));                                   \
        UNROLL for (int q = 0; q < (Q); q++)                                                                           \
        {                                                                                                              \
            V w = MASK(*(const V *)(pb[q / 3] + q % 3 * bcs));                                                         \
            UNROLL for (int r = 0; r < (R); r++) FMA(x[r][q], v[r], w);                                                \
        }                                                                                                              \
    }
#define ALL_LANES(x) (x)
#define LAST_LANES(x) ((__typeof__(x))((__typeof__(lanes))(x) & lanes))
#define ALONG(V, I, name, L, Q, R, FMA, SUMS, TARGET)                                                                  \
    TARGET static void name(const trn_gemm_args *g, int64_t from, int64_t kc)                                          \
    {                                                                                                                  \
        static const int32_t bits[2 * (L)] = {[(L) ... 2 * (L) - 1] = -1};                                             \
        const float *a = (const float *)g->a + from;                                                                   \
        int64_t bcs = g->bcs, rest = kc % (L), whole = kc - rest;                                                      \
        trn_buf *packed = NULL;                                                                                        \
        if (g->n >= 8 * (Q))                                                                                           \
            trn_err_free(trn_buf_new(&packed, sizeof(float) * (size_t)(whole * (g->m + (R)))));                        \
        float *pack = packed ? (float *)(void *)packed->data : NULL;                                                   \
        for (int64_t n = 0; pack && n < g->m; n += (R))                                                                \
            for (int64_t r = 0, i = TRN_MIN(n, g->m - (R)); r < (R); r++)                                              \
                for (int64_t k = 0; k < whole; k += (L))                                                               \
                    *(V *)(pack + n * whole + k * (R) + r * (L)) = *(const V *)(a + (i + r) * g->ars + k);             \
        for (int64_t at = 0; at < g->n; at += (Q)) {                                                                   \
            int64_t j = TRN_MIN(at, g->n - (Q));                                                                       \
            const float *b = (const float *)g->b + from + j * bcs;                                                     \
            for (int64_t n = 0; n < g->m; n += (R)) {                                                                  \
                int64_t i = TRN_MIN(n, g->m - (R)), rs = pack ? (L) : g->ars, step = pack ? (R) * (L) : (L);           \
                const float *pa = pack ? pack + n * whole : a + i * rs, *pb[3] = {b, b + 3 * bcs, b + 6 * bcs};        \
                /* A part of the next columns comes closer meanwhile. */                                               \
                int64_t part = ((Q) * kc * (R) + g->m - 1) / g->m, done = n / (R) * part;                              \
                const float *near = b + ((Q) + done / kc) * bcs + done % kc, *far = at + 2 * (Q) <= g->n ? near + part : near;\
                V x[R][Q], v[R];                                                                                       \
                UNROLL for (int r = 0; r < (R); r++) UNROLL for (int q = 0; q < (Q); q++) x[r][q] = (V){0};            \
                for (int64_t k = 0; k < whole; k += (L)) {                                                             \
                    if (near < far) {                                                                                  \
                        __builtin_prefetch(near, 0, 2);                                                                \
                        near += 64 / sizeof(float);                                                                    \
                    }                                                                                                  \
                    ALONG_STEP(V, L, Q, R, FMA, ALL_LANES)                                                             \
                    pa += step;                                                                                        \
                    UNROLL for (int q = 0; q < ((Q) + 2) / 3; q++)                                                     \
                    {                                                                                                  \
                        pb[q] += (L);                                                                                  \
                        __asm__("" : "+r"(pb[q]));                                                                     \
                    }                                                                                                  \
                }                                                                                                      \
                if (rest) {                                                                                            \
                    I lanes = *(const I *)(bits + rest);                                                               \
                    rs = g->ars;                                                                                       \
                    pa = a + i * rs + kc - (L);                                                                        \
                    UNROLL for (int q = 0; q < 3; q++)                                                                 \
                        pb[q] = b + 3 * q * bcs + kc - (L);                                                            \
                    ALONG_STEP(V, L, Q, R, FMA, LAST_LANES)                                                            \
                }                                                                                                      \
                float *c = (float *)g->c + i * g->ldc + j, sum[R][Q];                                                  \
                if (from == 0) {                                                                                       \
                    UNROLL for (int r = 0; r < (R); r++) SUMS(c + r * g->ldc, x[r]);                                   \
                    continue;                                                                                          \
                }                                                                                                      \
                UNROLL for (int r = 0; r < (R); r++) SUMS(sum[r], x[r]);                                               \
                for (int64_t r = n - i; r < (R); r++) /* what was reached back for has it already */                   \
                    for (int64_t q = at - j; q < (Q); q++)                                                             \
                        c[r * g->ldc + q] += sum[r][q];                                                                \
            }                                                                                                          \
        }                                                                                                              \
        trn_buf_unref(packed);                                                                                         \
    }

/* to[i]: all of x[i] added up, of four vectors of 4 or eight of 16. Two vectors become one that has half the sums of both, and so on. */
#define SUMS_4(to, x)                                                                                                  \
    do {                                                                                                               \
        vf4 ab = SHUFFLE((x)[0], (x)[1], 0, 4, 1, 5) + SHUFFLE((x)[0], (x)[1], 2, 6, 3, 7);                            \
        vf4 cd = SHUFFLE((x)[2], (x)[3], 0, 4, 1, 5) + SHUFFLE((x)[2], (x)[3], 2, 6, 3, 7);                            \
        *(vf4 *)(to) = SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);                                      \
    } while (0)
#define PAIR_16(a, b)                                                                                                  \
    (SHUFFLE16(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +                                       \
     SHUFFLE16(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31))
#define FOUR_16(ab, cd)                                                                                                \
    (SHUFFLE16(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +                                     \
     SHUFFLE16(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#define SUMS_16(to, x)                                                                                                 \
    do {                                                                                                               \
        vf16 ab = PAIR_16((x)[0], (x)[1]), cd = PAIR_16((x)[2], (x)[3]), ef = PAIR_16((x)[4], (x)[5]), gh = PAIR_16((x)[6], (x)[7]);\
        vf16 p = FOUR_16(ab, cd), q = FOUR_16(ef, gh);                                                                 \
        p = SHUFFLE16(p, q, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +                                  \
            SHUFFLE16(p, q, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);                             \
        p += SHUFFLE16(p, p, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);                                    \
        p = SHUFFLE16(p, p, 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);                                     \
        *(vf *)(to) = *(vf *)&p;                                                                                       \
    } while (0)

#if !TRN_ASAN && !TRN_TSAN && defined(__x86_64__)
#define PACKS_TIGHT 0
#define PACKS_LOOSE 0
#define PACKS_TAKEN 1
#include "ops/gemm_512.h"
#else
#define TILE_512 TILE
#endif

/* Everything for one kind of CPU. */
#define GEMM(TILE, T, V, tag, turn, L, MR, FMA, TARGET)                                                                \
    typedef void tile_##tag(int64_t kc, const T *a, int64_t ars, const T *b, int64_t brs, T *keep, T *c, int64_t ldc,  \
                            int64_t mr, int64_t nr, int how, const T *ahead);                                          \
    TILE(T, V, tile_rows_##tag, L, WHOLE, MR, FMA, TARGET, ROWS, TIGHT)                                                \
    TILE(T, V, tile_rows_take_##tag, L, WHOLE, MR, FMA, TARGET, ROWS, TAKEN)                                           \
    TILE(T, V, tile_packed_##tag, L, WHOLE, MR, FMA, TARGET, PACKED, TIGHT)                                            \
    TILE(T, V, tile_take_##tag, L, WHOLE, MR, FMA, TARGET, PACKED, TAKEN)                                              \
    TILE(T, V, tile_two_##tag, L, TWO, MR, FMA, TARGET, PACKED, TIGHT) /* what is left below: two thirds */            \
    TILE(T, V, tile_third_##tag, L, THIRD, MR, FMA, TARGET, PACKED, TIGHT)    /* a third */                            \
    TILE(T, V, tile_direct_##tag, L, WHOLE, MR, FMA, TARGET, PACKED, LOOSE)                                            \
    TILE(T, V, tile_cols_##tag, L, WHOLE, MR, FMA, TARGET, COLS, TIGHT)                                                \
    TILE(T, V, tile_cols_take_##tag, L, WHOLE, MR, FMA, TARGET, COLS, TAKEN)                                           \
    TILE(T, V, tile_rows_direct_##tag, L, WHOLE, MR, FMA, TARGET, ROWS, LOOSE)                                         \
    TILE(T, V, tile_rows_two_##tag, L, TWO, MR, FMA, TARGET, ROWS, TIGHT)                                              \
    TILE(T, V, tile_rows_third_##tag, L, THIRD, MR, FMA, TARGET, ROWS, TIGHT)                                          \
    TILE(T, V, tile_rows_direct_two_##tag, L, TWO, MR, FMA, TARGET, ROWS, LOOSE)                                       \
    TILE(T, V, tile_rows_direct_third_##tag, L, THIRD, MR, FMA, TARGET, ROWS, LOOSE)                                   \
    TILE(T, V, tile_cols_direct_##tag, L, WHOLE, MR, FMA, TARGET, COLS, LOOSE)                                         \
    TILE(T, V, tile_cols_two_##tag, L, TWO, MR, FMA, TARGET, COLS, LOOSE)                                              \
    TILE(T, V, tile_cols_third_##tag, L, THIRD, MR, FMA, TARGET, COLS, LOOSE)                                          \
    THIN(T, V, thin1_##tag, L, 1, 8, TARGET)                                                                           \
    THIN(T, V, thin2_##tag, L, 2, 4, TARGET)                                                                           \
    THIN(T, V, thin3_##tag, L, 3, 4, TARGET)                                                                           \
    TARGET static void pack_a_##tag(T *to, const T *a, int64_t rs, int64_t cs, int64_t m, int64_t kc)                  \
    {                                                                                                                  \
        int64_t i = 0, full = m / (MR) * (MR);                                                                         \
        /* A few columns at a time: in a large matrix each lies on a page of its own. */                               \
        for (int64_t kb = 0; rs == 1 && kb < kc; kb += 8)                                                              \
            for (i = 0; i < full; i += (MR))                                                                           \
                for (int64_t k = kb, end = TRN_MIN(kb + 8, kc); k < end; k++)                                          \
                    memcpy(to + i * kc + k * (MR), a + i + k * cs, sizeof(T) * (MR));                                  \
        for (; i < full; i += (MR))                                                                                    \
            for (int64_t k = 0; k < kc; k++)                                                                           \
                for (int64_t r = 0; r < (MR); r++)                                                                     \
                    to[i * kc + k * (MR) + r] = a[(i + r) * rs + k * cs];                                              \
        for (int64_t r = 0; r < (MR) && i < m; r++) /* row by row: they are few */                                     \
            if (i + r < m)                                                                                             \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    to[i * kc + k * (MR) + r] = a[(i + r) * rs + k * cs];                                              \
            else                                                                                                       \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    to[i * kc + k * (MR) + r] = 0;                                                                     \
    }                                                                                                                  \
    TARGET static void pack_b_##tag(T *to, const T *b, int64_t rs, int64_t cs, int64_t kc, int64_t n)                  \
    {                                                                                                                  \
        int64_t j = 0, full = n / (2 * (L)) * (2 * (L));                                                               \
        for (int64_t kb = 0; cs == 1 && kb < kc; kb += 2)                                                              \
            for (j = 0; j < full; j += 2 * (L))                                                                        \
                for (int64_t k = kb, end = TRN_MIN(kb + 2, kc); k < end; k++) {                                        \
                    *(V *)(to + j * kc + k * 2 * (L)) = *(const V *)(b + k * rs + j);                                  \
                    *(V *)(to + j * kc + k * 2 * (L) + (L)) = *(const V *)(b + k * rs + j + (L));                      \
                }                                                                                                      \
        for (; j < full; j += 2 * (L))                                                                                 \
            if (rs == 1)                                                                                               \
                turn(to + j * kc, b + j * cs, cs, kc, 2 * (L));                                                        \
            else                                                                                                       \
                for (int64_t k = 0; k < kc; k++)                                                                       \
                    for (int64_t q = 0; q < 2 * (L); q++)                                                              \
                        to[j * kc + k * 2 * (L) + q] = b[k * rs + (j + q) * cs];                                       \
        for (int64_t k = 0; k < kc && j < n; k++)                                                                      \
            for (int64_t q = 0; q < 2 * (L); q++)                                                                      \
                to[j * kc + k * 2 * (L) + q] = j + q < n ? b[k * rs + (j + q) * cs] : 0;                               \
    }                                                                                                                  \
    static void packed_##tag(const trn_gemm_args *g, layout l, T *pa, T *pb)                                           \
    {                                                                                                                  \
        const T *a = g->a, *b = g->b;                                                                                  \
        T *c = g->c;                                                                                                   \
        int64_t deep = depth(g, 2 * (L) * (int64_t)sizeof(T), sizeof(T));                                              \
        for (int64_t jc = 0; jc < g->n; jc += NC)                                                                      \
            for (int64_t kk = 0; kk < g->k; kk += deep) {                                                              \
                int64_t nc = TRN_MIN((int64_t)NC, g->n - jc), kc = TRN_MIN(deep, g->k - kk);                           \
                int64_t direct = l.direct ? nc / (2 * (L)) * (2 * (L)) : 0; /* columns that are not packed */          \
                bool stream = g->stream && g->k <= deep && ((uintptr_t)c | (uintptr_t)g->ldc * sizeof(T)) % sizeof(V) == 0;\
                int how = kk || g->add ? ADD : stream && g->m * g->n * (int64_t)sizeof(T) >= STREAM_FROM ? STREAM : SET;\
                const T *fb = b + kk * g->brs + jc * g->bcs;                                                           \
                for (int64_t ic = 0; ic < g->m; ic += MC) {                                                            \
                    int64_t mc = TRN_MIN((int64_t)MC, g->m - ic);                                                      \
                    const T *fa = a + ic * g->ars + kk * g->acs;                                                       \
                    /* Only a last, incomplete tile is packed. */                                                      \
                    int64_t whole = l.rows || l.cols ? mc / (MR) * (MR) : 0, rest = mc - whole, lead = l.rows ? g->ars : g->acs;\
                    /* Nor this one, then. */                                                                          \
                    bool fits = (l.rows || (l.cols && direct == nc)) && (rest == (MR) / 3 || rest == 2 * (MR) / 3);    \
                    if (!fits)                                                                                         \
                        pack_a_##tag(pa, fa + whole * g->ars, g->ars, g->acs, rest, kc);                               \
                    /* With few rows below it, waiting for B is most of the work: it is packed in the order in which it lies. */\
                    bool wide = ic == 0 && direct == 0 && g->bcs == 1 && g->m <= MC && g->brs * (int64_t)sizeof(T) >= 2048 && nc >= 4 * (L);\
                    if (wide)                                                                                          \
                        pack_b_##tag(pb, fb, g->brs, 1, kc, nc);                                                       \
                    for (int64_t j = 0; j < nc; j += 2 * (L)) {                                                        \
                        int64_t nr = TRN_MIN((int64_t)2 * (L), nc - j);                                                \
                        T *panel = pb + (j - direct) * kc;                                                             \
                        /* Packed by the first tile that reads it, where that tile is a whole one. */                  \
                        bool take = !wide && ic == 0 && j >= direct && g->bcs == 1 && nr == 2 * (L) && mc >= (MR);     \
                        if (!wide && ic == 0 && j >= direct && !take)                                                  \
                            pack_b_##tag(panel, fb + j * g->bcs, g->brs, g->bcs, kc, nr);                              \
                        for (int64_t i = 0; i < mc; i += (MR)) {                                                       \
                            T *y = c + (ic + i) * g->ldc + jc + j;                                                     \
                            int64_t mr = TRN_MIN((int64_t)(MR), mc - i);                                               \
                            bool first = take && i == 0, there = i < whole || fits; /* A is read where it is */        \
                            const T *at = there ? fa + i * g->ars : pa + (i - whole) * kc, *bp = first || j < direct ? fb + j : panel;\
                            tile_##tag *fn = j < direct && there && l.rows ? (mr == (MR)       ? tile_rows_direct_##tag\
                                                                              : mr == (MR) / 3 ? tile_rows_direct_third_##tag\
                                                                                               : tile_rows_direct_two_##tag)\
                                             : j < direct && there       ? (mr == (MR)       ? tile_cols_direct_##tag  \
                                                                            : mr == (MR) / 3 ? tile_cols_third_##tag   \
                                                                                             : tile_cols_two_##tag)    \
                                             : j < direct                ? tile_direct_##tag                           \
                                             : there && l.rows           ? (first            ? tile_rows_take_##tag    \
                                                                            : mr == (MR)     ? tile_rows_##tag         \
                                                                            : mr == (MR) / 3 ? tile_rows_third_##tag   \
                                                                                             : tile_rows_two_##tag)    \
                                             : there                     ? (first ? tile_cols_take_##tag : tile_cols_##tag)\
                                             : first                     ? tile_take_##tag                             \
                                             : mr <= (MR) / 3            ? tile_third_##tag                            \
                                             : mr <= 2 * (MR) / 3        ? tile_two_##tag                              \
                                                                         : tile_packed_##tag;                          \
                            /* While the tiles below the first are computed, the next panel comes closer. */           \
                            const T *below = kk + kc < g->k ? b + (kk + kc) * g->brs + jc : NULL;                      \
                            const T *next = wide ? (below ? below + j : NULL) : j + 2 * (L) < nc ? fb + j + 2 * (L) : below;\
                            int64_t nth = i / (MR);                                                                    \
                            bool fetch = next && ic == 0 && j >= direct && g->bcs == 1 && nth >= 1 && nth <= 4;        \
                            fn(kc, at, lead, bp, g->brs, panel, y, g->ldc, mr, nr, how, fetch ? next + (nth - 1) * (kc / 4) * g->brs : NULL);\
                        }                                                                                              \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
    }                                                                                                                  \
    static bool gemm_##tag(const trn_gemm_args *g)                                                                     \
    {                                                                                                                  \
        if (g->m <= 3 && g->bcs == 1 && !g->add) {                                                                     \
            (g->m == 1 ? thin1_##tag : g->m == 2 ? thin2_##tag : thin3_##tag)(g);                                      \
            return true;                                                                                               \
        }                                                                                                              \
        int64_t kc = TRN_MIN(g->k, depth(g, 2 * (L) * (int64_t)sizeof(T), sizeof(T))), mc = TRN_MIN((g->m + (MR) - 1) / (MR) * (MR), (int64_t)MC),\
                nc = TRN_MIN((g->n + 2 * (L) - 1) / (2 * (L)) * (2 * (L)), (int64_t)NC);                               \
        /* What packed_ packs of either; nothing, or little, where they are read as they lie. */                       \
        layout l = layout_of(g, sizeof(T), MR, kc);                                                                    \
        if (l.direct)                                                                                                  \
            nc = g->n % (2 * (L)) ? 2 * (L) : 0;                                                                       \
        if (l.rows || l.cols)                                                                                          \
            mc = g->m % (MR) ? (MR) : 0;                                                                               \
        _Alignas(64) T few[FEW_BYTES / sizeof(T)];                                                                     \
        trn_buf *buf = NULL;                                                                                           \
        T *pb = few;                                                                                                   \
        if (kc * (mc + nc) > (int64_t)TRN_COUNTOF(few)) {                                                              \
            trn_err e = trn_buf_new(&buf, sizeof(T) * (size_t)(kc * (mc + nc)));                                       \
            if (e) {                                                                                                   \
                trn_err_free(e);                                                                                       \
                return false;                                                                                          \
            }                                                                                                          \
            pb = (T *)(void *)buf->data;                                                                               \
        }                                                                                                              \
        packed_##tag(g, l, pb + kc * nc, pb);                                                                          \
        if (g->stream)                                                                                                 \
            FENCE();                                                                                                   \
        trn_buf_unref(buf);                                                                                            \
        return true;                                                                                                   \
    }

typedef bool gemm_fn(const trn_gemm_args *g);

GEMM(TILE, float, vf4, f32, turn_f32, 4, 6, FMA_ANY, ) /* what every CPU has */
GEMM(TILE, double, vd2, f64, turn_f64, 2, 6, FMA_ANY, )
#if defined(__x86_64__)
GEMM(TILE, float, vf, f32_fma, turn_f32, 8, 6, FMA_PS, __attribute__((target("avx2,fma"))))
GEMM(TILE, double, vd, f64_fma, turn_f64, 4, 6, FMA_PD, __attribute__((target("avx2,fma"))))
GEMM(TILE_512, float, vf16, f32_512, turn_f32, 16, 12, FMA_PS, __attribute__((target("avx512f,avx2,fma"))))
GEMM(TILE_512, double, vd8, f64_512, turn_f64, 8, 12, FMA_PD, __attribute__((target("avx512f,avx2,fma"))))
#endif

ALONG(vf4, bits4, along_f32, 4, 4, 2, FMA_ANY, SUMS_4, )
#if defined(__x86_64__)
ALONG(vf16, bits16, along_f32_512, 16, 8, 3, FMA_PS, SUMS_16, __attribute__((target("avx512f,avx2,fma"))))
#endif

/* With more rows than this packing pays (bench/gemmbench.c). */
static const struct {
    void (*fn)(const trn_gemm_args *g, int64_t from, int64_t kc);
    int64_t rows, deep; /* `deep`: so much of eight columns stays in the first cache */
} along[] = {
    [TRN_GEMM_PLAIN] = {along_f32, 192, 1024},
#if defined(__x86_64__)
    [TRN_GEMM_FMA] = {NULL, 0, 0},
    [TRN_GEMM_AVX512] = {along_f32_512, 64, 1024},
#endif
};

static gemm_fn *const variants[][2] = {
    [TRN_GEMM_PLAIN] = {gemm_f32, gemm_f64},
#if defined(__x86_64__)
    [TRN_GEMM_FMA] = {gemm_f32_fma, gemm_f64_fma},
    [TRN_GEMM_AVX512] = {gemm_f32_512, gemm_f64_512},
#endif
};

bool trn_gemm_has(trn_gemm_isa isa)
{
#if defined(__x86_64__)
    bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return isa == TRN_GEMM_PLAIN || (isa == TRN_GEMM_FMA && fma) || (isa == TRN_GEMM_AVX512 && fma && __builtin_cpu_supports("avx512f"));
#else
    return isa == TRN_GEMM_PLAIN;
#endif
}

static trn_gemm_isa best_isa(void)
{
    static _Atomic int known; /* isa + 1 */
    int v = atomic_load_explicit(&known, memory_order_relaxed);
    if (!v) {
        v = 1 + (trn_gemm_has(TRN_GEMM_AVX512) ? TRN_GEMM_AVX512 : trn_gemm_has(TRN_GEMM_FMA) ? TRN_GEMM_FMA : TRN_GEMM_PLAIN);
        atomic_store_explicit(&known, v, memory_order_relaxed);
    }
    return (trn_gemm_isa)(v - 1);
}

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
    static bool plain_##tag(const trn_gemm_args *g)                                                                    \
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

/* Enough of everything for its blocks. Twice as many rows where k is long enough for adding up the sums to cost little. */
static bool goes_along(const trn_gemm_args *g, int64_t rows)
{
    if (g->m < 3 || g->n < 8 || g->k < ALONG_LEAST)
        return false;
    return g->m <= rows || (rows && g->m <= 2 * rows && g->k >= 3 * ALONG_LEAST);
}

bool trn_gemm_as(trn_dtype t, const trn_gemm_args *g, trn_gemm_isa isa)
{
    /* Very small ones, and columns of one or from a transposed B for a single row, are sums of products. */
    bool dots = !g->add && (g->n == 1 || (g->m == 1 && g->bcs != 1) || g->m * g->n * g->k < 512); /* no overflow: all three fit memory */
    if (t == TRN_FLOAT && !dots && !g->add && g->brs == 1 && g->acs == 1 && goes_along(g, along[isa].rows)) {
        int64_t parts = (g->k + along[isa].deep - 1) / along[isa].deep, kc = ((g->k + parts - 1) / parts + 15) / 16 * 16;
        for (int64_t k = 0; k < g->k; k += kc)
            along[isa].fn(g, k, TRN_MIN(kc, g->k - k));
        return true;
    }
    switch (t) {
    case TRN_FLOAT: return dots ? plain_f32(g) : variants[isa][0](g);
    case TRN_DOUBLE: return dots ? plain_f64(g) : variants[isa][1](g);
    case TRN_INT16: return plain_i16(g);
    case TRN_INT32: return plain_i32(g);
    case TRN_INT64: return plain_i64(g);
    case TRN_COMPLEX64: return plain_c64(g);
    default: return plain_c128(g);
    }
}

bool trn_gemm(trn_dtype t, const trn_gemm_args *g)
{
    trn_gemm_isa isa = best_isa();
    /* A tile of AVX-512 is twice as wide: of few columns it would multiply mostly nothing. */
    if (isa == TRN_GEMM_AVX512 && g->n <= (t == TRN_FLOAT ? 16 : 8))
        isa = TRN_GEMM_FMA;
    return trn_gemm_as(t, g, isa);
}
