/* Crosses of features: every combination of one value from each column, row by row, as joined strings or as hashes (the same as
 * TensorFlow's, since they number a model's weights). */
#include "ops/sparse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One column: entries of a sparse [batch, any], sorted by row, or a dense [batch, n]. */
typedef struct column {
    const trn_tensor *v;
    const int64_t *ix;    /* NULL: dense */
    int64_t n, next;      /* sparse: entries, and the first that is not behind us */
    int64_t first, count; /* of the current row */
} column;

typedef enum how { JOIN, HASH, HASH_KEYED } how;

typedef struct cross {
    column *c;
    int n;
    int64_t batch, row;
    how how;
    uint64_t buckets, key[2];
    bool strong;
    const char *sep;
    size_t n_sep;
    int64_t *at; /* which value of each column */
} cross;

/* ---- columns ----------------------------------------------------------------------------------------------------------- */

static trn_err check_sparse(const trn_tensor *ix, const trn_tensor *v, const trn_tensor *shape, int i)
{
    TRN_CHECK_ARG(ix->shape.rank == 2, "Input indices should be a matrix but received rank %d at position %d", ix->shape.rank, i);
    TRN_CHECK_ARG(ix->shape.dim[1] == 2, "Expected D2 of index to be 2 got %lld at position %d", (long long)ix->shape.dim[1], i);
    TRN_CHECK_ARG(trn_is_vector(v), "Input values should be a vector but received rank %d at position %d",
                  v->shape.rank, i);
    TRN_CHECK_ARG(ix->shape.dim[0] == v->count, "Expected size of values to be %lld got %lld at position %d",
                  (long long)ix->shape.dim[0], (long long)v->count, i);
    TRN_CHECK_ARG(trn_is_vector(shape), "Input shapes should be a vector but received rank %d at position %d", shape->shape.rank, i);
    TRN_CHECK_ARG(shape->count == 2, "shape should imply a 2D tensor, at position %d", i);
    return TRN_OK;
}

static trn_err read_columns(cross *x, const trn_kctx *k)
{
    int n_ix, n_v, n_s, n_d;
    int ix = trn_in_arg(k, "indices", &n_ix), v = trn_in_arg(k, "values", &n_v), s = trn_in_arg(k, "shapes", &n_s),
        d = trn_in_arg(k, "dense_inputs", &n_d);
    TRN_CHECK_ARG(n_v == n_ix && n_s == n_ix, "Expected %d input values, got %d", n_ix, n_v);
    bool strings_only = k->node->def && trn_node_attr(k->node, "internal_type") &&
                        trn_attr_type(k->node, "internal_type") == TRN_STRING;
    for (int i = 0; i < n_ix; i++) {
        const trn_tensor *vi = trn_in(k, v + i);
        TRN_TRY(check_sparse(trn_in(k, ix + i), vi, trn_in(k, s + i), i));
        TRN_CHECK_ARG(!strings_only || vi->dtype == TRN_STRING,
                      "Input values should be of internal type string but received int64");
        x->c[i] = (column){.v = vi, .ix = trn_in(k, ix + i)->data, .n = vi->count};
    }
    for (int i = 0; i < n_d; i++) {
        const trn_tensor *t = trn_in(k, d + i);
        TRN_CHECK_ARG(t->shape.rank == 2, "Dense inputs should be a matrix but received rank %d at position %d",
                      t->shape.rank, i);
        TRN_CHECK_ARG(!strings_only || t->dtype == TRN_STRING,
                      "Dense inputs should be of internal type string but received int64");
        x->c[n_ix + i] = (column){.v = t};
    }
    x->n = n_ix + n_d;
    x->batch = n_ix ? TRN_DATA(trn_in(k, s), int64_t)[0] : n_d ? trn_in(k, d)->shape.dim[0] : 0;
    for (int i = 0; i < n_ix; i++)
        TRN_CHECK_ARG(TRN_DATA(trn_in(k, s + i), int64_t)[0] == x->batch,
                      "Expected batch size %lld got %lld at position %d", (long long)x->batch,
                      (long long)TRN_DATA(trn_in(k, s + i), int64_t)[0], i);
    for (int i = 0; i < n_d; i++)
        TRN_CHECK_ARG(trn_in(k, d + i)->shape.dim[0] == x->batch,
                      "Expected batch size %lld got %lld at dense tensor %d", (long long)x->batch,
                      (long long)trn_in(k, d + i)->shape.dim[0], i);
    TRN_CHECK_ARG(x->batch >= 0, "the batch size is %lld", (long long)x->batch);
    return TRN_OK;
}

