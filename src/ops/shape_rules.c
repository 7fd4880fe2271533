/* Shape rules that several kernel families share. */
#include "ops/kern.h"

trn_err trn_sh_vector(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(-1);
    return TRN_OK;
}

trn_err trn_sh_like1(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = s->in[1];
    return TRN_OK;
}

trn_err trn_sh_rank_of(trn_shctx *s, int i, int rank)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(s->in[i].rank < 0 || s->in[i].rank == rank, "input %d must be of rank %d but has shape %s", i, rank,
                  trn_shape_text(t, &s->in[i]));
    return TRN_OK;
}

trn_err trn_sh_meet(trn_shape *out, const trn_shape *a, const trn_shape *b)
{
    if (a->rank < 0 || b->rank < 0) {
        *out = a->rank < 0 ? *b : *a;
        return TRN_OK;
    }
    if (!trn_shape_compatible(a, b)) {
        char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
        if (a->rank != b->rank)
            return TRN_BAD("Incompatible ranks during merge: %d vs. %d: shapes %s and %s must be equal", a->rank, b->rank, trn_shape_text(ta, a),
                           trn_shape_text(tb, b));
        return TRN_BAD("Incompatible shapes during merge: %s vs. %s: they must be equal", trn_shape_text(ta, a), trn_shape_text(tb, b));
    }
    trn_shape r = *a;
    for (int i = 0; i < r.rank; i++)
        if (r.dim[i] < 0)
            r.dim[i] = b->dim[i];
    *out = r;
    return TRN_OK;
}

trn_err trn_sh_merge(trn_shctx *s)
{
    trn_shape r = trn_shape_unknown();
    for (int i = 0; i < s->n_in; i++)
        TRN_TRY(trn_sh_meet(&r, &r, &s->in[i]));
    s->out[0] = r;
    return TRN_OK;
}

trn_err trn_sh_broadcast(trn_shape *out, const trn_shape *a, const trn_shape *b)
{
    trn_shape in[2] = {*a, *b}, r;
    trn_node n = {.name = "", .op = ""};
    trn_shctx c = {.node = &n, .n_in = 2, .n_out = 1, .in = in, .out = &r};
    TRN_TRY(trn_sh_bcast(&c));
    *out = r;
    return TRN_OK;
}

bool trn_sh_value(trn_shape *out, const trn_shctx *s, int i)
{
    const trn_tensor *v = s->value ? s->value[i] : NULL;
    *out = trn_shape_unknown();
    if (!v) {
        if (s->in[i].rank == 1 && s->in[i].dim[0] >= 0 && s->in[i].dim[0] <= TRN_MAX_RANK) {
            out->rank = (int)s->in[i].dim[0];
            for (int d = 0; d < out->rank; d++)
                out->dim[d] = -1;
        }
        return false;
    }
    if (v->shape.rank > 1 || v->count > TRN_MAX_RANK || (v->dtype != TRN_INT32 && v->dtype != TRN_INT64))
        return false;
    out->rank = (int)v->count;
    for (int d = 0; d < out->rank; d++) {
        int64_t x = trn_int_at(v, d);
        out->dim[d] = x < 0 ? -1 : x;
    }
    return true;
}

trn_err trn_sh_in0_shape(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 0, 1));
    trn_sh_value(&s->out[0], s, 0);
    return TRN_OK;
}

trn_err trn_sh_in1_shape(trn_shctx *s)
{
    TRN_TRY(trn_sh_rank_of(s, 1, 1));
    trn_sh_value(&s->out[0], s, 1);
    return TRN_OK;
}

trn_err trn_sh_reduce(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    bool keep = trn_attr_bool(s->node, "keep_dims");
    const trn_tensor *axes = s->value ? s->value[1] : NULL;
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0)
        return TRN_OK;
    if (!axes) {
        if (keep) {
            s->out[0].rank = x->rank;
            for (int i = 0; i < x->rank; i++)
                s->out[0].dim[i] = x->dim[i] == 1 ? 1 : -1;
        } else if (x->rank == 0) {
            s->out[0] = *x;
        }
        return TRN_OK;
    }
    bool red[TRN_MAX_RANK] = {false};
    for (int64_t i = 0; i < axes->count; i++) {
        int a;
        TRN_TRY(trn_axis(&a, trn_int_at(axes, i), x->rank, "reduction dimension"));
        red[a] = true;
    }
    trn_shape r = {.rank = 0};
    for (int i = 0; i < x->rank; i++)
        if (!red[i])
            r.dim[r.rank++] = x->dim[i];
        else if (keep)
            r.dim[r.rank++] = 1;
    s->out[0] = r;
    return TRN_OK;
}

trn_err trn_sh_arg_reduce(trn_shctx *s)
{
    const trn_shape *x = &s->in[0];
    const trn_tensor *v = s->value ? s->value[1] : NULL;
    s->out[0] = trn_shape_unknown();
    if (x->rank < 0)
        return TRN_OK;
    if (x->rank <= 1) {
        s->out[0] = trn_shape_scalar();
        return TRN_OK;
    }
    trn_shape r = {.rank = x->rank - 1};
    int axis = -1;
    if (v && v->count == 1)
        TRN_TRY(trn_axis(&axis, trn_int_at(v, 0), x->rank, "dimension"));
    for (int i = 0, j = 0; j < r.rank; i++) {
        if (i == axis)
            continue;
        r.dim[j++] = axis < 0 ? -1 : x->dim[i];
    }
    s->out[0] = r;
    return TRN_OK;
}
