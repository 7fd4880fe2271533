/* Sound as 16-bit WAV files. [any] */
#ifndef TRN_OPS_AUDIO_H
#define TRN_OPS_AUDIO_H

#include "ops/kern.h"

/* Appends a file; samples from -1 to 1, those of a frame side by side. The caller has seen to it that channels fit 16 bits and bytes 32. */
void trn_wav_encode(trn_sb *out, const float *x, int64_t hz, int64_t channels, int64_t frames);

/* Where the samples lie in a file's bytes. */
typedef struct trn_wav {
    const uint8_t *samples; /* int16, little-endian, not aligned */
    int64_t channels, frames;
    uint32_t hz;
} trn_wav;
trn_err trn_wav_parse(trn_wav *out, const uint8_t *p, size_t n) TRN_MUST_USE;

#endif
