/* TFRecord files and tf.Example messages, without a graph. */
#include <trainera/input.h>

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "ckpt/stream.h"
#include "proto/pbw.h"
#include "tensor/tensor.h"

/* ---- reading ------------------------------------------------------------------------------------------------------- */

struct trn_record_reader {
    trn_stream *s;
    char *path;
};

trn_err trn_record_reader_open(trn_record_reader **out, const char *path, const char *compression)
{
    trn_compression how;
    trn_stream *s;
    TRN_TRY(trn_compression_parse(&how, compression ? compression : ""));
    TRN_TRY(trn_stream_open(&s, path, how, 0));
    trn_record_reader *r = trn_xalloc(sizeof *r);
    *r = (trn_record_reader){s, trn_xstrdup(path)};
    *out = r;
    return TRN_OK;
}

trn_err trn_record_reader_next(const void **p, size_t *n, trn_record_reader *r)
{
    for (;;) {
        trn_cut cut;
        const char *at;
        trn_err err = trn_stream_record(&cut, r->s, &at, n);
        if (!err && cut == TRN_CUT_GOT) {
            *p = at;
            return TRN_OK;
        }
        if (!err && cut == TRN_CUT_END)
            return trn_errorf(TRN_OUT_OF_RANGE, "%s: no more records", r->path);
        if (!err)
            err = trn_stream_fill(r->s);
        if (err)
            return trn_err_wrap(err, "%s", r->path);
    }
}

void trn_record_reader_close(trn_record_reader *r)
{
    if (!r)
        return;
    trn_stream_close(r->s);
    free(r->path);
    free(r);
}

/* ---- tf.Example: features (1) { feature (1) map { key (1), value (2) { bytes_list (1) | float_list (2) | int64_list (3) { value (1) } } } } --------- */

enum { BYTES_LIST = 1, FLOAT_LIST = 2, INT64_LIST = 3 };

static int kind_of(trn_dtype t) { return t == TRN_STRING ? BYTES_LIST : t == TRN_FLOAT ? FLOAT_LIST : t == TRN_INT64 ? INT64_LIST : 0; }

static void put_list(trn_sb *out, const trn_tensor *t)
{
    int64_t n = trn_tensor_count(t);
    if (t->dtype == TRN_STRING)
        for (int64_t i = 0; i < n; i++) {
            size_t len;
            const char *p = trn_tensor_str_at(t, i, &len);
            trn_pbw_bytes(out, 1, p, len);
        }
    else if (t->dtype == TRN_FLOAT && n)
        trn_pbw_bytes(out, 1, trn_tensor_data(t), (size_t)n * sizeof(float));
    else if (n) {
        const int64_t *v = trn_tensor_data(t);
        size_t bytes = 0;
        for (int64_t i = 0; i < n; i++)
            bytes += trn_pbw_varint_size((uint64_t)v[i]);
        trn_pbw_head(out, 1, bytes);
        for (int64_t i = 0; i < n; i++)
            trn_pbw_raw_varint(out, (uint64_t)v[i]);
    }
}

static int by_name(const void *a, const void *b) { return strcmp((*(const trn_feature *const *)a)->name, (*(const trn_feature *const *)b)->name); }

trn_err trn_example_encode(void **out, size_t *n, const trn_feature *features, int n_features)
{
    for (int i = 0; i < n_features; i++)
        if (!features[i].name || !features[i].value || !kind_of(features[i].value->dtype))
            return trn_errorf(TRN_INVALID_ARGUMENT, "example: feature \"%s\" is of %s; float, int64 and string can be written",
                              features[i].name ? features[i].name : "", features[i].value ? trn_dtype_name(features[i].value->dtype) : "nothing");
    const trn_feature **in_order = trn_xalloc((size_t)TRN_MAX(n_features, 1) * sizeof *in_order);
    for (int i = 0; i < n_features; i++)
        in_order[i] = &features[i];
    qsort(in_order, (size_t)n_features, sizeof *in_order, by_name);
    trn_sb map = {0}, list = {0}, entry = {0}, all = {0};
    for (int i = 0; i < n_features; i++) {
        const trn_feature *f = in_order[i];
        list.n = entry.n = 0;
        put_list(&list, f->value);
        size_t name = strlen(f->name), value = trn_pbw_bytes_size((uint32_t)kind_of(f->value->dtype), list.n);
        trn_pbw_bytes(&entry, 1, f->name, name);
        trn_pbw_head(&entry, 2, value);
        trn_pbw_bytes(&entry, (uint32_t)kind_of(f->value->dtype), list.p, list.n);
        trn_pbw_bytes(&map, 1, entry.p, entry.n);
    }
    trn_pbw_bytes(&all, 1, map.p, map.n);
    trn_sb_fini(&map);
    trn_sb_fini(&list);
    trn_sb_fini(&entry);
    free(in_order);
    *out = all.p;
    *n = all.n;
    return TRN_OK;
}

static trn_err malformed(const char *why) { return trn_errorf(TRN_INVALID_ARGUMENT, "example: %s", why ? why : "not a tf.Example"); }

