/* Metrics that add up over batches in local variables, as tf.compat.v1.metrics. */
#include "train/nn_priv.h"

static const trn_metric no_metric = {{-1, 0}, {-1, 0}};

/* One float variable of a metric; `next` is its value with `more` added. */
typedef struct sum {
    trn_variable *v;
    trn_out now, next;
} sum;

static sum sum_new(trn_builder *b, const char *name, trn_shape shape, trn_out more)
{
    sum s = {NULL, TRN_NONE, TRN_NONE};
    s.v = trn_builder_ok(b) ? trn_get_variable(b, name, TRN_FLOAT, shape, trn_init_zeros(), TRN_LOCAL | TRN_NOT_TRAINABLE) : NULL;
    if (!s.v)
        return s;
    trn_collect(b, "metric_variables", s.v->handle);
    s.now = s.v->value;
    trn_out add = trn_out_node(trn_variable_assign_add(b, s.v, more));
    if (trn_builder_ok(b))
        TRN_SCOPE(trn_control_scope(b, &add, 1), b)
            s.next = trn_variable_read(b, s.v);
    return s;
}

/* a/b, both of now and with this batch. */
static trn_metric ratio(trn_builder *b, const sum *num, const sum *den)
{
    trn_metric m = no_metric;
    if (!trn_builder_ok(b))
        return m;
    m.value = OP(trn_named(b, "value"), "DivNoNan", num->now, den->now);
    m.update = OP(trn_named(b, "update_op"), "DivNoNan", num->next, den->next);
    return m;
}

/* The scope of the metric is open. */
static trn_metric mean_of(trn_builder *b, trn_out values, const trn_out *weights)
{
    values = trn_nn__cast(b, values, TRN_FLOAT);
    trn_out n;
    if (weights) {
        trn_out w = trn_nn__weights(b, "metric", *weights, values);
        values = OP(b, "Mul", values, w);
        n = trn_nn__sum(b, OP(b, "Mul", w, OP(b, "OnesLike", values)));
    } else
        n = trn_nn__size_f32(b, values);
    sum total = sum_new(b, "total", trn_shape_scalar(), trn_nn__sum(b, values));
    sum count = sum_new(b, "count", trn_shape_scalar(), n);
    return ratio(b, &total, &count);
}

trn_metric trn_metric_mean(trn_builder *b, trn_out values, const trn_out *weights)
{
    trn_metric m = no_metric;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "mean")), b)
        m = mean_of(b, values, weights);
    return m;
}

/* Of [n] and [n, 1] the latter loses its last dimension. */
static bool match(trn_builder *b, const char *what, trn_out *labels, trn_out *predictions)
{
    int rl = trn_nn__rank(b, *labels), rp = trn_nn__rank(b, *predictions);
    if (rl >= 0 && rp == rl + 1)
        *predictions = trn_nn__squeeze_last(b, *predictions);
    else if (rp >= 0 && rl == rp + 1)
        *labels = trn_nn__squeeze_last(b, *labels);
    return trn_builder_ok(b) && trn_nn__same_shape(b, what, *labels, *predictions);
}

trn_metric trn_metric_accuracy(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    trn_metric m = no_metric;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "accuracy")), b)
        if (match(b, "accuracy", &labels, &predictions))
            m = mean_of(b, OP(b, "Equal", trn_nn__cast(b, predictions, trn_out_dtype(b, labels)), labels), weights);
    return m;
}

static trn_metric mean_error(trn_builder *b, const char *name, trn_out labels, trn_out predictions, const trn_out *weights, bool square, bool root)
{
    trn_metric m = no_metric;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, name)), b)
        if (match(b, name, &labels, &predictions)) {
            trn_out l = trn_nn__cast(b, labels, trn_out_dtype(b, predictions));
            m = mean_of(b, square ? OP(b, "SquaredDifference", l, predictions) : OP(b, "Abs", OP(b, "Sub", predictions, l)), weights);
            if (root) {
                m.value = OP(b, "Sqrt", m.value);
                m.update = OP(b, "Sqrt", m.update);
            }
        }
    return m;
}

