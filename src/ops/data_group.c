/* Datasets that sort elements into groups: by a key that a function computes (windows of each group, or one result for each), or by the element itself. */
#include <stdlib.h>

#include "base/philox.h"
#include "ops/data.h"

static int64_t infinite_or_unknown(const trn_ds *d)
{
    return trn_ds_count(d->in[0]) == TRN_DS_INFINITE ? TRN_DS_INFINITE : TRN_DS_UNKNOWN;
}

/* ---- GroupByWindow ------------------------------------------------------------------------------------------------- */

typedef struct grouped {
    trn_ds d;             /* f: key */
    trn_func *reduce, *size;
    int n_rcap, n_scap;
    trn_tensor **rcap, **scap;
} grouped;

typedef struct group {
    int64_t key, size;
    int n, cap;
    trn_elem **e;
} group;

typedef struct group_it {
    trn_it it;
    trn_func *reduce, *size;
    trn_elem *kept;
    int n, cap, at;
    group *g;
    trn_it *out; /* walk over a reduced window */
    enum { G_KEY, G_SIZE, G_REDUCE } step;
    bool over, inner;
} group_it;

static void grouped_free(trn_ds *d)
{
    grouped *g = (grouped *)d;
    for (int i = 0; i < g->n_rcap; i++)
        trn_tensor_unref(g->rcap[i]);
    for (int i = 0; i < g->n_scap; i++)
        trn_tensor_unref(g->scap[i]);
    free(g->rcap);
    free(g->scap);
    trn_func_unref(g->reduce);
    trn_func_unref(g->size);
}

static trn_err group_start(trn_it *it_)
{
    group_it *it = (group_it *)it_;
    const grouped *g = (grouped *)it_->d;
    TRN_TRY(trn_func_fork(&it->reduce, g->reduce));
    TRN_TRY(trn_func_fork(&it->size, g->size));
    return trn_it_start_in(it_);
}

static void group_stop(trn_it *it_)
{
    group_it *it = (group_it *)it_;
    for (int i = 0; i < it->n; i++) {
        for (int j = 0; j < it->g[i].n; j++)
            trn_elem_free(it->g[i].e[j]);
        free(it->g[i].e);
    }
    free(it->g);
    trn_elem_free(it->kept);
    trn_it_drop(it->out);
    trn_func_unref(it->reduce);
    trn_func_unref(it->size);
}

static trn_err int_result(int64_t *out, const trn_elem *e, const char *what)
{
    if (e->n != 1 || !e->t[0] || e->t[0]->dtype != TRN_INT64 || e->t[0]->count != 1)
        return TRN_BAD("`%s` must return a scalar int64.", what);
    *out = TRN_DATA(e->t[0], int64_t)[0];
    return TRN_OK;
}

/* Calls another function than the dataset's own, with what that one captured. */
static trn_ds_do call_with(trn_act *a, trn_func *f, trn_tensor *const *args, int n, trn_tensor *const *cap, int n_cap)
{
    trn_elem *e = trn_elem_new(n + n_cap);
    for (int i = 0; i < n + n_cap; i++)
        e->t[i] = trn_tensor_ref(i < n ? args[i] : cap[i - n]);
    trn_elem_free(a->elem);
    a->elem = e;
    a->fn = f;
    return TRN_DS_CALL;
}

/* A full window (or what is left of one) goes to the reduce function as a dataset. */
static trn_ds_do reduce_group(group_it *it, trn_act *a, int at)
{
    const grouped *d = (grouped *)it->it.d;
    const trn_ds *in = d->d.in[0];
    group *g = &it->g[at];
    trn_tensor *args[2] = {trn_tensor_i64(g->key), NULL};
    trn_ds *window;
    trn_err err = trn_data_memory(&window, g->e, g->n, in->n, in->types, in->shapes);
    *g = it->g[--it->n];
    if (!err)
        err = trn_ds_tensor(&args[1], window);
    if (err) {
        trn_tensor_unref(args[0]);
        return trn_act_fail(a, err);
    }
    it->step = G_REDUCE;
    trn_ds_do what = call_with(a, it->reduce, args, 2, d->rcap, d->n_rcap);
    trn_tensor_unref(args[0]);
    trn_tensor_unref(args[1]);
    return what;
}

static int find_group(group_it *it, int64_t key)
{
    for (int i = 0; i < it->n; i++)
        if (it->g[i].key == key)
            return i;
    return -1;
}

