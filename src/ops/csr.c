/* Matrices of compressed rows (CSR), and batches of them, in variants: tf.linalg's sparse matrices. What TensorFlow computes on CPUs. */
#include <complex.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/cancel.h"
#include "ops/kern.h"
#undef I

/* The elements of matrix b lie at batch[b] … batch[b + 1]; those of its row i at batch[b] + rows[b · (m + 1) + i] … + rows[… + i + 1]. */
enum { SHAPE, BATCH, ROWS, COLS, VALUES, PARTS };
typedef struct csr {
    trn_variant base;
    trn_tensor *part[PARTS];
    int64_t n_batch, m, n;
} csr;

static const trn_dtype part_types[] = {TRN_INT64, TRN_INT32, TRN_INT32, TRN_INT32};
static const char *const part_names[] = {"dense_shape", "batch_pointers", "row_pointers", "col_indices", "values"};

static inline trn_dtype type_of(const csr *c) { return c->part[VALUES]->dtype; }
static inline int rank_of(const csr *c) { return (int)c->part[SHAPE]->count; }
static inline const int32_t *ints(const csr *c, int part) { return TRN_DATA(c->part[part], int32_t); }

/* ---- the variant ---------------------------------------------------------------------------------------------------- */

static void csr_free(void *obj)
{
    csr *c = obj;
    for (int i = 0; i < PARTS; i++)
        trn_tensor_unref(c->part[i]);
    free(c);
}

/* What TensorFlow writes for a matrix: a flag that it has looked at it, and the type. */
typedef struct meta {
    uint8_t validated, pad[3];
    int32_t dtype;
} meta;

static trn_err csr_pack(trn_sb *out, trn_tensor ***t, int *n, const trn_variant *v)
{
    const csr *c = (const csr *)v;
    meta about = {.validated = 1, .dtype = (int32_t)type_of(c)};
    trn_sb_add(out, &about, sizeof about);
    *t = trn_xalloc(PARTS * sizeof **t);
    *n = PARTS;
    memcpy(*t, c->part, sizeof c->part);
    return TRN_OK;
}

static trn_err csr_unpack(trn_variant **out, const void *about, size_t n, trn_tensor *const *t, int n_t);
static trn_err csr_add(trn_variant **out, const trn_variant *a, const trn_variant *b);
static trn_err csr_zeros(trn_variant **out, const trn_variant *v);
static trn_err csr_conj(trn_variant **out, const trn_variant *v);
static const trn_variant_type csr_type = {
    .name = "tensorflow::CSRSparseMatrix", .free = csr_free, .add = csr_add, .zeros_like = csr_zeros, .conj = csr_conj, .pack = csr_pack, .unpack = csr_unpack};

__attribute__((constructor)) static void make_known(void) { trn_variant_type_add(&csr_type); }

/* How many matrices and of which size: m and n from a shape of two or three dimensions. */
static trn_err sizes(csr *c, const int64_t *dim, int64_t rank)
{
    TRN_CHECK_ARG(rank == 2 || rank == 3, "a sparse matrix has 2 dimensions, a batch of them 3; these are %lld", (long long)rank);
    c->n_batch = rank == 3 ? dim[0] : 1;
    c->m = dim[rank - 2];
    c->n = dim[rank - 1];
    TRN_CHECK_ARG(c->n_batch >= 0 && c->m >= 0 && c->n >= 0, "%lld matrices of %lld rows and %lld columns cannot be", (long long)c->n_batch, (long long)c->m, (long long)c->n);
    TRN_CHECK_ARG(c->n_batch < INT32_MAX && c->m < INT32_MAX / TRN_MAX(c->n_batch, (int64_t)1), "%lld matrices of %lld rows: 32 bits cannot count the row pointers",
                  (long long)c->n_batch, (long long)c->m);
    TRN_CHECK_ARG(c->n <= INT32_MAX, "%lld columns are too many for 32 bits", (long long)c->n);
    return TRN_OK;
}

/* Of another's making: the pointers ascend and end where they must, and columns lie inside. */
static trn_err check_pointers(const csr *c)
{
    const int32_t *batch = ints(c, BATCH), *rows = ints(c, ROWS), *cols = ints(c, COLS);
    int64_t nnz = c->part[COLS]->count;
    TRN_CHECK_ARG(batch[0] == 0 && batch[c->n_batch] == nnz, "batch_pointers must go from 0 to the number of elements, %lld", (long long)nnz);
    for (int64_t b = 0; b < c->n_batch; b++) {
        const int32_t *row = rows + b * (c->m + 1);
        TRN_CHECK_ARG(batch[b] <= batch[b + 1], "batch_pointers must ascend");
        for (int64_t i = 0; i < c->m; i++)
            TRN_CHECK_ARG(row[i] <= row[i + 1], "row_pointers of matrix %lld must ascend", (long long)b);
        TRN_CHECK_ARG(row[0] == 0 && row[c->m] == batch[b + 1] - batch[b], "row_pointers of matrix %lld must go from 0 to the number of its elements", (long long)b);
    }
    for (int64_t i = 0; i < nnz; i++)
        TRN_CHECK_ARG(cols[i] >= 0 && cols[i] < c->n, "column %d is not in [0, %lld)", cols[i], (long long)c->n);
    return TRN_OK;
}

