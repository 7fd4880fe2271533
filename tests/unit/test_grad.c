/* Gradients against differences: every row of src/grad has a case here, with shapes that are known and with shapes that only a step knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "grad/rows.h"
#include <trainera/trainera.h>

#define MAX_IN 8

static trn_server *server;

typedef struct model {
    trn_builder *b;
    trn_out x[MAX_IN];         /* what is fed and differentiated */
    trn_tensor *value[MAX_IN];
    int n_x;
    trn_out in[MAX_IN];
    int n_in;
    bool single;
} model;

typedef struct gcase {
    const char *op, *inputs, *attrs;
    int outs; /* only the first of them count; 0: all */
    bool loose, needs_rank;
    trn_out (*build)(model *m); /* instead of one node: a scalar */
} gcase;

static void check(trn_err err, const char *what)
{
    if (err)
        fail_msg("%s: %s", what, trn_err_msg(err));
}

static trn_out add(trn_builder *b, const char *op, const trn_out *in, int n, const trn_attr *a, int n_a) { return trn_node_add(b, op, in, n, a, n_a); }
#define OP(op, ...) add(m->b, op, TRN_OUTS(__VA_ARGS__), NULL, 0)

static trn_tensor *blank(trn_dtype t, int rank, const int64_t *dims)
{
    trn_shape s = {.rank = rank};
    for (int i = 0; i < rank; i++)
        s.dim[i] = dims[i];
    trn_tensor *v;
    check(trn_tensor_new(&v, t, &s), "tensor");
    return v;
}

/* All that are wrong are told, not only the first. */
static int wrong;
#define BAD(...) (wrong++, print_error(__VA_ARGS__))

/* A number that does not depend on anything but its place. */
static double number(int i) { return fabs(fmod(sin(i * 12.9898 + 4.1) * 43758.5453, 1.0)); }

/* mode 0: shapes are known; 1: only the rank; 2: nothing. */
static trn_out variable_input(model *m, trn_dtype t, int rank, const int64_t *dims, double lo, double hi, int mode)
{
    trn_shape s = trn_shape_scalar();
    s.rank = mode == 2 ? -1 : rank;
    for (int i = 0; i < rank; i++)
        s.dim[i] = mode ? -1 : dims[i];
    trn_tensor *v = blank(t, rank, dims);
    int64_t n = trn_tensor_count(v);
    for (int64_t i = 0; i < n; i++) {
        double x = lo + (hi - lo) * number((int)(i + 17 * m->n_x));
        if (t == TRN_DOUBLE)
            ((double *)trn_tensor_data_mut(v))[i] = x;
        else
            ((float *)trn_tensor_data_mut(v))[i] = (float)x;
    }
    m->single |= t == TRN_FLOAT;
    m->value[m->n_x] = v;
    return m->x[m->n_x++] = trn_placeholder(m->b, "x", t, s);
}

/* "f[2,3]@0:1" or "i[2]{1,0}" */
static void read_inputs(model *m, const char *p, int mode)
{
    while (*p) {
        char kind[4] = {0};
        int rank = 0, k = 0;
        int64_t dims[8], n = 1;
        char *end;
        while (*p != '[')
            kind[k++] = *p++;
        for (p++; *p != ']'; p = end + (*end == ',')) {
            dims[rank] = strtol(p, &end, 10);
            n *= dims[rank++];
        }
        p++;
        double lo = 0.2, hi = 0.9, v[64] = {0};
        if (*p == '@') {
            lo = strtod(p + 1, &end);
            hi = strtod(end + 1, &end);
            p = end;
        }
        for (int i = 0; i < 64; i++)
            v[i] = 0.3 + 0.4 * number(i + 99);
        if (*p == '{') {
            p++;
            for (int i = 0; *p != '}'; i++) {
                v[i] = strtod(p, &end);
                p = end + (*end == ',');
            }
            p++;
        }
        if (!strcmp(kind, "f") || !strcmp(kind, "s")) {
            m->in[m->n_in++] = variable_input(m, kind[0] == 'f' ? TRN_DOUBLE : TRN_FLOAT, rank, dims, lo, hi, mode);
        } else {
            trn_dtype t = !strcmp(kind, "i") ? TRN_INT32 : !strcmp(kind, "l") ? TRN_INT64 : !strcmp(kind, "b") ? TRN_BOOL : !strcmp(kind, "ks") ? TRN_FLOAT : TRN_DOUBLE;
            trn_tensor *c = blank(t, rank, dims);
            void *d = trn_tensor_data_mut(c);
            for (int64_t i = 0; i < n; i++) {
                if (t == TRN_INT32)
                    ((int32_t *)d)[i] = (int32_t)v[i];
                else if (t == TRN_INT64)
                    ((int64_t *)d)[i] = (int64_t)v[i];
                else if (t == TRN_BOOL)
                    ((bool *)d)[i] = v[i] != 0;
                else if (t == TRN_FLOAT)
                    ((float *)d)[i] = (float)v[i];
                else
                    ((double *)d)[i] = v[i];
            }
            m->in[m->n_in++] = trn_const(m->b, c);
        }
        while (*p == ' ')
            p++;
    }
}

static int read_attrs(trn_attr *out, trn_builder *b, const trn_opdef *def, const char *p)
{
    static const trn_shape unknown = {.rank = -1};
    int n = 0;
    while (*p) {
        size_t len = strcspn(p, "="), vlen = strcspn(p + len + 1, " ");
        char *name = trn_builder_alloc(b, len + 1), *v = trn_builder_alloc(b, vlen + 1);
        memcpy(name, p, len);
        memcpy(v, p + len + 1, vlen);
        const trn_attrdef *a = NULL;
        for (int i = 0; i < def->n_attrs; i++)
            if (!strcmp(def->attrs[i].name, name))
                a = &def->attrs[i];
        if (!a)
            fail_msg("%s has no attr %s", def->row->name, name);
        trn_attr *o = &out[n++];
        *o = (trn_attr){.name = name, .kind = a->kind};
        if (a->is_list) {
            trn_attr_val *l = trn_builder_alloc(b, 16 * sizeof *l);
            o->is_list = true;
            char *end;
            for (const char *q = v + 1; *q && *q != ']'; q = end + (*end == ','))
                if (a->kind == TRN_ATTR_STRING) {
                    size_t word = strcspn(q, ",]");
                    char *w = trn_builder_alloc(b, word + 1);
                    memcpy(w, q, word);
                    end = (char *)q + word;
                    l[o->n++] = trn_at_str(name, w).v;
                } else if (a->kind == TRN_ATTR_FLOAT) {
                    l[o->n++].f = strtof(q, &end);
                } else {
                    l[o->n++].i = strtol(q, &end, 10);
                }
            o->list = l;
        } else if (a->kind == TRN_ATTR_INT) {
            o->v.i = strtol(v, NULL, 10);
        } else if (a->kind == TRN_ATTR_FLOAT) {
            o->v.f = strtof(v, NULL);
        } else if (a->kind == TRN_ATTR_BOOL) {
            o->v.b = !strcmp(v, "true");
        } else if (a->kind == TRN_ATTR_TYPE) {
            o->v.type = trn_dtype_parse(v, vlen);
        } else if (a->kind == TRN_ATTR_SHAPE) {
            o->v.shape = &unknown;
            if (*v == '[') {
                trn_shape *s = trn_builder_alloc(b, sizeof *s);
                char *end;
                for (const char *q = v + 1; *q && *q != ']'; q = end + (*end == ','))
                    s->dim[s->rank++] = strtol(q, &end, 10);
                o->v.shape = s;
            }
        } else {
            *o = trn_at_str(name, v);
        }
        p += len + 1 + vlen;
        while (*p == ' ')
            p++;
    }
    return n;
}

static trn_tensor *run(trn_session *s, model *m, const char *fetch)
{
    const char *names[MAX_IN];
    trn_tensor *out = NULL;
    for (int i = 0; i < m->n_x; i++)
        names[i] = trn_out_name(m->b, m->x[i]);
    trn_err err = trn_session_run(s, &(trn_run){.n_feeds = m->n_x, .feed_names = names, .feeds = m->value, .n_fetches = 1, .fetches = &fetch, .out = &out});
    if (err)
        BAD("%s: %s\n", fetch, trn_err_msg(err));
    trn_err_free(err);
    return out;
}

static double at(const trn_tensor *t, int64_t i)
{
    return trn_tensor_dtype(t) == TRN_DOUBLE ? ((const double *)trn_tensor_data(t))[i] : ((const float *)trn_tensor_data(t))[i];
}

