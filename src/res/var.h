/* A variable: ref variables (VariableV2) and resource variables (VarHandleOp) are the same thing here.
 *
 * Readers take a reference to `value` under the lock and never copy; writers hold the lock for the whole update and write in place only when
 * nobody else holds the tensor, else they replace it (trn_var_writable): so nothing that was read, or is on its way to a socket, ever tears. */
#ifndef TRN_VAR_H
#define TRN_VAR_H

#include "res/res.h"

struct trn_var {
    trn_resource base;
    trn_mutex mu;
    trn_dtype dtype;
    trn_shape shape;  /* declared; maybe partial */
    trn_tensor *value; /* NULL: not initialised */
    char *name;       /* for messages */
    bool is_init;     /* resource variables: assigned once; ref variables: value != NULL */
};
extern const trn_restype trn_var_type;    /* "Var": TensorFlow's type name */
extern const trn_restype trn_refvar_type; /* reference variables: the same struct, but not found under the name of a resource variable */
trn_err trn_var_new(trn_var **out, const char *name, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
/* A reference to the value, or FAILED_PRECONDITION that names the variable. Takes the lock. */
trn_err trn_var_read(trn_tensor **out, trn_var *v) TRN_MUST_USE;
/* With the lock held: v->value made safe to write in place (copied when shared). */
trn_err trn_var_writable(trn_tensor **out, trn_var *v) TRN_MUST_USE;
/* Replaces the value; takes the lock and the tensor. */
void trn_var_assign(trn_var *v, TRN_OWN trn_tensor *t);

#endif
