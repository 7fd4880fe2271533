/* Losses: one value per element, then weights, a reduction and the collection "losses". The op structure is that of tf.compat.v1.losses, less what
 * is known while building: shapes are checked here and not in every step. */
#include "train/nn_priv.h"

#include <string.h>

static const trn_loss_opts no_opts;

trn_out trn_nn__weights(trn_builder *b, const char *what, trn_out weights, trn_out values)
{
    int rw, rv;
    char tw[TRN_SHAPE_TEXT], tv[TRN_SHAPE_TEXT];
    weights = trn_nn__cast(b, weights, TRN_FLOAT);
    rw = trn_nn__rank(b, weights);
    rv = trn_nn__rank(b, values);
    if (rw < 1 || rv < 0)
        return weights;
    const trn_shape *sw = trn_nn__shape(b, weights), *sv = trn_nn__shape(b, values);
    if (rw == rv + 1 && (sw->dim[rw - 1] == 1 || sw->dim[rw - 1] < 0))
        weights = trn_nn__squeeze_last(b, weights);
    else if (rw + 1 == rv)
        weights = OP(b, "ExpandDims", weights, trn_const_i32(b, -1));
    sw = trn_nn__shape(b, weights);
    bool fits = sw->rank == sv->rank;
    for (int i = 0; fits && i < sv->rank; i++)
        fits = sw->dim[i] < 0 || sv->dim[i] < 0 || sw->dim[i] == 1 || sw->dim[i] == sv->dim[i];
    if (!fits && trn_builder_ok(b))
        return BAD(b, "%s: weights are %s, but values are %s; weights must be a scalar or have the values' rank with dimensions that are equal or 1", what,
                   trn_shape_text(tw, sw), trn_shape_text(tv, sv));
    return weights;
}

/* The scope of the loss is open. */
static trn_out weighted(trn_builder *b, trn_out losses, const trn_loss_opts *o)
{
    trn_dtype t = trn_out_dtype(b, losses);
    trn_out one = TRN_NONE, w = TRN_NONE, y;
    losses = trn_nn__cast(b, losses, TRN_FLOAT);
    if (o->weights) {
        /* Here a weight per row does not get a dimension by itself, as in TensorFlow. */
        const trn_shape *sw = trn_nn__shape(b, *o->weights), *sv = trn_nn__shape(b, losses);
        if (trn_builder_ok(b) && sw->rank > 0 && sv->rank >= 0 && sw->rank != sv->rank && sw->rank != sv->rank + 1) {
            char tw[TRN_SHAPE_TEXT], tv[TRN_SHAPE_TEXT];
            return BAD(b, "loss: weights are %s, but losses are %s; weights must be a scalar or have the losses' rank", trn_shape_text(tw, sw),
                       trn_shape_text(tv, sv));
        }
        w = trn_nn__weights(b, "loss", *o->weights, losses);
    } else if (o->reduction == TRN_UNREDUCED || o->reduction == TRN_SUM)
        one = trn_const_f32(b, 1);
    trn_out each = trn_out_is(w) ? OP(b, "Mul", losses, w) : losses;
    if (o->reduction == TRN_UNREDUCED)
        y = trn_out_is(w) ? each : OP(b, "Mul", losses, one);
    else {
        trn_out sum = trn_nn__sum(b, each), n = TRN_NONE;
        switch (o->reduction) {
        case TRN_SUM: n = TRN_NONE; break;
        case TRN_MEAN: n = trn_out_is(w) ? trn_nn__sum(b, OP(b, "Mul", OP(b, "OnesLike", losses), w)) : trn_nn__size_f32(b, losses); break;
        case TRN_SUM_OVER_BATCH_SIZE: n = trn_nn__size_f32(b, losses); break;
        default:
            if (trn_out_is(w)) {
                trn_out present = trn_nn__cast(b, OP(b, "NotEqual", w, trn_const_f32(b, 0)), TRN_FLOAT);
                n = trn_nn__sum(b, OP(b, "Mul", present, OP(b, "OnesLike", losses)));
            } else
                n = trn_nn__size_f32(b, losses);
        }
        y = o->reduction == TRN_SUM ? OP(b, "Mul", sum, trn_out_is(one) ? one : trn_const_f32(b, 1)) : OP(trn_named(b, "value"), "DivNoNan", sum, n);
    }
    y = trn_nn__cast(b, y, t);
    if (trn_builder_ok(b) && !(o->collection && !*o->collection))
        trn_collect(b, o->collection ? o->collection : "losses", y);
    return y;
}

