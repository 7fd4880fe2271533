/* Words as vectors, from the company they keep (skip-gram with negative sampling), alone or on a cluster:
 *
 *     word_embeddings --text=examples/data/alice.txt
 *     word_embeddings --ps_hosts=… --worker_hosts=… --job_name=… --task_index=…
 *
 * A step reads and updates only the rows of the words in its batch, wherever the tables are. docs/examples/word_embeddings.md walks through it. */
#include <trainera/trainera.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 48, BATCH = 256, NEGATIVES = 32, WINDOW = 4, MIN_COUNT = 5, NEAR = 5 };

static int64_t steps = 8000, seed = 1;
static double rate = 0.1;
static const char *text_path = "examples/data/alice.txt", *run_dir, *ask = "queen,turtle,hatter,cat,door,eyes,thought";

static const trn_flag flags[] = {
    {"text", TRN_FLAG_STR, &text_path, "what to read"},
    {"dir", TRN_FLAG_STR, &run_dir, "where checkpoints and summaries go"},
    {"steps", TRN_FLAG_INT, &steps, "train until this step, all workers together"},
    {"rate", TRN_FLAG_FLOAT, &rate, "learning rate of Adagrad"},
    {"seed", TRN_FLAG_INT, &seed, "of the vectors and the order of words"},
    {"ask", TRN_FLAG_STR, &ask, "words whose neighbours are printed at the end"},
    {0},
};

/* ---- the text ------------------------------------------------------------------------------------------------------- */

typedef struct word {
    char text[24];
    int count, first; /* how often, and where first */
} word;

typedef struct book {
    word *words;   /* the most frequent one first: its place is its id */
    int n_words;
    int32_t *ids;  /* the text; rare words are left out */
    int n;
} book;

static int by_text(const void *a, const void *b) { return strcmp(((const word *)a)->text, ((const word *)b)->text); }
static int by_count(const void *a, const void *b)
{
    const word *x = a, *y = b;
    return x->count != y->count ? y->count - x->count : strcmp(x->text, y->text);
}

static int find(const book *k, const char *text)
{
    for (int i = 0; i < k->n_words; i++)
        if (strcmp(k->words[i].text, text) == 0)
            return i;
    return -1;
}

