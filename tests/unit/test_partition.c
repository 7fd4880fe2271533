/* One graph per task: what is cut, what is shared, what is copied, and that the parts compute what the whole graph computes. */
#include "graph_gen.h"
#include "graph_sim.h"

static const char *const GU_TASK[] = {"/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1",
                                      "/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"};

static trn_graph *part_of(trn_part *p, int n, int dev)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(p[i].task, gu_dev[dev].task))
            return p[i].graph;
    return NULL;
}

static int count(const trn_graph *g, const char *op)
{
    int n = 0;
    for (int i = 0; g && i < g->n; i++)
        n += !strcmp(g->node[i]->n.op, op);
    return n;
}

static trn_gnode *get(trn_graph *g, const char *name)
{
    trn_gnode *n = trn_graph_find(g, name, strlen(name));
    if (!n)
        fail_msg("%s is not here", name);
    return n;
}

static const char *op_of(const trn_graph *g, int id) { return g->node[id]->n.op; }

/* Names of the loops around a frame, innermost first. */
static void path_of(trn_sb *s, const trn_frames *f, int frame)
{
    for (trn_sb_adds(s, ""); frame; frame = f->frame[frame].parent)
        trn_sb_addf(s, "%s<", f->frame[frame].name);
}

typedef struct end {
    const trn_gnode *nd;
    char *path;
} end;

/* What holds for the parts of any graph. */
static void check_parts(trn_part *p, int n, const trn_devset *ds)
{
    trn_map *sends = trn_map_new(), *recvs = trn_map_new(), *names = trn_map_new();
    end *ends = NULL;
    int n_ends = 0, cap = 0;
    for (int i = 0; i < n; i++) {
        trn_graph *g = p[i].graph;
        assert_true(g->n > 0);
        trn_frames f;
        ok(trn_graph_frames(&f, g));
        for (int id = 0; id < g->n; id++) {
            const trn_gnode *nd = g->node[id];
            assert_int_equal(nd->id, id);
            assert_string_equal(ds->dev[nd->dev].task, p[i].task);
            assert_string_equal(ds->dev[nd->dev].name, nd->n.device);
            assert_ptr_equal(trn_graph_find(g, nd->n.name, strlen(nd->n.name)), nd);
            if (trn_map_puts(names, nd->n.name, (void *)nd))
                fail_msg("%s is there twice", nd->n.name);
            for (int k = 0; k < nd->n.n_in; k++) {
                assert_in_range(nd->in[k].node, 0, g->n - 1);
                assert_in_range(nd->in[k].slot, 0, g->node[nd->in[k].node]->n.n_out - 1);
            }
            for (int k = 0; k < nd->n_ctl; k++)
                assert_in_range(nd->ctl[k], 0, g->n - 1);
            bool send = !strcmp(nd->n.op, "_Send"), recv = !strcmp(nd->n.op, "_Recv");
            if (!send && !recv)
                continue;
            assert_string_equal(trn_attr_str(&nd->n, send ? "send_device" : "recv_device"), nd->n.device);
            if (trn_map_puts(send ? sends : recvs, trn_attr_str(&nd->n, "tensor_name"), (void *)(intptr_t)(n_ends + 1)))
                fail_msg("%s is sent or received twice", trn_attr_str(&nd->n, "tensor_name"));
            trn_sb path = {0};
            path_of(&path, &f, f.of[id]);
            TRN_PUSH(ends, n_ends, cap, (end){nd, path.p});
            if (recv && f.of[id]) { /* something starts it in every iteration */
                assert_int_equal(nd->n_ctl, 1);
                assert_string_equal(op_of(g, nd->ctl[0]), "Merge");
            }
        }
        trn_frames_fini(&f);
    }
    assert_int_equal(trn_map_count(sends), trn_map_count(recvs));
    const char *name;
    size_t len;
    void *at;
    for (size_t it = 0; trn_map_next(sends, &it, &name, &len, &at);) {
        void *other = trn_map_get(recvs, name, len);
        if (!other)
            fail_msg("%.*s is not received", (int)len, name);
        end s = ends[(intptr_t)at - 1], r = ends[(intptr_t)other - 1];
        assert_string_equal(s.path, r.path);
        assert_string_equal(trn_attr_str(&s.nd->n, "send_device"), trn_attr_str(&r.nd->n, "send_device"));
        assert_string_equal(trn_attr_str(&s.nd->n, "recv_device"), trn_attr_str(&r.nd->n, "recv_device"));
        assert_int_equal(trn_attr_int(&s.nd->n, "send_device_incarnation"),
                         trn_attr_int(&r.nd->n, "send_device_incarnation"));
        assert_int_equal(trn_attr_int(&s.nd->n, "send_device_incarnation"), ds->dev[s.nd->dev].incarnation);
        assert_int_equal(trn_attr_type(&s.nd->n, "T"), trn_attr_type(&r.nd->n, "tensor_type"));
        assert_false(trn_attr_bool(&s.nd->n, "client_terminated"));
        assert_string_not_equal(ds->dev[s.nd->dev].task, ds->dev[r.nd->dev].task);
    }
    for (int i = 0; i < n_ends; i++)
        free(ends[i].path);
    free(ends);
    trn_map_free(sends, NULL);
    trn_map_free(recvs, NULL);
    trn_map_free(names, NULL);
}

