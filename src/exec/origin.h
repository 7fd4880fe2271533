/* What a dataset keeps of the node that made it. Private to exec/. */
#ifndef TRN_EXEC_ORIGIN_H
#define TRN_EXEC_ORIGIN_H

#include "graph/graph.h"

typedef struct origin {
    trn_origin head;
    trn_gstore *store; /* what `node` lies in */
    trn_funclib *lib;
    const trn_node *node;
    int n_in;
    trn_tensor *in[];
} origin;

#endif
