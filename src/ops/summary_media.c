/* Summaries that hold a file: images as PNG, sound as WAV. Field numbers are those of Summary in tensorflow.proto. */
#include <math.h>
#include <stdlib.h>

#include "ckpt/media.h"
#include "ops/audio.h"
#include "ops/kern.h"
#include "ops/summary.h"
#include "proto/pbw.h"

#define STR(t) TRN_DATA(t, trn_str)

/* The value in *v becomes field 1 of the summary. */
static void put_value(trn_sb *summary, trn_sb *v)
{
    trn_pbw_bytes(summary, 1, v->p, v->n);
    v->n = 0;
}

/* The scalar output, unless there is an error; frees the bytes. */
static trn_err out_scalar(trn_kctx *k, trn_sb *b, TRN_OWN trn_err e)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *y;
    if (!e)
        e = trn_out_new(&y, k, 0, TRN_STRING, &s);
    if (!e)
        e = trn_str_set(TRN_DATA_MUT(y, trn_str), b->p ? b->p : "", b->n);
    trn_sb_fini(b);
    return e;
}

/* A float image's element i. */
static double number(const trn_tensor *t, int64_t i)
{
    if (t->dtype == TRN_FLOAT)
        return (double)TRN_DATA(t, float)[i];
    return t->dtype == TRN_DOUBLE ? TRN_DATA(t, double)[i] : (double)trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
}

/* ---- images ---------------------------------------------------------------------------------------------------------------------------------- */

/* Floats of one image to bytes: 0 stays 0 and the largest becomes 255; with negative values 0 is in the middle. Pixels that are not finite
 * get the bad colour. */
static void normalise(uint8_t *out, const trn_tensor *x, int64_t first, int64_t pixels, int64_t c, const uint8_t *bad)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int64_t i = 0; i < pixels; i++) {
        bool ok = true;
        for (int64_t q = 0; q < c; q++)
            ok = ok && isfinite(number(x, first + i * c + q));
        for (int64_t q = 0; q < c && ok; q++) {
            double v = number(x, first + i * c + q);
            lo = v < lo ? v : lo;
            hi = v > hi ? v : hi;
        }
    }
    double m = lo < 0 ? (fabs(lo) > fabs(hi) ? fabs(lo) : fabs(hi)) : hi, offset = lo < 0 ? 128 : 0;
    bool wide = x->dtype == TRN_DOUBLE; /* else in float, which is what decides how 0.999… is cut */
    float scale = (float)m < 1e-6f ? 0 : (lo < 0 ? 127.0f : 255.0f) / (float)m;
    for (int64_t i = 0; i < pixels; i++) {
        bool ok = true;
        for (int64_t q = 0; q < c; q++)
            ok = ok && isfinite(number(x, first + i * c + q));
        for (int64_t q = 0; q < c; q++) {
            double p = ok ? number(x, first + i * c + q) : 0, v = wide ? p * (double)scale + offset : (double)((float)p * scale + (float)offset);
            out[i * c + q] = !ok ? bad[q] : v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v;
        }
    }
}

static void tag_of(trn_sb *v, const trn_str *base, const char *what, int64_t i, int64_t max)
{
    trn_sb t = {0};
    trn_sb_add(&t, trn_str_p(base), base->len);
    if (max > 1)
        trn_sb_addf(&t, "/%s/%lld", what, (long long)i);
    else
        trn_sb_addf(&t, "/%s", what);
    trn_pbw_bytes(v, 1, t.p, t.n);
    trn_sb_fini(&t);
}

