/* Updates of parts of a variable: Scatter… (rows by their number), ScatterNd… (slices by several indices), StridedSliceAssign, and the
 * reads that go with them, ResourceGather and ResourceGatherNd.
 *
 * All indices are checked before anything is written, so a bad one changes nothing. An index that comes twice is applied twice, in order:
 * large slices are split by columns, never by index. Gathers share the variable and lock each row while they copy it instead of taking a reference to the
 * value: a reference would make the next sparse update copy the whole table. */
#include "ops/rows.h"
#include "ops/state.h"

#include <stdlib.h>

typedef enum how { ADD, SUB, MUL, DIV, MIN, MAX, PUT } how;

/* ---- element loops -------------------------------------------------------------------------------------------- */

#define EACH for (int64_t i = 0; i < n; i++)
/* Integers wrap: U is the unsigned type to compute in. A division by zero was refused before; by -1 it is a negation, which must not trap. */
#define INT_LOOP(name, T, U)                                                                                                               \
    TRN_SIMD static void mix_##name(how h, void *dv, const void *sv, int64_t n)                                                          \
    {                                                                                                                                      \
        T *restrict d = dv;                                                                                                                \
        const T *restrict s = sv;                                                                                                          \
        switch (h) {                                                                                                                       \
        case ADD: EACH d[i] = (T)((U)d[i] + (U)s[i]); break;                                                                               \
        case SUB: EACH d[i] = (T)((U)d[i] - (U)s[i]); break;                                                                               \
        case MUL: EACH d[i] = (T)((U)d[i] * (U)s[i]); break;                                                                               \
        case DIV: EACH d[i] = s[i] == (T)-1 && (T)-1 < (T)1 ? (T)(0 - (U)d[i]) : (T)(d[i] / s[i]); break;                                  \
        case MIN: EACH d[i] = s[i] < d[i] ? s[i] : d[i]; break;                                                                            \
        case MAX: EACH d[i] = s[i] > d[i] ? s[i] : d[i]; break;                                                                            \
        default: break;                                                                                                                    \
        }                                                                                                                                  \
    }
#define REAL_LOOP(name, T)                                                                                                                 \
    TRN_SIMD static void mix_##name(how h, void *dv, const void *sv, int64_t n)                                                          \
    {                                                                                                                                      \
        T *restrict d = dv;                                                                                                                \
        const T *restrict s = sv;                                                                                                          \
        switch (h) {                                                                                                                       \
        case ADD: EACH d[i] += s[i]; break;                                                                                                \
        case SUB: EACH d[i] -= s[i]; break;                                                                                                \
        case MUL: EACH d[i] *= s[i]; break;                                                                                                \
        case DIV: EACH d[i] /= s[i]; break;                                                                                                \
        case MIN: EACH d[i] = s[i] < d[i] ? s[i] : d[i]; break;                                                                            \
        case MAX: EACH d[i] = s[i] > d[i] ? s[i] : d[i]; break;                                                                            \
        default: break;                                                                                                                    \
        }                                                                                                                                  \
    }
#define COMPLEX_LOOP(name, T)                                                                                                              \
    static void mix_##name(how h, void *dv, const void *sv, int64_t n)                                                                     \
    {                                                                                                                                      \
        T *restrict d = dv;                                                                                                                \
        const T *restrict s = sv;                                                                                                          \
        switch (h) {                                                                                                                       \
        case ADD: EACH d[i] += s[i]; break;                                                                                                \
        case SUB: EACH d[i] -= s[i]; break;                                                                                                \
        case MUL: EACH d[i] *= s[i]; break;                                                                                                \
        case DIV: EACH d[i] /= s[i]; break;                                                                                                \
        default: break; /* not ordered: the rows leave MIN and MAX out */                                                                  \
        }                                                                                                                                  \
    }
INT_LOOP(i8, int8_t, uint32_t)
INT_LOOP(u8, uint8_t, uint32_t)
INT_LOOP(i16, int16_t, uint32_t)
INT_LOOP(u16, uint16_t, uint32_t)
INT_LOOP(i32, int32_t, uint32_t)
INT_LOOP(u32, uint32_t, uint32_t)
INT_LOOP(i64, int64_t, uint64_t)
INT_LOOP(u64, uint64_t, uint64_t)
REAL_LOOP(f32, float)
REAL_LOOP(f64, double)
COMPLEX_LOOP(c64, float _Complex)
COMPLEX_LOOP(c128, double _Complex)

