/* Datasets that make elements from tensors, and those that choose, order and join elements without looking into them. */
#include <stdio.h>
#include <stdlib.h>

#include "ops/data.h"
#include "res/res.h"

/* ---- sources ------------------------------------------------------------------------------------------------------ */

/* TensorDataset: the tensors, once. TensorSliceDataset: their slices. */
typedef struct source {
    trn_ds d;
    bool sliced;
    int64_t n; /* elements */
    trn_elem *e;
} source;

typedef struct count_it {
    trn_it it;
    int64_t at;
} count_it;

static void source_free(trn_ds *d) { trn_elem_free(((source *)d)->e); }

static trn_ds_do source_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    count_it *it = (count_it *)it_;
    source *s = (source *)it_->d;
    if (it->at >= s->n)
        return TRN_DS_END;
    int64_t at = it->at++;
    if (!s->sliced)
        return trn_act_give(a, trn_elem_copy(s->e));
    trn_elem *e = trn_elem_new(s->e->n);
    for (int i = 0; i < e->n; i++) {
        trn_err err = trn_data_slice(&e->t[i], s->e->t[i], at);
        if (err) {
            trn_elem_free(e);
            return trn_act_fail(a, err);
        }
    }
    return trn_act_give(a, e);
}

static int64_t source_count(const trn_ds *d) { return ((const source *)d)->n; }

static const trn_ds_op source_op = {"TensorSliceDataset", sizeof(count_it), source_free, NULL, source_next, .count = source_count};

static trn_err tensor_source(trn_kctx *k, bool sliced)
{
    TRN_CHECK_ARG(k->n_in > 0, "no components");
    for (int i = 0; sliced && i < k->n_in; i++) {
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank > 0, "All components must be at least 1-dimensional");
        TRN_CHECK_ARG(trn_in(k, i)->shape.dim[0] == trn_in(k, 0)->shape.dim[0], "All components must have the same size in the 0th dimension");
    }
    const trn_attr *shapes = trn_node_attr(k->node, "output_shapes");
    TRN_CHECK_ARG(shapes && shapes->n == k->n_in, "output_shapes has %d entries for %d components", shapes ? shapes->n : 0, k->n_in);
    source *s;
    TRN_TRY(trn_ds_new(&s, &source_op, sizeof *s, NULL, 0));
    s->sliced = sliced;
    s->n = sliced ? trn_in(k, 0)->shape.dim[0] : 1;
    s->e = trn_elem_new(k->n_in);
    trn_dtype *types = trn_xalloc((size_t)k->n_in * sizeof *types);
    trn_shape *sh = trn_xalloc((size_t)k->n_in * sizeof *sh);
    trn_err err = TRN_OK;
    for (int i = 0; i < k->n_in; i++) {
        const trn_tensor *t = trn_in(k, i);
        s->e->t[i] = trn_tensor_ref(t);
        types[i] = t->dtype;
        sh[i] = t->shape;
        if (sliced) {
            sh[i].rank--;
            memmove(sh[i].dim, sh[i].dim + 1, (size_t)sh[i].rank * sizeof *sh[i].dim);
        }
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        if (!err && !trn_shape_compatible(&sh[i], shapes->list[i].shape))
            err = TRN_BAD("Incompatible shapes at component %d: expected %s but got %s.", i, trn_shape_text(a, &sh[i]),
                          trn_shape_text(b, shapes->list[i].shape));
    }
    trn_ds_elem_is(&s->d, k->n_in, types, sh);
    free(types);
    free(sh);
    return trn_data_out(k, s, err);
}

static trn_err tensor_dataset(trn_kctx *k) { return tensor_source(k, false); }
static trn_err tensor_slice_dataset(trn_kctx *k) { return tensor_source(k, true); }

typedef struct range {
    trn_ds d;
    int64_t start, stop, step;
} range;

static int64_t range_count(const trn_ds *d)
{
    const range *r = (const range *)d;
    if (r->step > 0 ? r->start >= r->stop : r->start <= r->stop)
        return 0;
    __int128 span = r->step > 0 ? (__int128)r->stop - r->start : (__int128)r->start - r->stop, step = r->step > 0 ? r->step : -(__int128)r->step;
    __int128 n = (span + step - 1) / step;
    return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

static trn_err number(trn_tensor **out, trn_dtype type, int64_t v)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, type, &s));
    switch (type) {
    case TRN_FLOAT: TRN_DATA_MUT(t, float)[0] = (float)v; break;
    case TRN_DOUBLE: TRN_DATA_MUT(t, double)[0] = (double)v; break;
    case TRN_HALF: TRN_DATA_MUT(t, trn_half)[0] = trn_half_from_f32((float)v); break;
    case TRN_BFLOAT16: TRN_DATA_MUT(t, trn_bf16)[0] = trn_bf16_from_f32((float)v); break;
    case TRN_INT8: TRN_DATA_MUT(t, int8_t)[0] = (int8_t)v; break;
    case TRN_UINT8: TRN_DATA_MUT(t, uint8_t)[0] = (uint8_t)v; break;
    case TRN_INT16: TRN_DATA_MUT(t, int16_t)[0] = (int16_t)v; break;
    case TRN_UINT16: TRN_DATA_MUT(t, uint16_t)[0] = (uint16_t)v; break;
    case TRN_INT32: TRN_DATA_MUT(t, int32_t)[0] = (int32_t)v; break;
    case TRN_UINT32: TRN_DATA_MUT(t, uint32_t)[0] = (uint32_t)v; break;
    case TRN_INT64: TRN_DATA_MUT(t, int64_t)[0] = v; break;
    case TRN_UINT64: TRN_DATA_MUT(t, uint64_t)[0] = (uint64_t)v; break;
    default:
        trn_tensor_unref(t);
        return TRN_BAD("Unsupported data type: %s", trn_dtype_name(type));
    }
    *out = t;
    return TRN_OK;
}

