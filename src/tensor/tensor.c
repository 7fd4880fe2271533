/* Tensors. Where the elements lie:
 *   plain, at most TRN_TENSOR_INLINE bytes   behind the head; a view copies them, which costs less than sharing would
 *   plain, larger                            in a trn_buf of the pool
 *   strings, handles, variants               in a trn_buf of our own kind (`elems`) that frees the elements with itself, so
 *                                            that it does not matter which of the tensors on it goes last
 */
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>

#define HEAD ((sizeof(trn_tensor) + 15) & ~(size_t)15)

typedef struct elems {
    trn_buf b;
    trn_dtype dtype;
    int64_t count;
    _Alignas(64) uint8_t data[];
} elems;

static void elem_fini(trn_dtype dtype, void *data, int64_t i)
{
    if (dtype == TRN_STRING)
        trn_str_fini((trn_str *)data + i);
    else if (dtype == TRN_RESOURCE)
        trn_handle_unref(((trn_handle **)data)[i]);
    else if (dtype == TRN_VARIANT)
        trn_variant_unref(((trn_variant **)data)[i]);
}

static void elems_release(void *arg, trn_buf *b)
{
    elems *e = (elems *)b;
    (void)arg;
    for (int64_t i = 0; i < e->count; i++)
        elem_fini(e->dtype, e->data, i);
    free(e);
}

static trn_err elems_new(trn_buf **out, trn_dtype dtype, int64_t count, size_t bytes)
{
    size_t len = (sizeof(elems) + bytes + 63) & ~(size_t)63;
    elems *e = len > bytes ? aligned_alloc(64, len) : NULL;
    if (!e)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "out of memory: %lld elements of type %s do not fit",
                          (long long)count, trn_dtype_name(dtype));
    *e = (elems){.b = {.size = bytes, .data = e->data, .release = elems_release}, .dtype = dtype, .count = count};
    atomic_init(&e->b.ref, 1);
    memset(e->data, 0, bytes);
    *out = &e->b;
    return TRN_OK;
}

/* A head without elements, `behind` bytes of room after it. The shape was checked. */
static trn_tensor *head_new(trn_dtype dtype, const trn_shape *shape, int64_t count, size_t behind)
{
    trn_tensor *t = malloc(HEAD + behind);
    if (TRN_UNLIKELY(!t))
        return NULL;
    atomic_init(&t->ref, 1);
    t->dtype = dtype;
    t->count = count;
    t->buf = NULL;
    t->data = (char *)t + HEAD;
    t->shape.rank = shape->rank;
    memcpy(t->shape.dim, shape->dim, (size_t)shape->rank * sizeof shape->dim[0]);
    return t;
}

static trn_err check(int64_t *count, size_t *bytes, trn_dtype dtype, const trn_shape *shape)
{
    size_t size = trn_dtype_is_ref(dtype) ? 0 : trn_dtype_size(dtype);
    if (TRN_UNLIKELY(!size))
        return trn_errorf(TRN_INVALID_ARGUMENT, "a tensor cannot have dtype %d (%s)", (int)dtype,
                          trn_dtype_name(dtype));
    TRN_TRY(trn_shape_count(count, shape));
    if (TRN_UNLIKELY(__builtin_mul_overflow((size_t)*count, size, bytes) || *bytes > (size_t)1 << 62)) {
        char text[TRN_SHAPE_TEXT];
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a tensor of shape %s and type %s does not fit into memory",
                          trn_shape_text(text, shape), trn_dtype_name(dtype));
    }
    return TRN_OK;
}