#define BLOCK 256
/* Half and bfloat16 by way of float. */
static void mix_wide(trn_dtype t, how h, char *d, const char *s, int64_t n)
{
    float x[BLOCK], y[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t m = TRN_MIN(n - at, (int64_t)BLOCK);
        trn_widen(x, d + 2 * at, t, m);
        trn_widen(y, s + 2 * at, t, m);
        mix_f32(h, x, y, m);
        trn_narrow(d + 2 * at, x, t, m);
    }
}
static void mix_half(how h, void *d, const void *s, int64_t n) { mix_wide(TRN_HALF, h, d, s, n); }
static void mix_bf16(how h, void *d, const void *s, int64_t n) { mix_wide(TRN_BFLOAT16, h, d, s, n); }

typedef void (*mix_fn)(how h, void *d, const void *s, int64_t n);
static const mix_fn mixes[TRN_DTYPE_END] = {
    [TRN_INT8] = mix_i8,   [TRN_UINT8] = mix_u8,   [TRN_INT16] = mix_i16, [TRN_UINT16] = mix_u16,  [TRN_INT32] = mix_i32,
    [TRN_UINT32] = mix_u32, [TRN_INT64] = mix_i64, [TRN_UINT64] = mix_u64, [TRN_FLOAT] = mix_f32,  [TRN_DOUBLE] = mix_f64,
    [TRN_COMPLEX64] = mix_c64, [TRN_COMPLEX128] = mix_c128, [TRN_HALF] = mix_half, [TRN_BFLOAT16] = mix_bf16,
};

static bool has_zero_int(const trn_tensor *t)
{
#define SCAN(T)                                                                                                                            \
    for (int64_t i = 0; i < t->count; i++)                                                                                                 \
        if (TRN_DATA(t, T)[i] == 0)                                                                                                        \
            return true;                                                                                                                   \
    return false
    switch (t->dtype) {
    case TRN_INT8:
    case TRN_UINT8: SCAN(uint8_t);
    case TRN_INT16:
    case TRN_UINT16: SCAN(uint16_t);
    case TRN_INT32:
    case TRN_UINT32: SCAN(uint32_t);
    case TRN_INT64:
    case TRN_UINT64: SCAN(uint64_t);
    default: return false;
    }
#undef SCAN
}

/* ---- where indices point -------------------------------------------------------------------------------------- */

/* Slices of a tensor: each of n index tuples of `depth` numbers names `slice` elements. Depth 1 is a row. */
typedef struct slices {
    const trn_tensor *indices;
    int64_t n, slice;
    int depth;
    int64_t dim[TRN_MAX_RANK], stride[TRN_MAX_RANK]; /* of the first `depth` dims */
} slices;

static int64_t slice_at(const slices *s, int64_t i)
{
    int64_t at = 0;
    for (int d = 0; d < s->depth; d++)
        at += trn_int_at(s->indices, i * s->depth + d) * s->stride[d];
    return at;
}

static trn_err bad_index(const slices *s, int64_t i, const trn_shape *shape, bool nd)
{
    if (!nd)
        return TRN_BAD("indices[%lld] = %lld is not in [0, %lld)", (long long)i, (long long)trn_int_at(s->indices, i), (long long)s->dim[0]);
    trn_sb sb = {0};
    for (int d = 0; d < s->depth; d++)
        trn_sb_addf(&sb, "%s%lld", d ? ", " : "", (long long)trn_int_at(s->indices, i * s->depth + d));
    char text[TRN_SHAPE_TEXT];
    trn_err err = TRN_BAD("indices[%lld] = [%s] does not index into shape %s", (long long)i, sb.p ? sb.p : "",
                          trn_shape_text(text, shape));
    trn_sb_fini(&sb);
    return err;
}

