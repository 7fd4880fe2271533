/* Einsum of one or two operands. Each operand is brought into the form [batch, own, summed] by one strided copy (diagonals are strides added
 * up), what only it has and the result has not is summed away, and the rest is a batch of matrix products. */
#include "ops/gemm.h"
#include "ops/kern.h"

#include <stdlib.h>

enum { MAX_LABELS = 2 * TRN_MAX_RANK + 64, ELLIPSIS = -1 };

typedef struct operand {
    int label[TRN_MAX_RANK]; /* per dim */
    int n;
} operand;

typedef struct problem {
    operand in[2], out;
    int n_in, n_labels;
    int64_t size[MAX_LABELS];
    bool used[2][MAX_LABELS], in_out[MAX_LABELS];
    char name[MAX_LABELS]; /* letter, or 0 for a dim of the ellipsis */
} problem;

/* ---- the equation ------------------------------------------------------------------------------------------------------ */

static int label_of(problem *p, char c)
{
    for (int i = 0; i < p->n_labels; i++)
        if (p->name[i] == c)
            return i;
    p->name[p->n_labels] = c;
    p->size[p->n_labels] = -1;
    return p->n_labels++;
}

/* Labels of one side's term; ELLIPSIS stands for all that it covers. Any character may be a label, as in TensorFlow. */
static trn_err parse_term(problem *p, operand *o, const char *s, size_t n)
{
    bool dots = false;
    o->n = 0;
    for (size_t i = 0; i < n; i++) {
        TRN_CHECK_ARG(o->n < TRN_MAX_RANK, "a term of the equation has more than %d labels", TRN_MAX_RANK);
        if (s[i] == '.') {
            TRN_CHECK_ARG(!dots && n - i >= 3 && !strncmp(s + i, "...", 3),
                          "Period \".\" found outside of ellipsis, or a second ellipsis, in \"%.*s\"", (int)n, s);
            dots = true;
            i += 2;
            o->label[o->n++] = ELLIPSIS;
            continue;
        }
        o->label[o->n++] = label_of(p, s[i]);
    }
    return TRN_OK;
}

static trn_err parse(problem *p, const char *eq, int n_in)
{
    const char *arrow = strstr(eq, "->"), *comma;
    TRN_CHECK_ARG(arrow, "Expecting exactly one '->' in einsum equation: %s", eq);
    TRN_CHECK_ARG(!strstr(arrow + 2, "->") && !strchr(arrow + 2, ','),
                  "Expecting exactly one '->' and one result in einsum equation: %s", eq);
    comma = memchr(eq, ',', (size_t)(arrow - eq));
    int terms = 1 + (comma != NULL);
    TRN_CHECK_ARG(!comma || !memchr(comma + 1, ',', (size_t)(arrow - comma - 1)),
                  "Expecting at most 2 inputs in einsum equation: %s", eq);
    TRN_CHECK_ARG(terms == n_in, "Expected %d inputs for equation %s but got: %d", terms, eq, n_in);
    p->n_in = n_in;
    TRN_TRY(parse_term(p, &p->in[0], eq, (size_t)((comma ? comma : arrow) - eq)));
    if (comma)
        TRN_TRY(parse_term(p, &p->in[1], comma + 1, (size_t)(arrow - comma - 1)));
    return parse_term(p, &p->out, arrow + 2, strlen(arrow + 2));
}

static bool has_dots(const operand *o)
{
    for (int i = 0; i < o->n; i++)
        if (o->label[i] == ELLIPSIS)
            return true;
    return false;
}

/* Replaces an ellipsis by labels first … first+n; they are numbered from the right so that operands broadcast. */
static trn_err expand(operand *o, int base, int n)
{
    operand r = {.n = 0};
    for (int i = 0; i < o->n; i++) {
        TRN_CHECK_ARG(r.n + (o->label[i] == ELLIPSIS ? n : 1) <= TRN_MAX_RANK, "too many dimensions");
        if (o->label[i] != ELLIPSIS) {
            r.label[r.n++] = o->label[i];
            continue;
        }
        for (int d = n - 1; d >= 0; d--)
            r.label[r.n++] = base + d;
    }
    *o = r;
    return TRN_OK;
}

