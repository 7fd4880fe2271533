/* Sound: WAV files, spectrograms, and what speech recognisers make of them. */
#include "ops/audio.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "ops/fft.h"

#define STR(t) TRN_DATA(t, trn_str)

/* ---- WAV ------------------------------------------------------------------------------------------------------------------------ */

static void le(trn_sb *b, uint64_t v, int n)
{
    trn_sb_add(b, &v, (size_t)n); /* little-endian machine: see the assertion in base/hash_tf.c */
}

void trn_wav_encode(trn_sb *b, const float *x, int64_t hz, int64_t channels, int64_t frames)
{
    int64_t n = frames * channels;
    trn_sb_reserve(b, (size_t)(44 + 2 * n));
    trn_sb_adds(b, "RIFF");
    le(b, (uint64_t)(36 + 2 * n), 4);
    trn_sb_adds(b, "WAVEfmt ");
    le(b, 16, 4);
    le(b, 1, 2); /* PCM */
    le(b, (uint64_t)channels, 2);
    le(b, (uint64_t)hz, 4);
    le(b, (uint64_t)(hz * channels * 2), 4);
    le(b, (uint64_t)(channels * 2), 2);
    le(b, 16, 2);
    trn_sb_adds(b, "data");
    le(b, (uint64_t)(2 * n), 4);
    for (int64_t i = 0; i < n; i++) {
        float s = roundf(x[i] * 32768.0f);
        int16_t v = (int16_t)(isnan(s) ? 0 : s >= 32767 ? 32767 : s > -32768 ? s : -32768);
        le(b, (uint16_t)v, 2);
    }
}

typedef struct wav_reader {
    const uint8_t *p;
    size_t left;
    bool bad; /* it has ended too soon */
} wav_reader;

static uint32_t number(wav_reader *r, size_t n)
{
    uint32_t v = 0;
    if (r->left < n) {
        r->bad = true;
        return 0;
    }
    memcpy(&v, r->p, n);
    r->p += n;
    r->left -= n;
    return v;
}

static bool is(uint32_t id, const char *name) { return !memcmp(&id, name, 4); }

/* For messages: four bytes of a file may be anything. */
static const char *text(char out[5], uint32_t id)
{
    memcpy(out, &id, 4);
    for (int i = 0; i < 4; i++)
        out[i] = out[i] < ' ' || out[i] > '~' ? '?' : out[i];
    out[4] = 0;
    return out;
}

#define TOO_SHORT "Data too short when trying to read string: a WAV of %zu bytes"

static trn_err wav_format(trn_wav *w, wav_reader *r, size_t n)
{
    static const char *const skipped[] = {"JUNK", "bext", "iXML", "qlty", "mext", "levl", "link", "axml"};
    char a[5], b[5];
    uint32_t riff = number(r, 4), size = number(r, 4), wave = number(r, 4);
    TRN_CHECK_ARG(!r->bad, TOO_SHORT, n);
    TRN_CHECK_ARG(is(riff, "RIFF") && is(wave, "WAVE"), "Header mismatch: Expected RIFF and WAVE but found %s and %s", text(a, riff), text(b, wave));
    for (uint32_t id = number(r, 4); !is(id, "fmt "); id = number(r, 4)) {
        bool known = false;
        for (size_t i = 0; i < TRN_COUNTOF(skipped); i++)
            known = known || is(id, skipped[i]);
        TRN_CHECK_ARG(!r->bad, TOO_SHORT, n);
        TRN_CHECK_ARG(known, "Unexpected field %s", text(a, id));
        size = number(r, 4);
        TRN_CHECK_ARG(!r->bad && size <= r->left, TOO_SHORT, n);
        r->p += size;
        r->left -= size;
    }
    size = number(r, 4);
    uint32_t format = number(r, 2), channels = number(r, 2), hz = number(r, 4), per_second = number(r, 4), per_frame = number(r, 2), bits = number(r, 2);
    TRN_CHECK_ARG(!r->bad, TOO_SHORT, n);
    TRN_CHECK_ARG(size == 16 || size == 18, "Bad format chunk size for WAV: Expected 16 or 18, but got %u", size);
    TRN_CHECK_ARG(format == 1, "Bad audio format for WAV: Expected 1 (PCM), but got %u", format);
    TRN_CHECK_ARG(channels >= 1, "Bad number of channels for WAV: Expected at least 1, but got 0");
    TRN_CHECK_ARG(bits == 16, "Can only read 16-bit WAV files, but received %u", bits);
    TRN_CHECK_ARG(per_frame == 2 * channels, "Bad bytes per sample in WAV header: Expected %u but got %u", 2 * channels, per_frame);
    TRN_CHECK_ARG(per_second == (uint64_t)per_frame * hz, "Bad bytes per second in WAV header: Expected %llu but got %u",
                  (unsigned long long)per_frame * hz, per_second);
    if (size == 18) {
        size_t more = TRN_MIN(r->left, (size_t)2);
        r->p += more;
        r->left -= more;
    }
    w->channels = channels;
    w->hz = hz;
    return TRN_OK;
}

