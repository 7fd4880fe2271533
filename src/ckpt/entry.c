#include "ckpt/entry.h"

#include <stdlib.h>

#include "proto/pbw.h"

#define SLICES_MAX 65536 /* of one tensor: four bytes of a message become half a kilobyte here */

void trn_bundle_entry_fini(trn_bundle_entry *e)
{
    free(e->slice);
    e->slice = NULL;
}

/* ---- writing (default values are left out, as protocol buffers do) ---------------------------------------------- */

void trn_ckpt__put_shape(trn_sb *out, uint32_t field, const trn_shape *s)
{
    trn_sb m = {0};
    for (int d = 0; d < s->rank; d++) {
        trn_sb dim = {0};
        trn_pbw_varint(&dim, 1, (uint64_t)s->dim[d]);
        trn_pbw_bytes(&m, 2, dim.p, dim.n);
        trn_sb_fini(&dim);
    }
    trn_pbw_bytes(out, field, m.p, m.n);
    trn_sb_fini(&m);
}

void trn_ckpt__put_slice(trn_sb *out, uint32_t field, const trn_slicespec *s)
{
    trn_sb m = {0};
    for (int d = 0; d < s->rank; d++) {
        trn_sb extent = {0};
        if (s->length[d] >= 0) {
            trn_pbw_varint(&extent, 1, (uint64_t)s->start[d]);
            trn_pbw_varint(&extent, 2, (uint64_t)s->length[d]);
        }
        trn_pbw_bytes(&m, 1, extent.p, extent.n);
        trn_sb_fini(&extent);
    }
    trn_pbw_bytes(out, field, m.p, m.n);
    trn_sb_fini(&m);
}

void trn_bundle_entry_put(trn_sb *out, const trn_bundle_entry *e)
{
    trn_pbw_varint(out, 1, (uint64_t)e->dtype);
    trn_ckpt__put_shape(out, 2, &e->shape);
    trn_pbw_varint(out, 3, (uint64_t)e->shard);
    trn_pbw_varint(out, 4, e->offset);
    trn_pbw_varint(out, 5, e->size);
    if (e->crc)
        trn_pbw_fixed32(out, 6, e->crc);
    for (int i = 0; i < e->n_slices; i++)
        trn_ckpt__put_slice(out, 7, &e->slice[i]);
}

void trn_bundle_header_put(trn_sb *out, const trn_bundle_header *h)
{
    trn_sb version = {0};
    trn_pbw_varint(&version, 1, (uint64_t)h->producer);
    trn_pbw_varint(&version, 2, (uint64_t)h->min_consumer);
    trn_pbw_varint(out, 1, (uint64_t)h->shards);
    trn_pbw_varint(out, 2, h->big_endian);
    trn_pbw_bytes(out, 3, version.p, version.n);
    trn_sb_fini(&version);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static trn_err unparsable(const char *where, const char *why)
{
    return trn_errorf(TRN_DATA_LOSS, "%s: the index is damaged: %s", where, why);
}

trn_err trn_ckpt__parse_shape(trn_shape *out, const char *where, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    out->rank = 0;
    while (trn_pbr_next(&r)) {
        if (r.field == 3 && r.type == TRN_PB_VARINT && r.v)
            return unparsable(where, "a shape of unknown rank");
        if (r.field != 2 || r.type != TRN_PB_BYTES)
            continue;
        if (out->rank == TRN_MAX_RANK)
            return unparsable(where, "too many dimensions");
        int64_t size = 0;
        trn_pbr dim = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&dim))
            if (dim.field == 1 && dim.type == TRN_PB_VARINT)
                size = (int64_t)dim.v;
        if (dim.bad || size < 0)
            return unparsable(where, "a bad dimension");
        out->dim[out->rank++] = size;
    }
    int64_t count;
    trn_err err = r.bad ? unparsable(where, r.why) : trn_shape_count(&count, out);
    if (err && trn_err_code(err) != TRN_DATA_LOSS) {
        trn_err_free(err);
        err = unparsable(where, "a shape with too many elements");
    }
    return err;
}

