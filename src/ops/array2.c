/* Moving elements around: transpose, reverse, tile, broadcast, pad, diagonals, one-hot. */
#include <complex.h>
#undef I

#include "ops/kern.h"

/* ---- Transpose --------------------------------------------------------------------------------------------------------- */

static trn_err read_perm(int *perm, const trn_tensor *p, int rank)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_is_vector(p) || p->count == 0, "perm must be rank 1, got shape %s", trn_shape_text(t, &p->shape));
    TRN_CHECK_ARG(p->count == rank, "transpose expects a vector of size %d. But input(1) is a vector of size %lld", rank, (long long)p->count);
    bool seen[TRN_MAX_RANK] = {false};
    for (int i = 0; i < rank; i++) {
        int64_t d = trn_int_at(p, i);
        d += d < 0 ? rank : 0;
        TRN_CHECK_ARG(d >= 0 && d < rank, "%lld is out of range [0 .. %d)", (long long)trn_int_at(p, i), rank);
        seen[d] = true;
        perm[i] = (int)d;
    }
    for (int i = 0; i < rank; i++)
        TRN_CHECK_ARG(seen[i], "%d is missing from the permutation", i);
    return TRN_OK;
}

static trn_err transpose(trn_kctx *k, bool conjugate)
{
    const trn_tensor *x = trn_in(k, 0);
    int perm[TRN_MAX_RANK];
    TRN_TRY(read_perm(perm, trn_in(k, 1), x->shape.rank));
    trn_shape s = {.rank = x->shape.rank};
    int64_t stride[TRN_MAX_RANK], ss[TRN_MAX_RANK], ds[TRN_MAX_RANK];
    trn_row_strides(stride, &x->shape);
    bool moved = false;
    int last = -1; /* dims of 1 may go anywhere */
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = x->shape.dim[perm[i]];
        ss[i] = stride[perm[i]];
        if (s.dim[i] == 1)
            continue;
        moved = moved || perm[i] < last;
        last = perm[i];
    }
    conjugate = conjugate && (x->dtype == TRN_COMPLEX64 || x->dtype == TRN_COMPLEX128);
    trn_tensor *y;
    if (!moved && !conjugate) {
        TRN_TRY(trn_tensor_view(&y, x, 0, &s));
        trn_out_set(k, 0, y);
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_row_strides(ds, &s);
    TRN_TRY(trn_block_copy(k, y, 0, ds, x, 0, ss, s.dim, s.rank));
    for (int64_t i = 0; conjugate && i < y->count; i++)
        if (y->dtype == TRN_COMPLEX64)
            TRN_DATA_MUT(y, float)[2 * i + 1] *= -1;
        else
            TRN_DATA_MUT(y, double)[2 * i + 1] *= -1;
    return TRN_OK;
}
static trn_err k_transpose(trn_kctx *k) { return transpose(k, false); }
static trn_err k_conj_transpose(trn_kctx *k) { return transpose(k, true); }
static trn_err sh_transpose(trn_shctx *s)
{
    const trn_tensor *p = s->value ? s->value[1] : NULL;
    s->out[0] = s->in[0];
    int perm[TRN_MAX_RANK];
    if (s->in[0].rank >= 0 && p)
        TRN_TRY(read_perm(perm, p, s->in[0].rank));
    for (int i = 0; i < s->in[0].rank; i++)
        s->out[0].dim[i] = p ? s->in[0].dim[perm[i]] : -1;
    return TRN_OK;
}

/* ---- Reverse ------------------------------------------------------------------------------------------------------------ */

static trn_err reverse(trn_kctx *k, const bool *flip)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    if (!y->count)
        return TRN_OK;
    int64_t ds[TRN_MAX_RANK], ss[TRN_MAX_RANK], at = 0;
    trn_row_strides(ds, &x->shape);
    for (int i = 0; i < x->shape.rank; i++) {
        ss[i] = flip[i] ? -ds[i] : ds[i];
        at += flip[i] ? (x->shape.dim[i] - 1) * ds[i] : 0;
    }
    return trn_block_copy(k, y, 0, ds, x, at, ss, x->shape.dim, x->shape.rank);
}

