/* Datasets that put elements together and take them apart: batches, padded batches, windows, and back. */
#include <stdlib.h>

#include "ops/data.h"

typedef struct batch {
    trn_ds d;
    int64_t n, shift, stride;
    bool drop_remainder;
    trn_shape *padded; /* PaddedBatchDataset: per component, -1: as long as the longest */
    trn_elem *padding;
} batch;

typedef struct batch_it {
    trn_it it;
    bool over;
    int n, cap;
    trn_elem **e; /* gathered so far */
} batch_it;

static void forget(batch_it *it, int n)
{
    for (int i = 0; i < n; i++)
        trn_elem_free(it->e[i]);
    memmove(it->e, it->e + n, (size_t)(it->n - n) * sizeof *it->e);
    it->n -= n;
}

static void batch_stop(trn_it *it_)
{
    batch_it *it = (batch_it *)it_;
    if (it->n)
        forget(it, it->n);
    free(it->e);
}

static void batch_free(trn_ds *d)
{
    batch *b = (batch *)d;
    free(b->padded);
    trn_elem_free(b->padding);
}

/* ---- padding ------------------------------------------------------------------------------------------------------ */

static trn_err padded_shape(trn_shape *out, const batch *b, trn_elem *const *e, int n, int c)
{
    const trn_shape *p = &b->padded[c];
    trn_shape s = {.rank = p->rank + 1};
    s.dim[0] = n;
    for (int d = 0; d < p->rank; d++)
        s.dim[d + 1] = TRN_MAX(p->dim[d], 0);
    for (int i = 0; i < n; i++) {
        const trn_shape *x = &e[i]->t[c]->shape;
        if (x->rank != p->rank)
            return TRN_BAD("All elements in a batch must have the same rank as the padded shape for component%d: expected rank %d but got element with "
                           "rank %d",
                           c, p->rank, x->rank);
        for (int d = 0; d < p->rank; d++) {
            if (x->dim[d] <= s.dim[d + 1])
                continue;
            if (p->dim[d] >= 0)
                return trn_errorf(TRN_DATA_LOSS, "Attempted to pad to a smaller size than the input element.");
            s.dim[d + 1] = x->dim[d];
        }
    }
    *out = s;
    return TRN_OK;
}

static trn_err pad_component(trn_tensor **out, const batch *b, trn_elem *const *e, int n, int c)
{
    trn_shape s;
    TRN_TRY(padded_shape(&s, b, e, n, c));
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, b->d.types[c], &s));
    trn_err err = trn_fill_elems(t, 0, t->count, b->padding->t[c], 0);
    int64_t to[TRN_MAX_RANK], from[TRN_MAX_RANK];
    trn_row_strides(to, &s);
    for (int i = 0; !err && i < n; i++) {
        const trn_tensor *x = e[i]->t[c];
        trn_row_strides(from, &x->shape);
        err = trn_block_copy(NULL, t, i * to[0], to + 1, x, 0, from, x->shape.dim, x->shape.rank);
    }
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

static trn_err make_batch(trn_elem **out, const batch *b, trn_elem *const *e, int n)
{
    if (!b->padded)
        return trn_data_batch(out, e, n);
    trn_elem *r = trn_elem_new(b->d.n);
    trn_err err = TRN_OK;
    for (int c = 0; !err && c < r->n; c++)
        err = pad_component(&r->t[c], b, e, n, c);
    if (err)
        trn_elem_free(r);
    else
        *out = r;
    return err;
}

/* ---- Batch -------------------------------------------------------------------------------------------------------- */

static trn_ds_do batch_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    batch_it *it = (batch_it *)it_;
    const batch *b = (batch *)it_->d;
    if (why == TRN_DS_START && it->n)
        forget(it, it->n);
    if (why == TRN_DS_GOT)
        TRN_PUSH(it->e, it->n, it->cap, trn_act_take(a));
    if (why == TRN_DS_ENDED)
        it->over = true;
    if (!it->over && it->n < b->n)
        return trn_act_pull_on(a, it_->in);
    if (it->n == 0 || (b->drop_remainder && it->n < b->n))
        return TRN_DS_END;
    trn_elem *e;
    trn_err err = make_batch(&e, b, it->e, it->n);
    forget(it, it->n);
    return err ? trn_act_fail(a, err) : trn_act_give(a, e);
}

