/* For the files of grad/: what a row is, and what the function of a row may use. A row says how the gradient of one op is made:
 *
 *     {"Tanh", {"(TanhGrad o d)"}},                      text, one term per input
 *     {"Mul", {"(Mul d (Conj y))", "(Mul (Conj x) d)"}, TRN_GRAD_SPREADS},
 *     {"MatMul", .fn = mat_mul},                         a function, where text will not do
 *
 * Terms
 *     d d1 d2     gradients of the outputs (zeros where none came)         o o1 o2   outputs
 *     x y z w i4  inputs                                                   $0 $1     arguments of trn_g_eval
 *     2 -0.5      a scalar of d's dtype                                    #-1 #[0,1] an int32 scalar, an int32 vector
 *     (Op term… key=value…)    a node; dtypes follow from its inputs. value: number, true, false, word; `key=@` copies the forward node's
 *                 attr of that name, `key=@other` another one, a lone `@` all those that the new op has, too, and that do not follow from its inputs
 *     (…).1       another output than the first
 *     (Shape t)   int32, a Const when it is known                          (Like d t)  d in the shape of t
 *     (Conj t)    t itself unless it is complex                            (SumTo d t) what broadcasting spread from t is added up
 */
#ifndef TRN_GRAD_ROWS_H
#define TRN_GRAD_ROWS_H

#include <trainera/grad.h>

#include "graph/graph_priv.h"

enum {
    TRN_GRAD_SPREADS = 1, /* its two inputs are broadcast: what the terms give is added up to their shapes */
    TRN_GRAD_FLAT = 2,    /* gradients end here */
};

typedef struct trn_grad_row {
    const char *op;
    const char *in[4]; /* NULL: no gradient for that input */
    unsigned flags;
    void (*fn)(trn_grad_ctx *c);
} trn_grad_row;

/* One table per family, ended by a row without a name; listed in engine.c. */
extern const trn_grad_row trn_grads_math[], trn_grads_nn[], trn_grads_array[], trn_grads_state[], trn_grads_flow[], trn_grads_control[], trn_grads_call[],
    trn_grads_special[], trn_grads_linalg[], trn_grads_space[], trn_grads_sparse[], trn_grads_decomp[], trn_grads_signal[], trn_grads_ragged[], trn_grads_csr[];
extern const char *const trn_grad_ends[]; /* ops where gradients end (rows_ends.c); ended by NULL */
const trn_grad_row *trn_grad__row(const char *op);
const trn_grad_row *trn_grad__row_at(int i); /* NULL behind the last */

/* Where the nodes are and go: a builder, or a graph that is being lowered. */
typedef struct trn_ghost {
    trn_builder *b; /* NULL: lowering */
    void *arg;
    trn_out (*add)(void *arg, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs); /* TRN_NONE: failed, and latched */
    const trn_node *(*node)(void *arg, int id);
    trn_out (*input)(void *arg, int id, int i);
    const trn_shape *(*shape)(void *arg, trn_out o); /* NULL: unknown */
    bool (*has_function)(void *arg, const char *name);
    bool (*ok)(void *arg);
    void (*fail)(void *arg, TRN_OWN trn_err err);
    void (*enter)(void *arg, int id); /* what comes is for the gradient of this node; -1: for none */
    bool any_type;                    /* also of integers */
    const char *source;               /* tells apart the gradients of one array that are taken in several calls */
    int depth;                        /* of functions inside of functions */
    int first, end;                   /* only nodes with first <= id < end count */
} trn_ghost;

struct trn_grad_ctx {
    trn_ghost *h;
    trn_arena *tmp;
    int id;
    const trn_node *n;
    const trn_grad *dy; /* one per output */
    trn_grad *dx;       /* one per input */
    const bool *want;   /* one per input */
    const trn_out *args; /* of trn_g_eval */
    struct { trn_out of, is; } shape[8]; /* made already */
    int n_shapes;
    struct { trn_out a, b, r; } spread; /* BroadcastGradientArgs of these two */
};

/* All of them give TRN_NONE once something has failed, and for TRN_NONE. */
trn_out trn_g_node(trn_grad_ctx *c, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs);
#define TRN_G(c, op, ...) trn_g_node(c, op, TRN_OUTS(__VA_ARGS__), NULL, 0)
/* A term; $0, $1… are the arguments: TRN_GE(c, "(Mul d $0)", t) */
trn_out trn_g_eval(trn_grad_ctx *c, const char *text, const trn_out *args);
#define TRN_GE(c, ...) TRN_GE_(c, __VA_ARGS__, TRN_NONE)
#define TRN_GE_(c, text, ...) trn_g_eval(c, text, (const trn_out[]){__VA_ARGS__})
void trn_g_fail(trn_grad_ctx *c, TRN_OWN trn_err err);
bool trn_g_ok(const trn_grad_ctx *c);

trn_dtype trn_g_type(const trn_grad_ctx *c, trn_out o);
trn_shape trn_g_shape(const trn_grad_ctx *c, trn_out o);               /* what is known of it */
const trn_tensor *trn_g_value(const trn_grad_ctx *c, trn_out o);       /* of a Const, else NULL */
bool trn_g_ints(int64_t *out, int *n, int max, const trn_grad_ctx *c, trn_out o); /* the numbers of an int32 or int64 Const */
trn_out trn_g_const(trn_grad_ctx *c, TRN_OWN trn_tensor *t);
trn_out trn_g_num(trn_grad_ctx *c, trn_dtype dtype, double v);
trn_out trn_g_ints_const(trn_grad_ctx *c, const int64_t *v, int n);    /* an int32 vector */
trn_out trn_g_i32(trn_grad_ctx *c, int32_t v);
trn_out trn_g_cast(trn_grad_ctx *c, trn_out x, trn_dtype to);          /* x itself when it has that dtype */
trn_out trn_g_shape_of(trn_grad_ctx *c, trn_out x);                    /* int32 */
trn_out trn_g_reshape(trn_grad_ctx *c, trn_out x, trn_out shape);
trn_out trn_g_like(trn_grad_ctx *c, trn_out x, trn_out like);
/* d has the shape of x and other, broadcast: added up to that of x. */
trn_out trn_g_sum_to(trn_grad_ctx *c, trn_out d, trn_out x, trn_out other);
trn_out trn_g_zeros_like(trn_grad_ctx *c, trn_out x);
/* Zeros of dtype t for the gradient of x: a tensor, or the variable behind a handle. */
trn_out trn_g_zeros(trn_grad_ctx *c, trn_out x, trn_dtype t);
trn_out trn_g_dense(trn_grad_ctx *c, trn_grad g);
/* The reduction's axes as an int32 vector, none negative, and (kept) the shape of its input with ones there. */
trn_out trn_g_kept_shape(trn_grad_ctx *c, trn_out x, trn_out axes);
bool trn_g_is_complex(trn_dtype t);
bool trn_g_trainable(trn_dtype t);

/* The engine. dx[i] is not TRN_NO_GRAD only where something came. */
void trn_grad__run(trn_grad *dx, trn_ghost *h, trn_arena *tmp, const trn_out *xs, int n_xs, const trn_out *ys, const trn_grad *dys, int n_ys,
                   const trn_out *stop, int n_stop);

/* The nodes of this op between the xs and the ys. */
int trn_grad__between(int **out, trn_ghost *h, trn_arena *tmp, const char *op, const trn_out *xs, int n_xs, const trn_out *ys, int n_ys);

#endif
