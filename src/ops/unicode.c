/* Text and code points: UnicodeDecode, UnicodeEncode, UnicodeTranscode, UnicodeScript. TensorFlow's are made of ICU's strings, which hold UTF-16: halves of pairs that
 * belong to nobody live on in UTF-16 and UTF-32 and become U+FFFD in UTF-8. */
#include "ops/unicode.h"

#include <stdlib.h>

#include "ops/charset.h"
#include "ops/kern.h"

#define STR(t) TRN_DATA(t, trn_str)
#define STR_MUT(t) TRN_DATA_MUT(t, trn_str)

typedef struct policy {
    bool strict, ignore, no_control;
    int32_t replacement;
} policy;

static trn_err policy_of(policy *p, const trn_node *n)
{
    const char *errors = trn_attr_str(n, "errors");
    int64_t c = trn_attr_int(n, "replacement_char");
    TRN_CHECK_ARG(c >= 0 && c <= 0x10ffff, "replacement_char out of unicode codepoint range");
    *p = (policy){.strict = *errors == 's', .ignore = *errors == 'i', .no_control = trn_attr_bool(n, "replace_control_characters"), .replacement = (int32_t)c};
    return TRN_OK;
}

/* ---- encoding ----------------------------------------------------------------------------------------------------------------- */

static void put16(trn_sb *u, int32_t c)
{
    uint16_t pair[2] = {(uint16_t)c};
    if (c < 0 || c > 0x10ffff)
        return;
    if (c > 0xffff)
        pair[0] = (uint16_t)(0xd7c0 + (c >> 10)), pair[1] = (uint16_t)(0xdc00 | (c & 0x3ff));
    trn_sb_add(u, pair, c > 0xffff ? 4 : 2);
}

static size_t utf8_put(char *p, uint32_t c)
{
    if (c < 0x80)
        return *p = (char)c, 1;
    size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t head[] = {0, 0xc0, 0xe0, 0xf0};
    for (size_t i = more; i; i--, c >>= 6)
        p[i] = (char)(0x80 | (c & 0x3f));
    p[0] = (char)(head[more] | c);
    return more + 1;
}

/* UTF-16 in `u` to the encoding, whose number of bits starts at encoding[4]. */
static trn_err encode(trn_str *out, const trn_sb *u, const char *encoding)
{
    const uint16_t *x = (const uint16_t *)(const void *)u->p;
    size_t n = u->n / 2, at = 0;
    int kind = encoding[4] == '8' ? 8 : encoding[4] == '1' ? 16 : 32;
    trn_sb b = {0};
    while (at < n) {
        uint32_t c = x[at++];
        if (kind == 16) {
            trn_sb_add(&b, (char[]){(char)(c >> 8), (char)c}, 2);
            continue;
        }
        if (c >= 0xd800 && c < 0xdc00 && at < n && x[at] >= 0xdc00 && x[at] < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10) + (x[at++] - 0xdc00u);
        if (kind == 32) {
            trn_sb_add(&b, (char[]){(char)(c >> 24), (char)(c >> 16), (char)(c >> 8), (char)c}, 4);
        } else {
            char p[4];
            trn_sb_add(&b, p, utf8_put(p, c >= 0xd800 && c < 0xe000 ? 0xfffd : c));
        }
    }
    trn_err err = trn_str_set(out, b.p ? b.p : "", b.n);
    trn_sb_fini(&b);
    return err;
}

static bool is_character(int32_t c)
{
    return c >= 0 && c <= 0x10ffff && !(c >= 0xd800 && c < 0xe000) && !(c >= 0xfdd0 && c <= 0xfdef) && (c & 0xfffe) != 0xfffe;
}

