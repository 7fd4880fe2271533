/* Stochastic dual coordinate ascent (Shalev-Shwartz and Zhang, 2013): linear models with L1 and L2 regularisation, one dual variable per example.
 *
 * TensorFlow lets threads race over a batch in an order that it draws anew each time; here one thread goes through it, in an order drawn anew likewise. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/philox.h"
#include "ops/state.h"

/* ---- losses ------------------------------------------------------------------------------------------------------------ */

enum { NEWTON_STEPS = 10 };

/* y: label, w: the example's weight, a: its dual variable, wx: prediction; p: partitions of the loss times the example's norm over L2. */
typedef struct loss {
    const char *name;
    double (*dual)(double p, double y, double w, double a, double wx); /* the next dual variable */
    double (*dual_loss)(double a, double y, double w);
    double (*primal_loss)(double wx, double y, double w);
    double (*slope)(double wx, double y); /* of the primal loss */
    double smoothness;
    bool classes; /* labels 0 and 1 mean -1 and 1 */
} loss;

static double clip_dual(double y, double a) { return y * a < 0 ? 0 : y * a > 1 ? y : a; }

static double hinge_dual(double p, double y, double w, double a, double wx) { return clip_dual(y, a + (y - wx) / (p * w)); }
static double hinge_dual_loss(double a, double y, double w) { return a * y < 0 || a * y > 1 ? DBL_MAX : -(a * y) * w; }
static double hinge_primal(double wx, double y, double w) { return TRN_MAX(0.0, 1 - y * wx) * w; }
static double hinge_slope(double wx, double y) { return y * wx < 1 ? -y : 0; }

static double smooth_dual(double p, double y, double w, double a, double wx) { return clip_dual(y, a + (y - wx - a) / (p * w + 1)); }
static double smooth_dual_loss(double a, double y, double w) { return a * y < 0 || a * y > 1 ? DBL_MAX : (-(a * y) + 0.5 * a * a) * w; }
static double smooth_primal(double wx, double y, double w)
{
    double m = y * wx;
    return m >= 1 ? 0 : m <= 0 ? (0.5 - m) * w : (1 - m) * (1 - m) * w * 0.5;
}
static double smooth_slope(double wx, double y) { return y * wx >= 1 ? 0 : y * wx <= 0 ? -y : wx - y; }

static double logistic_dual(double p, double y, double w, double a, double wx)
{
    double x = 0;
    for (int i = 0; i < NEWTON_STEPS; i++) {
        double t = tanh(x);
        double f = -2 * y * x - wx - p * w * (0.5 * (1 + t) / y - a), slope = -2 * y - p * w * (1 - t * t) * 0.5 / y;
        x -= f / slope;
    }
    return 0.5 * (1 + tanh(x)) / y;
}
static double logistic_dual_loss(double a, double y, double w)
{
    double ay = a * y, rest = 1 - ay;
    return (ay * (ay > 0 ? log(ay) : 0) + rest * (rest > 0 ? log(rest) : 0)) * w;
}
static double logistic_primal(double wx, double y, double w)
{
    double m = y * wx;
    return (m > 0 ? log1p(exp(-m)) : log1p(exp(m)) - m) * w;
}
static double logistic_slope(double wx, double y)
{
    double m = y * wx;
    return -y * (m > 0 ? exp(-m) / (1 + exp(-m)) : 1 / (1 + exp(m)));
}

static double poisson_dual(double p, double y, double w, double a, double wx)
{
    double x = y - a > 0 ? log(y - a) : 0;
    for (int i = 0; i < NEWTON_STEPS; i++) {
        double e = exp(x);
        x -= (x - wx - p * w * (y - a - e)) / (1 + p * w * e);
    }
    return y - exp(x);
}
static double poisson_dual_loss(double a, double y, double w) { return y - a == 0 ? 0 : y - a < 0 ? DBL_MAX : (y - a) * (log(y - a) - 1) * w; }
static double poisson_primal(double wx, double y, double w) { return (exp(wx) - wx * y) * w; }
static double poisson_slope(double wx, double y) { return exp(wx) - y; }

static double squared_dual(double p, double y, double w, double a, double wx) { return a + (y - a - wx) / (1 + p * w); }
static double squared_dual_loss(double a, double y, double w) { return a * (0.5 * a - y) * w; }
static double squared_primal(double wx, double y, double w) { return (wx - y) * (wx - y) * w * 0.5; }
static double squared_slope(double wx, double y) { return wx - y; }