trn_err trn_wav_parse(trn_wav *out, const uint8_t *p, size_t n)
{
    wav_reader r = {p, n, false};
    trn_wav w = {0};
    TRN_TRY(wav_format(&w, &r, n));
    while (r.left) {
        char name[5];
        uint32_t id = number(&r, 4), size = number(&r, 4);
        TRN_CHECK_ARG(!r.bad, TOO_SHORT, n);
        TRN_CHECK_ARG(size <= INT32_MAX, "WAV data chunk '%s' is too large: %u bytes, but the limit is %d", text(name, id), size, INT32_MAX);
        size_t take = size;
        if (is(id, "data")) {
            TRN_CHECK_ARG(!w.samples, "More than one data chunk found in WAV");
            w.frames = size / (2 * w.channels);
            take = (size_t)(w.frames * w.channels * 2);
            TRN_CHECK_ARG(take <= r.left, TOO_SHORT, n);
            w.samples = r.p;
        }
        take = TRN_MIN(take, r.left);
        r.p += take;
        r.left -= take;
    }
    TRN_CHECK_ARG(w.samples, "No data chunk found in WAV");
    *out = w;
    return TRN_OK;
}

static trn_err k_decode_wav(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char t[TRN_SHAPE_TEXT];
    int64_t channels = trn_attr_int(k->node, "desired_channels"), frames = trn_attr_int(k->node, "desired_samples");
    TRN_CHECK_ARG(trn_is_scalar(x), "contents must be scalar, got shape %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(channels >= -1 && channels <= INT32_MAX && frames >= -1 && frames <= INT32_MAX, "desired_channels %lld or desired_samples %lld is no such number",
                  (long long)channels, (long long)frames);
    TRN_CHECK_ARG(STR(x)->len <= INT32_MAX, "WAV contents are too large for int: %u", STR(x)->len);
    trn_wav w;
    TRN_TRY(trn_wav_parse(&w, (const uint8_t *)trn_str_p(STR(x)), STR(x)->len));
    channels = channels < 0 ? w.channels : channels;
    frames = frames < 0 ? w.frames : frames;
    trn_shape s = trn_shape_of(2, frames, channels), scalar = trn_shape_scalar();
    trn_tensor *y, *hz;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    TRN_TRY(trn_out_new(&hz, k, 1, TRN_INT32, &scalar));
    float *o = TRN_DATA_MUT(y, float);
    for (int64_t i = 0; i < frames; i++)
        for (int64_t c = 0; c < channels; c++) { /* the last channel stands for those that are missing */
            int16_t v = 0;
            if (i < w.frames)
                memcpy(&v, w.samples + (i * w.channels + TRN_MIN(c, w.channels - 1)) * 2, 2);
            *o++ = (float)v * (1.0f / 32768);
        }
    *TRN_DATA_MUT(hz, int32_t) = (int32_t)w.hz;
    return TRN_OK;
}

