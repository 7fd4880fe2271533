/* Iterators as resources: what IteratorV2, OneShotIterator and the anonymous ones make. Holds one walk over a dataset (res/dataset.h) at a time; MakeIterator
 * puts a new one in its place.
 *
 * Requests are served one after the other, in the order in which they came; a request that waits holds no thread and ends with its step's
 * cancellation, or when the container is cleared. */
#ifndef TRN_ITER_H
#define TRN_ITER_H

#include "res/dataset.h"
#include "res/res.h"

typedef struct trn_iter trn_iter;
extern const trn_restype trn_iter_type;
#define TRN_ITER_TYPE_NAME "tensorflow::data::IteratorResource"

/* n -1: types are not checked (an iterator from a string handle). */
trn_iter *trn_iter_new(const char *name, int n, const trn_dtype *types, const trn_shape *shapes);
/* What a node says the elements are; INVALID_ARGUMENT when the iterator has others. n -1: anything. */
trn_err trn_iter_match(const trn_iter *i, int n, const trn_dtype *types, const trn_shape *shapes) TRN_MUST_USE;
trn_err trn_elem_types_match(int n, const trn_dtype *types, const trn_shape *shapes, int n2, const trn_dtype *types2,
                             const trn_shape *shapes2) TRN_MUST_USE;
/* A new walk; the old one ends, and those who wait for it get CANCELLED. */
trn_err trn_iter_set(trn_iter *i, trn_ds *d, const trn_host *host) TRN_MUST_USE;
/* e NULL without an error: the end. */
typedef void (*trn_iter_done)(void *arg, TRN_OWN trn_err err, TRN_OWN trn_elem *e);
/* [any] `done` once, on any thread, maybe before this returns. FAILED_PRECONDITION without a walk. */
void trn_iter_next(trn_iter *i, trn_cancel *cancel, trn_iter_done done, void *arg);

/* Where it stands: how many pulls the walk has answered, and what it began with (trn_ds_save). FAILED_PRECONDITION without a walk. */
trn_err trn_iter_save(trn_sb *out, trn_iter *i, bool strict) TRN_MUST_USE; /* strict: trn_ds_check_external */
/* [any] A new walk over the same dataset, pulled until it stands there: as long as it took the first time. Who asks for elements meanwhile waits.
 * `done` (e is NULL) as in trn_iter_next. */
void trn_iter_load(trn_iter *i, const void *p, size_t n, const trn_host *host, trn_cancel *cancel, trn_iter_done done, void *arg);

/* For OneShotIterator. True: the caller is the first and must end with trn_iter_ready. False: `ready` runs later (or has run) with the outcome. */
typedef void (*trn_iter_ready_fn)(void *arg, TRN_OWN trn_err err);
bool trn_iter_first(trn_iter *i, trn_cancel *cancel, trn_iter_ready_fn ready, void *arg);
void trn_iter_ready(trn_iter *i, TRN_OWN trn_err err);

#endif