static int64_t batch_count(const trn_ds *d)
{
    const batch *b = (const batch *)d;
    int64_t n = trn_ds_count(d->in[0]);
    return n < 0 ? n : n / b->n + (!b->drop_remainder && n % b->n != 0);
}

static const trn_ds_op batch_op = {"BatchDataset", sizeof(batch_it), batch_free, trn_it_start_in, batch_next, NULL, batch_stop, batch_count};

static void batch_shapes(batch *b)
{
    for (int i = 0; i < b->d.n; i++) {
        trn_shape *s = &b->d.shapes[i];
        const trn_shape *from = b->padded ? &b->padded[i] : s;
        if (from->rank < 0 || from->rank >= TRN_MAX_RANK) {
            *s = trn_shape_unknown();
            continue;
        }
        trn_shape r = {.rank = from->rank + 1};
        r.dim[0] = b->drop_remainder ? b->n : -1;
        memcpy(r.dim + 1, from->dim, (size_t)from->rank * sizeof *r.dim);
        *s = r;
    }
}

int64_t trn_data_batch_size(const trn_ds *d) { return d->op == &batch_op ? ((const batch *)d)->n : -1; }

trn_err trn_data_batch_on(trn_ds **out, trn_ds *in, int64_t n, bool drop_remainder)
{
    batch *b;
    TRN_TRY(trn_ds_new(&b, &batch_op, sizeof *b, &in, 1));
    b->n = n;
    b->drop_remainder = drop_remainder;
    batch_shapes(b);
    *out = &b->d;
    return TRN_OK;
}

trn_err trn_data_batch_args(int64_t *n, bool *drop, const trn_kctx *k)
{
    TRN_TRY(trn_data_i64(n, k, trn_in_arg(k, "batch_size", NULL), "batch_size"));
    TRN_CHECK_ARG(*n > 0, "Batch size must be greater than zero.");
    int has, i = trn_in_arg(k, "drop_remainder", &has);
    return has ? trn_data_bool(drop, k, i, "drop_remainder") : TRN_OK;
}

static trn_err batch_args(batch *b, trn_kctx *k) { return trn_data_batch_args(&b->n, &b->drop_remainder, k); }

static trn_err batch_dataset(trn_kctx *k)
{
    batch *b;
    TRN_TRY(trn_data_on(&b, k, &batch_op, sizeof *b));
    trn_err err = batch_args(b, k);
    if (!err)
        batch_shapes(b);
    return trn_data_out(k, b, err);
}

static trn_err padding_args(batch *b, trn_kctx *k)
{
    int n_shapes, shapes = trn_in_arg(k, "padded_shapes", &n_shapes), n_values, values = trn_in_arg(k, "padding_values", &n_values);
    TRN_CHECK_ARG(n_shapes == b->d.n, "Number of padded shapes (%d) must match the number of components in the input dataset's elements (%d)", n_shapes,
                  b->d.n);
    TRN_CHECK_ARG(n_values == b->d.n, "Number of padding values (%d) must match the number of components in the input dataset's elements (%d)",
                  n_values, b->d.n);
    b->padded = trn_xalloc(((size_t)b->d.n + 1) * sizeof *b->padded);
    b->padding = trn_elem_new(b->d.n);
    for (int i = 0; i < b->d.n; i++) {
        const trn_tensor *s = trn_in(k, shapes + i), *v = trn_in(k, values + i);
        TRN_CHECK_ARG(s->shape.rank == 1, "All padded shapes must be vectors");
        TRN_CHECK_ARG(s->count < TRN_MAX_RANK, "padded shape %d has %lld dimensions", i, (long long)s->count);
        b->padded[i].rank = (int32_t)s->count;
        for (int d = 0; d < s->count; d++) {
            b->padded[i].dim[d] = trn_int_at(s, d);
            TRN_CHECK_ARG(b->padded[i].dim[d] >= -1, "padded shape %d has dimension %lld", i, (long long)b->padded[i].dim[d]);
        }
        TRN_CHECK_ARG(v->shape.rank == 0, "All padding values must be scalars");
        TRN_CHECK_ARG(v->dtype == b->d.types[i], "Mismatched type between padding value %d and input dataset's component %d: %s vs. %s", i, i,
                      trn_dtype_name(v->dtype), trn_dtype_name(b->d.types[i]));
        b->padding->t[i] = trn_tensor_ref(v);
    }
    return TRN_OK;
}

