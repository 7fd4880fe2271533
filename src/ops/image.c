/* Images: resizing, colour, grey-scale dilation. Pixels are [batch, rows, columns, channels]; images are what is divided among threads. Halves are
 * widened to float. */
#include <stdlib.h>

#include "ops/image.h"
#include "ops/window.h"

static const trn_window as_is = {.space = 2};

trn_err trn_image_in(trn_tensor **out, trn_kctx *k, const trn_tensor *x) { return trn_window_in(out, k, &as_is, x, true); }
trn_err trn_image_out(trn_tensor **out, trn_kctx *k, trn_dtype t, const trn_shape *s)
{
    trn_tensor *y;
    int64_t n;
    TRN_TRY(trn_count_checked(&n, s));
    TRN_TRY(trn_out_new(&y, k, 0, t, s));
    if (trn_is_half(t))
        return trn_tensor_new(out, TRN_FLOAT, s);
    *out = trn_tensor_ref(y);
    return TRN_OK;
}
trn_err trn_image_done(trn_kctx *k, trn_tensor *computed) { return trn_window_done(k, 0, &as_is, computed); }

#define TO_FLOAT(op, T, U, tag, ...)                                                                                   \
    TRN_SIMD_##tag static void to_float_##tag(float *y, const void *x, int64_t n)                                      \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = (float)((const T *)x)[i];                                                                           \
    }
TRN_EACH_INT(TO_FLOAT, x, 0)
TO_FLOAT(x, double, double, f64)
static void (*const to_float_of[TRN_DTYPE_END])(float *, const void *, int64_t) = {TRN_TAB_INT(to_float), [TRN_DOUBLE] = to_float_f64};

typedef struct float_job {
    const trn_tensor *x;
    float *y;
} float_job;
static void to_float_part(void *arg, int64_t lo, int64_t hi)
{
    const float_job *j = arg;
    to_float_of[j->x->dtype](j->y + lo, (const char *)j->x->data + (size_t)lo * trn_dtype_size(j->x->dtype), hi - lo);
}
trn_err trn_image_float(trn_tensor **out, trn_kctx *k, const trn_tensor *x)
{
    if (x->dtype == TRN_FLOAT || trn_is_half(x->dtype))
        return trn_image_in(out, k, x);
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &x->shape));
    float_job j = {x, (*out)->data};
    trn_k_for(k, x->count, 65536, to_float_part, &j);
    return TRN_OK;
}

/* ---- resizing ------------------------------------------------------------------------------------------------------------------- */

float trn_resize_scale(int64_t from, int64_t to, bool align)
{
    return align && from > 1 && to > 1 ? (float)(from - 1) / (float)(to - 1) : (float)from / (float)to;
}

