/* Mini-batches: their order, and arrays in memory (input_file.c has those in files). The order of an epoch follows from seed, epoch and the number of
 * examples alone, so that a run that was interrupted goes on where it was (trn_arrays_rewind), and workers with one seed share out one order. */
#include "train/input_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "tensor/tensor.h"

/* The batch behind the one that was taken last, read by a thread while the step runs.
 *
 *     IDLE ── ask ──▶ WANTED ── the thread has read it ──▶ READY ── taken, or dropped after a rewind ──▶ IDLE
 */
typedef struct ahead {
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t changed; /* any of the fields below */
    enum { IDLE, WANTED, READY } state;
    bool ending;
    int64_t epoch, at; /* which batch it is */
    int64_t *row, n;   /* its examples */
    trn_tensor **got;  /* READY without error */
    trn_err err;
} ahead;

struct trn_arrays {
    trn_rows *rows;
    trn_arrays_opts o;
    int64_t n;      /* examples of this shard */
    int64_t *order; /* example numbers, shuffled for `ordered` */
    int64_t ordered; /* the epoch whose order it is; -1: none */
    int64_t epoch, at;
    ahead *ahead; /* NULL: batches are read when they are asked for */
};

trn_err trn_arrays__copy(trn_tensor *dst, int64_t j, const trn_tensor *src, int64_t i, int64_t rows, int64_t per_row)
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
    trn_err err = trn_arrays__copy(rows, 0, t, begin, n, row_size(t));
    if (err) {
        trn_tensor_unref(rows);
        return err;
    }
    *out = rows;
    return TRN_OK;
}

/* ---- arrays in memory ---------------------------------------------------------------------------------------------- */

typedef struct held {
    trn_rows rows;
    trn_tensor *array[];
} held;

static trn_err held_read(trn_rows *r, trn_tensor **out, const int64_t *row, int64_t n)
{
    held *h = (held *)r;
    for (int i = 0; i < r->n; i++) {
        const trn_tensor *src = h->array[i];
        trn_shape shape = src->shape;
        shape.dim[0] = n;
        out[i] = NULL;
        trn_err err = trn_tensor_new(&out[i], src->dtype, &shape);
        int64_t size = row_size(src);
        for (int64_t k = 0; k < n && !err; k++)
            err = trn_arrays__copy(out[i], k, src, row[k], 1, size);
        if (err) {
            for (int k = 0; k <= i; k++)
                trn_tensor_unref(out[k]);
            return err;
        }
    }
    return TRN_OK;
}

static void held_free(trn_rows *r)
{
    for (int i = 0; i < r->n; i++)
        trn_tensor_unref(((held *)r)->array[i]);
    free(r);
}

trn_err trn_arrays_new(trn_arrays **out, trn_tensor *const *arrays, int n, const trn_arrays_opts *opts)
{
    char text[TRN_SHAPE_TEXT], first[TRN_SHAPE_TEXT];
    if (n < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: %d arrays", n);
    for (int i = 0; i < n; i++) {
        const trn_shape *s = &arrays[i]->shape;
        if (s->rank < 1 || s->dim[0] != arrays[0]->shape.dim[0])
            return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: array %d is %s, but the first is %s; the first dimension counts the examples", i,
                              trn_shape_text(text, s), trn_shape_text(first, &arrays[0]->shape));
    }
    held *h = trn_xalloc(sizeof *h + (size_t)n * sizeof *h->array);
    h->rows = (trn_rows){.n = n, .total = arrays[0]->shape.dim[0], .read = held_read, .free = held_free};
    for (int i = 0; i < n; i++)
        h->array[i] = trn_tensor_ref(arrays[i]);
    return trn_arrays__new(out, &h->rows, opts);
}

/* ---- reading ahead ------------------------------------------------------------------------------------------------- */

static void *ahead_main(void *arg)
{
    trn_arrays *a = arg;
    ahead *h = a->ahead;
    pthread_mutex_lock(&h->mu);
    while (!h->ending) {
        if (h->state != WANTED) {
            pthread_cond_wait(&h->changed, &h->mu);
            continue;
        }
        pthread_mutex_unlock(&h->mu); /* what it was asked for does not change while it is WANTED */
        trn_err err = a->rows->read(a->rows, h->got, h->row, h->n);
        pthread_mutex_lock(&h->mu);
        h->err = err;
        h->state = READY;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->mu);
    return NULL;
}

/* Without memory or threads for it there is none: batches are then read when they are asked for. */
static void ahead_start(trn_arrays *a)
{
    ahead *h = trn_xalloc(sizeof *h);
    *h = (ahead){.row = malloc((size_t)TRN_MIN(a->o.batch, a->n) * sizeof *h->row), .got = trn_xalloc((size_t)a->rows->n * sizeof *h->got)};
    pthread_mutex_init(&h->mu, NULL);
    pthread_cond_init(&h->changed, NULL);
    a->ahead = h;
    if (h->row && pthread_create(&h->thread, NULL, ahead_main, a) == 0)
        return;
    a->ahead = NULL;
    pthread_mutex_destroy(&h->mu);
    pthread_cond_destroy(&h->changed);
    free(h->row);
    free(h->got);
    free(h);
}

