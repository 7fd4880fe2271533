/* Inside eager/. */
#ifndef TRN_EAGER_INT_H
#define TRN_EAGER_INT_H

#include "eager/eager.h"
#include "proto/eager.pb-c.h"
#include "worker/worker_int.h"

struct trn_eager {
    trn_worker *w;
    trn_loop *loop;
    trn_timer sweep;   /* on the loop */
    trn_mutex mu;      /* contexts */
    trn_map *contexts; /* id → trn_ectx */
    bool stopped;
};

typedef struct trn_erun trn_erun;

/* One coordinator's world on this task. Counted. */
typedef struct trn_ectx {
    _Atomic uint32_t ref;
    trn_eager *e;
    uint64_t id, view;
    uint64_t keep_ns; /* 0: for ever */
    _Atomic uint64_t seen_ns;
    trn_mutex mu; /* everything below */
    trn_wsession *session;
    trn_map *handles; /* (op id, output) → trn_tensor */
    trn_funclib *lib; /* never changed once a graph has it: replaced */
    trn_map *plans;   /* what makes an op or function unique → trn_plan */
    trn_map *steps;   /* steps of component functions that were not cleaned up yet */
    trn_erun *running;
    bool closed;
} trn_ectx;

trn_ectx *trn_ectx_new(trn_eager *e, uint64_t id, uint64_t view, uint64_t keep_ns);
trn_ectx *trn_ectx_ref(trn_ectx *c);
void trn_ectx_unref(trn_ectx *c);
/* A reference, and a sign of life; ABORTED when there is none. */
trn_err trn_ectx_find(trn_ectx **out, trn_eager *e, uint64_t id) TRN_MUST_USE;
void trn_ectx_close(trn_ectx *c, trn_code code, const char *why); /* cancels what runs; it is no longer found */

void trn_ectx_put(trn_ectx *c, int64_t op_id, int output, trn_tensor *t); /* adds a reference */
trn_err trn_ectx_get(trn_tensor **out, trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h) TRN_MUST_USE; /* a reference */
trn_err trn_ectx_drop(trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h) TRN_MUST_USE;
trn_err trn_ectx_add_functions(trn_ectx *c, const Tensorflow__Eager__RegisterFunctionOp *f) TRN_MUST_USE;
void trn_ectx_remove_function(trn_ectx *c, const char *name);
void trn_ectx_clean_step(trn_ectx *c, int64_t step_id);

/* Runs one op or function. `done` exactly once, on any thread, maybe before this returns; the results are borrowed. `cancel` may be NULL. */
typedef void (*trn_eager_done)(void *arg, TRN_OWN trn_err err, trn_tensor *const *outs, int n);
void trn_ectx_run(trn_ectx *c, const Tensorflow__Eager__Operation *op, trn_cancel *cancel, trn_eager_done done, void *arg);

#endif
