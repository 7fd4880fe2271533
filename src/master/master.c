/* Sessions: create (find the tasks, ask for their devices, open a worker session on each), extend, close, reset. */
#include "master/master.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "master/master_int.h"
#include "proto/pbw.h"
#include "proto/pb.h"

#define SECOND UINT64_C(1000000000)

/* ---- session objects ------------------------------------------------------------------------------------------------ */

trn_msession *trn_msession_ref(trn_msession *s)
{
    atomic_fetch_add_explicit(&s->ref, 1, memory_order_relaxed);
    return s;
}

static void free_callable(void *v)
{
    trn_arena_free(*(trn_arena **)v);
}

void trn_msession_unref(trn_msession *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_partials_free(s);
    trn_map_free(s->built, trn_built_slot_free);
    trn_map_free(s->callables, free_callable);
    if (s->graph)
        trn_graph_free(s->graph);
    trn_wsession_unref(s->local);
    for (int i = 0; i < s->n_remote; i++) {
        trn_channel_unref(s->remote[i].channel);
        free(s->remote[i].task);
        free(s->remote[i].job);
        free(s->remote[i].address);
    }
    free(s->remote);
    free(s->self);
    free(s->job);
    trn_cluster_unref(s->cluster);
    trn_cancel_unref(s->cancel);
    trn_mutex_fini(&s->mu);
    trn_arena_free(s->arena);
    free(s);
}

trn_err trn_msession_find(trn_msession **out, trn_master *m, const char *handle)
{
    trn_lock(&m->mu);
    trn_msession *s = trn_map_gets(m->sessions, handle);
    if (s)
        trn_msession_ref(s);
    trn_unlock(&m->mu);
    if (!s)
        return trn_errorf(TRN_ABORTED, "Session %s is not found.", handle);
    *out = s;
    return TRN_OK;
}

trn_err trn_msession_begin(trn_msession *s)
{
    trn_lock(&s->mu);
    bool closed = s->closed;
    s->running += !closed;
    trn_unlock(&s->mu);
    return closed ? trn_errorf(TRN_FAILED_PRECONDITION, "Session is closed.") : TRN_OK;
}

void trn_msession_end(trn_msession *s)
{
    trn_lock(&s->mu);
    struct close_job *j = --s->running == 0 ? s->closing : NULL;
    if (j)
        s->closing = NULL;
    trn_unlock(&s->mu);
    if (j)
        trn_msession_idle(s, j);
}

static void add_remote(trn_msession *s, const char *job, int index, const char *address)
{
    s->remote = trn_xrealloc(s->remote, sizeof *s->remote * (size_t)(s->n_remote + 1));
    char text[TRN_DEVNAME_TEXT];
    trn_devname d = trn_devname_task(job, index);
    s->remote[s->n_remote++] = (remote_task){trn_xstrdup(trn_devname_text(text, &d)), trn_xstrdup(job), index, trn_xstrdup(address),
                                             trn_peers_get(s->m->w->peers, address), trn_worker_outbox(s->m->w, address), false};
}

/* No filters: everybody. Else whoever fits one of them. */
static bool passes(const trn_devname *filters, size_t n, const char *job, int index)
{
    trn_devname d = trn_devname_task(job, index);
    bool in = n == 0;
    for (size_t i = 0; i < n && !in; i++)
        in = trn_devname_compatible(&filters[i], &d);
    return in;
}

#define MAX_FILTERS 65536
#define MAX_FILTERED 10000000 /* filters times tasks: they are compared on a loop */

static trn_err add_remotes(trn_msession *s, char *const *texts, size_t n_filters)
{
    size_t n_tasks = 1;
    for (int j = 0; j < s->cluster->n_jobs; j++)
        n_tasks += (size_t)s->cluster->jobs[j].n_tasks;
    if (n_filters > MAX_FILTERS || n_filters > MAX_FILTERED / n_tasks)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%zu device filters for %zu tasks are too many", n_filters, n_tasks);
    trn_devname *filters = trn_arena_alloc(s->arena, sizeof *filters * (n_filters + 1));
    for (size_t i = 0; i < n_filters; i++)
        TRN_TRY(trn_devname_parse(&filters[i], texts[i], strlen(texts[i])));
    for (int j = 0; j < s->cluster->n_jobs; j++) {
        const trn_cluster_job *job = &s->cluster->jobs[j];
        for (int t = 0; t < job->n_tasks; t++) {
            if (!strcmp(job->name, s->job) && job->tasks[t].index == s->index)
                continue;
            if (passes(filters, n_filters, job->name, job->tasks[t].index))
                add_remote(s, job->name, job->tasks[t].index, job->tasks[t].address);
        }
    }
    return TRN_OK;
}

