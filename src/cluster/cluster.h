/* Who is in the cluster: jobs, their tasks, their addresses, and which of them I am.
 *
 * A trn_cluster is immutable and counted, so that servers, sessions and channels share one without locks. It is made in one of four
 * ways, all of which end in the same checks:
 *   flags      --ps_hosts=h:p,h:p --worker_hosts=…             trn_cluster_builder
 *   JSON       {"ps": ["h:p"], "worker": {"3": "h:p"}}         trn_cluster_from_json, trn_cluster_from_tf_config
 *   protobuf   tensorflow.ClusterDef, tensorflow.ServerDef     trn_cluster_from_def, trn_server_def_read
 * Task numbers may have gaps. Addresses are "host:port", "[v6]:port"; port 0 means that the task picks one when it starts.
 *
 * What people write is checked strictly. What a TensorFlow program sends is taken as TensorFlow's own server takes it: one address for two
 * tasks is a warning, an empty host is localhost. Errors are one line, name the fault and are INVALID_ARGUMENT.
 *
 * Limits: 16 MiB of text or message, 100,000 tasks, task numbers below 2^31.
 */
#ifndef TRN_CLUSTER_H
#define TRN_CLUSTER_H

#include "base/base.h"

typedef struct trn_cluster_task {
    int32_t index;
    const char *address; /* "host:port" as given */
    const char *host;    /* without brackets */
    int port;
} trn_cluster_task;

typedef struct trn_cluster_job {
    const char *name;
    trn_cluster_task *tasks; /* by rising index */
    int n_tasks;
} trn_cluster_job;

typedef struct trn_cluster {
    _Atomic uint32_t ref;
    trn_arena *arena;      /* holds everything below */
    trn_cluster_job *jobs; /* by name, as TensorFlow sorts them */
    int n_jobs;
    int n_tasks;         /* of all jobs */
    const char *own_job; /* NULL: not said who I am */
    int32_t own_task;    /* -1 */
} trn_cluster;

trn_cluster *trn_cluster_ref(const trn_cluster *c);
void trn_cluster_unref(TRN_OWN trn_cluster *c); /* NULL is fine */

const trn_cluster_job *trn_cluster_job_find(const trn_cluster *c, const char *job);
const trn_cluster_task *trn_cluster_task_find(const trn_cluster *c, const char *job, int32_t index);
/* The same members with another self, which must be one of them. */
trn_err trn_cluster_as(trn_cluster **out, const trn_cluster *c, const char *job, int32_t task) TRN_MUST_USE;
/* The same members with one address replaced: a task that asked for port 0 knows its own now. */
trn_err trn_cluster_with_address(trn_cluster **out, const trn_cluster *c, const char *job, int32_t task,
                                 const char *address) TRN_MUST_USE;
bool trn_cluster_eq(const trn_cluster *a, const trn_cluster *b); /* the same members; who I am does not matter */
/* For people: "ps[0 h:p, 1 h:p] worker[0 h:p]"; more than eight tasks of a job are counted instead. */
void trn_cluster_text(trn_sb *out, const trn_cluster *c);

/* ---- made from parts ------------------------------------------------------------------------------------------- */

typedef struct trn_cluster_builder {
    struct trn_cluster_entry *entries;
    int n, cap;
    bool lenient; /* as TensorFlow's server takes it, see above */
    char *own_job;
    int32_t own_task;
} trn_cluster_builder;
/* {0} is an empty builder. */
trn_err trn_cluster_builder_add(trn_cluster_builder *b, const char *job, int64_t index,
                                const char *address) TRN_MUST_USE;
/* "h:p,h:p": tasks 0, 1, … An empty list is an error, so is an empty element. */
trn_err trn_cluster_builder_list(trn_cluster_builder *b, const char *job, const char *hosts) TRN_MUST_USE;
trn_err trn_cluster_builder_own(trn_cluster_builder *b, const char *job,
                                int64_t task) TRN_MUST_USE; /* job NULL: the only one there is */
/* Checks everything; the builder is empty afterwards, also on error. */
trn_err trn_cluster_builder_finish(trn_cluster **out, trn_cluster_builder *b) TRN_MUST_USE;
void trn_cluster_builder_fini(trn_cluster_builder *b); /* to give up */

/* host and port of "host:port", "[v6]:port"; the host goes into buf without brackets. `empty_ok`: ":2222" has the host "". */
trn_err trn_address_parse(char *host, size_t host_size, int *port, const char *address, size_t n,
                          bool empty_ok) TRN_MUST_USE;
/* The way back: brackets where they are needed. */
char *trn_address_join(const char *host, int port);

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

/* The argument of tf.train.ClusterSpec as JSON. */
trn_err trn_cluster_from_json(trn_cluster **out, const char *text, size_t n) TRN_MUST_USE;
/* {"cluster": {…}, "task": {"type": "worker", "index": 0}}: knows who it is. */
trn_err trn_cluster_from_tf_config(trn_cluster **out, const char *text, size_t n) TRN_MUST_USE;

/* ---- protobuf -------------------------------------------------------------------------------------------------- */

/* A serialized tensorflow.ClusterDef, taken leniently. */
trn_err trn_cluster_from_def(trn_cluster **out, const void *p, size_t n) TRN_MUST_USE;
void trn_cluster_to_def(trn_sb *out, const trn_cluster *c); /* adds its bytes */

/* tensorflow.ServerDef: everything a server is started with. */
typedef struct trn_server_def {
    trn_cluster *cluster;             /* knows who it is */
    int port;                         /* 0: the one in the cluster spec */
    int n_cpu_devices;                /* default_session_config.device_count["CPU"], at least 1 */
    int intra_threads, inter_threads; /* 0: not said */
    uint8_t *session_config;          /* default_session_config, serialized; NULL: none */
    size_t session_config_len;
} trn_server_def;
/* Binary or text, told apart by looking. */
trn_err trn_server_def_read(trn_server_def *out, const void *p, size_t n) TRN_MUST_USE;
void trn_server_def_fini(trn_server_def *d);

#endif
