#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "graph/graph.h"

/* TRAINERA_OPS_SEEN=FILE: the name of every op of a graph that is to run is added to FILE once. tools/ops-doc makes of it which ops the tests have run. */
void trn_graph_note_ops(const trn_graph *g)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static trn_map *seen;
    static const char *path;
    pthread_mutex_lock(&mu);
    if (!path) {
        path = getenv("TRAINERA_OPS_SEEN");
        path = path ? path : "";
    }
    trn_sb news = {0};
    for (int i = 0; *path && i < g->n; i++) {
        const char *op = g->node[i] ? g->node[i]->n.op : NULL;
        if (!seen)
            seen = trn_map_new();
        if (!op || trn_map_gets(seen, op))
            continue;
        trn_map_puts(seen, op, &seen);
        trn_sb_addf(&news, "%s\n", op);
    }
    if (news.n) { /* opened each time: no descriptor stays */
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0 && write(fd, news.p, news.n) < 0)
            TRN_WARN("graph", "cannot write to %s", path);
        if (fd >= 0)
            close(fd);
    }
    trn_sb_fini(&news);
    pthread_mutex_unlock(&mu);
}
