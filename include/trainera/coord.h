/* The coordinator: one program that hands steps to whichever worker is free.
 *
 *     trn_coord *c;
 *     err = trn_coord_open(&c, &(trn_coord_opts){.builder = b, .cluster = cluster});
 *     for (int i = 0; i < 1000 && !err; i++)
 *         err = trn_coord_schedule(NULL, c, &(trn_run){.targets = &train, .n_targets = 1});   // returns as soon as the queue has room
 *     if (!err) err = trn_coord_join(c);                                                      // all of them are done
 *     err = trn_err_first(err, trn_coord_close(c));
 *
 * - Workers and ps are plain servers (`trainera serve`, or TensorFlow's); the coordinator opens a session on each worker. Nodes without a device run on
 *   the worker that got the step; variables belong on /job:ps.
 * - A step whose worker is lost is queued again and runs on another one; the worker is used again when it is back. So a step may run partly twice, as in
 *   TensorFlow's ClusterCoordinator.
 * - A lost ps has lost its variables: that is an error of the job (UNAVAILABLE, naming the ps) and comes from schedule, join and fetch.
 * - A step's own error comes from the next join or schedule (once), and from fetching its future. What is still queued when it happens is cancelled.
 *
 * Any thread may call these functions.
 */
#ifndef TRAINERA_COORD_H
#define TRAINERA_COORD_H

#include <trainera/build.h>
#include <trainera/session.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_coord trn_coord;
typedef struct trn_future trn_future;

typedef struct trn_coord_opts {
    trn_builder *builder;        /* complete; must outlive the coordinator */
    const trn_cluster *cluster;  /* with jobs worker and ps; or */
    const char *const *targets;  /* the workers' masters, "grpc://host:port" */
    int n_targets;
    int queue;                   /* steps that may wait; 0: twice the number of workers, at least 16 */
    int steps_per_worker;        /* run at the same time on one worker; 0: 1 */
    double wait_secs;            /* for the first worker at the start, and for all of them being lost later; 0: 600; negative: without end */
    /* Run once, on the first worker there is, before any step: variables' initialisers or a restore. TRN_NONE-terminated; NULL: the builder's
     * initialisers of global variables; an empty list: nothing. */
    const trn_out *init_ops;
    trn_err (*init_fn)(void *arg, trn_session *s); /* after these, there */
    void *init_arg;
    /* Run on every worker when its session is opened, also when it comes back: local variables (always), tables, iterators. TRN_NONE-terminated or NULL. */
    const trn_out *worker_init_ops;
    trn_err (*worker_init_fn)(void *arg, trn_session *s, int worker);
    void *worker_init_arg;
    const void *config;          /* serialized ConfigProto; NULL: each session sees the ps and its own worker */
    size_t config_len;
} trn_coord_opts;

/* Opens a session for every worker and runs the initialisers. */
TRN_API trn_err trn_coord_open(trn_coord **out, const trn_coord_opts *opts) TRN_MUST_USE;
/* Queues a step; waits while the queue is full. The run is copied (feeds are referenced); .out, .metadata are not used: fetch them from the future.
 * future NULL: nobody asks for its results. */
TRN_API trn_err trn_coord_schedule(trn_future **future, trn_coord *c, const trn_run *run) TRN_MUST_USE;
/* Until everything that was scheduled is done. Gives the first error since the last join, and drops what was queued behind it. */
TRN_API trn_err trn_coord_join(trn_coord *c) TRN_MUST_USE;
TRN_API bool trn_coord_done(trn_coord *c); /* nothing is queued or running */
/* Waits for one step; out[i] (n of them, as many as it fetches) belong to the caller. May be called again. */
TRN_API trn_err trn_coord_fetch(trn_future *f, trn_tensor **out, int n) TRN_MUST_USE;
TRN_API bool trn_future_done(trn_future *f);
TRN_API void trn_future_free(TRN_OWN trn_future *f); /* the step itself runs on; NULL is fine */
TRN_API int trn_coord_workers(trn_coord *c); /* that are usable now */
/* How many steps ran on a worker; how often a step was given to another one. */
TRN_API int64_t trn_coord_steps(trn_coord *c, int worker);
TRN_API int64_t trn_coord_retries(trn_coord *c);
/* Cancels what is queued and what runs, closes the sessions, frees it; futures stay valid and give CANCELLED. NULL is fine. */
TRN_API trn_err trn_coord_close(TRN_OWN trn_coord *c) TRN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