/* The client's cluster spec must name this server, by the address that the client used. */
static trn_err find_self(trn_msession *s, const char *target)
{
    const char *address = strstr(target, "://");
    address = address ? address + 3 : target;
    for (int j = 0; j < s->cluster->n_jobs; j++) {
        const trn_cluster_job *job = &s->cluster->jobs[j];
        for (int t = 0; t < job->n_tasks; t++) {
            if (strcmp(job->tasks[t].address, address))
                continue;
            if (s->job)
                return trn_errorf(TRN_INVALID_ARGUMENT, "Found multiple matching tasks in the client's cluster spec for the master's target '%s'", target);
            if (!strcmp(job->name, s->m->w->job) && job->tasks[t].index == s->m->w->task_index)
                return trn_errorf(TRN_INVALID_ARGUMENT,
                                  "The ClusterSpec names the job and task index to be the same names that were provided when the server booted. This is currently "
                                  "not allowed. Job: %s, task index: %d",
                                  job->name, job->tasks[t].index);
            s->job = trn_xstrdup(job->name);
            s->index = job->tasks[t].index;
        }
    }
    if (!s->job)
        return trn_errorf(TRN_INVALID_ARGUMENT, "the client's cluster spec names no task with the address of this master, '%s'", target);
    return TRN_OK;
}

/* tensorflow.RewriterConfig: what a client has switched off. */
static void read_rewriter_config(trn_opt_opts *o, const uint8_t *p, size_t n)
{
    enum { OFF = 2 };
    static const struct {
        uint32_t field;
        const char *name; /* in `optimizers` */
        size_t at;
    } parts[] = {{3, "constfold", offsetof(trn_opt_opts, fold)},
                 {24, "common_subgraph_elimination", offsetof(trn_opt_opts, cse)},
                 {8, "dependency", offsetof(trn_opt_opts, identity)},
                 {7, "arithmetic", offsetof(trn_opt_opts, simplify)},
                 {14, "remap", offsetof(trn_opt_opts, fuse)}};
    trn_pbr r = trn_pbr_init(p, n);
    bool all_off = false, listed = false, in_list[TRN_COUNTOF(parts)] = {false}, off[TRN_COUNTOF(parts)] = {false};
    while (trn_pbr_next(&r)) {
        all_off |= r.field == 19 && r.type == TRN_PB_VARINT && r.v != 0; /* disable_meta_optimizer */
        listed |= r.field == 100 && r.type == TRN_PB_BYTES;
        for (size_t i = 0; i < TRN_COUNTOF(parts); i++) {
            if (r.field == parts[i].field && r.type == TRN_PB_VARINT)
                off[i] = r.v == OFF;
            if (r.field == 100 && r.type == TRN_PB_BYTES)
                in_list[i] |= r.n == strlen(parts[i].name) && memcmp(r.b, parts[i].name, r.n) == 0;
        }
    }
    for (size_t i = 0; i < TRN_COUNTOF(parts); i++)
        if (all_off || off[i] || (listed && !in_list[i]))
            *(bool *)((char *)o + parts[i].at) = false;
}

static trn_err session_set_up(trn_msession *s, const Tensorflow__CreateSessionRequest *q)
{
    static Tensorflow__ConfigProto none = TENSORFLOW__CONFIG_PROTO__INIT;
    const Tensorflow__ConfigProto *c = q->config ? q->config : s->m->defaults ? s->m->defaults : &none;
    s->soft_placement = c->allow_soft_placement;
    s->log_placement = c->log_device_placement;
    s->isolate = c->isolate_session_state;
    s->timeout_ms = c->operation_timeout_in_ms;
    s->single_threaded = c->experimental && c->experimental->executor_type && strcmp(c->experimental->executor_type, "SINGLE_THREADED_EXECUTOR") == 0;
    if (c->graph_options) {
        s->place_pruned = c->graph_options->place_pruned_graph;
        s->cost_every = c->graph_options->build_cost_model;
        s->cost_after = c->graph_options->build_cost_model_after;
    }
    int level = c->graph_options && c->graph_options->optimizer_options ? c->graph_options->optimizer_options->opt_level : 0;
    s->opt = level < 0 ? (trn_opt_opts){.max_folded_bytes = 0} : (trn_opt_opts){.fold = true, .cse = true, .identity = true, .simplify = true, .fuse = true, .max_folded_bytes = 10 << 20};
    if (c->graph_options)
        read_rewriter_config(&s->opt, c->graph_options->rewrite_options.data, c->graph_options->rewrite_options.len);
    if (c->cluster_def && c->cluster_def->n_job) {
        trn_sb b = {0};
        trn_pb_pack(&b, &c->cluster_def->base);
        trn_err err = trn_cluster_from_def(&s->cluster, b.p, b.n);
        trn_sb_fini(&b);
        TRN_TRY(err);
        TRN_TRY(find_self(s, q->target));
        s->propagated = true;
        s->isolate = !(c->experimental && c->experimental->share_session_state_in_clusterspec_propagation);
    } else {
        s->cluster = trn_cluster_ref(s->m->w->cluster);
        s->job = trn_xstrdup(s->m->w->job);
        s->index = s->m->w->task_index;
    }
    char text[TRN_DEVNAME_TEXT];
    trn_devname d = trn_devname_task(s->job, s->index);
    s->self = trn_xstrdup(trn_devname_text(text, &d));
    return add_remotes(s, c->device_filters, c->n_device_filters);
}

