/* word2vec as TensorFlow's first tutorial had it: Skipgram reads a text and gives pairs of words that stand near each other, NegTrain makes a step of plain gradient descent on them
 * with words drawn at random as counterexamples. In graphs of versions below 19. */
#include <ctype.h>
#include <stdlib.h>

#include "ckpt/file.h"
#include "op/cancel.h"
#include "op/kctx.h"
#include "ops/random.h"
#include "ops/state.h"

/* ---- Skipgram ------------------------------------------------------------------------------------------------------- */

enum { AHEAD = 3000, SENTENCE = 1000 };
enum { PATIENCE = 1 << 20 }; /* words, bytes or numbers between two looks whether the step is cancelled */

static trn_err still_wanted(const trn_kctx *k)
{
    trn_cancel *c = trn_k_cancel(k);
    return c ? trn_cancel_why(c) : TRN_OK;
}

typedef struct pair {
    int32_t input, label;
} pair;

/* Text and vocabulary are fixed after the first run. */
typedef struct skipgram {
    trn_mutex mu;
    bool ready;
    trn_tensor *word, *freq;
    int32_t *corpus; /* the text as numbers of words */
    int64_t n_corpus;
    int64_t window;
    float subsample;
    trn_philox1 gen;
    pair next[AHEAD];
    int at_next; /* AHEAD: none is left */
    int32_t sentence[SENTENCE], epoch;
    int64_t words_done;
    int64_t at_corpus;
    int32_t at_sentence, label, label_end;
} skipgram;

static trn_err skipgram_init(trn_kinit *ki)
{
    skipgram *s = trn_xalloc(sizeof *s);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    s->window = trn_attr_int(ki->node, "window_size");
    s->subsample = trn_attr_float(ki->node, "subsample");
    s->gen = trn_philox1_of((trn_philox){0}); /* TensorFlow's is not seeded, either */
    ki->state = s;
    return TRN_OK;
}

static void skipgram_fini(void *state)
{
    skipgram *s = state;
    if (!s)
        return;
    trn_mutex_fini(&s->mu);
    trn_tensor_unref(s->word);
    trn_tensor_unref(s->freq);
    free(s->corpus);
    free(s);
}

typedef struct word {
    const char *p; /* the map's */
    size_t n;
    int32_t count, id;
} word;

typedef struct text {
    trn_map *words; /* → index into v, plus one */
    word *v;
    int32_t n, cap;
    int32_t *at; /* the text: indices into v */
    int64_t n_at, cap_at;
} text;

static trn_err add_word(text *t, const char *p, size_t n)
{
    intptr_t i = (intptr_t)trn_map_get(t->words, p, n);
    TRN_CHECK_ARG(t->n < INT32_MAX - 1, "the text has too many different words");
    if (!i) {
        i = t->n + 1;
        trn_map_put(t->words, p, n, (void *)i);
        TRN_PUSH(t->v, t->n, t->cap, (word){0});
    }
    if (t->n_at == t->cap_at) {
        int64_t cap = t->cap_at ? 2 * t->cap_at : 4096;
        int32_t *at = realloc(t->at, (size_t)cap * sizeof *at);
        if (!at)
            return trn_err_oom();
        t->at = at;
        t->cap_at = cap;
    }
    TRN_CHECK_ARG(t->n_at < INT32_MAX, "the text has more words than 32 bits can count");
    t->at[t->n_at++] = (int32_t)i - 1;
    t->v[i - 1].count++;
    return TRN_OK;
}

/* What stands between white space; *part is what the text has ended in so far. */
static trn_err add_bytes(text *t, trn_sb *part, const char *p, size_t n)
{
    for (size_t i = 0, from = 0; i <= n; i++) {
        bool ends = i < n && isspace((unsigned char)p[i]);
        if (i < n && !ends)
            continue;
        trn_sb_add(part, p + from, i - from);
        from = i + 1;
        if (ends && part->n) {
            TRN_TRY(add_word(t, part->p, part->n));
            part->n = 0;
        }
    }
    return TRN_OK;
}