trn_err trn_tensor_new(trn_tensor **out, trn_dtype dtype, const trn_shape *shape)
{
    int64_t count;
    size_t bytes;
    TRN_TRY(check(&count, &bytes, dtype, shape));
    bool plain = trn_dtype_is_plain(dtype);
    if (plain && bytes <= TRN_TENSOR_INLINE) {
        trn_tensor *t = head_new(dtype, shape, count, bytes);
        if (TRN_UNLIKELY(!t))
            return trn_err_oom();
        *out = t;
        return TRN_OK;
    }
    trn_buf *buf;
    trn_err err = plain ? trn_buf_new(&buf, bytes) : elems_new(&buf, dtype, count, bytes);
    if (TRN_UNLIKELY(err != TRN_OK)) {
        char text[TRN_SHAPE_TEXT];
        return trn_err_wrap(err, "tensor of shape %s and type %s", trn_shape_text(text, shape), trn_dtype_name(dtype));
    }
    trn_tensor *t = head_new(dtype, shape, count, 0);
    if (TRN_UNLIKELY(!t)) {
        trn_buf_unref(buf);
        return trn_err_oom();
    }
    t->buf = buf;
    t->data = buf->data;
    *out = t;
    return TRN_OK;
}

trn_tensor *trn_tensor_ref(const trn_tensor *t)
{
    trn_tensor *m = (trn_tensor *)t;
    if (m)
        atomic_fetch_add_explicit(&m->ref, 1, memory_order_relaxed);
    return m;
}

void trn_tensor_unref(trn_tensor *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_buf_unref(t->buf);
    free(t);
}

trn_dtype trn_tensor_dtype(const trn_tensor *t) { return t->dtype; }
const trn_shape *trn_tensor_shape(const trn_tensor *t) { return &t->shape; }
int64_t trn_tensor_count(const trn_tensor *t) { return t->count; }
size_t trn_tensor_bytes(const trn_tensor *t) { return (size_t)t->count * trn_dtype_size(t->dtype); }
const void *trn_tensor_data(const trn_tensor *t) { return t->data; }
void *trn_tensor_data_mut(trn_tensor *t) { return t->data; }

/* ---- sharing -------------------------------------------------------------------------------------------------- */

/* `bytes` at `p` under a new head: on t's buffer, or copied when they lie behind t's head. */
static trn_err share(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, int64_t count, size_t bytes,
                     trn_buf *buf, void *p)
{
    trn_tensor *v = head_new(dtype, shape, count, buf ? 0 : bytes);
    if (TRN_UNLIKELY(!v))
        return trn_err_oom();
    if (buf) {
        v->buf = trn_buf_ref(buf);
        v->data = p;
    } else if (bytes) {
        memcpy(v->data, p, bytes);
    }
    *out = v;
    return TRN_OK;
}

trn_err trn_tensor_view(trn_tensor **out, const trn_tensor *t, int64_t first, const trn_shape *shape)
{
    int64_t count;
    size_t bytes;
    TRN_TRY(check(&count, &bytes, t->dtype, shape));
    if (first < 0 || count > t->count || first > t->count - count) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "a view of shape %s from element %lld on does not lie in a tensor of shape %s",
                          trn_shape_text(a, shape), (long long)first, trn_shape_text(b, &t->shape));
    }
    return share(out, t->dtype, shape, count, bytes, t->buf,
                 (char *)t->data + (size_t)first * trn_dtype_size(t->dtype));
}

trn_err trn_tensor_bitcast(trn_tensor **out, const trn_tensor *t, trn_dtype dtype, const trn_shape *shape)
{
    int64_t count;
    size_t bytes;
    TRN_TRY(check(&count, &bytes, dtype, shape));
    if (dtype != t->dtype && (!trn_dtype_is_plain(dtype) || !trn_dtype_is_plain(t->dtype)))
        return trn_errorf(TRN_INVALID_ARGUMENT, "type %s cannot be taken for type %s", trn_dtype_name(t->dtype),
                          trn_dtype_name(dtype));
    if (bytes != trn_tensor_bytes(t)) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s%s has %zu bytes, %s%s has %zu", trn_dtype_name(t->dtype),
                          trn_shape_text(a, &t->shape), trn_tensor_bytes(t), trn_dtype_name(dtype),
                          trn_shape_text(b, shape), bytes);
    }
    return share(out, dtype, shape, count, bytes, t->buf, t->data);
}

