/* Parts of images: boxes cut out and resized, images seen through a projective transform, glimpses, a random part. Rows of the output are what is
 * divided among threads; coordinates are computed as TensorFlow computes them, since a pixel more or less depends on the last bit. */
#include <stdlib.h>

#include "base/base.h"
#include "ops/image.h"
#include "ops/random.h"

/* ---- crops ---------------------------------------------------------------------------------------------------------------------- */

typedef struct crop_job {
    int64_t n, ch, cw, c, h, w; /* n crops of ch x cw, out of images of h x w */
    int64_t images;
    bool nearest;
    float outside;
    const float *box;
    const int32_t *of; /* which image */
    const float *x, *g;
    void *y;
} crop_job;

/* Where a row (or column) of a crop lies among those of the image: between lo and hi, `at` of the way. */
typedef struct place {
    int64_t lo, hi, near;
    float at;
} place;

/* Step i of n from a to b, which are parts of an image of len pixels. `ratio`: the step is computed by the ratio of both,
 * as in the gradient of boxes. False: outside. */
static bool place_of(place *p, float a, float b, int64_t i, int64_t n, int64_t len, bool ratio)
{
    float last = (float)(len - 1), x;
    if (n > 1) {
        float step = ratio ? (b - a) * (last / (float)(n - 1)) : (b - a) * last / (float)(n - 1);
        x = a * last + (float)i * step;
    } else {
        x = (float)(0.5 * (double)(a + b) * (double)(len - 1));
    }
    if (!(x >= 0 && x <= last))
        return false;
    *p = (place){trn_clamp((int64_t)floorf(x), len), trn_clamp((int64_t)ceilf(x), len), trn_clamp((int64_t)roundf(x), len), x - floorf(x)};
    return true;
}

static void lerp(float *y, const float *tl, const float *tr, const float *bl, const float *br, float fx, float fy, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float top = tl[i] + (tr[i] - tl[i]) * fx, bottom = bl[i] + (br[i] - bl[i]) * fx;
        y[i] = top + (bottom - top) * fy;
    }
}

static void crop_rows(void *arg, int64_t lo, int64_t hi)
{
    const crop_job *j = arg;
    for (int64_t r = lo; r < hi; r++) {
        const float *b = j->box + r / j->ch * 4, *image = j->x + j->of[r / j->ch] * j->h * j->w * j->c;
        float *y = (float *)j->y + r * j->cw * j->c;
        place v, u;
        bool in = place_of(&v, b[0], b[2], r % j->ch, j->ch, j->h, false);
        for (int64_t i = 0; i < j->cw; i++, y += j->c) {
            if (!in || !place_of(&u, b[1], b[3], i, j->cw, j->w, false)) {
                for (int64_t c = 0; c < j->c; c++)
                    y[c] = j->outside;
            } else if (j->nearest) {
                memcpy(y, image + (v.near * j->w + u.near) * j->c, sizeof *y * (size_t)j->c);
            } else {
                const float *top = image + v.lo * j->w * j->c, *bottom = image + v.hi * j->w * j->c;
                lerp(y, top + u.lo * j->c, top + u.hi * j->c, bottom + u.lo * j->c, bottom + u.hi * j->c, u.at, v.at, j->c);
            }
        }
    }
}