trn_err trn_image_size(int64_t *h, int64_t *w, const trn_tensor *size)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 2, "shape_t must be 1-dimensional with two elements, not %s", trn_shape_text(t, &size->shape));
    *h = TRN_DATA(size, int32_t)[0];
    *w = TRN_DATA(size, int32_t)[1];
    TRN_CHECK_ARG(*h > 0 && *w > 0, "output dimensions must be positive: %lld, %lld", (long long)*h, (long long)*w);
    return TRN_OK;
}
static trn_err resize_attrs(trn_resize *j, const trn_node *n)
{
    memset(j, 0, sizeof *j);
    j->align = trn_attr_bool(n, "align_corners");
    j->half = trn_attr_bool(n, "half_pixel_centers");
    TRN_CHECK_ARG(!j->half || !j->align, "If half_pixel_centers is True, align_corners must be False.");
    return TRN_OK;
}
static trn_err resize_dims(trn_resize *j, const trn_shape *x)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->rank == 4, "input must be 4-dimensional %s", trn_shape_text(t, x));
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(x->dim[i] <= INT32_MAX, "input sizes must be between 0 and max int32: %s", trn_shape_text(t, x));
    j->n = x->dim[0];
    j->h = x->dim[1];
    j->w = x->dim[2];
    j->c = x->dim[3];
    return TRN_OK;
}
trn_err trn_resize_begin(trn_resize *j, const trn_kctx *k)
{
    TRN_TRY(resize_attrs(j, k->node));
    TRN_TRY(resize_dims(j, &trn_in(k, 0)->shape));
    TRN_CHECK_ARG(j->c > 0, "image must have at least one channel");
    TRN_CHECK_ARG(j->h > 0 && j->w > 0, "input image must be of non-zero size");
    TRN_TRY(trn_image_size(&j->oh, &j->ow, trn_in(k, 1)));
    j->hs = trn_resize_scale(j->h, j->oh, j->align);
    j->ws = trn_resize_scale(j->w, j->ow, j->align);
    return TRN_OK;
}
trn_err trn_resize_grad_begin(trn_resize *j, const trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *x = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    TRN_TRY(resize_attrs(j, k->node));
    TRN_CHECK_ARG(g->shape.rank == 4, "input_grad must be 4-dimensional: %s", trn_shape_text(t, &g->shape));
    TRN_TRY(resize_dims(j, &x->shape));
    TRN_CHECK_ARG(g->shape.dim[0] == j->n && g->shape.dim[3] == j->c, "the gradient must have the image's batch and depth: %s", trn_shape_text(t, &g->shape));
    j->oh = g->shape.dim[1];
    j->ow = g->shape.dim[2];
    TRN_CHECK_ARG(j->oh > 0 && j->ow > 0, "resized dimensions must be positive: %s", trn_shape_text(t, &g->shape));
    TRN_CHECK_ARG(j->h > 0 && j->w > 0, "original dimensions must be positive: %s", trn_shape_text(t, &x->shape));
    j->hs = trn_resize_scale(j->h, j->oh, j->align);
    j->ws = trn_resize_scale(j->w, j->ow, j->align);
    return TRN_OK;
}

/* Where output i of `bilinear` reads: two inputs and how far it lies between them. */
typedef struct between {
    int64_t lo, hi;
    float at;
} between;
static between between_of(int64_t i, float scale, int64_t n, bool half)
{
    float x = half ? ((float)i + 0.5f) * scale - 0.5f : (float)i * scale, f = floorf(x);
    return (between){TRN_MIN(TRN_MAX((int64_t)f, (int64_t)0), n - 1), TRN_MAX(TRN_MIN((int64_t)ceilf(x), n - 1), (int64_t)0), x - f};
}
static int64_t nearest(int64_t i, float scale, int64_t n, bool align, bool half)
{
    float x = half ? ((float)i + 0.5f) * scale : (float)i * scale;
    int64_t at = align ? (int64_t)roundf(x) : (int64_t)floorf(x);
    return TRN_MAX(TRN_MIN(at, n - 1), (int64_t)0);
}

TRN_SIMD static void lerp_row(float *y, const float *tl, const float *tr, const float *bl, const float *br, float fx, float fy, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float top = tl[i] + (tr[i] - tl[i]) * fx, bottom = bl[i] + (br[i] - bl[i]) * fx;
        y[i] = top + (bottom - top) * fy;
    }
}
static void bilinear_rows(void *arg, int64_t lo, int64_t hi)
{
    trn_resize *j = arg;
    for (int64_t r = lo; r < hi; r++) {
        between v = between_of(r % j->oh, j->hs, j->h, j->half);
        const float *image = (const float *)(const void *)j->x + r / j->oh * j->h * j->w * j->c, *top = image + v.lo * j->w * j->c, *bottom = image + v.hi * j->w * j->c;
        float *y = (float *)(void *)j->y + r * j->ow * j->c;
        for (int64_t i = 0; i < j->ow; i++, y += j->c) {
            between u = between_of(i, j->ws, j->w, j->half);
            lerp_row(y, top + u.lo * j->c, top + u.hi * j->c, bottom + u.lo * j->c, bottom + u.hi * j->c, u.at, v.at, j->c);
        }
    }
}