trn_err trn_tensor_on_buf(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, trn_buf *buf, const void *p)
{
    int64_t count;
    size_t bytes;
    TRN_TRY(check(&count, &bytes, dtype, shape));
    if (!trn_dtype_is_plain(dtype))
        return trn_errorf(TRN_INVALID_ARGUMENT, "elements of type %s cannot lie in plain bytes", trn_dtype_name(dtype));
    uintptr_t lo = (uintptr_t)buf->data, at = (uintptr_t)p;
    if (at < lo || at - lo > buf->size || bytes > buf->size - (at - lo)) {
        char text[TRN_SHAPE_TEXT];
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s%s needs %zu bytes; the buffer of %zu does not hold them",
                          trn_dtype_name(dtype), trn_shape_text(text, shape), bytes, buf->size);
    }
    /* Small ones are copied: a scalar must not keep a whole message alive. */
    if (bytes <= TRN_TENSOR_INLINE)
        return share(out, dtype, shape, count, bytes, NULL, (void *)p);
    size_t align = TRN_MIN(trn_dtype_size(dtype), 8);
    if (at % align == 0)
        return share(out, dtype, shape, count, bytes, buf, (void *)p);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, dtype, shape));
    memcpy(t->data, p, bytes);
    *out = t;
    return TRN_OK;
}

/* ---- copying -------------------------------------------------------------------------------------------------- */

static trn_err elem_copy(trn_dtype dtype, void *dst, int64_t i, const void *src, int64_t j)
{
    if (dtype == TRN_STRING) {
        const trn_str *s = (const trn_str *)src + j;
        return trn_str_set((trn_str *)dst + i, trn_str_p(s), s->len);
    }
    if (dtype == TRN_RESOURCE) {
        trn_handle **d = (trn_handle **)dst + i, *h = trn_handle_ref(((trn_handle *const *)src)[j]);
        trn_handle_unref(*d);
        *d = h;
    } else if (dtype == TRN_VARIANT) {
        trn_variant **d = (trn_variant **)dst + i, *v = trn_variant_ref(((trn_variant *const *)src)[j]);
        trn_variant_unref(*d);
        *d = v;
    }
    return TRN_OK;
}

trn_err trn_tensor_copy_elems(trn_tensor *dst, int64_t dst_at, const trn_tensor *src, int64_t src_at, int64_t n)
{
    if (dst->dtype != src->dtype)
        return trn_errorf(TRN_INVALID_ARGUMENT, "cannot copy elements of type %s over type %s",
                          trn_dtype_name(src->dtype), trn_dtype_name(dst->dtype));
    if (n < 0 || dst_at < 0 || src_at < 0 || n > dst->count || n > src->count || dst_at > dst->count - n ||
        src_at > src->count - n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "cannot copy %lld elements from %lld of %lld to %lld of %lld",
                          (long long)n, (long long)src_at, (long long)src->count, (long long)dst_at,
                          (long long)dst->count);
    size_t size = trn_dtype_size(dst->dtype);
    char *d = (char *)dst->data + (size_t)dst_at * size;
    const char *s = (const char *)src->data + (size_t)src_at * size;
    if (trn_dtype_is_plain(dst->dtype)) {
        memmove(d, s, (size_t)n * size);
        return TRN_OK;
    }
    /* Overlapping ranges are walked from the end that does not overwrite what is still to be read. */
    bool down = (uintptr_t)d > (uintptr_t)s;
    for (int64_t i = 0; i < n; i++) {
        int64_t k = down ? n - 1 - i : i;
        TRN_TRY(elem_copy(dst->dtype, d, k, s, k));
    }
    return TRN_OK;
}

trn_err trn_tensor_copy(trn_tensor **out, const trn_tensor *t)
{
    trn_tensor *c;
    TRN_TRY(trn_tensor_new(&c, t->dtype, &t->shape));
    trn_err err = trn_tensor_copy_elems(c, 0, t, 0, t->count);
    if (err) {
        trn_tensor_unref(c);
        return err;
    }
    *out = c;
    return TRN_OK;
}

