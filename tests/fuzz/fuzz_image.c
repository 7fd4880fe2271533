/* Image and sound files: the first byte says how to read, the rest is the file. */
#include <stdlib.h>

#include "ops/audio.h"
#include "ops/image_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Frees the error, or looks at the result, here and there. */
static void look(trn_err e, trn_tensor *t, int rank, trn_dtype dtype)
{
    static volatile uint8_t sink;
    if (e) {
        trn_err_free(e);
        return;
    }
    if (t->shape.rank != rank || t->dtype != dtype || t->count <= 0)
        abort();
    for (size_t i = 0; i < trn_tensor_bytes(t); i += 61)
        sink ^= TRN_DATA(t, uint8_t)[i];
    trn_tensor_unref(t);
}

static void jpeg(const uint8_t *p, size_t n, unsigned how)
{
    int64_t size[3];
    trn_err e = trn_jpeg_size(size, p, n);
    if (e) {
        trn_err_free(e);
        size[0] = size[1] = 0;
    }
    int32_t crop[4] = {(int32_t)(size[0] / 3), (int32_t)(size[1] / 3), (int32_t)(size[0] / 4), (int32_t)(size[1] / 4)};
    trn_jpeg_opts o = {.channels = (int[]){0, 1, 3, 0}[how & 3], .ratio = 1 << (how >> 2 & 3), .fancy = how & 16, .accurate = how & 32, .fraction = how & 64 ? 0.3f : 1};
    bool small = size[0] * size[1] < 1 << 20; /* larger ones only take time */
    o.recover = (how & 128) && small;
    trn_tensor *t = NULL;
    e = trn_jpeg_decode(&t, p, n, &o);
    look(e, t, 3, TRN_UINT8);
    if (!small)
        return;
    o.crop = crop;
    e = trn_jpeg_decode(&t, p, n, &o);
    look(e, t, 3, TRN_UINT8);
}

static void wav(const uint8_t *p, size_t n)
{
    trn_wav w;
    trn_err e = trn_wav_parse(&w, p, n);
    if (e)
        trn_err_free(e);
    else if (w.samples < p || w.channels < 1 || w.frames < 0 || w.frames * w.channels * 2 > p + n - w.samples)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    unsigned how = data[0];
    size_t n = size - 1;
    uint8_t *p = malloc(n); /* by itself, so that reading past its end is seen */
    if (!p)
        abort();
    memcpy(p, data + 1, n);
    trn_tensor *t = NULL;
    trn_err e;
    switch (p[0]) {
    case 0xff: jpeg(p, n, how); break;
    case 0x89:
        e = trn_png_decode(&t, p, n, (int[]){0, 1, 3, 4}[how & 3], how & 4 ? 16 : 8);
        look(e, t, 3, how & 4 ? TRN_UINT16 : TRN_UINT8);
        break;
    case 'G':
        e = trn_gif_decode(&t, p, n, (trn_gif_frames)(how % 3));
        look(e, t, 4, TRN_UINT8);
        break;
    case 'R': wav(p, n); break;
    default:
        e = trn_bmp_decode(&t, p, n, (int[]){0, 3, 4}[how % 3]);
        look(e, t, 3, TRN_UINT8);
        break;
    }
    free(p);
    return 0;
}
