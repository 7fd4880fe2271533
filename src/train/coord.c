/* The coordinator: a bounded queue of steps, and threads that each stand for one place on one worker.
 *
 *     schedule → queue → runner of a free worker: session_run ─┬─ done: the future has its results
 *                 ▲                                            ├─ the worker is lost: the step goes back to the head of the queue,
 *                 └────────────────────────────────────────────┘  the runner opens a new session when the worker answers again
 *                                                              ├─ a ps is lost: the job has failed, all futures get that error
 *                                                              └─ the step's own error: kept for join, what is queued is cancelled
 *
 * Whose fault a lost step is: every ps is asked directly. One that does not answer, or answers with another incarnation than the one that the variables
 * were initialised on, has lost its state; if all are there it was the worker.
 *
 * Locks: coord.mu guards everything below it; futures have their own, taken inside it, because they outlive the coordinator. */
#include <trainera/coord.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "session/session.h"
#include "train/monitor_int.h"

#define SECOND UINT64_C(1000000000)
enum { OPEN_MS = 1000, PROBE_MS = 1500, RETRY_FIRST_MS = 100, RETRY_MAX_MS = 2000 };

struct trn_future {
    _Atomic int ref;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool done;
    trn_err err;
    trn_tensor **out;
    int n;
};

typedef struct job {
    struct job *next;
    trn_arena *arena; /* holds the names */
    trn_run run;      /* feeds are referenced */
    trn_future *future;
} job;

typedef enum init_state { INIT_TODO, INIT_RUNS, INIT_DONE } init_state;

typedef struct worker {
    trn_coord *c;
    int number;
    char *target, *name; /* name: "/job:worker/task:1" or the target */
    trn_sb config;
    trn_session *session; /* NULL: none yet, or lost */
    bool opening, lost;   /* lost: to be closed by the last user */
    int users;
    int64_t steps;
    int64_t pause_ms;
    trn_err why; /* why there is no session */
} worker;

typedef struct ps_task {
    char *target, *name; /* name: "/job:ps/replica:0/task:0" */
    int index;
    uint64_t incarnation; /* of the first session; 0: not known yet */
} ps_task;

struct trn_coord {
    trn_builder *b;
    pthread_mutex_t mu;
    pthread_cond_t work; /* something for runners: a step, a session, the end */
    pthread_cond_t room; /* something for callers: room, a step that is done, an error */
    job *head, *tail;
    int queued, limit, running;
    worker *workers;
    int n_workers;
    ps_task *ps;
    int n_ps, cap_ps;
    bool ps_known; /* from a cluster: can be asked directly */
    trn_err err;   /* of a step, until the next join or schedule */
    trn_err fatal; /* a ps was lost, or all workers for too long */
    bool closing;
    init_state init;
    trn_err init_err;
    int64_t retries;
    uint64_t wait_ns, down_ns; /* down: since when no worker is there; 0: one is */
    trn_nag nag;
    pthread_t *threads;
    int n_threads;
    pthread_mutex_t probe_mu; /* one probe at a time */

    const char **init_ops, **worker_init_ops;
    int n_init, cap_init, n_worker_init, cap_worker_init;
    trn_err (*init_fn)(void *, trn_session *);
    void *init_arg;
    trn_err (*worker_init_fn)(void *, trn_session *, int);
    void *worker_init_arg;
};

/* ---- futures and jobs ----------------------------------------------------------------------------------------------- */

static void future_unref(trn_future *f)
{
    if (!f || atomic_fetch_sub(&f->ref, 1) != 1)
        return;
    for (int i = 0; i < f->n; i++)
        trn_tensor_unref(f->out[i]);
    free(f->out);
    trn_err_free(f->err);
    pthread_mutex_destroy(&f->mu);
    pthread_cond_destroy(&f->cv);
    free(f);
}

static void future_set(trn_future *f, TRN_OWN trn_err err)
{
    pthread_mutex_lock(&f->mu);
    f->err = err;
    f->done = true;
    pthread_cond_broadcast(&f->cv);
    pthread_mutex_unlock(&f->mu);
}

