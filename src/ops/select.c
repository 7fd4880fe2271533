/* Choosing elements: Select, Where, Unique, set difference. */
#include "ops/kern.h"

#include <stdlib.h>

/* ---- Select ---------------------------------------------------------------------------------------------------------------- */

typedef struct select_job {
    const trn_tensor *c, *t, *e;
    trn_tensor *y;
    int64_t run;       /* elements per condition (Select with a vector) */
    int sc, st, se;    /* 0: a single element for all */
} select_job;

/* Both sides are read before one is taken: a branch on a random condition costs more, and no vector unit has one. */
#define PICK(T)                                                                                                        \
    do {                                                                                                               \
        const T *a = j->t->data, *b = j->e->data;                                                                      \
        T *y = j->y->data;                                                                                             \
        if (j->run > 1) { /* whole rows */                                                                             \
            for (int64_t i = lo, n; i < hi; i += n) {                                                                  \
                n = TRN_MIN(j->run - i % j->run, hi - i);                                                              \
                memmove(y + i, (c[i / j->run] ? a : b) + i, (size_t)n * sizeof(T));                                    \
            }                                                                                                          \
        } else if (!j->sc) { /* the other sides' shapes made the result larger */                                      \
            const T *x = c[0] ? a : b;                                                                                 \
            int64_t step = c[0] ? j->st : j->se;                                                                       \
            for (int64_t i = lo; i < hi; i++)                                                                          \
                y[i] = x[i * step];                                                                                    \
        } else if (j->st && j->se) {                                                                                   \
            TRN_IVDEP for (int64_t i = lo; i < hi; i++)                                                                \
            {                                                                                                          \
                T u = a[i], v = b[i];                                                                                  \
                y[i] = c[i] ? u : v;                                                                                   \
            }                                                                                                          \
        } else if (j->st) {                                                                                            \
            T v = b[0];                                                                                                \
            TRN_IVDEP for (int64_t i = lo; i < hi; i++)                                                                \
            {                                                                                                          \
                T u = a[i];                                                                                            \
                y[i] = c[i] ? u : v;                                                                                   \
            }                                                                                                          \
        } else {                                                                                                       \
            T u = a[0];                                                                                                \
            TRN_IVDEP for (int64_t i = lo; i < hi; i++)                                                                \
            {                                                                                                          \
                T v = b[i * j->se];                                                                                    \
                y[i] = c[i] ? u : v;                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

TRN_SIMD static void pick_1(const select_job *j, const uint8_t *c, int64_t lo, int64_t hi) { PICK(uint8_t); }
TRN_SIMD static void pick_2(const select_job *j, const uint8_t *c, int64_t lo, int64_t hi) { PICK(uint16_t); }
TRN_SIMD static void pick_4(const select_job *j, const uint8_t *c, int64_t lo, int64_t hi) { PICK(uint32_t); }
TRN_SIMD static void pick_8(const select_job *j, const uint8_t *c, int64_t lo, int64_t hi) { PICK(uint64_t); }

typedef struct b16 {
    uint64_t a, b;
} b16;
static void pick_16(const select_job *j, const uint8_t *c, int64_t lo, int64_t hi) { PICK(b16); }

static void select_part(void *arg, int64_t lo, int64_t hi)
{
    const select_job *j = arg;
    const uint8_t *c = j->c->data;
    switch (trn_dtype_size(j->y->dtype)) {
    case 1: pick_1(j, c, lo, hi); break;
    case 2: pick_2(j, c, lo, hi); break;
    case 4: pick_4(j, c, lo, hi); break;
    case 8: pick_8(j, c, lo, hi); break;
    default: pick_16(j, c, lo, hi); break;
    }
}

static trn_err select_go(trn_kctx *k, select_job *j)
{
    if (trn_dtype_is_plain(j->y->dtype)) {
        enum { GRAIN = 32768 };
        if (j->y->count < 2 * GRAIN)
            select_part(j, 0, j->y->count);
        else
            trn_k_for(k, j->y->count, GRAIN, select_part, j);
        return TRN_OK;
    }
    for (int64_t i = 0; i < j->y->count; i++) {
        bool yes = TRN_DATA(j->c, uint8_t)[i / j->run * j->sc];
        TRN_TRY(trn_tensor_copy_elems(j->y, i, yes ? j->t : j->e, i * (yes ? j->st : j->se), 1));
    }
    return TRN_OK;
}

static trn_err k_select(trn_kctx *k)
{
    const trn_tensor *c = trn_in(k, 0), *t = trn_in(k, 1), *e = trn_in(k, 2);
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&t->shape, &e->shape), "'then' and 'else' must have the same size. but received: %s vs. %s", trn_shape_text(a, &t->shape),
                  trn_shape_text(b, &e->shape));
    if (trn_is_scalar(c)) {
        trn_out_set(k, 0, trn_tensor_ref(*TRN_DATA(c, uint8_t) ? t : e));
        return TRN_OK;
    }
    select_job j = {.c = c, .t = t, .e = e, .run = 1, .sc = 1, .st = 1, .se = 1};
    if (!trn_shape_eq(&c->shape, &t->shape)) { /* one condition per row */
        TRN_CHECK_ARG(trn_is_vector(c), "'cond' must be a scalar, a vector or of shape %s, but is %s", trn_shape_text(a, &t->shape), trn_shape_text(b, &c->shape));
        TRN_CHECK_ARG(t->shape.rank >= 1 && t->shape.dim[0] == c->count, "Number of batches of 'then' must match size of 'cond', but saw: %s vs. %lld",
                      trn_shape_text(a, &t->shape), (long long)c->count);
        j.run = t->count / TRN_MAX(c->count, (int64_t)1);
    }
    TRN_TRY(trn_out_like(&j.y, k, 0, trn_tensor_sole(t) ? 1 : 2));
    if (!j.y->count)
        return TRN_OK;
    return select_go(k, &j);
}
static trn_err sh_select(trn_shctx *s) { return trn_sh_meet(&s->out[0], &s->in[1], &s->in[2]); }

/* x laid out over `s`, in *held; or x itself when it has that shape or is a single element. */
static trn_err spread(trn_kctx *k, trn_tensor **held, const trn_tensor **x, int *step, const trn_shape *s)
{
    *held = NULL;
    *step = 1;
    if (trn_shape_eq(&(*x)->shape, s))
        return TRN_OK;
    if ((*x)->count == 1) {
        *step = 0;
        return TRN_OK;
    }
    trn_tensor *y;
    TRN_TRY(trn_tensor_new(&y, (*x)->dtype, s));
    int64_t st[TRN_MAX_RANK], ss[TRN_MAX_RANK], ds[TRN_MAX_RANK];
    trn_row_strides(st, &(*x)->shape);
    trn_row_strides(ds, s);
    for (int i = 0; i < s->rank; i++) {
        int q = i - (s->rank - (*x)->shape.rank);
        ss[i] = q < 0 || (*x)->shape.dim[q] == 1 ? 0 : st[q];
    }
    trn_err e = trn_block_copy(k, y, 0, ds, *x, 0, ss, s->dim, s->rank);
    if (e) {
        trn_tensor_unref(y);
        return e;
    }
    *x = *held = y;
    return TRN_OK;
}

static trn_err k_select_v2(trn_kctx *k)
{
    select_job j = {.c = trn_in(k, 0), .t = trn_in(k, 1), .e = trn_in(k, 2), .run = 1};
    trn_bcast b;
    TRN_TRY(trn_bcast_make(&b, &j.t->shape, &j.e->shape));
    trn_shape s = b.out;
    TRN_TRY(trn_bcast_make(&b, &j.c->shape, &s));
    s = b.out;
    if (j.c->count == 1) { /* one side as it is */
        const trn_tensor *x = *TRN_DATA(j.c, uint8_t) ? j.t : j.e;
        if (trn_shape_eq(&x->shape, &s)) {
            trn_out_set(k, 0, trn_tensor_ref(x));
            return TRN_OK;
        }
    }
    trn_tensor *held[3] = {NULL};
    trn_err e = trn_out_new(&j.y, k, 0, j.t->dtype, &s);
    if (!e && j.y->count == 0)
        return TRN_OK;
    if (!e)
        e = spread(k, &held[0], &j.c, &j.sc, &s);
    if (!e)
        e = spread(k, &held[1], &j.t, &j.st, &s);
    if (!e)
        e = spread(k, &held[2], &j.e, &j.se, &s);
    if (!e)
        e = select_go(k, &j);
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(held[i]);
    return e;
}
static trn_err sh_select_v2(trn_shctx *s)
{
    trn_shape r;
    TRN_TRY(trn_sh_broadcast(&r, &s->in[1], &s->in[2]));
    return trn_sh_broadcast(&s->out[0], &s->in[0], &r);
}

/* t limited to [min, max]; both are scalars or of t's shape. */
static trn_err k_clip(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    for (int i = 1; i < 3; i++) {
        char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
        const trn_tensor *m = trn_in(k, i);
        TRN_CHECK_ARG(trn_is_scalar(m) || trn_shape_eq(&m->shape, &x->shape), "clip_value_min and clip_value_max must be scalars or of shape %s, not %s",
                      trn_shape_text(a, &x->shape), trn_shape_text(b, &m->shape));
    }
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y != x)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    size_t size = trn_dtype_size(y->dtype);
    static const trn_accum_op ops[] = {TRN_ACC_MIN, TRN_ACC_MAX};
    for (int i = 0; i < 2; i++) { /* first down to the maximum, then up to the minimum */
        const trn_tensor *m = trn_in(k, 2 - i);
        if (m->shape.rank || x->count == 1) {
            trn_accum(ops[i], y->dtype, y->data, m->data, y->count);
            continue;
        }
        char row[64 * 16];
        for (int q = 0; q < 64; q++)
            memcpy(row + (size_t)q * size, m->data, size);
        for (int64_t q = 0; q < y->count; q += 64)
            trn_accum(ops[i], y->dtype, (char *)y->data + (size_t)q * size, row, TRN_MIN((int64_t)64, y->count - q));
    }
    return TRN_OK;
}

