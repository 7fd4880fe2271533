/* The coordination service's leader: tasks, values, barriers. Its states, codes and what it says of itself are TensorFlow's, since coordinators act on them. */
#include "eager/coordination.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "proto/pb.h"
#include "worker/service.h"

#define TICK_NS 250000000ull
#define TELL_NS 10000000000ull
#define ALL_TASKS_MS 3600000 /* for WaitForAllTasks */
enum { MAX_VALUES = 65536, MAX_VALUE_BYTES = 64 << 20, MAX_BARRIERS = 1024, MAX_WAITING = 4096 };

#define ALL_TASKS "\1all tasks" /* names of our own barriers: no caller's id begins like that */
#define SHUTDOWN "\1shutdown"

typedef struct task {
    char *name, *job; /* "/job:worker/replica:0/task:1" */
    int index, state;
    uint64_t incarnation, beat_ns;
    uint64_t grace_ns; /* disconnected: heartbeats on their way are taken until then */
    trn_err err;
    trn_sb devices;
} task;

/* A call that may be answered later. Held by the table and by the call's cancellation. */
typedef struct waiter {
    _Atomic int ref;
    trn_coord *c; /* a reference */
    trn_call *call;
    struct waiter *next, **at; /* at NULL: it does not wait */
    bool gone;                 /* the client has left */
    char *key;                 /* GetKeyValue's */
} waiter;

typedef struct barrier {
    char *id;
    bool passed;
    trn_err result;
    uint64_t deadline_ns, order;
    int n, pending;
    task **tasks;
    bool *here;
    waiter *waiting;
} barrier;

typedef struct value {
    char *key, *bytes;
    size_t n;
} value;

struct trn_coord {
    _Atomic int ref;
    trn_eager *e;
    trn_arena *arena;
    const Tensorflow__CoordinationServiceConfig *cfg;
    trn_cluster *cluster;
    uint64_t incarnation, timeout_ns;
    trn_timer tick; /* on the loop, which holds a reference */

    trn_mutex mu; /* everything below */
    bool ended;
    task *tasks;
    int n_tasks;
    trn_map *by_name;
    value *values; /* by key */
    int n_values, cap_values;
    size_t value_bytes;
    waiter *getting;
    int n_waiting;
    trn_map *barriers;
    uint64_t n_made;
};

/* ---- answers, given when the lock is let go ---------------------------------------------------------------------- */

typedef struct answer {
    struct answer *next;
    waiter *w;
    trn_err err;
    trn_sb body;
} answer;

static void coord_unref(trn_coord *c);

static void waiter_unref(void *arg)
{
    waiter *w = arg;
    if (atomic_fetch_sub(&w->ref, 1) != 1)
        return;
    coord_unref(w->c);
    free(w->key);
    free(w);
}

/* Locked. */
static void unlink_waiter(waiter *w)
{
    *w->at = w->next;
    if (w->next)
        w->next->at = w->at;
    w->at = NULL;
    w->c->n_waiting--;
}

/* Locked. Takes it out of its list. */
static answer *answer_to(answer **list, waiter *w, trn_err err)
{
    unlink_waiter(w);
    answer *a = trn_xalloc(sizeof *a);
    *a = (answer){.next = *list, .w = w, .err = err};
    *list = a;
    return a;
}

static void reply_now(waiter *w, trn_err err, const trn_sb *body)
{
    trn_out_msg m = {0};
    if (!err)
        trn_out_bytes(&m, body->p, body->n);
    trn_call_reply(w->call, err, &m);
    waiter_unref(w);
}

static void give(answer *list)
{
    while (list) {
        answer *a = list;
        list = a->next;
        reply_now(a->w, a->err, &a->body);
        trn_sb_fini(&a->body);
        free(a);
    }
}

static void caller_gone(void *arg)
{
    waiter *w = arg;
    answer *list = NULL;
    trn_lock(&w->c->mu);
    w->gone = true;
    if (w->at)
        answer_to(&list, w, trn_errorf(TRN_CANCELLED, "the call was cancelled by its client"));
    trn_unlock(&w->c->mu);
    give(list);
}

/* [loop of the call] Before it can be answered by anybody: from then on it may be cancelled. The caller's reference goes with its answer. */
static waiter *waiter_new(trn_coord *c, trn_call *call, const char *key)
{
    waiter *w = trn_xalloc(sizeof *w);
    atomic_init(&w->ref, 2);
    atomic_fetch_add(&c->ref, 1);
    w->c = c;
    w->call = call;
    w->key = key ? trn_xstrdup(key) : NULL;
    trn_call_on_cancel(call, caller_gone, w, waiter_unref);
    return w;
}

