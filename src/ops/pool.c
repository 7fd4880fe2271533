/* Max and average pooling over images and volumes, with their gradients; also with windows of random widths (fractional).
 *
 * Everything is [n, depth, rows, columns, channels] (window.h) and the inner loops run along channels. A max-pool gradient finds the first
 * maximum of each window once, for a block of channels at a time, and hands the gradient to that place; where windows tile the input exactly,
 * every element is written once and nothing is cleared before. Images are independent: they are what is divided among threads.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"
#include "ops/random.h"
#include "ops/window.h"

enum { BLOCK = 64 }; /* channels at a time */

/* y = max(y, x) */
#define MAX_ROW(op, T, U, tag, ...)                                                                                    \
    TRN_SIMD_##tag static void max_row_##tag(void *vy, const void *vx, int64_t n)                                      \
    {                                                                                                                  \
        T *y = vy;                                                                                                     \
        const T *x = vx;                                                                                               \
        TRN_IVDEP for (int64_t i = 0; i < n; i++) y[i] = x[i] > y[i] ? x[i] : y[i];                                    \
    }                                                                                                                  \
    /* Where x is larger: best = x, at = q. */                                                                         \
    TRN_SIMD_##tag static void first_max_##tag(void *vbest, int32_t *at, const void *vx, int64_t n, int32_t q)         \
    {                                                                                                                  \
        T *best = vbest;                                                                                               \
        const T *x = vx;                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            bool more = x[i] > best[i];                                                                                \
            best[i] = more ? x[i] : best[i];                                                                           \
            at[i] = more ? q : at[i];                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    /* y (+)= g where at is q */                                                                                       \
    TRN_SIMD_##tag static void give_##tag(void *vy, const void *vg, const int32_t *at, int64_t n, int32_t q, bool add) \
    {                                                                                                                  \
        T *y = vy;                                                                                                     \
        const T *g = vg;                                                                                               \
        if (add)                                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = (T)((U)y[i] + (U)(at[i] == q ? g[i] : (T)0));                                                   \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = at[i] == q ? g[i] : (T)0;                                                                       \
    }                                                                                                                  \
    /* y = g of place q where at is q */                                                                               \
    TRN_SIMD_##tag static void take_##tag(void *vy, const void *vg, const int32_t *at, int64_t n, int32_t q)           \
    {                                                                                                                  \
        T *y = vy;                                                                                                     \
        const T *g = vg;                                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = at[i] == q ? g[i] : y[i];                                                                           \
    }                                                                                                                  \
    static bool same_##tag(const void *va, const void *vb, int64_t n)                                                  \
    {                                                                                                                  \
        const T *a = va, *b = vb;                                                                                      \
        bool ok = true;                                                                                                \
        for (int64_t i = 0; i < n; i++)                                                                                \
            ok &= a[i] == b[i];                                                                                        \
        return ok;                                                                                                     \
    }
TRN_EACH_INT(MAX_ROW, x, 0)
TRN_EACH_FLOAT(MAX_ROW, x, 0)

typedef struct max_fns {
    void (*max_row)(void *, const void *, int64_t);
    void (*first_max)(void *, int32_t *, const void *, int64_t, int32_t);
    void (*give)(void *, const void *, const int32_t *, int64_t, int32_t, bool);
    void (*take)(void *, const void *, const int32_t *, int64_t, int32_t);
    bool (*same)(const void *, const void *, int64_t);
} max_fns;
#define MAX_FNS(tag) {max_row_##tag, first_max_##tag, give_##tag, take_##tag, same_##tag}
static const max_fns max_of[TRN_DTYPE_END] = {
    [TRN_INT8] = MAX_FNS(i8),   [TRN_INT16] = MAX_FNS(i16),   [TRN_INT32] = MAX_FNS(i32),   [TRN_INT64] = MAX_FNS(i64), [TRN_UINT8] = MAX_FNS(u8),
    [TRN_UINT16] = MAX_FNS(u16), [TRN_UINT32] = MAX_FNS(u32), [TRN_UINT64] = MAX_FNS(u64), [TRN_FLOAT] = MAX_FNS(f32), [TRN_DOUBLE] = MAX_FNS(f64),
};

/* y += x·s, y = y / s; near: y += g where |x - m| < 1e-5 (TensorFlow's rule for volumes, ties included). */
#define AVG_ROW(op, T, U, tag, ...)                                                                                    \
    TRN_SIMD static void add_scaled_##tag(T *y, const T *x, int64_t n, T s)                                            \
    {                                                                                                                  \
        TRN_IVDEP for (int64_t i = 0; i < n; i++) y[i] += x[i] * s;                                                    \
    }                                                                                                                  \
    TRN_SIMD static void add_row_##tag(T *y, const T *x, int64_t n)                                                    \
    {                                                                                                                  \
        TRN_IVDEP for (int64_t i = 0; i < n; i++) y[i] += x[i];                                                        \
    }                                                                                                                  \
    TRN_SIMD static void divide_##tag(T *y, int64_t n, T s)                                                            \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] /= s;                                                                                                 \
    }                                                                                                                  \
    TRN_SIMD static void near_##tag(T *y, const T *x, const T *m, const T *g, int64_t n)                               \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] += x[i] - m[i] < (T)1e-5 && m[i] - x[i] < (T)1e-5 ? g[i] : 0;                                         \
    }
TRN_EACH_FLOAT(AVG_ROW, x, 0)

/* ---- geometry ------------------------------------------------------------------------------------------------------------------- */

typedef struct pool_job {
    trn_window w;
    int64_t n, c, in[3], out[3], pad[3];
    const int64_t *seq[3]; /* fractional: window i is seq[i] … seq[i + 1], and one more when they overlap */
    bool overlap;
    trn_dtype t;
    size_t size;
    const max_fns *f;
    const char *x, *m, *g; /* input, pooled, gradient */
    char *y;
    trn_tensor *index; /* MaxPoolWithArgmax */
    bool batch_index, tiles; /* tiles: every input element is in exactly one window */
    bool relu;               /* the input is a Relu's output, whose gradient is wanted (graph/fuse.c; float) */
    double *sum;             /* FractionalAvgPoolGrad adds in double, whatever the type */
    atomic_bool differs;     /* `m` is not what pooling gives */
    void (*image)(struct pool_job *, int64_t);
} pool_job;

static trn_err geometry(pool_job *j, const int64_t d[5], trn_dtype t)
{
    j->n = d[0];
    j->c = d[4];
    j->t = trn_is_half(t) ? TRN_FLOAT : t;
    j->size = trn_dtype_size(j->t);
    j->f = &max_of[j->t];
    j->tiles = true;
    for (int i = 0; i < 3; i++) {
        int64_t after;
        j->in[i] = d[1 + i];
        TRN_TRY(trn_window_size(&j->out[i], &j->pad[i], &after, &j->w, i, j->in[i], j->w.ksize[i]));
        static const char *const side[3][2] = {{"Front", "Back"}, {"Top", "Bottom"}, {"Left", "Right"}};
        bool early = j->pad[i] >= j->w.ksize[i];
        TRN_CHECK_ARG(j->w.padding != TRN_PAD_EXPLICIT || (!early && after < j->w.ksize[i]), "%s padding %lld needs to be smaller than the window size %lld",
                      side[i][!early], (long long)(early ? j->pad[i] : after), (long long)j->w.ksize[i]);
        j->tiles = j->tiles && j->w.ksize[i] == j->w.stride[i] && j->out[i] * j->w.stride[i] >= j->in[i] + j->pad[i];
    }
    return TRN_OK;
}
static void out_dims(int64_t d[5], const pool_job *j)
{
    d[0] = j->n;
    memcpy(d + 1, j->out, sizeof j->out);
    d[4] = j->c;
}

