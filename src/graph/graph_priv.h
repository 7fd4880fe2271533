/* Shared by the files of graph/ only. */
#ifndef TRN_GRAPH_PRIV_H
#define TRN_GRAPH_PRIV_H

#include "graph/graph.h"

/* Where a graph's bytes live. A copy shares strings, types and attr values with its source, so it holds the source's store;
 * an import builds in a store of its own, so that one that fails leaves nothing behind. */
struct trn_gstore {
    _Atomic uint32_t ref;
    trn_arena *arena;
    int n_parents, cap_parents;
    struct trn_gstore **parents;
};
trn_gstore *trn_gstore__new(void);
size_t trn_gstore__bytes(const trn_gstore *s); /* with its parents */
void trn_gstore__adopt(trn_gstore *s, TRN_OWN trn_gstore *parent);

/* "name", "name:3", "^name" (slot -1). Nothing is allocated; *len bytes of the name start at *name. False: slot out of bounds. */
bool trn_tensor_name__parse(const char *text, const char **name, size_t *len, int *slot);

/* An op that we do not have may be asked for any output below this: its types are unknown. */
#define TRN_UNKNOWN_OUTS 1024
extern trn_dtype trn_graph__untyped[TRN_UNKNOWN_OUTS];

/* Does output `slot` of `from` fit input i of `to`? Makes room for it when `from` is an op that we do not have. */
trn_err trn_gnode__check_input(const trn_gnode *to, int i, trn_gnode *from, int slot) TRN_MUST_USE;
/* Types of a node whose name, op, device and attrs are set: by the registry, by a function of `lib`, or unknown (n_in = n_data).
 * n_data -1: as many inputs as the attrs say (up to 65536); the caller counts them later.
 * `budget` (may be NULL) is what is left of the outputs that one import may ask for. */
trn_err trn_gnode__resolve(trn_gnode *nd, trn_arena *a, const trn_funclib *lib, int n_data,
                           int64_t *budget) TRN_MUST_USE;

/* The node's own attrs array with `attr` in it (replaced or added); the value is shared, not copied. */
void trn_gnode__set_attr(trn_gnode *nd, trn_arena *a, const trn_attr *attr);
void trn_gnode__del_attr(trn_gnode *nd, const char *name);

/* Deep copy into `a`: strings copied, tensors referenced until `a` is freed. */
void trn_attr__copy(trn_attr *out, trn_arena *a, const trn_attr *attr);
bool trn_attr__equal(const trn_attr *x, const trn_attr *y); /* kinds and values, not names */
/* Short-hands for builders; the strings are borrowed. */
trn_attr trn_attr__type(const char *name, trn_dtype t);
trn_attr trn_attr__int(const char *name, int64_t v);
trn_attr trn_attr__str(const char *name, const char *s);
trn_attr trn_attr__bool(const char *name, bool b);
trn_attr trn_attr__tensor(const char *name, trn_tensor *t);
/* Bytes that the tensors of an attr will take in memory beyond what the message carries. */
uint64_t trn_attr_pb__growth(const Tensorflow__AttrValue *pb);

/* ---- gradients (gradient.c): of what lies in nodes [first, end), whose order does not matter. */
typedef struct trn_gradient {
    trn_graph *g;
    trn_arena *tmp;
    int first, end;
    int anchor; /* a node of the same loop: constants wait for it */
    void *ctx;
    trn_err (*add)(void *ctx, trn_gnode **out, const char *op, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in);
    void (*wait)(void *ctx, trn_gnode *nd, int from);
} trn_gradient;
/* dx[i]: what the gradients dy of the results y are with respect to the outputs x of nodes in that stretch. NOT_FOUND for ops without a derivative. */
trn_err trn_gradient_of(trn_edge *dx, const trn_gradient *q, const trn_edge *x, int n_x, const trn_edge *y, const trn_edge *dy, int n_y) TRN_MUST_USE;
const char *trn_funclib__gradient(const trn_funclib *l, const char *fn); /* the function that is said to be fn's gradient, or NULL */
trn_err trn_funclib__add_gradient(trn_funclib *l, const Tensorflow__GradientDef *d) TRN_MUST_USE;

/* Control inputs in bulk: trn_graph_add_ctl looks through all of them for a double, which is quadratic where a peer sends a million. */
typedef struct trn_ctlset {
    int cap, stamp;
    int *seen; /* by node id: the call that saw it last */
} trn_ctlset;
/* nd's control inputs become ids[0 .. n) without doubles and without those below 0. ids may be nd->ctl itself. */
void trn_gnode__set_ctl(trn_graph *g, trn_gnode *nd, const int *ids, int n, trn_ctlset *s);

/* Who uses a node: users of node id are to[first[id] .. first[id + 1]). */
typedef struct trn_guse {
    int to;
    int input; /* of `to`; -1: control */
} trn_guse;
typedef struct trn_gusers {
    int *first;
    trn_guse *use;
} trn_gusers;
void trn_gusers__init(trn_gusers *u, const trn_graph *g);
void trn_gusers__fini(trn_gusers *u);

