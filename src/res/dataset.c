#include "res/dataset.h"

#include <stdlib.h>

#include "res/res.h"

#define LOOP_BUDGET 256 /* operator calls that a loop thread makes before the pool takes over */

/* ---- elements ----------------------------------------------------------------------------------------------------- */

trn_elem *trn_elem_new(int n)
{
    trn_elem *e = trn_xalloc(sizeof *e + (size_t)n * sizeof *e->t);
    e->n = n;
    return e;
}

trn_elem *trn_elem_of(trn_tensor *const *t, int n)
{
    trn_elem *e = trn_elem_new(n);
    for (int i = 0; i < n; i++)
        e->t[i] = t[i] ? trn_tensor_ref(t[i]) : NULL;
    return e;
}

trn_elem *trn_elem_copy(const trn_elem *e) { return trn_elem_of(e->t, e->n); }

void trn_elem_free(trn_elem *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->n; i++)
        trn_tensor_unref(e->t[i]);
    free(e);
}

size_t trn_elem_bytes(const trn_elem *e)
{
    size_t n = 0;
    for (int i = 0; e && i < e->n; i++)
        n += trn_tensor_bytes(e->t[i]);
    return n;
}

/* ---- datasets ----------------------------------------------------------------------------------------------------- */

static void ds_free(void *obj)
{
    trn_ds *d = obj;
    if (d->op->free)
        d->op->free(d);
    for (int i = 0; i < d->n_in; i++)
        trn_ds_unref(d->in[i]);
    for (int i = 0; i < d->n_cap; i++)
        trn_tensor_unref(d->cap[i]);
    trn_func_unref(d->f);
    trn_origin_free(d->made);
    free(d->in);
    free(d->cap);
    free(d->types);
    free(d->shapes);
    free(d);
}

const trn_variant_type trn_ds_type = {"tensorflow::DatasetVariantWrapper", ds_free};

static trn_err check_depth(const trn_ds_op *op, int depth)
{
    if (depth > TRN_DS_MAX_DEPTH)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: more than %d datasets on top of each other", op->name, TRN_DS_MAX_DEPTH);
    return TRN_OK;
}

trn_err trn_ds_new(void *out, const trn_ds_op *op, size_t size, trn_ds *const *in, int n_in)
{
    int depth = 1;
    for (int i = 0; i < n_in; i++)
        depth = TRN_MAX(depth, in[i]->depth + 1);
    TRN_TRY(check_depth(op, depth));
    trn_ds *d = trn_xalloc(size);
    d->v = (trn_variant){.ref = 1, .type = &trn_ds_type};
    d->op = op;
    d->depth = depth;
    d->in = trn_xalloc(((size_t)n_in + 1) * sizeof *d->in);
    for (int i = 0; i < n_in; i++)
        d->in[d->n_in++] = trn_ds_ref(in[i]);
    if (n_in > 0)
        trn_ds_elem_is(d, in[0]->n, in[0]->types, in[0]->shapes);
    *(trn_ds **)out = d;
    return TRN_OK;
}

trn_err trn_ds_keeps(trn_ds *d, const trn_tensor *t)
{
    for (int64_t i = 0; t->dtype == TRN_VARIANT && i < t->count; i++) {
        const trn_variant *v = TRN_DATA(t, trn_variant *)[i];
        if (v && v->type == &trn_ds_type)
            d->depth = TRN_MAX(d->depth, ((const trn_ds *)v)->depth + 1);
    }
    return check_depth(d->op, d->depth);
}

void trn_ds_elem_is(trn_ds *d, int n, const trn_dtype *types, const trn_shape *shapes)
{
    trn_dtype *t = trn_xalloc(((size_t)n + 1) * sizeof *t);
    trn_shape *s = trn_xalloc(((size_t)n + 1) * sizeof *s);
    for (int i = 0; i < n; i++) {
        t[i] = types[i];
        s[i] = shapes ? shapes[i] : trn_shape_unknown();
    }
    free(d->types);
    free(d->shapes);
    d->n = n;
    d->types = t;
    d->shapes = s;
}

trn_ds *trn_ds_ref(trn_ds *d)
{
    trn_variant_ref(&d->v);
    return d;
}

