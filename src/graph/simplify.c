/* Nodes that do nothing, or what fewer nodes do as well: one row per op in the table at the end.
 *
 * A rule may only take away what cannot be seen: every result keeps its bits (x + 0 is not x when x is -0; the order in which a product sums is
 * nobody's business), its shape and its error. So shapes must be known where a constant could broadcast, and an inner node whose error would vanish must be known to have none. Constants that wait for something
 * are left alone, since what they wait for may never come. */
#include "graph/optimise_priv.h"

typedef trn_err (*rule_fn)(bool *gone, trn_opt *p, trn_gnode *nd);

static trn_err bypass(bool *gone, trn_opt *p, trn_gnode *nd, trn_edge to)
{
    *gone = nd->n.n_out == 1 && trn_opt__may_bypass(p, nd, to);
    if (*gone)
        trn_opt__move(p, nd, &to);
    return TRN_OK;
}

/* A constant that waits for nothing. */
static trn_tensor *free_const(const trn_opt *p, trn_edge e)
{
    trn_tensor *t = trn_opt__const(p, e);
    return t && p->g->node[e.node]->n_ctl == 0 ? t : NULL;
}

/* The node behind an edge when it is that op, pure and waiting for nothing. */
static trn_gnode *inner(const trn_opt *p, trn_edge e, const char *op)
{
    trn_gnode *from = p->g->node[e.node];
    return trn_gnode__is(from, op) && trn_opt__is_pure(from) && from->n_ctl == 0 && e.slot == 0 ? from : NULL;
}

static bool known_equal(const trn_shape *a, const trn_shape *b)
{
    return trn_shape_is_full(a) && trn_shape_is_full(b) && trn_shape_eq(a, b);
}

static bool ints_of(int64_t *v, int *n, int max, const trn_tensor *t)
{
    if (!t || (t->dtype != TRN_INT32 && t->dtype != TRN_INT64) || t->count > max)
        return false;
    *n = (int)t->count;
    for (int i = 0; i < *n; i++)
        v[i] = t->dtype == TRN_INT32 ? TRN_DATA(t, int32_t)[i] : TRN_DATA(t, int64_t)[i];
    return true;
}

/* ---- neutral operands ------------------------------------------------------------------------------------------- */

/* Bytes of one element with the value 0, 1 or -0. */
typedef enum neutral { ZERO, ONE, MINUS_ZERO } neutral;
static bool element(void *out, trn_dtype t, neutral v)
{
    bool one = v == ONE;
    switch (t) {
    case TRN_FLOAT: *(float *)out = v == MINUS_ZERO ? -0.0F : (float)one; return true;
    case TRN_DOUBLE: *(double *)out = v == MINUS_ZERO ? -0.0 : (double)one; return true;
    case TRN_HALF: *(uint16_t *)out = v == MINUS_ZERO ? 0x8000 : one ? 0x3c00 : 0; return true;
    case TRN_BFLOAT16: *(uint16_t *)out = v == MINUS_ZERO ? 0x8000 : one ? 0x3f80 : 0; return true;
    case TRN_INT8:
    case TRN_UINT8: *(uint8_t *)out = one; return true;
    case TRN_INT16:
    case TRN_UINT16: *(uint16_t *)out = one; return true;
    case TRN_INT32:
    case TRN_UINT32: *(uint32_t *)out = one; return true;
    case TRN_INT64:
    case TRN_UINT64: *(uint64_t *)out = one; return true;
    default: return false; /* complex: (inf + i) * 1 is not itself */
    }
}

static bool is_integer(trn_dtype t)
{
    return t == TRN_INT8 || t == TRN_INT16 || t == TRN_INT32 || t == TRN_INT64 || t == TRN_UINT8 || t == TRN_UINT16 || t == TRN_UINT32 || t == TRN_UINT64;
}
static bool is_real(trn_dtype t) { return t == TRN_FLOAT || t == TRN_DOUBLE || t == TRN_HALF || t == TRN_BFLOAT16; }

/* Does the constant leave `other` as it is, shape included? */
static bool leaves(const trn_opt *p, trn_edge c, trn_edge other, neutral v)
{
    const trn_tensor *t = free_const(p, c);
    const trn_shape *s = trn_opt__shape(p, other);
    union {
        uint64_t align;
        uint8_t b[8];
    } want;
    if (!t || t->count < 1 || t->count > 65536 || !element(&want, t->dtype, v))
        return false;
    bool fits = t->shape.rank == 0 || (t->count == 1 && s->rank >= t->shape.rank) || known_equal(&t->shape, s);
    size_t size = trn_dtype_size(t->dtype);
    for (int64_t i = 0; fits && i < t->count; i++)
        fits = memcmp((const char *)t->data + (size_t)i * size, want.b, size) == 0;
    return fits;
}

