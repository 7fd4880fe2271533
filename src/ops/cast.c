/* Cast and Bitcast.
 *
 * Out of range floats become what x86's conversion gives (the lowest int32 or int64, narrower types by truncating that), which is what
 * TensorFlow's CPU kernels show; plain C leaves it undefined.
 */
#include "ops/kern.h"

#include <math.h>

static inline int32_t to_i32(double v) { return v > -2147483649.0 && v < 2147483648.0 ? (int32_t)v : INT32_MIN; }
static inline int64_t to_i64(double v) { return v >= -9223372036854775808.0 && v < 9223372036854775808.0 ? (int64_t)v : INT64_MIN; }
static inline uint32_t to_u32(double v)
{
    return v >= -9223372036854775808.0 && v < 9223372036854775808.0 ? (uint32_t)(uint64_t)(int64_t)v : UINT32_C(1) << 31;
}
static inline uint64_t to_u64(double v) { return v >= 0 && v < 18446744073709551616.0 ? (uint64_t)v : (uint64_t)to_i64(v); }

/* C(source suffix, source type, destination suffix, destination type, expression of v) */
#define C(s, S, d, D, ...)                                                                                             \
    static void cast_##s##_##d(void *yy, const void *xx, int64_t n)                                                    \
    {                                                                                                                  \
        D *y = yy;                                                                                                     \
        const S *x = xx;                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            S v = x[i];                                                                                                \
            y[i] = (D)(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
    }
#define FROM_INT(s, S)                                                                                                 \
    C(s, S, i8, int8_t, v)                                                                                             \
    C(s, S, i16, int16_t, v)                                                                                           \
    C(s, S, i32, int32_t, v)                                                                                           \
    C(s, S, i64, int64_t, v)                                                                                           \
    C(s, S, f32, float, v)                                                                                             \
    C(s, S, f64, double, v)                                                                                            \
    C(s, S, bool, uint8_t, v != 0)
/* Unsigned and signed of one size share their bits. */
#define FROM_FLOAT(s, S)                                                                                               \
    C(s, S, i8, int8_t, to_i32((double)v))                                                                             \
    C(s, S, i16, int16_t, to_i32((double)v))                                                                           \
    C(s, S, i32, int32_t, to_i32((double)v))                                                                           \
    C(s, S, i64, int64_t, to_i64((double)v))                                                                           \
    C(s, S, u32, uint32_t, to_u32((double)v))                                                                          \
    C(s, S, u64, uint64_t, to_u64((double)v))                                                                          \
    C(s, S, f32, float, v)                                                                                             \
    C(s, S, f64, double, v)                                                                                            \
    C(s, S, bool, uint8_t, v != 0)
FROM_INT(i8, int8_t)
FROM_INT(i16, int16_t)
FROM_INT(i32, int32_t)
FROM_INT(i64, int64_t)
FROM_INT(u8, uint8_t)
FROM_INT(u16, uint16_t)
FROM_INT(u32, uint32_t)
FROM_INT(u64, uint64_t)
FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)

typedef void (*cast_fn)(void *, const void *, int64_t);
#define TAB_INT(s)                                                                                                     \
    {                                                                                                                  \
        [TRN_INT8] = cast_##s##_i8, [TRN_INT16] = cast_##s##_i16, [TRN_INT32] = cast_##s##_i32, [TRN_INT64] = cast_##s##_i64, \
        [TRN_UINT8] = cast_##s##_i8, [TRN_UINT16] = cast_##s##_i16, [TRN_UINT32] = cast_##s##_i32,                     \
        [TRN_UINT64] = cast_##s##_i64, [TRN_FLOAT] = cast_##s##_f32, [TRN_DOUBLE] = cast_##s##_f64, [TRN_BOOL] = cast_##s##_bool \
    }
#define TAB_FLOAT(s)                                                                                                   \
    {                                                                                                                  \
        [TRN_INT8] = cast_##s##_i8, [TRN_INT16] = cast_##s##_i16, [TRN_INT32] = cast_##s##_i32, [TRN_INT64] = cast_##s##_i64, \
        [TRN_UINT8] = cast_##s##_i8, [TRN_UINT16] = cast_##s##_i16, [TRN_UINT32] = cast_##s##_u32,                     \
        [TRN_UINT64] = cast_##s##_u64, [TRN_FLOAT] = cast_##s##_f32, [TRN_DOUBLE] = cast_##s##_f64, [TRN_BOOL] = cast_##s##_bool \
    }
static const cast_fn casts[TRN_DTYPE_END][TRN_DTYPE_END] = {
    [TRN_INT8] = TAB_INT(i8),    [TRN_INT16] = TAB_INT(i16),   [TRN_INT32] = TAB_INT(i32),   [TRN_INT64] = TAB_INT(i64),
    [TRN_UINT8] = TAB_INT(u8),   [TRN_UINT16] = TAB_INT(u16),  [TRN_UINT32] = TAB_INT(u32),  [TRN_UINT64] = TAB_INT(u64),
    [TRN_BOOL] = TAB_INT(u8),    [TRN_FLOAT] = TAB_FLOAT(f32), [TRN_DOUBLE] = TAB_FLOAT(f64),
};

