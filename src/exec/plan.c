/* Turns a graph into a plan: kernels bound, edges as arrays seen from their producers, counters and inputs of a fresh iteration ready to
 * be copied. Everything a run would otherwise have to ask or check per node is decided here. */
#include <stdlib.h>

#include "exec/plan.h"

#define MAX_ARG_INDEX (1 << 20)
#define MAX_LOOP_DEPTH 500
#define FRAME_IDS 394 /* the GraphDef version with which TensorFlow began to combine hashes instead of hashing whole names (2.3) */

trn_err trn_exec__at_node(trn_err err, const trn_node *n)
{
    if (!err || trn_err_is_derived(err) || strstr(trn_err_msg(err), "[[{{node "))
        return err;
    trn_err e = trn_errorf(trn_err_code(err), "%s\n\t [[{{node %s}}]]", trn_err_msg(err), n->name);
    trn_err_free(err);
    return *n->device ? trn_err_wrap(e, "%s on %s", n->op, n->device) : trn_err_wrap(e, "%s", n->op);
}

/* What is only needed while building. */
typedef struct build {
    trn_plan *p;
    trn_graph *g;
    int *n_in_edges; /* data and control, per node */
    int *frame_of;   /* -1: not reached */
    int cap_frames;
    trn_map *frames; /* (parent, name) → its frame's number + 1 */
} build;

static bool is_op(const trn_gnode *gn, const char *op) { return strcmp(gn->n.op, op) == 0; }

static node_kind kind_of(const trn_gnode *gn, uint32_t flags)
{
    if (!gn->n.def)
        return KIND_CALL;
    if (flags & TRN_OP_SWITCH)
        return KIND_SWITCH;
    if (flags & TRN_OP_MERGE)
        return KIND_MERGE;
    if (flags & TRN_OP_ENTER)
        return KIND_ENTER;
    if (flags & TRN_OP_EXIT)
        return KIND_EXIT;
    if (flags & TRN_OP_NEXT)
        return KIND_NEXT;
    if ((flags & TRN_OP_LOOPCOND) || is_op(gn, "Identity"))
        return KIND_IDENTITY;
    if ((flags & TRN_OP_CTRL_TRIGGER) || is_op(gn, "NoOp"))
        return KIND_NOOP;
    if (is_op(gn, "Const"))
        return KIND_CONST;
    return flags & TRN_OP_ASYNC ? KIND_ASYNC : KIND_KERNEL;
}

/* Every edge names something that exists and has the type that is wanted. */
static trn_err check_edges(const trn_graph *g, const trn_gnode *gn)
{
    for (int i = 0; i < gn->n.n_in; i++) {
        trn_edge e = gn->in[i];
        const trn_gnode *src = e.node >= 0 && e.node < g->n ? g->node[e.node] : NULL;
        if (!src || e.slot < 0 || e.slot >= src->n.n_out)
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': input %d comes from nowhere", gn->n.name, i);
        trn_dtype want = gn->n.in_types[i], have = src->n.out_types[e.slot];
        if (trn_dtype_base(want) != trn_dtype_base(have))
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': input %d is %s from '%s:%d', not %s", gn->n.name, i, trn_dtype_name(have),
                              src->n.name, e.slot, trn_dtype_name(want));
        if (trn_dtype_is_ref(want) && !trn_dtype_is_ref(have))
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': input %d expects a ref type, '%s:%d' gives none", gn->n.name, i,
                              src->n.name, e.slot);
    }
    for (int i = 0; i < gn->n_ctl; i++)
        if (gn->ctl[i] < 0 || gn->ctl[i] >= g->n || !g->node[gn->ctl[i]])
            return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': control input %d comes from nowhere", gn->n.name, i);
    return TRN_OK;
}

static trn_err note_index(int *max, const trn_gnode *gn)
{
    int64_t i = trn_attr_int(&gn->n, "index");
    if (i < 0 || i >= MAX_ARG_INDEX)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': index %lld", gn->n.name, (long long)i);
    *max = TRN_MAX(*max, (int)i + 1);
    return TRN_OK;
}

