/* Who is in the job, at which addresses, and which of them this launcher starts. Ports are bound here, before anybody is told of them. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cluster/cluster.h"
#include "cluster/iface.h"
#include "cluster/meet.h"
#include "cluster/slurm.h"

static launch_task *add_task(launch_job *j, const char *job, int index)
{
    launch_task t = {.job = job, .index = index, .member = strcmp(job, "evaluator") != 0, .server = strcmp(job, "ps") == 0,
                     .listen_fd = -1, .hold_fd = -1, .log_fd = -1, .out = {{.fd = -1}, {.fd = -1}}};
    snprintf(t.name, sizeof t.name, "%s/%d", job, index);
    TRN_PUSH(j->tasks, j->n, j->cap, t);
    return &j->tasks[j->n - 1];
}

/* ---- ports --------------------------------------------------------------------------------------------------------- */

/* A server's socket listens already: who comes before the server has started waits in the queue, and a restarted one finds its port. */
static trn_err bind_server(launch_task *t, int *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return trn_err_errno(errno, "cannot make a socket for %s", t->name);
    t->listen_fd = fd;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return trn_err_errno(errno, "cannot listen for %s", t->name);
    *port = ntohs(a.sin_port);
    return TRN_OK;
}

static int listen_at(const struct sockaddr *a, socklen_t n)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, no = 0;
    if (fd < 0)
        return -1;
    if (a->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* hold_port's socket has it, too */
    if (bind(fd, a, n) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    close(fd);
    return -1;
}

bool launch_listen(const launch_job *j, launch_task *t)
{
    const char *colon = strrchr(t->address, ':');
    uint16_t port = htons((uint16_t)atoi(colon ? colon + 1 : "0"));
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = port};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(j->alone ? INADDR_LOOPBACK : INADDR_ANY), .sin_port = port};
    if (!j->alone)
        t->listen_fd = listen_at((struct sockaddr *)&a6, sizeof a6);
    if (t->listen_fd < 0)
        t->listen_fd = listen_at((struct sockaddr *)&a4, sizeof a4);
    return t->listen_fd >= 0;
}

/* A program binds its port itself, later. Until then a socket that is bound but does not listen keeps the kernel from giving the port to anybody who
 * asks for a free one, be it another launcher or an outgoing connection. The program can bind it all the same: for both sockets SO_REUSEADDR is set (gRPC
 * does so), and ours does not listen. On all addresses, as TensorFlow's servers bind all. */
static trn_err hold_port(launch_task *t, int *port)
{
    int yes = 1, no = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t n = sizeof a6;
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&a6, sizeof a6) == 0 && getsockname(fd, (struct sockaddr *)&a6, &n) == 0) {
            *port = ntohs(a6.sin6_port);
            t->hold_fd = fd;
            return TRN_OK;
        }
        int e = errno;
        close(fd);
        if (e == EADDRINUSE) {
            trn_sb who = {0};
            bool known = cli_port_owner(&who, *port);
            trn_err err = trn_errorf(TRN_ALREADY_EXISTS, "port %d of %s is taken%s%s", *port, t->name, known ? ": " : "", known ? who.p : "");
            trn_sb_fini(&who);
            return err;
        }
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* a kernel without IPv6 */
    if (fd < 0)
        return trn_err_errno(errno, "cannot make a socket for %s", t->name);
    t->hold_fd = fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    n = sizeof a4;
    if (bind(fd, (struct sockaddr *)&a4, sizeof a4) != 0 || getsockname(fd, (struct sockaddr *)&a4, &n) != 0)
        return trn_err_errno(errno, "cannot reserve port %d for %s", *port, t->name);
    *port = ntohs(a4.sin_port);
    return TRN_OK;
}

/* ---- one machine ----------------------------------------------------------------------------------------------------- */

static trn_err on_this_machine(launch_job *j)
{
    const launch_options *o = j->o;
    const struct {
        const char *job;
        int64_t n;
    } jobs[] = {{"chief", o->chief}, {"ps", o->ps}, {"worker", o->workers < 0 ? 2 : o->workers}, {"evaluator", o->evaluator}};
    j->alone = true;
    for (size_t i = 0; i < TRN_COUNTOF(jobs); i++)
        for (int k = 0; k < jobs[i].n; k++) {
            launch_task *t = add_task(j, jobs[i].job, k);
            t->mine = true;
            int port = 0;
            if (t->member) {
                TRN_TRY(t->server ? bind_server(t, &port) : hold_port(t, &port));
                t->address = trn_xasprintf("127.0.0.1:%d", port);
            }
        }
    if (jobs[2].n + o->chief + o->evaluator == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "nobody would run the program: --workers is 0 and there is neither --chief nor --evaluator");
    return TRN_OK;
}