static trn_ds_do range_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    count_it *it = (count_it *)it_;
    range *r = (range *)it_->d;
    if (it->at >= range_count(&r->d))
        return TRN_DS_END;
    trn_elem *e = trn_elem_new(1);
    trn_err err = number(&e->t[0], r->d.types[0], (int64_t)((uint64_t)r->start + (uint64_t)it->at++ * (uint64_t)r->step));
    if (err) {
        trn_elem_free(e);
        return trn_act_fail(a, err);
    }
    return trn_act_give(a, e);
}

static const trn_ds_op range_op = {"RangeDataset", sizeof(count_it), NULL, NULL, range_next, .count = range_count};

static trn_err range_dataset(trn_kctx *k)
{
    range *r;
    TRN_TRY(trn_data_source(&r, k, &range_op, sizeof *r));
    trn_err err = trn_data_i64(&r->start, k, 0, "start");
    if (!err)
        err = trn_data_i64(&r->stop, k, 1, "stop");
    if (!err)
        err = trn_data_i64(&r->step, k, 2, "step");
    if (!err && r->step == 0)
        err = TRN_BAD("step must be a non-zero integer.");
    if (!err && r->d.n != 1)
        err = TRN_BAD("output_types has %d entries, one is expected", r->d.n);
    return trn_data_out(k, r, err);
}

/* ---- Repeat, Take, Skip, Shard ------------------------------------------------------------------------------------ */

typedef struct counted {
    trn_ds d;
    int64_t n, index;
    bool flag;
} counted;

typedef struct flow_it {
    trn_it it;
    int64_t at;
    bool fresh, over;
} flow_it;

static int64_t times(int64_t a, int64_t b)
{
    int64_t r;
    return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
}

static trn_err counted_on(trn_kctx *k, const trn_ds_op *op)
{
    counted *c;
    TRN_TRY(trn_data_on(&c, k, op, sizeof *c));
    return trn_data_out(k, c, trn_data_i64(&c->n, k, 1, "count"));
}

static trn_ds_do repeat_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    flow_it *it = (flow_it *)it_;
    const counted *c = (counted *)it_->d;
    if (why == TRN_DS_GOT) {
        it->fresh = false;
        return TRN_DS_GIVE;
    }
    if (why == TRN_DS_ENDED) {
        trn_it_drop(it_->in);
        it_->in = NULL;
        it->at++;
        if (c->n < 0 && it->fresh) /* nothing in there: the same for ever */
            it->over = true;
    }
    if (it->over || (c->n >= 0 && it->at >= c->n))
        return TRN_DS_END;
    if (!it_->in) {
        trn_err err = trn_it_start_in(it_);
        if (err)
            return trn_act_fail(a, err);
        it->fresh = true;
    }
    return trn_act_pull_on(a, it_->in);
}

static int64_t repeat_count(const trn_ds *d)
{
    int64_t n = ((const counted *)d)->n, in = trn_ds_count(d->in[0]);
    if (n < 0)
        return in == 0 ? 0 : TRN_DS_INFINITE;
    if (n == 0)
        return 0;
    return in < 0 ? in : times(in, n);
}

static const trn_ds_op repeat_op = {"RepeatDataset", sizeof(flow_it), NULL, NULL, repeat_next, .count = repeat_count};
static trn_err repeat_dataset(trn_kctx *k) { return counted_on(k, &repeat_op); }

static trn_ds_do take_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    flow_it *it = (flow_it *)it_;
    const counted *c = (counted *)it_->d;
    if (why == TRN_DS_GOT) {
        it->at++;
        return TRN_DS_GIVE;
    }
    if (why == TRN_DS_START && it_->in && (c->n < 0 || it->at < c->n))
        return trn_act_pull_on(a, it_->in);
    trn_it_drop(it_->in);
    it_->in = NULL;
    return TRN_DS_END;
}

static int64_t take_count(const trn_ds *d)
{
    int64_t n = ((const counted *)d)->n, in = trn_ds_count(d->in[0]);
    if (n < 0)
        return in;
    if (n == 0 || in == TRN_DS_INFINITE)
        return n;
    return in == TRN_DS_UNKNOWN ? in : TRN_MIN(in, n);
}

static const trn_ds_op take_op = {"TakeDataset", sizeof(flow_it), NULL, trn_it_start_in, take_next, .count = take_count};
static trn_err take_dataset(trn_kctx *k) { return counted_on(k, &take_op); }

