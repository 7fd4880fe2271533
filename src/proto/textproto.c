#include "proto/textproto.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_DEPTH = 64, MAX_FIELDS = 128, NAME_MAX_LEN = 255, NUMBER_MAX_LEN = 63 };

typedef struct reader {
    const char *p, *end;
    int line;
    int depth;
} reader;

#define FAIL(r, ...) return fail((r)->line, __VA_ARGS__)

static trn_err TRN_PRINTF(2, 3) fail(int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return trn_errorf(TRN_INVALID_ARGUMENT, "line %d: %s", line, text);
}

/* ---- characters ------------------------------------------------------------------------------------------------ */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static void skip_space(reader *r)
{
    for (; r->p < r->end; r->p++) {
        if (*r->p == '\n')
            r->line++;
        else if (*r->p == '#')
            while (r->p + 1 < r->end && r->p[1] != '\n')
                r->p++;
        else if (!is_space(*r->p))
            break;
    }
}

static char peek(reader *r)
{
    skip_space(r);
    return r->p < r->end ? *r->p : 0;
}

static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->p >= r->end || *r->p != c)
        return false;
    r->p++;
    return true;
}

/* A name, or with `number` everything a number may be made of. */
static trn_err take_token(reader *r, char *out, size_t max, bool number)
{
    skip_space(r);
    const char *q = r->p;
    while (q < r->end && (is_name(*q) || (number && (*q == '.' || *q == '+' || *q == '-'))))
        q++;
    size_t n = (size_t)(q - r->p);
    if (n == 0)
        FAIL(r, r->p < r->end ? "unexpected '%c'" : "unexpected end of text", r->p < r->end ? *r->p : ' ');
    if (n > max)
        FAIL(r, "'%.20s…' is too long", r->p);
    memcpy(out, r->p, n);
    out[n] = 0;
    r->p = q;
    return TRN_OK;
}

static int hex_value(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void add_utf8(trn_sb *out, uint32_t c)
{
    char b[4];
    if (c < 0x80) {
        b[0] = (char)c;
        trn_sb_add(out, b, 1);
    } else if (c < 0x800) {
        b[0] = (char)(0xc0 | c >> 6), b[1] = (char)(0x80 | (c & 63));
        trn_sb_add(out, b, 2);
    } else if (c < 0x10000) {
        b[0] = (char)(0xe0 | c >> 12), b[1] = (char)(0x80 | (c >> 6 & 63)), b[2] = (char)(0x80 | (c & 63));
        trn_sb_add(out, b, 3);
    } else {
        b[0] = (char)(0xf0 | c >> 18), b[1] = (char)(0x80 | (c >> 12 & 63)), b[2] = (char)(0x80 | (c >> 6 & 63)),
        b[3] = (char)(0x80 | (c & 63));
        trn_sb_add(out, b, 4);
    }
}

/* The character after a backslash, up to what it stands for. */
static trn_err take_escape(reader *r, trn_sb *out)
{
    static const char from[] = "abfnrtv\\'\"?", to[] = "\a\b\f\n\r\t\v\\'\"?";
    if (r->p >= r->end)
        FAIL(r, "the text ends in an escape");
    char c = *r->p++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        trn_sb_add(out, &to[simple - from], 1);
        return TRN_OK;
    }
    uint32_t v = 0;
    if (c >= '0' && c <= '7') {
        v = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && r->p < r->end && *r->p >= '0' && *r->p <= '7'; i++)
            v = v * 8 + (uint32_t)(*r->p++ - '0');
        char b = (char)v;
        trn_sb_add(out, &b, 1);
        return TRN_OK;
    }
    int max = c == 'x' || c == 'X' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, got = 0;
    for (; got < max && r->p < r->end && hex_value(*r->p) >= 0; got++)
        v = v << 4 | (uint32_t)hex_value(*r->p++);
    if (got == 0 || (max > 2 && (got < max || v > 0x10ffff)))
        FAIL(r, "bad escape in a string");
    if (max == 2) {
        char b = (char)v;
        trn_sb_add(out, &b, 1);
    } else {
        add_utf8(out, v);
    }
    return TRN_OK;
}