/* ---- one task of many: who is what ------------------------------------------------------------------------------------- */

static const char *const role_names[] = {"ps", "chief", "worker", "evaluator"};

static const char *role_of_word(const char *p, size_t n)
{
    for (size_t i = 0; i < TRN_COUNTOF(role_names); i++)
        if (strlen(role_names[i]) == n && memcmp(role_names[i], p, n) == 0)
            return role_names[i];
    return NULL;
}

/* --roles ps,worker,…: one word per task. */
static trn_err roles_from_words(const char **roles, int n, const char *text)
{
    int i = 0;
    for (const char *p = text;; i++) {
        size_t len = strcspn(p, ",");
        const char *role = role_of_word(p, len);
        if (!role)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--roles: '%.*s' is not ps, worker, chief or evaluator", (int)len, p);
        if (i < n)
            roles[i] = role;
        if (!p[len])
            break;
        p += len + 1;
    }
    if (i + 1 != n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--roles has %d words for %d tasks: one per task is expected, in the order of the tasks", i + 1, n);
    return TRN_OK;
}

/* The first N tasks are ps, or (node given) the first of every node, then the second of every node, until there are N. */
static trn_err roles_by_count(const char **roles, int n, const launch_options *o, const trn_slurm *s)
{
    int64_t rest = n - o->ps - o->chief - o->evaluator;
    if (rest < 0 || (o->workers >= 0 && rest != o->workers))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%d tasks cannot be %lld ps%s%s and %lld worker%s", n, (long long)o->ps, o->chief ? ", a chief" : "",
                          o->evaluator ? ", an evaluator" : "", (long long)(o->workers >= 0 ? o->workers : 0), o->workers == 1 ? "" : "s");
    int64_t ps = o->ps;
    if (o->spread_ps) {
        if (!s)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--spread-ps: only Slurm says which task is on which node; use --roles");
        for (int level = 0; ps > 0; level++)
            for (int i = 0; i < n && ps > 0; i++)
                if (s->tasks[i].local == level)
                    roles[i] = "ps", ps--;
    }
    int chief = o->chief, evaluator = o->evaluator;
    for (int i = 0; i < n; i++)
        if (!roles[i] && ps > 0)
            roles[i] = "ps", ps--;
        else if (!roles[i] && chief > 0)
            roles[i] = "chief", chief--;
    for (int i = n - 1; i >= 0; i--)
        if (!roles[i] && evaluator > 0)
            roles[i] = "evaluator", evaluator--;
    for (int i = 0; i < n; i++)
        if (!roles[i])
            roles[i] = "worker";
    return TRN_OK;
}

