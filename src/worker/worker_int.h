/* Inside worker/: the tables. */
#ifndef TRN_WORKER_INT_H
#define TRN_WORKER_INT_H

#include "worker/worker.h"

#define TRN_PATH_WORKER "/tensorflow.WorkerService/"
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
    struct rpc_log *log;
    _Atomic int busy;
};

typedef struct remote_recv remote_recv;

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
};
trn_wstep *trn_wstep_ref(trn_wstep *st);
trn_wsession *trn_wsession_ref(trn_wsession *s);
void trn_worker_steps_init(trn_worker *w);
void trn_worker_steps_fini(trn_worker *w);
void trn_worker_steps_abort(trn_worker *w, trn_code code, const char *why);
size_t trn_worker_steps_count(trn_worker *w);

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
