/* Datasets that read files: lines, TFRecords, records of fixed length. Reading happens on disk threads, a chunk at a time; cutting where the consumer is. */
#include <stdlib.h>

#include "ckpt/stream.h"
#include "ops/data.h"

typedef struct files {
    trn_ds d;
    int64_t n;
    char **name;
    int64_t *offset; /* TFRecordDatasetV2: where each file starts; NULL: at 0 */
    trn_compression c;
    size_t chunk;
    size_t header, record, footer; /* of fixed length */
} files;

typedef struct files_it {
    trn_it it;
    int64_t file;
    trn_stream *s;
    uint64_t skip; /* bytes to go before the first record */
} files_it;

static void files_free(trn_ds *d)
{
    files *f = (files *)d;
    for (int64_t i = 0; i < f->n; i++)
        free(f->name[i]);
    free(f->name);
    free(f->offset);
}

static void files_stop(trn_it *it) { trn_stream_close(((files_it *)it)->s); }

/* A record of fixed length, with a footer's worth of bytes still behind it. */
static trn_err cut_fixed(trn_cut *out, const files *f, trn_stream *s, const char **p, size_t *n)
{
    size_t have = trn_stream_have(s);
    if (have >= f->record + f->footer) {
        *p = (const char *)trn_stream_window(s);
        *n = f->record;
        trn_stream_skip(s, f->record);
        *out = TRN_CUT_GOT;
        return TRN_OK;
    }
    *out = trn_stream_at_end(s) ? TRN_CUT_END : TRN_CUT_MORE;
    if (*out == TRN_CUT_END && have > f->footer)
        return trn_errorf(TRN_DATA_LOSS, "the last record has %zu bytes, not %zu", have - f->footer, f->record);
    return TRN_OK;
}

static trn_err cut_line(trn_cut *out, const files *f, trn_stream *s, const char **p, size_t *n) { return trn_stream_line(out, s, p, n); }
static trn_err cut_record(trn_cut *out, const files *f, trn_stream *s, const char **p, size_t *n) { return trn_stream_record(out, s, p, n); }

static trn_err check_body(const files *f, const trn_stream *s, const char *name)
{
    int64_t size = trn_stream_size(s);
    if (size < 0)
        return TRN_OK;
    int64_t body = size - (int64_t)f->header - (int64_t)f->footer;
    if (body < 0 || body % (int64_t)f->record)
        return TRN_BAD("Excluding the header (%zu bytes) and footer (%zu bytes), input file \"%s\" has body length %lld bytes, which is not an exact "
                       "multiple of the record length (%zu bytes).",
                       f->header, f->footer, name, (long long)body, f->record);
    return TRN_OK;
}

static trn_err open_next(files_it *it)
{
    const files *f = (files *)it->it.d;
    const char *name = f->name[it->file];
    TRN_TRY(trn_host_check_path(&it->it.root->host, name));
    trn_stream *s;
    TRN_TRY(trn_stream_open(&s, name, f->c, f->chunk));
    it->skip = f->offset ? (uint64_t)f->offset[it->file] : f->header;
    trn_err err = f->record ? check_body(f, s, name) : TRN_OK;
    if (err)
        trn_stream_close(s);
    else
        it->s = s;
    return err;
}

static trn_ds_do records_next(trn_it *it, trn_act *a, trn_ds_why why);

/* As in TensorFlow: a broken TFRecord file is left, so that who ignores errors gets on; all other errors stay where they are. */
static trn_ds_do bad_file(files_it *it, trn_act *a, trn_err err)
{
    if (it->it.op->next == records_next && it->s) {
        trn_stream_close(it->s);
        it->s = NULL;
        it->file++;
    }
    return trn_act_fail(a, err);
}

typedef trn_err (*cut_fn)(trn_cut *out, const files *f, trn_stream *s, const char **p, size_t *n);

static trn_ds_do read_next(trn_it *it_, trn_act *a, trn_ds_why why, cut_fn cut)
{
    files_it *it = (files_it *)it_;
    const files *f = (files *)it_->d;
    bool on_disk = why == TRN_DS_ON_DISK;
    trn_err err;
    for (;;) {
        if (!it->s) {
            if (it->file >= f->n)
                return TRN_DS_END;
            if (!on_disk)
                return TRN_DS_DISK;
            if ((err = open_next(it)))
                return bad_file(it, a, err);
        }
        if (it->skip) {
            size_t n = TRN_MIN(it->skip, trn_stream_have(it->s));
            trn_stream_skip(it->s, n);
            it->skip -= n;
        }
        const char *p = NULL;
        size_t n = 0;
        trn_cut got = TRN_CUT_MORE;
        if (it->skip && trn_stream_at_end(it->s))
            got = TRN_CUT_END;
        else if (!it->skip && (err = cut(&got, f, it->s, &p, &n)))
            return bad_file(it, a, err);
        if (got == TRN_CUT_GOT) {
            trn_elem *e = trn_elem_new(1);
            if (!(e->t[0] = trn_tensor_str(p, n))) {
                trn_elem_free(e);
                return trn_act_fail(a, trn_err_oom());
            }
            return trn_act_give(a, e);
        }
        if (got == TRN_CUT_END) {
            trn_stream_close(it->s);
            it->s = NULL;
            it->file++;
            continue;
        }
        if (!on_disk)
            return TRN_DS_DISK;
        if ((err = trn_stream_fill(it->s)))
            return bad_file(it, a, err);
    }
}

static trn_ds_do lines_next(trn_it *it, trn_act *a, trn_ds_why why) { return read_next(it, a, why, cut_line); }
static trn_ds_do records_next(trn_it *it, trn_act *a, trn_ds_why why) { return read_next(it, a, why, cut_record); }
static trn_ds_do fixed_next(trn_it *it, trn_act *a, trn_ds_why why) { return read_next(it, a, why, cut_fixed); }