/* All floating-point outputs of the node, each number times another constant, added up. */
static trn_out weighed(model *m, trn_session *s, trn_out y, int outs)
{
    const trn_node *n = trn_out_op(m->b, y);
    trn_out sum = TRN_NONE;
    int n_out = outs ? outs : n->n_out;
    check(trn_session_extend_builder(s, m->b), n->op);
    for (int i = 0; i < n_out; i++) {
        trn_dtype t = trn_dtype_base(n->out_types[i]);
        if (t != TRN_DOUBLE && t != TRN_FLOAT)
            continue;
        trn_out o = trn_out_nth(y, i);
        trn_tensor *v = run(s, m, trn_out_name(m->b, o));
        if (!v)
            return TRN_NONE;
        trn_tensor *w = blank(t, trn_tensor_shape(v)->rank, trn_tensor_shape(v)->dim);
        for (int64_t k = 0; k < trn_tensor_count(v); k++) {
            double x = 0.5 + number((int)k + 31 * i + 5);
            if (t == TRN_DOUBLE)
                ((double *)trn_tensor_data_mut(w))[k] = x;
            else
                ((float *)trn_tensor_data_mut(w))[k] = (float)x;
        }
        int32_t axes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        trn_out part = OP("Sum", OP("Mul", o, trn_const(m->b, w)), trn_const_i32s(m->b, axes, trn_tensor_shape(v)->rank));
        trn_tensor_unref(v);
        sum = trn_out_is(sum) ? OP("AddV2", sum, part) : part;
    }
    return sum;
}

static void compare(model *m, trn_session *s, trn_out loss, const gcase *gc, const char *label, int mode)
{
    trn_grad g[MAX_IN];
    trn_gradients(g, m->b, &loss, 1, m->x, m->n_x, NULL);
    if (mode == 2 && gc->needs_rank) {
        assert_false(trn_builder_ok(m->b));
        return;
    }
    trn_out d[MAX_IN];
    for (int i = 0; i < m->n_x; i++)
        d[i] = trn_grad_dense(m->b, g[i]);
    trn_err err = trn_session_extend_builder(s, m->b);
    if (err) {
        BAD("%s, shapes known %d: %s\n", label, mode, trn_err_msg(err));
        trn_err_free(err);
        return;
    }
    double step = m->single ? 1e-2 : 1e-5, tol = m->single ? 2e-2 : 1e-6;
    if (gc->loose)
        tol *= 3;
    for (int i = 0; i < m->n_x; i++) {
        trn_tensor *got = trn_out_is(d[i]) ? run(s, m, trn_out_name(m->b, d[i])) : NULL, *v = m->value[i];
        if (got && (!trn_shape_eq(trn_tensor_shape(got), trn_tensor_shape(v)) || trn_tensor_dtype(got) != trn_tensor_dtype(v))) {
            char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
            BAD("%s, shapes known %d: the gradient of x%d is %s, not %s\n", label, mode, i, trn_shape_text(a, trn_tensor_shape(got)), trn_shape_text(b, trn_tensor_shape(v)));
            trn_tensor_unref(got);
            continue;
        }
        for (int64_t k = 0; k < trn_tensor_count(v); k++) {
            double side[2], old = at(v, k);
            for (int e = 0; e < 2; e++) {
                double x = old + (e ? step : -step);
                if (trn_tensor_dtype(v) == TRN_DOUBLE)
                    ((double *)trn_tensor_data_mut(v))[k] = x;
                else
                    ((float *)trn_tensor_data_mut(v))[k] = (float)x;
                trn_tensor *y = run(s, m, trn_out_name(m->b, loss));
                side[e] = y ? at(y, 0) : NAN;
                trn_tensor_unref(y);
            }
            if (trn_tensor_dtype(v) == TRN_DOUBLE)
                ((double *)trn_tensor_data_mut(v))[k] = old;
            else
                ((float *)trn_tensor_data_mut(v))[k] = (float)old;
            double want = (side[1] - side[0]) / (2 * step), is = got ? at(got, k) : 0;
            if (!(fabs(want - is) <= tol * (1 + fabs(want))))
                BAD("%s (%s | %s), shapes known %d: gradient of x%d[%d] is %.9g, differences say %.9g\n", label, gc->inputs, gc->attrs, mode, i, (int)k, is, want);
        }
        trn_tensor_unref(got);
    }
}

static trn_map *seen;

static void one_case(const gcase *gc, int mode)
{
    model m = {.b = trn_builder_new()};
    trn_session *s;
    check(trn_session_open_on(&s, server, NULL), "session");
    trn_out loss;
    if (gc->build) {
        loss = gc->build(&m);
    } else {
        const trn_opdef *def = trn_op_find(gc->op);
        trn_attr attrs[16];
        if (!def)
            fail_msg("there is no op %s", gc->op);
        read_inputs(&m, gc->inputs, mode);
        int n_attrs = read_attrs(attrs, m.b, def, gc->attrs);
        trn_out y = trn_node_add(m.b, gc->op, m.in, m.n_in, attrs, n_attrs);
        trn_err err = trn_builder_check(m.b);
        if (err) {
            BAD("%s: %s\n", gc->op, trn_err_msg(err));
            trn_err_free(err);
            return;
        }
        loss = weighed(&m, s, y, gc->outs);
    }
    check(trn_builder_check(m.b), gc->op);
    if (!trn_out_is(loss))
        return;
    for (int i = 0; i < trn_builder_node_count(m.b); i++)
        trn_map_puts(seen, trn_out_op(m.b, (trn_out){i, -1})->op, &seen);
    compare(&m, s, loss, gc, gc->op, mode);
    for (int i = 0; i < m.n_x; i++)
        trn_tensor_unref(m.value[i]);
    trn_err_free(trn_session_close(s));
    trn_builder_free(m.b);
}

static trn_out sum_all(model *m, trn_out x, int rank) { return OP("Sum", x, trn_const_i32s(m->b, (const int32_t[]){0, 1, 2, 3}, rank)); }
static trn_out sum_sq(model *m, trn_out x, int rank) { return sum_all(m, OP("Square", x), rank); }

static trn_out input(model *m, int rank, int64_t a, int64_t b) { return variable_input(m, TRN_DOUBLE, rank, (const int64_t[]){a, b}, 0.2, 0.9, 0); }

/* Lists: made of a tensor, grown, shortened, written, read. */
static trn_out lists(model *m)
{
    trn_out x = input(m, 2, 3, 2), y = input(m, 1, 2, 0);
    trn_out two = trn_const_i32s(m->b, (const int32_t[]){2}, 1), any = trn_const_i32s(m->b, (const int32_t[]){-1}, 1);
    trn_attr t = trn_at_type("element_dtype", TRN_DOUBLE);
    trn_out l = OP("TensorListFromTensor", x, two);
    l = OP("TensorListPushBack", l, y);
    l = OP("TensorListPushBack", l, OP("Square", y));
    trn_out pop = add(m->b, "TensorListPopBack", TRN_OUTS(l, two), &t, 1);
    l = OP("TensorListSetItem", pop, trn_const_i32(m->b, 1), OP("Mul", y, y));
    l = OP("TensorListResize", l, trn_const_i32(m->b, 5));
    l = OP("TensorListSetItem", l, trn_const_i32(m->b, 4), y);
    trn_out item = add(m->b, "TensorListGetItem", TRN_OUTS(l, trn_const_i32(m->b, 3), any), &t, 1);
    trn_out all = add(m->b, "TensorListStack", TRN_OUTS(l, two), &t, 1);
    trn_out ids = trn_const_i32s(m->b, (const int32_t[]){2, 0}, 2);
    trn_out some = add(m->b, "TensorListGather", TRN_OUTS(l, ids, two), &t, 1);
    trn_out sc = OP("TensorListScatter", OP("Exp", some), ids, two), sc2 = OP("TensorListScatterV2", some, ids, two, trn_const_i32(m->b, 3));
    sc = OP("TensorListScatterIntoExistingList", sc, OP("Square", some), trn_const_i32s(m->b, (const int32_t[]){0, 1}, 2));
    trn_out st = add(m->b, "TensorListGather", TRN_OUTS(sc, ids, two), &t, 1), st2 = add(m->b, "TensorListGather", TRN_OUTS(sc2, ids, two), &t, 1);
    trn_out parts[] = {sum_sq(m, trn_out_nth(pop, 1), 1), sum_sq(m, item, 1), sum_sq(m, all, 2), sum_sq(m, st, 2), sum_sq(m, st2, 2)};
    return trn_node_add(m->b, "AddN", parts, 5, NULL, 0);
}

