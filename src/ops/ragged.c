/* Ragged tensors: rows of different lengths, as values and vectors of splits. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "ops/kern.h"
#include "ops/data.h"
#include "ops/variant.h"

/* n elements of src from `from` into dst at `at`. Any dtype. */
static trn_err copy_elems(trn_tensor *dst, int64_t at, const trn_tensor *src, int64_t from, int64_t n)
{
    int64_t one = 1;
    return n ? trn_block_copy(NULL, dst, at, &one, src, from, &one, &n, 1) : TRN_OK;
}

static int64_t last_of(const trn_tensor *t) { return trn_int_at(t, t->count - 1); }

/* Splits from 0, never falling, each level as long as the one above it says, the last one as the values say. */
static trn_err check_splits(const trn_kctx *k, int first, int n, const trn_tensor *values)
{
    for (int i = 0; i < n; i++) {
        const trn_tensor *s = trn_in(k, first + i);
        TRN_CHECK_ARG(s->count > 0, "ragged splits may not be empty.");
        TRN_CHECK_ARG(trn_int_at(s, 0) == 0, "First value of ragged splits must be 0.");
        for (int64_t j = 1; j < s->count; j++)
            TRN_CHECK_ARG(trn_int_at(s, j) >= trn_int_at(s, j - 1), "Ragged splits should be non decreasing, but %" PRId64 " is followed by %" PRId64,
                          trn_int_at(s, j - 1), trn_int_at(s, j));
        int64_t rows = i + 1 < n ? trn_in(k, first + i + 1)->count - 1 : values->shape.dim[0];
        TRN_CHECK_ARG(last_of(s) == rows, "Final value of ragged splits must match the length of what they split: %" PRId64 " and %" PRId64, last_of(s), rows);
    }
    return TRN_OK;
}

/* ---- RaggedTensorToSparse -------------------------------------------------------------------------------------------------- */

static trn_err to_sparse(trn_kctx *k)
{
    int n = k->n_in - 1;
    const trn_tensor *values = trn_in(k, n);
    TRN_CHECK_ARG(values->shape.rank >= 1, "the values of a ragged tensor have at least one dimension");
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, i)), "ragged splits must be vectors");
    TRN_TRY(check_splits(k, 0, n, values));
    int rank = n + values->shape.rank;
    trn_tensor *indices, *flat, *shape;
    trn_shape s = {.rank = 2, .dim = {values->count, rank}}, v1 = trn_shape_vector(rank), all = trn_shape_vector(values->count);
    TRN_TRY(trn_out_new(&indices, k, 0, TRN_INT64, &s));
    TRN_TRY(trn_out_new(&shape, k, 2, TRN_INT64, &v1));
    TRN_TRY(trn_tensor_view(&flat, values, 0, &all));
    trn_out_set(k, 1, flat);
    int64_t *d = TRN_DATA_MUT(shape, int64_t);
    d[0] = trn_in(k, 0)->count - 1;
    for (int i = 0; i < n; i++) {
        d[i + 1] = 0;
        for (int64_t j = 1; j < trn_in(k, i)->count; j++)
            d[i + 1] = TRN_MAX(d[i + 1], trn_int_at(trn_in(k, i), j) - trn_int_at(trn_in(k, i), j - 1));
    }
    for (int i = 1; i < values->shape.rank; i++)
        d[n + i] = values->shape.dim[i];

    int64_t *out = TRN_DATA_MUT(indices, int64_t), inner = values->shape.dim[0] ? values->count / values->shape.dim[0] : 0;
    int64_t *row = calloc((size_t)n, sizeof *row); /* per level: the row that the present value lies in */
    if (!row)
        return trn_err_oom();
    for (int64_t v = 0; v < values->shape.dim[0]; v++) {
        int64_t at = v;
        for (int i = n - 1; i >= 0; i--) {
            const trn_tensor *sp = trn_in(k, i);
            while (trn_int_at(sp, row[i] + 1) <= at)
                row[i]++;
            for (int64_t q = 0; q < inner; q++)
                out[(v * inner + q) * rank + i + 1] = at - trn_int_at(sp, row[i]);
            at = row[i];
        }
        for (int64_t q = 0; q < inner; q++) {
            out[(v * inner + q) * rank] = at;
            int64_t rest = q;
            for (int i = values->shape.rank - 1; i >= 1; i--) {
                out[(v * inner + q) * rank + n + i] = rest % values->shape.dim[i];
                rest /= values->shape.dim[i];
            }
        }
    }
    free(row);
    return TRN_OK;
}
static trn_err sh_to_sparse(trn_shctx *s)
{
    int rank = s->in[s->n_in - 1].rank;
    s->out[0] = (trn_shape){.rank = 2, .dim = {-1, rank < 0 ? -1 : rank + s->n_in - 1}};
    s->out[1] = trn_shape_vector(-1);
    s->out[2] = trn_shape_vector(rank < 0 ? -1 : rank + s->n_in - 1);
    return TRN_OK;
}

/* ---- RaggedRange ------------------------------------------------------------------------------------------------------------ */

static double num_at(const trn_tensor *t, int64_t i)
{
    i = trn_is_scalar(t) ? 0 : i;
    if (t->dtype == TRN_FLOAT)
        return (double)TRN_DATA(t, float)[i];
    if (t->dtype == TRN_DOUBLE)
        return TRN_DATA(t, double)[i];
    float f;
    trn_widen(&f, TRN_DATA(t, uint16_t) + i, t->dtype, 1);
    return (double)f;
}