/* Under mu, READY: nobody wants it any more. */
static void ahead_drop(ahead *h, int n_arrays)
{
    if (!h->err)
        for (int i = 0; i < n_arrays; i++)
            trn_tensor_unref(h->got[i]);
    trn_err_free(h->err);
    h->err = TRN_OK;
    h->state = IDLE;
}

static void ahead_stop(trn_arrays *a)
{
    ahead *h = a->ahead;
    if (!h)
        return;
    pthread_mutex_lock(&h->mu);
    h->ending = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mu);
    pthread_join(h->thread, NULL);
    if (h->state == READY)
        ahead_drop(h, a->rows->n);
    pthread_mutex_destroy(&h->mu);
    pthread_cond_destroy(&h->changed);
    free(h->row);
    free(h->got);
    free(h);
}

/* ---- batches ------------------------------------------------------------------------------------------------------- */

trn_err trn_arrays__new(trn_arrays **out, trn_rows *rows, const trn_arrays_opts *opts)
{
    static const trn_arrays_opts none;
    trn_arrays_opts o = opts ? *opts : none;
    trn_err err = TRN_OK;
    if (!o.batch)
        o.batch = 32;
    if (!o.shards)
        o.shards = 1;
    int64_t total = rows->total, mine = 0;
    if (o.batch < 1 || o.epochs < 0)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "arrays: batches of %lld, %lld epochs", (long long)o.batch, (long long)o.epochs);
    else if (o.shards < 1 || o.shard < 0 || o.shard >= o.shards)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "arrays: shard %d of %d", o.shard, o.shards);
    else {
        mine = total > o.shard ? (total - o.shard + o.shards - 1) / o.shards : 0;
        if (mine < 1 || (o.drop_remainder && mine < o.batch))
            err = trn_errorf(TRN_INVALID_ARGUMENT, "arrays: shard %d of %d has %lld of %lld examples, which make no batch of %lld", o.shard, o.shards,
                             (long long)mine, (long long)total, (long long)o.batch);
    }
    int64_t *order = err || mine > INT64_MAX / 16 ? NULL : malloc((size_t)mine * sizeof *order);
    if (!err && !order)
        err = trn_err_oom();
    if (err) {
        rows->free(rows);
        return err;
    }
    trn_arrays *a = trn_xalloc(sizeof *a);
    *a = (trn_arrays){.rows = rows, .o = o, .n = mine, .order = order, .ordered = -1};
    if (rows->slow)
        ahead_start(a);
    *out = a;
    return TRN_OK;
}

void trn_arrays_free(trn_arrays *a)
{
    if (!a)
        return;
    ahead_stop(a);
    a->rows->free(a->rows);
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

static bool at_end(const trn_arrays *a) { return a->o.epochs && a->epoch >= a->o.epochs; }

static void advance(trn_arrays *a)
{
    a->at += TRN_MIN(a->o.batch, a->n - a->at);
    if (a->at >= a->n || (a->o.drop_remainder && a->at + a->o.batch > a->n)) {
        a->at = 0;
        a->epoch++;
    }
}

/* Under mu, IDLE: the batch at our place, please. */
static void ask(trn_arrays *a)
{
    ahead *h = a->ahead;
    put_in_order(a);
    h->n = TRN_MIN(a->o.batch, a->n - a->at);
    memcpy(h->row, a->order + a->at, (size_t)h->n * sizeof *h->row);
    h->epoch = a->epoch;
    h->at = a->at;
    h->state = WANTED;
    pthread_cond_broadcast(&h->changed);
}

static trn_err next_ahead(trn_tensor **out, trn_arrays *a)
{
    ahead *h = a->ahead;
    pthread_mutex_lock(&h->mu);
    for (;;) {
        if (h->state == READY && h->epoch == a->epoch && h->at == a->at)
            break;
        if (h->state == READY)
            ahead_drop(h, a->rows->n);
        if (h->state == IDLE)
            ask(a);
        pthread_cond_wait(&h->changed, &h->mu);
    }
    trn_err err = h->err;
    h->err = TRN_OK;
    h->state = IDLE;
    if (!err) {
        memcpy(out, h->got, (size_t)a->rows->n * sizeof *out);
        advance(a);
        if (!at_end(a))
            ask(a);
    }
    pthread_mutex_unlock(&h->mu);
    return err;
}

trn_err trn_arrays_next(trn_tensor **out, trn_arrays *a)
{
    if (at_end(a))
        return trn_errorf(TRN_OUT_OF_RANGE, "arrays: all %lld epochs of %lld examples are done", (long long)a->o.epochs, (long long)a->n);
    if (a->ahead)
        return next_ahead(out, a);
    put_in_order(a);
    TRN_TRY(a->rows->read(a->rows, out, a->order + a->at, TRN_MIN(a->o.batch, a->n - a->at)));
    advance(a);
    return TRN_OK;
}