#define UNCROP(T, tag)                                                                                                 \
    static void uncrop_box_##tag(const crop_job *j, int64_t n)                                                         \
    {                                                                                                                  \
        const float *b = j->box + n * 4, *g = j->g + n * j->ch * j->cw * j->c;                                         \
        T *image = (T *)j->y + j->of[n] * j->h * j->w * j->c;                                                          \
        for (int64_t r = 0; r < j->ch; r++)                                                                            \
            for (int64_t i = 0; i < j->cw; i++, g += j->c) {                                                           \
                place v, u;                                                                                            \
                if (!place_of(&v, b[0], b[2], r, j->ch, j->h, false) || !place_of(&u, b[1], b[3], i, j->cw, j->w, false)) \
                    continue;                                                                                          \
                if (j->nearest) {                                                                                      \
                    T *y = image + (v.near * j->w + u.near) * j->c;                                                    \
                    for (int64_t c = 0; c < j->c; c++)                                                                 \
                        y[c] += (T)g[c];                                                                               \
                    continue;                                                                                          \
                }                                                                                                      \
                T *tl = image + (v.lo * j->w + u.lo) * j->c, *tr = image + (v.lo * j->w + u.hi) * j->c;                \
                T *bl = image + (v.hi * j->w + u.lo) * j->c, *br = image + (v.hi * j->w + u.hi) * j->c;                \
                for (int64_t c = 0; c < j->c; c++) {                                                                   \
                    float top = (1 - v.at) * g[c], bottom = v.at * g[c];                                               \
                    tl[c] += (T)((1 - u.at) * top);                                                                    \
                    tr[c] += (T)(u.at * top);                                                                          \
                    bl[c] += (T)((1 - u.at) * bottom);                                                                 \
                    br[c] += (T)(u.at * bottom);                                                                       \
                }                                                                                                      \
            }                                                                                                          \
    }                                                                                                                  \
    static void uncrop_images_##tag(void *arg, int64_t lo, int64_t hi)                                                 \
    {                                                                                                                  \
        const crop_job *j = arg;                                                                                       \
        memset((T *)j->y + lo * j->h * j->w * j->c, 0, sizeof(T) * (size_t)((hi - lo) * j->h * j->w * j->c));          \
        for (int64_t n = 0; n < j->n; n++)                                                                             \
            if (j->of[n] >= lo && j->of[n] < hi)                                                                       \
                uncrop_box_##tag(j, n);                                                                                \
    }
UNCROP(float, f32)
UNCROP(double, f64)

static void crop_box_grads(void *arg, int64_t lo, int64_t hi)
{
    const crop_job *j = arg;
    for (int64_t n = lo; n < hi; n++) {
        const float *b = j->box + n * 4, *g = j->g + n * j->ch * j->cw * j->c, *image = j->x + j->of[n] * j->h * j->w * j->c;
        float *y = (float *)j->y + n * 4, fh = (float)(j->h - 1), fw = (float)(j->w - 1);
        float rh = j->ch > 1 ? fh / (float)(j->ch - 1) : 0, rw = j->cw > 1 ? fw / (float)(j->cw - 1) : 0;
        memset(y, 0, 4 * sizeof *y);
        for (int64_t r = 0; r < j->ch; r++)
            for (int64_t i = 0; i < j->cw; i++, g += j->c) {
                place v, u;
                if (!place_of(&v, b[0], b[2], r, j->ch, j->h, true) || !place_of(&u, b[1], b[3], i, j->cw, j->w, true))
                    continue;
                const float *tl = image + (v.lo * j->w + u.lo) * j->c, *tr = image + (v.lo * j->w + u.hi) * j->c;
                const float *bl = image + (v.hi * j->w + u.lo) * j->c, *br = image + (v.hi * j->w + u.hi) * j->c;
                for (int64_t c = 0; c < j->c; c++) {
                    float dy = ((1 - u.at) * (bl[c] - tl[c]) + u.at * (br[c] - tr[c])) * g[c];
                    float dx = ((1 - v.at) * (tr[c] - tl[c]) + v.at * (br[c] - bl[c])) * g[c];
                    y[0] += j->ch > 1 ? dy * (fh - (float)r * rh) : dy * 0.5f * fh;
                    y[2] += j->ch > 1 ? dy * ((float)r * rh) : dy * 0.5f * fh;
                    y[1] += j->cw > 1 ? dx * (fw - (float)i * rw) : dx * 0.5f * fw;
                    y[3] += j->cw > 1 ? dx * ((float)i * rw) : dx * 0.5f * fw;
                }
            }
    }
}