static trn_err expand_all(problem *p, const trn_kctx *k)
{
    int most = 0, n[2] = {0, 0}, base = p->n_labels;
    for (int i = 0; i < p->n_in; i++) {
        bool dots = has_dots(&p->in[i]);
        int rank = trn_in(k, i)->shape.rank, letters = p->in[i].n - dots;
        TRN_CHECK_ARG(dots ? rank >= letters : rank == letters, "Expected input %d to have rank %d but got: %d", i,
                      letters, rank);
        n[i] = rank - letters;
        most = n[i] > most ? n[i] : most;
    }
    for (int d = 0; d < most; d++) {
        p->name[p->n_labels] = 0;
        p->size[p->n_labels++] = -1;
    }
    for (int i = 0; i < p->n_in; i++)
        TRN_TRY(expand(&p->in[i], base, n[i]));
    bool dropped = most && !has_dots(&p->out);
    TRN_CHECK_ARG(!dropped, "an ellipsis covers dimensions of the inputs but is missing in the result");
    return expand(&p->out, base, most);
}

static trn_err sizes(problem *p, const trn_kctx *k)
{
    for (int i = 0; i < p->n_in; i++)
        for (int d = 0; d < p->in[i].n; d++) {
            int l = p->in[i].label[d];
            int64_t n = trn_in(k, i)->shape.dim[d];
            p->used[i][l] = true;
            if (p->size[l] < 0 || (!p->name[l] && p->size[l] == 1))
                p->size[l] = n;
            else
                TRN_CHECK_ARG(
                    p->size[l] == n || (!p->name[l] && n == 1),
                    "Expected dimension %lld at axis %d of the input shaped with rank %d but got dimension %lld",
                    (long long)p->size[l], d, p->in[i].n, (long long)n);
        }
    for (int d = 0; d < p->out.n; d++) {
        int l = p->out.label[d];
        TRN_CHECK_ARG(p->used[0][l] || p->used[1][l], "Expected label '%c' of the result to appear in an input",
                      p->name[l] ? p->name[l] : '.');
        p->in_out[l] = true;
    }
    return TRN_OK;
}

/* ---- operands ---------------------------------------------------------------------------------------------------------- */

/* Dims of a rearranged operand: labels in order. */
typedef struct layout {
    int label[MAX_LABELS];
    int n;
} layout;

static int64_t extent(const problem *p, const layout *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++)
        n *= p->size[l->label[i]];
    return n;
}

/* Operand i with the dims of `to`; what it broadcasts along has stride 0. */
static trn_err rearranged(trn_tensor **out, trn_kctx *k, const problem *p, int i, const trn_tensor *x, const layout *to)
{
    int64_t stride[TRN_MAX_RANK], ss[MAX_LABELS] = {0}, ds[MAX_LABELS], size[MAX_LABELS];
    TRN_CHECK_ARG(to->n <= TRN_MAX_RANK, "too many dimensions");
    trn_row_strides(stride, &x->shape);
    trn_shape s = {.rank = to->n};
    for (int d = 0; d < to->n; d++) {
        size[d] = s.dim[d] = p->size[to->label[d]];
        for (int e = 0; e < p->in[i].n; e++)
            if (p->in[i].label[e] == to->label[d] && x->shape.dim[e] == size[d])
                ss[d] += stride[e];
    }
    int64_t total;
    TRN_TRY(trn_count_checked(&total, &s));
    trn_tensor *y;
    TRN_TRY(trn_tensor_new(&y, x->dtype, &s));
    trn_row_strides(ds, &s);
    trn_err err = total ? trn_block_copy(k, y, 0, ds, x, 0, ss, size, to->n) : TRN_OK;
    if (err)
        trn_tensor_unref(y);
    else
        *out = y;
    return err;
}

/* [rows, n] to [rows]. */
static trn_err sum_rows(trn_tensor **out, trn_tensor *x, int64_t rows, int64_t n)
{
    trn_shape s = trn_shape_vector(rows);
    trn_tensor *y;
    TRN_TRY(trn_tensor_new(&y, x->dtype, &s));
    trn_zero_elems(y, 0, rows);
    size_t size = trn_dtype_size(x->dtype);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            trn_accum(TRN_ACC_ADD, x->dtype, (char *)y->data + (size_t)r * size,
                      (char *)x->data + (size_t)(r * n + i) * size, 1);
    *out = y;
    return TRN_OK;
}

