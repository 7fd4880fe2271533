/* Gradients of arithmetic, reductions and products of matrices. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)
#define OUT(i) trn_grad_out(c, i)

static void add_n(trn_grad_ctx *c)
{
    for (int i = 0; i < c->n->n_in; i++)
        trn_grad_set_any(c, i, trn_grad_dy_any(c, 0));
}

/* ---- products of matrices */

static trn_out product(trn_grad_ctx *c, trn_out a, trn_out b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__bool("transpose_a", ta), trn_attr__bool("transpose_b", tb)};
    return trn_g_node(c, "MatMul", TRN_OUTS(a, b), at, 2);
}

static void mat_mul(trn_grad_ctx *c)
{
    bool ta = trn_attr_bool(c->n, "transpose_a"), tb = trn_attr_bool(c->n, "transpose_b");
    trn_out d = trn_grad_dy(c, 0);
    if (trn_grad_wanted(c, 0)) {
        trn_out b = TRN_GE(c, "(Conj y)");
        trn_grad_set(c, 0, ta ? product(c, b, d, tb, true) : product(c, d, b, false, !tb));
    }
    if (trn_grad_wanted(c, 1)) {
        trn_out a = TRN_GE(c, "(Conj x)");
        trn_grad_set(c, 1, tb ? product(c, d, a, true, ta) : product(c, a, d, !ta, false));
    }
}

static trn_out products(trn_grad_ctx *c, trn_out a, trn_out b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__bool("adj_x", ta), trn_attr__bool("adj_y", tb)};
    return trn_g_node(c, "BatchMatMulV2", TRN_OUTS(a, b), at, 2);
}

/* Products of many matrices; the leading dimensions of one may be spread over those of the other. */
static void batch_mat_mul(trn_grad_ctx *c)
{
    bool ta = trn_attr_bool(c->n, "adj_x"), tb = trn_attr_bool(c->n, "adj_y");
    trn_out a = IN(0), b = IN(1), d = trn_grad_dy(c, 0), dx[2] = {TRN_NONE, TRN_NONE}, lead[2], r = TRN_NONE;
    trn_shape s[2] = {trn_g_shape(c, a), trn_g_shape(c, b)};
    bool equal = s[0].rank >= 0 && s[0].rank == s[1].rank;
    for (int i = 0; i + 2 < s[0].rank && s[1].rank == s[0].rank && equal; i++)
        equal = s[0].dim[i] == s[1].dim[i] && s[0].dim[i] >= 0;
    equal |= strcmp(c->n->op, "BatchMatMul") == 0; /* does not broadcast */
    if (trn_grad_wanted(c, 0))
        dx[0] = trn_g_cast(c, ta ? products(c, b, d, tb, true) : products(c, d, b, false, !tb), trn_g_type(c, a));
    if (trn_grad_wanted(c, 1))
        dx[1] = trn_g_cast(c, tb ? products(c, d, a, true, ta) : products(c, a, d, !ta, false), trn_g_type(c, b));
    if (!equal) {
        for (int i = 0; i < 2; i++)
            lead[i] = TRN_GE(c, "(StridedSlice $0 #[0] #[-2] #[1])", trn_g_shape_of(c, IN(i)));
        r = TRN_G(c, "BroadcastGradientArgs", lead[0], lead[1]);
    }
    for (int i = 0; i < 2; i++) {
        if (!trn_out_is(dx[i]))
            continue;
        if (!equal)
            dx[i] = trn_g_reshape(c, TRN_G(c, "Sum", dx[i], trn_out_nth(r, i)), trn_g_shape_of(c, IN(i)));
        trn_grad_set(c, i, dx[i]);
    }
}

/* ---- reductions */

static trn_out spread_back(trn_grad_ctx *c, trn_out d)
{
    trn_shape s = trn_g_shape(c, d);
    if (s.rank != 0)
        d = trn_g_reshape(c, d, trn_g_kept_shape(c, IN(0), IN(1)));
    return TRN_G(c, "BroadcastTo", d, trn_g_shape_of(c, IN(0)));
}