/* Matrices of compressed rows: every way to turn them, from dense and sparse tensors and back; complex numbers, too. */
static trn_out csr_of_dense(model *m, trn_out x, const int64_t *at, int n, int rank)
{
    return OP("DenseToCSRSparseMatrix", x, trn_const(m->b, trn_tensor_from(TRN_INT64, 2, (const int64_t[]){n, rank}, at)));
}
static trn_out compressed_rows(model *m, trn_dtype t)
{
    static const int64_t at_a[] = {0, 1, 1, 0, 1, 2, 2, 0}, at_b[] = {0, 0, 0, 2, 1, 1, 2, 0};
    trn_out x = input(m, 2, 3, 3), y = input(m, 2, 3, 3), z = input(m, 2, 3, 3), v = input(m, 1, 4, 0), sum = TRN_NONE;
    trn_attr to = trn_at_type("Tout", t), re = trn_at_type("Tout", TRN_DOUBLE);
    bool complex_ = t == TRN_COMPLEX128;
    if (complex_) {
        trn_out q = x;
        x = add(m->b, "Complex", TRN_OUTS(x, y), &to, 1);
        v = OP("Mul", v, v);
        v = add(m->b, "Complex", TRN_OUTS(v, v), &to, 1);
        y = add(m->b, "Complex", TRN_OUTS(y, z), &to, 1);
        z = add(m->b, "Complex", TRN_OUTS(z, q), &to, 1);
    }
    trn_out a = csr_of_dense(m, x, at_a, 4, 2), b = csr_of_dense(m, y, at_b, 4, 2);
    trn_out s = OP("SparseTensorToCSRSparseMatrix", trn_const(m->b, trn_tensor_from(TRN_INT64, 2, (const int64_t[]){4, 2}, at_b)), v,
                   trn_const(m->b, trn_tensor_from(TRN_INT64, 1, (const int64_t[]){2}, (const int64_t[]){3, 3})));
    for (int i = 0; i < 9; i++) {
        trn_attr turns[] = {trn_at_type("type", t), trn_at_bool("transpose_a", i % 3 == 1), trn_at_bool("adjoint_a", i % 3 == 2), trn_at_bool("transpose_b", i / 3 == 1),
                            trn_at_bool("adjoint_b", i / 3 == 2), trn_at_bool("transpose_output", i % 2), trn_at_bool("conjugate_output", i % 4 > 1)};
        trn_attr type = trn_at_type("type", t), flip[] = {type, trn_at_bool("conjugate", i % 2)};
        trn_out p = add(m->b, "SparseMatrixSparseMatMul", TRN_OUTS(a, i % 2 ? b : s), turns, 5);
        p = add(m->b, "SparseMatrixTranspose", &p, 1, flip, 2);
        trn_out back = add(m->b, "CSRSparseMatrixToSparseTensor", &p, 1, &type, 1);
        trn_out parts[] = {add(m->b, "SparseMatrixMatMul", TRN_OUTS(a, z), turns + 1, 6), add(m->b, "CSRSparseMatrixToDense", &p, 1, &type, 1), trn_out_nth(back, 1)};
        for (int k = 0; k < 3; k++) {
            trn_out w = OP("Square", parts[k]);
            w = sum_all(m, complex_ ? OP("AddV2", add(m->b, "Real", &w, 1, &re, 1), add(m->b, "Imag", &w, 1, &re, 1)) : w, k == 2 ? 1 : 2);
            sum = trn_out_is(sum) ? OP("AddV2", sum, w) : w;
        }
    }
    return sum;
}
/* One matrix goes with a batch of them, on either side, turned or not. */
static trn_out one_with_many(model *m)
{
    static const int64_t at_a[] = {0, 0, 1, 0, 1, 0, 0, 2, 2}, at_b[] = {0, 0, 0, 0, 1, 2, 0, 2, 1, 1, 0, 2, 1, 1, 0, 1, 2, 2};
    trn_out a = csr_of_dense(m, variable_input(m, TRN_DOUBLE, 3, (const int64_t[]){1, 3, 3}, 0.2, 0.9, 0), at_a, 3, 3);
    trn_out b = csr_of_dense(m, variable_input(m, TRN_DOUBLE, 3, (const int64_t[]){2, 3, 3}, 0.2, 0.9, 0), at_b, 6, 3), sum = TRN_NONE;
    trn_attr type = trn_at_type("type", TRN_DOUBLE);
    for (int i = 0; i < 4; i++) {
        trn_attr turns[] = {type, trn_at_bool("transpose_a", i % 2), trn_at_bool("adjoint_a", false), trn_at_bool("transpose_b", i / 2), trn_at_bool("adjoint_b", false)};
        bool swap = i == 1 || i == 2;
        trn_out p = add(m->b, "SparseMatrixSparseMatMul", TRN_OUTS(swap ? b : a, swap ? a : b), turns, 5);
        trn_out w = sum_sq(m, add(m->b, "CSRSparseMatrixToDense", &p, 1, &type, 1), 3);
        sum = trn_out_is(sum) ? OP("AddV2", sum, w) : w;
    }
    return sum;
}
static trn_out real_rows(model *m) { return compressed_rows(m, TRN_DOUBLE); }
static trn_out complex_rows(model *m) { return compressed_rows(m, TRN_COMPLEX128); }

/* Arrays: written one by one, scattered, split; read, gathered, joined. */
static trn_out arrays_of(model *m, const char *v)
{
    char name[7][32];
    static const char *const what[] = {"", "Scatter", "Write", "Read", "Gather", "Concat", "Split"};
    enum { MAKE, SCATTER, WRITE, READ, GATHER, CONCAT, SPLIT };
    for (size_t i = 0; i < TRN_COUNTOF(what); i++)
        snprintf(name[i], sizeof name[i], "TensorArray%s%s", what[i], v);
    trn_out x = input(m, 2, 3, 2), y = input(m, 1, 2, 0), parts[3];
    trn_attr t = trn_at_type("dtype", TRN_DOUBLE);
    trn_out ids = trn_const_i32s(m->b, (const int32_t[]){2, 0, 1}, 3);
    for (int i = 0; i < 3; i++) {
        trn_out h = add(m->b, name[MAKE], TRN_OUTS(trn_const_i32(m->b, i == 0 ? 4 : i == 1 ? 3 : 2)), &t, 1), flow = v[0] && v[1] == '3' ? trn_out_nth(h, 1) : trn_const_f32(m->b, 0);
        if (i == 0) {
            flow = OP(name[SCATTER], h, ids, x, flow);
            flow = OP(name[WRITE], h, trn_const_i32(m->b, 3), y, flow);
            parts[i] = sum_sq(m, add(m->b, name[READ], TRN_OUTS(h, trn_const_i32(m->b, 3), flow), &t, 1), 1);
            parts[i] = OP("AddV2", parts[i], sum_sq(m, add(m->b, name[GATHER], TRN_OUTS(h, ids, flow), &t, 1), 2));
        } else if (i == 1) {
            for (int k = 0; k < 3; k++)
                flow = OP(name[WRITE], h, trn_const_i32(m->b, k), k ? y : OP("Square", y), flow);
            parts[i] = sum_sq(m, add(m->b, name[CONCAT], TRN_OUTS(h, flow), &t, 1), 1);
        } else {
            trn_tensor *len = trn_tensor_from(TRN_INT64, 1, (const int64_t[]){2}, (const int64_t[]){1, 2});
            flow = OP(name[SPLIT], h, x, trn_const(m->b, len), flow);
            parts[i] = sum_sq(m, add(m->b, name[READ], TRN_OUTS(h, trn_const_i32(m->b, 1), flow), &t, 1), 2);
        }
    }
    return trn_node_add(m->b, "AddN", parts, 3, NULL, 0);
}
static trn_out arrays(model *m) { return arrays_of(m, "V3"); }
static trn_out arrays_v2(model *m) { return arrays_of(m, "V2"); }
static trn_out arrays_v1(model *m) { return arrays_of(m, ""); }

