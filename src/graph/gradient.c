/* Derivatives of functions: nodes that work out the gradients of a stretch of the graph (SymbolicGradient). Most ops are a row of text each, see
 * `rows`; what needs more than that is a function. */
#include <stdlib.h>

#include "graph/graph_priv.h"

typedef struct sums {
    trn_edge *e;
    int n, cap;
} sums;

typedef struct grad {
    const trn_gradient *q;
    trn_graph *g;
    sums **acc;           /* by node - q->first: one per output, NULL when nothing has come yet */
    const trn_gnode *nd;  /* the node whose turn it is */
    const trn_edge *dy;   /* one per output of nd; node -1: none came */
} grad;

static trn_dtype type_of(const grad *c, trn_edge e) { return trn_dtype_base(c->g->node[e.node]->n.out_types[e.slot]); }

static trn_err node(trn_edge *out, grad *c, const char *op, const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    trn_gnode *nd;
    TRN_TRY(c->q->add(c->q->ctx, &nd, op, attrs, n_attrs, in, n_in));
    if (n_in == 0)
        c->q->wait(c->q->ctx, nd, c->q->anchor); /* so that it lies in the loop that the others are in */
    *out = (trn_edge){nd->id, 0};
    return TRN_OK;
}

/* An op whose only attr is T. */
static trn_err typed(trn_edge *out, grad *c, const char *op, trn_dtype t, const trn_edge *in, int n_in)
{
    trn_attr a = trn_attr__type("T", t);
    return node(out, c, op, &a, 1, in, n_in);
}

static trn_err constant(trn_edge *out, grad *c, trn_dtype dtype, double v)
{
    trn_shape s = trn_shape_scalar();
    trn_tensor *t;
    bool narrow = dtype != TRN_DOUBLE && dtype != TRN_INT32;
    TRN_TRY(trn_tensor_new(&t, narrow ? TRN_FLOAT : dtype, &s));
    if (dtype == TRN_DOUBLE)
        TRN_DATA_MUT(t, double)[0] = v;
    else if (dtype == TRN_INT32)
        TRN_DATA_MUT(t, int32_t)[0] = (int32_t)v;
    else
        TRN_DATA_MUT(t, float)[0] = (float)v;
    trn_attr a[] = {trn_attr__type("dtype", t->dtype), trn_attr__tensor("value", t)};
    trn_err err = node(out, c, "Const", a, 2, NULL, 0);
    trn_tensor_unref(t);
    if (!err && narrow && dtype != TRN_FLOAT) {
        trn_attr b[] = {trn_attr__type("SrcT", TRN_FLOAT), trn_attr__type("DstT", dtype)};
        trn_edge in = *out;
        err = node(out, c, "Cast", b, 2, &in, 1);
    }
    return err;
}

static trn_err shape_of(trn_edge *out, grad *c, trn_edge x)
{
    trn_attr a[] = {trn_attr__type("T", type_of(c, x)), trn_attr__type("out_type", TRN_INT32)};
    return node(out, c, "Shape", a, 2, &x, 1);
}

static trn_err reshape_like(trn_edge *out, grad *c, trn_edge d, trn_edge like)
{
    trn_edge s;
    TRN_TRY(shape_of(&s, c, like));
    trn_attr a[] = {trn_attr__type("T", type_of(c, d)), trn_attr__type("Tshape", TRN_INT32)};
    return node(out, c, "Reshape", a, 2, (trn_edge[]){d, s}, 2);
}

static trn_err sum_over(trn_edge *out, grad *c, trn_edge x, trn_edge axes, bool keep)
{
    trn_attr a[] = {trn_attr__type("T", type_of(c, x)), trn_attr__type("Tidx", TRN_INT32), trn_attr__bool("keep_dims", keep)};
    return node(out, c, "Sum", a, 3, (trn_edge[]){x, axes}, 2);
}

/* What was spread over the other's shape is summed up again. */
static trn_err unbroadcast(trn_edge d[2], grad *c)
{
    trn_edge s[2], r;
    TRN_TRY(shape_of(&s[0], c, c->nd->in[0]));
    TRN_TRY(shape_of(&s[1], c, c->nd->in[1]));
    TRN_TRY(typed(&r, c, "BroadcastGradientArgs", TRN_INT32, s, 2));
    for (int i = 0; i < 2; i++) {
        if (d[i].node < 0)
            continue;
        TRN_TRY(sum_over(&d[i], c, d[i], (trn_edge){r.node, i}, false));
        trn_attr a[] = {trn_attr__type("T", type_of(c, d[i])), trn_attr__type("Tshape", TRN_INT32)};
        TRN_TRY(node(&d[i], c, "Reshape", a, 2, (trn_edge[]){d[i], s[i]}, 2));
    }
    return TRN_OK;
}