static const loss losses[] = {
    {"logistic_loss", logistic_dual, logistic_dual_loss, logistic_primal, logistic_slope, 4, true},
    {"squared_loss", squared_dual, squared_dual_loss, squared_primal, squared_slope, 1, false},
    {"hinge_loss", hinge_dual, hinge_dual_loss, hinge_primal, hinge_slope, 0, true},
    {"smooth_hinge_loss", smooth_dual, smooth_dual_loss, smooth_primal, smooth_slope, 1, true},
    {"poisson_loss", poisson_dual, poisson_dual_loss, poisson_primal, poisson_slope, 1, false},
};

static trn_err convert_label(float *y, const loss *l)
{
    if (l->dual == poisson_dual)
        TRN_CHECK_ARG(!(*y < 0), "Only non-negative labels can be used with the Poisson log loss. Found example with label: %g", (double)*y);
    if (!l->classes)
        return TRN_OK;
    TRN_CHECK_ARG(*y == 0 || *y == 1, "Only labels of 0.0 or 1.0 are supported right now. Found example with label: %g", (double)*y);
    if (*y == 0)
        *y = -1;
    return TRN_OK;
}

/* ---- the batch ------------------------------------------------------------------------------------------------------------ */

typedef struct sparse_col {
    int64_t n;            /* entries */
    const int64_t *id;    /* of the weight of each entry */
    const float *value;   /* NULL: ones */
    const float *nominal; /* weights */
    float *delta;
    int64_t *start;       /* per example its first entry; and one more */
    int64_t *ids;         /* what id points at */
} sparse_col;

typedef struct dense_col {
    int64_t n;
    const float *x, *nominal;
    float *delta;
} dense_col;

typedef struct sdca {
    trn_kctx *k;
    const loss *loss;
    float l2;
    double shrink; /* L1 over L2 */
    int64_t partitions;
    int64_t n; /* examples */
    int n_s, n_d;
    sparse_col *s;
    dense_col *d;
    const float *weight;
    float *label;
    double *norm;   /* of each example, squared */
    int64_t *order;
    float *state;   /* n x 4 */
} sdca;

static double shrink(const sdca *a, double w)
{
    double s = TRN_MAX(fabs(w) - a->shrink, 0.0);
    return s > 0 ? copysign(s, w) : 0;
}

static float shrink_f32(float w, float by)
{
    float s = fabsf(w) - by;
    return w == 0 || !(s > 0) ? 0 : copysignf(s, w);
}

static void predict(double *wx, double *before, const sdca *a, int64_t e)
{
    *wx = *before = 0;
    for (int j = 0; j < a->n_s; j++) {
        const sparse_col *s = &a->s[j];
        for (int64_t i = s->start[e]; i < s->start[e + 1]; i++) {
            double x = s->value ? s->value[i] : 1.0;
            float w = s->nominal[s->id[i]], now = w + s->delta[s->id[i]] * (float)a->partitions;
            *before += x * shrink(a, w);
            *wx += x * shrink(a, now);
        }
    }
    for (int j = 0; j < a->n_d; j++) {
        const dense_col *d = &a->d[j];
        const float *x = d->x + e * d->n;
        float s = 0, b = 0, by = (float)a->shrink, parts = (float)a->partitions;
        for (int64_t i = 0; i < d->n; i++) {
            b += x[i] * shrink_f32(d->nominal[i], by);
            s += x[i] * shrink_f32(d->nominal[i] + d->delta[i] * parts, by);
        }
        *before += b;
        *wx += s;
    }
}

static void update_weights(const sdca *a, int64_t e, double by)
{
    for (int j = 0; j < a->n_s; j++) {
        const sparse_col *s = &a->s[j];
        for (int64_t i = s->start[e]; i < s->start[e + 1]; i++)
            s->delta[s->id[i]] = (float)(s->delta[s->id[i]] + (s->value ? s->value[i] : 1.0) * by);
    }
    for (int j = 0; j < a->n_d; j++) {
        const dense_col *d = &a->d[j];
        for (int64_t i = 0; i < d->n; i++)
            d->delta[i] += d->x[e * d->n + i] * (float)by;
    }
}

