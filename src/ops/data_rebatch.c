/* Datasets that cut batches anew: into parts for replicas, into given sizes, into windows that slide, into sparse tensors. */
#include <stdlib.h>

#include "ops/data.h"

/* Rows [from, to) of the first dim. */
static trn_err rows(trn_tensor **out, const trn_tensor *t, int64_t from, int64_t to)
{
    trn_shape s = t->shape;
    int64_t n = s.dim[0] ? t->count / s.dim[0] : 0;
    s.dim[0] = to - from;
    return trn_tensor_view(out, t, from * n, &s);
}

static void elems_free(trn_elem **e, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        trn_elem_free(e[i]);
}

/* ---- Rebatch: every batch in as many parts as there are replicas ------------------------------------------------------ */

typedef struct rebatch {
    trn_ds d;
    int64_t n; /* replicas, or how many sizes */
    int64_t *size;
    bool drop_remainder;
} rebatch;

typedef struct parts_it {
    trn_it it;
    trn_elem *e;
    int64_t at; /* the part that comes next; 0: of the next batch */
} parts_it;

static void rebatch_free(trn_ds *d) { free(((rebatch *)d)->size); }
static void parts_stop(trn_it *it) { trn_elem_free(((parts_it *)it)->e); }

static trn_err part(trn_elem **out, const trn_elem *e, int64_t at, int64_t n)
{
    trn_elem *p = trn_elem_new(e->n);
    trn_err err = TRN_OK;
    for (int c = 0; !err && c < e->n; c++) { /* components may have batches of different sizes */
        int64_t all = e->t[c]->shape.dim[0], each = all / n + (all % n != 0), from = each == 0 || at >= all / each + 1 ? all : TRN_MIN(each * at, all);
        err = rows(&p->t[c], e->t[c], from, TRN_MIN(from + each, all));
    }
    if (err)
        trn_elem_free(p);
    else
        *out = p;
    return err;
}

static trn_ds_do parts_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    parts_it *it = (parts_it *)it_;
    const rebatch *r = (rebatch *)it_->d;
    if (why == TRN_DS_ENDED)
        return TRN_DS_END;
    if (why == TRN_DS_START && it->at == 0)
        return trn_act_pull_on(a, it_->in);
    if (why == TRN_DS_GOT) {
        trn_elem_free(it->e);
        it->e = trn_act_take(a);
        for (int c = 0; c < it->e->n; c++)
            if (it->e->t[c]->shape.rank == 0)
                return trn_act_fail(a, TRN_BAD("Cannot rebatch dataset: All components must have at least one dimension, but component %d is a scalar. Is the "
                                               "input batched?",
                                               c));
    }
    trn_elem *p;
    trn_err err = part(&p, it->e, it->at, r->n);
    if (err)
        return trn_act_fail(a, err);
    it->at = (it->at + 1) % r->n;
    return trn_act_give(a, p);
}

static const trn_ds_op parts_op = {"RebatchDataset", sizeof(parts_it), rebatch_free, trn_it_start_in, parts_next, .stop = parts_stop};

static trn_err rebatch_dataset(trn_kctx *k)
{
    rebatch *r;
    TRN_TRY(trn_data_on(&r, k, &parts_op, sizeof *r));
    trn_data_elem_attrs(&r->d, k->node);
    trn_err err = trn_data_i64(&r->n, k, 1, "num_replicas");
    if (!err && r->n <= 0)
        err = TRN_BAD("num_replicas must be greater than zero.");
    return trn_data_out(k, r, err);
}

/* ---- RebatchV2: batches of given sizes, in turn ------------------------------------------------------------------------ */

typedef struct sizes_it {
    trn_it it;
    bool over;
    trn_elem *e; /* what is left of the input's batch, from row `row` */
    int64_t row;
    int64_t turn, have;
    int n, cap;
    trn_elem **piece;
} sizes_it;

static void sizes_forget(sizes_it *it)
{
    elems_free(it->piece, it->n);
    it->n = 0;
    it->have = 0;
}

static void sizes_stop(trn_it *it_)
{
    sizes_it *it = (sizes_it *)it_;
    sizes_forget(it);
    free(it->piece);
    trn_elem_free(it->e);
}

static trn_err same_batch(const trn_elem *e)
{
    for (int c = 0; c < e->n; c++) {
        const trn_shape *s = &e->t[c]->shape;
        TRN_CHECK_ARG(s->rank > 0, "Input element must have a non-scalar value in each component.");
        TRN_CHECK_ARG(s->dim[0] == e->t[0]->shape.dim[0], "Input element must have the same batch size in each component. Component 0 had size %lld but component %d had size, %lld.",
                      (long long)e->t[0]->shape.dim[0], c, (long long)s->dim[0]);
    }
    return TRN_OK;
}

