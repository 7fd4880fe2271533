/* Random numbers whose generator lies in a variable, as tf.random.Generator's does: [counter, counter, key] as int64. Also numbers that nobody can foretell, and a
 * permutation that is computed one index at a time. */
#include "ops/random.h"
#include "ops/state.h"

/* ---- the generator in a variable -------------------------------------------------------------------------------- */

enum { COUNTER = 2, STATE = 3, PHILOX = 1, THREEFRY = 2, AUTO = 3 };

static trn_err check_algorithm(int64_t a)
{
    if (a == THREEFRY)
        return trn_errorf(TRN_UNIMPLEMENTED, "ThreeFry is known to XLA only; Philox is algorithm %d", PHILOX);
    TRN_CHECK_ARG(a == PHILOX || a == AUTO, "%lld is no random number algorithm", (long long)a);
    return TRN_OK;
}

/* Where the counter stands in the locked variable; tagged: behind the number of the algorithm. */
static trn_err state_in(uint64_t **out, trn_vars *v, bool tagged)
{
    const trn_tensor *now = v->v[0]->value;
    TRN_CHECK_ARG(now->shape.rank == 1, "RNG state must have one and only one dimension, not %d", now->shape.rank);
    if (tagged) {
        TRN_CHECK_ARG(now->count >= 1, "the variable is empty: the number of the algorithm comes first");
        TRN_TRY(check_algorithm(TRN_DATA(now, int64_t)[0]));
    }
    int least = STATE + tagged;
    TRN_CHECK_ARG(now->count >= least, "For the Philox algorithm, the size of state must be at least %d; got %lld", least, (long long)now->count);
    trn_tensor *t;
    TRN_TRY(trn_vars_write(&t, v, 0));
    *out = TRN_DATA_MUT(t, uint64_t) + tagged;
    return TRN_OK;
}

static trn_err advance(trn_philox *out, trn_vars *v, uint64_t outputs, bool tagged)
{
    uint64_t *state;
    TRN_TRY(state_in(&state, v, tagged));
    *out = (trn_philox){.lo = state[0], .hi = state[1], .key = state[COUNTER]};
    trn_philox next = *out;
    trn_philox_skip(&next, outputs * TRN_RANDOM_RESERVED);
    state[0] = next.lo;
    state[1] = next.hi;
    return TRN_OK;
}

trn_err trn_random_of_variable(trn_philox *out, trn_kctx *k, uint64_t outputs)
{
    const trn_tensor *alg = trn_in(k, 1);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(alg->shape.rank == 0, "input 1 (0-based) must have shape [], not %s", trn_shape_text(text, &alg->shape));
    TRN_TRY(check_algorithm(trn_int_at(alg, 0)));
    trn_vars v = {0};
    TRN_TRY(trn_vars_lock(&v, k, 1, TRN_INT64));
    return trn_vars_done(&v, k, advance(out, &v, outputs, false));
}

static trn_err fill_from(trn_kctx *k, trn_random_dist kind)
{
    trn_shape shape;
    trn_tensor *t;
    trn_philox gen;
    uint64_t lo = 0, range = 0;
    if (kind == TRN_RANDOM_UNIFORM_INT)
        TRN_TRY(trn_random_int_range(&lo, &range, k, 3));
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 2), false));
    TRN_TRY(trn_out_new(&t, k, 0, k->node->out_types[0], &shape));
    TRN_TRY(trn_random_of_variable(&gen, k, (uint64_t)t->count));
    trn_random_fill(k, t, gen, kind, lo, range);
    return TRN_OK;
}
static trn_err stateful_uniform(trn_kctx *k) { return fill_from(k, TRN_RANDOM_UNIFORM); }
static trn_err stateful_normal(trn_kctx *k) { return fill_from(k, TRN_RANDOM_NORMAL); }
static trn_err stateful_truncated(trn_kctx *k) { return fill_from(k, TRN_RANDOM_TRUNCATED); }
static trn_err stateful_uniform_int(trn_kctx *k) { return fill_from(k, TRN_RANDOM_UNIFORM_INT); }
static trn_err stateful_full_int(trn_kctx *k) { return fill_from(k, TRN_RANDOM_FULL_INT); }

/* The first version: the variable says the algorithm, before the counter. */
static trn_err stateful_normal_v1(trn_kctx *k)
{
    trn_shape shape;
    trn_tensor *t;
    trn_philox gen;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 1), false));
    TRN_TRY(trn_out_new(&t, k, 0, k->node->out_types[0], &shape));
    trn_vars v = {0};
    TRN_TRY(trn_vars_lock(&v, k, 1, TRN_INT64));
    TRN_TRY(trn_vars_done(&v, k, advance(&gen, &v, (uint64_t)t->count, true)));
    trn_random_fill(k, t, gen, TRN_RANDOM_NORMAL, 0, 0);
    return TRN_OK;
}

