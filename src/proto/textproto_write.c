/* Messages as text, by descriptor. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/textproto.h"

static void message(trn_sb *out, const ProtobufCMessage *m, int indent);

static void escaped(trn_sb *out, const uint8_t *p, size_t n)
{
    trn_sb_adds(out, "\"");
    for (size_t i = 0; i < n; i++) {
        uint8_t c = p[i];
        if (c == '\n')
            trn_sb_adds(out, "\\n");
        else if (c == '\r')
            trn_sb_adds(out, "\\r");
        else if (c == '\t')
            trn_sb_adds(out, "\\t");
        else if (c == '"' || c == '\'' || c == '\\')
            trn_sb_addf(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            trn_sb_addf(out, "\\%03o", c);
        else
            trn_sb_addf(out, "%c", c);
    }
    trn_sb_adds(out, "\"");
}

/* The fewest digits that read back as the same number. */
static void number(trn_sb *out, double v, bool single)
{
    char text[40];
    if (isnan(v) || isinf(v)) {
        trn_sb_adds(out, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = single ? 6 : 15; digits <= (single ? FLT_DECIMAL_DIG : DBL_DECIMAL_DIG); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (single ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v)
            break;
    }
    trn_sb_adds(out, text);
}

static size_t width(ProtobufCType t)
{
    switch (t) {
    case PROTOBUF_C_TYPE_INT64: case PROTOBUF_C_TYPE_SINT64: case PROTOBUF_C_TYPE_SFIXED64: case PROTOBUF_C_TYPE_UINT64: case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING: case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static void value(trn_sb *out, const ProtobufCFieldDescriptor *f, const void *p, int indent)
{
    trn_sb_addf(out, "%*s%s", indent, "", f->name);
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        trn_sb_adds(out, " {\n");
        message(out, *(ProtobufCMessage *const *)p, indent + 2);
        trn_sb_addf(out, "%*s}\n", indent, "");
        return;
    }
    trn_sb_adds(out, ": ");
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32: case PROTOBUF_C_TYPE_SINT32: case PROTOBUF_C_TYPE_SFIXED32:
        trn_sb_addf(out, "%" PRId32, *(const int32_t *)p);
        break;
    case PROTOBUF_C_TYPE_UINT32: case PROTOBUF_C_TYPE_FIXED32:
        trn_sb_addf(out, "%" PRIu32, *(const uint32_t *)p);
        break;
    case PROTOBUF_C_TYPE_INT64: case PROTOBUF_C_TYPE_SINT64: case PROTOBUF_C_TYPE_SFIXED64:
        trn_sb_addf(out, "%" PRId64, *(const int64_t *)p);
        break;
    case PROTOBUF_C_TYPE_UINT64: case PROTOBUF_C_TYPE_FIXED64:
        trn_sb_addf(out, "%" PRIu64, *(const uint64_t *)p);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        number(out, *(const float *)p, true);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        number(out, *(const double *)p, false);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        trn_sb_adds(out, *(const protobuf_c_boolean *)p ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *e = protobuf_c_enum_descriptor_get_value(f->descriptor, *(const int *)p);
        if (e)
            trn_sb_adds(out, e->name);
        else
            trn_sb_addf(out, "%d", *(const int *)p);
        break;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *s = *(const char *const *)p;
        escaped(out, (const uint8_t *)(s ? s : ""), s ? strlen(s) : 0);
        break;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *d = p;
        escaped(out, d->data, d->len);
        break;
    }
    default:
        break;
    }
    trn_sb_adds(out, "\n");
}

/* Without a has_ flag (proto3) a field that is zero is not there. */
static bool is_set(const ProtobufCFieldDescriptor *f, const ProtobufCMessage *m, const void *p)
{
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)((const char *)m + f->quantifier_offset) == f->id;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        return *(ProtobufCMessage *const *)p != NULL;
    if (f->type == PROTOBUF_C_TYPE_STRING)
        return *(const char *const *)p && **(const char *const *)p;
    if (f->type == PROTOBUF_C_TYPE_BYTES)
        return ((const ProtobufCBinaryData *)p)->len > 0;
    if (f->label == PROTOBUF_C_LABEL_OPTIONAL && f->quantifier_offset)
        return *(const protobuf_c_boolean *)((const char *)m + f->quantifier_offset);
    static const char zero[16];
    return memcmp(p, zero, width(f->type)) != 0;
}

static void message(trn_sb *out, const ProtobufCMessage *m, int indent)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const char *p = (const char *)m + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)((const char *)m + f->quantifier_offset), w = width(f->type);
            const char *at = *(const char *const *)p;
            for (size_t k = 0; k < n; k++)
                value(out, f, at + k * w, indent);
        } else if (is_set(f, m, p))
            value(out, f, p, indent);
    }
}

void trn_textproto_write(trn_sb *out, const ProtobufCMessage *m) { message(out, m, 0); }