/* How many steps of delta lead from start to limit; false when that is no number we can hold. */
static bool steps(int64_t *out, const trn_tensor *a, const trn_tensor *b, const trn_tensor *c, int64_t i)
{
    if (a->dtype == TRN_INT32 || a->dtype == TRN_INT64) {
        int64_t start = trn_int_at(a, trn_is_scalar(a) ? 0 : i), limit = trn_int_at(b, trn_is_scalar(b) ? 0 : i), delta = trn_int_at(c, trn_is_scalar(c) ? 0 : i);
        bool none = (delta > 0 && limit <= start) || (delta < 0 && limit >= start);
        __int128 way = (__int128)limit - start, step = delta;
        if (way < 0)
            way = -way, step = -step;
        *out = none ? 0 : (int64_t)((way + step - 1) / step);
        return true;
    }
    double start = num_at(a, i), limit = num_at(b, i), delta = num_at(c, i);
    bool none = (delta > 0 && limit < start) || (delta < 0 && limit > start);
    double n = none ? 0 : ceil(fabs(a->dtype == TRN_FLOAT ? (double)(((float)limit - (float)start) / (float)delta) : (limit - start) / delta));
    if (!(n >= 0 && n < 9e18))
        return false;
    *out = (int64_t)n;
    return true;
}

static trn_err ragged_range(trn_kctx *k)
{
    static const char *const what[] = {"starts", "limits", "deltas"};
    const trn_tensor *in[3];
    int64_t rows = -1;
    for (int i = 0; i < 3; i++) {
        in[i] = trn_in(k, i);
        TRN_CHECK_ARG(in[i]->shape.rank <= 1, "%s must be a scalar or vector", what[i]);
        if (trn_is_scalar(in[i]))
            continue;
        TRN_CHECK_ARG(rows < 0 || rows == in[i]->count, "starts, limits, and deltas must have the same shape");
        rows = in[i]->count;
    }
    rows = rows < 0 ? 1 : rows;
    trn_dtype st = k->node->out_types[0], dt = in[0]->dtype;
    trn_tensor *splits, *y;
    trn_shape s = trn_shape_vector(rows + 1);
    TRN_TRY(trn_out_new(&splits, k, 0, st, &s));
    int64_t most = st == TRN_INT32 ? INT32_MAX : INT64_MAX, total = 0;
    trn_int_put(splits, 0, 0);
    for (int64_t i = 0; i < rows; i++) {
        int64_t n;
        bool whole = dt == TRN_INT32 || dt == TRN_INT64;
        double delta = whole ? (double)trn_int_at(in[2], trn_is_scalar(in[2]) ? 0 : i) : num_at(in[2], i);
        TRN_CHECK_ARG(delta != 0, "Requires delta != 0");
        TRN_CHECK_ARG(steps(&n, in[0], in[1], in[2], i), "row %" PRId64 " of the range has no end", i);
        TRN_CHECK_ARG(n <= most - total, "The total range size overflowed. Consider int64 for row_splits_dtype");
        total += n;
        trn_int_put(splits, i + 1, total);
    }
    s = trn_shape_vector(total);
    TRN_TRY(trn_count_checked(&(int64_t){0}, &s));
    TRN_TRY(trn_out_new(&y, k, 1, dt, &s));
    for (int64_t i = 0, at = 0; i < rows; i++) {
        int64_t n = trn_int_at(splits, i + 1) - at;
        if (dt == TRN_INT32 || dt == TRN_INT64) {
            uint64_t v = (uint64_t)trn_int_at(in[0], trn_is_scalar(in[0]) ? 0 : i), d = (uint64_t)trn_int_at(in[2], trn_is_scalar(in[2]) ? 0 : i);
            for (int64_t q = 0; q < n; q++, v += d)
                trn_int_put(y, at + q, (int64_t)v);
        } else if (dt == TRN_DOUBLE) {
            double v = num_at(in[0], i), d = num_at(in[2], i);
            for (int64_t q = 0; q < n; q++, v += d)
                TRN_DATA_MUT(y, double)[at + q] = v;
        } else {
            float v = (float)num_at(in[0], i), d = (float)num_at(in[2], i);
            for (int64_t q = 0; q < n; q++) {
                if (dt == TRN_FLOAT)
                    TRN_DATA_MUT(y, float)[at + q] = v;
                else
                    trn_narrow(TRN_DATA_MUT(y, uint16_t) + at + q, &v, dt, 1);
                v += d;
                if (dt != TRN_FLOAT) { /* bfloat16 adds up in bfloat16 */
                    uint16_t h;
                    trn_narrow(&h, &v, dt, 1);
                    trn_widen(&v, &h, dt, 1);
                }
            }
        }
        at += n;
    }
    return TRN_OK;
}
static trn_err sh_ragged_range(trn_shctx *s)
{
    int64_t n = 1;
    for (int i = 0; i < 3; i++)
        if (s->in[i].rank != 0)
            n = s->in[i].rank == 1 && n != -1 && s->in[i].dim[0] >= 0 ? s->in[i].dim[0] : -1;
    s->out[0] = trn_shape_vector(n < 0 ? -1 : n + 1);
    s->out[1] = trn_shape_vector(-1);
    return TRN_OK;
}

