/* Batch normalisation, local response normalisation, and their gradients.
 *
 * x is seen as [rows, channels] in float. Sums over rows: blocks of rows in float, their totals in double, parts of the rows per thread; how the
 * rows are divided depends on the number of threads only.
 */
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"
#include "ops/window.h"

typedef struct norm_job {
    int64_t rows, c, parts;
    const float *x, *dy, *side, *mask; /* mask: the activation's output, for the gradient of Relu */
    float *y, *dside;
    const float *mean, *mul, *add, *slope; /* per channel */
    double *sum;                           /* [parts][2][c] */
    float *tmp;                            /* [parts][2][c] */
    bool relu;
} norm_job;

enum { ROWS = 64 }; /* of one block */

/* s += x; s += (x - m)²; s0 += dy, s1 += dy·(x - m) */
TRN_SIMD static void add_rows(float *s, const float *x, int64_t n)
{
    TRN_IVDEP for (int64_t i = 0; i < n; i++) s[i] += x[i];
}
TRN_SIMD static void add_squares(float *s, const float *x, const float *m, int64_t n)
{
    TRN_IVDEP for (int64_t i = 0; i < n; i++) s[i] += (x[i] - m[i]) * (x[i] - m[i]);
}
TRN_SIMD static void add_products(float *s0, float *s1, const float *dy, const float *x, const float *m, int64_t n)
{
    TRN_IVDEP for (int64_t i = 0; i < n; i++)
    {
        s0[i] += dy[i];
        s1[i] += dy[i] * (x[i] - m[i]);
    }
}
TRN_SIMD static void normalise(float *y, const float *x, const float *m, const float *mul, const float *add, int64_t n)
{
    TRN_IVDEP for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m[i]) * mul[i] + add[i];
}
/* dx = mul·(dy - add - (x - m)·slope) */
TRN_SIMD static void backward_row(float *dx, const float *dy, const float *x, const float *m, const float *mul, const float *add, const float *slope, int64_t n)
{
    TRN_IVDEP for (int64_t i = 0; i < n; i++) dx[i] = mul[i] * (dy[i] - add[i] - (x[i] - m[i]) * slope[i]);
}
TRN_SIMD static void side_and_relu(float *y, const float *side, bool relu, int64_t n)
{
    if (side)
        TRN_IVDEP for (int64_t i = 0; i < n; i++) y[i] += side[i];
    if (relu)
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] < 0 ? 0 : y[i];
}

static int64_t part_at(const norm_job *j, int64_t p) { return j->rows / j->parts * p + TRN_MIN(p, j->rows % j->parts); }

static void sum_parts(void *arg, int64_t lo, int64_t hi)
{
    norm_job *j = arg;
    int64_t c = j->c;
    for (int64_t p = lo; p < hi; p++) {
        double *sum = j->sum + p * 2 * c;
        float *s = j->tmp + p * 2 * c;
        memset(sum, 0, sizeof *sum * (size_t)(2 * c));
        for (int64_t r = part_at(j, p), end = part_at(j, p + 1); r < end;) {
            memset(s, 0, sizeof *s * (size_t)(2 * c));
            for (int64_t stop = TRN_MIN(r + ROWS, end); r < stop; r++)
                if (j->dy)
                    add_products(s, s + c, j->dy + r * c, j->x + r * c, j->mean, c);
                else if (j->mean)
                    add_squares(s, j->x + r * c, j->mean, c);
                else
                    add_rows(s, j->x + r * c, c);
            for (int64_t i = 0; i < 2 * c; i++)
                sum[i] += (double)s[i];
        }
    }
}

static void forward_rows(void *arg, int64_t lo, int64_t hi)
{
    norm_job *j = arg;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * j->c;
        normalise(j->y + at, j->x + at, j->mean, j->mul, j->add, j->c);
        if (j->side || j->relu)
            side_and_relu(j->y + at, j->side ? j->side + at : NULL, j->relu, j->c);
    }
}
static void backward_rows(void *arg, int64_t lo, int64_t hi)
{
    norm_job *j = arg;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * j->c;
        backward_row(j->y + at, j->dy + at, j->x + at, j->mean, j->mul, j->add, j->slope, j->c);
    }
}

