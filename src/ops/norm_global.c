/* Batch normalisation of old graphs: mean and variance are inputs. */
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"
#include "ops/window.h"

static const trn_window as_is = {.space = 2};

/* t, m, v, beta, gamma forwards; t, m, v, gamma, backprop backwards: all as float or double. */
typedef struct norm_in {
    trn_tensor *in[5];
    int64_t rows, depth;
    double eps;
    bool scaled;
} norm_in;

static void norm_fini(norm_in *n)
{
    for (int i = 0; i < 5; i++)
        trn_tensor_unref(n->in[i]);
}
static trn_err norm_read(norm_in *n, trn_kctx *k, bool back)
{
    static const char *const name[2][5] = {{"input", "mean", "var", "beta", "gamma"}, {"input", "mean", "var", "gamma", "out_backprop"}};
    const trn_shape *x = &trn_in(k, 0)->shape;
    char t[TRN_SHAPE_TEXT];
    n->eps = (double)trn_attr_float(k->node, "variance_epsilon");
    n->scaled = trn_attr_bool(k->node, "scale_after_normalization");
    for (int i = 0; i < 5; i++) {
        const trn_shape *s = &trn_in(k, i)->shape;
        int rank = i == 0 || (back && i == 4) ? 4 : 1;
        TRN_CHECK_ARG(s->rank == rank, "%s must be %d-dimensional: %s", name[back][i], rank, trn_shape_text(t, s));
        TRN_CHECK_ARG(rank == 4 ? trn_shape_eq(s, x) : s->dim[0] == x->dim[3], "%s does not fit the input's depth of %lld: %s", name[back][i],
                      (long long)x->dim[3], trn_shape_text(t, s));
    }
    n->depth = x->dim[3];
    n->rows = n->depth ? trn_in(k, 0)->count / n->depth : 0;
    for (int i = 0; i < 5; i++)
        TRN_TRY(trn_window_in(&n->in[i], k, &as_is, trn_in(k, i), true));
    return TRN_OK;
}

#define NORM(T, tag, sqrt_)                                                                                            \
    static void norm_##tag(T *y, const norm_in *n, T *by)                                                              \
    {                                                                                                                  \
        const T *x = n->in[0]->data, *m = n->in[1]->data, *v = n->in[2]->data, *beta = n->in[3]->data, *gamma = n->in[4]->data; \
        for (int64_t c = 0; c < n->depth; c++)                                                                         \
            by[c] = 1 / sqrt_(v[c] + (T)n->eps) * (n->scaled ? gamma[c] : 1);                                          \
        for (int64_t r = 0; r < n->rows; r++, x += n->depth, y += n->depth)                                            \
            for (int64_t c = 0; c < n->depth; c++)                                                                     \
                y[c] = (x[c] - m[c]) * by[c] + beta[c];                                                                \
    }                                                                                                                  \
    static void norm_grad_##tag(T *const out[5], const norm_in *n, T *sum)                                             \
    {                                                                                                                  \
        const T *x = n->in[0]->data, *m = n->in[1]->data, *v = n->in[2]->data, *gamma = n->in[3]->data, *d = n->in[4]->data; \
        T *dx = out[0], *dm = out[1], *dv = out[2], *db = out[3], *dg = out[4];                                        \
        memset(sum, 0, sizeof(T) * (size_t)n->depth);                                                                  \
        memset(db, 0, sizeof(T) * (size_t)n->depth);                                                                   \
        for (int64_t r = 0; r < n->rows; r++)                                                                          \
            for (int64_t c = 0; c < n->depth; c++) {                                                                   \
                db[c] += d[r * n->depth + c];                                                                          \
                sum[c] += d[r * n->depth + c] * (x[r * n->depth + c] - m[c]);                                          \
            }                                                                                                          \
        for (int64_t c = 0; c < n->depth; c++) {                                                                       \
            T inv = 1 / sqrt_(v[c] + (T)n->eps), by = n->scaled ? inv * gamma[c] : inv;                                \
            dm[c] = -db[c] * by;                                                                                       \
            dv[c] = sum[c] * (T)-0.5 * by / (v[c] + (T)n->eps);                                                        \
            dg[c] = n->scaled ? sum[c] * inv : 0;                                                                      \
            sum[c] = by;                                                                                               \
        }                                                                                                              \
        for (int64_t r = 0; r < n->rows; r++)                                                                          \
            for (int64_t c = 0; c < n->depth; c++)                                                                     \
                dx[r * n->depth + c] = d[r * n->depth + c] * sum[c];                                                   \
    }
NORM(float, f32, sqrtf)
NORM(double, f64, sqrt)

static trn_err norm_run(trn_kctx *k, const norm_in *n, bool back)
{
    bool wide = trn_in(k, 0)->dtype == TRN_DOUBLE;
    int outs = back ? 5 : 1;
    trn_tensor *y[5] = {NULL};
    void *to[5] = {NULL}, *tmp = malloc(sizeof(double) * ((size_t)n->depth + 1));
    trn_err e = tmp ? TRN_OK : trn_err_oom();
    for (int i = 0; !e && i < outs; i++) {
        trn_tensor *o;
        const trn_shape *s = &n->in[i == 0 ? 0 : 1]->shape;
        e = trn_out_new(&o, k, i, trn_in(k, 0)->dtype, s);
        if (!e && trn_is_half(o->dtype))
            e = trn_tensor_new(&y[i], TRN_FLOAT, s);
        else if (!e)
            y[i] = trn_tensor_ref(o);
        to[i] = e ? NULL : y[i]->data;
    }
    if (!e && n->depth) {
        if (!back && wide)
            norm_f64(to[0], n, tmp);
        else if (!back)
            norm_f32(to[0], n, tmp);
        else if (wide)
            norm_grad_f64((double *const[]){to[0], to[1], to[2], to[3], to[4]}, n, tmp);
        else
            norm_grad_f32((float *const[]){to[0], to[1], to[2], to[3], to[4]}, n, tmp);
    }
    for (int i = 0; i < outs; i++) {
        if (!e)
            e = trn_window_done(k, i, &as_is, y[i]);
        trn_tensor_unref(y[i]);
    }
    free(tmp);
    return e;
}
static trn_err norm_any(trn_kctx *k, bool back)
{
    norm_in n = {0};
    trn_err e = norm_read(&n, k, back);
    if (!e)
        e = norm_run(k, &n, back);
    norm_fini(&n);
    return e;
}
static trn_err norm_forward(trn_kctx *k) { return norm_any(k, false); }
static trn_err norm_back(trn_kctx *k) { return norm_any(k, true); }

static trn_err sh_norm(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 4));
    s->out[0] = s->in[0];
    for (int i = 1; i < s->n_out; i++)
        s->out[i] = s->in[1];
    return TRN_OK;
}

#define ATTRS "T:f16|f32|f64, variance_epsilon:float, scale_after_normalization:bool"

const trn_op trn_ops_norm_global[] = {
    {"BatchNormWithGlobalNormalization", "t:T, m:T, v:T, beta:T, gamma:T -> result:T; " ATTRS, sh_norm, norm_forward, 0},
    {"BatchNormWithGlobalNormalizationGrad", "t:T, m:T, v:T, gamma:T, backprop:T -> dx:T, dm:T, dv:T, db:T, dg:T; " ATTRS, sh_norm, norm_back, 0},
    {0},
};