static trn_err padded_batch_dataset(trn_kctx *k)
{
    batch *b;
    TRN_TRY(trn_data_on(&b, k, &batch_op, sizeof *b));
    trn_err err = batch_args(b, k);
    if (!err)
        err = padding_args(b, k);
    if (!err)
        batch_shapes(b);
    return trn_data_out(k, b, err);
}

/* ---- Window ------------------------------------------------------------------------------------------------------- */

typedef struct window_it {
    trn_it it;
    bool over;
    int n, cap;
    struct { /* an element, or what its input failed with: the window that has it fails, the others do not */
        trn_elem *e;
        trn_err err;
    } *v;
    int64_t skip; /* elements still to be left out */
} window_it;

static void window_forget(window_it *it, int n)
{
    for (int i = 0; i < n; i++) {
        trn_elem_free(it->v[i].e);
        trn_err_free(it->v[i].err);
    }
    memmove(it->v, it->v + n, (size_t)(it->n - n) * sizeof *it->v);
    it->n -= n;
}

static void window_stop(trn_it *it_)
{
    window_it *it = (window_it *)it_;
    if (it->n)
        window_forget(it, it->n);
    free(it->v);
}

/* Component by component a dataset of the elements of one window. */
static trn_err make_window(trn_elem **out, const batch *b, const window_it *it)
{
    const trn_ds *in = b->d.in[0];
    int count = 1 + (it->n - 1) / (int)b->stride;
    for (int i = 0; i < count; i++)
        if (it->v[i * b->stride].err)
            return trn_err_copy(it->v[i * b->stride].err);
    trn_elem *w = trn_elem_new(b->d.n);
    for (int c = 0; c < w->n; c++) {
        trn_elem **part = trn_xalloc((size_t)count * sizeof *part);
        for (int i = 0; i < count; i++)
            part[i] = trn_elem_of(&it->v[i * b->stride].e->t[c], 1);
        trn_ds *d;
        trn_err err = trn_data_memory(&d, part, count, 1, &in->types[c], &in->shapes[c]);
        if (!err)
            err = trn_ds_tensor(&w->t[c], d);
        if (err) {
            trn_elem_free(w);
            return err;
        }
    }
    *out = w;
    return TRN_OK;
}

static trn_ds_do window_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    window_it *it = (window_it *)it_;
    const batch *b = (batch *)it_->d;
    int64_t target = (b->n - 1) * b->stride + 1;
    if (why == TRN_DS_ENDED)
        it->over = true;
    if (why == TRN_DS_GOT || why == TRN_DS_ERROR) {
        TRN_PUSH(it->v, it->n, it->cap, (typeof(*it->v)){trn_act_take(a), a->err});
        a->err = TRN_OK;
        if (it->skip > 0) {
            it->skip--;
            window_forget(it, 1); /* it is the only one */
        }
    }
    if (!it->over && it->n < target)
        return trn_act_pull_on(a, it_->in);
    if (it->n == 0 || (b->drop_remainder && it->n < target))
        return TRN_DS_END;
    trn_elem *w = NULL;
    trn_err err = make_window(&w, b, it);
    it->skip = TRN_MAX(b->shift - it->n, 0);
    window_forget(it, (int)TRN_MIN(b->shift, it->n));
    return err ? trn_act_fail(a, err) : trn_act_give(a, w);
}