/* Input 2: by how many outputs the counter moves on. RngReadAndSkip also gives what the variable held. */
static trn_err rng_skip(trn_kctx *k)
{
    const trn_tensor *delta = trn_in(k, 2);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(delta->shape.rank == 0, "input 2 (0-based) must have shape [], not %s", trn_shape_text(text, &delta->shape));
    trn_philox was;
    TRN_TRY(trn_random_of_variable(&was, k, TRN_DATA(delta, uint64_t)[0]));
    if (k->n_out == 0)
        return TRN_OK;
    trn_shape s = trn_shape_vector(STATE);
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, 0, TRN_INT64, &s));
    uint64_t *out = t->data;
    out[0] = was.lo;
    out[1] = was.hi;
    out[COUNTER] = was.key;
    return TRN_OK;
}

static trn_err non_deterministic_ints(trn_kctx *k)
{
    trn_shape shape;
    trn_tensor *t;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 0), false));
    TRN_TRY(trn_out_new(&t, k, 0, k->node->out_types[0], &shape));
    trn_philox gen = {.lo = trn_random64(), .hi = trn_random64(), .key = trn_random64()};
    trn_random_fill(k, t, gen, TRN_RANDOM_FULL_INT, 0, 0);
    return TRN_OK;
}

/* ---- RandomIndexShuffle ------------------------------------------------------------------------------------------- */

/* A block cipher is a permutation of all blocks; going on until a block is an index makes it one of the indices (a cycle-walking cipher). The cipher is Simon with few rounds, words of
 * any size from 8 bits on and three words of key. */
typedef struct simon {
    int w, rounds;
    uint64_t mask, *key; /* per round */
} simon;

static inline uint64_t turned(const simon *c, uint64_t x, int left) { return ((x << left) | (x >> (c->w - left))) & c->mask; }
static inline uint64_t mix(const simon *c, uint64_t x) { return (turned(c, x, 1) & turned(c, x, 8)) ^ turned(c, x, 2); }

static void schedule(simon *c, const uint32_t seed[3])
{
    uint64_t z = UINT64_C(0x7369f885192c0ef5) & c->mask;
    for (int i = 0; i < c->rounds; i++, z = i > 3 ? z >> 1 : z)
        c->key[i] = i < 3 ? seed[i] & c->mask
                          : (UINT64_C(0xfffffffc) & c->mask) ^ (z & 1) ^ c->key[i - 3] ^ turned(c, c->key[i - 1], c->w - 3) ^ turned(c, c->key[i - 1], c->w - 4);
}

static uint64_t encrypted(const simon *c, uint64_t x)
{
    uint64_t left = x >> c->w & c->mask, right = x & c->mask;
    for (int i = 0; i < c->rounds; i += 2) {
        left ^= mix(c, right) ^ c->key[i];
        right ^= mix(c, left) ^ c->key[i + 1];
    }
    return left << c->w | right;
}

static trn_err shuffled(uint64_t *out, simon *c, const uint32_t seed[3], uint64_t index, uint64_t most)
{
    int bits = most ? (int)ceil(log2((double)most)) : 0;
    c->w = TRN_MIN(TRN_MAX(bits + bits % 2, 16), 64) / 2;
    c->mask = (UINT64_C(1) << c->w) - 1;
    schedule(c, seed);
    uint64_t block = c->w == 32 ? UINT64_MAX : (UINT64_C(1) << 2 * c->w) - 1, x = index & block;
    do {
        x = encrypted(c, x);
        TRN_CHECK_ARG(x <= most || x != (index & block), "index %llu is larger than max_index %llu, and none of the indices follows it", (unsigned long long)index,
                      (unsigned long long)most);
    } while (x > most);
    *out = x;
    return TRN_OK;
}

