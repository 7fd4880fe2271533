/* Sessions and registered graphs of one task. */
#include "worker/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/devname.h"
#include "res/var.h"
#include "worker/worker_int.h"

/* ---- sessions ----------------------------------------------------------------------------------------------------- */

trn_wsession *trn_wsession_ref(trn_wsession *s)
{
    atomic_fetch_add_explicit(&s->ref, 1, memory_order_relaxed);
    return s;
}

static void unref_plan(void *p)
{
    trn_plan_unref(p);
}

void trn_wsession_unref(trn_wsession *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_map_free(s->graphs, unref_plan);
    trn_map_free(s->outboxes, NULL);
    trn_kcache_unref(s->kcache);
    if (s->isolated)
        trn_resmgr_clear(s->resmgr, NULL);
    trn_resmgr_unref(s->resmgr);
    trn_cluster_unref(s->cluster);
    trn_mutex_fini(&s->mu);
    free(s->handle);
    free(s->task);
    free(s->master_task);
    free(s);
}

static trn_wsession *session_make(trn_worker *w, const trn_wsession_opts *o)
{
    trn_wsession *s = trn_xalloc(sizeof *s);
    s->ref = 1;
    s->w = w;
    s->handle = trn_xstrdup(o->handle);
    s->cluster = trn_cluster_ref(o->cluster ? o->cluster : w->cluster);
    char name[TRN_DEVNAME_TEXT];
    trn_devname d = o->cluster && o->job && *o->job ? trn_devname_task(o->job, o->task) : trn_devname_task(w->job, w->task_index);
    s->task = trn_xstrdup(trn_devname_text(name, &d));
    s->isolated = o->isolate;
    s->resmgr = o->isolate ? trn_resmgr_new("localhost") : trn_resmgr_ref(w->resmgr);
    s->kcache = trn_kcache_new();
    s->master_task = trn_xstrdup(o->master_task ? o->master_task : "");
    s->master_incarnation = o->master_incarnation;
    trn_mutex_init(&s->mu, TRN_RANK_GRAPH);
    s->graphs = trn_map_new();
    s->outboxes = trn_map_new();
    return s;
}

/* A master that was restarted never closes what it had opened before: its new incarnation tells. Nor does it clean the steps that it died in. */
static void drop_stale(trn_worker *w, const trn_wsession_opts *o)
{
    trn_wsession **stale = NULL;
    int n = 0, cap = 0;
    const char *key;
    size_t len;
    void *v;
    trn_lock(&w->mu);
    for (size_t it = 0; trn_map_next(w->sessions, &it, &key, &len, &v);) {
        trn_wsession *s = v;
        if (s->master_incarnation != o->master_incarnation && *s->master_task && !strcmp(s->master_task, o->master_task))
            TRN_PUSH(stale, n, cap, s);
    }
    for (int i = 0; i < n; i++)
        trn_map_dels(w->sessions, stale[i]->handle);
    trn_unlock(&w->mu);
    for (int i = 0; i < n; i++) {
        TRN_INFO("worker", "session %s of an earlier life of %s is dropped", stale[i]->handle, o->master_task);
        trn_worker_steps_drop(w, stale[i]);
        trn_wsession_unref(stale[i]);
    }
    free(stale);
}

trn_err trn_worker_session_new(trn_worker *w, const trn_wsession_opts *o)
{
    if (!*o->handle)
        return trn_errorf(TRN_INVALID_ARGUMENT, "CreateWorkerSession without a session_handle");
    trn_wsession *s = session_make(w, o);
    if (o->master_task && *o->master_task)
        drop_stale(w, o);
    trn_lock(&w->mu);
    bool taken = trn_map_gets(w->sessions, o->handle) != NULL;
    if (!taken)
        trn_map_puts(w->sessions, o->handle, s);
    trn_unlock(&w->mu);
    if (taken) {
        trn_wsession_unref(s);
        return trn_errorf(TRN_ALREADY_EXISTS, "worker session %s exists already on %s", o->handle, w->task);
    }
    TRN_DEBUG("worker", "session %s created by %s", o->handle, o->master_task && *o->master_task ? o->master_task : "a client");
    return TRN_OK;
}

