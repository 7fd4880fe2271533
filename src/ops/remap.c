/* Warm starts: how the lines of a new vocabulary lie in an old one, and an old matrix read from a checkpoint in the new order. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "ckpt/bundle.h"
#include "ops/kern.h"

/* ---- GenerateVocabRemapping ---------------------------------------------------------------------------------------------- */

typedef struct lines {
    char **p;
    size_t *len;
    int64_t n;
} lines;

static void lines_fini(lines *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->p[i]);
    free(l->p);
    free(l->len);
}

/* At most `limit` lines of a file (all of them when negative), without line ends. */
static trn_err read_lines(lines *out, const char *path, FILE *f, int64_t limit)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int64_t room = 0;
    trn_err err = TRN_OK;
    errno = 0;
    while (!err && (limit < 0 || out->n < limit) && (len = getline(&line, &cap, f)) >= 0) {
        size_t n = 0;
        for (ssize_t i = 0; i < len; i++)
            if (line[i] != '\r' && line[i] != '\n')
                line[n++] = line[i];
        if (!n) {
            err = TRN_BAD("Invalid content in %s: empty line found at line %" PRId64 ".", path, out->n);
            break;
        }
        if (out->n == room) {
            room = room ? 2 * room : 256;
            char **p = realloc(out->p, (size_t)room * sizeof *p);
            out->p = p ? p : out->p;
            size_t *l = realloc(out->len, (size_t)room * sizeof *l);
            out->len = l ? l : out->len;
            if (!p || !l) {
                err = trn_err_oom();
                break;
            }
        }
        out->p[out->n] = trn_xstrndup(line, n);
        out->len[out->n++] = n;
    }
    if (!err && ferror(f))
        err = trn_err_errno(errno, "%s", path);
    free(line);
    return err;
}

static trn_err vocabulary(lines *out, trn_kctx *k, int input, int64_t limit, const char *what)
{
    const trn_tensor *t = trn_in(k, input);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(t), "%s_vocab_file should be a single string, but got shape %s", what, trn_shape_text(text, &t->shape));
    size_t n;
    const char *p = trn_tensor_str_at(t, 0, &n);
    TRN_CHECK_ARG(p && n && !memchr(p, 0, n), "%s vocab filename cannot be empty or hold a zero byte", what);
    char *path = trn_xstrndup(p, n);
    trn_err err = trn_k_check_path(k, path);
    FILE *f = err ? NULL : fopen(trn_local_path(path), "rbe");
    if (!err && !f)
        err = trn_err_errno(errno, "%s", path);
    if (!err)
        err = read_lines(out, path, f, limit);
    if (f)
        fclose(f);
    if (!err && limit >= 0 && out->n < limit)
        err = TRN_BAD("Invalid vocab_size in %s: expected %" PRId64 " but got %" PRId64, path, limit, out->n);
    if (!err && out->n == 0)
        err = trn_errorf(TRN_OUT_OF_RANGE, "%s has no lines", path);
    free(path);
    return err;
}

static trn_err remapping(trn_kctx *k, const lines *now, const lines *old)
{
    int64_t first = trn_attr_int(k->node, "new_vocab_offset"), n = trn_attr_int(k->node, "num_new_vocab");
    TRN_CHECK_ARG(first >= 0 && n >= 0 && first <= now->n && n <= now->n - first,
                  "the new vocabulary has %" PRId64 " lines: its lookup table size must be larger than the last of lines %" PRId64 " + %" PRId64, now->n, first, n);
    trn_tensor *y, *present;
    trn_shape s = trn_shape_vector(n), one = trn_shape_scalar();
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &s));
    TRN_TRY(trn_out_new(&present, k, 1, TRN_INT32, &one));
    trn_map *at = trn_map_new();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < old->n && !err; i++)
        if (trn_map_put(at, old->p[i], old->len[i], (void *)(uintptr_t)(i + 1))) /* 0 is "not there" */
            err = trn_errorf(TRN_FAILED_PRECONDITION, "the old vocabulary has '%.100s' twice, the second time on line %" PRId64, old->p[i], i);
    int32_t found = 0;
    for (int64_t i = 0; i < n && !err; i++) {
        uintptr_t v = (uintptr_t)trn_map_get(at, now->p[first + i], now->len[first + i]);
        TRN_DATA_MUT(y, int64_t)[i] = (int64_t)v - 1;
        found += v != 0;
    }
    TRN_DATA_MUT(present, int32_t)[0] = found;
    trn_map_free(at, NULL);
    return err;
}

