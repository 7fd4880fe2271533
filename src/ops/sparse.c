/* Sparse tensors: to dense, and everything that moves entries without computing with them. */
#include "ops/sparse.h"

#include <stdlib.h>

/* ---- shared (sparse.h) ------------------------------------------------------------------------------------------------ */

trn_err trn_sparse_shape(trn_shape *out, const trn_tensor *t, const char *what)
{
    char text[TRN_SHAPE_TEXT];
    trn_shape s;
    TRN_CHECK_ARG(trn_is_vector(t), "%s should be a vector but received shape %s", what,
                  trn_shape_text(text, &t->shape));
    TRN_CHECK_ARG(t->count <= TRN_MAX_RANK, "%s has %lld dimensions; at most %d are supported", what,
                  (long long)t->count, TRN_MAX_RANK);
    s.rank = (int32_t)t->count;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = trn_int_at(t, i);
        TRN_CHECK_ARG(s.dim[i] >= 0, "%s: dimension %d is %lld; must be >= 0", what, i, (long long)s.dim[i]);
    }
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    *out = s;
    return TRN_OK;
}

trn_err trn_sparse_of(trn_sparse *out, const trn_tensor *indices, const trn_tensor *values, const trn_tensor *shape)
{
    char a[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(indices->shape.rank == 2, "Sparse indices must be rank 2 but is rank %d", indices->shape.rank);
    *out = (trn_sparse){.indices = indices, .values = values, .ix = indices->data, .n = indices->shape.dim[0]};
    TRN_CHECK_ARG(!values || trn_is_vector(values), "Sparse values must be a vector, not of shape %s", trn_shape_text(a, &values->shape));
    TRN_CHECK_ARG(!values || values->count == out->n,
                  "Number of elements in indices (%lld) and values (%lld) do not match: Dimensions %lld and %lld are not compatible", (long long)out->n,
                  (long long)values->count, (long long)out->n, (long long)values->count);
    TRN_TRY(trn_sparse_shape(&out->shape, shape, "Sparse shape"));
    out->rank = out->shape.rank;
    TRN_CHECK_ARG(indices->shape.dim[1] == out->rank, "Index rank (%lld) and shape rank (%d) do not match",
                  (long long)indices->shape.dim[1], out->rank);
    return TRN_OK;
}

trn_err trn_sparse_in(trn_sparse *out, const trn_kctx *k, int i)
{
    return trn_sparse_of(out, trn_in(k, i), trn_in(k, i + 1), trn_in(k, i + 2));
}

trn_err trn_sparse_in_bounds(const trn_sparse *s)
{
    char text[TRN_SHAPE_TEXT];
    for (int64_t i = 0; i < s->n; i++)
        for (int d = 0; d < s->rank; d++) {
            int64_t v = trn_sparse_row(s, i)[d];
            TRN_CHECK_ARG(v >= 0 && v < s->shape.dim[d],
                          "indices[%lld,%d] = %lld is out of bounds, Index out of range: the dense shape is %s", (long long)i, d,
                          (long long)v, trn_shape_text(text, &s->shape));
        }
    return TRN_OK;
}

typedef struct sort_by {
    const int64_t *ix;
    int rank, n_order;
    const int *order;
} sort_by;

static int by_index(const void *pa, const void *pb, void *arg)
{
    const sort_by *s = arg;
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    for (int i = 0; i < s->n_order; i++) {
        int d = s->order ? s->order[i] : i;
        int64_t x = s->ix[a * s->rank + d], y = s->ix[b * s->rank + d];
        if (x != y)
            return x < y ? -1 : 1;
    }
    return a < b ? -1 : a > b;
}

trn_err trn_sparse_sort(int64_t **out, const int64_t *ix, int64_t n, int rank, const int *order, int n_order)
{
    sort_by s = {ix, rank, order ? n_order : rank, order};
    int64_t *p = malloc((size_t)(n ? n : 1) * sizeof *p);
    if (!p)
        return trn_err_oom();
    bool sorted = true;
    for (int64_t i = 0; i < n; i++) {
        p[i] = i;
        sorted &= i == 0 || by_index(&p[i - 1], &p[i], &s) < 0;
    }
    if (!sorted)
        qsort_r(p, (size_t)n, sizeof *p, by_index, &s);
    *out = p;
    return TRN_OK;
}

trn_err trn_sparse_out(trn_tensor **indices, trn_tensor **values, trn_kctx *k, int o, int step, int64_t n, int rank,
                       trn_dtype dtype)
{
    trn_shape is = trn_shape_of(2, n, (int64_t)rank), vs = trn_shape_vector(n);
    TRN_TRY(trn_out_new(indices, k, o, TRN_INT64, &is));
    return values ? trn_out_new(values, k, o + step, dtype, &vs) : TRN_OK;
}

trn_err trn_sparse_out_shape(trn_kctx *k, int o, const trn_shape *s)
{
    trn_shape n = trn_shape_vector(s->rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, o, TRN_INT64, &n));
    memcpy(y->data, s->dim, (size_t)s->rank * sizeof *s->dim);
    return TRN_OK;
}