/* Input places of the window at output place o, in order. */
typedef struct places {
    int64_t lo[3], hi[3], n;
} places;
static places places_of(const pool_job *j, int64_t o)
{
    places p;
    int64_t at[3] = {o / (j->out[1] * j->out[2]), o / j->out[2] % j->out[1], o % j->out[2]};
    p.n = 1;
    for (int i = 0; i < 3; i++) {
        if (j->seq[i]) {
            int64_t end = j->seq[i][at[i] + 1];
            p.lo[i] = j->seq[i][at[i]];
            p.hi[i] = end < j->in[i] ? end + j->overlap : j->in[i];
        } else {
            int64_t b = at[i] * j->w.stride[i] - j->pad[i];
            p.lo[i] = TRN_MAX(b, (int64_t)0);
            p.hi[i] = TRN_MIN(b + j->w.ksize[i], j->in[i]);
        }
        p.n *= TRN_MAX(p.hi[i] - p.lo[i], (int64_t)0);
    }
    return p;
}
#define EACH_PLACE(j, p, at, ...)                                                                                      \
    for (int64_t z_ = p.lo[0]; z_ < p.hi[0]; z_++)                                                                     \
        for (int64_t y_ = p.lo[1]; y_ < p.hi[1]; y_++)                                                                 \
            for (int64_t x_ = p.lo[2]; x_ < p.hi[2]; x_++) {                                                           \
                int64_t at = (z_ * (j)->in[1] + y_) * (j)->in[2] + x_;                                                 \
                __VA_ARGS__                                                                                            \
            }

static int64_t in_places(const pool_job *j) { return j->in[0] * j->in[1] * j->in[2]; }
static int64_t out_places(const pool_job *j) { return j->out[0] * j->out[1] * j->out[2]; }

static void images(void *arg, int64_t lo, int64_t hi)
{
    pool_job *j = arg;
    for (int64_t i = lo; i < hi; i++)
        j->image(j, i);
}
static void run(trn_kctx *k, pool_job *j, void (*image)(pool_job *, int64_t))
{
    double work = (double)out_places(j) * (double)j->c;
    for (int i = 0; i < 3; i++)
        work *= (double)TRN_MIN(j->w.ksize[i], j->in[i]);
    j->image = image;
    trn_k_for(k, j->n, work < 32768 ? (int64_t)(32768 / (work + 1)) + 1 : 1, images, j);
}

/* ---- max ------------------------------------------------------------------------------------------------------------------------ */

static void lowest(void *y, trn_dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        switch (t) {
        case TRN_FLOAT: ((float *)y)[i] = -FLT_MAX; break;
        case TRN_DOUBLE: ((double *)y)[i] = -DBL_MAX; break;
        case TRN_INT8: ((int8_t *)y)[i] = INT8_MIN; break;
        case TRN_INT16: ((int16_t *)y)[i] = INT16_MIN; break;
        case TRN_INT32: ((int32_t *)y)[i] = INT32_MIN; break;
        case TRN_INT64: ((int64_t *)y)[i] = INT64_MIN; break;
        default: memset((char *)y + (size_t)i * trn_dtype_size(t), 0, trn_dtype_size(t));
        }
}

static void max_image(pool_job *j, int64_t i)
{
    const char *x = j->x + (size_t)(i * in_places(j) * j->c) * j->size;
    size_t row = (size_t)j->c * j->size;
    char *y = j->y + (size_t)i * (size_t)out_places(j) * row;
    for (int64_t o = 0, n = out_places(j); o < n; o++, y += row) {
        places p = places_of(j, o);
        bool some = j->seq[1] != NULL; /* those start from the lowest number, which is above -inf */
        if (!p.n || some)
            lowest(y, j->t, j->c);
        EACH_PLACE(j, p, at, {
            if (some)
                j->f->max_row(y, x + (size_t)at * row, j->c);
            else
                memcpy(y, x + (size_t)at * row, row);
            some = true;
        })
    }
}

/* The commonest windows, 2 x 2 that tile images of float, a whole row of them at a time: `x` and `below` are two rows of the input, n windows wide. */
static bool is_quad(const pool_job *j)
{
    const trn_window *w = &j->w;
    return j->t == TRN_FLOAT && j->tiles && j->in[0] == 1 && w->ksize[0] == 1 && w->ksize[1] == 2 && w->ksize[2] == 2 && !j->pad[1] && !j->pad[2] &&
           j->in[1] % 2 == 0 && j->in[2] % 2 == 0;
}
TRN_SIMD static void max_quads(float *y, const float *x, const float *below, int64_t n, int64_t c)
{
    for (int64_t o = 0; o < n; o++, y += c, x += 2 * c, below += 2 * c)
        TRN_IVDEP for (int64_t i = 0; i < c; i++)
        {
            float a = x[i], b = x[c + i], d = below[i], e = below[c + i];
            a = b > a ? b : a;
            a = d > a ? d : a;
            y[i] = e > a ? e : a;
        }
}
/* relu: only a maximum above 0 gets its gradient. */
TRN_SIMD static void max_quads_grad(float *y, float *y_below, const float *x, const float *below, const float *g, int64_t n, int64_t c, bool relu)
{
    for (int64_t o = 0; o < n; o++, g += c, x += 2 * c, below += 2 * c, y += 2 * c, y_below += 2 * c)
        TRN_IVDEP for (int64_t i = 0; i < c; i++)
        {
            float a = x[i], b = x[c + i], d = below[i], e = below[c + i], v = g[i];
            int32_t at = 0; /* the first of the largest */
            at = b > a ? 1 : at;
            a = b > a ? b : a;
            at = d > a ? 2 : at;
            a = d > a ? d : a;
            at = e > a ? 3 : at;
            a = e > a ? e : a;
            v = relu && !(a > 0) ? 0 : v;
            y[i] = at == 0 ? v : 0;
            y[c + i] = at == 1 ? v : 0;
            y_below[i] = at == 2 ? v : 0;
            y_below[c + i] = at == 3 ? v : 0;
        }
}
static void quads_image(pool_job *j, int64_t i)
{
    int64_t row = j->in[2] * j->c, out = j->out[2] * j->c;
    const float *x = (const float *)(const void *)j->x + i * in_places(j) * j->c, *g = j->g ? (const float *)(const void *)j->g + i * out_places(j) * j->c : NULL;
    float *y = (float *)(void *)j->y + i * (j->g ? in_places(j) : out_places(j)) * j->c;
    for (int64_t r = 0; r < j->out[1]; r++, x += 2 * row)
        if (g)
            max_quads_grad(y + 2 * r * row, y + (2 * r + 1) * row, x, x + row, g + r * out, j->out[2], j->c, j->relu);
        else
            max_quads(y + r * out, x, x + row, j->out[2], j->c);
}

