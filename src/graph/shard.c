/* A dataset's graph, changed so that each of several workers reads its own part: by files where the graph reads files, else by elements. Which datasets are looked
 * through, and where the ShardDataset goes, are TensorFlow's rules (auto_shard): a program must see the same elements on both. */
#include <stdlib.h>

#include "graph/graph_priv.h"

static const char *const readers[] = {"ArrayRecordDataset", "FixedLengthRecordDataset", "RecordIODataset", "SSTableDataset", "TextLineDataset", "TFRecordDataset", NULL};
static const char *const many[] = {"ConcatenateDataset", "ZipDataset", NULL};
static const char *const through[] = {
    "AssertNextDataset", "BatchDataset", "CacheDataset", "ExperimentalMapAndBatchDataset", "ExperimentalParseExampleDataset", "ExperimentalRebatchDataset",
    "FilterDataset", "FinalizeDataset", "Identity", "MapAndBatchDataset", "MapDataset", "MaxIntraOpParallelismDataset", "ModelDataset", "OptimizeDataset",
    "OptionsDataset", "PaddedBatchDataset", "ParallelBatchDataset", "ParallelMapDataset", "ParseExampleDataset", "PrefetchDataset", "PrivateThreadPoolDataset",
    "ReduceDataset", "RebatchDataset", "RepeatDataset", "ShardDataset", "ShuffleAndRepeatDataset", "ShuffleDataset", "SkipDataset", "TakeDataset",
    "UnbatchDataset", "WindowDataset", NULL};
static const char *const of_datasets[] = {"ExperimentalParallelInterleaveDataset", "FlatMapDataset", "InterleaveDataset", "LegacyParallelInterleaveDataset",
                                          "ParallelInterleaveDataset", NULL};
static const char *const sources[] = {"GeneratorDataset", "RangeDataset", "SparseTensorsSliceDataset", "TensorDataset", "TensorSliceDataset", NULL};

/* The op or a later version of it: BatchDatasetV2. */
static bool is_of(const char *op, const char *const *list)
{
    for (; *list; list++) {
        size_t n = strlen(*list);
        if (strncmp(op, *list, n) == 0 && (!op[n] || (op[n] == 'V' && strspn(op + n + 1, "0123456789") == strlen(op + n + 1))))
            return true;
    }
    return false;
}

static trn_gnode *input_of(const trn_graph *g, const trn_gnode *nd) { return nd->n.n_in > 0 ? g->node[nd->in[0].node] : NULL; }

static trn_err add_number(int *id, trn_graph *g, int64_t v)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_INT64, &s));
    TRN_DATA_MUT(t, int64_t)[0] = v;
    trn_attr attrs[] = {{.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}, {.name = "dtype", .kind = TRN_ATTR_TYPE, .v.type = TRN_INT64}};
    trn_gnode *nd;
    trn_err err = trn_graph_add(&nd, g, "Const", trn_graph_unique_name(g, "Const"), "", attrs, 2, NULL, 0);
    trn_tensor_unref(t);
    if (!err)
        *id = nd->id;
    return err;
}

/* output_types and output_shapes of what `nd` gives, under those names. */
static void elements_of(trn_attr out[2], const trn_gnode *nd)
{
    static const trn_attr_val text = {.type = TRN_STRING};
    static const trn_shape unknown = {.rank = -1};
    static const trn_attr_val any = {.shape = &unknown};
    const trn_attr *types = trn_node_attr(&nd->n, "output_types"), *shapes = trn_node_attr(&nd->n, "output_shapes");
    if (!types)
        types = trn_node_attr(&nd->n, "Toutput_types");
    out[0] = types ? *types : (trn_attr){.kind = TRN_ATTR_TYPE, .is_list = true, .n = 1, .list = &text};
    out[1] = shapes ? *shapes : (trn_attr){.kind = TRN_ATTR_SHAPE, .is_list = true, .n = 1, .list = &any};
    out[0].name = "output_types";
    out[1].name = "output_shapes";
}

static trn_err shard_before(trn_graph *g, trn_gnode *user, const trn_shard *s)
{
    const trn_gnode *in = input_of(g, user);
    if (!in || !strstr(in->n.op, "Dataset"))
        return trn_errorf(TRN_NOT_FOUND, "%s '%s' gets its files from no dataset, so they cannot be divided: make one of them (Dataset.from_tensor_slices) and read that",
                          user->n.op, user->n.name);
    trn_attr attrs[3] = {{0}, {0}, {.name = "require_non_empty", .kind = TRN_ATTR_BOOL, .v.b = true}};
    elements_of(attrs, in);
    trn_edge from[3] = {user->in[0]};
    TRN_TRY(add_number(&from[1].node, g, s->workers));
    TRN_TRY(add_number(&from[2].node, g, s->index));
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, g, "ShardDataset", trn_graph_unique_name(g, "ShardDataset"), "", attrs, 3, from, 3));
    user->in[0] = (trn_edge){nd->id, 0};
    return TRN_OK;
}