static bool gives_ref(const trn_graph *g, trn_edge e) { return trn_dtype_is_ref(g->node[e.node]->n.out_types[e.slot]); }

static trn_err set_node(build *b, int id)
{
    trn_plan *p = b->p;
    trn_gnode *gn = b->g->node[id];
    pnode *n = &p->node[id];
    n->node = &gn->n;
    n->n_in = gn->n.n_in;
    n->n_out = gn->n.n_out;
    if (!gn->n.def && !(b->g->lib && trn_funclib_has(b->g->lib, gn->n.op)))
        return trn_errorf(TRN_UNIMPLEMENTED, "Op type not registered '%s' (node '%s')", gn->n.op, gn->n.name);
    n->flags = gn->n.def ? gn->n.def->row->flags : TRN_OP_ASYNC;
    n->kind = kind_of(gn, n->flags);
    n->kernel = gn->n.def ? gn->n.def->row->kernel : trn_exec__call_node;
    n->runs_dead = n->flags & (TRN_OP_DEAD_OK | TRN_OP_SEND | TRN_OP_RECV);
    n->trigger = n->flags & TRN_OP_CTRL_TRIGGER;
    n->child = -1;
    TRN_TRY(check_edges(b->g, gn));
    if ((n->kind == KIND_KERNEL || n->kind == KIND_ASYNC) && !n->kernel)
        return trn_errorf(TRN_UNIMPLEMENTED, "Op '%s' has no kernel (node '%s')", gn->n.op, gn->n.name);
    if (n->kind == KIND_CONST) {
        trn_tensor *value = trn_attr_tensor(&gn->n, "value");
        if (!value || value->dtype != gn->n.out_types[0])
            return trn_errorf(TRN_INVALID_ARGUMENT, "Const '%s': Type mismatch between value (%s) and dtype (%s)", gn->n.name,
                              value ? trn_dtype_name(value->dtype) : "missing", trn_dtype_name(gn->n.out_types[0]));
        n->value = trn_tensor_ref(value); /* the graph holds one too, so no kernel ever takes a constant's buffer for its own */
    }
    if (is_op(gn, "_Arg"))
        TRN_TRY(note_index(&p->n_args, gn));
    if (is_op(gn, "_Retval"))
        TRN_TRY(note_index(&p->n_rets, gn));
    p->sweep |= n->kind == KIND_MERGE;
    p->max_out = TRN_MAX(p->max_out, n->n_out);
    for (int i = 0; i < n->n_in; i++)
        n->ref_in |= gives_ref(b->g, gn->in[i]);
    n->alias = n->kind == KIND_IDENTITY && gn->n.n_in == 1 && gives_ref(b->g, gn->in[0]);
    return TRN_OK;
}

/* TensorFlow's Identity of a reference variable (what reading one is) shares the variable's buffer: whoever uses it sees the updates that
 * came before him, also those that came after the Identity. Programs count on it: SyncReplicasOptimizer reads global_step long before it
 * waits for gradients, and fills its tokens with the value after the update. So such an Identity passes the reference on, and each user
 * takes the value when he runs. */
static void set_alias(build *b)
{
    for (int id = 0; id < b->g->n; id++) {
        const trn_gnode *gn = b->g->node[id];
        for (int i = 0; gn && i < gn->n.n_in; i++)
            b->p->node[id].ref_in |= b->p->node[gn->in[i].node].alias;
    }
}

/* ---- edges ---------------------------------------------------------------------------------------------------- */

