/* Convolutions over images and volumes, with their gradients.
 *
 * Everything is turned to [n, depth, rows, columns, channels] (window.h). gradients of inputs of float with small windows and whole vectors of channels take Winograd's way
 * (winograd.h), other float goes to oneDNN, one piece of the batch per task (mathlib.h); other types, and float where oneDNN has nothing good, gather patches into a matrix and multiply (gemm.h). How the batch is divided depends on the
 * number of threads only, and so do the sums.
 */
#include <math.h>
#include <stdlib.h>

#include "ops/fused.h"
#include "ops/gemm.h"
#include "ops/kern.h"
#include "ops/mathlib.h"
#include "ops/window.h"
#include "ops/winograd.h"

/* ---- geometry ------------------------------------------------------------------------------------------------------------------- */

static trn_err no_batch_or_depth(const trn_window *w)
{
    if (w->stride_n != 1 || w->stride_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Current implementation does not yet support strides in the batch and depth dimensions.");
    if (w->dil_n != 1 || w->dil_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Current implementation does not yet support dilations in the batch and depth dimensions.");
    return TRN_OK;
}

/* d: the input as [n, depth, rows, columns, c]; f: the filter's shape. */
static trn_err geometry(trn_conv_geom *g, const trn_window *w, const int64_t d[5], const trn_shape *f)
{
    char t[TRN_SHAPE_TEXT];
    int s = w->space;
    TRN_CHECK_ARG(f->rank == s + 2, "convolution filter must be %d-dimensional: %s", s + 2, trn_shape_text(t, f));
    for (int i = 0; i < f->rank; i++)
        TRN_CHECK_ARG(f->dim[i] <= INT32_MAX, "filter too large: %s", trn_shape_text(t, f));
    memset(g, 0, sizeof *g);
    g->n = d[0];
    g->ic = d[4];
    g->oc = f->dim[s + 1];
    TRN_CHECK_ARG(f->dim[s] > 0, "filter depth must be strictly positive, got %lld", (long long)f->dim[s]);
    TRN_CHECK_ARG(d[4] % f->dim[s] == 0, "input depth must be evenly divisible by filter depth: %lld vs %lld", (long long)d[4], (long long)f->dim[s]);
    g->groups = TRN_MAX(d[4] / f->dim[s], (int64_t)1);
    for (int i = 0; i < 3; i++) {
        g->in[i] = d[1 + i];
        g->ker[i] = i < 3 - s ? 1 : f->dim[i - 3 + s];
        g->stride[i] = w->stride[i];
        g->dil[i] = w->dil[i];
        TRN_TRY(trn_window_size(&g->out[i], &g->pad[i], &g->pad_after[i], w, i, g->in[i], g->ker[i]));
    }
    return TRN_OK;
}

static void out_dims(int64_t d[5], const trn_conv_geom *g)
{
    d[0] = g->n;
    memcpy(d + 1, g->out, sizeof g->out);
    d[4] = g->oc;
}

/* ---- the work ------------------------------------------------------------------------------------------------------------------- */

typedef struct conv_job {
    trn_conv_kind kind;
    trn_conv_geom g;
    trn_dtype t;
    size_t size;
    char *input, *filter, *output; /* the kind says which is written */
    void (*then)(void *arg, int64_t from, int64_t to); /* FWD: what follows, on places from … to of all images while they are in the cache; or NULL */
    void *then_arg;
    int64_t parts;
    trn_conv_plan *plan[2]; /* for n / parts images and one more; NULL: our own code */
    float *packed[2];
    char *partial; /* BWD_FILTER: one filter per part */
    int64_t filter_n, in_image, out_image; /* elements */
    int64_t places;                        /* of an image's output */
    _Atomic(trn_err) err;
} conv_job;

static void job_failed(conv_job *j, trn_err e)
{
    trn_err none = NULL;
    if (e && !atomic_compare_exchange_strong(&j->err, &none, e))
        trn_err_free(e);
}

static int64_t part_at(const conv_job *j, int64_t p) { return j->g.n / j->parts * p + TRN_MIN(p, j->g.n % j->parts); }

/* Patches of output places [lo, hi) of one image and group: rows of ker… x icg elements; places outside are 0. */
static void gather(const conv_job *j, char *to, const char *image, int64_t group, int64_t lo, int64_t hi)
{
    const trn_conv_geom *g = &j->g;
    int64_t icg = g->ic / g->groups;
    size_t run = (size_t)icg * j->size;
    for (int64_t o = lo; o < hi; o++) {
        int64_t x = o % g->out[2], y = o / g->out[2] % g->out[1], z = o / (g->out[2] * g->out[1]);
        for (int64_t kz = 0; kz < g->ker[0]; kz++) {
            int64_t iz = z * g->stride[0] - g->pad[0] + kz * g->dil[0];
            for (int64_t ky = 0; ky < g->ker[1]; ky++) {
                int64_t iy = y * g->stride[1] - g->pad[1] + ky * g->dil[1];
                bool outside = iz < 0 || iz >= g->in[0] || iy < 0 || iy >= g->in[1];
                for (int64_t kx = 0; kx < g->ker[2]; kx++, to += run) {
                    int64_t ix = x * g->stride[2] - g->pad[2] + kx * g->dil[2];
                    if (outside || ix < 0 || ix >= g->in[2])
                        memset(to, 0, run);
                    else
                        memcpy(to, image + (size_t)(((iz * g->in[1] + iy) * g->in[2] + ix) * g->ic + group * icg) * j->size, run);
                }
            }
        }
    }
}

/* The other way: patches are added onto the image. */
static void scatter(const conv_job *j, char *image, const char *from, int64_t group, int64_t lo, int64_t hi)
{
    const trn_conv_geom *g = &j->g;
    int64_t icg = g->ic / g->groups;
    size_t run = (size_t)icg * j->size;
    for (int64_t o = lo; o < hi; o++) {
        int64_t x = o % g->out[2], y = o / g->out[2] % g->out[1], z = o / (g->out[2] * g->out[1]);
        for (int64_t kz = 0; kz < g->ker[0]; kz++) {
            int64_t iz = z * g->stride[0] - g->pad[0] + kz * g->dil[0];
            for (int64_t ky = 0; ky < g->ker[1]; ky++) {
                int64_t iy = y * g->stride[1] - g->pad[1] + ky * g->dil[1];
                bool outside = iz < 0 || iz >= g->in[0] || iy < 0 || iy >= g->in[1];
                for (int64_t kx = 0; kx < g->ker[2]; kx++, from += run) {
                    int64_t ix = x * g->stride[2] - g->pad[2] + kx * g->dil[2];
                    if (!outside && ix >= 0 && ix < g->in[2])
                        trn_accum(TRN_ACC_ADD, j->t, image + (size_t)(((iz * g->in[1] + iy) * g->in[2] + ix) * g->ic + group * icg) * j->size, from, icg);
                }
            }
        }
    }
}

/* Our own code for images [lo, hi); `to`: the filter of BWD_FILTER, set to 0 by the caller. */
static trn_err own_part(const conv_job *j, int64_t lo, int64_t hi, char *to)
{
    const trn_conv_geom *g = &j->g;
    int64_t icg = g->ic / g->groups, ocg = g->oc / g->groups, places = g->out[0] * g->out[1] * g->out[2];
    int64_t width = g->ker[0] * g->ker[1] * g->ker[2] * icg, block = TRN_MIN(places, TRN_MAX((int64_t)65536 / width, (int64_t)32));
    trn_buf *buf;
    bool grad = j->kind == TRN_CONV_BWD_FILTER;
    TRN_TRY(trn_buf_new(&buf, (size_t)(block * width + (grad ? width * ocg : 0)) * j->size));
    char *patches = (char *)buf->data, *sum = patches + (size_t)(block * width) * j->size;
    bool ok = true;
    for (int64_t i = lo; i < hi && ok; i++) {
        char *image = j->input + (size_t)(i * j->in_image) * j->size, *out = j->output + (size_t)(i * j->out_image) * j->size;
        if (j->kind == TRN_CONV_BWD_INPUT)
            memset(image, 0, (size_t)j->in_image * j->size);
        for (int64_t gr = 0; gr < g->groups && ok; gr++)
            for (int64_t at = 0; at < places && ok; at += block) {
                int64_t n = TRN_MIN(block, places - at);
                char *o = out + (size_t)(at * g->oc + gr * ocg) * j->size, *f = j->filter + (size_t)(gr * ocg) * j->size;
                if (j->kind == TRN_CONV_FWD) {
                    gather(j, patches, image, gr, at, at + n);
                    ok = trn_gemm(j->t, &(trn_gemm_args){.m = n, .n = ocg, .k = width, .a = patches, .ars = width, .acs = 1, .b = f, .brs = g->oc, .bcs = 1,
                                                         .c = o, .ldc = g->oc});
                } else if (j->kind == TRN_CONV_BWD_INPUT) {
                    ok = trn_gemm(j->t, &(trn_gemm_args){.m = n, .n = width, .k = ocg, .a = o, .ars = g->oc, .acs = 1, .b = f, .brs = 1, .bcs = g->oc,
                                                         .c = patches, .ldc = width});
                    scatter(j, image, patches, gr, at, at + n);
                } else {
                    gather(j, patches, image, gr, at, at + n);
                    ok = trn_gemm(j->t, &(trn_gemm_args){.m = width, .n = ocg, .k = n, .a = patches, .ars = 1, .acs = width, .b = o, .brs = g->oc, .bcs = 1,
                                                         .c = sum, .ldc = ocg});
                    for (int64_t r = 0; r < width; r++)
                        trn_accum(TRN_ACC_ADD, j->t, to + (size_t)(r * g->oc + gr * ocg) * j->size, sum + (size_t)(r * ocg) * j->size, ocg);
                }
            }
    }
    trn_buf_unref(buf);
    return ok ? TRN_OK : trn_err_oom();
}

static trn_err library_part(const conv_job *j, int64_t p, int64_t lo, float *to)
{
    int big = p < j->g.n % j->parts;
    const trn_conv_plan *plan = j->plan[big];
    float *in = (float *)(void *)j->input + lo * j->in_image, *out = (float *)(void *)j->output + lo * j->out_image;
    if (j->kind != TRN_CONV_BWD_FILTER)
        return trn_conv_plan_run(plan, in, j->packed[big] ? j->packed[big] : (float *)(void *)j->filter, out);
    if (!trn_conv_plan_packed(plan))
        return trn_conv_plan_run(plan, in, to, out);
    trn_buf *packed;
    TRN_TRY(trn_buf_new(&packed, trn_conv_plan_packed(plan)));
    trn_err e = trn_conv_plan_run(plan, in, (float *)(void *)packed->data, out);
    if (!e)
        e = trn_conv_plan_unpack(plan, to, packed->data);
    trn_buf_unref(packed);
    return e;
}

static void conv_part(void *arg, int64_t from, int64_t to)
{
    conv_job *j = arg;
    for (int64_t p = from; p < to; p++) {
        int64_t lo = part_at(j, p), hi = part_at(j, p + 1);
        char *f = j->kind != TRN_CONV_BWD_FILTER ? NULL : j->partial ? j->partial + (size_t)(p * j->filter_n) * j->size : j->filter;
        if (f && !j->plan[0])
            memset(f, 0, (size_t)j->filter_n * j->size);
        job_failed(j, j->plan[0] ? library_part(j, p, lo, (float *)(void *)f) : own_part(j, lo, hi, f));
        if (j->then)
            j->then(j->then_arg, lo * j->places, hi * j->places);
    }
}

static void sum_part(void *arg, int64_t lo, int64_t hi)
{
    conv_job *j = arg;
    char *y = j->filter + (size_t)lo * j->size;
    memcpy(y, j->partial + (size_t)lo * j->size, (size_t)(hi - lo) * j->size);
    for (int64_t p = 1; p < j->parts; p++)
        trn_accum(TRN_ACC_ADD, j->t, y, j->partial + (size_t)(p * j->filter_n + lo) * j->size, hi - lo);
}

/* Plans for the job's two part sizes; both or none. */
static bool find_plans(conv_job *j)
{
    if (j->t != TRN_FLOAT)
        return false;
    for (int i = 0; i < 2; i++) {
        trn_conv_geom g = j->g;
        g.n = j->g.n / j->parts + i;
        if (i && j->g.n % j->parts == 0)
            break;
        j->plan[i] = trn_mathlib_conv(j->kind, &g);
        if (!j->plan[i]) {
            trn_conv_plan_unref(j->plan[0]);
            j->plan[0] = NULL;
            return false;
        }
    }
    return true;
}

static trn_err pack_filters(conv_job *j, trn_buf *buf[2])
{
    for (int i = 0; i < 2 && j->plan[i]; i++) {
        size_t bytes = trn_conv_plan_packed(j->plan[i]);
        if (!bytes)
            continue;
        if (i && buf[0] && trn_conv_plan_same_filter(j->plan[0], j->plan[1])) {
            j->packed[1] = j->packed[0];
            continue;
        }
        TRN_TRY(trn_buf_new(&buf[i], bytes));
        j->packed[i] = (float *)(void *)buf[i]->data;
        TRN_TRY(trn_conv_plan_pack(j->plan[i], j->packed[i], (const float *)(const void *)j->filter));
    }
    return TRN_OK;
}

/* Tensors are channels last and of one of our wide types. Everything that is written is written whole. */
static trn_err convolve(trn_kctx *k, trn_conv_kind kind, const trn_conv_geom *g, trn_tensor *input, trn_tensor *filter, trn_tensor *output,
                        void (*then)(void *, int64_t, int64_t), void *then_arg)
{
    conv_job j = {.then = then, .then_arg = then_arg, .kind = kind, .g = *g, .t = input->dtype, .input = input->data, .filter = filter->data, .output = output->data};
    trn_tensor *result = kind == TRN_CONV_FWD ? output : kind == TRN_CONV_BWD_INPUT ? input : filter;
    if (!result->count)
        return TRN_OK;
    if (!input->count || !filter->count || !output->count) {
        trn_zero_elems(result, 0, result->count);
        if (then)
            then(then_arg, 0, output->count / g->oc);
        return TRN_OK;
    }
    if (j.t == TRN_FLOAT && trn_winograd_fits(kind, g))
        return trn_winograd(k, kind, g, input->data, filter->data, output->data, then, then_arg);
    j.size = trn_dtype_size(j.t);
    j.places = g->out[0] * g->out[1] * g->out[2];
    j.filter_n = filter->count;
    j.in_image = input->count / g->n;
    j.out_image = output->count / g->n;
    int threads = trn_k_threads(k);
    double flops = 2.0 * (double)output->count * (double)(filter->count / g->oc);
    /* Several parts per thread even out what else the cores do; a part is worth a thread's waking up. */
    int64_t many = kind == TRN_CONV_BWD_FILTER ? (threads > 1 && threads <= 8 ? threads * 2 : threads) : threads * 4;
    int64_t most = (int64_t)(flops / 4e6) + 1;
    j.parts = threads <= 1 ? 1 : TRN_MAX(TRN_MIN(TRN_MIN(many, most), g->n), (int64_t)1);
    bool library = find_plans(&j);
    trn_buf *buf[2] = {NULL}, *partial = NULL;
    trn_err e = TRN_OK;
    if (library && kind != TRN_CONV_BWD_FILTER)
        e = pack_filters(&j, buf);
    if (!e && kind == TRN_CONV_BWD_FILTER && j.parts > 1) {
        e = trn_buf_new(&partial, (size_t)(j.parts * j.filter_n) * j.size);
        if (!e)
            j.partial = (char *)partial->data;
    }
    if (!e) {
        trn_k_for(k, j.parts, 1, conv_part, &j);
        e = atomic_load(&j.err);
    }
    if (!e && j.partial)
        trn_k_for(k, j.filter_n, 16384, sum_part, &j);
    trn_buf_unref(buf[0]);
    trn_buf_unref(buf[1]);
    trn_buf_unref(partial);
    trn_conv_plan_unref(j.plan[0]);
    trn_conv_plan_unref(j.plan[1]);
    return e;
}

/* ---- kernels -------------------------------------------------------------------------------------------------------------------- */

/* A depthwise convolution is a grouped one with a group per input channel; the filter's bytes are already in that order: [ker…, ic, m] is
 * [ker…, 1, ic·m]. */
static trn_err as_groups(trn_shape *out, const trn_window *w, const trn_shape *f, int64_t ic)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(w->stride[1] == w->stride[2], "Current implementation only supports equal length strides in the row and column dimensions.");
    TRN_CHECK_ARG(f->rank == 4, "filter must be 4-dimensional: %s", trn_shape_text(t, f));
    TRN_CHECK_ARG(f->dim[2] == ic, "input and filter must have the same depth: %lld vs %lld", (long long)ic, (long long)f->dim[2]);
    *out = *f;
    out->dim[2] = 1;
    TRN_CHECK_ARG(!__builtin_mul_overflow(f->dim[2], f->dim[3], &out->dim[3]), "filter too large: %s", trn_shape_text(t, f));
    return TRN_OK;
}
static trn_err depthwise_window(const trn_window *w)
{
    TRN_CHECK_ARG(w->stride_n == 1 && w->stride_c == 1, "Current implementation does not yet support strides in the batch and depth dimensions.");
    if (w->dil_n != 1 || w->dil_c != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Current implementation does not support dilations in the batch and depth dimensions.");
    return TRN_OK;
}

static trn_err check_groups(const trn_conv_geom *g)
{
    TRN_CHECK_ARG(g->oc % g->groups == 0, "output depth must be evenly divisible by number of groups: %lld vs %lld", (long long)g->oc, (long long)g->groups);
    return TRN_OK;
}

typedef struct extras {
    int n;            /* BiasAdd 1, FusedBatchNorm 4, else 0 */
    int first;        /* input that holds the first one */
    trn_act act;
    float alpha, epsilon;
} extras;

typedef struct finish_job {
    char *y;
    trn_dtype t;
    int64_t c;             /* channels */
    const void *mul, *add; /* mul NULL: a bias only */
    trn_tensor *tmp;       /* holds both, or NULL */
    const extras *x;
} finish_job;

#define FINISH(T, tag)                                                                                                 \
    TRN_SIMD static void finish_##tag(T *y, const T *mul, const T *add, int64_t c)                                     \
    {                                                                                                                  \
        if (mul)                                                                                                       \
            for (int64_t i = 0; i < c; i++)                                                                            \
                y[i] = y[i] * mul[i] + add[i];                                                                         \
        else                                                                                                           \
            for (int64_t i = 0; i < c; i++)                                                                            \
                y[i] += add[i];                                                                                        \
    }
FINISH(float, f32)
FINISH(double, f64)

static void finish_places(void *arg, int64_t lo, int64_t hi)
{
    finish_job *j = arg;
    for (int64_t r = lo; r < hi; r++)
        if (j->t == TRN_FLOAT) {
            float *y = (float *)(void *)j->y + r * j->c;
            finish_f32(y, j->mul, j->add, j->c);
            trn_act_f32(y, j->c, j->x->act, j->x->alpha);
        } else {
            double *y = (double *)(void *)j->y + r * j->c;
            finish_f64(y, j->mul, j->add, j->c);
            trn_act_f64(y, j->c, j->x->act, j->x->alpha);
        }
}

/* Bias or batch norm, then the activation, on [n, .., c]. */
static trn_err finish_init(finish_job *j, const trn_tensor *y, const extras *x, trn_tensor *const *args)
{
    int64_t c = y->shape.dim[y->shape.rank - 1];
    *j = (finish_job){.y = y->data, .t = y->dtype, .c = c, .x = x, .add = args[0]->data};
    if (x->n == 4) {
        trn_shape s = {.rank = 2, .dim = {2, c}};
        TRN_TRY(trn_tensor_new(&j->tmp, y->dtype, &s));
        j->mul = j->tmp->data;
        if (y->dtype == TRN_FLOAT) {
            float *m = j->tmp->data, *a = m + c;
            for (int64_t i = 0; i < c; i++) {
                m[i] = TRN_DATA(args[0], float)[i] / sqrtf(TRN_DATA(args[3], float)[i] + x->epsilon);
                a[i] = TRN_DATA(args[1], float)[i] - TRN_DATA(args[2], float)[i] * m[i];
            }
            j->add = a;
        } else {
            double *m = j->tmp->data, *a = m + c;
            for (int64_t i = 0; i < c; i++) {
                m[i] = TRN_DATA(args[0], double)[i] / sqrt(TRN_DATA(args[3], double)[i] + (double)x->epsilon);
                a[i] = TRN_DATA(args[1], double)[i] - TRN_DATA(args[2], double)[i] * m[i];
            }
            j->add = a;
        }
    }
    return TRN_OK;
}

static trn_err forward(trn_kctx *k, const trn_tensor *in, int space, const extras *x, bool depthwise)
{
    const trn_tensor *f = trn_in(k, 1);
    trn_window w, plain = {.space = space};
    int64_t d[5];
    trn_conv_geom g;
    TRN_TRY(trn_window_read(&w, k->node, space));
    TRN_TRY(depthwise ? depthwise_window(&w) : no_batch_or_depth(&w));
    TRN_TRY(trn_window_dims(d, &w, &in->shape, "convolution input"));
    trn_shape fs = f->shape;
    if (depthwise)
        TRN_TRY(as_groups(&fs, &w, &f->shape, d[4]));
    TRN_TRY(geometry(&g, &w, d, &fs));
    out_dims(d, &g);
    trn_tensor *wi = NULL, *wf = NULL, *wy = NULL, *arg[4] = {NULL};
    TRN_TRY(trn_window_out(&wy, k, 0, &w, in->dtype, d, true));
    trn_err e = TRN_OK;
    if (wy->count) {
        char t[TRN_SHAPE_TEXT];
        e = check_groups(&g);
        if (!e && !f->count)
            e = TRN_BAD("filter must not have zero elements (i.e. all dimensions must be non-zero): %s", trn_shape_text(t, &f->shape));
        for (int i = 0; !e && x && i < x->n; i++) {
            const trn_tensor *a = trn_in(k, x->first + i);
            if (!trn_is_vector(a) || a->count != g.oc)
                e = TRN_BAD("argument %d of the fusion must be a vector of %lld elements, not of shape %s", i, (long long)g.oc, trn_shape_text(t, &a->shape));
            else
                e = trn_window_in(&arg[i], k, &plain, a, true);
        }
        if (!e)
            e = trn_window_in(&wi, k, &w, in, true);
        if (!e)
            e = trn_window_in(&wf, k, &plain, f, true);
        finish_job then = {.tmp = NULL};
        bool more = x && x->n;
        if (!e && more)
            e = finish_init(&then, wy, x, arg);
        if (!e)
            e = convolve(k, TRN_CONV_FWD, &g, wi, wf, wy, more ? finish_places : NULL, &then);
        trn_tensor_unref(then.tmp);
        if (!e)
            e = trn_window_done(k, 0, &w, wy);
    }
    trn_tensor_unref(wi);
    trn_tensor_unref(wf);
    trn_tensor_unref(wy);
    for (int i = 0; i < 4; i++)
        trn_tensor_unref(arg[i]);
    return e;
}
static trn_err k_conv2d(trn_kctx *k) { return forward(k, trn_in(k, 0), 2, NULL, false); }
static trn_err k_depthwise(trn_kctx *k) { return forward(k, trn_in(k, 0), 2, NULL, true); }
static trn_err k_conv3d(trn_kctx *k) { return forward(k, trn_in(k, 0), 3, NULL, false); }

/* Conv: how many dims the window slides over is what batch and channels leave. */
static trn_err conv_space(int *space, const trn_node *n, int rank)
{
    int64_t batch = trn_attr_int(n, "batch_dims");
    TRN_CHECK_ARG(batch >= 0, "Batch dims must be non-negative.");
    TRN_CHECK_ARG(rank - 1 - batch == 2 || rank - 1 - batch == 3, "The input must have 2 or 3 spatial dimensions but got %lld", (long long)(rank - 1 - batch));
    *space = (int)(rank - 1 - batch);
    TRN_CHECK_ARG(*space == 2 || strcmp(trn_attr_str(n, "padding"), "EXPLICIT"), "Explicit padding not supported for 3D Convolution");
    return TRN_OK;
}
/* `from` without its first `skip` dims, behind the first n of `batch`: makes one dim of all of a batch's, and back. */
static trn_shape with_batch(const trn_shape *from, int skip, const trn_shape *batch, int n)
{
    trn_shape s = {.rank = n + from->rank - skip};
    memcpy(s.dim, batch->dim, sizeof s.dim[0] * (size_t)n);
    memcpy(s.dim + n, from->dim + skip, sizeof s.dim[0] * (size_t)(from->rank - skip));
    return s;
}

static trn_err k_conv(trn_kctx *k)
{
    const trn_tensor *in = trn_in(k, 0), *f = trn_in(k, 1);
    int space;
    int64_t d[5];
    trn_window w;
    trn_shape all = {.rank = 1, .dim = {1}};
    if (trn_attr_int(k->node, "groups") != 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "Grouped/Depthwise Convolutions are not supported yet.");
    TRN_TRY(conv_space(&space, k->node, in->shape.rank));
    TRN_CHECK_ARG(f->count, "filter must not have zero elements (i.e. all dimensions must be non-zero)");
    TRN_CHECK_ARG(f->shape.rank == space + 2, "The filter must be rank %d but got %d", space + 2, f->shape.rank);
    TRN_TRY(trn_window_read(&w, k->node, space));
    TRN_CHECK_ARG(w.stride_n == 1 && w.stride_c == 1, "Current implementation does not support strides in the batch and depth dimensions.");
    TRN_CHECK_ARG(w.dil_n == 1 && w.dil_c == 1, "Current implementation does not support dilation rates in the batch and depth dimensions.");
    int batch = in->shape.rank - 1 - space;
    for (int i = 0; i < batch; i++)
        TRN_CHECK_ARG(!__builtin_mul_overflow(all.dim[0], in->shape.dim[i], &all.dim[0]), "Batch is too large");
    trn_shape s = with_batch(&in->shape, batch, &all, 1);
    TRN_TRY(trn_window_dims(d, &w, &s, "convolution input"));
    TRN_CHECK_ARG(d[4] == f->shape.dim[space], "Input depth must be equal to filter depth: %lld vs %lld", (long long)d[4], (long long)f->shape.dim[space]);
    trn_tensor *flat, *y;
    TRN_TRY(trn_tensor_view(&flat, in, 0, &s));
    trn_err e = forward(k, flat, space, NULL, false);
    trn_tensor_unref(flat);
    if (e || batch == 1)
        return e;
    s = with_batch(&k->out[0].t->shape, 1, &in->shape, batch);
    TRN_TRY(trn_tensor_view(&y, k->out[0].t, 0, &s));
    trn_out_set(k, 0, y);
    return TRN_OK;
}

static trn_err k_fused_conv2d(trn_kctx *k)
{
    const trn_attr *f = trn_node_attr(k->node, "fused_ops");
    extras x = {.alpha = trn_attr_float(k->node, "leakyrelu_alpha"), .epsilon = trn_attr_float(k->node, "epsilon")};
    int count;
    x.first = trn_in_arg(k, "args", &count);
    TRN_CHECK_ARG(f && f->n >= 1 && f->n <= 2, "Fused Conv2D must have at least one fused op.");
    bool bias = !strcmp(f->list[0].s.p, "BiasAdd"), norm = !strcmp(f->list[0].s.p, "FusedBatchNorm");
    if ((!bias && !norm) || (f->n == 2 && !trn_act_of(&x.act, f->list[1].s.p)))
        return trn_errorf(TRN_UNIMPLEMENTED, "Fusion is not implemented: [%.40s,%.40s]", f->list[0].s.p, f->n == 2 ? f->list[1].s.p : "");
    x.n = bias ? 1 : 4;
    TRN_CHECK_ARG(count == x.n && trn_attr_int(k->node, "num_args") == x.n, "Fused Conv2D with %s must have %d extra argument(s)", f->list[0].s.p, x.n);
    for (int i = 0; i < x.n; i++)
        TRN_CHECK_ARG(trn_in(k, x.first + i)->dtype == trn_in(k, 0)->dtype, "argument %d of the fusion has another type than the input", i);
    return forward(k, trn_in(k, 0), 2, &x, false);
}

/* The input's shape for Conv2DBackpropInput: all of it, or rows and columns only. */
static trn_err input_shape(trn_shape *out, const trn_window *w, const trn_tensor *sizes, const trn_shape *filter, const trn_shape *grad)
{
    TRN_CHECK_ARG(trn_is_vector(sizes), "input_sizes input must be 1-dim, not %d", sizes->shape.rank);
    TRN_CHECK_ARG(sizes->count == w->space + 2 || (w->space == 2 && sizes->count == 2), "input_sizes must contain %d values, but got: %lld", w->space + 2,
                  (long long)sizes->count);
    if (sizes->count != 2)
        return trn_shape_from(out, sizes, false);
    TRN_CHECK_ARG(filter->rank == 4 && grad->rank == 4, "filter and out_backprop must be 4-dimensional");
    int64_t d[5] = {grad->dim[0], 1, trn_int_at(sizes, 0), trn_int_at(sizes, 1), filter->dim[2]};
    TRN_CHECK_ARG(d[2] >= 0 && d[3] >= 0, "elements of input_sizes must be >= 0, not %lldx%lld", (long long)d[2], (long long)d[3]);
    *out = trn_window_shape(w, d);
    return TRN_OK;
}

/* Which input holds the input (or its shape) and the filter (or its shape), by kind. */
static trn_err backward(trn_kctx *k, int space, trn_conv_kind kind, bool shape_is_value, bool depthwise)
{
    bool to_input = kind == TRN_CONV_BWD_INPUT;
    const trn_tensor *in = trn_in(k, 0), *f = trn_in(k, 1), *grad = trn_in(k, 2);
    trn_window w, plain = {.space = space};
    TRN_TRY(trn_window_read(&w, k->node, space));
    TRN_TRY(depthwise ? depthwise_window(&w) : no_batch_or_depth(&w));
    trn_shape is = in->shape, fs = f->shape;
    if (to_input && shape_is_value) {
        TRN_CHECK_ARG(grad->shape.rank == space + 2, "out_backprop must be %d-dimensional, got: %d", space + 2, grad->shape.rank);
        TRN_TRY(input_shape(&is, &w, in, &f->shape, &grad->shape));
    }
    if (!to_input && shape_is_value) {
        TRN_CHECK_ARG(trn_is_vector(f), "filter_sizes input must be 1-dim, not %d", f->shape.rank);
        TRN_TRY(trn_shape_from(&fs, f, false));
        int64_t n;
        TRN_TRY(trn_count_checked(&n, &fs));
        if (!n) { /* before anything else is looked at, as TensorFlow does */
            trn_tensor *y;
            return trn_out_new(&y, k, 0, grad->dtype, &fs);
        }
    }
    int64_t d[5], o[5], want[5];
    trn_conv_geom g;
    TRN_TRY(trn_window_dims(d, &w, &is, "input"));
    TRN_TRY(trn_window_dims(o, &w, &grad->shape, "out_backprop"));
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &is));
    if (to_input && shape_is_value && !count) {
        trn_tensor *y;
        return trn_out_new(&y, k, 0, grad->dtype, &is);
    }
    trn_shape gs = fs;
    if (depthwise)
        TRN_TRY(as_groups(&gs, &w, &fs, d[4]));
    TRN_TRY(geometry(&g, &w, d, &gs));
    TRN_TRY(check_groups(&g));
    out_dims(want, &g);
    TRN_CHECK_ARG(d[0] == o[0], "input and out_backprop must have the same batch size. Input batch: %lld, outbackprop batch: %lld", (long long)d[0], (long long)o[0]);
    TRN_CHECK_ARG(g.oc == o[4], "filter and out_backprop must have the same out_depth");
    for (int i = 1; i < 4; i++)
        TRN_CHECK_ARG(want[i] == o[i], "Size of out_backprop doesn't match computed: actual = %lld, computed = %lld", (long long)o[i], (long long)want[i]);
    trn_tensor *wi = NULL, *wf = NULL, *wg = NULL;
    trn_err e;
    if (to_input) {
        e = trn_window_out(&wi, k, 0, &w, grad->dtype, d, true);
        if (!e)
            e = trn_window_in(&wf, k, &plain, f, true);
    } else {
        e = trn_window_in(&wi, k, &w, in, true);
        trn_tensor *y;
        if (!e)
            e = trn_out_new(&y, k, 0, grad->dtype, &fs);
        if (!e && trn_is_half(grad->dtype))
            e = trn_tensor_new(&wf, TRN_FLOAT, &fs);
        else if (!e)
            wf = trn_tensor_ref(y);
    }
    if (!e)
        e = trn_window_in(&wg, k, &w, grad, true);
    if (!e)
        e = convolve(k, kind, &g, wi, wf, wg, NULL, NULL);
    if (!e)
        e = to_input ? trn_window_done(k, 0, &w, wi) : trn_window_done(k, 0, &plain, wf);
    trn_tensor_unref(wi);
    trn_tensor_unref(wf);
    trn_tensor_unref(wg);
    return e;
}
static trn_err k_conv2d_input(trn_kctx *k) { return backward(k, 2, TRN_CONV_BWD_INPUT, true, false); }
static trn_err k_conv2d_filter(trn_kctx *k) { return backward(k, 2, TRN_CONV_BWD_FILTER, true, false); }
static trn_err k_depthwise_input(trn_kctx *k) { return backward(k, 2, TRN_CONV_BWD_INPUT, true, true); }
static trn_err k_depthwise_filter(trn_kctx *k) { return backward(k, 2, TRN_CONV_BWD_FILTER, true, true); }
static trn_err k_conv3d_input(trn_kctx *k) { return backward(k, 3, TRN_CONV_BWD_INPUT, false, false); }
static trn_err k_conv3d_filter(trn_kctx *k) { return backward(k, 3, TRN_CONV_BWD_FILTER, false, false); }
static trn_err k_conv3d_input_v2(trn_kctx *k) { return backward(k, 3, TRN_CONV_BWD_INPUT, true, false); }
static trn_err k_conv3d_filter_v2(trn_kctx *k) { return backward(k, 3, TRN_CONV_BWD_FILTER, true, false); }

