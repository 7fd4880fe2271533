/* Sets: the rows along a tensor's last dim, dense or sparse; differences, intersections, unions, sizes. */
#include "ops/sparse.h"

#include <stdlib.h>

/* A row's elements are positions in its values tensor. */
typedef struct rows {
    const trn_tensor *v;
    trn_sparse s;              /* sparse when s.indices is set */
    trn_shape group;           /* shape without the last dim */
    int64_t n_groups, per_row; /* dense */
    int64_t next;              /* sparse: first entry of the group that comes next */
} rows;

static trn_err drop_last(rows *r, const trn_shape *s)
{
    TRN_CHECK_ARG(s->rank >= 2, "Invalid rank %d: sets lie along the last of at least two dimensions.", s->rank);
    r->group = *s;
    r->group.rank--;
    return trn_count_checked(&r->n_groups, &r->group);
}

static trn_err dense_in(rows *r, const trn_kctx *k, int i)
{
    *r = (rows){.v = trn_in(k, i)};
    TRN_TRY(drop_last(r, &r->v->shape));
    r->per_row = r->v->shape.dim[r->v->shape.rank - 1];
    return TRN_OK;
}

static trn_err sparse_in(rows *r, const trn_kctx *k, int i)
{
    *r = (rows){.v = trn_in(k, i + 1)};
    TRN_TRY(trn_sparse_in(&r->s, k, i));
    TRN_TRY(drop_last(r, &r->s.shape));
    if (!trn_attr_bool(k->node, "validate_indices"))
        return trn_sparse_in_bounds(&r->s);
    TRN_TRY(trn_sparse_in_bounds(&r->s));
    for (int64_t e = 1; e < r->s.n; e++)
        TRN_CHECK_ARG(trn_index_cmp(trn_sparse_row(&r->s, e - 1), trn_sparse_row(&r->s, e), r->s.rank) < 0,
                      "indices[%lld] is %s", (long long)e,
                      trn_index_cmp(trn_sparse_row(&r->s, e - 1), trn_sparse_row(&r->s, e), r->s.rank) ? "out of order"
                                                                                                       : "repeated");
    return TRN_OK;
}

/* ---- elements ------------------------------------------------------------------------------------------------------------ */

static int cmp_at(const trn_tensor *a, int64_t i, const trn_tensor *b, int64_t j)
{
    if (a->dtype == TRN_STRING) {
        const trn_str *x = &TRN_DATA(a, trn_str)[i], *y = &TRN_DATA(b, trn_str)[j];
        int c = memcmp(trn_str_p(x), trn_str_p(y), TRN_MIN(x->len, y->len));
        return c ? c : (x->len > y->len) - (x->len < y->len);
    }
    int64_t x = trn_int_at(a, i), y = trn_int_at(b, j);
    return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b, void *arg)
{
    return cmp_at(arg, *(const int64_t *)a, arg, *(const int64_t *)b);
}

/* Positions of a set's elements, ascending, each value once. */
typedef struct set {
    int64_t *at;
    int64_t n, cap;
} set;

static trn_err fill(set *s, const trn_tensor *v, int64_t first, int64_t n)
{
    if (n > s->cap) {
        int64_t *p = realloc(s->at, (size_t)n * sizeof *p);
        if (!p)
            return trn_err_oom();
        s->at = p;
        s->cap = n;
    }
    for (int64_t i = 0; i < n; i++)
        s->at[i] = first + i;
    s->n = 0;
    if (n)
        qsort_r(s->at, (size_t)n, sizeof *s->at, by_value, (void *)v);
    for (int64_t i = 0; i < n; i++)
        if (!s->n || cmp_at(v, s->at[s->n - 1], v, s->at[i]))
            s->at[s->n++] = s->at[i];
    return TRN_OK;
}

/* The sparse group at hand: its index (borrowed), its entries. */
static int64_t group_end(const rows *r)
{
    int64_t e = r->next + 1;
    while (e < r->s.n && !trn_index_cmp(trn_sparse_row(&r->s, r->next), trn_sparse_row(&r->s, e), r->s.rank - 1))
        e++;
    return e;
}

/* ---- results ------------------------------------------------------------------------------------------------------------- */

typedef enum op { A_MINUS_B, B_MINUS_A, INTERSECTION, UNION } op;

