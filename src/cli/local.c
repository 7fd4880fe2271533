/* trainera local: a whole cluster on this machine, one process per task.
 *
 * Ports are free and known to everybody without a race: this process binds them all first and hands each child its listening socket.
 * Nothing outlives it: children get SIGKILL from the kernel when it dies, SIGTERM when it is told to end.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

enum { MAX_TASKS = 512, READY_S = 60, END_S = 8 };

typedef struct options {
    int64_t ps, workers, chief;
    const char *ready_file, *log_level;
    int64_t intra, inter;
    cli_list allow_paths;
} options;

#define ROW(field) offsetof(options, field)
static const cli_flag flags[] = {
    {"ps", "N", "How many ps tasks; 1 when left out.", CLI_INT, ROW(ps), 0, MAX_TASKS},
    {"workers", "N", "How many worker tasks; 2 when left out.", CLI_INT, ROW(workers), 0, MAX_TASKS},
    {"chief", "N", "1 adds a chief task.", CLI_INT, ROW(chief), 0, 1},
    {"ready-file", "FILE", "Receives a line \"JOB TASK TARGET\" per task once all of them serve.", CLI_TEXT,
     ROW(ready_file)},
    {"log-level", "LEVEL", "Of the tasks: debug, info, warn, error or off; warn when left out.", CLI_TEXT,
     ROW(log_level)},
    {"intra_op_parallelism_threads", "N", "For every task, see trainera help serve.", CLI_INT, ROW(intra), 0, 4096},
    {"inter_op_parallelism_threads", "N", "For every task, see trainera help serve.", CLI_INT, ROW(inter), 0, 4096},
    {"allow-path", "DIR", "For every task, see trainera help serve.", CLI_LIST, ROW(allow_paths)},
    {0},
};

typedef struct member {
    const char *job;
    int index;
    int port;
    int listen_fd; /* -1 once the child has it */
    int ready_fd;  /* our end of the pipe */
    pid_t pid;     /* 0: not running */
    bool ready;
} member;

typedef struct cluster {
    member *m;
    int n, cap;
    char *spec;  /* JSON */
    int signals; /* signalfd: SIGINT, SIGTERM, SIGCHLD */
} cluster;

/* ---- before the children --------------------------------------------------------------------------------------- */

static trn_err bind_one(member *m)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return trn_err_errno(errno, "cannot make a socket for /job:%s/task:%d", m->job, m->index);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        trn_err err = trn_err_errno(errno, "cannot listen for /job:%s/task:%d", m->job, m->index);
        close(fd);
        return err;
    }
    m->listen_fd = fd;
    m->port = ntohs(a.sin_port);
    return TRN_OK;
}

static trn_err add_job(cluster *c, trn_sb *spec, const char *job, int64_t n)
{
    for (int i = 0; i < n; i++) {
        member m = {.job = job, .index = i, .listen_fd = -1, .ready_fd = -1};
        TRN_TRY(bind_one(&m));
        TRN_PUSH(c->m, c->n, c->cap, m);
        if (i == 0)
            trn_sb_addf(spec, "%s\"%s\": [", spec->n > 1 ? ", " : "", job);
        trn_sb_addf(spec, "%s\"127.0.0.1:%d\"", i ? ", " : "", m.port);
    }
    if (n > 0)
        trn_sb_adds(spec, "]");
    return TRN_OK;
}

static trn_err plan(cluster *c, const options *o)
{
    if (o->ps + o->workers + o->chief == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a cluster of no tasks: --ps, --workers and --chief are all 0");
    trn_sb spec = {0};
    trn_sb_adds(&spec, "{");
    trn_err err = add_job(c, &spec, "chief", o->chief);
    if (!err)
        err = add_job(c, &spec, "ps", o->ps);
    if (!err)
        err = add_job(c, &spec, "worker", o->workers);
    trn_sb_adds(&spec, "}");
    c->spec = spec.p;
    return err;
}

/* ---- children -------------------------------------------------------------------------------------------------- */

/* In the child, between fork and exec: nothing here allocates. */
static _Noreturn void become(char **argv, const member *m, int ready_fd, pid_t parent, const sigset_t *mask)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_FAILED); /* it died before we asked to be told */
    setpgid(0, 0);         /* Ctrl-C reaches the parent only, which then ends us in order */
    sigprocmask(SIG_SETMASK, mask, NULL);
    fcntl(m->listen_fd, F_SETFD, 0);
    fcntl(ready_fd, F_SETFD, 0);
    execv("/proc/self/exe", argv);
    _exit(CLI_FAILED);
}