static trn_err csr_check(csr *c)
{
    for (int i = 0; i < PARTS; i++) {
        TRN_CHECK_ARG(i == VALUES || c->part[i]->dtype == part_types[i], "%s of a sparse matrix must be %s, not %s", part_names[i], trn_dtype_name(part_types[i]),
                      trn_dtype_name(c->part[i]->dtype));
        TRN_CHECK_ARG(c->part[i]->shape.rank == 1, "%s of a sparse matrix must be a vector", part_names[i]);
    }
    trn_dtype t = type_of(c);
    TRN_CHECK_ARG(t == TRN_FLOAT || t == TRN_DOUBLE || t == TRN_COMPLEX64 || t == TRN_COMPLEX128, "a sparse matrix is of floats, doubles or complex numbers, not of %s",
                  trn_dtype_name(t));
    TRN_TRY(sizes(c, TRN_DATA(c->part[SHAPE], int64_t), c->part[SHAPE]->count));
    TRN_CHECK_ARG(c->part[BATCH]->count == c->n_batch + 1 && c->part[ROWS]->count == c->n_batch * (c->m + 1) && c->part[COLS]->count == c->part[VALUES]->count,
                  "the parts of a sparse matrix do not fit together");
    return check_pointers(c);
}

/* Takes the parts, in any case. */
static trn_err csr_of(csr **out, trn_tensor **part)
{
    csr *c = trn_xalloc(sizeof *c);
    atomic_init(&c->base.ref, 1);
    c->base.type = &csr_type;
    memcpy(c->part, part, sizeof c->part);
    trn_err err = csr_check(c);
    if (err)
        trn_variant_unref(&c->base);
    else
        *out = c;
    return err;
}

static trn_err csr_unpack(trn_variant **out, const void *about, size_t n, trn_tensor *const *t, int n_t)
{
    meta said;
    TRN_CHECK_ARG(n_t == PARTS && n == sizeof said, "a sparse matrix is sent as %d tensors and %zu bytes, not %d and %zu", PARTS, sizeof said, n_t, n);
    memcpy(&said, about, n);
    TRN_CHECK_ARG(said.validated == 1 && said.dtype == (int32_t)t[VALUES]->dtype, "a sparse matrix of %s that says something else of itself", trn_dtype_name(t[VALUES]->dtype));
    trn_tensor *part[PARTS];
    for (int i = 0; i < PARTS; i++)
        part[i] = trn_tensor_ref(t[i]);
    csr *c = NULL;
    trn_err err = csr_of(&c, part);
    if (!err)
        *out = &c->base;
    return err;
}

static trn_err csr_in(const csr **out, const trn_kctx *k, int i)
{
    const trn_tensor *t = trn_in(k, i);
    TRN_CHECK_ARG(trn_is_scalar(t), "a sparse matrix is a scalar, the input has rank %d", t->shape.rank);
    const trn_variant *v = ((trn_variant *const *)t->data)[0];
    TRN_CHECK_ARG(v && v->type == &csr_type, "input %d holds a %s, not a sparse matrix", i, v ? v->type->name : "variant without a value");
    *out = (const csr *)v;
    return TRN_OK;
}

/* … that must be of the node's type. */
static trn_err csr_typed(const csr **out, const trn_kctx *k, int i)
{
    TRN_TRY(csr_in(out, k, i));
    trn_dtype want = trn_attr_type(k->node, "type");
    TRN_CHECK_ARG(type_of(*out) == want, "the node is for sparse matrices of %s, its input is one of %s", trn_dtype_name(want), trn_dtype_name(type_of(*out)));
    return TRN_OK;
}

static trn_err csr_out(trn_kctx *k, TRN_OWN csr *c)
{
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *y;
    trn_err err = trn_out_new(&y, k, 0, TRN_VARIANT, &scalar);
    if (err)
        trn_variant_unref(&c->base);
    else
        TRN_DATA_MUT(y, trn_variant *)[0] = &c->base;
    return err;
}

/* Room for a matrix of dimensions `dim` with nnz elements; rows and batches all zero. Parts that were not made are NULL. */
static trn_err parts_new(trn_tensor **part, const int64_t *dim, int rank, int64_t nnz, trn_dtype type)
{
    csr size;
    TRN_TRY(sizes(&size, dim, rank));
    TRN_CHECK_ARG(nnz <= INT32_MAX, "a sparse matrix has at most 2147483647 elements, not %lld", (long long)nnz);
    const int64_t n[] = {rank, size.n_batch + 1, size.n_batch * (size.m + 1), nnz, nnz};
    for (int i = 0; i < PARTS; i++) {
        trn_shape s = trn_shape_vector(n[i]);
        TRN_TRY(trn_tensor_new(&part[i], i == VALUES ? type : part_types[i], &s));
        if (i < COLS)
            memset(part[i]->data, 0, trn_tensor_bytes(part[i]));
    }
    memcpy(part[SHAPE]->data, dim, (size_t)rank * sizeof *dim);
    return TRN_OK;
}

static trn_err finish(csr **out, trn_tensor **part, trn_err err)
{
    if (!err)
        return csr_of(out, part);
    for (int i = 0; i < PARTS; i++)
        trn_tensor_unref(part[i]);
    return err;
}

/* ---- from places ------------------------------------------------------------------------------------------------------- */

