/* What rows are made of: nodes, constants, shapes, and the little language of terms. */
#include <stdlib.h>

#include "grad/rows.h"

bool trn_g_ok(const trn_grad_ctx *c) { return c->h->ok(c->h->arg); }

void trn_g_fail(trn_grad_ctx *c, trn_err err) { c->h->fail(c->h->arg, err); }

trn_dtype trn_g_type(const trn_grad_ctx *c, trn_out o)
{
    const trn_node *n = trn_out_is(o) ? c->h->node(c->h->arg, o.node) : NULL;
    return n && o.slot >= 0 && o.slot < n->n_out ? trn_dtype_base(n->out_types[o.slot]) : TRN_INVALID;
}

trn_shape trn_g_shape(const trn_grad_ctx *c, trn_out o)
{
    const trn_shape *s = trn_out_is(o) ? c->h->shape(c->h->arg, o) : NULL;
    return s ? *s : trn_shape_unknown();
}

const trn_tensor *trn_g_value(const trn_grad_ctx *c, trn_out o)
{
    const trn_node *n = trn_out_is(o) ? c->h->node(c->h->arg, o.node) : NULL;
    return n && strcmp(n->op, "Const") == 0 ? trn_attr_tensor(n, "value") : NULL;
}

bool trn_g_ints(int64_t *out, int *n, int max, const trn_grad_ctx *c, trn_out o)
{
    const trn_tensor *t = trn_g_value(c, o);
    if (!t || (t->dtype != TRN_INT32 && t->dtype != TRN_INT64) || trn_tensor_count(t) > max)
        return false;
    *n = (int)trn_tensor_count(t);
    for (int i = 0; i < *n; i++)
        out[i] = t->dtype == TRN_INT32 ? TRN_DATA(t, int32_t)[i] : TRN_DATA(t, int64_t)[i];
    return true;
}

bool trn_g_is_complex(trn_dtype t) { return t == TRN_COMPLEX64 || t == TRN_COMPLEX128; }

bool trn_g_trainable(trn_dtype t)
{
    return t == TRN_FLOAT || t == TRN_DOUBLE || t == TRN_HALF || t == TRN_BFLOAT16 || trn_g_is_complex(t) || t == TRN_RESOURCE || t == TRN_VARIANT;
}

trn_out trn_g_node(trn_grad_ctx *c, const char *op, const trn_out *in, int n_in, const trn_attr *attrs, int n_attrs)
{
    if (!trn_g_ok(c))
        return TRN_NONE;
    for (int i = 0; i < n_in; i++)
        if (!trn_out_is(in[i])) {
            trn_g_fail(c, trn_errorf(TRN_INTERNAL, "the gradient of %s '%s' makes a node %s without input %d", c->n ? c->n->op : "", c->n ? c->n->name : "", op, i));
            return TRN_NONE;
        }
    return c->h->add(c->h->arg, op, in, n_in, attrs, n_attrs);
}

trn_out trn_g_const(trn_grad_ctx *c, trn_tensor *t)
{
    trn_attr a[] = {trn_attr__type("dtype", t->dtype), trn_attr__tensor("value", t)};
    trn_out o = trn_g_node(c, "Const", NULL, 0, a, 2);
    trn_tensor_unref(t);
    return o;
}

trn_out trn_g_cast(trn_grad_ctx *c, trn_out x, trn_dtype to)
{
    if (!trn_g_ok(c) || trn_g_type(c, x) == to)
        return x;
    trn_attr a = trn_attr__type("DstT", to);
    return trn_g_node(c, "Cast", &x, 1, &a, 1);
}

trn_out trn_g_num(trn_grad_ctx *c, trn_dtype dtype, double v)
{
    switch (dtype) {
    case TRN_FLOAT: return trn_g_const(c, trn_tensor_f32((float)v));
    case TRN_DOUBLE: return trn_g_const(c, trn_tensor_f64(v));
    case TRN_INT32: return trn_g_const(c, trn_tensor_i32((int32_t)v));
    case TRN_INT64: return trn_g_const(c, trn_tensor_i64((int64_t)v));
    case TRN_COMPLEX128: return trn_g_cast(c, trn_g_const(c, trn_tensor_f64(v)), dtype);
    default: return trn_g_cast(c, trn_g_const(c, trn_tensor_f32((float)v)), dtype);
    }
}

trn_out trn_g_i32(trn_grad_ctx *c, int32_t v) { return trn_g_const(c, trn_tensor_i32(v)); }

