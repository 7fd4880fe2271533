/* Mini-batches of arrays in memory. The order of an epoch follows from seed, epoch and the number of examples alone, so that a run that was interrupted
 * goes on where it was (trn_arrays_rewind), and workers with one seed share out one order. */
#include <trainera/input.h>

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "tensor/tensor.h"

struct trn_arrays {
    trn_tensor **array;
    int n_arrays;
    trn_arrays_opts o;
    int64_t n;      /* examples of this shard */
    int64_t *order; /* example numbers, shuffled for `ordered` */
    int64_t ordered; /* the epoch whose order it is; -1: none */
    int64_t epoch, at;
};

/* Element bytes from row i of src to row j of dst. */
static trn_err copy_rows(trn_tensor *dst, int64_t j, const trn_tensor *src, int64_t i, int64_t rows, int64_t per_row)
{
    if (trn_dtype_is_plain(src->dtype)) {
        size_t row = (size_t)per_row * trn_dtype_size(src->dtype);
        if (row)
            memcpy((char *)trn_tensor_data_mut(dst) + (size_t)j * row, (const char *)trn_tensor_data(src) + (size_t)i * row, (size_t)rows * row);
        return TRN_OK;
    }
    for (int64_t k = 0; k < rows * per_row; k++) {
        size_t n;
        const char *p = trn_tensor_str_at(src, i * per_row + k, &n);
        if (!p)
            return trn_errorf(TRN_INVALID_ARGUMENT, "tensors of %s cannot be cut into rows", trn_dtype_name(src->dtype));
        TRN_TRY(trn_tensor_str_put(dst, j * per_row + k, p, n));
    }
    return TRN_OK;
}

static int64_t row_size(const trn_tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->shape.rank; i++)
        n *= t->shape.dim[i];
    return n;
}

trn_err trn_tensor_rows(trn_tensor **out, const trn_tensor *t, int64_t begin, int64_t n)
{
    char text[TRN_SHAPE_TEXT];
    trn_tensor *rows;
    if (t->shape.rank < 1 || begin < 0 || n < 0 || begin > t->shape.dim[0] || n > t->shape.dim[0] - begin)
        return trn_errorf(TRN_OUT_OF_RANGE, "rows %lld to %lld of a tensor of %s", (long long)begin, (long long)(begin + n), trn_shape_text(text, &t->shape));
    trn_shape shape = t->shape;
    shape.dim[0] = n;
    TRN_TRY(trn_tensor_new(&rows, t->dtype, &shape));
    trn_err err = copy_rows(rows, 0, t, begin, n, row_size(t));
    if (err) {
        trn_tensor_unref(rows);
        return err;
    }
    *out = rows;
    return TRN_OK;
}

trn_err trn_arrays_new(trn_arrays **out, trn_tensor *const *arrays, int n, const trn_arrays_opts *opts)
{
    static const trn_arrays_opts none;
    trn_arrays_opts o = opts ? *opts : none;
    char text[TRN_SHAPE_TEXT], first[TRN_SHAPE_TEXT];
    if (!o.batch)
        o.batch = 32;
    if (!o.shards)
        o.shards = 1;
    if (n < 1 || o.batch < 1 || o.epochs < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: %d arrays, batches of %lld, %lld epochs", n, (long long)o.batch, (long long)o.epochs);
    if (o.shards < 1 || o.shard < 0 || o.shard >= o.shards)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: shard %d of %d", o.shard, o.shards);
    for (int i = 0; i < n; i++) {
        const trn_shape *s = &arrays[i]->shape;
        if (s->rank < 1 || s->dim[0] != arrays[0]->shape.dim[0])
            return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: array %d is %s, but the first is %s; the first dimension counts the examples", i,
                              trn_shape_text(text, s), trn_shape_text(first, &arrays[0]->shape));
    }
    int64_t total = arrays[0]->shape.dim[0], mine = total > o.shard ? (total - o.shard + o.shards - 1) / o.shards : 0;
    if (mine < 1 || (o.drop_remainder && mine < o.batch))
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: shard %d of %d has %lld of %lld examples, which make no batch of %lld", o.shard, o.shards, (long long)mine,
                          (long long)total, (long long)o.batch);
    trn_arrays *a = trn_xalloc(sizeof *a);
    *a = (trn_arrays){.n_arrays = n, .o = o, .n = mine, .ordered = -1};
    a->order = malloc((size_t)mine * sizeof *a->order);
    if (!a->order) {
        free(a);
        return trn_err_oom();
    }
    a->array = trn_xalloc((size_t)n * sizeof *a->array);
    for (int i = 0; i < n; i++)
        a->array[i] = trn_tensor_ref(arrays[i]);
    *out = a;
    return TRN_OK;
}

