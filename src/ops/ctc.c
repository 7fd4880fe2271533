/* Connectionist temporal classification (loss with gradient, greedy decoding) and the edit distance that judges it. */
#include "ops/sparse.h"

#include <math.h>
#include <stdlib.h>

static double at(const trn_tensor *t, int64_t i)
{
    return t->dtype == TRN_FLOAT ? (double)TRN_DATA(t, float)[i] : TRN_DATA(t, double)[i];
}

static void put(trn_tensor *t, int64_t i, double v)
{
    if (t->dtype == TRN_FLOAT)
        TRN_DATA_MUT(t, float)[i] = (float)v;
    else
        TRN_DATA_MUT(t, double)[i] = v;
}

static double log_add(double a, double b)
{
    double hi = a > b ? a : b, lo = a > b ? b : a;
    return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

static trn_err check_inputs(const trn_tensor *x, const trn_tensor *len, trn_code too_long)
{
    TRN_CHECK_ARG(x->shape.rank == 3, "inputs is not a 3-Tensor");
    TRN_CHECK_ARG(trn_is_vector(len), "sequence_length is not a vector");
    TRN_CHECK_ARG(x->shape.dim[0] != 0, "Max time or first dimension of input cannot be 0.");
    TRN_CHECK_ARG(x->shape.dim[1] == len->count,
                  "len(sequence_length) != batch_size.  len(sequence_length):  %lld batch_size: %lld",
                  (long long)len->count, (long long)x->shape.dim[1]);
    TRN_CHECK_ARG(x->shape.dim[2] < INT32_MAX && x->shape.dim[0] < INT32_MAX, "inputs are too large");
    for (int64_t b = 0; b < len->count; b++)
        if (TRN_DATA(len, int32_t)[b] > x->shape.dim[0])
            return trn_errorf(too_long, "sequence_length(%lld) <= %lld", (long long)b, (long long)x->shape.dim[0]);
    return TRN_OK;
}

/* ---- the loss ---------------------------------------------------------------------------------------------------------------- */

/* One sequence: T steps, C classes, labels l (n of them) with blanks around each: U = 2n + 1 states. */
typedef struct sequence {
    int64_t T, C, U;
    const int32_t *l;
    double *y;            /* [T, C] probabilities */
    double *alpha, *beta; /* [U, T] logarithms */
    bool merge;
} sequence;

static int64_t label(const sequence *s, int64_t u) { return u % 2 ? s->l[u / 2] : s->C - 1; }
static double log_y(const sequence *s, int64_t u, int64_t t) { return log(s->y[t * s->C + label(s, u)]); }

/* Whether u may be reached from u - 2, leaving out the blank between. */
static bool may_skip(const sequence *s, int64_t u)
{
    return u >= 2 && u % 2 && !(s->merge && label(s, u) == label(s, u - 2));
}
static bool may_stay(const sequence *s, int64_t u) { return s->merge || u % 2 == 0; }

static void forward(const sequence *s)
{
    for (int64_t i = 0; i < s->U * s->T; i++)
        s->alpha[i] = -INFINITY;
#define A(u, t) s->alpha[(u)*s->T + (t)]
    A(0, 0) = log_y(s, 0, 0);
    if (s->U > 1)
        A(1, 0) = log_y(s, 1, 0);
    for (int64_t t = 1; t < s->T; t++)
        for (int64_t u = TRN_MAX((int64_t)0, s->U - 2 * (s->T - t)); u < TRN_MIN(s->U, 2 * (t + 1)); u++) {
            double sum = may_stay(s, u) ? A(u, t - 1) : -INFINITY;
            if (u > 0)
                sum = log_add(sum, A(u - 1, t - 1));
            if (may_skip(s, u))
                sum = log_add(sum, A(u - 2, t - 1));
            A(u, t) = log_y(s, u, t) + sum;
        }
#undef A
}

static void backward(const sequence *s)
{
    for (int64_t i = 0; i < s->U * s->T; i++)
        s->beta[i] = -INFINITY;
#define B(u, t) s->beta[(u)*s->T + (t)]
    for (int64_t u = TRN_MAX((int64_t)0, s->U - 2); u < s->U; u++)
        B(u, s->T - 1) = 0;
    for (int64_t t = s->T - 2; t >= 0; t--)
        for (int64_t u = TRN_MAX((int64_t)0, s->U - 2 * (s->T - t)); u < TRN_MIN(s->U, 2 * (t + 1)); u++) {
            double sum = may_stay(s, u) ? B(u, t + 1) + log_y(s, u, t + 1) : -INFINITY;
            if (u + 1 < s->U)
                sum = log_add(sum, B(u + 1, t + 1) + log_y(s, u + 1, t + 1));
            if (u + 2 < s->U && may_skip(s, u + 2))
                sum = log_add(sum, B(u + 2, t + 1) + log_y(s, u + 2, t + 1));
            B(u, t) = sum;
        }
#undef B
}

static void softmax(double *y, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = y[i] > max ? y[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += y[i] = exp(y[i] - max);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

static trn_err one_loss(const trn_tensor *x, int64_t b, sequence *s, trn_tensor *loss, trn_tensor *grad)
{
    int64_t batch = x->shape.dim[1];
    s->y = malloc((size_t)(s->T * s->C) * sizeof(double));
    s->alpha = malloc((size_t)(s->U * s->T) * sizeof(double));
    s->beta = malloc((size_t)(s->U * s->T) * sizeof(double));
    double *sum = malloc((size_t)s->C * sizeof *sum);
    bool mem = s->y && s->alpha && s->beta && sum;
    if (mem) {
        for (int64_t t = 0; t < s->T; t++) {
            for (int64_t c = 0; c < s->C; c++)
                s->y[t * s->C + c] = at(x, (t * batch + b) * s->C + c);
            softmax(s->y + t * s->C, s->C);
        }
        forward(s);
        backward(s);
        double p = -INFINITY;
        for (int64_t u = 0; u < s->U; u++)
            p = log_add(p, s->alpha[u * s->T] + s->beta[u * s->T]);
        put(loss, b, -p);
        for (int64_t t = 0; t < s->T; t++) {
            for (int64_t c = 0; c < s->C; c++)
                sum[c] = -INFINITY;
            for (int64_t u = 0; u < s->U && p != -INFINITY; u++) {
                double *to = &sum[label(s, u)];
                *to = log_add(*to, s->alpha[u * s->T + t] + s->beta[u * s->T + t]);
            }
            for (int64_t c = 0; c < s->C; c++)
                put(grad, (t * batch + b) * s->C + c, s->y[t * s->C + c] - (p == -INFINITY ? 0 : exp(sum[c] - p)));
        }
    }
    free(s->y);
    free(s->alpha);
    free(s->beta);
    free(sum);
    return mem ? TRN_OK : trn_err_oom();
}

/* The labels of one sequence into l: up to the first that stands for a blank, repeats maybe collapsed. */
static trn_err read_labels(int32_t *l, int64_t *n, const int32_t *v, int64_t count, int64_t classes, bool collapse,
                           int64_t b)
{
    bool finished = false;
    *n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i && collapse && v[i] == v[i - 1])
            continue;
        if (v[i] >= classes - 1) {
            finished = true;
            continue;
        }
        TRN_CHECK_ARG(
            !finished,
            "Saw a non-null label (index >= num_classes - 1) following a null label, batch: %lld num_classes: %lld",
            (long long)b, (long long)classes);
        TRN_CHECK_ARG(v[i] >= 0, "All labels must be nonnegative integers, batch: %lld", (long long)b);
        l[(*n)++] = v[i];
    }
    return TRN_OK;
}

static trn_err losses(trn_kctx *k, int32_t *l)
{
    const trn_tensor *x = trn_in(k, 0), *ix = trn_in(k, 1), *v = trn_in(k, 2), *len = trn_in(k, 3);
    bool collapse = trn_attr_bool(k->node, "preprocess_collapse_repeated"),
         longer = trn_attr_bool(k->node, "ignore_longer_outputs_than_inputs");
    int64_t classes = x->shape.dim[2], batch = x->shape.dim[1], cols = ix->shape.dim[1];
    trn_tensor *loss, *grad;
    TRN_TRY(trn_out_new(&loss, k, 0, x->dtype, &len->shape));
    TRN_TRY(trn_out_new(&grad, k, 1, x->dtype, &x->shape));
    trn_zero_elems(loss, 0, loss->count);
    trn_zero_elems(grad, 0, grad->count);
    for (int64_t b = 0, e = 0; b < batch; b++) {
        int64_t first = e, n;
        while (e < v->count && TRN_DATA(ix, int64_t)[e * cols] == b)
            e++;
        TRN_CHECK_ARG(e > first, "Labels length is zero in batch %lld", (long long)b);
        TRN_TRY(read_labels(l, &n, TRN_DATA(v, int32_t) + first, e - first, classes, collapse, b));
        int64_t T = TRN_DATA(len, int32_t)[b];
        TRN_CHECK_ARG(longer || e - first <= T,
                      "Not enough time for target transition sequence (required: %lld, available: %lld) %lld. "
                      "ignore_longer_outputs_than_inputs makes this a warning",
                      (long long)(e - first), (long long)T, (long long)b);
        if (T <= 0 || e - first > T || !classes)
            continue;
        sequence s = {
            .T = T, .C = classes, .U = 2 * n + 1, .l = l, .merge = trn_attr_bool(k->node, "ctc_merge_repeated")};
        TRN_TRY(one_loss(x, b, &s, loss, grad));
    }
    return TRN_OK;
}

static trn_err ctc_loss(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *ix = trn_in(k, 1), *v = trn_in(k, 2);
    TRN_TRY(check_inputs(x, trn_in(k, 3), TRN_INVALID_ARGUMENT));
    TRN_CHECK_ARG(ix->shape.rank == 2 && ix->shape.dim[1] > 1, "labels_indices is not a matrix of at least 2 columns");
    TRN_CHECK_ARG(trn_is_vector(v), "labels_values is not a vector");
    TRN_CHECK_ARG(ix->shape.dim[0] == v->count,
                  "labels_indices and labels_values must contain the same number of rows");
    TRN_CHECK_ARG(x->shape.dim[1] != 0, "batch_size must not be 0");
    int cols = (int)TRN_MIN(ix->shape.dim[1], INT32_MAX);
    for (int64_t e = 0; e < v->count; e++) {
        const int64_t *row = TRN_DATA(ix, int64_t) + e * ix->shape.dim[1];
        TRN_CHECK_ARG(row[0] >= 0 && row[0] < x->shape.dim[1] && row[1] >= 0,
                      "labels batch index must be between 0 and %lld but saw: %lld", (long long)x->shape.dim[1],
                      (long long)row[0]);
        TRN_CHECK_ARG(e == 0 || trn_index_cmp(row - ix->shape.dim[1], row, cols) < 0,
                      "label SparseTensor is not valid: indices[%lld] is out of order", (long long)e);
    }
    int32_t *l = malloc((size_t)(v->count + 1) * sizeof *l);
    if (!l)
        return trn_err_oom();
    trn_err err = losses(k, l);
    free(l);
    return err;
}

/* ---- greedy decoding --------------------------------------------------------------------------------------------------------- */

/* The likeliest class of every step; v gets what remains of them (or, NULL, nothing). */
static int64_t decode(const trn_kctx *k, int64_t b, int64_t blank, int64_t *v, double *score)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t batch = x->shape.dim[1], classes = x->shape.dim[2], n = 0, prev = -1;
    bool merge = trn_attr_bool(k->node, "merge_repeated");
    *score = 0;
    for (int64_t t = 0; t < TRN_DATA(trn_in(k, 1), int32_t)[b]; t++) {
        int64_t best = 0, row = (t * batch + b) * classes;
        for (int64_t c = 1; c < classes; c++)
            if (at(x, row + c) > at(x, row + best))
                best = c;
        *score -= at(x, row + best);
        if (best != blank && !(merge && best == prev)) {
            if (v)
                v[n] = best;
            n++;
        }
        prev = best;
    }
    return n;
}

