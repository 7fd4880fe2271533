/* The monitored session: what stands between a training loop and the sessions that it outlives.
 *
 *     open:  hooks begin → the graph is finished (initialisers, saver, report of what is not initialised, gates) → session_make
 *     run:   hooks before_run → one step with everything that caller and hooks want → hooks after_run
 *            a lost task: session_drop, session_make, and the same run again
 *     close: hooks end → the session is closed
 *
 * How the others hear from the chief. Each task that holds variables has a queue under a well-known name into which nobody puts anything. Those who wait
 * park a dequeue there: an asynchronous op, no thread anywhere. The chief closes the queue once everything is initialised, and all waiting dequeues end
 * at once with OUT_OF_RANGE, as do later ones. A ps that starts anew has a new, open queue, so its gate is shut together with the loss of its variables.
 * The queue's name has the names of the variables in it (hashed), so that two models on one ps do not open each other's gates. The parked step has a
 * growing deadline, 50 ms to 1 s, after which the variables themselves are asked again: a TensorFlow chief knows nothing of gates. */
#include "train/monitor_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "graph/devname.h"
#include "master/server.h"

#define SECOND UINT64_C(1000000000)
enum { LOOK_FIRST_MS = 50, LOOK_MAX_MS = 1000, RETRY_FIRST_MS = 50, RETRY_MAX_MS = 2000, CLOSE_MS = 5000 };

/* The variables of one task, and its gate. */
typedef struct group {
    char task[96]; /* "/job:ps/task:0"; "": wherever the master puts them */
    trn_variable **vars;
    int n, cap;
    const char *flags;             /* fetch: a bool vector, which of them are initialised */
    const char *gate_wait, *gate_open; /* targets; NULL: no gate */
} group;

typedef struct feed {
    const char *name;
    trn_tensor *value;
    bool owned;
} feed;

struct trn_step_ask {
    const trn_run *caller;
    feed *feeds;
    int n_feeds, cap_feeds;
    const char **fetches; /* the caller's first, then those of hooks, each once */
    int n_fetches, cap_fetches;
    const char **targets;
    int n_targets, cap_targets;
    int *slots; /* of each hook's fetches, one hook after the other */
    int n_slots, cap_slots;
    int hook_first; /* where the current hook's begin */
    bool trace;
    trn_err err;
    /* scratch of the step itself */
    trn_tensor **got, **view;
    const char **feed_names;
    trn_tensor **feed_values;
    int cap_got, cap_view, cap_feed_run;
};

typedef struct events {
    char *dir;
    trn_event_writer *w;
} events;

struct trn_monitored {
    trn_builder *b;
    trn_server *server, *own_server;
    char *target;
    bool is_chief;
    char *dir; /* checkpoints */
    uint64_t wait_ns; /* 0: without end */
    trn_sb config;
    trn_err (*init_fn)(void *arg, trn_session *s);
    void *init_arg;

    trn_hook **hooks;
    int n_hooks, cap_hooks;
    int *hook_slots; /* per hook: where its fetches begin in ask.slots; one more for the end */

    trn_saver *saver; /* NULL: nothing to restore */
    trn_saver **savers; /* those that may be at work in the background */
    int n_savers, cap_savers;
    group *global, *local;
    int n_global, cap_global, n_local, cap_local;
    const char *ready; /* fetch: what else is not ready; NULL */
    const char **init, **local_init;
    int n_init, cap_init, n_local_init, cap_local_init;
    const char *step_name; /* fetch: global_step; NULL: there is none */

    trn_session *session;
    int recoveries;
    bool prepared; /* by this chief, once */
    uint64_t good_ns; /* when something last went well */
    bool failed;
    _Atomic bool stop;
    pthread_mutex_t mu;
    pthread_cond_t stopped;
    trn_step_ask ask;
    trn_map *names; /* of nodes and outputs → builder memory */
    events *events;
    int n_events, cap_events;
};

/* ---- small things that hooks use too -------------------------------------------------------------------------------- */

trn_every trn_every_of(int64_t steps, double secs, int64_t default_steps, double default_secs)
{
    if (steps <= 0 && secs <= 0) {
        steps = default_steps;
        secs = default_secs;
    }
    return (trn_every){.steps = steps > 0 ? steps : 0, .secs = secs};
}

bool trn_every_due(const trn_every *e, int64_t step)
{
    if (!e->ever)
        return true;
    if (step == e->last_step)
        return false;
    if (e->steps > 0)
        return step >= e->last_step + e->steps;
    return (double)(trn_now_ns() - e->last_ns) >= e->secs * 1e9;
}

void trn_every_mark(trn_every *e, int64_t step, double *secs, int64_t *steps)
{
    uint64_t now = trn_now_ns();
    if (secs)
        *secs = e->ever ? (double)(now - e->last_ns) / 1e9 : 0;
    if (steps)
        *steps = e->ever ? step - e->last_step : 0;
    e->ever = true;
    e->last_step = step;
    e->last_ns = now;
}

int64_t trn_scalar_i64(const trn_tensor *t)
{
    if (!t || trn_tensor_count(t) < 1)
        return 0;
    const void *p = trn_tensor_data(t);
    switch ((int)trn_tensor_dtype(t)) {
    case TRN_INT64:
        return *(const int64_t *)p;
    case TRN_INT32:
        return *(const int32_t *)p;
    default:
        return (int64_t)trn_scalar_f64(t, 0);
    }
}

