/* Values as text, the way Assert and Print show them. */
#include <stdio.h>
#include <stdlib.h>

#include "ops/control.h"
#include "ops/kern.h"

/* As few digits as give the number back, of two choices. */
static void add_f32(trn_sb *s, float v)
{
    char b[40];
    snprintf(b, sizeof b, "%.6g", (double)v);
    if (strtof(b, NULL) != v && v == v)
        snprintf(b, sizeof b, "%.9g", (double)v);
    trn_sb_adds(s, v != v ? "nan" : b);
}

static void add_f64(trn_sb *s, double v)
{
    char b[48];
    snprintf(b, sizeof b, "%.15g", v);
    if (strtod(b, NULL) != v && v == v)
        snprintf(b, sizeof b, "%.17g", v);
    trn_sb_adds(s, v != v ? "nan" : b);
}

/* C escapes for what is not printable; UTF-8 stays. */
static void add_bytes(trn_sb *s, const char *p, size_t n)
{
    static const char plain[] = "nrt\"'\\", raw[] = "\n\r\t\"'\\";
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        const char *at = c ? strchr(raw, c) : NULL;
        if (at)
            trn_sb_addf(s, "\\%c", plain[at - raw]);
        else if (c < 0x20 || c == 0x7f)
            trn_sb_addf(s, "\\%03o", c);
        else
            trn_sb_add(s, p + i, 1);
    }
}

static void add_elem(trn_sb *s, const trn_tensor *t, int64_t i)
{
    size_t n;
    const char *p;
    switch (t->dtype) {
    case TRN_FLOAT: add_f32(s, TRN_DATA(t, float)[i]); break;
    case TRN_DOUBLE: add_f64(s, TRN_DATA(t, double)[i]); break;
    case TRN_HALF: add_f32(s, trn_half_to_f32(TRN_DATA(t, trn_half)[i])); break;
    case TRN_BFLOAT16: add_f32(s, trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i])); break;
    case TRN_INT8:
    case TRN_QINT8: trn_sb_addf(s, "%d", TRN_DATA(t, int8_t)[i]); break;
    case TRN_UINT8:
    case TRN_QUINT8: trn_sb_addf(s, "%u", TRN_DATA(t, uint8_t)[i]); break;
    case TRN_INT16:
    case TRN_QINT16: trn_sb_addf(s, "%d", TRN_DATA(t, int16_t)[i]); break;
    case TRN_UINT16:
    case TRN_QUINT16: trn_sb_addf(s, "%u", TRN_DATA(t, uint16_t)[i]); break;
    case TRN_INT32: trn_sb_addf(s, "%d", TRN_DATA(t, int32_t)[i]); break;
    case TRN_UINT32: trn_sb_addf(s, "%u", TRN_DATA(t, uint32_t)[i]); break;
    case TRN_INT64: trn_sb_addf(s, "%lld", (long long)TRN_DATA(t, int64_t)[i]); break;
    case TRN_UINT64: trn_sb_addf(s, "%llu", (unsigned long long)TRN_DATA(t, uint64_t)[i]); break;
    case TRN_BOOL: trn_sb_adds(s, TRN_DATA(t, uint8_t)[i] ? "1" : "0"); break;
    case TRN_STRING:
        p = trn_tensor_str_at(t, i, &n);
        add_bytes(s, p, n);
        break;
    case TRN_RESOURCE: {
        const trn_handle *h = TRN_DATA(t, trn_handle *)[i];
        trn_sb_addf(s, "<ResourceHandle(name=\"%s\", device=\"%s\", container=\"%s\", type=\"%s\")>", h ? h->name : "", h ? h->device : "",
                    h ? h->container : "", h ? h->type_name : "");
        break;
    }
    default: trn_sb_adds(s, "?"); break;
    }
}

/* Dimension `d` from element *at on, until `limit` elements are shown. */
static void add_dim(trn_sb *s, const trn_tensor *t, int d, int64_t limit, int64_t *at)
{
    for (int64_t i = 0; i < t->shape.dim[d] && *at < limit; i++) {
        if (d < t->shape.rank - 1) {
            trn_sb_adds(s, "[");
            add_dim(s, t, d + 1, limit, at);
            trn_sb_adds(s, "]");
            continue;
        }
        if (i > 0)
            trn_sb_adds(s, " ");
        add_elem(s, t, (*at)++);
        if (*at == limit && d > 0 && i + 1 < t->shape.dim[d])
            trn_sb_adds(s, "...");
    }
}

void trn_summarize(trn_sb *out, const trn_tensor *t, int64_t max)
{
    int64_t limit = max < 0 || max > t->count ? t->count : max, at = 0;
    if (t->shape.rank > 0)
        add_dim(out, t, 0, limit, &at);
    else if (limit > 0)
        add_elem(out, t, 0);
    if (t->count > limit)
        trn_sb_adds(out, "...");
}

/* Brackets around every dimension, one line for each inner vector, `ends` elements at both ends. */
static void add_dim_v2(trn_sb *s, const trn_tensor *t, int d, int64_t ends, int64_t at)
{
    if (d == t->shape.rank) {
        if (t->dtype == TRN_STRING)
            trn_sb_adds(s, "\"");
        add_elem(s, t, at);
        if (t->dtype == TRN_STRING)
            trn_sb_adds(s, "\"");
        return;
    }
    int64_t n = t->shape.dim[d], step = 1;
    for (int i = d + 1; i < t->shape.rank; i++)
        step = trn_times(step, t->shape.dim[i]);
    trn_sb_adds(s, "[");
    for (int64_t i = 0; i < n; i++) {
        bool gap = i == ends && n > 2 * ends;
        if (i > 0 || gap) {
            if (d == t->shape.rank - 1) {
                trn_sb_adds(s, " ");
            } else {
                for (int q = d + 1; q < t->shape.rank; q++) /* an empty line between matrices, two between blocks of them */
                    trn_sb_adds(s, "\n");
                for (int q = 0; q <= d; q++)
                    trn_sb_adds(s, " ");
            }
        }
        if (gap) {
            trn_sb_adds(s, "...");
            i = n - ends - 1;
            continue;
        }
        add_dim_v2(s, t, d + 1, ends, at + i * step);
    }
    trn_sb_adds(s, "]");
}

void trn_summarize_v2(trn_sb *out, const trn_tensor *t, int64_t max)
{
    int64_t ends = max < 0 || max > t->count ? t->count : max;
    if (t->shape.rank > 0 || ends > 0)
        add_dim_v2(out, t, 0, ends, 0);
    else
        trn_sb_adds(out, "...");
}
