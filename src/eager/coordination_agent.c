/* A task's side of the coordination service: what is configured, registering with the leader, heartbeats. All of the agent's state belongs to the loop.
 *
 *   disconnected → RegisterTask, again and again → connected → heartbeats
 *                       ↑                             │ a heartbeat is refused, the leader is lost or was restarted, another task failed
 *                       └── ResetTask ── error ←──────┘ (heartbeats go on: this task is alive)
 *
 * An agent in error stays so until a coordinator brings its context up to date, which it does once the task that was lost is back. */
#include "eager/coordination.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "proto/pb.h"
#include "worker/service.h"

#define MS 1000000ull
#define REGISTER_MS 3600000
#define CALL_NS (10000 * MS)
#define MAX_PAUSE_MS 1000
#define MAX_TASKS 100000
#define MAX_MS (INT64_C(1) << 40)

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static int64_t or_default(int64_t ms, int64_t def) { return ms > 0 ? TRN_MIN(ms, MAX_MS) : def; }

Tensorflow__CoordinationServiceConfig *trn_coord_config(trn_err *err, trn_arena *a, const Tensorflow__ServerDef *def)
{
    *err = TRN_OK;
    const Tensorflow__ConfigProto__Experimental *x = def && def->default_session_config ? def->default_session_config->experimental : NULL;
    if (!x || x->coordination_config.len == 0)
        return NULL;
    Tensorflow__CoordinationServiceConfig *c;
    *err = TRN_PB_UNPACK(&c, a, tensorflow__coordination_service_config__descriptor, x->coordination_config.data, x->coordination_config.len);
    if (*err || !c->service_type[0] || c->force_disable)
        return NULL;
    if (strcmp(c->service_type, "standalone") != 0) {
        *err = trn_errorf(TRN_INVALID_ARGUMENT, "coordination service of type \"%s\"; there is \"standalone\"", c->service_type);
        return NULL;
    }
    c->heartbeat_timeout_in_ms = or_default(c->heartbeat_timeout_in_ms, TRN_HEARTBEAT_MS);
    c->cluster_register_timeout_in_ms = or_default(c->cluster_register_timeout_in_ms, REGISTER_MS);
    if (!c->service_leader[0])
        c->service_leader = x->collective_group_leader[0] ? x->collective_group_leader : trn_arena_printf(a, "/job:%s/replica:0/task:0", def->job_name);
    if (c->n_coordinated_job_list == 0 && def->cluster) {
        size_t n = def->cluster->n_job;
        c->coordinated_job_list = trn_arena_alloc(a, sizeof *c->coordinated_job_list * (n + 1));
        for (size_t i = 0; i < n; i++) {
            Tensorflow__CoordinatedJob *job = trn_arena_alloc(a, sizeof *job);
            tensorflow__coordinated_job__init(job);
            job->name = def->cluster->job[i]->name;
            job->num_tasks = (int32_t)TRN_MIN(def->cluster->job[i]->n_tasks, (size_t)MAX_TASKS + 1);
            c->coordinated_job_list[c->n_coordinated_job_list++] = job;
        }
    }
    int64_t all = 0;
    for (size_t i = 0; i < c->n_coordinated_job_list; i++) {
        int32_t n = c->coordinated_job_list[i]->num_tasks;
        all = n < 0 || all > MAX_TASKS ? MAX_TASKS + 1 : all + n;
    }
    if (all > MAX_TASKS)
        *err = trn_errorf(TRN_INVALID_ARGUMENT, "coordination service: the number of tasks is negative or above %d", MAX_TASKS);
    return *err ? NULL : c;
}

static void pack(trn_sb *out, const Tensorflow__CoordinationServiceConfig *c) { trn_pb_pack(out, &c->base); }

bool trn_coord__same(const Tensorflow__CoordinationServiceConfig *a, const Tensorflow__CoordinationServiceConfig *b)
{
    trn_sb x = {0}, y = {0};
    pack(&x, a);
    pack(&y, b);
    bool same = x.n == y.n && memcmp(x.p, y.p, x.n) == 0;
    trn_sb_fini(&x);
    trn_sb_fini(&y);
    return same;
}

Tensorflow__CoordinationServiceConfig *trn_coord__copy(trn_arena *a, const Tensorflow__CoordinationServiceConfig *cfg)
{
    trn_sb s = {0};
    pack(&s, cfg);
    Tensorflow__CoordinationServiceConfig *c = NULL;
    trn_err err = TRN_PB_UNPACK(&c, a, tensorflow__coordination_service_config__descriptor, (const uint8_t *)s.p, s.n);
    trn_sb_fini(&s);
    if (err) { /* it was unpacked once */
        trn_err_free(err);
        c = trn_arena_alloc(a, sizeof *c);
        tensorflow__coordination_service_config__init(c);
    }
    return c;
}

