#include "ckpt/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/entry.h"
#include "ckpt/record.h"
#include "ckpt/snappy.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define META "snapshot.metadata"
#define MAX_META (1u << 20)
#define MAX_SHARDS 1000
#define MAX_RECORD ((uint64_t)1 << 30)

/* Fields of SnapshotMetadataRecord, SnapshotRecord, SnapshotTensorMetadata, TensorMetadata. */
enum { META_HASH = 1, META_RUN = 2, META_CREATED = 3, META_VERSION = 4, META_DTYPE = 5, META_ELEMENTS = 6, META_FINISHED = 1000 };
enum { RECORD_TENSOR = 1, PARTS_PART = 1, PART_SHAPE = 2, PART_BYTES = 3 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_CONTENT = 4 };

/* ---- names ----------------------------------------------------------------------------------------------------------- */

char *trn_path_join(const char *a, const char *b)
{
    size_t n = strlen(a);
    if (!n || !*b)
        return trn_xstrdup(n ? a : b);
    return trn_xasprintf("%s%s%s", a, a[n - 1] == '/' ? "" : "/", *b == '/' ? b + 1 : b);
}

char *trn_snapshot_file_name(const char *shard, int64_t i) { return trn_xasprintf("%s/%08" PRIu64 ".snapshot", shard, (uint64_t)i); }

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

trn_err trn_snapshot_shards(char ***out, int *n, const char *dir, const trn_snapshot_meta *m)
{
    char *run = trn_path_join(dir, m->run);
    DIR *d = opendir(trn_local_path(run));
    trn_err err = !d && errno != ENOENT ? trn_err_errno(errno, "%s", run) : TRN_OK; /* without elements there are no shards */
    int cap = 0;
    *out = NULL;
    *n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len > 6 && strcmp(e->d_name + len - 6, ".shard") == 0)
            TRN_PUSH(*out, *n, cap, trn_path_join(run, e->d_name));
    }
    if (d)
        closedir(d);
    if (*n)
        qsort(*out, (size_t)*n, sizeof **out, by_name);
    free(run);
    return err;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

void trn_snapshot_meta_fini(trn_snapshot_meta *m)
{
    free(m->run);
    m->run = NULL;
}

trn_err trn_snapshot_meta_parse(trn_snapshot_meta *out, const void *p, size_t n)
{
    trn_snapshot_meta m = {0};
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == META_RUN && r.type == TRN_PB_BYTES) {
            free(m.run);
            m.run = trn_xstrndup((const char *)r.b, r.n);
        } else if (r.type == TRN_PB_VARINT) {
            if (r.field == META_VERSION)
                m.version = (int64_t)r.v;
            else if (r.field == META_ELEMENTS)
                m.elements = (int64_t)r.v;
            else if (r.field == META_FINISHED)
                m.finished = r.v != 0;
        }
    }
    if (r.bad || !m.run || !*m.run || strchr(m.run, '/') || !strcmp(m.run, ".") || !strcmp(m.run, "..")) {
        free(m.run);
        return trn_errorf(TRN_DATA_LOSS, "the metadata of a snapshot cannot be read: %s", r.bad ? r.why : "they name no run");
    }
    *out = m;
    return TRN_OK;
}

trn_err trn_snapshot_meta_read(trn_snapshot_meta *out, bool *found, const char *dir)
{
    char *name = trn_path_join(dir, META);
    trn_infile f = {.fd = -1};
    trn_err err = trn_infile_open(&f, name);
    *found = !err;
    if (trn_err_code(err) == TRN_NOT_FOUND) {
        trn_err_free(err);
        err = TRN_OK;
    } else if (!err && f.size > MAX_META) {
        err = trn_errorf(TRN_DATA_LOSS, "it has %" PRIu64 " bytes", f.size);
    } else if (!err) {
        void *p = trn_xalloc(f.size + 1);
        err = trn_infile_read(&f, 0, p, f.size);
        if (!err)
            err = trn_snapshot_meta_parse(out, p, f.size);
        free(p);
    }
    trn_infile_close(&f);
    if (err)
        err = trn_err_wrap(err, "%s", name);
    free(name);
    return err;
}

