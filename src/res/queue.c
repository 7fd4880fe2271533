#include "res/queue.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/philox.h"
#include "res/wait.h"

typedef trn_tensor **tuple; /* q->n references, one allocation */

struct trn_queue {
    trn_resource base;
    char *name;
    trn_queue_kind kind;
    int64_t capacity;
    int n;
    trn_dtype *types;
    int n_shapes;
    trn_shape *shapes;
    int64_t min_after_dequeue, seed, seed2;

    trn_mutex mu; /* everything below */
    bool closed;
    /* FIFO: a ring. Shuffle: a vector at head 0. Priority: a heap at head 0. */
    tuple *item;
    size_t head, count, cap;
    trn_philox1 random;
    trn_waitlist putters, takers;
};

typedef enum call { PUT, PUT_MANY, CLOSE, TAKE, TAKE_MANY } call;

typedef struct waiter {
    trn_wait w;
    trn_queue *q;
    call call;
    bool up_to;
    int64_t left; /* elements still to put or to take */
    tuple in;     /* PUT, PUT_MANY: what to put */
    tuple *taken; /* TAKE, TAKE_MANY: so far */
    size_t n_taken, cap_taken;
    trn_queue_done done;
    void *arg;
} waiter;

static const char *kind_name(trn_queue_kind k)
{
    static const char *const names[] = {"FIFOQueue", "PaddingFIFOQueue", "RandomShuffleQueue", "PriorityQueue"};
    return names[k];
}

/* ---- tuples --------------------------------------------------------------------------------------------------- */

static void tuple_free(tuple t, int n)
{
    for (int i = 0; t && i < n; i++)
        trn_tensor_unref(t[i]);
    free(t);
}

/* What a queue keeps of a tensor: itself, unless it is a small piece of a large buffer, which it would hold until it is taken. */
static trn_err tuple_keep(tuple *out, trn_tensor *const *from, int n)
{
    tuple t = trn_xalloc((size_t)n * sizeof *t);
    for (int i = 0; i < n; i++) {
        const trn_tensor *x = from[i];
        if (!x->buf || x->buf->size / 2 <= trn_tensor_bytes(x) + 4096) {
            t[i] = trn_tensor_ref(x);
            continue;
        }
        trn_err err = trn_tensor_copy(&t[i], x);
        if (err) {
            tuple_free(t, n);
            return err;
        }
    }
    *out = t;
    return TRN_OK;
}

static tuple tuple_share(trn_tensor *const *from, int n)
{
    tuple t = trn_xalloc((size_t)n * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = trn_tensor_ref(from[i]);
    return t;
}

/* Row i of every component. Copies: a view would keep the whole batch alive for one element. */
static trn_err tuple_row(tuple *out, trn_tensor *const *batch, int n, int64_t row)
{
    tuple t = trn_xalloc((size_t)n * sizeof *t);
    for (int i = 0; i < n; i++) {
        trn_shape s = {.rank = batch[i]->shape.rank - 1};
        memcpy(s.dim, batch[i]->shape.dim + 1, (size_t)s.rank * sizeof s.dim[0]);
        trn_err err = trn_tensor_new(&t[i], batch[i]->dtype, &s);
        if (!err)
            err = trn_tensor_copy_elems(t[i], 0, batch[i], row * t[i]->count, t[i]->count);
        if (err) {
            tuple_free(t, n);
            return err;
        }
    }
    *out = t;
    return TRN_OK;
}

/* Copies `x` into the front corner of a larger block that starts at element `at`. */
static trn_err copy_corner(trn_tensor *dst, int64_t at, const int64_t *dst_dim, const trn_tensor *x, int64_t *from,
                           int dim)
{
    int rank = x->shape.rank;
    if (dim >= rank - 1) {
        int64_t n = rank ? x->shape.dim[rank - 1] : 1;
        TRN_TRY(trn_tensor_copy_elems(dst, at, x, *from, n));
        *from += n;
        return TRN_OK;
    }
    int64_t stride = 1;
    for (int d = dim + 1; d < rank; d++)
        stride *= dst_dim[d];
    for (int64_t i = 0; i < x->shape.dim[dim]; i++)
        TRN_TRY(copy_corner(dst, at + i * stride, dst_dim, x, from, dim + 1));
    return TRN_OK;
}

/* Component c of all tuples as one tensor; unknown dims of a padding queue become the largest there is. */
static trn_err concat(trn_tensor **out, const trn_queue *q, const tuple *items, size_t n, int c)
{
    const trn_shape *want = &q->shapes[c];
    if (want->rank + 1 > TRN_MAX_RANK)
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "component %d of queue '%s' has rank %d: its batch would have too many dimensions", c,
                          q->name, want->rank);
    trn_shape s = {.rank = want->rank + 1};
    s.dim[0] = (int64_t)n;
    for (int d = 0; d < want->rank; d++) {
        s.dim[d + 1] = TRN_MAX(want->dim[d], 0);
        for (size_t i = 0; want->dim[d] < 0 && i < n; i++)
            s.dim[d + 1] = TRN_MAX(s.dim[d + 1], items[i][c]->shape.dim[d]);
    }
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, q->types[c], &s));
    bool pad = !trn_shape_is_full(want);
    if (pad && trn_dtype_is_plain(t->dtype))
        memset(t->data, 0, trn_tensor_bytes(t));
    int64_t each = n ? t->count / (int64_t)n : 0;
    trn_err err = TRN_OK;
    for (size_t i = 0; i < n && !err; i++) {
        const trn_tensor *x = items[i][c];
        int64_t from = 0;
        if (!pad)
            err = trn_tensor_copy_elems(t, (int64_t)i * each, x, 0, each);
        else if (x->count)
            err = copy_corner(t, (int64_t)i * each, s.dim + 1, x, &from, 0);
    }
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    *out = t;
    return TRN_OK;
}

