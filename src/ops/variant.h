/* Arithmetic on what variants hold (AddN and ZerosLike of lists, whose elements may be lists again), and optional values. */
#ifndef TRN_OPS_VARIANT_H
#define TRN_OPS_VARIANT_H

#include "tensor/tensor.h"

/* An empty variant counts as zero. UNIMPLEMENTED for what cannot be added. */
trn_err trn_variant_add(trn_variant **out, trn_variant *a, trn_variant *b) TRN_MUST_USE;
trn_err trn_variant_zeros_like(trn_variant **out, trn_variant *v) TRN_MUST_USE;
/* Sum of tensors of one dtype and shape; zeros of a tensor's dtype and shape. Any dtype that can be added, variants too. */
trn_err trn_tensor_sum(trn_tensor **out, const trn_tensor *a, const trn_tensor *b) TRN_MUST_USE;
trn_err trn_tensor_zeros_like(trn_tensor **out, const trn_tensor *t) TRN_MUST_USE;

/* An optional that holds references to these tensors, or (t NULL) nothing. */
trn_variant *trn_optional_of(trn_tensor *const *t, int n);

#endif