static trn_err TRN_PRINTF(2, 3) said(trn_code code, const char *fmt, ...)
{
    trn_sb s = {0};
    va_list ap;
    va_start(ap, fmt);
    trn_sb_addv(&s, fmt, ap);
    va_end(ap);
    trn_err err = trn_err_mark(trn_errorf(code, "%s", s.p), TRN_MARK_COORDINATION);
    trn_sb_fini(&s);
    return err;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void task_name(char out[TRN_DEVNAME_TEXT], const char *job, int index)
{
    snprintf(out, TRN_DEVNAME_TEXT, "/job:%.*s/replica:0/task:%d", TRN_DEV_JOB_MAX, job, index);
}

static void coord_unref(trn_coord *c)
{
    if (!c || atomic_fetch_sub(&c->ref, 1) != 1)
        return;
    for (int i = 0; i < c->n_tasks; i++) {
        free(c->tasks[i].name);
        free(c->tasks[i].job);
        trn_err_free(c->tasks[i].err);
        trn_sb_fini(&c->tasks[i].devices);
    }
    free(c->tasks);
    trn_map_free(c->by_name, NULL);
    for (int i = 0; i < c->n_values; i++) {
        free(c->values[i].key);
        free(c->values[i].bytes);
    }
    free(c->values);
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(c->barriers, &it, &key, &n, &v);) {
        barrier *b = v;
        trn_err_free(b->result);
        free(b->id);
        free(b->tasks);
        free(b->here);
        free(b);
    }
    trn_map_free(c->barriers, NULL);
    trn_cluster_unref(c->cluster);
    trn_arena_free(c->arena);
    trn_mutex_fini(&c->mu);
    free(c);
}

/* The running service with a reference; NULL: this task leads nothing. */
static trn_coord *running(trn_eager *e)
{
    trn_lock(&e->mu);
    trn_coord *c = e->coord;
    if (c)
        atomic_fetch_add(&c->ref, 1);
    trn_unlock(&e->mu);
    return c;
}

static void tick(void *arg);

static void end_ticking(void *arg)
{
    trn_coord *c = arg;
    trn_timer_stop(c->e->loop, &c->tick);
    coord_unref(c);
}

static trn_coord *coord_new(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s)
{
    trn_coord *c = trn_xalloc(sizeof *c);
    atomic_init(&c->ref, 2); /* the table, the timer */
    c->e = e;
    c->arena = trn_arena_new();
    c->cfg = trn_coord__copy(c->arena, cfg);
    c->cluster = trn_cluster_ref(s->cluster);
    c->incarnation = trn_random64();
    c->timeout_ns = (uint64_t)cfg->heartbeat_timeout_in_ms * 1000000;
    trn_mutex_init(&c->mu, TRN_RANK_WORKER);
    c->by_name = trn_map_new();
    c->barriers = trn_map_new();
    for (size_t i = 0; i < cfg->n_coordinated_job_list; i++)
        c->n_tasks += cfg->coordinated_job_list[i]->num_tasks;
    c->tasks = trn_xalloc(sizeof *c->tasks * (size_t)(c->n_tasks + 1));
    int n = 0;
    for (size_t i = 0; i < cfg->n_coordinated_job_list; i++)
        for (int k = 0; k < cfg->coordinated_job_list[i]->num_tasks; k++, n++) {
            char name[TRN_DEVNAME_TEXT];
            task_name(name, cfg->coordinated_job_list[i]->name, k);
            c->tasks[n] = (task){.name = trn_xstrdup(name), .job = trn_xstrdup(cfg->coordinated_job_list[i]->name), .index = k, .state = TRN_TASK_DISCONNECTED};
            trn_map_puts(c->by_name, name, &c->tasks[n]);
        }
    return c;
}

/* Locked. Of all tasks, in their order. */
static void put_devices(trn_sb *out, const trn_coord *c)
{
    Tensorflow__WaitForAllTasksResponse r = TENSORFLOW__WAIT_FOR_ALL_TASKS_RESPONSE__INIT;
    trn_sb all = {0};
    for (int i = 0; i < c->n_tasks; i++)
        trn_sb_add(&all, c->tasks[i].devices.p, c->tasks[i].devices.n);
    r.leader_incarnation = c->incarnation;
    r.device_info = (ProtobufCBinaryData){all.n, (uint8_t *)all.p};
    trn_pb_pack(out, &r.base);
    trn_sb_fini(&all);
}

/* Locked. */
static void pass(trn_coord *c, barrier *b, trn_err result, answer **list)
{
    b->passed = true;
    b->result = result;
    while (b->waiting) {
        answer *a = answer_to(list, b->waiting, trn_err_copy(result));
        if (!result && strcmp(b->id, ALL_TASKS) == 0)
            put_devices(&a->body, c);
    }
}

static void coord_stop(trn_coord *c, const char *why)
{
    answer *list = NULL;
    trn_lock(&c->mu);
    c->ended = true;
    while (c->getting)
        answer_to(&list, c->getting, trn_errorf(TRN_CANCELLED, "nobody will set %s any more: %s", c->getting->key, why));
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(c->barriers, &it, &key, &n, &v);)
        if (!((barrier *)v)->passed)
            pass(c, v, said(TRN_ABORTED, "barrier %s ends: %s", ((barrier *)v)->id, why), &list);
    trn_unlock(&c->mu);
    give(list);
    trn_loop_post(c->e->loop, end_ticking, c);
}