static trn_ds_do skip_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    flow_it *it = (flow_it *)it_;
    const counted *c = (counted *)it_->d;
    if (c->n < 0 || why == TRN_DS_ENDED)
        it->over = true;
    if (it->over)
        return TRN_DS_END;
    if (why == TRN_DS_GOT && it->at++ >= c->n)
        return TRN_DS_GIVE;
    return trn_act_pull_on(a, it_->in);
}

static int64_t skip_count(const trn_ds *d)
{
    int64_t n = ((const counted *)d)->n, in = trn_ds_count(d->in[0]);
    if (n < 0)
        return 0;
    return in < 0 ? in : TRN_MAX(in - n, 0);
}

static const trn_ds_op skip_op = {"SkipDataset", sizeof(flow_it), NULL, trn_it_start_in, skip_next, .count = skip_count};
static trn_err skip_dataset(trn_kctx *k) { return counted_on(k, &skip_op); }

typedef struct shard_it {
    flow_it f;
    trn_elem *first; /* kept back until there is one for every part */
} shard_it;

static void shard_stop(trn_it *it) { trn_elem_free(((shard_it *)it)->first); }

static trn_ds_do shard_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    shard_it *it = (shard_it *)it_;
    const counted *c = (counted *)it_->d;
    if (c->n == TRN_SHARDS_HINT)
        return trn_act_fail(a, trn_errorf(TRN_FAILED_PRECONDITION, "`tf.data.Dataset.shard(SHARD_HINT, ...)` only marks where AutoShardDataset with policy HINT divides "
                                                                   "the elements: distribute the dataset with that policy"));
    if (why == TRN_DS_ENDED && it->first) {
        trn_elem_free(it->first);
        it->first = NULL;
        it->f.over = true;
        return trn_act_fail(a, TRN_BAD("Could not apply FILE based sharding: there are %lld elements for %lld parts. Set "
                                       "experimental_distribute.auto_shard_policy of tf.data.Options to DATA or OFF, or read more files",
                                       (long long)it->f.at, (long long)c->n));
    }
    if (why == TRN_DS_ENDED)
        it->f.over = true;
    if (it->f.over)
        return TRN_DS_END;
    if (why == TRN_DS_GOT) {
        bool mine = it->f.at++ % c->n == c->index;
        if (mine && c->flag && it->f.at < c->n)
            it->first = trn_act_take(a);
        else if (mine)
            return TRN_DS_GIVE;
        else if (it->first && it->f.at == c->n) {
            trn_elem *e = it->first;
            it->first = NULL;
            return trn_act_give(a, e);
        }
    }
    return trn_act_pull_on(a, it_->in);
}

static int64_t shard_count(const trn_ds *d)
{
    const counted *c = (const counted *)d;
    int64_t in = trn_ds_count(d->in[0]);
    return in < 0 || c->n < 0 ? in : in / c->n + (c->index < in % c->n);
}

static const trn_ds_op shard_op = {"ShardDataset", sizeof(shard_it), NULL, trn_it_start_in, shard_next, .stop = shard_stop, .count = shard_count};

static trn_err shard_dataset(trn_kctx *k)
{
    counted *c;
    TRN_TRY(trn_data_on(&c, k, &shard_op, sizeof *c));
    c->flag = trn_attr_bool(k->node, "require_non_empty");
    trn_err err = trn_data_i64(&c->n, k, 1, "num_shards");
    if (!err)
        err = trn_data_i64(&c->index, k, 2, "index");
    if (!err && c->n <= 0 && c->n != TRN_SHARDS_HINT)
        err = TRN_BAD("Number of shards must be greater than zero (currently num_shards = %lld).", (long long)c->n);
    if (!err && (c->index < 0 || (c->n > 0 && c->index >= c->n)))
        err = TRN_BAD("Index must be between 0 and %lld (currently index = %lld).", (long long)c->n - 1, (long long)c->index);
    return trn_data_out(k, c, err);
}

/* ---- Concatenate, Zip --------------------------------------------------------------------------------------------- */

static trn_ds_do concat_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    flow_it *it = (flow_it *)it_;
    if (why == TRN_DS_GOT)
        return TRN_DS_GIVE;
    if (why == TRN_DS_ENDED) {
        trn_it_drop(it_->in);
        it_->in = NULL;
        it->at++;
    }
    if (it->at >= it_->d->n_in)
        return TRN_DS_END;
    if (!it_->in) {
        trn_err err = trn_it_new_in(&it_->in, it_, (int)it->at);
        if (err)
            return trn_act_fail(a, err);
    }
    return trn_act_pull_on(a, it_->in);
}

static int64_t concat_count(const trn_ds *d)
{
    int64_t x = trn_ds_count(d->in[0]), y = trn_ds_count(d->in[1]), sum;
    if (x == TRN_DS_INFINITE || y == TRN_DS_INFINITE)
        return TRN_DS_INFINITE;
    if (x == TRN_DS_UNKNOWN || y == TRN_DS_UNKNOWN)
        return TRN_DS_UNKNOWN;
    return __builtin_add_overflow(x, y, &sum) ? INT64_MAX : sum;
}

static const trn_ds_op concat_op = {"ConcatenateDataset", sizeof(flow_it), NULL, NULL, concat_next, .count = concat_count};

