/* Losses over a sample of many classes: candidates are drawn once per step, and only their rows (and those of the true classes) of the weights are read and
 * updated. The formulas are those of tf.nn.nce_loss and tf.nn.sampled_softmax_loss. */
#include "train/nn_priv.h"

#include <string.h>

#include <trainera/optim.h>

#include "base/base.h"

static const trn_candidates no_candidates = {TRN_NONE, TRN_NONE, TRN_NONE};

/* The number of true classes of a row; 0 after an error. */
static int64_t true_per_row(trn_builder *b, const char *what, trn_out labels)
{
    char text[TRN_SHAPE_TEXT];
    if (!trn_builder_ok(b))
        return 0;
    trn_dtype t = trn_out_dtype(b, labels);
    const trn_shape *s = trn_nn__shape(b, labels);
    if ((t == TRN_INT32 || t == TRN_INT64) && s->rank == 2 && s->dim[1] > 0)
        return s->dim[1];
    BAD(b, "%s: labels must be int32 or int64 [batch, number of true classes] with a known number, not %s %s", what, trn_dtype_name(t), trn_shape_text(text, s));
    return 0;
}

trn_candidates trn_candidates_new(trn_builder *b, trn_out labels, int64_t n_sampled, int64_t n_classes, const trn_candidates_opts *opts)
{
    static const trn_candidates_opts none;
    static const char *const ops[] = {"LogUniformCandidateSampler", "UniformCandidateSampler", "LearnedUnigramCandidateSampler", "FixedUnigramCandidateSampler",
                                      "AllCandidateSampler"};
    const trn_candidates_opts *o = opts ? opts : &none;
    const char *name = trn_take_name(b, "candidates");
    int64_t n_true = true_per_row(b, name, labels), seeds[2];
    if (!n_true)
        return no_candidates;
    bool unique = !o->repeated, fixed = o->sampler == TRN_SAMPLE_FIXED_UNIGRAM, all = o->sampler == TRN_SAMPLE_ALL;
    if ((unsigned)o->sampler >= TRN_COUNTOF(ops) || n_sampled < 1 || n_classes < 1 || (unique && n_sampled > n_classes)) {
        BAD(b, "%s: %lld candidates of %lld classes%s", name, (long long)n_sampled, (long long)n_classes, unique ? ", each at most once" : "");
        return no_candidates;
    }
    if (fixed && !o->vocab_file == !o->n_unigrams) {
        BAD(b, "%s: a fixed unigram sampler needs counts, either from a file or from an array", name);
        return no_candidates;
    }
    trn_next_seeds(seeds, b, o->seed);
    trn_attr at[12];
    int n = 0;
    at[n++] = trn_at_int("num_true", n_true);
    at[n++] = trn_at_int("num_sampled", n_sampled);
    at[n++] = trn_at_bool("unique", unique);
    at[n++] = trn_at_int("seed", seeds[0]);
    at[n++] = trn_at_int("seed2", seeds[1]);
    if (!all)
        at[n++] = trn_at_int("range_max", n_classes);
    if (fixed) {
        at[n++] = trn_at_str("vocab_file", o->vocab_file ? o->vocab_file : "");
        at[n++] = trn_at_float("distortion", o->distortion.given ? o->distortion.v : 1);
        at[n++] = trn_at_int("num_reserved_ids", o->n_reserved);
        at[n++] = trn_at_int("num_shards", o->shards ? o->shards : 1);
        at[n++] = trn_at_int("shard", o->shard);
        at[n++] = trn_at_floats(b, "unigrams", (trn_floats){o->unigrams, o->n_unigrams});
    }
    trn_out ids = trn_nn__cast(b, labels, TRN_INT64), drawn = trn_node_add(trn_named(b, name), ops[o->sampler], &ids, 1, at, n);
    if (!trn_builder_ok(b))
        return no_candidates;
    return (trn_candidates){drawn, trn_out_nth(drawn, 1), trn_out_nth(drawn, 2)};
}

