#include "graph_util.h"
#include "func_text.h"

/* ---- texts ---------------------------------------------------------------------------------------------------- */

#define LOWERED "attr { key: '_lower_using_switch_merge' value { b: true } } "
#define F_NEG FUNC("neg", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"), BODY1("n", "Neg", "a") IS("r", "n:y:0"))
#define F_INC                                                                                                          \
    FUNC("inc", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"),                                                             \
         BODY_CONST("one", "1") BODY2("s", "AddV2", "a", "one:output:0") IS("r", "s:z:0"))
#define F_LESS                                                                                                         \
    FUNC("less", ARG("a", "DT_FLOAT") RET("r", "DT_BOOL"),                                                             \
         BODY_CONST("ten", "10") BODY2("l", "Less", "a", "ten:output:0") IS("r", "l:z:0"))
/* An effect, and nothing returned. */
#define F_EFFECT                                                                                                       \
    FUNC("effect", ARG("a", "DT_FLOAT") "control_output: 'done' is_stateful: true ",                                   \
         "node_def { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' "   \
         "value { shape {} } } } " BODY2("set", "Assign", "v:ref:0", "a")                                              \
             BODY_CONST("dead", "1") "control_ret { key: 'done' value: 'set' } ")

#define TYPES(key, list) "attr { key: '" key "' value { list { " list " } } } "
#define FN(key, name) "attr { key: '" key "' value { func { name: '" name "' } } } "
#define ONE "type: DT_FLOAT"
#define CALL(name, in, fn, ins, outs)                                                                                  \
    "node { name: '" name "' op: 'StatefulPartitionedCall' " in FN("f", fn) TYPES("Tin", ins) TYPES("Tout", outs) "} "

static trn_graph *lowered(const char *text)
{
    trn_graph *g = graph_of(text);
    assert_ok(trn_graph_lower(g));
    int *order = trn_xalloc(sizeof *order * (size_t)g->n);
    assert_int_equal(trn_graph_topo(g, order), g->n);
    free(order);
    for (int i = 0; i < g->n; i++) /* no edge leads nowhere */
        for (int k = 0; k < g->node[i]->n.n_in; k++)
            assert_true(g->node[i]->in[k].node >= 0 && g->node[i]->in[k].node < g->n);
    return g;
}

/* Is there a way from `from` to `to`, over data and control edges? */
static bool reaches(const trn_graph *g, const trn_gnode *from, const trn_gnode *to)
{
    bool seen[512] = {0};
    int stack[512], n = 0;
    stack[n++] = to->id;
    while (n) {
        const trn_gnode *nd = g->node[stack[--n]];
        if (nd == from)
            return true;
        for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
            int id = k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in];
            if (!seen[id]) {
                seen[id] = true;
                stack[n++] = id;
            }
        }
    }
    return false;
}

/* ---- library -------------------------------------------------------------------------------------------------- */

