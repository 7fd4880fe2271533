/* Training: optimizers, learning-rate schedules, clipping, synchronous replicas, where variables go.
 *
 *     trn_optimizer *opt = trn_adam(b, trn_const_f32(b, 0.001f), 0.9f, 0.999f, 1e-8f);
 *     trn_out train = trn_minimize(opt, loss, trn_global_step(b));       // run this node once per step
 *
 * or in two moves, with something done to the gradients in between:
 *
 *     int n;
 *     trn_grad_var *gv = trn_compute_gradients(&n, opt, loss, NULL, 0);
 *     trn_out norm = trn_clip_by_global_norm(b, gv, n, trn_const_f32(b, 5));
 *     trn_out train = trn_apply_gradients(opt, gv, n, trn_global_step(b));
 *
 * Slots, their names and initial values, and the update ops are TensorFlow's (tf.compat.v1.train), so that checkpoints are exchanged both ways and C
 * and TensorFlow workers train the same variables. The rules of build.h hold: everything here is the builder's, errors are latched there.
 */
#ifndef TRAINERA_OPTIM_H
#define TRAINERA_OPTIM_H

#include <trainera/build.h>
#include <trainera/grad.h>
#include <trainera/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers ---------------------------------------------------------------------------------------------------- */

typedef struct trn_optimizer trn_optimizer;

/* `lr` is a float scalar: a constant, a schedule, anything. A pending name (trn_named) becomes the optimizer's, and so part of its slots' names. */
TRN_API trn_optimizer *trn_sgd(trn_builder *b, trn_out lr);                                       /* GradientDescent */
TRN_API trn_optimizer *trn_momentum(trn_builder *b, trn_out lr, float momentum, bool nesterov);   /* slot momentum */
TRN_API trn_optimizer *trn_adagrad(trn_builder *b, trn_out lr, float initial_accumulator);        /* slot accumulator; TensorFlow's default is 0.1 */
TRN_API trn_optimizer *trn_adadelta(trn_builder *b, trn_out lr, float rho, float epsilon);        /* slots accum, accum_update; 0.95, 1e-8 */
TRN_API trn_optimizer *trn_adam(trn_builder *b, trn_out lr, float beta1, float beta2, float epsilon); /* slots m, v; 0.9, 0.999, 1e-8 */
/* Slots rms, momentum, and mg when centered; 0.9, 0, 1e-10. */
TRN_API trn_optimizer *trn_rmsprop(trn_builder *b, trn_out lr, float decay, float momentum, float epsilon, bool centered);

typedef struct trn_ftrl_opts {
    trn_maybe_float lr_power;            /* -0.5 */
    trn_maybe_float initial_accumulator; /* 0.1 */
    float l1, l2, l2_shrinkage, beta;
} trn_ftrl_opts;
TRN_API trn_optimizer *trn_ftrl(trn_builder *b, trn_out lr, const trn_ftrl_opts *opts); /* slots accum, linear; opts may be NULL */
TRN_API trn_optimizer *trn_proximal_sgd(trn_builder *b, trn_out lr, float l1, float l2);
TRN_API trn_optimizer *trn_proximal_adagrad(trn_builder *b, trn_out lr, float initial_accumulator, float l1, float l2); /* slot accumulator */
/* Dual averaging; slots gradient_accumulator, gradient_squared_accumulator. It needs the global step for its average. */
TRN_API trn_optimizer *trn_adagrad_da(trn_builder *b, trn_out lr, trn_variable *global_step, float initial_accumulator, float l1, float l2);

TRN_API void trn_optimizer_use_locking(trn_optimizer *opt, bool yes); /* updates take the variable's lock; before apply */
TRN_API const char *trn_optimizer_name(const trn_optimizer *opt);     /* "Adam" */

/* A gradient (absent values: there is none) and what it is the gradient of. */
typedef struct trn_grad_var {
    trn_grad grad;
    trn_variable *var;
} trn_grad_var;

/* One entry per variable, in order; vars NULL: all that are trainable. NULL when an error was latched. */
TRN_API trn_grad_var *trn_compute_gradients(int *n, trn_optimizer *opt, trn_out loss, trn_variable *const *vars, int n_vars);
/* The op that updates every variable that has a gradient, where the variable is, and then adds one to global_step unless that is NULL. */
TRN_API trn_out trn_apply_gradients(trn_optimizer *opt, const trn_grad_var *gv, int n, trn_variable *global_step);
TRN_API trn_out trn_minimize(trn_optimizer *opt, trn_out loss, trn_variable *global_step);

/* After apply: the slot of a variable by TensorFlow's name of it ("momentum", "m"); NULL when there is none. */
TRN_API trn_variable *trn_optimizer_slot(const trn_optimizer *opt, const trn_variable *var, const char *slot);
TRN_API const char *const *trn_optimizer_slot_names(int *n, const trn_optimizer *opt);      /* sorted; builder memory */
TRN_API trn_variable *const *trn_optimizer_variables(int *n, const trn_optimizer *opt);     /* slots and what else it keeps (beta1_power), in order of creation */

