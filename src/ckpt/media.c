#include "ckpt/media.h"

#include <float.h>
#include <stdlib.h>
#include <zlib.h>

#include "proto/pbw.h"

/* ---- histograms ----------------------------------------------------------------------------------------------------- */

/* Upper bounds of the buckets: -max … 0 … max in steps of 10 % from 1e-12 to 1e20. Multiplied up as TensorFlow does, since the bounds are
 * in the message bit by bit. */
#define HALF_MAX TRN_HISTO_HALF_MAX
static double bucket_limit[2 * HALF_MAX + 1];
static int n_buckets;
static pthread_once_t buckets_once = PTHREAD_ONCE_INIT;

static void make_buckets(void)
{
    double pos[HALF_MAX];
    int n = 0;
    for (double v = 1e-12; v < 1e20; v *= 1.1)
        pos[n++] = v;
    pos[n++] = DBL_MAX;
    for (int i = n; i-- > 0;)
        bucket_limit[n_buckets++] = -pos[i];
    bucket_limit[n_buckets++] = 0;
    for (int i = 0; i < n; i++)
        bucket_limit[n_buckets++] = pos[i];
}

/* The first bucket whose bound lies above v. */
static int bucket_of(double v)
{
    int lo = 0, hi = n_buckets;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v < bucket_limit[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    return TRN_MIN(lo, n_buckets - 1);
}

void trn_histo_init(trn_histo *h)
{
    pthread_once(&buckets_once, make_buckets);
    *h = (trn_histo){.min = DBL_MAX, .max = -DBL_MAX};
}

void trn_histo_add(trn_histo *h, double v)
{
    h->count[bucket_of(v)]++;
    h->num++;
    h->min = TRN_MIN(h->min, v);
    h->max = TRN_MAX(h->max, v);
    h->sum += v;
    h->squares += v * v;
}

static void add_double(trn_sb *s, uint32_t field, double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    if (u)
        trn_pbw_fixed64(s, field, u);
}

void trn_histo_put(trn_sb *out, const trn_histo *h)
{
    /* A run of empty buckets is one: its last bound. */
    double limits[2 * HALF_MAX + 1], counts[2 * HALF_MAX + 1];
    size_t n = 0;
    for (int i = 0; i < n_buckets; i++) {
        while (h->count[i] == 0 && i + 1 < n_buckets && h->count[i + 1] == 0)
            i++;
        limits[n] = bucket_limit[i];
        counts[n++] = h->count[i];
    }
    add_double(out, 1, h->min);
    add_double(out, 2, h->max);
    add_double(out, 3, h->num);
    add_double(out, 4, h->sum);
    add_double(out, 5, h->squares);
    trn_pbw_bytes(out, 6, limits, n * sizeof *limits);
    trn_pbw_bytes(out, 7, counts, n * sizeof *counts);
}

/* ---- PNG ------------------------------------------------------------------------------------------------------------- */

static void png_chunk(trn_sb *b, const char type[4], const void *p, size_t n)
{
    uint8_t len[4] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    trn_sb_add(b, len, 4);
    trn_sb_add(b, type, 4);
    trn_sb_add(b, p, n);
    uLong crc = crc32(crc32(0, (const Bytef *)type, 4), p, (uInt)n);
    uint8_t c[4] = {(uint8_t)(crc >> 24), (uint8_t)(crc >> 16), (uint8_t)(crc >> 8), (uint8_t)crc};
    trn_sb_add(b, c, 4);
}

/* Every row is written as the difference to the pixel on the left. */
trn_err trn_png_encode(trn_sb *b, const uint8_t *pix, int64_t w, int64_t h, int64_t c)
{
    size_t row = (size_t)(w * c) + 1, raw_n = row * (size_t)h;
    uLongf n = compressBound(raw_n);
    uint8_t *raw = malloc(raw_n + 1), *z = malloc(n);
    if (!raw || !z) {
        free(raw);
        free(z);
        return trn_err_oom();
    }
    for (int64_t y = 0; y < h; y++) {
        uint8_t *o = raw + (size_t)y * row;
        const uint8_t *p = pix + y * w * c;
        *o++ = 1; /* filter type Sub */
        for (int64_t x = 0; x < w * c; x++)
            o[x] = (uint8_t)(p[x] - (x >= c ? p[x - c] : 0));
    }
    int rc = compress2(z, &n, raw, raw_n, Z_DEFAULT_COMPRESSION);
    free(raw);
    if (rc != Z_OK) {
        free(z);
        return trn_err_oom();
    }
    trn_sb_add(b, "\x89PNG\r\n\x1a\n", 8);
    uint8_t head[13] = {(uint8_t)(w >> 24), (uint8_t)(w >> 16), (uint8_t)(w >> 8), (uint8_t)w, (uint8_t)(h >> 24), (uint8_t)(h >> 16), (uint8_t)(h >> 8), (uint8_t)h,
                        8,                  c == 1 ? 0 : c == 3 ? 2 : 6};
    png_chunk(b, "IHDR", head, sizeof head);
    for (size_t at = 0; at < n; at += 1 << 20)
        png_chunk(b, "IDAT", z + at, TRN_MIN(n - at, (size_t)1 << 20));
    png_chunk(b, "IEND", "", 0);
    free(z);
    return TRN_OK;
}