static void train(const sdca *a, int64_t e)
{
    float *st = a->state + e * 4, y = a->label[e], w = a->weight[e];
    double wx, before, old = st[0];
    predict(&wx, &before, a, e);
    double next = a->loss->dual((double)a->partitions * (a->norm[e] / a->l2), y, w, old, wx);
    update_weights(a, e, (next - old) * w / a->l2);
    st[0] = (float)next;
    st[1] = (float)a->loss->primal_loss(before, y, w);
    st[2] = (float)a->loss->dual_loss(old, y, w);
    st[3] = w;
}

/* ---- the order of the examples ---------------------------------------------------------------------------------------------- */

static uint64_t below(trn_philox1 *g, uint64_t n)
{
    uint64_t x = trn_philox1_next(g);
    return (x << 32 | trn_philox1_next(g)) % n;
}

static void shuffle(sdca *a, trn_philox1 *g)
{
    for (int64_t i = 0; i < a->n; i++)
        a->order[i] = i;
    for (int64_t i = a->n - 1; i > 0; i--) {
        int64_t j = (int64_t)below(g, (uint64_t)i + 1), t = a->order[i];
        a->order[i] = a->order[j];
        a->order[j] = t;
    }
}

typedef struct ranked {
    int64_t at;
    float p;
} ranked;

static int by_rank(const void *a, const void *b)
{
    float x = ((const ranked *)a)->p, y = ((const ranked *)b)->p;
    return x > y ? -1 : x < y;
}

