/* Datasets that are saved to files and loaded again: save, load, snapshot. The files are those of ckpt/snapshot.h.
 *
 * Elements are gathered while they pass and written on the disk threads, which read them in chunks; the functions that say to which shard an element goes, and in which
 * order shards are read, run like everybody's. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/snapshot.h"
#include "ops/data.h"
#include "ops/resop.h"

#define GATHER_BYTES 262144 /* before a disk thread is asked for */
#define GATHER_ELEMENTS 256

/* ---- SnapshotDatasetReader, SnapshotChunkDataset: a shard's files, or one file ----------------------------------------------- */

typedef struct shard {
    trn_ds d;
    char *path;
    bool one; /* path is the file */
    trn_compression c;
    int64_t version, first; /* elements that are left out */
} shard;

typedef struct shard_it {
    trn_it it;
    trn_snapshot_file *f;
    int64_t file, skip;
    bool over;
} shard_it;

static void shard_free(trn_ds *d) { free(((shard *)d)->path); }
static void shard_stop(trn_it *it) { trn_snapshot_file_close(((shard_it *)it)->f); }

static trn_err shard_start(trn_it *it)
{
    const shard *d = (shard *)it->d;
    ((shard_it *)it)->skip = d->first;
    return trn_snapshot_check_version(d->version);
}

/* The next file; there is none: over. */
static trn_err open_file(shard_it *it)
{
    const shard *d = (shard *)it->it.d;
    char *name = d->one ? trn_xstrdup(d->path) : trn_snapshot_file_name(d->path, it->file);
    trn_err err = trn_host_check_path(&it->it.root->host, name);
    if (!err)
        err = trn_snapshot_file_open(&it->f, name, d->c, d->version, d->d.types, d->d.n);
    free(name);
    if (trn_err_code(err) == TRN_NOT_FOUND && it->file > 0) {
        trn_err_free(err);
        it->over = true;
        return TRN_OK;
    }
    return err;
}

static void end_file(shard_it *it)
{
    trn_snapshot_file_close(it->f);
    it->f = NULL;
    it->file++;
    it->over = ((shard *)it->it.d)->one;
}

static trn_ds_do shard_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    shard_it *it = (shard_it *)it_;
    bool on_disk = why == TRN_DS_ON_DISK;
    trn_err err = TRN_OK;
    while (!it->over) {
        if (!it->f && !on_disk)
            return TRN_DS_DISK;
        if (!it->f && (err = open_file(it))) {
            it->over = true; /* as in TensorFlow: who ignores errors gets on with the next shard */
            return trn_act_fail(a, err);
        }
        if (!it->f)
            break;
        trn_elem *e = trn_elem_new(it_->d->n);
        trn_cut got = TRN_CUT_END;
        err = trn_snapshot_file_next(&got, it->f, e->t);
        if (!err && got == TRN_CUT_GOT && it->skip == 0)
            return trn_act_give(a, e);
        trn_elem_free(e);
        if (err)
            return trn_act_fail(a, err);
        if (got == TRN_CUT_GOT)
            it->skip--;
        else if (got == TRN_CUT_END)
            end_file(it);
        else if (!on_disk)
            return TRN_DS_DISK;
        else if ((err = trn_snapshot_file_fill(it->f)))
            return trn_act_fail(a, err);
        else
            return TRN_DS_DISK; /* again; between two pieces of what is left out the pull may be cancelled */
    }
    return TRN_DS_END;
}

static const trn_ds_op shard_op = {"SnapshotDatasetReader", sizeof(shard_it), shard_free, shard_start, shard_next, .stop = shard_stop};
static const trn_ds_op chunk_op = {"SnapshotChunkDataset", sizeof(shard_it), shard_free, shard_start, shard_next, .stop = shard_stop};

static trn_err shard_dataset(trn_kctx *k, bool one)
{
    shard *d;
    TRN_TRY(trn_data_source(&d, k, one ? &chunk_op : &shard_op, sizeof *d));
    d->one = one;
    d->version = one ? TRN_SNAPSHOT_VERSION : trn_attr_int(k->node, "version");
    d->c = trn_compression_of_snapshot(trn_attr_str(k->node, "compression"));
    trn_err err = trn_data_str(&d->path, k, 0, one ? "chunk_file" : "shard_dir");
    if (!err && !one)
        err = trn_data_i64(&d->first, k, 1, "start_index");
    d->first = TRN_MAX(d->first, 0);
    return trn_data_out(k, d, err);
}

