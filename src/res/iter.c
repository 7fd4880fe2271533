#include "res/iter.h"

#include <stdlib.h>

typedef struct request request;

struct trn_iter {
    trn_resource r;
    trn_mutex mu;
    char *name;
    int n; /* components; -1: unknown */
    trn_dtype *types;
    trn_shape *shapes;
    trn_it *walk;
    trn_ds *d;        /* that it walks over */
    trn_sb begin;     /* what it began with */
    trn_err begin_err;
    uint64_t answers, failures; /* pulls that it has answered, the first end included; those with an error */
    bool ended;
    bool closed;
    request *busy;      /* the one that pulls now */
    trn_waitlist queue; /* requests behind it */
    /* OneShotIterator */
    enum { NOT_YET, RUNNING, READY } init;
    trn_err init_err;
    trn_waitlist init_wait;
};

struct request {
    trn_wait w; /* while it is in the queue, or waits for its turn */
    trn_iter *i;
    trn_iter_done done;
    void *arg;
    trn_it *walk;
    trn_cancel *own; /* of the pull: fired by the step's, or when the iterator is closed or set anew */
    trn_cancel_hook hook;
    bool hooked;
    trn_err err;
    trn_elem *e;
    bool skipping; /* a walk that was begun again comes to where it stood */
    uint64_t left, may_fail;
};

/* ---- life --------------------------------------------------------------------------------------------------------- */

static void iter_close(trn_resource *r)
{
    trn_iter *i = (trn_iter *)r;
    trn_waitlist ready = {0};
    trn_cancel *c = NULL;
    trn_lock(&i->mu);
    i->closed = true;
    trn_it *walk = i->walk;
    i->walk = NULL;
    if (i->busy)
        c = trn_cancel_ref(i->busy->own);
    for (trn_wait *w; (w = i->queue.first);)
        trn_wait_ready(&ready, w, trn_errorf(TRN_CANCELLED, "Iterator '%s' was closed", i->name));
    trn_unlock(&i->mu);
    if (c)
        trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "Iterator '%s' was closed", i->name));
    trn_cancel_unref(c);
    trn_wait_end_all(&ready);
    trn_it_drop(walk);
}

static void iter_free(trn_resource *r)
{
    trn_iter *i = (trn_iter *)r;
    trn_it_drop(i->walk);
    trn_ds_unref(i->d);
    trn_sb_fini(&i->begin);
    trn_err_free(i->begin_err);
    trn_err_free(i->init_err);
    trn_mutex_fini(&i->mu);
    free(i->name);
    free(i->types);
    free(i->shapes);
    free(i);
}

static void iter_describe(trn_resource *r, trn_sb *out)
{
    trn_iter *i = (trn_iter *)r;
    trn_sb_addf(out, "iterator of %d components", TRN_MAX(i->n, 0));
}

const trn_restype trn_iter_type = {.name = "Iterator", .free = iter_free, .describe = iter_describe, .close = iter_close};

trn_iter *trn_iter_new(const char *name, int n, const trn_dtype *types, const trn_shape *shapes)
{
    trn_iter *i = trn_xalloc(sizeof *i);
    trn_resource_init(&i->r, &trn_iter_type);
    trn_mutex_init(&i->mu, TRN_RANK_RES);
    i->name = trn_xstrdup(name);
    i->n = n;
    i->types = trn_xalloc(((size_t)TRN_MAX(n, 0) + 1) * sizeof *i->types);
    i->shapes = trn_xalloc(((size_t)TRN_MAX(n, 0) + 1) * sizeof *i->shapes);
    for (int k = 0; k < n; k++) {
        i->types[k] = types[k];
        i->shapes[k] = shapes[k];
    }
    return i;
}