void trn_coord_begin(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s)
{
    trn_devname leader, self;
    trn_err err = trn_devname_parse(&leader, cfg->service_leader, strlen(cfg->service_leader));
    if (!err)
        err = trn_devname_parse(&self, s->task, strlen(s->task));
    bool ours = !err && strcmp(leader.job, self.job) == 0 && leader.task == self.task;
    trn_err_free(err); /* said by the agent */
    if (!ours)
        return;
    trn_coord *c = coord_new(e, cfg, s), *old = NULL;
    trn_lock(&e->mu);
    bool there = e->stopped || (e->coord && trn_coord__same(e->coord->cfg, c->cfg) && trn_cluster_eq(e->coord->cluster, c->cluster));
    if (!there) {
        old = e->coord;
        e->coord = c;
    }
    trn_unlock(&e->mu);
    if (there) {
        atomic_store(&c->ref, 1);
        coord_unref(c);
        return;
    }
    if (old) {
        coord_stop(old, "another cluster is coordinated now");
        coord_unref(old);
    }
    TRN_INFO("coordination", "leads %d tasks, heartbeats within %" PRId64 " ms", c->n_tasks, cfg->heartbeat_timeout_in_ms);
    trn_loop_post(e->loop, tick, c);
}

void trn_coord__end(trn_eager *e, const char *why)
{
    trn_lock(&e->mu);
    trn_coord *c = e->coord;
    e->coord = NULL;
    trn_unlock(&e->mu);
    if (!c)
        return;
    coord_stop(c, why);
    coord_unref(c);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

/* Who is told of a task's error: filled under the lock, told outside. */
typedef struct tell {
    char **address;
    int n, cap;
    char *job, *message;
    int index, code;
    bool reported;
} tell;

/* Locked. The task's barriers fail. */
static void leave_barriers(trn_coord *c, const task *t, const char *why, answer **list)
{
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(c->barriers, &it, &key, &n, &v);) {
        barrier *b = v;
        for (int i = 0; i < b->n && !b->passed; i++)
            if (b->tasks[i] == t)
                pass(c, b, said(TRN_INTERNAL, "barrier %s: %s %s", b->id, t->name, why), list);
    }
}

/* Locked. */
static void set_error(trn_coord *c, task *t, trn_err err, bool reported, tell *to, answer **list)
{
    TRN_WARN("coordination", "%s is in error: %s", t->name, trn_err_msg(err));
    t->state = TRN_TASK_ERROR;
    trn_err_free(t->err);
    t->err = err;
    leave_barriers(c, t, "is in error", list);
    for (size_t i = 0; i < c->cfg->n_recoverable_jobs; i++)
        if (strcmp(c->cfg->recoverable_jobs[i], t->job) == 0)
            return;
    if (to->n) /* one that they hear of is enough */
        return;
    for (int i = 0; i < c->n_tasks; i++) {
        const char *address = c->tasks[i].state == TRN_TASK_CONNECTED ? trn_cluster_address(c->cluster, c->tasks[i].job, c->tasks[i].index) : NULL;
        if (address)
            TRN_PUSH(to->address, to->n, to->cap, trn_xstrdup(address));
    }
    if (to->n == 0)
        return;
    to->job = trn_xstrdup(t->job);
    to->index = t->index;
    to->message = trn_xstrdup(trn_err_msg(err));
    to->code = (int)trn_err_code(err);
    to->reported = reported;
}

static void ignore(void *arg, trn_err err, const trn_msg *msg)
{
    (void)arg, (void)msg;
    trn_err_free(err); /* it may be gone too, and will be missed soon */
}

static void tell_others(trn_coord *c, tell *t)
{
    Tensorflow__CoordinatedTask from = TENSORFLOW__COORDINATED_TASK__INIT;
    from.job_name = t->job;
    from.task_id = t->index;
    Tensorflow__CoordinationServiceError what = TENSORFLOW__COORDINATION_SERVICE_ERROR__INIT;
    what.source_task = &from;
    what.is_reported_error = t->reported;
    Tensorflow__ReportErrorToTaskRequest q = TENSORFLOW__REPORT_ERROR_TO_TASK_REQUEST__INIT;
    q.error_code = t->code;
    q.error_message = t->message;
    q.error_payload = &what;
    for (int i = 0; i < t->n; i++) {
        trn_channel *ch = trn_peers_get(c->e->w->peers, t->address[i]);
        trn_call_pb(ch, TRN_PATH_COORDINATION "ReportErrorToTask", &q.base, trn_now_ns() + TELL_NS, false, NULL, ignore, NULL);
        trn_channel_unref(ch);
        free(t->address[i]);
    }
    free(t->address);
    free(t->job);
    free(t->message);
}

/* [loop] Who has not been heard of, and which barriers took too long. */
static void tick(void *arg)
{
    trn_coord *c = arg;
    answer *list = NULL;
    tell to = {0};
    uint64_t now = trn_now_ns();
    trn_lock(&c->mu);
    bool ended = c->ended;
    for (int i = 0; !ended && i < c->n_tasks; i++) {
        task *t = &c->tasks[i];
        if (t->state == TRN_TASK_CONNECTED && now - t->beat_ns > c->timeout_ns)
            set_error(c, t,
                      said(TRN_UNAVAILABLE, "no heartbeat of %s for %.1f s: it has failed, was preempted or cannot be reached; its log may say more", t->name,
                           (double)(now - t->beat_ns) / 1e9),
                      false, &to, &list);
    }
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; !ended && trn_map_next(c->barriers, &it, &key, &n, &v);) {
        barrier *b = v;
        if (b->passed || now <= b->deadline_ns)
            continue;
        trn_sb missing = {0};
        for (int i = 0, shown = 0; i < b->n && shown < 20; i++)
            if (!b->here[i]) {
                trn_sb_addf(&missing, "%s\n", b->tasks[i]->name);
                shown++;
            }
        pass(c, b, said(TRN_DEADLINE_EXCEEDED, "barrier %s: its time is up; these did not come:\n%s", b->id, missing.p ? missing.p : ""), &list);
        trn_sb_fini(&missing);
    }
    trn_unlock(&c->mu);
    give(list);
    tell_others(c, &to);
    if (!ended)
        trn_timer_start(c->e->loop, &c->tick, now + TICK_NS, tick, c);
}