static trn_err right_operand(bool *gone, trn_opt *p, trn_gnode *nd, neutral v)
{
    return leaves(p, nd->in[1], nd->in[0], v) ? bypass(gone, p, nd, nd->in[0]) : TRN_OK;
}
static trn_err any_operand(bool *gone, trn_opt *p, trn_gnode *nd, neutral v)
{
    TRN_TRY(right_operand(gone, p, nd, v));
    return !*gone && leaves(p, nd->in[0], nd->in[1], v) ? bypass(gone, p, nd, nd->in[1]) : TRN_OK;
}

static trn_err r_times_one(bool *gone, trn_opt *p, trn_gnode *nd) { return any_operand(gone, p, nd, ONE); }
static trn_err r_by_one(bool *gone, trn_opt *p, trn_gnode *nd) { return right_operand(gone, p, nd, ONE); }
static trn_err r_minus_zero(bool *gone, trn_opt *p, trn_gnode *nd) { return right_operand(gone, p, nd, ZERO); }
static trn_err r_plus_zero(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return any_operand(gone, p, nd, is_real(nd->n.out_types[0]) ? MINUS_ZERO : ZERO); /* -0 + 0 is 0 */
}

/* ---- twice is once, or not at all ------------------------------------------------------------------------------- */

static trn_err r_involution(bool *gone, trn_opt *p, trn_gnode *nd)
{
    const trn_gnode *in = inner(p, nd->in[0], nd->n.op);
    return in ? bypass(gone, p, nd, in->in[0]) : TRN_OK;
}
static trn_err r_idempotent(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return inner(p, nd->in[0], nd->n.op) ? bypass(gone, p, nd, nd->in[0]) : TRN_OK;
}
static trn_err r_single(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return nd->n.n_in == 1 ? bypass(gone, p, nd, nd->in[0]) : TRN_OK;
}

/* ---- types ------------------------------------------------------------------------------------------------------ */

/* Does every value of `a` survive the way to b and back? */
static bool holds(trn_dtype b, trn_dtype a)
{
    switch (a) {
    case TRN_HALF:
    case TRN_BFLOAT16: return b == TRN_FLOAT || b == TRN_DOUBLE;
    case TRN_FLOAT: return b == TRN_DOUBLE;
    case TRN_INT8: return b == TRN_INT16 || b == TRN_INT32 || b == TRN_INT64 || b == TRN_FLOAT || b == TRN_DOUBLE;
    case TRN_UINT8: return b == TRN_INT16 || b == TRN_UINT16 || b == TRN_INT32 || b == TRN_INT64 || b == TRN_FLOAT || b == TRN_DOUBLE;
    case TRN_INT16:
    case TRN_UINT16: return b == TRN_INT32 || b == TRN_INT64 || b == TRN_FLOAT || b == TRN_DOUBLE;
    case TRN_INT32: return b == TRN_INT64 || b == TRN_DOUBLE;
    case TRN_UINT32: return b == TRN_INT64 || b == TRN_UINT64 || b == TRN_DOUBLE;
    case TRN_BOOL: return b == TRN_INT8 || b == TRN_UINT8 || b == TRN_INT32 || b == TRN_INT64 || b == TRN_FLOAT || b == TRN_DOUBLE;
    default: return false;
    }
}

static trn_err r_cast(bool *gone, trn_opt *p, trn_gnode *nd)
{
    trn_dtype from = nd->n.in_types[0], to = nd->n.out_types[0];
    if (from == to)
        return bypass(gone, p, nd, nd->in[0]);
    const trn_gnode *in = inner(p, nd->in[0], "Cast");
    if (!in || in->n.in_types[0] != to || !holds(from, to) || trn_attr_bool(&in->n, "Truncate") || trn_attr_bool(&nd->n, "Truncate"))
        return TRN_OK;
    return bypass(gone, p, nd, in->in[0]);
}

/* ---- shapes ----------------------------------------------------------------------------------------------------- */

/* The same elements in the same order: nothing to do when the shape is the same, too. */
static trn_err r_same_shape(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return known_equal(trn_opt__shape(p, nd->in[0]), trn_opt__shape(p, (trn_edge){nd->id, 0})) ? bypass(gone, p, nd, nd->in[0]) : TRN_OK;
}

