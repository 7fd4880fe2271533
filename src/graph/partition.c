/* Partition: one graph per task.
 *
 * All of it happens on one working copy of the placed graph, in passes that each leave a graph that means the same:
 *     follow        Switch and Exit go to their input's device, Enter and NextIteration to their consumer's: fewer tasks in a loop
 *     copy_sources  small constants, and loop invariants (constant Enter), are copied to the tasks that use them
 *     make_reads    reading a variable through a ref edge from another task becomes an Identity on the variable's task, so that the read
 *                   still happens after what the reader waits for
 *     add_loops     each task that has a part of a loop body gets a control loop: nodes that count the iterations along
 *     gather_waits  control edges from several nodes of a task to one node elsewhere become one, behind a NoOp
 *     cut           edges between tasks become _Send and _Recv
 * Then each task's nodes are copied out. Nothing connects them any more but rendezvous keys.
 *
 * Why control loops: a _Recv has no inputs, so in a loop nothing would start it once per iteration. The control loop's Merge does; its Switch
 * asks the loop's own LoopCond, received like any other tensor. In a nested loop the outer Merge enters the inner control loop. Frame names
 * are the loop's own, so frame ids, which are part of rendezvous keys, agree on all tasks. The last iteration, in which the condition is
 * false, sends dead tensors: every _Recv that was started is answered. */
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>

#define SMALL_CONST 16384 /* bytes; a constant up to this is copied rather than sent in every step */

typedef struct cutter {
    trn_graph *w; /* the working copy */
    const trn_devset *ds;
    int n_tasks;
    const char **task; /* names; in the order of the devices */
    int *task_of_dev;  /* by device */
    trn_frames f;      /* f.of grows with w */
    int cap_of;
    int *loop;      /* [frame * n_tasks + task]: the control loop's Merge, -1: none */
    trn_map *moved; /* key → node id + 1: what stands for a tensor on another task */
    trn_map *waits; /* task and a set of nodes on another that one on it waits for → cell with their NoOp */
    int n_edges;    /* numbers tensor names */
} cutter;

typedef struct key {
    int kind, node, slot, task;
} key;
enum { KEY_COPY, KEY_RECV, KEY_AWAITED, KEY_LANE };

static int lookup(const cutter *c, key k) { return (int)(intptr_t)trn_map_get(c->moved, &k, sizeof k) - 1; }
static void remember(cutter *c, key k, int id) { trn_map_put(c->moved, &k, sizeof k, (void *)(intptr_t)(id + 1)); }

static uint32_t flags_of(const trn_gnode *nd) { return nd->n.def ? nd->n.def->row->flags : 0; }
static bool is_op(const trn_gnode *nd, const char *op) { return strcmp(nd->n.op, op) == 0; }
static int task_of(const cutter *c, const trn_gnode *nd) { return c->task_of_dev[nd->dev]; }
static trn_gnode *node_at(const cutter *c, int id) { return c->w->node[id]; }

static void set_device(cutter *c, trn_gnode *nd, int dev)
{
    nd->dev = dev;
    nd->n.device = NULL; /* written once, at the end */
}

static trn_err add(trn_gnode **out, cutter *c, const char *op, const char *base, const char *suffix, int dev, int frame,
                   const trn_attr *attrs, int n_attrs, const trn_edge *in, int n_in)
{
    char *want = trn_xasprintf("%s/%s", base, suffix);
    const char *name = trn_graph_unique_name(c->w, want);
    free(want);
    trn_gnode *nd;
    TRN_TRY(trn_graph_add(&nd, c->w, op, name, "", attrs, n_attrs, in, n_in));
    set_device(c, nd, dev);
    if (c->w->n > c->cap_of) {
        c->cap_of = TRN_MAX(2 * c->cap_of, c->w->n);
        c->f.of = trn_xrealloc(c->f.of, sizeof *c->f.of * (size_t)c->cap_of);
    }
    c->f.of[nd->id] = frame;
    *out = nd;
    return TRN_OK;
}