static trn_err read_text(text *t, const trn_kctx *k, trn_infile *f)
{
    trn_sb part = {0};
    char *p = trn_xalloc(PATIENCE);
    trn_err err = TRN_OK;
    for (uint64_t at = 0; at < f->size && !err; at += PATIENCE) {
        size_t n = (size_t)TRN_MIN(f->size - at, (uint64_t)PATIENCE);
        err = still_wanted(k);
        if (!err)
            err = trn_infile_read(f, at, p, n);
        if (!err)
            err = add_bytes(t, &part, p, n);
    }
    if (!err && part.n)
        err = add_word(t, part.p, part.n);
    free(p);
    trn_sb_fini(&part);
    return err;
}

/* The most frequent first; TensorFlow leaves open how those go that are equally frequent. */
static int by_count(const void *a_, const void *b_)
{
    const word *const *a = a_, *const *b = b_;
    if ((*a)->count != (*b)->count)
        return (*a)->count > (*b)->count ? -1 : 1;
    int d = memcmp((*a)->p, (*b)->p, TRN_MIN((*a)->n, (*b)->n));
    return d ? d : (*a)->n < (*b)->n ? -1 : 1;
}

/* Word 0 stands for all that are too rare. */
static trn_err vocabulary(skipgram *s, text *t, int64_t least)
{
    const char *key;
    size_t n_key;
    void *value;
    for (size_t it = 0; trn_map_next(t->words, &it, &key, &n_key, &value);) {
        t->v[(intptr_t)value - 1].p = key;
        t->v[(intptr_t)value - 1].n = n_key;
    }
    word **order = trn_xalloc(((size_t)t->n + 1) * sizeof *order);
    int64_t n = 0, counted = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (t->v[i].count >= least)
            order[n++] = &t->v[i];
    qsort(order, (size_t)n, sizeof *order, by_count);
    trn_shape shape = trn_shape_vector(n + 1);
    trn_tensor *words = NULL, *freq = NULL;
    trn_err err = trn_tensor_new(&words, TRN_STRING, &shape);
    if (!err)
        err = trn_tensor_new(&freq, TRN_INT32, &shape);
    if (!err)
        err = trn_tensor_str_put(words, 0, "UNK", 3);
    for (int64_t i = 0; i < n && !err; i++) {
        err = trn_tensor_str_put(words, i + 1, order[i]->p, order[i]->n);
        TRN_DATA_MUT(freq, int32_t)[i + 1] = order[i]->count;
        order[i]->id = (int32_t)i + 1;
        counted += order[i]->count;
    }
    free(order);
    if (err) {
        trn_tensor_unref(words);
        trn_tensor_unref(freq);
        return err;
    }
    TRN_DATA_MUT(freq, int32_t)[0] = (int32_t)(t->n_at - counted);
    s->word = words;
    s->freq = freq;
    for (int64_t i = 0; i < t->n_at; i++)
        t->at[i] = t->v[t->at[i]].id;
    s->corpus = t->at;
    s->n_corpus = t->n_at;
    t->at = NULL;
    return TRN_OK;
}

static trn_err load(skipgram *s, trn_kctx *k)
{
    const char *path = trn_attr_str(k->node, "filename");
    TRN_CHECK_ARG(s->window >= 1 && s->window <= INT32_MAX, "window_size is %lld; it must be a positive number of 32 bits", (long long)s->window);
    TRN_TRY(trn_k_check_path(k, path));
    trn_infile f;
    TRN_TRY(trn_infile_open(&f, path));
    text t = {.words = trn_map_new()};
    trn_err err = read_text(&t, k, &f);
    trn_infile_close(&f);
    if (!err && t.n_at < s->window * 10)
        err = TRN_BAD("%s is too short: %lld words", path, (long long)t.n_at);
    if (!err)
        err = vocabulary(s, &t, trn_attr_int(k->node, "min_count"));
    trn_map_free(t.words, NULL);
    free(t.v);
    free(t.at);
    return err;
}