static trn_err slices_make(slices *s, const trn_tensor *indices, const trn_shape *shape, bool nd)
{
    char text[TRN_SHAPE_TEXT];
    *s = (slices){.indices = indices, .n = indices->count, .depth = 1, .slice = 1};
    if (nd) {
        int r = indices->shape.rank;
        TRN_CHECK_ARG(r >= 1, "indices must be at least 1-D, got %s", trn_shape_text(text, &indices->shape));
        TRN_CHECK_ARG(indices->shape.dim[r - 1] <= shape->rank, "index innermost dimension length must be <= params rank; saw: %lld vs. %d",
                      (long long)indices->shape.dim[r - 1], shape->rank);
        s->depth = (int)indices->shape.dim[r - 1];
        s->n = 1;
        for (int d = 0; d < r - 1; d++) /* cannot overflow unless depth is 0 */
            TRN_CHECK_ARG(!__builtin_mul_overflow(s->n, indices->shape.dim[d], &s->n), "indices are too large: %s",
                          trn_shape_text(text, &indices->shape));
    }
    TRN_CHECK_ARG(nd || shape->rank >= 1, "params must be at least 1-D, got shape %s", trn_shape_text(text, shape));
    for (int d = shape->rank - 1; d >= 0; d--) {
        if (d < s->depth) {
            s->dim[d] = shape->dim[d];
            s->stride[d] = s->slice;
            for (int e = d + 1; e < s->depth; e++)
                s->stride[d] = trn_times(s->stride[d], shape->dim[e]);
        } else {
            s->slice = trn_times(s->slice, shape->dim[d]);
        }
    }
    for (int64_t i = 0; i < s->n && s->depth; i++)
        for (int d = 0; d < s->depth; d++) {
            int64_t x = trn_int_at(indices, i * s->depth + d);
            if (x < 0 || x >= s->dim[d])
                return bad_index(s, i, shape, nd);
        }
    return TRN_OK;
}