void trn_ds_unref(trn_ds *d)
{
    if (d)
        trn_variant_unref(&d->v);
}

int64_t trn_ds_count(const trn_ds *d) { return d->op->count ? d->op->count(d) : TRN_DS_UNKNOWN; }

trn_err trn_ds_in(trn_ds **out, const trn_tensor *t)
{
    if (t->dtype != TRN_VARIANT || t->shape.rank != 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Dataset tensor must be a scalar of dtype DT_VARIANT.");
    trn_variant *v = ((trn_variant *const *)t->data)[0];
    if (!v || v->type != &trn_ds_type)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Tensor must be a Dataset object.");
    *out = (trn_ds *)v;
    return TRN_OK;
}

trn_err trn_ds_tensor(trn_tensor **out, trn_ds *d)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    trn_err err = trn_tensor_new(&t, TRN_VARIANT, &s);
    if (err) {
        trn_ds_unref(d);
        return err;
    }
    TRN_DATA_MUT(t, trn_variant *)[0] = &d->v;
    *out = t;
    return TRN_OK;
}

/* ---- what walks begin with ---------------------------------------------------------------------------------------- */

#define MAX_VISITS 10000 /* datasets that are looked at; some may be reached on many ways */

/* fn on a dataset and on all that it reads from or that its function captured, always in the same order. */
static trn_err visit(trn_ds *d, int *left, trn_err (*fn)(trn_ds *d, void *arg), void *arg)
{
    if (--*left < 0)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the pipeline has more than %d datasets", MAX_VISITS);
    for (int i = 0; i < d->n_in; i++)
        TRN_TRY(visit(d->in[i], left, fn, arg));
    for (int i = 0; i < d->n_cap; i++) {
        trn_variant *v = d->cap[i]->dtype == TRN_VARIANT && d->cap[i]->shape.rank == 0 ? ((trn_variant *const *)d->cap[i]->data)[0] : NULL;
        if (v && v->type == &trn_ds_type)
            TRN_TRY(visit((trn_ds *)v, left, fn, arg));
    }
    return fn(d, arg);
}

static trn_err check_external(trn_ds *d, void *arg)
{
    if (d->f && d->f->external)
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s is stateful, and the function of a %s uses it: its state is not part of what is saved", d->f->external, d->op->name);
    return TRN_OK;
}

trn_err trn_ds_check_external(trn_ds *d)
{
    int left = MAX_VISITS;
    return visit(d, &left, check_external, NULL);
}

static trn_err save_one(trn_ds *d, void *out)
{
    if (!d->op->save)
        return TRN_OK;
    trn_sb one = {0};
    trn_err err = d->op->save(d, &one);
    uint32_t n = (uint32_t)one.n;
    if (!err) {
        trn_sb_add(out, &n, sizeof n);
        trn_sb_add(out, one.p, one.n);
    }
    trn_sb_fini(&one);
    return err;
}

trn_err trn_ds_save(trn_sb *out, trn_ds *d)
{
    int left = MAX_VISITS;
    return visit(d, &left, save_one, out);
}

typedef struct saved {
    const uint8_t *p;
    size_t n;
} saved;

static trn_err load_one(trn_ds *d, void *s_)
{
    if (!d->op->save)
        return TRN_OK;
    saved *s = s_;
    uint32_t n;
    if (s->n < sizeof n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "nothing was saved for a %s", d->op->name);
    memcpy(&n, s->p, sizeof n);
    if (n > s->n - sizeof n)
        return trn_errorf(TRN_DATA_LOSS, "what was saved for a %s is cut off", d->op->name);
    TRN_TRY(d->op->load(d, s->p + sizeof n, n));
    s->p += sizeof n + n;
    s->n -= sizeof n + n;
    return TRN_OK;
}

trn_err trn_ds_load(trn_ds *d, const uint8_t *p, size_t n)
{
    int left = MAX_VISITS;
    saved s = {p, n};
    TRN_TRY(visit(d, &left, load_one, &s));
    if (s.n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "it was saved from a dataset with more random parts");
    return TRN_OK;
}

/* ---- iterators ---------------------------------------------------------------------------------------------------- */

