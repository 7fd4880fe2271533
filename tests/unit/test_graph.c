#include "graph_util.h"
#include "graph/graph_priv.h"
#include "proto/pb.h"
#include "tensor/tensor.h"

#include <time.h>

#define ADD_GRAPH N_PLACEHOLDER("x") N_CONST("c", "2") N_OP2("y", "AddV2", "x", "c:0") N_OP1("z", "Neg", "y")

/* ---- import --------------------------------------------------------------------------------------------------- */

static void imports_edges_types_and_defaults(void **state)
{
    trn_graph *g = graph_of(ADD_GRAPH "node { name: 'n' op: 'NoOp' input: '^y' input: '^z' input: '^y' } "
                                      "versions { producer: 1286 min_consumer: 12 }");
    assert_int_equal(g->n, 5);
    const trn_gnode *y = node_of(g, "y"), *n = node_of(g, "n");
    assert_string_equal(input_of(g, y, 0)->n.name, "x");
    assert_string_equal(input_of(g, y, 1)->n.name, "c");
    assert_int_equal(y->n.out_types[0], TRN_FLOAT);
    assert_int_equal(n->n_ctl, 2); /* the double is gone */
    assert_true(has_ctl(n, y) && has_ctl(n, node_of(g, "z")));
    assert_int_equal(trn_attr_shape(&node_of(g, "x")->n, "shape")->rank, -1);
    assert_float_equal(TRN_DATA(trn_attr_tensor(&node_of(g, "c")->n, "value"), float)[0], 2, 0);
    assert_int_equal(g->producer, 1286);
    trn_graph_free(g);
}

static void extends_all_or_nothing(void **state)
{
    trn_graph *g = graph_of(ADD_GRAPH);
    assert_ok(import_text(g, N_OP2("w", "AddV2", "z", "x")));
    assert_string_equal(input_of(g, node_of(g, "w"), 0)->n.name, "z");
    int n = g->n;
    assert_fails(TRN_INVALID_ARGUMENT, import_text(g, N_OP1("ok", "Neg", "z") N_OP1("bad", "Neg", "nowhere")),
                 "Unknown input node 'nowhere'");
    assert_int_equal(g->n, n);
    assert_null(trn_graph_find(g, "ok", 2));
    assert_fails(TRN_INVALID_ARGUMENT, import_text(g, N_OP1("ok", "Neg", "z") N_CONST("c", "1")), "'c' is not unique");
    assert_null(trn_graph_find(g, "ok", 2));
    assert_ok(import_text(g, N_OP1("ok", "Neg", "z")));
    trn_graph_free(g);
}

