/* Staging maps: tuples of tensors under keys, put whole or piece by piece and taken by key, or whichever comes first, with a limit on their
 * number and bytes. A tuple can be taken once all of its pieces are there. */
#ifndef TRN_STAGEMAP_H
#define TRN_STAGEMAP_H

#include "op/cancel.h"
#include "res/res.h"

typedef struct trn_stagemap trn_stagemap;
extern const trn_restype trn_stagemap_type, trn_stagemap_ordered_type;

/* size: tensors in a tuple. ordered: trn_stagemap_take without a key gives the smallest. 0: no limit. */
trn_stagemap *trn_stagemap_new(const char *name, int size, bool ordered, int64_t capacity, int64_t memory_limit);
/* n tensors to be taken over by the callee (the array is not), NULL for put and on errors. */
typedef void (*trn_stagemap_done)(void *arg, TRN_OWN trn_err err, int64_t key, trn_tensor **t, int n);
/* [any] All call done once, maybe before they return, without locks held. index: which pieces these are, ascending. */
void trn_stagemap_put(trn_stagemap *m, trn_cancel *cancel, int64_t key, const int32_t *index, trn_tensor *const *t,
                      int n, trn_stagemap_done done, void *arg);
/* key NULL: any. peek: leaves them there. */
void trn_stagemap_take(trn_stagemap *m, trn_cancel *cancel, const int64_t *key, const int32_t *index, int n, bool peek,
                       trn_stagemap_done done, void *arg);
int64_t trn_stagemap_size(trn_stagemap *m, bool incomplete);
void trn_stagemap_clear(trn_stagemap *m);

#endif