static trn_err read_book(book *k, const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return trn_errorf(TRN_NOT_FOUND, "%s cannot be read; --text says where the text is", path);
    int n = 0, cap = 1 << 16, len = 0;
    word *all = calloc((size_t)cap, sizeof *all); /* every word of the text, then sorted */
    for (int c = 0; c != EOF && n < cap;) {
        c = fgetc(f);
        if (isalpha(c) && len < (int)sizeof all->text - 1)
            all[n].text[len++] = (char)tolower(c);
        else if (len && !isalpha(c)) {
            all[n].first = n;
            n++;
            len = 0;
        }
    }
    fclose(f);
    word *sorted = malloc((size_t)n * sizeof *sorted);
    memcpy(sorted, all, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    k->words = calloc((size_t)n + 1, sizeof *k->words);
    for (int i = 0, run = 0; i < n; i++) {
        run++;
        if (i + 1 == n || strcmp(sorted[i].text, sorted[i + 1].text) != 0) {
            if (run >= MIN_COUNT) {
                k->words[k->n_words] = sorted[i];
                k->words[k->n_words++].count = run;
            }
            run = 0;
        }
    }
    qsort(k->words, (size_t)k->n_words, sizeof *k->words, by_count);
    k->ids = malloc((size_t)n * sizeof *k->ids);
    for (int i = 0; i < n; i++) {
        int id = find(k, all[i].text);
        if (id >= 0)
            k->ids[k->n++] = id;
    }
    free(sorted);
    free(all);
    return k->n > 2 * WINDOW ? TRN_OK : trn_errorf(TRN_INVALID_ARGUMENT, "%s has too few words", path);
}

/* Every word with each of its neighbours. Frequent words say little: most of their pairs are left out. */
static trn_err pairs_of(trn_tensor *out[2], const book *k)
{
    int64_t n = 0, cap = (int64_t)k->n * 2 * WINDOW;
    int32_t *centre = malloc((size_t)cap * sizeof *centre), *context = malloc((size_t)cap * sizeof *context);
    uint64_t r = (uint64_t)seed;
    for (int i = 0; i < k->n; i++)
        for (int j = i - WINDOW; j <= i + WINDOW; j++) {
            if (j == i || j < 0 || j >= k->n)
                continue;
            r = r * 6364136223846793005u + 1442695040888963407u;
            double keep = 0.002 * k->n / k->words[k->ids[i]].count;
            if ((double)(r >> 40) / (1 << 24) > keep + 0.05)
                continue;
            centre[n] = k->ids[i];
            context[n++] = k->ids[j];
        }
    out[0] = trn_tensor_from(TRN_INT32, 1, &n, centre);
    out[1] = trn_tensor_from(TRN_INT32, 1, &n, context);
    free(centre);
    free(context);
    return TRN_OK;
}

/* ---- the model ------------------------------------------------------------------------------------------------------ */

/* Neighbours shall have a large product, words picked at random a small one. */
static trn_out loss_of(trn_builder *b, trn_variable *vectors, trn_variable *contexts, trn_out centre, trn_out context)
{
    int64_t seeds[2];
    trn_next_seeds(seeds, b, (trn_maybe_int){0});
    trn_out truth = trn_op_expand_dims(b, trn_op_cast(b, context, TRN_INT64, NULL), trn_const_i32(b, 1));
    trn_out random = trn_op_log_uniform_candidate_sampler(b, truth, 1, NEGATIVES, true, vectors->shape.dim[0],
                                                          &(trn_log_uniform_candidate_sampler_opts){.seed = seeds[0], .seed2 = seeds[1]}).sampled_candidates;
    trn_out v = trn_embedding_lookup(b, vectors, centre), near = trn_embedding_lookup(b, contexts, context), far = trn_embedding_lookup(b, contexts, random);
    trn_out yes = trn_op_sum(b, trn_op_mul(b, v, near), trn_const_i32(b, 1), NULL);
    trn_out no = trn_op_mat_mul(b, v, far, &(trn_mat_mul_opts){.transpose_b = true});
    trn_loss_opts quiet = {.reduction = TRN_SUM, .collection = ""};
    trn_out sum = trn_op_add_v2(b, trn_loss_sigmoid(b, trn_op_ones_like(b, yes), yes, &quiet), trn_loss_sigmoid(b, trn_op_zeros_like(b, no), no, &quiet));
    trn_out share = trn_const_f32(b, 1.0f / BATCH);
    return trn_op_mul(trn_named(b, "loss"), sum, share);
}

/* The ids of the NEAR + 1 vectors with the least angle to that of `of`; the first is itself. */
static trn_out nearest(trn_builder *b, trn_variable *vectors, trn_out of)
{
    trn_out length = trn_op_sqrt(b, trn_op_sum(b, trn_op_square(b, vectors->value), trn_const_i32(b, 1), &(trn_sum_opts){.keep_dims = true}));
    trn_out unit = trn_op_real_div(b, vectors->value, length);
    trn_out close = trn_op_mat_mul(b, trn_op_gather_v2(b, unit, of, trn_const_i32(b, 0), NULL), unit, &(trn_mat_mul_opts){.transpose_b = true});
    return trn_op_top_k_v2(b, close, trn_const_i32(b, NEAR + 1), NULL).indices;
}

static trn_err print_neighbours(const book *k, trn_session *s, const char *of, const char *near)
{
    char *words = strdup(ask);
    trn_err err = TRN_OK;
    for (char *w = strtok(words, ","); w && !err; w = strtok(NULL, ",")) {
        int32_t id = find(k, w);
        if (id < 0) {
            printf("%10s: not in the text %d times\n", w, MIN_COUNT);
            continue;
        }
        trn_tensor *in = trn_tensor_from(TRN_INT32, 1, (int64_t[]){1}, &id), *out = NULL;
        err = trn_session_run(s, &(trn_run){.feed_names = &of, .feeds = &in, .n_feeds = 1, .fetches = &near, .n_fetches = 1, .out = &out});
        if (!err) {
            printf("%10s:", w);
            for (int i = 1; i <= NEAR; i++)
                printf(" %s", k->words[((const int32_t *)trn_tensor_data(out))[i]].text);
            printf("\n");
        }
        trn_tensor_unref(in);
        trn_tensor_unref(out);
    }
    free(words);
    return err;
}

static trn_err train(const trn_role *me, trn_server *server)
{
    book k = {0};
    trn_tensor *pairs[2], *batch[2], *last = NULL;
    TRN_TRY(read_book(&k, text_path));
    TRN_TRY(pairs_of(pairs, &k));
    if (me->is_chief)
        printf("%d words, %d of them different, %lld pairs\n", k.n, k.n_words, (long long)trn_tensor_count(pairs[0]));

    trn_builder *b = trn_builder_new();
    trn_set_seed(b, seed);
    if (me->cluster) {
        char device[128];
        snprintf(device, sizeof device, "/job:%s/task:%d", me->job, me->task);
        trn_replica_device_setter(b, &(trn_setter_opts){.cluster = me->cluster, .worker_device = device});
    }
    trn_shape table = trn_shape_of(2, (int64_t)k.n_words, (int64_t)DIMS);
    trn_variable *vectors = trn_get_variable(b, "vectors", TRN_FLOAT, table, trn_init_uniform(-0.01, 0.01), 0);
    trn_variable *contexts = trn_get_variable(b, "contexts", TRN_FLOAT, table, trn_init_zeros(), 0);
    trn_out centre = trn_placeholder(b, "centre", TRN_INT32, trn_shape_of(1, (int64_t)-1)), context = trn_placeholder(b, "context", TRN_INT32, trn_shape_of(1, (int64_t)-1));
    trn_out loss = loss_of(b, vectors, contexts, centre, context);
    trn_out update = trn_minimize(trn_adagrad(b, trn_const_f32(b, (float)rate), 0.1f), loss, trn_global_step(b));
    trn_out of = trn_placeholder(b, "of", TRN_INT32, trn_shape_of(1, (int64_t)-1));
    trn_out near = nearest(b, vectors, of);
    trn_summary_scalar(b, "loss", loss);
    if (me->cluster)
        trn_end(b);

    trn_arrays *feed;
    TRN_TRY(trn_arrays_new(&feed, pairs, 2,
                           &(trn_arrays_opts){.batch = BATCH, .shuffle = true, .seed = seed, .drop_remainder = true, .shards = me->n_workers, .shard = me->task}));
    trn_hook *hooks[] = {trn_hook_stop_at_step(&(trn_stop_at_step_opts){.last_step = steps}), me->cluster ? trn_hook_done(NULL) : NULL};
    trn_hook *chief[] = {trn_hook_progress(&(trn_progress_opts){.total_steps = steps, .loss = &loss})};
    trn_monitored *m = NULL;
    trn_err err = trn_monitored_open(&m, &(trn_monitored_opts){.builder = b, .server = server, .is_chief = me->is_chief, .checkpoint_dir = run_dir, .log_steps = -1,
                                                               .hooks = hooks, .n_hooks = me->cluster ? 2 : 1, .chief_hooks = chief, .n_chief_hooks = 1});
    const char *names[] = {"centre:0", "context:0"}, *target = trn_out_name(b, trn_out_node(update)), *fetch = trn_out_name(b, loss);
    float mean = 0; /* of the loss, over the last hundred steps or so */
    while (!err && !trn_monitored_should_stop(m) && !(err = trn_arrays_next(batch, feed))) {
        err = trn_monitored_run(m, &(trn_run){.feed_names = names, .feeds = batch, .n_feeds = 2, .targets = &target, .n_targets = 1, .fetches = &fetch, .n_fetches = 1, .out = &last});
        if (!err && last) {
            float now = *(const float *)trn_tensor_data(last);
            mean = mean == 0 ? now : mean + 0.01f * (now - mean);
            trn_tensor_unref(last);
            last = NULL;
        }
        trn_tensor_unref(batch[0]);
        trn_tensor_unref(batch[1]);
    }
    if (!err && me->is_chief) {
        printf("loss: %.3f\n", (double)mean);
        err = print_neighbours(&k, trn_monitored_session(m), "of:0", trn_out_name(b, near));
    }
    err = trn_err_first(err, trn_monitored_close(m));
    trn_arrays_free(feed);
    trn_builder_free(b);
    trn_tensor_unref(pairs[0]);
    trn_tensor_unref(pairs[1]);
    free(k.words);
    free(k.ids);
    return err;
}

int main(int argc, char **argv)
{
    return trn_main(argc, argv, flags, train);
}