static void knows_its_functions(void **state)
{
    trn_graph *g = graph_of(F_NEG);
    assert_true(trn_funclib_has(g->lib, "neg"));
    assert_false(trn_funclib_has(g->lib, "n"));
    /* the same again is fine, another body is not, and a failed import leaves the library alone */
    assert_ok(import_text(g, F_NEG F_INC));
    assert_fails(TRN_INVALID_ARGUMENT,
                 import_text(g, F_LESS FUNC("neg", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"), IS("r", "a"))), "neg");
    assert_false(trn_funclib_has(g->lib, "less"));
    assert_fails(TRN_INVALID_ARGUMENT, import_text(g, "library { function { } }"), "no name");

    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = trn_graph_export(a, g);
    assert_int_equal(gd->library->n_function, 2);
    trn_graph *h = trn_graph_new(NULL);
    assert_ok(trn_graph_import(h, gd));
    assert_true(trn_funclib_has(h->lib, "inc"));
    trn_arena_free(a);
    trn_graph_free(h);
    trn_graph_free(g);
}

static void same_functions_in_other_map_order(void **state)
{
    trn_graph *g = graph_of("library { function { signature { name: 'f' } node_def { name: 'n' op: 'NoOp' attr { key: "
                            "'a' value { i: 1 } } attr { key: "
                            "'b' value { i: 2 } } } } }");
    assert_ok(import_text(g, "library { function { signature { name: 'f' } node_def { name: 'n' op: 'NoOp' attr { key: "
                             "'b' value { i: 2 } } attr { "
                             "key: 'a' value { i: 1 } } } } }"));
    trn_graph_free(g);
}

static void calls_by_name_take_types_from_the_signature(void **state)
{
    trn_graph *g = graph_of(F_NEG N_PLACEHOLDER("x") "node { name: 'c' op: 'neg' input: 'x' } " N_OP1("y", "Neg", "c"));
    assert_int_equal(node_of(g, "c")->n.out_types[0], TRN_FLOAT);
    assert_ok(trn_graph_check_ops(g));
    assert_fails(TRN_INVALID_ARGUMENT, import_text(g, "node { name: 'd' op: 'neg' input: 'x' input: 'x' }"),
                 "takes 1 inputs");
    assert_fails(TRN_INVALID_ARGUMENT, import_text(g, N_OP1("e", "Neg", "c:1")), "invalid output");
    assert_fails(TRN_INVALID_ARGUMENT,
                 import_text(g, "node { name: 'i' op: 'Neg' input: 'c' attr { key: 'T' value { type: DT_INT32 } } }"),
                 "expected int32");
    trn_graph_free(g);
}

/* ---- bodies --------------------------------------------------------------------------------------------------- */

static void bodies_of_generic_functions(void **state)
{
    /* list arguments, attr placeholders, whole lists as inputs, a result that is an argument */
    trn_graph *g = graph_of("library { function { signature { name: 'f' input_arg { name: 'xs' type_attr: 'T' "
                            "number_attr: 'N' } input_arg { name: 'y' "
                            "type_attr: 'T' } output_arg { name: 'sum' type_attr: 'T' } output_arg { name: 'all' "
                            "type_attr: 'T' number_attr: 'N' } "
                            "attr { name: 'T' type: 'type' } attr { name: 'N' type: 'int' default_value { i: 2 } } } "
                            "node_def { name: 'add' op: 'AddN' input: 'xs' input: 'y' attr { key: 'T' value { "
                            "placeholder: 'T' } } attr { key: 'N' value "
                            "{ i: 3 } } } "
                            "node_def { name: 'wait' op: 'NoOp' input: '^add' input: '^y' } "
                            "ret { key: 'sum' value: 'add:sum:0' } ret { key: 'all' value: 'xs' } } }");
    trn_attr t = {.name = "T", .kind = TRN_ATTR_TYPE, .v.type = TRN_INT32};
    trn_func_ref f = {"f", 1, &t};
    trn_arena *a = trn_arena_new();
    int n_args, n_rets;
    trn_dtype *args, *rets;
    assert_ok(trn_funclib_signature(g->lib, a, &f, &n_args, &args, &n_rets, &rets));
    assert_int_equal(n_args, 3);
    assert_int_equal(n_rets, 3);
    assert_int_equal(args[2], TRN_INT32);
    trn_graph *b;
    assert_ok(trn_funclib_body(&b, g->lib, &f));
    assert_int_equal(count_op(b, "_Arg"), 3);
    assert_int_equal(count_op(b, "_Retval"), 3);
    const trn_gnode *add = node_of(b, "add");
    assert_int_equal(add->n.out_types[0], TRN_INT32);
    for (int i = 0; i < 3; i++)
        assert_int_equal(trn_attr_int(&input_of(b, add, i)->n, "index"), i);
    assert_true(has_ctl(node_of(b, "wait"), add) && has_ctl(node_of(b, "wait"), node_of(b, "y")));
    trn_graph_free(b);
    /* without T there is no signature */
    f.n_attrs = 0;
    assert_fails(TRN_INVALID_ARGUMENT, trn_funclib_body(&b, g->lib, &f), "'T'");
    f.name = "g";
    assert_fails(TRN_NOT_FOUND, trn_funclib_body(&b, g->lib, &f), "'g'");
    trn_arena_free(a);
    trn_graph_free(g);
}

static void control_outputs_meet_in_one_node(void **state)
{
    trn_graph *g = graph_of(F_EFFECT), *b;
    assert_ok(trn_funclib_body(&b, g->lib, &(trn_func_ref){"effect", 0, NULL}));
    assert_true(has_ctl(node_of(b, "_ctl_rets"), node_of(b, "set")));
    trn_graph_free(b);
    trn_graph_free(g);
}

static void bad_bodies(void **state)
{
    static const struct {
        const char *text, *says;
        trn_code code;
    } bad[] = {
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "b")), "input b is not found", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "a:1")), "out of range", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "a") BODY1("m", "Neg", "n:nope:0")), "no such output",
         TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "a") BODY1("m", "Neg", "n:y:-1")), "out of range",
         TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "a") BODY1("m", "Neg", "n:y:99999999999999999999")),
         "out of range", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY2("n", "Neg", "a", "a")), "takes 1 inputs", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_INT32"), BODY1("n", "Neg", "a")), "expected float", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"), ""), "Return r missing", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT") RET("r", "DT_INT32"), IS("r", "a")), "expected int32", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT") ARG("a", "DT_FLOAT"), ""), "a", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "Neg", "m:y:0") BODY1("m", "Neg", "n:y:0")), "cycle",
         TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "NobodyHasThis", "a")), "NobodyHasThis", TRN_UNIMPLEMENTED},
        {FUNC("f", ARG("a", "DT_FLOAT"), BODY1("n", "SymbolicGradient", "a")), "SymbolicGradient", TRN_INVALID_ARGUMENT},
        {FUNC("f", ARG("a", "DT_FLOAT"), "control_ret { key: 'c' value: 'x' } "), "control output c",
         TRN_INVALID_ARGUMENT},
        {FUNC("f",
              "input_arg { name: 'a' type: DT_FLOAT number_attr: 'N' } attr { name: 'N' type: 'int' default_value { i: "
              "1000000000 } } ",
              ""),
         "'N'", TRN_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_graph *g = graph_of(bad[i].text), *b;
        trn_err err = trn_funclib_body(&b, g->lib, &(trn_func_ref){"f", 0, NULL});
        if (!err || trn_err_code(err) != bad[i].code || !strstr(trn_err_msg(err), bad[i].says))
            fail_msg("case %zu: %s, not '%s'", i, err ? trn_err_msg(err) : "no error", bad[i].says);
        trn_err_free(err);
        trn_graph_free(g);
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static void inlines_calls(void **state)
{
    trn_graph *g = lowered(F_NEG F_INC N_PLACEHOLDER("x") CALL(
        "c", "input: 'x' ", "inc", ONE,
        ONE) "node { name: 'd' op: 'neg' input: 'c' device: '/job:ps' } " N_OP1("y", "Neg", "d"));
    assert_null(trn_graph_find(g, "c", 1));
    const trn_gnode *y = node_of(g, "y"), *n = node_of(g, "d/n");
    assert_ptr_equal(input_of(g, y, 0), n);
    assert_string_equal(n->n.device, "/job:ps"); /* the caller's */
    assert_string_equal(input_of(g, n, 0)->n.name, "c/s");
    assert_string_equal(input_of(g, node_of(g, "c/s"), 0)->n.name, "x"); /* nothing to wait for: no Identity between */
    assert_int_equal(g->n, 5);
    trn_graph_free(g);
}

static void calls_wait_and_are_waited_for(void **state)
{
    trn_graph *g = lowered(
        F_EFFECT F_INC
            N_PLACEHOLDER("x") "node { name: 'before' op: 'NoOp' } node { name: 'before2' op: 'NoOp' } " CALL(
                "c", "input: 'x' input: '^before' input: '^before2' ", "effect", ONE, "")
                CALL("i", "input: 'x' input: '^c' ", "inc", ONE, ONE) "node { name: 'after' op: 'NoOp' input: '^i' } ");
    const trn_gnode *before = node_of(g, "before"), *set = node_of(g, "c/set"), *v = node_of(g, "c/v");
    assert_true(reaches(g, before, v) && reaches(g, before, set) && reaches(g, node_of(g, "before2"), v));
    /* the value passes behind the control inputs */
    assert_string_equal(input_of(g, set, 1)->n.op, "Identity");
    assert_null(trn_graph_find(g, "c/dead", 6));
    /* everything of i runs behind c's effect, its constant too */
    assert_true(reaches(g, set, node_of(g, "i/one")) && reaches(g, set, node_of(g, "i/s")));
    assert_true(reaches(g, node_of(g, "i/s"), node_of(g, "after")));
    trn_graph_free(g);
}

static void recursion_stays_a_call(void **state)
{
    trn_graph *g = lowered(FUNC("rec", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"),
                                "node_def { name: 'n' op: 'rec' input: 'a' } " IS("r", "n:r:0"))
                               N_PLACEHOLDER("x") "node { name: 'c' op: 'rec' input: 'x' } " N_OP1("y", "Neg", "c"));
    const trn_gnode *n = node_of(g, "c/n");
    assert_string_equal(n->n.op, "StatefulPartitionedCall");
    assert_string_equal(trn_attr_func(&n->n, "f")->name, "rec");
    assert_ok(trn_graph_check_ops(g));
    trn_graph_free(g);
}

#define ZEROS(n) "tensor { dtype: DT_DOUBLE tensor_shape { dim { size: " n " } } } "
#define F_ZEROS(name, sig, value)                                                                                      \
    FUNC(name, sig RET("r", "DT_DOUBLE"),                                                                              \
         "node_def { name: 'k' op: 'Const' attr { key: 'dtype' value { type: DT_DOUBLE } } "                           \
         "attr { key: 'value' value { " value "} } } " IS("r", "k:output:0"))

/* Every function alone may ask for a GiB of constants, but not all those that are inlined here together. */
static void constants_of_all_bodies_are_bounded(void **state)
{
    trn_graph *g = graph_of(F_ZEROS("some", "", ZEROS("1000")) F_ZEROS("most", "", ZEROS("134217728"))
                                N_PLACEHOLDER("x") "node { name: 'a' op: 'some' } node { name: 'b' op: 'most' input: '^a' }");
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_graph_lower(g), "'most': constants need 1073741824 bytes");
    trn_graph_free(g);
    /* nor through the default of an attr */
    g = graph_of(F_ZEROS("own", "attr { name: 'v' type: 'tensor' default_value { " ZEROS("150000000") "} } ", "placeholder: 'v' ")
                 "node { name: 'a' op: 'own' }");
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_graph_lower(g), "'own', attr v: constants need 1200000000 bytes");
    trn_graph_free(g);
}

