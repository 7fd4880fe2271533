#include "graph_util.h"

/* ---- a little arithmetic instead of the executor --------------------------------------------------------------- */

static int evals;

static trn_tensor *vec(int64_t n, float v)
{
    trn_tensor *t;
    trn_shape s = trn_shape_vector(n);
    assert_ok(trn_tensor_new(&t, TRN_FLOAT, &s));
    for (int64_t i = 0; i < n; i++)
        TRN_DATA_MUT(t, float)[i] = v;
    return t;
}

static trn_err eval(trn_tensor **outs, const trn_node *n, trn_tensor *const *ins)
{
    evals++;
    if (strcmp(n->op, "Neg") == 0) {
        outs[0] = trn_tensor_f32(-TRN_DATA(ins[0], float)[0]);
    } else if (strcmp(n->op, "AddV2") == 0) {
        outs[0] = trn_tensor_f32(TRN_DATA(ins[0], float)[0] + TRN_DATA(ins[1], float)[0]);
    } else if (strcmp(n->op, "TestSpread") == 0) {
        outs[0] = vec(trn_attr_int(n, "n"), TRN_DATA(ins[0], float)[0]);
    } else if (strcmp(n->op, "TestTwo") == 0) {
        outs[0] = trn_tensor_f32(1);
        outs[1] = trn_tensor_f32(2);
    } else {
        return trn_errorf(TRN_INTERNAL, "cannot do %s", n->op);
    }
    return TRN_OK;
}

static trn_err sh_spread(trn_shctx *s)
{
    s->out[0] = trn_shape_vector(trn_attr_int(s->node, "n"));
    return TRN_OK;
}

static trn_err sh_shape(trn_shctx *s)
{
    s->out[0] = s->in[0].rank < 0 ? trn_shape_of(1, INT64_C(-1)) : trn_shape_vector(s->in[0].rank);
    return TRN_OK;
}

static const trn_op rows[] = {
    {"TestSpread", "x:T -> y:T; T:any, n:int", sh_spread, NULL, 0},
    {"TestTwo", "x:T -> y:T, z:T; T:any", trn_sh_same, NULL, 0},
    {"TestState", "x:T -> y:T; T:any", trn_sh_same, NULL, TRN_OP_STATEFUL},
    {0},
};
static const trn_op shape_row[] = {
    {"Shape", "input:T -> output:out_type; T:any, out_type:i32|i64=i32", sh_shape, NULL, 0}, {0}};

static int setup(void **state)
{
    if (!trn_op_find("Shape"))
        trn_op_register_test(shape_row);
    trn_op_register_test(rows);
    return graph_util_setup(state);
}

static const trn_opt_opts all = {.fold = true, .cse = true, .identity = true};

static trn_graph *optimised(const char *text, const trn_opt_opts *o)
{
    trn_graph *g = graph_of(text);
    evals = 0;
    assert_ok(trn_graph_optimise(g, o, eval));
    int *order = trn_xalloc(sizeof *order * (size_t)TRN_MAX(g->n, 1));
    assert_int_equal(trn_graph_topo(g, order), g->n);
    free(order);
    for (int i = 0; i < g->n; i++) {
        assert_non_null(g->node[i]);
        assert_int_equal(g->node[i]->id, i);
        for (int k = 0; k < g->node[i]->n.n_in; k++)
            assert_true(g->node[i]->in[k].node >= 0 && g->node[i]->in[k].node < g->n);
    }
    return g;
}

static float const_of(const trn_gnode *nd)
{
    assert_string_equal(nd->n.op, "Const");
    return TRN_DATA(trn_attr_tensor(&nd->n, "value"), float)[0];
}

#define RETVAL(name, in, i)                                                                                            \
    "node { name: '" name "' op: '_Retval' input: '" in "' " T_FLOAT "attr { key: 'index' value { i: " i " } } } "
#define X N_PLACEHOLDER("x")

/* ---- folding -------------------------------------------------------------------------------------------------- */

static void folds_chains(void **state)
{
    trn_graph *g = optimised(X N_CONST("a", "1") N_CONST("b", "2") N_OP2("s", "AddV2", "a", "b") N_OP1("n", "Neg", "s")
                                 N_OP2("y", "AddV2", "x", "n") RETVAL("r", "y", "0"),
                             &all);
    const trn_gnode *y = node_of(g, "y");
    assert_float_equal(const_of(input_of(g, y, 1)), -3, 0);
    assert_string_equal(input_of(g, y, 1)->n.name, "n");
    assert_int_equal(g->n, 4); /* x, n, y, r: nobody needs a, b and s any more */
    trn_graph_free(g);
}