/* What is known of both. */
static trn_shape both_shapes(const trn_shape *a, const trn_shape *b)
{
    if (a->rank < 0 || a->rank != b->rank)
        return trn_shape_unknown();
    trn_shape s = *a;
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] != b->dim[i])
            s.dim[i] = -1;
    return s;
}

static trn_err concatenate_dataset(trn_kctx *k)
{
    trn_ds *in[2], *d;
    TRN_TRY(trn_ds_in(&in[0], trn_in(k, 0)));
    TRN_TRY(trn_ds_in(&in[1], trn_in(k, 1)));
    TRN_CHECK_ARG(in[0]->n == in[1]->n, "input dataset and dataset to concatenate have different output_types");
    for (int i = 0; i < in[0]->n; i++)
        TRN_CHECK_ARG(in[0]->types[i] == in[1]->types[i], "input dataset and dataset to concatenate have different output_types %s and %s",
                      trn_dtype_name(in[0]->types[i]), trn_dtype_name(in[1]->types[i]));
    TRN_TRY(trn_ds_new(&d, &concat_op, sizeof *d, in, 2));
    for (int i = 0; i < d->n; i++)
        d->shapes[i] = both_shapes(&in[0]->shapes[i], &in[1]->shapes[i]);
    return trn_data_out(k, d, TRN_OK);
}

typedef struct zip_it {
    trn_it it;
    trn_it **in;
    int at;
    bool ending, over;
    trn_err err;
    trn_elem *e;
    int n_e;
} zip_it;

static trn_err zip_start(trn_it *it_)
{
    zip_it *it = (zip_it *)it_;
    it->in = trn_xalloc((size_t)it_->d->n_in * sizeof *it->in);
    for (int i = 0; i < it_->d->n_in; i++)
        TRN_TRY(trn_it_new_in(&it->in[i], it_, i));
    return TRN_OK;
}

static void zip_stop(trn_it *it_)
{
    zip_it *it = (zip_it *)it_;
    for (int i = 0; it->in && i < it_->d->n_in; i++)
        trn_it_drop(it->in[i]);
    free(it->in);
    trn_elem_free(it->e);
    trn_err_free(it->err);
}

/* All inputs are asked once per element, whatever the others say: they stay in step. */
static trn_ds_do zip_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    zip_it *it = (zip_it *)it_;
    if (it->over)
        return TRN_DS_END;
    if (why == TRN_DS_START) {
        it->at = it->n_e = 0;
        it->ending = false;
        trn_err_free(it->err);
        it->err = TRN_OK;
        trn_elem_free(it->e);
        it->e = trn_elem_new(it_->d->n);
        return trn_act_pull_on(a, it->in[0]);
    }
    if (why == TRN_DS_ENDED) {
        it->ending = true;
    } else if (why == TRN_DS_ERROR) {
        if (it->err)
            trn_err_free(a->err);
        else
            it->err = a->err;
        a->err = TRN_OK;
    } else {
        for (int i = 0; i < a->elem->n; i++, it->n_e++) {
            it->e->t[it->n_e] = a->elem->t[i];
            a->elem->t[i] = NULL;
        }
        trn_elem_free(trn_act_take(a));
    }
    /* After an error the rest is still asked, but an element is not put together: leave room counts as they are. */
    if (why == TRN_DS_ERROR || why == TRN_DS_ENDED)
        it->n_e += it_->d->in[it->at]->n;
    if (++it->at < it_->d->n_in)
        return trn_act_pull_on(a, it->in[it->at]);
    trn_elem *e = it->e;
    it->e = NULL;
    if (!it->err && !it->ending)
        return trn_act_give(a, e);
    trn_elem_free(e);
    it->over = it->ending;
    if (it->err) {
        trn_err err = it->err;
        it->err = TRN_OK;
        return trn_act_fail(a, err);
    }
    return TRN_DS_END;
}

static int64_t zip_count(const trn_ds *d)
{
    int64_t n = TRN_DS_INFINITE;
    for (int i = 0; i < d->n_in; i++) {
        int64_t c = trn_ds_count(d->in[i]);
        if (c == TRN_DS_UNKNOWN)
            return c;
        if (c != TRN_DS_INFINITE && (n == TRN_DS_INFINITE || c < n))
            n = c;
    }
    return n;
}

static const trn_ds_op zip_op = {"ZipDataset", sizeof(zip_it), NULL, zip_start, zip_next, NULL, zip_stop, zip_count, .catches = true};

static trn_err zip_dataset(trn_kctx *k)
{
    trn_ds **in = trn_xalloc(((size_t)k->n_in + 1) * sizeof *in), *d = NULL;
    trn_err err = TRN_OK;
    int64_t n = 0;
    for (int i = 0; !err && i < k->n_in; i++) {
        err = trn_ds_in(&in[i], trn_in(k, i));
        n += err ? 0 : in[i]->n;
    }
    if (!err && n > 1 << 20)
        err = TRN_BAD("%lld components in an element", (long long)n);
    if (!err)
        err = trn_ds_new(&d, &zip_op, sizeof *d, in, k->n_in);
    if (!err) {
        trn_dtype *types = trn_xalloc(((size_t)n + 1) * sizeof *types);
        trn_shape *shapes = trn_xalloc(((size_t)n + 1) * sizeof *shapes);
        int c = 0;
        for (int i = 0; i < k->n_in; i++)
            for (int j = 0; j < in[i]->n; j++, c++) {
                types[c] = in[i]->types[j];
                shapes[c] = in[i]->shapes[j];
            }
        trn_ds_elem_is(d, c, types, shapes);
        free(types);
        free(shapes);
    }
    free(in);
    return trn_data_out(k, d, err);
}

