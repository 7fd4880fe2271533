/* Queues of tensor tuples: FIFO, padding FIFO, random shuffle, priority. Calls that have to wait hold no thread: they end by callback.
 *
 * Order among waiters is the order of arrival, for those who put and for those who take; the first one may have part of what it wants
 * while it waits (a batch larger than the capacity passes through), and puts it back in place when it is cancelled or the queue closes.
 * Messages and codes are TensorFlow's: programs look for OUT_OF_RANGE and CANCELLED. */
#ifndef TRN_QUEUE_H
#define TRN_QUEUE_H

#include "op/cancel.h"
#include "res/res.h"

typedef enum trn_queue_kind { TRN_QUEUE_FIFO, TRN_QUEUE_PADDING, TRN_QUEUE_SHUFFLE, TRN_QUEUE_PRIORITY } trn_queue_kind;

/* What a node says about its queue. Of a priority queue, component 0 is the int64 priority. */
typedef struct trn_queue_spec {
    trn_queue_kind kind;
    int64_t capacity; /* < 0: no limit */
    int n;            /* components of a tuple */
    const trn_dtype *types;
    int n_shapes;                           /* 0: shapes are not fixed; else n */
    const trn_shape *shapes;                /* partial for padding queues only */
    int64_t min_after_dequeue, seed, seed2; /* shuffle */
} trn_queue_spec;

typedef struct trn_queue trn_queue;
extern const trn_restype trn_queue_type;

trn_err trn_queue_new(trn_queue **out, const char *name, const trn_queue_spec *spec) TRN_MUST_USE;
/* INVALID_ARGUMENT when a node that names the queue wants another one. */
trn_err trn_queue_match(const trn_queue *q, const trn_queue_spec *spec) TRN_MUST_USE;
int trn_queue_components(const trn_queue *q, const trn_dtype **types);
int64_t trn_queue_size(trn_queue *q);
bool trn_queue_is_closed(trn_queue *q);

/* tuple: on success of a dequeue its components, to be taken over by the callee (the array is not); else NULL. [any] */
typedef void (*trn_queue_done)(void *arg, TRN_OWN trn_err err, trn_tensor **tuple);
/* [any] All call done exactly once, maybe before they return, never with a lock held. Tuples are borrowed and checked: number, dtypes and
 * shapes. `cancel` may be NULL; it must live until done. */
void trn_queue_enqueue(trn_queue *q, trn_cancel *cancel, trn_tensor *const *tuple, int n, trn_queue_done done,
                       void *arg);
void trn_queue_enqueue_many(trn_queue *q, trn_cancel *cancel, trn_tensor *const *tuple, int n, trn_queue_done done,
                            void *arg);
void trn_queue_dequeue(trn_queue *q, trn_cancel *cancel, trn_queue_done done, void *arg);
/* up_to: a closed queue gives what it has, at least one. */
void trn_queue_dequeue_many(trn_queue *q, trn_cancel *cancel, int64_t count, bool up_to, trn_queue_done done,
                            void *arg);
/* Closes behind the enqueues that wait (`done` then waits too), or cancels them. */
void trn_queue_close(trn_queue *q, bool cancel_pending_enqueues, trn_queue_done done, void *arg);

#endif
