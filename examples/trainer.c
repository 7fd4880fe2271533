/* The trainer: one program for every task of a cluster, asynchronous or synchronous.
 *
 *     trainer --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=ps     --task_index=0 &
 *     trainer --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=worker --task_index=0 --checkpoint_dir=/tmp/run &
 *     trainer --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=worker --task_index=1 --checkpoint_dir=/tmp/run
 *
 * Without any of these flags it trains alone. Variables lie on the ps, each worker computes gradients on its own share of the data, Adagrad updates the
 * variables where they are. The first worker is the chief: it initialises, saves, and goes on from the last checkpoint after a restart. A ps ends by itself
 * when every worker has said that it is done. docs/examples/trainer.md explains it line by line. */
#include <trainera/trainera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EXAMPLES 4096
#define INPUTS 16
#define CLASSES 4

static const char *checkpoint_dir;
static int64_t steps = 2000, batch = 64;
static double rate = 0.2;
static bool sync_replicas, quiet;

static const trn_flag flags[] = {
    {"checkpoint_dir", TRN_FLAG_STR, &checkpoint_dir, "where checkpoints and summaries go; without it nothing is saved"},
    {"steps", TRN_FLAG_INT, &steps, "stop when the global step has reached this"},
    {"batch_size", TRN_FLAG_INT, &batch, "examples per step and worker"},
    {"learning_rate", TRN_FLAG_FLOAT, &rate, "Adagrad's"},
    {"sync", TRN_FLAG_BOOL, &sync_replicas, "update with the mean gradient of all workers instead of each by itself"},
    {"quiet", TRN_FLAG_BOOL, &quiet, "no progress bar"},
    {0},
};

/* Points around the corners that a hidden rule gives them: something that a small network can learn, the same in every run. */
static void make_data(trn_tensor *data[2])
{
    float *x = malloc(sizeof *x * EXAMPLES * INPUTS);
    int64_t *y = malloc(sizeof *y * EXAMPLES);
    uint64_t state = 12345;
    for (int i = 0; i < EXAMPLES; i++) {
        float a = 0, c = 0;
        for (int k = 0; k < INPUTS; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            float v = (float)(state >> 40) / (float)(1 << 23) - 1;
            x[i * INPUTS + k] = v;
            a += v * sinf((float)k + 1);
            c += v * v - 1.0f / 3;
        }
        y[i] = (a > 0) + 2 * (c > 0);
    }
    data[0] = trn_tensor_from(TRN_FLOAT, 2, (int64_t[]){EXAMPLES, INPUTS}, x);
    data[1] = trn_tensor_from(TRN_INT64, 1, (int64_t[]){EXAMPLES}, y);
    free(x);
    free(y);
}

typedef struct model {
    trn_out x, y, loss, accuracy, train;
    trn_optimizer *opt;
} model;

static model build(trn_builder *b, const trn_role *me)
{
    model m;
    char worker[128];
    snprintf(worker, sizeof worker, "/job:%s/task:%d", me->cluster ? me->job : "worker", me->task); /* a chief may be a job of its own */
    trn_set_seed(b, 1);
    /* Variables to the ps with the fewest bytes so far, everything else to this worker. */
    TRN_SCOPE(trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = worker}), b)
    {
        m.x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)INPUTS));
        m.y = trn_placeholder(b, "y", TRN_INT64, trn_shape_of(1, (int64_t)-1));
        trn_out h = trn_dense(trn_named(b, "hidden"), m.x, 64, &(trn_dense_opts){.activation = trn_relu});
        trn_out logits = trn_dense(trn_named(b, "logits"), h, CLASSES, NULL);
        m.loss = trn_loss_sparse_softmax(b, m.y, logits, NULL);
        m.accuracy = trn_accuracy(b, m.y, logits);
        trn_summary_scalar(b, "loss", m.loss);
        trn_summary_scalar(b, "accuracy", m.accuracy);
        m.opt = trn_adagrad(b, trn_const_f32(b, (float)rate), 0.1f);
        if (sync_replicas)
            m.opt = trn_sync_replicas(b, m.opt, me->n_workers, me->n_workers);
        m.train = trn_minimize(m.opt, m.loss, trn_global_step(b));
    }
    return m;
}

static trn_err work(const trn_role *me, trn_server *server)
{
    trn_builder *b = trn_builder_new();
    model m = build(b, me);

    trn_tensor *data[2] = {0}, *got[2] = {0};
    make_data(data);
    trn_arrays *input = NULL;
    trn_err err = trn_arrays_new(&input, data, 2, &(trn_arrays_opts){.batch = batch, .shuffle = true, .seed = 7, .shards = me->n_workers ? me->n_workers : 1, .shard = me->task});

    trn_hook *hooks[5];
    int n = 0;
    hooks[n++] = trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = steps});
    hooks[n++] = trn_hook_nan(m.loss, false);
    if (!quiet)
        hooks[n++] = trn_hook_progress(&(trn_progress_opts){.total_steps = steps, .loss = &m.loss});
    if (sync_replicas)
        hooks[n++] = trn_hook_sync_replicas(m.opt, NULL);
    if (me->cluster)
        hooks[n++] = trn_hook_done(NULL); /* the last to hear of the end: tells every ps */

    trn_monitored *session = NULL;
    if (!err)
        err = trn_monitored_open(&session, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .checkpoint_dir = checkpoint_dir, .hooks = hooks, .n_hooks = n});
    const char *train = trn_out_name(b, m.train), *feeds[] = {"x:0", "y:0"}, *fetches[] = {trn_out_name(b, m.loss), trn_out_name(b, m.accuracy)};
    float loss = NAN, accuracy = NAN;
    while (!err && !trn_monitored_should_stop(session)) {
        trn_tensor *xy[2] = {0};
        err = trn_arrays_next(xy, input);
        if (!err)
            err = trn_monitored_run(session, &(trn_run){.feed_names = feeds, .feeds = xy, .n_feeds = 2, .targets = &train, .n_targets = 1, .fetches = fetches, .n_fetches = 2, .out = got});
        if (!err && got[0]) {
            loss = *(const float *)trn_tensor_data(got[0]);
            accuracy = *(const float *)trn_tensor_data(got[1]);
        }
        for (int i = 0; i < 2; i++) {
            trn_tensor_unref(xy[i]);
            trn_tensor_unref(got[i]);
            got[i] = NULL;
        }
    }
    err = trn_err_first(err, trn_monitored_close(session));
    if (!err)
        printf("%s/%d: loss %.4f, accuracy of the last batch %.3f\n", me->cluster ? me->job : "alone", me->task, loss, accuracy);
    trn_arrays_free(input);
    trn_tensor_unref(data[0]);
    trn_tensor_unref(data[1]);
    trn_builder_free(b);
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, flags, work);
}