static trn_msession *session_new(trn_master *m)
{
    trn_msession *s = trn_xalloc(sizeof *s);
    s->ref = 1;
    s->m = m;
    s->arena = trn_arena_new();
    snprintf(s->handle, sizeof s->handle, "%016" PRIx64, trn_random64());
    s->born_ns = trn_now_ns();
    trn_mutex_init(&s->mu, TRN_RANK_SESSION);
    s->built = trn_map_new();
    s->partials = trn_map_new();
    s->callables = trn_map_new();
    s->cancel = trn_cancel_new();
    s->placed_version = -1;
    return s;
}

/* ---- asking tasks for their devices --------------------------------------------------------------------------------- */

/* Also used without a session, by ListDevices. */
typedef struct survey {
    trn_master *m;
    trn_msession *s; /* holds the tasks; a reference */
    trn_arena *arena;
    _Atomic int pending;
    trn_mutex mu;
    trn_err err;
    trn_device **dev; /* per remote task */
    int *n_dev;
    bool *answered;
    trn_rpc **rpc;
    trn_timer timer; /* says for whom we wait */
    uint64_t since_ns;
    int said;
    bool timer_on, ended;
    void (*done)(void *arg, trn_err err, struct survey *sv);
    void *arg;
    struct survey *next, *prev; /* of the master, under its lock */
} survey;

static void survey_say(void *arg)
{
    survey *sv = arg;
    for (int i = 0; i < sv->s->n_remote; i++) {
        trn_lock(&sv->mu);
        bool waits = !sv->answered[i];
        trn_unlock(&sv->mu);
        if (!waits)
            continue;
        char state[160];
        const remote_task *t = &sv->s->remote[i];
        TRN_INFO("master", "CreateSession still waiting for response from worker: %s at %s for %.0f s (%s); it goes on until the task answers or the client gives up",
                 t->task, t->address, (double)(trn_now_ns() - sv->since_ns) / 1e9, trn_channel_state_text(t->channel, state, sizeof state));
    }
    sv->said++;
    uint64_t pause = 10 * SECOND << TRN_MIN(sv->said, 3);
    trn_timer_start(sv->m->loop, &sv->timer, trn_now_ns() + pause, survey_say, sv);
}

static void survey_free(survey *sv)
{
    for (int i = 0; i < sv->s->n_remote; i++)
        trn_rpc_unref(sv->rpc[i]);
    trn_err_free(sv->err);
    trn_mutex_fini(&sv->mu);
    trn_msession_unref(sv->s);
    trn_arena_free(sv->arena);
    free(sv);
}

static void survey_end(void *arg) /* [loop] */
{
    survey *sv = arg;
    trn_lock(&sv->m->mu);
    *(sv->prev ? &sv->prev->next : &sv->m->surveys) = sv->next;
    if (sv->next)
        sv->next->prev = sv->prev;
    trn_unlock(&sv->m->mu);
    trn_timer_stop(sv->m->loop, &sv->timer);
    trn_err err = sv->err;
    sv->err = TRN_OK;
    sv->done(sv->arg, err, sv);
    survey_free(sv);
}

static void survey_one_done(survey *sv)
{
    if (atomic_fetch_sub_explicit(&sv->pending, 1, memory_order_acq_rel) != 1)
        return;
    if (trn_loop_here(sv->m->loop))
        survey_end(sv);
    else
        trn_loop_post(sv->m->loop, survey_end, sv);
}

static void survey_cancel_rest(survey *sv)
{
    for (int i = 0; i < sv->s->n_remote; i++) {
        trn_lock(&sv->mu);
        trn_rpc *r = sv->answered[i] ? NULL : sv->rpc[i];
        trn_unlock(&sv->mu);
        if (r)
            trn_rpc_cancel(r);
    }
}

typedef struct survey_call {
    survey *sv;
    int i;
} survey_call;

