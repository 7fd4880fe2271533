/* Checkpoints and whole files. The formats are in ckpt/; here are the ops. All run on the disk threads, and every path is one that the
 * operator allows. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/bundle.h"
#include "ckpt/file.h"
#include "ckpt/v1.h"
#include "op/registry.h"
#include "ops/resop.h"

/* ---- names ----------------------------------------------------------------------------------------------------- */

/* Element i of a string tensor as a path; the caller frees. */
static trn_err path_at(char **out, const trn_tensor *t, int64_t i)
{
    size_t n;
    const char *p = trn_tensor_str_at(t, i, &n);
    TRN_CHECK_ARG(p && n, "An empty file name");
    TRN_CHECK_ARG(!memchr(p, 0, n), "A file name with a zero byte in it: %s", p);
    *out = trn_xstrndup(p, n);
    return TRN_OK;
}

/* Input i, one element, as an allowed path. */
static trn_err path_in(char **out, trn_kctx *k, int i, const char *what)
{
    const trn_tensor *t = trn_in(k, i);
    TRN_CHECK_ARG(t->count == 1, "Input %s should have a single element, got %" PRId64 " instead.", what, t->count);
    char *path;
    TRN_TRY(path_at(&path, t, 0));
    trn_err err = trn_k_check_path(k, path);
    if (err)
        free(path);
    else
        *out = path;
    return err;
}

/* The two ends of a checkpoint's names: whoever may write these may write all of it. */
static trn_err check_prefix(trn_kctx *k, const char *prefix)
{
    char *index = trn_bundle_index_name(prefix), *data = trn_bundle_data_name(prefix, 0, 1);
    trn_err err = trn_k_check_path(k, index);
    if (!err)
        err = trn_k_check_path(k, data);
    free(index);
    free(data);
    return err;
}

static trn_err prefix_in(char **out, trn_kctx *k, int i, const char *what)
{
    char *prefix;
    TRN_TRY(path_in(&prefix, k, i, what));
    trn_err err = check_prefix(k, prefix);
    if (err)
        free(prefix);
    else
        *out = prefix;
    return err;
}

typedef struct text {
    const char *p;
    size_t n;
} text;

static text str_in(const trn_kctx *k, int input, int64_t i)
{
    text t;
    t.p = trn_tensor_str_at(trn_in(k, input), i, &t.n);
    return t;
}

static trn_err check_names(const trn_kctx *k, int64_t wanted)
{
    const trn_tensor *names = trn_in(k, 1), *slices = trn_in(k, 2);
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(names->shape.rank == 1 && slices->shape.rank == 1,
                  "Input tensor_names and shape_and_slices should be an 1-D tensors, got %s and %s instead.",
                  trn_shape_text(a, &names->shape), trn_shape_text(b, &slices->shape));
    TRN_CHECK_ARG(names->count == slices->count,
                  "tensor_names and shape_and_slices have different number of elements: %" PRId64 " vs. %" PRId64,
                  names->count, slices->count);
    TRN_CHECK_ARG(names->count == wanted, "Got %" PRId64 " tensor names but %" PRId64 " tensors.", names->count,
                  wanted);
    return TRN_OK;
}

