/* Barriers: values of several components that arrive in any order, keyed by strings; a key whose components are all there is ready, and
 * ready ones are taken in the order in which their keys were first seen. */
#ifndef TRN_BARRIER_H
#define TRN_BARRIER_H

#include "res/queue.h"

typedef struct trn_barrier trn_barrier;
extern const trn_restype trn_barrier_type;

trn_err trn_barrier_new(trn_barrier **out, const char *name, int n, const trn_dtype *types, int n_shapes,
                        const trn_shape *shapes) TRN_MUST_USE;
trn_err trn_barrier_match(const trn_barrier *b, int n, const trn_dtype *types, int n_shapes,
                          const trn_shape *shapes) TRN_MUST_USE;
int trn_barrier_components(const trn_barrier *b, const trn_dtype **types);
/* Row i of values becomes the component of keys[i]. Never waits. After close only keys that are not complete yet may be completed. */
trn_err trn_barrier_insert(trn_barrier *b, const trn_tensor *keys, int component,
                           const trn_tensor *values) TRN_MUST_USE;
/* As trn_queue_dequeue_many; the tuple is indices, keys, components. */
void trn_barrier_take(trn_barrier *b, trn_cancel *cancel, int64_t count, bool small_batch, trn_queue_done done,
                      void *arg);
trn_err trn_barrier_close(trn_barrier *b, bool cancel_pending_enqueues) TRN_MUST_USE;
int64_t trn_barrier_ready(trn_barrier *b);
int64_t trn_barrier_incomplete(trn_barrier *b);

#endif
