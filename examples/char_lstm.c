/* An LSTM that learns to write, one character after the other, alone or on a cluster:
 *
 *     char_lstm --text=examples/data/alice.txt
 *     char_lstm --ps_hosts=… --worker_hosts=… --job_name=… --task_index=…
 *
 * docs/examples/char_lstm.md walks through it. */
#include <trainera/trainera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 128, TIME = 32, BATCH = 32 };

static int64_t steps = 1000, seed = 1, write_n = 400;
static double rate = 0.005, warmth = 0.6;
static const char *text_path = "examples/data/alice.txt", *run_dir, *begin = "Alice was ";

static const trn_flag flags[] = {
    {"text", TRN_FLAG_STR, &text_path, "what to learn from"},
    {"dir", TRN_FLAG_STR, &run_dir, "where checkpoints and summaries go"},
    {"steps", TRN_FLAG_INT, &steps, "train until this step, all workers together"},
    {"rate", TRN_FLAG_FLOAT, &rate, "learning rate of Adam"},
    {"seed", TRN_FLAG_INT, &seed, "of the weights, the order of pieces and what is written"},
    {"write", TRN_FLAG_INT, &write_n, "characters to write at the end"},
    {"begin", TRN_FLAG_STR, &begin, "what the writing begins with"},
    {"warmth", TRN_FLAG_FLOAT, &warmth, "near 0: always the likeliest character; 1: as likely as learnt"},
    {0},
};

/* The text as numbers: id[character] and back. */
typedef struct book {
    int id[256];
    unsigned char letter[256];
    int n_letters;
} book;

/* Pieces of TIME + 1 characters: all but the last go in, all but the first are what shall come out. */
static trn_err read_pieces(trn_tensor *out[2], book *k, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return trn_errorf(TRN_NOT_FOUND, "%s cannot be read; --text says where the text is", path);
    size_t cap = 1 << 24, n;
    unsigned char *text = malloc(cap);
    n = fread(text, 1, cap, f);
    fclose(f);
    memset(k->id, -1, sizeof k->id);
    for (size_t i = 0; i < n; i++)
        if (k->id[text[i]] < 0) {
            k->id[text[i]] = k->n_letters;
            k->letter[k->n_letters++] = text[i];
        }
    const int stride = TIME / 2; /* pieces overlap by half */
    int64_t dims[] = {n > TIME ? ((int64_t)n - TIME - 1) / stride + 1 : 0, TIME};
    int32_t *in = malloc((size_t)(dims[0] * TIME + 1) * sizeof *in), *next = malloc((size_t)(dims[0] * TIME + 1) * sizeof *next);
    for (int64_t p = 0; p < dims[0]; p++)
        for (int i = 0; i < TIME; i++) {
            in[p * TIME + i] = k->id[text[p * stride + i]];
            next[p * TIME + i] = k->id[text[p * stride + i + 1]];
        }
    out[0] = trn_tensor_from(TRN_INT32, 2, dims, in);
    out[1] = trn_tensor_from(TRN_INT32, 2, dims, next);
    free(in);
    free(next);
    free(text);
    return dims[0] ? TRN_OK : trn_errorf(TRN_INVALID_ARGUMENT, "%s is shorter than %d characters", path, TIME + 1);
}

/* Characters [batch, time] to logits [batch, time, letters]. To write, it runs one character at a time, its state handed from step to step. */
static trn_out logits_of(trn_builder *b, trn_out chars, int n_letters, const trn_out *c, const trn_out *h, bool reuse, trn_rnn *state)
{
    trn_out x = trn_embedding(trn_named(b, "letters"), chars, n_letters, 32, &(trn_embedding_opts){.reuse = reuse});
    *state = trn_lstm(trn_named(b, "rnn"), x, UNITS, &(trn_rnn_opts){.c = c, .h = h, .reuse = reuse});
    return trn_dense(trn_named(b, "logits"), state->outputs, n_letters, &(trn_dense_opts){.reuse = reuse});
}

static int pick(const float *logits, int n, uint64_t *random)
{
    double sum = 0, most = logits[0], p[256];
    for (int i = 1; i < n; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < n; i++)
        sum += p[i] = exp(((double)logits[i] - most) / fmax(warmth, 1e-3));
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    double at = sum * (double)(*random >> 11) / 9007199254740992.0;
    int i = 0;
    while (i + 1 < n && (at -= p[i]) > 0)
        i++;
    return i;
}

static trn_err write_some(const book *k, trn_session *s, const char *const feeds[3], const char *const fetches[3])
{
    const int64_t one[] = {1, 1}, units[] = {1, UNITS};
    static const float zeros[UNITS];
    trn_tensor *in[3] = {NULL, trn_tensor_from(TRN_FLOAT, 2, units, zeros), trn_tensor_from(TRN_FLOAT, 2, units, zeros)}, *out[3];
    uint64_t random = (uint64_t)seed;
    trn_err err = TRN_OK;
    int32_t now = 0;
    for (int64_t i = 0; i < write_n && !err; i++) {
        if (i < (int64_t)strlen(begin))
            now = k->id[(unsigned char)begin[i]] < 0 ? 0 : k->id[(unsigned char)begin[i]];
        putchar(k->letter[now]);
        in[0] = trn_tensor_from(TRN_INT32, 2, one, &now);
        err = trn_session_run(s, &(trn_run){.feed_names = feeds, .feeds = in, .n_feeds = 3, .fetches = fetches, .n_fetches = 3, .out = out});
        for (int t = 0; t < 3; t++)
            trn_tensor_unref(in[t]);
        if (!err) {
            now = pick(trn_tensor_data(out[0]), k->n_letters, &random);
            trn_tensor_unref(out[0]);
            in[1] = out[1];
            in[2] = out[2];
        }
    }
    if (!err) {
        trn_tensor_unref(in[1]);
        trn_tensor_unref(in[2]);
    }
    putchar('\n');
    return err;
}

