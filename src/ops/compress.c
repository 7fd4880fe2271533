/* Elements of datasets as one compressed value: a CompressedElement message in a variant, TensorFlow's own. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/entry.h"
#include "ckpt/snappy.h"
#include "ckpt/snapshot.h"
#include "ops/data.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define VERSION 0

/* Fields of CompressedElement and CompressedComponentMetadata. */
enum { ELEMENT_DATA = 1, ELEMENT_COMPONENT = 2, ELEMENT_VERSION = 3 };
enum { COMPONENT_DTYPE = 1, COMPONENT_SHAPE = 2, COMPONENT_BYTES = 4 };

typedef struct compressed {
    trn_variant v;
    trn_sb s; /* the message */
} compressed;

static void compressed_free(void *obj)
{
    trn_sb_fini(&((compressed *)obj)->s);
    free(obj);
}

static trn_err compressed_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    const compressed *c = (const compressed *)v;
    trn_sb_add(meta, c->s.p, c->s.n);
    *t = NULL;
    *n = 0;
    return TRN_OK;
}

static trn_err compressed_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
static const trn_variant_type compressed_type = {
    .name = "tensorflow.data.CompressedElement", .free = compressed_free, .pack = compressed_pack, .unpack = compressed_unpack};

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&compressed_type); }

static compressed *compressed_new(void)
{
    compressed *c = trn_xalloc(sizeof *c);
    c->v = (trn_variant){.ref = 1, .type = &compressed_type};
    return c;
}

/* Bytes from a peer stay as they are until somebody wants the element. */
static trn_err compressed_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t)
{
    compressed *c = compressed_new();
    trn_sb_add(&c->s, n ? meta : "", n);
    *out = &c->v;
    return TRN_OK;
}

/* ---- CompressElement -------------------------------------------------------------------------------------------------- */

/* The component's bytes to `raw`, what they are to `sizes`: numbers as they lie in memory, strings one behind the other, other things as messages. */
static trn_err add_component(trn_sb *raw, trn_sb *sizes, const trn_tensor *t)
{
    size_t before = raw->n;
    if (t->dtype == TRN_STRING) {
        for (int64_t i = 0; i < t->count; i++) {
            const trn_str *s = &TRN_DATA(t, trn_str)[i];
            trn_sb_add(raw, trn_str_p(s), s->len);
            trn_pbw_raw_varint(sizes, s->len);
        }
        return TRN_OK;
    }
    if (!trn_dtype_is_plain(t->dtype))
        TRN_TRY(trn_snapshot_put_tensor(raw, t));
    else if (t->count == 0)
        return TRN_OK;
    else
        trn_sb_add(raw, t->data, trn_tensor_bytes(t));
    trn_pbw_raw_varint(sizes, raw->n - before);
    return TRN_OK;
}

static trn_err describe(trn_sb *out, trn_sb *raw, const trn_tensor *t)
{
    trn_sb m = {0}, sizes = {0};
    trn_pbw_varint(&m, COMPONENT_DTYPE, (uint64_t)t->dtype);
    trn_ckpt__put_shape(&m, COMPONENT_SHAPE, &t->shape);
    trn_err err = add_component(raw, &sizes, t);
    if (sizes.n)
        trn_pbw_bytes(&m, COMPONENT_BYTES, sizes.p, sizes.n);
    trn_pbw_bytes(out, ELEMENT_COMPONENT, m.p, m.n);
    trn_sb_fini(&sizes);
    trn_sb_fini(&m);
    return err;
}

static trn_err compress_element(trn_kctx *k)
{
    trn_sb about = {0}, raw = {0}, data = {0};
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < k->n_in; i++)
        err = describe(&about, &raw, trn_in(k, i));
    if (!err && raw.n > UINT32_MAX)
        err = trn_errorf(TRN_OUT_OF_RANGE, "an element of %zu bytes: Snappy takes less than 4 GiB at a time", raw.n);
    if (!err)
        err = trn_out_new(&y, k, 0, TRN_VARIANT, &scalar);
    if (!err) {
        compressed *c = compressed_new();
        trn_snappy_compress(&data, raw.p, raw.n);
        trn_pbw_bytes(&c->s, ELEMENT_DATA, data.p, data.n);
        trn_sb_add(&c->s, about.p ? about.p : "", about.n);
        trn_pbw_varint(&c->s, ELEMENT_VERSION, VERSION);
        TRN_DATA_MUT(y, trn_variant *)[0] = &c->v;
    }
    trn_sb_fini(&data);
    trn_sb_fini(&raw);
    trn_sb_fini(&about);
    return err;
}