static int64_t window_count(const trn_ds *d)
{
    const batch *b = (const batch *)d;
    int64_t n = trn_ds_count(d->in[0]);
    if (n < 0)
        return n;
    int64_t target = (b->n - 1) * b->stride + 1;
    if (b->drop_remainder)
        return n < target ? 0 : (n - target) / b->shift + 1;
    return n / b->shift + (n % b->shift != 0);
}

static const trn_ds_op window_op = {"WindowDataset", sizeof(window_it), batch_free, trn_it_start_in, window_next, NULL, window_stop, window_count,
                                    .catches = true};

static trn_err window_dataset(trn_kctx *k)
{
    batch *b;
    TRN_TRY(trn_data_on(&b, k, &window_op, sizeof *b));
    trn_err err = trn_data_i64(&b->n, k, 1, "size");
    if (!err)
        err = trn_data_i64(&b->shift, k, 2, "shift");
    if (!err)
        err = trn_data_i64(&b->stride, k, 3, "stride");
    if (!err)
        err = trn_data_bool(&b->drop_remainder, k, 4, "drop_remainder");
    if (!err && b->n <= 0)
        err = TRN_BAD("Window size must be greater than zero.");
    if (!err && b->shift <= 0)
        err = TRN_BAD("Window shift must be greater than zero.");
    if (!err && b->stride <= 0)
        err = TRN_BAD("Window stride must be greater than zero.");
    int64_t span;
    if (!err && (__builtin_mul_overflow(b->n, b->stride, &span) || span > INT32_MAX))
        err = TRN_BAD("a window spans more than 2^31 elements");
    for (int i = 0; !err && i < b->d.n; i++) {
        b->d.types[i] = TRN_VARIANT;
        b->d.shapes[i] = trn_shape_scalar();
    }
    return trn_data_out(k, b, err);
}

/* ---- Unbatch ------------------------------------------------------------------------------------------------------ */

typedef struct unbatch_it {
    trn_it it;
    trn_elem *e;
    int64_t at, n;
} unbatch_it;

static trn_ds_do unbatch_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    unbatch_it *it = (unbatch_it *)it_;
    if (why == TRN_DS_ENDED)
        return TRN_DS_END;
    if (why == TRN_DS_GOT) {
        trn_elem_free(it->e);
        it->e = trn_act_take(a);
        it->at = it->n = 0;
        for (int c = 0; c < it->e->n; c++) {
            const trn_shape *s = &it->e->t[c]->shape;
            if (s->rank == 0)
                return trn_act_fail(a, TRN_BAD("Input element must have a non-scalar value in each component."));
            if (c > 0 && s->dim[0] != it->n)
                return trn_act_fail(a, TRN_BAD("Input element must have the same batch size in each component. Component 0 had size %lld but component %d "
                                               "had size, %lld.",
                                               (long long)it->n, c, (long long)s->dim[0]));
            it->n = s->dim[0];
        }
    }
    if (it->at >= it->n)
        return trn_act_pull_on(a, it_->in);
    trn_elem *e = trn_elem_new(it->e->n);
    trn_err err = TRN_OK;
    for (int c = 0; !err && c < e->n; c++)
        err = trn_data_slice(&e->t[c], it->e->t[c], it->at);
    it->at++;
    if (!err)
        return trn_act_give(a, e);
    trn_elem_free(e);
    return trn_act_fail(a, err);
}

static void unbatch_stop(trn_it *it) { trn_elem_free(((unbatch_it *)it)->e); }

static int64_t unbatch_count(const trn_ds *d)
{
    int64_t n = trn_ds_count(d->in[0]), size = -1, r;
    for (int i = 0; i < d->in[0]->n; i++)
        if (d->in[0]->shapes[i].rank > 0 && d->in[0]->shapes[i].dim[0] > 0)
            size = d->in[0]->shapes[i].dim[0];
    if (n < 0)
        return n;
    return size < 0 ? TRN_DS_UNKNOWN : __builtin_mul_overflow(n, size, &r) ? INT64_MAX : r;
}

