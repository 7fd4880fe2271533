/* Samples of distributions with parameters: gamma, Poisson, binomial. Each output has a stretch of its own in the generator's sequence, so that it depends on nothing else. */
#include "ops/random.h"

/* Output 0 is what input 0 says, followed by the shape of input 1. */
static trn_err sh_from_input_and_params(trn_shctx *s)
{
    trn_shape a = trn_shape_unknown();
    if (s->value[0])
        TRN_TRY(trn_shape_from(&a, s->value[0], false));
    const trn_shape *b = &s->in[1];
    if (a.rank < 0 || b->rank < 0 || a.rank + b->rank > TRN_MAX_RANK)
        return TRN_OK;
    memcpy(a.dim + a.rank, b->dim, sizeof(int64_t) * (size_t)b->rank);
    a.rank += b->rank;
    s->out[0] = a;
    return TRN_OK;
}

/* Doubles two at a time from one block; TensorFlow hands out the second first. */
typedef struct doubles {
    trn_philox gen;
    double u[2], n[2];
    int left_u, left_n;
} doubles;

static double next_uniform(doubles *d)
{
    if (d->left_u == 0) {
        uint32_t x[4];
        trn_philox_next(&d->gen, x);
        d->u[0] = trn_philox_f64(x[0], x[1]);
        d->u[1] = trn_philox_f64(x[2], x[3]);
        d->left_u = 2;
    }
    return d->u[--d->left_u];
}

static double next_normal(doubles *d)
{
    if (d->left_n == 0) {
        uint32_t x[4];
        trn_philox_next(&d->gen, x);
        trn_box_muller_f64(x, &d->n[0], &d->n[1]);
        d->left_n = 2;
    }
    return d->n[--d->left_n];
}

/* Marsaglia and Tsang, ACM TOMS 26(3), 2000. */
static double gamma_one(doubles *g, double alpha)
{
    if (alpha == 1.0)
        return -log1p(-next_uniform(g));
    bool small = alpha < 1;
    double d = alpha + (small ? 2.0 / 3 : -1.0 / 3), c = 1.0 / 3 / sqrt(d);
    for (;;) {
        double x = next_normal(g), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        double u = next_uniform(g);
        if (u < 1 - 0.0331 * (x * x) * (x * x) || log(u) < 0.5 * x * x + d * (1 - v + log(v))) {
            double res = d * v;
            return small ? res * pow(next_uniform(g), 1 / alpha) : res;
        }
        if (isnan(v))
            return v;
    }
}

/* Knuth's product of uniforms for small rates; Hörmann's transformed rejection (PTRS, 1993) for large ones. Gives NaN when a sample cannot
 * be found: the rate is not a number, or so large that no sample fits the output's dtype. */
static double poisson_one(doubles *g, double rate, double highest)
{
    if (rate < 10) {
        double limit = exp(-rate), prod = 1, x = 0;
        for (;; x += 1) {
            prod *= next_uniform(g);
            if (prod <= limit && x <= highest)
                return x;
        }
    }
    double log_rate = log(rate), b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b, inv_alpha = 1.1239 + 1.1328 / (b - 3.4);
    for (int tries = 0; tries < 100000; tries++) {
        double u = next_uniform(g) - 0.5, v = next_uniform(g), us = 0.5 - fabs(u);
        double n = floor((2 * a / us + b) * u + rate + 0.43);
        if (n > highest)
            continue;
        if (us >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2))
            return n;
        if (n < 0 || (us < 0.013 && v > us))
            continue;
        double s = log(v * inv_alpha / (a / (us * us) + b)), t = -rate + n * log_rate - lgamma(n + 1);
        if (s <= t)
            return n;
    }
    return NAN;
}

struct sampled {
    trn_philox gen;
    const trn_tensor *param;
    trn_tensor *out;
    int64_t per_param;
    double highest;
    _Atomic bool failed;
};

static void put(trn_tensor *t, int64_t i, double v)
{
    switch (t->dtype) {
    case TRN_HALF: TRN_DATA_MUT(t, trn_half)[i] = trn_half_from_f32((float)v); break;
    case TRN_BFLOAT16: TRN_DATA_MUT(t, trn_bf16)[i] = trn_bf16_from_f32((float)v); break;
    case TRN_FLOAT: TRN_DATA_MUT(t, float)[i] = (float)v; break;
    case TRN_DOUBLE: TRN_DATA_MUT(t, double)[i] = v; break;
    case TRN_INT32: TRN_DATA_MUT(t, int32_t)[i] = isnan(v) ? 0 : v >= 0x1p31 ? INT32_MAX : (int32_t)v; break;
    case TRN_INT64: TRN_DATA_MUT(t, int64_t)[i] = isnan(v) ? 0 : v >= 0x1p63 ? INT64_MAX : (int64_t)v; break;
    default: break;
    }
}