/* ---- learning rates as functions of the global step ---------------------------------------------------------------- */

/* lr · rate^(step/decay_steps); staircase: the exponent is rounded down. */
TRN_API trn_out trn_exponential_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase);
TRN_API trn_out trn_natural_exp_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase); /* lr · exp(-rate · t) */
TRN_API trn_out trn_inverse_time_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float rate, bool staircase); /* lr / (1 + rate · t) */
/* values[0] while step <= boundaries[0], values[1] while step <= boundaries[1], …, values[n] afterwards: n boundaries, n + 1 values. */
TRN_API trn_out trn_piecewise_constant(trn_builder *b, trn_variable *global_step, const int64_t *boundaries, const float *values, int n);
/* From lr to end_lr in decay_steps; cycle: starts again with a longer decay, up to the next multiple of decay_steps. */
TRN_API trn_out trn_polynomial_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float end_lr, float power, bool cycle);
TRN_API trn_out trn_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float alpha); /* alpha: the least, as a part of lr */
/* Each period t_mul times as long as the one before it and begun at m_mul of its rate; 2, 1, 0 are TensorFlow's defaults. */
TRN_API trn_out trn_cosine_decay_restarts(trn_builder *b, float lr, trn_variable *global_step, double first_decay_steps, float t_mul, float m_mul, float alpha);
TRN_API trn_out trn_linear_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float num_periods, float alpha, float beta);
/* The same with noise on its line: normal, of variance initial_variance / (1 + step)^variance_decay; 1, 0.55, 0.5, 0, 0.001 are TensorFlow's defaults. */
TRN_API trn_out trn_noisy_linear_cosine_decay(trn_builder *b, float lr, trn_variable *global_step, double decay_steps, float initial_variance, float variance_decay,
                                              float num_periods, float alpha, float beta);
/* lr · (step + 1) / steps while that is less than lr. */
TRN_API trn_out trn_warm_up(trn_builder *b, trn_out lr, trn_variable *global_step, double steps);

/* ---- clipping ------------------------------------------------------------------------------------------------------ */

/* Elements limited to the range from low to high. */
TRN_API trn_out trn_clip_by_value(trn_builder *b, trn_out x, trn_out low, trn_out high);
TRN_API trn_out trn_clip_by_norm(trn_builder *b, trn_out x, trn_out norm);         /* scaled so that its L2 norm is `norm` at most */
TRN_API trn_out trn_clip_by_average_norm(trn_builder *b, trn_out x, trn_out norm); /* the same for norm / number of elements */
TRN_API trn_out trn_global_norm(trn_builder *b, const trn_grad_var *gv, int n);    /* of all of them as one vector */
/* These change gv, dense and sparse; entries without gradient stay. */
TRN_API void trn_clip_gradients_by_value(trn_builder *b, trn_grad_var *gv, int n, trn_out low, trn_out high);
TRN_API void trn_clip_gradients_by_norm(trn_builder *b, trn_grad_var *gv, int n, trn_out norm); /* each by itself */
TRN_API trn_out trn_clip_by_global_norm(trn_builder *b, trn_grad_var *gv, int n, trn_out norm); /* all by one factor; gives the norm from before */

/* ---- where things go ----------------------------------------------------------------------------------------------- */

typedef enum trn_strategy {
    TRN_BYTE_GREEDY, /* the ps task with the fewest bytes so far */
    TRN_ROUND_ROBIN, /* TensorFlow's default: choose it when C and TensorFlow workers share variables */
} trn_strategy;

typedef struct trn_setter_opts {
    int ps_tasks;               /* or `cluster`, which counts them */
    const char *ps_job;         /* "ps" */
    const char *worker_device;  /* "/job:worker"; usually "/job:worker/task:3" */
    const trn_cluster *cluster;
    trn_strategy strategy;
    /* What a variable costs its task, instead of its bytes. */
    double (*load)(void *arg, const trn_node *node, int64_t bytes);
    void *load_arg;
} trn_setter_opts;
typedef struct trn_setter trn_setter;

/* A scope (closed by trn_end): variables and tables go to the ps tasks, everything else to the worker; what an inner device scope says comes first.
 * Without any ps task it changes nothing. */
TRN_API trn_setter *trn_replica_device_setter(trn_builder *b, const trn_setter_opts *opts);
/* What is where: a line per task (variables, bytes, share) and a line per variable. Builder memory. The chief of a monitored session logs the lines of the tasks (and, at
 * level debug, the variables) when there are several. */
TRN_API const char *trn_setter_plan(trn_builder *b, const trn_setter *setter);

