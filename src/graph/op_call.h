/* What the generated functions of trainera/ops.h are made of. */
#ifndef TRN_OP_CALL_H
#define TRN_OP_CALL_H

#include <trainera/build.h>

typedef struct trn_op__list {
    const trn_out *at;
    int n;
} trn_op__list;

/* The flat inputs of a node, in memory of the builder. */
const trn_out *trn_op__join(int *n, trn_builder *b, const trn_op__list *lists, int n_lists);
/* The types of a list of tensors as a list(type) attr. */
trn_attr trn_op__types(trn_builder *b, const char *name, const trn_out *xs, int n);
/* Latches an error when a required attr is NULL, or when lists that share a length differ. */
void trn_op__need(trn_builder *b, const char *op, const char *attr, const void *v);
void trn_op__same_length(trn_builder *b, const char *op, const char *one, int n, const char *other, int m);
/* The next n outputs of a node; as many times TRN_NONE when the node was not made, so that callers may index them unchecked. */
trn_outs trn_op__outs(trn_builder *b, trn_out first, int *slot, int64_t n);

static inline trn_out trn_op__nth(trn_out first, int slot) { return trn_out_is(first) ? trn_out_nth(first, slot) : TRN_NONE; }

#endif