/* ---- DirectedInterleave: input 0 says which of the others is next ------------------------------------------------ */

typedef struct directed_it {
    trn_it it;
    trn_it **in; /* NULL: at its end */
    int active, at;
    bool choosing, over;
} directed_it;

static trn_err directed_start(trn_it *it_)
{
    directed_it *it = (directed_it *)it_;
    TRN_TRY(trn_it_start_in(it_));
    it->active = it_->d->n_in - 1;
    it->in = trn_xalloc((size_t)it_->d->n_in * sizeof *it->in);
    for (int i = 1; i < it_->d->n_in; i++)
        TRN_TRY(trn_it_new_in(&it->in[i], it_, i));
    return TRN_OK;
}

static void directed_stop(trn_it *it_)
{
    directed_it *it = (directed_it *)it_;
    for (int i = 1; it->in && i < it_->d->n_in; i++)
        trn_it_drop(it->in[i]);
    free(it->in);
}

static trn_ds_do directed_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    directed_it *it = (directed_it *)it_;
    if (why == TRN_DS_GOT && !it->choosing)
        return TRN_DS_GIVE;
    if (why == TRN_DS_GOT) {
        int64_t i = a->elem->t[0]->count == 1 ? TRN_DATA(a->elem->t[0], int64_t)[0] : -1;
        if (i < 0 || i >= it_->d->n_in - 1)
            return trn_act_fail(a, TRN_BAD("Selector index out of range: %lld >= %d", (long long)i, it_->d->n_in - 1));
        it->at = (int)i + 1;
        if (it->in[it->at]) {
            it->choosing = false;
            return trn_act_pull_on(a, it->in[it->at]);
        }
    } else if (why == TRN_DS_ENDED && it->choosing) {
        it->over = true;
    } else if (why == TRN_DS_ENDED) {
        trn_it_drop(it->in[it->at]);
        it->in[it->at] = NULL;
        it->over = --it->active == 0 || ((counted *)it_->d)->flag;
    }
    if (it->over)
        return TRN_DS_END;
    it->choosing = true;
    return trn_act_pull_on(a, it_->in);
}

static int64_t directed_count(const trn_ds *d)
{
    for (int i = 1; i < d->n_in; i++)
        if (trn_ds_count(d->in[i]) == TRN_DS_INFINITE)
            return TRN_DS_INFINITE;
    return TRN_DS_UNKNOWN;
}

static const trn_ds_op directed_op = {"DirectedInterleaveDataset", sizeof(directed_it), NULL, directed_start, directed_next, NULL, directed_stop, directed_count};

static trn_err directed_args(trn_ds **in, trn_kctx *k)
{
    for (int i = 0; i < k->n_in; i++)
        TRN_TRY(trn_ds_in(&in[i], trn_in(k, i)));
    TRN_CHECK_ARG(in[0]->n == 1 && in[0]->types[0] == TRN_INT64, "The selector input must be a dataset of scalar int64 elements.");
    for (int i = 2; i < k->n_in; i++) {
        TRN_CHECK_ARG(in[i]->n == in[1]->n, "All inputs must have the same output_dtypes. First input has %d components, input %d has %d", in[1]->n, i - 1, in[i]->n);
        for (int c = 0; c < in[1]->n; c++)
            TRN_CHECK_ARG(in[i]->types[c] == in[1]->types[c], "All inputs must have the same output_dtypes. Component %d of input %d is %s", c, i - 1,
                          trn_dtype_name(in[i]->types[c]));
    }
    return TRN_OK;
}

static trn_err directed_interleave_dataset(trn_kctx *k)
{
    trn_ds **in = trn_xalloc(((size_t)k->n_in + 1) * sizeof *in);
    counted *d = NULL;
    trn_err err = directed_args(in, k);
    if (!err)
        err = trn_ds_new(&d, &directed_op, sizeof *d, in, k->n_in);
    if (!err) {
        d->flag = trn_attr_bool(k->node, "stop_on_empty_dataset");
        trn_ds_elem_is(&d->d, in[1]->n, in[1]->types, in[1]->shapes);
        for (int i = 2; i < k->n_in; i++)
            for (int c = 0; c < d->d.n; c++)
                d->d.shapes[c] = both_shapes(&d->d.shapes[c], &in[i]->shapes[c]);
    }
    free(in);
    return trn_data_out(k, d, err);
}

/* ---- Cache, in memory --------------------------------------------------------------------------------------------- */

/* What all walks over a cached dataset share; as a resource for CacheDatasetV2. Filled by the first walk that gets to the end. */
typedef struct cache {
    trn_resource r;
    trn_mutex mu;
    bool full;
    int64_t n;
    trn_elem **e;
} cache;