static trn_err k_reverse(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    bool flip[TRN_MAX_RANK] = {false};
    TRN_CHECK_ARG(trn_is_vector(d) && d->count == x->shape.rank, "'dims' must be a vector of %d elements", x->shape.rank);
    for (int i = 0; i < x->shape.rank; i++)
        flip[i] = TRN_DATA(d, uint8_t)[i];
    return reverse(k, flip);
}

static trn_err k_reverse_v2(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *d = trn_in(k, 1);
    bool flip[TRN_MAX_RANK] = {false};
    TRN_CHECK_ARG(trn_is_vector(d) || trn_is_scalar(x), "'dims' must be 1-dimension, not %d", d->shape.rank);
    for (int64_t i = 0; i < d->count; i++) {
        int a;
        TRN_TRY(trn_axis(&a, trn_int_at(d, i), x->shape.rank, "'axis'"));
        TRN_CHECK_ARG(!flip[a], "axis %d specified more than once.", a);
        flip[a] = true;
    }
    return reverse(k, flip);
}

static trn_err k_reverse_sequence(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *len = trn_in(k, 1);
    int seq, batch;
    TRN_TRY(trn_axis(&seq, trn_attr_int(k->node, "seq_dim"), x->shape.rank, "seq_dim"));
    TRN_TRY(trn_axis(&batch, trn_attr_int(k->node, "batch_dim"), x->shape.rank, "batch_dim"));
    TRN_CHECK_ARG(seq != batch, "batch_dim == seq_dim == %d", seq);
    int64_t nb = x->shape.dim[batch], ns = x->shape.dim[seq];
    TRN_CHECK_ARG(trn_is_vector(len) && len->count == nb, "seq_lens must be a vector of %lld elements, one per batch entry", (long long)nb);
    for (int64_t i = 0; i < nb; i++)
        TRN_CHECK_ARG(trn_int_at(len, i) >= 0 && trn_int_at(len, i) <= ns, "seq_lens(%lld) is %lld, not in [0, %lld]", (long long)i,
                      (long long)trn_int_at(len, i), (long long)ns);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    int64_t st[TRN_MAX_RANK], back[TRN_MAX_RANK], size[TRN_MAX_RANK];
    trn_row_strides(st, &x->shape);
    memcpy(back, st, sizeof st);
    memcpy(size, x->shape.dim, sizeof size);
    back[seq] = -st[seq];
    size[batch] = 1;
    for (int64_t i = 0; i < nb; i++) {
        int64_t n = trn_int_at(len, i), at = i * st[batch];
        size[seq] = n;
        if (n)
            TRN_TRY(trn_block_copy(NULL, y, at, st, x, at + (n - 1) * st[seq], back, size, x->shape.rank));
        size[seq] = ns - n;
        TRN_TRY(trn_block_copy(NULL, y, at + n * st[seq], st, x, at + n * st[seq], st, size, x->shape.rank));
    }
    return TRN_OK;
}

/* ---- Tile, BroadcastTo --------------------------------------------------------------------------------------------------- */

