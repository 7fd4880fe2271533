/* The master: a client's sessions. It keeps the client's graph, and for every set of feeds, fetches and targets a version of it that was pruned, lowered,
 * placed, optimised and cut into one part per task (built once, then cached). A step is then one RunGraph per remote task, all at once, and a plain call
 * for the part that is our own.
 *
 * All functions are asynchronous and [any]; `done` runs exactly once, on any thread, maybe before the call returns. The wire's MasterService and the
 * in-process sessions of the C API use the same functions.
 *
 * What fails: a lost task is UNAVAILABLE (no connection) or ABORTED (it has restarted and knows nothing of us), which is what TensorFlow's recoverable
 * sessions expect; the first error that does not merely follow from another is the one that the client sees. */
#ifndef TRN_MASTER_H
#define TRN_MASTER_H

#include "worker/worker.h"

typedef struct trn_master trn_master;

/* `config`: default session ConfigProto of the server, or NULL. */
trn_master *trn_master_new(trn_worker *w, trn_loop *loop, const uint8_t *config, size_t config_n);
void trn_master_stop(trn_master *m); /* cancels every step, closes every session; waits for neither */
void trn_master_free(trn_master *m);
size_t trn_master_session_count(trn_master *m);
/* For the status page. [any] */
typedef struct trn_session_look {
    char handle[17];
    uint64_t born_ns, steps;
    int running; /* steps; -1: busy, ask again */
    int nodes;   /* of its graph */
    int tasks;
} trn_session_look;
size_t trn_master_look(trn_master *m, trn_session_look *out, size_t max); /* fills up to max, returns how many there are */
/* Tasks that CreateSession (or ListDevices) waits for. fn must be quick. */
void trn_master_each_wait(trn_master *m, void (*fn)(void *arg, const char *task, const char *address, uint64_t since_ns, const char *state), void *arg);
const trn_hist *trn_master_step_time(const trn_master *m);
trn_pool *trn_master_pool(trn_master *m); /* for work that is too long for a loop */

/* What is asked for is borrowed until done. */
typedef void (*trn_master_done)(void *arg, TRN_OWN trn_err err);
typedef struct trn_create_result { char handle[17]; int64_t version; } trn_create_result;
void trn_master_create(trn_master *m, const Tensorflow__CreateSessionRequest *q, trn_cancel *c, trn_create_result *out, trn_master_done done, void *arg);
trn_err trn_master_extend(trn_master *m, const Tensorflow__ExtendSessionRequest *q, int64_t *new_version) TRN_MUST_USE; /* [any but loop] */
void trn_master_close(trn_master *m, const char *handle, trn_master_done done, void *arg);
void trn_master_reset(trn_master *m, const Tensorflow__ResetRequest *q, trn_master_done done, void *arg);

typedef struct trn_device_list { trn_arena *arena; int n_local, n_remote; const trn_device *local, *remote; } trn_device_list;
/* handle "": asks every task of the cluster. Caller frees out->arena. */
void trn_master_list_devices(trn_master *m, const char *handle, trn_cancel *c, trn_device_list *out, trn_master_done done, void *arg);

typedef struct trn_step_req {
    const char *session;
    const char *partial_handle; /* "" or what trn_master_partial_setup gave */
    int n_feeds, n_fetches, n_targets;
    const char *const *feed_names;
    trn_tensor *const *feeds;
    const char *const *fetches, *const *targets;
    int n_joins; /* callables: join_to[i] is fed with what join_from[i] is */
    const char *const *join_from, *const *join_to;
    int64_t timeout_ms; /* 0: the session's operation_timeout_in_ms, or none */
    bool trace, partition_graphs;
    bool feeds_stay; /* nobody writes to them when the step is over */
    const uint8_t *debug; /* DebugOptions: tensors that tfdbg watches */
    size_t debug_n;
    const struct trn_watches *watches; /* the master's: what `debug` says */
} trn_step_req;
/* Filled when done without error. */
typedef struct trn_step_result {
    trn_tensor **fetches; /* as asked for; trn_step_result_fini */
    int n_fetches;
    trn_sb metadata;      /* serialized RunMetadata, when traced */
} trn_step_result;
void trn_step_result_fini(trn_step_result *r);
struct trn_loop *trn_master_loop(const trn_master *m); /* where its remote parts' answers arrive */
void trn_master_run(trn_master *m, const trn_step_req *q, trn_cancel *c, trn_step_result *out, trn_master_done done, void *arg);
void trn_master_partial_setup(trn_master *m, const trn_step_req *q, char handle[17], trn_master_done done, void *arg);

trn_err trn_master_make_callable(trn_master *m, const Tensorflow__MakeCallableRequest *q, int64_t *handle) TRN_MUST_USE;
trn_err trn_master_release_callable(trn_master *m, const char *session, int64_t handle) TRN_MUST_USE;
void trn_master_run_callable(trn_master *m, const char *session, int64_t handle, trn_tensor *const *feeds, int n_feeds, trn_cancel *c, trn_step_result *out,
                             trn_master_done done, void *arg);

#endif