/* One or several strings in a row, which are one. */
static trn_err take_string(reader *r, trn_sb *out)
{
    char quote = peek(r);
    if (quote != '"' && quote != '\'')
        FAIL(r, "a string in quotes is expected");
    do {
        r->p++;
        for (;; r->p++) {
            if (r->p >= r->end || *r->p == '\n')
                FAIL(r, "a string has no end");
            if (*r->p == quote)
                break;
            if (*r->p != '\\') {
                trn_sb_add(out, r->p, 1);
                continue;
            }
            r->p++;
            TRN_TRY(take_escape(r, out));
            r->p--;
        }
        r->p++;
        quote = peek(r);
    } while (quote == '"' || quote == '\'');
    return TRN_OK;
}

/* ---- wire ------------------------------------------------------------------------------------------------------ */

static void add_varint(trn_sb *out, uint64_t v)
{
    uint8_t b[10];
    size_t n = 0;
    for (; v >= 0x80; v >>= 7)
        b[n++] = (uint8_t)(v | 0x80);
    b[n++] = (uint8_t)v;
    trn_sb_add(out, b, n);
}

static void add_fixed(trn_sb *out, uint64_t v, size_t bytes)
{
    uint8_t b[8];
    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(v >> 8 * i);
    trn_sb_add(out, b, bytes);
}

static void add_tag(trn_sb *out, const ProtobufCFieldDescriptor *f, int wire_type)
{
    add_varint(out, (uint64_t)f->id << 3 | (uint64_t)wire_type);
}