/* Names may be another cluster spec's: the device is called what this session calls the task. */
static trn_err take_devices(survey *sv, int i, const trn_msg *msg)
{
    Tensorflow__GetStatusResponse *r = NULL;
    trn_arena *a = trn_arena_new();
    trn_err err = TRN_PB_UNPACK(&r, a, tensorflow__get_status_response__descriptor, msg->p, msg->n);
    const remote_task *t = &sv->s->remote[i];
    trn_lock(&sv->mu);
    if (!err) {
        sv->dev[i] = trn_arena_alloc(sv->arena, sizeof **sv->dev * (r->n_device_attributes + 1));
        for (size_t d = 0; d < r->n_device_attributes && !err; d++) {
            const Tensorflow__DeviceAttributes *pb = r->device_attributes[d];
            trn_devname name;
            err = trn_devname_parse(&name, pb->name, strlen(pb->name));
            if (err)
                break;
            size_t n = strlen(t->task);
            if (d == 0 && (strncmp(pb->name, t->task, n) != 0 || pb->name[n] != '/')) /* not an error: each may know the cluster by other names */
                TRN_WARN("master", "where %s is expected, at %s, a task answers that calls itself %s: another cluster's, or one that was started with another cluster spec",
                         t->task, t->address, pb->name);
            sv->dev[i][sv->n_dev[i]++] = (trn_device){trn_arena_printf(sv->arena, "%s/device:%s:%d", t->task, name.type, name.id), t->task,
                                                      trn_arena_strdup(sv->arena, name.type), pb->incarnation};
        }
        if (!err && !sv->n_dev[i])
            err = trn_errorf(TRN_INTERNAL, "the task has no devices");
    }
    trn_unlock(&sv->mu);
    trn_arena_free(a);
    return err;
}

static void status_came(void *arg, trn_err err, const trn_msg *msg)
{
    survey_call *c = arg;
    survey *sv = c->sv;
    if (!err)
        err = take_devices(sv, c->i, msg);
    bool failed = err != TRN_OK;
    trn_lock(&sv->mu);
    sv->answered[c->i] = true;
    if (err && !sv->err) {
        sv->err = trn_err_wrap(err, "GetStatus of %s (%s)", sv->s->remote[c->i].task, sv->s->remote[c->i].address);
        err = TRN_OK;
    }
    trn_unlock(&sv->mu);
    trn_err_free(err);
    if (failed)
        survey_cancel_rest(sv);
    survey_one_done(sv);
}

static void survey_cancelled(void *arg)
{
    survey *sv = arg;
    trn_sb who = {0};
    trn_lock(&sv->mu);
    if (!sv->err) {
        int more = 0, named = 0;
        for (int i = 0; i < sv->s->n_remote; i++) {
            char state[160];
            const remote_task *t = &sv->s->remote[i];
            if (sv->answered[i])
                continue;
            if (named++ >= 4)
                more++;
            else
                trn_sb_addf(&who, "%s%s at %s (%s)", who.n ? ", " : "", t->task, t->address, trn_channel_state_text(t->channel, state, sizeof state));
        }
        if (more)
            trn_sb_addf(&who, " and %d more", more);
        sv->err = trn_errorf(TRN_CANCELLED, "the client gave up before every task of the cluster had answered; not yet: %s", who.n ? who.p : "none");
    }
    trn_unlock(&sv->mu);
    trn_sb_fini(&who);
    survey_cancel_rest(sv);
}

static void survey_start(void *arg) /* [loop] */
{
    survey *sv = arg;
    trn_lock(&sv->mu);
    sv->since_ns = trn_now_ns();
    trn_unlock(&sv->mu);
    for (int i = 0; i < sv->s->n_remote; i++) {
        survey_call *c = trn_arena_alloc(sv->arena, sizeof *c);
        *c = (survey_call){sv, i};
        trn_out_msg m = {0};
        trn_channel_call(&sv->rpc[i], sv->s->remote[i].channel, TRN_PATH_WORKER "GetStatus", &m, &(trn_call_opts){.wait_for_ready = true}, status_came, c);
    }
    trn_timer_start(sv->m->loop, &sv->timer, trn_now_ns() + 10 * SECOND, survey_say, sv);
    survey_one_done(sv);
}

static survey *survey_new(trn_msession *s, void (*done)(void *, trn_err, survey *), void *arg)
{
    survey *sv = trn_xalloc(sizeof *sv);
    sv->m = s->m;
    sv->s = trn_msession_ref(s);
    sv->arena = trn_arena_new();
    size_t n = (size_t)s->n_remote + 1;
    sv->pending = (int)n;
    trn_mutex_init(&sv->mu, TRN_RANK_LEAF);
    sv->dev = trn_arena_alloc(sv->arena, sizeof *sv->dev * n);
    sv->n_dev = trn_arena_alloc(sv->arena, sizeof *sv->n_dev * n);
    sv->answered = trn_arena_alloc(sv->arena, sizeof *sv->answered * n);
    sv->rpc = trn_arena_alloc(sv->arena, sizeof *sv->rpc * n);
    sv->done = done;
    sv->arg = arg;
    trn_lock(&sv->m->mu);
    sv->next = sv->m->surveys;
    if (sv->next)
        sv->next->prev = sv;
    sv->m->surveys = sv;
    trn_unlock(&sv->m->mu);
    return sv;
}

/* ---- create --------------------------------------------------------------------------------------------------------- */

typedef struct create_job {
    trn_master *m;
    trn_msession *s;
    const Tensorflow__CreateSessionRequest *q;
    trn_cancel *cancel;
    trn_cancel_hook hook;
    bool hooked;
    trn_create_result *out;
    trn_master_done done;
    void *arg;
    trn_join join; /* CreateWorkerSession calls */
} create_job;

