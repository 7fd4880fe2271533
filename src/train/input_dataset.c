/* Datasets in the graph: each function adds the op that TensorFlow's tf.data adds, and carries along what the elements are. */
#include <trainera/control.h>
#include <trainera/input.h>
#include <trainera/nn.h>

#include <string.h>

#include "graph/function.h"
#include "train/nn_priv.h"

static trn_attr types_attr(trn_builder *b, const char *name, const trn_dtype *types, int n)
{
    trn_attr_val *v = trn_builder_alloc(b, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i].type = types[i];
    return (trn_attr){.name = name, .kind = TRN_ATTR_TYPE, .is_list = true, .n = n, .list = v};
}

static trn_attr shapes_attr(trn_builder *b, const trn_shape *shapes, int n)
{
    trn_attr_val *v = trn_builder_alloc(b, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i].shape = &shapes[i];
    return (trn_attr){.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = n, .list = v};
}

static trn_dataset *dataset_new(trn_builder *b, int n)
{
    trn_dataset *d = trn_builder_alloc(b, sizeof *d);
    *d = (trn_dataset){.b = b, .variant = TRN_NONE, .n = n};
    d->types = trn_builder_alloc(b, (size_t)(n ? n : 1) * sizeof *d->types);
    d->shapes = trn_builder_alloc(b, (size_t)(n ? n : 1) * sizeof *d->shapes);
    return d;
}

static trn_dataset *nothing(trn_builder *b) { return dataset_new(b, 0); }
static trn_dtype *types_of(trn_dataset *d) { return (trn_dtype *)(uintptr_t)d->types; }
static trn_shape *shapes_of(trn_dataset *d) { return (trn_shape *)(uintptr_t)d->shapes; }

/* The node of d, with the attrs that all have. */
/* `b` may have the node's name. */
static trn_dataset *finish(trn_dataset *d, trn_builder *b, const char *op, const trn_out *in, int n_in, const trn_attr *more, int n_more)
{
    trn_attr attrs[6] = {shapes_attr(d->b, d->shapes, d->n), types_attr(d->b, "output_types", d->types, d->n)};
    for (int i = 0; i < n_more; i++)
        attrs[2 + i] = more[i];
    d->variant = trn_node_add(b, op, in, n_in, attrs, 2 + n_more);
    return trn_builder_ok(d->b) ? d : nothing(d->b);
}

/* A dataset over d whose elements are like d's. */
static trn_dataset *like(trn_dataset *d)
{
    trn_dataset *y = dataset_new(d->b, d->n);
    memcpy(types_of(y), d->types, (size_t)d->n * sizeof *d->types);
    memcpy(shapes_of(y), d->shapes, (size_t)d->n * sizeof *d->shapes);
    return y;
}

/* ---- sources ------------------------------------------------------------------------------------------------------- */

static trn_dataset *of_tensors(trn_builder *b, const char *op, const trn_out *tensors, int n, bool slices)
{
    trn_dataset *d = dataset_new(b, n);
    const char *name = trn_take_name(b, op);
    if (trn_builder_ok(b) && n < 1)
        BAD(b, "%s: no tensors", op);
    for (int i = 0; i < n && trn_builder_ok(b); i++) {
        types_of(d)[i] = trn_out_dtype(b, tensors[i]);
        trn_shape s = *trn_nn__shape(b, tensors[i]);
        if (slices && s.rank == 0)
            BAD(b, "%s: %s is a scalar and has no slices", op, trn_out_name(b, tensors[i]));
        if (slices && s.rank > 0) {
            memmove(s.dim, s.dim + 1, sizeof *s.dim * (size_t)(s.rank - 1));
            s.rank--;
        }
        shapes_of(d)[i] = s;
    }
    if (!trn_builder_ok(b))
        return nothing(b);
    trn_attr attrs[] = {shapes_attr(b, d->shapes, n), types_attr(b, "Toutput_types", d->types, n)};
    d->variant = trn_node_add(trn_named(b, name), op, tensors, n, attrs, 2);
    return trn_builder_ok(b) ? d : nothing(b);
}

trn_dataset *trn_dataset_tensors(trn_builder *b, const trn_out *tensors, int n) { return of_tensors(b, "TensorDataset", tensors, n, false); }
trn_dataset *trn_dataset_slices(trn_builder *b, const trn_out *tensors, int n) { return of_tensors(b, "TensorSliceDataset", tensors, n, true); }