/* ---- SparseToDense ---------------------------------------------------------------------------------------------------- */

/* Element i's place in the dense tensor; INVALID_ARGUMENT when it has none. */
static trn_err dense_at(int64_t *out, const trn_tensor *ix, int64_t i, const trn_shape *s)
{
    int64_t at = 0;
    for (int d = 0; d < s->rank; d++) {
        int64_t v = trn_int_at(ix, i * s->rank + d);
        char text[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(v >= 0 && v < s->dim[d], "sparse_indices[%lld,%d] = %lld is out of bounds: need 0 <= index < %s",
                      (long long)i, d, (long long)v, trn_shape_text(text, s));
        at = at * s->dim[d] + v;
    }
    *out = at;
    return TRN_OK;
}

static trn_err to_dense(trn_kctx *k)
{
    const trn_tensor *ix = trn_in(k, 0), *shape = trn_in(k, 1), *v = trn_in(k, 2), *dflt = trn_in(k, 3);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(ix->shape.rank <= 2, "sparse_indices should be a scalar, vector, or matrix, got shape %s",
                  trn_shape_text(text, &ix->shape));
    int64_t n = ix->shape.rank ? ix->shape.dim[0] : 1, rank = ix->shape.rank == 2 ? ix->shape.dim[1] : 1;
    trn_shape s;
    TRN_CHECK_ARG(trn_is_vector(shape), "output_shape must be rank 1, got shape %s", trn_shape_text(text, &shape->shape));
    TRN_TRY(trn_sparse_shape(&s, shape, "output_shape"));
    TRN_CHECK_ARG(s.rank == rank, "output_shape has incorrect number of elements: %d should be: %lld", s.rank,
                  (long long)rank);
    TRN_CHECK_ARG(v->shape.rank == 0 || (v->shape.rank == 1 && v->count == n),
                  "sparse_values has incorrect shape %s, should be [] or [%lld]", trn_shape_text(text, &v->shape),
                  (long long)n);
    TRN_CHECK_ARG(trn_is_scalar(dflt), "default_value should be a scalar.");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, v->dtype, &s));
    TRN_TRY(trn_fill_elems(y, 0, y->count, dflt, 0));
    bool strict = trn_attr_bool(k->node, "validate_indices");
    for (int64_t i = 0, last = -1; i < n; i++) {
        int64_t at;
        TRN_TRY(dense_at(&at, ix, i, &s));
        TRN_CHECK_ARG(!strict || at > last, "sparse_indices[%lld] is %s", (long long)i,
                      at == last ? "repeated" : "out of order");
        TRN_TRY(trn_tensor_copy_elems(y, at, v, v->shape.rank ? i : 0, 1));
        last = at;
    }
    return TRN_OK;
}

/* ---- SparseReshape ---------------------------------------------------------------------------------------------------- */

