/* The executor runs a graph, then its parts at the same time with a rendezvous between them: the results are the same. */
#include "graph_gen.h"

#include "exec/exec.h"

typedef struct waiter {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int left;
    trn_err err;
} waiter;

static void part_done(void *arg, trn_err err)
{
    waiter *w = arg;
    pthread_mutex_lock(&w->mu);
    if (err && !w->err)
        w->err = err;
    else
        trn_err_free(err);
    w->left--;
    pthread_cond_signal(&w->cv);
    pthread_mutex_unlock(&w->mu);
}

#define RETS 4

static trn_exec_env env;

/* Takes the graphs. */
static void run(float *out, int *n_out, trn_graph **g, int n, int64_t step)
{
    trn_kcache *kc = trn_kcache_new();
    trn_resmgr *rm = trn_resmgr_new("localhost");
    trn_rdv *rdv = trn_rdv_local_new();
    trn_cancel *cancel = trn_cancel_new();
    trn_plan *plan[8];
    trn_value rets[8][RETS] = {0};
    waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n, NULL};
    for (int i = 0; i < n; i++)
        ok(trn_plan_new(&plan[i], g[i], &env, kc, rm));
    for (int i = 0; i < n; i++) {
        assert_true(trn_plan_n_rets(plan[i]) <= RETS);
        trn_run_opts o = {
            .step_id = step, .rdv = rdv, .cancel = cancel, .n_rets = trn_plan_n_rets(plan[i]), .rets = rets[i]};
        trn_plan_run(plan[i], &o, part_done, &w);
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&w.mu);
    while (w.left)
        if (pthread_cond_timedwait(&w.cv, &w.mu, &until))
            fail_msg("%d of %d parts did not end", w.left, n);
    pthread_mutex_unlock(&w.mu);
    ok(w.err);
    *n_out = 0;
    for (int k = 0; k < RETS; k++)
        for (int i = 0; i < n; i++)
            if (rets[i][k].t) {
                out[k] = *(const float *)trn_tensor_data(rets[i][k].t);
                *n_out += 1;
                trn_tensor_unref(rets[i][k].t);
            }
    for (int i = 0; i < n; i++)
        trn_plan_unref(plan[i]);
    trn_cancel_unref(cancel);
    trn_rdv_unref(rdv);
    trn_resmgr_unref(rm);
    trn_kcache_unref(kc);
}

static void same_results(void **state)
{
    unsigned seeds = getenv("SEEDS") ? (unsigned)atoi(getenv("SEEDS")) : 100;
    for (unsigned seed = 1; seed <= seeds; seed++) {
        trn_graph *g = gen_program(seed, TRN_COUNTOF(gu_dev));
        trn_part *p;
        int n, n_whole, n_split;
        ok(trn_graph_partition(&p, &n, g, &gu_set));
        trn_graph *parts[8];
        for (int i = 0; i < n; i++) {
            parts[i] = p[i].graph;
            p[i].graph = NULL;
        }
        trn_parts_free(p, n);
        float whole[RETS] = {0}, split[RETS] = {0};
        run(whole, &n_whole, &g, 1, seed);
        run(split, &n_split, parts, n, seed);
        assert_int_equal(n_whole, n_split);
        assert_true(n_whole > 0);
        for (int k = 0; k < RETS; k++)
            if (whole[k] != split[k])
                fail_msg("seed %u: result %d is %g in one graph and %g in %d", seed, k, whole[k], split[k], n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_results)};
    if (trn_pool_open(&env.pool, 2, "pool") || trn_pool_open(&env.disk, 1, "disk"))
        return 1;
    int failed = cmocka_run_group_tests(tests, gu_setup, NULL);
    trn_pool_close(env.pool);
    trn_pool_close(env.disk);
    return failed;
}