static trn_err dataset_reader(trn_kctx *k) { return shard_dataset(k, false); }
static trn_err chunk_dataset(trn_kctx *k) { return shard_dataset(k, true); }

/* ---- SnapshotNestedDatasetReader: a dataset of datasets ------------------------------------------------------------------------ */

static trn_err nested(trn_ds **out, trn_elem **e, int64_t n)
{
    trn_shape s = trn_shape_scalar();
    return trn_data_memory(out, e, n, 1, (trn_dtype[]){TRN_VARIANT}, &s);
}

static trn_err nested_dataset(trn_kctx *k)
{
    trn_elem **e = trn_xalloc(((size_t)k->n_in + 1) * sizeof *e);
    trn_ds *d;
    trn_err err = TRN_OK;
    int n = 0;
    for (; !err && n < k->n_in; n++) {
        e[n] = trn_elem_of(&k->in[n].t, 1);
        err = trn_ds_in(&d, k->in[n].t);
    }
    trn_err made = nested(&d, e, n);
    if (!err && !made)
        return trn_data_out(k, d, TRN_OK);
    if (!made)
        trn_ds_unref(d);
    if (err)
        trn_err_free(made);
    return err ? err : made;
}

/* ---- reading a run: its shards go to the reader function, which makes one dataset of them -------------------------------------- */

static trn_err new_shard(trn_elem **out, const trn_ds *like, trn_compression c, int64_t version, TRN_OWN char *path)
{
    shard *d;
    trn_err err = trn_ds_new(&d, &shard_op, sizeof *d, NULL, 0);
    if (err) {
        free(path);
        return err;
    }
    d->path = path;
    d->c = c;
    d->version = version;
    trn_ds_elem_is(&d->d, like->n, like->types, like->shapes);
    trn_elem *e = trn_elem_new(1);
    if ((err = trn_ds_tensor(&e->t[0], &d->d)))
        trn_elem_free(e);
    else
        *out = e;
    return err;
}

/* An element: the dataset of the run's shards. Blocks. */
static trn_err list_shards(trn_elem **out, const trn_ds *like, const char *dir, const trn_snapshot_meta *m, trn_compression c)
{
    char **path;
    int n, made = 0;
    trn_err err = trn_snapshot_shards(&path, &n, dir, m);
    trn_elem **e = trn_xalloc(((size_t)n + 1) * sizeof *e);
    for (; !err && made < n; made++) {
        err = new_shard(&e[made], like, c, m->version, path[made]);
        path[made] = NULL;
        if (err)
            break;
    }
    for (int i = 0; i < n; i++)
        free(path[i]);
    free(path);
    trn_ds *d;
    trn_err all = nested(&d, e, made);
    if (err || all) {
        if (!all)
            trn_ds_unref(d);
        if (err)
            trn_err_free(all);
        return err ? err : all;
    }
    trn_elem *one = trn_elem_new(1);
    if ((err = trn_ds_tensor(&one->t[0], d)))
        trn_elem_free(one);
    else
        *out = one;
    return err;
}

/* What the reader function gave is walked. */
static trn_err walk_result(trn_it **out, const trn_it *it, const trn_elem *e)
{
    trn_ds *d;
    if (e->n != 1 || !e->t[0])
        return TRN_BAD("reader_func must return one dataset, not %d values", e->n);
    TRN_TRY(trn_ds_in(&d, e->t[0]));
    return trn_it_new(out, d, it->root);
}

/* ---- LoadDataset ---------------------------------------------------------------------------------------------------------------- */

typedef struct load {
    trn_ds d; /* f: reader function */
    char *path;
    trn_compression c;
    trn_snapshot_meta meta;
} load;

static void load_free(trn_ds *d)
{
    free(((load *)d)->path);
    trn_snapshot_meta_fini(&((load *)d)->meta);
}