trn_out trn_g_ints_const(trn_grad_ctx *c, const int64_t *v, int n)
{
    int32_t *p = trn_arena_alloc(c->tmp, ((size_t)n + 1) * sizeof *p);
    for (int i = 0; i < n; i++)
        p[i] = (int32_t)v[i];
    return trn_g_const(c, trn_tensor_from(TRN_INT32, 1, (const int64_t[]){n}, p));
}

trn_out trn_g_shape_of(trn_grad_ctx *c, trn_out x)
{
    for (int i = 0; i < c->n_shapes; i++)
        if (c->shape[i].of.node == x.node && c->shape[i].of.slot == x.slot)
            return c->shape[i].is;
    trn_shape s = trn_g_shape(c, x);
    trn_out o;
    if (trn_shape_is_full(&s)) {
        o = trn_g_ints_const(c, s.dim, s.rank);
    } else {
        trn_attr a = trn_attr__type("out_type", TRN_INT32);
        o = trn_g_node(c, "Shape", &x, 1, &a, 1);
    }
    if (c->n_shapes < (int)TRN_COUNTOF(c->shape)) {
        c->shape[c->n_shapes].of = x;
        c->shape[c->n_shapes++].is = o;
    }
    return o;
}

trn_out trn_g_reshape(trn_grad_ctx *c, trn_out x, trn_out shape) { return TRN_G(c, "Reshape", x, shape); }

trn_out trn_g_like(trn_grad_ctx *c, trn_out x, trn_out like)
{
    trn_shape a = trn_g_shape(c, x), b = trn_g_shape(c, like);
    if (trn_shape_is_full(&a) && trn_shape_eq(&a, &b))
        return x;
    return trn_g_reshape(c, x, trn_g_shape_of(c, like));
}

trn_out trn_g_zeros_like(trn_grad_ctx *c, trn_out x) { return TRN_G(c, "ZerosLike", x); }

trn_out trn_g_zeros(trn_grad_ctx *c, trn_out x, trn_dtype t)
{
    if (!trn_g_ok(c) || trn_g_type(c, x) != TRN_RESOURCE)
        return trn_g_zeros_like(c, x);
    const trn_node *var = c->h->node(c->h->arg, x.node);
    const trn_shape *s = strcmp(var->op, "VarHandleOp") == 0 ? trn_attr_shape(var, "shape") : NULL;
    trn_attr i32 = trn_attr__type("out_type", TRN_INT32);
    trn_out shape = s && trn_shape_is_full(s) ? trn_g_ints_const(c, s->dim, s->rank) : trn_g_node(c, "VariableShape", &x, 1, &i32, 1);
    return TRN_G(c, "Fill", shape, trn_g_num(c, t, 0));
}

static bool same(trn_out a, trn_out b) { return a.node == b.node && a.slot == b.slot; }

/* Which axes of the result were spread from x; false: only a step can tell. */
static bool spread_axes(int64_t *axes, int *n, bool *inner, const trn_shape *x, const trn_shape *other)
{
    *n = 0;
    *inner = false;
    if (x->rank < 0 || other->rank < 0)
        return false;
    int r = TRN_MAX(x->rank, other->rank);
    for (int i = 0; i < r; i++) {
        int ix = i - (r - x->rank), io = i - (r - other->rank);
        if (ix < 0) {
            axes[(*n)++] = i;
            continue;
        }
        bool stays = io < 0 || other->dim[io] == 1;
        if (x->dim[ix] == 1 && !stays) {
            axes[(*n)++] = i;
            *inner = true;
        } else if (x->dim[ix] < 0 && !stays) {
            return false;
        }
    }
    return true;
}

trn_out trn_g_sum_to(trn_grad_ctx *c, trn_out d, trn_out x, trn_out other)
{
    trn_shape xs = trn_g_shape(c, x), os = trn_g_shape(c, other);
    int64_t axes[TRN_MAX_RANK];
    int n;
    bool inner;
    if (!trn_g_ok(c) || same(x, other))
        return d;
    if (spread_axes(axes, &n, &inner, &xs, &os)) {
        if (n == 0)
            return d;
        trn_attr keep = trn_attr__bool("keep_dims", false);
        d = trn_g_node(c, "Sum", TRN_OUTS(d, trn_g_ints_const(c, axes, n)), &keep, 1);
        return inner ? trn_g_reshape(c, d, trn_g_shape_of(c, x)) : d;
    }
    trn_out sx = trn_g_shape_of(c, x), r;
    int slot = 0;
    if (same(c->spread.a, x) && same(c->spread.b, other)) {
        r = c->spread.r;
    } else if (same(c->spread.a, other) && same(c->spread.b, x)) {
        r = c->spread.r;
        slot = 1;
    } else {
        r = TRN_G(c, "BroadcastGradientArgs", sx, trn_g_shape_of(c, other));
        c->spread.a = x;
        c->spread.b = other;
        c->spread.r = r;
    }
    return trn_g_reshape(c, TRN_G(c, "Sum", d, trn_out_nth(r, slot)), sx);
}