/* The first n rows of x, or those behind them; n is a vector of one. What was looked up in pieces does not say its rank. */
static trn_out rows(trn_builder *b, trn_out x, int rank, trn_out n, bool behind)
{
    static const int32_t zeros[TRN_MAX_RANK];
    int32_t all[TRN_MAX_RANK];
    for (int i = 0; i < TRN_MAX_RANK; i++)
        all[i] = -1;
    trn_out axis = trn_const_i32(b, 0), tail = trn_const_i32s(b, behind ? zeros : all, rank - 1);
    trn_out edge = rank > 1 ? OP(b, "ConcatV2", n, tail, axis) : n, other = trn_const_i32s(b, behind ? all : zeros, rank);
    return behind ? OP(b, "Slice", x, edge, other) : OP(b, "Slice", x, other, edge);
}

/* Very unlikely logits where a candidate is one of the row's true classes. */
static trn_out without_hits(trn_builder *b, trn_out labels, trn_out sampled, trn_out logits, int64_t n_true, int64_t n_sampled)
{
    int64_t seeds[2];
    trn_next_seeds(seeds, b, (trn_maybe_int){0});
    trn_out hits = OPA(b, "ComputeAccidentalHits", ATTRS(trn_at_int("num_true", n_true), trn_at_int("seed", seeds[0]), trn_at_int("seed2", seeds[1])), labels, sampled);
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_out column = trn_const_i32s(b, (int32_t[]){-1, 1}, 2), one = trn_const_i32(b, 1), zero = trn_const_i32(b, 0);
    trn_out row = OP(b, "Reshape", hits, column), col = OP(b, "Reshape", trn_nn__cast(b, trn_out_nth(hits, 1), TRN_INT32), column);
    trn_out at = OP(b, "ConcatV2", row, col, one);
    trn_out shape = OP(b, "ConcatV2", trn_nn__batch(b, labels), trn_const_i32s(b, (int32_t[]){(int32_t)n_sampled}, 1), zero);
    trn_dtype t = trn_out_dtype(b, logits);
    trn_out less = OPA(b, "SparseToDense", ATTRS(trn_at_bool("validate_indices", false)), at, shape, trn_nn__cast(b, trn_out_nth(hits, 2), t), trn_const_num(b, t, 0));
    return OP(b, "AddV2", logits, less);
}

typedef struct sampled {
    trn_out logits, labels; /* [batch, true + sampled] */
} sampled;

static bool check(trn_builder *b, const char *what, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out inputs, int64_t n_sampled)
{
    char text[TRN_SHAPE_TEXT], of[TRN_SHAPE_TEXT];
    if (!trn_builder_ok(b))
        return false;
    const trn_shape *s = trn_nn__shape(b, inputs);
    if (n_weights < 1 || n_biases < 1 || n_sampled > INT32_MAX)
        BAD(b, "%s: %d pieces of weights, %d of biases, %lld candidates", what, n_weights, n_biases, (long long)n_sampled);
    for (int i = 0; i < n_weights && trn_builder_ok(b); i++)
        if (weights[i]->shape.rank != 2 || s->rank != 2 || (s->dim[1] >= 0 && s->dim[1] != weights[i]->shape.dim[1]))
            BAD(b, "%s: weights '%s' are %s and inputs %s; [classes, size] and [batch, size] are wanted", what, weights[i]->name, trn_shape_text(text, &weights[i]->shape),
                trn_shape_text(of, s));
    for (int i = 0; i < n_biases && trn_builder_ok(b); i++)
        if (biases[i]->shape.rank != 1)
            BAD(b, "%s: biases '%s' are %s; [classes] is wanted", what, biases[i]->name, trn_shape_text(text, &biases[i]->shape));
    return trn_builder_ok(b);
}

