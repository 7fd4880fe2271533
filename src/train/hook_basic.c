/* Hooks that look at a step or add to it: StopAtStep, StepCounter, LoggingTensor, NanTensor, GlobalStepWaiter, FinalOps, FeedFn.
 *
 * A step that counts global_step may read it before or after it counts: what a hook fetched along with the step is "stale or not". So hooks that act on
 * a step number read it again, in a step of its own, when stale + 1 says that it may be time. */
#include "train/monitor_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void *hook_new(const trn_hook_table *t, size_t size)
{
    trn_hook *h = trn_xalloc(size);
    h->table = t;
    return h;
}

/* Fetches global_step with the step. */
static trn_err ask_step(trn_monitored *m, trn_step_ask *ask)
{
    const char *name;
    TRN_TRY(trn_monitored__step_name(&name, m));
    trn_ask_fetch(ask, name);
    return TRN_OK;
}

static trn_err begin_step(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    const char *name;
    return trn_monitored__step_name(&name, m);
}

static trn_err before_step(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    return ask_step(m, ask);
}

/* ---- StopAtStep ------------------------------------------------------------------------------------------------------ */

typedef struct stop_at {
    trn_hook hook;
    int64_t num, last;
} stop_at;

static trn_err stop_at_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    stop_at *s = (stop_at *)h;
    if ((s->num > 0) == (s->last > 0))
        return trn_errorf(TRN_INVALID_ARGUMENT, "exactly one of num_steps and last_step is needed");
    return begin_step(h, m, b);
}

static trn_err stop_at_created(trn_hook *h, trn_monitored *m)
{
    stop_at *s = (stop_at *)h;
    int64_t now;
    TRN_TRY(trn_monitored_global_step(&now, m));
    if (!s->last) /* the first session; a later one goes on to the same end */
        s->last = now + s->num;
    else if (now >= s->last && !s->num) /* resumed at the end: there is nothing left to do */
        trn_monitored_request_stop(m);
    return TRN_OK;
}

static trn_err stop_at_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    stop_at *s = (stop_at *)h;
    if (trn_scalar_i64(got->fetched[0]) + 1 < s->last)
        return TRN_OK;
    int64_t now;
    TRN_TRY(trn_monitored_global_step(&now, m));
    if (now >= s->last)
        trn_monitored_request_stop(m);
    return TRN_OK;
}

trn_hook *trn_hook_stop_at_step(const trn_stop_at_step_opts *o)
{
    static const trn_hook_table table = {"StopAtStep", stop_at_begin, stop_at_created, before_step, stop_at_after, NULL, NULL};
    stop_at *s = hook_new(&table, sizeof *s);
    s->num = o->num_steps;
    s->last = o->last_step;
    return &s->hook;
}

/* ---- StepCounter ----------------------------------------------------------------------------------------------------- */

typedef struct counter {
    trn_hook hook;
    trn_every every;
    char *dir;
    trn_event_writer *events;
    uint64_t said_ns;
} counter;

static trn_err counter_created(trn_hook *h, trn_monitored *m)
{
    counter *c = (counter *)h;
    if (c->dir)
        TRN_TRY(trn_monitored_events(&c->events, m, c->dir));
    int64_t now;
    TRN_TRY(trn_monitored_global_step(&now, m));
    trn_every_mark(&c->every, now, NULL, NULL); /* the time a recovery took is not counted */
    return TRN_OK;
}

static trn_err counter_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    counter *c = (counter *)h;
    if (!trn_every_due(&c->every, trn_scalar_i64(got->fetched[0]) + 1))
        return TRN_OK;
    int64_t now, steps;
    double secs;
    TRN_TRY(trn_monitored_global_step(&now, m));
    if (!trn_every_due(&c->every, now))
        return TRN_OK;
    trn_every_mark(&c->every, now, &secs, &steps);
    if (secs <= 0)
        return TRN_OK;
    double rate = (double)steps / secs;
    if (c->events)
        trn_event_writer_add_scalar(c->events, "global_step/sec", (float)rate, now);
    /* A small model makes a hundred steps in no time: the summary has them all, the log one line in two seconds. */
    uint64_t ns = trn_now_ns();
    if (ns - c->said_ns < 2000000000)
        return TRN_OK;
    c->said_ns = ns;
    TRN_INFO("monitor", "global_step/sec: %.6g", rate);
    return TRN_OK;
}

static void counter_free(trn_hook *h)
{
    free(((counter *)h)->dir);
    free(h);
}

trn_hook *trn_hook_step_counter(const trn_step_counter_opts *o)
{
    static const trn_hook_table table = {"StepCounter", begin_step, counter_created, before_step, counter_after, NULL, counter_free};
    counter *c = hook_new(&table, sizeof *c);
    c->every = trn_every_of(o->every_steps, o->every_secs, 100, 0);
    c->dir = o->dir ? trn_xstrdup(o->dir) : NULL;
    return &c->hook;
}

