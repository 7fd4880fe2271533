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
    trn_mutex_fini(&p->mu);
    trn_arena_free(p->arena);
    free(p);
}

void trn_partials_free(trn_msession *s)
{
    trn_map_free(s->partials, partial_unref);
}

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
} partial_call;

static int index_of(const char *const *names, int n, const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; i < n; i++) {
        size_t l = strlen(names[i]);
        size_t a = l > 2 && !strcmp(names[i] + l - 2, ":0") ? l - 2 : l;
        size_t b = len > 2 && !strcmp(name + len - 2, ":0") ? len - 2 : len;
        if (a == b && !memcmp(names[i], name, a))
            return i;
    }
    return -1;
}

/* Does the fetch need a feed that has not come yet? Backwards from its _Retval to the _Arg nodes. */
static trn_err check_reachable(const partial *p, int fetch)
{
    const trn_graph *g = p->b->pruned;
    bool *seen = trn_xalloc((size_t)g->n + 1);
    int *stack = trn_xalloc(sizeof *stack * (size_t)(g->n + 1));
    int top = 0;
    trn_err err = TRN_OK;
    for (int i = 0; i < g->n; i++)
        if (g->node[i] && !strcmp(g->node[i]->n.op, "_Retval") && trn_attr_int(&g->node[i]->n, "index") == fetch)
            stack[top++] = i, seen[i] = true;
    while (top && !err) {
        const trn_gnode *n = g->node[stack[--top]];
        if (!strcmp(n->n.op, "_Arg")) {
            int64_t i = trn_attr_int(&n->n, "index");
            if (!p->fed[i])
                err = trn_errorf(TRN_INVALID_ARGUMENT, "Fetch %s can't be computed from the feeds that have been fed so far.", p->fetches[fetch]);
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
    return err;
}

static trn_err check_call(partial *p, const trn_step_req *q, int *feed, int *fetch)
{
    for (int i = 0; i < q->n_feeds; i++) {
        feed[i] = index_of(p->feeds, p->b->n_feeds, q->feed_names[i]);
        if (feed[i] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "The feed %s was not specified in partial_run_setup.", q->feed_names[i]);
        if (p->fed[feed[i]])
            return trn_errorf(TRN_INVALID_ARGUMENT, "The feed %s has already been fed.", q->feed_names[i]);
    }
    for (int i = 0; i < q->n_fetches; i++) {
        fetch[i] = index_of(p->fetches, p->b->n_fetches, q->fetches[i]);
        if (fetch[i] < 0)
            return trn_errorf(TRN_INVALID_ARGUMENT, "The fetch %s was not specified in partial_run_setup.", q->fetches[i]);
        if (p->fetched[fetch[i]])
            return trn_errorf(TRN_INVALID_ARGUMENT, "The fetch %s has already been fetched.", q->fetches[i]);
    }
    for (int i = 0; i < q->n_feeds; i++)
        p->fed[feed[i]] = true;
    for (int i = 0; i < q->n_fetches; i++) {
        trn_err err = check_reachable(p, fetch[i]);
        if (err) {
            for (int k = 0; k < q->n_feeds; k++)
                p->fed[feed[k]] = false;
            return err;
        }
    }
    for (int i = 0; i < q->n_fetches; i++)
        p->fetched[fetch[i]] = true;
    return TRN_OK;
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

void trn_partial_step(trn_msession *s, const trn_step_req *q, trn_step_result *out, trn_master_done done, void *arg)
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
