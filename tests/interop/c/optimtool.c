/* Trains for tests/interop/test_c_optim.py, which trains the same in TensorFlow.
 *
 *     optimtool curve OPTIMIZER ref|resource CHECKPOINT     twenty steps in one process; prints the losses, writes all variables
 *     optimtool sync TARGET TASK N TOTAL ref|resource [last_step=…] [leave_after=…] [slow_ms=…] [die] [stall_ms=…]
 *                                                            one of several synchronous workers; prints "key value" lines
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <trainera/trainera.h>

static void must(trn_err err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, trn_code_name(trn_err_code(err)), trn_err_msg(err));
    exit(1);
}

/* Numbers that both programs have: (i · a + c) mod m, around zero. */
static trn_tensor *pattern(int rank, const int64_t *dims, int a, int c, int m, float scale)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * a + c) % m - m / 2) * scale;
    trn_tensor *t = trn_tensor_from(TRN_FLOAT, rank, dims, v);
    free(v);
    return t;
}

enum { ROWS = 6, DIM = 3, OUT = 4, BATCH = 5 };

static trn_optimizer *optimizer(trn_builder *b, const char *name)
{
    trn_out lr = trn_const_f32(b, 0.1f);
    if (!strcmp(name, "sgd"))
        return trn_sgd(b, lr);
    if (!strcmp(name, "momentum"))
        return trn_momentum(b, lr, 0.9f, false);
    if (!strcmp(name, "nesterov"))
        return trn_momentum(b, lr, 0.9f, true);
    if (!strncmp(name, "adagrad_pieces", 14) || !strcmp(name, "adagrad"))
        return trn_adagrad(b, lr, 0.1f);
    if (!strcmp(name, "adadelta"))
        return trn_adadelta(b, trn_const_f32(b, 1), 0.95f, 1e-4f);
    if (!strcmp(name, "adam_pieces") || !strcmp(name, "adam"))
        return trn_adam(b, lr, 0.9f, 0.999f, 1e-8f);
    if (!strcmp(name, "rmsprop"))
        return trn_rmsprop(b, trn_const_f32(b, 0.01f), 0.9f, 0.5f, 1e-10f, false);
    if (!strcmp(name, "centered"))
        return trn_rmsprop(b, trn_const_f32(b, 0.01f), 0.9f, 0.5f, 1e-3f, true);
    if (!strcmp(name, "ftrl"))
        return trn_ftrl(b, lr, &(trn_ftrl_opts){.l1 = 0.001f, .l2 = 0.002f});
    if (!strcmp(name, "ftrl_beta"))
        return trn_ftrl(b, lr, &(trn_ftrl_opts){.beta = 0.1f, .initial_accumulator = TRN_F(0.2f), .lr_power = TRN_F(-0.6f)});
    if (!strcmp(name, "ftrl_shrinkage"))
        return trn_ftrl(b, lr, &(trn_ftrl_opts){.l1 = 0.001f, .l2 = 0.002f, .l2_shrinkage = 0.01f});
    if (!strcmp(name, "proximal_sgd"))
        return trn_proximal_sgd(b, lr, 0.001f, 0.002f);
    if (!strcmp(name, "proximal_adagrad"))
        return trn_proximal_adagrad(b, lr, 0.1f, 0.001f, 0.002f);
    if (!strcmp(name, "adagrad_da"))
        return trn_adagrad_da(b, lr, trn_global_step(b), 0.1f, 0.0001f, 0.0002f);
    if (!strcmp(name, "sgd_decay_clip"))
        return trn_sgd(b, trn_exponential_decay(b, 0.5f, trn_global_step(b), 4, 0.7f, true));
    if (!strcmp(name, "momentum_polynomial")) {
        trn_out rate = trn_polynomial_decay(b, 0.2f, trn_global_step(b), 6, 0.01f, 2, true);
        return trn_momentum(trn_named(b, "Mine"), rate, 0.9f, false);
    }
    if (!strcmp(name, "sgd_cosine"))
        return trn_sgd(b, trn_cosine_decay_restarts(b, 0.5f, trn_global_step(b), 3, 2, 0.8f, 0.1f));
    if (!strcmp(name, "sgd_piecewise"))
        return trn_sgd(b, trn_piecewise_constant(b, trn_global_step(b), (int64_t[]){3, 11}, (float[]){0.5f, 0.1f, 0.02f}, 2));
    fprintf(stderr, "no optimizer %s\n", name);
    exit(2);
}

