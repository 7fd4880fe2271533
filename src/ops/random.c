/* Random numbers: the same bits as TensorFlow's CPU kernels for the same seeds, shapes and number of runs.
 *
 * A stateful node owns a generator; each run takes its share by moving the counter on (256 blocks per output, as TensorFlow reserves), so
 * concurrent steps never see the same samples. What a run fills then depends on the element's position only, never on threads.
 * Logarithms, sines and roots are libm's scalar ones, as TensorFlow's are: vector versions round differently. */
#include "ops/random.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif


/* ---- generators ----------------------------------------------------------------------------------------------- */

typedef struct generator {
    trn_mutex mu;
    trn_philox gen;
} generator;

trn_err trn_random_init(trn_kinit *ki)
{
    uint64_t seed = (uint64_t)trn_attr_int(ki->node, "seed"), seed2 = (uint64_t)trn_attr_int(ki->node, "seed2");
    if (seed == 0 && seed2 == 0) {
        seed = trn_random64();
        seed2 = trn_random64();
    }
    generator *g = trn_xalloc(sizeof *g);
    trn_mutex_init(&g->mu, TRN_RANK_RES);
    g->gen = trn_philox_seed(seed, seed2);
    ki->state = g;
    return TRN_OK;
}

void trn_random_fini(void *state)
{
    generator *g = state;
    if (g)
        trn_mutex_fini(&g->mu);
    free(g);
}

trn_philox trn_random_reserve(trn_kctx *k, uint64_t blocks)
{
    generator *g = k->state;
    trn_lock(&g->mu);
    trn_philox mine = g->gen;
    trn_philox_skip(&g->gen, blocks);
    trn_unlock(&g->mu);
    return mine;
}

/* Two seeds made into key and counter by one scrambling block. */
trn_err trn_random_seeded(trn_philox *out, const trn_tensor *seed)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(seed->shape.rank == 1 && seed->count == 2, "seed must have shape [2], not %s", trn_shape_text(text, &seed->shape));
    uint64_t s[2];
    for (int i = 0; i < 2; i++)
        switch (seed->dtype) {
        case TRN_INT32: s[i] = (uint64_t)(int64_t)TRN_DATA(seed, int32_t)[i]; break;
        case TRN_UINT32: s[i] = TRN_DATA(seed, uint32_t)[i]; break;
        default: s[i] = TRN_DATA(seed, uint64_t)[i]; break;
        }
    trn_philox scramble = {.lo = s[0], .hi = s[1], .key = 0x02461e293ec8f720u};
    uint32_t mix[4];
    trn_philox_next(&scramble, mix);
    *out = (trn_philox){.lo = 0, .hi = mix[2] | (uint64_t)mix[3] << 32, .key = mix[0] | (uint64_t)mix[1] << 32};
    return TRN_OK;
}

trn_err trn_random_keyed(trn_philox *out, const trn_kctx *k, int at, int words)
{
    const trn_tensor *key = trn_in(k, at), *counter = trn_in(k, at + 1), *alg = trn_in(k, at + 2);
    TRN_CHECK_ARG(alg->shape.rank == 0, "alg must be a scalar");
    int a = TRN_DATA(alg, int32_t)[0];
    TRN_CHECK_ARG(a == 1 || a == 3, "unsupported algorithm id %d: only Philox (1) and auto-select (3) are known here", a);
    TRN_CHECK_ARG(key->shape.rank == 1 && key->count == 1, "key must have shape [1]");
    TRN_CHECK_ARG(counter->shape.rank == 1 && counter->count >= words, "counter must be a vector of at least %d elements", words);
    *out = (trn_philox){.lo = TRN_DATA(counter, uint64_t)[0], .hi = words > 1 ? TRN_DATA(counter, uint64_t)[1] : 0, .key = TRN_DATA(key, uint64_t)[0]};
    return TRN_OK;
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

static trn_err sh_multinomial(trn_shctx *s)
{
    int64_t n = s->value[1] && s->value[1]->count == 1 ? TRN_DATA(s->value[1], int32_t)[0] : -1;
    s->out[0] = trn_shape_of(2, s->in[0].rank == 2 ? s->in[0].dim[0] : (int64_t)-1, n < 0 ? (int64_t)-1 : n);
    return TRN_OK;
}

static trn_err sh_key_counter(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(1);
    s->out[1] = trn_shape_vector(2);
    if (s->n_out > 2)
        s->out[2] = trn_shape_scalar();
    return TRN_OK;
}

/* ---- filling a tensor ----------------------------------------------------------------------------------------- */

#define LANES 8
#define CHUNK 32 /* blocks turned into elements at a time */

#if defined(__x86_64__)
/* Four blocks, one in each 64-bit lane. Products read the low halves only, so that what is left in the high ones does no harm. */
typedef struct four { __m256i c0, c1, c2, c3; } four;

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline four four_at(const trn_philox *p, uint64_t at)
{
    uint64_t lo[4], hi[4];
    for (int i = 0; i < 4; i++) {
        trn_philox q = *p;
        trn_philox_skip(&q, at + (uint64_t)i);
        lo[i] = q.lo, hi[i] = q.hi;
    }
    __m256i l = _mm256_loadu_si256((const __m256i *)lo), h = _mm256_loadu_si256((const __m256i *)hi);
    return (four){l, _mm256_srli_epi64(l, 32), h, _mm256_srli_epi64(h, 32)};
}

AVX2 static inline four four_round(four f, __m256i k0, __m256i k1)
{
    __m256i a = _mm256_mul_epu32(f.c0, _mm256_set1_epi64x(TRN_PHILOX_M0)), b = _mm256_mul_epu32(f.c2, _mm256_set1_epi64x(TRN_PHILOX_M1));
    return (four){_mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), f.c1), k0), b,
                  _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), f.c3), k1), a};
}