/* How many values a list has; then, with `to`, puts them there. Both packed and one by one. */
static trn_err list_values(int64_t *count, const void *p, size_t n, trn_dtype t, trn_tensor *to)
{
    int64_t k = 0;
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field != 1)
            continue;
        if (t == TRN_STRING && r.type == TRN_PB_BYTES) {
            if (to)
                TRN_TRY(trn_tensor_str_put(to, k, (const char *)r.b, r.n));
            k++;
        } else if (t == TRN_FLOAT && r.type == TRN_PB_BYTES) {
            if (r.n % 4)
                return malformed("a float_list ends inside a float");
            if (to)
                memcpy((float *)trn_tensor_data_mut(to) + k, r.b, r.n);
            k += (int64_t)(r.n / 4);
        } else if (t == TRN_FLOAT && r.type == TRN_PB_FIXED32) {
            uint32_t bits = (uint32_t)r.v;
            if (to)
                memcpy((float *)trn_tensor_data_mut(to) + k, &bits, 4);
            k++;
        } else if (t == TRN_INT64 && r.type == TRN_PB_BYTES) {
            trn_pbr in = trn_pbr_init(r.b, r.n);
            while (in.p != in.end) {
                uint64_t v;
                if (!trn_pbr_raw_varint(&in, &v))
                    return malformed(in.why);
                if (to)
                    ((int64_t *)trn_tensor_data_mut(to))[k] = (int64_t)v;
                k++;
            }
        } else if (t == TRN_INT64 && r.type == TRN_PB_VARINT) {
            if (to)
                ((int64_t *)trn_tensor_data_mut(to))[k] = (int64_t)r.v;
            k++;
        } else
            return malformed("a list with values of another kind");
    }
    *count = k;
    return r.bad ? malformed(r.why) : TRN_OK;
}

typedef struct bytes {
    const uint8_t *p;
    size_t n;
} bytes;

/* The Feature of this name; the last one of several, as maps have it. p NULL: none. */
static trn_err find_feature(bytes *out, const void *example, size_t n, const char *name)
{
    size_t len = strlen(name);
    *out = (bytes){NULL, 0};
    trn_pbr top = trn_pbr_init(example, n);
    while (trn_pbr_next(&top)) {
        if (top.field != 1 || top.type != TRN_PB_BYTES)
            continue;
        trn_pbr map = trn_pbr_init(top.b, top.n);
        while (trn_pbr_next(&map)) {
            if (map.field != 1 || map.type != TRN_PB_BYTES)
                continue;
            bytes key = {(const uint8_t *)"", 0}, value = {(const uint8_t *)"", 0};
            trn_pbr entry = trn_pbr_init(map.b, map.n);
            while (trn_pbr_next(&entry))
                if (entry.type == TRN_PB_BYTES && (entry.field == 1 || entry.field == 2))
                    *(entry.field == 1 ? &key : &value) = (bytes){entry.b, entry.n};
            if (entry.bad)
                return malformed(entry.why);
            if (key.n == len && memcmp(key.p, name, len) == 0)
                *out = value;
        }
        if (map.bad)
            return malformed(map.why);
    }
    return top.bad ? malformed(top.why) : TRN_OK;
}

static trn_err decode_one(trn_tensor **out, const void *example, size_t n, const trn_feature_spec *spec)
{
    static const char *const kinds[] = {"nothing", "bytes_list", "float_list", "int64_list"};
    bytes feature, list = {NULL, 0};
    int want = kind_of(spec->dtype), have = 0;
    int64_t count = 0, needed = -1;
    trn_tensor *t;
    if (!want)
        return trn_errorf(TRN_INVALID_ARGUMENT, "example: feature \"%s\" as %s; float, int64 and string can be read", spec->name, trn_dtype_name(spec->dtype));
    TRN_TRY(find_feature(&feature, example, n, spec->name));
    trn_pbr r = trn_pbr_init(feature.p, feature.n);
    while (trn_pbr_next(&r))
        if (r.type == TRN_PB_BYTES && r.field >= BYTES_LIST && r.field <= INT64_LIST) {
            list = (bytes){r.b, r.n};
            have = (int)r.field;
        }
    if (r.bad)
        return malformed(r.why);
    if (have && have != want)
        return trn_errorf(TRN_INVALID_ARGUMENT, "example: feature \"%s\" is a %s, not a %s", spec->name, kinds[have], kinds[want]);
    if (have)
        TRN_TRY(list_values(&count, list.p, list.n, spec->dtype, NULL));
    if (spec->shape)
        TRN_TRY(trn_shape_count(&needed, spec->shape));
    if (!have && !spec->shape) {
        *out = NULL;
        return TRN_OK;
    }
    if (needed >= 0 && needed != count) {
        char text[TRN_SHAPE_TEXT];
        return trn_errorf(TRN_INVALID_ARGUMENT, "example: feature \"%s\" has %lld values, they must make %s", spec->name, (long long)count,
                          trn_shape_text(text, spec->shape));
    }
    trn_shape shape = spec->shape ? *spec->shape : trn_shape_vector(count);
    TRN_TRY(trn_tensor_new(&t, spec->dtype, &shape));
    trn_err err = have ? list_values(&count, list.p, list.n, spec->dtype, t) : TRN_OK;
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    *out = t;
    return TRN_OK;
}

trn_err trn_example_decode(trn_tensor **out, const void *example, size_t n, const trn_feature_spec *specs, int n_specs)
{
    for (int i = 0; i < n_specs; i++) {
        trn_err err = decode_one(&out[i], example, n, &specs[i]);
        if (err) {
            for (int k = 0; k < i; k++)
                trn_tensor_unref(out[k]);
            return err;
        }
    }
    return TRN_OK;
}
