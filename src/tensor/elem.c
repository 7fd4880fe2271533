/* Elements that are more than bytes: strings, resource handles, variants. */
#include "tensor/tensor.h"

#include <stdlib.h>

/* ---- strings -------------------------------------------------------------------------------------------------- */

static bool on_heap(const trn_str *s) { return s->len > sizeof s->in; }

void trn_str_fini(trn_str *s)
{
    if (on_heap(s))
        free(s->p);
    *s = (trn_str){0};
}

trn_err trn_str_alloc(char **out, trn_str *s, size_t n)
{
    if (n > UINT32_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a string of %zu bytes is longer than 4 GiB - 1", n);
    char *p = NULL;
    if (n > sizeof s->in && !(p = malloc(n)))
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "out of memory: a string of %zu bytes does not fit", n);
    trn_str_fini(s);
    s->len = (uint32_t)n;
    if (p)
        s->p = p;
    *out = p ? p : s->in;
    return TRN_OK;
}

trn_err trn_str_set(trn_str *s, const char *p, size_t n)
{
    if (n <= sizeof s->in) { /* `p` may lie in what fini frees */
        char in[sizeof s->in] = {0};
        if (n)
            memcpy(in, p, n);
        trn_str_fini(s);
        s->len = (uint32_t)n;
        memcpy(s->in, in, sizeof in);
        return TRN_OK;
    }
    if (p == trn_str_p(s) && n == s->len)
        return TRN_OK;
    trn_str fresh = {0};
    char *q;
    TRN_TRY(trn_str_alloc(&q, &fresh, n));
    memcpy(q, p, n);
    trn_str_fini(s);
    *s = fresh;
    return TRN_OK;
}

/* ---- handles -------------------------------------------------------------------------------------------------- */

trn_handle *trn_handle_new(const char *device, const char *container, const char *name, const char *type_name)
{
    trn_handle *h = trn_xalloc(sizeof *h);
    atomic_init(&h->ref, 1);
    h->device = trn_xstrdup(device ? device : "");
    h->container = trn_xstrdup(container ? container : "");
    h->name = trn_xstrdup(name ? name : "");
    h->type_name = trn_xstrdup(type_name ? type_name : "");
    return h;
}

trn_handle *trn_handle_ref(trn_handle *h)
{
    if (h)
        atomic_fetch_add_explicit(&h->ref, 1, memory_order_relaxed);
    return h;
}

void trn_handle_unref(trn_handle *h)
{
    if (!h || atomic_fetch_sub_explicit(&h->ref, 1, memory_order_acq_rel) != 1)
        return;
    if (h->res && h->res_unref)
        trn_free_flat(h->res_unref, h->res);
    free(h->device);
    free(h->container);
    free(h->name);
    free(h->type_name);
    free(h->dtypes);
    free(h->shapes);
    free(h);
}

/* ---- variants ------------------------------------------------------------------------------------------------- */

#define MAX_FREEING 100 /* within each other */

typedef struct link {
    void (*fn)(void *);
    void *obj;
} link;

static _Thread_local struct {
    int depth, n, cap;
    link *later;
} freeing;

void trn_free_flat(void (*fn)(void *obj), void *obj)
{
    if (freeing.depth == MAX_FREEING) {
        TRN_PUSH(freeing.later, freeing.n, freeing.cap, (link){fn, obj});
        return;
    }
    freeing.depth++;
    fn(obj);
    while (freeing.depth == 1 && freeing.n) {
        link l = freeing.later[--freeing.n];
        l.fn(l.obj);
    }
    if (--freeing.depth == 0 && freeing.cap) {
        free(freeing.later);
        freeing.later = NULL;
        freeing.cap = 0;
    }
}

trn_variant *trn_variant_ref(trn_variant *v)
{
    if (v)
        atomic_fetch_add_explicit(&v->ref, 1, memory_order_relaxed);
    return v;
}

void trn_variant_unref(trn_variant *v)
{
    if (v && atomic_fetch_sub_explicit(&v->ref, 1, memory_order_acq_rel) == 1)
        trn_free_flat(v->type->free, v);
}
