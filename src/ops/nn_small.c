/* Small neural network kernels: bias, softmax, cross entropy, top-k. Rows are independent, so all of them split over rows. */
#include "ops/kern.h"

#include <math.h>
#include <stdlib.h>

#include "ops/vmath.h"

/* ---- bias ---------------------------------------------------------------------------------------------------------------------- */

static bool nchw(const trn_node *n)
{
    const char *f = trn_attr_str(n, "data_format");
    return f && !strcmp(f, "NCHW");
}

/* value as [outer, channels, inner] */
static trn_err bias_dims(int64_t d[3], const trn_shape *s, bool channels_first)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->rank >= (channels_first ? 2 : 1), "Input tensor must be at least 2D: %s", trn_shape_text(t, s));
    int c = channels_first ? (s->rank >= 3 ? 1 : s->rank - 1) : s->rank - 1;
    d[0] = d[2] = 1;
    d[1] = s->dim[c];
    for (int i = 0; i < s->rank; i++)
        if (i != c)
            d[i < c ? 0 : 2] = trn_times(d[i < c ? 0 : 2], s->dim[i]);
    return TRN_OK;
}

static trn_err k_bias_add(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *b = trn_in(k, 1);
    int64_t d[3];
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank >= 2, "Input tensor must be at least 2D: %s", trn_shape_text(ta, &x->shape));
    TRN_CHECK_ARG(trn_is_vector(b), "Biases must be 1D: %s", trn_shape_text(tb, &b->shape));
    TRN_TRY(bias_dims(d, &x->shape, nchw(k->node)));
    TRN_CHECK_ARG(b->count == d[1], "Must provide as many biases as there are channels: %s vs. %s", trn_shape_text(tb, &b->shape), trn_shape_text(ta, &x->shape));
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (!y->count)
        return TRN_OK;
    size_t size = trn_dtype_size(x->dtype);
    if (y != x)
        memcpy(y->data, x->data, trn_tensor_bytes(x));
    if (d[2] == 1) {
        for (int64_t r = 0; r < d[0]; r++)
            trn_accum(TRN_ACC_ADD, y->dtype, (char *)y->data + (size_t)(r * d[1]) * size, b->data, d[1]);
        return TRN_OK;
    }
    /* Channels first: the bias of one channel, spread over a short row. */
    enum { W = 64 };
    char row[W * 16];
    for (int64_t c = 0; c < d[1]; c++) {
        for (int i = 0; i < W; i++)
            memcpy(row + (size_t)i * size, (const char *)b->data + (size_t)c * size, size);
        for (int64_t o = 0; o < d[0]; o++)
            for (int64_t i = 0; i < d[2]; i += W)
                trn_accum(TRN_ACC_ADD, y->dtype, (char *)y->data + (size_t)((o * d[1] + c) * d[2] + i) * size, row, TRN_MIN((int64_t)W, d[2] - i));
    }
    return TRN_OK;
}