size_t trn_tensor_total_bytes(const trn_tensor *t)
{
    size_t n = trn_tensor_bytes(t);
    if (t->dtype == TRN_STRING) {
        const trn_str *s = TRN_DATA(t, trn_str);
        for (int64_t i = 0; i < t->count; i++)
            n += s[i].len > sizeof s->in ? s[i].len : 0;
    }
    return n;
}

/* ---- shorthands ----------------------------------------------------------------------------------------------- */

trn_tensor *trn_tensor_from(trn_dtype dtype, int rank, const int64_t *dims, const void *data)
{
    if (rank < 0 || rank > TRN_MAX_RANK)
        return NULL;
    trn_shape s = {.rank = rank};
    if (rank)
        memcpy(s.dim, dims, (size_t)rank * sizeof *dims);
    trn_tensor *t;
    trn_err err = trn_tensor_new(&t, dtype, &s);
    if (err) {
        trn_err_free(err);
        return NULL;
    }
    if (trn_dtype_is_plain(dtype)) {
        if (t->count)
            memcpy(t->data, data, trn_tensor_bytes(t));
    } else if (dtype == TRN_STRING) {
        const char *const *words = data;
        for (int64_t i = 0; i < t->count && !err; i++)
            err = trn_str_set(TRN_DATA_MUT(t, trn_str) + i, words[i], strlen(words[i]));
    }
    if (err) {
        trn_err_free(err);
        trn_tensor_unref(t);
        return NULL;
    }
    return t;
}

trn_tensor *trn_tensor_f32(float v) { return trn_tensor_from(TRN_FLOAT, 0, NULL, &v); }
trn_tensor *trn_tensor_f64(double v) { return trn_tensor_from(TRN_DOUBLE, 0, NULL, &v); }
trn_tensor *trn_tensor_i32(int32_t v) { return trn_tensor_from(TRN_INT32, 0, NULL, &v); }
trn_tensor *trn_tensor_i64(int64_t v) { return trn_tensor_from(TRN_INT64, 0, NULL, &v); }
trn_tensor *trn_tensor_bool(bool v) { return trn_tensor_from(TRN_BOOL, 0, NULL, &v); }

trn_tensor *trn_tensor_str(const char *p, size_t n)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    trn_err err = trn_tensor_new(&t, TRN_STRING, &s);
    if (!err && (err = trn_str_set(TRN_DATA_MUT(t, trn_str), p, n)) != TRN_OK)
        trn_tensor_unref(t);
    if (err) {
        trn_err_free(err);
        return NULL;
    }
    return t;
}

const char *trn_tensor_str_at(const trn_tensor *t, int64_t i, size_t *len)
{
    if (t->dtype != TRN_STRING || i < 0 || i >= t->count) {
        if (len)
            *len = 0;
        return NULL;
    }
    const trn_str *s = TRN_DATA(t, trn_str) + i;
    if (len)
        *len = s->len;
    return trn_str_p(s);
}

trn_err trn_tensor_str_put(trn_tensor *t, int64_t i, const char *p, size_t n)
{
    if (t->dtype != TRN_STRING)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a string does not fit into a tensor of type %s",
                          trn_dtype_name(t->dtype));
    if (i < 0 || i >= t->count)
        return trn_errorf(TRN_OUT_OF_RANGE, "element %lld of a tensor with %lld", (long long)i, (long long)t->count);
    return trn_str_set(TRN_DATA_MUT(t, trn_str) + i, p, n);
}

/* ---- text ----------------------------------------------------------------------------------------------------- */

static void put_str(trn_sb *out, const trn_str *s)
{
    const char *p = trn_str_p(s);
    size_t show = TRN_MIN(s->len, 60u);
    trn_sb_adds(out, "\"");
    for (size_t i = 0; i < show; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '"' || c == '\\')
            trn_sb_addf(out, "\\%c", c);
        else if (c == '\n')
            trn_sb_adds(out, "\\n");
        else if (c < 0x20 || c >= 0x7f)
            trn_sb_addf(out, "\\x%02x", c);
        else
            trn_sb_add(out, p + i, 1);
    }
    trn_sb_adds(out, show < s->len ? "\"..." : "\"");
}