/* Shape of one slice per index tuple: the indices' shape (without the innermost dim when nd), then what remains of the variable's. */
static trn_err slices_shape(trn_shape *out, const trn_shape *indices, const trn_shape *shape, bool nd)
{
    int keep = nd ? indices->rank - 1 : indices->rank, depth = nd ? (int)indices->dim[indices->rank - 1] : 1;
    TRN_CHECK_ARG(keep + shape->rank - depth <= TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    out->rank = 0;
    for (int i = 0; i < keep; i++)
        out->dim[out->rank++] = indices->dim[i];
    for (int i = depth; i < shape->rank; i++)
        out->dim[out->rank++] = shape->dim[i];
    return TRN_OK;
}

/* ---- scatter -------------------------------------------------------------------------------------------------- */

struct scatter {
    slices at;
    how how;
    mix_fn mix;
    char *dst;
    const char *src;
    int64_t src_step; /* elements from one update to the next; 0: one for all */
    size_t size;
    const trn_vars *vars;
    int64_t row; /* elements of the variable's rows, which have locks; a slice lies in one of them */
};

/* A job's part: columns [begin, end) of all slices. */
typedef struct scatter_part {
    const struct scatter *s;
    int64_t begin, end;
} scatter_part;

static void fetch_slice(const void *arg, int64_t i)
{
    const scatter_part *p = arg;
    trn_fetch_row(p->s->dst + (size_t)(slice_at(&p->s->at, i) + p->begin) * p->s->size, (size_t)(p->end - p->begin) * p->s->size);
}

static void scatter_slice(const void *arg, int64_t i)
{
    const scatter_part *p = arg;
    const struct scatter *s = p->s;
    char *d = s->dst + (size_t)(slice_at(&s->at, i) + p->begin) * s->size;
    const char *u = s->src + (size_t)(i * s->src_step + p->begin) * s->size;
    if (s->how == PUT)
        memcpy(d, u, (size_t)(p->end - p->begin) * s->size);
    else
        s->mix(s->how, d, u, p->end - p->begin);
}

static void scatter_piece(void *arg, int64_t begin, int64_t end)
{
    const struct scatter *s = arg;
    const scatter_part p = {s, begin, end};
    trn_rows rows;
    rows.n = 0;
    for (int64_t i = 0; i < s->at.n; i++)
        if (trn_rows_add(&rows, i, slice_at(&s->at, i) / s->row) || i + 1 == s->at.n)
            trn_rows_visit(&rows, s->vars->shared, s->vars->n_shared, &p, fetch_slice, scatter_slice);
}

static trn_err scatter_objects(trn_tensor *t, const slices *at, const trn_tensor *updates, bool one)
{
    for (int64_t i = 0; i < at->n; i++)
        for (int64_t j = 0; j < at->slice; j += one ? 1 : at->slice)
            TRN_TRY(trn_tensor_copy_elems(t, slice_at(at, i) + j, updates, one ? 0 : i * at->slice, one ? 1 : at->slice));
    return TRN_OK;
}

static trn_err scatter_locked(trn_kctx *k, trn_vars *v, how h, bool nd)
{
    const trn_tensor *indices = trn_in(k, 1), *updates = trn_in(k, 2);
    const trn_shape *shape = &v->v[0]->value->shape;
    struct scatter s = {.how = h, .mix = mixes[updates->dtype], .size = trn_dtype_size(updates->dtype)};
    TRN_TRY(slices_make(&s.at, indices, shape, nd));
    trn_shape want;
    TRN_TRY(slices_shape(&want, &indices->shape, shape, nd));
    bool one = !nd && updates->shape.rank == 0 && want.rank > 0;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(one || trn_shape_eq(&want, &updates->shape), "updates for %s must have shape %s%s, got %s", v->v[0]->name,
                  trn_shape_text(a, &want), nd ? "" : " or []", trn_shape_text(b, &updates->shape));
    TRN_CHECK_ARG(h != DIV || !has_zero_int(updates), "Integer division by zero");
    if (s.at.n == 0 || s.at.slice == 0)
        return TRN_OK;
    trn_tensor *t;
    TRN_TRY(trn_vars_write(&t, v, 0));
    if (!trn_dtype_is_plain(t->dtype))
        return scatter_objects(t, &s.at, updates, one);
    s.dst = t->data;
    s.src = updates->data;
    s.src_step = s.at.slice;
    s.vars = v;
    s.row = TRN_MAX(t->count / TRN_MAX(shape->rank ? shape->dim[0] : 1, (int64_t)1), (int64_t)1);
    char *filled = NULL;
    if (one) { /* a row of the one value there is */
        filled = malloc((size_t)s.at.slice * s.size);
        if (!filled)
            return trn_err_oom();
        for (int64_t i = 0; i < s.at.slice; i++)
            memcpy(filled + (size_t)i * s.size, updates->data, s.size);
        s.src = filled;
        s.src_step = 0;
    }
    trn_k_for(k, s.at.slice, TRN_MAX(TRN_GRAIN / s.at.n, (int64_t)128), scatter_piece, &s);
    free(filled);
    return TRN_OK;
}

static trn_err scatter(trn_kctx *k, how h, bool nd)
{
    trn_vars v;
    trn_dtype t = trn_in(k, 2)->dtype;
    const trn_shape *is = &trn_in(k, 1)->shape;
    /* Strings have it alone, and so have slices that are more than a row. */
    bool rows = trn_dtype_is_plain(t) && !(nd && (is->rank == 0 || is->dim[is->rank - 1] == 0));
    TRN_TRY(rows ? trn_vars_share(&v, k, 1, t) : trn_vars_lock(&v, k, 1, t));
    return trn_vars_done(&v, k, scatter_locked(k, &v, h, nd));
}

#define KERNELS(name, h)                                                                                                                   \
    static trn_err scatter_##name(trn_kctx *k) { return scatter(k, h, false); }
#define KERNELS_ND(name, h)                                                                                                                \
    static trn_err scatter_nd_##name(trn_kctx *k) { return scatter(k, h, true); }
KERNELS(add, ADD)
KERNELS(sub, SUB)
KERNELS(mul, MUL)
KERNELS(div, DIV)
KERNELS(min, MIN)
KERNELS(max, MAX)
KERNELS(put, PUT)
KERNELS_ND(add, ADD)
KERNELS_ND(sub, SUB)
KERNELS_ND(min, MIN)
KERNELS_ND(max, MAX)
KERNELS_ND(put, PUT)

/* ---- gather --------------------------------------------------------------------------------------------------- */

struct gather {
    slices at;
    const char *src;
    char *dst;
    size_t bytes, size; /* of a slice, of an element */
    trn_var *var; /* whose rows are locked; NULL: nobody writes */
    int64_t first, row; /* where src begins in it, elements of its rows */
};

static void fetch_gathered(const void *arg, int64_t i)
{
    const struct gather *g = arg;
    trn_fetch_row(g->src + (size_t)slice_at(&g->at, i) * g->size, g->bytes);
}

static void gather_slice(const void *arg, int64_t i)
{
    const struct gather *g = arg;
    memcpy(g->dst + (size_t)i * g->bytes, g->src + (size_t)slice_at(&g->at, i) * g->size, g->bytes);
}

static void gather_piece(void *arg, int64_t begin, int64_t end)
{
    const struct gather *g = arg;
    if (!g->var) {
        for (int64_t i = begin; i < end; i++) {
            if (i + TRN_ROWS_AHEAD < end)
                fetch_gathered(g, i + TRN_ROWS_AHEAD);
            gather_slice(g, i);
        }
        return;
    }
    trn_rows rows;
    rows.n = 0;
    for (int64_t i = begin; i < end; i++)
        if (trn_rows_add(&rows, i, (g->first + slice_at(&g->at, i)) / g->row) || i + 1 == end)
            trn_rows_visit(&rows, &g->var, 1, g, fetch_gathered, gather_slice);
}

/* Slices of src, from element `first` on, to out, from slice `out_first` on. */
static trn_err gather_slices(trn_kctx *k, trn_tensor *out, int64_t out_first, const trn_tensor *src, int64_t first, const slices *at,
                             trn_var *var)
{
    if (at->n == 0 || at->slice == 0)
        return TRN_OK;
    if (!trn_dtype_is_plain(src->dtype)) {
        for (int64_t i = 0; i < at->n; i++)
            TRN_TRY(trn_tensor_copy_elems(out, (out_first + i) * at->slice, src, first + slice_at(at, i), at->slice));
        return TRN_OK;
    }
    size_t size = trn_dtype_size(src->dtype), bytes = size * (size_t)at->slice;
    struct gather g = {*at, (const char *)src->data + (size_t)first * size, (char *)out->data + (size_t)out_first * bytes, bytes, size, var, first,
                       TRN_MAX(src->count / TRN_MAX(src->shape.rank ? src->shape.dim[0] : 1, (int64_t)1), (int64_t)1)};
    trn_k_for(k, at->n, TRN_MAX((int64_t)(262144 / bytes), (int64_t)1), gather_piece, &g);
    return TRN_OK;
}

static trn_err gather_nd_locked(trn_kctx *k, const trn_tensor *value, trn_var *var)
{
    const trn_tensor *indices = trn_in(k, 1);
    slices at;
    TRN_TRY(slices_make(&at, indices, &value->shape, true));
    trn_shape shape;
    TRN_TRY(slices_shape(&shape, &indices->shape, &value->shape, true));
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, value->dtype, &shape));
    return gather_slices(k, out, 0, value, 0, &at, var);
}

