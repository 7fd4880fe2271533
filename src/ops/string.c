/* Strings: joining, splitting, matching, numbers to and from text, hashes, encodings. */
#include "ops/kern.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <wctype.h>

#include "ops/control.h"
#include "ops/regex.h"

#define STR(t) TRN_DATA(t, trn_str)
#define STR_MUT(t) TRN_DATA_MUT(t, trn_str)

static trn_err put_sb(trn_str *s, const trn_sb *b) { return trn_str_set(s, b->p ? b->p : "", b->n); }

/* ---- StringJoin, ReduceJoin -------------------------------------------------------------------------------------------------------- */

static trn_err k_string_join(trn_kctx *k)
{
    const trn_attr *sep = trn_node_attr(k->node, "separator");
    trn_shape s = trn_shape_scalar();
    for (int i = 0; i < k->n_in; i++) {
        const trn_shape *q = &trn_in(k, i)->shape;
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        if (q->rank == 0)
            continue;
        TRN_CHECK_ARG(s.rank == 0 || trn_shape_eq(&s, q), "Input shapes do not match: %s vs. %s", trn_shape_text(a, &s), trn_shape_text(b, q));
        s = *q;
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    for (int64_t i = 0; i < y->count; i++) {
        size_t n = 0;
        for (int j = 0; j < k->n_in; j++)
            n += STR(trn_in(k, j))[trn_is_scalar(trn_in(k, j)) ? 0 : i].len + (j ? sep->v.s.n : 0);
        char *p;
        TRN_TRY(trn_str_alloc(&p, &STR_MUT(y)[i], n));
        for (int j = 0; j < k->n_in; j++) {
            const trn_str *x = &STR(trn_in(k, j))[trn_is_scalar(trn_in(k, j)) ? 0 : i];
            if (j) {
                memcpy(p, sep->v.s.p, sep->v.s.n);
                p += sep->v.s.n;
            }
            memcpy(p, trn_str_p(x), x->len);
            p += x->len;
        }
    }
    return TRN_OK;
}
static trn_err sh_string_join(trn_shctx *s)
{
    trn_shape r = trn_shape_scalar();
    for (int i = 0; i < s->n_in; i++) {
        if (s->in[i].rank < 0)
            return trn_sh_unknown(s);
        if (s->in[i].rank > 0)
            TRN_TRY(r.rank == 0 ? (r = s->in[i], TRN_OK) : trn_sh_meet(&r, &r, &s->in[i]));
    }
    s->out[0] = r;
    return TRN_OK;
}

/* Joins along the axes in the order given: the first one runs fastest. */
static trn_err k_reduce_join(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *ax = trn_in(k, 1);
    const trn_attr *sep = trn_node_attr(k->node, "separator");
    bool red[TRN_MAX_RANK] = {false}, keep = trn_attr_bool(k->node, "keep_dims");
    int64_t stride[TRN_MAX_RANK];
    int order[TRN_MAX_RANK], n = 0, r = x->shape.rank;
    TRN_CHECK_ARG(ax->shape.rank <= 1, "reduction_indices must be a scalar or a vector");
    trn_row_strides(stride, &x->shape);
    for (int64_t i = 0; i < ax->count; i++) {
        int a;
        int64_t v = trn_int_at(ax, i);
        if (v < -r || v >= r)
            return trn_errorf(TRN_OUT_OF_RANGE, "Invalid reduction dimension %lld for input with %d dimension(s)", (long long)v, r);
        a = (int)(v < 0 ? v + r : v);
        TRN_CHECK_ARG(!red[a], "Duplicate reduction dimension %d", a);
        red[a] = true;
        order[n++] = a;
    }
    int64_t per = 1;
    trn_shape s = {.rank = 0}, kept = {.rank = 0};
    int64_t ks[TRN_MAX_RANK];
    for (int i = 0; i < r; i++) {
        if (red[i]) {
            per = trn_times(per, x->shape.dim[i]);
            if (keep)
                s.dim[s.rank++] = 1;
            continue;
        }
        ks[kept.rank] = stride[i];
        kept.dim[kept.rank++] = x->shape.dim[i];
        s.dim[s.rank++] = x->shape.dim[i];
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    trn_sb b = {0};
    trn_err e = TRN_OK;
    for (int64_t i = 0; i < y->count && !e; i++) {
        int64_t base = 0, rest = i;
        for (int d = kept.rank - 1; d >= 0; d--) {
            base += rest % kept.dim[d] * ks[d];
            rest /= kept.dim[d];
        }
        b.n = 0;
        for (int64_t q = 0; q < per; q++) {
            int64_t at = base;
            rest = q;
            /* The last listed axis is the outermost. */
            for (int d = 0; d < n; d++) {
                at += rest % x->shape.dim[order[d]] * stride[order[d]];
                rest /= x->shape.dim[order[d]];
            }
            if (q)
                trn_sb_add(&b, sep->v.s.p, sep->v.s.n);
            trn_sb_add(&b, trn_str_p(&STR(x)[at]), STR(x)[at].len);
        }
        e = put_sb(&STR_MUT(y)[i], &b);
    }
    trn_sb_fini(&b);
    return e;
}

/* ---- one string to one value ---------------------------------------------------------------------------------------------------------- */

static bool utf8_unit(const trn_node *n) { return !strcmp(trn_attr_str(n, "unit"), "UTF8_CHAR"); }

/* Characters, counted by their first bytes. */
static int64_t utf8_chars(const char *p, size_t n)
{
    int64_t c = 0;
    for (size_t i = 0; i < n; i++)
        c += (p[i] & 0xc0) != 0x80;
    return c;
}

static trn_err k_string_length(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bool utf8 = utf8_unit(k->node);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        int64_t n = utf8 ? utf8_chars(trn_str_p(&STR(x)[i]), STR(x)[i].len) : STR(x)[i].len;
        TRN_DATA_MUT(y, int32_t)[i] = (int32_t)TRN_MIN(n, (int64_t)INT32_MAX);
    }
    return TRN_OK;
}

static bool ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static trn_err k_string_strip(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        const char *p = trn_str_p(&STR(x)[i]), *e = p + STR(x)[i].len;
        while (p < e && ascii_space(*p))
            p++;
        while (e > p && ascii_space(e[-1]))
            e--;
        TRN_TRY(trn_str_set(&STR_MUT(y)[i], p, (size_t)(e - p)));
    }
    return TRN_OK;
}