/* As many rows as are still wanted, or as there are. */
static trn_err take_rows(sizes_it *it, int64_t want)
{
    int64_t all = it->e->t[0]->shape.dim[0], to = it->row + TRN_MIN(want - it->have, all - it->row);
    trn_elem *p = trn_elem_new(it->e->n);
    for (int c = 0; c < p->n; c++) {
        trn_err err = rows(&p->t[c], it->e->t[c], it->row, to);
        if (err) {
            trn_elem_free(p);
            return err;
        }
    }
    TRN_PUSH(it->piece, it->n, it->cap, p);
    it->have += to - it->row;
    it->row = to;
    if (to == all) {
        trn_elem_free(it->e);
        it->e = NULL;
    }
    return TRN_OK;
}

static trn_err join_pieces(trn_tensor **out, const sizes_it *it, int c)
{
    trn_shape s = it->piece[0]->t[c]->shape;
    for (int i = 1; i < it->n; i++) {
        trn_shape x = it->piece[i]->t[c]->shape;
        x.dim[0] = s.dim[0];
        TRN_CHECK_ARG(trn_shape_eq(&x, &s), "batches of different shapes in component %d cannot be joined", c);
    }
    s.dim[0] = it->have;
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, it->piece[0]->t[c]->dtype, &s));
    trn_err err = TRN_OK;
    for (int64_t i = 0, at = 0; !err && i < it->n; at += it->piece[i++]->t[c]->count)
        err = trn_tensor_copy_elems(t, at, it->piece[i]->t[c], 0, it->piece[i]->t[c]->count);
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

/* A batch of no rows: a replica's turn to have nothing. */
static trn_err no_rows(trn_tensor **out, const trn_ds *d, int c)
{
    trn_shape s = d->shapes[c].rank > 0 ? d->shapes[c] : trn_shape_vector(0);
    s.dim[0] = 0;
    for (int i = 1; i < s.rank; i++)
        s.dim[i] = TRN_MAX(s.dim[i], 0);
    return trn_tensor_new(out, d->types[c], &s);
}

static trn_ds_do sizes_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    sizes_it *it = (sizes_it *)it_;
    const rebatch *r = (rebatch *)it_->d;
    int64_t want = r->size[it->turn];
    trn_err err = TRN_OK;
    if (why == TRN_DS_START) {
        sizes_forget(it);
        if (it->over)
            return TRN_DS_END;
    } else if (why == TRN_DS_ENDED) {
        it->over = true;
    } else if (why == TRN_DS_GOT) {
        if ((err = same_batch(a->elem)))
            return trn_act_fail(a, err);
        it->e = trn_act_take(a);
        it->row = 0;
    }
    while (!err && it->have < want && it->e)
        err = take_rows(it, want);
    if (!err && it->have < want && !it->over)
        return trn_act_pull_on(a, it_->in);
    if (err)
        return trn_act_fail(a, err);
    it->turn = (it->turn + 1) % r->n;
    if ((it->have == 0 && want > 0) || (r->drop_remainder && it->have < want))
        return TRN_DS_END;
    trn_elem *e = trn_elem_new(r->d.n);
    for (int c = 0; !err && c < e->n; c++)
        if (want == 0)
            err = no_rows(&e->t[c], &r->d, c);
        else if (it->n == 1)
            e->t[c] = trn_tensor_ref(it->piece[0]->t[c]);
        else
            err = join_pieces(&e->t[c], it, c);
    sizes_forget(it);
    if (!err)
        return trn_act_give(a, e);
    trn_elem_free(e);
    return trn_act_fail(a, err);
}

static const trn_ds_op sizes_op = {"RebatchDatasetV2", sizeof(sizes_it), rebatch_free, trn_it_start_in, sizes_next, .stop = sizes_stop};

static trn_err sizes_args(rebatch *r, trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 1);
    TRN_CHECK_ARG(t->shape.rank <= 1, "`batch_sizes` must be a scalar or a vector.");
    TRN_CHECK_ARG(t->count > 0, "`batch_sizes` is empty");
    TRN_CHECK_ARG(r->d.n == r->d.in[0]->n, "output_types has %d entries, the input %d", r->d.n, r->d.in[0]->n);
    r->size = trn_xalloc((size_t)t->count * sizeof *r->size);
    for (r->n = 0; r->n < t->count; r->n++) {
        r->size[r->n] = TRN_DATA(t, int64_t)[r->n];
        TRN_CHECK_ARG(r->size[r->n] >= 0, "batch_sizes[%lld] is negative", (long long)r->n);
    }
    return trn_data_bool(&r->drop_remainder, k, 2, "drop_remainder");
}