static trn_err k_resize_bilinear(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_resize j;
    TRN_TRY(trn_resize_begin(&j, k));
    trn_shape s = trn_shape_of(4, j.n, j.oh, j.ow, j.c);
    trn_tensor *wx, *y;
    TRN_TRY(trn_image_out(&y, k, TRN_FLOAT, &s));
    trn_tensor_unref(y);
    if (!y->count)
        return TRN_OK;
    TRN_TRY(trn_image_float(&wx, k, x));
    j.x = wx->data;
    j.y = y->data;
    trn_k_for(k, j.n * j.oh, TRN_MAX(8192 / (j.ow * j.c), (int64_t)1), bilinear_rows, &j);
    trn_tensor_unref(wx);
    return TRN_OK;
}

#define SPREAD(T, tag)                                                                                                 \
    static void spread_##tag(void *arg, int64_t lo, int64_t hi)                                                        \
    {                                                                                                                  \
        trn_resize *j = arg;                                                                                           \
        for (int64_t b = lo; b < hi; b++) {                                                                            \
            const float *g = (const float *)(const void *)j->x + b * j->oh * j->ow * j->c;                             \
            T *y = (T *)(void *)j->y + b * j->h * j->w * j->c;                                                         \
            memset(y, 0, sizeof(T) * (size_t)(j->h * j->w * j->c));                                                    \
            for (int64_t r = 0; r < j->oh; r++) {                                                                      \
                between v = between_of(r, j->hs, j->h, j->half);                                                       \
                for (int64_t i = 0; i < j->ow; i++) {                                                                  \
                    between u = between_of(i, j->ws, j->w, j->half);                                                   \
                    for (int64_t c = 0; c < j->c; c++, g++) {                                                          \
                        y[(v.lo * j->w + u.lo) * j->c + c] += (T)(*g * (1 - v.at) * (1 - u.at));                       \
                        y[(v.lo * j->w + u.hi) * j->c + c] += (T)(*g * (1 - v.at) * u.at);                             \
                        y[(v.hi * j->w + u.lo) * j->c + c] += (T)(*g * v.at * (1 - u.at));                             \
                        y[(v.hi * j->w + u.hi) * j->c + c] += (T)(*g * v.at * u.at);                                   \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
SPREAD(float, f32)
SPREAD(double, f64)

static trn_err k_resize_bilinear_grad(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *x = trn_in(k, 1);
    trn_resize j;
    TRN_TRY(trn_resize_grad_begin(&j, k));
    trn_tensor *y;
    TRN_TRY(trn_image_out(&y, k, x->dtype, &x->shape));
    trn_err e = TRN_OK;
    if (y->count) {
        j.x = g->data;
        j.y = y->data;
        trn_k_for(k, j.n, 1, y->dtype == TRN_DOUBLE ? spread_f64 : spread_f32, &j);
        e = trn_image_done(k, y);
    }
    trn_tensor_unref(y);
    return e;
}

static void nearest_rows(void *arg, int64_t lo, int64_t hi)
{
    trn_resize *j = arg;
    size_t px = (size_t)j->c * j->size;
    for (int64_t r = lo; r < hi; r++) {
        const char *row = j->x + (size_t)((r / j->oh * j->h + nearest(r % j->oh, j->hs, j->h, j->align, j->half)) * j->w) * px;
        char *y = j->y + (size_t)(r * j->ow) * px;
        for (int64_t i = 0; i < j->ow; i++)
            memcpy(y + (size_t)i * px, row + (size_t)nearest(i, j->ws, j->w, j->align, j->half) * px, px);
    }
}
static trn_err k_resize_nearest(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_resize j;
    TRN_TRY(trn_resize_begin(&j, k));
    trn_shape s = trn_shape_of(4, j.n, j.oh, j.ow, j.c);
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!n)
        return TRN_OK;
    j.size = trn_dtype_size(x->dtype);
    j.x = x->data;
    j.y = y->data;
    trn_k_for(k, j.n * j.oh, TRN_MAX(16384 / (j.ow * j.c), (int64_t)1), nearest_rows, &j);
    return TRN_OK;
}

static void gather_nearest(void *arg, int64_t lo, int64_t hi)
{
    trn_resize *j = arg; /* from the gradient's h x w to the image's oh x ow */
    size_t px = (size_t)j->c * j->size;
    for (int64_t b = lo; b < hi; b++) {
        char *image = j->y + (size_t)(b * j->oh * j->ow) * px;
        memset(image, 0, (size_t)(j->oh * j->ow) * px);
        for (int64_t r = 0; r < j->h; r++) {
            int64_t to = nearest(r, j->hs, j->oh, j->align, j->half);
            const char *g = j->x + (size_t)((b * j->h + r) * j->w) * px;
            for (int64_t i = 0; i < j->w; i++)
                trn_accum(TRN_ACC_ADD, j->t, image + (size_t)(to * j->ow + nearest(i, j->ws, j->ow, j->align, j->half)) * px, g + (size_t)i * px, j->c);
        }
    }
}
static trn_err k_resize_nearest_grad(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0);
    trn_resize j;
    TRN_TRY(resize_attrs(&j, k->node));
    TRN_TRY(resize_dims(&j, &g->shape));
    TRN_TRY(trn_image_size(&j.oh, &j.ow, trn_in(k, 1)));
    trn_shape s = trn_shape_of(4, j.n, j.oh, j.ow, j.c);
    trn_tensor *wg = NULL, *y;
    TRN_TRY(trn_image_out(&y, k, g->dtype, &s));
    trn_err e = TRN_OK;
    if (y->count) {
        e = trn_image_in(&wg, k, g);
        if (!e) {
            j.t = y->dtype;
            j.size = trn_dtype_size(j.t);
            j.x = wg->data;
            j.y = y->data;
            j.hs = trn_resize_scale(j.oh, j.h, j.align);
            j.ws = trn_resize_scale(j.ow, j.w, j.align);
            trn_k_for(k, j.n, 1, gather_nearest, &j);
            e = trn_image_done(k, y);
        }
    }
    trn_tensor_unref(wg);
    trn_tensor_unref(y);
    return e;
}

/* ---- colour --------------------------------------------------------------------------------------------------------------------- */

#define COLOUR(T, tag)                                                                                                 \
    static void to_hsv_##tag(T *y, const T *x)                                                                         \
    {                                                                                                                  \
        T r = x[0], g = x[1], b = x[2], v = r > g ? (r > b ? r : b) : (g > b ? g : b);                                 \
        T low = r < g ? (r < b ? r : b) : (g < b ? g : b), range = v - low, h = 0, norm = 1 / (6 * range);             \
        if (range > 0)                                                                                                 \
            h = r == v ? norm * (g - b) : g == v ? norm * (b - r) + (T)(2.0 / 6.0) : norm * (r - g) + (T)(4.0 / 6.0);  \
        y[0] = h < 0 ? h + 1 : h;                                                                                      \
        y[1] = v > 0 ? range / v : 0;                                                                                  \
        y[2] = v;                                                                                                      \
    }                                                                                                                  \
    static T unit_##tag(T v) { return v < 0 ? 0 : v > 1 ? 1 : v; }                                                     \
    static void to_rgb_##tag(T *y, const T *x)                                                                         \
    {                                                                                                                  \
        T h = x[0] * 6, s = x[1], v = x[2];                                                                            \
        T a = h - 3, b = h - 2, c = h - 4;                                                                             \
        T dr = unit_##tag((a < 0 ? -a : a) - 1), dg = unit_##tag(2 - (b < 0 ? -b : b)), db = unit_##tag(2 - (c < 0 ? -c : c)); \
        y[0] = (1 - s + s * dr) * v;                                                                                   \
        y[1] = (1 - s + s * dg) * v;                                                                                   \
        y[2] = (1 - s + s * db) * v;                                                                                   \
    }                                                                                                                  \
    static void all_to_hsv_##tag(T *y, const T *x, int64_t n, float p)                                                 \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to_hsv_##tag(y + 3 * i, x + 3 * i);                                                                        \
    }                                                                                                                  \
    static void all_to_rgb_##tag(T *y, const T *x, int64_t n, float p)                                                 \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to_rgb_##tag(y + 3 * i, x + 3 * i);                                                                        \
    }
COLOUR(float, f32)
COLOUR(double, f64)

/* Turns the hue: the largest and smallest component stay, which is which follows from where the hue comes to lie. */
static void all_hue(float *y, const float *x, int64_t n, float delta)
{
    for (int64_t i = 0; i < n; i++, x += 3, y += 3) {
        float hsv[3], top = fmaxf(x[0], fmaxf(x[1], x[2])), low = fminf(x[0], fminf(x[1], x[2])), range = top - low;
        to_hsv_f32(hsv, x);
        float h = fmodf(hsv[0] * 6 + delta * 6, 6);
        h = h < 0 ? h + 6 : h;
        int sector = h >= 6 || !(h >= 0) ? 0 : (int)h;
        float part = h - (float)sector, up = low + part * range, down = low + (1 - part) * range;
        const float c[6][3] = {{top, up, low}, {down, top, low}, {low, top, up}, {low, down, top}, {up, low, top}, {top, low, down}};
        memcpy(y, c[sector], sizeof c[0]);
    }
}
static void all_saturation(float *y, const float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++) {
        float hsv[3];
        to_hsv_f32(hsv, x + 3 * i);
        hsv[1] = unit_f32(hsv[1] * scale);
        to_rgb_f32(y + 3 * i, hsv);
    }
}