static locale_t utf8_locale;
static void make_locale(void) { utf8_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0); }

static int put_utf8(char *b, uint32_t c)
{
    if (c < 0x80)
        return b[0] = (char)c, 1;
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        b[i] = (char)(0x80 | (c & 0x3f));
    b[0] = (char)((0xf00 >> n & 0xff) | c);
    return n;
}

static trn_err change_case(trn_kctx *k, bool up)
{
    const trn_tensor *x = trn_in(k, 0);
    const char *enc = trn_attr_str(k->node, "encoding");
    TRN_CHECK_ARG(!*enc || !strcmp(enc, "utf-8"), "only utf-8 or '' (no encoding) is supported, received %s", enc);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (*enc)
        pthread_once(&once, make_locale);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    trn_sb b = {0};
    trn_err e = TRN_OK;
    for (int64_t i = 0; i < x->count && !e; i++) {
        const char *p = trn_str_p(&STR(x)[i]);
        size_t n = STR(x)[i].len;
        b.n = 0;
        for (size_t q = 0; q < n;) {
            unsigned char c = (unsigned char)p[q];
            int len = *enc ? trn_utf8_len(p + q, n - q) : 1;
            char out[4];
            if (len == 1) {
                out[0] = (char)(up ? (c >= 'a' && c <= 'z' ? c - 32 : c) : (c >= 'A' && c <= 'Z' ? c + 32 : c));
                trn_sb_add(&b, out, 1);
            } else {
                uint32_t v = c & (0x7fu >> len);
                for (int j = 1; j < len; j++)
                    v = v << 6 | ((unsigned char)p[q + (size_t)j] & 0x3f);
                if (utf8_locale)
                    v = (uint32_t)(up ? towupper_l((wint_t)v, utf8_locale) : towlower_l((wint_t)v, utf8_locale));
                trn_sb_add(&b, out, (size_t)put_utf8(out, v));
            }
            q += (size_t)len;
        }
        e = put_sb(&STR_MUT(y)[i], &b);
    }
    trn_sb_fini(&b);
    return e;
}
static trn_err k_lower(trn_kctx *k) { return change_case(k, false); }
static trn_err k_upper(trn_kctx *k) { return change_case(k, true); }

/* Byte offset of character i (or the end). */
static size_t utf8_offset(const char *p, size_t n, int64_t i)
{
    size_t at = 0;
    while (at < n && i > 0) {
        at++;
        while (at < n && (p[at] & 0xc0) == 0x80)
            at++;
        i--;
    }
    return at;
}

static trn_err k_substr(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *pos = trn_in(k, 1), *len = trn_in(k, 2);
    bool utf8 = utf8_unit(k->node);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&pos->shape, &len->shape), "pos and len should have the same shape, got: %s vs. %s", trn_shape_text(ta, &pos->shape),
                  trn_shape_text(tb, &len->shape));
    trn_bcast c;
    TRN_TRY(trn_bcast_make(&c, &x->shape, &pos->shape));
    if (c.out.rank > 2 && pos->shape.rank > 0 && !trn_shape_eq(&x->shape, &pos->shape)) /* TensorFlow's limit: programs count on the error */
        return trn_errorf(TRN_UNIMPLEMENTED, "Substr broadcast not implemented for %d dimensions", c.out.rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &c.out));
    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i, xi = 0, pi = 0;
        for (int d = c.rank - 1; d >= 0; d--) {
            xi += rest % c.dim[d] * c.sa[d];
            pi += rest % c.dim[d] * c.sb[d];
            rest /= c.dim[d];
        }
        const char *p = trn_str_p(&STR(x)[xi]);
        size_t n = STR(x)[xi].len;
        int64_t units = utf8 ? utf8_chars(p, n) : (int64_t)n, at = trn_int_at(pos, pi), want = trn_int_at(len, pi);
        TRN_CHECK_ARG(at >= -units && at <= units, "pos %lld out of range for string b'%.*s' at index %lld", (long long)at, (int)TRN_MIN(n, (size_t)60), p,
                      (long long)i);
        at += at < 0 ? units : 0;
        want = want < 0 ? 0 : TRN_MIN(want, units - at);
        size_t from = utf8 ? utf8_offset(p, n, at) : (size_t)at, to = utf8 ? from + utf8_offset(p + from, n - from, want) : (size_t)(at + want);
        TRN_TRY(trn_str_set(&STR_MUT(y)[i], p + from, to - from));
    }
    return TRN_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------------------------------- */

