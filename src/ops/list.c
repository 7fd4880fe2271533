/* TensorLists: immutable lists of tensors that travel in variants; what v2 loops pass from iteration to iteration. A list is changed in place
 * when the kernel is its only holder, which makes a loop of pushes linear. */
#include "ops/kern.h"
#include "ops/variant.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_SIZE (1 << 24) /* elements: sizes and indices are a peer's */

typedef struct list {
    trn_variant base;
    trn_dtype dtype;
    trn_shape shape; /* of the elements, as far as known */
    int64_t max;     /* -1: no limit */
    trn_tensor **t;  /* NULL: not set yet, reads as zeros */
    int64_t n, cap;
} list;

static void list_free(void *obj)
{
    list *l = obj;
    for (int64_t i = 0; i < l->n; i++)
        trn_tensor_unref(l->t[i]);
    free(l->t);
    free(l);
}

static trn_err list_add(trn_variant **out, const trn_variant *va, const trn_variant *vb);
static trn_err list_zeros(trn_variant **out, const trn_variant *v);

static trn_err list_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v);
static trn_err list_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);

static const trn_variant_type list_type = {.name = "tensorflow::TensorList",
                                           .free = list_free,
                                           .add = list_add,
                                           .zeros_like = list_zeros,
                                           .pack = list_pack,
                                           .unpack = list_unpack};

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&list_type); }

static trn_variant *item(const trn_tensor *t, int64_t i) { return ((trn_variant *const *)t->data)[i]; }

static list *list_new(trn_dtype dtype, const trn_shape *shape)
{
    list *l = trn_xalloc(sizeof *l);
    atomic_init(&l->base.ref, 1);
    l->base.type = &list_type;
    l->dtype = dtype;
    l->shape = *shape;
    l->max = -1;
    return l;
}

/* New elements are unset; what is cut off is let go. */
static trn_err list_resize(list *l, int64_t n)
{
    if (n > MAX_SIZE)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a list of %lld elements is more than the limit of %d", (long long)n,
                          MAX_SIZE);
    if (n > l->cap) {
        int64_t cap = n > 2 * l->cap ? n : 2 * l->cap;
        trn_tensor **t = realloc(l->t, (size_t)cap * sizeof(trn_tensor *));
        if (!t)
            return trn_err_oom();
        l->t = t;
        l->cap = cap;
    }
    if (n > l->n)
        memset(l->t + l->n, 0, (size_t)(n - l->n) * sizeof(trn_tensor *));
    for (int64_t i = n; i < l->n; i++)
        trn_tensor_unref(l->t[i]);
    l->n = n;
    return TRN_OK;
}

static trn_err list_push(list *l, TRN_OWN trn_tensor *t)
{
    trn_err err = list_resize(l, l->n + 1);
    if (err)
        trn_tensor_unref(t);
    else
        l->t[l->n - 1] = t;
    return err;
}

static trn_err list_copy(list **out, const list *from)
{
    list *l = list_new(from->dtype, &from->shape);
    l->max = from->max;
    trn_err err = list_resize(l, from->n);
    if (err) {
        trn_variant_unref(&l->base);
        return err;
    }
    for (int64_t i = 0; i < l->n; i++)
        l->t[i] = from->t[i] ? trn_tensor_ref(from->t[i]) : NULL;
    *out = l;
    return TRN_OK;
}

/* ---- on the wire ----------------------------------------------------------------------------------------------------- */

/* Varints: how many elements are unset and which, the dtype, the limit; then a TensorShapeProto. The tensors are those that are set. */
static trn_err list_pack(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v)
{
    const list *l = (const list *)v;
    uint64_t unset = 0;
    *t = trn_xalloc(((size_t)l->n + 1) * sizeof **t);
    *n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        unset += !l->t[i];
        if (l->t[i])
            (*t)[(*n)++] = l->t[i];
    }
    trn_pbw_raw_varint(meta, unset);
    for (int64_t i = 0; i < l->n; i++)
        if (!l->t[i])
            trn_pbw_raw_varint(meta, (uint64_t)i);
    trn_pbw_raw_varint(meta, (uint64_t)l->dtype);
    trn_pbw_raw_varint(meta, (uint64_t)l->max);
    trn_arena *a = trn_arena_new();
    trn_pb_pack(meta, &trn_shape_to_pb(a, &l->shape)->base);
    trn_arena_free(a);
    return TRN_OK;
}

static bool next_varint(uint64_t *out, const uint8_t **p, const uint8_t *end)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128)
            return true;
    }
    return false;
}

static trn_err packed_shape(trn_shape *out, const uint8_t *p, size_t n)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorShapeProto *pb;
    trn_err err = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_shape_proto__descriptor, p, n);
    if (!err && !pb->unknown_rank && pb->n_dim > TRN_MAX_RANK)
        err = TRN_BAD("a list's elements have %zu dimensions", pb->n_dim);
    if (!err) {
        *out = pb->unknown_rank ? trn_shape_unknown() : (trn_shape){.rank = (int)pb->n_dim};
        for (int i = 0; i < out->rank; i++)
            out->dim[i] = pb->dim[i]->size < 0 ? -1 : pb->dim[i]->size;
    }
    trn_arena_free(a);
    return err;
}

