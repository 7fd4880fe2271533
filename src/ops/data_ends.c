/* Where pipelines begin and end: lists and file names as datasets; a dataset as a TFRecord file, as a lookup table; what one says of itself. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <trainera/input.h>

#include "ckpt/file.h"
#include "ops/data.h"
#include "ops/resop.h"
#include "res/table.h"

/* ---- List ----------------------------------------------------------------------------------------------------------- */

/* The inputs as elements of c components each, what is left over forgotten. */
static trn_err memory_of_inputs(trn_ds **out, const trn_kctx *k, int c)
{
    int n = k->n_in / c;
    trn_elem **e = trn_xalloc(((size_t)n + 1) * sizeof *e);
    for (int i = 0; i < n; i++) {
        e[i] = trn_elem_new(c);
        for (int j = 0; j < c; j++)
            e[i]->t[j] = trn_tensor_ref(trn_in(k, i * c + j));
    }
    TRN_TRY(trn_data_memory(out, e, n, 0, NULL, NULL));
    trn_data_elem_attrs(*out, k->node);
    return TRN_OK;
}

static trn_err list_elems(trn_ds **out, trn_kctx *k)
{
    const trn_attr *types = trn_node_attr(k->node, "output_types"), *shapes = trn_node_attr(k->node, "output_shapes");
    int c = types->n;
    TRN_CHECK_ARG(shapes->n == c, "output_shapes has %d entries for %d components", shapes->n, c);
    TRN_CHECK_ARG(k->n_in % c == 0, "%d tensors are no whole number of elements of %d components", k->n_in, c);
    for (int i = 0; i < k->n_in; i++) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(trn_shape_compatible(&trn_in(k, i)->shape, shapes->list[i % c].shape), "Incompatible shapes at component %d: expected %s but got %s.", i % c,
                      trn_shape_text(a, shapes->list[i % c].shape), trn_shape_text(b, &trn_in(k, i)->shape));
    }
    TRN_TRY(memory_of_inputs(out, k, c));
    trn_data_is_list(*out);
    return TRN_OK;
}

static trn_err list_dataset(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(list_elems(&d, k));
    return trn_data_out(k, d, TRN_OK);
}

/* A window of WindowDataset as a node. */
static trn_err window_op(trn_kctx *k)
{
    const trn_attr *types = trn_node_attr(k->node, "output_types"), *shapes = trn_node_attr(k->node, "output_shapes");
    TRN_CHECK_ARG(shapes->n == types->n, "output_shapes has %d entries for %d components", shapes->n, types->n);
    trn_ds *d;
    TRN_TRY(memory_of_inputs(&d, k, types->n));
    return trn_data_out(k, d, TRN_OK);
}

/* ---- MatchingFiles: the files (no folders) that patterns match, pattern by pattern in the order of their names ---------- */

typedef struct patterns {
    trn_ds d;
    int64_t n;
    char **text;
} patterns;

typedef struct patterns_it {
    trn_it it;
    int64_t pattern;
    char **name;
    int n, at;
    bool found;
} patterns_it;

static void patterns_free(trn_ds *d)
{
    patterns *p = (patterns *)d;
    for (int64_t i = 0; i < p->n; i++)
        free(p->text[i]);
    free(p->text);
}

static void names_free(char **name, int n)
{
    for (int i = 0; i < n; i++)
        free(name[i]);
    free(name);
}

static void patterns_stop(trn_it *it) { names_free(((patterns_it *)it)->name, ((patterns_it *)it)->n); }