static trn_ds_do load_next(trn_it *it, trn_act *a, trn_ds_why why)
{
    const load *d = (load *)it->d;
    trn_err err = TRN_OK;
    switch (why) {
    case TRN_DS_START:
        return it->in ? trn_act_pull_on(a, it->in) : TRN_DS_DISK;
    case TRN_DS_ON_DISK:
        trn_elem_free(trn_act_take(a));
        err = list_shards(&a->elem, it->d, d->path, &d->meta, d->c);
        return err ? trn_act_fail(a, err) : TRN_DS_CALL;
    case TRN_DS_CALLED:
        err = walk_result(&it->in, it, a->elem);
        return err ? trn_act_fail(a, err) : trn_act_pull_on(a, it->in);
    case TRN_DS_GOT:
        return TRN_DS_GIVE;
    default:
        return TRN_DS_END;
    }
}

static int64_t load_count(const trn_ds *d) { return ((const load *)d)->meta.elements; }

static const trn_ds_op load_op = {"LoadDataset", sizeof(trn_it), load_free, NULL, load_next, .count = load_count};

static trn_err load_args(load *d, trn_kctx *k)
{
    bool found;
    TRN_TRY(trn_data_str(&d->path, k, 0, "path"));
    TRN_TRY(trn_k_check_path(k, d->path));
    TRN_TRY(trn_snapshot_meta_read(&d->meta, &found, d->path));
    if (!found)
        return trn_errorf(TRN_NOT_FOUND, "%s has no metadata file: no dataset was saved there", d->path);
    d->c = trn_compression_of_snapshot(trn_attr_str(k->node, "compression"));
    return trn_data_func(&d->d, k, "reader_func", "reader_func_other_args");
}

static trn_err load_dataset(trn_kctx *k)
{
    load *d;
    TRN_TRY(trn_data_source(&d, k, &load_op, sizeof *d));
    return trn_data_out(k, d, load_args(d, k));
}

/* ---- SaveDataset, SnapshotDatasetV2: elements are given on as they come, and written ---------------------------------------------- */

typedef struct save {
    trn_ds d; /* f: the shard of an element */
    char *dir, *hash;
    trn_compression c;
    bool sharded;   /* otherwise all goes to `only` */
    int64_t only;
    bool counted;   /* the metadata say how many elements there were, rather than how many the dataset said it has */
    /* Snapshots: what is there is read. */
    bool reads;
    char *read_dir;
    trn_func *reader;
    int n_rcap;
    trn_tensor **rcap;
} save;

typedef struct gathered {
    trn_elem *e;
    int64_t shard;
} gathered;

typedef struct save_it {
    trn_it it;
    trn_func *reader;
    bool begun, over, calling_reader;
    trn_it *read; /* a whole snapshot */
    trn_snapshot_run *run;
    trn_err bad; /* of writing: what comes after it would be missing in the files */
    int64_t written;
    trn_elem *kept; /* while the function says where it goes */
    int n, cap;
    gathered *g;
    size_t bytes;
} save_it;

static void save_free(trn_ds *d_)
{
    save *d = (save *)d_;
    for (int i = 0; i < d->n_rcap; i++)
        trn_tensor_unref(d->rcap[i]);
    free(d->rcap);
    trn_func_unref(d->reader);
    free(d->read_dir);
    free(d->hash);
    free(d->dir);
}

static trn_err save_start(trn_it *it_)
{
    const save *d = (save *)it_->d;
    return d->reads ? trn_func_fork(&((save_it *)it_)->reader, d->reader) : TRN_OK;
}

static void drop_gathered(save_it *it)
{
    while (it->n > 0)
        trn_elem_free(it->g[--it->n].e);
    it->bytes = 0;
}

static void save_stop(trn_it *it_)
{
    save_it *it = (save_it *)it_;
    drop_gathered(it);
    free(it->g);
    trn_elem_free(it->kept);
    trn_snapshot_run_drop(it->run);
    trn_it_drop(it->read);
    trn_func_unref(it->reader);
    trn_err_free(it->bad);
}