/* As printf's %s does it: up to the first zero byte, cut to `precision`, then filled up to `width`. */
static trn_err pad_strings(trn_kctx *k, const trn_tensor *x, int64_t width, int64_t precision, bool left)
{
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        const char *p = trn_str_p(&STR(x)[i]);
        size_t n = strnlen(p, STR(x)[i].len);
        n = precision >= 0 ? TRN_MIN(n, (size_t)precision) : n;
        size_t pad = n < (size_t)width ? (size_t)width - n : 0;
        char *to;
        TRN_TRY(trn_str_alloc(&to, &STR_MUT(y)[i], n + pad));
        memset(to + (left ? n : 0), ' ', pad);
        memcpy(to + (left ? 0 : pad), p, n);
    }
    return TRN_OK;
}

static trn_err k_as_string(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t precision = trn_attr_int(k->node, "precision"), width = trn_attr_int(k->node, "width");
    bool sci = trn_attr_bool(k->node, "scientific"), shortest = trn_attr_bool(k->node, "shortest");
    const char *fill = trn_attr_str(k->node, "fill");
    bool flt = trn_is_half(x->dtype) || x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE, cpx = x->dtype == TRN_COMPLEX64 || x->dtype == TRN_COMPLEX128;
    TRN_CHECK_ARG(!(sci && shortest), "Cannot select both scientific and shortest notation");
    bool str = x->dtype == TRN_STRING;
    TRN_CHECK_ARG(flt || cpx || str || (!sci && !shortest), "scientific and shortest format not supported for datatype %s", trn_dtype_name(x->dtype));
    TRN_CHECK_ARG(flt || cpx || str || precision < 0, "precision not supported for datatype %s", trn_dtype_name(x->dtype));
    TRN_CHECK_ARG(strlen(fill) <= 1, "Fill string must be one or fewer characters");
    TRN_CHECK_ARG(!*fill || strchr("0+ -#", *fill), "Fill argument not supported: \"%s\"", fill);
    TRN_CHECK_ARG(width < 4096 && precision < 4096, "width and precision must be below 4096");
    if (str && width > 0)
        return pad_strings(k, x, width, precision, *fill == '-');
    if (str) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    char f[32];
    int n = snprintf(f, sizeof f, "%%%s", fill);
    if (width > -1)
        n += snprintf(f + n, sizeof f - (size_t)n, "%d", (int)width);
    if (precision > -1)
        n += snprintf(f + n, sizeof f - (size_t)n, ".%d", (int)precision);
    bool uns = x->dtype == TRN_UINT8 || x->dtype == TRN_UINT16 || x->dtype == TRN_UINT32 || x->dtype == TRN_UINT64;
    snprintf(f + n, sizeof f - (size_t)n, "%s", flt || cpx ? (shortest ? "g" : sci ? "e" : "f") : x->dtype == TRN_BOOL ? "s" : uns ? PRIu64 : PRId64);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    size_t cap = 2 * 4096 + 1024;
    char *b = malloc(cap);
    if (!b)
        return trn_err_oom();
    trn_err e = TRN_OK;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    for (int64_t i = 0; i < x->count && !e; i++) {
        int len = 0;
        switch (x->dtype) {
        case TRN_BOOL: len = snprintf(b, cap, "%s", TRN_DATA(x, uint8_t)[i] ? "true" : "false"); break; /* whatever the width */
        case TRN_FLOAT: len = snprintf(b, cap, f, (double)TRN_DATA(x, float)[i]); break;
        case TRN_DOUBLE: len = snprintf(b, cap, f, TRN_DATA(x, double)[i]); break;
        case TRN_HALF:
        case TRN_BFLOAT16: {
            float v;
            trn_widen(&v, TRN_DATA(x, uint16_t) + i, x->dtype, 1);
            len = snprintf(b, cap, f, (double)v);
            break;
        }
        case TRN_COMPLEX64:
        case TRN_COMPLEX128: {
            double re = x->dtype == TRN_COMPLEX64 ? (double)TRN_DATA(x, float)[2 * i] : TRN_DATA(x, double)[2 * i];
            double im = x->dtype == TRN_COMPLEX64 ? (double)TRN_DATA(x, float)[2 * i + 1] : TRN_DATA(x, double)[2 * i + 1];
            b[0] = '(';
            len = 1 + snprintf(b + 1, cap - 1, f, re);
            b[len++] = ',';
            len += snprintf(b + len, cap - (size_t)len, f, im);
            b[len++] = ')';
            break;
        }
        default: len = uns ? snprintf(b, cap, f, (uint64_t)trn_int_at(x, i)) : snprintf(b, cap, f, trn_int_at(x, i));
        }
        e = trn_str_set(&STR_MUT(y)[i], b, (size_t)len);
    }
#pragma GCC diagnostic pop
    free(b);
    return e;
}