static void drop_worker_sessions(trn_msession *s, trn_master_done done, void *arg);

static void create_over(create_job *j, trn_err err)
{
    trn_master *m = j->m;
    if (!err && j->cancel && trn_cancelled(j->cancel)) /* nobody would ever know its handle */
        err = trn_errorf(TRN_CANCELLED, "the client gave up");
    if (!err) {
        trn_lock(&m->mu);
        if (m->stopped)
            err = trn_errorf(TRN_UNAVAILABLE, "%s is shutting down", m->w->task);
        else
            trn_map_puts(m->sessions, j->s->handle, trn_msession_ref(j->s));
        trn_unlock(&m->mu);
    }
    if (err)
        drop_worker_sessions(j->s, NULL, NULL);
    else {
        memcpy(j->out->handle, j->s->handle, sizeof j->out->handle);
        j->out->version = j->s->version;
        TRN_DEBUG("master", "session %s over %d tasks", j->s->handle, j->s->n_remote + 1);
    }
    j->done(j->arg, err);
    trn_msession_unref(j->s);
    free(j);
}

static void create_import(void *arg) /* [pool] */
{
    create_job *j = arg;
    trn_msession *s = j->s;
    trn_funclib *lib = trn_funclib_new();
    s->graph = trn_graph_new(lib);
    trn_funclib_unref(lib);
    create_over(j, j->q->graph_def ? trn_graph_import(s->graph, j->q->graph_def) : TRN_OK);
}

static void worker_session_made(create_job *j, trn_err err)
{
    if (!trn_join_done(&j->join, err))
        return;
    err = trn_join_fini(&j->join);
    if (err)
        create_over(j, err);
    else
        trn_pool_submit(j->m->w->env->pool, create_import, j);
}

typedef struct ws_call {
    create_job *j;
    remote_task *t;
} ws_call;

static void remote_session_made(void *arg, trn_err err, const trn_msg *msg)
{
    ws_call *c = arg;
    create_job *j = c->j;
    c->t->session_made = true; /* maybe even when it failed: a delete does no harm */
    if (err)
        err = trn_err_wrap(err, "CreateWorkerSession on %s (%s)", c->t->task, c->t->address);
    free(c);
    worker_session_made(j, err);
}

static void make_remote_session(create_job *j, remote_task *t, Tensorflow__ClusterDef *cluster)
{
    trn_msession *s = j->s;
    Tensorflow__CreateWorkerSessionRequest q = TENSORFLOW__CREATE_WORKER_SESSION_REQUEST__INIT;
    Tensorflow__ServerDef sd = TENSORFLOW__SERVER_DEF__INIT;
    sd.job_name = t->job;
    sd.task_index = t->index;
    sd.protocol = (char *)"grpc";
    sd.cluster = cluster;
    q.session_handle = s->handle;
    q.server_def = &sd;
    q.isolate_session_state = s->isolate;
    q.master_task = s->self;
    q.master_incarnation = (int64_t)trn_worker_incarnation(s->m->w);
    Tensorflow__DeviceAttributes **attrs = NULL;
    trn_arena *a = trn_arena_new();
    if (cluster) { /* the task needs everybody's devices under the names of this cluster spec */
        attrs = trn_arena_alloc(a, sizeof *attrs * (size_t)(s->devs.n + 1));
        for (int i = 0; i < s->devs.n; i++) {
            attrs[i] = trn_arena_alloc(a, sizeof **attrs);
            tensorflow__device_attributes__init(attrs[i]);
            attrs[i]->name = (char *)s->devs.dev[i].name;
            attrs[i]->device_type = (char *)s->devs.dev[i].type;
            attrs[i]->incarnation = s->devs.dev[i].incarnation;
            attrs[i]->memory_limit = 256 << 20;
        }
        q.cluster_device_attributes = attrs;
        q.n_cluster_device_attributes = (size_t)s->devs.n;
    }
    ws_call *c = trn_xalloc(sizeof *c);
    *c = (ws_call){j, t};
    trn_call_pb(t->channel, TRN_PATH_WORKER "CreateWorkerSession", &q.base, trn_now_ns() + 60 * SECOND, false, NULL, remote_session_made, c);
    trn_arena_free(a);
}

static void take_devset(trn_msession *s, const survey *sv)
{
    int n_own, total;
    const trn_device *own = trn_worker_devices(s->m->w, &n_own);
    total = n_own;
    for (int i = 0; i < s->n_remote; i++)
        total += sv->n_dev[i];
    trn_device *d = trn_arena_alloc(s->arena, sizeof *d * (size_t)total);
    int n = 0;
    for (int i = 0; i < n_own; i++)
        d[n++] = (trn_device){trn_arena_printf(s->arena, "%s/device:CPU:%d", s->self, i), s->self, "CPU", own[i].incarnation};
    for (int r = 0; r < s->n_remote; r++)
        for (int i = 0; i < sv->n_dev[r]; i++)
            d[n++] = (trn_device){trn_arena_strdup(s->arena, sv->dev[r][i].name), s->remote[r].task, trn_arena_strdup(s->arena, sv->dev[r][i].type),
                                  sv->dev[r][i].incarnation};
    s->devs = (trn_devset){total, d, 0};
}