/* Results as they arise: per element its group's index, its place in the set, and where its value is. */
typedef struct result {
    op op;
    const rows *a, *b;
    int64_t *ix;   /* rank per element */
    int64_t *from; /* position in a's values, or ~position in b's */
    int64_t n, cap, most;
} result;

static trn_err add(result *r, const int64_t *group, int64_t place, int64_t from)
{
    int rank = r->a->group.rank + 1;
    if (r->n == r->cap) {
        int64_t cap = r->cap ? 2 * r->cap : 64;
        int64_t *ix = realloc(r->ix, (size_t)(cap * rank) * sizeof *ix);
        if (!ix)
            return trn_err_oom();
        r->ix = ix;
        int64_t *f = realloc(r->from, (size_t)cap * sizeof *f);
        if (!f)
            return trn_err_oom();
        r->from = f;
        r->cap = cap;
    }
    int64_t *ix = r->ix + r->n * rank;
    memcpy(ix, group, (size_t)(rank - 1) * sizeof *ix);
    ix[rank - 1] = place;
    r->from[r->n++] = from;
    return TRN_OK;
}

static trn_err combine(result *r, const int64_t *group, const set *a, const set *b)
{
    int64_t i = 0, j = 0, n = 0;
    while (i < a->n || j < b->n) {
        int c = i == a->n ? 1 : j == b->n ? -1 : cmp_at(r->a->v, a->at[i], r->b->v, b->at[j]);
        bool keep = r->op == UNION || (c == 0  ? r->op == INTERSECTION
                                       : c < 0 ? r->op == A_MINUS_B
                                               : r->op == B_MINUS_A);
        if (keep)
            TRN_TRY(add(r, group, n++, c <= 0 ? a->at[i] : ~b->at[j]));
        i += c <= 0;
        j += c >= 0;
    }
    r->most = n > r->most ? n : r->most;
    return TRN_OK;
}

static trn_err give(trn_kctx *k, const result *r)
{
    int rank = r->a->group.rank + 1;
    trn_shape shape = r->a->group;
    shape.dim[shape.rank++] = r->most;
    trn_tensor *ix, *v;
    TRN_TRY(trn_sparse_out(&ix, &v, k, 0, 1, r->n, rank, r->a->v->dtype));
    if (r->n)
        memcpy(ix->data, r->ix, (size_t)(r->n * rank) * sizeof *r->ix);
    for (int64_t i = 0; i < r->n; i++)
        TRN_TRY(r->from[i] >= 0 ? trn_tensor_copy_elems(v, i, r->a->v, r->from[i], 1)
                                : trn_tensor_copy_elems(v, i, r->b->v, ~r->from[i], 1));
    return trn_sparse_out_shape(k, 2, &shape);
}

static void unravel(int64_t *out, int64_t g, const trn_shape *s)
{
    for (int d = s->rank - 1; d >= 0; d--) {
        out[d] = g % s->dim[d];
        g /= s->dim[d];
    }
}

/* a is dense, b may be either. */
static trn_err walk_dense(result *r, rows *a, rows *b, set *sa, set *sb)
{
    for (int64_t g = 0; g < a->n_groups; g++) {
        int64_t group[TRN_MAX_RANK];
        unravel(group, g, &a->group);
        TRN_TRY(fill(sa, a->v, g * a->per_row, a->per_row));
        sb->n = 0;
        if (!b->s.indices) {
            TRN_TRY(fill(sb, b->v, g * b->per_row, b->per_row));
        } else if (b->next < b->s.n && !trn_index_cmp(trn_sparse_row(&b->s, b->next), group, a->group.rank)) {
            int64_t end = group_end(b);
            TRN_TRY(fill(sb, b->v, b->next, end - b->next));
            b->next = end;
        }
        TRN_TRY(combine(r, group, sa, sb));
    }
    return TRN_OK;
}