/* Rows offset[0] … of the pattern. */
static trn_out piece(void *arg, trn_builder *b, trn_dtype dtype, const trn_shape *shape, const trn_shape *full, const int64_t *offset)
{
    return trn_const(b, pattern(2, shape->dim, 7, 3 + 7 * (int)offset[0] * DIM, 11, 0.1f));
}

static int curve(const char *name, bool ref, const char *path)
{
    trn_builder *b = trn_builder_new();
    trn_use_ref_variables(b, ref);
    trn_global_step(b);
    bool pieces = strstr(name, "pieces");
    trn_partitioned *cut = NULL;
    trn_variable *emb = NULL;
    if (pieces)
        cut = trn_partitioned_variable(b, "model/emb", TRN_FLOAT, trn_shape_of(2, (int64_t)ROWS, (int64_t)DIM), trn_fixed_partitioner(4, 0), piece, NULL, 0);
    else
        emb = trn_variable_new(b, "model/emb", trn_const(b, pattern(2, (int64_t[]){ROWS, DIM}, 7, 3, 11, 0.1f)), 0);
    trn_variable *w = trn_variable_new(b, "model/w", trn_const(b, pattern(2, (int64_t[]){DIM, OUT}, 5, 1, 13, 0.1f)), 0);
    trn_variable *bias = trn_variable_new(b, "bias", trn_const(b, pattern(1, (int64_t[]){OUT}, 3, 2, 7, 0.05f)), 0);
    trn_out ids = trn_placeholder(b, "ids", TRN_INT32, trn_shape_vector(BATCH)), y = trn_placeholder(b, "y", TRN_FLOAT, trn_shape_of(2, (int64_t)BATCH, (int64_t)OUT));
    trn_out h = trn_op_mat_mul(b, trn_embedding_lookup_pieces(b, cut ? cut->parts : &emb, cut ? cut->n : 1, ids, TRN_DIV), w->value, NULL);
    h = trn_op_tanh(b, trn_op_bias_add(b, h, bias->value, NULL));
    trn_out d = trn_op_squared_difference(b, h, y);
    trn_out axes = trn_const_i32s(b, (int32_t[]){0, 1}, 2);
    trn_out loss = trn_node_add(trn_named(b, "loss"), "Mean", TRN_OUTS(d, axes), NULL, 0);
    trn_optimizer *o = optimizer(b, name);
    int n;
    trn_grad_var *gv = trn_compute_gradients(&n, o, loss, NULL, 0);
    if (strstr(name, "clip"))
        trn_clip_by_global_norm(b, gv, n, trn_const_f32(b, 0.2f));
    trn_out train = trn_apply_gradients(o, gv, n, trn_global_step(b));
    trn_saver *saver = trn_saver_new(b, NULL);
    const char *init = trn_out_name(b, trn_variables_init(b, TRN_VARS_GLOBAL));
    must(trn_builder_check(b), "model");
    trn_server *server;
    trn_session *s;
    must(trn_server_create_local(&server), "server");
    must(trn_session_open_on(&s, server, NULL), "session");
    must(trn_session_extend_builder(s, b), "graph");
    must(trn_session_run(s, &(trn_run){.targets = &init, .n_targets = 1}), "init");
    const char *feeds[] = {"ids:0", "y:0"}, *fetch = "loss:0", *target = trn_out_name(b, train);
    for (int t = 0; t < 20; t++) {
        int32_t id[BATCH];
        for (int i = 0; i < BATCH; i++)
            id[i] = (i * i + t) % ROWS; /* some twice, some not at all */
        trn_tensor *in[] = {trn_tensor_from(TRN_INT32, 1, (int64_t[]){BATCH}, id), pattern(2, (int64_t[]){BATCH, OUT}, 11, 5 * t, 17, 0.1f)}, *out;
        must(trn_session_run(s, &(trn_run){.feed_names = feeds, .feeds = in, .n_feeds = 2, .fetches = &fetch, .n_fetches = 1, .targets = &target, .n_targets = 1, .out = &out}),
             "step");
        printf("%.9g\n", (double)*(const float *)trn_tensor_data(out));
        trn_tensor_unref(out);
        trn_tensor_unref(in[0]);
        trn_tensor_unref(in[1]);
    }
    char *written = NULL;
    must(trn_saver_save(&written, saver, s, path, -1), "save");
    free(written);
    must(trn_session_close(s), "close");
    trn_server_close(server, 1000);
    trn_builder_free(b);
    return 0;
}