static task *find(trn_coord *c, const Tensorflow__CoordinatedTask *q, char name[TRN_DEVNAME_TEXT])
{
    task_name(name, q ? q->job_name : "", q ? q->task_id : 0);
    return trn_map_gets(c->by_name, name);
}

static void connected(task *t, uint64_t incarnation)
{
    t->state = TRN_TASK_CONNECTED;
    t->incarnation = incarnation;
    t->beat_ns = trn_now_ns();
    trn_err_free(t->err);
    t->err = TRN_OK;
}

/* Locked. */
static void leave(trn_coord *c, task *t)
{
    t->state = TRN_TASK_DISCONNECTED;
    t->grace_ns = trn_now_ns() + c->timeout_ns;
    trn_err_free(t->err);
    t->err = TRN_OK;
}

/* Locked. */
static trn_err disconnect(trn_coord *c, const Tensorflow__CoordinatedTask *q, answer **list)
{
    char name[TRN_DEVNAME_TEXT];
    task *t = find(c, q, name);
    if (!t)
        return said(TRN_INVALID_ARGUMENT, "%s is not one of the coordinated tasks", name);
    if (t->state == TRN_TASK_DISCONNECTED)
        return said(TRN_FAILED_PRECONDITION, "%s has left already", name);
    leave(c, t);
    leave_barriers(c, t, "has left", list);
    return TRN_OK;
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

/* Locked. One that has passed is remembered, for those who come late, until room is needed. */
static trn_err barrier_room(trn_coord *c)
{
    if (trn_map_count(c->barriers) < MAX_BARRIERS)
        return TRN_OK;
    barrier *oldest = NULL;
    const char *key;
    size_t n;
    void *v;
    for (size_t it = 0; trn_map_next(c->barriers, &it, &key, &n, &v);)
        if (((barrier *)v)->passed && (!oldest || ((barrier *)v)->order < oldest->order))
            oldest = v;
    if (!oldest)
        return said(TRN_RESOURCE_EXHAUSTED, "%d barriers are under way", MAX_BARRIERS);
    trn_map_dels(c->barriers, oldest->id);
    trn_err_free(oldest->result);
    free(oldest->id);
    free(oldest->tasks);
    free(oldest->here);
    free(oldest);
    return TRN_OK;
}

static barrier *barrier_new(trn_coord *c, const char *id)
{
    barrier *b = trn_xalloc(sizeof *b);
    b->id = trn_xstrdup(id);
    b->order = c->n_made++;
    trn_map_puts(c->barriers, id, b);
    return b;
}

/* Locked. A barrier of all tasks, or of some; fails at once for tasks that are not known or in error. */
static trn_err barrier_make(barrier **out, trn_coord *c, const char *id, int64_t timeout_ms, Tensorflow__CoordinatedTask *const *of, size_t n_of, answer **list)
{
    TRN_TRY(barrier_room(c));
    barrier *b = *out = barrier_new(c, id);
    size_t room = n_of ? n_of : (size_t)c->n_tasks;
    b->tasks = trn_xalloc(sizeof *b->tasks * (room + 1));
    b->here = trn_xalloc(sizeof *b->here * (room + 1));
    for (size_t i = 0; i < room; i++) {
        char name[TRN_DEVNAME_TEXT];
        task *t = n_of ? find(c, of[i], name) : &c->tasks[i];
        if (!t) {
            pass(c, b, said(TRN_INVALID_ARGUMENT, "barrier %s is to wait for %s, which is not one of the coordinated tasks", id, name), list);
            return TRN_OK;
        }
        bool twice = false;
        for (int k = 0; n_of && k < b->n; k++)
            twice |= b->tasks[k] == t;
        if (!twice)
            b->tasks[b->n++] = t;
    }
    b->pending = b->n;
    for (int i = 0; i < b->n && !b->passed; i++)
        if (b->tasks[i]->state == TRN_TASK_ERROR)
            pass(c, b, said(TRN_INTERNAL, "barrier %s is to wait for %s, which is in error", id, b->tasks[i]->name), list);
    timeout_ms = timeout_ms < 0 ? 0 : TRN_MIN(timeout_ms, INT64_C(1) << 40);
    b->deadline_ns = trn_now_ns() + (uint64_t)timeout_ms * 1000000;
    return TRN_OK;
}

/* Locked. The same tasks as when it was made? */
static bool agrees(trn_coord *c, const barrier *b, Tensorflow__CoordinatedTask *const *of, size_t n_of)
{
    if (n_of == 0)
        return b->n == c->n_tasks;
    if (n_of != (size_t)b->n)
        return false;
    for (size_t i = 0; i < n_of; i++) {
        char name[TRN_DEVNAME_TEXT];
        const task *t = find(c, of[i], name);
        bool there = false;
        for (int k = 0; k < b->n; k++)
            there |= b->tasks[k] == t;
        if (!there)
            return false;
    }
    return true;
}

/* Locked. */
static trn_err wait_here(trn_coord *c, waiter **list, waiter *w)
{
    if (c->ended)
        return said(TRN_INTERNAL, "Coordination service is not enabled.");
    if (w->gone)
        return trn_errorf(TRN_CANCELLED, "the call was cancelled by its client");
    if (c->n_waiting >= MAX_WAITING)
        return said(TRN_RESOURCE_EXHAUSTED, "%d calls wait already", MAX_WAITING);
    w->next = *list;
    w->at = list;
    if (*list)
        (*list)->at = &w->next;
    *list = w;
    c->n_waiting++;
    return TRN_OK;
}

/* Locked. One task more is there. */
static void arrive(trn_coord *c, barrier *b, const Tensorflow__CoordinatedTask *from, Tensorflow__CoordinatedTask *const *of, size_t n_of, answer **list)
{
    char name[TRN_DEVNAME_TEXT];
    const task *t = find(c, from, name);
    int at = -1;
    for (int i = 0; t && i < b->n; i++)
        if (b->tasks[i] == t)
            at = i;
    if (at < 0) {
        pass(c, b, said(TRN_INVALID_ARGUMENT, "%s is at barrier %s, which does not wait for it", name, b->id), list);
    } else if (!agrees(c, b, of, n_of)) {
        pass(c, b, said(TRN_INVALID_ARGUMENT, "barrier %s was made for other tasks", b->id), list);
    } else if (!b->here[at]) {
        b->here[at] = true;
        if (--b->pending > 0)
            return;
        pass(c, b, TRN_OK, list);
        for (int i = 0; strcmp(b->id, SHUTDOWN) == 0 && i < b->n; i++)
            leave(c, b->tasks[i]);
    }
}

/* [loop of the call] Replies, now or when everybody is there. */
static void at_barrier(trn_coord *c, trn_call *call, const char *id, int64_t timeout_ms, const Tensorflow__CoordinatedTask *from, Tensorflow__CoordinatedTask *const *of,
                       size_t n_of)
{
    answer *list = NULL;
    waiter *w = waiter_new(c, call, NULL);
    bool now = true;
    trn_sb body = {0};
    trn_err err = TRN_OK;
    trn_lock(&c->mu);
    barrier *b = trn_map_gets(c->barriers, id);
    if (!b)
        err = barrier_make(&b, c, id, timeout_ms, of, n_of, &list);
    if (!err && b->passed) {
        if (strcmp(id, SHUTDOWN) == 0)
            err = disconnect(c, from, &list);
        if (!err && strcmp(id, ALL_TASKS) == 0)
            put_devices(&body, c);
        if (!err)
            err = trn_err_copy(b->result);
    } else if (!err && !(err = wait_here(c, &b->waiting, w))) {
        now = false;
        arrive(c, b, from, of, n_of, &list);
    }
    trn_unlock(&c->mu);
    if (now)
        reply_now(w, err, &body);
    trn_sb_fini(&body);
    give(list);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* "a/b" of "//a///b/". */
static char *normal_key(const char *key)
{
    char *out = trn_xalloc(strlen(key) + 2);
    size_t n = 0;
    while (*key) {
        while (*key == '/')
            key++;
        while (*key && *key != '/')
            out[n++] = *key++;
        if (*key)
            out[n++] = '/';
    }
    while (n > 0 && out[n - 1] == '/')
        n--;
    out[n] = 0;
    return out;
}

/* Locked. The first that is not before `key`. */
static int lower_bound(const trn_coord *c, const char *key)
{
    int lo = 0, hi = c->n_values;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (strcmp(c->values[mid].key, key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void put_entry(trn_sb *out, const value *v)
{
    Tensorflow__KeyValueEntry e = TENSORFLOW__KEY_VALUE_ENTRY__INIT;
    e.key = v->key;
    e.value = (ProtobufCBinaryData){v->n, (uint8_t *)v->bytes};
    Tensorflow__KeyValue kv = TENSORFLOW__KEY_VALUE__INIT;
    kv.kv = &e;
    trn_pb_pack(out, &kv.base);
}

/* Locked. The range of keys in that directory. */
static void directory(const trn_coord *c, const char *key, int *begin, int *end)
{
    trn_sb dir = {0};
    trn_sb_addf(&dir, "%s/", key);
    *begin = *end = lower_bound(c, dir.p);
    while (*end < c->n_values && strncmp(c->values[*end].key, dir.p, dir.n) == 0)
        ++*end;
    trn_sb_fini(&dir);
}

static void remove_values(trn_coord *c, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        c->value_bytes -= c->values[i].n + strlen(c->values[i].key);
        free(c->values[i].key);
        free(c->values[i].bytes);
    }
    if (end > begin)
        memmove(c->values + begin, c->values + end, sizeof *c->values * (size_t)(c->n_values - end));
    c->n_values -= end - begin;
}

/* ---- on the wire ------------------------------------------------------------------------------------------------- */

/* One call: its request taken apart, the service found; what it brings about is told when the lock is let go. */
typedef struct request {
    trn_arena *a;
    trn_coord *c;
    void *q;
    trn_err err;
    const ProtobufCMessage *reply; /* NULL: an empty one */
    answer *list;
    tell to;
    char name[TRN_DEVNAME_TEXT]; /* of the task that it is about */
} request;

/* False: it is answered. */
static bool take(request *r, void *svc, trn_call *call, const ProtobufCMessageDescriptor *d)
{
    *r = (request){.a = trn_arena_new()};
    r->q = trn_request_pb(r->a, call, d);
    if (r->q) {
        r->c = running(svc);
        if (r->c)
            return true;
        trn_call_reply(call, said(TRN_INTERNAL, "Coordination service is not enabled."), NULL); /* words that agents and coordinators look for */
    }
    trn_arena_free(r->a);
    return false;
}

static void drop(request *r)
{
    coord_unref(r->c);
    trn_arena_free(r->a);
}

/* The same with the lock, and the end of such a call. */
static bool take_locked(request *r, void *svc, trn_call *call, const ProtobufCMessageDescriptor *d)
{
    if (!take(r, svc, call, d))
        return false;
    trn_lock(&r->c->mu);
    return true;
}

static void reply(request *r, trn_call *call)
{
    trn_unlock(&r->c->mu);
    if (!r->err && r->reply)
        trn_reply_pb(call, r->reply);
    else
        trn_call_reply(call, r->err, NULL);
    give(r->list);
    tell_others(r->c, &r->to);
    drop(r);
}

static void put_incarnation(request *r)
{
    Tensorflow__LeaderIncarnation *m = trn_arena_alloc(r->a, sizeof *m);
    tensorflow__leader_incarnation__init(m);
    m->leader_incarnation = r->c->incarnation;
    r->reply = &m->base;
}

static void register_task(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__register_task_request__descriptor))
        return;
    const Tensorflow__RegisterTaskRequest *q = r.q;
    task *t = find(r.c, q->source_task, r.name);
    bool may_return = r.c->cfg->allow_new_incarnation_to_reconnect && t && trn_err_code(t->err) == TRN_UNAVAILABLE;
    if (!t)
        r.err = said(TRN_INVALID_ARGUMENT, "%s is not one of the coordinated tasks", r.name);
    else if (t->state == TRN_TASK_DISCONNECTED || may_return || (t->state == TRN_TASK_CONNECTED && t->incarnation == q->incarnation)) {
        TRN_INFO("coordination", "%s has connected, incarnation %" PRIu64, r.name, q->incarnation);
        connected(t, q->incarnation);
        put_incarnation(&r);
    } else if (t->state == TRN_TASK_CONNECTED) {
        r.err = said(TRN_ABORTED, "%s registers anew while its last life is still believed in", r.name);
        set_error(r.c, t, trn_err_copy(r.err), false, &r.to, &r.list);
    } else {
        r.err = said(TRN_ABORTED, "%s is in error: ResetTask comes before it registers again", r.name);
    }
    reply(&r, call);
}

static void heartbeat(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__heartbeat_request__descriptor))
        return;
    const Tensorflow__HeartbeatRequest *q = r.q;
    uint64_t now = trn_now_ns();
    task *t = find(r.c, q->source_task, r.name);
    if (!t)
        r.err = said(TRN_INVALID_ARGUMENT, "a heartbeat of %s, which is not one of the coordinated tasks", r.name);
    else if (t->err)
        r.err = trn_err_copy(t->err);
    else if (t->state == TRN_TASK_DISCONNECTED && now > t->grace_ns)
        r.err = said(TRN_INVALID_ARGUMENT, "a heartbeat of %s, which has not registered", r.name);
    else if (t->incarnation != q->incarnation) {
        r.err = said(TRN_ABORTED, "a heartbeat of %s's incarnation %" PRIu64 ", %" PRIu64 " has registered: it was restarted", r.name, q->incarnation, t->incarnation);
        set_error(r.c, t, trn_err_copy(r.err), false, &r.to, &r.list);
    } else {
        t->beat_ns = now;
        put_incarnation(&r);
    }
    reply(&r, call);
}

