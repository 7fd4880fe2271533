/* MultiDeviceIterator: one walk over a dataset whose elements are dealt out to shards in turn, one shard per device. Strategies feed their replicas with it.
 *
 * Nothing runs ahead: a shard that asks pulls elements, and those that are others' wait for them. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/data.h"
#include "ops/resop.h"
#include "res/iter.h"
#include "res/wait.h"

#define TYPE_NAME "tensorflow::data::MultiDeviceIterator"

/* What was dealt to a shard: an element or why there is none. */
typedef struct dealt {
    struct dealt *next;
    trn_elem *e;
    trn_err err;
} dealt;

typedef struct shard {
    dealt *first, **last;
} shard;

typedef struct multi {
    trn_resource r;
    uint64_t id; /* in `living` */
    trn_mutex mu;
    int n;
    int64_t incarnation; /* of the walk; 0: none yet */
    trn_iter *iter;
    shard *shard;
    int turn; /* whose the next element is */
    bool over, pulling;
    trn_cancel *pull;
    trn_waitlist waiting;
} multi;

typedef struct ask {
    trn_wait w;
    trn_kctx *k;
    multi *m;
    int shard;
    trn_elem *e;
} ask;

static void dealt_free(dealt *d)
{
    trn_elem_free(d->e);
    trn_err_free(d->err);
    free(d);
}

static void forget_dealt(multi *m)
{
    for (int i = 0; i < m->n; i++) {
        for (dealt *d; (d = m->shard[i].first);) {
            m->shard[i].first = d->next;
            dealt_free(d);
        }
        m->shard[i].last = &m->shard[i].first;
    }
}

/* A string can name an iterator, also one without a name; it does not keep it. */
static pthread_mutex_t living_mu = PTHREAD_MUTEX_INITIALIZER;
static trn_map *living; /* id → multi; made by the first, freed with the last */
static uint64_t last_id;

static void born(multi *m)
{
    pthread_mutex_lock(&living_mu);
    if (!living)
        living = trn_map_new();
    m->id = ++last_id;
    trn_map_puti(living, m->id, m);
    pthread_mutex_unlock(&living_mu);
}

static void died(multi *m)
{
    pthread_mutex_lock(&living_mu);
    trn_map_deli(living, m->id);
    if (!trn_map_count(living)) {
        trn_map_free(living, NULL);
        living = NULL;
    }
    pthread_mutex_unlock(&living_mu);
}

/* A reference, unless the last one has just gone. */
static multi *find(uint64_t id)
{
    pthread_mutex_lock(&living_mu);
    multi *m = living ? trn_map_geti(living, id) : NULL;
    uint32_t ref = m ? atomic_load(&m->r.ref) : 0;
    while (ref && !atomic_compare_exchange_weak(&m->r.ref, &ref, ref + 1)) {
    }
    pthread_mutex_unlock(&living_mu);
    return ref ? m : NULL;
}

static void multi_free(trn_resource *r)
{
    multi *m = (multi *)r;
    died(m);
    forget_dealt(m);
    trn_resource_unref(m->iter);
    trn_cancel_unref(m->pull);
    trn_mutex_fini(&m->mu);
    free(m->shard);
    free(m);
}

/* Those who wait end; what is being pulled is given up. */
static void end_walk(multi *m, trn_waitlist *ready, const char *why)
{
    for (trn_wait *w; (w = m->waiting.first);)
        trn_wait_ready(ready, w, trn_errorf(TRN_CANCELLED, "%s", why));
}

static void multi_close(trn_resource *r)
{
    multi *m = (multi *)r;
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    end_walk(m, &ready, "the iterator was closed");
    trn_cancel *c = trn_cancel_ref(m->pull);
    trn_iter *iter = m->iter ? trn_resource_ref(m->iter) : NULL;
    trn_unlock(&m->mu);
    trn_cancel_fire(c, trn_errorf(TRN_CANCELLED, "the iterator was closed"));
    trn_cancel_unref(c);
    if (iter)
        trn_iter_type.close((trn_resource *)iter);
    trn_resource_unref(iter);
    trn_wait_end_all(&ready);
}

