#include "res/stagemap.h"

#include <inttypes.h>
#include <stdlib.h>

#include "res/wait.h"

typedef struct entry {
    int64_t key;
    bool complete;
    trn_tensor **t; /* size of them; NULL: not there yet, or taken already */
} entry;

struct trn_stagemap {
    trn_resource base;
    char *name;
    int size;
    bool ordered;
    int64_t capacity, memory_limit;
    trn_mutex mu;
    entry *e; /* by key when ordered, else as they came */
    int64_t n, cap, n_complete, bytes;
    trn_waitlist waiting;
};

typedef enum what { PUT, PEEK, TAKE, TAKE_ANY } what;

typedef struct waiter {
    trn_wait w;
    trn_stagemap *m;
    what what;
    int64_t key;
    int n;
    int32_t *index;
    trn_tensor **t;
    int64_t bytes; /* of a put */
    trn_stagemap_done done;
    void *arg;
} waiter;

static void drop_entry(trn_stagemap *m, int64_t i)
{
    for (int j = 0; j < m->size; j++)
        trn_tensor_unref(m->e[i].t[j]);
    free(m->e[i].t);
    m->n_complete -= m->e[i].complete;
    memmove(m->e + i, m->e + i + 1, (size_t)(m->n - i - 1) * sizeof *m->e);
    m->n--;
}

static void map_free(trn_resource *r)
{
    trn_stagemap *m = (trn_stagemap *)r;
    while (m->n)
        drop_entry(m, m->n - 1);
    free(m->e);
    free(m->name);
    trn_mutex_fini(&m->mu);
    free(m);
}

static void waiter_end(trn_wait *base)
{
    waiter *w = (waiter *)base;
    bool give = !w->w.err && w->what != PUT;
    w->done(w->arg, w->w.err, w->key, give ? w->t : NULL, give ? w->n : 0);
    for (int i = 0; i < w->n && !give; i++)
        trn_tensor_unref(w->t[i]);
    trn_stagemap *m = w->m;
    free(w->index);
    free(w->t);
    free(w);
    trn_resource_unref(m);
}

/* ---- what a waiter wants; all with the lock held. True: it is over, with *err ------------------------------------------------ */

static int64_t find(const trn_stagemap *m, int64_t key, bool complete)
{
    for (int64_t i = 0; i < m->n; i++)
        if (m->e[i].key == key && m->e[i].complete == complete)
            return i;
    return -1;
}

static int64_t add_entry(trn_stagemap *m, int64_t key)
{
    TRN_PUSH(m->e, m->n, m->cap, (entry){0});
    int64_t i = m->n - 1;
    for (; m->ordered && i > 0 && m->e[i - 1].key > key; i--)
        m->e[i] = m->e[i - 1];
    m->e[i] = (entry){.key = key, .t = trn_xalloc((size_t)(m->size + 1) * sizeof(trn_tensor *))};
    return i;
}

static trn_err put_pieces(trn_stagemap *m, waiter *w)
{
    int64_t i = find(m, w->key, false);
    for (int j = 0; j < w->n && i >= 0; j++)
        if (m->e[i].t[w->index[j]])
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "The tensor for index '%d' for key '%" PRId64 "' was already initialized", w->index[j],
                              w->key);
    if (w->n == m->size && find(m, w->key, true) >= 0)
        return TRN_OK; /* the key is there: the new one is dropped, as TensorFlow does */
    if (i < 0)
        i = add_entry(m, w->key);
    entry *e = &m->e[i];
    for (int j = 0; j < w->n; j++) {
        e->t[w->index[j]] = w->t[j];
        w->t[j] = NULL;
    }
    m->bytes += w->bytes;
    bool all = true;
    for (int j = 0; j < m->size; j++)
        all = all && e->t[j];
    e->complete = all;
    m->n_complete += all;
    return TRN_OK;
}

static trn_err take_pieces(trn_stagemap *m, waiter *w, int64_t i)
{
    entry *e = &m->e[i];
    for (int j = 0; j < w->n; j++)
        if (!e->t[w->index[j]])
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Tensor at index '%d' for key '%" PRId64 "' has already been removed.", w->index[j],
                              e->key);
    w->key = e->key;
    bool left = false;
    for (int j = 0; j < w->n; j++) {
        w->t[j] = trn_tensor_ref(e->t[w->index[j]]);
        if (w->what == PEEK)
            continue;
        m->bytes -= (int64_t)trn_tensor_bytes(e->t[w->index[j]]);
        trn_tensor_unref(e->t[w->index[j]]);
        e->t[w->index[j]] = NULL;
    }
    for (int j = 0; j < m->size; j++)
        left = left || e->t[j];
    if (!left)
        drop_entry(m, i);
    return TRN_OK;
}

static bool try_it(trn_stagemap *m, waiter *w, trn_err *err)
{
    if (w->what == PUT) {
        if ((m->memory_limit && m->bytes + w->bytes > m->memory_limit) ||
            (w->n == m->size && m->capacity && m->n_complete >= m->capacity))
            return false;
        *err = put_pieces(m, w);
        return true;
    }
    int64_t i = 0;
    if (w->what == TAKE_ANY)
        while (i < m->n && !m->e[i].complete)
            i++;
    else
        i = find(m, w->key, true);
    if (i < 0 || i == m->n)
        return false;
    *err = take_pieces(m, w, i);
    return true;
}

