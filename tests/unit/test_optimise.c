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

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

#define DT(key, t) "attr { key: '" key "' value { type: " t " } } "
#define XS(t, shape) /* x with a known shape */                                                                        \
    "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: " t " } } attr { key: 'shape' value { shape { " shape " } } } } "
#define D(n) "dim { size: " n " } "
#define C_OF(name, t, shape, vals)                                                                                     \
    "node { name: '" name "' op: 'Const' " DT("dtype", t) "attr { key: 'value' value { tensor { dtype: " t " tensor_shape { " shape " } " vals " } } } } "
#define I32(name, n, vals) C_OF(name, "DT_INT32", D(n), vals)
#define NODE(name, op, inputs, attrs) "node { name: '" name "' op: '" op "' " inputs " " attrs "} "
#define IN(x) "input: '" x "' "
#define OUT(t) NODE("r", "_Retval", IN("y"), DT("T", t) "attr { key: 'index' value { i: 0 } } ")
#define F "DT_FLOAT"
#define FX XS(F, D("2") D("3"))
#define PERM DT("T", F) DT("Tperm", "DT_INT32")
#define PAIR(i, j) C_OF("p", "DT_INT32", D("2"), "int_val: " i " int_val: " j)

static const trn_opt_opts arithmetic = {.simplify = true};