/* Sum over everything but the channels: rows in blocks, so that the error stays small. */
static trn_err k_bias_add_grad(trn_kctx *k)
{
    const trn_tensor *g = trn_in(k, 0);
    int64_t d[3];
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(g->shape.rank >= 2, "Input tensor must be at least 2D: %s", trn_shape_text(t, &g->shape));
    TRN_TRY(bias_dims(d, &g->shape, nchw(k->node)));
    trn_shape s = trn_shape_vector(d[1]);
    trn_tensor *y, *part, *src = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, g->dtype, &s));
    if (!g->count) {
        trn_zero_elems(y, 0, y->count);
        return TRN_OK;
    }
    bool half = trn_is_half(g->dtype);
    trn_dtype dt = half ? TRN_FLOAT : g->dtype;
    size_t size = trn_dtype_size(dt);
    trn_shape two = {.rank = 2, .dim = {2, d[1]}}; /* the total, and the block's */
    TRN_TRY(trn_tensor_new(&part, dt, &two));
    memset(part->data, 0, trn_tensor_bytes(part));
    trn_err e = TRN_OK;
    if (half) {
        e = trn_tensor_new(&src, TRN_FLOAT, &g->shape);
        if (!e)
            trn_widen(src->data, g->data, g->dtype, g->count);
    } else if (d[2] != 1) {
        e = trn_tensor_new(&src, dt, &g->shape);
    }
    if (!e && d[2] != 1) { /* to [outer, inner, channels] */
        trn_tensor *from = half ? src : (trn_tensor *)g, *to = src;
        if (half)
            e = trn_tensor_new(&to, TRN_FLOAT, &g->shape);
        if (!e)
            e = trn_block_copy(k, to, 0, (int64_t[]){d[1] * d[2], d[1], 1}, from, 0, (int64_t[]){d[1] * d[2], 1, d[2]}, (int64_t[]){d[0], d[2], d[1]}, 3);
        if (half) {
            trn_tensor_unref(src);
            src = to;
        }
    }
    if (!e) {
        const char *x = src ? src->data : g->data;
        char *total = part->data, *block = total + (size_t)d[1] * size;
        int64_t rows = d[0] * d[2];
        for (int64_t r = 0; r < rows && d[1];) {
            int64_t end = TRN_MIN(r + 64, rows);
            memset(block, 0, (size_t)d[1] * size);
            for (; r < end; r++)
                trn_accum(TRN_ACC_ADD, dt, block, x + (size_t)(r * d[1]) * size, d[1]);
            trn_accum(TRN_ACC_ADD, dt, total, block, d[1]);
        }
        if (half)
            trn_narrow(y->data, (const float *)(const void *)total, y->dtype, d[1]);
        else if (d[1])
            memcpy(y->data, total, (size_t)d[1] * size);
    }
    trn_tensor_unref(part);
    trn_tensor_unref(src);
    return e;
}
static trn_err sh_bias_add_grad(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    bool first = nchw(s->node);
    s->out[0] = trn_shape_vector(x->rank < 2 ? -1 : x->dim[first && x->rank >= 3 ? 1 : x->rank - 1]);
    return TRN_OK;
}

/* ---- softmax --------------------------------------------------------------------------------------------------------------------- */

TRN_SIMD static float row_max_f32(const float *x, int64_t n)
{
    float m[16];
    for (int j = 0; j < 16; j++)
        m[j] = -INFINITY;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            m[j] = x[i + j] > m[j] || x[i + j] != x[i + j] ? x[i + j] : m[j];
    for (; i < n; i++)
        m[0] = x[i] > m[0] || x[i] != x[i] ? x[i] : m[0];
    for (int j = 1; j < 16; j++)
        m[0] = m[j] > m[0] || m[j] != m[j] ? m[j] : m[0];
    return m[0];
}
/* y = exp(x - max), returns the sum */
TRN_SIMD static float exp_sum_f32(float *y, const float *x, int64_t n, float max)
{
    float s[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            float e = trn_v_expf(x[i + j] - max);
            y[i + j] = e;
            s[j] += e;
        }
    for (; i < n; i++) {
        y[i] = trn_v_expf(x[i] - max);
        s[0] += y[i];
    }
    for (int j = 1; j < 16; j++)
        s[0] += s[j];
    return s[0];
}

/* Softmax or log-softmax of one row, in place allowed. */
static void softmax_f32(float *y, const float *x, int64_t n, bool log)
{
    float max = row_max_f32(x, n);
    if (!log) {
        float inv = 1 / exp_sum_f32(y, x, n, max);
        for (int64_t i = 0; i < n; i++)
            y[i] *= inv;
        return;
    }
    float buf[256], sum = 0;
    for (int64_t i = 0; i < n; i += 256)
        sum += exp_sum_f32(buf, x + i, TRN_MIN((int64_t)256, n - i), max);
    float ls = logf(sum);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - max - ls;
}
static void softmax_f64(double *y, const double *x, int64_t n, bool log_)
{
    double max = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max || x[i] != x[i] ? x[i] : max;
    for (int64_t i = 0; i < n; i++) {
        double e = exp(x[i] - max);
        if (!log_)
            y[i] = e;
        sum += e;
    }
    double ls = log(sum);
    for (int64_t i = 0; i < n; i++)
        y[i] = log_ ? x[i] - max - ls : y[i] / sum;
}