static trn_err k_encode_wav(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *rate = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 2, "audio must be 2-dimensional, not %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(trn_is_scalar(rate), "Input sample_rate should be a scalar tensor, got %s instead.", trn_shape_text(t, &rate->shape));
    int64_t hz = *TRN_DATA(rate, int32_t), channels = x->shape.dim[1];
    TRN_CHECK_ARG(x->count < INT32_MAX - 22, "Cannot encode audio with >= max int32 elements");
    TRN_CHECK_ARG(hz > 0, "sample_rate must be in (0, 2^32), got: %lld", (long long)hz);
    TRN_CHECK_ARG(channels > 0 && channels <= UINT16_MAX, "num_channels must be in (0, 2^16), got: %lld", (long long)channels);
    trn_shape s = trn_shape_scalar();
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    trn_sb b = {0};
    trn_wav_encode(&b, TRN_DATA(x, float), hz, channels, x->shape.dim[0]);
    trn_err e = trn_str_set(TRN_DATA_MUT(y, trn_str), b.p, b.n);
    trn_sb_fini(&b);
    return e;
}

/* ---- spectrograms --------------------------------------------------------------------------------------------------------------- */

typedef struct spectrum {
    const float *x;
    float *y;
    double *window; /* periodic Hann */
    trn_fft fft;
    int64_t channels, frames, size, stride, width;
    bool squared;
    _Atomic bool oom;
} spectrum;

static int64_t fft_length(int64_t window)
{
    int64_t n = 1;
    while (n < window)
        n *= 2;
    return n;
}

/* How much comes out of n samples. */
static int64_t frames_of(int64_t n, int64_t window, int64_t stride) { return n < window ? 0 : 1 + (n - window) / stride; }

static void spectra(void *arg, int64_t begin, int64_t end)
{
    spectrum *s = arg;
    int64_t n = s->fft.n;
    double _Complex *w = malloc((size_t)n * sizeof *w);
    if (!w) {
        s->oom = true;
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i / s->frames, first = i % s->frames * s->stride;
        for (int64_t j = 0; j < n; j++)
            w[j] = j < s->size ? (double)s->x[(first + j) * s->channels + c] * s->window[j] : 0;
        trn_fft_run(&s->fft, w);
        for (int64_t j = 0; j < s->width; j++) {
            float v = (float)(creal(w[j]) * creal(w[j]) + cimag(w[j]) * cimag(w[j]));
            s->y[i * s->width + j] = s->squared ? v : sqrtf(v);
        }
    }
    free(w);
}

static trn_err window_of(int64_t *size, int64_t *stride, const trn_node *n)
{
    *size = trn_attr_int(n, "window_size");
    *stride = trn_attr_int(n, "stride");
    TRN_CHECK_ARG(*size > 1 && *size <= INT32_MAX, "window size must be > 1, got %lld", (long long)*size);
    TRN_CHECK_ARG(*stride > 0 && *stride <= INT32_MAX, "stride must be strictly positive, got %lld", (long long)*stride);
    return TRN_OK;
}

static trn_err k_audio_spectrogram(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 2, "input must be 2-dimensional, not %s", trn_shape_text(t, &x->shape));
    spectrum s = {.x = TRN_DATA(x, float), .channels = x->shape.dim[1], .squared = trn_attr_bool(k->node, "magnitude_squared")};
    TRN_TRY(window_of(&s.size, &s.stride, k->node));
    s.frames = frames_of(x->shape.dim[0], s.size, s.stride);
    int64_t n = fft_length(s.size);
    s.width = n / 2 + 1;
    trn_shape shape = trn_shape_of(3, s.channels, s.frames, s.width);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &shape));
    if (!y->count)
        return TRN_OK;
    s.y = TRN_DATA_MUT(y, float);
    TRN_TRY(trn_fft_init(&s.fft, n, false));
    s.window = malloc((size_t)s.size * sizeof *s.window);
    s.oom = !s.window;
    for (int64_t i = 0; i < s.size && !s.oom; i++)
        s.window[i] = 0.5 - 0.5 * cos(2 * M_PI * (double)i / (double)s.size);
    if (!s.oom)
        trn_k_for(k, s.channels * s.frames, TRN_MAX(1, 8192 / n), spectra, &s);
    free(s.window);
    trn_fft_fini(&s.fft);
    return s.oom ? trn_err_oom() : TRN_OK;
}

/* ---- mel-frequency cepstral coefficients ----------------------------------------------------------------------------------------- */

#define MFCC_MAX (1 << 24) /* channels, and numbers in the cosine table */

