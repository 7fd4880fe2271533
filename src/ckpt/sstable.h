/* Sorted string tables in LevelDB's format: the .index of a TensorBundle, and the whole of a version 1 checkpoint.
 *
 * blocks of (key, value) in key order, keys sharing prefixes | empty metaindex block | index block: one key per block that is not less
 * than the block's keys and less than the next block's | footer. Every block is followed by a type byte (0: as it is) and a masked
 * checksum. What we write is byte for byte what TensorFlow writes. */
#ifndef TRN_SSTABLE_H
#define TRN_SSTABLE_H

#include "ckpt/file.h"

/* ---- writing -------------------------------------------------------------------------------------------------- */

typedef struct trn_sst_writer trn_sst_writer;
trn_sst_writer *trn_sst_writer_new(trn_outfile *f); /* borrows f */
void trn_sst_writer_free(trn_sst_writer *w);
/* Keys come in rising order: INTERNAL otherwise. */
trn_err trn_sst_add(trn_sst_writer *w, const void *key, size_t n_key, const void *val, size_t n_val) TRN_MUST_USE;
trn_err trn_sst_finish(trn_sst_writer *w) TRN_MUST_USE; /* all but the file's commit */

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* One reader at a time. Damage is DATA_LOSS with the file's name. */
typedef struct trn_sst trn_sst;
trn_err trn_sst_open(trn_sst **out, trn_infile *f) TRN_MUST_USE; /* borrows f */
void trn_sst_close(trn_sst *t);

/* Stands before the first entry whose key is not less than `key`. */
trn_err trn_sst_seek(trn_sst *t, const void *key, size_t n) TRN_MUST_USE;
/* The next entry; *found is false at the end. Bytes are valid until the next call. */
typedef struct trn_sst_entry {
    const char *key;
    size_t n_key;
    const uint8_t *val;
    size_t n_val;
} trn_sst_entry;
trn_err trn_sst_next(trn_sst_entry *out, bool *found, trn_sst *t) TRN_MUST_USE;

#endif