static trn_err random_index_shuffle(trn_kctx *k)
{
    enum { MOST_ROUNDS = 1024 };
    const trn_tensor *index = trn_in(k, 0), *seed = trn_in(k, 1), *most = trn_in(k, 2);
    int64_t rounds = trn_attr_int(k->node, "rounds");
    TRN_CHECK_ARG(rounds >= 4 && rounds % 2 == 0 && rounds <= MOST_ROUNDS, "rounds must be an even number from 4 to %d, not %lld", MOST_ROUNDS, (long long)rounds);
    int64_t n = TRN_MAX(TRN_MAX(index->count, most->count), seed->count / 3);
    char text[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(index->shape.rank == 0 || (index->shape.rank == 1 && index->count == n), "index must be a scalar or a vector of %lld, not %s", (long long)n,
                  trn_shape_text(text, &index->shape));
    TRN_CHECK_ARG((seed->shape.rank == 1 && seed->count == 3) || (seed->shape.rank == 2 && seed->shape.dim[0] == n && seed->shape.dim[1] == 3),
                  "Seed must be a vector of size [3] or a matrix of size [%lld, 3] but got %s.", (long long)n, trn_shape_text(text, &seed->shape));
    TRN_CHECK_ARG(most->shape.rank == 0 || (most->shape.rank == 1 && most->count == n), "Maxval must be a scalar or a vector of the same size as index but got %s",
                  trn_shape_text(text, &most->shape));
    bool scalar = index->shape.rank == 0 && seed->shape.rank == 1 && most->shape.rank == 0;
    trn_shape s = scalar ? trn_shape_scalar() : trn_shape_vector(n);
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, 0, index->dtype, &s));
    uint64_t keys[MOST_ROUNDS];
    simon c = {.rounds = (int)rounds, .key = keys};
    bool wide = trn_dtype_size(index->dtype) == 8;
    for (int64_t i = 0; i < n; i++) {
        uint64_t x;
        uint32_t parts[3];
        for (int q = 0; q < 3; q++)
            parts[q] = (uint32_t)trn_int_at(seed, seed->shape.rank == 1 ? q : 3 * i + q);
        TRN_TRY(shuffled(&x, &c, parts, (uint64_t)trn_int_at(index, index->shape.rank ? i : 0), (uint64_t)trn_int_at(most, most->shape.rank ? i : 0)));
        if (wide)
            TRN_DATA_MUT(t, uint64_t)[i] = x;
        else
            TRN_DATA_MUT(t, uint32_t)[i] = (uint32_t)x;
    }
    return TRN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

trn_err trn_sh_random_of_variable(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 1, 0));
    TRN_TRY(trn_sh_rank_of(s, 2, 1));
    trn_sh_value(&s->out[0], s, 2);
    return TRN_OK;
}
static trn_err sh_skip(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 1, 0));
    TRN_TRY(trn_sh_rank_of(s, 2, 0));
    if (s->node->n_out)
        s->out[0] = trn_shape_vector(STATE);
    return TRN_OK;
}
static trn_err sh_shuffle(trn_shctx *s)
{
    if (s->in[0].rank == 0 && s->in[1].rank == 1 && s->in[2].rank == 0)
        s->out[0] = trn_shape_scalar();
    else if (s->in[0].rank == 1)
        s->out[0] = s->in[0];
    return TRN_OK;
}

/* clang-format off */
#define FROM "resource:res, algorithm:i64, shape:shape_dtype"
#define SHAPE ", shape_dtype:i32|i64=i64"
const trn_op trn_ops_random_state[] = {
    {"StatefulUniform", FROM " -> output:dtype; dtype:float=f32" SHAPE, trn_sh_random_of_variable, stateful_uniform, TRN_OP_STATEFUL},
    {"StatefulUniformFullInt", FROM " -> output:dtype; dtype:i32|i64|u32|u64=u64" SHAPE, trn_sh_random_of_variable, stateful_full_int, TRN_OP_STATEFUL},
    {"StatefulUniformInt", FROM ", minval:dtype, maxval:dtype -> output:dtype; dtype:i32|i64=i64" SHAPE, trn_sh_random_of_variable, stateful_uniform_int, TRN_OP_STATEFUL},
    {"StatefulStandardNormalV2", FROM " -> output:dtype; dtype:float=f32" SHAPE, trn_sh_random_of_variable, stateful_normal, TRN_OP_STATEFUL},
    {"StatefulStandardNormal", "resource:res, shape:shape_dtype -> output:dtype; dtype:float=f32" SHAPE, trn_sh_in1_shape, stateful_normal_v1, TRN_OP_STATEFUL}, /* in graphs of versions below 29 */
    {"StatefulTruncatedNormal", FROM " -> output:dtype; dtype:float=f32" SHAPE, trn_sh_random_of_variable, stateful_truncated, TRN_OP_STATEFUL},
    {"RngSkip", "resource:res, algorithm:i64, delta:i64 ->", sh_skip, rng_skip, TRN_OP_STATEFUL},
    {"RngReadAndSkip", "resource:res, alg:i32, delta:u64 -> value:i64", sh_skip, rng_skip, TRN_OP_STATEFUL},
    {"NonDeterministicInts", "shape:shape_dtype -> output:dtype; dtype:i32|i64|u32|u64=i64" SHAPE, trn_sh_in0_shape, non_deterministic_ints, TRN_OP_STATEFUL},
    {"RandomIndexShuffle",
     "index:dtype, seed:Tseed, max_index:dtype -> output:dtype; rounds:int=4, dtype:i32|i64|u32|u64, Tseed:i32|i64|u32|u64", sh_shuffle, random_index_shuffle, 0},
    {0},
};
/* clang-format on */