/* ---- one line each ---------------------------------------------------------------------------------------------------------- */

/* d: gradient of the output o; x, y, z: inputs; numbers: constants of x's type. NULL: no gradient for that input. */
typedef struct row {
    const char *op;
    bool spreads; /* its two inputs are broadcast */
    const char *in[3];
} row;

static const row rows[] = {
    {"Abs", false, {"(Mul d (Sign x))"}},
    {"Acos", false, {"(Neg (Mul d (Rsqrt (Sub 1 (Square x)))))"}},
    {"Acosh", false, {"(RealDiv d (Sinh o))"}},
    {"Asin", false, {"(Mul d (Rsqrt (Sub 1 (Square x))))"}},
    {"Asinh", false, {"(RealDiv d (Cosh o))"}},
    {"Atan", false, {"(RealDiv d (AddV2 1 (Square x)))"}},
    {"Atanh", false, {"(RealDiv d (Sub 1 (Square x)))"}},
    {"Cos", false, {"(Neg (Mul d (Sin x)))"}},
    {"Cosh", false, {"(Mul d (Sinh x))"}},
    {"Elu", false, {"(EluGrad d o)"}},
    {"Erf", false, {"(Mul d (Mul 1.1283791670955126 (Exp (Neg (Square x)))))"}},
    {"Exp", false, {"(Mul d o)"}},
    {"Expm1", false, {"(Mul d (Exp x))"}},
    {"ExpandDims", false, {"(Like d x)"}},
    {"Identity", false, {"d"}},
    {"Inv", false, {"(ReciprocalGrad o d)"}},
    {"L2Loss", false, {"(Mul d x)"}},
    {"Lgamma", false, {"(Mul d (Digamma x))"}},
    {"Log", false, {"(RealDiv d x)"}},
    {"Log1p", false, {"(RealDiv d (AddV2 1 x))"}},
    {"Neg", false, {"(Neg d)"}},
    {"Reciprocal", false, {"(ReciprocalGrad o d)"}},
    {"Relu", false, {"(ReluGrad d x)"}},
    {"Relu6", false, {"(Relu6Grad d x)"}},
    {"Reshape", false, {"(Like d x)"}},
    {"Rsqrt", false, {"(RsqrtGrad o d)"}},
    {"Select", false, {NULL, "(Select x d (ZerosLike d))", "(Select x (ZerosLike d) d)"}},
    {"Selu", false, {"(SeluGrad d o)"}},
    {"Sigmoid", false, {"(SigmoidGrad o d)"}},
    {"Sin", false, {"(Mul d (Cos x))"}},
    {"Sinh", false, {"(Mul d (Cosh x))"}},
    {"Snapshot", false, {"d"}},
    {"Softplus", false, {"(SoftplusGrad d x)"}},
    {"Softsign", false, {"(SoftsignGrad d x)"}},
    {"Sqrt", false, {"(SqrtGrad o d)"}},
    {"Square", false, {"(Mul d (Mul 2 x))"}},
    {"Squeeze", false, {"(Like d x)"}},
    {"Tan", false, {"(Mul d (AddV2 1 (Square o)))"}},
    {"Tanh", false, {"(TanhGrad o d)"}},
    {"Add", true, {"d", "d"}},
    {"AddV2", true, {"d", "d"}},
    {"Atan2", true, {"(Mul d (RealDiv y (AddV2 (Square x) (Square y))))", "(Mul d (Neg (RealDiv x (AddV2 (Square x) (Square y)))))"}},
    {"Div", true, {"(RealDiv d y)", "(Neg (RealDiv (Mul d x) (Square y)))"}},
    {"DivNoNan", true, {"(DivNoNan d y)", "(Neg (DivNoNan (Mul d x) (Square y)))"}},
    {"Maximum", true, {"(SelectV2 (GreaterEqual x y) d (ZerosLike d))", "(SelectV2 (GreaterEqual x y) (ZerosLike d) d)"}},
    {"Minimum", true, {"(SelectV2 (LessEqual x y) d (ZerosLike d))", "(SelectV2 (LessEqual x y) (ZerosLike d) d)"}},
    {"Mul", true, {"(Mul d y)", "(Mul x d)"}},
    {"MulNoNan", true, {"(MulNoNan d y)", "(MulNoNan x d)"}},
    {"Pow", true, {"(Mul d (Mul y (Pow x (Sub y 1))))", "(Mul (Mul d o) (SelectV2 (Greater x (ZerosLike x)) (Log x) (ZerosLike x)))"}},
    {"RealDiv", true, {"(RealDiv d y)", "(Neg (RealDiv (Mul d x) (Square y)))"}},
    {"SquaredDifference", true, {"(Mul d (Mul 2 (Sub x y)))", "(Mul d (Mul 2 (Sub y x)))"}},
    {"Sub", true, {"d", "(Neg d)"}},
};