static double half_to_double(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

double trn_scalar_f64(const trn_tensor *t, int64_t i)
{
    if (!t || i < 0 || i >= trn_tensor_count(t))
        return NAN;
    const void *p = trn_tensor_data(t);
    switch ((int)trn_tensor_dtype(t)) {
    case TRN_FLOAT:
        return ((const float *)p)[i];
    case TRN_DOUBLE:
        return ((const double *)p)[i];
    case TRN_HALF:
        return half_to_double(((const uint16_t *)p)[i]);
    case TRN_BFLOAT16: {
        uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    case TRN_INT8:
        return ((const int8_t *)p)[i];
    case TRN_UINT8:
        return ((const uint8_t *)p)[i];
    case TRN_INT16:
        return ((const int16_t *)p)[i];
    case TRN_UINT16:
        return ((const uint16_t *)p)[i];
    case TRN_INT32:
        return ((const int32_t *)p)[i];
    case TRN_UINT32:
        return ((const uint32_t *)p)[i];
    case TRN_INT64:
        return (double)((const int64_t *)p)[i];
    case TRN_UINT64:
        return (double)((const uint64_t *)p)[i];
    case TRN_BOOL:
        return ((const bool *)p)[i];
    default:
        return NAN;
    }
}

void trn_config_filter(trn_sb *out, const char *filter)
{
    size_t n = strlen(filter);
    char head[2] = {4 << 3 | 2, (char)n}; /* field 4, its length */
    if (n > 127) /* a filter that cannot be one */
        return;
    trn_sb_add(out, head, sizeof head);
    trn_sb_add(out, filter, n);
}

void trn_config_filter_task(trn_sb *out, const char *job, int task)
{
    char own[96];
    snprintf(own, sizeof own, "/job:%s/task:%d", job, task);
    trn_config_filter(out, own);
}

/* Seconds after which line number `said` is due. */
static double nag_at(int said)
{
    static const int at[] = {1, 5, 15, 30};
    int k = (int)TRN_COUNTOF(at);
    return said < k ? at[said] : 60.0 * (said - k + 1);
}

bool trn_nag_due(trn_nag *n)
{
    double now = trn_nag_secs(n);
    if (!n->since_ns)
        n->since_ns = trn_now_ns();
    if (now < nag_at(n->said))
        return false;
    while (nag_at(n->said) <= now)
        n->said++;
    return true;
}

double trn_nag_secs(const trn_nag *n)
{
    return n->since_ns ? (double)(trn_now_ns() - n->since_ns) / 1e9 : 0;
}

int64_t trn_nag_next_ms(const trn_nag *n)
{
    double left = nag_at(n->said) - trn_nag_secs(n);
    return left < 0.05 ? 50 : (int64_t)(left * 1000);
}

bool trn_task_of_device(char *out, size_t size, const char *device)
{
    trn_devname d;
    trn_err err = trn_devname_parse(&d, device ? device : "", strlen(device ? device : ""));
    if (err) {
        trn_err_free(err);
        return false;
    }
    if (!*d.job)
        return false;
    snprintf(out, size, "/job:%s/task:%d", d.job, d.task < 0 ? 0 : d.task);
    return true;
}

void trn_monitored__nap(trn_monitored *m, uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)(ns / SECOND);
    t.tv_nsec += (long)(ns % SECOND);
    if (t.tv_nsec >= (long)SECOND) {
        t.tv_sec++;
        t.tv_nsec -= (long)SECOND;
    }
    pthread_mutex_lock(&m->mu);
    while (!atomic_load(&m->stop))
        if (pthread_cond_timedwait(&m->stopped, &m->mu, &t))
            break;
    pthread_mutex_unlock(&m->mu);
}

trn_server *trn_monitored__server(const trn_monitored *m)
{
    return m->server;
}

void trn_monitored__use_saver(trn_monitored *m, trn_saver *s)
{
    TRN_PUSH(m->savers, m->n_savers, m->cap_savers, s);
}

trn_err trn_monitored__step_name(const char **out, trn_monitored *m)
{
    if (!m->step_name)
        return trn_errorf(TRN_FAILED_PRECONDITION, "the graph has no global_step: make it with trn_global_step(b), and let the optimizer count it");
    *out = m->step_name;
    return TRN_OK;
}

/* ---- finishing the graph -------------------------------------------------------------------------------------------- */

static group *group_of(group **v, int *n, int *cap, const char *task)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp((*v)[i].task, task))
            return &(*v)[i];
    group g = {0};
    snprintf(g.task, sizeof g.task, "%s", task);
    TRN_PUSH(*v, *n, *cap, g);
    return &(*v)[*n - 1];
}

static void add_groups(group **v, int *n, int *cap, trn_builder *b, trn_which which)
{
    int count;
    trn_variable **vars = trn_variables(&count, b, which);
    for (int i = 0; i < count; i++) {
        char task[96] = "";
        const trn_node *node = trn_out_op(b, vars[i]->handle);
        if (node)
            trn_task_of_device(task, sizeof task, node->device);
        group *g = group_of(v, n, cap, task);
        TRN_PUSH(g->vars, g->n, g->cap, vars[i]);
    }
}

/* One vector per task, made there: a wait looks at hundreds of variables with one small tensor per ps. */
static void add_report(trn_builder *b, group *g)
{
    trn_out *flags = trn_builder_alloc(b, sizeof *flags * (size_t)(g->n + 1));
    for (int i = 0; i < g->n; i++)
        flags[i] = g->vars[i]->is_initialized;
    trn_device_scope(b, g->task);
    g->flags = trn_out_name(b, trn_node_add(trn_named(b, "initialized"), "Pack", flags, g->n, (trn_attr[]){trn_at_int("axis", 0)}, 1));
    trn_end(b);
}

static uint64_t names_hash(const group *v, int n)
{
    uint64_t h = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < v[i].n; k++)
            h += trn_hash64_tf(v[i].vars[k]->name, strlen(v[i].vars[k]->name)); /* in any order */
    return h;
}

