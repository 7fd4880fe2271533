#include "res/var.h"

#include <stdlib.h>

static void var_free(trn_resource *r)
{
    trn_var *v = (trn_var *)r;
    trn_tensor_unref(v->value);
    trn_mutex_fini(&v->mu);
    free(v->name);
    free(v);
}

static size_t var_bytes(trn_resource *r)
{
    trn_var *v = (trn_var *)r;
    trn_lock(&v->mu);
    size_t n = v->value ? trn_tensor_total_bytes(v->value) : 0;
    trn_unlock(&v->mu);
    return n;
}

static void var_describe(trn_resource *r, trn_sb *out)
{
    trn_var *v = (trn_var *)r;
    char text[TRN_SHAPE_TEXT];
    trn_lock(&v->mu);
    trn_sb_addf(out, "%s%s%s", trn_dtype_name(v->dtype), trn_shape_text(text, v->value ? &v->value->shape : &v->shape),
                v->value ? "" : " (not initialised)");
    trn_unlock(&v->mu);
}

const trn_restype trn_refvar_type = {.name = "LegacyVar", .handle = "tensorflow::LegacyVar", .free = var_free, .bytes = var_bytes, .describe = var_describe};
const trn_restype trn_var_type = {.name = "Var", .handle = "tensorflow::Var", .free = var_free, .bytes = var_bytes, .describe = var_describe};

trn_err trn_var_new(trn_var **out, const char *name, trn_dtype dtype, const trn_shape *shape)
{
    trn_var *v = trn_xalloc(sizeof *v);
    trn_resource_init(&v->base, &trn_var_type);
    trn_mutex_init(&v->mu, TRN_RANK_RES);
    v->dtype = dtype;
    v->shape = shape ? *shape : trn_shape_unknown();
    v->name = trn_xstrdup(name);
    *out = v;
    return TRN_OK;
}

trn_err trn_var_read(trn_tensor **out, trn_var *v)
{
    trn_lock(&v->mu);
    trn_tensor *t = v->value ? trn_tensor_ref(v->value) : NULL;
    trn_unlock(&v->mu);
    if (!t)
        return trn_errorf(TRN_FAILED_PRECONDITION, "Attempting to use uninitialized value %s", v->name);
    *out = t;
    return TRN_OK;
}

trn_err trn_var_writable(trn_tensor **out, trn_var *v)
{
    if (!v->value)
        return trn_errorf(TRN_FAILED_PRECONDITION, "Attempting to use uninitialized value %s", v->name);
    if (!trn_tensor_sole(v->value)) {
        trn_tensor *mine;
        TRN_TRY(trn_tensor_copy(&mine, v->value));
        trn_tensor_unref(v->value);
        v->value = mine;
    }
    *out = v->value;
    return TRN_OK;
}

void trn_var_assign(trn_var *v, trn_tensor *t)
{
    trn_lock(&v->mu);
    trn_tensor *old = v->value;
    v->value = t;
    v->is_init = true;
    trn_unlock(&v->mu);
    trn_tensor_unref(old); /* may be large: not under the lock */
}