/* Where gradients end. */
static const char *const flat[] = {"ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "FloorDiv", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan",
                                   "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "NotEqual", "OnesLike", "Range", "Rank", "Rint",
                                   "Round", "Shape", "ShapeN", "Sign", "Size", "StopGradient", "ZerosLike", "Fill", "RandomUniform", "NoOp", "Assert"};

/* One term of a row; *p moves behind it. The rows are ours: they are well-formed. */
static trn_err term(trn_edge *out, grad *c, const char **p)
{
    while (**p == ' ')
        ++*p;
    if (**p != '(') {
        char ch = **p;
        if (ch >= '0' && ch <= '9') {
            char *end;
            double v = strtod(*p, &end);
            *p = end;
            return constant(out, c, type_of(c, c->nd->in[0]), v);
        }
        ++*p;
        *out = ch == 'd' ? c->dy[0] : ch == 'o' ? (trn_edge){c->nd->id, 0} : c->nd->in[ch - 'x'];
        return TRN_OK;
    }
    char op[40];
    size_t n = strcspn(++*p, " )");
    memcpy(op, *p, n);
    op[n] = 0;
    *p += n;
    trn_edge in[4];
    int k = 0;
    for (; **p != ')'; k++) {
        TRN_TRY(term(&in[k], c, p));
        while (**p == ' ')
            ++*p;
    }
    ++*p;
    if (strcmp(op, "Like") == 0)
        return reshape_like(out, c, in[0], in[1]);
    return typed(out, c, op, type_of(c, in[strncmp(op, "Select", 6) == 0]), in, k);
}

/* ---- functions --------------------------------------------------------------------------------------------------------------- */

static trn_err product(trn_edge *out, grad *c, trn_edge a, trn_edge b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__type("T", type_of(c, a)), trn_attr__bool("transpose_a", ta), trn_attr__bool("transpose_b", tb)};
    return node(out, c, "MatMul", at, 3, (trn_edge[]){a, b}, 2);
}

static trn_err mat_mul(trn_edge *dx, grad *c)
{
    trn_edge a = c->nd->in[0], b = c->nd->in[1], d = c->dy[0];
    bool ta = trn_attr_bool(&c->nd->n, "transpose_a"), tb = trn_attr_bool(&c->nd->n, "transpose_b");
    TRN_TRY(ta ? product(&dx[0], c, b, d, tb, true) : product(&dx[0], c, d, b, false, !tb));
    return tb ? product(&dx[1], c, d, a, true, ta) : product(&dx[1], c, a, d, !ta, false);
}

static trn_err list_of_one(trn_edge *out, grad *c, int32_t v)
{
    trn_shape s = trn_shape_vector(1);
    trn_tensor *t;
    TRN_TRY(trn_tensor_new(&t, TRN_INT32, &s));
    TRN_DATA_MUT(t, int32_t)[0] = v;
    trn_attr a[] = {trn_attr__type("dtype", TRN_INT32), trn_attr__tensor("value", t)};
    trn_err err = node(out, c, "Const", a, 2, NULL, 0);
    trn_tensor_unref(t);
    return err;
}

static trn_err products(trn_edge *out, grad *c, trn_edge a, trn_edge b, bool ta, bool tb)
{
    trn_attr at[] = {trn_attr__type("T", type_of(c, a)), trn_attr__bool("adj_x", ta), trn_attr__bool("adj_y", tb)};
    return node(out, c, "BatchMatMulV2", at, 3, (trn_edge[]){a, b}, 2);
}

