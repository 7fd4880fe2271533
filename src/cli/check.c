/* trainera check: is this cluster spec right, and who answers at its addresses? Every fault is one line. */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cluster/cluster.h"
#include "cluster/slurm.h"
#include "io/net.h"
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"
#include "wire/rpc.h"

enum { MAX_SPEC = 16 << 20, PROBES = 32, SKEW_MS = 2000 };
#define SECOND UINT64_C(1000000000)

typedef struct options {
    const char *ps_hosts, *worker_hosts, *chief_hosts;
    cli_list jobs;
    const char *cluster_spec, *job_name;
    int64_t task_index, ps, timeout;
    bool slurm, json, up, offline;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"ps_hosts", "HOST:PORT,…", "The tasks of job ps.", CLI_TEXT, ROW(ps_hosts)},
    {"worker_hosts", "HOST:PORT,…", "The tasks of job worker.", CLI_TEXT, ROW(worker_hosts)},
    {"chief_hosts", "HOST:PORT", "The task of job chief.", CLI_TEXT, ROW(chief_hosts)},
    {"job", "NAME=HOST:PORT,…", "The tasks of any other job. May be given several times.", CLI_LIST, ROW(jobs)},
    {"cluster_spec", "JSON|@FILE", "A cluster spec or a whole TF_CONFIG as JSON, or a file with it.", CLI_TEXT, ROW(cluster_spec)},
    {"job_name", "NAME", "Which task will be started here: its job …", CLI_TEXT, ROW(job_name)},
    {"task_index", "N", "… and its number; its port must be free.", CLI_INT, ROW(task_index), 0, INT32_MAX},
    {"slurm", NULL, "From the variables of a Slurm step, as trainera launch would take it.", CLI_BOOL, ROW(slurm)},
    {"ps", "N", "With --slurm: how many of the tasks are ps; 1 when left out.", CLI_INT, ROW(ps), 0, 100000},
    {"up", NULL, "Tasks that do not run are a fault too.", CLI_BOOL, ROW(up)},
    {"offline", NULL, "Only the spec: nobody is asked.", CLI_BOOL, ROW(offline)},
    {"timeout", "SECONDS", "For each task's answer; 3 when left out.", CLI_INT, ROW(timeout), 1, 600},
    {"json", NULL, "The facts as JSON.", CLI_BOOL, ROW(json)},
    {0},
};

typedef struct entry {
    char *job, *address;
    int64_t index;
    char *host;
    int port; /* -1: the address is bad */
    /* what the probe found */
    char *state;      /* "up", "not started", "unreachable", … for the table */
    char *problem;    /* or NULL */
    char *version;    /* of a task of ours */
    double skew_ms;
    bool answered;
} entry;

typedef struct check {
    const options *o;
    const char *source;
    entry *e;
    int n, cap;
    char **problems;
    int n_problems, cap_problems;
    char *own_job;
    int64_t own_task; /* -1 */
    _Atomic int next; /* probe */
} check;

static void problem(check *c, const char *fmt, ...) TRN_PRINTF(2, 3);
static void problem(check *c, const char *fmt, ...)
{
    trn_sb s = {0};
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&s, fmt, ap);
    va_end(ap);
    TRN_PUSH(c->problems, c->n_problems, c->cap_problems, s.p);
}

/* ---- reading, more patiently than the servers do: everything that is wrong is found in one go ------------------------------ */

static void add(check *c, const char *job, int64_t index, const char *address)
{
    entry e = {.job = trn_xstrdup(job), .address = trn_xstrdup(address), .index = index, .port = -1, .state = trn_xstrdup("")};
    char host[512];
    trn_err err = trn_address_parse(host, sizeof host, &e.port, address, strlen(address), false);
    if (err) {
        problem(c, "%s/%lld: %s", job, (long long)index, trn_err_msg(err));
        trn_err_free(err);
        e.port = -1;
    } else {
        e.host = trn_xstrdup(host);
        if (e.port == 0)
            problem(c, "%s/%lld: %s has port 0: nobody else can know where it will listen", job, (long long)index, address);
    }
    TRN_PUSH(c->e, c->n, c->cap, e);
}