#define TYPE_ATTR(nm, t) ((trn_attr){.name = nm, .kind = TRN_ATTR_TYPE, .v.type = (t)})
#define INT_ATTR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_INT, .v.i = (x)})
#define BOOL_ATTR(nm, x) ((trn_attr){.name = nm, .kind = TRN_ATTR_BOOL, .v.b = (x)})

static trn_attr str_attr(const char *name, const char *s)
{
    return (trn_attr){.name = name, .kind = TRN_ATTR_STRING, .v.s = {s, strlen(s)}};
}

/* float[0]: carries nothing but the fact that it came. */
static trn_err add_token(trn_gnode **out, cutter *c, const char *base, const char *suffix, int dev, int frame)
{
    trn_tensor *t;
    trn_shape empty = trn_shape_vector(0);
    TRN_TRY(trn_tensor_new(&t, TRN_FLOAT, &empty));
    trn_attr attrs[] = {TYPE_ATTR("dtype", TRN_FLOAT), {.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}};
    trn_err err = add(out, c, "Const", base, suffix, dev, frame, attrs, TRN_COUNTOF(attrs), NULL, 0);
    trn_tensor_unref(t);
    return err;
}

/* ---- follow ----------------------------------------------------------------------------------------------------- */

static void follow(cutter *c)
{
    trn_graph *w = c->w;
    int *order = trn_xalloc(sizeof *order * (size_t)TRN_MAX(w->n, 1));
    int *user = trn_xalloc(sizeof *user * (size_t)TRN_MAX(w->n, 1)); /* first data consumer */
    int n = trn_graph_topo(w, order);
    for (int id = 0; id < w->n; id++)
        user[id] = -1;
    for (int id = 0; id < w->n; id++)
        for (int i = 0; i < node_at(c, id)->n.n_in; i++) {
            int from = node_at(c, id)->in[i].node;
            if (user[from] < 0)
                user[from] = id;
        }
    for (int k = n - 1; k >= 0; k--) {
        trn_gnode *nd = node_at(c, order[k]);
        uint32_t flags = flags_of(nd);
        bool moves = (flags & TRN_OP_NEXT) || ((flags & TRN_OP_ENTER) && !trn_dtype_is_ref(nd->n.in_types[0]));
        if (moves && user[nd->id] >= 0)
            set_device(c, nd, node_at(c, user[nd->id])->dev);
    }
    for (int k = 0; k < n; k++) {
        trn_gnode *nd = node_at(c, order[k]);
        if (flags_of(nd) & (TRN_OP_SWITCH | TRN_OP_EXIT))
            set_device(c, nd, node_at(c, nd->in[0].node)->dev);
    }
    free(order);
    free(user);
}

/* ---- copy_sources ----------------------------------------------------------------------------------------------- */

static bool is_source_const(const trn_gnode *nd) { return nd->n_ctl == 0 && is_op(nd, "Const"); }

static bool is_small(const trn_gnode *nd)
{
    const trn_tensor *t = trn_attr_tensor(&nd->n, "value");
    if (!t)
        return false;
    size_t bytes = trn_tensor_bytes(t);
    if (trn_tensor_dtype(t) == TRN_STRING)
        for (int64_t i = 0; i < trn_tensor_count(t) && bytes <= SMALL_CONST; i++) {
            size_t len;
            trn_tensor_str_at(t, i, &len);
            bytes += len;
        }
    return bytes <= SMALL_CONST;
}

static bool is_invariant(const trn_gnode *nd)
{
    return (flags_of(nd) & TRN_OP_ENTER) && !trn_dtype_is_ref(nd->n.in_types[0]) &&
           trn_attr_bool(&nd->n, "is_constant");
}

static trn_err copy_node(trn_gnode **out, cutter *c, const trn_gnode *nd, int dev)
{
    key k = {KEY_COPY, nd->id, 0, c->task_of_dev[dev]};
    int have = lookup(c, k);
    if (have >= 0) {
        *out = node_at(c, have);
        return TRN_OK;
    }
    TRN_TRY(add(out, c, nd->n.op, nd->n.name, "_copy", dev, c->f.of[nd->id], nd->n.attrs, nd->n.n_attrs, nd->in,
                nd->n.n_in));
    for (int i = 0; i < nd->n_ctl; i++)
        trn_graph_add_ctl(c->w, *out, nd->ctl[i]);
    remember(c, k, (*out)->id);
    return TRN_OK;
}

