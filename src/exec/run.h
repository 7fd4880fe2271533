/* Inside exec/: what changes while a plan runs. run.c schedules and runs nodes, frames.c carries values along edges. */
#ifndef TRN_EXEC_RUN_H
#define TRN_EXEC_RUN_H

#include "exec/plan.h"

typedef struct run run;
typedef struct frame frame;

/* One iteration of a frame: inputs of its nodes and how many are still to come. The root has one. */
typedef struct iter {
    frame *f;       /* NULL: the root */
    struct iter *next; /* the iteration after this one */
    int64_t num;
    _Atomic int64_t live; /* nodes ready or running + child frames; not kept for the root */
    frame *children;
    trn_value *val;
    /* Per node: edges to come in the low half, dead inputs above (COUNT_* in frames.c). */
    _Atomic uint64_t *count;
} iter;

/* A value that a frame keeps for an iteration that does not exist yet. */
typedef struct kept {
    const pnode *n;
    trn_value v;
} kept;

/* A loop that runs. All fields are guarded by run->mu. */
struct frame {
    const frame_info *info;
    uint64_t id;
    char *name;          /* with those of its parents, where ids are made from it (named_frames); else NULL */
    iter *parent;        /* the iteration that entered it */
    frame *sibling;      /* next child of the parent */
    iter *oldest, *newest;
    iter *spare;         /* a finished iteration's memory */
    int64_t count;       /* number of the newest iteration ever made */
    int n_iters;
    int enters_left;     /* Enter nodes that have not run yet */
    kept *next_in;       /* NextIteration values that wait for the window (parallel_iterations) */
    int n_next, cap_next;
    kept *inv;           /* loop invariants */
    int n_inv, cap_inv;
    const pnode **dead_exit; /* of the newest iteration: told to the parent when the frame ends */
    int n_dead, cap_dead;
};

/* A node that may run. */
typedef struct ready {
    int node;
    bool dead;
    iter *it;
} ready;

/* What waits for this thread to come back to the executor's outermost loop. */
typedef struct job {
    struct job *next;
    void (*fn)(struct job *);
    trn_pool *pool; /* where it may go when this thread has done its share */
} job;

struct run {
    trn_step step; /* first: a kernel's k->step is its run */
    job start;
    trn_plan *plan;
    void (*done)(void *arg, trn_err err);
    void *arg;
    trn_trace *trace;
    bool may_owe;       /* trn_run_opts */
    int depth;          /* of function calls */
    _Atomic int active; /* threads that work on it + asynchronous kernels under way */
    _Atomic bool stop;  /* an error or a cancellation: nothing more starts */
    trn_mutex mu;       /* err, frames, step.step_resmgr */
    trn_err err;
    iter root;
};

/* One thread's work on one run. */
typedef struct work {
    run *r;
    const trn_plan *p;
    int n, cap;
    ready *v;          /* stack of what is ready */
    ready heavy;       /* one expensive node to run last; node -1: none */
    bool may_compute;  /* false on loop and disk threads: expensive nodes go to the pool */
    ready first[48];
} work;

static inline bool value_is_dead(trn_value v) { return !v.t && !v.var; }

static inline void value_unref(trn_value v)
{
    if (v.t)
        trn_tensor_unref(v.t);
    if (v.var)
        trn_resource_unref(v.var);
}

static inline void value_ref(trn_value v)
{
    if (v.t)
        trn_tensor_ref(v.t);
    if (v.var)
        trn_resource_ref(v.var);
}

void trn_run__push(work *w, iter *it, int node, bool dead);
/* frames.c: gives a finished node's outputs to who waits for them and ends what ends with it: iterations, frames, dead exits. `outs` is
 * emptied. What became ready lies on the stack. */
void trn_run__propagate(work *w, iter *it, const pnode *n, trn_value *outs, bool dead);
/* Frees what is left in inputs: after an error, and where a Merge took the other one. */
void trn_run__sweep(const frame_info *info, iter *it);
void trn_run__free_frames(run *r);
void trn_plan__run(trn_plan *p, const trn_run_opts *o, int depth, void (*done)(void *arg, TRN_OWN trn_err err), void *arg);

#endif