/* Products of many matrices; the leading dimensions of one may be spread over those of the other. */
static trn_err batch_mat_mul(trn_edge *dx, grad *c)
{
    trn_edge a = c->nd->in[0], b = c->nd->in[1], d = c->dy[0], s[2], lead[2], first, last, step, r;
    bool ta = trn_attr_bool(&c->nd->n, "adj_x"), tb = trn_attr_bool(&c->nd->n, "adj_y");
    TRN_TRY(ta ? products(&dx[0], c, b, d, tb, true) : products(&dx[0], c, d, b, false, !tb));
    TRN_TRY(tb ? products(&dx[1], c, d, a, true, ta) : products(&dx[1], c, a, d, !ta, false));
    TRN_TRY(list_of_one(&first, c, 0));
    TRN_TRY(list_of_one(&last, c, -2));
    TRN_TRY(list_of_one(&step, c, 1));
    for (int i = 0; i < 2; i++) {
        trn_attr sa[] = {trn_attr__type("T", TRN_INT32), trn_attr__type("Index", TRN_INT32)};
        TRN_TRY(shape_of(&s[i], c, c->nd->in[i]));
        TRN_TRY(node(&lead[i], c, "StridedSlice", sa, 2, (trn_edge[]){s[i], first, last, step}, 4));
    }
    TRN_TRY(typed(&r, c, "BroadcastGradientArgs", TRN_INT32, lead, 2));
    for (int i = 0; i < 2; i++) {
        TRN_TRY(sum_over(&dx[i], c, dx[i], (trn_edge){r.node, i}, false));
        trn_attr ra[] = {trn_attr__type("T", type_of(c, dx[i])), trn_attr__type("Tshape", TRN_INT32)};
        TRN_TRY(node(&dx[i], c, "Reshape", ra, 2, (trn_edge[]){dx[i], s[i]}, 2));
    }
    return TRN_OK;
}

static trn_err cast(trn_edge *dx, grad *c)
{
    trn_dtype to = type_of(c, c->nd->in[0]), from = type_of(c, c->dy[0]);
    bool real = to == TRN_FLOAT || to == TRN_DOUBLE || to == TRN_HALF || to == TRN_BFLOAT16 || to == TRN_COMPLEX64 || to == TRN_COMPLEX128;
    if (!real)
        return TRN_OK;
    trn_attr a[] = {trn_attr__type("SrcT", from), trn_attr__type("DstT", to)};
    return node(&dx[0], c, "Cast", a, 2, c->dy, 1);
}

/* The gradient of a sum goes to everything that was summed up. */
static trn_err reduction(trn_edge *dx, grad *c, bool mean)
{
    trn_edge x = c->nd->in[0], axes = c->nd->in[1], s, rank, zero, one, all, ones, kept, d = c->dy[0];
    trn_dtype t = type_of(c, x);
    TRN_TRY(shape_of(&s, c, x));
    if (type_of(c, axes) != TRN_INT32) {
        trn_attr a[] = {trn_attr__type("SrcT", type_of(c, axes)), trn_attr__type("DstT", TRN_INT32)};
        TRN_TRY(node(&axes, c, "Cast", a, 2, &axes, 1));
    }
    trn_attr flat_list[] = {trn_attr__type("T", TRN_INT32), trn_attr__type("Tshape", TRN_INT32)};
    trn_edge any;
    TRN_TRY(list_of_one(&any, c, -1));
    TRN_TRY(node(&axes, c, "Reshape", flat_list, 2, (trn_edge[]){axes, any}, 2));
    TRN_TRY(typed(&rank, c, "Rank", t, &x, 1));
    TRN_TRY(typed(&axes, c, "AddV2", TRN_INT32, (trn_edge[]){axes, rank}, 2));
    TRN_TRY(typed(&axes, c, "FloorMod", TRN_INT32, (trn_edge[]){axes, rank}, 2));
    TRN_TRY(constant(&zero, c, TRN_INT32, 0));
    TRN_TRY(constant(&one, c, TRN_INT32, 1));
    trn_attr ti = trn_attr__type("Tidx", TRN_INT32);
    TRN_TRY(node(&all, c, "Range", &ti, 1, (trn_edge[]){zero, rank, one}, 3));
    TRN_TRY(typed(&ones, c, "OnesLike", TRN_INT32, &axes, 1));
    trn_attr st[] = {trn_attr__int("N", 2), trn_attr__type("T", TRN_INT32)};
    TRN_TRY(node(&kept, c, "DynamicStitch", st, 2, (trn_edge[]){all, axes, s, ones}, 4));
    trn_attr ra[] = {trn_attr__type("T", t), trn_attr__type("Tshape", TRN_INT32)}, ba[] = {ra[0], ti};
    TRN_TRY(node(&d, c, "Reshape", ra, 2, (trn_edge[]){d, kept}, 2));
    TRN_TRY(node(&dx[0], c, "BroadcastTo", ba, 2, (trn_edge[]){d, s}, 2));
    if (!mean)
        return TRN_OK;
    trn_edge n[2], count;
    trn_attr za[] = {trn_attr__type("T", t), trn_attr__type("out_type", TRN_INT32)}, fa[] = {trn_attr__type("SrcT", TRN_INT32), trn_attr__type("DstT", t)};
    trn_edge o = {c->nd->id, 0};
    TRN_TRY(node(&n[0], c, "Size", za, 2, &x, 1));
    TRN_TRY(node(&n[1], c, "Size", za, 2, &o, 1));
    TRN_TRY(typed(&n[1], c, "Maximum", TRN_INT32, (trn_edge[]){n[1], one}, 2));
    TRN_TRY(typed(&count, c, "FloorDiv", TRN_INT32, n, 2));
    TRN_TRY(node(&count, c, "Cast", fa, 2, &count, 1));
    return typed(&dx[0], c, "RealDiv", t, (trn_edge[]){dx[0], count}, 2);
}

