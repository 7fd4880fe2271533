#include "ops/window.h"

static bool is_first(const char *format) { return format && (!strncmp(format, "NC", 2) || !strcmp(format, "CHANNELS_FIRST")); }

/* Attr `name` over [batch, space…, channels] in the order of the data format; absent, or empty where that is the default: all 1. */
static trn_err read_list(int64_t to[3], int64_t *n, int64_t *c, const trn_window *w, const trn_node *node, const char *name)
{
    const trn_attr *a = trn_node_attr(node, name);
    int o = 3 - w->space;
    *n = *c = to[0] = to[1] = to[2] = 1;
    if (!a || (!a->n && !strcmp(name, "dilations") && trn_node_attr(node, "batch_dims")))
        return TRN_OK;
    TRN_CHECK_ARG(a->is_list && a->n == w->space + 2, "Sliding window %s field must specify %d dimensions", name, w->space + 2);
    for (int i = 0; i < a->n; i++)
        TRN_CHECK_ARG(a->list[i].i >= INT32_MIN && a->list[i].i <= INT32_MAX, "%s[%d] is %lld; it must fit 32 bits", name, i, (long long)a->list[i].i);
    *n = a->list[0].i;
    *c = a->list[w->first ? 1 : w->space + 1].i;
    for (int i = 0; i < w->space; i++) {
        to[o + i] = a->list[i + (w->first ? 2 : 1)].i;
        TRN_CHECK_ARG(to[o + i] > 0, "Sliding window %s must be larger than 0 over space, not %lld", name, (long long)to[o + i]);
    }
    return TRN_OK;
}

trn_err trn_window_read(trn_window *w, const trn_node *n, int space)
{
    memset(w, 0, sizeof *w);
    w->space = space;
    w->first = is_first(trn_attr_str(n, "data_format"));
    const char *p = trn_attr_str(n, "padding");
    w->padding = !strcmp(p, "SAME") ? TRN_PAD_SAME : !strcmp(p, "EXPLICIT") ? TRN_PAD_EXPLICIT : TRN_PAD_VALID;
    TRN_TRY(read_list(w->stride, &w->stride_n, &w->stride_c, w, n, "strides"));
    TRN_TRY(read_list(w->dil, &w->dil_n, &w->dil_c, w, n, trn_node_attr(n, "rates") ? "rates" : "dilations"));
    TRN_TRY(read_list(w->ksize, &w->ksize_n, &w->ksize_c, w, n, "ksize"));
    const trn_attr *e = trn_node_attr(n, "explicit_paddings");
    int many = e ? e->n : 0;
    if (w->padding != TRN_PAD_EXPLICIT) {
        TRN_CHECK_ARG(!many, "explicit_paddings attribute must be empty if the padding attribute is not EXPLICIT");
        return TRN_OK;
    }
    TRN_CHECK_ARG(many == 2 * (space + 2), "explicit_paddings attribute must contain %d values, but got: %d", 2 * (space + 2), many);
    for (int i = 0; i < many; i++)
        TRN_CHECK_ARG(e->list[i].i >= 0 && e->list[i].i <= INT32_MAX, "All elements of explicit_paddings must be nonnegative");
    int c = w->first ? 1 : space + 1;
    TRN_CHECK_ARG(!e->list[0].i && !e->list[1].i && !e->list[2 * c].i && !e->list[2 * c + 1].i,
                  "Nonzero explicit padding in the batch or depth dimensions is not supported");
    for (int i = 0; i < space; i++) {
        int d = i + (w->first ? 2 : 1);
        w->before[3 - space + i] = e->list[2 * d].i;
        w->after[3 - space + i] = e->list[2 * d + 1].i;
    }
    return TRN_OK;
}

trn_err trn_window_set(trn_window *w, const trn_tensor *ksize, const trn_tensor *strides)
{
    TRN_CHECK_ARG(trn_is_vector(ksize) && ksize->count == 4, "Sliding window ksize field must specify 4 dimensions");
    TRN_CHECK_ARG(trn_is_vector(strides) && strides->count == 4, "Sliding window strides field must specify 4 dimensions");
    const int32_t *k = TRN_DATA(ksize, int32_t), *s = TRN_DATA(strides, int32_t);
    int c = w->first ? 1 : 3;
    w->ksize_n = k[0];
    w->ksize_c = k[c];
    w->stride_n = s[0];
    w->stride_c = s[c];
    for (int i = 0; i < 2; i++) {
        int d = i + (w->first ? 2 : 1);
        TRN_CHECK_ARG(k[d] > 0 && s[d] > 0, "Sliding window ksize and strides must be larger than 0 over space, not %d and %d", k[d], s[d]);
        w->ksize[1 + i] = k[d];
        w->stride[1 + i] = s[d];
    }
    w->ksize[0] = w->stride[0] = 1;
    return TRN_OK;
}

