/* Writing and merging bundles. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/bundle.h"
#include "ckpt/crc32c.h"
#include "ckpt/entry.h"
#include "ckpt/sstable.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define VERSION 1
#define CHUNK (1 << 20) /* checksum and write while the bytes are in the cache */

char *trn_bundle_index_name(const char *prefix) { return trn_xasprintf("%s.index", prefix); }
char *trn_bundle_data_name(const char *prefix, int shard, int shards)
{
    return trn_xasprintf("%s.data-%05d-of-%05d", prefix, shard, shards);
}

/* ---- a map of entries that ends up as an index -------------------------------------------------------------------- */

static void entry_free(void *p)
{
    trn_bundle_entry_fini(p);
    free(p);
}

typedef struct keyed {
    const char *key;
    size_t n;
    const trn_bundle_entry *e;
} keyed;

static int by_key(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    int c = memcmp(x->key, y->key, TRN_MIN(x->n, y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static trn_err put_index(trn_outfile *f, const trn_bundle_header *h, const trn_map *map)
{
    size_t n = trn_map_count(map), i = 0;
    keyed *all = trn_xalloc((n + 1) * sizeof *all);
    void *value;
    for (size_t it = 0; trn_map_next(map, &it, &all[i].key, &all[i].n, &value); i++)
        all[i].e = value;
    qsort(all, n, sizeof *all, by_key);
    trn_sst_writer *w = trn_sst_writer_new(f);
    trn_sb v = {0};
    trn_bundle_header_put(&v, h);
    trn_err err = trn_sst_add(w, "", 0, v.p, v.n);
    for (i = 0; !err && i < n; i++) {
        v.n = 0;
        trn_bundle_entry_put(&v, all[i].e);
        err = trn_sst_add(w, all[i].key, all[i].n, v.p, v.n);
    }
    if (!err)
        err = trn_sst_finish(w);
    trn_sb_fini(&v);
    trn_sst_writer_free(w);
    free(all);
    return err;
}

static trn_err write_index(const char *prefix, const trn_bundle_header *h, const trn_map *map)
{
    char *path = trn_bundle_index_name(prefix);
    trn_outfile f;
    trn_err err = trn_outfile_open(&f, path);
    free(path);
    TRN_TRY(err);
    err = put_index(&f, h, map);
    if (!err)
        return trn_outfile_commit(&f);
    trn_outfile_abort(&f);
    return err;
}

/* A checkpoint that is replaced is no checkpoint from the moment its data changes: first its index goes. */
static trn_err remove_index(const char *prefix)
{
    char *path = trn_bundle_index_name(prefix);
    trn_err err = unlink(trn_local_path(path)) && errno != ENOENT ? trn_err_errno(errno, "removing %s", path) : TRN_OK;
    free(path);
    return err;
}

static trn_err make_dir_of(const char *path)
{
    char *dir = trn_path_dir(path);
    trn_err err = trn_path_mkdir(dir);
    free(dir);
    return err;
}

/* ---- one shard -------------------------------------------------------------------------------------------------- */

struct trn_bundle_writer {
    char *prefix;
    trn_outfile data;
    trn_map *map;
};

trn_err trn_bundle_writer_open(trn_bundle_writer **out, const char *prefix)
{
    TRN_TRY(make_dir_of(prefix));
    char *path = trn_bundle_data_name(prefix, 0, 1);
    trn_outfile f;
    trn_err err = trn_outfile_open(&f, path);
    free(path);
    TRN_TRY(err);
    trn_bundle_writer *w = trn_xalloc(sizeof *w);
    w->prefix = trn_xstrdup(prefix);
    w->data = f;
    w->map = trn_map_new();
    *out = w;
    return TRN_OK;
}

static trn_err put_bytes(trn_outfile *f, uint32_t *crc, const void *p, size_t n)
{
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t k = TRN_MIN(n - at, (size_t)CHUNK);
        *crc = trn_crc32c(*crc, (const char *)p + at, k);
        TRN_TRY(trn_outfile_write(f, (const char *)p + at, k));
    }
    return TRN_OK;
}

/* All lengths as varints, the checksum of the lengths (as 32-bit numbers), all bytes. The entry's checksum runs over lengths as numbers,
 * that checksum, and the bytes. */
static trn_err put_strings(trn_outfile *f, uint32_t *crc, const trn_tensor *t)
{
    const trn_str *s = TRN_DATA(t, trn_str);
    for (int64_t i = 0; i < t->count; i++) {
        uint8_t b[TRN_PB_VARINT_MAX];
        *crc = trn_crc32c(*crc, &s[i].len, 4);
        TRN_TRY(trn_outfile_write(f, b, trn_pbw_varint_to(b, s[i].len)));
    }
    uint32_t sum = trn_crc32c_mask(*crc);
    TRN_TRY(put_bytes(f, crc, &sum, 4));
    for (int64_t i = 0; i < t->count; i++)
        TRN_TRY(put_bytes(f, crc, trn_str_p(&s[i]), s[i].len));
    return TRN_OK;
}

/* Per element its length as a varint, the message, and the checksum so far. The entry's checksum runs over lengths as 64-bit numbers, messages and
 * those checksums. */
static trn_err put_variants(trn_outfile *f, uint32_t *crc, const trn_tensor *t)
{
    trn_sb m = {0};
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < t->count; i++) {
        trn_arena *a = trn_arena_new();
        const trn_variant *v = TRN_DATA(t, trn_variant *)[i];
        Tensorflow__VariantTensorDataProto *pb = trn_variant_to_pb(a, v, &TRN_PB_ROOM);
        m.n = 0;
        if (pb)
            trn_pb_pack(&m, &pb->base);
        else
            err = trn_errorf(TRN_UNIMPLEMENTED, "a %s cannot be saved", v->type->name);
        trn_arena_free(a);
        uint8_t b[TRN_PB_VARINT_MAX];
        uint64_t len = m.n;
        *crc = trn_crc32c(*crc, &len, sizeof len);
        if (!err)
            err = trn_outfile_write(f, b, trn_pbw_varint_to(b, len));
        if (!err)
            err = put_bytes(f, crc, m.p, m.n);
        uint32_t sum = trn_crc32c_mask(*crc);
        if (!err)
            err = put_bytes(f, crc, &sum, sizeof sum);
    }
    trn_sb_fini(&m);
    return err;
}

trn_err trn_bundle_add(trn_bundle_writer *w, const char *name, size_t n, const trn_tensor *t)
{
    if (!n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "A tensor without a name cannot be saved");
    if (trn_map_get(w->map, name, n))
        return trn_errorf(TRN_INVALID_ARGUMENT, "Adding duplicate key: %.*s", (int)n, name);
    if (t->dtype != TRN_STRING && t->dtype != TRN_VARIANT && !trn_dtype_is_plain(t->dtype))
        return trn_errorf(TRN_UNIMPLEMENTED, "%.*s: a tensor of type %s cannot be saved", (int)n, name,
                          trn_dtype_name(t->dtype));
    trn_bundle_entry *e = trn_xalloc(sizeof *e);
    *e = (trn_bundle_entry){.dtype = t->dtype, .shape = t->shape, .offset = w->data.size};
    trn_map_put(w->map, name, n, e);
    uint32_t crc = 0;
    TRN_TRY(t->dtype == TRN_STRING    ? put_strings(&w->data, &crc, t)
            : t->dtype == TRN_VARIANT ? put_variants(&w->data, &crc, t)
                                      : put_bytes(&w->data, &crc, t->data, trn_tensor_bytes(t)));
    e->size = w->data.size - e->offset;
    e->crc = trn_crc32c_mask(crc);
    return TRN_OK;
}

trn_err trn_bundle_add_slice(trn_bundle_writer *w, const char *name, size_t n, const trn_shape *full,
                             const trn_slicespec *slice, const trn_tensor *t)
{
    if (trn_slicespec_is_full(slice, full))
        return trn_bundle_add(w, name, n, t);
    if (!n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "A tensor without a name cannot be saved");
    trn_bundle_entry *e = trn_map_get(w->map, name, n);
    if (e && (!e->n_slices || e->dtype != t->dtype || !trn_shape_eq(&e->shape, full)))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%.*s: its slices are of tensors with different dtypes or shapes",
                          (int)n, name);
    if (!e) {
        e = trn_xalloc(sizeof *e);
        *e = (trn_bundle_entry){.dtype = t->dtype, .shape = *full};
        trn_map_put(w->map, name, n, e);
    }
    TRN_PUSH(e->slice, e->n_slices, e->cap_slices, *slice);
    trn_sb key = {0};
    trn_slicespec_key(&key, name, n, slice);
    trn_err err = trn_bundle_add(w, key.p, key.n, t);
    trn_sb_fini(&key);
    return err;
}

