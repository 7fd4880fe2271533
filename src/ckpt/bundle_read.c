/* Reading bundles. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/bundle.h"
#include "ckpt/crc32c.h"
#include "ckpt/entry.h"
#include "ckpt/sstable.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define VERSION 1
#define CHUNK ((size_t)1 << 20)

struct trn_bundle {
    char *prefix;
    trn_infile index;
    trn_sst *table;
    trn_bundle_header header;
    trn_infile *data; /* by shard; path NULL: not opened yet */
    const void *mem;  /* instead of files */
    size_t n_mem;
};

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static trn_err read_header(trn_bundle *b)
{
    trn_sst_entry e;
    bool found;
    TRN_TRY(trn_sst_next(&e, &found, b->table));
    if (!found || e.n_key)
        return trn_errorf(TRN_DATA_LOSS, "%s has no header", b->index.path);
    TRN_TRY(trn_bundle_header_parse(&b->header, b->index.path, e.val, e.n_val));
    if (b->header.big_endian)
        return trn_errorf(TRN_UNIMPLEMENTED, "%s was written by a big-endian machine", b->index.path);
    if (b->header.min_consumer > VERSION)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Checkpoint %s needs a reader of version %d or later, this one has %d",
                          b->prefix, b->header.min_consumer, VERSION);
    b->data = trn_xalloc(((size_t)b->header.shards + 1) * sizeof *b->data);
    return TRN_OK;
}

static trn_err open_table(trn_bundle **out, TRN_OWN trn_bundle *b)
{
    trn_err err = trn_sst_open(&b->table, &b->index);
    if (!err)
        err = read_header(b);
    if (err) {
        trn_bundle_close(b);
        return err;
    }
    *out = b;
    return TRN_OK;
}

trn_err trn_bundle_open(trn_bundle **out, const char *prefix)
{
    char *path = trn_bundle_index_name(prefix);
    trn_infile f;
    trn_err err = trn_infile_open(&f, path);
    free(path);
    TRN_TRY(err);
    trn_bundle *b = trn_xalloc(sizeof *b);
    b->prefix = trn_xstrdup(prefix);
    b->index = f;
    return open_table(out, b);
}

trn_err trn_bundle_open_memory(trn_bundle **out, const void *index, size_t n_index, const void *data, size_t n_data)
{
    trn_bundle *b = trn_xalloc(sizeof *b);
    b->prefix = trn_xstrdup("memory");
    trn_infile_on_memory(&b->index, "memory.index", index, n_index);
    b->mem = data ? data : "";
    b->n_mem = n_data;
    return open_table(out, b);
}

void trn_bundle_close(trn_bundle *b)
{
    if (!b)
        return;
    trn_sst_close(b->table);
    trn_infile_close(&b->index);
    for (int i = 0; b->data && i < b->header.shards; i++)
        trn_infile_close(&b->data[i]);
    free(b->data);
    free(b->prefix);
    free(b);
}