trn_out trn_g_dense(trn_grad_ctx *c, trn_grad g)
{
    if (!trn_grad_is_sparse(g))
        return g.values;
    int64_t dims[TRN_MAX_RANK];
    int n;
    trn_out rows;
    if (trn_g_ints(dims, &n, TRN_MAX_RANK, c, g.dense_shape) && n > 0)
        rows = trn_g_i32(c, (int32_t)dims[0]);
    else
        rows = TRN_GE(c, "(StridedSlice $0 #[0] #[1] #[1] shrink_axis_mask=1)", g.dense_shape);
    return TRN_G(c, "UnsortedSegmentSum", g.values, g.indices, rows);
}

trn_out trn_g_kept_shape(trn_grad_ctx *c, trn_out x, trn_out axes)
{
    trn_shape s = trn_g_shape(c, x);
    int64_t v[TRN_MAX_RANK];
    int n;
    if (trn_shape_is_full(&s) && trn_g_ints(v, &n, TRN_MAX_RANK, c, axes)) {
        for (int i = 0; i < n; i++) {
            int64_t a = v[i] < 0 ? v[i] + s.rank : v[i];
            if (a >= 0 && a < s.rank)
                s.dim[a] = 1;
        }
        return trn_g_ints_const(c, s.dim, s.rank);
    }
    axes = trn_g_reshape(c, trn_g_cast(c, axes, TRN_INT32), trn_g_ints_const(c, (const int64_t[]){-1}, 1));
    trn_out rank = s.rank >= 0 ? trn_g_i32(c, s.rank) : TRN_G(c, "Rank", x);
    axes = TRN_GE(c, "(FloorMod (AddV2 $0 $1) $1)", axes, rank);
    trn_out all = TRN_GE(c, "(Range #0 $0 #1)", rank);
    return TRN_G(c, "DynamicStitch", all, axes, trn_g_shape_of(c, x), TRN_G(c, "OnesLike", axes));
}

/* ---- terms: the rows are ours, so they are well-formed; what is not is an INTERNAL error that a test finds ------------------ */

#define MAX_TERM_INPUTS 16
#define MAX_TERM_ATTRS 24

static trn_out bad_term(trn_grad_ctx *c, const char *text)
{
    if (trn_g_ok(c))
        trn_g_fail(c, trn_errorf(TRN_INTERNAL, "a term of the gradient of %s is not well-formed at '%s'", c->n ? c->n->op : "?", text));
    return TRN_NONE;
}

static void blanks(const char **p)
{
    while (**p == ' ')
        ++*p;
}

static trn_dtype grad_type(const trn_grad_ctx *c)
{
    for (int i = 0; c->n && i < c->n->n_out; i++)
        if (trn_grad_is(c->dy[i]))
            return trn_g_type(c, c->dy[i].values);
    return trn_g_type(c, c->args[0]);
}

static trn_out leaf(trn_grad_ctx *c, const char **p)
{
    const char *at = *p;
    char ch = *at++, *end;
    if (ch == '#') {
        if (*at != '[') {
            long v = strtol(at, &end, 10);
            *p = end;
            return trn_g_i32(c, (int32_t)v);
        }
        int64_t v[16];
        int n = 0;
        for (at++; *at != ']' && n < 16; n++) {
            v[n] = strtol(at, &end, 10);
            at = end + (*end == ',');
        }
        *p = at + 1;
        return trn_g_ints_const(c, v, n);
    }
    if ((ch >= '0' && ch <= '9') || ch == '-') {
        double v = strtod(*p, &end);
        *p = end;
        return trn_g_num(c, grad_type(c), v);
    }
    int k = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        k = 10 * k + (*at - '0');
    *p = at;
    switch (ch) {
    case '$': return c->args[k];
    case 'd': return trn_grad_dy(c, k);
    case 'o': return (trn_out){c->id, k};
    case 'x': case 'y': case 'z': return trn_grad_in(c, ch - 'x');
    case 'w': return trn_grad_in(c, 3);
    case 'i': return trn_grad_in(c, k);
    default: return bad_term(c, *p);
    }
}