/* Operand i in layout `to`, with the labels that neither the result nor the other operand has summed away. */
static trn_err prepared(trn_tensor **out, trn_kctx *k, const problem *p, int i, const trn_tensor *x, const layout *to)
{
    layout all = *to;
    for (int l = 0; l < p->n_labels; l++)
        if (p->used[i][l] && !p->in_out[l] && !(p->n_in == 2 && p->used[!i][l]))
            all.label[all.n++] = l;
    trn_tensor *y;
    TRN_TRY(rearranged(&y, k, p, i, x, &all));
    if (all.n == to->n) {
        *out = y;
        return TRN_OK;
    }
    int64_t rows = extent(p, to);
    layout rest = {.n = all.n - to->n};
    memcpy(rest.label, all.label + to->n, (size_t)rest.n * sizeof *rest.label);
    trn_err err = sum_rows(out, y, rows, extent(p, &rest));
    trn_tensor_unref(y);
    return err;
}

/* ---- the product -------------------------------------------------------------------------------------------------------- */

typedef struct product {
    trn_dtype dtype;
    const char *a, *b;
    char *c;
    size_t size;
    int64_t m, n, k;
    _Atomic bool oom;
} product;

/* Rows [lo, hi) of all batches of A (m rows each) times their B. */
static void multiply(void *arg, int64_t lo, int64_t hi)
{
    product *p = arg;
    while (lo < hi) {
        int64_t batch = lo / p->m, row = lo % p->m, rows = p->m - row < hi - lo ? p->m - row : hi - lo;
        trn_gemm_args g = {.m = rows,
                           .n = p->n,
                           .k = p->k,
                           .a = p->a + (size_t)((batch * p->m + row) * p->k) * p->size,
                           .ars = p->k,
                           .acs = 1,
                           .b = p->b + (size_t)(batch * p->n * p->k) * p->size,
                           .brs = 1,
                           .bcs = p->k,
                           .c = p->c + (size_t)((batch * p->m + row) * p->n) * p->size,
                           .ldc = p->n};
        if (!trn_gemm(p->dtype, &g))
            atomic_store(&p->oom, true);
        lo += rows;
    }
}

/* The labels of the result, each once. */
static layout out_labels(const problem *p)
{
    layout to = {0};
    for (int d = 0; d < p->out.n; d++) {
        bool there = false;
        for (int e = 0; e < to.n; e++)
            there |= to.label[e] == p->out.label[d];
        if (!there)
            to.label[to.n++] = p->out.label[d];
    }
    return to;
}

/* Result dims to the order that the equation wants; a label that it has twice there is a diagonal, with zeros around it. */
static trn_err give(trn_kctx *k, const problem *p, const trn_tensor *y, const layout *have)
{
    const layout to = out_labels(p);
    trn_shape s = {.rank = p->out.n};
    int64_t stride[MAX_LABELS], ss[MAX_LABELS] = {0}, ds[MAX_LABELS] = {0}, size[MAX_LABELS], rows[TRN_MAX_RANK], total, step = 1;
    for (int d = have->n - 1; d >= 0; d--) {
        stride[d] = step;
        step *= p->size[have->label[d]];
    }
    for (int d = 0; d < p->out.n; d++)
        s.dim[d] = p->size[p->out.label[d]];
    TRN_TRY(trn_count_checked(&total, &s));
    trn_row_strides(rows, &s);
    for (int u = 0; u < to.n; u++) {
        size[u] = p->size[to.label[u]];
        for (int d = 0; d < p->out.n; d++)
            if (p->out.label[d] == to.label[u])
                ds[u] += rows[d];
        for (int e = 0; e < have->n; e++)
            if (have->label[e] == to.label[u])
                ss[u] = stride[e];
    }
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, k->node->out_types[0], &s));
    if (!out->count)
        return TRN_OK;
    if (!trn_is_half(out->dtype)) {
        if (to.n < s.rank)
            trn_zero_elems(out, 0, out->count);
        return trn_block_copy(k, out, 0, ds, y, 0, ss, size, to.n);
    }
    trn_tensor *wide;
    TRN_TRY(trn_tensor_new(&wide, TRN_FLOAT, &s));
    if (to.n < s.rank)
        trn_zero_elems(wide, 0, wide->count);
    trn_err err = trn_block_copy(k, wide, 0, ds, y, 0, ss, size, to.n);
    if (!err)
        trn_narrow(out->data, wide->data, out->dtype, out->count);
    trn_tensor_unref(wide);
    return err;
}

