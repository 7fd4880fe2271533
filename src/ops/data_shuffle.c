/* Shuffling, with TensorFlow's numbers: the same seeds give the same order.
 *
 * A generator of seeds (one per dataset, or shared through a resource) gives each epoch its pair; with them a Philox generator chooses, element by
 * element, among those of the oldest epoch in the buffer. The buffer is a ring that may hold elements of several epochs (ShuffleAndRepeat), one
 * slice each. */
#include <stdlib.h>

#include "base/philox.h"
#include "ops/data.h"

#define MAX_EPOCHS 3 /* in the buffer at once */

/* ---- seeds ---------------------------------------------------------------------------------------------------------- */

typedef struct seeds {
    trn_resource r;
    trn_mutex mu;
    uint64_t seed, seed2;
    bool reshuffle;
    bool shared; /* by a handle: all walks draw from it. Else each place in each walk has a copy, as if it were a dataset of its own */
    trn_philox1 gen;
} seeds;

static void seeds_free(trn_resource *r)
{
    trn_mutex_fini(&((seeds *)r)->mu);
    free(r);
}

static const trn_restype seeds_type = {.name = "SeedGenerator", .free = seeds_free};

static seeds *seeds_new(int64_t seed, int64_t seed2, bool reshuffle)
{
    seeds *s = trn_xalloc(sizeof *s);
    trn_resource_init(&s->r, &seeds_type);
    trn_mutex_init(&s->mu, TRN_RANK_RES);
    if (!(seed | seed2)) {
        seed = (int64_t)trn_random64();
        seed2 = (int64_t)trn_random64();
    }
    s->seed = (uint64_t)seed;
    s->seed2 = (uint64_t)seed2;
    s->reshuffle = reshuffle;
    s->gen = trn_philox1_of(trn_philox_seed(s->seed, s->seed2));
    return s;
}

static trn_resource *seeds_copy(trn_resource *r)
{
    seeds *s = (seeds *)r, *c = seeds_new(1, 1, s->reshuffle);
    trn_lock(&s->mu);
    c->seed = s->seed;
    c->seed2 = s->seed2;
    c->gen = s->gen;
    trn_unlock(&s->mu);
    return &c->r;
}

/* Those that an iterator draws from. TensorFlow writes a pipeline down as a graph before it walks it: a dataset that is used twice is two there. */
static seeds *seeds_of(trn_it *it, seeds *s) { return s->shared ? s : (seeds *)trn_it_kept(it, &s->r, seeds_copy); }

/* The generator of the next epoch. */
static trn_philox1 seeds_next(seeds *s)
{
    trn_lock(&s->mu);
    uint64_t a = s->seed, b = s->seed2;
    if (s->reshuffle) {
        a = trn_philox1_next(&s->gen);
        b = trn_philox1_next(&s->gen);
    }
    trn_unlock(&s->mu);
    return trn_philox1_of(trn_philox_seed(a, b));
}

/* The generator as it stands, so that walks can be begun again the same. */
typedef struct seeds_state {
    uint64_t seed, seed2, lo, hi, key;
    uint32_t have[4];
    int32_t used, zero;
} seeds_state;

static void seeds_save(seeds *s, trn_sb *out)
{
    trn_lock(&s->mu);
    seeds_state x = {s->seed, s->seed2, s->gen.gen.lo, s->gen.gen.hi, s->gen.gen.key, .used = s->gen.used};
    memcpy(x.have, s->gen.have, sizeof x.have);
    trn_unlock(&s->mu);
    trn_sb_add(out, &x, sizeof x);
}

static trn_err seeds_load(seeds *s, const uint8_t *p, size_t n)
{
    seeds_state x;
    TRN_CHECK_ARG(n == sizeof x, "a generator of seeds was saved in %zu bytes, not %zu", sizeof x, n);
    memcpy(&x, p, sizeof x);
    TRN_CHECK_ARG(x.used >= 0 && x.used <= 4, "%d of 4 samples are said to be used", x.used);
    trn_lock(&s->mu);
    s->seed = x.seed;
    s->seed2 = x.seed2;
    s->gen = (trn_philox1){.gen = {x.lo, x.hi, x.key}, .used = x.used};
    memcpy(s->gen.have, x.have, sizeof x.have);
    trn_unlock(&s->mu);
    return TRN_OK;
}