static void add_bytes(trn_sb *out, const ProtobufCFieldDescriptor *f, const trn_sb *bytes)
{
    add_tag(out, f, 2);
    add_varint(out, bytes->n);
    if (bytes->n)
        trn_sb_add(out, bytes->p, bytes->n);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static trn_err integer(reader *r, const ProtobufCFieldDescriptor *f, int64_t min, uint64_t max, uint64_t *out)
{
    char t[NUMBER_MAX_LEN + 1], *end;
    TRN_TRY(take_token(r, t, NUMBER_MAX_LEN, true));
    bool negative = t[0] == '-';
    const char *digits = t + negative;
    errno = 0;
    uint64_t v = strtoull(digits, &end, 0);
    if (!is_digit(digits[0]) || *end || errno)
        FAIL(r, "%s: '%s' is not an integer", f->name, t);
    uint64_t low = (uint64_t)0 - (uint64_t)min; /* |min| */
    if (negative ? v > low : v > max)
        FAIL(r, "%s: %s is out of range", f->name, t);
    *out = negative ? (uint64_t)0 - v : v;
    return TRN_OK;
}

static trn_err real(reader *r, const ProtobufCFieldDescriptor *f, double *out)
{
    char t[NUMBER_MAX_LEN + 1], *end;
    TRN_TRY(take_token(r, t, NUMBER_MAX_LEN, true));
    *out = strtod(t, &end);
    if (end != t && (*end == 'f' || *end == 'F'))
        end++;
    if (end == t || *end)
        FAIL(r, "%s: '%s' is not a number", f->name, t);
    return TRN_OK;
}

static trn_err boolean(reader *r, const ProtobufCFieldDescriptor *f, uint64_t *out)
{
    static const char *const words[][2] = {{"false", "true"}, {"False", "True"}, {"f", "t"}, {"0", "1"}};
    char t[NUMBER_MAX_LEN + 1];
    TRN_TRY(take_token(r, t, NUMBER_MAX_LEN, false));
    for (size_t i = 0; i < TRN_COUNTOF(words); i++)
        for (uint64_t v = 0; v < 2; v++)
            if (strcmp(t, words[i][v]) == 0) {
                *out = v;
                return TRN_OK;
            }
    FAIL(r, "%s: '%s' is neither true nor false", f->name, t);
}

static trn_err enumeration(reader *r, const ProtobufCFieldDescriptor *f, uint64_t *out)
{
    char c = peek(r);
    if (c == '-' || is_digit(c))
        return integer(r, f, INT32_MIN, INT32_MAX, out);
    char t[NAME_MAX_LEN + 1];
    TRN_TRY(take_token(r, t, NAME_MAX_LEN, false));
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value_by_name(f->descriptor, t);
    if (!v)
        FAIL(r, "%s: '%s' is not one of its values", f->name, t);
    *out = (uint64_t)(int64_t)v->value;
    return TRN_OK;
}

static trn_err fields(reader *r, trn_sb *out, const ProtobufCMessageDescriptor *type, char close);
static trn_err skip_value(reader *r);

static trn_err message(reader *r, trn_sb *out, const ProtobufCFieldDescriptor *f)
{
    char close = take(r, '{') ? '}' : take(r, '<') ? '>' : 0;
    if (!close)
        FAIL(r, "%s: a message in { } is expected", f->name);
    trn_sb body = {0};
    trn_err err = fields(r, &body, f->descriptor, close);
    if (!err)
        add_bytes(out, f, &body);
    trn_sb_fini(&body);
    return err;
}

static trn_err value(reader *r, trn_sb *out, const ProtobufCFieldDescriptor *f)
{
    uint64_t v = 0;
    double d = 0;
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
        TRN_TRY(integer(r, f, INT32_MIN, INT32_MAX, &v));
        break;
    case PROTOBUF_C_TYPE_SINT32:
        TRN_TRY(integer(r, f, INT32_MIN, INT32_MAX, &v));
        v = v << 1 ^ (uint64_t)((int64_t)v >> 63);
        break;
    case PROTOBUF_C_TYPE_INT64:
        TRN_TRY(integer(r, f, INT64_MIN, INT64_MAX, &v));
        break;
    case PROTOBUF_C_TYPE_SINT64:
        TRN_TRY(integer(r, f, INT64_MIN, INT64_MAX, &v));
        v = v << 1 ^ (uint64_t)((int64_t)v >> 63);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        TRN_TRY(integer(r, f, 0, UINT32_MAX, &v));
        break;
    case PROTOBUF_C_TYPE_UINT64:
        TRN_TRY(integer(r, f, 0, UINT64_MAX, &v));
        break;
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
        TRN_TRY(f->type == PROTOBUF_C_TYPE_FIXED32 ? integer(r, f, 0, UINT32_MAX, &v)
                                                   : integer(r, f, INT32_MIN, INT32_MAX, &v));
        add_tag(out, f, 5);
        add_fixed(out, v, 4);
        return TRN_OK;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
        TRN_TRY(f->type == PROTOBUF_C_TYPE_FIXED64 ? integer(r, f, 0, UINT64_MAX, &v)
                                                   : integer(r, f, INT64_MIN, INT64_MAX, &v));
        add_tag(out, f, 1);
        add_fixed(out, v, 8);
        return TRN_OK;
    case PROTOBUF_C_TYPE_FLOAT: {
        TRN_TRY(real(r, f, &d));
        float single = fabs(d) <= (double)__FLT_MAX__ || !isfinite(d) ? (float)d : d > 0 ? INFINITY : -INFINITY;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        add_tag(out, f, 5);
        add_fixed(out, bits, 4);
        return TRN_OK;
    }
    case PROTOBUF_C_TYPE_DOUBLE:
        TRN_TRY(real(r, f, &d));
        memcpy(&v, &d, 8);
        add_tag(out, f, 1);
        add_fixed(out, v, 8);
        return TRN_OK;
    case PROTOBUF_C_TYPE_BOOL:
        TRN_TRY(boolean(r, f, &v));
        break;
    case PROTOBUF_C_TYPE_ENUM:
        TRN_TRY(enumeration(r, f, &v));
        break;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES: {
        char c = peek(r);
        if (f->type == PROTOBUF_C_TYPE_BYTES && (c == '{' || c == '<'))
            return skip_value(r);
        trn_sb s = {0};
        trn_err err = take_string(r, &s);
        if (!err)
            add_bytes(out, f, &s);
        trn_sb_fini(&s);
        return err;
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        return message(r, out, f);
    }
    add_tag(out, f, 0);
    add_varint(out, v);
    return TRN_OK;
}

/* ---- fields ---------------------------------------------------------------------------------------------------- */

static trn_err deeper(reader *r)
{
    if (++r->depth > MAX_DEPTH)
        FAIL(r, "more than %d levels of nesting", MAX_DEPTH);
    return TRN_OK;
}

/* What a message has had so far. A field that takes one value, or another of its oneof, is refused the second time, as by TensorFlow: two messages in one
 * field would have to be merged, which protobuf-c cannot do where a oneof is not set. */
typedef struct had {
    const ProtobufCFieldDescriptor *f[MAX_FIELDS];
    unsigned n;
} had;

static trn_err once(reader *r, had *h, const ProtobufCFieldDescriptor *f)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        return TRN_OK;
    bool oneof = f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
    for (unsigned i = 0; i < h->n; i++) {
        const ProtobufCFieldDescriptor *g = h->f[i];
        if (g == f)
            FAIL(r, "%s: takes one value and has one already", f->name);
        if (oneof && g->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && g->quantifier_offset == f->quantifier_offset)
            FAIL(r, "%s: %s stands here already, only one of them can be set", f->name, g->name);
    }
    if (h->n == MAX_FIELDS)
        FAIL(r, "more than %d fields in one message", MAX_FIELDS);
    h->f[h->n++] = f;
    return TRN_OK;
}