static void sum(trn_grad_ctx *c) { trn_grad_set(c, 0, spread_back(c, trn_grad_dy(c, 0))); }

/* How many numbers each mean was taken of. */
static trn_out count_of(trn_grad_ctx *c, trn_dtype t)
{
    trn_shape s = trn_g_shape(c, IN(0));
    int64_t axes[TRN_MAX_RANK];
    int n;
    if (s.rank >= 0 && trn_g_ints(axes, &n, TRN_MAX_RANK, c, IN(1))) {
        double count = 1;
        for (int i = 0; i < n; i++) {
            int64_t a = axes[i] < 0 ? axes[i] + s.rank : axes[i], dim = a >= 0 && a < s.rank ? s.dim[a] : -1;
            count = dim < 0 || count < 0 ? -1 : count * (double)dim;
        }
        if (count >= 0)
            return trn_g_num(c, t, count);
    }
    return trn_g_cast(c, TRN_GE(c, "(FloorDiv (Size x) (Maximum (Size o) #1))"), t);
}

static void mean(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    d = TRN_G(c, "RealDiv", d, count_of(c, trn_g_type(c, d)));
    trn_grad_set(c, 0, spread_back(c, d));
}

/* Goes to those that are the greatest, in equal parts. */
static void max_min(trn_grad_ctx *c)
{
    trn_out kept = trn_g_kept_shape(c, IN(0), IN(1)), d = trn_g_reshape(c, trn_grad_dy(c, 0), kept), y = trn_g_reshape(c, OUT(0), kept);
    trn_out is = trn_g_cast(c, TRN_G(c, "Equal", y, IN(0)), trn_g_type(c, d));
    trn_out n = trn_g_reshape(c, TRN_G(c, "Sum", is, IN(1)), kept);
    trn_grad_set(c, 0, TRN_GE(c, "(Mul (RealDiv $0 $1) $2)", is, n, d));
}

/* Without a division: the product of all the others is that of those before times that of those behind, so that zeros do no harm. */
static void prod(trn_grad_ctx *c)
{
    trn_out d = spread_back(c, trn_grad_dy(c, 0)), shape = trn_g_shape_of(c, IN(0)), rank = TRN_G(c, "Rank", IN(0));
    trn_out axes = TRN_GE(c, "(FloorMod (AddV2 (Reshape $0 #[-1]) $1) $1)", trn_g_cast(c, IN(1), TRN_INT32), rank);
    trn_attr keep = trn_attr__type("out_idx", TRN_INT32);
    trn_out rest = trn_g_node(c, "ListDiff", TRN_OUTS(TRN_GE(c, "(Range #0 $0 #1)", rank), axes), &keep, 1);
    trn_out perm = TRN_GE(c, "(ConcatV2 $0 $1 #0)", axes, rest);
    trn_out size = TRN_GE(c, "(Prod (GatherV2 $0 $1 #0) #0)", shape, axes), others = TRN_GE(c, "(Prod (GatherV2 $0 $1 #0) #0)", shape, rest);
    trn_out x = TRN_GE(c, "(Transpose (Conj x) $0)", perm);
    trn_out flat = TRN_GE(c, "(Reshape $0 (Pack $1 $2))", x, size, others);
    trn_out left = TRN_GE(c, "(Cumprod $0 #0 exclusive=true)", flat), right = TRN_GE(c, "(Cumprod $0 #0 exclusive=true reverse=true)", flat);
    trn_out y = TRN_GE(c, "(Reshape (Mul $0 $1) (Shape $2))", left, right, x);
    trn_grad_set(c, 0, trn_g_like(c, TRN_GE(c, "(Mul $0 (Transpose $1 (InvertPermutation $2)))", d, y, perm), IN(0)));
}

static void cumsum(trn_grad_ctx *c)
{
    trn_attr a[] = {trn_attr__bool("exclusive", trn_attr_bool(c->n, "exclusive")), trn_attr__bool("reverse", !trn_attr_bool(c->n, "reverse"))};
    trn_grad_set(c, 0, trn_g_node(c, "Cumsum", TRN_OUTS(trn_grad_dy(c, 0), IN(1)), a, 2));
}

