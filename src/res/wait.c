#include "res/wait.h"

static void unlink_wait(trn_wait *w)
{
    trn_waitlist *l = w->list;
    *(w->prev ? &w->prev->next : &l->first) = w->next;
    *(w->next ? &w->next->prev : &l->last) = w->prev;
    w->next = w->prev = NULL;
    w->list = NULL;
}

void trn_wait_link(trn_waitlist *list, trn_wait *w)
{
    w->list = list;
    w->next = NULL;
    w->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = w;
    list->last = w;
}

void trn_wait_ready(trn_waitlist *ready, trn_wait *w, trn_err err)
{
    unlink_wait(w);
    trn_wait_link(ready, w);
    w->err = err;
}

bool trn_wait_hook(trn_wait *w, void (*on_cancel)(void *w))
{
    if (!w->cancel)
        return true;
    w->hooked = true; /* before the hook can run: it may run at once, on another thread */
    if (!trn_cancel_add(w->cancel, &w->hook, on_cancel, w))
        w->hooked = false;
    return w->hooked;
}

void trn_wait_end_all(trn_waitlist *ready)
{
    for (trn_wait *w; (w = ready->first);) {
        /* A hook that lost the race for this waiter looks at w->list (under a lock that we do not have) and returns: wait for it before
         * anything of w changes. */
        if (w->hooked)
            trn_cancel_remove(w->cancel, &w->hook);
        unlink_wait(w);
        w->end(w);
    }
}
