/* Numbers as whole ones of 8, 16 or 32 bits and back: QuantizeV2, Dequantize. The input is [outer, channels, inner]; without an axis there is one channel. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ops/kern.h"

typedef enum { MIN_COMBINED, MIN_FIRST, SCALED } q_mode;

/* y = round(clamp(x) * scale + ...) and back, in the order of TensorFlow's operations: the last bit decides which whole number it is. */
typedef struct grid {
    float lo, hi;       /* of what is quantized */
    float scale, shift; /* MIN_COMBINED: half of the range of whole numbers; MIN_FIRST: what is taken off behind rounding */
    float floor;        /* Dequantize: what 0 becomes */
} grid;

typedef struct q_job {
    q_mode mode;
    bool even, has_sign; /* even: halves to even, else away from zero */
    int64_t channels, inner;
    float least, most; /* whole numbers */
    grid *grids;
    const void *x;
    void *y;
} q_job;

static float clamp(float v, float lo, float hi)
{
    v = hi < v ? hi : v;
    return v < lo ? lo : v;
}
/* What does not fit (2^31, NaN) becomes what x86's conversion makes of it. */
static int32_t whole(float v) { return v > -2147483904.0f && v < 2147483648.0f ? (int32_t)v : INT32_MIN; }

static float level(const q_job *j, const grid *g, float x)
{
    switch (j->mode) {
    case MIN_COMBINED: {
        float v = (clamp(x, g->lo, g->hi) - g->lo) * g->scale;
        return j->has_sign ? roundf(v - g->shift) : v + 0.5f; /* the latter is cut off */
    }
    case MIN_FIRST: return clamp(roundf(x * g->scale) - g->shift, j->least, j->most);
    default: {
        float v = clamp(x, g->lo, g->hi) * g->scale;
        return j->even ? rintf(v) : roundf(v);
    }
    }
}

#define EACH_Q(X) X(int8_t, TRN_QINT8, i8) X(uint8_t, TRN_QUINT8, u8) X(int16_t, TRN_QINT16, i16) X(uint16_t, TRN_QUINT16, u16) X(int32_t, TRN_QINT32, i32)
#define LOOPS(T, dtype, tag)                                                                                           \
    static void quantize_##tag(void *arg, int64_t lo, int64_t hi)                                                      \
    {                                                                                                                  \
        const q_job *j = arg;                                                                                          \
        for (int64_t i = lo; i < hi; i++)                                                                              \
            ((T *)j->y)[i] = (T)whole(level(j, &j->grids[i / j->inner % j->channels], ((const float *)j->x)[i]));      \
    }                                                                                                                  \
    static void dequantize_##tag(void *arg, int64_t lo, int64_t hi)                                                    \
    {                                                                                                                  \
        const q_job *j = arg;                                                                                          \
        for (int64_t i = lo; i < hi; i++) {                                                                            \
            const grid *g = &j->grids[i / j->inner % j->channels];                                                     \
            float v = (float)((const T *)j->x)[i];                                                                     \
            ((float *)j->y)[i] = j->mode == MIN_COMBINED ? (v + g->shift) * g->scale + g->floor : j->mode == MIN_FIRST ? g->floor + v * g->scale : v * g->scale; \
        }                                                                                                              \
    }
EACH_Q(LOOPS)
#define QUANTIZE_ROW(T, dtype, tag) [dtype] = quantize_##tag,
#define DEQUANTIZE_ROW(T, dtype, tag) [dtype] = dequantize_##tag,
static void (*const quantize_of[TRN_DTYPE_END])(void *, int64_t, int64_t) = {EACH_Q(QUANTIZE_ROW)};
static void (*const dequantize_of[TRN_DTYPE_END])(void *, int64_t, int64_t) = {EACH_Q(DEQUANTIZE_ROW)};

/* The least and greatest whole number. */
static void limits(q_job *j, trn_dtype t)
{
    int bits = (int)trn_dtype_size(t) * 8;
    j->has_sign = t != TRN_QUINT8 && t != TRN_QUINT16;
    j->least = j->has_sign ? -ldexpf(1, bits - 1) : 0;
    j->most = (float)(ldexp(1, j->has_sign ? bits - 1 : bits) - 1); /* 32 bits: rounded up */
}