static trn_err k_tile(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *m = trn_in(k, 1);
    TRN_CHECK_ARG(trn_is_vector(m), "Expected multiples to be 1-D, not of rank %d", m->shape.rank);
    TRN_CHECK_ARG(m->count == x->shape.rank, "Expected multiples to be a vector of length %d", x->shape.rank);
    trn_shape s = {.rank = x->shape.rank};
    int64_t stride[TRN_MAX_RANK], out_stride[TRN_MAX_RANK];
    bool same = true;
    for (int i = 0; i < s.rank; i++) {
        int64_t q = trn_int_at(m, i);
        TRN_CHECK_ARG(q >= 0, "Expected multiples[%d] >= 0, but got %lld", i, (long long)q);
        TRN_CHECK_ARG(!__builtin_mul_overflow(x->shape.dim[i], q, &s.dim[i]), "the result has too many elements");
        same = same && q == 1;
    }
    if (same) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    int64_t count;
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!count)
        return TRN_OK;
    trn_row_strides(stride, &x->shape);
    trn_row_strides(out_stride, &s);
    int64_t ds[TRN_MAX_RANK], ss[TRN_MAX_RANK], size[TRN_MAX_RANK];
    int n = 0;
    for (int i = 0; i < s.rank; i++) {
        int64_t q = trn_int_at(m, i), d = x->shape.dim[i];
        int need = (q > 1) + (d > 1);
        if (n + need > TRN_MAX_RANK)
            return trn_errorf(TRN_UNIMPLEMENTED, "Tile of a tensor with %d dimensions", s.rank);
        if (q > 1)
            size[n] = q, ds[n] = d * out_stride[i], ss[n++] = 0;
        if (d > 1)
            size[n] = d, ds[n] = out_stride[i], ss[n++] = stride[i];
    }
    return trn_block_copy(k, y, 0, ds, x, 0, ss, size, n);
}
static trn_err sh_tile(trn_shctx *s)
{
    const trn_tensor *m = s->value ? s->value[1] : NULL;
    s->out[0] = s->in[0];
    TRN_CHECK_ARG(s->in[0].rank < 0 || !m || m->count == s->in[0].rank, "multiples must have %d elements", s->in[0].rank);
    for (int i = 0; i < s->out[0].rank; i++)
        if (s->out[0].dim[i] >= 0 && (!m || trn_int_at(m, i) < 0 || __builtin_mul_overflow(s->out[0].dim[i], trn_int_at(m, i), &s->out[0].dim[i])))
            s->out[0].dim[i] = -1;
    return TRN_OK;
}

static trn_err k_broadcast_to(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape s;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_TRY(trn_shape_from(&s, trn_in(k, 1), false));
    TRN_CHECK_ARG(x->shape.rank <= s.rank, "Rank of input (%d) must be no greater than rank of output shape (%d).", x->shape.rank, s.rank);
    int64_t stride[TRN_MAX_RANK], ss[TRN_MAX_RANK], ds[TRN_MAX_RANK];
    trn_row_strides(stride, &x->shape);
    for (int i = 0; i < s.rank; i++) {
        int j = i - (s.rank - x->shape.rank);
        int64_t d = j < 0 ? 1 : x->shape.dim[j];
        TRN_CHECK_ARG(d == 1 || d == s.dim[i], "Incompatible shapes: %s vs. %s", trn_shape_text(a, &x->shape), trn_shape_text(b, &s));
        ss[i] = d == 1 ? 0 : stride[j];
    }
    trn_tensor *y;
    if (x->count == 1 && s.rank == x->shape.rank && trn_shape_eq(&s, &x->shape)) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_row_strides(ds, &s);
    return trn_block_copy(k, y, 0, ds, x, 0, ss, s.dim, s.rank);
}

/* Shapes as vectors of i32 or i64, broadcast. */
static trn_err two_shapes(trn_kctx *k, int64_t a[TRN_MAX_RANK], int64_t b[TRN_MAX_RANK], int *rank)
{
    const trn_tensor *s[2] = {trn_in(k, 0), trn_in(k, 1)};
    int64_t *to[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        TRN_CHECK_ARG(trn_is_vector(s[i]), "In[%d] must be a vector, not of rank %d", i, s[i]->shape.rank);
        TRN_CHECK_ARG(s[i]->count <= TRN_MAX_RANK, "a shape has at most %d dimensions", TRN_MAX_RANK);
    }
    *rank = (int)TRN_MAX(s[0]->count, s[1]->count);
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < *rank; d++) {
            int64_t j = d - (*rank - s[i]->count);
            to[i][d] = j < 0 ? 1 : trn_int_at(s[i], j);
        }
    for (int d = 0; d < *rank; d++)
        TRN_CHECK_ARG(a[d] == b[d] || a[d] == 1 || b[d] == 1, "Incompatible shapes: %lld and %lld in dimension %d do not broadcast", (long long)a[d],
                      (long long)b[d], d);
    return TRN_OK;
}

