/* One task: its command line, its environment, its process. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/launch.h"

/* "h:p,h:p" of a job, in order of the tasks. */
static void hosts_of(trn_sb *out, const launch_job *j, const char *job)
{
    bool first = true;
    for (int i = 0; i < j->n; i++)
        if (j->tasks[i].member && strcmp(j->tasks[i].job, job) == 0) {
            trn_sb_addf(out, "%s%s", first ? "" : ",", j->tasks[i].address);
            first = false;
        }
}

static int count_of(const launch_job *j, const char *job)
{
    int n = 0;
    for (int i = 0; i < j->n; i++)
        n += strcmp(j->tasks[i].job, job) == 0;
    return n;
}

/* False: no name that we fill in; braces of a program's own arguments stay as they are. */
static bool fill_name(trn_sb *out, const launch_job *j, const launch_task *t, const char *name, size_t n)
{
#define IS(word) (n == sizeof(word) - 1 && memcmp(name, word, n) == 0)
    if (IS("ps_hosts"))
        hosts_of(out, j, "ps");
    else if (IS("worker_hosts"))
        hosts_of(out, j, "worker");
    else if (IS("chief_hosts"))
        hosts_of(out, j, "chief");
    else if (IS("job_name"))
        trn_sb_adds(out, t->job);
    else if (IS("task_index"))
        trn_sb_addf(out, "%d", t->index);
    else if (IS("num_ps"))
        trn_sb_addf(out, "%d", count_of(j, "ps"));
    else if (IS("num_workers"))
        trn_sb_addf(out, "%d", count_of(j, "worker"));
    else if (IS("cluster_spec"))
        trn_sb_adds(out, j->spec);
    else if (IS("address"))
        trn_sb_adds(out, t->address ? t->address : "");
    else
        return false;
#undef IS
    return true;
}

char *launch_fill(const launch_job *j, const launch_task *t, const char *word)
{
    trn_sb out = {0};
    trn_sb_adds(&out, "");
    for (const char *p = word; *p;) {
        size_t plain = strcspn(p, "{");
        trn_sb_add(&out, p, plain);
        p += plain;
        if (!*p)
            break;
        const char *end = strchr(p, '}');
        if (end && fill_name(&out, j, t, p + 1, (size_t)(end - p - 1))) {
            p = end + 1;
        } else {
            trn_sb_add(&out, p, 1);
            p++;
        }
    }
    return out.p;
}

/* ---- environment ------------------------------------------------------------------------------------------------- */

typedef struct words {
    char **v;
    int n, cap;
} words;

static void add(words *w, char *s) { TRN_PUSH(w->v, w->n, w->cap, s); }

static void set_env(words *env, const char *name, TRN_OWN char *value)
{
    size_t n = strlen(name);
    char *entry = trn_xasprintf("%s=%s", name, value);
    free(value);
    for (int i = 0; i < env->n; i++)
        if (strncmp(env->v[i], name, n) == 0 && env->v[i][n] == '=') {
            free(env->v[i]);
            env->v[i] = entry;
            return;
        }
    add(env, entry);
}

static void unset_env(words *env, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < env->n; i++)
        if (strncmp(env->v[i], name, n) == 0 && env->v[i][n] == '=') {
            free(env->v[i]);
            env->v[i--] = env->v[--env->n];
        }
}

static char *joined(const char *name, const char *first, char sep)
{
    const char *old = getenv(name);
    return old && *old ? trn_xasprintf("%s%c%s", first, sep, old) : trn_xstrdup(first);
}

/* gRPC's C core sends cluster traffic through http_proxy unless it is told every host. It alone reads no_grpc_proxy. */
static char *no_proxy(const launch_job *j)
{
    trn_sb hosts = {0};
    const char *old = getenv("no_grpc_proxy");
    if (!old)
        old = getenv("no_proxy");
    trn_sb_addf(&hosts, "%s%slocalhost,127.0.0.1,::1", old ? old : "", old && *old ? "," : "");
    for (int i = 0; i < j->n; i++) {
        const char *a = j->tasks[i].address, *colon = a ? strrchr(a, ':') : NULL;
        if (!colon)
            continue;
        char *host = *a == '[' ? trn_xstrndup(a + 1, (size_t)(colon - a - 2)) : trn_xstrndup(a, (size_t)(colon - a));
        trn_sb_addf(&hosts, ",%s", host);
        free(host);
    }
    return hosts.p;
}

