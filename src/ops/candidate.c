/* Candidate samplers: classes drawn at random for sampled softmax and noise-contrastive estimation. For equal seeds the same classes as
 * TensorFlow draws, run by run. */
#include "ops/random.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TRIES (1 << 28) /* draws of a run whose classes must be unique */

typedef enum kind { UNIFORM, LOG_UNIFORM, LEARNED, FIXED, ALL } kind;

/* A node's sampler. All but the generator and the learned weights is fixed after the first run. */
typedef struct sampler {
    trn_mutex mu;
    trn_philox gen;
    kind kind;
    int64_t range;
    bool ready;
    float inv_range;  /* UNIFORM */
    double log_range; /* LOG_UNIFORM */
    int32_t *tree;    /* LEARNED: sums of weights in a complete binary tree; node i has the children 2i and 2i + 1 */
    int64_t leaves;   /* power of two; leaf i is tree[leaves + i] */
    float *weight;    /* FIXED: one per class, and their sum */
    float total;
    int64_t n_weight, cap_weight, n_positive;
    float *prob; /* FIXED: with this probability the slot's own class, else the other one */
    int32_t *other;
} sampler;

static void sampler_fini(void *state)
{
    sampler *s = state;
    if (!s)
        return;
    trn_mutex_fini(&s->mu);
    free(s->tree);
    free(s->weight);
    free(s->prob);
    free(s->other);
    free(s);
}

static trn_err sampler_init(trn_kinit *ki)
{
    const trn_node *n = ki->node;
    uint64_t seed = (uint64_t)trn_attr_int(n, "seed"), seed2 = (uint64_t)trn_attr_int(n, "seed2");
    if (seed == 0 && seed2 == 0) {
        seed = trn_random64();
        seed2 = trn_random64();
    }
    sampler *s = trn_xalloc(sizeof *s);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    s->gen = trn_philox_seed(seed, seed2);
    s->kind = !strncmp(n->op, "Uniform", 7) ? UNIFORM
              : !strncmp(n->op, "Log", 3)   ? LOG_UNIFORM
              : !strncmp(n->op, "Fixed", 5) ? FIXED
              : !strncmp(n->op, "All", 3)   ? ALL
                                            : LEARNED;
    s->range = trn_attr_int(n, s->kind == ALL ? "num_sampled" : "range_max");
    ki->state = s;
    return TRN_OK;
}

/* ---- draws ----------------------------------------------------------------------------------------------------------- */

static uint64_t next64(trn_philox1 *r)
{
    uint64_t lo = trn_philox1_next(r), hi = trn_philox1_next(r);
    return lo | hi << 32;
}

/* Below n, every value equally likely: draws below 2^b mod n are thrown away. */
static uint64_t below64(trn_philox1 *r, uint64_t n)
{
    if (!(n & (n - 1)))
        return next64(r) & (n - 1);
    uint64_t rest = UINT64_MAX % n + 1, x;
    do
        x = next64(r);
    while (x < rest);
    return x % n;
}

static int64_t draw_learned(const sampler *s, trn_philox1 *r)
{
    int32_t at = (int32_t)trn_philox1_below(r, (uint32_t)s->tree[1]);
    int64_t i = 1;
    while (i < s->leaves) {
        i *= 2;
        if (at >= s->tree[i])
            at -= s->tree[i++];
    }
    return i - s->leaves;
}

static int64_t draw(const sampler *s, trn_philox1 *r)
{
    switch (s->kind) {
    case UNIFORM:
        return (int64_t)below64(r, (uint64_t)s->range);
    case LOG_UNIFORM: {
        uint32_t x0 = trn_philox1_next(r), x1 = trn_philox1_next(r);
        return ((int64_t)exp(trn_philox_f64(x0, x1) * s->log_range) - 1) % s->range;
    }
    case LEARNED:
        return draw_learned(s, r);
    default: {
        float u = trn_philox_f32(trn_philox1_next(r));
        uint32_t i = trn_philox1_below(r, (uint32_t)s->range);
        return u < s->prob[i] ? (int64_t)i : s->other[i];
    }
    }
}