static void add_gate(trn_builder *b, group *g, uint64_t hash)
{
    char name[48];
    snprintf(name, sizeof name, "trainera_ready_%016" PRIx64, hash);
    trn_device_scope(b, g->task);
    const trn_attr queue[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32)), trn_at_int("capacity", 1), trn_at_str("shared_name", name)};
    trn_out q = trn_node_add(trn_named(b, "gate"), "FIFOQueueV2", NULL, 0, queue, 3);
    const trn_attr types[] = {trn_at_types(b, "component_types", TRN_TYPES(TRN_INT32))};
    g->gate_wait = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "gate_wait"), "QueueDequeueV2", &q, 1, types, 1)));
    g->gate_open = trn_out_name(b, trn_out_node(trn_node_add(trn_named(b, "gate_open"), "QueueCloseV2", &q, 1, NULL, 0)));
    trn_end(b);
}

static void add_names(const char ***v, int *n, int *cap, trn_builder *b, const trn_out *ops)
{
    for (; ops && trn_out_is(*ops); ops++)
        TRN_PUSH(*v, *n, *cap, trn_out_name(b, trn_out_node(*ops)));
}

static trn_err finish_graph(trn_monitored *m, const trn_monitored_opts *o)
{
    trn_builder *b = m->b;
    TRN_PUSH(m->init, m->n_init, m->cap_init, trn_out_name(b, trn_out_node(trn_variables_init(b, TRN_VARS_GLOBAL))));
    add_names(&m->init, &m->n_init, &m->cap_init, b, o->init_ops);
    TRN_PUSH(m->local_init, m->n_local_init, m->cap_local_init, trn_out_name(b, trn_out_node(trn_variables_init(b, TRN_VARS_LOCAL))));
    add_names(&m->local_init, &m->n_local_init, &m->cap_local_init, b, o->local_init_ops);
    add_groups(&m->global, &m->n_global, &m->cap_global, b, TRN_VARS_GLOBAL);
    add_groups(&m->local, &m->n_local, &m->cap_local, b, TRN_VARS_LOCAL);
    trn_name_scope_again(b, "");
    trn_name_scope(b, "monitored");
    uint64_t hash = names_hash(m->global, m->n_global);
    for (int i = 0; i < m->n_global; i++) {
        add_report(b, &m->global[i]);
        if (*m->global[i].task)
            add_gate(b, &m->global[i], hash);
    }
    for (int i = 0; i < m->n_local; i++)
        add_report(b, &m->local[i]);
    trn_end(b);
    trn_end(b);
    if (o->ready)
        m->ready = trn_out_name(b, *o->ready);
    return trn_builder_check(b);
}

/* ---- what is missing ------------------------------------------------------------------------------------------------ */

/* Which variables of these groups are not initialised, as text; *first is the first group with one (-1: none). */
static trn_err look(int *missing, int *first, trn_sb *text, trn_monitored *m, const group *v, int n, const char *ready)
{
    *missing = 0;
    *first = -1;
    int fetches = n + (ready ? 1 : 0);
    if (!fetches)
        return TRN_OK;
    const char **names = trn_xalloc(sizeof *names * (size_t)fetches);
    trn_tensor **got = trn_xalloc(sizeof *got * (size_t)fetches);
    for (int i = 0; i < n; i++)
        names[i] = v[i].flags;
    if (ready)
        names[n] = ready;
    trn_err err = trn_session_run(m->session, &(trn_run){.fetches = names, .n_fetches = fetches, .out = got});
    int named = 0;
    for (int i = 0; !err && i < n; i++) {
        if (trn_tensor_dtype(got[i]) != TRN_BOOL || trn_tensor_count(got[i]) != v[i].n) {
            err = trn_errorf(TRN_INTERNAL, "%s is not a vector of %d flags", v[i].flags, v[i].n);
            break;
        }
        const bool *is = trn_tensor_data(got[i]);
        bool here = false;
        for (int k = 0; k < v[i].n; k++) {
            if (is[k])
                continue;
            ++*missing;
            if (*first < 0)
                *first = i;
            if (named++ < 8) {
                trn_sb_addf(text, "%s%s", text->n ? ", " : "", v[i].vars[k]->name);
                here = true;
            }
        }
        if (here && *v[i].task)
            trn_sb_addf(text, " on %s", v[i].task);
    }
    if (named > 8)
        trn_sb_addf(text, " and %d more", named - 8);
    if (!err && ready)
        for (int64_t k = 0; trn_tensor_dtype(got[n]) == TRN_STRING && k < trn_tensor_count(got[n]); k++) {
            size_t len;
            const char *p = trn_tensor_str_at(got[n], k, &len);
            ++*missing;
            if (k < 8)
                trn_sb_addf(text, "%s%.*s", text->n ? ", " : "", (int)len, p ? p : "");
        }
    for (int i = 0; i < fetches; i++)
        trn_tensor_unref(got[i]);
    free(got);
    free(names);
    return err;
}

/* ---- making a session ----------------------------------------------------------------------------------------------- */

static bool is_loss(const trn_error *err)
{
    trn_code c = trn_err_code(err);
    return c == TRN_ABORTED || c == TRN_UNAVAILABLE;
}

static bool out_of_time(const trn_monitored *m, uint64_t since_ns)
{
    return m->wait_ns && trn_now_ns() - since_ns >= m->wait_ns;
}

static void patience(char *out, size_t size, const trn_monitored *m, uint64_t since_ns)
{
    uint64_t gone = trn_now_ns() - since_ns;
    if (!m->wait_ns)
        snprintf(out, size, "does not give up");
    else
        snprintf(out, size, "gives up in %.0f s", gone < m->wait_ns ? (double)(m->wait_ns - gone) / 1e9 : 0.0);
}