static trn_err data_file(trn_infile **out, trn_bundle *b, int shard)
{
    if (shard < 0 || shard >= b->header.shards)
        return trn_errorf(TRN_DATA_LOSS, "%s: shard %d of %d", b->index.path, shard, b->header.shards);
    trn_infile *f = &b->data[shard];
    if (!f->path) {
        char *path = trn_bundle_data_name(b->prefix, shard, b->header.shards);
        trn_err err = TRN_OK;
        if (b->mem)
            trn_infile_on_memory(f, path, b->mem, b->n_mem);
        else
            err = trn_infile_open(f, path);
        free(path);
        TRN_TRY(err);
    }
    *out = f;
    return TRN_OK;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static trn_err find(trn_bundle_entry *out, trn_bundle *b, const char *key, size_t n)
{
    trn_sst_entry e;
    bool found = false;
    if (n) {
        TRN_TRY(trn_sst_seek(b->table, key, n));
        TRN_TRY(trn_sst_next(&e, &found, b->table));
    }
    if (!found || e.n_key != n || memcmp(e.key, key, n))
        return trn_errorf(TRN_NOT_FOUND, "Key %.*s not found in checkpoint", (int)TRN_MIN(n, 1000), key);
    return trn_bundle_entry_parse(out, b->index.path, e.val, e.n_val);
}

trn_err trn_bundle_find(trn_dtype *dtype, trn_shape *shape, trn_bundle *b, const char *name, size_t n)
{
    trn_bundle_entry e;
    TRN_TRY(find(&e, b, name, n));
    *dtype = e.dtype;
    *shape = e.shape;
    trn_bundle_entry_fini(&e);
    return TRN_OK;
}

int trn_bundle_shards(const trn_bundle *b)
{
    return b->header.shards;
}

trn_err trn_bundle_where(trn_bundle_place *out, trn_bundle *b, const char *name, size_t n)
{
    trn_bundle_entry e;
    TRN_TRY(find(&e, b, name, n));
    trn_bundle_place place = {.shard = e.shard, .bytes = e.size, .pieces = e.n_slices};
    trn_err err = TRN_OK;
    for (int i = 0; i < e.n_slices && !err; i++) {
        trn_sb key = {0};
        trn_bundle_entry piece;
        trn_slicespec_key(&key, name, n, &e.slice[i]);
        err = find(&piece, b, key.p, key.n);
        trn_sb_fini(&key);
        if (err)
            break;
        place.shard = i == 0 || place.shard == piece.shard ? piece.shard : -1;
        place.bytes += piece.size;
        trn_bundle_entry_fini(&piece);
    }
    trn_bundle_entry_fini(&e);
    if (!err)
        *out = place;
    return err;
}

trn_err trn_bundle_each(trn_bundle *b,
                        trn_err (*fn)(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape),
                        void *arg)
{
    TRN_TRY(trn_sst_seek(b->table, "\1", 1)); /* behind the header and the pieces, whose keys start with a zero byte */
    for (;;) {
        trn_sst_entry e;
        bool found;
        TRN_TRY(trn_sst_next(&e, &found, b->table));
        if (!found)
            return TRN_OK;
        trn_bundle_entry entry;
        TRN_TRY(trn_bundle_entry_parse(&entry, b->index.path, e.val, e.n_val));
        trn_err err = fn(arg, e.key, e.n_key, entry.dtype, &entry.shape);
        trn_bundle_entry_fini(&entry);
        TRN_TRY(err);
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static trn_err read_plain(trn_tensor *t, trn_infile *f, uint64_t at, uint32_t *crc)
{
    size_t n = trn_tensor_bytes(t);
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t k = TRN_MIN(n - i, CHUNK);
        TRN_TRY(trn_infile_read(f, at + i, (char *)t->data + i, k));
        *crc = trn_crc32c(*crc, (char *)t->data + i, k);
    }
    return TRN_OK;
}

static trn_err split_strings(trn_tensor *t, const trn_infile *f, const uint8_t *p, size_t n, uint32_t *crc)
{
    trn_pbr r = trn_pbr_init(p, n);
    uint64_t total = 0;
    for (int64_t i = 0; i < t->count; i++) { /* first pass: lengths, which are checked before anything is allocated */
        uint64_t len;
        if (!trn_pbr_raw_varint(&r, &len) || len > n)
            return trn_errorf(TRN_DATA_LOSS, "%s: bad string lengths", f->path);
        uint32_t len32 = (uint32_t)len;
        *crc = len <= UINT32_MAX ? trn_crc32c(*crc, &len32, 4) : trn_crc32c(*crc, &len, 8);
        total += len;
    }
    uint32_t sum;
    if ((size_t)(r.end - r.p) < 4 || total != (uint64_t)(r.end - r.p) - 4)
        return trn_errorf(TRN_DATA_LOSS, "%s: string lengths and bytes do not agree", f->path);
    memcpy(&sum, r.p, 4);
    if (!trn_crc32c_ok(trn_crc32c_unmask(sum), *crc))
        return trn_errorf(TRN_DATA_LOSS, "%s: The length checksum does not match: expected %08x but actual is %08x",
                          f->path, trn_crc32c_unmask(sum), *crc);
    *crc = trn_crc32c(*crc, r.p, (size_t)(r.end - r.p));
    const uint8_t *bytes = r.p + 4;
    r = trn_pbr_init(p, n);
    for (int64_t i = 0; i < t->count; i++) {
        uint64_t len = 0;
        (void)trn_pbr_raw_varint(&r, &len);
        TRN_TRY(trn_tensor_str_put(t, i, (const char *)bytes, (size_t)len));
        bytes += len;
    }
    return TRN_OK;
}

static trn_err read_variant(trn_variant **out, const uint8_t *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__VariantTensorDataProto *pb;
    size_t left = TRN_PB_FILL_MAX;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__variant_tensor_data_proto__descriptor, p, n);
    if (!err)
        err = trn_variant_from_pb(out, pb, &left);
    trn_arena_free(a);
    return err;
}

static trn_err split_variants(trn_tensor *t, const trn_infile *f, const uint8_t *p, size_t n, uint32_t *crc)
{
    trn_pbr r = trn_pbr_init(p, n);
    for (int64_t i = 0; i < t->count; i++) {
        uint64_t len;
        uint32_t sum;
        if (!trn_pbr_raw_varint(&r, &len) || len > (size_t)(r.end - r.p) || (size_t)(r.end - r.p) - len < sizeof sum)
            return trn_errorf(TRN_DATA_LOSS, "%s: variant %lld is longer than its entry", f->path, (long long)i);
        *crc = trn_crc32c(trn_crc32c(*crc, &len, sizeof len), r.p, (size_t)len);
        const uint8_t *bytes = r.p;
        memcpy(&sum, r.p + len, sizeof sum);
        r.p += len + sizeof sum;
        if (!trn_crc32c_ok(trn_crc32c_unmask(sum), *crc))
            return trn_errorf(TRN_DATA_LOSS, "%s: The checksum after Variant %lld does not match", f->path, (long long)i);
        *crc = trn_crc32c(*crc, &sum, sizeof sum);
        TRN_TRY(read_variant(TRN_DATA_MUT(t, trn_variant *) + i, bytes, (size_t)len));
    }
    return TRN_OK;
}

/* Strings and variants: what has a length of its own. */
static trn_err read_parts(trn_tensor *t, trn_infile *f, uint64_t at, size_t n, uint32_t *crc)
{
    uint8_t *p = malloc(n);
    if (!p)
        return trn_err_oom();
    trn_err err = trn_infile_read(f, at, p, n);
    if (!err)
        err = t->dtype == TRN_STRING ? split_strings(t, f, p, n, crc) : split_variants(t, f, p, n, crc);
    free(p);
    return err;
}

/* The bytes of an entry that has some. Sizes are checked against the file before memory is asked for. */
static trn_err read_value(trn_tensor **out, trn_bundle *b, const trn_bundle_entry *e)
{
    int64_t count;
    TRN_TRY(trn_shape_count(&count, &e->shape));
    bool parts = e->dtype == TRN_STRING || e->dtype == TRN_VARIANT;
    if (!parts && !trn_dtype_is_plain(e->dtype))
        return trn_errorf(TRN_UNIMPLEMENTED, "%s: tensors of type %s cannot be restored", b->index.path,
                          trn_dtype_name(e->dtype));
    trn_infile *f;
    TRN_TRY(data_file(&f, b, e->shard));
    if (e->offset > f->size || e->size > f->size - e->offset)
        return trn_errorf(TRN_DATA_LOSS, "%s: %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64 " are said to be a tensor",
                          f->path, e->size, e->offset, f->size);
    if (parts ? e->size < (uint64_t)count + (count ? 4 : 0) : e->size != (uint64_t)count * trn_dtype_size(e->dtype))
        return trn_errorf(TRN_DATA_LOSS,
                          "%s: Invalid size in bundle entry: %" PRIu64 " bytes for %" PRId64 " elements of type %s",
                          f->path, e->size, count, trn_dtype_name(e->dtype));
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, e->dtype, &e->shape));
    uint32_t crc = 0;
    trn_err err = TRN_OK;
    if (!parts)
        err = read_plain(t, f, e->offset, &crc);
    else if (e->size)
        err = read_parts(t, f, e->offset, (size_t)e->size, &crc);
    if (!err && !trn_crc32c_ok(trn_crc32c_unmask(e->crc), crc))
        err = trn_errorf(TRN_DATA_LOSS,
                         "TensorBundle at %s shard %d (%" PRIu64
                         " bytes): Checksum does not match: stored %08x vs. calculated on the restored bytes %08x",
                         b->prefix, e->shard, e->size, trn_crc32c_unmask(e->crc), crc);
    if (err) {
        trn_tensor_unref(t);
        return err;
    }
    *out = t;
    return TRN_OK;
}

