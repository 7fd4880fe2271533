/* Sliding windows: what convolutions and pooling share. Attrs, padding, and channels-first tensors, which are turned to channels last and back:
 * every kernel behind this works on [batch, depth, rows, columns, channels], depth 1 for images. */
#ifndef TRN_OPS_WINDOW_H
#define TRN_OPS_WINDOW_H

#include "ops/kern.h"

typedef enum trn_padding { TRN_PAD_VALID, TRN_PAD_SAME, TRN_PAD_EXPLICIT } trn_padding;

typedef struct trn_window {
    int space; /* 2 or 3 dims that the window slides over */
    bool first; /* channels first */
    trn_padding padding;
    int64_t stride[3], dil[3], ksize[3]; /* depth, rows, columns */
    int64_t before[3], after[3];         /* EXPLICIT */
    int64_t stride_n, stride_c, dil_n, dil_c, ksize_n, ksize_c;
} trn_window;

/* From the attrs strides, padding, data_format and, where the op has them, ksize, dilations or rates, explicit_paddings. Sizes fit 31 bits and
 * strides, dilations, ksize over space are at least 1; whether batch and channels may have any is up to the op. */
trn_err trn_window_read(trn_window *w, const trn_node *n, int space) TRN_MUST_USE;
/* ksize and strides from int32 vectors instead (MaxPoolV2). */
trn_err trn_window_set(trn_window *w, const trn_tensor *ksize, const trn_tensor *strides) TRN_MUST_USE;
/* Along dim i of depth, rows, columns: output size and padding for an input of size `in` and a window of `ker`. */
trn_err trn_window_size(int64_t *out, int64_t *pad, int64_t *pad_after, const trn_window *w, int i, int64_t in, int64_t ker) TRN_MUST_USE;

/* [n, depth, rows, columns, c] of a shape in either layout; INVALID_ARGUMENT unless its rank is space + 2 and its dims fit 31 bits. */
trn_err trn_window_dims(int64_t d[5], const trn_window *w, const trn_shape *s, const char *what) TRN_MUST_USE;
trn_shape trn_window_shape(const trn_window *w, const int64_t d[5]); /* and back */

/* A counted tensor with x's elements: channels last; float in place of half and bfloat16 when `widen`. */
trn_err trn_window_in(trn_tensor **out, trn_kctx *k, const trn_window *w, const trn_tensor *x, bool widen) TRN_MUST_USE;
/* The other way: where to compute output i (counted; the output itself when nothing has to be turned), then the finished output. */
trn_err trn_window_out(trn_tensor **out, trn_kctx *k, int i, const trn_window *w, trn_dtype dtype, const int64_t d[5], bool widen) TRN_MUST_USE;
trn_err trn_window_done(trn_kctx *k, int i, const trn_window *w, trn_tensor *computed) TRN_MUST_USE;

#endif