AVX2 static inline void four_store(uint32_t *out, four f)
{
    __m256i front = _mm256_blend_epi32(f.c0, _mm256_slli_epi64(f.c1, 32), 0xaa), back = _mm256_blend_epi32(f.c2, _mm256_slli_epi64(f.c3, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
    _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((__m256i *)(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

AVX2 static void blocks_avx2(const trn_philox *p, uint32_t out[CHUNK * 4])
{
    for (int at = 0; at < CHUNK; at += 8) {
        four f = four_at(p, (uint64_t)at), g = four_at(p, (uint64_t)at + 4); /* two at a time: a product takes five cycles */
        uint32_t k0 = (uint32_t)p->key, k1 = (uint32_t)(p->key >> 32);
        for (int r = 0; r < 10; r++) {
            __m256i w0 = _mm256_set1_epi64x(k0), w1 = _mm256_set1_epi64x(k1);
            f = four_round(f, w0, w1);
            g = four_round(g, w0, w1);
            k0 += TRN_PHILOX_W0;
            k1 += TRN_PHILOX_W1;
        }
        four_store(out + at * 4, f);
        four_store(out + at * 4 + 16, g);
    }
}

/* The same with eight lanes. */
typedef struct eight { __m512i c0, c1, c2, c3; } eight;

#define AVX512 __attribute__((target("avx512f")))

AVX512 static inline eight eight_at(const trn_philox *p, uint64_t at)
{
    trn_philox q = *p;
    trn_philox_skip(&q, at);
    __m512i first = _mm512_set1_epi64((int64_t)q.lo), l = _mm512_add_epi64(first, _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)), h = _mm512_set1_epi64((int64_t)q.hi);
    h = _mm512_mask_add_epi64(h, _mm512_cmplt_epu64_mask(l, first), h, _mm512_set1_epi64(1));
    return (eight){l, _mm512_srli_epi64(l, 32), h, _mm512_srli_epi64(h, 32)};
}

AVX512 static inline eight eight_round(eight f, __m512i k0, __m512i k1)
{
    __m512i a = _mm512_mul_epu32(f.c0, _mm512_set1_epi64(TRN_PHILOX_M0)), b = _mm512_mul_epu32(f.c2, _mm512_set1_epi64(TRN_PHILOX_M1));
    return (eight){_mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(b, 32), f.c1), k0), b,
                   _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(a, 32), f.c3), k1), a};
}

AVX512 static inline void eight_store(uint32_t *out, eight f)
{
    __m512i front = _mm512_mask_blend_epi32(0xaaaa, f.c0, _mm512_slli_epi64(f.c1, 32)), back = _mm512_mask_blend_epi32(0xaaaa, f.c2, _mm512_slli_epi64(f.c3, 32));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(front, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), back));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(front, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), back));
}

