/* Clusters, servers and sessions: who runs graphs, and how they are run. Rules that hold for all of it are in trainera.h. */
#ifndef TRAINERA_SESSION_H
#define TRAINERA_SESSION_H

#include <trainera/build.h>

#ifdef __cplusplus
extern "C" {
#endif

TRN_API const char *trn_version(void); /* "0.1.0" */

/* ---- cluster spec ---------------------------------------------------------------------------------------------- */

/* Who is in the cluster: jobs, tasks, addresses. Immutable, counted. */
typedef struct trn_cluster trn_cluster;
/* {"ps": ["h:p", …], "worker": {"0": "h:p"}}, or a whole TF_CONFIG ({"cluster": …, "task": …}), which also says who we are. */
TRN_API trn_err trn_cluster_parse(trn_cluster **out, const char *json) TRN_MUST_USE;
TRN_API void trn_cluster_free(TRN_OWN trn_cluster *c); /* drops this reference */

/* ---- server ---------------------------------------------------------------------------------------------------- */

/* One task of a cluster: master service, worker service, its devices. It serves from the moment it is created. */
typedef struct trn_server trn_server;
/* job NULL: the task that a TF_CONFIG named. */
TRN_API trn_err trn_server_create(trn_server **out, const trn_cluster *c, const char *job, int task) TRN_MUST_USE;
/* A cluster of this one task, /job:local/task:0, on a free port of localhost. */
TRN_API trn_err trn_server_create_local(trn_server **out) TRN_MUST_USE;
TRN_API const char *trn_server_target(const trn_server *s); /* "grpc://localhost:45123" */
/* Waits up to drain_ms for calls that run, cancels the rest, frees everything. Sessions that were opened in process on it must be closed before. */
TRN_API void trn_server_close(TRN_OWN trn_server *s, int drain_ms);

/* ---- session --------------------------------------------------------------------------------------------------- */

typedef struct trn_session trn_session;
typedef struct trn_session_opts {
    const void *config;   /* serialized tensorflow.ConfigProto; NULL: defaults */
    size_t config_len;
    int64_t timeout_ms;   /* for opening and closing; 0: wait until every task has answered */
} trn_session_opts;

/* On a server anywhere: "grpc://host:port". opts may be NULL. */
TRN_API trn_err trn_session_open(trn_session **out, const char *target, const trn_session_opts *opts) TRN_MUST_USE;
/* On a server of this process: no bytes between the program and its master. */
TRN_API trn_err trn_session_open_on(trn_session **out, trn_server *server, const trn_session_opts *opts) TRN_MUST_USE;
/* Adds nodes: a serialized GraphDef, or one as text. All or nothing. */
TRN_API trn_err trn_session_extend(trn_session *s, const void *graph_def, size_t n) TRN_MUST_USE;
TRN_API trn_err trn_session_extend_text(trn_session *s, const char *graph_def_text) TRN_MUST_USE;
/* Adds what the builder has that this session has not yet; an error that the builder latched comes out here. A session follows one builder; nodes that it has
 * do not change any more. */
TRN_API trn_err trn_session_extend_builder(trn_session *s, trn_builder *b) TRN_MUST_USE;

/* What one step is fed and asked for. All borrowed for the call; zero-initialise what you do not need. */
typedef struct trn_run {
    int n_feeds, n_fetches, n_targets;
    const char *const *feed_names; /* "x:0" */
    trn_tensor *const *feeds;
    const char *const *fetches;    /* "loss:0" */
    const char *const *targets;    /* nodes to run: "train" */
    trn_tensor **out;              /* n_fetches; the caller unrefs */
    int64_t timeout_ms;            /* 0: none; over it the step is cancelled everywhere: DEADLINE_EXCEEDED */
    bool trace;                    /* collect RunMetadata */
    void **metadata;               /* with trace: serialized RunMetadata, to be freed with free() */
    size_t *metadata_len;
} trn_run;
TRN_API trn_err trn_session_run(trn_session *s, const trn_run *run) TRN_MUST_USE;

/* A step that is fed and fetched from bit by bit: everything it will see is named first. */
TRN_API trn_err trn_session_partial_setup(char handle[17], trn_session *s, const trn_run *names) TRN_MUST_USE;
TRN_API trn_err trn_session_partial_run(trn_session *s, const char *handle, const trn_run *run) TRN_MUST_USE;

typedef struct trn_device_info {
    char name[192]; /* "/job:ps/replica:0/task:0/device:CPU:0" */
    char type[32];  /* "CPU" */
    uint64_t incarnation;
} trn_device_info;
/* *out is an array of *n, to be freed with free(). */
TRN_API trn_err trn_session_list_devices(trn_device_info **out, int *n, trn_session *s) TRN_MUST_USE;
/* Cancels what runs, closes the session everywhere and frees it; also when it returns an error. NULL is fine. */
TRN_API trn_err trn_session_close(TRN_OWN trn_session *s);
/* Closes every session of the master at `target` and empties containers (none named: the default one) on all tasks of its cluster. */
TRN_API trn_err trn_reset(const char *target, const char *const *containers, int n) TRN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
