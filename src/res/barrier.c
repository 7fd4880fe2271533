#include "res/barrier.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct element {
    int64_t index; /* of the insertion that saw the key first */
    int have;
    trn_tensor *part[]; /* n components, NULL: not there yet */
} element;

struct trn_barrier {
    trn_resource base;
    char *name;
    int n;
    trn_dtype *types;
    trn_shape *shapes;
    trn_queue *ready; /* by index: (index, key, components); has its own lock, which is never taken under ours */
    trn_mutex mu;
    bool closed, cancelled;
    int64_t next_index;
    trn_map *incomplete; /* key → element */
};

static void element_free(const trn_barrier *b, element *e)
{
    for (int i = 0; i < b->n; i++)
        trn_tensor_unref(e->part[i]);
    free(e);
}

/* ---- inserting ---------------------------------------------------------------------------------------------------- */

/* Ready tuples on their way to the queue. */
typedef struct ready_list {
    trn_tensor ***tuple;
    int n, cap;
} ready_list;

static trn_err row_of(trn_tensor **out, const trn_tensor *values, int64_t i)
{
    trn_shape s = {.rank = values->shape.rank - 1};
    memcpy(s.dim, values->shape.dim + 1, (size_t)s.rank * sizeof s.dim[0]);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, values->dtype, &s));
    trn_err err = trn_tensor_copy_elems(t, 0, values, i * t->count, t->count);
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

static trn_err insert_one(trn_barrier *b, const trn_tensor *keys, int component, const trn_tensor *values, int64_t i,
                          ready_list *ready, bool *fresh)
{
    size_t n;
    const char *key = trn_tensor_str_at(keys, i, &n);
    element *e = trn_map_get(b->incomplete, key, n);
    if (!e && b->closed)
        return trn_errorf(TRN_CANCELLED,
                          "Barrier %s is closed, but attempted to insert a brand new key: %.*s.  Pending enqueues "
                          "cancelled: %d.  Insertion "
                          "index: %" PRId64 ".  Number of incomplete keys: %zu.",
                          b->name, (int)n, key, b->cancelled, i, trn_map_count(b->incomplete));
    if (e && e->part[component])
        return TRN_BAD("Key %.*s already has a value for component %d in barrier %s", (int)n, key, component, b->name);
    trn_tensor *part;
    TRN_TRY(row_of(&part, values, i));
    if (!e) {
        e = trn_xalloc(sizeof *e + (size_t)b->n * sizeof *e->part);
        e->index = b->next_index;
        *fresh = true;
        trn_map_put(b->incomplete, key, n, e);
    }
    e->part[component] = part;
    if (++e->have < b->n)
        return TRN_OK;
    trn_map_del(b->incomplete, key, n);
    trn_tensor **t = trn_xalloc(((size_t)b->n + 2) * sizeof *t);
    t[0] = trn_tensor_i64(e->index);
    t[1] = trn_tensor_str(key, n);
    memcpy(t + 2, e->part, (size_t)b->n * sizeof *t);
    free(e);
    TRN_PUSH(ready->tuple, ready->n, ready->cap, t);
    return t[0] && t[1] ? TRN_OK : trn_err_oom();
}

