/* Where nodes go: names full and partial, what binds nodes together, soft and hard, what the messages say. */
#include "place_util.h"

static void place(trn_graph *g, bool soft)
{
    trn_place_opts o = {.soft = soft};
    ok(trn_graph_place(g, &gu_set, &o));
}

static void at(trn_graph *g, const char *name, int dev)
{
    trn_gnode *n = trn_graph_find(g, name, strlen(name));
    assert_non_null(n);
    if (n->place_err)
        fail_msg("%s: %s", name, trn_err_msg(n->place_err));
    if (n->dev != dev)
        fail_msg("%s is on %s, not on %s", name, n->dev < 0 ? "nothing" : gu_dev[n->dev].name, gu_dev[dev].name);
    assert_string_equal(n->n.device, gu_dev[dev].name);
}

static void bad(trn_graph *g, const char *name, const char *what)
{
    trn_gnode *n = trn_graph_find(g, name, strlen(name));
    assert_non_null(n);
    if (!n->place_err)
        fail_msg("%s was placed on %s", name, n->n.device);
    assert_int_equal(n->dev, -1);
    assert_int_equal(trn_err_code(n->place_err), TRN_INVALID_ARGUMENT);
    if (!strstr(trn_err_msg(n->place_err), what))
        fail_msg("\"%s\" is not in: %s", what, trn_err_msg(n->place_err));
    char marker[128];
    snprintf(marker, sizeof marker, "[[{{node %s}}]]", name);
    assert_non_null(strstr(trn_err_msg(n->place_err), marker));
}

static void names(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "c", "", 1);
    N(g, "Identity", "none", "", "c", T(TRN_FLOAT));
    N(g, "Identity", "job", "/job:ps", "c", T(TRN_FLOAT));
    N(g, "Identity", "task", "/job:ps/task:1", "c", T(TRN_FLOAT));
    N(g, "Identity", "task_only", "/task:1", "c", T(TRN_FLOAT));
    N(g, "Identity", "full", "/job:worker/replica:0/task:1/device:CPU:0", "c", T(TRN_FLOAT));
    N(g, "Identity", "old", "/job:worker/task:0/cpu:1", "c", T(TRN_FLOAT));
    N(g, "Identity", "cpu1", "/cpu:1", "c", T(TRN_FLOAT));
    N(g, "Identity", "cpu", "/device:CPU:*", "c", T(TRN_FLOAT));
    N(g, "Identity", "worker", "/job:worker", "c", T(TRN_FLOAT));
    place(g, false);
    at(g, "none", W0);
    at(g, "job", PS0);
    at(g, "task", PS1);
    at(g, "task_only", PS1); /* ps sorts before worker; none is the master's own */
    at(g, "full", W1);
    at(g, "old", W0B);
    at(g, "cpu1", W0B);
    at(g, "cpu", W0);
    at(g, "worker", W0);
    at(g, "c", W0); /* consumers everywhere */
    ok(trn_graph_place_errors(g));
    trn_graph_free(g);
}

