/* Variables behind inputs; see state.h. */
#include "ops/state.h"

static trn_err wrong_dtype(const trn_var *v, trn_dtype want)
{
    return TRN_BAD("variable %s has dtype %s, the op works on %s", v->name, trn_dtype_name(v->dtype), trn_dtype_name(want));
}

trn_err trn_var_uninit(const trn_var *v)
{
    return trn_errorf(TRN_FAILED_PRECONDITION, "Attempting to use uninitialized value %s", v->name);
}

static trn_err handle_of(const trn_handle **out, const trn_kctx *k, int i)
{
    const trn_tensor *t = trn_in(k, i);
    TRN_CHECK_ARG(t && t->dtype == TRN_RESOURCE && t->count == 1 && TRN_DATA(t, trn_handle *)[0],
                  "input %d is not the handle of a variable", i);
    *out = TRN_DATA(t, trn_handle *)[0];
    return TRN_OK;
}

static trn_err missing(const trn_handle *h, TRN_OWN trn_err why)
{
    trn_err err = trn_errorf(TRN_NOT_FOUND,
                             "Could not find variable %s in container %s: it is uninitialized, or has been deleted. %s", h->name,
                             h->container, trn_err_msg(why));
    trn_err_free(why);
    return err;
}

trn_err trn_var_missing_as(trn_err err, trn_code code)
{
    if (!err || trn_err_code(err) != TRN_NOT_FOUND)
        return err;
    trn_err same = trn_errorf(code, "%s", trn_err_msg(err));
    trn_err_free(err);
    return same;
}

/* NOT_FOUND stays NOT_FOUND here: callers differ in what they make of it. */
static trn_err lookup(trn_var **out, trn_kctx *k, int i, const trn_handle **handle)
{
    TRN_TRY(handle_of(handle, k, i));
    return trn_k_resource(out, k, i, &trn_var_type);
}

trn_err trn_k_var(trn_var **out, trn_kctx *k, int i, trn_dtype dtype)
{
    trn_var *v = k->in[i].var;
    if (v) {
        trn_resource_ref(v);
    } else {
        const trn_handle *h = NULL;
        trn_err err = lookup(&v, k, i, &h);
        if (err)
            return trn_err_code(err) == TRN_NOT_FOUND ? missing(h, err) : err;
    }
    if (dtype != TRN_INVALID && v->dtype != dtype) {
        trn_err err = wrong_dtype(v, dtype);
        trn_resource_unref(v);
        return err;
    }
    *out = v;
    return TRN_OK;
}

struct make_arg {
    const char *name;
    trn_dtype dtype;
    trn_shape shape;
};

static trn_err make_var(trn_resource **out, void *arg)
{
    struct make_arg *a = arg;
    trn_var *v;
    TRN_TRY(trn_var_new(&v, a->name, a->dtype, &a->shape));
    *out = &v->base;
    return TRN_OK;
}

trn_err trn_k_var_make(trn_var **out, trn_kctx *k, int i, trn_dtype dtype)
{
    const trn_handle *h = NULL;
    trn_var *v;
    trn_err err = lookup(&v, k, i, &h);
    if (err && trn_err_code(err) == TRN_NOT_FOUND) {
        trn_err_free(err);
        struct make_arg a = {h->name, dtype, h->n_dtypes == 1 ? h->shapes[0] : trn_shape_unknown()};
        err = trn_resmgr_get_or_make(&v, trn_k_resmgr(k), h->container, h->name, &trn_var_type, make_var, &a);
    }
    TRN_TRY(err);
    if (v->dtype != dtype) {
        err = wrong_dtype(v, dtype);
        trn_resource_unref(v);
        return err;
    }
    *out = v;
    return TRN_OK;
}

/* The locks of s in address order, each once. */
static int in_order(trn_var *o[TRN_VARS_MAX], const trn_vars *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        int at = 0;
        while (at < n && (uintptr_t)o[at] < (uintptr_t)s->v[i])
            at++;
        if (at < n && o[at] == s->v[i])
            continue;
        for (int j = n++; j > at; j--)
            o[j] = o[j - 1];
        o[at] = s->v[i];
    }
    return n;
}

