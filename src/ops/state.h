/* What kernels on variables share: finding the variable that an input names, taking several locks in one order, element loops.
 *
 * A ref input carries its trn_var; a resource input names one by handle. From here on both are the same thing: all updates hold the
 * variable's lock from beginning to end and write in place only when nobody else holds the value (res/var.h says why). */
#ifndef TRN_OPS_STATE_H
#define TRN_OPS_STATE_H

#include "res/var.h"

/* Loops over elements: compiled for the vector units there are, chosen once by the dynamic loader. Sanitizers cannot run such resolvers. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define TRN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRN_CLONES
#endif
#define TRN_GRAIN 65536 /* elements per piece of a parallel loop */

/* The variable of input i; *out is a reference. A resource that is not there: FAILED_PRECONDITION that names it. dtype TRN_INVALID: any. */
trn_err trn_k_var(trn_var **out, trn_kctx *k, int i, trn_dtype dtype) TRN_MUST_USE;
/* Same, and makes it when a handle names one that does not exist yet. */
trn_err trn_k_var_make(trn_var **out, trn_kctx *k, int i, trn_dtype dtype) TRN_MUST_USE;
trn_err trn_var_uninit(const trn_var *v) TRN_MUST_USE; /* the error: used before it has a value */

/* The variables of inputs 0 … n-1 (all of one dtype), locked in address order so that two optimizers that share slots cannot deadlock.
 * Fails, with nothing locked, when one is missing or has no value. Input 0 is what a ref op passes on as output 0. */
#define TRN_VARS_MAX 4
typedef struct trn_vars {
    int n;
    trn_var *v[TRN_VARS_MAX];
    trn_tensor *old[TRN_VARS_MAX]; /* values that were replaced: let go of after the lock */
} trn_vars;
trn_err trn_vars_lock(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype) TRN_MUST_USE;
/* The value of variable i, safe to write. */
trn_err trn_vars_write(trn_tensor **out, trn_vars *s, int i) TRN_MUST_USE;
/* Puts another value in place of variable i's. */
void trn_vars_replace(trn_vars *s, int i, TRN_OWN trn_tensor *t);
/* Unlocks; passes the ref on when the op has such an output and all went well. Returns err. */
trn_err trn_vars_done(trn_vars *s, trn_kctx *k, TRN_OWN trn_err err) TRN_MUST_USE;

/* Shapes: a ref op's output is its variable; gradients and slots must agree with it as far as shapes are known. */
trn_err trn_sh_update(trn_shctx *s);

#endif