/* ---- of mirrored, resized images ------------------------------------------------------------------------------------------------ */

/* Where one row or column comes from: two of the image's and how far it is from the first to the second; a < 0: nothing is there. */
typedef struct sample {
    int64_t a, b;
    float part;
} sample;

typedef struct mirror_job {
    const char *x;
    char *y;
    int64_t h, w, c; /* of x */
    int64_t high, wide; /* of y */
    sample *rows, *cols;
    bool exact; /* nothing is resized */
} mirror_job;

/* n samples from `first` on, of a dim that has `in` elements, is resized to `size`, and then has a mirrored border; shift 1: its edge is not repeated. */
static void mirror_samples(sample *s, int64_t n, int64_t first, int64_t in, int64_t size, const int32_t border[2], int shift, float scale)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i;
        s[i] = (sample){.a = -1};
        if (at < 0 || at >= border[0] + size + border[1])
            continue;
        float p = (float)(at - border[0]);
        p = p < 0 ? -(p + 1 - (float)shift) : p >= (float)size ? 2 * (float)size - (p + 1 + (float)shift) : p;
        p *= scale;
        s[i].a = TRN_MIN((int64_t)floorf(p), in - 1);
        s[i].b = TRN_MIN((int64_t)ceilf(p), in - 1);
        s[i].part = p - (float)s[i].a;
    }
}