/* With batch_dims, the leading dims of value and indices go together and the gather is done once for each. */
static trn_err gather_locked(trn_kctx *k, const trn_tensor *value, trn_var *var)
{
    const trn_tensor *indices = trn_in(k, 1);
    const trn_shape *vs = &value->shape, *is = &indices->shape;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    int64_t batch = trn_attr_int(k->node, "batch_dims");
    if (batch < 0)
        batch += is->rank;
    TRN_CHECK_ARG(vs->rank >= 1, "params must be at least 1 dimensional");
    TRN_CHECK_ARG(batch >= 0 && batch <= is->rank && batch < vs->rank, "batch_dims (%lld) does not fit params %s and indices %s",
                  (long long)trn_attr_int(k->node, "batch_dims"), trn_shape_text(a, vs), trn_shape_text(b, is));
    int64_t batches = 1;
    trn_shape inner = {.rank = vs->rank - (int32_t)batch}, inner_indices = {.rank = is->rank - (int32_t)batch};
    for (int i = 0; i < batch; i++) {
        TRN_CHECK_ARG(vs->dim[i] == is->dim[i], "batch dimension %d of params %s and indices %s differs", i, trn_shape_text(a, vs),
                      trn_shape_text(b, is));
        batches = trn_times(batches, vs->dim[i]);
    }
    memcpy(inner.dim, vs->dim + batch, sizeof(int64_t) * (size_t)inner.rank);
    memcpy(inner_indices.dim, is->dim + batch, sizeof(int64_t) * (size_t)inner_indices.rank);
    trn_shape shape = {.rank = (int32_t)batch}, one;
    TRN_TRY(slices_shape(&one, &inner_indices, &inner, false));
    TRN_CHECK_ARG(shape.rank + one.rank <= TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    memcpy(shape.dim, vs->dim, sizeof(int64_t) * (size_t)batch);
    memcpy(shape.dim + batch, one.dim, sizeof(int64_t) * (size_t)one.rank);
    shape.rank += one.rank;
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, value->dtype, &shape));
    if (batches == 0 || indices->count == 0)
        return TRN_OK;
    int64_t per_value = value->count / batches, per_index = indices->count / batches;
    for (int64_t i = 0; i < batches; i++) {
        trn_tensor *mine = NULL;
        TRN_TRY(trn_tensor_view(&mine, indices, i * per_index, &inner_indices));
        slices at;
        trn_err err = slices_make(&at, mine, &inner, false);
        if (!err)
            err = gather_slices(k, out, i * per_index, value, i * per_value, &at, var);
        trn_tensor_unref(mine);
        TRN_TRY(err);
    }
    return TRN_OK;
}

