/* The kernel context's functions. */
#include "op/kctx.h"

int trn_in_arg(const trn_kctx *k, const char *arg, int *count)
{
    int first = 0, n = 0;
    if (!trn_node_in_arg(k->node, arg, strlen(arg), &first, &n))
        n = 0;
    if (count)
        *count = n;
    return first;
}

void trn_out_set(trn_kctx *k, int i, trn_tensor *t)
{
    trn_tensor_unref(k->out[i].t);
    k->out[i].t = t;
}

trn_err trn_out_new(trn_tensor **out, trn_kctx *k, int i, trn_dtype dtype, const trn_shape *shape)
{
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, shape));
    trn_out_set(k, i, t);
    *out = t;
    return TRN_OK;
}

/* The executor moves a value's last use into the context, so a sole tensor is the kernel's to overwrite. */
static bool take_over(trn_kctx *k, int i, int j, trn_dtype dtype, const trn_shape *shape)
{
    trn_tensor *x = k->in[j].t;
    if (!x || k->in[j].var || !trn_dtype_is_plain(x->dtype) || !trn_dtype_is_plain(dtype) || !trn_tensor_sole(x))
        return false;
    int64_t count;
    trn_err e = trn_shape_count(&count, shape);
    if (e) {
        trn_err_free(e);
        return false;
    }
    if (count != x->count || trn_dtype_size(dtype) != trn_dtype_size(x->dtype))
        return false;
    for (int o = 0; o < k->n_in; o++) /* the same tensor twice among the inputs is not sole, but be sure */
        if (o != j && k->in[o].t == x)
            return false;
    x->dtype = dtype;
    if (shape != &x->shape)
        x->shape = *shape;
    trn_out_set(k, i, trn_tensor_ref(x));
    return true;
}

trn_err trn_out_like(trn_tensor **out, trn_kctx *k, int i, int j)
{
    return trn_out_forward(out, k, i, j, k->in[j].t->dtype, &k->in[j].t->shape);
}

trn_err trn_out_forward(trn_tensor **out, trn_kctx *k, int i, int j, trn_dtype dtype, const trn_shape *shape)
{
    if (j >= 0 && take_over(k, i, j, dtype, shape)) {
        *out = k->out[i].t;
        return TRN_OK;
    }
    return trn_out_new(out, k, i, dtype, shape);
}

int64_t trn_k_step_id(const trn_kctx *k)
{
    return k->step->step_id;
}

trn_resmgr *trn_k_resmgr(const trn_kctx *k)
{
    return k->step->resmgr;
}

trn_resmgr *trn_k_step_resmgr(const trn_kctx *k)
{
    trn_resmgr *m = __atomic_load_n(&k->step->step_resmgr, __ATOMIC_ACQUIRE);
    return m ? m : k->step->api->step_resmgr(k);
}

trn_rdv *trn_k_rdv(const trn_kctx *k)
{
    return k->step->rdv;
}

trn_cancel *trn_k_cancel(const trn_kctx *k)
{
    return k->step->cancel;
}

trn_err trn_k_check_path(const trn_kctx *k, const char *path)
{
    return k->step->api && k->step->api->check_path ? k->step->api->check_path(k, path) : TRN_OK;
}

int64_t trn_grain_cap = INT64_MAX;

void trn_k_for(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    grain = trn_grain(grain);
    if (n > grain && k->step && k->step->api && k->step->api->parallel_for)
        k->step->api->parallel_for(k, n, grain, fn, arg);
    else if (n > 0)
        fn(arg, 0, n);
}

int trn_k_threads(const trn_kctx *k)
{
    return k->step && k->step->api && k->step->api->threads ? k->step->api->threads(k) : 1;
}

bool trn_k_may_owe(const trn_kctx *k)
{
    return k->step && k->step->api && k->step->api->may_owe && k->step->api->may_owe(k);
}

void trn_k_owe(const trn_kctx *k, trn_later *l) { k->step->api->owe(k, l); }

void trn_k_done(trn_kctx *k, trn_err err)
{
    k->step->api->done(k, err);
}

void trn_k_call_on(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    k->step->api->call_on(k, device, f, args, n_args, done, arg);
}

void trn_k_call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    k->step->api->call(k, f, args, n_args, done, arg);
}

trn_err trn_k_func(trn_func **out, trn_kctx *k, const trn_func_ref *f)
{
    if (!f)
        return trn_errorf(TRN_INVALID_ARGUMENT, "no function is named");
    if (!k->step->api->func)
        return trn_errorf(TRN_UNIMPLEMENTED, "function %s: there is no library here", f->name);
    return k->step->api->func(out, k, f);
}

trn_err trn_k_graph(trn_func **out, trn_kctx *k, const void *graph_def, size_t n)
{
    if (!k->step->api->graph)
        return trn_errorf(TRN_UNIMPLEMENTED, "graphs within graphs do not run here");
    return k->step->api->graph(out, k, graph_def, n);
}

trn_origin *trn_k_origin(const trn_kctx *k) { return k->step && k->step->api && k->step->api->origin ? k->step->api->origin(k) : NULL; }

trn_err trn_k_graph_of(void **graph_def, size_t *n, const trn_kctx *k, const trn_tensor *t, bool stateful, bool strip)
{
    if (!k->step->api->graph_of)
        return trn_errorf(TRN_UNIMPLEMENTED, "datasets are not written as graphs here");
    return k->step->api->graph_of(graph_def, n, k, t, stateful, strip);
}

trn_err trn_k_hash_of(uint64_t *out, const trn_kctx *k, const trn_tensor *t)
{
    if (!k->step->api->hash_of)
        return trn_errorf(TRN_UNIMPLEMENTED, "datasets are not told apart here");
    return k->step->api->hash_of(out, k, t);
}

trn_err trn_k_shard(trn_func **out, trn_tensor ***args, trn_kctx *k, const trn_tensor *t, const trn_shard *s)
{
    if (!k->step->api->shard)
        return trn_errorf(TRN_UNIMPLEMENTED, "datasets are not divided here");
    return k->step->api->shard(out, args, k, t, s);
}

trn_host trn_k_host(const trn_kctx *k)
{
    return k->step->api && k->step->api->host ? k->step->api->host(k) : (trn_host){0};
}

trn_func *trn_func_ref_add(trn_func *f)
{
    atomic_fetch_add_explicit(&f->ref, 1, memory_order_relaxed);
    return f;
}

void trn_func_unref(trn_func *f)
{
    if (f && atomic_fetch_sub_explicit(&f->ref, 1, memory_order_acq_rel) == 1)
        f->type->free(f);
}

trn_err trn_func_fork(trn_func **out, trn_func *f)
{
    return f->type->fork(out, f);
}

void trn_func_run(trn_func *f, trn_cancel *cancel, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    f->type->run(f, cancel, args, n_args, done, arg);
}
