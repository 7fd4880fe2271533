/* What the image families share. Pixels are [batch, rows, columns, channels]. */
#ifndef TRN_OPS_IMAGE_H
#define TRN_OPS_IMAGE_H

#include <math.h>

#include "ops/kern.h"

/* A float (or double) counted tensor with x's elements: halves widened, the others x itself. */
trn_err trn_image_in(trn_tensor **out, trn_kctx *k, const trn_tensor *x) TRN_MUST_USE;
/* Output 0, counted, or what it is to be computed in when it is of halves; then done. */
trn_err trn_image_out(trn_tensor **out, trn_kctx *k, trn_dtype t, const trn_shape *s) TRN_MUST_USE;
trn_err trn_image_done(trn_kctx *k, trn_tensor *computed) TRN_MUST_USE;
/* Any real type as float: counted. */
trn_err trn_image_float(trn_tensor **out, trn_kctx *k, const trn_tensor *x) TRN_MUST_USE;

/* From h x w to oh x ow. */
typedef struct trn_resize {
    int64_t n, h, w, c, oh, ow;
    float hs, ws; /* steps in the input per step in the output */
    bool align, half;
    trn_dtype t;
    size_t size;
    const char *x;
    char *y;
} trn_resize;

/* [height, width] in an int32 vector; both positive. */
trn_err trn_image_size(int64_t *h, int64_t *w, const trn_tensor *size) TRN_MUST_USE;
/* Inputs 0 and 1 are images and size. Their values are checked; x, y, t and size are left. */
trn_err trn_resize_begin(trn_resize *r, const trn_kctx *k) TRN_MUST_USE;
/* Inputs 0 and 1 are the gradient of the resized images and the images. */
trn_err trn_resize_grad_begin(trn_resize *r, const trn_kctx *k) TRN_MUST_USE;
float trn_resize_scale(int64_t from, int64_t to, bool align);

/* Output 0 is [batch, h, w, channels]: h and w from input `size`, channels from input 0. */
trn_err trn_sh_sized(trn_shctx *s, int size, int64_t batch) TRN_MUST_USE;
trn_err trn_sh_resize(trn_shctx *s); /* inputs images, size, … */

/* Numbers that do not fit become what x86's conversion makes of them (TensorFlow's kernels have it so), not undefined behaviour. */
static inline int64_t trn_i64_of(float x) { return x >= -0x1p63f && x < 0x1p63f ? (int64_t)x : INT64_MIN; }
static inline int32_t trn_i32_of(double x) { return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN; }
static inline int64_t trn_clamp(int64_t v, int64_t n) { return v < 0 ? 0 : v >= n ? n - 1 : v; }

#endif