/* Counts, then sums. The places come matrix by matrix and row by row; of rows in another order TensorFlow makes nonsense, too. */
static trn_err places(trn_tensor **part, const trn_tensor *indices)
{
    csr c;
    int rank = (int)part[SHAPE]->count;
    TRN_TRY(sizes(&c, TRN_DATA(part[SHAPE], int64_t), rank));
    int32_t *batch = part[BATCH]->data, *rows = part[ROWS]->data, *cols = part[COLS]->data;
    int64_t before = 0;
    for (int64_t i = 0; i < part[COLS]->count; i++) {
        const int64_t *at = TRN_DATA(indices, int64_t) + i * rank;
        int64_t b = rank == 3 ? at[0] : 0, row = at[rank - 2], col = at[rank - 1];
        TRN_CHECK_ARG(b >= 0 && b < c.n_batch, "matrix %lld is not in [0, %lld)", (long long)b, (long long)c.n_batch);
        TRN_CHECK_ARG(row >= 0 && row < c.m, "row %lld is not in [0, %lld)", (long long)row, (long long)c.m);
        TRN_CHECK_ARG(col >= 0 && col < c.n, "column %lld is not in [0, %lld)", (long long)col, (long long)c.n);
        TRN_CHECK_ARG(b >= before, "the places of matrix %lld come behind those of matrix %lld; they must be in order", (long long)b, (long long)before);
        before = b;
        batch[b + 1]++;
        rows[b * (c.m + 1) + row + 1]++;
        cols[i] = (int32_t)col;
    }
    for (int64_t b = 0; b < c.n_batch; b++) {
        batch[b + 1] += batch[b];
        for (int64_t i = 0; i < c.m; i++)
            rows[b * (c.m + 1) + i + 1] += rows[b * (c.m + 1) + i];
    }
    return TRN_OK;
}

static trn_err from_sparse(trn_kctx *k)
{
    const trn_tensor *indices = trn_in(k, 0), *values = trn_in(k, 1), *shape = trn_in(k, 2);
    TRN_CHECK_ARG(indices->shape.rank == 2 && trn_is_vector(values) && trn_is_vector(shape), "indices must be a matrix, values and dense_shape vectors");
    TRN_CHECK_ARG(indices->shape.dim[0] == values->count, "indices has %lld rows for %lld values", (long long)indices->shape.dim[0], (long long)values->count);
    TRN_CHECK_ARG(indices->shape.dim[1] == shape->count, "indices has %lld columns for a dense_shape of %lld", (long long)indices->shape.dim[1], (long long)shape->count);
    TRN_CHECK_ARG(shape->count == 2 || shape->count == 3, "the sparse tensor has rank %lld; 2 or, for a batch, 3 are expected", (long long)shape->count);
    trn_tensor *part[PARTS] = {0};
    trn_err err = parts_new(part, TRN_DATA(shape, int64_t), (int)shape->count, values->count, values->dtype);
    if (!err)
        err = places(part, indices);
    if (!err) {
        trn_tensor_unref(part[VALUES]);
        part[VALUES] = trn_tensor_ref(values);
    }
    csr *c = NULL;
    TRN_TRY(finish(&c, part, err));
    return csr_out(k, c);
}

static trn_err from_dense(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *indices = trn_in(k, 1);
    int rank = x->shape.rank;
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(rank == 2 || rank == 3, "params must be a matrix or a batch of them, not %s", trn_shape_text(text, &x->shape));
    TRN_CHECK_ARG(indices->shape.rank == 2, "indices must be a matrix, not %s", trn_shape_text(text, &indices->shape));
    TRN_CHECK_ARG(indices->shape.dim[1] == rank, "indices has %lld columns for params of rank %d", (long long)indices->shape.dim[1], rank);
    int64_t n = indices->shape.dim[0];
    trn_tensor *part[PARTS] = {0};
    trn_err err = parts_new(part, x->shape.dim, rank, n, x->dtype);
    if (!err)
        err = places(part, indices);
    for (int64_t i = 0; i < n && !err; i++) {
        int64_t at = 0;
        for (int d = 0; d < rank; d++)
            at = at * x->shape.dim[d] + TRN_DATA(indices, int64_t)[i * rank + d];
        err = trn_tensor_copy_elems(part[VALUES], i, x, at, 1);
    }
    csr *c = NULL;
    TRN_TRY(finish(&c, part, err));
    return csr_out(k, c);
}

/* ---- and back ------------------------------------------------------------------------------------------------------------ */

typedef struct span { /* the elements of a row */
    int64_t at, end;
} span;

static inline span row_of(const csr *c, int64_t b, int64_t i)
{
    const int32_t *rows = ints(c, ROWS) + b * (c->m + 1) + i;
    int64_t base = ints(c, BATCH)[b];
    return (span){base + rows[0], base + rows[1]};
}

static trn_err to_sparse(trn_kctx *k)
{
    const csr *c;
    TRN_TRY(csr_typed(&c, k, 0));
    int rank = rank_of(c);
    trn_shape s = trn_shape_of(2, c->part[COLS]->count, (int64_t)rank);
    trn_tensor *indices;
    TRN_TRY(trn_out_new(&indices, k, 0, TRN_INT64, &s));
    int64_t *to = indices->data;
    for (int64_t b = 0; b < c->n_batch; b++)
        for (int64_t i = 0; i < c->m; i++) {
            span r = row_of(c, b, i);
            for (int64_t e = r.at; e < r.end; e++) {
                if (rank == 3)
                    *to++ = b;
                *to++ = i;
                *to++ = ints(c, COLS)[e];
            }
        }
    trn_out_set(k, 1, trn_tensor_ref(c->part[VALUES]));
    trn_out_set(k, 2, trn_tensor_ref(c->part[SHAPE]));
    return TRN_OK;
}

static trn_err to_dense(trn_kctx *k)
{
    const csr *c;
    TRN_TRY(csr_typed(&c, k, 0));
    trn_shape s = {.rank = rank_of(c)};
    int64_t count;
    memcpy(s.dim, c->part[SHAPE]->data, (size_t)s.rank * sizeof s.dim[0]);
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, type_of(c), &s));
    trn_zero_elems(y, 0, y->count);
    size_t size = trn_dtype_size(y->dtype);
    const char *from = c->part[VALUES]->data;
    char *to = y->data;
    for (int64_t b = 0; b < c->n_batch; b++)
        for (int64_t i = 0; i < c->m; i++) {
            span r = row_of(c, b, i);
            for (int64_t e = r.at; e < r.end; e++)
                memcpy(to + (size_t)((b * c->m + i) * c->n + ints(c, COLS)[e]) * size, from + (size_t)e * size, size);
        }
    return TRN_OK;
}