static trn_err k_broadcast_args(trn_kctx *k)
{
    int64_t a[TRN_MAX_RANK], b[TRN_MAX_RANK];
    int rank;
    TRN_TRY(two_shapes(k, a, b, &rank));
    trn_shape s = trn_shape_vector(rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, trn_in(k, 0)->dtype, &s));
    for (int i = 0; i < rank; i++)
        trn_int_put(y, i, a[i] == 1 ? b[i] : a[i]);
    return TRN_OK;
}

/* Along which axes each input's gradient is summed: where it is 1, unless nothing is broadcast at all. An axis where both are 1 counts:
 * harmless, and TensorFlow's answer. */
static trn_err k_broadcast_gradient_args(trn_kctx *k)
{
    int64_t a[TRN_MAX_RANK], b[TRN_MAX_RANK];
    int rank;
    TRN_TRY(two_shapes(k, a, b, &rank));
    const int64_t *of[2] = {a, b};
    bool equal = trn_in(k, 0)->count == trn_in(k, 1)->count && !memcmp(a, b, sizeof *a * (size_t)rank);
    for (int i = 0; i < 2; i++) {
        int64_t at[TRN_MAX_RANK];
        trn_shape s = trn_shape_vector(0);
        for (int d = 0; d < rank && !equal; d++)
            if (of[i][d] == 1)
                at[s.dim[0]++] = d;
        trn_tensor *y;
        TRN_TRY(trn_out_new(&y, k, i, trn_in(k, 0)->dtype, &s));
        for (int64_t d = 0; d < s.dim[0]; d++)
            trn_int_put(y, d, at[d]);
    }
    return TRN_OK;
}
static trn_err sh_two_vectors(trn_shctx *s)
{
    s->out[0] = s->out[1] = trn_shape_vector(-1);
    return TRN_OK;
}

/* ---- Pad ------------------------------------------------------------------------------------------------------------------ */

static trn_err read_paddings(int64_t before[TRN_MAX_RANK], int64_t after[TRN_MAX_RANK], trn_shape *out, const trn_shape *x, const trn_tensor *p)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(p->shape.rank == 2 && p->shape.dim[1] == 2, "paddings must be a matrix with 2 columns: %s", trn_shape_text(t, &p->shape));
    TRN_CHECK_ARG(p->shape.dim[0] == x->rank, "The first dimension of paddings must be the rank of inputs %d, not %lld", x->rank, (long long)p->shape.dim[0]);
    *out = *x;
    for (int i = 0; i < x->rank; i++) {
        before[i] = trn_int_at(p, 2 * i);
        after[i] = trn_int_at(p, 2 * i + 1);
        TRN_CHECK_ARG(before[i] >= 0 && after[i] >= 0, "Paddings must be non-negative: %lld %lld", (long long)before[i], (long long)after[i]);
        if (x->dim[i] >= 0)
            TRN_CHECK_ARG(!__builtin_add_overflow(x->dim[i], before[i], &out->dim[i]) && !__builtin_add_overflow(out->dim[i], after[i], &out->dim[i]),
                          "paddings are too large");
    }
    return TRN_OK;
}

static trn_err k_pad(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *v = k->n_in > 2 ? trn_in(k, 2) : NULL;
    int64_t before[TRN_MAX_RANK], after[TRN_MAX_RANK], n;
    trn_shape s;
    TRN_TRY(read_paddings(before, after, &s, &x->shape, trn_in(k, 1)));
    TRN_CHECK_ARG(!v || trn_is_scalar(v), "constant_values must be a scalar");
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    if (n == x->count && trn_shape_eq(&s, &x->shape)) {
        trn_out_set(k, 0, trn_tensor_ref(x));
        return TRN_OK;
    }
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (v)
        TRN_TRY(trn_fill_elems(y, 0, y->count, v, 0));
    else
        trn_zero_elems(y, 0, y->count);
    int64_t ds[TRN_MAX_RANK], ss[TRN_MAX_RANK], at = 0;
    trn_row_strides(ds, &s);
    trn_row_strides(ss, &x->shape);
    for (int i = 0; i < s.rank; i++)
        at += before[i] * ds[i];
    return trn_block_copy(k, y, at, ds, x, 0, ss, x->shape.dim, x->shape.rank);
}
static trn_err sh_pad(trn_shctx *s)
{
    int64_t b[TRN_MAX_RANK], a[TRN_MAX_RANK];
    const trn_tensor *p = s->value ? s->value[1] : NULL;
    s->out[0] = s->in[0];
    if (s->in[0].rank >= 0 && p)
        return read_paddings(b, a, &s->out[0], &s->in[0], p);
    for (int i = 0; i < s->out[0].rank; i++)
        s->out[0].dim[i] = -1;
    return TRN_OK;
}