static trn_err train(const trn_role *me, trn_server *server)
{
    book k = {0};
    trn_tensor *pieces[2], *batch[2], *last = NULL;
    TRN_TRY(read_pieces(pieces, &k, text_path));

    trn_builder *b = trn_builder_new();
    trn_set_seed(b, seed);
    if (me->cluster) {
        char device[128];
        snprintf(device, sizeof device, "/job:%s/task:%d", me->job, me->task);
        trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = device});
    }
    trn_rnn state;
    trn_out chars = trn_placeholder(b, "chars", TRN_INT32, trn_shape_of(2, (int64_t)-1, (int64_t)TIME));
    trn_out next = trn_placeholder(b, "next", TRN_INT32, trn_shape_of(2, (int64_t)-1, (int64_t)TIME));
    trn_out loss = trn_loss_sparse_softmax(b, next, logits_of(b, chars, k.n_letters, NULL, NULL, false, &state), NULL);
    /* Long chains of steps make now and then a gradient that is far too large. */
    int n;
    trn_optimizer *adam = trn_adam(b, trn_cosine_decay(b, (float)rate, trn_global_step(b), (double)steps, 0.05f), 0.9f, 0.999f, 1e-8f);
    trn_grad_var *gv = trn_compute_gradients(&n, adam, loss, NULL, 0);
    trn_clip_by_global_norm(b, gv, n, trn_const_f32(b, 1));
    trn_out update = trn_apply_gradients(adam, gv, n, trn_global_step(b));
    trn_summary_scalar(b, "loss", loss);
    /* The same weights, one character at a time. */
    trn_out one = trn_placeholder(b, "one", TRN_INT32, trn_shape_of(2, (int64_t)1, (int64_t)1));
    trn_out c = trn_placeholder(b, "c", TRN_FLOAT, trn_shape_of(2, (int64_t)1, (int64_t)UNITS)), h = trn_placeholder(b, "h", TRN_FLOAT, trn_shape_of(2, (int64_t)1, (int64_t)UNITS));
    trn_out likely = logits_of(b, one, k.n_letters, &c, &h, true, &state);
    if (me->cluster)
        trn_end(b);

    trn_arrays *feed;
    TRN_TRY(trn_arrays_new(&feed, pieces, 2,
                           &(trn_arrays_opts){.batch = BATCH, .shuffle = true, .seed = seed, .drop_remainder = true, .shards = me->n_workers, .shard = me->task}));
    trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = steps}), me->cluster ? trn_hook_done(NULL) : NULL};
    trn_hook *chief[] = {trn_hook_progress(&(trn_progress_opts){.total_steps = steps, .loss = &loss})};
    trn_monitored *m = NULL;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .checkpoint_dir = run_dir, .log_steps = -1,
                                                               .hooks = hooks, .n_hooks = me->cluster ? 2 : 1, .chief_hooks = chief, .n_chief_hooks = 1});
    const char *names[] = {"chars:0", "next:0"}, *target = trn_out_name(b, trn_out_node(update)), *fetch = trn_out_name(b, loss);
    double mean = 0; /* of the loss, over the last fifty steps or so */
    while (!err && !trn_monitored_should_stop(m) && !(err = trn_arrays_next(batch, feed))) {
        err = trn_monitored_run(m, &(trn_run){.feed_names = names, .feeds = batch, .n_feeds = 2, .targets = &target, .n_targets = 1, .fetches = &fetch, .n_fetches = 1, .out = &last});
        if (!err && last) {
            double now = (double)*(const float *)trn_tensor_data(last);
            mean = mean == 0 ? now : mean + 0.02 * (now - mean);
            trn_tensor_unref(last);
            last = NULL;
        }
        trn_tensor_unref(batch[0]);
        trn_tensor_unref(batch[1]);
    }
    if (!err && me->is_chief) {
        printf("loss: %.3f, %.2f bits per character\n\n", mean, mean / log(2));
        const char *feeds[] = {"one:0", "c:0", "h:0"}, *fetches[] = {trn_out_name(b, likely), trn_out_name(b, state.c), trn_out_name(b, state.h)};
        err = write_some(&k, trn_monitored_session(m), feeds, fetches);
    }
    err = trn_err_first(err, trn_monitored_close(m));
    trn_arrays_free(feed);
    trn_builder_free(b);
    trn_tensor_unref(pieces[0]);
    trn_tensor_unref(pieces[1]);
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, flags, train);
}
