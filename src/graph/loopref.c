/* What a loop sees of a variable that it assigns.
 *
 * In TensorFlow a read of a reference variable is the variable's own memory, so a loop that was given a read from outside (Enter of Identity) and that assigns
 * the variable meanwhile (RefEnter) sees its own assignments. Here a read is a value. So that such a loop sees the same, its read is moved inside: once per iteration,
 * when the iteration starts. Loops that assign nothing keep their one read. */
#include "graph/graph_priv.h"

#include <stdlib.h>

static bool enters(const trn_gnode *nd, const char *op)
{
    return nd && trn_gnode__is(nd, op) && nd->n.n_in == 1 && nd->in[0].node >= 0 && trn_attr_bool(&nd->n, "is_constant") && trn_attr_str(&nd->n, "frame_name");
}

/* The variable and the loop that something enters. */
static void key_of(trn_sb *key, trn_edge var, const trn_gnode *enter)
{
    key->n = 0;
    trn_sb_addf(key, "%d:%d:%s", var.node, var.slot, trn_attr_str(&enter->n, "frame_name"));
}

static trn_err read_inside(int *out, trn_graph *g, const trn_gnode *enter, int ref_enter)
{
    trn_attr t = trn_attr__type("T", trn_dtype_base(enter->n.out_types[0]));
    char *base = trn_xasprintf("%s/read", enter->n.name);
    trn_gnode *now;
    trn_err err = trn_graph_add(&now, g, "Identity", trn_graph_unique_name(g, base), enter->n.device, &t, 1, &(trn_edge){ref_enter, 0}, 1);
    free(base);
    if (!err)
        *out = now->id;
    return err;
}

trn_err trn_graph_reads_in_loops(trn_graph *g)
{
    int n = g->n;
    trn_map *refs = NULL; /* key → id of a RefEnter, + 1 */
    trn_sb key = {0};
    for (int id = 0; id < n; id++) {
        if (!enters(g->node[id], "RefEnter"))
            continue;
        if (!refs)
            refs = trn_map_new();
        key_of(&key, g->node[id]->in[0], g->node[id]);
        trn_map_put(refs, key.p, key.n, (void *)((uintptr_t)id + 1));
    }
    if (!refs)
        return TRN_OK;
    int *instead = trn_xalloc((size_t)n * sizeof *instead), found = 0; /* of an Enter: 0: nothing */
    trn_err err = TRN_OK;
    for (int id = 0; !err && id < n; id++) {
        const trn_gnode *nd = g->node[id], *from = enters(nd, "Enter") ? g->node[nd->in[0].node] : NULL;
        if (!from || !trn_gnode__is(from, "Identity") || from->n.n_in != 1 || from->n_ctl || nd->n_ctl)
            continue;
        key_of(&key, from->in[0], nd);
        uintptr_t ref = (uintptr_t)trn_map_get(refs, key.p, key.n);
        if (ref) {
            err = read_inside(&instead[id], g, nd, (int)(ref - 1));
            found++;
        }
    }
    for (int id = 0; !err && found && id < n; id++)
        for (int i = 0; g->node[id] && i < g->node[id]->n.n_in; i++) {
            trn_edge *e = &g->node[id]->in[i];
            if (e->node >= 0 && e->node < n && instead[e->node])
                *e = (trn_edge){instead[e->node], 0};
        }
    free(instead);
    trn_sb_fini(&key);
    trn_map_free(refs, NULL);
    return err;
}