/* The folder that the part without wildcards names: it must be there. */
static trn_err check_folder(const trn_it *it, const char *pattern)
{
    size_t fixed = strcspn(pattern, "*?[\\");
    while (fixed > 0 && pattern[fixed - 1] != '/')
        fixed--;
    while (fixed > 1 && pattern[fixed - 1] == '/')
        fixed--;
    char *dir = fixed ? trn_xstrndup(pattern, fixed) : trn_xstrdup(".");
    trn_err err = trn_host_check_path(&it->root->host, dir);
    DIR *d = err ? NULL : opendir(trn_local_path(dir));
    if (!err && !d)
        err = trn_errorf(errno == ENOENT ? TRN_NOT_FOUND : errno == EACCES ? TRN_PERMISSION_DENIED : TRN_FAILED_PRECONDITION, "%s: %s", dir, strerror(errno));
    if (d)
        closedir(d);
    free(dir);
    return err;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(trn_local_path(path), &st) == 0 && S_ISDIR(st.st_mode);
}

static trn_err match_next(patterns_it *it)
{
    const char *text = ((patterns *)it->it.d)->text[it->pattern];
    char *pattern = text[strcspn(text, "*?[\\/")] == '/' ? trn_xstrdup(text) : trn_xasprintf("./%s", text), **name = NULL;
    int n = 0, kept = 0;
    trn_err err = check_folder(&it->it, pattern);
    if (!err)
        err = trn_path_glob(&name, &n, pattern);
    free(pattern);
    if (err)
        return err;
    names_free(it->name, it->n);
    for (int i = 0; i < n; i++)
        if (is_folder(name[i]))
            free(name[i]);
        else
            name[kept++] = name[i];
    it->name = name;
    it->n = kept;
    it->at = 0;
    it->pattern++;
    return TRN_OK;
}

static trn_ds_do patterns_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    patterns_it *it = (patterns_it *)it_;
    while (it->at >= it->n && it->pattern < ((patterns *)it_->d)->n) {
        if (why != TRN_DS_ON_DISK)
            return TRN_DS_DISK;
        trn_err err = match_next(it);
        if (err)
            return trn_act_fail(a, err);
    }
    if (it->at >= it->n)
        return it->found ? TRN_DS_END : trn_act_fail(a, trn_errorf(TRN_NOT_FOUND, "Don't find any matched files: no file has a name of these patterns"));
    it->found = true;
    const char *name = it->name[it->at++];
    trn_elem *e = trn_elem_new(1);
    if (!(e->t[0] = trn_tensor_str(name, strlen(name)))) {
        trn_elem_free(e);
        return trn_act_fail(a, trn_err_oom());
    }
    return trn_act_give(a, e);
}

static const trn_ds_op patterns_op = {"MatchingFilesDataset", sizeof(patterns_it), patterns_free, NULL, patterns_next, .stop = patterns_stop};

static trn_err matching_files_dataset(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    patterns *p;
    TRN_TRY(trn_data_source(&p, k, &patterns_op, sizeof *p));
    trn_shape s = trn_shape_scalar();
    trn_ds_elem_is(&p->d, 1, (trn_dtype[]){TRN_STRING}, &s);
    p->text = trn_xalloc(((size_t)t->count + 1) * sizeof *p->text);
    for (; p->n < t->count; p->n++) {
        const trn_str *x = &TRN_DATA(t, trn_str)[p->n];
        p->text[p->n] = trn_xstrndup(trn_str_p(x), x->len);
    }
    return trn_data_out(k, p, TRN_OK);
}

/* ---- DatasetToTFRecord: an operator whose only element, an empty one, comes when the file is there ------------------------- */

typedef struct to_records {
    trn_ds d;
    char *path, *compression;
} to_records;

typedef struct to_records_it {
    trn_it it;
    trn_record_writer *w;
    bool over;
    int n, cap;
    trn_elem **e; /* to be written */
    size_t bytes;
} to_records_it;

#define WRITE_BYTES 262144 /* gathered before a disk thread is asked for */

static void to_records_free(trn_ds *d)
{
    free(((to_records *)d)->path);
    free(((to_records *)d)->compression);
}

static void to_records_stop(trn_it *it_)
{
    to_records_it *it = (to_records_it *)it_;
    for (int i = 0; i < it->n; i++)
        trn_elem_free(it->e[i]);
    free(it->e);
    trn_record_writer_abort(it->w);
}

