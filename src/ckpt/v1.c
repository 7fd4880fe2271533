#include "ckpt/v1.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/entry.h"
#include "ckpt/sstable.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define VERSION 1
#define SLICES_MAX 65536
#define VALUE_MAX ((size_t)INT32_MAX) /* of one message */

/* ---- the fields of TensorProto that hold the values ------------------------------------------------------------- */

static void put_packed(trn_sb *out, uint32_t field, const void *p, size_t n)
{
    if (n)
        trn_pbw_bytes(out, field, p, n);
}

#define PACK(T, field)                                                                                                 \
    do {                                                                                                               \
        trn_sb packed = {0};                                                                                           \
        for (int64_t i_ = 0; i_ < t->count; i_++)                                                                      \
            trn_pbw_raw_varint(&packed, (uint64_t)(int64_t)TRN_DATA(t, T)[i_]);                                        \
        put_packed(out, field, packed.p, packed.n);                                                                    \
        trn_sb_fini(&packed);                                                                                          \
    } while (0)

static trn_err put_values(trn_sb *out, const trn_tensor *t)
{
    size_t bytes = trn_tensor_bytes(t);
    switch (t->dtype) {
    case TRN_FLOAT:
        put_packed(out, 5, t->data, bytes);
        break;
    case TRN_DOUBLE:
        put_packed(out, 6, t->data, bytes);
        break;
    case TRN_COMPLEX64:
        put_packed(out, 9, t->data, bytes);
        break;
    case TRN_COMPLEX128:
        put_packed(out, 12, t->data, bytes);
        break;
    case TRN_INT32:
    case TRN_QINT32:
        PACK(int32_t, 7);
        break;
    case TRN_INT16:
    case TRN_QINT16:
        PACK(int16_t, 7);
        break;
    case TRN_INT8:
    case TRN_QINT8:
        PACK(int8_t, 7);
        break;
    case TRN_UINT8:
    case TRN_QUINT8:
        PACK(uint8_t, 7);
        break;
    case TRN_UINT16:
    case TRN_QUINT16:
        PACK(uint16_t, 7);
        break;
    case TRN_INT64:
        PACK(int64_t, 10);
        break;
    case TRN_BOOL:
        PACK(bool, 11);
        break;
    case TRN_HALF:
    case TRN_BFLOAT16:
        PACK(uint16_t, 13);
        break;
    case TRN_UINT32:
        PACK(uint32_t, 16);
        break;
    case TRN_UINT64:
        PACK(uint64_t, 17);
        break;
    case TRN_STRING:
        for (int64_t i = 0; i < t->count; i++)
            trn_pbw_bytes(out, 8, trn_str_p(&TRN_DATA(t, trn_str)[i]), TRN_DATA(t, trn_str)[i].len);
        break;
    default:
        return trn_errorf(TRN_UNIMPLEMENTED, "Saving data type %s not yet supported", trn_dtype_name(t->dtype));
    }
    return TRN_OK;
}

