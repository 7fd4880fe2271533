/* What one run of a graph shares, and through which kernels reach the world. exec/ fills it in; ops/ only use <trainera/op.h>. */
#ifndef TRN_KCTX_H
#define TRN_KCTX_H

#include <trainera/op.h>

#include "op/cancel.h"
#include "op/func.h"
#include "op/registry.h"

/* The executor's side of the kernel context: op/ declares it, exec/ implements it. */
typedef struct trn_step_api {
    void (*done)(trn_kctx *k, TRN_OWN trn_err err);
    void (*call)(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);
    void (*call_on)(trn_kctx *k, const char *device, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg);
    void (*parallel_for)(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg);
    int (*threads)(const trn_kctx *k);
    bool (*may_owe)(const trn_kctx *k);
    void (*owe)(const trn_kctx *k, TRN_OWN trn_later *l);
    trn_err (*check_path)(const trn_kctx *k, const char *path);
    trn_err (*func)(trn_func **out, trn_kctx *k, const trn_func_ref *f);
    trn_err (*graph)(trn_func **out, trn_kctx *k, const void *p, size_t n);
    trn_origin *(*origin)(const trn_kctx *k);
    trn_err (*graph_of)(void **graph_def, size_t *n, const trn_kctx *k, const trn_tensor *t, bool stateful, bool strip);
    trn_err (*hash_of)(uint64_t *out, const trn_kctx *k, const trn_tensor *t);
    trn_err (*shard)(trn_func **out, trn_tensor ***args, trn_kctx *k, const trn_tensor *t, const trn_shard *s);
    trn_host (*host)(const trn_kctx *k);
    trn_resmgr *(*step_resmgr)(const trn_kctx *k); /* makes step->step_resmgr when it is not there; [any] */
} trn_step_api;

/* Whether the kernel may end with a part of its work left to whoever needs what it makes (trn_var_owe); and giving that part to the pool, which has it done in time. */
bool trn_k_may_owe(const trn_kctx *k);
void trn_k_owe(const trn_kctx *k, TRN_OWN trn_later *l);

/* Tests set it to see small tensors divided among threads, too. */
extern int64_t trn_grain_cap;
static inline int64_t trn_grain(int64_t grain) { return grain < trn_grain_cap ? grain : trn_grain_cap; }

struct trn_step {
    const trn_step_api *api;
    int64_t step_id;
    trn_resmgr *resmgr;
    trn_resmgr *step_resmgr; /* made on first use by trn_k_step_resmgr */
    trn_rdv *rdv;
    trn_cancel *cancel;
    /* _Arg and _Retval: feeds and fetches of the master's own part, arguments and results of functions. */
    int n_args, n_rets;
    trn_value *args;   /* borrowed by the step; variables may come as refs */
    trn_value *rets;   /* filled by _Retval; owned by whoever started the step */
};

#endif