static trn_err copy_sources(cutter *c)
{
    trn_graph *w = c->w;
    int n0 = w->n;
    bool *left = trn_xalloc(sizeof *left * (size_t)TRN_MAX(n0, 1));
    int *twins = trn_xalloc(sizeof *twins * (size_t)TRN_MAX(n0, 1)); /* a copy of the node; 0: none */
    trn_err err = TRN_OK;
    for (int id = 0; id < w->n && !err;
         id++) { /* w->n grows: a copied Enter may itself have an Enter or a constant before it */
        trn_gnode *nd = node_at(c, id);
        for (int i = 0; i < nd->n.n_in && !err; i++) {
            trn_gnode *from = node_at(c, nd->in[i].node);
            /* What is fetched comes from where it was placed: a client may ask just to see whether that task is there. */
            bool copy = task_of(c, from) != task_of(c, nd) && !is_op(nd, "_Retval") && ((is_source_const(from) && is_small(from)) || is_invariant(from));
            if (!copy) {
                if (from->id < n0)
                    left[from->id] = true;
                continue;
            }
            trn_gnode *twin;
            err = copy_node(&twin, c, from, nd->dev);
            if (!err) {
                nd->in[i].node = twin->id;
                if (from->id < n0)
                    twins[from->id] = twin->id;
            }
        }
        /* Waiting for a constant is waiting for nothing. */
        int n = 0;
        for (int i = 0; i < nd->n_ctl; i++) {
            const trn_gnode *from = node_at(c, nd->ctl[i]);
            if (task_of(c, from) == task_of(c, nd) || !is_source_const(from)) {
                nd->ctl[n++] = nd->ctl[i];
                if (from->id < n0)
                    left[from->id] = true;
            }
        }
        nd->n_ctl = n;
    }
    for (int id = 0; id < n0 && !err; id++)
        if (twins[id] && !left[id]) {
            trn_frame *frame = &c->f.frame[c->f.of[id]];
            if (frame->enter == id)
                frame->enter = twins[id];
            trn_graph_remove(w, id);
        }
    free(left);
    free(twins);
    return err;
}

/* ---- make_reads ------------------------------------------------------------------------------------------------- */

static bool waits_for_nothing(const trn_gnode *nd) { return nd->n.n_in == 0 && nd->n_ctl == 0; }

/* The reader sees the variable as it is when all its other inputs are there. Those become control inputs of the read. */
static trn_err make_read(cutter *c, trn_gnode *nd, int i)
{
    const trn_gnode *from = node_at(c, nd->in[i].node);
    trn_dtype t = from->n.out_types[nd->in[i].slot];
    if (nd->n.in_types && trn_dtype_is_ref(nd->n.in_types[i]))
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Input %d of {{node %s}} on %s is a reference to {{node %s}} on %s: a reference cannot cross "
                          "from task to task",
                          i, nd->n.name, c->ds->dev[nd->dev].name, from->n.name, c->ds->dev[from->dev].name);
    if (flags_of(nd) & TRN_OP_MERGE) /* waits for one input only */
        return TRN_OK;
    trn_gnode *read = NULL;
    for (int k = 0; k < nd->n.n_in + nd->n_ctl; k++) {
        int id = k < nd->n.n_in ? nd->in[k].node : nd->ctl[k - nd->n.n_in];
        if (id == from->id || waits_for_nothing(node_at(c, id)))
            continue;
        if (!read) {
            trn_attr attr = TYPE_ATTR("T", trn_dtype_base(t));
            TRN_TRY(add(&read, c, "Identity", from->n.name, "_read", from->dev, trn_frames_out(&c->f, from), &attr, 1,
                        &nd->in[i], 1));
        }
        trn_graph_add_ctl(c->w, read, id);
    }
    if (read)
        nd->in[i] = (trn_edge){read->id, 0};
    return TRN_OK;
}