static void folding_keeps_what_was_waited_for(void **state)
{
    trn_graph *g =
        optimised(X "node { name: 'before' op: 'NoOp' } node { name: 'c' op: 'Const' input: '^before' attr { key: "
                    "'dtype' value { type: DT_FLOAT } } "
                    "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 4 } } } } " N_OP1(
                        "n", "Neg", "c") "node { name: 'after' op: 'NoOp' input: '^n' } " RETVAL("r", "n", "0"),
                  &all);
    assert_true(has_ctl(node_of(g, "n"), node_of(g, "before")));
    assert_true(has_ctl(node_of(g, "after"), node_of(g, "n")));
    assert_float_equal(const_of(node_of(g, "n")), -4, 0);
    trn_graph_free(g);
}

#define SPREAD(name, n)                                                                                                \
    "node { name: '" name "' op: 'TestSpread' input: 'c' " T_FLOAT "attr { key: 'n' value { i: " n " } } } "

static void folds_only_what_stays_small(void **state)
{
    trn_graph *g = optimised(N_CONST("c", "1") SPREAD("small", "1000") SPREAD("large", "1000000")
                                 SPREAD("absurd", "100000000000000") RETVAL("r", "small", "0") RETVAL("q", "large", "1")
                                     RETVAL("p", "absurd", "2"),
                             &all);
    assert_int_equal(evals, 1); /* the large ones are not even tried */
    assert_string_equal(node_of(g, "small")->n.op, "Const");
    assert_string_equal(node_of(g, "large")->n.op, "TestSpread");
    trn_graph_free(g);
    g = optimised(N_CONST("c", "1") SPREAD("small", "1000") RETVAL("r", "small", "0"),
                  &(trn_opt_opts){.fold = true, .max_folded_bytes = 100});
    assert_string_equal(node_of(g, "small")->n.op, "TestSpread");
    trn_graph_free(g);
}

static void folds_many_outputs(void **state)
{
    trn_graph *g = optimised(N_CONST("c", "1") N_OP1("two", "TestTwo", "c") N_OP2("s", "AddV2", "two", "two:1")
                                 RETVAL("r", "s", "0") RETVAL("q", "two:1", "1"),
                             &all);
    assert_float_equal(const_of(node_of(g, "s")), 3, 0);
    assert_float_equal(const_of(input_of(g, node_of(g, "q"), 0)), 2, 0);
    assert_null(trn_graph_find(g, "two", 3));
    assert_int_equal(g->n, 4);
    trn_graph_free(g);
}

static void leaves_effects_and_errors_alone(void **state)
{
    trn_graph *g = optimised(N_CONST("c", "1") N_OP1("s", "TestState", "c") N_OP1("sh", "TestState", "c")
                                 N_OP1("bad", "StopGradient", "c") RETVAL("r", "s", "0"),
                             &(trn_opt_opts){.fold = true, .cse = true});
    assert_string_equal(node_of(g, "s")->n.op, "TestState");
    assert_string_equal(node_of(g, "sh")->n.op, "TestState"); /* not merged, not dropped */
    trn_graph_free(g);
}

static void folds_shapes_that_are_known(void **state)
{
    trn_graph *g =
        optimised("node { name: 'p' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: "
                  "'shape' value { shape { dim { size: 2 } "
                  "dim { size: 3 } } } } } node { name: 'q' op: 'Placeholder' attr { key: 'dtype' value { type: "
                  "DT_FLOAT } } attr { key: 'shape' value { "
                  "shape { dim { size: -1 } } } } } " N_OP1("n", "Neg", "p") N_OP1("s", "Shape", "n")
                      N_OP1("t", "Shape", "q") "node { name: 'r' op: '_Retval' input: 's' attr { key: 'T' value { "
                                               "type: DT_INT32 } } attr { key: 'index' value { i: 0 } } } "
                                               "node { name: 'u' op: '_Retval' input: 't' attr { key: 'T' value { "
                                               "type: DT_INT32 } } attr { key: 'index' value { i: 1 } } }",
                  &all);
    const trn_tensor *t = trn_attr_tensor(&node_of(g, "s")->n, "value");
    assert_int_equal(TRN_DATA(t, int32_t)[0], 2);
    assert_int_equal(TRN_DATA(t, int32_t)[1], 3);
    assert_string_equal(node_of(g, "t")->n.op, "Shape");
    assert_null(trn_graph_find(g, "n", 1));
    assert_non_null(trn_graph_find(g, "p", 1)); /* not fed: must complain when the step runs */
    trn_graph_free(g);
}