trn_err trn_summary__image(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t max, const trn_tensor *bad)
{
    char t[TRN_SHAPE_TEXT];
    const int64_t *d = x->shape.dim;
    TRN_CHECK_ARG(x->shape.rank == 4 && (d[3] == 1 || d[3] == 3 || d[3] == 4), "Tensor must be 4-D with last dim 1, 3, or 4, not %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(d[1] < 1 << 24 && d[2] < 1 << 24 && d[1] * d[2] * d[3] < INT64_C(1) << 30, "Tensor too large for summary %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(x->dtype == TRN_UINT8 || bad->count >= d[3], "bad_color has %lld elements for %lld channels", (long long)bad->count, (long long)d[3]);
    int64_t pixels = d[1] * d[2], size = pixels * d[3];
    trn_sb v = {0}, img = {0}, png = {0};
    uint8_t *bytes = malloc((size_t)size + 1);
    trn_err e = bytes ? TRN_OK : trn_err_oom();
    for (int64_t i = 0; i < TRN_MIN(max, d[0]) && !e; i++) {
        if (x->dtype == TRN_UINT8)
            memcpy(bytes, TRN_DATA(x, uint8_t) + i * size, (size_t)size);
        else
            normalise(bytes, x, i * size, pixels, d[3], TRN_DATA(bad, uint8_t));
        png.n = img.n = 0;
        e = trn_png_encode(&png, bytes, d[2], d[1], (int)d[3], 8, -1);
        if (e)
            break;
        trn_pbw_varint(&img, 1, (uint64_t)d[1]);
        trn_pbw_varint(&img, 2, (uint64_t)d[2]);
        trn_pbw_varint(&img, 3, (uint64_t)d[3]);
        trn_pbw_bytes(&img, 4, png.p, png.n);
        tag_of(&v, tag, "image", i, max);
        trn_pbw_bytes(&v, 4, img.p, img.n);
        put_value(out, &v);
    }
    free(bytes);
    trn_sb_fini(&v);
    trn_sb_fini(&img);
    trn_sb_fini(&png);
    return e;
}

static trn_err k_image_summary(trn_kctx *k)
{
    const trn_tensor *tag = trn_in(k, 0), *x = trn_in(k, 1), *bad = trn_attr_tensor(k->node, "bad_color");
    TRN_CHECK_ARG(trn_is_scalar(tag), "Tags must be a scalar");
    TRN_CHECK_ARG(bad && bad->dtype == TRN_UINT8 && trn_is_vector(bad) && (x->shape.rank != 4 || bad->count >= x->shape.dim[3]),
                  "bad_color must be a uint8 vector with as many elements as channels");
    trn_sb out = {0};
    return out_scalar(k, &out, trn_summary__image(&out, STR(tag), x, trn_attr_int(k->node, "max_images"), bad));
}

/* ---- sound -------------------------------------------------------------------------------------------------------------------------------------- */

trn_err trn_summary__audio(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t max, float rate)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 2 || x->shape.rank == 3, "Tensor must be 3-D or 2-D, got: %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(rate > 0 && rate < 4e9f, "sample_rate must be > 0");
    int64_t frames = x->shape.dim[1], ch = x->shape.rank == 2 ? 1 : x->shape.dim[2], hz = lrintf(rate);
    TRN_CHECK_ARG(ch > 0 && ch < 65536 && frames * ch < INT64_C(1) << 30, "%lld frames of %lld channels do not fit a WAV file", (long long)frames, (long long)ch);
    trn_sb v = {0}, au = {0}, wav = {0};
    for (int64_t i = 0; i < TRN_MIN(max, x->shape.dim[0]); i++) {
        int64_t n = frames * ch;
        wav.n = au.n = 0;
        trn_wav_encode(&wav, TRN_DATA(x, float) + i * n, hz, ch, frames);
        uint32_t bits;
        memcpy(&bits, &rate, 4);
        trn_pbw_fixed32(&au, 1, bits);
        trn_pbw_varint(&au, 2, (uint64_t)ch);
        trn_pbw_varint(&au, 3, (uint64_t)frames);
        trn_pbw_bytes(&au, 4, wav.p, wav.n);
        trn_pbw_bytes(&au, 5, "audio/wav", 9);
        tag_of(&v, tag, "audio", i, max);
        trn_pbw_bytes(&v, 6, au.p, au.n);
        put_value(out, &v);
    }
    trn_sb_fini(&v);
    trn_sb_fini(&au);
    trn_sb_fini(&wav);
    return TRN_OK;
}

static trn_err audio(trn_kctx *k, float rate)
{
    const trn_tensor *tag = trn_in(k, 0);
    TRN_CHECK_ARG(trn_is_scalar(tag), "Tag must be a scalar");
    trn_sb out = {0};
    return out_scalar(k, &out, trn_summary__audio(&out, STR(tag), trn_in(k, 1), trn_attr_int(k->node, "max_outputs"), rate));
}

static trn_err k_audio_summary(trn_kctx *k) { return audio(k, trn_attr_float(k->node, "sample_rate")); }
static trn_err k_audio_summary_v2(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 2)->count == 1, "sample_rate must be a scalar");
    return audio(k, *TRN_DATA(trn_in(k, 2), float));
}

const trn_op trn_ops_summary_media[] = {
    {"ImageSummary", "tag:str, tensor:T -> summary:str; max_images:int>=1=3, T:f16|f32|f64|u8=f32, bad_color:tensor=u8[255,0,0,255]", trn_sh_scalar,
     k_image_summary, TRN_OP_HEAVY},
    {"AudioSummary", "tag:str, tensor:f32 -> summary:str; sample_rate:float, max_outputs:int>=1=3", trn_sh_scalar, k_audio_summary, 0},
    {"AudioSummaryV2", "tag:str, tensor:f32, sample_rate:f32 -> summary:str; max_outputs:int>=1=3", trn_sh_scalar, k_audio_summary_v2, 0},
    {0},
};
