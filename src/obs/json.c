#include "obs/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void indent(trn_json *j)
{
    trn_sb_adds(j->out, "\n");
    for (int i = 0; i < j->depth; i++)
        trn_sb_adds(j->out, "  ");
}

/* Length of the UTF-8 character at p, 0 when it is none. */
static size_t utf8(const unsigned char *p, size_t n)
{
    size_t k = p[0] < 0x80 ? 1 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;
    if (k == 0 || k > n)
        return 0;
    for (size_t i = 1; i < k; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90);
    return bad ? 0 : k;
}

static void quote(trn_sb *out, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    trn_sb_adds(out, "\"");
    for (size_t i = 0; i < n;) {
        size_t k = utf8(p + i, n - i);
        if (k == 0 || p[i] == 0) { /* many readers refuse a zero */
            trn_sb_adds(out, "\xef\xbf\xbd"); /* the replacement character */
            k = 1;
        } else if (k > 1) {
            trn_sb_add(out, p + i, k);
        } else if (p[i] == '"' || p[i] == '\\') {
            char two[2] = {'\\', (char)p[i]};
            trn_sb_add(out, two, 2);
        } else if (p[i] == '\n') {
            trn_sb_adds(out, "\\n");
        } else if (p[i] < 0x20 || p[i] == 0x7f) {
            trn_sb_addf(out, "\\u%04x", p[i]);
        } else {
            trn_sb_add(out, p + i, 1);
        }
        i += k;
    }
    trn_sb_adds(out, "\"");
}

static void begin(trn_json *j, const char *key)
{
    if (j->some[j->depth])
        trn_sb_adds(j->out, ",");
    j->some[j->depth] = true;
    if (j->pretty && j->depth > 0)
        indent(j);
    if (key) {
        quote(j->out, key, strlen(key));
        trn_sb_adds(j->out, j->pretty ? ": " : ":");
    }
}

void trn_json_open(trn_json *j, const char *key, char kind)
{
    begin(j, key);
    trn_sb_add(j->out, &kind, 1);
    if (j->depth + 1 < (int)TRN_COUNTOF(j->close))
        j->depth++;
    j->close[j->depth] = kind == '{' ? '}' : ']';
    j->some[j->depth] = false;
}

void trn_json_close(trn_json *j)
{
    bool some = j->some[j->depth];
    char c = j->close[j->depth--];
    if (j->pretty && some)
        indent(j);
    trn_sb_add(j->out, &c, 1);
    if (j->pretty && j->depth == 0)
        trn_sb_adds(j->out, "\n");
}

void trn_json_strn(trn_json *j, const char *key, const char *text, size_t n)
{
    begin(j, key);
    quote(j->out, text, n);
}

void trn_json_str(trn_json *j, const char *key, const char *text)
{
    if (text)
        trn_json_strn(j, key, text, strlen(text));
    else
        trn_json_null(j, key);
}

void trn_json_strf(trn_json *j, const char *key, const char *fmt, ...)
{
    trn_sb s = {0};
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&s, fmt, ap);
    va_end(ap);
    trn_json_strn(j, key, s.p ? s.p : "", s.n);
    trn_sb_fini(&s);
}

void trn_json_int(trn_json *j, const char *key, int64_t v)
{
    begin(j, key);
    trn_sb_addf(j->out, "%" PRId64, v);
}

void trn_json_uint(trn_json *j, const char *key, uint64_t v)
{
    begin(j, key);
    trn_sb_addf(j->out, "%" PRIu64, v);
}

void trn_json_num(trn_json *j, const char *key, double v)
{
    begin(j, key);
    if (!isfinite(v))
        trn_sb_adds(j->out, "null");
    else if (fabs(v) >= 1e5 && fabs(v) < 9e15 && v == floor(v))
        trn_sb_addf(j->out, "%.0f", v);
    else
        trn_sb_addf(j->out, "%.6g", v);
}

void trn_json_bool(trn_json *j, const char *key, bool v)
{
    begin(j, key);
    trn_sb_adds(j->out, v ? "true" : "false");
}

void trn_json_null(trn_json *j, const char *key)
{
    begin(j, key);
    trn_sb_adds(j->out, "null");
}

void trn_json_raw(trn_json *j, const char *key, const char *json, size_t n)
{
    begin(j, key);
    trn_sb_add(j->out, json, n);
}