#define MIRROR_ROWS(T, tag)                                                                                            \
    static void mirror_rows_##tag(void *arg, int64_t lo, int64_t hi)                                                   \
    {                                                                                                                  \
        const mirror_job *j = arg;                                                                                     \
        T *y = (T *)(void *)j->y + lo * j->wide * j->c;                                                                \
        for (int64_t o = lo * j->wide; o < hi * j->wide; o++, y += j->c) {                                             \
            const sample *r = &j->rows[o / j->wide % j->high], *q = &j->cols[o % j->wide];                             \
            const T *x = (const T *)(const void *)j->x + o / (j->wide * j->high) * j->h * j->w * j->c;                 \
            const T *top = x + (r->a * j->w + q->a) * j->c, *bottom = x + (r->b * j->w + q->a) * j->c;                 \
            int64_t right = (q->b - q->a) * j->c;                                                                      \
            if (r->a < 0 || q->a < 0)                                                                                  \
                memset(y, 0, (size_t)j->c * sizeof(T));                                                                \
            else if (j->exact)                                                                                         \
                memcpy(y, top, (size_t)j->c * sizeof(T));                                                              \
            else                                                                                                       \
                for (int64_t c = 0; c < j->c; c++) {                                                                   \
                    T t = top[c] + (top[c + right] - top[c]) * (T)q->part;                                             \
                    T b = bottom[c] + (bottom[c + right] - bottom[c]) * (T)q->part;                                    \
                    y[c] = t + (b - t) * (T)r->part;                                                                   \
                }                                                                                                      \
        }                                                                                                              \
    }