static trn_err read_rows(trn_kctx *k, trn_err (*fn)(trn_kctx *, const trn_tensor *, trn_var *), bool nd)
{
    trn_var *v;
    trn_dtype t = trn_attr_type(k->node, "dtype");
    const trn_shape *is = &trn_in(k, 1)->shape;
    TRN_TRY(trn_k_var(&v, k, 0, t));
    trn_err err;
    if (trn_dtype_is_plain(t) && !(nd && (is->rank == 0 || is->dim[is->rank - 1] == 0))) {
        err = trn_var_share(v, false);
        if (!err) {
            err = fn(k, v->value, v);
            trn_var_unshare(v);
        }
    } else {
        trn_var_lock(v);
        err = v->value ? fn(k, v->value, NULL) : trn_var_uninit(v);
        trn_var_unlock(v);
    }
    trn_resource_unref(v);
    return err;
}
static trn_err resource_gather(trn_kctx *k) { return read_rows(k, gather_locked, false); }
static trn_err resource_gather_nd(trn_kctx *k) { return read_rows(k, gather_nd_locked, true); }

/* ---- strided slices ------------------------------------------------------------------------------------------- */

/* Strides of a walk over value, broadcast to the slice, by the variable's dims. New axes and dropped ones have length 1, where strides do not
 * matter: the others come in the same order on both sides. */
static trn_err value_strides(int64_t *ss, const trn_strided *r, int rank, const trn_shape *value)
{
    int64_t own[TRN_MAX_RANK], out[TRN_MAX_RANK] = {0};
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    trn_row_strides(own, value);
    bool fits = value->rank <= r->out.rank;
    for (int i = 1; fits && i <= value->rank; i++) {
        int64_t have = value->dim[value->rank - i], want = r->out.dim[r->out.rank - i];
        fits = have == want || have == 1;
        out[r->out.rank - i] = have == 1 ? 0 : own[value->rank - i];
    }
    TRN_CHECK_ARG(fits, "Cannot broadcast input shape %s into final shape %s", trn_shape_text(a, value), trn_shape_text(b, &r->out));
    for (int d = 0, o = 0; d < rank; d++) {
        ss[d] = 0;
        if (r->size[d] == 1)
            continue;
        while (o < r->out.rank && r->out.dim[o] == 1)
            o++;
        if (o < r->out.rank)
            ss[d] = out[o++];
    }
    return TRN_OK;
}

static trn_err slice_assign_locked(trn_kctx *k, trn_vars *v)
{
    const trn_tensor *value = trn_in(k, 4);
    const trn_shape shape = v->v[0]->value->shape;
    trn_strided r;
    TRN_TRY(trn_strided_make(&r, k->node, &shape, trn_in(k, 1), trn_in(k, 2), trn_in(k, 3)));
    int64_t ss[TRN_MAX_RANK], ds[TRN_MAX_RANK], at = 0;
    for (int d = 0; d < r.out.rank; d++)
        if (r.out.dim[d] == 0)
            return TRN_OK;
    TRN_TRY(value_strides(ss, &r, shape.rank, &value->shape));
    trn_row_strides(ds, &shape);
    for (int d = 0; d < shape.rank; d++) {
        at += r.begin[d] * ds[d];
        ds[d] = trn_times(ds[d], r.stride[d]);
    }
    trn_tensor *t;
    TRN_TRY(trn_vars_write(&t, v, 0));
    return trn_block_copy(k, t, at, ds, value, 0, ss, r.size, shape.rank);
}