/* A session that every task has answered; says for whom it waits. */
static trn_err session_open(trn_monitored *m, uint64_t since_ns)
{
    trn_nag nag = {.since_ns = since_ns};
    for (;;) {
        int64_t ms = trn_nag_next_ms(&nag);
        if (m->wait_ns) {
            uint64_t gone = trn_now_ns() - since_ns;
            int64_t left = gone < m->wait_ns ? (int64_t)((m->wait_ns - gone) / 1000000) : 0;
            ms = TRN_MIN(ms, TRN_MAX(left, 10));
        }
        trn_session_opts o = {.config = m->config.n ? m->config.p : NULL, .config_len = m->config.n, .timeout_ms = ms};
        trn_err err = m->server ? trn_session_open_on(&m->session, m->server, &o) : trn_session_open(&m->session, m->target, &o);
        if (!err)
            return TRN_OK;
        if (trn_err_code(err) != TRN_DEADLINE_EXCEEDED || atomic_load(&m->stop))
            return err;
        if (out_of_time(m, since_ns))
            return trn_err_wrap(err, "waited %.0f s for the tasks of the cluster", (double)(trn_now_ns() - since_ns) / 1e9);
        if (trn_nag_due(&nag)) {
            char then[64];
            patience(then, sizeof then, m, since_ns);
            TRN_INFO("monitor", "waiting for tasks for %.0f s: %s; goes on as soon as they answer, %s", trn_nag_secs(&nag), trn_err_msg(err), then);
        }
        trn_err_free(err);
    }
}

static trn_err run_targets(trn_monitored *m, const char *const *names, int n)
{
    return trn_session_run(m->session, &(trn_run){.targets = names, .n_targets = n});
}

static trn_err open_gates(trn_monitored *m)
{
    for (int i = 0; i < m->n_global; i++) {
        if (!m->global[i].gate_open)
            continue;
        trn_err err = run_targets(m, &m->global[i].gate_open, 1);
        if (trn_err_code(err) == TRN_CANCELLED) { /* open already */
            trn_err_free(err);
            err = TRN_OK;
        }
        TRN_TRY(err);
    }
    return TRN_OK;
}

static trn_err local_init(trn_monitored *m)
{
    /* One after the other: tables and iterators may need what stands before them. */
    for (int i = 0; i < m->n_local_init; i++)
        TRN_TRY(run_targets(m, &m->local_init[i], 1));
    return TRN_OK;
}

static trn_err not_ready(int missing, const trn_sb *text, const char *who)
{
    return trn_errorf(TRN_FAILED_PRECONDITION, "%s did not make the model ready: %d not initialised: %s", who, missing, text->n ? text->p : "?");
}

/* After a recovery: are all variables as we left them? Then nothing of the training is lost; only this task, or the way to the ps, was. */
static trn_err all_there(bool *out, trn_monitored *m)
{
    int missing = 0, first;
    trn_sb text = {0};
    trn_err err = look(&missing, &first, &text, m, m->global, m->n_global, NULL);
    trn_sb_fini(&text);
    *out = !err && !missing;
    return err;
}

static trn_err chief_prepare(trn_monitored *m)
{
    trn_err err = TRN_OK;
    bool kept = false;
    if (m->prepared)
        TRN_TRY(all_there(&kept, m));
    char *last = m->dir && !kept ? trn_latest_checkpoint(m->dir) : NULL;
    if (kept) {
        TRN_INFO("monitor", "all variables are still there: training goes on with them");
    } else if (last) {
        uint64_t t = trn_now_ns();
        err = trn_saver_restore(m->saver, m->session, last);
        if (err)
            err = trn_err_wrap(err, "restoring %s", last);
        else
            TRN_INFO("monitor", "restored %s in %.2f s", last, (double)(trn_now_ns() - t) / 1e9);
    } else {
        for (int i = 0; !err && i < m->n_init; i++)
            err = run_targets(m, &m->init[i], 1);
        if (!err && m->init_fn)
            err = m->init_fn(m->init_arg, m->session);
    }
    if (!err)
        err = local_init(m);
    int missing = 0, first;
    trn_sb text = {0};
    if (!err)
        err = look(&missing, &first, &text, m, m->global, m->n_global, m->ready);
    if (!err && missing)
        err = not_ready(missing, &text, last ? last : "the initialisers");
    trn_sb_fini(&text);
    free(last);
    if (!err)
        err = open_gates(m);
    m->prepared |= !err;
    return err;
}

/* Parked until the chief opens the gate, or the time is over. */
static trn_err gate_pass(trn_monitored *m, const group *g, int64_t ms)
{
    trn_err err = TRN_OK;
    bool open = false;
    if (g && g->gate_wait) {
        uint64_t t = trn_now_ns();
        err = trn_session_run(m->session, &(trn_run){.targets = &g->gate_wait, .n_targets = 1, .timeout_ms = ms});
        trn_code c = trn_err_code(err);
        open = c == TRN_OUT_OF_RANGE && trn_now_ns() - t > SECOND / 1000;
        if (c == TRN_OUT_OF_RANGE || c == TRN_DEADLINE_EXCEEDED) {
            trn_err_free(err);
            err = TRN_OK;
            if (open || c == TRN_DEADLINE_EXCEEDED)
                return TRN_OK;
        }
        TRN_TRY(err);
    }
    /* No gate, or one that was open all along while variables are missing: time must pass. */
    trn_monitored__nap(m, (uint64_t)ms * 1000000);
    return TRN_OK;
}