static trn_err list_fill(list *l, const uint8_t *p, const uint8_t *end, trn_tensor *const *t, int n_t)
{
    uint64_t unset, at, dtype, max;
    const uint8_t *q = p;
    TRN_CHECK_ARG(next_varint(&unset, &q, end) && unset <= (uint64_t)(end - q), "a list's message ends early");
    TRN_TRY(list_resize(l, (int64_t)unset + n_t));
    bool *hole = trn_xalloc(((size_t)l->n + 1) * sizeof *hole);
    memset(hole, 0, ((size_t)l->n + 1) * sizeof *hole);
    bool ok = true;
    for (uint64_t i = 0; i < unset && ok; i++) {
        ok = next_varint(&at, &q, end) && at < (uint64_t)l->n && !hole[at];
        if (ok)
            hole[at] = true;
    }
    for (int64_t i = 0, from = 0; i < l->n && ok; i++)
        if (!hole[i])
            l->t[i] = trn_tensor_ref(t[from++]);
    free(hole);
    TRN_CHECK_ARG(ok && next_varint(&dtype, &q, end) && next_varint(&max, &q, end), "a list's message ends early, or names an element twice");
    TRN_CHECK_ARG(dtype < TRN_DTYPE_END && trn_dtype_size((trn_dtype)dtype), "a list of dtype %llu", (unsigned long long)dtype);
    l->dtype = (trn_dtype)dtype;
    l->max = (int64_t)max < -1 || max > INT32_MAX ? -1 : (int64_t)max;
    for (int i = 0; i < n_t; i++)
        TRN_CHECK_ARG(t[i]->dtype == l->dtype, "a list of %s holds a %s", trn_dtype_name(l->dtype), trn_dtype_name(t[i]->dtype));
    return packed_shape(&l->shape, q, (size_t)(end - q));
}

static trn_err list_unpack(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t)
{
    trn_shape any = trn_shape_unknown();
    list *l = list_new(TRN_FLOAT, &any);
    trn_err err = n ? list_fill(l, meta, (const uint8_t *)meta + n, t, n_t) : TRN_BAD("a list's message is empty");
    if (err)
        trn_variant_unref(&l->base);
    else
        *out = &l->base;
    return err;
}

/* ---- inputs and outputs ---------------------------------------------------------------------------------------------- */

static trn_err as_list(list **out, trn_variant *v)
{
    TRN_CHECK_ARG(v && v->type == &list_type, "Input handle is not a list. Saw: '%s'", v ? v->type->name : "<empty>");
    *out = (list *)v;
    return TRN_OK;
}

static trn_err in_list(list **out, const trn_kctx *k, int i)
{
    const trn_tensor *t = trn_in(k, i);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(t), "Input list must be a scalar saw: %s", trn_shape_text(text, &t->shape));
    return as_list(out, item(t, 0));
}

static trn_err same_dtype(const list *l, trn_dtype t)
{
    TRN_CHECK_ARG(l->dtype == t, "Invalid data types; op elements %s but list elements %s", trn_dtype_name(t),
                  trn_dtype_name(l->dtype));
    return TRN_OK;
}

/* List of input i, whose elements must be of attr element_dtype. */
static trn_err in_typed(list **out, const trn_kctx *k, int i)
{
    TRN_TRY(in_list(out, k, i));
    return same_dtype(*out, trn_attr_type(k->node, "element_dtype"));
}

static trn_err out_list(trn_kctx *k, int i, TRN_OWN list *l)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    trn_err err = trn_out_new(&y, k, i, TRN_VARIANT, &scalar);
    if (err)
        trn_variant_unref(&l->base);
    else
        TRN_DATA_MUT(y, trn_variant *)[0] = &l->base;
    return err;
}

/* Output o holds input i's list, safe to change: itself when this kernel is the only holder of tensor and list, else a copy. */
static trn_err out_changed(list **out, trn_kctx *k, int o, int i)
{
    list *l = (list *)item(trn_in(k, i), 0);
    if (trn_tensor_sole(trn_in(k, i)) && atomic_load_explicit(&l->base.ref, memory_order_acquire) == 1) {
        trn_out_set(k, o, trn_tensor_ref(trn_in(k, i)));
        *out = l;
        return TRN_OK;
    }
    list *c;
    TRN_TRY(list_copy(&c, l));
    TRN_TRY(out_list(k, o, c));
    *out = c;
    return TRN_OK;
}

/* A partial shape: a vector with -1 for unknown dims, or the scalar -1 for an unknown rank. */
static trn_err partial_shape(trn_shape *out, const trn_tensor *t)
{
    TRN_CHECK_ARG(t->shape.rank <= 1, "Shape must be at most rank 1 but is rank %d", t->shape.rank);
    trn_shape s = trn_shape_unknown();
    if (t->shape.rank == 0) {
        TRN_CHECK_ARG(trn_int_at(t, 0) == -1,
                      "The only valid scalar shape tensor is the fully unknown shape specified as -1.");
        *out = s;
        return TRN_OK;
    }
    TRN_CHECK_ARG(t->count <= TRN_MAX_RANK, "a shape of %lld dimensions; at most %d are supported", (long long)t->count,
                  TRN_MAX_RANK);
    s.rank = (int32_t)t->count;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = trn_int_at(t, i);
        TRN_CHECK_ARG(s.dim[i] >= -1, "Dimension %lld must be >= -1", (long long)s.dim[i]);
    }
    *out = s;
    return TRN_OK;
}

static trn_err element_shape(trn_shape *out, const trn_kctx *k, int i, const list *l)
{
    trn_shape s;
    TRN_TRY(partial_shape(&s, trn_in(k, i)));
    return trn_sh_meet(out, &s, &l->shape);
}

static trn_err full_shape(const trn_shape *s, const char *doing)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_is_full(s), "%s but element_shape is not fully defined: %s", doing,
                  trn_shape_text(text, s));
    return TRN_OK;
}

static trn_err scalar_i32(int64_t *out, const trn_kctx *k, int i, const char *what)
{
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, i)), "%s must be a scalar but has shape %s", what,
                  trn_shape_text(text, &trn_in(k, i)->shape));
    *out = TRN_DATA(trn_in(k, i), int32_t)[0];
    return TRN_OK;
}

static trn_err zeros(trn_tensor **out, trn_dtype dtype, const trn_shape *s)
{
    TRN_TRY(trn_tensor_new(out, dtype, s));
    trn_zero_elems(*out, 0, (*out)->count);
    return TRN_OK;
}

