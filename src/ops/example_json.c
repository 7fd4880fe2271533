/* DecodeJSONExample: Examples as protobuf writes them in JSON, made into bytes in the order of the text, lists one tag per value: the bytes that TensorFlow's
 * op gives. Standard JSON only: the old reader inside TensorFlow also takes names without quotes, a comma at the end and one name twice. */
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"
#include "proto/pbw.h"

enum { MAX_TEXT = 64 << 20 }; /* of one example; what it becomes in memory can be forty times as large */

typedef enum list_kind { NO_LIST, BYTES_LIST, FLOAT_LIST, INT64_LIST } list_kind; /* as Feature numbers them */

/* Messages that are being written, the inner ones first: their lengths stand before them. */
typedef struct writer {
    trn_sb list, feature, entry, features, example;
} writer;

#define BAD_JSON(...) TRN_BAD("Error while parsing JSON: " __VA_ARGS__)

static void put(trn_sb *s, uint32_t field, const trn_sb *inner)
{
    trn_pbw_head(s, field, inner->n);
    if (inner->n)
        trn_sb_add(s, inner->p, inner->n);
}

/* ---- values ----------------------------------------------------------------------------------------------------------- */

/* Either alphabet, but one of them; padding may be left out, and nothing may be lost in the last digit. */
static bool put_bytes(trn_sb *s, const json_t *v)
{
    if (!json_is_string(v))
        return false;
    const char *p = json_string_value(v);
    size_t n = json_string_length(v);
    if (n && n % 4 == 0)
        for (int i = 0; i < 2 && p[n - 1] == '='; i++)
            n--;
    if (n % 4 == 1)
        return false;
    size_t size = n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0);
    trn_pbw_head(s, 1, size);
    trn_sb_reserve(s, size);
    bool plain = false, web = false;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        uint32_t d;
        if (c >= 'A' && c <= 'Z')
            d = (uint32_t)(c - 'A');
        else if (c >= 'a' && c <= 'z')
            d = (uint32_t)(c - 'a') + 26;
        else if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0') + 52;
        else if (c == '+' || c == '/')
            plain = true, d = c == '+' ? 62 : 63;
        else if (c == '-' || c == '_')
            web = true, d = c == '-' ? 62 : 63;
        else
            return false;
        bits = bits << 6 | d;
        if (i % 4) {
            s->p[s->n++] = (char)(bits >> (6 - 2 * (i % 4)));
            bits &= (1u << (6 - 2 * (i % 4))) - 1;
        }
    }
    return !(plain && web) && (n % 4 == 0 || bits == 0);
}

static bool text_float(double *out, const char *p, size_t n)
{
    if (!strcmp(p, "NaN"))
        *out = (double)NAN;
    else if (!strcmp(p, "Infinity") || !strcmp(p, "-Infinity"))
        *out = *p == '-' ? (double)-INFINITY : (double)INFINITY;
    else {
        const char *d = p + (*p == '-' || *p == '+');
        char *end;
        if (!isdigit((unsigned char)*d) && *d != '.')
            return false; /* strtod skips spaces and knows other names of what is no number */
        *out = strtod(p, &end);
        return end == p + n && fabs(*out) <= (double)FLT_MAX;
    }
    return strlen(p) == n;
}

static bool put_float(trn_sb *s, const json_t *v)
{
    double d = json_is_number(v) ? json_number_value(v) : 0;
    if (json_is_string(v) ? !text_float(&d, json_string_value(v), json_string_length(v)) : !json_is_number(v) || fabs(d) > (double)FLT_MAX)
        return false;
    float f = (float)d;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    trn_pbw_fixed32(s, 1, bits);
    return true;
}

static bool put_int(trn_sb *s, const json_t *v)
{
    int64_t i;
    if (json_is_integer(v)) {
        i = json_integer_value(v);
    } else if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d != floor(d) || d < -0x1p63 || d >= 0x1p63)
            return false;
        i = (int64_t)d;
    } else if (json_is_string(v)) {
        const char *p = json_string_value(v);
        char *end;
        if (!isdigit((unsigned char)p[*p == '-' || *p == '+']))
            return false;
        errno = 0;
        i = strtoll(p, &end, 10);
        if (errno || end != p + json_string_length(v))
            return false;
    } else {
        return false;
    }
    trn_pbw_tag(s, 1, TRN_PB_VARINT);
    trn_pbw_raw_varint(s, (uint64_t)i);
    return true;
}