/* Output i: splits of the rows of a uniform shape's dim i, all as long as its next dim. *lead: how many rows the dims before make, then this one too. */
static trn_err uniform_splits(int64_t *lead, trn_kctx *k, int i, trn_dtype st, const trn_shape *shape)
{
    trn_tensor *y;
    *lead *= shape->dim[i]; /* a shape's dims before the first 0 multiply to no more than 2^62 */
    trn_shape s = trn_shape_vector(*lead + 1);
    TRN_TRY(trn_out_new(&y, k, i, st, &s));
    for (int64_t q = 0; q <= *lead; q++)
        trn_int_put(y, q, q * shape->dim[i + 1]);
    return TRN_OK;
}

/* ---- RaggedGather ------------------------------------------------------------------------------------------------------------ */

typedef struct span {
    int64_t from, to;
} span;

static trn_err ragged_gather(trn_kctx *k)
{
    int n = (int)trn_attr_int(k->node, "PARAMS_RAGGED_RANK");
    const trn_tensor *values = trn_in(k, n), *ids = trn_in(k, n + 1);
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, i)) && trn_in(k, i)->count, "Split tensors must not be scalars, and Ragged splits may not be empty");
    int64_t rows = trn_in(k, 0)->count - 1;
    for (int64_t i = 0; i < ids->count; i++)
        TRN_CHECK_ARG(trn_int_at(ids, i) >= 0 && trn_int_at(ids, i) < rows, "indices[%" PRId64 "] = %" PRId64 " is not in [0, %" PRId64 ")", i,
                      trn_int_at(ids, i), rows);
    TRN_CHECK_ARG(values->shape.rank > 0, "params.rank must be nonzero");
    for (int i = 0; i < n; i++) {
        const trn_tensor *s = trn_in(k, i);
        int64_t most = i + 1 < n ? trn_in(k, i + 1)->count - 1 : values->shape.dim[0];
        TRN_CHECK_ARG(trn_int_at(s, 0) >= 0, "Ragged splits must be non-negative");
        TRN_CHECK_ARG(last_of(s) <= most, "Ragged splits must not point past values");
        for (int64_t j = 1; j < s->count; j++)
            TRN_CHECK_ARG(trn_int_at(s, j - 1) <= trn_int_at(s, j), "Ragged splits must be sorted");
    }
    int outer = ids->shape.rank - 1; /* uniform dimensions that come from the shape of indices; -1: a scalar takes one level away */
    TRN_CHECK_ARG(k->n_out - 1 == outer + n, "OUTPUT_RAGGED_RANK is %d, but indices of rank %d give %d", k->n_out - 1, ids->shape.rank, outer + n);
    trn_dtype st = trn_attr_type(k->node, "Tsplits");
    int64_t lead = 1;
    for (int i = 0; i < outer; i++)
        TRN_TRY(uniform_splits(&lead, k, i, st, &ids->shape));
    span *rng = malloc(sizeof *rng * (size_t)(ids->count + 1)); /* what each index takes, level by level */
    if (!rng)
        return trn_err_oom();
    for (int64_t i = 0; i < ids->count; i++)
        rng[i] = (span){trn_int_at(ids, i), trn_int_at(ids, i) + 1};
    trn_err err = TRN_OK;
    for (int lvl = 0; lvl < n && !err; lvl++) {
        const trn_tensor *sp = trn_in(k, lvl);
        int64_t total = 0, sum = 0;
        for (int64_t i = 0; i < ids->count; i++)
            total += rng[i].to - rng[i].from;
        int out = outer + lvl;
        trn_tensor *y = NULL;
        trn_shape s = trn_shape_vector(total + 1);
        if (out >= 0)
            err = trn_out_new(&y, k, out, st, &s);
        if (y && !err)
            trn_int_put(y, 0, 0);
        for (int64_t i = 0, at = 1; i < ids->count && !err; i++) {
            for (int64_t q = rng[i].from; q < rng[i].to; q++, at++) {
                sum += trn_int_at(sp, q + 1) - trn_int_at(sp, q);
                if (y)
                    trn_int_put(y, at, sum);
            }
            rng[i] = (span){trn_int_at(sp, rng[i].from), trn_int_at(sp, rng[i].to)};
        }
    }
    int64_t total = 0, inner = 1, count, at = 0;
    for (int64_t i = 0; i < ids->count; i++)
        total += rng[i].to - rng[i].from;
    trn_shape s = values->shape;
    s.dim[0] = total;
    for (int i = 1; i < s.rank; i++)
        inner = trn_times(inner, s.dim[i]);
    trn_tensor *y;
    if (!err)
        err = trn_count_checked(&count, &s);
    if (!err)
        err = trn_out_new(&y, k, k->n_out - 1, values->dtype, &s);
    for (int64_t i = 0; i < ids->count && !err; i++) {
        int64_t m = (rng[i].to - rng[i].from) * inner;
        err = copy_elems(y, at, values, rng[i].from * inner, m);
        at += m;
    }
    free(rng);
    return err;
}
static trn_err sh_ragged_gather(trn_shctx *s)
{
    for (int i = 0; i < s->n_out - 1; i++)
        s->out[i] = trn_shape_vector(-1);
    trn_shape v = s->in[s->n_in - 2];
    if (v.rank > 0)
        v.dim[0] = -1;
    s->out[s->n_out - 1] = v;
    return TRN_OK;
}