static trn_err infer_shape(trn_shape *out, int64_t total, const trn_tensor *t)
{
    TRN_CHECK_ARG(trn_is_vector(t), "Target shape should be a vector but received rank %d", t->shape.rank);
    TRN_CHECK_ARG(t->count <= TRN_MAX_RANK, "Target shape has %lld dimensions", (long long)t->count);
    trn_shape s = {.rank = (int32_t)t->count};
    int unknown = -1;
    int64_t product = 1;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = TRN_DATA(t, int64_t)[i];
        if (s.dim[i] == -1) {
            TRN_CHECK_ARG(unknown < 0, "only one output dimension may be -1, not both %d and %d", unknown, i);
            unknown = i;
            continue;
        }
        TRN_CHECK_ARG(s.dim[i] >= 0, "size %d must be non-negative, not %lld", i, (long long)s.dim[i]);
        TRN_CHECK_ARG(!__builtin_mul_overflow(product, s.dim[i], &product), "the target shape is too large");
    }
    if (unknown >= 0) {
        TRN_CHECK_ARG(product > 0, "reshape cannot infer the missing input size for an empty tensor unless all "
                                   "specified input sizes are non-zero");
        TRN_CHECK_ARG(total % product == 0,
                      "Input to reshape is a SparseTensor with %lld dense values, but the requested shape requires a "
                      "multiple of %lld",
                      (long long)total, (long long)product);
        s.dim[unknown] = total / product;
        product = total;
    }
    TRN_CHECK_ARG(product == total,
                  "Input to reshape is a tensor with %lld dense values, but the requested shape has %lld",
                  (long long)total, (long long)product);
    *out = s;
    return TRN_OK;
}

static trn_err reshape(trn_kctx *k)
{
    const trn_tensor *ix = trn_in(k, 0);
    trn_sparse s;
    TRN_TRY(trn_sparse_of(&s, ix, NULL, trn_in(k, 1)));
    int64_t total;
    trn_shape to;
    TRN_TRY(trn_count_checked(&total, &s.shape));
    TRN_TRY(infer_shape(&to, total, trn_in(k, 2)));
    TRN_CHECK_ARG(!s.n || total > 0, "Input tensor has %lld non zero elements but input shape or output shape is empty",
                  (long long)s.n);
    TRN_TRY(trn_sparse_out_shape(k, 1, &to));
    trn_tensor *y;
    TRN_TRY(trn_sparse_out(&y, NULL, k, 0, 1, s.n, to.rank, 0));
    for (int64_t i = 0; i < s.n && y->count; i++) { /* of a scalar there may be any number of places without a coordinate */
        uint64_t at = 0; /* wraps for indices that lie outside: nobody can use them anyway */
        for (int d = 0; d < s.rank; d++)
            at = at * (uint64_t)s.shape.dim[d] + (uint64_t)trn_sparse_row(&s, i)[d];
        int64_t rest = (int64_t)at, stride = total;
        for (int d = 0; d < to.rank; d++) {
            stride /= to.dim[d];
            TRN_DATA_MUT(y, int64_t)[i * to.rank + d] = rest / stride;
            rest %= stride;
        }
    }
    return TRN_OK;
}

/* ---- rows without entries ------------------------------------------------------------------------------------------------ */