static trn_err q_begin(q_job *j, const trn_kctx *k, trn_dtype t)
{
    const char *mode = trn_attr_str(k->node, "mode");
    const trn_shape *s = &trn_in(k, 0)->shape;
    int64_t axis = trn_attr_int(k->node, "axis");
    j->mode = !strcmp(mode, "MIN_FIRST") ? MIN_FIRST : !strcmp(mode, "SCALED") ? SCALED : MIN_COMBINED;
    limits(j, t);
    TRN_CHECK_ARG(axis < s->rank || axis < 0, "Axis must be less than input dimension(%d), got %lld", s->rank, (long long)axis);
    j->channels = axis < 0 ? 1 : s->dim[axis];
    j->inner = axis < 0 ? TRN_MAX(trn_in(k, 0)->count, (int64_t)1) : 1;
    for (int i = (int)axis + 1; axis >= 0 && i < s->rank; i++)
        j->inner = trn_times(j->inner, s->dim[i]);
    for (int i = 1; i < 3; i++) {
        const trn_tensor *e = trn_in(k, i);
        TRN_CHECK_ARG(e->count == j->channels, "%s must have as many elements as input on the dequantization axis (%lld), got %lld, expected %lld",
                      i == 1 ? "min_range" : "max_range",
                      (long long)axis, (long long)e->count, (long long)j->channels);
    }
    return TRN_OK;
}
static trn_err q_grids(q_job *j, const char *op)
{
    if (j->channels != 1 && j->mode == MIN_FIRST)
        return trn_errorf(TRN_UNIMPLEMENTED, "MIN_FIRST mode is not implemented for %s with axis != -1.", op);
    j->grids = calloc((size_t)j->channels + 1, sizeof *j->grids);
    return j->grids ? TRN_OK : trn_err_oom();
}

/* Range and steps of one channel. lo and hi are widened to hold zero and to be apart. */
static void quantizer(const q_job *j, grid *g, float *out_lo, float *out_hi, float apart, bool narrow, int bits)
{
    float in_lo = g->lo, in_hi = g->hi, big = fmaxf(1, fmaxf(fabsf(in_lo), fabsf(in_hi)));
    g->lo = in_lo < 0 ? in_lo : 0;
    float next = g->lo + big * apart;
    g->hi = in_hi < next ? next : in_hi;
    g->hi = 0 < g->hi ? g->hi : 0;
    double steps = ldexp(1, bits) - 1;
    if (j->mode == MIN_COMBINED) {
        g->scale = (float)(steps / (double)(g->hi - g->lo));
        g->shift = ldexpf(1, bits - 1);
    } else if (j->mode == MIN_FIRST) {
        g->scale = g->hi == g->lo ? 0 : (float)(steps / (double)(g->hi - g->lo));
        g->shift = roundf(g->lo * g->scale) - j->least;
    } else {
        float least = j->least + (narrow ? 1 : 0), most = j->most;
        float low = least * g->lo > 0 ? least / g->lo : FLT_MAX, high = most * g->hi > 0 ? most / g->hi : FLT_MAX;
        g->scale = high < low ? high : low;
        g->lo = least / g->scale;
        g->hi = most / g->scale;
    }
    *out_lo = g->lo;
    *out_hi = g->hi;
}

static trn_err quantize(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype t = trn_attr_type(k->node, "T");
    q_job j = {.even = !strcmp(trn_attr_str(k->node, "round_mode"), "HALF_TO_EVEN"), .x = x->data};
    TRN_CHECK_ARG(!j.even || !strcmp(trn_attr_str(k->node, "mode"), "SCALED"),
                  "Round mode 'HALF_TO_EVEN' only supported for mode 'SCALED', but mode is '%s'.", trn_attr_str(k->node, "mode"));
    TRN_TRY(q_begin(&j, k, t));
    for (int i = 1; i < 3 && trn_attr_int(k->node, "axis") >= 0; i++)
        TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 1, "If axis is specified, min_range and max_range must be 1-D tensors, but one is %d-D", trn_in(k, i)->shape.rank);
    for (int64_t c = 0; c < j.channels; c++)
        TRN_CHECK_ARG(!(TRN_DATA(trn_in(k, 2), float)[c] < TRN_DATA(trn_in(k, 1), float)[c]), "input_max_range must be larger than input_min_range.");
    trn_shape one = trn_shape_scalar();
    const trn_shape *s = j.channels == 1 ? &one : &trn_in(k, 1)->shape;
    trn_tensor *y, *lo, *hi;
    TRN_TRY(trn_out_new(&y, k, 0, t, &x->shape));
    TRN_TRY(trn_out_new(&lo, k, 1, TRN_FLOAT, s));
    TRN_TRY(trn_out_new(&hi, k, 2, TRN_FLOAT, s));
    TRN_TRY(q_grids(&j, "Quantize"));
    for (int64_t c = 0; c < j.channels; c++) {
        j.grids[c].lo = TRN_DATA(trn_in(k, 1), float)[c];
        j.grids[c].hi = TRN_DATA(trn_in(k, 2), float)[c];
        quantizer(&j, &j.grids[c], TRN_DATA_MUT(lo, float) + c, TRN_DATA_MUT(hi, float) + c, trn_attr_float(k->node, "ensure_minimum_range"),
                  trn_attr_bool(k->node, "narrow_range"),
                  (int)trn_dtype_size(t) * 8);
    }
    if (j.mode == MIN_FIRST)
        j.most = fminf(j.most, 2147483520.0f);
    j.y = y->data;
    trn_k_for(k, y->count, 8192, quantize_of[t], &j);
    free(j.grids);
    return TRN_OK;
}