MIRROR_ROWS(float, f32)
MIRROR_ROWS(double, f64)

static trn_err check_borders(const trn_tensor *p, const int64_t size[4], bool reflect)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(p->shape.rank == 2 && p->shape.dim[0] == 4 && p->shape.dim[1] == 2, "paddings must be a matrix with 4 rows and 2 columns: %s", trn_shape_text(t, &p->shape));
    for (int i = 0; i < 8; i++) {
        int32_t v = TRN_DATA(p, int32_t)[i];
        TRN_CHECK_ARG(v >= 0 && v <= size[i / 2] - reflect, "paddings must be non-negative and %s the dimension size: %d of %lld", reflect ? "less than" : "no greater than", v,
                      (long long)size[i / 2]);
        TRN_CHECK_ARG(!v || i / 2 == 1 || i / 2 == 2, "Fused mirror padding only support spatial padding, not batches or channels");
    }
    return TRN_OK;
}

/* What the windows see is made first, no more and no less; then it is a plain convolution without padding. */
static trn_err mirrored(trn_kctx *k, bool resize)
{
    const trn_tensor *in = trn_in(k, 0), *borders = trn_in(k, resize ? 2 : 1), *f = trn_in(k, resize ? 3 : 2);
    bool reflect = !strcmp(trn_attr_str(k->node, "mode"), "REFLECT"), align = resize && trn_attr_bool(k->node, "resize_align_corners");
    trn_window w, plain = {.space = 2};
    int64_t d[5], n = 1;
    TRN_TRY(trn_window_read(&w, k->node, 2));
    TRN_CHECK_ARG(w.stride_n == 1 && w.stride_c == 1, "Current implementation does not yet support strides in the batch and depth dimensions.");
    TRN_TRY(trn_window_dims(d, &w, &in->shape, "input"));
    TRN_CHECK_ARG(in->count, "Input tensor can't be empty");
    TRN_CHECK_ARG(f->shape.rank == 4 && f->count, "filter must be 4-dimensional and not empty");
    TRN_CHECK_ARG(f->shape.dim[2] == d[4], "input and filter must have the same depth: %lld vs %lld", (long long)d[4], (long long)f->shape.dim[2]);
    trn_shape size = in->shape;
    if (resize) {
        const trn_tensor *to = trn_in(k, 1);
        TRN_CHECK_ARG(trn_is_vector(to) && to->count == 2, "shape_t must be 1-dimensional and have two elements");
        for (int i = 0; i < 2; i++) {
            size.dim[1 + i] = trn_int_at(to, i);
            TRN_CHECK_ARG(size.dim[1 + i] > 0, "output dimensions must be positive");
        }
    }
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(!__builtin_mul_overflow(n, size.dim[i], &n), "Encountered overflow: the resized image has too many elements");
    TRN_TRY(check_borders(borders, size.dim, reflect));
    const int32_t *b = TRN_DATA(borders, int32_t);
    int64_t out[2], first[2], seen[2];
    for (int i = 0; i < 2; i++) {
        int64_t whole = size.dim[1 + i] + b[2 + 2 * i] + b[3 + 2 * i], ker = f->shape.dim[i], pad, after;
        TRN_CHECK_ARG(whole <= INT32_MAX && ker <= INT32_MAX, "Input or filter too large");
        TRN_TRY(trn_window_size(&out[i], &pad, &after, &w, 1 + i, whole, ker));
        TRN_CHECK_ARG(out[i], "Output tensor can't be empty");
        seen[i] = (out[i] - 1) * w.stride[1 + i] + ker;
        first[i] = -((seen[i] - whole + (w.padding == TRN_PAD_VALID)) / 2); /* what strides leave over is left over on both sides */
    }
    double strip = (double)f->shape.dim[0] * (double)d[4] * (double)trn_dtype_size(in->dtype); /* a column as high as the filter */
    trn_shape s = {.rank = 4, .dim = {d[0], seen[0], seen[1], d[4]}};
    trn_tensor *wi = NULL, *wf = NULL, *wy = NULL, *all = NULL;
    trn_buf *buf = NULL;
    trn_conv_geom g;
    mirror_job j = {.h = d[2], .w = d[3], .c = d[4], .high = seen[0], .wide = seen[1], .exact = !resize};
    d[2] = seen[0];
    d[3] = seen[1];
    w.padding = TRN_PAD_VALID;
    TRN_TRY(geometry(&g, &w, d, &f->shape));
    out_dims(d, &g);
    trn_err e = trn_window_out(&wy, k, 0, &w, in->dtype, d, true);
    if (!e && strip * (double)f->shape.dim[1] > 16 << 20) /* TensorFlow's limits, after it has its output */
        e = TRN_BAD("Im2Col patch too large for buffer");
    if (!e && strip * (double)seen[1] > 8 << 20)
        e = TRN_BAD("Input too large for resize cache");
    if (!e)
        e = trn_window_in(&wi, k, &plain, in, true);
    if (!e)
        e = trn_window_in(&wf, k, &plain, f, true);
    if (!e)
        e = trn_tensor_new(&all, wi->dtype, &s);
    if (!e)
        e = trn_buf_new(&buf, (size_t)(seen[0] + seen[1]) * sizeof(sample));
    if (!e) {
        j.x = wi->data;
        j.y = all->data;
        j.rows = (sample *)(void *)buf->data;
        j.cols = j.rows + seen[0];
        for (int i = 0; i < 2; i++) {
            int64_t from = i ? j.w : j.h, to = size.dim[1 + i];
            float scale = align && from > 1 && to > 1 ? (float)(from - 1) / (float)(to - 1) : (float)from / (float)to;
            mirror_samples(i ? j.cols : j.rows, seen[i], first[i], from, to, b + 2 + 2 * i, reflect, scale);
        }
        trn_k_for(k, s.dim[0] * seen[0], 32768 / (seen[1] * j.c) + 1, wi->dtype == TRN_DOUBLE ? mirror_rows_f64 : mirror_rows_f32, &j);
        e = convolve(k, TRN_CONV_FWD, &g, all, wf, wy, NULL, NULL);
    }
    if (!e)
        e = trn_window_done(k, 0, &w, wy);
    trn_buf_unref(buf);
    trn_tensor_unref(all);
    trn_tensor_unref(wi);
    trn_tensor_unref(wf);
    trn_tensor_unref(wy);
    return e;
}
static trn_err k_pad_conv2d(trn_kctx *k) { return mirrored(k, false); }
static trn_err k_resize_pad_conv2d(trn_kctx *k) { return mirrored(k, true); }

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