static void refuses_bad_graphs(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {N_CONST("a", "1") N_CONST("a", "1"), "'a' is not unique"},
        {N_OP1("a", "Neg", "a"), "cycle"},
        {N_OP1("a", "Neg", "b") N_OP1("b", "Neg", "a"), "cycle"},
        {"node { name: 'a' op: 'NoOp' input: '^b' } node { name: 'b' op: 'NoOp' input: '^a' }", "cycle"},
        {N_CONST("a", "1") N_OP1("b", "Neg", "a:1"),
         "Connecting to invalid output 1 of source node a which has 1 outputs"},
        {N_CONST("a", "1") N_OP1("b", "Neg", "a:99999999999"), "not the name of a tensor"},
        {N_CONST("a", "1") "node { name: 'b' op: 'NoOp' input: 'a' }", "inputs"},
        {N_CONST("a", "1") "node { name: 'b' op: 'Neg' " T_FLOAT "}", "inputs"},
        {N_CONST("a", "1") N_OP2("b", "Neg", "^a", "a"), "Control dependencies must come after"},
        {N_CONST("a", "1") "node { name: 'b' op: 'Neg' input: 'a' attr { key: 'T' value { type: DT_INT32 } } }",
         "Input 0 of node b was passed float from a:0 incompatible with expected int32"},
        {N_CONST("a", "1") "node { name: 'b' op: 'Assign' input: 'a' input: 'a' " T_FLOAT "}",
         "incompatible with expected float_ref"},
        {"node { name: '' op: 'NoOp' }", "invalid characters"},
        {"node { name: '^x' op: 'NoOp' }", "invalid characters"},
        {"node { name: 'a b' op: 'NoOp' }", "invalid characters"},
        {"node { name: 'a:0' op: 'NoOp' }", "invalid characters"},
        {"node { name: '\\377' op: 'NoOp' }", "invalid characters"},
        {"node { name: 'a' }", "does not specify an operation"},
        {N_CONST("a", "1") "node { name: 'b' op: 'Neg' input: 'a' }", "'T'"},
        {N_CONST("a", "1") "node { name: 'b' op: 'AddN' input: 'a' " T_FLOAT
                           "attr { key: 'N' value { i: 2000000000 } } }",
         "inputs"},
        {N_CONST("a", "1") "node { name: 'b' op: 'AddN' input: 'a' " T_FLOAT "attr { key: 'N' value { i: -1 } } }",
         "inputs"},
        {"node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'value' value { "
         "tensor { dtype: DT_FLOAT "
         "tensor_shape { dim { size: 4 } } tensor_content: 'abc' } } } }",
         "has 3 bytes"},
        {"node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'value' value { "
         "tensor { dtype: DT_FLOAT "
         "tensor_shape { dim { size: -1 } } } } } }",
         "not fully defined"},
        {"node { name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: 77 } } }", "unknown dtype 77"},
        {"node { name: 'a' op: 'Placeholder' attr { key: 'dtype' } }", "no value"},
    };
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_err err = import_text(g, bad[i].text);
        if (!err || trn_err_code(err) != TRN_INVALID_ARGUMENT || !strstr(trn_err_msg(err), bad[i].says))
            fail_msg("case %zu: %s, not '%s'", i, err ? trn_err_msg(err) : "no error", bad[i].says);
        trn_err_free(err);
        assert_int_equal(g->n, 0);
        trn_graph_free(g);
    }
}

/* What came in a few bytes goes to the next task in a few bytes. */
static void exports_fills_as_fills(void **state)
{
    trn_graph *g = graph_of("node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_DOUBLE } } attr { key: 'value' "
                            "value { tensor { dtype: DT_DOUBLE tensor_shape { dim { size: 1000000 } } double_val: 3 double_val: "
                            "1 } } } }");
    trn_arena *a = trn_arena_new();
    size_t n;
    Tensorflow__GraphDef *gd = trn_graph_export(a, g);
    (void)trn_pb_pack_arena(a, &n, &gd->base);
    assert_true(n < 200);
    trn_graph *h = trn_graph_new(NULL);
    assert_ok(trn_graph_import(h, gd));
    const trn_tensor *t = trn_attr_tensor(&node_of(h, "a")->n, "value");
    assert_int_equal(t->count, 1000000);
    assert_true(TRN_DATA(t, double)[0] == 3 && TRN_DATA(t, double)[1] == 1 && TRN_DATA(t, double)[999999] == 1);
    trn_graph_free(h);
    trn_arena_free(a);
    trn_graph_free(g);
}

static void large_constants_where_there_is_memory(void **state)
{
    assert_true(trn_memory_bytes() > 0);
    assert_true(trn_graph__max_growth() == UINT64_C(1) << 30);
    trn_graph_allow_growth(1 << 20); /* never less */
    assert_true(trn_graph__max_growth() == UINT64_C(1) << 30);
    trn_graph_allow_growth(UINT64_C(3) << 30);
    assert_true(trn_graph__max_growth() == UINT64_C(3) << 30);
}

static void refuses_absurd_sizes(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    /* 8 TiB of zeros from 40 bytes */
    assert_fails(TRN_RESOURCE_EXHAUSTED,
                 import_text(g, "node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_DOUBLE } } attr { "
                                "key: 'value' value { tensor { "
                                "dtype: DT_DOUBLE tensor_shape { dim { size: 1099511627776 } } double_val: 1 } } } }"),
                 "MiB");
    /* half a billion outputs */
    assert_fails(
        TRN_RESOURCE_EXHAUSTED,
        import_text(
            g, N_CONST("a", "1") "node { name: 'd' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } } "
                                 "node { name: 's' op: 'Split' input: 'd' input: 'a' " T_FLOAT
                                 "attr { key: 'num_split' value { i: 500000000 } } }"),
        "outputs");
    trn_graph_free(g);
}