static trn_err components(trn_kctx *k)
{
    const csr *c;
    TRN_TRY(csr_typed(&c, k, 0));
    const trn_tensor *index = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_scalar(index), "the index of a matrix is a scalar, the input has rank %d", index->shape.rank);
    int32_t b = TRN_DATA(index, int32_t)[0];
    TRN_CHECK_ARG(b >= 0 && b < c->n_batch, "there is no matrix %d in a batch of %lld", b, (long long)c->n_batch);
    int64_t first = ints(c, BATCH)[b], n = ints(c, BATCH)[b + 1] - first;
    const int64_t at[] = {b * (c->m + 1), first, first}, count[] = {c->m + 1, n, n};
    for (int i = 0; i < 3; i++) {
        const trn_tensor *from = c->part[ROWS + i];
        trn_shape s = trn_shape_vector(count[i]);
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, i, from->dtype, &s));
        TRN_TRY(trn_tensor_copy_elems(y, 0, from, at[i], count[i]));
    }
    return TRN_OK;
}

static trn_err count_elements(trn_kctx *k)
{
    const csr *c;
    TRN_TRY(csr_in(&c, k, 0));
    trn_shape s = rank_of(c) == 3 ? trn_shape_vector(c->n_batch) : trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &s));
    for (int64_t b = 0; b < c->n_batch; b++)
        TRN_DATA_MUT(y, int32_t)[b] = ints(c, BATCH)[b + 1] - ints(c, BATCH)[b];
    return TRN_OK;
}

/* ---- arithmetic, once per type -------------------------------------------------------------------------------------------- */

/* y[j·so] = Σ a's elements of a row · b[column·sk + j·sj], for n values of j. */
typedef struct row_product {
    void *y;
    const void *b;
    int64_t so, sk, sj, n;
    bool conj_b, more, conj_y; /* more: to what is in y already */
} row_product;

#define REAL(x) (x)
#define LOOPS(suffix, T, CONJ)                                                                                                              \
    static void product_##suffix(const row_product *p, const csr *a, span r)                                                                \
    {                                                                                                                                       \
        T *y = p->y;                                                                                                                        \
        for (int64_t j = 0; j < p->n && !p->more; j++)                                                                                      \
            y[j * p->so] = 0;                                                                                                               \
        for (int64_t e = r.at; e < r.end; e++) {                                                                                            \
            T v = TRN_DATA(a->part[VALUES], T)[e];                                                                                          \
            const T *b = (const T *)p->b + ints(a, COLS)[e] * p->sk;                                                                        \
            if (!p->conj_b && p->so == 1 && p->sj == 1)                                                                                     \
                for (int64_t j = 0; j < p->n; j++)                                                                                          \
                    y[j] += v * b[j];                                                                                                       \
            else                                                                                                                            \
                for (int64_t j = 0; j < p->n; j++)                                                                                          \
                    y[j * p->so] += v * (p->conj_b ? CONJ(b[j * p->sj]) : b[j * p->sj]);                                                    \
        }                                                                                                                                   \
        for (int64_t j = 0; j < p->n && p->conj_y; j++)                                                                                     \
            y[j * p->so] = CONJ(y[j * p->so]);                                                                                              \
    }                                                                                                                                       \
    /* sum[c] += a · b's elements of a row, c their columns */                                                                              \
    static void add_row_##suffix(void *sum, const csr *a, int64_t e, const csr *b, span r)                                                  \
    {                                                                                                                                       \
        T v = TRN_DATA(a->part[VALUES], T)[e];                                                                                              \
        for (int64_t q = r.at; q < r.end; q++)                                                                                              \
            ((T *)sum)[ints(b, COLS)[q]] += v * TRN_DATA(b->part[VALUES], T)[q];                                                            \
    }                                                                                                                                       \
    /* sum[c] += the elements of a row */                                                                                                   \
    static void spread_##suffix(void *sum, const csr *b, span r)                                                                            \
    {                                                                                                                                       \
        for (int64_t q = r.at; q < r.end; q++)                                                                                              \
            ((T *)sum)[ints(b, COLS)[q]] += TRN_DATA(b->part[VALUES], T)[q];                                                                \
    }                                                                                                                                       \
    /* y[i] = sum[column i], which is zero afterwards */                                                                                    \
    static void take_##suffix(void *y, void *sum, const int32_t *cols, int64_t n)                                                           \
    {                                                                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                                                                   \
            ((T *)y)[i] = ((T *)sum)[cols[i]];                                                                                              \
            ((T *)sum)[cols[i]] = 0;                                                                                                        \
        }                                                                                                                                   \
    }                                                                                                                                       \
    static void conj_##suffix(void *y, int64_t n)                                                                                           \
    {                                                                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                                                                     \
            ((T *)y)[i] = CONJ(((T *)y)[i]);                                                                                                \
    }
LOOPS(f32, float, REAL)
LOOPS(f64, double, REAL)
LOOPS(c64, float _Complex, conjf)
LOOPS(c128, double _Complex, conj)

typedef struct loops {
    void (*product)(const row_product *p, const csr *a, span r);
    void (*add_row)(void *sum, const csr *a, int64_t e, const csr *b, span r);
    void (*spread)(void *sum, const csr *b, span r);
    void (*take)(void *y, void *sum, const int32_t *cols, int64_t n);
    void (*conj)(void *y, int64_t n);
} loops;
#define OF(s) {product_##s, add_row_##s, spread_##s, take_##s, conj_##s}