static float probability(const sampler *s, int64_t v)
{
    switch (s->kind) {
    case UNIFORM:
        return s->inv_range;
    case LOG_UNIFORM:
        return (float)(log(((double)v + 2.0) / ((double)v + 1.0)) / s->log_range);
    case LEARNED:
        return (float)s->tree[s->leaves + v] / (float)s->tree[1];
    default:
        return s->weight[v] / s->total;
    }
}

/* How often a class of probability p is expected among n, drawn until they were unique, which took `tries`. */
static float expected(const sampler *s, int64_t v, int64_t n, int64_t tries)
{
    float p = probability(s, v);
    return tries == n ? p * (float)n : -expm1f((float)tries * log1pf(-p));
}

/* ---- preparation ----------------------------------------------------------------------------------------------------- */

static trn_err prepare_learned(sampler *s)
{
    TRN_CHECK_ARG(s->range < INT32_MAX, "range_max is %lld; at most %d classes can be learned", (long long)s->range,
                  INT32_MAX - 1);
    s->leaves = 1;
    while (s->leaves < s->range)
        s->leaves *= 2;
    s->tree = calloc(2 * (size_t)s->leaves, sizeof *s->tree);
    if (!s->tree)
        return trn_err_oom();
    for (int64_t i = 0; i < s->range; i++)
        s->tree[s->leaves + i] = 1;
    for (int64_t i = s->leaves - 1; i > 0; i--)
        s->tree[i] = s->tree[2 * i] + s->tree[2 * i + 1];
    return TRN_OK;
}

static trn_err push_weight(sampler *s, float w)
{
    if (s->n_weight == s->cap_weight) {
        int64_t cap = s->cap_weight ? 2 * s->cap_weight : 256;
        float *p = realloc(s->weight, (size_t)cap * sizeof *p);
        if (!p)
            return trn_err_oom();
        s->weight = p;
        s->cap_weight = cap;
    }
    s->weight[s->n_weight++] = w;
    s->total += w;
    s->n_positive += w > 0;
    return TRN_OK;
}

/* Word `id` of the vocabulary belongs to every num_shards'th sampler. */
static trn_err add_word(sampler *s, const trn_node *n, int64_t id, float count)
{
    if (id % trn_attr_int(n, "num_shards") != trn_attr_int(n, "shard"))
        return TRN_OK;
    return push_weight(s, powf(count, trn_attr_float(n, "distortion")));
}

static trn_err read_vocabulary(sampler *s, const trn_node *n, const char *path, FILE *f)
{
    char *line = NULL, *end;
    size_t cap = 0;
    ssize_t len;
    trn_err err = TRN_OK;
    for (int64_t id = s->n_weight; !err && (len = getline(&line, &cap, f)) >= 0; id++) {
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            line[--len] = 0;
        const char *last = strrchr(line, ',');
        last = last ? last + 1 : line;
        float w = strtof(last, &end);
        while (*end == ' ')
            end++;
        err = end == last || *end ? TRN_BAD("Wrong vocabulary format at line: %.200s", line) : add_word(s, n, id, w);
    }
    if (!err && ferror(f))
        err = trn_err_errno(errno, "%s", path);
    free(line);
    return err;
}

static trn_err load_weights(sampler *s, trn_kctx *k)
{
    const trn_node *n = k->node;
    const char *path = trn_attr_str(n, "vocab_file");
    const trn_attr *unigrams = trn_node_attr(n, "unigrams");
    int n_unigrams = unigrams && unigrams->is_list && unigrams->kind == TRN_ATTR_FLOAT ? unigrams->n : 0;
    TRN_CHECK_ARG(*path || n_unigrams, "Must provide either vocab_file or unigrams.");
    TRN_CHECK_ARG(!*path || !n_unigrams, "Must only provide one of vocab_file and unigrams.");
    int64_t reserved = trn_attr_int(n, "num_reserved_ids"), shards = trn_attr_int(n, "num_shards");
    TRN_CHECK_ARG(shards >= 1 && reserved <= INT32_MAX, "num_shards is %lld, num_reserved_ids %lld", (long long)shards,
                  (long long)reserved);
    int64_t shard = trn_attr_int(n, "shard");
    for (int64_t id = shard; id < reserved && shard < shards; id = shards < reserved - id ? id + shards : reserved) {
        TRN_CHECK_ARG(s->n_weight < s->range, "range is %lld must be equal to weights size, but more ids are reserved", (long long)s->range);
        TRN_TRY(push_weight(s, 0));
    }
    if (!*path) {
        int64_t first = s->n_weight;
        for (int i = 0; i < n_unigrams; i++)
            TRN_TRY(add_word(s, n, first + i, unigrams->list[i].f));
        return TRN_OK;
    }
    TRN_TRY(trn_k_check_path(k, path));
    FILE *f = fopen(trn_local_path(path), "rbe");
    if (!f)
        return trn_err_errno(errno, "%s", path);
    trn_err err = read_vocabulary(s, n, path, f);
    fclose(f);
    return err;
}