typedef struct rows_job {
    const trn_tensor *x, *labels;
    trn_tensor *y, *loss;
    int64_t n;      /* row length */
    int64_t xs, ls; /* row steps of features and labels: 0 repeats one row */
    int xe, le;     /* element steps, likewise */
    bool log;
    _Atomic bool oom;
} rows_job;

static void softmax_part(void *arg, int64_t lo, int64_t hi)
{
    rows_job *j = arg;
    int64_t n = j->n;
    float *wide = NULL;
    if (trn_is_half(j->x->dtype) && !(wide = malloc(sizeof *wide * (size_t)n))) {
        j->oom = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++)
        if (wide) {
            trn_widen(wide, TRN_DATA(j->x, uint16_t) + r * n, j->x->dtype, n);
            softmax_f32(wide, wide, n, j->log);
            trn_narrow(TRN_DATA_MUT(j->y, uint16_t) + r * n, wide, j->y->dtype, n);
        } else if (j->x->dtype == TRN_FLOAT) {
            softmax_f32(TRN_DATA_MUT(j->y, float) + r * n, TRN_DATA(j->x, float) + r * n, n, j->log);
        } else {
            softmax_f64(TRN_DATA_MUT(j->y, double) + r * n, TRN_DATA(j->x, double) + r * n, n, j->log);
        }
    free(wide);
}

static trn_err softmax(trn_kctx *k, bool log)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank >= 1, "logits must have >= 1 dimension, got scalar");
    rows_job j = {.x = x, .log = log, .n = x->shape.dim[x->shape.rank - 1]};
    TRN_TRY(trn_out_like(&j.y, k, 0, 0));
    if (x->count == 0)
        return TRN_OK;
    trn_k_for(k, x->count / j.n, TRN_MAX((int64_t)4096 / j.n, (int64_t)1), softmax_part, &j);
    return j.oom ? trn_err_oom() : TRN_OK;
}
static trn_err k_softmax(trn_kctx *k) { return softmax(k, false); }
static trn_err k_log_softmax(trn_kctx *k) { return softmax(k, true); }

/* ---- cross entropy ------------------------------------------------------------------------------------------------------------------ */

/* For a row: loss = Σ labels · (log Σ e^(x - max) - (x - max)), backprop = softmax - labels. A label of 0 counts 0 even for x = -inf. */
static float xent_f32(float *back, const float *x, int xe, const float *labels, int le, int64_t n)
{
    float max = -INFINITY, sum = 0, loss = 0;
    for (int64_t i = 0; i < n; i++)
        max = x[i * xe] > max || x[i * xe] != x[i * xe] ? x[i * xe] : max;
    for (int64_t i = 0; i < n; i++) {
        back[i] = trn_v_expf(x[i * xe] - max);
        sum += back[i];
    }
    float ls = logf(sum);
    for (int64_t i = 0; i < n; i++) {
        float l = labels[i * le];
        loss += l == 0 ? 0 : l * (ls - (x[i * xe] - max));
        back[i] = back[i] / sum - l;
    }
    return loss;
}
static double xent_f64(double *back, const double *x, int xe, const double *labels, int le, int64_t n)
{
    double max = -(double)INFINITY, sum = 0, loss = 0;
    for (int64_t i = 0; i < n; i++)
        max = x[i * xe] > max || x[i * xe] != x[i * xe] ? x[i * xe] : max;
    for (int64_t i = 0; i < n; i++) {
        back[i] = exp(x[i * xe] - max);
        sum += back[i];
    }
    double ls = log(sum);
    for (int64_t i = 0; i < n; i++) {
        double l = labels[i * le];
        loss += l == 0 ? 0 : l * (ls - (x[i * xe] - max));
        back[i] = back[i] / sum - l;
    }
    return loss;
}

