/* Datasets in files, as tf.data.Dataset.save and snapshot leave them:
 *
 *     <dir>/snapshot.metadata                       SnapshotMetadataRecord: which run is the one to read, and whether it is whole
 *     <dir>/<run>/<8 digits>.shard/<8 digits>.snapshot   elements, in the order in which they came to this shard
 *
 * A file holds TFRecords, one TensorProto each, a record for every component (version 2); versions 0 and 1, which old TensorFlows wrote, are read only. A writer's
 * files appear when it is finished, then the metadata say that they are whole. Everything but trn_snapshot_file_next blocks. */
#ifndef TRN_SNAPSHOT_H
#define TRN_SNAPSHOT_H

#include "ckpt/stream.h"
#include "tensor/tensor.h"

#define TRN_SNAPSHOT_VERSION 2

typedef struct trn_snapshot_meta {
    char *run; /* the folder's name; never a path */
    int64_t version, elements;
    bool finished;
} trn_snapshot_meta;
/* *found false: there are none, that is nothing was saved here. DATA_LOSS. */
trn_err trn_snapshot_meta_read(trn_snapshot_meta *out, bool *found, const char *dir) TRN_MUST_USE;
trn_err trn_snapshot_meta_parse(trn_snapshot_meta *out, const void *p, size_t n) TRN_MUST_USE;
void trn_snapshot_meta_fini(trn_snapshot_meta *m);
/* The run's shards in order: paths, which the caller frees, and the array. */
trn_err trn_snapshot_shards(char ***out, int *n, const char *dir, const trn_snapshot_meta *m) TRN_MUST_USE;
char *trn_snapshot_file_name(const char *shard, int64_t i); /* its i-th file */
char *trn_path_join(const char *a, const char *b);          /* "": the other one */

/* ---- writing ------------------------------------------------------------------------------------------------------- */

typedef struct trn_snapshot_run trn_snapshot_run;
/* A new run in `dir`; until it is finished the metadata say that there is one that is not. hash: "", or what was saved. */
trn_err trn_snapshot_run_open(trn_snapshot_run **out, const char *dir, const char *hash, trn_compression c, const trn_dtype *types, int n) TRN_MUST_USE;
/* UNIMPLEMENTED for what no message can hold; RESOURCE_EXHAUSTED for more than a thousand shards and for components of more than 1 GiB. */
trn_err trn_snapshot_run_add(trn_snapshot_run *r, int64_t shard, trn_tensor *const *t, int n) TRN_MUST_USE;
/* Frees it, also when it fails. */
trn_err trn_snapshot_run_finish(TRN_OWN trn_snapshot_run *r, int64_t elements) TRN_MUST_USE;
void trn_snapshot_run_drop(TRN_OWN trn_snapshot_run *r); /* what it wrote is gone; NULL is fine */

/* ---- reading ------------------------------------------------------------------------------------------------------- */

typedef struct trn_snapshot_file trn_snapshot_file;
trn_err trn_snapshot_check_version(int64_t version) TRN_MUST_USE; /* INVALID_ARGUMENT */
/* types must stay. NOT_FOUND. */
trn_err trn_snapshot_file_open(trn_snapshot_file **out, const char *path, trn_compression c, int64_t version, const trn_dtype *types, int n) TRN_MUST_USE;
trn_err trn_snapshot_file_on_memory(trn_snapshot_file **out, const void *p, size_t size, trn_compression c, int64_t version, const trn_dtype *types, int n) TRN_MUST_USE;
void trn_snapshot_file_close(trn_snapshot_file *f); /* NULL is fine */
trn_err trn_snapshot_file_fill(trn_snapshot_file *f) TRN_MUST_USE;
/* The n tensors of the next element, if there is a whole one in the window. DATA_LOSS. */
trn_err trn_snapshot_file_next(trn_cut *out, trn_snapshot_file *f, trn_tensor **t) TRN_MUST_USE;

/* ---- tensors as bytes ------------------------------------------------------------------------------------------------ */

/* A TensorProto whose values are in tensor_content, strings too. Appended. */
trn_err trn_snapshot_put_tensor(trn_sb *out, const trn_tensor *t) TRN_MUST_USE;
trn_err trn_snapshot_parse_tensor(trn_tensor **out, const void *p, size_t n) TRN_MUST_USE;

#endif
