/* Resizing by areas, by cubics and by any of eight filters (ScaleAndTranslate). Everything is computed in float; rows of the output are what is
 * divided among threads. */
#include <float.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>

#include "ops/image.h"

/* Row r of all images of a job: its image and its row there. */
static const float *image_of(const trn_resize *j, int64_t r) { return (const float *)(const void *)j->x + r / j->oh * j->h * j->w * j->c; }

/* The images as float, the output, and `rows` over all rows of it. */
static trn_err resize(trn_kctx *k, trn_resize *j, int64_t work, void (*rows)(void *, int64_t, int64_t), void *arg)
{
    trn_shape s = trn_shape_of(4, j->n, j->oh, j->ow, j->c);
    trn_tensor *x, *y;
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    if (!y->count)
        return TRN_OK;
    TRN_TRY(trn_image_float(&x, k, trn_in(k, 0)));
    j->x = x->data;
    j->y = y->data;
    trn_k_for(k, j->n * j->oh, TRN_MAX(16384 / (work * j->c), (int64_t)1), rows, arg);
    trn_tensor_unref(x);
    return TRN_OK;
}

/* ---- areas ---------------------------------------------------------------------------------------------------------------------- */

/* How much of pixel i lies in [from, to), which is `scale` long. */
static float share(int64_t i, float from, float to, float scale)
{
    bool over = (float)(i + 1) > to;
    return (float)i < from ? (over ? scale : (float)(i + 1) - from) : over ? to - (float)i : 1;
}

static void add_pixel(float *sum, const float *x, float by, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        sum[c] += x[c] * by;
}

enum { SOME = 64 }; /* channels at a time */

static void area_rows(void *arg, int64_t lo, int64_t hi)
{
    const trn_resize *j = arg;
    float scale = (float)(1.0 / (double)(j->hs * j->ws)), sum[SOME], row[SOME];
    for (int64_t r = lo; r < hi; r++) {
        const float *image = image_of(j, r);
        float *y = (float *)(void *)j->y + r * j->ow * j->c;
        float top = (float)(r % j->oh) * j->hs, bottom = (float)(r % j->oh + 1) * j->hs;
        for (int64_t i = 0; i < j->ow; i++, y += j->c) {
            float left = (float)i * j->ws, right = (float)(i + 1) * j->ws;
            int64_t first = (int64_t)floorf(left), last = (int64_t)ceilf(right) - 1;
            for (int64_t at = 0; at < j->c; at += SOME) {
                int64_t n = TRN_MIN(j->c - at, (int64_t)SOME);
                memset(sum, 0, sizeof sum);
                for (int64_t p = (int64_t)floorf(top); p < (int64_t)ceilf(bottom); p++) {
                    const float *x = image + trn_clamp(p, j->h) * j->w * j->c + at;
                    memset(row, 0, sizeof row);
                    add_pixel(row, x + trn_clamp(first, j->w) * j->c, share(first, left, right, j->ws), n);
                    for (int64_t q = first + 1; q < last; q++)
                        add_pixel(row, x + trn_clamp(q, j->w) * j->c, 1, n);
                    if (last != first)
                        add_pixel(row, x + trn_clamp(last, j->w) * j->c, share(last, left, right, j->ws), n);
                    add_pixel(sum, row, share(p, top, bottom, j->hs), n);
                }
                for (int64_t c = 0; c < n; c++)
                    y[at + c] = sum[c] * scale;
            }
        }
    }
}
static trn_err k_resize_area(trn_kctx *k)
{
    trn_resize j;
    TRN_TRY(trn_resize_begin(&j, k));
    return resize(k, &j, TRN_MAX(j.w, j.ow), area_rows, &j);
}

/* ---- cubics --------------------------------------------------------------------------------------------------------------------- */

/* Four neighbours and their weights. */
typedef struct four {
    int64_t at[4];
    float by[4];
} four;

/* The cubic at distances below 1 and from 1 to 2; distances are whole 1024ths. */
enum { STEPS = 1024 };
static float cubic_near(double a, int64_t step)
{
    float x = (float)((double)step / STEPS);
    return (float)(((a + 2) * (double)x - (a + 3)) * (double)x * (double)x + 1);
}
static float cubic_far(double a, int64_t step)
{
    float x = (float)((double)step / STEPS) + 1;
    return (float)(((a * (double)x - 5 * a) * (double)x + 8 * a) * (double)x - 4 * a);
}

