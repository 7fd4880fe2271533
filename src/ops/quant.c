/* Numbers as quantized ones would be, still in floating point: QuantizeAndDequantize and FakeQuant, for training that is to be quantized later.
 *
 * All of them see their input as [outer, channels, inner]; without an axis there is one channel. A channel has its own grid. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"

/* One array per number, a place per channel. A run of elements belongs to one channel (step 0) or to one channel after the other (step 1). */
typedef struct grid {
    bool f64, clamp, up; /* up: halves are rounded up, else to even */
    int64_t channels, inner;
    char *lo, *hi, *scale, *inv, *zero;
} grid;

typedef struct job {
    const grid *g;
    char *y;
    const char *x, *d;
    void (*loop)(void *y, const void *x, const void *d, int64_t n, int64_t c, int64_t step, const grid *g);
} job;

static size_t size_of(const grid *g) { return g->f64 ? sizeof(double) : sizeof(float); }

static trn_err check_ends(const grid *g, int64_t axis, const trn_tensor *lo, const trn_tensor *hi)
{
    const trn_tensor *t[] = {lo, hi};
    for (int i = 0; i < 2; i++) {
        TRN_CHECK_ARG(t[i]->shape.rank == (axis >= 0), "input_%s must have rank %d, not %d", i ? "max" : "min", axis >= 0, t[i]->shape.rank);
        TRN_CHECK_ARG(t[i]->count == g->channels, "input_%s has %lld values for %lld channels", i ? "max" : "min", (long long)t[i]->count, (long long)g->channels);
    }
    return TRN_OK;
}

/* lo, hi: the ends of each channel's range, or NULL. Checked first: there may be more channels than memory when x has no elements. */
static trn_err grid_init(grid *g, const trn_tensor *x, int64_t axis, const trn_tensor *lo, const trn_tensor *hi)
{
    g->f64 = x->dtype == TRN_DOUBLE;
    g->channels = g->inner = 1;
    if (axis >= 0) {
        g->channels = lo || x->count ? x->shape.dim[axis] : 0;
        for (int i = (int)axis + 1; i < x->shape.rank; i++)
            g->inner = trn_times(g->inner, x->shape.dim[i]);
    }
    if (g->channels == 1)
        g->inner = x->count;
    if (lo)
        TRN_TRY(check_ends(g, axis, lo, hi));
    size_t n = (size_t)g->channels * size_of(g);
    char **a[] = {&g->lo, &g->hi, &g->scale, &g->inv, &g->zero};
    for (size_t i = 0; i < TRN_COUNTOF(a); i++)
        if (!(*a[i] = calloc(n ? n : 1, 1)))
            return trn_err_oom();
    return TRN_OK;
}

static void grid_fini(grid *g)
{
    free(g->lo);
    free(g->hi);
    free(g->scale);
    free(g->inv);
    free(g->zero);
}

static void some(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const grid *g = j->g;
    size_t size = size_of(g);
    while (begin < end) {
        int64_t c, n, step = g->inner == 1;
        if (step) {
            c = begin % g->channels;
            n = TRN_MIN(end - begin, g->channels - c);
        } else {
            c = begin / g->inner % g->channels;
            n = TRN_MIN(end - begin, g->inner - begin % g->inner);
        }
        size_t at = (size_t)begin * size;
        j->loop(j->y + at, j->x + at, j->d ? j->d + at : NULL, n, c, step, g);
        begin += n;
    }
}

static void run(const trn_kctx *k, const job *j, int64_t n) { trn_k_for(k, n, 8192, some, (void *)j); }

/* ---- QuantizeAndDequantize ---------------------------------------------------------------------------------------------- */

#define LANES 16

