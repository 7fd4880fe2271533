/* Tensors as strings and back: TensorProto, serialized sparse tensors, raw and compressed bytes. */
#include <stdlib.h>

#include "ckpt/stream.h"
#include "op/kctx.h"
#include "ops/data.h"
#include "ops/kern.h"
#include "proto/pb.h"
#include "tensor/tensor_pb.h"

#define MAX_INFLATED ((size_t)1 << 31)

/* ---- TensorProto ------------------------------------------------------------------------------------------------------ */

/* content: strings too go as tensor_content. */
static trn_err pack(trn_str *out, const trn_tensor *t, bool content)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb = trn_tensor_to_pb(a, t);
    trn_sb bytes = {0}, all = {0};
    trn_err err = pb ? TRN_OK : trn_errorf(TRN_UNIMPLEMENTED, "a tensor of %s cannot be serialized", trn_dtype_name(t->dtype));
    if (!err && content && t->dtype == TRN_STRING && !(err = trn_tensor_to_content(&bytes, t))) {
        pb->n_string_val = 0;
        pb->tensor_content = (ProtobufCBinaryData){bytes.n, (uint8_t *)bytes.p};
    }
    if (!err) {
        trn_pb_pack(&all, &pb->base);
        err = trn_str_set(out, all.n ? all.p : "", all.n);
    }
    trn_sb_fini(&bytes);
    trn_sb_fini(&all);
    trn_arena_free(a);
    return err;
}

static trn_err unpack(trn_tensor **out, const trn_str *s)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, (const uint8_t *)trn_str_p(s), s->len);
    if (!err)
        err = trn_tensor_from_pb(out, pb);
    trn_arena_free(a);
    return err;
}

/* The bytes (the first of them) as they can be printed. */
static void add_base64(trn_sb *out, const trn_str *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = (const uint8_t *)trn_str_p(s);
    size_t n = TRN_MIN((size_t)s->len, (size_t)300);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        char q[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '='};
        trn_sb_add(out, q, 4);
    }
}

static trn_err parse_tensor(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 0, "Expected `serialized` to be a scalar, got shape: %s", trn_shape_text(text, &x->shape));
    trn_tensor *t;
    trn_err err = unpack(&t, TRN_DATA(x, trn_str));
    if (trn_err_code(err) == TRN_INVALID_ARGUMENT) {
        trn_sb b64 = {0};
        add_base64(&b64, TRN_DATA(x, trn_str));
        trn_err why = TRN_BAD("Could not parse `serialized` as TensorProto, base64: %s (%s)", b64.p ? b64.p : "", trn_err_msg(err));
        trn_sb_fini(&b64);
        trn_err_free(err);
        return why;
    }
    if (err)
        return err;
    trn_dtype want = k->node->out_types[0];
    if (t->dtype != want) {
        err = TRN_BAD("Type mismatch between parsed tensor (%s) and dtype (%s)", trn_dtype_name(t->dtype), trn_dtype_name(want));
        trn_tensor_unref(t);
        return err;
    }
    trn_out_set(k, 0, t);
    return TRN_OK;
}

static trn_err serialize_tensor(trn_kctx *k)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    return pack(TRN_DATA_MUT(y, trn_str), trn_in(k, 0), false);
}

/* ---- sparse tensors ----------------------------------------------------------------------------------------------------- */

/* A tensor in a variant. */
typedef struct boxed {
    trn_variant v;
    trn_tensor *t;
} boxed;

static void boxed_free(void *obj)
{
    trn_tensor_unref(((boxed *)obj)->t);
    free(obj);
}

static trn_err boxed_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    *t = trn_xalloc(sizeof **t);
    (*t)[0] = ((const boxed *)v)->t;
    *n = 1;
    return TRN_OK;
}

static trn_err boxed_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
static const trn_variant_type boxed_type = {.name = "tensorflow::Tensor", .free = boxed_free, .pack = boxed_pack, .unpack = boxed_unpack};

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&boxed_type); }

