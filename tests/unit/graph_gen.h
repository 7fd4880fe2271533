/* Programs with conditionals and loops, nested as they come, made up at random: built from v1 control flow as TensorFlow's Python builds it,
 * with nodes strewn over devices. The first result is always there. */
#ifndef GRAPH_GEN_H
#define GRAPH_GEN_H

#include "place_util.h"

static trn_gnode *on(trn_gnode *nd, int dev)
{
    nd->dev = dev;
    nd->n.device = gu_dev[dev].name;
    return nd;
}

typedef struct ctx { /* where an expression stands: the root, a branch or a loop body */
    const struct ctx *up;
    int kind;      /* 0 root, 1 branch, 2 loop */
    trn_edge pred; /* branch: of the Switch, in `up` */
    int branch;
    const char *frame;
    int pivot; /* node that constants wait for; -1: root */
} ctx;

typedef struct val {
    trn_edge e;
    const ctx *at;
} val;

typedef struct gen {
    trn_graph *g;
    unsigned seed;
    int n, budget;
    val vals[256];
    int n_vals;
} gen;

static unsigned rnd(gen *s, unsigned n) { return (unsigned)rand_r(&s->seed) % n; }

static trn_gnode *mk(gen *s, const ctx *c, const char *op, const trn_edge *in, int n_in, const trn_attr *attrs,
                     int n_attrs)
{
    char name[32];
    snprintf(name, sizeof name, "%s%d", op, s->n++);
    trn_gnode *nd;
    ok(trn_graph_add(&nd, s->g, op, name, "", attrs, n_attrs, in, n_in));
    /* In a loop, what depends on invariants only must be dead when the loop ends, like all the rest. */
    bool waits = c->kind == 2 && c->pivot >= 0 && n_in > 0;
    for (int i = 0; i < n_in && waits; i++)
        waits = in[i].node >= 0 && !strcmp(s->g->node[in[i].node]->n.op, "Enter");
    if (waits)
        trn_graph_add_ctl(s->g, nd, c->pivot);
    return nd;
}

static trn_edge f32(gen *s, const ctx *c, float v)
{
    trn_tensor *t = trn_tensor_f32(v);
    trn_gnode *nd = mk(s, c, "Const", NULL, 0,
                       A(TYPE("dtype", TRN_FLOAT), {.name = "value", .kind = TRN_ATTR_TENSOR, .v.tensor = t}));
    trn_tensor_unref(t);
    if (c->pivot >= 0)
        trn_graph_add_ctl(s->g, nd, c->pivot);
    return (trn_edge){nd->id, 0};
}

static trn_edge op2(gen *s, const ctx *c, const char *op, trn_edge a, trn_edge b)
{
    return (trn_edge){mk(s, c, op, (trn_edge[]){a, b}, 2, T(TRN_FLOAT))->id, 0};
}

/* A value from further out, as TensorFlow's contexts bring it in. */
static trn_edge bring(gen *s, val v, const ctx *to)
{
    if (v.at == to)
        return v.e;
    trn_edge e = bring(s, v, to->up);
    trn_dtype t = trn_dtype_base(s->g->node[e.node]->n.out_types[e.slot]);
    if (to->kind == 1)
        return (trn_edge){mk(s, to->up, "Switch", (trn_edge[]){e, to->pred}, 2, T(t))->id, to->branch};
    return (trn_edge){
        mk(s, to->up, "Enter", &e, 1,
           A(TYPE("T", t), STR("frame_name", to->frame), {.name = "is_constant", .kind = TRN_ATTR_BOOL, .v.b = true}))
            ->id,
        0};
}

static trn_edge some(gen *s, const ctx *c)
{
    for (int tries = 0; tries < 8 && s->n_vals; tries++) {
        val v = s->vals[rnd(s, (unsigned)s->n_vals)];
        for (const ctx *up = c; up; up = up->up)
            if (v.at == up)
                return bring(s, v, c);
    }
    return f32(s, c, (float)rnd(s, 5));
}

static void note(gen *s, const ctx *c, trn_edge e)
{
    if (s->n_vals < 256)
        s->vals[s->n_vals++] = (val){e, c};
}

static trn_edge expr(gen *s, const ctx *c, int depth);

static trn_edge cond_expr(gen *s, const ctx *c, int depth)
{
    trn_edge pred = op2(s, c, "Less", some(s, c), some(s, c)), out[2];
    int keep = s->n_vals;
    for (int b = 0; b < 2; b++) {
        trn_gnode *sw = mk(s, c, "Switch", (trn_edge[]){pred, pred}, 2, T(TRN_BOOL));
        trn_edge piv = {sw->id, b};
        ctx *in = trn_arena_alloc(s->g->arena, sizeof *in);
        *in = (ctx){c, 1, pred, b, NULL, mk(s, c, "Identity", &piv, 1, T(TRN_BOOL))->id};
        out[b] = expr(s, in, depth - 1);
        if (rnd(s, 2)) { /* through an Identity that waits for the pivot */
            trn_gnode *id = mk(s, in, "Identity", &out[b], 1, T(TRN_FLOAT));
            trn_graph_add_ctl(s->g, id, in->pivot);
            out[b] = (trn_edge){id->id, 0};
        }
        s->n_vals = keep;
    }
    return (trn_edge){mk(s, c, "Merge", out, 2, A(TYPE("T", TRN_FLOAT), INT("N", 2)))->id, 0};
}

