/* Layers, initialisers, losses and metrics: models in a few lines on top of build.h.
 *
 *     trn_set_seed(b, 1);
 *     trn_out h = trn_conv2d(b, images, 32, 3, 3, &(trn_conv_opts){.padding = TRN_SAME, .activation = trn_relu});
 *     h = trn_dense(b, trn_flatten(b, trn_max_pool2d(b, h, 2, 2, TRN_VALID)), 128, &(trn_dense_opts){.activation = trn_relu});
 *     h = trn_dropout(b, h, 0.5f, TRN_TRAIN, NULL);
 *     trn_out logits = trn_dense(trn_named(b, "logits"), h, 10, NULL);
 *     trn_out loss = trn_loss_sparse_softmax(b, labels, logits, NULL);
 *
 * Rules
 * - Names of scopes and variables are those of tf.compat.v1.layers ("dense/kernel", "dense_1/bias"), so that checkpoints are exchanged both ways.
 *   trn_named before a layer gives the layer its name (no other call may be among its arguments then: C does not say which is made first). Formulas and defaults are TensorFlow's too; the same seeds give the same numbers.
 * - Optional parameters are the fields of one struct, `&(trn_dense_opts){…}` or NULL. What is left out is zero, and zero is always the default.
 * - Errors stay in the builder: see build.h.
 */
#ifndef TRAINERA_NN_H
#define TRAINERA_NN_H

#include <trainera/build.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- seeds --------------------------------------------------------------------------------------------------------- */

/* tf.compat.v1.set_random_seed: from here on every random op without a seed of its own gets (seed, 0), (seed, 1), (seed, 2), … Without it such ops are
 * different in every session; with a seed of their own only, they get (87654321, own). */
TRN_API void trn_set_seed(trn_builder *b, int64_t seed);
/* For layers of your own: the attrs "seed" and "seed2" of the next random op. */
TRN_API void trn_next_seeds(int64_t out[2], trn_builder *b, trn_maybe_int own);

/* Random tensors; seed {0}: from the seeds of graph and op, as tf.compat.v1.random. */
TRN_API trn_out trn_random_uniform(trn_builder *b, trn_dtype dtype, trn_shape shape, double low, double high, trn_maybe_int seed);
TRN_API trn_out trn_random_normal(trn_builder *b, trn_dtype dtype, trn_shape shape, double mean, double stddev, trn_maybe_int seed);
TRN_API trn_out trn_truncated_normal(trn_builder *b, trn_dtype dtype, trn_shape shape, double mean, double stddev, trn_maybe_int seed);

/* ---- initialisers -------------------------------------------------------------------------------------------------- */

typedef enum trn_init_kind {
    TRN_INIT_DEFAULT, /* what the layer does by itself: glorot uniform for kernels, zeros for biases */
    TRN_INIT_CONSTANT,
    TRN_INIT_UNIFORM,
    TRN_INIT_NORMAL,
    TRN_INIT_TRUNCATED_NORMAL,
    TRN_INIT_SCALED_UNIFORM, /* variance scaling, by fans */
    TRN_INIT_SCALED_TRUNCATED_NORMAL,
    TRN_INIT_SCALED_NORMAL,
    TRN_INIT_ORTHOGONAL,
    TRN_INIT_IDENTITY,
    TRN_INIT_VALUE,
    TRN_INIT_FN,
} trn_init_kind;
typedef enum trn_fan { TRN_FAN_IN, TRN_FAN_OUT, TRN_FAN_AVG } trn_fan;
typedef trn_out (*trn_init_fn)(void *arg, trn_builder *b, trn_dtype dtype, const trn_shape *shape);

/* How a variable starts. Made by the functions below; `seed` may be set afterwards: see trn_seeded. */
typedef struct trn_init {
    trn_init_kind kind;
    double a, b; /* low, high; mean, stddev; scale; gain; the constant */
    trn_fan fan;
    trn_maybe_int seed;
    const trn_tensor *value;
    trn_init_fn fn;
    void *arg;
} trn_init;