static void cumprod(trn_grad_ctx *c)
{
    trn_attr a[] = {trn_attr__bool("exclusive", trn_attr_bool(c->n, "exclusive")), trn_attr__bool("reverse", !trn_attr_bool(c->n, "reverse"))};
    trn_out s = trn_g_node(c, "Cumsum", TRN_OUTS(TRN_GE(c, "(Mul o d)"), IN(1)), a, 2);
    trn_grad_set(c, 0, TRN_GE(c, "(RealDiv $0 x)", s));
}

static void cast(trn_grad_ctx *c)
{
    trn_dtype to = trn_g_type(c, IN(0));
    if (trn_g_trainable(to) && trn_g_trainable(trn_g_type(c, OUT(0))))
        trn_grad_set(c, 0, trn_g_cast(c, trn_grad_dy(c, 0), to));
}

/* ---- parts of complex numbers */

static trn_out complex_of(trn_grad_ctx *c, trn_out re, trn_out im)
{
    trn_attr t = trn_attr__type("Tout", trn_g_type(c, re) == TRN_DOUBLE ? TRN_COMPLEX128 : TRN_COMPLEX64);
    return trn_g_node(c, "Complex", TRN_OUTS(re, im), &t, 1);
}

static void real(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_grad_set(c, 0, complex_of(c, d, trn_g_zeros_like(c, d)));
}

static void imag(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_grad_set(c, 0, complex_of(c, trn_g_zeros_like(c, d), d));
}

static void complex_parts(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_attr t = trn_attr__type("Tout", trn_g_type(c, IN(0)));
    for (int i = 0; i < 2; i++)
        if (trn_grad_wanted(c, i))
            trn_grad_set(c, i, trn_g_sum_to(c, trn_g_node(c, i ? "Imag" : "Real", &d, 1, &t, 1), IN(i), IN(1 - i)));
}

/* Along the circle: i * x / |x|^2 for each unit of the angle. */
static void angle(trn_grad_ctx *c)
{
    trn_out x = IN(0), d = trn_grad_dy(c, 0);
    trn_attr t = trn_attr__type("Tout", trn_g_type(c, d));
    trn_out z = complex_of(c, trn_g_node(c, "Imag", &x, 1, &t, 1), trn_g_node(c, "Real", &x, 1, &t, 1));
    trn_grad_set(c, 0, TRN_G(c, "RealDiv", complex_of(c, TRN_G(c, "Neg", d), trn_g_zeros_like(c, d)), z));
}

static void complex_abs(trn_grad_ctx *c)
{
    trn_out d = trn_grad_dy(c, 0);
    trn_grad_set(c, 0, TRN_GE(c, "(Mul $0 (Sign x))", complex_of(c, d, trn_g_zeros_like(c, d))));
}

/* ---- Einsum: the gradient of one operand is an Einsum of the result's gradient and the other operand. */

static bool has_label(const char *s, char ch) { return strchr(s, ch) != NULL; }

/* "ab...c" → "ab.c": one character for the broadcast dimensions. */
static char *labels(trn_grad_ctx *c, const char *p, size_t n)
{
    char *s = trn_arena_alloc(c->tmp, n + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == ' ')
            continue;
        s[k++] = p[i];
        if (p[i] == '.')
            i += 2;
    }
    s[k] = 0;
    return s;
}

static const char *spelled(trn_grad_ctx *c, const char *s)
{
    const char *dot = strchr(s, '.');
    return dot ? trn_arena_printf(c->tmp, "%.*s...%s", (int)(dot - s), s, dot + 1) : s;
}

/* s without the labels that came before, and (of not NULL) without those that neither of the two has. */
static char *single(trn_grad_ctx *c, const char *s, const char *of, const char *or)
{
    char *u = trn_arena_alloc(c->tmp, strlen(s) + 1);
    size_t n = 0;
    for (; *s; s++)
        if (!memchr(u, *s, n) && (!of || has_label(of, *s) || has_label(or, *s)))
            u[n++] = *s;
    u[n] = 0;
    return u;
}

