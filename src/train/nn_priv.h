/* What the files of nn share: short ways to write ops, and the scope and variables of a layer. */
#ifndef TRN_TRAIN_NN_PRIV_H
#define TRN_TRAIN_NN_PRIV_H

#include <trainera/nn.h>

/* OP(b, "MatMul", x, w) and, with attrs, OPA(b, "Cast", ATTRS(trn_at_type("DstT", t)), x) */
#define OP(b, op, ...) trn_node_add(b, op, TRN_OUTS(__VA_ARGS__), NULL, 0)
#define ATTRS(...) (const trn_attr[]){__VA_ARGS__}, (int)(sizeof((const trn_attr[]){__VA_ARGS__}) / sizeof(trn_attr))
#define OPA(b, op, attrs, ...) trn_node_add(b, op, TRN_OUTS(__VA_ARGS__), attrs)
#define BAD(b, ...) trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, __VA_ARGS__))

/* list(int), in memory of the builder */
trn_attr trn_nn__at_ints(trn_builder *b, const char *name, const int64_t *v, int n);
#define AT_INTS(b, name, ...)                                                                                          \
    trn_nn__at_ints(b, name, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

trn_out trn_nn__cast(trn_builder *b, trn_out x, trn_dtype t); /* x itself when it is one already */
trn_out trn_nn__ints(trn_builder *b, const int64_t *v, int n); /* an int32 vector; int64 where it must be */
trn_out trn_nn__sum(trn_builder *b, trn_out x);                /* over everything */
trn_out trn_nn__size_f32(trn_builder *b, trn_out x);           /* number of elements, as a float */
trn_out trn_nn__last_dim(trn_builder *b, trn_out x, trn_out y, int64_t last); /* x reshaped to y's shape with another last dim */
trn_out trn_nn__part(trn_builder *b, trn_out vector, int64_t from, int64_t to); /* as Python's [from:to] */
trn_out trn_nn__batch(trn_builder *b, trn_out x);                               /* the first dim of x, as a vector of one */
trn_out trn_nn__squeeze_last(trn_builder *b, trn_out x);
const trn_shape *trn_nn__shape(trn_builder *b, trn_out x); /* never NULL */
int trn_nn__rank(trn_builder *b, trn_out x);
/* Latches an error unless the ranks and known dims of a and b fit. */
bool trn_nn__same_shape(trn_builder *b, const char *what, trn_out x, trn_out y);
bool trn_nn__is_float(trn_dtype t);
/* The double that was meant by a float in an opts struct: 0.9f is 0.9, so that 1 - 0.9f is computed as in Python. */
double trn_nn__meant(float v);
/* weights as floats that multiply `values` in place: rank 0 or that of values, one dimension more or less is mended. */
trn_out trn_nn__weights(trn_builder *b, const char *what, trn_out weights, trn_out values);

trn_out trn_nn__sigmoid_entropy(trn_builder *b, trn_out labels, trn_out logits); /* per element */

/* A layer that is being built: its name scope is open. */
typedef struct nn_layer {
    trn_builder *b;
    const char *vars; /* the scope that its variables have: another one's when reused */
    bool reuse;
    unsigned flags; /* for its variables */
} nn_layer;
nn_layer trn_nn__open(trn_builder *b, const char *otherwise, bool reuse, bool not_trainable);
void trn_nn__close(nn_layer *l);
/* init of kind DEFAULT: `otherwise`. NULL after an error. */
trn_variable *trn_nn__var(nn_layer *l, const char *name, trn_dtype dtype, trn_shape shape, trn_init init, trn_init otherwise, unsigned flags);
/* v's value where the layer uses it */
trn_out trn_nn__read(nn_layer *l, trn_variable *v);
void trn_nn__regularize(nn_layer *l, const char *name, trn_variable *v, float l1, float l2);
/* Bias, activation. */
trn_out trn_nn__finish(nn_layer *l, trn_out y, int64_t units, bool no_bias, trn_init bias_init, trn_activation act);

#endif