static four four_of(int64_t i, float scale, int64_t n, bool half)
{
    float x = half ? ((float)i + 0.5f) * scale - 0.5f : (float)i * scale;
    int64_t at = (int64_t)floorf(x), step = lrintf((x - (float)at) * STEPS);
    double a = half ? -0.5 : -0.75;
    four f = {.by = {cubic_far(a, step), cubic_near(a, step), cubic_near(a, STEPS - step), cubic_far(a, STEPS - step)}};
    float sum = 0;
    for (int q = 0; q < 4; q++) {
        f.at[q] = trn_clamp(at - 1 + q, n);
        if (half && f.at[q] != at - 1 + q)
            f.by[q] = 0; /* pixel centres: what is outside does not count; else the border's pixels count for it */
        sum += f.by[q];
    }
    if (half && fabsf(sum) >= 1000 * FLT_MIN) {
        float inv = 1 / sum;
        for (int q = 0; q < 4; q++)
            f.by[q] *= inv;
    }
    return f;
}

typedef struct cubic_job {
    trn_resize r;
    four *columns;
} cubic_job;

static trn_err cubic_columns(cubic_job *j)
{
    j->columns = malloc(sizeof *j->columns * (size_t)j->r.ow);
    if (!j->columns)
        return trn_err_oom();
    for (int64_t i = 0; i < j->r.ow; i++)
        j->columns[i] = four_of(i, j->r.ws, j->r.w, j->r.half);
    return TRN_OK;
}

static void cubic_rows(void *arg, int64_t lo, int64_t hi)
{
    const cubic_job *job = arg;
    const trn_resize *j = &job->r;
    for (int64_t r = lo; r < hi; r++) {
        const float *image = image_of(j, r), *row[4];
        four v = four_of(r % j->oh, j->hs, j->h, j->half);
        for (int q = 0; q < 4; q++)
            row[q] = image + v.at[q] * j->w * j->c;
        float *y = (float *)(void *)j->y + r * j->ow * j->c;
        for (int64_t i = 0; i < j->ow; i++, y += j->c) {
            const four *u = &job->columns[i];
            for (int64_t c = 0; c < j->c; c++) {
                float m[4];
                for (int q = 0; q < 4; q++) {
                    int64_t at = u->at[q] * j->c + c;
                    m[q] = row[0][at] * v.by[0] + row[1][at] * v.by[1] + row[2][at] * v.by[2] + row[3][at] * v.by[3];
                }
                y[c] = m[0] * u->by[0] + m[1] * u->by[1] + m[2] * u->by[2] + m[3] * u->by[3];
            }
        }
    }
}
static trn_err k_resize_bicubic(trn_kctx *k)
{
    cubic_job j = {0};
    TRN_TRY(trn_resize_begin(&j.r, k));
    TRN_TRY(cubic_columns(&j));
    trn_err e = resize(k, &j.r, j.r.ow * 8, cubic_rows, &j);
    free(j.columns);
    return e;
}

