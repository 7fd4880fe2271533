/* Comparisons and logic: bool results. */
#include "ops/kern.h"

#include <math.h>

#define ARGS void *yy, const void *aa, const void *bb, int64_t n, int sa, int sb, int *bad, float p
#define CMP(op, T, W, tag, ...)                                                                                        \
    TRN_SIMD_##tag static void op##_##tag(ARGS)                                                                              \
    {                                                                                                                  \
        uint8_t *y = yy;                                                                                               \
        const T *aq = aa, *bq = bb;                                                                                    \
        (void)bad, (void)p;                                                                                            \
        if (sa && sb) {                                                                                                \
            TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
            {                                                                                                          \
                T a = aq[i], b = bq[i];                                                                                \
                y[i] = (__VA_ARGS__);                                                                                  \
            }                                                                                                          \
        } else if (sa) {                                                                                               \
            T b = *bq;                                                                                                 \
            TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
            {                                                                                                          \
                T a = aq[i];                                                                                           \
                y[i] = (__VA_ARGS__);                                                                                  \
            }                                                                                                          \
        } else {                                                                                                       \
            T a = *aq;                                                                                                 \
            TRN_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
            {                                                                                                          \
                T b = bq[i * sb];                                                                                      \
                y[i] = (__VA_ARGS__);                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }
#define EQ(op, T, W, tag, ...) CMP(op, T, W, tag, a == b)
#define NE(op, T, W, tag, ...) CMP(op, T, W, tag, a != b)
#define LT(op, T, W, tag, ...) CMP(op, T, W, tag, a < b)
#define LE(op, T, W, tag, ...) CMP(op, T, W, tag, a <= b)
TRN_EACH_INT(EQ, eq)
TRN_EACH_FLOAT(EQ, eq)
TRN_EACH_COMPLEX(EQ, eq)
TRN_EACH_INT(NE, ne)
TRN_EACH_FLOAT(NE, ne)
TRN_EACH_COMPLEX(NE, ne)
TRN_EACH_INT(LT, lt)
TRN_EACH_FLOAT(LT, lt)
TRN_EACH_INT(LE, le)
TRN_EACH_FLOAT(LE, le)
#define GT(op, T, W, tag, ...)                                                                                         \
    static void op##_##tag(ARGS) { lt_##tag(yy, bb, aa, n, sb, sa, bad, p); }
#define GE(op, T, W, tag, ...)                                                                                         \
    static void op##_##tag(ARGS) { le_##tag(yy, bb, aa, n, sb, sa, bad, p); }
TRN_EACH_INT(GT, gt)
TRN_EACH_FLOAT(GT, gt)
TRN_EACH_INT(GE, ge)
TRN_EACH_FLOAT(GE, ge)
CMP(land, uint8_t, , u8, a &b)
CMP(lor, uint8_t, , u8, a | b)
CMP(approx, float, , f32, fabsf(a - b) < p)
CMP(approx, double, , f64, fabs(a - b) < (double)p)

static void eq_str(ARGS)
{
    uint8_t *y = yy;
    const trn_str *a = aa, *b = bb;
    (void)bad, (void)p;
    for (int64_t i = 0; i < n; i++)
        y[i] = trn_str_eq(&a[i * sa], &b[i * sb]);
}
static void ne_str(ARGS)
{
    uint8_t *y = yy;
    const trn_str *a = aa, *b = bb;
    (void)bad, (void)p;
    for (int64_t i = 0; i < n; i++)
        y[i] = !trn_str_eq(&a[i * sa], &b[i * sb]);
}

#define OP(name, ...)                                                                                                  \
    static const trn_binary b_##name = {.f = {__VA_ARGS__}};                                                           \
    static trn_err k_##name(trn_kctx *k) { return trn_ew_binary_to(k, &b_##name, TRN_BOOL); }

/* Quantised numbers are equal when what is stored is. */
#define QUANT(op) [TRN_QINT8] = op##_i8, [TRN_QUINT8] = op##_u8, [TRN_QINT16] = op##_i16, [TRN_QUINT16] = op##_u16, [TRN_QINT32] = op##_i32
static const trn_binary b_eq = {.f = {TRN_TAB_INT(eq), TRN_TAB_FLOAT(eq), TRN_TAB_COMPLEX(eq), QUANT(eq), [TRN_BOOL] = eq_u8, [TRN_STRING] = eq_str}};
static const trn_binary b_ne = {.f = {TRN_TAB_INT(ne), TRN_TAB_FLOAT(ne), TRN_TAB_COMPLEX(ne), QUANT(ne), [TRN_BOOL] = ne_u8, [TRN_STRING] = ne_str}};

/* Shapes that do not broadcast are an answer, not an error, when the graph says so. */
static trn_err equality(trn_kctx *k, const trn_binary *b, bool when_incompatible)
{
    if (!trn_attr_bool(k->node, "incompatible_shape_error")) {
        trn_shape both; /* which may be too large: an error, and no answer */
        trn_err e = trn_sh_broadcast(&both, &trn_in(k, 0)->shape, &trn_in(k, 1)->shape);
        if (e) {
            trn_err_free(e);
            trn_shape s = trn_shape_scalar();
            trn_tensor *y;
            TRN_TRY(trn_out_new(&y, k, 0, TRN_BOOL, &s));
            TRN_DATA_MUT(y, uint8_t)[0] = when_incompatible;
            return TRN_OK;
        }
    }
    return trn_ew_binary_to(k, b, TRN_BOOL);
}
static trn_err k_eq(trn_kctx *k) { return equality(k, &b_eq, false); }
static trn_err k_ne(trn_kctx *k) { return equality(k, &b_ne, true); }
static trn_err sh_equality(trn_shctx *s)
{
    if (trn_attr_bool(s->node, "incompatible_shape_error"))
        return trn_sh_bcast(s);
    trn_err e = trn_sh_bcast(s);
    if (e || !trn_shape_is_full(&s->in[0]) || !trn_shape_is_full(&s->in[1]))
        s->out[0] = e && trn_shape_is_full(&s->in[0]) && trn_shape_is_full(&s->in[1]) ? trn_shape_scalar() : trn_shape_unknown();
    trn_err_free(e);
    return TRN_OK;
}
OP(lt, TRN_TAB_INT(lt), TRN_TAB_FLOAT(lt))
OP(le, TRN_TAB_INT(le), TRN_TAB_FLOAT(le))
OP(gt, TRN_TAB_INT(gt), TRN_TAB_FLOAT(gt))
OP(ge, TRN_TAB_INT(ge), TRN_TAB_FLOAT(ge))
OP(land, [TRN_BOOL] = land_u8)
OP(lor, [TRN_BOOL] = lor_u8)

static const trn_binary b_approx = {.f = {TRN_TAB_FLOAT(approx)}, .attr = "tolerance"};
static trn_err k_approx(trn_kctx *k)
{
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&trn_in(k, 0)->shape, &trn_in(k, 1)->shape), "x and y must be of the same shape: %s and %s",
                  trn_shape_text(ta, &trn_in(k, 0)->shape), trn_shape_text(tb, &trn_in(k, 1)->shape));
    return trn_ew_binary_to(k, &b_approx, TRN_BOOL);
}

#define ORDER "x:T, y:T -> z:bool; T:real"
#define EQUALITY "x:T, y:T -> z:bool; T:num|quant|bool|str, incompatible_shape_error:bool=true"

const trn_op trn_ops_compare[] = {
    {"Equal", EQUALITY, sh_equality, k_eq, 0},
    {"NotEqual", EQUALITY, sh_equality, k_ne, 0},
    {"Less", ORDER, trn_sh_bcast, k_lt, 0},
    {"LessEqual", ORDER, trn_sh_bcast, k_le, 0},
    {"Greater", ORDER, trn_sh_bcast, k_gt, 0},
    {"GreaterEqual", ORDER, trn_sh_bcast, k_ge, 0},
    {"LogicalAnd", "x:bool, y:bool -> z:bool", trn_sh_bcast, k_land, 0},
    {"LogicalOr", "x:bool, y:bool -> z:bool", trn_sh_bcast, k_lor, 0},
    {"ApproximateEqual", "x:T, y:T -> z:bool; T:f32|f64, tolerance:float=1e-05", trn_sh_merge, k_approx, 0},
    {0},
};