static trn_err batch(tuple *out, const trn_queue *q, const tuple *items, size_t n)
{
    tuple t = trn_xalloc((size_t)q->n * sizeof *t);
    for (int c = 0; c < q->n; c++) {
        trn_err err = concat(&t[c], q, items, n, c);
        if (err) {
            tuple_free(t, q->n);
            return err;
        }
    }
    *out = t;
    return TRN_OK;
}

/* ---- the elements (locked) ------------------------------------------------------------------------------------ */

static tuple *slot(trn_queue *q, size_t i) { return &q->item[(q->head + i) & (q->cap - 1)]; }

static void grow(trn_queue *q)
{
    if (q->count < q->cap)
        return;
    size_t cap = q->cap ? q->cap * 2 : 16;
    tuple *item = trn_xalloc(cap * sizeof *item);
    for (size_t i = 0; i < q->count; i++)
        item[i] = *slot(q, i);
    free(q->item);
    q->item = item;
    q->cap = cap;
    q->head = 0;
}

static int64_t priority_of(tuple t) { return TRN_DATA(t[0], int64_t)[0]; }

/* Equal priorities leave in the order that the C++ library's heap gives them, as programs saw it in TensorFlow. */
static void heap_up(tuple *h, size_t hole, tuple t)
{
    int64_t p = priority_of(t);
    while (hole > 0) {
        size_t up = (hole - 1) / 2;
        if (priority_of(h[up]) <= p)
            break;
        h[hole] = h[up];
        hole = up;
    }
    h[hole] = t;
}

static tuple heap_pop(tuple *h, size_t n)
{
    tuple top = h[0], last = h[n - 1];
    n--; /* the last one needs a new place */
    size_t hole = 0;
    while (2 * hole + 2 < n) {
        size_t child = 2 * hole + 2;
        if (priority_of(h[child]) > priority_of(h[child - 1]))
            child--;
        h[hole] = h[child];
        hole = child;
    }
    if (2 * hole + 2 == n) {
        h[hole] = h[n - 1];
        hole = n - 1;
    }
    if (n)
        heap_up(h, hole, last);
    return top;
}

static void put(trn_queue *q, tuple t)
{
    grow(q);
    if (q->kind == TRN_QUEUE_PRIORITY)
        heap_up(q->item, q->count, t);
    else
        *slot(q, q->count) = t;
    q->count++;
}

/* What came out last goes back in first. */
static void put_back(trn_queue *q, tuple t)
{
    if (q->kind == TRN_QUEUE_PRIORITY || q->kind == TRN_QUEUE_SHUFFLE) {
        put(q, t);
        return;
    }
    grow(q);
    q->head = (q->head - 1) & (q->cap - 1);
    *slot(q, 0) = t;
    q->count++;
}