static void rewind_rows(cross *x)
{
    x->row = -1;
    for (int i = 0; i < x->n; i++)
        x->c[i].next = 0;
}

/* Goes to the next row that may have crosses; false after the last. Rows without any sparse entry are jumped over, so the batch size, which is
 * only a number in the input, costs nothing. */
static bool next_row(cross *x)
{
    int64_t row = x->row + 1, jump = INT64_MAX;
    bool sparse = false;
    for (int i = 0; i < x->n; i++) {
        column *c = &x->c[i];
        if (!c->ix)
            continue;
        sparse = true;
        if (c->next == c->n || c->ix[2 * c->next] < row)
            return false; /* an entry out of order hides all behind it, as in TensorFlow */
        jump = c->ix[2 * c->next] < jump ? c->ix[2 * c->next] : jump;
    }
    row = sparse ? jump : row;
    if (row >= x->batch || !x->n)
        return false;
    x->row = row;
    for (int i = 0; i < x->n; i++) {
        column *c = &x->c[i];
        if (!c->ix) {
            c->count = c->v->shape.dim[1];
            c->first = row * c->count;
            continue;
        }
        c->first = c->next;
        while (c->next < c->n && c->ix[2 * c->next] == row)
            c->next++;
        c->count = c->next - c->first;
    }
    return true;
}

static trn_err row_count(int64_t *out, const cross *x)
{
    *out = 1;
    for (int i = 0; i < x->n; i++)
        if (x->c[i].count == 0)
            *out = 0;
    for (int i = 0; i < x->n && *out; i++)
        TRN_CHECK_ARG(!__builtin_mul_overflow(*out, x->c[i].count, out) && *out < INT64_C(1) << 40,
                      "a row has too many crosses");
    return TRN_OK;
}

/* ---- one cross ----------------------------------------------------------------------------------------------------------- */

static uint64_t shift_mix(uint64_t v) { return v ^ (v >> 47); }

static uint64_t cat(uint64_t a, uint64_t b)
{
    const uint64_t mul = 0xc6a4a7935bd1e995u;
    uint64_t r = a ^ mul;
    r ^= shift_mix(b * mul) * mul;
    r *= mul;
    return shift_mix(shift_mix(r) * mul);
}

static uint64_t feature_hash(const cross *x, const column *c, int64_t i)
{
    if (c->v->dtype == TRN_STRING) {
        const trn_str *s = &TRN_DATA(c->v, trn_str)[i];
        return x->how == HASH_KEYED && x->strong ? trn_siphash(x->key, trn_str_p(s), s->len)
                                                 : trn_fingerprint64(trn_str_p(s), s->len);
    }
    const int64_t *v = &TRN_DATA(c->v, int64_t)[i];
    if (x->how == HASH || (!c->ix && !x->strong))
        return (uint64_t)*v;
    return x->strong ? trn_siphash(x->key, v, 4) : trn_fingerprint64(v, 4); /* TensorFlow hashes the low half only */
}

static int64_t hashed(const cross *x)
{
    uint64_t h = x->key[0];
    for (int i = 0; i < x->n; i++) {
        uint64_t f = feature_hash(x, &x->c[i], x->c[i].first + x->at[i]);
        h = i == 0 && x->how == HASH_KEYED ? f : cat(h, f);
    }
    return (int64_t)(h % (x->buckets ? x->buckets : (uint64_t)INT64_MAX));
}

static trn_err joined(trn_str *out, const cross *x)
{
    trn_sb sb = {0};
    for (int i = 0; i < x->n; i++) {
        const column *c = &x->c[i];
        if (i)
            trn_sb_add(&sb, x->sep, x->n_sep);
        if (c->v->dtype == TRN_STRING) {
            const trn_str *s = &TRN_DATA(c->v, trn_str)[c->first + x->at[i]];
            trn_sb_add(&sb, trn_str_p(s), s->len);
        } else {
            trn_sb_addf(&sb, "%" PRId64, TRN_DATA(c->v, int64_t)[c->first + x->at[i]]);
        }
    }
    trn_err err = trn_str_set(out, sb.p ? sb.p : "", sb.n);
    trn_sb_fini(&sb);
    return err;
}

static void next_cross(const cross *x)
{
    for (int i = x->n - 1; i >= 0 && ++x->at[i] == x->c[i].count; i--) /* the last column turns fastest */
        x->at[i] = 0;
}