static const trn_ds_op lines_op = {"TextLineDataset", sizeof(files_it), files_free, NULL, lines_next, NULL, files_stop};
static const trn_ds_op records_op = {"TFRecordDataset", sizeof(files_it), files_free, NULL, records_next, NULL, files_stop};
static const trn_ds_op fixed_op = {"FixedLengthRecordDataset", sizeof(files_it), files_free, NULL, fixed_next, NULL, files_stop};

static trn_err file_names(files *f, const trn_tensor *t)
{
    TRN_CHECK_ARG(t->shape.rank <= 1, "`filenames` must be a scalar or a vector.");
    f->name = trn_xalloc(((size_t)t->count + 1) * sizeof *f->name);
    for (int64_t i = 0; i < t->count; i++) {
        const trn_str *s = &TRN_DATA(t, trn_str)[i];
        f->name[f->n++] = trn_xstrndup(trn_str_p(s), s->len);
    }
    return TRN_OK;
}

static trn_err file_args(files *f, trn_kctx *k)
{
    TRN_TRY(file_names(f, trn_in(k, 0)));
    int has, i = trn_in_arg(k, "compression_type", &has);
    if (has) {
        char *c;
        TRN_TRY(trn_data_str(&c, k, i, "compression_type"));
        trn_err err = trn_compression_parse(&f->c, c);
        free(c);
        if (err)
            return err;
    }
    int64_t chunk;
    TRN_TRY(trn_data_i64(&chunk, k, trn_in_arg(k, "buffer_size", NULL), "buffer_size"));
    TRN_CHECK_ARG(chunk >= 0, "`buffer_size` must be >= 0 (0 == default)");
    f->chunk = (size_t)chunk;
    return TRN_OK;
}

static trn_err offset_args(files *f, trn_kctx *k)
{
    int has, i = trn_in_arg(k, "byte_offsets", &has);
    if (!has)
        return TRN_OK;
    const trn_tensor *t = trn_in(k, i);
    TRN_CHECK_ARG(t->shape.rank <= 1, "`byte_offsets` must be a scalar or a vector.");
    TRN_CHECK_ARG(t->shape.rank == trn_in(k, 0)->shape.rank && (t->count == 0 || t->count == f->n), "`byte_offsets` must be of same size as `filenames`");
    if (t->count == 0)
        return TRN_OK;
    f->offset = trn_xalloc((size_t)t->count * sizeof *f->offset);
    for (int64_t j = 0; j < t->count; j++) {
        f->offset[j] = TRN_DATA(t, int64_t)[j];
        TRN_CHECK_ARG(f->offset[j] >= 0, "byte_offsets[%lld] is negative", (long long)j);
    }
    return TRN_OK;
}

static trn_err fixed_args(files *f, trn_kctx *k)
{
    int64_t v[3];
    static const char *const names[] = {"header_bytes", "record_bytes", "footer_bytes"};
    for (int i = 0; i < 3; i++) {
        TRN_TRY(trn_data_i64(&v[i], k, i + 1, names[i]));
        TRN_CHECK_ARG(i == 1 ? v[i] > 0 : v[i] >= 0, "`%s` must be %s 0", names[i], i == 1 ? ">" : ">=");
        TRN_CHECK_ARG(v[i] <= 1 << 30, "`%s` is %lld: more than 1 GiB", names[i], (long long)v[i]);
    }
    f->header = (size_t)v[0];
    f->record = (size_t)v[1];
    f->footer = (size_t)v[2];
    return TRN_OK;
}

static trn_err file_dataset(trn_kctx *k, const trn_ds_op *op)
{
    files *f;
    TRN_TRY(trn_data_source(&f, k, op, sizeof *f));
    trn_shape s = trn_shape_scalar();
    trn_ds_elem_is(&f->d, 1, (trn_dtype[]){TRN_STRING}, &s);
    trn_err err = file_args(f, k);
    if (!err)
        err = offset_args(f, k);
    if (!err && op == &fixed_op)
        err = fixed_args(f, k);
    return trn_data_out(k, f, err);
}

static trn_err text_line_dataset(trn_kctx *k) { return file_dataset(k, &lines_op); }
static trn_err tf_record_dataset(trn_kctx *k) { return file_dataset(k, &records_op); }
static trn_err fixed_length_dataset(trn_kctx *k) { return file_dataset(k, &fixed_op); }

#define FIXED "filenames:str, header_bytes:i64, record_bytes:i64, footer_bytes:i64, buffer_size:i64"
#define FILE_FLAGS (TRN_OP_CHEAP | TRN_OP_STATEFUL)

const trn_op trn_ops_data_files[] = {
    {"TextLineDataset", "filenames:str, compression_type:str, buffer_size:i64 -> handle:var; metadata:string=\"\"", trn_sh_dataset, text_line_dataset,
     FILE_FLAGS},
    {"TFRecordDataset", "filenames:str, compression_type:str, buffer_size:i64 -> handle:var; metadata:string=\"\"", trn_sh_dataset, tf_record_dataset,
     FILE_FLAGS},
    {"TFRecordDatasetV2", "filenames:str, compression_type:str, buffer_size:i64, byte_offsets:i64 -> handle:var; metadata:string=\"\"", trn_sh_dataset,
     tf_record_dataset, FILE_FLAGS},
    {"FixedLengthRecordDataset", FIXED " -> handle:var; metadata:string=\"\"", trn_sh_dataset, fixed_length_dataset, FILE_FLAGS},
    {"FixedLengthRecordDatasetV2", FIXED ", compression_type:str -> handle:var; metadata:string=\"\"", trn_sh_dataset, fixed_length_dataset, FILE_FLAGS},
    {0},
};