/* The middle first; then axis by axis what lies outside is copied from what is already there, mirrored. */
static trn_err k_mirror_pad(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int64_t before[TRN_MAX_RANK], after[TRN_MAX_RANK], n;
    trn_shape s;
    int64_t off = !strcmp(trn_attr_str(k->node, "mode"), "REFLECT"); /* REFLECT does not repeat the edge */
    TRN_TRY(read_paddings(before, after, &s, &x->shape, trn_in(k, 1)));
    for (int i = 0; i < s.rank; i++)
        TRN_CHECK_ARG(before[i] <= x->shape.dim[i] - off && after[i] <= x->shape.dim[i] - off,
                      "paddings must be %s the dimension size: %lld, %lld with dimension %lld", off ? "less than" : "no greater than", (long long)before[i],
                      (long long)after[i], (long long)x->shape.dim[i]);
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!n)
        return TRN_OK;
    int64_t ds[TRN_MAX_RANK], ss[TRN_MAX_RANK], back[TRN_MAX_RANK], at = 0;
    int64_t size[TRN_MAX_RANK];
    trn_row_strides(ds, &s);
    trn_row_strides(ss, &x->shape);
    memcpy(size, x->shape.dim, sizeof size);
    for (int i = 0; i < s.rank; i++)
        at += before[i] * ds[i];
    TRN_TRY(trn_block_copy(k, y, at, ds, x, 0, ss, x->shape.dim, x->shape.rank));
    for (int i = 0; i < s.rank; i++) {
        int64_t d = x->shape.dim[i], begin = at; /* first element of the part that is complete */
        memcpy(back, ds, sizeof back);
        back[i] = -ds[i];
        size[i] = before[i];
        TRN_TRY(trn_block_copy(NULL, y, begin - before[i] * ds[i], ds, y, begin + (before[i] - 1 + off) * ds[i], back, size, s.rank));
        size[i] = after[i];
        TRN_TRY(trn_block_copy(NULL, y, begin + d * ds[i], ds, y, begin + (d - 1 - off) * ds[i], back, size, s.rank));
        size[i] = s.dim[i];
        at -= before[i] * ds[i];
    }
    return TRN_OK;
}

/* ---- diagonals ------------------------------------------------------------------------------------------------------------- */

static trn_err k_diag(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank >= 1 && 2 * x->shape.rank <= TRN_MAX_RANK, "Input must be at least rank 1, got 0");
    trn_shape s = {.rank = 2 * x->shape.rank};
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = x->shape.dim[i % x->shape.rank];
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    int64_t step = x->count + 1, one = 1;
    return trn_block_copy(k, y, 0, &step, x, 0, &one, &x->count, 1);
}
static trn_err sh_diag(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0 || 2 * x->rank > TRN_MAX_RANK)
        return TRN_OK;
    s->out[0].rank = 2 * x->rank;
    for (int i = 0; i < s->out[0].rank; i++)
        s->out[0].dim[i] = x->dim[i % x->rank];
    return TRN_OK;
}

static trn_err k_diag_part(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int h = x->shape.rank / 2;
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(x->shape.rank > 0 && x->shape.rank % 2 == 0, "The rank of the tensor should be even and positive, got shape %s", trn_shape_text(t, &x->shape));
    trn_shape s = {.rank = h};
    for (int i = 0; i < h; i++) {
        TRN_CHECK_ARG(x->shape.dim[i] == x->shape.dim[h + i], "Invalid shape %s: dimensions %d and %d do not match.", trn_shape_text(t, &x->shape), i, h + i);
        s.dim[i] = x->shape.dim[i];
    }
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    int64_t step = y->count + 1, one = 1;
    return trn_block_copy(k, y, 0, &one, x, 0, &step, &y->count, 1);
}