static void simplifies(void **state)
{
    /* What the result is when all is done: x itself, or a node that must stay. */
    static const struct {
        const char *what, *text, *gives;
    } cases[] = {
        {"x * 1", FX N_CONST("c", "1") N_OP2("y", "Mul", "x", "c") OUT(F), "x"},
        {"1 * x", FX N_CONST("c", "1") N_OP2("y", "Mul", "c", "x") OUT(F), "x"},
        {"x * 2", FX N_CONST("c", "2") N_OP2("y", "Mul", "x", "c") OUT(F), "y"},
        {"x * ones of its shape", FX C_OF("c", F, D("2") D("3"), "float_val: 1") N_OP2("y", "Mul", "x", "c") OUT(F), "x"},
        {"x * ones that broadcast", FX C_OF("c", F, D("4") D("2") D("3"), "float_val: 1") N_OP2("y", "Mul", "x", "c") OUT(F), "y"},
        {"x of no known shape * [1]", X C_OF("c", F, D("1"), "float_val: 1") N_OP2("y", "Mul", "x", "c") OUT(F), "y"},
        {"x / 1", FX N_CONST("c", "1") N_OP2("y", "RealDiv", "x", "c") OUT(F), "x"},
        {"1 / x", FX N_CONST("c", "1") N_OP2("y", "RealDiv", "c", "x") OUT(F), "y"},
        {"x - 0", FX N_CONST("c", "0") N_OP2("y", "Sub", "x", "c") OUT(F), "x"},
        {"0 - x", FX N_CONST("c", "0") N_OP2("y", "Sub", "c", "x") OUT(F), "y"},
        {"-0 + 0 is 0", FX N_CONST("c", "0") N_OP2("y", "AddV2", "x", "c") OUT(F), "y"},
        {"x + -0", FX N_CONST("c", "-0.0") N_OP2("y", "AddV2", "c", "x") OUT(F), "x"},
        {"integers + 0", XS("DT_INT32", D("2")) C_OF("c", "DT_INT32", "", "int_val: 0") NODE("y", "AddV2", IN("x") IN("c"), DT("T", "DT_INT32")) OUT("DT_INT32"), "x"},
        {"- - x", FX N_OP1("n", "Neg", "x") N_OP1("y", "Neg", "n") OUT(F), "x"},
        {"| |x| |", FX N_OP1("n", "Abs", "x") N_OP1("y", "Abs", "n") OUT(F), "n"},
        {"a sum of one", FX NODE("y", "AddN", IN("x"), DT("T", F) "attr { key: 'N' value { i: 1 } } ") OUT(F), "x"},
        {"there and back", FX NODE("n", "Cast", IN("x"), DT("SrcT", F) DT("DstT", "DT_DOUBLE")) NODE("y", "Cast", IN("n"), DT("SrcT", "DT_DOUBLE") DT("DstT", F)) OUT(F), "x"},
        {"there and back with a loss", FX NODE("n", "Cast", IN("x"), DT("SrcT", F) DT("DstT", "DT_INT32")) NODE("y", "Cast", IN("n"), DT("SrcT", "DT_INT32") DT("DstT", F)) OUT(F), "y"},
        {"to the same type", FX NODE("y", "Cast", IN("x"), DT("SrcT", F) DT("DstT", F)) OUT(F), "x"},
        {"to the same shape", FX PAIR("2", "3") NODE("y", "Reshape", IN("x") IN("p"), DT("T", F) DT("Tshape", "DT_INT32")) OUT(F), "x"},
        {"to another shape", FX PAIR("3", "2") NODE("y", "Reshape", IN("x") IN("p"), DT("T", F) DT("Tshape", "DT_INT32")) OUT(F), "y"},
        {"transposed to itself", FX PAIR("0", "1") NODE("y", "Transpose", IN("x") IN("p"), PERM) OUT(F), "x"},
        {"transposed", FX PAIR("1", "0") NODE("y", "Transpose", IN("x") IN("p"), PERM) OUT(F), "y"},
        {"transposed twice", FX PAIR("1", "0") NODE("n", "Transpose", IN("x") IN("p"), PERM) NODE("y", "Transpose", IN("n") IN("p"), PERM) OUT(F), "x"},
        {"a bad permutation", FX PAIR("1", "1") NODE("y", "Transpose", IN("x") IN("p"), PERM) OUT(F), "y"},
        {"once", FX PAIR("1", "1") NODE("y", "Tile", IN("x") IN("p"), DT("T", F) DT("Tmultiples", "DT_INT32")) OUT(F), "x"},
        {"once and twice", FX PAIR("1", "2") NODE("y", "Tile", IN("x") IN("p"), DT("T", F) DT("Tmultiples", "DT_INT32")) OUT(F), "y"},
        {"all of it", FX PAIR("0", "0") C_OF("q", "DT_INT32", D("2"), "int_val: -1 int_val: 3") NODE("y", "Slice", IN("x") IN("p") IN("q"), DT("T", F) DT("Index", "DT_INT32")) OUT(F), "x"},
        {"some of it", FX PAIR("0", "1") C_OF("q", "DT_INT32", D("2"), "int_val: -1 int_val: 2") NODE("y", "Slice", IN("x") IN("p") IN("q"), DT("T", F) DT("Index", "DT_INT32")) OUT(F), "y"},
        {"no axis", XS("DT_INT32", D("2")) C_OF("p", "DT_INT32", D("0"), "") NODE("y", "Sum", IN("x") IN("p"), DT("T", "DT_INT32") DT("Tidx", "DT_INT32")) OUT("DT_INT32"), "x"},
        {"no axis of floats", FX C_OF("p", "DT_INT32", D("0"), "") NODE("y", "Sum", IN("x") IN("p"), DT("T", F) DT("Tidx", "DT_INT32")) OUT(F), "y"},
        {"what waits stays", FX "node { name: 'b' op: 'NoOp' } " N_CONST("c", "1") NODE("y", "Mul", IN("x") IN("c") IN("^b"), DT("T", F)) OUT(F), "y"},
        {"a constant that waits stays", FX "node { name: 'b' op: 'NoOp' } " NODE("c", "Const", IN("^b"), DT("dtype", F) "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 1 } } } ") N_OP2("y", "Mul", "x", "c") OUT(F), "y"},
        {"what is waited for stays", FX N_CONST("c", "1") N_OP2("y", "Mul", "x", "c") "node { name: 'b' op: 'NoOp' input: '^y' } " OUT(F), "y"},
        {"on another device", FX N_CONST("c", "1") "node { name: 'y' op: 'Mul' input: 'x' input: 'c' device: '/job:ps/task:1' " DT("T", F) "} " OUT(F), "y"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        trn_graph *g = optimised(cases[i].text, &arithmetic);
        const char *got = input_of(g, node_of(g, "r"), 0)->n.name;
        if (strcmp(got, cases[i].gives) != 0)
            fail_msg("%s: %s, not %s", cases[i].what, got, cases[i].gives);
        trn_graph_free(g);
        g = optimised(cases[i].text, &(trn_opt_opts){.identity = true}); /* not when told not to */
        assert_string_equal(input_of(g, node_of(g, "r"), 0)->n.name, "y");
        trn_graph_free(g);
    }
}

static void products_take_transposes(void **state)
{
    trn_graph *g = optimised(FX N_PLACEHOLDER("b") PAIR("1", "0") NODE("n", "Transpose", IN("x") IN("p"), PERM) N_OP2("y", "MatMul", "n", "b") OUT(F), &arithmetic);
    const trn_gnode *y = node_of(g, "y");
    assert_string_equal(input_of(g, y, 0)->n.name, "x");
    assert_true(trn_attr_bool(&y->n, "transpose_a"));
    assert_false(trn_attr_bool(&y->n, "transpose_b"));
    assert_null(trn_graph_find(g, "n", 1));
    trn_graph_free(g);
}

/* ---- fusion ----------------------------------------------------------------------------------------------------- */

#define W_VAR                                                                                                          \
    NODE("wv", "VarHandleOp", "", DT("dtype", F) "attr { key: 'shape' value { shape { dim { size: 3 } dim { size: 4 } } } } ")                         \
    NODE("w", "ReadVariableOp", IN("wv"), DT("dtype", F))
#define B_VAR(n)                                                                                                       \
    NODE("bv", "VarHandleOp", "", DT("dtype", F) "attr { key: 'shape' value { shape { dim { size: " n " } } } } ") NODE("b", "ReadVariableOp", IN("bv"), DT("dtype", F))
#define DENSE(add, act) FX W_VAR B_VAR("4") N_OP2("m", "MatMul", "x", "w") N_OP2("s", add, "m", "b") N_OP1("y", act, "s")

static const trn_opt_opts fusing = {.fuse = true};

static void check_fused(const char *what, const char *text, const char *op, const char *ops)
{
    trn_graph *g = optimised(text, &fusing);
    const trn_gnode *y = node_of(g, "y");
    if (strcmp(y->n.op, op) != 0)
        fail_msg("%s: %s, not %s", what, y->n.op, op);
    const trn_attr *f = trn_node_attr(&y->n, "fused_ops");
    char got[64] = "";
    for (int i = 0; ops && i < f->n; i++)
        strcat(strcat(got, i ? "+" : ""), f->list[i].s.p);
    assert_string_equal(got, ops ? ops : "");
    trn_graph_free(g);
}

static void fuses_products(void **state)
{
    check_fused("a layer", DENSE("BiasAdd", "Relu") OUT(F), "_FusedMatMul", "BiasAdd+Relu");
    check_fused("a sum", DENSE("AddV2", "Tanh") OUT(F), "_FusedMatMul", "BiasAdd+Tanh");
    check_fused("no activation", FX W_VAR B_VAR("4") N_OP2("m", "MatMul", "x", "w") N_OP2("y", "AddV2", "b", "m") OUT(F), "_FusedMatMul", "BiasAdd");
    check_fused("a sum that broadcasts", FX W_VAR B_VAR("1") N_OP2("m", "MatMul", "x", "w") N_OP2("y", "AddV2", "m", "b") OUT(F), "AddV2", NULL);
    check_fused("the product is fetched", DENSE("BiasAdd", "Relu") OUT(F) RETVAL("r2", "m", "1"), "Relu", NULL);
    check_fused("the sum is used twice", DENSE("BiasAdd", "Relu") OUT(F) N_OP1("z", "Neg", "s") RETVAL("r2", "z", "1"), "Relu", NULL);
    check_fused("somebody waits", DENSE("BiasAdd", "Relu") OUT(F) "node { name: 'z' op: 'NoOp' input: '^m' } ", "Relu", NULL);
    check_fused("a convolution", FX W_VAR B_VAR("4") NODE("m", "Conv2D", IN("x") IN("w"), DT("T", F) "attr { key: 'strides' value { list { i: 1 i: 1 i: 1 i: 1 } } } "
                                                          "attr { key: 'padding' value { s: 'SAME' } } ")
                                     N_OP2("s", "BiasAdd", "m", "b") NODE("y", "LeakyRelu", IN("s"), DT("T", F) "attr { key: 'alpha' value { f: 0.5 } } ") OUT(F),
                "_FusedConv2D", "BiasAdd+LeakyRelu");
}

static void fusion_keeps_the_rest(void **state)
{
    /* Who asks for the product's shape asks the fused node; what the nodes waited for, it waits for; a sum that is used twice is fused alone. */
    trn_graph *g = optimised(FX "node { name: 'before' op: 'NoOp' } " W_VAR B_VAR("4") NODE("m", "MatMul", IN("x") IN("w") IN("^before"), DT("T", F))
                                 N_OP2("s", "BiasAdd", "m", "b") N_OP1("y", "Relu", "s") NODE("h", "Shape", IN("m"), DT("T", F))
                                     NODE("r2", "_Retval", IN("h"), DT("T", "DT_INT32") "attr { key: 'index' value { i: 1 } } ") OUT(F),
                             &fusing);
    const trn_gnode *y = node_of(g, "y");
    assert_string_equal(y->n.op, "_FusedMatMul");
    assert_string_equal(input_of(g, y, 0)->n.name, "x");
    assert_string_equal(input_of(g, y, 1)->n.name, "w");
    assert_string_equal(input_of(g, y, 2)->n.name, "b");
    assert_true(has_ctl(y, node_of(g, "before")));
    assert_ptr_equal(input_of(g, node_of(g, "h"), 0), y);
    assert_null(trn_graph_find(g, "m", 1));
    assert_null(trn_graph_find(g, "s", 1));
    trn_graph_free(g);
    g = optimised(DENSE("BiasAdd", "Relu") OUT(F) N_OP1("z", "Neg", "s") RETVAL("r2", "z", "1"), &fusing);
    assert_string_equal(node_of(g, "s")->n.op, "_FusedMatMul");
    trn_graph_free(g);
    g = optimised(DENSE("BiasAdd", "Relu") OUT(F), &(trn_opt_opts){.fuse = true, .fuse_task = "/job:worker/replica:0/task:0"}); /* placed elsewhere */
    assert_string_equal(node_of(g, "y")->n.op, "Relu");
    trn_graph_free(g);
}

#define POOL_WINDOW                                                                                                    \
    "attr { key: 'ksize' value { list { i: 1 i: 2 i: 2 i: 1 } } } attr { key: 'strides' value { list { i: 1 i: 2 i: 2 i: 1 } } } attr { key: 'padding' value { s: 'VALID' } } "
#define POOLED(before)                                                                                                 \
    N_PLACEHOLDER("x") N_PLACEHOLDER("z") N_PLACEHOLDER("g") N_OP1("a", "Relu", "x") "node { name: 'before' op: 'NoOp' } " NODE("m", "MaxPool", IN("a"), DT("T", F) POOL_WINDOW) \
        NODE("d", "MaxPoolGrad", IN("a") IN("m") IN("g") before, DT("T", F) POOL_WINDOW)

static void check_pooled(const char *what, const char *text, bool fused)
{
    trn_graph *g = optimised(text, &fusing);
    const trn_gnode *y = node_of(g, "y");
    if ((strcmp(y->n.op, "MaxPoolGrad") == 0) != fused)
        fail_msg("%s: %s", what, y->n.op);
    if (fused) {
        assert_true(trn_attr_bool(&y->n, "_relu"));
        assert_string_equal(trn_attr_str(&y->n, "padding"), "VALID");
        assert_string_equal(input_of(g, y, 0)->n.name, "a");
        assert_string_equal(input_of(g, y, 1)->n.name, "m");
        assert_string_equal(input_of(g, y, 2)->n.name, "g");
        assert_true(has_ctl(y, node_of(g, "before")));
        assert_null(trn_graph_find(g, "d", 1));
    }
    trn_graph_free(g);
}

static void fuses_gradients_of_pooling(void **state)
{
    check_pooled("a Relu that was pooled", POOLED(IN("^before")) N_OP2("y", "ReluGrad", "d", "a") OUT(F), true);
    check_pooled("another's features", POOLED("") N_OP2("y", "ReluGrad", "d", "z") OUT(F), false);
    check_pooled("the gradient is fetched", POOLED("") N_OP2("y", "ReluGrad", "d", "a") OUT(F) RETVAL("r2", "d", "1"), false);
    check_pooled("used twice", POOLED("") N_OP2("y", "ReluGrad", "d", "a") OUT(F) N_OP1("n", "Neg", "d") RETVAL("r2", "n", "1"), false);
    check_pooled("another activation", POOLED("") N_OP2("y", "Relu6Grad", "d", "a") OUT(F), false);
}

#define UPDATED(op, in, rest) FX N_PLACEHOLDER("d") W_VAR NODE("m", "MatMul", IN("x") IN("d"), DT("T", F) "attr { key: 'transpose_a' value { b: true } } ") NODE("y", op, IN("wv") in, DT("T", F)) rest
#define RATE C_OF("lr", F, "", "float_val: 0.1")
#define SGD "ResourceApplyGradientDescent"
/* As tf.gradients has it: updates wait until all gradients of an op are there. */
#define GATE                                                                                                           \
    N_OP2("m2", "MatMul", "d", "w") "node { name: 'gate' op: 'NoOp' input: '^m' input: '^m2' } " NODE("i", "Identity", IN("m") IN("^gate"), DT("T", F) "attr { key: '_class' value { list { s: 'loc:@m' } } } ") \
        NODE("i2", "Identity", IN("m2") IN("^gate"), DT("T", F)) RETVAL("r", "i2", "0")

static void check_update(const char *what, const char *text, bool fused)
{
    trn_graph *g = optimised(text, &fusing);
    const trn_gnode *y = node_of(g, "y");
    if ((strcmp(y->n.op, "_MatMulUpdate") == 0) != fused)
        fail_msg("%s: %s", what, y->n.op);
    if (fused) {
        assert_string_equal(input_of(g, y, 0)->n.name, "wv");
        int vars = (int)trn_attr_int(&y->n, "num_vars");
        assert_string_equal(input_of(g, y, vars)->n.name, "x");
        assert_string_equal(input_of(g, y, vars + 1)->n.name, "d");
        assert_true(trn_attr_bool(&y->n, "transpose_a") && !trn_attr_bool(&y->n, "transpose_b"));
        assert_null(trn_graph_find(g, "m", 1));
        assert_null(trn_graph_find(g, "i", 1));
    }
    trn_graph_free(g);
}

static void fuses_updates(void **state)
{
    check_update("a step", UPDATED(SGD, IN("lr") IN("m"), RATE), true);
    check_update("behind identities", UPDATED(SGD, IN("lr") IN("i2"), RATE N_OP1("i", "Identity", "m") N_OP1("i2", "Identity", "i")), true);
    check_update("gated", UPDATED(SGD, IN("lr") IN("i"), RATE GATE), true);
    check_update("more variables", UPDATED("ResourceApplyMomentum", IN("v2") IN("lr") IN("m") IN("lr"), RATE NODE("v2", "VarHandleOp", "", DT("dtype", F) "attr { key: 'shape' value { shape { } } } ")), true);
    check_update("the gradient is fetched", UPDATED(SGD, IN("lr") IN("m"), RATE RETVAL("r", "m", "0")), false);
    check_update("and so behind an identity", UPDATED(SGD, IN("lr") IN("i"), RATE N_OP1("i", "Identity", "m") RETVAL("r", "i", "0")), false);
    check_update("its shape is asked for", UPDATED(SGD, IN("lr") IN("m"), RATE NODE("h", "Shape", IN("m"), DT("T", F)) NODE("r", "_Retval", IN("h"), DT("T", "DT_INT32") "attr { key: 'index' value { i: 0 } } ")), false);
    check_update("it is used twice by the same", UPDATED("ResourceApplyMomentum", IN("v2") IN("lr") IN("m") IN("m"), RATE NODE("v2", "VarHandleOp", "", DT("dtype", F) "attr { key: 'shape' value { shape { } } } ")), false);
    check_update("others are colocated with it", UPDATED(SGD, IN("lr") IN("m"), RATE NODE("q", "Neg", IN("x"), DT("T", F) "attr { key: '_class' value { list { s: 'loc:@m' } } } ") RETVAL("r", "q", "0")), false);
    check_update("the product is not the gradient", UPDATED(SGD, IN("m") IN("lr"), RATE), false);
    trn_graph *g = optimised(UPDATED(SGD, IN("lr") IN("i"), RATE GATE), &fusing);
    const trn_gnode *y = node_of(g, "y"), *gate = node_of(g, "gate");
    assert_true(has_ctl(y, gate)); /* what reads the variable comes before its update */
    assert_true(has_ctl(gate, node_of(g, "m2")) && has_ctl(gate, node_of(g, "x")) && has_ctl(gate, node_of(g, "d")));
    trn_graph_free(g);
    g = optimised(UPDATED(SGD, IN("lr") IN("m"), RATE), &(trn_opt_opts){.fuse = true, .fuse_task = "/job:worker/replica:0/task:0"}); /* placed elsewhere */
    assert_string_equal(node_of(g, "y")->n.op, SGD);
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
        cmocka_unit_test(simplifies),
        cmocka_unit_test(products_take_transposes),
        cmocka_unit_test(fuses_products),
        cmocka_unit_test(fusion_keeps_the_rest), cmocka_unit_test(fuses_updates), cmocka_unit_test(fuses_gradients_of_pooling),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