static tuple take(trn_queue *q)
{
    tuple t;
    if (q->kind == TRN_QUEUE_PRIORITY) {
        t = heap_pop(q->item, q->count);
    } else if (q->kind == TRN_QUEUE_SHUFFLE) {
        tuple *at = slot(q, trn_philox1_next(&q->random) % q->count);
        t = *at;
        *at = *slot(q, q->count - 1);
    } else {
        t = *slot(q, 0);
        q->head = (q->head + 1) & (q->cap - 1);
    }
    q->count--;
    return t;
}

static void give_back(waiter *w)
{
    while (w->n_taken) {
        put_back(w->q, w->taken[--w->n_taken]);
        w->left++;
    }
}

static trn_err cancelled(const waiter *w)
{
    return trn_errorf(TRN_CANCELLED, "%s operation was cancelled", w->call >= TAKE ? "Dequeue" : "Enqueue");
}

/* ---- attempts (locked): true when the first waiter is through, progress when something moved ------------------- */

static bool try_put(waiter *w, trn_err *err, bool *progress)
{
    trn_queue *q = w->q;
    if (w->call == CLOSE) {
        if (q->closed)
            *err = trn_errorf(TRN_CANCELLED, "Queue '%s' is already closed.", q->name);
        q->closed = true;
        return true;
    }
    if (q->closed) {
        *err = trn_errorf(TRN_CANCELLED, "%s '%s' is closed.",
                          kind_name(q->kind == TRN_QUEUE_PADDING ? TRN_QUEUE_FIFO : q->kind), q->name);
        return true;
    }
    while (w->left && (int64_t)q->count < q->capacity) {
        tuple t = w->in;
        if (w->w.cancel && trn_cancelled(w->w.cancel)) { /* rows without elements may be as many as there are numbers */
            *err = cancelled(w);
            return true;
        }
        if (w->call == PUT) {
            w->in = NULL;
        } else if ((*err = tuple_row(&t, w->in, q->n, w->in[0]->shape.dim[0] - w->left))) {
            return true;
        }
        put(q, t);
        w->left--;
        *progress = true;
    }
    return w->left == 0;
}

static trn_err insufficient(const trn_queue *q, trn_queue_kind as, int64_t wanted, int64_t there)
{
    return trn_errorf(TRN_OUT_OF_RANGE,
                      "%s '%s' is closed and has insufficient elements (requested %" PRId64 ", current size %" PRId64
                      ")",
                      kind_name(as), q->name, wanted, there);
}

static bool try_take(waiter *w, trn_err *err, bool *progress)
{
    trn_queue *q = w->q;
    int64_t there = (int64_t)q->count;
    if (q->closed && there < w->left) {
        int64_t wanted = w->left;
        give_back(w);
        if (!w->up_to || !q->count) {
            *err = insufficient(q, q->kind == TRN_QUEUE_PADDING && w->call == TAKE ? TRN_QUEUE_FIFO : q->kind, wanted,
                                there);
            return true;
        }
        there = w->left = (int64_t)q->count;
    }
    if (q->kind == TRN_QUEUE_PRIORITY && there < w->left)
        return false; /* a sorted batch leaves in one piece */
    if (q->kind == TRN_QUEUE_SHUFFLE && !q->closed)
        there -= q->min_after_dequeue;
    for (; there > 0 && w->left; there--) {
        tuple t = take(q);
        TRN_PUSH(w->taken, w->n_taken, w->cap_taken, t);
        w->left--;
        *progress = true;
    }
    return w->left == 0;
}

static bool advance(trn_waitlist *list, trn_waitlist *ready, bool (*attempt)(waiter *, trn_err *, bool *))
{
    bool progress = false;
    for (trn_wait *w; (w = list->first);) {
        trn_err err = TRN_OK;
        if (!attempt((waiter *)w, &err, &progress))
            break;
        trn_wait_ready(ready, w, err);
        progress = true;
    }
    return progress;
}

static void advance_all(trn_queue *q, trn_waitlist *ready)
{
    bool progress;
    do {
        progress = advance(&q->putters, ready, try_put);
        progress |= advance(&q->takers, ready, try_take);
    } while (progress);
}

/* ---- waiters -------------------------------------------------------------------------------------------------- */