enum { BLOCK = 512 };

/* Quantized numbers are cast as the integers that they are stored as. */
static trn_dtype stored_as(trn_dtype t)
{
    switch (t) {
    case TRN_QINT8: return TRN_INT8;
    case TRN_QUINT8: return TRN_UINT8;
    case TRN_QINT16: return TRN_INT16;
    case TRN_QUINT16: return TRN_UINT16;
    case TRN_QINT32: return TRN_INT32;
    default: return t;
    }
}

/* ---- numbers of 8 bits ----------------------------------------------------------------------------------------------- */

typedef struct tiny {
    int mantissa, least; /* bits; exponent of the smallest normal number */
    uint8_t over, nan;   /* the first bits that are no number: what too large ones become */
} tiny;

static const tiny *tiny_of(trn_dtype t)
{
    static const tiny e5m2 = {2, -14, 0x7c, 0x7e}, e4m3fn = {3, -6, 0x7f, 0x7f};
    return t == TRN_FLOAT8_E5M2 ? &e5m2 : t == TRN_FLOAT8_E4M3FN ? &e4m3fn : NULL;
}

/* To the nearest, and to the even one of two. */
static uint8_t tiny_from(double v, const tiny *t)
{
    uint8_t sign = signbit(v) ? 0x80 : 0;
    double a = fabs(v);
    if (isnan(v))
        return sign | t->nan;
    if (a >= 65536) /* beyond all of them, infinity too */
        return sign | t->over;
    int e = a < ldexp(1, t->least) ? t->least : ilogb(a);
    int bits = ((e - t->least) << t->mantissa) + (int)nearbyint(ldexp(a, t->mantissa - e));
    return sign | (bits > t->over ? t->over : (uint8_t)bits);
}

static double tiny_to(uint8_t v, const tiny *t)
{
    int bits = v & 0x7f, e = bits >> t->mantissa, m = bits & ((1 << t->mantissa) - 1);
    double a = ldexp(e ? m + (1 << t->mantissa) : m, t->least - t->mantissa + (e ? e - 1 : 0));
    if (bits >= t->over)
        a = bits == t->over && t->over != t->nan ? (double)INFINITY : (double)NAN;
    return v & 0x80 ? -a : a;
}

/* Types without loops of their own pass through this one. */
static trn_dtype core(trn_dtype t)
{
    switch (t) {
    case TRN_HALF:
    case TRN_BFLOAT16:
    case TRN_COMPLEX64: return TRN_FLOAT;
    case TRN_COMPLEX128:
    case TRN_FLOAT8_E5M2:
    case TRN_FLOAT8_E4M3FN: return TRN_DOUBLE;
    default: return t;
    }
}

typedef struct cast_job {
    const trn_tensor *x;
    trn_tensor *y;
    int drop; /* mantissa bits to cut off before a narrowing (Truncate) */
} cast_job;

static void cut_mantissa(void *x, trn_dtype t, int64_t n, int drop)
{
    if (t == TRN_FLOAT)
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)x)[i] &= ~UINT32_C(0) << drop;
    else
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)x)[i] &= ~UINT64_C(0) << drop;
}

static void cast_part(void *arg, int64_t lo, int64_t hi)
{
    const cast_job *j = arg;
    trn_dtype sx = stored_as(j->x->dtype), sy = stored_as(j->y->dtype), cx = core(sx), cy = core(sy);
    size_t xs = trn_dtype_size(sx), ys = trn_dtype_size(sy);
    const char *x = (const char *)j->x->data;
    char *y = (char *)j->y->data;
    cast_fn f = casts[cx][cy];
    if (cx == sx && cy == sy && !j->drop) {
        f(y + (size_t)lo * ys, x + (size_t)lo * xs, hi - lo);
        return;
    }
    union {
        double d[BLOCK];
        float f[BLOCK];
    } in, out;
    for (int64_t i = lo; i < hi; i += BLOCK) {
        int64_t n = TRN_MIN((int64_t)BLOCK, hi - i);
        const void *a = x + (size_t)i * xs;
        char *b = y + (size_t)i * ys;
        if (trn_is_half(sx))
            trn_widen(in.f, a, sx, n), a = in.f;
        else if (sx == TRN_COMPLEX64)
            for (int64_t q = 0; q < n; q++)
                in.f[q] = ((const float *)a)[2 * q];
        else if (sx == TRN_COMPLEX128)
            for (int64_t q = 0; q < n; q++)
                in.d[q] = ((const double *)a)[2 * q];
        else if (tiny_of(sx))
            for (int64_t q = 0; q < n; q++)
                in.d[q] = tiny_to(((const uint8_t *)a)[q], tiny_of(sx));
        else if (j->drop)
            memcpy(&in, a, (size_t)n * xs);
        if (cx != sx || j->drop)
            a = &in;
        if (j->drop)
            cut_mantissa(&in, cx, n, j->drop);
        if (cy == sy) {
            f(b, a, n);
            continue;
        }
        f(&out, a, n);
        if (trn_is_half(sy)) {
            trn_narrow(b, out.f, sy, n);
        } else if (tiny_of(sy)) {
            for (int64_t q = 0; q < n; q++)
                ((uint8_t *)b)[q] = tiny_from(out.d[q], tiny_of(sy));
        } else if (sy == TRN_COMPLEX64) {
            for (int64_t q = 0; q < n; q++)
                ((float *)b)[2 * q] = out.f[q], ((float *)b)[2 * q + 1] = 0;
        } else {
            for (int64_t q = 0; q < n; q++)
                ((double *)b)[2 * q] = out.d[q], ((double *)b)[2 * q + 1] = 0;
        }
    }
}