/* Number of the window's place that holds the first maximum, for channels [c, c + n). */
static void find_max(const pool_job *j, const char *x, const places *p, int64_t c, int64_t n, void *best, int32_t *which)
{
    size_t row = (size_t)j->c * j->size;
    int32_t q = 0;
    memset(which, 0, sizeof *which * (size_t)n);
    EACH_PLACE(j, (*p), at, {
        const char *from = x + (size_t)at * row + (size_t)c * j->size;
        if (!q)
            memcpy(best, from, (size_t)n * j->size);
        else
            j->f->first_max(best, which, from, n, q);
        q++;
    })
}

static void max_grad_image(pool_job *j, int64_t i)
{
    size_t row = (size_t)j->c * j->size;
    const char *x = j->x + (size_t)(i * in_places(j)) * row, *g = j->g + (size_t)(i * out_places(j)) * row;
    char *y = j->y + (size_t)(i * in_places(j)) * row;
    if (!j->tiles)
        memset(y, 0, (size_t)in_places(j) * row);
    for (int64_t o = 0, n = out_places(j); o < n; o++, g += row) {
        places p = places_of(j, o);
        for (int64_t c = 0; c < j->c; c += BLOCK) {
            int64_t b = TRN_MIN((int64_t)BLOCK, j->c - c);
            _Alignas(64) char best[BLOCK * 8];
            int32_t which[BLOCK], q = 0;
            find_max(j, x, &p, c, b, best, which);
            if (j->m && (!p.n || !j->f->same(best, j->m + (size_t)(i * out_places(j) + o) * row + (size_t)c * j->size, b)))
                atomic_store(&j->differs, true);
            EACH_PLACE(j, p, at, {
                j->f->give(y + (size_t)at * row + (size_t)c * j->size, g + (size_t)c * j->size, which, b, q, !j->tiles);
                q++;
            })
        }
    }
    float *top = (float *)(void *)(j->y + (size_t)(i * in_places(j)) * row);
    for (int64_t q = 0, n = j->relu ? in_places(j) * j->c : 0; q < n; q++)
        top[q] = ((const float *)(const void *)x)[q] > 0 ? top[q] : 0;
}

static void max_grad_grad_image(pool_job *j, int64_t i)
{
    size_t row = (size_t)j->c * j->size;
    const char *x = j->x + (size_t)(i * in_places(j)) * row, *g = j->g + (size_t)(i * in_places(j)) * row;
    char *y = j->y + (size_t)(i * out_places(j)) * row;
    for (int64_t o = 0, n = out_places(j); o < n; o++, y += row) {
        places p = places_of(j, o);
        memset(y, 0, row);
        for (int64_t c = 0; c < j->c; c += BLOCK) {
            int64_t b = TRN_MIN((int64_t)BLOCK, j->c - c);
            _Alignas(64) char best[BLOCK * 8];
            int32_t which[BLOCK], q = 0;
            find_max(j, x, &p, c, b, best, which);
            EACH_PLACE(j, p, at, {
                j->f->take(y + (size_t)c * j->size, g + (size_t)at * row + (size_t)c * j->size, which, b, q);
                q++;
            })
        }
    }
}

static void argmax_image(pool_job *j, int64_t i)
{
    size_t row = (size_t)j->c * j->size;
    const char *x = j->x + (size_t)(i * in_places(j)) * row;
    char *y = j->y + (size_t)(i * out_places(j)) * row;
    int64_t first = i * out_places(j) * j->c, base = j->batch_index ? i * in_places(j) : 0;
    for (int64_t o = 0, n = out_places(j); o < n; o++, y += row) {
        places p = places_of(j, o);
        for (int64_t c = 0; c < j->c; c += BLOCK) {
            int64_t b = TRN_MIN((int64_t)BLOCK, j->c - c);
            _Alignas(64) char best[BLOCK * 8] = {0};
            int32_t which[BLOCK];
            find_max(j, x, &p, c, b, best, which);
            memcpy(y + (size_t)c * j->size, best, (size_t)b * j->size);
            int64_t wide = TRN_MAX(p.hi[2] - p.lo[2], (int64_t)1), high = TRN_MAX(p.hi[1] - p.lo[1], (int64_t)1);
            for (int64_t e = 0; e < b; e++) {
                int64_t q = which[e], z = p.lo[0] + q / (wide * high), r = p.lo[1] + q / wide % high, s = p.lo[2] + q % wide;
                trn_int_put(j->index, first + o * j->c + c + e, (base + (z * j->in[1] + r) * j->in[2] + s) * j->c + c + e);
            }
        }
    }
}

/* Pooling over channels instead: y[i] is the maximum of ksize_c neighbours. */
static trn_err max_over_depth(trn_kctx *k, pool_job *j, trn_dtype t)
{
    const trn_window *w = &j->w;
    TRN_CHECK_ARG(w->ksize_c > 0, "depth_window must be positive");
    for (int i = 0; i < 3; i++)
        if (w->ksize[i] != 1)
            return trn_errorf(TRN_UNIMPLEMENTED, "MaxPooling supports exactly one of pooling across depth or pooling across width/height.");
    if (j->c % w->ksize_c)
        return trn_errorf(TRN_UNIMPLEMENTED, "Depthwise max pooling requires the depth window to evenly divide the input depth");
    if (w->stride_c != w->ksize_c)
        return trn_errorf(TRN_UNIMPLEMENTED, "Depthwise max pooling requires the depth window to equal the depth stride");
    int64_t d[5] = {j->n, j->in[0], j->in[1], j->in[2], j->c / w->ksize_c};
    trn_tensor *x, *y;
    TRN_TRY(trn_window_in(&x, k, w, trn_in(k, 0), true));
    trn_err e = trn_window_out(&y, k, 0, w, t, d, true);
    if (e) {
        trn_tensor_unref(x);
        return e;
    }
    for (int64_t i = 0; i < y->count; i++) {
        char *to = (char *)y->data + (size_t)i * j->size;
        const char *from = (const char *)x->data + (size_t)(i * w->ksize_c) * j->size;
        memcpy(to, from, j->size);
        for (int64_t q = 1; q < w->ksize_c; q++)
            j->f->max_row(to, from + (size_t)q * j->size, 1);
    }
    e = trn_window_done(k, 0, w, y);
    trn_tensor_unref(x);
    trn_tensor_unref(y);
    return e;
}