/* Through complex numbers and back. */
static trn_out complexes(model *m)
{
    trn_out x = input(m, 2, 2, 3), y = input(m, 1, 3, 0);
    trn_attr t = trn_at_type("Tout", TRN_COMPLEX128), r = trn_at_type("Tout", TRN_DOUBLE);
    trn_out z = add(m->b, "Complex", TRN_OUTS(x, y), &t, 1);
    trn_out w = OP("Mul", OP("Exp", z), OP("Conj", OP("Square", z)));
    w = OP("RealDiv", OP("Sin", w), OP("AddV2", z, OP("Tanh", z)));
    trn_out a = add(m->b, "ComplexAbs", &w, 1, &r, 1), b = add(m->b, "Real", &w, 1, &r, 1), c = add(m->b, "Imag", &w, 1, &r, 1);
    return OP("AddV2", sum_sq(m, a, 2), sum_all(m, OP("Mul", b, OP("Cos", c)), 2));
}

/* x and y as one complex tensor through each transform; cut and filled up on the way. */
static trn_out transforms(model *m)
{
    static const char *const ops[] = {"FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D"}, *const of_reals[] = {"RFFT", "RFFT2D", "RFFT3D"},
                      *const to_reals[] = {"IRFFT", "IRFFT2D", "IRFFT3D"};
    static const int32_t from[][3] = {{2, 3, 4}, {1, 2, 3}}, to[][3] = {{2, 3, 6}, {1, 2, 5}, {2, 3, 4}}; /* all of 2, 3, 4, or less */
    const int64_t dims[] = {2, 3, 4};
    trn_out x = variable_input(m, TRN_DOUBLE, 3, dims, 0.2, 0.9, 0), y = variable_input(m, TRN_DOUBLE, 3, dims, -0.5, 0.9, 0), sum = TRN_NONE;
    trn_attr t = trn_at_type("Tout", TRN_COMPLEX128), r = trn_at_type("Tout", TRN_DOUBLE), rc[] = {trn_at_type("Treal", TRN_DOUBLE), trn_at_type("Tcomplex", TRN_COMPLEX128)};
    trn_out z = add(m->b, "Complex", TRN_OUTS(x, y), &t, 1), all[15];
    int n = 0;
    for (int i = 0; i < 6; i++)
        all[n++] = OP(ops[i], z);
    for (int i = 0; i < 3; i++) {
        for (int l = 0; l < 3; l++) {
            trn_out a = add(m->b, of_reals[i], TRN_OUTS(OP("Mul", x, y), trn_const_i32s(m->b, from[l % 2] + 2 - i, i + 1)), rc, 2);
            sum = trn_out_is(sum) ? OP("AddV2", sum, sum_sq(m, add(m->b, "ComplexAbs", &a, 1, &r, 1), 3)) : sum_sq(m, add(m->b, "ComplexAbs", &a, 1, &r, 1), 3);
            sum = OP("AddV2", sum, sum_all(m, OP("Sin", add(m->b, to_reals[i], TRN_OUTS(z, trn_const_i32s(m->b, to[l] + 2 - i, i + 1)), rc, 2)), 3));
        }
    }
    for (int i = 0; i < n; i++)
        sum = OP("AddV2", sum, sum_all(m, OP("Sin", add(m->b, i % 2 ? "Real" : "Angle", &all[i], 1, &r, 1)), 3));
    return sum;
}

/* Taken apart in complex numbers: only what does not depend on the phases that the kernel chose. */
static trn_out complex_matrices(model *m)
{
    static const int64_t dims[][2] = {{3, 2}, {2, 3}, {3, 3}};
    trn_attr t = trn_at_type("Tout", TRN_COMPLEX128), r = trn_at_type("Tout", TRN_DOUBLE), h = trn_at_bool("adj_y", true);
    trn_out sum = TRN_NONE;
    for (int i = 0; i < 3; i++) {
        trn_out x = variable_input(m, TRN_DOUBLE, 2, dims[i], -0.9, 0.9, 0), y = variable_input(m, TRN_DOUBLE, 2, dims[i], -0.9, 0.9, 0), part[7];
        trn_out z = add(m->b, "Complex", TRN_OUTS(x, y), &t, 1), q = OP("Qr", z), s = OP("Svd", z);
        part[0] = q;
        part[1] = trn_out_nth(q, 1);
        part[2] = OP("Mul", trn_out_nth(s, 0), trn_out_nth(s, 0));
        /* u vᴴ: u and v turn together */
        part[3] = add(m->b, "BatchMatMulV2", TRN_OUTS(trn_out_nth(s, 1), trn_out_nth(s, 2)), &h, 1);
        part[4] = i == 2 ? OP("MatrixSquareRoot", OP("AddV2", z, trn_const(m->b, trn_tensor_from(TRN_COMPLEX128, 2, dims[2], (const double[18]){4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0}))))
                         : z;
        part[5] = OP("MatrixSolveLs", z, OP("Exp", z), trn_const_num(m->b, TRN_DOUBLE, i == 1 ? 0 : 0.5));
        part[6] = i == 2 ? OP("TridiagonalSolve", OP("AddV2", z, trn_const(m->b, trn_tensor_from(TRN_COMPLEX128, 2, dims[2], (const double[18]){0, 0, 0, 0, 0, 0, 4, 0, 4, 0, 4, 1}))), OP("Square", z)) : z;
        for (int k = 0; k < 7; k++) {
            trn_out re = add(m->b, "Real", &part[k], 1, &r, 1), im = add(m->b, "Imag", &part[k], 1, &r, 1);
            trn_out one = sum_all(m, OP("Sin", OP("AddV2", re, OP("Mul", im, im))), k == 2 ? 1 : 2);
            sum = trn_out_is(sum) ? OP("AddV2", sum, one) : one;
        }
    }
    return sum;
}

/* Of real and complex matrices, with and without vectors: what depends neither on their order nor on their phases. */
static trn_out eigenvalues(model *m)
{
    trn_out x = input(m, 2, 3, 3), y = input(m, 2, 3, 3), sum = TRN_NONE;
    trn_attr t = trn_at_type("Tout", TRN_COMPLEX128), r = trn_at_type("Tout", TRN_DOUBLE), a[] = {t, trn_at_bool("compute_v", false)};
    trn_out z = add(m->b, "Complex", TRN_OUTS(x, y), &t, 1);
    for (int i = 0; i < 4; i++) {
        trn_out e = add(m->b, "Eig", i % 2 ? &z : &x, 1, a, i < 2 ? 1 : 2), v = trn_out_nth(e, 1);
        trn_out re = add(m->b, "Real", &e, 1, &r, 1), im = add(m->b, "Imag", &e, 1, &r, 1), one = sum_all(m, OP("AddV2", OP("Sin", re), OP("Mul", im, im)), 1);
        if (i < 2)
            one = OP("AddV2", one, sum_all(m, OP("Square", OP("Square", add(m->b, "ComplexAbs", &v, 1, &r, 1))), 2));
        sum = trn_out_is(sum) ? OP("AddV2", sum, one) : one;
    }
    return sum;
}

static trn_out square_root(model *m)
{
    trn_out x = input(m, 2, 3, 3), eye = trn_const(m->b, trn_tensor_from(TRN_DOUBLE, 2, (const int64_t[]){3, 3}, (const double[]){3, 0, 0, 0, 2, 0, 0, 0, 4}));
    return sum_all(m, OP("Sin", OP("MatrixSquareRoot", OP("Pack", OP("AddV2", x, eye), OP("AddV2", OP("Square", x), eye)))), 3);
}

