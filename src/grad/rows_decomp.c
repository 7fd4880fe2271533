/* Gradients of what takes matrices apart, of least squares and of matrices that are three diagonals. Shapes are never asked for: the formulas hold for tall
 * and for wide matrices alike, parts that a matrix does not have are empty. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)
#define OUT(i) trn_grad_out(c, i)
#define LAST_DIM(t) "(StridedSlice (Shape " t ") #[-1] #[0] #[1] end_mask=1 shrink_axis_mask=1)"

/* a b, aᴴ b, a bᴴ */
static trn_out mul(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_G(c, "BatchMatMulV2", a, b); }
static trn_out mul_hn(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_GE(c, "(BatchMatMulV2 $0 $1 adj_x=true)", a, b); }
static trn_out mul_nh(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_GE(c, "(BatchMatMulV2 $0 $1 adj_y=true)", a, b); }
static trn_out plus(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_G(c, "AddV2", a, b); }
static trn_out minus(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_G(c, "Sub", a, b); }

static trn_out swapped(trn_grad_ctx *c, trn_out a, bool conj)
{
    trn_out rank = TRN_G(c, "Rank", a);
    trn_out perm = TRN_GE(c, "(ConcatV2 (Range #0 (Sub $0 #2) #1) (Pack (Sub $0 #1) (Sub $0 #2)) #0)", rank);
    return TRN_G(c, conj && trn_g_is_complex(trn_g_type(c, a)) ? "ConjugateTranspose" : "Transpose", a, perm);
}
static trn_out adjoint(trn_grad_ctx *c, trn_out a) { return swapped(c, a, true); }

/* Columns up to the k-th, and from it on. */
static trn_out columns_to(trn_grad_ctx *c, trn_out a, trn_out k) { return TRN_GE(c, "(StridedSlice $0 #[0,0] (Pack #0 $1) #[1,1] ellipsis_mask=1 begin_mask=2)", a, k); }
static trn_out columns_from(trn_grad_ctx *c, trn_out a, trn_out k) { return TRN_GE(c, "(StridedSlice $0 (Pack #0 $1) #[0,0] #[1,1] ellipsis_mask=1 end_mask=2)", a, k); }

static trn_out number(trn_grad_ctx *c, trn_out like, double v) { return trn_g_num(c, trn_g_type(c, like), v); }

/* 1/x, and 0 for 0, as TensorFlow bends it between the two. */
static trn_out reciprocal(trn_grad_ctx *c, trn_out x) { return TRN_GE(c, "(RealDiv $0 (AddV2 (Mul $0 $0) $1))", x, number(c, x, 1e-20)); }

/* What two numbers that differ little do to each other: 1 / (e_j - e_i). */
static trn_out gaps(trn_grad_ctx *c, trn_out e) { return reciprocal(c, TRN_GE(c, "(Sub (ExpandDims $0 #-2) (ExpandDims $0 #-1))", e)); }

/* ---- Qr: a = q r. Of a wide matrix the square part is [q, u], the rest of r is qᴴ times the rest of a. */

static trn_out times_inverse(trn_grad_ctx *c, trn_out x, trn_out r) /* x r⁻ᴴ, r upper triangular */
{
    return adjoint(c, TRN_GE(c, "(MatrixTriangularSolve $0 $1 lower=false adjoint=false)", r, adjoint(c, x)));
}

static void qr(trn_grad_ctx *c)
{
    trn_out a = IN(0), q = OUT(0), r = OUT(1), dq = trn_grad_dy(c, 0), dr = trn_grad_dy(c, 1);
    trn_shape s = trn_g_shape(c, a);
    if (trn_attr_bool(c->n, "full_matrices") && s.rank >= 2 && s.dim[s.rank - 1] >= 0 && s.dim[s.rank - 2] > s.dim[s.rank - 1]) {
        char text[TRN_SHAPE_TEXT];
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of Qr '%s' with full_matrices of %s, which has more rows than columns", c->n->name, trn_shape_text(text, &s)));
        return;
    }
    trn_out k = TRN_GE(c, LAST_DIM("$0"), q), rest = columns_from(c, dr, k), u = columns_to(c, r, k), du = columns_to(c, dr, k);
    dq = plus(c, dq, mul_nh(c, columns_from(c, a, k), rest));
    trn_out qdq = mul_hn(c, q, dq), udu = mul_nh(c, u, du);
    trn_out skew = TRN_GE(c, "(MatrixBandPart (AddV2 (Sub $0 $1) (Sub $2 $3)) #-1 #0)", qdq, adjoint(c, qdq), udu, adjoint(c, udu));
    trn_out dx = plus(c, mul(c, q, plus(c, du, times_inverse(c, skew, u))), times_inverse(c, minus(c, dq, mul(c, q, qdq)), u));
    if (trn_g_is_complex(trn_g_type(c, q))) { /* the phases of the diagonal are fixed */
        trn_out m = minus(c, udu, adjoint(c, qdq)), diag = TRN_G(c, "MatrixDiagPart", m);
        trn_out im = TRN_GE(c, "(MatrixDiag (Mul (Sub $0 (Conj $0)) $1))", diag, number(c, diag, 0.5));
        dx = plus(c, dx, times_inverse(c, mul(c, q, adjoint(c, im)), u));
    }
    trn_grad_set(c, 0, TRN_GE(c, "(ConcatV2 $0 $1 #-1)", dx, mul(c, q, rest)));
}