/* ---- Where -------------------------------------------------------------------------------------------------------------------- */

static bool nonzero(const trn_tensor *x, int64_t i)
{
    switch (x->dtype) {
    case TRN_FLOAT: return TRN_DATA(x, float)[i] != 0;
    case TRN_DOUBLE: return TRN_DATA(x, double)[i] != 0;
    case TRN_COMPLEX64: return TRN_DATA(x, float)[2 * i] != 0 || TRN_DATA(x, float)[2 * i + 1] != 0;
    case TRN_COMPLEX128: return TRN_DATA(x, double)[2 * i] != 0 || TRN_DATA(x, double)[2 * i + 1] != 0;
    case TRN_HALF:
    case TRN_BFLOAT16: return (TRN_DATA(x, uint16_t)[i] & 0x7fff) != 0;
    case TRN_BOOL: return TRN_DATA(x, uint8_t)[i] != 0;
    default: return trn_int_at(x, i) != 0;
    }
}

static trn_err k_where(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank >= 1, "Where needs at least a vector");
    trn_shape s = {.rank = 2, .dim = {0, x->shape.rank}};
    for (int64_t i = 0; i < x->count; i++)
        s.dim[0] += nonzero(x, i);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &s));
    int64_t at[TRN_MAX_RANK] = {0}, *o = y->data;
    int r = x->shape.rank;
    for (int64_t i = 0; i < x->count; i++) {
        if (nonzero(x, i)) {
            memcpy(o, at, sizeof *o * (size_t)r);
            o += r;
        }
        for (int d = r - 1; d >= 0; d--) {
            if (++at[d] < x->shape.dim[d])
                break;
            at[d] = 0;
        }
    }
    return TRN_OK;
}
static trn_err sh_where(trn_shctx *s)
{
    s->out[0] = trn_shape_of(2, (int64_t)-1, (int64_t)(s->in[0].rank < 0 ? -1 : s->in[0].rank));
    return TRN_OK;
}