/* ---- RaggedTensorToTensor ------------------------------------------------------------------------------------------------------ */

typedef enum part_kind { FIRST_DIM, ROW_IDS, SPLITS } part_kind;

static trn_err part_at(part_kind *out, const trn_node *n, int i)
{
    const trn_attr *a = trn_node_attr(n, "row_partition_types");
    TRN_CHECK_ARG(a && a->is_list && i < a->n, "row_partition_types has no entry %d", i);
    const char *p = a->list[i].s.p;
    if (!strcmp(p, "FIRST_DIM_SIZE"))
        *out = FIRST_DIM;
    else if (!strcmp(p, "VALUE_ROWIDS"))
        *out = ROW_IDS;
    else if (!strcmp(p, "ROW_SPLITS"))
        *out = SPLITS;
    else
        return TRN_BAD("Cannot handle partition type %s", p);
    return TRN_OK;
}

static int64_t widest(const trn_tensor *t, part_kind kind)
{
    int64_t w = 0, run = 0;
    for (int64_t i = kind == SPLITS; i < t->count; i++) {
        if (kind == SPLITS)
            run = trn_int_at(t, i) - trn_int_at(t, i - 1);
        else
            run = i && trn_int_at(t, i) == trn_int_at(t, i - 1) ? run + 1 : 1;
        w = run > w ? run : w;
    }
    return w;
}

typedef struct places {
    int64_t *at; /* where in the result the first element of each row goes; -1: nowhere */
    int64_t n;
} places;

/* One level down: where the children of `up` go, `step` apart, at most `width` of each. */
static trn_err descend(places *down, const places *up, const trn_tensor *t, part_kind kind, int64_t step, int64_t width)
{
    int64_t n = kind == SPLITS ? t->count ? last_of(t) : 0 : t->count;
    TRN_CHECK_ARG(n >= 0 && n <= INT64_C(1) << 40, "Invalid row split size");
    down->at = malloc(sizeof *down->at * (size_t)(n + 1));
    down->n = 0;
    if (!down->at)
        return trn_err_oom();
    if (kind == SPLITS) {
        TRN_CHECK_ARG(t->count - 1 <= up->n, "Row partition size is greater than output size: %" PRId64 " > %" PRId64, t->count - 1, up->n);
        for (int64_t i = 0; i + 1 < t->count; i++) {
            int64_t len = trn_int_at(t, i + 1) - trn_int_at(t, i);
            TRN_CHECK_ARG(len >= 0 && len <= n - down->n, "Invalid row split size.");
            for (int64_t q = 0; q < len; q++)
                down->at[down->n++] = up->at[i] < 0 || q >= width ? -1 : up->at[i] + q * step;
        }
        TRN_CHECK_ARG(down->n == n, "Invalid row split size.");
        return TRN_OK;
    }
    int64_t col = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = trn_int_at(t, i);
        TRN_CHECK_ARG(row >= 0 && row < up->n, "Got value_rowid=%" PRId64 " which is not less than %" PRId64, row, up->n);
        col = i && row == trn_int_at(t, i - 1) ? col + 1 : 0;
        down->at[down->n++] = up->at[row] < 0 || col >= width ? -1 : up->at[row] + col * step;
    }
    return TRN_OK;
}

/* The wanted shape (maybe with holes, maybe unknown) with what the values say of the inner dimensions. */
static trn_err dense_shape(trn_shape *out, const trn_tensor *want, const trn_shape *values, int ragged_rank)
{
    int rank = ragged_rank + values->rank;
    TRN_CHECK_ARG(rank <= TRN_MAX_RANK, "the result would have %d dimensions", rank);
    *out = (trn_shape){.rank = rank};
    bool any = trn_is_scalar(want);
    TRN_CHECK_ARG(!any || trn_int_at(want, 0) == -1, "shape must be a vector, or -1 for an unknown one");
    TRN_CHECK_ARG(any || (trn_is_vector(want) && want->count == rank), "shape has %" PRId64 " dimensions, the ragged tensor %d", want->count, rank);
    for (int i = 0; i < rank; i++) {
        int64_t d = any ? -1 : trn_int_at(want, i), v = i > ragged_rank ? values->dim[i - ragged_rank] : -1;
        TRN_CHECK_ARG(d >= -1, "dimension %d of the wanted shape is %" PRId64, i, d);
        TRN_CHECK_ARG(d < 0 || v < 0 || d == v, "dimension %d of the wanted shape is %" PRId64 ", the values say %" PRId64, i, d, v);
        out->dim[i] = d < 0 ? v : d;
    }
    return TRN_OK;
}

static trn_err fill_dense(trn_tensor *y, const places *p, const trn_tensor *values, const trn_tensor *dflt, int64_t inner)
{
    for (int64_t i = 0; i < y->count; i += inner)
        TRN_TRY(dflt->count == 1 ? trn_fill_elems(y, i, inner, dflt, 0) : copy_elems(y, i, dflt, 0, inner));
    TRN_CHECK_ARG(p->n <= values->shape.dim[0], "the row partitions name %" PRId64 " values, there are %" PRId64, p->n, values->shape.dim[0]);
    for (int64_t i = 0; i < p->n; i++)
        if (p->at[i] >= 0)
            TRN_TRY(copy_elems(y, p->at[i] * inner, values, i * inner, inner));
    return TRN_OK;
}