static trn_variant *box(trn_tensor *t)
{
    boxed *b = trn_xalloc(sizeof *b);
    b->v = (trn_variant){.ref = 1, .type = &boxed_type};
    b->t = trn_tensor_ref(t);
    return &b->v;
}

static trn_err boxed_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t)
{
    TRN_CHECK_ARG(n_t == 1, "a tensor in a variant: the message holds %d", n_t);
    *out = box(t[0]);
    return TRN_OK;
}

/* Element i of `out`, a string or variant tensor, becomes `t`. */
static trn_err put(trn_tensor *out, int64_t i, trn_tensor *t)
{
    if (out->dtype == TRN_STRING)
        return pack(&TRN_DATA_MUT(out, trn_str)[i], t, true);
    TRN_DATA_MUT(out, trn_variant *)[i] = box(t);
    return TRN_OK;
}

trn_err trn_box_sparse(trn_tensor **out, trn_tensor *const parts[3])
{
    trn_shape s = trn_shape_vector(3);
    trn_tensor *y;
    TRN_TRY(trn_tensor_new(&y, TRN_VARIANT, &s));
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < 3; i++)
        err = put(y, i, parts[i]);
    if (err)
        trn_tensor_unref(y);
    else
        *out = y;
    return err;
}

static trn_err get(trn_tensor **out, const trn_tensor *in, int64_t i)
{
    if (in->dtype == TRN_STRING) {
        trn_err err = unpack(out, &TRN_DATA(in, trn_str)[i]);
        return err ? trn_err_wrap(err, "Could not parse serialized proto serialized_sparse[%lld, %d]", (long long)i / 3, (int)(i % 3)) : TRN_OK;
    }
    trn_variant *v = ((trn_variant *const *)in->data)[i];
    TRN_CHECK_ARG(v && v->type == &boxed_type, "Could not get a tensor from serialized_sparse[%lld, %d]", (long long)i / 3, (int)(i % 3));
    *out = trn_tensor_ref(((boxed *)v)->t);
    return TRN_OK;
}

static trn_err check_sparse(const trn_kctx *k)
{
    char text[TRN_SHAPE_TEXT];
    const trn_tensor *in = trn_in(k, 0), *v = trn_in(k, 1), *s = trn_in(k, 2);
    TRN_CHECK_ARG(in->shape.rank == 2, "Input indices should be a matrix but received shape %s", trn_shape_text(text, &in->shape));
    TRN_CHECK_ARG(v->shape.rank == 1, "Input values should be a vector but received shape %s", trn_shape_text(text, &v->shape));
    TRN_CHECK_ARG(s->shape.rank == 1, "Input shape should be a vector but received shape %s", trn_shape_text(text, &s->shape));
    return TRN_OK;
}

static trn_err serialize_sparse(trn_kctx *k)
{
    TRN_TRY(check_sparse(k));
    trn_shape s = trn_shape_vector(3);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    for (int i = 0; i < 3; i++)
        TRN_TRY(put(y, i, k->in[i].t));
    return TRN_OK;
}

/* Row b of the result: entries [from, to), without their first index. */
static trn_err put_row(trn_tensor *y, int64_t b, const trn_tensor *ind, const trn_tensor *val, int64_t from, int64_t to, trn_tensor *rest)
{
    int64_t rank = ind->shape.dim[1];
    trn_shape is = trn_shape_of(2, to - from, rank - 1), vs = trn_shape_vector(to - from);
    trn_tensor *i = NULL, *v = NULL;
    trn_err err = trn_tensor_new(&i, TRN_INT64, &is);
    if (!err)
        err = trn_tensor_view(&v, val, from, &vs);
    for (int64_t e = from; !err && e < to; e++)
        memcpy(TRN_DATA_MUT(i, int64_t) + (e - from) * (rank - 1), TRN_DATA(ind, int64_t) + e * rank + 1, (size_t)(rank - 1) * sizeof(int64_t));
    if (!err)
        err = put(y, 3 * b, i);
    if (!err)
        err = put(y, 3 * b + 1, v);
    if (!err)
        err = put(y, 3 * b + 2, rest);
    trn_tensor_unref(i);
    trn_tensor_unref(v);
    return err;
}

