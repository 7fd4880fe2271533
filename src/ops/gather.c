/* Rows by index: gather, scatter, stitch, partition. Every index is checked before memory is touched. */
#include "op/kctx.h"
#include "ops/kern.h"

#include <stdlib.h>

/* "1,0,2": where element i of a tensor of this shape is. */
static const char *position(char buf[TRN_SHAPE_TEXT], const trn_shape *s, int64_t i)
{
    int64_t at[TRN_MAX_RANK];
    for (int d = s->rank - 1; d >= 0; d--) {
        at[d] = s->dim[d] ? i % s->dim[d] : 0;
        i = s->dim[d] ? i / s->dim[d] : 0;
    }
    trn_shape p = {.rank = s->rank};
    memcpy(p.dim, at, sizeof *at * (size_t)s->rank);
    trn_shape_text(buf, &p); /* "[1,0,2]"; nothing for a scalar */
    return s->rank ? buf : "";
}

/* ---- Gather -------------------------------------------------------------------------------------------------------------- */

typedef struct gather_job {
    const trn_tensor *x, *idx;
    trn_tensor *y;
    int64_t batch, outer, n, limit, inner; /* per batch: [outer, limit, inner] by [n] indices */
} gather_job;

/* [lo, hi) counts output slices over batch × outer × n. Plain elements only. */
static void gather_part(void *arg, int64_t lo, int64_t hi)
{
    const gather_job *j = arg;
    size_t bytes = (size_t)j->inner * trn_dtype_size(j->x->dtype);
    const char *x = j->x->data;
    char *y = j->y->data;
    for (int64_t s = lo; s < hi; s++) {
        int64_t i = s % j->n, bo = s / j->n, b = bo / j->outer;
        int64_t at = trn_int_at(j->idx, b * j->n + i);
        const char *from = x + (size_t)(bo * j->limit + at) * bytes;
        char *to = y + (size_t)s * bytes;
        if (bytes == 4)
            memcpy(to, from, 4);
        else if (bytes == 8)
            memcpy(to, from, 8);
        else
            memcpy(to, from, bytes);
    }
}

