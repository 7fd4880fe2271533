/* Philox 4x32-10 (Salmon et al., SC'11), laid out as TensorFlow lays it out: same seeds, same numbers.
 *
 * The generator is a 128-bit counter under a 64-bit key; one block is four 32-bit samples. Skipping is adding to the counter, so any piece
 * of a tensor can be filled by any thread with the same result. */
#ifndef TRN_PHILOX_H
#define TRN_PHILOX_H

#include <stdint.h>
#include <string.h>

typedef struct trn_philox {
    uint64_t lo, hi; /* counter */
    uint64_t key;
} trn_philox;

#define TRN_PHILOX_M0 0xD2511F53u
#define TRN_PHILOX_M1 0xCD9E8D57u
#define TRN_PHILOX_W0 0x9E3779B9u
#define TRN_PHILOX_W1 0xBB67AE85u

static inline trn_philox trn_philox_seed(uint64_t seed, uint64_t seed2)
{
    return (trn_philox){.lo = 0, .hi = seed2, .key = seed};
}

static inline void trn_philox_skip(trn_philox *p, uint64_t blocks)
{
    p->lo += blocks;
    p->hi += p->lo < blocks;
}

static inline void trn_philox_next(trn_philox *p, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)p->lo, c1 = (uint32_t)(p->lo >> 32), c2 = (uint32_t)p->hi, c3 = (uint32_t)(p->hi >> 32);
    uint32_t k0 = (uint32_t)p->key, k1 = (uint32_t)(p->key >> 32);
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)TRN_PHILOX_M0 * c0, b = (uint64_t)TRN_PHILOX_M1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += TRN_PHILOX_W0;
        k1 += TRN_PHILOX_W1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
    trn_philox_skip(p, 1);
}

/* One sample at a time. */
typedef struct trn_philox1 {
    trn_philox gen;
    uint32_t have[4];
    int used;
} trn_philox1;

static inline trn_philox1 trn_philox1_of(trn_philox gen) { return (trn_philox1){.gen = gen, .used = 4}; }

static inline uint32_t trn_philox1_next(trn_philox1 *p)
{
    if (p->used == 4) {
        trn_philox_next(&p->gen, p->have);
        p->used = 0;
    }
    return p->have[p->used++];
}

/* Below n, every value equally likely: draws below 2^32 mod n are thrown away. For 0 one is drawn, too. */
static inline uint32_t trn_philox1_below(trn_philox1 *p, uint32_t n)
{
    if (!(n & (n - 1)))
        return trn_philox1_next(p) & (n ? n - 1 : 0);
    uint32_t rest = UINT32_MAX % n + 1, x;
    do
        x = trn_philox1_next(p);
    while (x < rest);
    return x % n;
}

/* [0, 1) from the low 23 (52) bits: the mantissa of a number in [1, 2), less one. */
static inline float trn_philox_f32(uint32_t x)
{
    uint32_t bits = 0x3f800000u | (x & 0x7fffffu);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f - 1.0f;
}

static inline double trn_philox_f64(uint32_t x0, uint32_t x1)
{
    uint64_t bits = 0x3ff0000000000000u | (uint64_t)(x0 & 0xfffffu) << 32 | x1;
    double d;
    memcpy(&d, &bits, sizeof d);
    return d - 1.0;
}

#endif
