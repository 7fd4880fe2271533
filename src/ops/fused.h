/* Activations that the master's optimiser folds into the node before them. */
#ifndef TRN_OPS_FUSED_H
#define TRN_OPS_FUSED_H

#include <trainera/op.h>

typedef enum trn_act { TRN_ACT_NONE, TRN_ACT_RELU, TRN_ACT_RELU6, TRN_ACT_ELU, TRN_ACT_LEAKY, TRN_ACT_TANH, TRN_ACT_SIGMOID } trn_act;

bool trn_act_of(trn_act *out, const char *op); /* false: no such activation */
void trn_act_f32(float *x, int64_t n, trn_act act, float alpha);
void trn_act_f64(double *x, int64_t n, trn_act act, float alpha);

#endif