static trn_err read_piece(trn_tensor **out, trn_bundle *b, const char *name, size_t n, const trn_bundle_entry *whole,
                          const trn_slicespec *piece)
{
    trn_sb key = {0};
    trn_slicespec_key(&key, name, n, piece);
    trn_bundle_entry e;
    trn_err err = find(&e, b, key.p, key.n);
    trn_sb_fini(&key);
    if (err && trn_err_code(err) == TRN_NOT_FOUND) {
        trn_err_free(err);
        err = trn_errorf(TRN_DATA_LOSS, "%s: a slice of %.*s is missing", b->index.path, (int)n, name);
    }
    TRN_TRY(err);
    trn_shape shape;
    err = trn_slicespec_shape(&shape, piece, &whole->shape);
    if (!err && (e.n_slices || e.dtype != whole->dtype || !trn_shape_eq(&shape, &e.shape)))
        err = trn_errorf(TRN_DATA_LOSS, "%s: a slice of %.*s is not what its tensor says", b->index.path, (int)n, name);
    if (!err)
        err = read_value(out, b, &e);
    trn_bundle_entry_fini(&e);
    return err;
}

typedef struct pieces {
    trn_bundle *b;
    const char *name;
    size_t n;
    const trn_bundle_entry *e;
} pieces;