/* Examples far from their optimum more often: one that was drawn c times is kept with probability 10^-c. Then those that never were, the likeliest first. */
static trn_err adapt(sdca *a, trn_philox1 *g)
{
    double *sum = malloc((size_t)a->n * sizeof *sum), total = 0;
    ranked *r = malloc((size_t)a->n * sizeof *r);
    int *count = calloc((size_t)a->n, sizeof *count);
    if (!sum || !r || !count) {
        free(sum);
        free(r);
        free(count);
        return trn_err_oom();
    }
    for (int64_t e = 0; e < a->n; e++) {
        double wx, before;
        predict(&wx, &before, a, e);
        double kappa = a->state[e * 4] + a->loss->slope(wx, a->label[e]);
        float p = (float)(a->weight[e] * sqrt(a->norm[e] + a->l2 * a->loss->smoothness) * fabs(kappa));
        r[e] = (ranked){e, p > 0 && p < INFINITY ? p : 0};
        sum[e] = total += r[e].p;
    }
    int64_t n = 0, retries = 0;
    while (total > 0 && n < a->n && retries < a->n) {
        double v = trn_philox_f64(trn_philox1_next(g), trn_philox1_next(g)) * total;
        int64_t lo = 0, hi = a->n - 1;
        while (lo < hi) {
            int64_t mid = (lo + hi) / 2;
            if (v < sum[mid])
                hi = mid;
            else
                lo = mid + 1;
        }
        if (trn_philox_f64(trn_philox1_next(g), trn_philox1_next(g)) > pow(0.1, count[lo])) {
            retries++;
            continue;
        }
        count[lo]++;
        a->order[n++] = lo;
    }
    int64_t unseen = 0;
    for (int64_t e = 0; e < a->n; e++)
        if (!count[e])
            r[unseen++] = r[e];
    if (unseen)
        qsort(r, (size_t)unseen, sizeof *r, by_rank);
    for (int64_t i = 0; n < a->n; i++)
        a->order[n++] = r[i].at;
    free(sum);
    free(r);
    free(count);
    return TRN_OK;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------------------ */

static const trn_tensor *arg(const sdca *a, const char *name, int i) { return trn_in(a->k, trn_in_arg(a->k, name, NULL) + i); }

/* Weights of a column are found by their numbers in sparse_indices. */
static trn_err number_entries(sparse_col *s, const trn_tensor *features, const trn_tensor *indices)
{
    trn_map *m = trn_map_new();
    for (int64_t i = 0; i < indices->count; i++)
        (void)trn_map_puti(m, (uint64_t)TRN_DATA(indices, int64_t)[i], (void *)(uintptr_t)(i + 1));
    trn_err err = TRN_OK;
    for (int64_t i = 0; !err && i < s->n; i++) {
        uintptr_t id = (uintptr_t)trn_map_geti(m, (uint64_t)TRN_DATA(features, int64_t)[i]);
        if (!id)
            err = TRN_BAD("Found sparse feature indices out of valid range: %lld", (long long)TRN_DATA(features, int64_t)[i]);
        s->ids[i] = (int64_t)id - 1;
    }
    trn_map_free(m, NULL);
    return err;
}

/* Entries lie in the order of their examples; those that do not are nobody's, as in TensorFlow. */
static trn_err divide_entries(sdca *a, sparse_col *s, const int64_t *example, int64_t weights)
{
    int64_t *seen = calloc((size_t)weights + 1, sizeof *seen);
    if (!seen)
        return trn_err_oom();
    trn_err err = TRN_OK;
    int64_t at = 0;
    for (int64_t e = 0; !err && e < a->n; e++) {
        s->start[e] = at;
        for (; !err && at < s->n && example[at] == e; at++) {
            if (seen[s->id[at]] == e + 1)
                err = TRN_BAD("Duplicate index in sparse vector.");
            seen[s->id[at]] = e + 1;
            double x = s->value ? s->value[at] : 1.0;
            a->norm[e] += x * x;
        }
    }
    s->start[a->n] = at;
    free(seen);
    return err;
}

static trn_err read_sparse(sdca *a, int j, int with_values)
{
    sparse_col *s = &a->s[j];
    const trn_tensor *ex = arg(a, "sparse_example_indices", j), *ft = arg(a, "sparse_feature_indices", j), *ix = arg(a, "sparse_indices", j), *w = arg(a, "sparse_weights", j);
    TRN_CHECK_ARG(ex->count == ft->count, "Found mismatched example_indices and feature_indices: %lld and %lld", (long long)ex->count, (long long)ft->count);
    TRN_CHECK_ARG(ix->count == w->count, "sparse_indices and sparse_weights of column %d must have the same length, got %lld and %lld", j, (long long)ix->count,
                  (long long)w->count);
    const trn_tensor *v = j < with_values ? arg(a, "sparse_feature_values", j) : NULL;
    TRN_CHECK_ARG(!v || v->count == ex->count, "column %d has %lld entries and %lld values", j, (long long)ex->count, (long long)v->count);
    s->n = ex->count;
    s->value = v ? TRN_DATA(v, float) : NULL;
    s->nominal = TRN_DATA(w, float);
    s->ids = malloc(((size_t)s->n + 1) * sizeof *s->ids);
    s->start = calloc((size_t)a->n + 1, sizeof *s->start);
    if (!s->ids || !s->start)
        return trn_err_oom();
    s->id = s->ids;
    trn_tensor *delta;
    TRN_TRY(trn_out_new(&delta, a->k, 1 + j, TRN_FLOAT, &w->shape));
    s->delta = TRN_DATA_MUT(delta, float);
    memset(s->delta, 0, trn_tensor_bytes(delta));
    TRN_TRY(number_entries(s, ft, ix));
    return divide_entries(a, s, TRN_DATA(ex, int64_t), w->count);
}

static trn_err read_dense(sdca *a, int j)
{
    dense_col *d = &a->d[j];
    const trn_tensor *x = arg(a, "dense_features", j), *w = arg(a, "dense_weights", j);
    TRN_CHECK_ARG(x->shape.rank == 2, "Dense features at index %d must be rank 2 but is rank %d", j, x->shape.rank);
    TRN_CHECK_ARG(x->shape.dim[0] == a->n, "dense features at index %d are of %lld examples, not %lld", j, (long long)x->shape.dim[0], (long long)a->n);
    d->n = x->shape.dim[1];
    TRN_CHECK_ARG(d->n > 0 && d->n <= w->count, "More dense features than we have parameters for: %lld", (long long)d->n);
    TRN_CHECK_ARG(d->n == w->count, "%lld dense features have %lld weights", (long long)d->n, (long long)w->count);
    d->x = TRN_DATA(x, float);
    d->nominal = TRN_DATA(w, float);
    trn_tensor *delta;
    TRN_TRY(trn_out_new(&delta, a->k, 1 + a->n_s + j, TRN_FLOAT, &w->shape));
    d->delta = TRN_DATA_MUT(delta, float);
    memset(d->delta, 0, trn_tensor_bytes(delta));
    for (int64_t e = 0; e < a->n; e++) {
        float s = 0;
        for (int64_t i = 0; i < d->n; i++)
            s += d->x[e * d->n + i] * d->x[e * d->n + i];
        a->norm[e] += s;
    }
    return TRN_OK;
}

static trn_err read_batch(sdca *a)
{
    trn_kctx *k = a->k;
    const trn_tensor *w = arg(a, "example_weights", 0), *y = arg(a, "example_labels", 0), *st = arg(a, "example_state_data", 0);
    a->n = w->count;
    TRN_CHECK_ARG(a->n < INT32_MAX, "Too many examples in a mini-batch: %lld > %d", (long long)a->n, INT32_MAX);
    TRN_CHECK_ARG(y->count == a->n, "Expected %lld example labels but got %lld", (long long)a->n, (long long)y->count);
    TRN_CHECK_ARG(st->shape.rank == 2, "example_state_data must be rank 2 but is rank %d", st->shape.rank);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(st->shape.dim[0] == a->n && st->shape.dim[1] == 4, "Expected shape [%lld,4] for example_state_data, got %s", (long long)a->n, trn_shape_text(text, &st->shape));
    a->weight = TRN_DATA(w, float);
    a->norm = calloc((size_t)a->n + 1, sizeof *a->norm);
    a->order = malloc(((size_t)a->n + 1) * sizeof *a->order);
    a->label = malloc(((size_t)a->n + 1) * sizeof *a->label);
    if (!a->norm || !a->order || !a->label)
        return trn_err_oom();
    for (int64_t e = 0; e < a->n; e++) {
        a->label[e] = TRN_DATA(y, float)[e];
        TRN_TRY(convert_label(&a->label[e], a->loss));
    }
    int with_values = (int)trn_attr_int(k->node, "num_sparse_features_with_values");
    for (int j = 0; j < a->n_s; j++)
        TRN_TRY(read_sparse(a, j, with_values));
    for (int j = 0; j < a->n_d; j++)
        TRN_TRY(read_dense(a, j));
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, TRN_FLOAT, &st->shape));
    memcpy(out->data, st->data, trn_tensor_bytes(st));
    a->state = TRN_DATA_MUT(out, float);
    return TRN_OK;
}

