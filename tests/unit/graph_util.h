/* For tests of graphs: GraphDefs as text, and rows for the ops in them, so that these tests need no family of real kernels. */
#ifndef GRAPH_UTIL_H
#define GRAPH_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "graph/graph.h"
#include "op/families.h"
#include "proto/textproto.h"

static const trn_op graph_test_rows[] = {
    {"_Arg", "-> output:T; T:any, index:int>=0", trn_sh_unknown, NULL, TRN_OP_STATEFUL},
    {"_Retval", "input:T ->; T:any, index:int>=0", trn_sh_unknown, NULL, TRN_OP_STATEFUL},
    {"NoOp", "->", trn_sh_unknown, NULL, 0},
    {"Const", "-> output:dtype; value:tensor, dtype:any", trn_sh_unknown, NULL, 0},
    {"Placeholder", "-> output:dtype; dtype:any, shape:shape=?", trn_sh_attr, NULL, 0},
    {"Identity", "input:T -> output:T; T:any", trn_sh_same, NULL, 0},
    {"IdentityN", "input:T -> output:T; T:list(type)>=1", trn_sh_unknown, NULL, 0},
    {"AddV2", "x:T, y:T -> z:T; T:num|str", trn_sh_bcast, NULL, 0},
    {"Neg", "x:T -> y:T; T:num", trn_sh_same, NULL, 0},
    {"Less", "x:T, y:T -> z:bool; T:real", trn_sh_bcast, NULL, 0},
    {"AddN", "inputs:N*T -> sum:T; N:int>=1, T:num|var", trn_sh_same, NULL, 0},
    {"Split", "split_dim:i32, value:T -> output:num_split*T; num_split:int>=1, T:any", trn_sh_unknown, NULL, 0},
    {"Fill", "dims:index_type, value:T -> output:T; T:any, index_type:i32|i64=i32", trn_sh_unknown, NULL, 0},
    {"Shape", "input:T -> output:out_type; T:any, out_type:i32|i64=i32", trn_sh_unknown, NULL, 0},
    {"VariableV2", "-> ref:&dtype; shape:shape, dtype:any, container:string=\"\", shared_name:string=\"\"", trn_sh_attr,
     NULL, TRN_OP_STATEFUL},
    {"Assign", "ref:&T, value:T -> output_ref:&T; T:any, validate_shape:bool=true, use_locking:bool=true", trn_sh_same,
     NULL, TRN_OP_STATEFUL},
    {"RandomUniform", "shape:T -> output:dtype; seed:int=0, seed2:int=0, dtype:f16|bf16|f32|f64, T:i32|i64",
     trn_sh_unknown, NULL, TRN_OP_STATEFUL},
    {"Switch", "data:T, pred:bool -> output_false:T, output_true:T; T:any", trn_sh_unknown, NULL, TRN_OP_SWITCH},
    {"_SwitchN", "data:T, output_index:i32 -> outputs:num_outs*T; num_outs:int>=1, T:any", trn_sh_unknown, NULL,
     TRN_OP_SWITCH},
    {"Merge", "inputs:N*T -> output:T, value_index:i32; T:any, N:int>=1", trn_sh_unknown, NULL, TRN_OP_MERGE},
    {"Enter", "data:T -> output:T; T:any, frame_name:string, is_constant:bool=false, parallel_iterations:int=10",
     trn_sh_same, NULL, TRN_OP_ENTER},
    {"Exit", "data:T -> output:T; T:any", trn_sh_same, NULL, TRN_OP_EXIT},
    {"NextIteration", "data:T -> output:T; T:any", trn_sh_same, NULL, TRN_OP_NEXT},
    {"LoopCond", "input:bool -> output:bool", trn_sh_scalar, NULL, TRN_OP_LOOPCOND},
    {"PartitionedCall",
     "args:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, f:func, config:string=\"\", "
     "config_proto:string=\"\", "
     "executor_type:string=\"\"",
     trn_sh_unknown, NULL, TRN_OP_ASYNC},
    {"StatefulPartitionedCall",
     "args:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, f:func, config:string=\"\", "
     "config_proto:string=\"\", executor_type:string=\"\"",
     trn_sh_unknown, NULL, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {"If",
     "cond:Tcond, input:Tin -> output:Tout; Tcond:any, Tin:list(type)>=0, Tout:list(type)>=0, then_branch:func, "
     "else_branch:func, "
     "output_shapes:list(shape)=[]",
     trn_sh_unknown, NULL, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {"StatelessIf",
     "cond:Tcond, input:Tin -> output:Tout; Tcond:any, Tin:list(type)>=0, Tout:list(type)>=0, then_branch:func, "
     "else_branch:func, "
     "output_shapes:list(shape)=[]",
     trn_sh_unknown, NULL, TRN_OP_ASYNC},
    {"Case",
     "branch_index:i32, input:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, branches:list(func)>=1, "
     "output_shapes:list(shape)=[]",
     trn_sh_unknown, NULL, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {"StatelessCase",
     "branch_index:i32, input:Tin -> output:Tout; Tin:list(type)>=0, Tout:list(type)>=0, branches:list(func)>=1, "
     "output_shapes:list(shape)=[]",
     trn_sh_unknown, NULL, TRN_OP_ASYNC},
    {"While",
     "input:T -> output:T; T:list(type)>=0, cond:func, body:func, output_shapes:list(shape)=[], "
     "parallel_iterations:int=10",
     trn_sh_unknown, NULL, TRN_OP_ASYNC | TRN_OP_STATEFUL},
    {"StatelessWhile",
     "input:T -> output:T; T:list(type)>=0, cond:func, body:func, output_shapes:list(shape)=[], "
     "parallel_iterations:int=10",
     trn_sh_unknown, NULL, TRN_OP_ASYNC},
};

/* Real rows, where they exist, go first. */
static inline int graph_util_setup(void **state)
{
    (void)state;
    static trn_op rows[TRN_COUNTOF(graph_test_rows) + 1];
    size_t n = 0;
    for (size_t i = 0; i < TRN_COUNTOF(graph_test_rows); i++)
        if (!trn_op_find(graph_test_rows[i].name))
            rows[n++] = graph_test_rows[i];
    trn_op_register_test(rows);
    return 0;
}

#define assert_ok(expr)                                                                                                \
    do {                                                                                                               \
        trn_err e_ = (expr);                                                                                           \
        if (e_)                                                                                                        \
            fail_msg("%s: %s", #expr, trn_err_msg(e_));                                                                \
    } while (0)

#define assert_fails(code, expr, ...)                                                                                  \
    do {                                                                                                               \
        trn_err e_ = (expr);                                                                                           \
        if (!e_)                                                                                                       \
            fail_msg("%s: succeeded", #expr);                                                                          \
        if (trn_err_code(e_) != (code) || !strstr(trn_err_msg(e_), "" __VA_ARGS__))                                    \
            fail_msg("%s: %s: %s", #expr, trn_code_name(trn_err_code(e_)), trn_err_msg(e_));                           \
        trn_err_free(e_);                                                                                              \
    } while (0)

/* Tests put graphs together from pieces, each with a library of its own: such a text is read piece by piece. */
static inline trn_err import_text(trn_graph *g, const char *text)
{
    trn_sb sb = {0};
    while (*text) {
        const char *next = strstr(text + 1, "library {");
        size_t n = next ? (size_t)(next - text) : strlen(text);
        trn_err bad = trn_textproto_encode(&sb, &tensorflow__graph_def__descriptor, text, n);
        if (bad) {
            trn_sb_fini(&sb);
            return bad;
        }
        text += n;
    }
    Tensorflow__GraphDef *gd = tensorflow__graph_def__unpack(NULL, sb.n, (const uint8_t *)sb.p);
    assert_non_null(gd);
    trn_err err = trn_graph_import(g, gd);
    tensorflow__graph_def__free_unpacked(gd, NULL);
    trn_sb_fini(&sb);
    return err;
}

static inline trn_graph *graph_of(const char *text)
{
    trn_graph *g = trn_graph_new(NULL);
    assert_ok(import_text(g, text));
    return g;
}

static inline trn_gnode *node_of(const trn_graph *g, const char *name)
{
    trn_gnode *nd = trn_graph_find(g, name, strlen(name));
    if (!nd)
        fail_msg("no node %s", name);
    return nd;
}

static inline trn_gnode *input_of(const trn_graph *g, const trn_gnode *nd, int i)
{
    assert_true(i < nd->n.n_in);
    return g->node[nd->in[i].node];
}

static inline bool has_ctl(const trn_gnode *nd, const trn_gnode *from)
{
    for (int i = 0; i < nd->n_ctl; i++)
        if (nd->ctl[i] == from->id)
            return true;
    return false;
}

static inline int count_op(const trn_graph *g, const char *op)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->node[i] && strcmp(g->node[i]->n.op, op) == 0;
    return n;
}

/* Shorthands of the text format. */
#define T_FLOAT "attr { key: 'T' value { type: DT_FLOAT } } "
#define N_PLACEHOLDER(name)                                                                                            \
    "node { name: '" name "' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } } "
#define N_CONST(name, v)                                                                                               \
    "node { name: '" name "' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } "                              \
    "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: " v " } } } } "
#define N_OP1(name, op, in) "node { name: '" name "' op: '" op "' input: '" in "' " T_FLOAT "} "
#define N_OP2(name, op, x, y) "node { name: '" name "' op: '" op "' input: '" x "' input: '" y "' " T_FLOAT "} "

#endif