static void errors(void **state)
{
    for (int soft = 0; soft < 2; soft++) {
        trn_graph *g = trn_graph_new(NULL);
        konst(g, "fine", "", 1);
        konst(g, "nojob", "/job:foo/task:9", 1);
        konst(g, "notask", "/job:ps/task:2/cpu:0", 1);
        konst(g, "malformed", "/jobs:ps", 1);
        konst(g, "gpu", "/gpu:0", 1);
        konst(g, "far_gpu", "/job:ps/task:1/device:GPU:3", 1);
        konst(g, "id", "/job:worker/device:CPU:7", 1);
        N(g, "Identity", "user", "", "nojob", T(TRN_FLOAT));
        place(g, soft);
        at(g, "fine", W0);
        bad(g, "nojob",
            "Cannot assign a device for operation nojob: {{node nojob}} was explicitly assigned to /job:foo/task:9 but "
            "available "
            "devices are [ /job:ps/replica:0/task:0/device:CPU:0, /job:ps/replica:0/task:1/device:CPU:0, ");
        bad(g, "nojob", "]. Make sure the device specification refers to a valid device.");
        bad(g, "notask", "was explicitly assigned to /job:ps/task:2/cpu:0");
        bad(g, "malformed", "Malformed device specification '/jobs:ps'");
        at(g, "user", W0); /* its own place is clear */
        if (soft) {
            at(g, "gpu", W0);
            at(g, "far_gpu", PS1);
            at(g, "id", W0);
        } else {
            bad(g, "gpu", "explicitly assigned to /gpu:0 but");
            bad(g, "gpu", "allow_soft_placement");
            bad(g, "far_gpu", "explicitly assigned to");
            bad(g, "id", "explicitly assigned to /job:worker/device:CPU:7");
        }
        trn_err err = trn_graph_place_errors(g);
        assert_non_null(strstr(trn_err_msg(err), "{{node nojob}}"));
        trn_err_free(err);
        /* A copy without the bad nodes has no errors. */
        bool *keep = trn_xalloc(sizeof *keep * (size_t)g->n);
        for (int i = 0; i < g->n; i++)
            keep[i] = !g->node[i]->place_err && strcmp(g->node[i]->n.name, "user");
        trn_graph *part = trn_graph_copy(g, keep);
        free(keep);
        ok(trn_graph_place_errors(part));
        trn_graph_free(part);
        trn_graph_free(g);
    }
    trn_graph *g = trn_graph_new(NULL);
    trn_devset none = {0};
    trn_place_opts o = {0};
    trn_err err = trn_graph_place(g, &none, &o);
    assert_int_equal(trn_err_code(err), TRN_FAILED_PRECONDITION);
    trn_err_free(err);
    place(g, false); /* an empty graph */
    trn_graph_free(g);
}

/* A device of another kind that a TensorFlow task offers is there, but not for our ops. */
static void other_types(void **state)
{
    trn_device dev[3] = {DEV("worker", 0, 0, 1),
                         DEV("ps", 0, 0, 2),
                         {"/job:ps/replica:0/task:0/device:GPU:0", "/job:ps/replica:0/task:0", "GPU", 3}};
    trn_devset ds = {.n = 3, .dev = dev, .def = 0};
    for (int soft = 0; soft < 2; soft++) {
        trn_graph *g = trn_graph_new(NULL);
        trn_gnode *c = konst(g, "c", "/job:ps/device:GPU:0", 1), *d = konst(g, "d", "/job:ps", 1);
        trn_place_opts o = {.soft = soft};
        ok(trn_graph_place(g, &ds, &o));
        assert_int_equal(d->dev, 1);
        if (soft)
            assert_int_equal(c->dev, 1);
        else
            bad(g, "c", "no supported kernel for GPU devices is available");
        trn_graph_free(g);
    }
}

static void generators_and_metadata(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "with_ps", "", 1);
    konst(g, "with_two", "", 1);
    konst(g, "unused", "", 1);
    konst(g, "pinned", "/job:worker/task:1", 1);
    konst(g, "orders", "", 1);
    konst(g, "ordered", "", 1);
    trn_graph_add_ctl(g, trn_graph_find(g, "ordered", 7), trn_graph_find(g, "orders", 6)->id);
    N(g, "AddV2", "a", "/job:ps/task:1", "with_ps with_ps", T(TRN_FLOAT));
    N(g, "AddV2", "b", "/job:ps/task:1", "with_two pinned", T(TRN_FLOAT));
    N(g, "AddV2", "b2", "/job:ps/task:0", "with_two ordered", T(TRN_FLOAT));
    N(g, "Shape", "shape", "", "a", T(TRN_FLOAT));
    N(g, "Shape", "shape_job", "/job:ps", "a", T(TRN_FLOAT));
    N(g, "Shape", "shape_else", "/job:worker", "a", T(TRN_FLOAT));
    N(g, "Identity", "not_meta", "", "a", T(TRN_FLOAT));
    place(g, false);
    at(g, "with_ps", PS1);
    at(g, "with_two", W0);
    at(g, "unused", W0);
    at(g, "pinned", W1);
    at(g, "ordered", PS0);
    at(g, "orders", PS0);
    at(g, "shape", PS1);
    at(g, "shape_job", PS1);
    at(g, "shape_else", W0);
    at(g, "not_meta", W0);
    trn_graph_free(g);
}