static doubles doubles_at(const struct sampled *s, int64_t i)
{
    doubles d = {.gen = s->gen};
    trn_philox_skip(&d.gen, (uint64_t)i * TRN_RANDOM_RESERVED);
    return d;
}

static void gamma_piece(void *arg, int64_t begin, int64_t end)
{
    struct sampled *s = arg;
    for (int64_t i = begin; i < end; i++) {
        doubles d = doubles_at(s, i);
        int64_t p = i / s->per_param;
        put(s->out, (i % s->per_param) * s->param->count + p, gamma_one(&d, trn_random_real(s->param, p)));
    }
}

static void poisson_piece(void *arg, int64_t begin, int64_t end)
{
    struct sampled *s = arg;
    bool floating = s->out->dtype != TRN_INT32 && s->out->dtype != TRN_INT64;
    for (int64_t i = begin; i < end; i++) {
        doubles d = doubles_at(s, i);
        int64_t p = i / s->per_param;
        double rate = trn_random_real(s->param, p), x;
        if (isinf(rate) && rate > 0) {
            x = floating ? INFINITY : 0;
        } else if (isnan(x = poisson_one(&d, rate, s->highest))) {
            atomic_store_explicit(&s->failed, true, memory_order_relaxed);
            return;
        }
        put(s->out, (i % s->per_param) * s->param->count + p, x);
    }
}

/* ---- binomial --------------------------------------------------------------------------------------------------- */

/* How often a coin fell: by the gaps between the times (for few), else Hörmann's transformed rejection (BTRS, 1993). */
static double binomial_gaps(doubles *g, double count, double prob)
{
    double at = 0, n = 0;
    for (;; n++) {
        at += ceil(log(next_uniform(g)) / log1p(-prob));
        if (at > count)
            return n;
    }
}

/* What Stirling's formula for k! leaves out. */
static double stirling_rest(double k)
{
    static const double first[] = {0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
                                   0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287};
    if (k <= 9)
        return first[k > 0 ? (int)k : 0];
    double q = (k + 1) * (k + 1);
    return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / q) / q) / (k + 1);
}

static double binomial_btrs(doubles *g, double count, double prob)
{
    double dev = sqrt(count * prob * (1 - prob)), b = 1.15 + 2.53 * dev, a = -0.0873 + 0.0248 * b + 0.01 * prob, c = count * prob + 0.5;
    double sure = 0.92 - 4.2 / b, r = prob / (1 - prob), alpha = (2.83 + 5.1 / b) * dev, m = floor((count + 1) * prob);
    for (;;) {
        double u = next_uniform(g), v = next_uniform(g);
        u -= 0.5;
        double us = 0.5 - fabs(u), k = floor((2 * a / us + b) * u + c);
        if (us >= 0.07 && v <= sure)
            return k;
        if (k < 0 || k > count)
            continue;
        v = log(v * alpha / (a / (us * us) + b));
        double most = (m + 0.5) * log((m + 1) / (r * (count - m + 1))) + (count + 1) * log((count - m + 1) / (count - k + 1)) +
                      (k + 0.5) * log(r * (count - k + 1) / (k + 1)) + stirling_rest(m) + stirling_rest(count - m) - stirling_rest(k) - stirling_rest(count - k);
        if (v <= most)
            return k;
    }
}

/* In the parameters' own precision. */
static double rounded(trn_dtype t, double v)
{
    return t == TRN_HALF ? (double)trn_half_to_f32(trn_half_from_f32((float)v)) : t == TRN_FLOAT ? (double)(float)v : v;
}

struct coins {
    trn_philox gen;
    const trn_tensor *counts, *probs;
    const trn_bcast *at;
    trn_tensor *out;
    int64_t batches, per_batch;
};