/* In variants and out again: maps, optionals, ragged tensors. */
static trn_out variants(model *m)
{
    trn_out x = input(m, 2, 3, 2), y = input(m, 1, 2, 0), v = input(m, 1, 5, 0), parts[9];
    trn_out k1 = trn_const_i32(m->b, 1), k2 = trn_const_i32(m->b, 2), k3 = trn_const_i32(m->b, 3);
    trn_attr t = trn_at_type("value_dtype", TRN_DOUBLE);
    trn_out map = OP("TensorMapInsert", OP("EmptyTensorMap"), k1, OP("Square", x));
    map = OP("TensorMapInsert", map, k2, y);
    map = OP("TensorMapInsert", map, k3, OP("Exp", y));
    map = OP("TensorMapInsert", map, k2, OP("Sin", y)); /* instead of the other */
    parts[0] = sum_sq(m, add(m->b, "TensorMapLookup", TRN_OUTS(map, k2), &t, 1), 1);
    map = add(m->b, "TensorMapErase", TRN_OUTS(map, k3), &t, 1);
    parts[1] = sum_sq(m, add(m->b, "TensorMapLookup", TRN_OUTS(map, k1), &t, 1), 2);
    parts[2] = sum_all(m, add(m->b, "TensorMapLookup", TRN_OUTS(map, k1), &t, 1), 2);
    static const trn_shape any = {.rank = -1};
    trn_attr_val ot[2] = {{.type = TRN_DOUBLE}, {.type = TRN_DOUBLE}}, os[2] = {{.shape = &any}, {.shape = &any}};
    trn_attr oa[] = {{.name = "output_types", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 2, .list = ot}, {.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = 2, .list = os}};
    trn_out o = add(m->b, "OptionalGetValue", TRN_OUTS(OP("OptionalFromValue", x, OP("Square", y))), oa, 2);
    parts[3] = sum_sq(m, o, 2);
    parts[4] = sum_sq(m, trn_out_nth(o, 1), 1);
    trn_out splits = trn_const(m->b, trn_tensor_from(TRN_INT64, 1, (const int64_t[]){4}, (const int64_t[]){0, 2, 2, 5}));
    for (int rows = 0; rows < 2; rows++) {
        trn_attr in[] = {trn_at_bool("batched_input", rows)}, out[] = {trn_at_int("input_ragged_rank", 1 - rows), trn_at_int("output_ragged_rank", 1), trn_at_type("Tvalues", TRN_DOUBLE)};
        trn_out e = add(m->b, "RaggedTensorToVariant", TRN_OUTS(splits, OP("Exp", v)), in, 1);
        parts[5 + rows] = sum_sq(m, trn_out_nth(add(m->b, "RaggedTensorFromVariant", &e, 1, out, 3), 1), 1);
    }
    trn_attr ca[] = {trn_at_str("metadata", ""), {.name = "Tcomponents", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 2, .list = ot}};
    trn_out c = add(m->b, "CompositeTensorVariantFromComponents", TRN_OUTS(OP("Sin", v), y), ca, 1);
    parts[7] = sum_sq(m, add(m->b, "CompositeTensorVariantToComponents", &c, 1, ca, 2), 1);
    trn_attr rows = trn_at_bool("batched_input", true), dense[] = {trn_at_int("input_ragged_rank", 0), trn_at_int("output_ragged_rank", 1), trn_at_type("Tvalues", TRN_DOUBLE)};
    trn_out e = add(m->b, "RaggedTensorToVariant", TRN_OUTS(OP("Cos", x)), &rows, 1);
    parts[8] = sum_sq(m, trn_out_nth(add(m->b, "RaggedTensorFromVariant", &e, 1, dense, 3), 1), 1);
    return trn_node_add(m->b, "AddN", parts, 9, NULL, 0);
}

static trn_out cholesky(model *m)
{
    trn_out x = input(m, 2, 3, 3), eye = trn_const(m->b, trn_tensor_from(TRN_DOUBLE, 2, (const int64_t[]){3, 3}, (const double[]){2, 0, 0, 0, 2, 0, 0, 0, 2}));
    trn_attr t = trn_at_bool("transpose_b", true);
    trn_out a = OP("AddV2", add(m->b, "MatMul", TRN_OUTS(x, x), &t, 1), eye);
    return sum_all(m, OP("Sin", OP("Cholesky", a)), 2);
}

/* Of all values along the sequence. */
static trn_out block_lstm(model *m)
{
    trn_out in[9] = {trn_const_i64(m->b, 2)};
    const int64_t dims[8][3] = {{2, 1, 2}, {1, 2}, {1, 2}, {4, 8}, {2}, {2}, {2}, {8}};
    const int rank[8] = {3, 2, 2, 2, 1, 1, 1, 1};
    trn_out parts[2];
    for (int i = 0; i < 8; i++)
        in[i + 1] = variable_input(m, TRN_FLOAT, rank[i], dims[i], -0.5, 0.5, 0);
    for (int v = 0; v < 2; v++) {
        trn_attr a = trn_at_bool("use_peephole", v == 0);
        trn_out y = add(m->b, v ? "BlockLSTMV2" : "BlockLSTM", in, 9, &a, 1);
        parts[v] = OP("AddV2", sum_sq(m, trn_out_nth(y, 1), 3), sum_sq(m, trn_out_nth(y, 6), 3));
    }
    return OP("AddV2", parts[0], parts[1]);
}

/* Lists of parts of different lengths; a message on the way. */
static trn_out list_parts(model *m)
{
    trn_out x = input(m, 2, 3, 2), shape = trn_const_i32s(m->b, (const int32_t[]){-1, 2}, 2), sums[2];
    trn_attr t = trn_at_type("element_dtype", TRN_DOUBLE), few = trn_at_int("first_n", 0);
    trn_out len = trn_const(m->b, trn_tensor_from(TRN_INT64, 1, (const int64_t[]){2}, (const int64_t[]){1, 2}));
    trn_out p = add(m->b, "Print", TRN_OUTS(x, len), &few, 1);
    trn_out l = OP("TensorListSplit", OP("Square", p), shape, len);
    trn_shape any = trn_shape_of(2, -1L, 2L);
    trn_attr at[] = {t, trn_at_shape("element_shape", &any)};
    sums[0] = sum_sq(m, add(m->b, "TensorListConcat", &l, 1, at, 2), 2);
    sums[1] = sum_all(m, add(m->b, "TensorListConcatV2", TRN_OUTS(l, shape, len), &t, 1), 2);
    return trn_node_add(m->b, "AddN", sums, 2, NULL, 0);
}

/* A bool that nobody can fold. */
static trn_out pred_of(model *m, bool v) { return OP("Greater", trn_const_f32(m->b, v), trn_const_f32(m->b, 0.5f)); }

/* ---- bodies that are functions */

typedef struct two {
    trn_out x, y;
} two;

static trn_out op2(trn_builder *b, const char *op, trn_out x, trn_out y) { return trn_node_add(b, op, TRN_OUTS(x, y), NULL, 0); }
static trn_out op1(trn_builder *b, const char *op, trn_out x) { return trn_node_add(b, op, &x, 1, NULL, 0); }

static void yes(void *arg, trn_builder *b, trn_out *out, int n)
{
    const two *t = arg;
    out[0] = op2(b, "Mul", op1(b, "Exp", op1(b, "Tanh", t->x)), t->y);
    out[1] = op1(b, "Square", t->x);
}

static void no(void *arg, trn_builder *b, trn_out *out, int n)
{
    const two *t = arg;
    out[0] = op1(b, "Sin", op1(b, "Square", t->y));
    out[1] = op2(b, "Mul", t->y, trn_const_num(b, TRN_DOUBLE, 3));
}

static trn_out decide(model *m, bool which)
{
    trn_out x = input(m, 1, 3, 0), y = input(m, 1, 3, 0);
    trn_outs r = trn_cond(m->b, pred_of(m, which), yes, no, &(two){x, y}, 2);
    return OP("AddV2", sum_sq(m, r.at[0], 1), sum_all(m, r.at[1], 1));
}
static trn_out cond_true(model *m) { return decide(m, true); }
static trn_out cond_false(model *m) { return decide(m, false); }

/* v0 ← tanh(v0 * w + v1), v1 ← v1 * 1.1 + sin(w): four turns. */
static trn_out below_four(void *arg, trn_builder *b, const trn_out *v) { return op2(b, "Less", v[0], trn_const_i32(b, 4)); }
static void turn(void *arg, trn_builder *b, trn_out *v)
{
    const two *t = arg;
    v[0] = op2(b, "AddV2", v[0], trn_const_i32(b, 1));
    v[1] = op1(b, "Tanh", op2(b, "AddV2", op2(b, "Mul", v[1], t->x), v[2]));
    v[2] = op2(b, "AddV2", op2(b, "Mul", v[2], trn_const_num(b, TRN_DOUBLE, 1.1)), op1(b, "Sin", t->y));
}
static trn_out four_turns(model *m)
{
    trn_out w = input(m, 1, 3, 0), u = input(m, 0, 0, 0), v = input(m, 1, 3, 0), v2 = input(m, 1, 3, 0);
    trn_outs r = trn_while(m->b, below_four, turn, &(two){w, u}, TRN_OUTS(trn_const_i32(m->b, 0), v, v2), NULL);
    return sum_sq(m, OP("AddV2", r.at[1], r.at[2]), 1);
}