typedef struct colour_job {
    void (*f32)(float *, const float *, int64_t, float);
    void (*f64)(double *, const double *, int64_t, float);
    const trn_tensor *x;
    trn_tensor *y;
    float p;
} colour_job;
static void colour_part(void *arg, int64_t lo, int64_t hi)
{
    colour_job *j = arg;
    if (j->y->dtype == TRN_DOUBLE)
        j->f64(TRN_DATA_MUT(j->y, double) + 3 * lo, TRN_DATA(j->x, double) + 3 * lo, hi - lo, j->p);
    else
        j->f32(TRN_DATA_MUT(j->y, float) + 3 * lo, TRN_DATA(j->x, float) + 3 * lo, hi - lo, j->p);
}
static trn_err colour(trn_kctx *k, colour_job j, int least)
{
    const trn_tensor *x = trn_in(k, 0);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank >= least, "input must be at least %d-D, got shape %s", least, trn_shape_text(t, &x->shape));
    if (x->shape.dim[x->shape.rank - 1] != 3)
        return trn_errorf(least == 1 ? TRN_FAILED_PRECONDITION : TRN_INVALID_ARGUMENT, "input must have 3 channels: %s", trn_shape_text(t, &x->shape));
    if (k->n_in > 1) {
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 1)), "input 1 must be scalar: %s", trn_shape_text(t, &trn_in(k, 1)->shape));
        j.p = *TRN_DATA(trn_in(k, 1), float);
    }
    trn_tensor *wx = NULL, *y;
    TRN_TRY(trn_image_out(&y, k, x->dtype, &x->shape));
    trn_err e = trn_image_in(&wx, k, x);
    if (!e) {
        j.x = wx;
        j.y = y;
        trn_k_for(k, y->count / 3, 2048, colour_part, &j);
        e = trn_image_done(k, y);
    }
    trn_tensor_unref(wx);
    trn_tensor_unref(y);
    return e;
}
static trn_err k_to_hsv(trn_kctx *k) { return colour(k, (colour_job){.f32 = all_to_hsv_f32, .f64 = all_to_hsv_f64}, 1); }
static trn_err k_to_rgb(trn_kctx *k) { return colour(k, (colour_job){.f32 = all_to_rgb_f32, .f64 = all_to_rgb_f64}, 1); }
static trn_err k_hue(trn_kctx *k) { return colour(k, (colour_job){.f32 = all_hue}, 3); }
static trn_err k_saturation(trn_kctx *k) { return colour(k, (colour_job){.f32 = all_saturation}, 3); }

