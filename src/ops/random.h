/* What the random families share: a node's own generator, normals from samples. */
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