static trn_err greedy(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_TRY(check_inputs(x, trn_in(k, 1), TRN_FAILED_PRECONDITION));
    int64_t batch = x->shape.dim[1], classes = x->shape.dim[2], blank = trn_attr_int(k->node, "blank_index"), total = 0,
            most = 0;
    blank = blank < 0 ? blank + classes : blank;
    TRN_CHECK_ARG(blank >= 0 && blank < classes,
                  "blank_index expected to be between 0 and num_classes (%lld), but is %lld", (long long)classes,
                  (long long)blank);
    trn_shape ps = trn_shape_of(2, batch, (int64_t)1);
    trn_tensor *ix, *v, *p;
    TRN_TRY(trn_out_new(&p, k, 3, x->dtype, &ps));
    double score;
    for (int64_t b = 0; b < batch; b++) {
        int64_t n = decode(k, b, blank, NULL, &score);
        put(p, b, score);
        total += n;
        most = n > most ? n : most;
    }
    trn_shape shape = trn_shape_of(2, batch, most);
    TRN_TRY(trn_sparse_out(&ix, &v, k, 0, 1, total, 2, TRN_INT64));
    TRN_TRY(trn_sparse_out_shape(k, 2, &shape));
    int64_t e = 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t n = decode(k, b, blank, TRN_DATA_MUT(v, int64_t) + e, &score);
        for (int64_t i = 0; i < n; i++, e++) {
            TRN_DATA_MUT(ix, int64_t)[2 * e] = b;
            TRN_DATA_MUT(ix, int64_t)[2 * e + 1] = i;
        }
    }
    return TRN_OK;
}