/* One element of one scalar. */
static trn_dataset *scalar_of(trn_builder *b, trn_dtype t)
{
    trn_dataset *d = dataset_new(b, 1);
    types_of(d)[0] = t;
    shapes_of(d)[0] = trn_shape_scalar();
    return d;
}

trn_dataset *trn_dataset_range(trn_builder *b, int64_t start, int64_t stop, int64_t step)
{
    const char *name = trn_take_name(b, "RangeDataset");
    trn_out in[] = {trn_const_i64(b, start), trn_const_i64(b, stop), trn_const_i64(b, step)};
    return finish(scalar_of(b, TRN_INT64), trn_named(b, name), "RangeDataset", in, 3, NULL, 0);
}

static trn_out strings(trn_builder *b, const char *const *v, int n)
{
    return trn_const(b, trn_tensor_from(TRN_STRING, 1, (int64_t[]){n}, v));
}

static trn_dataset *of_files(trn_builder *b, const char *op, const char *const *files, int n, const char *compression)
{
    const char *name = trn_take_name(b, op);
    trn_out in[] = {strings(b, files, n), trn_const_str(b, compression ? compression : ""), trn_const_i64(b, 256 << 10)};
    trn_dataset *d = scalar_of(b, TRN_STRING);
    d->variant = trn_node_add(trn_named(b, name), op, in, 3, NULL, 0);
    return trn_builder_ok(b) ? d : nothing(b);
}

trn_dataset *trn_dataset_records(trn_builder *b, const char *const *files, int n, const char *compression)
{
    return of_files(b, "TFRecordDataset", files, n, compression);
}

trn_dataset *trn_dataset_lines(trn_builder *b, const char *const *files, int n, const char *compression)
{
    return of_files(b, "TextLineDataset", files, n, compression);
}

trn_dataset *trn_dataset_csv(trn_builder *b, const char *const *files, int n_files, const trn_dtype *types, int n, const int64_t *columns, const trn_csv_opts *opts)
{
    static const trn_csv_opts none;
    const trn_csv_opts *o = opts ? opts : &none;
    const char *name = trn_take_name(b, "CSVDatasetV2");
    if (n < 1 || n > 10000)
        return BAD(b, "csv dataset: %d columns", n), nothing(b);
    trn_dataset *d = dataset_new(b, n);
    trn_out *in = trn_builder_alloc(b, (size_t)(n + 9) * sizeof *in);
    int64_t *all = trn_builder_alloc(b, (size_t)n * sizeof *all);
    char delim[2] = {o->delim ? o->delim : ',', 0};
    for (int i = 0; i < n; i++) {
        all[i] = columns ? columns[i] : i;
        types_of(d)[i] = types[i];
        shapes_of(d)[i] = trn_shape_scalar();
    }
    int k = 0;
    in[k++] = strings(b, files, n_files);
    in[k++] = trn_const_str(b, o->compression ? o->compression : "");
    in[k++] = trn_const_i64(b, 4 << 20);
    in[k++] = trn_const_bool(b, o->header);
    in[k++] = trn_const_str(b, delim);
    in[k++] = trn_const_bool(b, true);
    in[k++] = trn_const_str(b, o->na ? o->na : "");
    in[k++] = trn_const(b, trn_tensor_from(TRN_INT64, 1, (int64_t[]){n}, all));
    /* A default of no elements: the field is required; of one: what an empty field is. */
    for (int i = 0; i < n; i++)
        if (!o->na)
            in[k++] = trn_const(b, trn_tensor_from(types[i], 1, (int64_t[]){0}, NULL));
        else
            in[k++] = types[i] == TRN_STRING ? strings(b, (const char *[]){""}, 1) : trn_const(b, trn_tensor_from(types[i], 1, (int64_t[]){1}, (char[16]){0}));
    in[k++] = trn_const(b, trn_tensor_from(TRN_INT64, 1, (int64_t[]){0}, NULL));
    b = trn_named(b, name);
    return finish(d, b, "CSVDatasetV2", in, k, NULL, 0);
}

/* ---- transformations ----------------------------------------------------------------------------------------------- */

#define GONE(d) (!trn_builder_ok((d)->b) || !(d)->n)