/* ---- Unique, ListDiff ------------------------------------------------------------------------------------------------------------ */

/* Open addressing over slice numbers of one tensor. A slice is `runs` pieces of `inner` elements, `step` apart. */
typedef struct slices {
    const trn_tensor *x;
    int64_t inner, runs, step;
    int64_t *slot; /* number + 1, 0: free */
    uint64_t mask;
    bool ints; /* slices are int32 or int64 */
} slices;

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ (h >> 29);
}

/* -0.0 equals 0.0, so they must hash alike; NaN equals nothing. */
static uint64_t elem_hash(const trn_tensor *x, int64_t i)
{
    switch (x->dtype) {
    case TRN_STRING: return trn_hash(trn_str_p(&TRN_DATA(x, trn_str)[i]), TRN_DATA(x, trn_str)[i].len);
    case TRN_FLOAT: {
        float f = TRN_DATA(x, float)[i] + 0.0f;
        uint32_t u;
        memcpy(&u, &f, 4);
        return u;
    }
    case TRN_DOUBLE: {
        double f = TRN_DATA(x, double)[i] + 0.0;
        uint64_t u;
        memcpy(&u, &f, 8);
        return u;
    }
    case TRN_HALF:
    case TRN_BFLOAT16: {
        uint16_t u = TRN_DATA(x, uint16_t)[i];
        return u == 0x8000 ? 0 : u;
    }
    case TRN_BOOL: return TRN_DATA(x, uint8_t)[i];
    default: return (uint64_t)trn_int_at(x, i);
    }
}
static bool elem_eq(const trn_tensor *x, int64_t i, const trn_tensor *y, int64_t j)
{
    switch (x->dtype) {
    case TRN_STRING: return trn_str_eq(&TRN_DATA(x, trn_str)[i], &TRN_DATA(y, trn_str)[j]);
    case TRN_FLOAT: return TRN_DATA(x, float)[i] == TRN_DATA(y, float)[j];
    case TRN_DOUBLE: return TRN_DATA(x, double)[i] == TRN_DATA(y, double)[j];
    case TRN_HALF: return trn_half_to_f32(TRN_DATA(x, trn_half)[i]) == trn_half_to_f32(TRN_DATA(y, trn_half)[j]);
    case TRN_BFLOAT16: return trn_bf16_to_f32(TRN_DATA(x, trn_bf16)[i]) == trn_bf16_to_f32(TRN_DATA(y, trn_bf16)[j]);
    case TRN_BOOL: return TRN_DATA(x, uint8_t)[i] == TRN_DATA(y, uint8_t)[j];
    default: return trn_int_at(x, i) == trn_int_at(y, j);
    }
}