static trn_err read_nth(trn_tensor **out, void *arg, int i)
{
    pieces *p = arg;
    return read_piece(out, p->b, p->name, p->n, p->e, &p->e->slice[i]);
}

static trn_err read_entry(trn_tensor **out, trn_bundle *b, const char *name, size_t n, const trn_bundle_entry *e,
                          const trn_slicespec *want)
{
    if (e->n_slices) {
        pieces p = {b, name, n, e};
        uint64_t most = 0;
        for (int i = 0; i < b->header.shards; i++) {
            trn_infile *f;
            TRN_TRY(data_file(&f, b, i));
            most += f->size;
        }
        return trn_slice_gather(out, name, n, e->dtype, &e->shape, e->slice, e->n_slices, want, most, read_nth, &p);
    }
    trn_tensor *all;
    trn_shape shape;
    TRN_TRY(trn_slicespec_shape(&shape, want, &e->shape));
    TRN_TRY(read_value(&all, b, e));
    if (trn_slicespec_is_full(want, &e->shape)) {
        *out = all;
        return TRN_OK;
    }
    trn_slicespec full = trn_slicespec_full(e->shape.rank);
    trn_tensor *t = NULL;
    trn_err err = trn_tensor_new(&t, e->dtype, &shape);
    if (!err)
        err = trn_slice_copy(t, want, all, &full, &e->shape);
    trn_tensor_unref(all);
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

trn_err trn_bundle_read_slice(trn_tensor **out, trn_bundle *b, const char *name, size_t n, const trn_slicespec *slice)
{
    trn_bundle_entry e;
    TRN_TRY(find(&e, b, name, n));
    trn_err err = read_entry(out, b, name, n, &e, slice);
    trn_bundle_entry_fini(&e);
    return err;
}

trn_err trn_bundle_read(trn_tensor **out, trn_bundle *b, const char *name, size_t n)
{
    trn_bundle_entry e;
    TRN_TRY(find(&e, b, name, n));
    trn_slicespec all = trn_slicespec_full(e.shape.rank);
    trn_err err = read_entry(out, b, name, n, &e, &all);
    trn_bundle_entry_fini(&e);
    return err;
}
