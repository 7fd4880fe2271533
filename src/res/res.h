/* Containers: where variables, queues, accumulators, tables and iterators live, found by (container, name, type) and shared by every session of the
 * task (or by one session, when it asked to be isolated). As in TensorFlow, a queue and a variable may have one name. */
#ifndef TRN_RES_H
#define TRN_RES_H

#include <trainera/op.h>

#include "tensor/tensor.h"

typedef struct trn_resource trn_resource;
/* How full something is that is filled and emptied. */
typedef struct trn_res_fill {
    const char *kind;   /* "FIFOQueue" */
    int64_t count;      /* elements, gradients, complete keys */
    int64_t capacity;   /* -1: no bound */
    int64_t incomplete; /* barriers: keys that miss a component */
    int64_t step;       /* accumulators: their global step; else -1 */
    int putters, takers; /* who waits (up to 1000 are counted) */
    bool closed;
} trn_res_fill;

typedef struct trn_restype {
    const char *name; /* for messages: "Variable", "FIFOQueue"; no two types have the same */
    const char *handle; /* what a handle to one says it is ("tensorflow::Var"), so that another's is refused; NULL: not checked */
    void (*free)(trn_resource *r);
    size_t (*bytes)(trn_resource *r);                 /* memory it holds, for /metrics; NULL: 0 */
    void (*describe)(trn_resource *r, trn_sb *out);   /* one line for the status page; NULL: nothing */
    bool (*fill)(trn_resource *r, trn_res_fill *out);     /* never waits: false when it is busy; NULL: has no fill */
    void (*close)(trn_resource *r);                   /* container is cleared: wake whoever waits; NULL: nothing to do */
} trn_restype;

/* Head of every resource; counted. */
struct trn_resource {
    _Atomic uint32_t ref;
    const trn_restype *type;
};
void trn_resource_init(trn_resource *r, const trn_restype *type); /* one reference */
void *trn_resource_ref(void *r);
void trn_resource_unref(void *r);

trn_resmgr *trn_resmgr_new(const char *default_container);
trn_resmgr *trn_resmgr_ref(trn_resmgr *m);
void trn_resmgr_unref(trn_resmgr *m);
/* container "" is the default one ("localhost"). What is given out is a reference. type NULL: whatever has the name. */
trn_err trn_resmgr_get(void *out, trn_resmgr *m, const char *container, const char *name, const trn_restype *type) TRN_MUST_USE; /* or NOT_FOUND */
/* make(out, arg) runs under the table's lock: it must be quick and take no other lock of lower rank. */
trn_err trn_resmgr_get_or_make(void *out, trn_resmgr *m, const char *container, const char *name, const trn_restype *type,
                               trn_err (*make)(trn_resource **out, void *arg), void *arg) TRN_MUST_USE;
trn_err trn_resmgr_put(trn_resmgr *m, const char *container, const char *name, TRN_OWN trn_resource *r) TRN_MUST_USE; /* ALREADY_EXISTS */
trn_err trn_resmgr_del(trn_resmgr *m, const char *container, const char *name, const trn_restype *type) TRN_MUST_USE; /* NOT_FOUND */
/* The same for what a handle names: its container, name and type. */
trn_err trn_resmgr_del_handle(trn_resmgr *m, const trn_handle *h) TRN_MUST_USE;
void trn_resmgr_clear(trn_resmgr *m, const char *container); /* NULL: all containers */
/* For metrics and the status page; runs under the lock. */
void trn_resmgr_each(trn_resmgr *m, void (*fn)(void *arg, const char *container, const char *name, trn_resource *r), void *arg);

/* The resource that input i names: a resource handle (DT_RESOURCE), or the old form, a string (ref) tensor [container, name].
 * *out is a reference. A resource that is not there: NOT_FOUND with container and name (kernels turn it into what TensorFlow says). */
trn_err trn_k_resource(void *out, trn_kctx *k, int i, const trn_restype *type) TRN_MUST_USE;
/* Container and name of a stateful node: attrs container and shared_name, else the node's own name. `private_name`: unnamed ones are per
 * session in TensorFlow for lookup by kernels (queues), so they get a name nobody else uses. */
void trn_res_name(const trn_node *n, const char **container, const char **name);
/* Scalar DT_RESOURCE tensor for it. */
trn_err trn_res_handle(trn_tensor **out, const trn_node *n, const char *container, const char *name, const char *type_name, trn_dtype dtype,
                       const trn_shape *shape) TRN_MUST_USE;

#endif
