/* StochasticCastToInt: real numbers to integers, up or down at random so that the mean is kept. TensorFlow's bits, for which it matters in what order its loops ask the generator:
 * a number that needs none takes none; but of float and double to int32 blocks of 8 go together, with as few samples as their instructions need. */
#include "op/cancel.h"
#include "ops/random.h"

/* Room for one call of the generator: 4 floats, or 2 doubles. */
typedef struct draw {
    double v[4];
    int n;
} draw;

static draw next(trn_philox *gen, trn_dtype t)
{
    uint32_t x[4];
    draw d = {.n = t == TRN_DOUBLE ? 2 : 4};
    trn_philox_next(gen, x);
    for (int i = 0; i < d.n; i++)
        switch (t) {
        case TRN_DOUBLE: d.v[i] = trn_philox_f64(x[2 * i], x[2 * i + 1]); break;
        case TRN_FLOAT: d.v[i] = (double)trn_philox_f32(x[i]); break;
        case TRN_HALF: d.v[i] = (x[i] & 0x3ff) * 0x1p-10; break;
        default: d.v[i] = (x[i] & 0x7f) * 0x1p-7;
        }
    return d;
}

/* v as the type stores it. */
static double rounded(double v, trn_dtype t)
{
    switch (t) {
    case TRN_DOUBLE: return v;
    case TRN_FLOAT: return (double)(float)v;
    case TRN_HALF: return (double)trn_half_to_f32(trn_half_from_f32((float)v));
    default: return (double)trn_bf16_to_f32(trn_bf16_from_f32((float)v));
    }
}

static double element(const trn_tensor *x, int64_t i)
{
    float f;
    switch (x->dtype) {
    case TRN_DOUBLE: return TRN_DATA(x, double)[i];
    case TRN_FLOAT: return (double)TRN_DATA(x, float)[i];
    default: trn_widen(&f, TRN_DATA(x, uint16_t) + i, x->dtype, 1); return (double)f;
    }
}

typedef struct range {
    double least, most; /* of the result, as the input's type has them */
    trn_dtype t;
} range;

/* block: one of eight that go together, which add in another order. */
static double moved(double v, double r, const range *g, bool block)
{
    if (v < 0)
        return floor(rounded(v + r, g->t));
    return floor(block ? rounded(v + rounded(1 - r, g->t), g->t) : rounded(rounded(v + 1, g->t) - r, g->t));
}

static bool settled(double *out, double v, const range *g)
{
    *out = isnan(v) ? 0 : v >= g->most ? g->most : v <= g->least ? g->least : v;
    return isnan(v) || v >= g->most || v <= g->least || floor(v) == v;
}

static void put(trn_tensor *y, int64_t i, double v)
{
    int32_t n = v >= -2147483648.0 && v < 2147483648.0 ? (int32_t)v : INT32_MIN; /* as the CPU converts */
    switch (y->dtype) {
    case TRN_INT8: TRN_DATA_MUT(y, int8_t)[i] = (int8_t)n; break;
    case TRN_INT16: TRN_DATA_MUT(y, int16_t)[i] = (int16_t)n; break;
    default: TRN_DATA_MUT(y, int32_t)[i] = n;
    }
}

static trn_err stochastic_cast(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_philox gen;
    TRN_TRY(trn_random_keyed(&gen, k, 1, 1));
    gen = trn_philox_seed(gen.lo, gen.key); /* the first word of the counter is the key here, and the key the counter */
    trn_dtype to = trn_attr_type(k->node, "Tout");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, to, &x->shape));
    double top = to == TRN_INT8 ? INT8_MAX : to == TRN_INT16 ? INT16_MAX : INT32_MAX;
    range g = {rounded(-top - 1, x->dtype), rounded(top, x->dtype), x->dtype};
    int64_t blocks = to == TRN_INT32 && (x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE) ? x->count / 8 : 0;
    for (int64_t i = 0; i < x->count; i++) {
        if (i % (1 << 20) == 0 && trn_k_cancel(k)) /* one generator, asked as often as the numbers say: in no more threads than one */
            TRN_TRY(trn_cancel_why(trn_k_cancel(k)));
        double v = element(x, i), w;
        if (i >= 8 * blocks) {
            if (!settled(&w, v, &g))
                w = moved(v, next(&gen, x->dtype).v[0], &g, false);
            put(y, i, w);
            continue;
        }
        int width = x->dtype == TRN_FLOAT ? 8 : 4;
        draw d = next(&gen, x->dtype);
        for (int j = 0; j < width; j++) {
            v = element(x, i + j);
            put(y, i + j, settled(&w, v, &g) ? w : moved(v, d.v[j % d.n], &g, true));
        }
        i += width - 1;
    }
    return TRN_OK;
}

const trn_op trn_ops_stochastic_cast[] = {
    {"StochasticCastToInt", "input:Tin, key:u64, counter:u64, alg:i32 -> output:Tout; Tin:float, Tout:i8|i16|i32", trn_sh_same, stochastic_cast, 0},
    {0},
};