static trn_part *partition(int *n, const trn_graph *g)
{
    trn_part *p;
    ok(trn_graph_partition(&p, n, g, &gu_set));
    check_parts(p, *n, &gu_set);
    return p;
}

static void data_edges(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    on(N(g, "_Arg", "x", "", "", A(TYPE("T", TRN_FLOAT), INT("index", 0))), W0);
    on(N(g, "Identity", "a", "", "x", T(TRN_FLOAT)), PS0);
    on(N(g, "AddV2", "b", "", "a a", T(TRN_FLOAT)), W1);
    on(N(g, "Identity", "c", "", "a", T(TRN_FLOAT)), W1); /* the same tensor to the same task: the same _Recv */
    on(N(g, "Identity", "c0", "", "a", T(TRN_FLOAT)), W0);
    on(N(g, "Identity", "local", "", "c0", T(TRN_FLOAT)), W0B); /* another device of the same task: a plain edge */
    on(N(g, "AddV2", "d", "", "b c", T(TRN_FLOAT)), PS0);
    on(N(g, "_Retval", "r", "", "d", A(TYPE("T", TRN_FLOAT), INT("index", 0))), W0);
    int n;
    trn_part *p = partition(&n, g);
    assert_int_equal(n, 3);
    assert_string_equal(p[0].task, GU_TASK[0]);
    assert_string_equal(p[1].task, GU_TASK[1]);
    assert_string_equal(p[2].task, GU_TASK[2]);
    trn_graph *w0 = part_of(p, n, W0), *w1 = part_of(p, n, W1), *ps = part_of(p, n, PS0);
    assert_int_equal(count(w1, "_Recv"), 1);
    assert_int_equal(count(w1, "_Send"), 2);
    assert_int_equal(count(w0, "_Recv"), 2);
    assert_int_equal(count(w0, "_Send"), 1);
    assert_int_equal(count(ps, "_Send"), 3);
    assert_int_equal(count(ps, "_Recv"), 3);
    assert_int_equal(w0->n + w1->n + ps->n, g->n + 12);
    trn_gnode *b = get(w1, "b");
    assert_string_equal(op_of(w1, b->in[0].node), "_Recv");
    assert_int_equal(b->in[0].node, b->in[1].node);
    assert_int_equal(b->in[0].node, get(w1, "c")->in[0].node);
    assert_int_equal(get(w0, "local")->in[0].node, get(w0, "c0")->id);
    trn_gnode *recv = w1->node[b->in[0].node];
    assert_string_equal(trn_attr_str(&recv->n, "send_device"), gu_dev[PS0].name);
    assert_string_equal(trn_attr_str(&recv->n, "recv_device"), gu_dev[W1].name);
    assert_int_equal(trn_attr_int(&recv->n, "send_device_incarnation"), 2000);
    const char *tn = trn_attr_str(&recv->n, "tensor_name");
    assert_true(!strncmp(tn, "edge_", 5) && !strcmp(tn + strlen(tn) - 2, "_a"));
    trn_graph_free(g); /* the parts live on */
    check_parts(p, n, &gu_set);
    trn_parts_free(p, n);
}

static void one_task(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    int n;
    trn_part *p = partition(&n, g);
    assert_int_equal(n, 0);
    trn_parts_free(p, n);
    on(konst(g, "c", "", 1), W0);
    on(N(g, "Identity", "a", "", "c", T(TRN_FLOAT)), W0B);
    p = partition(&n, g);
    assert_int_equal(n, 1);
    assert_int_equal(p[0].graph->n, 2);
    trn_parts_free(p, n);
    trn_graph_free(g);
}

