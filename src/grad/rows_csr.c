/* Gradients through matrices of compressed rows. That of a matrix has its pattern: where it holds nothing, nothing was multiplied. */
#include "grad/rows.h"

#define IN(i) trn_grad_in(c, i)
#define INDICES(m) "(CSRSparseMatrixToSparseTensor " m " type=@T)"

static trn_out swapped(trn_grad_ctx *c, trn_out a)
{
    return TRN_GE(c, "(Transpose $0 (ConcatV2 (Range #0 (Sub (Rank $0) #2) #1) (Pack (Sub (Rank $0) #1) (Sub (Rank $0) #2)) #0))", a);
}

/* What an op does with a factor before it multiplies. */
typedef enum turn { AS_IT_IS, TURNED, ADJOINT, CONJUGATE } turn;

static turn turn_of(const trn_grad_ctx *c, const char *transpose, const char *adjoint)
{
    return trn_attr_bool(c->n, transpose) ? TURNED : trn_attr_bool(c->n, adjoint) ? ADJOINT : AS_IT_IS;
}
static turn then_conjugate(turn t) { return (turn[]){CONJUGATE, ADJOINT, TURNED, AS_IT_IS}[t]; }
static turn then_adjoint(turn t) { return (turn[]){ADJOINT, CONJUGATE, AS_IT_IS, TURNED}[t]; }

/* Conj of a variant, where its type has such a thing. */
static trn_out conjugate(trn_grad_ctx *c, trn_out m, trn_dtype t) { return trn_g_is_complex(t) ? TRN_G(c, "Conj", m) : m; }

/* ---- sparse · dense ---------------------------------------------------------------------------------------------- */

/* At the places of a: the row of g that belongs to one of an element's numbers times the row of op(b) that belongs to the other. */
static trn_out of_sparse_factor(trn_grad_ctx *c, trn_out g, turn ta, turn tb)
{
    trn_out a = TRN_GE(c, INDICES("x")), at = a, b = IN(1), shape = trn_out_nth(a, 2);
    trn_out row = TRN_GE(c, "(StridedSlice $0 #[0,0] #[0,-1] #[1,1] begin_mask=3 end_mask=1)", at);
    trn_out col = TRN_GE(c, "(ConcatV2 (StridedSlice $0 #[0,0] #[0,-2] #[1,1] begin_mask=3 end_mask=1) (StridedSlice $0 #[0,-1] #[0,0] #[1,1] begin_mask=1 end_mask=3) #1)", at);
    if (tb != AS_IT_IS)
        b = swapped(c, b);
    bool conj_b = tb != ADJOINT; /* op(b)ᴴ, whose rows are conjugate unless op has done so */
    trn_out u = TRN_G(c, "GatherNd", g, ta == AS_IT_IS ? row : col), v = TRN_G(c, "GatherNd", b, ta == AS_IT_IS ? col : row);
    trn_out values = conj_b ? TRN_GE(c, "(Sum (Mul $0 (Conj $1)) #-1)", u, v) : TRN_GE(c, "(Sum (Mul $0 $1) #-1)", u, v);
    if (ta == ADJOINT)
        values = TRN_GE(c, "(Conj $0)", values);
    return TRN_G(c, "SparseTensorToCSRSparseMatrix", at, values, shape);
}

static trn_out of_dense_factor(trn_grad_ctx *c, trn_out g, turn ta, turn tb)
{
    turn t = then_adjoint(ta);
    trn_out a = t == CONJUGATE ? conjugate(c, IN(0), trn_g_type(c, IN(1))) : IN(0);
    trn_attr attrs[] = {trn_attr__bool("transpose_a", false), trn_attr__bool("transpose_b", false), trn_attr__bool("adjoint_a", t == ADJOINT),
                        trn_attr__bool("adjoint_b", false), trn_attr__bool("transpose_output", tb != AS_IT_IS), trn_attr__bool("conjugate_output", tb == ADJOINT)};
    return trn_g_node(c, "SparseMatrixMatMul", TRN_OUTS(a, g), attrs, 6);
}

static void mat_mul(trn_grad_ctx *c)
{
    turn ta = turn_of(c, "transpose_a", "adjoint_a"), tb = turn_of(c, "transpose_b", "adjoint_b");
    trn_out g = trn_grad_dy(c, 0);
    if (trn_attr_bool(c->n, "conjugate_output"))
        g = TRN_GE(c, "(Conj $0)", g);
    if (trn_attr_bool(c->n, "transpose_output"))
        g = swapped(c, g);
    if (trn_grad_wanted(c, 0))
        trn_grad_set(c, 0, of_sparse_factor(c, g, ta, tb));
    if (trn_grad_wanted(c, 1))
        trn_grad_set(c, 1, of_dense_factor(c, g, ta, tb));
}

/* ---- sparse · sparse ------------------------------------------------------------------------------------------------ */

