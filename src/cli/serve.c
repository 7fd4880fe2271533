/* trainera serve: one task of a cluster, until it is told to end. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/serve_end.h"
#include "cluster/cluster.h"
#include "graph/devname.h"
#include "master/server.h"

enum { MAX_SPEC = 16 << 20, MAX_THREADS = 4096, DRAIN_S = 5 };

typedef struct options {
    const char *ps_hosts, *worker_hosts, *chief_hosts;
    cli_list jobs;
    const char *job_name;
    int64_t task_index;
    const char *cluster_spec, *server_def;
    int64_t port;
    const char *bind;
    const char *ready_file;
    const char *log_level;
    int64_t cpu_devices;
    int64_t intra, inter;
    cli_list allow_paths;
    const char *done_queue;
    int64_t done_count;
    bool until_done, stand_in;
    const char *await_done, *job_id;
    int64_t wait_timeout, peer_timeout;
    int64_t listen_fd, ready_fd, lifeline_fd;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"ps_hosts", "HOST:PORT,…", "The tasks of job ps, task 0 first.", CLI_TEXT, ROW(ps_hosts)},
    {"worker_hosts", "HOST:PORT,…", "The tasks of job worker.", CLI_TEXT, ROW(worker_hosts)},
    {"chief_hosts", "HOST:PORT", "The task of job chief.", CLI_TEXT, ROW(chief_hosts)},
    {"job", "NAME=HOST:PORT,…", "The tasks of any other job. May be given several times.", CLI_LIST, ROW(jobs)},
    {"job_name", "NAME", "The job of this task. May be left out when there is only one.", CLI_TEXT, ROW(job_name)},
    {"task_index", "N", "The number of this task in its job; 0 when left out.", CLI_INT, ROW(task_index), 0, INT32_MAX},
    {"cluster_spec", "JSON|@FILE",
     "The whole cluster as JSON, {\"ps\": [\"h:p\"], \"worker\": {\"0\": \"h:p\"}}, or a file with it.", CLI_TEXT,
     ROW(cluster_spec)},
    {"server_def", "FILE",
     "Everything from a tensorflow.ServerDef, binary or text, also default_session_config and device_count.", CLI_TEXT,
     ROW(server_def)},
    {"port", "N", "Listen on this port instead of the one in the cluster spec; 0 picks a free one.", CLI_INT, ROW(port),
     0, 65535},
    {"bind", "HOST", "Listen on this address instead of the one in the cluster spec; 0.0.0.0 for all interfaces.",
     CLI_TEXT, ROW(bind)},
    {"ready-file", "FILE", "Receives the target (grpc://host:port) once this task serves.", CLI_TEXT, ROW(ready_file)},
    {"log-level", "LEVEL", "debug, info, warn, error or off; info when left out.", CLI_TEXT, ROW(log_level)},
    {"cpu_devices", "N", "How many CPU devices this task has; 1 when left out.", CLI_INT, ROW(cpu_devices), 1, 1024},
    {"intra_op_parallelism_threads", "N", "Threads that one op may use; 0 or left out: one per core.", CLI_INT,
     ROW(intra), 0, MAX_THREADS},
    {"inter_op_parallelism_threads", "N", "Threads that run ops side by side; 0 or left out: one per core.", CLI_INT,
     ROW(inter), 0, MAX_THREADS},
    {"allow-path", "DIR",
     "Ops that read and write files stay inside this folder. May be given several times; left out: no limit.", CLI_LIST,
     ROW(allow_paths)},
    {"done-queue", "NAME",
     "End when each worker has put an element into the queue of this (shared) name on this task; {task} is this task's number: 'done_queue{task}'.",
     CLI_TEXT, ROW(done_queue)},
    {"done-count", "N", "How many elements; left out: as many as the cluster has workers and chiefs.", CLI_INT, ROW(done_count), 1, INT32_MAX},
    {"until-done", NULL, "End when every session that was opened has been closed and nobody is connected any more.", CLI_BOOL, ROW(until_done)},
    {"await-done", "JOB/N,…", "End when the launchers of these tasks have reported (GET /job) that their programs ended; trainera launch uses it.", CLI_TEXT,
     ROW(await_done)},
    {"job-id", "ID", "With --await-done: reports for another job are refused.", CLI_TEXT, ROW(job_id)},
    {"wait-timeout", "SECONDS", "With --await-done: give up (exit code 3) when one has not been heard of for so long; 0: never.", CLI_INT, ROW(wait_timeout), 0,
     INT32_MAX},
    {"peer-timeout", "SECONDS", "With --await-done: give up (exit code 4) when one has fallen silent for so long; 0: never.", CLI_INT, ROW(peer_timeout), 0,
     INT32_MAX},
    {"listen-fd", "N", NULL, CLI_INT, ROW(listen_fd), 0, INT_MAX}, /* from `trainera local` */
    {"ready-fd", "N", NULL, CLI_INT, ROW(ready_fd), 0, INT_MAX},
    {"stand-in", NULL, NULL, CLI_BOOL, ROW(stand_in)}, /* from `trainera launch`: the task's program has ended */
    {"lifeline-fd", "N", NULL, CLI_INT, ROW(lifeline_fd), 0, INT_MAX}, /* a pipe: we end when its other end is closed */
    {0},
};

