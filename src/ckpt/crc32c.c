#include "ckpt/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLY 0x82f63b78u /* reflected */

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? POLY : 0);
        table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
}

uint32_t trn_crc32c_by_table(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, make_tables);
    const uint8_t *p = data;
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n; n--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    return ~crc;
}

#ifdef __x86_64__
#include <immintrin.h>

/* The instruction takes three cycles but starts every cycle: three streams at once, joined by multiplying the first two by the power of x
 * that the bytes behind them are worth. That multiplication is linear, so it is a table: by four bytes of the checksum. */
#define STREAM 1024

static uint32_t shift1[4][256], shift2[4][256]; /* by STREAM and by 2 * STREAM bytes */
static pthread_once_t shift_once = PTHREAD_ONCE_INIT;

/* The raw register (no inversions) after n zero bytes. */
static uint32_t zeros(uint32_t c, size_t n)
{
    for (; n; n--)
        c = c >> 8 ^ table[0][c & 255];
    return c;
}

static void make_shifts(void)
{
    pthread_once(&once, make_tables);
    uint32_t bit1[32], bit2[32];
    for (int b = 0; b < 32; b++) {
        bit1[b] = zeros(1u << b, STREAM);
        bit2[b] = zeros(1u << b, 2 * STREAM);
    }
    for (int byte = 0; byte < 4; byte++)
        for (int v = 0; v < 256; v++)
            for (int b = 0; b < 8; b++)
                if (v >> b & 1) {
                    shift1[byte][v] ^= bit1[byte * 8 + b];
                    shift2[byte][v] ^= bit2[byte * 8 + b];
                }
}

static inline uint32_t shifted(uint32_t t[4][256], uint32_t c)
{
    return t[0][c & 255] ^ t[1][c >> 8 & 255] ^ t[2][c >> 16 & 255] ^ t[3][c >> 24];
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t a = ~crc;
    if (n >= 3 * STREAM)
        pthread_once(&shift_once, make_shifts);
    for (; n >= 3 * STREAM; n -= 3 * STREAM, p += 3 * STREAM) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < STREAM; i += 8) {
            a = _mm_crc32_u64(a, load64(p + i));
            b = _mm_crc32_u64(b, load64(p + STREAM + i));
            c = _mm_crc32_u64(c, load64(p + 2 * STREAM + i));
        }
        a = shifted(shift2, (uint32_t)a) ^ shifted(shift1, (uint32_t)b) ^ (uint32_t)c;
    }
    for (; n >= 8; n -= 8, p += 8)
        a = _mm_crc32_u64(a, load64(p));
    uint32_t c = (uint32_t)a;
    for (; n; n--)
        c = _mm_crc32_u8(c, *p++);
    return ~c;
}

uint32_t trn_crc32c(uint32_t crc, const void *p, size_t n)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, p, n) : trn_crc32c_by_table(crc, p, n);
}
#else
uint32_t trn_crc32c(uint32_t crc, const void *p, size_t n) { return trn_crc32c_by_table(crc, p, n); }
#endif