static void elems_free(trn_elem **e, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        trn_elem_free(e[i]);
    free(e);
}

static void cache_free(trn_resource *r)
{
    cache *c = (cache *)r;
    elems_free(c->e, c->n);
    trn_mutex_fini(&c->mu);
    free(c);
}

static const trn_restype cache_type = {.name = "MemoryCache", .free = cache_free};

static cache *cache_new(void)
{
    cache *c = trn_xalloc(sizeof *c);
    trn_resource_init(&c->r, &cache_type);
    trn_mutex_init(&c->mu, TRN_RANK_RES);
    return c;
}

typedef struct cached {
    trn_ds d;
    cache *c;
} cached;

typedef struct cache_it {
    trn_it it;
    bool reading, over;
    int64_t at;
    int64_t n, cap; /* of this walk, while it fills */
    trn_elem **e;
} cache_it;

static trn_ds_do cache_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    cache_it *it = (cache_it *)it_;
    cache *c = ((cached *)it_->d)->c;
    if (why == TRN_DS_GOT) {
        TRN_PUSH(it->e, it->n, it->cap, trn_elem_copy(a->elem));
        return TRN_DS_GIVE;
    }
    if (why == TRN_DS_ENDED) {
        trn_lock(&c->mu);
        if (!c->full) {
            c->full = true;
            c->e = it->e;
            c->n = it->n;
            it->e = NULL;
            it->n = it->cap = 0;
        }
        trn_unlock(&c->mu);
        trn_it_drop(it_->in);
        it_->in = NULL;
        it->over = true;
        return TRN_DS_END;
    }
    if (it->over)
        return TRN_DS_END;
    if (!it->reading && !it_->in) { /* the first pull decides */
        trn_lock(&c->mu);
        it->reading = c->full;
        trn_unlock(&c->mu);
        trn_err err = it->reading ? TRN_OK : trn_it_start_in(it_);
        if (err)
            return trn_act_fail(a, err);
    }
    if (!it->reading)
        return trn_act_pull_on(a, it_->in);
    return it->at < c->n ? trn_act_give(a, trn_elem_copy(c->e[it->at++])) : TRN_DS_END; /* what is full never changes */
}

static void cache_stop(trn_it *it_)
{
    cache_it *it = (cache_it *)it_;
    elems_free(it->e, it->n);
}

static void cached_free(trn_ds *d) { trn_resource_unref(((cached *)d)->c); }

static const trn_ds_op cache_op = {"CacheDataset", sizeof(cache_it), cached_free, NULL, cache_next, NULL, cache_stop, trn_data_count_same};

static trn_err cache_dataset(trn_kctx *k)
{
    char *file;
    TRN_TRY(trn_data_str(&file, k, 1, "filename"));
    if (*file)
        return trn_data_cache_file(k, file);
    free(file);
    cached *d;
    TRN_TRY(trn_data_on(&d, k, &cache_op, sizeof *d));
    trn_err err = k->n_in > 2 ? trn_k_resource(&d->c, k, 2, &cache_type) : TRN_OK;
    if (trn_err_code(err) == TRN_NOT_FOUND) { /* DummyMemoryCache */
        trn_err_free(err);
        err = TRN_OK;
        d->c = NULL;
    }
    if (!err && !d->c)
        d->c = cache_new();
    return trn_data_out(k, d, err);
}

static trn_err anonymous_cache(trn_kctx *k) { return trn_data_anonymous(k, &cache_new()->r, "tensorflow::data::MemoryCacheManager"); }

/* A handle of something that nobody finds: the dataset then makes its own. */
static trn_err dummy_handle(trn_kctx *k)
{
    trn_tensor *t;
    TRN_TRY(trn_res_handle(&t, k->node, "", "dummy_resource", "tensorflow::data::Dummy", TRN_INVALID, NULL));
    trn_out_set(k, 0, t);
    return TRN_OK;
}

/* ---- what changes nothing ----------------------------------------------------------------------------------------- */