static void explosions_are_refused(void **state)
{
    /* 40 functions that call the next one twice */
    trn_sb sb = {0};
    for (int i = 0; i < 40; i++)
        trn_sb_addf(&sb,
                    "library { function { signature { name: 'f%d' input_arg { name: 'a' type: DT_FLOAT } output_arg { "
                    "name: 'r' type: DT_FLOAT } } "
                    "node_def { name: 'x' op: 'f%d' input: 'a' } node_def { name: 'y' op: 'f%d' input: 'x:r:0' } ret { "
                    "key: 'r' value: 'y:r:0' } } } ",
                    i, i + 1, i + 1);
    trn_sb_adds(&sb, FUNC("f40", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"), BODY1("n", "Neg", "a") IS("r", "n:y:0")));
    trn_sb_adds(&sb, N_PLACEHOLDER("x") "node { name: 'c' op: 'f0' input: 'x' }");
    trn_graph *g = graph_of(sb.p);
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_graph_lower(g));
    trn_graph_free(g);
    trn_sb_fini(&sb);
}

/* Few bytes that stand for many: each body and all of lowering have a bound in bytes, not only in nodes. */
static void few_bytes_stand_for_few(void **state)
{
    /* a node with a long name in a function that is called often */
    trn_sb sb = {0};
    char *name = trn_xalloc(1000001);
    memset(name, 'n', 1000000);
    trn_sb_addf(&sb, "library { function { signature { name: 'f' input_arg { name: 'a' type: DT_FLOAT } output_arg { name: 'r' type: DT_FLOAT } } "
                     "node_def { name: '%s' op: 'Neg' input: 'a' attr { key: 'T' value { type: DT_FLOAT } } } ret { key: 'r' value: '%s:y:0' } } } " N_PLACEHOLDER("x"), name, name);
    for (int i = 0; i < 3000; i++)
        trn_sb_addf(&sb, "node { name: 'c%d' op: 'f' input: 'x' } ", i);
    trn_graph *g = graph_of(sb.p);
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_graph_lower(g), "takes more than 1073741824 bytes");
    trn_graph_free(g);
    free(name);

    /* one input that stands for 65536, in 4000 nodes */
    sb.n = 0;
    trn_sb_adds(&sb, "library { function { signature { name: 'g' input_arg { name: 'd' type: DT_INT32 } input_arg { name: 'a' type: DT_FLOAT } } "
                     "node_def { name: 's' op: 'Split' input: 'd' input: 'a' attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'num_split' value { i: 65536 } } } ");
    for (int i = 0; i < 4000; i++)
        trn_sb_addf(&sb, "node_def { name: 'n%d' op: 'AddN' input: 's:output' attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'N' value { i: 65536 } } } ", i);
    trn_sb_adds(&sb, "} } ");
    g = graph_of(sb.p);
    trn_graph *body;
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_funclib_body(&body, g->lib, &(trn_func_ref){.name = "g"}), "'g': its body takes more than");
    trn_graph_free(g);

    /* an attr that is there twice in what it becomes in the next call, and there twice in what it becomes in the next call … */
    sb.n = 0;
    for (int i = 0; i < 40; i++) {
        trn_sb_addf(&sb, "library { function { signature { name: 'h%d' attr { name: 'F' type: 'func' } } node_def { name: 'c' op: 'h%d' attr { key: 'F' value { func { name: 'p' ", i, i + 1);
        for (int k = 0; k < 2; k++)
            trn_sb_addf(&sb, "attr { key: 'F%d' value { list { func { name: 'q' attr { key: 'v' value { placeholder: 'F' } } } func { name: 'q' attr { key: 'v' value { placeholder: 'F' } } } } } } ", k);
        trn_sb_adds(&sb, "} } } } } } ");
    }
    trn_sb_adds(&sb, FUNC("h40", "attr { name: 'F' type: 'func' } ", "") "node { name: 'c' op: 'h0' attr { key: 'F' value { func { name: 'p' } } } }");
    g = graph_of(sb.p);
    assert_fails(TRN_RESOURCE_EXHAUSTED, trn_graph_lower(g), "bytes");
    trn_graph_free(g);

    /* deeper than anybody's stack */
    sb.n = 0;
    for (int i = 0; i < 60; i++)
        trn_sb_addf(&sb, "library { function { signature { name: 'k%d' attr { name: 'F' type: 'func' } } node_def { name: 'c' op: 'k%d' attr { key: 'F' value { func { name: 'p' "
                         "attr { key: 'F' value { func { name: 'q' attr { key: 'v' value { placeholder: 'F' } } } } } } } } } } } ", i, i + 1);
    trn_sb_adds(&sb, FUNC("k60", "attr { name: 'F' type: 'func' } ", "") "node { name: 'c' op: 'k0' attr { key: 'F' value { func { name: 'p' } } } }");
    g = graph_of(sb.p);
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_lower(g), "nests functions deeper than");
    trn_graph_free(g);

    /* results that all have one name */
    sb.n = 0;
    trn_sb_adds(&sb, "library { function { signature { name: 'm' input_arg { name: 'a' type: DT_FLOAT } ");
    for (int i = 0; i < 20000; i++)
        trn_sb_adds(&sb, "output_arg { name: 'r' type: DT_FLOAT } ");
    trn_sb_adds(&sb, "} ret { key: 'r' value: 'a' } } } ");
    g = graph_of(sb.p);
    assert_ok(trn_funclib_body(&body, g->lib, &(trn_func_ref){.name = "m"}));
    assert_int_equal(body->n, 20001);
    assert_true(trn_arena_bytes(body->arena) < 100 << 20);
    trn_graph_free(body);
    trn_graph_free(g);
    trn_sb_fini(&sb);
}