/* The job is over: its future is told. */
static void job_end(job *j, TRN_OWN trn_err err)
{
    future_set(j->future, err);
    future_unref(j->future);
    for (int i = 0; i < j->run.n_feeds; i++)
        trn_tensor_unref(j->run.feeds[i]);
    trn_arena_free(j->arena);
}

static const char *const *copy_names(trn_arena *a, const char *const *v, int n)
{
    const char **out = trn_arena_alloc(a, sizeof *out * (size_t)(n + 1));
    for (int i = 0; i < n; i++)
        out[i] = trn_arena_strdup(a, v[i]);
    return out;
}

static job *job_new(const trn_run *run)
{
    trn_arena *a = trn_arena_new();
    job *j = trn_arena_alloc(a, sizeof *j);
    j->arena = a;
    j->run = (trn_run){.n_feeds = run->n_feeds, .n_fetches = run->n_fetches, .n_targets = run->n_targets, .timeout_ms = run->timeout_ms};
    j->run.feed_names = copy_names(a, run->feed_names, run->n_feeds);
    j->run.fetches = copy_names(a, run->fetches, run->n_fetches);
    j->run.targets = copy_names(a, run->targets, run->n_targets);
    trn_tensor **feeds = trn_arena_alloc(a, sizeof *feeds * (size_t)(run->n_feeds + 1));
    for (int i = 0; i < run->n_feeds; i++)
        feeds[i] = trn_tensor_ref(run->feeds[i]);
    j->run.feeds = feeds;
    trn_future *f = trn_xalloc(sizeof *f);
    atomic_init(&f->ref, 1);
    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->cv, NULL);
    f->n = run->n_fetches;
    f->out = trn_xalloc(sizeof *f->out * (size_t)(run->n_fetches + 1));
    j->run.out = f->out;
    j->future = f;
    return j;
}

/* ---- the state of it all; mu is held -------------------------------------------------------------------------------- */

static void push_back(trn_coord *c, job *j)
{
    j->next = NULL;
    if (c->tail)
        c->tail->next = j;
    else
        c->head = j;
    c->tail = j;
    c->queued++;
    pthread_cond_broadcast(&c->work);
}

static void push_front(trn_coord *c, job *j)
{
    j->next = c->head;
    c->head = j;
    if (!c->tail)
        c->tail = j;
    c->queued++;
    pthread_cond_broadcast(&c->work);
}

static job *pop(trn_coord *c)
{
    job *j = c->head;
    c->head = j->next;
    if (!c->head)
        c->tail = NULL;
    c->queued--;
    pthread_cond_broadcast(&c->room);
    return j;
}

static void drop_queue(trn_coord *c, trn_code code, const char *why)
{
    while (c->head)
        job_end(pop(c), trn_errorf(code, "%s", why));
}

static void fail_all(trn_coord *c, TRN_OWN trn_err err)
{
    if (c->fatal || c->closing) {
        trn_err_free(err);
    } else {
        c->fatal = err;
        TRN_WARN("coord", "%s", trn_err_msg(err));
    }
    if (c->fatal)
        drop_queue(c, trn_err_code(c->fatal), trn_err_msg(c->fatal));
    pthread_cond_broadcast(&c->room);
    pthread_cond_broadcast(&c->work);
}

static int count_up(const trn_coord *c)
{
    int n = 0;
    for (int i = 0; i < c->n_workers; i++)
        n += c->workers[i].session != NULL && !c->workers[i].lost;
    return n;
}

static void missing_workers(trn_sb *out, const trn_coord *c)
{
    for (int i = 0; i < c->n_workers; i++)
        trn_sb_addf(out, "%s%s (%s)", i ? ", " : "", c->workers[i].name, c->workers[i].why ? trn_err_msg(c->workers[i].why) : "not yet tried");
}

/* A worker went or came; with none left the clock runs. */
static void note_workers(trn_coord *c)
{
    if (count_up(c) > 0) {
        c->down_ns = 0;
        return;
    }
    uint64_t now = trn_now_ns();
    if (!c->down_ns) {
        c->down_ns = now;
        c->nag = (trn_nag){.since_ns = now};
    }
    trn_sb who = {0};
    if (c->wait_ns && now - c->down_ns >= c->wait_ns) {
        missing_workers(&who, c);
        fail_all(c, trn_errorf(TRN_UNAVAILABLE, "no worker has answered for %.0f s: %s", (double)(now - c->down_ns) / 1e9, who.p));
    } else if (trn_nag_due(&c->nag)) {
        missing_workers(&who, c);
        TRN_INFO("coord", "waiting for a worker for %.0f s: %s; %d steps are queued, they go on as soon as one answers", trn_nag_secs(&c->nag), who.p, c->queued);
    }
    trn_sb_fini(&who);
}

