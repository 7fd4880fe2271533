/* The table of resources: (container, name, type) → resource, in shards by hash so that kernels of many threads do not meet at one lock. */
#include "res/res.h"

#include <stdlib.h>

#include "op/kctx.h"
#include "res/var.h"

#define SHARDS 16
#define DEFAULT_CONTAINER "localhost"

typedef struct shard {
    trn_mutex mu;
    trn_map *map; /* "container\0name\0type" → trn_resource, one reference each */
} __attribute__((aligned(64))) shard;

struct trn_resmgr {
    _Atomic uint32_t ref;
    char *container; /* what "" means */
    shard shard[SHARDS];
};

/* ---- one resource --------------------------------------------------------------------------------------------- */

void trn_resource_init(trn_resource *r, const trn_restype *type)
{
    atomic_init(&r->ref, 1);
    r->type = type;
}

void *trn_resource_ref(void *r)
{
    atomic_fetch_add_explicit(&((trn_resource *)r)->ref, 1, memory_order_relaxed);
    return r;
}

void trn_resource_unref(void *p)
{
    trn_resource *r = p;
    if (r && atomic_fetch_sub_explicit(&r->ref, 1, memory_order_acq_rel) == 1)
        r->type->free(r);
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

trn_resmgr *trn_resmgr_new(const char *default_container)
{
    trn_resmgr *m = aligned_alloc(64, (sizeof *m + 63) & ~(size_t)63);
    if (!m)
        abort();
    atomic_init(&m->ref, 1);
    m->container = trn_xstrdup(default_container && *default_container ? default_container : DEFAULT_CONTAINER);
    for (int i = 0; i < SHARDS; i++) {
        trn_mutex_init(&m->shard[i].mu, TRN_RANK_RESMGR);
        m->shard[i].map = NULL; /* most managers stay small: a step's own holds a handful */
    }
    return m;
}

trn_resmgr *trn_resmgr_ref(trn_resmgr *m)
{
    atomic_fetch_add_explicit(&m->ref, 1, memory_order_relaxed);
    return m;
}

void trn_resmgr_unref(trn_resmgr *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_resmgr_clear(m, NULL);
    for (int i = 0; i < SHARDS; i++) {
        trn_map_free(m->shard[i].map, NULL);
        trn_mutex_fini(&m->shard[i].mu);
    }
    free(m->container);
    free(m);
}

typedef struct key {
    char *p;
    size_t n, n_name; /* all of it; without the type */
    char in[192];
} key;

/* All types of one name are in one shard, so that any of them can be found without knowing the type. */
static shard *find_shard(key *k, trn_resmgr *m, const char *container, const char *name, const trn_restype *type)
{
    if (!container || !*container)
        container = m->container;
    size_t nc = strlen(container), nn = strlen(name), nt = type ? strlen(type->name) : 0;
    k->n_name = nc + 1 + nn + 1;
    k->n = k->n_name + nt;
    k->p = k->n <= sizeof k->in ? k->in : trn_xalloc(k->n);
    memcpy(k->p, container, nc + 1);
    memcpy(k->p + nc + 1, name, nn + 1);
    if (nt)
        memcpy(k->p + k->n_name, type->name, nt);
    return &m->shard[(trn_hash(k->p, k->n_name) >> 32) % SHARDS]; /* the map uses the low bits */
}

static void key_fini(key *k)
{
    if (k->p != k->in)
        free(k->p);
}

static const char *shown(const trn_resmgr *m, const char *container)
{
    return container && *container ? container : m->container;
}

static bool is_empty(trn_resmgr *m, const char *container)
{
    bool found = false;
    for (int i = 0; i < SHARDS && !found; i++) {
        shard *s = &m->shard[i];
        trn_lock(&s->mu);
        const char *p;
        size_t len;
        void *v;
        for (size_t it = 0; s->map && !found && trn_map_next(s->map, &it, &p, &len, &v);)
            found = strcmp(p, container) == 0;
        trn_unlock(&s->mu);
    }
    return !found;
}

/* Locks shards: not to be called with one locked. */
static trn_err not_found(trn_resmgr *m, const char *container, const char *name, const char *type)
{
    container = shown(m, container);
    trn_err err = trn_errorf(TRN_NOT_FOUND, "Resource %s/%s%s%s does not exist.", container, name, type ? "/" : "", type ? type : "");
    return is_empty(m, container) ? trn_err_wrap(err, "Container %s does not exist, or is empty", container) : err;
}

/* `type` NULL: any type, or the one that handles call `handle`; *k becomes the key of what was found. */
static trn_resource *find(shard *s, key *k, const trn_restype *type, const char *handle)
{
    if (type)
        return trn_map_get(s->map, k->p, k->n);
    const char *p;
    size_t len;
    void *v;
    for (size_t it = 0; s->map && trn_map_next(s->map, &it, &p, &len, &v);) {
        const trn_resource *r = v;
        if (len < k->n_name || memcmp(p, k->p, k->n_name) != 0 || (handle && r->type->handle && strcmp(r->type->handle, handle) != 0))
            continue;
        char *whole = trn_xalloc(len);
        memcpy(whole, p, len);
        if (k->p != k->in)
            free(k->p);
        k->p = whole;
        k->n = len;
        return v;
    }
    return NULL;
}

trn_err trn_resmgr_get(void *out, trn_resmgr *m, const char *container, const char *name, const trn_restype *type)
{
    key k;
    shard *s = find_shard(&k, m, container, name, type);
    trn_lock(&s->mu);
    trn_resource *r = find(s, &k, type, NULL);
    if (r)
        *(trn_resource **)out = trn_resource_ref(r);
    trn_unlock(&s->mu);
    key_fini(&k);
    return r ? TRN_OK : not_found(m, container, name, type ? type->name : NULL);
}

static void shard_put(shard *s, const key *k, trn_resource *r)
{
    if (!s->map)
        s->map = trn_map_new();
    trn_map_put(s->map, k->p, k->n, r);
}

trn_err trn_resmgr_get_or_make(void *out, trn_resmgr *m, const char *container, const char *name, const trn_restype *type,
                               trn_err (*make)(trn_resource **out, void *arg), void *arg)
{
    key k;
    shard *s = find_shard(&k, m, container, name, type);
    trn_err err = TRN_OK;
    trn_lock(&s->mu);
    trn_resource *r = trn_map_get(s->map, k.p, k.n);
    if (!r) {
        err = make(&r, arg);
        if (!err)
            shard_put(s, &k, r);
    }
    if (!err)
        *(trn_resource **)out = trn_resource_ref(r);
    trn_unlock(&s->mu);
    key_fini(&k);
    return err;
}

trn_err trn_resmgr_put(trn_resmgr *m, const char *container, const char *name, trn_resource *r)
{
    key k;
    shard *s = find_shard(&k, m, container, name, r->type);
    trn_err err = TRN_OK;
    trn_lock(&s->mu);
    if (trn_map_get(s->map, k.p, k.n))
        err = trn_errorf(TRN_ALREADY_EXISTS, "Resource %s/%s/%s already exists.", shown(m, container), name, r->type->name);
    else
        shard_put(s, &k, r);
    trn_unlock(&s->mu);
    key_fini(&k);
    if (err)
        trn_resource_unref(r);
    return err;
}

static trn_err del(trn_resmgr *m, const char *container, const char *name, const trn_restype *type, const char *handle)
{
    key k;
    shard *s = find_shard(&k, m, container, name, type);
    trn_lock(&s->mu);
    trn_resource *r = find(s, &k, type, handle);
    if (r)
        trn_map_del(s->map, k.p, k.n);
    trn_unlock(&s->mu);
    key_fini(&k);
    if (!r)
        return not_found(m, container, name, type ? type->name : handle);
    trn_resource_unref(r);
    return TRN_OK;
}

trn_err trn_resmgr_del(trn_resmgr *m, const char *container, const char *name, const trn_restype *type)
{
    return del(m, container, name, type, NULL);
}

/* Other programs may write the type's name in their own way; then the names must do. */
static const char *known_type(const trn_handle *h)
{
    return h->type_name && strncmp(h->type_name, "tensorflow::", 12) == 0 ? h->type_name : NULL;
}

trn_err trn_resmgr_del_handle(trn_resmgr *m, const trn_handle *h)
{
    return del(m, h->container, h->name, NULL, known_type(h));
}

/* Out of the table under the lock, closed and dropped without it: close() wakes kernels, which may come back here. */
static void clear_shard(shard *s, const char *container)
{
    trn_resource **gone = NULL;
    int n = 0, cap = 0;
    trn_lock(&s->mu);
    trn_map *old = s->map;
    s->map = NULL;
    const char *p;
    size_t len;
    void *v;
    for (size_t it = 0; old && trn_map_next(old, &it, &p, &len, &v);) {
        if (!container || strcmp(p, container) == 0) {
            TRN_PUSH(gone, n, cap, v);
            continue;
        }
        if (!s->map)
            s->map = trn_map_new();
        trn_map_put(s->map, p, len, v);
    }
    trn_unlock(&s->mu);
    trn_map_free(old, NULL);
    for (int i = 0; i < n; i++) {
        if (gone[i]->type->close)
            gone[i]->type->close(gone[i]);
        trn_resource_unref(gone[i]);
    }
    free(gone);
}

void trn_resmgr_clear(trn_resmgr *m, const char *container)
{
    if (container && !*container)
        container = m->container;
    for (int i = 0; i < SHARDS; i++)
        clear_shard(&m->shard[i], container);
}

void trn_resmgr_each(trn_resmgr *m, void (*fn)(void *arg, const char *container, const char *name, trn_resource *r), void *arg)
{
    for (int i = 0; i < SHARDS; i++) {
        shard *s = &m->shard[i];
        trn_lock(&s->mu);
        const char *p;
        size_t len;
        void *v;
        for (size_t it = 0; s->map && trn_map_next(s->map, &it, &p, &len, &v);)
            fn(arg, p, p + strlen(p) + 1, v); /* the map puts a zero behind every key */
        trn_unlock(&s->mu);
    }
}

/* ---- what kernels ask ----------------------------------------------------------------------------------------- */

/* Handles travel; one that was made on another task names something that is not here. Devices of one task share their containers. */
static bool same_task(const char *a, const char *b)
{
    if (!a || !b)
        return true;
    const char *ea = strstr(a, "/device:"), *eb = strstr(b, "/device:");
    return !ea || !eb || ea == a || eb == b || (ea - a == eb - b && memcmp(a, b, (size_t)(ea - a)) == 0);
}

static trn_err by_handle(void *out, trn_kctx *k, int i, const trn_tensor *t, const trn_restype *type)
{
    if (t->count != 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "input %d: one resource handle wanted, got %lld", i, (long long)t->count);
    const trn_handle *h = TRN_DATA(t, trn_handle *)[0];
    if (!h)
        return trn_errorf(TRN_INVALID_ARGUMENT, "input %d: the resource handle is empty", i);
    if (h->res) {
        trn_resource *r = h->res;
        if (type && r->type != type)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Trying to access resource %s as a %s, but it is a %s", h->name, type->name,
                              r->type->name);
        *(trn_resource **)out = trn_resource_ref(r);
        return TRN_OK;
    }
    if (type && type->handle && known_type(h) && strcmp(h->type_name, type->handle) != 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Trying to access resource %s using the wrong type. Expected %s got %s", h->name, type->handle,
                          h->type_name);
    if (!same_task(h->device, k->node->device))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Trying to access resource %s located in device %s from device %s", h->name,
                          h->device, k->node->device);
    return trn_resmgr_get(out, trn_k_resmgr(k), h->container, h->name, type);
}