/* Batches of matrices: dims before the last two. */
static trn_err k_matrix_diag(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(x->shape.rank >= 1 && x->shape.rank < TRN_MAX_RANK, "diagonal must be at least 1-dim, received rank %d", x->shape.rank);
    trn_shape s = x->shape;
    int64_t d = s.dim[s.rank - 1], n;
    s.dim[s.rank++] = d;
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    trn_zero_elems(y, 0, y->count);
    if (!n)
        return TRN_OK;
    return trn_block_copy(k, y, 0, (int64_t[]){d * d, d + 1}, x, 0, (int64_t[]){d, 1}, (int64_t[]){x->count / d, d}, 2);
}
static trn_err sh_matrix_diag(trn_shctx *s)
{
    s->out[0] = s->in[0];
    if (s->in[0].rank < 1 || s->in[0].rank == TRN_MAX_RANK)
        s->out[0] = trn_shape_unknown();
    else
        s->out[0].dim[s->out[0].rank++] = s->in[0].dim[s->in[0].rank - 1];
    return TRN_OK;
}

static trn_err k_matrix_diag_part(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int r = x->shape.rank;
    TRN_CHECK_ARG(r >= 2, "input must be at least 2-dim, received rank %d", r);
    int64_t rows = x->shape.dim[r - 2], cols = x->shape.dim[r - 1], d = TRN_MIN(rows, cols);
    trn_shape s = x->shape;
    s.rank = r - 1;
    s.dim[r - 2] = d;
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &s));
    if (!y->count)
        return TRN_OK;
    return trn_block_copy(k, y, 0, (int64_t[]){d, 1}, x, 0, (int64_t[]){rows * cols, cols + 1}, (int64_t[]){y->count / d, d}, 2);
}
static trn_err sh_matrix_diag_part(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    s->out[0] = trn_shape_unknown();
    if (x->rank < 2)
        return TRN_OK;
    s->out[0] = *x;
    s->out[0].rank--;
    int64_t a = x->dim[x->rank - 2], b = x->dim[x->rank - 1];
    s->out[0].dim[x->rank - 2] = a < 0 || b < 0 ? -1 : TRN_MIN(a, b);
    return TRN_OK;
}

static trn_err k_matrix_set_diag(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *g = trn_in(k, 1);
    int r = x->shape.rank;
    TRN_CHECK_ARG(r >= 2, "input must be at least 2-dim, received rank %d", r);
    int64_t rows = x->shape.dim[r - 2], cols = x->shape.dim[r - 1], d = TRN_MIN(rows, cols);
    trn_shape want = x->shape;
    want.rank = r - 1;
    want.dim[r - 2] = d;
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&want, &g->shape), "the diagonal must have shape %s, not %s", trn_shape_text(a, &want), trn_shape_text(b, &g->shape));
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    if (!g->count)
        return TRN_OK;
    return trn_block_copy(k, y, 0, (int64_t[]){rows * cols, cols + 1}, g, 0, (int64_t[]){d, 1}, (int64_t[]){g->count / d, d}, 2);
}

static trn_err k_matrix_band_part(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    int r = x->shape.rank;
    TRN_CHECK_ARG(r >= 2, "input must be at least 2-dim, received rank %d", r);
    TRN_CHECK_ARG(trn_is_scalar(trn_in(k, 1)) && trn_is_scalar(trn_in(k, 2)), "num_lower and num_upper must be scalars");
    int64_t lower = trn_int_at(trn_in(k, 1), 0), upper = trn_int_at(trn_in(k, 2), 0), rows = x->shape.dim[r - 2], cols = x->shape.dim[r - 1];
    TRN_CHECK_ARG(lower <= rows, "num_lower must be negative or less or equal to number of rows (%lld) got: %lld", (long long)rows, (long long)lower);
    TRN_CHECK_ARG(upper <= cols, "num_upper must be negative or less or equal to number of columns (%lld) got: %lld", (long long)cols, (long long)upper);
    trn_tensor *y;
    TRN_TRY(trn_out_like(&y, k, 0, 0));
    if (y->data != x->data)
        TRN_TRY(trn_tensor_copy_elems(y, 0, x, 0, x->count));
    if (!y->count)
        return TRN_OK;
    for (int64_t m = 0; m < y->count / (rows * cols); m++)
        for (int64_t i = 0; i < rows; i++) {
            int64_t base = (m * rows + i) * cols, lo = lower < 0 ? 0 : TRN_MAX(i - lower, (int64_t)0), hi = upper < 0 ? cols : i + upper + 1;
            lo = TRN_MIN(lo, cols);
            hi = TRN_MAX(TRN_MIN(hi, cols), lo);
            trn_zero_elems(y, base, lo);
            trn_zero_elems(y, base + hi, cols - hi);
        }
    return TRN_OK;
}

