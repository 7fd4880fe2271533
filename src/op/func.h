/* Graph functions outside of a step's graph, and the task's services for work that outlives a step.
 *
 * trn_k_call (op.h) runs a function inside the caller's step. What is here is for those who keep a function: datasets' maps and filters, the
 * eager service. A trn_func is a function of some graph's library, made ready for this task: body instantiated with its attrs, lowered, pruned,
 * optimised, planned; once, then cached by the graph it came from. It owns all that it needs, so it may outlive graph, session and step.
 * op/ declares it, exec/ implements it. */
#ifndef TRN_FUNC_H
#define TRN_FUNC_H

#include <trainera/op.h>

#include "op/cancel.h"

typedef struct trn_func trn_func;
typedef struct trn_func_type {
    void (*free)(trn_func *f);
    trn_err (*fork)(trn_func **out, trn_func *f);
    void (*run)(trn_func *f, trn_cancel *cancel, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);
} trn_func_type;

/* Head of every function; counted, immutable. */
struct trn_func {
    _Atomic uint32_t ref;
    const trn_func_type *type;
    const char *name;
    int n_args, n_rets;
    const trn_dtype *arg_types, *ret_types;
    const char *external; /* an op in its body with state that is not the function's own: variables, random numbers. NULL: none */
};

/* [any] `f` of the library of the graph that `k` runs in. NOT_FOUND (no such function), UNIMPLEMENTED (an op in it that we do not have). */
trn_err trn_k_func(trn_func **out, trn_kctx *k, const trn_func_ref *f) TRN_MUST_USE;
/* [any] A GraphDef as a function without arguments: its _Retval nodes are the results. It brings its own library. */
trn_err trn_k_graph(trn_func **out, trn_kctx *k, const void *graph_def, size_t n) TRN_MUST_USE;
/* Where a dataset comes from: the node that made it, with its inputs and functions. One owner; it may outlive graph, session and step. */
typedef struct trn_origin trn_origin;
struct trn_origin {
    void (*free)(trn_origin *o);
};
/* [any] Of what the node makes right now; NULL where nobody keeps that (tests). */
trn_origin *trn_k_origin(const trn_kctx *k);
static inline void trn_origin_free(trn_origin *o)
{
    if (o)
        o->free(o);
}
/* [any] The counterpart of trn_k_graph: the GraphDef that makes the dataset `t`; the caller frees it. FAILED_PRECONDITION when it stands on what no graph
 * can hold, and unless `stateful` on resources and stateful functions. `strip`: functions forget which task they were placed on. */
trn_err trn_k_graph_of(void **graph_def, size_t *n, const trn_kctx *k, const trn_tensor *t, bool stateful, bool strip) TRN_MUST_USE;
/* [any] What the dataset `t` is made of, as a number: the same when a program makes it again. FAILED_PRECONDITION as above. */
trn_err trn_k_hash_of(uint64_t *out, const trn_kctx *k, const trn_tensor *t) TRN_MUST_USE;
/* How workers divide a dataset: AutoShardDataset. */
enum { TRN_SHARD_OFF = -1, TRN_SHARD_AUTO, TRN_SHARD_FILE, TRN_SHARD_DATA, TRN_SHARD_HINT };
#define TRN_SHARDS_HINT (-1) /* num_shards of a ShardDataset that only says where to divide */
typedef struct trn_shard {
    int64_t workers, index, replicas, policy;
} trn_shard;
/* [any] A function that makes this worker's part of the dataset `t`. *args, which the caller frees, are what it is to be called with; they belong to `t`. */
trn_err trn_k_shard(trn_func **out, trn_tensor ***args, trn_kctx *k, const trn_tensor *t, const trn_shard *s) TRN_MUST_USE;
/* [any] trn_k_call on a device of this task or of another one; what its name leaves out is the node's. Results are of the node's output types. */
void trn_k_call_on(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);
trn_func *trn_func_ref_add(trn_func *f);
void trn_func_unref(trn_func *f);
/* [any] The same function with kernel states of its own (random generators, counters start anew): what one iterator, one client has. */
trn_err trn_func_fork(trn_func **out, trn_func *f) TRN_MUST_USE;
/* [any] Never blocks. `done` runs exactly once, on any thread, maybe before this returns, with the results (borrowed) or an error. Arguments are
 * referenced until then. `cancel` ends the call; an error inside the call does not fire it. It must live until done. */
void trn_func_run(trn_func *f, trn_cancel *cancel, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);

/* ---- the task, for those who work between steps --------------------------------------------------------------------- */

typedef enum trn_where { TRN_ON_POOL, TRN_ON_DISK } trn_where;
typedef struct trn_alarm trn_alarm;
typedef struct trn_host {
    const struct trn_host_api *api;
    const void *env;
} trn_host;
typedef struct trn_host_api {
    bool (*submit)(const void *env, trn_where where, void (*fn)(void *), void *arg);
    bool (*here)(const void *env, trn_where where);
    bool (*on_loop)(void);
    int (*threads)(const void *env);
    void (*background)(const void *env, int n);
    trn_err (*check_path)(const void *env, const char *path);
    trn_alarm *(*alarm)(const void *env, uint64_t ns, void (*fn)(void *arg, bool in_time), void *arg);
    void (*alarm_end)(trn_alarm *a);
} trn_host_api;

trn_host trn_k_host(const trn_kctx *k);
/* [any] false: this task has no such threads (tests), the caller does it himself. */
static inline bool trn_host_submit(const trn_host *h, trn_where where, void (*fn)(void *), void *arg)
{
    return h->api && h->api->submit(h->env, where, fn, arg);
}
static inline bool trn_host_here(const trn_host *h, trn_where where) { return h->api && h->api->here(h->env, where); }
static inline bool trn_host_on_loop(const trn_host *h) { return h->api && h->api->on_loop(); }
static inline int trn_host_threads(const trn_host *h) { return h->api ? h->api->threads(h->env) : 1; }
static inline trn_err trn_host_check_path(const trn_host *h, const char *path) { return h->api ? h->api->check_path(h->env, path) : TRN_OK; }

/* [any] fn(arg, true) runs once, on a loop's thread: when so much time is over, or earlier if the alarm is ended before. fn(arg, false): the task itself ended
 * before. NULL where there are no loops (tests): fn has run at once. */
static inline trn_alarm *trn_host_alarm(const trn_host *h, uint64_t ns, void (*fn)(void *arg, bool in_time), void *arg)
{
    trn_alarm *a = h->api ? h->api->alarm(h->env, ns, fn, arg) : NULL;
    if (!a)
        fn(arg, true);
    return a;
}
/* [any] The alarm is the caller's no more; NULL is fine. */
static inline void trn_host_alarm_end(const trn_host *h, trn_alarm *a)
{
    if (a)
        h->api->alarm_end(a);
}

/* Work that belongs to no step starts (1) or ends (-1): a server that stops waits until there is none. */
static inline void trn_host_background(const trn_host *h, int n)
{
    if (h->api)
        h->api->background(h->env, n);
}

#endif