static void nothing_behind_a_switch(void **state)
{
    trn_graph *g = optimised(
        X "node { name: 'p' op: 'Placeholder' attr { key: 'dtype' value { type: DT_BOOL } } } " N_OP2(
            "sw", "Switch", "x",
            "p") "node { name: 'c' op: 'Const' input: '^pivot' attr { key: 'dtype' value { type: DT_FLOAT } } "
                 "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 4 } } } } " N_OP1(
                     "pivot", "Identity", "sw:1") N_OP1("n", "Neg", "c") RETVAL("r", "n", "0"),
        &all);
    assert_string_equal(node_of(g, "n")->n.op, "Neg");
    assert_non_null(trn_graph_find(g, "pivot", 5));
    trn_graph_free(g);
}

/* ---- the same twice ------------------------------------------------------------------------------------------- */

static void merges_equal_nodes(void **state)
{
    trn_graph *g = optimised(
        X N_OP1("a", "Neg", "x") N_OP1("b", "Neg", "x") N_OP1("a2", "Neg", "a") N_OP1("b2", "Neg", "b")
            N_OP2("y", "AddV2", "a2", "b2") "node { name: 'far' op: 'Neg' input: 'x' device: '/job:ps' " T_FLOAT "} "
                                            "node { name: 'late' op: 'Neg' input: 'x' input: '^y' " T_FLOAT "} "
                                            "node { name: 'after' op: 'NoOp' input: '^b2' } " RETVAL("r", "y", "0")
                                                RETVAL("q", "far", "1") RETVAL("p", "late", "2"),
        &all);
    const trn_gnode *y = node_of(g, "y");
    assert_int_equal(y->in[0].node, y->in[1].node);
    assert_null(trn_graph_find(g, "b", 1));
    assert_null(trn_graph_find(g, "b2", 2));
    assert_non_null(trn_graph_find(g, "far", 3));  /* another device */
    assert_non_null(trn_graph_find(g, "late", 4)); /* another moment */
    assert_true(has_ctl(node_of(g, "after"), node_of(g, "a2")));
    trn_graph_free(g);
}

static void merges_equal_constants(void **state)
{
    trn_graph *g = optimised(X N_CONST("a", "1") N_CONST("b", "1") N_CONST("c", "2") N_OP2("s", "AddV2", "x", "a")
                                 N_OP2("t", "AddV2", "s", "b") N_OP2("u", "AddV2", "t", "c") RETVAL("r", "u", "0"),
                             &(trn_opt_opts){.cse = true});
    assert_int_equal(count_op(g, "Const"), 2);
    assert_int_equal(node_of(g, "s")->in[1].node, node_of(g, "t")->in[1].node);
    trn_graph_free(g);
}

/* ---- identity ------------------------------------------------------------------------------------------------- */

static void drops_identities_that_do_nothing(void **state)
{
    trn_graph *g = optimised(
        X N_OP1("n", "Neg", "x") N_OP1("i", "Identity", "n") N_OP1("j", "Identity", "i")
            RETVAL("r", "j", "0") "node { name: 'far' op: 'Identity' input: 'n' device: '/job:ps' " T_FLOAT "} " RETVAL(
                "q", "far",
                "1") "node { name: 'late' op: 'Identity' input: 'n' input: '^far' " T_FLOAT
                     "} " RETVAL("p", "late",
                                 "2") "node { name: 'waited' op: 'Identity' input: 'n' " T_FLOAT
                                      "} node { name: 'after' op: 'NoOp' input: '^waited' } "
                                      "node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } "
                                      "} attr { key: 'shape' value { shape {} } } } " N_OP1("read", "Identity", "v")
                                          RETVAL(
                                              "o", "read",
                                              "3") "node { name: 'near' op: 'Identity' input: 'n' " T_FLOAT
                                                   "} node { name: 'with' op: 'Neg' input: 'near' " T_FLOAT
                                                   "attr { key: '_class' value { list { s: 'loc:@near' } } } } " RETVAL(
                                                       "m", "with", "4"),
        &(trn_opt_opts){.identity = true});
    assert_string_equal(input_of(g, node_of(g, "r"), 0)->n.name, "n");
    assert_null(trn_graph_find(g, "i", 1));
    assert_non_null(trn_graph_find(g, "far", 3));
    assert_non_null(trn_graph_find(g, "late", 4));
    assert_non_null(trn_graph_find(g, "waited", 6));
    assert_non_null(trn_graph_find(g, "read", 4)); /* the value at this moment */
    assert_non_null(trn_graph_find(g, "near", 4)); /* somebody is colocated with it */
    trn_graph_free(g);
}

