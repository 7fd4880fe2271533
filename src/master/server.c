/* Everything that one task is made of, started and stopped in order. */
#include "master/server.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "eager/eager.h"
#include "master/master.h"
#include "master/service.h"
#include "master/status.h"
#include "obs/pages.h"
#include "worker/service.h"
#include "worker/worker_int.h"

#define MAX_LOOPS 4

struct trn_server {
    trn_cluster *cluster;
    const char *job; /* in the cluster's memory */
    int task;
    trn_loop *loops[MAX_LOOPS];
    int n_loops;
    trn_pool *pool, *disk;
    trn_exec_env env;
    _Atomic int background;
    trn_peers *peers;
    trn_worker *worker;
    trn_master *master;
    trn_eager *eager;
    trn_rpc_server *rpc;
    trn_waits *waits;
    trn_status *status;
    int port;
    char *target;
    char **allow_paths;
    trn_timer age; /* on the first loop: freed buffers that stay unused go back to the kernel */
};

/* ---- what /metrics tells ------------------------------------------------------------------------------------------ */

#define GAUGE(name, expr)                                                                                              \
    static double name(void *arg)                                                                                      \
    {                                                                                                                  \
        trn_server *s = arg;                                                                                           \
        return (double)(expr);                                                                                         \
    }
GAUGE(gauge_sessions, trn_master_session_count(s->master))
GAUGE(gauge_worker_sessions, trn_worker_count(s->worker).sessions)
GAUGE(gauge_contexts, trn_eager_count(s->eager).contexts)
GAUGE(gauge_handles, trn_eager_count(s->eager).handles)
GAUGE(gauge_functions, trn_eager_count(s->eager).functions)
GAUGE(gauge_lacking, trn_eager_count(s->eager).lacking)
GAUGE(gauge_plans, trn_eager_count(s->eager).plans)
GAUGE(gauge_running, trn_eager_count(s->eager).running)
GAUGE(gauge_graphs, trn_worker_count(s->worker).graphs)
GAUGE(gauge_steps, trn_worker_count(s->worker).steps)
GAUGE(gauge_steps_run, trn_worker_count(s->worker).steps_run)
GAUGE(gauge_variables, trn_worker_count(s->worker).variables)
GAUGE(gauge_variable_bytes, trn_worker_count(s->worker).variable_bytes)

static void add_gauges(trn_server *s)
{
    static const struct {
        const char *name, *help;
        double (*read)(void *);
    } rows[] = {
        {"sessions", "Sessions that clients have open on this master", gauge_sessions},
        {"worker_sessions", "Worker sessions that masters have open on this task", gauge_worker_sessions},
        {"registered_graphs", "Graphs registered by masters", gauge_graphs},
        {"steps_live", "Steps that have not been cleaned up", gauge_steps},
        {"steps_run_total", "Parts of steps run since start", gauge_steps_run},
        {"variables", "Variables of this task", gauge_variables},
        {"eager_contexts", "Contexts that TensorFlow 2 coordinators have open", gauge_contexts},
        {"eager_handles", "Tensors that coordinators hold handles of", gauge_handles},
        {"eager_functions", "Functions that coordinators have registered", gauge_functions},
        {"eager_functions_lacking", "Those of them with an op that there is not here: they cannot run", gauge_lacking},
        {"eager_plans", "Ops and functions of coordinators that are ready to run", gauge_plans},
        {"eager_running", "Ops and functions of coordinators that run or wait", gauge_running},
        {"variable_bytes", "Bytes in variables of this task", gauge_variable_bytes},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++)
        trn_metric_gauge(rows[i].name, rows[i].help, rows[i].read, s);
}

/* [loop] */
static void age_buffers(void *arg)
{
    trn_server *s = arg;
    trn_timer_start(s->loops[0], &s->age, trn_buf_pool_age(trn_now_ns()), age_buffers, s);
}