/* ---- the agent --------------------------------------------------------------------------------------------------- */

typedef struct connecting {
    struct connecting *next;
    trn_agent_done done;
    void *arg;
} connecting;

struct trn_agent {
    trn_eager *e;
    trn_arena *arena; /* of cfg; NULL: nothing is configured */
    const Tensorflow__CoordinationServiceConfig *cfg;
    trn_cluster *cluster;
    trn_devname self;
    trn_channel *leader;
    uint64_t turn; /* answers to older ones are not for us */
    int state;
    uint64_t incarnation, leader_incarnation;
    bool busy; /* registering */
    uint64_t give_up_ns;
    int attempts;
    connecting *waiting;
    bool beating;
    uint64_t heard_ns; /* of the leader */
    trn_timer retry, beat;
    bool ended;
};

static trn_agent *agent_of(trn_eager *e)
{
    if (!e->agent) {
        e->agent = trn_xalloc(sizeof *e->agent);
        e->agent->e = e;
    }
    return e->agent;
}

static void answer_all(trn_agent *g, trn_err err)
{
    connecting *all = g->waiting;
    g->waiting = NULL;
    while (all) {
        connecting *c = all;
        all = c->next;
        c->done(c->arg, trn_err_copy(err));
        free(c);
    }
    trn_err_free(err);
}

/* Forgets the leader; whoever waits gets err. */
static void forget(trn_agent *g, trn_err err)
{
    g->turn++;
    trn_timer_stop(g->e->loop, &g->retry);
    trn_timer_stop(g->e->loop, &g->beat);
    trn_channel_unref(g->leader);
    g->leader = NULL;
    trn_cluster_unref(g->cluster);
    g->cluster = NULL;
    trn_arena_free(g->arena);
    g->arena = NULL;
    g->cfg = NULL;
    g->state = TRN_TASK_DISCONNECTED;
    g->busy = g->beating = false;
    answer_all(g, err);
}

static void fail(trn_agent *g, trn_err err)
{
    if (g->state != TRN_TASK_ERROR)
        TRN_WARN("coordination", "the agent of %s is in error: %s", trn_worker_task(g->e->w), trn_err_msg(err));
    g->state = TRN_TASK_ERROR;
    trn_err_free(err);
}

/* ---- calls to the leader: their answers come on the channel's loop and go on on ours ------------------------------ */

typedef struct call {
    trn_eager *e;
    uint64_t turn;
    void (*then)(trn_agent *g, TRN_OWN trn_err err, uint64_t leader_incarnation);
    trn_err err;
    uint64_t incarnation;
} call;

static void call_back(void *arg)
{
    call *c = arg;
    trn_agent *g = c->e->agent;
    if (g->turn == c->turn)
        c->then(g, c->err, c->incarnation);
    else
        trn_err_free(c->err);
    free(c);
}

static void call_done(void *arg, trn_err err, const trn_msg *msg)
{
    call *c = arg;
    c->err = err;
    if (!err && msg->n) {
        trn_arena *a = trn_arena_new();
        Tensorflow__LeaderIncarnation *m;
        c->err = TRN_PB_UNPACK(&m, a, tensorflow__leader_incarnation__descriptor, msg->p, msg->n);
        if (!c->err)
            c->incarnation = m->leader_incarnation;
        trn_arena_free(a);
    }
    trn_loop_post(c->e->loop, call_back, c);
}

static void ask(trn_agent *g, const char *path, const ProtobufCMessage *q, uint64_t within_ns, void (*then)(trn_agent *, trn_err, uint64_t))
{
    call *c = trn_xalloc(sizeof *c);
    *c = (call){.e = g->e, .turn = g->turn, .then = then};
    trn_call_pb(g->leader, path, q, trn_now_ns() + within_ns, false, NULL, call_done, c);
}

static void ignore(void *arg, trn_err err, const trn_msg *msg)
{
    (void)arg, (void)msg;
    trn_err_free(err);
}

static Tensorflow__CoordinatedTask own_task(const trn_agent *g)
{
    Tensorflow__CoordinatedTask t = TENSORFLOW__COORDINATED_TASK__INIT;
    t.job_name = (char *)g->self.job;
    t.task_id = g->self.task;
    return t;
}

/* ---- heartbeats -------------------------------------------------------------------------------------------------- */

static uint64_t timeout_ns(const trn_agent *g) { return (uint64_t)g->cfg->heartbeat_timeout_in_ms * MS; }

