/* Who of a job's programs still runs: how a ps learns that its job is over when its launcher is not theirs too.
 *
 * Every launcher of a program tells every ps, by GET /job on the ps' own port, that its task runs (every two seconds), and how it ended; the answer tells it
 * whether the job goes on. So the end of a job needs no other service, and works wherever the tasks can train at all.
 *
 *   GET /job?task=worker/1&state=run|done|failed&stays=1&code=0&id=ID
 *   {"task": "ps/0", "job": "ID", "version": "0.1.0", "time_us": …, "end": false, "code": 0, "why": "…", "tasks": {"worker/1": {"state": "run", …}}}
 *
 * One that is done and stays (a server stands in for its program) goes on asking, and is told of the end before the ps goes.
 * Without a query it only tells; `trainera check` reads version and clock from it. A report for another job id is refused and says whose ps this is.
 * [any] Everything here is under one mutex.
 */
#ifndef TRN_BOARD_H
#define TRN_BOARD_H

#include "wire/rpc.h"

typedef struct trn_board_opts {
    const char *task;         /* "ps/0" */
    const char *job_id;       /* NULL: any */
    const char *await;        /* "worker/0,worker/1": the job is over when all of them are done; NULL: nobody is awaited */
    uint64_t wait_ns;         /* for the first word of each; 0: for ever */
    uint64_t silence_ns;      /* since the last word of one that ran; 0: for ever */
} trn_board_opts;

typedef enum trn_board_state {
    TRN_BOARD_OPEN,
    TRN_BOARD_DONE,   /* all are done */
    TRN_BOARD_FAILED, /* one has failed; the others were told, or had time to be */
    TRN_BOARD_WAITED, /* one never came */
    TRN_BOARD_LOST,   /* one fell silent */
} trn_board_state;

typedef struct trn_board trn_board;
trn_err trn_board_new(trn_board **out, const trn_board_opts *o) TRN_MUST_USE;
void trn_board_free(trn_board *b); /* NULL is fine */
trn_http_route trn_board_route(trn_board *b);
int trn_board_fd(const trn_board *b); /* readable after a word that may have changed the state */
/* `why` is a sentence; `code` that of the failed task. Logs, at a falling rate, who is awaited. */
trn_board_state trn_board_look(trn_board *b, uint64_t now, int *code, char *why, size_t n);

#endif