/* Task i of the list is task i of the scheduler. */
static trn_err add_roles(launch_job *j, int n, int self, const trn_slurm *s)
{
    const launch_options *o = j->o;
    if (self < 0 || self >= n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--index=%d of --tasks=%d: 0 to %d is possible", self, n, n - 1);
    const char **roles = trn_xalloc(sizeof *roles * (size_t)n);
    trn_err err = o->roles ? roles_from_words(roles, n, o->roles) : roles_by_count(roles, n, o, s);
    int counts[TRN_COUNTOF(role_names)] = {0};
    for (int i = 0; !err && i < n; i++)
        for (size_t k = 0; k < TRN_COUNTOF(role_names); k++)
            if (roles[i] == role_names[k])
                add_task(j, roles[i], counts[k]++);
    free(roles);
    TRN_TRY(err);
    if (counts[1] > 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--roles has %d chiefs; one is possible", counts[1]);
    if (counts[0] == n)
        return trn_errorf(TRN_INVALID_ARGUMENT, "all %d tasks are ps: nobody would run the program", n);
    j->tasks[self].mine = true;
    return TRN_OK;
}

/* ---- Slurm --------------------------------------------------------------------------------------------------------------- */

static const char *from_env(const char *name) { return getenv(name); }

static trn_err meet(launch_job *j, int n, int self);

static trn_err in_slurm(launch_job *j)
{
    trn_slurm s;
    TRN_TRY(trn_slurm_read(&s, from_env, (int)j->o->port_base));
    j->id = trn_xstrdup(j->o->job_id ? j->o->job_id : s.id);
    trn_err err = add_roles(j, s.n_tasks, s.self, &s);
    if (!err && j->o->rendezvous) {
        err = meet(j, s.n_tasks, s.self);
    } else if (!err) {
        for (int i = 0; i < s.n_tasks; i++)
            j->tasks[i].address = trn_address_join(s.tasks[i].host, s.tasks[i].port);
        int port = s.tasks[s.self].port;
        if (j->tasks[s.self].member)
            err = hold_port(&j->tasks[s.self], &port);
    }
    trn_slurm_fini(&s);
    return err;
}

/* ---- a meeting place ----------------------------------------------------------------------------------------------------- */

static bool stop_meeting(void *arg) { return launch_interrupted(); }
static void say_meeting(void *arg, const char *line) { launch_say(arg, "%s", line); }

/* The port of an earlier life of this task. Its server, if it is one, may need a moment to be gone. */
static bool hold_again(launch_task *me, int port)
{
    int old = me->hold_fd;
    for (int i = 0; i < 25 && !launch_interrupted(); i++) {
        trn_err err = hold_port(me, &port);
        if (!err) {
            if (old >= 0)
                close(old);
            return true;
        }
        bool taken = trn_err_code(err) == TRN_ALREADY_EXISTS;
        trn_err_free(err);
        me->hold_fd = old;
        if (!taken)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    return false;
}

static bool move_to(void *arg, int port)
{
    launch_job *j = arg;
    for (int i = 0; i < j->n; i++)
        if (j->tasks[i].mine)
            return j->o->port_base <= 0 && hold_again(&j->tasks[i], port);
    return false;
}

static trn_err meet(launch_job *j, int n, int self)
{
    const launch_options *o = j->o;
    launch_task *me = &j->tasks[self];
    char *host = NULL;
    if (o->host)
        host = trn_xstrdup(o->host);
    else
        TRN_TRY(trn_iface_address(&host, o->interface));
    /* The port of an earlier life is tried first: the others may still know us by it. */
    int port = o->port_base > 0 ? (int)o->port_base + self : trn_meet_old_port(o->rendezvous, o->job_id, self, host);
    trn_err err = TRN_OK;
    if (o->port_base > 0 || port == 0 || !hold_again(me, port)) {
        port = o->port_base > 0 ? port : 0;
        err = hold_port(me, &port);
    }
    char *address = trn_address_join(host, port);
    free(host);
    if (!err)
        err = trn_meet_open(&j->meet, &(trn_meet_opts){.where = o->rendezvous, .job_id = o->job_id, .n_tasks = n, .index = self, .role = me->name, .address = address,
                                                       .timeout_ns = (uint64_t)o->wait_timeout * 1000000000, .say = say_meeting, .stop = stop_meeting, .move = move_to, .arg = j});
    free(address);
    TRN_TRY(err);
    for (int i = 0; i < n; i++)
        j->tasks[i].address = trn_xstrdup(trn_meet_address(j->meet, i));
    return TRN_OK;
}

static trn_err by_meeting(launch_job *j)
{
    const launch_options *o = j->o;
    if (o->tasks < 1 || o->index < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "--rendezvous needs --tasks and --index: how many launchers are there, and which is this one?");
    j->id = trn_xstrdup(o->job_id ? o->job_id : "job");
    TRN_TRY(add_roles(j, (int)o->tasks, (int)o->index, NULL));
    return meet(j, (int)o->tasks, (int)o->index);
}

/* ---- addresses that are known --------------------------------------------------------------------------------------------- */

static trn_err read_spec(trn_cluster **out, const char *spec)
{
    if (strcmp(spec, "TF_CONFIG") == 0) {
        const char *text = getenv("TF_CONFIG");
        if (!text)
            return trn_errorf(TRN_INVALID_ARGUMENT, "--cluster_spec=TF_CONFIG: the variable is not set");
        return trn_cluster_from_tf_config(out, text, strlen(text));
    }
    if (*spec != '@')
        return trn_cluster_from_json(out, spec, strlen(spec));
    trn_sb text = {0};
    trn_err err = cli_read_file(&text, spec + 1, 16 << 20);
    if (!err)
        err = trn_cluster_from_json(out, text.p ? text.p : "", text.n);
    trn_sb_fini(&text);
    return err ? trn_err_wrap(err, "%s", spec + 1) : TRN_OK;
}

static trn_err by_spec(launch_job *j)
{
    const launch_options *o = j->o;
    trn_cluster *c;
    TRN_TRY(read_spec(&c, o->cluster_spec));
    const char *job = o->job_name ? o->job_name : c->own_job;
    int64_t index = o->task_index >= 0 ? o->task_index : o->job_name || !c->own_job ? 0 : c->own_task;
    launch_task *me = NULL;
    int mine = -1;
    for (int i = 0; i < c->n_jobs; i++)
        for (int k = 0; k < c->jobs[i].n_tasks; k++) {
            const trn_cluster_task *t = &c->jobs[i].tasks[k];
            launch_task *n = add_task(j, trn_xstrdup(c->jobs[i].name), t->index);
            n->address = trn_xstrdup(t->address);
            n->mine = job && strcmp(job, n->job) == 0 && t->index == index;
            if (n->mine)
                mine = j->n - 1;
        }
    if (job && strcmp(job, "evaluator") == 0 && mine < 0) {
        add_task(j, "evaluator", (int)index)->mine = true;
        mine = j->n - 1;
    }
    trn_err err = TRN_OK;
    if (!job)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "--cluster_spec needs --job_name and --task_index: which of the tasks is this?");
    else if (mine < 0)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "/job:%s/task:%lld is not in the cluster spec", job, (long long)index);
    if (!err) {
        me = &j->tasks[mine];
        const trn_cluster_task *t = me->member ? trn_cluster_task_find(c, me->job, me->index) : NULL;
        int port = t ? t->port : 0;
        if (t && port == 0)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "%s: %s names no port for the others to find it at; use --rendezvous", me->name, me->address);
        else if (t)
            err = hold_port(me, &port);
    }
    j->id = trn_xstrdup(o->job_id ? o->job_id : "job");
    trn_cluster_unref(c);
    return err;
}