static void colocation_follows(void **state)
{
    trn_graph *g = lowered(FUNC(
        "f", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"),
        BODY1("m", "Neg", "a") "node_def { name: 'n' op: 'Neg' input: 'm:y:0' " T_FLOAT
                               "attr { key: '_class' value { list { s: 'loc:@m' s: 'loc:@a' } } } } " IS("r", "n:y:0"))
                               N_PLACEHOLDER("x") "node { name: 'c' op: 'f' input: 'x' } "
                                                  "node { name: 'y' op: 'Neg' input: 'c' " T_FLOAT
                                                  "attr { key: '_class' value { list { s: 'loc:@c' } } } } ");
    const trn_attr *n = trn_node_attr(&node_of(g, "c/n")->n, "_class"),
                   *y = trn_node_attr(&node_of(g, "y")->n, "_class");
    assert_string_equal(n->list[0].s.p, "loc:@c/m");
    assert_string_equal(n->list[1].s.p, "loc:@x");
    assert_string_equal(y->list[0].s.p, "loc:@c/n");
    trn_graph_free(g);
}

/* ---- control flow --------------------------------------------------------------------------------------------- */

#define N_BOOL(name) "node { name: '" name "' op: 'Placeholder' attr { key: 'dtype' value { type: DT_BOOL } } } "
#define IF(name, more, then, other, ins, outs)                                                                         \
    "node { name: '" name "' op: 'If' " LOWERED "input: 'p' " more FN("then_branch", then) FN("else_branch", other)               \
        TYPES("Tin", ins) TYPES("Tout", outs) "attr { key: 'Tcond' value { type: DT_BOOL } } } "