/* The old form: a string tensor (by reference, as queues of TensorFlow 1 give it) of container and name. */
static trn_err by_strings(void *out, trn_kctx *k, int i, const trn_tensor *t, const trn_restype *type)
{
    if (t->count != 2)
        return trn_errorf(TRN_INVALID_ARGUMENT, "input %d: Resource handle must have 2 elements, but had %lld", i,
                          (long long)t->count);
    size_t nc, nn;
    const char *c = trn_tensor_str_at(t, 0, &nc), *n = trn_tensor_str_at(t, 1, &nn);
    char *cz = trn_xstrndup(c, nc), *nz = trn_xstrndup(n, nn);
    trn_err err = trn_resmgr_get(out, trn_k_resmgr(k), cz, nz, type);
    free(cz);
    free(nz);
    return err;
}

trn_err trn_k_resource(void *out, trn_kctx *k, int i, const trn_restype *type)
{
    if (i < 0 || i >= k->n_in)
        return trn_errorf(TRN_INTERNAL, "input %d of %d", i, k->n_in);
    trn_tensor *t = k->in[i].t, *held = NULL;
    if (!t && k->in[i].var) {
        TRN_TRY(trn_var_read(&held, k->in[i].var));
        t = held;
    }
    trn_err err;
    if (t && t->dtype == TRN_RESOURCE)
        err = by_handle(out, k, i, t, type);
    else if (t && t->dtype == TRN_STRING)
        err = by_strings(out, k, i, t, type);
    else
        err = trn_errorf(TRN_INVALID_ARGUMENT, "input %d: a resource handle wanted, got %s", i, t ? trn_dtype_name(t->dtype) : "nothing");
    trn_tensor_unref(held);
    return err;
}

void trn_res_name(const trn_node *n, const char **container, const char **name)
{
    const char *shared = trn_attr_str(n, "shared_name");
    *container = trn_attr_str(n, "container");
    *name = *shared ? shared : n->name;
}

trn_err trn_res_handle(trn_tensor **out, const trn_node *n, const char *container, const char *name, const char *type_name,
                       trn_dtype dtype, const trn_shape *shape)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_RESOURCE, &scalar));
    trn_handle *h = trn_handle_new(n->device, *container ? container : DEFAULT_CONTAINER, name, type_name);
    if (dtype != TRN_INVALID) {
        h->n_dtypes = 1;
        h->dtypes = trn_xalloc(sizeof *h->dtypes);
        h->shapes = trn_xalloc(sizeof *h->shapes);
        h->dtypes[0] = dtype;
        h->shapes[0] = shape ? *shape : trn_shape_unknown();
    }
    TRN_DATA_MUT(t, trn_handle *)[0] = h;
    *out = t;
    return TRN_OK;
}