static size_t value_count(const Tensorflow__TensorProto *p, trn_dtype t)
{
    switch (t) {
    case TRN_FLOAT:
        return p->n_float_val;
    case TRN_DOUBLE:
        return p->n_double_val;
    case TRN_COMPLEX64:
        return p->n_scomplex_val / 2;
    case TRN_COMPLEX128:
        return p->n_dcomplex_val / 2;
    case TRN_INT64:
        return p->n_int64_val;
    case TRN_BOOL:
        return p->n_bool_val;
    case TRN_HALF:
    case TRN_BFLOAT16:
        return p->n_half_val;
    case TRN_UINT32:
        return p->n_uint32_val;
    case TRN_UINT64:
        return p->n_uint64_val;
    case TRN_STRING:
        return p->n_string_val;
    default:
        return p->n_int_val;
    }
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct named {
    char *name;
    size_t n;
    trn_dtype dtype;
    trn_shape shape;
    trn_sb meta; /* SavedSliceMeta */
} named;

typedef struct piece {
    trn_sb key, value;
} piece;

struct trn_v1_writer {
    char *path;
    named *tensor;
    int n_tensors, cap_tensors;
    trn_map *by_name; /* index + 1 */
    piece *piece;
    int n_pieces, cap_pieces;
};

trn_v1_writer *trn_v1_writer_new(const char *path)
{
    trn_v1_writer *w = trn_xalloc(sizeof *w);
    w->path = trn_xstrdup(path);
    w->by_name = trn_map_new();
    return w;
}

static trn_err find_tensor(named **out, trn_v1_writer *w, const char *name, size_t n, const trn_shape *full,
                           trn_dtype dtype)
{
    size_t at = (size_t)trn_map_get(w->by_name, name, n);
    if (!at) {
        named t = {.name = trn_xstrndup(name, n), .n = n, .dtype = dtype, .shape = *full};
        trn_pbw_bytes(&t.meta, 1, name, n);
        trn_ckpt__put_shape(&t.meta, 2, full);
        trn_pbw_varint(&t.meta, 3, (uint64_t)dtype);
        TRN_PUSH(w->tensor, w->n_tensors, w->cap_tensors, t);
        at = (size_t)w->n_tensors;
        trn_map_put(w->by_name, name, n, (void *)at);
    }
    named *t = &w->tensor[at - 1];
    if (t->dtype != dtype || !trn_shape_eq(&t->shape, full))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%.*s: its slices are of tensors with different dtypes or shapes",
                          (int)n, name);
    *out = t;
    return TRN_OK;
}

/* SavedTensorSlices{data: SavedSlice{name, slice, data: TensorProto with nothing but values}} */
static trn_err put_data(trn_sb *out, const char *name, size_t n, const trn_slicespec *slice, const trn_tensor *t)
{
    trn_sb values = {0}, head = {0};
    size_t least = (size_t)t->count * (t->dtype == TRN_FLOAT ? 4 : t->dtype == TRN_DOUBLE ? 8 : 1);
    if (least > VALUE_MAX) /* without writing it all down first */
        return trn_errorf(TRN_INVALID_ARGUMENT, "Tensor slice is too large to serialize (%zu bytes): %.*s", least, (int)n, name);
    trn_err err = put_values(&values, t);
    trn_pbw_bytes(&head, 1, name, n);
    trn_ckpt__put_slice(&head, 2, slice);
    trn_pbw_head(&head, 3, values.n);
    if (!err && head.n + values.n > VALUE_MAX)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "Tensor slice is too large to serialize (%zu bytes): %.*s", values.n,
                         (int)n, name);
    if (!err) {
        trn_pbw_head(out, 2, head.n + values.n);
        trn_sb_add(out, head.p, head.n);
        trn_sb_add(out, values.p, values.n);
    }
    trn_sb_fini(&values);
    trn_sb_fini(&head);
    return err;
}

trn_err trn_v1_add(trn_v1_writer *w, const char *name, size_t n, const trn_shape *full, const trn_slicespec *slice,
                   const trn_tensor *t)
{
    named *to;
    TRN_TRY(find_tensor(&to, w, name, n, full, t->dtype));
    piece p = {0};
    trn_slicespec_key(&p.key, name, n, slice);
    trn_err err = put_data(&p.value, name, n, slice, t);
    if (err) {
        trn_sb_fini(&p.key);
        trn_sb_fini(&p.value);
        return err;
    }
    trn_ckpt__put_slice(&to->meta, 4, slice);
    TRN_PUSH(w->piece, w->n_pieces, w->cap_pieces, p);
    return TRN_OK;
}

