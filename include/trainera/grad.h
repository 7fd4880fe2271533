/* Gradients: nodes that work out dy/dx, added to the graph of a builder.
 *
 *     trn_grad g[2];
 *     trn_gradients(g, b, &loss, 1, TRN_OUTS(w->handle, bias->handle), NULL);
 *
 * A gradient is a tensor, or, where rows of a large variable were looked up, slices of one: values[i] belongs to row indices[i], and rows may come
 * more than once (TensorFlow's IndexedSlices). The new nodes are called "gradients/<node>_grad/…", as TensorFlow calls them. */
#ifndef TRAINERA_GRAD_H
#define TRAINERA_GRAD_H

#include <trainera/build.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_grad {
    trn_out values;      /* TRN_NONE: y does not depend on x */
    trn_out indices;     /* TRN_NONE: values is the whole gradient */
    trn_out dense_shape; /* of what the slices are taken from */
} trn_grad;
#define TRN_NO_GRAD ((trn_grad){TRN_NONE, TRN_NONE, TRN_NONE})
static inline bool trn_grad_is(trn_grad g) { return trn_out_is(g.values); }
static inline bool trn_grad_is_sparse(trn_grad g) { return trn_out_is(g.values) && trn_out_is(g.indices); }

typedef struct trn_gradients_opts {
    const trn_out *grad_ys; /* one per y, of its dtype and shape; NULL, or TRN_NONE there: ones */
    const trn_out *stop;    /* these count as constants */
    int n_stop;
    bool colocate;          /* each node with the one whose gradient it works out */
    bool zeros;             /* for an x that no y depends on, instead of TRN_NONE */
    const char *name;       /* of the scope; NULL: "gradients" */
} trn_gradients_opts;

/* out[i]: the derivative of the sum of all ys with respect to xs[i]. An x is a variable's handle (whatever reads it counts) or any tensor. Latches
 * NOT_FOUND, with op and node, when an op in between has no gradient. */
TRN_API void trn_gradients(trn_grad *out, trn_builder *b, const trn_out *ys, int n_ys, const trn_out *xs, int n_xs, const trn_gradients_opts *opts);
/* The gradient as one tensor: slices are added up. */
TRN_API trn_out trn_grad_dense(trn_builder *b, trn_grad g);
/* x, but a constant for gradients. */
TRN_API trn_out trn_stop_gradient(trn_builder *b, trn_out x);

/* ---- gradients of your own ops, or instead of ours ------------------------------------------------------------------ */

/* What a function that makes the gradient of one node sees. */
typedef struct trn_grad_ctx trn_grad_ctx;
typedef void (*trn_gradient_fn)(trn_grad_ctx *c);

/* [any] From now on `fn` makes the gradients of all nodes of this op, and of nodes whose attr "_gradient_op_type" says so. NULL: ours again. A node whose
 * attr names a gradient that nobody has registered, such as one of tf.custom_gradient, is an error (NOT_FOUND): its op's own would be another. */
TRN_API void trn_gradient_register(const char *op, trn_gradient_fn fn);
/* There is a gradient for this op, ours or a registered one. */
TRN_API bool trn_gradient_known(const char *op);

TRN_API trn_builder *trn_grad_builder(trn_grad_ctx *c); /* add nodes here; errors are latched in it */
TRN_API const trn_node *trn_grad_node(const trn_grad_ctx *c);
TRN_API trn_out trn_grad_in(const trn_grad_ctx *c, int i);  /* the node's inputs and outputs */
TRN_API trn_out trn_grad_out(const trn_grad_ctx *c, int i);
TRN_API bool trn_grad_has_dy(const trn_grad_ctx *c, int i); /* something came for output i */
TRN_API trn_out trn_grad_dy(trn_grad_ctx *c, int i);        /* as one tensor; zeros when nothing came */
TRN_API trn_grad trn_grad_dy_any(trn_grad_ctx *c, int i);   /* as it came, maybe slices */
TRN_API bool trn_grad_wanted(const trn_grad_ctx *c, int i); /* somebody asks for the gradient of input i */
TRN_API void trn_grad_set(trn_grad_ctx *c, int i, trn_out dx);
TRN_API void trn_grad_set_any(trn_grad_ctx *c, int i, trn_grad dx);

#ifdef __cplusplus
}
#endif
#endif
