/* Clipping, with TensorFlow's formulas: the same numbers, and NaN where it has NaN. */
#include "train/optim_int.h"

#include "base/base.h"

/* The norm is of all elements, along whatever axes. */
static trn_out sum_of_squares(trn_builder *b, trn_out x)
{
    int rank = trn_out_shape(b, x)->rank;
    trn_out sq = TRN_OP(b, "mul", "Mul", x, x), axes;
    if (rank >= 0) {
        int32_t ax[TRN_MAX_RANK];
        for (int i = 0; i < rank; i++)
            ax[i] = i;
        axes = trn_const_i32s(trn_named(b, "Const"), ax, rank);
    } else
        axes = TRN_OP(b, "range", "Range", trn_const_i32(b, 0), TRN_OP(b, NULL, "Rank", x), trn_const_i32(b, 1));
    return TRN_OP(b, NULL, "Sum", sq, axes);
}

trn_out trn_clip_by_value(trn_builder *b, trn_out x, trn_out low, trn_out high)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "clip_by_value")), b)
    y = TRN_OP(b, "Maximum", "Maximum", TRN_OP(b, NULL, "Minimum", x, high), low);
    return y;
}

trn_out trn_clip_by_norm(trn_builder *b, trn_out x, trn_out norm)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "clip_by_norm")), b)
    {
        trn_out sum = sum_of_squares(b, x);
        trn_out some = TRN_OP(b, NULL, "Greater", sum, trn_const_num(b, trn_out_dtype(b, x), 0));
        /* The root of zero has no gradient: ones stand in where the sum is zero. */
        trn_out safe = TRN_OP(b, NULL, "SelectV2", some, sum, TRN_OP(b, "ones_like", "OnesLike", sum));
        trn_out l2 = TRN_OP(b, NULL, "SelectV2", some, TRN_OP(b, NULL, "Sqrt", safe), sum);
        y = TRN_OP(b, "truediv", "RealDiv", TRN_OP(b, "mul", "Mul", x, norm), TRN_OP(b, NULL, "Maximum", l2, norm));
    }
    return y;
}

trn_out trn_clip_by_average_norm(trn_builder *b, trn_out x, trn_out norm)
{
    trn_out y = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "clip_by_average_norm")), b)
    {
        trn_dtype t = trn_out_dtype(b, x);
        trn_out n = trn_optim__cast(b, TRN_OP(b, NULL, "Size", x), t);
        trn_out inv = TRN_OP(b, NULL, "Rsqrt", sum_of_squares(b, x));
        trn_out most = TRN_OP(b, "truediv", "RealDiv", trn_const_num(b, t, 1), norm);
        trn_out f = TRN_OP(b, NULL, "Minimum", TRN_OP(b, "mul", "Mul", inv, n), most);
        y = TRN_OP(b, "mul", "Mul", TRN_OP(b, "mul", "Mul", x, norm), f);
    }
    return y;
}

trn_out trn_global_norm(trn_builder *b, const trn_grad_var *gv, int n)
{
    if (!trn_builder_ok(b))
        return TRN_NONE;
    trn_out *half = trn_builder_alloc(b, (size_t)TRN_MAX(n, 1) * sizeof *half), norm = TRN_NONE;
    int n_half = 0;
    trn_dtype t = TRN_INVALID;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "global_norm")), b)
    {
        for (int i = 0; i < n; i++) {
            if (!trn_grad_is(gv[i].grad))
                continue;
            trn_out x = gv[i].grad.values;
            TRN_SCOPE(trn_colocate_scope(b, x), b) /* one number travels, not the gradient */
            half[n_half] = TRN_OP(b, NULL, "L2Loss", x);
            t = n_half ? t : trn_out_dtype(b, x);
            half[n_half] = trn_optim__cast(b, half[n_half], t);
            n_half++;
        }
        if (!n_half)
            norm = trn_builder_fail(b, trn_errorf(TRN_INVALID_ARGUMENT, "global norm: none of the %d entries has a gradient", n));
        else {
            trn_out all = trn_node_add(trn_named(b, "stack"), "Pack", half, n_half, NULL, 0);
            trn_out sum = TRN_OP(b, NULL, "Sum", all, trn_const_i32s(b, (int32_t[]){0}, 1));
            norm = TRN_OP(b, "global_norm", "Sqrt", TRN_OP(b, "mul", "Mul", sum, trn_const_num(b, t, 2)));
        }
    }
    return norm;
}

void trn_clip_gradients_by_value(trn_builder *b, trn_grad_var *gv, int n, trn_out low, trn_out high)
{
    for (int i = 0; i < n && trn_builder_ok(b); i++)
        if (trn_grad_is(gv[i].grad))
            gv[i].grad.values = trn_clip_by_value(b, gv[i].grad.values, low, high);
}

void trn_clip_gradients_by_norm(trn_builder *b, trn_grad_var *gv, int n, trn_out norm)
{
    for (int i = 0; i < n && trn_builder_ok(b); i++)
        if (trn_grad_is(gv[i].grad))
            gv[i].grad.values = trn_clip_by_norm(b, gv[i].grad.values, norm);
}

trn_out trn_clip_by_global_norm(trn_builder *b, trn_grad_var *gv, int n, trn_out norm)
{
    trn_out have = TRN_NONE;
    TRN_SCOPE(trn_name_scope(b, trn_take_name(b, "clip_by_global_norm")), b)
    {
        have = trn_global_norm(b, gv, n);
        trn_dtype t = trn_out_dtype(b, have);
        trn_out clip = trn_optim__cast(b, norm, t), one = trn_const_num(b, t, 1);
        trn_out least = TRN_OP(b, NULL, "Minimum", TRN_OP(b, "truediv", "RealDiv", one, have), TRN_OP(b, "truediv", "RealDiv", one, clip));
        trn_out scale = TRN_OP(b, "mul", "Mul", clip, least);
        scale = TRN_OP(b, "add", "AddV2", scale, TRN_OP(b, "sub", "Sub", have, have)); /* NaN when the norm is not finite, so that it is seen */
        for (int i = 0; i < n && trn_builder_ok(b); i++) {
            if (!trn_grad_is(gv[i].grad))
                continue;
            trn_out x = gv[i].grad.values;
            TRN_SCOPE(trn_colocate_scope(b, x), b)
            gv[i].grad.values = TRN_OP(b, "mul", "Mul", x, trn_optim__cast(b, scale, trn_out_dtype(b, x)));
        }
    }
    return have;
}