static void takes_odd_but_legal_graphs(void **state)
{
    /* forward references, names with '>' and '/', a ref into a plain input, an empty AttrValue behind '_' */
    trn_graph *g = graph_of(N_OP1("b", "Neg", "a/x>y.z-1") N_CONST(
        "a/x>y.z-1", "1") "node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } attr { "
                          "key: 'shape' value { shape "
                          "{} } } } " N_OP1("r", "Identity",
                                            "v") "node { name: 'w' op: 'Assign' input: 'v' input: 'b' " T_FLOAT
                                                 "attr { key: '_class' value { list { s: 'loc:@v' } "
                                                 "} } attr { key: '_x' value { } } }");
    assert_int_equal(node_of(g, "v")->n.out_types[0], TRN_FLOAT + TRN_REF);
    assert_int_equal(trn_node_attr(&node_of(g, "w")->n, "_class")->n, 1);
    /* an attr that is there twice: the last one counts, as in protobuf's maps */
    assert_ok(import_text(g, "node { name: 'p' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } attr { "
                             "key: 'dtype' value { type: "
                             "DT_INT32 } } }"));
    assert_int_equal(node_of(g, "p")->n.out_types[0], TRN_INT32);
    assert_int_equal(node_of(g, "p")->n.n_attrs, 2);
    trn_graph_free(g);
}

#define LOOP                                                                                                           \
    N_CONST("zero", "0")                                                                                               \
    "node { name: 'enter' op: 'Enter' input: 'zero' " T_FLOAT "attr { key: 'frame_name' value { s: 'f' } } } "         \
    "node { name: 'merge' op: 'Merge' input: 'enter' input: 'next' " T_FLOAT "attr { key: 'N' value { i: 2 } } } "     \
    "node { name: 'ten' op: 'Const' input: '^merge' attr { key: 'dtype' value { type: DT_FLOAT } } "                   \
    "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 10 } } } } "                      \
    "node { name: 'less' op: 'Less' input: 'merge' input: 'ten' " T_FLOAT "} "                                         \
    "node { name: 'cond' op: 'LoopCond' input: 'less' } "                                                              \
    "node { name: 'switch' op: 'Switch' input: 'merge' input: 'cond' " T_FLOAT "} " N_OP1("neg", "Neg", "switch:1")    \
        N_OP1("next", "NextIteration", "neg") N_OP1("exit", "Exit", "switch")

static void takes_loops(void **state)
{
    trn_graph *g = graph_of(LOOP);
    int order[16], pos[16] = {0};
    assert_int_equal(trn_graph_topo(g, order), g->n);
    for (int i = 0; i < g->n; i++)
        pos[order[i]] = i;
    assert_true(pos[node_of(g, "merge")->id] < pos[node_of(g, "next")->id]);
    assert_true(pos[node_of(g, "enter")->id] < pos[node_of(g, "merge")->id]);
    trn_graph_free(g);
}

static void keeps_unknown_ops_until_needed(void **state)
{
    trn_graph *g = graph_of(
        ADD_GRAPH
        "node { name: 'u' op: 'NobodyHasThis' input: 'x' attr { key: 'k' value { i: 1 } } } " N_OP1("v", "Neg", "u:3"));
    assert_int_equal(node_of(g, "u")->n.n_out, 4);
    assert_fails(TRN_UNIMPLEMENTED, trn_graph_check_ops(g), "NobodyHasThis");
    const char *z[] = {"z:0"}, *v[] = {"v"}, *u[] = {"u:3"};
    trn_graph *p;
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = z}, ""));
    assert_ok(trn_graph_check_ops(p));
    trn_graph_free(p);
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = v}, ""));
    assert_fails(TRN_UNIMPLEMENTED, trn_graph_check_ops(p), "'v'");
    trn_graph_free(p);
    /* fed: its user says what it is */
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = v, .n_feeds = 1, .feeds = u}, ""));
    assert_ok(trn_graph_check_ops(p));
    assert_int_equal(p->n, 3);
    trn_graph_free(p);
    /* an op of ours with a dtype that its kernel lacks */
    trn_graph *h = graph_of("node { name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: DT_STRING } } } "
                            "node { name: 'b' op: 'Neg' input: 'a' attr { key: 'T' value { type: DT_STRING } } }");
    trn_err err = trn_graph_check_ops(h);
    assert_int_equal(trn_err_code(err), TRN_UNIMPLEMENTED);
    trn_err_free(err);
    trn_graph_free(h);
    trn_graph_free(g);
}