/* At the end of the input the groups are emptied in the order of their keys. */
static int least_group(const group_it *it)
{
    int best = 0;
    for (int i = 1; i < it->n; i++)
        if (it->g[i].key < it->g[best].key)
            best = i;
    return best;
}

static trn_ds_do add_to_group(group_it *it, trn_act *a)
{
    group *g = &it->g[it->at];
    TRN_PUSH(g->e, g->n, g->cap, it->kept);
    it->kept = NULL;
    if (g->n == g->size)
        return reduce_group(it, a, it->at);
    it->inner = false;
    return trn_act_pull_on(a, it->it.in);
}

static trn_ds_do group_called(group_it *it, trn_act *a)
{
    const grouped *d = (grouped *)it->it.d;
    int64_t v;
    trn_err err = TRN_OK;
    trn_ds *window;
    switch (it->step) {
    case G_KEY:
        if ((err = int_result(&v, a->elem, "key_func")))
            break;
        if ((it->at = find_group(it, v)) >= 0)
            return add_to_group(it, a);
        TRN_PUSH(it->g, it->n, it->cap, (group){.key = v});
        it->at = it->n - 1;
        it->step = G_SIZE;
        trn_tensor *key = trn_tensor_i64(v);
        trn_ds_do what = call_with(a, it->size, &key, 1, d->scap, d->n_scap);
        trn_tensor_unref(key);
        return what;
    case G_SIZE:
        if (!(err = int_result(&v, a->elem, "window_size_func")) && v <= 0)
            err = TRN_BAD("Window size must be greater than zero, but got %lld.", (long long)v);
        if (err) {
            it->n--;
            break;
        }
        it->g[it->at].size = v;
        return add_to_group(it, a);
    case G_REDUCE:
        if (a->elem->n != 1 || !a->elem->t[0] || a->elem->t[0]->dtype != TRN_VARIANT)
            err = TRN_BAD("`reduce_func` must return a single scalar of dtype DT_VARIANT.");
        if (!err)
            err = trn_ds_in(&window, a->elem->t[0]);
        if (!err)
            err = trn_it_new(&it->out, window, it->it.root);
        if (!err) {
            it->inner = true;
            return trn_act_pull_on(a, it->out);
        }
    }
    return trn_act_fail(a, err);
}

static trn_ds_do group_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    group_it *it = (group_it *)it_;
    switch (why) {
    case TRN_DS_GOT:
        if (it->inner)
            return TRN_DS_GIVE;
        trn_elem_free(it->kept);
        it->kept = trn_elem_copy(a->elem);
        it->step = G_KEY;
        return TRN_DS_CALL;
    case TRN_DS_CALLED:
        return group_called(it, a);
    case TRN_DS_ENDED:
        if (it->inner) {
            trn_it_drop(it->out);
            it->out = NULL;
        } else {
            it->over = true;
        }
        break;
    default:
        break;
    }
    if (it->out) {
        it->inner = true;
        return trn_act_pull_on(a, it->out);
    }
    if (!it->over) {
        it->inner = false;
        return trn_act_pull_on(a, it_->in);
    }
    return it->n ? reduce_group(it, a, least_group(it)) : TRN_DS_END;
}

static const trn_ds_op group_op = {"GroupByWindowDataset", sizeof(group_it), grouped_free, group_start, group_next, .stop = group_stop,
                                   .count = infinite_or_unknown};

static trn_err other_func(trn_func **f, trn_tensor ***cap, int *n_cap, trn_kctx *k, const char *attr, const char *arg)
{
    TRN_TRY(trn_k_func(f, k, trn_attr_func(k->node, attr)));
    int n, first = trn_in_arg(k, arg, &n);
    *cap = trn_xalloc(((size_t)n + 1) * sizeof **cap);
    for (int i = 0; i < n; i++)
        (*cap)[(*n_cap)++] = trn_tensor_ref(trn_in(k, first + i));
    return TRN_OK;
}

static trn_err group_by_window_dataset(trn_kctx *k)
{
    grouped *g;
    TRN_TRY(trn_data_on(&g, k, &group_op, sizeof *g));
    trn_data_elem_attrs(&g->d, k->node);
    trn_err err = trn_data_func(&g->d, k, "key_func", "key_func_other_arguments");
    if (!err)
        err = other_func(&g->reduce, &g->rcap, &g->n_rcap, k, "reduce_func", "reduce_func_other_arguments");
    if (!err)
        err = other_func(&g->size, &g->scap, &g->n_scap, k, "window_size_func", "window_size_func_other_arguments");
    return trn_data_out(k, g, err);
}
/* ---- GroupByReducer: one state per key, and what becomes of it ---------------------------------------------------------- */