static void lowers_if(void **state)
{
    trn_graph *g = lowered(F_NEG F_INC N_BOOL("p") N_PLACEHOLDER("x") "node { name: 'before' op: 'NoOp' } " IF(
        "if", "input: 'x' input: '^before' ", "inc", "neg", ONE, ONE)
                               N_OP1("y", "Neg", "if") "node { name: 'after' op: 'NoOp' input: '^if' } ");
    const trn_gnode *m = input_of(g, node_of(g, "y"), 0), *inc = node_of(g, "if/then/s"),
                    *one = node_of(g, "if/then/one"), *neg = node_of(g, "if/else/n");
    assert_string_equal(m->n.op, "Merge");
    assert_int_equal(m->n.n_in, 2);
    assert_true(reaches(g, inc, m) && reaches(g, neg, m));
    /* the constant lives in its branch */
    const trn_gnode *pivot = g->node[one->ctl[0]];
    assert_string_equal(pivot->n.op, "Identity");
    assert_int_equal(pivot->in[0].slot, 1);
    assert_true(reaches(g, node_of(g, "before"), inc) && reaches(g, node_of(g, "before"), neg) &&
                reaches(g, node_of(g, "before"), one));
    const trn_gnode *exec = g->node[node_of(g, "after")->ctl[0]];
    assert_string_equal(exec->n.op, "Merge");
    trn_graph_free(g);
}

