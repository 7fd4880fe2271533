/* Convolutions with small windows by Winograd's way: fewer multiplications than the definition has. [any]
 *
 * An image is cut into tiles of 6 x 6 that overlap; a tile is taken to six points in each direction, where a convolution is a plain product, so that tiles become
 * 36 matrix products over the channels, and back. A window of 5 x 5 gives 2 x 2 places per tile for 36 multiplications instead of 100, one of 3 x 3 gives 4 x 4
 * for 36 instead of 144. The points are 0, ±5/8, ±3/2 and infinity: their powers are exact, and results are about as far from the true ones as those
 * of a plain sum (1e-6 of their size; the customary 0, ±1, ±2 lose twice as much). What is not finite spreads over its tile.
 *
 * By default for gradients of inputs only, which do not leave TensorFlow's losses (a convnet on digits, 20 steps of Adam: 1e-7). Forward, an image that is the
 * same all over gives the same number to the last bit at every place by the definition, of which max pooling takes the first; here it depends on the place in
 * the tile: losses are off by 5e-4. Gradients of windows are as precise as their tiles' largest numbers, and Adam makes much of the small ones: 5e-5.
 * TRAINERA_WINOGRAD=all in the environment: all three; 0: none.
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
