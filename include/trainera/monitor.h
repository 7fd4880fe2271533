/* Monitored sessions: a training loop that initialises or restores, waits for the others, recovers from lost tasks and ends in order.
 *
 *     static trn_err work(const trn_role *me, trn_server *server)
 *     {
 *         …                                                                                                    // the graph, in builder b
 *         trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = 1000}), trn_hook_done(NULL)};
 *         trn_monitored *m;
 *         trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief,
 *                                                                    .checkpoint_dir = "/data/run1", .hooks = hooks, .n_hooks = 2});
 *         while (!err && !trn_monitored_should_stop(m))
 *             err = trn_monitored_run(m, &(trn_run){.targets = &train, .n_targets = 1});
 *         return trn_err_first(err, trn_monitored_close(m));
 *     }
 *     int main(int argc, char **argv) { return trn_main(argc, argv, NULL, work); } // --ps_hosts --worker_hosts --job_name --task_index, or TF_CONFIG
 *
 * Who does what
 * - The chief restores the newest checkpoint of checkpoint_dir, or runs the initialisers; the others wait until it has, woken by an event on the ps when
 *   the chief is a C program, by looking again (50 ms, growing to 1 s) when it is a TensorFlow program. While they wait a line says which variables are
 *   missing, on which task, for how long.
 * - A lost task (ABORTED, UNAVAILABLE, or variables that are no longer there because their ps started anew) closes the session; it is opened again as
 *   soon as all tasks are back, the chief restores (unless all variables are still there), hooks hear of the new session, and the run call that failed is
 *   made again. Other errors are the caller's.
 * - The end of the input (OUT_OF_RANGE) is a clean stop.
 *
 * A monitored session is used by one thread; trn_monitored_request_stop may be called from any.
 */
#ifndef TRAINERA_MONITOR_H
#define TRAINERA_MONITOR_H

#include <trainera/build.h>
#include <trainera/optim.h>
#include <trainera/save.h>
#include <trainera/session.h>
#include <trainera/summary.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_monitored trn_monitored;

/* ---- hooks --------------------------------------------------------------------------------------------------------- */

/* What a hook adds to one step. Names as in trn_run ("loss:0"); what is added must stay valid until after_run. */
typedef struct trn_step_ask trn_step_ask;
TRN_API int trn_ask_fetch(trn_step_ask *a, const char *name);   /* the number under which after_run finds it */
TRN_API void trn_ask_target(trn_step_ask *a, const char *name); /* a node that shall run too */
/* A feed. A tensor that the caller or another hook feeds already is an error of the step. */
TRN_API void trn_ask_feed(trn_step_ask *a, const char *name, TRN_OWN trn_tensor *value);
TRN_API void trn_ask_trace(trn_step_ask *a);                    /* collect RunMetadata in this step */
/* What the caller of this run feeds, fetches and runs. */
TRN_API const trn_run *trn_ask_caller(const trn_step_ask *a);

/* What came of it. */
typedef struct trn_step_got {
    trn_tensor *const *fetched; /* this hook's, in the order of its trn_ask_fetch calls; borrowed for the call */
    int n;
    const void *metadata;       /* serialized RunMetadata if anybody asked for a trace, else NULL */
    size_t metadata_len;
} trn_step_got;

/* A hook embeds trn_hook as its first member:   struct mine { trn_hook hook; int steps; };
 * Every function may be NULL. Hooks are called in the order in which they were given; errors of before_run and after_run are treated as errors of the
 * step itself (so a lost task makes the session recover). */
typedef struct trn_hook trn_hook;
typedef struct trn_hook_table {
    const char *name; /* for messages: "StopAtStep" */
    /* Once, before the graph is complete: may add nodes. */
    trn_err (*begin)(trn_hook *h, trn_monitored *m, trn_builder *b);
    /* After each (re-)creation of the session, with variables initialised: the graph is complete. */
    trn_err (*after_create_session)(trn_hook *h, trn_monitored *m);
    trn_err (*before_run)(trn_hook *h, trn_monitored *m, trn_step_ask *ask);
    trn_err (*after_run)(trn_hook *h, trn_monitored *m, const trn_step_got *got);
    /* When training ended without an error; the session is still open. */
    trn_err (*end)(trn_hook *h, trn_monitored *m);
    void (*free)(TRN_OWN trn_hook *h); /* NULL: free() */
} trn_hook_table;
struct trn_hook {
    const trn_hook_table *table;
};

