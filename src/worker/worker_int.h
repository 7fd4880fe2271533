/* Inside worker/: the tables. */
#ifndef TRN_WORKER_INT_H
#define TRN_WORKER_INT_H

#include "wire/codec.h"
#include "worker/capture.h"
#include "worker/worker.h"

#define TRN_PATH_WORKER "/tensorflow.WorkerService/"
#define TRN_PATH_PUSH "/trainera.Worker/Push"
#define TRN_STEP_SHARDS 16
#define TRN_TOMBSTONES 4096 /* cleaned step ids remembered, per shard a part of it */

struct trn_wsession {
    _Atomic uint32_t ref;
    trn_worker *w;
    char *handle;
    trn_cluster *cluster;
    char *task;           /* our name in it */
    bool isolated;
    trn_resmgr *resmgr;
    trn_kcache *kcache;
    char *master_task;
    int64_t master_incarnation;
    trn_mutex mu;
    trn_map *graphs; /* handle → trn_plan */
    uint64_t next_graph;
    trn_map *outboxes; /* task → trn_outbox of the worker */
};

typedef struct step_shard {
    trn_mutex mu;
    trn_map *steps;
    uint64_t tomb[TRN_TOMBSTONES / TRN_STEP_SHARDS];
    size_t tomb_at;
} step_shard;

struct trn_worker {
    trn_cluster *cluster;
    char *job;
    int task_index;
    char *task;
    trn_device *dev;
    int n_dev;
    const trn_exec_env *env;
    trn_peers *peers;
    trn_resmgr *resmgr;   /* shared by all sessions that do not ask to be isolated */
    trn_mutex mu;
    trn_map *sessions;    /* handle → trn_wsession */
    trn_wsession *legacy; /* of masters that create none */
    step_shard shard[TRN_STEP_SHARDS];
    _Atomic bool stopped;
    _Atomic uint64_t steps_run;
    trn_hist *part_time; /* from a part's start to its end */
    struct rpc_log *log;
    trn_capture *capture;
    _Atomic int busy;
    trn_map *outboxes;          /* address → trn_outbox; live as long as the worker */
    _Atomic uint64_t swept_ns; /* when steps without a master were last looked for */
};

typedef struct remote_recv remote_recv;

/* A part that runs; when it has ended, it may still wait for its pushes. */
typedef struct step_run {
    struct step_run *next;
    uint64_t start_ns;
    const trn_trace *trace; /* being recorded; NULL: not */
    bool own_trace;
    trn_plan *plan; /* a reference while it is */
    trn_wstep *step;
    trn_err err;
    void (*done)(void *, trn_err);
    void *arg;
} step_run;

/* A step is a trn_rdv that kernels see. */
struct trn_wstep {
    trn_rdv rdv;      /* its count is the step's */
    trn_worker *w;
    int64_t id;
    trn_mutex mu;
    trn_rdv *local;   /* what this task sends and what it waits for from itself */
    trn_wsession *session; /* NULL until a run of ours has begun */
    trn_err aborted;
    remote_recv *recvs;
    trn_resmgr *resmgr; /* made on demand */
    int runs;           /* running parts */
    trn_cancel *cancel; /* of the running part, for trn_worker_stop */
    int peers;          /* RecvTensor calls of peers that wait here */
    struct partial_run *partial; /* service.c: a run that is fed call by call */
    void (*partial_free)(struct partial_run *);
    uint64_t born_ns;
    /* push.c */
    bool push;             /* every task of this step is one of us; set before its part runs */
    trn_outbox *reply_to;  /* what is left for this peer when the part ends goes into `reply` */
    trn_out_msg reply;
    int pushes;            /* batches not yet acknowledged */
    trn_err push_err;
    step_run *ended;       /* wait for them */
};
trn_wstep *trn_wstep_ref(trn_wstep *st);
trn_wsession *trn_wsession_ref(trn_wsession *s);
void trn_worker_steps_init(trn_worker *w);
void trn_worker_steps_fini(trn_worker *w);
void trn_worker_steps_abort(trn_worker *w, trn_code code, const char *why);
size_t trn_worker_steps_count(trn_worker *w);

/* Ids of steps older than `before_ns` that no run of ours has touched, or that have failed and ended. */
int trn_worker_steps_orphans(trn_worker *w, uint64_t before_ns, int64_t *ids, int max);

/* Those of a session that has ended: they hold it, and nobody will clean them. */
void trn_worker_steps_drop(trn_worker *w, const trn_wsession *s);
/* The same as trn_worker_session_del for a session whose master says that it is over: its steps go, too. */
void trn_worker_session_end(trn_worker *w, const char *handle);
/* Now and then: steps of which only tensors are known, and steps that failed long ago and whose master never cleaned them. */
void trn_worker_sweep(trn_worker *w);

/* far.c: a graph of ours on another task of the step's session */
void trn_wstep_place(trn_rdv *rdv, const char *job, int task, const trn_sb *graph, trn_cancel *c, trn_far_made done, void *arg);

/* ---- pushing (push.c) */
trn_err trn_outbox_push(trn_outbox *o, trn_wstep *st, const char *key, trn_tensor *t, bool dead) TRN_MUST_USE;
void trn_outbox_take(trn_outbox *o, trn_wstep *st, trn_out_msg *into); /* what has not left yet */
trn_outbox *trn_wsession_outbox(trn_wsession *s, const char *task, size_t n); /* NULL: nobody knows its address */
void trn_outbox_free(void *outbox);
bool trn_wstep_wait_pushes(trn_wstep *st, step_run *r); /* true: trn_step_run_end comes later */
void trn_step_run_end(step_run *r, TRN_OWN trn_err push_err);
void trn_worker_push(void *svc, trn_call *call); /* the handler of Push */

/* Drops a step that only peers asked for and that nobody runs: its master is gone. */
void trn_worker_step_forget(trn_worker *w, trn_wstep *st);

static inline const char *trn_cluster_address(const trn_cluster *c, const char *job, int task)
{
    const trn_cluster_task *t = trn_cluster_task_find(c, job, task);
    return t ? t->address : NULL;
}

/* RecvTensor calls of ours, kept while a master asks for them (Logging): what timelines show between tasks. */
void trn_rpc_log_enable(trn_worker *w, bool on);
void trn_rpc_log_clear(trn_worker *w);
bool trn_rpc_log_on(const trn_worker *w);
void trn_rpc_log_init(trn_worker *w);
void trn_rpc_log_fini(trn_worker *w);
void trn_rpc_log_add(trn_worker *w, int64_t step_id, const char *key, uint64_t start_us, uint64_t end_us, size_t bytes);
/* Adds LabeledStepStats (field 1 of LoggingResponse) of one step. */
void trn_rpc_log_put(trn_sb *out, trn_worker *w, int64_t step_id);

#endif
