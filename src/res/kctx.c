/* The part of the kernel context that knows variables. */
#include "res/var.h"

void trn_out_var(trn_kctx *k, int i, trn_var *var)
{
    k->out[i].var = trn_resource_ref(var);
}