/* ---- the session --------------------------------------------------------------------------------------------------- */

typedef struct trn_monitored_opts {
    trn_builder *builder;       /* finished by trn_monitored_open: nothing may be added afterwards. Must outlive the session. */
    trn_server *server;         /* the task of this process, or */
    const char *target;         /* "grpc://host:port" of a master elsewhere; neither: a server of its own, in process */
    bool is_chief;              /* also true when there is only one */
    const char *checkpoint_dir; /* chief: restores from it and saves to it; NULL: neither */
    /* Chief: how often to save. Both 0: every 600 s. Negative: never. */
    double save_secs;
    int64_t save_steps;
    /* Chief, with checkpoint_dir or summary_dir: how often to write the merged summaries. Both 0: every 100 steps. Negative: never. */
    double summary_secs;
    int64_t summary_steps;
    const char *summary_dir;    /* NULL: checkpoint_dir */
    int64_t log_steps;          /* chief: steps per second, every so many; 0: 100; negative: never */
    /* Owned from the call on, also when it fails. Chief hooks are freed unused elsewhere. */
    trn_hook **hooks;
    int n_hooks;
    trn_hook **chief_hooks;
    int n_chief_hooks;
    /* Serialized tensorflow.ConfigProto; NULL: a session that sees the ps and its own task only, so that it does not depend on other workers. */
    const void *config;
    size_t config_len;
    double wait_secs;           /* how long to wait for tasks and for the chief, each time; 0: 7200; negative: without end */
    /* More to run after the variables' own initialisers, before the local ones (chief only, not after a restore); TRN_NONE-terminated array or NULL. */
    const trn_out *init_ops;
    /* Called after those on the chief: e.g. loads weights from elsewhere. */
    trn_err (*init_fn)(void *arg, trn_session *s);
    void *init_arg;
    const trn_out *local_init_ops; /* every session: tables, iterators…; TRN_NONE-terminated array or NULL */
    const trn_out *ready;          /* a string vector of what is not ready yet, asked for besides the variables; NULL: none */
} trn_monitored_opts;

/* Finishes the graph and gives a session whose variables are initialised. Waits up to wait_secs for that. */
TRN_API trn_err trn_monitored_open(trn_monitored **out, const trn_monitored_opts *opts) TRN_MUST_USE;
/* One step, with hooks, repeated when a task was lost. When the input ended: success, every out is NULL, and should_stop is true. */
TRN_API trn_err trn_monitored_run(trn_monitored *m, const trn_run *run) TRN_MUST_USE;
/* The same by handles: runs `op` (or TRN_NONE) and fetches n tensors. */
TRN_API trn_err trn_monitored_step(trn_monitored *m, trn_out op, const trn_out *fetches, int n, trn_tensor **out) TRN_MUST_USE;
TRN_API bool trn_monitored_should_stop(const trn_monitored *m);
TRN_API void trn_monitored_request_stop(trn_monitored *m);
/* For steps without hooks and without recovery. Changes with every recovery: ask each time. */
TRN_API trn_session *trn_monitored_session(trn_monitored *m);
TRN_API trn_builder *trn_monitored_builder(trn_monitored *m);
TRN_API bool trn_monitored_is_chief(const trn_monitored *m);
/* The event file of a folder, one per session and folder, opened on first use and closed with the session; for hooks. */
TRN_API trn_err trn_monitored_events(trn_event_writer **out, trn_monitored *m, const char *dir) TRN_MUST_USE;
TRN_API int trn_monitored_recoveries(const trn_monitored *m); /* how often the session was opened again */
/* The value of global_step now, read in a step of its own; for hooks. */
TRN_API trn_err trn_monitored_global_step(int64_t *out, trn_monitored *m) TRN_MUST_USE;
/* Lets the hooks end (unless the last run failed), closes the session, frees all of it; also when it returns an error. NULL is fine. */
TRN_API trn_err trn_monitored_close(TRN_OWN trn_monitored *m) TRN_MUST_USE;

