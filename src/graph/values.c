/* What small integer tensors will hold, as far as it follows from constants and known shapes: the "shape" input of a Reshape is often computed from the
 * shape of something else. A dim that is not known stays unknown (-1) on its way. */
#include "graph/graph_priv.h"

#define MAX_VALUES TRN_MAX_RANK
#define MAX_NODES 64 /* looked at for one value */

typedef struct value {
    int rank; /* 0 or 1 */
    int n;
    int64_t v[MAX_VALUES];
    bool known[MAX_VALUES];
} value;

typedef struct look {
    const trn_graph *g;
    trn_shape *const *shape;
    int left;
} look;

static bool value_of(value *out, look *l, trn_edge e);

static bool from_tensor(value *out, const trn_tensor *t)
{
    if (!t || t->shape.rank > 1 || t->count > MAX_VALUES || (t->dtype != TRN_INT32 && t->dtype != TRN_INT64))
        return false;
    *out = (value){.rank = t->shape.rank, .n = (int)t->count};
    for (int i = 0; i < out->n; i++) {
        out->v[i] = t->dtype == TRN_INT32 ? TRN_DATA(t, int32_t)[i] : TRN_DATA(t, int64_t)[i];
        out->known[i] = true;
    }
    return true;
}

static bool from_shape(value *out, const trn_shape *s)
{
    if (!s || s->rank < 0)
        return false;
    *out = (value){.rank = 1, .n = s->rank};
    for (int i = 0; i < s->rank; i++) {
        out->v[i] = s->dim[i];
        out->known[i] = s->dim[i] >= 0;
    }
    return true;
}

static const trn_shape *shape_at(const look *l, trn_edge e)
{
    const trn_gnode *nd = e.node >= 0 ? l->g->node[e.node] : NULL;
    return nd && l->shape[nd->id] && e.slot < nd->n.n_out ? &l->shape[nd->id][e.slot] : NULL;
}

/* Scalars (rank 0) or vectors, behind each other. */
static bool join(value *out, look *l, const trn_gnode *nd, int n, int rank)
{
    *out = (value){.rank = 1};
    for (int i = 0; i < n; i++) {
        value v;
        if (!value_of(&v, l, nd->in[i]) || v.rank != rank || out->n + v.n > MAX_VALUES)
            return false;
        for (int k = 0; k < v.n; k++) {
            out->v[out->n] = v.v[k];
            out->known[out->n++] = v.known[k];
        }
    }
    return true;
}

/* x[3], x[1:], x[:-1]: one dimension, positive stride, no ellipsis. */
static bool strided_slice(value *out, look *l, const trn_gnode *nd)
{
    value x, b, e, s;
    int64_t masks = trn_attr_int(&nd->n, "ellipsis_mask") | trn_attr_int(&nd->n, "new_axis_mask");
    if (masks || !value_of(&x, l, nd->in[0]) || x.rank != 1 || !value_of(&b, l, nd->in[1]) || !value_of(&e, l, nd->in[2]) || !value_of(&s, l, nd->in[3]))
        return false;
    if (b.n != 1 || e.n != 1 || s.n != 1 || !b.known[0] || !e.known[0] || !s.known[0] || s.v[0] <= 0)
        return false;
    int64_t from = trn_attr_int(&nd->n, "begin_mask") & 1 ? 0 : b.v[0], to = trn_attr_int(&nd->n, "end_mask") & 1 ? x.n : e.v[0];
    from = TRN_MIN(TRN_MAX(from < 0 ? from + x.n : from, 0), x.n);
    bool shrink = trn_attr_int(&nd->n, "shrink_axis_mask") & 1;
    to = shrink ? from + 1 : TRN_MIN(TRN_MAX(to < 0 ? to + x.n : to, 0), x.n);
    if (to > x.n)
        return false;
    *out = (value){.rank = shrink ? 0 : 1};
    for (int64_t i = from; i < to; i += s.v[0]) {
        out->v[out->n] = x.v[i];
        out->known[out->n++] = x.known[i];
    }
    return true;
}

static bool binary(value *out, look *l, const trn_gnode *nd, char op)
{
    value x, y;
    if (!value_of(&x, l, nd->in[0]) || !value_of(&y, l, nd->in[1]) || (x.n != y.n && x.n != 1 && y.n != 1))
        return false;
    *out = (value){.rank = TRN_MAX(x.rank, y.rank), .n = x.n == 1 ? y.n : x.n};
    for (int i = 0; i < out->n; i++) {
        int ix = x.n == 1 ? 0 : i, iy = y.n == 1 ? 0 : i;
        int64_t a = x.v[ix], c = y.v[iy], r = 0;
        bool ok = x.known[ix] && y.known[iy];
        if (op == '/') {
            ok = ok && c > 0 && a >= 0;
            r = ok ? a / c : 0;
        } else if (op == '*')
            ok = !__builtin_mul_overflow(a, c, &r) && ok;
        else if (op == '+')
            ok = !__builtin_add_overflow(a, c, &r) && ok;
        else
            ok = !__builtin_sub_overflow(a, c, &r) && ok;
        out->v[i] = ok ? r : -1;
        out->known[i] = ok;
    }
    return true;
}