/* ---- writing ----------------------------------------------------------------------------------------------------------- */

struct trn_snapshot_run {
    char *dir, *run, *hash;
    uint64_t id;
    trn_compression c;
    int n;
    trn_dtype *types;
    trn_map *shard; /* number → trn_record_writer */
    trn_sb s;
};

static trn_err write_meta(const trn_snapshot_run *r, int64_t elements, bool finished)
{
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, r->id);
    trn_sb s = {0}, types = {0};
    trn_pbw_str(&s, META_HASH, r->hash);
    trn_pbw_str(&s, META_RUN, id);
    trn_pbw_varint(&s, META_CREATED, trn_wall_us());
    trn_pbw_varint(&s, META_VERSION, TRN_SNAPSHOT_VERSION);
    for (int i = 0; i < r->n; i++)
        trn_pbw_raw_varint(&types, (uint64_t)r->types[i]);
    trn_pbw_bytes(&s, META_DTYPE, types.p, types.n);
    trn_pbw_varint(&s, META_ELEMENTS, (uint64_t)elements);
    trn_pbw_varint(&s, META_FINISHED, finished);
    char *name = trn_path_join(r->dir, META);
    trn_outfile f;
    trn_err err = trn_outfile_open(&f, name);
    if (!err && (err = trn_outfile_write(&f, s.p, s.n)))
        trn_outfile_abort(&f);
    else if (!err)
        err = trn_outfile_commit(&f);
    free(name);
    trn_sb_fini(&types);
    trn_sb_fini(&s);
    return err;
}

trn_err trn_snapshot_run_open(trn_snapshot_run **out, const char *dir, const char *hash, trn_compression c, const trn_dtype *types, int n)
{
    trn_snapshot_run *r = trn_xalloc(sizeof *r);
    char id[24];
    r->id = trn_random64();
    snprintf(id, sizeof id, "%" PRIu64, r->id);
    r->dir = trn_xstrdup(dir);
    r->run = trn_path_join(dir, id);
    r->hash = trn_xstrdup(hash);
    r->c = c;
    r->n = n;
    r->types = trn_xalloc(((size_t)n + 1) * sizeof *types);
    memcpy(r->types, types, (size_t)n * sizeof *types);
    r->shard = trn_map_new();
    trn_err err = trn_path_mkdirs(r->run);
    if (!err)
        err = write_meta(r, 0, false);
    if (err)
        trn_snapshot_run_drop(r);
    else
        *out = r;
    return err;
}

static trn_err shard_of(trn_record_writer **out, trn_snapshot_run *r, int64_t shard)
{
    if ((*out = trn_map_geti(r->shard, (uint64_t)shard)))
        return TRN_OK;
    if (trn_map_count(r->shard) == MAX_SHARDS)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "%s: the elements go to more than %d shards", r->run, MAX_SHARDS);
    char *folder = trn_xasprintf("%s/%08" PRIu64 ".shard", r->run, (uint64_t)shard), *name = trn_snapshot_file_name(folder, 0);
    trn_err err = trn_path_mkdir(folder);
    if (!err)
        err = trn_record_writer_with(out, name, r->c);
    if (!err)
        trn_map_puti(r->shard, (uint64_t)shard, *out);
    free(name);
    free(folder);
    return err;
}

/* As a record of its own, which can be read again. */
static trn_err put_record(trn_sb *out, const trn_tensor *t)
{
    bool huge = trn_dtype_is_plain(t->dtype) && trn_tensor_bytes(t) > MAX_RECORD;
    out->n = 0;
    if (!huge)
        TRN_TRY(trn_snapshot_put_tensor(out, t));
    return huge || out->n > MAX_RECORD ? trn_errorf(TRN_RESOURCE_EXHAUSTED, "a component of an element has more than 1 GiB") : TRN_OK;
}