trn_err trn_worker_session_del(trn_worker *w, const char *handle)
{
    trn_lock(&w->mu);
    trn_wsession *s = trn_map_dels(w->sessions, handle);
    trn_unlock(&w->mu);
    trn_wsession_unref(s); /* unknown is fine: the caller wants it gone */
    return TRN_OK;
}

void trn_worker_session_end(trn_worker *w, const char *handle)
{
    trn_lock(&w->mu);
    trn_wsession *s = trn_map_dels(w->sessions, handle);
    trn_unlock(&w->mu);
    if (s)
        trn_worker_steps_drop(w, s);
    trn_wsession_unref(s);
}

trn_err trn_worker_session(trn_wsession **out, trn_worker *w, const char *handle, bool created)
{
    if (!created && !*handle) {
        *out = trn_wsession_ref(w->legacy);
        return TRN_OK;
    }
    trn_lock(&w->mu);
    trn_wsession *s = trn_map_gets(w->sessions, handle);
    if (s)
        trn_wsession_ref(s);
    trn_unlock(&w->mu);
    if (!s && !created) { /* a master that never called CreateWorkerSession shares the legacy one */
        *out = trn_wsession_ref(w->legacy);
        return TRN_OK;
    }
    if (!s)
        return trn_errorf(TRN_ABORTED, "Session handle is not found: %s. Possibly %s just restarted.", handle, w->task);
    *out = s;
    return TRN_OK;
}