static words environment(const launch_job *j, const launch_task *t)
{
    words env = {0};
    for (char **e = environ; *e; e++)
        add(&env, trn_xstrdup(*e));
    set_env(&env, "TRAINERA_LAUNCH", trn_xasprintf("%s:%s", j->nonce, t->name));
    unset_env(&env, "TF_CONFIG");
    if (!t->server) {
        trn_sb s = {0};
        set_env(&env, "TF_CONFIG", trn_xasprintf("{\"cluster\": %s, \"task\": {\"type\": \"%s\", \"index\": %d}}", j->spec, t->job, t->index));
        static const char *const lists[][2] = {{"ps", "TRAINERA_PS_HOSTS"}, {"worker", "TRAINERA_WORKER_HOSTS"}, {"chief", "TRAINERA_CHIEF_HOSTS"}};
        for (size_t i = 0; i < TRN_COUNTOF(lists); i++) {
            s = (trn_sb){0};
            trn_sb_adds(&s, "");
            hosts_of(&s, j, lists[i][0]);
            set_env(&env, lists[i][1], s.p);
        }
        set_env(&env, "TRAINERA_JOB_NAME", trn_xstrdup(t->job));
        set_env(&env, "TRAINERA_TASK_INDEX", trn_xasprintf("%d", t->index));
        set_env(&env, "no_grpc_proxy", no_proxy(j));
        if (!getenv("PYTHONUNBUFFERED"))
            set_env(&env, "PYTHONUNBUFFERED", trn_xstrdup("1"));
        if (j->py_dir) {
            char exe[4096];
            ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
            exe[n > 0 ? n : 0] = 0;
            set_env(&env, "TRAINERA_BIN", trn_xstrdup(exe));
            set_env(&env, "TRAINERA_PY_DIR", trn_xstrdup(j->py_dir));
            set_env(&env, "PYTHONPATH", joined("PYTHONPATH", j->py_dir, ':'));
        }
    }
    add(&env, NULL);
    return env;
}

/* ---- command ----------------------------------------------------------------------------------------------------- */

static words server_command(const launch_job *j, const launch_task *t, int lifeline)
{
    const launch_options *o = j->o;
    words w = {0};
    add(&w, trn_xstrdup("trainera"));
    add(&w, trn_xstrdup("serve"));
    add(&w, trn_xasprintf("--cluster_spec=%s", j->spec));
    add(&w, trn_xasprintf("--job_name=%s", t->job));
    add(&w, trn_xasprintf("--task_index=%d", t->index));
    if (t->listen_fd >= 0)
        add(&w, trn_xasprintf("--listen-fd=%d", t->listen_fd));
    add(&w, trn_xasprintf("--lifeline-fd=%d", lifeline));
    add(&w, trn_xasprintf("--log-level=%s", o->log_level ? o->log_level : t->stand_in ? "error" : j->alone ? "warn" : "info"));
    if (o->intra >= 0)
        add(&w, trn_xasprintf("--intra_op_parallelism_threads=%lld", (long long)o->intra));
    if (o->inter >= 0)
        add(&w, trn_xasprintf("--inter_op_parallelism_threads=%lld", (long long)o->inter));
    for (int i = 0; i < o->allow_paths.n; i++)
        add(&w, trn_xasprintf("--allow-path=%s", o->allow_paths.v[i]));
    if (t->stand_in)
        add(&w, trn_xstrdup("--stand-in"));
    if (o->done_queue && !t->stand_in) {
        add(&w, trn_xasprintf("--done-queue=%s", o->done_queue));
        if (o->done_count > 0)
            add(&w, trn_xasprintf("--done-count=%lld", (long long)o->done_count));
    }
    if (!j->alone) {
        trn_sb list = {0};
        trn_sb_adds(&list, "");
        for (int i = 0; i < j->n; i++)
            if (!t->stand_in && !j->tasks[i].server && j->tasks[i].member && (!o->end_with_chief || strcmp(j->tasks[i].job, "chief") == 0))
                trn_sb_addf(&list, "%s%s", list.n ? "," : "", j->tasks[i].name);
        if (!o->done_queue && list.n)
            add(&w, trn_xasprintf("--await-done=%s", list.p));
        add(&w, trn_xasprintf("--job-id=%s", j->id));
        add(&w, trn_xasprintf("--wait-timeout=%lld", (long long)o->wait_timeout));
        add(&w, trn_xasprintf("--peer-timeout=%lld", (long long)o->peer_timeout));
        trn_sb_fini(&list);
    }
    add(&w, NULL);
    return w;
}

