/* The front and the keeper (launch.h says who they are): starting, watching, restarting, ending. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cluster/meet.h"

#define SECOND UINT64_C(1000000000)
enum { BACKOFF_MAX_S = 30, STEADY_S = 60, STAND_IN_TRIES = 40, FROM_TERMINAL = 1 };

/* ---- sweeping ---------------------------------------------------------------------------------------------------- */

typedef struct proc {
    pid_t pid, parent;
    bool mine;
} proc;

static int read_stat(const char *name, proc *out)
{
    char path[64], buf[512];
    snprintf(path, sizeof path, "/proc/%.16s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, sizeof buf - 1);
    close(fd);
    if (n <= 0)
        return -1;
    buf[n] = 0;
    char *p = strrchr(buf, ')'), state; /* the name may hold anything */
    int parent;
    if (!p || sscanf(p + 1, " %c %d", &state, &parent) != 2 || state == 'Z')
        return -1;
    *out = (proc){.pid = atoi(name), .parent = parent};
    return 0;
}

/* SIGKILL to every descendant; how many there were. */
static int kill_descendants(void)
{
    DIR *d = opendir("/proc");
    if (!d)
        return 0;
    proc *v = NULL;
    int n = 0, cap = 0;
    for (struct dirent *e; (e = readdir(d));) {
        proc p;
        if (isdigit((unsigned char)e->d_name[0]) && read_stat(e->d_name, &p) == 0)
            TRN_PUSH(v, n, cap, p);
    }
    closedir(d);
    pid_t self = getpid();
    int killed = 0;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++) {
            if (v[i].mine || v[i].pid == self)
                continue;
            bool mine = v[i].parent == self;
            for (int k = 0; !mine && k < n; k++)
                mine = v[k].mine && v[k].pid == v[i].parent;
            if (mine) {
                v[i].mine = more = true;
                kill(v[i].pid, SIGKILL);
                killed++;
            }
        }
    }
    free(v);
    return killed;
}

void launch_sweep(void)
{
    for (int i = 0; i < 200; i++) {
        int killed = kill_descendants();
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (killed == 0)
            return;
        poll(NULL, 0, i < 20 ? 5 : 50); /* the killed ones' children become ours */
    }
}