static trn_err soft_max(trn_edge *dx, grad *c, bool log)
{
    trn_edge o = {c->nd->id, 0}, d = c->dy[0], last, t;
    trn_dtype dt = type_of(c, d);
    TRN_TRY(constant(&last, c, TRN_INT32, -1));
    if (log) {
        TRN_TRY(sum_over(&t, c, d, last, true));
        TRN_TRY(typed(&o, c, "Exp", dt, &o, 1));
        TRN_TRY(typed(&t, c, "Mul", dt, (trn_edge[]){o, t}, 2));
        return typed(&dx[0], c, "Sub", dt, (trn_edge[]){d, t}, 2);
    }
    TRN_TRY(typed(&t, c, "Mul", dt, (trn_edge[]){d, o}, 2));
    TRN_TRY(sum_over(&t, c, t, last, true));
    TRN_TRY(typed(&t, c, "Sub", dt, (trn_edge[]){d, t}, 2));
    return typed(&dx[0], c, "Mul", dt, (trn_edge[]){t, o}, 2);
}

/* Loss per example, whose derivative the op has worked out already. */
static trn_err cross_entropy(trn_edge *dx, grad *c)
{
    trn_edge last, d = c->dy[0];
    trn_dtype t = type_of(c, d);
    TRN_TRY(constant(&last, c, TRN_INT32, -1));
    trn_attr a[] = {trn_attr__type("T", t), trn_attr__type("Tdim", TRN_INT32)};
    TRN_TRY(node(&d, c, "ExpandDims", a, 2, (trn_edge[]){d, last}, 2));
    return typed(&dx[0], c, "Mul", t, (trn_edge[]){d, {c->nd->id, 1}}, 2);
}

static trn_err transpose(trn_edge *dx, grad *c)
{
    trn_edge p = c->nd->in[1];
    trn_attr a[] = {trn_attr__type("T", type_of(c, c->dy[0])), trn_attr__type("Tperm", type_of(c, p))};
    TRN_TRY(typed(&p, c, "InvertPermutation", type_of(c, p), &p, 1));
    return node(&dx[0], c, "Transpose", a, 2, (trn_edge[]){c->dy[0], p}, 2);
}

static trn_err zeros_for(trn_edge *out, grad *c, trn_edge like) { return typed(out, c, "ZerosLike", type_of(c, like), &like, 1); }

/* All gradients of nd's outputs, zeros where none came. */
static trn_err all_dy(trn_edge *out, grad *c)
{
    for (int i = 0; i < c->nd->n.n_out; i++) {
        out[i] = c->dy[i];
        if (out[i].node < 0)
            TRN_TRY(zeros_for(&out[i], c, (trn_edge){c->nd->id, i}));
    }
    return TRN_OK;
}

static trn_err pack(trn_edge *dx, grad *c)
{
    int n = c->nd->n.n_in;
    trn_attr a[] = {trn_attr__type("T", type_of(c, c->dy[0])), trn_attr__int("num", n), trn_attr__int("axis", trn_attr_int(&c->nd->n, "axis"))};
    TRN_TRY(node(&dx[0], c, "Unpack", a, 3, c->dy, 1));
    for (int i = 1; i < n; i++)
        dx[i] = (trn_edge){dx[0].node, i};
    return TRN_OK;
}

