/* Partial runs: a step that is set up once and then fed and fetched from call by call. Feeds and fetches travel through the rendezvous of our own half of the
 * step (build.c: through_rendezvous), so everything else is an ordinary step. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "master/master_int.h"

typedef struct partial {
    _Atomic uint32_t ref;
    trn_msession *s; /* borrowed: the session's table holds the partial */
    built_graph *b;
    trn_arena *arena;
    const char *const *feeds, *const *fetches;
    trn_map *feed_at, *fetch_at; /* name without ":0" → index + 1 */
    bool *fed, *fetched; /* under mu */
    trn_mutex mu;
    trn_wstep *step;
    trn_cancel *cancel;
    bool ended;
    trn_err err;         /* how the step ended */
    /* who waits for the end */
    trn_master_done done;
    void *arg;
} partial;

static void partial_unref(void *v)
{
    partial *p = v;
    if (!p || atomic_fetch_sub_explicit(&p->ref, 1, memory_order_acq_rel) != 1)
        return;
    if (p->step)
        trn_worker_step_clean(p->step->w, p->step->id);
    trn_built_unref(p->b);
    trn_wstep_unref(p->step);
    trn_cancel_unref(p->cancel);
    trn_err_free(p->err);
    trn_map_free(p->feed_at, NULL);
    trn_map_free(p->fetch_at, NULL);
    trn_mutex_fini(&p->mu);
    trn_arena_free(p->arena);
    free(p);
}

void trn_partials_free(trn_msession *s)
{
    trn_map_free(s->partials, partial_unref);
}

/* "x" and "x:0" are the same tensor. */
static size_t name_len(const char *name)
{
    size_t n = strlen(name);
    return n > 2 && !strcmp(name + n - 2, ":0") ? n - 2 : n;
}

static trn_map *indices(const char *const *names, int n)
{
    trn_map *m = trn_map_new();
    for (int i = n - 1; i >= 0; i--) /* the first one of a name counts */
        trn_map_put(m, names[i], name_len(names[i]), (void *)(uintptr_t)(i + 1));
    return m;
}

static int index_of(const trn_map *m, const char *name) { return (int)(uintptr_t)trn_map_get(m, name, name_len(name)) - 1; }

/* ---- set-up ----------------------------------------------------------------------------------------------------------- */

typedef struct setup_job {
    trn_msession *s;
    partial *p;
    char *handle;
    trn_master_done done;
    void *arg;
} setup_job;

static void partial_over(void *arg, trn_err err)
{
    partial *p = arg;
    trn_lock(&p->mu);
    p->ended = true;
    p->err = err;
    trn_master_done done = p->done;
    p->done = NULL;
    trn_err copy = done && err ? trn_err_copy(err) : TRN_OK;
    void *done_arg = p->arg;
    trn_unlock(&p->mu);
    if (done)
        done(done_arg, copy);
    partial_unref(p);
}

static void setup_built(void *arg, trn_err err, built_graph *b)
{
    setup_job *j = arg;
    partial *p = j->p;
    if (!err) {
        p->b = b;
        atomic_fetch_add(&p->ref, 1); /* for partial_over */
        mstep_opts o = {.timeout_ms = 0, .step_out = &p->step, .cancel_out = &p->cancel};
        trn_mstep_run(b, &o, partial_over, p);
        if (!p->step) /* closed meanwhile */
            err = trn_errorf(TRN_FAILED_PRECONDITION, "Session is closed.");
    }
    if (err)
        partial_unref(p);
    else {
        snprintf(j->handle, 17, "%016" PRIx64, trn_random64());
        trn_lock(&j->s->mu);
        trn_map_puts(j->s->partials, j->handle, p);
        trn_unlock(&j->s->mu);
    }
    trn_msession_unref(j->s);
    j->done(j->arg, err);
    free(j);
}

void trn_master_partial_setup(trn_master *m, const trn_step_req *q, char handle[17], trn_master_done done, void *arg)
{
    trn_msession *s;
    trn_err err = trn_msession_find(&s, m, q->session);
    if (err) {
        done(arg, err);
        return;
    }
    partial *p = trn_xalloc(sizeof *p);
    p->ref = 1;
    p->s = s;
    p->arena = trn_arena_new();
    p->feeds = trn_dup_names(p->arena, q->feed_names, (size_t)q->n_feeds);
    p->fetches = trn_dup_names(p->arena, q->fetches, (size_t)q->n_fetches);
    p->feed_at = indices(p->feeds, q->n_feeds);
    p->fetch_at = indices(p->fetches, q->n_fetches);
    p->fed = trn_arena_alloc(p->arena, (size_t)q->n_feeds + 1);
    p->fetched = trn_arena_alloc(p->arena, (size_t)q->n_fetches + 1);
    trn_mutex_init(&p->mu, TRN_RANK_GRAPH);
    setup_job *j = trn_xalloc(sizeof *j);
    *j = (setup_job){s, p, handle, done, arg};
    trn_built_get(s, q, true, setup_built, j);
}