static void tasks_known(void *arg, trn_err err, survey *sv) /* [loop] */
{
    create_job *j = arg;
    trn_msession *s = j->s;
    if (j->hooked)
        (void)trn_cancel_remove(j->cancel, &j->hook);
    if (err) {
        create_over(j, err);
        return;
    }
    take_devset(s, sv);
    trn_wsession_opts o = {.handle = s->handle, .cluster = s->propagated ? s->cluster : NULL, .job = s->job, .task = s->index, .isolate = s->isolate,
                           .master_task = s->self, .master_incarnation = (int64_t)trn_worker_incarnation(s->m->w)};
    err = trn_worker_session_new(s->m->w, &o);
    if (!err)
        err = trn_worker_session(&s->local, s->m->w, s->handle, true);
    trn_join_init(&j->join, 1 + (err ? 0 : s->n_remote));
    Tensorflow__ClusterDef *cluster = s->propagated && j->q->config ? j->q->config->cluster_def : NULL;
    for (int i = 0; !err && i < s->n_remote; i++)
        make_remote_session(j, &s->remote[i], cluster);
    worker_session_made(j, err);
}

void trn_master_create(trn_master *m, const Tensorflow__CreateSessionRequest *q, trn_cancel *c, trn_create_result *out, trn_master_done done, void *arg)
{
    create_job *j = trn_xalloc(sizeof *j);
    *j = (create_job){.m = m, .q = q, .out = out, .done = done, .arg = arg, .cancel = c, .s = session_new(m)};
    trn_err err = session_set_up(j->s, q);
    if (err) {
        create_over(j, err);
        return;
    }
    if (c && trn_cancelled(c)) {
        create_over(j, trn_errorf(TRN_CANCELLED, "the client gave up"));
        return;
    }
    survey *sv = survey_new(j->s, tasks_known, j);
    if (c) { /* cancelled right now by another thread: then the survey ends when the tasks answer */
        j->hooked = trn_cancel_add(c, &j->hook, survey_cancelled, sv);
    }
    if (trn_loop_here(m->loop))
        survey_start(sv);
    else
        trn_loop_post(m->loop, survey_start, sv);
}

/* ---- extend --------------------------------------------------------------------------------------------------------- */

trn_err trn_master_extend(trn_master *m, const Tensorflow__ExtendSessionRequest *q, int64_t *new_version)
{
    trn_msession *s;
    TRN_TRY(trn_msession_find(&s, m, q->session_handle));
    trn_err err = TRN_OK;
    trn_lock(&s->mu);
    if (s->closed)
        err = trn_errorf(TRN_FAILED_PRECONDITION, "Session is closed.");
    else if (q->current_graph_version != s->version)
        err = trn_errorf(TRN_ABORTED, "Current version is %" PRId64 " but caller expected %" PRId64 ".", s->version, q->current_graph_version);
    else if (q->graph_def)
        err = trn_graph_import(s->graph, q->graph_def);
    if (!err)
        *new_version = ++s->version;
    trn_unlock(&s->mu);
    trn_msession_unref(s);
    return err;
}

/* ---- close, reset --------------------------------------------------------------------------------------------------- */

typedef struct tell_all {
    _Atomic int pending;
    trn_master_done done;
    void *arg;
    trn_msession *s;
} tell_all;

static void told(void *arg, trn_err err, const trn_msg *msg)
{
    tell_all *t = arg;
    trn_err_free(err); /* a task that is gone has nothing left to clean */
    if (atomic_fetch_sub_explicit(&t->pending, 1, memory_order_acq_rel) != 1)
        return;
    if (t->done)
        t->done(t->arg, TRN_OK);
    trn_msession_unref(t->s);
    free(t);
}

static void drop_worker_sessions(trn_msession *s, trn_master_done done, void *arg)
{
    tell_all *t = trn_xalloc(sizeof *t);
    *t = (tell_all){1, done, arg, trn_msession_ref(s)};
    Tensorflow__DeleteWorkerSessionRequest q = TENSORFLOW__DELETE_WORKER_SESSION_REQUEST__INIT;
    q.session_handle = s->handle;
    for (int i = 0; i < s->n_remote; i++) {
        if (!s->remote[i].session_made)
            continue;
        atomic_fetch_add(&t->pending, 1);
        trn_call_pb(s->remote[i].channel, TRN_PATH_WORKER "DeleteWorkerSession", &q.base, trn_now_ns() + 10 * SECOND, false, NULL, told, t);
    }
    trn_err_free(trn_worker_session_del(s->m->w, s->handle));
    told(t, TRN_OK, NULL);
}