/* How many labels there are before and behind the "..."; all are behind where there is none. */
static void around(int *left, int *right, const char *s)
{
    const char *dot = strchr(s, '.');
    *left = dot ? (int)(dot - s) : 0;
    *right = (int)strlen(s) - *left - (dot ? 1 : 0);
}

static trn_out einsum_1(trn_grad_ctx *c, trn_out x, const char *from, const char *to)
{
    trn_attr a = trn_attr__str("equation", trn_arena_printf(c->tmp, "%s->%s", spelled(c, from), spelled(c, to)));
    return trn_g_node(c, "Einsum", &x, 1, &a, 1);
}

/* The dimensions that "..." stands for, in the shape of a tensor with these labels. */
static trn_out dots_of(trn_grad_ctx *c, trn_out shape, const char *names)
{
    int left, right;
    around(&left, &right, names);
    return TRN_GE(c, "(StridedSlice $0 (Pack $1) (Pack (Sub (Size $0) $2)) #[1])", shape, trn_g_i32(c, left), trn_g_i32(c, right));
}

/* d has the labels `have`; those of `uniq` that it lacks come back with x's lengths. own: x's labels, among them all of uniq. */
static trn_out spread_labels(trn_grad_ctx *c, trn_out d, const char *have, const char *uniq, const char *own, trn_out x)
{
    int left, right, own_left, own_right, n = (int)strlen(uniq), k = 0;
    around(&left, &right, uniq);
    around(&own_left, &own_right, own);
    trn_out sx = trn_g_shape_of(c, x), *dims = trn_arena_alloc(c->tmp, ((size_t)n + 2) * sizeof *dims), middle = TRN_NONE;
    if (has_label(uniq, '.'))
        middle = dots_of(c, TRN_G(c, "Shape", d), have);
    for (int i = 0; i < left; i++)
        if (!has_label(have, uniq[i]))
            d = TRN_G(c, "ExpandDims", d, trn_g_i32(c, i));
    for (int i = n - 1; i >= n - right; i--)
        if (!has_label(have, uniq[i]))
            d = TRN_G(c, "ExpandDims", d, trn_g_i32(c, i - n));
    for (int i = 0; i < n; i++) {
        if (uniq[i] == '.') {
            dims[k++] = middle;
            continue;
        }
        int at = (int)(strchr(own, uniq[i]) - own);
        if (has_label(own, '.') && at > own_left)
            at -= (int)strlen(own);
        dims[k++] = TRN_GE(c, "(Reshape (GatherV2 $0 $1 #0) #[1])", sx, at < 0 ? TRN_GE(c, "(AddV2 (Size $0) $1)", sx, trn_g_i32(c, at)) : trn_g_i32(c, at));
    }
    if (k > 1) {
        dims[k] = trn_g_i32(c, 0);
        dims[0] = trn_g_node(c, "ConcatV2", dims, k + 1, NULL, 0);
    }
    return TRN_G(c, "BroadcastTo", d, dims[0]);
}

/* For each operand: an Einsum of d and the other one, with each label once; then those that were summed up; then the diagonals; then "...", which may have
 * been spread, is added up. */
