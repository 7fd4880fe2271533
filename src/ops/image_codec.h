/* Image files to pixels and back. Bytes come from peers and files: sizes are checked before anything is allocated, what the libraries complain
 * about becomes INVALID_ARGUMENT (encoding: INTERNAL), and nothing is printed. [any]
 */
#ifndef TRN_OPS_IMAGE_CODEC_H
#define TRN_OPS_IMAGE_CODEC_H

#include "ops/kern.h"

#define TRN_IMAGE_MAX (INT64_C(1) << 29) /* pixels of a PNG or of all frames of a GIF, samples of a JPEG; TensorFlow's limit */

typedef struct trn_jpeg_opts {
    int channels;        /* 1 or 3; 0: as in the file (four become three) */
    int ratio;           /* 1, 2, 4 or 8 times smaller */
    bool fancy;          /* interpolate colours that were stored at half the size */
    bool accurate;       /* slower cosines */
    bool recover;        /* a file that ends too soon is completed somehow */
    float fraction;      /* of the rows that must be there; the rest becomes black */
    const int32_t *crop; /* y, x, height, width after scaling; NULL: everything */
} trn_jpeg_opts;

/* The result is uint8 [height, width, channels]. */
trn_err trn_jpeg_decode(trn_tensor **out, const uint8_t *p, size_t n, const trn_jpeg_opts *o) TRN_MUST_USE;
trn_err trn_jpeg_size(int64_t size[3], const uint8_t *p, size_t n) TRN_MUST_USE; /* height, width, channels */

typedef struct trn_jpeg_style {
    int quality; /* 0 to 100 */
    bool progressive, optimize, downsample;
    bool per_cm; /* else per inch */
    int x_density, y_density;
    const char *xmp; /* metadata to embed */
    size_t xmp_n;
} trn_jpeg_style;
trn_err trn_jpeg_encode(trn_sb *out, const uint8_t *pixels, int64_t width, int64_t height, int channels, const trn_jpeg_style *s) TRN_MUST_USE;

/* uint8 or, with 16 bits, uint16 [height, width, channels]; channels 0: as in the file. */
trn_err trn_png_decode(trn_tensor **out, const uint8_t *p, size_t n, int channels, int bits) TRN_MUST_USE;

/* uint8 [frames, height, width, 3], each frame drawn over the one before. */
typedef enum trn_gif_frames { TRN_GIF_ALL, TRN_GIF_FIRST, TRN_GIF_SINGLE /* several are an error */ } trn_gif_frames;
trn_err trn_gif_decode(trn_tensor **out, const uint8_t *p, size_t n, trn_gif_frames which) TRN_MUST_USE;

/* uint8 [height, width, channels]; channels 0, 3 or 4. */
trn_err trn_bmp_decode(trn_tensor **out, const uint8_t *p, size_t n, int channels) TRN_MUST_USE;

#endif