/* ---- the dataset ------------------------------------------------------------------------------------------------------ */

typedef struct shuffle {
    trn_ds d;
    int64_t buffer; /* -2: everything */
    int64_t count;  /* epochs; -1: for ever */
    seeds *s;
} shuffle;

typedef struct slice {
    int64_t start, end; /* in the ring, modulo its size */
    bool complete;
} slice;

typedef struct shuffle_it {
    trn_it it;
    seeds *s; /* borrowed */
    trn_philox1 gen;
    bool seeded;
    int64_t epoch, n; /* n: elements in the buffer */
    int64_t cap;      /* slots that exist; a fixed ring grows up to its size only as it fills */
    trn_elem **e;
    int n_slices, cap_slices;
    slice *sl;
    bool produced, quit;
} shuffle_it;

static void shuffle_free(trn_ds *d) { trn_resource_unref(((shuffle *)d)->s); }

static trn_err shuffle_save(trn_ds *d, trn_sb *out)
{
    seeds_save(((shuffle *)d)->s, out);
    return TRN_OK;
}

static trn_err shuffle_load(trn_ds *d, const uint8_t *p, size_t n) { return seeds_load(((shuffle *)d)->s, p, n); }

static trn_err shuffle_start(trn_it *it_)
{
    shuffle_it *it = (shuffle_it *)it_;
    it->s = seeds_of(it_, ((shuffle *)it_->d)->s);
    it->gen = seeds_next(it->s);
    return TRN_OK;
}

static void shuffle_stop(trn_it *it_)
{
    shuffle_it *it = (shuffle_it *)it_;
    for (int64_t i = 0; i < it->cap; i++)
        trn_elem_free(it->e[i]);
    free(it->e);
    free(it->sl);
}

/* The slice that is served next has all of its epoch. */
static bool serving_complete(const shuffle_it *it)
{
    for (int i = 0; i < it->n_slices; i++)
        if (it->sl[i].start != it->sl[i].end)
            return it->sl[i].complete;
    return false;
}

static bool should_fill(const shuffle_it *it, const shuffle *d)
{
    if (!it->it.in && d->count != -1 && it->epoch >= d->count)
        return false;
    if (it->n_slices > MAX_EPOCHS && it->n > 0)
        return false;
    if (d->buffer < 0)
        return it->n_slices == 0 || !serving_complete(it) || it->n < it->cap;
    return it->n < d->buffer;
}

static int64_t ring_size(const shuffle_it *it, const shuffle *d) { return d->buffer < 0 ? it->cap : d->buffer; }

static void grow(shuffle_it *it, int64_t cap)
{
    it->e = trn_xrealloc(it->e, (size_t)cap * sizeof *it->e);
    memset(it->e + it->cap, 0, (size_t)(cap - it->cap) * sizeof *it->e);
    it->cap = cap;
}

static void put(shuffle_it *it, const shuffle *d, trn_elem *e)
{
    slice *back = &it->sl[it->n_slices - 1];
    it->produced = true;
    int64_t at;
    if (d->buffer < 0 && it->n == it->cap) { /* unbounded: the ring is as large as what it holds */
        at = it->cap;
        grow(it, it->cap + 1);
    } else {
        at = back->end % ring_size(it, d);
        if (at >= it->cap)
            grow(it, TRN_MIN(TRN_MAX(2 * it->cap, TRN_MAX(at + 1, 64)), d->buffer));
    }
    it->e[at] = e;
    it->n++;
    back->end++;
}

static trn_elem *take(shuffle_it *it, shuffle *d)
{
    int empty = 0;
    while (it->sl[empty].start == it->sl[empty].end) {
        empty++;
        it->gen = seeds_next(it->s);
    }
    it->n_slices -= empty;
    memmove(it->sl, it->sl + empty, (size_t)it->n_slices * sizeof *it->sl);
    slice *f = &it->sl[0];
    int64_t size = ring_size(it, d), at = (f->start + trn_philox1_next(&it->gen) % (f->end - f->start)) % size, first = f->start % size;
    trn_elem *e = it->e[at];
    it->e[at] = it->e[first];
    it->e[first] = NULL;
    f->start++;
    it->n--;
    return e;
}