/* A loop in a branch in a loop. */
static void inner_turn(void *arg, trn_builder *b, trn_out *v)
{
    v[0] = op2(b, "AddV2", v[0], trn_const_i32(b, 2));
    v[1] = op1(b, "Sin", op2(b, "Mul", v[1], *(const trn_out *)arg));
}
static void with_loop(void *arg, trn_builder *b, trn_out *out, int n)
{
    two *t = arg;
    trn_outs r = trn_while(b, below_four, inner_turn, &t->y, TRN_OUTS(trn_const_i32(b, 0), t->x), NULL);
    out[0] = op2(b, "Mul", r.at[1], t->y);
}
static void without_loop(void *arg, trn_builder *b, trn_out *out, int n) { out[0] = op1(b, "Square", ((two *)arg)->x); }
static void outer_turn(void *arg, trn_builder *b, trn_out *v)
{
    trn_out odd = op2(b, "Equal", op2(b, "FloorMod", v[0], trn_const_i32(b, 2)), trn_const_i32(b, 1));
    v[1] = op2(b, "AddV2", op1(b, "Cos", v[1]), trn_cond(b, odd, with_loop, without_loop, &(two){v[1], ((two *)arg)->y}, 1).at[0]);
    v[0] = op2(b, "AddV2", v[0], trn_const_i32(b, 1));
}
static trn_out nested(model *m)
{
    trn_out x = input(m, 1, 3, 0), y = input(m, 1, 3, 0);
    trn_outs r = trn_while(m->b, below_four, outer_turn, &(two){x, y}, TRN_OUTS(trn_const_i32(m->b, 0), x), NULL);
    return sum_sq(m, r.at[1], 1);
}

static void in_function(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out)
{
    out[0] = op2(b, "Mul", op1(b, "Sigmoid", in[0]), *(trn_out *)arg);
    out[1] = op1(b, "Exp", in[1]);
}
/* Called twice, the second time with results of the first; and a derivative of the derivative. */
static trn_out calls(model *m)
{
    trn_out x = input(m, 1, 3, 0), y = input(m, 1, 3, 0), z = input(m, 1, 3, 0);
    trn_function *f = trn_function_new(m->b, "pair", in_function, &z, TRN_OUTS(x, y), 2);
    trn_outs a = trn_call(m->b, f, TRN_OUTS(x, y)), c = trn_call(m->b, f, a.at, 2);
    trn_grad g;
    trn_out s = sum_sq(m, c.at[0], 1);
    trn_gradients(&g, m->b, &s, 1, &x, 1, NULL);
    return OP("AddV2", sum_sq(m, g.values, 1), sum_all(m, OP("Mul", c.at[0], a.at[1]), 1));
}
static trn_out loop_twice(model *m)
{
    trn_out s = four_turns(m);
    trn_grad g;
    trn_gradients(&g, m->b, &s, 1, &m->x[0], 1, NULL);
    return sum_sq(m, g.values, 1);
}

/* Case, and the decisions of old graphs. */
static trn_out by_number(model *m)
{
    trn_out x = input(m, 1, 3, 0), y = input(m, 1, 3, 0);
    trn_function *f[2] = {trn_function_new(m->b, "one", in_function, &y, TRN_OUTS(x, y), 2), trn_function_new(m->b, "two", in_function, &x, TRN_OUTS(x, y), 2)};
    trn_func_ref ref[2] = {{.name = f[0]->name}, {.name = f[1]->name}};
    trn_attr_val v[2] = {{.func = &ref[0]}, {.func = &ref[1]}}, t[2] = {{.type = TRN_DOUBLE}, {.type = TRN_DOUBLE}};
    trn_attr a[] = {{.name = "branches", .kind = TRN_ATTR_FUNC, .is_list = true, .n = 2, .list = v}, {.name = "Tout", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 2, .list = t}};
    trn_out r[2];
    for (int i = 0; i < 2; i++)
        r[i] = add(m->b, i ? "Case" : "StatelessCase", TRN_OUTS(trn_const_i32(m->b, i), x, y, f[i]->outside[0]), a, 2);
    return OP("AddV2", sum_sq(m, r[0], 1), sum_sq(m, OP("AddV2", r[1], trn_out_nth(r[1], 1)), 1));
}
static trn_out old_decision(model *m)
{
    trn_out x = input(m, 1, 3, 0), y = input(m, 1, 3, 0), parts[2];
    for (int i = 0; i < 2; i++) {
        trn_out p = pred_of(m, i), sx = OP("Switch", x, p), sy = OP("Switch", y, p);
        trn_out r = OP("Merge", OP("Mul", sx, OP("Sin", sy)), OP("Exp", OP("Square", trn_out_nth(sx, 1))));
        parts[i] = sum_sq(m, r, 1);
    }
    return OP("AddV2", parts[0], parts[1]);
}
/* Decisions of old graphs inside a loop, one in the other: values of the side that is not taken are not there in this turn; one side has state. */
static void old_turn(void *arg, trn_builder *b, trn_out *v)
{
    const two *t = arg;
    trn_attr a[] = {trn_at_type("dtype", TRN_DOUBLE), trn_at_int("seed", 3), trn_at_int("seed2", 4)};
    trn_out odd = op2(b, "Equal", op2(b, "FloorMod", v[0], trn_const_i32(b, 2)), trn_const_i32(b, 1)), first = op2(b, "Less", v[0], trn_const_i32(b, 2));
    trn_out sv = op2(b, "Switch", v[1], odd), sx = op2(b, "Switch", t->x, odd), sf = op2(b, "Switch", first, odd);
    trn_out yes_v = trn_out_nth(sv, 1), yes_x = trn_out_nth(sx, 1), yes_f = op1(b, "Identity", trn_out_nth(sf, 1));
    trn_out in = op2(b, "Switch", yes_v, yes_f), in_x = op2(b, "Switch", yes_x, yes_f);
    trn_out inner = op2(b, "Merge", op1(b, "Tanh", op2(b, "Mul", in, in_x)), op2(b, "Mul", op1(b, "Square", trn_out_nth(in, 1)), op1(b, "Sin", trn_out_nth(in_x, 1))));
    trn_out shape = op1(b, "Shape", sv), noise = op2(b, "Mul", trn_node_add(b, "RandomUniform", &shape, 1, a, 3), op1(b, "ZerosLike", sv));
    trn_out no_v = op2(b, "AddV2", op2(b, "Mul", op1(b, "Exp", sx), sv), noise);
    v[0] = op2(b, "AddV2", v[0], trn_const_i32(b, 1));
    v[1] = op2(b, "Merge", no_v, inner);
}
static trn_out old_in_loop(model *m)
{
    trn_out x = input(m, 1, 3, 0), w = input(m, 1, 3, 0);
    trn_outs r = trn_while(m->b, below_four, old_turn, &(two){w, w}, TRN_OUTS(trn_const_i32(m->b, 0), x), NULL);
    return sum_sq(m, r.at[1], 1);
}

/* With state in the bodies the ops are the others. */
static void noisy_turn(void *arg, trn_builder *b, trn_out *v)
{
    trn_attr a[] = {trn_at_type("dtype", TRN_DOUBLE), trn_at_int("seed", 3), trn_at_int("seed2", 4)};
    trn_out shape = trn_const_i32s(b, (const int32_t[]){3}, 1);
    v[0] = op2(b, "AddV2", v[0], trn_const_i32(b, 1));
    trn_out z = op2(b, "Mul", trn_node_add(b, "RandomUniform", &shape, 1, a, 3), trn_const_num(b, TRN_DOUBLE, 0));
    v[1] = op1(b, "Sin", op2(b, "AddV2", op2(b, "Mul", v[1], v[1]), z));
}
static void noisy(void *arg, trn_builder *b, trn_out *out, int n)
{
    trn_out v[2] = {trn_const_i32(b, 0), *(trn_out *)arg};
    noisy_turn(NULL, b, v);
    out[0] = v[1];
}
static void noisy_function(void *arg, trn_builder *b, const trn_out *in, int n_in, trn_out *out, int n_out)
{
    trn_out x = in[0];
    noisy(&x, b, out, n_out);
}
static trn_out with_state(model *m)
{
    trn_out x = input(m, 1, 3, 0);
    trn_outs r = trn_while(m->b, below_four, noisy_turn, NULL, TRN_OUTS(trn_const_i32(m->b, 0), x), &(trn_loop_opts){.max_iterations = 3, .parallel_iterations = 1});
    r = trn_cond(m->b, pred_of(m, true), noisy, noisy, &r.at[1], 1);
    trn_out f = r.at[0];
    trn_function *fn = trn_function_new(m->b, "stateful", noisy_function, NULL, &f, 1, 1);
    return sum_sq(m, trn_call(m->b, fn, &f, 1).at[0], 1);
}