static void is_linear(void **state)
{
    /* a fan-in of 100,000 control edges, a chain of 100,000 nodes, one node with 1,000 attrs */
    enum { N = 100000 };
    trn_sb sb = {0};
    trn_sb_adds(&sb, N_CONST("n0", "1"));
    for (int i = 1; i < N; i++)
        trn_sb_addf(&sb, "node { name: 'n%d' op: 'Neg' input: 'n%d' " T_FLOAT "}\n", i, i - 1);
    trn_sb_adds(&sb, "node { name: 'all' op: 'NoOp'");
    for (int i = 0; i < N; i++)
        trn_sb_addf(&sb, " input: '^n%d'", i);
    for (int i = 0; i < 1000; i++)
        trn_sb_addf(&sb, " attr { key: '_a%d' value { i: %d } }", i, i);
    trn_sb_adds(&sb, "}");
    trn_graph *g = trn_graph_new(NULL);
    clock_t t = clock();
    assert_ok(import_text(g, sb.p));
    const char *all[] = {"all"};
    trn_graph *p;
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_targets = 1, .targets = all}, ""));
    assert_int_equal(p->n, N + 1);
    int *order = trn_xalloc(sizeof *order * (N + 1));
    assert_int_equal(trn_graph_topo(p, order), N + 1);
    assert_true(clock() - t < 10 * CLOCKS_PER_SEC);
    free(order);
    trn_graph_free(p);
    trn_graph_free(g);
    trn_sb_fini(&sb);
}

/* ---- names ---------------------------------------------------------------------------------------------------- */

static void parses_tensor_names(void **state)
{
    trn_graph *g = graph_of(ADD_GRAPH "node { name: 'q' op: 'NoOp' }");
    trn_edge e;
    assert_ok(trn_graph_tensor(&e, g, "y"));
    assert_true(e.node == node_of(g, "y")->id && e.slot == 0);
    assert_ok(trn_graph_tensor(&e, g, "y:0"));
    assert_int_equal(e.slot, 0);
    assert_ok(trn_graph_tensor(&e, g, "^y"));
    assert_int_equal(e.slot, -1);
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_tensor(&e, g, "y:1"), "y:1");
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_tensor(&e, g, "q:0"), "q");
    static const char *const missing[] = {"",     ":",     ":0",    "^",   "y:",        "nope",
                                          "y:-1", "y:0:0", "y:0x0", "^^y", "\xff\xfe:3"};
    for (size_t i = 0; i < TRN_COUNTOF(missing); i++)
        assert_fails(TRN_NOT_FOUND, trn_graph_tensor(&e, g, missing[i]));
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_tensor(&e, g, "y:4294967296"));
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_tensor(&e, g, NULL));
    trn_graph_free(g);
}

/* ---- building, copying, removing ------------------------------------------------------------------------------ */

static void builds_copies_and_compacts(void **state)
{
    trn_graph *g = graph_of(ADD_GRAPH);
    trn_attr t = {.name = "T", .kind = TRN_ATTR_TYPE, .v.type = TRN_FLOAT};
    trn_edge in = {node_of(g, "z")->id, 0};
    trn_gnode *w;
    assert_ok(trn_graph_add(&w, g, "Neg", "w", "/job:ps", &t, 1, &in, 1));
    trn_graph_add_ctl(g, w, node_of(g, "x")->id);
    trn_graph_add_ctl(g, w, node_of(g, "x")->id);
    assert_int_equal(w->n_ctl, 1);
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_add(NULL, g, "Neg", "w", "", &t, 1, &in, 1), "not unique");
    assert_string_not_equal(trn_graph_unique_name(g, "w"), "w");
    assert_string_equal(trn_graph_unique_name(g, "new"), "new");

    bool keep[] = {true, true, true, true, true};
    trn_graph *c = trn_graph_copy(g, keep);
    trn_graph_free(g); /* the copy lives on */
    assert_int_equal(c->n, 5);
    trn_gnode *cw = node_of(c, "w");
    assert_string_equal(input_of(c, cw, 0)->n.name, "z");
    assert_string_equal(cw->n.device, "/job:ps");
    assert_true(has_ctl(cw, node_of(c, "x")));
    assert_float_equal(TRN_DATA(trn_attr_tensor(&node_of(c, "c")->n, "value"), float)[0], 2, 0);

    /* z goes: w takes y, and x's number stays right after compaction */
    int z = node_of(c, "z")->id;
    cw->in[0] = (trn_edge){node_of(c, "y")->id, 0};
    trn_graph_remove(c, z);
    assert_null(trn_graph_find(c, "z", 1));
    trn_graph_compact(c);
    assert_int_equal(c->n, 4);
    for (int i = 0; i < c->n; i++)
        assert_int_equal(c->node[i]->id, i);
    assert_string_equal(input_of(c, node_of(c, "w"), 0)->n.name, "y");
    assert_true(has_ctl(node_of(c, "w"), node_of(c, "x")));
    trn_graph_free(c);
}