/* One value stands for a list of one, lists in lists are one list, and null is nothing, as in protobuf. As deep as jansson lets text be: 2048. */
static trn_err put_values(trn_sb *s, list_kind kind, const json_t *v)
{
    if (json_is_null(v))
        return TRN_OK;
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            TRN_TRY(put_values(s, kind, json_array_get(v, i)));
        return TRN_OK;
    }
    if (kind == BYTES_LIST ? put_bytes(s, v) : kind == FLOAT_LIST ? put_float(s, v) : put_int(s, v))
        return TRN_OK;
    return json_is_string(v) ? BAD_JSON("invalid value \"%.60s\" in a list of %s", json_string_value(v), kind == BYTES_LIST ? "bytes" : kind == FLOAT_LIST ? "float" : "int64")
                             : BAD_JSON("a list of %s has something else in it", kind == BYTES_LIST ? "bytes" : kind == FLOAT_LIST ? "float" : "int64");
}

/* ---- messages --------------------------------------------------------------------------------------------------------- */

static list_kind kind_named(const char *key)
{
    static const struct {
        const char *name;
        list_kind kind;
    } names[] = {{"bytesList", BYTES_LIST}, {"floatList", FLOAT_LIST}, {"int64List", INT64_LIST}, {"bytes_list", BYTES_LIST}, {"float_list", FLOAT_LIST}, {"int64_list", INT64_LIST}};
    for (size_t i = 0; i < TRN_COUNTOF(names); i++)
        if (!strcmp(names[i].name, key))
            return names[i].kind;
    return NO_LIST;
}

/* Of a message that has one field: null when it is not there. */
static trn_err only_field(json_t **out, json_t *message, const char *what, const char *field)
{
    *out = NULL;
    if (!json_is_object(message))
        return BAD_JSON("%s must be an object", what);
    const char *key;
    json_t *v;
    json_object_foreach(message, key, v)
    {
        if (strcmp(key, field) != 0)
            return BAD_JSON("%s has no field '%.60s'", what, key);
        if (!json_is_null(v))
            *out = v;
    }
    return TRN_OK;
}

static trn_err put_feature(writer *w, json_t *f)
{
    w->feature.n = 0;
    if (!json_is_object(f))
        return BAD_JSON("a feature must be an object");
    bool set = false;
    const char *key;
    json_t *list, *values;
    json_object_foreach(f, key, list)
    {
        list_kind kind = kind_named(key);
        if (!kind)
            return BAD_JSON("a feature has no field '%.60s'", key);
        if (json_is_null(list))
            continue;
        if (set)
            return BAD_JSON("a feature has one list; '%s' is another", key);
        set = true;
        TRN_TRY(only_field(&values, list, key, "value"));
        w->list.n = 0;
        if (values)
            TRN_TRY(put_values(&w->list, kind, values));
        put(&w->feature, kind, &w->list);
    }
    return TRN_OK;
}

static trn_err put_example(writer *w, json_t *root)
{
    json_t *features, *map, *f;
    const char *key;
    w->example.n = w->features.n = 0;
    TRN_TRY(only_field(&features, root, "an Example", "features"));
    if (!features)
        return TRN_OK;
    TRN_TRY(only_field(&map, features, "features", "feature"));
    if (map && !json_is_object(map))
        return BAD_JSON("feature must be an object: it maps names to features");
    json_object_foreach(map, key, f) /* jansson refuses names with zeros in them */
    {
        w->entry.n = 0;
        trn_pbw_bytes(&w->entry, 1, key, strlen(key));
        if (!json_is_null(f)) {
            TRN_TRY(put_feature(w, f));
            put(&w->entry, 2, &w->feature);
        }
        put(&w->features, 1, &w->entry);
    }
    put(&w->example, 1, &w->features);
    return TRN_OK;
}

static trn_err decode(writer *w, const trn_str *text)
{
    if (text->len > MAX_TEXT)
        return BAD_JSON("an example has %u bytes; at most %d are taken", text->len, MAX_TEXT);
    json_error_t e;
    json_t *root = json_loadb(trn_str_p(text), text->len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!root)
        return BAD_JSON("line %d, column %d: %s", e.line, e.column, e.text);
    trn_err err = put_example(w, root);
    json_decref(root);
    return err;
}

static trn_err decode_json_example(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    writer w = {0};
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < x->count; i++) {
        err = decode(&w, &TRN_DATA(x, trn_str)[i]);
        if (!err)
            err = trn_str_set(&TRN_DATA_MUT(y, trn_str)[i], w.example.n ? w.example.p : "", w.example.n);
    }
    trn_sb *all[] = {&w.list, &w.feature, &w.entry, &w.features, &w.example};
    for (size_t i = 0; i < TRN_COUNTOF(all); i++)
        trn_sb_fini(all[i]);
    return err;
}

const trn_op trn_ops_example_json[] = {
    {"DecodeJSONExample", "json_examples:str -> binary_examples:str", trn_sh_same, decode_json_example, TRN_OP_HEAVY},
    {0},
};