static trn_err worker_prepare(trn_monitored *m, uint64_t since_ns)
{
    trn_nag nag = {.since_ns = since_ns};
    int64_t pause = LOOK_FIRST_MS;
    bool said = false;
    for (;;) {
        int missing, first;
        trn_sb text = {0};
        trn_err err = look(&missing, &first, &text, m, m->global, m->n_global, m->ready);
        if (!err && !missing) {
            trn_sb_fini(&text);
            if (said)
                TRN_INFO("monitor", "the chief has initialised everything after %.1f s", trn_nag_secs(&nag));
            return local_init(m);
        }
        if (!err && atomic_load(&m->stop))
            err = trn_errorf(TRN_CANCELLED, "asked to stop while waiting for the chief to initialise %s", text.p);
        if (!err && out_of_time(m, since_ns))
            err = trn_errorf(TRN_DEADLINE_EXCEEDED, "waited %.0f s for the chief to initialise %s; is it running?", trn_nag_secs(&nag), text.p);
        if (!err && trn_nag_due(&nag)) {
            char then[64];
            patience(then, sizeof then, m, since_ns);
            TRN_INFO("monitor", "waiting for the chief for %.0f s: it has not yet initialised %d variables: %s; goes on as soon as it has, looks again within %d ms, %s",
                     trn_nag_secs(&nag), missing, text.p, (int)LOOK_MAX_MS, then);
            said = true;
        }
        trn_sb_fini(&text);
        if (!err)
            err = gate_pass(m, first >= 0 ? &m->global[first] : NULL, pause);
        TRN_TRY(err);
        pause = TRN_MIN(pause * 3 / 2, LOOK_MAX_MS);
    }
}

static void session_drop(trn_monitored *m)
{
    for (int i = 0; i < m->n_savers; i++) { /* a save in the background uses the session */
        trn_err err = trn_saver_wait(m->savers[i]);
        if (err)
            TRN_WARN("monitor", "a checkpoint was not written: %s", trn_err_msg(err));
        trn_err_free(err);
    }
    trn_err_free(trn_session_close(m->session));
    m->session = NULL;
}

static trn_err make_once(trn_monitored *m, uint64_t since_ns)
{
    TRN_TRY(session_open(m, since_ns));
    trn_err err = trn_session_extend_builder(m->session, m->b);
    if (!err)
        err = m->is_chief ? chief_prepare(m) : worker_prepare(m, since_ns);
    for (int i = 0; !err && i < m->n_hooks; i++)
        if (m->hooks[i]->table->after_create_session) {
            err = m->hooks[i]->table->after_create_session(m->hooks[i], m);
            if (err)
                err = trn_err_wrap(err, "hook %s after the session was created", m->hooks[i]->table->name);
        }
    if (err)
        session_drop(m);
    return err;
}

/* Again as long as tasks are lost on the way, within the time that one waits. */
static trn_err session_make(trn_monitored *m)
{
    uint64_t since = trn_now_ns();
    int64_t pause = RETRY_FIRST_MS;
    for (;;) {
        trn_err err = make_once(m, since);
        if (!err || !is_loss(err))
            return err;
        if (atomic_load(&m->stop))
            return err;
        if (out_of_time(m, since))
            return trn_err_wrap(err, "no session for %.0f s", (double)(trn_now_ns() - since) / 1e9);
        TRN_WARN("monitor", "a task was lost while the session was made, trying again in %.2f s: %s", (double)pause / 1e3, trn_err_msg(err));
        trn_err_free(err);
        trn_monitored__nap(m, (uint64_t)pause * 1000000);
        pause = TRN_MIN(pause * 2, RETRY_MAX_MS);
    }
}

/* ---- one step with hooks -------------------------------------------------------------------------------------------- */

int trn_ask_fetch(trn_step_ask *a, const char *name)
{
    int at = -1;
    for (int i = 0; i < a->n_fetches && at < 0; i++)
        if (!strcmp(a->fetches[i], name))
            at = i;
    if (at < 0) {
        at = a->n_fetches;
        TRN_PUSH(a->fetches, a->n_fetches, a->cap_fetches, name);
    }
    TRN_PUSH(a->slots, a->n_slots, a->cap_slots, at);
    return a->n_slots - 1 - a->hook_first;
}

void trn_ask_target(trn_step_ask *a, const char *name)
{
    for (int i = 0; i < a->n_targets; i++)
        if (!strcmp(a->targets[i], name))
            return;
    TRN_PUSH(a->targets, a->n_targets, a->cap_targets, name);
}

static bool fed(const trn_step_ask *a, const char *name)
{
    for (int i = 0; i < a->n_feeds; i++)
        if (!strcmp(a->feeds[i].name, name))
            return true;
    return false;
}

void trn_ask_feed(trn_step_ask *a, const char *name, trn_tensor *value)
{
    if (fed(a, name) && !a->err)
        a->err = trn_errorf(TRN_INVALID_ARGUMENT, "%s is fed already", name);
    if (!value && !a->err)
        a->err = trn_errorf(TRN_INVALID_ARGUMENT, "the feed of %s is no tensor", name);
    if (a->err) {
        trn_tensor_unref(value);
        return;
    }
    TRN_PUSH(a->feeds, a->n_feeds, a->cap_feeds, (feed){name, value, true});
}

void trn_ask_trace(trn_step_ask *a) { a->trace = true; }

const trn_run *trn_ask_caller(const trn_step_ask *a) { return a->caller; }

static void ask_begin(trn_step_ask *a, const trn_run *run)
{
    a->caller = run;
    a->n_feeds = a->n_fetches = a->n_targets = a->n_slots = 0;
    a->trace = run->trace;
    a->err = TRN_OK;
    for (int i = 0; i < run->n_feeds; i++)
        TRN_PUSH(a->feeds, a->n_feeds, a->cap_feeds, (feed){run->feed_names[i], run->feeds[i], false});
    for (int i = 0; i < run->n_fetches; i++)
        TRN_PUSH(a->fetches, a->n_fetches, a->cap_fetches, run->fetches[i]);
    for (int i = 0; i < run->n_targets; i++)
        TRN_PUSH(a->targets, a->n_targets, a->cap_targets, run->targets[i]);
}