AVX512 static void blocks_avx512(const trn_philox *p, uint32_t out[CHUNK * 4])
{
    for (int at = 0; at < CHUNK; at += 16) {
        eight f = eight_at(p, (uint64_t)at), g = eight_at(p, (uint64_t)at + 8);
        uint32_t k0 = (uint32_t)p->key, k1 = (uint32_t)(p->key >> 32);
        for (int r = 0; r < 10; r++) {
            __m512i w0 = _mm512_set1_epi64(k0), w1 = _mm512_set1_epi64(k1);
            f = eight_round(f, w0, w1);
            g = eight_round(g, w0, w1);
            k0 += TRN_PHILOX_W0;
            k1 += TRN_PHILOX_W1;
        }
        eight_store(out + at * 4, f);
        eight_store(out + at * 4 + 32, g);
    }
}
#endif

/* CHUNK blocks, LANES at a time side by side. */
static void blocks_plain(const trn_philox *p, uint32_t out[CHUNK * 4])
{
    for (int at = 0; at < CHUNK; at += LANES) {
        uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
        for (int i = 0; i < LANES; i++) {
            trn_philox q = *p;
            trn_philox_skip(&q, (uint64_t)(at + i));
            c0[i] = (uint32_t)q.lo, c1[i] = (uint32_t)(q.lo >> 32), c2[i] = (uint32_t)q.hi, c3[i] = (uint32_t)(q.hi >> 32);
        }
        uint32_t k0 = (uint32_t)p->key, k1 = (uint32_t)(p->key >> 32);
        for (int r = 0; r < 10; r++) {
            for (int i = 0; i < LANES; i++) {
                uint64_t a = (uint64_t)TRN_PHILOX_M0 * c0[i], b = (uint64_t)TRN_PHILOX_M1 * c2[i];
                c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
                c1[i] = (uint32_t)b;
                c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
                c3[i] = (uint32_t)a;
            }
            k0 += TRN_PHILOX_W0;
            k1 += TRN_PHILOX_W1;
        }
        for (int i = 0; i < LANES; i++) {
            uint32_t *o = out + (at + i) * 4;
            o[0] = c0[i], o[1] = c1[i], o[2] = c2[i], o[3] = c3[i];
        }
    }
}

static void blocks(const trn_philox *p, uint32_t out[CHUNK * 4])
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        blocks_avx512(p, out);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        blocks_avx2(p, out);
        return;
    }
#endif
    blocks_plain(p, out);
}

/* n samples (a multiple of 4) into elements: n of them, or n/2 when they take 64 bits. */
TRN_SIMD static void to_uniform(trn_dtype dtype, void *out, const uint32_t *u, int n)
{
    switch (dtype) {
    case TRN_FLOAT:
        for (int i = 0; i < n; i++)
            ((float *)out)[i] = trn_philox_f32(u[i]);
        break;
    case TRN_DOUBLE:
        for (int i = 0; i < n / 2; i++)
            ((double *)out)[i] = trn_philox_f64(u[2 * i], u[2 * i + 1]);
        break;
    case TRN_HALF: /* ten bits of mantissa; the difference is exact */
        for (int i = 0; i < n; i++)
            ((trn_half *)out)[i] = trn_half_from_f32((float)(u[i] & 0x3ff) * 0x1p-10f);
        break;
    case TRN_BFLOAT16:
        for (int i = 0; i < n; i++)
            ((trn_bf16 *)out)[i] = trn_bf16_from_f32((float)(u[i] & 0x7f) * 0x1p-7f);
        break;
    default: break;
    }
}

static void to_normal(trn_dtype dtype, void *out, const uint32_t *u, int n)
{
    if (dtype == TRN_DOUBLE) {
        for (int i = 0; i < n; i += 4)
            trn_box_muller_f64(u + i, (double *)out + i / 2, (double *)out + i / 2 + 1);
        return;
    }
    for (int i = 0; i < n; i += 2) {
        float f[2];
        trn_box_muller_f32(u[i], u[i + 1], &f[0], &f[1]);
        for (int j = 0; j < 2; j++)
            switch (dtype) {
            case TRN_HALF: ((trn_half *)out)[i + j] = trn_half_from_f32(f[j]); break;
            case TRN_BFLOAT16: ((trn_bf16 *)out)[i + j] = trn_bf16_from_f32(f[j]); break;
            default: ((float *)out)[i + j] = f[j]; break;
            }
    }
}

