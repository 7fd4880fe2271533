/* What a task tells about itself and its cluster: /status.json, the page that shows it, and the short form that tasks ask each other for.
 * docs/STATUS.md is the format.
 *
 * Everything is gathered when somebody asks, on the loop that answers, in bounded time: lists are cut (the longest waits, the largest variables) and
 * what is locked is left out, never waited for. Once a second a sample of the counters is kept for the plots. Other tasks are asked (a call
 * /trainera.Worker/Status, three seconds at most) only while somebody looks at this one. */
#ifndef TRN_STATUS_H
#define TRN_STATUS_H

#include "exec/waits.h"
#include "master/master.h"

typedef struct trn_status_opts {
    trn_worker *worker;
    trn_master *master;
    trn_waits *waits;
    trn_loop *loop; /* of the sampling timer */
    const char *job;
    int task;
    bool stand_in; /* for a program that has ended */
    const char *address; /* "host:port" that it listens on */
} trn_status_opts;

typedef struct trn_status trn_status;
trn_status *trn_status_new(const trn_status_opts *o);
/* Before listening: the routes and the method. */
void trn_status_serve(trn_status *s, trn_rpc_server *rpc);
void trn_status_listens(trn_status *s, const char *address); /* where, once that is known; sampling begins */
void trn_status_free(trn_status *s);                         /* the loops are closed */

void trn_status_json(trn_status *s, trn_sb *out); /* [any] the whole document */

#endif