/* Of a task that has ended: what it left behind outside its process group is known by the variable that it inherited. */
static void kill_leftovers(const launch_job *j, const launch_task *t)
{
    char mark[160], path[64];
    int mn = snprintf(mark, sizeof mark, "TRAINERA_LAUNCH=%s:%s", j->nonce, t->name);
    char children[64];
    snprintf(children, sizeof children, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(children, "re");
    if (!f)
        return; /* at the end everything is swept anyway */
    for (int pid; fscanf(f, "%d", &pid) == 1;) {
        bool task = false;
        for (int i = 0; i < j->n; i++)
            task |= j->tasks[i].pid == pid;
        if (task)
            continue;
        snprintf(path, sizeof path, "/proc/%d/environ", pid);
        trn_sb env = {0};
        trn_err err = cli_read_file(&env, path, 1 << 20);
        if (!err && env.p && memmem(env.p, env.n, mark, (size_t)mn + 1))
            kill(pid, SIGKILL);
        trn_err_free(err);
        trn_sb_fini(&env);
    }
    fclose(f);
}

/* ---- the keeper -------------------------------------------------------------------------------------------------- */

typedef enum phase {
    RUN,
    END_PROGRAMS, /* SIGTERM was sent to them */
    END_SERVERS,
    OVER,
} phase;

typedef struct keeper {
    launch_job *j;
    int signals, front; /* signalfd; the pipe from the front */
    sigset_t mask;      /* of the tasks */
    phase phase;
    int code;           /* of the job: first failure's, or 0 */
    bool failed;
    uint64_t deadline;  /* of the phase */
    uint64_t grace;     /* for all phases of ending together */
    int n_signals;
    bool abandoned;     /* the front is gone */
    bool stays;         /* our own program is done, the job is not */
    bool typed;         /* Ctrl-C: the task that has the terminal has had it, too */
} keeper;

static int alive(const keeper *k, bool servers)
{
    int n = 0;
    for (int i = 0; i < k->j->n; i++) {
        const launch_task *t = &k->j->tasks[i];
        n += t->mine && t->server == servers && t->state != LAUNCH_ENDED;
    }
    return n;
}

static bool any_program(const keeper *k)
{
    for (int i = 0; i < k->j->n; i++)
        if (k->j->tasks[i].mine && !k->j->tasks[i].server)
            return true;
    return false;
}

/* A task is a process group of its own, but for the one that has the terminal: it is in the foreground group with the front, where it can read, and where
 * Ctrl-C reaches it. What that one leaves behind is found by kill_leftovers. */
static void signal_task(const launch_task *t, int sig)
{
    kill(t->terminal ? t->pid : -t->pid, sig);
}

static void signal_tasks(keeper *k, bool servers, int sig)
{
    for (int i = 0; i < k->j->n; i++) {
        launch_task *t = &k->j->tasks[i];
        if (!t->mine || t->server != servers)
            continue;
        if (t->state == LAUNCH_WAITING)
            t->state = LAUNCH_ENDED;
        if (t->state != LAUNCH_RUNNING)
            continue;
        t->told = true;
        if (!(t->terminal && k->typed && sig == SIGTERM)) /* it saves what it has, perhaps; until the SIGKILL it may */
            signal_task(t, sig);
    }
}

/* Programs first, so that they can still save through their ps. */
static void end_programs(keeper *k)
{
    if (k->phase >= END_PROGRAMS)
        return;
    k->phase = END_PROGRAMS;
    k->deadline = trn_now_ns() + k->grace * 3 / 5;
    signal_tasks(k, false, SIGTERM);
}

static void end_servers(keeper *k)
{
    if (k->phase >= END_SERVERS)
        return;
    signal_tasks(k, false, SIGKILL);
    k->phase = END_SERVERS;
    k->deadline = trn_now_ns() + TRN_MAX(k->grace * 2 / 5, SECOND / 2);
    signal_tasks(k, true, SIGTERM);
}

static void fail(keeper *k, int code)
{
    if (!k->failed) {
        k->failed = true;
        k->code = code;
    }
}

static void describe(char *buf, size_t n, int status)
{
    if (WIFSIGNALED(status))
        snprintf(buf, n, "was ended by signal %d (%s)", WTERMSIG(status), sigdescr_np(WTERMSIG(status)));
    else
        snprintf(buf, n, "ended with exit code %d", WEXITSTATUS(status));
}

static void restart_later(keeper *k, launch_task *t, const char *how)
{
    /* One that ran well for a while starts again at once, one that keeps failing less and less often. */
    uint64_t now = trn_now_ns();
    bool steady = now - t->started > STEADY_S * SECOND;
    uint64_t wait = t->restarts == 0 || steady ? 0 : TRN_MIN((uint64_t)1 << TRN_MIN(t->restarts - 1, 10), (uint64_t)BACKOFF_MAX_S);
    t->restarts++;
    t->state = LAUNCH_WAITING;
    t->start_at = now + wait * SECOND;
    launch_say(k->j, "%s %s; restart %d of %lld%s%.0llu%s", t->name, how, t->restarts, (long long)k->j->o->max_restarts,
               wait ? " in " : "", (unsigned long long)wait, wait ? " s" : "");
}

/* A session of TensorFlow's waits until every task of its cluster answers, and one that a slower worker opens after a faster one has ended waits for ever
 * (tensorflow#13337). So a small server takes the place of a program that is done, until all are. */
static void stand_in(keeper *k, launch_task *t)
{
    if (!t->member || t->server || k->phase != RUN)
        return;
    bool others = false;
    for (int i = 0; i < k->j->n; i++)
        others |= k->j->tasks[i].mine && k->j->tasks[i].member && !k->j->tasks[i].server && k->j->tasks[i].state != LAUNCH_ENDED;
    if (k->j->alone ? !others : !k->j->report || k->failed || k->j->o->leave_early)
        return;
    if (!k->j->alone) { /* the ps say when the others are done */
        k->stays = true;
        launch_report_stay(k->j);
    }
    TRN_DEBUG("launch", "a server stands in for %s until the others have ended", t->name);
    t->server = true;
    t->terminal = false;
    t->stand_in = 1;
    t->state = LAUNCH_WAITING;
    t->start_at = trn_now_ns();
}

/* It could not have the port, which something of the program may still be letting go of, or was killed: it is a help, not a member whose end matters. */
static void stand_in_ended(keeper *k, launch_task *t)
{
    if (t->told || k->phase != RUN || t->stand_in++ >= STAND_IN_TRIES)
        return;
    t->state = LAUNCH_WAITING;
    t->start_at = trn_now_ns() + SECOND / 4;
}

static void ended(keeper *k, launch_task *t, int status)
{
    launch_job *j = k->j;
    if (!t->terminal)
        kill(-t->pid, SIGKILL); /* the rest of its group */
    launch_log_end(j, t);
    t->pid = 0;
    kill_leftovers(j, t);
    t->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    t->state = LAUNCH_ENDED;
    if (t->stand_in) {
        stand_in_ended(k, t);
        return;
    }
    char how[128];
    describe(how, sizeof how, status);
    if (t->told) {
        if (t->server && t->code != 0 && !k->failed && k->phase == END_SERVERS && k->n_signals == 0 && !k->abandoned) {
            launch_say(j, "%s %s when it was told to end", t->name, how);
            fail(k, t->code);
        }
        return;
    }
    if (t->code == 0) {
        TRN_DEBUG("launch", "%s has ended", t->name);
        if (j->o->end_with_chief && strcmp(t->job, "chief") == 0 && k->phase == RUN) {
            launch_say(j, "chief/0 is done: ending the others");
            end_programs(k);
        }
        stand_in(k, t);
        return;
    }
    launch_log_tail(j, t);
    if (k->phase == RUN && t->restarts < j->o->max_restarts) {
        restart_later(k, t, how);
        return;
    }
    fail(k, t->code);
    bool others = alive(k, false) + alive(k, true) > 0;
    bool go_on = j->o->keep_going && !t->server;
    launch_say(j, "%s %s%s%s", t->name, how, j->o->max_restarts > 0 ? " and has no restarts left" : "",
               k->phase != RUN || !others ? "" : go_on ? "; the others go on (--keep-going)" : "; ending the others");
    if (!go_on && k->phase == RUN)
        end_programs(k);
    stand_in(k, t);
}

static void reap(keeper *k)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < k->j->n; i++)
            if (k->j->tasks[i].pid == pid) {
                ended(k, &k->j->tasks[i], status);
                break;
            }
}