static trn_err make_reads(cutter *c)
{
    int n0 = c->w->n;
    for (int id = 0; id < n0; id++) {
        trn_gnode *nd = node_at(c, id);
        for (int i = 0; nd && i < nd->n.n_in; i++) {
            const trn_gnode *from = node_at(c, nd->in[i].node);
            if (task_of(c, from) != task_of(c, nd) && trn_dtype_is_ref(from->n.out_types[nd->in[i].slot]))
                TRN_TRY(make_read(c, nd, i));
        }
    }
    return TRN_OK;
}

/* ---- add_loops -------------------------------------------------------------------------------------------------- */

static int *loop_at(const cutter *c, int frame, int task)
{
    return &c->loop[(size_t)frame * (size_t)c->n_tasks + (size_t)task];
}

static trn_err add_loop(cutter *c, int frame, int dev)
{
    int task = c->task_of_dev[dev];
    const trn_frame *fr = &c->f.frame[frame];
    if (fr->loop_cond < 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "The loop \"%s\" spans several tasks but has no LoopCond", fr->name);
    const char *base = node_at(c, fr->enter)->n.name;
    trn_edge in[2] = {{-1, 0}, {-1, 0}};
    trn_gnode *start, *enter, *merge, *sw, *next;
    if (fr->parent) {
        start = node_at(c, *loop_at(c, fr->parent, task));
    } else {
        TRN_TRY(add_token(&start, c, base, "_loop_start", dev, 0));
    }
    in[0].node = start->id;
    trn_attr t = TYPE_ATTR("T", TRN_FLOAT);
    trn_attr enter_attrs[] = {
        t, str_attr("frame_name", fr->name), BOOL_ATTR("is_constant", false),
        INT_ATTR("parallel_iterations", trn_attr_int(&node_at(c, fr->enter)->n, "parallel_iterations"))};
    trn_attr merge_attrs[] = {t, INT_ATTR("N", 2)};
    TRN_TRY(add(&enter, c, "Enter", base, "_loop_enter", dev, frame, enter_attrs, TRN_COUNTOF(enter_attrs), in, 1));
    in[0].node = enter->id;
    TRN_TRY(add(&merge, c, "Merge", base, "_loop_merge", dev, frame, merge_attrs, TRN_COUNTOF(merge_attrs), in, 2));
    in[0].node = merge->id;
    in[1].node = fr->loop_cond;
    TRN_TRY(add(&sw, c, "Switch", base, "_loop_switch", dev, frame, &t, 1, in, 2));
    in[0] = (trn_edge){sw->id, 1};
    TRN_TRY(add(&next, c, "NextIteration", base, "_loop_next", dev, frame, &t, 1, in, 1));
    merge->in[1] = (trn_edge){next->id, 0};
    *loop_at(c, frame, task) = merge->id;
    return TRN_OK;
}

/* A control loop of `frame`, and of all loops around it, on the device's task. */
static trn_err need_loop(cutter *c, int frame, int dev)
{
    while (*loop_at(c, frame, c->task_of_dev[dev]) < 0) {
        int top = frame; /* the outermost that is missing */
        for (int p = c->f.frame[top].parent; p && *loop_at(c, p, c->task_of_dev[dev]) < 0; p = c->f.frame[p].parent)
            top = p;
        TRN_TRY(add_loop(c, top, dev));
    }
    return TRN_OK;
}

static trn_err need_loop_for(cutter *c, const trn_gnode *from, const trn_gnode *nd)
{
    int frame = trn_frames_in(&c->f, nd);
    return frame && task_of(c, from) != task_of(c, nd) ? need_loop(c, frame, nd->dev) : TRN_OK;
}