/* ---- export --------------------------------------------------------------------------------------------------- */

static void exports_what_it_imported(void **state)
{
    trn_graph *g = graph_of(
        LOOP ADD_GRAPH
        "node { name: 'o' op: 'Odd' input: 'x' input: '^y' device: '/job:w/task:1' "
        "attr { key: 's' value { s: 'a\\000b' } } attr { key: 'l' value { list { i: [1, -2] } } } attr { key: 'e' "
        "value { list {} } } "
        "attr { key: 'f' value { func { name: 'F' attr { key: 'T' value { type: DT_INT8 } } } } } "
        "attr { key: 'sh' value { list { shape { dim { size: -1 } dim { size: 3 } } shape { unknown_rank: true } } } } "
        "attr { key: 'b' value { list { b: true b: false } } } attr { key: 'fl' value { f: 0.5 } } "
        "attr { key: 't' value { tensor { dtype: DT_STRING tensor_shape { dim { size: 2 } } string_val: 'x' "
        "string_val: 'yy' } } } "
        "attr { key: 'p' value { placeholder: 'Q' } } } versions { producer: 1645 }");
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = trn_graph_export(a, g);
    assert_int_equal(gd->n_node, g->n);
    trn_graph *h = trn_graph_new(NULL);
    assert_ok(trn_graph_import(h, gd));
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *x = g->node[i], *y = h->node[i];
        assert_string_equal(x->n.name, y->n.name);
        assert_string_equal(x->n.op, y->n.op);
        assert_string_equal(x->n.device, y->n.device);
        assert_int_equal(x->n.n_in, y->n.n_in);
        assert_int_equal(x->n_ctl, y->n_ctl);
        assert_int_equal(x->n.n_attrs, y->n.n_attrs);
        if (x->n.n_in)
            assert_memory_equal(x->in, y->in, (size_t)x->n.n_in * sizeof *x->in);
    }
    const trn_node *o = &node_of(h, "o")->n;
    assert_int_equal(trn_node_attr(o, "s")->v.s.n, 3);
    assert_memory_equal(trn_node_attr(o, "s")->v.s.p, "a\0b", 3);
    assert_int_equal(trn_node_attr(o, "l")->list[1].i, -2);
    assert_int_equal(trn_node_attr(o, "e")->n, 0);
    assert_int_equal(trn_attr_func(o, "f")->attrs[0].v.type, TRN_INT8);
    assert_int_equal(trn_node_attr(o, "sh")->list[0].shape->dim[1], 3);
    assert_int_equal(trn_node_attr(o, "sh")->list[1].shape->rank, -1);
    assert_true(trn_node_attr(o, "b")->list[0].b && !trn_node_attr(o, "b")->list[1].b);
    size_t n;
    assert_memory_equal(trn_tensor_str_at(trn_attr_tensor(o, "t"), 1, &n), "yy", 2);
    assert_int_equal(trn_node_attr(o, "p")->kind, TRN_ATTR_PLACEHOLDER);
    /* defaults stay at home */
    for (size_t i = 0; i < gd->n_node; i++)
        if (strcmp(gd->node[i]->name, "x") == 0)
            assert_int_equal(gd->node[i]->n_attr, 1);
    trn_graph_free(h);
    trn_arena_free(a);
    trn_graph_free(g);
}

