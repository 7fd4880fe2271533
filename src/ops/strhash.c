/* Hashes whose values are part of models: buckets of features must come out as TensorFlow's do. */
#include "ops/kern.h"

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static uint64_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static uint64_t ror(uint64_t v, int n) { return v >> n | v << (64 - n); }
static uint64_t rol(uint64_t v, int n) { return v << n | v >> (64 - n); }
static uint64_t mix47(uint64_t v) { return v ^ (v >> 47); }

/* ---- FarmHash Fingerprint64 -------------------------------------------------------------------------------------------------------- */

#define K0 UINT64_C(0xc3a5c85c97cb3127)
#define K1 UINT64_C(0xb492b66fbe98f273)
#define K2 UINT64_C(0x9ae16a3b2f90404f)

static uint64_t fold(uint64_t u, uint64_t v, uint64_t mul)
{
    uint64_t a = mix47((u ^ v) * mul);
    return mix47((v ^ a) * mul) * mul;
}

typedef struct pair {
    uint64_t a, b;
} pair;

static pair weak32(const uint8_t *s, uint64_t a, uint64_t b)
{
    uint64_t w = load64(s), x = load64(s + 8), y = load64(s + 16), z = load64(s + 24);
    a += w;
    b = ror(b + a + z, 21);
    uint64_t c = a;
    a += x + y;
    b += ror(a, 44);
    return (pair){a + z, b + c};
}

uint64_t trn_fingerprint64(const void *data, size_t n)
{
    const uint8_t *s = data;
    uint64_t mul = K2 + (uint64_t)n * 2;
    if (n == 0)
        return K2;
    if (n < 4) {
        uint32_t y = s[0] + ((uint32_t)s[n >> 1] << 8), z = (uint32_t)n + ((uint32_t)s[n - 1] << 2);
        return mix47(y * K2 ^ z * K0) * K2;
    }
    if (n < 8)
        return fold(n + (load32(s) << 3), load32(s + n - 4), mul);
    if (n <= 16) {
        uint64_t a = load64(s) + K2, b = load64(s + n - 8);
        return fold(ror(b, 37) * mul + a, (ror(a, 25) + b) * mul, mul);
    }
    if (n <= 64) {
        bool two = n > 32;
        uint64_t a = load64(s) * (two ? K2 : K1), b = load64(s + 8), c = load64(s + n - 8) * mul, d = load64(s + n - 16) * K2;
        uint64_t y = ror(a + b, 43) + ror(c, 30) + d, z = fold(y, a + ror(b + K2, 18) + c, mul);
        if (!two)
            return z;
        uint64_t e = load64(s + 16) * mul, f = load64(s + 24), g = (y + load64(s + n - 32)) * mul, h = (z + load64(s + n - 24)) * mul;
        return fold(ror(e + f, 43) + ror(g, 30) + h, e + ror(f + a, 18) + g, mul);
    }
    uint64_t x = 81, y = 81 * K1 + 113, z = mix47(y * K2 + 113) * K2;
    pair v = {0, 0}, w = {0, 0};
    x = x * K2 + load64(s);
    const uint8_t *end = s + (n - 1) / 64 * 64, *last = end + ((n - 1) & 63) - 63;
    mul = K1;
    for (bool tail = false;;) {
        uint64_t k = tail ? 9 : 1;
        x = ror(x + y + v.a + load64(s + 8), 37) * mul;
        y = ror(y + v.b + load64(s + 48), 42) * mul;
        x ^= w.b * k;
        y += v.a * k + load64(s + 40);
        z = ror(z + w.a, 33) * mul;
        v = weak32(s, v.b * mul, x + w.a);
        w = weak32(s + 32, z + w.b, y + load64(s + 16));
        uint64_t t = z;
        z = x;
        x = t;
        if (tail)
            break;
        s += 64;
        if (s == end) { /* once more over the last 64 bytes, differently seeded */
            tail = true;
            s = last;
            mul = K1 + ((z & 0xff) << 1);
            w.a += (n - 1) & 63;
            v.a += w.a;
            w.a += v.a;
        }
    }
    return fold(fold(v.a, w.a, mul) + mix47(y) * K0 + z, fold(v.b, w.b, mul) + x, mul);
}

/* ---- FarmHash Fingerprint128 ------------------------------------------------------------------------------------------------------ */

static uint64_t fold16(uint64_t u, uint64_t v) { return fold(u, v, UINT64_C(0x9ddfea08eb382d69)); }

