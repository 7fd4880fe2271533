/* Shape rules that many rows share. */
#include "op/registry.h"

trn_err trn_sh_same(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = s->in[0];
    return TRN_OK;
}

trn_err trn_sh_scalar(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = trn_shape_scalar();
    return TRN_OK;
}

trn_err trn_sh_unknown(trn_shctx *s)
{
    for (int i = 0; i < s->n_out; i++)
        s->out[i] = trn_shape_unknown();
    return TRN_OK;
}

trn_err trn_sh_attr(trn_shctx *s)
{
    s->out[0] = *trn_attr_shape(s->node, "shape");
    return TRN_OK;
}

trn_err trn_sh_bcast(trn_shctx *s)
{
    const trn_shape *a = &s->in[0], *b = &s->in[1];
    if (a->rank < 0 || b->rank < 0) {
        s->out[0] = trn_shape_unknown();
        return TRN_OK;
    }
    trn_shape o = {.rank = TRN_MAX(a->rank, b->rank)};
    for (int i = 0; i < o.rank; i++) {
        int ia = i - (o.rank - a->rank), ib = i - (o.rank - b->rank);
        int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        if (da == 1)
            o.dim[i] = db;
        else if (db == 1)
            o.dim[i] = da;
        else if (da < 0 || db < 0)
            o.dim[i] = da < 0 ? db : da;
        else if (da == db)
            o.dim[i] = da;
        else {
            char ta[TRN_SHAPE_TEXT], tb[TRN_SHAPE_TEXT];
            return trn_errorf(TRN_INVALID_ARGUMENT, "%s: shapes %s and %s do not broadcast", s->node->name, trn_shape_text(ta, a), trn_shape_text(tb, b));
        }
    }
    s->out[0] = o;
    return TRN_OK;
}