static bool has_attr(const Tensorflow__NodeDef *nd, const char *name)
{
    for (size_t i = 0; i < nd->n_attr; i++)
        if (strcmp(nd->attr[i]->key, name) == 0)
            return true;
    return false;
}

/* TensorFlow 1 wants its defaults spelled out, but not the attrs that came after it. */
static void exports_defaults_for_tensorflow_1(void **state)
{
    static const struct {
        const char *version;
        bool old;
    } c[] = {{"134", true}, {"135", false}, {"0", false}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char text[500];
        snprintf(text, sizeof text,
            "node { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } } "
            "attr { key: 'shape' value { shape { } } } } versions { producer: %s }",
            c[i].version);
        trn_graph *g = graph_of(text);
        trn_arena *a = trn_arena_new();
        const Tensorflow__NodeDef *nd = trn_graph_export(a, g)->node[0];
        assert_true(has_attr(nd, "dtype") && has_attr(nd, "shape"));
        assert_int_equal(has_attr(nd, "container"), c[i].old);
        assert_int_equal(has_attr(nd, "shared_name"), c[i].old);
        assert_false(has_attr(nd, "allowed_devices") || has_attr(nd, "debug_name"));
        trn_arena_free(a);
        trn_graph_free(g);
    }
}

/* ---- prune ---------------------------------------------------------------------------------------------------- */

#define SPLIT_GRAPH                                                                                                    \
    N_PLACEHOLDER("x")                                                                                                 \
    N_PLACEHOLDER("unused") "node { name: 'd' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } } "     \
                            "node { name: 's' op: 'Split' input: 'd' input: 'x' " T_FLOAT                              \
                            "attr { key: 'num_split' value { i: 2 } } } " N_OP2(                                       \
                                "sum", "AddV2", "s",                                                                   \
                                "s:1") "node { name: 'side' op: 'NoOp' input: '^x' } "                                 \
                                       "node { name: 'out' op: 'Neg' input: 'sum' input: '^side' " T_FLOAT "} "

static trn_graph *pruned(const trn_graph *g, const char *feed0, const char *feed1, const char *fetch,
                         const char *target)
{
    const char *feeds[2] = {feed0, feed1};
    trn_run_sig sig = {.n_feeds = feed1   ? 2
                                  : feed0 ? 1
                                          : 0,
                       .feeds = feeds,
                       .n_fetches = fetch != NULL,
                       .fetches = &fetch,
                       .n_targets = target != NULL,
                       .targets = &target};
    trn_graph *p;
    assert_ok(trn_graph_prune(&p, g, &sig, "/job:m/task:0"));
    return p;
}

/* As many feeds as a node has outputs, as a node waits for, and of ops that nobody knows: time goes with their number, not with its square. */
static void many_feeds(void **state)
{
    enum { N = 50000 };
    trn_sb sb = {0};
    trn_sb_adds(&sb, N_PLACEHOLDER("x") "node { name: 'd' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } } "
                     "node { name: 's' op: 'Split' input: 'd' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'num_split' value { i: 50000 } } } ");
    for (int i = 0; i < N; i++)
        trn_sb_addf(&sb, "node { name: 'p%d' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } } node { name: 'u%d' op: 'Unheard' } "
                         "node { name: 'v%d' op: 'Neg' input: 'u%d' " T_FLOAT "} ", i, i, i, i);
    trn_sb_adds(&sb, "node { name: 'sum' op: 'AddN' attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'N' value { i: 50000 } } ");
    for (int i = 0; i < N; i++)
        trn_sb_addf(&sb, "input: 's:%d' ", i);
    for (int i = 0; i < N; i++)
        trn_sb_addf(&sb, "input: '^p%d' ", i);
    trn_sb_adds(&sb, "} ");
    trn_graph *g = graph_of(sb.p), *p;
    const char **feed = trn_xalloc(3 * N * sizeof *feed), **fetch = trn_xalloc((N + 1) * sizeof *fetch);
    for (int i = 0; i < N; i++) {
        feed[i] = trn_xasprintf("s:%d", i);
        feed[N + i] = trn_xasprintf("p%d", i);
        feed[2 * N + i] = fetch[i] = trn_xasprintf("u%d", i);
    }
    fetch[N] = "sum";
    uint64_t start = trn_now_ns();
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_feeds = 3 * N, .feeds = feed, .n_fetches = N + 1, .fetches = fetch}, ""));
    assert_true(trn_now_ns() - start < 4000000000u);
    const trn_gnode *sum = trn_graph_find(p, "sum", 3);
    assert_int_equal(sum->n_ctl, N);
    assert_string_equal(p->node[sum->in[N - 1].node]->n.op, "_Arg");
    assert_string_equal(p->node[sum->ctl[N - 1]]->n.op, "_Arg");
    assert_null(trn_graph_find(p, "p7", 2));
    assert_null(trn_graph_find(p, "s", 1));
    for (int i = 0; i < 3 * N; i++)
        free((char *)feed[i]);
    free(feed);
    free(fetch);
    trn_graph_free(p);
    trn_graph_free(g);
    trn_sb_fini(&sb);
}