trn_dataset *trn_dataset_shuffle(trn_dataset *d, int64_t buffer, trn_maybe_int seed)
{
    trn_builder *b = d->b;
    if (GONE(d))
        return d;
    const char *name = trn_take_name(b, "ShuffleDatasetV3");
    int64_t seeds[2];
    trn_next_seeds(seeds, b, seed);
    trn_out in[] = {d->variant, trn_const_i64(b, buffer), trn_const_i64(b, seeds[0]), trn_const_i64(b, seeds[1]), trn_node_add(b, "DummySeedGenerator", NULL, 0, NULL, 0)};
    b = trn_named(b, name);
    return finish(like(d), b, "ShuffleDatasetV3", in, 5, NULL, 0);
}

/* Over one dataset, with one number. */
static trn_dataset *with_count(trn_dataset *d, const char *op, int64_t count)
{
    trn_builder *b = d->b;
    if (GONE(d))
        return d;
    const char *name = trn_take_name(b, op);
    trn_out in[] = {d->variant, trn_const_i64(b, count)};
    b = trn_named(b, name);
    return finish(like(d), b, op, in, 2, NULL, 0);
}

trn_dataset *trn_dataset_repeat(trn_dataset *d, int64_t count) { return with_count(d, "RepeatDataset", count); }
trn_dataset *trn_dataset_prefetch(trn_dataset *d, int64_t buffer) { return with_count(d, "PrefetchDataset", buffer); }
trn_dataset *trn_dataset_take(trn_dataset *d, int64_t count) { return with_count(d, "TakeDataset", count); }
trn_dataset *trn_dataset_skip(trn_dataset *d, int64_t count) { return with_count(d, "SkipDataset", count); }

trn_dataset *trn_dataset_batch(trn_dataset *d, int64_t size, bool drop_remainder)
{
    trn_builder *b = d->b;
    if (GONE(d))
        return d;
    const char *name = trn_take_name(b, "BatchDatasetV2");
    trn_dataset *y = like(d);
    for (int i = 0; i < y->n; i++) {
        trn_shape *s = &shapes_of(y)[i];
        if (s->rank >= TRN_MAX_RANK)
            return BAD(b, "batch: elements have too many dimensions"), nothing(b);
        if (s->rank >= 0) {
            memmove(s->dim + 1, s->dim, sizeof *s->dim * (size_t)s->rank);
            s->dim[0] = drop_remainder ? size : -1;
            s->rank++;
        }
    }
    trn_out in[] = {d->variant, trn_const_i64(b, size), trn_const_bool(b, drop_remainder)};
    b = trn_named(b, name);
    return finish(y, b, "BatchDatasetV2", in, 3, NULL, 0);
}

trn_dataset *trn_dataset_shard(trn_dataset *d, int64_t shards, int64_t index)
{
    trn_builder *b = d->b;
    if (GONE(d))
        return d;
    const char *name = trn_take_name(b, "ShardDataset");
    if (shards < 1 || index < 0 || index >= shards)
        return BAD(b, "shard %lld of %lld", (long long)index, (long long)shards), nothing(b);
    trn_out in[] = {d->variant, trn_const_i64(b, shards), trn_const_i64(b, index)};
    b = trn_named(b, name);
    return finish(like(d), b, "ShardDataset", in, 3, NULL, 0);
}

trn_dataset *trn_dataset_cache(trn_dataset *d)
{
    trn_builder *b = d->b;
    if (GONE(d))
        return d;
    const char *name = trn_take_name(b, "CacheDatasetV2");
    trn_out in[] = {d->variant, trn_const_str(b, ""), trn_node_add(b, "DummyMemoryCache", NULL, 0, NULL, 0)};
    b = trn_named(b, name);
    return finish(like(d), b, "CacheDatasetV2", in, 3, NULL, 0);
}

/* ---- functions ----------------------------------------------------------------------------------------------------- */

/* Stands between the caller's function and the body: what comes out is only known inside. */
typedef struct body {
    trn_map_fn map;
    trn_filter_fn filter;
    void *arg;
    trn_dataset *out; /* gets types and shapes; NULL for a filter */
} body;