/* A whole number or float with nothing but white space around it. */
static bool parse_number(const char *s, size_t n, trn_dtype t, double *d, int64_t *v)
{
    char buf[512], *end;
    while (n && ascii_space(*s))
        s++, n--;
    while (n && ascii_space(s[n - 1]))
        n--;
    if (n == 0 || n >= sizeof buf || memchr(s, 0, n))
        return false;
    memcpy(buf, s, n);
    buf[n] = 0;
    errno = 0;
    if (t == TRN_FLOAT || t == TRN_DOUBLE) {
        *d = t == TRN_FLOAT ? (double)strtof(buf, &end) : strtod(buf, &end);
        return *end == 0;
    }
    *v = strtoll(buf, &end, 10);
    return buf[0] != '+' && *end == 0 && errno == 0 && (t == TRN_INT64 || (*v >= INT32_MIN && *v <= INT32_MAX));
}
static void put_number(trn_tensor *y, int64_t i, double d, int64_t v)
{
    switch (y->dtype) {
    case TRN_FLOAT: TRN_DATA_MUT(y, float)[i] = (float)d; break;
    case TRN_DOUBLE: TRN_DATA_MUT(y, double)[i] = d; break;
    default: trn_int_put(y, i, v); break;
    }
}

bool trn_number_from_text(trn_tensor *y, int64_t i, const char *p, size_t n)
{
    double d = 0;
    int64_t v = 0;
    if (!parse_number(p, n, y->dtype, &d, &v))
        return false;
    put_number(y, i, d, v);
    return true;
}

static trn_err k_string_to_number(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype t = trn_attr_type(k->node, "out_type");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, t, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        double d = 0;
        int64_t v = 0;
        const char *p = trn_str_p(&STR(x)[i]);
        TRN_CHECK_ARG(parse_number(p, STR(x)[i].len, t, &d, &v), "StringToNumberOp could not correctly convert string: %.*s",
                      (int)TRN_MIN(STR(x)[i].len, 100u), p);
        put_number(y, i, d, v);
    }
    return TRN_OK;
}

/* ---- matching ------------------------------------------------------------------------------------------------------------------------------ */

static trn_err match_all(trn_kctx *k, const char *pattern, size_t n)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_regex *r;
    TRN_TRY(trn_regex_new(&r, pattern, n));
    trn_tensor *y;
    trn_err e = trn_out_new(&y, k, 0, TRN_BOOL, &x->shape);
    for (int64_t i = 0; i < x->count && !e; i++) {
        int m = trn_regex_full(r, trn_str_p(&STR(x)[i]), STR(x)[i].len);
        if (m < 0)
            e = trn_err_oom();
        else
            TRN_DATA_MUT(y, uint8_t)[i] = m == 1;
    }
    trn_regex_free(r);
    return e;
}
static trn_err k_static_regex_full_match(trn_kctx *k)
{
    const trn_attr *a = trn_node_attr(k->node, "pattern");
    return match_all(k, a->v.s.p, a->v.s.n);
}
static trn_err k_regex_full_match(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 1)), "Pattern must be scalar");
    return match_all(k, trn_str_p(STR(trn_in(k, 1))), STR(trn_in(k, 1))->len);
}

/* Appends the rewrite with \0..\9 replaced; false at a backslash that means nothing. */
static bool rewrite_into(trn_sb *b, const char *w, size_t n, const char *text, const int64_t *cap)
{
    for (size_t i = 0; i < n; i++) {
        if (w[i] != '\\') {
            trn_sb_add(b, &w[i], 1);
            continue;
        }
        if (++i == n)
            return false;
        if (w[i] == '\\') {
            trn_sb_add(b, "\\", 1);
            continue;
        }
        int g = w[i] - '0';
        if (g < 0 || g > 9)
            return false;
        if (cap[2 * g] >= 0 && cap[2 * g + 1] >= cap[2 * g])
            trn_sb_add(b, text + cap[2 * g], (size_t)(cap[2 * g + 1] - cap[2 * g]));
    }
    return true;
}

static trn_err replace_one(trn_str *out, const trn_regex *r, const trn_str *in, const char *w, size_t wn, bool global, trn_sb *b)
{
    const char *p = trn_str_p(in);
    size_t n = in->len, at = 0;
    int64_t cap[TRN_REGEX_CAPS], last_end = -1;
    for (size_t i = 0; i + 1 < wn; i++) /* a group that the pattern does not have: nothing is replaced */
        if (w[i] == '\\' && isdigit((unsigned char)w[++i]) && w[i] - '0' > trn_regex_groups(r))
            return trn_str_set(out, p, n);
    b->n = 0;
    while (at <= n) {
        int m = trn_regex_find(r, p, n, at, cap);
        if (m < 0)
            return trn_err_oom();
        if (!m)
            break;
        trn_sb_add(b, p + at, (size_t)cap[0] - at);
        at = (size_t)cap[0];
        if (cap[0] == last_end && cap[1] == cap[0]) { /* nothing matched right behind the last match: step on by one character */
            if (at >= n)
                break;
            size_t len = (size_t)trn_utf8_len(p + at, n - at);
            trn_sb_add(b, p + at, len);
            at += len;
            continue;
        }
        if (!rewrite_into(b, w, wn, p, cap) && !global)
            return trn_str_set(out, p, n);
        at = (size_t)cap[1];
        last_end = cap[1];
        if (!global)
            break;
    }
    if (at < n)
        trn_sb_add(b, p + at, n - at);
    return put_sb(out, b);
}