/* ---- who is in the cluster, and who am I ----------------------------------------------------------------------- */

static bool has_flag_hosts(const options *o)
{
    return o->ps_hosts || o->worker_hosts || o->chief_hosts || o->jobs.n > 0;
}

static trn_err add_hosts(trn_cluster_builder *b, const options *o)
{
    const struct {
        const char *job, *hosts;
    } lists[] = {{"ps", o->ps_hosts}, {"worker", o->worker_hosts}, {"chief", o->chief_hosts}};
    bool any = o->jobs.n > 0;
    /* Start scripts pass every list, also the empty one of a job without tasks. */
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].hosts && *lists[i].hosts) {
            TRN_TRY(trn_cluster_builder_list(b, lists[i].job, lists[i].hosts));
            any = true;
        }
    if (!any)
        return trn_errorf(TRN_INVALID_ARGUMENT, "every list of hosts is empty: the cluster has no task");
    for (int i = 0; i < o->jobs.n; i++) {
        const char *eq = strchr(o->jobs.v[i], '=');
        if (!eq)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--job=%s: NAME=HOST:PORT,… is expected", o->jobs.v[i]);
        char *name = trn_xstrndup(o->jobs.v[i], (size_t)(eq - o->jobs.v[i]));
        trn_err err = trn_cluster_builder_list(b, name, eq + 1);
        free(name);
        TRN_TRY(err);
    }
    return TRN_OK;
}

static trn_err from_hosts(trn_cluster **out, const options *o)
{
    trn_cluster_builder b = {0};
    trn_err err = add_hosts(&b, o);
    if (err) {
        trn_cluster_builder_fini(&b);
        return err;
    }
    return trn_cluster_builder_finish(out, &b);
}

static trn_err from_spec(trn_cluster **out, const char *spec)
{
    if (*spec != '@')
        return trn_cluster_from_json(out, spec, strlen(spec));
    trn_sb text = {0};
    trn_err err = cli_read_file(&text, spec + 1, MAX_SPEC);
    if (!err)
        err = trn_cluster_from_json(out, text.p ? text.p : "", text.n);
    trn_sb_fini(&text);
    return err ? trn_err_wrap(err, "%s", spec + 1) : TRN_OK;
}

static trn_err from_server_def(trn_server_def *out, const char *path)
{
    trn_sb bytes = {0};
    trn_err err = cli_read_file(&bytes, path, MAX_SPEC);
    if (!err)
        err = trn_server_def_read(out, bytes.p ? bytes.p : "", bytes.n);
    trn_sb_fini(&bytes);
    return err ? trn_err_wrap(err, "%s", path) : TRN_OK;
}

/* Says who this task is in a cluster that does not know. */
static trn_err with_self(trn_cluster **out, TRN_OWN trn_cluster *c, const options *o)
{
    int32_t task = o->task_index < 0 ? 0 : (int32_t)o->task_index;
    trn_err err = TRN_OK;
    if (o->job_name) {
        err = trn_cluster_as(out, c, o->job_name, task);
    } else if (c->n_jobs == 1) {
        err = trn_cluster_as(out, c, c->jobs[0].name, task);
    } else {
        err = trn_errorf(TRN_INVALID_ARGUMENT,
                         c->n_jobs ? "--job_name is missing: which of the cluster's %d jobs is this task of?"
                                   : "the cluster spec has no tasks (%d jobs)",
                         c->n_jobs);
    }
    trn_cluster_unref(c);
    return err;
}

