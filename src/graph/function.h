/* Functions out of a builder's nodes, and back: a body is built at the end of the builder's own graph, where it can use everything that is there, then it
 * is lifted out into the library and its nodes are dropped again. For control.c and grad/. */
#ifndef TRN_FUNCTION_H
#define TRN_FUNCTION_H

#include "graph/builder.h"

/* A function in the making. */
typedef struct trn_fn {
    trn_arena *tmp;
    trn_out *args; /* what stands for the arguments: placeholders, then what the body takes from outside */
    int n_args, cap_args;
    int n_own;     /* of them: arguments that were given; the rest was found by collecting */
    trn_out *rets;
    int n_rets, cap_rets;
    int *roots;    /* nodes that run though no result needs them */
    int n_roots, cap_roots;
    int *nodes;    /* found: inputs first */
    int n_nodes, cap_nodes;
    bool stateful;
    const char *name;
} trn_fn;

void trn_fn__add_arg(trn_fn *f, trn_out o);
void trn_fn__add_ret(trn_fn *f, trn_out o);
/* A node that stands for an argument. */
trn_out trn_fn__placeholder(trn_builder *b, trn_dtype t, const trn_shape *s);
/* The effects of nodes [first, end of the graph): what must run even if no result needs it. */
void trn_fn__add_effects(trn_fn *f, trn_builder *b, int first);
bool trn_fn__has_effect(const trn_builder *b, const trn_gnode *nd);
void trn_fn__add_root(trn_fn *f, trn_arena *tmp, int node);
/* Finds the nodes that results and roots need. `inside(arg, node)` says which may become part of the body; what comes from others is added to the
 * arguments, but for constants up to `max_const` bytes, which are copied. */
void trn_fn__collect(trn_fn *f, trn_builder *b, bool (*inside)(void *arg, int node), void *arg, size_t max_const);
/* Adds it to the builder's library as `base`, made unique; sets f->name. */
void trn_fn__define(trn_fn *f, trn_builder *b, const char *base);
/* The last nodes go. */
void trn_builder__drop(trn_builder *b, int first);
/* Everything from node `first` on becomes a function, with these arguments and results, and is dropped. */
void trn_fn__lift(trn_fn *f, trn_builder *b, int first, const char *base);

/* The body of a function as nodes at the end of the graph; arguments are placeholders, whose shapes `shape` may know (one per argument, or NULL). */
typedef struct trn_inlined {
    trn_out *args, *rets;
    int n_args, n_rets;
    int *roots;
    int n_roots;
} trn_inlined;
void trn_builder__inline(trn_inlined *out, trn_builder *b, trn_arena *tmp, const trn_func_ref *f, const trn_shape *const *shape);
/* Node `id` becomes another one under its name: its users keep their edges. Attrs that are not given stay. */
void trn_builder__become(trn_builder *b, int id, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs);

/* The loops that these Exit nodes leave, and those inside them, become While ops (oldloop.c). */
void trn_builder__raise_loops(trn_builder *b, const int *exits, int n);

/* A list of types as an attr. */
trn_attr trn_attr__types(trn_arena *a, const char *name, const trn_dtype *t, int n);

/* trn_function_new, with the types and shapes of the arguments themselves. */
struct trn_function *trn_function__of(trn_builder *b, const char *name, void (*fn)(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out),
                                      void *arg, const trn_dtype *types, const trn_shape *shapes, int n_args, int n_rets);

#endif