/* ---- the hooks that come with it. A constructor copies its options; names are borrowed from the builder. ----------- */

typedef struct trn_stop_at_step_opts {
    int64_t last_step; /* stop when global_step has reached this, or */
    int64_t num_steps; /* after so many more than there were at the first session */
} trn_stop_at_step_opts;
TRN_API trn_hook *trn_hook_stop_at_step(const trn_stop_at_step_opts *o);

typedef struct trn_checkpoint_saver_opts {
    const char *dir;      /* gets model.ckpt-<step> and the state file */
    double every_secs;    /* one of both; both 0: 600 s */
    int64_t every_steps;
    trn_saver *saver;     /* NULL: the builder's default one */
    const char *basename; /* NULL: "model.ckpt" */
    bool blocking;        /* steps wait for the save; else it is done in the background */
} trn_checkpoint_saver_opts;
/* Saves when a session was created, every so often, and at the end. A chief with checkpoint_dir has one already. */
TRN_API trn_hook *trn_hook_checkpoint_saver(const trn_checkpoint_saver_opts *o);

typedef struct trn_step_counter_opts {
    int64_t every_steps; /* one of both; both 0: 100 steps */
    double every_secs;
    const char *dir;     /* where the event file is; NULL: a log line only */
} trn_step_counter_opts;
/* "global_step/sec", as a line of the log and as a summary. */
TRN_API trn_hook *trn_hook_step_counter(const trn_step_counter_opts *o);

typedef struct trn_summary_saver_opts {
    int64_t every_steps;   /* one of both; both 0: 100 steps */
    double every_secs;
    const char *dir;
    const trn_out *summary; /* NULL: all summaries of the builder, merged */
} trn_summary_saver_opts;
TRN_API trn_hook *trn_hook_summary_saver(const trn_summary_saver_opts *o);

typedef struct trn_logging_opts {
    const trn_out *tensors; /* scalars or small tensors, logged as "loss = 0.25, step = 100 (0.4 s)" */
    int n;
    const char *const *labels; /* NULL: the tensors' names */
    int64_t every_steps;       /* of this worker; both 0: 100 */
    double every_secs;
    bool at_end;               /* also when training ends (without at_end and a period: never) */
    /* Makes the line; NULL: as above. `out` has `size` bytes. */
    void (*format)(void *arg, char *out, size_t size, trn_tensor *const *values, int n);
    void *format_arg;
} trn_logging_opts;
TRN_API trn_hook *trn_hook_logging(const trn_logging_opts *o);

/* Looks at the loss after each step: NaN is an error (INTERNAL), or a stop. */
TRN_API trn_hook *trn_hook_nan(trn_out loss, bool stop_instead_of_error);

/* Holds this worker's first step back until global_step has come so far. */
TRN_API trn_hook *trn_hook_global_step_waiter(int64_t wait_until_step);

/* Fetched once when training ends. `values` (n, zeroed) is filled then; the caller unrefs them. */
TRN_API trn_hook *trn_hook_final_ops(const trn_out *fetches, int n, trn_tensor **values);

/* Adds feeds to every step: the function calls trn_ask_feed. */
TRN_API trn_hook *trn_hook_feed_fn(trn_err (*fn)(void *arg, trn_step_ask *ask), void *arg);

/* Every worker of a job whose optimizer is trn_sync_replicas: starts and ends its part with each session. opts may be NULL; is_chief is the session's.
 * Put it before Done. */
TRN_API trn_hook *trn_hook_sync_replicas(trn_optimizer *sync, const trn_sync_opts *opts);

typedef struct trn_progress_opts {
    int64_t total_steps; /* for the bar and the time left; 0: unknown */
    const trn_out *loss; /* shown when not NULL */
    int fd;              /* 0: stderr. A terminal gets a bar that is redrawn, anything else a line every 10 s. */
    double every_secs;   /* 0: 0.2 on a terminal, 10 otherwise */
} trn_progress_opts;
TRN_API trn_hook *trn_hook_progress(const trn_progress_opts *o);

