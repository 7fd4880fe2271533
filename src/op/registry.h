/* The ops there are. Family tables (src/ops) are listed by name in ops/families.c: no constructors, deterministic, greppable.
 * Signatures are parsed once, at the first look-up; a bad one ends the process with its name (it is a programming error). */
#ifndef TRN_REGISTRY_H
#define TRN_REGISTRY_H

#include <trainera/op.h>

#include "tensor/tensor.h"

typedef struct trn_argdef {
    const char *name;
    bool is_ref;
    trn_dtype type;     /* fixed type, or TRN_INVALID */
    int type_attr;      /* index in attrs, or -1 */
    int number_attr;    /* N*T: index of N, or -1 */
    int type_list_attr; /* index of the list(type) attr, or -1 */
} trn_argdef;

typedef struct trn_attrdef {
    const char *name;
    trn_attr_kind kind;
    bool is_list;
    bool has_default;
    trn_attr def;          /* when has_default */
    int64_t min;           /* of an int or of a list's length; INT64_MIN: none */
    uint64_t types;        /* TYPE: bit set over trn_dtype that the kernel takes */
    int n_allowed;         /* STRING: allowed values, 0: any */
    const char **allowed;
} trn_attrdef;

struct trn_opdef {
    const trn_op *row;
    int n_in, n_out, n_attrs;
    trn_argdef *in, *out;
    trn_attrdef *attrs;
};

const trn_opdef *trn_op_find(const char *name);     /* [any] NULL when we do not have it */
int trn_op_count(void);
const trn_opdef *trn_op_at(int i);                  /* by name order */
/* Parses one signature; used by the registry and by tests. Memory lives in `a`. */
trn_err trn_opdef_parse(trn_opdef **out, trn_arena *a, const trn_op *row) TRN_MUST_USE;

/* Completes a node whose name, op, device and attrs are set: fills defaults, checks attr kinds, ranges and types against the row, sets
 * n_in/n_out and their dtypes. Memory from `a`. Errors: INVALID_ARGUMENT, or UNIMPLEMENTED when our kernel lacks the dtype. */
trn_err trn_node_resolve(trn_node *n, trn_arena *a) TRN_MUST_USE;
#define TRN_WATCHED_SHAPE "_watched_shape" /* attr of a debug op that watches a ref variable: the shape that the variable will have */
/* Flat range [*first, *first + *count) of a named output or input argument; false when there is none (FunctionDef's "node:out:0"). */
bool trn_node_out_arg(const trn_node *n, const char *arg, size_t arg_len, int *first, int *count);
bool trn_node_in_arg(const trn_node *n, const char *arg, size_t arg_len, int *first, int *count);

#endif