static void ask_end(trn_step_ask *a)
{
    for (int i = 0; i < a->n_feeds; i++)
        if (a->feeds[i].owned)
            trn_tensor_unref(a->feeds[i].value);
    a->n_feeds = 0;
}

static void ask_free(trn_step_ask *a)
{
    ask_end(a);
    free(a->feeds);
    free(a->fetches);
    free(a->targets);
    free(a->slots);
    free(a->got);
    free(a->view);
    free(a->feed_names);
    free(a->feed_values);
}

#define ROOM(v, cap, n)                                                                                                \
    do {                                                                                                               \
        if ((cap) < (n))                                                                                               \
            (v) = trn_xrealloc((v), sizeof *(v) * (size_t)(n));                                                        \
    } while (0)

/* What hooks and caller want, as one step. Fetched tensors are in a->got. */
static trn_err ask_run(trn_monitored *m, trn_step_ask *a, void **metadata, size_t *metadata_len)
{
    ROOM(a->feed_names, a->cap_feed_run, a->n_feeds);
    ROOM(a->feed_values, a->cap_feed_run, a->n_feeds);
    a->cap_feed_run = TRN_MAX(a->cap_feed_run, a->n_feeds);
    ROOM(a->got, a->cap_got, a->n_fetches);
    a->cap_got = TRN_MAX(a->cap_got, a->n_fetches);
    ROOM(a->view, a->cap_view, a->n_slots);
    a->cap_view = TRN_MAX(a->cap_view, a->n_slots);
    for (int i = 0; i < a->n_feeds; i++) {
        a->feed_names[i] = a->feeds[i].name;
        a->feed_values[i] = a->feeds[i].value;
    }
    trn_run r = {.n_feeds = a->n_feeds, .feed_names = a->feed_names, .feeds = a->feed_values, .n_fetches = a->n_fetches, .fetches = a->fetches, .n_targets = a->n_targets,
                 .targets = a->targets, .out = a->got, .timeout_ms = a->caller->timeout_ms, .trace = a->trace};
    if (a->trace) {
        r.metadata = metadata;
        r.metadata_len = metadata_len;
    }
    return trn_session_run(m->session, &r);
}

static trn_err hooked_run(trn_monitored *m, const trn_run *run)
{
    trn_step_ask *a = &m->ask;
    ask_begin(a, run);
    trn_err err = TRN_OK;
    for (int i = 0; !err && i < m->n_hooks; i++) {
        trn_hook *h = m->hooks[i];
        m->hook_slots[i] = a->hook_first = a->n_slots;
        if (!h->table->before_run)
            continue;
        err = h->table->before_run(h, m, a);
        if (!err) {
            err = a->err;
            a->err = TRN_OK;
        }
        if (err)
            err = trn_err_wrap(err, "hook %s before the run", h->table->name);
    }
    trn_err_free(a->err);
    a->err = TRN_OK;
    m->hook_slots[m->n_hooks] = a->n_slots;
    void *metadata = NULL;
    size_t metadata_len = 0;
    bool ran = false;
    if (!err) {
        err = ask_run(m, a, &metadata, &metadata_len);
        ran = !err;
    }
    for (int i = 0; ran && i < a->n_slots; i++)
        a->view[i] = a->got[a->slots[i]];
    for (int i = 0; !err && i < m->n_hooks; i++) {
        trn_hook *h = m->hooks[i];
        if (!h->table->after_run)
            continue;
        int first = m->hook_slots[i];
        err = h->table->after_run(h, m, &(trn_step_got){.fetched = a->view + first, .n = m->hook_slots[i + 1] - first, .metadata = metadata, .metadata_len = metadata_len});
        if (err)
            err = trn_err_wrap(err, "hook %s after the run", h->table->name);
    }
    for (int i = 0; ran && i < a->n_fetches; i++) {
        if (!err && i < run->n_fetches)
            run->out[i] = a->got[i];
        else
            trn_tensor_unref(a->got[i]);
    }
    if (!err && run->trace && run->metadata) {
        *run->metadata = metadata;
        if (run->metadata_len)
            *run->metadata_len = metadata_len;
        metadata = NULL;
    }
    free(metadata);
    ask_end(a);
    return err;
}

/* Is this error the loss of a task? Variables that are no longer there are: their ps has started anew. */
static bool lost(trn_monitored *m, const trn_error *err)
{
    if (is_loss(err))
        return true;
    trn_code c = trn_err_code(err);
    bool perhaps = c == TRN_FAILED_PRECONDITION || c == TRN_NOT_FOUND || c == TRN_INTERNAL; /* read, changed, trained */
    if (!perhaps || !m->session)
        return false;
    int missing, first;
    trn_sb text = {0};
    trn_err e = look(&missing, &first, &text, m, m->global, m->n_global, NULL);
    bool gone = e ? is_loss(e) : missing > 0;
    trn_err_free(e);
    trn_sb_fini(&text);
    return gone;
}