void trn_worker_cleanup_all(trn_worker *w, const char *const *containers, int n)
{
    if (!n)
        trn_resmgr_clear(w->resmgr, "");
    for (int i = 0; i < n; i++)
        trn_resmgr_clear(w->resmgr, containers[i]);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------- */

trn_plan *trn_wsession_new_plan(trn_err *err, trn_wsession *s, trn_graph *g)
{
    trn_plan *p = NULL;
    *err = trn_graph_check_ops(g);
    if (*err)
        trn_graph_free(g);
    else
        *err = trn_plan_new(&p, g, s->w->env, s->kcache, s->resmgr);
    return p;
}

trn_err trn_wsession_register(char handle[17], trn_wsession *s, trn_graph *g)
{
    trn_err err;
    trn_plan *p = trn_wsession_new_plan(&err, s, g);
    if (err)
        return err;
    trn_lock(&s->mu);
    snprintf(handle, 17, "%016" PRIx64, ++s->next_graph);
    trn_map_puts(s->graphs, handle, p);
    trn_unlock(&s->mu);
    return TRN_OK;
}

trn_err trn_wsession_deregister(trn_wsession *s, const char *handle)
{
    trn_lock(&s->mu);
    trn_plan *p = trn_map_dels(s->graphs, handle);
    trn_unlock(&s->mu);
    if (!p)
        return trn_errorf(TRN_ABORTED, "Graph handle is not found: %s. Possibly, this worker just restarted.", handle);
    trn_plan_unref(p);
    return TRN_OK;
}

trn_err trn_wsession_plan(trn_plan **out, trn_wsession *s, const char *handle)
{
    trn_lock(&s->mu);
    trn_plan *p = trn_map_gets(s->graphs, handle);
    if (p)
        trn_plan_ref(p);
    trn_unlock(&s->mu);
    if (!p)
        return trn_errorf(TRN_ABORTED, "Graph handle is not found: %s. Possibly, this worker just restarted.", handle);
    *out = p;
    return TRN_OK;
}

/* ---- the worker --------------------------------------------------------------------------------------------------- */

trn_worker *trn_worker_new(const trn_worker_opts *o)
{
    trn_worker *w = trn_xalloc(sizeof *w);
    w->capture = trn_capture_new();
    w->part_time = trn_metric_hist("step_part_seconds", "This task's part of a step, from its start to its end");
    w->cluster = trn_cluster_ref(o->cluster);
    w->job = trn_xstrdup(o->job);
    w->task_index = o->task;
    char name[TRN_DEVNAME_TEXT];
    trn_devname d = trn_devname_task(o->job, o->task);
    w->task = trn_xstrdup(trn_devname_text(name, &d));
    w->n_dev = o->n_cpu > 0 ? o->n_cpu : 1;
    w->dev = trn_xalloc(sizeof *w->dev * (size_t)w->n_dev);
    for (int i = 0; i < w->n_dev; i++)
        w->dev[i] = (trn_device){trn_xasprintf("%s/device:CPU:%d", w->task, i), w->task, "CPU", trn_random64()};
    w->env = o->env;
    w->peers = o->peers;
    w->resmgr = trn_resmgr_new("localhost");
    trn_mutex_init(&w->mu, TRN_RANK_WORKER);
    w->sessions = trn_map_new();
    w->outboxes = trn_map_new();
    trn_worker_steps_init(w);
    trn_rpc_log_init(w);
    w->legacy = session_make(w, &(trn_wsession_opts){.handle = ""});
    return w;
}

void trn_worker_stop(trn_worker *w)
{
    atomic_store(&w->stopped, true);
    char *why = trn_xasprintf("%s is shutting down", w->task);
    trn_worker_steps_abort(w, TRN_UNAVAILABLE, why);
    free(why);
    trn_resmgr_clear(w->resmgr, NULL);
}

static void unref_session(void *s)
{
    trn_wsession_unref(s);
}

void trn_worker_free(trn_worker *w)
{
    if (!w)
        return;
    trn_worker_steps_fini(w);
    trn_rpc_log_fini(w);
    trn_capture_free(w->capture);
    trn_map_free(w->sessions, unref_session);
    trn_map_free(w->outboxes, trn_outbox_free);
    trn_wsession_unref(w->legacy);
    trn_resmgr_unref(w->resmgr);
    trn_cluster_unref(w->cluster);
    for (int i = 0; i < w->n_dev; i++)
        free((char *)w->dev[i].name);
    free(w->dev);
    free(w->job);
    free(w->task);
    trn_mutex_fini(&w->mu);
    free(w);
}

const char *trn_worker_task(const trn_worker *w)
{
    return w->task;
}

const trn_device *trn_worker_devices(const trn_worker *w, int *n)
{
    *n = w->n_dev;
    return w->dev;
}

uint64_t trn_worker_incarnation(const trn_worker *w)
{
    return w->dev[0].incarnation;
}

const trn_exec_env *trn_worker_env(const trn_worker *w)
{
    return w->env;
}

const trn_cluster *trn_worker_cluster(const trn_worker *w)
{
    return w->cluster;
}

trn_peers *trn_worker_peers(const trn_worker *w)
{
    return w->peers;
}

static void count_resource(void *arg, const char *container, const char *name, trn_resource *r)
{
    trn_worker_stats *st = arg;
    if (r->type == &trn_var_type || r->type == &trn_refvar_type) {
        trn_var_look look; /* the page is read on a loop: it must not wait for an update of a large variable */
        trn_var_peek(&look, (trn_var *)r);
        st->variables++;
        st->variable_bytes += look.bytes;
    }
}

trn_worker_stats trn_worker_count(trn_worker *w)
{
    trn_worker_stats st = {.steps = trn_worker_steps_count(w), .steps_run = atomic_load(&w->steps_run)};
    trn_lock(&w->mu);
    st.sessions = trn_map_count(w->sessions);
    const char *key;
    size_t len;
    void *v;
    for (size_t it = 0; trn_map_next(w->sessions, &it, &key, &len, &v);) {
        trn_wsession *s = v;
        trn_lock(&s->mu);
        st.graphs += trn_map_count(s->graphs);
        trn_unlock(&s->mu);
    }
    trn_unlock(&w->mu);
    trn_resmgr_each(w->resmgr, count_resource, &st);
    return st;
}

trn_resmgr *trn_worker_resmgr(trn_worker *w)
{
    return w->resmgr;
}

trn_capture *trn_worker_capture(trn_worker *w)
{
    return w->capture;
}

const trn_hist *trn_worker_part_time(const trn_worker *w)
{
    return w->part_time;
}

void trn_worker_busy_add(trn_worker *w, int n)
{
    atomic_fetch_add_explicit(&w->busy, n, memory_order_acq_rel);
}

bool trn_worker_busy(const trn_worker *w)
{
    return atomic_load_explicit(&w->busy, memory_order_acquire) != 0;
}
