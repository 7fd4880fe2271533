/* TensorBundles, TensorFlow's checkpoints (version 2): <prefix>.index says for every name where in <prefix>.data-0000i-of-0000n its bytes
 * lie; the README has the layout.
 *
 * A prefix is complete exactly when its .index is there: it is put in place last, after everything it tells of is on disk. */
#ifndef TRN_BUNDLE_H
#define TRN_BUNDLE_H

#include "ckpt/slice.h"

/* "<prefix>.index", "<prefix>.data-00001-of-00004"; the caller frees. */
char *trn_bundle_index_name(const char *prefix);
char *trn_bundle_data_name(const char *prefix, int shard, int shards);

/* ---- writing: one shard ---------------------------------------------------------------------------------------- */

typedef struct trn_bundle_writer trn_bundle_writer;
trn_err trn_bundle_writer_open(trn_bundle_writer **out, const char *prefix) TRN_MUST_USE;
/* Bytes go from the tensor to the file as they are. Names are unique (INVALID_ARGUMENT). No variants, no handles (UNIMPLEMENTED). */
trn_err trn_bundle_add(trn_bundle_writer *w, const char *name, size_t n, const trn_tensor *t) TRN_MUST_USE;
/* One piece of a tensor of shape `full`. Pieces of one tensor may come in any order, and from several bundles that are merged later. */
trn_err trn_bundle_add_slice(trn_bundle_writer *w, const char *name, size_t n, const trn_shape *full,
                             const trn_slicespec *slice, const trn_tensor *t) TRN_MUST_USE;
/* Puts the checkpoint in place; frees the writer, also when it fails. */
trn_err trn_bundle_finish(TRN_OWN trn_bundle_writer *w) TRN_MUST_USE;
void trn_bundle_abort(TRN_OWN trn_bundle_writer *w); /* leaves nothing behind; NULL is fine */

/* One checkpoint out of several: moves their data files and writes one index. The old indexes are removed. */
trn_err trn_bundle_merge(const char *const *prefixes, int n, const char *to, bool allow_missing) TRN_MUST_USE;

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* One reader at a time. Errors: NOT_FOUND (no such checkpoint or name), DATA_LOSS (damaged). */
typedef struct trn_bundle trn_bundle;
trn_err trn_bundle_open(trn_bundle **out, const char *prefix) TRN_MUST_USE;
/* For fuzzers: an index in memory; its data files are one empty file. */
trn_err trn_bundle_open_memory(trn_bundle **out, const void *index, size_t n_index, const void *data,
                               size_t n_data) TRN_MUST_USE;
void trn_bundle_close(trn_bundle *b);
trn_err trn_bundle_find(trn_dtype *dtype, trn_shape *shape, trn_bundle *b, const char *name, size_t n) TRN_MUST_USE;
/* In which data file its bytes lie (-1: several), how many they are there, in how many pieces it was saved (0: whole). */
typedef struct trn_bundle_place { int shard; uint64_t bytes; int pieces; } trn_bundle_place;
trn_err trn_bundle_where(trn_bundle_place *out, trn_bundle *b, const char *name, size_t n) TRN_MUST_USE;
int trn_bundle_shards(const trn_bundle *b);
/* The whole tensor, put together when it was saved in pieces. */
trn_err trn_bundle_read(trn_tensor **out, trn_bundle *b, const char *name, size_t n) TRN_MUST_USE;
trn_err trn_bundle_read_slice(trn_tensor **out, trn_bundle *b, const char *name, size_t n,
                              const trn_slicespec *slice) TRN_MUST_USE;
/* Names in order; pieces of partitioned tensors are left out. `name` is valid during the call. An error ends the walk. */
trn_err trn_bundle_each(trn_bundle *b,
                        trn_err (*fn)(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape),
                        void *arg) TRN_MUST_USE;

#endif