static trn_err replace_all(trn_kctx *k, const char *pattern, size_t pn, const char *w, size_t wn)
{
    const trn_tensor *x = trn_in(k, 0);
    bool global = trn_attr_bool(k->node, "replace_global");
    trn_regex *r;
    TRN_TRY(trn_regex_new(&r, pattern, pn));
    trn_tensor *y;
    trn_sb b = {0};
    trn_err e = trn_out_new(&y, k, 0, TRN_STRING, &x->shape);
    for (int64_t i = 0; i < x->count && !e; i++)
        e = replace_one(&STR_MUT(y)[i], r, &STR(x)[i], w, wn, global, &b);
    trn_sb_fini(&b);
    trn_regex_free(r);
    return e;
}
static trn_err k_regex_replace(trn_kctx *k)
{
    const trn_tensor *p = trn_in(k, 1), *w = trn_in(k, 2);
    TRN_CHECK_ARG(trn_is_scalar(p) && trn_is_scalar(w), "Pattern and rewrite must be scalar");
    return replace_all(k, trn_str_p(STR(p)), STR(p)->len, trn_str_p(STR(w)), STR(w)->len);
}
static trn_err k_static_regex_replace(trn_kctx *k)
{
    const trn_attr *p = trn_node_attr(k->node, "pattern"), *w = trn_node_attr(k->node, "rewrite");
    return replace_all(k, p->v.s.p, p->v.s.n, w->v.s.p, w->v.s.n);
}

/* ---- splitting: a sparse matrix of pieces ------------------------------------------------------------------------------------------------------ */

typedef struct pieces {
    struct piece {
        int64_t row, col;
        const char *p;
        size_t n;
    } *v;
    int64_t n, cap, widest, col;
} pieces;

static void piece_add(pieces *s, int64_t row, const char *p, size_t n)
{
    struct piece q = {row, s->col++, p, n};
    TRN_PUSH(s->v, s->n, s->cap, q);
    s->widest = TRN_MAX(s->widest, s->col);
}

static trn_err pieces_out(trn_kctx *k, pieces *s, int64_t rows)
{
    trn_shape si = {.rank = 2, .dim = {s->n, 2}}, sv = trn_shape_vector(s->n), ss = trn_shape_vector(2);
    trn_tensor *idx, *val, *shape;
    trn_err e = trn_out_new(&idx, k, 0, TRN_INT64, &si);
    if (!e)
        e = trn_out_new(&val, k, 1, TRN_STRING, &sv);
    if (!e)
        e = trn_out_new(&shape, k, 2, TRN_INT64, &ss);
    for (int64_t i = 0; i < s->n && !e; i++) {
        TRN_DATA_MUT(idx, int64_t)[2 * i] = s->v[i].row;
        TRN_DATA_MUT(idx, int64_t)[2 * i + 1] = s->v[i].col;
        e = trn_str_set(&STR_MUT(val)[i], s->v[i].p, s->v[i].n);
    }
    if (!e) {
        TRN_DATA_MUT(shape, int64_t)[0] = rows;
        TRN_DATA_MUT(shape, int64_t)[1] = s->widest;
    }
    free(s->v);
    return e;
}

/* Every character of the delimiter separates; an empty one makes single bytes. */
static trn_err k_string_split(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    bool skip = trn_attr_bool(k->node, "skip_empty");
    TRN_CHECK_ARG(trn_is_vector(x), "input must be a vector, got rank %d", x->shape.rank);
    TRN_CHECK_ARG(trn_is_scalar(d), "delimiter must be a scalar, got rank %d", d->shape.rank);
    const char *set = trn_str_p(STR(d));
    size_t n_set = STR(d)->len;
    pieces s = {0};
    for (int64_t i = 0; i < x->count; i++) {
        const char *p = trn_str_p(&STR(x)[i]), *e = p + STR(x)[i].len;
        s.col = 0;
        if (!n_set) {
            for (; p < e; p++)
                piece_add(&s, i, p, 1);
            continue;
        }
        for (const char *b = p;; p++) {
            if (p < e && !memchr(set, *p, n_set))
                continue;
            if (p > b || (!skip && e > trn_str_p(&STR(x)[i])))
                piece_add(&s, i, b, (size_t)(p - b));
            if (p >= e)
                break;
            b = p + 1;
        }
    }
    return pieces_out(k, &s, x->count);
}

/* As Python's str.split: an empty separator means runs of white space. At the limit the rest is a piece even when nothing is left of it. */
static trn_err k_string_split_v2(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    int64_t max = trn_attr_int(k->node, "maxsplit");
    TRN_CHECK_ARG(trn_is_vector(x), "input must be a vector, got rank %d", x->shape.rank);
    TRN_CHECK_ARG(trn_is_scalar(d), "sep must be a scalar, got rank %d", d->shape.rank);
    const char *sep = trn_str_p(STR(d));
    size_t sn = STR(d)->len;
    pieces s = {0};
    for (int64_t i = 0; i < x->count; i++) {
        const char *p = trn_str_p(&STR(x)[i]), *e = p + STR(x)[i].len;
        s.col = 0;
        if (max == 0) {
            piece_add(&s, i, p, (size_t)(e - p));
            continue;
        }
        while (!sn && p < e && ascii_space(*p))
            p++;
        while (sn || p < e) {
            const char *b = p;
            if (max > 0 && s.col == max) { /* the rest, as it is */
                piece_add(&s, i, b, (size_t)(e - b));
                break;
            }
            if (!sn) {
                while (p < e && !ascii_space(*p))
                    p++;
                piece_add(&s, i, b, (size_t)(p - b));
                while (p < e && ascii_space(*p))
                    p++;
                if (p == e && max > 0 && s.col == max)
                    piece_add(&s, i, p, 0);
                continue;
            }
            const char *q = memmem(p, (size_t)(e - p), sep, sn);
            piece_add(&s, i, p, (size_t)((q ? q : e) - p));
            if (!q)
                break;
            p = q + sn;
        }
    }
    return pieces_out(k, &s, x->count);
}
static trn_err sh_string_split(trn_shctx *s)
{
    s->out[0] = trn_shape_of(2, (int64_t)-1, (int64_t)2);
    s->out[1] = trn_shape_vector(-1);
    s->out[2] = trn_shape_vector(2);
    return TRN_OK;
}