static trn_err rebatch_dataset_v2(trn_kctx *k)
{
    rebatch *r;
    TRN_TRY(trn_data_on(&r, k, &sizes_op, sizeof *r));
    trn_data_elem_attrs(&r->d, k->node);
    return trn_data_out(k, r, sizes_args(r, k));
}

/* ---- SlidingWindow ------------------------------------------------------------------------------------------------------ */

typedef struct slide {
    trn_ds d;
    int64_t size, shift, stride, span;
    bool drop_remainder;
} slide;

typedef struct slide_it {
    trn_it it;
    bool over;
    int64_t n, cap;
    trn_elem **e;
    int64_t skip; /* elements that fall between this window and the next */
    int64_t n_w;
    trn_elem **w; /* this window's, while those between are passed over */
} slide_it;

static void window_forget(slide_it *it)
{
    elems_free(it->w, it->n_w);
    free(it->w);
    it->w = NULL;
    it->n_w = 0;
}

static void slide_stop(trn_it *it_)
{
    slide_it *it = (slide_it *)it_;
    elems_free(it->e, it->n);
    free(it->e);
    window_forget(it);
}

static void cut_window(slide_it *it, const slide *s)
{
    it->w = trn_xalloc((size_t)(1 + (it->n - 1) / s->stride) * sizeof *it->w);
    for (int64_t i = 0; i < it->n; i += TRN_MIN(s->stride, it->n))
        it->w[it->n_w++] = trn_elem_copy(it->e[i]);
    it->skip = TRN_MAX(s->shift - it->n, 0);
}

/* Only now: what fails while elements are passed over leaves the window to be given again, as in TensorFlow. */
static void move_on(slide_it *it, const slide *s)
{
    int64_t gone = TRN_MIN(s->shift, it->n);
    elems_free(it->e, gone);
    it->n -= gone;
    memmove(it->e, it->e + gone, (size_t)it->n * sizeof *it->e);
}

static trn_ds_do slide_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    slide_it *it = (slide_it *)it_;
    const slide *s = (slide *)it_->d;
    if (why == TRN_DS_START) {
        window_forget(it);
        it->skip = 0;
    } else if (why == TRN_DS_ENDED) {
        it->over = true;
    } else if (why == TRN_DS_GOT && it->w) {
        it->skip--;
    } else if (why == TRN_DS_GOT) {
        TRN_PUSH(it->e, it->n, it->cap, trn_act_take(a));
    }
    if (!it->w) {
        if (!it->over && it->n < s->span)
            return trn_act_pull_on(a, it_->in);
        if (it->n == 0 || (it->n < s->span && s->drop_remainder))
            return TRN_DS_END;
        cut_window(it, s);
    }
    if (!it->over && it->skip > 0)
        return trn_act_pull_on(a, it_->in);
    move_on(it, s);
    trn_elem *e;
    trn_err err = trn_data_batch(&e, it->w, it->n_w);
    window_forget(it);
    return err ? trn_act_fail(a, err) : trn_act_give(a, e);
}

static int64_t slide_count(const trn_ds *d)
{
    const slide *s = (const slide *)d;
    int64_t n = trn_ds_count(d->in[0]);
    return n < 0 ? n : n / s->shift + (!s->drop_remainder && n % s->shift != 0);
}

static const trn_ds_op slide_op = {"SlidingWindowDataset", sizeof(slide_it), NULL, trn_it_start_in, slide_next, .stop = slide_stop, .count = slide_count};