trn_metric trn_metric_mean_squared_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    return mean_error(b, "mean_squared_error", labels, predictions, weights, true, false);
}
trn_metric trn_metric_root_mean_squared_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    return mean_error(b, "root_mean_squared_error", labels, predictions, weights, true, true);
}
trn_metric trn_metric_mean_absolute_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    return mean_error(b, "mean_absolute_error", labels, predictions, weights, false, false);
}

/* ---- precision, recall --------------------------------------------------------------------------------------------- */

static sum count_where(trn_builder *b, const char *scope, trn_out a, trn_out c, const trn_out *weights)
{
    sum s = {NULL, TRN_NONE, TRN_NONE};
    TRN_SCOPE(trn_name_scope(b, scope), b) {
        trn_out hit = trn_nn__cast(b, OP(b, "LogicalAnd", a, c), TRN_FLOAT);
        if (weights)
            hit = OP(b, "Mul", hit, trn_nn__weights(b, "metric", *weights, hit));
        s = sum_new(b, "count", trn_shape_scalar(), trn_nn__sum(b, hit));
    }
    return s;
}

/* tp/(tp + other) */
static trn_metric positives(trn_builder *b, const char *name, const char *other, trn_out labels, trn_out predictions, const trn_out *weights)
{
    trn_metric m = no_metric;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, name)), b)
        if (match(b, name, &labels, &predictions)) {
            trn_out l = trn_nn__cast(b, labels, TRN_BOOL), p = trn_nn__cast(b, predictions, TRN_BOOL);
            bool precision = other[6] == 'p';
            sum tp = count_where(b, "true_positives", l, p, weights);
            sum x = precision ? count_where(b, other, OP(b, "LogicalNot", l), p, weights) : count_where(b, other, l, OP(b, "LogicalNot", p), weights);
            if (trn_builder_ok(b)) {
                sum all = {NULL, OP(b, "AddV2", tp.now, x.now), OP(b, "AddV2", tp.next, x.next)};
                m = ratio(b, &tp, &all);
            }
        }
    return m;
}

trn_metric trn_metric_precision(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    return positives(b, "precision", "false_positives", labels, predictions, weights);
}
trn_metric trn_metric_recall(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights)
{
    return positives(b, "recall", "false_negatives", labels, predictions, weights);
}

/* ---- area under a curve -------------------------------------------------------------------------------------------- */

static trn_out part(trn_builder *b, trn_out x, int64_t from, int64_t n)
{
    return OP(b, "Slice", x, trn_nn__ints(b, &from, 1), trn_nn__ints(b, &n, 1));
}

static trn_out area(trn_builder *b, const char *name, trn_out tp, trn_out fn, trn_out tn, trn_out fp, int n, bool pr)
{
    trn_out eps = trn_const_f32(b, 1e-6f), tpe = OP(b, "AddV2", tp, eps);
    trn_out recall = OP(b, "RealDiv", tpe, OP(b, "AddV2", OP(b, "AddV2", tp, fn), eps)), x, y;
    if (pr) {
        x = recall;
        y = OP(b, "RealDiv", tpe, OP(b, "AddV2", OP(b, "AddV2", tp, fp), eps));
    } else {
        x = OP(b, "RealDiv", fp, OP(b, "AddV2", OP(b, "AddV2", fp, tn), eps));
        y = recall;
    }
    trn_out width = OP(b, "Sub", part(b, x, 0, n - 1), part(b, x, 1, n - 1));
    trn_out height = OP(b, "RealDiv", OP(b, "AddV2", part(b, y, 0, n - 1), part(b, y, 1, n - 1)), trn_const_f32(b, 2));
    trn_out each = OP(b, "Mul", width, height), axis = trn_nn__ints(b, (int64_t[]){0}, 1);
    return OP(trn_named(b, name), "Sum", each, axis);
}