trn_err trn_monitored_run(trn_monitored *m, const trn_run *run)
{
    if (run->n_fetches && !run->out)
        return trn_errorf(TRN_INVALID_ARGUMENT, "fetches without `out`");
    int64_t pause = 0;
    for (;;) {
        trn_err err = TRN_OK;
        if (!m->session)
            err = session_make(m);
        if (!err)
            err = hooked_run(m, run);
        if (!err) {
            m->good_ns = trn_now_ns();
            return TRN_OK;
        }
        if (trn_err_code(err) == TRN_OUT_OF_RANGE) {
            TRN_INFO("monitor", "the input has ended: %s", trn_err_msg(err));
            trn_err_free(err);
            for (int i = 0; i < run->n_fetches; i++)
                run->out[i] = NULL;
            trn_monitored_request_stop(m);
            return TRN_OK;
        }
        if (!m->session || !lost(m, err) || out_of_time(m, m->good_ns)) { /* session_make has tried for long enough */
            m->failed = true;
            return err;
        }
        TRN_WARN("monitor", "a task was lost; the session is opened again%s: %s",
                 m->is_chief ? m->dir ? ", and the last checkpoint restored if variables are gone" : ", and variables that are gone initialised" : ", when the chief has restored what is gone",
                 trn_err_msg(err));
        trn_err_free(err);
        session_drop(m);
        m->recoveries++;
        if (pause)
            trn_monitored__nap(m, (uint64_t)pause * 1000000);
        pause = pause ? TRN_MIN(pause * 2, RETRY_MAX_MS) : RETRY_FIRST_MS;
    }
}

/* Names are made once: a builder keeps every name that it gives out, and training loops are long. */
static const char *name_of(trn_monitored *m, trn_out o)
{
    uint64_t key = (uint64_t)(uint32_t)o.node << 32 | (uint32_t)o.slot;
    char *name = trn_map_geti(m->names, key);
    if (!name) {
        name = (char *)(uintptr_t)trn_out_name(m->b, o);
        trn_map_puti(m->names, key, name);
    }
    return name;
}

trn_err trn_monitored_step(trn_monitored *m, trn_out op, const trn_out *fetches, int n, trn_tensor **out)
{
    enum { FEW = 16 };
    const char *few[FEW], **names = n > FEW ? trn_xalloc(sizeof *names * (size_t)n) : few;
    trn_err err = TRN_OK;
    for (int i = 0; i < n; i++) {
        names[i] = name_of(m, fetches[i]);
        if (!trn_out_is(fetches[i]) && !err)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "fetch %d is no tensor of the graph", i);
    }
    const char *target = trn_out_is(op) ? name_of(m, trn_out_node(op)) : NULL;
    if (!err)
        err = trn_monitored_run(m, &(trn_run){.fetches = names, .n_fetches = n, .out = out, .targets = &target, .n_targets = target ? 1 : 0});
    if (names != few)
        free(names);
    return err;
}

/* ---- open, close ---------------------------------------------------------------------------------------------------- */

bool trn_monitored_should_stop(const trn_monitored *m) { return atomic_load(&m->stop); }

void trn_monitored_request_stop(trn_monitored *m)
{
    pthread_mutex_lock(&m->mu);
    atomic_store(&m->stop, true);
    pthread_cond_broadcast(&m->stopped);
    pthread_mutex_unlock(&m->mu);
}

trn_session *trn_monitored_session(trn_monitored *m) { return m->session; }
trn_builder *trn_monitored_builder(trn_monitored *m) { return m->b; }
bool trn_monitored_is_chief(const trn_monitored *m) { return m->is_chief; }
int trn_monitored_recoveries(const trn_monitored *m) { return m->recoveries; }

trn_err trn_monitored_global_step(int64_t *out, trn_monitored *m)
{
    const char *name;
    TRN_TRY(trn_monitored__step_name(&name, m));
    trn_tensor *t;
    TRN_TRY(trn_session_run(m->session, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t}));
    *out = trn_scalar_i64(t);
    trn_tensor_unref(t);
    return TRN_OK;
}

trn_err trn_monitored_events(trn_event_writer **out, trn_monitored *m, const char *dir)
{
    for (int i = 0; i < m->n_events; i++)
        if (!strcmp(m->events[i].dir, dir)) {
            *out = m->events[i].w;
            return TRN_OK;
        }
    trn_event_writer *w;
    TRN_TRY(trn_event_writer_open(&w, dir, NULL));
    trn_event_writer_add_graph(w, m->b);
    TRN_PUSH(m->events, m->n_events, m->cap_events, (events){trn_xstrdup(dir), w});
    *out = w;
    return TRN_OK;
}

static void hook_free(trn_hook *h)
{
    if (h && h->table->free)
        h->table->free(h);
    else
        free(h);
}

static trn_err add_hooks(trn_monitored *m, trn_hook *const *v, int n, bool use)
{
    trn_err err = TRN_OK;
    for (int i = 0; i < n; i++) {
        if (!v[i] && !err)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "hook %d is NULL", i);
        if (use && v[i])
            TRN_PUSH(m->hooks, m->n_hooks, m->cap_hooks, v[i]);
        else
            hook_free(v[i]);
    }
    return err;
}

/* What TensorFlow's MonitoredTrainingSession gives a chief. */
static void add_chief_hooks(trn_monitored *m, const trn_monitored_opts *o)
{
    const char *events_dir = o->summary_dir ? o->summary_dir : o->checkpoint_dir;
    if (events_dir && o->log_steps >= 0)
        TRN_PUSH(m->hooks, m->n_hooks, m->cap_hooks, trn_hook_step_counter(&(trn_step_counter_opts){.every_steps = o->log_steps, .dir = events_dir}));
    if (events_dir && o->summary_steps >= 0 && o->summary_secs >= 0)
        TRN_PUSH(m->hooks, m->n_hooks, m->cap_hooks,
                 trn_hook_summary_saver(&(trn_summary_saver_opts){.every_steps = o->summary_steps, .every_secs = o->summary_secs, .dir = events_dir}));
    if (o->checkpoint_dir && o->save_steps >= 0 && o->save_secs >= 0)
        TRN_PUSH(m->hooks, m->n_hooks, m->cap_hooks,
                 trn_hook_checkpoint_saver(
                     &(trn_checkpoint_saver_opts){.dir = o->checkpoint_dir, .every_secs = o->save_secs, .every_steps = o->save_steps}));
}