/* A sentence of the words that come next; frequent ones are left out at random (equation 5 of Mikolov et al., 2013). */
static trn_err next_sentence(skipgram *s, const trn_kctx *k)
{
    const int32_t *freq = TRN_DATA(s->freq, int32_t);
    float scale = s->subsample * (float)s->n_corpus;
    int64_t tries = 0;
    for (int i = 0; i < SENTENCE; s->at_corpus++) {
        if (++tries % PATIENCE == 0)
            TRN_TRY(still_wanted(k));
        if (s->at_corpus >= s->n_corpus) {
            s->epoch++;
            s->at_corpus = 0;
        }
        int32_t w = s->corpus[s->at_corpus];
        if (s->subsample > 0) {
            float often = (float)freq[w], keep = (sqrtf(often / scale) + 1) * scale / often;
            if (trn_philox_f32(trn_philox1_next(&s->gen)) > keep)
                continue;
        }
        s->sentence[i++] = w;
    }
    return TRN_OK;
}

static trn_err next_pair(pair *out, skipgram *s, const trn_kctx *k)
{
    for (;; s->label++) {
        if (s->label >= s->label_end) {
            if (s->at_sentence >= SENTENCE - 1)
                TRN_TRY(next_sentence(s, k));
            s->at_sentence = s->at_sentence < SENTENCE - 1 ? s->at_sentence + 1 : 0;
            s->words_done++;
            int64_t reach = 1 + (int64_t)trn_philox1_below(&s->gen, (uint32_t)s->window);
            s->label = (int32_t)TRN_MAX(s->at_sentence - reach, (int64_t)0);
            s->label_end = (int32_t)TRN_MIN(s->at_sentence + reach + 1, (int64_t)SENTENCE);
        }
        if (s->at_sentence != s->label)
            break;
    }
    *out = (pair){s->sentence[s->at_sentence], s->sentence[s->label++]};
    return TRN_OK;
}

/* All of them or, when the step is cancelled meanwhile, none: the next step goes on with the text. */
static trn_err ahead(skipgram *s, const trn_kctx *k)
{
    s->at_next = AHEAD;
    for (int i = 0; i < AHEAD; i++)
        TRN_TRY(next_pair(&s->next[i], s, k));
    s->at_next = 0;
    return TRN_OK;
}

static trn_err draw_pairs(skipgram *s, trn_kctx *k, trn_tensor *examples, trn_tensor *labels)
{
    if (!s->ready) {
        TRN_TRY(load(s, k));
        s->epoch = -1;
        s->at_corpus = s->n_corpus;
        s->at_sentence = SENTENCE;
        s->at_next = AHEAD;
        s->ready = true;
    }
    if (s->at_next == AHEAD)
        TRN_TRY(ahead(s, k));
    for (int64_t i = 0; i < examples->count; i++) {
        TRN_DATA_MUT(examples, int32_t)[i] = s->next[s->at_next].input;
        TRN_DATA_MUT(labels, int32_t)[i] = s->next[s->at_next].label;
        if (++s->at_next == AHEAD)
            TRN_TRY(ahead(s, k));
    }
    return TRN_OK;
}

static trn_err k_skipgram(trn_kctx *k)
{
    skipgram *s = k->state;
    int64_t n = trn_attr_int(k->node, "batch_size");
    TRN_CHECK_ARG(n >= 0, "batch_size is %lld", (long long)n);
    trn_shape batch = trn_shape_vector(n), scalar = trn_shape_scalar();
    trn_tensor *corpus, *epoch, *done, *examples, *labels;
    TRN_TRY(trn_out_new(&corpus, k, 2, TRN_INT64, &scalar));
    TRN_TRY(trn_out_new(&epoch, k, 3, TRN_INT32, &scalar));
    TRN_TRY(trn_out_new(&done, k, 4, TRN_INT64, &scalar));
    TRN_TRY(trn_out_new(&examples, k, 5, TRN_INT32, &batch));
    TRN_TRY(trn_out_new(&labels, k, 6, TRN_INT32, &batch));
    trn_lock(&s->mu);
    trn_err err = draw_pairs(s, k, examples, labels);
    if (!err) {
        trn_out_set(k, 0, trn_tensor_ref(s->word));
        trn_out_set(k, 1, trn_tensor_ref(s->freq));
        TRN_DATA_MUT(corpus, int64_t)[0] = s->n_corpus;
        TRN_DATA_MUT(epoch, int32_t)[0] = s->epoch;
        TRN_DATA_MUT(done, int64_t)[0] = s->words_done;
    }
    trn_unlock(&s->mu);
    return err;
}

