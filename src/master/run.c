/* RunStep and callables: from names and tensors to a running step. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/dump.h"
#include "graph/watch.h"
#include "master/master_int.h"
#include "obs/json.h"

void trn_step_result_fini(trn_step_result *r)
{
    for (int i = 0; i < r->n_fetches; i++)
        trn_tensor_unref(r->fetches[i]);
    free(r->fetches);
    r->fetches = NULL;
    r->n_fetches = 0;
    trn_sb_fini(&r->metadata);
}

/* A step that tfdbg watches. Whatever else it costs, it has folders of its own that say what was run. */
typedef struct watched {
    trn_arena *arena;
    trn_watches watches;
    trn_sb names[3]; /* JSON: what is fed, fetched, run */
    int64_t index, run; /* among the session's watched steps, among those of this signature; from 0 */
} watched;

typedef struct run_job {
    trn_msession *s;
    built_graph *b;
    watched *watched; /* NULL: nobody watches */
    int n_feeds, n_fetches;
    int64_t timeout_ms;
    bool trace, feeds_stay;
    trn_cancel *cancel;
    trn_step_result *out;
    trn_master_done done;
    void *arg;
    trn_value *rets;
    trn_value args[];
} run_job;

static void watched_free(watched *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < TRN_COUNTOF(d->names); i++)
        trn_sb_fini(&d->names[i]);
    trn_arena_free(d->arena);
    free(d);
}

static void put_names(trn_sb *out, const char *const *names, int n)
{
    trn_json o = {.out = out};
    trn_json_open(&o, NULL, '[');
    for (int i = 0; i < n; i++)
        trn_json_str(&o, NULL, names[i]);
    trn_json_close(&o);
}

/* Options without a watch are as good as none. */
static trn_err watched_new(watched **out, const trn_step_req *q)
{
    *out = NULL;
    if (!q->debug_n)
        return TRN_OK;
    watched *d = trn_xalloc(sizeof *d);
    d->arena = trn_arena_new();
    trn_err err = trn_watches_parse(&d->watches, d->arena, q->debug, q->debug_n);
    if (err || !d->watches.n) {
        watched_free(d);
        return err;
    }
    put_names(&d->names[0], q->feed_names, q->n_feeds);
    put_names(&d->names[1], q->fetches, q->n_fetches);
    put_names(&d->names[2], q->targets, q->n_targets);
    *out = d;
    return TRN_OK;
}

static void run_over(void *arg, trn_err err)
{
    run_job *j = arg;
    if (!err) {
        j->out->n_fetches = j->n_fetches;
        j->out->fetches = trn_xalloc(sizeof(trn_tensor *) * (size_t)(j->n_fetches + 1));
    }
    for (int i = 0; i < j->n_fetches; i++) {
        if (err)
            trn_tensor_unref(j->rets[i].t);
        else
            j->out->fetches[i] = j->rets[i].t;
    }
    for (int i = 0; i < j->n_feeds; i++)
        trn_tensor_unref(j->args[i].t);
    trn_master_done done = j->done;
    void *done_arg = j->arg;
    trn_built_unref(j->b);
    trn_msession_unref(j->s);
    trn_cancel_unref(j->cancel);
    watched_free(j->watched);
    free(j);
    done(done_arg, err);
}

static void run_now(run_job *j, int64_t run)
{
    built_graph *b = j->b;
    bool costs = j->s->cost_every > 0 && run > j->s->cost_after && (run - j->s->cost_after) % j->s->cost_every == 0;
    mstep_opts o = {.args = j->args, .rets = j->rets, .cancel = j->cancel, .timeout_ms = j->timeout_ms, .trace = j->trace, .may_owe = j->feeds_stay, .costs = costs, .metadata = &j->out->metadata};
    trn_mstep_run(b, &o, run_over, j);
}

static trn_err write_text(const trn_exec_env *env, const char *root, int64_t index, const trn_sb *text)
{
    if (!root) /* no file:// URL */
        return TRN_OK;
    trn_sb head = {0};
    uint64_t now = trn_dump_now();
    char *path = trn_xasprintf("%s/_tfdbg_core_metadata_sessionrun%014" PRId64, root, index);
    trn_dump_text_head(&head, now, text->n);
    trn_err err = trn_exec_check_path(env, path);
    if (!err)
        err = trn_dump_write(path, now, &head, text);
    trn_sb_fini(&head);
    free(path);
    return err;
}