static void build_body(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out)
{
    body *f = arg;
    if (f->filter) {
        out[0] = f->filter(f->arg, b, in);
        const trn_shape *s = trn_nn__shape(b, out[0]);
        if (trn_builder_ok(b) && (trn_out_dtype(b, out[0]) != TRN_BOOL || s->rank > 0))
            BAD(b, "filter: the function must give a bool scalar");
        return;
    }
    f->map(f->arg, b, in, out);
    for (int i = 0; i < n_out && trn_builder_ok(b); i++) {
        if (!trn_out_is(out[i]))
            BAD(b, "map: the function did not set result %d of %d", i, n_out);
        types_of(f->out)[i] = trn_out_dtype(b, out[i]);
        shapes_of(f->out)[i] = *trn_nn__shape(b, out[i]);
    }
}

/* The node: the dataset, what the function takes from outside, maybe a number. */
static trn_dataset *with_function(trn_dataset *d, trn_dataset *y, const char *op, const char *attr, body *f, int n_out, const int64_t *number)
{
    trn_builder *b = d->b;
    const char *name = trn_take_name(b, op);
    trn_function *fn = trn_function__of(b, op, build_body, f, d->types, d->shapes, d->n, n_out);
    if (!fn)
        return nothing(b);
    trn_out *in = trn_builder_alloc(b, (size_t)(fn->n_outside + 2) * sizeof *in);
    trn_dtype *types = trn_builder_alloc(b, (size_t)(fn->n_outside + 1) * sizeof *types);
    int n = 0;
    in[n++] = d->variant;
    for (int i = 0; i < fn->n_outside; i++) {
        types[i] = trn_out_dtype(b, fn->outside[i]);
        in[n++] = fn->outside[i];
    }
    if (number)
        in[n++] = trn_const_i64(b, *number);
    trn_func_ref *ref = trn_builder_alloc(b, sizeof *ref);
    ref->name = fn->name;
    trn_attr more[] = {trn_at_func(attr, ref), types_attr(b, "Targuments", types, fn->n_outside)};
    b = trn_named(b, name);
    return finish(y, b, op, in, n, more, 2);
}

trn_dataset *trn_dataset_map(trn_dataset *d, trn_map_fn fn, void *arg, int n_out, int64_t parallel)
{
    if (GONE(d))
        return d;
    if (n_out < 1 || parallel < -1)
        return BAD(d->b, "map: %d results, %lld at a time", n_out, (long long)parallel), nothing(d->b);
    body f = {.map = fn, .arg = arg, .out = dataset_new(d->b, n_out)};
    bool alone = parallel == 0 || parallel == 1;
    return with_function(d, f.out, alone ? "MapDataset" : "ParallelMapDatasetV2", "f", &f, n_out, alone ? NULL : &parallel);
}

trn_dataset *trn_dataset_filter(trn_dataset *d, trn_filter_fn fn, void *arg)
{
    if (GONE(d))
        return d;
    body f = {.filter = fn, .arg = arg};
    return with_function(d, like(d), "FilterDataset", "predicate", &f, 1, NULL);
}

trn_dataset *trn_dataset_concatenate(trn_dataset *d, trn_dataset *then)
{
    trn_builder *b = d->b;
    if (GONE(d) || GONE(then))
        return GONE(d) ? d : then;
    trn_dataset *y = like(d);
    if (d->n != then->n)
        return BAD(b, "concatenate: elements of %d and of %d tensors", d->n, then->n), nothing(b);
    for (int i = 0; i < d->n; i++) {
        trn_shape *s = &shapes_of(y)[i];
        const trn_shape *t = &then->shapes[i];
        if (d->types[i] != then->types[i])
            return BAD(b, "concatenate: tensor %d is of %s in one and of %s in the other", i, trn_dtype_name(d->types[i]), trn_dtype_name(then->types[i])), nothing(b);
        if (s->rank != t->rank)
            *s = trn_shape_unknown();
        for (int k = 0; k < s->rank; k++) /* what is known of both */
            if (s->dim[k] != t->dim[k])
                s->dim[k] = -1;
    }
    trn_out in[] = {d->variant, then->variant};
    return finish(y, d->b, "ConcatenateDataset", in, 2, NULL, 0);
}