/* Shapes of one node's outputs from those of its inputs: all[id], NULL where nothing is known yet. Memory from `a`. They are unknown when the rule refuses
 * its inputs, and the error is for those whom it may tell something: the kernel will say it better, with the real shapes. */
trn_err trn_infer__node(trn_shape **all, const trn_graph *g, const trn_gnode *nd, trn_arena *a);

/* The values of a small integer tensor that follow from constants and known shapes (values.c); *unknown of them do not, and are -1. NULL: nothing is known. The
 * caller unrefs. */
trn_tensor *trn_infer__value(const trn_graph *g, trn_shape *const *shape, trn_edge e, int *unknown);

/* Nodes on their way into a graph: built in their own store, checked, then added all at once or not at all. */
typedef struct trn_stage {
    trn_graph *g;
    trn_gstore *store;
    const trn_funclib *lib; /* of the graph as it will be */
    int n, cap;
    trn_gnode **node; /* ids g->n … g->n + n - 1 */
    trn_map *by_name; /* of these */
    int64_t budget;
} trn_stage;
void trn_stage__init(trn_stage *s, trn_graph *g, const trn_funclib *lib);
void trn_stage__fini(trn_stage *s); /* also after a commit */
/* Name and device are checked and copied, attrs are taken as they are (in the stage's arena). */
trn_err trn_stage__node(trn_gnode **out, trn_stage *s, const char *name, const char *op, const char *device,
                        trn_attr *attrs, int n_attrs, int n_data, int n_ctl) TRN_MUST_USE;
trn_gnode *trn_stage__at(const trn_stage *s, int id); /* staged or already there */
trn_err trn_stage__check_cycles(const trn_stage *s) TRN_MUST_USE;
void trn_stage__commit(trn_stage *s);
/* Attrs of a map field, last one of a name wins. More than TRN_MAX_ATTRS are refused: nodes look through theirs one by one. */
#define TRN_MAX_ATTRS 1024
trn_err trn_attrs__from_pb(trn_attr **out, int *n_out, trn_arena *a, Tensorflow__NodeDef__AttrEntry *const *pb,
                           size_t n) TRN_MUST_USE;

/* Bytes that constants may take beyond what the message carries: in one import, in one function, in all the bodies that lowering makes. */
uint64_t trn_graph__max_growth(void);
/* What the constants of these nodes take so; fails when it is more. */
trn_err trn_nodes__growth(uint64_t *out, Tensorflow__NodeDef *const *node, size_t n) TRN_MUST_USE;

/* ---- functions */
const Tensorflow__FunctionDef *trn_funclib__find(const trn_funclib *l, const char *name);
/* Name of a result → where it comes from; the strings are the function's, the map the caller's. */
trn_map *trn_funclib__rets(const Tensorflow__FunctionDef *fd);
/* trn_funclib_body that takes what the constants need from *left (of trn_graph__max_growth), for callers that make many bodies. */
trn_err trn_funclib__body(trn_graph **out, trn_funclib *l, const trn_func_ref *f, uint64_t *left) TRN_MUST_USE;
/* A library with the same functions (shared), for adding to it while others use the old one; NULL: an empty one. */
trn_funclib *trn_funclib__copy(const trn_funclib *l);
bool trn_funclib__alone(const trn_funclib *l); /* there is one reference */
void trn_funclib__cut(trn_funclib *l, int n);  /* leaves the first n functions */

/* A function's body without what neither a result nor an effect needs. `by_name`: the function's name was the op. */
trn_graph *trn_graph__without_dead_nodes(TRN_OWN trn_graph *body, bool by_name);
/* "node:out:0" as functions name an edge; NULL: what that op's outputs are called is not known. */
char *trn_graph__spell(trn_arena *a, const trn_graph *g, trn_edge e);
/* A graph as a function: its _Arg and _Retval nodes, in the order of their indices, are the arguments and results; `arg` and `ret` get those indices (in `a`).
 * Every node has its device, so `_class` is left out. */
trn_err trn_graph__define(Tensorflow__FunctionDef **out, trn_arena *a, const trn_graph *g, const char *name, int *n_args, int **arg, int *n_rets, int **ret) TRN_MUST_USE;

/* As GraphDef has it. */
Tensorflow__NodeDef *trn_gnode__to_pb(trn_arena *a, const trn_graph *g, const trn_gnode *nd);

static inline bool trn_gnode__is(const trn_gnode *nd, const char *op) { return strcmp(nd->n.op, op) == 0; }
/* The edge that closes a loop. */
static inline bool trn_gnode__is_back_edge(const trn_gnode *from, const trn_gnode *to)
{
    if (from->n.def && to->n.def)
        return (from->n.def->row->flags & TRN_OP_NEXT) && (to->n.def->row->flags & TRN_OP_MERGE);
    return (trn_gnode__is(from, "NextIteration") || trn_gnode__is(from, "RefNextIteration")) &&
           (trn_gnode__is(to, "Merge") || trn_gnode__is(to, "RefMerge"));
}

#endif