static void to_int(trn_dtype dtype, void *out, const uint32_t *u, int n, bool full, uint64_t lo, uint64_t range)
{
    if (dtype == TRN_INT32 || dtype == TRN_UINT32) {
        uint32_t r = (uint32_t)range;
        for (int i = 0; i < n; i++)
            ((uint32_t *)out)[i] = full ? u[i] : (uint32_t)lo + u[i] % r;
        return;
    }
    for (int i = 0; i < n / 2; i++) {
        uint64_t x = u[2 * i] | (uint64_t)u[2 * i + 1] << 32;
        ((uint64_t *)out)[i] = full ? x : lo + x % range;
    }
}

struct fill {
    trn_philox gen;
    trn_dtype dtype;
    trn_random_dist kind;
    char *data;
    int64_t count;
    int size, per_block; /* bytes of an element; elements of a block */
    uint64_t lo, range;
};

static void fill_fixed(void *arg, int64_t begin, int64_t end)
{
    const struct fill *f = arg;
    uint32_t u[CHUNK * 4];
    char tmp[CHUNK * 4 * sizeof(uint32_t)] __attribute__((aligned(64)));
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t n_blocks = TRN_MIN(end - at, (int64_t)CHUNK), first = at * f->per_block;
        int64_t n = TRN_MIN(n_blocks * f->per_block, f->count - first);
        trn_philox p = f->gen;
        trn_philox_skip(&p, (uint64_t)at);
        if (n_blocks == CHUNK)
            blocks(&p, u);
        else
            for (int i = 0; i < n_blocks; i++)
                trn_philox_next(&p, u + 4 * i);
        bool whole = n == n_blocks * f->per_block; /* else the last block is cut off */
        char *out = whole ? f->data + first * f->size : tmp;
        switch (f->kind) {
        case TRN_RANDOM_UNIFORM: to_uniform(f->dtype, out, u, (int)n_blocks * 4); break;
        case TRN_RANDOM_NORMAL: to_normal(f->dtype, out, u, (int)n_blocks * 4); break;
        default: to_int(f->dtype, out, u, (int)n_blocks * 4, f->kind == TRN_RANDOM_FULL_INT, f->lo, f->range); break;
        }
        if (!whole)
            memcpy(f->data + first * f->size, tmp, (size_t)(n * f->size));
    }
}

/* Normals within two deviations. A group takes as many samples as it needs from a region of its own. */
static void fill_truncated(void *arg, int64_t begin, int64_t end)
{
    const struct fill *f = arg;
    for (int64_t at = begin; at < end; at++) {
        trn_philox p = f->gen;
        trn_philox_skip(&p, (uint64_t)(at * (f->per_block * TRN_RANDOM_RESERVED / 4)));
        int64_t first = at * f->per_block, n = TRN_MIN((int64_t)f->per_block, f->count - first), have = 0;
        while (have < n) {
            uint32_t u[4];
            trn_philox_next(&p, u);
            if (f->dtype == TRN_DOUBLE) {
                double d[2];
                trn_box_muller_f64(u, &d[0], &d[1]);
                for (int i = 0; i < 2 && have < n; i++)
                    if (fabs(d[i]) < 2.0)
                        ((double *)f->data)[first + have++] = d[i];
                continue;
            }
            float x[4];
            trn_box_muller_f32(u[0], u[1], &x[0], &x[1]);
            trn_box_muller_f32(u[2], u[3], &x[2], &x[3]);
            for (int i = 0; i < 4 && have < n; i++) {
                if (!(fabsf(x[i]) < 2.0f))
                    continue;
                int64_t o = first + have++;
                switch (f->dtype) {
                case TRN_HALF: ((trn_half *)f->data)[o] = trn_half_from_f32(x[i]); break;
                case TRN_BFLOAT16: ((trn_bf16 *)f->data)[o] = trn_bf16_from_f32(x[i]); break;
                default: ((float *)f->data)[o] = x[i]; break;
                }
            }
        }
    }
}