/* ---- UncompressElement ------------------------------------------------------------------------------------------------ */

static trn_err bad(const char *why) { return trn_errorf(TRN_INTERNAL, "a compressed element is malformed: %s", why); }

/* What readers say of bytes that they cannot read; other errors are not the element's fault. */
static trn_err bad_bytes(trn_err err)
{
    trn_code code = trn_err_code(err);
    if (code != TRN_DATA_LOSS && code != TRN_INVALID_ARGUMENT)
        return err;
    trn_err why = bad(trn_err_msg(err));
    trn_err_free(err);
    return why;
}

/* What is left of the uncompressed bytes. */
typedef struct raw_bytes {
    const uint8_t *p;
    size_t n;
} raw_bytes;

/* The sizes in a component's message, one after the other, however they are packed: there may be very many. */
typedef struct sizes {
    trn_pbr fields, packed;
} sizes;

static sizes sizes_of(const void *p, size_t n) { return (sizes){trn_pbr_init(p, n), trn_pbr_init("", 0)}; }

static bool next_size(uint64_t *out, sizes *s)
{
    while (s->packed.p == s->packed.end) {
        if (!trn_pbr_next(&s->fields))
            return false;
        if (s->fields.field == COMPONENT_BYTES && s->fields.type == TRN_PB_VARINT) {
            *out = s->fields.v;
            return true;
        }
        if (s->fields.field == COMPONENT_BYTES && s->fields.type == TRN_PB_BYTES)
            s->packed = trn_pbr_init(s->fields.b, s->fields.n);
    }
    return trn_pbr_raw_varint(&s->packed, out);
}

typedef struct component {
    trn_dtype dtype;
    trn_shape shape;
    int64_t count, n; /* elements; sizes: one for each string, one for anything else, none where there are no elements */
    uint64_t first;   /* size */
    sizes size;
} component;

static trn_err parse_component(component *c, const void *p, size_t n)
{
    trn_pbr r = trn_pbr_init(p, n);
    while (trn_pbr_next(&r)) {
        if (r.field == COMPONENT_DTYPE && r.type == TRN_PB_VARINT)
            c->dtype = r.v < TRN_DTYPE_END ? (trn_dtype)r.v : TRN_INVALID;
        else if (r.field == COMPONENT_SHAPE && r.type == TRN_PB_BYTES)
            TRN_TRY(trn_ckpt__parse_shape(&c->shape, "a shape", r.b, r.n));
    }
    if (r.bad)
        return bad(r.why);
    sizes s = c->size = sizes_of(p, n);
    for (uint64_t v; next_size(&v, &s); c->n++)
        c->first = c->n ? c->first : v;
    if (s.packed.bad)
        return bad("sizes");
    return trn_shape_count(&c->count, &c->shape);
}

static const uint8_t *take(raw_bytes *raw, uint64_t n)
{
    if (n > raw->n)
        return NULL;
    const uint8_t *p = raw->p;
    raw->p += n;
    raw->n -= (size_t)n;
    return p;
}

static trn_err make_strings(trn_tensor **out, const component *c, raw_bytes *raw)
{
    if (c->n != c->count)
        return bad("there are not as many strings as the shape says");
    TRN_TRY(trn_tensor_new(out, TRN_STRING, &c->shape));
    sizes s = c->size;
    uint64_t size;
    for (int64_t i = 0; next_size(&size, &s); i++) {
        const uint8_t *p = take(raw, size);
        if (!p)
            return bad("bytes are missing");
        TRN_TRY(trn_tensor_str_put(*out, i, (const char *)p, (size_t)size));
    }
    return TRN_OK;
}