/* ---- Svd: a = u s vᴴ */

/* The part of the gradient of u (one column per singular value) that leaves its space, times 1/s. */
static trn_out beyond(trn_grad_ctx *c, trn_out u, trn_out du, trn_out uu, trn_out k, trn_out inverse)
{
    trn_out inner = columns_to(c, u, k), t = minus(c, columns_to(c, du, k), mul(c, inner, uu));
    if (trn_attr_bool(c->n, "full_matrices"))
        t = minus(c, t, mul(c, columns_from(c, u, k), mul_hn(c, columns_from(c, du, k), inner)));
    return TRN_GE(c, "(Mul $0 (ExpandDims $1 #-2))", t, inverse);
}

static void svd(trn_grad_ctx *c)
{
    trn_out a = IN(0), s = OUT(0), u = OUT(1), v = OUT(2), m = TRN_GE(c, "(MatrixDiag d)");
    trn_shape as = trn_g_shape(c, a);
    if (!trn_attr_bool(c->n, "compute_uv")) {
        s = TRN_GE(c, "(Svd x compute_uv=true full_matrices=false)");
        if (trn_g_ok(c))
            trn_grad_set(c, 0, mul(c, trn_out_nth(s, 1), mul_nh(c, m, trn_out_nth(s, 2))));
        return;
    }
    int64_t rows = as.rank >= 2 ? as.dim[as.rank - 2] : -1, cols = as.rank >= 2 ? as.dim[as.rank - 1] : -1;
    if (trn_attr_bool(c->n, "full_matrices") && rows >= 0 && cols >= 0 && (rows - cols > 1 || cols - rows > 1)) {
        char text[TRN_SHAPE_TEXT];
        trn_g_fail(c, trn_errorf(TRN_UNIMPLEMENTED, "the gradient of Svd '%s' with full_matrices of %s: rows and columns differ by more than one", c->n->name,
                                 trn_shape_text(text, &as)));
        return;
    }
    trn_out du = trn_grad_dy(c, 1), dv = trn_grad_dy(c, 2), k = TRN_GE(c, LAST_DIM("$0"), s), u1 = columns_to(c, u, k), v1 = columns_to(c, v, k);
    trn_out uu = mul_hn(c, u1, columns_to(c, du, k)), vv = mul_hn(c, v1, columns_to(c, dv, k)), f = gaps(c, TRN_G(c, "Mul", s, s)), inverse = reciprocal(c, s);
    trn_out fu = TRN_GE(c, "(Mul (Mul $0 (Sub $1 $2)) (ExpandDims $3 #-2))", f, uu, adjoint(c, uu), s);
    trn_out fv = TRN_GE(c, "(Mul (ExpandDims $3 #-1) (Mul $0 (Sub $1 $2)))", f, vv, adjoint(c, vv), s);
    m = plus(c, m, plus(c, fu, fv));
    if (trn_g_is_complex(trn_g_type(c, s))) { /* u and v may turn together: what turns only one of them counts */
        trn_out w = rows >= 0 && cols >= 0 && rows > cols ? TRN_G(c, "Conj", TRN_G(c, "MatrixDiagPart", uu)) : TRN_G(c, "MatrixDiagPart", vv);
        m = plus(c, m, TRN_GE(c, "(MatrixDiag (Mul $0 (Mul (Sub (Conj $1) $1) $2)))", inverse, w, number(c, s, 0.5)));
    }
    trn_out da = mul(c, u1, mul_nh(c, m, v1));
    if (rows < 0 || cols < 0 || rows > cols)
        da = plus(c, da, mul_nh(c, beyond(c, u, du, uu, k, inverse), v1));
    if (rows < 0 || cols < 0 || rows < cols)
        da = plus(c, da, mul_nh(c, u1, beyond(c, v, dv, vv, k, inverse)));
    trn_grad_set(c, 0, da);
}