static int mantissa_bits(trn_dtype t) { return t == TRN_HALF ? 10 : t == TRN_BFLOAT16 ? 7 : t == TRN_FLOAT ? 23 : t == TRN_DOUBLE ? 52 : 0; }

static trn_err k_cast(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype to = trn_attr_type(k->node, "DstT");
    if (to == x->dtype) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    bool to_tiny = !tiny_of(to) || tiny_of(x->dtype) || x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE || trn_is_half(x->dtype); /* from others TensorFlow has none, either */
    if (!to_tiny || !casts[core(stored_as(x->dtype))][core(stored_as(to))])
        return trn_errorf(TRN_UNIMPLEMENTED, "Cast %s to %s is not supported", trn_dtype_name(x->dtype), trn_dtype_name(to));
    cast_job j = {.x = x};
    TRN_TRY(trn_out_new(&j.y, k, 0, to, &x->shape));
    int mx = mantissa_bits(x->dtype), my = mantissa_bits(to);
    if (trn_attr_bool(k->node, "Truncate") && my && mx > my && (x->dtype == TRN_FLOAT || (x->dtype == TRN_DOUBLE && to != TRN_BFLOAT16)))
        j.drop = mx - my;
    bool cx = x->dtype == TRN_COMPLEX64 || x->dtype == TRN_COMPLEX128, cy = to == TRN_COMPLEX64 || to == TRN_COMPLEX128;
    if (cx && cy) { /* the parts are cast like a tensor of twice as many */
        bool wide = x->dtype == TRN_COMPLEX128;
        casts[wide ? TRN_DOUBLE : TRN_FLOAT][wide ? TRN_FLOAT : TRN_DOUBLE](j.y->data, x->data, 2 * x->count);
        return TRN_OK;
    }
    enum { GRAIN = 65536 };
    if (x->count < 2 * GRAIN)
        cast_part(&j, 0, x->count);
    else
        trn_k_for(k, x->count, GRAIN, cast_part, &j);
    return TRN_OK;
}

/* ---- Bitcast ------------------------------------------------------------------------------------------------------- */

static trn_err bitcast_shape(trn_shape *out, const trn_shape *in, size_t from, size_t to)
{
    *out = *in;
    if (from > to) {
        TRN_CHECK_ARG(in->rank < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
        out->dim[out->rank++] = (int64_t)(from / to);
    } else if (from < to) {
        char t[TRN_SHAPE_TEXT];
        int64_t ratio = (int64_t)(to / from);
        TRN_CHECK_ARG(in->rank > 0 && (in->dim[in->rank - 1] == ratio || in->dim[in->rank - 1] < 0),
                      "Cannot bitcast from %zu to %zu bytes: last dimension of %s is not %lld", from, to, trn_shape_text(t, in), (long long)ratio);
        out->rank--;
    }
    return TRN_OK;
}

static trn_err k_bitcast(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_dtype to = trn_attr_type(k->node, "type");
    size_t a = trn_dtype_size(x->dtype), b = trn_dtype_size(to);
    trn_shape s;
    TRN_TRY(bitcast_shape(&s, &x->shape, a, b));
    trn_tensor *y;
    if ((uintptr_t)x->data % TRN_MIN(b, (size_t)8) == 0) {
        TRN_TRY(trn_tensor_bitcast(&y, x, to, &s));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, to, &s)); /* a piece of a larger tensor that is not aligned for the wider type */
    memcpy(y->data, x->data, trn_tensor_bytes(x));
    return TRN_OK;
}
static trn_err sh_bitcast(trn_shctx *s)
{
    s->out[0] = trn_shape_unknown();
    if (s->in[0].rank < 0)
        return TRN_OK;
    return bitcast_shape(&s->out[0], &s->in[0], trn_dtype_size(trn_attr_type(s->node, "T")), trn_dtype_size(trn_attr_type(s->node, "type")));
}

const trn_op trn_ops_cast[] = {
    {"Cast", "x:SrcT -> y:DstT; SrcT:any, DstT:any, Truncate:bool=false", trn_sh_same, k_cast, 0},
    {"Bitcast", "input:T -> output:type; T:num|quant, type:num|quant", sh_bitcast, k_bitcast, TRN_OP_CHEAP},
    {0},
};