static const trn_ds_op unbatch_op = {"UnbatchDataset", sizeof(unbatch_it), NULL, trn_it_start_in, unbatch_next, NULL, unbatch_stop, unbatch_count};

static trn_err unbatch_dataset(trn_kctx *k)
{
    trn_ds *d;
    TRN_TRY(trn_data_on(&d, k, &unbatch_op, sizeof *d));
    for (int i = 0; i < d->n; i++) {
        trn_shape *s = &d->shapes[i];
        if (s->rank <= 0) {
            *s = trn_shape_unknown();
        } else {
            s->rank--;
            memmove(s->dim, s->dim + 1, (size_t)s->rank * sizeof *s->dim);
        }
    }
    return trn_data_out(k, d, TRN_OK);
}

/* ---- SparseTensorSlice --------------------------------------------------------------------------------------------- */

typedef struct sparse {
    trn_ds d;
    trn_tensor *indices, *values;
    int64_t n;
    trn_shape rest; /* of one slice */
} sparse;

typedef struct sparse_it {
    trn_it it;
    int64_t row, at;
} sparse_it;

static void sparse_free(trn_ds *d)
{
    sparse *s = (sparse *)d;
    trn_tensor_unref(s->indices);
    trn_tensor_unref(s->values);
}

static trn_err sparse_slice(trn_elem *e, const sparse *s, int64_t from, int64_t to)
{
    int rank = s->rest.rank;
    trn_shape is = trn_shape_of(2, to - from, (int64_t)rank), vs = trn_shape_vector(to - from), ds = trn_shape_vector(rank);
    TRN_TRY(trn_tensor_new(&e->t[0], TRN_INT64, &is));
    TRN_TRY(trn_tensor_view(&e->t[1], s->values, from, &vs));
    TRN_TRY(trn_tensor_new(&e->t[2], TRN_INT64, &ds));
    const int64_t *in = TRN_DATA(s->indices, int64_t);
    int64_t *out = TRN_DATA_MUT(e->t[0], int64_t);
    for (int64_t i = from; i < to; i++)
        for (int d = 0; d < rank; d++)
            *out++ = in[i * (rank + 1) + d + 1];
    for (int d = 0; d < rank; d++)
        TRN_DATA_MUT(e->t[2], int64_t)[d] = s->rest.dim[d];
    return TRN_OK;
}

static trn_ds_do sparse_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    sparse_it *it = (sparse_it *)it_;
    const sparse *s = (sparse *)it_->d;
    if (it->row >= s->n)
        return TRN_DS_END;
    const int64_t *in = TRN_DATA(s->indices, int64_t);
    int64_t rank = s->rest.rank + 1, from = it->at, all = s->values->count;
    while (it->at < all && in[it->at * rank] == it->row)
        it->at++;
    it->row++;
    trn_elem *e = trn_elem_new(3);
    trn_err err = sparse_slice(e, s, from, it->at);
    if (!err)
        return trn_act_give(a, e);
    trn_elem_free(e);
    return trn_act_fail(a, err);
}

static int64_t sparse_count(const trn_ds *d) { return ((const sparse *)d)->n; }

static const trn_ds_op sparse_op = {"SparseTensorSliceDataset", sizeof(sparse_it), sparse_free, NULL, sparse_next, .count = sparse_count};

