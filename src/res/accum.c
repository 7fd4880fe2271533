#include "res/accum.h"

#include <inttypes.h>
#include <stdlib.h>

#include "res/wait.h"

/* What has come in since the last take. */
typedef struct sum {
    int64_t count;   /* gradients */
    trn_tensor *val; /* dense: the sum; sparse: one row per index */
    int64_t nnz;     /* sparse: rows */
    int64_t *index;  /* of each row, rising as far as the gradients' were */
    int64_t *rows;   /* how many gradients had this row */
} sum;

struct trn_accum {
    trn_resource base;
    char *name;
    trn_dtype dtype;
    trn_shape shape;
    bool sparse, mean;
    trn_mutex mu;
    int64_t global_step;
    sum sum;
    trn_waitlist takers;
};

typedef struct taker {
    trn_wait w;
    trn_accum *a;
    int64_t required;
    sum sum; /* taken */
    trn_accum_done done;
    void *arg;
} taker;

/* ---- arithmetic ----------------------------------------------------------------------------------------------- */

#define LOOPS(T, name)                                                                                                 \
    static void add_##name(T *restrict out, const T *a, const T *b, int64_t n)                                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            out[i] = a[i] + b[i];                                                                                      \
    }                                                                                                                  \
    static void add_to_##name(T *restrict out, const T *restrict b, int64_t n)                                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            out[i] += b[i];                                                                                            \
    }                                                                                                                  \
    static void div_##name(T *out, const T *a, T by, int64_t n)                                                        \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            out[i] = a[i] / by;                                                                                        \
    }
LOOPS(float, f32)
LOOPS(double, f64)

/* out = a + b, where out may be a. */
static void add(trn_dtype t, void *out, const void *a, const void *b, int64_t n)
{
    if (t == TRN_FLOAT) {
        if (out == a)
            add_to_f32(out, b, n);
        else
            add_f32(out, a, b, n);
    } else if (t == TRN_DOUBLE) {
        if (out == a)
            add_to_f64(out, b, n);
        else
            add_f64(out, a, b, n);
    } else {
        for (int64_t i = 0; i < n; i++)
            ((trn_half *)out)[i] = trn_half_from_f32(trn_half_to_f32(((const trn_half *)a)[i]) +
                                                     trn_half_to_f32(((const trn_half *)b)[i]));
    }
}

/* out = a / by, where out may be a. */
static void divide(trn_dtype t, void *out, const void *a, int64_t by, int64_t n)
{
    if (t == TRN_FLOAT) {
        div_f32(out, a, (float)by, n);
    } else if (t == TRN_DOUBLE) {
        div_f64(out, a, (double)by, n);
    } else {
        float d = trn_half_to_f32(trn_half_from_f32((float)by));
        for (int64_t i = 0; i < n; i++)
            ((trn_half *)out)[i] = trn_half_from_f32(trn_half_to_f32(((const trn_half *)a)[i]) / d);
    }
}

static void sum_fini(sum *s)
{
    trn_tensor_unref(s->val);
    free(s->index);
    free(s->rows);
    *s = (sum){0};
}

/* Turns the sum into the mean; in place when nobody else holds the tensor (a single gradient may still be its worker's). */
static trn_err sum_average(sum *s, bool sparse)
{
    if (s->count == 1)
        return TRN_OK;
    trn_tensor *to = s->val;
    if (!trn_tensor_sole(to))
        TRN_TRY(trn_tensor_new(&to, s->val->dtype, &s->val->shape));
    size_t size = trn_dtype_size(to->dtype);
    if (!sparse) {
        divide(to->dtype, to->data, s->val->data, s->count, to->count);
    } else {
        int64_t row = s->nnz ? to->count / s->nnz : 0;
        for (int64_t i = 0; i < s->nnz; i++)
            divide(to->dtype, (char *)to->data + (size_t)(i * row) * size,
                   (char *)s->val->data + (size_t)(i * row) * size, s->rows[i], row);
    }
    if (to != s->val) {
        trn_tensor_unref(s->val);
        s->val = to;
    }
    return TRN_OK;
}