static trn_err add_loops(cutter *c)
{
    if (c->f.n == 1)
        return TRN_OK;
    size_t cells = (size_t)c->f.n * (size_t)c->n_tasks;
    c->loop = trn_xalloc(sizeof *c->loop * cells);
    int *some = trn_xalloc(sizeof *some * cells), *tasks = trn_xalloc(sizeof *tasks * (size_t)c->f.n);
    bool *counts = trn_xalloc(sizeof *counts * cells);
    for (size_t i = 0; i < cells; i++)
        c->loop[i] = some[i] = -1;
    trn_err err = TRN_OK;
    int n0 = c->w->n;
    for (int id = 0; id < n0 && !err; id++) {
        const trn_gnode *nd = node_at(c, id);
        if (!nd)
            continue;
        for (int i = 0; i < nd->n.n_in && !err; i++)
            err = need_loop_for(c, node_at(c, nd->in[i].node), nd);
        for (int i = 0; i < nd->n_ctl && !err; i++)
            err = need_loop_for(c, node_at(c, nd->ctl[i]), nd);
        size_t cell = (size_t)(loop_at(c, c->f.of[id], task_of(c, nd)) - c->loop);
        tasks[c->f.of[id]] += some[cell] < 0;
        some[cell] = nd->dev;
        counts[cell] |= (flags_of(nd) & TRN_OP_NEXT) != 0;
    }
    /* A part that nothing comes into, such as a sum of loop invariants, needs something that counts, too. */
    for (int f = 1; f < c->f.n && !err; f++)
        for (int t = 0; t < c->n_tasks && !err; t++) {
            size_t cell = (size_t)(loop_at(c, f, t) - c->loop);
            if (tasks[f] > 1 && some[cell] >= 0 && !counts[cell])
                err = need_loop(c, f, some[cell]);
        }
    free(some);
    free(tasks);
    free(counts);
    return err;
}

/* ---- gather_waits ----------------------------------------------------------------------------------------------- */

/* The control edges from one task to another. One token per waiting set of nodes is fewer than one per node awaited, or it is not. */
typedef struct lane {
    int n_sets, n_nodes;
} lane;

static bool takes_data_from(const trn_gnode *nd, int from)
{
    for (int i = 0; i < nd->n.n_in; i++)
        if (nd->in[i].node == from)
            return true;
    return false;
}

static lane *lane_at(cutter *c, int from, int to)
{
    key k = {KEY_LANE, from, 0, to};
    lane *l = trn_map_get(c->moved, &k, sizeof k);
    if (!l) {
        l = trn_arena_alloc(c->w->arena, sizeof *l);
        trn_map_put(c->moved, &k, sizeof k, l);
    }
    return l;
}

static int by_task(const void *a, const void *b, void *arg)
{
    int x = *(const int *)a, y = *(const int *)b, tx = task_of(arg, node_at(arg, x)),
        ty = task_of(arg, node_at(arg, y));
    return tx != ty ? (tx > ty) - (tx < ty) : (x > y) - (x < y);
}

/* Local control inputs first, then the others by task; those that a data edge from the same node implies are dropped. A Merge does not
 * wait for its data, and is left alone. Returns how many are local, or all. */
static int sort_waits(cutter *c, trn_gnode *nd)
{
    if (flags_of(nd) & TRN_OP_MERGE)
        return nd->n_ctl;
    int n = 0, local = 0;
    for (int i = 0; i < nd->n_ctl; i++) {
        int from = nd->ctl[i];
        bool here = task_of(c, node_at(c, from)) == task_of(c, nd);
        if (!here && takes_data_from(nd, from))
            continue;
        nd->ctl[n++] = from;
        if (here) {
            nd->ctl[n - 1] = nd->ctl[local];
            nd->ctl[local++] = from;
        }
    }
    nd->n_ctl = n;
    if (n - local > 1)
        qsort_r(nd->ctl + local, (size_t)(n - local), sizeof *nd->ctl, by_task, c);
    return local;
}

/* The end of the run of control inputs from one task that begins at `i`. */
static int run_end(const cutter *c, const trn_gnode *nd, int i)
{
    int task = task_of(c, node_at(c, nd->ctl[i]));
    while (i < nd->n_ctl && task_of(c, node_at(c, nd->ctl[i])) == task)
        i++;
    return i;
}