static void wait_for_all(void *svc, trn_call *call)
{
    request r;
    if (!take(&r, svc, call, &tensorflow__wait_for_all_tasks_request__descriptor))
        return;
    const Tensorflow__WaitForAllTasksRequest *q = r.q;
    trn_lock(&r.c->mu);
    task *t = find(r.c, q->source_task, r.name);
    if (t && t->devices.n == 0 && q->device_info.len <= MAX_VALUE_BYTES / MAX_WAITING)
        trn_sb_add(&t->devices, q->device_info.data, q->device_info.len);
    trn_unlock(&r.c->mu);
    at_barrier(r.c, call, ALL_TASKS, ALL_TASKS_MS, q->source_task, NULL, 0);
    drop(&r);
}

static void reset_task(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__task_request__descriptor))
        return;
    r.err = disconnect(r.c, ((Tensorflow__TaskRequest *)r.q)->source_task, &r.list);
    reply(&r, call);
}

/* All together, if it was asked for like that. */
static void shutdown_task(void *svc, trn_call *call)
{
    request r;
    if (!take(&r, svc, call, &tensorflow__task_request__descriptor))
        return;
    int64_t within_ms = r.c->cfg->shutdown_barrier_timeout_in_ms;
    if (within_ms > 0)
        at_barrier(r.c, call, SHUTDOWN, within_ms, ((Tensorflow__TaskRequest *)r.q)->source_task, NULL, 0);
    drop(&r);
    if (within_ms <= 0)
        reset_task(svc, call);
}