static trn_out times(trn_grad_ctx *c, trn_out a, turn ta, trn_out b, turn tb)
{
    trn_dtype t = trn_attr_type(c->n, "type");
    trn_attr attrs[] = {trn_attr__type("type", t), trn_attr__bool("transpose_a", ta == TURNED), trn_attr__bool("transpose_b", tb == TURNED), trn_attr__bool("adjoint_a", ta == ADJOINT),
                        trn_attr__bool("adjoint_b", tb == ADJOINT)};
    a = ta == CONJUGATE ? conjugate(c, a, t) : a;
    b = tb == CONJUGATE ? conjugate(c, b, t) : b;
    return trn_g_node(c, "SparseMatrixSparseMatMul", TRN_OUTS(a, b), attrs, 5);
}

/* The elements of m where the pattern has some, and zeros where m has none. Places as single numbers are in ascending order in a product. Where the pattern is one matrix
 * that went with a batch, it is in m as often, one behind the other: added up. */
static trn_out pruned(trn_grad_ctx *c, trn_out m, trn_out pattern)
{
    trn_out all = TRN_GE(c, "(CSRSparseMatrixToSparseTensor $0 type=@type)", m), some = TRN_GE(c, "(CSRSparseMatrixToSparseTensor $0 type=@type)", pattern);
    trn_out strides = TRN_GE(c, "(Cumprod $0 #0 exclusive=true reverse=true)", trn_out_nth(some, 2));
    trn_out end = TRN_GE(c, "(Prod $0 #0)", trn_out_nth(all, 2)), each = TRN_GE(c, "(Maximum (Prod $0 #0) $1)", trn_out_nth(some, 2), trn_g_num(c, TRN_INT64, 1));
    trn_out none = trn_g_num(c, trn_attr_type(c->n, "type"), 0), have = TRN_GE(c, "(ConcatV2 (Sum (Mul $0 $1) #-1) (ExpandDims $2 #0) #0)", all, strides, end);
    trn_out first = TRN_GE(c, "(ExpandDims (Range $0 $1 $2) #1)", trn_g_num(c, TRN_INT64, 0), end, each); /* of each of these matrices */
    trn_out want = TRN_GE(c, "(AddV2 $0 (ExpandDims (Sum (Mul $1 $2) #-1) #0))", first, some, strides);
    trn_out at = TRN_GE(c, "(Reshape (LowerBound (ExpandDims $0 #0) (Reshape $1 #[1,-1])) (Shape $1))", have, want);
    trn_out values = TRN_GE(c, "(GatherV2 (ConcatV2 $0 (ExpandDims $1 #0) #0) $2 #0)", trn_out_nth(all, 1), none, at);
    values = TRN_GE(c, "(Sum (SelectV2 (Equal (GatherV2 $0 $1 #0) $2) $3 $4) #0)", have, at, want, values, none);
    return TRN_G(c, "SparseTensorToCSRSparseMatrix", some, values, trn_out_nth(some, 2));
}

static void sparse_mat_mul(trn_grad_ctx *c)
{
    turn ta = turn_of(c, "transpose_a", "adjoint_a"), tb = turn_of(c, "transpose_b", "adjoint_b");
    trn_out d = trn_grad_dy(c, 0), a = IN(0), b = IN(1);
    if (trn_grad_wanted(c, 0)) {
        trn_out g = ta == AS_IT_IS ? times(c, d, AS_IT_IS, b, then_adjoint(tb))
                    : ta == TURNED ? times(c, b, then_conjugate(tb), d, TURNED)
                                   : times(c, b, tb, d, ADJOINT);
        trn_grad_set(c, 0, pruned(c, g, a));
    }
    if (trn_grad_wanted(c, 1)) {
        trn_out g = tb == AS_IT_IS ? times(c, a, then_adjoint(ta), d, AS_IT_IS)
                    : tb == TURNED ? times(c, d, TURNED, a, then_conjugate(ta))
                                   : times(c, d, ADJOINT, a, ta);
        trn_grad_set(c, 1, pruned(c, g, b));
    }
}

/* ---- from and to other tensors ------------------------------------------------------------------------------------------ */

static void from_sparse(trn_grad_ctx *c) { trn_grad_set(c, 1, TRN_GE(c, INDICES("d") ".1")); }

static void to_sparse(trn_grad_ctx *c)
{
    if (trn_grad_has_dy(c, 1))
        trn_grad_set(c, 0, TRN_GE(c, "(SparseTensorToCSRSparseMatrix o d1 o2)"));
}

static void to_dense(trn_grad_ctx *c)
{
    trn_out at = TRN_GE(c, "(CSRSparseMatrixToSparseTensor x type=@type)");
    trn_grad_set(c, 0, TRN_GE(c, "(SparseTensorToCSRSparseMatrix $0 (GatherNd d $0) $1)", at, trn_out_nth(at, 2)));
}

const trn_grad_row trn_grads_csr[] = {
    {"CSRSparseMatrixToDense", .fn = to_dense},
    {"CSRSparseMatrixToSparseTensor", .fn = to_sparse},
    {"DenseToCSRSparseMatrix", {"(CSRSparseMatrixToDense d type=@T)"}},
    {"SparseMatrixMatMul", .fn = mat_mul},
    {"SparseMatrixSparseMatMul", .fn = sparse_mat_mul},
    {"SparseMatrixTranspose", {"(SparseMatrixTranspose d @)"}},
    {"SparseTensorToCSRSparseMatrix", .fn = from_sparse},
    {0},
};