static void xent_part(void *arg, int64_t lo, int64_t hi)
{
    rows_job *j = arg;
    int64_t n = j->n;
    float *wide = NULL;
    if (trn_is_half(j->x->dtype) && !(wide = malloc(3 * sizeof *wide * (size_t)n))) {
        j->oom = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++)
        if (wide) {
            trn_widen(wide, TRN_DATA(j->x, uint16_t) + r * j->xs, j->x->dtype, j->xe ? n : 1);
            trn_widen(wide + n, TRN_DATA(j->labels, uint16_t) + r * j->ls, j->x->dtype, j->le ? n : 1);
            float loss = xent_f32(wide + 2 * n, wide, j->xe, wide + n, j->le, n);
            trn_narrow(TRN_DATA_MUT(j->y, uint16_t) + r * n, wide + 2 * n, j->y->dtype, n);
            trn_narrow(TRN_DATA_MUT(j->loss, uint16_t) + r, &loss, j->y->dtype, 1);
        } else if (j->x->dtype == TRN_FLOAT) {
            TRN_DATA_MUT(j->loss, float)[r] = xent_f32(TRN_DATA_MUT(j->y, float) + r * n, TRN_DATA(j->x, float) + r * j->xs, j->xe,
                                                       TRN_DATA(j->labels, float) + r * j->ls, j->le, n);
        } else {
            TRN_DATA_MUT(j->loss, double)[r] = xent_f64(TRN_DATA_MUT(j->y, double) + r * n, TRN_DATA(j->x, double) + r * j->xs, j->xe,
                                                        TRN_DATA(j->labels, double) + r * j->ls, j->le, n);
        }
    free(wide);
}

static trn_err k_xent(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *l = trn_in(k, 1);
    trn_bcast b;
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(trn_bcast_make(&b, &x->shape, &l->shape));
    TRN_CHECK_ARG(b.out.rank == 2, "logits and labels must be either 2-dimensional, or broadcast to be 2-dimensional: %s and %s", trn_shape_text(ta, &x->shape),
                  trn_shape_text(tb, &l->shape));
    int64_t rows = b.out.dim[0], n = b.out.dim[1];
    TRN_CHECK_ARG(n > 0 || rows == 0, "logits and labels must have at least one class");
    rows_job j = {.x = x, .labels = l, .n = n};
    const trn_tensor *two[2] = {x, l};
    int64_t *step[2] = {&j.xs, &j.ls};
    int *elem[2] = {&j.xe, &j.le};
    for (int i = 0; i < 2; i++) {
        const trn_shape *s = &two[i]->shape;
        int64_t cols = s->rank ? s->dim[s->rank - 1] : 1;
        *elem[i] = cols != 1 || n == 1;
        *step[i] = s->rank == 2 && s->dim[0] != 1 ? cols : 0;
    }
    trn_shape ls = trn_shape_vector(rows);
    TRN_TRY(trn_out_new(&j.loss, k, 0, x->dtype, &ls));
    TRN_TRY(trn_out_new(&j.y, k, 1, x->dtype, &b.out));
    if (j.y->count == 0)
        return TRN_OK;
    trn_k_for(k, rows, TRN_MAX((int64_t)4096 / n, (int64_t)1), xent_part, &j);
    return j.oom ? trn_err_oom() : TRN_OK;
}
static trn_err sh_xent(trn_shctx *s)
{
    trn_shape r;
    TRN_TRY(trn_sh_broadcast(&r, &s->in[0], &s->in[1]));
    TRN_CHECK_ARG(r.rank < 0 || r.rank == 2, "logits and labels must be matrices");
    s->out[1] = r;
    s->out[0] = trn_shape_vector(r.rank == 2 ? r.dim[0] : -1);
    return TRN_OK;
}