void trn_random_fill(trn_kctx *k, trn_tensor *t, trn_philox gen, trn_random_dist kind, uint64_t lo, uint64_t range)
{
    struct fill f = {gen, t->dtype, kind, t->data, t->count, (int)trn_dtype_size(t->dtype), 4, lo, range};
    if (f.size == 8)
        f.per_block = 2;
    int64_t n = (t->count + f.per_block - 1) / f.per_block;
    trn_k_for(k, n, kind == TRN_RANDOM_UNIFORM || kind >= TRN_RANDOM_UNIFORM_INT ? 4096 : 2048, kind == TRN_RANDOM_TRUNCATED ? fill_truncated : fill_fixed, &f);
}

static trn_err out_of_shape(trn_tensor **out, trn_kctx *k)
{
    trn_shape s;
    TRN_TRY(trn_shape_from(&s, trn_in(k, 0), false));
    return trn_out_new(out, k, 0, k->node->out_types[0], &s);
}

static trn_err stateful_fill(trn_kctx *k, trn_random_dist kind)
{
    trn_tensor *t;
    TRN_TRY(out_of_shape(&t, k));
    trn_random_fill(k, t, trn_random_reserve(k, (uint64_t)t->count * TRN_RANDOM_RESERVED), kind, 0, 0);
    return TRN_OK;
}
static trn_err random_uniform(trn_kctx *k) { return stateful_fill(k, TRN_RANDOM_UNIFORM); }
static trn_err random_normal(trn_kctx *k) { return stateful_fill(k, TRN_RANDOM_NORMAL); }
static trn_err random_truncated(trn_kctx *k) { return stateful_fill(k, TRN_RANDOM_TRUNCATED); }

trn_err trn_random_int_range(uint64_t *lo, uint64_t *range, const trn_kctx *k, int at)
{
    const trn_tensor *a = trn_in(k, at), *b = trn_in(k, at + 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(a->shape.rank == 0, "minval must be 0-D, got shape %s", trn_shape_text(text, &a->shape));
    TRN_CHECK_ARG(b->shape.rank == 0, "maxval must be 0-D, got shape %s", trn_shape_text(text, &b->shape));
    int64_t x, y;
    if (a->dtype == TRN_INT32)
        x = TRN_DATA(a, int32_t)[0], y = TRN_DATA(b, int32_t)[0];
    else
        x = TRN_DATA(a, int64_t)[0], y = TRN_DATA(b, int64_t)[0];
    TRN_CHECK_ARG(x < y, "Need minval < maxval, got %lld >= %lld", (long long)x, (long long)y);
    *lo = (uint64_t)x;
    *range = (uint64_t)y - (uint64_t)x;
    return TRN_OK;
}

static trn_err random_uniform_int(trn_kctx *k)
{
    trn_tensor *t;
    TRN_TRY(out_of_shape(&t, k));
    if (t->count == 0)
        return TRN_OK;
    uint64_t lo, range;
    TRN_TRY(trn_random_int_range(&lo, &range, k, 1));
    trn_random_fill(k, t, trn_random_reserve(k, (uint64_t)t->count * TRN_RANDOM_RESERVED), TRN_RANDOM_UNIFORM_INT, lo, range);
    return TRN_OK;
}

static trn_err stateless_fill(trn_kctx *k, trn_random_dist kind, bool v2)
{
    trn_philox gen;
    if (v2)
        TRN_TRY(trn_random_keyed(&gen, k, 1, 2));
    else
        TRN_TRY(trn_random_seeded(&gen, trn_in(k, 1)));
    trn_tensor *t;
    TRN_TRY(out_of_shape(&t, k));
    uint64_t lo = 0, range = 0;
    if (t->count && kind == TRN_RANDOM_UNIFORM_INT)
        TRN_TRY(trn_random_int_range(&lo, &range, k, v2 ? 4 : 2));
    trn_random_fill(k, t, gen, kind, lo, range);
    return TRN_OK;
}
static trn_err stateless_uniform(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_UNIFORM, false); }
static trn_err stateless_normal(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_NORMAL, false); }
static trn_err stateless_truncated(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_TRUNCATED, false); }
static trn_err stateless_uniform_int(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_UNIFORM_INT, false); }
static trn_err stateless_full_int(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_FULL_INT, false); }
static trn_err stateless_uniform_v2(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_UNIFORM, true); }
static trn_err stateless_normal_v2(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_NORMAL, true); }
static trn_err stateless_truncated_v2(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_TRUNCATED, true); }
static trn_err stateless_uniform_int_v2(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_UNIFORM_INT, true); }
static trn_err stateless_full_int_v2(trn_kctx *k) { return stateless_fill(k, TRN_RANDOM_FULL_INT, true); }