static trn_err check_insert(const trn_barrier *b, const trn_tensor *keys, int component, const trn_tensor *values)
{
    char a[TRN_SHAPE_TEXT], c[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(component >= 0 && component < b->n, "The component ID is out of range %d > num_components (= %d)",
                  component, b->n);
    TRN_CHECK_ARG(values->dtype == b->types[component], "component %d of barrier %s is %s, not %s", component, b->name,
                  trn_dtype_name(b->types[component]), trn_dtype_name(values->dtype));
    TRN_CHECK_ARG(keys->shape.rank == 1 && values->shape.rank > 0 && values->shape.dim[0] == keys->count,
                  "keys must be a vector and values have a row for each: got %s and %s",
                  trn_shape_text(a, &keys->shape), trn_shape_text(c, &values->shape));
    TRN_CHECK_ARG(keys->count == 0 || values->count > 0,
                  "Tensors with no elements are not supported %s: received shape %s", b->name,
                  trn_shape_text(a, &values->shape));
    trn_shape row = {.rank = values->shape.rank - 1};
    memcpy(row.dim, values->shape.dim + 1, (size_t)row.rank * sizeof row.dim[0]);
    TRN_CHECK_ARG(keys->count == 0 || trn_shape_eq(&row, &b->shapes[component]),
                  "Shape mismatch in tuple component %d. Expected %s, got %s", component + 2,
                  trn_shape_text(a, &b->shapes[component]), trn_shape_text(c, &row));
    return TRN_OK;
}

static trn_err insert_locked(trn_barrier *b, const trn_tensor *keys, int component, const trn_tensor *values,
                             ready_list *ready)
{
    if (b->closed && (b->cancelled || (keys->count && !trn_map_count(b->incomplete))))
        return trn_errorf(TRN_CANCELLED,
                          "Barrier %s is closed.  Pending enqueues cancelled: %d.  Number of new insertions: %" PRId64
                          ".  Number of incomplete keys: %zu.",
                          b->name, b->cancelled, keys->count, trn_map_count(b->incomplete));
    trn_err err = TRN_OK;
    bool fresh = false;
    for (int64_t i = 0; i < keys->count && !err; i++)
        err = insert_one(b, keys, component, values, i, ready, &fresh);
    b->next_index += fresh;
    return err;
}

static void first_error(void *arg, trn_err err, trn_tensor **tuple)
{
    trn_err *to = arg;
    (void)tuple;
    if (*to)
        trn_err_free(err);
    else
        *to = err;
}

trn_err trn_barrier_insert(trn_barrier *b, const trn_tensor *keys, int component, const trn_tensor *values)
{
    TRN_TRY(check_insert(b, keys, component, values));
    ready_list ready = {0};
    trn_lock(&b->mu);
    trn_err err = insert_locked(b, keys, component, values, &ready);
    bool last = b->closed && !trn_map_count(b->incomplete);
    trn_unlock(&b->mu);
    for (int i = 0; i < ready.n;
         i++) { /* complete keys are not lost to an error behind them; the queue has no limit, so this does not wait */
        if (ready.tuple[i][0] && ready.tuple[i][1])
            trn_queue_enqueue(b->ready, NULL, ready.tuple[i], b->n + 2, first_error, &err);
        for (int c = 0; c < b->n + 2; c++)
            trn_tensor_unref(ready.tuple[i][c]);
        free(ready.tuple[i]);
    }
    free(ready.tuple);
    trn_err ignored = TRN_OK;
    if (last)
        trn_queue_close(b->ready, false, first_error, &ignored);
    trn_err_free(ignored);
    return err;
}

/* ---- taking, closing ------------------------------------------------------------------------------------------------ */

void trn_barrier_take(trn_barrier *b, trn_cancel *cancel, int64_t count, bool small_batch, trn_queue_done done,
                      void *arg)
{
    int64_t ready = trn_queue_size(b->ready);
    trn_err err = TRN_OK;
    trn_lock(&b->mu);
    if (b->closed) {
        int64_t available = ready;
        if (small_batch)
            count = TRN_MIN(count, available);
        else
            available += (int64_t)trn_map_count(b->incomplete);
        if (available < TRN_MAX(count, 1))
            err = trn_errorf(TRN_OUT_OF_RANGE,
                             "Barrier '%s' is closed and has insufficient elements (requested %" PRId64
                             ", total size %" PRId64 ")",
                             b->name, count, available);
    }
    trn_unlock(&b->mu);
    if (err)
        done(arg, err, NULL);
    else
        trn_queue_dequeue_many(b->ready, cancel, count, small_batch, done, arg);
}

trn_err trn_barrier_close(trn_barrier *b, bool cancel_pending_enqueues)
{
    trn_map *drop = NULL;
    trn_lock(&b->mu);
    bool again = b->closed && (b->cancelled || !cancel_pending_enqueues);
    if (!again) {
        b->closed = true;
        b->cancelled = cancel_pending_enqueues;
        if (cancel_pending_enqueues) {
            drop = b->incomplete;
            b->incomplete = trn_map_new();
        }
    }
    bool last = !again && !trn_map_count(b->incomplete);
    trn_unlock(&b->mu);
    if (again)
        return trn_errorf(TRN_CANCELLED, "Barrier '%s' is already closed.", b->name);
    const char *key;
    size_t n;
    void *e;
    for (size_t it = 0; drop && trn_map_next(drop, &it, &key, &n, &e);)
        element_free(b, e);
    trn_map_free(drop, NULL);
    trn_err ignored = TRN_OK; /* the queue may be closed already */
    if (last)
        trn_queue_close(b->ready, cancel_pending_enqueues, first_error, &ignored);
    trn_err_free(ignored);
    return TRN_OK;
}

int64_t trn_barrier_ready(trn_barrier *b) { return trn_queue_size(b->ready); }

int64_t trn_barrier_incomplete(trn_barrier *b)
{
    trn_lock(&b->mu);
    int64_t n = (int64_t)trn_map_count(b->incomplete);
    trn_unlock(&b->mu);
    return n;
}

int trn_barrier_components(const trn_barrier *b, const trn_dtype **types)
{
    *types = b->types;
    return b->n;
}

/* ---- the resource ----------------------------------------------------------------------------------------------------- */

static void barrier_free(trn_resource *r)
{
    trn_barrier *b = (trn_barrier *)r;
    const char *key;
    size_t n;
    void *e;
    for (size_t it = 0; trn_map_next(b->incomplete, &it, &key, &n, &e);)
        element_free(b, e);
    trn_map_free(b->incomplete, NULL);
    trn_resource_unref(b->ready);
    trn_mutex_fini(&b->mu);
    free(b->types);
    free(b->shapes);
    free(b->name);
    free(b);
}

static size_t barrier_bytes(trn_resource *r) { return trn_queue_type.bytes((trn_resource *)((trn_barrier *)r)->ready); }

static void barrier_describe(trn_resource *r, trn_sb *out)
{
    trn_barrier *b = (trn_barrier *)r;
    trn_sb_addf(out, "%" PRId64 " ready, %" PRId64 " incomplete", trn_barrier_ready(b), trn_barrier_incomplete(b));
}

static bool barrier_fill(trn_resource *r, trn_res_fill *out)
{
    trn_barrier *b = (trn_barrier *)r;
    if (!trn_queue_type.fill((trn_resource *)b->ready, out) || !trn_trylock(&b->mu))
        return false;
    out->kind = "Barrier";
    out->incomplete = (int64_t)trn_map_count(b->incomplete);
    trn_unlock(&b->mu);
    return true;
}

static void barrier_clear(trn_resource *r)
{
    trn_barrier *b = (trn_barrier *)r;
    trn_lock(&b->mu);
    b->closed = b->cancelled = true;
    trn_unlock(&b->mu);
    trn_queue_type.close((trn_resource *)b->ready);
}

const trn_restype trn_barrier_type = {.name = "Barrier",
                                      .handle = "tensorflow::barrier::Barrier",
                                      .free = barrier_free,
                                      .bytes = barrier_bytes,
                                      .describe = barrier_describe,
                                      .fill = barrier_fill,
                                      .close = barrier_clear};

trn_err trn_barrier_new(trn_barrier **out, const char *name, int n, const trn_dtype *types, int n_shapes,
                        const trn_shape *shapes)
{
    TRN_CHECK_ARG(n > 0 && n_shapes == n, "All of the component shapes must be specified");
    trn_dtype *qt = trn_xalloc(((size_t)n + 2) * sizeof *qt);
    trn_shape *qs = trn_xalloc(((size_t)n + 2) * sizeof *qs);
    qt[0] = TRN_INT64;
    qt[1] = TRN_STRING;
    qs[0] = qs[1] = trn_shape_scalar();
    memcpy(qt + 2, types, (size_t)n * sizeof *qt);
    for (int i = 0; i < n; i++) /* TensorFlow takes a shape that nobody has said for a scalar's */
        qs[i + 2] = shapes[i].rank < 0 ? trn_shape_scalar() : shapes[i];
    char *queue_name = trn_xasprintf("%s_queue", name);
    trn_queue *ready;
    trn_err err = trn_queue_new(
        &ready, queue_name,
        &(trn_queue_spec){
            .kind = TRN_QUEUE_PRIORITY, .capacity = -1, .n = n + 2, .types = qt, .n_shapes = n + 2, .shapes = qs});
    free(queue_name);
    if (err) {
        free(qt);
        free(qs);
        return err;
    }
    trn_barrier *b = trn_xalloc(sizeof *b);
    trn_resource_init(&b->base, &trn_barrier_type);
    trn_mutex_init(&b->mu, TRN_RANK_RES);
    b->name = trn_xstrdup(name);
    b->n = n;
    memmove(qt, qt + 2, (size_t)n * sizeof *qt);
    memmove(qs, qs + 2, (size_t)n * sizeof *qs);
    b->types = qt;
    b->shapes = qs;
    b->ready = ready;
    b->next_index = INT64_MIN;
    b->incomplete = trn_map_new();
    *out = b;
    return TRN_OK;
}

trn_err trn_barrier_match(const trn_barrier *b, int n, const trn_dtype *types, int n_shapes, const trn_shape *shapes)
{
    bool same = n == b->n && n_shapes == n;
    for (int i = 0; same && i < n; i++)
        same = types[i] == b->types[i] && (shapes[i].rank < 0 ? b->shapes[i].rank == 0 : trn_shape_eq(&shapes[i], &b->shapes[i]));
    TRN_CHECK_ARG(same, "Shared barrier '%s' has other component types or component shapes than requested", b->name);
    return TRN_OK;
}
