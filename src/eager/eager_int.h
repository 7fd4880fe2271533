/* Inside eager/. */
#ifndef TRN_EAGER_INT_H
#define TRN_EAGER_INT_H

#include "eager/eager.h"
#include "proto/eager.pb-c.h"
#include "worker/worker_int.h"

#define TRN_MAX_INPUTS 65536 /* of an op, members of packed handles counted one by one */

struct trn_eager {
    trn_worker *w;
    trn_loop *loop;
    trn_timer sweep;   /* on the loop */
    trn_mutex mu;      /* contexts */
    trn_map *contexts; /* id → trn_ectx */
    bool stopped;
    struct trn_coord *coord; /* this task leads a coordination service; under mu */
    struct trn_agent *agent; /* and is part of one; [loop] */
    uint64_t coordinated_ns; /* [loop] when a context last needed it; 0: none does */
};

typedef struct trn_erun trn_erun;

/* The devices of all tasks of a context, ours among them; never changed. Counted. */
typedef struct trn_edevices {
    _Atomic uint32_t ref;
    trn_arena *arena;
    trn_devset set;
} trn_edevices;

typedef struct trn_ehandle_key {
    int64_t op_id, output;
} trn_ehandle_key;

/* One of several handles in a packed one. */
typedef struct trn_emember {
    const char *device; /* full */
    trn_dtype dtype;
    trn_tensor *t;                             /* NULL: it is on another task, */
    Tensorflow__Eager__Operation__Input *input; /* which has it under this handle */
    bool nested;                               /* a packed handle itself: nothing may use it */
} trn_emember;

/* A packed handle (packed.c); never changed. Counted. */
typedef struct trn_epacked {
    _Atomic uint32_t ref;
    trn_arena *arena;
    int n;
    trn_emember *member;
} trn_epacked;

/* One coordinator's world on this task. Counted. */
typedef struct trn_ectx {
    _Atomic uint32_t ref;
    trn_eager *e;
    uint64_t id, view;
    uint64_t keep_ns; /* 0: for ever */
    _Atomic uint64_t timeout_ns; /* for parts on other tasks; 0: none */
    _Atomic uint64_t seen_ns;
    trn_mutex mu; /* everything below */
    trn_wsession *session;
    trn_map *handles; /* (op id, output) → trn_tensor */
    trn_map *packed;  /* the same → trn_epacked */
    _Atomic uint32_t n_packed; /* of them, for those who look before they lock */
    trn_funclib *lib; /* never changed once a graph has it: replaced */
    trn_map *registered; /* how often each function was: it goes with as many removals. Those that came as a library of another stay */
    trn_map *lacking;    /* names of functions with an op that we do not have */
    trn_edevices *devices;
    trn_map *plans;   /* what makes an op or component function unique → trn_plan */
    trn_map *divided; /* the same for whole functions, with the inputs' devices → slot (divide.c) */
    trn_map *steps;   /* steps of component functions that were not cleaned up yet */
    trn_erun *running;
    _Atomic bool coordinated; /* its coordinator asks for the coordination service */
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
/* Packed handles. */
trn_err trn_ectx_pack(trn_ectx *c, const Tensorflow__Eager__SendPackedHandleOp *q, size_t *left) TRN_MUST_USE;
trn_epacked *trn_ectx_packed(trn_ectx *c, const Tensorflow__Eager__RemoteTensorHandle *h); /* a reference; NULL: it is none */
trn_err trn_epacked_on(trn_tensor **out, const trn_epacked *p, const char *device, const char *user) TRN_MUST_USE; /* a reference to that device's member */
void trn_epacked_unref(void *p);
bool trn_ectx__unpack(trn_ectx *c, const trn_ehandle_key *k); /* drops it; false: it is none */
trn_err trn_etensor_from_pb(trn_tensor **out, const Tensorflow__TensorProto *pb, size_t *left) TRN_MUST_USE; /* trn_tensor_from_pb_within */
/* A component function that needs an op which we do not have is UNIMPLEMENTED: it comes only to be run. Of any other that is said in the log: most of them never run here. */
trn_err trn_ectx_add_functions(trn_ectx *c, const Tensorflow__Eager__RegisterFunctionOp *f) TRN_MUST_USE;
trn_err trn_ectx_remove_function(trn_ectx *c, const char *name) TRN_MUST_USE;
void trn_ectx_clean_step(trn_ectx *c, int64_t step_id);

/* What an op has made. */
typedef struct trn_eout {
    trn_tensor *t;      /* NULL: it is on another task, under the op's id */
    trn_shape shape;
    const char *device; /* NULL: the op's */
} trn_eout;

/* Runs one op or function. `done` exactly once, on any thread, maybe before this returns; the results are borrowed. `op` lives until then. `cancel` may be NULL. */
typedef void (*trn_eager_done)(void *arg, TRN_OWN trn_err err, const trn_eout *outs, int n);
void trn_ectx_run(trn_ectx *c, const Tensorflow__Eager__Operation *op, size_t *left, trn_cancel *cancel, trn_eager_done done, void *arg);

/* ---- inside: runs (run.c) */

struct trn_erun {
    trn_erun *next, **at; /* in ctx->running */
    trn_ectx *ctx;
    trn_plan *plan; /* NULL: no part of it is ours */
    trn_rdv *rdv;
    trn_cancel *cancel, *outer;
    trn_cancel_hook hook;
    bool hooked;
    trn_eager_done done;
    void *arg;
    struct trn_erun_parts *parts; /* divide.c: what runs elsewhere; NULL: nothing */
    int n_args, n_rets;
    trn_eout *outs;
    trn_value v[]; /* arguments, results */
};
/* With room for n + n_rets values; takes the arguments, which may be NULL where another task has them. */
trn_erun *trn_erun__new(trn_ectx *c, trn_plan *p, TRN_OWN trn_tensor **in, int n, int n_rets);
void trn_erun__begin(trn_erun *r, trn_cancel *outer, trn_eager_done done, void *arg); /* it can be cancelled from now on */
void trn_erun__end(trn_erun *r, TRN_OWN trn_err err);
/* The graph of one node, or a function's body. `in`: what comes, the members of packed inputs one by one; `packed`: how many each input is, 0 one that is not packed; NULL:
 * none is. A function's _Arg nodes count its inputs, those of a single node what comes. */
trn_err trn_ectx__graph(trn_graph **out, trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in,
                        const int *packed) TRN_MUST_USE;
/* All that a plan depends on: name, device, kind, attrs and the inputs' dtypes. */
void trn_ectx__plan_key(trn_sb *key, const Tensorflow__Eager__Operation *op, const trn_dtype *in, int n_in);

/* ---- inside: functions over several tasks (divide.c) */

/* Is the handle on another task than ours? */
bool trn_ectx__elsewhere(const trn_wsession *s, const Tensorflow__Eager__RemoteTensorHandle *h);
void trn_ectx__divide(trn_ectx *c, trn_wsession *s, trn_funclib *lib, const Tensorflow__Eager__Operation *op, size_t *left, trn_cancel *cancel, trn_eager_done done, void *arg);
void trn_ectx__forget(trn_ectx *c, const char *name_or_null); /* of what was divided: one function, or all */
void trn_divided_free(void *slot);
trn_edevices *trn_edevices_new(const trn_worker *w, Tensorflow__DeviceAttributes *const *pb, size_t n, const char *self);
trn_edevices *trn_edevices_ref(trn_edevices *d);
void trn_edevices_unref(trn_edevices *d);
int trn_edevices_find(const trn_edevices *d, const char *name); /* the first that it allows; -1: none */

#endif