enum { R_KEY, R_INIT, R_REDUCE, R_FINALIZE, R_FUNCS };

typedef struct reducer {
    trn_ds d; /* f: key; the others are at their place */
    trn_func *f[R_FUNCS];
    int n_cap[R_FUNCS];
    trn_tensor **cap[R_FUNCS];
} reducer;

typedef struct keyed {
    int64_t key;
    trn_elem *state;
} keyed;

typedef struct reducer_it {
    trn_it it;
    trn_func *f[R_FUNCS];
    trn_elem *kept;
    int64_t key;
    int n, cap, at; /* states, in the order of their keys; the one that is reduced, then the one that comes next */
    keyed *g;
    int step;
    bool over;
} reducer_it;

static void reducer_free(trn_ds *d)
{
    reducer *r = (reducer *)d;
    for (int i = R_INIT; i < R_FUNCS; i++) {
        for (int j = 0; j < r->n_cap[i]; j++)
            trn_tensor_unref(r->cap[i][j]);
        free(r->cap[i]);
        trn_func_unref(r->f[i]);
    }
}

static trn_err reducer_start(trn_it *it)
{
    for (int i = R_INIT; i < R_FUNCS; i++)
        TRN_TRY(trn_func_fork(&((reducer_it *)it)->f[i], ((reducer *)it->d)->f[i]));
    return trn_it_start_in(it);
}

static void reducer_stop(trn_it *it_)
{
    reducer_it *it = (reducer_it *)it_;
    for (int i = 0; i < it->n; i++)
        trn_elem_free(it->g[i].state);
    free(it->g);
    trn_elem_free(it->kept);
    for (int i = R_INIT; i < R_FUNCS; i++)
        trn_func_unref(it->f[i]);
}

static trn_ds_do reducer_call(reducer_it *it, trn_act *a, int step, trn_tensor *const *args, int n)
{
    const reducer *r = (reducer *)it->it.d;
    it->step = step;
    return call_with(a, it->f[step], args, n, r->cap[step], r->n_cap[step]);
}