static trn_err cross_row(const cross *x, int64_t count, int64_t *ix, trn_tensor *values, int64_t to)
{
    memset(x->at, 0, (size_t)x->n * sizeof *x->at);
    for (int64_t e = 0; e < count; e++, to++) {
        ix[2 * to] = x->row;
        ix[2 * to + 1] = e;
        if (x->how == JOIN)
            TRN_TRY(joined(&TRN_DATA_MUT(values, trn_str)[to], x));
        else
            TRN_DATA_MUT(values, int64_t)[to] = hashed(x);
        next_cross(x);
    }
    return TRN_OK;
}

static trn_err cross_all(trn_kctx *k, cross *x)
{
    int64_t total = 0, most = 0, n, at = 0;
    rewind_rows(x);
    while (next_row(x)) {
        TRN_TRY(row_count(&n, x));
        most = n > most ? n : most;
        TRN_CHECK_ARG(!__builtin_add_overflow(total, n, &total), "there are too many crosses");
    }
    trn_tensor *ix, *values;
    trn_shape shape = trn_shape_of(2, x->batch, most);
    TRN_TRY(trn_sparse_out(&ix, &values, k, 0, 1, total, 2, k->node->out_types[1]));
    TRN_TRY(trn_sparse_out_shape(k, 2, &shape));
    rewind_rows(x);
    while (next_row(x)) {
        TRN_TRY(row_count(&n, x));
        TRN_TRY(cross_row(x, n, ix->data, values, at));
        at += n;
    }
    return TRN_OK;
}

static trn_err run(trn_kctx *k, cross x)
{
    x.c = trn_xalloc((size_t)(k->n_in + 1) * sizeof *x.c);
    x.at = trn_xalloc((size_t)(k->n_in + 1) * sizeof *x.at);
    trn_err err = read_columns(&x, k);
    if (!err)
        err = cross_all(k, &x);
    free(x.c);
    free(x.at);
    return err;
}

static trn_err sparse_cross(trn_kctx *k)
{
    bool hash = trn_attr_bool(k->node, "hashed_output");
    TRN_CHECK_ARG(k->node->out_types[1] == (hash ? TRN_INT64 : TRN_STRING), "out_type is %s",
                  trn_dtype_name(k->node->out_types[1]));
    return run(k, (cross){.how = hash ? HASH : JOIN,
                          .sep = "_X_",
                          .n_sep = 3,
                          .buckets = (uint64_t)trn_attr_int(k->node, "num_buckets"),
                          .key = {(uint64_t)trn_attr_int(k->node, "hash_key")}});
}

static trn_err sparse_cross_v2(trn_kctx *k)
{
    int n, i = trn_in_arg(k, "sep", &n);
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, i)), "Input separator should be a scalar.");
    const trn_str *s = TRN_DATA(trn_in(k, i), trn_str);
    return run(k, (cross){.how = JOIN, .sep = trn_str_p(s), .n_sep = s->len});
}

static trn_err sparse_cross_hashed(trn_kctx *k)
{
    int n, i = trn_in_arg(k, "num_buckets", &n);
    const trn_tensor *buckets = trn_in(k, i), *strong = trn_in(k, i + 1), *salt = trn_in(k, i + 2);
    TRN_CHECK_ARG(trn_is_scalar(buckets) && trn_is_scalar(strong), "num_buckets and strong_hash must be scalars");
    TRN_CHECK_ARG(salt->count == 2, "Input \"salt\" must have length 2 but has length %lld", (long long)salt->count);
    int64_t b = TRN_DATA(buckets, int64_t)[0];
    return run(k, (cross){.how = HASH_KEYED,
                          .buckets = b > 0 ? (uint64_t)b : 0,
                          .strong = TRN_DATA(strong, bool)[0],
                          .key = {(uint64_t)TRN_DATA(salt, int64_t)[0], (uint64_t)TRN_DATA(salt, int64_t)[1]}});
}

/* ---- RaggedCross --------------------------------------------------------------------------------------------------------- */

/* Columns in the order that input_order says: rows of a ragged tensor (first from its splits), of a sparse or of a dense one. */
typedef struct ragged_column {
    column c;
    const trn_tensor *splits; /* NULL: not ragged */
    int64_t width;            /* of a row of indices */
} ragged_column;

