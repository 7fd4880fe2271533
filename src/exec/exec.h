/* Runs graphs. trn_plan is immutable (but for a note of what nodes made last) and shared by concurrent steps; trn_run is the only thing that changes.
 *
 * A node runs when its pending count reaches zero: cheap ones on the thread that made them ready (a loop thread too), the rest on the pool, file ops on the
 * disk threads, asynchronous ones on no thread while they wait. Frames and iterations as in TensorFlow (v1 control flow), dead tensors, ref edges.
 * The first error that is not a consequence of another wins; it cancels the step; `done` runs when nothing of the run is left running. */
#ifndef TRN_EXEC_H
#define TRN_EXEC_H

#include "graph/graph.h"
#include "io/loop.h"
#include "op/kctx.h"
#include "res/rdv.h"
#include "res/res.h"

/* Threads that runs use. */
typedef struct trn_exec_env {
    trn_pool *pool; /* kernels */
    trn_pool *disk; /* TRN_OP_DISK */
    int intra;      /* threads that one kernel may use; 0: all of the pool's */
    const char *const *allow_paths; /* --allow-path; n 0: everything is allowed */
    int n_allow_paths;
    _Atomic int *background; /* work under way that belongs to no step; may be NULL */
    trn_loop *loop;          /* for alarms; may be NULL */
    struct trn_waits *waits; /* where parked kernels are listed (exec/waits.h); may be NULL */
} trn_exec_env;
trn_err trn_exec_check_path(const trn_exec_env *env, const char *path) TRN_MUST_USE; /* PERMISSION_DENIED outside allow_paths */

/* Kernel states of one session: (node name, op) → state, shared by all plans of the session. Counted. [any] */
typedef struct trn_kcache trn_kcache;
trn_kcache *trn_kcache_new(void);
trn_kcache *trn_kcache_ref(trn_kcache *c);
void trn_kcache_unref(trn_kcache *c);

typedef struct trn_plan trn_plan;
/* Takes the graph (lowered, placed or local, no unknown ops). Counted. */
trn_err trn_plan_new(trn_plan **out, TRN_OWN trn_graph *g, const trn_exec_env *env, trn_kcache *kc, trn_resmgr *resmgr) TRN_MUST_USE;
trn_plan *trn_plan_ref(trn_plan *p);
void trn_plan_unref(trn_plan *p);
const trn_graph *trn_plan_graph(const trn_plan *p);
int trn_plan_n_args(const trn_plan *p); /* highest _Arg index + 1 */
int trn_plan_n_rets(const trn_plan *p);

/* Per-node times, when a step is traced: filled by the executor, turned into StepStats by worker/. */
typedef struct trn_trace_node {
    const char *name, *op; /* of the plan's graph */
    uint64_t start_ns, end_ns; /* monotonic */
    uint32_t thread;
    int64_t out_bytes;
    /* shape and dtype of output 0, when there is one */
    trn_dtype dtype;
    trn_shape shape;
} trn_trace_node;
#define TRN_TRACE_MAX (1 << 20) /* nodes of one step, as in TensorFlow; later ones are not noted */
typedef struct trn_trace {
    trn_mutex mu;
    int n, cap;
    trn_trace_node *v;
} trn_trace;

typedef struct trn_run_opts {
    int64_t step_id;
    trn_rdv *rdv;         /* may be NULL when the graph has no _Send/_Recv */
    trn_cancel *cancel;   /* never NULL */
    trn_resmgr *step_resmgr; /* of the step, shared by its parts; may be NULL: the run makes its own on demand */
    int n_args, n_rets;
    trn_value *args;      /* borrowed until done */
    trn_value *rets;      /* n_rets, zeroed by the caller; filled when done without error; caller unrefs */
    trn_trace *trace;     /* NULL: not traced */
    bool may_owe;         /* nobody writes to `args` when it is done: kernels may leave updates for later */
} trn_run_opts;
/* [any] Never blocks. `done` runs exactly once, on any thread, maybe before this returns. The plan is referenced until then. */
void trn_plan_run(trn_plan *p, const trn_run_opts *o, void (*done)(void *arg, TRN_OWN trn_err err), void *arg);

/* One pure node on given inputs, synchronously: constant folding (trn_eval_fn). */
trn_err trn_exec_eval(trn_tensor **outs, const trn_node *n, trn_tensor *const *ins);

#endif