static trn_err slices_init(slices *t, const trn_tensor *x, int64_t n, int64_t inner, int64_t runs, int64_t step)
{
    uint64_t cap = 16;
    while (cap < (uint64_t)n * 2)
        cap *= 2;
    *t = (slices){.x = x, .inner = inner, .runs = runs, .step = step, .mask = cap - 1};
    t->ints = inner == 1 && runs == 1 && (x->dtype == TRN_INT32 || x->dtype == TRN_INT64);
    t->slot = calloc(cap, sizeof *t->slot);
    return t->slot ? TRN_OK : trn_err_oom();
}
static uint64_t slice_hash(const slices *t, const trn_tensor *x, int64_t i)
{
    uint64_t h = 0x51;
    for (int64_t r = 0; r < t->runs; r++)
        for (int64_t q = 0; q < t->inner; q++)
            h = mix(h, elem_hash(x, r * t->step + i * t->inner + q));
    return h;
}
/* The slot where slice i of x is (by equality) or would go. */
static int64_t *slices_find(const slices *t, const trn_tensor *x, int64_t i)
{
    if (t->ints) { /* a sparse gradient's row numbers */
        int64_t v = trn_int_at(x, i);
        for (uint64_t h = mix(0x51, (uint64_t)v);; h++) {
            int64_t *s = &t->slot[h & t->mask];
            if (!*s || trn_int_at(t->x, *s - 1) == v)
                return s;
        }
    }
    for (uint64_t h = slice_hash(t, x, i);; h++) {
        int64_t *s = &t->slot[h & t->mask];
        if (!*s)
            return s;
        bool eq = true;
        for (int64_t r = 0; eq && r < t->runs; r++)
            for (int64_t q = 0; eq && q < t->inner; q++)
                eq = elem_eq(t->x, r * t->step + (*s - 1) * t->inner + q, x, r * t->step + i * t->inner + q);
        if (eq)
            return s;
    }
}

static trn_err unique_along(trn_kctx *k, int axis)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype it = trn_attr_type(k->node, "out_idx");
    int64_t n = x->shape.dim[axis], inner = 1, outer = 1;
    for (int i = 0; i < x->shape.rank; i++)
        if (i != axis)
            *(i < axis ? &outer : &inner) = trn_times(i < axis ? outer : inner, x->shape.dim[i]);
    if (!x->count) /* slices of nothing are equal, and not looked at */
        outer = inner = 0;
    TRN_CHECK_ARG(it == TRN_INT64 || n <= INT32_MAX, "unique does not support input tensors larger than %d elements with out_idx=int32", INT32_MAX);
    trn_tensor *idx, *y, *c;
    trn_shape s = trn_shape_vector(n);
    TRN_TRY(trn_out_new(&idx, k, 1, it, &s)); /* first: there may be any number of slices without elements */
    slices t;
    TRN_TRY(slices_init(&t, x, n, inner, outer, trn_times(n, inner)));
    int64_t *first = malloc(sizeof *first * (size_t)(2 * n + 1)), *count = first + n; /* of each distinct slice */
    int64_t distinct = 0;
    trn_err e = first ? TRN_OK : trn_err_oom();
    for (int64_t i = 0; i < n && !e; i++) {
        int64_t *slot = slices_find(&t, x, i);
        int64_t id;
        if (!*slot) { /* slots hold the slice; its number among the distinct ones is found through idx */
            *slot = i + 1;
            id = distinct;
            first[distinct] = i;
            count[distinct++] = 0;
        } else {
            id = trn_int_at(idx, *slot - 1);
        }
        count[id]++;
        trn_int_put(idx, i, id);
    }
    s = x->shape;
    s.dim[axis] = distinct;
    if (!e)
        e = trn_out_new(&y, k, 0, x->dtype, &s);
    for (int64_t o = 0; o < outer && !e; o++)
        for (int64_t i = 0; i < distinct && !e; i++)
            if (t.ints)
                trn_int_put(y, i, trn_int_at(x, first[i]));
            else
                e = trn_tensor_copy_elems(y, (o * distinct + i) * inner, x, (o * n + first[i]) * inner, inner);
    if (!e && k->n_out == 3) {
        s = trn_shape_vector(distinct);
        e = trn_out_new(&c, k, 2, it, &s);
        for (int64_t i = 0; i < distinct && !e; i++)
            trn_int_put(c, i, count[i]);
    }
    free(first);
    free(t.slot);
    return e;
}