static void add_list(check *c, const char *job, const char *hosts)
{
    int64_t i = 0;
    for (const char *p = hosts; p && *hosts;) {
        size_t n = strcspn(p, ",");
        char *address = trn_xstrndup(p, n);
        if (!*address)
            problem(c, "%s/%lld: the address is empty in '%s'", job, (long long)i, hosts);
        else
            add(c, job, i, address);
        i++;
        free(address);
        if (!p[n])
            break;
        p += n + 1;
    }
}

static void add_json_jobs(check *c, json_t *cluster)
{
    const char *job, *key;
    json_t *tasks, *a;
    if (!json_is_object(cluster)) {
        problem(c, "%s: the cluster is no object from jobs to addresses", c->source);
        return;
    }
    json_object_foreach(cluster, job, tasks)
    {
        size_t i;
        if (json_is_array(tasks)) {
            if (json_array_size(tasks) == 0)
                problem(c, "job %s has no tasks", job);
            json_array_foreach(tasks, i, a) if (json_is_string(a)) add(c, job, (int64_t)i, json_string_value(a));
            else problem(c, "%s/%zu: the address is no string", job, i);
        } else if (json_is_object(tasks)) {
            json_object_foreach(tasks, key, a) if (json_is_string(a)) add(c, job, atoll(key), json_string_value(a));
            else problem(c, "%s/%s: the address is no string", job, key);
        } else if (json_is_string(tasks)) {
            problem(c, "job %s is a string; a list of addresses is expected: [\"%s\"]", job, json_string_value(tasks));
            add(c, job, 0, json_string_value(tasks));
        } else {
            problem(c, "job %s is neither a list of addresses nor an object from number to address", job);
        }
    }
}

static bool has_job(const check *c, const char *job)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->e[i].job, job) == 0)
            return true;
    return false;
}

static void read_json(check *c, const char *text)
{
    json_error_t at;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &at);
    if (!root) {
        problem(c, "%s is no JSON: %s at line %d, column %d", c->source, at.text, at.line, at.column);
        return;
    }
    json_t *cluster = json_object_get(root, "cluster"), *task = json_object_get(root, "task");
    bool whole = cluster || task; /* a TF_CONFIG */
    if (!whole) {
        add_json_jobs(c, root);
    } else if (!cluster) {
        problem(c, "%s has no \"cluster\": the program would run alone", c->source);
    } else {
        add_json_jobs(c, cluster);
        const char *type = json_string_value(json_object_get(task, "type"));
        json_t *index = json_object_get(task, "index");
        if (!task)
            problem(c, "%s has no \"task\": it does not say which task this is", c->source);
        else if (!type)
            problem(c, "%s: \"task\" has no \"type\"", c->source);
        else if (!json_is_integer(index) && !json_is_string(index))
            problem(c, "%s: \"task\" has no \"index\"", c->source);
        if (type) {
            free(c->own_job);
            c->own_job = trn_xstrdup(type);
            c->own_task = json_is_integer(index) ? json_integer_value(index) : json_is_string(index) ? atoll(json_string_value(index)) : 0;
        }
        if (has_job(c, "evaluator"))
            problem(c, "the evaluator is in the cluster: it must not be, TensorFlow's workers would wait for it; name it in \"task\" only");
        if (!has_job(c, "chief") && !has_job(c, "master") && has_job(c, "ps"))
            problem(c, "there is no chief: Estimators and TensorFlow 2's coordinator wait for one for ever (tf.train.Server programs take worker 0 instead)");
    }
    json_decref(root);
}

static const char *from_env(const char *name) { return getenv(name); }