static trn_err fill_rows(trn_kctx *k, const trn_sparse *s, const trn_tensor *v, const trn_tensor *dflt, int64_t *at,
                         int64_t n_rows)
{
    trn_shape rows = trn_shape_vector(n_rows), n = trn_shape_vector(s->n);
    trn_tensor *empty, *map, *oi, *ov;
    TRN_TRY(trn_out_new(&empty, k, 2, TRN_BOOL, &rows));
    TRN_TRY(trn_out_new(&map, k, 3, TRN_INT64, &n));
    char text[TRN_SHAPE_TEXT];
    for (int64_t i = 0; i < s->n; i++) {
        int64_t r = trn_sparse_row(s, i)[0];
        TRN_CHECK_ARG(r >= 0 && r < n_rows, "indices(%lld, 0) is invalid: %lld is not in [0, %lld) (shape %s)",
                      (long long)i, (long long)r, (long long)n_rows, trn_shape_text(text, &s->shape));
        at[r]++;
    }
    int64_t total = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t count = at[r];
        TRN_DATA_MUT(empty, bool)[r] = !count;
        at[r] = total;
        total += count ? count : 1;
    }
    trn_shape is = s->indices->shape; /* a matrix, or a vector of rows (ragged) */
    is.dim[0] = total;
    if (!n_rows)
        is = trn_shape_of(2, (int64_t)0, (int64_t)s->rank); /* TensorFlow's, of both */
    n = trn_shape_vector(total);
    TRN_TRY(trn_out_new(&oi, k, 0, TRN_INT64, &is));
    TRN_TRY(trn_out_new(&ov, k, 1, v->dtype, &n));
    int64_t *ix = oi->data;
    for (int64_t r = 0; r < n_rows; r++)
        if (TRN_DATA(empty, bool)[r]) {
            memset(ix + at[r] * s->rank, 0, (size_t)s->rank * sizeof *ix);
            ix[at[r] * s->rank] = r;
            TRN_TRY(trn_tensor_copy_elems(ov, at[r], dflt, 0, 1));
        }
    for (int64_t i = 0; i < s->n; i++) {
        int64_t to = at[trn_sparse_row(s, i)[0]]++;
        memcpy(ix + to * s->rank, trn_sparse_row(s, i), (size_t)s->rank * sizeof *ix);
        TRN_TRY(trn_tensor_copy_elems(ov, to, v, i, 1));
        TRN_DATA_MUT(map, int64_t)[i] = to;
    }
    return TRN_OK;
}

static trn_err fill_empty(trn_kctx *k, const trn_sparse *s)
{
    const trn_tensor *v = trn_in(k, 1), *dflt = trn_in(k, 3);
    TRN_CHECK_ARG(trn_is_scalar(dflt), "default_value must be a scalar");
    int64_t n_rows = s->shape.dim[0];
    TRN_CHECK_ARG(n_rows || !s->n, "there are no rows, but %lld values", (long long)s->n);
    int64_t *at = n_rows <= (int64_t)(SIZE_MAX / sizeof *at) ? calloc((size_t)(n_rows ? n_rows : 1), sizeof *at) : NULL;
    if (!at)
        return trn_err_oom();
    trn_err err = fill_rows(k, s, v, dflt, at, n_rows);
    free(at);
    return err;
}

static trn_err fill_empty_rows(trn_kctx *k)
{
    trn_sparse s;
    TRN_CHECK_ARG(trn_is_vector(trn_in(k, 2)) && trn_in(k, 2)->count > 0,
                  "Dense shape must be a vector and cannot be empty.");
    TRN_TRY(trn_sparse_in(&s, k, 0));
    return fill_empty(k, &s);
}

/* A ragged tensor as the rows of its values: a sparse one without columns. */
static trn_err ragged_fill_empty_rows(trn_kctx *k)
{
    const trn_tensor *rows = trn_in(k, 0), *v = trn_in(k, 1), *n = trn_in(k, 2);
    TRN_CHECK_ARG(trn_is_scalar(n), "nrows must be a scalar");
    TRN_CHECK_ARG(trn_is_vector(rows) && trn_is_vector(v), "value_rowids and values must be vectors");
    TRN_CHECK_ARG(rows->count == v->count, "there are %lld values, but rows of %lld", (long long)v->count, (long long)rows->count);
    TRN_CHECK_ARG(trn_int_at(n, 0) >= 0, "nrows (%lld) must not be negative", (long long)trn_int_at(n, 0));
    trn_sparse s = {rows, v, TRN_DATA(rows, int64_t), rows->count, 1, trn_shape_vector(trn_int_at(n, 0))};
    return fill_empty(k, &s);
}