#define QDQ(T, S, floor_, rint_, MAX)                                                                                  \
    TRN_SIMD static void ends_each_##S(T *lo, T *hi, const T *x, int64_t n)                                            \
    {                                                                                                                  \
        TRN_IVDEP                                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            lo[i] = x[i] < lo[i] ? x[i] : lo[i];                                                                       \
            hi[i] = x[i] > hi[i] ? x[i] : hi[i];                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    TRN_SIMD static void ends_of_##S(T *lo, T *hi, const T *x, int64_t n)                                              \
    {                                                                                                                  \
        T a[LANES], b[LANES];                                                                                          \
        int64_t i = 0;                                                                                                 \
        for (int q = 0; q < LANES; q++)                                                                                \
            a[q] = *lo, b[q] = *hi;                                                                                    \
        for (; i + LANES <= n; i += LANES)                                                                             \
            for (int q = 0; q < LANES; q++) {                                                                          \
                a[q] = x[i + q] < a[q] ? x[i + q] : a[q];                                                              \
                b[q] = x[i + q] > b[q] ? x[i + q] : b[q];                                                              \
            }                                                                                                          \
        for (int q = 0; i < n; i++, q++) {                                                                             \
            a[q] = x[i] < a[q] ? x[i] : a[q];                                                                          \
            b[q] = x[i] > b[q] ? x[i] : b[q];                                                                          \
        }                                                                                                              \
        for (int q = 0; q < LANES; q++) {                                                                              \
            *lo = a[q] < *lo ? a[q] : *lo;                                                                             \
            *hi = b[q] > *hi ? b[q] : *hi;                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    /* Least and largest of each channel. */                                                                           \
    static void range_##S(const grid *g, const T *x, int64_t count)                                                    \
    {                                                                                                                  \
        T *lo = (T *)g->lo, *hi = (T *)g->hi;                                                                          \
        for (int64_t c = 0; c < g->channels; c++)                                                                      \
            lo[c] = MAX, hi[c] = -MAX;                                                                                 \
        if (g->inner == 1)                                                                                             \
            for (int64_t at = 0; at < count; at += g->channels)                                                        \
                ends_each_##S(lo, hi, x + at, g->channels);                                                            \
        else                                                                                                           \
            for (int64_t at = 0, c = 0; at < count; at += g->inner, c = (c + 1) % g->channels)                         \
                ends_of_##S(lo + c, hi + c, x + at, g->inner);                                                         \
    }                                                                                                                  \
    /* Whole numbers from qlo to qhi that keep zero: the side that needs the wider steps says how wide they are, and the other side moves. */ \
    static void fit_##S(const grid *g, int64_t qlo, int64_t qhi)                                                       \
    {                                                                                                                  \
        T *lo = (T *)g->lo, *hi = (T *)g->hi, *scale = (T *)g->scale, *inv = (T *)g->inv, a = (T)qlo, b = (T)qhi;      \
        for (int64_t c = 0; c < g->channels; c++) {                                                                    \
            T low = a * lo[c] > 0 ? a / lo[c] : MAX, high = b * hi[c] > 0 ? b / hi[c] : MAX;                           \
            if (low < high) {                                                                                          \
                scale[c] = low;                                                                                        \
                inv[c] = lo[c] / a;                                                                                    \
                hi[c] = b * inv[c];                                                                                    \
            } else {                                                                                                   \
                scale[c] = high;                                                                                       \
                inv[c] = hi[c] / b;                                                                                    \
                lo[c] = a * inv[c];                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    TRN_SIMD static void qdq_##S(void *y_, const void *x_, const void *d, int64_t n, int64_t c, int64_t step, const grid *g) \
    {                                                                                                                  \
        T *y = y_;                                                                                                     \
        const T *x = x_, *lo = (const T *)g->lo + c, *hi = (const T *)g->hi + c, *scale = (const T *)g->scale + c, *inv = (const T *)g->inv + c; \
        bool clamp = g->clamp, up = g->up;                                                                             \
        TRN_IVDEP                                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int64_t q = i * step;                                                                                      \
            T v = x[i];                                                                                                \
            if (clamp) {                                                                                               \
                v = v < hi[q] ? v : hi[q];                                                                             \
                v = v > lo[q] ? v : lo[q];                                                                             \
            }                                                                                                          \
            v *= scale[q];                                                                                             \
            y[i] = (up ? floor_(v + (T)0.5) : rint_(v)) * inv[q];                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    TRN_SIMD static void inside_##S(void *y_, const void *x_, const void *d_, int64_t n, int64_t c, int64_t step, const grid *g) \
    {                                                                                                                  \
        T *y = y_;                                                                                                     \
        const T *x = x_, *d = d_, *lo = (const T *)g->lo + c, *hi = (const T *)g->hi + c;                              \
        TRN_IVDEP                                                                                                      \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = d[i] * (T)(x[i] >= lo[i * step] && x[i] <= hi[i * step]);                                           \
    }
QDQ(float, f32, floorf, rintf, FLT_MAX)
QDQ(double, f64, floor, rint, DBL_MAX)

static trn_err check_axis(int64_t axis, const trn_tensor *x)
{
    TRN_CHECK_ARG(axis >= -1, "Axis must be at least -1. Found %lld", (long long)axis);
    TRN_CHECK_ARG(axis < x->shape.rank, "Shape must be at least rank %llu but is rank %d", (unsigned long long)axis + 1, x->shape.rank);
    return TRN_OK;
}

static trn_err take_ends(const grid *g, int64_t axis, const trn_tensor *lo, const trn_tensor *hi)
{
    size_t n = (size_t)g->channels * size_of(g);
    if (n) {
        memcpy(g->lo, lo->data, n);
        memcpy(g->hi, hi->data, n);
    }
    if (axis >= 0)
        return TRN_OK;
    double a = g->f64 ? *(const double *)g->lo : (double)*(const float *)g->lo, b = g->f64 ? *(const double *)g->hi : (double)*(const float *)g->hi;
    TRN_CHECK_ARG(a <= b, "Invalid range: input_min %g > input_max %g", a, b);
    return TRN_OK;
}

static trn_err quantize(trn_kctx *k, grid *g, int64_t axis, int64_t bits)
{
    const trn_node *n = k->node;
    const trn_tensor *x = trn_in(k, 0);
    bool sign = trn_attr_bool(n, "signed_input"), given = trn_attr_bool(n, "range_given");
    bool ends = given && k->n_in > 1;
    TRN_TRY(grid_init(g, x, axis, ends ? trn_in(k, 1) : NULL, ends ? trn_in(k, 2) : NULL));
    if (ends) {
        TRN_TRY(take_ends(g, axis, trn_in(k, 1), trn_in(k, 2)));
    } else if (given) {
        float lo = trn_attr_float(n, "input_min"), hi = trn_attr_float(n, "input_max");
        TRN_CHECK_ARG(lo <= hi, "Invalid range: input_min %g > input_max %g", (double)lo, (double)hi);
        if (g->f64)
            *(double *)g->lo = (double)lo, *(double *)g->hi = (double)hi;
        else
            *(float *)g->lo = lo, *(float *)g->hi = hi;
    } else if (g->f64) {
        range_f64(g, x->data, x->count);
    } else {
        range_f32(g, x->data, x->count);
    }
    g->clamp = given;
    const char *round = trn_attr_str(n, "round_mode");
    g->up = round && !strcmp(round, "HALF_UP");
    int64_t half = INT64_C(1) << (bits - 1);
    (g->f64 ? fit_f64 : fit_f32)(g, sign ? -half + trn_attr_bool(n, "narrow_range") : 0, sign ? half - 1 : 2 * half - 1);
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    run(k, &(job){.g = g, .y = y->data, .x = x->data, .loop = g->f64 ? qdq_f64 : qdq_f32}, y->count);
    return TRN_OK;
}

/* V3: the number of bits is an input. */
static trn_err quantize_and_dequantize(trn_kctx *k)
{
    const trn_node *n = k->node;
    const trn_tensor *x = trn_in(k, 0);
    int64_t axis = k->n_in > 1 ? trn_attr_int(n, "axis") : -1, bits = trn_attr_int(n, "num_bits");
    bool sign = trn_attr_bool(n, "signed_input");
    TRN_TRY(check_axis(axis, x));
    if (k->n_in == 4) {
        TRN_CHECK_ARG(x->shape.rank > 0, "Axis requested is larger than input dimensions. Axis: %lld Input Dimensions: 0", (long long)axis);
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 3)), "Invalid shape. The `num_bits` tensor should be a scalar. Got dimensions: %d", trn_in(k, 3)->shape.rank);
        bits = TRN_DATA(trn_in(k, 3), int32_t)[0];
    }
    TRN_CHECK_ARG(bits > 0 && bits < (sign ? 62 : 63), "num_bits is out of range: %lld with signed_input_ %d", (long long)bits, sign);
    grid g = {0};
    trn_err err = quantize(k, &g, axis, bits);
    grid_fini(&g);
    return err;
}

/* What came for numbers outside of the range is lost; the range itself gets nothing. */
static trn_err quantize_v4_grad(trn_kctx *k)
{
    const trn_tensor *d = trn_in(k, 0), *x = trn_in(k, 1), *lo = trn_in(k, 2), *hi = trn_in(k, 3);
    int64_t axis = trn_attr_int(k->node, "axis");
    TRN_TRY(check_axis(axis, x));
    TRN_CHECK_ARG(trn_shape_eq(&x->shape, &d->shape), "gradient and input must be the same size");
    grid g = {0};
    trn_tensor *y = NULL, *none;
    trn_err err = grid_init(&g, x, axis, lo, hi);
    for (int i = 1; !err && i < 3; i++)
        if (!(err = trn_out_new(&none, k, i, x->dtype, &lo->shape)))
            trn_zero_elems(none, 0, none->count);
    size_t n = (size_t)g.channels * size_of(&g);
    if (!err && n) {
        memcpy(g.lo, lo->data, n);
        memcpy(g.hi, hi->data, n);
    }
    if (!err && !(err = trn_out_like(&y, k, 0, 0)))
        run(k, &(job){.g = &g, .y = y->data, .x = x->data, .d = d->data, .loop = g.f64 ? inside_f64 : inside_f32}, y->count);
    grid_fini(&g);
    return err;
}

/* ---- FakeQuant ---------------------------------------------------------------------------------------------------------- */

/* The range moves by a part of a step, so that zero is one of its numbers. */
static void nudge(const grid *g, int64_t c, float lo, float hi, bool divide, int qlo, int qhi)
{
    float *at[] = {(float *)g->lo + c, (float *)g->hi + c, (float *)g->scale + c, (float *)g->inv + c, (float *)g->zero + c};
    float a = (float)qlo, b = (float)qhi, scale = (hi - lo) / (b - a), inv = (b - a) / (hi - lo), zero = a - lo / scale;
    zero = zero < a ? a : zero > b ? b : zero == zero ? roundf(zero) : 0;
    *at[0] = (a - zero) * scale;
    *at[1] = (b - zero) * scale;
    *at[2] = scale;
    *at[3] = divide ? scale : inv;
    *at[4] = floorf(-*at[0] * inv + 0.5f);
}

/* Steps are counted by a division where TensorFlow divides: the last bit decides between two of them. */
#define FAKE(name, COUNT)                                                                                              \
    TRN_SIMD static void name(void *y_, const void *x_, const void *d, int64_t n, int64_t c, int64_t step, const grid *g) \
    {                                                                                                                  \
        float *y = y_;                                                                                                 \
        const float *x = x_, *lo = (const float *)g->lo + c, *hi = (const float *)g->hi + c, *scale = (const float *)g->scale + c, \
                    *by = (const float *)g->inv + c, *zero = (const float *)g->zero + c;                               \
        TRN_IVDEP                                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int64_t q = i * step;                                                                                      \
            float v = x[i] < hi[q] ? x[i] : hi[q];                                                                     \
            v = (v > lo[q] ? v : lo[q]) - lo[q];                                                                       \
            y[i] = floorf(v COUNT by[q] - zero[q] + 0.5f) * scale[q];                                                  \
        }                                                                                                              \
    }
FAKE(fake_times, *)
FAKE(fake_over, /)

typedef enum fake_kind { ARGS, VARS, PER_CHANNEL } fake_kind;

/* at: of x among the inputs; min and max come behind it. */
static trn_err fake_grid(grid *g, const trn_kctx *k, fake_kind kind, int at)
{
    const trn_node *n = k->node;
    const trn_tensor *x = trn_in(k, at);
    int64_t bits = trn_attr_int(n, "num_bits");
    TRN_CHECK_ARG(bits >= 2 && bits <= 16, "num_bits must be between 2 and 16, inclusive");
    TRN_CHECK_ARG(kind != PER_CHANNEL || x->shape.rank > 0, "inputs must have at least one dimension");
    TRN_CHECK_ARG(at == 0 || trn_shape_eq(&x->shape, &trn_in(k, 0)->shape), "gradient and input must be the same size");
    int axis = kind == PER_CHANNEL ? x->shape.rank - 1 : -1;
    const trn_tensor *lo = kind == ARGS ? NULL : trn_in(k, at + 1), *hi = lo ? trn_in(k, at + 2) : NULL;
    int64_t channels = axis < 0 ? 1 : x->shape.dim[axis];
    for (int i = 0; lo && i < 2; i++) {
        const trn_tensor *t = i ? hi : lo;
        TRN_CHECK_ARG(t->shape.rank == (kind == PER_CHANNEL), "`%s` must be rank %d but is rank %d", i ? "max" : "min", kind == PER_CHANNEL, t->shape.rank);
        TRN_CHECK_ARG(t->count == channels, "%s has incorrect size, expected %lld was %lld", i ? "max" : "min", (long long)channels, (long long)t->count);
    }
    TRN_TRY(grid_init(g, x, axis, lo, hi));
    int qlo = trn_attr_bool(n, "narrow_range"), qhi = (1 << bits) - 1;
    if (kind == ARGS) {
        float a = trn_attr_float(n, "min"), b = trn_attr_float(n, "max");
        TRN_CHECK_ARG(a < b, "min has to be smaller than max, was: %g >= %g", (double)a, (double)b);
        nudge(g, 0, a, b, false, qlo, qhi);
        return TRN_OK;
    }
    for (int64_t c = 0; c < g->channels; c++) {
        float a = TRN_DATA(lo, float)[c], b = TRN_DATA(hi, float)[c];
        if (a == 0 && b == 0) { /* no range: all is zero, and gradients pass */
            ((float *)g->lo)[c] = at ? -INFINITY : 0;
            ((float *)g->hi)[c] = at ? INFINITY : 0;
            ((float *)g->inv)[c] = 1;
        } else {
            nudge(g, c, a, b, kind == VARS, qlo, qhi);
        }
    }
    return TRN_OK;
}

static trn_err fake(trn_kctx *k, fake_kind kind)
{
    grid g = {0};
    trn_tensor *y;
    trn_err err = fake_grid(&g, k, kind, 0);
    if (!err && !(err = trn_out_like(&y, k, 0, 0)))
        run(k, &(job){.g = &g, .y = y->data, .x = TRN_IN(k, 0)->data, .loop = kind == VARS ? fake_over : fake_times}, y->count);
    grid_fini(&g);
    return err;
}

/* What came for numbers below (above) the range, added up, is the gradient of its end. */
static trn_err ends_grad(trn_kctx *k, const grid *g, bool scalar)
{
    const float *d = trn_in(k, 0)->data, *x = trn_in(k, 1)->data;
    int64_t n = trn_in(k, 1)->count;
    trn_shape s = scalar ? trn_shape_scalar() : trn_shape_vector(g->channels);
    trn_tensor *t[2];
    TRN_TRY(trn_out_new(&t[0], k, 1, TRN_FLOAT, &s));
    TRN_TRY(trn_out_new(&t[1], k, 2, TRN_FLOAT, &s));
    double *sum = calloc((size_t)g->channels * 2 + 1, sizeof *sum);
    if (!sum)
        return trn_err_oom();
    for (int64_t i = 0; i < n; i++) {
        int64_t c = i / g->inner % g->channels;
        sum[2 * c] += (double)d[i] * (x[i] < ((const float *)g->lo)[c]);
        sum[2 * c + 1] += (double)d[i] * (x[i] > ((const float *)g->hi)[c]);
    }
    for (int64_t c = 0; c < g->channels; c++)
        for (int e = 0; e < 2; e++)
            TRN_DATA_MUT(t[e], float)[c] = (float)sum[2 * c + e];
    free(sum);
    return TRN_OK;
}

static trn_err fake_grad(trn_kctx *k, fake_kind kind)
{
    grid g = {0};
    trn_tensor *y;
    trn_err err = fake_grid(&g, k, kind, 1);
    if (!err && kind != ARGS)
        err = ends_grad(k, &g, kind == VARS); /* before the gradients' buffer is taken over */
    if (!err && !(err = trn_out_like(&y, k, 0, 0)))
        run(k, &(job){.g = &g, .y = y->data, .x = TRN_IN(k, 1)->data, .d = TRN_IN(k, 0)->data, .loop = inside_f32}, y->count);
    grid_fini(&g);
    return err;
}

static trn_err fake_args(trn_kctx *k) { return fake(k, ARGS); }
static trn_err fake_vars(trn_kctx *k) { return fake(k, VARS); }
static trn_err fake_channels(trn_kctx *k) { return fake(k, PER_CHANNEL); }
static trn_err fake_args_grad(trn_kctx *k) { return fake_grad(k, ARGS); }
static trn_err fake_vars_grad(trn_kctx *k) { return fake_grad(k, VARS); }
static trn_err fake_channels_grad(trn_kctx *k) { return fake_grad(k, PER_CHANNEL); }

/* ---- shape rules, rows ---------------------------------------------------------------------------------------------------- */

/* Inputs at and at + 1 are scalars, or vectors as long as a dim of x. */
static trn_err ends_shape(trn_shape *out, trn_shctx *s, const trn_shape *x, int at, int64_t axis)
{
    TRN_TRY(trn_sh_rank_of(s, at, axis >= 0));
    TRN_TRY(trn_sh_meet(out, &s->in[at], &s->in[at + 1]));
    trn_shape want = axis < 0 ? trn_shape_scalar() : trn_shape_vector(x->rank < 0 ? -1 : x->dim[axis]);
    return trn_sh_meet(out, out, &want);
}

static trn_err sh_qdq(trn_shctx *s)
{
    int64_t axis = trn_attr_int(s->node, "axis");
    bool grad = s->n_out == 3;
    const trn_shape *x = &s->in[0];
    TRN_CHECK_ARG(axis >= -1, "axis should be at least -1, got %lld", (long long)axis);
    TRN_CHECK_ARG(x->rank < 0 || axis < x->rank, "Shape must be at least rank %llu but is rank %d", (unsigned long long)axis + 1, x->rank);
    trn_shape ends;
    TRN_TRY(ends_shape(&ends, s, x, grad ? 2 : 1, axis));
    if (s->n_in == 4 && !grad)
        TRN_TRY(trn_sh_rank_of(s, 3, 0));
    if (!grad) {
        s->out[0] = *x;
        return TRN_OK;
    }
    s->out[1] = s->out[2] = ends;
    return trn_sh_meet(&s->out[0], x, &s->in[1]);
}

static trn_err sh_fake(trn_shctx *s)
{
    bool grad = s->n_out == 3, channels = strstr(s->node->op, "PerChannel");
    trn_shape x = s->in[0], ends;
    if (grad)
        TRN_TRY(trn_sh_meet(&x, &s->in[0], &s->in[1]));
    TRN_CHECK_ARG(!channels || x.rank != 0, "inputs must have at least one dimension");
    TRN_TRY(ends_shape(&ends, s, &x, grad ? 2 : 1, !channels ? -1 : x.rank < 0 ? 0 : x.rank - 1));
    s->out[0] = x;
    if (grad)
        s->out[1] = s->out[2] = ends;
    return TRN_OK;
}

#define MODES "T:f32|f64, round_mode:{HALF_TO_EVEN,HALF_UP}=HALF_TO_EVEN, narrow_range:bool=false, axis:int=-1"
#define BITS "num_bits:int=8, narrow_range:bool=false"
#define ENDS "min:float=-6, max:float=6, "
#define FAKE_GRAD "gradients:f32, inputs:f32, min:f32, max:f32 -> backprops_wrt_input:f32, backprop_wrt_min:f32, backprop_wrt_max:f32; " BITS

const trn_op trn_ops_quant[] = {
    {"QuantizeAndDequantize",
     "input:T -> output:T; signed_input:bool=true, num_bits:int=8, range_given:bool=false, input_min:float=0, input_max:float=0, T:f32|f64", trn_sh_same,
     quantize_and_dequantize, 0},
    {"QuantizeAndDequantizeV2",
     "input:T, input_min:T, input_max:T -> output:T; signed_input:bool=true, num_bits:int=8, range_given:bool=false, " MODES, sh_qdq, quantize_and_dequantize, 0},
    {"QuantizeAndDequantizeV3",
     "input:T, input_min:T, input_max:T, num_bits:i32 -> output:T; signed_input:bool=true, range_given:bool=true, T:f32|f64, narrow_range:bool=false, axis:int=-1",
     sh_qdq, quantize_and_dequantize, 0},
    {"QuantizeAndDequantizeV4",
     "input:T, input_min:T, input_max:T -> output:T; signed_input:bool=true, num_bits:int=8, range_given:bool=false, " MODES, sh_qdq, quantize_and_dequantize, 0},
    {"QuantizeAndDequantizeV4Grad",
     "gradients:T, input:T, input_min:T, input_max:T -> input_backprop:T, input_min_backprop:T, input_max_backprop:T; T:f32|f64, axis:int=-1", sh_qdq,
     quantize_v4_grad, 0},
    {"FakeQuantWithMinMaxArgs", "inputs:f32 -> outputs:f32; " ENDS BITS, trn_sh_same, fake_args, 0},
    {"FakeQuantWithMinMaxArgsGradient", "gradients:f32, inputs:f32 -> backprops:f32; " ENDS BITS, trn_sh_merge, fake_args_grad, 0},
    {"FakeQuantWithMinMaxVars", "inputs:f32, min:f32, max:f32 -> outputs:f32; " BITS, sh_fake, fake_vars, 0},
    {"FakeQuantWithMinMaxVarsGradient", FAKE_GRAD, sh_fake, fake_vars_grad, 0},
    {"FakeQuantWithMinMaxVarsPerChannel", "inputs:f32, min:f32, max:f32 -> outputs:f32; " BITS, sh_fake, fake_channels, 0},
    {"FakeQuantWithMinMaxVarsPerChannelGradient", FAKE_GRAD, sh_fake, fake_channels_grad, 0},
    {0},
};