static void writer_free(trn_bundle_writer *w)
{
    trn_outfile_abort(&w->data);
    trn_map_free(w->map, entry_free);
    free(w->prefix);
    free(w);
}

trn_err trn_bundle_finish(trn_bundle_writer *w)
{
    trn_bundle_header h = {.shards = 1, .producer = VERSION};
    trn_err err = trn_outfile_sync(&w->data);
    if (!err)
        err = remove_index(w->prefix);
    if (!err)
        err = trn_outfile_commit(&w->data);
    if (!err)
        err = write_index(w->prefix, &h, w->map);
    writer_free(w);
    return err;
}

void trn_bundle_abort(trn_bundle_writer *w)
{
    if (w)
        writer_free(w);
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

typedef struct merging {
    trn_bundle_header header;
    bool any;
    trn_map *map;
    trn_map *shard_of; /* data file → its number + 1 */
    char **file;       /* by number */
    int n_files, cap_files;
} merging;

static trn_err merge_entry(merging *m, const char *prefix, int shards, const trn_sst_entry *in, trn_bundle_entry *e)
{
    trn_bundle_entry *old = trn_map_get(m->map, in->key, in->n_key);
    if (old) {
        if (!old->n_slices || !e->n_slices)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "Duplicate tensor keyed by %.*s encountered, when merging prefix: %s", (int)in->n_key,
                              in->key, prefix);
        if (old->dtype != e->dtype || !trn_shape_eq(&old->shape, &e->shape))
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "%.*s has different dtypes or shapes in the checkpoints to merge; the last was %s",
                              (int)in->n_key, in->key, prefix);
        for (int i = 0; i < e->n_slices; i++)
            TRN_PUSH(old->slice, old->n_slices, old->cap_slices, e->slice[i]);
        return TRN_OK;
    }
    if (e->shard < 0 || e->shard >= shards)
        return trn_errorf(TRN_DATA_LOSS, "%s.index: %.*s lies in shard %d of %d", prefix, (int)in->n_key, in->key,
                          e->shard, shards);
    char *file = trn_bundle_data_name(prefix, e->shard, shards);
    size_t number = (size_t)trn_map_gets(m->shard_of, file);
    if (!number) {
        number = (size_t)m->n_files + 1;
        trn_map_puts(m->shard_of, file, (void *)number);
        TRN_PUSH(m->file, m->n_files, m->cap_files, trn_xstrdup(file));
    }
    free(file);
    e->shard = (int32_t)number - 1;
    trn_bundle_entry *mine = trn_xalloc(sizeof *mine);
    *mine = *e;
    e->slice = NULL;
    trn_map_put(m->map, in->key, in->n_key, mine);
    return TRN_OK;
}