static void einsum(trn_grad_ctx *c)
{
    const char *eq = trn_attr_str(c->n, "equation"), *arrow = strstr(eq, "->"), *comma = strchr(eq, ',');
    int n = c->n->n_in;
    if (!arrow || n > 2 || (n == 2) != (comma && comma < arrow)) {
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of Einsum '%s' (node '%s')", eq, c->n->name));
        return;
    }
    const char *end = n == 2 ? comma : arrow;
    char *in[2] = {labels(c, eq, (size_t)(end - eq)), n == 2 ? labels(c, comma + 1, (size_t)(arrow - comma - 1)) : trn_arena_strdup(c->tmp, "")};
    char *out = labels(c, arrow + 2, strlen(arrow + 2));
    for (int k = 0; k < n; k++) {
        if (!trn_grad_wanted(c, k))
            continue;
        const char *own = in[k], *other = in[1 - k], *uniq = single(c, own, NULL, NULL), *have = single(c, own, out, other);
        bool missing = strcmp(uniq, have) != 0, dots = has_label(out, '.') && !has_label(own, '.');
        const char *to = dots ? trn_arena_printf(c->tmp, ".%s", have) : have;
        trn_out d = trn_grad_dy(c, 0);
        if (n == 2) {
            trn_attr a = trn_attr__str("equation", trn_arena_printf(c->tmp, "%s,%s->%s", spelled(c, out), spelled(c, other), spelled(c, to)));
            d = trn_g_node(c, "Einsum", TRN_OUTS(d, TRN_GE(c, "(Conj $0)", IN(1 - k))), &a, 1);
        } else if (strcmp(out, to) != 0) {
            d = einsum_1(c, d, out, to);
        }
        if (dots) { /* this operand has none of these dimensions */
            int lead = (int)strlen(have);
            d = TRN_GE(c, "(Sum $0 (Range #0 (Sub (Rank $0) $1) #1))", d, trn_g_i32(c, lead));
        }
        if (missing)
            d = spread_labels(c, d, have, uniq, own, IN(k));
        if (strcmp(uniq, own) != 0)
            d = einsum_1(c, d, uniq, own);
        if (has_label(own, '.')) {
            int left, right;
            around(&left, &right, own);
            trn_out r = TRN_G(c, "BroadcastGradientArgs", dots_of(c, trn_g_shape_of(c, IN(k)), own), dots_of(c, TRN_G(c, "Shape", d), own));
            d = trn_g_like(c, TRN_GE(c, "(Sum $0 (AddV2 $1 $2))", d, r, trn_g_i32(c, left)), IN(k));
        }
        trn_grad_set(c, k, d);
    }
}