/* Boxes and the images they are of. */
static trn_err crop_boxes(crop_job *j, const trn_tensor *box, const trn_tensor *of)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(of->shape.rank == 1, "box_indices must be rank 1 but is shape %s", trn_shape_text(t, &of->shape));
    TRN_CHECK_ARG(box->shape.rank == 2, "boxes must be 2-D, not %s", trn_shape_text(t, &box->shape));
    j->n = of->count;
    j->box = box->data;
    j->of = of->data;
    if (!box->count && !of->count)
        return TRN_OK;
    TRN_CHECK_ARG(box->shape.dim[1] == 4, "boxes must have 4 columns: %s", trn_shape_text(t, &box->shape));
    TRN_CHECK_ARG(box->shape.dim[0] == j->n, "box_index has incompatible shape: %lld for %s", (long long)j->n, trn_shape_text(t, &box->shape));
    return TRN_OK;
}
static trn_err crop_indices(const crop_job *j)
{
    for (int64_t i = 0; i < j->n; i++)
        if (j->of[i] < 0 || j->of[i] >= j->images)
            return trn_errorf(TRN_OUT_OF_RANGE, "box_index has values outside [0, batch_size): %d of %lld", (int)j->of[i], (long long)j->images);
    return TRN_OK;
}
static trn_err crop_image(crop_job *j, const trn_shape *s)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->rank == 4, "input image must be 4-D, not %s", trn_shape_text(t, s));
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(s->dim[i] <= INT32_MAX, "image dimensions must fit in 32 bits: %s", trn_shape_text(t, s));
    j->images = s->dim[0];
    j->h = s->dim[1];
    j->w = s->dim[2];
    TRN_CHECK_ARG(j->h > 0 && j->w > 0, "image dimensions must be positive: %s", trn_shape_text(t, s));
    return TRN_OK;
}
static trn_err crop_grads(crop_job *j, const trn_tensor *g)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(g->shape.rank == 4, "grads image must be 4-D, not %s", trn_shape_text(t, &g->shape));
    j->ch = g->shape.dim[1];
    j->cw = g->shape.dim[2];
    j->c = g->shape.dim[3];
    TRN_CHECK_ARG(j->ch > 0 && j->cw > 0, "grads dimensions must be positive: %s", trn_shape_text(t, &g->shape));
    j->g = g->data;
    return TRN_OK;
}

static trn_err k_crop_and_resize(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *box = trn_in(k, 1), *size = trn_in(k, 3);
    crop_job j = {.nearest = !strcmp(trn_attr_str(k->node, "method"), "nearest"), .outside = trn_attr_float(k->node, "extrapolation_value")};
    char t[TRN_SHAPE_TEXT];
    TRN_TRY(crop_image(&j, &x->shape));
    TRN_TRY(crop_boxes(&j, box, trn_in(k, 2)));
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 2, "crop_size must be 1-D and must have two elements, not %s", trn_shape_text(t, &size->shape));
    j.ch = TRN_DATA(size, int32_t)[0];
    j.cw = TRN_DATA(size, int32_t)[1];
    j.c = x->shape.dim[3];
    TRN_CHECK_ARG(j.ch > 0 && j.cw > 0, "crop dimensions must be positive: %lld, %lld", (long long)j.ch, (long long)j.cw);
    trn_shape s = trn_shape_of(4, j.n, j.ch, j.cw, j.c);
    int64_t count;
    trn_tensor *y, *wide;
    TRN_TRY(trn_count_checked(&count, &s));
    TRN_TRY(crop_indices(&j));
    for (int64_t i = 0; i < box->count; i++)
        TRN_CHECK_ARG(isfinite(j.box[i]), "Boxes contains at least one element that is not finite");
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    if (!count)
        return TRN_OK;
    TRN_TRY(trn_image_float(&wide, k, x));
    j.x = wide->data;
    j.y = y->data;
    trn_k_for(k, j.n * j.ch, TRN_MAX(8192 / (j.cw * j.c), (int64_t)1), crop_rows, &j);
    trn_tensor_unref(wide);
    return TRN_OK;
}

static trn_err k_crop_grad_image(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *size = trn_in(k, 3);
    crop_job j = {.nearest = !strcmp(trn_attr_str(k->node, "method"), "nearest")};
    char t[TRN_SHAPE_TEXT];
    TRN_TRY(crop_grads(&j, g));
    TRN_TRY(crop_boxes(&j, trn_in(k, 1), trn_in(k, 2)));
    TRN_CHECK_ARG(g->shape.dim[0] == j.n, "boxes and grads have incompatible shape: %lld, %s", (long long)j.n, trn_shape_text(t, &g->shape));
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 4, "image_size must be 1-D and must have 4 elements, not %s", trn_shape_text(t, &size->shape));
    trn_shape s;
    TRN_TRY(trn_shape_from(&s, size, false));
    TRN_TRY(crop_image(&j, &s));
    TRN_CHECK_ARG(s.dim[3] == j.c, "image_size and grads are incompatible: %lld, %s", (long long)s.dim[3], trn_shape_text(t, &g->shape));
    TRN_TRY(crop_indices(&j));
    trn_tensor *y;
    TRN_TRY(trn_image_out(&y, k, trn_attr_type(k->node, "T"), &s));
    trn_err e = TRN_OK;
    if (y->count) {
        j.y = y->data;
        trn_k_for(k, j.images, 1, y->dtype == TRN_DOUBLE ? uncrop_images_f64 : uncrop_images_f32, &j);
        e = trn_image_done(k, y);
    }
    trn_tensor_unref(y);
    return e;
}