static trn_err slide_args(slide *s, trn_kctx *k)
{
    TRN_TRY(trn_data_i64(&s->size, k, 1, "window_size"));
    TRN_CHECK_ARG(s->size > 0, "Window size must be greater than zero.");
    TRN_TRY(trn_data_i64(&s->shift, k, 2, "window_shift"));
    TRN_CHECK_ARG(s->shift > 0, "Window shift must be greater than zero.");
    TRN_TRY(trn_data_i64(&s->stride, k, 3, "window_stride"));
    TRN_CHECK_ARG(s->stride > 0, "window_stride must be greater than zero.");
    if (__builtin_mul_overflow(s->size - 1, s->stride, &s->span) || __builtin_add_overflow(s->span, 1, &s->span))
        s->span = INT64_MAX;
    s->drop_remainder = trn_node_attr(k->node, "drop_remainder") ? trn_attr_bool(k->node, "drop_remainder") : true;
    for (int c = 0; c < s->d.n; c++) {
        trn_shape *x = &s->d.shapes[c];
        if (x->rank < 0 || x->rank >= TRN_MAX_RANK) {
            *x = trn_shape_unknown();
            continue;
        }
        memmove(x->dim + 1, x->dim, (size_t)x->rank++ * sizeof *x->dim);
        x->dim[0] = -1;
    }
    return TRN_OK;
}

static trn_err sliding_window_dataset(trn_kctx *k)
{
    slide *s;
    TRN_TRY(trn_data_on(&s, k, &slide_op, sizeof *s));
    return trn_data_out(k, s, slide_args(s, k));
}

/* ---- DenseToSparseBatch: a batch of dense rows as one sparse tensor ------------------------------------------------------- */

typedef struct sparse_batch {
    trn_ds d;
    int64_t n;
    trn_shape row; /* -1: as long as the longest */
} sparse_batch;

typedef struct sparse_batch_it {
    trn_it it;
    bool over;
    int64_t n, cap;
    trn_elem **e;
} sparse_batch_it;

static void sparse_batch_forget(sparse_batch_it *it)
{
    elems_free(it->e, it->n);
    it->n = 0;
}

static void sparse_batch_stop(trn_it *it_)
{
    sparse_batch_it *it = (sparse_batch_it *)it_;
    sparse_batch_forget(it);
    free(it->e);
}

static trn_err check_row(const sparse_batch *b, const trn_shape *s)
{
    char x[TRN_SHAPE_TEXT], y[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->rank == b->row.rank, "Input element had shape (%s) that is incompatible with the row shape (%s).", trn_shape_text(x, s), trn_shape_text(y, &b->row));
    for (int i = 0; i < s->rank; i++)
        if (b->row.dim[i] >= 0 && s->dim[i] > b->row.dim[i])
            return trn_errorf(TRN_DATA_LOSS, "Input element had shape (%s) that is larger than the row shape (%s).", trn_shape_text(x, s), trn_shape_text(y, &b->row));
    return TRN_OK;
}

static void fill_indices(int64_t *ix, int64_t row, const trn_shape *s, int64_t count)
{
    for (int64_t j = 0; j < count; j++, ix += s->rank + 1) {
        ix[0] = row;
        for (int64_t d = s->rank - 1, rest = j; d >= 0; rest /= s->dim[d--])
            ix[d + 1] = rest % s->dim[d];
    }
}

static trn_err sparse_rows(trn_tensor *p[3], const sparse_batch *b, const sparse_batch_it *it)
{
    int64_t total = 0, rank = b->row.rank;
    for (int64_t i = 0; i < it->n; i++)
        total += it->e[i]->t[0]->count;
    trn_shape is = trn_shape_of(2, total, rank + 1), vs = trn_shape_vector(total), ds = trn_shape_vector(rank + 1);
    TRN_TRY(trn_tensor_new(&p[0], TRN_INT64, &is));
    TRN_TRY(trn_tensor_new(&p[1], it->e[0]->t[0]->dtype, &vs));
    TRN_TRY(trn_tensor_new(&p[2], TRN_INT64, &ds));
    int64_t *dense = TRN_DATA_MUT(p[2], int64_t);
    dense[0] = it->n;
    for (int d = 0; d < rank; d++)
        dense[d + 1] = TRN_MAX(b->row.dim[d], 0);
    int64_t *ix = TRN_DATA_MUT(p[0], int64_t);
    for (int64_t i = 0, at = 0; i < it->n; i++) {
        const trn_tensor *t = it->e[i]->t[0];
        fill_indices(ix + at * (rank + 1), i, &t->shape, t->count);
        TRN_TRY(trn_tensor_copy_elems(p[1], at, t, 0, t->count));
        for (int d = 0; d < rank; d++)
            dense[d + 1] = TRN_MAX(dense[d + 1], t->shape.dim[d]);
        at += t->count;
    }
    return TRN_OK;
}