static void control_edges(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    on(N(g, "NoOp", "a", "", "", NONE), PS0);
    on(N(g, "NoOp", "a2", "", "^a", NONE), PS0);
    on(N(g, "NoOp", "b", "", "^a2", NONE), W0);
    on(N(g, "NoOp", "c", "", "^a2 ^b", NONE), W0);
    on(konst(g, "k", "", 100000), PS0);
    on(N(g, "NoOp", "no_wait", "", "^k", NONE), W0); /* a constant has nothing to wait for */
    on(N(g, "Identity", "v", "", "k ^a2", T(TRN_FLOAT)), PS0);
    on(N(g, "Identity", "both", "", "v ^v", T(TRN_FLOAT)), W0); /* the data edge says it all */
    int n;
    trn_part *p = partition(&n, g);
    assert_int_equal(n, 2);
    trn_graph *w = part_of(p, n, W0), *ps = part_of(p, n, PS0);
    assert_int_equal(count(ps, "_Send"), 2);
    assert_int_equal(count(ps, "Const"), 2);
    assert_int_equal(count(w, "_Recv"), 2);
    trn_gnode *b = get(w, "b"), *c = get(w, "c");
    assert_int_equal(b->n_ctl, 1);
    assert_string_equal(op_of(w, b->ctl[0]), "Identity");
    assert_string_equal(op_of(w, w->node[b->ctl[0]]->in[0].node), "_Recv");
    assert_int_equal(c->n_ctl, 2);
    assert_true(c->ctl[0] == b->ctl[0] || c->ctl[1] == b->ctl[0]);
    assert_int_equal(get(w, "no_wait")->n_ctl, 0);
    assert_int_equal(get(w, "both")->n_ctl, 0);
    for (int i = 0; i < ps->n; i++)
        if (ps->node[i]->n.n_in == 1 && !strcmp(ps->node[i]->n.op, "_Send") &&
            !strcmp(op_of(ps, ps->node[i]->in[0].node), "Const")) {
            trn_gnode *token = ps->node[ps->node[i]->in[0].node];
            assert_int_equal(token->n_ctl, 1);
            assert_string_equal(ps->node[token->ctl[0]]->n.name, "a2");
            const trn_tensor *t = trn_attr_tensor(&token->n, "value");
            assert_int_equal(trn_tensor_dtype(t), TRN_FLOAT);
            assert_int_equal(trn_tensor_shape(t)->rank, 1);
            assert_int_equal(trn_tensor_count(t), 0);
        }
    trn_parts_free(p, n);
    trn_graph_free(g);
}

/* One that waits for many, or several that wait for the same: one token. Each for another one: no use in a detour. */
static void gathered_waits(void **state)
{
    for (int shared = 0; shared < 2; shared++) {
        trn_graph *g = trn_graph_new(NULL);
        char name[16];
        for (int i = 0; i < 8; i++) {
            snprintf(name, sizeof name, "p%d", i);
            on(N(g, "NoOp", name, "", "", NONE), PS0);
        }
        on(N(g, "NoOp", "here", "", "", NONE), W0);
        for (int i = 0; i < 8; i++) {
            snprintf(name, sizeof name, "w%d", i);
            trn_gnode *w = on(N(g, "NoOp", name, "", "^here", NONE), W0);
            for (int k = 0; k < 8; k++)
                if (shared ? i < 2 || k == 3 : k == i || k == (i + 1) % 8)
                    trn_graph_add_ctl(g, w, k);
        }
        int n;
        trn_part *p = partition(&n, g);
        trn_graph *w = part_of(p, n, W0), *ps = part_of(p, n, PS0);
        assert_int_equal(count(w, "_Recv"), shared ? 2 : 8);
        assert_int_equal(count(ps, "NoOp"), shared ? 9 : 8);
        trn_gnode *w0 = get(w, "w0"), *w1 = get(w, "w1");
        assert_int_equal(w0->n_ctl, shared ? 2 : 3);
        if (shared) {
            assert_int_equal(w0->ctl[1], w1->ctl[1]);
            for (int i = 0; i < ps->n; i++)
                if (!strcmp(ps->node[i]->n.op, "NoOp") && ps->node[i]->n_ctl)
                    assert_int_equal(ps->node[i]->n_ctl, 8);
        }
        trn_parts_free(p, n);
        trn_graph_free(g);
    }
}