/* Totals of the first and second sum into t[0..c) and t[c..2c). */
static void totals(trn_kctx *k, norm_job *j, double *t)
{
    trn_k_for(k, j->parts, 1, sum_parts, j);
    memcpy(t, j->sum, sizeof *t * (size_t)(2 * j->c));
    for (int64_t p = 1; p < j->parts; p++)
        for (int64_t i = 0; i < 2 * j->c; i++)
            t[i] += j->sum[p * 2 * j->c + i];
}

static trn_err job_memory(trn_kctx *k, norm_job *j, trn_buf **buf, double **total, float **row)
{
    int64_t most = j->rows * j->c / 16384;
    j->parts = TRN_MAX(TRN_MIN(TRN_MIN((int64_t)trn_k_threads(k) * 2, most), j->rows), (int64_t)1);
    size_t wide = (size_t)(2 * j->c * (j->parts + 1)), narrow = (size_t)(2 * j->c * j->parts + 4 * j->c);
    TRN_TRY(trn_buf_new(buf, wide * sizeof(double) + narrow * sizeof(float)));
    j->sum = (double *)(void *)(*buf)->data;
    *total = j->sum + 2 * j->c * j->parts;
    j->tmp = (float *)(*total + 2 * j->c);
    *row = j->tmp + 2 * j->c * j->parts;
    return TRN_OK;
}

static trn_err read_format(trn_window *w, const trn_node *n, const trn_shape *x)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->rank == 4 || x->rank == 5, "input must be 4 or 5-dimensional: %s", trn_shape_text(t, x));
    memset(w, 0, sizeof *w);
    w->space = x->rank - 2;
    const char *f = trn_attr_str(n, "data_format");
    w->first = f && !strncmp(f, "NC", 2);
    return TRN_OK;
}
static trn_err per_channel(const trn_tensor *t, int64_t c, const char *what)
{
    char s[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(t), "%s must be 1-dimensional: %s", what, trn_shape_text(s, &t->shape));
    TRN_CHECK_ARG(c < 0 || t->count == c, "%s must have the same number of elements as the channels of x, got %lld and %lld", what, (long long)t->count, (long long)c);
    return TRN_OK;
}
static bool read_activation(bool *relu, const trn_node *n)
{
    const char *a = trn_attr_str(n, "activation_mode");
    *relu = a && !strcmp(a, "Relu");
    return *relu || !a || !*a || !strcmp(a, "Identity");
}

