/* Runs the parts of a graph together, one node at a time, with numbers instead of tensors: what an executor must do about dead values, loops and
 * rendezvous keys, in the plainest form. Partition tests compare what comes out of a whole graph with what comes out of its parts. */
#ifndef GRAPH_SIM_H
#define GRAPH_SIM_H

#include "place_util.h"

typedef struct sim_inst { /* one iteration of one loop, on all tasks; 0 is the root */
    int parent, iter;
    const char *frame;
} sim_inst;

typedef struct sim_use {
    int to, input; /* -1: control */
} sim_use;

typedef struct sim_part {
    const trn_graph *g;
    int n_use, cap_use, *first; /* users of node id: use[first[id] .. first[id + 1]) */
    sim_use *use;
    int *slot; /* of each use */
} sim_part;

typedef struct sim_node { /* a node in one instance */
    int left, left_ctl;
    bool dead, has, queued, ran;
    int taken;
    double v[8];
    bool v_dead[8];
} sim_node;

typedef struct sim_state {
    int part, inst;
    sim_node *nd;
} sim_state;

typedef struct sim_msg {
    const char *name;
    int inst;
    double v;
    bool dead, used;
} sim_msg;

typedef struct sim_inv { /* a constant Enter */
    int part, parent, node;
    const char *frame;
    double v;
    bool dead;
} sim_inv;

typedef struct sim_exit {
    int part, inst, node;
} sim_exit;

#define SIM_RETS 32
typedef struct sim {
    sim_part *part;
    int n_parts;
    sim_inst *inst;
    int n_inst, cap_inst;
    sim_state *st;
    int n_st, cap_st;
    sim_msg *msg;
    int n_msg, cap_msg;
    sim_inv *inv;
    int n_inv, cap_inv;
    sim_exit *dead_exit;
    int n_exit, cap_exit;
    struct sim_ready {
        int st, node;
    } * ready;
    int n_ready, cap_ready;
    bool ret_set[SIM_RETS], ret_dead[SIM_RETS];
    double ret[SIM_RETS];
    int steps;
} sim;

static uint32_t sim_flags(const trn_gnode *n) { return n->n.def->row->flags; }

static int sim_find_inst(sim *s, int parent, const char *frame, int iter)
{
    for (int i = 1; i < s->n_inst; i++)
        if (s->inst[i].parent == parent && s->inst[i].iter == iter && !strcmp(s->inst[i].frame, frame))
            return i;
    TRN_PUSH(s->inst, s->n_inst, s->cap_inst, (sim_inst){parent, iter, frame});
    return s->n_inst - 1;
}

static void sim_deliver(sim *s, int st, int node, int input, double v, bool dead, bool from_enter);
static void sim_out(sim *s, int part, int inst, int node, int slot, double v, bool dead);

static void sim_inv_out(sim *s, int part, int inst, const sim_inv *v)
{
    sim_out(s, part, inst, v->node, 0, v->v, v->dead);
    sim_out(s, part, inst, v->node, -1, 0, v->dead);
}

static int sim_find_state(sim *s, int part, int inst)
{
    for (int i = 0; i < s->n_st; i++)
        if (s->st[i].part == part && s->st[i].inst == inst)
            return i;
    const trn_graph *g = s->part[part].g;
    sim_node *nd = trn_xalloc(sizeof *nd * (size_t)TRN_MAX(g->n, 1));
    for (int i = 0; i < g->n; i++) {
        assert_true(g->node[i]->n.n_in <= 8);
        nd[i].left = g->node[i]->n.n_in;
        nd[i].left_ctl = g->node[i]->n_ctl;
    }
    TRN_PUSH(s->st, s->n_st, s->cap_st, (sim_state){part, inst, nd});
    int at = s->n_st - 1;
    for (int i = 0; i < s->n_inv; i++) {
        sim_inv v = s->inv[i];
        if (v.part == part && v.parent == s->inst[inst].parent && inst && !strcmp(v.frame, s->inst[inst].frame))
            sim_inv_out(s, part, inst, &v);
    }
    return at;
}

static void sim_push(sim *s, int st, int node)
{
    sim_node *n = &s->st[st].nd[node];
    if (n->queued)
        fail_msg("%s runs twice", s->part[s->st[st].part].g->node[node]->n.name);
    n->queued = true;
    TRN_PUSH(s->ready, s->n_ready, s->cap_ready, (struct sim_ready){st, node});
}

