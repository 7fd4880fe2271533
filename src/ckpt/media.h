/* Parts of Summary messages that both the summary ops and the event writer make: histograms, PNG files. */
#ifndef TRN_CKPT_MEDIA_H
#define TRN_CKPT_MEDIA_H

#include "base/base.h"

/* TensorFlow's buckets: -max … 0 … max in steps of 10 % from 1e-12 to 1e20. */
#define TRN_HISTO_HALF_MAX 800
typedef struct trn_histo {
    double min, max, num, sum, squares;
    double count[2 * TRN_HISTO_HALF_MAX + 1];
} trn_histo;
void trn_histo_init(trn_histo *h);
void trn_histo_add(trn_histo *h, double v); /* finite */
void trn_histo_put(trn_sb *out, const trn_histo *h); /* a HistogramProto */

/* Appends a PNG file: 1 to 4 channels (grey, RGB; with alpha if even) of 8 or 16 bits; level 0 to 9, -1: zlib's default. A failure is INTERNAL. */
trn_err trn_png_encode(trn_sb *out, const void *pixels, int64_t width, int64_t height, int channels, int bits, int level) TRN_MUST_USE;

#endif