static trn_err write_gathered(to_records_it *it)
{
    const to_records *d = (to_records *)it->it.d;
    if (!it->w)
        TRN_TRY(trn_record_writer_open(&it->w, d->path, d->compression));
    for (int i = 0; i < it->n; i++) {
        const trn_tensor *t = it->e[i]->t[0];
        TRN_CHECK_ARG(t->count == 1, "a record must be a scalar");
        const trn_str *s = TRN_DATA(t, trn_str);
        TRN_TRY(trn_record_writer_add(it->w, trn_str_p(s), s->len));
        trn_elem_free(it->e[i]);
        it->e[i] = NULL;
    }
    it->n = 0;
    it->bytes = 0;
    if (!it->over)
        return TRN_OK;
    trn_record_writer *w = it->w;
    it->w = NULL;
    return trn_record_writer_close(w);
}

static trn_ds_do to_records_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    to_records_it *it = (to_records_it *)it_;
    if (why == TRN_DS_GOT) {
        trn_elem *e = trn_act_take(a);
        it->bytes += sizeof *e + (e->t[0]->count == 1 ? TRN_DATA(e->t[0], trn_str)[0].len : 0);
        TRN_PUSH(it->e, it->n, it->cap, e);
        if (it->bytes >= WRITE_BYTES)
            return TRN_DS_DISK;
    } else if (why == TRN_DS_ENDED) {
        it->over = true;
        return TRN_DS_DISK;
    } else if (why == TRN_DS_ON_DISK) {
        trn_err err = write_gathered(it);
        if (err)
            return trn_act_fail(a, err);
        if (it->over)
            return trn_act_give(a, trn_elem_new(0));
    }
    return trn_act_pull_on(a, it_->in);
}

static const trn_ds_op to_records_op = {"DatasetToTFRecord", sizeof(to_records_it), to_records_free, trn_it_start_in, to_records_next, .stop = to_records_stop};

static trn_err to_records_args(to_records *d, trn_kctx *k)
{
    const trn_ds *in = d->d.in[0];
    TRN_TRY(trn_data_str(&d->path, k, 1, "filename"));
    TRN_TRY(trn_data_str(&d->compression, k, 2, "compression_type"));
    TRN_TRY(trn_k_check_path(k, d->path));
    TRN_CHECK_ARG(in->n == 1, "a TFRecord file is made of datasets with a single column; this one has %d", in->n);
    TRN_CHECK_ARG(in->types[0] == TRN_STRING, "a TFRecord file is made of strings, not of %s", trn_dtype_name(in->types[0]));
    return TRN_OK;
}

static trn_err dataset_to_tf_record(trn_kctx *k)
{
    to_records *d;
    TRN_TRY(trn_data_on(&d, k, &to_records_op, sizeof *d));
    trn_err err = to_records_args(d, k);
    trn_ds_elem_is(&d->d, 0, NULL, NULL);
    if (!err)
        err = trn_data_only(k, &d->d);
    trn_ds_unref(&d->d); /* the walk has its own reference */
    return err;
}

/* ---- InitializeTableFromDataset: likewise, when the table is full ------------------------------------------------------------ */

typedef struct to_table {
    trn_ds d;
    trn_table *t;
} to_table;

typedef struct to_table_it {
    trn_it it;
    int64_t n, cap;
    trn_elem **e;
} to_table_it;

static void to_table_free(trn_ds *d) { trn_resource_unref(((to_table *)d)->t); }

static void to_table_stop(trn_it *it_)
{
    to_table_it *it = (to_table_it *)it_;
    for (int64_t i = 0; i < it->n; i++)
        trn_elem_free(it->e[i]);
    free(it->e);
}

