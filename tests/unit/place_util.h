/* Small graphs for tests, a line per node: N(g, "Add", "sum", "/job:ps", "a b:1 ^c", T(TRN_FLOAT)).
 * The rows below stand in for ops that the build under test does not have, so that the graph tests need no kernels. */
#ifndef PLACE_UTIL_H
#define PLACE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "graph/graph.h"
#include "op/families.h"

static const trn_op gu_rows[] = {
    {"Const", "-> output:dtype; value:tensor, dtype:any"},
    {"NoOp", "->"},
    {"Identity", "input:T -> output:T; T:any"},
    {"IdentityN", "input:T -> output:T; T:list(type)>=1"},
    {"AddV2", "x:T, y:T -> z:T; T:any"},
    {"Less", "x:T, y:T -> z:bool; T:any"},
    {"Shape", "input:T -> output:out_type; T:any, out_type:i32|i64=i32"},
    {"VariableV2", "-> ref:&dtype; shape:shape, dtype:any, container:string=\"\", shared_name:string=\"\""},
    {"Assign", "ref:&T, value:T -> output_ref:&T; T:any, validate_shape:bool=true, use_locking:bool=true"},
    {"AssignAdd", "ref:&T, value:T -> output_ref:&T; T:any, use_locking:bool=false"},
    {"VarHandleOp", "-> resource:res; container:string=\"\", shared_name:string=\"\", dtype:any, shape:shape"},
    {"ReadVariableOp", "resource:res -> value:dtype; dtype:any"},
    {"AssignVariableOp", "resource:res, value:dtype ->; dtype:any, validate_shape:bool=false"},
    {"_Arg", "-> output:T; T:any, index:int>=0"},
    {"_Retval", "input:T ->; T:any, index:int>=0"},
    {"_Send",
     "tensor:T ->; T:any, tensor_name:string, send_device:string, send_device_incarnation:int, recv_device:string, "
     "client_terminated:bool=false",
     NULL, NULL, TRN_OP_SEND | TRN_OP_DEAD_OK},
    {"_Recv",
     "-> tensor:tensor_type; tensor_type:any, tensor_name:string, send_device:string, send_device_incarnation:int, "
     "recv_device:string, client_terminated:bool=false",
     NULL, NULL, TRN_OP_RECV},
    {"Switch", "data:T, pred:bool -> output_false:T, output_true:T; T:any", NULL, NULL, TRN_OP_SWITCH},
    {"RefSwitch", "data:&T, pred:bool -> output_false:&T, output_true:&T; T:any", NULL, NULL, TRN_OP_SWITCH},
    {"Merge", "inputs:N*T -> output:T, value_index:i32; T:any, N:int>=1", NULL, NULL, TRN_OP_MERGE},
    {"Enter", "data:T -> output:T; T:any, frame_name:string, is_constant:bool=false, parallel_iterations:int=10", NULL,
     NULL, TRN_OP_ENTER},
    {"Exit", "data:T -> output:T; T:any", NULL, NULL, TRN_OP_EXIT},
    {"NextIteration", "data:T -> output:T; T:any", NULL, NULL, TRN_OP_NEXT},
    {"While", "input:T -> output:T; T:list(type)>=0, cond:func, body:func, output_shapes:list(shape)=[], "
              "parallel_iterations:int=10"},
    {"LoopCond", "input:bool -> output:bool", NULL, NULL, TRN_OP_LOOPCOND},
    {0},
};

static inline int gu_setup(void **state)
{
    static trn_op missing[TRN_COUNTOF(gu_rows)];
    int n = 0;
    for (const trn_op *r = gu_rows; r->name; r++)
        if (!trn_op_find(r->name))
            missing[n++] = *r;
    trn_op_register_test(missing);
    return 0;
}

#define A(...) ((const trn_attr[]){__VA_ARGS__}), (int)(sizeof((const trn_attr[]){__VA_ARGS__}) / sizeof(trn_attr))
#define NONE NULL, 0
#define TYPE(nm, t)                                                                                                    \
    {                                                                                                                  \
        .name = nm, .kind = TRN_ATTR_TYPE, .v.type = t                                                                 \
    }
