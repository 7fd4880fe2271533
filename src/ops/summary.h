/* Values of a Summary message: what summary ops put in a string, and what writers put in an event file. All append to `out`, also when they fail. */
#ifndef TRN_OPS_SUMMARY_H
#define TRN_OPS_SUMMARY_H

#include "tensor/tensor.h"

#define TRN_SUMMARY_MAX ((size_t)INT32_MAX) /* bytes of one message */

/* Element i of x; also tells the status page. */
void trn_summary__scalar(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t i);
/* Tells the status page of a tensor that is a scalar to TensorBoard, as tf.summary.scalar writes it; others are nothing to it. */
void trn_summary__note(const trn_str *tag, const trn_tensor *x, const trn_str *meta);
trn_err trn_summary__histogram(trn_sb *out, const trn_str *tag, const trn_tensor *x, const char *who) TRN_MUST_USE; /* `who`: for messages */
/* bad: bytes of the colour for pixels that are not finite. */
trn_err trn_summary__image(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t max, const trn_tensor *bad) TRN_MUST_USE;
trn_err trn_summary__audio(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t max, float rate) TRN_MUST_USE;

#endif