static trn_err r_reshape(bool *gone, trn_opt *p, trn_gnode *nd)
{
    const trn_tensor *to = free_const(p, nd->in[1]);
    if (!to)
        return TRN_OK;
    TRN_TRY(r_same_shape(gone, p, nd));
    static const char *const ops[] = {"Reshape", "ExpandDims", "Squeeze"};
    for (size_t i = 0; i < TRN_COUNTOF(ops) && !*gone; i++) {
        const trn_gnode *in = inner(p, nd->in[0], ops[i]);
        int64_t a, b;
        /* Only when the inner one is known to succeed. */
        if (!in || strcmp(in->n.device, nd->n.device) != 0 || !trn_shape_is_full(trn_opt__shape(p, in->in[0])) ||
            !trn_shape_is_full(trn_opt__shape(p, nd->in[0])))
            continue;
        TRN_TRY(trn_shape_count(&a, trn_opt__shape(p, in->in[0])));
        TRN_TRY(trn_shape_count(&b, trn_opt__shape(p, nd->in[0])));
        if (a == b && (in->n.n_in < 2 || free_const(p, in->in[1])))
            nd->in[0] = in->in[0];
    }
    return TRN_OK;
}

static bool perm_of(int64_t *v, int *n, const trn_opt *p, const trn_gnode *nd)
{
    const trn_shape *s = trn_opt__shape(p, nd->in[0]);
    if (!ints_of(v, n, TRN_MAX_RANK, free_const(p, nd->in[1])) || s->rank != *n)
        return false;
    bool seen[TRN_MAX_RANK] = {false};
    for (int i = 0; i < *n; i++) {
        if (v[i] < 0)
            v[i] += *n;
        if (v[i] < 0 || v[i] >= *n || seen[v[i]])
            return false; /* its error is to be seen */
        seen[v[i]] = true;
    }
    return true;
}

static trn_err r_transpose(bool *gone, trn_opt *p, trn_gnode *nd)
{
    int64_t a[TRN_MAX_RANK], b[TRN_MAX_RANK];
    int n, m;
    if (!perm_of(a, &n, p, nd))
        return TRN_OK;
    bool same = true, back = true;
    for (int i = 0; i < n; i++)
        same &= a[i] == i;
    if (same)
        return bypass(gone, p, nd, nd->in[0]);
    const trn_gnode *in = inner(p, nd->in[0], "Transpose");
    if (!in || !perm_of(b, &m, p, in) || m != n)
        return TRN_OK;
    for (int i = 0; i < n; i++)
        back &= b[a[i]] == i;
    return back ? bypass(gone, p, nd, in->in[0]) : TRN_OK;
}

/* Every element of the second input is v, and there is one per dimension (or per dimension and side). */
static trn_err r_all_are(bool *gone, trn_opt *p, trn_gnode *nd, int64_t v, int per_dim)
{
    int64_t x[2 * TRN_MAX_RANK];
    int n;
    const trn_shape *s = trn_opt__shape(p, nd->in[0]);
    if (!ints_of(x, &n, 2 * TRN_MAX_RANK, free_const(p, nd->in[1])) || s->rank < 0 || n != s->rank * per_dim)
        return TRN_OK;
    for (int i = 0; i < n; i++)
        if (x[i] != v)
            return TRN_OK;
    return bypass(gone, p, nd, nd->in[0]);
}
static trn_err r_tile(bool *gone, trn_opt *p, trn_gnode *nd) { return r_all_are(gone, p, nd, 1, 1); }
static trn_err r_pad(bool *gone, trn_opt *p, trn_gnode *nd) { return r_all_are(gone, p, nd, 0, 2); }

static trn_err r_slice(bool *gone, trn_opt *p, trn_gnode *nd)
{
    int64_t begin[TRN_MAX_RANK], size[TRN_MAX_RANK];
    int n, m;
    const trn_shape *s = trn_opt__shape(p, nd->in[0]);
    if (!ints_of(begin, &n, TRN_MAX_RANK, free_const(p, nd->in[1])) || !ints_of(size, &m, TRN_MAX_RANK, free_const(p, nd->in[2])) || n != m ||
        s->rank != n)
        return TRN_OK;
    for (int i = 0; i < n; i++)
        if (begin[i] != 0 || (size[i] != -1 && size[i] != s->dim[i]))
            return TRN_OK;
    return bypass(gone, p, nd, nd->in[0]);
}