/* ---- hashes --------------------------------------------------------------------------------------------------------------------------------------- */

static trn_err hash_buckets(trn_kctx *k, uint64_t (*hash)(const void *, size_t))
{
    const trn_tensor *x = trn_in(k, 0);
    uint64_t n = (uint64_t)trn_attr_int(k->node, "num_buckets");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &x->shape));
    for (int64_t i = 0; i < x->count; i++)
        TRN_DATA_MUT(y, int64_t)[i] = (int64_t)(hash(trn_str_p(&STR(x)[i]), STR(x)[i].len) % n);
    return TRN_OK;
}
static trn_err k_hash_fast(trn_kctx *k) { return hash_buckets(k, trn_fingerprint64); }
static trn_err k_hash_legacy(trn_kctx *k) { return hash_buckets(k, trn_hash64_tf); }

static trn_err k_hash_strong(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    const trn_attr *key = trn_node_attr(k->node, "key");
    TRN_CHECK_ARG(key && key->n == 2, "Key must have 2 elements");
    uint64_t n = (uint64_t)trn_attr_int(k->node, "num_buckets"), ks[2] = {(uint64_t)key->list[0].i, (uint64_t)key->list[1].i};
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &x->shape));
    for (int64_t i = 0; i < x->count; i++)
        TRN_DATA_MUT(y, int64_t)[i] = (int64_t)(trn_siphash(ks, trn_str_p(&STR(x)[i]), STR(x)[i].len) % n);
    return TRN_OK;
}

/* ---- formatting ------------------------------------------------------------------------------------------------------------------------------------ */

static trn_err k_string_format(trn_kctx *k)
{
    const trn_attr *t = trn_node_attr(k->node, "template"), *ph = trn_node_attr(k->node, "placeholder");
    int64_t max = trn_attr_int(k->node, "summarize");
    const char *p = t->v.s.p, *e = p + t->v.s.n;
    int used = 0;
    trn_sb b = {0};
    while (p < e) {
        const char *q = ph->v.s.n ? memmem(p, (size_t)(e - p), ph->v.s.p, ph->v.s.n) : NULL;
        if (!q)
            break;
        trn_sb_add(&b, p, (size_t)(q - p));
        if (used < k->n_in)
            trn_summarize_v2(&b, trn_in(k, used), max);
        used++;
        p = q + ph->v.s.n;
    }
    trn_sb_add(&b, p, (size_t)(e - p));
    trn_err err = used != k->n_in ? TRN_BAD("num placeholders in template and num inputs must match: %d vs. %d", used, k->n_in) : TRN_OK;
    trn_shape s = trn_shape_scalar();
    trn_tensor *y;
    if (!err)
        err = trn_out_new(&y, k, 0, TRN_STRING, &s);
    if (!err)
        err = put_sb(STR_MUT(y), &b);
    trn_sb_fini(&b);
    return err;
}

/* ---- encodings --------------------------------------------------------------------------------------------------------------------------------------- */

static void swap_bytes(uint8_t *p, size_t size, int64_t n)
{
    for (int64_t i = 0; i < n; i++, p += size)
        for (size_t a = 0, z = size - 1; a < z; a++, z--) {
            uint8_t t = p[a];
            p[a] = p[z];
            p[z] = t;
        }
}

static trn_err k_decode_raw(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype t = trn_attr_type(k->node, "out_type");
    size_t size = trn_dtype_size(t), part = t == TRN_COMPLEX64 ? 4 : t == TRN_COMPLEX128 ? 8 : size;
    trn_shape s = x->shape;
    TRN_CHECK_ARG(s.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    size_t len = x->count ? STR(x)[0].len : 0;
    for (int64_t i = 0; i < x->count; i++)
        TRN_CHECK_ARG(STR(x)[i].len == len, "DecodeRaw requires input strings to all be the same size, but element %lld has size %zu != %u", (long long)i, len,
                      STR(x)[i].len); /* TensorFlow's order: the first one's size, then this one's */
    TRN_CHECK_ARG(len % size == 0, "Input to DecodeRaw has length %zu that is not a multiple of %zu, the size of %s", len, size, trn_dtype_name(t));
    s.dim[s.rank++] = (int64_t)(len / size);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, t, &s));
    for (int64_t i = 0; i < x->count && len; i++)
        memcpy((char *)y->data + (size_t)i * len, trn_str_p(&STR(x)[i]), len);
    if (t == TRN_BOOL)
        for (int64_t i = 0; i < y->count; i++)
            TRN_DATA_MUT(y, uint8_t)[i] = TRN_DATA(y, uint8_t)[i] != 0;
    if (!trn_attr_bool(k->node, "little_endian") && part > 1)
        swap_bytes(y->data, part, y->count * (int64_t)(size / part));
    return TRN_OK;
}
static trn_err sh_decode_raw(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->in[0].rank >= 0 && s->in[0].rank < TRN_MAX_RANK)
        s->out[0].dim[s->out[0].rank++] = -1;
    return TRN_OK;
}

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static trn_err k_encode_base64(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bool pad = trn_attr_bool(k->node, "pad");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        const uint8_t *p = (const uint8_t *)trn_str_p(&STR(x)[i]);
        size_t n = STR(x)[i].len, full = n / 3, rest = n % 3, len = full * 4 + (rest ? (pad ? 4 : rest + 1) : 0);
        char *o;
        TRN_TRY(trn_str_alloc(&o, &STR_MUT(y)[i], len));
        for (size_t at = 0; at < n; at += 3) {
            size_t m = TRN_MIN(n - at, (size_t)3);
            uint32_t v = (uint32_t)p[at] << 16 | (m > 1 ? (uint32_t)p[at + 1] << 8 : 0) | (m > 2 ? p[at + 2] : 0);
            for (size_t q = 0; q < 4; q++) {
                if (q <= m)
                    *o++ = base64_digits[v >> (18 - 6 * q) & 63];
                else if (pad)
                    *o++ = '=';
            }
        }
    }
    return TRN_OK;
}

