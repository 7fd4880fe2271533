/* Decisions, loops and functions in the graph: what runs is decided by each step.
 *
 *     static void shrink(void *arg, trn_builder *b, trn_out *v) { v[0] = trn_op_mul(b, v[0], trn_const_f32(b, 0.5f)); }
 *     static trn_out large(void *arg, trn_builder *b, const trn_out *v) { return trn_op_greater(b, v[0], trn_const_f32(b, 1)); }
 *     trn_outs y = trn_while(b, large, shrink, NULL, &x, 1, NULL);
 *
 * Bodies are built by functions of yours, which are called once. They may use any tensor of the builder: what they take from outside becomes an input of
 * the new op. Nodes that they make belong to the body and mean nothing outside of it: hand results out, and make variables before. Ops with effects
 * (assignments, prints) in a body run each time it does. These are TensorFlow's functional ops (If, While, PartitionedCall), and have gradients. */
#ifndef TRAINERA_CONTROL_H
#define TRAINERA_CONTROL_H

#include <trainera/build.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets out[0 … n_out). */
typedef void (*trn_branch_fn)(void *arg, trn_builder *b, trn_out *out, int n_out);
/* One of the two runs. Both must give tensors of the same dtypes. pred: a bool scalar. */
TRN_API trn_outs trn_cond(trn_builder *b, trn_out pred, trn_branch_fn if_true, trn_branch_fn if_false, void *arg, int n_out);

typedef trn_out (*trn_loop_cond_fn)(void *arg, trn_builder *b, const trn_out *vars); /* a bool scalar: go on? */
typedef void (*trn_loop_body_fn)(void *arg, trn_builder *b, trn_out *vars);          /* replaces the variables by their next values */
typedef struct trn_loop_opts {
    const trn_shape *shapes;  /* one per variable, for those whose shape changes from turn to turn; NULL: they keep their shapes */
    int parallel_iterations;  /* 0: 10 */
    int64_t max_iterations;   /* 0: no limit */
} trn_loop_opts;
/* While cond(vars): vars = body(vars). Gives the last values. */
TRN_API trn_outs trn_while(trn_builder *b, trn_loop_cond_fn cond, trn_loop_body_fn body, void *arg, const trn_out *vars, int n, const trn_loop_opts *opts);

/* A function of the graph's library, and what it takes from outside beside its arguments. */
typedef struct trn_function {
    const char *name;
    int n_args, n_rets;
    bool stateful;
    trn_out *outside;
    int n_outside;
} trn_function;
typedef void (*trn_function_fn)(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out);
/* The arguments have the dtypes and known shapes of `like`. The name is made unique. NULL when it failed. */
TRN_API trn_function *trn_function_new(trn_builder *b, const char *name, trn_function_fn fn, void *arg, const trn_out *like, int n_args, int n_rets);
TRN_API trn_outs trn_call(trn_builder *b, const trn_function *f, const trn_out *in, int n_in);

#ifdef __cplusplus
}
#endif
#endif