static trn_err not_over_batch(const trn_window *w)
{
    if (w->ksize_n != 1 || w->stride_n != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Pooling is not yet supported on the batch dimension.");
    return TRN_OK;
}
static trn_err window_over_space(const trn_window *w)
{
    TRN_TRY(not_over_batch(w));
    if (w->ksize_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Pooling is not yet supported on the depth dimension.");
    return TRN_OK;
}
static trn_err only_over_space(const trn_window *w)
{
    TRN_TRY(window_over_space(w));
    if (w->stride_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Pooling is not yet supported on the depth dimension.");
    return TRN_OK;
}

/* Attrs, or the two inputs from `at` on when at >= 0. */
static trn_err read_window(pool_job *j, trn_kctx *k, int space, int at)
{
    memset(j, 0, sizeof *j);
    TRN_TRY(trn_window_read(&j->w, k->node, space));
    return at < 0 ? TRN_OK : trn_window_set(&j->w, trn_in(k, at), trn_in(k, at + 1));
}

/* Pools input 0 by `image`; average only for float types. */
static trn_err pool(trn_kctx *k, pool_job *j, void (*image)(pool_job *, int64_t))
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t d[5];
    out_dims(d, j);
    trn_tensor *wx, *wy = NULL;
    TRN_TRY(trn_window_in(&wx, k, &j->w, x, true));
    trn_err e = trn_window_out(&wy, k, 0, &j->w, x->dtype, d, true);
    if (!e && j->index == NULL && k->n_out == 2) {
        trn_shape s = trn_window_shape(&j->w, d);
        e = trn_out_new(&j->index, k, 1, trn_attr_type(k->node, "Targmax"), &s);
    }
    if (!e) {
        j->x = wx->data;
        j->y = wy->data;
        if (wy->count)
            run(k, j, image);
        e = trn_window_done(k, 0, &j->w, wy);
    }
    trn_tensor_unref(wx);
    trn_tensor_unref(wy);
    return e;
}

static trn_err max_pool(trn_kctx *k, int space, int at)
{
    pool_job j;
    int64_t d[5];
    TRN_TRY(read_window(&j, k, space, at));
    TRN_TRY(not_over_batch(&j.w));
    TRN_TRY(trn_window_dims(d, &j.w, &trn_in(k, 0)->shape, "tensor_in"));
    TRN_TRY(geometry(&j, d, trn_in(k, 0)->dtype));
    if (j.w.ksize_c != 1 && space == 2)
        return max_over_depth(k, &j, trn_in(k, 0)->dtype);
    TRN_TRY(only_over_space(&j.w));
    return pool(k, &j, is_quad(&j) ? quads_image : max_image);
}
static trn_err k_max_pool(trn_kctx *k) { return max_pool(k, 2, -1); }
static trn_err k_max_pool_v2(trn_kctx *k) { return max_pool(k, 2, 1); }
static trn_err k_max_pool3d(trn_kctx *k) { return max_pool(k, 3, -1); }

static trn_err k_max_pool_argmax(trn_kctx *k)
{
    pool_job j;
    int64_t d[5];
    TRN_TRY(read_window(&j, k, 2, -1));
    TRN_TRY(not_over_batch(&j.w)); /* a window over channels has no effect here, in TensorFlow either */
    j.batch_index = trn_attr_bool(k->node, "include_batch_in_index");
    TRN_TRY(trn_window_dims(d, &j.w, &trn_in(k, 0)->shape, "tensor_in"));
    TRN_CHECK_ARG(trn_in(k, 0)->count > 0, "tensor_in must not be empty");
    TRN_TRY(geometry(&j, d, trn_in(k, 0)->dtype));
    return pool(k, &j, argmax_image);
}

static void near_max_image(pool_job *j, int64_t i)
{
    size_t row = (size_t)j->c * j->size;
    const char *x = j->x + (size_t)(i * in_places(j)) * row, *g = j->g + (size_t)(i * out_places(j)) * row, *m = j->m + (size_t)(i * out_places(j)) * row;
    char *y = j->y + (size_t)(i * in_places(j)) * row;
    memset(y, 0, (size_t)in_places(j) * row);
    for (int64_t o = 0, n = out_places(j); o < n; o++, g += row, m += row) {
        places p = places_of(j, o);
        EACH_PLACE(j, p, at, {
            size_t a = (size_t)at * row;
            if (j->t == TRN_FLOAT)
                near_f32((float *)(void *)(y + a), (const float *)(const void *)(x + a), (const float *)(const void *)m, (const float *)(const void *)g, j->c);
            else
                near_f64((double *)(void *)(y + a), (const double *)(const void *)(x + a), (const double *)(const void *)m, (const double *)(const void *)g, j->c);
        })
    }
}

/* orig_input, orig_output, grad; grad of the second order has the input's shape. */
static trn_err max_grad(trn_kctx *k, int space, int at, bool second)
{
    pool_job j;
    int64_t d[5], o[5];
    const trn_tensor *x = trn_in(k, 0), *m = trn_in(k, 1), *g = trn_in(k, 2);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(read_window(&j, k, space, at));
    TRN_TRY(only_over_space(&j.w));
    TRN_TRY(trn_window_dims(d, &j.w, &x->shape, "tensor_in"));
    TRN_TRY(geometry(&j, d, x->dtype));
    out_dims(o, &j);
    trn_shape want = trn_window_shape(&j.w, o);
    TRN_CHECK_ARG(trn_shape_eq(&m->shape, &want), "Expected orig_output shape to be %s, but got %s", trn_shape_text(ta, &want), trn_shape_text(tb, &m->shape));
    const trn_shape *gs = second ? &x->shape : &want;
    TRN_CHECK_ARG(trn_shape_eq(&g->shape, gs), "Expected grad shape to be %s, but got %s", trn_shape_text(ta, gs), trn_shape_text(tb, &g->shape));
    trn_tensor *wx = NULL, *wg = NULL, *wm = NULL, *wy = NULL;
    trn_err e = trn_window_in(&wx, k, &j.w, x, true);
    bool near = space == 3 && !second;
    j.relu = space == 2 && !second && x->dtype == TRN_FLOAT && trn_attr_bool(k->node, "_relu");
    if (!e)
        e = trn_window_in(&wg, k, &j.w, g, true);
    if (!e && near)
        e = trn_window_in(&wm, k, &j.w, m, true);
    if (!e)
        e = trn_window_out(&wy, k, 0, &j.w, g->dtype, second ? o : d, true);
    if (!e && wy->count && wx->count) {
        j.x = wx->data;
        j.g = wg->data;
        j.m = wm ? wm->data : NULL;
        j.y = wy->data;
        run(k, &j, near ? near_max_image : second ? max_grad_grad_image : is_quad(&j) ? quads_image : max_grad_image);
    }
    if (!e)
        e = trn_window_done(k, 0, &j.w, wy);
    trn_tensor_unref(wx);
    trn_tensor_unref(wg);
    trn_tensor_unref(wm);
    trn_tensor_unref(wy);
    return e;
}
static trn_err k_max_pool_grad(trn_kctx *k) { return max_grad(k, 2, -1, false); }
static trn_err k_max_pool_grad_v2(trn_kctx *k) { return max_grad(k, 2, 3, false); }
static trn_err k_max_pool_grad_grad(trn_kctx *k) { return max_grad(k, 2, -1, true); }
static trn_err k_max_pool_grad_grad_v2(trn_kctx *k) { return max_grad(k, 2, 3, true); }
static trn_err k_max_pool3d_grad(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 0)->dtype == trn_in(k, 2)->dtype, "orig_input and grad must have one type");
    return max_grad(k, 3, -1, false);
}
static trn_err k_max_pool3d_grad_grad(trn_kctx *k) { return max_grad(k, 3, -1, true); }

