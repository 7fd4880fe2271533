/* How a cluster ends: workers that say that they are done, ps that wait for it, servers that wait for a signal.
 *
 * The queues are those of a well-known recipe: "done_queue<task>" on each ps, int32, as many places as there are workers. Programs that follow it put 1
 * there, and count. Ours put -(number + 1): any ps takes it for one more, and a ps of ours knows who it was. So a worker that says it twice, because it was
 * killed and started again, does not end the cluster under another one; and the ps can name those it waits for. */
#include "train/monitor_int.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "master/server.h"

enum { SAY_MS = 30000, LINGER_MS = 2000 };

/* Everybody who trains, in this order: they are numbered by it. */
static const char *const training_jobs[] = {"worker", "chief", "master"};

static int count_trainers(const trn_cluster *c)
{
    int n = 0;
    for (size_t k = 0; k < TRN_COUNTOF(training_jobs); k++) {
        const trn_cluster_job *j = trn_cluster_job_find(c, training_jobs[k]);
        n += j ? j->n_tasks : 0;
    }
    return n;
}

/* -1: none of them. */
static int trainer_number(const trn_cluster *c, const char *job, int task)
{
    int n = 0;
    for (size_t k = 0; k < TRN_COUNTOF(training_jobs); k++) {
        const trn_cluster_job *j = trn_cluster_job_find(c, training_jobs[k]);
        for (int i = 0; j && i < j->n_tasks; i++, n++)
            if (!strcmp(j->name, job) && j->tasks[i].index == task)
                return n;
    }
    return -1;
}

static void trainer_name(char *out, size_t size, const trn_cluster *c, int number)
{
    int n = 0;
    for (size_t k = 0; k < TRN_COUNTOF(training_jobs); k++) {
        const trn_cluster_job *j = trn_cluster_job_find(c, training_jobs[k]);
        if (j && number < n + j->n_tasks) {
            snprintf(out, size, "/job:%s/task:%d", j->name, j->tasks[number - n].index);
            return;
        }
        n += j ? j->n_tasks : 0;
    }
    snprintf(out, size, "worker %d", number);
}

static trn_out done_queue(trn_builder *b, const char *job, int task, int places)
{
    trn_device_scope(b, trn_builder_printf(b, "/job:%s/task:%d", job, task));
    const trn_attr attrs[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32)), trn_at_int("capacity", places),
                              trn_at_str("shared_name", trn_builder_printf(b, "done_queue%d", task))};
    trn_out q = trn_node_add(trn_named(b, "done_queue"), "FIFOQueueV2", NULL, 0, attrs, 3);
    trn_end(b);
    return q;
}

/* ---- the hook ------------------------------------------------------------------------------------------------------- */

typedef struct done_hook {
    trn_hook hook;
    trn_done_opts o;
    char *ps_job;
    const char **puts; /* one target per ps */
    int *tasks;
    int n;
} done_hook;

static trn_err done_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    done_hook *d = (done_hook *)h;
    trn_server *server = trn_monitored__server(m);
    const trn_cluster *c = server ? trn_server_cluster(server) : NULL;
    const trn_cluster_job *ps = c ? trn_cluster_job_find(c, d->ps_job) : NULL;
    int number = d->o.task;
    if (!d->o.n_ps)
        d->o.n_ps = ps ? ps->n_tasks : 0;
    if (!d->o.n_ps)
        return TRN_OK; /* alone: nobody to tell */
    if (!d->o.n_workers) {
        d->o.n_workers = c ? count_trainers(c) : 0;
        number = c ? trainer_number(c, trn_server_job(server), trn_server_task(server)) : -1;
    }
    if (d->o.n_workers <= 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "how many workers there are is neither given nor known from a server's cluster");
    d->puts = trn_xalloc(sizeof *d->puts * (size_t)d->o.n_ps);
    d->tasks = trn_xalloc(sizeof *d->tasks * (size_t)d->o.n_ps);
    trn_name_scope(b, "done");
    for (int i = 0; i < d->o.n_ps; i++) {
        d->tasks[i] = ps && i < ps->n_tasks ? ps->tasks[i].index : i;
        trn_out q = done_queue(b, d->ps_job, d->tasks[i], d->o.n_workers);
        trn_colocate_scope(b, q);
        trn_out in[] = {q, trn_const_i32(b, number < 0 ? 1 : -(number + 1))};
        d->puts[i] = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "say"), "QueueEnqueueV2", in, 2, NULL, 0)));
        trn_end(b);
    }
    trn_end(b);
    d->n = d->o.n_ps;
    return trn_builder_check(b);
}