/* y, batch mean, batch variance, reserve 1, reserve 2 (, reserve 3) */
static trn_err k_norm(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *scale = trn_in(k, 1), *offset = trn_in(k, 2), *old_mean = trn_in(k, 3), *old_var = trn_in(k, 4);
    bool training = trn_attr_bool(k->node, "is_training"), relu;
    float eps = trn_attr_float(k->node, "epsilon"), factor = trn_attr_float(k->node, "exponential_avg_factor");
    trn_window w;
    TRN_CHECK_ARG(read_activation(&relu, k->node), "Unsupported activation mode: %.40s", trn_attr_str(k->node, "activation_mode"));
    TRN_CHECK_ARG(k->n_in <= 6, "FusedBatchNorm accepts at most one side input.");
    TRN_TRY(read_format(&w, k->node, &x->shape));
    int64_t c = x->shape.dim[w.first ? 1 : x->shape.rank - 1];
    TRN_TRY(per_channel(scale, c, "scale"));
    TRN_TRY(per_channel(offset, c, "offset"));
    bool uses_old = !training || factor != 1;
    TRN_TRY(per_channel(old_mean, uses_old ? c : -1, "mean"));
    TRN_TRY(per_channel(old_var, uses_old ? c : -1, "variance"));
    const trn_tensor *side = k->n_in > 5 ? trn_in(k, 5) : NULL;
    TRN_CHECK_ARG(!side || trn_shape_eq(&side->shape, &x->shape), "side_input shape must be equal to input shape");
    trn_tensor *v[5] = {NULL}; /* from 1: mean, variance, saved mean, saved variance */
    for (int i = 1; i < 5; i++)
        TRN_TRY(trn_out_new(&v[i], k, i, TRN_FLOAT, &scale->shape));
    if (k->n_out > 5) {
        trn_shape none = trn_shape_scalar();
        trn_tensor *r;
        TRN_TRY(trn_out_new(&r, k, 5, TRN_FLOAT, &none));
        *TRN_DATA_MUT(r, float) = 0;
    }
    int64_t d[5];
    TRN_TRY(trn_window_dims(d, &w, &x->shape, "input"));
    trn_tensor *wx = NULL, *ws = NULL, *wy = NULL;
    TRN_TRY(trn_window_out(&wy, k, 0, &w, x->dtype, d, true));
    float *mean = v[1]->data, *var = v[2]->data, *saved_mean = v[3]->data, *saved_var = v[4]->data;
    if (!x->count) {
        for (int64_t i = 0; i < c; i++)
            mean[i] = var[i] = saved_mean[i] = saved_var[i] = NAN;
        trn_tensor_unref(wy);
        return TRN_OK;
    }
    norm_job j = {.rows = x->count / c, .c = c, .relu = relu, .y = wy->data};
    trn_buf *buf = NULL;
    double *total;
    float *row;
    trn_err e = job_memory(k, &j, &buf, &total, &row);
    if (!e)
        e = trn_window_in(&wx, k, &w, x, true);
    if (!e && side)
        e = trn_window_in(&ws, k, &w, side, true);
    if (!e) {
        float *mul = row, *shift = row + c;
        j.x = wx->data;
        j.side = ws ? ws->data : NULL;
        if (training) {
            totals(k, &j, total);
            for (int64_t i = 0; i < c; i++)
                saved_mean[i] = (float)(total[i] / (double)j.rows);
            j.mean = saved_mean;
            totals(k, &j, total);
            float adjust = (float)j.rows / (float)(j.rows > 1 ? j.rows - 1 : 1);
            const float *om = old_mean->data, *ov = old_var->data;
            for (int64_t i = 0; i < c; i++) {
                saved_var[i] = (float)(total[i] / (double)j.rows);
                mean[i] = factor == 1 ? saved_mean[i] : (1 - factor) * om[i] + factor * saved_mean[i];
                var[i] = factor == 1 ? saved_var[i] * adjust : (1 - factor) * ov[i] + factor * adjust * saved_var[i];
            }
        } else {
            for (int i = 0; i < 2; i++) {
                memcpy(v[1 + 2 * i]->data, old_mean->data, trn_tensor_bytes(old_mean));
                memcpy(v[2 + 2 * i]->data, old_var->data, trn_tensor_bytes(old_var));
            }
        }
        for (int64_t i = 0; i < c; i++) {
            mul[i] = 1 / sqrtf(saved_var[i] + eps) * TRN_DATA(scale, float)[i];
            shift[i] = TRN_DATA(offset, float)[i];
        }
        j.mean = saved_mean;
        j.mul = mul;
        j.add = shift;
        trn_k_for(k, j.rows, TRN_MAX(16384 / c, (int64_t)1), forward_rows, &j);
        e = trn_window_done(k, 0, &w, wy);
    }
    trn_buf_unref(buf);
    trn_tensor_unref(wx);
    trn_tensor_unref(ws);
    trn_tensor_unref(wy);
    return e;
}