static trn_err unpack(trn_edge *dx, grad *c)
{
    int n = c->nd->n.n_out;
    trn_edge *d = trn_arena_alloc(c->q->tmp, (size_t)TRN_MAX(n, 1) * sizeof *d);
    TRN_TRY(all_dy(d, c));
    trn_attr a[] = {trn_attr__type("T", type_of(c, c->nd->in[0])), trn_attr__int("N", n), trn_attr__int("axis", trn_attr_int(&c->nd->n, "axis"))};
    return node(&dx[0], c, "Pack", a, 3, d, n);
}

static trn_err split(trn_edge *dx, grad *c)
{
    int n = c->nd->n.n_out;
    trn_edge *d = trn_arena_alloc(c->q->tmp, ((size_t)n + 1) * sizeof *d);
    TRN_TRY(all_dy(d, c));
    d[n] = c->nd->in[0];
    trn_attr a[] = {trn_attr__type("T", type_of(c, c->nd->in[1])), trn_attr__int("N", n), trn_attr__type("Tidx", TRN_INT32)};
    return node(&dx[1], c, "ConcatV2", a, 3, d, n + 1);
}

static trn_err concat(trn_edge *dx, grad *c)
{
    int n = c->nd->n.n_in - 1;
    trn_edge axis = c->nd->in[n], at, *s = trn_arena_alloc(c->q->tmp, ((size_t)n + 1) * sizeof *s);
    trn_dtype t = type_of(c, c->dy[0]);
    if (type_of(c, axis) != TRN_INT32) {
        trn_attr a[] = {trn_attr__type("SrcT", type_of(c, axis)), trn_attr__type("DstT", TRN_INT32)};
        TRN_TRY(node(&axis, c, "Cast", a, 2, &axis, 1));
    }
    s[0] = axis;
    for (int i = 0; i < n; i++)
        TRN_TRY(shape_of(&s[i + 1], c, c->nd->in[i]));
    if (n == 1) {
        dx[0] = c->dy[0];
        return TRN_OK;
    }
    trn_attr na = trn_attr__int("N", n), sa[] = {trn_attr__type("T", t), trn_attr__type("Index", TRN_INT32)};
    TRN_TRY(node(&at, c, "ConcatOffset", &na, 1, s, n + 1));
    for (int i = 0; i < n; i++)
        TRN_TRY(node(&dx[i], c, "Slice", sa, 2, (trn_edge[]){c->dy[0], {at.node, i}, s[i + 1]}, 3));
    return TRN_OK;
}

static trn_err select_v2(trn_edge *dx, grad *c)
{
    trn_edge d = c->dy[0], zero, so;
    trn_dtype t = type_of(c, d);
    TRN_TRY(typed(&zero, c, "ZerosLike", t, &d, 1));
    TRN_TRY(shape_of(&so, c, d));
    for (int i = 1; i < 3; i++) {
        trn_edge s, r;
        TRN_TRY(typed(&dx[i], c, "SelectV2", t, (trn_edge[]){c->nd->in[0], i == 1 ? d : zero, i == 1 ? zero : d}, 3));
        TRN_TRY(shape_of(&s, c, c->nd->in[i]));
        TRN_TRY(typed(&r, c, "BroadcastGradientArgs", TRN_INT32, (trn_edge[]){s, so}, 2));
        TRN_TRY(sum_over(&dx[i], c, dx[i], r, false));
        trn_attr a[] = {trn_attr__type("T", t), trn_attr__type("Tshape", TRN_INT32)};
        TRN_TRY(node(&dx[i], c, "Reshape", a, 2, (trn_edge[]){dx[i], s}, 2));
    }
    return TRN_OK;
}

static trn_err bias_add(trn_edge *dx, grad *c)
{
    dx[0] = c->dy[0];
    trn_attr a[] = {trn_attr__type("T", type_of(c, c->dy[0])), trn_attr__str("data_format", trn_attr_str(&c->nd->n, "data_format"))};
    return node(&dx[1], c, "BiasAddGrad", a, 2, c->dy, 1);
}

static trn_err strided_slice(trn_edge *dx, grad *c)
{
    static const char *const mask[] = {"begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"};
    trn_edge s;
    trn_dtype index = type_of(c, c->nd->in[1]);
    trn_attr a[7] = {trn_attr__type("T", type_of(c, c->dy[0])), trn_attr__type("Index", index)};
    for (int i = 0; i < 5; i++)
        a[2 + i] = trn_attr__int(mask[i], trn_attr_int(&c->nd->n, mask[i]));
    trn_attr sa[] = {a[0], trn_attr__type("out_type", index == TRN_INT64 ? TRN_INT64 : TRN_INT32)};
    TRN_TRY(node(&s, c, "Shape", sa, 2, c->nd->in, 1));
    return node(&dx[0], c, "StridedSliceGrad", a, 7, (trn_edge[]){s, c->nd->in[1], c->nd->in[2], c->nd->in[3], c->dy[0]}, 5);
}