static trn_err read_all(check *c)
{
    const options *o = c->o;
    const char *tf_config = getenv("TF_CONFIG");
    if (o->ps_hosts || o->worker_hosts || o->chief_hosts || o->jobs.n) {
        c->source = "the flags";
        add_list(c, "ps", o->ps_hosts ? o->ps_hosts : "");
        add_list(c, "worker", o->worker_hosts ? o->worker_hosts : "");
        add_list(c, "chief", o->chief_hosts ? o->chief_hosts : "");
        for (int i = 0; i < o->jobs.n; i++) {
            const char *eq = strchr(o->jobs.v[i], '=');
            if (!eq)
                return trn_errorf(TRN_INVALID_ARGUMENT, "--job=%s: NAME=HOST:PORT,… is expected", o->jobs.v[i]);
            char *job = trn_xstrndup(o->jobs.v[i], (size_t)(eq - o->jobs.v[i]));
            add_list(c, job, eq + 1);
            free(job);
        }
    } else if (o->cluster_spec) {
        trn_sb text = {0};
        c->source = *o->cluster_spec == '@' ? o->cluster_spec + 1 : "the cluster spec";
        if (*o->cluster_spec == '@')
            TRN_TRY(cli_read_file(&text, o->cluster_spec + 1, MAX_SPEC));
        else
            trn_sb_adds(&text, o->cluster_spec);
        read_json(c, text.p ? text.p : "");
        trn_sb_fini(&text);
    } else if (o->slurm || (!tf_config && trn_slurm_is_step(from_env))) {
        c->source = "Slurm";
        trn_slurm s;
        TRN_TRY(trn_slurm_read(&s, from_env, -1));
        for (int i = 0; i < s.n_tasks; i++) {
            char *a = trn_address_join(s.tasks[i].host, s.tasks[i].port);
            add(c, i < o->ps ? "ps" : "worker", i < o->ps ? i : i - o->ps, a);
            free(a);
        }
        c->own_job = trn_xstrdup(s.self < o->ps ? "ps" : "worker");
        c->own_task = s.self < o->ps ? s.self : s.self - o->ps;
        trn_slurm_fini(&s);
    } else if (tf_config) {
        c->source = "TF_CONFIG";
        read_json(c, tf_config);
    } else {
        return trn_errorf(TRN_INVALID_ARGUMENT, "nothing to check: give --ps_hosts …, --cluster_spec, or set TF_CONFIG");
    }
    if (o->job_name) {
        free(c->own_job);
        c->own_job = trn_xstrdup(o->job_name);
        c->own_task = TRN_MAX(o->task_index, 0);
    }
    return TRN_OK;
}

/* ---- what is wrong with it by itself ---------------------------------------------------------------------------------------- */

static void check_spec(check *c)
{
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < i; k++) {
            if (strcmp(c->e[i].address, c->e[k].address) == 0 && c->e[i].port != 0)
                problem(c, "%s is given twice: for %s/%lld and for %s/%lld", c->e[i].address, c->e[k].job, (long long)c->e[k].index, c->e[i].job, (long long)c->e[i].index);
            if (strcmp(c->e[i].job, c->e[k].job) == 0 && c->e[i].index == c->e[k].index)
                problem(c, "%s/%lld is given twice: %s and %s", c->e[i].job, (long long)c->e[i].index, c->e[k].address, c->e[i].address);
        }
    if (c->n == 0 && c->n_problems == 0)
        problem(c, "%s: the cluster has no tasks", c->source);
    if (c->own_job && strcmp(c->own_job, "evaluator") != 0 && c->n > 0) {
        int64_t last = -1;
        bool found = false;
        for (int i = 0; i < c->n; i++)
            if (strcmp(c->e[i].job, c->own_job) == 0) {
                last = TRN_MAX(last, c->e[i].index);
                found |= c->e[i].index == c->own_task;
            }
        if (last < 0)
            problem(c, "this task is of job %s, which the cluster does not have", c->own_job);
        else if (!found)
            problem(c, "this task is %s/%lld: index out of range, the last one is %s/%lld", c->own_job, (long long)c->own_task, c->own_job, (long long)last);
    }
}

