/* Ops that make a shared resource and give out its handle: queues, accumulators, barriers, readers.
 *
 * The resource is found by (container, shared_name). Without a shared_name it belongs to this node of this session alone: it gets a name
 * that no other node can have, and leaves the table with the kernel's state (TensorFlow: "private to kernel").
 * A row uses trn_resop_init and trn_resop_fini, and calls trn_resop from its kernel. */
#ifndef TRN_OPS_RESOP_H
#define TRN_OPS_RESOP_H

#include "res/res.h"

trn_err trn_resop_init(trn_kinit *ki) TRN_MUST_USE;
void trn_resop_fini(void *state);
/* The name under which make() should know its resource, for messages. */
const char *trn_resop_name(const trn_kctx *k);
/* Finds or makes the resource (*out: a reference) and sets output 0: a resource handle, or by reference the strings [container, name],
 * whichever the op's signature says. type_name is what handles say on the wire. */
trn_err trn_resop(void *out, trn_kctx *k, const trn_restype *type, const char *type_name,
                  trn_err (*make)(trn_resource **out, void *arg), void *arg) TRN_MUST_USE;

/* Ops that only name a resource, which the first user makes (mutexes, summary writers). Output 0: a handle to the node's container and name. */
trn_err trn_k_handle(trn_kctx *k, const char *type_name) TRN_MUST_USE;
/* What input i names, made when it is not there; `make` gets the name. */
trn_err trn_k_resource_or_make(void *out, trn_kctx *k, int i, const trn_restype *type, trn_err (*make)(trn_resource **out, void *name)) TRN_MUST_USE;

/* Shape rules: a handle op's output (scalar handle or the two strings); ops without outputs. */
trn_err trn_sh_handle(trn_shctx *s);
trn_err trn_sh_none(trn_shctx *s);

#endif