/* All the same; of a distribution. */
static inline trn_init trn_init_constant(double v) { return (trn_init){.kind = TRN_INIT_CONSTANT, .a = v}; }
static inline trn_init trn_init_zeros(void) { return trn_init_constant(0); }
static inline trn_init trn_init_ones(void) { return trn_init_constant(1); }
static inline trn_init trn_init_uniform(double low, double high) { return (trn_init){.kind = TRN_INIT_UNIFORM, .a = low, .b = high}; }
static inline trn_init trn_init_normal(double mean, double stddev) { return (trn_init){.kind = TRN_INIT_NORMAL, .a = mean, .b = stddev}; }
static inline trn_init trn_init_truncated_normal(double mean, double stddev) { return (trn_init){.kind = TRN_INIT_TRUNCATED_NORMAL, .a = mean, .b = stddev}; }
/* Variance scaling: how = TRN_INIT_SCALED_UNIFORM, …_TRUNCATED_NORMAL or …_NORMAL; variance scale/fan. */
static inline trn_init trn_init_scaled(trn_init_kind how, trn_fan fan, double scale) { return (trn_init){.kind = how, .a = scale, .fan = fan}; }
static inline trn_init trn_init_glorot_uniform(void) { return trn_init_scaled(TRN_INIT_SCALED_UNIFORM, TRN_FAN_AVG, 1); }
static inline trn_init trn_init_glorot_normal(void) { return trn_init_scaled(TRN_INIT_SCALED_TRUNCATED_NORMAL, TRN_FAN_AVG, 1); }
static inline trn_init trn_init_he_uniform(void) { return trn_init_scaled(TRN_INIT_SCALED_UNIFORM, TRN_FAN_IN, 2); }
static inline trn_init trn_init_he_normal(void) { return trn_init_scaled(TRN_INIT_SCALED_TRUNCATED_NORMAL, TRN_FAN_IN, 2); }
static inline trn_init trn_init_lecun_uniform(void) { return trn_init_scaled(TRN_INIT_SCALED_UNIFORM, TRN_FAN_IN, 1); }
static inline trn_init trn_init_lecun_normal(void) { return trn_init_scaled(TRN_INIT_SCALED_TRUNCATED_NORMAL, TRN_FAN_IN, 1); }
static inline trn_init trn_init_orthogonal(double gain) { return (trn_init){.kind = TRN_INIT_ORTHOGONAL, .a = gain}; }
static inline trn_init trn_init_identity(double gain) { return (trn_init){.kind = TRN_INIT_IDENTITY, .a = gain}; }
static inline trn_init trn_init_value(const trn_tensor *value) { return (trn_init){.kind = TRN_INIT_VALUE, .value = value}; } /* borrowed until used */
static inline trn_init trn_init_with(trn_init_fn fn, void *arg) { return (trn_init){.kind = TRN_INIT_FN, .fn = fn, .arg = arg}; }
static inline trn_init trn_seeded(trn_init init, int64_t seed) { init.seed = TRN_I(seed); return init; }

/* The initial value itself. TRN_INIT_DEFAULT: glorot uniform for floats, zeros otherwise, as get_variable. */
TRN_API trn_out trn_initial(trn_builder *b, trn_init init, trn_dtype dtype, trn_shape shape);
/* A variable "scope/name" with its initial value under "scope/name/Initializer", as tf.compat.v1.get_variable makes it. */
TRN_API trn_variable *trn_get_variable(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape, trn_init init, unsigned flags);

/* ---- activations: any function of this type; NULL in an opts struct is none ------------------------------------------- */

typedef trn_out (*trn_activation)(trn_builder *b, trn_out x);
/* The op of the same name, unless said. */
TRN_API trn_out trn_relu(trn_builder *b, trn_out x);
TRN_API trn_out trn_relu6(trn_builder *b, trn_out x);
TRN_API trn_out trn_leaky_relu(trn_builder *b, trn_out x); /* slope 0.2 below zero */
TRN_API trn_out trn_elu(trn_builder *b, trn_out x);
TRN_API trn_out trn_selu(trn_builder *b, trn_out x);
TRN_API trn_out trn_gelu(trn_builder *b, trn_out x); /* with erf */
TRN_API trn_out trn_swish(trn_builder *b, trn_out x);
TRN_API trn_out trn_sigmoid(trn_builder *b, trn_out x);
TRN_API trn_out trn_tanh(trn_builder *b, trn_out x);
TRN_API trn_out trn_softplus(trn_builder *b, trn_out x);
TRN_API trn_out trn_softsign(trn_builder *b, trn_out x);
TRN_API trn_out trn_softmax(trn_builder *b, trn_out x); /* over the last dimension */

/* ---- layers -------------------------------------------------------------------------------------------------------- */

typedef enum trn_padding { TRN_VALID, TRN_SAME } trn_padding;