static void on_signal(keeper *k)
{
    struct signalfd_siginfo info;
    while (read(k->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            reap(k);
            continue;
        }
        fail(k, 128 + (int)info.ssi_signo);
        k->typed |= info.ssi_code == SI_QUEUE && info.ssi_int == FROM_TERMINAL;
        if (++k->n_signals == 1) {
            launch_say(k->j, "%s: ending everything", info.ssi_signo == SIGINT ? "Ctrl-C" : sigdescr_np((int)info.ssi_signo));
            end_programs(k);
        } else { /* asked twice: at once */
            k->grace = 0;
            end_servers(k);
            signal_tasks(k, true, SIGKILL);
        }
    }
}

static void on_front_gone(keeper *k)
{
    k->abandoned = true;
    k->front = -1;
    k->grace = SECOND;
    fail(k, 128 + SIGKILL);
    end_programs(k);
}

static void on_report(keeper *k)
{
    char why[512];
    int code = 0;
    switch (launch_report_heard(k->j, &code, why, sizeof why)) {
    case LAUNCH_GO_ON:
        return;
    case LAUNCH_JOB_DONE:
        for (int i = 0; i < k->j->n; i++) /* it has the last checkpoint still to look at, and ends by itself */
            if (k->j->tasks[i].mine && !k->j->tasks[i].member)
                return;
        if (!k->stays)
            launch_say(k->j, "the job is done: %s", why);
        end_programs(k);
        return;
    case LAUNCH_JOB_FAILED:
    case LAUNCH_PS_LOST:
        if (!k->stays) { /* else it is the others' failure, and they tell it */
            if (k->phase == RUN)
                launch_say(k->j, "ending: %s", why);
            fail(k, code);
        }
        end_programs(k);
        return;
    }
}