typedef struct close_job {
    trn_msession *s;
    trn_master_done done;
    void *arg;
} close_job;

static void close_done(void *arg, trn_err err)
{
    close_job *j = arg;
    if (j->done)
        j->done(j->arg, err);
    trn_msession_unref(j->s);
    free(j);
}

void trn_msession_idle(trn_msession *s, close_job *j)
{
    drop_worker_sessions(s, close_done, j);
}

static void session_close(trn_msession *s, trn_code code, const char *why, trn_master_done done, void *arg) /* takes s */
{
    close_job *j = trn_xalloc(sizeof *j);
    *j = (close_job){s, done, arg};
    trn_lock(&s->mu);
    s->closed = true;
    trn_unlock(&s->mu);
    trn_cancel_fire(s->cancel, trn_errorf(code, "%s", why));
    trn_lock(&s->mu);
    bool idle = s->running == 0;
    if (!idle)
        s->closing = j; /* the table hands a session out once, so there is one close */
    trn_unlock(&s->mu);
    if (idle)
        trn_msession_idle(s, j);
}

void trn_master_close(trn_master *m, const char *handle, trn_master_done done, void *arg)
{
    trn_lock(&m->mu);
    trn_msession *s = trn_map_dels(m->sessions, handle);
    trn_unlock(&m->mu);
    if (!s) {
        done(arg, trn_errorf(TRN_ABORTED, "Session %s is not found. Possibly, this master has restarted.", handle));
        return;
    }
    session_close(s, TRN_CANCELLED, "The step was cancelled by a call to Session::Close().", done, arg);
}

static void close_everything(trn_master *m, trn_code code, const char *why)
{
    for (;;) {
        trn_lock(&m->mu);
        const char *key;
        size_t n;
        void *v;
        size_t it = 0;
        trn_msession *s = NULL;
        if (trn_map_next(m->sessions, &it, &key, &n, &v)) {
            s = v;
            trn_map_dels(m->sessions, s->handle);
        }
        trn_unlock(&m->mu);
        if (!s)
            return;
        session_close(s, code, why, NULL, NULL);
    }
}

void trn_master_reset(trn_master *m, const Tensorflow__ResetRequest *q, trn_master_done done, void *arg)
{
    close_everything(m, TRN_CANCELLED, "Session was reset.");
    trn_msession *s = session_new(m); /* only to find the tasks */
    s->cluster = trn_cluster_ref(m->w->cluster);
    s->job = trn_xstrdup(m->w->job);
    s->index = m->w->task_index;
    trn_err err = add_remotes(s, q->device_filters, q->n_device_filters);
    if (err) {
        trn_msession_unref(s);
        done(arg, err);
        return;
    }
    trn_worker_cleanup_all(m->w, (const char *const *)q->container, (int)q->n_container);
    tell_all *t = trn_xalloc(sizeof *t);
    *t = (tell_all){s->n_remote + 1, done, arg, s};
    Tensorflow__CleanupAllRequest c = TENSORFLOW__CLEANUP_ALL_REQUEST__INIT;
    c.container = q->container;
    c.n_container = q->n_container;
    for (int i = 0; i < s->n_remote; i++)
        trn_call_pb(s->remote[i].channel, TRN_PATH_WORKER "CleanupAll", &c.base, trn_now_ns() + 10 * SECOND, false, NULL, told, t);
    told(t, TRN_OK, NULL);
}

/* ---- devices -------------------------------------------------------------------------------------------------------- */

static void copy_devices(trn_device_list *out, const trn_devset *ds, int n_local)
{
    out->arena = trn_arena_new();
    trn_device *d = trn_arena_alloc(out->arena, sizeof *d * (size_t)(ds->n + 1));
    for (int i = 0; i < ds->n; i++)
        d[i] = (trn_device){trn_arena_strdup(out->arena, ds->dev[i].name), trn_arena_strdup(out->arena, ds->dev[i].task),
                            trn_arena_strdup(out->arena, ds->dev[i].type), ds->dev[i].incarnation};
    out->local = d;
    out->n_local = n_local;
    out->remote = d + n_local;
    out->n_remote = ds->n - n_local;
}

typedef struct list_job {
    trn_cancel *cancel; /* the client's; NULL: none, or not hooked */
    trn_cancel_hook hook;
    trn_device_list *out;
    trn_master_done done;
    void *arg;
} list_job;

static void list_known(void *arg, trn_err err, survey *sv)
{
    list_job *j = arg;
    if (j->cancel)
        (void)trn_cancel_remove(j->cancel, &j->hook);
    if (!err) {
        take_devset(sv->s, sv);
        copy_devices(j->out, &sv->s->devs, sv->m->w->n_dev);
    }
    j->done(j->arg, err);
    free(j);
}