static trn_code code_of(int32_t code) { return code > 0 && code <= TRN_UNAUTHENTICATED ? (trn_code)code : TRN_UNKNOWN; }

static void report_to_service(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__report_error_to_service_request__descriptor))
        return;
    const Tensorflow__ReportErrorToServiceRequest *q = r.q;
    task *t = find(r.c, q->error_origin, r.name);
    if (!t)
        r.err = said(TRN_INVALID_ARGUMENT, "%s is not one of the coordinated tasks", r.name);
    else if (t->state != TRN_TASK_CONNECTED)
        r.err = said(TRN_FAILED_PRECONDITION, "%s is not connected, or in error already", r.name);
    else
        set_error(r.c, t, said(code_of(q->error_code), "%s", q->error_message), true, &r.to, &r.list);
    reply(&r, call);
}

static void report_to_task(void *svc, trn_call *call)
{
    trn_arena *a = trn_arena_new();
    const Tensorflow__ReportErrorToTaskRequest *q = trn_request_pb(a, call, &tensorflow__report_error_to_task_request__descriptor);
    if (q) {
        const Tensorflow__CoordinatedTask *from = q->error_payload ? q->error_payload->source_task : NULL;
        trn_agent__told(svc, said(code_of(q->error_code), "of /job:%s/task:%d: %s", from ? from->job_name : "", from ? from->task_id : 0, q->error_message));
        trn_call_reply(call, TRN_OK, NULL);
    }
    trn_arena_free(a);
}