static trn_ds_do shuffle_next(trn_it *it_, trn_act *a, trn_ds_why why)
{
    shuffle_it *it = (shuffle_it *)it_;
    shuffle *d = (shuffle *)it_->d;
    if (why == TRN_DS_GOT) {
        put(it, d, trn_act_take(a));
    } else if (why == TRN_DS_ENDED) {
        it->sl[it->n_slices - 1].complete = true;
        trn_it_drop(it_->in);
        it_->in = NULL;
        it->quit = !it->produced && d->count == -1; /* an empty input, for ever */
    }
    if (!it->quit && should_fill(it, d)) {
        if (!it_->in) {
            int64_t n = it->epoch ? it->sl[it->n_slices - 1].end : 0;
            trn_err err = trn_it_start_in(it_);
            if (err)
                return trn_act_fail(a, err);
            TRN_PUSH(it->sl, it->n_slices, it->cap_slices, (slice){n, n, false});
            it->epoch++;
        }
        return trn_act_pull_on(a, it_->in);
    }
    return it->n ? trn_act_give(a, take(it, d)) : TRN_DS_END;
}

static int64_t shuffle_count(const trn_ds *d)
{
    const shuffle *s = (const shuffle *)d;
    int64_t n = trn_ds_count(d->in[0]), r;
    if (s->count == -1 || n == TRN_DS_INFINITE)
        return TRN_DS_INFINITE;
    return n < 0 ? n : __builtin_mul_overflow(n, s->count, &r) ? INT64_MAX : r;
}

static const trn_ds_op shuffle_op = {"ShuffleDataset", sizeof(shuffle_it), shuffle_free, shuffle_start, shuffle_next, NULL, shuffle_stop, shuffle_count, shuffle_save,
                                     shuffle_load};

/* The generator that the handle names; without one (DummySeedGenerator) the dataset's own. */
static trn_err find_seeds(seeds **out, trn_kctx *k, int64_t seed, int64_t seed2, bool reshuffle)
{
    int has, i = trn_in_arg(k, "seed_generator", &has);
    if (has) {
        trn_err err = trn_k_resource(out, k, i, &seeds_type);
        if (trn_err_code(err) != TRN_NOT_FOUND)
            return err;
        trn_err_free(err);
    }
    *out = seeds_new(seed, seed2, reshuffle);
    return TRN_OK;
}

static trn_err shuffle_args(shuffle *d, trn_kctx *k)
{
    TRN_TRY(trn_data_i64(&d->buffer, k, 1, "buffer_size"));
    TRN_CHECK_ARG(d->buffer > 0 || d->buffer == TRN_DS_UNKNOWN, "buffer_size must be greater than zero or UNKNOWN_CARDINALITY");
    int has, i = trn_in_arg(k, "seed", &has);
    int64_t seed = 0, seed2 = 0;
    if (has) {
        TRN_TRY(trn_data_i64(&seed, k, i, "seed"));
        TRN_TRY(trn_data_i64(&seed2, k, i + 1, "seed2"));
    }
    i = trn_in_arg(k, "count", &has);
    d->count = 1;
    if (has) {
        TRN_TRY(trn_data_i64(&d->count, k, i, "count"));
        TRN_CHECK_ARG(d->count > 0 || d->count == -1, "count must be greater than zero or equal to -1.");
    }
    bool reshuffle = trn_node_attr(k->node, "reshuffle_each_iteration") ? trn_attr_bool(k->node, "reshuffle_each_iteration") : true;
    return find_seeds(&d->s, k, seed, seed2, reshuffle);
}

static trn_err shuffle_dataset(trn_kctx *k)
{
    shuffle *d;
    TRN_TRY(trn_data_on(&d, k, &shuffle_op, sizeof *d));
    return trn_data_out(k, d, shuffle_args(d, k));
}

/* ---- generators as resources -------------------------------------------------------------------------------------------- */