/* Of the lower half, which is what the op looks at: off the diagonal each number stands for two. */
static void self_adjoint_eig(trn_grad_ctx *c)
{
    trn_out e = OUT(0), v = OUT(1), m = TRN_GE(c, "(MatrixDiag d)");
    if (!trn_attr_bool(c->n, "compute_v"))
        v = TRN_GE(c, "(SelfAdjointEigV2 x compute_v=true).1");
    else if (trn_grad_has_dy(c, 1))
        m = plus(c, m, TRN_G(c, "Mul", gaps(c, e), mul_hn(c, v, trn_grad_dy(c, 1))));
    trn_out da = mul(c, v, mul_nh(c, m, v)), both = plus(c, da, adjoint(c, da));
    trn_grad_set(c, 0, TRN_GE(c, "(MatrixSetDiag (MatrixBandPart $0 #-1 #0) (Mul 0.5 (MatrixDiagPart $0)))", both));
}

/* a = v e v⁻¹, columns of v of length one. */
static void eig(trn_grad_ctx *c)
{
    trn_out e = OUT(0), v = OUT(1), m = TRN_GE(c, "(MatrixDiag d)");
    if (!trn_attr_bool(c->n, "compute_v"))
        v = TRN_GE(c, "(Eig x compute_v=true Tout=@).1");
    else if (trn_grad_has_dy(c, 1)) {
        trn_out vdv = mul_hn(c, v, trn_grad_dy(c, 1)), diag = TRN_G(c, "MatrixDiagPart", vdv);
        trn_out len = TRN_GE(c, "(MatrixDiag (Mul (AddV2 $0 (Conj $0)) $1))", diag, number(c, diag, 0.5));
        m = plus(c, m, TRN_GE(c, "(Mul (Conj $0) $1)", gaps(c, e), minus(c, vdv, mul(c, mul_hn(c, v, v), len))));
    }
    trn_out vh = adjoint(c, v), da = TRN_GE(c, "(MatrixSolve $0 $1)", vh, mul(c, m, vh));
    trn_grad_set(c, 0, trn_g_cast(c, da, trn_g_type(c, IN(0))));
}

/* The root of [a d; 0 a] is [r x; 0 r] with r x + x r = d, which is the equation to be solved, with a's adjoint. */
static void square_root(trn_grad_ctx *c)
{
    trn_out a = adjoint(c, IN(0)), d = trn_grad_dy(c, 0), n = TRN_GE(c, LAST_DIM("x"));
    trn_out top = TRN_GE(c, "(ConcatV2 $0 $1 #-1)", a, d), low = TRN_GE(c, "(ConcatV2 (ZerosLike $0) $0 #-1)", a);
    trn_out root = TRN_GE(c, "(MatrixSquareRoot (ConcatV2 $0 $1 #-2))", top, low);
    trn_out right = columns_from(c, root, n);
    trn_grad_set(c, 0, TRN_GE(c, "(StridedSlice $0 #[0,0,0] (Pack #0 $1 #0) #[1,1,1] ellipsis_mask=1 begin_mask=6 end_mask=4)", right, n));
}

/* ---- least squares: x = p b with p = (aᴴa + l)⁻¹ aᴴ, or aᴴ (aaᴴ + l)⁻¹ of a wide a. The adjoint of p is that of aᴴ. With l = 0 either b - a x or d - aᴴ db is
 * zero, so the sum of both terms is right whichever shape a has; with l > 0 one formula holds for both. */
