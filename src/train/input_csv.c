/* CSV files into tensors: one pass that splits fields (quotes, doubled quotes, line ends inside), the values gathered per tensor. */
#include <trainera/input.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "ckpt/stream.h"
#include "tensor/tensor.h"

typedef struct column {
    const trn_csv_field *f;
    trn_sb bytes;   /* plain values, or the text of all strings */
    size_t *ends;   /* of strings in `bytes` */
    size_t n_ends, cap_ends;
} column;

typedef struct csv {
    const char *path;
    trn_csv_opts o;
    column *col;
    int n_cols;
    int last;        /* number of columns that a line must have */
    int64_t line, row;
} csv;

static trn_err bad(const csv *c, int at, const char *what, const char *text)
{
    return trn_errorf(TRN_INVALID_ARGUMENT, "%s, line %lld, column %d: %s (\"%.40s\")", c->path, (long long)c->line, at, what, text);
}

static trn_err put_number(csv *c, column *k, int at, char *text)
{
    trn_dtype t = k->f->dtype;
    while (*text == ' ' || *text == '\t')
        text++;
    char *end = text;
    if (!*text || (c->o.na && strcmp(text, c->o.na) == 0)) {
        if (!c->o.na)
            return bad(c, at, "the field is empty", text);
        trn_sb_add(&k->bytes, (char[8]){0}, trn_dtype_size(t));
        return TRN_OK;
    }
    errno = 0;
    if (t == TRN_FLOAT || t == TRN_DOUBLE) {
        double d = strtod(text, &end);
        float f = (float)d;
        if (t == TRN_FLOAT)
            f = strtof(text, &end);
        trn_sb_add(&k->bytes, t == TRN_FLOAT ? (void *)&f : (void *)&d, trn_dtype_size(t));
        errno = 0; /* too small or too large: 0 or infinity, as everywhere */
    } else {
        long long v = strtoll(text, &end, 10);
        int32_t narrow = (int32_t)v;
        if (errno || (t == TRN_INT32 && v != narrow))
            return bad(c, at, t == TRN_INT32 ? "no int32 holds this number" : "no int64 holds this number", text);
        trn_sb_add(&k->bytes, t == TRN_INT32 ? (void *)&narrow : (void *)&v, trn_dtype_size(t));
    }
    while (*end == ' ' || *end == '\t')
        end++;
    if (end == text || *end)
        return bad(c, at, t == TRN_FLOAT || t == TRN_DOUBLE ? "this is no number" : "this is no integer", text);
    return TRN_OK;
}

static trn_err put_field(csv *c, int at, char *text, size_t n)
{
    for (int i = 0; i < c->n_cols; i++) {
        column *k = &c->col[i];
        if (at < k->f->first || at >= k->f->first + TRN_MAX(k->f->count, 1))
            continue;
        if (k->f->dtype == TRN_STRING) {
            if (!(c->o.na && strcmp(text, c->o.na) == 0))
                trn_sb_add(&k->bytes, text, n);
            TRN_PUSH(k->ends, k->n_ends, k->cap_ends, k->bytes.n);
        } else
            TRN_TRY(put_number(c, k, at, text));
    }
    return TRN_OK;
}

/* All fields of one file that is in memory. `p` has a zero behind it, and is written over. */
static trn_err parse(csv *c, char *p, size_t n)
{
    char *end = p + n, delim = c->o.delim ? c->o.delim : ',';
    c->line = 1;
    if (c->o.header) {
        char *e = memchr(p, '\n', n);
        p = e ? e + 1 : end;
        c->line++;
    }
    while (p < end) {
        if (*p == '\n' || (*p == '\r' && p[1] == '\n')) { /* empty lines are left out */
            p += *p == '\r' ? 2 : 1;
            c->line++;
            continue;
        }
        int at = 0, lines = 0;
        for (bool more = true; more; at++) {
            char *text = p, *to = p;
            if (p < end && *p == '"') {
                for (p++; p < end; p++) {
                    if (*p == '"') {
                        if (p[1] != '"')
                            break;
                        p++;
                    }
                    lines += *p == '\n';
                    *to++ = *p;
                }
                if (p == end)
                    return bad(c, at, "the quotes are not closed", text);
                p++;
                if (p < end && *p != delim && *p != '\n' && *p != '\r')
                    return bad(c, at, "there is text behind the quotes", p);
            } else {
                while (p < end && *p != delim && *p != '\n')
                    p++;
                to = p;
                if (to > text && to[-1] == '\r' && (p == end || *p == '\n'))
                    to--;
            }
            if (p < end && *p == '\r')
                p++;
            more = p < end && *p == delim;
            if (p < end)
                p++;
            *to = 0; /* at most over what ended the field */
            TRN_TRY(put_field(c, at, text, (size_t)(to - text)));
        }
        if (at < c->last)
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s, line %lld: %d columns, at least %d are asked for", c->path, (long long)c->line, at, c->last);
        c->line += 1 + lines;
        c->row++;
    }
    return TRN_OK;
}

