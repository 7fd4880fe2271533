/* What kernels on variables share: finding the variable that an input names, taking several locks in one order, element loops.
 *
 * A ref input carries its trn_var; a resource input names one by handle. From here on both are the same thing: all updates hold the
 * variable's lock from beginning to end and write in place only when nobody else holds the value (res/var.h says why). */
#ifndef TRN_OPS_STATE_H
#define TRN_OPS_STATE_H

#include "ops/kern.h"
#include "res/var.h"

#define TRN_GRAIN 65536 /* elements per piece of a parallel loop */

/* The variable of input i; *out is a reference. A resource that is not there: NOT_FOUND that names it. dtype TRN_INVALID: any. */
trn_err trn_k_var(trn_var **out, trn_kctx *k, int i, trn_dtype dtype) TRN_MUST_USE;
/* TensorFlow has another code for the same thing where a variable is read (FAILED_PRECONDITION) or trained (INTERNAL). */
trn_err trn_var_missing_as(TRN_OWN trn_err err, trn_code code) TRN_MUST_USE;
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
    int n_shared;                  /* shared, not locked: these, */
    trn_var *shared[TRN_VARS_MAX]; /* each once, in address order */
} trn_vars;
trn_err trn_vars_lock(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype) TRN_MUST_USE;
/* The same for an update of some rows: shared with others who do so, each row under its lock (of all of `shared`; ops/rows.h). Only trn_vars_write and _done follow. */
trn_err trn_vars_share(trn_vars *s, trn_kctx *k, int n, trn_dtype dtype) TRN_MUST_USE;
/* The value of variable i, safe to write. */
trn_err trn_vars_write(trn_tensor **out, trn_vars *s, int i) TRN_MUST_USE;
/* Memory for variable i's next value, where an update writes every element: the value's own when nobody else holds it; else that of input j
 * (same dtype and shape; -1: none) when it is the kernel's alone; else new. So an update whose old value is still being read makes one pass
 * over memory, not a copy and then an update. Give it to trn_vars_set_next once it is filled. */
trn_err trn_vars_next(trn_tensor **out, trn_vars *s, int i, trn_kctx *k, int j) TRN_MUST_USE;
void trn_vars_set_next(trn_vars *s, int i, TRN_OWN trn_tensor *t);
/* Unlocks; passes the ref on when the op has such an output and all went well. Returns err. */
trn_err trn_vars_done(trn_vars *s, trn_kctx *k, TRN_OWN trn_err err) TRN_MUST_USE;

/* What a variable may keep of a tensor: itself, unless it is a small piece of a large buffer (a received message, a slice), which it would
 * hold for as long as the variable lives. */
static inline bool trn_var_may_keep(const trn_tensor *t) { return !t->buf || t->buf->size / 2 <= trn_tensor_bytes(t) + 4096; }

/* Shapes: a ref op's output is its variable; gradients and slots must agree with it as far as shapes are known. */
trn_err trn_sh_update(trn_shctx *s);

#endif
