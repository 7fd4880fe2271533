/* A variable: ref variables (VariableV2) and resource variables (VarHandleOp) are the same thing here.
 *
 * Readers take a reference to `value` under the lock and never copy; writers hold the lock for the whole update and write in place only when
 * nobody else holds the tensor, else they replace it (trn_var_writable): so nothing that was read, or is on its way to a socket, ever tears.
 *
 * Those who read or write single rows share the variable instead (trn_var_share) and lock each row while they touch it, so that workers do not
 * wait for each other on one embedding. While somebody shares it, the value stays the same tensor, and nobody else gets a reference to it. */
#ifndef TRN_VAR_H
#define TRN_VAR_H

#include <sched.h>
#include <stdatomic.h>

#include "res/res.h"

/* Locks for rows: row i has lock (i / TRN_VAR_LINES) % 8 in cache line i % TRN_VAR_LINES. Threads that divide rows by that line do not disturb each other. */
#define TRN_VAR_LINES 8
#define TRN_VAR_ROW_LOCKS (8 * TRN_VAR_LINES)

struct trn_var {
    trn_resource base;
    trn_mutex mu;
    pthread_cond_t turn; /* with mu: nobody shares it any more, or nobody waits to have it alone */
    int sharing;         /* row-wise users right now */
    int waiting;         /* those who wait to have it alone: new sharers let them go first */
    int stalled;         /* sharers who do */
    struct {
        atomic_flag row[8];
        char rest[56];
    } line[TRN_VAR_LINES];
    trn_dtype dtype;
    trn_shape shape;  /* declared; maybe partial */
    trn_tensor *value; /* NULL: not initialised */
    trn_later *owed;  /* an update that is still to be made to `value`; NULL: none */
    char *name;       /* for messages */
    _Atomic int crowded; /* somebody had to wait for the lock: so many updates are kept short */
    bool is_init;     /* resource variables: assigned once; ref variables: value != NULL */
};
#define TRN_VAR_ANONYMOUS "cd2c89b7-88b7-44c8-ad83-06c2a9158347" /* TensorFlow's shared_name for variables that only their handle knows */
extern const trn_restype trn_var_type;    /* "Var": TensorFlow's type name */
extern const trn_restype trn_refvar_type; /* reference variables: the same struct, but not found under the name of a resource variable */
trn_err trn_var_new(trn_var **out, const char *name, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
#define TRN_VAR_CROWDED 1000
/* To have it alone, with all updates made. `mu` is held in between. */
void trn_var_lock(trn_var *v);
/* Locked: the rest of an update, which nobody sees the variable without. `value` is what it writes to. */
void trn_var_owe(trn_var *v, TRN_OWN trn_later *l);
void trn_var_unlock(trn_var *v);
/* To touch rows of it; `write`: the value is made safe to write first, by a copy when somebody holds it. Several variables: in address order.
 * FAILED_PRECONDITION when it has no value. `mu` is not held afterwards. */
trn_err trn_var_share(trn_var *v, bool write) TRN_MUST_USE;
void trn_var_unshare(trn_var *v);
/* The lock of one row of a shared variable, by its number; held for as long as some copies take, several variables' locks of one number in address order. */
static inline int trn_var_row_lock_of(int64_t row) { return (int)((uint64_t)row % TRN_VAR_LINES * 8 + (uint64_t)row / TRN_VAR_LINES % 8); }
static inline bool trn_var_row_try(trn_var *v, int lock)
{
    return !atomic_flag_test_and_set_explicit(&v->line[lock / 8].row[lock % 8], memory_order_acquire);
}
static inline void trn_var_row_lock(trn_var *v, int lock)
{
    for (unsigned i = 1; !trn_var_row_try(v, lock); i++)
        if (i % 64 == 0)
            sched_yield();
}
static inline void trn_var_row_unlock(trn_var *v, int lock) { atomic_flag_clear_explicit(&v->line[lock / 8].row[lock % 8], memory_order_release); }
/* A reference to the value, or FAILED_PRECONDITION that names the variable. Takes the lock. */
trn_err trn_var_read(trn_tensor **out, trn_var *v) TRN_MUST_USE;
/* With the lock held: v->value made safe to write in place (copied when shared). */
trn_err trn_var_writable(trn_tensor **out, trn_var *v) TRN_MUST_USE;
/* For those who look in: never waits. While it is being updated, what was declared is told and `busy` is set. */
typedef struct trn_var_look {
    trn_dtype dtype;
    trn_shape shape;
    size_t bytes;
    bool initialised, busy;
    bool has_number; /* a scalar: its value */
    double number;
} trn_var_look;
void trn_var_peek(trn_var_look *out, trn_var *v);
/* Replaces the value; takes the lock and the tensor. */
void trn_var_assign(trn_var *v, TRN_OWN trn_tensor *t);

#endif