static void coins_piece(void *arg, int64_t begin, int64_t end)
{
    struct coins *s = arg;
    trn_dtype t = s->counts->dtype;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / s->per_batch, ci = 0, pi = 0, rest = b;
        for (int d = s->at->rank - 1; d >= 0; rest /= s->at->dim[d], d--) {
            ci += rest % s->at->dim[d] * s->at->sa[d];
            pi += rest % s->at->dim[d] * s->at->sb[d];
        }
        double count = trn_random_real(s->counts, ci), prob = trn_random_real(s->probs, pi), x;
        bool other = prob > 0.5; /* the coin's other side is rarer */
        double p = other ? rounded(t, 1 - prob) : prob;
        if (count <= 0 || prob <= 0) {
            x = 0;
        } else if (prob >= 1) {
            x = count;
        } else if (isnan(prob) || isnan(count)) {
            x = NAN;
        } else {
            bool many = rounded(t, count * p) >= 10;
            doubles d = {.gen = s->gen};
            trn_philox_skip(&d.gen, (uint64_t)i * (many ? 256 : 42));
            x = many ? binomial_btrs(&d, count, p) : binomial_gaps(&d, count, p);
            x = other ? count - x : x;
        }
        put(s->out, i % s->per_batch * s->batches + b, x);
    }
}

/* Is `end` the end of `s`? How many samples of each, then. */
trn_err trn_random_samples_of_each(int64_t *out, const trn_shape *s, const trn_shape *end)
{
    bool ends = s->rank >= end->rank;
    for (int i = 0; ends && i < end->rank; i++)
        ends = s->dim[s->rank - end->rank + i] == end->dim[i];
    TRN_CHECK_ARG(ends, "Shape passed in must end with broadcasted shape.");
    *out = 1;
    for (int i = 0; i < s->rank - end->rank; i++)
        TRN_CHECK_ARG(!__builtin_mul_overflow(*out, s->dim[i], out), "the shape has too many elements");
    return TRN_OK;
}

/* Inputs: shape, and two behind it counts and probs. variable: the generator is that of input 0. */
static trn_err binomial(trn_kctx *k, bool variable)
{
    int at = variable ? 2 : 0, params = variable ? 3 : 2;
    struct coins s = {.counts = trn_in(k, params), .probs = trn_in(k, params + 1)};
    if (!variable)
        TRN_TRY(trn_random_seeded(&s.gen, trn_in(k, 1)));
    trn_bcast b;
    TRN_TRY(trn_bcast_make(&b, &s.counts->shape, &s.probs->shape));
    trn_shape shape;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, at), false));
    TRN_TRY(trn_random_samples_of_each(&s.per_batch, &shape, &b.out));
    s.at = &b;
    TRN_TRY(trn_out_new(&s.out, k, 0, k->node->out_types[0], &shape));
    s.batches = s.per_batch ? s.out->count / s.per_batch : 0;
    if (variable)
        TRN_TRY(trn_random_of_variable(&s.gen, k, (uint64_t)s.batches * 2 * 100 * (uint64_t)(s.per_batch + 3) / 4));
    trn_k_for(k, s.out->count, 512, coins_piece, &s);
    return TRN_OK;
}
static trn_err stateful_binomial(trn_kctx *k) { return binomial(k, true); }
static trn_err stateless_binomial(trn_kctx *k) { return binomial(k, false); }

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

static trn_err sample(trn_kctx *k, struct sampled *s, void (*piece)(void *, int64_t, int64_t))
{
    switch (s->out->dtype) {
    case TRN_HALF: s->highest = 65504; break;
    case TRN_FLOAT: s->highest = 0x1.fffffep127; break;
    case TRN_DOUBLE: s->highest = 0x1.fffffffffffffp1023; break;
    case TRN_INT32: s->highest = INT32_MAX; break;
    default: s->highest = 0x1p63; break;
    }
    trn_k_for(k, s->out->count, 1024, piece, s);
    TRN_CHECK_ARG(!atomic_load(&s->failed), "a rate is not a number, or too large for samples of dtype %s", trn_dtype_name(s->out->dtype));
    return TRN_OK;
}