static const loops *loops_of(trn_dtype t)
{
    static const loops all[] = {OF(f32), OF(f64), OF(c64), OF(c128)};
    return &all[t == TRN_FLOAT ? 0 : t == TRN_DOUBLE ? 1 : t == TRN_COMPLEX64 ? 2 : 3];
}

/* The same pattern with values of its own, which `change` makes of a copy. */
static trn_err with_values(trn_variant **out, const trn_variant *v, void (*change)(trn_tensor *values))
{
    const csr *c = (const csr *)v;
    trn_tensor *values, *part[PARTS];
    TRN_TRY(trn_tensor_copy(&values, c->part[VALUES]));
    change(values);
    for (int i = 0; i < PARTS; i++)
        part[i] = i == VALUES ? values : trn_tensor_ref(c->part[i]);
    csr *made = NULL;
    TRN_TRY(csr_of(&made, part));
    *out = &made->base;
    return TRN_OK;
}
static void to_zeros(trn_tensor *t) { trn_zero_elems(t, 0, t->count); }
static void to_conj(trn_tensor *t) { loops_of(t->dtype)->conj(t->data, t->count); }
static trn_err csr_zeros(trn_variant **out, const trn_variant *v) { return with_values(out, v, to_zeros); }
static trn_err csr_conj(trn_variant **out, const trn_variant *v) { return with_values(out, v, to_conj); }

/* ---- transposed ------------------------------------------------------------------------------------------------------------- */

/* Each element goes to the next place of its column's row. */
static void turn_one(trn_tensor **part, const csr *c, int64_t b)
{
    int32_t *rows = TRN_DATA_MUT(part[ROWS], int32_t) + b * (c->n + 1), *cols = part[COLS]->data;
    size_t size = trn_dtype_size(type_of(c));
    int64_t first = ints(c, BATCH)[b];
    for (int64_t e = first; e < ints(c, BATCH)[b + 1] && c->n > 1; e++)
        if (ints(c, COLS)[e] + 2 <= c->n)
            rows[ints(c, COLS)[e] + 2]++; /* one row late, so that the next loop may count up in place */
    for (int64_t j = 2; j <= c->n; j++)
        rows[j] += rows[j - 1];
    for (int64_t i = 0; i < c->m; i++) {
        span r = row_of(c, b, i);
        for (int64_t e = r.at; e < r.end; e++) {
            int64_t to = first + rows[ints(c, COLS)[e] + 1]++;
            cols[to] = (int32_t)i;
            memcpy((char *)part[VALUES]->data + (size_t)to * size, (const char *)c->part[VALUES]->data + (size_t)e * size, size);
        }
    }
}

static trn_err transposed(csr **out, const csr *c, bool conjugate)
{
    int rank = rank_of(c);
    int64_t dim[] = {c->n_batch, c->n, c->m};
    trn_tensor *part[PARTS] = {0};
    trn_err err = parts_new(part, rank == 3 ? dim : dim + 1, rank, c->part[COLS]->count, type_of(c));
    if (!err) {
        memcpy(part[BATCH]->data, c->part[BATCH]->data, trn_tensor_bytes(part[BATCH]));
        for (int64_t b = 0; b < c->n_batch; b++)
            turn_one(part, c, b);
        if (conjugate)
            loops_of(type_of(c))->conj(part[VALUES]->data, part[VALUES]->count);
    }
    return finish(out, part, err);
}

static trn_err transpose(trn_kctx *k)
{
    const csr *c;
    csr *t = NULL;
    TRN_TRY(csr_typed(&c, k, 0));
    TRN_TRY(transposed(&t, c, trn_attr_bool(k->node, "conjugate")));
    return csr_out(k, t);
}

/* The factor as it is multiplied: input `x`, or one that is made here and for the caller to let go. */
typedef struct factor {
    bool turned, adjoint;
    const csr *c;
    csr *made;
} factor;

static trn_err factor_attrs(factor *f, const trn_kctx *k, const char *name)
{
    char transpose_[16], adjoint[16];
    snprintf(transpose_, sizeof transpose_, "transpose_%s", name);
    snprintf(adjoint, sizeof adjoint, "adjoint_%s", name);
    bool t = trn_attr_bool(k->node, transpose_);
    *f = (factor){.adjoint = trn_attr_bool(k->node, adjoint)};
    TRN_CHECK_ARG(!(t && f->adjoint), "%s and %s exclude each other", adjoint, transpose_);
    f->turned = t || f->adjoint;
    return TRN_OK;
}

static trn_err factor_ready(factor *f, const csr *c)
{
    f->c = c;
    if (!f->turned)
        return TRN_OK;
    TRN_TRY(transposed(&f->made, c, f->adjoint));
    f->c = f->made;
    return TRN_OK;
}

static void factor_done(factor *f)
{
    if (f->made)
        trn_variant_unref(&f->made->base);
}

/* Few elements may stand for many products: who multiplies looks up now and then whether anybody still waits. */
enum { PATIENCE = 1 << 24 }; /* products between two looks */
typedef struct watch {
    trn_cancel *cancel; /* NULL: nobody can */
    _Atomic bool stop;
} watch;

/* A thread has made `more` products, and *made since it looked up last. */
static bool stopped(watch *w, int64_t *made, int64_t more)
{
    *made += more;
    if (*made >= PATIENCE) {
        *made = 0;
        if (w->cancel && trn_cancelled(w->cancel))
            atomic_store_explicit(&w->stop, true, memory_order_relaxed);
    }
    return atomic_load_explicit(&w->stop, memory_order_relaxed);
}

static trn_err why_stopped(const watch *w) { return atomic_load(&w->stop) ? trn_cancel_why(w->cancel) : TRN_OK; }