static void sim_deliver(sim *s, int st, int node, int input, double v, bool dead, bool from_enter)
{
    sim_node *n = &s->st[st].nd[node];
    const trn_gnode *gn = s->part[s->st[st].part].g->node[node];
    if (sim_flags(gn) & TRN_OP_MERGE) {
        if (input < 0) {
            n->left_ctl--;
        } else if (dead) {
            n->left = from_enter ? 0 : n->left - 1;
        } else if (!n->has) {
            n->has = true;
            n->v[0] = v;
            n->taken = input;
        } else {
            fail_msg("%s: two live inputs", gn->n.name);
        }
        if (n->left_ctl == 0 && !n->queued && (n->has || n->left == 0)) {
            n->dead = !n->has;
            sim_push(s, st, node);
        }
        return;
    }
    n->dead |= dead;
    if (input < 0) {
        n->left_ctl--;
    } else {
        n->left--;
        n->v[input] = v;
        n->v_dead[input] = dead;
    }
    if (n->left == 0 && n->left_ctl == 0)
        sim_push(s, st, node);
}

/* slot -1: the control edges */
static void sim_out(sim *s, int part, int inst, int node, int slot, double v, bool dead)
{
    int st = sim_find_state(s, part, inst);
    sim_part *p = &s->part[part];
    bool enter = sim_flags(p->g->node[node]) & TRN_OP_ENTER;
    for (int i = p->first[node]; i < p->first[node + 1]; i++)
        if (p->slot[i] == slot)
            sim_deliver(s, st, p->use[i].to, slot < 0 ? -1 : p->use[i].input, v, dead, enter);
}

static void sim_done(sim *s, int part, int inst, int node, double v0, bool dead0, double v1, bool dead1, bool dead)
{
    const trn_gnode *gn = s->part[part].g->node[node];
    if (gn->n.n_out > 0)
        sim_out(s, part, inst, node, 0, v0, dead0);
    if (gn->n.n_out > 1)
        sim_out(s, part, inst, node, 1, v1, dead1);
    sim_out(s, part, inst, node, -1, 0, dead);
}

static bool sim_recv(sim *s, int st, int node)
{
    int part = s->st[st].part, inst = s->st[st].inst;
    const char *name = trn_attr_str(&s->part[part].g->node[node]->n, "tensor_name");
    for (int i = 0; i < s->n_msg; i++)
        if (!s->msg[i].used && s->msg[i].inst == inst && !strcmp(s->msg[i].name, name)) {
            s->msg[i].used = true;
            /* The node has run, whatever came: its control edges are alive. */
            sim_done(s, part, inst, node, s->msg[i].v, s->msg[i].dead, 0, false, false);
            return true;
        }
    return false;
}

static bool sim_run(sim *s, int st, int node)
{
    int part = s->st[st].part, inst = s->st[st].inst;
    const trn_gnode *gn = s->part[part].g->node[node];
    sim_node *n = &s->st[st].nd[node];
    const char *op = gn->n.op;
    uint32_t f = sim_flags(gn);
    double v = n->v[0];
    bool dead = n->dead;
    if (f & TRN_OP_RECV)
        return sim_recv(s, st, node);
    if (n->ran)
        fail_msg("%s ran twice", gn->n.name);
    n->ran = true;
    if (f & TRN_OP_SEND) {
        for (int i = 0; i < s->n_msg; i++)
            assert_false(s->msg[i].inst == inst && !strcmp(s->msg[i].name, trn_attr_str(&gn->n, "tensor_name")));
        TRN_PUSH(s->msg, s->n_msg, s->cap_msg, (sim_msg){trn_attr_str(&gn->n, "tensor_name"), inst, v, dead, false});
    } else if (f & TRN_OP_SWITCH) {
        bool pred = n->v[1] != 0;
        sim_done(s, part, inst, node, v, dead || pred, v, dead || !pred, dead);
    } else if (f & TRN_OP_MERGE) {
        sim_done(s, part, inst, node, v, dead, n->taken, dead, dead);
    } else if (f & TRN_OP_ENTER) {
        const char *frame = trn_attr_str(&gn->n, "frame_name");
        if (trn_attr_bool(&gn->n, "is_constant")) {
            sim_inv inv = {part, inst, node, frame, v, dead};
            TRN_PUSH(s->inv, s->n_inv, s->cap_inv, inv);
            int n_st = s->n_st; /* all iterations that are there; new ones ask for it themselves */
            bool first = false;
            for (int i = 0; i < n_st; i++)
                if (s->st[i].part == part && s->st[i].inst && s->inst[s->st[i].inst].parent == inst &&
                    !strcmp(s->inst[s->st[i].inst].frame, frame)) {
                    first |= s->inst[s->st[i].inst].iter == 0;
                    sim_inv_out(s, part, s->st[i].inst, &inv);
                }
            if (!first)
                sim_find_state(s, part, sim_find_inst(s, inst, frame, 0));
        } else {
            sim_done(s, part, sim_find_inst(s, inst, frame, 0), node, v, dead, 0, false, dead);
        }
    } else if (f & TRN_OP_EXIT) {
        if (dead)
            TRN_PUSH(s->dead_exit, s->n_exit, s->cap_exit, (sim_exit){part, inst, node});
        else {
            sim_done(s, part, s->inst[inst].parent, node, v, false, 0, false, false);
            for (int i = 0; i < s->n_exit; i++) /* no longer dead, whatever the other iterations say */
                if (s->dead_exit[i].part == part && s->dead_exit[i].node == node &&
                    s->inst[s->dead_exit[i].inst].parent == s->inst[inst].parent)
                    s->dead_exit[i].part = -1;
            TRN_PUSH(s->dead_exit, s->n_exit, s->cap_exit, (sim_exit){-2 - part, s->inst[inst].parent, node});
        }
    } else if (f & TRN_OP_NEXT) {
        if (!dead)
            sim_done(s, part, sim_find_inst(s, s->inst[inst].parent, s->inst[inst].frame, s->inst[inst].iter + 1), node,
                     v, false, 0, false, false);
    } else {
        if (!strcmp(op, "AddV2"))
            v = n->v[0] + n->v[1];
        else if (!strcmp(op, "Less"))
            v = n->v[0] < n->v[1];
        else if (!strcmp(op, "Const"))
            v = trn_tensor_count(trn_attr_tensor(&gn->n, "value"))
                    ? *(const float *)trn_tensor_data(trn_attr_tensor(&gn->n, "value"))
                    : 0;
        else if (!strcmp(op, "_Retval")) {
            int64_t i = trn_attr_int(&gn->n, "index");
            assert_false(s->ret_set[i]);
            s->ret_set[i] = true;
            s->ret[i] = v;
            s->ret_dead[i] = dead;
        } else
            assert_true(!strcmp(op, "Identity") || !strcmp(op, "LoopCond") || !strcmp(op, "NoOp"));
        sim_done(s, part, inst, node, v, dead, 0, false, dead);
    }
    return true;
}