static void func_drop(void *f) { trn_func_unref(f); }
static void kept_drop(void *r) { trn_resource_unref(r); }

static void root_unref(trn_itroot *r)
{
    if (atomic_fetch_sub_explicit(&r->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_map_free(r->funcs, func_drop);
    trn_map_free(r->kept, kept_drop);
    trn_mutex_fini(&r->mu);
    free(r);
}

/* The dataset's function with the states of this walk: made once, whichever iterator comes first. */
static trn_err root_func(trn_func **out, trn_itroot *r, trn_func *f)
{
    trn_lock(&r->mu);
    trn_func *mine = trn_map_get(r->funcs, &f, sizeof f);
    if (mine)
        trn_func_ref_add(mine);
    trn_unlock(&r->mu);
    if (!mine) {
        TRN_TRY(trn_func_fork(&mine, f));
        trn_lock(&r->mu);
        trn_func *other = trn_map_get(r->funcs, &f, sizeof f);
        if (other) {
            trn_func_ref_add(other);
        } else {
            trn_map_put(r->funcs, &f, sizeof f, trn_func_ref_add(mine));
        }
        trn_unlock(&r->mu);
        if (other) {
            trn_func_unref(mine);
            mine = other;
        }
    }
    *out = mine;
    return TRN_OK;
}

struct trn_resource *trn_it_kept(trn_it *it, struct trn_resource *what, struct trn_resource *(*copy)(struct trn_resource *what))
{
    if (!it->place)
        return what;
    uint64_t key[2] = {it->place, (uintptr_t)what};
    trn_itroot *r = it->root;
    trn_lock(&r->mu);
    struct trn_resource *mine = trn_map_get(r->kept, key, sizeof key), *fresh = NULL;
    trn_unlock(&r->mu);
    if (mine)
        return mine;
    fresh = copy(what);
    trn_lock(&r->mu);
    if (!(mine = trn_map_get(r->kept, key, sizeof key))) {
        trn_map_put(r->kept, key, sizeof key, fresh);
        mine = fresh;
        fresh = NULL;
    }
    trn_unlock(&r->mu);
    if (fresh)
        trn_resource_unref(fresh);
    return mine;
}

static trn_err it_new(trn_it **out, trn_ds *d, trn_itroot *root, uint64_t place)
{
    while (d->op->alias)
        d = d->in[0];
    trn_it *it = trn_xalloc(TRN_MAX(d->op->it_size, sizeof *it));
    atomic_init(&it->ref, 1);
    it->op = d->op;
    it->place = place;
    it->d = trn_ds_ref(d);
    it->root = root;
    atomic_fetch_add_explicit(&root->ref, 1, memory_order_relaxed);
    trn_err err = d->f ? root_func(&it->f, root, d->f) : TRN_OK;
    if (!err && d->op->start)
        err = d->op->start(it);
    if (err) {
        trn_it_drop(it);
        return err;
    }
    *out = it;
    return TRN_OK;
}

trn_err trn_it_new(trn_it **out, trn_ds *d, trn_itroot *root) { return it_new(out, d, root, 0); }

trn_err trn_it_new_in(trn_it **out, trn_it *parent, int i)
{
    uint64_t at[2] = {parent->place, (uint64_t)i}, place = parent->place ? trn_hash(at, sizeof at) | 1 : 0;
    return it_new(out, parent->d->in[i], parent->root, place);
}

trn_err trn_it_make(trn_it **out, trn_ds *d, const trn_host *host)
{
    trn_itroot *r = trn_xalloc(sizeof *r);
    atomic_init(&r->ref, 1);
    r->host = *host;
    trn_mutex_init(&r->mu, TRN_RANK_RES);
    r->funcs = trn_map_new();
    r->kept = trn_map_new();
    trn_err err = it_new(out, d, r, 1);
    root_unref(r);
    return err;
}

trn_it *trn_it_ref(trn_it *it)
{
    atomic_fetch_add_explicit(&it->ref, 1, memory_order_relaxed);
    return it;
}

void trn_it_unref(trn_it *it)
{
    if (atomic_fetch_sub_explicit(&it->ref, 1, memory_order_acq_rel) != 1)
        return;
    if (it->op->stop)
        it->op->stop(it);
    trn_it_drop(it->in);
    trn_func_unref(it->f);
    trn_ds_unref(it->d);
    root_unref(it->root);
    free(it);
}

void trn_it_drop(trn_it *it)
{
    if (!it)
        return;
    if (it->op->drop)
        it->op->drop(it);
    trn_it_unref(it);
}

/* ---- activities --------------------------------------------------------------------------------------------------- */

static void drive(trn_act *a);

/* Activities that became ready on a thread of a task without a pool (tests): one after the other, not on top of each other. */
static _Thread_local struct {
    trn_act *first, **last;
    bool inside;
} mine;

static void run_here(trn_act *a)
{
    a->next = NULL;
    if (mine.inside) {
        *mine.last = a;
        mine.last = &a->next;
        return;
    }
    mine.inside = true;
    mine.first = NULL;
    mine.last = &mine.first;
    for (;;) {
        drive(a);
        if (!(a = mine.first))
            break;
        if (!(mine.first = a->next))
            mine.last = &mine.first;
    }
    mine.inside = false;
}

static void on_thread(void *a) { drive(a); }

static void act_post(trn_act *a)
{
    if (!trn_host_submit(&a->root->host, TRN_ON_POOL, on_thread, a))
        run_here(a);
}

static void push(trn_act *a, trn_it *it)
{
    TRN_PUSH(a->stack, a->n, a->cap, it);
    a->why = TRN_DS_START;
}

static trn_act *act_new(trn_it *it, trn_cancel *cancel, trn_act_done done, void *arg)
{
    trn_act *a = trn_xalloc(sizeof *a);
    a->root = it->root;
    a->cancel = cancel;
    a->base = trn_it_ref(it);
    a->done = done;
    a->arg = arg;
    trn_host_background(&a->root->host, 1);
    push(a, it);
    return a;
}

void trn_act_pull(trn_it *it, trn_cancel *cancel, trn_act_done done, void *arg) { drive(act_new(it, cancel, done, arg)); }
void trn_act_start(trn_it *it, trn_cancel *cancel, trn_act_done done, void *arg) { act_post(act_new(it, cancel, done, arg)); }

/* One pull is over. True: it goes on with the next one. */
static bool finish(trn_act *a)
{
    trn_err err = a->err;
    trn_elem *e = trn_act_take(a);
    a->err = TRN_OK;
    a->n = 0;
    if (err) {
        trn_elem_free(e);
        e = NULL;
    }
    if (a->done(a->arg, err, e)) {
        push(a, a->base);
        return true;
    }
    trn_host host = a->root->host;
    trn_it_unref(a->base);
    free(a->stack);
    free(a);
    trn_host_background(&host, -1);
    return false;
}

enum { CALLING, RETURNED, CALLED };

static void called(void *arg, trn_err err, trn_tensor **rets, int n_rets)
{
    trn_act *a = arg;
    trn_elem_free(a->elem);
    a->elem = err ? NULL : trn_elem_of(rets, n_rets);
    a->err = err;
    a->why = TRN_DS_CALLED;
    if (atomic_exchange_explicit(&a->call, CALLED, memory_order_acq_rel) == RETURNED)
        drive(a); /* this is the executor's outermost loop: what is started from here is queued there, nothing nests */
}

/* False: the call goes on without us. */
static bool call(trn_act *a, trn_it *it)
{
    trn_func *f = a->fn ? a->fn : it->f;
    int n = a->elem ? a->elem->n : 0, total = n + (a->fn ? 0 : it->d->n_cap);
    a->fn = NULL;
    trn_tensor *few[32] = {0}, **args = total <= 32 ? few : trn_xalloc((size_t)total * sizeof *args);
    for (int i = 0; i < n; i++)
        args[i] = a->elem->t[i];
    for (int i = n; i < total; i++)
        args[i] = it->d->cap[i - n];
    atomic_store_explicit(&a->call, CALLING, memory_order_relaxed);
    trn_func_run(f, a->cancel, args, total, called, a);
    if (args != few)
        free(args);
    return atomic_exchange_explicit(&a->call, RETURNED, memory_order_acq_rel) == CALLED;
}

/* Up to an operator that catches, or out. */
static bool unwind(trn_act *a)
{
    trn_elem_free(trn_act_take(a));
    while (a->n > 0 && !a->stack[a->n - 1]->op->catches)
        a->n--;
    a->why = TRN_DS_ERROR;
    return a->n > 0;
}

/* Operators rely on what their inputs promise; functions and files have the last word. */
static trn_err check_elem(const trn_it *it, const trn_elem *e)
{
    const trn_ds *d = it->d;
    if (!e || e->n != d->n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s gave an element of %d components, %d are expected", d->op->name, e ? e->n : 0, d->n);
    for (int i = 0; i < e->n; i++)
        if (!e->t[i] || e->t[i]->dtype != d->types[i])
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: component %d of an element is %s, %s is expected", d->op->name, i,
                              e->t[i] ? trn_dtype_name(e->t[i]->dtype) : "missing", trn_dtype_name(d->types[i]));
    return TRN_OK;
}

static void drive(trn_act *a)
{
    trn_host host = a->root->host;
    int budget = trn_host_on_loop(&host) ? LOOP_BUDGET : -1;
    for (;;) {
        if (!a->err && trn_cancelled(a->cancel)) {
            a->err = trn_cancel_why(a->cancel);
            a->n = 0;
        }
        if ((a->err && !unwind(a)) || a->n == 0) {
            if (!finish(a))
                return;
            continue;
        }
        if (budget > 0 && --budget == 0) {
            act_post(a);
            return;
        }
        trn_it *it = a->stack[a->n - 1];
        bool was_disk = a->why == TRN_DS_ON_DISK;
        switch (it->op->next(it, a, a->why)) {
        case TRN_DS_GIVE:
            a->err = check_elem(it, a->elem);
            a->n--;
            a->why = TRN_DS_GOT;
            break;
        case TRN_DS_END:
            trn_elem_free(trn_act_take(a));
            a->n--;
            a->why = TRN_DS_ENDED;
            break;
        case TRN_DS_PULL:
            push(a, a->child);
            break;
        case TRN_DS_CALL:
            if (!call(a, it))
                return;
            break;
        case TRN_DS_DISK:
            a->why = TRN_DS_ON_DISK;
            if (!trn_host_here(&host, TRN_ON_DISK) && trn_host_submit(&host, TRN_ON_DISK, on_thread, a))
                return;
            continue;
        case TRN_DS_WAIT:
            return;
        case TRN_DS_FAIL:
            a->n--;
            break;
        }
        if (was_disk && a->n > 0 && trn_host_here(&host, TRN_ON_DISK)) { /* the rest is not for the few disk threads */
            act_post(a);
            return;
        }
    }
}

/* ---- parking ------------------------------------------------------------------------------------------------------ */

static void woken(trn_wait *w)
{
    trn_act *a = TRN_CONTAINER(w, trn_act, w);
    a->err = w->err;
    a->why = TRN_DS_WOKEN;
    act_post(a);
}

static void park_cancelled(void *w_)
{
    trn_wait *w = w_;
    trn_act *a = TRN_CONTAINER(w, trn_act, w);
    trn_waitlist ready = {0};
    trn_lock(a->park_mu);
    if (trn_wait_in(w, a->park_list))
        trn_wait_ready(&ready, w, trn_cancel_why(w->cancel));
    trn_unlock(a->park_mu);
    trn_wait_end_all(&ready);
}

trn_ds_do trn_act_park(trn_act *a, trn_waitlist *list, trn_mutex *mu)
{
    a->park_mu = mu;
    a->park_list = list;
    a->w = (trn_wait){.cancel = a->cancel, .end = woken};
    trn_wait_link(list, &a->w);
    if (trn_wait_hook(&a->w, park_cancelled)) {
        trn_unlock(mu);
        return TRN_DS_WAIT;
    }
    trn_waitlist gone = {0};
    trn_wait_ready(&gone, &a->w, TRN_OK);
    trn_unlock(mu);
    return trn_act_fail(a, trn_cancel_why(a->cancel));
}