static trn_shape without_first(const trn_shape *s)
{
    trn_shape r = *s;
    if (r.rank > 0) {
        r.rank--;
        memmove(r.dim, r.dim + 1, (size_t)r.rank * sizeof *r.dim);
    }
    return r;
}

static trn_err with_first(trn_shape *out, int64_t n, const trn_shape *s)
{
    TRN_CHECK_ARG(s->rank < TRN_MAX_RANK, "the result would have %d dimensions", s->rank + 1);
    trn_shape r = trn_shape_vector(n);
    for (int i = 0; i < s->rank; i++)
        r.dim[r.rank++] = s->dim[i];
    *out = r;
    return TRN_OK;
}

/* Rows [from, from+n) of v; of one row, without its first dim when `drop`. */
static trn_err rows(trn_tensor **out, const trn_tensor *v, int64_t from, int64_t n, bool drop)
{
    trn_shape s = v->shape;
    int64_t per_row = s.dim[0] ? v->count / s.dim[0] : 0;
    s.dim[0] = n;
    if (drop)
        s = without_first(&s);
    return trn_tensor_view(out, v, from * per_row, &s);
}

static trn_err is_vector_or_more(const trn_tensor *t)
{
    TRN_CHECK_ARG(t->shape.rank >= 1, "Tensor must be at least a vector, but saw shape: []");
    return TRN_OK;
}

/* ---- making lists ---------------------------------------------------------------------------------------------------- */

static trn_err empty(trn_kctx *k)
{
    trn_shape s;
    int64_t max;
    TRN_TRY(scalar_i32(&max, k, 1, "max_num_elements"));
    TRN_TRY(partial_shape(&s, trn_in(k, 0)));
    list *l = list_new(trn_attr_type(k->node, "element_dtype"), &s);
    l->max = max;
    return out_list(k, 0, l);
}

static trn_err give_or_drop(trn_kctx *k, TRN_OWN list *l, TRN_OWN trn_err err)
{
    if (!err)
        return out_list(k, 0, l);
    trn_variant_unref(&l->base);
    return err;
}

static trn_err reserve(trn_kctx *k)
{
    trn_shape s;
    int64_t n;
    TRN_TRY(partial_shape(&s, trn_in(k, 0)));
    TRN_TRY(scalar_i32(&n, k, 1, "num_elements"));
    TRN_CHECK_ARG(n >= 0, "The num_elements to reserve must be a non negative number, but got %lld", (long long)n);
    list *l = list_new(trn_attr_type(k->node, "element_dtype"), &s);
    return give_or_drop(k, l, list_resize(l, n));
}

static trn_err rows_into(list *l, const trn_tensor *v)
{
    TRN_TRY(list_resize(l, v->shape.dim[0]));
    for (int64_t i = 0; i < l->n; i++)
        TRN_TRY(rows(&l->t[i], v, i, 1, true));
    return TRN_OK;
}

static trn_err rows_fit(const trn_shape *element, const trn_tensor *v)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(is_vector_or_more(v));
    trn_shape row = without_first(&v->shape);
    TRN_CHECK_ARG(trn_shape_compatible(element, &row), "Specified a list with shape %s from a tensor with shape %s",
                  trn_shape_text(a, element), trn_shape_text(b, &row));
    return TRN_OK;
}

static trn_err from_tensor(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 0);
    trn_shape s;
    TRN_TRY(partial_shape(&s, trn_in(k, 1)));
    TRN_TRY(rows_fit(&s, v));
    list *l = list_new(v->dtype, &s);
    return give_or_drop(k, l, rows_into(l, v));
}

static trn_err scatter_into(list *l, const trn_tensor *v, const trn_tensor *index)
{
    for (int64_t i = 0; i < index->count; i++) {
        trn_tensor *t;
        TRN_TRY(rows(&t, v, i, 1, true));
        int32_t at = TRN_DATA(index, int32_t)[i];
        trn_tensor_unref(l->t[at]);
        l->t[at] = t;
    }
    return TRN_OK;
}

/* Size that a list needs for these indices; none may be negative, or as large as `limit` (-1: no limit). */
static trn_err size_for(int64_t *out, const trn_tensor *index, int64_t limit)
{
    int64_t n = 0;
    for (int64_t i = 0; i < index->count; i++) {
        int64_t at = TRN_DATA(index, int32_t)[i];
        TRN_CHECK_ARG(at >= 0, "Indices in TensorListScatter must all be non-negative.");
        TRN_CHECK_ARG(limit < 0 || at < limit,
                      "TensorListScatter: Trying to scatter at index %lld in list with size %lld", (long long)at,
                      (long long)limit);
        n = at + 1 > n ? at + 1 : n;
    }
    *out = n;
    return TRN_OK;
}

static trn_err scatter(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 0), *index = trn_in(k, 1);
    trn_shape s;
    int64_t limit = -1, n;
    TRN_TRY(partial_shape(&s, trn_in(k, 2)));
    if (k->n_in > 3)
        TRN_TRY(scalar_i32(&limit, k, 3, "num_elements"));
    TRN_CHECK_ARG(limit >= -1, "TensorListScatter expects num_elements >= -1, found: %lld", (long long)limit);
    TRN_TRY(rows_fit(&s, v));
    TRN_CHECK_ARG(index->count == v->shape.dim[0],
                  "Invalid number of rows in input tensor. Expected: %lld Actual: %lld", (long long)index->count,
                  (long long)v->shape.dim[0]);
    TRN_TRY(size_for(&n, index, limit));
    list *l = list_new(v->dtype, &s);
    trn_err err = list_resize(l, n > limit ? n : limit);
    if (!err)
        err = scatter_into(l, v, index);
    return give_or_drop(k, l, err);
}