/* So many rows are a piece that is worth a thread. */
static int64_t grain_of(const csr *a, int64_t per_element)
{
    int64_t rows = TRN_MAX(a->n_batch * a->m, (int64_t)1), cost = (a->part[COLS]->count * TRN_MAX(per_element, (int64_t)1)) / rows + 1;
    return TRN_MAX(65536 / cost, (int64_t)1);
}

/* ---- times a dense matrix ---------------------------------------------------------------------------------------------------- */

typedef struct dense_job {
    const csr *a;
    row_product p; /* of the first row of the first matrix */
    int64_t b_size, y_size, y_row; /* elements of one matrix of b, of one of y; between rows of the product in y */
    size_t size;
    bool conj_y;
    watch w;
} dense_job;

/* At most so many of a row's elements at a time that their products are worth a look. */
static void dense_row(dense_job *j, row_product *p, span row, int64_t *made)
{
    int64_t most = PATIENCE / p->n + 1;
    span some = {row.at, row.at};
    do {
        some = (span){some.end, TRN_MIN(some.end + most, row.end)};
        p->conj_y = j->conj_y && some.end == row.end;
        loops_of(type_of(j->a))->product(p, j->a, some);
        p->more = true;
    } while (!stopped(&j->w, made, (some.end - some.at + 1) * p->n) && some.end < row.end);
}

static void dense_rows(void *arg, int64_t begin, int64_t end)
{
    dense_job *j = arg;
    int64_t made = 0;
    for (int64_t r = begin; r < end && !stopped(&j->w, &made, 0); r++) {
        int64_t b = r / j->a->m, i = r % j->a->m;
        row_product p = j->p;
        p.b = (const char *)p.b + (size_t)(b * j->b_size) * j->size;
        p.y = (char *)p.y + (size_t)(b * j->y_size + i * j->y_row) * j->size;
        dense_row(j, &p, row_of(j->a, b, i), &made);
    }
}

static trn_err times_dense(trn_kctx *k)
{
    factor fa, fb;
    TRN_TRY(factor_attrs(&fa, k, "a"));
    TRN_TRY(factor_attrs(&fb, k, "b"));
    bool turn_y = trn_attr_bool(k->node, "transpose_output");
    const csr *a;
    TRN_TRY(csr_in(&a, k, 0));
    const trn_tensor *b = trn_in(k, 1);
    int rank = rank_of(a);
    TRN_CHECK_ARG(type_of(a) == b->dtype, "a is of type %s, b of %s", trn_dtype_name(type_of(a)), trn_dtype_name(b->dtype));
    TRN_CHECK_ARG(b->shape.rank == rank, "a has rank %d, b has rank %d", rank, b->shape.rank);
    TRN_CHECK_ARG(rank == 2 || b->shape.dim[0] == a->n_batch, "a is a batch of %lld matrices, b one of %lld", (long long)a->n_batch, (long long)b->shape.dim[0]);
    int64_t rows = b->shape.dim[rank - 2], cols = b->shape.dim[rank - 1], inner = fa.turned ? a->m : a->n, m = fa.turned ? a->n : a->m, n = fb.turned ? rows : cols;
    TRN_CHECK_ARG(inner == (fb.turned ? cols : rows), "a's %lld columns do not go with b's %lld rows (both as they are turned)", (long long)inner, (long long)(fb.turned ? cols : rows));
    trn_shape s = b->shape;
    s.dim[rank - 2] = turn_y ? n : m;
    s.dim[rank - 1] = turn_y ? m : n;
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, b->dtype, &s));
    if (!y->count)
        return TRN_OK;
    trn_err err = factor_ready(&fa, a);
    dense_job j = {.a = fa.c, .b_size = rows * cols, .y_size = m * n, .y_row = turn_y ? 1 : n, .size = trn_dtype_size(b->dtype),
                   .conj_y = trn_attr_bool(k->node, "conjugate_output"), .w.cancel = trn_k_cancel(k)};
    j.p = (row_product){.y = y->data, .b = b->data, .so = turn_y ? m : 1, .sk = fb.turned ? 1 : cols, .sj = fb.turned ? cols : 1, .n = n, .conj_b = fb.adjoint};
    if (!err) {
        trn_k_for(k, fa.c->n_batch * m, grain_of(fa.c, n), dense_rows, &j);
        err = why_stopped(&j.w);
    }
    factor_done(&fa);
    return err;
}

/* ---- times another sparse one --------------------------------------------------------------------------------------------------- */

typedef struct sparse_job {
    const csr *a, *b;
    trn_tensor **part; /* of the product; NULL: only counts */
    int32_t *rows;
    watch w;
    _Atomic bool no_memory;
} sparse_job;

/* For each column, what a thread knows: the last row that had it (rows count from 1), and the sum that a row has there so far. Zeros are not touched, whatever size the
 * matrix says it has. */
typedef struct columns {
    int32_t *mark;
    void *sum;
    int64_t made; /* products */
} columns;

static bool columns_init(columns *c, int64_t n, trn_dtype t, bool sums)
{
    *c = (columns){.mark = calloc((size_t)n + 1, sizeof *c->mark), .sum = sums ? calloc((size_t)n + 1, trn_dtype_size(t)) : NULL};
    return c->mark && (c->sum || !sums);
}

static void columns_fini(columns *c)
{
    free(c->mark);
    free(c->sum);
}

/* The columns of row r that row `now` has not had yet: how many, and (part made) which, in no order. */
static int64_t new_columns(int32_t *out, columns *c, int32_t now, const csr *m, span r)
{
    int64_t n = 0;
    for (int64_t e = r.at; e < r.end; e++) {
        int32_t col = ints(m, COLS)[e];
        if (c->mark[col] == now)
            continue;
        c->mark[col] = now;
        if (out)
            out[n] = col;
        n++;
    }
    return n;
}

