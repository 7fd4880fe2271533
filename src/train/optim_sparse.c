/* Sparse updates that are no op of their own. */
#include "train/optim_int.h"

trn_grad trn_optim__unique(trn_builder *b, trn_grad g)
{
    trn_out rows = TRN_OP(b, NULL, "Unique", g.indices);
    trn_out n = TRN_OP(b, NULL, "Size", rows);
    g.values = TRN_OP(b, NULL, "UnsortedSegmentSum", g.values, trn_out_nth(rows, 1), n);
    g.indices = rows;
    return g;
}

/* w[i] -= lr * g[i]: addition takes rows that come twice as they are. */
trn_out trn_optim__sgd_sparse(trn_optimizer *o, const trn_variable *v, trn_grad g)
{
    trn_builder *b = o->b;
    trn_out lr = trn_optim__lr(o, v);
    if (trn_optim__is_ref(b, v)) {
        trn_out delta = TRN_OP(b, "mul", "Mul", g.values, lr);
        trn_attr lock = trn_at_bool("use_locking", o->locking);
        return trn_out_node(trn_node_add(b, "ScatterSub", TRN_OUTS(v->handle, g.indices, delta), &lock, 1));
    }
    trn_out delta = TRN_OP(b, "mul", "Mul", TRN_OP(b, NULL, "Neg", g.values), lr);
    return trn_out_node(TRN_OP(b, NULL, "ResourceScatterAdd", v->handle, g.indices, delta));
}

/* slot = slot * beta, then rows += what; the slot's value after it. */
static trn_out decay_and_add(trn_optimizer *o, trn_variable *slot, trn_out beta, trn_out rows, trn_out what)
{
    trn_builder *b = o->b;
    bool ref = trn_optim__is_ref(b, slot);
    trn_attr lock = trn_at_bool("use_locking", o->locking);
    trn_out decayed = TRN_OP(b, "mul", "Mul", slot->value, beta), res = TRN_NONE;
    trn_out set = trn_out_node(trn_node_add(trn_named(b, "Assign"), ref ? "Assign" : "AssignVariableOp", TRN_OUTS(slot->handle, decayed), &lock, ref));
    TRN_SCOPE(trn_control_scope(b, &set, 1), b)
    if (ref)
        res = trn_node_add(b, "ScatterAdd", TRN_OUTS(slot->handle, rows, what), &lock, 1);
    else {
        trn_out add = trn_out_node(TRN_OP(b, NULL, "ResourceScatterAdd", slot->handle, rows, what));
        TRN_SCOPE(trn_control_scope(b, &add, 1), b)
        res = trn_variable_read(b, slot);
    }
    return res;
}

/* Every row's moments decay, also those without a gradient now: the same as the dense update with zeros there. */
trn_out trn_optim__adam_sparse(trn_optimizer *o, trn_variable *v, trn_variable *m, trn_variable *vv, trn_grad g)
{
    trn_builder *b = o->b;
    trn_out one = trn_const_num(b, v->dtype, 1);
    trn_out beta1 = trn_optim__hyper(o, v, 0), beta2 = trn_optim__hyper(o, v, 1), eps = trn_optim__hyper(o, v, 2);
    trn_out p1 = trn_optim__cast(b, o->power[0]->value, v->dtype), p2 = trn_optim__cast(b, o->power[1]->value, v->dtype);
    trn_out root = TRN_OP(b, NULL, "Sqrt", TRN_OP(b, "sub", "Sub", one, p2));
    trn_out lr = TRN_OP(b, "truediv", "RealDiv", TRN_OP(b, "mul", "Mul", trn_optim__lr(o, v), root), TRN_OP(b, "sub", "Sub", one, p1));
    trn_out gm = TRN_OP(b, "mul", "Mul", g.values, TRN_OP(b, "sub", "Sub", one, beta1));
    trn_out gg = TRN_OP(b, "mul", "Mul", g.values, g.values);
    trn_out gv = TRN_OP(b, "mul", "Mul", gg, TRN_OP(b, "sub", "Sub", one, beta2));
    trn_out m_t = decay_and_add(o, m, beta1, g.indices, gm);
    trn_out v_t = decay_and_add(o, vv, beta2, g.indices, gv);
    trn_out den = TRN_OP(b, "add", "AddV2", TRN_OP(b, NULL, "Sqrt", v_t), eps);
    trn_out delta = TRN_OP(b, "truediv", "RealDiv", TRN_OP(b, "mul", "Mul", lr, m_t), den);
    bool ref = trn_optim__is_ref(b, v);
    trn_attr lock = trn_at_bool("use_locking", o->locking);
    trn_out sub = trn_out_node(trn_node_add(b, ref ? "AssignSub" : "AssignSubVariableOp", TRN_OUTS(v->handle, delta), &lock, ref));
    return trn_group(b, TRN_OUTS(sub, trn_out_node(m_t), trn_out_node(v_t)));
}