trn_err trn_elem_types_match(int n, const trn_dtype *types, const trn_shape *shapes, int n2, const trn_dtype *types2, const trn_shape *shapes2)
{
    if (n < 0 || n2 < 0)
        return TRN_OK;
    if (n != n2)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Number of components does not match: expected %d types but got %d.", n, n2);
    for (int i = 0; i < n; i++) {
        if (types[i] != types2[i])
            return trn_errorf(TRN_INVALID_ARGUMENT, "Data type mismatch at component %d: expected %s but got %s.", i,
                              trn_dtype_name(types[i]), trn_dtype_name(types2[i]));
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        if (shapes && shapes2 && !trn_shape_compatible(&shapes[i], &shapes2[i]))
            return trn_errorf(TRN_INVALID_ARGUMENT, "Incompatible shapes at component %d: expected %s but got %s.", i,
                              trn_shape_text(a, &shapes[i]), trn_shape_text(b, &shapes2[i]));
    }
    return TRN_OK;
}

trn_err trn_iter_match(const trn_iter *i, int n, const trn_dtype *types, const trn_shape *shapes)
{
    return trn_elem_types_match(n, types, shapes, i->n, i->types, i->shapes);
}

#define SWAP(a, b)                                                                                                     \
    do {                                                                                                               \
        typeof(a) was = (a);                                                                                           \
        (a) = (b);                                                                                                     \
        (b) = was;                                                                                                     \
    } while (0)

trn_err trn_iter_set(trn_iter *i, trn_ds *d, const trn_host *host)
{
    TRN_TRY(trn_elem_types_match(i->n, i->types, i->shapes, d->n, d->types, d->shapes));
    trn_it *walk;
    trn_sb begin = {0};
    trn_err begin_err = trn_ds_save(&begin, d);
    trn_err err = trn_it_make(&walk, d, host);
    if (err) {
        trn_sb_fini(&begin);
        trn_err_free(begin_err);
        return err;
    }
    trn_ds *other = trn_ds_ref(d);
    trn_cancel *c = NULL;
    trn_lock(&i->mu);
    if (i->closed) {
        err = trn_errorf(TRN_CANCELLED, "Iterator '%s' was closed", i->name);
    } else {
        trn_it *old = i->walk;
        i->walk = walk;
        walk = old;
        SWAP(i->d, other);
        SWAP(i->begin, begin);
        SWAP(i->begin_err, begin_err);
        i->answers = i->failures = 0;
        i->ended = false;
        if (i->busy)
            c = trn_cancel_ref(i->busy->own);
    }
    trn_unlock(&i->mu);
    if (c)
        trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "Iterator '%s' was initialised anew", i->name));
    trn_cancel_unref(c);
    trn_it_drop(walk);
    trn_ds_unref(other);
    trn_sb_fini(&begin);
    trn_err_free(begin_err);
    return err;
}

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static void serve(trn_iter *i);

static void request_end(trn_wait *w)
{
    request *q = TRN_CONTAINER(w, request, w);
    q->done(q->arg, w->err, NULL);
    trn_resource_unref(q->i);
    free(q);
}

static void request_cancelled(void *w_)
{
    trn_wait *w = w_;
    request *q = TRN_CONTAINER(w, request, w);
    trn_waitlist ready = {0};
    trn_lock(&q->i->mu);
    if (trn_wait_in(w, &q->i->queue))
        trn_wait_ready(&ready, w, trn_cancel_why(w->cancel));
    trn_unlock(&q->i->mu);
    trn_wait_end_all(&ready);
}

static void step_fired(void *arg)
{
    request *q = arg;
    trn_cancel_fire(q->own, trn_cancel_why(q->w.cancel));
}

/* Who was cancelled has not been answered. */
static void count_answer(request *q, trn_err err, const trn_elem *e)
{
    trn_iter *i = q->i;
    trn_lock(&i->mu);
    if (q->walk == i->walk && !i->ended && trn_err_code(err) != TRN_CANCELLED) {
        i->answers++;
        i->failures += err != TRN_OK;
        i->ended = !err && !e;
    }
    trn_unlock(&i->mu);
}

/* Pulls that failed the first time may fail again; one more means that something else is wrong now. True: on to the next. */
static bool skip_on(request *q, trn_err *err, trn_elem **e)
{
    bool more = *e || (*err && q->may_fail > 0 && trn_err_code(*err) != TRN_CANCELLED);
    q->may_fail -= *err && more;
    trn_elem_free(*e);
    *e = NULL;
    if (!more)
        return false;
    trn_err_free(*err);
    *err = TRN_OK;
    return --q->left > 0;
}