/* ---- by files ---------------------------------------------------------------------------------------------------- */

/* Takes all nodes of this op out of what stands above `nd`; the one that was met last. */
static trn_gnode *take_out(trn_graph *g, trn_gnode *nd, const char *op)
{
    trn_gnode *found = NULL;
    for (int i = 0; i < nd->n.n_in; i++) {
        trn_gnode *in = g->node[nd->in[i].node], *more;
        while (strcmp(in->n.op, op) == 0) {
            found = in;
            nd->in[i] = in->in[0];
            in = g->node[nd->in[i].node];
        }
        if ((more = take_out(g, in, op)))
            found = more;
    }
    return found;
}

/* Files are divided before they are shuffled, so that all workers divide the same list. */
static trn_err shard_source(trn_graph *g, trn_gnode *user, const trn_shard *s)
{
    static const char *const shuffles[] = {"ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"};
    TRN_TRY(shard_before(g, user, s));
    for (int i = 0; i < 3; i++) {
        const trn_gnode *was = take_out(g, g->node[user->in[0].node], shuffles[i]);
        if (!was)
            continue;
        trn_edge *in = trn_xalloc((size_t)was->n.n_in * sizeof *in);
        memcpy(in, was->in, (size_t)was->n.n_in * sizeof *in);
        in[0] = user->in[0];
        trn_gnode *nd;
        trn_err err = trn_graph_add(&nd, g, was->n.op, trn_graph_unique_name(g, was->n.op), "", was->n.attrs, was->n.n_attrs, in, was->n.n_in);
        if (!err)
            user->in[0] = (trn_edge){nd->id, 0};
        free(in);
        return err;
    }
    return TRN_OK;
}

#define MAX_CALLS 100 /* functions inside of functions that are looked at */

static bool reads_files(const trn_funclib *l, const char *fn, int depth)
{
    const Tensorflow__FunctionDef *f = depth < MAX_CALLS ? trn_funclib__find(l, fn) : NULL;
    for (size_t i = 0; f && i < f->n_node_def; i++) {
        const Tensorflow__NodeDef *n = f->node_def[i];
        if (is_of(n->op, readers) && n->n_input > 0)
            return true;
        for (size_t k = 0; is_of(n->op, of_datasets) && k < n->n_attr; k++)
            if (strcmp(n->attr[k]->key, "f") == 0 && n->attr[k]->value->value_case == TENSORFLOW__ATTR_VALUE__VALUE_FUNC &&
                reads_files(l, n->attr[k]->value->func->name, depth + 1))
                return true;
    }
    return false;
}

/* FlatMap over a tensor that came from outside, below datasets that only pass on: the one that uses it. */
static trn_gnode *user_of_given(const trn_graph *g, trn_gnode *user)
{
    for (trn_gnode *nd; (nd = input_of(g, user)); user = nd) {
        if (is_of(nd->n.op, of_datasets)) {
            const trn_gnode *in = input_of(g, nd), *of = in ? input_of(g, in) : NULL;
            if (in && (strcmp(in->n.op, "TensorSliceDataset") == 0 || strcmp(in->n.op, "TensorDataset") == 0) && of && strcmp(of->n.op, "_Arg") == 0)
                return user;
        }
        if (!is_of(nd->n.op, through))
            break;
    }
    return NULL;
}

static trn_err by_files(trn_graph *g, trn_gnode *user, int slot, const trn_shard *s)
{
    trn_gnode *nd = g->node[user->in[slot].node];
    if (strcmp(nd->n.op, "AssertCardinalityDataset") == 0) { /* its number is that of all parts */
        user->in[slot] = nd->in[0];
        return by_files(g, user, slot, s);
    }
    if (is_of(nd->n.op, sources))
        return trn_errorf(TRN_NOT_FOUND, "Found an unshardable source dataset: %s '%s' reads no files", nd->n.op, nd->n.name);
    if (is_of(nd->n.op, many)) {
        for (int i = 0; i < nd->n.n_in; i++)
            TRN_TRY(by_files(g, nd, i, s));
        return TRN_OK;
    }
    bool inner = is_of(nd->n.op, of_datasets), pass = is_of(nd->n.op, through);
    trn_gnode *given = inner ? user_of_given(g, nd) : NULL;
    if (given)
        return shard_source(g, given, s);
    const trn_func_ref *f = inner || pass ? trn_attr_func(&nd->n, "f") : NULL;
    if ((f && reads_files(g->lib, f->name, 0)) || is_of(nd->n.op, readers))
        return shard_source(g, nd, s);
    if ((!inner && !pass) || nd->n.n_in == 0)
        return trn_errorf(TRN_NOT_FOUND,
                          "Did not find a shardable source: %s '%s' is none. Set experimental_distribute.auto_shard_policy of tf.data.Options to DATA, or to OFF, "
                          "and give the dataset these options (with_options)",
                          nd->n.op, nd->n.name);
    return by_files(g, nd, 0, s);
}

