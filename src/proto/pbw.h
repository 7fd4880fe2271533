/* Protocol buffers by hand, for the messages of the hot path: writers into a trn_sb, and a reader that never passes the end. */
#ifndef TRN_PBW_H
#define TRN_PBW_H

#include "base/base.h"

enum { TRN_PB_VARINT = 0, TRN_PB_FIXED64 = 1, TRN_PB_BYTES = 2, TRN_PB_FIXED32 = 5 };

/* ---- writing */
static inline size_t trn_pbw_varint_to(uint8_t *p, uint64_t v)
{
    size_t n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}
static inline size_t trn_pbw_varint_size(uint64_t v) { return (size_t)(63 - __builtin_clzll(v | 1)) / 7 + 1; }
static inline void trn_pbw_raw_varint(trn_sb *s, uint64_t v)
{
    uint8_t b[10];
    trn_sb_add(s, b, trn_pbw_varint_to(b, v));
}
static inline void trn_pbw_tag(trn_sb *s, uint32_t field, int type) { trn_pbw_raw_varint(s, (uint64_t)field << 3 | (uint64_t)type); }
static inline void trn_pbw_varint(trn_sb *s, uint32_t field, uint64_t v) /* proto3: zero is left out */
{
    if (!v)
        return;
    trn_pbw_tag(s, field, TRN_PB_VARINT);
    trn_pbw_raw_varint(s, v);
}
static inline void trn_pbw_fixed64(trn_sb *s, uint32_t field, uint64_t v)
{
    trn_pbw_tag(s, field, TRN_PB_FIXED64);
    trn_sb_add(s, &v, 8); /* little-endian machines only, as everywhere in this file */
}
static inline void trn_pbw_bytes(trn_sb *s, uint32_t field, const void *p, size_t n)
{
    trn_pbw_tag(s, field, TRN_PB_BYTES);
    trn_pbw_raw_varint(s, n);
    trn_sb_add(s, p, n);
}
static inline void trn_pbw_str(trn_sb *s, uint32_t field, const char *z)
{
    if (z && *z)
        trn_pbw_bytes(s, field, z, strlen(z));
}

/* ---- reading */
typedef struct trn_pbr {
    const uint8_t *p, *end;
    uint32_t field;
    int type;
    uint64_t v;         /* VARINT, FIXED64, FIXED32 */
    const uint8_t *b;   /* BYTES */
    size_t n;
    bool bad;           /* truncated or malformed; next() has returned false */
} trn_pbr;

static inline trn_pbr trn_pbr_init(const void *p, size_t n) { return (trn_pbr){.p = p, .end = (const uint8_t *)p + n}; }

static inline bool trn_pbr_raw_varint(trn_pbr *r, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->p == r->end)
            return false;
        uint8_t b = *r->p++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* The next field, its value in v or b/n. False at the end, or with `bad` set. Groups are malformed here: proto3 has none. */
static inline bool trn_pbr_next(trn_pbr *r)
{
    if (r->p == r->end || r->bad)
        return false;
    uint64_t tag;
    r->bad = true;
    if (!trn_pbr_raw_varint(r, &tag) || tag >> 3 == 0 || tag >> 32)
        return false;
    r->field = (uint32_t)(tag >> 3);
    r->type = (int)(tag & 7);
    size_t left = (size_t)(r->end - r->p);
    switch (r->type) {
    case TRN_PB_VARINT:
        if (!trn_pbr_raw_varint(r, &r->v))
            return false;
        break;
    case TRN_PB_FIXED64:
        if (left < 8)
            return false;
        memcpy(&r->v, r->p, 8);
        r->p += 8;
        break;
    case TRN_PB_FIXED32: {
        uint32_t v;
        if (left < 4)
            return false;
        memcpy(&v, r->p, 4);
        r->v = v;
        r->p += 4;
        break;
    }
    case TRN_PB_BYTES: {
        uint64_t n;
        if (!trn_pbr_raw_varint(r, &n) || n > (uint64_t)(r->end - r->p))
            return false;
        r->b = r->p;
        r->n = (size_t)n;
        r->p += n;
        break;
    }
    default:
        return false;
    }
    r->bad = false;
    return true;
}

#endif