/* One source: flags, a ServerDef, TF_CONFIG, in this order; with none, a cluster of one. */
static trn_err resolve(trn_server_def *out, const options *o)
{
    int sources = has_flag_hosts(o) + (o->cluster_spec != NULL) + (o->server_def != NULL);
    if (sources > 1)
        return trn_errorf(
            TRN_INVALID_ARGUMENT,
            "the cluster is given twice: use either --*_hosts and --job, or --cluster_spec, or --server_def");
    if (o->server_def) {
        if (o->job_name || o->task_index >= 0)
            return trn_errorf(TRN_INVALID_ARGUMENT,
                              "--server_def says which task this is; leave out --job_name and --task_index");
        return from_server_def(out, o->server_def);
    }

    trn_server_def d = {.n_cpu_devices = 1};
    trn_cluster *c = NULL;
    const char *tf_config = getenv("TF_CONFIG");
    if (has_flag_hosts(o)) {
        TRN_TRY(from_hosts(&c, o));
    } else if (o->cluster_spec) {
        TRN_TRY(from_spec(&c, o->cluster_spec));
    } else if (tf_config && *tf_config) {
        TRN_TRY(trn_cluster_from_tf_config(&d.cluster, tf_config, strlen(tf_config)));
        if (o->job_name || o->task_index >= 0) /* flags win over the environment */
            TRN_TRY(with_self(&d.cluster, d.cluster,
                              &(options){.job_name = o->job_name ? o->job_name : d.cluster->own_job,
                                         .task_index = o->task_index >= 0 ? o->task_index : d.cluster->own_task}));
    } else {
        trn_cluster_builder b = {0};
        TRN_TRY(trn_cluster_builder_list(&b, o->job_name ? o->job_name : "local", "localhost:0"));
        TRN_TRY(trn_cluster_builder_finish(&c, &b));
    }
    if (!d.cluster)
        TRN_TRY(with_self(&d.cluster, c, o));
    *out = d;
    return TRN_OK;
}

/* ---- serving --------------------------------------------------------------------------------------------------- */

static trn_err check_folders(const cli_list *l)
{
    for (int i = 0; i < l->n; i++)
        if (access(l->v[i], F_OK) != 0)
            return trn_errorf(TRN_NOT_FOUND, "--allow-path=%s: there is no such folder", l->v[i]);
    return TRN_OK;
}

/* The line that says who I am, where I listen, who else is there. */
static void introduce(const trn_cluster *c, const trn_server *s)
{
    trn_sb others = {0};
    trn_cluster_text(&others, c);
    TRN_INFO("serve", "I am /job:%s/replica:0/task:%d, serving at %s, pid %d, trainera %s; cluster: %s", c->own_job,
             c->own_task, trn_server_target(s), (int)getpid(), TRAINERA_VERSION, others.p);
    trn_sb_fini(&others);
}

static trn_err announce(const options *o, const trn_server *s)
{
    char *line = trn_xasprintf("%s\n", trn_server_target(s));
    trn_err err = o->ready_file ? cli_write_file(o->ready_file, line) : TRN_OK;
    if (!err && o->ready_fd >= 0) {
        size_t n = strlen(line);
        if (write((int)o->ready_fd, line, n) != (ssize_t)n)
            err = trn_errorf(TRN_INTERNAL, "nobody reads --ready-fd");
        close((int)o->ready_fd);
    }
    free(line);
    return err;
}

static void leave_at_once(int sig) { _exit(128 + sig); }

/* The first signal drains, the second ends. */
static void second_signal_ends(const sigset_t *ends)
{
    signal(SIGINT, leave_at_once);
    signal(SIGTERM, leave_at_once);
    pthread_sigmask(SIG_UNBLOCK, ends, NULL);
}

static int64_t programs(const trn_cluster *c)
{
    const trn_cluster_job *w = trn_cluster_job_find(c, "worker"), *f = trn_cluster_job_find(c, "chief");
    return (w ? w->n_tasks : 0) + (f ? f->n_tasks : 0);
}