/* ---- by elements --------------------------------------------------------------------------------------------------- */

/* Batches are divided by elements only as the older op does it. */
static trn_err older_rebatch(trn_graph *g, trn_gnode *user, const trn_shard *s)
{
    const trn_gnode *was = input_of(g, user);
    if (strcmp(was->n.op, "RebatchDatasetV2") != 0)
        return TRN_OK;
    if (s->replicas < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "num_replicas is %lld; to divide rebatched elements it must be at least 1", (long long)s->replicas);
    trn_attr attrs[3] = {{0}, {0}, {.name = "use_fallback", .kind = TRN_ATTR_BOOL, .v.b = true}};
    elements_of(attrs, was);
    trn_attr_val *list = trn_arena_alloc(g->arena, (size_t)TRN_MAX(attrs[1].n, 1) * sizeof *list);
    for (int i = 0; i < attrs[1].n; i++) {
        trn_shape *shape = trn_arena_alloc(g->arena, sizeof *shape);
        *shape = *attrs[1].list[i].shape;
        if (shape->rank > 0)
            shape->dim[0] = -1;
        list[i].shape = shape;
    }
    attrs[1].list = list;
    trn_edge in[2] = {was->in[0]};
    TRN_TRY(add_number(&in[1].node, g, s->replicas));
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, g, "RebatchDataset", trn_graph_unique_name(g, "RebatchDataset"), "", attrs, 3, in, 2));
    user->in[0] = (trn_edge){nd->id, 0};
    return TRN_OK;
}

static trn_err by_elements(trn_graph *g, trn_gnode *user, const trn_shard *s)
{
    for (trn_gnode *in = input_of(g, user); in && (strcmp(in->n.op, "PrefetchDataset") == 0 || strcmp(in->n.op, "OptionsDataset") == 0 ||
                                                   strcmp(in->n.op, "FinalizeDataset") == 0);
         in = input_of(g, user))
        user = in; /* what runs ahead counts elements of the part */
    TRN_TRY(older_rebatch(g, user, s));
    return shard_before(g, user, s);
}

static trn_err by_hint(trn_graph *g, const trn_shard *s)
{
    int workers, index, n = g->n;
    TRN_TRY(add_number(&workers, g, s->workers));
    TRN_TRY(add_number(&index, g, s->index));
    for (int i = 0; i < n; i++) {
        const trn_gnode *nd = g->node[i], *number = strcmp(nd->n.op, "ShardDataset") == 0 ? g->node[nd->in[1].node] : NULL;
        const trn_tensor *value = number && strcmp(number->n.op, "Const") == 0 ? trn_attr_tensor(&number->n, "value") : NULL;
        if (!value || value->dtype != TRN_INT64 || value->count != 1 || TRN_DATA(value, int64_t)[0] != TRN_SHARDS_HINT)
            continue;
        nd->in[1].node = workers;
        nd->in[2].node = index;
        for (int k = 0; k < nd->n.n_attrs; k++)
            if (strcmp(nd->n.attrs[k].name, "require_non_empty") == 0)
                nd->n.attrs[k].v.b = true;
    }
    return TRN_OK;
}

trn_err trn_graph_shard(trn_graph *g, trn_gnode *sink, const trn_shard *s)
{
    switch (s->policy) {
    case TRN_SHARD_OFF: return TRN_OK;
    case TRN_SHARD_FILE: return s->workers == 1 ? TRN_OK : by_files(g, sink, 0, s);
    case TRN_SHARD_DATA: return by_elements(g, sink, s);
    case TRN_SHARD_HINT: return by_hint(g, s);
    default: break;
    }
    trn_err err = by_files(g, sink, 0, s);
    if (!err || trn_err_code(err) != TRN_NOT_FOUND)
        return err;
    trn_err_free(err);
    return by_elements(g, sink, s);
}