/* The scope of the loss is open. */
static sampled compute(trn_builder *b, const char *what, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out labels,
                       trn_out inputs, int64_t n_sampled, int64_t n_classes, const trn_sampled_opts *o, bool remove_hits)
{
    sampled none = {TRN_NONE, TRN_NONE};
    int64_t n_true = true_per_row(b, what, labels);
    if (!n_true || !check(b, what, weights, n_weights, biases, n_biases, inputs, n_sampled))
        return none;
    trn_dtype t = trn_out_dtype(b, inputs);
    trn_spread spread = o->div ? TRN_DIV : TRN_MOD;
    trn_out axis = trn_const_i32(b, 0);
    labels = trn_nn__cast(b, labels, TRN_INT64);
    trn_out flat = OP(b, "Reshape", labels, trn_const_i32s(b, (int32_t[]){-1}, 1));
    trn_candidates c = o->candidates ? *o->candidates
                                     : trn_candidates_new(trn_named(b, "LogUniformCandidateSampler"), labels, n_sampled, n_classes, &(trn_candidates_opts){.seed = o->seed});
    if (!trn_builder_ok(b))
        return none;
    const trn_shape *drawn = trn_nn__shape(b, c.sampled);
    if (drawn->rank == 1 && drawn->dim[0] >= 0 && drawn->dim[0] != n_sampled) {
        BAD(b, "%s: %lld candidates were drawn, not %lld", what, (long long)drawn->dim[0], (long long)n_sampled);
        return none;
    }
    trn_out ids = OP(b, "StopGradient", c.sampled), true_q = OP(b, "StopGradient", c.true_expected), sampled_q = OP(b, "StopGradient", c.sampled_expected);
    trn_out all = OP(b, "ConcatV2", flat, ids, axis), n_flat = OP(b, "Shape", flat);
    trn_out all_w = trn_nn__cast(b, trn_embedding_lookup_pieces(b, weights, n_weights, all, spread), t);
    trn_out all_b = trn_nn__cast(b, trn_embedding_lookup_pieces(b, biases, n_biases, all, spread), t);
    trn_out true_w = rows(b, all_w, 2, n_flat, false), sampled_w = rows(b, all_w, 2, n_flat, true);
    trn_out true_b = rows(b, all_b, 1, n_flat, false), sampled_b = rows(b, all_b, 1, n_flat, true);
    trn_out sampled_logits = OPA(b, "MatMul", ATTRS(trn_at_bool("transpose_b", true)), inputs, sampled_w);
    trn_out one = trn_const_i32(b, 1), per_row = trn_nn__ints(b, (int64_t[]){-1, n_true}, 2);
    trn_out dots = OP(b, "Mul", OP(b, "ExpandDims", inputs, one), OP(b, "Reshape", true_w, trn_nn__ints(b, (int64_t[]){-1, n_true, weights[0]->shape.dim[1]}, 3)));
    trn_out true_logits = OP(b, "Sum", dots, trn_const_i32s(b, (int32_t[]){2}, 1));
    true_logits = OP(b, "AddV2", true_logits, OP(b, "Reshape", true_b, per_row));
    sampled_logits = OP(b, "AddV2", sampled_logits, sampled_b);
    if (remove_hits)
        sampled_logits = without_hits(b, labels, ids, sampled_logits, n_true, n_sampled);
    /* What is drawn more often counts less. */
    true_logits = OP(b, "Sub", true_logits, trn_nn__cast(b, OP(b, "Log", true_q), t));
    sampled_logits = OP(b, "Sub", sampled_logits, trn_nn__cast(b, OP(b, "Log", sampled_q), t));
    trn_out share = OP(b, "RealDiv", OP(b, "OnesLike", true_logits), trn_const_num(b, t, (double)n_true)), nothing = OP(b, "ZerosLike", sampled_logits);
    return (sampled){OP(b, "ConcatV2", true_logits, sampled_logits, one), OP(b, "ConcatV2", share, nothing, one)};
}

static const trn_sampled_opts no_opts;

trn_out trn_nce_loss(trn_builder *b, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out labels, trn_out inputs,
                     int64_t n_sampled, int64_t n_classes, const trn_sampled_opts *opts)
{
    const trn_sampled_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "nce_loss")), b) {
        sampled s = compute(b, "nce_loss", weights, n_weights, biases, n_biases, labels, inputs, n_sampled, n_classes, o, o->remove_hits.given && o->remove_hits.v);
        if (trn_builder_ok(b))
            y = OP(b, "Sum", trn_nn__sigmoid_entropy(b, s.labels, s.logits), trn_const_i32s(b, (int32_t[]){1}, 1));
    }
    return y;
}

trn_out trn_sampled_softmax_loss(trn_builder *b, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out labels,
                                 trn_out inputs, int64_t n_sampled, int64_t n_classes, const trn_sampled_opts *opts)
{
    const trn_sampled_opts *o = opts ? opts : &no_opts;
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "sampled_softmax_loss")), b) {
        sampled s = compute(b, "sampled_softmax_loss", weights, n_weights, biases, n_biases, labels, inputs, n_sampled, n_classes, o, !o->remove_hits.given || o->remove_hits.v);
        if (trn_builder_ok(b))
            y = OP(b, "SoftmaxCrossEntropyWithLogits", s.logits, OP(b, "StopGradient", s.labels));
    }
    return y;
}