static trn_err scatter_existing(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 1), *index = trn_in(k, 2);
    list *l;
    int64_t n;
    TRN_TRY(in_list(&l, k, 0));
    TRN_TRY(same_dtype(l, v->dtype));
    TRN_TRY(is_vector_or_more(v));
    TRN_CHECK_ARG(trn_is_vector(index), "Expected indices to be a vector, but received rank %d", index->shape.rank);
    TRN_CHECK_ARG(index->count == v->shape.dim[0], "Expected len(indices) == tensor.shape[0], but saw: %lld vs. %lld",
                  (long long)index->count, (long long)v->shape.dim[0]);
    TRN_TRY(size_for(&n, index, -1));
    TRN_TRY(out_changed(&l, k, 0, 0));
    if (n > l->n)
        TRN_TRY(list_resize(l, n));
    return scatter_into(l, v, index);
}

static trn_err split_into(list *l, const trn_tensor *v, const trn_tensor *lengths)
{
    int64_t at = 0, all = v->shape.dim[0];
    TRN_TRY(list_resize(l, lengths->count));
    for (int64_t i = 0; i < l->n; i++) {
        int64_t n = TRN_DATA(lengths, int64_t)[i];
        TRN_CHECK_ARG(n >= 0, "Invalid value in lengths: %lld", (long long)n);
        TRN_CHECK_ARG(n <= all - at, "Attempting to slice [%lld, %lld] from tensor with length %lld", (long long)at,
                      (long long)(at + n), (long long)all);
        TRN_TRY(rows(&l->t[i], v, at, n, false));
        at += n;
    }
    TRN_CHECK_ARG(at == all, "Unused values in tensor. Length of tensor: %lld Values used: %lld", (long long)all,
                  (long long)at);
    return TRN_OK;
}

static trn_err split(trn_kctx *k)
{
    const trn_tensor *v = trn_in(k, 0), *lengths = trn_in(k, 2);
    trn_shape s;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(partial_shape(&s, trn_in(k, 1)));
    TRN_CHECK_ARG(s.rank != 0, "TensorListSplit requires element_shape to be at least of rank 1, but saw: []");
    TRN_TRY(is_vector_or_more(v));
    trn_shape rest = without_first(&v->shape), want = s.rank < 0 ? s : without_first(&s);
    TRN_CHECK_ARG(trn_shape_compatible(&want, &rest), "tensor shape %s is not compatible with element_shape %s",
                  trn_shape_text(a, &v->shape), trn_shape_text(b, &s));
    TRN_CHECK_ARG(trn_is_vector(lengths), "Expected lengths to be a vector, received shape: %s", trn_shape_text(a, &lengths->shape));
    list *l = list_new(v->dtype, &s);
    return give_or_drop(k, l, split_into(l, v, lengths));
}

/* ---- changing lists -------------------------------------------------------------------------------------------------- */

/* at: of the list in a batch; -1: there is one only. */
static trn_err may_push(const list *l, const trn_shape *s, int64_t at)
{
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT], where[40] = "";
    if (at >= 0)
        snprintf(where, sizeof where, " at index %lld", (long long)at);
    TRN_CHECK_ARG(trn_shape_compatible(&l->shape, s),
                  "Tried to append a tensor with incompatible shape to a list%s. Op element shape: %s list shape: %s", where,
                  trn_shape_text(a, s), trn_shape_text(b, &l->shape));
    TRN_CHECK_ARG(l->max == -1 || l->n < l->max,
                  "Tried to push item into a full list list size: %lld max_num_elements: %lld", (long long)l->n,
                  (long long)l->max);
    return TRN_OK;
}

static trn_err push(trn_kctx *k)
{
    list *l;
    TRN_TRY(in_typed(&l, k, 0));
    TRN_TRY(may_push(l, &trn_in(k, 1)->shape, -1));
    TRN_TRY(out_changed(&l, k, 0, 0));
    return list_push(l, trn_tensor_ref(trn_in(k, 1)));
}

static trn_err push_batch(trn_kctx *k)
{
    const trn_tensor *ls = trn_in(k, 0), *v = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(v->shape.rank >= 1, "Expected tensor to be at least a vector, but saw shape: []");
    TRN_CHECK_ARG(
        ls->shape.rank == 1 && ls->count == v->shape.dim[0],
        "Expected tensor.shape[0] to be equal to input_handles.size, but saw: %lld lists and a tensor of shape %s",
        (long long)ls->count, trn_shape_text(text, &v->shape));
    trn_shape row = without_first(&v->shape);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_VARIANT, &ls->shape));
    for (int64_t i = 0; i < ls->count; i++) {
        list *l, *c;
        TRN_TRY(as_list(&l, item(ls, i)));
        TRN_TRY(same_dtype(l, v->dtype));
        TRN_TRY(may_push(l, &row, i));
        TRN_TRY(list_copy(&c, l));
        TRN_DATA_MUT(y, trn_variant *)[i] = &c->base;
        trn_tensor *t;
        TRN_TRY(rows(&t, v, i, 1, true));
        TRN_TRY(list_push(c, t));
    }
    return TRN_OK;
}

static trn_err pop(trn_kctx *k)
{
    list *l;
    TRN_TRY(in_typed(&l, k, 0));
    TRN_CHECK_ARG(l->n, "Trying to pop from an empty list.");
    trn_tensor *t = l->t[l->n - 1];
    if (t) {
        t = trn_tensor_ref(t);
    } else {
        trn_shape s;
        TRN_TRY(element_shape(&s, k, 1, l));
        TRN_TRY(full_shape(&s, "Trying to read an uninitialized tensor"));
        TRN_TRY(zeros(&t, l->dtype, &s));
    }
    trn_out_set(k, 1, t);
    TRN_TRY(out_changed(&l, k, 0, 0));
    return list_resize(l, l->n - 1);
}