trn_dataset *trn_dataset_zip(trn_dataset *const *sets, int n)
{
    int total = 0;
    if (n < 1)
        return NULL;
    trn_builder *b = sets[0]->b;
    for (int i = 0; i < n; i++) {
        if (GONE(sets[i]))
            return sets[i];
        total += sets[i]->n;
    }
    trn_dataset *y = dataset_new(b, total);
    trn_out *in = trn_builder_alloc(b, (size_t)n * sizeof *in);
    for (int i = 0, k = 0; i < n; k += sets[i++]->n) {
        in[i] = sets[i]->variant;
        memcpy(types_of(y) + k, sets[i]->types, (size_t)sets[i]->n * sizeof *y->types);
        memcpy(shapes_of(y) + k, sets[i]->shapes, (size_t)sets[i]->n * sizeof *y->shapes);
    }
    trn_attr count = trn_at_int("N", n);
    return finish(y, sets[0]->b, "ZipDataset", in, n, &count, 1);
}

/* ---- iterator ------------------------------------------------------------------------------------------------------ */

static trn_iterator *iterator_new(trn_builder *b, int n)
{
    trn_iterator *it = trn_builder_alloc(b, sizeof *it);
    *it = (trn_iterator){.handle = TRN_NONE, .init = TRN_NONE};
    it->next.at = trn_builder_alloc(b, (size_t)(n ? n : 1) * sizeof *it->next.at);
    for (int i = 0; i < n; i++)
        it->next.at[i] = TRN_NONE;
    it->next.n = n;
    return it;
}

/* what: output_shapes, output_types */
static void add_next(trn_iterator *it, trn_builder *b, const trn_attr what[2])
{
    trn_out next = trn_node_add(trn_named(b, "IteratorGetNext"), "IteratorGetNext", &it->handle, 1, what, 2);
    for (int i = 0; i < it->next.n && trn_builder_ok(b); i++)
        it->next.at[i] = trn_out_nth(next, i);
}

trn_iterator *trn_iterator_new(trn_dataset *d)
{
    trn_builder *b = d->b;
    trn_iterator *it = iterator_new(b, d->n);
    const char *name = trn_take_name(b, "IteratorV2");
    if (GONE(d))
        return it;
    trn_attr what[] = {shapes_attr(b, d->shapes, d->n), types_attr(b, "output_types", d->types, d->n), trn_at_str("shared_name", ""), trn_at_str("container", "")};
    it->handle = trn_node_add(trn_named(b, name), "IteratorV2", NULL, 0, what, 4);
    /* Reading is the iterator's work, so everything about it is where it is. */
    it->init = OP(trn_named(b, "MakeIterator"), "MakeIterator", d->variant, it->handle);
    add_next(it, b, what);
    if (trn_builder_ok(b))
        trn_collect(b, "table_initializer", trn_out_node(it->init));
    return it;
}

typedef struct factory {
    trn_dataset_fn fn;
    void *arg;
    trn_dataset *made;
} factory;

static void build_factory(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out)
{
    factory *f = arg;
    f->made = f->fn(f->arg, b);
    if (f->made)
        out[0] = f->made->variant;
    if (trn_builder_ok(b) && !trn_out_is(out[0]))
        BAD(b, "OneShotIterator: the function gave no dataset");
}

trn_iterator *trn_iterator_one_shot(trn_builder *b, trn_dataset_fn fn, void *arg)
{
    const char *name = trn_take_name(b, "OneShotIterator");
    factory f = {.fn = fn, .arg = arg};
    trn_function *made = trn_builder_ok(b) ? trn_function__of(b, "make_dataset", build_factory, &f, NULL, NULL, 0, 1) : NULL;
    trn_iterator *it = iterator_new(b, made ? f.made->n : 0);
    if (!made)
        return it;
    if (made->n_outside) {
        BAD(b, "OneShotIterator: its dataset depends on '%s', which is outside of its function; use trn_iterator_new", trn_out_name(b, made->outside[0]));
        return it;
    }
    trn_func_ref *ref = trn_builder_alloc(b, sizeof *ref);
    ref->name = made->name;
    trn_attr what[] = {shapes_attr(b, f.made->shapes, f.made->n), types_attr(b, "output_types", f.made->types, f.made->n), trn_at_func("dataset_factory", ref)};
    it->handle = trn_node_add(trn_named(b, name), "OneShotIterator", NULL, 0, what, 3);
    add_next(it, b, what);
    return it;
}
