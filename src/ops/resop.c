#include "ops/resop.h"

#include <ctype.h>
#include <stdlib.h>

#include "res/var.h"

#define DEFAULT_CONTAINER "localhost"

typedef struct resop {
    trn_resmgr *mgr;
    char *container, *name;
    bool is_private;
    trn_mutex mu;
    trn_tensor *handle; /* made by the first run */
    trn_var *strings;   /* ref form */
} resop;

static trn_err check_names(const char *container, const char *shared)
{
    TRN_CHECK_ARG(*shared != '_', "shared_name cannot start with '_':%s", shared);
    for (const char *p = container; *p; p++)
        TRN_CHECK_ARG(isalnum((unsigned char)*p) || *p == '.' || (p != container && strchr("-/_", *p)),
                      "container contains invalid characters: %s", container);
    return TRN_OK;
}

trn_err trn_resop_init(trn_kinit *ki)
{
    static _Atomic uint64_t counter;
    const char *container = trn_attr_str(ki->node, "container"), *shared = trn_attr_str(ki->node, "shared_name");
    TRN_TRY(check_names(container, shared));
    resop *s = trn_xalloc(sizeof *s);
    trn_mutex_init(&s->mu, TRN_RANK_LEAF);
    s->mgr = ki->resmgr ? trn_resmgr_ref(ki->resmgr) : NULL;
    s->container = trn_xstrdup(*container ? container : DEFAULT_CONTAINER);
    bool by_node = trn_attr_bool(ki->node, "use_node_name_sharing"); /* tables have the choice */
    if (by_node && !*shared)
        shared = ki->node->name;
    s->is_private = !*shared;
    s->name = *shared ? trn_xstrdup(shared)
                      : trn_xasprintf("_%llu_%s", (unsigned long long)atomic_fetch_add(&counter, 1), ki->node->name);
    ki->state = s;
    return TRN_OK;
}

void trn_resop_fini(void *state)
{
    resop *s = state;
    if (s->is_private && s->mgr)
        trn_err_free(trn_resmgr_del(s->mgr, s->container, s->name, NULL)); /* a reset may have been quicker */
    trn_resmgr_unref(s->mgr);
    trn_tensor_unref(s->handle);
    trn_resource_unref(s->strings);
    trn_mutex_fini(&s->mu);
    free(s->container);
    free(s->name);
    free(s);
}

const char *trn_resop_name(const trn_kctx *k) { return ((const resop *)k->state)->name; }

/* The old form: a variable of the kernel's own that holds container and name. */
static trn_err make_strings(trn_var **out, const resop *s)
{
    trn_shape two = trn_shape_vector(2);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_STRING, &two));
    trn_err err = trn_tensor_str_put(t, 0, s->container, strlen(s->container));
    if (!err)
        err = trn_tensor_str_put(t, 1, s->name, strlen(s->name));
    if (!err)
        err = trn_var_new(out, s->name, TRN_STRING, &two);
    if (err)
        trn_tensor_unref(t);
    else
        trn_var_assign(*out, t);
    return err;
}

static trn_err set_output(trn_kctx *k, resop *s, const char *type_name)
{
    bool by_ref = trn_dtype_is_ref(k->node->out_types[0]);
    trn_lock(&s->mu);
    bool have = by_ref ? s->strings != NULL : s->handle != NULL;
    trn_unlock(&s->mu);
    if (!have) {
        trn_var *strings = NULL;
        trn_tensor *handle = NULL;
        TRN_TRY(by_ref ? make_strings(&strings, s)
                       : trn_res_handle(&handle, k->node, s->container, s->name, type_name, TRN_INVALID, NULL));
        trn_lock(&s->mu);
        if (!s->strings && !s->handle) {
            s->strings = strings;
            s->handle = handle;
            strings = NULL;
            handle = NULL;
        }
        trn_unlock(&s->mu);
        trn_tensor_unref(handle); /* another step was quicker */
        trn_resource_unref(strings);
    }
    if (by_ref)
        trn_out_var(k, 0, s->strings);
    else
        trn_out_set(k, 0, trn_tensor_ref(s->handle));
    return TRN_OK;
}

trn_err trn_resop(void *out, trn_kctx *k, const trn_restype *type, const char *type_name,
                  trn_err (*make)(trn_resource **out, void *arg), void *arg)
{
    resop *s = k->state;
    trn_resource *r;
    TRN_TRY(trn_resmgr_get_or_make(&r, trn_k_resmgr(k), s->container, s->name, type, make, arg));
    trn_err err = set_output(k, s, type_name);
    if (err)
        trn_resource_unref(r);
    else
        *(trn_resource **)out = r;
    return err;
}

trn_err trn_k_handle(trn_kctx *k, const char *type_name)
{
    const char *container, *name;
    trn_res_name(k->node, &container, &name);
    TRN_TRY(check_names(container, trn_attr_str(k->node, "shared_name")));
    trn_tensor *t;
    TRN_TRY(trn_res_handle(&t, k->node, container, name, type_name, TRN_INVALID, NULL));
    trn_out_set(k, 0, t);
    return TRN_OK;
}

trn_err trn_k_resource_or_make(void *out, trn_kctx *k, int i, const trn_restype *type, trn_err (*make)(trn_resource **out, void *name))
{
    trn_err err = trn_k_resource(out, k, i, type);
    if (trn_err_code(err) != TRN_NOT_FOUND)
        return err;
    trn_err_free(err);
    const trn_handle *h = TRN_DATA(trn_in(k, i), trn_handle *)[0]; /* not there: so the handle is good, and says where it would be */
    return trn_resmgr_get_or_make(out, trn_k_resmgr(k), h->container, h->name, type, make, h->name);
}

trn_err trn_sh_handle(trn_shctx *s)
{
    s->out[0] = trn_dtype_is_ref(s->node->out_types[0]) ? trn_shape_vector(2) : trn_shape_scalar();
    return TRN_OK;
}

trn_err trn_sh_none(trn_shctx *s)
{
    (void)s;
    return TRN_OK;
}
