/* DebugOptions from a client, and a graph that is watched as they say: a branch, a loop's back edge, a variable, strings. */
#include "graph/graph_priv.h"
#include "graph/watch.h"
#include "proto/pb.h"
#include "proto/textproto.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "node{name:'c' op:'Const' attr{key:'dtype' value{type:DT_FLOAT}} attr{key:'value' value{tensor{dtype:DT_FLOAT tensor_shape{} float_val:1}}}}"
                           "node{name:'p' op:'Const' attr{key:'dtype' value{type:DT_BOOL}} attr{key:'value' value{tensor{dtype:DT_BOOL tensor_shape{} bool_val:true}}}}"
                           "node{name:'w' op:'Const' attr{key:'dtype' value{type:DT_STRING}} attr{key:'value' value{tensor{dtype:DT_STRING tensor_shape{} string_val:'x'}}}}"
                           "node{name:'v' op:'VariableV2' attr{key:'dtype' value{type:DT_FLOAT}} attr{key:'shape' value{shape{dim{size:2}}}}}"
                           "node{name:'s' op:'Switch' input:'c' input:'p' attr{key:'T' value{type:DT_FLOAT}}}"
                           "node{name:'m' op:'Merge' input:'s' input:'s:1' attr{key:'T' value{type:DT_FLOAT}} attr{key:'N' value{i:2}}}"
                           "node{name:'e' op:'Enter' input:'c' attr{key:'T' value{type:DT_FLOAT}} attr{key:'frame_name' value{s:'f'}}}"
                           "node{name:'l' op:'Merge' input:'e' input:'n' attr{key:'T' value{type:DT_FLOAT}} attr{key:'N' value{i:2}}}"
                           "node{name:'n' op:'NextIteration' input:'l' attr{key:'T' value{type:DT_FLOAT}}}"
                           "node{name:'a' op:'AddV2' input:'m' input:'v' attr{key:'T' value{type:DT_FLOAT}}}";

static trn_graph *example(void)
{
    trn_arena *a = trn_arena_new();
    trn_sb sb = {0};
    Tensorflow__GraphDef *gd;
    trn_graph *g = trn_graph_new(NULL);
    trn_err err = trn_textproto_encode(&sb, &tensorflow__graph_def__descriptor, text, sizeof text - 1);
    if (!err)
        err = TRN_PB_UNPACK(&gd, a, tensorflow__graph_def__descriptor, (const uint8_t *)sb.p, sb.n);
    if (!err)
        err = trn_graph_import(g, gd);
    if (err)
        abort();
    trn_sb_fini(&sb);
    trn_arena_free(a);
    return g;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_arena *a = trn_arena_new();
    trn_watches w;
    trn_err err = trn_watches_parse(&w, a, data, size);
    if (!err) {
        trn_sb key = {0};
        int n;
        const char **urls;
        trn_err_free(trn_watches_urls(&urls, &n, a, &w));
        trn_watches_key(&key, &w);
        trn_sb_fini(&key);
        trn_graph *g = example();
        err = trn_graph_watch(g, &w, "/job:ps/replica:0/task:0/device:CPU:0");
        for (int i = 0; !err && i < g->n; i++)
            for (int k = 0; k < g->node[i]->n_ctl; k++)
                if (g->node[i]->ctl[k] < 0 || g->node[i]->ctl[k] >= g->n)
                    abort();
        trn_graph_free(g);
    }
    trn_err_free(err);
    trn_arena_free(a);
    return 0;
}