/* default_value broadcast to the shape of one value. */
static trn_err spread_default(trn_tensor **out, const trn_tensor *d, const trn_shape *values)
{
    trn_shape want = {.rank = values->rank - 1};
    for (int i = 0; i < want.rank; i++)
        want.dim[i] = values->dim[i + 1];
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    int skip = want.rank - d->shape.rank;
    bool fits = skip >= 0;
    int64_t stride[TRN_MAX_RANK], from[TRN_MAX_RANK], to[TRN_MAX_RANK];
    trn_row_strides(stride, &d->shape);
    trn_row_strides(to, &want);
    for (int i = 0; i < want.rank && fits; i++) {
        /* TensorFlow also compares the dimensions from the front, where no broadcast asks for it */
        fits = (i >= d->shape.rank || d->shape.dim[i] == 1 || d->shape.dim[i] == want.dim[i]) && (i < skip || d->shape.dim[i - skip] == 1 || d->shape.dim[i - skip] == want.dim[i]);
        from[i] = i < skip || d->shape.dim[i - skip] == 1 ? 0 : stride[i - skip];
    }
    TRN_CHECK_ARG(fits, "default_value.shape=%s and rt_input.flat_values.shape=%s are incompatible: no broadcast gives the shape of one value",
                  trn_shape_text(a, &d->shape), trn_shape_text(b, values));
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, d->dtype, &want));
    trn_err err = t->count ? trn_block_copy(NULL, t, 0, to, d, 0, from, want.dim, want.rank) : TRN_OK;
    if (err)
        trn_tensor_unref(t);
    else
        *out = t;
    return err;
}

static trn_err to_tensor(trn_kctx *k)
{
    const trn_tensor *want = trn_in(k, 0), *values = trn_in(k, 1), *dflt = trn_in(k, 2), *first = trn_in(k, 3);
    int n = k->n_in - 3;
    part_kind kind;
    TRN_CHECK_ARG(first->count > 0, "Invalid first partition input: it has no elements");
    TRN_TRY(part_at(&kind, k->node, 0));
    TRN_CHECK_ARG(kind != ROW_IDS, "Cannot handle VALUE_ROWIDS in first dimension.");
    int skip = kind == FIRST_DIM, levels = n - skip;
    TRN_CHECK_ARG(values->shape.rank >= 1, "the values of a ragged tensor have at least one dimension");
    TRN_CHECK_ARG(kind == SPLITS || trn_is_scalar(first), "the size of the first dimension must be a scalar");
    int64_t rows = kind == SPLITS ? first->count - 1 : trn_int_at(first, 0), count, inner = 1;
    TRN_CHECK_ARG(rows >= 0 && rows <= INT64_C(1) << 40, "the first dimension has size %" PRId64, rows);
    trn_tensor *pad;
    TRN_TRY(spread_default(&pad, dflt, &values->shape));
    trn_shape s;
    trn_err err = dense_shape(&s, want, &values->shape, levels);
    part_kind level[TRN_MAX_RANK];
    if (!err && s.dim[0] < 0)
        s.dim[0] = rows;
    for (int i = 0; i < levels && !err; i++) {
        err = part_at(&level[i], k->node, i + skip);
        if (!err && level[i] == FIRST_DIM)
            err = TRN_BAD("Unsupported partition type: FIRST_DIM_SIZE below the first dimension");
        if (!err && s.dim[i + 1] < 0)
            s.dim[i + 1] = widest(trn_in(k, 3 + skip + i), level[i]);
    }
    trn_tensor *y = NULL;
    if (!err)
        err = trn_count_checked(&count, &s);
    if (!err)
        err = trn_out_new(&y, k, 0, values->dtype, &s);
    if (!err && y->count) {
        int64_t mult[TRN_MAX_RANK];
        for (int i = levels; i >= 0; i--)
            mult[i] = i == levels ? 1 : mult[i + 1] * s.dim[i + 1];
        for (int i = levels + 1; i < s.rank; i++)
            inner = trn_times(inner, s.dim[i]);
        places p = {malloc(sizeof *p.at * (size_t)(rows + 1)), rows};
        err = p.at ? TRN_OK : trn_err_oom();
        for (int64_t i = 0; i < rows && !err; i++)
            p.at[i] = i < s.dim[0] ? i * mult[0] : -1;
        for (int i = 0; i < levels && !err; i++) {
            places q = {0};
            err = descend(&q, &p, trn_in(k, 3 + skip + i), level[i], mult[i + 1], s.dim[i + 1]);
            free(p.at);
            p = q;
        }
        if (!err)
            err = fill_dense(y, &p, values, pad, inner);
        free(p.at);
    }
    trn_tensor_unref(pad);
    return err;
}

/* ---- ragged tensors in variants -------------------------------------------------------------------------------------------------- */

typedef struct encoded {
    trn_variant base;
    int n; /* splits; the values come behind them */
    trn_tensor *t[];
} encoded;

static void encoded_free(void *obj)
{
    encoded *e = obj;
    for (int i = 0; i <= e->n; i++)
        trn_tensor_unref(e->t[i]);
    free(e);
}

static trn_err encoded_zeros(trn_variant **out, const trn_variant *v);
static trn_err encoded_add(trn_variant **out, const trn_variant *a, const trn_variant *b);
static const trn_variant_type encoded_type = {.name = "RaggedTensorVariant", .free = encoded_free, .add = encoded_add, .zeros_like = encoded_zeros};

