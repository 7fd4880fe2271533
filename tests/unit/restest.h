/* Tests of kernels on shared resources: one table of resources and one cancellation for all ops of a test.
 * cmocka and its headers come first. */
#ifndef TRN_RESTEST_H
#define TRN_RESTEST_H

#include "check.h"
#include "optest.h"
#include "res/res.h"

#pragma GCC diagnostic ignored "-Wunused-function"

static trn_resmgr *mgr;
static trn_cancel *cancel;

static int setup(void **state)
{
    (void)state;
    mgr = trn_resmgr_new("");
    cancel = trn_cancel_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    trn_resmgr_unref(mgr);
    trn_cancel_unref(cancel);
    return 0;
}

/* ---- running kernels ------------------------------------------------------------------------------------------- */

static trn_err start(optest *t, const char *op, const char *attrs, trn_tensor **in, int n)
{
    optest_begin(t, op);
    t->step.resmgr = mgr;
    t->step.cancel = cancel;
    optest_attrs(t, attrs);
    for (int i = 0; i < n; i++)
        optest_input(t, in[i]);
    TRN_TRY(optest_prepare(t));
    return optest_go(t);
}
#define START(t, op, attrs, ...)                                                                                       \
    start(t, op, attrs, (trn_tensor *[]){__VA_ARGS__}, sizeof((trn_tensor *[]){__VA_ARGS__}) / sizeof(trn_tensor *))
#define RUN(t, op, attrs, ...) run_wait(t, START(t, op, attrs, __VA_ARGS__))

static trn_err run_wait(optest *t, trn_err e)
{
    return e || !(t->node.def && t->node.def->row->flags & TRN_OP_ASYNC) ? e : optest_wait(t, 5000);
}

/* Makes a resource; its kernel state and the handle stay in `t`. */
static void make(optest *t, const char *op, const char *attrs) { ok(start(t, op, attrs, NULL, 0)); }
static trn_tensor *H(const optest *t) { return trn_tensor_ref(t->out[0].t); }

static bool waiting(optest *t)
{
    trn_err e = optest_wait(t, 5);
    bool yes = trn_err_code(e) == TRN_DEADLINE_EXCEEDED;
    if (yes)
        trn_err_free(e);
    return yes;
}

#endif