static trn_err serialize_many_sparse(trn_kctx *k)
{
    TRN_TRY(check_sparse(k));
    const trn_tensor *ind = trn_in(k, 0), *val = trn_in(k, 1), *shape = trn_in(k, 2);
    int64_t rank = shape->count, n = val->count;
    TRN_CHECK_ARG(rank > 1 && rank <= TRN_MAX_RANK, "Rank of input SparseTensor should be > 1, but saw rank: %lld", (long long)rank);
    TRN_CHECK_ARG(ind->shape.dim[0] == n, "indices.dim_size(0) = %lld != values.dim_size(0) = %lld", (long long)ind->shape.dim[0], (long long)n);
    TRN_CHECK_ARG(ind->shape.dim[1] == rank, "indices.dim_size(1) = %lld != %lld = the rank", (long long)ind->shape.dim[1], (long long)rank);
    const int64_t *x = TRN_DATA(ind, int64_t), *size = TRN_DATA(shape, int64_t);
    for (int64_t d = 0; d < rank; d++)
        TRN_CHECK_ARG(size[d] >= 0, "dense_shape[%lld] is negative", (long long)d);
    for (int64_t i = 0; i < n; i++) {
        bool greater = i == 0;
        for (int64_t d = 0; d < rank; d++) {
            TRN_CHECK_ARG(x[i * rank + d] >= 0 && x[i * rank + d] < size[d], "indices[%lld] is out of bounds", (long long)i);
            if (!greater) {
                TRN_CHECK_ARG(x[i * rank + d] >= x[(i - 1) * rank + d], "indices[%lld] is out of order. Many sparse ops require sorted indices.",
                              (long long)i);
                greater = x[i * rank + d] > x[(i - 1) * rank + d];
            }
        }
        TRN_CHECK_ARG(greater, "indices[%lld] is repeated", (long long)i);
    }
    trn_shape s = trn_shape_of(2, size[0], (int64_t)3), rs = trn_shape_vector(rank - 1);
    trn_tensor *y, *rest;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    TRN_TRY(trn_tensor_view(&rest, shape, 1, &rs));
    trn_err err = TRN_OK;
    int64_t at = 0;
    for (int64_t b = 0; !err && b < size[0]; b++) {
        int64_t from = at;
        while (at < n && x[at * rank] == b)
            at++;
        err = put_row(y, b, ind, val, from, at, rest);
    }
    trn_tensor_unref(rest);
    return err;
}

/* ---- and back ----------------------------------------------------------------------------------------------------------- */

typedef struct part {
    trn_tensor *ind, *val, *shape;
} part;

static trn_err get_part(part *p, const trn_tensor *in, int64_t i, trn_dtype dtype)
{
    TRN_TRY(get(&p->ind, in, 3 * i));
    TRN_TRY(get(&p->val, in, 3 * i + 1));
    TRN_TRY(get(&p->shape, in, 3 * i + 2));
    long long at = i;
    TRN_CHECK_ARG(p->ind->dtype == TRN_INT64 && p->ind->shape.rank == 2, "Expected serialized_sparse[%lld, 0] to represent an index matrix", at);
    TRN_CHECK_ARG(p->val->shape.rank == 1, "Expected serialized_sparse[%lld, 1] to represent a values vector", at);
    TRN_CHECK_ARG(p->shape->dtype == TRN_INT64 && p->shape->shape.rank == 1, "Expected serialized_sparse[%lld, 2] to be a shape vector", at);
    TRN_CHECK_ARG(p->val->dtype == dtype, "Requested SparseTensor of type %s but SparseTensor[%lld].values.dtype() == %s", trn_dtype_name(dtype), at,
                  trn_dtype_name(p->val->dtype));
    TRN_CHECK_ARG(p->ind->shape.dim[0] == p->val->count, "Expected row counts of SparseTensor[%lld].indices and SparseTensor[%lld].values to match but they do "
                                                         "not: %lld vs. %lld",
                  at, at, (long long)p->ind->shape.dim[0], (long long)p->val->count);
    TRN_CHECK_ARG(p->ind->shape.dim[1] == p->shape->count, "Expected column counts of SparseTensor[%lld].indices to match size of SparseTensor[%lld].shape "
                                                           "but they do not: %lld vs. %lld",
                  at, at, (long long)p->ind->shape.dim[1], (long long)p->shape->count);
    return TRN_OK;
}