static trn_err set_item(trn_kctx *k)
{
    list *l;
    int64_t i;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    const trn_tensor *v = trn_in(k, 2);
    TRN_TRY(in_typed(&l, k, 0));
    TRN_TRY(scalar_i32(&i, k, 1, "index"));
    TRN_CHECK_ARG(
        trn_shape_compatible(&l->shape, &v->shape),
        "Tried to set a tensor with incompatible shape at a list index. Item element shape: %s list shape: %s",
        trn_shape_text(a, &v->shape), trn_shape_text(b, &l->shape));
    bool grows = trn_attr_bool(k->node, "resize_if_index_out_of_bounds");
    TRN_CHECK_ARG(i >= 0 && (grows || i < l->n), "Trying to modify element %lld in a list with %lld elements.",
                  (long long)i, (long long)l->n);
    TRN_TRY(out_changed(&l, k, 0, 0));
    if (i >= l->n)
        TRN_TRY(list_resize(l, i + 1));
    trn_tensor_unref(l->t[i]);
    l->t[i] = trn_tensor_ref(v);
    return TRN_OK;
}

static trn_err resize(trn_kctx *k)
{
    list *l;
    int64_t n;
    TRN_TRY(in_list(&l, k, 0));
    TRN_TRY(scalar_i32(&n, k, 1, "size"));
    TRN_CHECK_ARG(n >= 0, "TensorListSlice expects size to be non-negative. Got: %lld", (long long)n);
    TRN_TRY(out_changed(&l, k, 0, 0));
    return list_resize(l, n);
}

static trn_err concat_two(list **out, trn_variant *va, trn_variant *vb, trn_dtype dtype)
{
    list *a, *b;
    TRN_TRY(as_list(&a, va));
    TRN_TRY(as_list(&b, vb));
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(same_dtype(a, dtype));
    TRN_TRY(same_dtype(b, dtype));
    TRN_CHECK_ARG(trn_shape_compatible(&a->shape, &b->shape) && a->shape.rank == b->shape.rank &&
                      (a->shape.rank < 0 || trn_shape_eq(&a->shape, &b->shape)),
                  "input_a and input_b TensorList element shapes are not identical: %s vs. %s",
                  trn_shape_text(ta, &a->shape), trn_shape_text(tb, &b->shape));
    list *l;
    TRN_TRY(list_copy(&l, a));
    trn_err err = list_resize(l, a->n + b->n);
    if (err) {
        trn_variant_unref(&l->base);
        return err;
    }
    for (int64_t i = 0; i < b->n; i++)
        l->t[a->n + i] = b->t[i] ? trn_tensor_ref(b->t[i]) : NULL;
    *out = l;
    return TRN_OK;
}

static trn_err concat_lists(trn_kctx *k)
{
    const trn_tensor *a = trn_in(k, 0), *b = trn_in(k, 1);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&a->shape, &b->shape), "Incompatible input TensorList tensor shapes: %s vs. %s",
                  trn_shape_text(ta, &a->shape), trn_shape_text(tb, &b->shape));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_VARIANT, &a->shape));
    for (int64_t i = 0; i < a->count; i++) {
        list *l;
        TRN_TRY(concat_two(&l, item(a, i), item(b, i), trn_attr_type(k->node, "element_dtype")));
        TRN_DATA_MUT(y, trn_variant *)[i] = &l->base;
    }
    return TRN_OK;
}

/* ---- reading lists --------------------------------------------------------------------------------------------------- */

static trn_err length(trn_kctx *k)
{
    list *l;
    TRN_TRY(in_list(&l, k, 0));
    trn_out_set(k, 0, trn_tensor_i32((int32_t)l->n));
    return TRN_OK;
}

static trn_err shape_of(trn_kctx *k)
{
    list *l;
    TRN_TRY(in_list(&l, k, 0));
    trn_shape s = l->shape.rank < 0 ? trn_shape_scalar() : trn_shape_vector(l->shape.rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, k->node->out_types[0], &s));
    if (l->shape.rank < 0)
        trn_int_put(y, 0, -1);
    for (int i = 0; i < l->shape.rank; i++)
        trn_int_put(y, i, l->shape.dim[i]);
    return TRN_OK;
}

static trn_err meet_all(trn_shape *s, const list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        if (l->t[i])
            TRN_TRY(trn_sh_meet(s, s, &l->t[i]->shape));
    return TRN_OK;
}

static trn_err get_item(trn_kctx *k)
{
    list *l;
    int64_t i;
    TRN_TRY(in_typed(&l, k, 0));
    TRN_TRY(scalar_i32(&i, k, 1, "index"));
    TRN_CHECK_ARG(i >= 0 && i < l->n, "Trying to access element %lld in a list with %lld elements.", (long long)i,
                  (long long)l->n);
    if (l->t[i]) {
        trn_out_set(k, 0, trn_tensor_ref(l->t[i]));
        return TRN_OK;
    }
    trn_shape s;
    trn_tensor *t;
    TRN_TRY(element_shape(&s, k, 2, l));
    if (!trn_shape_is_full(&s))
        TRN_TRY(meet_all(&s, l));
    TRN_TRY(full_shape(&s, "Trying to read an uninitialized tensor"));
    TRN_TRY(zeros(&t, l->dtype, &s));
    trn_out_set(k, 0, t);
    return TRN_OK;
}