static trn_err ragged_in(ragged_column *out, const trn_tensor *v, const trn_tensor *splits)
{
    TRN_CHECK_ARG(v->shape.rank == 1 && splits->shape.rank == 1, "tf.ragged.cross only supports inputs with rank=2.");
    TRN_CHECK_ARG(splits->count > 0, "Invalid RaggedTensor: Ragged splits must be non-empty.");
    TRN_CHECK_ARG(trn_int_at(splits, 0) == 0, "Invalid RaggedTensor: Ragged splits must start from 0.");
    TRN_CHECK_ARG(trn_int_at(splits, splits->count - 1) == v->count, "Invalid RaggedTensor: Ragged splits must end with the number of values.");
    for (int64_t i = 1; i < splits->count; i++)
        TRN_CHECK_ARG(trn_int_at(splits, i - 1) <= trn_int_at(splits, i), "Invalid RaggedTensor: Ragged splits must be sorted in ascending order.");
    *out = (ragged_column){.c.v = v, .splits = splits};
    return TRN_OK;
}

static trn_err same_batch(int64_t *batch, int64_t n)
{
    TRN_CHECK_ARG(*batch < 0 || *batch == n, "inputs must all have the same batch dimension size.");
    *batch = n;
    return TRN_OK;
}

static trn_err ragged_columns(ragged_column *out, int64_t *batch, const trn_kctx *k)
{
    int nv, ns, ni, nsv, nsh, nd, at[3] = {0};
    int rv = trn_in_arg(k, "ragged_values", &nv), rs = trn_in_arg(k, "ragged_row_splits", &ns), si = trn_in_arg(k, "sparse_indices", &ni),
        sv = trn_in_arg(k, "sparse_values", &nsv), sh = trn_in_arg(k, "sparse_shape", &nsh), d = trn_in_arg(k, "dense_inputs", &nd);
    const trn_attr *order = trn_node_attr(k->node, "input_order");
    TRN_CHECK_ARG(nv == ns, "ragged values and splits must have the same length");
    TRN_CHECK_ARG(ni == nsv && ni == nsh, "sparse indices and values must have the same length");
    TRN_CHECK_ARG((size_t)nv + (size_t)ni + (size_t)nd == order->v.s.n, "Invalid length for input_order");
    *batch = -1;
    for (size_t i = 0; i < order->v.s.n; i++) {
        char c = order->v.s.p[i];
        TRN_CHECK_ARG(c == 'R' || c == 'S' || c == 'D', "Unexpected input_order value.");
        int j = at[c == 'R' ? 0 : c == 'S' ? 1 : 2]++;
        TRN_CHECK_ARG(j < (c == 'R' ? nv : c == 'S' ? ni : nd), "input_order \"%s\" asks for more tensors of kind %c than there are", order->v.s.p, c);
        if (c == 'R') {
            TRN_TRY(ragged_in(&out[i], trn_in(k, rv + j), trn_in(k, rs + j)));
            TRN_TRY(same_batch(batch, out[i].splits->count - 1));
        } else if (c == 'S') {
            const trn_tensor *ix = trn_in(k, si + j), *v = trn_in(k, sv + j), *s = trn_in(k, sh + j);
            TRN_CHECK_ARG(ix->shape.rank == 2 && v->shape.rank == 1 && s->shape.rank == 1 && ix->shape.dim[1] > 0 && ix->shape.dim[0] == v->count, "Invalid SparseTensor %d", j);
            TRN_CHECK_ARG(s->count == 2, "tf.ragged.cross only supports inputs with rank=2.");
            TRN_CHECK_ARG(TRN_DATA(s, int64_t)[0] >= 0, "Invalid SparseTensor %d", j);
            TRN_TRY(same_batch(batch, TRN_DATA(s, int64_t)[0]));
            out[i] = (ragged_column){.c = {.v = v, .ix = ix->data, .n = v->count}, .width = ix->shape.dim[1]};
        } else {
            const trn_tensor *v = trn_in(k, d + j);
            TRN_CHECK_ARG(v->shape.rank == 2, "tf.ragged.cross only supports inputs with rank=2.");
            TRN_TRY(same_batch(batch, v->shape.dim[0]));
            out[i] = (ragged_column){.c.v = v};
        }
    }
    *batch = TRN_MAX(*batch, 0);
    return TRN_OK;
}

static void to_row(cross *x, ragged_column *r, int64_t row)
{
    for (int i = 0; i < x->n; i++) {
        column *c = &r[i].c;
        if (r[i].splits) {
            c->first = trn_int_at(r[i].splits, row);
            c->count = trn_int_at(r[i].splits, row + 1) - c->first;
        } else if (r[i].width) {
            c->first = c->next = row ? c->next : 0;
            while (c->next < c->n && c->ix[c->next * r[i].width] <= row)
                c->next++;
            c->count = c->next - c->first;
        } else {
            c->count = c->v->shape.dim[1];
            c->first = row * c->count;
        }
        x->c[i] = *c;
    }
}

