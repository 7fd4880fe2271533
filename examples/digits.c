/* A small convnet that learns to read handwritten digits, alone or on a cluster:
 *
 *     digits --data=examples/data
 *     digits --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 --job_name=ps|worker --task_index=0 [--dir=/tmp/digits]
 *
 * docs/examples/digits.md walks through it. */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t steps = 2000, batch_size = 64, seed = 1;
static double rate = 0.003;
static const char *data_dir = "examples/data", *run_dir;

static const trn_flag flags[] = {
    {"data", TRN_FLAG_STR, &data_dir, "folder with digits-train.csv.gz and digits-test.csv.gz"},
    {"dir", TRN_FLAG_STR, &run_dir, "where checkpoints and summaries go; a run that was interrupted goes on from there"},
    {"steps", TRN_FLAG_INT, &steps, "train until this step, all workers together"},
    {"batch", TRN_FLAG_INT, &batch_size, "images per step"},
    {"rate", TRN_FLAG_FLOAT, &rate, "learning rate to begin with"},
    {"seed", TRN_FLAG_INT, &seed, "of the weights, the dropout and the order of images"},
    {0},
};

/* images [n, 64] from 0 to 16, labels [n] */
static trn_err load(trn_tensor *out[2], const char *part)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/digits-%s.csv.gz", data_dir, part);
    const trn_csv_field fields[] = {{TRN_FLOAT, 0, 64}, {TRN_INT32, 64, 0}};
    return trn_csv_read(out, path, fields, 2, &(trn_csv_opts){.compression = "GZIP"});
}

/* The same layers twice: with dropout for training, without it and with the same weights for the test. */
static trn_out logits_of(trn_builder *b, trn_out images, trn_mode mode, bool reuse)
{
    trn_conv_opts conv = {.padding = TRN_SAME, .activation = trn_relu, .reuse = reuse};
    trn_out x = trn_op_mul(b, images, trn_const_f32(b, 1 / 16.0f));
    x = trn_reshape(b, x, trn_shape_of(4, (int64_t)-1, (int64_t)8, (int64_t)8, (int64_t)1));
    x = trn_max_pool2d(b, trn_conv2d(trn_named(b, "conv1"), x, 32, 3, 3, &conv), 2, 2, TRN_VALID);
    x = trn_max_pool2d(b, trn_conv2d(trn_named(b, "conv2"), x, 64, 3, 3, &conv), 2, 2, TRN_VALID);
    x = trn_flatten(b, x);
    x = trn_dense(trn_named(b, "hidden"), x, 128, &(trn_dense_opts){.activation = trn_relu, .reuse = reuse});
    x = trn_dropout(b, x, 0.5f, mode, NULL);
    return trn_dense(trn_named(b, "logits"), x, 10, &(trn_dense_opts){.reuse = reuse});
}

/* Every image up to one pixel aside: four times as hard to learn by heart. */
static void jitter(trn_tensor *images, uint64_t *state)
{
    float *p = trn_tensor_data_mut(images), shifted[64];
    for (int64_t i = 0; i < trn_tensor_shape(images)->dim[0]; i++, p += 64) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        int dy = (int)(*state >> 33) % 3 - 1, dx = (int)(*state >> 43) % 3 - 1;
        for (int y = 0; y < 8; y++)
            for (int x = 0; x < 8; x++) {
                bool inside = y - dy >= 0 && y - dy < 8 && x - dx >= 0 && x - dx < 8;
                shifted[8 * y + x] = inside ? p[8 * (y - dy) + x - dx] : 0;
            }
        memcpy(p, shifted, sizeof shifted);
    }
}

static trn_err train(const trn_role *me, trn_server *server)
{
    trn_tensor *images[2], *test[2], *batch[2], *accuracy = NULL;
    TRN_TRY(load(images, "train"));
    TRN_TRY(load(test, "test"));

    trn_builder *b = trn_builder_new();
    trn_set_seed(b, seed);
    if (me->cluster) {
        char device[128];
        snprintf(device, sizeof device, "/job:%s/task:%d", me->job, me->task);
        trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = device});
    }
    trn_out x = trn_placeholder(b, "images", TRN_FLOAT, trn_shape_of(2, (int64_t)-1, (int64_t)64));
    trn_out y = trn_placeholder(b, "labels", TRN_INT32, trn_shape_of(1, (int64_t)-1));
    trn_out loss = trn_loss_sparse_softmax(b, y, logits_of(b, x, TRN_TRAIN, false), NULL);
    trn_out right = trn_accuracy(b, y, logits_of(b, x, TRN_EVAL, true));
    trn_variable *step = trn_global_step(b);
    trn_out lr = trn_cosine_decay(b, (float)rate, step, (double)steps, 0);
    trn_out update = trn_minimize(trn_adam(b, lr, 0.9f, 0.999f, 1e-8f), loss, step);
    trn_summary_scalar(b, "loss", loss);
    trn_summary_scalar(b, "learning_rate", lr);
    if (me->cluster)
        trn_end(b);

    /* Each worker takes its own share of the images, in its own order. */
    trn_arrays *feed = NULL;
    trn_err err = trn_arrays_new(&feed, images, 2,
                                 &(trn_arrays_opts){.batch = batch_size, .shuffle = true, .seed = seed, .drop_remainder = true, .shards = me->n_workers, .shard = me->cluster ? me->task : 0});
    if (err)
        return err;
    trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = steps}), trn_hook_nan(loss, false), me->cluster ? trn_hook_done(NULL) : NULL};
    trn_hook *chief[] = {trn_hook_progress(&(trn_progress_opts){.total_steps = steps, .loss = &loss})};
    trn_monitored *m = NULL;
    err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .checkpoint_dir = run_dir, .save_steps = 500, .log_steps = -1,
                                                       .hooks = hooks, .n_hooks = me->cluster ? 3 : 2, .chief_hooks = chief, .n_chief_hooks = 1});
    const char *names[] = {"images:0", "labels:0"}, *target = trn_out_name(b, trn_out_node(update)), *fetch = trn_out_name(b, right);
    uint64_t jitters = (uint64_t)(seed + me->task);
    while (!err && !trn_monitored_should_stop(m) && !(err = trn_arrays_next(batch, feed))) {
        jitter(batch[0], &jitters);
        err = trn_monitored_run(m, &(trn_run){.feed_names = names, .feeds = batch, .n_feeds = 2, .targets = &target, .n_targets = 1});
        trn_tensor_unref(batch[0]);
        trn_tensor_unref(batch[1]);
    }
    if (!err && me->is_chief)
        err = trn_session_run(trn_monitored_session(m), &(trn_run){.feed_names = names, .feeds = test, .n_feeds = 2, .fetches = &fetch, .n_fetches = 1, .out = &accuracy});
    err = trn_err_first(err, trn_monitored_close(m));
    if (!err && accuracy)
        printf("test accuracy: %.2f %%\n", 100 * (double)*(const float *)trn_tensor_data(accuracy));
    if (!err && accuracy && run_dir) {
        char *last = trn_latest_checkpoint(run_dir);
        printf("checkpoint: %s\n", last ? last : "none");
        free(last);
    }
    trn_tensor_unref(accuracy);
    trn_arrays_free(feed);
    trn_builder_free(b);
    for (int i = 0; i < 2; i++) {
        trn_tensor_unref(images[i]);
        trn_tensor_unref(test[i]);
    }
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, flags, train);
}