/* Input lists turned around: per producer, who takes what. */
static void set_edges(build *b)
{
    trn_plan *p = b->p;
    trn_graph *g = b->g;
    int64_t n_edges = 0, n_ctls = 0;
    for (int id = 0; id < p->n; id++) {
        trn_gnode *gn = g->node[id];
        for (int i = 0; i < gn->n.n_in; i++)
            p->node[gn->in[i].node].n_edges++;
        for (int i = 0; i < gn->n_ctl; i++)
            p->node[gn->ctl[i]].n_ctls++;
        n_edges += gn->n.n_in;
        n_ctls += gn->n_ctl;
        b->n_in_edges[id] = gn->n.n_in + gn->n_ctl;
    }
    p->edge = trn_arena_alloc(p->arena, (size_t)n_edges * sizeof *p->edge);
    p->ctl = trn_arena_alloc(p->arena, (size_t)n_ctls * sizeof *p->ctl);
    int e = 0, c = 0;
    for (int id = 0; id < p->n; id++) {
        pnode *n = &p->node[id];
        n->edges = e;
        n->ctls = c;
        e += n->n_edges;
        c += n->n_ctls;
        n->n_edges = n->n_ctls = 0; /* count up again while filling */
    }
    for (int id = 0; id < p->n; id++) {
        trn_gnode *gn = g->node[id];
        for (int i = 0; i < gn->n.n_in; i++) {
            pnode *src = &p->node[gn->in[i].node];
            p->edge[src->edges + src->n_edges++] = (out_edge){.dst = id, .loc = i, .slot = gn->in[i].slot};
        }
        for (int i = 0; i < gn->n_ctl; i++) {
            pnode *src = &p->node[gn->ctl[i]];
            p->ctl[src->ctls + src->n_ctls++] = id;
        }
    }
    /* Walking backwards, the first edge met of an output is its last taker. */
    bool *seen = trn_xalloc((size_t)p->max_out + 1);
    for (int id = 0; id < p->n; id++) {
        pnode *n = &p->node[id];
        memset(seen, 0, (size_t)n->n_out);
        for (int i = n->n_edges - 1; i >= 0; i--) {
            out_edge *o = &p->edge[n->edges + i];
            o->last = !seen[o->slot];
            seen[o->slot] = true;
        }
    }
    free(seen);
}

/* A node on a cycle that no Merge opens would never run, and its inputs never be freed. */
static trn_err check_cycles(build *b)
{
    trn_plan *p = b->p;
    int *left = trn_xalloc((size_t)p->n * sizeof *left + 1), *queue = trn_xalloc((size_t)p->n * sizeof *queue + 1);
    int head = 0, tail = 0;
    for (int id = 0; id < p->n; id++) {
        left[id] = b->n_in_edges[id];
        trn_gnode *gn = b->g->node[id];
        for (int i = 0; p->node[id].kind == KIND_MERGE && i < gn->n.n_in; i++)
            left[id] -= p->node[gn->in[i].node].kind == KIND_NEXT;
        if (left[id] == 0)
            queue[tail++] = id;
    }
    while (head < tail) {
        const pnode *n = &p->node[queue[head++]];
        for (int i = 0; i < n->n_edges; i++) {
            int dst = p->edge[n->edges + i].dst;
            if (!(n->kind == KIND_NEXT && p->node[dst].kind == KIND_MERGE) && --left[dst] == 0)
                queue[tail++] = dst;
        }
        for (int i = 0; i < n->n_ctls; i++)
            if (--left[p->ctl[n->ctls + i]] == 0)
                queue[tail++] = p->ctl[n->ctls + i];
    }
    trn_err err = TRN_OK;
    for (int id = 0; tail < p->n && !err && id < p->n; id++)
        if (left[id] > 0)
            err = trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s' is on a cycle", p->node[id].node->name);
    free(left);
    free(queue);
    return err;
}

/* ---- frames --------------------------------------------------------------------------------------------------- */