trn_metric trn_metric_auc(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights, int thresholds, bool pr)
{
    trn_metric m = no_metric;
    int n = thresholds ? thresholds : 200;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "auc")), b) {
        trn_tensor *t;
        trn_shape shape = trn_shape_of(2, (int64_t)n, (int64_t)1);
        trn_err err = n < 2 || n > 1000000 ? trn_errorf(TRN_INVALID_ARGUMENT, "auc: from 2 to 1000000 thresholds, not %d", n) : trn_tensor_new(&t, TRN_FLOAT, &shape);
        if (err)
            trn_builder_fail(b, err);
        else {
            float *at = trn_tensor_data_mut(t);
            for (int i = 0; i < n; i++) /* the ends are beyond all predictions */
                at[i] = i == 0 ? -1e-7f : i == n - 1 ? 1.0f + 1e-7f : (float)((double)i / (n - 1));
            trn_out limits = trn_const(b, t);
            if (match(b, "auc", &labels, &predictions)) {
                trn_out row = trn_nn__ints(b, (int64_t[]){1, -1}, 2), over_row = trn_nn__ints(b, (int64_t[]){1}, 1);
                trn_out p = OP(b, "Reshape", trn_nn__cast(b, predictions, TRN_FLOAT), row), l = OP(b, "Reshape", trn_nn__cast(b, labels, TRN_BOOL), row);
                trn_out w = TRN_NONE;
                if (weights) { /* one for each prediction */
                    trn_out ones = OP(b, "OnesLike", trn_nn__cast(b, predictions, TRN_FLOAT));
                    w = OP(b, "Reshape", OP(b, "Mul", trn_nn__weights(b, "auc", *weights, ones), ones), row);
                }
                trn_out pos = OP(b, "Greater", p, limits), neg = OP(b, "LogicalNot", pos), not_l = OP(b, "LogicalNot", l);
                const char *names[4] = {"true_positives", "false_negatives", "true_negatives", "false_positives"};
                trn_out guess[4] = {pos, neg, neg, pos}, truth[4] = {l, l, not_l, not_l};
                sum s[4];
                for (int i = 0; i < 4; i++) {
                    trn_out hit = trn_nn__cast(b, OP(b, "LogicalAnd", truth[i], guess[i]), TRN_FLOAT);
                    if (weights)
                        hit = OP(b, "Mul", hit, w);
                    s[i] = sum_new(b, names[i], trn_shape_vector(n), OP(b, "Sum", hit, over_row));
                }
                if (trn_builder_ok(b)) {
                    m.value = area(b, "value", s[0].now, s[1].now, s[2].now, s[3].now, n, pr);
                    m.update = area(b, "update_op", s[0].next, s[1].next, s[2].next, s[3].next, n, pr);
                }
            }
        }
    }
    return m;
}

/* ---- top k, and without variables ---------------------------------------------------------------------------------- */

static trn_out as_int32(trn_builder *b, trn_out labels)
{
    int rank = trn_nn__rank(b, labels);
    if (rank == 2) /* [n, 1] */
        labels = trn_nn__squeeze_last(b, labels);
    return trn_nn__cast(b, labels, TRN_INT32);
}

trn_metric trn_metric_top_k(trn_builder *b, trn_out labels, trn_out predictions, int k, const trn_out *weights)
{
    trn_metric m = no_metric;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "top_k_accuracy")), b) {
        if (trn_builder_ok(b) && k < 1)
            BAD(b, "top k: k must be positive, it is %d", k);
        trn_out hit = OPA(b, "InTopKV2", ATTRS(trn_at_type("T", TRN_INT32)), predictions, as_int32(b, labels), trn_const_i32(b, k));
        if (trn_builder_ok(b))
            m = mean_of(b, hit, weights);
    }
    return m;
}

trn_out trn_accuracy(trn_builder *b, trn_out labels, trn_out logits)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "accuracy")), b) {
        trn_out best = OPA(b, "ArgMax", ATTRS(trn_at_type("output_type", TRN_INT32)), logits, trn_const_i32(b, -1));
        trn_out hit = trn_nn__cast(b, OP(b, "Equal", best, as_int32(b, labels)), TRN_FLOAT);
        y = OP(b, "Mean", hit, trn_nn__ints(b, (int64_t[]){0}, 1));
    }
    return y;
}