static void waiter_end(trn_wait *base)
{
    waiter *w = (waiter *)base;
    trn_queue *q = w->q;
    trn_err err = w->w.err;
    tuple result = NULL;
    if (!err && w->call == TAKE) {
        result = w->taken[0];
        w->n_taken = 0;
    } else if (!err && w->call == TAKE_MANY) {
        err = batch(&result, q, w->taken, w->n_taken); /* outside the lock: it may be megabytes */
        if (err) {                                     /* no memory: nothing is lost */
            trn_waitlist ready = {0};
            trn_lock(&q->mu);
            give_back(w);
            advance_all(q, &ready);
            trn_unlock(&q->mu);
            trn_wait_end_all(&ready);
        }
    }
    for (size_t i = 0; i < w->n_taken; i++)
        tuple_free(w->taken[i], q->n);
    free(w->taken);
    tuple_free(w->in, q->n);
    w->done(w->arg, err, result);
    free(result);
    free(w);
    trn_resource_unref(q);
}

static void on_cancel(void *arg)
{
    waiter *w = arg;
    trn_queue *q = w->q;
    trn_waitlist ready = {0};
    trn_lock(&q->mu);
    if (trn_wait_in(&w->w, &q->putters) || trn_wait_in(&w->w, &q->takers)) {
        give_back(w);
        trn_wait_ready(&ready, &w->w, cancelled(w));
        advance_all(q, &ready); /* it may have stood in somebody's way */
    }
    trn_unlock(&q->mu);
    trn_wait_end_all(&ready);
}

static void submit(trn_queue *q, waiter *w)
{
    w->w.end = waiter_end;
    w->q = trn_resource_ref(q);
    trn_waitlist ready = {0}, *list = w->call >= TAKE ? &q->takers : &q->putters;
    trn_lock(&q->mu);
    trn_wait_link(list, &w->w);
    if (w->w.cancel && trn_cancelled(w->w.cancel))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    else
        advance_all(q, &ready);
    if (trn_wait_in(&w->w, list) && !trn_wait_hook(&w->w, on_cancel)) {
        give_back(w);
        trn_wait_ready(&ready, &w->w, cancelled(w));
        advance_all(q, &ready);
    }
    trn_unlock(&q->mu);
    trn_wait_end_all(&ready);
}

static waiter *waiter_new(call c, trn_cancel *cancel, int64_t left, trn_queue_done done, void *arg)
{
    waiter *w = trn_xalloc(sizeof *w);
    w->call = c;
    w->w.cancel = cancel;
    w->left = left;
    w->done = done;
    w->arg = arg;
    return w;
}

/* ---- checks --------------------------------------------------------------------------------------------------- */

static trn_err check_types(const trn_queue *q, trn_tensor *const *t, int n)
{
    TRN_CHECK_ARG(n == q->n, "Wrong number of components in tuple. Expected %d, got %d", q->n, n);
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(t[i]->dtype == q->types[i], "Type mismatch in tuple component %d. Expected %s, got %s", i,
                      trn_dtype_name(q->types[i]), trn_dtype_name(t[i]->dtype));
    return TRN_OK;
}

static trn_err check_shape(const trn_queue *q, int i, const trn_shape *want, const trn_shape *got)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    bool ok = q->kind == TRN_QUEUE_PADDING ? trn_shape_compatible(want, got) : trn_shape_eq(want, got);
    TRN_CHECK_ARG(ok, "Shape mismatch in tuple component %d. Expected %s, got %s", i, trn_shape_text(a, want),
                  trn_shape_text(b, got));
    return TRN_OK;
}

static trn_err check_priority(const trn_queue *q, const trn_tensor *t, int rank)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    trn_shape want = rank && t->shape.rank ? trn_shape_vector(t->shape.dim[0]) : trn_shape_scalar();
    TRN_CHECK_ARG(q->kind != TRN_QUEUE_PRIORITY || t->shape.rank == rank,
                  "Expected the priority element to be a scalar: Shape mismatch in tuple component 0. Expected %s, got %s", trn_shape_text(a, &want),
                  trn_shape_text(b, &t->shape));
    return TRN_OK;
}

static trn_err check_one(const trn_queue *q, trn_tensor *const *t, int n)
{
    TRN_TRY(check_types(q, t, n));
    TRN_TRY(check_priority(q, t[0], 0));
    for (int i = 0; i < q->n_shapes; i++)
        TRN_TRY(check_shape(q, i, &q->shapes[i], &t[i]->shape));
    return TRN_OK;
}