/* Over no axis, or over axes of one that stay. Only of integers: sums of floats begin with 0, and 0 + -0 is 0; maxima see NaN in their own way. */
static trn_err r_reduce(bool *gone, trn_opt *p, trn_gnode *nd)
{
    int64_t axis[TRN_MAX_RANK];
    int n;
    const trn_shape *s = trn_opt__shape(p, nd->in[0]);
    if (!ints_of(axis, &n, TRN_MAX_RANK, free_const(p, nd->in[1])) || s->rank < 0 || nd->n.in_types[0] != nd->n.out_types[0])
        return TRN_OK;
    if (!is_integer(nd->n.out_types[0]) && nd->n.out_types[0] != TRN_BOOL)
        return TRN_OK;
    bool seen[TRN_MAX_RANK] = {false};
    for (int i = 0; i < n; i++) {
        int64_t d = axis[i] < 0 ? axis[i] + s->rank : axis[i];
        if (d < 0 || d >= s->rank || seen[d] || s->dim[d] != 1 || !trn_attr_bool(&nd->n, "keep_dims"))
            return TRN_OK;
        seen[d] = true;
    }
    return bypass(gone, p, nd, nd->in[0]);
}

/* ---- transposes into products ----------------------------------------------------------------------------------- */

static bool swaps_last_two(const trn_opt *p, const trn_gnode *t)
{
    int64_t v[TRN_MAX_RANK];
    int n;
    if (!perm_of(v, &n, p, t) || n < 2 || v[n - 1] != n - 2 || v[n - 2] != n - 1)
        return false;
    for (int i = 0; i < n - 2; i++)
        if (v[i] != i)
            return false;
    return true;
}

static trn_err transposed(bool *gone, trn_opt *p, trn_gnode *nd, const char *const attr[2])
{
    (void)gone;
    for (int i = 0; i < 2; i++) {
        const trn_gnode *t = inner(p, nd->in[i], "Transpose");
        if (!t || strcmp(t->n.device, nd->n.device) != 0 || (!is_real(nd->n.in_types[i]) && !is_integer(nd->n.in_types[i])) || !swaps_last_two(p, t))
            continue;
        const trn_gnode *from = p->g->node[t->in[0].node];
        if (!from->n.def || (from->n.def->row->flags & TRN_OP_SWITCH))
            continue;
        trn_attr v = trn_attr__bool(attr[i], !trn_attr_bool(&nd->n, attr[i])), copy;
        trn_attr__copy(&copy, p->g->arena, &v);
        trn_gnode__set_attr(nd, p->g->arena, &copy);
        nd->in[i] = t->in[0];
    }
    return TRN_OK;
}
static trn_err r_matmul(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return transposed(gone, p, nd, (const char *const[]){"transpose_a", "transpose_b"});
}
static trn_err r_batch_matmul(bool *gone, trn_opt *p, trn_gnode *nd)
{
    return transposed(gone, p, nd, (const char *const[]){"adj_x", "adj_y"});
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *op;
    rule_fn rule;
} rules[] = {
    {"Mul", r_times_one},
    {"Div", r_by_one},
    {"RealDiv", r_by_one},
    {"TruncateDiv", r_by_one},
    {"Pow", r_by_one},
    {"Sub", r_minus_zero},
    {"Add", r_plus_zero},
    {"AddV2", r_plus_zero},
    {"AddN", r_single},
    {"Neg", r_involution},
    {"LogicalNot", r_involution},
    {"Invert", r_involution},
    {"Conj", r_involution},
    {"Relu", r_idempotent},
    {"Relu6", r_idempotent},
    {"Abs", r_idempotent},
    {"Floor", r_idempotent},
    {"Ceil", r_idempotent},
    {"Rint", r_idempotent},
    {"Round", r_idempotent},
    {"Sign", r_idempotent},
    {"Cast", r_cast},
    {"Reshape", r_reshape},
    {"Squeeze", r_same_shape},
    {"BroadcastTo", r_same_shape},
    {"Transpose", r_transpose},
    {"Tile", r_tile},
    {"Pad", r_pad},
    {"PadV2", r_pad},
    {"MirrorPad", r_pad},
    {"Slice", r_slice},
    {"Sum", r_reduce},
    {"Mean", r_reduce},
    {"Prod", r_reduce},
    {"Max", r_reduce},
    {"Min", r_reduce},
    {"All", r_reduce},
    {"Any", r_reduce},
    {"MatMul", r_matmul},
    {"BatchMatMul", r_batch_matmul},
    {"BatchMatMulV2", r_batch_matmul},
    {"BatchMatMulV3", r_batch_matmul},
};

trn_err trn_opt__simplify(bool *gone, trn_opt *p, trn_gnode *nd)
{
    *gone = false;
    for (size_t i = 0; i < TRN_COUNTOF(rules); i++)
        if (trn_gnode__is(nd, rules[i].op))
            return rules[i].rule(gone, p, nd);
    return TRN_OK;
}