static void prunes_to_what_is_needed(void **state)
{
    trn_graph *g = graph_of(SPLIT_GRAPH);
    trn_graph *p = pruned(g, "x:0", "d", "out:0", NULL);
    /* placeholders are gone, also behind the control edge */
    assert_null(trn_graph_find(p, "x", 1));
    assert_null(trn_graph_find(p, "unused", 6));
    const trn_gnode *s = node_of(p, "s");
    assert_string_equal(input_of(p, s, 1)->n.op, "_Arg");
    assert_int_equal(trn_attr_int(&input_of(p, s, 1)->n, "index"), 0);
    assert_int_equal(trn_attr_int(&input_of(p, s, 0)->n, "index"), 1);
    assert_int_equal(trn_attr_type(&input_of(p, s, 0)->n, "T"), TRN_INT32);
    assert_string_equal(input_of(p, s, 1)->n.device, "/job:m/task:0");
    assert_true(has_ctl(node_of(p, "side"), input_of(p, s, 1)));
    assert_int_equal(count_op(p, "_Retval"), 1);
    trn_graph_free(p);

    /* one output of a node is fed, the other is still computed */
    p = pruned(g, "s:1", NULL, "sum", NULL);
    assert_string_equal(input_of(p, node_of(p, "sum"), 0)->n.name, "s");
    assert_string_equal(input_of(p, node_of(p, "sum"), 1)->n.op, "_Arg");
    assert_non_null(trn_graph_find(p, "x", 1)); /* needed, not fed: its kernel complains */
    trn_graph_free(p);

    /* both are fed: the node goes */
    p = pruned(g, "s:1", "s:0", "sum", NULL);
    assert_null(trn_graph_find(p, "s", 1));
    assert_int_equal(p->n, 4);
    trn_graph_free(p);

    /* a feed that nothing needs makes no node */
    p = pruned(g, "unused", "x", NULL, "side");
    assert_int_equal(count_op(p, "_Arg"), 1);
    assert_int_equal(p->n, 2);
    trn_graph_free(p);

    /* a fed tensor is fetched */
    p = pruned(g, "sum:0", NULL, "sum:0", NULL);
    assert_int_equal(p->n, 2);
    trn_graph_free(p);
    trn_graph_free(g);
}

static void prunes_loops_whole(void **state)
{
    trn_graph *g = graph_of(LOOP N_CONST("other", "1"));
    trn_graph *p = pruned(g, NULL, NULL, "exit", NULL);
    assert_int_equal(p->n, g->n);
    assert_string_equal(input_of(p, node_of(p, "merge"), 1)->n.name, "next");
    trn_graph_free(p);
    trn_graph_free(g);
}