static trn_err k_crop_grad_boxes(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0), *x = trn_in(k, 1);
    crop_job j = {0};
    char t[TRN_SHAPE_TEXT];
    TRN_TRY(crop_grads(&j, g));
    TRN_TRY(crop_image(&j, &x->shape));
    TRN_CHECK_ARG(x->shape.dim[3] == j.c, "image, grads depth differ: %lld, %lld", (long long)x->shape.dim[3], (long long)j.c);
    TRN_TRY(crop_boxes(&j, trn_in(k, 2), trn_in(k, 3)));
    TRN_CHECK_ARG(g->shape.dim[0] == j.n, "boxes and grads have incompatible shape: %lld, %s", (long long)j.n, trn_shape_text(t, &g->shape));
    TRN_TRY(crop_indices(&j));
    trn_shape s = trn_shape_of(2, j.n, (int64_t)4);
    trn_tensor *y, *wide;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    if (!y->count)
        return TRN_OK;
    TRN_TRY(trn_image_float(&wide, k, x));
    j.x = wide->data;
    j.y = y->data;
    trn_k_for(k, j.n, 1, crop_box_grads, &j);
    trn_tensor_unref(wide);
    return TRN_OK;
}

/* ---- projective transforms ------------------------------------------------------------------------------------------------------ */

typedef enum { FILL_CONSTANT, FILL_NEAREST, FILL_REFLECT, FILL_WRAP } fill_mode;
typedef struct warp_job {
    int64_t n, h, w, c, oh, ow;
    bool bilinear;
    fill_mode fill;
    const float *by; /* eight numbers an image */
    int64_t step;    /* from one image's to the next's: 0 when all have the same */
    float value;
    const void *x;
    void *y;
} warp_job;

/* A coordinate outside comes from somewhere inside. */
static float inside(float v, int64_t n, fill_mode m)
{
    float top = (float)(n - 1), two = (float)(2 * n), one = (float)n;
    if (m == FILL_CONSTANT)
        return v;
    if (m == FILL_REFLECT && n > 1 && v < 0) {
        v = (float)(int64_t)((uint64_t)(2 * n) * (uint64_t)trn_i64_of(-v / two)) + v;
        v = v < -one ? v + two : -v - 1;
    } else if (m == FILL_REFLECT && n > 1 && v > top) {
        v -= (float)(int64_t)((uint64_t)(2 * n) * (uint64_t)trn_i64_of(v / two));
        v = v >= one ? two - v - 1 : v;
    } else if (m == FILL_WRAP && n > 1 && v < 0) {
        v += (float)(int64_t)((uint64_t)n * ((uint64_t)trn_i64_of(-v / top) + 1));
    } else if (m == FILL_WRAP && n > 1 && v > top) {
        v -= (float)(int64_t)((uint64_t)n * (uint64_t)trn_i64_of(v / top));
    } else if (m != FILL_NEAREST && n <= 1 && (v < 0 || v > top)) {
        v = 0;
    }
    v = v < 0 ? 0 : v;
    return top < v ? top : v;
}

/* Where pixel (r, i) of an output image lies in the input; false: infinitely far. */
static bool warped(float *y, float *x, const warp_job *j, const float *t, int64_t r, int64_t i)
{
    float fx = (float)i, fy = (float)r, d = t[6] * fx + t[7] * fy + 1;
    if (d == 0)
        return false;
    *x = inside((t[0] * fx + t[1] * fy + t[2]) / d, j->w, j->fill);
    *y = inside((t[3] * fx + t[4] * fy + t[5]) / d, j->h, j->fill);
    return true;
}

static int64_t pixel_at(const warp_job *j, float y, float x)
{
    int64_t r = trn_i64_of(y), i = trn_i64_of(x);
    return r >= 0 && r < j->h && i >= 0 && i < j->w ? (r * j->w + i) * j->c : -1;
}

static float float_of_half(trn_half v) { return trn_half_to_f32(v); }
#define AS_FLOAT(v) ((float)(v))
#define AS_U8(v) ((uint8_t)trn_i32_of((double)(v)))
#define AS_I32(v) trn_i32_of((double)(v))
#define AS_F64(v) ((double)(v))
#define AS_F32(v) (v)