/* Whether a layer trains: known while building, or a bool scalar that is fed: trn_training(flag). */
typedef struct trn_mode {
    bool train;
    bool fed;
    trn_out flag;
} trn_mode;
#define TRN_TRAIN ((trn_mode){true, false, {-1, 0}})
#define TRN_EVAL ((trn_mode){false, false, {-1, 0}})
static inline trn_mode trn_training(trn_out flag) { return (trn_mode){false, true, flag}; }

/* Common to layers with weights:
 *   reuse          the variables of the layer of the same name (trn_named) that was built before in this scope: towers, an evaluation beside training
 *   not_trainable  no gradients for its variables
 *   l1, l2         adds l1·Σ|w| + l2·Σw² of the kernel to the collection "regularization_losses" */

typedef struct trn_dense_opts {
    trn_activation activation;
    bool no_bias;
    trn_init kernel_init, bias_init;
    float l1, l2;
    bool reuse, not_trainable;
} trn_dense_opts;
/* x·kernel + bias over the last dimension of x: "dense". */
TRN_API trn_out trn_dense(trn_builder *b, trn_out x, int64_t units, const trn_dense_opts *opts);

typedef struct trn_conv_opts {
    int64_t stride, stride_w;     /* 0: 1; stride_w 0: as stride */
    int64_t dilation, dilation_w; /* likewise */
    trn_padding padding;
    trn_activation activation;
    bool no_bias;
    trn_init kernel_init, bias_init, pointwise_init; /* kernel_init: of the depthwise kernel, where there are two */
    int64_t multiplier;                              /* depthwise and separable: outputs per channel; 0: 1 */
    float l1, l2;
    bool reuse, not_trainable;
} trn_conv_opts;
/* x is [batch, height, width, channels]: "conv2d". */
TRN_API trn_out trn_conv2d(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts);
/* x is [batch, length, channels]: "conv1d". */
TRN_API trn_out trn_conv1d(trn_builder *b, trn_out x, int64_t filters, int64_t size, const trn_conv_opts *opts);
TRN_API trn_out trn_depthwise_conv2d(trn_builder *b, trn_out x, int64_t height, int64_t width, const trn_conv_opts *opts);
TRN_API trn_out trn_separable_conv2d(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts);
TRN_API trn_out trn_conv2d_transpose(trn_builder *b, trn_out x, int64_t filters, int64_t height, int64_t width, const trn_conv_opts *opts);

/* Square windows of NHWC images; global: over the whole image. */
TRN_API trn_out trn_max_pool2d(trn_builder *b, trn_out x, int64_t size, int64_t stride, trn_padding padding);
TRN_API trn_out trn_avg_pool2d(trn_builder *b, trn_out x, int64_t size, int64_t stride, trn_padding padding);
TRN_API trn_out trn_global_avg_pool2d(trn_builder *b, trn_out x); /* [batch, channels] */
TRN_API trn_out trn_global_max_pool2d(trn_builder *b, trn_out x);
TRN_API trn_out trn_flatten(trn_builder *b, trn_out x); /* [batch, the rest] */
/* dims as for tf.reshape: one may be -1. */
TRN_API trn_out trn_reshape(trn_builder *b, trn_out x, trn_shape dims);

typedef struct trn_batch_norm_opts {
    trn_maybe_float momentum; /* 0.99 */
    trn_maybe_float epsilon;  /* 0.001 */
    bool no_center, no_scale; /* without beta, without gamma */
    trn_init gamma_init, beta_init, mean_init, variance_init;
    bool reuse, not_trainable;
} trn_batch_norm_opts;
/* Over all dimensions but the last. The moving averages change when the ops of the collection "update_ops" run: put the train op behind them. */
TRN_API trn_out trn_batch_norm(trn_builder *b, trn_out x, trn_mode mode, const trn_batch_norm_opts *opts);

typedef struct trn_layer_norm_opts {
    trn_maybe_float epsilon; /* 0.001 */
    bool no_center, no_scale;
    trn_init gamma_init, beta_init;
    bool reuse, not_trainable;
} trn_layer_norm_opts;
/* Over the last dimension: "layer_normalization". */
TRN_API trn_out trn_layer_norm(trn_builder *b, trn_out x, const trn_layer_norm_opts *opts);

typedef struct trn_dropout_opts {
    trn_maybe_int seed;
    const trn_shape *noise; /* NULL: as x; a dimension 1 drops whole rows, channels, … */
} trn_dropout_opts;
/* Drops with probability `rate`, scales the rest by 1/(1 - rate); x itself when not training. */
TRN_API trn_out trn_dropout(trn_builder *b, trn_out x, float rate, trn_mode mode, const trn_dropout_opts *opts);