/* y[argmax[i]] += grad[i], or (second order) y[i] = grad[argmax[i]]. */
static trn_err argmax_grad(trn_kctx *k, bool second)
{
    pool_job j;
    int64_t d[5], o[5];
    const trn_tensor *x = trn_in(k, 0), *g = trn_in(k, 1), *at = trn_in(k, 2);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(read_window(&j, k, 2, -1));
    TRN_TRY(only_over_space(&j.w));
    TRN_TRY(trn_window_dims(d, &j.w, &x->shape, "tensor_in"));
    TRN_TRY(geometry(&j, d, x->dtype));
    out_dims(o, &j);
    trn_shape want = trn_window_shape(&j.w, o);
    const trn_shape *gs = second ? &x->shape : &want;
    TRN_CHECK_ARG(trn_shape_eq(&g->shape, gs), "Expected grad shape to be %s, but got %s", trn_shape_text(ta, gs), trn_shape_text(tb, &g->shape));
    TRN_CHECK_ARG(trn_shape_eq(&at->shape, &want), "Expected argmax shape to be %s, but got %s", trn_shape_text(ta, &want), trn_shape_text(tb, &at->shape));
    bool batch = trn_attr_bool(k->node, "include_batch_in_index");
    trn_tensor *wg = NULL, *wy = NULL;
    trn_err e = trn_window_in(&wg, k, &j.w, g, true);
    if (!e)
        e = trn_window_out(&wy, k, 0, &j.w, g->dtype, second ? o : d, true);
    if (!e && wy->count) {
        if (!second)
            memset(wy->data, 0, trn_tensor_bytes(wy));
        int64_t per_out = out_places(&j) * j.c, per_in = in_places(&j) * j.c;
        for (int64_t i = 0; i < at->count && !e; i++) {
            int64_t b = i / per_out, q = trn_int_at(at, i);
            /* An index must stay inside its own image, as in TensorFlow (where it ends the process). */
            if (batch)
                q -= b * per_in;
            if (q < 0 || q >= per_in)
                e = TRN_BAD("argmax element %lld is %lld, outside its image of %lld elements", (long long)i, (long long)trn_int_at(at, i), (long long)per_in);
            else if (second)
                memcpy((char *)wy->data + (size_t)i * j.size, (const char *)wg->data + (size_t)(b * per_in + q) * j.size, j.size);
            else
                trn_accum(TRN_ACC_ADD, j.t, (char *)wy->data + (size_t)(b * per_in + q) * j.size, (const char *)wg->data + (size_t)i * j.size, 1);
        }
    }
    if (!e)
        e = trn_window_done(k, 0, &j.w, wy);
    trn_tensor_unref(wg);
    trn_tensor_unref(wy);
    return e;
}
static trn_err k_max_pool_grad_argmax(trn_kctx *k) { return argmax_grad(k, false); }
static trn_err k_max_pool_grad_grad_argmax(trn_kctx *k) { return argmax_grad(k, true); }

/* ---- average -------------------------------------------------------------------------------------------------------------------- */