#define CUBIC_SPREAD(T, tag)                                                                                           \
    static void cubic_spread_##tag(void *arg, int64_t lo, int64_t hi)                                                  \
    {                                                                                                                  \
        const cubic_job *job = arg;                                                                                    \
        const trn_resize *j = &job->r;                                                                                 \
        for (int64_t b = lo; b < hi; b++) {                                                                            \
            const float *g = (const float *)(const void *)j->x + b * j->oh * j->ow * j->c;                             \
            T *y = (T *)(void *)j->y + b * j->h * j->w * j->c;                                                         \
            memset(y, 0, sizeof(T) * (size_t)(j->h * j->w * j->c));                                                    \
            for (int64_t r = 0; r < j->oh; r++) {                                                                      \
                four v = four_of(r, j->hs, j->h, j->half);                                                             \
                for (int64_t i = 0; i < j->ow; i++, g += j->c) {                                                       \
                    const four *u = &job->columns[i];                                                                  \
                    for (int p = 0; p < 4; p++)                                                                        \
                        for (int q = 0; q < 4; q++) {                                                                  \
                            T *to = y + (v.at[p] * j->w + u->at[q]) * j->c;                                            \
                            for (int64_t c = 0; c < j->c; c++)                                                         \
                                to[c] += (T)g[c] * (T)v.by[p] * (T)u->by[q];                                           \
                        }                                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
CUBIC_SPREAD(float, f32)
CUBIC_SPREAD(double, f64)

static trn_err k_resize_bicubic_grad(trn_kctx *k)
{
    cubic_job j = {0};
    trn_tensor *y;
    TRN_TRY(trn_resize_grad_begin(&j.r, k));
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 1)->dtype, &trn_in(k, 1)->shape));
    if (!y->count)
        return TRN_OK;
    TRN_TRY(cubic_columns(&j));
    j.r.x = trn_in(k, 0)->data;
    j.r.y = y->data;
    trn_k_for(k, j.r.n, 1, y->dtype == TRN_DOUBLE ? cubic_spread_f64 : cubic_spread_f32, &j);
    free(j.columns);
    return TRN_OK;
}

/* ---- filters -------------------------------------------------------------------------------------------------------------------- */

static float lanczos(float x, float radius)
{
    const float pi = (float)M_PI;
    return x > radius ? 0 : (double)x <= 1e-3 ? 1 : radius * sinf(pi * x) * sinf(pi * x / radius) / (pi * pi * x * x);
}
static float gauss(float x, float radius)
{
    double sigma = (double)(radius / 3);
    return x >= radius ? 0 : (float)exp((double)(-x * x) / (2 * sigma * sigma));
}
static float box(float x, float radius)
{
    (void)radius;
    return x < 0.5f ? 1 : x == 0.5f ? 0.5f : 0;
}
static float triangle(float x, float radius)
{
    (void)radius;
    return x < 1 ? 1 - x : 0;
}
static float keys(float x, float radius)
{
    return x >= radius ? 0 : x >= 1 ? ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f : (1.5f * x - 2.5f) * x * x + 1.0f;
}
static float mitchell(float x, float radius)
{
    return x >= radius ? 0 : x >= 1 ? ((-7.0f / 18.0f * x + 2.0f) * x - 10.0f / 3.0f) * x + 16.0f / 9.0f : (7.0f / 6.0f * x - 2.0f) * x * x + 8.0f / 9.0f;
}

typedef struct filter {
    const char *name;
    float radius;
    float (*f)(float distance, float radius);
} filter;
static const filter filters[] = {{"lanczos1", 1, lanczos}, {"lanczos3", 3, lanczos}, {"lanczos5", 5, lanczos}, {"gaussian", 1.5f, gauss},
                                 {"box", 1, box},          {"triangle", 1, triangle}, {"keyscubic", 2, keys},   {"mitchellcubic", 2, mitchell}};

static trn_err filter_of(const filter **out, const trn_node *n)
{
    const char *name = trn_attr_str(n, "kernel_type");
    for (size_t i = 0; i < TRN_COUNTOF(filters); i++)
        if (!strcasecmp(name, filters[i].name)) {
            *out = &filters[i];
            return TRN_OK;
        }
    return TRN_BAD("Unrecognized kernel type: %s", name);
}

/* What each of n outputs is made of: `size` inputs from start[i] on, with weights. Those of an output behind the last input are 0. */
typedef struct spans {
    int64_t size;
    int32_t *start;
    trn_tensor *weights; /* [n, size] */
} spans;

static trn_err spans_init(spans *s, int64_t n, int64_t size)
{
    trn_shape shape = trn_shape_of(2, n, size);
    int64_t count;
    s->size = size;
    TRN_TRY(trn_count_checked(&count, &shape));
    if (count > 1 << 28) /* only a scale that no image has asks for so many */
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "each of %lld pixels is made of %lld", (long long)n, (long long)size);
    if (!(s->start = calloc((size_t)n + 1, sizeof *s->start)))
        return trn_err_oom();
    TRN_TRY(trn_tensor_new(&s->weights, TRN_FLOAT, &shape));
    memset(s->weights->data, 0, (size_t)count * sizeof(float));
    return TRN_OK;
}
static void spans_fini(spans *s)
{
    free(s->start);
    trn_tensor_unref(s->weights);
    memset(s, 0, sizeof *s);
}

/* From `in` pixels to `out` ones: pixel x of the input lies at x * scale + move of the output. */
static trn_err spans_of(spans *s, const filter *f, int64_t out, int64_t in, float scale, float move, bool antialias)
{
    float inv = (float)(1.0 / (double)scale), at0 = -inv * move, wide = antialias && inv > 1 ? inv : 1, reach = f->radius * wide;
    double size = 2 * (double)ceilf(reach) + 1;
    TRN_TRY(spans_init(s, out, size < (double)in ? (int64_t)size : in));
    for (int64_t x = 0; x < out; x++) {
        float at = ((float)x + 0.5f) * inv + at0, sum = 0, *w = TRN_DATA_MUT(s->weights, float) + x * s->size;
        if (!(at >= 0 && at <= (float)in))
            continue; /* outside */
        float from = ceilf(at - reach - 0.5f), to = floorf(at + reach - 0.5f);
        int64_t first = from > 0 ? TRN_MIN(trn_i64_of(from), in - 1) : 0, last = to < (float)(in - 1) ? TRN_MAX(trn_i64_of(to), (int64_t)0) : in - 1;
        if (last - first >= s->size)
            return trn_errorf(TRN_INTERNAL, "Span is too large: %lld vs %lld.", (long long)(last - first + 1), (long long)s->size);
        s->start[x] = (int32_t)first;
        for (int64_t i = first; i <= last; i++)
            sum += w[i - first] = f->f(fabsf(((float)i + 0.5f - at) * (1 / wide)), f->radius);
        float by = fabsf(sum) >= 1000 * FLT_MIN ? 1 / sum : 0;
        for (int64_t i = 0; i <= last - first; i++)
            w[i] = by != 0 ? w[i] * by : 0;
    }
    return TRN_OK;
}

