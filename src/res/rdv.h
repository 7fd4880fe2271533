/* Rendezvous: where the two ends of an edge that was cut meet. One per step; whoever comes first (a _Send, a _Recv, or a peer's RecvTensor
 * before its RunGraph) makes the entry. worker/ has the implementation that also reaches other tasks; this is what kernels see.
 *
 * Key: "send_device;incarnation(16 hex);recv_device;tensor_name;frame:iter". */
#ifndef TRN_RDV_H
#define TRN_RDV_H

#include <trainera/op.h>

#include "op/cancel.h"

/* err, or tensor (borrowed; may be dead). [any] */
typedef void (*trn_rdv_done)(void *arg, TRN_OWN trn_err err, trn_tensor *t, bool dead);

/* A graph that another task has registered for this one (RemoteCall): `args` are given to the _Recv nodes of `send_key`, the results are what its _Send nodes
 * of `recv_key` sent. Counted; it is taken back when the last reference goes. */
typedef struct trn_far trn_far;
typedef struct trn_far_call {
    trn_cancel *cancel;
    int n_args, n_rets;
    const char *const *send_key, *const *recv_key;
    trn_tensor *const *args;
    trn_call_done done; /* exactly once, never before `run` returns */
    void *arg;
} trn_far_call;
typedef struct trn_far_type {
    void (*run)(trn_far *f, const trn_far_call *c); /* in a step of its own; copies what it needs of c */
    void (*free)(trn_far *f);
} trn_far_type;
struct trn_far {
    _Atomic uint32_t ref;
    const trn_far_type *type;
};
typedef void (*trn_far_made)(void *arg, TRN_OWN trn_err err, TRN_OWN trn_far *f);
void trn_far_unref(trn_far *f);

typedef struct trn_rdv_type {
    trn_err (*send)(trn_rdv *r, const char *key, trn_tensor *t, bool dead); /* borrows t */
    void (*recv)(trn_rdv *r, const char *key, trn_cancel *c, trn_rdv_done done, void *arg); /* done exactly once, maybe before it returns */
    void (*abort)(trn_rdv *r, TRN_OWN trn_err why);                          /* all waiting and future ones fail */
    void (*free)(trn_rdv *r);
    /* A serialized GraphDef for another task. NULL: this one reaches none. */
    void (*place)(trn_rdv *r, const char *job, int task, const trn_sb *graph, trn_cancel *c, trn_far_made done, void *arg);
} trn_rdv_type;
struct trn_rdv {
    _Atomic uint32_t ref;
    const trn_rdv_type *type;
};
trn_rdv *trn_rdv_ref(trn_rdv *r);
void trn_rdv_unref(trn_rdv *r);

/* In-process only: for functions, tests, and as the table inside the worker's. [any] */
trn_rdv *trn_rdv_local_new(void);

#endif