/* Starts what is due, moves on from phase to phase. Returns ms until there is something to do. */
static int advance(keeper *k)
{
    launch_job *j = k->j;
    uint64_t now = trn_now_ns(), next = now + 3600 * SECOND;
    for (int i = 0; i < j->n && k->phase == RUN; i++) {
        launch_task *t = &j->tasks[i];
        if (!t->mine || t->state != LAUNCH_WAITING)
            continue;
        if (t->start_at > now) {
            next = TRN_MIN(next, t->start_at);
            continue;
        }
        if (t->stand_in && t->listen_fd < 0 && !launch_listen(j, t)) {
            t->state = LAUNCH_ENDED;
            stand_in_ended(k, t);
            next = TRN_MIN(next, t->start_at);
            continue;
        }
        trn_err err = launch_start(j, t, &k->mask);
        if (err && t->stand_in) {
            trn_err_free(err);
            t->state = LAUNCH_ENDED;
        } else if (err) {
            launch_say(j, "%s", trn_err_msg(err));
            trn_err_free(err);
            t->state = LAUNCH_ENDED;
            fail(k, CLI_FAILED);
            end_programs(k);
        }
    }
    if (k->phase == RUN && any_program(k) && alive(k, false) == 0)
        k->phase = END_PROGRAMS, k->deadline = now;
    if (k->phase == RUN && !any_program(k) && alive(k, true) == 0)
        k->phase = OVER;
    if (k->phase == END_PROGRAMS && (alive(k, false) == 0 || now >= k->deadline))
        end_servers(k);
    if (k->phase == END_SERVERS && now >= k->deadline) {
        signal_tasks(k, false, SIGKILL);
        signal_tasks(k, true, SIGKILL);
        k->deadline = now + SECOND;
    }
    if (k->phase == END_SERVERS && alive(k, false) + alive(k, true) == 0)
        k->phase = OVER;
    if (k->phase != RUN)
        next = TRN_MIN(next, k->deadline);
    if (j->meet && !k->abandoned) /* the next life of this task may be on its way */
        next = TRN_MIN(next, trn_meet_tend(j->meet, now));
    return k->phase == OVER ? 0 : next <= now ? 0 : (int)TRN_MIN((next - now) / 1000000 + 1, (uint64_t)3600000);
}