/* ---- LoggingTensor --------------------------------------------------------------------------------------------------- */

typedef struct logging {
    trn_hook hook;
    trn_every every;
    bool periodic, at_end, asked;
    int n;
    trn_out *tensors;
    const char **names;
    char **labels; /* NULL: names */
    int64_t iteration;
    void (*format)(void *arg, char *out, size_t size, trn_tensor *const *values, int n);
    void *format_arg;
} logging;

static trn_err logging_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    logging *l = (logging *)h;
    for (int i = 0; i < l->n; i++)
        l->names[i] = trn_out_name(b, l->tensors[i]);
    return trn_builder_check(b);
}

static void add_value(trn_sb *s, const trn_tensor *t)
{
    enum { SHOW = 8 };
    int64_t n = trn_tensor_count(t);
    bool scalar = trn_tensor_shape(t)->rank == 0;
    if (!scalar)
        trn_sb_adds(s, "[");
    for (int64_t i = 0; i < TRN_MIN(n, SHOW); i++) {
        if (i)
            trn_sb_adds(s, " ");
        if (trn_tensor_dtype(t) == TRN_STRING) {
            size_t len;
            const char *p = trn_tensor_str_at(t, i, &len);
            trn_sb_addf(s, "%.*s", (int)TRN_MIN(len, 200), p ? p : "");
        } else {
            trn_sb_addf(s, "%.7g", trn_scalar_f64(t, i));
        }
    }
    if (!scalar)
        trn_sb_addf(s, "%s]", n > SHOW ? " …" : "");
}

static void logging_say(logging *l, trn_tensor *const *values)
{
    double secs;
    bool first = !l->every.ever;
    trn_every_mark(&l->every, l->iteration, &secs, NULL);
    if (l->format) {
        char line[1024] = "";
        l->format(l->format_arg, line, sizeof line, values, l->n);
        line[sizeof line - 1] = 0;
        TRN_INFO("train", "%s", line);
        return;
    }
    trn_sb s = {0};
    for (int i = 0; i < l->n; i++) {
        trn_sb_addf(&s, "%s%s = ", i ? ", " : "", l->labels ? l->labels[i] : l->names[i]);
        add_value(&s, values[i]);
    }
    if (!first)
        trn_sb_addf(&s, " (%.3f s)", secs);
    TRN_INFO("train", "%s", s.p ? s.p : "");
    trn_sb_fini(&s);
}

static trn_err logging_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    logging *l = (logging *)h;
    l->asked = l->periodic && trn_every_due(&l->every, l->iteration);
    for (int i = 0; l->asked && i < l->n; i++)
        trn_ask_fetch(ask, l->names[i]);
    return TRN_OK;
}

static trn_err logging_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    logging *l = (logging *)h;
    if (l->asked)
        logging_say(l, got->fetched);
    l->iteration++;
    return TRN_OK;
}

static trn_err logging_end(trn_hook *h, trn_monitored *m)
{
    logging *l = (logging *)h;
    if (!l->at_end || !l->n)
        return TRN_OK;
    trn_tensor **v = trn_xalloc(sizeof *v * (size_t)l->n);
    trn_err err = trn_session_run(trn_monitored_session(m), &(trn_run){.fetches = l->names, .n_fetches = l->n, .out = v});
    if (!err)
        logging_say(l, v);
    for (int i = 0; i < l->n; i++)
        trn_tensor_unref(v[i]);
    free(v);
    return err;
}

static void logging_free(trn_hook *h)
{
    logging *l = (logging *)h;
    for (int i = 0; l->labels && i < l->n; i++)
        free(l->labels[i]);
    free(l->labels);
    free(l->names);
    free(l->tensors);
    free(l);
}

trn_hook *trn_hook_logging(const trn_logging_opts *o)
{
    static const trn_hook_table table = {"LoggingTensor", logging_begin, NULL, logging_before, logging_after, logging_end, logging_free};
    logging *l = hook_new(&table, sizeof *l);
    l->periodic = o->every_steps > 0 || o->every_secs > 0 || !o->at_end;
    l->every = trn_every_of(o->every_steps, o->every_secs, 100, 0);
    l->at_end = o->at_end;
    l->n = TRN_MAX(o->n, 0);
    l->tensors = trn_xalloc(sizeof *l->tensors * (size_t)(l->n + 1));
    l->names = trn_xalloc(sizeof *l->names * (size_t)(l->n + 1));
    if (o->labels)
        l->labels = trn_xalloc(sizeof *l->labels * (size_t)(l->n + 1));
    for (int i = 0; i < l->n; i++) {
        l->tensors[i] = o->tensors[i];
        if (o->labels)
            l->labels[i] = trn_xstrdup(o->labels[i]);
    }
    l->format = o->format;
    l->format_arg = o->format_arg;
    return &l->hook;
}

/* ---- NanTensor ------------------------------------------------------------------------------------------------------- */

typedef struct nan_hook {
    trn_hook hook;
    trn_out loss;
    const char *name;
    bool stop;
} nan_hook;

