/* Cancellation of a step (or call): a counted flag with a reason and a list of who wants to know. */
#ifndef TRN_CANCEL_H
#define TRN_CANCEL_H

#include <trainera/op.h>

#include "base/base.h"

typedef struct trn_cancel_hook {
    struct trn_cancel_hook *next, *prev;
    void (*fn)(void *arg);
    void *arg;
    bool linked;
} trn_cancel_hook;

trn_cancel *trn_cancel_new(void);
trn_cancel *trn_cancel_ref(trn_cancel *c);
void trn_cancel_unref(trn_cancel *c);
/* [any] The first call wins; hooks run on the calling thread, without locks held, each once. */
void trn_cancel_fire(trn_cancel *c, TRN_OWN trn_err why);
bool trn_cancelled(const trn_cancel *c);
trn_err trn_cancel_why(trn_cancel *c) TRN_MUST_USE; /* a copy; NULL when not cancelled */
/* [any] false: already cancelled, fn will not run. The hook is the caller's storage. */
bool trn_cancel_add(trn_cancel *c, trn_cancel_hook *h, void (*fn)(void *), void *arg) TRN_MUST_USE;
/* [any] true: removed, fn will never run. false: fn has run or is running now on another thread; waits until it has returned (unless called
 * from inside it). */
bool trn_cancel_remove(trn_cancel *c, trn_cancel_hook *h);

#endif