static void wait_ms(trn_coord *c, pthread_cond_t *cv, int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= (long)SECOND) {
        t.tv_sec++;
        t.tv_nsec -= (long)SECOND;
    }
    pthread_cond_timedwait(cv, &c->mu, &t);
}

/* ---- is a ps lost? mu is not held ------------------------------------------------------------------------------------ */

static bool is_loss(const trn_error *err)
{
    trn_code code = trn_err_code(err);
    return code == TRN_UNAVAILABLE || code == TRN_ABORTED;
}

static bool is_ps_device(const trn_coord *c, const char *device, ps_task **out)
{
    for (int i = 0; i < c->n_ps; i++) {
        size_t n = strlen(c->ps[i].name);
        if (!strncmp(device, c->ps[i].name, n) && device[n] == '/') {
            *out = &c->ps[i];
            return true;
        }
    }
    return false;
}

/* Compares what a session sees of the ps with what the variables were initialised on. */
static trn_err check_incarnations(trn_coord *c, trn_session *s, bool learn)
{
    trn_device_info *d;
    int n;
    TRN_TRY(trn_session_list_devices(&d, &n, s));
    trn_err err = TRN_OK;
    pthread_mutex_lock(&c->mu);
    for (int i = 0; i < n; i++) {
        ps_task *p;
        if (strcmp(d[i].type, "CPU") || strncmp(d[i].name, "/job:ps/", 8))
            continue;
        if (!is_ps_device(c, d[i].name, &p)) {
            if (!learn)
                continue;
            const char *end = strstr(d[i].name, "/device:");
            ps_task one = {.name = trn_xstrndup(d[i].name, end ? (size_t)(end - d[i].name) : strlen(d[i].name))};
            TRN_PUSH(c->ps, c->n_ps, c->cap_ps, one);
            p = &c->ps[c->n_ps - 1];
        }
        const char *dev0 = strstr(d[i].name, "CPU:0");
        if (!dev0 || dev0[5])
            continue;
        if (learn || !p->incarnation)
            p->incarnation = d[i].incarnation;
        else if (p->incarnation != d[i].incarnation && !err)
            err = trn_errorf(TRN_UNAVAILABLE, "%s has started anew and lost its variables; restore them and open a new coordinator", p->name);
    }
    pthread_mutex_unlock(&c->mu);
    free(d);
    return err;
}

/* NULL: every ps is there, with its state, as far as can be told. */
static trn_err probe_ps(trn_coord *c)
{
    if (!c->ps_known)
        return TRN_OK;
    pthread_mutex_lock(&c->probe_mu);
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < c->n_ps; i++) { /* a list that no longer changes */
        ps_task *p = &c->ps[i];
        trn_sb config = {0};
        trn_config_filter_task(&config, "ps", p->index);
        trn_session *s = NULL;
        err = trn_session_open(&s, p->target, &(trn_session_opts){.config = config.p, .config_len = config.n, .timeout_ms = PROBE_MS});
        trn_sb_fini(&config);
        if (err) {
            trn_err gone = trn_errorf(TRN_UNAVAILABLE, "%s at %s is lost, and its variables with it: %s", p->name, p->target + strlen("grpc://"), trn_err_msg(err));
            trn_err_free(err);
            err = gone;
        } else {
            err = check_incarnations(c, s, false);
        }
        trn_err_free(trn_session_close(s));
    }
    pthread_mutex_unlock(&c->probe_mu);
    return err;
}

/* ---- a worker's session ---------------------------------------------------------------------------------------------- */

static trn_err run_each(trn_session *s, const char *const *targets, int n)
{
    for (int i = 0; i < n; i++)
        TRN_TRY(trn_session_run(s, &(trn_run){.targets = &targets[i], .n_targets = 1}));
    return TRN_OK;
}