static void sparse_xent_part(void *arg, int64_t lo, int64_t hi)
{
    rows_job *j = arg;
    int64_t n = j->n;
    float *wide = NULL;
    if (trn_is_half(j->x->dtype) && !(wide = malloc(sizeof *wide * (size_t)n))) {
        j->oom = true;
        return;
    }
    for (int64_t r = lo; r < hi; r++) {
        int64_t c = trn_int_at(j->labels, r);
        if (j->x->dtype == TRN_DOUBLE) {
            const double *x = TRN_DATA(j->x, double) + r * n;
            double *y = TRN_DATA_MUT(j->y, double) + r * n;
            softmax_f64(y, x, n, true);
            TRN_DATA_MUT(j->loss, double)[r] = -y[c];
            for (int64_t i = 0; i < n; i++)
                y[i] = exp(y[i]);
            y[c] -= 1;
            continue;
        }
        const float *x = TRN_DATA(j->x, float) + r * n;
        float *y = wide ? wide : TRN_DATA_MUT(j->y, float) + r * n;
        if (wide) {
            trn_widen(wide, TRN_DATA(j->x, uint16_t) + r * n, j->x->dtype, n);
            x = wide;
        }
        float max = row_max_f32(x, n), at = x[c] - max, sum = exp_sum_f32(y, x, n, max), inv = 1 / sum, loss = logf(sum) - at;
        for (int64_t i = 0; i < n; i++)
            y[i] *= inv;
        y[c] -= 1;
        if (wide) {
            trn_narrow(TRN_DATA_MUT(j->y, uint16_t) + r * n, wide, j->y->dtype, n);
            trn_narrow(TRN_DATA_MUT(j->loss, uint16_t) + r, &loss, j->y->dtype, 1);
        } else {
            TRN_DATA_MUT(j->loss, float)[r] = loss;
        }
    }
    free(wide);
}

static trn_err k_sparse_xent(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *l = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 2, "logits must be 2-D, but got shape %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(trn_is_vector(l), "labels must be 1-D, but got shape %s", trn_shape_text(t, &l->shape));
    TRN_CHECK_ARG(l->count == x->shape.dim[0], "logits and labels must have the same first dimension, got %lld and %lld", (long long)x->shape.dim[0],
                  (long long)l->count);
    int64_t n = x->shape.dim[1];
    TRN_CHECK_ARG(n > 0, "Must have at least one class");
    for (int64_t i = 0; i < l->count; i++)
        TRN_CHECK_ARG(trn_int_at(l, i) >= 0 && trn_int_at(l, i) < n, "Received a label value of %lld which is outside the valid range of [0, %lld).",
                      (long long)trn_int_at(l, i), (long long)n);
    rows_job j = {.x = x, .labels = l, .n = n};
    TRN_TRY(trn_out_new(&j.loss, k, 0, x->dtype, &l->shape));
    TRN_TRY(trn_out_new(&j.y, k, 1, x->dtype, &x->shape));
    if (x->count == 0)
        return TRN_OK;
    trn_k_for(k, l->count, TRN_MAX((int64_t)4096 / n, (int64_t)1), sparse_xent_part, &j);
    return j.oom ? trn_err_oom() : TRN_OK;
}
static trn_err sh_sparse_xent(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 2));
    TRN_TRY(trn_sh_rank_of(s, 1, 1));
    s->out[1] = s->in[0];
    s->out[0] = trn_shape_vector(s->in[0].rank == 2 && s->in[0].dim[0] >= 0 ? s->in[0].dim[0] : s->in[1].rank == 1 ? s->in[1].dim[0] : -1);
    return TRN_OK;
}

/* ---- top k -------------------------------------------------------------------------------------------------------------------------- */

/* Does element p of the row come before element q? Larger first, then the lower index. */
#define BEFORE(op, T, W, tag, ...)                                                                                     \
    static bool before_##tag(const void *row, int64_t p, int64_t q)                                                    \
    {                                                                                                                  \
        const T *x = row;                                                                                              \
        return x[p] > x[q] || (x[p] == x[q] && p < q);                                                                 \
    }
TRN_EACH_INT(BEFORE, before)
TRN_EACH_FLOAT(BEFORE, before)
typedef bool (*before_fn)(const void *, int64_t, int64_t);
static const before_fn befores[TRN_DTYPE_END] = {TRN_TAB_INT(before), TRN_TAB_FLOAT(before)};