/* dx, d scale, d offset, two empty ones from dy, x, scale, mean, variance */
static trn_err k_norm_grad(trn_kctx *k)
{
    const trn_tensor *dy = trn_in(k, 0), *x = trn_in(k, 1), *scale = trn_in(k, 2), *m = trn_in(k, 3), *var = trn_in(k, 4);
    bool training = trn_attr_bool(k->node, "is_training");
    float eps = trn_attr_float(k->node, "epsilon");
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    trn_window w;
    TRN_CHECK_ARG(dy->shape.rank == 4 || dy->shape.rank == 5, "input must be 4 or 5-dimensional: %s", trn_shape_text(ta, &dy->shape));
    TRN_TRY(read_format(&w, k->node, &x->shape));
    int64_t c = x->shape.dim[w.first ? 1 : x->shape.rank - 1];
    TRN_CHECK_ARG(trn_shape_eq(&x->shape, &dy->shape), "x and y_backprop must have same shape, but x has shape %s and y_backprop has shape %s", trn_shape_text(ta, &x->shape),
                  trn_shape_text(tb, &dy->shape));
    TRN_TRY(per_channel(scale, c, "scale"));
    TRN_TRY(per_channel(m, c, "reserve_space_1"));
    TRN_TRY(per_channel(var, c, "reserve_space_2"));
    trn_shape none = trn_shape_vector(0);
    trn_tensor *ds, *doff, *empty;
    TRN_TRY(trn_out_new(&ds, k, 1, TRN_FLOAT, &scale->shape));
    TRN_TRY(trn_out_new(&doff, k, 2, TRN_FLOAT, &scale->shape));
    TRN_TRY(trn_out_new(&empty, k, 3, TRN_FLOAT, &none));
    TRN_TRY(trn_out_new(&empty, k, 4, TRN_FLOAT, &none));
    int64_t d[5];
    TRN_TRY(trn_window_dims(d, &w, &x->shape, "input"));
    trn_tensor *wx = NULL, *wdy = NULL, *out = NULL;
    trn_err e = trn_window_out(&out, k, 0, &w, x->dtype, d, true);
    trn_buf *buf = NULL;
    if (!e && !x->count) {
        memset(ds->data, 0, trn_tensor_bytes(ds));
        memset(doff->data, 0, trn_tensor_bytes(doff));
    } else if (!e) {
        norm_job j = {.rows = x->count / c, .c = c, .y = out->data};
        double *total;
        float *row;
        e = job_memory(k, &j, &buf, &total, &row);
        if (!e)
            e = trn_window_in(&wx, k, &w, x, true);
        if (!e)
            e = trn_window_in(&wdy, k, &w, dy, true);
        if (!e) {
            float *mul = row, *add = row + c, *slope = row + 2 * c;
            j.x = wx->data;
            j.dy = wdy->data;
            j.mean = m->data;
            totals(k, &j, total);
            for (int64_t i = 0; i < c; i++) {
                float inv = 1 / sqrtf(TRN_DATA(var, float)[i] + eps);
                TRN_DATA_MUT(doff, float)[i] = (float)total[i];
                TRN_DATA_MUT(ds, float)[i] = (float)(total[c + i] * (double)inv);
                mul[i] = TRN_DATA(scale, float)[i] * inv;
                add[i] = training ? (float)(total[i] / (double)j.rows) : 0;
                slope[i] = training ? (float)(total[c + i] / (double)j.rows * (double)inv * (double)inv) : 0;
            }
            j.mul = mul;
            j.add = add;
            j.slope = slope;
            trn_k_for(k, j.rows, TRN_MAX(16384 / c, (int64_t)1), backward_rows, &j);
            e = trn_window_done(k, 0, &w, out);
        }
    }
    trn_buf_unref(buf);
    trn_tensor_unref(wx);
    trn_tensor_unref(wdy);
    trn_tensor_unref(out);
    return e;
}

/* ---- local response ------------------------------------------------------------------------------------------------------------- */

typedef struct lrn_job {
    int64_t c, radius;
    float bias, alpha, beta;
    const float *x, *dy, *y;
    float *out;
    _Atomic bool failed;
} lrn_job;

/* s[i] = sum of v over [i - r, i + r]; in double, as a running sum loses little then. */
static void around(double *s, const double *v, int64_t n, int64_t r)
{
    double sum = 0;
    int64_t w = TRN_MIN(r, n);
    for (int64_t i = 0; i < w; i++)
        sum += v[i];
    for (int64_t i = 0; i < n; i++) {
        if (i + r < n)
            sum += v[i + r];
        if (i - r - 1 >= 0)
            sum -= v[i - r - 1];
        s[i] = sum;
    }
}

