/* One pure node on constant inputs, here and now: constant folding. */
#include <stdlib.h>

#include "exec/plan.h"

static void eval_done(trn_kctx *k, trn_err err) { trn_err_free(err); } /* asynchronous rows are refused below */

static void eval_call(trn_kctx *k, const trn_func_ref *f, trn_tensor *const *args, int n_args, trn_call_done done, void *arg)
{
    done(arg, trn_errorf(TRN_UNIMPLEMENTED, "functions are not folded"), NULL, 0);
}

static trn_err eval_check_path(const trn_kctx *k, const char *path)
{
    return trn_errorf(TRN_PERMISSION_DENIED, "files are not read while folding constants");
}

static trn_resmgr *eval_step_resmgr(const trn_kctx *k) { return k->step->resmgr; }

static const trn_step_api eval_api = {.done = eval_done, .call = eval_call, .check_path = eval_check_path, .step_resmgr = eval_step_resmgr};

trn_err trn_exec_eval(trn_tensor **outs, const trn_node *n, trn_tensor *const *ins)
{
    enum { IMPURE = TRN_OP_ASYNC | TRN_OP_STATEFUL | TRN_OP_DISK | TRN_OP_BACK | TRN_OP_SWITCH | TRN_OP_MERGE | TRN_OP_ENTER | TRN_OP_EXIT |
                    TRN_OP_NEXT | TRN_OP_LOOPCOND | TRN_OP_CTRL_TRIGGER | TRN_OP_SEND | TRN_OP_RECV };
    const trn_op *row = n->def ? n->def->row : NULL;
    if (!row || !row->kernel || (row->flags & IMPURE))
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s is not evaluated ahead of time", n->op);
    trn_resmgr *res = trn_resmgr_new("");
    trn_step step = {.api = &eval_api, .resmgr = res, .step_resmgr = res, .cancel = trn_cancel_new()};
    trn_value *v = trn_xalloc(((size_t)n->n_in + (size_t)n->n_out) * sizeof *v + 1);
    trn_kctx k = {.node = n, .in = v, .out = v + n->n_in, .n_in = n->n_in, .n_out = n->n_out, .step = &step};
    for (int i = 0; i < n->n_in; i++)
        v[i].t = trn_tensor_ref(ins[i]); /* the caller's own reference keeps kernels from writing into it */
    trn_err err = TRN_OK;
    trn_kinit ki = {.node = n, .resmgr = res};
    bool inited = row->init != NULL;
    if (inited && (err = row->init(&ki)))
        inited = false;
    k.state = ki.state;
    trn_fpu fpu = trn_fpu_flush(); /* the same number as in a step */
    if (!err)
        err = row->kernel(&k);
    trn_fpu_restore(fpu);
    for (int i = 0; !err && i < n->n_out; i++)
        if (!k.out[i].t || k.out[i].t->dtype != n->out_types[i])
            err = trn_errorf(TRN_INTERNAL, "Missing %d-th output from %s", i, n->op);
    for (int i = 0; i < n->n_out; i++) {
        if (err)
            trn_tensor_unref(k.out[i].t);
        else
            outs[i] = k.out[i].t;
        trn_resource_unref(k.out[i].var);
    }
    for (int i = 0; i < n->n_in; i++)
        trn_tensor_unref(v[i].t);
    if (inited && row->fini)
        row->fini(ki.state);
    free(v);
    trn_cancel_unref(step.cancel);
    trn_resmgr_unref(res);
    return err;
}
