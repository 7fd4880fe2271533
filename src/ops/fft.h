/* One row of a Fourier transform, for the ops of fft.c and whoever looks at sound. [any] */
#ifndef TRN_OPS_FFT_H
#define TRN_OPS_FFT_H

#include "ops/kern.h"

/* For one length and direction. Threads may share it when the length is a power of two. */
typedef struct trn_fft {
    int64_t n, m;                           /* m: power of two that is computed in; n itself, or at least 2n - 1 */
    double _Complex *root;                  /* exp(±2πi k/m), k < m/2 */
    double _Complex *chirp, *kernel, *work; /* Bluestein: exp(±πi k²/n), its transform, m elements of room */
} trn_fft;
trn_err trn_fft_init(trn_fft *p, int64_t n, bool inverse) TRN_MUST_USE;
void trn_fft_run(const trn_fft *p, double _Complex *x); /* in place; the inverse is not divided by n */
void trn_fft_fini(trn_fft *p);

#endif