static trn_err anonymous_seeds(trn_kctx *k)
{
    int64_t seed, seed2;
    bool reshuffle = true;
    TRN_TRY(trn_data_i64(&seed, k, 0, "seed"));
    TRN_TRY(trn_data_i64(&seed2, k, 1, "seed2"));
    if (k->n_in > 2)
        TRN_TRY(trn_data_bool(&reshuffle, k, 2, "reshuffle"));
    seeds *s = seeds_new(seed, seed2, reshuffle);
    s->shared = true;
    return trn_data_anonymous(k, &s->r, "tensorflow::data::SeedGeneratorManager");
}

/* ---- Random ------------------------------------------------------------------------------------------------------------- */

typedef struct random_it {
    trn_it it;
    trn_philox1 gen;
} random_it;

static trn_err random_start(trn_it *it_)
{
    ((random_it *)it_)->gen = seeds_next(seeds_of(it_, ((shuffle *)it_->d)->s));
    return TRN_OK;
}

static trn_ds_do random_next(trn_it *it, trn_act *a, trn_ds_why why)
{
    trn_elem *e = trn_elem_new(1);
    e->t[0] = trn_tensor_i64(trn_philox1_next(&((random_it *)it)->gen));
    return trn_act_give(a, e);
}

static int64_t infinite(const trn_ds *d) { return TRN_DS_INFINITE; }

static const trn_ds_op random_op = {"RandomDataset", sizeof(random_it), shuffle_free, random_start, random_next, .count = infinite, .save = shuffle_save,
                                    .load = shuffle_load};

static trn_err random_dataset(trn_kctx *k)
{
    int64_t seed, seed2;
    TRN_TRY(trn_data_i64(&seed, k, 0, "seed"));
    TRN_TRY(trn_data_i64(&seed2, k, 1, "seed2"));
    shuffle *d;
    TRN_TRY(trn_data_source(&d, k, &random_op, sizeof *d));
    return trn_data_out(k, d, find_seeds(&d->s, k, seed, seed2, trn_attr_bool(k->node, "rerandomize_each_iteration")));
}

#define RESHUFFLE "reshuffle_each_iteration:bool=true"

const trn_op trn_ops_data_shuffle[] = {
    {"ShuffleDataset", "input_dataset:var, buffer_size:i64, seed:i64, seed2:i64 -> handle:var; " RESHUFFLE ", " DS_OUT DS_META, trn_sh_dataset,
     shuffle_dataset, DS_FLAGS},
    {"ShuffleDatasetV2", "input_dataset:var, buffer_size:i64, seed_generator:res -> handle:var; " DS_OUT DS_META, trn_sh_dataset, shuffle_dataset,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"ShuffleDatasetV3", "input_dataset:var, buffer_size:i64, seed:i64, seed2:i64, seed_generator:res -> handle:var; " RESHUFFLE ", " DS_OUT DS_META,
     trn_sh_dataset, shuffle_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"ShuffleAndRepeatDataset", "input_dataset:var, buffer_size:i64, seed:i64, seed2:i64, count:i64 -> handle:var; " DS_OUT ", " RESHUFFLE DS_META,
     trn_sh_dataset, shuffle_dataset, DS_FLAGS},
    {"ShuffleAndRepeatDatasetV2",
     "input_dataset:var, buffer_size:i64, seed:i64, seed2:i64, count:i64, seed_generator:res -> handle:var; " RESHUFFLE ", " DS_OUT DS_META,
     trn_sh_dataset, shuffle_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"AnonymousRandomSeedGenerator", "seed:i64, seed2:i64 -> handle:res, deleter:var", trn_sh_dataset, anonymous_seeds, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"AnonymousSeedGenerator", "seed:i64, seed2:i64, reshuffle:bool -> handle:res, deleter:var", trn_sh_dataset, anonymous_seeds,
     TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"RandomDatasetV2", "seed:i64, seed2:i64, seed_generator:res -> handle:var; rerandomize_each_iteration:bool=false, " DS_OUT DS_META, trn_sh_dataset,
     random_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"ExperimentalRandomDataset", "seed:i64, seed2:i64 -> handle:var; " DS_OUT, trn_sh_dataset, random_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"RandomDataset", "seed:i64, seed2:i64 -> handle:var; " DS_OUT DS_META, trn_sh_dataset, random_dataset, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {0},
};