trn_err trn_snapshot_run_add(trn_snapshot_run *r, int64_t shard, trn_tensor *const *t, int n)
{
    trn_record_writer *w;
    TRN_TRY(shard_of(&w, r, shard));
    for (int i = 0; i < n; i++) {
        TRN_TRY(put_record(&r->s, t[i]));
        TRN_TRY(trn_record_writer_add(w, r->s.p, r->s.n));
    }
    return TRN_OK;
}

trn_err trn_snapshot_run_finish(trn_snapshot_run *r, int64_t elements)
{
    trn_err err = TRN_OK;
    const char *key;
    size_t n;
    void *w;
    for (size_t it = 0; trn_map_next(r->shard, &it, &key, &n, &w);) {
        if (err)
            trn_record_writer_abort(w);
        else
            err = trn_record_writer_close(w);
    }
    trn_map_free(r->shard, NULL);
    r->shard = NULL;
    if (!err) /* a power cut must not leave metadata that say it is whole, and no shards */
        err = trn_path_sync(r->run);
    if (!err)
        err = write_meta(r, elements, true);
    trn_snapshot_run_drop(r);
    return err;
}

static void abort_writer(void *w) { trn_record_writer_abort(w); }

void trn_snapshot_run_drop(trn_snapshot_run *r)
{
    if (!r)
        return;
    trn_map_free(r->shard, abort_writer);
    trn_sb_fini(&r->s);
    free(r->types);
    free(r->hash);
    free(r->run);
    free(r->dir);
    free(r);
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------- */

trn_err trn_snapshot_put_tensor(trn_sb *out, const trn_tensor *t)
{
    bool plain = trn_dtype_is_plain(t->dtype);
    trn_sb list = {0};
    trn_pbw_varint(out, TENSOR_DTYPE, (uint64_t)t->dtype);
    trn_ckpt__put_shape(out, TENSOR_SHAPE, &t->shape);
    trn_err err = plain ? TRN_OK : trn_tensor_to_content(&list, t);
    size_t n = plain ? trn_tensor_bytes(t) : list.n;
    if (!err && n)
        trn_pbw_bytes(out, TENSOR_CONTENT, plain ? t->data : list.p, n);
    trn_sb_fini(&list);
    return err;
}

/* The usual case, without the generated code: dtype, shape and the bytes of a plain dtype. *out stays NULL when it is another one. */
static trn_err parse_plain(trn_tensor **out, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    trn_dtype dtype = TRN_INVALID;
    trn_shape shape = {0};
    const uint8_t *content = NULL;
    size_t size = 0;
    while (trn_pbr_next(&r)) {
        if (r.field == TENSOR_DTYPE && r.type == TRN_PB_VARINT)
            dtype = r.v < TRN_DTYPE_END ? (trn_dtype)r.v : TRN_INVALID;
        else if (r.field == TENSOR_SHAPE && r.type == TRN_PB_BYTES)
            TRN_TRY(trn_ckpt__parse_shape(&shape, "a tensor", r.b, r.n));
        else if (r.field == TENSOR_CONTENT && r.type == TRN_PB_BYTES) {
            content = r.b;
            size = r.n;
        } else
            return TRN_OK;
    }
    return r.bad || !content || !trn_dtype_is_plain(dtype) ? TRN_OK : trn_tensor_from_content(out, dtype, &shape, content, size);
}

trn_err trn_snapshot_parse_tensor(trn_tensor **out, const void *p, size_t n)
{
    *out = NULL;
    trn_err err = parse_plain(out, p, n);
    if (err || *out)
        return err;
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb;
    err = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, p, n);
    if (!err)
        err = trn_tensor_from_pb(out, pb);
    trn_arena_free(a);
    return err;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------- */

struct trn_snapshot_file {
    char *path;
    trn_stream *s;
    int64_t version;
    bool pairs; /* version 1, SNAPPY: a record says how large the components are, the next one has their bytes, compressed */
    const trn_dtype *types;
    int n, have;
    trn_tensor **t; /* of the next element */
    trn_sb parts;   /* pairs: the first record */
    bool has_parts;
};

trn_err trn_snapshot_check_version(int64_t version)
{
    if (version < 0 || version > TRN_SNAPSHOT_VERSION)
        return trn_errorf(TRN_INVALID_ARGUMENT, "snapshot files of version %" PRId64 " are not known", version);
    return TRN_OK;
}

static trn_err file_new(trn_snapshot_file **out, const char *path, trn_compression *c, int64_t version, const trn_dtype *types, int n)
{
    TRN_TRY(trn_snapshot_check_version(version));
    trn_snapshot_file *f = trn_xalloc(sizeof *f);
    f->path = trn_xstrdup(path);
    f->version = version;
    f->pairs = version == 1 && *c == TRN_SNAPPY;
    f->types = types;
    f->n = n;
    f->t = trn_xalloc(((size_t)n + 1) * sizeof *f->t);
    if (f->pairs || (version < 2 && *c == TRN_ZLIB)) /* which those versions do not know */
        *c = TRN_PLAIN;
    *out = f;
    return TRN_OK;
}

trn_err trn_snapshot_file_open(trn_snapshot_file **out, const char *path, trn_compression c, int64_t version, const trn_dtype *types, int n)
{
    trn_snapshot_file *f;
    TRN_TRY(file_new(&f, path, &c, version, types, n));
    trn_err err = trn_stream_open(&f->s, path, c, 0);
    if (err)
        trn_snapshot_file_close(f);
    else
        *out = f;
    return err;
}

trn_err trn_snapshot_file_on_memory(trn_snapshot_file **out, const void *p, size_t size, trn_compression c, int64_t version, const trn_dtype *types, int n)
{
    trn_snapshot_file *f;
    TRN_TRY(file_new(&f, "memory", &c, version, types, n));
    trn_err err = trn_stream_on_memory(&f->s, p, size, c);
    if (err)
        trn_snapshot_file_close(f);
    else
        *out = f;
    return err;
}

static void drop_tensors(trn_snapshot_file *f)
{
    while (f->have > 0)
        trn_tensor_unref(f->t[--f->have]);
}

void trn_snapshot_file_close(trn_snapshot_file *f)
{
    if (!f)
        return;
    drop_tensors(f);
    trn_stream_close(f->s);
    trn_sb_fini(&f->parts);
    free(f->t);
    free(f->path);
    free(f);
}

trn_err trn_snapshot_file_fill(trn_snapshot_file *f) { return trn_stream_fill(f->s); }

static trn_err broken(const trn_snapshot_file *f, const char *why) { return trn_errorf(TRN_DATA_LOSS, "%s: %s", f->path, why); }

static trn_err add_tensor(trn_snapshot_file *f, const void *p, size_t n)
{
    if (f->have == f->n)
        return broken(f, "an element has too many components");
    trn_err err = trn_snapshot_parse_tensor(&f->t[f->have], p, n);
    if (err) {
        trn_err why = trn_errorf(TRN_DATA_LOSS, "%s holds a tensor that cannot be read, before byte %" PRIu64 ": %s", f->path, trn_stream_pos(f->s), trn_err_msg(err));
        trn_err_free(err);
        return why;
    }
    f->have++;
    return TRN_OK;
}

/* A record of versions 0 and 1: behind its length. */
static trn_err cut_long(trn_cut *out, trn_snapshot_file *f, const char **p, size_t *n)
{
    size_t have = trn_stream_have(f->s);
    uint64_t len = 0;
    if (have >= 8)
        memcpy(&len, trn_stream_window(f->s), 8);
    if (len > MAX_RECORD)
        return broken(f, "a record is larger than 1 GiB");
    if (have < 8 || have - 8 < len) {
        *out = trn_stream_at_end(f->s) ? TRN_CUT_END : TRN_CUT_MORE;
        return *out == TRN_CUT_END && have ? broken(f, "it ends inside of a record") : TRN_OK;
    }
    *p = (const char *)trn_stream_window(f->s) + 8;
    *n = (size_t)len;
    trn_stream_skip(f->s, 8 + (size_t)len);
    *out = TRN_CUT_GOT;
    return TRN_OK;
}

/* All components in one record. */
static trn_err add_record(trn_snapshot_file *f, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r))
        if (r.field == RECORD_TENSOR && r.type == TRN_PB_BYTES)
            TRN_TRY(add_tensor(f, r.b, r.n));
    return r.bad ? broken(f, r.why) : TRN_OK;
}