static trn_err fill_table(to_table_it *it)
{
    const to_table *d = (to_table *)it->it.d;
    trn_tensor *kv[2] = {0};
    trn_err err = it->n ? TRN_OK : trn_errorf(TRN_OUT_OF_RANGE, "the dataset has no elements: end of iterator");
    for (int c = 0; !err && c < 2; c++)
        err = trn_data_stack(&kv[c], it->e, it->n, c);
    if (!err && (kv[0]->shape.rank != 1 || kv[1]->shape.rank != 1))
        err = TRN_BAD("Expected scalar for key. Keys and values of a table must be scalars");
    if (!err)
        err = trn_table_import(d->t, kv[0], kv[1]);
    if (trn_err_code(err) == TRN_FAILED_PRECONDITION && trn_table_is_set(d->t)) { /* somebody was faster */
        trn_err_free(err);
        err = TRN_OK;
    }
    trn_tensor_unref(kv[0]);
    trn_tensor_unref(kv[1]);
    return err;
}

static trn_ds_do to_table_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    to_table_it *it = (to_table_it *)it_;
    if (why == TRN_DS_GOT)
        TRN_PUSH(it->e, it->n, it->cap, trn_act_take(a));
    if (why != TRN_DS_ENDED)
        return trn_act_pull_on(a, it_->in);
    trn_err err = fill_table(it);
    return err ? trn_act_fail(a, err) : trn_act_give(a, trn_elem_new(0));
}

static const trn_ds_op to_table_op = {"InitializeTableFromDataset", sizeof(to_table_it), to_table_free, trn_it_start_in, to_table_next, .stop = to_table_stop};

static trn_err check_pairs(const trn_table *t, const trn_ds *d)
{
    char a[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_table_kind_of(t) == TRN_TABLE_STATIC, "the table is not initializable");
    TRN_CHECK_ARG(d->n == 2, "Dataset should have two output types only");
    TRN_CHECK_ARG(d->types[0] == trn_table_key(t), "Key dtype expected: %s but obtained: %s from the dataset", trn_dtype_name(trn_table_key(t)), trn_dtype_name(d->types[0]));
    TRN_CHECK_ARG(d->types[1] == trn_table_value(t), "Value dtype expected: %s but obtained: %s from the dataset", trn_dtype_name(trn_table_value(t)),
                  trn_dtype_name(d->types[1]));
    for (int c = 0; c < 2; c++)
        TRN_CHECK_ARG(d->shapes[c].rank <= 0, "Expected scalar for key. Obtained: %s", trn_shape_text(a, &d->shapes[c]));
    return TRN_OK;
}

static trn_err initialize_table_from_dataset(trn_kctx *k)
{
    trn_ds *in;
    trn_table *t;
    to_table *d;
    TRN_TRY(trn_k_resource(&t, k, 0, &trn_table_type));
    trn_err err = trn_ds_in(&in, trn_in(k, 1));
    if (!err)
        err = check_pairs(t, in);
    if (!err)
        err = trn_ds_new(&d, &to_table_op, sizeof *d, &in, 1);
    if (err) {
        trn_resource_unref(t);
        return err;
    }
    d->t = t;
    trn_ds_elem_is(&d->d, 0, NULL, NULL);
    err = trn_data_only(k, &d->d);
    trn_ds_unref(&d->d);
    return err;
}

/* ---- ComputeBatchSize ---------------------------------------------------------------------------------------------------------- */

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list))
            return true;
    return false;
}

/* What is batched last, seen through operators that leave batches as they are; -1: unknown. `left` bounds the work, for pipelines that use datasets many times. */
static int64_t batch_size_of(const trn_ds *d, int *left)
{
    static const char *const same[] = {"AssertCardinalityDataset", "CacheDataset", "FilterDataset", "OptionsDataset", "ParseExampleDataset", "PrefetchDataset",
                                       "RepeatDataset",            "ShardDataset", "ShuffleDataset", "SkipDataset",   "TakeDataset",         NULL};
    static const char *const joined[] = {"ConcatenateDataset", "ZipDataset", NULL};
    int64_t n = trn_data_batch_size(d);
    if (n >= 0 || --*left < 0 || d->n_in == 0)
        return n;
    if (is_one_of(d->op->name, same))
        return batch_size_of(d->in[0], left);
    if (!is_one_of(d->op->name, joined))
        return -1;
    n = batch_size_of(d->in[0], left);
    for (int i = 1; n >= 0 && i < d->n_in; i++)
        if (batch_size_of(d->in[i], left) != n)
            n = -1;
    return n;
}

