/* Blocked calls of asynchronous kernels: who waits in a queue, an accumulator, a barrier or a staging area, in order, without a thread.
 *
 * A waiter is linked into a list of its resource, under the resource's lock. Whoever takes it out of there (the call that makes it ready,
 * or its cancellation) moves it to a list of its own and ends it after unlocking: callbacks never run under a lock. */
#ifndef TRN_WAIT_H
#define TRN_WAIT_H

#include "op/cancel.h"

typedef struct trn_wait trn_wait;
typedef struct trn_waitlist {
    trn_wait *first, *last;
} trn_waitlist;

struct trn_wait {
    trn_wait *next, *prev;
    trn_waitlist *list; /* where it is linked */
    trn_cancel *cancel; /* may be NULL; outlives the waiter (it is the step's) */
    trn_cancel_hook hook;
    bool hooked;
    trn_err err;              /* what it ends with */
    void (*end)(trn_wait *w); /* runs unlocked, once; takes err, frees the waiter */
};

/* With the lock held: at the end of the list. */
void trn_wait_link(trn_waitlist *list, trn_wait *w);
/* With the lock held: from where it is to the end of `ready`. */
void trn_wait_ready(trn_waitlist *ready, trn_wait *w, TRN_OWN trn_err err);
/* With the lock held, on a linked waiter that has to stay: on_cancel(w) will run without locks; it must take the resource's lock and ask
 * trn_wait_in() whether the waiter is still there. false: already cancelled. */
bool trn_wait_hook(trn_wait *w, void (*on_cancel)(void *w)) TRN_MUST_USE;
static inline bool trn_wait_in(const trn_wait *w, const trn_waitlist *list) { return w->list == list; }
/* Without locks: ends all. */
void trn_wait_end_all(trn_waitlist *ready);

#endif
