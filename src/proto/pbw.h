/* Protocol buffers by hand, for the messages of the hot path: writers into a trn_sb or raw room, and a reader that never
 * passes the end.
 *
 *     trn_pbr r = trn_pbr_init(p, n);
 *     while (trn_pbr_next(&r)) {
 *         if (r.field == 3 && r.type == TRN_PB_VARINT)
 *             step_id = (int64_t)r.v;
 *     }
 *     if (r.bad)
 *         return trn_errorf(TRN_INVALID_ARGUMENT, "RunGraphRequest: %s", r.why);
 */
#ifndef TRN_PBW_H
#define TRN_PBW_H

#include "base/base.h"

enum { TRN_PB_VARINT = 0, TRN_PB_FIXED64 = 1, TRN_PB_BYTES = 2, TRN_PB_FIXED32 = 5 }; /* groups, 3 and 4, are refused */

/* ---- writing -------------------------------------------------------------------------------------------------- */

#define TRN_PB_VARINT_MAX 10 /* bytes */

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
/* Tag, length and bytes of a field with n bytes. */
static inline size_t trn_pbw_bytes_size(uint32_t field, size_t n)
{
    return trn_pbw_varint_size((uint64_t)field << 3) + trn_pbw_varint_size(n) + n;
}
static inline void trn_pbw_raw_varint(trn_sb *s, uint64_t v)
{
    uint8_t b[TRN_PB_VARINT_MAX];
    trn_sb_add(s, b, trn_pbw_varint_to(b, v));
}
static inline void trn_pbw_tag(trn_sb *s, uint32_t field, int type)
{
    trn_pbw_raw_varint(s, (uint64_t)field << 3 | (uint64_t)type);
}
static inline void trn_pbw_varint(trn_sb *s, uint32_t field, uint64_t v) /* proto3: zero is left out */
{
    if (!v)
        return;
    trn_pbw_tag(s, field, TRN_PB_VARINT);
    trn_pbw_raw_varint(s, v);
}
static inline void trn_pbw_fixed32(trn_sb *s, uint32_t field, uint32_t v)
{
    trn_pbw_tag(s, field, TRN_PB_FIXED32);
    trn_sb_add(s, &v, 4);
}
static inline void trn_pbw_fixed64(trn_sb *s, uint32_t field, uint64_t v)
{
    trn_pbw_tag(s, field, TRN_PB_FIXED64);
    trn_sb_add(s, &v, 8); /* little-endian machines only, as everywhere in this file */
}
/* Tag and length: the n bytes follow from elsewhere (a nested message, a tensor's buffer). */
static inline void trn_pbw_head(trn_sb *s, uint32_t field, size_t n)
{
    trn_pbw_tag(s, field, TRN_PB_BYTES);
    trn_pbw_raw_varint(s, n);
}
static inline void trn_pbw_bytes(trn_sb *s, uint32_t field, const void *p, size_t n)
{
    trn_pbw_head(s, field, n);
    trn_sb_add(s, p, n);
}
static inline void trn_pbw_str(trn_sb *s, uint32_t field, const char *z)
{
    if (z && *z)
        trn_pbw_bytes(s, field, z, strlen(z));
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

typedef struct trn_pbr {
    const uint8_t *p, *end;
    uint32_t field;
    int type;
    uint64_t v;       /* VARINT, FIXED64, FIXED32 */
    const uint8_t *b; /* BYTES */
    size_t n;
    bool bad;        /* truncated or malformed; next() has returned false */
    const char *why; /* in words; NULL while not bad */
} trn_pbr;

static inline trn_pbr trn_pbr_init(const void *p, size_t n)
{
    static const uint8_t none[1];
    const uint8_t *b = n ? (const uint8_t *)p : none;
    return (trn_pbr){.p = b, .end = b + n};
}

static inline bool trn_pbr_fail(trn_pbr *r, const char *why)
{
    r->bad = true;
    r->why = why;
    return false;
}

static inline bool trn_pbr_raw_varint(trn_pbr *r, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->p == r->end)
            return trn_pbr_fail(r, "the bytes end inside a varint");
        uint8_t b = *r->p++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return trn_pbr_fail(r, "a varint has more than 10 bytes");
}

/* The next field, its value in v or b/n. False at the end, or with `bad` set. Groups are malformed here: proto3 has none. */
static inline bool trn_pbr_next(trn_pbr *r)
{
    if (r->p == r->end || r->bad)
        return false;
    const uint8_t *start = r->p;
    uint64_t tag;
    r->field = 0;
    if (!trn_pbr_raw_varint(r, &tag))
        return false;
    if (tag >> 3 == 0 || tag >> 32 || r->p - start > 5)
        return trn_pbr_fail(r, "no field has this number");
    r->field = (uint32_t)(tag >> 3);
    r->type = (int)(tag & 7);
    size_t left = (size_t)(r->end - r->p);
    switch (r->type) {
    case TRN_PB_VARINT:
        return trn_pbr_raw_varint(r, &r->v);
    case TRN_PB_FIXED64:
        if (left < 8)
            return trn_pbr_fail(r, "the bytes end inside a 64-bit value");
        memcpy(&r->v, r->p, 8);
        r->p += 8;
        return true;
    case TRN_PB_FIXED32: {
        uint32_t v;
        if (left < 4)
            return trn_pbr_fail(r, "the bytes end inside a 32-bit value");
        memcpy(&v, r->p, 4);
        r->v = v;
        r->p += 4;
        return true;
    }
    case TRN_PB_BYTES: {
        uint64_t n;
        if (!trn_pbr_raw_varint(r, &n))
            return false;
        if (n > (uint64_t)(r->end - r->p))
            return trn_pbr_fail(r, "a length reaches beyond the end");
        r->b = r->p;
        r->n = (size_t)n;
        r->p += n;
        return true;
    }
    default:
        return trn_pbr_fail(r, "groups and unknown wire types are not supported");
    }
}

#endif