static trn_err find_vars(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype)
{
    memset(s, 0, sizeof *s);
    for (; s->n < n; s->n++) {
        trn_err err = trn_k_var(&s->v[s->n], k, s->n, dtype);
        if (err) {
            for (int i = 0; i < s->n; i++)
                trn_resource_unref(s->v[i]);
            return err;
        }
    }
    return TRN_OK;
}

trn_err trn_vars_share(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype)
{
    TRN_TRY(find_vars(s, k, n, dtype));
    trn_var *o[TRN_VARS_MAX];
    int m = in_order(o, s);
    for (; s->n_shared < m; s->n_shared++) {
        trn_err err = trn_var_share(o[s->n_shared], true);
        if (err) {
            while (s->n_shared > 0)
                trn_var_unshare(s->shared[--s->n_shared]);
            for (int j = 0; j < n; j++)
                trn_resource_unref(s->v[j]);
            return err;
        }
        s->shared[s->n_shared] = o[s->n_shared];
    }
    return TRN_OK;
}

trn_err trn_vars_lock(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype)
{
    TRN_TRY(find_vars(s, k, n, dtype));
    trn_var *o[TRN_VARS_MAX];
    int m = in_order(o, s);
    for (int i = 0; i < m; i++)
        trn_var_lock(o[i]);
    for (int i = 0; i < n; i++)
        if (!s->v[i]->value) {
            trn_err err = trn_var_uninit(s->v[i]);
            for (int j = 0; j < m; j++)
                trn_var_unlock(o[j]);
            for (int j = 0; j < n; j++)
                trn_resource_unref(s->v[j]);
            return err;
        }
    return TRN_OK;
}

trn_err trn_vars_write(trn_tensor **out, trn_vars *s, int i)
{
    if (!s->n_shared)
        return trn_var_writable(out, s->v[i]);
    *out = s->v[i]->value; /* made writable when it was shared, and nobody has had a reference since */
    return TRN_OK;
}

trn_err trn_vars_next(trn_tensor **out, trn_vars *s, int i, trn_kctx *k, int j)
{
    trn_tensor *now = s->v[i]->value, *in = j >= 0 && !k->in[j].var ? k->in[j].t : NULL;
    if (trn_tensor_sole(now)) {
        *out = now;
        return TRN_OK;
    }
    if (in && trn_tensor_sole(in) && trn_var_may_keep(in)) {
        *out = trn_tensor_ref(in);
        return TRN_OK;
    }
    return trn_tensor_new(out, now->dtype, &now->shape);
}

void trn_vars_set_next(trn_vars *s, int i, TRN_OWN trn_tensor *t)
{
    if (t == s->v[i]->value)
        return;
    s->old[i] = s->v[i]->value;
    s->v[i]->value = t;
}

trn_err trn_vars_done(trn_vars *s, trn_kctx *k, TRN_OWN trn_err err)
{
    trn_var *o[TRN_VARS_MAX];
    int m = in_order(o, s);
    for (int i = m - 1; i >= 0; i--)
        if (s->n_shared)
            trn_var_unshare(o[i]);
        else
            trn_var_unlock(o[i]);
    if (!err && k->n_out == 1 && trn_dtype_is_ref(k->node->out_types[0]))
        trn_out_var(k, 0, s->v[0]);
    for (int i = 0; i < s->n; i++) {
        trn_tensor_unref(s->old[i]);
        trn_resource_unref(s->v[i]);
    }
    return err;
}

trn_err trn_sh_update(trn_shctx *s)
{
    if (!s->n_in || !s->n_out)
        return TRN_OK;
    s->out[0] = s->in[0];
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    for (int i = 1; i < s->n_in && trn_dtype_is_ref(s->node->in_types[i]); i++)
        TRN_CHECK_ARG(trn_shape_compatible(&s->in[0], &s->in[i]), "variable is %s, its slot %d is %s", trn_shape_text(a, &s->in[0]), i,
                      trn_shape_text(b, &s->in[i]));
    return TRN_OK;
}
