/* The smallest training program: a line through points. Who takes part is in a TF_CONFIG file, as TensorFlow has it:
 *
 *     linear_regression                               alone
 *     linear_regression --tf_config=worker-0.json     {"cluster": {"ps": ["localhost:2222"], "worker": ["localhost:2223"]}, "task": {"type": "worker", "index": 0}}
 *     TF_CONFIG='{…}' linear_regression               the same from the environment
 *
 * docs/examples/linear_regression.md walks through it. */
#include <trainera/trainera.h>

#include <stdio.h>

static int64_t steps = 300;
static const trn_flag flags[] = {
    {"steps", TRN_FLAG_INT, &steps, "train until this step"},
    {0},
};

/* Points near y = 3x + 2: every worker has others. */
static void draw(float x[64], float y[64], uint64_t *random)
{
    for (int i = 0; i < 64; i++) {
        double u[2];
        for (int k = 0; k < 2; k++) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            u[k] = (double)(*random >> 11) / 9007199254740992.0 * 2 - 1;
        }
        x[i] = (float)u[0];
        y[i] = (float)(3 * u[0] + 2 + 0.1 * u[1]);
    }
}

static trn_err train(const trn_role *me, trn_server *server)
{
    trn_builder *b = trn_builder_new();
    if (me->cluster) {
        char device[128];
        snprintf(device, sizeof device, "/job:%s/task:%d", me->job, me->task);
        trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = device});
    }
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)64, (int64_t)1)), y = trn_placeholder(b, "y", TRN_FLOAT, trn_shape_of(2, (int64_t)64, (int64_t)1));
    trn_out loss = trn_loss_mean_squared(b, y, trn_dense(trn_named(b, "line"), x, 1, NULL), NULL);
    trn_out update = trn_minimize(trn_sgd(b, trn_const_f32(b, 0.1f)), loss, trn_global_step(b));
    if (me->cluster)
        trn_end(b);

    trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = steps}), me->cluster ? trn_hook_done(NULL) : NULL};
    trn_monitored *m = NULL;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .hooks = hooks, .n_hooks = me->cluster ? 2 : 1});
    const char *names[] = {"x:0", "y:0"}, *target = trn_out_name(b, trn_out_node(update));
    float px[64], py[64];
    uint64_t random = (uint64_t)me->task + 1;
    while (!err && !trn_monitored_should_stop(m)) {
        draw(px, py, &random);
        trn_tensor *feeds[] = {trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){64, 1}, px), trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){64, 1}, py)};
        err = trn_monitored_run(m, &(trn_run){.feed_names = names, .feeds = feeds, .n_feeds = 2, .targets = &target, .n_targets = 1});
        trn_tensor_unref(feeds[0]);
        trn_tensor_unref(feeds[1]);
    }
    if (!err && me->is_chief) {
        const char *line[] = {"line/kernel/Read/ReadVariableOp:0", "line/bias/Read/ReadVariableOp:0"};
        trn_tensor *got[2];
        err = trn_session_run(trn_monitored_session(m), &(trn_run){.fetches = line, .n_fetches = 2, .out = got});
        if (!err) {
            printf("y = %.2f x + %.2f\n", (double)*(const float *)trn_tensor_data(got[0]), (double)*(const float *)trn_tensor_data(got[1]));
            trn_tensor_unref(got[0]);
            trn_tensor_unref(got[1]);
        }
    }
    err = trn_err_first(err, trn_monitored_close(m));
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, flags, train);
}