/* A step for each: a ps that ends at once must not take the message to the others with it. */
static trn_err done_end(trn_hook *h, trn_monitored *m)
{
    done_hook *d = (done_hook *)h;
    trn_err first = TRN_OK;
    for (int i = 0; i < d->n; i++) {
        trn_err err = trn_session_run(trn_monitored_session(m), &(trn_run){.targets = &d->puts[i], .n_targets = 1, .timeout_ms = SAY_MS});
        trn_code code = trn_err_code(err);
        if (code == TRN_UNAVAILABLE || code == TRN_ABORTED) { /* it heard us and ended before it could answer, or is gone */
            TRN_INFO("monitor", "/job:%s/task:%d has ended: %s", d->ps_job, d->tasks[i], trn_err_msg(err));
            trn_err_free(err);
            err = TRN_OK;
        }
        if (err && !first)
            first = trn_err_wrap(err, "telling /job:%s/task:%d that this worker is done", d->ps_job, d->tasks[i]);
        else
            trn_err_free(err);
    }
    return first;
}

static void done_free(trn_hook *h)
{
    done_hook *d = (done_hook *)h;
    free(d->ps_job);
    free(d->puts);
    free(d->tasks);
    free(d);
}

trn_hook *trn_hook_done(const trn_done_opts *o)
{
    static const trn_hook_table table = {"Done", done_begin, NULL, NULL, NULL, done_end, done_free};
    done_hook *d = trn_xalloc(sizeof *d);
    d->hook.table = &table;
    if (o)
        d->o = *o;
    d->ps_job = trn_xstrdup(o && o->ps_job ? o->ps_job : "ps");
    return &d->hook;
}

/* ---- the ps's side -------------------------------------------------------------------------------------------------- */

typedef struct tally {
    const trn_cluster *c;
    bool *said;
    int n, named, others; /* others: who put something else than their number */
} tally;

static void missing_text(trn_sb *out, const tally *t)
{
    if (t->others) {
        trn_sb_addf(out, "%d of %d workers", t->n - t->named - t->others, t->n);
        return;
    }
    int shown = 0;
    for (int i = 0; i < t->n; i++) {
        char name[96];
        if (t->said[i])
            continue;
        if (shown++ == 8) {
            trn_sb_addf(out, " and %d more", t->n - t->named - 8);
            return;
        }
        trainer_name(name, sizeof name, t->c, i);
        trn_sb_addf(out, "%s%s", out->n ? ", " : "", name);
    }
}

static trn_err wait_all(trn_session *s, const char *take, tally *t, double patience_s)
{
    trn_nag nag = {.since_ns = trn_now_ns()};
    while (t->named + t->others < t->n) {
        int64_t ms = trn_nag_next_ms(&nag);
        if (patience_s > 0)
            ms = TRN_MIN(ms, TRN_MAX((int64_t)((patience_s - trn_nag_secs(&nag)) * 1000), 1));
        trn_tensor *v;
        trn_err err = trn_session_run(s, &(trn_run){.fetches = &take, .n_fetches = 1, .out = &v, .timeout_ms = ms});
        if (!err) {
            int64_t who = -(trn_scalar_i64(v) + 1);
            trn_tensor_unref(v);
            if (who >= 0 && who < t->n && t->said[who])
                continue;
            if (who >= 0 && who < t->n) {
                char name[96];
                trainer_name(name, sizeof name, t->c, (int)who);
                t->said[who] = true;
                t->named++;
                TRN_INFO("ps", "%s is done, %d of %d", name, t->named + t->others, t->n);
            } else {
                t->others++;
                TRN_INFO("ps", "a worker is done, %d of %d", t->named + t->others, t->n);
            }
            continue;
        }
        if (trn_err_code(err) != TRN_DEADLINE_EXCEEDED)
            return err;
        trn_err_free(err);
        trn_sb who = {0};
        missing_text(&who, t);
        bool over = patience_s > 0 && trn_nag_secs(&nag) >= patience_s;
        if (over)
            err = trn_errorf(TRN_DEADLINE_EXCEEDED, "after %.0f s not done: %s", patience_s, who.p);
        else if (trn_nag_due(&nag))
            TRN_INFO("ps", "serving for %.0f s; ends when these are done: %s", trn_nag_secs(&nag), who.p);
        else
            err = TRN_OK;
        trn_sb_fini(&who);
        if (over)
            return err;
    }
    return TRN_OK;
}