trn_err trn_ckpt__parse_slice(trn_slicespec *out, const char *where, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    *out = (trn_slicespec){0};
    while (trn_pbr_next(&r)) {
        if (r.field != 1 || r.type != TRN_PB_BYTES)
            continue;
        if (out->rank == TRN_MAX_RANK)
            return unparsable(where, "too many extents");
        int64_t start = 0, length = -1;
        trn_pbr e = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&e)) {
            if (e.field == 1 && e.type == TRN_PB_VARINT)
                start = (int64_t)e.v;
            if (e.field == 2 && e.type == TRN_PB_VARINT && (length = (int64_t)e.v) <= 0)
                return unparsable(where, "an extent without length");
        }
        if (e.bad || start < 0 || (length < 0 && start))
            return unparsable(where, "a bad extent");
        out->start[out->rank] = start;
        out->length[out->rank++] = length;
    }
    return r.bad ? unparsable(where, r.why) : TRN_OK;
}

trn_err trn_bundle_entry_parse(trn_bundle_entry *out, const char *where, const void *p, size_t n)
{
    trn_bundle_entry e = {0};
    trn_pbr r = trn_pbr_init(p, n);
    trn_err err = TRN_OK;
    while (!err && trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_VARINT) {
            e.dtype = r.v < TRN_DTYPE_END ? (trn_dtype)r.v : TRN_INVALID;
        } else if (r.field == 2 && r.type == TRN_PB_BYTES) {
            err = trn_ckpt__parse_shape(&e.shape, where, r.b, r.n);
        } else if (r.field == 3 && r.type == TRN_PB_VARINT) {
            e.shard = r.v <= INT32_MAX ? (int32_t)r.v : -1;
        } else if (r.field == 4 && r.type == TRN_PB_VARINT) {
            e.offset = r.v;
        } else if (r.field == 5 && r.type == TRN_PB_VARINT) {
            e.size = r.v;
        } else if (r.field == 6 && r.type == TRN_PB_FIXED32) {
            e.crc = (uint32_t)r.v;
        } else if (r.field == 7 && r.type == TRN_PB_BYTES) {
            trn_slicespec s;
            err = trn_ckpt__parse_slice(&s, where, r.b, r.n);
            if (!err && e.n_slices == SLICES_MAX)
                err = unparsable(where, "too many slices");
            if (!err)
                TRN_PUSH(e.slice, e.n_slices, e.cap_slices, s);
        }
    }
    if (!err && r.bad)
        err = unparsable(where, r.why);
    if (!err && (e.dtype == TRN_INVALID || !trn_dtype_size(e.dtype)))
        err = unparsable(where, "an unknown dtype");
    trn_shape ignored;
    for (int i = 0; !err && i < e.n_slices; i++)
        if ((err = trn_slicespec_shape(&ignored, &e.slice[i], &e.shape))) {
            trn_err_free(err);
            err = unparsable(where, "a slice outside its tensor");
        }
    if (err) {
        trn_bundle_entry_fini(&e);
        return err;
    }
    *out = e;
    return TRN_OK;
}

trn_err trn_bundle_header_parse(trn_bundle_header *out, const char *where, const void *p, size_t n)
{
    trn_bundle_header h = {0};
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == 1 && r.type == TRN_PB_VARINT)
            h.shards = r.v <= 99999 ? (int32_t)r.v : -1;
        if (r.field == 2 && r.type == TRN_PB_VARINT)
            h.big_endian = r.v == 1;
        if (r.field != 3 || r.type != TRN_PB_BYTES)
            continue;
        trn_pbr v = trn_pbr_init(r.b, r.n);
        while (trn_pbr_next(&v)) {
            if (v.field == 1 && v.type == TRN_PB_VARINT)
                h.producer = v.v <= INT32_MAX ? (int32_t)v.v : -1;
            if (v.field == 2 && v.type == TRN_PB_VARINT)
                h.min_consumer = v.v <= INT32_MAX ? (int32_t)v.v : -1;
        }
        if (v.bad)
            return unparsable(where, v.why);
    }
    if (r.bad)
        return unparsable(where, r.why);
    if (h.shards < 0 || h.producer < 0 || h.min_consumer < 0)
        return unparsable(where, "bad numbers in the header");
    *out = h;
    return TRN_OK;
}