static trn_err vocab_remapping(trn_kctx *k)
{
    lines now = {0}, old = {0};
    trn_err err = vocabulary(&now, k, 0, -1, "new");
    if (!err)
        err = vocabulary(&old, k, 1, trn_attr_int(k->node, "old_vocab_size"), "old");
    if (!err)
        err = remapping(k, &now, &old);
    lines_fini(&now);
    lines_fini(&old);
    return err;
}

static trn_err sh_vocab_remapping(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(trn_attr_int(s->node, "num_new_vocab"));
    s->out[1] = trn_shape_scalar();
    return TRN_OK;
}

/* ---- LoadAndRemapMatrix --------------------------------------------------------------------------------------------------- */

/* No old row or column may go to two places: then nobody would know which of the two a gradient belongs to. */
static trn_err check_once(const trn_tensor *to, int64_t old_size, const char *what)
{
    trn_map *seen = trn_map_new();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < to->count && !err; i++) {
        int64_t old = TRN_DATA(to, int64_t)[i];
        if (old < 0)
            continue;
        uintptr_t before = (uintptr_t)trn_map_puti(seen, (uint64_t)old, (void *)(uintptr_t)(i + 1));
        if (before)
            err = trn_errorf(TRN_UNIMPLEMENTED, "Old %s %" PRId64 " is mapped to both new %s %" PRId64 " and %" PRId64, what, old, what, (int64_t)before - 1, i);
        else if (old_size >= 0 && old >= old_size)
            err = TRN_BAD("old %s %" PRId64 " is out of range, the matrix has %" PRId64, what, old, old_size);
    }
    trn_map_free(seen, NULL);
    return err;
}

static trn_err fill_matrix(trn_kctx *k, trn_bundle *b, const char *name, size_t n_name)
{
    const trn_tensor *rows = trn_in(k, 2), *cols = trn_in(k, 3), *init = trn_in(k, 4);
    int64_t n_rows = trn_attr_int(k->node, "num_rows"), n_cols = trn_attr_int(k->node, "num_cols"), most = trn_attr_int(k->node, "max_rows_in_memory");
    char text[TRN_SHAPE_TEXT];
    trn_dtype dtype;
    trn_shape old;
    TRN_TRY(trn_bundle_find(&dtype, &old, b, name, n_name));
    TRN_CHECK_ARG(dtype == TRN_FLOAT, "Tensor %.*s has invalid type %s, float is expected", (int)n_name, name, trn_dtype_name(dtype));
    TRN_CHECK_ARG(old.rank == 2, "Tensor %.*s has shape %s of invalid rank %d, a matrix is expected", (int)n_name, name, trn_shape_text(text, &old), old.rank);
    TRN_CHECK_ARG(cols->count || n_cols == old.dim[1], "Tensor %.*s has shape %s: its columns are not num_cols=%" PRId64, (int)n_name, name,
                  trn_shape_text(text, &old), n_cols);
    TRN_TRY(check_once(rows, old.dim[0], "row"));
    trn_shape s = {.rank = 2, .dim = {n_rows, n_cols}};
    int64_t count, lo = INT64_MAX, hi = -1, used = 0;
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    float *out = TRN_DATA_MUT(y, float);
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t r = TRN_DATA(rows, int64_t)[i];
        lo = r >= 0 && r < lo ? r : lo;
        hi = r > hi ? r : hi;
    }
    for (int64_t at = lo; at <= hi;) { /* piece by piece when memory is short */
        int64_t n = most > 0 && most < hi - at + 1 ? most : hi - at + 1;
        trn_slicespec piece = {.rank = 2, .start = {at, 0}, .length = {n, -1}};
        trn_tensor *t;
        TRN_TRY(trn_bundle_read_slice(&t, b, name, n_name, &piece));
        for (int64_t i = 0; i < n_rows; i++) {
            int64_t r = TRN_DATA(rows, int64_t)[i];
            if (r < at || r >= at + n)
                continue;
            for (int64_t j = 0; j < n_cols; j++) {
                int64_t c = cols->count ? TRN_DATA(cols, int64_t)[j] : j;
                if (c >= 0 && c < old.dim[1])
                    out[i * n_cols + j] = TRN_DATA(t, float)[(r - at) * old.dim[1] + c];
            }
        }
        trn_tensor_unref(t);
        at += n;
    }
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < n_cols; j++) {
            if (TRN_DATA(rows, int64_t)[i] >= 0 && (!cols->count || TRN_DATA(cols, int64_t)[j] >= 0))
                continue;
            TRN_CHECK_ARG(used < init->count, "initializing_values contained %" PRId64 " elements, but more missing values remain", init->count);
            out[i * n_cols + j] = TRN_DATA(init, float)[used++];
        }
    TRN_CHECK_ARG(used == init->count, "initializing_values contained %" PRId64 " elements, but only %" PRId64 " of them were used", init->count, used);
    return TRN_OK;
}