/* What shape_and_slices says about a tensor to save: nothing, or that it is that slice of a larger one. */
static trn_err slice_of(trn_shape *full, trn_slicespec *slice, text spec, const trn_tensor *t)
{
    *full = t->shape;
    *slice = trn_slicespec_full(t->shape.rank);
    if (!spec.n)
        return TRN_OK;
    trn_shape shape;
    TRN_TRY(trn_slicespec_parse(full, slice, spec.p, spec.n));
    TRN_TRY(trn_slicespec_shape(&shape, slice, full));
    char a[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(
        trn_shape_eq(&shape, &t->shape),
        "Slice in shape_and_slice specification does not match the shape of the tensor to save: %.*s, tensor: %s",
        (int)spec.n, spec.p, trn_shape_text(a, &t->shape));
    return TRN_OK;
}

/* ---- version 2 --------------------------------------------------------------------------------------------------- */

static trn_err save_all(trn_kctx *k, trn_bundle_writer *w)
{
    for (int i = 3; i < k->n_in; i++) {
        text name = str_in(k, 1, i - 3);
        trn_shape full;
        trn_slicespec slice;
        TRN_TRY(slice_of(&full, &slice, str_in(k, 2, i - 3), trn_in(k, i)));
        TRN_TRY(trn_bundle_add_slice(w, name.p, name.n, &full, &slice, trn_in(k, i)));
    }
    return TRN_OK;
}

static trn_err save_v2(trn_kctx *k)
{
    TRN_TRY(check_names(k, k->n_in - 3));
    char *prefix;
    TRN_TRY(prefix_in(&prefix, k, 0, "prefix"));
    trn_bundle_writer *w;
    trn_err err = trn_bundle_writer_open(&w, prefix);
    free(prefix);
    TRN_TRY(err);
    err = save_all(k, w);
    if (!err)
        return trn_bundle_finish(w);
    trn_bundle_abort(w);
    return err;
}

/* Both versions of checkpoints, behind one pair of functions. */
typedef struct source {
    trn_bundle *v2;
    trn_v1 *v1;
} source;

static trn_err allowed(void *arg, const char *path) { return trn_k_check_path(arg, path); }

static trn_err source_open(source *out, trn_kctx *k, const char *prefix)
{
    *out = (source){0};
    char *index = trn_bundle_index_name(prefix);
    bool v2 = trn_path_exists(index);
    free(index);
    return v2 ? trn_bundle_open(&out->v2, prefix) : trn_v1_open(&out->v1, prefix, allowed, k);
}

static void source_close(source *s)
{
    trn_bundle_close(s->v2);
    trn_v1_close(s->v1);
}

static trn_err source_find(trn_dtype *dtype, trn_shape *shape, source *s, text name)
{
    return s->v2 ? trn_bundle_find(dtype, shape, s->v2, name.p, name.n)
                 : trn_v1_find(dtype, shape, s->v1, name.p, name.n);
}

static trn_err source_read(trn_tensor **out, source *s, text name, const trn_slicespec *slice)
{
    return s->v2 ? trn_bundle_read_slice(out, s->v2, name.p, name.n, slice)
                 : trn_v1_read(out, s->v1, name.p, name.n, slice);
}

static trn_err restore_one(trn_kctx *k, int i, source *s, text name, text spec)
{
    trn_dtype dtype;
    trn_shape have;
    TRN_TRY(source_find(&dtype, &have, s, name));
    trn_slicespec slice = trn_slicespec_full(have.rank);
    if (spec.n) {
        trn_shape full;
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_TRY(trn_slicespec_parse(&full, &slice, spec.p, spec.n));
        TRN_CHECK_ARG(
            trn_shape_eq(&full, &have),
            "tensor_name = %.*s; shape in shape_and_slice spec %s does not match the shape stored in checkpoint: %s",
            (int)name.n, name.p, trn_shape_text(a, &full), trn_shape_text(b, &have));
    }
    trn_tensor *t;
    TRN_TRY(source_read(&t, s, name, &slice));
    trn_out_set(k, i, t);
    return TRN_OK;
}

/* All names are there and have the dtypes that are asked for, before anything is read. */
static trn_err check_dtypes(trn_kctx *k, source *s)
{
    trn_sb wrong = {0};
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < k->n_out; i++) {
        text name = str_in(k, 1, i);
        trn_dtype dtype;
        trn_shape shape;
        err = source_find(&dtype, &shape, s, name);
        if (!err && dtype != k->node->out_types[i])
            trn_sb_addf(&wrong, "%stensor_name = %.*s; expected dtype %s does not equal original dtype %s",
                        wrong.n ? "\n" : "", (int)name.n, name.p, trn_dtype_name(k->node->out_types[i]),
                        trn_dtype_name(dtype));
    }
    if (!err && wrong.n)
        err = TRN_BAD("%s", wrong.p);
    trn_sb_fini(&wrong);
    return err;
}

static trn_err restore_v2(trn_kctx *k)
{
    TRN_TRY(check_names(k, k->n_out));
    char *prefix;
    TRN_TRY(prefix_in(&prefix, k, 0, "prefix"));
    source s;
    trn_err err = source_open(&s, k, prefix);
    if (!err)
        err = check_dtypes(k, &s);
    for (int i = 0; !err && i < k->n_out; i++)
        err = restore_one(k, i, &s, str_in(k, 1, i), str_in(k, 2, i));
    source_close(&s);
    free(prefix);
    return err;
}