static void prune_errors_are_tensorflows(void **state)
{
    trn_graph *g = graph_of(
        SPLIT_GRAPH
        "node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value "
        "{ shape {} } } } node { name: 'as' op: 'Assign' input: 'v' input: 'x' " T_FLOAT "}");
    trn_graph *p;
    const char *out[] = {"out", "out:0"}, *nope[] = {"nope:0"}, *far[] = {"x:1"}, *side[] = {"side"},
               *twice[] = {"x", "x:0"}, *v[] = {"v:0", "x"}, *as[] = {"as"};
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &(trn_run_sig){0}, ""), "at least one target");
    assert_fails(TRN_NOT_FOUND, trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = nope}, ""), "nope");
    assert_fails(TRN_NOT_FOUND, trn_graph_prune(&p, g, &(trn_run_sig){.n_targets = 1, .targets = nope}, ""), "nope");
    assert_fails(
        TRN_NOT_FOUND,
        trn_graph_prune(&p, g, &(trn_run_sig){.n_targets = 1, .targets = out, .n_feeds = 1, .feeds = nope}, ""),
        "nope");
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = far}, ""),
                 "x:1");
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = side}, ""),
                 "produces no output");
    assert_fails(
        TRN_INVALID_ARGUMENT,
        trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = out, .n_feeds = 2, .feeds = twice}, ""),
        "fed more than once");
    assert_fails(TRN_INVALID_ARGUMENT,
                 trn_graph_prune(&p, g, &(trn_run_sig){.n_targets = 1, .targets = as, .n_feeds = 2, .feeds = v}, ""),
                 "reference");
    /* the same fetch twice is fine */
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 2, .fetches = out}, ""));
    assert_int_equal(count_op(p, "_Retval"), 2);
    trn_graph_free(p);
    /* a reference is fetched as its value */
    assert_ok(trn_graph_prune(&p, g, &(trn_run_sig){.n_fetches = 1, .fetches = v}, ""));
    assert_int_equal(trn_attr_type(&p->node[1]->n, "T"), TRN_FLOAT);
    trn_graph_free(p);
    trn_graph_free(g);
}

/* A tensor that stands in for another one: its own inputs are kept, those of the other are not. */
static void prunes_with_joins(void **state)
{
    trn_graph *g = graph_of(N_PLACEHOLDER("x") N_PLACEHOLDER("y") N_OP2("twice", "AddV2", "x", "x") N_OP2("sum", "AddV2", "y", "y"));
    const char *const fetch[] = {"sum:0"}, *const from[] = {"twice:0"}, *const to[] = {"y:0"}, *const feed[] = {"x:0"};
    trn_run_sig sig = {.n_fetches = 1, .fetches = fetch, .n_joins = 1, .join_from = from, .join_to = to, .n_feeds = 1, .feeds = feed};
    trn_graph *p;
    assert_ok(trn_graph_prune(&p, g, &sig, ""));
    assert_null(trn_graph_find(p, "y", 1));
    const trn_gnode *sum = node_of(p, "sum"), *twice = node_of(p, "twice");
    assert_int_equal(sum->in[0].node, twice->id);
    assert_int_equal(sum->in[1].node, twice->id);
    assert_string_equal(p->node[twice->in[0].node]->n.op, "_Arg");
    trn_graph_free(p);
    sig.join_from = fetch;
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &sig, ""), "cycle");
    sig.join_from = (const char *const[]){"nope:0"};
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &sig, ""), "unknown node");
    sig.join_from = (const char *const[]){"twice:1"};
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &sig, ""), "unknown edge");
    sig.join_from = from;
    sig.join_to = feed;
    assert_fails(TRN_INVALID_ARGUMENT, trn_graph_prune(&p, g, &sig, ""), "fed more than once");
    trn_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(imports_edges_types_and_defaults),
        cmocka_unit_test(extends_all_or_nothing),
        cmocka_unit_test(refuses_bad_graphs),
        cmocka_unit_test(exports_fills_as_fills),
        cmocka_unit_test(refuses_absurd_sizes),
        cmocka_unit_test(large_constants_where_there_is_memory),
        cmocka_unit_test(takes_odd_but_legal_graphs),
        cmocka_unit_test(takes_loops),
        cmocka_unit_test(keeps_unknown_ops_until_needed),
        cmocka_unit_test(is_linear),
        cmocka_unit_test(parses_tensor_names),
        cmocka_unit_test(builds_copies_and_compacts),
        cmocka_unit_test(prunes_with_joins),
        cmocka_unit_test(exports_what_it_imported),
        cmocka_unit_test(exports_defaults_for_tensorflow_1),
        cmocka_unit_test(prunes_to_what_is_needed),
        cmocka_unit_test(many_feeds),
        cmocka_unit_test(prunes_loops_whole),
        cmocka_unit_test(prune_errors_are_tensorflows),
    };
    return cmocka_run_group_tests(tests, graph_util_setup, NULL);
}
