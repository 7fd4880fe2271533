/* CSVDataset: records of a file with separators, the wanted columns as tensors of their types. A record ends at a line end outside quotes. */
#include <stdlib.h>

#include "ckpt/stream.h"
#include "ops/data.h"

typedef struct csv {
    trn_ds d;
    int64_t n;
    char **name;
    trn_compression c;
    size_t chunk;
    bool header, quotes;
    char delim;
    char *na;
    int n_out;
    const trn_dtype *type; /* of the element */
    trn_tensor **or_else;  /* a scalar or vector of one: what an empty field means; else: a field must not be empty */
    int64_t n_select, n_exclude;
    int64_t *select, *exclude; /* columns, ascending */
} csv;

typedef struct csv_it {
    trn_it it;
    int64_t file;
    trn_stream *s;
    bool skip_header;
} csv_it;

static void csv_free(trn_ds *d)
{
    csv *f = (csv *)d;
    for (int64_t i = 0; i < f->n; i++)
        free(f->name[i]);
    for (int i = 0; f->or_else && i < f->n_out; i++)
        trn_tensor_unref(f->or_else[i]);
    free(f->name);
    free(f->na);
    free(f->or_else);
    free(f->select);
    free(f->exclude);
}

static void csv_stop(trn_it *it) { trn_stream_close(((csv_it *)it)->s); }

/* ---- fields ------------------------------------------------------------------------------------------------------------ */

static trn_err to_tensor(trn_tensor **out, const csv *f, int i, const char *p, size_t n)
{
    bool empty = !n || (n == strlen(f->na) && !memcmp(p, f->na, n));
    trn_dtype type = f->type[i];
    if (empty) {
        const trn_tensor *t = f->or_else[i];
        TRN_CHECK_ARG(t->count == 1, "Field %d is required but missing in record!", i);
        p = type == TRN_STRING ? trn_str_p(&TRN_DATA(t, trn_str)[0]) : NULL;
        n = p ? TRN_DATA(t, trn_str)[0].len : 0;
    }
    if (type == TRN_STRING) {
        *out = trn_tensor_str(p, n);
        return *out ? TRN_OK : trn_err_oom();
    }
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, type, &scalar));
    if (empty) {
        trn_err err = trn_tensor_copy_elems(t, 0, f->or_else[i], 0, 1);
        if (err) {
            trn_tensor_unref(t);
            return err;
        }
    } else if (!trn_number_from_text(t, 0, p, n)) {
        trn_tensor_unref(t);
        return TRN_BAD("Field %d in record is not a valid %s: %.*s", i, trn_dtype_name(type), (int)TRN_MIN(n, (size_t)200), p);
    }
    *out = t;
    return TRN_OK;
}

typedef struct row {
    trn_elem *e;
    int got;          /* fields taken */
    int64_t at;       /* column */
    int64_t sel, exc; /* how far the lists of columns are */
    trn_err err;      /* the first one; the record is read to its end nevertheless */
} row;

static void blame(row *r, TRN_OWN trn_err err)
{
    if (r->err)
        trn_err_free(err);
    else
        r->err = err;
}

static bool wanted(const csv *f, row *r)
{
    bool out = r->exc < f->n_exclude && f->exclude[r->exc] == r->at, in = r->sel < f->n_select && f->select[r->sel] == r->at;
    r->at++;
    r->exc += out;
    bool take = (!f->n_select && !f->n_exclude) || in || (f->n_exclude && !out);
    r->sel += take;
    return take;
}

static void take(const csv *f, row *r, const char *p, size_t n)
{
    if (!r->e)
        return;
    if (r->got >= f->n_out) {
        blame(r, TRN_BAD("Expect %d fields but have more in record", f->n_out));
        return;
    }
    trn_err err = to_tensor(&r->e->t[r->got], f, r->got, p, n);
    r->got++;
    if (err)
        blame(r, err);
}