/* [disk] */
static trn_err write_metadata(const run_job *j, const watched *d)
{
    trn_sb text = {0};
    trn_json o = {.out = &text};
    trn_json_open(&o, NULL, '{');
    trn_json_int(&o, "global_step", d->watches.global_step);
    trn_json_int(&o, "session_run_index", d->index);
    trn_json_int(&o, "executor_step_index", d->run);
    trn_json_raw(&o, "input_names", d->names[0].p, d->names[0].n);
    trn_json_raw(&o, "output_names", d->names[1].p, d->names[1].n);
    trn_json_raw(&o, "target_nodes", d->names[2].p, d->names[2].n);
    trn_json_close(&o);
    int n = 0;
    const char **urls;
    trn_err err = trn_watches_urls(&urls, &n, d->arena, &d->watches);
    for (int i = 0; !err && i < n; i++)
        err = write_text(j->s->m->w->env, trn_dump_root(urls[i]), d->index, &text);
    trn_sb_fini(&text);
    return err ? trn_err_wrap(err, "debug_options: what the step is about") : TRN_OK;
}

static void run_watched(void *arg)
{
    run_job *j = arg;
    trn_worker *w = j->s->m->w;
    if (j->watched->watches.reset_disk)
        trn_dump_reset();
    trn_err err = write_metadata(j, j->watched);
    if (err)
        run_over(j, err);
    else
        run_now(j, j->watched->run + 1);
    trn_worker_busy_add(w, -1);
}

static void run_built(void *arg, trn_err err, built_graph *b)
{
    run_job *j = arg;
    j->b = b;
    if (err) {
        run_over(j, err);
        return;
    }
    int64_t run = atomic_fetch_add(&b->runs, 1) + 1;
    if (!j->watched) {
        run_now(j, run);
        return;
    }
    trn_worker *w = j->s->m->w;
    j->watched->run = run - 1;
    j->watched->index = atomic_fetch_add(&j->s->watched_steps, 1);
    trn_worker_busy_add(w, 1);
    if (atomic_load(&w->stopped)) {
        run_over(j, trn_errorf(TRN_UNAVAILABLE, "the task is stopping"));
        trn_worker_busy_add(w, -1);
    } else if (!w->env->disk) {
        run_watched(j);
    } else {
        trn_pool_submit(w->env->disk, run_watched, j);
    }
}

static trn_err check_names(const trn_step_req *q)
{
    trn_err err = TRN_OK;
    trn_map *seen = q->n_feeds > 1 ? trn_map_new() : NULL;
    for (int i = 0; seen && !err && i < q->n_feeds; i++)
        if (trn_map_puts(seen, q->feed_names[i], seen))
            err = trn_errorf(TRN_INVALID_ARGUMENT, "Duplicated feeds: %s", q->feed_names[i]);
    trn_map_free(seen, NULL);
    return err;
}

trn_loop *trn_master_loop(const trn_master *m)
{
    return m->loop;
}

void trn_master_run(trn_master *m, const trn_step_req *q, trn_cancel *c, trn_step_result *out, trn_master_done done, void *arg)
{
    *out = (trn_step_result){0};
    trn_msession *s;
    trn_err err = trn_msession_find(&s, m, q->session);
    if (!err && *q->partial_handle) {
        trn_partial_step(s, q, c, out, done, arg);
        trn_msession_unref(s);
        return;
    }
    watched *seen = NULL;
    if (!err && ((err = check_names(q)) || (err = watched_new(&seen, q))))
        trn_msession_unref(s);
    if (err) {
        done(arg, err);
        return;
    }
    size_t values = (size_t)q->n_feeds + (size_t)q->n_fetches + 1;
    run_job *j = trn_xalloc(sizeof *j + sizeof(trn_value) * values);
    j->s = s;
    j->n_feeds = q->n_feeds;
    j->n_fetches = q->n_fetches;
    j->timeout_ms = q->timeout_ms > 0 ? q->timeout_ms : s->timeout_ms;
    j->trace = q->trace;
    j->feeds_stay = q->feeds_stay;
    j->cancel = c ? trn_cancel_ref(c) : NULL;
    j->out = out;
    j->done = done;
    j->arg = arg;
    j->rets = j->args + q->n_feeds;
    for (int i = 0; i < q->n_feeds; i++)
        j->args[i].t = trn_tensor_ref(q->feeds[i]);
    j->watched = seen;
    if (!seen) {
        trn_built_get(s, q, false, run_built, j);
        return;
    }
    trn_step_req asked = *q;
    asked.watches = &seen->watches;
    trn_built_get(s, &asked, false, run_built, j);
}

/* ---- callables -------------------------------------------------------------------------------------------------------- */

/* The arena comes first: master.c frees callables by it. */
typedef struct callable {
    trn_arena *arena;
    trn_step_req q;
} callable;