static trn_err gather(trn_kctx *k, int64_t axis, int64_t batch_dims)
{
    const trn_tensor *x = trn_in(k, 0), *idx = trn_in(k, 1);
    int r = x->shape.rank, ri = idx->shape.rank;
    TRN_CHECK_ARG(r >= 1, "params must be at least 1 dimensional");
    TRN_CHECK_ARG(axis >= -r && axis < r, "Expected axis in the range [%d, %d), but got %lld", -r, r, (long long)axis);
    axis += axis < 0 ? r : 0;
    if (batch_dims != 0) {
        TRN_CHECK_ARG(batch_dims >= -ri && batch_dims <= ri, "Expected batch_dims in the range [%d, %d], but got %lld", -ri, ri, (long long)batch_dims);
        batch_dims += batch_dims < 0 ? ri : 0;
        TRN_CHECK_ARG(batch_dims < r && batch_dims <= axis, "batch_dims (%lld) must be less than rank(params) (%d) and at most axis (%lld)",
                      (long long)batch_dims, r, (long long)axis);
    }
    gather_job j = {.x = x, .idx = idx, .batch = 1, .outer = 1, .n = 1, .inner = 1, .limit = x->shape.dim[axis]};
    trn_shape s = {.rank = 0};
    TRN_CHECK_ARG(r + ri - 1 - batch_dims <= TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    for (int i = 0; i < batch_dims; i++) {
        TRN_CHECK_ARG(x->shape.dim[i] == idx->shape.dim[i], "params.shape[%d]: %lld should be equal to indices.shape[%d]: %lld", i,
                      (long long)x->shape.dim[i], i, (long long)idx->shape.dim[i]);
        j.batch = trn_times(j.batch, s.dim[s.rank++] = x->shape.dim[i]);
    }
    for (int i = (int)batch_dims; i < axis; i++)
        j.outer = trn_times(j.outer, s.dim[s.rank++] = x->shape.dim[i]);
    for (int i = (int)batch_dims; i < ri; i++)
        j.n = trn_times(j.n, s.dim[s.rank++] = idx->shape.dim[i]);
    for (int i = (int)axis + 1; i < r; i++)
        j.inner = trn_times(j.inner, s.dim[s.rank++] = x->shape.dim[i]);
    int64_t count;
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(trn_count_checked(&count, &s));
    for (int64_t i = 0; i < idx->count; i++) {
        int64_t v = trn_int_at(idx, i);
        TRN_CHECK_ARG(v >= 0 && v < j.limit, "indices%s = %lld is not in [0, %lld)", position(text, &idx->shape, i), (long long)v, (long long)j.limit);
    }
    TRN_TRY(trn_out_new(&j.y, k, 0, x->dtype, &s));
    if (!count)
        return TRN_OK;
    int64_t slices = j.batch * j.outer * j.n;
    if (trn_dtype_is_plain(x->dtype)) {
        int64_t grain = trn_grain(TRN_MAX((int64_t)32768 / j.inner, (int64_t)1));
        if (slices < 2 * grain)
            gather_part(&j, 0, slices);
        else
            trn_k_for(k, slices, grain, gather_part, &j);
        return TRN_OK;
    }
    for (int64_t q = 0; q < slices; q++) {
        int64_t bo = q / j.n, at = trn_int_at(idx, bo / j.outer * j.n + q % j.n);
        TRN_TRY(trn_tensor_copy_elems(j.y, q * j.inner, x, (bo * j.limit + at) * j.inner, j.inner));
    }
    return TRN_OK;
}

static trn_err k_gather(trn_kctx *k) { return gather(k, 0, 0); }
static trn_err k_gather_v2(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 2)), "axis must be scalar");
    return gather(k, trn_int_at(trn_in(k, 2), 0), trn_attr_int(k->node, "batch_dims"));
}
static trn_err sh_gather_at(trn_shctx *s, bool known, int64_t axis, int64_t batch)
{
    const trn_shape *x = &s->in[0], *idx = &s->in[1];
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0 || idx->rank < 0 || !known)
        return TRN_OK;
    int a;
    TRN_CHECK_ARG(x->rank >= 1, "params must be at least 1 dimensional");
    TRN_TRY(trn_axis(&a, axis, x->rank, "axis"));
    batch += batch < 0 ? idx->rank : 0;
    TRN_CHECK_ARG(batch >= 0 && batch <= idx->rank && batch <= a, "batch_dims is %lld", (long long)batch);
    if (x->rank + idx->rank - 1 - batch > TRN_MAX_RANK)
        return TRN_OK;
    trn_shape r = {.rank = 0};
    for (int i = 0; i < a; i++)
        r.dim[r.rank++] = x->dim[i];
    for (int i = (int)batch; i < idx->rank; i++)
        r.dim[r.rank++] = idx->dim[i];
    for (int i = a + 1; i < x->rank; i++)
        r.dim[r.rank++] = x->dim[i];
    s->out[0] = r;
    return TRN_OK;
}
static trn_err sh_gather(trn_shctx *s) { return sh_gather_at(s, true, 0, 0); }
static trn_err sh_gather_v2(trn_shctx *s)
{
    const trn_tensor *a = s->value ? s->value[2] : NULL;
    return sh_gather_at(s, a && a->count == 1, a && a->count == 1 ? trn_int_at(a, 0) : 0, trn_attr_int(s->node, "batch_dims"));
}

/* ---- by coordinates: GatherNd, ScatterNd ------------------------------------------------------------------------------------- */

/* The last dim of idx holds coordinates of the first `depth` dims of s. */
typedef struct nd {
    int depth;
    int64_t n;     /* coordinates */
    int64_t inner; /* elements of a slice */
    int64_t stride[TRN_MAX_RANK];
} nd;

static trn_err nd_make(nd *o, const trn_shape *s, const trn_tensor *idx)
{
    TRN_CHECK_ARG(idx->shape.rank >= 1, "indices must be at least a vector");
    int64_t depth = idx->shape.dim[idx->shape.rank - 1];
    TRN_CHECK_ARG(depth <= s->rank, "index innermost dimension length must be <= params rank; saw: %lld vs. %d", (long long)depth, s->rank);
    o->depth = (int)depth;
    o->n = 1;
    for (int i = 0; i < idx->shape.rank - 1; i++)
        o->n = trn_times(o->n, idx->shape.dim[i]);
    o->inner = 1;
    for (int i = o->depth; i < s->rank; i++)
        o->inner = trn_times(o->inner, s->dim[i]);
    int64_t at = 1;
    for (int i = o->depth - 1; i >= 0; i--) {
        o->stride[i] = at;
        at = trn_times(at, s->dim[i]);
    }
    return TRN_OK;
}

