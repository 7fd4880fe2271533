/* Where tasks meet that do not know each other's addresses: each says where it listens, and gets everybody's addresses back.
 *
 *   folder   --rendezvous DIR               a folder that all machines share (NFS, Lustre, HTCondor's submit folder)
 *   TCP      --rendezvous tcp://host:port   any of the tasks, the one whose machine that is, is the meeting point
 *
 * A task has bound its port before it comes here and keeps it, so no other process can slip in between.
 *
 * In the folder (all names begin with the job id, so several jobs may share one):
 *   ID.task-3.json    what task 3 says: address, host, pid, nonce. Made under another name and linked into place, so that it is whole or absent, and
 *                     there is only one; touched every two seconds. A file that nobody has touched for TRN_MEET_STALE_S is an earlier run's, and is
 *                     replaced. Ages are differences of file times, so the machines' clocks do not matter.
 *   ID.cluster.json   written by task 0 whenever the set of living tasks is complete and differs from what the file says. A task goes on when it finds its
 *                     own nonce in it, so that a file of an earlier run is never believed, and all tasks believe the same one.
 * A task that is killed and started again takes its place once the dead one is recognised (at once on the same host, where its pid is seen to be gone),
 * on the same port if it can.
 *
 * Over TCP (meet_tcp.c) the same holds while the job runs: a task stays connected to the meeting point, and when that dies, another task of its machine,
 * or the same one once it is started again, takes its place and learns from the others what all had agreed on.
 */
#ifndef TRN_MEET_H
#define TRN_MEET_H

#include "base/base.h"

enum { TRN_MEET_STALE_S = 12, TRN_MEET_MAX_TASKS = 10000 };

typedef struct trn_meet_opts {
    const char *where;   /* a folder, or tcp://host:port */
    const char *job_id;  /* several jobs in one place do not mix; NULL: "job" */
    int n_tasks, index;  /* this one is index of n_tasks */
    const char *role;    /* "ps/0": all must agree on who is what */
    const char *address; /* "host:port", bound already */
    const char *version;
    uint64_t timeout_ns; /* 0: none */
    /* A line for people; NULL: to the log. */
    void (*say)(void *arg, const char *line);
    bool (*stop)(void *arg); /* asked a few times a second; true: give up (CANCELLED) */
    bool (*move)(void *arg, int port); /* the others know this task by another port of its address: true, it has that one now; NULL: never */
    void *arg;
} trn_meet_opts;

typedef struct trn_meet trn_meet;
/* Blocks until all have met. What fails: DEADLINE_EXCEEDED names who is missing; ALREADY_EXISTS: this index runs already. */
trn_err trn_meet_open(trn_meet **out, const trn_meet_opts *o) TRN_MUST_USE;
const char *trn_meet_address(const trn_meet *m, int index);
/* Says that this task lives; call it when the returned time (monotonic ns) has come. */
uint64_t trn_meet_tend(trn_meet *m, uint64_t now);
void trn_meet_close(TRN_OWN trn_meet *m); /* takes our name off; NULL is fine */
/* The port that this index had in an earlier life of the same job on this host, or 0: the others may still know it by that. */
int trn_meet_old_port(const char *where, const char *job_id, int index, const char *host);

#endif