const trn_grad_row trn_grads_math[] = {
    /* of one number */
    {"Abs", {"(Mul d (Sign x))"}},
    {"Acos", {"(Neg (Mul d (Rsqrt (Sub 1 (Square x)))))"}},
    {"Acosh", {"(RealDiv d (Sinh o))"}},
    {"Asin", {"(Mul d (Rsqrt (Sub 1 (Square x))))"}},
    {"Asinh", {"(RealDiv d (Cosh o))"}},
    {"Atan", {"(RealDiv d (AddV2 1 (Square x)))"}},
    {"Atanh", {"(RealDiv d (Sub 1 (Square x)))"}},
    {"Conj", {"(Conj d)"}},
    {"Cos", {"(Neg (Mul d (Sin (Conj x))))"}},
    {"Cosh", {"(Mul d (Sinh (Conj x)))"}},
    {"Erf", {"(Mul d (Mul 1.1283791670955126 (Exp (Neg (Square x)))))"}},
    {"Exp", {"(Mul d (Conj o))"}},
    {"Expm1", {"(Mul d (Exp (Conj x)))"}},
    {"Inv", {"(ReciprocalGrad (Conj o) d)"}},
    {"InvGrad", {"(Mul (Mul d -2) (Mul y x))", "(ReciprocalGrad x d)"}},
    {"L2Loss", {"(Mul d x)"}},
    {"Lgamma", {"(Mul d (Digamma x))"}},
    {"Log", {"(RealDiv d (Conj x))"}},
    {"Log1p", {"(RealDiv d (AddV2 1 (Conj x)))"}},
    {"Neg", {"(Neg d)"}},
    {"Reciprocal", {"(ReciprocalGrad (Conj o) d)"}},
    {"ReciprocalGrad", {"(Mul (Mul d -2) (Mul y x))", "(ReciprocalGrad x d)"}},
    {"Rsqrt", {"(RsqrtGrad (Conj o) d)"}},
    {"RsqrtGrad", {"(Mul (Mul d -1.5) (Mul y (Square x)))", "(RsqrtGrad x d)"}},
    {"Sigmoid", {"(SigmoidGrad (Conj o) d)"}},
    {"SigmoidGrad", {"(Mul (Mul d y) (Sub 1 (Mul 2 x)))", "(SigmoidGrad x d)"}},
    {"Sin", {"(Mul d (Cos (Conj x)))"}},
    {"Sinh", {"(Mul d (Cosh (Conj x)))"}},
    {"Sqrt", {"(SqrtGrad (Conj o) d)"}},
    {"SqrtGrad", {"(Neg (Mul (RealDiv d x) o))", "(Mul 0.5 (RealDiv d x))"}},
    {"Square", {"(Mul d (Mul 2 (Conj x)))"}},
    {"Tan", {"(Mul d (AddV2 1 (Square (Conj o))))"}},
    {"Tanh", {"(TanhGrad (Conj o) d)"}},
    {"TanhGrad", {"(Mul (Mul d -2) (Mul y x))", "(TanhGrad x d)"}},
    /* of two, broadcast */
    {"Add", {"d", "d"}, TRN_GRAD_SPREADS},
    {"AddV2", {"d", "d"}, TRN_GRAD_SPREADS},
    {"Atan2", {"(Mul d (RealDiv y (AddV2 (Square x) (Square y))))", "(Mul d (Neg (RealDiv x (AddV2 (Square x) (Square y)))))"}, TRN_GRAD_SPREADS},
    {"Div", {"(RealDiv d (Conj y))", "(Neg (RealDiv (Mul d (Conj x)) (Square (Conj y))))"}, TRN_GRAD_SPREADS},
    {"DivNoNan", {"(DivNoNan d (Conj y))", "(Neg (DivNoNan (Mul d (Conj x)) (Square (Conj y))))"}, TRN_GRAD_SPREADS},
    {"FloorMod", {"d", "(Neg (Mul d (FloorDiv x y)))"}, TRN_GRAD_SPREADS},
    {"Maximum", {"(SelectV2 (GreaterEqual x y) d (ZerosLike d))", "(SelectV2 (GreaterEqual x y) (ZerosLike d) d)"}, TRN_GRAD_SPREADS},
    {"Minimum", {"(SelectV2 (LessEqual x y) d (ZerosLike d))", "(SelectV2 (LessEqual x y) (ZerosLike d) d)"}, TRN_GRAD_SPREADS},
    {"Mul", {"(Mul d (Conj y))", "(Mul (Conj x) d)"}, TRN_GRAD_SPREADS},
    {"MulNoNan", {"(MulNoNan d (Conj y))", "(MulNoNan (Conj x) d)"}, TRN_GRAD_SPREADS},
    {"Pow",
     {"(Mul d (Mul (Conj y) (Pow (Conj x) (Sub (Conj y) 1))))", "(Mul (Mul d o) (SelectV2 (Greater x (ZerosLike x)) (Log x) (ZerosLike x)))"},
     TRN_GRAD_SPREADS},
    {"RealDiv", {"(RealDiv d (Conj y))", "(Neg (RealDiv (Mul d (Conj x)) (Square (Conj y))))"}, TRN_GRAD_SPREADS},
    {"SquaredDifference", {"(Mul d (Mul 2 (Sub (Conj x) (Conj y))))", "(Mul d (Mul 2 (Sub (Conj y) (Conj x))))"}, TRN_GRAD_SPREADS},
    {"Sub", {"d", "(Neg d)"}, TRN_GRAD_SPREADS},
    /* the rest */
    {"AddN", .fn = add_n},
    {"Angle", .fn = angle},
    {"BatchMatMul", .fn = batch_mat_mul},
    {"BatchMatMulV2", .fn = batch_mat_mul},
    {"BatchMatMulV3", .fn = batch_mat_mul},
    {"Cast", .fn = cast},
    {"Complex", .fn = complex_parts},
    {"ComplexAbs", .fn = complex_abs},
    {"Cumprod", .fn = cumprod},
    {"Cumsum", .fn = cumsum},
    {"Einsum", .fn = einsum},
    {"Imag", .fn = imag},
    {"MatMul", .fn = mat_mul},
    {"Max", .fn = max_min},
    {"Mean", .fn = mean},
    {"Min", .fn = max_min},
    {"Prod", .fn = prod},
    {"Real", .fn = real},
    {"Sum", .fn = sum},
    {0},
};