static void solve_ls(trn_grad_ctx *c)
{
    trn_out a = IN(0), b = IN(1), l = IN(2), x = OUT(0), d = trn_grad_dy(c, 0), ah = adjoint(c, a), db, p, q;
    if (!trn_attr_bool(c->n, "fast")) {
        trn_g_fail(c, trn_errorf(TRN_INVALID_ARGUMENT, "MatrixSolveLs '%s': Gradient not defined for fast=False", c->n->name));
        return;
    }
    db = TRN_G(c, "MatrixSolveLs", ah, d, l);
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, db);
    if (!trn_grad_wanted(c, 0))
        return;
    const trn_tensor *known = trn_g_value(c, l);
    bool zero = known && trn_tensor_count(known) == 1 && TRN_DATA(known, double)[0] == 0, positive = known && trn_tensor_count(known) == 1 && !zero;
    trn_out left = minus(c, b, mul(c, a, x)), yes = TRN_G(c, "Greater", l, trn_g_num(c, TRN_DOUBLE, 0));
    if (!zero) {
        trn_out weight = trn_g_cast(c, TRN_GE(c, "(SelectV2 $0 $1 (OnesLike $1))", yes, l), trn_g_type(c, a)), g = mul(c, ah, a);
        g = TRN_GE(c, "(MatrixSetDiag $0 (AddV2 (MatrixDiagPart $0) $1))", g, weight);
        p = mul_nh(c, left, TRN_G(c, "MatrixSolve", g, d));
    }
    if (!positive) {
        q = plus(c, mul_nh(c, left, TRN_G(c, "MatrixSolveLs", a, db, l)), mul_nh(c, TRN_G(c, "MatrixSolveLs", ah, x, l), minus(c, d, mul(c, ah, db))));
        p = zero ? q : TRN_G(c, "SelectV2", yes, p, q);
    }
    trn_grad_set(c, 0, minus(c, p, mul_nh(c, db, x)));
}

/* ---- three diagonals */

/* Rows one up (zeros come in below), one down. */
static trn_out up(trn_grad_ctx *c, trn_out x)
{
    return TRN_GE(c, "(ConcatV2 (StridedSlice $0 #[0,1,0] #[0,0,0] #[1,1,1] ellipsis_mask=1 end_mask=6 begin_mask=4) "
                     "(ZerosLike (StridedSlice $0 #[0,0,0] #[0,1,0] #[1,1,1] ellipsis_mask=1 begin_mask=6 end_mask=4)) #-2)", x);
}
static trn_out down(trn_grad_ctx *c, trn_out x)
{
    return TRN_GE(c, "(ConcatV2 (ZerosLike (StridedSlice $0 #[0,0,0] #[0,1,0] #[1,1,1] ellipsis_mask=1 begin_mask=6 end_mask=4)) "
                     "(StridedSlice $0 #[0,0,0] #[0,-1,0] #[1,1,1] ellipsis_mask=1 begin_mask=6 end_mask=4) #-2)", x);
}

static trn_out row_sums(trn_grad_ctx *c, trn_out a, trn_out b) { return TRN_GE(c, "(Sum (Mul $0 $1) #-1)", a, b); }

static void tridiagonal_mat_mul(trn_grad_ctx *c)
{
    trn_out x = TRN_GE(c, "(Conj w)"), d = trn_grad_dy(c, 0), side[3] = {up(c, x), x, down(c, x)}, diag[3];
    for (int i = 0; i < 3; i++) {
        if (trn_grad_wanted(c, i))
            trn_grad_set(c, i, TRN_GE(c, "(ExpandDims $0 #-2)", row_sums(c, side[i], d)));
        diag[i] = TRN_G(c, "Mul", adjoint(c, IN(i)), d);
    }
    if (trn_grad_wanted(c, 3))
        trn_grad_set(c, 3, plus(c, plus(c, down(c, diag[0]), diag[1]), up(c, diag[2])));
}

static void tridiagonal_solve(trn_grad_ctx *c)
{
    trn_out x = TRN_GE(c, "(Conj o)"), t = swapped(c, TRN_GE(c, "(Conj x)"), false), up_t = up(c, t), down_t = down(c, t); /* [rows, 3] */
    trn_out cols = TRN_GE(c, "(ConcatV2 $0 $1 $2 #-1)", columns_from(c, up_t, trn_g_i32(c, 2)),
                          columns_to(c, columns_from(c, t, trn_g_i32(c, 1)), trn_g_i32(c, 1)), columns_to(c, down_t, trn_g_i32(c, 1)));
    trn_out db = TRN_GE(c, "(TridiagonalSolve $0 d @)", swapped(c, cols, false));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, db);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, TRN_GE(c, "(Neg (Pack $0 $1 $2 axis=-2))", row_sums(c, db, up(c, x)), row_sums(c, db, x), row_sums(c, db, down(c, x))));
}

const trn_grad_row trn_grads_decomp[] = {
    {"MatrixSolveLs", .fn = solve_ls},
    {"MatrixSquareRoot", .fn = square_root},
    {"Qr", .fn = qr},
    {"Eig", .fn = eig},
    {"SelfAdjointEigV2", .fn = self_adjoint_eig},
    {"Svd", .fn = svd},
    {"TridiagonalMatMul", .fn = tridiagonal_mat_mul},
    {"TridiagonalSolve", .fn = tridiagonal_solve},
    {0},
};