void trn_arrays_free(trn_arrays *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->n_arrays; i++)
        trn_tensor_unref(a->array[i]);
    free(a->array);
    free(a->order);
    free(a);
}

int64_t trn_arrays_examples(const trn_arrays *a) { return a->n; }
int64_t trn_arrays_batches(const trn_arrays *a) { return a->o.drop_remainder ? a->n / a->o.batch : (a->n + a->o.batch - 1) / a->o.batch; }
int64_t trn_arrays_epoch(const trn_arrays *a) { return a->epoch; }

void trn_arrays_rewind(trn_arrays *a, int64_t batches)
{
    int64_t per_epoch = trn_arrays_batches(a);
    if (batches < 0)
        batches = 0;
    a->epoch = batches / per_epoch;
    a->at = batches % per_epoch * a->o.batch;
}

/* Fisher–Yates; a new one for each epoch, from the same start. */
static void put_in_order(trn_arrays *a)
{
    if (a->ordered == a->epoch || (a->ordered >= 0 && !a->o.shuffle))
        return;
    for (int64_t i = 0; i < a->n; i++)
        a->order[i] = a->o.shard + i * a->o.shards;
    a->ordered = a->epoch;
    if (!a->o.shuffle)
        return;
    trn_philox rng = trn_philox_seed((uint64_t)a->o.seed, (uint64_t)a->epoch);
    uint32_t block[4];
    int used = 4;
    for (int64_t i = a->n - 1; i > 0; i--) {
        if (used > 2) {
            trn_philox_next(&rng, block);
            used = 0;
        }
        uint64_t r = (uint64_t)block[used] << 32 | block[used + 1];
        used += 2;
        int64_t j = (int64_t)(((unsigned __int128)r * (uint64_t)(i + 1)) >> 64), x = a->order[i];
        a->order[i] = a->order[j];
        a->order[j] = x;
    }
}

trn_err trn_arrays_next(trn_tensor **out, trn_arrays *a)
{
    if (a->o.epochs && a->epoch >= a->o.epochs)
        return trn_errorf(TRN_OUT_OF_RANGE, "arrays: all %lld epochs of %lld examples are done", (long long)a->o.epochs, (long long)a->n);
    put_in_order(a);
    int64_t n = TRN_MIN(a->o.batch, a->n - a->at);
    for (int i = 0; i < a->n_arrays; i++) {
        const trn_tensor *src = a->array[i];
        trn_shape shape = src->shape;
        shape.dim[0] = n;
        out[i] = NULL;
        trn_err err = trn_tensor_new(&out[i], src->dtype, &shape);
        int64_t size = row_size(src);
        for (int64_t k = 0; k < n && !err; k++)
            err = copy_rows(out[i], k, src, a->order[a->at + k], 1, size);
        if (err) {
            for (int k = 0; k <= i; k++)
                trn_tensor_unref(out[k]);
            return err;
        }
    }
    a->at += n;
    if (a->at >= a->n || (a->o.drop_remainder && a->at + a->o.batch > a->n)) {
        a->at = 0;
        a->epoch++;
    }
    return TRN_OK;
}
