/* Gradients of linear algebra. A matrix that was taken as symmetric has a symmetric gradient. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)

static trn_out products(trn_grad_ctx *c, trn_out a, trn_out b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__bool("adj_x", ta), trn_attr__bool("adj_y", tb)};
    return trn_g_node(c, "BatchMatMulV2", TRN_OUTS(a, b), at, 2);
}

static void inverse(trn_grad_ctx *c)
{
    bool adj = trn_attr_bool(c->n, "adjoint");
    trn_out o = trn_grad_out(c, 0), m = products(c, trn_grad_dy(c, 0), o, adj, !adj);
    trn_grad_set(c, 0, TRN_G(c, "Neg", products(c, o, m, !adj, false)));
}

/* times: one number per matrix. */
static trn_out times_inverse(trn_grad_ctx *c, trn_out times) { return TRN_GE(c, "(Mul (ExpandDims (ExpandDims $0 #-1) #-1) (MatrixInverse x adjoint=true))", times); }

static void determinant(trn_grad_ctx *c) { trn_grad_set(c, 0, times_inverse(c, TRN_GE(c, "(Mul d o)"))); }

static void log_determinant(trn_grad_ctx *c)
{
    if (trn_grad_has_dy(c, 1))
        trn_grad_set(c, 0, times_inverse(c, trn_grad_dy(c, 1)));
}

/* What the matrices have on the diagonals that x names, as x has them; one diagonal is a matrix of one row. */
static trn_out bands(trn_grad_ctx *c, trn_out m, bool lower)
{
    trn_out n = TRN_GE(c, "(StridedSlice (Shape x) #[-2] #[-1] #[1] shrink_axis_mask=1)"), zero = trn_g_num(c, trn_g_type(c, m), 0);
    n = lower ? TRN_GE(c, "(Pack (Sub #1 $0) #0)", n) : TRN_GE(c, "(Pack #0 (Sub $0 #1))", n);
    trn_out at = TRN_GE(c, "(ConcatV2 (StridedSlice (Shape $0) #[0] #[-2] #[1] begin_mask=1) (StridedSlice (Shape x) #[-2] #[0] #[1] end_mask=1) #0)", m);
    return TRN_GE(c, "(Reshape (MatrixDiagPartV3 $0 $1 $2 align=LEFT_RIGHT) $3)", m, n, zero, at);
}

static void solve(trn_grad_ctx *c)
{
    bool triangular = c->n->op[6] == 'T', adj = trn_attr_bool(c->n, "adjoint"), lower = trn_attr_bool(c->n, "lower");
    trn_attr a[] = {trn_attr__bool("adjoint", !adj), trn_attr__bool("lower", lower)};
    trn_out x = trn_grad_out(c, 0), db = trn_g_node(c, c->n->op, TRN_OUTS(IN(0), trn_grad_dy(c, 0)), a, triangular ? 2 : 1);
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, trn_g_sum_to(c, db, IN(1), db));
    if (!trn_grad_wanted(c, 0))
        return;
    trn_out da = TRN_G(c, "Neg", adj ? products(c, x, db, false, true) : products(c, db, x, false, true));
    if (c->n->op[0] == 'B')
        da = bands(c, da, lower);
    else if (triangular)
        da = lower ? TRN_GE(c, "(MatrixBandPart $0 #-1 #0)", da) : TRN_GE(c, "(MatrixBandPart $0 #0 #-1)", da);
    trn_grad_set(c, 0, trn_g_sum_to(c, da, IN(0), da));
}

static void conjugate_transpose(trn_grad_ctx *c) { trn_grad_set(c, 0, TRN_GE(c, "(ConjugateTranspose d (InvertPermutation y))")); }

static trn_out product(trn_grad_ctx *c, trn_out a, trn_out b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__bool("transpose_a", ta), trn_attr__bool("transpose_b", tb)};
    return trn_g_node(c, "MatMul", TRN_OUTS(trn_g_cast(c, a, TRN_FLOAT), trn_g_cast(c, b, TRN_FLOAT)), at, 2);
}

static void sparse_mat_mul(trn_grad_ctx *c)
{
    bool ta = trn_attr_bool(c->n, "transpose_a"), tb = trn_attr_bool(c->n, "transpose_b");
    trn_out d = trn_grad_dy(c, 0), a = IN(0), b = IN(1);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, trn_g_cast(c, ta ? product(c, b, d, tb, true) : product(c, d, b, false, !tb), trn_g_type(c, a)));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, trn_g_cast(c, tb ? product(c, d, a, true, ta) : product(c, a, d, !ta, false), trn_g_type(c, b)));
}

static void diag_v2(trn_grad_ctx *c)
{
    trn_out zero = trn_g_num(c, trn_g_type(c, trn_grad_dy(c, 0)), 0);
    trn_grad_set(c, 0, trn_g_like(c, c->n->op[11] == '2' ? TRN_GE(c, "(MatrixDiagPartV2 d y $0)", zero) : TRN_GE(c, "(MatrixDiagPartV3 d y $0 align=@)", zero), IN(0)));
}

static void set_diag_v2(trn_grad_ctx *c)
{
    bool v2 = c->n->op[14] == '2';
    trn_out zero = trn_g_num(c, trn_g_type(c, trn_grad_dy(c, 0)), 0);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, v2 ? TRN_GE(c, "(MatrixSetDiagV2 d (ZerosLike y) z)") : TRN_GE(c, "(MatrixSetDiagV3 d (ZerosLike y) z align=@)"));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, v2 ? TRN_GE(c, "(MatrixDiagPartV2 d z $0)", zero) : TRN_GE(c, "(MatrixDiagPartV3 d z $0 align=@)", zero));
}

const trn_grad_row trn_grads_linalg[] = {
    {"BandedTriangularSolve", .fn = solve},
    {"Cholesky", {"(CholeskyGrad o d)"}},
    {"ConjugateTranspose", .fn = conjugate_transpose},
    {"Diag", {"(DiagPart d)"}},
    {"DiagPart", {"(Diag d)"}},
    {"LogMatrixDeterminant", .fn = log_determinant},
    {"MatrixBandPart", {"(MatrixBandPart d y z)"}},
    {"MatrixDeterminant", .fn = determinant},
    {"MatrixDiag", {"(MatrixDiagPart d)"}},
    {"MatrixDiagPart", {"(MatrixSetDiag (ZerosLike x) d)"}},
    {"MatrixDiagPartV2", {"(MatrixSetDiagV2 (ZerosLike x) d y)"}},
    {"MatrixDiagPartV3", {"(MatrixSetDiagV3 (ZerosLike x) d y align=@)"}},
    {"MatrixDiagV2", .fn = diag_v2},
    {"MatrixDiagV3", .fn = diag_v2},
    {"MatrixInverse", .fn = inverse},
    {"MatrixSetDiag", {"(MatrixSetDiag d (ZerosLike y))", "(MatrixDiagPart d)"}},
    {"MatrixSetDiagV2", .fn = set_diag_v2},
    {"MatrixSetDiagV3", .fn = set_diag_v2},
    {"MatrixSolve", .fn = solve},
    {"MatrixTriangularSolve", .fn = solve},
    {"SparseMatMul", .fn = sparse_mat_mul},
    {0},
};