static void constants(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    on(konst(g, "small", "", 100), W0);
    on(konst(g, "large", "", 5000), W0);
    on(N(g, "NoOp", "first", "", "", NONE), W0);
    trn_gnode *late = on(konst(g, "late", "", 1), W0); /* must not come before `first` has run */
    trn_graph_add_ctl(g, late, get(g, "first")->id);
    on(konst(g, "gone", "", 1), W0);   /* used elsewhere only */
    on(konst(g, "target", "", 1), W0); /* used by nobody */
    on(N(g, "AddV2", "a", "", "small small", T(TRN_FLOAT)), PS0);
    on(N(g, "AddV2", "b", "", "large late", T(TRN_FLOAT)), PS0);
    on(N(g, "AddV2", "c", "", "small gone", T(TRN_FLOAT)), PS0);
    on(N(g, "AddV2", "d", "", "small gone", T(TRN_FLOAT)), PS1);
    on(N(g, "Identity", "e", "", "small", T(TRN_FLOAT)), W0);
    int n;
    trn_part *p = partition(&n, g);
    trn_graph *w = part_of(p, n, W0), *ps0 = part_of(p, n, PS0), *ps1 = part_of(p, n, PS1);
    assert_int_equal(count(ps0, "_Recv"), 2);
    assert_int_equal(count(ps0, "Const"), 2);
    assert_int_equal(count(ps1, "Const"), 2);
    assert_int_equal(count(ps1, "_Recv"), 0);
    assert_int_equal(get(ps0, "a")->in[0].node, get(ps0, "c")->in[0].node);
    assert_null(trn_graph_find(w, "gone", 4));
    get(w, "target");
    get(w, "small");
    trn_parts_free(p, n);
    trn_graph_free(g);
}

static void refs(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    on(var(g, "v", ""), PS0);
    on(konst(g, "one", "", 1), W0);
    on(N(g, "AssignAdd", "add", "", "v one", T(TRN_FLOAT)), PS0);
    on(N(g, "Identity", "now", "", "v", T(TRN_FLOAT)), W0);
    on(N(g, "Identity", "now2", "", "v", T(TRN_FLOAT)), W0);
    on(N(g, "Identity", "after", "", "v ^add", T(TRN_FLOAT)), W0);
    on(N(g, "NoOp", "step", "", "^add", NONE), W0);
    on(N(g, "Identity", "late", "", "v ^step", T(TRN_FLOAT)), W0);
    on(N(g, "_Retval", "r", "", "add", A(TYPE("T", TRN_FLOAT), INT("index", 0))), W0);
    int n;
    trn_part *p = partition(&n, g);
    assert_int_equal(n, 2);
    trn_graph *w = part_of(p, n, W0), *ps = part_of(p, n, PS0);
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->node[i]->n.n_out; k++)
            assert_false(trn_dtype_is_ref(w->node[i]->n.out_types[k]));
    assert_int_equal(get(w, "now")->in[0].node, get(w, "now2")->in[0].node);
    assert_int_not_equal(get(w, "now")->in[0].node, get(w, "after")->in[0].node);
    assert_int_equal(count(ps, "Identity"), 2 + 1); /* two reads that wait; behind one _Recv of a control edge */
    int waits = 0;
    for (int i = 0; i < ps->n; i++) {
        trn_gnode *nd = ps->node[i];
        if (strcmp(nd->n.op, "Identity") || strcmp(op_of(ps, nd->in[0].node), "VariableV2"))
            continue;
        assert_int_equal(nd->n_ctl, 1);
        trn_gnode *c = ps->node[nd->ctl[0]];
        waits += !strcmp(c->n.name, "add") ? 1 : !strcmp(c->n.op, "Identity") ? 10 : 100;
    }
    assert_int_equal(waits, 11);
    trn_parts_free(p, n);

    on(N(g, "AssignAdd", "far", "", "v one", T(TRN_FLOAT)), W0);
    trn_part *q = NULL;
    trn_err err = trn_graph_partition(&q, &n, g, &gu_set);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    assert_non_null(strstr(trn_err_msg(err), "{{node far}}"));
    assert_null(q);
    trn_err_free(err);
    trn_graph_free(g);
}

