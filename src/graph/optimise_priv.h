/* Shared by optimise.c (the pass, folding, common subexpressions), simplify.c (arithmetic) and fuse.c, fuse_update.c (several nodes in one kernel). */
#ifndef TRN_GRAPH_OPTIMISE_PRIV_H
#define TRN_GRAPH_OPTIMISE_PRIV_H

#include "graph/graph_priv.h"

typedef struct trn_opt {
    trn_graph *g;
    const trn_opt_opts *o;
    trn_eval_fn eval;
    int n0;            /* nodes before */
    int64_t max_bytes; /* of a folded result */
    trn_arena *tmp;
    trn_shape **shape; /* by node id, also of new nodes; NULL: not met yet */
    int cap_shape;
    bool *tainted;    /* behind Switch or Enter */
    bool *pinned;     /* others are colocated with it */
    bool *ctl_used;   /* has control outputs */
    int *uses;        /* edges from it */
    trn_edge **moved; /* outputs that come from elsewhere now; NULL: the node stands */
    trn_map *same;    /* hash → id + 1 of the first node with it */
    int *next_same;
    trn_ctlset ctls;
} trn_opt;

/* No effects, no references, no waiting: may be moved, merged and dropped. */
bool trn_opt__is_pure(const trn_gnode *nd);
/* All outputs of nd come from `to` now; who waited for it waits for to[0]'s node. */
void trn_opt__move(trn_opt *p, trn_gnode *nd, const trn_edge *to);
/* May every use of nd's outputs become a use of `from`'s? Not when somebody waits for nd, nd waits for somebody, or they ask for different devices. */
bool trn_opt__may_bypass(const trn_opt *p, const trn_gnode *nd, trn_edge from);
trn_tensor *trn_opt__const(const trn_opt *p, trn_edge e);       /* NULL: no constant */
const trn_shape *trn_opt__shape(const trn_opt *p, trn_edge e);  /* never NULL; unknown rank when nothing is known */
void trn_opt__set_shape(trn_opt *p, int id, trn_shape *s);

/* simplify.c: a node that does nothing, or what another does with fewer nodes. Inputs are up to date. */
trn_err trn_opt__simplify(bool *gone, trn_opt *p, trn_gnode *nd) TRN_MUST_USE;
/* fuse.c: after the pass, over all nodes. */
trn_err trn_opt__fuse(trn_opt *p) TRN_MUST_USE;
bool trn_fuse__same_place(const trn_gnode *a, const trn_gnode *b);
bool trn_fuse__is_value(const trn_gnode *nd);                   /* one that another node may compute on its way */
bool trn_fuse__is_ours(const trn_opt *p, const trn_gnode *nd);  /* on this task? */
/* fuse_update.c: the last part of that. */
trn_err trn_fuse__updates(trn_opt *p) TRN_MUST_USE;

#endif
