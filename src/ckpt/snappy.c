#include "ckpt/snappy.h"

#include <stdlib.h>

#include "proto/pbw.h"

enum { LITERAL, COPY1, COPY2, COPY4 }; /* the low two bits of a tag */

#define BLOCK (64u << 10) /* copies do not reach across blocks, so that two bytes hold an offset */
#define TABLE_BITS 14
#define SAFE_TAIL 15      /* at a block's end nothing is looked for any more */
#define MAX_RATIO 22      /* a copy of 64 bytes takes three */

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* ---- compressing ---------------------------------------------------------------------------------------------------- */

static void put_literal(trn_sb *out, const uint8_t *p, size_t n)
{
    uint8_t head[5];
    size_t k = 1;
    if (!n)
        return;
    if (n <= 60) {
        head[0] = (uint8_t)((n - 1) << 2 | LITERAL);
    } else {
        for (size_t v = n - 1; v; v >>= 8)
            head[k++] = (uint8_t)v;
        head[0] = (uint8_t)((58 + k) << 2 | LITERAL); /* 60: one byte of length follows */
    }
    trn_sb_add(out, head, k);
    trn_sb_add(out, p, n);
}

static void put_copy(trn_sb *out, size_t offset, size_t n)
{
    while (n) {
        size_t now = n <= 64 ? n : n < 68 ? 60 : 64; /* what is left is worth a copy */
        uint8_t tag[3];
        size_t k;
        if (now >= 4 && now <= 11 && offset < 2048) {
            tag[0] = (uint8_t)(offset >> 8 << 5 | (now - 4) << 2 | COPY1);
            tag[1] = (uint8_t)offset;
            k = 2;
        } else {
            tag[0] = (uint8_t)((now - 1) << 2 | COPY2);
            tag[1] = (uint8_t)offset;
            tag[2] = (uint8_t)(offset >> 8);
            k = 3;
        }
        trn_sb_add(out, tag, k);
        n -= now;
    }
}

static size_t same_bytes(const uint8_t *a, const uint8_t *b, const uint8_t *end)
{
    const uint8_t *from = b;
    while (b < end && *a == *b) {
        a++;
        b++;
    }
    return (size_t)(b - from);
}

/* `seen`: where four bytes were found last, by hash. Steps become longer where nothing repeats. */
static void put_block(trn_sb *out, const uint8_t *p, size_t n, uint16_t seen[1 << TABLE_BITS])
{
    const uint8_t *end = p + n, *at = p, *done = p;
    memset(seen, 0, sizeof *seen << TABLE_BITS);
    for (size_t missed = 32; n > SAFE_TAIL && at < end - SAFE_TAIL;) {
        uint32_t v = load32(at), h = v * 0x1e35a7bdu >> (32 - TABLE_BITS);
        const uint8_t *before = p + seen[h];
        seen[h] = (uint16_t)(at - p);
        if (before == at || load32(before) != v) {
            at += missed++ >> 5;
            continue;
        }
        size_t len = 4 + same_bytes(before + 4, at + 4, end);
        put_literal(out, done, (size_t)(at - done));
        put_copy(out, (size_t)(at - before), len);
        at += len;
        done = at;
        missed = 32;
    }
    put_literal(out, done, (size_t)(end - done));
}

void trn_snappy_compress(trn_sb *out, const void *p_, size_t n)
{
    const uint8_t *p = p_;
    uint16_t *seen = trn_xalloc(sizeof *seen << TABLE_BITS);
    trn_pbw_raw_varint(out, n);
    while (n) {
        size_t now = TRN_MIN(n, (size_t)BLOCK);
        put_block(out, p, now, seen);
        p += now;
        n -= now;
    }
    free(seen);
}

/* ---- uncompressing ---------------------------------------------------------------------------------------------------- */

static trn_err broken(const char *why) { return trn_errorf(TRN_DATA_LOSS, "compressed data (Snappy) are damaged: %s", why); }

static trn_err read_size(size_t *out, trn_pbr *r, size_t n)
{
    uint64_t v;
    if (!trn_pbr_raw_varint(r, &v) || v > UINT32_MAX)
        return broken("there is no length");
    if (v / MAX_RATIO > n)
        return broken("so few bytes cannot stand for so many");
    *out = (size_t)v;
    return TRN_OK;
}

trn_err trn_snappy_size(size_t *out, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    return read_size(out, &r, n);
}

/* `k` bytes of a number, the lowest first. */
static bool take(size_t *out, trn_pbr *r, size_t k)
{
    *out = 0;
    if ((size_t)(r->end - r->p) < k)
        return false;
    for (size_t i = 0; i < k; i++)
        *out |= (size_t)*r->p++ << 8 * i;
    return true;
}

/* A copy may read what it writes itself: a pattern that is repeated. */
static void copy_back(uint8_t *to, size_t offset, size_t n)
{
    const uint8_t *from = to - offset;
    if (offset >= n) {
        memcpy(to, from, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}

trn_err trn_snappy_uncompress(void *out, size_t size, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    uint8_t *to = out;
    size_t want, left = size;
    TRN_TRY(read_size(&want, &r, n));
    if (want != size)
        return broken("the length is not the one that is expected");
    while (r.p < r.end) {
        uint8_t tag = *r.p++;
        size_t len = (size_t)(tag >> 2) + 1, offset = 0, low;
        bool whole = true;
        switch (tag & 3) {
        case LITERAL:
            if (len > 60 && (whole = take(&len, &r, len - 60)))
                len++;
            if (!whole || len > left || len > (size_t)(r.end - r.p))
                return broken("a literal reaches beyond the end");
            memcpy(to, r.p, len);
            r.p += len;
            break;
        case COPY1:
            whole = take(&low, &r, 1);
            offset = (size_t)(tag >> 5) << 8 | low;
            len = 4 + (size_t)(tag >> 2 & 7);
            break;
        case COPY2:
            whole = take(&offset, &r, 2);
            break;
        case COPY4:
            whole = take(&offset, &r, 4);
            break;
        }
        if (tag & 3) {
            if (!whole || len > left || offset == 0 || offset > size - left)
                return broken("a copy reaches beyond the beginning or the end");
            copy_back(to, offset, len);
        }
        to += len;
        left -= len;
    }
    return left ? broken("bytes are missing") : TRN_OK;
}