static trn_err merge_prefixes(trn_kctx *k, char **prefix, int n, const char *to)
{
    for (int i = 0; i < n; i++) {
        TRN_TRY(path_at(&prefix[i], trn_in(k, 0), i));
        TRN_TRY(check_prefix(k, prefix[i]));
    }
    TRN_TRY(trn_bundle_merge((const char *const *)prefix, n, to, trn_attr_bool(k->node, "allow_missing_files")));
    if (!trn_attr_bool(k->node, "delete_old_dirs"))
        return TRN_OK;
    char *keep = trn_path_dir(to);
    for (int i = 0; i < n; i++) {
        char *dir = trn_path_dir(prefix[i]);
        if (strcmp(dir, keep) != 0)
            (void)rmdir(trn_local_path(dir)); /* only when it is empty */
        free(dir);
    }
    free(keep);
    return TRN_OK;
}

static trn_err merge_v2(trn_kctx *k)
{
    const trn_tensor *from = trn_in(k, 0);
    char a[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(from->shape.rank == 1, "Input checkpoint_prefixes should be an 1-D tensor, got %s instead.",
                  trn_shape_text(a, &from->shape));
    TRN_CHECK_ARG(trn_in(k, 1)->shape.rank == 0, "Input destination_prefix should be a scalar tensor, got %s instead.",
                  trn_shape_text(a, &trn_in(k, 1)->shape));
    char *to;
    TRN_TRY(prefix_in(&to, k, 1, "destination_prefix"));
    char **prefix = trn_xalloc(((size_t)from->count + 1) * sizeof *prefix);
    trn_err err = merge_prefixes(k, prefix, (int)from->count, to);
    for (int64_t i = 0; i < from->count; i++)
        free(prefix[i]);
    free(prefix);
    free(to);
    return err;
}

/* ---- version 1 --------------------------------------------------------------------------------------------------- */

typedef struct order {
    text name;
    int i;
} order;

static int by_name(const void *a, const void *b)
{
    const order *x = a, *y = b;
    int c = memcmp(x->name.p, y->name.p, TRN_MIN(x->name.n, y->name.n));
    if (!c)
        c = (x->name.n > y->name.n) - (x->name.n < y->name.n);
    return c ? c : x->i - y->i;
}

static trn_err save_v1_all(trn_kctx *k, trn_v1_writer *w, int fixed)
{
    int n = k->n_in - fixed;
    order *o = trn_xalloc((size_t)n * sizeof *o);
    for (int i = 0; i < n; i++)
        o[i] = (order){str_in(k, 1, i), i};
    qsort(o, (size_t)n, sizeof *o, by_name);
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < n; i++) {
        const trn_tensor *t = trn_in(k, fixed + o[i].i);
        trn_shape full;
        trn_slicespec slice;
        err = slice_of(&full, &slice, fixed == 3 ? str_in(k, 2, o[i].i) : (text){0}, t);
        if (!err)
            err = trn_v1_add(w, o[i].name.p, o[i].name.n, &full, &slice, t);
    }
    free(o);
    return err;
}

static trn_err save_v1(trn_kctx *k)
{
    int fixed = strcmp(k->node->op, "SaveSlices") == 0 ? 3 : 2;
    int64_t n = trn_in(k, 1)->count;
    TRN_CHECK_ARG(n == k->n_in - fixed,
                  "Expected totally %" PRId64
                  " inputs as input #1 (which is a string tensor of saved names) contains %" PRId64
                  " names, but received %d inputs",
                  n + fixed, n, k->n_in);
    if (fixed == 3)
        TRN_CHECK_ARG(trn_in(k, 2)->count == n,
                      "Expected %" PRId64 " elements for the tensor shapes and slices but got %" PRId64, n,
                      trn_in(k, 2)->count);
    char *path;
    TRN_TRY(path_in(&path, k, 0, "filename"));
    trn_v1_writer *w = trn_v1_writer_new(path);
    free(path);
    trn_err err = save_v1_all(k, w, fixed);
    if (!err)
        return trn_v1_finish(w);
    trn_v1_abort(w);
    return err;
}

static trn_err restore_v1(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 1)->count == 1 && (k->n_in < 3 || trn_in(k, 2)->count == 1),
                  "One tensor name, and one shape_and_slice, wanted");
    char *pattern;
    TRN_TRY(path_in(&pattern, k, 0, "file_pattern"));
    source s = {0};
    trn_err err = trn_v1_open(&s.v1, pattern, allowed, k);
    text name = str_in(k, 1, 0);
    trn_dtype dtype;
    trn_shape shape;
    if (!err)
        err = source_find(&dtype, &shape, &s, name);
    if (!err && dtype != k->node->out_types[0])
        err = TRN_BAD("Expected to restore a tensor of type %s, got a tensor of type %s instead: tensor_name = %.*s",
                      trn_dtype_name(k->node->out_types[0]), trn_dtype_name(dtype), (int)name.n, name.p);
    if (!err)
        err = restore_one(k, 0, &s, name, k->n_in == 3 ? str_in(k, 2, 0) : (text){0});
    source_close(&s);
    free(pattern);
    return err;
}