/* A heap whose root is the worst of the best. */
static void sift(int64_t *h, int64_t n, int64_t i, const void *row, before_fn before)
{
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= n)
            return;
        if (c + 1 < n && before(row, h[c], h[c + 1]))
            c++;
        if (before(row, h[c], h[i]))
            return;
        int64_t t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

/* Where the best `want` of a row of n are, the best first. */
static void pick(int64_t *h, int64_t want, const void *row, int64_t n, before_fn before)
{
    for (int64_t i = 0; i < want; i++)
        h[i] = i;
    for (int64_t i = want / 2 - 1; i >= 0; i--)
        sift(h, want, i, row, before);
    for (int64_t i = want; i < n; i++)
        if (before(row, i, h[0])) {
            h[0] = i;
            sift(h, want, 0, row, before);
        }
    for (int64_t m = want - 1; m > 0; m--) { /* the worst goes last, and so on */
        int64_t t = h[0];
        h[0] = h[m];
        h[m] = t;
        sift(h, m, 0, row, before);
    }
}

static trn_err topk(trn_kctx *k, int64_t want)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(want >= 0, "Need k >= 0, got %lld", (long long)want);
    TRN_CHECK_ARG(x->shape.rank >= 1, "input must be >= 1-D, got a scalar");
    int64_t n = x->shape.dim[x->shape.rank - 1];
    TRN_CHECK_ARG(n >= want, "input must have at least k columns. Had %lld, needed %lld", (long long)n, (long long)want);
    trn_shape s = x->shape;
    s.dim[s.rank - 1] = want;
    trn_tensor *v, *idx, *w = NULL;
    TRN_TRY(trn_out_new(&v, k, 0, x->dtype, &s));
    TRN_TRY(trn_out_new(&idx, k, 1, k->node->out_types[1], &s));
    if (v->count == 0)
        return TRN_OK;
    if (trn_is_half(x->dtype)) {
        TRN_TRY(trn_tensor_new(&w, TRN_FLOAT, &x->shape));
        trn_widen(w->data, x->data, x->dtype, x->count);
    }
    trn_dtype dt = w ? TRN_FLOAT : x->dtype;
    before_fn before = befores[dt];
    size_t size = trn_dtype_size(dt), vs = trn_dtype_size(x->dtype);
    int64_t *h = malloc(sizeof *h * (size_t)want);
    if (!h) {
        trn_tensor_unref(w);
        return trn_err_oom();
    }
    const char *data = w ? w->data : x->data;
    for (int64_t r = 0; r < x->count / n; r++) {
        pick(h, want, data + (size_t)(r * n) * size, n, before);
        for (int64_t i = 0; i < want; i++) {
            memcpy((char *)v->data + (size_t)(r * want + i) * vs, (const char *)x->data + (size_t)(r * n + h[i]) * vs, vs);
            trn_int_put(idx, r * want + i, h[i]);
        }
    }
    free(h);
    trn_tensor_unref(w);
    return TRN_OK;
}
static trn_err k_topk(trn_kctx *k) { return topk(k, trn_attr_int(k->node, "k")); }
static trn_err k_topk_v2(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 1)), "k must be scalar");
    return topk(k, trn_int_at(trn_in(k, 1), 0));
}
static trn_err sh_topk(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->in[0].rank > 0) {
        int64_t n = -1;
        if (s->n_in == 1)
            n = trn_attr_int(s->node, "k");
        else if (s->value && s->value[1] && s->value[1]->count == 1)
            n = trn_int_at(s->value[1], 0);
        s->out[0].dim[s->out[0].rank - 1] = n < 0 ? -1 : n;
    }
    s->out[1] = s->out[0];
    return TRN_OK;
}