static trn_err regularisation(sdca *a, const trn_node *n)
{
    float l1 = trn_attr_float(n, "l1");
    a->l2 = trn_attr_float(n, "l2");
    a->shrink = l1 / a->l2;
    return TRN_OK;
}

static trn_err sdca_optimizer(trn_kctx *k)
{
    const trn_node *n = k->node;
    sdca a = {.k = k, .n_s = (int)trn_attr_int(n, "num_sparse_features"), .n_d = (int)trn_attr_int(n, "num_dense_features"), .partitions = trn_attr_int(n, "num_loss_partitions")};
    TRN_CHECK_ARG(a.n_s + a.n_d > 0, "Requires at least one feature to train.");
    for (size_t i = 0; i < TRN_COUNTOF(losses); i++)
        if (!strcmp(losses[i].name, trn_attr_str(n, "loss_type")))
            a.loss = &losses[i];
    TRN_CHECK_ARG(a.loss, "Unsupported loss type: %s", trn_attr_str(n, "loss_type"));
    TRN_TRY(regularisation(&a, n));
    a.s = trn_xalloc(((size_t)a.n_s + 1) * sizeof *a.s);
    a.d = trn_xalloc(((size_t)a.n_d + 1) * sizeof *a.d);
    trn_err err = read_batch(&a);
    trn_philox1 g = trn_philox1_of(trn_philox_seed(trn_random64(), trn_random64()));
    if (!err && (trn_attr_bool(n, "adaptative") || trn_attr_bool(n, "adaptive")))
        err = adapt(&a, &g);
    else if (!err)
        shuffle(&a, &g);
    for (int64_t i = 0; !err && i < a.n; i++)
        train(&a, a.order[i]);
    for (int j = 0; j < a.n_s; j++) {
        free(a.s[j].ids);
        free(a.s[j].start);
    }
    free(a.s);
    free(a.d);
    free(a.norm);
    free(a.order);
    free(a.label);
    return err;
}

/* ---- SdcaShrinkL1, SdcaFprint -------------------------------------------------------------------------------------------------- */