static trn_err check_many(const trn_queue *q, trn_tensor *const *t, int n)
{
    TRN_TRY(check_types(q, t, n));
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(t[i]->shape.rank > 0, "Component %d is a scalar: it has no 0th dimension to split", i);
    TRN_TRY(check_priority(q, t[0], 1));
    int64_t rows = t[0]->shape.dim[0];
    for (int i = 0; i < n; i++) {
        TRN_CHECK_ARG(q->n_shapes || t[i]->shape.dim[0] == rows,
                      "All input tensors must have the same size in the 0th dimension. Component %d has %" PRId64
                      ", and should have %" PRId64,
                      i, t[i]->shape.dim[0], rows);
        if (!q->n_shapes)
            continue;
        TRN_CHECK_ARG(q->shapes[i].rank < TRN_MAX_RANK, "component %d has too many dimensions", i);
        trn_shape want = {.rank = q->shapes[i].rank + 1};
        want.dim[0] = rows;
        memcpy(want.dim + 1, q->shapes[i].dim, (size_t)q->shapes[i].rank * sizeof want.dim[0]);
        TRN_TRY(check_shape(q, i, &want, &t[i]->shape));
    }
    return TRN_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

void trn_queue_enqueue(trn_queue *q, trn_cancel *cancel, trn_tensor *const *t, int n, trn_queue_done done, void *arg)
{
    trn_err err = check_one(q, t, n);
    tuple mine = NULL;
    if (!err)
        err = tuple_keep(&mine, t, n);
    if (err) {
        done(arg, err, NULL);
        return;
    }
    waiter *w = waiter_new(PUT, cancel, 1, done, arg);
    w->in = mine;
    submit(q, w);
}

void trn_queue_enqueue_many(trn_queue *q, trn_cancel *cancel, trn_tensor *const *t, int n, trn_queue_done done,
                            void *arg)
{
    trn_err err = check_many(q, t, n);
    if (err || t[0]->shape.dim[0] == 0) {
        done(arg, err, NULL);
        return;
    }
    waiter *w = waiter_new(PUT_MANY, cancel, t[0]->shape.dim[0], done, arg);
    w->in = tuple_share(t, n);
    submit(q, w);
}

void trn_queue_dequeue(trn_queue *q, trn_cancel *cancel, trn_queue_done done, void *arg)
{
    submit(q, waiter_new(TAKE, cancel, 1, done, arg));
}

void trn_queue_dequeue_many(trn_queue *q, trn_cancel *cancel, int64_t count, bool up_to, trn_queue_done done, void *arg)
{
    trn_err err = TRN_OK;
    tuple result = NULL;
    if (!q->n_shapes)
        err = TRN_BAD("%s's DequeueMany and DequeueUpTo require the components to have specified shapes.",
                      kind_name(q->kind));
    else if (count < 0)
        err = TRN_BAD("Dequeue of %" PRId64 " < 0 elements requested", count);
    else if (count == 0)
        err = batch(&result, q, NULL, 0);
    if (err || count == 0) {
        done(arg, err, result);
        free(result);
        return;
    }
    waiter *w = waiter_new(TAKE_MANY, cancel, count, done, arg);
    w->up_to = up_to;
    submit(q, w);
}

/* Ends everybody in a list. */
static void drop_all(trn_waitlist *list, trn_waitlist *ready, bool cleared)
{
    for (trn_wait *w; (w = list->first);) {
        waiter *q = (waiter *)w;
        give_back(q);
        trn_wait_ready(ready, w,
                       cleared ? trn_errorf(TRN_CANCELLED, "Queue '%s' is gone: its container was cleared", q->q->name)
                               : cancelled(q));
    }
}

void trn_queue_close(trn_queue *q, bool cancel_pending_enqueues, trn_queue_done done, void *arg)
{
    if (!cancel_pending_enqueues) {
        submit(q, waiter_new(CLOSE, NULL, 0, done, arg));
        return;
    }
    trn_waitlist ready = {0};
    trn_lock(&q->mu);
    q->closed = true;
    drop_all(&q->putters, &ready, false);
    advance_all(q, &ready);
    trn_unlock(&q->mu);
    trn_wait_end_all(&ready);
    done(arg, TRN_OK, NULL);
}

int64_t trn_queue_size(trn_queue *q)
{
    trn_lock(&q->mu);
    int64_t n = (int64_t)q->count;
    trn_unlock(&q->mu);
    return n;
}

bool trn_queue_is_closed(trn_queue *q)
{
    trn_lock(&q->mu);
    bool closed = q->closed;
    trn_unlock(&q->mu);
    return closed;
}

int trn_queue_components(const trn_queue *q, const trn_dtype **types)
{
    *types = q->types;
    return q->n;
}

/* ---- the resource --------------------------------------------------------------------------------------------- */

static void queue_free(trn_resource *r)
{
    trn_queue *q = (trn_queue *)r;
    for (size_t i = 0; i < q->count; i++)
        tuple_free(*slot(q, i), q->n);
    free(q->item);
    free(q->types);
    free(q->shapes);
    free(q->name);
    trn_mutex_fini(&q->mu);
    free(q);
}

static size_t queue_bytes(trn_resource *r)
{
    trn_queue *q = (trn_queue *)r;
    size_t n = 0;
    trn_lock(&q->mu);
    for (size_t i = 0; i < q->count; i++)
        for (int c = 0; c < q->n; c++)
            n += trn_tensor_total_bytes((*slot(q, i))[c]);
    trn_unlock(&q->mu);
    return n;
}

static int list_length(const trn_waitlist *l)
{
    int n = 0;
    for (const trn_wait *w = l->first; w && n < 1000; w = w->next)
        n++;
    return n;
}

static bool queue_fill(trn_resource *r, trn_res_fill *out)
{
    trn_queue *q = (trn_queue *)r;
    if (!trn_trylock(&q->mu))
        return false;
    *out = (trn_res_fill){.kind = kind_name(q->kind), .count = (int64_t)q->count, .capacity = q->capacity < INT32_MAX ? q->capacity : -1, .step = -1,
                      .putters = list_length(&q->putters), .takers = list_length(&q->takers), .closed = q->closed};
    trn_unlock(&q->mu);
    return true;
}

static void queue_describe(trn_resource *r, trn_sb *out)
{
    trn_queue *q = (trn_queue *)r;
    trn_lock(&q->mu);
    trn_sb_addf(out, "%s, %zu elements, %d waiting to put, %d waiting to take%s", kind_name(q->kind), q->count,
                list_length(&q->putters), list_length(&q->takers), q->closed ? ", closed" : "");
    trn_unlock(&q->mu);
}

static void queue_clear(trn_resource *r)
{
    trn_queue *q = (trn_queue *)r;
    trn_waitlist ready = {0};
    trn_lock(&q->mu);
    q->closed = true;
    drop_all(&q->putters, &ready, true);
    drop_all(&q->takers, &ready, true);
    trn_unlock(&q->mu);
    trn_wait_end_all(&ready);
}

const trn_restype trn_queue_type = {
    .name = "Queue", .handle = "tensorflow::QueueInterface", .free = queue_free, .bytes = queue_bytes, .describe = queue_describe, .fill = queue_fill, .close = queue_clear};

static void *dup_bytes(const void *p, size_t n) { return n ? memcpy(trn_xalloc(n), p, n) : NULL; }

trn_err trn_queue_new(trn_queue **out, const char *name, const trn_queue_spec *s)
{
    TRN_CHECK_ARG(s->n > 0, "Empty component types for queue %s", name);
    TRN_CHECK_ARG(!s->n_shapes || s->n_shapes == s->n, "Different number of component types. Types: %d, Shapes: %d",
                  s->n, s->n_shapes);
    TRN_CHECK_ARG(s->kind != TRN_QUEUE_PADDING || s->n_shapes == s->n,
                  "Shapes must be provided for all components, but received %d dtypes and %d shapes.", s->n,
                  s->n_shapes);
    for (int i = 0; i < s->n_shapes; i++) {
        char text[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(s->kind == TRN_QUEUE_PADDING ? s->shapes[i].rank >= 0 : trn_shape_is_full(&s->shapes[i]),
                      "shape %s must %s", trn_shape_text(text, &s->shapes[i]),
                      s->kind == TRN_QUEUE_PADDING ? "have known rank." : "be fully defined.");
    }
    if (s->kind == TRN_QUEUE_SHUFFLE) {
        TRN_CHECK_ARG(s->min_after_dequeue >= 0, "min_after_dequeue %" PRId64 " must be >= 0", s->min_after_dequeue);
        TRN_CHECK_ARG(s->capacity < 0 || s->min_after_dequeue < s->capacity,
                      "min_after_dequeue %" PRId64 " must be < capacity %" PRId64, s->min_after_dequeue, s->capacity);
    }
    if (s->kind == TRN_QUEUE_PRIORITY)
        TRN_CHECK_ARG(s->types[0] == TRN_INT64,
                      "PriorityQueue priority index component must be type int64, but dtype is: %s",
                      trn_dtype_name(s->types[0]));
    trn_queue *q = trn_xalloc(sizeof *q);
    trn_resource_init(&q->base, &trn_queue_type);
    trn_mutex_init(&q->mu, TRN_RANK_RES);
    q->name = trn_xstrdup(name);
    q->kind = s->kind;
    q->capacity = s->capacity < 0 ? INT32_MAX : s->capacity;
    q->n = s->n;
    q->types = dup_bytes(s->types, (size_t)s->n * sizeof *s->types);
    q->n_shapes = s->n_shapes;
    q->shapes = dup_bytes(s->shapes, (size_t)s->n_shapes * sizeof *s->shapes);
    q->min_after_dequeue = s->min_after_dequeue;
    q->seed = s->seed;
    q->seed2 = s->seed2;
    bool any = !s->seed && !s->seed2;
    q->random = trn_philox1_of(
        trn_philox_seed(any ? trn_random64() : (uint64_t)s->seed, any ? trn_random64() : (uint64_t)s->seed2));
    *out = q;
    return TRN_OK;
}

static trn_err mismatch(const trn_queue *q, const char *what, TRN_OWN trn_sb *have, TRN_OWN trn_sb *want)
{
    trn_err err = TRN_BAD("Shared queue '%s' has %s [%s] but requested %s were [%s]", q->name, what,
                          have->n ? have->p : "", what, want->n ? want->p : "");
    trn_sb_fini(have);
    trn_sb_fini(want);
    return err;
}

static void add_shapes(trn_sb *out, const trn_shape *s, int n)
{
    char text[TRN_SHAPE_TEXT];
    for (int i = 0; i < n; i++)
        trn_sb_addf(out, "%s%s", i ? ", " : "", trn_shape_text(text, &s[i]));
}

static void add_types(trn_sb *out, const trn_dtype *t, int n)
{
    for (int i = 0; i < n; i++)
        trn_sb_addf(out, "%s%s", i ? ", " : "", trn_dtype_name(t[i]));
}

trn_err trn_queue_match(const trn_queue *q, const trn_queue_spec *s)
{
    TRN_CHECK_ARG(q->kind == s->kind, "Shared queue '%s' has type '%s' that does not match the requested type '%s'",
                  q->name, kind_name(q->kind), kind_name(s->kind));
    int64_t capacity = s->capacity < 0 ? INT32_MAX : s->capacity;
    TRN_CHECK_ARG(capacity == q->capacity,
                  "Shared queue '%s' has capacity %" PRId64 " but requested capacity was %" PRId64, q->name,
                  q->capacity, capacity);
    if (q->kind == TRN_QUEUE_SHUFFLE) {
        TRN_CHECK_ARG(q->min_after_dequeue == s->min_after_dequeue,
                      "Shared queue '%s' has min_after_dequeue %" PRId64 " but requested min_after_dequeue was %" PRId64
                      ".",
                      q->name, q->min_after_dequeue, s->min_after_dequeue);
        TRN_CHECK_ARG((!s->seed && !s->seed2) || (s->seed == q->seed && s->seed2 == q->seed2),
                      "Shared queue '%s' has random seeds (%" PRId64 ", %" PRId64 ") but requested seeds are (%" PRId64
                      ", %" PRId64 ").",
                      q->name, q->seed, q->seed2, s->seed, s->seed2);
    }
    trn_sb have = {0}, want = {0};
    if (s->n != q->n || memcmp(s->types, q->types, (size_t)q->n * sizeof *q->types)) {
        add_types(&have, q->types, q->n);
        add_types(&want, s->types, s->n);
        return mismatch(q, "component types", &have, &want);
    }
    bool same = s->n_shapes == q->n_shapes;
    for (int i = 0; same && i < q->n_shapes; i++)
        same = q->kind == TRN_QUEUE_PADDING ? trn_shape_compatible(&q->shapes[i], &s->shapes[i])
                                            : trn_shape_eq(&q->shapes[i], &s->shapes[i]);
    if (!same) {
        add_shapes(&have, q->shapes, q->n_shapes);
        add_shapes(&want, s->shapes, s->n_shapes);
        return mismatch(q, "component shapes", &have, &want);
    }
    return TRN_OK;
}