static trn_err add_frame(int *out, build *b, const pnode *enter, int parent)
{
    trn_plan *p = b->p;
    const char *name = trn_attr_str(enter->node, "frame_name");
    int64_t parallel = trn_attr_int(enter->node, "parallel_iterations");
    trn_sb key = {0};
    trn_sb_addf(&key, "%d/%s", parent, name);
    intptr_t at = (intptr_t)trn_map_gets(b->frames, key.p) - 1;
    if (at < 0) {
        at = p->n_frames;
        TRN_PUSH(p->frame, p->n_frames, b->cap_frames,
                 (frame_info){.name = name,
                              .hash = trn_hash64_tf(name, strlen(name)),
                              .parent = parent,
                              .depth = p->frame[parent].depth + 1,
                              .parallel = (int)TRN_MIN(TRN_MAX(parallel, 1), 1 << 20)});
        trn_map_puts(b->frames, key.p, (void *)(at + 1));
    }
    trn_sb_fini(&key);
    if (p->frame[at].depth > MAX_LOOP_DEPTH)
        return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': loops nest deeper than %d", enter->node->name, MAX_LOOP_DEPTH);
    *out = (int)at;
    return TRN_OK;
}

static trn_err reach(build *b, int *queue, int *tail, const pnode *src, int out_frame, int dst)
{
    trn_plan *p = b->p;
    if (b->frame_of[dst] < 0) {
        b->frame_of[dst] = out_frame;
        queue[(*tail)++] = dst;
    } else if (b->frame_of[dst] != out_frame) {
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Node '%s' has inputs from different frames. The input '%s' is in frame '%s'. Another input is in frame '%s'.",
                          p->node[dst].node->name, src->node->name, p->frame[out_frame].name, p->frame[b->frame_of[dst]].name);
    }
    return TRN_OK;
}

/* Follows edges from the nodes without inputs: Enter opens a frame, Exit leaves it, everybody else stays. */
static trn_err walk_frames(build *b, int *queue)
{
    trn_plan *p = b->p;
    int head = 0, tail = 0;
    for (int id = 0; id < p->n; id++) {
        b->frame_of[id] = b->n_in_edges[id] == 0 ? 0 : -1;
        if (b->n_in_edges[id] == 0)
            queue[tail++] = id;
    }
    while (head < tail) {
        int id = queue[head++];
        pnode *n = &p->node[id];
        int f = b->frame_of[id], to = f;
        if (n->kind == KIND_ENTER) {
            n->invariant = trn_attr_bool(n->node, "is_constant");
            TRN_TRY(add_frame(&to, b, n, f));
            n->child = to;
            p->frame[to].n_enters++;
        } else if (n->kind == KIND_EXIT || n->kind == KIND_NEXT) {
            if (f == 0)
                return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': %s outside of a loop: there is no Enter for it", n->node->name,
                                  n->node->op);
            if (n->kind == KIND_EXIT)
                to = p->frame[f].parent;
        }
        for (int i = 0; i < n->n_edges; i++)
            TRN_TRY(reach(b, queue, &tail, n, to, p->edge[n->edges + i].dst));
        for (int i = 0; i < n->n_ctls; i++)
            TRN_TRY(reach(b, queue, &tail, n, to, p->ctl[n->ctls + i]));
    }
    return TRN_OK;
}

static trn_err set_frames(build *b)
{
    trn_plan *p = b->p;
    TRN_PUSH(p->frame, p->n_frames, b->cap_frames, (frame_info){.name = "", .parallel = 1});
    int *queue = trn_xalloc((size_t)p->n * sizeof *queue + 1);
    b->frames = trn_map_new();
    trn_err err = walk_frames(b, queue);
    trn_map_free(b->frames, NULL);
    free(queue);
    if (err)
        return err;
    for (int id = 0; id < p->n; id++) {
        pnode *n = &p->node[id];
        n->frame = TRN_MAX(b->frame_of[id], 0);
        frame_info *f = &p->frame[n->frame];
        n->in0 = f->n_values;
        n->at = f->n_nodes++;
        f->n_values += n->n_in;
    }
    for (int id = 0; id < p->n; id++)
        for (int i = 0; i < p->node[id].n_edges; i++) {
            out_edge *e = &p->edge[p->node[id].edges + i];
            e->loc += p->node[e->dst].in0;
        }
    return TRN_OK;
}

/* ---- counters, constants, roots -------------------------------------------------------------------------------- */

/* A constant without control inputs is known before the run starts: it is put into the inputs that a fresh run is copied from,
 * and its users wait for one input less. */
