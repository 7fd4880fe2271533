/* Strings of rows and segments: StringNGrams, UnsortedSegmentJoin. */
#include <inttypes.h>
#include <stdlib.h>

#include "ops/kern.h"

#define STR(t) TRN_DATA(t, trn_str)
#define STR_MUT(t) TRN_DATA_MUT(t, trn_str)

#define TEXT_MAX ((double)(INT64_C(1) << 36)) /* bytes of all n-grams together: paddings could make them as large as one likes */

/* ---- n-grams ------------------------------------------------------------------------------------------------------------------- */

typedef struct grams {
    const trn_attr_val *sep, *left, *right; /* s */
    const trn_attr *widths;
    int64_t pad; /* < 0: as many as the width asks for */
    bool keep_short;
} grams;

static int64_t pad_of(const grams *g, int64_t width) { return TRN_MIN(g->pad < 0 ? width - 1 : g->pad, width - 1); }

static trn_err count_of(int64_t *out, const grams *g, int64_t length, int64_t width)
{
    int64_t pad = pad_of(g, width);
    TRN_CHECK_ARG(pad <= INT32_MAX / 2 - length, "Pad width could lead to integer overflow, got pad_width = %" PRId64, pad);
    *out = TRN_MAX(0, length + 2 * pad - width + 1);
    return TRN_OK;
}

static char *put(char *p, const void *from, size_t n)
{
    if (n)
        memcpy(p, from, n);
    return p + n;
}

/* Number i of n n-grams of a row. Between all its parts is a separator. */
static trn_err gram(trn_str *out, const grams *g, const trn_str *row, int64_t i, int64_t n, int64_t width)
{
    int64_t pad = pad_of(g, width), left = TRN_MAX(0, pad - i), right = TRN_MAX(0, pad - (n - 1 - i)), tokens = width - left - right, first = left > 0 ? 0 : i - pad;
    size_t size = (size_t)left * g->left->s.n + (size_t)right * g->right->s.n + (size_t)(width - 1) * g->sep->s.n;
    for (int64_t t = 0; t < tokens; t++)
        size += row[first + t].len;
    char *p;
    TRN_TRY(trn_str_alloc(&p, out, size));
    for (int64_t t = 0; t < width; t++) {
        if (t)
            p = put(p, g->sep->s.p, g->sep->s.n);
        if (t < left)
            p = put(p, g->left->s.p, g->left->s.n);
        else if (t < left + tokens)
            p = put(p, trn_str_p(&row[first + t - left]), row[first + t - left].len);
        else
            p = put(p, g->right->s.p, g->right->s.n);
    }
    return TRN_OK;
}

static trn_err check_splits(const trn_tensor *splits, int64_t n)
{
    if (!splits->count)
        return TRN_OK;
    int64_t before = trn_int_at(splits, 0);
    TRN_CHECK_ARG(before == 0, "First split value must be 0, got %" PRId64, before);
    for (int64_t i = 1; i < splits->count; i++) {
        int64_t v = trn_int_at(splits, i);
        TRN_CHECK_ARG(v >= before && v <= n, "Invalid split value %" PRId64 ", must be in [%" PRId64 ", %" PRId64 "]", v, before, n);
        before = v;
    }
    TRN_CHECK_ARG(before == n, "Last split value must be data size. Expected %" PRId64 ", got %" PRId64, n, before);
    return TRN_OK;
}

/* Where each row's n-grams begin. */
static trn_err count_grams(trn_tensor *out, const grams *g, const trn_tensor *splits)
{
    int64_t all = 0;
    double bytes = 0, each = (double)(TRN_MAX(g->left->s.n, g->right->s.n) + g->sep->s.n);
    trn_int_put(out, 0, 0);
    for (int64_t r = 0; r + 1 < splits->count; r++) {
        int64_t length = trn_int_at(splits, r + 1) - trn_int_at(splits, r), n = 0;
        for (int w = 0; w < g->widths->n; w++) {
            int64_t some, width = g->widths->list[w].i;
            TRN_TRY(count_of(&some, g, length, width));
            n += some;
            bytes += (double)some * (double)width * each;
        }
        if (g->keep_short && length > 0 && n == 0) {
            TRN_CHECK_ARG(g->pad >= 0, "Pad width should be >= 0 when preserve_short_sequences is True and ngram_widths are not provided, got %" PRId64, g->pad);
            n = 1;
            bytes += ((double)length + 2 * (double)g->pad) * each;
        }
        all += n;
        TRN_CHECK_ARG(all <= INT32_MAX, "there would be %" PRId64 " n-grams", all);
        if (bytes > TEXT_MAX)
            return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the n-grams would have more than %g bytes", TEXT_MAX);
        trn_int_put(out, r + 1, all);
    }
    return TRN_OK;
}