static trn_err sh_conv(trn_shctx *s, int space, bool depthwise)
{
    trn_window w;
    TRN_TRY(trn_window_read(&w, s->node, space));
    TRN_TRY(trn_sh_rank_of(s, 0, space + 2));
    TRN_TRY(trn_sh_rank_of(s, 1, space + 2));
    const trn_shape *x = &s->in[0], *f = &s->in[1];
    int64_t d[5] = {-1, -1, -1, -1, f->rank < 0 ? -1 : f->dim[space + 1]}, in[5] = {-1, -1, -1, -1, -1}, pad, after;
    if (x->rank >= 0) {
        TRN_TRY(trn_window_dims(in, &w, x, "convolution input"));
        d[0] = in[0];
    }
    if (depthwise)
        d[4] = f->rank >= 0 && f->dim[2] >= 0 && f->dim[3] >= 0 && f->dim[2] <= INT32_MAX && f->dim[3] <= INT32_MAX ? f->dim[2] * f->dim[3] : -1;
    else if (f->rank >= 0 && f->dim[space] > 0 && in[4] > 0)
        TRN_CHECK_ARG(in[4] % f->dim[space] == 0, "Depth of input (%lld) is not a multiple of input depth of filter (%lld)", (long long)in[4],
                      (long long)f->dim[space]);
    for (int i = 3 - space; i < 3; i++) {
        int64_t ker = f->rank < 0 ? -1 : f->dim[i - 3 + space];
        if (in[1 + i] >= 0 && (ker >= 0 || w.padding == TRN_PAD_SAME))
            TRN_TRY(trn_window_size(&d[1 + i], &pad, &after, &w, i, in[1 + i], TRN_MAX(ker, (int64_t)0)));
    }
    s->out[0] = trn_window_shape(&w, d);
    return TRN_OK;
}
static trn_err sh_conv2d(trn_shctx *s) { return sh_conv(s, 2, false); }
static trn_err sh_depthwise(trn_shctx *s) { return sh_conv(s, 2, true); }
static trn_err sh_conv3d(trn_shctx *s) { return sh_conv(s, 3, false); }
static trn_err sh_conv_any(trn_shctx *s)
{
    const trn_shape *x = &s->in[0], *f = &s->in[1];
    if (x->rank < 0 || f->rank < 0)
        return TRN_OK;
    int space;
    TRN_TRY(conv_space(&space, s->node, x->rank));
    TRN_CHECK_ARG(f->rank == space + 2, "Input tensor rank must be the same as filter rank.");
    int batch = x->rank - 1 - space;
    trn_shape some = {.rank = 1, .dim = {-1}}, in[2] = {with_batch(x, batch, &some, 1), *f}, out = {.rank = -1};
    trn_shctx one = {.node = s->node, .n_in = 2, .n_out = 1, .in = in, .value = s->value, .out = &out};
    trn_window w;
    int64_t groups = trn_attr_int(s->node, "groups"), d[5], oc = f->dim[space + 1], depth = f->dim[space];
    TRN_CHECK_ARG(groups >= 1, "Groups attribute should be a positive integer");
    TRN_TRY(sh_conv(&one, space, false));
    TRN_TRY(trn_window_read(&w, s->node, space));
    TRN_TRY(trn_window_dims(d, &w, &in[0], "convolution input"));
    TRN_CHECK_ARG(d[4] < 0 || d[4] % groups == 0, "Number of groups should divide input depth");
    TRN_CHECK_ARG(oc < 0 || oc % groups == 0, "Number of groups should divide output depth");
    TRN_CHECK_ARG(depth && (d[4] < 0 || depth < 0 || d[4] / depth == groups), "Input depth divided by filter input depth does not match with groups parameter (%lld)",
                  (long long)groups);
    s->out[0] = with_batch(&out, 1, x, batch);
    return TRN_OK;
}