/* Away from each image's and channel's mean, by a factor. The old op has float results, between a least and a greatest. */
static trn_err k_contrast(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bool old = k->n_in > 2;
    float arg[3] = {0, -INFINITY, INFINITY}; /* factor, least, greatest */
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank >= 3, "input must be at least 3-D, got shape %s", trn_shape_text(t, &x->shape));
    for (int i = 1; i < k->n_in; i++) {
        static const char *const name[] = {"contrast_factor", "min_value", "max_value"};
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, i)), "%s must be scalar: %s", name[i - 1], trn_shape_text(t, &trn_in(k, i)->shape));
        arg[i - 1] = *TRN_DATA(trn_in(k, i), float);
    }
    int rank = x->shape.rank;
    int64_t c = x->shape.dim[rank - 1], pixels = x->shape.dim[rank - 2] * x->shape.dim[rank - 3];
    trn_tensor *wx = NULL, *y;
    TRN_TRY(trn_image_out(&y, k, old ? TRN_FLOAT : x->dtype, &x->shape));
    trn_err e = trn_image_float(&wx, k, x);
    double *sum = e || !y->count ? NULL : malloc(sizeof *sum * (size_t)c);
    if (!e && y->count && !sum)
        e = trn_err_oom();
    for (int64_t b = 0; sum && b < y->count / (pixels * c); b++) {
        const float *from = TRN_DATA(wx, float) + b * pixels * c;
        float *to = TRN_DATA_MUT(y, float) + b * pixels * c;
        memset(sum, 0, sizeof *sum * (size_t)c);
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t i = 0; i < c; i++)
                sum[i] += (double)from[p * c + i];
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t i = 0; i < c; i++) {
                float mean = (float)(sum[i] / (double)pixels), v = (from[p * c + i] - mean) * arg[0] + mean;
                v = old && arg[2] < v ? arg[2] : v;
                to[p * c + i] = old && v < arg[1] ? arg[1] : v;
            }
    }
    free(sum);
    if (!e)
        e = trn_image_done(k, y);
    trn_tensor_unref(wx);
    trn_tensor_unref(y);
    return e;
}