trn_err trn_ps_wait_done(trn_server *server, const trn_wait_done_opts *o)
{
    const trn_cluster *c = trn_server_cluster(server);
    int n = o && o->n_workers ? o->n_workers : count_trainers(c);
    if (n <= 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "the cluster has no workers to wait for");
    trn_builder *b = trn_builder_new();
    trn_out q = done_queue(b, trn_server_job(server), trn_server_task(server), n);
    trn_attr types = trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32));
    trn_colocate_scope(b, q);
    const char *take = trn_out_name(b, trn_node_add(trn_named(b, "take"), "QueueDequeueV2", &q, 1, &types, 1));
    trn_end(b);
    trn_err err = trn_builder_check(b);
    trn_sb config = {0}; /* this task alone: the others need not be there yet */
    trn_config_filter_task(&config, trn_server_job(server), trn_server_task(server));
    trn_session *s = NULL;
    if (!err)
        err = trn_session_open_on(&s, server, &(trn_session_opts){.config = config.p, .config_len = config.n});
    if (!err)
        err = trn_session_extend_builder(s, b);
    tally t = {.c = c, .n = n, .said = trn_xalloc((size_t)n)};
    if (!err)
        err = wait_all(s, take, &t, o ? o->patience_s : 0);
    trn_err_free(trn_session_close(s));
    if (!err)
        trn_server_linger(server, LINGER_MS);
    free(t.said);
    trn_sb_fini(&config);
    trn_builder_free(b);
    return err;
}

/* ---- until a signal ------------------------------------------------------------------------------------------------- */

static pthread_mutex_t join_mu = PTHREAD_MUTEX_INITIALIZER;
static int join_users;
static int join_fd = -1; /* readable once a signal has come, for everybody who waits */
static struct sigaction join_old[2];
static const int join_signals[2] = {SIGINT, SIGTERM};

static void join_signal(int sig)
{
    int keep = errno;
    uint64_t one = 1;
    ssize_t ignored = write(join_fd, &one, sizeof one);
    (void)ignored;
    errno = keep;
}

static trn_err join_begin(void)
{
    trn_err err = TRN_OK;
    pthread_mutex_lock(&join_mu);
    if (join_users == 0) {
        join_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (join_fd < 0)
            err = trn_err_errno(errno, "eventfd");
        struct sigaction on = {.sa_handler = join_signal, .sa_flags = SA_RESTART};
        for (int i = 0; !err && i < 2; i++)
            sigaction(join_signals[i], &on, &join_old[i]);
    }
    if (!err)
        join_users++;
    pthread_mutex_unlock(&join_mu);
    return err;
}

static void join_end(void)
{
    pthread_mutex_lock(&join_mu);
    if (--join_users == 0) {
        for (int i = 0; i < 2; i++)
            sigaction(join_signals[i], &join_old[i], NULL);
        close(join_fd);
        join_fd = -1;
    }
    pthread_mutex_unlock(&join_mu);
}

trn_err trn_server_join(trn_server *server)
{
    TRN_TRY(join_begin());
    TRN_INFO("server", "serving on %s until SIGTERM or SIGINT", trn_server_target(server));
    struct pollfd p = {.fd = join_fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    join_end();
    return TRN_OK;
}