/* ---- whole files, names of files ---------------------------------------------------------------------------------- */

static trn_err out_string(trn_kctx *k, TRN_OWN char *s, size_t n)
{
    trn_tensor *t = trn_tensor_str(s, n);
    free(s);
    if (!t)
        return trn_err_oom();
    trn_out_set(k, 0, t);
    return TRN_OK;
}

static trn_err check_scalars(const trn_kctx *k)
{
    for (int i = 0; i < k->n_in; i++) {
        char a[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 0, "%s must be a scalar, got shape %s", k->node->def->in[i].name,
                      trn_shape_text(a, &trn_in(k, i)->shape));
    }
    return TRN_OK;
}

static trn_err sharded_filename(trn_kctx *k)
{
    TRN_TRY(check_scalars(k));
    text base = str_in(k, 0, 0);
    trn_sb s = {0};
    trn_sb_add(&s, base.p, base.n);
    if (k->n_in == 3)
        trn_sb_addf(&s, "-%05d-of-%05d", TRN_DATA(trn_in(k, 1), int32_t)[0], TRN_DATA(trn_in(k, 2), int32_t)[0]);
    else
        trn_sb_addf(&s, "-\?\?\?\?\?-of-%05d", TRN_DATA(trn_in(k, 1), int32_t)[0]);
    return out_string(k, s.p, s.n);
}

static trn_err read_file(trn_kctx *k)
{
    TRN_TRY(check_scalars(k));
    char *path;
    TRN_TRY(path_in(&path, k, 0, "filename"));
    trn_infile f;
    trn_err err = trn_infile_open(&f, path);
    free(path);
    TRN_TRY(err);
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    err = f.size > UINT32_MAX
              ? trn_errorf(TRN_RESOURCE_EXHAUSTED, "%s has %" PRIu64 " bytes: too many for one string", f.path, f.size)
              : trn_out_new(&t, k, 0, TRN_STRING, &scalar);
    char *p;
    if (!err)
        err = trn_str_alloc(&p, &TRN_DATA_MUT(t, trn_str)[0], (size_t)f.size);
    if (!err)
        err = trn_infile_read(&f, 0, p, (size_t)f.size);
    trn_infile_close(&f);
    return err;
}

static trn_err make_dirs(const char *dir)
{
    if (trn_path_exists(dir))
        return TRN_OK;
    char *up = trn_path_dir(dir);
    trn_err err = make_dirs(up);
    free(up);
    return err ? err : trn_path_mkdir(dir);
}

