/* What kernels on sparse tensors share. A sparse tensor is three inputs: indices [n, rank] (int64), values [n], dense shape [rank]. */
#ifndef TRN_OPS_SPARSE_H
#define TRN_OPS_SPARSE_H

#include "ops/kern.h"

typedef struct trn_sparse {
    const trn_tensor *indices, *values; /* values: NULL when there are none to look at */
    const int64_t *ix;                  /* n rows of `rank` */
    int64_t n;
    int rank;
    trn_shape shape; /* dense shape: dims are not negative, their product fits */
} trn_sparse;

/* Inputs i, i+1, i+2. INVALID_ARGUMENT when they make no sparse tensor; indices themselves are not looked at. */
trn_err trn_sparse_in(trn_sparse *out, const trn_kctx *k, int i) TRN_MUST_USE;
trn_err trn_sparse_of(trn_sparse *out, const trn_tensor *indices, const trn_tensor *values,
                      const trn_tensor *shape) TRN_MUST_USE;
/* A shape that is a vector of int64 (or int32): not negative, at most 2^62 elements. */
trn_err trn_sparse_shape(trn_shape *out, const trn_tensor *t, const char *what) TRN_MUST_USE;
trn_err trn_sparse_in_bounds(const trn_sparse *s) TRN_MUST_USE; /* every index lies inside the dense shape */

static inline const int64_t *trn_sparse_row(const trn_sparse *s, int64_t i) { return s->ix + i * s->rank; }
static inline int trn_index_cmp(const int64_t *a, const int64_t *b, int rank)
{
    for (int d = 0; d < rank; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}
/* Permutation that puts the rows into ascending order of the dims order[0 … n_order) (NULL: all, first to last); equal rows keep their order. *out is malloced. */
trn_err trn_sparse_sort(int64_t **out, const int64_t *ix, int64_t n, int rank, const int *order,
                        int n_order) TRN_MUST_USE;

/* Outputs o (indices [n, rank]), o+1 (values [n]), o+2 (shape), as many as wanted (NULL: skip). */
trn_err trn_sparse_out(trn_tensor **indices, trn_tensor **values, trn_kctx *k, int o, int step, int64_t n, int rank,
                       trn_dtype dtype) TRN_MUST_USE;
trn_err trn_sparse_out_shape(trn_kctx *k, int o, const trn_shape *s) TRN_MUST_USE;

#endif