static trn_err fill_empty_rows_grad(trn_kctx *k)
{
    const trn_tensor *map = trn_in(k, 0), *g = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_vector(map), "reverse_index_map must be a vector");
    TRN_CHECK_ARG(trn_is_vector(g), "grad_values must be a vector");
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *d, *dd;
    TRN_TRY(trn_out_new(&d, k, 0, g->dtype, &map->shape));
    TRN_TRY(trn_out_new(&dd, k, 1, g->dtype, &scalar));
    trn_zero_elems(dd, 0, 1);
    bool *seen = calloc((size_t)(g->count ? g->count : 1), 1);
    if (!seen)
        return trn_err_oom();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < map->count && !err; i++) {
        int64_t at = TRN_DATA(map, int64_t)[i];
        if (at < 0 || at >= g->count) {
            err = TRN_BAD("Elements in reverse index must be in [0, %lld) but got %lld", (long long)g->count,
                          (long long)at);
            break;
        }
        seen[at] = true;
        err = trn_tensor_copy_elems(d, i, g, at, 1);
    }
    size_t size = trn_dtype_size(g->dtype);
    for (int64_t i = 0; i < g->count && !err; i++)
        if (!seen[i])
            trn_accum(TRN_ACC_ADD, g->dtype, dd->data, (const char *)g->data + (size_t)i * size, 1);
    free(seen);
    return err;
}

/* ---- order, concatenation, pieces ---------------------------------------------------------------------------------------- */

static trn_err permute(trn_kctx *k, const int64_t *ix, const trn_tensor *v, int rank, const int64_t *p)
{
    trn_tensor *oi, *ov;
    TRN_TRY(trn_sparse_out(&oi, &ov, k, 0, 1, v->count, rank, v->dtype));
    for (int64_t i = 0; i < v->count; i++) {
        memcpy(TRN_DATA_MUT(oi, int64_t) + i * rank, ix + p[i] * rank, (size_t)rank * sizeof *ix);
        TRN_TRY(trn_tensor_copy_elems(ov, i, v, p[i], 1));
    }
    return TRN_OK;
}

static trn_err reorder(trn_kctx *k)
{
    trn_sparse s;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    int64_t *p;
    TRN_TRY(trn_sparse_sort(&p, s.ix, s.n, s.rank, NULL, 0));
    trn_err err = permute(k, s.ix, s.values, s.rank, p);
    free(p);
    return err;
}

static trn_err concat_check(trn_shape *out, trn_sparse *parts, const trn_kctx *k, int n, int dim)
{
    for (int i = 0; i < n; i++) {
        TRN_TRY(trn_sparse_of(&parts[i], trn_in(k, i), trn_in(k, n + i), trn_in(k, 2 * n + i)));
        if (i == 0) {
            *out = parts[0].shape;
            TRN_CHECK_ARG(dim >= -out->rank && dim < out->rank, "Concat dimension must be in range [%d, %d), got %d",
                          -out->rank, out->rank, dim);
            dim = dim < 0 ? dim + out->rank : dim;
            continue;
        }
        TRN_CHECK_ARG(parts[i].rank == out->rank,
                      "Ranks of all input tensors must match: expected %d but got %d at position %d", out->rank,
                      parts[i].rank, i);
        for (int d = 0; d < out->rank; d++)
            TRN_CHECK_ARG(d == dim || parts[i].shape.dim[d] == out->dim[d],
                          "Input shapes must match: expected %lld for dimension %d but got %lld at position %d",
                          (long long)out->dim[d], d, (long long)parts[i].shape.dim[d], i);
        TRN_CHECK_ARG(!__builtin_add_overflow(out->dim[dim], parts[i].shape.dim[dim], &out->dim[dim]), "the result is too large");
        int64_t count;
        TRN_TRY(trn_count_checked(&count, out));
    }
    return TRN_OK;
}