static trn_err k_decode_base64(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    for (int64_t i = 0; i < x->count; i++) {
        const char *p = trn_str_p(&STR(x)[i]);
        size_t n = STR(x)[i].len;
        if (n && n % 4 == 0)
            for (int q = 0; q < 2 && n && p[n - 1] == '='; q++)
                n--;
        TRN_CHECK_ARG(n % 4 != 1, "Base64 string length cannot be 1 modulo 4");
        char *o;
        TRN_TRY(trn_str_alloc(&o, &STR_MUT(y)[i], n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0)));
        uint32_t v = 0;
        for (size_t at = 0; at < n; at++) {
            const char *d = p[at] ? strchr(base64_digits, p[at]) : NULL;
            TRN_CHECK_ARG(d, "Invalid character found in base64.");
            v = v << 6 | (uint32_t)(d - base64_digits);
            if (at % 4)
                *o++ = (char)(v >> (6 - 2 * (at % 4)));
            v &= 0xfff;
        }
    }
    return TRN_OK;
}

/* ---- CSV ----------------------------------------------------------------------------------------------------------------------------------------------- */

/* One record into fields (unquoted, in `text` one after another); error when quotes or delimiters are misplaced. */
static trn_err csv_fields(trn_sb *text, int64_t **end, int64_t *n, int64_t *cap, const trn_str *rec, char delim, bool quotes, int64_t row)
{
    const char *p = trn_str_p(rec), *e = p + rec->len;
    text->n = 0;
    *n = 0;
    if (p == e)
        return TRN_OK;
    for (;;) {
        if (quotes && p < e && *p == '"') {
            p++;
            for (;; p++) {
                TRN_CHECK_ARG(p < e, "Quoted field has to end with quote followed by delim or end, in record %lld", (long long)row);
                if (*p == '"') {
                    if (p + 1 < e && p[1] == '"')
                        p++;
                    else
                        break;
                }
                trn_sb_add(text, p, 1);
            }
            p++;
            TRN_CHECK_ARG(p == e || *p == delim, "Quoted field has to end with quote followed by delim or end, in record %lld", (long long)row);
        } else {
            for (; p < e && *p != delim; p++) {
                TRN_CHECK_ARG((!quotes || *p != '"') && *p != '\n' && *p != '\r', "Unquoted fields cannot have quotes/CRLFs inside, in record %lld", (long long)row);
                trn_sb_add(text, p, 1);
            }
        }
        TRN_PUSH(*end, *n, *cap, (int64_t)text->n);
        if (p >= e)
            return TRN_OK;
        p++; /* the delimiter; a field follows, perhaps an empty one */
    }
}

static trn_err k_decode_csv(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    const trn_attr *delim = trn_node_attr(k->node, "field_delim"), *na = trn_node_attr(k->node, "na_value"), *sel = trn_node_attr(k->node, "select_cols");
    bool quotes = trn_attr_bool(k->node, "use_quote_delim");
    TRN_CHECK_ARG(delim->v.s.n == 1, "field_delim should be only 1 char");
    TRN_CHECK_ARG(!sel->n || sel->n == k->n_out, "select_cols should match output size");
    for (int i = 0; i < sel->n; i++)
        TRN_CHECK_ARG(sel->list[i].i >= 0 && (!i || sel->list[i].i > sel->list[i - 1].i), "select_cols should be strictly increasing indices");
    for (int i = 0; i < k->n_out; i++) {
        const trn_tensor *d = trn_in(k, 1 + i);
        TRN_CHECK_ARG(d->shape.rank <= 1 && d->count <= 1, "There should only be 1 default per field but field %d has %lld", i, (long long)d->count);
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, i, k->node->out_types[i], &x->shape));
    }
    trn_sb text = {0};
    int64_t *end = NULL, n = 0, cap = 0;
    trn_err e = TRN_OK;
    for (int64_t r = 0; r < x->count && !e; r++) {
        e = csv_fields(&text, &end, &n, &cap, &STR(x)[r], delim->v.s.p[0], quotes, r);
        int64_t have = n; /* of those that are asked for */
        for (int i = 0; sel->n && i < sel->n; i++)
            have = i == 0 ? sel->list[i].i < n : have + (sel->list[i].i < n);
        if (!e && have != k->n_out)
            e = TRN_BAD("Expect %d fields but have %lld in record %lld", k->n_out, (long long)have, (long long)r);
        for (int i = 0; i < k->n_out && !e; i++) {
            int64_t f = sel->n ? sel->list[i].i : i;
            const char *p = (text.p ? text.p : "") + (f ? end[f - 1] : 0);
            size_t len = (size_t)(end[f] - (f ? end[f - 1] : 0));
            const trn_tensor *d = trn_in(k, 1 + i);
            trn_tensor *y = k->out[i].t;
            double dv = 0;
            int64_t iv = 0;
            if (len == 0 || (len == na->v.s.n && !memcmp(p, na->v.s.p, len))) {
                if (!d->count)
                    e = TRN_BAD("Field %d is required but missing in record %lld!", i, (long long)r);
                else
                    e = trn_tensor_copy_elems(y, r, d, 0, 1);
            } else if (y->dtype == TRN_STRING) {
                e = trn_str_set(&STR_MUT(y)[r], p, len);
            } else if (!parse_number(p, len, y->dtype, &dv, &iv)) {
                e = TRN_BAD("Field %d in record %lld is not a valid %s: %.*s", i, (long long)r, trn_dtype_name(y->dtype), (int)TRN_MIN(len, (size_t)60), p);
            } else {
                put_number(y, r, dv, iv);
            }
        }
    }
    trn_sb_fini(&text);
    free(end);
    return e;
}

