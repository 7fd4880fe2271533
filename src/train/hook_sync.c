/* The SyncReplicas hook: what a worker of synchronous training does around its steps, over sessions that come and go. */
#include "train/monitor_int.h"

#include <stdlib.h>

typedef struct sync_hook {
    trn_hook hook;
    trn_optimizer *opt;
    trn_sync_opts o;
    trn_sync *sync;
} sync_hook;

static void sync_drop(sync_hook *s, bool clean)
{
    if (s->sync)
        trn_sync_stop(s->sync, clean);
    s->sync = NULL;
}

static trn_err sync_created(trn_hook *h, trn_monitored *m)
{
    sync_hook *s = (sync_hook *)h;
    sync_drop(s, false); /* of the session that was lost */
    s->o.is_chief = trn_monitored_is_chief(m);
    return trn_sync_start(&s->sync, s->opt, trn_monitored_session(m), &s->o);
}

static trn_err sync_after(trn_hook *h, trn_monitored *m, const trn_step_got *got)
{
    return trn_sync_check(((sync_hook *)h)->sync);
}

static trn_err sync_end(trn_hook *h, trn_monitored *m)
{
    sync_hook *s = (sync_hook *)h;
    trn_err err = trn_sync_check(s->sync); /* the last update may have failed since the last step */
    sync_drop(s, !err);
    return err;
}

static void sync_free(trn_hook *h)
{
    sync_drop((sync_hook *)h, false);
    free(h);
}

trn_hook *trn_hook_sync_replicas(trn_optimizer *sync, const trn_sync_opts *o)
{
    static const trn_hook_table table = {"SyncReplicas", NULL, sync_created, NULL, sync_after, sync_end, sync_free};
    sync_hook *s = trn_xalloc(sizeof *s);
    s->hook.table = &table;
    s->opt = sync;
    if (o)
        s->o = *o;
    return &s->hook;
}