/* The inputs decide this attr. */
static bool follows(const trn_opdef *def, int attr)
{
    for (int i = 0; i < def->n_in; i++)
        if (def->in[i].type_attr == attr || def->in[i].number_attr == attr || def->in[i].type_list_attr == attr)
            return true;
    return false;
}

static int attr_index(const trn_opdef *def, const char *name, size_t len)
{
    for (int i = 0; def && i < def->n_attrs; i++)
        if (strlen(def->attrs[i].name) == len && !memcmp(def->attrs[i].name, name, len))
            return i;
    return -1;
}

/* key=value at *p. */
static bool read_attr(trn_attr *out, trn_grad_ctx *c, const trn_opdef *def, const char **p)
{
    size_t len = strcspn(*p, "=");
    int k = attr_index(def, *p, len);
    if (k < 0)
        return false;
    const char *v = *p + len + 1, *word;
    size_t vlen = strcspn(v, " )");
    *p = v + vlen;
    word = trn_arena_strndup(c->tmp, v, vlen);
    if (*word == '@') {
        const trn_attr *from = trn_node_attr(c->n, word[1] ? word + 1 : def->attrs[k].name);
        if (!from)
            return false;
        *out = *from;
        out->name = def->attrs[k].name;
        return true;
    }
    *out = (trn_attr){.name = def->attrs[k].name, .kind = def->attrs[k].kind};
    switch (out->kind) {
    case TRN_ATTR_INT: out->v.i = strtoll(word, NULL, 10); return true;
    case TRN_ATTR_FLOAT: out->v.f = strtof(word, NULL); return true;
    case TRN_ATTR_BOOL: out->v.b = strcmp(word, "true") == 0; return true;
    case TRN_ATTR_TYPE: out->v.type = trn_dtype_parse(word, vlen); return true;
    case TRN_ATTR_STRING: *out = trn_attr__str(out->name, word); return true;
    default: return false;
    }
}

static trn_out term(trn_grad_ctx *c, const char **p)
{
    blanks(p);
    if (!trn_g_ok(c))
        return TRN_NONE;
    if (**p != '(')
        return leaf(c, p);
    size_t n = strcspn(++*p, " )");
    const char *op = trn_arena_strndup(c->tmp, *p, n);
    *p += n;
    const trn_opdef *def = trn_op_find(op);
    trn_out in[MAX_TERM_INPUTS];
    trn_attr attrs[MAX_TERM_ATTRS];
    int k = 0, n_attrs = 0;
    for (blanks(p); **p != ')'; blanks(p)) {
        size_t word = strcspn(*p, " ()");
        if (!**p || k == MAX_TERM_INPUTS || n_attrs == MAX_TERM_ATTRS)
            return bad_term(c, *p);
        if (**p == '@') {
            ++*p;
            for (int i = 0; def && i < def->n_attrs && n_attrs < MAX_TERM_ATTRS; i++) {
                const trn_attr *from = follows(def, i) ? NULL : trn_node_attr(c->n, def->attrs[i].name);
                if (from)
                    attrs[n_attrs++] = *from;
            }
        } else if (**p != '(' && memchr(*p, '=', word)) {
            if (!read_attr(&attrs[n_attrs++], c, def, p))
                return bad_term(c, *p);
        } else {
            in[k++] = term(c, p);
            if (!trn_g_ok(c))
                return TRN_NONE;
        }
    }
    ++*p;
    int slot = 0;
    if (**p == '.') {
        slot = (int)strtol(*p + 1, (char **)p, 10);
    }
    if (strcmp(op, "Like") == 0)
        return trn_g_like(c, in[0], in[1]);
    if (strcmp(op, "SumTo") == 0)
        return trn_g_sum_to(c, in[0], in[1], in[0]);
    if (strcmp(op, "Shape") == 0)
        return trn_g_shape_of(c, in[0]);
    if (strcmp(op, "Conj") == 0 && !trn_g_is_complex(trn_g_type(c, in[0])) && trn_g_type(c, in[0]) != TRN_VARIANT)
        return in[0];
    trn_out o = trn_g_node(c, op, in, k, attrs, n_attrs);
    return trn_out_is(o) ? trn_out_nth(o, slot) : o;
}

trn_out trn_g_eval(trn_grad_ctx *c, const char *text, const trn_out *args)
{
    const trn_out *outer = c->args;
    c->args = args;
    const char *p = text;
    trn_out o = term(c, &p);
    blanks(&p);
    if (trn_g_ok(c) && *p)
        bad_term(c, p);
    c->args = outer;
    return o;
}
