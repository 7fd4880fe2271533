/* Device names: "/job:ps/replica:0/task:1/device:CPU:0" and everything shorter.
 *
 * Every part is optional, because programs write constraints ("/job:ps", "/device:CPU:0", "/gpu:1") and the placer narrows them to
 * full names. A plain value: copy it, compare it, keep it in arrays; nothing to free. Parsing never allocates.
 *
 * Also read: the old "/cpu:0" and "/gpu:1", local names ("CPU:0"), and "*" for a part that may be anything.
 */
#ifndef TRN_DEVNAME_H
#define TRN_DEVNAME_H

#include "base/base.h"

#define TRN_DEV_JOB_MAX 63
#define TRN_DEV_TYPE_MAX 31

typedef struct trn_devname {
    char job[TRN_DEV_JOB_MAX + 1];   /* "": not given */
    char type[TRN_DEV_TYPE_MAX + 1]; /* "": not given; cpu and gpu are stored in capitals */
    int32_t replica, task, id;       /* -1: not given */
} trn_devname;

#define TRN_DEVNAME_TEXT 192 /* holds every name */

/* [any] All of these. */
trn_devname trn_devname_any(void); /* no part given: "" */
trn_devname trn_devname_task(const char *job,
                             int32_t task); /* "/job:J/replica:0/task:T"; the job's name must be valid */
trn_devname trn_devname_cpu(const char *job, int32_t task, int32_t id); /* the full name of a CPU device */

/* "" and "/" give the name without parts. */
trn_err trn_devname_parse(trn_devname *out, const char *text, size_t n) TRN_MUST_USE;
/* Writes the canonical form, a type without id as "/device:CPU:*"; returns buf. */
const char *trn_devname_text(char buf[TRN_DEVNAME_TEXT], const trn_devname *d);

bool trn_devname_is_any(const trn_devname *d);
bool trn_devname_is_full(const trn_devname *d);  /* all five parts */
bool trn_devname_has_task(const trn_devname *d); /* job, replica and task */
bool trn_devname_eq(const trn_devname *a, const trn_devname *b);
/* `name` satisfies `want`: every part that want gives is the same in name. */
bool trn_devname_match(const trn_devname *want, const trn_devname *name);
/* Some full name satisfies both. */
bool trn_devname_compatible(const trn_devname *a, const trn_devname *b);
bool trn_devname_same_task(const trn_devname *a, const trn_devname *b); /* both name one task, and the same */

/* Narrows d by `more`. Different jobs, replicas or tasks are an error. Different types or ids are one unless `soft`; then that part
 * (with the type also the id) is dropped and may be anything. d is unchanged on error. */
trn_err trn_devname_merge(trn_devname *d, const trn_devname *more, bool soft) TRN_MUST_USE;
/* Takes the parts that d does not give from `defaults`. The id follows the type: it is taken only when the types are the same. */
void trn_devname_fill(trn_devname *d, const trn_devname *defaults);
/* Parts that `over` gives replace d's: what a nested tf.device does. */
void trn_devname_override(trn_devname *d, const trn_devname *over);

/* A job's name: a letter, then letters, digits, '_' (as TensorFlow's), at most TRN_DEV_JOB_MAX. */
bool trn_devname_job_ok(const char *name, size_t n);

#endif