/* StatelessRandomGetKeyCounter, …GetKeyCounterAlg: outputs key, counter[, alg]. */
static trn_err get_key_counter(trn_kctx *k)
{
    trn_philox p;
    TRN_TRY(trn_random_seeded(&p, trn_in(k, 0)));
    trn_shape one = trn_shape_vector(1), two = trn_shape_vector(2), scalar = trn_shape_scalar();
    trn_tensor *key, *counter, *alg;
    TRN_TRY(trn_out_new(&key, k, 0, TRN_UINT64, &one));
    TRN_TRY(trn_out_new(&counter, k, 1, TRN_UINT64, &two));
    TRN_DATA_MUT(key, uint64_t)[0] = p.key;
    TRN_DATA_MUT(counter, uint64_t)[0] = p.lo;
    TRN_DATA_MUT(counter, uint64_t)[1] = p.hi;
    if (k->n_out > 2) {
        TRN_TRY(trn_out_new(&alg, k, 2, TRN_INT32, &scalar));
        TRN_DATA_MUT(alg, int32_t)[0] = 1;
    }
    return TRN_OK;
}

static trn_err get_alg(trn_kctx *k)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *alg;
    TRN_TRY(trn_out_new(&alg, k, 0, TRN_INT32, &scalar));
    TRN_DATA_MUT(alg, int32_t)[0] = 1; /* Philox */
    return TRN_OK;
}

/* ---- shuffling, sampling -------------------------------------------------------------------------------------- */

/* NULL: the node's own generator. */
static trn_err shuffle(trn_kctx *k, const trn_philox *gen)
{
    const trn_tensor *in = trn_in(k, 0);
    int64_t rows = in->shape.rank > 0 ? in->shape.dim[0] : 1;
    if (in->count <= 1 || rows <= 1) {
        trn_out_set(k, 0, trn_tensor_ref(in));
        return TRN_OK;
    }
    TRN_CHECK_ARG(rows <= UINT32_MAX, "%lld rows are too many to shuffle", (long long)rows);
    trn_philox1 rng = trn_philox1_of(gen ? *gen : trn_random_reserve(k, (uint64_t)(rows - 1 + 3) / 4));
    uint32_t *order = malloc((size_t)rows * sizeof *order);
    if (!order)
        return trn_err_oom();
    for (int64_t i = 0; i < rows; i++)
        order[i] = (uint32_t)i;
    for (int64_t i = 0; i < rows - 1; i++) {
        int64_t j = i + trn_philox1_next(&rng) % (uint32_t)(rows - i);
        uint32_t x = order[i];
        order[i] = order[j];
        order[j] = x;
    }
    trn_tensor *out;
    trn_err err = trn_out_new(&out, k, 0, in->dtype, &in->shape);
    int64_t per = in->count / rows;
    size_t bytes = (size_t)per * trn_dtype_size(in->dtype);
    bool plain = trn_dtype_is_plain(in->dtype);
    for (int64_t i = 0; i < rows && !err; i++)
        if (plain)
            memcpy((char *)out->data + (size_t)i * bytes, (const char *)in->data + order[i] * bytes, bytes);
        else
            err = trn_tensor_copy_elems(out, i * per, in, order[i] * per, per);
    free(order);
    return err;
}

static trn_err random_shuffle(trn_kctx *k) { return shuffle(k, NULL); }
static trn_err stateless_shuffle(trn_kctx *k)
{
    trn_philox gen;
    TRN_TRY(trn_random_keyed(&gen, k, 1, 2));
    return shuffle(k, &gen);
}

double trn_random_real(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_HALF: return trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
    case TRN_BFLOAT16: return trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]);
    case TRN_FLOAT: return TRN_DATA(t, float)[i];
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    case TRN_INT32: return TRN_DATA(t, int32_t)[i];
    case TRN_INT64: return (double)TRN_DATA(t, int64_t)[i];
    default: return 0;
    }
}