static trn_err make_plain(trn_tensor **out, const component *c, raw_bytes *raw)
{
    const uint8_t *p = c->n > 1 ? NULL : take(raw, c->first);
    return p ? trn_tensor_from_content(out, c->dtype, &c->shape, p, (size_t)c->first) : bad("bytes are missing");
}

static trn_err make_component(trn_tensor **out, const component *c, raw_bytes *raw)
{
    if (c->dtype == TRN_STRING)
        return make_strings(out, c, raw);
    if (trn_dtype_is_plain(c->dtype))
        return make_plain(out, c, raw);
    const uint8_t *p = c->n == 1 ? take(raw, c->first) : NULL;
    return p ? trn_snapshot_parse_tensor(out, p, (size_t)c->first) : bad("bytes are missing");
}

/* Component i of the element becomes output i. */
static trn_err put_component(trn_kctx *k, int i, const void *p, size_t n, raw_bytes *raw)
{
    component c = {0};
    trn_tensor *t = NULL;
    if (i >= k->n_out)
        return trn_errorf(TRN_FAILED_PRECONDITION, "the element holds more than the %d tensors that the node gives", k->n_out);
    trn_err err = parse_component(&c, p, n);
    if (!err)
        err = make_component(&t, &c, raw);
    if (err)
        err = bad_bytes(err);
    if (!err && t->dtype != k->node->out_types[i])
        err = trn_errorf(TRN_FAILED_PRECONDITION, "the node wants a tensor of type %s here but got a tensor of type %s", trn_dtype_name(k->node->out_types[i]), trn_dtype_name(t->dtype));
    if (err)
        trn_tensor_unref(t);
    else
        trn_out_set(k, i, t);
    return err;
}

static trn_err uncompress(trn_kctx *k, const trn_sb *s, raw_bytes raw)
{
    int n = 0;
    for (trn_pbr r = trn_pbr_init(s->p, s->n); trn_pbr_next(&r);)
        if (r.field == ELEMENT_COMPONENT && r.type == TRN_PB_BYTES)
            TRN_TRY(put_component(k, n++, r.b, r.n, &raw));
    if (n != k->n_out)
        return trn_errorf(TRN_FAILED_PRECONDITION, "the node gives %d tensors, the element holds %d", k->n_out, n);
    return raw.n ? bad("there are more bytes than components") : TRN_OK;
}

static trn_err uncompress_element(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank == 0, "a compressed element is a scalar, the input has %d dimensions", x->shape.rank);
    const trn_variant *v = TRN_DATA(x, trn_variant *)[0];
    TRN_CHECK_ARG(v && v->type == &compressed_type, "the input is not a compressed element but %s", v ? v->type->name : "nothing");
    const trn_sb *s = &((const compressed *)v)->s;
    const uint8_t *data = (const uint8_t *)"";
    size_t n = 0, size;
    int64_t version = 0;
    trn_pbr r = trn_pbr_init(s->p, s->n);
    while (trn_pbr_next(&r)) {
        if (r.field == ELEMENT_DATA && r.type == TRN_PB_BYTES)
            data = r.b, n = r.n;
        else if (r.field == ELEMENT_VERSION && r.type == TRN_PB_VARINT)
            version = (int64_t)r.v;
    }
    if (r.bad)
        return bad(r.why);
    if (version != VERSION)
        return trn_errorf(TRN_INTERNAL, "compressed elements of version %" PRId64 " are not known", version);
    trn_err err = trn_snappy_size(&size, data, n);
    uint8_t *raw = err ? NULL : malloc(size + 1);
    if (!err)
        err = raw ? trn_snappy_uncompress(raw, size, data, n) : trn_err_oom();
    if (err)
        err = bad_bytes(err);
    if (!err)
        err = uncompress(k, s, (raw_bytes){raw, size});
    free(raw);
    return err;
}

const trn_op trn_ops_compress[] = {
    {"CompressElement", "components:input_types -> compressed:var; input_types:list(type)>=1", trn_sh_dataset, compress_element, TRN_OP_BACK},
    {"UncompressElement", "compressed:var -> components:output_types; " DS_OUT, trn_sh_elements, uncompress_element, TRN_OP_BACK},
    {0},
};