/* The next component's bytes out of what has been uncompressed. */
static trn_err add_part(trn_snapshot_file *f, const trn_pbr *part, const uint8_t **p, size_t *left)
{
    trn_shape shape = {0};
    uint64_t size = 0;
    if (f->have == f->n)
        return broken(f, "an element has too many components");
    trn_pbr r = trn_pbr_init(part->b, part->n);
    while (trn_pbr_next(&r)) {
        if (r.field == PART_SHAPE && r.type == TRN_PB_BYTES)
            TRN_TRY(trn_ckpt__parse_shape(&shape, f->path, r.b, r.n));
        else if (r.field == PART_BYTES && r.type == TRN_PB_VARINT)
            size = r.v;
    }
    if (r.bad || size > *left)
        return broken(f, "the sizes of an element are wrong");
    trn_dtype dtype = f->types[f->have];
    const uint8_t *from = *p;
    *p += size;
    *left -= (size_t)size;
    if (!trn_dtype_is_plain(dtype))
        return add_tensor(f, from, (size_t)size);
    TRN_TRY(trn_tensor_from_content(&f->t[f->have], dtype, &shape, from, (size_t)size));
    f->have++;
    return TRN_OK;
}

static trn_err add_pair(trn_snapshot_file *f, const void *p, size_t n)
{
    size_t left;
    TRN_TRY(trn_snappy_size(&left, p, n));
    uint8_t *raw = malloc(left + 1);
    if (!raw)
        return trn_err_oom();
    const uint8_t *from = raw;
    trn_err err = trn_snappy_uncompress(raw, left, p, n);
    trn_pbr r = trn_pbr_init(f->parts.p, f->parts.n);
    while (!err && trn_pbr_next(&r))
        if (r.field == PARTS_PART && r.type == TRN_PB_BYTES)
            err = add_part(f, &r, &from, &left);
    if (!err && (r.bad || left))
        err = broken(f, "the sizes of an element are wrong");
    free(raw);
    return err;
}