/* Options, models, optimisations, thread pools: how TensorFlow should run the pipeline. */
static trn_err same_dataset(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

/* OptionsDataset: they say how TensorFlow should run it; here they are only kept for who asks. */
typedef struct with_options {
    trn_ds d;
    char *p;
    size_t n;
} with_options;

static void options_free(trn_ds *d) { free(((with_options *)d)->p); }
static const trn_ds_op options_op = {.name = "OptionsDataset", .free = options_free, .count = trn_data_count_same, .alias = true};

static trn_err options_dataset(trn_kctx *k)
{
    with_options *o;
    TRN_TRY(trn_data_on(&o, k, &options_op, sizeof *o));
    const trn_attr *a = trn_node_attr(k->node, "serialized_options");
    o->n = a ? a->v.s.n : 0;
    o->p = trn_xstrndup(a ? a->v.s.p : "", o->n);
    return trn_data_out(k, o, TRN_OK);
}

#define MAX_OPTIONS 10000 /* datasets that are looked at; some may be reached on many ways */

/* Options of all inputs, then its own: messages one after the other are one message, the later ones override. */
static trn_err gather_options(trn_sb *out, const trn_ds *d, int *left)
{
    for (int i = 0; i < d->n_in; i++)
        TRN_TRY(gather_options(out, d->in[i], left));
    if (--*left < 0)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the pipeline has more than %d datasets", MAX_OPTIONS);
    if (d->op == &options_op)
        trn_sb_add(out, ((const with_options *)d)->p, ((const with_options *)d)->n);
    return TRN_OK;
}

trn_err trn_data_options(trn_sb *out, const trn_tensor *t)
{
    trn_ds *d;
    int left = MAX_OPTIONS;
    TRN_TRY(trn_ds_in(&d, t));
    return gather_options(out, d, &left);
}

static trn_err get_options(trn_kctx *k)
{
    trn_sb s = {0};
    trn_err err = trn_data_options(&s, trn_in(k, 0));
    if (!err)
        trn_out_set(k, 0, trn_tensor_str(s.n ? s.p : "", s.n));
    trn_sb_fini(&s);
    return err;
}

static trn_ds_do ignore_next(trn_it *it, trn_act *a, trn_ds_why why)
{
    if (why == TRN_DS_ERROR) {
        trn_err_free(a->err);
        a->err = TRN_OK;
        return trn_act_pull_on(a, it->in);
    }
    return trn_data_pass(it, a, why);
}

static const trn_ds_op ignore_op = {"IgnoreErrorsDataset", sizeof(trn_it), NULL, trn_it_start_in, ignore_next, .catches = true};

static trn_err ignore_errors_dataset(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_data_on(&d, k, &ignore_op, sizeof *d));
    return trn_data_out(k, d, TRN_OK);
}

static const char *elements(char out[64], int64_t n)
{
    if (n == TRN_DS_INFINITE)
        return "an infinite number of elements";
    snprintf(out, 64, "%lld element%s", (long long)n, n == 1 ? "" : "s");
    return out;
}

static trn_ds_do assert_card_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    flow_it *it = (flow_it *)it_;
    const counted *c = (counted *)it_->d;
    if (why == TRN_DS_START)
        return trn_act_pull_on(a, it_->in);
    if (why == TRN_DS_GOT)
        it->at++;
    char want[64], have[64];
    if (c->n != TRN_DS_UNKNOWN && why == TRN_DS_ENDED && c->n != it->at)
        return trn_act_fail(a, trn_errorf(TRN_FAILED_PRECONDITION, "Input dataset was expected to contain %s but contained only %s.", elements(want, c->n), elements(have, it->at)));
    if (c->n >= 0 && it->at > c->n)
        return trn_act_fail(a, trn_errorf(TRN_FAILED_PRECONDITION, "Input dataset was expected to contain %s but contained at least %s.", elements(want, c->n), elements(have, it->at)));
    return why == TRN_DS_GOT ? TRN_DS_GIVE : TRN_DS_END;
}

static int64_t assert_card_count(const trn_ds *d) { return ((const counted *)d)->n; }
static const trn_ds_op assert_card_op = {"AssertCardinalityDataset", sizeof(flow_it), NULL, trn_it_start_in, assert_card_next, .count = assert_card_count};
static trn_err assert_cardinality_dataset(trn_kctx *k) { return counted_on(k, &assert_card_op); }

static trn_err dataset_cardinality(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    trn_out_set(k, 0, trn_tensor_i64(trn_ds_count(d)));
    return TRN_OK;
}

/* How many threads TensorFlow should take for it: ours come from one pool. */
static trn_err limited_dataset(trn_kctx *k)
{
    int64_t n;
    const char *what = strstr(k->node->op, "Intra") ? "max_intra_op_parallelism" : "num_threads";
    TRN_TRY(trn_data_i64(&n, k, 1, what));
    TRN_CHECK_ARG(n >= 0, "`%s` must be >= 0", what);
    return same_dataset(k);
}

#define LIMIT(name, arg) {name, "input_dataset:var, " arg ":i64 -> handle:var; " DS_OUT, trn_sh_dataset, limited_dataset, DS_FLAGS}
#define SAME(name, in, attrs) {name, "input_dataset:var" in " -> handle:var; " attrs, trn_sh_dataset, same_dataset, DS_FLAGS}