static void unplaced(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "c", "/job:nowhere", 1);
    trn_part *p;
    int n;
    trn_err err = trn_graph_partition(&p, &n, g, &gu_set);
    assert_int_equal(trn_err_code(err), TRN_INTERNAL);
    trn_err_free(err);
    trn_place_opts o = {0};
    ok(trn_graph_place(g, &gu_set, &o));
    err = trn_graph_partition(&p, &n, g, &gu_set);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    trn_graph_free(g);
}

/* ---- programs with conditionals and loops, made up at random (graph_gen.h) */

static void compare(trn_graph *g, unsigned seed)
{
    int n;
    trn_part *p = partition(&n, g);
    sim whole, split;
    const trn_graph *gs[5] = {g};
    sim_init(&whole, gs, 1);
    sim_go(&whole, seed);
    for (int i = 0; i < n; i++)
        gs[i] = p[i].graph;
    sim_init(&split, gs, n);
    sim_go(&split, seed + 1);
    for (int i = 0; i < SIM_RETS; i++) {
        assert_int_equal(whole.ret_set[i], split.ret_set[i]);
        assert_int_equal(whole.ret_dead[i], split.ret_dead[i]);
        if (whole.ret[i] != split.ret[i] && !whole.ret_dead[i])
            fail_msg("seed %u: result %d is %g in one graph and %g in %d", seed, i, whole.ret[i], split.ret[i], n);
    }
    assert_true(whole.ret_set[0]);
    sim_fini(&whole);
    sim_fini(&split);
    trn_parts_free(p, n);
}

static void programs(void **state)
{
    int loops = 0;
    unsigned seeds = getenv("SEEDS") ? (unsigned)atoi(getenv("SEEDS")) : 150;
    for (unsigned seed = 1; seed <= seeds; seed++) {
        trn_graph *g = gen_program(seed, TRN_COUNTOF(gu_dev));
        loops += count(g, "LoopCond");
        compare(g, seed);
        trn_graph_free(g);
    }
    assert_true(loops > 50);
}

/* The loop that the text books have: i and a sum; the body's addition on a ps. */
static trn_graph *small_loop(int body_dev)
{
    trn_graph *g = trn_graph_new(NULL);
    konst(g, "zero", "", 1);
    konst(g, "ten", "", 1);
    trn_tensor *t = trn_attr_tensor(&get(g, "ten")->n, "value");
    *(float *)(uintptr_t)trn_tensor_data(t) = 10;
    N(g, "Enter", "i0", "", "zero", A(TYPE("T", TRN_FLOAT), STR("frame_name", "w"), INT("parallel_iterations", 7)));
    trn_gnode *m = N(g, "Merge", "m", "", "i0 -", A(TYPE("T", TRN_FLOAT), INT("N", 2)));
    N(g, "Enter", "limit", "", "ten",
      A(TYPE("T", TRN_FLOAT), STR("frame_name", "w"), {.name = "is_constant", .kind = TRN_ATTR_BOOL, .v.b = true}));
    N(g, "Less", "less", "", "m limit", T(TRN_FLOAT));
    N(g, "LoopCond", "lc", "", "less", NONE);
    N(g, "Switch", "sw", "", "m lc", T(TRN_FLOAT));
    N(g, "AddV2", "add", "", "sw:1 limit", T(TRN_FLOAT));
    N(g, "NextIteration", "next", "", "add", T(TRN_FLOAT));
    m->in[1] = (trn_edge){get(g, "next")->id, 0};
    N(g, "Exit", "exit", "", "sw", T(TRN_FLOAT));
    N(g, "_Retval", "r", "", "exit", A(TYPE("T", TRN_FLOAT), INT("index", 0)));
    for (int i = 0; i < g->n; i++)
        on(g->node[i], W0);
    on(get(g, "add"), body_dev);
    return g;
}