static void beat_over(trn_agent *g, trn_err err, uint64_t leader)
{
    g->beating = false;
    if (!err) {
        g->heard_ns = trn_now_ns();
        if (g->state == TRN_TASK_CONNECTED && leader != g->leader_incarnation)
            fail(g, trn_errorf(TRN_ABORTED, "the leader %s was restarted", g->cfg->service_leader));
    } else if (g->state == TRN_TASK_CONNECTED && (trn_err_marks(err) & TRN_MARK_COORDINATION || trn_now_ns() - g->heard_ns > timeout_ns(g))) {
        fail(g, err);
        err = TRN_OK;
    }
    trn_err_free(err);
}

static void beat(void *arg)
{
    trn_agent *g = arg;
    uint64_t every = timeout_ns(g) / 2;
    if (!g->beating) {
        g->beating = true;
        Tensorflow__CoordinatedTask t = own_task(g);
        Tensorflow__HeartbeatRequest q = TENSORFLOW__HEARTBEAT_REQUEST__INIT;
        q.incarnation = g->incarnation;
        q.source_task = &t;
        ask(g, TRN_PATH_COORDINATION "Heartbeat", &q.base, every, beat_over);
    }
    trn_timer_start(g->e->loop, &g->beat, trn_now_ns() + every, beat, g);
}

/* ---- registering ------------------------------------------------------------------------------------------------- */

static void attempt(void *arg);

/* The leader may not be up yet, not know yet that it leads, or still believe in our last life: all of that passes. */
static bool passes(const trn_agent *g, const trn_error *err)
{
    trn_code code = trn_err_code(err);
    return trn_now_ns() < g->give_up_ns && (!(trn_err_marks(err) & TRN_MARK_COORDINATION) || code == TRN_ABORTED || code == TRN_INTERNAL);
}

static void again_or_fail(trn_agent *g, trn_err err)
{
    if (passes(g, err)) {
        uint64_t pause = TRN_MIN(UINT64_C(1) << TRN_MIN(++g->attempts, 14), (uint64_t)MAX_PAUSE_MS) * MS;
        trn_err_free(err);
        trn_timer_start(g->e->loop, &g->retry, trn_now_ns() + pause / 2 + trn_random64() % (pause / 2), attempt, g);
        return;
    }
    g->busy = false;
    fail(g, trn_err_copy(err));
    answer_all(g, trn_err_wrap(err, "registering with the coordination leader %s", g->cfg->service_leader));
}

static void registered(trn_agent *g, trn_err err, uint64_t leader)
{
    if (err) {
        again_or_fail(g, err);
        return;
    }
    g->busy = false;
    g->state = TRN_TASK_CONNECTED;
    g->leader_incarnation = leader;
    g->heard_ns = trn_now_ns();
    TRN_INFO("coordination", "registered with the leader %s", g->cfg->service_leader);
    trn_timer_stop(g->e->loop, &g->beat);
    beat(g);
    answer_all(g, TRN_OK);
}

static void reset(trn_agent *g, trn_err err, uint64_t leader)
{
    (void)leader;
    if (err && trn_err_code(err) != TRN_FAILED_PRECONDITION) { /* that: it knows of no error of ours */
        again_or_fail(g, err);
        return;
    }
    trn_err_free(err);
    g->state = TRN_TASK_DISCONNECTED;
    attempt(g);
}

static void attempt(void *arg)
{
    trn_agent *g = arg;
    Tensorflow__CoordinatedTask t = own_task(g);
    if (g->state == TRN_TASK_ERROR) {
        Tensorflow__TaskRequest q = TENSORFLOW__TASK_REQUEST__INIT;
        q.source_task = &t;
        ask(g, TRN_PATH_COORDINATION "ResetTask", &q.base, CALL_NS, reset);
        return;
    }
    Tensorflow__RegisterTaskRequest q = TENSORFLOW__REGISTER_TASK_REQUEST__INIT;
    q.incarnation = g->incarnation;
    q.source_task = &t;
    ask(g, TRN_PATH_COORDINATION "RegisterTask", &q.base, CALL_NS, registered);
}

typedef struct wish {
    trn_eager *e;
    trn_arena *arena;
    const Tensorflow__CoordinationServiceConfig *cfg;
    trn_cluster *cluster;
    const char *task; /* our name in it */
    connecting *c;
} wish;

static void configure(trn_agent *g, wish *w, const trn_devname *self, const char *address)
{
    forget(g, trn_errorf(TRN_ABORTED, "another cluster is coordinated now"));
    g->arena = w->arena;
    g->cfg = w->cfg;
    g->cluster = w->cluster;
    g->self = *self;
    g->incarnation = trn_random64();
    g->leader = trn_peers_get(g->e->w->peers, address);
    w->arena = NULL;
    w->cluster = NULL;
}

