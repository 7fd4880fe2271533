/* A task of a cluster: its listening port, MasterService, WorkerService, devices. What `trainera serve` and the C API start.
 *
 * One server is one task. Several may live in one process (the C API's in-process clusters, tests): nothing here is global.
 */
#ifndef TRN_SERVER_H
#define TRN_SERVER_H

#include "base/base.h"
#include "cluster/cluster.h"

typedef struct trn_server_config {
    const trn_cluster *cluster; /* referenced by the server as long as it needs it */
    const char *job;            /* NULL: the cluster's own_job, with own_task */
    int task;
    const char *bind_host; /* NULL: the address that the cluster spec names for this task; "": all interfaces */
    int port;              /* -1: from the cluster spec; 0: any free one */
    bool stand_in;         /* the program that this task was has ended; the page says so */
    int listen_fd;         /* a socket that listens already, taken over also when starting fails; -1: none */
    int n_cpu_devices;     /* 0: 1 */
    int intra_threads, inter_threads; /* 0: as many as there are cores */
    const uint8_t *session_config;    /* serialized tensorflow.ConfigProto, the default for sessions; NULL: none */
    size_t session_config_len;
    const char *const *allow_paths; /* file ops stay inside these folders; none: no limit */
    int n_allow_paths;
    const struct trn_http_route *routes; /* more pages on its port */
    int n_routes;
} trn_server_config;

typedef struct trn_server trn_server;

/* [any but loop] Serves when it returns. An address that cannot be bound is UNKNOWN, as TensorFlow's server has it. */
trn_err trn_server_start(trn_server **out, const trn_server_config *c) TRN_MUST_USE;
int trn_server_port(const trn_server *s);
struct trn_master;
struct trn_master *trn_server_master(trn_server *s); /* for in-process sessions */
const trn_cluster *trn_server_cluster(const trn_server *s); /* lives as long as the server */
const char *trn_server_job(const trn_server *s);
int trn_server_task(const trn_server *s);
const char *trn_server_target(const trn_server *s); /* "grpc://host:port" */
/* [any] What goes on here; a session or graph that was closed no longer counts. */
typedef struct trn_server_load {
    size_t sessions, worker_sessions, graphs, connections;
    uint64_t steps_run;
} trn_server_load;
trn_server_load trn_server_look(trn_server *s);
struct trn_resmgr *trn_server_resources(trn_server *s); /* variables, queues, …; lives as long as the server */
/* [any but loop] Waits until every session here is closed, up to ms. Before a ps ends because its workers are done: the last of them still closes its
 * session, and TensorFlow's close waits without end for a server that is gone. */
void trn_server_linger(trn_server *s, int ms);
/* [any but loop] Takes no new calls, waits up to drain_ns for those that run, closes and frees everything. */
void trn_server_stop(TRN_OWN trn_server *s, uint64_t drain_ns);

#endif