/* ---- who answers ------------------------------------------------------------------------------------------------------------- */

typedef struct status_call {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done;
    trn_err err;
    char device[200]; /* "/job:ps/replica:0/task:0/device:CPU:0" */
} status_call;

/* [loop] */
static void got_status(void *arg, trn_err err, const trn_msg *msg)
{
    status_call *s = arg;
    if (!err) {
        trn_arena *a = trn_arena_new();
        Tensorflow__GetStatusResponse *r;
        err = TRN_PB_UNPACK(&r, a, tensorflow__get_status_response__descriptor, msg->p, msg->n);
        if (!err && r->n_device_attributes > 0)
            snprintf(s->device, sizeof s->device, "%s", r->device_attributes[0]->name);
        trn_arena_free(a);
    }
    pthread_mutex_lock(&s->mu);
    s->err = err;
    s->done = true;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mu);
}

/* Asks as a master would: WorkerService.GetStatus. */
static trn_err ask_status(char *device, size_t n, const char *address, uint64_t timeout_ns)
{
    trn_loop *loop;
    TRN_TRY(trn_loop_open(&loop, "check"));
    status_call s = {.mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    trn_channel *ch = trn_channel_new(loop, address);
    trn_out_msg empty = {0};
    trn_channel_call(NULL, ch, "/tensorflow.WorkerService/GetStatus", &empty, &(trn_call_opts){.deadline_ns = trn_now_ns() + timeout_ns}, got_status, &s);
    pthread_mutex_lock(&s.mu);
    while (!s.done)
        pthread_cond_wait(&s.cond, &s.mu);
    pthread_mutex_unlock(&s.mu);
    trn_channel_shutdown(ch);
    trn_channel_unref(ch);
    trn_loop_close(loop);
    snprintf(device, n, "%s", s.device);
    return s.err;
}

static void set_state(entry *e, const char *fmt, ...) TRN_PRINTF(2, 3);
static void set_state(entry *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    trn_sb s = {0};
    trn_sb_addv(&s, fmt, ap);
    va_end(ap);
    free(e->state);
    e->state = s.p;
}

/* A task of ours tells more: version, clock, job. */
static bool ask_ours(check *c, entry *e, uint64_t timeout_ns)
{
    trn_sb body = {0};
    int status = 0;
    uint64_t before = trn_wall_us();
    trn_err err = cli_http_get(&body, &status, e->address, "/job", timeout_ns);
    uint64_t after = trn_wall_us();
    json_t *root = !err && status == 200 && body.p ? json_loads(body.p, 0, NULL) : NULL;
    const char *version = json_string_value(json_object_get(root, "version"));
    json_int_t then = json_integer_value(json_object_get(root, "time_us"));
    if (version) {
        e->version = trn_xstrdup(version);
        e->skew_ms = ((double)then - (double)(before / 2 + after / 2)) / 1e3;
    }
    json_decref(root);
    trn_err_free(err);
    trn_sb_fini(&body);
    return version != NULL;
}

static void probe(check *c, entry *e)
{
    uint64_t timeout = (uint64_t)c->o->timeout * SECOND;
    trn_addrs addrs;
    trn_err err = trn_net_known(&addrs, e->host, e->port) ? TRN_OK : trn_net_resolve(&addrs, e->host, e->port);
    if (err) {
        set_state(e, "unknown host");
        e->problem = trn_xasprintf("%s/%lld: %s", e->job, (long long)e->index, trn_err_msg(err));
        trn_err_free(err);
        return;
    }
    char device[200], want[200];
    err = ask_status(device, sizeof device, e->address, timeout);
    snprintf(want, sizeof want, "/job:%s/replica:0/task:%lld/", e->job, (long long)e->index);
    if (!err) {
        bool ours = ask_ours(c, e, timeout);
        e->answered = true;
        set_state(e, "up, %s%s", ours ? "trainera " : "TensorFlow", ours ? e->version : "");
        if (strncmp(device, want, strlen(want)) != 0) {
            char *slash = strstr(device, "/device:");
            if (slash)
                *slash = 0;
            e->problem = trn_xasprintf("%s/%lld: at %s answers %s instead: another cluster's task, or the wrong address", e->job, (long long)e->index, e->address, device);
        }
        return;
    }
    const char *msg = trn_err_msg(err);
    trn_sb body = {0};
    int status = 0;
    trn_err http = cli_http_get(&body, &status, e->address, "/", timeout);
    if (strstr(msg, "refused")) {
        set_state(e, "not started");
        if (c->o->up)
            e->problem = trn_xasprintf("%s/%lld: nothing listens at %s", e->job, (long long)e->index, e->address);
    } else if (!http) {
        set_state(e, "a web server");
        e->problem = trn_xasprintf("%s/%lld: at %s answers a plain web server (HTTP %d), no task", e->job, (long long)e->index, e->address, status);
    } else if (trn_err_code(http) == TRN_INVALID_ARGUMENT) {
        set_state(e, "something else");
        e->problem = trn_xasprintf("%s/%lld: at %s answers something that is neither a task nor a web server", e->job, (long long)e->index, e->address);
    } else {
        set_state(e, "unreachable");
        e->problem = trn_xasprintf("%s/%lld: %s is unreachable: %s", e->job, (long long)e->index, e->address, msg);
    }
    trn_err_free(http);
    trn_sb_fini(&body);
    trn_err_free(err);
}

static void *probe_some(void *arg)
{
    check *c = arg;
    for (int i; (i = atomic_fetch_add(&c->next, 1)) < c->n;)
        if (c->e[i].port > 0)
            probe(c, &c->e[i]);
    return NULL;
}

static void check_answers(check *c)
{
    pthread_t threads[PROBES];
    int n = 0;
    while (n < TRN_MIN(PROBES, c->n) && pthread_create(&threads[n], NULL, probe_some, c) == 0)
        n++;
    if (n == 0)
        probe_some(c);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    const entry *first = NULL;
    for (int i = 0; i < c->n; i++) {
        entry *e = &c->e[i];
        if (e->problem)
            problem(c, "%s", e->problem);
        if (!e->version)
            continue;
        if (e->skew_ms > SKEW_MS || e->skew_ms < -SKEW_MS)
            problem(c, "%s/%lld: its clock is %.1f s %s ours", e->job, (long long)e->index, (e->skew_ms < 0 ? -e->skew_ms : e->skew_ms) / 1e3, e->skew_ms > 0 ? "ahead of" : "behind");
        if (!first)
            first = e;
        else if (strcmp(first->version, e->version) != 0)
            problem(c, "%s/%lld is trainera %s, %s/%lld is %s: different versions", first->job, (long long)first->index, first->version, e->job, (long long)e->index, e->version);
    }
}

/* The task that will be started here needs its port. */
static void check_own_port(check *c)
{
    for (int i = 0; i < c->n; i++) {
        entry *e = &c->e[i];
        if (!c->own_job || strcmp(e->job, c->own_job) != 0 || e->index != c->own_task || e->port <= 0)
            continue;
        trn_sb who = {0};
        if (cli_port_owner(&who, e->port))
            problem(c, "%s/%lld: port %d is taken on this machine by %s", e->job, (long long)e->index, e->port, who.p);
        trn_sb_fini(&who);
    }
}

/* ---- telling ------------------------------------------------------------------------------------------------------------------ */

static void print_table(const check *c)
{
    int job = 3, address = 7;
    for (int i = 0; i < c->n; i++) {
        job = TRN_MAX(job, (int)strlen(c->e[i].job));
        address = TRN_MAX(address, (int)strlen(c->e[i].address));
    }
    printf("%-*s  %4s  %-*s  %s\n", job, "JOB", "TASK", address, "ADDRESS", "STATE");
    for (int i = 0; i < c->n; i++) {
        const entry *e = &c->e[i];
        bool me = c->own_job && strcmp(e->job, c->own_job) == 0 && e->index == c->own_task;
        printf("%-*s  %4lld  %-*s  %s%s\n", job, e->job, (long long)e->index, address, e->address, e->state, me ? *e->state ? " (this task)" : "(this task)" : "");
    }
    for (int i = 0; i < c->n_problems; i++)
        printf("problem: %s\n", c->problems[i]);
    if (c->n_problems == 0)
        printf("%d tasks from %s: nothing wrong\n", c->n, c->source);
}

static void print_json(const check *c)
{
    json_t *tasks = json_array(), *problems = json_array();
    for (int i = 0; i < c->n; i++) {
        const entry *e = &c->e[i];
        json_t *t = json_pack("{s:s, s:I, s:s, s:s}", "job", e->job, "task", (json_int_t)e->index, "address", e->address, "state", e->state);
        if (e->version) {
            json_object_set_new(t, "version", json_string(e->version));
            json_object_set_new(t, "clock_skew_ms", json_real(e->skew_ms));
        }
        json_array_append_new(tasks, t);
    }
    for (int i = 0; i < c->n_problems; i++)
        json_array_append_new(problems, json_string(c->problems[i]));
    json_t *root = json_pack("{s:s, s:o, s:o}", "source", c->source, "tasks", tasks, "problems", problems);
    char *text = json_dumps(root, JSON_INDENT(1));
    puts(text ? text : "{}");
    free(text);
    json_decref(root);
}

static int run(int argc, char **argv)
{
    options o = {.task_index = -1, .ps = 1, .timeout = 3};
    check c = {.o = &o, .own_task = -1};
    int code = CLI_USAGE;
    trn_err err = cli_parse(&o, flags, argc, argv, NULL);
    trn_log_set_level(TRN_LOG_OFF);
    if (!err)
        err = read_all(&c);
    if (!err) {
        check_spec(&c);
        if (!o.offline) {
            check_own_port(&c);
            check_answers(&c);
        }
        if (o.json)
            print_json(&c);
        else
            print_table(&c);
        code = c.n_problems ? CLI_FAILED : CLI_OK;
    }
    for (int i = 0; i < c.n; i++) {
        free(c.e[i].job);
        free(c.e[i].address);
        free(c.e[i].host);
        free(c.e[i].state);
        free(c.e[i].problem);
        free(c.e[i].version);
    }
    free(c.e);
    for (int i = 0; i < c.n_problems; i++)
        free(c.problems[i]);
    free(c.problems);
    free(c.own_job);
    free(o.jobs.v);
    return err ? cli_fail(err, code) : code;
}

const cli_command cli_check = {
    .name = "check",
    .usage = "[--ps_hosts=… --worker_hosts=… | --cluster_spec=JSON|@FILE | --slurm]",
    .summary = "Says what is wrong with a cluster spec or TF_CONFIG, and who answers at its addresses.",
    .details = "Without flags it looks at the variable TF_CONFIG, or at Slurm's inside a job step. Prints the cluster as a table, then one line\n"
               "per fault: bad and doubled addresses, a missing chief, an index out of range, a port that another process has, hosts that are\n"
               "unknown or unreachable, addresses where another cluster's task or a web server answers, clocks that differ, mixed versions.\n"
               "\n"
               "  TF_CONFIG='…' trainera check                    trainera check --cluster_spec=@tf_config.json --json\n"
               "  trainera check --ps_hosts=a:2222 --worker_hosts=b:2222 --up        all of them must be running\n"
               "\n"
               "Exit code: 0 nothing is wrong, 1 something is, 2 wrong flags or nothing to check.\n",
    .flags = flags,
    .run = run,
};
