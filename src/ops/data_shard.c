/* AutoShardDataset: a worker's part of a dataset, as distribution strategies ask for it. The graph that made the dataset is changed (graph/shard.c) and run. */
#include <stdlib.h>

#include "ops/data.h"
#include "proto/pbw.h"

#define OPTIONS_DISTRIBUTE 2 /* Options.distribute_options */
#define DISTRIBUTE_POLICY 1  /* DistributeOptions.auto_shard_policy */

typedef struct sharding {
    trn_kctx *k;
    trn_func *f;
    trn_tensor **args;
} sharding;

static void sharded(void *arg, trn_err err, trn_tensor **rets, int n)
{
    sharding *s = arg;
    trn_kctx *k = s->k;
    if (!err)
        trn_out_set(k, 0, trn_tensor_ref(rets[0]));
    trn_func_unref(s->f);
    free(s->args);
    free(s);
    trn_k_done(k, err);
}

/* What the dataset's options say, unless that is AUTO. */
static trn_err policy_of(int64_t *policy, const trn_tensor *t)
{
    trn_sb s = {0};
    int64_t said = TRN_SHARD_AUTO;
    trn_err err = trn_data_options(&s, t);
    for (trn_pbr r = trn_pbr_init(s.p, s.n); !err && trn_pbr_next(&r);)
        if (r.field == OPTIONS_DISTRIBUTE && r.type == TRN_PB_BYTES)
            for (trn_pbr d = trn_pbr_init(r.b, r.n); trn_pbr_next(&d);)
                if (d.field == DISTRIBUTE_POLICY && d.type == TRN_PB_VARINT)
                    said = (int64_t)d.v;
    trn_sb_fini(&s);
    if (said != TRN_SHARD_AUTO)
        *policy = said;
    return err;
}

static trn_err auto_shard(trn_kctx *k)
{
    trn_shard s = {.replicas = trn_node_attr(k->node, "num_replicas") ? trn_attr_int(k->node, "num_replicas") : 0,
                   .policy = trn_attr_int(k->node, "auto_shard_policy")};
    TRN_TRY(trn_data_i64(&s.workers, k, 1, "num_workers"));
    TRN_TRY(trn_data_i64(&s.index, k, 2, "index"));
    TRN_CHECK_ARG(s.workers > 0, "num_workers must be greater than zero.");
    TRN_CHECK_ARG(s.index >= 0 && s.index < s.workers, "index must be between 0 and %lld", (long long)s.workers - 1);
    TRN_TRY(policy_of(&s.policy, trn_in(k, 0)));
    sharding *sh = trn_xalloc(sizeof *sh);
    sh->k = k;
    trn_err err = trn_k_shard(&sh->f, &sh->args, k, trn_in(k, 0), &s);
    if (err) {
        free(sh);
        return err;
    }
    trn_func_run(sh->f, trn_k_cancel(k), sh->args, sh->f->n_args, sharded, sh);
    return TRN_OK;
}

#define SIG "input_dataset:var, num_workers:i64, index:i64 -> handle:var; auto_shard_policy:int=0, " DS_OUT

const trn_op trn_ops_data_shard[] = {
    {"AutoShardDataset", SIG ", num_replicas:int=0", trn_sh_dataset, auto_shard, TRN_OP_ASYNC | TRN_OP_BACK},
    {"ExperimentalAutoShardDataset", SIG, trn_sh_dataset, auto_shard, TRN_OP_ASYNC | TRN_OP_BACK},
    {0},
};