/* The loop has had all its inputs, and nothing in it waits for another task. */
static bool sim_loop_done(sim *s, int part, int inst)
{
    const trn_graph *g = s->part[part].g;
    int st = sim_find_state(s, part, s->inst[inst].parent);
    for (int id = 0; id < g->n; id++)
        if ((sim_flags(g->node[id]) & TRN_OP_ENTER) &&
            !strcmp(trn_attr_str(&g->node[id]->n, "frame_name"), s->inst[inst].frame) && !s->st[st].nd[id].ran)
            return false;
    for (int i = 0; i < s->n_ready; i++) {
        const sim_state *r = &s->st[s->ready[i].st];
        if (r->part == part && s->inst[r->inst].parent == s->inst[inst].parent &&
            !strcmp(s->inst[r->inst].frame, s->inst[inst].frame))
            return false;
    }
    return true;
}

static int sim_depth(const sim *s, int inst)
{
    int d = 0;
    for (; inst; inst = s->inst[inst].parent)
        d++;
    return d;
}

/* Nothing else can run: loops whose exits never came alive let the dead out, innermost first. */
static bool sim_flush_dead(sim *s)
{
    int best = -1;
    for (int i = 0; i < s->n_exit; i++)
        if (s->dead_exit[i].part >= 0 &&
            (best < 0 || sim_depth(s, s->dead_exit[i].inst) > sim_depth(s, s->dead_exit[best].inst)) &&
            sim_loop_done(s, s->dead_exit[i].part, s->dead_exit[i].inst))
            best = i;
    if (best < 0)
        return false;
    sim_exit e = s->dead_exit[best];
    int parent = s->inst[e.inst].parent;
    bool done = false;
    for (int k = 0; k < s->n_exit; k++)
        done |= s->dead_exit[k].part == -2 - e.part && s->dead_exit[k].inst == parent && s->dead_exit[k].node == e.node;
    s->dead_exit[best].part = -1;
    if (!done) {
        TRN_PUSH(s->dead_exit, s->n_exit, s->cap_exit, (sim_exit){-2 - e.part, parent, e.node});
        sim_done(s, e.part, parent, e.node, 0, true, 0, false, true);
    }
    return true;
}