static trn_err one(trn_kctx *k, const problem *p, const trn_tensor *x)
{
    const layout to = out_labels(p);
    trn_tensor *y;
    TRN_TRY(prepared(&y, k, p, 0, x, &to));
    trn_err err = give(k, p, y, &to);
    trn_tensor_unref(y);
    return err;
}

static trn_err two(trn_kctx *k, const problem *p, const trn_tensor *const x[2])
{
    layout batch = {0}, own[2] = {{0}, {0}}, summed = {0}, in[2], res;
    for (int l = 0; l < p->n_labels; l++) {
        bool a = p->used[0][l], b = p->used[1][l];
        layout *to = a && b ? (p->in_out[l] ? &batch : &summed) : !p->in_out[l] ? NULL : a ? &own[0] : &own[1];
        if (to)
            to->label[to->n++] = l;
    }
    for (int i = 0; i < 2; i++) {
        in[i] = batch;
        for (int d = 0; d < own[i].n; d++)
            in[i].label[in[i].n++] = own[i].label[d];
        for (int d = 0; d < summed.n; d++)
            in[i].label[in[i].n++] = summed.label[d];
    }
    res = batch;
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < own[i].n; d++)
            res.label[res.n++] = own[i].label[d];
    TRN_CHECK_ARG(res.n <= TRN_MAX_RANK, "too many dimensions");
    trn_shape s = {.rank = res.n};
    for (int d = 0; d < res.n; d++)
        s.dim[d] = p->size[res.label[d]];
    int64_t total;
    TRN_TRY(trn_count_checked(&total, &s));
    trn_tensor *t[3] = {NULL, NULL, NULL};
    trn_err err = prepared(&t[0], k, p, 0, x[0], &in[0]);
    if (!err)
        err = prepared(&t[1], k, p, 1, x[1], &in[1]);
    if (!err)
        err = trn_tensor_new(&t[2], x[0]->dtype, &s);
    if (!err) {
        product q = {.dtype = x[0]->dtype,
                     .a = t[0]->data,
                     .b = t[1]->data,
                     .c = t[2]->data,
                     .size = trn_dtype_size(x[0]->dtype),
                     .m = extent(p, &own[0]),
                     .n = extent(p, &own[1]),
                     .k = extent(p, &summed)};
        if (total && !q.k)
            trn_zero_elems(t[2], 0, total);
        else if (total)
            trn_k_for(k, extent(p, &batch) * q.m, TRN_MAX((int64_t)262144 / TRN_MAX(q.n * q.k, (int64_t)1), (int64_t)1),
                      multiply, &q);
        err = atomic_load(&q.oom) ? trn_err_oom() : give(k, p, t[2], &res);
    }
    for (int i = 0; i < 3; i++)
        trn_tensor_unref(t[i]);
    return err;
}

static trn_err widened(trn_tensor **out, const trn_tensor *x)
{
    TRN_TRY(trn_tensor_new(out, TRN_FLOAT, &x->shape));
    trn_widen((*out)->data, x->data, x->dtype, x->count);
    return TRN_OK;
}

static trn_err einsum(trn_kctx *k)
{
    TRN_CHECK_ARG(k->n_in <= 2, "Expecting at most 2 inputs, got %d", k->n_in);
    problem p = {0};
    TRN_TRY(parse(&p, trn_attr_str(k->node, "equation"), k->n_in));
    TRN_TRY(expand_all(&p, k));
    TRN_TRY(sizes(&p, k));
    const trn_tensor *x[2] = {trn_in(k, 0), k->n_in == 2 ? trn_in(k, 1) : NULL};
    trn_tensor *w[2] = {NULL, NULL};
    trn_err err = TRN_OK;
    for (int i = 0; i < k->n_in && !err && trn_is_half(x[i]->dtype); i++) {
        err = widened(&w[i], x[i]);
        x[i] = w[i];
    }
    if (!err)
        err = k->n_in == 1 ? one(k, &p, x[0]) : two(k, &p, x);
    trn_tensor_unref(w[0]);
    trn_tensor_unref(w[1]);
    return err;
}

const trn_op trn_ops_einsum[] = {
    {"Einsum", "inputs:N*T -> output:T; equation:string, N:int>=1, T:float|i16|i32|i64|c64|c128", trn_sh_unknown,
     einsum, 0},
    {0},
};