/* ---- synchronous ----------------------------------------------------------------------------------------------------- */

typedef struct sync_args {
    int task, n, total, leave_after, slow_ms;
    long long last_step, stall_ms;
    bool ref, die;
} sync_args;

static trn_tensor *get(trn_session *s, const char *name)
{
    trn_tensor *t;
    must(trn_session_run(s, &(trn_run){.fetches = &name, .n_fetches = 1, .out = &t}), name);
    return t;
}

static int sync_worker(const char *target, const sync_args *a)
{
    trn_builder *b = trn_builder_new();
    char dev[64];
    snprintf(dev, sizeof dev, "/job:worker/task:%d", a->task);
    trn_use_ref_variables(b, a->ref);
    trn_replica_device_setter(b, &(trn_setter_opts){.ps_tasks = 2, .worker_device = dev, .strategy = TRN_ROUND_ROBIN});
    trn_variable *gs = trn_global_step(b);
    /* Gradients: w gets 2, a row of emb 1. */
    trn_variable *w = trn_variable_new(b, "w", trn_const(b, pattern(1, (int64_t[]){3}, 1, 0, 3, 1)), 0);
    trn_variable *emb = trn_variable_new(b, "emb", trn_zeros(b, TRN_FLOAT, trn_shape_of(2, 4L, 2L)), 0);
    trn_out rows = trn_embedding_lookup_pieces(b, &emb, 1, trn_const_i32s(b, (int32_t[]){1, 3}, 2), TRN_MOD);
    trn_out sum = trn_node_add(b, "Sum", TRN_OUTS(w->value, trn_const_i32s(b, (int32_t[]){0}, 1)), NULL, 0);
    trn_out rsum = trn_node_add(b, "Sum", TRN_OUTS(rows, trn_const_i32s(b, (int32_t[]){0, 1}, 2)), NULL, 0);
    trn_out loss = trn_op_add_v2(b, trn_op_mul(b, sum, trn_const_f32(b, 2)), rsum);
    trn_optimizer *o = trn_sync_replicas(b, trn_momentum(b, trn_const_f32(b, 0.1f), 0.5f, false), a->n, a->total);
    trn_out train = trn_minimize(o, loss, gs);
    const char *init = trn_out_name(b, trn_variables_init(b, TRN_VARS_GLOBAL)), *local = trn_out_name(b, trn_variables_init(b, TRN_VARS_LOCAL));
    const char *t_train = trn_out_name(b, train), *n_gs = trn_out_name(b, gs->value), *n_w = trn_out_name(b, w->value), *n_emb = trn_out_name(b, emb->value),
               *n_stale = trn_out_name(b, trn_sync_stale_count(o)), *ready = trn_out_name(b, gs->is_initialized), *ready2 = trn_out_name(b, emb->is_initialized);
    trn_end(b);
    must(trn_builder_check(b), "model");
    trn_session *s;
    must(trn_session_open(&s, target, NULL), "session");
    must(trn_session_extend_builder(s, b), "graph");
    bool chief = a->task == 0;
    if (chief)
        must(trn_session_run(s, &(trn_run){.targets = &init, .n_targets = 1}), "init");
    for (bool there = chief; !there;) {
        trn_tensor *t = get(s, ready), *t2 = get(s, ready2);
        there = *(const bool *)trn_tensor_data(t) && *(const bool *)trn_tensor_data(t2);
        trn_tensor_unref(t);
        trn_tensor_unref(t2);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    must(trn_session_run(s, &(trn_run){.targets = &local, .n_targets = 1}), "local init");
    trn_sync *sync;
    must(trn_sync_start(&sync, o, s, &(trn_sync_opts){.is_chief = chief, .stall_ms = a->stall_ms, .num_tokens = -1}), "start");
    printf("ready %d\n", a->task);
    fflush(stdout);
    int steps = 0;
    bool ended = false;
    long long step = 0;
    while (!a->leave_after || steps < a->leave_after) {
        if (a->slow_ms)
            nanosleep(&(struct timespec){.tv_nsec = a->slow_ms * 1000000L}, NULL);
        trn_tensor *t;
        trn_err err = trn_session_run(s, &(trn_run){.targets = &t_train, .n_targets = 1});
        if (err && trn_err_code(err) == TRN_OUT_OF_RANGE) {
            trn_err_free(err);
            ended = true;
            break;
        }
        must(err, "step");
        steps++;
        t = get(s, n_gs);
        step = *(const int64_t *)trn_tensor_data(t);
        trn_tensor_unref(t);
        if (a->last_step && step >= a->last_step)
            break;
    }
    must(trn_sync_check(sync), "aggregation");
    if (a->die)
        _Exit(0);
    trn_sync_stop(sync, true);
    trn_tensor *t = get(s, n_gs), *tw = get(s, n_w), *te = get(s, n_emb), *ts = get(s, n_stale);
    printf("steps %d\nended %d\nglobal_step %lld\nstale %lld\nw", steps, ended, (long long)*(const int64_t *)trn_tensor_data(t),
           (long long)*(const int64_t *)trn_tensor_data(ts));
    for (int i = 0; i < 3; i++)
        printf(" %.9g", (double)((const float *)trn_tensor_data(tw))[i]);
    printf("\nemb");
    for (int i = 0; i < 8; i++)
        printf(" %.9g", (double)((const float *)trn_tensor_data(te))[i]);
    printf("\n");
    trn_tensor_unref(t);
    trn_tensor_unref(tw);
    trn_tensor_unref(te);
    trn_tensor_unref(ts);
    must(trn_session_close(s), "close");
    trn_builder_free(b);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "curve"))
        return curve(argv[2], !strcmp(argv[3], "ref"), argv[4]);
    if (argc >= 7 && !strcmp(argv[1], "sync")) {
        sync_args a = {.task = atoi(argv[3]), .n = atoi(argv[4]), .total = atoi(argv[5]), .ref = !strcmp(argv[6], "ref"), .stall_ms = -1};
        for (int i = 7; i < argc; i++) {
            const char *v = strchr(argv[i], '=');
            long long n = v ? atoll(v + 1) : 0;
            if (!strncmp(argv[i], "last_step", 9))
                a.last_step = n;
            else if (!strncmp(argv[i], "leave_after", 11))
                a.leave_after = (int)n;
            else if (!strncmp(argv[i], "slow_ms", 7))
                a.slow_ms = (int)n;
            else if (!strncmp(argv[i], "stall_ms", 8))
                a.stall_ms = n;
            else if (!strcmp(argv[i], "die"))
                a.die = true;
        }
        return sync_worker(argv[2], &a);
    }
    fprintf(stderr, "usage: see the top of optimtool.c\n");
    return 2;
}
