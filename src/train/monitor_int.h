/* What the monitored session and its hooks share. */
#ifndef TRN_MONITOR_INT_H
#define TRN_MONITOR_INT_H

#include <trainera/monitor.h>

#include "base/base.h"
#include "cluster/cluster.h"

/* When something that happens "every n steps or every t seconds" is due again. */
typedef struct trn_every {
    int64_t steps; /* 0: by time */
    double secs;
    bool ever;
    int64_t last_step;
    uint64_t last_ns;
} trn_every;
trn_every trn_every_of(int64_t steps, double secs, int64_t default_steps, double default_secs);
bool trn_every_due(const trn_every *e, int64_t step);
/* Notes that it happened; the seconds and steps since the last time (0: the first). */
void trn_every_mark(trn_every *e, int64_t step, double *secs, int64_t *steps);

/* The name under which a step fetches global_step; FAILED_PRECONDITION when the graph has none. */
trn_err trn_monitored__step_name(const char **out, trn_monitored *m) TRN_MUST_USE;
/* A whole number of any integer dtype. */
int64_t trn_scalar_i64(const trn_tensor *t);
/* A number of any real dtype; NaN when it is none. */
double trn_scalar_f64(const trn_tensor *t, int64_t i);

/* While hooks begin: a saver that saves in the background, waited for before the session goes. NULL: the default one, made when all hooks have begun. */
void trn_monitored__use_saver(trn_monitored *m, trn_saver *s);

/* The session's server; NULL: it is elsewhere. */
trn_server *trn_monitored__server(const trn_monitored *m);

/* A device filter ("/job:ps"), added to a serialized ConfigProto. */
void trn_config_filter(trn_sb *out, const char *filter);
void trn_config_filter_task(trn_sb *out, const char *job, int task);

/* Lines at a falling rate while something is waited for: after 1, 5, 15, 30 s, then every minute. */
typedef struct trn_nag {
    uint64_t since_ns;
    int said;
} trn_nag;
bool trn_nag_due(trn_nag *n);
int64_t trn_nag_next_ms(const trn_nag *n); /* until the next line is due; at least 50 */
double trn_nag_secs(const trn_nag *n);

/* "/job:ps/task:1" of any longer form; false when a job is not in it. */
bool trn_task_of_device(char *out, size_t size, const char *device);

/* Sleeps, but not longer than it takes somebody to ask for the end. */
void trn_monitored__nap(trn_monitored *m, uint64_t ns);

/* Where the variables went, as lines of the log: placement.c. Nothing when there are not several ps. */
void trn_setter__log_plan(trn_builder *b);

#endif