static trn_err sparse_tensor_slice_dataset(trn_kctx *k)
{
    const trn_tensor *in = trn_in(k, 0), *v = trn_in(k, 1), *shape = trn_in(k, 2);
    TRN_CHECK_ARG(in->shape.rank == 2, "Input indices must be a matrix.");
    TRN_CHECK_ARG(v->shape.rank == 1, "Input values must be a vector.");
    TRN_CHECK_ARG(shape->shape.rank == 1 && shape->count > 0 && shape->count < TRN_MAX_RANK, "Input shape must be a vector.");
    TRN_CHECK_ARG(in->shape.dim[0] == v->count, "Number of values must match first dimension of indices. Got %lld values, indices shape: %lld",
                  (long long)v->count, (long long)in->shape.dim[0]);
    TRN_CHECK_ARG(in->shape.dim[1] == shape->count, "Number of dimensions must match second dimension of indices.");
    int64_t rank = shape->count, row = 0;
    const int64_t *x = TRN_DATA(in, int64_t), *size = TRN_DATA(shape, int64_t);
    for (int64_t d = 0; d < rank; d++)
        TRN_CHECK_ARG(size[d] >= 0, "dense_shape[%lld] is negative", (long long)d);
    for (int64_t i = 0; i < v->count; i++) {
        if (x[i * rank] < row)
            return trn_errorf(TRN_UNIMPLEMENTED,
                              "The SparseTensor must be ordered in the batch dimension; handling arbitrarily ordered input is not currently supported.");
        row = x[i * rank];
        for (int64_t d = 0; d < rank; d++)
            TRN_CHECK_ARG(x[i * rank + d] >= 0 && x[i * rank + d] < size[d], "index %lld of entry %lld is out of bounds", (long long)d, (long long)i);
    }
    sparse *s;
    TRN_TRY(trn_ds_new(&s, &sparse_op, sizeof *s, NULL, 0));
    s->indices = trn_tensor_ref(in);
    s->values = trn_tensor_ref(v);
    s->n = size[0];
    s->rest.rank = (int32_t)rank - 1;
    memcpy(s->rest.dim, size + 1, (size_t)(rank - 1) * sizeof *size);
    trn_shape shapes[3] = {trn_shape_of(2, (int64_t)-1, rank - 1), trn_shape_vector(-1), trn_shape_vector(rank - 1)};
    trn_ds_elem_is(&s->d, 3, (trn_dtype[]){TRN_INT64, v->dtype, TRN_INT64}, shapes);
    return trn_data_out(k, s, TRN_OK);
}

const trn_op trn_ops_data_batch[] = {
    {"BatchDataset", "input_dataset:var, batch_size:i64 -> handle:var; " DS_OUT DS_META, trn_sh_dataset, batch_dataset, DS_FLAGS},
    {"BatchDatasetV2", "input_dataset:var, batch_size:i64, drop_remainder:bool -> handle:var; parallel_copy:bool=false, " DS_OUT DS_META, trn_sh_dataset,
     batch_dataset, DS_FLAGS},
    {"PaddedBatchDataset",
     "input_dataset:var, batch_size:i64, padded_shapes:N*i64, padding_values:Toutput_types -> handle:var; Toutput_types:list(type)>=1, "
     "output_shapes:list(shape)>=1, N:int>=1" DS_META,
     trn_sh_dataset, padded_batch_dataset, DS_FLAGS},
    {"PaddedBatchDatasetV2",
     "input_dataset:var, batch_size:i64, padded_shapes:N*i64, padding_values:Toutput_types, drop_remainder:bool -> handle:var; "
     "parallel_copy:bool=false, Toutput_types:list(type)>=1, output_shapes:list(shape)>=1, N:int>=1" DS_META,
     trn_sh_dataset, padded_batch_dataset, DS_FLAGS},
    {"WindowDataset", "input_dataset:var, size:i64, shift:i64, stride:i64, drop_remainder:bool -> handle:var; " DS_OUT DS_META, trn_sh_dataset,
     window_dataset, DS_FLAGS},
    {"ExperimentalUnbatchDataset", "input_dataset:var -> handle:var; " DS_OUT, trn_sh_dataset, unbatch_dataset, DS_FLAGS},
    {"UnbatchDataset", "input_dataset:var -> handle:var; " DS_OUT DS_META, trn_sh_dataset, unbatch_dataset, DS_FLAGS},
    {"SparseTensorSliceDataset", "indices:i64, values:Tvalues, dense_shape:i64 -> handle:var; Tvalues:any", trn_sh_dataset, sparse_tensor_slice_dataset,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {0},
};