static void colocation(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "c", "", 1);
    N(g, "Identity", "early", "", "c", A(TYPE("T", TRN_FLOAT), LOC("late"))); /* before what it names */
    N(g, "Identity", "late", "/job:ps/task:1", "c", T(TRN_FLOAT));
    N(g, "Identity", "narrow", "/job:ps", "c", A(TYPE("T", TRN_FLOAT), LOC("late")));
    N(g, "Identity", "narrow2", "/task:1", "c", A(TYPE("T", TRN_FLOAT), LOC("half")));
    N(g, "Identity", "half", "/job:worker", "c", T(TRN_FLOAT));
    N(g, "Identity", "x", "", "c", A(TYPE("T", TRN_FLOAT), LOC("nowhere")));
    N(g, "Identity", "y", "/job:ps", "c", A(TYPE("T", TRN_FLOAT), LOC("nowhere")));
    place(g, false);
    at(g, "early", PS1);
    at(g, "late", PS1);
    at(g, "narrow", PS1);
    at(g, "narrow2", W1);
    at(g, "half", W1);
    at(g, "x", PS0);
    at(g, "y", PS0);
    trn_graph_free(g);

    for (int soft = 0; soft < 2; soft++) {
        g = trn_graph_new(NULL);
        konst(g, "c", "/job:ps", 1);
        N(g, "Identity", "clash", "/job:worker", "c", A(TYPE("T", TRN_FLOAT), LOC("c")));
        N(g, "Identity", "type", "/job:ps/gpu:0", "c", A(TYPE("T", TRN_FLOAT), LOC("cpu")));
        N(g, "Identity", "cpu", "/cpu:0", "c", T(TRN_FLOAT));
        N(g, "Identity", "group", "/job:ps", "c", A(TYPE("T", TRN_FLOAT), LOC("far")));
        N(g, "Identity", "far", "/job:ps/task:7", "c", T(TRN_FLOAT));
        place(g, soft);
        at(g, "c", PS0);
        if (soft) { /* colocation is a wish, too */
            at(g, "clash", W0);
            at(g, "type", PS0);
            at(g, "cpu", PS0);
        } else {
            bad(g, "clash",
                "Cannot colocate nodes {{colocation_node c}} and {{colocation_node clash}}: Cannot merge devices with "
                "incompatible jobs");
            bad(g, "type", "incompatible types");
            at(g, "cpu", W0);
        }
        bad(g, "group", "was colocated with a group of nodes that required incompatible device '/job:ps/task:7'");
        bad(g, "group", "far (Identity) /job:ps/task:7");
        bad(g, "far", "explicitly assigned to /job:ps/task:7");
        trn_graph_free(g);
    }
}

static void refs_and_resources(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "one", "", 1);
    var(g, "v", "/job:ps/task:1");
    N(g, "AssignAdd", "add", "", "v one", T(TRN_FLOAT));
    N(g, "AssignAdd", "again", "/job:worker", "add one", T(TRN_FLOAT)); /* a ref of a ref: gives way */
    N(g, "Identity", "read", "", "v", T(TRN_FLOAT));                    /* takes the value, goes anywhere */
    handle(g, "h", "/job:ps/task:0");
    N(g, "AssignVariableOp", "set", "/job:ps/task:1", "h one", A(TYPE("dtype", TRN_FLOAT)));
    N(g, "ReadVariableOp", "get", "", "h", A(TYPE("dtype", TRN_FLOAT)));
    handle(g, "free", "");
    N(g, "Identity", "pull", "/job:worker/task:1", "one", T(TRN_FLOAT));
    N(g, "AssignVariableOp", "fset", "", "free pull", A(TYPE("dtype", TRN_FLOAT)));
    N(g, "ReadVariableOp", "fget", "", "free ^fset", A(TYPE("dtype", TRN_FLOAT), LOC("pull")));
    N(g, "IdentityN", "forward", "/job:worker", "h free",
      A({.name = "T",
         .kind = TRN_ATTR_TYPE,
         .is_list = true,
         .n = 2,
         .list = (const trn_attr_val[]){{.type = TRN_RESOURCE}, {.type = TRN_RESOURCE}}}));
    place(g, false);
    at(g, "v", PS1);
    at(g, "add", PS1);
    at(g, "again", PS1);
    at(g, "read", W0);
    at(g, "h", PS0);
    at(g, "set", PS0);
    at(g, "get", PS0);
    at(g, "free", W1); /* one of its users says where */
    at(g, "fset", W1);
    at(g, "fget", W1);
    at(g, "forward", W0);
    trn_graph_free(g);

    for (int soft = 0; soft < 2; soft++) {
        g = trn_graph_new(NULL);
        var(g, "a", "/job:ps/task:0");
        var(g, "b", "/job:ps/task:1");
        var(g, "gpu", "/job:ps/task:1/gpu:0");
        N(g, "Merge", "value", "", "a b", A(TYPE("T", TRN_FLOAT), INT("N", 2)));
        konst(g, "one", "", 1);
        N(g, "AssignAdd", "add", "", "a one", A(TYPE("T", TRN_FLOAT), LOC("b")));
        N(g, "AssignAdd", "on_gpu", "", "gpu one", T(TRN_FLOAT));
        place(g, soft);
        at(g, "value", W0);
        if (soft) {
            at(g, "add", PS0);
            at(g, "gpu", PS1);
            at(g, "on_gpu", PS1);
        } else {
            bad(g, "add", "Cannot colocate nodes");
            bad(g, "gpu", "explicitly assigned to");
            bad(g, "on_gpu", "required incompatible device '/job:ps/task:1/device:GPU:0'");
        }
        trn_graph_free(g);
    }
}