/* Triangles whose centres are equally far apart in mel: each frequency between two centres adds to both, `weight` to the lower one. */
typedef struct mfcc_job {
    const float *x;
    float *y;
    int64_t bins, channels, coefficients;
    int64_t first, last; /* bins that are used */
    int32_t *lower;      /* channel below a bin, -1: none */
    double *weight, *cosine;
    _Atomic bool oom;
} mfcc_job;

static double mel(double hz) { return 1127.0 * log1p(hz / 700.0); }

static bool mfcc_tables(mfcc_job *j, double rate, double lo, double hi)
{
    double step = 0.5 * rate / (double)(j->bins - 1), low = mel(lo), spacing = (mel(hi) - low) / (double)(j->channels + 1);
    double first = 1.5 + lo / step, last = hi / step;
    j->first = first < INT32_MAX ? (int64_t)first : INT32_MAX;
    j->last = last < INT32_MAX ? (int64_t)last : INT32_MAX;
    j->lower = malloc((size_t)j->bins * sizeof *j->lower);
    j->weight = malloc((size_t)j->bins * sizeof *j->weight);
    j->cosine = malloc((size_t)(j->coefficients * j->channels) * sizeof *j->cosine);
    if (!j->lower || !j->weight || !j->cosine)
        return false;
    int64_t c = 0; /* the first centre that is not below the bin */
    for (int64_t i = j->first; i <= TRN_MIN(j->last, j->bins - 1); i++) {
        double at = mel((double)i * step);
        while (c < j->channels && low + spacing * (double)(c + 1) < at)
            c++;
        double below = c ? low + spacing * (double)c : low, above = low + spacing * (double)(c + 1);
        j->lower[i] = (int32_t)(c - 1);
        j->weight[i] = (above - at) / (above - below);
    }
    double norm = sqrt(2.0 / (double)j->channels), turn = M_PI / (double)j->channels;
    for (int64_t i = 0; i < j->coefficients; i++)
        for (int64_t q = 0; q < j->channels; q++)
            j->cosine[i * j->channels + q] = norm * cos((double)i * turn * ((double)q + 0.5));
    return true;
}

static void mfcc_rows(void *arg, int64_t begin, int64_t end)
{
    mfcc_job *j = arg;
    double *mels = malloc((size_t)j->channels * sizeof *mels);
    if (!mels) {
        j->oom = true;
        return;
    }
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + r * j->bins;
        float *y = j->y + r * j->coefficients;
        if (j->last >= j->bins) { /* the spectrogram does not reach up to the limit */
            memset(y, 0, (size_t)j->coefficients * sizeof *y);
            continue;
        }
        memset(mels, 0, (size_t)j->channels * sizeof *mels);
        for (int64_t i = j->first; i <= j->last; i++) {
            double v = sqrt((double)x[i]), part = v * j->weight[i];
            int32_t c = j->lower[i];
            if (c >= 0)
                mels[c] += part;
            if (c + 1 < j->channels)
                mels[c + 1] += v - part;
        }
        for (int64_t c = 0; c < j->channels; c++)
            mels[c] = log(mels[c] < 1e-12 ? 1e-12 : mels[c]);
        for (int64_t i = 0; i < j->coefficients; i++) {
            double sum = 0;
            for (int64_t c = 0; c < j->channels; c++)
                sum += j->cosine[i * j->channels + c] * mels[c];
            y[i] = (float)sum;
        }
    }
    free(mels);
}