static trn_err unicode_encode(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *splits = trn_in(k, 1);
    const char *encoding = trn_attr_str(k->node, "output_encoding");
    policy p;
    TRN_TRY(policy_of(&p, k->node));
    TRN_CHECK_ARG(x->shape.rank == 1 && splits->shape.rank == 1, "input_values and input_splits must be vectors");
    TRN_CHECK_ARG(splits->count > 0, "Input_splits should contain elements, but has none");
    TRN_CHECK_ARG(trn_int_at(splits, 0) == 0, "First value in input_splits must be zero.");
    TRN_CHECK_ARG(trn_int_at(splits, splits->count - 1) == x->count, "Last value in input_splits must be equal to length of input_tensor.");
    for (int64_t i = 1; i < splits->count; i++) {
        TRN_CHECK_ARG(trn_int_at(splits, i - 1) <= trn_int_at(splits, i), "Values in input_splits must be equal or in ascending order.");
        TRN_CHECK_ARG(trn_int_at(splits, i) <= x->count, "Values in input_splits must be less than or equal to input_tensor length.");
    }
    const int32_t *c = TRN_DATA(x, int32_t);
    for (int64_t i = 0; p.strict && i < x->count; i++)
        TRN_CHECK_ARG(is_character(c[i]), "Code point is out of range for Unicode, or a noncharacter.");
    trn_shape s = trn_shape_vector(splits->count - 1);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    trn_sb u = {0};
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < y->count && !err; i++) {
        u.n = 0;
        for (int64_t j = trn_int_at(splits, i); j < trn_int_at(splits, i + 1); j++)
            put16(&u, is_character(c[j]) || p.ignore ? c[j] : p.replacement); /* TensorFlow's "ignore" leaves them as they are, too */
        err = encode(&STR_MUT(y)[i], &u, encoding);
    }
    trn_sb_fini(&u);
    return err;
}

/* ---- decoding ----------------------------------------------------------------------------------------------------------------- */

static trn_err transcode_one(trn_str *out, const trn_str *in, trn_charset *cs, const policy *p, const char *encoding, trn_sb *u, bool *wrong)
{
    const uint8_t *b = (const uint8_t *)trn_str_p(in);
    u->n = 0;
    for (size_t at = 0, len; at < in->len; at += len) {
        bool bad;
        int32_t c = trn_charset_next(cs, b + at, in->len - at, &len, &bad);
        if (bad || (p->no_control && c <= 0x1f)) {
            *wrong = true;
            if (p->ignore)
                continue;
            c = p->replacement;
        }
        put16(u, c);
    }
    return encode(out, u, encoding);
}

static trn_err unicode_transcode(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    const char *encoding = trn_attr_str(k->node, "output_encoding");
    policy p;
    trn_charset *cs;
    trn_tensor *y;
    TRN_TRY(policy_of(&p, k->node));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    TRN_TRY(trn_charset_open(&cs, trn_attr_str(k->node, "input_encoding")));
    trn_sb u = {0};
    bool wrong = false;
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < x->count && !err; i++)
        err = transcode_one(&STR_MUT(y)[i], &STR(x)[i], cs, &p, encoding, &u, &wrong);
    if (!err && wrong && p.strict)
        err = TRN_BAD("Invalid formatting on input string");
    trn_sb_fini(&u);
    trn_charset_close(cs);
    return err;
}

static trn_err vector_of(trn_kctx *k, int i, trn_dtype dtype, const void *p, int64_t n)
{
    trn_shape s = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, i, dtype, &s));
    if (n)
        memcpy(y->data, p, trn_tensor_bytes(y));
    return TRN_OK;
}

static trn_err decode_all(trn_kctx *k, trn_charset *cs, const policy *p, trn_sb *chars, trn_sb *starts)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape s = trn_shape_vector(x->count + 1);
    trn_tensor *splits;
    int64_t n = 0;
    TRN_TRY(trn_out_new(&splits, k, 0, trn_attr_type(k->node, "Tsplits"), &s));
    trn_int_put(splits, 0, 0);
    for (int64_t i = 0; i < x->count; i++) {
        const trn_str *in = &STR(x)[i];
        const uint8_t *b = (const uint8_t *)trn_str_p(in);
        for (size_t at = 0, len; at < in->len; at += len) {
            bool bad;
            int32_t c = trn_charset_next(cs, b + at, in->len - at, &len, &bad);
            TRN_CHECK_ARG(!bad || !p->strict, "Invalid formatting on input string");
            if (bad || (p->no_control && c <= 0x1f)) {
                if (p->ignore)
                    continue;
                c = p->replacement;
            }
            trn_sb_add(chars, &c, sizeof c);
            if (k->n_out == 3)
                trn_sb_add(starts, &(int64_t){(int64_t)at}, sizeof(int64_t));
            n++;
        }
        TRN_CHECK_ARG(splits->dtype == TRN_INT64 || n <= INT32_MAX, "the number of characters does not fit an int32");
        trn_int_put(splits, i + 1, n);
    }
    TRN_TRY(vector_of(k, 1, TRN_INT32, chars->p, n));
    return k->n_out == 3 ? vector_of(k, 2, TRN_INT64, starts->p, n) : TRN_OK;
}