static void connect_here(void *arg)
{
    wish *w = arg;
    trn_agent *g = agent_of(w->e);
    trn_devname leader, self;
    const char *address = NULL;
    trn_err err = trn_devname_parse(&leader, w->cfg->service_leader, strlen(w->cfg->service_leader));
    if (!err)
        err = trn_devname_parse(&self, w->task, strlen(w->task));
    if (!err)
        address = trn_cluster_address(w->cluster, leader.job, leader.task);
    if (!err && g->ended)
        err = trn_errorf(TRN_UNAVAILABLE, "%s is shutting down", trn_worker_task(w->e->w));
    if (!err && !address)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "coordination service: the leader %s is not in the cluster", w->cfg->service_leader);
    if (err) {
        w->c->done(w->c->arg, err);
        free(w->c);
    } else {
        if (!g->arena || !trn_coord__same(g->cfg, w->cfg) || !trn_cluster_eq(g->cluster, w->cluster))
            configure(g, w, &self, address);
        w->c->next = g->waiting;
        g->waiting = w->c;
        if (g->state == TRN_TASK_CONNECTED) {
            answer_all(g, TRN_OK);
        } else if (!g->busy) {
            g->busy = true;
            g->attempts = 0;
            g->give_up_ns = trn_now_ns() + (uint64_t)g->cfg->cluster_register_timeout_in_ms * MS;
            attempt(g);
        }
    }
    trn_cluster_unref(w->cluster);
    trn_arena_free(w->arena);
    free(w);
}

void trn_agent_connect(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s, trn_agent_done done, void *arg)
{
    wish *w = trn_xalloc(sizeof *w);
    w->e = e;
    w->arena = trn_arena_new();
    w->cfg = trn_coord__copy(w->arena, cfg);
    w->cluster = trn_cluster_ref(s->cluster);
    w->task = trn_arena_strdup(w->arena, s->task);
    w->c = trn_xalloc(sizeof *w->c);
    *w->c = (connecting){.done = done, .arg = arg};
    trn_loop_post(e->loop, connect_here, w);
}

/* ---- what others say ---------------------------------------------------------------------------------------------- */

typedef struct news {
    trn_eager *e;
    trn_err err;
} news;

static void told_here(void *arg)
{
    news *n = arg;
    trn_agent *g = agent_of(n->e);
    if (g->state == TRN_TASK_CONNECTED)
        fail(g, n->err);
    else
        trn_err_free(n->err);
    free(n);
}

void trn_agent__told(trn_eager *e, trn_err err)
{
    news *n = trn_xalloc(sizeof *n);
    *n = (news){e, err};
    trn_loop_post(e->loop, told_here, n);
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

/* A task that shuts down says so: otherwise its coordinator would learn of it only when heartbeats are missed. One whose coordinator has gone signs off. */
static void end_here(void *arg)
{
    trn_eager *e = arg;
    trn_agent *g = agent_of(e);
    trn_lock(&e->mu);
    g->ended = e->stopped;
    trn_unlock(&e->mu);
    if (!g->arena)
        return;
    Tensorflow__CoordinatedTask t = own_task(g);
    if (g->state == TRN_TASK_CONNECTED && g->ended) {
        char text[TRN_DEVNAME_TEXT + 64];
        snprintf(text, sizeof text, "Task %s is shutting down", trn_worker_task(e->w));
        Tensorflow__ReportErrorToServiceRequest q = TENSORFLOW__REPORT_ERROR_TO_SERVICE_REQUEST__INIT;
        q.error_code = TRN_UNAVAILABLE;
        q.error_message = text;
        q.error_origin = &t;
        trn_call_pb(g->leader, TRN_PATH_COORDINATION "ReportErrorToService", &q.base, trn_now_ns() + CALL_NS, false, NULL, ignore, NULL);
    } else if (g->state == TRN_TASK_CONNECTED && !g->cfg->agent_destruction_without_shutdown && g->cfg->shutdown_barrier_timeout_in_ms <= 0) {
        Tensorflow__TaskRequest q = TENSORFLOW__TASK_REQUEST__INIT;
        q.source_task = &t;
        trn_call_pb(g->leader, TRN_PATH_COORDINATION "ShutdownTask", &q.base, trn_now_ns() + CALL_NS, false, NULL, ignore, NULL);
    }
    forget(g, trn_errorf(TRN_UNAVAILABLE, "%s is shutting down", trn_worker_task(e->w)));
}

void trn_coord_end(trn_eager *e, const char *why)
{
    trn_loop_post(e->loop, end_here, e);
    trn_coord__end(e, why);
}

void trn_agent_free(trn_agent *g)
{
    if (!g)
        return;
    trn_channel_unref(g->leader);
    trn_cluster_unref(g->cluster);
    trn_arena_free(g->arena);
    free(g);
}