static trn_ds_do sparse_batch_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    sparse_batch_it *it = (sparse_batch_it *)it_;
    const sparse_batch *b = (sparse_batch *)it_->d;
    trn_err err;
    if (why == TRN_DS_START)
        sparse_batch_forget(it);
    if (why == TRN_DS_GOT) {
        if ((err = check_row(b, &a->elem->t[0]->shape)))
            return trn_act_fail(a, err);
        TRN_PUSH(it->e, it->n, it->cap, trn_act_take(a));
    }
    if (why == TRN_DS_ENDED)
        it->over = true;
    if (!it->over && it->n < b->n)
        return trn_act_pull_on(a, it_->in);
    if (it->n == 0)
        return TRN_DS_END;
    trn_tensor *p[3] = {0};
    trn_elem *e = trn_elem_new(1);
    err = sparse_rows(p, b, it);
    if (!err)
        err = trn_box_sparse(&e->t[0], p);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(p[i]);
    sparse_batch_forget(it);
    if (!err)
        return trn_act_give(a, e);
    trn_elem_free(e);
    return trn_act_fail(a, err);
}

static int64_t sparse_batch_count(const trn_ds *d)
{
    const sparse_batch *b = (const sparse_batch *)d;
    int64_t n = trn_ds_count(d->in[0]);
    return n < 0 ? n : n / b->n + (n % b->n != 0);
}

static const trn_ds_op sparse_batch_op = {"DenseToSparseBatchDataset", sizeof(sparse_batch_it), NULL, trn_it_start_in, sparse_batch_next, NULL, sparse_batch_stop, sparse_batch_count};

static trn_err sparse_batch_args(sparse_batch *b, trn_kctx *k)
{
    TRN_CHECK_ARG(b->d.n == 1, "DenseToSparseBatchDataset only supports inputs with a single component.");
    TRN_TRY(trn_data_i64(&b->n, k, 1, "batch_size"));
    TRN_CHECK_ARG(b->n > 0, "Batch size must be greater than zero.");
    const trn_tensor *t = trn_in(k, 2);
    TRN_CHECK_ARG(t->shape.rank == 1, "row_shape must be a vector");
    TRN_CHECK_ARG(t->count < TRN_MAX_RANK, "row_shape has %lld dimensions", (long long)t->count);
    trn_shape out = {.rank = (int32_t)t->count + 1};
    out.dim[0] = -1;
    b->row.rank = (int32_t)t->count;
    for (int i = 0; i < t->count; i++) {
        b->row.dim[i] = out.dim[i + 1] = TRN_DATA(t, int64_t)[i];
        TRN_CHECK_ARG(b->row.dim[i] >= -1, "row_shape[%d] is %lld", i, (long long)b->row.dim[i]);
    }
    trn_ds_elem_is(&b->d, 1, (trn_dtype[]){TRN_VARIANT}, &out);
    return TRN_OK;
}

static trn_err dense_to_sparse_batch_dataset(trn_kctx *k)
{
    sparse_batch *b;
    TRN_TRY(trn_data_on(&b, k, &sparse_batch_op, sizeof *b));
    return trn_data_out(k, b, sparse_batch_args(b, k));
}

#define WINDOW "input_dataset:var, window_size:i64, window_shift:i64, window_stride:i64 -> handle:var; "
#define REPLICAS "input_dataset:var, num_replicas:i64 -> handle:var; " DS_OUT ", use_fallback:bool=true"
#define TO_SPARSE "input_dataset:var, batch_size:i64, row_shape:i64 -> handle:var; " DS_OUT

const trn_op trn_ops_data_rebatch[] = {
    {"RebatchDataset", REPLICAS, trn_sh_dataset, rebatch_dataset, DS_FLAGS},
    {"ExperimentalRebatchDataset", REPLICAS, trn_sh_dataset, rebatch_dataset, DS_FLAGS},
    {"RebatchDatasetV2", "input_dataset:var, batch_sizes:i64, drop_remainder:bool -> handle:var; " DS_OUT, trn_sh_dataset, rebatch_dataset_v2, DS_FLAGS},
    {"SlidingWindowDataset", WINDOW "drop_remainder:bool=true, " DS_OUT, trn_sh_dataset, sliding_window_dataset, DS_FLAGS},
    {"ExperimentalSlidingWindowDataset", WINDOW DS_OUT, trn_sh_dataset, sliding_window_dataset, DS_FLAGS},
    {"DenseToSparseBatchDataset", TO_SPARSE, trn_sh_dataset, dense_to_sparse_batch_dataset, DS_FLAGS},
    {"ExperimentalDenseToSparseBatchDataset", TO_SPARSE, trn_sh_dataset, dense_to_sparse_batch_dataset, DS_FLAGS},
    {0},
};