/* Walker's alias method: each slot holds its own class and a part of one other. The order in which slots are paired decides who is whose
 * alias, so it is TensorFlow's: last in, first out. */
static void pair_up(sampler *s, double *p, int32_t *high, int32_t *low)
{
    int64_t n = s->range, n_high = 0, n_low = 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)s->weight[i];
        s->other[i] = -1;
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = (double)(s->weight[i] * (float)n) / sum;
        if (p[i] < 1.0)
            low[n_low++] = (int32_t)i;
        else
            high[n_high++] = (int32_t)i;
    }
    while (n_high && n_low) {
        int32_t l = low[--n_low], h = high[--n_high];
        s->other[l] = h;
        p[h] -= 1.0 - p[l];
        if (p[h] < 1.0)
            low[n_low++] = h;
        else
            high[n_high++] = h;
    }
    for (int64_t i = 0; i < n; i++)
        s->prob[i] = (float)p[i];
    while (n_high || n_low) { /* what rounding left over */
        int32_t i = n_high ? high[--n_high] : low[--n_low];
        s->prob[i] = 1;
        s->other[i] = i;
    }
}

static trn_err prepare_fixed(sampler *s, trn_kctx *k)
{
    s->n_weight = s->n_positive = 0;
    s->total = 0;
    TRN_TRY(load_weights(s, k));
    TRN_CHECK_ARG(s->range == s->n_weight && s->range < INT32_MAX, "range is %lld must be equal to weights size %lld",
                  (long long)s->range, (long long)s->n_weight);
    size_t n = (size_t)s->range;
    if (!s->prob) {
        s->prob = calloc(n, sizeof *s->prob);
        s->other = calloc(n, sizeof *s->other);
    }
    double *p = calloc(n, sizeof *p);
    int32_t *lists = calloc(2 * n, sizeof *lists);
    bool ok = s->prob && s->other && p && lists;
    if (ok)
        pair_up(s, p, lists, lists + n);
    free(p);
    free(lists);
    return ok ? TRN_OK : trn_err_oom();
}

static trn_err prepare(sampler *s, trn_kctx *k)
{
    if (s->ready)
        return TRN_OK;
    s->inv_range = (float)(1.0 / (double)s->range);
    s->log_range = log1p((double)s->range);
    if (s->kind == LEARNED)
        TRN_TRY(prepare_learned(s));
    if (s->kind == FIXED)
        TRN_TRY(prepare_fixed(s, k));
    s->ready = true;
    return TRN_OK;
}

/* ---- a run ----------------------------------------------------------------------------------------------------------- */

/* Open addressing, -1 is free. */
typedef struct set {
    int64_t *v;
    uint64_t mask;
} set;

static bool set_add(set *s, int64_t v)
{
    uint64_t i = ((uint64_t)v * UINT64_C(0x9e3779b97f4a7c15)) >> 7 & s->mask;
    for (; s->v[i] != -1; i = (i + 1) & s->mask)
        if (s->v[i] == v)
            return false;
    s->v[i] = v;
    return true;
}

static trn_err set_new(set *s, int64_t n)
{
    uint64_t size = 16;
    while (size < 2 * (uint64_t)n)
        size *= 2;
    s->mask = size - 1;
    s->v = malloc(size * sizeof *s->v);
    if (!s->v)
        return trn_err_oom();
    memset(s->v, 0xff, size * sizeof *s->v);
    return TRN_OK;
}

