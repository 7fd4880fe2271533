/* Version 1 checkpoints: one table that holds the tensors themselves, as messages (SaveSlices, Save, Restore, RestoreSlice). A tensor's
 * slices may lie in several files, which a pattern names. New checkpoints are bundles (bundle.h); this is for old graphs and old files. */
#ifndef TRN_CKPT_V1_H
#define TRN_CKPT_V1_H

#include "ckpt/slice.h"

typedef struct trn_v1_writer trn_v1_writer;
trn_v1_writer *trn_v1_writer_new(const char *path);
/* Kept in memory until finish: the format wants its list of names first. */
trn_err trn_v1_add(trn_v1_writer *w, const char *name, size_t n, const trn_shape *full, const trn_slicespec *slice,
                   const trn_tensor *t) TRN_MUST_USE;
trn_err trn_v1_finish(TRN_OWN trn_v1_writer *w) TRN_MUST_USE;
void trn_v1_abort(TRN_OWN trn_v1_writer *w);

typedef struct trn_v1 trn_v1;
/* All files that the pattern (as glob) matches; NOT_FOUND when there is none. `allow` may refuse a file. */
trn_err trn_v1_open(trn_v1 **out, const char *pattern, trn_err (*allow)(void *arg, const char *path),
                    void *arg) TRN_MUST_USE;
trn_err trn_v1_open_memory(trn_v1 **out, const void *p, size_t n) TRN_MUST_USE; /* for fuzzers */
void trn_v1_close(trn_v1 *r);
trn_err trn_v1_find(trn_dtype *dtype, trn_shape *shape, trn_v1 *r, const char *name, size_t n) TRN_MUST_USE;
/* Names in no order. `name` is valid during the call. An error ends the walk. */
trn_err trn_v1_each(const trn_v1 *r, trn_err (*fn)(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape),
                    void *arg) TRN_MUST_USE;
trn_err trn_v1_read(trn_tensor **out, trn_v1 *r, const char *name, size_t n, const trn_slicespec *slice) TRN_MUST_USE;

#endif