static void put_elem(trn_sb *out, const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_FLOAT:
        trn_sb_addf(out, "%.9g", (double)TRN_DATA(t, float)[i]);
        break;
    case TRN_DOUBLE:
        trn_sb_addf(out, "%.17g", TRN_DATA(t, double)[i]);
        break;
    case TRN_HALF:
        trn_sb_addf(out, "%.5g", (double)trn_half_to_f32(TRN_DATA(t, trn_half)[i]));
        break;
    case TRN_BFLOAT16:
        trn_sb_addf(out, "%.4g", (double)trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]));
        break;
    case TRN_COMPLEX64:
        trn_sb_addf(out, "(%.9g,%.9g)", (double)TRN_DATA(t, float)[2 * i], (double)TRN_DATA(t, float)[2 * i + 1]);
        break;
    case TRN_COMPLEX128:
        trn_sb_addf(out, "(%.17g,%.17g)", TRN_DATA(t, double)[2 * i], TRN_DATA(t, double)[2 * i + 1]);
        break;
    case TRN_INT32:
    case TRN_QINT32:
        trn_sb_addf(out, "%d", TRN_DATA(t, int32_t)[i]);
        break;
    case TRN_UINT32:
        trn_sb_addf(out, "%u", TRN_DATA(t, uint32_t)[i]);
        break;
    case TRN_INT64:
        trn_sb_addf(out, "%lld", (long long)TRN_DATA(t, int64_t)[i]);
        break;
    case TRN_UINT64:
        trn_sb_addf(out, "%llu", (unsigned long long)TRN_DATA(t, uint64_t)[i]);
        break;
    case TRN_INT16:
    case TRN_QINT16:
        trn_sb_addf(out, "%d", TRN_DATA(t, int16_t)[i]);
        break;
    case TRN_UINT16:
    case TRN_QUINT16:
        trn_sb_addf(out, "%u", TRN_DATA(t, uint16_t)[i]);
        break;
    case TRN_INT8:
    case TRN_QINT8:
    case TRN_INT4:
        trn_sb_addf(out, "%d", TRN_DATA(t, int8_t)[i]);
        break;
    case TRN_UINT8:
    case TRN_QUINT8:
    case TRN_UINT4:
        trn_sb_addf(out, "%u", TRN_DATA(t, uint8_t)[i]);
        break;
    case TRN_FLOAT8_E5M2:
    case TRN_FLOAT8_E4M3FN:
        trn_sb_addf(out, "0x%02x", TRN_DATA(t, uint8_t)[i]);
        break;
    case TRN_BOOL:
        trn_sb_adds(out, TRN_DATA(t, uint8_t)[i] ? "true" : "false");
        break;
    case TRN_STRING:
        put_str(out, TRN_DATA(t, trn_str) + i);
        break;
    case TRN_RESOURCE: {
        const trn_handle *h = TRN_DATA(t, trn_handle *)[i];
        if (h)
            trn_sb_addf(out, "<%s/%s on %s>", h->container, h->name, h->device);
        else
            trn_sb_adds(out, "<no resource>");
        break;
    }
    case TRN_VARIANT: {
        const trn_variant *v = TRN_DATA(t, trn_variant *)[i];
        trn_sb_addf(out, "<%s>", v ? v->type->name : "empty variant");
        break;
    }
    default:
        trn_sb_adds(out, "?");
    }
}

void trn_tensor_text(trn_sb *out, const trn_tensor *t, int max)
{
    char shape[TRN_SHAPE_TEXT];
    trn_sb_addf(out, "%s%s", trn_dtype_name(t->dtype), trn_shape_text(shape, &t->shape));
    for (int64_t i = 0; i < t->count; i++) {
        trn_sb_adds(out, " ");
        if (i >= max) {
            trn_sb_adds(out, "...");
            break;
        }
        put_elem(out, t, i);
    }
}