static void get_task_state(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__get_task_state_request__descriptor))
        return;
    const Tensorflow__GetTaskStateRequest *q = r.q;
    Tensorflow__GetTaskStateResponse *out = trn_arena_alloc(r.a, sizeof *out);
    tensorflow__get_task_state_response__init(out);
    out->task_state = trn_arena_alloc(r.a, sizeof *out->task_state * (q->n_source_task + 1));
    for (size_t i = 0; i < q->n_source_task && !r.err; i++) {
        const task *t = find(r.c, q->source_task[i], r.name);
        if (!t) {
            r.err = said(TRN_INVALID_ARGUMENT, "%s is not one of the coordinated tasks", r.name);
            break;
        }
        Tensorflow__CoordinatedTaskStateInfo *s = trn_arena_alloc(r.a, sizeof *s);
        tensorflow__coordinated_task_state_info__init(s);
        s->task = q->source_task[i];
        s->state = t->state;
        if (t->err) {
            s->error_code = (int32_t)trn_err_code(t->err);
            s->error_message = trn_arena_strdup(r.a, trn_err_msg(t->err));
            s->error_payload = trn_arena_alloc(r.a, sizeof *s->error_payload);
            tensorflow__coordination_service_error__init(s->error_payload);
            s->error_payload->source_task = q->source_task[i];
        }
        out->task_state[out->n_task_state++] = s;
    }
    r.reply = &out->base;
    reply(&r, call);
}

static void insert_value(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__key_value__descriptor))
        return;
    const Tensorflow__KeyValueEntry *kv = ((Tensorflow__KeyValue *)r.q)->kv;
    const char *given = kv ? kv->key : "";
    size_t n = kv ? kv->value.len : 0;
    char *key = normal_key(given);
    trn_coord *c = r.c;
    int at = lower_bound(c, key);
    if (at < c->n_values && strcmp(c->values[at].key, key) == 0)
        r.err = said(TRN_ALREADY_EXISTS, "%s is set already", given);
    else if (c->n_values >= MAX_VALUES || c->value_bytes + n + strlen(key) > MAX_VALUE_BYTES)
        r.err = said(TRN_RESOURCE_EXHAUSTED, "%s: the service keeps at most %d values and %d bytes", given, MAX_VALUES, MAX_VALUE_BYTES);
    else {
        value v = {.key = key, .bytes = trn_xalloc(n + 1), .n = n};
        if (n)
            memcpy(v.bytes, kv->value.data, n);
        c->value_bytes += n + strlen(key);
        TRN_PUSH(c->values, c->n_values, c->cap_values, v);
        memmove(c->values + at + 1, c->values + at, sizeof v * (size_t)(c->n_values - 1 - at));
        c->values[at] = v;
        for (waiter *w = c->getting, *next; w; w = next) {
            next = w->next;
            if (strcmp(w->key, key) == 0)
                put_entry(&answer_to(&r.list, w, TRN_OK)->body, &v);
        }
        key = NULL;
    }
    free(key);
    reply(&r, call);
}