/* ---- NegTrain ---------------------------------------------------------------------------------------------------------- */

typedef struct neg_train {
    trn_mutex mu;
    trn_philox gen;
    int64_t n;
    double sum[]; /* of the weights up to a word's */
} neg_train;

static trn_err neg_train_init(trn_kinit *ki)
{
    const trn_attr *counts = trn_node_attr(ki->node, "vocab_count");
    int n = counts && counts->is_list && counts->kind == TRN_ATTR_INT ? counts->n : 0;
    neg_train *s = trn_xalloc(sizeof *s + (size_t)n * sizeof s->sum[0]);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    s->gen = (trn_philox){.lo = trn_random64(), .hi = trn_random64(), .key = trn_random64()};
    s->n = n;
    double sum = 0;
    for (int i = 0; i < n; i++)
        s->sum[i] = sum += counts->list[i].i > 0 ? pow((double)counts->list[i].i, 0.75) : 0;
    ki->state = s;
    return TRN_OK;
}

static void neg_train_fini(void *state)
{
    neg_train *s = state;
    if (s)
        trn_mutex_fini(&s->mu);
    free(s);
}

static int64_t draw_word(const neg_train *s, trn_philox1 *gen)
{
    uint32_t a = trn_philox1_next(gen), b = trn_philox1_next(gen);
    double at = trn_philox_f64(a, b) * s->sum[s->n - 1];
    int64_t lo = 0, hi = s->n - 1;
    while (lo < hi) { /* the first whose sum is larger */
        int64_t mid = (lo + hi) / 2;
        if (s->sum[mid] > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* The gradient of log σ(in · out) or, for a counterexample, of log σ(-in · out): to `step` what `in` moves by, out moves at once. */
static void move(float *step, const float *in, float *out, int64_t dims, bool example, float rate)
{
    float dot = 0;
    for (int64_t i = 0; i < dims; i++)
        dot += in[i] * out[i];
    float g = rate * (example ? 1 / (expf(dot) + 1) : -1 / (expf(-dot) + 1));
    for (int64_t i = 0; i < dims; i++) {
        step[i] += out[i] * g;
        out[i] += in[i] * g;
    }
}

typedef struct training {
    const neg_train *s;
    trn_philox1 gen;
    float *w_in, *w_out, *step, rate;
    int64_t dims, samples;
    int64_t done; /* numbers that were moved since the last look whether the step is cancelled */
} training;

/* First with the word that stands next to it, then with counterexamples. */
static trn_err train_pair(training *t, const trn_kctx *k, int32_t example, int32_t label)
{
    float *in = t->w_in + example * t->dims;
    memset(t->step, 0, (size_t)t->dims * sizeof *t->step);
    for (int64_t j = -1; j < t->samples; j++) {
        t->done += t->dims + 1;
        if (t->done >= PATIENCE) {
            t->done = 0;
            TRN_TRY(still_wanted(k));
        }
        int64_t other = j < 0 ? label : draw_word(t->s, &t->gen);
        if (j < 0 || other != label)
            move(t->step, in, t->w_out + other * t->dims, t->dims, j < 0, t->rate);
    }
    for (int64_t d = 0; d < t->dims; d++)
        in[d] += t->step[d];
    return TRN_OK;
}

static trn_err check_training(const trn_kctx *k, const neg_train *s, const trn_vars *v, int64_t samples)
{
    const trn_tensor *examples = trn_in(k, 2), *labels = trn_in(k, 3);
    const trn_shape *in_shape = &v->v[0]->value->shape;
    TRN_CHECK_ARG(samples <= INT32_MAX, "num_negative_samples is %lld, which has more than 32 bits", (long long)samples);
    TRN_CHECK_ARG(in_shape->rank == 2, "w_in must be a matrix");
    TRN_CHECK_ARG(trn_shape_eq(in_shape, &v->v[1]->value->shape), "w_in and w_out must have the same shape");
    TRN_CHECK_ARG(trn_is_vector(examples), "examples must be a vector");
    TRN_CHECK_ARG(trn_shape_eq(&examples->shape, &labels->shape), "examples and labels must have the same shape");
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 4)), "lr must be a scalar");
    int64_t words = in_shape->dim[0];
    TRN_CHECK_ARG(words == s->n, "%lld words in one table, %lld in the other", (long long)words, (long long)s->n);
    for (int64_t i = 0; i < examples->count; i++) {
        int32_t e = TRN_DATA(examples, int32_t)[i], l = TRN_DATA(labels, int32_t)[i];
        TRN_CHECK_ARG(e >= 0 && e < words && l >= 0 && l < words, "example %d or label %d is no word: there are %lld", e, l, (long long)words);
    }
    return TRN_OK;
}