/* ---- taking --------------------------------------------------------------------------------------------------- */

static trn_err dense_parts(trn_tensor **out, taker *t)
{
    out[0] = t->sum.val;
    t->sum.val = NULL;
    return TRN_OK;
}

static trn_err sparse_parts(trn_tensor **out, taker *t)
{
    sum *s = &t->sum;
    int rank = s->val->shape.rank;
    int64_t dims[TRN_MAX_RANK];
    memcpy(dims, s->val->shape.dim, (size_t)rank * sizeof *dims);
    dims[0] = t->a->shape.rank > 0 ? t->a->shape.dim[0] : -1;
    out[0] = trn_tensor_from(TRN_INT64, 1, &s->nnz, s->index);
    out[2] = trn_tensor_from(TRN_INT64, 1, (int64_t[]){rank}, dims);
    if (!out[0] || !out[2]) {
        trn_tensor_unref(out[0]);
        trn_tensor_unref(out[2]);
        return trn_err_oom();
    }
    out[1] = s->val;
    s->val = NULL;
    return TRN_OK;
}

static void taker_end(trn_wait *w)
{
    taker *t = (taker *)w;
    trn_accum *a = t->a;
    trn_err err = t->w.err;
    trn_tensor *parts[3] = {0};
    if (!err && a->mean)
        err = sum_average(&t->sum, a->sparse);
    if (!err)
        err = a->sparse ? sparse_parts(parts, t) : dense_parts(parts, t);
    sum_fini(&t->sum);
    t->done(t->arg, err, err ? NULL : parts);
    free(t);
    trn_resource_unref(a);
}

/* With the lock held: whoever has waited longest takes the sum, if it is enough. */
static void advance(trn_accum *a, trn_waitlist *ready)
{
    for (trn_wait *w; (w = a->takers.first);) {
        taker *t = (taker *)w;
        if (a->sum.count < t->required)
            break;
        t->sum = a->sum;
        a->sum = (sum){0};
        a->global_step++;
        trn_wait_ready(ready, w, TRN_OK);
    }
}

static trn_err cancelled(void) { return trn_errorf(TRN_CANCELLED, "TakeGrad operation was cancelled"); }

static void on_cancel(void *arg)
{
    taker *t = arg;
    trn_accum *a = t->a;
    trn_waitlist ready = {0};
    trn_lock(&a->mu);
    if (trn_wait_in(&t->w, &a->takers)) {
        trn_wait_ready(&ready, &t->w, cancelled());
        advance(a, &ready); /* the next one may want fewer */
    }
    trn_unlock(&a->mu);
    trn_wait_end_all(&ready);
}

void trn_accum_take(trn_accum *a, trn_cancel *cancel, int64_t required, trn_accum_done done, void *arg)
{
    if (required <= 0) {
        done(arg, TRN_BAD("Argument num_required must be positive, but was %" PRId64, required), NULL);
        return;
    }
    taker *t = trn_xalloc(sizeof *t);
    *t = (taker){.w = {.end = taker_end, .cancel = cancel},
                 .a = trn_resource_ref(a),
                 .required = required,
                 .done = done,
                 .arg = arg};
    trn_waitlist ready = {0};
    trn_lock(&a->mu);
    trn_wait_link(&a->takers, &t->w);
    if (cancel && trn_cancelled(cancel))
        trn_wait_ready(&ready, &t->w, cancelled());
    else
        advance(a, &ready);
    if (trn_wait_in(&t->w, &a->takers) && !trn_wait_hook(&t->w, on_cancel))
        trn_wait_ready(&ready, &t->w, cancelled());
    trn_unlock(&a->mu);
    trn_wait_end_all(&ready);
}

/* ---- applying ------------------------------------------------------------------------------------------------- */

static trn_err check_dense(const trn_accum *a, const trn_tensor *grad)
{
    char have[TRN_SHAPE_TEXT], got[TRN_SHAPE_TEXT];
    const trn_shape *want = a->sum.count ? &a->sum.val->shape : &a->shape;
    bool ok = a->sum.count ? trn_shape_eq(want, &grad->shape) : trn_shape_compatible(want, &grad->shape);
    TRN_CHECK_ARG(ok, "Shape mismatch: expected %s, got %s", trn_shape_text(have, want),
                  trn_shape_text(got, &grad->shape));
    return TRN_OK;
}