const trn_op trn_ops_data_flow[] = {
    {"TensorDataset", "components:Toutput_types -> handle:var; Toutput_types:list(type)>=1, output_shapes:list(shape)>=1" DS_META, trn_sh_dataset,
     tensor_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"TensorSliceDataset",
     "components:Toutput_types -> handle:var; Toutput_types:list(type)>=1, output_shapes:list(shape)>=1, is_files:bool=false" DS_META
     ", replicate_on_split:bool=false",
     trn_sh_dataset, tensor_slice_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"RangeDataset", "start:i64, stop:i64, step:i64 -> handle:var; " DS_OUT DS_META ", replicate_on_split:bool=false", trn_sh_dataset, range_dataset,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"RepeatDataset", "input_dataset:var, count:i64 -> handle:var; " DS_OUT DS_META, trn_sh_dataset, repeat_dataset, DS_FLAGS},
    {"TakeDataset", "input_dataset:var, count:i64 -> handle:var; " DS_OUT DS_META, trn_sh_dataset, take_dataset, DS_FLAGS},
    {"SkipDataset", "input_dataset:var, count:i64 -> handle:var; " DS_OUT DS_META, trn_sh_dataset, skip_dataset, DS_FLAGS},
    {"ShardDataset", "input_dataset:var, num_shards:i64, index:i64 -> handle:var; require_non_empty:bool=false, " DS_OUT DS_META, trn_sh_dataset,
     shard_dataset, DS_FLAGS},
    {"ConcatenateDataset", "input_dataset:var, another_dataset:var -> handle:var; " DS_OUT DS_META, trn_sh_dataset, concatenate_dataset, DS_FLAGS},
    {"ZipDataset", "input_datasets:N*var -> handle:var; " DS_OUT ", N:int>=1" DS_META, trn_sh_dataset, zip_dataset, DS_FLAGS},
    {"DirectedInterleaveDataset", "selector_input_dataset:var, data_input_datasets:N*var -> handle:var; " DS_OUT ", N:int>=1, stop_on_empty_dataset:bool=false",
     trn_sh_dataset, directed_interleave_dataset, DS_FLAGS},
    {"ExperimentalDirectedInterleaveDataset", "selector_input_dataset:var, data_input_datasets:N*var -> handle:var; " DS_OUT ", N:int>=1", trn_sh_dataset,
     directed_interleave_dataset, DS_FLAGS},
    {"CacheDataset", "input_dataset:var, filename:str -> handle:var; " DS_OUT DS_META, trn_sh_dataset, cache_dataset, DS_FLAGS},
    {"CacheDatasetV2", "input_dataset:var, filename:str, cache:res -> handle:var; " DS_OUT DS_META, trn_sh_dataset, cache_dataset,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"AnonymousMemoryCache", "-> handle:res, deleter:var", trn_sh_dataset, anonymous_cache, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"DummyMemoryCache", "-> handle:res", trn_sh_dataset, dummy_handle, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"DummySeedGenerator", "-> handle:res", trn_sh_dataset, dummy_handle, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"DummyIterationCounter", "-> handle:res", trn_sh_dataset, dummy_handle, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"OptionsDataset", "input_dataset:var -> handle:var; serialized_options:string, " DS_OUT DS_META, trn_sh_dataset, options_dataset, DS_FLAGS},
    SAME("ModelDataset", "", "algorithm:int=0, cpu_budget:int=0, ram_budget:int=0, " DS_OUT),
    SAME("OptimizeDataset", ", optimizations:str", DS_OUT ", optimization_configs:list(string)=[]"),
    SAME("OptimizeDatasetV2", ", optimizations_enabled:str, optimizations_disabled:str, optimizations_default:str",
         DS_OUT ", optimization_configs:list(string)=[]"),
    LIMIT("MaxIntraOpParallelismDataset", "max_intra_op_parallelism"),
    LIMIT("ExperimentalMaxIntraOpParallelismDataset", "max_intra_op_parallelism"),
    LIMIT("PrivateThreadPoolDataset", "num_threads"),
    LIMIT("ExperimentalPrivateThreadPoolDataset", "num_threads"),
    SAME("AssertNextDataset", ", transformations:str", DS_OUT),
    SAME("ExperimentalAssertNextDataset", ", transformations:str", DS_OUT),
    SAME("RewriteDataset", ", rewrite_name:str", DS_OUT),
    SAME("NonSerializableDataset", "", DS_OUT),
    SAME("ExperimentalNonSerializableDataset", "", DS_OUT),
    SAME("ExperimentalLatencyStatsDataset", ", tag:str", DS_OUT),
    SAME("ExperimentalBytesProducedStatsDataset", ", tag:str", DS_OUT),
    SAME("FinalizeDataset", "", "has_captured_ref:bool=false, " DS_OUT),
    SAME("LatencyStatsDataset", ", tag:str", DS_OUT),
    SAME("BytesProducedStatsDataset", ", tag:str", DS_OUT),
    {"WrapDatasetVariant", "input_handle:var -> output_handle:var", trn_sh_dataset, same_dataset, DS_FLAGS},
    {"UnwrapDatasetVariant", "input_handle:var -> output_handle:var", trn_sh_dataset, same_dataset, DS_FLAGS},
    {"GetOptions", "input_dataset:var -> serialized_options:str", trn_sh_dataset, get_options, DS_FLAGS},
    {"ExperimentalIgnoreErrorsDataset", "input_dataset:var -> handle:var; " DS_OUT ", log_warning:bool=false", trn_sh_dataset, ignore_errors_dataset,
     DS_FLAGS},
    {"IgnoreErrorsDataset", "input_dataset:var -> handle:var; " DS_OUT ", log_warning:bool=false", trn_sh_dataset, ignore_errors_dataset, DS_FLAGS},
    {"AssertCardinalityDataset", "input_dataset:var, cardinality:i64 -> handle:var; " DS_OUT, trn_sh_dataset, assert_cardinality_dataset, DS_FLAGS},
    {"DatasetCardinality", "input_dataset:var -> cardinality:i64; cardinality_options:string=\"\"", trn_sh_dataset, dataset_cardinality, DS_FLAGS},
    {"ExperimentalDatasetCardinality", "input_dataset:var -> cardinality:i64", trn_sh_dataset, dataset_cardinality, DS_FLAGS},
    {0},
};