/* Once in the life of the coordinator, by whoever is first; the others wait for it. */
static trn_err init_once(trn_coord *c, trn_session *s)
{
    pthread_mutex_lock(&c->mu);
    while (c->init == INIT_RUNS && !c->closing)
        pthread_cond_wait(&c->work, &c->mu);
    bool mine = c->init == INIT_TODO && !c->closing && !c->init_err;
    if (mine)
        c->init = INIT_RUNS;
    bool over = c->closing || c->init_err;
    pthread_mutex_unlock(&c->mu);
    if (over)
        return trn_errorf(TRN_CANCELLED, "the coordinator was closed");
    if (!mine)
        return check_incarnations(c, s, false);
    trn_err err = check_incarnations(c, s, true);
    if (!err)
        err = run_each(s, c->init_ops, c->n_init);
    if (!err && c->init_fn)
        err = c->init_fn(c->init_arg, s);
    pthread_mutex_lock(&c->mu);
    c->init = err ? INIT_TODO : INIT_DONE;
    if (err && !is_loss(err)) /* no other worker would do better */
        c->init_err = trn_err_copy(err);
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->mu);
    return err;
}

static trn_err worker_open(trn_session **out, worker *w)
{
    trn_coord *c = w->c;
    trn_session *s;
    TRN_TRY(trn_session_open(&s, w->target, &(trn_session_opts){.config = w->config.n ? w->config.p : NULL, .config_len = w->config.n, .timeout_ms = OPEN_MS}));
    pthread_mutex_lock(&c->probe_mu); /* a builder belongs to one thread at a time */
    trn_err err = trn_session_extend_builder(s, c->b);
    pthread_mutex_unlock(&c->probe_mu);
    if (!err)
        err = init_once(c, s);
    if (!err)
        err = run_each(s, c->worker_init_ops, c->n_worker_init);
    if (!err && c->worker_init_fn)
        err = c->worker_init_fn(c->worker_init_arg, s, w->number);
    if (err) {
        trn_err_free(trn_session_close(s));
        return err;
    }
    *out = s;
    return TRN_OK;
}

/* mu is held, and let go meanwhile. */
static void worker_try_open(worker *w)
{
    trn_coord *c = w->c;
    w->opening = true;
    bool again = w->why != NULL;
    pthread_mutex_unlock(&c->mu);
    trn_session *s = NULL;
    trn_err err = worker_open(&s, w);
    trn_code code = trn_err_code(err);
    bool patient = is_loss(err) || code == TRN_DEADLINE_EXCEEDED || code == TRN_CANCELLED;
    pthread_mutex_lock(&c->mu);
    bool initialised = c->init == INIT_DONE;
    pthread_mutex_unlock(&c->mu);
    trn_err gone = err && patient && initialised ? probe_ps(c) : TRN_OK;
    pthread_mutex_lock(&c->mu);
    w->opening = false;
    if (!err) {
        w->session = s;
        w->pause_ms = 0;
        if (again)
            TRN_INFO("coord", "%s is there", w->name);
        trn_err_free(w->why);
        w->why = TRN_OK;
        note_workers(c);
        pthread_cond_broadcast(&c->work);
        pthread_cond_broadcast(&c->room);
        return;
    }
    trn_err_free(w->why);
    w->why = err;
    if (gone)
        fail_all(c, gone);
    else if (!patient && initialised) /* its graph or its own initialisation is wrong: it would be so next time */
        fail_all(c, trn_err_wrap(trn_err_copy(err), "preparing %s", w->name));
    note_workers(c);
    if (c->closing || c->fatal)
        return;
    w->pause_ms = w->pause_ms ? TRN_MIN(w->pause_ms * 2, RETRY_MAX_MS) : RETRY_FIRST_MS;
    int64_t until = (int64_t)(trn_now_ns() / 1000000) + w->pause_ms;
    w->opening = true; /* the others of this worker wait with us */
    while (!c->closing && !c->fatal) {
        int64_t left = until - (int64_t)(trn_now_ns() / 1000000);
        if (left <= 0)
            break;
        wait_ms(c, &c->work, left);
    }
    w->opening = false;
}