static trn_err compute_batch_size(trn_kctx *k)
{
    trn_ds *d;
    int left = 10000;
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    trn_out_set(k, 0, trn_tensor_i64(batch_size_of(d, &left)));
    return TRN_OK;
}

/* ---- thread pools: ours come from one pool; the handle is there for who asks ------------------------------------------------- */

#define MAX_THREADS 65536

static void pool_free(trn_resource *r) { free(r); }
static const trn_restype pool_type = {.name = "ThreadPool", .free = pool_free};

static trn_err make_pool(trn_resource **out, void *arg)
{
    trn_resource *r = trn_xalloc(sizeof *r);
    trn_resource_init(r, &pool_type);
    *out = r;
    return TRN_OK;
}

static trn_err thread_pool_handle(trn_kctx *k)
{
    int64_t threads = trn_attr_int(k->node, "num_threads");
    TRN_CHECK_ARG(threads >= 0 && threads < MAX_THREADS, "`num_threads` must be >= 0 and < %d, not %lld", MAX_THREADS, (long long)threads);
    trn_resource *r;
    TRN_TRY(trn_resop(&r, k, &pool_type, "tensorflow::data::ThreadPoolResource", make_pool, NULL));
    trn_resource_unref(r);
    return TRN_OK;
}

static trn_err thread_pool_dataset(trn_kctx *k)
{
    trn_ds *d;
    trn_resource *r;
    TRN_TRY(trn_k_resource(&r, k, 1, &pool_type));
    trn_resource_unref(r);
    TRN_TRY(trn_ds_in(&d, trn_in(k, 0)));
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

#define POOL_HANDLE "-> handle:res; num_threads:int, max_intra_op_parallelism:int=1, display_name:string, container:string=\"\", shared_name:string=\"\""
#define ON_POOL "input_dataset:var, thread_pool:res -> handle:var; " DS_OUT
#define TO_RECORDS "input_dataset:var, filename:str, compression_type:str ->"
#define PURE (TRN_OP_CHEAP | TRN_OP_STATEFUL)
#define SINK (TRN_OP_ASYNC | TRN_OP_STATEFUL)

const trn_op trn_ops_data_ends[] = {
    {"ListDataset", "tensors:Tinput_types -> handle:var; Tinput_types:list(type)>=1, " DS_OUT DS_META, trn_sh_dataset, list_dataset, PURE},
    {"WindowOp", "inputs:Tinputs -> handle:var; " DS_OUT ", Tinputs:list(type)>=1", trn_sh_dataset, window_op, PURE},
    {"MatchingFilesDataset", "patterns:str -> handle:var", trn_sh_dataset, matching_files_dataset, PURE},
    {"ExperimentalMatchingFilesDataset", "patterns:str -> handle:var", trn_sh_dataset, matching_files_dataset, PURE},
    {"DatasetToTFRecord", TO_RECORDS, trn_sh_none, dataset_to_tf_record, SINK},
    {"ExperimentalDatasetToTFRecord", TO_RECORDS, trn_sh_none, dataset_to_tf_record, SINK},
    {"InitializeTableFromDataset", "table_handle:res, dataset:var ->", trn_sh_none, initialize_table_from_dataset, SINK},
    {"ComputeBatchSize", "input_dataset:var -> batch_size:i64", trn_sh_dataset, compute_batch_size, DS_FLAGS},
    {"ThreadPoolHandle", POOL_HANDLE, trn_sh_handle, thread_pool_handle, TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini},
    {"ExperimentalThreadPoolHandle", POOL_HANDLE, trn_sh_handle, thread_pool_handle, TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini},
    {"ThreadPoolDataset", ON_POOL, trn_sh_dataset, thread_pool_dataset, PURE},
    {"ExperimentalThreadPoolDataset", ON_POOL, trn_sh_dataset, thread_pool_dataset, PURE},
    {0},
};