/* A call inside the function: its gradient is the gradient of that function, whose turn comes. */
static trn_err call(trn_edge *dx, grad *c, const trn_func_ref *f)
{
    const trn_node *n = &c->nd->n;
    int all = n->n_in + n->n_out;
    trn_edge *in = trn_arena_alloc(c->q->tmp, ((size_t)all + 1) * sizeof *in);
    trn_attr_val *t = trn_arena_alloc(c->q->tmp, ((size_t)all + 1) * sizeof *t);
    memcpy(in, c->nd->in, (size_t)n->n_in * sizeof *in);
    TRN_TRY(all_dy(in + n->n_in, c));
    for (int i = 0; i < all; i++)
        t[i].type = type_of(c, in[i]);
    trn_attr a[] = {{.name = "f", .kind = TRN_ATTR_FUNC, .v.func = f},
                    {.name = "Tin", .kind = TRN_ATTR_TYPE, .is_list = true, .n = all, .list = t},
                    {.name = "Tout", .kind = TRN_ATTR_TYPE, .is_list = true, .n = n->n_in, .list = t}};
    TRN_TRY(node(&dx[0], c, "SymbolicGradient", a, 3, in, all));
    for (int i = 1; i < n->n_in; i++)
        dx[i] = (trn_edge){dx[0].node, i};
    return TRN_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------------------- */

static bool is(const grad *c, const char *op) { return strcmp(c->nd->n.op, op) == 0; }

/* dx: one per input of c->nd, node -1 at entry. */
static trn_err backward(trn_edge *dx, grad *c)
{
    const trn_node *n = &c->nd->n;
    if (!n->def || is(c, "PartitionedCall") || is(c, "StatefulPartitionedCall")) {
        trn_func_ref own = {n->op, n->n_attrs, n->attrs};
        const trn_func_ref *f = n->def ? trn_attr_func(n, "f") : &own;
        if (f && n->n_in && c->g->lib && trn_funclib_has(c->g->lib, f->name))
            return call(dx, c, f);
    }
    for (size_t i = 0; i < TRN_COUNTOF(flat); i++)
        if (is(c, flat[i]))
            return TRN_OK;
    if (is(c, "AddN") || is(c, "IdentityN")) {
        for (int i = 0; i < n->n_in; i++)
            dx[i] = c->dy[is(c, "AddN") ? 0 : i];
        return TRN_OK;
    }
    if (is(c, "Unpack"))
        return unpack(dx, c);
    if (is(c, "Split"))
        return split(dx, c);
    if (c->dy[0].node < 0)
        return TRN_OK; /* only of outputs that stand for no numbers */
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        if (!is(c, rows[i].op))
            continue;
        for (int k = 0; k < 3 && k < n->n_in; k++) {
            const char *p = rows[i].in[k];
            if (p)
                TRN_TRY(term(&dx[k], c, &p));
        }
        return rows[i].spreads ? unbroadcast(dx, c) : TRN_OK;
    }
    if (is(c, "MatMul"))
        return mat_mul(dx, c);
    if (is(c, "BatchMatMul") || is(c, "BatchMatMulV2"))
        return batch_mat_mul(dx, c);
    if (is(c, "Cast"))
        return cast(dx, c);
    if (is(c, "Sum") || is(c, "Mean"))
        return reduction(dx, c, is(c, "Mean"));
    if (is(c, "Softmax") || is(c, "LogSoftmax"))
        return soft_max(dx, c, is(c, "LogSoftmax"));
    if (is(c, "SoftmaxCrossEntropyWithLogits") || is(c, "SparseSoftmaxCrossEntropyWithLogits"))
        return cross_entropy(dx, c);
    if (is(c, "Transpose"))
        return transpose(dx, c);
    if (is(c, "Pack"))
        return pack(dx, c);
    if (is(c, "ConcatV2"))
        return concat(dx, c);
    if (is(c, "SelectV2"))
        return select_v2(dx, c);
    if (is(c, "StridedSlice"))
        return strided_slice(dx, c);
    if (is(c, "BiasAdd"))
        return bias_add(dx, c);
    return trn_errorf(TRN_NOT_FOUND, "No gradient defined for op: %s (node '%s')", n->op, n->name);
}