static trn_err k_mfcc(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *rate = trn_in(k, 1);
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank == 3, "spectrogram must be 3-dimensional, not %s", trn_shape_text(t, &x->shape));
    TRN_CHECK_ARG(trn_is_scalar(rate), "Input sample_rate should be a scalar tensor, got %s instead.", trn_shape_text(t, &rate->shape));
    int32_t hz = *TRN_DATA(rate, int32_t);
    double hi = (double)trn_attr_float(k->node, "upper_frequency_limit"), lo = (double)trn_attr_float(k->node, "lower_frequency_limit");
    mfcc_job j = {.x = TRN_DATA(x, float), .bins = x->shape.dim[2], .channels = trn_attr_int(k->node, "filterbank_channel_count"),
                  .coefficients = trn_attr_int(k->node, "dct_coefficient_count")};
    TRN_CHECK_ARG(j.channels >= 1 && j.channels <= MFCC_MAX && j.coefficients >= 1 && j.coefficients <= j.channels && j.coefficients * j.channels <= MFCC_MAX,
                  "Mfcc initialization failed for %lld coefficients of %lld filterbank channels", (long long)j.coefficients, (long long)j.channels);
    TRN_CHECK_ARG(hz > 0 && j.bins >= 2 && j.bins <= INT32_MAX && lo >= 0 && hi > lo,
                  "Mfcc initialization failed for channel count %lld, sample rate %d and frequencies from %g to %g", (long long)j.bins, hz, lo, hi);
    trn_shape s = trn_shape_of(3, x->shape.dim[0], x->shape.dim[1], j.coefficients);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_FLOAT, &s));
    j.y = TRN_DATA_MUT(y, float);
    j.oom = !mfcc_tables(&j, hz, lo, hi);
    if (!j.oom)
        trn_k_for(k, s.dim[0] * s.dim[1], TRN_MAX(1, 16384 / (j.coefficients * j.channels)), mfcc_rows, &j);
    free(j.lower);
    free(j.weight);
    free(j.cosine);
    return j.oom ? trn_err_oom() : TRN_OK;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------------------- */

static trn_err need_rank(const trn_shctx *s, int i, int rank)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->in[i].rank < 0 || s->in[i].rank == rank, "Shape must be rank %d but is %s", rank, trn_shape_text(t, &s->in[i]));
    return TRN_OK;
}
static int64_t dim(const trn_shape *s, int i) { return s->rank < 0 ? -1 : s->dim[i]; }

static trn_err sh_decode_wav(trn_shctx *s)
{
    TRN_TRY(need_rank(s, 0, 0));
    int64_t c = trn_attr_int(s->node, "desired_channels"), n = trn_attr_int(s->node, "desired_samples");
    TRN_CHECK_ARG(c >= -1, "channels must be non-negative, got %lld", (long long)c);
    TRN_CHECK_ARG(n >= -1, "samples must be non-negative, got %lld", (long long)n);
    s->out[0] = trn_shape_of(2, n, c);
    s->out[1] = trn_shape_scalar();
    return TRN_OK;
}

static trn_err sh_encode_wav(trn_shctx *s)
{
    TRN_TRY(need_rank(s, 0, 2));
    TRN_TRY(need_rank(s, 1, 0));
    s->out[0] = trn_shape_scalar();
    return TRN_OK;
}

static trn_err sh_spectrogram(trn_shctx *s)
{
    TRN_TRY(need_rank(s, 0, 2));
    int64_t size = trn_attr_int(s->node, "window_size"), stride = trn_attr_int(s->node, "stride"), n = dim(&s->in[0], 0);
    if (size < 2 || size > INT32_MAX || stride < 1)
        return TRN_OK; /* the kernel says so */
    s->out[0] = trn_shape_of(3, dim(&s->in[0], 1), n < 0 ? (int64_t)-1 : frames_of(n, size, stride), fft_length(size) / 2 + 1);
    return TRN_OK;
}

static trn_err sh_mfcc(trn_shctx *s)
{
    TRN_TRY(need_rank(s, 0, 3));
    TRN_TRY(need_rank(s, 1, 0));
    s->out[0] = trn_shape_of(3, dim(&s->in[0], 0), dim(&s->in[0], 1), TRN_MAX(trn_attr_int(s->node, "dct_coefficient_count"), (int64_t)-1));
    return TRN_OK;
}

const trn_op trn_ops_audio[] = {
    {"DecodeWav", "contents:str -> audio:f32, sample_rate:i32; desired_channels:int=-1, desired_samples:int=-1", sh_decode_wav, k_decode_wav, 0},
    {"EncodeWav", "audio:f32, sample_rate:i32 -> contents:str", sh_encode_wav, k_encode_wav, 0},
    {"AudioSpectrogram", "input:f32 -> spectrogram:f32; window_size:int, stride:int, magnitude_squared:bool=false", sh_spectrogram, k_audio_spectrogram, 0},
    {"Mfcc",
     "spectrogram:f32, sample_rate:i32 -> output:f32; upper_frequency_limit:float=4000, lower_frequency_limit:float=20, "
     "filterbank_channel_count:int=40, dct_coefficient_count:int=13",
     sh_mfcc, k_mfcc, 0},
    {0},
};
