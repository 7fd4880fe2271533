/* One task's share of every step: sessions, registered graphs, steps and their rendezvous.
 *
 * The master in the same process calls these functions directly (no bytes); service.c puts them on the wire as tensorflow.WorkerService.
 *
 * Who owns what: a worker session owns its registered graphs (plans) and kernel states; a step owns the rendezvous and whatever lives for one step.
 * A step is made by whichever comes first, its RunGraph or a peer's RecvTensor, and ends with CleanupGraph; cleaned ids are remembered for a
 * while so that a late RecvTensor cannot bring one back to life.
 *
 * What the caller sees: unknown session or graph, other incarnation, cleaned step: ABORTED (the client re-creates its session). */
#ifndef TRN_WORKER_H
#define TRN_WORKER_H

#include "cluster/cluster.h"
#include "exec/exec.h"
#include "wire/codec.h"
#include "worker/peers.h"

typedef struct trn_worker trn_worker;
typedef struct trn_wsession trn_wsession; /* counted */
typedef struct trn_wstep trn_wstep;       /* counted */

typedef struct trn_worker_opts {
    const trn_cluster *cluster;
    const char *job;
    int task;
    int n_cpu; /* CPU devices of this task */
    const trn_exec_env *env;
    trn_peers *peers;
} trn_worker_opts;
trn_worker *trn_worker_new(const trn_worker_opts *o);
void trn_worker_stop(trn_worker *w); /* cancels every step; nothing new starts */
void trn_worker_free(trn_worker *w); /* after stop, when nothing runs any more */

const char *trn_worker_task(const trn_worker *w); /* "/job:ps/replica:0/task:0" */
const trn_device *trn_worker_devices(const trn_worker *w, int *n);
uint64_t trn_worker_incarnation(const trn_worker *w); /* of CPU:0 */
const trn_exec_env *trn_worker_env(const trn_worker *w);
const trn_cluster *trn_worker_cluster(const trn_worker *w);
trn_peers *trn_worker_peers(const trn_worker *w);

/* ---- sessions */
typedef struct trn_wsession_opts {
    const char *handle;
    const trn_cluster *cluster; /* NULL: the task's own */
    const char *job;            /* with a cluster: who we are in it */
    int task;
    bool isolate;               /* containers of its own */
    const char *master_task;    /* maybe "" */
    int64_t master_incarnation;
} trn_wsession_opts;
trn_err trn_worker_session_new(trn_worker *w, const trn_wsession_opts *o) TRN_MUST_USE;
trn_err trn_worker_session_del(trn_worker *w, const char *handle) TRN_MUST_USE;
/* A reference; ABORTED when there is none. "" with `created` false is the session of masters that make none. */
trn_err trn_worker_session(trn_wsession **out, trn_worker *w, const char *handle, bool created) TRN_MUST_USE;
void trn_wsession_unref(trn_wsession *s);
void trn_worker_cleanup_all(trn_worker *w, const char *const *containers, int n); /* none: the default container */

/* ---- graphs: [any, not a loop thread for big ones] takes g */
trn_err trn_wsession_register(char handle[17], trn_wsession *s, TRN_OWN trn_graph *g) TRN_MUST_USE;
trn_err trn_wsession_deregister(trn_wsession *s, const char *handle) TRN_MUST_USE;
trn_err trn_wsession_plan(trn_plan **out, trn_wsession *s, const char *handle) TRN_MUST_USE; /* a reference, or ABORTED */
trn_plan *trn_wsession_new_plan(trn_err *err, trn_wsession *s, TRN_OWN trn_graph *g);        /* not registered: the master keeps it */
/* tfdbg: does in g, a part that this task will run, what the watches of a DebugOptions message ask for, and writes the part where they say. Without watches nothing
 * happens. [any but loop]; `done` may run here, or on a disk thread. */
void trn_worker_watch(trn_worker *w, trn_graph *g, const uint8_t *debug, size_t n, void (*done)(void *arg, TRN_OWN trn_err err), void *arg);

/* ---- steps */
/* The step's rendezvous, made on demand; a reference. NULL: the step was cleaned already. `s` may be NULL (a peer came first). */
trn_wstep *trn_worker_step(trn_worker *w, int64_t step_id, trn_wsession *s);
trn_rdv *trn_wstep_rdv(trn_wstep *st);
trn_resmgr *trn_wstep_resmgr(trn_wstep *st);
void trn_wstep_unref(trn_wstep *st);
void trn_worker_step_clean(trn_worker *w, int64_t step_id); /* CleanupGraph */
void trn_worker_step_renew(trn_worker *w, int64_t step_id); /* a new step of that number may begin, although there was one */
/* Ends everything that waits in the step; RecvTensor of peers get this error. */
void trn_wstep_abort(trn_wstep *st, TRN_OWN trn_err why);
/* Without going to another task: what a peer's RecvTensor asks for. */
void trn_wstep_recv_local(trn_wstep *st, const char *key, trn_cancel *c, trn_rdv_done done, void *arg);

/* ---- to other Trainera tasks (push.c says why) */
typedef struct trn_outbox trn_outbox; /* one per address; lives as long as the worker */
void trn_worker_close_outboxes(trn_worker *w); /* nothing runs any more; the loops still do */
trn_outbox *trn_worker_outbox(trn_worker *w, const char *address);
void trn_outbox_clean(trn_outbox *o, int64_t step_id); /* [any] the step is over: say so when there is something else to say */
int trn_outbox_take_clean(trn_outbox *o, int64_t *ids, int max);
void trn_wstep_deliver(trn_wstep *st, const trn_named_tensor *v, int n, const char *const *dead, int n_dead); /* what a peer pushed */

/* Runs a plan as this worker's part of a step. Adds the step's rendezvous and per-step containers to the options. */
void trn_wstep_run(trn_wstep *st, trn_plan *p, const trn_run_opts *o, void (*done)(void *arg, TRN_OWN trn_err err), void *arg);

/* Work under way that uses the worker: it may be freed only when there is none. The master counts its steps too. */
void trn_worker_busy_add(trn_worker *w, int n);
bool trn_worker_busy(const trn_worker *w);

/* ---- counters for the status page and /metrics */
typedef struct trn_worker_stats { size_t sessions, graphs, steps, variables, variable_bytes; uint64_t steps_run; } trn_worker_stats;
trn_worker_stats trn_worker_count(trn_worker *w);
void trn_worker_note_error(const trn_error *err); /* among the recent errors, when it is one that somebody should look at */
trn_resmgr *trn_worker_resmgr(trn_worker *w);     /* borrowed */
struct trn_capture *trn_worker_capture(trn_worker *w); /* worker/capture.h */
const trn_hist *trn_worker_part_time(const trn_worker *w);

#endif