static trn_err add_dense(trn_accum *a, const trn_tensor *grad)
{
    TRN_TRY(check_dense(a, grad));
    sum *s = &a->sum;
    if (!s->count) {
        s->val = trn_tensor_ref(grad);
    } else {
        trn_tensor *to = s->val;
        if (!trn_tensor_sole(to))
            TRN_TRY(trn_tensor_new(&to, s->val->dtype, &s->val->shape));
        add(to->dtype, to->data, s->val->data, grad->data, to->count);
        if (to != s->val) {
            trn_tensor_unref(s->val);
            s->val = to;
        }
    }
    s->count++;
    return TRN_OK;
}

/* After a change of the sum: unlocks, ends who is served. */
static void unlock_and_serve(trn_accum *a)
{
    trn_waitlist ready = {0};
    advance(a, &ready);
    trn_unlock(&a->mu);
    trn_wait_end_all(&ready);
}

/* Dropped without a word to whoever sent it; /metrics tells. */
static trn_err late(void)
{
    trn_counter_add(trn_metric_counter("stale_gradients_total", "Gradients of steps that were over, dropped by accumulators"), 1);
    return TRN_OK;
}

trn_err trn_accum_apply(trn_accum *a, int64_t local_step, const trn_tensor *grad)
{
    TRN_TRY(trn_accum_check(a, grad->dtype, false));
    trn_lock(&a->mu);
    trn_err err = local_step < a->global_step ? late() : add_dense(a, grad);
    unlock_and_serve(a);
    return err;
}

static trn_err check_sparse(const trn_accum *a, const trn_tensor *idx, const trn_tensor *val, const trn_tensor *shape)
{
    const trn_shape *want = &a->shape, *vs = &val->shape;
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(idx->shape.rank == 1, "Input indices should be vector but received shape: %s",
                  trn_shape_text(text, &idx->shape));
    TRN_CHECK_ARG(vs->rank > 0, "Values cannot be 0-dimensional.");
    TRN_CHECK_ARG(vs->dim[0] == idx->count, "Expected %" PRId64 " non-empty input values, got %" PRId64, idx->count,
                  vs->dim[0]);
    if (shape) {
        TRN_CHECK_ARG(want->rank <= shape->count, "Shape mismatch: expected shape rank at least %d, got %" PRId64,
                      want->rank, shape->count);
        for (int i = 0; i < want->rank; i++)
            TRN_CHECK_ARG(want->dim[i] < 0 || want->dim[i] == TRN_DATA(shape, int64_t)[i],
                          "Shape mismatch: expected shape dim %d to be %" PRId64 ", got %" PRId64, i, want->dim[i],
                          TRN_DATA(shape, int64_t)[i]);
    }
    for (int64_t i = 0; want->rank > 0 && want->dim[0] >= 0 && i < idx->count; i++)
        TRN_CHECK_ARG(TRN_DATA(idx, int64_t)[i] < want->dim[0],
                      "Shape mismatch: index of slice %" PRId64 " exceeded limits of shape; index is %" PRId64
                      " exceeded %" PRId64,
                      i, TRN_DATA(idx, int64_t)[i], want->dim[0]);
    const trn_shape *like = a->sum.count ? &a->sum.val->shape : want;
    if (a->sum.count)
        TRN_CHECK_ARG(like->rank == vs->rank, "Shape mismatch: expected values rank %d, got %d", like->rank, vs->rank);
    else
        TRN_CHECK_ARG(like->rank <= vs->rank, "Shape mismatch: expected values rank at least %d, got %d", like->rank,
                      vs->rank);
    for (int i = 1; i < like->rank; i++)
        TRN_CHECK_ARG(like->dim[i] < 0 || like->dim[i] == vs->dim[i],
                      "Shape mismatch: expected values dim %d to be %" PRId64 ", got %" PRId64, i, like->dim[i],
                      vs->dim[i]);
    return TRN_OK;
}