static trn_err unicode_decode(trn_kctx *k)
{
    policy p;
    trn_charset *cs;
    TRN_TRY(policy_of(&p, k->node));
    TRN_TRY(trn_charset_open(&cs, trn_attr_str(k->node, "input_encoding")));
    trn_sb chars = {0}, starts = {0};
    trn_err err = decode_all(k, cs, &p, &chars, &starts);
    trn_sb_fini(&chars);
    trn_sb_fini(&starts);
    trn_charset_close(cs);
    return err;
}

typedef struct scripts {
    int32_t *y;
    const int32_t *x;
} scripts;

static void some_scripts(void *arg, int64_t begin, int64_t end)
{
    const scripts *s = arg;
    for (int64_t i = begin; i < end; i++)
        s->y[i] = trn_unicode_script(s->x[i]);
}

static trn_err unicode_script(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    trn_k_for(k, x->count, 4096, some_scripts, &(scripts){TRN_DATA_MUT(y, int32_t), TRN_DATA(x, int32_t)});
    return TRN_OK;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------------- */

static trn_err sh_encode(trn_shctx *s)
{
    TRN_CHECK_ARG((s->in[0].rank < 0 || s->in[0].rank == 1) && (s->in[1].rank < 0 || s->in[1].rank == 1), "Shape must be rank 1: input_values and input_splits are vectors");
    int64_t n = s->in[1].rank == 1 ? s->in[1].dim[0] : -1;
    TRN_CHECK_ARG(n, "input_splits has no elements");
    s->out[0] = trn_shape_vector(n < 0 ? -1 : n - 1);
    return TRN_OK;
}

static trn_err sh_decode(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    int64_t n = -1;
    bool known = x->rank >= 0;
    for (int i = 0; i < x->rank; i++)
        known = known && x->dim[i] >= 0;
    if (known)
        TRN_TRY(trn_shape_count(&n, x));
    s->out[0] = trn_shape_vector(known ? n + 1 : -1);
    for (int i = 1; i < s->n_out; i++)
        s->out[i] = trn_shape_vector(-1);
    return TRN_OK;
}

#define FROM "input_encoding:string, "
#define TO "output_encoding:{UTF-8,UTF-16-BE,UTF-32-BE}"
#define WRONG "errors:{strict,replace,ignore}=replace, replacement_char:int=65533, replace_control_characters:bool=false"
#define SPLITS ", Tsplits:i32|i64=i64"

const trn_op trn_ops_unicode[] = {
    {"UnicodeScript", "input:i32 -> output:i32", trn_sh_same, unicode_script, 0},
    {"UnicodeEncode", "input_values:i32, input_splits:Tsplits -> output:str; errors:{ignore,replace,strict}=replace, " TO ", replacement_char:int=65533" SPLITS, sh_encode, unicode_encode, 0},
    {"UnicodeTranscode", "input:str -> output:str; " FROM TO ", " WRONG, trn_sh_same, unicode_transcode, 0},
    {"UnicodeDecode", "input:str -> row_splits:Tsplits, char_values:i32; " FROM WRONG SPLITS, sh_decode, unicode_decode, 0},
    {"UnicodeDecodeWithOffsets", "input:str -> row_splits:Tsplits, char_values:i32, char_to_byte_starts:i64; " FROM WRONG SPLITS, sh_decode, unicode_decode, 0},
    {0},
};