/* The record at p, of which n bytes are there; `all`: nothing follows them. Its length with the line end, or 0: more is needed. Fields go to r. */
static size_t read_record(const csv *f, row *r, trn_sb *text, const char *p, size_t n, bool all)
{
    size_t i = 0;
    for (;;) {
        bool take_it = wanted(f, r), good = true, quoted = f->quotes && i < n && p[i] == '"';
        size_t start = i;
        text->n = 0;
        if (quoted) {
            for (i++;;) {
                if (i >= n) {
                    if (!all)
                        return 0;
                    blame(r, TRN_BAD("Reached end of file without closing quoted field in record"));
                    return n;
                }
                if (p[i] != '"') {
                    trn_sb_add(text, p + i++, 1);
                    continue;
                }
                if (++i >= n) {
                    if (!all)
                        return 0;
                    break;
                }
                if (p[i] == f->delim || p[i] == '\n' || p[i] == '\r')
                    break;
                if (p[i] != '"' && good) {
                    blame(r, TRN_BAD("Quote inside a string has to be escaped by another quote"));
                    good = false;
                }
                trn_sb_add(text, p + i++, 1);
            }
        } else {
            for (; i < n && p[i] != f->delim && p[i] != '\n' && p[i] != '\r'; i++)
                if (f->quotes && p[i] == '"')
                    blame(r, TRN_BAD("Unquoted fields cannot have quotes inside"));
            if (i >= n && !all)
                return 0;
        }
        if (take_it && good)
            take(f, r, quoted ? text->p : p + start, quoted ? text->n : i - start);
        if (i >= n)
            return n;
        char end = p[i++];
        if (end == f->delim)
            continue;
        if (end == '\r') {
            if (i >= n && !all)
                return 0;
            i += i < n && p[i] == '\n';
        }
        return i;
    }
}

/* ---- iterating --------------------------------------------------------------------------------------------------------- */

static trn_err csv_open(csv_it *it)
{
    const csv *f = (csv *)it->it.d;
    TRN_TRY(trn_host_check_path(&it->it.root->host, f->name[it->file]));
    TRN_TRY(trn_stream_open(&it->s, f->name[it->file], f->c, f->chunk));
    it->skip_header = f->header;
    return TRN_OK;
}

static trn_ds_do csv_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    csv_it *it = (csv_it *)it_;
    const csv *f = (csv *)it_->d;
    for (;;) {
        trn_err err;
        if (!it->s) {
            if (it->file >= f->n)
                return TRN_DS_END;
            if (why != TRN_DS_ON_DISK)
                return TRN_DS_DISK;
            if ((err = csv_open(it)))
                return trn_act_fail(a, err);
        }
        size_t have = trn_stream_have(it->s), used = 0;
        bool all = trn_stream_at_end(it->s);
        row r = {0};
        if (have) {
            trn_sb text = {0};
            r.e = it->skip_header ? NULL : trn_elem_new(f->n_out);
            used = read_record(f, &r, &text, (const char *)trn_stream_window(it->s), have, all);
            trn_sb_fini(&text);
        }
        if (!used) {
            trn_elem_free(r.e);
            trn_err_free(r.err);
            if (all && it->skip_header) { /* said once; then comes the next file */
                it->skip_header = false;
                return trn_act_fail(a, TRN_BAD("Can't read header of file: %s is empty", f->name[it->file]));
            }
            if (all) {
                trn_stream_close(it->s);
                it->s = NULL;
                it->file++;
                continue;
            }
            if (why != TRN_DS_ON_DISK)
                return TRN_DS_DISK;
            if ((err = trn_stream_fill(it->s)))
                return trn_act_fail(a, err);
            continue;
        }
        trn_stream_skip(it->s, used);
        if (it->skip_header) {
            it->skip_header = false;
            if (r.err)
                return trn_act_fail(a, r.err);
            continue;
        }
        if (!r.err && r.got != f->n_out)
            r.err = TRN_BAD("Expect %d fields but have %d in record", f->n_out, r.got);
        if (r.err) {
            trn_elem_free(r.e);
            return trn_act_fail(a, r.err);
        }
        return trn_act_give(a, r.e);
    }
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

static trn_err columns(int64_t **out, int64_t *n, const trn_kctx *k, int i, const char *name)
{
    const trn_tensor *t = trn_in(k, i);
    TRN_CHECK_ARG(t->shape.rank == 1, "`%s` must be a vector.", name);
    *out = trn_xalloc(((size_t)t->count + 1) * sizeof **out);
    *n = t->count;
    for (int64_t j = 0; j < t->count; j++) {
        (*out)[j] = TRN_DATA(t, int64_t)[j];
        TRN_CHECK_ARG(!j || (*out)[j - 1] < (*out)[j], "%s should be strictly increasing indices", name);
        TRN_CHECK_ARG((*out)[j] >= 0, "%s should be non-negative indices", name);
    }
    return TRN_OK;
}

