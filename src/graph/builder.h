/* The builder's inside, for those who build on it (graph/, grad/, session/): a graph, the scopes that are open, what is known of every output. */
#ifndef TRN_BUILDER_H
#define TRN_BUILDER_H

#include <trainera/build.h>

#include "graph/graph.h"

typedef enum trn_scope_kind { TRN_SCOPE_NAME, TRN_SCOPE_DEVICE, TRN_SCOPE_DEVICE_FN, TRN_SCOPE_CONTROL, TRN_SCOPE_COLOCATE } trn_scope_kind;

typedef struct trn_scope {
    trn_scope_kind kind;
    const char *name;  /* NAME: the whole name; DEVICE: the device */
    const char *outer; /* NAME: to return to */
    trn_device_fn fn;
    void *arg;
    trn_out *deps; /* CONTROL; n_deps -1: those around are forgotten */
    int n_deps;
    int first;     /* CONTROL: the first node that was made inside */
    int with;      /* COLOCATE: node id */
} trn_scope;

typedef struct trn_collected {
    const char *name;
    trn_out *at;
    int n, cap;
} trn_collected;

struct trn_builder {
    /* trn_named gives a builder of these four only: whoever gets it takes the name, whatever else is evaluated first. Public functions go on with `real`. */
    trn_builder *real;
    const char *pending;
    trn_graph *g;
    trn_arena *arena; /* the graph's: everything that is handed out */
    trn_err err;
    trn_shape **shape; /* by node id */
    int cap_shape;
    trn_map *used;     /* names and scopes in small letters → how often */
    const char *scope; /* "" or "a/b" */
    trn_scope *scopes;
    int n_scopes, cap_scopes;
    trn_variable **vars;
    int n_vars, cap_vars;
    trn_map *var_by_name;
    trn_map *var_by_node;
    trn_map *inits;    /* trn_which → NoOp */
    bool ref_variables;
    trn_collected *coll;
    int n_coll, cap_coll;
    trn_map *kept;
    int sent; /* nodes below it may be in a session: they do not change any more */
    uint64_t lib_version;
    struct {
        void (*fn)(void *);
        void *arg;
    } *at_end;
    int n_end, cap_end;
};

/* "a/b" made unique as TensorFlow does it, and taken. */
const char *trn_builder__unique(trn_builder *b, const char *whole);
/* A node under exactly this name prefix ("" or "a/b"), with these wishes instead of the scopes': for the parts of a variable. */
trn_out trn_builder__add_at(trn_builder *b, const char *whole_name, const char *device, const char *op, const trn_out *in, int n_in, const trn_attr *attrs,
                            int n_attrs);
/* A node whose whole name is taken already (as a scope's, or by trn_builder__unique); devices and control scopes as usual. */
trn_out trn_builder__add_in_scope(trn_builder *b, const char *whole_name, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs);
/* What a failed trn_variable_new gives: every part is nothing. */
trn_variable *trn_builder__no_variable(trn_builder *b);
trn_gnode *trn_builder__node(const trn_builder *b, trn_out o); /* NULL when there is none */
/* Nodes that came into b->g by another way than trn_node_add: takes their names, works out shapes. */
void trn_builder__adopt(trn_builder *b, int first);
/* Nodes [first, …) and all functions as a message in `a`. */
Tensorflow__GraphDef *trn_builder__export(trn_arena *a, const trn_builder *b, int first);
/* The new functions of a GraphDef's library, without nodes. */
/* trn_builder_import_with; gives the prefix as it became ("" for none), NULL after an error. */
const char *trn_builder__import(trn_builder *b, const void *graph_def, size_t n, const char *prefix, const trn_named_out *inputs, int n_inputs);
void trn_builder__add_functions(trn_builder *b, Tensorflow__FunctionDef *const *f, int n);

#endif