/* Shards of a finished snapshot for the reader function, with what that one captured; NULL: it is to be written. */
static trn_err find_shards(trn_elem **out, const save_it *it)
{
    const save *d = (save *)it->it.d;
    trn_snapshot_meta m = {0};
    trn_elem *e = NULL;
    bool found;
    *out = NULL;
    TRN_TRY(trn_host_check_path(&it->it.root->host, d->read_dir));
    TRN_TRY(trn_snapshot_meta_read(&m, &found, d->read_dir));
    trn_err err = found && m.finished ? list_shards(&e, it->it.d, d->read_dir, &m, d->c) : TRN_OK;
    trn_snapshot_meta_fini(&m);
    if (err || !e)
        return err;
    *out = trn_elem_new(1 + d->n_rcap);
    for (int i = 0; i < 1 + d->n_rcap; i++)
        (*out)->t[i] = trn_tensor_ref(i ? d->rcap[i - 1] : e->t[0]);
    trn_elem_free(e);
    return TRN_OK;
}

static trn_err begin(save_it *it, trn_elem **shards)
{
    const save *d = (save *)it->it.d;
    *shards = NULL;
    if (d->reads)
        TRN_TRY(find_shards(shards, it));
    if (!*shards) { /* the input begins only now: what it reads may be gone when the snapshot is there */
        if (!it->it.in)
            TRN_TRY(trn_it_start_in(&it->it));
        TRN_TRY(trn_host_check_path(&it->it.root->host, d->dir));
        TRN_TRY(trn_snapshot_run_open(&it->run, d->dir, d->hash ? d->hash : "", d->c, d->d.types, d->d.n));
    }
    it->begun = true;
    return TRN_OK;
}

static trn_err write_gathered(save_it *it)
{
    const save *d = (save *)it->it.d;
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < it->n; i++)
        err = trn_snapshot_run_add(it->run, it->g[i].shard, it->g[i].e->t, it->g[i].e->n);
    drop_gathered(it);
    if (!err && it->over) {
        int64_t n = d->reads ? 0 : d->counted ? it->written : trn_ds_count(&d->d);
        err = trn_snapshot_run_finish(it->run, n);
        it->run = NULL;
    }
    if (err) {
        trn_snapshot_run_drop(it->run);
        it->run = NULL;
        it->bad = trn_err_copy(err);
    }
    return err;
}

static trn_ds_do on_disk(save_it *it, trn_act *a)
{
    trn_elem *shards = NULL;
    trn_err err = it->begun ? write_gathered(it) : begin(it, &shards);
    if (err)
        return trn_act_fail(a, err);
    if (shards) {
        trn_elem_free(a->elem);
        a->elem = shards;
        a->fn = it->reader;
        it->calling_reader = true;
        return TRN_DS_CALL;
    }
    return it->over ? TRN_DS_END : trn_act_pull_on(a, it->it.in);
}

static trn_ds_do gather(save_it *it, trn_act *a, trn_elem *e, int64_t to)
{
    it->bytes += sizeof *e;
    for (int i = 0; i < e->n; i++)
        it->bytes += trn_tensor_total_bytes(e->t[i]);
    it->written++;
    TRN_PUSH(it->g, it->n, it->cap, (gathered){trn_elem_copy(e), to});
    return trn_act_give(a, e);
}

static trn_ds_do save_got(save_it *it, trn_act *a)
{
    const save *d = (save *)it->it.d;
    if (it->read)
        return TRN_DS_GIVE;
    if (!d->sharded)
        return gather(it, a, trn_act_take(a), d->only);
    trn_elem_free(it->kept);
    it->kept = trn_elem_copy(a->elem);
    return TRN_DS_CALL;
}

static trn_ds_do save_called(save_it *it, trn_act *a)
{
    if (it->calling_reader) {
        it->calling_reader = false;
        trn_err err = walk_result(&it->read, &it->it, a->elem);
        return err ? trn_act_fail(a, err) : trn_act_pull_on(a, it->read);
    }
    const trn_tensor *t = a->elem->n == 1 ? a->elem->t[0] : NULL;
    if (!t || t->dtype != TRN_INT64 || t->count != 1)
        return trn_act_fail(a, TRN_BAD("shard_func gave something else than one int64"));
    int64_t to = TRN_DATA(t, int64_t)[0];
    trn_elem *e = it->kept;
    it->kept = NULL;
    return gather(it, a, e, to);
}

