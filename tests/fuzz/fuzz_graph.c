/* A GraphDef from a peer, all the way that a session takes it: import, extend, prune, lower, optimise, place, partition, export.
 * Input is a binary GraphDef, or '#' and its text form (which mutates better). */
#include "exec/exec.h"
#include "graph/graph_priv.h"
#include "proto/pb.h"
#include "proto/textproto.h"

#include <stdlib.h>

static bool failed(trn_err err)
{
    if (err)
        trn_err_free(err);
    return err != NULL;
}

static void check_edges(const trn_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const trn_gnode *nd = g->node[i];
        if (!nd || nd->id != i || trn_graph_find(g, nd->n.name, strlen(nd->n.name)) != nd)
            abort();
        for (int k = 0; k < nd->n.n_in; k++)
            if (nd->in[k].node < 0 || nd->in[k].node >= g->n || nd->in[k].slot < 0 ||
                nd->in[k].slot >= g->node[nd->in[k].node]->n.n_out)
                abort();
        for (int k = 0; k < nd->n_ctl; k++)
            if (nd->ctl[k] < 0 || nd->ctl[k] >= g->n)
                abort();
    }
    int *order = trn_xalloc(sizeof *order * ((size_t)g->n + 1));
    if (trn_graph_topo(g, order) != g->n)
        abort();
    free(order);
}

static void export_again(const trn_graph *g)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *gd = trn_graph_export(a, g);
    size_t n;
    (void)trn_pb_pack_arena(a, &n, &gd->base);
    trn_graph *h = trn_graph_new(NULL);
    if (!failed(trn_graph_import(h, gd)) && h->n != g->n)
        abort();
    trn_graph_free(h);
    trn_arena_free(a);
}

/* Odd nodes are fed, even ones fetched or run. */
static void run(trn_graph *g)
{
    const char *feeds[4], *fetches[4], *targets[4];
    trn_run_sig sig = {.feeds = feeds, .fetches = fetches, .targets = targets};
    for (int i = g->n - 1; i >= 0; i--) {
        if (sig.n_fetches < 4 && g->node[i]->n.n_out && i % 2 == 0)
            fetches[sig.n_fetches++] = g->node[i]->n.name;
        else if (sig.n_feeds < 4 && g->node[i]->n.n_out && i % 5 == 0)
            feeds[sig.n_feeds++] = g->node[i]->n.name;
        else if (sig.n_targets < 4)
            targets[sig.n_targets++] = g->node[i]->n.name;
    }
    static const trn_device dev[] = {
        {"/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:0", "CPU", 1},
        {"/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0", "CPU", 2}};
    trn_devset ds = {2, dev, 1};
    trn_graph *p;
    if (failed(trn_graph_prune(&p, g, &sig, dev[1].name)))
        return;
    check_edges(p);
    trn_part *parts;
    int n_parts;
    if (!failed(trn_graph_check_ops(p)) && !failed(trn_graph_lower(p))) {
        check_edges(p);
        if (!failed(trn_graph_optimise(p, &(trn_opt_opts){.fold = true, .cse = true, .identity = true, .simplify = true, .fuse = true, .max_folded_bytes = 1 << 16}, trn_exec_eval))) {
            check_edges(p);
            if (!failed(trn_graph_place(p, &ds, &(trn_place_opts){.soft = true})) &&
                !failed(trn_graph_place_errors(p)) && !failed(trn_graph_partition(&parts, &n_parts, p, &ds))) {
                for (int i = 0; i < n_parts; i++)
                    check_edges(parts[i].graph);
                trn_parts_free(parts, n_parts);
            }
            export_again(p);
        }
    }
    trn_graph_free(p);
}

/* A few bytes may rightly stand for a GiB of constants; that would only slow the search. */
#define LARGE (1 << 20)

static bool is_large(const Tensorflow__GraphDef *gd)
{
    uint64_t n;
    if (failed(trn_nodes__growth(&n, gd->node, gd->n_node)))
        return false; /* must be refused */
    for (size_t i = 0; gd->library && i < gd->library->n_function && n <= LARGE; i++) {
        const Tensorflow__FunctionDef *f = gd->library->function[i];
        uint64_t more;
        if (!failed(trn_nodes__growth(&more, f->node_def, f->n_node_def)))
            n += more;
        for (size_t k = 0; f->signature && k < f->signature->n_attr; k++)
            if (f->signature->attr[k]->default_value && n <= LARGE)
                n += TRN_MIN(trn_attr_pb__growth(f->signature->attr[k]->default_value), trn_graph__max_growth());
    }
    return n > LARGE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_log_set_level(TRN_LOG_OFF);
    trn_arena *a = trn_arena_new();
    trn_sb sb = {0};
    Tensorflow__GraphDef *gd;
    if (size && data[0] == '#') {
        if (failed(trn_textproto_encode(&sb, &tensorflow__graph_def__descriptor, (const char *)data + 1, size - 1)))
            goto out;
        data = (const uint8_t *)sb.p;
        size = sb.n;
    }
    if (failed(TRN_PB_UNPACK(&gd, a, tensorflow__graph_def__descriptor, data, size)) || is_large(gd))
        goto out;
    trn_graph *g = trn_graph_new(NULL);
    if (!failed(trn_graph_import(g, gd))) {
        check_edges(g);
        if (gd->n_node && !failed(trn_graph_import(g, gd))) /* every name is taken now */
            abort();
        export_again(g);
        run(g);
    } else if (g->n) {
        abort(); /* all or nothing */
    }
    trn_graph_free(g);
out:
    trn_sb_fini(&sb);
    trn_arena_free(a);
    return 0;
}