static void **wait_cell(cutter *c, const trn_gnode *nd, int i, int end)
{
    size_t n = (size_t)(end - i);
    int *set = trn_xalloc(sizeof *set * (n + 1));
    set[0] = task_of(c, nd);
    memcpy(set + 1, nd->ctl + i, sizeof *set * n);
    void **cell = trn_map_get(c->waits, set, sizeof *set * (n + 1));
    if (!cell) {
        cell = trn_arena_alloc(c->w->arena, sizeof *cell);
        trn_map_put(c->waits, set, sizeof *set * (n + 1), cell);
        lane *l = lane_at(c, task_of(c, node_at(c, nd->ctl[i])), task_of(c, nd));
        l->n_sets++;
        for (size_t k = 1; k <= n; k++) {
            key seen = {KEY_AWAITED, set[k], 0, set[0]};
            if (lookup(c, seen) < 0) {
                remember(c, seen, 0);
                l->n_nodes++;
            }
        }
    }
    free(set);
    return cell;
}

static trn_err gather_waits(cutter *c)
{
    int n0 = c->w->n;
    for (int id = 0; id < n0; id++) {
        trn_gnode *nd = node_at(c, id);
        for (int i = nd ? sort_waits(c, nd) : 0, end; nd && i < nd->n_ctl; i = end)
            wait_cell(c, nd, i, end = run_end(c, nd, i));
    }
    for (int id = 0; id < n0; id++) {
        trn_gnode *nd = node_at(c, id);
        if (!nd)
            continue;
        int n = sort_waits(c, nd);
        for (int i = n, end; i < nd->n_ctl; i = end) {
            const trn_gnode *first = node_at(c, nd->ctl[i]);
            end = run_end(c, nd, i);
            const lane *l = lane_at(c, task_of(c, first), task_of(c, nd));
            if (end - i == 1 || l->n_sets >= l->n_nodes) {
                memmove(nd->ctl + n, nd->ctl + i, sizeof *nd->ctl * (size_t)(end - i));
                n += end - i;
                continue;
            }
            void **cell = wait_cell(c, nd, i, end);
            if (!*cell) {
                trn_gnode *all;
                TRN_TRY(
                    add(&all, c, "NoOp", nd->n.name, "_all", first->dev, trn_frames_in(&c->f, nd), NULL, 0, NULL, 0));
                all->n_ctl = all->cap_ctl = end - i;
                all->ctl = trn_arena_dup(c->w->arena, nd->ctl + i, sizeof *nd->ctl * (size_t)(end - i));
                *cell = all;
            }
            nd->ctl[n++] = ((trn_gnode *)*cell)->id;
        }
        nd->n_ctl = n;
    }
    return TRN_OK;
}

/* ---- cut -------------------------------------------------------------------------------------------------------- */

/* A _Send of `from` here and a _Recv there. `reader` is the first to want it on its task. */
static trn_err send_recv(trn_gnode **out, cutter *c, const char *base, trn_edge from, trn_dtype t,
                         const trn_gnode *reader)
{
    const trn_gnode *src = node_at(c, from.node);
    const trn_device *sd = &c->ds->dev[src->dev], *rd = &c->ds->dev[reader->dev];
    char *tensor_name = trn_xasprintf("edge_%d_%s", c->n_edges++, base);
    trn_attr attrs[] = {TYPE_ATTR("T", t),
                        str_attr("tensor_name", tensor_name),
                        str_attr("send_device", sd->name),
                        INT_ATTR("send_device_incarnation", (int64_t)sd->incarnation),
                        str_attr("recv_device", rd->name),
                        BOOL_ATTR("client_terminated", false)};
    /* TensorFlow's worker keeps the kernels of these ops by node name for all graphs of a session: one name must mean one key. */
    char *whole = trn_xasprintf("%s;%s;%s;%d", tensor_name, sd->name, rd->name, (int)t);
    uint32_t mark = (uint32_t)trn_hash64_tf(whole, strlen(whole));
    free(whole);
    char send_name[32], recv_name[32];
    snprintf(send_name, sizeof send_name, "_send_%08x", mark);
    snprintf(recv_name, sizeof recv_name, "_recv_%08x", mark);
    int frame = trn_frames_in(&c->f, reader);
    trn_gnode *send, *recv;
    trn_err err = add(&send, c, "_Send", base, send_name, src->dev, frame, attrs, TRN_COUNTOF(attrs), &from, 1);
    attrs[0].name = "tensor_type";
    if (!err)
        err = add(&recv, c, "_Recv", base, recv_name, reader->dev, frame, attrs, TRN_COUNTOF(attrs), NULL, 0);
    free(tensor_name);
    if (err)
        return err;
    if (frame)
        trn_graph_add_ctl(c->w, recv, *loop_at(c, frame, task_of(c, reader)));
    *out = recv;
    return TRN_OK;
}

