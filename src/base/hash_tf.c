/* TensorFlow's Hash64 and Hash64Combine, bit for bit: two tasks, one of them TensorFlow, must name a loop frame alike. */
#include "base/base.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are loaded as they lie; tensors on the wire too");

/* MurmurHash2, 64-bit variant A, over little-endian words. */
uint64_t trn_hash64_tf(const void *data, size_t n)
{
    const uint64_t mul = 0xc6a4a7935bd1e995u;
    const uint8_t *p = data;
    uint64_t h = 0xDECAFCAFFEu ^ (n * mul);
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t k;
        memcpy(&k, p, 8);
        k *= mul;
        k ^= k >> 47;
        k *= mul;
        h = (h ^ k) * mul;
    }
    if (n) {
        uint64_t k = 0;
        for (size_t i = 0; i < n; i++)
            k |= (uint64_t)p[i] << (8 * i);
        h = (h ^ k) * mul;
    }
    h ^= h >> 47;
    h *= mul;
    h ^= h >> 47;
    return h;
}

uint64_t trn_hash64_tf_combine(uint64_t a, uint64_t b) { return a ^ (b + 0x9e3779b97f4a7800u + (a << 10) + (a >> 4)); }
