#include "res/var.h"

#include <stdlib.h>

/* Locked, or nobody else has it. */
static void settle(trn_var *v)
{
    if (TRN_LIKELY(!v->owed))
        return;
    trn_later_end(v->owed);
    trn_later_unref(v->owed);
    v->owed = NULL;
}

static void var_free(trn_resource *r)
{
    trn_var *v = (trn_var *)r;
    settle(v);
    trn_tensor_unref(v->value);
    trn_mutex_fini(&v->mu);
    pthread_cond_destroy(&v->turn);
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

void trn_var_peek(trn_var_look *out, trn_var *v)
{
    *out = (trn_var_look){.dtype = v->dtype, .shape = v->shape};
    if (!trn_trylock(&v->mu)) {
        int64_t n;
        trn_err err = trn_shape_count(&n, &v->shape); /* not of a shape that is known in part only */
        out->busy = out->initialised = true;
        out->bytes = err || n < 0 ? 0 : (size_t)n * trn_dtype_size(v->dtype);
        trn_err_free(err);
        return;
    }
    const trn_tensor *t = v->value;
    if (t) {
        out->initialised = true;
        out->shape = t->shape;
        out->bytes = trn_tensor_total_bytes(t);
        out->has_number = t->count == 1 && t->shape.rank == 0 && !v->sharing;
        if (out->has_number && t->dtype == TRN_FLOAT)
            out->number = (double)TRN_DATA(t, float)[0];
        else if (out->has_number && t->dtype == TRN_DOUBLE)
            out->number = TRN_DATA(t, double)[0];
        else if (out->has_number && t->dtype == TRN_INT64)
            out->number = (double)TRN_DATA(t, int64_t)[0];
        else if (out->has_number && t->dtype == TRN_INT32)
            out->number = (double)TRN_DATA(t, int32_t)[0];
        else
            out->has_number = false;
    }
    trn_unlock(&v->mu);
}

const trn_restype trn_refvar_type = {.name = "LegacyVar", .handle = "tensorflow::LegacyVar", .free = var_free, .bytes = var_bytes, .describe = var_describe};
const trn_restype trn_var_type = {.name = "Var", .handle = "tensorflow::Var", .free = var_free, .bytes = var_bytes, .describe = var_describe};

trn_err trn_var_new(trn_var **out, const char *name, trn_dtype dtype, const trn_shape *shape)
{
    trn_var *v = trn_xalloc(sizeof *v);
    trn_resource_init(&v->base, &trn_var_type);
    trn_mutex_init(&v->mu, TRN_RANK_RES);
    pthread_cond_init(&v->turn, NULL);
    for (int lock = 0; lock < TRN_VAR_ROW_LOCKS; lock++)
        trn_var_row_unlock(v, lock);
    v->dtype = dtype;
    v->shape = shape ? *shape : trn_shape_unknown();
    v->name = trn_xstrdup(name);
    *out = v;
    return TRN_OK;
}

/* Locked. */
static void wait_alone(trn_var *v)
{
    v->waiting++;
    while (v->sharing)
        pthread_cond_wait(&v->turn, &v->mu.m);
    v->waiting--;
}

void trn_var_lock(trn_var *v)
{
    if (trn_lock_waits(&v->mu))
        atomic_store_explicit(&v->crowded, TRN_VAR_CROWDED, memory_order_relaxed);
    if (v->sharing)
        wait_alone(v);
    settle(v);
}

void trn_var_owe(trn_var *v, trn_later *l) { v->owed = l; }

void trn_var_unlock(trn_var *v)
{
    bool wake = v->stalled && !v->waiting;
    trn_unlock(&v->mu);
    if (wake)
        pthread_cond_broadcast(&v->turn);
}

trn_err trn_var_share(trn_var *v, bool write)
{
    trn_err err = TRN_OK;
    trn_lock(&v->mu);
    v->stalled++;
    while (v->waiting)
        pthread_cond_wait(&v->turn, &v->mu.m);
    v->stalled--;
    settle(v);
    if (!v->value) {
        err = trn_errorf(TRN_FAILED_PRECONDITION, "Attempting to use uninitialized value %s", v->name);
    } else if (write && !trn_tensor_sole(v->value)) {
        wait_alone(v);
        settle(v); /* whoever had it meanwhile may owe something */
        trn_tensor *mine;
        err = trn_var_writable(&mine, v);
    }
    if (!err)
        v->sharing++;
    trn_var_unlock(v);
    return err;
}

void trn_var_unshare(trn_var *v)
{
    trn_lock(&v->mu);
    bool wake = --v->sharing == 0 && v->waiting;
    trn_unlock(&v->mu);
    if (wake)
        pthread_cond_broadcast(&v->turn);
}

trn_err trn_var_read(trn_tensor **out, trn_var *v)
{
    trn_var_lock(v);
    trn_tensor *t = v->value ? trn_tensor_ref(v->value) : NULL;
    trn_var_unlock(v);
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
    trn_var_lock(v);
    trn_tensor *old = v->value;
    v->value = t;
    v->is_init = true;
    trn_var_unlock(v);
    trn_tensor_unref(old); /* may be large: not under the lock */
}