static int by_value(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Row `now` is done: its columns in order, and its sums as elements `at` and following, where they are zero again. */
static void put_row(trn_tensor **part, int64_t at, columns *c, int64_t n)
{
    const trn_tensor *values = part[VALUES];
    int32_t *cols = TRN_DATA_MUT(part[COLS], int32_t) + at;
    qsort(cols, (size_t)n, sizeof *cols, by_value);
    loops_of(values->dtype)->take((char *)values->data + (size_t)at * trn_dtype_size(values->dtype), c->sum, cols, n);
}

/* The row of a factor; one matrix stands for a batch. */
static inline span row_in(const csr *c, int64_t batch, int64_t i) { return row_of(c, c->n_batch > 1 ? batch : 0, i); }

/* Row i of the product: how many columns it has, and (part made) the row itself. */
static int64_t product_row(sparse_job *j, columns *c, int32_t now, int64_t batch, int64_t i)
{
    int64_t at = j->part ? TRN_DATA(j->part[BATCH], int32_t)[batch] + j->rows[batch * (j->a->m + 1) + i] : 0, n = 0;
    int32_t *cols = j->part ? TRN_DATA_MUT(j->part[COLS], int32_t) + at : NULL;
    span ra = row_in(j->a, batch, i);
    for (int64_t e = ra.at; e < ra.end; e++) {
        span rb = row_in(j->b, batch, ints(j->a, COLS)[e]);
        if (stopped(&j->w, &c->made, rb.end - rb.at))
            return n;
        n += new_columns(cols ? cols + n : NULL, c, now, j->b, rb);
        if (cols)
            loops_of(type_of(j->a))->add_row(c->sum, j->a, e, j->b, rb);
    }
    if (cols)
        put_row(j->part, at, c, n);
    return n;
}

static void sparse_rows(void *arg, int64_t begin, int64_t end)
{
    sparse_job *j = arg;
    columns c;
    if (!columns_init(&c, j->b->n, type_of(j->b), j->part))
        atomic_store(&j->no_memory, true);
    for (int64_t r = begin; r < end && !atomic_load(&j->no_memory) && !stopped(&j->w, &c.made, 0); r++) {
        int64_t batch = r / j->a->m, i = r % j->a->m, n = product_row(j, &c, (int32_t)(r - begin + 1), batch, i);
        if (!j->part)
            j->rows[batch * (j->a->m + 1) + i + 1] = (int32_t)n;
    }
    columns_fini(&c);
}

/* From how many elements each row has, in `rows`, to where they begin; TensorFlow's limit is a 32-bit count. */
static trn_err sum_up(int64_t *total, trn_tensor *batch, int32_t *rows, int64_t n_batch, int64_t m)
{
    *total = 0;
    for (int64_t b = 0; b < n_batch; b++) {
        int64_t n = 0;
        for (int64_t i = 1; i <= m; i++) {
            n += rows[b * (m + 1) + i];
            TRN_CHECK_ARG(*total + n <= INT32_MAX, "the product has more elements than 32 bits can count");
            rows[b * (m + 1) + i] = (int32_t)n;
        }
        *total += n;
        TRN_DATA_MUT(batch, int32_t)[b + 1] = (int32_t)*total;
    }
    return TRN_OK;
}

/* Room for the elements, once they are counted. */
static trn_err make_room(trn_tensor **part, int64_t total)
{
    trn_shape s = trn_shape_vector(total);
    for (int i = COLS; i <= VALUES; i++) {
        trn_dtype t = part[i]->dtype;
        trn_tensor_unref(part[i]);
        part[i] = NULL;
        TRN_TRY(trn_tensor_new(&part[i], t, &s));
    }
    return TRN_OK;
}

static trn_err each_row(trn_kctx *k, sparse_job *j, int64_t n_batch)
{
    int64_t each = j->b->part[COLS]->count / TRN_MAX(j->b->n_batch * j->b->m, (int64_t)1);
    trn_k_for(k, n_batch * j->a->m, TRN_MAX(grain_of(j->a, each), j->b->n / 64 + 1), sparse_rows, j);
    return j->no_memory ? trn_err_oom() : why_stopped(&j->w);
}

static trn_err sparse_product(csr **out, trn_kctx *k, const csr *a, const csr *b)
{
    int rank = rank_of(a);
    int64_t n_batch = a->n_batch == 1 ? b->n_batch : a->n_batch, dim[] = {n_batch, a->m, b->n}, total = 0; /* one stands for many, or for none */
    trn_tensor *part[PARTS] = {0};
    trn_err err = parts_new(part, rank == 3 ? dim : dim + 1, rank, 0, type_of(a));
    if (err)
        return finish(out, part, err);
    sparse_job j = {.a = a, .b = b, .rows = part[ROWS]->data, .w.cancel = trn_k_cancel(k)};
    err = each_row(k, &j, n_batch);
    if (!err)
        err = sum_up(&total, part[BATCH], j.rows, n_batch, a->m);
    if (!err)
        err = make_room(part, total);
    j.part = part;
    if (!err)
        err = each_row(k, &j, n_batch);
    return finish(out, part, err);
}

static trn_err times_sparse(trn_kctx *k)
{
    factor fa, fb;
    TRN_TRY(factor_attrs(&fa, k, "a"));
    TRN_TRY(factor_attrs(&fb, k, "b"));
    const csr *a, *b;
    TRN_TRY(csr_typed(&a, k, 0));
    TRN_TRY(csr_typed(&b, k, 1));
    TRN_CHECK_ARG(a->n_batch == b->n_batch || a->n_batch == 1 || b->n_batch == 1, "%lld matrices cannot be multiplied with %lld",
                  (long long)a->n_batch, (long long)b->n_batch);
    TRN_CHECK_ARG(rank_of(a) == rank_of(b), "a has rank %d, b has rank %d", rank_of(a), rank_of(b));
    int64_t inner_a = fa.turned ? a->m : a->n, inner_b = fb.turned ? b->n : b->m;
    TRN_CHECK_ARG(inner_a == inner_b, "a's %lld columns do not go with b's %lld rows (both as they are turned)", (long long)inner_a, (long long)inner_b);
    trn_err err = factor_ready(&fa, a);
    if (!err)
        err = factor_ready(&fb, b);
    csr *y = NULL;
    if (!err)
        err = sparse_product(&y, k, fa.c, fb.c);
    factor_done(&fa);
    factor_done(&fb);
    return err ? err : csr_out(k, y);
}

/* ---- sums -------------------------------------------------------------------------------------------------------------------------- */

/* Row i of the sum: how many columns it has, and (c with sums) the row itself. `now` names it. */
static int64_t sum_row(trn_tensor **part, const csr *const x[2], columns *c, int32_t now, int64_t b, int64_t i)
{
    int64_t at = c->sum ? TRN_DATA(part[BATCH], int32_t)[b] + TRN_DATA(part[ROWS], int32_t)[b * (x[0]->m + 1) + i] : 0, n = 0;
    int32_t *cols = c->sum ? TRN_DATA_MUT(part[COLS], int32_t) + at : NULL;
    for (int f = 0; f < 2; f++) {
        span r = row_of(x[f], b, i);
        n += new_columns(cols ? cols + n : NULL, c, now, x[f], r);
        if (cols)
            loops_of(type_of(x[f]))->spread(c->sum, x[f], r);
    }
    if (cols)
        put_row(part, at, c, n);
    return n;
}

static trn_err sum_rows(trn_tensor **part, const csr *const x[2], bool make)
{
    int64_t m = x[0]->m;
    columns c;
    bool mem = columns_init(&c, x[0]->n, type_of(x[0]), make);
    for (int64_t r = 0; r < x[0]->n_batch * m && mem; r++) {
        int64_t n = sum_row(part, x, &c, (int32_t)r + 1, r / m, r % m);
        if (!make)
            TRN_DATA_MUT(part[ROWS], int32_t)[r / m * (m + 1) + r % m + 1] = (int32_t)n;
    }
    columns_fini(&c);
    return mem ? TRN_OK : trn_err_oom();
}

static trn_err add_up(trn_tensor **part, const csr *const x[2])
{
    int64_t total = 0;
    TRN_TRY(sum_rows(part, x, false));
    TRN_TRY(sum_up(&total, part[BATCH], part[ROWS]->data, x[0]->n_batch, x[0]->m));
    TRN_TRY(make_room(part, total));
    return sum_rows(part, x, true);
}

static trn_err csr_add(trn_variant **out, const trn_variant *va, const trn_variant *vb)
{
    const csr *const x[2] = {(const csr *)va, (const csr *)vb};
    TRN_CHECK_ARG(type_of(x[0]) == type_of(x[1]), "sparse matrices of %s and %s cannot be added", trn_dtype_name(type_of(x[0])), trn_dtype_name(type_of(x[1])));
    TRN_CHECK_ARG(rank_of(x[0]) == rank_of(x[1]) && x[0]->n_batch == x[1]->n_batch && x[0]->m == x[1]->m && x[0]->n == x[1]->n,
                  "sparse matrices of different shapes cannot be added");
    trn_tensor *part[PARTS] = {0};
    trn_err err = parts_new(part, TRN_DATA(x[0]->part[SHAPE], int64_t), rank_of(x[0]), 0, type_of(x[0]));
    if (!err)
        err = add_up(part, x);
    csr *made = NULL;
    TRN_TRY(finish(&made, part, err));
    *out = &made->base;
    return TRN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------ */

#define KIND "f32|f64|c64|c128"
#define TURN "transpose_a:bool=false, transpose_b:bool=false, adjoint_a:bool=false, adjoint_b:bool=false"

const trn_op trn_ops_csr[] = {
    {"SparseTensorToCSRSparseMatrix", "indices:i64, values:T, dense_shape:i64 -> sparse_matrix:var; T:" KIND, trn_sh_scalar, from_sparse, 0},
    {"DenseToCSRSparseMatrix", "dense_input:T, indices:i64 -> sparse_output:var; T:" KIND, trn_sh_scalar, from_dense, 0},
    {"CSRSparseMatrixToSparseTensor", "sparse_matrix:var -> indices:i64, values:type, dense_shape:i64; type:" KIND, trn_sh_unknown, to_sparse, 0},
    {"CSRSparseMatrixToDense", "sparse_input:var -> dense_output:type; type:" KIND, trn_sh_unknown, to_dense, 0},
    {"CSRSparseMatrixComponents", "csr_sparse_matrix:var, index:i32 -> row_ptrs:i32, col_inds:i32, values:type; type:" KIND, trn_sh_unknown, components, 0},
    {"SparseMatrixNNZ", "sparse_matrix:var -> nnz:i32", trn_sh_unknown, count_elements, 0},
    {"SparseMatrixMatMul", "a:var, b:T -> output:T; T:" KIND ", " TURN ", transpose_output:bool=false, conjugate_output:bool=false", trn_sh_unknown, times_dense, TRN_OP_HEAVY},
    {"SparseMatrixSparseMatMul", "a:var, b:var -> c:var; type:" KIND ", " TURN, trn_sh_scalar, times_sparse, TRN_OP_HEAVY},
    {"SparseMatrixTranspose", "input:var -> output:var; conjugate:bool=false, type:" KIND, trn_sh_scalar, transpose, 0},
    {0},
};