static trn_err stack_parts(trn_kctx *k, const part *p, int64_t n, int n_front)
{
    const trn_tensor *in = trn_in(k, 0);
    int64_t rank = p[0].shape->count, total = 0;
    for (int64_t i = 0; i < n; i++) {
        TRN_CHECK_ARG(p[i].shape->count == rank, "Inconsistent shape across SparseTensors: rank prior to SparseTensor[%lld] was: %lld but rank of "
                                                 "SparseTensor[%lld] is: %lld",
                      (long long)i, (long long)rank, (long long)i, (long long)p[i].shape->count);
        total += p[i].val->count;
    }
    trn_shape is = trn_shape_of(2, total, n_front + rank), vs = trn_shape_vector(total), ss = trn_shape_vector(n_front + rank);
    trn_tensor *ind, *val, *shape;
    TRN_TRY(trn_out_new(&ind, k, 0, TRN_INT64, &is));
    TRN_TRY(trn_out_new(&val, k, 1, k->node->out_types[1], &vs));
    TRN_TRY(trn_out_new(&shape, k, 2, TRN_INT64, &ss));
    int64_t *x = TRN_DATA_MUT(ind, int64_t), *s = TRN_DATA_MUT(shape, int64_t), at = 0, front[TRN_MAX_RANK] = {0};
    for (int d = 0; d < n_front; d++)
        s[d] = in->shape.dim[d];
    for (int64_t d = 0; d < rank; d++)
        s[n_front + d] = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t left = i;
        for (int d = n_front - 1; d >= 0; d--) {
            front[d] = left % in->shape.dim[d];
            left /= in->shape.dim[d];
        }
        for (int64_t d = 0; d < rank; d++)
            s[n_front + d] = TRN_MAX(s[n_front + d], TRN_DATA(p[i].shape, int64_t)[d]);
        const int64_t *from = TRN_DATA(p[i].ind, int64_t);
        for (int64_t e = 0; e < p[i].val->count; e++) {
            for (int d = 0; d < n_front; d++)
                *x++ = front[d];
            for (int64_t d = 0; d < rank; d++)
                *x++ = *from++;
        }
        TRN_TRY(trn_tensor_copy_elems(val, at, p[i].val, 0, p[i].val->count));
        at += p[i].val->count;
    }
    return TRN_OK;
}

static trn_err deserialize_sparse(trn_kctx *k)
{
    const trn_tensor *in = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(in->shape.rank > 0, "Serialized sparse should have non-zero rank %s", trn_shape_text(text, &in->shape));
    TRN_CHECK_ARG(in->shape.dim[in->shape.rank - 1] == 3, "Serialized sparse should have 3 as the last dimension %s", trn_shape_text(text, &in->shape));
    int64_t n = in->count / 3;
    TRN_CHECK_ARG(n > 0, "Serialized sparse should have at least 1 serialized tensor, but has a zero dimension %s", trn_shape_text(text, &in->shape));
    part *p = trn_xalloc((size_t)n * sizeof *p);
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < n; i++)
        err = get_part(&p[i], in, i, k->node->out_types[1]);
    if (!err)
        err = stack_parts(k, p, n, in->shape.rank - 1);
    for (int64_t i = 0; i < n; i++) {
        trn_tensor_unref(p[i].ind);
        trn_tensor_unref(p[i].val);
        trn_tensor_unref(p[i].shape);
    }
    free(p);
    return err;
}

/* ---- raw and compressed bytes ---------------------------------------------------------------------------------------------- */