/* Also used with type NULL: reads over everything and writes nothing. */
static trn_err one_field(reader *r, trn_sb *out, const ProtobufCMessageDescriptor *type, had *h)
{
    const ProtobufCFieldDescriptor *f = NULL;
    if (take(r, '[')) { /* extension or Any */
        while (r->p < r->end && *r->p != ']' && *r->p != '\n')
            r->p++;
        if (!take(r, ']'))
            FAIL(r, "'[' without ']'");
    } else {
        char name[NAME_MAX_LEN + 1];
        TRN_TRY(take_token(r, name, NAME_MAX_LEN, false));
        if (type)
            f = protobuf_c_message_descriptor_get_field_by_name(type, name);
    }
    bool colon = take(r, ':');
    char c = peek(r);
    if (!colon && c != '{' && c != '<')
        FAIL(r, "':' or '{' is expected after '%s'", f ? f->name : "a field's name");
    if (f)
        TRN_TRY(once(r, h, f));
    if (!f) {
        TRN_TRY(skip_value(r));
    } else if (c == '[') {
        r->p++;
        if (f->label != PROTOBUF_C_LABEL_REPEATED)
            FAIL(r, "%s: takes one value, not a list", f->name);
        if (!take(r, ']'))
            do {
                TRN_TRY(value(r, out, f));
                if (take(r, ']'))
                    break;
                if (!take(r, ','))
                    FAIL(r, "%s: ',' or ']' is expected in a list", f->name);
            } while (true);
    } else {
        TRN_TRY(value(r, out, f));
    }
    if (!take(r, ','))
        (void)take(r, ';');
    return TRN_OK;
}

/* Up to `close`, or to the end of the text when it is 0. */
static trn_err fields(reader *r, trn_sb *out, const ProtobufCMessageDescriptor *type, char close)
{
    TRN_TRY(deeper(r));
    int begin = r->line;
    had h;
    h.n = 0; /* the rest is written before it is read */
    while (true) {
        char c = peek(r);
        if (r->p >= r->end) {
            if (close)
                return fail(begin, "'%c' without '%c'", close == '}' ? '{' : '<', close);
            break;
        }
        if (close && c == close) {
            r->p++;
            break;
        }
        TRN_TRY(one_field(r, out, type, &h));
    }
    r->depth--;
    return TRN_OK;
}

static trn_err skip_value(reader *r)
{
    char c = peek(r);
    if (c == '{' || c == '<') {
        r->p++;
        return fields(r, NULL, NULL, c == '{' ? '}' : '>');
    }
    if (c == '"' || c == '\'') {
        trn_sb s = {0};
        trn_err err = take_string(r, &s);
        trn_sb_fini(&s);
        return err;
    }
    if (c == '[') {
        r->p++;
        TRN_TRY(deeper(r));
        while (!take(r, ']')) {
            TRN_TRY(skip_value(r));
            (void)take(r, ',');
        }
        r->depth--;
        return TRN_OK;
    }
    char t[NAME_MAX_LEN + 1];
    return take_token(r, t, NAME_MAX_LEN, true);
}

trn_err trn_textproto_encode(trn_sb *out, const ProtobufCMessageDescriptor *type, const char *text, size_t n)
{
    reader r = {.p = text, .end = text + n, .line = 1};
    return fields(&r, out, type, 0);
}