static void preload(trn_plan *p, pnode *n)
{
    for (int i = 0; i < n->n_edges; i++)
        if (p->node[p->edge[n->edges + i].dst].kind == KIND_MERGE)
            return; /* a Merge has to see it arrive */
    n->preloaded = true;
    for (int i = 0; i < n->n_edges; i++) {
        out_edge *e = &p->edge[n->edges + i];
        p->frame[0].values[e->loc].t = n->value;
        p->node[e->dst].pending--;
    }
    for (int i = 0; i < n->n_ctls; i++) {
        pnode *dst = &p->node[p->ctl[n->ctls + i]];
        dst->pending -= dst->kind == KIND_MERGE ? 2 : 1;
    }
}

static trn_err make_index(trn_plan *p, pnode *n)
{
    bool read = false;
    for (int i = 0; i < n->n_edges; i++)
        read |= p->edge[n->edges + i].slot == 1;
    if (!read)
        return TRN_OK;
    n->index = trn_arena_alloc(p->arena, (size_t)n->n_in * sizeof *n->index);
    for (int i = 0; i < n->n_in; i++)
        if (!(n->index[i] = trn_tensor_i32(i)))
            return trn_err_oom();
    return TRN_OK;
}

static trn_err set_counters(build *b)
{
    trn_plan *p = b->p;
    for (int f = 0; f < p->n_frames; f++) {
        p->frame[f].values = trn_arena_alloc(p->arena, (size_t)p->frame[f].n_values * sizeof *p->frame[f].values);
        p->frame[f].counters = trn_arena_alloc(p->arena, (size_t)p->frame[f].n_nodes * sizeof *p->frame[f].counters);
    }
    for (int id = 0; id < p->n; id++) {
        pnode *n = &p->node[id];
        n->pending = n->kind == KIND_MERGE ? 1 + 2 * (uint32_t)b->g->node[id]->n_ctl : (uint32_t)b->n_in_edges[id];
        if (n->kind == KIND_MERGE)
            TRN_TRY(make_index(p, n));
    }
    for (int id = 0; id < p->n; id++)
        if (p->node[id].kind == KIND_CONST && b->n_in_edges[id] == 0)
            preload(p, &p->node[id]);
    p->root = trn_arena_alloc(p->arena, (size_t)p->n * sizeof *p->root);
    for (int pass = 0; pass < 2; pass++) /* what waits for others (Recv) is asked for first */
        for (int id = 0; id < p->n; id++) {
            pnode *n = &p->node[id];
            if (pass == 0)
                p->frame[n->frame].counters[n->at] = n->pending;
            if (n->pending == 0 && !n->preloaded && n->frame == 0 && (n->kind == KIND_ASYNC) == (pass == 0))
                p->root[p->n_roots++] = id;
        }
    p->ret = trn_arena_alloc(p->arena, (size_t)p->n_rets * sizeof *p->ret);
    for (int id = 0; id < p->n; id++)
        if (is_op(b->g->node[id], "_Retval")) {
            const pnode **ret = &p->ret[trn_attr_int(p->node[id].node, "index")];
            if (*ret || p->node[id].frame != 0)
                return trn_errorf(TRN_INVALID_ARGUMENT, "Node '%s': its index is taken, or it is inside a loop", p->node[id].node->name);
            *ret = &p->node[id];
        }
    return TRN_OK;
}

/* _Send and _Recv are stateful for the optimiser's eyes; what they keep is their key, which is the plan's. */
static bool in_session(const pnode *n)
{
    return (n->flags & TRN_OP_STATEFUL) && !(n->flags & (TRN_OP_SEND | TRN_OP_RECV));
}

static trn_err set_states(trn_plan *p, const char *scope)
{
    for (int id = 0; id < p->n; id++) {
        pnode *n = &p->node[id];
        const trn_op *row = n->node->def ? n->node->def->row : NULL;
        if (!row || !row->init)
            continue;
        trn_err err;
        if (in_session(n)) {
            err = trn_kcache__get(&n->state, p->kc, scope, n->node, p->resmgr);
        } else {
            trn_kinit ki = {.node = n->node, .resmgr = p->resmgr};
            err = row->init(&ki);
            n->state = err ? NULL : ki.state;
        }
        if (err)
            return trn_exec__at_node(err, n->node);
    }
    return TRN_OK;
}