/* Inputs: image, [size,] borders, filter. */
static trn_err sh_mirrored(trn_shctx *s)
{
    int last = s->n_in - 1;
    trn_window w;
    TRN_TRY(trn_window_read(&w, s->node, 2));
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    TRN_TRY(trn_sh_rank_of(s, last - 1, 2));
    TRN_TRY(trn_sh_rank_of(s, last, 4));
    const trn_shape *x = &s->in[0], *f = &s->in[last];
    const trn_tensor *size = last == 3 ? s->value[1] : NULL, *b = s->value[last - 1];
    trn_shape o = {.rank = 4, .dim = {x->rank < 0 ? -1 : x->dim[0], -1, -1, f->rank < 0 ? -1 : f->dim[3]}};
    for (int i = 0; i < 2; i++) {
        int64_t n = last == 3 ? (size && size->count == 2 ? trn_int_at(size, i) : -1) : x->rank < 0 ? -1 : x->dim[1 + i], pad, after;
        if (n < 0 || !b || b->count != 8 || f->rank < 0 || f->dim[i] < 0)
            continue;
        int64_t p = trn_int_at(b, 2 + 2 * i), q = trn_int_at(b, 3 + 2 * i);
        TRN_CHECK_ARG(p >= 0 && q >= 0, "Paddings must be non-negative");
        TRN_CHECK_ARG(n <= INT32_MAX, "Input too large");
        TRN_TRY(trn_window_size(&o.dim[1 + i], &pad, &after, &w, 1 + i, n + p + q, f->dim[i]));
    }
    s->out[0] = o;
    return TRN_OK;
}