static trn_err next_old(trn_cut *out, trn_snapshot_file *f)
{
    const char *p;
    size_t n;
    TRN_TRY(cut_long(out, f, &p, &n));
    if (*out == TRN_CUT_END && f->has_parts)
        return broken(f, "it ends inside of an element");
    if (*out != TRN_CUT_GOT)
        return TRN_OK;
    if (f->pairs && !f->has_parts) {
        f->parts.n = 0;
        trn_sb_add(&f->parts, p, n);
        f->has_parts = true;
        return next_old(out, f);
    }
    f->has_parts = false;
    return f->pairs ? add_pair(f, p, n) : add_record(f, p, n);
}

/* Components that no whole element was made of when the file ends are left out, as in TensorFlow: its writer was stopped there. */
static trn_err next_records(trn_cut *out, trn_snapshot_file *f)
{
    const char *p;
    size_t n;
    do {
        TRN_TRY(trn_stream_record(out, f->s, &p, &n));
        if (*out != TRN_CUT_GOT)
            return TRN_OK;
        TRN_TRY(add_tensor(f, p, n));
    } while (f->have < f->n);
    return TRN_OK;
}

trn_err trn_snapshot_file_next(trn_cut *out, trn_snapshot_file *f, trn_tensor **t)
{
    trn_err err = f->version == TRN_SNAPSHOT_VERSION ? next_records(out, f) : next_old(out, f);
    if (!err && *out == TRN_CUT_GOT && f->have < f->n)
        err = broken(f, "an element has too few components");
    if (err) {
        drop_tensors(f);
        return err;
    }
    if (*out == TRN_CUT_GOT) {
        memcpy(t, f->t, (size_t)f->n * sizeof *t);
        f->have = 0;
    }
    return TRN_OK;
}