/* ---- dilation ------------------------------------------------------------------------------------------------------------------- */

typedef enum { DILATE, DILATE_INPUT, DILATE_FILTER } dilate_kind;
typedef struct dilate_job {
    dilate_kind kind;
    trn_window w;
    int64_t n, h, wd, c, kh, kw, oh, ow, pt, pl;
    const void *x, *f, *g;
    void *y;
} dilate_job;

/* One image. The gradient goes to the place that gave the maximum: the first one. */
#define DILATE_IMAGE(op, T, U, tag, ...)                                                                               \
    static void dilate_##tag(const dilate_job *j, int64_t b)                                                           \
    {                                                                                                                  \
        const T *x = (const T *)j->x + b * j->h * j->wd * j->c, *f = j->f;                                             \
        for (int64_t r = 0; r < j->oh; r++)                                                                            \
            for (int64_t s = 0; s < j->ow; s++)                                                                        \
                for (int64_t c = 0; c < j->c; c++) {                                                                   \
                    int64_t top = r * j->w.stride[1] - j->pt, left = s * j->w.stride[2] - j->pl;                       \
                    int64_t out = ((b * j->oh + r) * j->ow + s) * j->c + c, in_at = -1, f_at = -1;                     \
                    T best = 0;                                                                                        \
                    for (int64_t p = 0; p < j->kh; p++) {                                                              \
                        int64_t iy = top + p * j->w.dil[1];                                                            \
                        if (iy < 0 || iy >= j->h)                                                                      \
                            continue;                                                                                  \
                        for (int64_t q = 0; q < j->kw; q++) {                                                          \
                            int64_t ix = left + q * j->w.dil[2];                                                       \
                            if (ix < 0 || ix >= j->wd)                                                                 \
                                continue;                                                                              \
                            int64_t at = (iy * j->wd + ix) * j->c + c, fa = (p * j->kw + q) * j->c + c;                \
                            T v = (T)((U)x[at] + (U)f[fa]);                                                            \
                            if (in_at < 0 || v > best) {                                                               \
                                best = v;                                                                              \
                                in_at = at;                                                                            \
                                f_at = fa;                                                                             \
                            }                                                                                          \
                        }                                                                                              \
                    }                                                                                                  \
                    if (j->kind == DILATE)                                                                             \
                        ((T *)j->y)[out] = best;                                                                       \
                    else if (in_at >= 0) {                                                                             \
                        T *to = (T *)j->y + (j->kind == DILATE_INPUT ? b * j->h * j->wd * j->c + in_at : f_at);        \
                        *to = (T)((U)*to + (U)((const T *)j->g)[out]);                                                 \
                    }                                                                                                  \
                }                                                                                                      \
    }