static void lrn_rows(void *arg, int64_t lo, int64_t hi)
{
    lrn_job *j = arg;
    int64_t c = j->c;
    double *v = malloc(sizeof *v * (size_t)(3 * c)), *s = v + c, *t = s + c;
    if (!v) {
        j->failed = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++) {
        const float *x = j->x + r * c;
        float *out = j->out + r * c;
        for (int64_t i = 0; i < c; i++)
            v[i] = (double)x[i] * (double)x[i];
        around(s, v, c, j->radius);
        for (int64_t i = 0; i < c; i++)
            s[i] = (double)j->bias + (double)j->alpha * s[i];
        if (!j->dy) {
            for (int64_t i = 0; i < c; i++)
                out[i] = x[i] * powf((float)s[i], -j->beta);
            continue;
        }
        const float *dy = j->dy + r * c, *y = j->y + r * c;
        for (int64_t i = 0; i < c; i++)
            v[i] = (double)dy[i] * (double)y[i] / s[i];
        around(t, v, c, j->radius);
        for (int64_t i = 0; i < c; i++)
            out[i] = (float)((double)dy[i] * pow(s[i], -(double)j->beta) - 2.0 * (double)j->alpha * (double)j->beta * (double)x[i] * t[i]);
    }
    free(v);
}

/* LRN: input. LRNGrad: grads, input, output. */
static trn_err lrn(trn_kctx *k, bool grad)
{
    const trn_tensor *x = trn_in(k, grad ? 1 : 0);
    char t[TRN_SHAPE_TEXT];
    lrn_job j = {.radius = trn_attr_int(k->node, "depth_radius"), .bias = trn_attr_float(k->node, "bias"), .alpha = trn_attr_float(k->node, "alpha"),
                 .beta = trn_attr_float(k->node, "beta")};
    TRN_CHECK_ARG(j.radius >= 0 && j.radius <= INT32_MAX, "depth_radius = %lld must be between 0 and 2^31 - 1", (long long)j.radius);
    for (int i = 0; i < k->n_in; i++) {
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 4, "in must be 4-dimensional: %s", trn_shape_text(t, &trn_in(k, i)->shape));
        TRN_CHECK_ARG(trn_shape_eq(&trn_in(k, i)->shape, &x->shape), "input_grads, input_image, and out_image should have the same shape");
    }
    trn_window w = {.space = 2};
    int64_t d[5];
    TRN_TRY(trn_window_dims(d, &w, &x->shape, "in"));
    j.c = d[4];
    trn_tensor *in[3] = {NULL}, *y = NULL;
    trn_err e = trn_window_out(&y, k, 0, &w, x->dtype, d, true);
    for (int i = 0; i < k->n_in && !e; i++)
        e = trn_window_in(&in[i], k, &w, trn_in(k, i), true);
    if (!e && y->count) {
        j.x = in[grad ? 1 : 0]->data;
        j.dy = grad ? in[0]->data : NULL;
        j.y = grad ? in[2]->data : NULL;
        j.out = y->data;
        trn_k_for(k, y->count / j.c, TRN_MAX(2048 / j.c, (int64_t)1), lrn_rows, &j);
        e = j.failed ? trn_err_oom() : trn_window_done(k, 0, &w, y);
    }
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(in[i]);
    trn_tensor_unref(y);
    return e;
}
static trn_err k_lrn(trn_kctx *k) { return lrn(k, false); }
static trn_err k_lrn_grad(trn_kctx *k) { return lrn(k, true); }

/* ---- shape rules ---------------------------------------------------------------------------------------------------------------- */

static int64_t channels(const trn_shctx *s, const trn_shape *x)
{
    const char *f = trn_attr_str(s->node, "data_format");
    return x->rank < 4 ? -1 : x->dim[f && !strncmp(f, "NC", 2) ? 1 : x->rank - 1];
}
static trn_err sh_norm(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    TRN_CHECK_ARG(x->rank < 0 || x->rank == 4 || x->rank == 5, "input must be 4 or 5-dimensional");
    int64_t c = channels(s, x);
    if (c < 0 && s->in[1].rank == 1)
        c = s->in[1].dim[0];
    s->out[0] = *x;
    for (int i = 1; i < 5; i++)
        s->out[i] = trn_shape_vector(c);
    if (s->n_out > 5)
        s->out[5] = trn_shape_unknown(); /* TensorFlow's devices differ */
    return TRN_OK;
}
static trn_err sh_norm_grad(trn_shctx *s)
{
    int64_t c = channels(s, &s->in[1]);
    s->out[0] = s->in[1];
    s->out[1] = s->out[2] = trn_shape_vector(c);
    s->out[3] = s->out[4] = trn_shape_vector(0);
    return TRN_OK;
}