/* ---- start -------------------------------------------------------------------------------------------------------- */

/* TensorFlow's server calls a port that it cannot have UNKNOWN. */
static trn_err as_tensorflow(trn_err err)
{
    if (!err)
        return TRN_OK;
    trn_err same = trn_errorf(TRN_UNKNOWN, "could not start the server: %s", trn_err_msg(err));
    trn_err_free(err);
    return same;
}

static trn_err start_threads(trn_server *s, const trn_server_config *c)
{
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int n = TRN_MIN(MAX_LOOPS, cores / 8 + 1);
    for (int i = 0; i < n; i++) {
        char name[16] = "loop-0";
        name[5] = (char)('0' + i);
        TRN_TRY(trn_loop_open(&s->loops[i], name));
        s->n_loops++;
    }
    TRN_TRY(trn_pool_open(&s->pool, c->inter_threads > 0 ? c->inter_threads : cores, "pool"));
    TRN_TRY(trn_pool_open(&s->disk, 2, "disk"));
    s->allow_paths = trn_xalloc(sizeof *s->allow_paths * (size_t)(c->n_allow_paths + 1));
    for (int i = 0; i < c->n_allow_paths; i++)
        s->allow_paths[i] = trn_xstrdup(c->allow_paths[i]);
    s->env = (trn_exec_env){.pool = s->pool, .disk = s->disk, .intra = c->intra_threads, .allow_paths = (const char *const *)s->allow_paths, .n_allow_paths = c->n_allow_paths,
                            .background = &s->background, .loop = s->loops[0]};
    return TRN_OK;
}

static trn_err listen_on(trn_server *s, const trn_server_config *c, const trn_cluster_task *me, int *listen_fd)
{
    if (*listen_fd >= 0) {
        int fd = *listen_fd;
        *listen_fd = -1;
        return trn_rpc_server_listen_fd(s->rpc, fd, &s->port);
    }
    return trn_rpc_server_listen(s->rpc, c->bind_host ? c->bind_host : me->host, c->port >= 0 ? c->port : me->port, &s->port);
}

static trn_err start(trn_server *s, const trn_server_config *c, int *listen_fd)
{
    const char *job = c->job ? c->job : c->cluster->own_job;
    int task = c->job ? c->task : c->cluster->own_task;
    const trn_cluster_task *me = job ? trn_cluster_task_find(c->cluster, job, task) : NULL;
    if (!me)
        return trn_errorf(TRN_INTERNAL, "/job:%s/task:%d is not in the cluster", job ? job : "?", task);
    s->cluster = trn_cluster_ref(c->cluster);
    s->job = trn_cluster_job_find(s->cluster, job)->name;
    s->task = task;
    TRN_TRY(start_threads(s, c));
    char *name = trn_xasprintf("%s/%d", job, task);
    s->peers = trn_peers_new(s->loops, s->n_loops, name);
    free(name);
    s->waits = s->env.waits = trn_waits_new();
    s->worker = trn_worker_new(&(trn_worker_opts){s->cluster, job, task, c->n_cpu_devices, &s->env, s->peers});
    s->master = trn_master_new(s->worker, s->loops[0], c->session_config, c->session_config_len);
    TRN_TRY(trn_rpc_server_open(&s->rpc, &(trn_server_opts){.loops = s->loops, .n_loops = s->n_loops}));
    s->eager = trn_eager_new(s->worker, s->loops[0]);
    trn_worker_serve(s->rpc, s->worker);
    trn_eager_serve(s->rpc, s->eager);
    trn_master_serve(s->rpc, s->master);
    trn_rpc_server_route(s->rpc, &trn_page_healthz);
    trn_rpc_server_route(s->rpc, &trn_page_metrics);
    s->status = trn_status_new(&(trn_status_opts){.worker = s->worker, .master = s->master, .waits = s->waits, .loop = s->loops[0], .job = s->worker->job, .task = task, .stand_in = c->stand_in});
    trn_status_serve(s->status, s->rpc);
    for (int i = 0; i < c->n_routes; i++)
        trn_rpc_server_route(s->rpc, &c->routes[i]);
    add_gauges(s);
    TRN_TRY(as_tensorflow(listen_on(s, c, me, listen_fd)));
    char *address = trn_address_join(*me->host ? me->host : "localhost", s->port);
    s->target = trn_xasprintf("grpc://%s", address);
    trn_status_listens(s->status, address);
    free(address);
    trn_loop_post(s->loops[0], age_buffers, s);
    return TRN_OK;
}