static trn_err walk_sparse(result *r, rows *a, rows *b, set *sa, set *sb)
{
    while (a->next < a->s.n || b->next < b->s.n) {
        const int64_t *ga = trn_sparse_row(&a->s, a->next), *gb = trn_sparse_row(&b->s, b->next);
        int c = a->next == a->s.n ? 1 : b->next == b->s.n ? -1 : trn_index_cmp(ga, gb, a->group.rank);
        sa->n = sb->n = 0;
        if (c <= 0) {
            int64_t end = group_end(a);
            TRN_TRY(fill(sa, a->v, a->next, end - a->next));
            a->next = end;
        }
        if (c >= 0) {
            int64_t end = group_end(b);
            TRN_TRY(fill(sb, b->v, b->next, end - b->next));
            b->next = end;
        }
        TRN_TRY(combine(r, c <= 0 ? ga : gb, sa, sb));
    }
    return TRN_OK;
}

static trn_err which(op *out, const trn_node *n)
{
    static const char *const names[] = {"a-b", "b-a", "intersection", "union"};
    const char *s = trn_attr_str(n, "set_operation");
    for (int i = 0; i < 4; i++)
        if (!strcasecmp(s, names[i])) {
            *out = (op)i;
            return TRN_OK;
        }
    return TRN_BAD("Invalid set_operation %s.", s);
}

static trn_err operate(trn_kctx *k, rows *a, rows *b)
{
    result r = {.a = a, .b = b};
    char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
    TRN_TRY(which(&r.op, k->node));
    TRN_CHECK_ARG(trn_shape_eq(&a->group, &b->group), "Mismatched shapes %s vs %s", trn_shape_text(ta, &a->group),
                  trn_shape_text(tb, &b->group));
    set sa = {0}, sb = {0};
    trn_err err = (a->s.indices ? walk_sparse : walk_dense)(&r, a, b, &sa, &sb);
    if (!err)
        err = give(k, &r);
    free(sa.at);
    free(sb.at);
    free(r.ix);
    free(r.from);
    return err;
}

static trn_err dense_dense(trn_kctx *k)
{
    rows a, b;
    TRN_TRY(dense_in(&a, k, 0));
    TRN_TRY(dense_in(&b, k, 1));
    return operate(k, &a, &b);
}

static trn_err dense_sparse(trn_kctx *k)
{
    rows a, b;
    TRN_TRY(dense_in(&a, k, 0));
    TRN_TRY(sparse_in(&b, k, 1));
    return operate(k, &a, &b);
}

static trn_err sparse_sparse(trn_kctx *k)
{
    rows a, b;
    TRN_TRY(sparse_in(&a, k, 0));
    TRN_TRY(sparse_in(&b, k, 3));
    return operate(k, &a, &b);
}

static trn_err set_size(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_is_vector(trn_in(k, 2)), "Shape must be a 1D tensor, not of rank %d", trn_in(k, 2)->shape.rank);
    rows r;
    TRN_TRY(sparse_in(&r, k, 0));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT32, &r.group));
    trn_zero_elems(y, 0, y->count);
    set s = {0};
    trn_err err = TRN_OK;
    while (r.next < r.s.n && !err) {
        int64_t end = group_end(&r), to = 0;
        for (int d = 0; d < r.group.rank; d++)
            to = to * r.group.dim[d] + trn_sparse_row(&r.s, r.next)[d];
        err = fill(&s, r.v, r.next, end - r.next);
        TRN_DATA_MUT(y, int32_t)[to] = (int32_t)s.n;
        r.next = end;
    }
    free(s.at);
    return err;
}

#define OUT                                                                                                            \
    " -> result_indices:i64, result_values:T, result_shape:i64; set_operation:string, validate_indices:bool=true, " T
#define T "T:i8|i16|i32|i64|u8|u16|str"
#define SET1 "set1_indices:i64, set1_values:T, set1_shape:i64"
#define SET2 "set2_indices:i64, set2_values:T, set2_shape:i64"

const trn_op trn_ops_sets[] = {
    {"DenseToDenseSetOperation", "set1:T, set2:T" OUT, trn_sh_unknown, dense_dense, 0},
    {"DenseToSparseSetOperation", "set1:T, " SET2 OUT, trn_sh_unknown, dense_sparse, 0},
    {"SparseToSparseSetOperation", SET1 ", " SET2 OUT, trn_sh_unknown, sparse_sparse, 0},
    {"SetSize", "set_indices:i64, set_values:T, set_shape:i64 -> size:i32; validate_indices:bool=true, " T,
     trn_sh_unknown, set_size, 0},
    {0},
};