static int64_t *new_i64(int64_t n) { return malloc(TRN_MAX((size_t)n, 1) * sizeof(int64_t)); }

static trn_err first_sparse(sum *s, const trn_tensor *idx, const trn_tensor *val)
{
    sum n = {.count = 1, .nnz = idx->count, .index = new_i64(idx->count), .rows = new_i64(idx->count)};
    if (!n.index || !n.rows) {
        sum_fini(&n);
        return trn_err_oom();
    }
    memcpy(n.index, idx->data, (size_t)idx->count * sizeof *n.index);
    for (int64_t i = 0; i < n.nnz; i++)
        n.rows[i] = 1;
    n.val = trn_tensor_ref(val);
    *s = n;
    return TRN_OK;
}

/* A merge of two index lists, taken as sorted (what TensorFlow does too: unsorted ones merge as far as they rise). */
static trn_err merge_sparse(sum *s, const trn_tensor *idx, const trn_tensor *val)
{
    const int64_t *b = idx->data;
    int64_t nb = idx->count, total = 0;
    for (int64_t i = 0, j = 0; i < s->nnz || j < nb; total++) {
        bool from_a = j == nb || (i < s->nnz && s->index[i] <= b[j]),
             from_b = i == s->nnz || (j < nb && b[j] <= s->index[i]);
        i += from_a;
        j += from_b;
    }
    sum n = {.count = s->count + 1, .nnz = total, .index = new_i64(total), .rows = new_i64(total)};
    trn_shape shape = val->shape;
    shape.dim[0] = total;
    trn_err err = n.index && n.rows ? trn_tensor_new(&n.val, val->dtype, &shape) : trn_err_oom();
    if (err) {
        sum_fini(&n);
        return err;
    }
    int64_t cols = total ? n.val->count / total : 0;
    size_t bytes = (size_t)cols * trn_dtype_size(val->dtype);
    char *to = n.val->data;
    const char *pa = s->val->data, *pb = val->data;
    for (int64_t i = 0, j = 0, k = 0; k < total; k++, to += bytes) {
        bool from_a = j == nb || (i < s->nnz && s->index[i] <= b[j]),
             from_b = i == s->nnz || (j < nb && b[j] <= s->index[i]);
        n.index[k] = from_a ? s->index[i] : b[j];
        n.rows[k] = (from_a ? s->rows[i] : 0) + from_b;
        if (from_a && from_b)
            add(val->dtype, to, pb + (size_t)j * bytes, pa + (size_t)i * bytes, cols);
        else if (bytes)
            memcpy(to, from_a ? pa + (size_t)i * bytes : pb + (size_t)j * bytes, bytes);
        i += from_a;
        j += from_b;
    }
    sum_fini(s);
    *s = n;
    return TRN_OK;
}

static trn_err add_sparse(trn_accum *a, const trn_tensor *idx, const trn_tensor *val, const trn_tensor *shape)
{
    TRN_TRY(check_sparse(a, idx, val, shape));
    return a->sum.count ? merge_sparse(&a->sum, idx, val) : first_sparse(&a->sum, idx, val);
}

