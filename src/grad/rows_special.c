/* Gradients of special functions and of what is seldom asked for in arithmetic. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

/* x where it is not zero is one, else zero: what 0 · log(0) = 0 has for a derivative. */
#define NOT_ZERO "(SelectV2 (NotEqual x (ZerosLike x)) (OnesLike x) (ZerosLike x))"
#define GAMMA_X "(Exp (Sub (Sub (Mul (Sub x 1) (Log y)) y) (Lgamma x)))"

static void betainc(trn_grad_ctx *c)
{
    trn_out log_beta = TRN_GE(c, "(Sub (AddV2 (Lgamma x) (Lgamma y)) (Lgamma (AddV2 x y)))");
    trn_out p = TRN_GE(c, "(Exp (Sub (AddV2 (Mul (Sub y 1) (Log1p (Neg z))) (Mul (Sub x 1) (Log z))) $0))", log_beta);
    trn_grad_set(c, 2, TRN_GE(c, "(SumTo (Mul d $0) z)", p));
}

static void euclidean_norm(trn_grad_ctx *c)
{
    trn_out kept = trn_g_kept_shape(c, IN(0), IN(1));
    trn_grad_set(c, 0, TRN_GE(c, "(Mul (Reshape d $0) (RealDiv x (Reshape o $0)))", kept));
}

/* In logarithms, what is positive and what is negative each for itself. */
static void cumulative_logsumexp(trn_grad_ctx *c)
{
    trn_attr a[] = {trn_attr__bool("exclusive", trn_attr_bool(c->n, "exclusive")), trn_attr__bool("reverse", !trn_attr_bool(c->n, "reverse"))};
    trn_dtype t = trn_g_type(c, IN(0));
    trn_out low = trn_g_num(c, t, t == TRN_DOUBLE ? -1.7976931348623157e308 : t == TRN_HALF ? -65504.0 : -3.4028234e38), part[2];
    for (int i = 0; i < 2; i++) {
        trn_out d = i ? TRN_GE(c, "(Neg d)") : trn_grad_dy(c, 0);
        trn_out l = TRN_GE(c, "(SelectV2 (Greater $0 (ZerosLike $0)) (Log $0) $1)", d, low);
        trn_out s = trn_g_node(c, "CumulativeLogsumexp", TRN_OUTS(TRN_GE(c, "(Sub $0 o)", l), IN(1)), a, 2);
        part[i] = TRN_GE(c, "(Exp (AddV2 $0 x))", s);
    }
    trn_grad_set(c, 0, TRN_G(c, "Sub", part[0], part[1]));
}

static void clip_by_value(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0), zero = trn_g_num(c, trn_g_type(c, d), 0), low = TRN_GE(c, "(Less x y)"), high = TRN_GE(c, "(Greater x z)");
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_GE(c, "(SelectV2 (LogicalOr $0 $1) $2 d)", low, high, zero));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, trn_g_sum_to(c, TRN_G(c, "SelectV2", low, d, zero), IN(1), d));
    if (trn_grad_wanted(c, 2))
        trn_grad_set(c, 2, trn_g_sum_to(c, TRN_G(c, "SelectV2", high, d, zero), IN(2), d));
}

static void to_all(trn_grad_ctx *c)
{
    for (int i = 0; i < c->n->n_in; i++)
        trn_grad_set_any(c, i, trn_grad_dy_any(c, 0));
}

/* How a sample moves with its parameter when its rank among all samples stays: samples end with the shape of alpha, the last input. */
static void random_gamma(trn_grad_ctx *c)
{
    int last = c->n->n_in - 1;
    trn_out a = IN(last), lead = TRN_GE(c, "(Sub (Rank o) (Rank $0))", a);
    trn_out alpha = TRN_GE(c, "(Reshape $0 (ConcatV2 (Fill (Reshape $1 #[1]) #1) (Shape $0) #0))", a, lead);
    trn_grad_set(c, last, TRN_GE(c, "(Sum (Mul d (RandomGammaGrad $0 o)) (Range #0 $1 #1))", alpha, lead));
}

/* The same between bounds: with P the share of the samples below one, which is kept away from 0 and 1. Samples end with the shape of the parameters. */
static void truncated_normal(trn_grad_ctx *c)
{
#define BELOW(x) "(Mul 0.5 (Erfc (Mul -0.7071067811865476 " x ")))"
#define MOVES(bound, share) "(SumTo (Mul d (Exp (AddV2 (Mul 0.5 (Sub (Square $0) (Square " bound "))) " share "))) $3)"
    trn_dtype t = trn_g_type(c, IN(2));
    trn_out x = TRN_GE(c, "(RealDiv (Sub o $0) $1)", IN(2), IN(3)), lo = TRN_GE(c, "(RealDiv (Sub $0 $1) $2)", IN(4), IN(2), IN(3)),
            hi = TRN_GE(c, "(RealDiv (Sub $0 $1) $2)", IN(5), IN(2), IN(3));
    trn_grad_set(c, 2, TRN_GE(c, "(SumTo d $0)", IN(2)));
    trn_grad_set(c, 3, TRN_GE(c, "(SumTo (Mul d $0) $1)", x, IN(3)));
    if (!trn_grad_wanted(c, 4) && !trn_grad_wanted(c, 5))
        return;
    trn_out least = trn_g_num(c, t, t == TRN_DOUBLE ? 2.2250738585072014e-308 : 1.17549435e-38), most = trn_g_num(c, t, 1 - (t == TRN_DOUBLE ? 2.220446049250313e-16 : 1.1920929e-07));
    trn_out share = TRN_GE(c, "(RealDiv (Sub " BELOW("$0") " " BELOW("$1") ") (Sub " BELOW("$2") " " BELOW("$1") "))", x, lo, hi);
    share = TRN_GE(c, "(Maximum (Minimum $0 $1) $2)", share, most, least);
    trn_grad_set(c, 4, TRN_GE(c, MOVES("$1", "(Log1p (Neg $2))"), x, lo, share, IN(4)));
    trn_grad_set(c, 5, TRN_GE(c, MOVES("$1", "(Log $2)"), x, hi, share, IN(5)));
}

