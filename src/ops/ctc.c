/* Connectionist temporal classification (loss with gradient, greedy decoding and by beam) and the edit distance that judges it. */
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

/* `code` is what lengths that do not fit give: the loss and the decoders differ. */
static trn_err check_inputs(const trn_tensor *x, const trn_tensor *len, trn_code code)
{
    TRN_CHECK_ARG(x->shape.rank == 3, "inputs is not a 3-Tensor");
    TRN_CHECK_ARG(trn_is_vector(len), "sequence_length is not a vector");
    TRN_CHECK_ARG(x->shape.dim[0] != 0, "Max time or first dimension of input cannot be 0.");
    if (x->shape.dim[1] != len->count)
        return trn_errorf(code, "len(sequence_length) != batch_size.  len(sequence_length):  %lld batch_size: %lld",
                          (long long)len->count, (long long)x->shape.dim[1]);
    TRN_CHECK_ARG(x->shape.dim[2] < INT32_MAX && x->shape.dim[0] < INT32_MAX, "inputs are too large");
    for (int64_t b = 0; b < len->count; b++)
        if (TRN_DATA(len, int32_t)[b] > x->shape.dim[0])
            return trn_errorf(code, "sequence_length(%lld) <= %lld", (long long)b, (long long)x->shape.dim[0]);
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

/* ---- beam search -------------------------------------------------------------------------------------------------------------- */

/* A prefix of labels, known by its last one and the prefix before it. Logarithms of probabilities: of all alignments that give the prefix, of
 * those that end in a blank, of those that end in the label. A prefix that is not in the beam has `now.total` = -inf. */
typedef struct odds {
    double total, blank, label;
} odds;

typedef struct prefix {
    int32_t parent, label, child, next; /* child: the first longer one, next: its sibling; -1: none */
    odds was, now;
} prefix;

typedef struct search {
    int64_t width;
    prefix *p;
    int32_t n, room;
    int32_t *leaf; /* a heap, the least likely on top */
    int32_t n_leaves, leaf_room;
    int32_t *branch; /* the leaves of the step before, best first */
    int32_t *child;  /* [labels] of the branch that is being extended */
} search;

static const odds never = {-INFINITY, -INFINITY, -INFINITY};
#define MAX_PREFIXES (1 << 26)

static double sum_of(double a, double b)
{
    return a == -INFINITY ? b : log_add(a, b);
}

static double leaf_odds(const search *s, int32_t i) { return s->p[s->leaf[i]].now.total; }

static void leaf_down(search *s, int32_t i)
{
    for (;;) {
        int32_t least = i;
        for (int32_t c = 2 * i + 1; c <= 2 * i + 2 && c < s->n_leaves; c++)
            if (leaf_odds(s, c) < leaf_odds(s, least))
                least = c;
        if (least == i)
            return;
        int32_t t = s->leaf[i];
        s->leaf[i] = s->leaf[least];
        s->leaf[least] = t;
        i = least;
    }
}

/* The beam has room, or its least likely prefix gives way. */
static void leaf_push(search *s, int32_t p)
{
    if (s->n_leaves == s->width) {
        s->p[s->leaf[0]].now = never;
        s->leaf[0] = p;
        leaf_down(s, 0);
        return;
    }
    if (s->n_leaves == s->leaf_room) {
        s->leaf_room = s->leaf_room ? 2 * s->leaf_room : 16;
        s->leaf = trn_xrealloc(s->leaf, sizeof *s->leaf * (size_t)s->leaf_room);
        s->branch = trn_xrealloc(s->branch, sizeof *s->branch * (size_t)s->leaf_room);
    }
    int32_t i = s->n_leaves++;
    s->leaf[i] = p;
    for (int32_t up; i && leaf_odds(s, i) < leaf_odds(s, up = (i - 1) / 2); i = up) {
        int32_t t = s->leaf[i];
        s->leaf[i] = s->leaf[up];
        s->leaf[up] = t;
    }
}

static int by_odds(const void *a, const void *b, void *arg)
{
    const prefix *p = arg;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    double x = p[i].now.total, y = p[j].now.total;
    return x > y ? -1 : x < y ? 1 : (i > j) - (i < j);
}

/* s->branch: the leaves in order, and the beam empty. */
static int32_t take_leaves(search *s)
{
    int32_t n = s->n_leaves;
    memcpy(s->branch, s->leaf, sizeof *s->leaf * (size_t)n);
    qsort_r(s->branch, (size_t)n, sizeof *s->branch, by_odds, s->p);
    s->n_leaves = 0;
    return n;
}

static trn_err add_prefix(int32_t *out, search *s, int32_t parent, int32_t label_)
{
    if (s->n == s->room) {
        if (s->room >= MAX_PREFIXES)
            return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a beam of width %lld needs more than %d prefixes",
                              (long long)s->width, MAX_PREFIXES);
        s->room = s->room ? 2 * s->room : 256;
        s->p = trn_xrealloc(s->p, sizeof *s->p * (size_t)s->room);
    }
    s->p[s->n] = (prefix){parent, label_, -1, -1, never, never};
    if (parent >= 0) {
        s->p[s->n].next = s->p[parent].child;
        s->p[parent].child = s->n;
    }
    *out = s->n++;
    return TRN_OK;
}