static trn_err shrink_variable(trn_kctx *k, int i, float by)
{
    trn_var *v;
    TRN_TRY(trn_k_var(&v, k, i, TRN_FLOAT));
    trn_var_lock(v);
    trn_tensor *t;
    trn_err err = v->value ? trn_var_writable(&t, v) : trn_var_uninit(v);
    for (int64_t j = 0; !err && j < t->count; j++)
        TRN_DATA_MUT(t, float)[j] = shrink_f32(TRN_DATA(t, float)[j], by);
    trn_var_unlock(v);
    trn_resource_unref(v);
    return err;
}

static trn_err sdca_shrink(trn_kctx *k)
{
    sdca a = {.k = k};
    TRN_TRY(regularisation(&a, k->node));
    for (int i = 0; i < k->n_in; i++)
        TRN_TRY(shrink_variable(k, i, (float)a.shrink));
    return TRN_OK;
}

static trn_err sdca_fprint(trn_kctx *k)
{
    const trn_tensor *t = trn_in(k, 0);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(t->shape.rank == 1, "Input must be a vector, got shape %s", trn_shape_text(text, &t->shape));
    trn_shape s = trn_shape_of(2, t->count, (int64_t)2);
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, TRN_INT64, &s));
    for (int64_t i = 0; i < t->count; i++) {
        const trn_str *x = &TRN_DATA(t, trn_str)[i];
        uint64_t h[2];
        trn_fingerprint128(h, trn_str_p(x), x->len);
        TRN_DATA_MUT(out, int64_t)[2 * i] = (int64_t)(h[0] >= 2 ? h[0] : h[0] + ~UINT64_C(1)); /* 0 and 1 mean something to hash tables */
        TRN_DATA_MUT(out, int64_t)[2 * i + 1] = (int64_t)h[1];
    }
    return TRN_OK;
}

static trn_err sh_optimizer(trn_shctx *s)
{
    trn_shape state = s->in[s->n_in - 1];
    TRN_CHECK_ARG(state.rank < 0 || state.rank == 2, "example_state_data must be rank 2");
    s->out[0] = trn_shape_of(2, state.rank == 2 ? state.dim[0] : -1, (int64_t)4);
    int weights = s->n_in - 1 - (s->n_out - 1); /* sparse ones, then dense ones, as the outputs are */
    for (int i = 1; i < s->n_out; i++)
        s->out[i] = s->in[weights + i - 1];
    return TRN_OK;
}

static trn_err sh_fprint(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[0].rank < 0 || s->in[0].rank == 1, "input must be a vector");
    s->out[0] = trn_shape_of(2, s->in[0].rank == 1 ? s->in[0].dim[0] : (int64_t)-1, (int64_t)2);
    return TRN_OK;
}

static trn_err sh_nothing(trn_shctx *s) { return TRN_OK; }

#define OPTIMIZER(adaptive)                                                                                                                                            \
    "sparse_example_indices:num_sparse_features*i64, sparse_feature_indices:num_sparse_features*i64, sparse_feature_values:num_sparse_features_with_values*f32, "       \
    "dense_features:num_dense_features*f32, example_weights:f32, example_labels:f32, sparse_indices:num_sparse_features*i64, sparse_weights:num_sparse_features*f32, "  \
    "dense_weights:num_dense_features*f32, example_state_data:f32 -> out_example_state_data:f32, out_delta_sparse_weights:num_sparse_features*f32, "                    \
    "out_delta_dense_weights:num_dense_features*f32; loss_type:{logistic_loss,squared_loss,hinge_loss,smooth_hinge_loss,poisson_loss}, " adaptive ":bool=false, "       \
    "num_sparse_features:int>=0, num_sparse_features_with_values:int>=0, num_dense_features:int>=0, l1:float, l2:float, num_loss_partitions:int>=1, "                   \
    "num_inner_iterations:int>=1"

const trn_op trn_ops_sdca[] = {
    {"SdcaOptimizer", OPTIMIZER("adaptative"), sh_optimizer, sdca_optimizer, TRN_OP_HEAVY | TRN_OP_BACK},
    {"SdcaOptimizerV2", OPTIMIZER("adaptive"), sh_optimizer, sdca_optimizer, TRN_OP_HEAVY | TRN_OP_BACK},
    {"SdcaShrinkL1", "weights:num_features*&f32 -> ; num_features:int>=0, l1:float, l2:float", sh_nothing, sdca_shrink, 0},
    {"SdcaFprint", "input:str -> output:i64", sh_fprint, sdca_fprint, 0},
    {0},
};