/* How a variable is cut. Made by the functions below; `axis` -1: as the function chose. */
typedef struct trn_partitioner {
    enum { TRN_PART_FIXED, TRN_PART_AXIS_SIZE, TRN_PART_MIN_MAX } kind;
    int axis;
    int max_parts;
    int64_t bytes;
    int bytes_per_string;
} trn_partitioner;
TRN_API trn_partitioner trn_fixed_partitioner(int parts, int axis);
/* Pieces of at most max_bytes; max_parts 0: as many as that takes. */
TRN_API trn_partitioner trn_axis_size_partitioner(int64_t max_bytes, int axis, int max_parts);
/* Pieces of at least min_bytes (TensorFlow's default 256 KiB), max_parts of them at most. */
TRN_API trn_partitioner trn_min_max_partitioner(int max_parts, int axis, int64_t min_bytes);

/* The initial value of one piece: `shape` is the piece's, that lies at `offset` in `full`. */
typedef trn_out (*trn_piece_fn)(void *arg, trn_builder *b, trn_dtype dtype, const trn_shape *shape, const trn_shape *full, const int64_t *offset);

typedef struct trn_partitioned {
    const char *name;
    trn_dtype dtype;
    trn_shape shape;
    int axis;
    int n;
    trn_variable **parts; /* "name/part_0", … */
} trn_partitioned;
/* init NULL: zeros. A checkpoint holds it as slices of one tensor `name`. */
TRN_API trn_partitioned *trn_partitioned_variable(trn_builder *b, const char *name, trn_dtype dtype, trn_shape shape, trn_partitioner how, trn_piece_fn init,
                                                  void *arg, unsigned flags);
TRN_API trn_out trn_partitioned_value(trn_builder *b, trn_partitioned *v); /* the whole, put together */

typedef enum trn_spread {
    TRN_MOD, /* id i is row i / n of piece i % n */
    TRN_DIV, /* pieces hold consecutive ids, the first ones one more: what trn_partitioned_variable makes of axis 0 */
} trn_spread;
/* Rows of a table that lies in n pieces: shape of ids + shape of a row. Looked up where the pieces are; the gradient is sparse, per piece. */
TRN_API trn_out trn_embedding_lookup_pieces(trn_builder *b, trn_variable *const *pieces, int n, trn_out ids, trn_spread spread);

/* ---- synchronous replicas ------------------------------------------------------------------------------------------ */

/* Wraps an optimizer: an update takes the mean of `replicas_to_aggregate` gradients, whoever they are from; later ones for the same step are dropped.
 * With replicas_to_aggregate < total_replicas the slowest of a step are backups. Minimize with it as with any other (the global step is required).
 *
 * The protocol, the shared names and the devices are those of tf.compat.v1.train.SyncReplicasOptimizer, so TensorFlow workers may take part, the chief
 * included. What goes beyond it: a worker that ends gives its token back, so the rest need not wait for it; when the chief ends, it closes the token queue
 * and the others end with OUT_OF_RANGE, which is a clean stop; and when a worker is lost with its token, the chief says so and puts in another. */
TRN_API trn_optimizer *trn_sync_replicas(trn_builder *b, trn_optimizer *opt, int replicas_to_aggregate, int total_replicas);

/* After apply. */
TRN_API trn_out trn_sync_local_init(const trn_optimizer *sync);  /* every worker but the chief, once per session, when the model is initialised */
TRN_API trn_out trn_sync_chief_init(const trn_optimizer *sync);  /* the chief instead */
TRN_API trn_out trn_sync_op(const trn_optimizer *sync);          /* one aggregation and update; the chief runs it again and again, beside its steps */
TRN_API trn_out trn_sync_init_tokens(trn_optimizer *sync, int num_tokens); /* the chief, once; -1: replicas_to_aggregate */
TRN_API trn_out trn_sync_local_step(const trn_optimizer *sync);  /* int64: the step that this worker's next gradient is for */
/* int64, this worker's: gradients that came too late and were dropped. Counted when the update was already made as the gradient arrived. */
TRN_API trn_out trn_sync_stale_count(const trn_optimizer *sync);

/* Run time. What a worker does around its training loop, for programs that open their sessions themselves. */
typedef struct trn_sync_opts {
    bool is_chief;
    int num_tokens;     /* put in at the start by the chief, beyond what is needed; 0: replicas_to_aggregate; -1: none */
    /* After so long without an update the log says for whom everybody waits, and the chief takes a worker for lost and replaces its token; 0: 30 s; -1: never. */
    int64_t stall_ms;
} trn_sync_opts;
typedef struct trn_sync trn_sync;
/* After the model is initialised, before the first step; the chief's aggregation runs in a thread from here on. The session must stay open until stop. */
TRN_API trn_err trn_sync_start(trn_sync **out, trn_optimizer *sync, trn_session *session, const trn_sync_opts *opts) TRN_MUST_USE;
/* The error that ended the chief's aggregation, for the caller, once; NULL: it runs, or we are not the chief. */
TRN_API trn_err trn_sync_check(trn_sync *s) TRN_MUST_USE;
/* The worker leaves: `clean` gives its token back, or, of the chief, closes the queue. Not clean (the session is lost): just ends what runs here. */
TRN_API void trn_sync_stop(TRN_OWN trn_sync *s, bool clean);

#ifdef __cplusplus
}
#endif
#endif