/* Slice number of coordinate i, or an error that shows it. */
static trn_err nd_at(int64_t *out, const nd *o, const trn_shape *s, const trn_tensor *idx, int64_t i)
{
    int64_t at = 0;
    for (int d = 0; d < o->depth; d++) {
        int64_t v = trn_int_at(idx, i * o->depth + d);
        if (v < 0 || v >= s->dim[d]) {
            trn_shape lead = idx->shape, c = {.rank = o->depth};
            lead.rank--;
            for (int q = 0; q < o->depth; q++)
                c.dim[q] = trn_int_at(idx, i * o->depth + q);
            char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT], t[TRN_SHAPE_TEXT];
            return TRN_BAD("indices%s = %s does not index into shape %s", position(a, &lead, i), trn_shape_text(b, &c), trn_shape_text(t, s));
        }
        at += v * o->stride[d];
    }
    *out = at;
    return TRN_OK;
}

static trn_err k_gather_nd(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *idx = trn_in(k, 1);
    nd o;
    TRN_CHECK_ARG(x->shape.rank >= 1, "params must be at least a vector");
    TRN_TRY(nd_make(&o, &x->shape, idx));
    TRN_CHECK_ARG(idx->shape.rank - 1 + x->shape.rank - o.depth <= TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    trn_shape s = idx->shape;
    s.rank--;
    for (int i = o.depth; i < x->shape.rank; i++)
        s.dim[s.rank++] = x->shape.dim[i];
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    TRN_CHECK_ARG(o.n == 0 || x->count > 0, "Requested more than 0 entries, but params is empty");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    for (int64_t i = 0; i < o.n; i++) {
        int64_t at;
        TRN_TRY(nd_at(&at, &o, &x->shape, idx, i));
        TRN_TRY(trn_tensor_copy_elems(y, i * o.inner, x, at * o.inner, o.inner));
    }
    return TRN_OK;
}
static trn_err sh_gather_nd(trn_shctx *s)
{
    const trn_shape *x = &s->in[0], *idx = &s->in[1];
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0 || idx->rank < 1 || idx->dim[idx->rank - 1] < 0 || idx->dim[idx->rank - 1] > x->rank)
        return TRN_OK;
    int depth = (int)idx->dim[idx->rank - 1];
    if (idx->rank - 1 + x->rank - depth > TRN_MAX_RANK)
        return TRN_OK;
    trn_shape r = *idx;
    r.rank--;
    for (int i = depth; i < x->rank; i++)
        r.dim[r.rank++] = x->dim[i];
    s->out[0] = r;
    return TRN_OK;
}

/* What a sum of strings is. */
static trn_err append_strings(trn_tensor *y, int64_t at, const trn_tensor *u, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t a, b;
        const char *p = trn_tensor_str_at(y, at + i, &a), *q = trn_tensor_str_at(u, from + i, &b);
        char *both = malloc(a + b + 1);
        if (!both)
            return trn_err_oom();
        memcpy(both, a ? p : "", a);
        memcpy(both + a, b ? q : "", b);
        trn_err err = trn_str_set(TRN_DATA_MUT(y, trn_str) + at + i, both, a + b);
        free(both);
        TRN_TRY(err);
    }
    return TRN_OK;
}

/* `assign`: the last update wins; else accumulate with op. */
static trn_err scatter_into(trn_tensor *y, const trn_tensor *idx, const trn_tensor *u, bool assign, trn_accum_op op)
{
    nd o;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(nd_make(&o, &y->shape, idx));
    trn_shape want = idx->shape;
    want.rank--;
    TRN_CHECK_ARG(want.rank + y->shape.rank - o.depth <= TRN_MAX_RANK, "updates have more than %d dimensions", TRN_MAX_RANK);
    for (int i = o.depth; i < y->shape.rank; i++)
        want.dim[want.rank++] = y->shape.dim[i];
    TRN_CHECK_ARG(trn_shape_eq(&want, &u->shape), "updates must have shape %s, not %s", trn_shape_text(a, &want), trn_shape_text(b, &u->shape));
    TRN_CHECK_ARG(y->count > 0 || u->count == 0, "Indices and updates specified for empty output");
    if (!y->count && !o.depth) /* any number of updates of nothing */
        return TRN_OK;
    size_t size = trn_dtype_size(y->dtype);
    for (int64_t i = 0; i < o.n; i++) {
        int64_t at;
        TRN_TRY(nd_at(&at, &o, &y->shape, idx, i));
        if (assign)
            TRN_TRY(trn_tensor_copy_elems(y, at * o.inner, u, i * o.inner, o.inner));
        else if (y->dtype == TRN_STRING)
            TRN_TRY(append_strings(y, at * o.inner, u, i * o.inner, o.inner));
        else
            trn_accum(op, y->dtype, (char *)y->data + (size_t)(at * o.inner) * size, (const char *)u->data + (size_t)(i * o.inner) * size, o.inner);
    }
    return TRN_OK;
}