#define EPS "epsilon:float=0.0001, "
#define FACTOR "exponential_avg_factor:float=1.0, "
#define TAIL "data_format:{NHWC,NCHW}=NHWC, is_training:bool=true"
#define TAIL5 "data_format:{NHWC,NCHW,NDHWC,NCDHW}=NHWC, is_training:bool=true"

const trn_op trn_ops_norm[] = {
    {"FusedBatchNorm",
     "x:T, scale:T, offset:T, mean:T, variance:T -> y:T, batch_mean:T, batch_variance:T, reserve_space_1:T, reserve_space_2:T; T:f32, " EPS FACTOR TAIL, sh_norm,
     k_norm, 0},
    {"FusedBatchNormV2",
     "x:T, scale:U, offset:U, mean:U, variance:U -> y:T, batch_mean:U, batch_variance:U, reserve_space_1:U, reserve_space_2:U; T:f16|bf16|f32, U:f32, " EPS FACTOR TAIL,
     sh_norm, k_norm, 0},
    {"FusedBatchNormV3",
     "x:T, scale:U, offset:U, mean:U, variance:U -> y:T, batch_mean:U, batch_variance:U, reserve_space_1:U, reserve_space_2:U, reserve_space_3:U; "
     "T:f16|bf16|f32, U:f32, " EPS FACTOR TAIL5,
     sh_norm, k_norm, 0},
    {"_FusedBatchNormEx",
     "x:T, scale:U, offset:U, mean:U, variance:U, side_input:num_side_inputs*T -> y:T, batch_mean:U, batch_variance:U, reserve_space_1:U, reserve_space_2:U, "
     "reserve_space_3:U; T:f16|bf16|f32, U:f32, " EPS FACTOR "num_side_inputs:int>=0=0, activation_mode:string=\"Identity\", " TAIL,
     sh_norm, k_norm, 0},
    {"FusedBatchNormGrad",
     "y_backprop:T, x:T, scale:T, reserve_space_1:T, reserve_space_2:T -> x_backprop:T, scale_backprop:T, offset_backprop:T, reserve_space_3:T, reserve_space_4:T; "
     "T:f32, " EPS TAIL,
     sh_norm_grad, k_norm_grad, 0},
    {"FusedBatchNormGradV2",
     "y_backprop:T, x:T, scale:f32, reserve_space_1:U, reserve_space_2:U -> x_backprop:T, scale_backprop:U, offset_backprop:U, reserve_space_3:U, "
     "reserve_space_4:U; T:f16|bf16|f32, U:f32, " EPS TAIL,
     sh_norm_grad, k_norm_grad, 0},
    {"FusedBatchNormGradV3",
     "y_backprop:T, x:T, scale:f32, reserve_space_1:U, reserve_space_2:U, reserve_space_3:U -> x_backprop:T, scale_backprop:U, offset_backprop:U, "
     "reserve_space_4:U, reserve_space_5:U; T:f16|bf16|f32, U:f32, " EPS TAIL5,
     sh_norm_grad, k_norm_grad, 0},
    {"LRN", "input:T -> output:T; depth_radius:int=5, bias:float=1.0, alpha:float=1.0, beta:float=0.5, T:f16|bf16|f32=f32", trn_sh_same, k_lrn, 0},
    {"LRNGrad",
     "input_grads:T, input_image:T, output_image:T -> output:T; depth_radius:int=5, bias:float=1.0, alpha:float=1.0, beta:float=0.5, T:f16|bf16|f32=f32",
     trn_sh_same, k_lrn_grad, 0},
    {0},
};