/* The elements at index[0 … n) (NULL: the first n) one after the other; all have the shape s. */
static trn_err stack_up(trn_kctx *k, const list *l, const int32_t *index, int64_t n, const trn_shape *s)
{
    trn_shape all;
    trn_tensor *y;
    TRN_TRY(with_first(&all, n, s));
    TRN_TRY(trn_out_new(&y, k, 0, l->dtype, &all));
    int64_t each = n ? y->count / n : 0;
    for (int64_t i = 0; i < n; i++) {
        const trn_tensor *t = l->t[index ? index[i] : i];
        if (!t) {
            trn_zero_elems(y, i * each, each);
            continue;
        }
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(trn_shape_eq(&t->shape, s), "list element %lld has shape %s, not %s",
                      (long long)(index ? index[i] : i), trn_shape_text(a, &t->shape), trn_shape_text(b, s));
        TRN_TRY(trn_tensor_copy_elems(y, i * each, t, 0, each));
    }
    return TRN_OK;
}

static trn_err stack(trn_kctx *k)
{
    list *l;
    trn_shape s;
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(in_typed(&l, k, 0));
    int64_t want = trn_attr_int(k->node, "num_elements");
    TRN_CHECK_ARG(want == -1 || l->n == want,
                  "Operation expected a list with %lld elements but got a list with %lld elements.", (long long)want,
                  (long long)l->n);
    TRN_TRY(element_shape(&s, k, 1, l));
    TRN_CHECK_ARG(trn_shape_is_full(&s) || l->n,
                  "Tried to stack elements of an empty list with non-fully-defined element_shape: %s",
                  trn_shape_text(text, &s));
    if (!trn_shape_is_full(&l->shape))
        TRN_TRY(meet_all(&s, l));
    TRN_CHECK_ARG(trn_shape_is_full(&s), "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape: %s",
                  trn_shape_text(text, &s));
    return stack_up(k, l, NULL, l->n, &s);
}

static trn_err gather(trn_kctx *k)
{
    list *l;
    trn_shape s;
    char text[TRN_SHAPE_TEXT];
    const trn_tensor *index = trn_in(k, 1);
    TRN_TRY(in_typed(&l, k, 0));
    TRN_TRY(element_shape(&s, k, 2, l));
    TRN_CHECK_ARG(trn_shape_is_full(&s) || index->count,
                  "Tried to gather 0-elements from a list with non-fully-defined shape: %s", trn_shape_text(text, &s));
    for (int64_t j = 0; j < index->count; j++) {
        int64_t i = TRN_DATA(index, int32_t)[j];
        TRN_CHECK_ARG(i >= 0 && i < l->n, "Trying to gather element %lld in a list with %lld elements.", (long long)i,
                      (long long)l->n);
        if (l->t[i] && !trn_shape_is_full(&l->shape))
            TRN_TRY(trn_sh_meet(&s, &s, &l->t[i]->shape));
    }
    TRN_CHECK_ARG(trn_shape_is_full(&s), "Tried to gather uninitialized tensors from a list with non-fully-defined element_shape: %s",
                  trn_shape_text(text, &s));
    return stack_up(k, l, TRN_DATA(index, int32_t), index->count, &s);
}

/* What a concatenation's parts have in common: *rest without the first dim, *first if all have the same (-1: they differ or it is unknown). */
static trn_err concat_shape(trn_shape *rest, int64_t *first, const trn_kctx *k, const list *l)
{
    const trn_shape *attr = trn_attr_shape(k->node, "element_shape");
    char text[TRN_SHAPE_TEXT];
    *rest = trn_shape_unknown();
    *first = -1;
    if (k->n_in > 1) {
        trn_shape s;
        TRN_TRY(element_shape(&s, k, 1, l));
        TRN_CHECK_ARG(s.rank != 0, "Concat requires elements to be at least vectors, found scalars instead.");
        *first = s.rank > 0 ? s.dim[0] : -1;
        *rest = without_first(&s);
    } else if (attr->rank >= 0) {
        TRN_CHECK_ARG(attr->rank > 0, "element_shape must not be empty");
        *rest = without_first(attr);
    }
    TRN_CHECK_ARG(
        l->n || trn_shape_is_full(rest),
        "All except the first dimension must be fully defined when concating an empty tensor list. element_shape: %s",
        trn_shape_text(text, rest));
    if (trn_shape_is_full(&l->shape))
        return TRN_OK;
    bool infer = *first == -1;
    int64_t seen = -1;
    for (int64_t i = 0; i < l->n; i++) {
        if (!l->t[i])
            continue;
        const trn_shape *s = &l->t[i]->shape;
        TRN_CHECK_ARG(s->rank > 0, "Concat saw a scalar shape at index %lld but requires at least vectors.",
                      (long long)i);
        trn_shape r = without_first(s);
        TRN_TRY(trn_sh_meet(rest, rest, &r));
        TRN_CHECK_ARG(infer || *first == s->dim[0],
                      "First entry of element_shape input does not match the first dim of list element at index: %lld "
                      "Expected: %lld Actual: %lld",
                      (long long)i, (long long)*first, (long long)s->dim[0]);
        seen = seen == -1 ? s->dim[0] : seen == s->dim[0] ? seen : -2;
    }
    if (infer && seen >= 0)
        *first = seen;
    return TRN_OK;
}

static trn_err concat_length(int64_t *out, const trn_kctx *k, const list *l, int64_t i, int64_t first)
{
    int64_t n_dims = k->n_in > 2 ? trn_in(k, 2)->count : 0;
    if (l->t[i]) {
        TRN_CHECK_ARG(l->t[i]->shape.rank > 0, "Concat saw a scalar shape at index %lld but requires at least vectors.",
                      (long long)i);
        *out = l->t[i]->shape.dim[0];
    } else if (i >= n_dims && first != -1) {
        *out = first;
    } else {
        TRN_CHECK_ARG(
            k->n_in > 2,
            "Concating lists with uninitialized tensors is not supported in this version of TensorListConcat.");
        TRN_CHECK_ARG(i < n_dims,
                      "List contains uninitialized tensor at index %lld but leading_dims has only %lld elements.",
                      (long long)i, (long long)n_dims);
        *out = TRN_DATA(trn_in(k, 2), int64_t)[i];
        TRN_CHECK_ARG(*out >= 0, "leading_dims[%lld] is %lld", (long long)i, (long long)*out);
    }
    return TRN_OK;
}