/* ---- OneHot, InvertPermutation ------------------------------------------------------------------------------------------------ */

static trn_err k_one_hot(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *dt = trn_in(k, 1), *on = trn_in(k, 2), *off = trn_in(k, 3);
    int64_t axis = trn_attr_int(k->node, "axis");
    int r = x->shape.rank;
    TRN_CHECK_ARG(axis == -1 || (axis >= 0 && axis <= r), "Expected axis to be -1 or between [0, %d).  But received: %lld", r + 1, (long long)axis);
    TRN_CHECK_ARG(trn_is_scalar(dt) && trn_is_scalar(on) && trn_is_scalar(off), "depth, on_value and off_value must be scalars");
    TRN_CHECK_ARG(r < TRN_MAX_RANK, "the result would have more than %d dimensions", TRN_MAX_RANK);
    int64_t depth = trn_int_at(dt, 0), count;
    TRN_CHECK_ARG(depth >= 0, "depth must be non-negative, got: %lld", (long long)depth);
    if (axis < 0)
        axis = r;
    trn_shape s = {.rank = r + 1};
    int64_t inner = 1;
    for (int i = 0, j = 0; i <= r; i++)
        s.dim[i] = i == axis ? depth : x->shape.dim[j++];
    for (int i = (int)axis; i < r; i++)
        inner = trn_times(inner, x->shape.dim[i]);
    TRN_TRY(trn_count_checked(&count, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, on->dtype, &s));
    TRN_TRY(trn_fill_elems(y, 0, y->count, off, 0));
    for (int64_t i = 0; i < x->count && depth; i++) {
        int64_t v = trn_int_at(x, i);
        if (v >= 0 && v < depth)
            TRN_TRY(trn_tensor_copy_elems(y, (i / inner * depth + v) * inner + i % inner, on, 0, 1));
    }
    return TRN_OK;
}
static trn_err sh_one_hot(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    const trn_tensor *d = s->value ? s->value[1] : NULL;
    int64_t axis = trn_attr_int(s->node, "axis");
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0 || x->rank == TRN_MAX_RANK)
        return TRN_OK;
    TRN_CHECK_ARG(axis >= -1 && axis <= x->rank, "axis %lld is out of range", (long long)axis);
    axis = axis < 0 ? x->rank : axis;
    s->out[0].rank = x->rank + 1;
    for (int i = 0, j = 0; i <= x->rank; i++)
        s->out[0].dim[i] = i == axis ? (d && d->count == 1 && trn_int_at(d, 0) >= 0 ? trn_int_at(d, 0) : -1) : x->dim[j++];
    return TRN_OK;
}

static trn_err k_invert_permutation(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    TRN_CHECK_ARG(trn_is_vector(x), "invert_permutation expects a 1D vector.");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, x->dtype, &x->shape));
    for (int64_t i = 0; i < y->count; i++)
        trn_int_put(y, i, -1);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t d = trn_int_at(x, i);
        TRN_CHECK_ARG(d >= 0 && d < x->count, "%lld is not between 0 and %lld", (long long)d, (long long)x->count);
        TRN_CHECK_ARG(trn_int_at(y, d) == -1, "%lld is duplicated in the input.", (long long)d);
        trn_int_put(y, d, i);
    }
    return TRN_OK;
}