static trn_err write_file(trn_kctx *k)
{
    TRN_TRY(check_scalars(k));
    char *path;
    TRN_TRY(path_in(&path, k, 0, "filename"));
    text contents = str_in(k, 1, 0);
    char *dir = trn_path_dir(path);
    trn_outfile f = {.fd = -1};
    trn_err err = make_dirs(dir);
    if (!err)
        err = trn_outfile_open(&f, path);
    if (!err)
        err = trn_outfile_write(&f, contents.p, contents.n);
    if (!err)
        err = trn_outfile_commit(&f);
    trn_outfile_abort(&f);
    free(dir);
    free(path);
    return err;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static trn_err matching(trn_kctx *k, char ***out, int *n_out)
{
    const trn_tensor *in = trn_in(k, 0);
    int cap = 0;
    for (int64_t i = 0; i < in->count; i++) {
        char *pattern, **found = NULL;
        int n = 0;
        TRN_TRY(path_at(&pattern, in, i));
        trn_err err = trn_check_scheme(pattern);
        if (!err)
            err = trn_path_glob(&found, &n, pattern);
        free(pattern);
        for (int j = 0; j < n; j++) {
            if (!err)
                err = trn_k_check_path(k, found[j]);
            TRN_PUSH(*out, *n_out, cap, found[j]);
        }
        free(found);
        TRN_TRY(err);
    }
    return TRN_OK;
}

static trn_err matching_files(trn_kctx *k)
{
    char a[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_in(k, 0)->shape.rank <= 1, "Input patterns tensor must be scalar or vector, but had shape: %s",
                  trn_shape_text(a, &trn_in(k, 0)->shape));
    char **path = NULL;
    int n = 0;
    trn_err err = matching(k, &path, &n);
    if (!err) {
        if (n)
            qsort(path, (size_t)n, sizeof *path, by_text);
        trn_shape s = trn_shape_vector(n);
        trn_tensor *t;
        err = trn_out_new(&t, k, 0, TRN_STRING, &s);
        for (int i = 0; !err && i < n; i++)
            err = trn_tensor_str_put(t, i, path[i], strlen(path[i]));
    }
    for (int i = 0; i < n; i++)
        free(path[i]);
    free(path);
    return err;
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

static trn_err want_rank(const trn_shctx *s, int i, int rank)
{
    TRN_CHECK_ARG(s->in[i].rank < 0 || s->in[i].rank == rank, "input %d must have rank %d, not %d", i, rank,
                  s->in[i].rank);
    return TRN_OK;
}

static trn_err sh_save(trn_shctx *s)
{
    TRN_TRY(want_rank(s, 0, 0));
    return want_rank(s, 1, 1);
}

static trn_err sh_restore(trn_shctx *s)
{
    TRN_TRY(want_rank(s, 0, 0));
    TRN_TRY(want_rank(s, 1, 1));
    TRN_TRY(want_rank(s, 2, 1));
    const trn_tensor *spec = s->value ? s->value[2] : NULL;
    if (!spec || spec->dtype != TRN_STRING)
        return TRN_OK;
    TRN_CHECK_ARG(spec->count == s->n_out, "The number of shape_and_slice doesn't match tensor outputs.");
    for (int i = 0; i < s->n_out; i++) {
        size_t n;
        const char *p = trn_tensor_str_at(spec, i, &n);
        trn_shape full;
        trn_slicespec slice;
        if (!n)
            continue;
        TRN_TRY(trn_slicespec_parse(&full, &slice, p, n));
        TRN_TRY(trn_slicespec_shape(&s->out[i], &slice, &full));
    }
    return TRN_OK;
}

static trn_err sh_merge(trn_shctx *s)
{
    TRN_TRY(want_rank(s, 0, 1));
    return want_rank(s, 1, 0);
}

static trn_err sh_scalars(trn_shctx *s)
{
    for (int i = 0; i < s->n_in; i++)
        TRN_TRY(want_rank(s, i, 0));
    return trn_sh_scalar(s);
}

static trn_err sh_files(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[0].rank <= 1, "patterns must be a scalar or a vector");
    s->out[0] = trn_shape_vector(-1);
    return TRN_OK;
}

#define DISK (TRN_OP_DISK | TRN_OP_STATEFUL)

const trn_op trn_ops_ckpt[] = {
    {"SaveV2", "prefix:str, tensor_names:str, shape_and_slices:str, tensors:dtypes -> ; dtypes:list(type)>=1", sh_save,
     save_v2, DISK},
    {"RestoreV2", "prefix:str, tensor_names:str, shape_and_slices:str -> tensors:dtypes; dtypes:list(type)>=1",
     sh_restore, restore_v2, DISK},
    {"MergeV2Checkpoints",
     "checkpoint_prefixes:str, destination_prefix:str -> ; delete_old_dirs:bool=true, allow_missing_files:bool=false",
     sh_merge, merge_v2, DISK},
    {"Save", "filename:str, tensor_names:str, data:T -> ; T:list(type)>=1", sh_save, save_v1, DISK},
    {"SaveSlices", "filename:str, tensor_names:str, shapes_and_slices:str, data:T -> ; T:list(type)>=1", sh_save,
     save_v1, DISK},
    {"Restore", "file_pattern:str, tensor_name:str -> tensor:dt; dt:type, preferred_shard:int=-1", trn_sh_unknown,
     restore_v1, DISK},
    {"RestoreSlice",
     "file_pattern:str, tensor_name:str, shape_and_slice:str -> tensor:dt; dt:type, preferred_shard:int=-1",
     trn_sh_unknown, restore_v1, DISK},
    {"ShardedFilename", "basename:str, shard:i32, num_shards:i32 -> filename:str", sh_scalars, sharded_filename,
     TRN_OP_CHEAP},
    {"ShardedFilespec", "basename:str, num_shards:i32 -> filename:str", sh_scalars, sharded_filename, TRN_OP_CHEAP},
    {"ReadFile", "filename:str -> contents:str", sh_scalars, read_file, DISK},
    {"WriteFile", "filename:str, contents:str -> ", sh_scalars, write_file, DISK},
    {"MatchingFiles", "pattern:str -> filenames:str", sh_files, matching_files, DISK},
    {0},
};