typedef struct trn_embedding_opts {
    trn_init init; /* uniform from -0.05 to 0.05, as Keras */
    bool reuse, not_trainable;
} trn_embedding_opts;
/* Rows of "embedding/embeddings" [rows, dims] by id (int32 or int64, any shape). Its gradient touches only the rows that were read. */
TRN_API trn_out trn_embedding(trn_builder *b, trn_out ids, int64_t rows, int64_t dims, const trn_embedding_opts *opts);
/* Rows of any variable by id: tf.nn.embedding_lookup. Of one in pieces: trn_embedding_lookup_pieces (optim.h). */
TRN_API trn_out trn_embedding_lookup(trn_builder *b, trn_variable *table, trn_out ids);

/* ---- recurrent layers ---------------------------------------------------------------------------------------------- */

typedef struct trn_rnn_opts {
    trn_maybe_float forget_bias; /* LSTM: 1 */
    trn_activation activation;   /* NULL: tanh */
    trn_init kernel_init, bias_init;
    const trn_out *c, *h;     /* the state to begin with, [batch, units]; NULL: zeros */
    const trn_out *lengths;   /* int32 or int64 [batch]: after so many steps a row's state stays and its outputs are 0; NULL: all steps */
    bool loop;                /* a loop in the graph though the number of steps is known: a smaller graph, slower steps */
    bool reuse, not_trainable;
} trn_rnn_opts;
/* What a recurrent layer gives: outputs [batch, time, units] and the last state (GRU: c is nothing). */
typedef struct trn_rnn {
    trn_out outputs, c, h;
} trn_rnn;
/* x is [batch, time, features]. With a known number of time steps these are laid out one after the other in the graph, else it loops. Variables as with
 * dynamic_rnn and BasicLSTMCell ("rnn/basic_lstm_cell/kernel"), or GRUCell ("rnn/gru_cell/gates/kernel", …/candidate/…). */
TRN_API trn_rnn trn_lstm(trn_builder *b, trn_out x, int64_t units, const trn_rnn_opts *opts);
TRN_API trn_rnn trn_gru(trn_builder *b, trn_out x, int64_t units, const trn_rnn_opts *opts);

/* ---- losses: tf.compat.v1.losses ----------------------------------------------------------------------------------- */

typedef enum trn_reduction {
    TRN_SUM_BY_NONZERO_WEIGHTS, /* the mean over the elements whose weight is not 0 */
    TRN_SUM,
    TRN_SUM_OVER_BATCH_SIZE, /* the sum divided by the number of elements */
    TRN_MEAN,                /* the sum divided by the sum of weights */
    TRN_UNREDUCED,
} trn_reduction;

typedef struct trn_loss_opts {
    const trn_out *weights; /* a scalar, or of the losses' rank with dims equal or 1 */
    trn_reduction reduction;
    const char *collection;  /* NULL: "losses"; "": none */
    trn_maybe_float delta;   /* huber: 1 */
    trn_maybe_float epsilon; /* log: 1e-7 */
    float label_smoothing;   /* softmax (one-hot), sigmoid */
} trn_loss_opts;
TRN_API trn_out trn_loss_mean_squared(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts);
TRN_API trn_out trn_loss_absolute(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts);
TRN_API trn_out trn_loss_huber(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts);
TRN_API trn_out trn_loss_log(trn_builder *b, trn_out labels, trn_out predictions, const trn_loss_opts *opts);
TRN_API trn_out trn_loss_hinge(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts); /* labels 0 or 1 */
TRN_API trn_out trn_loss_sigmoid(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts);
TRN_API trn_out trn_loss_softmax(trn_builder *b, trn_out onehot_labels, trn_out logits, const trn_loss_opts *opts);
/* labels: class numbers, int32 or int64, one dimension less than logits (or a last dimension of 1). */
TRN_API trn_out trn_loss_sparse_softmax(trn_builder *b, trn_out labels, trn_out logits, const trn_loss_opts *opts);
/* For losses of your own: weights, reduction and collection. */
TRN_API trn_out trn_loss_weighted(trn_builder *b, trn_out losses, const trn_loss_opts *opts);
/* Adds l1·Σ|w| + l2·Σw² to "regularization_losses". */
TRN_API trn_out trn_regularize(trn_builder *b, trn_out w, float l1, float l2);
/* The sum of "losses" and "regularization_losses". */
TRN_API trn_out trn_total_loss(trn_builder *b);

/* ---- losses over a sample of many classes: tf.nn.nce_loss, tf.nn.sampled_softmax_loss ------------------------------- */