/* Tensors are NULL at first. */
static encoded *encoded_new(int n)
{
    encoded *e = trn_xalloc(sizeof *e + ((size_t)n + 1) * sizeof e->t[0]);
    memset(e, 0, sizeof *e + ((size_t)n + 1) * sizeof e->t[0]);
    atomic_init(&e->base.ref, 1);
    e->base.type = &encoded_type;
    e->n = n;
    return e;
}

trn_err trn_box_ragged(trn_tensor **out, trn_tensor *splits, trn_tensor *values)
{
    trn_shape s = trn_shape_scalar();
    TRN_TRY(trn_tensor_new(out, TRN_VARIANT, &s));
    encoded *e = encoded_new(1);
    e->t[0] = trn_tensor_ref(splits);
    e->t[1] = trn_tensor_ref(values);
    TRN_DATA_MUT(*out, trn_variant *)[0] = &e->base;
    return TRN_OK;
}

/* Splits as they are, and new values. */
static trn_err with_values(trn_variant **out, const encoded *e, TRN_OWN trn_tensor *values)
{
    encoded *r = encoded_new(e->n);
    for (int i = 0; i < e->n; i++)
        r->t[i] = trn_tensor_ref(e->t[i]);
    r->t[e->n] = values;
    *out = &r->base;
    return TRN_OK;
}

static trn_err encoded_zeros(trn_variant **out, const trn_variant *v)
{
    const encoded *e = (const encoded *)v;
    trn_tensor *z;
    TRN_TRY(trn_tensor_zeros_like(&z, e->t[e->n]));
    return with_values(out, e, z);
}

static trn_err encoded_add(trn_variant **out, const trn_variant *va, const trn_variant *vb)
{
    const encoded *a = (const encoded *)va, *b = (const encoded *)vb;
    TRN_CHECK_ARG(a->n == b->n && trn_shape_eq(&a->t[a->n]->shape, &b->t[b->n]->shape), "Can only add RaggedTensorVariants of one shape");
    trn_tensor *s;
    TRN_TRY(trn_tensor_sum(&s, a->t[a->n], b->t[b->n]));
    return with_values(out, a, s);
}

/* Rows [lo, hi) of a tensor; `row` drops the first dimension of a single one. */
static trn_err rows_of(trn_tensor **out, const trn_tensor *t, int64_t lo, int64_t hi, bool row)
{
    trn_shape s = t->shape;
    int64_t inner = s.dim[0] ? t->count / s.dim[0] : 0;
    s.dim[0] = hi - lo;
    if (row) {
        for (int i = 1; i < s.rank; i++)
            s.dim[i - 1] = s.dim[i];
        s.rank--;
    }
    TRN_TRY(trn_tensor_new(out, t->dtype, &s));
    trn_err err = copy_elems(*out, 0, t, lo * inner, (hi - lo) * inner);
    if (err)
        trn_tensor_unref(*out);
    return err;
}

/* Component i of the outermost dimension. */
static trn_err component(encoded *e, const trn_kctx *k, int64_t i)
{
    int n = k->n_in - 1;
    int64_t lo = i, hi = i + 1;
    for (int l = 0; l < n; l++) {
        const trn_tensor *s = trn_in(k, l);
        if (l) { /* the rows lo … hi of this level, counted from where they start */
            trn_shape v = trn_shape_vector(hi - lo + 1);
            TRN_TRY(trn_tensor_new(&e->t[l - 1], s->dtype, &v));
            for (int64_t q = lo; q <= hi; q++)
                trn_int_put(e->t[l - 1], q - lo, trn_int_at(s, q) - trn_int_at(s, lo));
        }
        int64_t next = trn_int_at(s, hi);
        lo = trn_int_at(s, lo);
        hi = next;
    }
    return rows_of(&e->t[e->n], trn_in(k, n), lo, hi, n == 0);
}

static trn_err to_variant(trn_kctx *k)
{
    int n = k->n_in - 1;
    const trn_tensor *values = trn_in(k, n);
    for (int i = 0; i < n; i++)
        TRN_CHECK_ARG(trn_is_vector(trn_in(k, i)), "Ragged splits must be vectors");
    TRN_CHECK_ARG(values->shape.rank >= 1 || (!n && !trn_attr_bool(k->node, "batched_input")), "the values of a ragged tensor have at least one dimension");
    if (n)
        TRN_TRY(check_splits(k, 0, n, values));
    bool batched = trn_attr_bool(k->node, "batched_input");
    int64_t count = !batched ? 1 : n ? trn_in(k, 0)->count - 1 : values->shape.dim[0];
    trn_shape s = batched ? trn_shape_vector(count) : trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_VARIANT, &s));
    for (int64_t i = 0; i < count; i++) {
        encoded *e = encoded_new(batched ? TRN_MAX(n - 1, 0) : n);
        TRN_DATA_MUT(y, trn_variant *)[i] = &e->base;
        if (batched)
            TRN_TRY(component(e, k, i));
        for (int q = 0; !batched && q <= n; q++)
            e->t[q] = trn_tensor_ref(trn_in(k, q));
    }
    return TRN_OK;
}