static trn_err csv_args(csv *f, trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    TRN_CHECK_ARG(t->shape.rank <= 1, "`filenames` must be a scalar or a vector.");
    f->name = trn_xalloc(((size_t)t->count + 1) * sizeof *f->name);
    for (int64_t i = 0; i < t->count; i++)
        f->name[f->n++] = trn_xstrndup(trn_str_p(&TRN_DATA(t, trn_str)[i]), TRN_DATA(t, trn_str)[i].len);
    int n, first = trn_in_arg(k, "record_defaults", &n);
    f->or_else = trn_xalloc((size_t)n * sizeof *f->or_else);
    for (int i = 0; i < n; i++, f->n_out++)
        f->or_else[i] = trn_tensor_ref(trn_in(k, first + i));
    for (int i = 0; i < n; i++) {
        t = f->or_else[i];
        TRN_CHECK_ARG(t->shape.rank <= 1, "Each record default should be at most rank 1");
        TRN_CHECK_ARG(t->count < 2, "There should only be 1 default per field but field %d has %lld", i, (long long)t->count);
    }
    f->type = f->d.types;
    TRN_TRY(columns(&f->select, &f->n_select, k, 7, "select_cols"));
    int has, ex = trn_in_arg(k, "exclude_cols", &has);
    if (has)
        TRN_TRY(columns(&f->exclude, &f->n_exclude, k, ex, "exclude_cols"));
    int64_t chunk;
    TRN_TRY(trn_data_i64(&chunk, k, 2, "buffer_size"));
    TRN_CHECK_ARG(chunk > 0, "buffer_size should be positive");
    f->chunk = (size_t)chunk;
    TRN_TRY(trn_data_bool(&f->header, k, 3, "header"));
    TRN_TRY(trn_data_bool(&f->quotes, k, 5, "use_quote_delim"));
    const trn_tensor *delim = trn_in(k, 4);
    TRN_CHECK_ARG(delim->shape.rank == 0 && TRN_DATA(delim, trn_str)[0].len == 1, "field_delim should be only 1 char");
    f->delim = trn_str_p(&TRN_DATA(delim, trn_str)[0])[0];
    TRN_TRY(trn_data_str(&f->na, k, 6, "na_value"));
    char *c;
    TRN_TRY(trn_data_str(&c, k, 1, "compression_type"));
    trn_err err = trn_compression_parse(&f->c, c);
    free(c);
    TRN_TRY(err);
    TRN_CHECK_ARG(!f->n_select || f->n_select == n, "select_cols should match output size");
    TRN_CHECK_ARG(!f->n_select || !f->n_exclude, "Either select_cols or exclude_cols should be empty");
    return TRN_OK;
}

static const trn_ds_op csv_op = {"CSVDataset", sizeof(csv_it), csv_free, NULL, csv_next, NULL, csv_stop};

static trn_err csv_dataset(trn_kctx *k)
{
    csv *f;
    TRN_TRY(trn_data_source(&f, k, &csv_op, sizeof *f));
    return trn_data_out(k, f, csv_args(f, k));
}

#define CSV_IN                                                                                                         \
    "filenames:str, compression_type:str, buffer_size:i64, header:bool, field_delim:str, use_quote_delim:bool, "       \
    "na_value:str, select_cols:i64, record_defaults:output_types"
#define CSV_ATTRS "output_types:list(f32|f64|i32|i64|str)>=1, output_shapes:list(shape)>=1"
#define CSV_FLAGS (TRN_OP_CHEAP | TRN_OP_STATEFUL)

const trn_op trn_ops_data_csv[] = {
    {"CSVDataset", CSV_IN " -> handle:var; " CSV_ATTRS, trn_sh_dataset, csv_dataset, CSV_FLAGS},
    {"ExperimentalCSVDataset", CSV_IN " -> handle:var; " CSV_ATTRS, trn_sh_dataset, csv_dataset, CSV_FLAGS},
    {"CSVDatasetV2", CSV_IN ", exclude_cols:i64 -> handle:var; " CSV_ATTRS, trn_sh_dataset, csv_dataset, CSV_FLAGS},
    {0},
};