static trn_err draw_unique(int64_t *tries, const sampler *s, trn_philox1 *r, int64_t *out, int64_t n)
{
    set used;
    TRN_CHECK_ARG(s->kind != FIXED || n <= s->n_positive, "%lld unique classes are wanted, but only %lld have a weight",
                  (long long)n, (long long)s->n_positive);
    TRN_TRY(set_new(&used, n));
    int64_t picked = 0;
    *tries = 0;
    while (picked < n && *tries < MAX_TRIES) {
        int64_t v = draw(s, r);
        ++*tries;
        if (set_add(&used, v))
            out[picked++] = v;
    }
    free(used.v);
    if (picked < n)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "%d draws gave only %lld of %lld unique classes", MAX_TRIES,
                          (long long)picked, (long long)n);
    return TRN_OK;
}

static void learn(sampler *s, const int64_t *v, int64_t n)
{
    int64_t room = (int64_t)INT32_MAX - s->tree[1];
    n = n < room ? n : room;
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = s->leaves + v[i]; t > 0; t /= 2)
            s->tree[t]++;
}

static trn_err sample_locked(sampler *s, trn_kctx *k, const trn_tensor *truth, trn_tensor *const out[3])
{
    int64_t n = out[0]->count, tries = n, *picked = out[0]->data;
    float *te = out[1]->data, *se = out[2]->data;
    for (int64_t i = 0; i < truth->count; i++) {
        int64_t v = TRN_DATA(truth, int64_t)[i];
        TRN_CHECK_ARG(v >= 0 && v < s->range, "`true_candidate` out of range [0, %lld), received %lld",
                      (long long)s->range, (long long)v);
    }
    trn_philox1 r = trn_philox1_of(s->gen);
    trn_philox_skip(&s->gen, (2048 * (uint64_t)n + 3) / 4);
    if (s->kind == ALL) {
        for (int64_t i = 0; i < n; i++) {
            picked[i] = i;
            se[i] = 1;
        }
        for (int64_t i = 0; i < truth->count; i++)
            te[i] = 1;
        return TRN_OK;
    }
    if (trn_attr_bool(k->node, "unique"))
        TRN_TRY(draw_unique(&tries, s, &r, picked, n));
    else
        for (int64_t i = 0; i < n; i++)
            picked[i] = draw(s, &r);
    for (int64_t i = 0; i < n; i++)
        se[i] = expected(s, picked[i], n, tries);
    for (int64_t i = 0; i < truth->count; i++)
        te[i] = expected(s, TRN_DATA(truth, int64_t)[i], n, tries);
    if (s->kind == LEARNED)
        learn(s, truth->data, truth->count);
    return TRN_OK;
}

static trn_err sample(trn_kctx *k)
{
    sampler *s = k->state;
    const trn_tensor *truth = trn_in(k, 0);
    int64_t n = trn_attr_int(k->node, "num_sampled"), n_true = trn_attr_int(k->node, "num_true");
    TRN_CHECK_ARG(truth->shape.rank == 2, "true_classes must be a matrix");
    TRN_CHECK_ARG(truth->shape.dim[1] == n_true, "true_classes must have num_true columns, expected: %lld was: %lld",
                  (long long)truth->shape.dim[1], (long long)n_true);
    TRN_CHECK_ARG(s->range >= 1 && (!trn_attr_bool(k->node, "unique") || n <= s->range),
                  "Sampler's range is too small.");
    trn_shape ns = trn_shape_vector(n);
    trn_tensor *out[3];
    TRN_TRY(trn_out_new(&out[0], k, 0, TRN_INT64, &ns));
    TRN_TRY(trn_out_new(&out[1], k, 1, TRN_FLOAT, &truth->shape));
    TRN_TRY(trn_out_new(&out[2], k, 2, TRN_FLOAT, &ns));
    trn_lock(&s->mu);
    trn_err err = prepare(s, k);
    if (!err)
        err = sample_locked(s, k, truth, out);
    trn_unlock(&s->mu);
    return err;
}

/* ---- accidental hits --------------------------------------------------------------------------------------------------- */

typedef struct place {
    int64_t v, at;
} place;

static int by_value(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->v != y->v ? (x->v < y->v ? -1 : 1) : (x->at > y->at) - (x->at < y->at);
}