static int by_key(const void *a, const void *b)
{
    const trn_sb *x = &((const piece *)a)->key, *y = &((const piece *)b)->key;
    int c = memcmp(x->p, y->p, TRN_MIN(x->n, y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static trn_err put_table(trn_v1_writer *w, trn_outfile *f)
{
    trn_sb meta = {0}, top = {0}, version = {0};
    for (int i = 0; i < w->n_tensors; i++)
        trn_pbw_bytes(&meta, 1, w->tensor[i].meta.p, w->tensor[i].meta.n);
    trn_pbw_varint(&version, 1, VERSION);
    trn_pbw_bytes(&meta, 2, version.p, version.n);
    trn_pbw_bytes(&top, 1, meta.p, meta.n);
    trn_sst_writer *t = trn_sst_writer_new(f);
    trn_err err = trn_sst_add(t, "", 0, top.p, top.n);
    qsort(w->piece, (size_t)w->n_pieces, sizeof *w->piece, by_key);
    for (int i = 0; !err && i < w->n_pieces; i++) {
        if (i && !by_key(&w->piece[i - 1], &w->piece[i]))
            err = trn_errorf(TRN_INVALID_ARGUMENT, "%s: the same slice of a tensor twice", w->path);
        else
            err = trn_sst_add(t, w->piece[i].key.p, w->piece[i].key.n, w->piece[i].value.p, w->piece[i].value.n);
    }
    if (!err)
        err = trn_sst_finish(t);
    trn_sst_writer_free(t);
    trn_sb_fini(&meta);
    trn_sb_fini(&top);
    trn_sb_fini(&version);
    return err;
}

trn_err trn_v1_finish(trn_v1_writer *w)
{
    trn_outfile f;
    trn_err err = trn_outfile_open(&f, w->path);
    if (!err) {
        err = put_table(w, &f);
        if (!err)
            err = trn_outfile_commit(&f);
        trn_outfile_abort(&f);
    }
    trn_v1_abort(w);
    return err;
}

void trn_v1_abort(trn_v1_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_tensors; i++) {
        free(w->tensor[i].name);
        trn_sb_fini(&w->tensor[i].meta);
    }
    for (int i = 0; i < w->n_pieces; i++) {
        trn_sb_fini(&w->piece[i].key);
        trn_sb_fini(&w->piece[i].value);
    }
    free(w->tensor);
    free(w->piece);
    trn_map_free(w->by_name, NULL);
    free(w->path);
    free(w);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

typedef struct table {
    trn_infile f;
    trn_sst *t;
} table;

typedef struct saved {
    trn_dtype dtype;
    trn_shape shape;
    trn_slicespec *slice;
    int *table; /* of each slice */
    int n, cap, n_table, cap_table;
} saved;

struct trn_v1 {
    char *pattern;
    table *table;
    int n_tables;
    trn_map *map; /* name → saved */
};

static trn_err damaged(const table *t, const char *why) { return trn_errorf(TRN_DATA_LOSS, "%s: %s", t->f.path, why); }

static void saved_free(void *p)
{
    saved *s = p;
    free(s->slice);
    free(s->table);
    free(s);
}

static trn_err read_tensor_meta(trn_v1 *r, int number, const uint8_t *p, size_t n)
{
    const table *from = &r->table[number];
    trn_pbr f = trn_pbr_init(p, n);
    const uint8_t *name = NULL, *shape = NULL;
    size_t n_name = 0, n_shape = 0;
    trn_dtype dtype = TRN_INVALID;
    int slices = 0;
    while (trn_pbr_next(&f)) {
        if (f.field == 1 && f.type == TRN_PB_BYTES)
            name = f.b, n_name = f.n;
        else if (f.field == 2 && f.type == TRN_PB_BYTES)
            shape = f.b, n_shape = f.n;
        else if (f.field == 3 && f.type == TRN_PB_VARINT)
            dtype = f.v < TRN_DTYPE_END ? (trn_dtype)f.v : TRN_INVALID;
        else if (f.field == 4 && f.type == TRN_PB_BYTES && ++slices > SLICES_MAX)
            return damaged(from, "too many slices");
    }
    if (f.bad || !name || dtype == TRN_INVALID || !trn_dtype_size(dtype))
        return damaged(from, "bad description of a tensor");
    saved s = {.dtype = dtype};
    TRN_TRY(trn_ckpt__parse_shape(&s.shape, from->f.path, shape, n_shape));
    saved *to = trn_map_get(r->map, name, n_name);
    if (!to) {
        to = trn_xalloc(sizeof *to);
        *to = s;
        trn_map_put(r->map, name, n_name, to);
    }
    if (to->dtype != dtype || !trn_shape_eq(&to->shape, &s.shape))
        return damaged(from, "a tensor has another dtype or shape than in another file");
    f = trn_pbr_init(p, n);
    while (trn_pbr_next(&f)) {
        trn_slicespec slice;
        trn_shape inside;
        if (f.field != 4 || f.type != TRN_PB_BYTES)
            continue;
        TRN_TRY(trn_ckpt__parse_slice(&slice, from->f.path, f.b, f.n));
        trn_err err = trn_slicespec_shape(&inside, &slice, &to->shape);
        if (err) {
            trn_err_free(err);
            return damaged(from, "a slice outside its tensor");
        }
        if (to->n == SLICES_MAX)
            return damaged(from, "too many slices");
        TRN_PUSH(to->slice, to->n, to->cap, slice);
        TRN_PUSH(to->table, to->n_table, to->cap_table, number);
    }
    return TRN_OK;
}

/* The entry with the empty key lists what the table holds. */
static trn_err read_meta(trn_v1 *r, int number)
{
    table *t = &r->table[number];
    trn_sst_entry e;
    bool found;
    TRN_TRY(trn_sst_open(&t->t, &t->f));
    TRN_TRY(trn_sst_next(&e, &found, t->t));
    if (!found || e.n_key)
        return damaged(t, "no list of tensors");
    trn_pbr top = trn_pbr_init(e.val, e.n_val);
    while (trn_pbr_next(&top)) {
        if (top.field != 1 || top.type != TRN_PB_BYTES)
            continue;
        trn_pbr meta = trn_pbr_init(top.b, top.n);
        while (trn_pbr_next(&meta))
            if (meta.field == 1 && meta.type == TRN_PB_BYTES)
                TRN_TRY(read_tensor_meta(r, number, meta.b, meta.n));
        if (meta.bad)
            return damaged(t, meta.why);
    }
    return top.bad ? damaged(t, top.why) : TRN_OK;
}

trn_err trn_v1_open(trn_v1 **out, const char *pattern, trn_err (*allow)(void *arg, const char *path), void *arg)
{
    char **path;
    int n;
    TRN_TRY(trn_path_glob(&path, &n, pattern));
    trn_v1 *r = trn_xalloc(sizeof *r);
    r->pattern = trn_xstrdup(pattern);
    r->map = trn_map_new();
    r->table = trn_xalloc(((size_t)n + 1) * sizeof *r->table);
    trn_err err =
        n ? TRN_OK
          : trn_errorf(TRN_NOT_FOUND,
                       "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for %s", pattern);
    for (int i = 0; i < n; i++) {
        if (!err && allow)
            err = allow(arg, path[i]);
        if (!err)
            err = trn_infile_open(&r->table[i].f, path[i]);
        if (!err) {
            r->n_tables++;
            err = read_meta(r, i);
        }
        free(path[i]);
    }
    free(path);
    if (err) {
        trn_v1_close(r);
        return err;
    }
    *out = r;
    return TRN_OK;
}

trn_err trn_v1_open_memory(trn_v1 **out, const void *p, size_t n)
{
    trn_v1 *r = trn_xalloc(sizeof *r);
    r->pattern = trn_xstrdup("memory");
    r->map = trn_map_new();
    r->table = trn_xalloc(sizeof *r->table);
    r->n_tables = 1;
    trn_infile_on_memory(&r->table[0].f, "memory", p, n);
    trn_err err = read_meta(r, 0);
    if (err) {
        trn_v1_close(r);
        return err;
    }
    *out = r;
    return TRN_OK;
}

void trn_v1_close(trn_v1 *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_tables; i++) {
        trn_sst_close(r->table[i].t);
        trn_infile_close(&r->table[i].f);
    }
    free(r->table);
    trn_map_free(r->map, saved_free);
    free(r->pattern);
    free(r);
}

static trn_err find(const saved **out, const trn_v1 *r, const char *name, size_t n)
{
    const saved *s = trn_map_get(r->map, name, n);
    if (!s)
        return trn_errorf(TRN_NOT_FOUND, "Tensor name \"%.*s\" not found in checkpoint files %s", (int)n, name,
                          r->pattern);
    *out = s;
    return TRN_OK;
}

trn_err trn_v1_find(trn_dtype *dtype, trn_shape *shape, trn_v1 *r, const char *name, size_t n)
{
    const saved *s;
    TRN_TRY(find(&s, r, name, n));
    *dtype = s->dtype;
    *shape = s->shape;
    return TRN_OK;
}

trn_err trn_v1_each(const trn_v1 *r, trn_err (*fn)(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape), void *arg)
{
    const char *name;
    size_t n;
    void *value;
    for (size_t it = 0; trn_map_next(r->map, &it, &name, &n, &value);) {
        const saved *s = value;
        TRN_TRY(fn(arg, name, n, s->dtype, &s->shape));
    }
    return TRN_OK;
}

typedef struct reading {
    trn_v1 *r;
    const char *name;
    size_t n;
    const saved *s;
} reading;

/* The message has only values: dtype and shape come from the list. */
static trn_err from_message(trn_tensor **out, const table *t, const trn_sst_entry *e, trn_dtype dtype,
                            const trn_shape *shape)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__SavedTensorSlices *m;
    int64_t count;
    trn_err err = TRN_PB_UNPACK(&m, a, tensorflow__saved_tensor_slices__descriptor, e->val, e->n_val);
    if (err) {
        trn_err bad = damaged(t, trn_err_msg(err));
        trn_err_free(err);
        err = bad;
    }
    if (!err)
        err = trn_shape_count(&count, shape);
    if (!err && (!m->data || !m->data->data || value_count(m->data->data, dtype) != (size_t)count))
        err = damaged(t, "a slice has not as many values as its shape says");
    if (!err) {
        m->data->data->dtype = (Tensorflow__DataType)dtype;
        m->data->data->tensor_shape = trn_shape_to_pb(a, shape);
        m->data->data->tensor_content.len = 0;
        err = trn_tensor_from_pb(out, m->data->data);
    }
    trn_arena_free(a);
    return err;
}

static trn_err read_piece(trn_tensor **out, void *arg, int i)
{
    reading *q = arg;
    table *t = &q->r->table[q->s->table[i]];
    trn_sb key = {0};
    trn_slicespec_key(&key, q->name, q->n, &q->s->slice[i]);
    trn_sst_entry e;
    bool found = false;
    trn_err err = trn_sst_seek(t->t, key.p, key.n);
    if (!err)
        err = trn_sst_next(&e, &found, t->t);
    if (!err && (!found || e.n_key != key.n || memcmp(e.key, key.p, key.n)))
        err = damaged(t, "a slice that is listed is not there");
    trn_sb_fini(&key);
    TRN_TRY(err);
    trn_shape shape;
    TRN_TRY(trn_slicespec_shape(&shape, &q->s->slice[i], &q->s->shape));
    return from_message(out, t, &e, q->s->dtype, &shape);
}

trn_err trn_v1_read(trn_tensor **out, trn_v1 *r, const char *name, size_t n, const trn_slicespec *slice)
{
    const saved *s;
    TRN_TRY(find(&s, r, name, n));
    reading q = {r, name, n, s};
    uint64_t most = 0;
    for (int i = 0; i < r->n_tables; i++)
        most += r->table[i].f.size;
    return trn_slice_gather(out, name, n, s->dtype, &s->shape, s->slice, s->n, slice, most, read_piece, &q);
}