static trn_ds_do save_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    save_it *it = (save_it *)it_;
    switch (why) {
    case TRN_DS_START:
        it->calling_reader = false;
        if (it->bad)
            return trn_act_fail(a, trn_err_copy(it->bad));
        if (it->over)
            return it->run ? TRN_DS_DISK : TRN_DS_END; /* whoever found the end was cancelled before all was written */
        if (it->begun && !it->read && !it->run) /* the reader function failed: another try */
            it->begun = false;
        if (!it->begun || it->bytes >= GATHER_BYTES || it->n >= GATHER_ELEMENTS)
            return TRN_DS_DISK;
        return trn_act_pull_on(a, it->read ? it->read : it_->in);
    case TRN_DS_GOT:
        return save_got(it, a);
    case TRN_DS_CALLED:
        return save_called(it, a);
    case TRN_DS_ENDED:
        it->over = true;
        return it->read ? TRN_DS_END : TRN_DS_DISK;
    default:
        return on_disk(it, a);
    }
}

static const trn_ds_op save_op = {"SaveDatasetV2", sizeof(save_it), save_free, save_start, save_next, .stop = save_stop, .count = trn_data_count_same};
static const trn_ds_op snapshot_op = {"SnapshotDatasetV2", sizeof(save_it), save_free, save_start, save_next, .stop = save_stop, .count = trn_data_count_same};

static trn_err save_args(save *d, trn_kctx *k)
{
    TRN_TRY(trn_data_str(&d->dir, k, 1, "path"));
    TRN_TRY(trn_k_check_path(k, d->dir));
    d->c = trn_compression_of_snapshot(trn_attr_str(k->node, "compression"));
    d->sharded = trn_attr_bool(k->node, "use_shard_func");
    return d->sharded ? trn_data_func(&d->d, k, "shard_func", "shard_func_other_args") : TRN_OK;
}

static trn_err save_dataset_v2(trn_kctx *k)
{
    cpu_set_t set;
    save *d;
    TRN_TRY(trn_data_on(&d, k, &save_op, sizeof *d));
    d->only = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1 ? 0 : 1; /* as in TensorFlow: the second one, if it has so many cores */
    return trn_data_out(k, d, save_args(d, k));
}

/* SaveDataset: a walk to the end. */
typedef struct saving {
    trn_kctx *k;
    trn_it *it;
} saving;

static bool saved(void *arg, trn_err err, trn_elem *e)
{
    saving *s = arg;
    trn_elem_free(e);
    if (!err && e)
        return true;
    trn_kctx *k = s->k;
    trn_it_drop(s->it);
    free(s);
    trn_k_done(k, err);
    return false;
}

static trn_err save_dataset(trn_kctx *k)
{
    save *d;
    TRN_TRY(trn_data_on(&d, k, &save_op, sizeof *d));
    d->counted = true;
    saving *s = trn_xalloc(sizeof *s);
    s->k = k;
    trn_host host = trn_k_host(k);
    trn_err err = save_args(d, k);
    if (!err)
        err = trn_it_make(&s->it, &d->d, &host);
    trn_ds_unref(&d->d); /* the walk has its own reference */
    if (err)
        free(s);
    else
        trn_act_pull(s->it, trn_k_cancel(k), saved, s);
    return err;
}

/* ---- SnapshotDatasetV2 ---------------------------------------------------------------------------------------------------------------- */

/* Which snapshot in the folder is this dataset's: TensorFlow, too, has a number that says what the dataset is made of, but another one. */
static trn_err number_of(uint64_t *out, trn_kctx *k, const char *compression)
{
    if (trn_attr_bool(k->node, "hash_valid")) {
        *out = (uint64_t)trn_attr_int(k->node, "hash");
        return TRN_OK;
    }
    TRN_TRY(trn_k_hash_of(out, k, trn_in(k, 0)));
    *out = trn_hash64_tf_combine(*out, trn_hash64_tf(compression, strlen(compression)));
    return TRN_OK;
}

