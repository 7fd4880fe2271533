/* tensorflow.GraphDef through the checked unpacking: what it lets through, protobuf-c takes, and writes so that it reads again. */
#include "proto/pb.h"
#include "proto/tensorflow.pb-c.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__GraphDef *g, *again;
    trn_err e = TRN_PB_UNPACK(&g, a, tensorflow__graph_def__descriptor, data, size);
    if (!e) {
        size_t n;
        uint8_t *p = trn_pb_pack_arena(a, &n, &g->base);
        e = TRN_PB_UNPACK(&again, a, tensorflow__graph_def__descriptor, p, n);
        if (e || again->n_node != g->n_node)
            abort();
    }
    trn_err_free(e);
    trn_arena_free(a);
    return 0;
}