/* The shape is a value: of input 0 or 1. */
static trn_err sh_sized(trn_shctx *s, int i, int rank)
{
    trn_shape o;
    if (!trn_sh_value(&o, s, i) || o.rank != rank) {
        o.rank = rank;
        for (int d = 0; d < rank; d++)
            o.dim[d] = -1;
    }
    s->out[0] = o;
    return TRN_OK;
}
static trn_err sh_conv2d_input(trn_shctx *s) { return sh_sized(s, 0, 4); }
static trn_err sh_conv2d_filter(trn_shctx *s) { return sh_sized(s, 1, 4); }
static trn_err sh_conv3d_input(trn_shctx *s) { return sh_sized(s, 0, 5); }
static trn_err sh_conv3d_filter(trn_shctx *s) { return sh_sized(s, 1, 5); }

#define CONV2D "strides:list(int), use_cudnn_on_gpu:bool=true, padding:{SAME,VALID,EXPLICIT}, explicit_paddings:list(int)=[], data_format:{NHWC,NCHW}=NHWC, dilations:list(int)=[1,1,1,1]"
#define DEPTHWISE "strides:list(int), padding:{SAME,VALID,EXPLICIT}, explicit_paddings:list(int)=[], data_format:{NHWC,NCHW}=NHWC, dilations:list(int)=[1,1,1,1]"
#define CONV3D "strides:list(int)>=5, padding:{SAME,VALID}, data_format:{NDHWC,NCDHW}=NDHWC, dilations:list(int)=[1,1,1,1,1]"
#define CONV3D_OLD "strides:list(int)>=5, padding:{SAME,VALID}, dilations:list(int)=[1,1,1,1,1]"