static void effects_of_a_branch_come_before_what_waits(void **state)
{
    trn_graph *g = lowered(F_EFFECT FUNC("nothing", ARG("a", "DT_FLOAT"), "") N_BOOL("p") N_PLACEHOLDER("x") IF(
        "if", "input: 'x' ", "effect", "nothing", ONE, "") "node { name: 'after' op: 'NoOp' input: '^if' } ");
    assert_true(reaches(g, node_of(g, "if/then/set"), node_of(g, "after")));
    trn_graph_free(g);
}

static void lowers_case(void **state)
{
    trn_graph *g =
        lowered(F_NEG F_INC
                "node { name: 'i' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } } " N_PLACEHOLDER(
                    "x") "node { name: 'case' op: 'StatelessCase' " LOWERED "input: 'i' input: 'x' attr { key: 'branches' value { "
                         "list { func { name: 'neg' } func { "
                         "name: 'inc' } func { name: 'neg' } } } } " TYPES("Tin", ONE)
                             TYPES("Tout", ONE) "} " N_OP1("y", "Neg", "case"));
    const trn_gnode *m = input_of(g, node_of(g, "y"), 0);
    assert_int_equal(m->n.n_in, 3);
    assert_int_equal(count_op(g, "_SwitchN"), 2);
    assert_int_equal(input_of(g, m, 1)->n.n_in, 2);
    const trn_gnode *third = node_of(g, "case/branch2/n");
    assert_int_equal(third->in[0].slot, 2);
    trn_graph_free(g);
}