/* ---- edit distance ----------------------------------------------------------------------------------------------------------- */

static bool same(const trn_tensor *a, int64_t i, const trn_tensor *b, int64_t j)
{
    if (a->dtype == TRN_STRING)
        return trn_str_eq(&TRN_DATA(a, trn_str)[i], &TRN_DATA(b, trn_str)[j]);
    size_t size = trn_dtype_size(a->dtype);
    return !memcmp((const char *)a->data + (size_t)i * size, (const char *)b->data + (size_t)j * size, size);
}

/* Levenshtein's; room: m + 1 numbers. */
static int64_t distance(const trn_tensor *a, int64_t i0, int64_t n, const trn_tensor *b, int64_t j0, int64_t m,
                        int64_t *room)
{
    for (int64_t j = 0; j <= m; j++)
        room[j] = j;
    for (int64_t i = 1; i <= n; i++) {
        int64_t diagonal = room[0];
        room[0] = i;
        for (int64_t j = 1; j <= m; j++) {
            int64_t up = room[j], best = diagonal + !same(a, i0 + i - 1, b, j0 + j - 1);
            best = TRN_MIN(best, TRN_MIN(up, room[j - 1]) + 1);
            diagonal = up;
            room[j] = best;
        }
    }
    return room[m];
}

static int64_t group_end(const trn_sparse *s, int64_t i)
{
    int64_t e = i + 1;
    while (e < s->n && !trn_index_cmp(trn_sparse_row(s, i), trn_sparse_row(s, e), s->rank - 1))
        e++;
    return e;
}