static void advance(trn_stagemap *m, trn_waitlist *ready)
{
    for (bool progress = true; progress;) {
        progress = false;
        for (trn_wait *p = m->waiting.first, *next; p; p = next) {
            next = p->next;
            trn_err err = TRN_OK;
            if (!try_it(m, (waiter *)p, &err))
                continue;
            trn_wait_ready(ready, p, err);
            progress = true;
        }
    }
}

/* ---- calls -------------------------------------------------------------------------------------------------------------------- */

static trn_err cancelled(const waiter *w)
{
    return trn_errorf(TRN_CANCELLED, "a wait for staging map %s was cancelled", w->m->name);
}

static void on_cancel(void *arg)
{
    waiter *w = arg;
    trn_stagemap *m = w->m;
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    if (trn_wait_in(&w->w, &m->waiting))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

static trn_err check_index(const trn_stagemap *m, const int32_t *index, int n)
{
    if (n == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Indices are empty");
    for (int i = 0; i < n; i++) {
        if (i && index[i] <= index[i - 1])
            return trn_errorf(TRN_INVALID_ARGUMENT, "Indices are not strictly ordered");
        if (index[i] < 0 || index[i] >= m->size)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Index '%d' was out of bounds '%d'.", index[i], m->size);
    }
    return TRN_OK;
}

static void submit(trn_stagemap *m, trn_cancel *cancel, waiter *w, TRN_OWN trn_err err)
{
    w->w.end = waiter_end;
    w->w.cancel = cancel;
    w->m = trn_resource_ref(m);
    if (!err && w->what == PUT && m->memory_limit && w->bytes > m->memory_limit)
        err = trn_errorf(TRN_RESOURCE_EXHAUSTED,
                         "Attempted to insert tensors with combined size of '%" PRId64
                         "' bytes into Staging Area with a memory limit of '%" PRId64 "'.",
                         w->bytes, m->memory_limit);
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    trn_wait_link(&m->waiting, &w->w);
    if (err)
        trn_wait_ready(&ready, &w->w, err);
    else if (cancel && trn_cancelled(cancel))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    else
        advance(m, &ready);
    if (trn_wait_in(&w->w, &m->waiting) && !trn_wait_hook(&w->w, on_cancel))
        trn_wait_ready(&ready, &w->w, cancelled(w));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

static waiter *waiter_new(what kind, const int32_t *index, int n, trn_stagemap_done done, void *arg)
{
    waiter *w = trn_xalloc(sizeof *w);
    w->what = kind;
    w->n = n;
    w->index = trn_xalloc((size_t)(n + 1) * sizeof *w->index);
    if (n)
        memcpy(w->index, index, (size_t)n * sizeof *index);
    w->t = trn_xalloc((size_t)(n + 1) * sizeof(trn_tensor *));
    w->done = done;
    w->arg = arg;
    return w;
}

void trn_stagemap_put(trn_stagemap *m, trn_cancel *cancel, int64_t key, const int32_t *index, trn_tensor *const *t,
                      int n, trn_stagemap_done done, void *arg)
{
    waiter *w = waiter_new(PUT, index, n, done, arg);
    w->key = key;
    for (int i = 0; i < n; i++) {
        w->t[i] = trn_tensor_ref(t[i]);
        w->bytes += (int64_t)trn_tensor_bytes(t[i]);
    }
    submit(m, cancel, w, check_index(m, index, n));
}

void trn_stagemap_take(trn_stagemap *m, trn_cancel *cancel, const int64_t *key, const int32_t *index, int n, bool peek,
                       trn_stagemap_done done, void *arg)
{
    waiter *w = waiter_new(!key ? TAKE_ANY : peek ? PEEK : TAKE, index, n, done, arg);
    w->key = key ? *key : 0;
    submit(m, cancel, w, check_index(m, index, n));
}

int64_t trn_stagemap_size(trn_stagemap *m, bool incomplete)
{
    trn_lock(&m->mu);
    int64_t n = incomplete ? m->n - m->n_complete : m->n_complete;
    trn_unlock(&m->mu);
    return n;
}

void trn_stagemap_clear(trn_stagemap *m)
{
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    while (m->n)
        drop_entry(m, m->n - 1);
    m->bytes = 0;
    advance(m, &ready);
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

/* The container is cleared: nobody will come any more. */
static void map_close(trn_resource *r)
{
    trn_stagemap *m = (trn_stagemap *)r;
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    while (m->waiting.first)
        trn_wait_ready(&ready, m->waiting.first, trn_errorf(TRN_ABORTED, "staging map %s was reset", m->name));
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
}

const trn_restype trn_stagemap_type = {.name = "StagingMap", .free = map_free, .close = map_close};
const trn_restype trn_stagemap_ordered_type = {.name = "OrderedStagingMap", .free = map_free, .close = map_close};

trn_stagemap *trn_stagemap_new(const char *name, int size, bool ordered, int64_t capacity, int64_t memory_limit)
{
    trn_stagemap *m = trn_xalloc(sizeof *m);
    trn_resource_init(&m->base, ordered ? &trn_stagemap_ordered_type : &trn_stagemap_type);
    trn_mutex_init(&m->mu, TRN_RANK_RES);
    m->name = trn_xstrdup(name);
    m->size = size;
    m->ordered = ordered;
    m->capacity = capacity;
    m->memory_limit = memory_limit;
    return m;
}