static const gcase cases[] = {
#include "grad_cases.inc"
    {"Complex", "", "", .build = complexes},
    {"FFT", "", "", .build = transforms},
    {"Svd", "complex", "", .build = complex_matrices},
    {"Eig", "", "", .build = eigenvalues},
    {"MatrixSquareRoot", "", "", .build = square_root},
    {"TensorMap", "", "", .build = variants},
    {"TensorArray", "V1", "", .build = arrays_v1},
    {"TensorArray", "V2", "", .build = arrays_v2},
    {"Cholesky", "", "", .build = cholesky},
    {"BlockLSTM", "", "", .build = block_lstm},
    {"TensorListConcat", "", "", .build = list_parts},
    {"If", "true", "", .build = cond_true},
    {"If", "false", "", .build = cond_false},
    {"While", "", "", .build = four_turns},
    {"While", "nested", "", .build = nested},
    {"While", "twice", "", .build = loop_twice},
    {"PartitionedCall", "", "", .build = calls},
    {"Case", "", "", .build = by_number},
    {"Switch", "", "", .build = old_decision},
    {"While", "with Switch", "", .build = old_in_loop},
    {"While", "with state", "", .build = with_state},
    {"TensorList", "", "", .build = lists},
    {"SparseMatrixMatMul", "", "", .build = real_rows},
    {"SparseMatrixMatMul", "complex", "", .build = complex_rows},
    {"SparseMatrixSparseMatMul", "one with many", "", .build = one_with_many},
    {"TensorArray", "", "", .build = arrays},
};

/* Rows that the numbers above cannot reach; tests further down do, or those with TensorFlow (test_c_grad.py). */
static const char *const elsewhere[] = {"PreventGradient", "RandomGamma", "StatelessParameterizedTruncatedNormal", "StatelessRandomGammaV2", "StatelessRandomGammaV3", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "DebugGradientRefIdentity", "RefIdentity", "RefMerge", "RefSwitch", "Enter", "Exit",
                                        "FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3",
                                        "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel", "QuantizeAndDequantize", "QuantizeAndDequantizeV2",
                                        "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"};

static void every_row(void **state)
{
    seen = trn_map_new();
    const char *only = getenv("GRAD_CASE");
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++)
        for (int mode = 0; mode < (cases[i].build ? 1 : 3); mode++)
            if (!only || !strcmp(only, cases[i].op))
                one_case(&cases[i], mode);
    const trn_grad_row *r;
    for (int i = 0; (r = trn_grad__row_at(i)) && !only; i++) {
        bool there = trn_map_gets(seen, r->op);
        for (size_t k = 0; k < TRN_COUNTOF(elsewhere); k++)
            there |= !strcmp(r->op, elsewhere[k]);
        if (!there)
            BAD("the gradient of %s has no case\n", r->op);
        if (!trn_op_find(r->op))
            BAD("a row for %s, which is no op\n", r->op);
    }
    for (const char *const *op = trn_grad_ends; *op; op++)
        if (!trn_op_find(*op))
            BAD("gradients end at %s, which is no op\n", *op);
    trn_map_free(seen, NULL);
    assert_int_equal(wrong, 0);
}

/* For tools/check-grads: the ops of all cases. */
static int print_ops(void)
{
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        model m = {0};
        if (!cases[i].build) {
            puts(cases[i].op);
            continue;
        }
        m.b = trn_builder_new();
        cases[i].build(&m);
        for (int k = 0; k < trn_builder_node_count(m.b); k++)
            puts(trn_out_op(m.b, (trn_out){k, -1})->op);
        for (int k = 0; k < m.n_x; k++)
            trn_tensor_unref(m.value[k]);
        trn_builder_free(m.b);
    }
    for (size_t k = 0; k < TRN_COUNTOF(elsewhere); k++)
        puts(elsewhere[k]);
    return 0;
}

/* ---- what is not a matter of numbers -------------------------------------------------------------------------------------- */

static trn_tensor *fetch(trn_session *s, trn_builder *b, trn_out o)
{
    check(trn_session_extend_builder(s, b), "extend");
    trn_tensor *t = NULL;
    const char *name = trn_out_name(b, o);
    if (o.slot < 0)
        check(trn_session_run(s, &(trn_run){.n_targets = 1, .targets = &name}), name);
    else
        check(trn_session_run(s, &(trn_run){.n_fetches = 1, .fetches = &name, .out = &t}), name);
    return t;
}

static void expect_numbers(trn_session *s, trn_builder *b, trn_out o, int n, const float *want)
{
    trn_tensor *t = fetch(s, b, o);
    assert_int_equal(trn_tensor_count(t), n);
    for (int i = 0; i < n; i++)
        assert_true(fabs(at(t, i) - (double)want[i]) < 1e-5);
    trn_tensor_unref(t);
}

/* Of both kinds, read twice, looked up: what goes to the handle is all of it. */
static void of_variables(void **state)
{
    for (int ref = 0; ref < 2; ref++) {
        trn_builder *b = trn_builder_new();
        trn_session *s;
        check(trn_session_open_on(&s, server, NULL), "session");
        float v0[] = {1, 2, 3, 4, 5, 6};
        trn_out init = trn_const(b, trn_tensor_from(TRN_FLOAT, 2, (const int64_t[]){3, 2}, v0));
        trn_variable *v = trn_variable_new(b, ref ? "r" : "v", init, ref ? TRN_REF_VARIABLE : 0), *other = trn_variable_new(b, ref ? "ro" : "o", init, 0);
        trn_out ids = trn_const_i32s(b, (const int32_t[]){2, 0, 2}, 3), axis = trn_const_i32(b, 0), both = trn_const_i32s(b, (const int32_t[]){0, 1}, 2);
        trn_attr t = trn_at_type("dtype", TRN_FLOAT);
        trn_out rows = ref ? trn_node_add(b, "GatherV2", TRN_OUTS(v->handle, ids, axis), NULL, 0) : trn_node_add(b, "ResourceGather", TRN_OUTS(v->handle, ids), &t, 1);
        trn_out sum = trn_node_add(b, "Sum", TRN_OUTS(trn_node_add(b, "Square", &rows, 1, NULL, 0), both), NULL, 0);
        trn_grad g[3];
        trn_gradients(g, b, &sum, 1, TRN_OUTS(v->handle, other->handle, other->value), NULL);
        check(trn_builder_check(b), "slices");
        assert_true(trn_grad_is_sparse(g[0]));
        assert_false(trn_grad_is(g[1]) || trn_grad_is(g[2]));
        fetch(s, b, trn_variables_init(b, TRN_VARS_GLOBAL));
        expect_numbers(s, b, g[0].values, 6, (const float[]){10, 12, 2, 4, 10, 12});
        expect_numbers(s, b, trn_grad_dense(b, g[0]), 6, (const float[]){2, 4, 0, 0, 20, 24});
        /* With a dense part it is dense. */
        trn_out more = trn_node_add(b, "AddV2", TRN_OUTS(sum, trn_node_add(b, "Sum", TRN_OUTS(v->value, both), NULL, 0)), NULL, 0);
        trn_gradients(g, b, &more, 1, &v->handle, 1, NULL);
        assert_false(trn_grad_is_sparse(g[0]));
        expect_numbers(s, b, g[0].values, 6, (const float[]){3, 5, 1, 1, 21, 25});
        if (!ref) { /* single elements */
            trn_out places = trn_const(b, trn_tensor_from(TRN_INT32, 2, (const int64_t[]){2, 2}, (const int32_t[]){1, 0, 2, 1}));
            trn_out nd = trn_node_add(b, "ResourceGatherNd", TRN_OUTS(v->handle, places), &t, 1);
            trn_gradients(g, b, &nd, 1, &v->handle, 1, NULL);
            expect_numbers(s, b, g[0].values, 6, (const float[]){0, 0, 1, 0, 0, 1});
        }
        trn_err_free(trn_session_close(s));
        trn_builder_free(b);
    }
}

static void doubled(trn_grad_ctx *c)
{
    assert_true(trn_grad_wanted(c, 0) && trn_grad_has_dy(c, 0));
    assert_string_equal(trn_grad_node(c)->op, "Floor");
    assert_int_equal(trn_out_dtype(trn_grad_builder(c), trn_grad_in(c, 0)), TRN_FLOAT);
    trn_grad_set(c, 0, trn_node_add(trn_grad_builder(c), "AddV2", TRN_OUTS(trn_grad_dy(c, 0), trn_grad_dy(c, 0)), NULL, 0));
}