static trn_err k_scatter_nd(trn_kctx *k)
{
    trn_shape s;
    const trn_tensor *u = trn_in(k, 1);
    TRN_TRY(trn_shape_from(&s, trn_in(k, 2), false));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, u->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    return scatter_into(y, trn_in(k, 0), u, u->dtype != TRN_STRING && !trn_accum_has(TRN_ACC_ADD, u->dtype), TRN_ACC_ADD);
}
static trn_err sh_in2_shape(trn_shctx *s)
{
    trn_sh_value(&s->out[0], s, 2);
    return TRN_OK;
}

static trn_err tensor_scatter(trn_kctx *k, bool assign, trn_accum_op op)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank >= 1, "Output must be at least 1-D");
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y != x)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    return scatter_into(y, trn_in(k, 1), trn_in(k, 2), assign, op);
}
static trn_err k_tensor_scatter_update(trn_kctx *k) { return tensor_scatter(k, true, TRN_ACC_ADD); }
static trn_err k_tensor_scatter_add(trn_kctx *k) { return tensor_scatter(k, false, TRN_ACC_ADD); }
static trn_err k_scatter_non_aliasing(trn_kctx *k) { return tensor_scatter(k, trn_in(k, 0)->dtype == TRN_BOOL, TRN_ACC_ADD); }
static trn_err k_tensor_scatter_sub(trn_kctx *k) { return tensor_scatter(k, false, TRN_ACC_SUB); }
static trn_err k_tensor_scatter_max(trn_kctx *k) { return tensor_scatter(k, false, TRN_ACC_MAX); }
static trn_err k_tensor_scatter_min(trn_kctx *k) { return tensor_scatter(k, false, TRN_ACC_MIN); }

/* ---- DynamicStitch, DynamicPartition ---------------------------------------------------------------------------------------- */

static trn_err k_dynamic_stitch(trn_kctx *k)
{
    int n = k->n_in / 2;
    const trn_shape *tail0 = NULL;
    trn_shape s = {.rank = 1};
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        const trn_tensor *idx = trn_in(k, i), *d = trn_in(k, n + i);
        int ri = idx->shape.rank;
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        bool starts = d->shape.rank >= ri;
        for (int q = 0; starts && q < ri; q++)
            starts = d->shape.dim[q] == idx->shape.dim[q];
        TRN_CHECK_ARG(starts, "data[%d].shape = %s does not start with indices[%d].shape = %s", i, trn_shape_text(a, &d->shape), i,
                      trn_shape_text(b, &idx->shape));
        trn_shape tail = {.rank = d->shape.rank - ri};
        for (int q = 0; q < tail.rank; q++)
            tail.dim[q] = d->shape.dim[ri + q];
        if (!tail0) {
            TRN_CHECK_ARG(tail.rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
            s.rank = 1 + tail.rank;
            memcpy(s.dim + 1, tail.dim, sizeof *tail.dim * (size_t)tail.rank);
            tail0 = &s;
        } else {
            bool same = tail.rank == s.rank - 1;
            for (int q = 0; same && q < tail.rank; q++)
                same = tail.dim[q] == s.dim[q + 1];
            TRN_CHECK_ARG(same, "Need data[0].shape[..] = data[%d].shape[..] behind the indices' dimensions, got %s", i, trn_shape_text(a, &d->shape));
        }
        for (int64_t q = 0; q < idx->count; q++) {
            int64_t v = TRN_DATA(idx, int32_t)[q];
            TRN_CHECK_ARG(v >= 0, "indices[%d] holds %lld, which is out of range: it must be >= 0", i, (long long)v);
            rows = TRN_MAX(rows, v + 1);
        }
    }
    s.dim[0] = rows;
    int64_t inner = 1, count;
    for (int q = 1; q < s.rank; q++)
        inner = trn_times(inner, s.dim[q]);
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, n)->dtype, &s));
    trn_zero_elems(y, 0, y->count); /* rows that no index names */
    for (int i = 0; i < n; i++)
        for (int64_t q = 0; q < trn_in(k, i)->count; q++)
            TRN_TRY(trn_tensor_copy_elems(y, TRN_DATA(trn_in(k, i), int32_t)[q] * inner, trn_in(k, n + i), q * inner, inner));
    return TRN_OK;
}