static trn_err concat_parts(trn_kctx *k, const trn_sparse *parts, int n, int dim, const trn_shape *shape, int64_t total,
                            int64_t *ix)
{
    trn_shape vs = trn_shape_vector(total);
    trn_tensor *v;
    TRN_TRY(trn_tensor_new(&v, parts[0].values->dtype, &vs));
    trn_err err = TRN_OK;
    int64_t at = 0, offset = 0, *p = NULL;
    for (int i = 0; i < n && !err; i++) {
        const trn_sparse *s = &parts[i];
        memcpy(ix + at * s->rank, s->ix, (size_t)(s->n * s->rank) * sizeof *ix);
        for (int64_t e = 0; e < s->n; e++)
            ix[(at + e) * s->rank + dim] = (int64_t)((uint64_t)ix[(at + e) * s->rank + dim] + (uint64_t)offset);
        err = trn_tensor_copy_elems(v, at, s->values, 0, s->n);
        at += s->n;
        offset += s->shape.dim[dim];
    }
    if (!err)
        err = trn_sparse_sort(&p, ix, total, shape->rank, NULL, 0);
    if (!err)
        err = permute(k, ix, v, shape->rank, p);
    if (!err)
        err = trn_sparse_out_shape(k, 2, shape);
    free(p);
    trn_tensor_unref(v);
    return err;
}

static trn_err concat(trn_kctx *k)
{
    int n = k->n_in / 3, dim = (int)TRN_MAX(TRN_MIN(trn_attr_int(k->node, "concat_dim"), INT32_MAX), INT32_MIN);
    trn_sparse *parts = trn_xalloc((size_t)n * sizeof *parts);
    trn_shape shape;
    trn_err err = concat_check(&shape, parts, k, n, dim);
    if (!err) {
        int64_t total = 0;
        for (int i = 0; i < n; i++)
            total += parts[i].n;
        int64_t *ix = malloc((size_t)(total * shape.rank + 1) * sizeof *ix); /* as large as the inputs are together */
        err = ix ? concat_parts(k, parts, n, dim < 0 ? dim + shape.rank : dim, &shape, total, ix) : trn_err_oom();
        free(ix);
    }
    free(parts);
    return err;
}

/* Which of `n` pieces coordinate v belongs to: the first size % n of them are longer by one. */
static int64_t piece_of(int64_t *inside, int64_t v, int64_t size, int64_t n)
{
    int64_t each = size / n, longer = size % n, edge = longer * (each + 1);
    *inside = v < edge ? v % (each + 1) : (v - edge) % each;
    return v < edge ? v / (each + 1) : longer + (v - edge) / each;
}

static trn_err split_into(trn_kctx *k, const trn_sparse *s, int dim, int64_t n, int64_t *count)
{
    int64_t size = s->shape.dim[dim], inside;
    for (int64_t i = 0; i < s->n; i++)
        count[piece_of(&inside, trn_sparse_row(s, i)[dim], size, n)]++;
    for (int64_t j = 0; j < n; j++) {
        trn_tensor *oi, *ov;
        trn_shape part = s->shape;
        part.dim[dim] = size / n + (j < size % n);
        TRN_TRY(trn_sparse_out(&oi, &ov, k, (int)j, (int)n, count[j], s->rank, s->values->dtype));
        TRN_TRY(trn_sparse_out_shape(k, (int)(2 * n + j), &part));
        count[j] = 0;
    }
    for (int64_t i = 0; i < s->n; i++) {
        int64_t j = piece_of(&inside, trn_sparse_row(s, i)[dim], size, n);
        int64_t *to = TRN_DATA_MUT(k->out[j].t, int64_t) + count[j] * s->rank;
        memcpy(to, trn_sparse_row(s, i), (size_t)s->rank * sizeof *to);
        to[dim] = inside;
        TRN_TRY(trn_tensor_copy_elems(k->out[n + j].t, count[j]++, s->values, i, 1));
    }
    return TRN_OK;
}

static trn_err split(trn_kctx *k)
{
    const trn_tensor *d = trn_in(k, 0);
    int64_t n = trn_attr_int(k->node, "num_split");
    trn_sparse s;
    TRN_CHECK_ARG(d->count == 1, "split_dim: axis should be a scalar, or have one element");
    TRN_TRY(trn_sparse_in(&s, k, 1));
    TRN_TRY(trn_sparse_in_bounds(&s));
    int64_t dim = TRN_DATA(d, int64_t)[0];
    dim = dim < 0 ? dim + s.rank : dim;
    TRN_CHECK_ARG(dim >= 0 && dim < s.rank, "split_dim: axis should be in range [%d, %d), got %lld", -s.rank, s.rank,
                  (long long)TRN_DATA(d, int64_t)[0]);
    TRN_CHECK_ARG(n >= 1 && n <= s.shape.dim[dim],
                  "Input num_split should be between 1 and the splitting dimension size (%lld), got %lld",
                  (long long)s.shape.dim[dim], (long long)n);
    int64_t *count = trn_xalloc((size_t)n * sizeof *count);
    trn_err err = split_into(k, &s, (int)dim, n, count);
    free(count);
    return err;
}