#define INT(nm, x)                                                                                                     \
    {                                                                                                                  \
        .name = nm, .kind = TRN_ATTR_INT, .v.i = x                                                                     \
    }
#define STR(nm, x)                                                                                                     \
    {                                                                                                                  \
        .name = nm, .kind = TRN_ATTR_STRING, .v.s = { x, strlen(x) }                                                   \
    }
#define T(t) A(TYPE("T", t))
#define LOC(x)                                                                                                         \
    {                                                                                                                  \
        .name = "_class", .kind = TRN_ATTR_STRING, .is_list = true, .n = 1, .list = (const trn_attr_val[])             \
        {                                                                                                              \
            {                                                                                                          \
                .s = { "loc:@" x, strlen("loc:@" x) }                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }

static inline void ok(trn_err err)
{
    if (err)
        fail_msg("%s", trn_err_msg(err));
}

/* Inputs are separated by spaces; "-" is an input that is set later. */
static inline trn_gnode *N(trn_graph *g, const char *op, const char *name, const char *device, const char *inputs,
                           const trn_attr *attrs, int n_attrs)
{
    trn_edge in[64];
    int n_in = 0, ctl[64], n_ctl = 0;
    char *copy = trn_xstrdup(inputs), *save = NULL;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        trn_edge e = {-1, 0};
        if (strcmp(w, "-"))
            ok(trn_graph_tensor(&e, g, w));
        if (*w == '^')
            ctl[n_ctl++] = e.node;
        else
            in[n_in++] = e;
    }
    free(copy);
    trn_gnode *out;
    ok(trn_graph_add(&out, g, op, name, device, attrs, n_attrs, in, n_in));
    for (int i = 0; i < n_ctl; i++)
        trn_graph_add_ctl(g, out, ctl[i]);
    return out;
}

static inline trn_gnode *konst(trn_graph *g, const char *name, const char *device, int64_t floats)
{
    trn_tensor *t;
    trn_shape sh = trn_shape_vector(floats);
    ok(trn_tensor_new(&t, TRN_FLOAT, &sh));
    memset(trn_tensor_data_mut(t), 0, trn_tensor_bytes(t));
    trn_gnode *n = N(g, "Const", name, device, "",
                     A(TYPE("dtype", TRN_FLOAT), {.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}));
    trn_tensor_unref(t);
    return n;
}

static inline trn_gnode *var(trn_graph *g, const char *name, const char *device)
{
    static const trn_shape scalar = {.rank = 0};
    return N(g, "VariableV2", name, device, "",
             A(TYPE("dtype", TRN_FLOAT), {.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &scalar}));
}

static inline trn_gnode *handle(trn_graph *g, const char *name, const char *device)
{
    static const trn_shape scalar = {.rank = 0};
    return N(g, "VarHandleOp", name, device, "",
             A(TYPE("dtype", TRN_FLOAT), {.name = "shape", .kind = TRN_ATTR_SHAPE, .v.shape = &scalar}));
}

#define DEV(job, task, id, inc)                                                                                        \
    {                                                                                                                  \
        "/job:" job "/replica:0/task:" #task "/device:CPU:" #id, "/job:" job "/replica:0/task:" #task, "CPU", inc      \
    }

/* 0 worker 0, 1 its second CPU, 2 worker 1, 3 ps 0, 4 ps 1; the master is worker 0 */
static const trn_device gu_dev[] = {DEV("worker", 0, 0, 1000), DEV("worker", 0, 1, 1001), DEV("worker", 1, 0, 1010),
                                    DEV("ps", 0, 0, 2000), DEV("ps", 1, 0, 2010)};
static const trn_devset gu_set = {.n = 5, .dev = gu_dev, .def = 0};
enum { W0, W0B, W1, PS0, PS1 };

#endif