#define CHECK_ROW {"CheckNumerics", "tensor:T -> output:T; T:any, message:string", trn_sh_same, NULL, 0}

/* tf.gradients: each gradient waits for all gradients of its op, also for those that nobody reads. */
static void what_nobody_reads_is_not_computed(void **state)
{
    static const trn_op check[] = {CHECK_ROW, {0}};
    if (!trn_op_find("CheckNumerics"))
        trn_op_register_test(check);
    static const char text[] = X N_OP1("before", "Neg", "x") N_OP1("unread", "Neg", "before") N_OP1("wanted", "Neg", "x")
        "node { name: 'checked' op: 'CheckNumerics' input: 'x' " T_FLOAT "attr { key: 'message' value { s: 'm' } } } "
        "node { name: 'state' op: 'TestState' input: 'x' " T_FLOAT "} "
        "node { name: 'group' op: 'NoOp' input: '^unread' input: '^wanted' input: '^checked' input: '^state' } "
        "node { name: 'out' op: 'Identity' input: 'wanted' input: '^group' " T_FLOAT "} " RETVAL("r", "out", "0");
    trn_graph *g = optimised(text, &(trn_opt_opts){.identity = true});
    const trn_gnode *unread = node_of(g, "unread"), *before = node_of(g, "before");
    assert_string_equal(unread->n.op, "NoOp");
    assert_int_equal(unread->n.n_in + unread->n.n_out, 0);
    assert_string_equal(before->n.op, "NoOp"); /* only `unread` read it */
    assert_true(has_ctl(unread, before));
    assert_true(has_ctl(before, node_of(g, "x")));
    assert_true(has_ctl(node_of(g, "group"), unread));
    assert_string_equal(node_of(g, "wanted")->n.op, "Neg");
    assert_string_equal(node_of(g, "checked")->n.op, "CheckNumerics"); /* it is there to fail */
    assert_string_equal(node_of(g, "state")->n.op, "TestState");
    trn_graph_free(g);
    g = optimised(text, &(trn_opt_opts){.fold = true, .cse = true});
    assert_string_equal(node_of(g, "unread")->n.op, "Neg");
    trn_graph_free(g);
}

static void does_nothing_when_told_so(void **state)
{
    const char *text = X N_CONST("a", "1") N_OP1("n", "Neg", "a") N_OP1("i", "Identity", "n") RETVAL("r", "i", "0");
    trn_graph *g = optimised(text, &(trn_opt_opts){0});
    assert_int_equal(g->n, 5);
    trn_graph_free(g);
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

static void infers_shapes(void **state)
{
    trn_graph *g = graph_of(
        "node { name: 'p' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { "
        "shape { dim { size: -1 } dim "
        "{ size: 3 } } } } } node { name: 'q' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } attr { "
        "key: 'shape' value { shape "
        "{ dim { size: 7 } dim { size: 1 } } } } } " N_OP2(
            "s", "AddV2", "p", "q") "node { name: 'u' op: 'NobodyHasThis' input: 's' } " N_OP1("n", "Neg", "u:2"));
    trn_shape **s;
    assert_ok(trn_graph_infer(&s, g));
    const trn_shape *sum = &s[node_of(g, "s")->id][0];
    assert_int_equal(sum->rank, 2);
    assert_int_equal(sum->dim[1], 3);
    assert_int_equal(s[node_of(g, "u")->id][2].rank, -1);
    assert_int_equal(s[node_of(g, "n")->id][0].rank, -1);
    trn_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folds_chains),
        cmocka_unit_test(folding_keeps_what_was_waited_for),
        cmocka_unit_test(folds_only_what_stays_small),
        cmocka_unit_test(folds_many_outputs),
        cmocka_unit_test(leaves_effects_and_errors_alone),
        cmocka_unit_test(folds_shapes_that_are_known),
        cmocka_unit_test(nothing_behind_a_switch),
        cmocka_unit_test(merges_equal_nodes),
        cmocka_unit_test(merges_equal_constants),
        cmocka_unit_test(drops_identities_that_do_nothing),
        cmocka_unit_test(what_nobody_reads_is_not_computed),
        cmocka_unit_test(does_nothing_when_told_so),
        cmocka_unit_test(infers_shapes),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
