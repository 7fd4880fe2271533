/* What steps wait for: every asynchronous kernel (Recv, Dequeue, TakeGradient, …) that is parked right now. */
#ifndef TRN_WAITS_H
#define TRN_WAITS_H

#include "graph/graph.h"

typedef struct trn_parked {
    struct trn_parked *next, *prev;
    const trn_node *node;
    const trn_graph *graph; /* of the plan, for the names of its inputs */
    int64_t step_id;
    uint64_t since_ns; /* monotonic, to a few milliseconds */
    bool listed;
} trn_parked;

typedef struct trn_waits trn_waits;
trn_waits *trn_waits_new(void);
void trn_waits_free(trn_waits *w);
void trn_waits_add(trn_waits *w, trn_parked *p); /* [any] */
void trn_waits_del(trn_waits *w, trn_parked *p); /* [any] */
/* [any] The newest first, at most `max` from each of 16 lists; fn runs under a lock and must be quick. */
void trn_waits_each(trn_waits *w, int max, void (*fn)(void *arg, const trn_parked *p), void *arg);

#endif