static trn_err k_dynamic_partition(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *p = trn_in(k, 1);
    int rp = p->shape.rank;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    bool starts = x->shape.rank >= rp;
    for (int i = 0; starts && i < rp; i++)
        starts = x->shape.dim[i] == p->shape.dim[i];
    TRN_CHECK_ARG(starts, "data.shape must start with partitions.shape, got data.shape = %s, partitions.shape = %s", trn_shape_text(a, &x->shape),
                  trn_shape_text(b, &p->shape));
    TRN_CHECK_ARG(x->shape.rank - rp < TRN_MAX_RANK, "the results would have more than %d dimensions", TRN_MAX_RANK);
    int64_t *n = calloc((size_t)k->n_out, sizeof *n), inner = 1;
    if (!n)
        return trn_err_oom();
    trn_err e = TRN_OK;
    for (int64_t i = 0; i < p->count && !e; i++) {
        int64_t v = TRN_DATA(p, int32_t)[i];
        if (v < 0 || v >= k->n_out)
            e = TRN_BAD("partitions%s = %lld is not in [0, %d)", position(a, &p->shape, i), (long long)v, k->n_out);
        else
            n[v]++;
    }
    trn_shape s = {.rank = 1 + x->shape.rank - rp};
    for (int i = rp; i < x->shape.rank; i++)
        inner = trn_times(inner, s.dim[1 + i - rp] = x->shape.dim[i]);
    for (int i = 0; i < k->n_out && !e; i++) {
        trn_tensor *y;
        s.dim[0] = n[i];
        n[i] = 0;
        e = trn_out_new(&y, k, i, x->dtype, &s);
    }
    for (int64_t i = 0; i < p->count && !e; i++) {
        int64_t v = TRN_DATA(p, int32_t)[i];
        e = trn_tensor_copy_elems(k->out[v].t, n[v]++ * inner, x, i * inner, inner);
    }
    free(n);
    return e;
}
static trn_err sh_dynamic_partition(trn_shctx *s)
{
    const trn_shape *x = &s->in[0], *p = &s->in[1];
    for (int i = 0; i < s->n_out; i++) {
        s->out[i] = trn_shape_unknown();
        if (x->rank < 0 || p->rank < 0 || p->rank > x->rank || 1 + x->rank - p->rank > TRN_MAX_RANK)
            continue;
        s->out[i].rank = 1 + x->rank - p->rank;
        s->out[i].dim[0] = -1;
        for (int d = p->rank; d < x->rank; d++)
            s->out[i].dim[1 + d - p->rank] = x->dim[d];
    }
    return TRN_OK;
}

#define TSCATTER(set) "tensor:T, indices:Tindices, updates:T -> output:T; T:" set ", Tindices:i32|i64"

const trn_op trn_ops_gather[] = {
    {"Gather", "params:Tparams, indices:Tindices -> output:Tparams; validate_indices:bool=true, Tparams:any, Tindices:i32|i64", sh_gather, k_gather, 0},
    {"GatherV2",
     "params:Tparams, indices:Tindices, axis:Taxis -> output:Tparams; batch_dims:int=0, Tparams:any, Tindices:i16|i32|i64, Taxis:i32|i64",
     sh_gather_v2, k_gather_v2, 0},
    {"GatherNd", "params:Tparams, indices:Tindices -> output:Tparams; Tparams:any, Tindices:i16|i32|i64", sh_gather_nd, k_gather_nd, 0},
    {"ScatterNd", "indices:Tindices, updates:T, shape:Tindices -> output:T; T:num|bool|str, Tindices:i16|i32|i64", sh_in2_shape, k_scatter_nd, 0},
    {"TensorScatterUpdate", "tensor:T, indices:Tindices, updates:T -> output:T; T:any, Tindices:i16|u16|i32|i64", trn_sh_same, k_tensor_scatter_update, 0},
    {"ScatterNdNonAliasingAdd", "input:T, indices:Tindices, updates:T -> output:T; T:num|bool, Tindices:i32|i64", trn_sh_same, k_scatter_non_aliasing, 0},
    {"TensorScatterAdd", TSCATTER("num"), trn_sh_same, k_tensor_scatter_add, 0},
    {"TensorScatterSub", TSCATTER("num"), trn_sh_same, k_tensor_scatter_sub, 0},
    {"TensorScatterMax", TSCATTER("real"), trn_sh_same, k_tensor_scatter_max, 0},
    {"TensorScatterMin", TSCATTER("real"), trn_sh_same, k_tensor_scatter_min, 0},
    {"DynamicStitch", "indices:N*i32, data:N*T -> merged:T; N:int>=1, T:any", trn_sh_unknown, k_dynamic_stitch, 0},
    {"ParallelDynamicStitch", "indices:N*i32, data:N*T -> merged:T; N:int>=1, T:any", trn_sh_unknown, k_dynamic_stitch, 0},
    {"DynamicPartition", "data:T, partitions:i32 -> outputs:num_partitions*T; num_partitions:int>=1, T:any", sh_dynamic_partition, k_dynamic_partition,
     0},
    {0},
};