static char **child_args(const cluster *c, const member *m, const options *o, int ready_fd)
{
    char **v = NULL;
    int n = 0, cap = 0;
    TRN_PUSH(v, n, cap, trn_xstrdup("trainera"));
    TRN_PUSH(v, n, cap, trn_xstrdup("serve"));
    TRN_PUSH(v, n, cap, trn_xasprintf("--cluster_spec=%s", c->spec));
    TRN_PUSH(v, n, cap, trn_xasprintf("--job_name=%s", m->job));
    TRN_PUSH(v, n, cap, trn_xasprintf("--task_index=%d", m->index));
    TRN_PUSH(v, n, cap, trn_xasprintf("--listen-fd=%d", m->listen_fd));
    TRN_PUSH(v, n, cap, trn_xasprintf("--ready-fd=%d", ready_fd));
    TRN_PUSH(v, n, cap, trn_xasprintf("--log-level=%s", o->log_level ? o->log_level : "warn"));
    if (o->intra >= 0)
        TRN_PUSH(v, n, cap, trn_xasprintf("--intra_op_parallelism_threads=%lld", (long long)o->intra));
    if (o->inter >= 0)
        TRN_PUSH(v, n, cap, trn_xasprintf("--inter_op_parallelism_threads=%lld", (long long)o->inter));
    for (int i = 0; i < o->allow_paths.n; i++)
        TRN_PUSH(v, n, cap, trn_xasprintf("--allow-path=%s", o->allow_paths.v[i]));
    TRN_PUSH(v, n, cap, NULL);
    return v;
}

static trn_err start_one(cluster *c, member *m, const options *o, const sigset_t *mask)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return trn_err_errno(errno, "cannot make a pipe");
    char **argv = child_args(c, m, o, pipe_fds[1]);
    pid_t parent = getpid();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        become(argv, m, pipe_fds[1], parent, mask);
    int e = errno;
    for (char **p = argv; *p; p++)
        free(*p);
    free(argv);
    close(pipe_fds[1]);
    if (pid < 0) {
        close(pipe_fds[0]);
        return trn_err_errno(e, "cannot start /job:%s/task:%d", m->job, m->index);
    }
    close(m->listen_fd);
    m->listen_fd = -1;
    m->ready_fd = pipe_fds[0];
    m->pid = pid;
    return TRN_OK;
}

/* ---- watching them --------------------------------------------------------------------------------------------- */

