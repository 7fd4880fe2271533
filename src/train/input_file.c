/* Arrays that stay in their files: a batch is read row by row into its tensors when it is wanted, so that data of any size is trained on in the memory of
 * a few batches. Nothing is mapped: what is mapped counts as the program's memory, and a file that is cut off under a map kills it. */
#include "train/input_int.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "ckpt/crc32c.h"
#include "ckpt/record.h"
#include "tensor/tensor.h"

/* Labels and the like: to keep them costs less than to fetch each by a read of its own. */
#define HELD_ROW 32
#define HELD_BYTES (4 << 20)
#define HEADER_MAX (64 << 10) /* bytes of a .npy header; numpy writes 128 */

/* ---- what a file holds --------------------------------------------------------------------------------------------- */

typedef struct array_file {
    trn_infile f;
    trn_dtype dtype;
    trn_shape shape;  /* of all of it */
    uint64_t at;      /* the first example */
    int64_t per_row;  /* elements of an example */
    size_t row_bytes;
    size_t swap;      /* bytes of a number whose order is to be turned; 0: none */
    char *held;       /* all of it, when that is little; else NULL */
} array_file;

/* Numbers in memory order; complex ones are two. */
static size_t number_size(trn_dtype t) { return trn_dtype_size(t) / (t == TRN_COMPLEX64 || t == TRN_COMPLEX128 ? 2 : 1); }

/* A Python literal, as numpy writes the header: {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), } */
typedef struct literal {
    const char *p, *end;
} literal;

static void skip_spaces(literal *l)
{
    while (l->p < l->end && isspace((unsigned char)*l->p))
        l->p++;
}

static bool take(literal *l, char c)
{
    skip_spaces(l);
    if (l->p == l->end || *l->p != c)
        return false;
    l->p++;
    return true;
}

static bool take_word(literal *l, const char *word)
{
    size_t n = strlen(word);
    skip_spaces(l);
    if ((size_t)(l->end - l->p) < n || memcmp(l->p, word, n))
        return false;
    l->p += n;
    return true;
}

static bool take_text(literal *l, char *out, size_t room)
{
    char quote = '\'';
    if (!take(l, quote) && !take(l, quote = '"'))
        return false;
    size_t n = 0;
    for (; l->p < l->end && *l->p != quote; l->p++)
        if (n + 1 < room)
            out[n++] = *l->p;
    out[n] = 0;
    return take(l, quote);
}

static bool take_shape(literal *l, trn_shape *out)
{
    *out = (trn_shape){0};
    if (!take(l, '('))
        return false;
    while (!take(l, ')')) {
        int64_t v = 0;
        skip_spaces(l);
        const char *begin = l->p;
        for (; l->p < l->end && isdigit((unsigned char)*l->p); l->p++)
            if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *l->p - '0', &v))
                return false;
        if (l->p == begin || out->rank == TRN_MAX_RANK)
            return false;
        take(l, 'L'); /* Python 2 */
        out->dim[out->rank++] = v;
        if (!take(l, ',')) {
            if (!take(l, ')'))
                return false;
            break;
        }
    }
    return true;
}

/* numpy's "<f4", "|u1", ">i8". */
static bool parse_descr(array_file *a, const char *descr)
{
    static const struct {
        const char *name;
        trn_dtype dtype;
    } kinds[] = {
        {"f4", TRN_FLOAT}, {"f8", TRN_DOUBLE}, {"f2", TRN_HALF}, {"i1", TRN_INT8}, {"i2", TRN_INT16}, {"i4", TRN_INT32}, {"i8", TRN_INT64}, {"u1", TRN_UINT8},
        {"u2", TRN_UINT16}, {"u4", TRN_UINT32}, {"u8", TRN_UINT64}, {"b1", TRN_BOOL}, {"c8", TRN_COMPLEX64}, {"c16", TRN_COMPLEX128},
    };
    if (!descr[0] || !strchr("<>|=", descr[0]))
        return false;
    for (size_t i = 0; i < TRN_COUNTOF(kinds); i++)
        if (strcmp(descr + 1, kinds[i].name) == 0) {
            a->dtype = kinds[i].dtype;
            a->swap = descr[0] == '>' ? number_size(a->dtype) : 0;
            return true;
        }
    return false;
}