#define WARP(T, tag, LOAD, STORE)                                                                                      \
    static void warp_##tag(void *arg, int64_t lo, int64_t hi)                                                          \
    {                                                                                                                  \
        const warp_job *j = arg;                                                                                       \
        T none = STORE(j->value);                                                                                      \
        for (int64_t r = lo; r < hi; r++) {                                                                            \
            const T *image = (const T *)j->x + r / j->oh * j->h * j->w * j->c;                                         \
            const float *t = j->by + r / j->oh * j->step;                                                              \
            T *out = (T *)j->y + r * j->ow * j->c;                                                                     \
            for (int64_t i = 0; i < j->ow; i++, out += j->c) {                                                         \
                float y, x;                                                                                            \
                bool near = warped(&y, &x, j, t, r % j->oh, i);                                                        \
                if (near && j->bilinear) {                                                                             \
                    float y0 = floorf(y), x0 = floorf(x), y1 = y0 + 1, x1 = x0 + 1;                                    \
                    int64_t tl = pixel_at(j, y0, x0), tr = pixel_at(j, y0, x1), bl = pixel_at(j, y1, x0), br = pixel_at(j, y1, x1); \
                    for (int64_t c = 0; c < j->c; c++) {                                                               \
                        float a = LOAD(tl < 0 ? none : image[tl + c]), b = LOAD(tr < 0 ? none : image[tr + c]);        \
                        float e = LOAD(bl < 0 ? none : image[bl + c]), f = LOAD(br < 0 ? none : image[br + c]);        \
                        float top = (x1 - x) * a + (x - x0) * b, bottom = (x1 - x) * e + (x - x0) * f;                 \
                        float v = (y1 - y) * top + (y - y0) * bottom;                                                  \
                        out[c] = STORE(v);                                                                             \
                    }                                                                                                  \
                } else {                                                                                               \
                    int64_t at = near ? pixel_at(j, roundf(y), roundf(x)) : -1;                                        \
                    for (int64_t c = 0; c < j->c; c++)                                                                 \
                        out[c] = at < 0 ? none : image[at + c];                                                        \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
WARP(uint8_t, u8, AS_FLOAT, AS_U8)
WARP(int32_t, i32, AS_FLOAT, AS_I32)
WARP(int64_t, i64, AS_FLOAT, trn_i64_of)
WARP(trn_half, f16, float_of_half, trn_half_from_f32)
WARP(float, f32, AS_F32, AS_F32)
WARP(double, f64, AS_FLOAT, AS_F64)
static void (*const warp_of[TRN_DTYPE_END])(void *, int64_t, int64_t) = {[TRN_UINT8] = warp_u8, [TRN_INT32] = warp_i32, [TRN_INT64] = warp_i64,
                                                                         [TRN_HALF] = warp_f16, [TRN_FLOAT] = warp_f32, [TRN_DOUBLE] = warp_f64};

static trn_err warp_attrs(warp_job *j, const trn_node *n)
{
    const char *how = trn_attr_str(n, "interpolation"), *fill = trn_attr_str(n, "fill_mode");
    static const char *const fills[] = {"CONSTANT", "NEAREST", "REFLECT", "WRAP"};
    j->bilinear = !strcmp(how, "BILINEAR");
    TRN_CHECK_ARG(j->bilinear || !strcmp(how, "NEAREST"), "Invalid interpolation %s: NEAREST and BILINEAR are known", how);
    for (int i = 0; i < 4; i++)
        if (!strcmp(fill, fills[i])) {
            j->fill = (fill_mode)i;
            return TRN_OK;
        }
    return TRN_BAD("Invalid fill_mode %s: REFLECT, WRAP, CONSTANT and NEAREST are known", fill);
}

static trn_err k_warp(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *by = trn_in(k, 1), *size = trn_in(k, 2);
    warp_job j = {0};
    char t[TRN_SHAPE_TEXT];
    TRN_TRY(warp_attrs(&j, k->node));
    TRN_CHECK_ARG(x->shape.rank == 4, "Input images must have rank 4, not %s", trn_shape_text(t, &x->shape));
    j.n = x->shape.dim[0];
    j.h = x->shape.dim[1];
    j.w = x->shape.dim[2];
    j.c = x->shape.dim[3];
    TRN_CHECK_ARG(j.h <= INT32_MAX && j.w <= INT32_MAX, "images must fit in 32 bits: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(by->shape.rank == 2 && (by->shape.dim[0] == j.n || by->shape.dim[0] == 1) && by->shape.dim[1] == 8,
                  "Input transform should be num_images x 8 or 1 x 8, not %s", trn_shape_text(t, &by->shape));
    TRN_TRY(trn_image_size(&j.oh, &j.ow, size));
    if (k->n_in > 3) {
        TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 3)), "fill_value must be a scalar, not %s", trn_shape_text(t, &trn_in(k, 3)->shape));
        j.value = *TRN_DATA(trn_in(k, 3), float);
    }
    trn_shape s = trn_shape_of(4, j.n, j.oh, j.ow, j.c);
    int64_t n;
    trn_tensor *y;
    TRN_TRY(trn_count_checked(&n, &s));
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!n)
        return TRN_OK;
    j.by = by->data;
    j.step = by->shape.dim[0] == 1 ? 0 : 8;
    j.x = x->data;
    j.y = y->data;
    trn_k_for(k, j.n * j.oh, TRN_MAX(4096 / (j.ow * j.c), (int64_t)1), warp_of[x->dtype], &j);
    return TRN_OK;
}