#define F_BODY                                                                                                         \
    FUNC("body", ARG("a", "DT_FLOAT") ARG("r", "DT_RESOURCE") RET("oa", "DT_FLOAT") RET("or", "DT_RESOURCE"),          \
         "node_def { name: 'read' op: 'Identity' input: 'r' attr { key: 'T' value { type: DT_RESOURCE } } "            \
         "} " BODY_CONST("one", "1") BODY2("s", "AddV2", "a", "one:output:0") IS("oa", "s:z:0")                        \
             IS("or", "r") "control_ret { key: 'done' value: 'read' } ")
#define F_COND                                                                                                         \
    FUNC("cond", ARG("a", "DT_FLOAT") ARG("r", "DT_RESOURCE") RET("o", "DT_BOOL"),                                     \
         BODY_CONST("ten", "10") BODY2("l", "Less", "a", "ten:output:0") IS("o", "l:z:0"))
#define WHILE                                                                                                          \
    "node { name: 'w' op: 'While' " LOWERED "input: 'x' input: 'r' input: '^before' " FN("cond", "cond") FN("body", "body")       \
        TYPES("T", "type: DT_FLOAT type: DT_RESOURCE") "attr { key: 'parallel_iterations' value { i: 3 } } } "

static void lowers_while(void **state)
{
    trn_graph *g = lowered(F_BODY F_COND N_PLACEHOLDER(
        "x") "node { name: 'before' op: 'NoOp' } "
             "node { name: 'r' op: 'Placeholder' attr { key: 'dtype' value { type: DT_RESOURCE } } } " WHILE N_OP1(
                 "y", "Neg",
                 "w") "node { name: 'z' op: 'Identity' input: 'w:1' attr { key: 'T' value { type: DT_RESOURCE } } } "
                      "node { name: 'after' op: 'NoOp' input: '^w' } ");
    assert_int_equal(count_op(g, "Enter"), 2);
    assert_int_equal(count_op(g, "Merge"), 1); /* the resource does not go round */
    const trn_gnode *exit = input_of(g, node_of(g, "y"), 0), *sw = input_of(g, exit, 0), *merge = input_of(g, sw, 0);
    assert_string_equal(exit->n.op, "Exit");
    assert_int_equal(exit->in[0].slot, 0);
    assert_string_equal(input_of(g, sw, 1)->n.op, "LoopCond");
    const trn_gnode *enter = input_of(g, merge, 0), *next = input_of(g, merge, 1);
    assert_string_equal(trn_attr_str(&enter->n, "frame_name"), "w");
    assert_int_equal(trn_attr_int(&enter->n, "parallel_iterations"), 3);
    assert_true(has_ctl(enter, node_of(g, "before")));
    assert_string_equal(next->n.op, "NextIteration");
    assert_string_equal(input_of(g, next, 0)->n.name, "w/body/s");
    /* an iteration ends behind its effects */
    assert_true(reaches(g, node_of(g, "w/body/read"), next));
    /* the body's constant and the constant resource wait for the condition */
    const trn_gnode *cond = node_of(g, "w/cond/l");
    assert_true(reaches(g, cond, node_of(g, "w/body/one")) && reaches(g, cond, node_of(g, "w/body/read")));
    assert_string_equal(input_of(g, node_of(g, "z"), 0)->n.name, "r");
    assert_true(has_ctl(node_of(g, "after"), exit));
    trn_graph_free(g);
}

static void loops_in_bodies_get_frames_of_their_own(void **state)
{
    /* a v1 loop inside a function that is called twice */
    trn_graph *g = lowered(
        FUNC("f", ARG("a", "DT_FLOAT") RET("r", "DT_FLOAT"),
             "node_def { name: 'e' op: 'Enter' input: 'a' " T_FLOAT
             "attr { key: 'frame_name' value { s: 'fr' } } } " BODY1("x", "Exit", "e:output:0") IS("r", "x:output:0"))
            N_PLACEHOLDER("x") "node { name: 'c' op: 'f' input: 'x' } node { name: 'd' op: 'f' input: 'c' } ");
    assert_string_equal(trn_attr_str(&node_of(g, "c/e")->n, "frame_name"), "c/fr");
    assert_string_equal(trn_attr_str(&node_of(g, "d/e")->n, "frame_name"), "d/fr");
    trn_graph_free(g);
}

