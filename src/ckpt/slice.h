/* Slices of partitioned tensors: "10 4 0,5:-" is rows 0 to 4 and all columns of a [10,4] tensor. */
#ifndef TRN_CKPT_SLICE_H
#define TRN_CKPT_SLICE_H

#include "tensor/tensor.h"

/* A box; length -1 is everything along that dimension (its start is 0). */
typedef struct trn_slicespec {
    int rank;
    int64_t start[TRN_MAX_RANK], length[TRN_MAX_RANK];
} trn_slicespec;

trn_slicespec trn_slicespec_full(int rank);
/* "dim dim … start,length:-:…" into the full shape and the slice. INVALID_ARGUMENT when it makes no sense. */
trn_err trn_slicespec_parse(trn_shape *shape, trn_slicespec *slice, const char *text, size_t n) TRN_MUST_USE;
/* The shape of the slice of a tensor; INVALID_ARGUMENT when it does not lie inside. */
trn_err trn_slicespec_shape(trn_shape *out, const trn_slicespec *s, const trn_shape *full) TRN_MUST_USE;
bool trn_slicespec_eq(const trn_slicespec *a, const trn_slicespec *b);
bool trn_slicespec_is_full(const trn_slicespec *s, const trn_shape *full); /* covers the whole tensor */
void trn_slicespec_text(trn_sb *out, const trn_slicespec *s);
/* What both cover, as start and length in the full tensor; false when that is nothing. All inside `full`. */
bool trn_slicespec_overlap(trn_slicespec *out, const trn_slicespec *a, const trn_slicespec *b, const trn_shape *full);
/* Copies the elements that both slices of one full tensor cover. */
trn_err trn_slice_copy(trn_tensor *dst, const trn_slicespec *dst_slice, const trn_tensor *src,
                       const trn_slicespec *src_slice, const trn_shape *full) TRN_MUST_USE;

/* The wanted slice of a tensor that is there in pieces. read(out, arg, i) gives piece i, of the shape its slice has. INVALID_ARGUMENT when
 * the pieces do not cover it, DATA_LOSS when they overlap or are said to have more elements than their files have bytes (`most`). */
trn_err trn_slice_gather(trn_tensor **out, const char *name, size_t n, trn_dtype dtype, const trn_shape *full,
                         const trn_slicespec *piece, int n_pieces, const trn_slicespec *want, uint64_t most,
                         trn_err (*read)(trn_tensor **out, void *arg, int i), void *arg) TRN_MUST_USE;

/* The key under which a table holds a slice: an order-keeping code of name and box. */
void trn_slicespec_key(trn_sb *out, const char *name, size_t n, const trn_slicespec *s);

#endif