static trn_edge loop_expr(gen *s, const ctx *c, int depth)
{
    ctx *in = trn_arena_alloc(s->g->arena, sizeof *in);
    *in = (ctx){c, 2, {0}, 0, trn_arena_printf(s->g->arena, "loop%d", s->n++), -1};
    trn_edge init[2] = {f32(s, c, 0), some(s, c)}, limit = bring(s, (val){f32(s, c, (float)rnd(s, 4)), c}, in);
    trn_gnode *merge[2], *sw[2];
    for (int i = 0; i < 2; i++) {
        trn_gnode *enter = mk(s, c, "Enter", &init[i], 1, A(TYPE("T", TRN_FLOAT), STR("frame_name", in->frame)));
        merge[i] = mk(s, c, "Merge", (trn_edge[]){{enter->id, 0}, {-1, 0}}, 2, A(TYPE("T", TRN_FLOAT), INT("N", 2)));
    }
    in->pivot = merge[0]->id;
    trn_edge less = op2(s, in, "Less", (trn_edge){merge[0]->id, 0}, rnd(s, 3) ? limit : f32(s, in, 2));
    trn_gnode *lc = mk(s, in, "LoopCond", &less, 1, NONE);
    for (int i = 0; i < 2; i++)
        sw[i] = mk(s, in, "Switch", (trn_edge[]){{merge[i]->id, 0}, {lc->id, 0}}, 2, T(TRN_FLOAT));
    trn_edge body[2] = {{sw[0]->id, 1}, {sw[1]->id, 1}};
    in->pivot = mk(s, in, "Identity", &body[0], 1, T(TRN_FLOAT))->id;
    int keep = s->n_vals;
    note(s, in, body[0]);
    note(s, in, body[1]);
    trn_edge next[2] = {op2(s, in, "AddV2", body[0], f32(s, in, 1)),
                        op2(s, in, "AddV2", body[1], expr(s, in, depth - 1))};
    s->n_vals = keep;
    for (int i = 0; i < 2; i++) {
        trn_gnode *nx = mk(s, in, "NextIteration", &next[i], 1, T(TRN_FLOAT));
        merge[i]->in[1] = (trn_edge){nx->id, 0};
    }
    trn_edge out = {sw[1]->id, 0};
    return (trn_edge){mk(s, c, "Exit", &out, 1, T(TRN_FLOAT))->id, 0};
}

static trn_edge expr(gen *s, const ctx *c, int depth)
{
    trn_edge e = f32(s, c, (float)rnd(s, 3));
    for (unsigned k = 1 + rnd(s, 3); k > 0 && s->budget > 0; k--, s->budget--) {
        int prev = e.node;
        unsigned what = depth > 0 ? rnd(s, 6) : 0;
        trn_edge x = what < 2   ? op2(s, c, "AddV2", some(s, c), some(s, c))
                     : what < 4 ? cond_expr(s, c, depth)
                                : loop_expr(s, c, depth);
        if (rnd(s, 4) == 0 && !(s->g->node[x.node]->n.def->row->flags & TRN_OP_MERGE) &&
            !(s->g->node[x.node]->n.def->row->flags & TRN_OP_EXIT))
            trn_graph_add_ctl(s->g, s->g->node[x.node], prev);
        note(s, c, x);
        if (rnd(s, 3) == 0 && s->n_vals) { /* waits for a few others of the same place */
            trn_gnode *w = mk(s, c, "Identity", &x, 1, T(TRN_FLOAT));
            for (int i = 0; i < s->n_vals; i++)
                if (s->vals[i].at == c && s->vals[i].e.node != w->id && rnd(s, 2))
                    trn_graph_add_ctl(s->g, w, s->vals[i].e.node);
            x = (trn_edge){w->id, 0};
        }
        e = op2(s, c, "AddV2", e, x);
    }
    return e;
}

/* On the first `devices` devices of gu_dev, or fewer. */
static inline trn_graph *gen_program(unsigned seed, int devices)
{
    gen s = {.g = trn_graph_new(NULL), .seed = seed, .budget = 14};
    ctx root = {.pivot = -1};
    trn_edge e = expr(&s, &root, 3);
    mk(&s, &root, "_Retval", &e, 1, A(TYPE("T", TRN_FLOAT), INT("index", 0)));
    int n = 1;
    for (int i = 0; i < s.n_vals && n < 4; i++)
        if (s.vals[i].at == &root)
            mk(&s, &root, "_Retval", &s.vals[i].e, 1, A(TYPE("T", TRN_FLOAT), INT("index", n++)));
    unsigned some_devices = 2 + rnd(&s, (unsigned)devices - 1);
    for (int i = 0; i < s.g->n; i++)
        on(s.g->node[i], (int)rnd(&s, some_devices));
    return s.g;
}

#endif