static trn_err load_and_remap(trn_kctx *k)
{
    const trn_tensor *path = trn_in(k, 0), *name = trn_in(k, 1), *rows = trn_in(k, 2), *cols = trn_in(k, 3);
    int64_t n_rows = trn_attr_int(k->node, "num_rows"), n_cols = trn_attr_int(k->node, "num_cols");
    char text[TRN_SHAPE_TEXT];
    for (int i = 2; i < 4; i++)
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, i)), "The %s_remapping tensor must be 1-D, not of shape %s", i == 2 ? "row" : "col",
                      trn_shape_text(text, &trn_in(k, i)->shape));
    TRN_CHECK_ARG(rows->count == n_rows, "Size of row_remapping is %" PRId64 " instead of being equal to num_rows=%" PRId64, rows->count, n_rows);
    TRN_TRY(check_once(rows, -1, "row"));
    TRN_CHECK_ARG(!cols->count || cols->count == n_cols, "Provided col_remapping, but its size is %" PRId64 " instead of being equal to num_cols=%" PRId64,
                  cols->count, n_cols);
    TRN_TRY(check_once(cols, -1, "column"));
    TRN_CHECK_ARG(path->count == 1 && name->count == 1, "The ckpt_path and old_tensor_name tensors must have exactly one element");
    size_t n, n_name;
    const char *p = trn_tensor_str_at(path, 0, &n), *nm = trn_tensor_str_at(name, 0, &n_name);
    TRN_CHECK_ARG(p && n && !memchr(p, 0, n), "An empty file name, or one with a zero byte");
    char *prefix = trn_xstrndup(p, n), *index = trn_bundle_index_name(prefix), *data = trn_bundle_data_name(prefix, 0, 1);
    trn_bundle *b = NULL;
    trn_err err = trn_k_check_path(k, index);
    if (!err)
        err = trn_k_check_path(k, data);
    if (!err)
        err = trn_bundle_open(&b, prefix);
    free(prefix);
    free(index);
    free(data);
    if (!err)
        err = fill_matrix(k, b, nm ? nm : "", n_name);
    trn_bundle_close(b);
    return err;
}

static trn_err sh_load_and_remap(trn_shctx *s)
{
    s->out[0] = (trn_shape){.rank = 2, .dim = {trn_attr_int(s->node, "num_rows"), trn_attr_int(s->node, "num_cols")}};
    return TRN_OK;
}

const trn_op trn_ops_remap[] = {
    {"GenerateVocabRemapping",
     "new_vocab_file:str, old_vocab_file:str -> remapping:i64, num_present:i32; new_vocab_offset:int>=0, num_new_vocab:int>=0, old_vocab_size:int>=-1=-1",
     sh_vocab_remapping, vocab_remapping, TRN_OP_DISK},
    {"LoadAndRemapMatrix",
     "ckpt_path:str, old_tensor_name:str, row_remapping:i64, col_remapping:i64, initializing_values:f32 -> output_matrix:f32; num_rows:int>=0, "
     "num_cols:int>=1, max_rows_in_memory:int=-1",
     sh_load_and_remap, load_and_remap, TRN_OP_DISK | TRN_OP_STATEFUL},
    {0},
};