static trn_err decode_padded_raw(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *len = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(len->shape.rank == 0, "k must be scalar, got shape %s", trn_shape_text(text, &len->shape));
    int32_t n = TRN_DATA(len, int32_t)[0];
    trn_dtype type = k->node->out_types[0];
    size_t size = trn_dtype_size(type);
    TRN_CHECK_ARG(n % (int32_t)size == 0, "fixed_length (%d) must be a multiple of the size of out_type (%zu)", n, size);
    TRN_CHECK_ARG(n > 0, "fixed_length (%d) must be greater than zero.", n);
    TRN_CHECK_ARG(x->shape.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    trn_shape s = x->shape;
    s.dim[s.rank++] = n / (int32_t)size;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, type, &s));
    bool swap = !trn_attr_bool(k->node, "little_endian");
    for (int64_t i = 0; i < x->count; i++) {
        const trn_str *in = &TRN_DATA(x, trn_str)[i];
        uint8_t *out = (uint8_t *)y->data + (size_t)i * (size_t)n;
        size_t m = TRN_MIN((size_t)in->len, (size_t)n);
        memset(out, 0, (size_t)n);
        memcpy(out, trn_str_p(in), m);
        for (size_t e = 0; swap && e < (size_t)n; e += size)
            for (size_t a = e, b = e + size - 1; a < b; a++, b--) {
                uint8_t v = out[a];
                out[a] = out[b];
                out[b] = v;
            }
    }
    return TRN_OK;
}

static trn_err sh_padded_raw(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->in[0].rank >= 0 && s->in[0].rank < TRN_MAX_RANK)
        s->out[0].dim[s->out[0].rank++] = -1;
    return TRN_OK;
}

static trn_err decode_compressed(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_compression c;
    TRN_TRY(trn_compression_parse(&c, trn_attr_str(k->node, "compression_type")));
    if (c == TRN_PLAIN) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &x->shape));
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < x->count; i++) {
        const trn_str *in = &TRN_DATA(x, trn_str)[i];
        trn_sb s = {0};
        err = trn_inflate(&s, trn_str_p(in), in->len, c, MAX_INFLATED);
        if (!err)
            err = trn_str_set(&TRN_DATA_MUT(y, trn_str)[i], s.n ? s.p : "", s.n);
        trn_sb_fini(&s);
    }
    return err;
}

const trn_op trn_ops_serialize[] = {
    {"ParseTensor", "serialized:str -> output:out_type; out_type:any", trn_sh_unknown, parse_tensor, 0},
    {"SerializeTensor", "tensor:T -> serialized:str; T:any", trn_sh_scalar, serialize_tensor, 0},
    {"SerializeSparse", "sparse_indices:i64, sparse_values:T, sparse_shape:i64 -> serialized_sparse:out_type; T:any, out_type:str|var=str", trn_sh_unknown,
     serialize_sparse, TRN_OP_BACK},
    {"SerializeManySparse", "sparse_indices:i64, sparse_values:T, sparse_shape:i64 -> serialized_sparse:out_type; T:any, out_type:str|var=str",
     trn_sh_unknown, serialize_many_sparse, TRN_OP_BACK},
    {"DeserializeSparse", "serialized_sparse:Tserialized -> sparse_indices:i64, sparse_values:dtype, sparse_shape:i64; dtype:any, Tserialized:str|var=str",
     trn_sh_unknown, deserialize_sparse, 0},
    {"DeserializeManySparse", "serialized_sparse:str -> sparse_indices:i64, sparse_values:dtype, sparse_shape:i64; dtype:any", trn_sh_unknown,
     deserialize_sparse, 0},
    {"DecodePaddedRaw", "input_bytes:str, fixed_length:i32 -> output:out_type; out_type:float|i8|i16|i32|i64|u8|u16, little_endian:bool=true",
     sh_padded_raw, decode_padded_raw, 0},
    {"DecodeCompressed", "bytes:str -> output:str; compression_type:string=\"\"", trn_sh_same, decode_compressed, 0},
    {0},
};