static trn_err npy_header(array_file *a)
{
    uint8_t head[12];
    char *text, descr[64] = "", key[32];
    uint32_t n;
    const char *path = a->f.path;
    if (a->f.size < sizeof head)
        return trn_errorf(TRN_DATA_LOSS, "%s ends inside its .npy header", path);
    TRN_TRY(trn_infile_read(&a->f, 0, head, sizeof head));
    size_t begin = head[6] == 1 ? 10 : 12;
    n = (uint32_t)head[8] | (uint32_t)head[9] << 8;
    if (head[6] != 1)
        n |= (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24;
    if (head[6] < 1 || head[6] > 3 || n > HEADER_MAX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: a .npy file of version %d with a header of %" PRIu32 " bytes; versions 1 to 3 can be read", path, head[6], n);
    if (n > a->f.size - begin)
        return trn_errorf(TRN_DATA_LOSS, "%s ends inside its .npy header", path);
    text = trn_xalloc((size_t)n + 1);
    trn_err err = trn_infile_read(&a->f, begin, text, n);
    literal l = {text, text + n};
    bool ok = !err && take(&l, '{'), fortran = false, typed = false, shaped = false;
    while (ok && !take(&l, '}')) {
        ok = take_text(&l, key, sizeof key) && take(&l, ':');
        if (ok && strcmp(key, "descr") == 0) {
            if (!(ok = take_text(&l, descr, sizeof descr)))
                err = trn_errorf(TRN_INVALID_ARGUMENT, "%s holds records of several fields; plain numbers can be read", path);
            typed = ok;
        } else if (ok && strcmp(key, "fortran_order") == 0)
            ok = (fortran = take_word(&l, "True")) || take_word(&l, "False");
        else if (ok && strcmp(key, "shape") == 0)
            ok = shaped = take_shape(&l, &a->shape);
        else
            ok = false;
        if (ok && !take(&l, ',')) {
            ok = take(&l, '}');
            break;
        }
    }
    free(text);
    if (!err && (!ok || !typed || !shaped))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s: its .npy header cannot be understood", path);
    else if (!err && fortran)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s holds its array by columns (fortran_order); save it with numpy.ascontiguousarray", path);
    else if (!err && !parse_descr(a, descr))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s holds elements of numpy's kind \"%s\"; numbers and bools can be read", path, descr);
    a->at = begin + n;
    return err;
}

static uint32_t big32(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static trn_err idx_header(array_file *a, uint8_t type, uint8_t rank)
{
    static const trn_dtype types[] = {[8] = TRN_UINT8, [9] = TRN_INT8, [11] = TRN_INT16, [12] = TRN_INT32, [13] = TRN_FLOAT, [14] = TRN_DOUBLE};
    uint8_t dims[4 * TRN_MAX_RANK];
    a->dtype = type < TRN_COUNTOF(types) ? types[type] : TRN_INVALID;
    if (!a->dtype || rank > TRN_MAX_RANK)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s begins as an IDX file, but with element type %d and %d dimensions", a->f.path, type, rank);
    a->swap = trn_dtype_size(a->dtype);
    a->at = 4 + 4 * (uint64_t)rank;
    if (a->at > a->f.size)
        return trn_errorf(TRN_DATA_LOSS, "%s ends inside its IDX header", a->f.path);
    TRN_TRY(trn_infile_read(&a->f, 4, dims, 4 * (size_t)rank));
    a->shape.rank = rank;
    for (int i = 0; i < rank; i++)
        a->shape.dim[i] = big32(dims + 4 * i);
    return TRN_OK;
}

static trn_err packed(const char *path)
{
    return trn_errorf(TRN_INVALID_ARGUMENT, "%s is compressed (gzip), and single examples cannot be read from it; unpack it first", path);
}

static trn_err plain_header(array_file *a, const trn_array_file *file)
{
    char text[TRN_SHAPE_TEXT];
    a->dtype = file->dtype;
    a->shape.rank = 1;
    if (!trn_dtype_is_plain(a->dtype) || !trn_dtype_size(a->dtype))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s as plain %s: numbers and bools can be read", a->f.path, trn_dtype_name(a->dtype));
    if (file->skip < 0 || (uint64_t)file->skip > a->f.size)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s has %" PRIu64 " bytes, of which %lld are to be left out", a->f.path, a->f.size, (long long)file->skip);
    a->at = (uint64_t)file->skip;
    int64_t n = 1;
    if (file->example) {
        if (file->example->rank < 0 || file->example->rank >= TRN_MAX_RANK)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: an example of %s", a->f.path, trn_shape_text(text, file->example));
        TRN_TRY(trn_shape_count(&n, file->example));
        a->shape.rank = file->example->rank + 1;
        memcpy(a->shape.dim + 1, file->example->dim, (size_t)file->example->rank * sizeof *a->shape.dim);
    }
    uint64_t bytes = a->f.size - a->at, row;
    if (n < 1 || __builtin_mul_overflow((uint64_t)n, trn_dtype_size(a->dtype), &row) || bytes % row)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: its %" PRIu64 " bytes do not make whole examples of %lld %s", a->f.path, bytes, (long long)n, trn_dtype_name(a->dtype));
    a->shape.dim[0] = (int64_t)(bytes / row);
    return TRN_OK;
}

static trn_err array_check(array_file *a, const trn_array_file *file)
{
    uint8_t magic[6] = {0};
    char text[TRN_SHAPE_TEXT];
    int64_t count;
    const char *path = a->f.path;
    TRN_TRY(trn_infile_read(&a->f, 0, magic, (size_t)TRN_MIN(a->f.size, sizeof magic)));
    if (file->dtype)
        TRN_TRY(plain_header(a, file));
    else if (memcmp(magic, "\x93NUMPY", 6) == 0)
        TRN_TRY(npy_header(a));
    else if (!magic[0] && !magic[1] && magic[2] && a->f.size >= 4)
        TRN_TRY(idx_header(a, magic[2], magic[3]));
    else if (magic[0] == 0x1f && magic[1] == 0x8b)
        return packed(path);
    else
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s is neither a .npy nor an IDX file; for plain numbers, say of which type", path);
    TRN_TRY(trn_shape_count(&count, &a->shape));
    a->per_row = 1;
    for (int i = 1; i < a->shape.rank; i++) /* examples of no element at all may count up to anything */
        if (__builtin_mul_overflow(a->per_row, a->shape.dim[i], &a->per_row))
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: an array of %s", path, trn_shape_text(text, &a->shape));
    uint64_t have = a->f.size - a->at, want;
    if (__builtin_mul_overflow((uint64_t)count, trn_dtype_size(a->dtype), &want) || want > have)
        return trn_errorf(TRN_DATA_LOSS, "%s is cut off: its %s of %s needs more than the %" PRIu64 " bytes behind the header", path, trn_shape_text(text, &a->shape),
                          trn_dtype_name(a->dtype), have);
    if (want < have)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: %" PRIu64 " bytes follow its %s of %s", path, have - want, trn_shape_text(text, &a->shape), trn_dtype_name(a->dtype));
    if (a->swap == 1)
        a->swap = 0;
    a->row_bytes = (size_t)a->per_row * trn_dtype_size(a->dtype);
    return TRN_OK;
}

static void array_close(array_file *a)
{
    trn_infile_close(&a->f);
    free(a->held);
}

static trn_err array_open(array_file *a, const trn_array_file *file)
{
    *a = (array_file){.f.fd = -1};
    if (!file->path)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: a file without a name");
    TRN_TRY(trn_infile_open(&a->f, file->path));
    trn_err err = array_check(a, file);
    if (err)
        trn_infile_close(&a->f);
    return err;
}

/* What the file has becomes what memory has. */
static void put_right(const array_file *a, void *p, size_t bytes)
{
    uint8_t *at = p;
    if (a->dtype == TRN_BOOL)
        for (size_t i = 0; i < bytes; i++)
            at[i] = at[i] != 0;
    for (size_t i = 0; a->swap && i < bytes; i += a->swap)
        for (size_t k = 0; k < a->swap / 2; k++) {
            uint8_t x = at[i + k];
            at[i + k] = at[i + a->swap - 1 - k];
            at[i + a->swap - 1 - k] = x;
        }
}

/* Keeps what is little. */
static trn_err hold(array_file *a)
{
    size_t bytes = (size_t)a->shape.dim[0] * a->row_bytes; /* no more than the file has */
    if (a->row_bytes > HELD_ROW || bytes > HELD_BYTES)
        return TRN_OK;
    a->held = trn_xalloc(bytes + 1);
    return trn_infile_read(&a->f, a->at, a->held, bytes);
}

/* Neighbours are read at once. */
static trn_err read_rows(trn_tensor **out, array_file *a, const int64_t *row, int64_t n)
{
    trn_tensor *t;
    trn_shape shape = a->shape;
    shape.dim[0] = n;
    TRN_TRY(trn_tensor_new(&t, a->dtype, &shape));
    char *to = trn_tensor_data_mut(t);
    trn_err err = TRN_OK;
    for (int64_t i = 0, k; i < n && a->row_bytes && !err; i = k) {
        for (k = i + 1; k < n && row[k] == row[k - 1] + 1;)
            k++;
        if (a->held) {
            memcpy(to + (size_t)i * a->row_bytes, a->held + (size_t)row[i] * a->row_bytes, (size_t)(k - i) * a->row_bytes);
            continue;
        }
        err = trn_infile_read(&a->f, a->at + (uint64_t)row[i] * a->row_bytes, to + (size_t)i * a->row_bytes, (size_t)(k - i) * a->row_bytes);
        if (err)
            err = trn_err_wrap(err, "example %lld", (long long)row[i]);
    }
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    put_right(a, to, (size_t)n * a->row_bytes);
    *out = t;
    return TRN_OK;
}

trn_err trn_array_file_read(trn_tensor **out, const trn_array_file *file)
{
    array_file a;
    trn_tensor *t;
    TRN_TRY(array_open(&a, file));
    trn_err err = trn_tensor_new(&t, a.dtype, &a.shape);
    if (!err) {
        size_t bytes = trn_tensor_bytes(t);
        err = trn_infile_read(&a.f, a.at, trn_tensor_data_mut(t), bytes);
        if (err)
            trn_tensor_unref(t);
        else {
            put_right(&a, trn_tensor_data_mut(t), bytes);
            *out = t;
        }
    }
    array_close(&a);
    return err;
}

trn_err trn_npy_write(const char *path, const trn_tensor *t)
{
    static const char *const kinds[TRN_DTYPE_END] = {
        [TRN_FLOAT] = "<f4", [TRN_DOUBLE] = "<f8", [TRN_HALF] = "<f2", [TRN_INT8] = "|i1", [TRN_INT16] = "<i2", [TRN_INT32] = "<i4", [TRN_INT64] = "<i8",
        [TRN_UINT8] = "|u1", [TRN_UINT16] = "<u2", [TRN_UINT32] = "<u4", [TRN_UINT64] = "<u8", [TRN_BOOL] = "|b1", [TRN_COMPLEX64] = "<c8", [TRN_COMPLEX128] = "<c16",
    };
    if (!kinds[t->dtype])
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: numpy has no kind for %s", path, trn_dtype_name(t->dtype));
    trn_sb s = {0};
    trn_sb_add(&s, "\x93NUMPY\1\0\0\0", 10);
    trn_sb_addf(&s, "{'descr': '%s', 'fortran_order': False, 'shape': (", kinds[t->dtype]);
    for (int i = 0; i < t->shape.rank; i++)
        trn_sb_addf(&s, "%lld%s", (long long)t->shape.dim[i], i == 0 || i + 1 < t->shape.rank ? ", " : "");
    trn_sb_adds(&s, "), }");
    while ((s.n + 1) % 64) /* the array begins at a multiple of 64 */
        trn_sb_adds(&s, " ");
    trn_sb_adds(&s, "\n");
    s.p[8] = (char)((s.n - 10) & 255);
    s.p[9] = (char)((s.n - 10) >> 8);
    trn_outfile f;
    trn_err err = trn_outfile_open(&f, path);
    if (!err) {
        err = trn_outfile_write(&f, s.p, s.n);
        if (!err)
            err = trn_outfile_write(&f, trn_tensor_data(t), trn_tensor_bytes(t));
        if (!err)
            err = trn_outfile_commit(&f);
        else
            trn_outfile_abort(&f);
    }
    trn_sb_fini(&s);
    return err;
}

/* ---- arrays -------------------------------------------------------------------------------------------------------- */

typedef struct files {
    trn_rows rows;
    int n_open;
    array_file file[];
} files;

static void files_free(trn_rows *r)
{
    files *s = (files *)r;
    for (int i = 0; i < s->n_open; i++)
        array_close(&s->file[i]);
    free(s);
}

static trn_err files_read(trn_rows *r, trn_tensor **out, const int64_t *row, int64_t n)
{
    for (int i = 0; i < r->n; i++) {
        trn_err err = read_rows(&out[i], &((files *)r)->file[i], row, n);
        if (err) {
            while (i-- > 0)
                trn_tensor_unref(out[i]);
            return err;
        }
    }
    return TRN_OK;
}

trn_err trn_arrays_open(trn_arrays **out, const trn_array_file *array, int n, const trn_arrays_opts *opts)
{
    char text[TRN_SHAPE_TEXT], first[TRN_SHAPE_TEXT];
    if (n < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: %d files", n);
    files *s = trn_xalloc(sizeof *s + (size_t)n * sizeof *s->file);
    s->rows = (trn_rows){.n = n, .slow = true, .read = files_read, .free = files_free};
    trn_err err = TRN_OK;
    for (; s->n_open < n && !err; s->n_open += !err)
        err = array_open(&s->file[s->n_open], &array[s->n_open]);
    for (int i = 0; i < n && !err; i++)
        if (s->file[i].shape.rank < 1 || !s->file[i].per_row)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "%s holds %s, which is not a row of examples", s->file[i].f.path, trn_shape_text(text, &s->file[i].shape));
        else if (s->file[i].shape.dim[0] != s->file[0].shape.dim[0])
            err = trn_errorf(TRN_INVALID_ARGUMENT, "%s is %s, but %s is %s; the first dimension counts the examples", s->file[i].f.path,
                             trn_shape_text(text, &s->file[i].shape), s->file[0].f.path, trn_shape_text(first, &s->file[0].shape));
    for (int i = 0; i < n && !err; i++)
        err = hold(&s->file[i]);
    if (err) {
        files_free(&s->rows);
        return err;
    }
    s->rows.total = s->file[0].shape.dim[0];
    return trn_arrays__new(out, &s->rows, opts);
}

/* ---- examples in record files -------------------------------------------------------------------------------------- */

typedef struct records {
    trn_rows rows;
    trn_feature_spec *spec; /* names and shapes are ours */
    trn_shape *shape;
    trn_infile *file;
    int n_files;
    int64_t *first; /* number of the first record of a file; n_files + 1 of them */
    uint64_t *at;   /* where each record begins in its file */
    size_t cap;
} records;

static void records_free(trn_rows *r)
{
    records *s = (records *)r;
    for (int i = 0; i < s->n_files; i++)
        trn_infile_close(&s->file[i]);
    for (int i = 0; i < r->n; i++)
        free((char *)(uintptr_t)s->spec[i].name);
    free(s->spec);
    free(s->shape);
    free(s->file);
    free(s->first);
    free(s->at);
    free(s);
}

/* Finds where the records of a file begin: from length to length, with no look at what is in between. */
static trn_err index_file(records *s, trn_infile *f)
{
    uint8_t window[4096];
    uint64_t have = 0, base = 0;
    for (uint64_t at = 0; at < f->size;) {
        uint64_t left = f->size - at, len;
        uint32_t sum;
        if (left < TRN_RECORD_HEAD)
            return trn_errorf(TRN_DATA_LOSS, "%s ends inside a record at %" PRIu64, f->path, at);
        if (at < base || at + TRN_RECORD_HEAD > base + have) {
            base = at;
            have = TRN_MIN(left, sizeof window);
            TRN_TRY(trn_infile_read(f, base, window, (size_t)have));
        }
        if (at == 0 && window[0] == 0x1f && window[1] == 0x8b)
            return packed(f->path);
        const uint8_t *head = window + (at - base);
        memcpy(&len, head, 8);
        memcpy(&sum, head + 8, 4);
        if (!trn_crc32c_ok(sum, trn_crc32c_mask(trn_crc32c(0, head, 8))))
            return trn_errorf(TRN_DATA_LOSS, "%s is damaged, or no TFRecord file: corrupted record at %" PRIu64, f->path, at);
        left -= TRN_RECORD_HEAD;
        if (len > left || left - len < TRN_RECORD_TAIL)
            return trn_errorf(TRN_DATA_LOSS, "%s ends inside a record of %" PRIu64 " bytes at %" PRIu64, f->path, len, at);
        if ((size_t)s->rows.total == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 1024;
            s->at = trn_xrealloc(s->at, s->cap * sizeof *s->at);
        }
        s->at[s->rows.total++] = at;
        at += TRN_RECORD_HEAD + len + TRN_RECORD_TAIL;
    }
    return TRN_OK;
}

/* Example `row` into row k of the batch. */
static trn_err read_example(records *s, trn_tensor **out, trn_tensor **parts, int64_t k, int64_t row)
{
    int low = 0, high = s->n_files;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        *(s->first[mid] <= row ? &low : &high) = mid;
    }
    trn_infile *f = &s->file[low];
    uint64_t at = s->at[row];
    uint8_t *p = NULL;
    size_t n = 0;
    bool found = false;
    TRN_TRY(trn_record_read(&p, &n, &found, f, &at, SIZE_MAX / 2));
    if (!found)
        return trn_errorf(TRN_DATA_LOSS, "%s became shorter while it was read", f->path);
    trn_err err = trn_example_decode(parts, p, n, s->spec, s->rows.n);
    free(p);
    if (err)
        return trn_err_wrap(err, "%s, record %lld", f->path, (long long)(row - s->first[low]));
    for (int i = 0; i < s->rows.n; i++) {
        if (!err)
            err = trn_arrays__copy(out[i], k, parts[i], 0, 1, parts[i]->count);
        trn_tensor_unref(parts[i]);
    }
    return err;
}

static trn_err records_read(trn_rows *r, trn_tensor **out, const int64_t *row, int64_t n)
{
    records *s = (records *)r;
    trn_tensor **parts = trn_xalloc((size_t)r->n * sizeof *parts);
    trn_err err = TRN_OK;
    int made = 0;
    for (; made < r->n && !err; made += !err) {
        trn_shape shape = {.rank = s->shape[made].rank + 1, .dim = {n}};
        memcpy(shape.dim + 1, s->shape[made].dim, (size_t)s->shape[made].rank * sizeof *shape.dim);
        err = trn_tensor_new(&out[made], s->spec[made].dtype, &shape);
    }
    for (int64_t k = 0; k < n && !err; k++)
        err = read_example(s, out, parts, k, row[k]);
    if (err)
        while (made-- > 0)
            trn_tensor_unref(out[made]);
    free(parts);
    return err;
}

trn_err trn_arrays_open_records(trn_arrays **out, const char *const *paths, int n_paths, const trn_feature_spec *specs, int n_specs, const trn_arrays_opts *opts)
{
    if (n_paths < 1 || n_specs < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: %d features of %d record files", n_specs, n_paths);
    for (int i = 0; i < n_specs; i++) {
        char text[TRN_SHAPE_TEXT];
        if (!specs[i].shape || !trn_shape_is_full(specs[i].shape) || specs[i].shape->rank >= TRN_MAX_RANK)
            return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: feature \"%s\" has the shape %s; batches need a known one", specs[i].name,
                              specs[i].shape ? trn_shape_text(text, specs[i].shape) : "<unknown>");
        if (specs[i].dtype != TRN_FLOAT && specs[i].dtype != TRN_INT64 && specs[i].dtype != TRN_STRING)
            return trn_errorf(TRN_INVALID_ARGUMENT, "arrays: feature \"%s\" as %s; float, int64 and string can be read", specs[i].name, trn_dtype_name(specs[i].dtype));
    }
    records *s = trn_xalloc(sizeof *s);
    s->rows = (trn_rows){.n = n_specs, .slow = true, .read = records_read, .free = records_free};
    s->spec = trn_xalloc((size_t)n_specs * sizeof *s->spec);
    s->shape = trn_xalloc((size_t)n_specs * sizeof *s->shape);
    for (int i = 0; i < n_specs; i++) {
        s->shape[i] = *specs[i].shape;
        s->spec[i] = (trn_feature_spec){trn_xstrdup(specs[i].name), specs[i].dtype, &s->shape[i]};
    }
    s->file = trn_xalloc((size_t)n_paths * sizeof *s->file);
    s->first = trn_xalloc(((size_t)n_paths + 1) * sizeof *s->first);
    trn_err err = TRN_OK;
    for (int i = 0; i < n_paths && !err; i++) {
        err = trn_infile_open(&s->file[i], paths[i]);
        if (err)
            break;
        s->n_files++;
        err = index_file(s, &s->file[i]);
        s->first[i + 1] = s->rows.total;
    }
    if (err) {
        records_free(&s->rows);
        return err;
    }
    return trn_arrays__new(out, &s->rows, opts);
}