static trn_err slice_shape(trn_shape *out, const trn_sparse *s, const int64_t *start, const int64_t *size)
{
    *out = s->shape;
    for (int d = 0; d < s->rank; d++) {
        int64_t in = s->shape.dim[d], rest;
        TRN_CHECK_ARG(!__builtin_sub_overflow(in, size[d], &rest), "size %lld is out of range", (long long)size[d]);
        if (start[d] < rest)
            out->dim[d] = size[d];
        else if (start[d] < in)
            TRN_CHECK_ARG(!__builtin_sub_overflow(in, start[d], &out->dim[d]), "start %lld is out of range",
                          (long long)start[d]);
        else
            out->dim[d] = 0;
        TRN_CHECK_ARG(out->dim[d] >= 0, "dimension %d of the slice would be %lld", d, (long long)out->dim[d]);
    }
    int64_t n;
    return trn_count_checked(&n, out);
}

static bool inside(const int64_t *row, const int64_t *start, const int64_t *size, int rank)
{
    for (int d = 0; d < rank; d++)
        if (row[d] < start[d] || (uint64_t)row[d] - (uint64_t)start[d] >= (uint64_t)size[d])
            return false;
    return true;
}

static trn_err slice(trn_kctx *k)
{
    trn_sparse s;
    TRN_TRY(trn_sparse_in(&s, k, 0));
    for (int i = 3; i < 5; i++)
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, i)) && trn_in(k, i)->count == s.rank,
                      "Expected %s to be a vector of length %d", i == 3 ? "start" : "size", s.rank);
    const int64_t *start = trn_in(k, 3)->data, *size = trn_in(k, 4)->data;
    trn_shape shape;
    TRN_TRY(slice_shape(&shape, &s, start, size));
    int64_t n = 0;
    for (int d = 0; d < s.rank; d++)
        TRN_CHECK_ARG(size[d] >= 0, "size[%d] is %lld", d, (long long)size[d]);
    for (int64_t i = 0; i < s.n; i++)
        n += inside(trn_sparse_row(&s, i), start, size, s.rank);
    trn_tensor *oi, *ov;
    TRN_TRY(trn_sparse_out(&oi, &ov, k, 0, 1, n, s.rank, s.values->dtype));
    TRN_TRY(trn_sparse_out_shape(k, 2, &shape));
    int64_t *to = oi->data, at = 0;
    for (int64_t i = 0; i < s.n; i++) {
        const int64_t *row = trn_sparse_row(&s, i);
        if (!inside(row, start, size, s.rank))
            continue;
        for (int d = 0; d < s.rank; d++)
            *to++ = row[d] - start[d];
        TRN_TRY(trn_tensor_copy_elems(ov, at++, s.values, i, 1));
    }
    return TRN_OK;
}