trn_err trn_master_make_callable(trn_master *m, const Tensorflow__MakeCallableRequest *r, int64_t *handle)
{
    const Tensorflow__CallableOptions *o = r->options;
    if (!o)
        return trn_errorf(TRN_INVALID_ARGUMENT, "MakeCallable without options");
    trn_msession *s;
    TRN_TRY(trn_msession_find(&s, m, r->session_handle));
    trn_arena *a = trn_arena_new();
    callable *c = trn_arena_alloc(a, sizeof *c);
    c->arena = a;
    c->q = (trn_step_req){.session = trn_arena_strdup(a, r->session_handle),
                          .partial_handle = "",
                          .n_feeds = (int)o->n_feed,
                          .n_fetches = (int)o->n_fetch,
                          .n_targets = (int)o->n_target,
                          .feed_names = trn_dup_names(a, (const char *const *)o->feed, o->n_feed),
                          .fetches = trn_dup_names(a, (const char *const *)o->fetch, o->n_fetch),
                          .targets = trn_dup_names(a, (const char *const *)o->target, o->n_target)};
    const char **from = trn_arena_alloc(a, sizeof *from * (o->n_tensor_connection + 1)), **to = trn_arena_alloc(a, sizeof *to * (o->n_tensor_connection + 1));
    for (size_t i = 0; i < o->n_tensor_connection; i++) {
        from[i] = trn_arena_strdup(a, o->tensor_connection[i]->from_tensor);
        to[i] = trn_arena_strdup(a, o->tensor_connection[i]->to_tensor);
    }
    c->q.n_joins = (int)o->n_tensor_connection;
    c->q.join_from = from;
    c->q.join_to = to;
    if (o->run_options) {
        c->q.timeout_ms = o->run_options->timeout_in_ms;
        c->q.trace = o->run_options->trace_level > 0;
        c->q.debug_n = o->run_options->debug_options.len;
        c->q.debug = trn_arena_dup(a, o->run_options->debug_options.data, c->q.debug_n);
    }
    trn_lock(&s->mu);
    *handle = ++s->next_callable;
    trn_map_puti(s->callables, (uint64_t)*handle, c);
    trn_unlock(&s->mu);
    trn_msession_unref(s);
    return TRN_OK;
}

trn_err trn_master_release_callable(trn_master *m, const char *session, int64_t handle)
{
    trn_msession *s;
    TRN_TRY(trn_msession_find(&s, m, session));
    trn_lock(&s->mu);
    callable *c = trn_map_deli(s->callables, (uint64_t)handle);
    trn_unlock(&s->mu);
    trn_msession_unref(s);
    if (c)
        trn_arena_free(c->arena);
    return TRN_OK; /* as TensorFlow: releasing twice is no error */
}

void trn_master_run_callable(trn_master *m, const char *session, int64_t handle, trn_tensor *const *feeds, int n_feeds, trn_cancel *cancel, trn_step_result *out,
                             trn_master_done done, void *arg)
{
    *out = (trn_step_result){0};
    trn_msession *s;
    trn_err err = trn_msession_find(&s, m, session);
    if (err) {
        done(arg, err);
        return;
    }
    /* The names are copied out under the lock: a release may come at any time. */
    trn_arena *a = trn_arena_new();
    trn_step_req q = {0};
    trn_lock(&s->mu);
    callable *c = trn_map_geti(s->callables, (uint64_t)handle);
    if (!c)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "No such callable handle: %" PRId64, handle);
    else if (c->q.n_feeds != n_feeds)
        err = trn_errorf(TRN_INVALID_ARGUMENT, "Expected %d feeds, but got %d", c->q.n_feeds, n_feeds);
    else {
        q = c->q;
        q.feed_names = trn_dup_names(a, c->q.feed_names, (size_t)q.n_feeds);
        q.fetches = trn_dup_names(a, c->q.fetches, (size_t)q.n_fetches);
        q.targets = trn_dup_names(a, c->q.targets, (size_t)q.n_targets);
        q.join_from = trn_dup_names(a, c->q.join_from, (size_t)q.n_joins);
        q.join_to = trn_dup_names(a, c->q.join_to, (size_t)q.n_joins);
        if (q.debug_n)
            q.debug = trn_arena_dup(a, c->q.debug, q.debug_n);
        q.session = session;
        q.feeds = feeds;
        q.feeds_stay = true; /* they came in a message */
    }
    trn_unlock(&s->mu);
    trn_msession_unref(s);
    if (err)
        done(arg, err);
    else
        trn_master_run(m, &q, cancel, out, done, arg); /* keeps what it needs of q */
    trn_arena_free(a);
}
