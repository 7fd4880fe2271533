/* What the random families share: generators of nodes, of seeds and of variables; filling a tensor; normals from samples. */
#ifndef TRN_OPS_RANDOM_H
#define TRN_OPS_RANDOM_H

#include "base/philox.h"
#include "ops/kern.h"

#include <math.h>

/* init and fini of a row whose node owns a generator, seeded by attrs seed and seed2 (both 0: at random). */
trn_err trn_random_init(trn_kinit *ki);
void trn_random_fini(void *state);
/* This run's share: the generator as it stands; the node's own moves on by `blocks`. */
trn_philox trn_random_reserve(trn_kctx *k, uint64_t blocks);

/* The generator of a stateless op: from its seed, or from inputs key, counter and alg at `at`. `words`: how many the counter must have at least, 1 or 2. */
trn_err trn_random_seeded(trn_philox *out, const trn_tensor *seed) TRN_MUST_USE;
trn_err trn_random_keyed(trn_philox *out, const trn_kctx *k, int at, int words) TRN_MUST_USE;
/* The generator in variable input 0, which moves on by what is reserved for so many outputs. Input 1 says the algorithm. */
trn_err trn_random_of_variable(trn_philox *out, trn_kctx *k, uint64_t outputs) TRN_MUST_USE;
trn_err trn_sh_random_of_variable(trn_shctx *s); /* input 2 is the output's shape */

/* Fills t. UNIFORM_INT: lo … lo + range - 1. */
typedef enum trn_random_dist { TRN_RANDOM_UNIFORM, TRN_RANDOM_NORMAL, TRN_RANDOM_TRUNCATED, TRN_RANDOM_UNIFORM_INT, TRN_RANDOM_FULL_INT } trn_random_dist;
void trn_random_fill(trn_kctx *k, trn_tensor *t, trn_philox gen, trn_random_dist kind, uint64_t lo, uint64_t range);
/* Inputs minval and maxval at `at` and behind it. */
trn_err trn_random_int_range(uint64_t *lo, uint64_t *range, const trn_kctx *k, int at) TRN_MUST_USE;
/* How many samples of each parameter a shape has room for that ends with the parameters' shape. */
trn_err trn_random_samples_of_each(int64_t *out, const trn_shape *s, const trn_shape *end) TRN_MUST_USE;
double trn_random_real(const trn_tensor *t, int64_t i);

enum { TRN_RANDOM_RESERVED = 256 }; /* blocks that TensorFlow sets aside per output */

/* Two normals from two samples, in TensorFlow's mixture of precisions. */
static inline void trn_box_muller_f32(uint32_t x0, uint32_t x1, float *f0, float *f1)
{
    float u1 = trn_philox_f32(x0);
    if (u1 < 1.0e-7f)
        u1 = 1.0e-7f;
    float v1 = (float)(2.0f * M_PI * (double)trn_philox_f32(x1));
    float u2 = sqrtf(-2.0f * logf(u1));
    sincosf(v1, f0, f1);
    *f0 *= u2;
    *f1 *= u2;
}

static inline void trn_box_muller_f64(const uint32_t x[4], double *d0, double *d1)
{
    double u1 = trn_philox_f64(x[0], x[1]);
    if (u1 < 1.0e-7)
        u1 = 1.0e-7;
    double v1 = 2 * M_PI * trn_philox_f64(x[2], x[3]);
    double u2 = sqrt(-2.0 * log(u1));
    sincos(v1, d0, d1);
    *d0 *= u2;
    *d1 *= u2;
}

#endif
