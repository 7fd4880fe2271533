#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "graph/graph.h"

/* TRAINERA_OPS_SEEN=FILE: the name of every op of a graph that is to run is added to FILE once. tools/ops-doc makes of it which ops the tests have run. */
static int seen_fd = -1;

static void open_seen(void)
{
    const char *path = getenv("TRAINERA_OPS_SEEN");
    if (path && *path)
        seen_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

void trn_graph_note_ops(const trn_graph *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static trn_map *seen;
    pthread_once(&once, open_seen);
    if (seen_fd < 0)
        return;
    pthread_mutex_lock(&mu);
    if (!seen)
        seen = trn_map_new();
    for (int i = 0; i < g->n; i++) {
        const char *op = g->node[i] ? g->node[i]->n.op : NULL;
        if (!op || trn_map_gets(seen, op))
            continue;
        trn_map_puts(seen, op, &seen_fd);
        dprintf(seen_fd, "%s\n", op);
    }
    pthread_mutex_unlock(&mu);
}