static bool may_enter(const search *s, double total)
{
    return total > -INFINITY && (s->n_leaves < s->width || total > leaf_odds(s, 0));
}

/* One time step; `row` is where its logits begin in x, the blank is the last class. */
static trn_err beam_step(search *s, const trn_tensor *x, int64_t row, int32_t classes)
{
    double max = at(x, row), sum = 0;
    for (int32_t c = 1; c < classes; c++)
        max = at(x, row + c) > max ? at(x, row + c) : max;
    for (int32_t c = 0; c < classes; c++)
        sum += exp(at(x, row + c) - max);
    double norm = max + log(sum);
    int32_t n = take_leaves(s);
    for (int32_t i = 0; i < n; i++)
        s->p[s->branch[i]].was = s->p[s->branch[i]].now;
    for (int32_t i = 0; i < n; i++) {
        prefix *b = &s->p[s->branch[i]];
        if (b->parent >= 0) {
            const prefix *up = &s->p[b->parent];
            if (up->now.total != -INFINITY)
                b->now.label = sum_of(b->now.label, b->label == up->label ? up->was.blank : up->was.total);
            b->now.label += at(x, row + b->label) - norm;
        }
        b->now.blank = b->was.total + at(x, row + classes - 1) - norm;
        b->now.total = sum_of(b->now.blank, b->now.label);
        leaf_push(s, s->branch[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t b = s->branch[i];
        if (!may_enter(s, s->p[b].was.total))
            continue;
        for (int32_t c = 0; c < classes - 1; c++)
            s->child[c] = -1;
        for (int32_t c = s->p[b].child; c >= 0; c = s->p[c].next)
            s->child[s->p[c].label] = c;
        for (int32_t c = 0; c < classes - 1; c++) {
            int32_t to = s->child[c];
            if (to >= 0 && s->p[to].now.total != -INFINITY)
                continue; /* is in the beam, and was dealt with above */
            double v = at(x, row + c) - norm + (c == s->p[b].label ? s->p[b].was.blank : s->p[b].was.total);
            if (!may_enter(s, v)) {
                if (to >= 0)
                    s->p[to].was = never; /* as TensorFlow: it fell out in this very step, and is not extended any more */
                continue;
            }
            if (to < 0)
                TRN_TRY(add_prefix(&to, s, b, c));
            s->p[to].now = (odds){v, -INFINITY, v};
            leaf_push(s, to);
        }
    }
    return TRN_OK;
}

/* What was decoded: the labels of path p of sequence b are count[b * paths + p] values of `v`, one after the other. */
typedef struct spelled {
    int64_t *v, n, room;
    int64_t *count;
} spelled;

static void spell(spelled *w, const search *s, int32_t p, bool merge, int64_t slot)
{
    int64_t begin = w->n;
    for (int32_t last = -1; s->p[p].parent >= 0; p = s->p[p].parent) {
        if (!merge || s->p[p].label != last) {
            if (w->n == w->room) {
                w->room = w->room ? 2 * w->room : 64;
                w->v = trn_xrealloc(w->v, sizeof *w->v * (size_t)w->room);
            }
            w->v[w->n++] = s->p[p].label;
        }
        last = s->p[p].label;
    }
    for (int64_t i = begin, j = w->n - 1; i < j; i++, j--) {
        int64_t t = w->v[i];
        w->v[i] = w->v[j];
        w->v[j] = t;
    }
    w->count[slot] = w->n - begin;
}

static trn_err beam_sequence(spelled *w, search *s, trn_kctx *k, int64_t b, int64_t paths, trn_tensor *score)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t batch = x->shape.dim[1], classes = x->shape.dim[2];
    int32_t root, n;
    s->n = s->n_leaves = 0;
    TRN_TRY(add_prefix(&root, s, -1, -1));
    s->p[root].now = (odds){0, 0, -INFINITY};
    leaf_push(s, root);
    for (int64_t t = 0; t < TRN_DATA(trn_in(k, 1), int32_t)[b]; t++)
        TRN_TRY(beam_step(s, x, (t * batch + b) * classes, (int32_t)classes));
    TRN_CHECK_ARG(paths <= s->width, "requested more paths than the beam width.");
    TRN_CHECK_ARG(paths <= s->n_leaves, "Less leaves in the beam search than requested.");
    n = take_leaves(s);
    for (int64_t p = 0; p < paths && p < n; p++) {
        spell(w, s, s->branch[p], trn_attr_bool(k->node, "merge_repeated"), b * paths + p);
        put(score, b * paths + p, s->p[s->branch[p]].now.total);
    }
    return TRN_OK;
}

static trn_err store_paths(const spelled *w, trn_kctx *k, int64_t batch, int64_t paths)
{
    for (int64_t p = 0; p < paths; p++) {
        int64_t total = 0, most = 0, e = 0, from = 0;
        for (int64_t b = 0; b < batch; b++) {
            int64_t n = w->count[b * paths + p];
            total += n;
            most = n > most ? n : most;
        }
        trn_tensor *ix, *v;
        trn_shape shape = trn_shape_of(2, batch, most);
        TRN_TRY(trn_sparse_out(&ix, &v, k, (int)p, (int)paths, total, 2, TRN_INT64));
        TRN_TRY(trn_sparse_out_shape(k, (int)(2 * paths + p), &shape));
        for (int64_t i = 0; i < batch * paths; from += w->count[i++]) {
            if (i % paths != p)
                continue;
            for (int64_t j = 0; j < w->count[i]; j++, e++) {
                TRN_DATA_MUT(v, int64_t)[e] = w->v[from + j];
                TRN_DATA_MUT(ix, int64_t)[2 * e] = i / paths;
                TRN_DATA_MUT(ix, int64_t)[2 * e + 1] = j;
            }
        }
    }
    return TRN_OK;
}

static trn_err beam_decoder(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank == 3, "inputs is not a 3-Tensor");
    TRN_CHECK_ARG(x->count != 0, "inputs must not be empty");
    TRN_TRY(check_inputs(x, trn_in(k, 1), TRN_FAILED_PRECONDITION));
    int64_t batch = x->shape.dim[1], paths = trn_attr_int(k->node, "top_paths");
    trn_shape ps = trn_shape_of(2, batch, paths);
    trn_tensor *score;
    TRN_TRY(trn_out_new(&score, k, (int)(3 * paths), x->dtype, &ps));
    search s = {.width = trn_attr_int(k->node, "beam_width")};
    spelled w = {.count = trn_xalloc(sizeof *w.count * (size_t)(batch * paths))};
    s.child = trn_xalloc(sizeof *s.child * (size_t)x->shape.dim[2]);
    trn_err err = TRN_OK;
    for (int64_t b = 0; b < batch && !err; b++)
        err = beam_sequence(&w, &s, k, b, paths, score);
    if (!err)
        err = store_paths(&w, k, batch, paths);
    free(s.p);
    free(s.leaf);
    free(s.branch);
    free(s.child);
    free(w.v);
    free(w.count);
    return err;
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
                return trn_errorf(TRN_INTERNAL, "Dimension %lld must be >= 0 and smaller than %lld, the output's", (long long)group[d], (long long)y->shape.dim[d]);
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
    {"CTCBeamSearchDecoder",
     "inputs:T, sequence_length:i32 -> decoded_indices:top_paths*i64, decoded_values:top_paths*i64, "
     "decoded_shape:top_paths*i64, log_probability:T; "
     "beam_width:int>=1, top_paths:int>=1, merge_repeated:bool=true, T:f32|f64=f32",
     trn_sh_unknown, beam_decoder, 0},
    {"EditDistance",
     "hypothesis_indices:i64, hypothesis_values:T, hypothesis_shape:i64, truth_indices:i64, truth_values:T, "
     "truth_shape:i64 -> output:f32; "
     "normalize:bool=true, T:num|bool|str",
     trn_sh_unknown, edit_distance, 0},
    {0},
};