/* Two resources on two tasks meet in one op: soft or not, it cannot be. */
static void torn(void **state)
{
    static const trn_op two[] = {{"TestTwoHandles", "a:res, b:res ->"}, {0}};
    trn_op_register_test(two);
    for (int soft = 0; soft < 2; soft++) {
        trn_graph *g = trn_graph_new(NULL);
        handle(g, "a", "/job:ps/task:0");
        handle(g, "b", "/job:ps/task:1");
        N(g, "TestTwoHandles", "both", "", "a b", NONE);
        place(g, soft);
        at(g, "a", PS0);
        at(g, "b", PS1);
        bad(g, "both", "incompatible resource devices: /job:ps/task:1 vs /job:ps/task:0");
        bad(g, "both", "from 'b' (op VarHandleOp) to 'both' (op TestTwoHandles)");
        trn_graph_free(g);
    }
}

/* A later version of the graph does not move what an earlier one has placed. */
static void versions(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    handle(g, "h", "");
    var(g, "v", "");
    place(g, false);
    at(g, "h", W0);
    at(g, "v", W0);
    konst(g, "one", "", 1);
    N(g, "AssignVariableOp", "set", "/job:ps", "h one", A(TYPE("dtype", TRN_FLOAT)));
    N(g, "AssignAdd", "add", "/job:ps", "v one", T(TRN_FLOAT));
    N(g, "Identity", "with", "", "one", A(TYPE("T", TRN_FLOAT), LOC("v")));
    N(g, "Identity", "clash", "/job:ps", "one", A(TYPE("T", TRN_FLOAT), LOC("v")));
    place(g, false);
    at(g, "h", W0);
    at(g, "v", W0);
    at(g, "set", W0);
    at(g, "add", W0);
    at(g, "with", W0);
    bad(g, "clash", "Cannot colocate nodes");
    place(g, true); /* and an error stays the same error */
    bad(g, "clash", "Cannot colocate nodes");
    trn_graph_free(g);
}

/* A call is not bound to the resources that it hands to its body, and lowering must find the device that the program asked for. */
static void calls(void **state)
{
    static const trn_func_ref f = {.name = "f"};
    static const trn_attr_val none[1];
    trn_graph *g = trn_graph_new(NULL);
    handle(g, "a", "/job:ps/task:0");
    handle(g, "b", "/job:ps/task:1");
    konst(g, "zero", "", 1);
    trn_attr attrs[] = {
        {.name = "T",
         .kind = TRN_ATTR_TYPE,
         .is_list = true,
         .n = 3,
         .list = (const trn_attr_val[]){{.type = TRN_FLOAT}, {.type = TRN_RESOURCE}, {.type = TRN_RESOURCE}}},
        {.name = "cond", .kind = TRN_ATTR_FUNC, .v.func = &f},
        {.name = "body", .kind = TRN_ATTR_FUNC, .v.func = &f},
        {.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .list = none}};
    trn_gnode *w = N(g, "While", "loop", "", "zero a b", attrs, TRN_COUNTOF(attrs));
    trn_gnode *w2 = N(g, "While", "loop2", "/job:worker/task:1", "zero a b", attrs, TRN_COUNTOF(attrs));
    /* What takes a handle out of the loop belongs where the handle comes from; as long as the loop is whole nobody knows where that is. */
    trn_gnode *after = N(g, "VariableShape", "after", "/job:worker/task:1", "loop:2", A(TYPE("out_type", TRN_INT32)));
    trn_place_opts first = {.unlowered = true};
    ok(trn_graph_place(g, &gu_set, &first));
    assert_int_equal(after->dev, -1);
    place(g, false);
    ok(trn_graph_place_errors(g));
    assert_int_equal(after->dev, W0); /* with its call, when that stays whole */
    assert_int_equal(w->dev, W0);
    assert_string_equal(w->n.device, "");
    assert_int_equal(w2->dev, W1);
    assert_string_equal(w2->n.device, "/job:worker/task:1");
    at(g, "zero", W0);
    trn_graph_free(g);
}