static bool pulled(void *arg, trn_err err, trn_elem *e)
{
    request *q = arg;
    trn_iter *i = q->i;
    count_answer(q, err, e);
    if (q->skipping && skip_on(q, &err, &e))
        return true;
    if (q->hooked)
        trn_cancel_remove(q->w.cancel, &q->hook);
    trn_lock(&i->mu);
    i->busy = NULL;
    trn_unlock(&i->mu);
    trn_it_unref(q->walk);
    trn_cancel_unref(q->own);
    q->done(q->arg, err, e);
    free(q);
    serve(i);
    trn_resource_unref(i);
    return false;
}

/* Starts the first of the queue when nobody pulls. */
static void serve(trn_iter *i)
{
    trn_waitlist one = {0};
    trn_lock(&i->mu);
    trn_wait *w = i->busy ? NULL : i->queue.first;
    request *q = NULL;
    if (w) {
        q = TRN_CONTAINER(w, request, w);
        trn_wait_ready(&one, w, TRN_OK);
        q->walk = i->walk ? trn_it_ref(i->walk) : NULL;
        q->own = trn_cancel_new();
        i->busy = q;
    }
    trn_unlock(&i->mu);
    if (!q)
        return;
    if (w->hooked)
        trn_cancel_remove(w->cancel, &w->hook);
    if (!q->walk) {
        trn_lock(&i->mu);
        i->busy = NULL;
        trn_unlock(&i->mu);
        trn_cancel_unref(q->own);
        q->done(q->arg,
                trn_errorf(TRN_FAILED_PRECONDITION,
                           "GetNext() failed because the iterator has not been initialized. Ensure that you have run the initializer "
                           "operation for this iterator before getting the next element."),
                NULL);
        free(q);
        serve(i);
        trn_resource_unref(i);
        return;
    }
    if (w->cancel) {
        q->hooked = true;
        if (!trn_cancel_add(w->cancel, &q->hook, step_fired, q)) {
            q->hooked = false;
            trn_cancel_fire(q->own, trn_cancel_why(w->cancel));
        }
    }
    if (q->skipping)
        trn_act_start(q->walk, q->own, pulled, q);
    else
        trn_act_pull(q->walk, q->own, pulled, q);
}

static void ask(trn_iter *i, trn_cancel *cancel, trn_iter_done done, void *arg, uint64_t skip, uint64_t may_fail)
{
    request *q = trn_xalloc(sizeof *q);
    q->skipping = skip > 0;
    q->left = skip;
    q->may_fail = may_fail;
    q->i = trn_resource_ref(i);
    q->done = done;
    q->arg = arg;
    q->w = (trn_wait){.cancel = cancel, .end = request_end};
    trn_waitlist ready = {0};
    trn_lock(&i->mu);
    trn_wait_link(&i->queue, &q->w);
    if (i->closed)
        trn_wait_ready(&ready, &q->w, trn_errorf(TRN_CANCELLED, "Iterator '%s' was closed", i->name));
    else if (!trn_wait_hook(&q->w, request_cancelled))
        trn_wait_ready(&ready, &q->w, trn_cancel_why(cancel));
    trn_unlock(&i->mu);
    trn_wait_end_all(&ready);
    serve(i);
}

void trn_iter_next(trn_iter *i, trn_cancel *cancel, trn_iter_done done, void *arg) { ask(i, cancel, done, arg, 0, 0); }

/* ---- where it stands -------------------------------------------------------------------------------------------------- */

static const char state_mark[8] = "TRNITER1";

typedef struct state_head {
    char mark[8];
    uint64_t answers, failures;
} state_head;

static trn_err not_set(const char *what)
{
    return trn_errorf(TRN_FAILED_PRECONDITION,
                      "%s() failed because the iterator has not been initialized. Ensure that you have run the initializer operation for this iterator first.", what);
}

trn_err trn_iter_save(trn_sb *out, trn_iter *i, bool strict)
{
    state_head h = {.mark = {0}};
    memcpy(h.mark, state_mark, sizeof h.mark);
    trn_lock(&i->mu);
    trn_err err = !i->walk ? not_set("Save") : i->begin_err ? trn_err_copy(i->begin_err) : TRN_OK;
    h.answers = i->answers;
    h.failures = i->failures;
    if (!err && strict)
        err = trn_ds_check_external(i->d);
    if (!err) {
        trn_sb_add(out, &h, sizeof h);
        trn_sb_add(out, i->begin.p, i->begin.n);
    }
    trn_unlock(&i->mu);
    return err;
}