/* Where v was sampled last, or -1. */
static int64_t find(const place *p, int64_t n, int64_t v)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (p[mid].v <= v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo && p[lo - 1].v == v ? p[lo - 1].at : -1;
}

static trn_err put_hits(trn_kctx *k, const trn_tensor *truth, const place *p, int64_t n)
{
    int64_t hits = 0, cols = truth->shape.dim[1];
    for (int64_t i = 0; i < truth->count; i++)
        hits += find(p, n, TRN_DATA(truth, int64_t)[i]) >= 0;
    trn_shape s = trn_shape_vector(hits);
    trn_tensor *rows, *ids, *weights;
    TRN_TRY(trn_out_new(&rows, k, 0, TRN_INT32, &s));
    TRN_TRY(trn_out_new(&ids, k, 1, TRN_INT64, &s));
    TRN_TRY(trn_out_new(&weights, k, 2, TRN_FLOAT, &s));
    int64_t e = 0;
    for (int64_t i = 0; i < truth->count; i++) {
        int64_t at = find(p, n, TRN_DATA(truth, int64_t)[i]);
        if (at < 0)
            continue;
        TRN_DATA_MUT(rows, int32_t)[e] = (int32_t)(i / cols);
        TRN_DATA_MUT(ids, int64_t)[e] = at;
        TRN_DATA_MUT(weights, float)[e++] = -FLT_MAX;
    }
    return TRN_OK;
}

static trn_err accidental_hits(trn_kctx *k)
{
    const trn_tensor *truth = trn_in(k, 0), *sampled = trn_in(k, 1);
    TRN_CHECK_ARG(truth->shape.rank == 2 && truth->shape.dim[1] == trn_attr_int(k->node, "num_true"),
                  "true_candidates must be a batch_size * num_true matrix");
    TRN_CHECK_ARG(trn_is_vector(sampled),
                  "sampled_candidates must be a vector, which is typically an output from CandidateSampler");
    place *p = malloc((size_t)(sampled->count + 1) * sizeof *p);
    if (!p)
        return trn_err_oom();
    for (int64_t i = 0; i < sampled->count; i++)
        p[i] = (place){TRN_DATA(sampled, int64_t)[i], i};
    qsort(p, (size_t)sampled->count, sizeof *p, by_value);
    trn_err err = put_hits(k, truth, p, sampled->count);
    free(p);
    return err;
}

static trn_err sh_sample(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 2));
    s->out[0] = s->out[2] = trn_shape_vector(trn_attr_int(s->node, "num_sampled"));
    s->out[1] = s->in[0];
    return TRN_OK;
}

#define SAMPLES                                                                                                        \
    "true_classes:i64 -> sampled_candidates:i64, true_expected_count:f32, sampled_expected_count:f32; "                \
    "num_true:int>=1, num_sampled:int>=1, unique:bool, "
#define SEEDS "seed:int=0, seed2:int=0"
#define RANGE "range_max:int>=1, "
#define KERNEL sh_sample, sample, TRN_OP_STATEFUL, sampler_init, sampler_fini

const trn_op trn_ops_candidate[] = {
    {"UniformCandidateSampler", SAMPLES RANGE SEEDS, KERNEL},
    {"LogUniformCandidateSampler", SAMPLES RANGE SEEDS, KERNEL},
    {"LearnedUnigramCandidateSampler", SAMPLES RANGE SEEDS, KERNEL},
    {"ThreadUnsafeUnigramCandidateSampler", SAMPLES RANGE SEEDS, KERNEL},
    {"AllCandidateSampler", SAMPLES SEEDS, KERNEL},
    {"FixedUnigramCandidateSampler",
     SAMPLES RANGE
     "vocab_file:string=\"\", distortion:float=1, num_reserved_ids:int=0, num_shards:int>=1=1, shard:int>=0=0, "
     "unigrams:list(float)=[], " SEEDS,
     sh_sample, sample, TRN_OP_STATEFUL | TRN_OP_HEAVY, sampler_init, sampler_fini},
    {"ComputeAccidentalHits",
     "true_classes:i64, sampled_candidates:i64 -> indices:i32, ids:i64, weights:f32; num_true:int, " SEEDS,
     trn_sh_unknown, accidental_hits, 0},
    {0},
};