static trn_err k_unique(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_vector(trn_in(k, 0)), "unique expects a 1D vector.");
    return unique_along(k, 0);
}
static trn_err k_unique_v2(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *a = trn_in(k, 1);
    int axis;
    TRN_CHECK_ARG(trn_is_vector(a), "axis expects a 1D vector.");
    TRN_CHECK_ARG(a->count <= 1, "axis does not support input tensors larger than 1 elements");
    if (a->count == 0)
        return k_unique(k);
    TRN_TRY(trn_axis(&axis, trn_int_at(a, 0), x->shape.rank, "axis"));
    return unique_along(k, axis);
}
static trn_err sh_unique(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(-1);
    s->out[1] = s->in[0].rank == 1 ? s->in[0] : trn_shape_vector(-1);
    if (s->n_out > 2)
        s->out[2] = trn_shape_vector(-1);
    return TRN_OK;
}
static trn_err sh_unique_v2(trn_shctx *s)
{
    trn_sh_unknown(s);
    for (int i = 1; i < s->n_out; i++)
        s->out[i] = trn_shape_vector(-1);
    return TRN_OK;
}

static trn_err k_list_diff(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *y = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_vector(x) && trn_is_vector(y), "x and y should be 1D vectors.");
    slices t;
    TRN_TRY(slices_init(&t, y, y->count, 1, 1, 0));
    for (int64_t i = 0; i < y->count; i++)
        *slices_find(&t, y, i) = i + 1;
    trn_shape s = trn_shape_vector(0);
    for (int64_t i = 0; i < x->count; i++)
        s.dim[0] += !*slices_find(&t, x, i);
    trn_tensor *o, *idx;
    trn_err e = trn_out_new(&o, k, 0, x->dtype, &s);
    if (!e)
        e = trn_out_new(&idx, k, 1, trn_attr_type(k->node, "out_idx"), &s);
    for (int64_t i = 0, at = 0; i < x->count && !e; i++)
        if (!*slices_find(&t, x, i)) {
            e = trn_tensor_copy_elems(o, at, x, i, 1);
            trn_int_put(idx, at++, i);
        }
    free(t.slot);
    return e;
}
static trn_err sh_list_diff(trn_shctx *s)
{
    s->out[0] = s->out[1] = trn_shape_vector(-1);
    return TRN_OK;
}

const trn_op trn_ops_select[] = {
    {"Select", "condition:bool, t:T, e:T -> output:T; T:any", sh_select, k_select, 0},
    {"SelectV2", "condition:bool, t:T, e:T -> output:T; T:any", sh_select_v2, k_select_v2, 0},
    {"ClipByValue", "t:T, clip_value_min:T, clip_value_max:T -> output:T; T:real", trn_sh_same, k_clip, 0},
    {"Where", "input:T -> index:i64; T:num|bool=bool", sh_where, k_where, 0},
    {"Unique", "x:T -> y:T, idx:out_idx; T:real|bool|str, out_idx:i32|i64=i32", sh_unique, k_unique, 0},
    {"UniqueV2", "x:T, axis:Taxis -> y:T, idx:out_idx; T:real|bool|str, Taxis:i32|i64=i64, out_idx:i32|i64=i32", sh_unique_v2, k_unique_v2, 0},
    {"UniqueWithCounts", "x:T -> y:T, idx:out_idx, count:out_idx; T:real|bool|str, out_idx:i32|i64=i32", sh_unique, k_unique, 0},
    {"UniqueWithCountsV2", "x:T, axis:Taxis -> y:T, idx:out_idx, count:out_idx; T:real|bool|str, Taxis:i32|i64=i64, out_idx:i32|i64=i32", sh_unique_v2,
     k_unique_v2, 0},
    {"ListDiff", "x:T, y:T -> out:T, idx:out_idx; T:real|str, out_idx:i32|i64=i32", sh_list_diff, k_list_diff, 0},
    {0},
};