trn_err trn_server_start(trn_server **out, const trn_server_config *c)
{
    trn_server *s = trn_xalloc(sizeof *s);
    int listen_fd = c->listen_fd;
    trn_graph_allow_growth(trn_memory_bytes() / 4);
    trn_err err = start(s, c, &listen_fd);
    if (listen_fd >= 0)
        close(listen_fd);
    if (err)
        trn_server_stop(s, 0);
    else
        *out = s;
    return err;
}

int trn_server_port(const trn_server *s)
{
    return s->port;
}

const char *trn_server_target(const trn_server *s)
{
    return s->target;
}

const trn_cluster *trn_server_cluster(const trn_server *s)
{
    return s->cluster;
}

const char *trn_server_job(const trn_server *s)
{
    return s->job;
}

int trn_server_task(const trn_server *s)
{
    return s->task;
}

trn_master *trn_server_master(trn_server *s)
{
    return s->master;
}

trn_server_load trn_server_look(trn_server *s)
{
    trn_worker_stats w = trn_worker_count(s->worker);
    return (trn_server_load){trn_master_session_count(s->master), w.sessions, w.graphs, trn_rpc_server_connections(s->rpc), w.steps_run};
}

void trn_server_linger(trn_server *s, int ms)
{
    for (uint64_t end = trn_now_ns() + (uint64_t)ms * 1000000; trn_now_ns() < end; nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL)) {
        trn_server_load l = trn_server_look(s);
        if (!l.sessions && !l.worker_sessions && !l.graphs)
            return;
    }
}

trn_resmgr *trn_server_resources(trn_server *s)
{
    return s->worker->resmgr;
}

/* ---- stop --------------------------------------------------------------------------------------------------------- */

/* Cancelled work ends on its own threads; what it uses must stay until then. */
static void wait_idle(const trn_server *s)
{
    for (int i = 0; i < 5000 && (trn_worker_busy(s->worker) || s->background); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (trn_worker_busy(s->worker) || s->background)
        TRN_WARN("server", "steps still run 5 s after they were cancelled");
}

void trn_server_stop(trn_server *s, uint64_t drain_ns)
{
    trn_metric_gauge_drop(s);
    if (s->eager)
        trn_eager_drain(s->eager);
    if (s->rpc)
        trn_rpc_server_close(s->rpc, drain_ns);
    if (s->eager)
        trn_eager_stop(s->eager);
    if (s->master)
        trn_master_stop(s->master);
    if (s->worker)
        trn_worker_stop(s->worker);
    if (s->worker)
        wait_idle(s);
    if (s->disk)
        trn_pool_close(s->disk);
    if (s->pool)
        trn_pool_close(s->pool);
    if (s->worker)
        trn_worker_close_outboxes(s->worker);
    trn_peers_free(s->peers);
    for (int i = 0; i < s->n_loops; i++)
        trn_loop_close(s->loops[i]);
    trn_status_free(s->status);
    trn_master_free(s->master);
    trn_eager_free(s->eager);
    trn_worker_free(s->worker);
    trn_waits_free(s->waits);
    trn_cluster_unref(s->cluster);
    for (int i = 0; s->allow_paths && s->allow_paths[i]; i++)
        free(s->allow_paths[i]);
    free(s->allow_paths);
    free(s->target);
    free(s);
}