/* ---- a call ----------------------------------------------------------------------------------------------------------- */

typedef struct partial_call {
    partial *p;
    trn_msession *s;
    char handle[17];
    trn_step_result *out;
    trn_master_done done;
    void *arg;
    trn_join join; /* the fetches, with the last call also the end of the step */
    bool last;
    trn_cancel *cancel; /* the client's, hooked; NULL: not */
    trn_cancel_hook hook;
} partial_call;

/* Does one of the fetches need a feed that has not come yet? Backwards from its _Retval to the _Arg nodes; nodes that an earlier one has seen are fine. */
static trn_err check_reachable(const partial *p, const int *fetch, int n_fetches)
{
    const trn_graph *g = p->b->pruned;
    bool *seen = trn_xalloc((size_t)g->n + 1);
    int *stack = trn_xalloc(sizeof *stack * (size_t)(g->n + 1)), *ret = trn_xalloc(sizeof *ret * (size_t)(p->b->n_fetches + 1)); /* node + 1, by fetch */
    int top = 0, at = 0;
    trn_err err = TRN_OK;
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && !strcmp(g->node[i]->n.op, "_Retval"))
            ret[trn_attr_int(&g->node[i]->n, "index")] = i + 1;
    for (; (top || at < n_fetches) && !err;) {
        if (!top) {
            int id = ret[fetch[at++]] - 1;
            if (id >= 0 && !seen[id])
                stack[top++] = id, seen[id] = true;
            continue;
        }
        const trn_gnode *n = g->node[stack[--top]];
        if (!strcmp(n->n.op, "_Arg")) {
            int64_t i = trn_attr_int(&n->n, "index");
            if (!p->fed[i])
                err = trn_errorf(TRN_INVALID_ARGUMENT, "Fetch %s can't be computed from the feeds that have been fed so far.", p->fetches[fetch[at - 1]]);
        }
        for (int i = 0; i < n->n.n_in + n->n_ctl; i++) {
            int src = i < n->n.n_in ? n->in[i].node : n->ctl[i - n->n.n_in];
            if (!seen[src]) {
                seen[src] = true;
                stack[top++] = src;
            }
        }
    }
    free(seen);
    free(stack);
    free(ret);
    return err;
}

/* Marks what the call feeds and fetches, one by one: the same name twice in one call is twice, too. *fed and *fetched are marked when it fails. */
static trn_err mark_call(int *fed, int *fetched, partial *p, const trn_step_req *q, int *feed, int *fetch)
{
    for (int i = 0; i < q->n_feeds; i++) {
        feed[i] = index_of(p->feed_at, q->feed_names[i]);
        if (feed[i] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "The feed %s was not specified in partial_run_setup.", q->feed_names[i]);
        if (p->fed[feed[i]])
            return trn_errorf(TRN_INVALID_ARGUMENT, "The feed %s has already been fed.", q->feed_names[i]);
        p->fed[feed[i]] = true;
        ++*fed;
    }
    for (int i = 0; i < q->n_fetches; i++) {
        fetch[i] = index_of(p->fetch_at, q->fetches[i]);
        if (fetch[i] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "The fetch %s was not specified in partial_run_setup.", q->fetches[i]);
        if (p->fetched[fetch[i]])
            return trn_errorf(TRN_INVALID_ARGUMENT, "The fetch %s has already been fetched.", q->fetches[i]);
        p->fetched[fetch[i]] = true;
        ++*fetched;
    }
    return check_reachable(p, fetch, q->n_fetches);
}

static trn_err check_call(partial *p, const trn_step_req *q, int *feed, int *fetch)
{
    int fed = 0, fetched = 0;
    trn_err err = mark_call(&fed, &fetched, p, q, feed, fetch);
    for (int i = 0; err && i < fed; i++)
        p->fed[feed[i]] = false;
    for (int i = 0; err && i < fetched; i++)
        p->fetched[fetch[i]] = false;
    return err;
}

static bool all_asked(const partial *p)
{
    for (int i = 0; i < p->b->n_feeds; i++)
        if (!p->fed[i])
            return false;
    for (int i = 0; i < p->b->n_fetches; i++)
        if (!p->fetched[i])
            return false;
    return true;
}