/* Unknown ops are placed like others: what to say about them is decided when one is needed. */
static void unknown_op(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "c", "", 1);
    N(g, "NoSuchOpAnywhere", "u", "/job:ps", "c", NONE);
    place(g, false);
    at(g, "u", PS0);
    at(g, "c", PS0);
    trn_graph_free(g);
}

static void big(void **state)
{
    enum { N_CHAIN = 20000 };
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "one", "", 1);
    var(g, "v", "/job:ps/task:1");
    char name[32], in[48];
    strcpy(in, "v one");
    for (int i = 0; i < N_CHAIN; i++) {
        snprintf(name, sizeof name, "a%d", i);
        N(g, "AssignAdd", name, i % 2 ? "/job:ps" : "", in, T(TRN_FLOAT));
        snprintf(in, sizeof in, "%s one", name);
        snprintf(name, sizeof name, "bad%d", i);
        if (i < 2000)
            N(g, "Identity", name, "/job:nope", "one", A(TYPE("T", TRN_FLOAT), LOC("bad0")));
    }
    uint64_t t0 = trn_now_ns();
    place(g, false);
    double ms = (double)(trn_now_ns() - t0) / 1e6;
    at(g, "a19999", PS1);
    bad(g, "bad1999", "/job:nope");
    trn_graph_free(g);
    if (ms > 4000)
        fail_msg("placing took %.0f ms", ms);
}

/* ---- packed arguments ---------------------------------------------------------------------------------------------- */

#define COMPOSITE 5
static const trn_device packed_dev[] = {DEV("worker", 0, 0, 1000), DEV("worker", 0, 1, 1001), DEV("worker", 1, 0, 1010), DEV("ps", 0, 0, 2000), DEV("ps", 1, 0, 2010),
                                        {"/job:worker/replica:0/task:0/device:COMPOSITE:0", "/job:worker/replica:0/task:0", TRN_COMPOSITE, 0}};
static const trn_devset packed_set = {.n = 6, .dev = packed_dev, .def = W0};

static trn_gnode *packed_arg(trn_graph *g, const char *name, trn_dtype t, int index)
{
    trn_gnode *nd = N(g, "_Arg", name, packed_dev[COMPOSITE].name, "", A(TYPE("T", t), INT("index", index)));
    nd->dev = COMPOSITE;
    return nd;
}

/* Members on the ps 0 and ps 1. */
static trn_err replicate(trn_graph *g)
{
    static const int member[] = {PS0, PS1};
    trn_place_opts o = {.soft = true};
    ok(trn_graph_place(g, &packed_set, &o));
    ok(trn_graph_place_errors(g));
    return trn_graph_replicate(g, &packed_set, &(trn_composite){COMPOSITE, 2, member}, 1);
}

static trn_gnode *node(trn_graph *g, const char *name) { return trn_graph_find(g, name, strlen(name)); }

static void takes(trn_graph *g, const char *name, int input, const char *from)
{
    assert_non_null(node(g, name));
    assert_string_equal(g->node[node(g, name)->in[input].node]->n.name, from);
}