static trn_err string_ngrams(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *splits = trn_in(k, 1);
    const trn_node *node = k->node;
    grams g = {&trn_node_attr(node, "separator")->v, &trn_node_attr(node, "left_pad")->v, &trn_node_attr(node, "right_pad")->v, trn_node_attr(node, "ngram_widths"),
               trn_attr_int(node, "pad_width"), trn_attr_bool(node, "preserve_short_sequences")};
    for (int w = 0; w < g.widths->n; w++)
        TRN_CHECK_ARG(g.widths->list[w].i > 0 && g.widths->list[w].i <= INT32_MAX, "ngram_widths must contain positive values");
    TRN_CHECK_ARG(g.pad <= INT32_MAX, "pad_width %" PRId64 " is too large", g.pad);
    TRN_CHECK_ARG(x->shape.rank == 1 && splits->shape.rank == 1, "data and data_splits must be vectors");
    TRN_TRY(check_splits(splits, x->count));
    trn_tensor *starts, *y;
    TRN_TRY(trn_out_new(&starts, k, 1, splits->dtype, &splits->shape));
    if (!x->count || !splits->count) {
        for (int64_t i = 0; i < splits->count; i++)
            trn_int_put(starts, i, 0);
        return trn_out_new(&y, k, 0, TRN_STRING, &x->shape);
    }
    TRN_TRY(count_grams(starts, &g, splits));
    trn_shape s = trn_shape_vector(trn_int_at(starts, starts->count - 1));
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    for (int64_t r = 0; r + 1 < splits->count; r++) {
        const trn_str *row = STR(x) + trn_int_at(splits, r);
        int64_t at = trn_int_at(starts, r), end = trn_int_at(starts, r + 1), length = trn_int_at(splits, r + 1) - trn_int_at(splits, r), made = at;
        for (int w = 0; w < g.widths->n; w++) {
            int64_t n, width = g.widths->list[w].i;
            TRN_TRY(count_of(&n, &g, length, width));
            for (int64_t i = 0; i < n; i++)
                TRN_TRY(gram(&STR_MUT(y)[made++], &g, row, i, n, width));
        }
        if (made == at && at < end) /* a row too short for any */
            TRN_TRY(gram(&STR_MUT(y)[at], &g, row, 0, 1, length + 2 * g.pad));
    }
    return TRN_OK;
}

static trn_err sh_ngrams(trn_shctx *s)
{
    TRN_CHECK_ARG((s->in[0].rank < 0 || s->in[0].rank == 1) && (s->in[1].rank < 0 || s->in[1].rank == 1), "Shape must be rank 1: data and data_splits are vectors");
    s->out[0] = trn_shape_vector(-1);
    s->out[1] = s->in[1].rank == 1 ? s->in[1] : trn_shape_vector(-1);
    return TRN_OK;
}

/* ---- UnsortedSegmentJoin ------------------------------------------------------------------------------------------------------- */

static trn_err segment_join(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0), *ids = trn_in(k, 1), *num = trn_in(k, 2);
    const trn_attr *sep = trn_node_attr(k->node, "separator");
    size_t n_sep = strlen(sep->v.s.p); /* TensorFlow's ends at a zero byte */
    TRN_CHECK_ARG(num->count, "Number of segments cannot be empty.");
    TRN_CHECK_ARG(num->shape.rank == 0, "Number of segments must be a scalar");
    int64_t n = trn_int_at(num, 0);
    TRN_CHECK_ARG(n >= 0, "Number of segments must be non-negative but got %" PRId64, n);
    TRN_CHECK_ARG(ids->shape.rank != 0, "Segment_id cannot have rank 0");
    if (ids->shape.rank > x->shape.rank)
        return trn_errorf(TRN_OUT_OF_RANGE, "Invalid segment_id rank %d for input with %d dimension(s)", ids->shape.rank, x->shape.rank);
    trn_shape s = {.rank = 1, .dim = {n}};
    for (int i = 0; i < x->shape.rank; i++) {
        if (i >= ids->shape.rank)
            s.dim[s.rank++] = x->shape.dim[i];
        else
            TRN_CHECK_ARG(ids->shape.dim[i] == x->shape.dim[i], "Segment dimension is %" PRId64 " while input dimension is %" PRId64 " in rank %d", ids->shape.dim[i], x->shape.dim[i], i);
    }
    for (int64_t i = 0; i < ids->count; i++)
        TRN_CHECK_ARG(trn_int_at(ids, i) >= 0 && trn_int_at(ids, i) < n, "segment_ids are not allowed to exceed num_segments or to have negative values.");
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_STRING, &s));
    int64_t inner = ids->count ? x->count / ids->count : 0;
    size_t *size = calloc((size_t)y->count + 1, sizeof *size);
    char **at = calloc((size_t)y->count + 1, sizeof *at);
    trn_err err = size && at ? TRN_OK : trn_err_oom();
    /* A separator goes between two strings when there is something before it. */
    for (int64_t i = 0; !err && i < x->count; i++) {
        int64_t o = trn_int_at(ids, i / inner) * inner + i % inner;
        size[o] += (size[o] ? n_sep : 0) + STR(x)[i].len;
    }
    for (int64_t o = 0; !err && o < y->count; o++)
        err = trn_str_alloc(&at[o], &STR_MUT(y)[o], size[o]);
    if (!err)
        memset(size, 0, (size_t)y->count * sizeof *size);
    for (int64_t i = 0; !err && i < x->count; i++) {
        int64_t o = trn_int_at(ids, i / inner) * inner + i % inner;
        size_t front = size[o] ? n_sep : 0;
        put(put(at[o] + size[o], sep->v.s.p, front), trn_str_p(&STR(x)[i]), STR(x)[i].len);
        size[o] += front + STR(x)[i].len;
    }
    free(size);
    free(at);
    return err;
}

static trn_err sh_segment_join(trn_shctx *s)
{
    TRN_CHECK_ARG(s->in[2].rank <= 0, "Shape must be rank 0: num_segments is a scalar");
    return trn_sh_unsorted_segment(s);
}

const trn_op trn_ops_string_more[] = {
    {"StringNGrams",
     "data:str, data_splits:Tsplits -> ngrams:str, ngrams_splits:Tsplits; separator:string, ngram_widths:list(int)>=0, left_pad:string, right_pad:string, pad_width:int, "
     "preserve_short_sequences:bool, Tsplits:i32|i64=i64",
     sh_ngrams, string_ngrams, 0},
    {"UnsortedSegmentJoin", "inputs:str, segment_ids:Tindices, num_segments:Tnumsegments -> output:str; separator:string=\"\", Tindices:i32|i64, Tnumsegments:i32|i64=i32", sh_segment_join,
     segment_join, 0},
    {0},
};
