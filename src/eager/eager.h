/* tensorflow.eager.EagerService: contexts, remote tensor handles, ops and functions one by one. README.md says how. */
#ifndef TRN_EAGER_H
#define TRN_EAGER_H

#include "worker/worker.h"

typedef struct trn_eager trn_eager;

trn_eager *trn_eager_new(trn_worker *w, trn_loop *loop);
void trn_eager_serve(trn_rpc_server *s, trn_eager *e);
void trn_eager_drain(trn_eager *e); /* no new contexts; calls that would wait for others get an error */
void trn_eager_stop(trn_eager *e); /* closes every context: what runs is cancelled */
void trn_eager_free(trn_eager *e); /* after stop, when nothing runs and the loop is gone */

typedef struct trn_eager_stats { size_t contexts, handles, functions, lacking, plans, running; } trn_eager_stats;
trn_eager_stats trn_eager_count(trn_eager *e);

#endif