/* ---- the plan as a whole -------------------------------------------------------------------------------------- */

static trn_err build_plan(build *b, const char *scope)
{
    trn_plan *p = b->p;
    p->node = trn_arena_alloc(p->arena, (size_t)p->n * sizeof *p->node);
    for (int id = 0; id < p->n; id++)
        TRN_TRY(set_node(b, id));
    set_alias(b);
    set_edges(b);
    TRN_TRY(check_cycles(b));
    TRN_TRY(set_frames(b));
    TRN_TRY(set_counters(b));
    return set_states(p, scope);
}

static void plan_free(trn_plan *p)
{
    for (int i = 0; i < RUN_CACHE; i++)
        trn_run__free_block(atomic_load(&p->spare[i]));
    for (int id = 0; p->node && id < p->n; id++) {
        pnode *n = &p->node[id];
        const trn_op *row = n->node && n->node->def ? n->node->def->row : NULL;
        if (n->state && row && row->fini && !in_session(n))
            row->fini(n->state);
        trn_tensor_unref(n->value);
        for (int i = 0; n->index && i < n->n_in; i++)
            trn_tensor_unref(n->index[i]);
    }
    if (p->owns_fns)
        trn_fncache__free(p->fns);
    free(p->frame);
    trn_arena_free(p->arena);
    trn_graph_free(p->g);
    trn_kcache_unref(p->kc);
    trn_resmgr_unref(p->resmgr);
    free(p);
}

trn_err trn_plan__new(trn_plan **out, trn_graph *g, const trn_exec_env *env, trn_kcache *kc, trn_resmgr *resmgr, fncache *fns,
                      const char *scope)
{
    trn_graph_compact(g);
    trn_graph_note_ops(g);
    trn_err err = trn_graph_reads_in_loops(g);
    if (err) {
        trn_graph_free(g);
        return err;
    }
    trn_plan *p = trn_xalloc(sizeof *p);
    atomic_init(&p->ref, 1);
    p->g = g;
    p->named_frames = g->producer > 0 && g->producer < FRAME_IDS;
    p->env = env;
    p->kc = kc ? trn_kcache_ref(kc) : trn_kcache_new();
    p->resmgr = trn_resmgr_ref(resmgr);
    p->fns = fns ? fns : trn_fncache__new();
    p->owns_fns = !fns;
    p->arena = trn_arena_new();
    p->n = g->n;
    build b = {.p = p, .g = g};
    b.n_in_edges = trn_xalloc((size_t)p->n * sizeof *b.n_in_edges + 1);
    b.frame_of = trn_xalloc((size_t)p->n * sizeof *b.frame_of + 1);
    err = build_plan(&b, scope);
    free(b.n_in_edges);
    free(b.frame_of);
    if (err) {
        plan_free(p);
        return err;
    }
    *out = p;
    return TRN_OK;
}

trn_err trn_plan_new(trn_plan **out, trn_graph *g, const trn_exec_env *env, trn_kcache *kc, trn_resmgr *resmgr)
{
    return trn_plan__new(out, g, env, kc, resmgr, NULL, "");
}

trn_plan *trn_plan_ref(trn_plan *p)
{
    atomic_fetch_add_explicit(&p->ref, 1, memory_order_relaxed);
    return p;
}

void trn_plan_unref(trn_plan *p)
{
    if (p && atomic_fetch_sub_explicit(&p->ref, 1, memory_order_acq_rel) == 1)
        plan_free(p);
}

const trn_graph *trn_plan_graph(const trn_plan *p) { return p->g; }
int trn_plan_n_args(const trn_plan *p) { return p->n_args; }
int trn_plan_n_rets(const trn_plan *p) { return p->n_rets; }
