/* What other folders use of the structural ops. */
#ifndef TRN_OPS_CONTROL_H
#define TRN_OPS_CONTROL_H

#include "tensor/tensor.h"

#include <trainera/op.h>

/* For asynchronous kernels: calls `f` on the inputs from `first` on, its results become the node's outputs, then the node is done. */
trn_err trn_ops_call(trn_kctx *k, const trn_func_ref *f, int first) TRN_MUST_USE;

/* An attr of a function that is called: the device that its nodes without one are on. */
#define TRN_CALL_TARGET "_target"

/* A tensor's value as TensorFlow's messages show it: "1 2 3...", "[1 2][3 4]". max < 0: all of it. */
void trn_summarize(trn_sb *out, const trn_tensor *t, int64_t max);
/* The newer form, with brackets and line breaks (StringFormat). */
void trn_summarize_v2(trn_sb *out, const trn_tensor *t, int64_t max);

#endif
