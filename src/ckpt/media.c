#include "ckpt/media.h"

#include <float.h>
#include <png.h>
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

static void png_failed(png_structp png, png_const_charp why)
{
    *(trn_err *)png_get_error_ptr(png) = trn_errorf(TRN_INTERNAL, "PNG encoding failed: %s", why);
    png_longjmp(png, 1);
}
static void png_warned(png_structp png, png_const_charp why) {}
static void png_append(png_structp png, png_bytep p, size_t n) { trn_sb_add(png_get_io_ptr(png), p, n); }
static void png_flushed(png_structp png) {}

/* TensorFlow's settings of the same library, so that the bytes are the same too. */
trn_err trn_png_encode(trn_sb *b, const void *pixels, int64_t width, int64_t height, int channels, int bits, int level)
{
    static const int colour[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
    if (width <= 0 || height <= 0 || width > INT32_MAX || height > INT32_MAX)
        return trn_errorf(TRN_INTERNAL, "PNG encoding failed: no file has %lld x %lld pixels", (long long)width, (long long)height);
    trn_err err = TRN_OK;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &err, png_failed, png_warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return err ? err : trn_err_oom();
    }
    if (!setjmp(png_jmpbuf(png))) {
        png_set_write_fn(png, b, png_append, png_flushed);
        png_set_compression_level(png, level < 0 ? Z_DEFAULT_COMPRESSION : level);
        png_set_compression_mem_level(png, MAX_MEM_LEVEL);
        png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, bits, colour[channels], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                     PNG_FILTER_TYPE_DEFAULT);
        png_write_info(png, info);
        if (bits == 16)
            png_set_swap(png); /* files are big-endian */
        for (int64_t y = 0; y < height; y++)
            png_write_row(png, (png_const_bytep)pixels + y * width * channels * (bits / 8));
        png_write_end(png, NULL);
    }
    png_destroy_write_struct(&png, &info);
    return err;
}