static trn_err how_it_ended(const member *m, int status)
{
    if (WIFSIGNALED(status))
        return trn_errorf(TRN_ABORTED, "/job:%s/task:%d (pid %d) was ended by signal %d (%s)", m->job, m->index,
                          (int)m->pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return trn_errorf(TRN_ABORTED, "/job:%s/task:%d (pid %d) ended by itself with exit code %d", m->job, m->index,
                      (int)m->pid, WEXITSTATUS(status));
}

/* Collects children that ended; the first of them is the error. */
static trn_err reap(cluster *c)
{
    trn_err err = TRN_OK;
    for (int i = 0, status; i < c->n; i++) {
        member *m = &c->m[i];
        if (m->pid == 0 || waitpid(m->pid, &status, WNOHANG) != m->pid)
            continue;
        if (!err)
            err = how_it_ended(m, status);
        m->pid = 0;
    }
    return err;
}

/* Waits until timeout_ms for signals; sets *end for SIGINT and SIGTERM. */
static trn_err take_signals(cluster *c, int timeout_ms, bool *end)
{
    struct pollfd p = {.fd = c->signals, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0)
        return TRN_OK;
    struct signalfd_siginfo info;
    if (read(c->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return TRN_OK;
    if (info.ssi_signo == SIGCHLD)
        return reap(c);
    *end = true;
    return TRN_OK;
}

static trn_err wait_ready(cluster *c, bool *end)
{
    uint64_t deadline = trn_now_ns() + (uint64_t)READY_S * 1000000000;
    for (int i = 0; i < c->n && !*end;) {
        member *m = &c->m[i];
        struct pollfd p[2] = {{.fd = m->ready_fd, .events = POLLIN}, {.fd = c->signals, .events = POLLIN}};
        uint64_t now = trn_now_ns();
        if (now >= deadline)
            return trn_errorf(TRN_DEADLINE_EXCEEDED, "/job:%s/task:%d does not serve after %d s", m->job, m->index,
                              READY_S);
        if (poll(p, 2, (int)((deadline - now) / 1000000) + 1) < 0 && errno != EINTR)
            return trn_err_errno(errno, "poll");
        if (p[1].revents)
            TRN_TRY(take_signals(c, 0, end));
        char line[256];
        if (p[0].revents && read(m->ready_fd, line, sizeof line) > 0) {
            m->ready = true;
            i++;
        } else if (p[0].revents & POLLHUP) { /* ended without a word: its exit code comes with SIGCHLD */
            TRN_TRY(take_signals(c, 1000, end));
        }
    }
    return TRN_OK;
}

static void end_all(cluster *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->m[i].pid > 0)
            kill(c->m[i].pid, SIGTERM);
    uint64_t deadline = trn_now_ns() + (uint64_t)END_S * 1000000000;
    for (;;) {
        trn_err_free(reap(c));
        int left = 0;
        for (int i = 0; i < c->n; i++)
            left += c->m[i].pid > 0;
        if (left == 0)
            return;
        if (trn_now_ns() > deadline)
            break;
        bool again = false;
        trn_err_free(take_signals(c, 100, &again));
        if (again) /* asked twice */
            break;
    }
    for (int i = 0; i < c->n; i++)
        if (c->m[i].pid > 0) {
            kill(c->m[i].pid, SIGKILL);
            waitpid(c->m[i].pid, NULL, 0);
            c->m[i].pid = 0;
        }
}

static trn_err announce(const cluster *c, const options *o)
{
    trn_sb lines = {0};
    for (int i = 0; i < c->n; i++) {
        printf("%-7s %-3d grpc://127.0.0.1:%d\n", c->m[i].job, c->m[i].index, c->m[i].port);
        trn_sb_addf(&lines, "%s %d grpc://127.0.0.1:%d\n", c->m[i].job, c->m[i].index, c->m[i].port);
    }
    printf("cluster spec: %s\n%d tasks serve; Ctrl-C ends them.\n", c->spec, c->n);
    fflush(stdout);
    trn_err err = o->ready_file ? cli_write_file(o->ready_file, lines.p) : TRN_OK;
    trn_sb_fini(&lines);
    return err;
}

static trn_err live(cluster *c, const options *o)
{
    sigset_t watched, mask;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, &mask);
    c->signals = signalfd(-1, &watched, SFD_CLOEXEC);
    if (c->signals < 0)
        return trn_err_errno(errno, "signalfd");

    TRN_TRY(plan(c, o));
    for (int i = 0; i < c->n; i++)
        TRN_TRY(start_one(c, &c->m[i], o, &mask));
    bool end = false;
    TRN_TRY(wait_ready(c, &end));
    if (!end)
        TRN_TRY(announce(c, o));
    while (!end)
        TRN_TRY(take_signals(c, -1, &end));
    return TRN_OK;
}

static int run(int argc, char **argv)
{
    options o = {.ps = 1, .workers = 2, .intra = -1, .inter = -1};
    cluster c = {.signals = -1};
    int code = CLI_USAGE;
    trn_err err = cli_parse(&o, flags, argc, argv, NULL);
    trn_log_level level;
    if (!err && o.log_level)
        err = cli_log_level(&level, o.log_level);
    if (!err) {
        code = CLI_FAILED;
        err = live(&c, &o);
        end_all(&c);
    }
    for (int i = 0; i < c.n; i++) {
        if (c.m[i].listen_fd >= 0)
            close(c.m[i].listen_fd);
        if (c.m[i].ready_fd >= 0)
            close(c.m[i].ready_fd);
    }
    if (c.signals >= 0)
        close(c.signals);
    free(c.m);
    free(c.spec);
    free(o.allow_paths.v);
    return err ? cli_fail(err, code) : CLI_OK;
}

const cli_command cli_local = {
    .name = "local",
    .usage = "--ps 1 --workers 2",
    .summary = "A whole cluster on this machine, on free ports; Ctrl-C ends all of it.",
    .details =
        "Prints a line per task, \"JOB TASK TARGET\", once all of them serve. The tasks listen on 127.0.0.1 only.\n"
        "\n"
        "Exit code: 0 ended by a signal, 1 a task could not start or ended by itself (the others are ended too), 2 "
        "wrong\n"
        "flags. Nothing that it started outlives it, not even kill -9.\n",
    .flags = flags,
    .run = run,
};