static trn_err begin_again(trn_iter *i, const void *p, size_t n, const trn_host *host)
{
    trn_lock(&i->mu);
    trn_ds *d = i->walk ? trn_ds_ref(i->d) : NULL;
    trn_unlock(&i->mu);
    if (!d)
        return not_set("Restore");
    trn_err err = trn_ds_load(d, p, n);
    if (!err)
        err = trn_iter_set(i, d, host); /* the old walk ends here, and what it holds (locks of caches) is free */
    trn_ds_unref(d);
    return err;
}

void trn_iter_load(trn_iter *i, const void *p, size_t n, const trn_host *host, trn_cancel *cancel, trn_iter_done done, void *arg)
{
    state_head h;
    trn_err err = TRN_OK;
    if (n < sizeof h || memcmp(p, state_mark, sizeof state_mark) != 0)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "this is not the position of an iterator of Trainera");
    if (!err) {
        memcpy(&h, p, sizeof h);
        err = begin_again(i, (const char *)p + sizeof h, n - sizeof h, host);
    }
    if (err || !h.answers)
        done(arg, err ? trn_err_wrap(err, "Failed to restore dataset iterator from checkpoint") : TRN_OK, NULL);
    else
        ask(i, cancel, done, arg, h.answers, h.failures);
}

/* ---- OneShotIterator ------------------------------------------------------------------------------------------------ */

typedef struct init_wait {
    trn_wait w;
    trn_iter *i;
    trn_iter_ready_fn ready;
    void *arg;
} init_wait;

static void init_end(trn_wait *w)
{
    init_wait *q = TRN_CONTAINER(w, init_wait, w);
    q->ready(q->arg, w->err);
    trn_resource_unref(q->i);
    free(q);
}

static void init_cancelled(void *w_)
{
    trn_wait *w = w_;
    init_wait *q = TRN_CONTAINER(w, init_wait, w);
    trn_waitlist ready = {0};
    trn_lock(&q->i->mu);
    if (trn_wait_in(w, &q->i->init_wait))
        trn_wait_ready(&ready, w, trn_cancel_why(w->cancel));
    trn_unlock(&q->i->mu);
    trn_wait_end_all(&ready);
}

bool trn_iter_first(trn_iter *i, trn_cancel *cancel, trn_iter_ready_fn fn, void *arg)
{
    trn_lock(&i->mu);
    if (i->init == NOT_YET) {
        i->init = RUNNING;
        trn_unlock(&i->mu);
        return true;
    }
    if (i->init == READY) {
        trn_err err = i->init_err ? trn_err_copy(i->init_err) : TRN_OK;
        trn_unlock(&i->mu);
        fn(arg, err);
        return false;
    }
    init_wait *q = trn_xalloc(sizeof *q);
    *q = (init_wait){.w = {.cancel = cancel, .end = init_end}, .i = trn_resource_ref(i), .ready = fn, .arg = arg};
    trn_waitlist ready = {0};
    trn_wait_link(&i->init_wait, &q->w);
    if (!trn_wait_hook(&q->w, init_cancelled))
        trn_wait_ready(&ready, &q->w, trn_cancel_why(cancel));
    trn_unlock(&i->mu);
    trn_wait_end_all(&ready);
    return false;
}

void trn_iter_ready(trn_iter *i, trn_err err)
{
    trn_waitlist ready = {0};
    trn_lock(&i->mu);
    bool again = trn_err_code(err) == TRN_CANCELLED; /* that step's affair: the next one tries anew */
    i->init = again ? NOT_YET : READY;
    i->init_err = again ? TRN_OK : err;
    for (trn_wait *w; (w = i->init_wait.first);)
        trn_wait_ready(&ready, w, err ? trn_err_copy(err) : TRN_OK);
    trn_unlock(&i->mu);
    trn_wait_end_all(&ready);
    if (again)
        trn_err_free(err);
}