trn_out trn_loss_weighted(trn_builder *b, trn_out losses, const trn_loss_opts *opts)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "weighted_loss")), b)
        y = weighted(b, losses, opts ? opts : &no_opts);
    return y;
}

/* One loss per element of two tensors of one shape, in floats. */
typedef trn_out (*pair_fn)(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *o);

static trn_out pair(trn_builder *b, const char *name, trn_out labels, trn_out predictions, const trn_loss_opts *opts, pair_fn fn)
{
    const trn_loss_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, name)), b)
        if (trn_nn__same_shape(b, name, labels, predictions))
            y = weighted(b, fn(b, trn_nn__cast(b, labels, TRN_FLOAT), trn_nn__cast(b, predictions, TRN_FLOAT), o), o);
    return y;
}

static trn_out squared(trn_builder *b, trn_out labels, trn_out p, const trn_loss_opts *o) { return OP(b, "SquaredDifference", p, labels); }
static trn_out absolute(trn_builder *b, trn_out labels, trn_out p, const trn_loss_opts *o) { return OP(b, "Abs", OP(b, "Sub", p, labels)); }

static trn_out huber(trn_builder *b, trn_out labels, trn_out p, const trn_loss_opts *o)
{
    trn_out delta = trn_const_f32(b, o->delta.given ? o->delta.v : 1), error = OP(b, "Abs", OP(b, "Sub", p, labels));
    trn_out quadratic = OP(b, "Minimum", error, delta), linear = OP(b, "Sub", error, quadratic);
    return OP(b, "AddV2", OP(b, "Mul", trn_const_f32(b, 0.5f), OP(b, "Mul", quadratic, quadratic)), OP(b, "Mul", delta, linear));
}

static trn_out logarithmic(trn_builder *b, trn_out labels, trn_out p, const trn_loss_opts *o)
{
    trn_out epsilon = trn_const_f32(b, o->epsilon.given ? o->epsilon.v : 1e-7f), one = trn_const_f32(b, 1);
    trn_out yes = OP(b, "Neg", OP(b, "Mul", labels, OP(b, "Log", OP(b, "AddV2", p, epsilon))));
    trn_out no = OP(b, "Log", OP(b, "AddV2", OP(b, "Sub", one, p), epsilon));
    return OP(b, "Sub", yes, OP(b, "Mul", OP(b, "Sub", one, labels), no));
}

static trn_out hinge(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *o)
{
    trn_out one = trn_const_f32(b, 1), sign = OP(b, "Sub", OP(b, "Mul", trn_const_f32(b, 2), labels), one);
    return OP(b, "Relu", OP(b, "Sub", one, OP(b, "Mul", sign, logits)));
}

trn_out trn_loss_mean_squared(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts)
{
    return pair(b, "mean_squared_error", labels, predictions, opts, squared);
}
trn_out trn_loss_absolute(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts)
{
    return pair(b, "absolute_difference", labels, predictions, opts, absolute);
}
trn_out trn_loss_huber(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts)
{
    return pair(b, "huber_loss", labels, predictions, opts, huber);
}
trn_out trn_loss_log(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts)
{
    return pair(b, "log_loss", labels, predictions, opts, logarithmic);
}
trn_out trn_loss_hinge(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts)
{
    return pair(b, "hinge_loss", labels, logits, opts, hinge);
}

/* max(x, 0) - x·z + log(1 + exp(-|x|)): no overflow for any x. */
trn_out trn_nn__sigmoid_entropy(trn_builder *b, trn_out z, trn_out x)
{
    trn_dtype t = trn_out_dtype(b, x);
    trn_out zero = trn_const_num(b, t, 0), positive = OP(b, "GreaterEqual", x, zero);
    trn_out relu = OP(b, "SelectV2", positive, x, zero), minus_abs = OP(b, "SelectV2", positive, OP(b, "Neg", x), x);
    return OP(b, "AddV2", OP(b, "Sub", relu, OP(b, "Mul", x, z)), OP(b, "Log1p", OP(b, "Exp", minus_abs)));
}

trn_out trn_loss_sigmoid(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts)
{
    const trn_loss_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "sigmoid_cross_entropy_loss")), b)
        if (trn_nn__same_shape(b, "sigmoid_cross_entropy_loss", labels, logits)) {
            trn_dtype t = trn_out_dtype(b, logits);
            double smooth = trn_nn__meant(o->label_smoothing);
            labels = trn_nn__cast(b, labels, t);
            if (smooth > 0)
                labels = OP(b, "AddV2", OP(b, "Mul", labels, trn_const_num(b, t, 1 - smooth)), trn_const_num(b, t, 0.5 * smooth));
            y = weighted(b, trn_nn__sigmoid_entropy(b, labels, logits), o);
        }
    return y;
}