static trn_err concat(trn_kctx *k)
{
    list *l;
    trn_shape rest, all;
    int64_t first, total = 0, at = 0;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(in_typed(&l, k, 0));
    TRN_TRY(concat_shape(&rest, &first, k, l));
    TRN_CHECK_ARG(trn_shape_is_full(&rest),
                  "Trying to concat list with only uninitialized tensors but element_shape_except_first_dim is not fully defined: %s", trn_shape_text(a, &rest));
    trn_shape n = trn_shape_vector(l->n);
    trn_tensor *lengths, *y;
    TRN_TRY(trn_out_new(&lengths, k, 1, TRN_INT64, &n));
    int64_t *len = TRN_DATA_MUT(lengths, int64_t);
    for (int64_t i = 0; i < l->n; i++) {
        TRN_TRY(concat_length(&len[i], k, l, i, first));
        TRN_CHECK_ARG(!__builtin_add_overflow(total, len[i], &total), "the result is too large");
    }
    TRN_TRY(with_first(&all, total, &rest));
    TRN_TRY(trn_out_new(&y, k, 0, l->dtype, &all));
    int64_t per_row = total ? y->count / total : 0;
    for (int64_t i = 0; i < l->n; i++) {
        if (l->t[i]) {
            trn_shape r = without_first(&l->t[i]->shape);
            TRN_CHECK_ARG(trn_shape_eq(&r, &rest), "list element %lld has shape %s after its first dimension, not %s",
                          (long long)i, trn_shape_text(a, &r), trn_shape_text(b, &rest));
            TRN_TRY(trn_tensor_copy_elems(y, at, l->t[i], 0, l->t[i]->count));
        } else {
            trn_zero_elems(y, at, len[i] * per_row);
        }
        at += len[i] * per_row;
    }
    return TRN_OK;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------------ */

trn_err trn_tensor_sum(trn_tensor **out, const trn_tensor *a, const trn_tensor *b)
{
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(a->dtype == b->dtype && trn_shape_eq(&a->shape, &b->shape), "cannot add %s%s and %s%s",
                  trn_dtype_name(a->dtype), trn_shape_text(ta, &a->shape), trn_dtype_name(b->dtype),
                  trn_shape_text(tb, &b->shape));
    TRN_CHECK_ARG(a->dtype == TRN_VARIANT || trn_accum_has(TRN_ACC_ADD, a->dtype), "Trying to add tensors of dtype %s",
                  trn_dtype_name(a->dtype));
    trn_tensor *y;
    trn_err err = TRN_OK;
    if (a->dtype != TRN_VARIANT) {
        TRN_TRY(trn_tensor_copy(&y, a));
        trn_accum(TRN_ACC_ADD, a->dtype, y->data, b->data, b->count);
    } else {
        TRN_TRY(trn_tensor_new(&y, TRN_VARIANT, &a->shape));
        for (int64_t i = 0; i < y->count && !err; i++)
            err = trn_variant_add(&TRN_DATA_MUT(y, trn_variant *)[i], item(a, i), item(b, i));
    }
    if (err)
        trn_tensor_unref(y);
    else
        *out = y;
    return err;
}

trn_err trn_tensor_zeros_like(trn_tensor **out, const trn_tensor *t)
{
    trn_tensor *y;
    trn_err err = TRN_OK;
    TRN_TRY(zeros(&y, t->dtype, &t->shape));
    if (t->dtype == TRN_VARIANT)
        for (int64_t i = 0; i < y->count && !err; i++)
            err = trn_variant_zeros_like(&TRN_DATA_MUT(y, trn_variant *)[i], item(t, i));
    if (err)
        trn_tensor_unref(y);
    else
        *out = y;
    return err;
}

static trn_err add_elements(list *l, const list *b)
{
    for (int64_t i = 0; i < l->n; i++) {
        if (!b->t[i])
            continue;
        trn_tensor *sum;
        if (l->t[i])
            TRN_TRY(trn_tensor_sum(&sum, l->t[i], b->t[i]));
        else
            sum = trn_tensor_ref(b->t[i]);
        trn_tensor_unref(l->t[i]);
        l->t[i] = sum;
    }
    return TRN_OK;
}

static trn_err list_add(trn_variant **out, const trn_variant *va, const trn_variant *vb)
{
    const list *a = (const list *)va, *b = (const list *)vb;
    trn_shape s;
    TRN_CHECK_ARG(a->dtype == b->dtype,
                  "Trying to add two lists of tensors of different dtypes. One is %s and the other is %s",
                  trn_dtype_name(a->dtype), trn_dtype_name(b->dtype));
    if (!trn_shape_compatible(&a->shape, &b->shape)) {
        char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
        return TRN_BAD("Trying to add two lists of tensors with incompatible element shapes. One is %s and the other is %s", trn_shape_text(ta, &a->shape),
                       trn_shape_text(tb, &b->shape));
    }
    TRN_TRY(trn_sh_meet(&s, &a->shape, &b->shape));
    TRN_CHECK_ARG(a->n == b->n,
                  "Trying to add two lists of tensors with different lengths. One is %lld and the other is %lld",
                  (long long)a->n, (long long)b->n);
    list *l;
    TRN_TRY(list_copy(&l, a));
    l->shape = s;
    trn_err err = add_elements(l, b);
    if (err)
        trn_variant_unref(&l->base);
    else
        *out = &l->base;
    return err;
}

static trn_err list_zeros(trn_variant **out, const trn_variant *v)
{
    const list *x = (const list *)v;
    list *l = list_new(x->dtype, &x->shape);
    trn_err err = list_resize(l, x->n);
    for (int64_t i = 0; i < x->n && !err; i++)
        if (x->t[i])
            err = trn_tensor_zeros_like(&l->t[i], x->t[i]);
    if (err)
        trn_variant_unref(&l->base);
    else
        *out = &l->base;
    return err;
}

/* Variants that hold each other: how deep this thread is in one, and how many it has met there. Few of them may stand for more than anybody can wait for. */
#define MAX_NESTED 100
#define MAX_MET (1 << 20)
static _Thread_local struct {
    int depth, met;
} walk;

static trn_err walk_in(const trn_variant *v)
{
    if (walk.depth == 0)
        walk.met = 0;
    if (walk.depth == MAX_NESTED || walk.met == MAX_MET)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a %s that holds variants more than %d deep, or more than %d", v->type->name, MAX_NESTED, MAX_MET);
    walk.depth++;
    walk.met++;
    return TRN_OK;
}

static trn_err walk_out(TRN_OWN trn_err err)
{
    walk.depth--;
    return err;
}

trn_err trn_variant_add(trn_variant **out, trn_variant *a, trn_variant *b)
{
    if (!a || !b) {
        *out = a ? trn_variant_ref(a) : b ? trn_variant_ref(b) : NULL;
        return TRN_OK;
    }
    if (a->type != b->type || !a->type->add)
        return trn_errorf(TRN_UNIMPLEMENTED, "a %s and a %s cannot be added", a->type->name, b->type->name);
    TRN_TRY(walk_in(a));
    return walk_out(a->type->add(out, a, b));
}

trn_err trn_variant_zeros_like(trn_variant **out, trn_variant *v)
{
    if (!v) {
        *out = NULL;
        return TRN_OK;
    }
    if (!v->type->zeros_like)
        return trn_errorf(TRN_UNIMPLEMENTED, "there are no zeros like a %s", v->type->name);
    TRN_TRY(walk_in(v));
    return walk_out(v->type->zeros_like(out, v));
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

#define SHAPED "element_dtype:type, shape_type:i32|i64"
#define SHAPED_T "element_dtype:any, shape_type:i32|i64"

const trn_op trn_ops_list[] = {
    {"EmptyTensorList", "element_shape:shape_type, max_num_elements:i32 -> handle:var; " SHAPED, trn_sh_scalar, empty,
     TRN_OP_CHEAP},
    {"TensorListReserve", "element_shape:shape_type, num_elements:i32 -> handle:var; " SHAPED, trn_sh_scalar, reserve,
     TRN_OP_CHEAP},
    {"TensorListFromTensor", "tensor:element_dtype, element_shape:shape_type -> output_handle:var; " SHAPED_T,
     trn_sh_scalar, from_tensor, 0},
    {"TensorListScatter", "tensor:element_dtype, indices:i32, element_shape:shape_type -> output_handle:var; " SHAPED_T,
     trn_sh_scalar, scatter, 0},
    {"TensorListScatterV2",
     "tensor:element_dtype, indices:i32, element_shape:shape_type, num_elements:i32 -> output_handle:var; " SHAPED_T,
     trn_sh_scalar, scatter, 0},
    {"TensorListScatterIntoExistingList",
     "input_handle:var, tensor:element_dtype, indices:i32 -> output_handle:var; element_dtype:any", trn_sh_scalar,
     scatter_existing, 0},
    {"TensorListSplit", "tensor:element_dtype, element_shape:shape_type, lengths:i64 -> output_handle:var; " SHAPED_T,
     trn_sh_scalar, split, 0},
    {"TensorListPushBack", "input_handle:var, tensor:element_dtype -> output_handle:var; element_dtype:any",
     trn_sh_scalar, push, TRN_OP_CHEAP},
    {"TensorListPushBackBatch", "input_handles:var, tensor:element_dtype -> output_handles:var; element_dtype:any",
     trn_sh_same, push_batch, 0},
    {"TensorListPopBack",
     "input_handle:var, element_shape:i32 -> output_handle:var, tensor:element_dtype; element_dtype:any",
     trn_sh_unknown, pop, 0},
    {"TensorListSetItem",
     "input_handle:var, index:i32, item:element_dtype -> output_handle:var; element_dtype:any, "
     "resize_if_index_out_of_bounds:bool=false",
     trn_sh_scalar, set_item, TRN_OP_CHEAP},
    {"TensorListResize", "input_handle:var, size:i32 -> output_handle:var", trn_sh_scalar, resize, TRN_OP_CHEAP},
    {"TensorListConcatLists", "input_a:var, input_b:var -> output:var; element_dtype:type", trn_sh_same, concat_lists,
     0},
    {"TensorListLength", "input_handle:var -> length:i32", trn_sh_scalar, length, TRN_OP_CHEAP},
    {"TensorListElementShape", "input_handle:var -> element_shape:shape_type; shape_type:i32|i64", trn_sh_unknown,
     shape_of, TRN_OP_CHEAP},
    {"TensorListGetItem", "input_handle:var, index:i32, element_shape:i32 -> item:element_dtype; element_dtype:any",
     trn_sh_unknown, get_item, 0},
    {"TensorListStack",
     "input_handle:var, element_shape:i32 -> tensor:element_dtype; element_dtype:any, num_elements:int=-1",
     trn_sh_unknown, stack, 0},
    {"TensorListGather", "input_handle:var, indices:i32, element_shape:i32 -> values:element_dtype; element_dtype:any",
     trn_sh_unknown, gather, 0},
    {"TensorListConcat",
     "input_handle:var -> tensor:element_dtype, lengths:i64; element_dtype:any, element_shape:shape=?", trn_sh_unknown,
     concat, 0},
    {"TensorListConcatV2",
     "input_handle:var, element_shape:shape_type, leading_dims:i64 -> tensor:element_dtype, lengths:i64; " SHAPED_T,
     trn_sh_unknown, concat, 0},
    {0},
};