TRN_EACH_INT(DILATE_IMAGE, x, 0)
TRN_EACH_FLOAT(DILATE_IMAGE, x, 0)
typedef void (*dilate_fn)(const dilate_job *, int64_t);
static const dilate_fn dilate_of[TRN_DTYPE_END] = {TRN_TAB_INT(dilate), TRN_TAB_FLOAT(dilate)};

static void dilate_images(void *arg, int64_t lo, int64_t hi)
{
    dilate_job *j = ((void **)arg)[0];
    dilate_fn f = *(dilate_fn *)((void **)arg)[1];
    for (int64_t b = lo; b < hi; b++)
        f(j, b);
}

static trn_err dilation_window(trn_window *w, const trn_node *n)
{
    TRN_TRY(trn_window_read(w, n, 2));
    if (w->stride_n != 1 || w->stride_c != 1 || w->dil_n != 1 || w->dil_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Stride and rate are only supported across spatial dimensions.");
    return TRN_OK;
}

static trn_err dilation(trn_kctx *k, dilate_kind kind)
{
    const trn_tensor *x = trn_in(k, 0), *f = trn_in(k, 1), *g = kind == DILATE ? NULL : trn_in(k, 2);
    char t[TRN_SHAPE_TEXT];
    dilate_job j = {.kind = kind};
    int64_t d[5], after;
    TRN_TRY(dilation_window(&j.w, k->node));
    TRN_TRY(trn_window_dims(d, &j.w, &x->shape, "input"));
    TRN_CHECK_ARG(f->shape.rank == 3, "filter must be 3-dimensional: %s", trn_shape_text(t, &f->shape));
    TRN_CHECK_ARG(f->shape.dim[2] == d[4], "input and filter must have the same depth: %lld vs %lld", (long long)d[4], (long long)f->shape.dim[2]);
    j.n = d[0];
    j.h = d[2];
    j.wd = d[3];
    j.c = d[4];
    j.kh = f->shape.dim[0];
    j.kw = f->shape.dim[1];
    TRN_CHECK_ARG(j.kh <= INT32_MAX && j.kw <= INT32_MAX, "filter too large");
    TRN_TRY(trn_window_size(&j.oh, &j.pt, &after, &j.w, 1, j.h, j.kh));
    TRN_TRY(trn_window_size(&j.ow, &j.pl, &after, &j.w, 2, j.wd, j.kw));
    trn_shape os = trn_shape_of(4, j.n, j.oh, j.ow, j.c);
    TRN_CHECK_ARG(!g || trn_shape_eq(&g->shape, &os), "out_backprop has incompatible size: %s", trn_shape_text(t, &g->shape));
    const trn_shape *s = kind == DILATE ? &os : kind == DILATE_INPUT ? &x->shape : &f->shape;
    trn_tensor *wx = NULL, *wf = NULL, *wg = NULL, *y;
    TRN_TRY(trn_image_out(&y, k, x->dtype, s));
    trn_err e = trn_image_in(&wx, k, x);
    if (!e)
        e = trn_image_in(&wf, k, f);
    if (!e && g)
        e = trn_image_in(&wg, k, g);
    if (!e && y->count) {
        trn_zero_elems(y, 0, y->count);
        j.x = wx->data;
        j.f = wf->data;
        j.g = wg ? wg->data : NULL;
        j.y = y->data;
        dilate_fn fn = dilate_of[y->dtype];
        void *arg[] = {&j, &fn};
        if (kind == DILATE_FILTER) /* all images add to one filter */
            dilate_images(arg, 0, j.n);
        else
            trn_k_for(k, j.n, 1, dilate_images, arg);
        e = trn_image_done(k, y);
    }
    trn_tensor_unref(wx);
    trn_tensor_unref(wf);
    trn_tensor_unref(wg);
    trn_tensor_unref(y);
    return e;
}
static trn_err k_dilation(trn_kctx *k) { return dilation(k, DILATE); }
static trn_err k_dilation_input(trn_kctx *k) { return dilation(k, DILATE_INPUT); }
static trn_err k_dilation_filter(trn_kctx *k) { return dilation(k, DILATE_FILTER); }

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

trn_err trn_sh_sized(trn_shctx *s, int size, int64_t batch)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    const trn_tensor *v = s->value[size];
    int64_t h = -1, w = -1;
    if (v && trn_is_vector(v) && v->count == 2)
        TRN_TRY(trn_image_size(&h, &w, v));
    s->out[0] = trn_shape_of(4, batch, h, w, s->in[0].rank < 0 ? (int64_t)-1 : s->in[0].dim[3]);
    return TRN_OK;
}
trn_err trn_sh_resize(trn_shctx *s) { return trn_sh_sized(s, 1, s->in[0].rank != 4 ? -1 : s->in[0].dim[0]); }
static trn_err sh_dilation(trn_shctx *s)
{
    trn_window w;
    TRN_TRY(dilation_window(&w, s->node));
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    TRN_TRY(trn_sh_rank_of(s, 1, 3));
    const trn_shape *x = &s->in[0], *f = &s->in[1];
    int64_t d[4] = {-1, -1, -1, -1}, pad, after;
    for (int i = 0; i < 4 && x->rank == 4; i++)
        if (i == 0 || i == 3)
            d[i] = x->dim[i];
        else if (x->dim[i] >= 0 && x->dim[i] <= INT32_MAX && f->rank == 3 && f->dim[i - 1] >= 0 && f->dim[i - 1] <= INT32_MAX)
            TRN_TRY(trn_window_size(&d[i], &pad, &after, &w, i, x->dim[i], f->dim[i - 1]));
    s->out[0] = trn_shape_of(4, d[0], d[1], d[2], d[3]);
    return TRN_OK;
}

