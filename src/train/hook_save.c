/* Hooks that write: CheckpointSaver and SummarySaver. */
#include "train/monitor_int.h"

#include <stdlib.h>

/* ---- CheckpointSaver ------------------------------------------------------------------------------------------------- */

typedef struct checkpoint {
    trn_hook hook;
    trn_every every;
    char *dir, *prefix;
    trn_saver *saver;
    bool blocking;
} checkpoint;

static trn_err checkpoint_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    const char *name;
    TRN_TRY(trn_monitored__step_name(&name, m));
    trn_monitored__use_saver(m, ((checkpoint *)h)->saver);
    return TRN_OK;
}

/* The end waits; so does the first save, which shows whether the folder can be written at all. */
static trn_err checkpoint_save(checkpoint *c, trn_monitored *m, int64_t step, bool wait)
{
    trn_every_mark(&c->every, step, NULL, NULL);
    if (wait || c->blocking)
        return trn_saver_save(NULL, c->saver, trn_monitored_session(m), c->prefix, step);
    return trn_saver_save_async(c->saver, trn_monitored_session(m), c->prefix, step);
}

static trn_err checkpoint_created(trn_hook *h, trn_monitored *m)
{
    checkpoint *c = (checkpoint *)h;
    if (!c->saver) /* made when the graph was finished */
        c->saver = trn_saver_default(trn_monitored_builder(m));
    trn_event_writer *ev;
    TRN_TRY(trn_monitored_events(&ev, m, c->dir));
    int64_t now;
    TRN_TRY(trn_monitored_global_step(&now, m));
    return checkpoint_save(c, m, now, true);
}

static trn_err checkpoint_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    const char *name;
    TRN_TRY(trn_monitored__step_name(&name, m));
    trn_ask_fetch(ask, name);
    return TRN_OK;
}

static trn_err checkpoint_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    checkpoint *c = (checkpoint *)h;
    if (!trn_every_due(&c->every, trn_scalar_i64(got->fetched[0]) + 1))
        return TRN_OK;
    if (!c->blocking && trn_saver_busy(c->saver)) /* the last one is still being written: steps do not wait for it */
        return TRN_OK;
    int64_t now;
    TRN_TRY(trn_monitored_global_step(&now, m));
    return trn_every_due(&c->every, now) ? checkpoint_save(c, m, now, false) : TRN_OK;
}

static trn_err checkpoint_end(trn_hook *h, trn_monitored *m)
{
    checkpoint *c = (checkpoint *)h;
    int64_t now;
    TRN_TRY(trn_saver_wait(c->saver));
    TRN_TRY(trn_monitored_global_step(&now, m));
    if (c->every.ever && c->every.last_step == now)
        return TRN_OK;
    return checkpoint_save(c, m, now, true);
}

static void checkpoint_free(trn_hook *h)
{
    free(((checkpoint *)h)->dir);
    free(((checkpoint *)h)->prefix);
    free(h);
}

trn_hook *trn_hook_checkpoint_saver(const trn_checkpoint_saver_opts *o)
{
    static const trn_hook_table table = {"CheckpointSaver", checkpoint_begin, checkpoint_created, checkpoint_before, checkpoint_after, checkpoint_end, checkpoint_free};
    checkpoint *c = trn_xalloc(sizeof *c);
    c->hook.table = &table;
    c->every = trn_every_of(o->every_steps, o->every_secs, 0, 600);
    c->dir = trn_xstrdup(o->dir ? o->dir : ".");
    c->prefix = trn_xasprintf("%s/%s", c->dir, o->basename ? o->basename : "model.ckpt");
    c->saver = o->saver;
    c->blocking = o->blocking;
    return &c->hook;
}

/* ---- SummarySaver ---------------------------------------------------------------------------------------------------- */

typedef struct summary {
    trn_hook hook;
    trn_every every;
    char *dir;
    bool given, any, asked;
    trn_out out;
    const char *name;
    int64_t next; /* -1: not known yet */
    trn_event_writer *events;
} summary;

static trn_err summary_begin(trn_hook *h, trn_monitored *m, trn_builder *b)
{
    summary *s = (summary *)h;
    trn_out o = s->given ? s->out : trn_summary_merge_all(b);
    s->any = trn_out_is(o);
    if (s->any)
        s->name = trn_out_name(b, o);
    TRN_TRY(trn_builder_check(b));
    const char *step;
    return s->any ? trn_monitored__step_name(&step, m) : TRN_OK;
}

static trn_err summary_created(trn_hook *h, trn_monitored *m)
{
    summary *s = (summary *)h;
    if (!s->any)
        return TRN_OK;
    s->next = -1; /* after a recovery steps go back */
    s->every.ever = false;
    return trn_monitored_events(&s->events, m, s->dir);
}

static trn_err summary_before(trn_hook *h, trn_monitored *m, trn_step_ask *ask)
{
    summary *s = (summary *)h;
    if (!s->any)
        return TRN_OK;
    const char *step;
    TRN_TRY(trn_monitored__step_name(&step, m));
    trn_ask_fetch(ask, step);
    s->asked = s->next < 0 || trn_every_due(&s->every, s->next);
    if (s->asked)
        trn_ask_fetch(ask, s->name);
    return TRN_OK;
}

static trn_err summary_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    summary *s = (summary *)h;
    if (!s->any)
        return TRN_OK;
    int64_t now = trn_scalar_i64(got->fetched[0]) + 1;
    if (s->asked) {
        TRN_TRY(trn_monitored_global_step(&now, m));
        if (s->next < 0)
            trn_event_writer_add_session_log(s->events, TRN_SESSION_START, NULL, NULL, now);
        trn_every_mark(&s->every, now, NULL, NULL);
        trn_event_writer_add_summary_tensor(s->events, got->fetched[1], now);
    }
    s->next = now + 1;
    return TRN_OK;
}

static trn_err summary_end(trn_hook *h, trn_monitored *m)
{
    summary *s = (summary *)h;
    return s->events ? trn_event_writer_flush(s->events) : TRN_OK;
}

static void summary_free(trn_hook *h)
{
    free(((summary *)h)->dir);
    free(h);
}

trn_hook *trn_hook_summary_saver(const trn_summary_saver_opts *o)
{
    static const trn_hook_table table = {"SummarySaver", summary_begin, summary_created, summary_before, summary_after, summary_end, summary_free};
    summary *s = trn_xalloc(sizeof *s);
    s->hook.table = &table;
    s->every = trn_every_of(o->every_steps, o->every_secs, 100, 0);
    s->dir = trn_xstrdup(o->dir ? o->dir : ".");
    s->given = o->summary != NULL;
    if (o->summary)
        s->out = *o->summary;
    s->next = -1;
    return &s->hook;
}