static trn_err begin(trn_monitored *m, const trn_monitored_opts *o)
{
    const trn_variable *step = trn_variable_find(m->b, "global_step");
    if (step)
        m->step_name = trn_out_name(m->b, step->value);
    for (int i = 0; i < m->n_hooks; i++)
        if (m->hooks[i]->table->begin) {
            trn_err err = m->hooks[i]->table->begin(m->hooks[i], m, m->b);
            if (err)
                return trn_err_wrap(err, "hook %s at the beginning", m->hooks[i]->table->name);
        }
    /* After the hooks: their variables are saved too. */
    bool wanted = o->checkpoint_dir != NULL;
    for (int i = 0; i < m->n_savers; i++)
        wanted |= !m->savers[i];
    if (wanted)
        m->saver = trn_saver_default(m->b);
    for (int i = 0; i < m->n_savers; i++)
        if (!m->savers[i])
            m->savers[i] = m->saver;
    return finish_graph(m, o);
}

static trn_err find_server(trn_monitored *m, const trn_monitored_opts *o)
{
    m->server = o->server;
    if (!o->server && o->target) {
        m->target = trn_xstrdup(o->target);
    } else if (!o->server) {
        TRN_TRY(trn_server_create_local(&m->own_server));
        m->server = m->own_server;
    }
    if (o->config) {
        trn_sb_add(&m->config, o->config, o->config_len);
    } else if (m->server) {
        const trn_cluster *c = trn_server_cluster(m->server);
        if (trn_cluster_job_find(c, "ps")) {
            trn_config_filter(&m->config, "/job:ps");
            trn_config_filter_task(&m->config, trn_server_job(m->server), trn_server_task(m->server));
        }
    }
    return TRN_OK;
}

static void monitored_free(trn_monitored *m)
{
    for (int i = 0; i < m->n_hooks; i++)
        hook_free(m->hooks[i]);
    for (int i = 0; i < m->n_global; i++)
        free(m->global[i].vars);
    for (int i = 0; i < m->n_local; i++)
        free(m->local[i].vars);
    for (int i = 0; i < m->n_events; i++)
        free(m->events[i].dir);
    if (m->own_server)
        trn_server_close(m->own_server, 1000);
    ask_free(&m->ask);
    trn_map_free(m->names, NULL);
    trn_sb_fini(&m->config);
    free(m->events);
    free(m->hooks);
    free(m->hook_slots);
    free(m->global);
    free(m->local);
    free(m->init);
    free(m->local_init);
    free(m->savers);
    free(m->target);
    free(m->dir);
    pthread_mutex_destroy(&m->mu);
    pthread_cond_destroy(&m->stopped);
    free(m);
}

static trn_err close_events(trn_monitored *m)
{
    trn_err err = TRN_OK;
    for (int i = 0; i < m->n_events; i++) {
        trn_err e = trn_event_writer_close(m->events[i].w);
        if (err)
            trn_err_free(e);
        else
            err = e;
    }
    return err;
}

trn_err trn_monitored_open(trn_monitored **out, const trn_monitored_opts *o)
{
    trn_monitored *m = trn_xalloc(sizeof *m);
    m->names = trn_map_new();
    m->b = o->builder;
    m->is_chief = o->is_chief || (!o->server && !o->target);
    m->dir = o->checkpoint_dir ? trn_xstrdup(o->checkpoint_dir) : NULL;
    double wait = o->wait_secs == 0 ? 7200 : o->wait_secs;
    m->wait_ns = wait < 0 ? 0 : (uint64_t)(wait * 1e9);
    m->init_fn = o->init_fn;
    m->init_arg = o->init_arg;
    pthread_mutex_init(&m->mu, NULL);
    pthread_cond_init(&m->stopped, NULL);
    trn_err err = add_hooks(m, o->chief_hooks, o->n_chief_hooks, m->is_chief);
    if (m->is_chief)
        add_chief_hooks(m, o);
    trn_err more = add_hooks(m, o->hooks, o->n_hooks, true);
    if (err)
        trn_err_free(more);
    else
        err = more;
    m->hook_slots = trn_xalloc(sizeof *m->hook_slots * (size_t)(m->n_hooks + 1));
    if (!err && !o->builder)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "a monitored session needs a builder");
    if (!err)
        err = trn_builder_check(m->b);
    if (!err)
        err = find_server(m, o);
    if (!err)
        err = begin(m, o);
    if (!err && m->is_chief)
        trn_setter__log_plan(m->b);
    m->good_ns = trn_now_ns();
    if (!err)
        err = session_make(m);
    m->good_ns = trn_now_ns();
    if (err) {
        trn_err_free(close_events(m));
        monitored_free(m);
        return err;
    }
    *out = m;
    return TRN_OK;
}

trn_err trn_monitored_close(trn_monitored *m)
{
    if (!m)
        return TRN_OK;
    trn_err err = TRN_OK;
    if (!m->failed && m->session)
        for (int i = 0; i < m->n_hooks; i++) {
            trn_hook *h = m->hooks[i];
            if (!h->table->end)
                continue;
            trn_err e = h->table->end(h, m);
            if (e && !err)
                err = trn_err_wrap(e, "hook %s at the end", h->table->name);
            else
                trn_err_free(e);
        }
    if (m->session)
        session_drop(m);
    trn_err e = close_events(m);
    if (err)
        trn_err_free(e);
    else
        err = e;
    monitored_free(m);
    return err;
}