typedef struct trn_profiler_opts {
    int64_t every_steps; /* of global_step */
    double every_secs;   /* one of both */
    const char *dir;     /* gets timeline-<step>.json, for chrome://tracing and Perfetto */
} trn_profiler_opts;
TRN_API trn_hook *trn_hook_profiler(const trn_profiler_opts *o);

/* The Chrome trace of a serialized RunMetadata; to be freed with free(). */
TRN_API trn_err trn_chrome_trace(char **out, const void *run_metadata, size_t n) TRN_MUST_USE;

/* ---- ending a cluster ---------------------------------------------------------------------------------------------- */

/* Every ps has a queue "done_queue<task>" (int32, as many places as there are workers), as in the well-known recipe for TensorFlow: a worker that is done
 * puts something into each, a ps takes as many out as there are workers, and ends. TensorFlow programs with that recipe can be on either side. */
typedef struct trn_done_opts {
    int n_ps, n_workers; /* 0: from the cluster of the monitored session's server */
    int task;            /* this worker's number, used with n_workers */
    const char *ps_job;  /* NULL: "ps" */
} trn_done_opts;
TRN_API trn_hook *trn_hook_done(const trn_done_opts *o_or_null);

typedef struct trn_wait_done_opts {
    int n_workers;     /* 0: the tasks of jobs worker, chief and master in the server's cluster */
    double patience_s; /* 0: without end; else DEADLINE_EXCEEDED, which names who is missing */
} trn_wait_done_opts;
/* Serves until every worker has said that it is done, and for up to 2 s more while they close their sessions. A worker that ends twice (it was
 * restarted) counts once. */
TRN_API trn_err trn_ps_wait_done(trn_server *server, const trn_wait_done_opts *o_or_null) TRN_MUST_USE;
/* Serves until SIGINT or SIGTERM comes; both are handled while this waits, and only then. */
TRN_API trn_err trn_server_join(trn_server *server) TRN_MUST_USE;

/* ---- who am I: flags and TF_CONFIG --------------------------------------------------------------------------------- */

/* A flag of the program's own. '-' and '_' are the same in its name; "--flag=v" and "--flag v" too. */
typedef enum trn_flag_kind { TRN_FLAG_BOOL, TRN_FLAG_INT, TRN_FLAG_FLOAT, TRN_FLAG_STR } trn_flag_kind;
typedef struct trn_flag {
    const char *name; /* NULL ends the table */
    trn_flag_kind kind;
    void *value;      /* bool *, int64_t *, double *, const char **; what stands there is the default */
    const char *help;
} trn_flag;

typedef struct trn_role {
    trn_cluster *cluster; /* NULL: no cluster was named, the program is alone. Freed by trn_role_fini. */
    char job[64];         /* "worker"; "" when alone */
    int task;
    bool is_ps, is_chief; /* the chief: job chief or master, or task 0 of worker where there is neither; alone: yes */
    bool is_coordinator;  /* job chief (or master) beside ps and workers: may hand out steps instead (coord.h) */
    int n_ps, n_workers;  /* workers with the chief */
} trn_role;
/* Reads --ps_hosts, --worker_hosts, --chief_hosts, --job_name, --task_index, --tf_config=FILE|JSON and `own` flags (NULL: none) from argv; without hosts,
 * TF_CONFIG from the environment. --help prints all flags and ends the program with 0; a wrong flag is INVALID_ARGUMENT and names the nearest one. */
TRN_API trn_err trn_flags_cluster(trn_role *out, int argc, char **argv, const trn_flag *own) TRN_MUST_USE;
TRN_API void trn_role_fini(trn_role *r);
/* A whole main: trn_flags_cluster, this task's server (alone: one that nobody else reaches), then a ps waits until the workers are done (trn_ps_wait_done)
 * and everybody else calls `work`; closes the server, says on stderr what went wrong. What it returns is the program's exit code: 0, or 1 after an error.
 *
 *     int main(int argc, char **argv) { return trn_main(argc, argv, flags, work); } */
TRN_API int trn_main(int argc, char **argv, const trn_flag *own, trn_err (*work)(const trn_role *me, trn_server *server)) TRN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