static const trn_restype multi_type = {.name = "MultiDeviceIterator", .handle = TYPE_NAME, .free = multi_free, .close = multi_close};

static trn_err multi_new(trn_resource **out, void *arg)
{
    const trn_kctx *k = arg;
    const trn_attr *devices = trn_node_attr(k->node, "devices");
    multi *m = trn_xalloc(sizeof *m);
    trn_resource_init(&m->r, &multi_type);
    trn_mutex_init(&m->mu, TRN_RANK_RES);
    m->n = devices ? TRN_MAX(devices->n, 1) : 1;
    m->shard = trn_xalloc((size_t)m->n * sizeof *m->shard);
    for (int i = 0; i < m->n; i++)
        m->shard[i].last = &m->shard[i].first;
    m->pull = trn_cancel_new();
    born(m);
    *out = &m->r;
    return TRN_OK;
}

static trn_err anonymous(trn_kctx *k)
{
    trn_resource *r;
    TRN_TRY(multi_new(&r, k));
    return trn_data_anonymous(k, r, TYPE_NAME);
}

static trn_err named(trn_kctx *k)
{
    multi *m;
    TRN_TRY(trn_resop(&m, k, &multi_type, TYPE_NAME, multi_new, k));
    trn_resource_unref(m);
    return TRN_OK;
}

/* ---- a walk --------------------------------------------------------------------------------------------------------- */

static trn_err init(trn_kctx *k)
{
    trn_ds *d;
    int64_t buffer; /* TensorFlow's thread stops there; nothing runs ahead here */
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    TRN_TRY(trn_data_i64(&buffer, k, 2, "max_buffer_size"));
    multi *m;
    TRN_TRY(trn_k_resource(&m, k, 1, &multi_type));
    trn_iter *iter = trn_iter_new(k->node->name, -1, NULL, NULL);
    trn_host host = trn_k_host(k);
    trn_err err = trn_iter_set(iter, d, &host);
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    if (!err)
        err = trn_out_new(&t, k, 0, TRN_INT64, &scalar);
    if (err) {
        trn_resource_unref(iter);
        trn_resource_unref(m);
        return err;
    }
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    trn_iter *old = m->iter;
    trn_cancel *pull = m->pull;
    m->iter = iter;
    m->pull = trn_cancel_new();
    m->pulling = false; /* the old one ends by itself and is not heard */
    m->turn = 0;
    m->over = false;
    forget_dealt(m);
    end_walk(m, &ready, "the iterator was made anew");
    TRN_DATA_MUT(t, int64_t)[0] = ++m->incarnation;
    trn_unlock(&m->mu);
    trn_cancel_fire(pull, trn_errorf(TRN_CANCELLED, "the iterator was made anew"));
    trn_cancel_unref(pull);
    trn_resource_unref(old);
    trn_wait_end_all(&ready);
    trn_resource_unref(m);
    return TRN_OK;
}

/* ---- the next element ------------------------------------------------------------------------------------------------ */

static void ask_end(trn_wait *w)
{
    ask *q = (ask *)w;
    trn_err err = w->err;
    if (!err && !q->e)
        err = trn_errorf(TRN_OUT_OF_RANGE, "End of sequence");
    if (!err)
        err = trn_data_set_outputs(q->k, q->e);
    trn_elem_free(q->e);
    trn_resource_unref(q->m);
    trn_kctx *k = q->k;
    free(q);
    trn_k_done(k, err);
}