static void packed_arguments(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    packed_arg(g, "v", TRN_RESOURCE, 3);
    packed_arg(g, "unused", TRN_RESOURCE, 4);
    packed_arg(g, "x", TRN_FLOAT, 5);
    konst(g, "one", "/job:worker", 1);
    N(g, "ReadVariableOp", "there", "/job:ps/task:1/device:CPU:0", "v", A(TYPE("dtype", TRN_FLOAT))); /* says which */
    N(g, "Identity", "same", "", "v", T(TRN_RESOURCE));                                               /* goes with it */
    N(g, "ReadVariableOp", "read", "/job:ps/task:0", "same", A(TYPE("dtype", TRN_FLOAT)));            /* no device, only a task: gives way */
    N(g, "AddV2", "sum", "/job:ps/task:0", "read x", T(TRN_FLOAT));
    N(g, "AssignVariableOp", "set", "", "v one ^there", A(TYPE("dtype", TRN_FLOAT))); /* nobody waits for it: all */
    N(g, "AddV2", "far", "/job:worker/task:1", "x x", T(TRN_FLOAT));
    N(g, "Shape", "shape", "", "x", T(TRN_FLOAT));
    N(g, "NoOp", "near", "/job:ps/task:1", "^shape", NONE);
    N(g, "AssignVariableOp", "first", "", "v one", A(TYPE("dtype", TRN_FLOAT)));
    N(g, "NoOp", "end", "", "^first", NONE);
    ok(replicate(g));
    at(g, "there", PS1);
    takes(g, "there", 0, "v/R1");
    takes(g, "sum", 0, "read/R0");
    takes(g, "read/R0", 0, "same/R0");
    takes(g, "same/R0", 0, "v/R0");
    takes(g, "sum", 1, "x/R0");
    at(g, "read/R0", PS0);
    assert_null(node(g, "read/R1"));
    assert_null(node(g, "same/R1"));
    assert_null(node(g, "v"));
    assert_int_equal(trn_attr_int(&node(g, "v/R1")->n, "index"), 3);
    assert_int_equal(trn_attr_int(&node(g, "v/R1")->n, "sub_index"), 1);
    for (int i = 0; i < 2; i++) {
        char name[16], arg[16];
        snprintf(name, sizeof name, "set/R%d", i);
        snprintf(arg, sizeof arg, "v/R%d", i);
        takes(g, name, 0, arg);
        takes(g, name, 1, "one");
        at(g, name, i ? PS1 : PS0);
        assert_int_equal(node(g, name)->n_ctl, 1);
        assert_ptr_equal(g->node[node(g, name)->ctl[0]], node(g, "there"));
    }
    takes(g, "far", 0, "x/Packed"); /* on neither: both, stacked; one stack for both inputs */
    takes(g, "far", 1, "x/Packed");
    at(g, "x/Packed", W1);
    takes(g, "x/Packed", 1, "x/R1");
    assert_ptr_equal(g->node[node(g, "near")->ctl[0]], node(g, "shape/R1")); /* waits for its own device's */
    assert_null(node(g, "shape/R0"));
    assert_int_equal(node(g, "end")->n_ctl, 2); /* elsewhere: for both */
    trn_graph_free(g);
    /* Of what is read there is one per device; a worker is none of them. */
    for (int i = 0; i < 2; i++) {
        g = trn_graph_new(NULL);
        packed_arg(g, "v", TRN_RESOURCE, 0);
        if (i)
            N(g, "_Retval", "user", "", "v", A(TYPE("T", TRN_RESOURCE), INT("index", 0)));
        else {
            N(g, "ReadVariableOp", "read", "", "v", A(TYPE("dtype", TRN_FLOAT)));
            N(g, "Identity", "user", "/job:worker/task:1", "read", T(TRN_FLOAT));
        }
        trn_err err = replicate(g);
        assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
        assert_non_null(strstr(trn_err_msg(err), "user"));
        trn_err_free(err);
        trn_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names),       cmocka_unit_test(errors),
                                       cmocka_unit_test(other_types), cmocka_unit_test(generators_and_metadata),
                                       cmocka_unit_test(colocation),  cmocka_unit_test(refs_and_resources),
                                       cmocka_unit_test(torn),        cmocka_unit_test(versions),
                                       cmocka_unit_test(calls),       cmocka_unit_test(unknown_op),
                                       cmocka_unit_test(big),         cmocka_unit_test(packed_arguments)};
    return cmocka_run_group_tests(tests, gu_setup, NULL);
}