/* ---- glimpses ------------------------------------------------------------------------------------------------------------------- */

typedef enum { NOISE_ZERO, NOISE_UNIFORM, NOISE_GAUSSIAN } noise_kind;

static trn_err noise_of(noise_kind *out, const trn_node *n)
{
    bool uniform = trn_attr_bool(n, "uniform_noise");
    const char *noise = trn_attr_str(n, "noise");
    TRN_CHECK_ARG(!uniform || !*noise || !strcmp(noise, "uniform"), "The uniform_noise and noise could not be specified at the same time: %s", noise);
    if (!*noise)
        *out = uniform ? NOISE_UNIFORM : NOISE_GAUSSIAN;
    else if (!strcmp(noise, "uniform"))
        *out = NOISE_UNIFORM;
    else if (!strcmp(noise, "gaussian"))
        *out = NOISE_GAUSSIAN;
    else if (!strcmp(noise, "zero"))
        *out = NOISE_ZERO;
    else
        return TRN_BAD("The noise could only be uniform, gaussian, or zero, got %s", noise);
    return TRN_OK;
}

/* One channel, or all when `step` is 1: y[i] for every step-th i below n, like the numbers of x below m. */
static void make_noise(float *y, int64_t n, const float *x, int64_t m, int64_t step, noise_kind kind, trn_philox1 *gen)
{
    float lo = INFINITY, hi = -INFINITY;
    double sum = 0, squares = 0, count = 0;
    for (int64_t i = 0; i < m; i += step, count++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
        sum += (double)x[i];
    }
    double mean = count > 0 ? sum / count : 0;
    for (int64_t i = 0; i < m; i += step)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    float sigma = count > 0 ? (float)sqrt(squares / count) : 0;
    for (int64_t i = 0; i < n; i += step)
        if (kind == NOISE_ZERO || count == 0) {
            y[i] = 0;
        } else if (kind == NOISE_UNIFORM) {
            y[i] = lo + trn_philox_f32(trn_philox1_next(gen)) * (hi - lo);
        } else {
            float a, b;
            trn_box_muller_f32(trn_philox1_next(gen), trn_philox1_next(gen), &a, &b);
            y[i] = fmaxf(fminf((float)mean + a * sigma, hi), lo);
        }
}

/* Along one dim: where a window of `size` pixels begins. */
static int64_t glimpse_at(float at, int64_t in, int64_t size, bool first, bool normalized, bool centered)
{
    if (normalized)
        at *= (float)in;
    if (centered && (first || normalized))
        at /= 2;
    if (centered)
        at += (float)in / 2;
    if (first || (centered && normalized)) /* the second version forgets it for the others */
        at -= (float)size / 2;
    const float far = 0x1p40f;
    return at > -far && at < far ? (int64_t)at : at >= far ? (int64_t)far : -(int64_t)far;
}