static bool product(value *out, look *l, const trn_gnode *nd)
{
    value x;
    if (!value_of(&x, l, nd->in[0]))
        return false;
    *out = (value){.rank = trn_attr_bool(&nd->n, "keep_dims") ? x.rank : 0, .n = 1, .v = {1}, .known = {true}};
    for (int i = 0; i < x.n; i++)
        out->known[0] = x.known[i] && !__builtin_mul_overflow(out->v[0], x.v[i], &out->v[0]) && out->known[0];
    return true;
}

static bool value_of(value *out, look *l, trn_edge e)
{
    const trn_gnode *nd = e.node >= 0 ? l->g->node[e.node] : NULL;
    if (!nd || e.slot != 0 || l->left-- <= 0)
        return false;
    const char *op = nd->n.op;
    if (strcmp(op, "Const") == 0)
        return from_tensor(out, trn_attr_tensor(&nd->n, "value"));
    if (!nd->n.def || nd->n.n_in < 1 || nd->n.n_out < 1 || (nd->n.out_types[0] != TRN_INT32 && nd->n.out_types[0] != TRN_INT64))
        return false;
    if (strcmp(op, "Shape") == 0)
        return from_shape(out, shape_at(l, nd->in[0]));
    if (strcmp(op, "Rank") == 0 || strcmp(op, "Size") == 0) {
        const trn_shape *s = shape_at(l, nd->in[0]);
        int64_t n = -1;
        if (s && s->rank >= 0 && *op == 'R')
            n = s->rank;
        else if (s && trn_shape_is_full(s))
            trn_err_free(trn_shape_count(&n, s));
        *out = (value){.n = 1, .v = {n}, .known = {true}};
        return n >= 0;
    }
    if (strcmp(op, "Identity") == 0 || strcmp(op, "StopGradient") == 0 || strcmp(op, "Cast") == 0)
        return value_of(out, l, nd->in[0]);
    if (strcmp(op, "Pack") == 0)
        return join(out, l, nd, nd->n.n_in, 0); /* packed vectors, were they of one element, are a matrix */
    if (strcmp(op, "ConcatV2") == 0)
        return join(out, l, nd, nd->n.n_in - 1, 1);
    if (strcmp(op, "StridedSlice") == 0)
        return strided_slice(out, l, nd);
    if (strcmp(op, "ExpandDims") == 0 || strcmp(op, "Squeeze") == 0) {
        bool up = *op == 'E';
        if (!value_of(out, l, nd->in[0]) || out->n != 1 || out->rank != (up ? 0 : 1))
            return false;
        out->rank = up;
        return true;
    }
    if (strcmp(op, "Mul") == 0 || strcmp(op, "AddV2") == 0 || strcmp(op, "Add") == 0 || strcmp(op, "Sub") == 0 || strcmp(op, "FloorDiv") == 0)
        return binary(out, l, nd, *op == 'M' ? '*' : *op == 'A' ? '+' : *op == 'S' ? '-' : '/');
    if (strcmp(op, "Prod") == 0)
        return product(out, l, nd);
    return false;
}

trn_tensor *trn_infer__value(const trn_graph *g, trn_shape *const *shape, trn_edge e, int *unknown)
{
    const trn_gnode *nd = e.node >= 0 ? g->node[e.node] : NULL;
    if (!nd || e.slot >= nd->n.n_out || (nd->n.out_types[e.slot] != TRN_INT32 && nd->n.out_types[e.slot] != TRN_INT64))
        return NULL;
    value v;
    look l = {g, shape, MAX_NODES};
    if (!value_of(&v, &l, e))
        return NULL;
    trn_tensor *t;
    trn_shape s = v.rank ? trn_shape_vector(v.n) : trn_shape_scalar();
    trn_err err = trn_tensor_new(&t, nd->n.out_types[e.slot], &s);
    if (err) {
        trn_err_free(err);
        return NULL;
    }
    *unknown = 0;
    for (int i = 0; i < v.n; i++) {
        int64_t x = v.known[i] ? v.v[i] : -1;
        *unknown += !v.known[i];
        if (t->dtype == TRN_INT32)
            TRN_DATA_MUT(t, int32_t)[i] = (int32_t)x;
        else
            TRN_DATA_MUT(t, int64_t)[i] = x;
    }
    return t;
}
