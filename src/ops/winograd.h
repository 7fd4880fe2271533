/* Convolutions with small windows by Winograd's way: fewer multiplications than the definition has. [any]
 *
 * An image is cut into tiles of 6 x 6 that overlap; a tile is taken to six points in each direction, where a convolution is a plain product, so that tiles become
 * 36 matrix products over the channels, and back. A window of 5 x 5 gives 2 x 2 places per tile for 36 multiplications instead of 100, one of 3 x 3 gives 4 x 4
 * for 36 instead of 144. What is not finite spreads over its tile.
 *
 * Results are about as far from the true ones as those of a plain sum (two to three times; the customary points 0, ±1, ±2 and infinity lose twice as much). What a program sees of
 * the definition holds to the last bit: in a tile that is the same all over, as the background of a digit is, all places get the same result, of which max pooling takes the first;
 * and places that see only zeros get 0, which a Relu does not let pass.
 *
 * Still, roundings other than TensorFlow's sooner or later put a Relu on the other side of 0, and from there on losses part. TensorFlow's own kernels and oneDNN's part as well: 20 steps
 * of Adam on eight convnets of MNIST's size, losses of the two apart by 1e-7 to 2e-4, ours from TensorFlow's by 1e-7 to 4e-5, with a tenfold learning rate both by up to 7e-2.
 * Small nets are quieter, and people compare them: there, one convolution of less than 250 MFLOP stays with the definition, but for gradients of inputs, which matter least.
 * TRAINERA_WINOGRAD=all in the environment: no matter how small; 0: none.
 *
 * All three kinds: the gradient of the input is a convolution with the window turned round, that of the window one in which a tile of the output's gradient is the window.
 */
#ifndef TRN_OPS_WINOGRAD_H
#define TRN_OPS_WINOGRAD_H

#include "ops/mathlib.h"

/* Is it possible, and worth it? float, channels last. */
bool trn_winograd_fits(trn_conv_kind kind, const trn_conv_geom *g);

/* What the kind computes is written whole, the others are read. FWD: `then`, unless NULL, follows on places from … to of all images' output in
 * a row while they are in the cache. How tiles are divided depends on the number of threads only, and so do the sums. */
trn_err trn_winograd(trn_kctx *k, trn_conv_kind kind, const trn_conv_geom *g, float *input, float *filter, float *output,
                     void (*then)(void *arg, int64_t from, int64_t to), void *then_arg) TRN_MUST_USE;

#endif