#define FLAGS "align_corners:bool=false, half_pixel_centers:bool=false"
#define DILATION "T:real, strides:list(int)>=4, rates:list(int)>=4, padding:{SAME,VALID}"

const trn_op trn_ops_image[] = {
    {"ResizeBilinear", "images:T, size:i32 -> resized_images:f32; T:i8|u8|i16|u16|i32|i64|f16|bf16|f32|f64, " FLAGS, trn_sh_resize, k_resize_bilinear, 0},
    {"ResizeBilinearGrad", "grads:f32, original_image:T -> output:T; T:float, " FLAGS, trn_sh_like1, k_resize_bilinear_grad, 0},
    {"ResizeNearestNeighbor", "images:T, size:i32 -> resized_images:T; T:i8|u8|i16|u16|i32|i64|f16|bf16|f32|f64, " FLAGS, trn_sh_resize, k_resize_nearest, 0},
    {"ResizeNearestNeighborGrad", "grads:T, size:i32 -> output:T; T:u8|i8|i32|f16|bf16|f32|f64, " FLAGS, trn_sh_resize, k_resize_nearest_grad, 0},
    {"AdjustContrast", "images:T, contrast_factor:f32, min_value:f32, max_value:f32 -> output:f32; T:u8|i8|i16|i32|f32|f64", trn_sh_same, k_contrast, 0},
    {"AdjustContrastv2", "images:T, contrast_factor:f32 -> output:T; T:f16|f32=f32", trn_sh_same, k_contrast, 0},
    {"AdjustHue", "images:T, delta:f32 -> output:T; T:f16|f32=f32", trn_sh_same, k_hue, 0},
    {"AdjustSaturation", "images:T, scale:f32 -> output:T; T:f16|f32=f32", trn_sh_same, k_saturation, 0},
    {"RGBToHSV", "images:T -> output:T; T:float=f32", trn_sh_same, k_to_hsv, 0},
    {"HSVToRGB", "images:T -> output:T; T:float=f32", trn_sh_same, k_to_rgb, 0},
    {"Dilation2D", "input:T, filter:T -> output:T; " DILATION, sh_dilation, k_dilation, 0},
    {"Dilation2DBackpropInput", "input:T, filter:T, out_backprop:T -> in_backprop:T; " DILATION, trn_sh_same, k_dilation_input, 0},
    {"Dilation2DBackpropFilter", "input:T, filter:T, out_backprop:T -> filter_backprop:T; " DILATION, trn_sh_like1, k_dilation_filter, 0},
    {0},
};