typedef enum trn_sampler {
    TRN_SAMPLE_LOG_UNIFORM, /* for classes in the order of how frequent they are, the most frequent first */
    TRN_SAMPLE_UNIFORM,
    TRN_SAMPLE_LEARNED_UNIGRAM, /* by how often a class was among the labels so far */
    TRN_SAMPLE_FIXED_UNIGRAM,   /* by counts from a file or an array */
    TRN_SAMPLE_ALL,             /* every class, for tests: n_sampled must be their number */
} trn_sampler;
typedef struct trn_candidates_opts {
    trn_sampler sampler;
    bool repeated;      /* a class may be drawn more than once in a step */
    trn_maybe_int seed;
    /* Of TRN_SAMPLE_FIXED_UNIGRAM: one of the two */
    const char *vocab_file; /* lines that end in a count behind a comma; read by the task that draws */
    const float *unigrams;
    int n_unigrams;
    trn_maybe_float distortion; /* counts are raised to this power; 1 */
    int n_reserved;             /* so many first classes are never drawn */
    int shards, shard;          /* only classes i with i % shards == shard; 0: all */
} trn_candidates_opts;
/* What was drawn [n_sampled] (int64), and how often each label and each of the drawn is to be expected among so many. */
typedef struct trn_candidates {
    trn_out sampled, true_expected, sampled_expected;
} trn_candidates;
/* Classes drawn anew in each step, one set for the whole batch. labels: [batch, true classes per row]. */
TRN_API trn_candidates trn_candidates_new(trn_builder *b, trn_out labels, int64_t n_sampled, int64_t n_classes, const trn_candidates_opts *opts);

typedef struct trn_sampled_opts {
    const trn_candidates *candidates; /* NULL: log-uniform, each once, */
    trn_maybe_int seed;               /* with this seed */
    trn_maybe_bool remove_hits;       /* candidates that are true classes of a row do not count for it: not with nce, yes with softmax */
    bool div;                         /* pieces hold consecutive classes (TRN_DIV), as trn_partitioned_variable makes them; else TRN_MOD */
} trn_sampled_opts;
/* One loss per row. weights [classes, size] and biases [classes] may lie in pieces (trn_partitioned's parts): only the rows of labels and candidates are read,
 * where the pieces are, and the gradient is sparse. labels: int32 or int64 [batch, true classes per row]; inputs: [batch, size]. For training only: to
 * evaluate, compute all logits. */
TRN_API trn_out trn_nce_loss(trn_builder *b, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out labels, trn_out inputs,
                             int64_t n_sampled, int64_t n_classes, const trn_sampled_opts *opts);
TRN_API trn_out trn_sampled_softmax_loss(trn_builder *b, trn_variable *const *weights, int n_weights, trn_variable *const *biases, int n_biases, trn_out labels,
                                         trn_out inputs, int64_t n_sampled, int64_t n_classes, const trn_sampled_opts *opts);

/* ---- metrics: tf.compat.v1.metrics --------------------------------------------------------------------------------- */

/* `update` takes in one batch and gives the value with it; `value` is that of all batches since the local variables were initialised. */
typedef struct trn_metric {
    trn_out value, update;
} trn_metric;
/* `weights` of all metrics: NULL, or a scalar, or of the values' rank. */
TRN_API trn_metric trn_metric_mean(trn_builder *b, trn_out values, const trn_out *weights);
TRN_API trn_metric trn_metric_accuracy(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
TRN_API trn_metric trn_metric_mean_squared_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
TRN_API trn_metric trn_metric_root_mean_squared_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
TRN_API trn_metric trn_metric_mean_absolute_error(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
TRN_API trn_metric trn_metric_precision(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
TRN_API trn_metric trn_metric_recall(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights);
/* Area under the ROC curve (pr: the precision-recall curve), by trapezoids; predictions from 0 to 1; thresholds 0: 200. */
TRN_API trn_metric trn_metric_auc(trn_builder *b, trn_out labels, trn_out predictions, const trn_out *weights, int thresholds, bool pr);
/* How often the label (class number) is among the k best of predictions [batch, classes]. */
TRN_API trn_metric trn_metric_top_k(trn_builder *b, trn_out labels, trn_out predictions, int k, const trn_out *weights);
/* Of this batch alone, no variables: the share of rows whose largest logit is at the label (class number). */
TRN_API trn_out trn_accuracy(trn_builder *b, trn_out labels, trn_out logits);

#ifdef __cplusplus
}
#endif
#endif