static trn_err dequantize(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype to = trn_attr_type(k->node, "dtype");
    q_job j = {.x = x->data};
    TRN_TRY(q_begin(&j, k, x->dtype));
    TRN_CHECK_ARG(to == TRN_FLOAT || j.mode == MIN_COMBINED, "When output type is bfloat16, Mode string must be 'MIN_COMBINED', is '%s'",
                  trn_attr_str(k->node, "mode"));
    trn_tensor *y, *wide = NULL;
    TRN_TRY(trn_out_new(&y, k, 0, to, &x->shape));
    TRN_TRY(q_grids(&j, "Dequantize"));
    double steps = ldexp(1, (int)trn_dtype_size(x->dtype) * 8) - 1;
    for (int64_t c = 0; c < j.channels; c++) {
        grid *g = &j.grids[c];
        float lo = TRN_DATA(trn_in(k, 1), float)[c], hi = TRN_DATA(trn_in(k, 2), float)[c];
        if (j.mode == MIN_COMBINED) {
            g->scale = (hi - lo) / (j.most - j.least);
            g->shift = j.has_sign ? (j.most - j.least + 1) / 2 : 0;
            g->floor = lo;
        } else if (j.mode == MIN_FIRST) {
            g->scale = (float)((double)(hi - lo) / steps);
            g->floor = (hi == lo ? lo : roundf(lo / g->scale) * g->scale) - j.least * g->scale;
        } else {
            float low = lo / (j.least + (trn_attr_bool(k->node, "narrow_range") ? 1 : 0)), high = hi / j.most;
            g->scale = !j.has_sign ? high : low < high ? high : low;
        }
    }
    trn_err e = to == TRN_FLOAT ? TRN_OK : trn_tensor_new(&wide, TRN_FLOAT, &x->shape);
    if (!e) {
        j.y = wide ? wide->data : y->data;
        trn_k_for(k, y->count, 8192, dequantize_of[x->dtype], &j);
        if (wide)
            trn_narrow(y->data, wide->data, to, y->count);
    }
    trn_tensor_unref(wide);
    free(j.grids);
    return e;
}

static trn_err sh_quantize(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (trn_attr_int(s->node, "axis") == -1)
        s->out[1] = s->out[2] = trn_shape_scalar();
    return TRN_OK;
}

const trn_op trn_ops_quantize[] = {
    {"QuantizeV2",
     "input:f32, min_range:f32, max_range:f32 -> output:T, output_min:f32, output_max:f32; T:quant, mode:{MIN_COMBINED,MIN_FIRST,SCALED}=MIN_COMBINED, "
     "round_mode:{HALF_AWAY_FROM_ZERO,HALF_TO_EVEN}=HALF_AWAY_FROM_ZERO, narrow_range:bool=false, axis:int=-1, ensure_minimum_range:float=0.01",
     sh_quantize, quantize, 0},
    {"Dequantize",
     "input:T, min_range:f32, max_range:f32 -> output:dtype; T:quant, mode:{MIN_COMBINED,MIN_FIRST,SCALED}=MIN_COMBINED, narrow_range:bool=false, axis:int=-1, dtype:bf16|f32=f32",
     trn_sh_same, dequantize, 0},
    {0},
};