/* As rows: the op wants [n, classes]. */
static trn_out as_rows(trn_builder *b, trn_out x)
{
    const trn_shape *s = trn_nn__shape(b, x);
    if (s->rank == 2)
        return x;
    int64_t classes = s->rank > 0 ? s->dim[s->rank - 1] : -1;
    if (classes < 0)
        return trn_builder_ok(b) ? BAD(b, "softmax cross entropy: rank and number of classes of %s must be known", trn_out_name(b, x)) : TRN_NONE;
    return OP(b, "Reshape", x, trn_nn__ints(b, (int64_t[]){-1, classes}, 2));
}

/* losses of rows, back in the shape of x without its last dimension */
static trn_out from_rows(trn_builder *b, trn_out losses, trn_out x)
{
    return trn_nn__rank(b, x) == 2 ? losses : trn_nn__squeeze_last(b, trn_nn__last_dim(b, losses, x, 1));
}

trn_out trn_loss_softmax(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts)
{
    const trn_loss_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "softmax_cross_entropy_loss")), b)
        if (trn_nn__same_shape(b, "softmax_cross_entropy_loss", labels, logits)) {
            trn_dtype t = trn_out_dtype(b, logits);
            double smooth = trn_nn__meant(o->label_smoothing);
            labels = trn_nn__cast(b, labels, t);
            if (smooth > 0) {
                const trn_shape *s = trn_nn__shape(b, logits);
                int64_t classes = s->rank > 0 ? s->dim[s->rank - 1] : -1;
                if (classes < 1)
                    BAD(b, "softmax cross entropy: the number of classes must be known for label smoothing");
                labels = OP(b, "AddV2", OP(b, "Mul", labels, trn_const_num(b, t, 1 - smooth)), trn_const_num(b, t, smooth / (double)classes));
            }
            labels = OP(trn_named(b, "labels_stop_gradient"), "StopGradient", labels);
            trn_out rows = as_rows(b, logits), truth = as_rows(b, labels);
            trn_out each = OP(trn_named(b, "xentropy"), "SoftmaxCrossEntropyWithLogits", rows, truth);
            y = weighted(b, from_rows(b, each, logits), o);
        }
    return y;
}

trn_out trn_loss_sparse_softmax(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts)
{
    const trn_loss_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "sparse_softmax_cross_entropy_loss")), b) {
        const trn_shape *sl = trn_nn__shape(b, labels), *sx = trn_nn__shape(b, logits);
        if (sl->rank > 0 && sl->rank == sx->rank && (sl->dim[sl->rank - 1] == 1 || sl->dim[sl->rank - 1] < 0))
            labels = trn_nn__squeeze_last(b, labels);
        sl = trn_nn__shape(b, labels);
        if (sl->rank >= 0 && sx->rank >= 0 && sl->rank + 1 != sx->rank) {
            char tl[TRN_SHAPE_TEXT], tx[TRN_SHAPE_TEXT];
            BAD(b, "sparse softmax cross entropy: labels are %s, logits are %s; labels have one dimension less", trn_shape_text(tl, sl), trn_shape_text(tx, sx));
        }
        trn_out flat = trn_nn__rank(b, labels) == 1 ? labels : OP(b, "Reshape", labels, trn_nn__ints(b, (int64_t[]){-1}, 1));
        trn_out rows = as_rows(b, logits);
        trn_out each = OP(trn_named(b, "xentropy"), "SparseSoftmaxCrossEntropyWithLogits", rows, flat);
        y = weighted(b, from_rows(b, each, logits), o);
    }
    return y;
}

trn_out trn_total_loss(trn_builder *b)
{
    int n_losses, n_extra;
    const char *name = trn_take_name(b, "total_loss");
    const trn_out *losses = trn_collection(&n_losses, b, "losses"), *extra = trn_collection(&n_extra, b, "regularization_losses");
    if (!trn_builder_ok(b))
        return TRN_NONE;
    if (n_losses + n_extra < 1)
        return BAD(b, "total_loss: there are no losses in the collection \"losses\"");
    trn_out *all = trn_builder_alloc(b, sizeof *all * (size_t)(n_losses + n_extra));
    if (!all)
        return TRN_NONE;
    if (n_losses)
        memcpy(all, losses, sizeof *all * (size_t)n_losses);
    if (n_extra)
        memcpy(all + n_losses, extra, sizeof *all * (size_t)n_extra);
    return trn_node_add(trn_named(b, name), "AddN", all, n_losses + n_extra, NULL, 0);
}