static trn_err slice_assign(trn_kctx *k)
{
    trn_vars v;
    TRN_TRY(trn_vars_lock(&v, k, 1, trn_in(k, 4)->dtype));
    return trn_vars_done(&v, k, slice_assign_locked(k, &v));
}

/* clang-format off */
#define MASKS "begin_mask:int=0, end_mask:int=0, ellipsis_mask:int=0, new_axis_mask:int=0, shrink_axis_mask:int=0"
#define ANY_INDEX "Tindices:i32|i64"
#define REF(name, types, locking, kernel) \
    {name, "ref:&T, indices:Tindices, updates:T -> output_ref:&T; T:" types ", " ANY_INDEX ", use_locking:bool=" locking, trn_sh_update, \
     kernel, TRN_OP_STATEFUL}
#define RES(name, types, kernel) \
    {name, "resource:res, indices:Tindices, updates:dtype ->; dtype:" types ", " ANY_INDEX, trn_sh_update, kernel, TRN_OP_STATEFUL}
#define RES_ND(name, types, kernel) \
    {name, "ref:res, indices:Tindices, updates:T ->; T:" types ", " ANY_INDEX ", use_locking:bool=true", trn_sh_update, kernel, \
     TRN_OP_STATEFUL}
const trn_op trn_ops_scatter[] = {
    REF("ScatterAdd", "num", "false", scatter_add),
    REF("ScatterSub", "num", "false", scatter_sub),
    REF("ScatterMul", "num", "false", scatter_mul),
    REF("ScatterDiv", "num", "false", scatter_div),
    REF("ScatterMin", "float|i32|i64", "false", scatter_min),
    REF("ScatterMax", "float|i32|i64", "false", scatter_max),
    REF("ScatterUpdate", "any", "true", scatter_put),
    RES("ResourceScatterAdd", "num", scatter_add),
    RES("ResourceScatterSub", "num", scatter_sub),
    RES("ResourceScatterMul", "num", scatter_mul),
    RES("ResourceScatterDiv", "num", scatter_div),
    RES("ResourceScatterMin", "real", scatter_min),
    RES("ResourceScatterMax", "real", scatter_max),
    RES("ResourceScatterUpdate", "any", scatter_put),
    REF("ScatterNdAdd", "num", "false", scatter_nd_add),
    REF("ScatterNdSub", "num", "false", scatter_nd_sub),
    REF("ScatterNdMin", "real", "false", scatter_nd_min),
    REF("ScatterNdMax", "real", "false", scatter_nd_max),
    REF("ScatterNdUpdate", "any", "true", scatter_nd_put),
    RES_ND("ResourceScatterNdAdd", "num", scatter_nd_add),
    RES_ND("ResourceScatterNdSub", "num", scatter_nd_sub),
    RES_ND("ResourceScatterNdMin", "real", scatter_nd_min),
    RES_ND("ResourceScatterNdMax", "real", scatter_nd_max),
    RES_ND("ResourceScatterNdUpdate", "any", scatter_nd_put),
    {"ResourceGather",
     "resource:res, indices:Tindices -> output:dtype; batch_dims:int=0, validate_indices:bool=true, dtype:any, " ANY_INDEX, trn_sh_unknown,
     resource_gather, TRN_OP_STATEFUL | TRN_OP_STREAM},
    {"ResourceGatherNd", "resource:res, indices:Tindices -> output:dtype; dtype:any, " ANY_INDEX, trn_sh_unknown, resource_gather_nd,
     TRN_OP_STATEFUL},
    {"StridedSliceAssign", "ref:&T, begin:Index, end:Index, strides:Index, value:T -> output_ref:&T; T:any, Index:i32|i64, " MASKS,
     trn_sh_update, slice_assign, TRN_OP_STATEFUL},
    {"ResourceStridedSliceAssign", "ref:res, begin:Index, end:Index, strides:Index, value:T ->; T:any, Index:i32|i64, " MASKS, trn_sh_update,
     slice_assign, TRN_OP_STATEFUL},
    {0},
};
/* clang-format on */
