/* Staging maps (res/stagemap.h): found by name by each op, there are no handles. */
#include "ops/resop.h"

#include <stdlib.h>

#include "res/stagemap.h"

static bool is_ordered(const trn_node *n) { return !strncmp(n->op, "Ordered", 7); }

static trn_err make_map(trn_resource **out, void *arg)
{
    const trn_node *n = arg;
    const char *container, *name;
    const trn_attr *dtypes = trn_node_attr(n, "dtypes");
    trn_res_name(n, &container, &name);
    *out = (trn_resource *)trn_stagemap_new(name, dtypes && dtypes->is_list ? dtypes->n : 0, is_ordered(n),
                                            trn_attr_int(n, "capacity"), trn_attr_int(n, "memory_limit"));
    return TRN_OK;
}

static trn_err find_map(trn_stagemap **out, trn_kctx *k)
{
    const char *container, *name;
    trn_res_name(k->node, &container, &name);
    return trn_resmgr_get_or_make(out, trn_k_resmgr(k), container, name,
                                  is_ordered(k->node) ? &trn_stagemap_ordered_type : &trn_stagemap_type, make_map,
                                  (void *)k->node);
}

/* With a key as output 0, or without. */
static void done(void *arg, trn_err err, int64_t key, trn_tensor **t, int n)
{
    trn_kctx *k = arg;
    int first = t && n + 1 == k->n_out && !strstr(k->node->op, "Peek") && strstr(k->node->op, "NoKey") ? 1 : 0;
    if (t && n + first != k->n_out)
        err = TRN_BAD("output/input size mismatch: %d tensors for %d outputs", n, k->n_out - first);
    for (int i = 0; t && !err && i < n; i++)
        if (t[i]->dtype != k->node->out_types[first + i])
            err = TRN_BAD("tensor %d is %s, not %s", i, trn_dtype_name(t[i]->dtype),
                          trn_dtype_name(k->node->out_types[first + i]));
    for (int i = 0; t && i < n; i++) {
        if (err)
            trn_tensor_unref(t[i]);
        else
            trn_out_set(k, first + i, t[i]);
    }
    if (first && !err)
        trn_out_set(k, 0, trn_tensor_i64(key));
    trn_k_done(k, err);
}

static trn_err key_in(int64_t *out, const trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 0)->count == 1, "key must be an int64 scalar");
    *out = TRN_DATA(trn_in(k, 0), int64_t)[0];
    return TRN_OK;
}

static trn_err stage(trn_kctx *k)
{
    const trn_tensor *index = trn_in(k, 1);
    int64_t key;
    TRN_TRY(key_in(&key, k));
    int n = k->n_in - 2;
    TRN_CHECK_ARG(index->count == n, "%lld indices for %d values", (long long)index->count, n);
    trn_stagemap *m;
    TRN_TRY(find_map(&m, k));
    trn_tensor **t = trn_xalloc((size_t)(n + 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = k->in[2 + i].t;
    trn_stagemap_put(m, trn_k_cancel(k), key, index->data, t, n, done, k);
    free(t);
    trn_resource_unref(m);
    return TRN_OK;
}

static trn_err take(trn_kctx *k, bool keyed, bool peek)
{
    const trn_tensor *index = trn_in(k, keyed);
    int64_t key = 0;
    if (keyed)
        TRN_TRY(key_in(&key, k));
    TRN_CHECK_ARG(index->count <= 65536, "%lld indices are too many", (long long)index->count);
    trn_stagemap *m;
    TRN_TRY(find_map(&m, k));
    trn_stagemap_take(m, trn_k_cancel(k), keyed ? &key : NULL, index->data, (int)index->count, peek, done, k);
    trn_resource_unref(m);
    return TRN_OK;
}

static trn_err unstage(trn_kctx *k) { return take(k, true, false); }
static trn_err peek(trn_kctx *k) { return take(k, true, true); }
static trn_err unstage_any(trn_kctx *k) { return take(k, false, false); }

static trn_err size_of(trn_kctx *k, bool incomplete)
{
    trn_stagemap *m;
    TRN_TRY(find_map(&m, k));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)trn_stagemap_size(m, incomplete)));
    trn_resource_unref(m);
    return TRN_OK;
}

static trn_err size(trn_kctx *k) { return size_of(k, false); }
static trn_err incomplete_size(trn_kctx *k) { return size_of(k, true); }

static trn_err clear(trn_kctx *k)
{
    trn_stagemap *m;
    TRN_TRY(find_map(&m, k));
    trn_stagemap_clear(m);
    trn_resource_unref(m);
    return TRN_OK;
}

#define AREA "capacity:int>=0=0, memory_limit:int>=0=0, "
#define NAMED ", container:string=\"\", shared_name:string=\"\""
#define ASYNC (TRN_OP_ASYNC | TRN_OP_STATEFUL)
#define FAMILY(P)                                                                                                      \
    {P "MapStage",                                                                                                     \
     "key:i64, indices:i32, values:fake_dtypes -> ; " AREA "dtypes:list(type), fake_dtypes:list(type)>=1" NAMED,       \
     trn_sh_none, stage, ASYNC},                                                                                       \
        {P "MapPeek", "key:i64, indices:i32 -> values:dtypes; " AREA "dtypes:list(type)>=1" NAMED, trn_sh_unknown,     \
         peek, ASYNC},                                                                                                 \
        {P "MapUnstage", "key:i64, indices:i32 -> values:dtypes; " AREA "dtypes:list(type)>=1" NAMED, trn_sh_unknown,  \
         unstage, ASYNC},                                                                                              \
        {P "MapUnstageNoKey", "indices:i32 -> key:i64, values:dtypes; " AREA "dtypes:list(type)>=1" NAMED,             \
         trn_sh_unknown, unstage_any, ASYNC},                                                                          \
        {P "MapSize", " -> size:i32; " AREA "dtypes:list(type)" NAMED, trn_sh_scalar, size, TRN_OP_STATEFUL},          \
        {P "MapIncompleteSize", " -> size:i32; " AREA "dtypes:list(type)" NAMED, trn_sh_scalar, incomplete_size,       \
         TRN_OP_STATEFUL},                                                                                             \
    {                                                                                                                  \
        P "MapClear", " -> ; " AREA "dtypes:list(type)" NAMED, trn_sh_none, clear, TRN_OP_STATEFUL                     \
    }

const trn_op trn_ops_stagemap[] = {
    FAMILY(""),
    FAMILY("Ordered"),
    {0},
};