static trn_err as_encoded(const encoded **out, const trn_variant *v, int64_t ragged_rank, trn_dtype values, trn_dtype splits)
{
    TRN_CHECK_ARG(v && v->type == &encoded_type, "Input Variant element doesn't hold a RaggedTensorVariant but '%s'", v ? v->type->name : "nothing");
    const encoded *e = (const encoded *)v;
    TRN_CHECK_ARG(e->n == ragged_rank, "Encoded input RaggedTensorVariant has ragged_rank=%d.  Expected ragged_rank=%" PRId64, e->n, ragged_rank);
    TRN_CHECK_ARG(e->t[e->n]->dtype == values, "Expected values Tensor dtype: %s, found: %s", trn_dtype_name(values), trn_dtype_name(e->t[e->n]->dtype));
    for (int i = 0; i < e->n; i++)
        TRN_CHECK_ARG(e->t[i]->dtype == splits, "Expected row_splits Tensor dtype: %s, found: %s", trn_dtype_name(splits), trn_dtype_name(e->t[i]->dtype));
    *out = e;
    return TRN_OK;
}

static int64_t rows_in(const encoded *e) { return e->n ? e->t[0]->count - 1 : e->t[0]->shape.rank ? e->t[0]->shape.dim[0] : 0; }

static trn_err from_variant(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int d = x->shape.rank, n = k->n_out - 1;
    int64_t in = trn_attr_int(k->node, "input_ragged_rank");
    trn_dtype vt = trn_attr_type(k->node, "Tvalues"), st = trn_attr_type(k->node, "Tsplits");
    in = in == -1 ? n - d : in;
    TRN_CHECK_ARG(in >= 0, "The inferred input_ragged_rank (output_ragged_rank - encoded_variant.dims()) must be >= 0, found output_ragged_rank: %d, dims: %d", n, d);
    TRN_CHECK_ARG(n - d == in, "output_ragged_rank must be equal to input_ragged_rank + encoded_ragged.dims(); output_ragged_rank: %d, input_ragged_rank: %" PRId64
                  ", dims: %d", n, in, d);
    const trn_variant *const *v = (const trn_variant *const *)x->data;
    const encoded *e;
    for (int64_t i = 0; i < x->count; i++)
        TRN_TRY(as_encoded(&e, v[i], in, vt, st));
    if (d == 0) {
        for (int i = 0; i <= n; i++)
            trn_out_set(k, i, trn_tensor_ref(((const encoded *)v[0])->t[i]));
        return TRN_OK;
    }
    int64_t lead = 1;
    trn_tensor *y;
    for (int i = 0; i + 1 < d; i++) /* the dimensions of the tensor of variants, as splits of one length */
        TRN_TRY(uniform_splits(&lead, k, i, st, &x->shape));
    trn_shape s = trn_shape_vector(x->count + 1);
    TRN_TRY(trn_out_new(&y, k, d - 1, st, &s));
    trn_int_put(y, 0, 0);
    for (int64_t i = 0, sum = 0; i < x->count; i++)
        trn_int_put(y, i + 1, sum += rows_in((const encoded *)v[i]));
    for (int l = 0; l < in; l++) { /* splits one behind the other, each counted on from the one before it */
        int64_t all = 0, at = 1, base = 0;
        for (int64_t i = 0; i < x->count; i++)
            all += ((const encoded *)v[i])->t[l]->count - 1;
        s = trn_shape_vector(all + 1);
        TRN_TRY(trn_out_new(&y, k, d + l, st, &s));
        trn_int_put(y, 0, 0);
        for (int64_t i = 0; i < x->count; i++) {
            const trn_tensor *t = ((const encoded *)v[i])->t[l];
            for (int64_t q = 1; q < t->count; q++)
                trn_int_put(y, at++, base + trn_int_at(t, q));
            base += t->count ? last_of(t) : 0;
        }
    }
    int64_t total = 0, inner = 1, at = 0;
    trn_shape vs = trn_shape_vector(0);
    for (int64_t i = 0; i < x->count; i++) {
        const trn_tensor *t = ((const encoded *)v[i])->t[in];
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        TRN_CHECK_ARG(t->shape.rank >= 1, "the values of a ragged tensor have at least one dimension");
        bool same = i == 0 || t->shape.rank == vs.rank;
        for (int q = 1; i > 0 && q < vs.rank && same; q++)
            same = t->shape.dim[q] == vs.dim[q];
        TRN_CHECK_ARG(same, "All flat_values must have compatible shapes.  Shape at index 0: %s.  Shape at index %" PRId64 ": %s.", trn_shape_text(a, &vs), i,
                      trn_shape_text(b, &t->shape));
        total += t->shape.dim[0];
        vs = i ? vs : t->shape;
    }
    vs.dim[0] = total;
    for (int i = 1; i < vs.rank; i++)
        inner = trn_times(inner, vs.dim[i]);
    TRN_TRY(trn_out_new(&y, k, n, vt, &vs));
    for (int64_t i = 0; i < x->count; i++) {
        const trn_tensor *t = ((const encoded *)v[i])->t[in];
        TRN_TRY(copy_elems(y, at, t, 0, t->shape.dim[0] * inner));
        at += t->shape.dim[0] * inner;
    }
    return TRN_OK;
}