/* Which outputs each input went to: for the gradient. */
static trn_err spans_turned(spans *t, const spans *s, int64_t out, int64_t in)
{
    int64_t size = 0;
    int32_t *last = malloc(sizeof *last * (size_t)(in + 1)), *first = malloc(sizeof *first * (size_t)(in + 1));
    trn_err e = last && first ? TRN_OK : trn_err_oom();
    for (int64_t i = 0; !e && i < in; i++)
        first[i] = last[i] = -1;
    for (int64_t x = 0; !e && x < out; x++)
        for (int64_t i = 0; i < s->size && s->start[x] + i < in; i++)
            if (TRN_DATA(s->weights, float)[x * s->size + i] != 0) {
                int64_t at = s->start[x] + i;
                first[at] = first[at] < 0 ? (int32_t)x : first[at];
                last[at] = (int32_t)x;
                size = TRN_MAX(size, (int64_t)last[at] - first[at] + 1);
            }
    if (!e)
        e = spans_init(t, in, size);
    for (int64_t i = 0; !e && i < in; i++)
        t->start[i] = TRN_MAX(first[i], 0);
    for (int64_t x = 0; !e && x < out; x++)
        for (int64_t i = 0; i < s->size && s->start[x] + i < in; i++) {
            int64_t at = s->start[x] + i;
            float w = TRN_DATA(s->weights, float)[x * s->size + i];
            if (w != 0)
                TRN_DATA_MUT(t->weights, float)[at * size + x - t->start[at]] += w;
        }
    free(first);
    free(last);
    return e;
}

typedef struct span_job {
    trn_resize r;
    spans rows, columns;
    atomic_bool oom;
} span_job;

TRN_SIMD static void add_row(float *y, const float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += by * x[i];
}
static void span_rows(void *arg, int64_t lo, int64_t hi)
{
    span_job *job = arg;
    const trn_resize *j = &job->r;
    int64_t row = j->w * j->c;
    float *m = malloc(sizeof *m * (size_t)row); /* one row of the output, as wide as the input */
    if (!m) {
        job->oom = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++) {
        float *y = (float *)(void *)j->y + r * j->ow * j->c;
        int64_t at = job->rows.start[r % j->oh];
        const float *x = image_of(j, r) + at * row, *w = TRN_DATA(job->rows.weights, float) + r % j->oh * job->rows.size;
        memset(m, 0, sizeof(float) * (size_t)row);
        for (int64_t i = 0; i < TRN_MIN(job->rows.size, j->h - at); i++)
            add_row(m, x + i * row, w[i], row);
        for (int64_t i = 0; i < j->ow; i++, y += j->c) {
            at = job->columns.start[i];
            w = TRN_DATA(job->columns.weights, float) + i * job->columns.size;
            memset(y, 0, sizeof(float) * (size_t)j->c);
            for (int64_t q = 0; q < TRN_MIN(job->columns.size, j->w - at); q++)
                for (int64_t c = 0; c < j->c; c++)
                    y[c] += w[q] * m[(at + q) * j->c + c];
        }
    }
    free(m);
}

static trn_err two_floats(float v[2], const trn_tensor *t)
{
    char s[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(t) && t->count == 2, "scale and translation must be 1-dimensional with two elements, not %s", trn_shape_text(s, &t->shape));
    memcpy(v, t->data, 2 * sizeof *v);
    return TRN_OK;
}