/* The first whose key is not less. */
static int key_place(const reducer_it *it, int64_t key)
{
    int lo = 0, hi = it->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (it->g[mid].key < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static trn_ds_do reduce_kept(reducer_it *it, trn_act *a)
{
    const trn_elem *s = it->g[it->at].state;
    trn_elem *args = trn_elem_new(s->n + it->kept->n);
    for (int i = 0; i < args->n; i++)
        args->t[i] = trn_tensor_ref(i < s->n ? s->t[i] : it->kept->t[i - s->n]);
    trn_ds_do what = reducer_call(it, a, R_REDUCE, args->t, args->n);
    trn_elem_free(args);
    return what;
}

static trn_ds_do reducer_called(reducer_it *it, trn_act *a)
{
    trn_err err;
    switch (it->step) {
    case R_KEY:
        if ((err = int_result(&it->key, a->elem, "key_func")))
            return trn_act_fail(a, err);
        it->at = key_place(it, it->key);
        if (it->at < it->n && it->g[it->at].key == it->key)
            return reduce_kept(it, a);
        trn_tensor *key = trn_tensor_ref(a->elem->t[0]);
        trn_ds_do what = reducer_call(it, a, R_INIT, &key, 1);
        trn_tensor_unref(key);
        return what;
    case R_INIT:
        TRN_PUSH(it->g, it->n, it->cap, (keyed){0});
        memmove(it->g + it->at + 1, it->g + it->at, (size_t)(it->n - 1 - it->at) * sizeof *it->g);
        it->g[it->at] = (keyed){it->key, trn_act_take(a)};
        return reduce_kept(it, a);
    case R_REDUCE:
        trn_elem_free(it->g[it->at].state);
        it->g[it->at].state = trn_act_take(a);
        return trn_act_pull_on(a, it->it.in);
    default:
        return TRN_DS_GIVE;
    }
}

static trn_ds_do reducer_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    reducer_it *it = (reducer_it *)it_;
    switch (why) {
    case TRN_DS_GOT:
        trn_elem_free(it->kept);
        it->kept = trn_elem_copy(a->elem);
        it->step = R_KEY;
        return TRN_DS_CALL;
    case TRN_DS_CALLED:
        return reducer_called(it, a);
    case TRN_DS_ENDED:
        it->over = true;
        it->at = 0;
        break;
    default:
        break;
    }
    if (!it->over)
        return trn_act_pull_on(a, it_->in);
    if (it->at >= it->n)
        return TRN_DS_END;
    const trn_elem *s = it->g[it->at++].state;
    return reducer_call(it, a, R_FINALIZE, s->t, s->n);
}

static const trn_ds_op reducer_op = {"GroupByReducerDataset", sizeof(reducer_it), reducer_free, reducer_start, reducer_next, .stop = reducer_stop};

static trn_err group_by_reducer_dataset(trn_kctx *k)
{
    static const char *const names[][2] = {[R_INIT] = {"init_func", "init_func_other_arguments"},
                                           [R_REDUCE] = {"reduce_func", "reduce_func_other_arguments"},
                                           [R_FINALIZE] = {"finalize_func", "finalize_func_other_arguments"}};
    reducer *r;
    TRN_TRY(trn_data_on(&r, k, &reducer_op, sizeof *r));
    trn_data_elem_attrs(&r->d, k->node);
    trn_err err = trn_data_func(&r->d, k, "key_func", "key_func_other_arguments");
    for (int i = R_INIT; !err && i < R_FUNCS; i++)
        err = other_func(&r->f[i], &r->cap[i], &r->n_cap[i], k, names[i][0], names[i][1]);
    return trn_data_out(k, r, err);
}

/* ---- Unique --------------------------------------------------------------------------------------------------------------- */

typedef struct unique_it {
    trn_it it;
    trn_map *seen; /* values as bytes → the iterator itself */
} unique_it;

static trn_err unique_start(trn_it *it)
{
    ((unique_it *)it)->seen = trn_map_new();
    return trn_it_start_in(it);
}

static void unique_stop(trn_it *it)
{
    if (((unique_it *)it)->seen)
        trn_map_free(((unique_it *)it)->seen, NULL);
}

/* Shape and values, so that equal bytes are equal tensors. */
static void tensor_key(trn_sb *out, const trn_tensor *t)
{
    trn_sb_add(out, (const char *)&t->shape.rank, sizeof t->shape.rank);
    trn_sb_add(out, (const char *)t->shape.dim, (size_t)t->shape.rank * sizeof *t->shape.dim);
    if (t->dtype != TRN_STRING) {
        trn_sb_add(out, (const char *)t->data, trn_tensor_bytes(t));
        return;
    }
    for (int64_t i = 0; i < t->count; i++) {
        const trn_str *s = &TRN_DATA(t, trn_str)[i];
        uint64_t n = s->len;
        trn_sb_add(out, (const char *)&n, sizeof n);
        trn_sb_add(out, trn_str_p(s), s->len);
    }
}

static trn_ds_do unique_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    unique_it *it = (unique_it *)it_;
    if (why == TRN_DS_ENDED)
        return TRN_DS_END;
    if (why == TRN_DS_GOT) {
        trn_sb key = {0};
        tensor_key(&key, a->elem->t[0]);
        bool fresh = !trn_map_get(it->seen, key.p, key.n);
        if (fresh)
            trn_map_put(it->seen, key.p, key.n, it);
        trn_sb_fini(&key);
        if (fresh)
            return TRN_DS_GIVE;
    }
    return trn_act_pull_on(a, it_->in);
}

static const trn_ds_op unique_op = {"UniqueDataset", sizeof(unique_it), NULL, unique_start, unique_next, .stop = unique_stop};

static trn_err unique_dataset(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_data_on(&d, k, &unique_op, sizeof *d));
    trn_err err = TRN_OK;
    if (d->n != 1)
        err = TRN_BAD("UniqueDataset only supports inputs with a single component.");
    else if (d->types[0] != TRN_INT32 && d->types[0] != TRN_INT64 && d->types[0] != TRN_STRING)
        err = TRN_BAD("UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or `tf.string` component.");
    return trn_data_out(k, d, err);
}

/* ---- Sampling --------------------------------------------------------------------------------------------------------------- */

typedef struct sampling {
    trn_ds d;
    float rate;
    uint64_t seed, seed2;
} sampling;

typedef struct sampling_it {
    trn_it it;
    trn_philox1 gen;
} sampling_it;

static trn_err sampling_start(trn_it *it)
{
    const sampling *s = (sampling *)it->d;
    bool given = s->seed | s->seed2;
    ((sampling_it *)it)->gen = trn_philox1_of(given ? trn_philox_seed(s->seed, s->seed2) : trn_philox_seed(trn_random64(), trn_random64()));
    return trn_it_start_in(it);
}

