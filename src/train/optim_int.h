/* Inside of the optimizers: what optim.c (tables and the common way), optim_sparse.c (updates made of several ops), clip.c, schedule.c and sync.c share. */
#ifndef TRN_OPTIM_INT_H
#define TRN_OPTIM_INT_H

#include <trainera/optim.h>

#define TRN_OPT_SLOTS 3
#define TRN_OPT_HYPER 6

typedef struct trn_optim_slot {
    const char *slot;          /* TensorFlow's name of it: "momentum" */
    const trn_variable *of;
    trn_variable *var;
} trn_optim_slot;

/* A constant where it is used: sending one from the worker to the ps in every step would cost a message. */
typedef struct trn_optim_const {
    const char *device;
    trn_dtype dtype;
    double value;
    trn_out out;
} trn_optim_const;

typedef struct trn_sync_graph trn_sync_graph;

/* One row per optimizer. The inputs of its update op, in order, are letters:
 *   v the variable   0 1 2 its slots   l the learning rate   a … f numbers h[0] … h[5]   g the gradient (of the sparse op: and its indices)
 *   p q the powers of Adam's betas     s the step, plus one   L l2 with Ftrl's beta in it */
typedef struct trn_optim_kind {
    const char *name;   /* TensorFlow's default name of the optimizer */
    const char *op;     /* ApplyX, SparseApplyX, ResourceApplyX, ResourceSparseApplyX */
    const char *inputs;
    struct {
        const char *name;
        int initial; /* -1: zero; -2: one; else h[initial] */
    } slots[TRN_OPT_SLOTS];
    const char *hyper[TRN_OPT_HYPER]; /* names of the constants */
} trn_optim_kind;

struct trn_optimizer {
    trn_builder *b;
    const trn_optim_kind *kind;
    const char *name;
    trn_out lr;
    float h[TRN_OPT_HYPER];
    float ftrl_beta;
    bool locking;
    bool nesterov;
    trn_variable *step;    /* AdagradDA */
    trn_out step_plus_one;
    trn_variable *power[2]; /* Adam: beta1_power, beta2_power */
    trn_optim_slot *slots;
    int n_slots;
    trn_variable **vars;   /* slots and powers, by creation */
    int n_vars;
    trn_optim_const *consts;
    int n_consts, cap_consts;
    trn_sync_graph *sync;  /* trn_sync_replicas: then `inner` is what it wraps, and all above is unused */
    trn_optimizer *inner;
};

static inline bool trn_optim__is_ref(const trn_builder *b, const trn_variable *v)
{
    const trn_node *n = trn_out_op(b, v->handle);
    return n && n->out_types && n->n_out > 0 && trn_dtype_is_ref(n->out_types[0]);
}

/* Op with inputs and without attrs; nm NULL: called like the op. The name is set when the inputs are there: one of them would take it. */
#define TRN_OP(b, nm, op, ...) trn_optim__op(b, nm, op, TRN_OUTS(__VA_ARGS__))
static inline trn_out trn_optim__op(trn_builder *b, const char *name, const char *op, const trn_out *in, int n)
{
    return trn_node_add(name ? trn_named(b, name) : b, op, in, n, NULL, 0);
}

/* Where the variable is, of the variable's dtype. */
trn_out trn_optim__lr(trn_optimizer *o, const trn_variable *v);
trn_out trn_optim__hyper(trn_optimizer *o, const trn_variable *v, int i);
trn_out trn_optim__cast(trn_builder *b, trn_out x, trn_dtype to);
/* Rows that come more than once are added up: some kernels would lose all but the last. */
trn_grad trn_optim__unique(trn_builder *b, trn_grad g);

trn_out trn_optim__sgd_sparse(trn_optimizer *o, const trn_variable *v, trn_grad g);
trn_out trn_optim__adam_sparse(trn_optimizer *o, trn_variable *v, trn_variable *m, trn_variable *vv, trn_grad g);

trn_out trn_sync__apply(trn_optimizer *o, const trn_grad_var *gv, int n, trn_variable *global_step);

#endif