/* ---- all ------------------------------------------------------------------------------------------------------------- */

/* A worker that knows only itself and the ps keeps its own index. */
static bool has_gaps(const launch_job *j, const char *job)
{
    int next = 0;
    for (int k = 0; k < j->n; k++)
        if (strcmp(j->tasks[k].job, job) == 0 && j->tasks[k].index != next++)
            return true;
    return false;
}

static char *spec_of(const launch_job *j)
{
    static const char *const jobs[] = {"chief", "ps", "worker"};
    trn_sb s = {0};
    trn_sb_adds(&s, "{");
    for (size_t i = 0; i < TRN_COUNTOF(jobs); i++) {
        int n = 0;
        bool gaps = has_gaps(j, jobs[i]);
        for (int k = 0; k < j->n; k++)
            if (j->tasks[k].member && strcmp(j->tasks[k].job, jobs[i]) == 0) {
                if (n == 0)
                    trn_sb_addf(&s, "%s\"%s\": %c", s.n > 1 ? ", " : "", jobs[i], gaps ? '{' : '[');
                trn_sb_adds(&s, n++ ? ", " : "");
                if (gaps)
                    trn_sb_addf(&s, "\"%d\": ", j->tasks[k].index);
                trn_sb_addf(&s, "\"%s\"", j->tasks[k].address);
            }
        if (n)
            trn_sb_adds(&s, gaps ? "}" : "]");
    }
    trn_sb_adds(&s, "}");
    return s.p;
}

trn_err launch_find_cluster(launch_job *j)
{
    snprintf(j->nonce, sizeof j->nonce, "%016llx", (unsigned long long)trn_random64());
    const launch_options *o = j->o;
    bool slurm = o->slurm > 0 || (o->slurm < 0 && o->tasks < 0 && !o->cluster_spec && trn_slurm_is_step(from_env));
    TRN_TRY(slurm ? in_slurm(j) : o->rendezvous ? by_meeting(j) : o->cluster_spec ? by_spec(j) : on_this_machine(j));
    j->spec = spec_of(j);
    if (!j->id)
        j->id = trn_xstrdup(j->nonce);
    return TRN_OK;
}

void launch_cluster_fini(launch_job *j)
{
    trn_meet_close(j->meet);
    j->meet = NULL;
    if (j->py_dir)
        launch_py_remove(j->py_dir);
}