static words user_command(const launch_job *j, const launch_task *t)
{
    words w = {0};
    for (char **p = j->command; *p; p++)
        add(&w, launch_fill(j, t, *p));
    add(&w, NULL);
    return w;
}

static void words_fini(words *w)
{
    for (int i = 0; i < w->n; i++)
        free(w->v[i]);
    free(w->v);
}

/* ---- process ----------------------------------------------------------------------------------------------------- */

typedef struct child {
    char **argv, **env;
    const char *file; /* NULL: ourselves */
    int in, out, err;
    int keep[2];      /* descriptors that it inherits; -1 */
    pid_t parent, group; /* group 0: a new one */
    const sigset_t *mask;
} child;

/* Between fork and exec; another thread may hold malloc's locks, so nothing here allocates. */
static _Noreturn void become(const child *c)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent)
        _exit(CLI_FAILED);
    setpgid(0, c->group); /* a new one: Ctrl-C reaches the front only */
    signal(SIGTTOU, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigset_t mask = *c->mask;
    if (!c->file) { /* a task of ours that is told to end before it has got as far as listening for that ends in order, too */
        sigaddset(&mask, SIGTERM);
        sigaddset(&mask, SIGINT);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    dup2(c->in, 0);
    dup2(c->out, 1);
    dup2(c->err, 2);
    for (int i = 0; i < 2; i++)
        if (c->keep[i] >= 0)
            fcntl(c->keep[i], F_SETFD, 0);
    if (c->file)
        execvpe(c->file, c->argv, c->env);
    else
        execve("/proc/self/exe", c->argv, c->env);
    int e = errno;
    const char *why = strerrordesc_np(e);
    static const char head[] = "trainera: 5 cannot run ";
    ssize_t ignored = write(2, head, sizeof head - 1);
    ignored += write(2, c->argv[0], strlen(c->argv[0]));
    ignored += write(2, ": ", 2);
    if (why)
        ignored += write(2, why, strlen(why));
    ignored += write(2, "\n", 1);
    _exit(e == ENOENT ? 127 : 126); /* as shells have it */
}

trn_err launch_start(launch_job *j, launch_task *t, const void *signal_mask)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, life[2] = {-1, -1}, null = -1;
    trn_err e = TRN_OK;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(life, O_CLOEXEC) != 0 ||
        (null = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) {
        e = trn_err_errno(errno, "cannot make the pipes of %s", t->name);
    } else {
        if (t->terminal) {
            close(null);
            null = -1;
        }
        words env = environment(j, t);
        words argv = t->server ? server_command(j, t, life[0]) : user_command(j, t);
        child c = {.argv = argv.v, .env = env.v, .file = t->server ? NULL : argv.v[0], .in = t->terminal ? 0 : null, .out = t->terminal ? 1 : out[1],
                   .err = t->terminal ? 2 : err[1], .group = t->terminal ? j->group : 0,
                   .keep = {t->server ? t->listen_fd : -1, t->server ? life[0] : -1}, .parent = getpid(), .mask = signal_mask};
        /* A server takes its signals from a queue: one that comes before it is up must wait there, not end it. */
        sigset_t blocked = *(const sigset_t *)signal_mask;
        sigaddset(&blocked, SIGTERM);
        sigaddset(&blocked, SIGINT);
        if (t->server)
            c.mask = &blocked;
        pid_t pid = fork();
        if (pid == 0)
            become(&c);
        if (pid < 0) {
            e = trn_err_errno(errno, "cannot start %s", t->name);
        } else {
            if (!t->terminal)
                setpgid(pid, pid); /* whoever is first */
            t->pid = pid;
            t->state = LAUNCH_RUNNING;
            t->started = trn_now_ns();
            t->out[0] = (launch_stream){.fd = out[0], .to = 1};
            t->out[1] = (launch_stream){.fd = err[0], .to = 2};
            fcntl(out[0], F_SETFL, O_NONBLOCK);
            fcntl(err[0], F_SETFL, O_NONBLOCK);
            out[0] = err[0] = -1;
        }
        words_fini(&argv);
        words_fini(&env);
    }
    /* The write end of the lifeline stays open in the keeper for as long as it lives; it is never written to. */
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    if (life[0] >= 0)
        close(life[0]);
    if (life[1] >= 0 && (e || !t->server))
        close(life[1]);
    if (null >= 0)
        close(null);
    return e;
}