static void loop_parts(void **state)
{
    trn_graph *g = small_loop(PS1);
    on(get(g, "sw"), PS0); /* control flow follows its data, whatever was asked */
    on(get(g, "next"), PS0);
    int n;
    trn_part *p = partition(&n, g);
    assert_int_equal(n, 2);
    trn_graph *w = part_of(p, n, W0), *ps = part_of(p, n, PS1);
    assert_int_equal(count(ps, "Enter"), 2); /* the control loop's, and its own copy of the limit */
    assert_int_equal(count(ps, "Merge"), 1);
    assert_int_equal(count(ps, "Switch"), 1);
    assert_int_equal(count(ps, "NextIteration"), 1);
    assert_int_equal(count(ps, "_Recv"), 2); /* LoopCond and sw:1; the limit was a small constant */
    assert_int_equal(count(ps, "_Send"), 1);
    assert_int_equal(count(ps, "Const"), 2);
    assert_int_equal(count(w, "Merge"), 2); /* the sum comes back, so somebody must start its _Recv */
    assert_int_equal(count(w, "_Recv"), 1);
    for (int i = 0; i < ps->n; i++)
        if (!strcmp(ps->node[i]->n.op, "Enter") && !trn_attr_bool(&ps->node[i]->n, "is_constant")) {
            assert_string_equal(trn_attr_str(&ps->node[i]->n, "frame_name"), "w");
            assert_int_equal(trn_attr_int(&ps->node[i]->n, "parallel_iterations"), 7);
        }
    trn_parts_free(p, n);
    compare(g, 1);
    trn_graph_free(g);
}

static void loop_errors(void **state)
{
    trn_part *p;
    int n;
    trn_graph *g = small_loop(PS0);
    get(g, "sw")->in[1] = (trn_edge){get(g, "less")->id, 0};
    trn_graph_remove(g, get(g, "lc")->id);
    trn_err err = trn_graph_partition(&p, &n, g, &gu_set);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    assert_non_null(strstr(trn_err_msg(err), "\"w\""));
    trn_err_free(err);
    trn_graph_free(g);

    g = small_loop(PS0);
    on(N(g, "AddV2", "mixed", "", "exit sw:1", T(TRN_FLOAT)), W0);
    err = trn_graph_partition(&p, &n, g, &gu_set);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    assert_non_null(strstr(trn_err_msg(err), "{{node mixed}} has inputs from different frames"));
    trn_err_free(err);
    trn_graph_free(g);

    trn_frames f;
    g = small_loop(PS0);
    N(g, "Enter", "in2", "", "exit", A(TYPE("T", TRN_FLOAT), STR("frame_name", "v")));
    N(g, "Enter", "again", "", "in2", A(TYPE("T", TRN_FLOAT), STR("frame_name", "w")));
    err = trn_graph_frames(&f, g);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    assert_non_null(strstr(trn_err_msg(err), "{{node again}}"));
    trn_err_free(err);
    trn_graph_free(g);

    g = small_loop(PS0);
    N(g, "Exit", "out", "", "exit", T(TRN_FLOAT));
    err = trn_graph_frames(&f, g);
    assert_non_null(strstr(trn_err_msg(err), "is not in a loop"));
    trn_err_free(err);
    trn_graph_free(g);

    g = small_loop(PS0);
    get(g, "m")->in[1] = (trn_edge){get(g, "exit")->id, 0}; /* a cycle without NextIteration */
    err = trn_graph_frames(&f, g);
    assert_non_null(strstr(trn_err_msg(err), "cycle"));
    trn_err_free(err);
    trn_graph_free(g);
}

static void big(void **state)
{
    trn_graph *g = trn_graph_new(NULL);
    on(konst(g, "n0", "", 10000), W0);
    char name[32], in[96];
    for (int i = 1; i < 10000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        snprintf(in, sizeof in, "n%d n%d ^n%d", i - 1, i / 2, i / 3);
        on(N(g, "AddV2", name, "", in, T(TRN_FLOAT)), i % 5);
    }
    trn_gnode *all = on(N(g, "NoOp", "all", "", "", NONE), W0);
    for (int i = 1; i < 10000; i += 4)
        trn_graph_add_ctl(g, all, i);
    uint64_t t0 = trn_now_ns();
    trn_part *p;
    int n;
    ok(trn_graph_partition(&p, &n, g, &gu_set));
    double ms = (double)(trn_now_ns() - t0) / 1e6;
    check_parts(p, n, &gu_set);
    trn_parts_free(p, n);
    trn_graph_free(g);
    if (ms > 4000)
        fail_msg("cutting took %.0f ms", ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_edges),     cmocka_unit_test(one_task),   cmocka_unit_test(control_edges),
        cmocka_unit_test(gathered_waits), cmocka_unit_test(constants),  cmocka_unit_test(refs),
        cmocka_unit_test(unplaced),       cmocka_unit_test(loop_parts), cmocka_unit_test(loop_errors),
        cmocka_unit_test(programs),       cmocka_unit_test(big)};
    return cmocka_run_group_tests(tests, gu_setup, NULL);
}
