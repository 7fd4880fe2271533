/* How long the executor takes by itself: cheap scalar graphs, run over and over on one thread.
 *
 *     build/bench/execbench [seconds per row]
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "exec/exec.h"

#define A_TYPE(nm, t) ((trn_attr){.name = nm, .kind = TRN_ATTR_TYPE, .v.type = t})
#define A_INT(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_INT, .v.i = x})
#define A_BOOL(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_BOOL, .v.b = x})
#define A_STR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_STRING, .v.s = {x, sizeof(x) - 1}})
#define A_TENSOR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_TENSOR, .v.tensor = x})
#define F32 A_TYPE("T", TRN_FLOAT)

static void must(trn_err err)
{
    if (!err)
        return;
    fprintf(stderr, "execbench: %s\n", trn_err_msg(err));
    exit(1);
}

static trn_edge add(trn_graph *g, const char *op, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    trn_gnode *gn;
    must(trn_graph_add(&gn, g, op, trn_graph_unique_name(g, op), "", attrs, n_attrs, in, n_in));
    return (trn_edge){gn->id, 0};
}
#define ADD(g, op, attrs, ...)                                                                                                    \
    add(g, op, attrs, (int)TRN_COUNTOF(attrs), (const trn_edge[]){__VA_ARGS__}, (int)(sizeof((const trn_edge[]){__VA_ARGS__}) / sizeof(trn_edge)))

static trn_edge konst(trn_graph *g, float v)
{
    trn_tensor *t = trn_tensor_f32(v);
    trn_attr a[] = {A_TENSOR("value", t), A_TYPE("dtype", TRN_FLOAT)};
    trn_edge e = add(g, "Const", a, 2, NULL, 0);
    trn_tensor_unref(t);
    return e;
}

static const trn_attr t_only[] = {F32};

static void retval(trn_graph *g, trn_edge e)
{
    trn_attr a[] = {F32, A_INT("index", 0)};
    ADD(g, "_Retval", a, e);
}

/* n additions in a row, each with a constant. */
static trn_graph *chain(int n)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_edge e = konst(g, 1), one = konst(g, 1);
    for (int i = 0; i < n; i++)
        e = ADD(g, "AddV2", t_only, e, one);
    retval(g, e);
    return g;
}

/* 2^depth constants added up in pairs: every node has two inputs that must meet. */
static trn_edge tree_node(trn_graph *g, int depth)
{
    if (depth == 0)
        return ADD(g, "Identity", t_only, konst(g, 1));
    trn_edge a = tree_node(g, depth - 1), b = tree_node(g, depth - 1);
    return ADD(g, "AddV2", t_only, a, b);
}

static trn_graph *tree(int depth)
{
    trn_graph *g = trn_graph_new(NULL);
    retval(g, tree_node(g, depth));
    return g;
}

static trn_graph *loop(float n)
{
    trn_graph *g = trn_graph_new(NULL);
    trn_attr enter[] = {F32, A_STR("frame_name", "w"), A_INT("parallel_iterations", 10), A_BOOL("is_constant", false)};
    trn_attr inv[] = {F32, A_STR("frame_name", "w"), A_INT("parallel_iterations", 10), A_BOOL("is_constant", true)};
    trn_attr merge[] = {F32, A_INT("N", 2)};
    trn_edge start = ADD(g, "Enter", enter, konst(g, 0)), lim = ADD(g, "Enter", inv, konst(g, n)), one = ADD(g, "Enter", inv, konst(g, 1));
    trn_edge m = ADD(g, "Merge", merge, start, {-1, 0});
    trn_edge less = ADD(g, "Less", t_only, m, lim);
    trn_edge cond = add(g, "LoopCond", NULL, 0, &less, 1);
    trn_edge sw = ADD(g, "Switch", t_only, m, cond);
    trn_edge next = ADD(g, "NextIteration", t_only, ADD(g, "AddV2", t_only, {sw.node, 1}, one));
    g->node[m.node]->in[1] = next;
    retval(g, ADD(g, "Exit", t_only, sw));
    return g;
}

/* All of it runs on this thread: its own clock does not count what others take of the core. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void on_done(void *arg, trn_err err)
{
    must(err);
    sem_post(arg);
}

static void measure(const char *what, trn_graph *g, const trn_exec_env *env, trn_resmgr *res, double seconds, double per)
{
    trn_plan *p;
    int nodes = g->n;
    must(trn_plan_new(&p, g, env, NULL, res));
    trn_cancel *c = trn_cancel_new();
    sem_t sem;
    sem_init(&sem, 0, 0);
    uint64_t cpu = cpu_ns(), n = 0, start = trn_now_ns(), now = start, end = start + (uint64_t)(seconds * 1e9);
    while (now < end) {
        for (int i = 0; i < 16; i++, n++) {
            trn_value ret = {0};
            trn_run_opts o = {.cancel = c, .n_rets = 1, .rets = &ret};
            trn_plan_run(p, &o, on_done, &sem);
            while (sem_wait(&sem))
                ;
            trn_tensor_unref(ret.t);
        }
        now = trn_now_ns();
    }
    double ns = (double)(now - start) / (double)n, used = (double)(cpu_ns() - cpu) / (double)n;
    printf("%-28s %6d nodes %10.0f ns per run, %9.0f of CPU: %7.1f ns per %s\n", what, nodes, ns, used, used / per, per == nodes ? "node" : "iteration");
    sem_destroy(&sem);
    trn_cancel_unref(c);
    trn_plan_unref(p);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    trn_exec_env env = {0};
    must(trn_pool_open(&env.pool, 2, "pool"));
    must(trn_pool_open(&env.disk, 1, "disk"));
    trn_resmgr *res = trn_resmgr_new("");
    measure("chain of 10 additions", chain(10), &env, res, seconds, 13);
    measure("chain of 1000 additions", chain(1000), &env, res, seconds, 1003);
    measure("tree of 512 leaves", tree(9), &env, res, seconds, 512 * 3);
    measure("while, 1000 iterations", loop(1000), &env, res, seconds, 1000);
    trn_resmgr_unref(res);
    trn_pool_close(env.pool);
    trn_pool_close(env.disk);
    return 0;
}
