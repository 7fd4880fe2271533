#include "worker/peers.h"

#include <stdlib.h>

struct trn_peers {
    trn_mutex mu;
    trn_map *by_address; /* trn_channel */
    trn_loop *const *loops;
    int n_loops;
    char *from;
};

trn_peers *trn_peers_new(trn_loop *const *loops, int n_loops, const char *from)
{
    trn_peers *p = trn_xalloc(sizeof *p);
    trn_mutex_init(&p->mu, TRN_RANK_CHANNEL);
    p->by_address = trn_map_new();
    p->loops = loops;
    p->n_loops = n_loops;
    p->from = from ? trn_xstrdup(from) : NULL;
    return p;
}

static void drop(void *channel)
{
    trn_channel_shutdown(channel);
    trn_channel_unref(channel);
}

void trn_peers_free(trn_peers *p)
{
    if (!p)
        return;
    trn_map_free(p->by_address, drop);
    trn_mutex_fini(&p->mu);
    free(p->from);
    free(p);
}

trn_channel *trn_peers_get(trn_peers *p, const char *address)
{
    trn_lock(&p->mu);
    trn_channel *c = trn_map_gets(p->by_address, address);
    if (!c) {
        c = trn_channel_new(p->loops[trn_hash(address, strlen(address)) % (uint64_t)p->n_loops], address);
        if (p->from)
            trn_channel_set_from(c, p->from);
        trn_map_puts(p->by_address, address, c);
    }
    trn_channel_ref(c);
    trn_unlock(&p->mu);
    return c;
}