static trn_err k_glimpse(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *size = trn_in(k, 1), *at = trn_in(k, 2);
    char t[TRN_SHAPE_TEXT];
    noise_kind noise;
    TRN_TRY(noise_of(&noise, k->node));
    TRN_CHECK_ARG(x->shape.rank == 4, "input must be 4-dimensional (batch_size, height, width, depth), not %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 2, "input must be a vector of size 2 (height, width), not %s", trn_shape_text(t, &size->shape));
    int64_t n = x->shape.dim[0], c = x->shape.dim[3], in[2] = {x->shape.dim[1], x->shape.dim[2]}, out[2] = {TRN_DATA(size, int32_t)[0], TRN_DATA(size, int32_t)[1]};
    TRN_CHECK_ARG(out[0] >= 0 && out[1] >= 0, "glimpses of %lld x %lld", (long long)out[0], (long long)out[1]);
    TRN_CHECK_ARG(in[0] <= INT32_MAX && in[1] <= INT32_MAX, "images must fit in 32 bits: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(at->shape.rank == 2 && at->shape.dim[0] == n && at->shape.dim[1] == 2,
                  "input must be a matrix; first dimension should be batch, second dimension should be of size 2 (y,x): %s",
                  trn_shape_text(t, &at->shape));
    trn_shape s = trn_shape_of(4, n, out[0], out[1], c);
    int64_t count;
    trn_tensor *y;
    TRN_TRY(trn_count_checked(&count, &s));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    if (!count)
        return TRN_OK;
    bool first = !strcmp(k->node->op, "ExtractGlimpse"), normalized = trn_attr_bool(k->node, "normalized"), centered = trn_attr_bool(k->node, "centered");
    trn_philox1 gen = trn_philox1_of(trn_philox_seed(noise == NOISE_ZERO ? 0 : trn_random64(), 0));
    for (int64_t b = 0; b < n; b++) {
        const float *image = TRN_DATA(x, float) + b * in[0] * in[1] * c;
        float *to = TRN_DATA_MUT(y, float) + b * out[0] * out[1] * c;
        int64_t from[2], base[2], len[2];
        bool whole = true;
        for (int d = 0; d < 2; d++) { /* what of the window lies in the image */
            int64_t begin = glimpse_at(TRN_DATA(at, float)[2 * b + d], in[d], out[d], first, normalized, centered), end = TRN_MIN(begin + out[d], in[d]);
            from[d] = TRN_MAX(begin, (int64_t)0);
            base[d] = TRN_MIN(from[d] - begin, out[d]);
            len[d] = TRN_MAX(end - from[d], (int64_t)0);
            whole = whole && len[d] == out[d];
        }
        if (!whole)
            for (int64_t i = 0; i < (noise == NOISE_GAUSSIAN ? c : 1); i++)
                make_noise(to + i, out[0] * out[1] * c - i, image + i, in[0] * in[1] * c - i, noise == NOISE_GAUSSIAN ? c : 1, noise, &gen);
        for (int64_t r = 0; r < len[0] && len[1]; r++)
            memcpy(to + ((base[0] + r) * out[1] + base[1]) * c, image + ((from[0] + r) * in[1] + from[1]) * c, sizeof(float) * (size_t)(len[1] * c));
    }
    return TRN_OK;
}

/* ---- a random part -------------------------------------------------------------------------------------------------------------- */

static trn_err k_random_crop(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *size = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 3, "input must be 3-dimensional: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(trn_is_vector(size) && size->count == 2, "shape_t must be 1-dimensional with two elements, not %s", trn_shape_text(t, &size->shape));
    int64_t h = TRN_DATA(size, int64_t)[0], w = TRN_DATA(size, int64_t)[1], c = x->shape.dim[2];
    TRN_CHECK_ARG(h >= 0 && w >= 0, "a crop of %lld x %lld", (long long)h, (long long)w);
    if (x->shape.dim[1] < w)
        return trn_errorf(TRN_FAILED_PRECONDITION, "width must be >= target_width: width = %lld, target_width = %lld", (long long)x->shape.dim[1], (long long)w);
    if (x->shape.dim[0] < h)
        return trn_errorf(TRN_FAILED_PRECONDITION, "height must be >= target_height: height = %lld, target_height = %lld", (long long)x->shape.dim[0], (long long)h);
    trn_philox1 gen = trn_philox1_of(trn_random_reserve(k, 1));
    trn_shape s = trn_shape_of(3, h, w, c);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!y->count)
        return TRN_OK;
    int64_t left = x->shape.dim[1] > w ? trn_philox1_next(&gen) % (x->shape.dim[1] - w + 1) : 0,
        top = x->shape.dim[0] > h ? trn_philox1_next(&gen) % (x->shape.dim[0] - h + 1) : 0;
    int64_t xs[3], ys[3];
    trn_row_strides(xs, &x->shape);
    trn_row_strides(ys, &s);
    return trn_block_copy(k, y, 0, ys, x, top * xs[0] + left * xs[1], xs, s.dim, 3);
}

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

static int64_t dim_of(const trn_shape *s, int i) { return s->rank > i ? s->dim[i] : -1; }