static trn_err merge_table(merging *m, const char *prefix, const char *path, trn_sst *t)
{
    trn_sst_entry in;
    bool found;
    trn_bundle_header h;
    TRN_TRY(trn_sst_next(&in, &found, t));
    if (!found || in.n_key)
        return trn_errorf(TRN_DATA_LOSS, "%s has no header", path);
    TRN_TRY(trn_bundle_header_parse(&h, path, in.val, in.n_val));
    if (m->any && (h.big_endian != m->header.big_endian || h.producer != m->header.producer ||
                   h.min_consumer != m->header.min_consumer))
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Merging bundles with different byte orders or versions; the last was %s", prefix);
    int shards = h.shards;
    h.shards = 0;
    if (!m->any)
        m->header = h;
    m->any = true;
    for (;;) {
        TRN_TRY(trn_sst_next(&in, &found, t));
        if (!found)
            return TRN_OK;
        trn_bundle_entry e;
        TRN_TRY(trn_bundle_entry_parse(&e, path, in.val, in.n_val));
        trn_err err = merge_entry(m, prefix, shards, &in, &e);
        trn_bundle_entry_fini(&e);
        TRN_TRY(err);
    }
}

static trn_err merge_one(merging *m, const char *prefix)
{
    char *path = trn_bundle_index_name(prefix);
    trn_infile f = {.fd = -1};
    trn_sst *t = NULL;
    trn_err err = trn_infile_open(&f, path);
    if (!err)
        err = trn_sst_open(&t, &f);
    if (!err)
        err = merge_table(m, prefix, path, t);
    trn_sst_close(t);
    trn_infile_close(&f);
    free(path);
    return err;
}

static trn_err merge_all(merging *m, const char *const *prefixes, int n, const char *to, bool allow_missing)
{
    for (int i = 0; i < n; i++) {
        char *path = trn_bundle_index_name(prefixes[i]);
        bool there = trn_path_exists(path);
        free(path);
        if (!there && allow_missing)
            continue;
        if (!there)
            return trn_errorf(TRN_INVALID_ARGUMENT, "allow_missing_files was set to false and %s did not exist.",
                              prefixes[i]);
        TRN_TRY(merge_one(m, prefixes[i]));
    }
    if (!m->any)
        return trn_errorf(TRN_INVALID_ARGUMENT, "At least one prefix checkpoint file must exist, but none existed.");
    TRN_TRY(make_dir_of(to));
    TRN_TRY(remove_index(to));
    for (int i = 0; i < m->n_files; i++) {
        char *name = trn_bundle_data_name(to, i, m->n_files);
        trn_err err = rename(trn_local_path(m->file[i]), trn_local_path(name)) ? trn_err_errno(errno, "renaming %s to %s", m->file[i], name) : TRN_OK;
        free(name);
        TRN_TRY(err);
    }
    m->header.shards = m->n_files;
    return write_index(to, &m->header, m->map);
}

trn_err trn_bundle_merge(const char *const *prefixes, int n, const char *to, bool allow_missing)
{
    merging m = {.map = trn_map_new(), .shard_of = trn_map_new()};
    trn_err err = merge_all(&m, prefixes, n, to, allow_missing);
    for (int i = 0; !err && i < n; i++)
        if (strcmp(prefixes[i], to) != 0)
            trn_err_free(remove_index(prefixes[i]));
    trn_map_free(m.map, entry_free);
    trn_map_free(m.shard_of, NULL);
    for (int i = 0; i < m.n_files; i++)
        free(m.file[i]);
    free(m.file);
    return err;
}