static trn_err end_options(serve_end_opts *out, const options *o, const trn_cluster *c, const char *task)
{
    *out = (serve_end_opts){.lifeline_fd = (int)o->lifeline_fd, .done_queue = o->done_queue, .until_done = o->until_done, .task = c->own_task};
    out->done_count = o->done_count > 0 ? o->done_count : programs(c);
    if (o->done_queue && out->done_count == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--done-queue: the cluster spec has no workers, so --done-count must say how many elements to wait for");
    /* Always there: whoever asks learns who this is. */
    return trn_board_new(&out->board, &(trn_board_opts){.task = task,
                                                        .job_id = o->job_id,
                                                        .await = o->await_done,
                                                        .wait_ns = (uint64_t)o->wait_timeout * 1000000000,
                                                        .silence_ns = (uint64_t)o->peer_timeout * 1000000000});
}

static trn_err serve(const options *o, const trn_server_def *d, const sigset_t *ends, int *code)
{
    trn_server_config c = {
        .cluster = d->cluster,
        .job = d->cluster->own_job,
        .task = d->cluster->own_task,
        .bind_host = o->bind,
        .port = o->port >= 0  ? (int)o->port
                : d->port > 0 ? d->port
                              : -1,
        .listen_fd = (int)o->listen_fd,
        .stand_in = o->stand_in,
        .n_cpu_devices = o->cpu_devices > 0 ? (int)o->cpu_devices : d->n_cpu_devices,
        .intra_threads = o->intra >= 0 ? (int)o->intra : d->intra_threads,
        .inter_threads = o->inter >= 0 ? (int)o->inter : d->inter_threads,
        .session_config = d->session_config,
        .session_config_len = d->session_config_len,
        .allow_paths = o->allow_paths.v,
        .n_allow_paths = o->allow_paths.n,
    };
    char task[TRN_DEV_JOB_MAX + 16];
    snprintf(task, sizeof task, "%s/%d", c.job, c.task);
    trn_log_set_task(task);

    serve_end_opts end;
    TRN_TRY(end_options(&end, o, d->cluster, task));
    trn_board *board = end.board;
    trn_http_route page = trn_board_route(board);
    if (!o->await_done)
        end.board = NULL; /* it answers, and decides nothing */
    c.routes = &page;
    c.n_routes = 1;
    trn_server *s = NULL;
    trn_err err = trn_server_start(&s, &c);
    if (!err) {
        introduce(d->cluster, s);
        err = announce(o, s);
        if (!err)
            *code = serve_wait_for_end(s, &end, ends);
        second_signal_ends(ends);
        trn_server_stop(s, err ? 0 : (uint64_t)DRAIN_S * 1000000000);
    }
    trn_board_free(board);
    return err;
}

static int run(int argc, char **argv)
{
    options o = {
        .task_index = -1, .port = -1, .cpu_devices = -1, .intra = -1, .inter = -1, .listen_fd = -1, .ready_fd = -1, .lifeline_fd = -1};
    trn_log_level level = TRN_LOG_INFO;
    trn_server_def d = {0};
    int code = CLI_USAGE, ended = CLI_OK;
    trn_err err = cli_parse(&o, flags, argc, argv, NULL);
    if (!err && o.log_level)
        err = cli_log_level(&level, o.log_level);
    if (err)
        goto end;
    code = CLI_FAILED;
    trn_log_set_level(level);

    /* Before any thread is started, so that they all inherit it. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    err = resolve(&d, &o);
    if (!err)
        err = check_folders(&o.allow_paths);
    if (!err)
        err = serve(&o, &d, &ends, &ended);
end:
    trn_server_def_fini(&d);
    free(o.jobs.v);
    free(o.allow_paths.v);
    return err ? cli_fail(err, code) : ended;
}

const cli_command cli_serve = {
    .name = "serve",
    .usage = "--ps_hosts=h:p,… --worker_hosts=h:p,… --job_name=ps --task_index=0",
    .summary = "One task (ps, worker, chief, …) of a cluster; ends on SIGINT, SIGTERM or with its job.",
    .details =
        "Where the cluster comes from: --*_hosts and --job, or --cluster_spec, or --server_def, or else the variable\n"
        "TF_CONFIG of the environment; with none of them a cluster of one task, job local, on a free port.\n"
        "\n"
        "'-' and '_' are the same in flags; --flag value works as well as --flag=value.\n"
        "\n"
        "A ps need not be killed: --until-done, --done-queue and trainera launch end it when its workers are done.\n"
        "\n"
        "Exit code: 0 ended by a signal or because its job is done, 1 could not start, 2 wrong flags, 3 waited in vain\n"
        "(--wait-timeout), 4 workers were lost (--peer-timeout, --until-done), or that of the program that failed. A task that could not start says why in "
        "its\n"
        "last line on stderr: \"trainera: CODE MESSAGE\", CODE being gRPC's.\n",
    .flags = flags,
    .run = run,
};