void trn_master_list_devices(trn_master *m, const char *handle, trn_cancel *c, trn_device_list *out, trn_master_done done, void *arg)
{
    if (*handle) {
        trn_msession *s;
        trn_err err = trn_msession_find(&s, m, handle);
        if (err) {
            done(arg, trn_errorf(TRN_INVALID_ARGUMENT, "Session %s is not found. Possibly, this master has restarted.", handle));
            trn_err_free(err);
            return;
        }
        copy_devices(out, &s->devs, m->w->n_dev);
        trn_msession_unref(s);
        done(arg, TRN_OK);
        return;
    }
    trn_msession *s = session_new(m);
    Tensorflow__CreateSessionRequest q = TENSORFLOW__CREATE_SESSION_REQUEST__INIT;
    trn_err err = session_set_up(s, &q);
    if (err) {
        trn_msession_unref(s);
        done(arg, err);
        return;
    }
    list_job *j = trn_xalloc(sizeof *j);
    *j = (list_job){.out = out, .done = done, .arg = arg};
    survey *sv = survey_new(s, list_known, j);
    if (c && trn_cancel_add(c, &j->hook, survey_cancelled, sv)) /* else it was cancelled right now: the survey ends when the tasks answer */
        j->cancel = c;
    trn_msession_unref(s);
    if (trn_loop_here(m->loop))
        survey_start(sv);
    else
        trn_loop_post(m->loop, survey_start, sv);
}

/* ---- the master ----------------------------------------------------------------------------------------------------- */

trn_master *trn_master_new(trn_worker *w, trn_loop *loop, const uint8_t *config, size_t config_n)
{
    trn_master *m = trn_xalloc(sizeof *m);
    m->w = w;
    m->loop = loop;
    m->arena = trn_arena_new();
    m->step_time = trn_metric_hist("step_seconds", "Whole steps of this master's sessions, from the request to the answer");
    trn_mutex_init(&m->mu, TRN_RANK_SESSION);
    m->sessions = trn_map_new();
    if (config) {
        trn_err err = TRN_PB_UNPACK(&m->defaults, m->arena, tensorflow__config_proto__descriptor, config, config_n);
        if (err)
            TRN_WARN("master", "default_session_config is not readable and is left out: %s", trn_err_msg(err));
        trn_err_free(err);
    }
    return m;
}

void trn_master_stop(trn_master *m)
{
    trn_lock(&m->mu);
    m->stopped = true;
    trn_unlock(&m->mu);
    char *why = trn_xasprintf("%s is shutting down", m->w->task);
    close_everything(m, TRN_UNAVAILABLE, why);
    free(why);
}

static void unref_session(void *s)
{
    trn_msession_unref(s);
}

void trn_master_free(trn_master *m)
{
    if (!m)
        return;
    trn_map_free(m->sessions, unref_session);
    trn_mutex_fini(&m->mu);
    trn_arena_free(m->arena);
    free(m);
}

size_t trn_master_session_count(trn_master *m)
{
    trn_lock(&m->mu);
    size_t n = trn_map_count(m->sessions);
    trn_unlock(&m->mu);
    return n;
}

size_t trn_master_look(trn_master *m, trn_session_look *out, size_t max)
{
    trn_msession *some[64];
    size_t n = 0, total;
    max = TRN_MIN(max, TRN_COUNTOF(some));
    trn_lock(&m->mu);
    total = trn_map_count(m->sessions);
    const char *key;
    size_t len;
    void *v;
    for (size_t it = 0; n < max && trn_map_next(m->sessions, &it, &key, &len, &v);)
        some[n++] = trn_msession_ref(v);
    trn_unlock(&m->mu);
    for (size_t i = 0; i < n; i++) {
        trn_msession *s = some[i];
        out[i] = (trn_session_look){.born_ns = s->born_ns, .steps = atomic_load(&s->steps), .running = -1, .nodes = -1, .tasks = s->n_remote + 1};
        memcpy(out[i].handle, s->handle, sizeof s->handle);
        if (trn_trylock(&s->mu)) {
            out[i].running = s->running;
            out[i].nodes = s->graph ? s->graph->n : 0;
            trn_unlock(&s->mu);
        }
        trn_msession_unref(s);
    }
    return total;
}

void trn_master_each_wait(trn_master *m, void (*fn)(void *, const char *, const char *, uint64_t, const char *), void *arg)
{
    trn_lock(&m->mu);
    for (survey *sv = m->surveys; sv; sv = sv->next) {
        for (int i = 0; i < sv->s->n_remote; i++) {
            trn_lock(&sv->mu);
            bool waits = sv->since_ns && !sv->answered[i];
            trn_unlock(&sv->mu);
            if (!waits)
                continue;
            char state[160];
            const remote_task *t = &sv->s->remote[i];
            fn(arg, t->task, t->address, sv->since_ns, trn_channel_state_text(t->channel, state, sizeof state));
        }
    }
    trn_unlock(&m->mu);
}

const trn_hist *trn_master_step_time(const trn_master *m)
{
    return m->step_time;
}

trn_pool *trn_master_pool(trn_master *m)
{
    return m->w->env->pool;
}