static void turn(keeper *k, int timeout_ms)
{
    launch_job *j = k->j;
    struct pollfd *p = trn_xalloc(sizeof *p * (size_t)(2 * j->n + 4));
    launch_task **who = trn_xalloc(sizeof *who * (size_t)(2 * j->n + 4));
    int n = 0;
    p[n++] = (struct pollfd){.fd = k->signals, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = k->front, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = launch_report_fd(j), .events = POLLIN};
    for (int i = 0; i < j->n; i++)
        for (int s = 0; s < 2; s++)
            if (j->tasks[i].mine && j->tasks[i].out[s].fd >= 0) {
                who[n] = &j->tasks[i];
                p[n++] = (struct pollfd){.fd = j->tasks[i].out[s].fd, .events = POLLIN};
            }
    if (poll(p, (nfds_t)n, timeout_ms) > 0) {
        for (int i = 3; i < n; i++)
            for (int s = 0; p[i].revents && s < 2; s++) {
                launch_stream *st = &who[i]->out[s];
                if (st->fd == p[i].fd && !launch_log_read(j, who[i], st)) {
                    close(st->fd);
                    st->fd = -1;
                }
            }
        if (p[0].revents)
            on_signal(k);
        if (p[1].revents)
            on_front_gone(k);
        if (p[2].revents)
            on_report(k);
    }
    free(p);
    free(who);
}

/* What the ps are told: how our program has ended. Not when the front was killed: whoever did that may start it again, and if nobody does, --peer-timeout
 * ends the job. */
static void last_word(keeper *k)
{
    if (k->j->report && (k->stays || any_program(k)) && !k->abandoned)
        launch_report_end(k->j, k->stays || !k->failed, k->code, k->n_signals ? SECOND : 10 * SECOND);
}

static int keep(launch_job *j, int front, const sigset_t *mask)
{
    keeper k = {.j = j, .front = front, .mask = *mask, .grace = (uint64_t)j->o->grace * SECOND};
    signal(SIGTTOU, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigaddset(&watched, SIGCHLD);
    k.signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    trn_err err = k.signals < 0 ? trn_err_errno(errno, "signalfd") : launch_report_start(j);
    if (err)
        return cli_fail(err, CLI_FAILED);
    for (int ms = advance(&k); k.phase != OVER; ms = advance(&k))
        turn(&k, ms);
    launch_sweep();
    last_word(&k);
    return k.failed ? k.code : CLI_OK;
}

/* ---- the front --------------------------------------------------------------------------------------------------- */

static int wait_for(pid_t keeper_pid, const sigset_t *watched)
{
    for (;;) {
        siginfo_t info;
        int sig = sigwaitinfo(watched, &info);
        if (sig == SIGCHLD) {
            int status;
            for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
                if (pid == keeper_pid)
                    return status;
        } else if (sig > 0 && info.si_code == SI_KERNEL) {
            sigqueue(keeper_pid, sig, (union sigval){.sival_int = FROM_TERMINAL});
        } else if (sig > 0) {
            kill(keeper_pid, sig);
        }
    }
}

int launch_run(launch_job *j)
{
    sigset_t watched, mask;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, &mask);
    sigdelset(&mask, SIGCHLD);
    if (launch_interrupted()) { /* the last moment at which it was only remembered */
        launch_cluster_fini(j);
        return 128 + launch_interrupted();
    }
    int life[2];
    if (pipe2(life, O_CLOEXEC) != 0)
        return cli_fail(trn_err_errno(errno, "cannot make a pipe"), CLI_FAILED);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(stdout);
    j->group = getpgrp();
    pid_t pid = fork();
    if (pid < 0)
        return cli_fail(trn_err_errno(errno, "fork"), CLI_FAILED);
    if (pid == 0) {
        close(life[1]);
        int code = keep(j, life[0], &mask);
        launch_cluster_fini(j);
        fflush(stdout);
        _exit(code);
    }
    close(life[0]);
    /* The ports belong to the keeper now: what we held would outlive its tasks. */
    for (int i = 0; i < j->n; i++) {
        if (j->tasks[i].listen_fd >= 0)
            close(j->tasks[i].listen_fd);
        if (j->tasks[i].hold_fd >= 0)
            close(j->tasks[i].hold_fd);
    }
    int status = wait_for(pid, &watched);
    launch_sweep();
    if (WIFSIGNALED(status)) {
        launch_cluster_fini(j); /* it could not clean up itself */
        launch_say(j, "the keeper of the tasks was ended by signal %d; they are gone too", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}