/* Number of classes whose cumulated weight is at most x. */
static int64_t upper_bound(const double *cdf, int64_t n, double x)
{
    int64_t lo = 0;
    while (n > 0) {
        int64_t half = n / 2;
        if (!(x < cdf[lo + half])) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return lo;
}

static trn_err multinomial_shape(trn_shape *out, const trn_kctx *k)
{
    const trn_tensor *logits = trn_in(k, 0), *num = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(logits->shape.rank == 2, "logits should be a matrix, got shape %s", trn_shape_text(text, &logits->shape));
    TRN_CHECK_ARG(num->shape.rank == 0, "num_samples should be a scalar, got shape %s", trn_shape_text(text, &num->shape));
    int32_t n = TRN_DATA(num, int32_t)[0];
    TRN_CHECK_ARG(n >= 0, "num_samples should be nonnegative, got %d", n);
    TRN_CHECK_ARG(logits->shape.dim[0] <= INT32_MAX && logits->shape.dim[1] <= INT32_MAX, "logits are too large: %s",
                  trn_shape_text(text, &logits->shape));
    TRN_CHECK_ARG(logits->shape.dim[1] > 0, "num_classes should be positive, got 0");
    *out = trn_shape_of(2, logits->shape.dim[0], (int64_t)n);
    return TRN_OK;
}

/* Samples follow each other over the whole batch, which is what TensorFlow does with one shard. */
static trn_err multinomial_fill(trn_kctx *k, const trn_shape *shape, trn_philox gen)
{
    const trn_tensor *logits = trn_in(k, 0);
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, k->node->out_types[0], shape));
    if (out->count == 0)
        return TRN_OK;
    int64_t classes = logits->shape.dim[1], n = shape->dim[1];
    double *cdf = malloc((size_t)classes * sizeof *cdf);
    if (!cdf)
        return trn_err_oom();
    trn_philox1 rng = trn_philox1_of(gen);
    for (int64_t b = 0; b < shape->dim[0]; b++) {
        double max = -INFINITY, total = 0;
        for (int64_t j = 0; j < classes; j++) {
            double x = trn_random_real(logits, b * classes + j);
            if (isfinite(x) && x > max)
                max = x;
        }
        for (int64_t j = 0; j < classes; j++) {
            double x = trn_random_real(logits, b * classes + j);
            if (isfinite(x))
                total += exp(x - max);
            cdf[j] = total;
        }
        for (int64_t j = 0; j < n; j++) {
            uint32_t x0 = trn_philox1_next(&rng), x1 = trn_philox1_next(&rng);
            int64_t c = upper_bound(cdf, classes, trn_philox_f64(x0, x1) * total);
            if (out->dtype == TRN_INT32)
                TRN_DATA_MUT(out, int32_t)[b * n + j] = (int32_t)c;
            else
                TRN_DATA_MUT(out, int64_t)[b * n + j] = c;
        }
    }
    free(cdf);
    return TRN_OK;
}

static trn_err multinomial(trn_kctx *k)
{
    trn_shape s;
    TRN_TRY(multinomial_shape(&s, k));
    trn_philox gen = {0};
    if (s.dim[0] && s.dim[1]) /* a double is two samples */
        gen = trn_random_reserve(k, (uint64_t)(s.dim[0] * ((s.dim[1] + 3) / 4 * 4 * 2)) * TRN_RANDOM_RESERVED);
    return multinomial_fill(k, &s, gen);
}

static trn_err stateless_multinomial(trn_kctx *k)
{
    trn_shape s;
    TRN_TRY(multinomial_shape(&s, k));
    trn_philox gen;
    TRN_TRY(trn_random_seeded(&gen, trn_in(k, 2)));
    return multinomial_fill(k, &s, gen);
}

