/* Where the batches of a trn_arrays come from. Private to input_*.c. */
#ifndef TRN_TRAIN_INPUT_INT_H
#define TRN_TRAIN_INPUT_INT_H

#include <trainera/input.h>

typedef struct trn_rows trn_rows;
struct trn_rows {
    int n;         /* tensors of a batch */
    int64_t total; /* examples */
    bool slow;     /* worth reading ahead, in a thread of its own */
    /* Examples row[0 … n-1] as one new tensor for each array; on failure out is not written. One thread at a time, not always the same. */
    trn_err (*read)(trn_rows *r, trn_tensor **out, const int64_t *row, int64_t n);
    void (*free)(trn_rows *r);
};

/* Takes the rows, also when it fails. */
trn_err trn_arrays__new(trn_arrays **out, TRN_OWN trn_rows *rows, const trn_arrays_opts *opts) TRN_MUST_USE;
/* Rows i, i+1, … of src become rows j, j+1, … of dst; per_row elements each. */
trn_err trn_arrays__copy(trn_tensor *dst, int64_t j, const trn_tensor *src, int64_t i, int64_t rows, int64_t per_row) TRN_MUST_USE;

#endif