static void unknown_ops_outside_are_reported_as_such(void **state)
{
    /* their types come from those who use them, so that trn_graph_check_ops can name them afterwards */
    trn_graph *g = lowered(F_INC F_NEG F_LESS N_BOOL(
        "p") "node { name: 'u' op: 'NobodyHasThis' } node { name: 'b' op: 'NoOp' } "
             "node { name: 'w' op: 'While' " LOWERED "input: 'u' " FN("cond", "less") FN("body", "inc")
                               TYPES("T", ONE) "} " IF("if", "input: 'u:1' input: '^b' ", "inc", "neg", ONE, ONE)
                                   CALL("c", "input: 'u' input: '^b' ", "inc", ONE, ONE));
    assert_fails(TRN_UNIMPLEMENTED, trn_graph_check_ops(g), "NobodyHasThis");
    trn_graph_free(g);
}

static void without_the_attr_it_stays_one_node(void **state)
{
    trn_graph *g = graph_of(F_LESS F_NEG N_PLACEHOLDER("x") "node { name: 'w' op: 'While' input: 'x' " FN("cond", "less") FN("body", "neg") TYPES("T", ONE) "} ");
    assert_null(trn_graph_lower(g));
    assert_non_null(trn_graph_find(g, "w", 1));
    for (int i = 0; i < g->n; i++)
        assert_false(g->node[i] && strcmp(g->node[i]->n.op, "Switch") == 0);
    trn_graph_free(g);
}

static void mismatches_are_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {F_NEG N_PLACEHOLDER("x") CALL("c", "input: 'x' input: 'x' ", "neg", ONE " " ONE, ONE), "takes 1 arguments"},
        {F_NEG N_PLACEHOLDER("x") CALL("c", "input: 'x' ", "neg", ONE, ONE " " ONE), "returns 1"},
        {F_NEG N_PLACEHOLDER("x") CALL("c", "input: 'x' ", "neg", ONE, "type: DT_INT32"), "returns float"},
        {F_LESS N_BOOL("x") CALL("c", "input: 'x' ", "less", "type: DT_BOOL", "type: DT_BOOL"),
         "is float, but gets bool"},
        {F_LESS F_NEG N_PLACEHOLDER("x") "node { name: 'w' op: 'While' " LOWERED "input: 'x' " FN("cond", "less")
             FN("body", "less") TYPES("T", ONE) "} ",
         "function 'less' returns bool"},
        {F_LESS F_NEG N_PLACEHOLDER("x") "node { name: 'w' op: 'While' " LOWERED "" FN("cond", "less") FN("body", "neg")
             TYPES("T", "") "} ",
         "no loop variables"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_graph *g = graph_of(bad[i].text);
        trn_err err = trn_graph_lower(g);
        if (!err || trn_err_code(err) != TRN_INVALID_ARGUMENT || !strstr(trn_err_msg(err), bad[i].says))
            fail_msg("case %zu: %s, not '%s'", i, err ? trn_err_msg(err) : "no error", bad[i].says);
        trn_err_free(err);
        trn_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_functions),
        cmocka_unit_test(same_functions_in_other_map_order),
        cmocka_unit_test(calls_by_name_take_types_from_the_signature),
        cmocka_unit_test(bodies_of_generic_functions),
        cmocka_unit_test(control_outputs_meet_in_one_node),
        cmocka_unit_test(bad_bodies),
        cmocka_unit_test(inlines_calls),
        cmocka_unit_test(calls_wait_and_are_waited_for),
        cmocka_unit_test(recursion_stays_a_call),
        cmocka_unit_test(constants_of_all_bodies_are_bounded),
        cmocka_unit_test(explosions_are_refused),
        cmocka_unit_test(few_bytes_stand_for_few),
        cmocka_unit_test(colocation_follows),
        cmocka_unit_test(lowers_if),
        cmocka_unit_test(effects_of_a_branch_come_before_what_waits),
        cmocka_unit_test(lowers_case),
        cmocka_unit_test(lowers_while),
        cmocka_unit_test(loops_in_bodies_get_frames_of_their_own),
        cmocka_unit_test(unknown_ops_outside_are_reported_as_such),
        cmocka_unit_test(without_the_attr_it_stays_one_node),
        cmocka_unit_test(mismatches_are_refused),
    };
    return cmocka_run_group_tests(tests, graph_util_setup, NULL);
}