static trn_err ragged_cross_all(trn_kctx *k, cross *x, ragged_column *r)
{
    int64_t batch, total = 0, n, at = 0;
    trn_dtype st = k->node->out_types[1];
    trn_tensor *splits, *values;
    TRN_TRY(ragged_columns(r, &batch, k));
    TRN_CHECK_ARG(batch < INT64_MAX, "the batch size is %lld", (long long)batch);
    trn_shape s = trn_shape_vector(batch + 1);
    TRN_TRY(trn_out_new(&splits, k, 1, st, &s));
    trn_int_put(splits, 0, 0);
    for (int64_t row = 0; row < batch; row++) {
        to_row(x, r, row);
        TRN_TRY(row_count(&n, x));
        TRN_CHECK_ARG(!__builtin_add_overflow(total, n, &total) && (st == TRN_INT64 || total <= INT32_MAX), "there are too many crosses");
        trn_int_put(splits, row + 1, total);
    }
    s = trn_shape_vector(total);
    TRN_TRY(trn_out_new(&values, k, 0, k->node->out_types[0], &s));
    for (int64_t row = 0; row < batch; row++) {
        to_row(x, r, row);
        memset(x->at, 0, (size_t)x->n * sizeof *x->at);
        for (; at < trn_int_at(splits, row + 1); at++) {
            if (x->how == JOIN)
                TRN_TRY(joined(&TRN_DATA_MUT(values, trn_str)[at], x));
            else
                TRN_DATA_MUT(values, int64_t)[at] = hashed(x);
            next_cross(x);
        }
    }
    return TRN_OK;
}

static trn_err ragged_cross(trn_kctx *k)
{
    cross x = {.how = k->node->out_types[0] == TRN_INT64 ? HASH : JOIN, .sep = "_X_", .n_sep = 3, .buckets = (uint64_t)trn_attr_int(k->node, "num_buckets"),
               .key = {(uint64_t)trn_attr_int(k->node, "hash_key")}};
    size_t n = trn_node_attr(k->node, "input_order")->v.s.n;
    TRN_CHECK_ARG(n <= (size_t)k->n_in, "Invalid length for input_order");
    x.n = (int)n;
    ragged_column *r = trn_xalloc((n + 1) * sizeof *r);
    x.c = trn_xalloc((n + 1) * sizeof *x.c);
    x.at = trn_xalloc((n + 1) * sizeof *x.at);
    trn_err err = ragged_cross_all(k, &x, r);
    free(r);
    free(x.c);
    free(x.at);
    return err;
}

static trn_err sh_ragged_cross(trn_shctx *s)
{
    s->out[0] = s->out[1] = trn_shape_vector(-1);
    return TRN_OK;
}

#define COLUMNS "indices:N*i64, values:sparse_types, shapes:N*i64, dense_inputs:dense_types"
#define TYPES "sparse_types:list(i64|str)>=0, dense_types:list(i64|str)>=0"

const trn_op trn_ops_sparse_cross[] = {
    {"SparseCross",
     COLUMNS " -> output_indices:i64, output_values:out_type, output_shape:i64; N:int>=0, hashed_output:bool, "
             "num_buckets:int>=0, "
             "hash_key:int, " TYPES ", out_type:i64|str, internal_type:i64|str",
     trn_sh_unknown, sparse_cross, 0},
    {"SparseCrossV2", COLUMNS ", sep:str -> output_indices:i64, output_values:str, output_shape:i64; N:int>=0, " TYPES,
     trn_sh_unknown, sparse_cross_v2, 0},
    {"SparseCrossHashed",
     COLUMNS ", num_buckets:i64, strong_hash:bool, salt:i64 -> output_indices:i64, output_values:i64, "
             "output_shape:i64; N:int>=0, " TYPES,
     trn_sh_unknown, sparse_cross_hashed, 0},
    {"RaggedCross",
     "ragged_values:ragged_values_types, ragged_row_splits:ragged_splits_types, sparse_indices:Nsparse*i64, sparse_values:sparse_values_types, sparse_shape:Nsparse*i64, "
     "dense_inputs:dense_types -> output_values:out_values_type, output_row_splits:out_row_splits_type; Nsparse:int>=0, input_order:string, hashed_output:bool, "
     "num_buckets:int>=0, hash_key:int, ragged_values_types:list(i64|str)>=0, ragged_splits_types:list(i32|i64)>=0, sparse_values_types:list(i64|str)>=0, "
     "dense_types:list(i64|str)>=0, out_values_type:i64|str, out_row_splits_type:i32|i64",
     sh_ragged_cross, ragged_cross, 0},
    {0},
};