static trn_err sh_crop(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 1, 2));
    TRN_TRY(trn_sh_rank_of(s, 2, 1));
    TRN_TRY(trn_sh_rank_of(s, 3, 1));
    trn_shape a = trn_shape_vector(dim_of(&s->in[1], 0)), b = trn_shape_vector(dim_of(&s->in[2], 0)), n;
    TRN_TRY(trn_sh_meet(&n, &a, &b));
    return trn_sh_sized(s, 3, n.dim[0]);
}
static trn_err sh_crop_image(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 3, 1));
    trn_sh_value(&s->out[0], s, 3);
    return TRN_OK;
}
static trn_err sh_crop_boxes(trn_shctx *s)
{
    s->out[0] = s->in[2];
    return TRN_OK;
}
static trn_err sh_warp(trn_shctx *s) { return trn_sh_sized(s, 2, dim_of(&s->in[0], 0)); }
static trn_err sh_glimpse(trn_shctx *s)
{
    noise_kind noise;
    TRN_TRY(noise_of(&noise, s->node));
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    TRN_TRY(trn_sh_rank_of(s, 2, 2));
    const trn_tensor *v = s->value[1];
    bool known = v && trn_is_vector(v) && v->count == 2;
    s->out[0] = trn_shape_of(4, dim_of(&s->in[0], 0), known ? (int64_t)TRN_DATA(v, int32_t)[0] : (int64_t)-1,
                             known ? (int64_t)TRN_DATA(v, int32_t)[1] : (int64_t)-1, dim_of(&s->in[0], 3));
    for (int i = 1; i < 3; i++)
        s->out[0].dim[i] = TRN_MAX(s->out[0].dim[i], (int64_t)-1);
    return TRN_OK;
}
static trn_err sh_random_crop(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 3));
    const trn_tensor *v = s->value[1];
    bool known = v && trn_is_vector(v) && v->count == 2;
    s->out[0] = trn_shape_of(3, known ? TRN_MAX(TRN_DATA(v, int64_t)[0], (int64_t)-1) : (int64_t)-1,
                             known ? TRN_MAX(TRN_DATA(v, int64_t)[1], (int64_t)-1) : (int64_t)-1, dim_of(&s->in[0], 2));
    return TRN_OK;
}

#define CROPPED "T:u8|u16|i8|i16|i32|i64|f16|f32|f64"
#define WARPED "dtype:u8|i32|i64|f16|f32|f64, interpolation:string, fill_mode:string=\"CONSTANT\""
#define GLIMPSE "input:f32, size:i32, offsets:f32 -> glimpse:f32; centered:bool=true, normalized:bool=true, uniform_noise:bool=true, noise:string=\"uniform\""

const trn_op trn_ops_image_crop[] = {
    {"CropAndResize",
     "image:T, boxes:f32, box_ind:i32, crop_size:i32 -> crops:f32; " CROPPED ", method:{bilinear,nearest}=bilinear, extrapolation_value:float=0",
     sh_crop, k_crop_and_resize, 0},
    {"CropAndResizeGradImage", "grads:f32, boxes:f32, box_ind:i32, image_size:i32 -> output:T; T:f32|f16|f64, method:{bilinear,nearest}=bilinear",
     sh_crop_image, k_crop_grad_image, 0},
    {"CropAndResizeGradBoxes", "grads:f32, image:T, boxes:f32, box_ind:i32 -> output:f32; " CROPPED ", method:{bilinear}=bilinear", sh_crop_boxes,
     k_crop_grad_boxes, 0},
    {"ImageProjectiveTransformV2", "images:dtype, transforms:f32, output_shape:i32 -> transformed_images:dtype; " WARPED, sh_warp, k_warp, 0},
    {"ImageProjectiveTransformV3", "images:dtype, transforms:f32, output_shape:i32, fill_value:f32 -> transformed_images:dtype; " WARPED, sh_warp, k_warp, 0},
    {"ExtractGlimpse", GLIMPSE, sh_glimpse, k_glimpse, 0},
    {"ExtractGlimpseV2", GLIMPSE, sh_glimpse, k_glimpse, 0},
    {"RandomCrop", "image:T, size:i64 -> output:T; T:u8|i8|i16|i32|i64|f32|f64, seed:int=0, seed2:int=0", sh_random_crop, k_random_crop,
     TRN_OP_STATEFUL, trn_random_init, trn_random_fini},
    {0},
};