static void get_or_wait(void *svc, trn_call *call, bool waits)
{
    request r;
    if (!take(&r, svc, call, &tensorflow__key_request__descriptor))
        return;
    const char *given = ((Tensorflow__KeyRequest *)r.q)->key;
    char *key = normal_key(given);
    trn_coord *c = r.c;
    trn_sb body = {0};
    trn_err err = TRN_OK;
    waiter *w = waiter_new(c, call, key);
    bool now = true;
    trn_lock(&c->mu);
    int at = lower_bound(c, key);
    if (at < c->n_values && strcmp(c->values[at].key, key) == 0)
        put_entry(&body, &c->values[at]);
    else if (!waits)
        err = said(TRN_NOT_FOUND, "%s is not set", given);
    else
        now = (err = wait_here(c, &c->getting, w)) != TRN_OK;
    trn_unlock(&c->mu);
    if (now)
        reply_now(w, err, &body);
    trn_sb_fini(&body);
    free(key);
    drop(&r);
}

static void get_value(void *svc, trn_call *call) { get_or_wait(svc, call, true); }
static void try_get_value(void *svc, trn_call *call) { get_or_wait(svc, call, false); }

static void get_directory(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__key_request__descriptor))
        return;
    char *given = ((Tensorflow__KeyRequest *)r.q)->key, *key = normal_key(given);
    Tensorflow__GetKeyValueDirResponse *out = trn_arena_alloc(r.a, sizeof *out);
    tensorflow__get_key_value_dir_response__init(out);
    out->directory_key = given;
    int begin, end;
    directory(r.c, key, &begin, &end);
    out->kv = trn_arena_alloc(r.a, sizeof *out->kv * (size_t)(end - begin + 1));
    for (int i = begin; i < end; i++) {
        Tensorflow__KeyValueEntry *e = trn_arena_alloc(r.a, sizeof *e);
        tensorflow__key_value_entry__init(e);
        e->key = trn_arena_strdup(r.a, r.c->values[i].key);
        e->value = (ProtobufCBinaryData){r.c->values[i].n, trn_arena_dup(r.a, r.c->values[i].bytes, r.c->values[i].n)};
        out->kv[out->n_kv++] = e;
    }
    r.reply = &out->base;
    free(key);
    reply(&r, call);
}

/* The value and what is in the directory of that name. */
static void delete_value(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__key_request__descriptor))
        return;
    char *key = normal_key(((Tensorflow__KeyRequest *)r.q)->key);
    int begin, end;
    directory(r.c, key, &begin, &end);
    remove_values(r.c, begin, end);
    int at = lower_bound(r.c, key);
    if (at < r.c->n_values && strcmp(r.c->values[at].key, key) == 0)
        remove_values(r.c, at, at + 1);
    free(key);
    reply(&r, call);
}

static void barrier_call(void *svc, trn_call *call)
{
    request r;
    if (!take(&r, svc, call, &tensorflow__barrier_request__descriptor))
        return;
    const Tensorflow__BarrierRequest *q = r.q;
    if (q->barrier_id[0] == '\1')
        trn_call_reply(call, said(TRN_INVALID_ARGUMENT, "a barrier's name does not begin with byte 1"), NULL);
    else
        at_barrier(r.c, call, q->barrier_id, q->barrier_timeout_in_ms, q->source_task, q->tasks, q->n_tasks);
    drop(&r);
}

static void cancel_barrier(void *svc, trn_call *call)
{
    request r;
    if (!take_locked(&r, svc, call, &tensorflow__cancel_barrier_request__descriptor))
        return;
    const Tensorflow__CancelBarrierRequest *q = r.q;
    (void)find(r.c, q->source_task, r.name);
    barrier *b = trn_map_gets(r.c->barriers, q->barrier_id);
    if (!b) { /* whoever comes later learns that it was cancelled */
        r.err = barrier_room(r.c);
        b = r.err ? NULL : barrier_new(r.c, q->barrier_id);
    }
    if (b && b->passed)
        r.err = said(TRN_FAILED_PRECONDITION, "barrier %s was passed already, with code %d", q->barrier_id, (int)trn_err_code(b->result));
    else if (b)
        pass(r.c, b, said(TRN_CANCELLED, "barrier %s was cancelled by %s", q->barrier_id, r.name), &r.list);
    reply(&r, call);
}

void trn_coord_serve(trn_rpc_server *s, trn_eager *e)
{
#define METHOD(name, fn) {TRN_PATH_COORDINATION name, fn, NULL, MAX_VALUE_BYTES}
    static const trn_rpc_method methods[] = {
        METHOD("RegisterTask", register_task),
        METHOD("Heartbeat", heartbeat),
        METHOD("WaitForAllTasks", wait_for_all),
        METHOD("ShutdownTask", shutdown_task),
        METHOD("ResetTask", reset_task),
        METHOD("ReportErrorToTask", report_to_task),
        METHOD("ReportErrorToService", report_to_service),
        METHOD("GetTaskState", get_task_state),
        METHOD("InsertKeyValue", insert_value),
        METHOD("GetKeyValue", get_value),
        METHOD("TryGetKeyValue", try_get_value),
        METHOD("GetKeyValueDir", get_directory),
        METHOD("DeleteKeyValue", delete_value),
        METHOD("Barrier", barrier_call),
        METHOD("CancelBarrier", cancel_barrier),
        {0},
    };
    trn_rpc_server_add(s, methods, e);
}