trn_err trn_accum_apply_sparse(trn_accum *a, int64_t local_step, const trn_tensor *indices, const trn_tensor *values,
                               const trn_tensor *shape)
{
    TRN_TRY(trn_accum_check(a, values->dtype, true));
    trn_lock(&a->mu);
    trn_err err = local_step < a->global_step ? late() : add_sparse(a, indices, values, shape);
    unlock_and_serve(a);
    return err;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

trn_err trn_accum_check(const trn_accum *a, trn_dtype dtype, bool sparse)
{
    TRN_CHECK_ARG(a->sparse == sparse, "accumulator %s is %s, the op works on %s ones", a->name,
                  a->sparse ? "sparse" : "dense", sparse ? "sparse" : "dense");
    TRN_CHECK_ARG(a->dtype == dtype, "accumulator %s has dtype %s, the op works on %s", a->name,
                  trn_dtype_name(a->dtype), trn_dtype_name(dtype));
    return TRN_OK;
}

void trn_accum_set_global_step(trn_accum *a, int64_t step)
{
    trn_lock(&a->mu);
    int64_t was = a->global_step;
    a->global_step = step;
    trn_unlock(&a->mu);
    if (step < was)
        TRN_WARN("accum", "%s: global step set back from %" PRId64 " to %" PRId64, a->name, was, step);
}

int64_t trn_accum_count(trn_accum *a)
{
    trn_lock(&a->mu);
    int64_t n = a->sum.count;
    trn_unlock(&a->mu);
    return n;
}

static void accum_free(trn_resource *r)
{
    trn_accum *a = (trn_accum *)r;
    sum_fini(&a->sum);
    trn_mutex_fini(&a->mu);
    free(a->name);
    free(a);
}

static size_t accum_bytes(trn_resource *r)
{
    trn_accum *a = (trn_accum *)r;
    trn_lock(&a->mu);
    size_t n = a->sum.val ? trn_tensor_total_bytes(a->sum.val) + (size_t)a->sum.nnz * 2 * sizeof(int64_t) : 0;
    trn_unlock(&a->mu);
    return n;
}

static void accum_describe(trn_resource *r, trn_sb *out)
{
    trn_accum *a = (trn_accum *)r;
    char text[TRN_SHAPE_TEXT];
    trn_lock(&a->mu);
    trn_sb_addf(out, "%s%s %s, %" PRId64 " gradients, global step %" PRId64 "%s", a->sparse ? "sparse " : "",
                trn_dtype_name(a->dtype), trn_shape_text(text, &a->shape), a->sum.count, a->global_step,
                a->takers.first ? ", somebody waits" : "");
    trn_unlock(&a->mu);
}

static bool accum_fill(trn_resource *r, trn_res_fill *out)
{
    trn_accum *a = (trn_accum *)r;
    if (!trn_trylock(&a->mu))
        return false;
    int takers = 0;
    for (const trn_wait *w = a->takers.first; w && takers < 1000; w = w->next)
        takers++;
    /* A taker says how many gradients it waits for. */
    int64_t wanted = a->takers.first ? TRN_CONTAINER(a->takers.first, taker, w)->required : -1;
    *out = (trn_res_fill){.kind = a->sparse ? "SparseConditionalAccumulator" : "ConditionalAccumulator", .count = a->sum.count, .capacity = wanted,
                      .step = a->global_step, .takers = takers};
    trn_unlock(&a->mu);
    return true;
}

static void accum_clear(trn_resource *r)
{
    trn_accum *a = (trn_accum *)r;
    trn_waitlist ready = {0};
    trn_lock(&a->mu);
    while (a->takers.first)
        trn_wait_ready(&ready, a->takers.first,
                       trn_errorf(TRN_CANCELLED, "accumulator %s is gone: its container was cleared", a->name));
    trn_unlock(&a->mu);
    trn_wait_end_all(&ready);
}

const trn_restype trn_accum_type = {.name = "ConditionalAccumulator",
                                    .handle = "tensorflow::ConditionalAccumulatorBase",
                                    .free = accum_free,
                                    .bytes = accum_bytes,
                                    .describe = accum_describe,
                                    .fill = accum_fill,
                                    .close = accum_clear};

trn_err trn_accum_new(trn_accum **out, const char *name, trn_dtype dtype, const trn_shape *shape, bool sparse,
                      bool mean)
{
    TRN_CHECK_ARG(dtype == TRN_FLOAT || dtype == TRN_DOUBLE || dtype == TRN_HALF,
                  "accumulator %s: dtype %s is not one of half, float, double", name, trn_dtype_name(dtype));
    trn_accum *a = trn_xalloc(sizeof *a);
    trn_resource_init(&a->base, &trn_accum_type);
    trn_mutex_init(&a->mu, TRN_RANK_RES);
    a->name = trn_xstrdup(name);
    a->dtype = dtype;
    a->shape = *shape;
    a->sparse = sparse;
    a->mean = mean;
    *out = a;
    return TRN_OK;
}