static trn_err edit_groups(trn_tensor *y, const trn_sparse *h, const trn_sparse *t, bool normal, int64_t *room)
{
    for (int64_t i = 0, j = 0; i < h->n || j < t->n;) {
        int c = i == h->n ? 1 : j == t->n ? -1 : trn_index_cmp(trn_sparse_row(h, i), trn_sparse_row(t, j), h->rank - 1);
        const int64_t *group = c <= 0 ? trn_sparse_row(h, i) : trn_sparse_row(t, j);
        int64_t ie = c <= 0 ? group_end(h, i) : i, je = c >= 0 ? group_end(t, j) : j, to = 0;
        for (int d = 0; d < h->rank - 1; d++) {
            if (group[d] < 0 || group[d] >= y->shape.dim[d])
                return trn_errorf(TRN_INTERNAL, "an index %lld lies outside of the output", (long long)group[d]);
            to = to * y->shape.dim[d] + group[d];
        }
        double v = (double)distance(h->values, i, ie - i, t->values, j, je - j, room);
        if (normal)
            v = je > j ? v / (double)(je - j) : INFINITY;
        TRN_DATA_MUT(y, float)[to] = (float)v;
        i = ie;
        j = je;
    }
    return TRN_OK;
}

static trn_err edit_distance(trn_kctx *k)
{
    trn_sparse h, t;
    TRN_TRY(trn_sparse_in(&h, k, 0));
    TRN_TRY(trn_sparse_in(&t, k, 3));
    TRN_CHECK_ARG(t.rank >= 2, "Input SparseTensors must have rank at least 2, but truth_shape rank is: %d", t.rank);
    TRN_CHECK_ARG(t.rank == h.rank, "Expected truth and hypothesis to have matching ranks, but they are %d and %d",
                  t.rank, h.rank);
    trn_shape s = {.rank = t.rank - 1};
    for (int d = 0; d < s.rank; d++)
        s.dim[d] = TRN_MAX(t.shape.dim[d], h.shape.dim[d]);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    TRN_CHECK_ARG(y->count > 0, "Got an output shape which has 0 elements");
    trn_zero_elems(y, 0, y->count);
    int64_t *room = malloc((size_t)(t.n + 1) * sizeof *room);
    if (!room)
        return trn_err_oom();
    trn_err err = edit_groups(y, &h, &t, trn_attr_bool(k->node, "normalize"), room);
    free(room);
    return err;
}

const trn_op trn_ops_ctc[] = {
    {"CTCLoss",
     "inputs:T, labels_indices:i64, labels_values:i32, sequence_length:i32 -> loss:T, gradient:T; "
     "preprocess_collapse_repeated:bool=false, "
     "ctc_merge_repeated:bool=true, ignore_longer_outputs_than_inputs:bool=false, T:f32|f64=f32",
     trn_sh_unknown, ctc_loss, 0},
    {"CTCGreedyDecoder",
     "inputs:T, sequence_length:i32 -> decoded_indices:i64, decoded_values:i64, decoded_shape:i64, log_probability:T; "
     "merge_repeated:bool=false, blank_index:int=-1, T:f32|f64=f32",
     trn_sh_unknown, greedy, 0},
    {"EditDistance",
     "hypothesis_indices:i64, hypothesis_values:T, hypothesis_shape:i64, truth_indices:i64, truth_values:T, "
     "truth_shape:i64 -> output:f32; "
     "normalize:bool=true, T:num|bool|str",
     trn_sh_unknown, edit_distance, 0},
    {0},
};
