/* Channels to other tasks, one per address, shared by the master and every session of the process. */
#ifndef TRN_PEERS_H
#define TRN_PEERS_H

#include "wire/rpc.h"

typedef struct trn_peers trn_peers;
/* Loops are shared out by address. `from`: what peers call us on their pages, "worker/0"; may be NULL. */
trn_peers *trn_peers_new(trn_loop *const *loops, int n_loops, const char *from);
void trn_peers_free(trn_peers *p);                              /* shuts every channel down */
trn_channel *trn_peers_get(trn_peers *p, const char *address);  /* [any] a reference */

#endif