static void ask_cancelled(void *w)
{
    ask *q = w;
    multi *m = q->m;
    trn_waitlist ready = {0};
    trn_cancel *pull = NULL;
    trn_lock(&m->mu);
    if (trn_wait_in(&q->w, &m->waiting)) {
        trn_wait_ready(&ready, &q->w, trn_cancel_why(q->w.cancel));
        if (!m->waiting.first && m->pulling) /* for nobody */
            pull = trn_cancel_ref(m->pull);
    }
    trn_unlock(&m->mu);
    if (pull)
        trn_cancel_fire(pull, trn_errorf(TRN_CANCELLED, "nobody waits for it"));
    trn_cancel_unref(pull);
    trn_wait_end_all(&ready);
}

typedef struct puller {
    multi *m;
    int64_t incarnation;
} puller;

static void serve(multi *m);

static void pulled(void *arg, trn_err err, trn_elem *e)
{
    puller *p = arg;
    multi *m = p->m;
    trn_lock(&m->mu);
    bool current = p->incarnation == m->incarnation;
    if (current) {
        m->pulling = false;
        if (err && trn_cancelled(m->pull)) {
            trn_cancel_unref(m->pull);
            m->pull = trn_cancel_new();
        } else if (!err && !e)
            m->over = true;
        else {
            dealt *d = trn_xalloc(sizeof *d);
            *d = (dealt){.e = e, .err = err};
            *m->shard[m->turn].last = d;
            m->shard[m->turn].last = &d->next;
            m->turn = (m->turn + 1) % m->n;
            e = NULL;
            err = TRN_OK;
        }
    }
    trn_unlock(&m->mu);
    trn_elem_free(e);
    trn_err_free(err);
    free(p);
    if (current)
        serve(m);
    trn_resource_unref(m);
}

/* Gives out what is there; pulls when somebody still waits. */
static void serve(multi *m)
{
    trn_waitlist ready = {0};
    puller *p = NULL;
    trn_iter *iter = NULL;
    trn_cancel *cancel = NULL;
    trn_lock(&m->mu);
    for (trn_wait *w = m->waiting.first, *next; w; w = next) {
        next = w->next;
        ask *q = (ask *)w;
        shard *s = &m->shard[q->shard];
        dealt *d = s->first;
        if (d) {
            s->first = d->next;
            if (!s->first)
                s->last = &s->first;
            q->e = d->e;
            trn_wait_ready(&ready, w, d->err);
            free(d);
        } else if (m->over)
            trn_wait_ready(&ready, w, TRN_OK);
    }
    if (m->waiting.first && !m->pulling) {
        m->pulling = true;
        p = trn_xalloc(sizeof *p);
        *p = (puller){trn_resource_ref(m), m->incarnation};
        iter = trn_resource_ref(m->iter);
        cancel = trn_cancel_ref(m->pull);
    }
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
    if (p)
        trn_iter_next(iter, cancel, pulled, p);
    trn_cancel_unref(cancel);
    trn_resource_unref(iter);
}

static trn_err get_next_from_shard(trn_kctx *k)
{
    const trn_tensor *n = trn_in(k, 1);
    int64_t incarnation;
    TRN_CHECK_ARG(n->shape.rank == 0, "shard_num must be a scalar");
    TRN_TRY(trn_data_i64(&incarnation, k, 2, "incarnation_id"));
    int at = TRN_DATA(n, int32_t)[0];
    multi *m;
    TRN_TRY(trn_k_resource(&m, k, 0, &multi_type));
    ask *q = trn_xalloc(sizeof *q);
    *q = (ask){.w = {.cancel = trn_k_cancel(k), .end = ask_end}, .k = k, .m = m, .shard = at};
    trn_waitlist ready = {0};
    trn_lock(&m->mu);
    trn_wait_link(&m->waiting, &q->w);
    if (!m->iter)
        trn_wait_ready(&ready, &q->w, trn_errorf(TRN_FAILED_PRECONDITION, "MultiDeviceIteratorGetNextFromShard before MultiDeviceIteratorInit"));
    else if (incarnation != m->incarnation)
        trn_wait_ready(&ready, &q->w, trn_errorf(TRN_INVALID_ARGUMENT, "Invalid incarnation id. Provided: %lld; Expected: %lld", (long long)incarnation, (long long)m->incarnation));
    else if (at < 0 || at >= m->n)
        trn_wait_ready(&ready, &q->w, trn_errorf(TRN_INVALID_ARGUMENT, "shard_num %d is not one of the iterator's %d shards", at, m->n));
    else if (!trn_wait_hook(&q->w, ask_cancelled))
        trn_wait_ready(&ready, &q->w, trn_cancel_why(q->w.cancel));
    bool failed = ready.first;
    trn_resource_ref(m);
    trn_unlock(&m->mu);
    trn_wait_end_all(&ready);
    if (!failed)
        serve(m);
    trn_resource_unref(m);
    return TRN_OK;
}