static trn_err recv_data(int *out, cutter *c, trn_edge from, const trn_gnode *reader, int i)
{
    key k = {KEY_RECV, from.node, from.slot, task_of(c, reader)};
    *out = lookup(c, k);
    if (*out >= 0)
        return TRN_OK;
    const trn_gnode *src = node_at(c, from.node);
    trn_dtype t = trn_dtype_base(src->n.out_types[from.slot]);
    if (t == TRN_INVALID && reader->n.in_types) /* an op that we do not know sends */
        t = trn_dtype_base(reader->n.in_types[i]);
    trn_gnode *recv;
    TRN_TRY(send_recv(&recv, c, src->n.name, from, t, reader));
    remember(c, k, *out = recv->id);
    return TRN_OK;
}

/* The Identity behind the _Recv is what dies when a dead token comes: a _Recv itself has run. */
static trn_err recv_control(int *out, cutter *c, int from, const trn_gnode *reader)
{
    key k = {KEY_RECV, from, -1, task_of(c, reader)};
    *out = lookup(c, k);
    if (*out >= 0)
        return TRN_OK;
    const trn_gnode *src = node_at(c, from);
    int frame = trn_frames_in(&c->f, reader);
    trn_gnode *token, *recv, *done;
    TRN_TRY(add_token(&token, c, src->n.name, "_ctrl", src->dev, frame));
    trn_graph_add_ctl(c->w, token, from);
    TRN_TRY(send_recv(&recv, c, src->n.name, (trn_edge){token->id, 0}, TRN_FLOAT, reader));
    trn_attr attr = TYPE_ATTR("T", TRN_FLOAT);
    trn_edge in = {recv->id, 0};
    TRN_TRY(add(&done, c, "Identity", src->n.name, "_done", reader->dev, frame, &attr, 1, &in, 1));
    remember(c, k, *out = done->id);
    return TRN_OK;
}