const trn_grad_row trn_grads_special[] = {
    {"AccumulateNV2", .fn = to_all},
    {"BesselI0", {"(Mul d (BesselI1 x))"}},
    {"BesselI0e", {"(Mul d (Sub (BesselI1e x) (Mul (Sign x) o)))"}},
    {"BesselI1", {"(Mul d (SelectV2 (Equal x (ZerosLike x)) 1 (Sub (BesselI0 x) (RealDiv o x))))"}},
    {"BesselI1e", {"(Mul d (SelectV2 (Equal x (ZerosLike x)) 0.5 (Sub (BesselI0e x) (Mul o (AddV2 (Sign x) (Reciprocal x))))))"}},
    {"BesselJ0", {"(Neg (Mul d (BesselJ1 x)))"}},
    {"BesselJ1", {"(Mul d (SelectV2 (Equal x (ZerosLike x)) 0.5 (Sub (BesselJ0 x) (RealDiv o x))))"}},
    {"BesselK0", {"(Neg (Mul d (BesselK1 x)))"}},
    {"BesselK0e", {"(Mul d (Sub o (BesselK1e x)))"}},
    {"BesselK1", {"(Neg (Mul d (AddV2 (BesselK0 x) (RealDiv o x))))"}},
    {"BesselK1e", {"(Mul d (Sub (Mul o (Sub 1 (Reciprocal x))) (BesselK0e x)))"}},
    {"BesselY0", {"(Neg (Mul d (BesselY1 x)))"}},
    {"BesselY1", {"(Mul d (Sub (BesselY0 x) (RealDiv o x)))"}},
    {"Betainc", .fn = betainc},
    {"ClipByValue", .fn = clip_by_value},
    {"Cross", {"(Cross y d)", "(Cross d x)"}},
    {"CumulativeLogsumexp", .fn = cumulative_logsumexp},
    {"Dawsn", {"(Mul d (Sub 1 (Mul 2 (Mul x o))))"}},
    {"Digamma", {"(Mul d (Polygamma (OnesLike x) x))"}},
    {"Erfc", {"(Mul d (Mul -1.1283791670955126 (Exp (Neg (Square x)))))"}},
    {"Erfinv", {"(Mul d (Mul 0.886226925452758 (Exp (Square o))))"}},
    {"EuclideanNorm", .fn = euclidean_norm},
    {"Expint", {"(Mul d (RealDiv (Exp x) x))"}},
    {"FresnelCos", {"(Mul d (Cos (Mul 1.5707963267948966 (Square x))))"}},
    {"FresnelSin", {"(Mul d (Sin (Mul 1.5707963267948966 (Square x))))"}},
    {"Igamma", {"(Mul d (IgammaGradA x y))", "(Mul d " GAMMA_X ")"}, TRN_GRAD_SPREADS},
    {"Igammac", {"(Neg (Mul d (IgammaGradA x y)))", "(Neg (Mul d " GAMMA_X "))"}, TRN_GRAD_SPREADS},
    {"Ndtri", {"(Mul d (Mul 2.5066282746310002 (Exp (Mul 0.5 (Square o)))))"}},
    {"NextAfter", {"d", NULL}, TRN_GRAD_SPREADS},
    {"Polygamma", {NULL, "(Mul d (Polygamma (AddV2 x 1) y))"}, TRN_GRAD_SPREADS},
    {"RandomGamma", .fn = random_gamma},
    {"StatelessParameterizedTruncatedNormal", .fn = truncated_normal},
    {"StatelessRandomGammaV2", .fn = random_gamma},
    {"StatelessRandomGammaV3", .fn = random_gamma},
    {"Spence", {"(Mul d (SelectV2 (Equal x (OnesLike x)) -1 (RealDiv (Log x) (Sub 1 x))))"}},
    {"Xdivy", {"(Mul d (Xdivy " NOT_ZERO " y))", "(Mul d (Xdivy (Neg x) (Square y)))"}, TRN_GRAD_SPREADS},
    {"Xlog1py", {"(Mul d (Xlog1py " NOT_ZERO " y))", "(Mul d (Xdivy x (AddV2 y 1)))"}, TRN_GRAD_SPREADS},
    {"Xlogy", {"(Mul d (Xlogy " NOT_ZERO " y))", "(Mul d (Xdivy x y))"}, TRN_GRAD_SPREADS},
    {"Zeta", {NULL, "(Neg (Mul d (Mul x (Zeta (AddV2 x 1) y))))"}, TRN_GRAD_SPREADS},
    {0},
};
