/* Snappy's raw format: the length, then literals and copies of what came before. Blocks of it make up compressed snapshots of datasets (stream.h) and elements
 * that CompressElement made. [any] */
#ifndef TRN_SNAPPY_H
#define TRN_SNAPPY_H

#include "base/base.h"

/* Appends n bytes, compressed; n < 4 GiB. */
void trn_snappy_compress(trn_sb *out, const void *p, size_t n);
/* How many bytes the n stand for; DATA_LOSS when they cannot stand for so many, so that this much memory may be asked for. */
trn_err trn_snappy_size(size_t *out, const void *p, size_t n) TRN_MUST_USE;
/* To `out`, which has room for exactly as many. DATA_LOSS. */
trn_err trn_snappy_uncompress(void *out, size_t size, const void *p, size_t n) TRN_MUST_USE;

#endif