static pair short128(const uint8_t *s, size_t n, pair seed)
{
    uint64_t a = seed.a, b = seed.b, c, d;
    if (n <= 16) {
        a = mix47(a * K1) * K1;
        c = b * K1 + trn_fingerprint64(s, n);
        d = mix47(a + (n >= 8 ? load64(s) : c));
    } else {
        c = fold16(load64(s + n - 8) + K1, a);
        d = fold16(b + n, c + load64(s + n - 16));
        a += d;
        for (; n > 16; n -= 16, s += 16) {
            a = (a ^ mix47(load64(s) * K1) * K1) * K1;
            b ^= a;
            c = (c ^ mix47(load64(s + 8) * K1) * K1) * K1;
            d ^= c;
        }
    }
    a = fold16(a, c);
    b = fold16(d, b);
    return (pair){a ^ b, fold16(b, a)};
}

static pair long128(const uint8_t *s, size_t n, pair seed)
{
    uint64_t x = seed.a, y = seed.b, z = (uint64_t)n * K1;
    pair v, w;
    v.a = ror(y ^ K1, 49) * K1 + load64(s);
    v.b = ror(v.a, 42) * K1 + load64(s + 8);
    w.a = ror(y + z, 35) * K1 + x;
    w.b = ror(x + load64(s + 88), 53) * K1;
    for (; n >= 128; n -= 128)
        for (int half = 0; half < 2; half++, s += 64) {
            x = ror(x + y + v.a + load64(s + 8), 37) * K1;
            y = ror(y + v.b + load64(s + 48), 42) * K1;
            x ^= w.b;
            y += v.a + load64(s + 40);
            z = ror(z + w.a, 33) * K1;
            v = weak32(s, v.b * K1, x + w.a);
            w = weak32(s + 32, z + w.b, y + load64(s + 16));
            uint64_t t = z;
            z = x;
            x = t;
        }
    x += ror(v.a + z, 49) * K0;
    y = y * K0 + ror(w.b, 37);
    z = z * K0 + ror(w.a, 27);
    w.a *= 9;
    v.a *= K0;
    for (size_t done = 0; done < n;) { /* what is left, from its end; the first piece may begin in what is done */
        done += 32;
        const uint8_t *p = s + n - done;
        y = ror(x + y, 42) * K0 + v.b;
        w.a += load64(p + 16);
        x = x * K0 + w.a;
        z += w.b + load64(p);
        w.b += v.a;
        v = weak32(p, v.a + z, v.b);
        v.a *= K0;
    }
    x = fold16(x, v.a);
    y = fold16(y + z, w.a);
    return (pair){fold16(x + v.b, w.b) + y, fold16(x + w.b, y + v.b)};
}

void trn_fingerprint128(uint64_t out[2], const void *data, size_t n)
{
    const uint8_t *s = data;
    pair seed = {K0, K1};
    if (n >= 16) {
        seed = (pair){load64(s), load64(s + 8) + K0};
        s += 16;
        n -= 16;
    }
    pair h = n < 128 ? short128(s, n, seed) : long128(s, n, seed);
    out[0] = h.a;
    out[1] = h.b;
}

/* ---- SipHash-2-4 ---------------------------------------------------------------------------------------------------------------------- */

uint64_t trn_siphash(const uint64_t key[2], const void *data, size_t n)
{
    uint64_t v0 = UINT64_C(0x736f6d6570736575) ^ key[0], v1 = UINT64_C(0x646f72616e646f6d) ^ key[1], v2 = UINT64_C(0x6c7967656e657261) ^ key[0],
             v3 = UINT64_C(0x7465646279746573) ^ key[1];
#define ROUND                                                                                                          \
    do {                                                                                                               \
        v0 += v1, v1 = rol(v1, 13) ^ v0, v0 = rol(v0, 32);                                                             \
        v2 += v3, v3 = rol(v3, 16) ^ v2;                                                                               \
        v0 += v3, v3 = rol(v3, 21) ^ v0;                                                                               \
        v2 += v1, v1 = rol(v1, 17) ^ v2, v2 = rol(v2, 32);                                                             \
    } while (0)
    const uint8_t *p = data;
    size_t left = n;
    for (;; left -= 8, p += 8) {
        uint64_t m = 0;
        if (left >= 8) {
            m = load64(p);
        } else {
            for (size_t i = 0; i < left; i++)
                m |= (uint64_t)p[i] << (8 * i);
            m |= (uint64_t)n << 56;
        }
        v3 ^= m;
        ROUND;
        ROUND;
        v0 ^= m;
        if (left < 8)
            break;
    }
    v2 ^= 0xff;
    for (int i = 0; i < 4; i++)
        ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}
