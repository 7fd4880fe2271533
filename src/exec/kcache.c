/* Kernel states of a session. TensorFlow keeps stateful kernels per session and node name, across graphs: a Print that counts to
 * first_n, a random op's generator, an unnamed queue go on where the last step of any graph left them. */
#include <stdlib.h>

#include "exec/plan.h"

typedef struct entry {
    void *state;
    void (*fini)(void *);
} entry;

struct trn_kcache {
    _Atomic uint32_t ref;
    trn_mutex mu;
    trn_map *map; /* "scope\0name\0op" → entry */
};

trn_kcache *trn_kcache_new(void)
{
    trn_kcache *c = trn_xalloc(sizeof *c);
    atomic_init(&c->ref, 1);
    trn_mutex_init(&c->mu, TRN_RANK_STEP);
    c->map = trn_map_new();
    return c;
}

trn_kcache *trn_kcache_ref(trn_kcache *c)
{
    atomic_fetch_add_explicit(&c->ref, 1, memory_order_relaxed);
    return c;
}

static void entry_free(void *p)
{
    entry *e = p;
    if (e->fini)
        e->fini(e->state);
    free(e);
}

void trn_kcache_unref(trn_kcache *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) != 1)
        return;
    trn_map_free(c->map, entry_free);
    trn_mutex_fini(&c->mu);
    free(c);
}

trn_err trn_kcache__get(void **state, trn_kcache *c, const char *scope, const trn_node *n, trn_resmgr *resmgr)
{
    const trn_op *row = n->def->row;
    trn_sb key = {0};
    trn_sb_add(&key, scope, strlen(scope) + 1);
    trn_sb_add(&key, n->name, strlen(n->name) + 1);
    trn_sb_add(&key, n->op, strlen(n->op));
    trn_lock(&c->mu);
    entry *e = trn_map_get(c->map, key.p, key.n);
    trn_err err = TRN_OK;
    if (!e) { /* init under the lock: it is quick, and two plans at once must not make two states */
        trn_kinit ki = {.node = n, .resmgr = resmgr};
        err = row->init(&ki);
        if (!err) {
            e = trn_xalloc(sizeof *e);
            e->state = ki.state;
            e->fini = row->fini;
            trn_map_put(c->map, key.p, key.n, e);
        }
    }
    trn_unlock(&c->mu);
    trn_sb_fini(&key);
    if (!err)
        *state = e->state;
    return err;
}