const trn_op trn_ops_conv[] = {
    {"Conv",
     "input:T, filter:T -> output:T; T:float|i32, strides:list(int), padding:{SAME,VALID,EXPLICIT}, explicit_paddings:list(int)=[], "
     "data_format:{CHANNELS_FIRST,CHANNELS_LAST}=CHANNELS_LAST, dilations:list(int)=[], batch_dims:int=1, groups:int=1",
     sh_conv_any, k_conv, TRN_OP_HEAVY},
    {"Conv2D", "input:T, filter:T -> output:T; T:float|i32, " CONV2D, sh_conv2d, k_conv2d, TRN_OP_HEAVY},
    {"Conv2DBackpropInput", "input_sizes:i32, filter:T, out_backprop:T -> output:T; T:float|i32, " CONV2D, sh_conv2d_input, k_conv2d_input, TRN_OP_HEAVY},
    {"Conv2DBackpropFilter", "input:T, filter_sizes:i32, out_backprop:T -> output:T; T:float, " CONV2D, sh_conv2d_filter, k_conv2d_filter, TRN_OP_HEAVY},
    {"_FusedConv2D",
     "input:T, filter:T, args:TArgs, host_args:num_host_args*f32 -> output:T; T:f16|f32|f64, TArgs:list(type)>=1, num_args:int>=0, num_host_args:int>=0=0, "
     "strides:list(int), padding:{SAME,VALID,EXPLICIT}, explicit_paddings:list(int)=[], data_format:{NHWC,NCHW}=NHWC, filter_format:{HWIO}=HWIO, "
     "dilations:list(int)=[1,1,1,1], use_cudnn_on_gpu:bool=true, fused_ops:list(string)=[], epsilon:float=0.0001, leakyrelu_alpha:float=0.2",
     sh_conv2d, k_fused_conv2d, TRN_OP_HEAVY},
    {"FusedResizeAndPadConv2D",
     "input:T, size:i32, paddings:i32, filter:T -> output:T; T:f16|f32|f64, resize_align_corners:bool=false, mode:{REFLECT,SYMMETRIC}, strides:list(int), "
     "padding:{SAME,VALID}",
     sh_mirrored, k_resize_pad_conv2d, TRN_OP_HEAVY},
    {"FusedPadConv2D", "input:T, paddings:i32, filter:T -> output:T; T:float, mode:{REFLECT,SYMMETRIC}, strides:list(int), padding:{SAME,VALID}", sh_mirrored,
     k_pad_conv2d, TRN_OP_HEAVY},
    {"DepthwiseConv2dNative", "input:T, filter:T -> output:T; T:float, " DEPTHWISE, sh_depthwise, k_depthwise, TRN_OP_HEAVY},
    {"DepthwiseConv2dNativeBackpropInput", "input_sizes:i32, filter:T, out_backprop:T -> output:T; T:float, " DEPTHWISE, sh_conv2d_input, k_depthwise_input, TRN_OP_HEAVY},
    {"DepthwiseConv2dNativeBackpropFilter", "input:T, filter_sizes:i32, out_backprop:T -> output:T; T:float, " DEPTHWISE, sh_conv2d_filter, k_depthwise_filter,
     TRN_OP_HEAVY},
    {"Conv3D", "input:T, filter:T -> output:T; T:float, " CONV3D, sh_conv3d, k_conv3d, TRN_OP_HEAVY},
    {"Conv3DBackpropInput", "input:T, filter:T, out_backprop:T -> output:T; T:f16|f32|f64, " CONV3D_OLD, trn_sh_same, k_conv3d_input, TRN_OP_HEAVY},
    {"Conv3DBackpropFilter", "input:T, filter:T, out_backprop:T -> output:T; T:f16|f32|f64, " CONV3D_OLD, trn_sh_like1, k_conv3d_filter, TRN_OP_HEAVY},
    {"Conv3DBackpropInputV2", "input_sizes:Tshape, filter:T, out_backprop:T -> output:T; T:float, " CONV3D ", Tshape:i32|i64=i32", sh_conv3d_input,
     k_conv3d_input_v2, TRN_OP_HEAVY},
    {"Conv3DBackpropFilterV2", "input:T, filter_sizes:i32, out_backprop:T -> output:T; T:float, " CONV3D, sh_conv3d_filter, k_conv3d_filter_v2, TRN_OP_HEAVY},
    {0},
};
