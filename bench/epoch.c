/* One epoch over data of MNIST's size (60,000 images of 28×28, ten classes), in one process: bench/epoch.py runs the same in TensorFlow and compares.
 *
 *     epoch mlp|cnn IMAGES.npy LABELS.npy BATCH
 *
 * Prints JSON: seconds from the program's start to the end of its first step, steps and seconds of the rest (also of CPU), the last loss, the peak of its memory. */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(clockid_t c)
{
    struct timespec t;
    clock_gettime(c, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Since the process was started: what a user waits. */
static double since_start(void)
{
    FILE *f = fopen("/proc/self/stat", "r");
    char text[2048] = "";
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')');
    long long ticks = 0;
    for (int field = 2; p && *p; p++)
        if (*p == ' ' && ++field == 22) {
            ticks = atoll(p + 1);
            break;
        }
    return now(CLOCK_BOOTTIME) - (double)ticks / 100;
}

/* getrusage would count the process that started us, until its exec. */
static double peak_mb(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kb = atol(line + 6);
    if (f)
        fclose(f);
    return (double)kb / 1024;
}

static trn_out model(trn_builder *b, bool cnn, trn_out x)
{
    if (!cnn) {
        trn_out h = trn_dense(b, x, 256, &(trn_dense_opts){.activation = trn_relu});
        return trn_dense(b, trn_dense(b, h, 128, &(trn_dense_opts){.activation = trn_relu}), 10, NULL);
    }
    trn_out h = trn_reshape(b, x, trn_shape_of(4, (int64_t)-1, (int64_t)28, (int64_t)28, (int64_t)1));
    h = trn_conv2d(b, h, 16, 5, 5, &(trn_conv_opts){.padding = TRN_SAME, .activation = trn_relu});
    h = trn_max_pool2d(b, h, 2, 2, TRN_VALID);
    h = trn_conv2d(b, h, 32, 5, 5, &(trn_conv_opts){.padding = TRN_SAME, .activation = trn_relu});
    h = trn_flatten(b, trn_max_pool2d(b, h, 2, 2, TRN_VALID));
    return trn_dense(b, trn_dense(b, h, 64, &(trn_dense_opts){.activation = trn_relu}), 10, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: epoch mlp|cnn IMAGES.npy LABELS.npy BATCH\n");
        return 2;
    }
    bool cnn = strcmp(argv[1], "cnn") == 0;
    trn_tensor *xy[2], *loss = NULL;
    trn_builder *b = trn_builder_new();
    trn_set_seed(b, 1);
    trn_out x = trn_placeholder(b, "x", TRN_UINT8, trn_shape_of(2, (int64_t)-1, (int64_t)784)), y = trn_placeholder(b, "y", TRN_INT64, trn_shape_of(1, (int64_t)-1));
    trn_out pixels = trn_op_mul(b, trn_op_cast(b, x, TRN_FLOAT, NULL), trn_const_f32(b, 1 / 255.0f));
    trn_out l = trn_loss_sparse_softmax(b, y, model(b, cnn, pixels), NULL);
    trn_out train = trn_minimize(trn_adam(b, trn_const_f32(b, 0.001f), 0.9f, 0.999f, 1e-8f), l, trn_global_step(b));
    trn_arrays *input = NULL;
    trn_monitored *m = NULL;
    const char *names[] = {"x:0", "y:0"}, *op = trn_out_name(b, train), *fetch = trn_out_name(b, l);
    trn_err err = trn_arrays_open(&input, (trn_array_file[]){{argv[2]}, {argv[3]}}, 2, &(trn_arrays_opts){.batch = atoll(argv[4]), .shuffle = true, .seed = 1, .epochs = 1});
    if (!err)
        err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .is_chief = true, .log_steps = -1});
    double first = 0, begin = 0, cpu = 0;
    int steps = 0;
    while (!err && !(err = trn_arrays_next(xy, input))) {
        trn_tensor_unref(loss);
        err = trn_monitored_run(m, &(trn_run){.feed_names = names, .feeds = xy, .n_feeds = 2, .targets = &op, .n_targets = 1, .fetches = &fetch, .n_fetches = 1, .out = &loss});
        trn_tensor_unref(xy[0]);
        trn_tensor_unref(xy[1]);
        if (steps++ == 0) {
            first = since_start();
            begin = now(CLOCK_MONOTONIC);
            cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        }
    }
    if (trn_err_code(err) != TRN_OUT_OF_RANGE) {
        fprintf(stderr, "epoch: %s\n", trn_err_msg(err));
        return 1;
    }
    trn_err_free(err);
    printf("{\"first_step_s\": %.4f, \"steps\": %d, \"epoch_s\": %.4f, \"cpu_s\": %.4f, \"loss\": %.4f, \"rss_mb\": %.1f}\n", first, steps, now(CLOCK_MONOTONIC) - begin, now(CLOCK_PROCESS_CPUTIME_ID) - cpu,
           *(const float *)trn_tensor_data(loss), peak_mb());
    trn_tensor_unref(loss);
    trn_err_free(trn_monitored_close(m));
    trn_arrays_free(input);
    trn_builder_free(b);
    return 0;
}
