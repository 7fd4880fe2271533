/* Inside exec/: what a plan is made of. Built once by plan.c, read by run.c, never changed while runs use it. */
#ifndef TRN_EXEC_PLAN_H
#define TRN_EXEC_PLAN_H

#include "exec/exec.h"
#include "res/var.h"

/* How the executor treats a node. Everything but KERNEL and ASYNC it does itself, moving values without touching their counts. */
typedef enum node_kind {
    KIND_KERNEL,
    KIND_ASYNC,
    KIND_CALL, /* a node whose op is the name of a function */
    KIND_NOOP, /* NoOp, ControlTrigger */
    KIND_CONST,
    KIND_IDENTITY, /* also LoopCond */
    KIND_SWITCH,   /* Switch, RefSwitch, _SwitchN: input 1 says which output lives */
    KIND_MERGE,
    KIND_ENTER,
    KIND_EXIT,
    KIND_NEXT,
} node_kind;

/* A data edge, seen from its producer. */
typedef struct out_edge {
    int dst;
    int loc;  /* where it lands among the values of dst's frame */
    int slot; /* of the producer */
    bool last; /* no later edge takes this output: the value moves instead of being counted */
} out_edge;

typedef struct pnode {
    const trn_node *node;
    trn_kernel_fn kernel;
    void *state;
    uint32_t flags; /* of the row */
    uint8_t kind;
    bool runs_dead;  /* _Send and _Recv: run although an input is dead */
    bool ref_in;     /* a producer gives a reference */
    bool alias;      /* Identity of a reference: passes it on, see set_alias() */
    bool trigger;    /* ControlTrigger: lives whatever its inputs are */
    bool invariant;  /* Enter with is_constant */
    bool preloaded;  /* a constant that is in its users' inputs before the run starts */
    int n_in, n_out;
    int in0;         /* first input among the values of its frame */
    int at;          /* its counter among those of its frame */
    uint32_t pending; /* edges to come; Merge: 1 + 2 per control edge (see run.c) */
    int edges, n_edges; /* data edges out: plan->edge */
    int ctls, n_ctls;   /* control edges out: plan->ctl */
    int frame;       /* it runs in */
    int child;       /* Enter: the frame it opens */
    trn_tensor *value;  /* Const */
    trn_tensor **index; /* Merge: value_index tensors, when somebody reads them */
    _Atomic size_t made; /* bytes that came out the last time: few indices may name large rows */
} pnode;

/* What is known of a frame before it runs. Frame 0 is the root. */
typedef struct frame_info {
    const char *name;
    uint64_t hash;  /* TensorFlow's Hash64 of the name */
    int parent, depth;
    int parallel;   /* iterations at the same time */
    int n_enters;
    int n_values, n_nodes;
    trn_value *values;  /* what a fresh iteration's inputs look like: constants, else nothing */
    uint64_t *counters; /* and its counters */
} frame_info;

typedef struct fncache fncache;

#define RUN_CACHE 16 /* run blocks that a plan keeps */

struct trn_plan {
    _Atomic uint32_t ref;
    trn_graph *g;
    const trn_exec_env *env;
    trn_kcache *kc;  /* own reference */
    trn_resmgr *resmgr;
    fncache *fns;    /* functions by name and attrs; root plans own theirs, function bodies borrow it */
    bool owns_fns;
    trn_arena *arena;
    int n, n_frames, max_out;
    int n_args, n_rets;
    bool sweep;      /* values may be left over after a good run (Merge) */
    pnode *node;
    out_edge *edge;
    int *ctl;
    int *root, n_roots;
    frame_info *frame;
    bool named_frames; /* frame ids in rendezvous keys are made from whole names, as up to TensorFlow 2.2 */
    const pnode **ret; /* by index: the _Retval node, or NULL */
    _Atomic(void *) spare[RUN_CACHE];
};

/* plan.c. `scope` keeps kernel states of a function's body apart from others'; "" at the root. fns NULL: the plan makes its own. */
trn_err trn_plan__new(trn_plan **out, TRN_OWN trn_graph *g, const trn_exec_env *env, trn_kcache *kc, trn_resmgr *resmgr, fncache *fns,
                      const char *scope) TRN_MUST_USE;
/* Adds TensorFlow's marker and ours: "… [[{{node x}}]] | Op on device". Once. */
trn_err trn_exec__at_node(TRN_OWN trn_err err, const trn_node *n) TRN_MUST_USE;

/* kcache.c */
trn_err trn_kcache__get(void **state, trn_kcache *c, const char *scope, const trn_node *n, trn_resmgr *resmgr) TRN_MUST_USE;

/* call.c */
fncache *trn_fncache__new(void);
void trn_fncache__free(fncache *c);
void trn_exec__call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);
trn_err trn_exec__call_node(trn_kctx *k); /* kernel of KIND_CALL */
void trn_fncache__key(trn_sb *s, const trn_func_ref *f); /* adds what tells it from others of the same graph */
struct trn_far *trn_fncache__far(fncache *c, const trn_sb *key); /* a reference, or NULL */
void trn_fncache__keep_far(fncache *c, const trn_sb *key, struct trn_far *f); /* unless there is one; takes a reference of its own */
/* far.c */
void trn_exec__call_on(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);

/* The body of a function as a graph for this task: lowered, pruned, optimised. */
trn_err trn_exec__body(trn_graph **out, trn_funclib *lib, const trn_func_ref *f) TRN_MUST_USE;
trn_err trn_exec__func(trn_func **out, trn_kctx *k, const trn_func_ref *f) TRN_MUST_USE;
trn_err trn_exec__graph(trn_func **out, trn_kctx *k, const void *p, size_t n) TRN_MUST_USE; /* trn_k_graph */

/* func.c: functions that outlive their graph (op/func.h). */
trn_err trn_exec__func_new(trn_func **out, const trn_plan *from, const trn_func_ref *f, int depth) TRN_MUST_USE;
trn_err trn_exec__func_of(trn_func **out, TRN_OWN trn_graph *g, const char *name, const trn_plan *from, int depth) TRN_MUST_USE;
trn_host trn_exec__host(const trn_kctx *k);

/* A graph as a function that runs here. */
trn_err trn_exec__graph_func(trn_func **out, trn_kctx *k, TRN_OWN trn_graph *g) TRN_MUST_USE;

/* origin.c: trn_k_origin, trn_k_graph_of, trn_k_shard */
trn_err trn_exec__shard(trn_func **out, trn_tensor ***args, trn_kctx *k, const trn_tensor *t, const trn_shard *s) TRN_MUST_USE;
trn_origin *trn_exec__origin(const trn_kctx *k);
trn_err trn_exec__graph_of(void **graph_def, size_t *n, const trn_kctx *k, const trn_tensor *t, bool stateful, bool strip) TRN_MUST_USE;

/* origin_hash.c: trn_k_hash_of */
trn_err trn_exec__hash_of(uint64_t *out, const trn_kctx *k, const trn_tensor *t) TRN_MUST_USE;

/* alarm.c: trn_host_alarm */
trn_alarm *trn_exec__alarm(const void *env, uint64_t ns, void (*fn)(void *arg, bool in_time), void *arg);
void trn_exec__alarm_end(trn_alarm *a);

/* run.c */
void trn_run__free_block(void *block);

#endif
