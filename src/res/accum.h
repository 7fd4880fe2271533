/* Conditional accumulators: gradients of several workers, summed or averaged, given out once enough of them are in.
 *
 * A gradient whose local_step is behind the accumulator's global step is stale and dropped without a word; taking resets the sum and moves
 * the global step on by one. Dense ones sum whole tensors. Sparse ones merge (indices, values) in index order and average every row over
 * the gradients that had it, as TensorFlow does. */
#ifndef TRN_ACCUM_H
#define TRN_ACCUM_H

#include "op/cancel.h"
#include "res/res.h"

typedef struct trn_accum trn_accum;
extern const trn_restype trn_accum_type;

/* shape may be partial; dtype: half, float or double. */
trn_err trn_accum_new(trn_accum **out, const char *name, trn_dtype dtype, const trn_shape *shape, bool sparse,
                      bool mean) TRN_MUST_USE;
/* INVALID_ARGUMENT when whoever names this accumulator means another kind. */
trn_err trn_accum_check(const trn_accum *a, trn_dtype dtype, bool sparse) TRN_MUST_USE;
void trn_accum_set_global_step(trn_accum *a, int64_t step);
int64_t trn_accum_count(trn_accum *a);
/* [any] The gradient is borrowed; a dense one is kept, not copied, until a second one comes. */
trn_err trn_accum_apply(trn_accum *a, int64_t local_step, const trn_tensor *grad) TRN_MUST_USE;
/* shape: the dense shape as an int64 vector, or NULL when it is not known. */
trn_err trn_accum_apply_sparse(trn_accum *a, int64_t local_step, const trn_tensor *indices, const trn_tensor *values,
                               const trn_tensor *shape) TRN_MUST_USE;

/* parts: on success 1 tensor (dense) or 3 (sparse: indices, values, shape), to be taken over by the callee; else NULL. [any] */
typedef void (*trn_accum_done)(void *arg, TRN_OWN trn_err err, trn_tensor **parts);
/* [any] Waits, without a thread, for `required` gradients. Calls done once, maybe before it returns, without locks held. */
void trn_accum_take(trn_accum *a, trn_cancel *cancel, int64_t required, trn_accum_done done, void *arg);

#endif