const trn_op trn_ops_array2[] = {
    {"Transpose", "x:T, perm:Tperm -> y:T; T:any, Tperm:i32|i64=i32", sh_transpose, k_transpose, 0},
    {"ConjugateTranspose", "x:T, perm:Tperm -> y:T; T:any, Tperm:i32|i64=i32", sh_transpose, k_conj_transpose, 0},
    {"Reverse", "tensor:T, dims:bool -> output:T; T:num|bool|str", trn_sh_same, k_reverse, 0},
    {"ReverseV2", "tensor:T, axis:Tidx -> output:T; Tidx:i32|i64=i32, T:num|bool|str", trn_sh_same, k_reverse_v2, 0},
    {"ReverseSequence", "input:T, seq_lengths:Tlen -> output:T; seq_dim:int, batch_dim:int=0, T:any, Tlen:i32|i64=i64", trn_sh_same,
     k_reverse_sequence, 0},
    {"Tile", "input:T, multiples:Tmultiples -> output:T; T:any, Tmultiples:i32|i64=i32", sh_tile, k_tile, 0},
    {"BroadcastTo", "input:T, shape:Tidx -> output:T; T:any, Tidx:i32|i64=i32", trn_sh_in1_shape, k_broadcast_to, 0},
    {"BroadcastArgs", "s0:T, s1:T -> r0:T; T:i32|i64=i32", trn_sh_vector, k_broadcast_args, TRN_OP_CHEAP},
    {"BroadcastGradientArgs", "s0:T, s1:T -> r0:T, r1:T; T:i32|i64=i32", sh_two_vectors, k_broadcast_gradient_args, TRN_OP_CHEAP},
    {"Pad", "input:T, paddings:Tpaddings -> output:T; T:any, Tpaddings:i32|i64=i32", sh_pad, k_pad, 0},
    {"PadV2", "input:T, paddings:Tpaddings, constant_values:T -> output:T; T:any, Tpaddings:i32|i64=i32", sh_pad, k_pad, 0},
    {"MirrorPad", "input:T, paddings:Tpaddings -> output:T; T:any, Tpaddings:i32|i64=i32, mode:{REFLECT,SYMMETRIC}", sh_pad, k_mirror_pad, 0},
    {"Diag", "diagonal:T -> output:T; T:float|i32|i64|c64|c128", sh_diag, k_diag, 0},
    {"DiagPart", "input:T -> diagonal:T; T:float|i32|i64|c64|c128", trn_sh_unknown, k_diag_part, 0},
    {"MatrixDiag", "diagonal:T -> output:T; T:any", sh_matrix_diag, k_matrix_diag, 0},
    {"MatrixDiagPart", "input:T -> diagonal:T; T:any", sh_matrix_diag_part, k_matrix_diag_part, 0},
    {"MatrixSetDiag", "input:T, diagonal:T -> output:T; T:any", trn_sh_same, k_matrix_set_diag, 0},
    {"MatrixBandPart", "input:T, num_lower:Tindex, num_upper:Tindex -> band:T; T:any, Tindex:i32|i64=i64", trn_sh_same, k_matrix_band_part, 0},
    /* Names that graphs of versions below 14 may hold. */
    {"BatchMatrixDiag", "diagonal:T -> output:T; T:any", sh_matrix_diag, k_matrix_diag, 0},
    {"BatchMatrixDiagPart", "input:T -> diagonal:T; T:any", sh_matrix_diag_part, k_matrix_diag_part, 0},
    {"BatchMatrixSetDiag", "input:T, diagonal:T -> output:T; T:any", trn_sh_same, k_matrix_set_diag, 0},
    {"BatchMatrixBandPart", "input:T, num_lower:i64, num_upper:i64 -> band:T; T:any", trn_sh_same, k_matrix_band_part, 0},
    {"OneHot", "indices:TI, depth:i32, on_value:T, off_value:T -> output:T; axis:int=-1, T:any, TI:u8|i8|i32|i64=i64", sh_one_hot, k_one_hot, 0},
    {"InvertPermutation", "x:T -> y:T; T:i32|i64=i32", trn_sh_same, k_invert_permutation, 0},
    {0},
};