#define AVG_IMAGE(op, T, U, tag, ...)                                                                                  \
    static void avg_image_##tag(pool_job *j, int64_t i)                                                                \
    {                                                                                                                  \
        const T *x = (const T *)(const void *)j->x + i * in_places(j) * j->c;                                          \
        T *y = (T *)(void *)j->y + i * out_places(j) * j->c;                                                           \
        for (int64_t o = 0, n = out_places(j); o < n; o++, y += j->c) {                                                \
            places p = places_of(j, o);                                                                                \
            memset(y, 0, (size_t)j->c * sizeof(T));                                                                    \
            EACH_PLACE(j, p, at, { add_row_##tag(y, x + at * j->c, j->c); })                                           \
            divide_##tag(y, j->c, (T)p.n);                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    static void avg_grad_image_##tag(pool_job *j, int64_t i)                                                           \
    {                                                                                                                  \
        const T *g = (const T *)(const void *)j->g + i * out_places(j) * j->c;                                         \
        T *y = (T *)(void *)j->y + i * in_places(j) * j->c;                                                            \
        memset(y, 0, (size_t)(in_places(j) * j->c) * sizeof(T));                                                       \
        for (int64_t o = 0, n = out_places(j); o < n; o++, g += j->c) {                                                \
            places p = places_of(j, o);                                                                                \
            EACH_PLACE(j, p, at, { add_scaled_##tag(y + at * j->c, g, j->c, (T)1 / (T)p.n); })                         \
        }                                                                                                              \
    }
TRN_EACH_FLOAT(AVG_IMAGE, x, 0)

static trn_err avg_pool(trn_kctx *k, int space)
{
    pool_job j;
    int64_t d[5];
    TRN_TRY(read_window(&j, k, space, -1));
    TRN_TRY(window_over_space(&j.w));
    TRN_TRY(trn_window_dims(d, &j.w, &trn_in(k, 0)->shape, "tensor_in"));
    TRN_TRY(geometry(&j, d, trn_in(k, 0)->dtype));
    return pool(k, &j, j.t == TRN_DOUBLE ? avg_image_f64 : avg_image_f32);
}
static trn_err k_avg_pool(trn_kctx *k) { return avg_pool(k, 2); }
static trn_err k_avg_pool3d(trn_kctx *k) { return avg_pool(k, 3); }

static trn_err avg_grad(trn_kctx *k, int space)
{
    pool_job j;
    int64_t d[5], o[5];
    const trn_tensor *sizes = trn_in(k, 0), *g = trn_in(k, 1);
    trn_shape s;
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(read_window(&j, k, space, -1));
    TRN_TRY(window_over_space(&j.w));
    TRN_CHECK_ARG(trn_is_vector(sizes) && sizes->count == space + 2, "orig_input_shape must be 1-dimensional and %d elements", space + 2);
    TRN_TRY(trn_shape_from(&s, sizes, false));
    TRN_TRY(trn_window_dims(d, &j.w, &s, "tensor_in"));
    TRN_TRY(geometry(&j, d, g->dtype));
    out_dims(o, &j);
    trn_shape want = trn_window_shape(&j.w, o);
    TRN_CHECK_ARG(trn_shape_eq(&g->shape, &want), "Expected grad shape to be %s, but got %s", trn_shape_text(ta, &want), trn_shape_text(tb, &g->shape));
    trn_tensor *wg = NULL, *wy = NULL;
    trn_err e = trn_window_in(&wg, k, &j.w, g, true);
    if (!e)
        e = trn_window_out(&wy, k, 0, &j.w, g->dtype, d, true);
    if (!e && wy->count) {
        j.g = wg->data;
        j.y = wy->data;
        run(k, &j, j.t == TRN_DOUBLE ? avg_grad_image_f64 : avg_grad_image_f32);
    }
    if (!e)
        e = trn_window_done(k, 0, &j.w, wy);
    trn_tensor_unref(wg);
    trn_tensor_unref(wy);
    return e;
}
static trn_err k_avg_pool_grad(trn_kctx *k) { return avg_grad(k, 2); }
static trn_err k_avg_pool3d_grad(trn_kctx *k) { return avg_grad(k, 3); }

/* ---- fractional ----------------------------------------------------------------------------------------------------------------- */

/* Where the n windows over `in` places begin, and where the last one ends: the same seeds, the same windows as TensorFlow's. Windows are in / n or one more wide. */
static void frac_sequence(int64_t *seq, int64_t in, int64_t n, trn_philox *gen, bool pseudo)
{
    trn_philox1 rng = trn_philox1_of(*gen);
    int64_t wide = in / n;
    seq[0] = 0;
    if (pseudo) { /* ceil(alpha (i + u)), with a u so small that neither the first nor the last window is an exception (arXiv:1412.6071) */
        double alpha = (double)in / (double)n;
        double most = fmin((double)(wide + 2) / alpha - 1, (double)(in + 1 - wide) / alpha - (double)(n - 1));
        uint32_t hi = trn_philox1_next(&rng), lo = trn_philox1_next(&rng);
        double u = trn_philox_f64(hi, lo) * most;
        for (int64_t i = 1; i < n; i++)
            seq[i] = (int64_t)ceil(alpha * ((double)i + u)) - 1;
        seq[n] = in;
    } else { /* the wider ones first, shuffled */
        for (int64_t i = 0; i < n; i++)
            seq[1 + i] = wide + (i < in % n);
        for (int64_t i = 0; i < n - 1; i++) {
            int64_t to = 1 + i + trn_philox1_next(&rng) % (uint32_t)(n - i), width = seq[1 + i];
            seq[1 + i] = seq[to];
            seq[to] = width;
        }
        for (int64_t i = 0; i < n; i++)
            seq[1 + i] += seq[i];
    }
    trn_philox_skip(gen, (uint64_t)((pseudo ? 2 : n) + 3) / 4);
}

/* Pooled dims of x; -1 where x's are not known. */
static trn_err frac_dims(int64_t o[4], const trn_node *n, const trn_shape *x)
{
    const trn_attr *r = trn_node_attr(n, "pooling_ratio");
    TRN_CHECK_ARG(r && r->n == 4, "pooling_ratio field must specify 4 dimensions");
    TRN_CHECK_ARG(x->rank == 4, "tensor_in must be 4-dimensional");
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(r->list[i].f >= 1, "pooling_ratio cannot be smaller than 1, got: %g", (double)r->list[i].f);
    for (int i = 0; i < 4; i++)
        o[i] = x->dim[i] < 0 ? -1 : (int64_t)floorf((float)x->dim[i] / r->list[i].f);
    return TRN_OK;
}

static void frac_job(pool_job *j, trn_kctx *k, const trn_shape *in, const trn_shape *out, trn_dtype t, const int64_t *rows, const int64_t *cols)
{
    *j = (pool_job){.n = out->dim[0], .c = out->dim[3], .in = {1, in->dim[1], in->dim[2]}, .out = {1, out->dim[1], out->dim[2]}, .t = t, .size = trn_dtype_size(t),
                    .f = &max_of[t], .seq = {NULL, rows, cols}, .overlap = trn_attr_bool(k->node, "overlapping")};
    for (int i = 0; i < 3; i++) {
        j->w.stride[i] = 1;
        j->w.ksize[i] = j->in[i] / j->out[i];
    }
}

static trn_err frac_pool(trn_kctx *k, void (*image)(pool_job *, int64_t))
{
    const trn_tensor *x = trn_in(k, 0);
    const trn_attr *r = trn_node_attr(k->node, "pooling_ratio");
    bool fixed = trn_attr_bool(k->node, "deterministic"), pseudo = trn_attr_bool(k->node, "pseudo_random");
    trn_shape s = {.rank = 4};
    TRN_TRY(frac_dims(s.dim, k->node, &x->shape));
    if (r->list[0].f != 1 || r->list[3].f != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Fractional pooling is not yet supported on the batch nor channel dimension.");
    TRN_CHECK_ARG(fixed || (!trn_attr_int(k->node, "seed") && !trn_attr_int(k->node, "seed2")), "Both seed and seed2 should be 0 if deterministic is false.");
    for (int i = 0; i < 4; i++) {
        TRN_CHECK_ARG(x->shape.dim[i] <= INT32_MAX, "dimension %d of the input is too large", i);
        TRN_CHECK_ARG((float)x->shape.dim[i] >= r->list[i].f, "Pooling ratio is higher than input dimension size for dimension %d. Input dim size: %lld pooling ratio: %g",
                      i, (long long)x->shape.dim[i], (double)r->list[i].f);
    }
    trn_tensor *y, *seq[2];
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_philox gen = trn_random_reserve(k, fixed ? 0 : (uint64_t)(s.dim[1] + s.dim[2]) / 4 + 2);
    for (int i = 0; i < 2; i++) {
        trn_shape v = trn_shape_vector(s.dim[1 + i] + 1);
        TRN_TRY(trn_out_new(&seq[i], k, 1 + i, TRN_INT64, &v));
        frac_sequence(seq[i]->data, x->shape.dim[1 + i], s.dim[1 + i], &gen, pseudo);
    }
    pool_job j;
    frac_job(&j, k, &x->shape, &s, x->dtype, seq[0]->data, seq[1]->data);
    j.x = x->data;
    j.y = y->data;
    run(k, &j, image);
    return TRN_OK;
}

#define FRAC_AVG(T, U, tag)                                                                                            \
    static void avg_image_##tag(pool_job *j, int64_t i)                                                                \
    {                                                                                                                  \
        const T *x = (const T *)(const void *)j->x + i * in_places(j) * j->c;                                          \
        T *y = (T *)(void *)j->y + i * out_places(j) * j->c;                                                           \
        for (int64_t o = 0, n = out_places(j); o < n; o++, y += j->c) {                                                \
            places p = places_of(j, o);                                                                                \
            memset(y, 0, (size_t)j->c * sizeof(T));                                                                    \
            EACH_PLACE(j, p, at, {                                                                                     \
                for (int64_t c = 0; c < j->c; c++)                                                                     \
                    y[c] = (T)((U)y[c] + (U)x[at * j->c + c]);                                                         \
            })                                                                                                         \
            for (int64_t c = 0; c < j->c && p.n; c++)                                                                  \
                y[c] /= (T)p.n;                                                                                        \
        }                                                                                                              \
    }
FRAC_AVG(int32_t, uint32_t, i32)
FRAC_AVG(int64_t, uint64_t, i64)

/* What does not fit an integer becomes what x86's conversion gives. */
static inline int32_t sum_i32(double v) { return v > -2147483649.0 && v < 2147483648.0 ? (int32_t)v : INT32_MIN; }
static inline int64_t sum_i64(double v) { return v >= -9223372036854775808.0 && v < 9223372036854775808.0 ? (int64_t)v : INT64_MIN; }
static inline float sum_f32(double v) { return (float)v; }
static inline double sum_f64(double v) { return v; }
#define FRAC_AVG_GRAD(T, tag)                                                                                          \
    static void frac_avg_grad_##tag(pool_job *j, int64_t i)                                                            \
    {                                                                                                                  \
        int64_t all = in_places(j) * j->c;                                                                             \
        const T *g = (const T *)(const void *)j->g + i * out_places(j) * j->c;                                         \
        double *sum = j->sum + i * all;                                                                                \
        memset(sum, 0, (size_t)all * sizeof *sum);                                                                     \
        for (int64_t o = 0, n = out_places(j); o < n; o++, g += j->c) {                                                \
            places p = places_of(j, o);                                                                                \
            EACH_PLACE(j, p, at, {                                                                                     \
                for (int64_t c = 0; c < j->c; c++)                                                                     \
                    sum[at * j->c + c] += (double)g[c] / (double)p.n;                                                  \
            })                                                                                                         \
        }                                                                                                              \
        T *y = (T *)(void *)j->y + i * all;                                                                            \
        for (int64_t e = 0; e < all; e++)                                                                              \
            y[e] = sum_##tag(sum[e]);                                                                                  \
    }
FRAC_AVG_GRAD(int32_t, i32)
FRAC_AVG_GRAD(int64_t, i64)
FRAC_AVG_GRAD(float, f32)
FRAC_AVG_GRAD(double, f64)

typedef void (*image_fn)(pool_job *, int64_t);
#define FRAC_TAB(f) {[TRN_FLOAT] = f##_f32, [TRN_DOUBLE] = f##_f64, [TRN_INT32] = f##_i32, [TRN_INT64] = f##_i64}
static const image_fn frac_avg_of[TRN_DTYPE_END] = FRAC_TAB(avg_image), frac_avg_grad_of[TRN_DTYPE_END] = FRAC_TAB(frac_avg_grad);

static trn_err k_frac_max(trn_kctx *k) { return frac_pool(k, max_image); }
static trn_err k_frac_avg(trn_kctx *k) { return frac_pool(k, frac_avg_of[trn_in(k, 0)->dtype]); }

/* The first n + 1 of a sequence that anybody may have written. */
static trn_err frac_check(const trn_tensor *seq, int64_t n, bool overlap, const char *what)
{
    TRN_CHECK_ARG(seq->count > n, "%s sequence tensor must have at least %lld elements, but got %lld", what, (long long)n + 1, (long long)seq->count);
    const int64_t *v = TRN_DATA(seq, int64_t);
    for (int64_t i = 0; i < n; i++)
        TRN_CHECK_ARG(v[i] >= 0 && v[i + 1] >= !overlap, "%s sequence tensor values must not be negative, got %lld, %lld", what, (long long)v[i], (long long)v[i + 1]);
    return TRN_OK;
}

static trn_err k_frac_max_grad(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *m = trn_in(k, 1), *g = trn_in(k, 2), *rows = trn_in(k, 3), *cols = trn_in(k, 4);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    bool overlap = trn_attr_bool(k->node, "overlapping");
    TRN_CHECK_ARG(x->shape.rank == 4 && x->count, "orig_input should be a tensor of rank 4 and not empty, got %s", trn_shape_text(ta, &x->shape));
    TRN_CHECK_ARG(m->shape.rank == 4 && m->count, "orig_output should be a tensor of rank 4 and not empty, got %s", trn_shape_text(ta, &m->shape));
    TRN_CHECK_ARG((double)rows->count * (double)cols->count <= (double)x->count, "Pooling region has more elements than the input tensor.");
    TRN_CHECK_ARG(trn_is_vector(rows), "row_pooling_sequence must be a vector, received shape %s", trn_shape_text(ta, &rows->shape));
    TRN_CHECK_ARG(trn_is_vector(cols), "col_pooling_sequence must be a vector, received shape %s", trn_shape_text(ta, &cols->shape));
    const int64_t *in = x->shape.dim, *out = m->shape.dim;
    /* TensorFlow looks at none of these, and then anywhere. */
    TRN_CHECK_ARG(in[0] == out[0] && in[3] == out[3] && trn_shape_eq(&m->shape, &g->shape), "orig_output is %s and out_backprop %s: they do not belong together",
                  trn_shape_text(ta, &m->shape), trn_shape_text(tb, &g->shape));
    TRN_CHECK_ARG(rows->count == out[1] + 1 && cols->count == out[2] + 1, "sequences of %lld and %lld elements do not belong to an output of shape %s",
                  (long long)rows->count, (long long)cols->count, trn_shape_text(ta, &m->shape));
    TRN_TRY(frac_check(rows, out[1], overlap, "Row"));
    TRN_TRY(frac_check(cols, out[2], overlap, "Column"));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    pool_job j;
    frac_job(&j, k, &x->shape, &m->shape, x->dtype, rows->data, cols->data);
    j.x = x->data;
    j.m = m->data;
    j.g = g->data;
    j.y = y->data;
    run(k, &j, max_grad_image);
    TRN_CHECK_ARG(!atomic_load(&j.differs), "tensor_out_dup is not the same as tensor_out");
    return TRN_OK;
}

static trn_err k_frac_avg_grad(trn_kctx *k)
{
    const trn_tensor *sizes = trn_in(k, 0), *g = trn_in(k, 1), *rows = trn_in(k, 2), *cols = trn_in(k, 3);
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    bool overlap = trn_attr_bool(k->node, "overlapping");
    trn_shape s;
    TRN_CHECK_ARG(trn_is_vector(sizes) && sizes->count == 4, "original input tensor shape must be 1-dimensional and 4 elements");
    TRN_CHECK_ARG(g->shape.rank == 4 && g->count, "out_backprop must be 4-dimensional and not empty");
    TRN_TRY(trn_shape_from(&s, sizes, false));
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(s.dim[i], "dimension %d of input must not be 0", i);
    TRN_TRY(frac_check(rows, g->shape.dim[1], overlap, "Row"));
    TRN_TRY(frac_check(cols, g->shape.dim[2], overlap, "Column"));
    TRN_CHECK_ARG(g->shape.dim[0] <= s.dim[0] && g->shape.dim[3] == s.dim[3], "out_backprop is %s: it does not belong to an input of shape %s",
                  trn_shape_text(ta, &g->shape), trn_shape_text(tb, &s));
    trn_tensor *y, *sum;
    TRN_TRY(trn_out_new(&y, k, 0, g->dtype, &s));
    TRN_TRY(trn_tensor_new(&sum, TRN_DOUBLE, &s));
    pool_job j;
    frac_job(&j, k, &s, &g->shape, g->dtype, rows->data, cols->data);
    j.g = g->data;
    j.y = y->data;
    j.sum = sum->data;
    run(k, &j, frac_avg_grad_of[g->dtype]);
    int64_t done = j.n * in_places(&j) * j.c;
    trn_zero_elems(y, done, y->count - done);
    trn_tensor_unref(sum);
    return TRN_OK;
}

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

static trn_err sh_pool(trn_shctx *s, int space)
{
    trn_window w;
    TRN_TRY(trn_window_read(&w, s->node, space));
    TRN_TRY(trn_sh_rank_of(s, 0, space + 2));
    int64_t d[5] = {-1, -1, -1, -1, -1}, in[5] = {-1, -1, -1, -1, -1}, pad, after;
    if (s->in[0].rank >= 0)
        TRN_TRY(trn_window_dims(in, &w, &s->in[0], "tensor_in"));
    d[0] = in[0];
    d[4] = in[4] < 0 ? -1 : w.ksize_c > 1 ? in[4] / w.ksize_c : in[4];
    for (int i = 0; i < 3; i++)
        if (in[1 + i] >= 0)
            TRN_TRY(trn_window_size(&d[1 + i], &pad, &after, &w, i, in[1 + i], w.ksize[i]));
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = trn_window_shape(&w, d);
    return TRN_OK;
}
static trn_err sh_pool2d(trn_shctx *s) { return sh_pool(s, 2); }
static trn_err sh_pool3d(trn_shctx *s) { return sh_pool(s, 3); }
static trn_err sh_argmax(trn_shctx *s) /* all channels stay, whatever the window over them */
{
    TRN_TRY(sh_pool2d(s));
    for (int i = 0; i < 2; i++)
        if (s->out[i].rank == 4)
            s->out[i].dim[3] = s->in[0].rank == 4 ? s->in[0].dim[3] : -1;
    return TRN_OK;
}
static trn_err sh_rank4(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    s->out[0] = trn_shape_of(4, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1);
    return TRN_OK;
}
static trn_err sh_avg_grad(trn_shctx *s)
{
    int rank = !strcmp(s->node->op, "AvgPoolGrad") ? 4 : 5;
    trn_shape o;
    if (trn_sh_value(&o, s, 0) && o.rank == rank)
        s->out[0] = o;
    else
        s->out[0] = rank == 4 ? trn_shape_of(4, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1)
                              : trn_shape_of(5, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1);
    return TRN_OK;
}

static trn_err sh_frac(trn_shctx *s)
{
    trn_shape x = s->in[0].rank < 0 ? trn_shape_of(4, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1) : s->in[0], o = {.rank = 4};
    TRN_TRY(frac_dims(o.dim, s->node, &x));
    s->out[0] = o;
    for (int i = 1; i < 3; i++)
        s->out[i] = trn_shape_of(1, o.dim[i] < 0 ? (int64_t)-1 : o.dim[i] + 1); /* TensorFlow's rule forgets the end */
    return TRN_OK;
}
static trn_err sh_frac_max_grad(trn_shctx *s)
{
    TRN_TRY(sh_rank4(s));
    if (s->in[0].rank >= 0)
        s->out[0] = s->in[0];
    return TRN_OK;
}
static trn_err sh_frac_avg_grad(trn_shctx *s)
{
    trn_shape o;
    s->out[0] = trn_sh_value(&o, s, 0) && o.rank == 4 ? o : trn_shape_of(4, (int64_t)-1, (int64_t)-1, (int64_t)-1, (int64_t)-1);
    return TRN_OK;
}

#define KS2 "ksize:list(int)>=4, strides:list(int)>=4, "
#define KS3 "ksize:list(int)>=5, strides:list(int)>=5, padding:{SAME,VALID}, data_format:{NDHWC,NCDHW}=NDHWC, "
#define FMT "data_format:{NHWC,NCHW}=NHWC"
#define FRAC                                                                                                           \
    "value:T -> output:T, row_pooling_sequence:i64, col_pooling_sequence:i64; pooling_ratio:list(float)>=4, pseudo_random:bool=false, "            \
    "overlapping:bool=false, deterministic:bool=false, seed:int=0, seed2:int=0, T:f32|f64|i32|i64"
#define EXPL "padding:{SAME,VALID,EXPLICIT}, explicit_paddings:list(int)=[], "

const trn_op trn_ops_pool[] = {
    {"MaxPool", "input:T -> output:T; T:f32|f16|bf16|f64|i8|i16|i32|i64|u8|u16=f32, " KS2 EXPL FMT, sh_pool2d, k_max_pool, 0},
    {"MaxPoolV2", "input:T, ksize:i32, strides:i32 -> output:T; T:f32|f16|bf16|f64|i8|i16|i32|i64|u8|u16=f32, padding:{SAME,VALID}, " FMT, sh_rank4, k_max_pool_v2, 0},
    {"MaxPoolGrad", "orig_input:T, orig_output:T, grad:T -> output:T; " KS2 EXPL FMT ", T:real=f32", trn_sh_same, k_max_pool_grad, 0},
    {"MaxPoolGradV2", "orig_input:T, orig_output:T, grad:T, ksize:i32, strides:i32 -> output:T; padding:{SAME,VALID}, " FMT ", T:real=f32", trn_sh_same,
     k_max_pool_grad_v2, 0},
    {"MaxPoolGradGrad", "orig_input:T, orig_output:T, grad:T -> output:T; " KS2 "padding:{SAME,VALID}, " FMT ", T:real", trn_sh_like1, k_max_pool_grad_grad, 0},
    {"MaxPoolGradGradV2", "orig_input:T, orig_output:T, grad:T, ksize:i32, strides:i32 -> output:T; padding:{SAME,VALID}, " FMT ", T:real", trn_sh_like1,
     k_max_pool_grad_grad_v2, 0},
    {"MaxPoolWithArgmax", "input:T -> output:T, argmax:Targmax; " KS2 "Targmax:i32|i64=i64, padding:{SAME,VALID}, include_batch_in_index:bool=false, T:real", sh_argmax,
     k_max_pool_argmax, 0},
    {"MaxPoolGradWithArgmax", "input:T, grad:T, argmax:Targmax -> output:T; " KS2 "padding:{SAME,VALID}, include_batch_in_index:bool=false, Targmax:i32|i64, T:real",
     trn_sh_same, k_max_pool_grad_argmax, 0},
    {"MaxPoolGradGradWithArgmax",
     "input:T, grad:T, argmax:Targmax -> output:T; " KS2 "padding:{SAME,VALID}, include_batch_in_index:bool=false, Targmax:i32|i64, T:real", sh_pool2d,
     k_max_pool_grad_grad_argmax, 0},
    {"AvgPool", "value:T -> output:T; " KS2 "padding:{SAME,VALID}, " FMT ", T:float", sh_pool2d, k_avg_pool, 0},
    {"AvgPoolGrad", "orig_input_shape:i32, grad:T -> output:T; " KS2 "padding:{SAME,VALID}, " FMT ", T:float", sh_avg_grad, k_avg_pool_grad, 0},
    {"MaxPool3D", "input:T -> output:T; " KS3 "T:f16|bf16|f32", sh_pool3d, k_max_pool3d, 0},
    {"MaxPool3DGrad", "orig_input:TInput, orig_output:TInput, grad:T -> output:T; " KS3 "T:f16|bf16|f32=f32, TInput:f16|bf16|f32=f32", trn_sh_same, k_max_pool3d_grad, 0},
    {"MaxPool3DGradGrad", "orig_input:T, orig_output:T, grad:T -> output:T; " KS3 "T:real", trn_sh_like1, k_max_pool3d_grad_grad, 0},
    {"AvgPool3D", "input:T -> output:T; " KS3 "T:float", sh_pool3d, k_avg_pool3d, 0},
    {"AvgPool3DGrad", "orig_input_shape:i32, grad:T -> output:T; " KS3 "T:float", sh_avg_grad, k_avg_pool3d_grad, 0},
    {"FractionalMaxPool", FRAC, sh_frac, k_frac_max, TRN_OP_STATEFUL, trn_random_init, trn_random_fini},
    {"FractionalMaxPoolGrad",
     "orig_input:T, orig_output:T, out_backprop:T, row_pooling_sequence:i64, col_pooling_sequence:i64 -> output:T; overlapping:bool=false, T:f32|f64|i32|i64",
     sh_frac_max_grad, k_frac_max_grad, 0},
    {"FractionalAvgPool", FRAC, sh_frac, k_frac_avg, TRN_OP_STATEFUL, trn_random_init, trn_random_fini},
    {"FractionalAvgPoolGrad",
     "orig_input_tensor_shape:i64, out_backprop:T, row_pooling_sequence:i64, col_pooling_sequence:i64 -> output:T; overlapping:bool=false, T:f32|f64|i32|i64",
     sh_frac_avg_grad, k_frac_avg_grad, 0},
    {0},
};