trn_err trn_window_size(int64_t *out, int64_t *pad, int64_t *pad_after, const trn_window *w, int i, int64_t in, int64_t ker)
{
    int64_t s = w->stride[i], reach = (ker - 1) * w->dil[i] + 1, p = w->before[i], q = w->after[i], n;
    if (w->padding == TRN_PAD_SAME) {
        n = (in + s - 1) / s;
        int64_t need = TRN_MAX((int64_t)0, (n - 1) * s + reach - in);
        p = need / 2;
        q = need - p;
    } else {
        n = (in + p + q - reach + s) / s;
        TRN_CHECK_ARG(n >= 0, "Computed output size would be negative: %lld [input_size: %lld, effective_filter_size: %lld, stride: %lld]", (long long)n,
                      (long long)in, (long long)reach, (long long)s);
    }
    *out = n;
    *pad = p;
    *pad_after = q;
    return TRN_OK;
}

trn_err trn_window_dims(int64_t d[5], const trn_window *w, const trn_shape *s, const char *what)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->rank == w->space + 2, "%s must be %d-dimensional: %s", what, w->space + 2, trn_shape_text(t, s));
    for (int i = 0; i < s->rank; i++)
        TRN_CHECK_ARG(s->dim[i] <= INT32_MAX, "%s is too large: %s", what, trn_shape_text(t, s));
    d[0] = s->dim[0];
    d[1] = 1;
    d[4] = s->dim[w->first ? 1 : w->space + 1];
    for (int i = 0; i < w->space; i++)
        d[4 - w->space + i] = s->dim[i + (w->first ? 2 : 1)];
    return TRN_OK;
}

trn_shape trn_window_shape(const trn_window *w, const int64_t d[5])
{
    trn_shape s = {.rank = w->space + 2};
    s.dim[0] = d[0];
    s.dim[w->first ? 1 : w->space + 1] = d[4];
    for (int i = 0; i < w->space; i++)
        s.dim[i + (w->first ? 2 : 1)] = d[4 - w->space + i];
    return s;
}

/* [n, a, b] to [n, b, a] */
static trn_err turn(trn_kctx *k, trn_tensor *to, const trn_tensor *from, int64_t n, int64_t a, int64_t b)
{
    return trn_block_copy(k, to, 0, (int64_t[]){a * b, a, 1}, from, 0, (int64_t[]){a * b, 1, b}, (int64_t[]){n, b, a}, 3);
}

trn_err trn_window_in(trn_tensor **out, trn_kctx *k, const trn_window *w, const trn_tensor *x, bool widen)
{
    trn_tensor *t = trn_tensor_ref((trn_tensor *)x), *u;
    if (widen && trn_is_half(x->dtype)) {
        trn_err e = trn_tensor_new(&u, TRN_FLOAT, &x->shape);
        if (!e)
            trn_widen(u->data, x->data, x->dtype, x->count);
        trn_tensor_unref(t);
        if (e)
            return e;
        t = u;
    }
    if (w->first && x->shape.rank == w->space + 2) {
        int64_t n = x->shape.dim[0], c = x->shape.dim[1], inner = 1;
        trn_shape s = {.rank = x->shape.rank};
        s.dim[0] = n;
        s.dim[s.rank - 1] = c;
        for (int i = 2; i < s.rank; i++) {
            s.dim[i - 1] = x->shape.dim[i];
            inner = trn_times(inner, x->shape.dim[i]);
        }
        trn_err e = trn_tensor_new(&u, t->dtype, &s);
        if (!e && u->count)
            e = turn(k, u, t, n, c, inner);
        trn_tensor_unref(t);
        if (e)
            return e;
        t = u;
    }
    *out = t;
    return TRN_OK;
}

trn_err trn_window_out(trn_tensor **out, trn_kctx *k, int i, const trn_window *w, trn_dtype dtype, const int64_t d[5], bool widen)
{
    trn_window last = *w;
    last.first = false;
    trn_shape s = trn_window_shape(w, d), l = trn_window_shape(&last, d);
    int64_t n;
    TRN_TRY(trn_count_checked(&n, &s));
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, i, dtype, &s));
    if (w->first || (widen && trn_is_half(dtype)))
        return trn_tensor_new(out, widen && trn_is_half(dtype) ? TRN_FLOAT : dtype, &l);
    *out = trn_tensor_ref(y);
    return TRN_OK;
}

trn_err trn_window_done(trn_kctx *k, int i, const trn_window *w, trn_tensor *computed)
{
    trn_tensor *y = k->out[i].t, *c = computed, *half = NULL;
    if (y == c || !y->count)
        return TRN_OK;
    if (c->dtype != y->dtype) {
        if (w->first)
            TRN_TRY(trn_tensor_new(&half, y->dtype, &c->shape));
        trn_narrow(half ? half->data : y->data, c->data, y->dtype, c->count);
        c = half;
    }
    trn_err e = TRN_OK;
    if (w->first) {
        int64_t n = c->shape.dim[0], ch = c->shape.dim[c->shape.rank - 1];
        e = turn(k, y, c, n, c->count / (n * ch), ch);
    }
    trn_tensor_unref(half);
    return e;
}