static char *join(const char *prefix, const char *path, const char *hash)
{
    char *p = trn_path_join(prefix, path), *all = trn_path_join(p, hash);
    free(p);
    return all;
}

static trn_err snapshot_args(save *d, trn_kctx *k)
{
    const char *compression = trn_attr_str(k->node, "compression");
    char *path;
    uint64_t number;
    d->sharded = true;
    d->reads = true;
    if (!strcmp(compression, "AUTO"))
        compression = "SNAPPY";
    d->c = trn_compression_of_snapshot(compression);
    TRN_TRY(trn_data_func(&d->d, k, "shard_func", "shard_func_other_args"));
    TRN_TRY(trn_k_func(&d->reader, k, trn_attr_func(k->node, "reader_func")));
    int n, first = trn_in_arg(k, "reader_func_other_args", &n);
    d->rcap = trn_xalloc(((size_t)n + 1) * sizeof *d->rcap);
    for (int i = 0; i < n; i++)
        d->rcap[d->n_rcap++] = trn_tensor_ref(trn_in(k, first + i));
    TRN_TRY(number_of(&number, k, compression));
    TRN_TRY(trn_data_str(&path, k, 1, "path"));
    d->hash = trn_xasprintf("%" PRIu64, number);
    d->dir = join(trn_attr_str(k->node, "writer_prefix"), path, d->hash);
    d->read_dir = join(trn_attr_str(k->node, "reader_prefix"), path, d->hash);
    free(path);
    TRN_TRY(trn_k_check_path(k, d->dir));
    return trn_k_check_path(k, d->read_dir);
}

static trn_err snapshot_dataset_v2(trn_kctx *k)
{
    save *d;
    TRN_TRY(trn_data_on(&d, k, &snapshot_op, sizeof *d));
    return trn_data_out(k, d, snapshot_args(d, k));
}

#define SAVE "input_dataset:var, path:str, shard_func_other_args:Tshard_func_args -> "
#define SAVE_ATTRS "compression:string=\"\", shard_func:func, use_shard_func:bool=true, Tshard_func_args:list(type)>=0"

const trn_op trn_ops_data_snapshot[] = {
    {"SaveDataset", SAVE "; " SAVE_ATTRS, trn_sh_none, save_dataset, TRN_OP_STATEFUL | TRN_OP_ASYNC},
    {"SaveDatasetV2", SAVE "handle:var; " SAVE_ATTRS ", " DS_OUT, trn_sh_dataset, save_dataset_v2, TRN_OP_STATEFUL},
    {"LoadDataset", "path:str, reader_func_other_args:Treader_func_args -> handle:var; " DS_OUT ", compression:string=\"\", reader_func:func, Treader_func_args:list(type)>=0",
     trn_sh_dataset, load_dataset, TRN_OP_STATEFUL | TRN_OP_DISK},
    {"SnapshotDatasetV2",
     "input_dataset:var, path:str, reader_func_other_args:Treader_func_args, shard_func_other_args:Tshard_func_args -> handle:var; " DS_OUT
     ", compression:string=\"\", reader_prefix:string=\"\", writer_prefix:string=\"\", hash_valid:bool=false, hash:int=0, reader_func:func, shard_func:func, "
     "Treader_func_args:list(type)>=0, Tshard_func_args:list(type)>=0" DS_META,
     trn_sh_dataset, snapshot_dataset_v2, TRN_OP_BACK},
    {"SnapshotDatasetReader", "shard_dir:str, start_index:i64 -> handle:var; " DS_OUT ", compression:string=\"\", version:int", trn_sh_dataset, dataset_reader, DS_FLAGS},
    {"SnapshotNestedDatasetReader", "inputs:N*var -> handle:var; " DS_OUT ", N:int>=1", trn_sh_dataset, nested_dataset, DS_FLAGS},
    {"SnapshotChunkDataset", "chunk_file:str -> handle:var; " DS_OUT ", compression:string=\"\"", trn_sh_dataset, chunk_dataset, DS_FLAGS},
    {0},
};