static void expect_failure(trn_builder *b, trn_code code, const char *word)
{
    trn_err err = trn_builder_check(b);
    assert_non_null(err);
    assert_int_equal(trn_err_code(err), code);
    if (!strstr(trn_err_msg(err), word))
        fail_msg("'%s' does not say '%s'", trn_err_msg(err), word);
    trn_err_free(err);
    trn_builder_free(b);
}

static void own_rows_and_errors(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_session *s;
    check(trn_session_open_on(&s, server, NULL), "session");
    trn_out x = trn_const_f32(b, 2.5f), y = trn_node_add(b, "Floor", &x, 1, NULL, 0);
    trn_grad g[2];
    trn_gradients(g, b, &y, 1, &x, 1, NULL); /* ours: none */
    assert_false(trn_grad_is(g[0]));
    trn_gradient_register("Floor", doubled);
    trn_gradients(g, b, &y, 1, &x, 1, NULL);
    trn_gradient_register("Floor", NULL);
    expect_numbers(s, b, g[0].values, 1, (const float[]){2});
    /* An x on the way to another; grad_ys; stop. */
    trn_out a = trn_node_add(b, "Square", &x, 1, NULL, 0), z = trn_node_add(b, "Exp", &a, 1, NULL, 0), three = trn_const_f32(b, 3);
    trn_gradients(g, b, &z, 1, TRN_OUTS(x, a), &(trn_gradients_opts){.grad_ys = &three});
    float e = expf(6.25f);
    trn_tensor *t = fetch(s, b, g[1].values);
    assert_true(fabs(at(t, 0) - 3 * (double)e) < 1e-2);
    trn_tensor_unref(t);
    trn_gradients(g, b, &z, 1, TRN_OUTS(x, a), &(trn_gradients_opts){.stop = &a, .n_stop = 1, .name = "mine"});
    assert_false(trn_grad_is(g[0]));
    assert_true(trn_grad_is(g[1]));
    assert_true(strncmp(trn_out_name(b, g[1].values), "mine/Exp_grad/", 14) == 0);
    trn_gradients(g, b, &z, 1, TRN_OUTS(x, three), &(trn_gradients_opts){.zeros = true});
    expect_numbers(s, b, g[1].values, 1, (const float[]){0});
    trn_out cut = trn_stop_gradient(b, a);
    trn_gradients(g, b, &cut, 1, &x, 1, NULL);
    assert_false(trn_grad_is(g[0]));
    check(trn_builder_check(b), "all fine");
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);

    b = trn_builder_new();
    x = trn_const_f32(b, 1);
    y = trn_node_add(trn_named(b, "odd"), "SoftsignGrad", TRN_OUTS(x, x), NULL, 0);
    trn_gradients(g, b, &y, 1, &x, 1, NULL);
    expect_failure(b, TRN_NOT_FOUND, "SoftsignGrad (node 'odd')");
    b = trn_builder_new();
    x = trn_const_f32(b, 1);
    y = trn_node_add(b, "PreventGradient", &x, 1, NULL, 0);
    trn_gradients(g, b, &y, 1, &x, 1, NULL);
    expect_failure(b, TRN_INVALID_ARGUMENT, "PreventGradient");
    b = trn_builder_new();
    x = trn_const_f32(b, 1);
    y = trn_node_add(b, "Square", &x, 1, NULL, 0);
    a = trn_const_num(b, TRN_DOUBLE, 1);
    trn_gradients(g, b, &y, 1, &x, 1, &(trn_gradients_opts){.grad_ys = &a});
    expect_failure(b, TRN_INVALID_ARGUMENT, "its gradient");
    b = trn_builder_new();
    x = trn_const_f32(b, 1);
    y = trn_node_add(b, "Square", &x, 1, NULL, 0);
    a = trn_const_i32s(b, (const int32_t[]){1, 2}, 2);
    trn_gradients(g, b, &y, 1, &x, 1, &(trn_gradients_opts){.grad_ys = &a});
    expect_failure(b, TRN_INVALID_ARGUMENT, "[2]");
    b = trn_builder_new();
    x = trn_const_f32(b, 1);
    trn_attr own = trn_at_str("_gradient_op_type", "CustomGradient-7");
    y = trn_node_add(trn_named(b, "odd"), "Square", &x, 1, &own, 1);
    trn_gradients(g, b, &y, 1, &x, 1, NULL);
    expect_failure(b, TRN_NOT_FOUND, "CustomGradient-7");
    b = trn_builder_new();
    x = trn_const_i32(b, 1);
    trn_gradients(g, b, &x, 1, &x, 1, NULL);
    expect_failure(b, TRN_INVALID_ARGUMENT, "int32");
}

/* A sample keeps its rank among all samples while its parameter moves: with P the share of those below it, dP/da + dP/dx dx/da = 0. */
static void of_samples(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_session *s;
    check(trn_session_open_on(&s, server, NULL), "session");
    const double a0[] = {0.7, 2.5}, h = 1e-5;
    trn_out a = trn_const(b, trn_tensor_from(TRN_DOUBLE, 1, (const int64_t[]){2}, a0)), three = trn_const_i32s(b, (const int32_t[]){3}, 1);
    trn_attr seed[] = {trn_at_int("seed", 7), trn_at_int("seed2", 8)};
    trn_out x = trn_node_add(b, "RandomGamma", TRN_OUTS(three, a), seed, 2);
    trn_grad g;
    trn_gradients(&g, b, &x, 1, &a, 1, NULL);
    check(trn_session_extend_builder(s, b), "extend");
    const char *names[] = {trn_out_name(b, x), trn_out_name(b, g.values)};
    trn_tensor *v[2];
    check(trn_session_run(s, &(trn_run){.n_fetches = 2, .fetches = names, .out = v}), "samples");
    assert_int_equal(trn_tensor_count(v[0]), 6);
    assert_int_equal(trn_tensor_count(v[1]), 2);
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int i = 0; i < 3; i++) {
            double p[4], sample = at(v[0], 2 * i + k);
            for (int e = 0; e < 4; e++) {
                trn_out pa = trn_const_num(b, TRN_DOUBLE, a0[k] + (e == 0 ? h : e == 1 ? -h : 0)), px = trn_const_num(b, TRN_DOUBLE, sample * (1 + (e == 2 ? h : e == 3 ? -h : 0)));
                trn_tensor *t = fetch(s, b, trn_node_add(b, "Igamma", TRN_OUTS(pa, px), NULL, 0));
                p[e] = at(t, 0);
                trn_tensor_unref(t);
            }
            sum -= (p[0] - p[1]) / (p[2] - p[3]) * sample;
        }
        if (!(fabs(sum - at(v[1], k)) < 1e-3 * fabs(sum)))
            fail_msg("d%d is %g, should be %g", k, at(v[1], k), sum);
    }
    trn_tensor_unref(v[0]);
    trn_tensor_unref(v[1]);
    trn_err_free(trn_session_close(s));
    trn_builder_free(b);
}

/* Where shapes are known the step has nothing to find out about them. */
static void known_shapes_are_folded(void **state)
{
    trn_builder *b = trn_builder_new();
    trn_out x = trn_placeholder(b, "x", TRN_FLOAT, trn_shape_of(2, -1L, 4L)), w = trn_placeholder(b, "w", TRN_FLOAT, trn_shape_of(2, 4L, 3L));
    trn_out c = trn_placeholder(b, "c", TRN_FLOAT, trn_shape_of(1, 3L)), axis = trn_const_i32s(b, (const int32_t[]){1}, 1);
    trn_out y = trn_node_add(b, "AddV2", TRN_OUTS(trn_node_add(b, "MatMul", TRN_OUTS(x, w), NULL, 0), c), NULL, 0);
    y = trn_node_add(b, "Mean", TRN_OUTS(trn_node_add(b, "Mul", TRN_OUTS(y, trn_const_f32(b, 2)), NULL, 0), axis), NULL, 0);
    trn_grad g[2];
    trn_gradients(g, b, &y, 1, TRN_OUTS(w, c), NULL);
    check(trn_builder_check(b), "gradients");
    for (int i = 0; i < trn_builder_node_count(b); i++)
        assert_string_not_equal(trn_out_op(b, (trn_out){i, -1})->op, "BroadcastGradientArgs");
    trn_builder_free(b);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--ops"))
        return print_ops();
    check(trn_server_create_local(&server), "server");
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row), cmocka_unit_test(of_variables), cmocka_unit_test(own_rows_and_errors), cmocka_unit_test(of_samples),
                                       cmocka_unit_test(known_shapes_are_folded)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    trn_server_close(server, 0);
    return rc;
}