static void call_over(partial_call *c)
{
    trn_err err = trn_join_fini(&c->join);
    if (c->cancel)
        (void)trn_cancel_remove(c->cancel, &c->hook);
    trn_cancel_unref(c->cancel);
    if (err) {
        trn_step_result_fini(c->out);
        trn_cancel_fire(c->p->cancel, trn_err_set_derived(trn_err_copy(err)));
    }
    if (c->last || err) {
        trn_lock(&c->s->mu);
        partial *p = trn_map_dels(c->s->partials, c->handle);
        trn_unlock(&c->s->mu);
        partial_unref(p);
    }
    c->done(c->arg, err);
    partial_unref(c->p);
    trn_msession_unref(c->s);
    free(c);
}

static void one_done(partial_call *c, trn_err err)
{
    if (trn_join_done(&c->join, err))
        call_over(c);
}

typedef struct fetch_wait {
    partial_call *c;
    int i;
} fetch_wait;

static void fetch_came(void *arg, trn_err err, trn_tensor *t, bool dead)
{
    fetch_wait *f = arg;
    if (!err && (dead || !t))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "The tensor returned for fetch %d of the partial run was not valid.", f->i);
    if (!err)
        f->c->out->fetches[f->i] = trn_tensor_ref(t);
    one_done(f->c, err);
    free(f);
}

static void step_ended(void *arg, trn_err err)
{
    one_done(arg, err);
}

/* A client that does not wait for a call to end ends the run, as in TensorFlow. */
static void client_gone(void *arg)
{
    partial_call *c = arg;
    trn_cancel_fire(c->p->cancel, trn_cancel_why(c->cancel));
}

void trn_partial_step(trn_msession *s, const trn_step_req *q, trn_cancel *cancel, trn_step_result *out, trn_master_done done, void *arg)
{
    trn_lock(&s->mu);
    partial *p = trn_map_gets(s->partials, q->partial_handle);
    if (p)
        atomic_fetch_add(&p->ref, 1);
    trn_unlock(&s->mu);
    if (!p) {
        done(arg, trn_errorf(TRN_INVALID_ARGUMENT, "Must run PartialRunSetup before performing partial runs."));
        return;
    }
    trn_arena *a = trn_arena_new();
    int *feed = trn_arena_alloc(a, sizeof *feed * (size_t)(q->n_feeds + 1)), *fetch = trn_arena_alloc(a, sizeof *fetch * (size_t)(q->n_fetches + 1));
    trn_lock(&p->mu);
    trn_err err = q->n_targets ? trn_errorf(TRN_INVALID_ARGUMENT, "Targets of a partial run belong to its set-up.") : check_call(p, q, feed, fetch);
    bool last = !err && all_asked(p);
    trn_unlock(&p->mu);
    if (err) {
        partial_unref(p);
        trn_arena_free(a);
        done(arg, err);
        return;
    }
    partial_call *c = trn_xalloc(sizeof *c);
    *c = (partial_call){.p = p, .s = trn_msession_ref(s), .out = out, .done = done, .arg = arg, .last = last};
    snprintf(c->handle, sizeof c->handle, "%s", q->partial_handle);
    trn_join_init(&c->join, 1 + q->n_fetches + last);
    out->n_fetches = q->n_fetches;
    out->fetches = trn_xalloc(sizeof *out->fetches * (size_t)(q->n_fetches + 1));
    trn_rdv *rdv = trn_wstep_rdv(p->step);
    if (cancel) {
        c->cancel = trn_cancel_ref(cancel);
        if (!trn_cancel_add(cancel, &c->hook, client_gone, c)) {
            client_gone(c);
            trn_cancel_unref(c->cancel);
            c->cancel = NULL;
        }
    }
    for (int i = 0; i < q->n_fetches; i++) {
        fetch_wait *f = trn_xalloc(sizeof *f);
        *f = (fetch_wait){c, i};
        if (p->b->fetch_keys[fetch[i]])
            rdv->type->recv(rdv, p->b->fetch_keys[fetch[i]], p->cancel, fetch_came, f);
        else
            fetch_came(f, trn_errorf(TRN_INTERNAL, "fetch %s has no rendezvous key", q->fetches[i]), NULL, false);
    }
    if (last) { /* the call that asks for the last thing also waits for the end */
        trn_lock(&p->mu);
        bool ended = p->ended;
        trn_err how = ended && p->err ? trn_err_copy(p->err) : TRN_OK;
        if (!ended) {
            p->done = step_ended;
            p->arg = c;
        }
        trn_unlock(&p->mu);
        if (ended)
            one_done(c, how);
    }
    for (int i = 0; !err && i < q->n_feeds; i++)
        if (p->b->feed_keys[feed[i]]) /* NULL: nothing in the graph needs it */
            err = rdv->type->send(rdv, p->b->feed_keys[feed[i]], q->feeds[i], false);
    trn_arena_free(a);
    one_done(c, err);
}