static trn_err slice_grad(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *ix = trn_in(k, 1), *start = trn_in(k, 2), *ox = trn_in(k, 3);
    TRN_CHECK_ARG(ix->shape.rank == 2 && ox->shape.rank == 2,
                  "Input and output indices should be matrices but received ranks %d and %d", ix->shape.rank,
                  ox->shape.rank);
    TRN_CHECK_ARG(trn_is_vector(g), "Input backprop_val_grad should be a vector but received rank %d", g->shape.rank);
    int64_t rank = ix->shape.dim[1], n = ix->shape.dim[0];
    TRN_CHECK_ARG(ox->shape.dim[1] == rank, "The input and output should have the same ndims: got: %lld and %lld",
                  (long long)rank, (long long)ox->shape.dim[1]);
    TRN_CHECK_ARG(ox->shape.dim[0] <= n, "# rows of output_indices should be not greater than of input_indices");
    TRN_CHECK_ARG(
        ox->shape.dim[0] == g->count,
        "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of sum): %lld and %lld",
        (long long)g->count, (long long)ox->shape.dim[0]);
    TRN_CHECK_ARG(trn_is_vector(start) && start->count == rank, "Expected start to be a vector of length %lld",
                  (long long)rank);
    trn_shape s = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, g->dtype, &s));
    trn_zero_elems(y, 0, n);
    int64_t j = 0;
    for (int64_t i = 0; i < n && j < g->count; i++) {
        bool same = true;
        for (int64_t d = 0; d < rank && same; d++)
            same = (uint64_t)TRN_DATA(ix, int64_t)[i * rank + d] ==
                   (uint64_t)TRN_DATA(ox, int64_t)[j * rank + d] + (uint64_t)TRN_DATA(start, int64_t)[d];
        if (same)
            TRN_TRY(trn_tensor_copy_elems(y, i, g, j++, 1));
    }
    if (j != g->count)
        return trn_errorf(TRN_INTERNAL,
                          "Elements of backprop_val_grad aren't all propagated. Num elements:%lld, used: %lld",
                          (long long)g->count, (long long)j);
    return TRN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

#define SP "indices:i64, values:T, shape:i64"
#define OUT "output_indices:i64, output_values:T, output_shape:i64"

const trn_op trn_ops_sparse[] = {
    {"SparseToDense",
     "sparse_indices:Tindices, output_shape:Tindices, sparse_values:T, default_value:T -> dense:T; "
     "validate_indices:bool=true, T:any, "
     "Tindices:i32|i64",
     trn_sh_in1_shape, to_dense, 0},
    {"SparseReshape", "input_indices:i64, input_shape:i64, new_shape:i64 -> output_indices:i64, output_shape:i64",
     trn_sh_unknown, reshape, 0},
    {"SparseFillEmptyRows",
     "indices:i64, values:T, dense_shape:i64, default_value:T -> output_indices:i64, output_values:T, "
     "empty_row_indicator:bool, "
     "reverse_index_map:i64; T:any",
     trn_sh_unknown, fill_empty_rows, 0},
    {"SparseFillEmptyRowsGrad", "reverse_index_map:i64, grad_values:T -> d_values:T, d_default_value:T; T:num",
     trn_sh_unknown, fill_empty_rows_grad, 0},
    {"RaggedFillEmptyRows",
     "value_rowids:i64, values:T, nrows:i64, default_value:T -> output_value_rowids:i64, output_values:T, "
     "empty_row_indicator:bool, reverse_index_map:i64; T:any",
     trn_sh_unknown, ragged_fill_empty_rows, 0},
    {"RaggedFillEmptyRowsGrad", "reverse_index_map:i64, grad_values:T -> d_values:T, d_default_value:T; T:num",
     trn_sh_unknown, fill_empty_rows_grad, 0},
    {"SparseReorder",
     "input_indices:i64, input_values:T, input_shape:i64 -> output_indices:i64, output_values:T; T:any", trn_sh_unknown,
     reorder, 0},
    {"SparseConcat", "indices:N*i64, values:N*T, shapes:N*i64 -> " OUT "; concat_dim:int, N:int>=2, T:any",
     trn_sh_unknown, concat, 0},
    {"SparseSplit",
     "split_dim:i64, " SP
     " -> output_indices:num_split*i64, output_values:num_split*T, output_shape:num_split*i64; num_split:int>=1, T:any",
     trn_sh_unknown, split, 0},
    {"SparseSlice", SP ", start:i64, size:i64 -> " OUT "; T:any", trn_sh_unknown, slice, 0},
    {"SparseSliceGrad",
     "backprop_val_grad:T, input_indices:i64, input_start:i64, output_indices:i64 -> val_grad:T; T:num", trn_sh_unknown,
     slice_grad, 0},
    {0},
};