/* ApproxTopK: along which dim, and how many. Without aggregate_to_topk it is what a TPU's reduction by windows of 128 (1024) leaves, for the sake of the same shape. */
static trn_err approx_size(int64_t *out, int *axis, const trn_node *node, const trn_shape *x)
{
    int64_t k = trn_attr_int(node, "k"), override = trn_attr_int(node, "reduction_input_size_override"), tile = x->rank == 1 ? 1024 : 128;
    double recall = (double)trn_attr_float(node, "recall_target");
    TRN_CHECK_ARG(x->rank >= 1, "input must be >= 1-D, got a scalar");
    TRN_TRY(trn_axis(axis, trn_attr_int(node, "reduction_dimension"), x->rank, "reduction dimension"));
    TRN_CHECK_ARG(recall > 0 && recall <= 1, "Invalid recall target: %g. Valid value range in : [0, 1.0].", recall);
    int64_t n = x->dim[*axis], size = override >= 0 ? override : n;
    *out = trn_attr_bool(node, "aggregate_to_topk") ? k : -1;
    if (n < 0)
        return TRN_OK;
    TRN_CHECK_ARG(n >= k && n <= INT32_MAX, "input must have last dimension >= k = %lld but was %lld", (long long)k, (long long)n);
    if (*out >= 0)
        return TRN_OK;
    *out = n;
    if (n <= tile || recall == 1)
        return TRN_OK;
    int64_t windows = (int64_t)fmin(fmax((double)(1 - k) / log(recall), (double)tile), (double)n);
    int halves = 0, most = 0;
    while (halves < 62 && size / windows >> (halves + 1))
        halves++;
    while (INT64_C(1) << most < n / tile)
        most++;
    if (k == 1)
        *out = tile;
    else if (halves) {
        int64_t tiles = (n + tile - 1) / tile, by = INT64_C(1) << TRN_MIN(halves, most);
        *out = (tiles + by - 1) / by * tile;
    }
    TRN_CHECK_ARG(*out <= n, "reduction_input_size_override of %lld does not go with %lld elements", (long long)override, (long long)n);
    return TRN_OK;
}

/* Exact: that recalls all of them. */
static trn_err k_approx_topk(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    bool max = trn_attr_bool(k->node, "is_max_k");
    int axis;
    int64_t want, inner = 1;
    TRN_TRY(approx_size(&want, &axis, k->node, &x->shape));
    trn_shape s = x->shape;
    int64_t n = s.dim[axis];
    s.dim[axis] = want;
    for (int i = axis + 1; i < s.rank; i++)
        inner = trn_times(inner, s.dim[i]);
    trn_tensor *v, *idx;
    trn_buf *buf;
    TRN_TRY(trn_out_new(&v, k, 0, x->dtype, &s));
    TRN_TRY(trn_out_new(&idx, k, 1, TRN_INT32, &s));
    if (!v->count)
        return TRN_OK;
    TRN_TRY(trn_buf_new(&buf, (size_t)want * sizeof(int64_t) + (size_t)n * sizeof(float)));
    int64_t *h = (int64_t *)(void *)buf->data;
    float *line = (float *)(void *)(h + want);
    size_t size = trn_dtype_size(x->dtype);
    for (int64_t r = 0; r < x->count / n; r++) {
        int64_t from = r / inner * n * inner + r % inner, to = r / inner * want * inner + r % inner;
        for (int64_t i = 0; i < n; i++) {
            const char *e = (const char *)x->data + (size_t)(from + i * inner) * size;
            if (x->dtype == TRN_FLOAT)
                memcpy(&line[i], e, sizeof *line);
            else
                trn_widen(&line[i], e, x->dtype, 1);
            line[i] = max ? line[i] : -line[i];
        }
        pick(h, want, line, n, before_f32);
        for (int64_t i = 0; i < want; i++) {
            memcpy((char *)v->data + (size_t)(to + i * inner) * size, (const char *)x->data + (size_t)(from + h[i] * inner) * size, size);
            trn_int_put(idx, to + i * inner, h[i]);
        }
    }
    trn_buf_unref(buf);
    return TRN_OK;
}
static trn_err sh_approx_topk(trn_shctx *s)
{
    int axis;
    int64_t want;
    if (s->in[0].rank < 0)
        return TRN_OK;
    TRN_TRY(approx_size(&want, &axis, s->node, &s->in[0]));
    s->out[0] = s->in[0];
    s->out[0].dim[axis] = want;
    s->out[1] = s->out[0];
    return TRN_OK;
}