static void come(grad *c, trn_edge to, trn_edge d)
{
    int i = to.node - c->q->first;
    if (to.node < c->q->first || to.node >= c->q->end || d.node < 0)
        return; /* from outside: nobody asks */
    int n_out = TRN_MAX(c->g->node[to.node]->n.n_out, 1);
    if (!c->acc[i])
        c->acc[i] = trn_arena_alloc(c->q->tmp, (size_t)n_out * sizeof **c->acc);
    sums *s = &c->acc[i][to.slot];
    if (s->n == s->cap) {
        int cap = TRN_MAX(4, 2 * s->cap);
        trn_edge *e = trn_arena_alloc(c->q->tmp, (size_t)cap * sizeof *e);
        if (s->n)
            memcpy(e, s->e, (size_t)s->n * sizeof *e);
        s->e = e;
        s->cap = cap;
    }
    s->e[s->n++] = d;
}

/* The sum of what came for an output; node -1: nothing. */
static trn_err total(trn_edge *out, grad *c, trn_edge of)
{
    const sums *s = c->acc[of.node - c->q->first] ? &c->acc[of.node - c->q->first][of.slot] : NULL;
    *out = (trn_edge){-1, 0};
    if (!s || !s->n)
        return TRN_OK;
    *out = s->e[0];
    if (s->n == 1)
        return TRN_OK;
    trn_attr a[] = {trn_attr__type("T", type_of(c, s->e[0])), trn_attr__int("N", s->n)};
    return node(out, c, "AddN", a, 2, s->e, s->n);
}

/* Users first. Returns how many nodes; those on a cycle are left out. */
static int users_first(int *order, const grad *c)
{
    int n = c->q->end - c->q->first, k = 0, *uses = trn_arena_alloc(c->q->tmp, ((size_t)n + 1) * sizeof *uses);
    for (int i = 0; i < n; i++) {
        const trn_gnode *nd = c->g->node[c->q->first + i];
        for (int j = 0; nd && j < nd->n.n_in; j++)
            if (nd->in[j].node >= c->q->first && nd->in[j].node < c->q->end)
                uses[nd->in[j].node - c->q->first]++;
    }
    for (int i = 0; i < n; i++)
        if (c->g->node[c->q->first + i] && !uses[i])
            order[k++] = i;
    for (int at = 0; at < k; at++) {
        const trn_gnode *nd = c->g->node[c->q->first + order[at]];
        for (int j = 0; j < nd->n.n_in; j++) {
            int from = nd->in[j].node - c->q->first;
            if (from >= 0 && from < n && --uses[from] == 0)
                order[k++] = from;
        }
    }
    return k;
}

trn_err trn_gradient_of(trn_edge *dx, const trn_gradient *q, const trn_edge *x, int n_x, const trn_edge *y, const trn_edge *dy, int n_y)
{
    int n = q->end - q->first;
    grad c = {.q = q, .g = q->g, .acc = trn_arena_alloc(q->tmp, ((size_t)n + 1) * sizeof *c.acc)};
    int *order = trn_arena_alloc(q->tmp, ((size_t)n + 1) * sizeof *order);
    for (int i = 0; i < n_y; i++)
        come(&c, y[i], dy[i]);
    int k = users_first(order, &c);
    for (int i = 0; i < k; i++) {
        c.nd = q->g->node[q->first + order[i]];
        bool wanted = false;
        for (int j = 0; j < n_x; j++)
            wanted |= x[j].node == c.nd->id;
        if (!c.acc[order[i]] || c.nd->n.n_in == 0 || wanted)
            continue;
        trn_edge *d = trn_arena_alloc(q->tmp, (size_t)TRN_MAX(c.nd->n.n_out, 1) * sizeof *d);
        trn_edge *in = trn_arena_alloc(q->tmp, (size_t)TRN_MAX(TRN_MAX(c.nd->n.n_in, 3), 1) * sizeof *in);
        for (int j = 0; j < c.nd->n.n_out; j++)
            TRN_TRY(total(&d[j], &c, (trn_edge){c.nd->id, j}));
        for (int j = 0; j < c.nd->n.n_in; j++)
            in[j] = (trn_edge){-1, 0};
        c.dy = d;
        TRN_TRY(backward(in, &c));
        for (int j = 0; j < c.nd->n.n_in; j++)
            come(&c, c.nd->in[j], in[j]);
    }
    for (int i = 0; i < n_x; i++) {
        TRN_TRY(total(&dx[i], &c, x[i]));
        if (dx[i].node < 0)
            TRN_TRY(zeros_for(&dx[i], &c, x[i]));
    }
    return TRN_OK;
}
