/* The messages in checkpoints' tables. Private to ckpt/. */
#ifndef TRN_CKPT_ENTRY_H
#define TRN_CKPT_ENTRY_H

#include "ckpt/slice.h"

typedef struct trn_bundle_entry {
    trn_dtype dtype;
    trn_shape shape;
    int32_t shard;
    uint64_t offset, size;
    uint32_t crc; /* masked */
    int n_slices, cap_slices;
    trn_slicespec *slice; /* of a tensor in pieces: where they lie in it; bytes are under their own keys */
} trn_bundle_entry;

typedef struct trn_bundle_header {
    int32_t shards;
    bool big_endian;
    int32_t producer, min_consumer;
} trn_bundle_header;

void trn_bundle_entry_fini(trn_bundle_entry *e);
void trn_bundle_entry_put(trn_sb *out, const trn_bundle_entry *e);
/* DATA_LOSS with `where` in it. */
trn_err trn_bundle_entry_parse(trn_bundle_entry *out, const char *where, const void *p, size_t n) TRN_MUST_USE;
void trn_bundle_header_put(trn_sb *out, const trn_bundle_header *h);
trn_err trn_bundle_header_parse(trn_bundle_header *out, const char *where, const void *p, size_t n) TRN_MUST_USE;

/* TensorShapeProto and TensorSliceProto; both versions of checkpoints have them. */
void trn_ckpt__put_shape(trn_sb *out, uint32_t field, const trn_shape *s);
void trn_ckpt__put_slice(trn_sb *out, uint32_t field, const trn_slicespec *s);
trn_err trn_ckpt__parse_shape(trn_shape *out, const char *where, const void *p,
                              size_t n) TRN_MUST_USE; /* fully known */
trn_err trn_ckpt__parse_slice(trn_slicespec *out, const char *where, const void *p, size_t n) TRN_MUST_USE;

#endif