/* Output shape is input 0's value followed by the parameters' shape: one sample of every parameter per position. */
static trn_err own(trn_kctx *k, void (*piece)(void *, int64_t, int64_t))
{
    const trn_tensor *param = trn_in(k, 1);
    trn_shape shape;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 0), false));
    struct sampled s = {.param = param};
    TRN_TRY(trn_shape_count(&s.per_param, &shape));
    TRN_CHECK_ARG(shape.rank + param->shape.rank <= TRN_MAX_RANK, "the output would have more than %d dimensions", TRN_MAX_RANK);
    memcpy(shape.dim + shape.rank, param->shape.dim, sizeof(int64_t) * (size_t)param->shape.rank);
    shape.rank += param->shape.rank;
    TRN_TRY(trn_out_new(&s.out, k, 0, k->node->out_types[0], &shape));
    if (s.out->count == 0)
        return TRN_OK;
    s.gen = trn_random_reserve(k, (uint64_t)s.out->count * TRN_RANDOM_RESERVED);
    return sample(k, &s, piece);
}
static trn_err random_gamma(trn_kctx *k) { return own(k, gamma_piece); }
static trn_err random_poisson(trn_kctx *k) { return own(k, poisson_piece); }

/* Output shape is input 0's value and ends with the parameters' shape. */
static trn_err stateless(trn_kctx *k, bool keyed, void (*piece)(void *, int64_t, int64_t))
{
    struct sampled s = {.param = trn_in(k, keyed ? 4 : 2)};
    if (keyed)
        TRN_TRY(trn_random_keyed(&s.gen, k, 1, 2));
    else
        TRN_TRY(trn_random_seeded(&s.gen, trn_in(k, 1)));
    trn_shape shape;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 0), false));
    TRN_TRY(trn_out_new(&s.out, k, 0, k->node->out_types[0], &shape));
    if (s.out->count == 0)
        return TRN_OK;
    TRN_TRY(trn_random_samples_of_each(&s.per_param, &shape, &s.param->shape));
    return sample(k, &s, piece);
}
static trn_err stateless_gamma(trn_kctx *k) { return stateless(k, false, gamma_piece); }
static trn_err stateless_gamma_keyed(trn_kctx *k) { return stateless(k, true, gamma_piece); }
static trn_err stateless_poisson(trn_kctx *k) { return stateless(k, false, poisson_piece); }

/* clang-format off */
#define SEEDS "seed:int=0, seed2:int=0"
#define OWN_GENERATOR TRN_OP_STATEFUL, trn_random_init, trn_random_fini
const trn_op trn_ops_random_dist[] = {
    {"RandomGamma", "shape:S, alpha:T -> output:T; " SEEDS ", S:i32|i64, T:f16|f32|f64", sh_from_input_and_params, random_gamma,
     OWN_GENERATOR},
    {"RandomPoisson", "shape:S, rate:dtype -> output:dtype; " SEEDS ", S:i32|i64, dtype:f16|f32|f64", sh_from_input_and_params,
     random_poisson, OWN_GENERATOR},
    {"RandomPoissonV2",
     "shape:S, rate:R -> output:dtype; " SEEDS ", S:i32|i64, R:f16|f32|f64|i32|i64=f64, dtype:f16|f32|f64|i32|i64=i64",
     sh_from_input_and_params, random_poisson, OWN_GENERATOR},

    {"StatelessRandomGammaV2", "shape:T, seed:Tseed, alpha:dtype -> output:dtype; dtype:f16|f32|f64, T:i32|i64, Tseed:i32|i64=i64", trn_sh_in0_shape, stateless_gamma, 0},
    {"StatelessRandomGammaV3", "shape:shape_dtype, key:u64, counter:u64, alg:i32, alpha:dtype -> output:dtype; dtype:f16|f32|f64, shape_dtype:i32|i64=i32",
     trn_sh_in0_shape, stateless_gamma_keyed, 0},
    {"StatelessRandomPoisson",
     "shape:T, seed:Tseed, lam:Rtype -> output:dtype; Rtype:f16|f32|f64|i32|i64, dtype:f16|f32|f64|i32|i64, T:i32|i64, Tseed:i32|i64=i64",
     trn_sh_in0_shape, stateless_poisson, 0},
    {"StatelessRandomBinomial",
     "shape:S, seed:Tseed, counts:T, probs:T -> output:dtype; S:i32|i64, Tseed:i32|i64=i64, T:f16|f32|f64=f64, dtype:f16|f32|f64|i32|i64=i64",
     trn_sh_in0_shape, stateless_binomial, 0},
    {"StatefulRandomBinomial",
     "resource:res, algorithm:i64, shape:S, counts:T, probs:T -> output:dtype; S:i32|i64, T:f16|f32|f64=f64, dtype:f16|f32|f64|i32|i64=i64",
     trn_sh_random_of_variable, stateful_binomial, TRN_OP_STATEFUL},
    {0},
};
/* clang-format on */
