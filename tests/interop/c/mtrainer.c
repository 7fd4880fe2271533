/* A trainer with the flags that they all have: y = 3 x0 - 2 x1 + 1 by gradient descent, on variables that TensorFlow programs may share.
 * A ps serves until its workers are done. Prints what the tests look at: "step N loss X", "final step N w A B b C". */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t train_steps = 100, save_steps = 20, pause_ms, seed = 1, wait_s = 60;
static const char *dir;
static bool sync_them, done = true, ref, two_ps;

static const trn_flag own[] = {
    {"train_steps", TRN_FLAG_INT, &train_steps, "where global_step ends"},
    {"save_steps", TRN_FLAG_INT, &save_steps, "how often to save"},
    {"pause_ms", TRN_FLAG_INT, &pause_ms, "between steps"},
    {"seed", TRN_FLAG_INT, &seed, "of the data"},
    {"wait_secs", TRN_FLAG_INT, &wait_s, "for others"},
    {"dir", TRN_FLAG_STR, &dir, "for checkpoints"},
    {"sync", TRN_FLAG_BOOL, &sync_them, "synchronous replicas"},
    {"done", TRN_FLAG_BOOL, &done, "use the done queues"},
    {"ref", TRN_FLAG_BOOL, &ref, "ref variables"},
    {"spread", TRN_FLAG_BOOL, &two_ps, "b and global_step on another ps than w"},
    {0},
};

static int fail(trn_err err)
{
    fprintf(stderr, "mtrainer: %s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
    trn_err_free(err);
    return 1;
}

/* x0, x1 in [-1, 1) from a small generator, one stream per worker. */
static trn_err feed(void *arg, trn_step_ask *ask)
{
    enum { BATCH = 16 };
    static uint64_t state;
    if (!state)
        state = (uint64_t)seed * 7919 + 17 + (uint64_t)*(int *)arg;
    float x[BATCH][2], y[BATCH];
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < 2; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[i][k] = (float)(state >> 40) / (float)(1 << 23) - 1;
        }
        y[i] = 3 * x[i][0] - 2 * x[i][1] + 1;
    }
    trn_ask_feed(ask, "x:0", trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){BATCH, 2}, x));
    trn_ask_feed(ask, "y:0", trn_tensor_from(TRN_FLOAT, 1, (int64_t[]){BATCH}, y));
    return TRN_OK;
}

typedef struct model {
    trn_variable *w, *b;
    trn_out loss, train;
    trn_optimizer *opt;
} model;

static model build(trn_builder *b, const trn_role *me)
{
    model m;
    const char *ps0 = me->n_ps ? "/job:ps/task:0" : "", *ps1 = me->n_ps > 1 && two_ps ? "/job:ps/task:1" : ps0;
    trn_use_ref_variables(b, ref);
    trn_device_scope(b, ps1);
    trn_variable *step = trn_global_step(b);
    m.b = trn_variable_new(b, "b", trn_const_f32(b, 0), 0);
    trn_end(b);
    trn_device_scope(b, ps0);
    m.w = trn_variable_new(b, "w", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, 2L, 1L)), 0);
    trn_end(b);
    trn_device_scope(b, me->n_ps ? trn_builder_printf(b, "/job:%s/task:%d", me->job, me->task) : "");
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, -1L, 2L)), y = trn_placeholder(b, "y", TRN_FLOAT, trn_shape_of(1, -1L));
    trn_out p = trn_op_add_v2(b, trn_reshape(b, trn_op_mat_mul(b, x, m.w->value, NULL), trn_shape_of(1, -1L)), m.b->value);
    m.loss = trn_loss_mean_squared(b, y, p, NULL);
    m.opt = trn_sgd(b, trn_const_f32(b, 0.1f));
    if (sync_them)
        m.opt = trn_sync_replicas(b, m.opt, me->n_workers, me->n_workers);
    m.train = trn_minimize(m.opt, m.loss, step);
    trn_end(b);
    return m;
}

static trn_err work(trn_server *server, trn_role *me)
{
    trn_builder *b = trn_builder_new();
    model md = build(b, me);
    trn_tensor *last[3] = {0};
    trn_out ends[] = {trn_global_step(b)->value, md.w->value, md.b->value};
    trn_hook *hooks[6];
    int n = 0;
    hooks[n++] = trn_hook_feed_fn(feed, &me->task);
    hooks[n++] = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = train_steps});
    hooks[n++] = trn_hook_nan(md.loss, false);
    if (sync_them)
        hooks[n++] = trn_hook_sync_replicas(md.opt, NULL);
    hooks[n++] = trn_hook_final_ops(ends, 3, last);
    if (done)
        hooks[n++] = trn_hook_done(NULL);
    trn_monitored *m = NULL;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .checkpoint_dir = dir, .save_steps = save_steps,
                                                               .hooks = hooks, .n_hooks = n, .wait_secs = (double)wait_s});
    trn_out fetches[] = {md.loss, trn_global_step(b)->value};
    while (!err && !trn_monitored_should_stop(m)) {
        trn_tensor *t[2];
        err = trn_monitored_step(m, md.train, fetches, 2, t);
        if (!err && t[0])
            printf("step %lld loss %.6f\n", (long long)*(const int64_t *)trn_tensor_data(t[1]), *(const float *)trn_tensor_data(t[0]));
        fflush(stdout);
        if (!err) {
            trn_tensor_unref(t[0]);
            trn_tensor_unref(t[1]);
        }
        if (pause_ms)
            usleep((useconds_t)pause_ms * 1000);
    }
    int recoveries = m ? trn_monitored_recoveries(m) : 0;
    err = trn_err_first(err, trn_monitored_close(m));
    if (!err && last[0]) {
        const float *w = trn_tensor_data(last[1]);
        printf("final step %lld w %.5f %.5f b %.5f recoveries %d\n", (long long)*(const int64_t *)trn_tensor_data(last[0]), w[0], w[1],
               *(const float *)trn_tensor_data(last[2]), recoveries);
    }
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(last[i]);
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv)
{
    trn_role me;
    trn_err err = trn_flags_cluster(&me, argc, argv, own);
    if (err)
        return fail(err);
    trn_server *server = NULL;
    if (me.cluster)
        err = trn_server_create(&server, me.cluster, me.job, me.task);
    if (!err && me.is_ps)
        err = done ? trn_ps_wait_done(server, NULL) : trn_server_join(server);
    else if (!err)
        err = work(server, &me);
    if (server)
        trn_server_close(server, 2000);
    trn_role_fini(&me);
    return err ? fail(err) : 0;
}