const trn_op trn_ops_string[] = {
    {"StringJoin", "inputs:N*str -> output:str; N:int>=0, separator:string=\"\"", sh_string_join, k_string_join, 0},
    {"ReduceJoin", "inputs:str, reduction_indices:i32 -> output:str; keep_dims:bool=false, separator:string=\"\"", trn_sh_reduce, k_reduce_join, 0},
    {"StringLength", "input:str -> output:i32; unit:{BYTE,UTF8_CHAR}=BYTE", trn_sh_same, k_string_length, 0},
    {"StringStrip", "input:str -> output:str", trn_sh_same, k_string_strip, 0},
    {"StringLower", "input:str -> output:str; encoding:string=\"\"", trn_sh_same, k_lower, 0},
    {"StringUpper", "input:str -> output:str; encoding:string=\"\"", trn_sh_same, k_upper, 0},
    {"Substr", "input:str, pos:T, len:T -> output:str; T:i32|i64, unit:{BYTE,UTF8_CHAR}=BYTE", trn_sh_bcast, k_substr, 0},
    {"AsString",
     "input:T -> output:str; T:num|bool|str, precision:int=-1, scientific:bool=false, shortest:bool=false, width:int=-1, fill:string=\"\"",
     trn_sh_same, k_as_string, 0},
    {"StringToNumber", "string_tensor:str -> output:out_type; out_type:f32|f64|i32|i64=f32", trn_sh_same, k_string_to_number, 0},
    {"StaticRegexFullMatch", "input:str -> output:bool; pattern:string", trn_sh_same, k_static_regex_full_match, 0},
    {"RegexFullMatch", "input:str, pattern:str -> output:bool", trn_sh_same, k_regex_full_match, 0},
    {"RegexReplace", "input:str, pattern:str, rewrite:str -> output:str; replace_global:bool=true", trn_sh_same, k_regex_replace, 0},
    {"StaticRegexReplace", "input:str -> output:str; pattern:string, rewrite:string, replace_global:bool=true", trn_sh_same, k_static_regex_replace, 0},
    {"StringSplit", "input:str, delimiter:str -> indices:i64, values:str, shape:i64; skip_empty:bool=true", sh_string_split, k_string_split, 0},
    {"StringSplitV2", "input:str, sep:str -> indices:i64, values:str, shape:i64; maxsplit:int=-1", sh_string_split, k_string_split_v2, 0},
    {"StringToHashBucketFast", "input:str -> output:i64; num_buckets:int>=1", trn_sh_same, k_hash_fast, 0},
    {"StringToHashBucket", "string_tensor:str -> output:i64; num_buckets:int>=1", trn_sh_same, k_hash_legacy, 0},
    {"StringToHashBucketStrong", "input:str -> output:i64; num_buckets:int>=1, key:list(int)", trn_sh_same, k_hash_strong, 0},
    {"StringFormat", "inputs:T -> output:str; T:list(any)>=0, template:string=\"%s\", placeholder:string=\"%s\", summarize:int=3", trn_sh_scalar,
     k_string_format, 0},
    {"DecodeRaw", "bytes:str -> output:out_type; out_type:float|i8|i16|i32|i64|u8|u16|c64|c128|bool, little_endian:bool=true", sh_decode_raw,
     k_decode_raw, 0},
    {"EncodeBase64", "input:str -> output:str; pad:bool=false", trn_sh_same, k_encode_base64, 0},
    {"DecodeBase64", "input:str -> output:str", trn_sh_same, k_decode_base64, 0},
    {"DecodeCSV",
     "records:str, record_defaults:OUT_TYPE -> output:OUT_TYPE; OUT_TYPE:list(f32|f64|i32|i64|str)>=1, field_delim:string=\",\", "
     "use_quote_delim:bool=true, na_value:string=\"\", select_cols:list(int)=[]",
     trn_sh_same, k_decode_csv, 0},
    {0},
};