static trn_err nan_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    nan_hook *n = (nan_hook *)h;
    n->name = trn_out_name(b, n->loss);
    return trn_builder_check(b);
}

static trn_err nan_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    trn_ask_fetch(ask, ((nan_hook *)h)->name);
    return TRN_OK;
}

static trn_err nan_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    nan_hook *n = (nan_hook *)h;
    const trn_tensor *t = got->fetched[0];
    bool bad = false;
    for (int64_t i = 0; !bad && i < trn_tensor_count(t); i++)
        bad = isnan(trn_scalar_f64(t, i));
    if (!bad)
        return TRN_OK;
    if (!n->stop)
        return trn_errorf(TRN_INTERNAL, "the model diverged: %s is NaN", n->name);
    TRN_WARN("monitor", "the model diverged: %s is NaN; stopping", n->name);
    trn_monitored_request_stop(m);
    return TRN_OK;
}

trn_hook *trn_hook_nan(trn_out loss, bool stop)
{
    static const trn_hook_table table = {"NanTensor", nan_begin, NULL, nan_before, nan_after, NULL, NULL};
    nan_hook *n = hook_new(&table, sizeof *n);
    n->loss = loss;
    n->stop = stop;
    return &n->hook;
}

/* ---- GlobalStepWaiter ------------------------------------------------------------------------------------------------ */

typedef struct waiter {
    trn_hook hook;
    int64_t until;
    bool started;
} waiter;

static trn_err waiter_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    enum { FIRST_MS = 10, MAX_MS = 500 };
    waiter *w = (waiter *)h;
    trn_nag nag = {.since_ns = trn_now_ns()};
    uint64_t pause = FIRST_MS;
    while (!w->started && w->until > 0) {
        int64_t now;
        TRN_TRY(trn_monitored_global_step(&now, m));
        if (now + 1 >= w->until || trn_monitored_should_stop(m))
            break;
        if (trn_nag_due(&nag))
            TRN_INFO("monitor", "waiting for %.0f s until the others have brought global_step to %" PRId64 "; it is %" PRId64 " now", trn_nag_secs(&nag), w->until, now);
        trn_monitored__nap(m, pause * 1000000);
        pause = TRN_MIN(pause * 2, MAX_MS);
    }
    w->started = true;
    return TRN_OK;
}

trn_hook *trn_hook_global_step_waiter(int64_t until)
{
    static const trn_hook_table table = {"GlobalStepWaiter", begin_step, NULL, waiter_before, NULL, NULL, NULL};
    waiter *w = hook_new(&table, sizeof *w);
    w->until = until;
    return &w->hook;
}

/* ---- FinalOps -------------------------------------------------------------------------------------------------------- */

typedef struct final_ops {
    trn_hook hook;
    trn_out *ops;
    const char **names;
    int n;
    trn_tensor **values;
} final_ops;

static trn_err final_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    final_ops *f = (final_ops *)h;
    for (int i = 0; i < f->n; i++)
        f->names[i] = trn_out_name(b, f->ops[i]);
    return trn_builder_check(b);
}

static trn_err final_end(trn_hook *h, trn_monitored *m)
{
    final_ops *f = (final_ops *)h;
    if (!f->n)
        return TRN_OK;
    return trn_session_run(trn_monitored_session(m), &(trn_run){.fetches = f->names, .n_fetches = f->n, .out = f->values});
}

static void final_free(trn_hook *h)
{
    free(((final_ops *)h)->ops);
    free(((final_ops *)h)->names);
    free(h);
}

trn_hook *trn_hook_final_ops(const trn_out *fetches, int n, trn_tensor **values)
{
    static const trn_hook_table table = {"FinalOps", final_begin, NULL, NULL, NULL, final_end, final_free};
    final_ops *f = hook_new(&table, sizeof *f);
    f->n = TRN_MAX(n, 0);
    f->ops = trn_xalloc(sizeof *f->ops * (size_t)(f->n + 1));
    f->names = trn_xalloc(sizeof *f->names * (size_t)(f->n + 1));
    if (f->n)
        memcpy(f->ops, fetches, sizeof *f->ops * (size_t)f->n);
    f->values = values;
    return &f->hook;
}

/* ---- FeedFn ---------------------------------------------------------------------------------------------------------- */

typedef struct feed_fn {
    trn_hook hook;
    trn_err (*fn)(void *arg, trn_step_ask *ask);
    void *arg;
} feed_fn;

static trn_err feed_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    feed_fn *f = (feed_fn *)h;
    return f->fn(f->arg, ask);
}

trn_hook *trn_hook_feed_fn(trn_err (*fn)(void *arg, trn_step_ask *ask), void *arg)
{
    static const trn_hook_table table = {"FeedFn", NULL, NULL, feed_before, NULL, NULL, NULL};
    feed_fn *f = hook_new(&table, sizeof *f);
    f->fn = fn;
    f->arg = arg;
    return &f->hook;
}