/* The values of all variants, one behind the other. A variant that nobody used is empty, and stands for as many zeros as its rows say. */
static trn_err to_variant_grad(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *splits = trn_in(k, 1), *dims = trn_in(k, 2);
    const trn_variant *const *v = (const trn_variant *const *)x->data;
    trn_dtype vt = trn_attr_type(k->node, "Tvalues");
    trn_shape s;
    int64_t all = 0, inner = 1, count;
    TRN_CHECK_ARG(dims->shape.rank == 1 && dims->count <= TRN_MAX_RANK, "dense_values_shape must be a vector of at most %d dimensions", TRN_MAX_RANK);
    s.rank = (int)dims->count;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = trn_int_at(dims, i);
        TRN_CHECK_ARG(s.dim[i] >= 0, "Dimension %d must be >= 0, not %" PRId64, i, s.dim[i]);
    }
    TRN_TRY(trn_count_checked(&count, &s));
    for (int i = 1; i < s.rank; i++)
        inner = trn_times(inner, s.dim[i]);
    for (int64_t i = 0; i < x->count; i++) {
        if (v[i]) {
            TRN_CHECK_ARG(v[i]->type == &encoded_type, "Input Variant element doesn't hold a RaggedTensorVariant but '%s'", v[i]->type->name);
            const encoded *e = (const encoded *)v[i];
            TRN_CHECK_ARG(e->t[e->n]->dtype == vt, "Expected values Tensor dtype: %s, found: %s", trn_dtype_name(vt), trn_dtype_name(e->t[e->n]->dtype));
            all += e->t[e->n]->count;
        } else {
            TRN_CHECK_ARG(s.rank > 0 && i + 1 < splits->count && trn_int_at(splits, i) >= 0 && trn_int_at(splits, i) <= trn_int_at(splits, i + 1) &&
                              trn_int_at(splits, i + 1) <= s.dim[0],
                          "row_splits do not say how many values row %" PRId64 " has", i);
            all += (trn_int_at(splits, i + 1) - trn_int_at(splits, i)) * inner;
        }
    }
    if (x->count == 1 && v[0]) {
        trn_out_set(k, 0, trn_tensor_ref(((const encoded *)v[0])->t[((const encoded *)v[0])->n]));
        return TRN_OK;
    }
    if (x->count == 1)
        s.dim[0] = trn_int_at(splits, 1) - trn_int_at(splits, 0), count = all;
    TRN_CHECK_ARG(all == count, "there are %" PRId64 " values for a shape of %" PRId64, all, count);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, vt, &s));
    trn_zero_elems(y, 0, y->count);
    for (int64_t i = 0, at = 0; i < x->count; i++) {
        const encoded *e = (const encoded *)v[i];
        int64_t n = e ? e->t[e->n]->count : (trn_int_at(splits, i + 1) - trn_int_at(splits, i)) * inner;
        if (e)
            TRN_TRY(copy_elems(y, at, e->t[e->n], 0, n));
        at += n;
    }
    return TRN_OK;
}

const trn_op trn_ops_ragged[] = {
    {"RaggedTensorToSparse",
     "rt_nested_splits:RAGGED_RANK*Tsplits, rt_dense_values:T -> sparse_indices:i64, sparse_values:T, sparse_dense_shape:i64; RAGGED_RANK:int>=1, T:any, "
     "Tsplits:i32|i64=i64",
     sh_to_sparse, to_sparse, 0},
    {"RaggedRange", "starts:T, limits:T, deltas:T -> rt_nested_splits:Tsplits, rt_dense_values:T; T:bf16|f32|f64|i32|i64=i32, Tsplits:i32|i64=i64",
     sh_ragged_range, ragged_range, 0},
    {"RaggedGather",
     "params_nested_splits:PARAMS_RAGGED_RANK*Tsplits, params_dense_values:Tvalues, indices:Tindices -> output_nested_splits:OUTPUT_RAGGED_RANK*Tsplits, "
     "output_dense_values:Tvalues; Tvalues:any, Tindices:i32|i64, Tsplits:i32|i64=i64, PARAMS_RAGGED_RANK:int>=1, OUTPUT_RAGGED_RANK:int>=0",
     sh_ragged_gather, ragged_gather, 0},
    {"RaggedTensorToTensor",
     "shape:Tshape, values:T, default_value:T, row_partition_tensors:num_row_partition_tensors*Tindex -> result:T; T:any, Tindex:i32|i64, Tshape:i32|i64, "
     "num_row_partition_tensors:int>=1, row_partition_types:list(string)",
     trn_sh_unknown, to_tensor, 0},
    {"RaggedTensorToVariant",
     "rt_nested_splits:RAGGED_RANK*Tsplits, rt_dense_values:Tvalues -> encoded_ragged:var; RAGGED_RANK:int>=0, Tvalues:any, Tsplits:i32|i64=i64, "
     "batched_input:bool",
     trn_sh_unknown, to_variant, 0},
    {"RaggedTensorToVariantGradient", "encoded_ragged_grad:var, row_splits:Tsplits, dense_values_shape:i32 -> dense_values_grad:Tvalues; Tvalues:any, Tsplits:i32|i64=i64",
     trn_sh_unknown, to_variant_grad, 0},
    {"RaggedTensorFromVariant",
     "encoded_ragged:var -> output_nested_splits:output_ragged_rank*Tsplits, output_dense_values:Tvalues; input_ragged_rank:int>=-1, "
     "output_ragged_rank:int>=0, Tvalues:any, Tsplits:i32|i64=i64",
     trn_sh_unknown, from_variant, 0},
    {0},
};
