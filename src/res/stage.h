/* Staging areas: tuples of tensors put by one part of a step (or by another step) and taken by the next, first in first out, with a limit on
 * their number and on their bytes. */
#ifndef TRN_STAGE_H
#define TRN_STAGE_H

#include "op/cancel.h"
#include "res/res.h"

typedef struct trn_stage trn_stage;
extern const trn_restype trn_stage_type;

trn_stage *trn_stage_new(const char *name, int64_t capacity, int64_t memory_limit); /* 0: no limit */
/* tuple: n tensors to be taken over by the callee (the array is not), NULL for put and on errors. [any] */
typedef void (*trn_stage_done)(void *arg, TRN_OWN trn_err err, trn_tensor **tuple, int n);
/* [any] All call done once, maybe before they return, without locks held. */
void trn_stage_put(trn_stage *s, trn_cancel *cancel, trn_tensor *const *tuple, int n, trn_stage_done done, void *arg);
void trn_stage_take(trn_stage *s, trn_cancel *cancel, trn_stage_done done, void *arg);
void trn_stage_peek(trn_stage *s, trn_cancel *cancel, int64_t index, trn_stage_done done,
                    void *arg); /* leaves it there */
int64_t trn_stage_size(trn_stage *s);
void trn_stage_clear(trn_stage *s); /* drops what is in it; who waits, waits on */

#endif
