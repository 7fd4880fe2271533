/* When a serving task ends: on a signal, with who started it, or when its job is over, which it learns in one of three ways. */
#ifndef TRN_CLI_SERVE_END_H
#define TRN_CLI_SERVE_END_H

#include <signal.h>

#include "cluster/board.h"
#include "master/server.h"

/* Exit codes of serve and launch beside those of cli.h; docs/LAUNCH.md lists them all. */
enum { CLI_WAITED = 3, CLI_LOST = 4 };

typedef struct serve_end_opts {
    int lifeline_fd;        /* a pipe whose other end belongs to who started us; -1 */
    trn_board *board;       /* launchers of programs report here, when there are any to await; NULL */
    const char *done_queue; /* a queue that every worker puts something in when it is done, "{task}" being our number; NULL */
    int64_t done_count;     /* how many do */
    bool until_done;        /* when every session has been closed and nobody is connected any more */
    int task;
} serve_end_opts;

/* Blocks until it is time to end; SIGINT and SIGTERM (blocked) in `signals` count. Returns the exit code, logs why. */
int serve_wait_for_end(trn_server *s, const serve_end_opts *o, const sigset_t *signals);

#endif