static trn_err in_topk(trn_kctx *k, int64_t want)
{
    const trn_tensor *p = trn_in(k, 0), *t = trn_in(k, 1);
    TRN_CHECK_ARG(p->shape.rank == 2, "predictions must be 2-dimensional");
    TRN_CHECK_ARG(trn_is_vector(t), "targets must be 1-dimensional");
    TRN_CHECK_ARG(p->shape.dim[0] == t->count, "First dimension of predictions %lld must match length of targets %lld", (long long)p->shape.dim[0],
                  (long long)t->count);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_BOOL, &t->shape));
    int64_t n = p->shape.dim[1];
    for (int64_t r = 0; r < t->count; r++) {
        const float *x = TRN_DATA(p, float) + r * n;
        int64_t at = trn_int_at(t, r), above = 0;
        bool known = at >= 0 && at < n && isfinite(x[at]);
        for (int64_t i = 0; i < n && known; i++) {
            known = isfinite(x[i]);
            above += x[i] > x[at];
        }
        TRN_DATA_MUT(y, uint8_t)[r] = known && above < want;
    }
    return TRN_OK;
}
static trn_err k_in_topk(trn_kctx *k) { return in_topk(k, trn_attr_int(k->node, "k")); }
static trn_err k_in_topk_v2(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 2)), "k must be 0-D");
    return in_topk(k, trn_int_at(trn_in(k, 2), 0));
}

const trn_op trn_ops_nn_small[] = {
    {"BiasAdd", "value:T, bias:T -> output:T; T:num, data_format:{NHWC,NCHW}=NHWC", trn_sh_same, k_bias_add, 0},
    {"BiasAddV1", "value:T, bias:T -> output:T; T:num", trn_sh_same, k_bias_add, 0},
    {"BiasAddGrad", "out_backprop:T -> output:T; T:num, data_format:{NHWC,NCHW}=NHWC", sh_bias_add_grad, k_bias_add_grad, 0},
    {"Softmax", "logits:T -> softmax:T; T:float", trn_sh_same, k_softmax, 0},
    {"LogSoftmax", "logits:T -> logsoftmax:T; T:float", trn_sh_same, k_log_softmax, 0},
    {"SoftmaxCrossEntropyWithLogits", "features:T, labels:T -> loss:T, backprop:T; T:float", sh_xent, k_xent, 0},
    {"SparseSoftmaxCrossEntropyWithLogits", "features:T, labels:Tlabels -> loss:T, backprop:T; T:float, Tlabels:i32|i64=i64", sh_sparse_xent,
     k_sparse_xent, 0},
    {"TopK", "input:T -> values:T, indices:i32; k:int>=0, sorted:bool=true, T:real", sh_topk, k_topk, 0},
    {"TopKV2", "input:T, k:Tk -> values:T, indices:index_type; sorted:bool=true, T:real, Tk:i16|i32|i64=i32, index_type:i16|i32|i64=i32", sh_topk,
     k_topk_v2, 0},
    {"ApproxTopK",
     "input:T -> values:T, indices:i32; k:int>=0, reduction_dimension:int=-1, recall_target:float=0.95, is_max_k:bool=true, reduction_input_size_override:int=-1, "
     "aggregate_to_topk:bool=true, T:f16|bf16|f32",
     sh_approx_topk, k_approx_topk, 0},
    {"InTopK", "predictions:f32, targets:T -> precision:bool; k:int, T:i32|i64=i32", trn_sh_like1, k_in_topk, 0},
    {"InTopKV2", "predictions:f32, targets:T, k:T -> precision:bool; T:i32|i64=i32", trn_sh_like1, k_in_topk_v2, 0},
    {0},
};
