/* ParameterizedTruncatedNormal and its stateless sister. Samples follow each other over all batches, which is what TensorFlow does with one shard. */
#include "ops/random.h"

#include <math.h>

#define MAX_MISSES 1000
#define TOGETHER 100 /* numbers per batch when all have the same parameters */

struct params {
    const trn_tensor *t[4]; /* mean, stddev, min, max: one, or one per batch */
    int64_t batches, per_batch;
    const trn_shape *across; /* not NULL: the batches' shape, which the parameters are broadcast to; a batch's samples lie `batches` apart */
};

/* Where parameter i of batch b is. */
static int64_t param_at(const struct params *p, int i, int64_t b)
{
    if (!p->across)
        return p->t[i]->count == 1 ? 0 : b;
    const trn_shape *s = &p->t[i]->shape;
    int64_t at = 0, stride = 1;
    for (int d = 1; d <= s->rank; d++) {
        int64_t n = p->across->dim[p->across->rank - d], own = s->dim[s->rank - d];
        at += own == 1 ? 0 : b % n * stride;
        stride *= own;
        b /= n;
    }
    return at;
}

static inline void uniforms_f32(trn_philox *gen, float *r)
{
    uint32_t x[4];
    trn_philox_next(gen, x);
    for (int i = 0; i < 4; i++)
        r[i] = trn_philox_f32(x[i]);
}
static inline void normals_f32(trn_philox *gen, float *r)
{
    uint32_t x[4];
    trn_philox_next(gen, x);
    trn_box_muller_f32(x[0], x[1], &r[0], &r[1]);
    trn_box_muller_f32(x[2], x[3], &r[2], &r[3]);
}
static inline void uniforms_f64(trn_philox *gen, double *r)
{
    uint32_t x[4];
    trn_philox_next(gen, x);
    r[0] = trn_philox_f64(x[0], x[1]);
    r[1] = trn_philox_f64(x[2], x[3]);
}
static inline void normals_f64(trn_philox *gen, double *r)
{
    uint32_t x[4];
    trn_philox_next(gen, x);
    trn_box_muller_f64(x, &r[0], &r[1]);
}

#define T float
#define FN(name) name##_f32
#define M(fn) fn##f
#define PER_BLOCK 4
#include "ops/param_normal.h"
#undef T
#undef FN
#undef M
#undef PER_BLOCK
#define T double
#define FN(name) name##_f64
#define M(fn) fn
#define PER_BLOCK 2
#include "ops/param_normal.h"
#undef T
#undef FN
#undef M
#undef PER_BLOCK

static trn_err parameterized_truncated_normal(trn_kctx *k)
{
    static const char *const names[] = {"means", "stddevs", "minvals", "maxvals"};
    trn_shape shape;
    char text[TRN_SHAPE_TEXT];
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 0), false));
    TRN_CHECK_ARG(shape.rank > 0, "Shape tensor must not be empty");
    struct params p = {.batches = shape.dim[0]};
    bool all_one = true;
    for (int i = 0; i < 4; i++) {
        p.t[i] = trn_in(k, 1 + i);
        TRN_CHECK_ARG(p.t[i]->shape.rank <= 1, "Input %s should be a scalar or vector, got shape: %s", names[i],
                      trn_shape_text(text, &p.t[i]->shape));
        all_one = all_one && p.t[i]->count == 1 && (i < 2 || p.t[i]->shape.rank == 0);
    }
    for (int i = 0; i < 4; i++)
        TRN_CHECK_ARG(p.t[i]->count == 1 || p.t[i]->count == p.batches, "Input %s should have length 1 or shape[0], got shape: %s", names[i],
                      trn_shape_text(text, &p.t[i]->shape));
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, k->node->out_types[0], &shape));
    if (all_one) {
        p.batches = (out->count + TOGETHER - 1) / TOGETHER;
        p.per_batch = TOGETHER;
    } else {
        p.per_batch = p.batches ? out->count / p.batches : 0;
    }
    trn_philox gen = trn_random_reserve(k, (uint64_t)(p.batches * 2 * MAX_MISSES * (p.per_batch + 3) / 4));
    return out->dtype == TRN_FLOAT ? fill_f32(&p, gen, out) : fill_f64(&p, gen, out);
}

static trn_err stateless_parameterized_truncated_normal(trn_kctx *k)
{
    trn_philox gen;
    TRN_TRY(trn_random_seeded(&gen, trn_in(k, 1)));
    struct params p = {.batches = 1};
    trn_bcast all = {.out = trn_in(k, 2)->shape};
    for (int i = 0; i < 4; i++) {
        p.t[i] = trn_in(k, 2 + i);
        trn_shape so_far = all.out;
        TRN_TRY(trn_bcast_make(&all, &so_far, &p.t[i]->shape));
    }
    trn_shape shape;
    TRN_TRY(trn_shape_from(&shape, trn_in(k, 0), false));
    TRN_TRY(trn_random_samples_of_each(&p.per_batch, &shape, &all.out));
    TRN_TRY(trn_shape_count(&p.batches, &all.out));
    p.across = &all.out;
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, k->node->out_types[0], &shape));
    if (out->count == 0)
        return TRN_OK;
    return out->dtype == TRN_FLOAT ? fill_f32(&p, gen, out) : fill_f64(&p, gen, out);
}

const trn_op trn_ops_random_param[] = {
    {"ParameterizedTruncatedNormal",
     "shape:T, means:dtype, stdevs:dtype, minvals:dtype, maxvals:dtype -> output:dtype; seed:int=0, seed2:int=0, dtype:f32|f64, T:i32|i64",
     trn_sh_in0_shape, parameterized_truncated_normal, TRN_OP_STATEFUL, trn_random_init, trn_random_fini},
    {"StatelessParameterizedTruncatedNormal",
     "shape:S, seed:Tseed, means:dtype, stddevs:dtype, minvals:dtype, maxvals:dtype -> output:dtype; S:i32|i64, Tseed:i32|i64=i64, dtype:f32|f64",
     trn_sh_in0_shape, stateless_parameterized_truncated_normal, 0},
    {0},
};