/* mu is held. The last one who uses a lost session closes it. */
static void worker_leave(worker *w)
{
    trn_coord *c = w->c;
    if (--w->users || !w->lost || c->closing)
        return;
    trn_session *s = w->session;
    w->opening = true; /* nobody opens another one before this is gone */
    pthread_mutex_unlock(&c->mu);
    trn_err_free(trn_session_close(s));
    pthread_mutex_lock(&c->mu);
    w->session = NULL;
    w->lost = w->opening = false;
    note_workers(c);
    pthread_cond_broadcast(&c->work);
}

/* ---- runners --------------------------------------------------------------------------------------------------------- */

/* mu is held, and let go while the step runs. */
static void run_one(worker *w)
{
    trn_coord *c = w->c;
    job *j = pop(c);
    trn_session *s = trn_session_ref(w->session); /* closed under us when the coordinator is */
    c->running++;
    w->users++;
    pthread_mutex_unlock(&c->mu);
    trn_err err = trn_session_run(s, &j->run);
    trn_session_unref(s);
    bool lost = is_loss(err);
    trn_err gone = lost ? probe_ps(c) : TRN_OK;
    pthread_mutex_lock(&c->mu);
    if (!err)
        w->steps++;
    if (gone) {
        fail_all(c, trn_err_copy(gone));
        trn_err_free(err);
        err = gone;
    } else if (lost && !c->closing && !c->fatal) {
        TRN_WARN("coord", "%s is lost; its step runs again on another worker: %s", w->name, trn_err_msg(err));
        w->lost = true;
        trn_err_free(w->why);
        w->why = err;
        c->retries++;
        push_front(c, j);
        j = NULL;
        note_workers(c);
    } else if (err && !c->closing && !c->fatal) {
        if (!c->err)
            c->err = trn_err_copy(err);
        drop_queue(c, TRN_CANCELLED, "a step that was scheduled before has failed");
    }
    if (j)
        job_end(j, err);
    c->running--;
    worker_leave(w);
    pthread_cond_broadcast(&c->room);
}