static trn_err train(trn_kctx *k, training t, trn_vars *v)
{
    const trn_tensor *examples = trn_in(k, 2), *labels = trn_in(k, 3);
    TRN_TRY(check_training(k, t.s, v, t.samples));
    t.dims = v->v[0]->value->shape.dim[1];
    t.rate = TRN_DATA(trn_in(k, 4), float)[0];
    trn_tensor *w_in, *w_out;
    TRN_TRY(trn_vars_write(&w_in, v, 0));
    TRN_TRY(trn_vars_write(&w_out, v, 1));
    t.w_in = w_in->data;
    t.w_out = w_out->data;
    t.step = malloc(((size_t)t.dims + 1) * sizeof *t.step);
    if (!t.step)
        return trn_err_oom();
    trn_err err = TRN_OK;
    for (int64_t i = 0; i < examples->count && !err; i++)
        err = train_pair(&t, k, TRN_DATA(examples, int32_t)[i], TRN_DATA(labels, int32_t)[i]);
    free(t.step);
    return err;
}

static trn_err k_neg_train(trn_kctx *k)
{
    neg_train *s = k->state;
    training t = {.s = s, .samples = trn_attr_int(k->node, "num_negative_samples")};
    trn_lock(&s->mu); /* not with the variables' locks, which have the same rank */
    t.gen = trn_philox1_of(s->gen);
    trn_philox_skip(&s->gen, (uint64_t)trn_in(k, 2)->count * (uint64_t)TRN_MAX(t.samples, (int64_t)0) + 1); /* more than is drawn */
    trn_unlock(&s->mu);
    trn_vars v = {0};
    TRN_TRY(trn_vars_lock(&v, k, 2, TRN_FLOAT));
    return trn_vars_done(&v, k, train(k, t, &v));
}

const trn_op trn_ops_word2vec[] = {
    {"Skipgram",
     "-> vocab_word:str, vocab_freq:i32, words_per_epoch:i64, current_epoch:i32, total_words_processed:i64, examples:i32, labels:i32; filename:string, batch_size:int, "
     "window_size:int=5, min_count:int=5, subsample:float=0.001",
     trn_sh_unknown, k_skipgram, TRN_OP_STATEFUL | TRN_OP_DISK, skipgram_init, skipgram_fini},
    {"NegTrain", "w_in:&f32, w_out:&f32, examples:i32, labels:i32, lr:f32 ->; vocab_count:list(int), num_negative_samples:int", trn_sh_unknown, k_neg_train,
     TRN_OP_STATEFUL | TRN_OP_HEAVY, neg_train_init, neg_train_fini},
    {0},
};