static void sim_init(sim *s, const trn_graph *const *g, int n)
{
    *s = (sim){.n_parts = n, .part = trn_xalloc(sizeof *s->part * (size_t)n)};
    TRN_PUSH(s->inst, s->n_inst, s->cap_inst, (sim_inst){-1, 0, ""});
    for (int p = 0; p < n; p++) {
        sim_part *sp = &s->part[p];
        sp->g = g[p];
        sp->first = trn_xalloc(sizeof *sp->first * (size_t)(g[p]->n + 2));
        for (int pass = 0; pass < 2; pass++) {
            for (int id = 0; id < g[p]->n; id++)
                for (int k = 0; k < g[p]->node[id]->n.n_in + g[p]->node[id]->n_ctl; k++) {
                    const trn_gnode *nd = g[p]->node[id];
                    bool ctl = k >= nd->n.n_in;
                    int from = ctl ? nd->ctl[k - nd->n.n_in] : nd->in[k].node;
                    if (pass == 0) {
                        sp->first[from + 2]++;
                        sp->n_use++;
                    } else {
                        int at = sp->first[from + 1]++;
                        sp->use[at] = (sim_use){id, ctl ? -1 : k};
                        sp->slot[at] = ctl ? -1 : nd->in[k].slot;
                    }
                }
            if (pass == 0) {
                for (int id = 0; id < g[p]->n; id++)
                    sp->first[id + 2] += sp->first[id + 1];
                sp->use = trn_xalloc(sizeof *sp->use * (size_t)TRN_MAX(sp->n_use, 1));
                sp->slot = trn_xalloc(sizeof *sp->slot * (size_t)TRN_MAX(sp->n_use, 1));
            }
        }
    }
}

/* Runs to the end; `seed` picks which ready node goes next. Everything that was sent must have been received, and the other way round. */
static void sim_go(sim *s, unsigned seed)
{
    for (int p = 0; p < s->n_parts; p++) {
        int st = sim_find_state(s, p, 0);
        for (int id = 0; id < s->part[p].g->n; id++)
            if (s->part[p].g->node[id]->n.n_in == 0 && s->part[p].g->node[id]->n_ctl == 0)
                sim_push(s, st, id);
    }
    for (;;) {
        bool moved = false;
        int start = s->n_ready ? (int)(rand_r(&seed) % (unsigned)s->n_ready) : 0;
        for (int k = 0; k < s->n_ready && !moved; k++) {
            int at = (start + k) % s->n_ready;
            struct sim_ready r = s->ready[at];
            s->ready[at] = s->ready[s->n_ready - 1];
            s->n_ready--;
            moved = sim_run(s, r.st, r.node);
            if (!moved) { /* a _Recv whose tensor is not there yet */
                TRN_PUSH(s->ready, s->n_ready, s->cap_ready, s->ready[at]);
                s->ready[at] = r;
            }
        }
        if (++s->steps > 1000000)
            fail_msg("does not end");
        if (!moved && !sim_flush_dead(s))
            break;
    }
    if (s->n_ready && getenv("SIM_DEBUG")) {
        for (int i = 0; i < s->n_ready; i++) {
            const sim_state *r = &s->st[s->ready[i].st];
            const trn_gnode *nd = s->part[r->part].g->node[s->ready[i].node];
            printf("waits: part %d %s", r->part, nd->n.name);
            for (int k = r->inst; k; k = s->inst[k].parent)
                printf(" %s:%d", s->inst[k].frame, s->inst[k].iter);
            printf(" <- %s\n", trn_attr_str(&nd->n, "tensor_name"));
        }
        for (int i = 0; i < s->n_st; i++)
            for (int k = 0; k < s->part[s->st[i].part].g->n; k++) {
                const trn_gnode *nd = s->part[s->st[i].part].g->node[k];
                const sim_node *sn = &s->st[i].nd[k];
                if (!sn->queued && (sn->left < nd->n.n_in || sn->left_ctl < nd->n_ctl || sn->has)) {
                    printf("partial: part %d %s(%s) left %d ctl %d", s->st[i].part, nd->n.name, nd->n.op, sn->left,
                           sn->left_ctl);
                    for (int q = s->st[i].inst; q; q = s->inst[q].parent)
                        printf(" %s:%d", s->inst[q].frame, s->inst[q].iter);
                    for (int q = 0; q < nd->n.n_in; q++)
                        printf(" %s:%d", s->part[s->st[i].part].g->node[nd->in[q].node]->n.name, nd->in[q].slot);
                    for (int q = 0; q < nd->n_ctl; q++)
                        printf(" ^%s", s->part[s->st[i].part].g->node[nd->ctl[q]]->n.name);
                    puts("");
                }
            }
    }
    if (s->n_ready)
        fail_msg("%s waits for ever", s->part[s->st[s->ready[0].st].part].g->node[s->ready[0].node]->n.name);
    for (int i = 0; i < s->n_msg; i++)
        if (!s->msg[i].used)
            fail_msg("nobody received %s in %s:%d", s->msg[i].name, s->inst[s->msg[i].inst].frame,
                     s->inst[s->msg[i].inst].iter);
}

static void sim_fini(sim *s)
{
    for (int i = 0; i < s->n_st; i++)
        free(s->st[i].nd);
    for (int p = 0; p < s->n_parts; p++) {
        free(s->part[p].first);
        free(s->part[p].use);
        free(s->part[p].slot);
    }
    free(s->part);
    free(s->inst);
    free(s->st);
    free(s->msg);
    free(s->inv);
    free(s->dead_exit);
    free(s->ready);
}

#endif