static void *runner(void *arg)
{
    worker *w = arg;
    trn_coord *c = w->c;
    pthread_mutex_lock(&c->mu);
    while (!c->closing) {
        if (c->fatal || w->opening || w->lost)
            pthread_cond_wait(&c->work, &c->mu);
        else if (!w->session)
            worker_try_open(w);
        else if (!c->head)
            pthread_cond_wait(&c->work, &c->mu);
        else
            run_one(w);
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* ---- the API --------------------------------------------------------------------------------------------------------- */

static trn_err add_workers(trn_coord *c, const trn_coord_opts *o)
{
    const trn_cluster_job *workers = o->cluster ? trn_cluster_job_find(o->cluster, "worker") : NULL;
    const trn_cluster_job *ps = o->cluster ? trn_cluster_job_find(o->cluster, "ps") : NULL;
    if (!workers && o->n_targets <= 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a coordinator needs workers: a cluster with job worker, or their targets");
    c->n_workers = workers ? workers->n_tasks : o->n_targets;
    c->workers = trn_xalloc(sizeof *c->workers * (size_t)c->n_workers);
    for (int i = 0; i < c->n_workers; i++) {
        worker *w = &c->workers[i];
        w->c = c;
        w->number = i;
        w->target = workers ? trn_xasprintf("grpc://%s", workers->tasks[i].address) : trn_xstrdup(o->targets[i]);
        w->name = workers ? trn_xasprintf("/job:worker/task:%d", workers->tasks[i].index) : trn_xstrdup(o->targets[i]);
        if (o->config) {
            trn_sb_add(&w->config, o->config, o->config_len);
        } else if (workers) {
            trn_config_filter(&w->config, "/job:ps");
            trn_config_filter_task(&w->config, "worker", workers->tasks[i].index);
        }
    }
    for (int i = 0; ps && i < ps->n_tasks; i++) {
        ps_task p = {.target = trn_xasprintf("grpc://%s", ps->tasks[i].address), .name = trn_xasprintf("/job:ps/replica:0/task:%d", ps->tasks[i].index),
                     .index = ps->tasks[i].index};
        TRN_PUSH(c->ps, c->n_ps, c->cap_ps, p);
    }
    c->ps_known = ps != NULL;
    return TRN_OK;
}

static void add_ops(const char ***v, int *n, int *cap, trn_builder *b, const trn_out *ops)
{
    for (; ops && trn_out_is(*ops); ops++)
        TRN_PUSH(*v, *n, *cap, trn_out_name(b, trn_out_node(*ops)));
}

static trn_err wait_for_first(trn_coord *c)
{
    uint64_t since = trn_now_ns();
    trn_err err = TRN_OK;
    pthread_mutex_lock(&c->mu);
    while (!err && !count_up(c)) {
        if (c->init_err)
            err = trn_err_copy(c->init_err);
        else if (c->fatal)
            err = trn_err_copy(c->fatal);
        else if (c->wait_ns && trn_now_ns() - since >= c->wait_ns) {
            trn_sb who = {0};
            missing_workers(&who, c);
            err = trn_errorf(TRN_DEADLINE_EXCEEDED, "no worker was ready within %.0f s: %s", (double)c->wait_ns / 1e9, who.p);
            trn_sb_fini(&who);
        } else {
            wait_ms(c, &c->room, 100);
        }
    }
    pthread_mutex_unlock(&c->mu);
    return err;
}

trn_err trn_coord_open(trn_coord **out, const trn_coord_opts *o)
{
    trn_coord *c = trn_xalloc(sizeof *c);
    c->b = o->builder;
    pthread_mutex_init(&c->mu, NULL);
    pthread_mutex_init(&c->probe_mu, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->room, NULL);
    double wait = o->wait_secs == 0 ? 600 : o->wait_secs;
    c->wait_ns = wait < 0 ? 0 : (uint64_t)(wait * 1e9);
    c->init_fn = o->init_fn;
    c->init_arg = o->init_arg;
    c->worker_init_fn = o->worker_init_fn;
    c->worker_init_arg = o->worker_init_arg;
    trn_err err = o->builder ? trn_builder_check(o->builder) : trn_errorf(TRN_INVALID_ARGUMENT, "a coordinator needs a builder");
    if (!err)
        err = add_workers(c, o);
    if (!err) {
        trn_out all[] = {trn_variables_init(c->b, TRN_VARS_GLOBAL), TRN_NONE}, local[] = {trn_variables_init(c->b, TRN_VARS_LOCAL), TRN_NONE};
        add_ops(&c->init_ops, &c->n_init, &c->cap_init, c->b, o->init_ops ? o->init_ops : all);
        add_ops(&c->worker_init_ops, &c->n_worker_init, &c->cap_worker_init, c->b, local);
        add_ops(&c->worker_init_ops, &c->n_worker_init, &c->cap_worker_init, c->b, o->worker_init_ops);
        err = trn_builder_check(c->b);
    }
    if (!err) {
        int each = TRN_MAX(o->steps_per_worker, 1);
        c->limit = o->queue > 0 ? o->queue : TRN_MAX(16, 2 * c->n_workers);
        c->threads = trn_xalloc(sizeof *c->threads * (size_t)(each * c->n_workers));
        for (int i = 0; !err && i < each * c->n_workers; i++) {
            if (pthread_create(&c->threads[i], NULL, runner, &c->workers[i % c->n_workers]))
                err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "no thread for worker %d", i % c->n_workers);
            else
                c->n_threads++;
        }
    }
    if (!err)
        err = wait_for_first(c);
    if (err) {
        trn_err_free(trn_coord_close(c));
        return err;
    }
    *out = c;
    return TRN_OK;
}

/* mu is held: an error that is to be reported now. */
static trn_err take_error(trn_coord *c)
{
    if (c->fatal)
        return trn_err_copy(c->fatal);
    trn_err err = c->err;
    c->err = TRN_OK;
    return err;
}

trn_err trn_coord_schedule(trn_future **future, trn_coord *c, const trn_run *run)
{
    job *j = job_new(run);
    pthread_mutex_lock(&c->mu);
    while (c->queued >= c->limit && !c->err && !c->fatal && !c->closing)
        pthread_cond_wait(&c->room, &c->mu);
    trn_err err = c->closing ? trn_errorf(TRN_CANCELLED, "the coordinator is being closed") : take_error(c);
    if (!err) {
        if (future) {
            atomic_fetch_add(&j->future->ref, 1);
            *future = j->future;
        }
        push_back(c, j);
    }
    pthread_mutex_unlock(&c->mu);
    if (err)
        job_end(j, trn_errorf(TRN_CANCELLED, "not scheduled"));
    return err;
}

trn_err trn_coord_join(trn_coord *c)
{
    pthread_mutex_lock(&c->mu);
    while ((c->queued || c->running) && !c->fatal && !c->closing)
        pthread_cond_wait(&c->room, &c->mu);
    trn_err err = take_error(c);
    pthread_mutex_unlock(&c->mu);
    return err;
}

bool trn_coord_done(trn_coord *c)
{
    pthread_mutex_lock(&c->mu);
    bool done = !c->queued && !c->running;
    pthread_mutex_unlock(&c->mu);
    return done;
}

trn_err trn_coord_fetch(trn_future *f, trn_tensor **out, int n)
{
    pthread_mutex_lock(&f->mu);
    while (!f->done)
        pthread_cond_wait(&f->cv, &f->mu);
    trn_err err = f->err ? trn_err_copy(f->err) : TRN_OK;
    if (!err && n != f->n)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "the step fetches %d tensors, not %d", f->n, n);
    for (int i = 0; !err && i < n; i++)
        out[i] = trn_tensor_ref(f->out[i]);
    pthread_mutex_unlock(&f->mu);
    return err;
}

bool trn_future_done(trn_future *f)
{
    pthread_mutex_lock(&f->mu);
    bool done = f->done;
    pthread_mutex_unlock(&f->mu);
    return done;
}

void trn_future_free(trn_future *f) { future_unref(f); }

int trn_coord_workers(trn_coord *c)
{
    pthread_mutex_lock(&c->mu);
    int n = count_up(c);
    pthread_mutex_unlock(&c->mu);
    return n;
}

int64_t trn_coord_steps(trn_coord *c, int w)
{
    pthread_mutex_lock(&c->mu);
    int64_t n = w >= 0 && w < c->n_workers ? c->workers[w].steps : 0;
    pthread_mutex_unlock(&c->mu);
    return n;
}

int64_t trn_coord_retries(trn_coord *c)
{
    pthread_mutex_lock(&c->mu);
    int64_t n = c->retries;
    pthread_mutex_unlock(&c->mu);
    return n;
}

trn_err trn_coord_close(trn_coord *c)
{
    if (!c)
        return TRN_OK;
    pthread_mutex_lock(&c->mu);
    c->closing = true;
    drop_queue(c, TRN_CANCELLED, "the coordinator was closed");
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->room);
    for (int i = 0; i < c->n_workers; i++) { /* what runs ends now; its runner comes back */
        worker *w = &c->workers[i];
        trn_session *s = w->opening ? NULL : w->session; /* one that a runner closes, it closes */
        if (!s)
            continue;
        w->session = NULL;
        pthread_mutex_unlock(&c->mu);
        trn_err_free(trn_session_close(s));
        pthread_mutex_lock(&c->mu);
    }
    pthread_mutex_unlock(&c->mu);
    for (int i = 0; i < c->n_threads; i++)
        pthread_join(c->threads[i], NULL);
    for (int i = 0; i < c->n_workers; i++) {
        worker *w = &c->workers[i];
        trn_err_free(trn_session_close(w->session));
        trn_err_free(w->why);
        trn_sb_fini(&w->config);
        free(w->target);
        free(w->name);
    }
    for (int i = 0; i < c->n_ps; i++) {
        free(c->ps[i].target);
        free(c->ps[i].name);
    }
    trn_err err = c->fatal ? TRN_OK : c->err; /* a step's error that nobody has asked for */
    if (c->fatal)
        trn_err_free(c->err);
    trn_err_free(c->fatal);
    trn_err_free(c->init_err);
    free(c->init_ops);
    free(c->worker_init_ops);
    free(c->threads);
    free(c->workers);
    free(c->ps);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->room);
    pthread_mutex_destroy(&c->mu);
    pthread_mutex_destroy(&c->probe_mu);
    free(c);
    return err;
}
