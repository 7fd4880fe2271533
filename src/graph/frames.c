/* Which loop a node runs in. An Enter opens (or joins) the frame that its frame_name says, an Exit leaves it; all other nodes run where their
 * inputs are. Frames are told apart by name, as the executor and rendezvous keys do: one name under two parents is refused. */
#include "graph/graph.h"

#include <stdlib.h>

static uint32_t flags_of(const trn_gnode *nd) { return nd->n.def ? nd->n.def->row->flags : 0; }

int trn_frames_in(const trn_frames *f, const trn_gnode *nd)
{
    int of = f->of[nd->id];
    return flags_of(nd) & TRN_OP_ENTER ? f->frame[of].parent : of;
}

int trn_frames_out(const trn_frames *f, const trn_gnode *nd)
{
    int of = f->of[nd->id];
    return flags_of(nd) & TRN_OP_EXIT ? f->frame[of].parent : of;
}

typedef struct finder {
    const trn_graph *g;
    trn_frames f;
    int cap;
    trn_map *by_name; /* frame name → its number + 1 */
    int *seen_from;   /* by node id: the input that told us its frame, -1: none */
} finder;

static trn_err open_frame(int *out, finder *s, const trn_gnode *nd, int parent)
{
    const trn_attr *attr = trn_node_attr(&nd->n, "frame_name");
    if (!attr || attr->kind != TRN_ATTR_STRING || attr->is_list || attr->v.s.n == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "The Enter node {{node %s}} must have a frame name.", nd->n.name);
    int have = (int)(intptr_t)trn_map_get(s->by_name, attr->v.s.p, attr->v.s.n) - 1;
    if (have < 0) {
        have = s->f.n;
        TRN_PUSH(s->f.frame, s->f.n, s->cap,
                 (trn_frame){.name = attr->v.s.p, .parent = parent, .enter = nd->id, .loop_cond = -1});
        trn_map_put(s->by_name, attr->v.s.p, attr->v.s.n, (void *)(intptr_t)(have + 1));
    } else if (s->f.frame[have].parent != parent) {
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "Loop \"%s\" is entered from loop \"%s\" by {{node %s}} and from loop \"%s\" by {{node %s}}",
                          attr->v.s.p, s->f.frame[parent].name, nd->n.name, s->f.frame[s->f.frame[have].parent].name,
                          s->g->node[s->f.frame[have].enter]->n.name);
    }
    *out = have;
    return TRN_OK;
}

static trn_err meet(int *in_frame, finder *s, const trn_gnode *nd, int from)
{
    int frame = trn_frames_out(&s->f, s->g->node[from]);
    if (*in_frame < 0) {
        *in_frame = frame;
        s->seen_from[nd->id] = from;
        return TRN_OK;
    }
    if (*in_frame == frame)
        return TRN_OK;
    int other = s->seen_from[nd->id] < 0 ? nd->id : s->seen_from[nd->id];
    return trn_errorf(TRN_INVALID_ARGUMENT,
                      "{{node %s}} has inputs from different frames. The input {{node %s}} is in frame '%s'. The input "
                      "{{node %s}} is in frame '%s'.",
                      nd->n.name, s->g->node[from]->n.name, s->f.frame[frame].name, s->g->node[other]->n.name,
                      s->f.frame[*in_frame].name);
}

static trn_err visit(finder *s, const trn_gnode *nd)
{
    int in = -1, frame;
    for (int i = 0; i < nd->n.n_in; i++) {
        int from = nd->in[i].node;
        if (from >= 0 && s->f.of[from] >= 0) /* the other inputs are back edges, checked when all is known */
            TRN_TRY(meet(&in, s, nd, from));
    }
    for (int i = 0; i < nd->n_ctl; i++)
        TRN_TRY(meet(&in, s, nd, nd->ctl[i]));
    frame = in = TRN_MAX(in, 0);
    uint32_t flags = flags_of(nd);
    if (flags & TRN_OP_ENTER)
        TRN_TRY(open_frame(&frame, s, nd, in));
    if ((flags & (TRN_OP_EXIT | TRN_OP_NEXT)) && frame == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "{{node %s}} (op %s) is not in a loop", nd->n.name, nd->n.op);
    if (flags & TRN_OP_LOOPCOND)
        s->f.frame[frame].loop_cond = nd->id;
    s->f.of[nd->id] = frame;
    return TRN_OK;
}

static trn_err check_back_edges(finder *s)
{
    for (int id = 0; id < s->g->n; id++) {
        const trn_gnode *nd = s->g->node[id];
        if (!nd || !(flags_of(nd) & TRN_OP_MERGE))
            continue;
        for (int i = 0; i < nd->n.n_in; i++) {
            int in = s->f.of[id];
            if (nd->in[i].node >= 0)
                TRN_TRY(meet(&in, s, nd, nd->in[i].node));
        }
    }
    return TRN_OK;
}

static trn_err find(finder *s, const int *order, int n)
{
    int live = 0;
    for (int id = 0; id < s->g->n; id++)
        live += s->g->node[id] != NULL;
    if (n != live)
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "The graph has a cycle that is not a loop: %d of its %d nodes are on it or behind it",
                          live - n, live);
    for (int k = 0; k < n; k++)
        TRN_TRY(visit(s, s->g->node[order[k]]));
    return check_back_edges(s);
}

trn_err trn_graph_frames(trn_frames *out, const trn_graph *g)
{
    size_t n = (size_t)TRN_MAX(g->n, 1);
    finder s = {.g = g,
                .by_name = trn_map_new(),
                .seen_from = trn_xalloc(n * sizeof(int)),
                .f.of = trn_xalloc(n * sizeof(int))};
    for (size_t i = 0; i < n; i++)
        s.f.of[i] = s.seen_from[i] = -1;
    TRN_PUSH(s.f.frame, s.f.n, s.cap, (trn_frame){.name = "", .parent = 0, .enter = -1, .loop_cond = -1});
    int *order = trn_xalloc(n * sizeof *order);
    trn_err err = find(&s, order, trn_graph_topo(g, order));
    free(order);
    free(s.seen_from);
    trn_map_free(s.by_name, NULL);
    if (err)
        trn_frames_fini(&s.f);
    else
        *out = s.f;
    return err;
}

void trn_frames_fini(trn_frames *f)
{
    free(f->frame);
    free(f->of);
}
