/* Inside master/: sessions, built graphs, running steps. */
#ifndef TRN_MASTER_INT_H
#define TRN_MASTER_INT_H

#include "master/master.h"
#include "worker/service.h"
#include "worker/worker_int.h"

struct trn_master {
    trn_worker *w;
    trn_loop *loop; /* timers */
    trn_arena *arena;
    Tensorflow__ConfigProto *defaults; /* of the server; NULL: none */
    trn_mutex mu;
    trn_map *sessions; /* handle → trn_msession */
    struct survey *surveys; /* those who ask tasks for their devices right now */
    trn_hist *step_time; /* of whole steps */
    bool stopped;
};

/* A task of the session other than our own. */
typedef struct remote_task {
    char *task;    /* "/job:ps/replica:0/task:0" */
    char *job;
    int index;
    char *address;
    trn_channel *channel;
    trn_outbox *outbox; /* to the same address */
    bool session_made; /* CreateWorkerSession went through */
} remote_task;

#define TRN_MAX_WATCHED 8

typedef struct trn_msession {
    _Atomic uint32_t ref;
    trn_master *m;
    char handle[17];
    trn_arena *arena; /* devices, names; fixed once created */
    trn_cluster *cluster;
    bool propagated; /* the client brought its own cluster spec */
    char *self;      /* our task in it */
    char *job;
    int index;
    bool soft_placement, log_placement, isolate;
    bool place_pruned; /* a node that cannot be placed matters only to runs that need it */
    int64_t cost_every, cost_after; /* RunMetadata.cost_graph on every n-th run of a signature */
    int64_t timeout_ms;
    trn_opt_opts opt;
    bool single_threaded; /* executor_type of that name: what it means to us is that If, Case and While stay ops */
    remote_task *remote;
    int n_remote;
    trn_devset devs;
    trn_wsession *local;

    trn_mutex mu;
    trn_graph *graph;
    int64_t version;
    int64_t placed_version; /* graph version that has been placed in full */
    trn_map *built;         /* signature → built_graph */
    const char *watched[TRN_MAX_WATCHED]; /* signatures in `built` with watches, a ring: each step of a debugger has dump folders of its own, so another one */
    unsigned next_watched;
    trn_map *partials;      /* handle → partial */
    trn_map *callables;     /* id → callable */
    int64_t next_callable;
    int running;
    uint64_t born_ns;
    _Atomic uint64_t steps; /* run since */
    _Atomic int64_t watched_steps; /* of those that tfdbg watches */
    bool closed;
    struct close_job *closing; /* waits until nothing runs any more */
    trn_cancel *cancel;     /* of every step: Close, Reset, stop */
} trn_msession;
trn_err trn_msession_find(trn_msession **out, trn_master *m, const char *handle) TRN_MUST_USE; /* a reference, or ABORTED */
trn_msession *trn_msession_ref(trn_msession *s);
void trn_msession_unref(trn_msession *s);
trn_err trn_msession_begin(trn_msession *s) TRN_MUST_USE; /* a step begins; FAILED_PRECONDITION when closed */
void trn_msession_end(trn_msession *s);
void trn_msession_idle(trn_msession *s, struct close_job *j);

/* ---- built graphs (build.c) */
typedef struct remote_part {
    int remote;          /* index in session->remote */
    char handle[32];     /* of RegisterGraph */
} remote_part;

typedef struct built_graph {
    _Atomic uint32_t ref;
    trn_msession *s; /* borrowed: the session outlives its built graphs */
    char *key;
    trn_plan *plan;  /* our own part; NULL: none */
    remote_part *parts;
    int n_parts;
    int n_feeds, n_fetches;
    bool partial;
    bool forgotten; /* not, or no more, in session->built, and its parts are to be forgotten when the last step has ended */
    _Atomic int64_t runs;
    trn_graph *pruned;       /* partial runs: who needs which feed */
    char **feed_keys, **fetch_keys; /* partial runs: rendezvous keys */
    trn_sb partition_graphs; /* RunMetadata bytes, when asked for */
} built_graph;
typedef void (*built_done)(void *arg, TRN_OWN trn_err err, built_graph *b); /* b: a reference for the callee */
/* Finds or builds; done may run at once. */
void trn_built_get(trn_msession *s, const trn_step_req *q, bool partial, built_done done, void *arg);
built_graph *trn_built_ref(built_graph *b);
void trn_built_unref(built_graph *b); /* maybe the last one: while the session is there */
void trn_built_slot_free(void *slot); /* an element of session->built */

/* ---- steps (step.c) */
typedef struct mstep mstep;
/* Runs b with feeds; rets (n_fetches, zeroed) are filled. `c` may be NULL. `metadata` may be NULL. For partial runs `on_start` gets the step while it runs. */
typedef struct mstep_opts {
    trn_value *args, *rets;
    trn_cancel *cancel; /* the client's, may be NULL */
    int64_t timeout_ms;
    bool trace;
    bool may_owe; /* trn_run_opts */
    bool costs; /* RunMetadata.cost_graph from the times of this step */
    trn_sb *metadata;
    trn_wstep **step_out; /* partial runs: a reference to our half of the step */
    trn_cancel **cancel_out; /* partial runs: a reference to what ends the step */
} mstep_opts;
void trn_mstep_run(built_graph *b, const mstep_opts *o, trn_master_done done, void *arg);

/* ---- partial runs (partial.c) */
void trn_partial_step(trn_msession *s, const trn_step_req *q, trn_cancel *cancel, trn_step_result *out, trn_master_done done, void *arg);
void trn_partials_free(trn_msession *s);

static inline const char *const *trn_dup_names(trn_arena *a, const char *const *v, size_t n)
{
    const char **out = trn_arena_alloc(a, sizeof *out * (n + 1));
    for (size_t i = 0; i < n; i++)
        out[i] = trn_arena_strdup(a, v[i]);
    return out;
}

#endif