static trn_ds_do sampling_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    if (why == TRN_DS_ENDED) {
        trn_it_drop(it_->in);
        it_->in = NULL;
    }
    if (why == TRN_DS_GOT && trn_philox_f32(trn_philox1_next(&((sampling_it *)it_)->gen)) < ((sampling *)it_->d)->rate)
        return TRN_DS_GIVE;
    return it_->in ? trn_act_pull_on(a, it_->in) : TRN_DS_END;
}

/* Seeds are in the graph, or are new with each walk. */
static trn_err sampling_save(trn_ds *d, trn_sb *out)
{
    const sampling *s = (sampling *)d;
    if (!(s->seed | s->seed2))
        return trn_errorf(TRN_UNIMPLEMENTED, "a SamplingDataset without seeds cannot be begun again the same: its position cannot be saved");
    return TRN_OK;
}

static trn_err sampling_load(trn_ds *d, const uint8_t *p, size_t n) { return TRN_OK; }

static const trn_ds_op sampling_op = {"SamplingDataset", sizeof(sampling_it), NULL, sampling_start, sampling_next, .save = sampling_save,
                                      .load = sampling_load};

static trn_err sampling_args(sampling *s, trn_kctx *k)
{
    const trn_tensor *rate = trn_in(k, 1);
    int64_t a, b;
    TRN_CHECK_ARG(rate->shape.rank == 0, "rate must be a scalar");
    s->rate = TRN_DATA(rate, float)[0];
    TRN_TRY(trn_data_i64(&a, k, 2, "seed"));
    TRN_TRY(trn_data_i64(&b, k, 3, "seed2"));
    s->seed = (uint64_t)a;
    s->seed2 = (uint64_t)b;
    return TRN_OK;
}

static trn_err sampling_dataset(trn_kctx *k)
{
    sampling *s;
    TRN_TRY(trn_data_on(&s, k, &sampling_op, sizeof *s));
    return trn_data_out(k, s, sampling_args(s, k));
}

#define REDUCER                                                                                                                                                \
    "input_dataset:var, key_func_other_arguments:Tkey_func_other_arguments, init_func_other_arguments:Tinit_func_other_arguments, "                            \
    "reduce_func_other_arguments:Treduce_func_other_arguments, finalize_func_other_arguments:Tfinalize_func_other_arguments -> handle:var; key_func:func, "     \
    "init_func:func, reduce_func:func, finalize_func:func, Tkey_func_other_arguments:list(type)>=0, Tinit_func_other_arguments:list(type)>=0, "                 \
    "Treduce_func_other_arguments:list(type)>=0, Tfinalize_func_other_arguments:list(type)>=0, " DS_OUT

const trn_op trn_ops_data_group[] = {
    {"GroupByWindowDataset",
     "input_dataset:var, key_func_other_arguments:Tkey_func_other_arguments, reduce_func_other_arguments:Treduce_func_other_arguments, "
     "window_size_func_other_arguments:Twindow_size_func_other_arguments -> handle:var; key_func:func, reduce_func:func, window_size_func:func, "
     "Tkey_func_other_arguments:list(type)>=0, Treduce_func_other_arguments:list(type)>=0, Twindow_size_func_other_arguments:list(type)>=0, " DS_OUT DS_META,
     trn_sh_dataset, group_by_window_dataset, DS_FLAGS},
    {"ExperimentalGroupByWindowDataset",
     "input_dataset:var, key_func_other_arguments:Tkey_func_other_arguments, reduce_func_other_arguments:Treduce_func_other_arguments, "
     "window_size_func_other_arguments:Twindow_size_func_other_arguments -> handle:var; key_func:func, reduce_func:func, window_size_func:func, "
     "Tkey_func_other_arguments:list(type)>=0, Treduce_func_other_arguments:list(type)>=0, Twindow_size_func_other_arguments:list(type)>=0, " DS_OUT,
     trn_sh_dataset, group_by_window_dataset, DS_FLAGS},
    {"GroupByReducerDataset", REDUCER, trn_sh_dataset, group_by_reducer_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"ExperimentalGroupByReducerDataset", REDUCER, trn_sh_dataset, group_by_reducer_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"UniqueDataset", "input_dataset:var -> handle:var; " DS_OUT DS_META, trn_sh_dataset, unique_dataset, DS_FLAGS},
    {"ExperimentalUniqueDataset", "input_dataset:var -> handle:var; " DS_OUT, trn_sh_dataset, unique_dataset, DS_FLAGS},
    {"SamplingDataset", "input_dataset:var, rate:f32, seed:i64, seed2:i64 -> handle:var; " DS_OUT, trn_sh_dataset, sampling_dataset, DS_FLAGS},
    {0},
};