static trn_err to_tensor(trn_tensor **out, const csv *c, column *k)
{
    trn_tensor *t;
    trn_shape shape = k->f->count ? trn_shape_of(2, c->row, (int64_t)k->f->count) : trn_shape_vector(c->row);
    TRN_TRY(trn_tensor_new(&t, k->f->dtype, &shape));
    if (k->f->dtype != TRN_STRING) {
        if (k->bytes.n)
            memcpy(trn_tensor_data_mut(t), k->bytes.p, k->bytes.n);
    } else
        for (size_t i = 0, from = 0; i < k->n_ends; from = k->ends[i++]) {
            trn_err err = trn_tensor_str_put(t, (int64_t)i, k->bytes.p ? k->bytes.p + from : "", k->ends[i] - from);
            if (err) {
                trn_tensor_unref(t);
                return err;
            }
        }
    *out = t;
    return TRN_OK;
}

static trn_err read_all(trn_sb *out, const char *path, const char *compression)
{
    trn_compression how;
    trn_stream *s;
    TRN_TRY(trn_compression_parse(&how, compression ? compression : ""));
    TRN_TRY(trn_stream_open(&s, path, how, 0));
    trn_err err = TRN_OK;
    for (;;) {
        trn_sb_add(out, trn_stream_window(s), trn_stream_have(s));
        trn_stream_skip(s, trn_stream_have(s));
        if (trn_stream_at_end(s) || (err = trn_stream_fill(s)))
            break;
    }
    trn_stream_close(s);
    return err;
}

trn_err trn_csv_read(trn_tensor **out, const char *path, const trn_csv_field *fields, int n, const trn_csv_opts *opts)
{
    csv c = {.path = path, .n_cols = n};
    if (opts)
        c.o = *opts;
    for (int i = 0; i < n; i++) {
        trn_dtype t = fields[i].dtype;
        if (t != TRN_FLOAT && t != TRN_DOUBLE && t != TRN_INT32 && t != TRN_INT64 && t != TRN_STRING)
            return trn_errorf(TRN_INVALID_ARGUMENT, "csv: a column of %s; float, double, int32, int64 and string can be read", trn_dtype_name(t));
        if (fields[i].first < 0 || fields[i].count < 0 || fields[i].first > 1000000 || fields[i].count > 1000000)
            return trn_errorf(TRN_INVALID_ARGUMENT, "csv: columns from %d, %d of them", fields[i].first, fields[i].count);
        c.last = TRN_MAX(c.last, fields[i].first + TRN_MAX(fields[i].count, 1));
    }
    trn_sb text = {0};
    c.col = trn_xalloc((size_t)TRN_MAX(n, 1) * sizeof *c.col);
    for (int i = 0; i < n; i++)
        c.col[i].f = &fields[i];
    trn_err err = read_all(&text, path, c.o.compression);
    if (!err && text.n)
        err = parse(&c, text.p, text.n);
    trn_sb_fini(&text);
    trn_tensor **got = trn_xalloc((size_t)TRN_MAX(n, 1) * sizeof *got);
    for (int i = 0; i < n && !err; i++)
        err = to_tensor(&got[i], &c, &c.col[i]);
    for (int i = 0; i < n; i++) {
        if (err)
            trn_tensor_unref(got[i]);
        else
            out[i] = got[i];
        trn_sb_fini(&c.col[i].bytes);
        free(c.col[i].ends);
    }
    free(got);
    free(c.col);
    return err;
}