/* ---- as a string ----------------------------------------------------------------------------------------------------- */

#define NAMED "MultiDeviceIterator/"

static trn_err to_string_handle(trn_kctx *k)
{
    multi *m;
    TRN_TRY(trn_k_resource(&m, k, 0, &multi_type));
    char name[64];
    snprintf(name, sizeof name, NAMED "%" PRIu64, m->id);
    trn_resource_unref(m);
    trn_tensor *t = trn_tensor_str(name, strlen(name));
    if (!t)
        return trn_err_oom();
    trn_out_set(k, 0, t);
    return TRN_OK;
}

static trn_err from_string_handle(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank == 0, "string_handle must be a scalar");
    const trn_str *s = TRN_DATA(t, trn_str);
    char name[64] = "";
    if (s->len < sizeof name)
        memcpy(name, trn_str_p(s), s->len);
    unsigned long long id;
    multi *m = sscanf(name, NAMED "%llu", &id) == 1 ? find(id) : NULL;
    if (!m)
        return trn_errorf(TRN_NOT_FOUND, "string_handle names no MultiDeviceIterator of this task");
    return trn_data_anonymous(k, &m->r, TYPE_NAME);
}

static trn_err nothing(trn_kctx *k) { return TRN_OK; }

#define DEVICES "devices:list(string)>=1, "
#define MAKES TRN_OP_STATEFUL, .init = trn_resop_init, .fini = trn_resop_fini

const trn_op trn_ops_data_multi[] = {
    {"AnonymousMultiDeviceIterator", "-> handle:res, deleter:var; " DEVICES DS_OUT, trn_sh_dataset, anonymous, TRN_OP_STATEFUL},
    {"AnonymousMultiDeviceIteratorV3", "-> handle:res; " DEVICES DS_OUT, trn_sh_dataset, anonymous, TRN_OP_STATEFUL},
    {"MultiDeviceIterator", "-> handle:res; " DEVICES "shared_name:string, container:string, " DS_OUT, trn_sh_handle, named, MAKES},
    {"MultiDeviceIteratorInit", "dataset:var, multi_device_iterator:res, max_buffer_size:i64 -> incarnation_id:i64", trn_sh_dataset, init, TRN_OP_STATEFUL},
    {"MultiDeviceIteratorGetNextFromShard", "multi_device_iterator:res, shard_num:i32, incarnation_id:i64 -> components:output_types; " DS_OUT, trn_sh_elements,
     get_next_from_shard, TRN_OP_STATEFUL | TRN_OP_ASYNC},
    {"MultiDeviceIteratorToStringHandle", "multi_device_iterator:res -> string_handle:str", trn_sh_dataset, to_string_handle, TRN_OP_STATEFUL},
    {"MultiDeviceIteratorFromStringHandle", "string_handle:str -> multi_device_iterator:res; output_types:list(type)>=0=[], output_shapes:list(shape)>=0=[]", trn_sh_dataset,
     from_string_handle, TRN_OP_STATEFUL},
    {"DeleteMultiDeviceIterator", "multi_device_iterator:res, iterators:N*res, deleter:var ->; N:int>=0", trn_sh_none, nothing, TRN_OP_STATEFUL},
    {0},
};