static trn_err cut(cutter *c)
{
    int n0 = c->w->n;
    for (int id = 0; id < n0; id++) {
        trn_gnode *nd = node_at(c, id);
        if (!nd)
            continue;
        int n = 0;
        for (int i = 0; i < nd->n_ctl; i++) {
            int from = nd->ctl[i];
            if (task_of(c, node_at(c, from)) == task_of(c, nd)) {
                nd->ctl[n++] = from;
                continue;
            }
            TRN_TRY(recv_control(&nd->ctl[n++], c, from, nd));
        }
        nd->n_ctl = n;
        for (int i = 0; i < nd->n.n_in; i++)
            if (task_of(c, node_at(c, nd->in[i].node)) != task_of(c, nd)) {
                int recv;
                TRN_TRY(recv_data(&recv, c, nd->in[i], nd, i));
                nd->in[i] = (trn_edge){recv, 0};
            }
    }
    return TRN_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static void name_tasks(cutter *c)
{
    const trn_devset *ds = c->ds;
    trn_map *seen = trn_map_new();
    c->task = trn_xalloc(sizeof *c->task * (size_t)TRN_MAX(ds->n, 1));
    c->task_of_dev = trn_xalloc(sizeof *c->task_of_dev * (size_t)TRN_MAX(ds->n, 1));
    for (int i = 0; i < ds->n; i++) {
        int t = (int)(intptr_t)trn_map_gets(seen, ds->dev[i].task) - 1;
        if (t < 0) {
            t = c->n_tasks++;
            c->task[t] = ds->dev[i].task;
            trn_map_puts(seen, ds->dev[i].task, (void *)(intptr_t)(t + 1));
        }
        c->task_of_dev[i] = t;
    }
    trn_map_free(seen, NULL);
}

static trn_err check(const trn_graph *g, const trn_devset *ds)
{
    for (int id = 0; id < g->n; id++) {
        const trn_gnode *nd = g->node[id];
        if (!nd)
            continue;
        if (nd->place_err)
            return trn_err_copy(nd->place_err);
        if (nd->dev < 0 || nd->dev >= ds->n)
            return trn_errorf(TRN_INTERNAL, "{{node %s}} has no device", nd->n.name);
        for (int i = 0; i < nd->n.n_in; i++)
            if (nd->in[i].node < 0 || nd->in[i].slot < 0 || nd->in[i].slot >= g->node[nd->in[i].node]->n.n_out)
                return trn_errorf(TRN_INTERNAL, "Input %d of {{node %s}} is not connected", i, nd->n.name);
    }
    return TRN_OK;
}

static int count_tasks(const cutter *c, int *nodes)
{
    int n = 0;
    memset(nodes, 0, sizeof *nodes * (size_t)c->n_tasks);
    for (int id = 0; id < c->w->n; id++)
        if (c->w->node[id])
            n += nodes[task_of(c, c->w->node[id])]++ == 0;
    return n;
}

static trn_err cut_all(cutter *c)
{
    TRN_TRY(trn_graph_frames(&c->f, c->w));
    c->cap_of = c->w->n;
    follow(c);
    TRN_TRY(copy_sources(c));
    TRN_TRY(make_reads(c));
    TRN_TRY(add_loops(c));
    TRN_TRY(gather_waits(c));
    return cut(c);
}

/* Device names go into the working copy's arena, which the parts keep alive. */
static void name_devices(cutter *c)
{
    const char **text = trn_xalloc(sizeof *text * (size_t)TRN_MAX(c->ds->n, 1));
    for (int id = 0; id < c->w->n; id++) {
        trn_gnode *nd = c->w->node[id];
        if (!nd)
            continue;
        if (!text[nd->dev])
            text[nd->dev] = trn_arena_strdup(c->w->arena, c->ds->dev[nd->dev].name);
        nd->n.device = text[nd->dev];
    }
    free(text);
}

static trn_part *split(int *n_parts, cutter *c, int *nodes)
{
    int n = count_tasks(c, nodes);
    trn_part *parts = trn_xalloc(sizeof *parts * (size_t)TRN_MAX(n, 1));
    bool *keep = trn_xalloc(sizeof *keep * (size_t)TRN_MAX(c->w->n, 1));
    n = 0;
    for (int t = 0; t < c->n_tasks; t++) {
        if (!nodes[t])
            continue;
        for (int id = 0; id < c->w->n; id++)
            keep[id] = c->w->node[id] && task_of(c, c->w->node[id]) == t;
        parts[n++] = (trn_part){.task = trn_xstrdup(c->task[t]), .graph = trn_graph_copy(c->w, keep)};
    }
    free(keep);
    *n_parts = n;
    return parts;
}

trn_err trn_graph_partition(trn_part **out, int *n, const trn_graph *g, const trn_devset *ds)
{
    TRN_TRY(check(g, ds));
    cutter c = {.w = trn_graph_copy(g, NULL), .ds = ds, .moved = trn_map_new(), .waits = trn_map_new()};
    name_tasks(&c);
    int *nodes = trn_xalloc(sizeof *nodes * (size_t)TRN_MAX(c.n_tasks, 1));
    trn_err err = count_tasks(&c, nodes) > 1 ? cut_all(&c) : TRN_OK;
    if (!err) {
        name_devices(&c);
        *out = split(n, &c, nodes);
    }
    free(nodes);
    free(c.loop);
    free(c.task);
    free(c.task_of_dev);
    trn_frames_fini(&c.f);
    trn_map_free(c.moved, NULL);
    trn_map_free(c.waits, NULL);
    trn_graph_free(c.w);
    return err;
}

void trn_parts_free(trn_part *p, int n)
{
    for (int i = 0; i < n; i++) {
        free((char *)p[i].task);
        if (p[i].graph) /* not taken over */
            trn_graph_free(p[i].graph);
    }
    free(p);
}