/* Forwards from images of h x w to oh x ow; backwards from gradients of h x w to those of images of oh x ow. */
static trn_err span_run(trn_kctx *k, span_job *job, bool back)
{
    trn_resize *j = &job->r;
    const filter *f = NULL;
    float scale[2], move[2];
    TRN_TRY(filter_of(&f, k->node));
    TRN_TRY(two_floats(scale, trn_in(k, 2)));
    TRN_CHECK_ARG(scale[0] > 0 && scale[1] > 0, "Scale must be greater than zero: %g, %g", (double)scale[0], (double)scale[1]);
    TRN_TRY(two_floats(move, trn_in(k, 3)));
    trn_shape s = trn_shape_of(4, j->n, j->oh, j->ow, j->c);
    int64_t n;
    trn_tensor *y;
    TRN_TRY(trn_count_checked(&n, &s));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    if (!trn_in(k, 0)->count)
        trn_zero_elems(y, 0, y->count);
    if (!y->count || !trn_in(k, 0)->count)
        return TRN_OK;
    bool antialias = trn_attr_bool(k->node, "antialias");
    spans *to[2] = {&job->rows, &job->columns};
    int64_t ins[2] = {j->h, j->w}, outs[2] = {j->oh, j->ow};
    trn_err e = TRN_OK;
    for (int i = 0; !e && i < 2; i++)
        if (back) {
            spans forward = {0};
            e = spans_of(&forward, f, ins[i], outs[i], scale[i], move[i], antialias);
            if (!e)
                e = spans_turned(to[i], &forward, ins[i], outs[i]);
            spans_fini(&forward);
        } else {
            e = spans_of(to[i], f, outs[i], ins[i], scale[i], move[i], antialias);
        }
    trn_tensor *x = NULL;
    if (!e)
        e = trn_image_float(&x, k, trn_in(k, 0));
    if (!e) {
        j->x = x->data;
        j->y = y->data;
        trn_k_for(k, j->n * j->oh, TRN_MAX(16384 / ((j->w + j->ow) * j->c), (int64_t)1), span_rows, job);
        e = job->oom ? trn_err_oom() : TRN_OK;
    }
    trn_tensor_unref(x);
    return e;
}

static trn_err span_dims(trn_resize *j, const trn_shape *x, const char *what)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->rank == 4, "%s must be 4-dimensional: %s", what, trn_shape_text(t, x));
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(x->dim[i] < INT32_MAX, "sizes of %s must be between 0 and max int32: %s", what, trn_shape_text(t, x));
    j->n = x->dim[0];
    j->h = x->dim[1];
    j->w = x->dim[2];
    j->c = x->dim[3];
    return TRN_OK;
}
static trn_err k_scale_and_translate(trn_kctx *k)
{
    span_job j = {0};
    TRN_TRY(span_dims(&j.r, &trn_in(k, 0)->shape, "input"));
    TRN_TRY(trn_image_size(&j.r.oh, &j.r.ow, trn_in(k, 1)));
    TRN_CHECK_ARG(j.r.c > 0, "image must have at least one channel");
    TRN_CHECK_ARG(j.r.h > 0 && j.r.w > 0, "input image must be of non-zero size");
    trn_err e = span_run(k, &j, false);
    spans_fini(&j.rows);
    spans_fini(&j.columns);
    return e;
}
static trn_err k_scale_and_translate_grad(trn_kctx *k)
{
    span_job j = {0};
    trn_resize image;
    TRN_TRY(span_dims(&j.r, &trn_in(k, 0)->shape, "input_grad"));
    TRN_TRY(span_dims(&image, &trn_in(k, 1)->shape, "original_image"));
    j.r.oh = image.h;
    j.r.ow = image.w;
    trn_err e = span_run(k, &j, true);
    spans_fini(&j.rows);
    spans_fini(&j.columns);
    return e;
}

#define REAL "T:i8|u8|i16|u16|i32|i64|f16|f32|f64|bf16"
#define CENTERS "align_corners:bool=false, half_pixel_centers:bool=false"
#define FILTER "kernel_type:string=\"lanczos3\", antialias:bool=true"

const trn_op trn_ops_image_resize[] = {
    {"ResizeArea", "images:T, size:i32 -> resized_images:f32; " REAL ", align_corners:bool=false", trn_sh_resize, k_resize_area, 0},
    {"ResizeBicubic", "images:T, size:i32 -> resized_images:f32; " REAL ", " CENTERS, trn_sh_resize, k_resize_bicubic, 0},
    {"ResizeBicubicGrad", "grads:f32, original_image:T -> output:T; T:f32|f64, " CENTERS, trn_sh_like1, k_resize_bicubic_grad, 0},
    {"ScaleAndTranslate", "images:T, size:i32, scale:f32, translation:f32 -> resized_images:f32; " REAL ", " FILTER, trn_sh_resize, k_scale_and_translate, 0},
    {"ScaleAndTranslateGrad", "grads:T, original_image:T, scale:f32, translation:f32 -> output:T; T:f32, " FILTER, trn_sh_like1, k_scale_and_translate_grad, 0},
    {0},
};