/* clang-format off */
#define SEEDS "seed:int=0, seed2:int=0"
#define OWN_GENERATOR TRN_OP_STATEFUL, trn_random_init, trn_random_fini
const trn_op trn_ops_random[] = {
    {"RandomUniform", "shape:T -> output:dtype; " SEEDS ", dtype:float, T:i32|i64", trn_sh_in0_shape, random_uniform, OWN_GENERATOR},
    {"RandomStandardNormal", "shape:T -> output:dtype; " SEEDS ", dtype:float, T:i32|i64", trn_sh_in0_shape, random_normal, OWN_GENERATOR},
    {"TruncatedNormal", "shape:T -> output:dtype; " SEEDS ", dtype:float, T:i32|i64", trn_sh_in0_shape, random_truncated, OWN_GENERATOR},
    {"RandomUniformInt", "shape:T, minval:Tout, maxval:Tout -> output:Tout; " SEEDS ", Tout:i32|i64, T:i32|i64", trn_sh_in0_shape,
     random_uniform_int, OWN_GENERATOR},
    {"RandomShuffle", "value:T -> output:T; " SEEDS ", T:any", trn_sh_same, random_shuffle, OWN_GENERATOR},
    {"Multinomial", "logits:T, num_samples:i32 -> output:output_dtype; " SEEDS ", T:float, output_dtype:i32|i64=i64", sh_multinomial,
     multinomial, OWN_GENERATOR},
    {"StatelessRandomUniform", "shape:T, seed:Tseed -> output:dtype; dtype:float=f32, T:i32|i64=i32, Tseed:i32|i64=i64", trn_sh_in0_shape,
     stateless_uniform, 0},
    {"StatelessRandomNormal", "shape:T, seed:Tseed -> output:dtype; dtype:float=f32, T:i32|i64=i32, Tseed:i32|i64=i64", trn_sh_in0_shape,
     stateless_normal, 0},
    {"StatelessTruncatedNormal", "shape:T, seed:Tseed -> output:dtype; dtype:float=f32, T:i32|i64=i32, Tseed:i32|i64=i64", trn_sh_in0_shape,
     stateless_truncated, 0},
    {"StatelessRandomUniformInt",
     "shape:T, seed:Tseed, minval:dtype, maxval:dtype -> output:dtype; dtype:i32|i64, T:i32|i64, Tseed:i32|i64=i64", trn_sh_in0_shape,
     stateless_uniform_int, 0},
    {"StatelessRandomUniformFullInt",
     "shape:T, seed:Tseed -> output:dtype; dtype:i32|i64|u32|u64=u64, T:i32|i64=i32, Tseed:i32|i64|u32|u64=i64", trn_sh_in0_shape,
     stateless_full_int, 0},
    {"StatelessRandomUniformV2",
     "shape:Tshape, key:u64, counter:u64, alg:i32 -> output:dtype; dtype:float=f32, Tshape:i32|i64=i32", trn_sh_in0_shape,
     stateless_uniform_v2, 0},
    {"StatelessRandomNormalV2",
     "shape:Tshape, key:u64, counter:u64, alg:i32 -> output:dtype; dtype:float=f32, Tshape:i32|i64=i32", trn_sh_in0_shape,
     stateless_normal_v2, 0},
    {"StatelessTruncatedNormalV2",
     "shape:Tshape, key:u64, counter:u64, alg:i32 -> output:dtype; dtype:float=f32, Tshape:i32|i64=i32", trn_sh_in0_shape,
     stateless_truncated_v2, 0},
    {"StatelessRandomUniformIntV2",
     "shape:Tshape, key:u64, counter:u64, alg:i32, minval:dtype, maxval:dtype -> output:dtype; dtype:i32|i64, Tshape:i32|i64=i32",
     trn_sh_in0_shape, stateless_uniform_int_v2, 0},
    {"StatelessRandomUniformFullIntV2",
     "shape:Tshape, key:u64, counter:u64, alg:i32 -> output:dtype; dtype:i32|i64|u32|u64=u64, Tshape:i32|i64=i32", trn_sh_in0_shape,
     stateless_full_int_v2, 0},
    {"StatelessRandomGetKeyCounter", "seed:Tseed -> key:u64, counter:u64; Tseed:i32|i64=i64", sh_key_counter, get_key_counter,
     TRN_OP_CHEAP},
    {"StatelessRandomGetKeyCounterAlg", "seed:Tseed -> key:u64, counter:u64, alg:i32; Tseed:i32|i64=i64", sh_key_counter, get_key_counter,
     TRN_OP_CHEAP},
    {"StatelessRandomGetAlg", "-> alg:i32", trn_sh_scalar, get_alg, TRN_OP_STATEFUL | TRN_OP_CHEAP},
    {"StatelessShuffle", "value:T, key:u64, counter:u64, alg:i32 -> output:T; T:any", trn_sh_same, stateless_shuffle, 0},
    {"StatelessMultinomial",
     "logits:T, num_samples:i32, seed:Tseed -> output:output_dtype; T:float, Tseed:i32|i64=i64, output_dtype:i32|i64=i64", sh_multinomial,
     stateless_multinomial, 0},
    {0},
};
/* clang-format on */
