/* The event loop: epoll, a heap of timers, an inbox for other threads, and tasks that run once before the loop sleeps.
 *
 * One turn: ready descriptors → inbox → due timers → "later" tasks → sleep. Everything that one wake-up produced for a
 * socket is therefore written by one later-task with one system call.
 *
 * Waking: a poster pushes on a lock-free stack and writes the eventfd only when it finds the loop asleep. The loop
 * declares itself asleep before it looks at the stack for the last time, so no message is missed:
 *
 *   poster:  push; if (exchange(asleep, false)) write(eventfd)
 *   loop:    asleep = true; if (stack not empty) asleep = false, go on; else epoll_wait
 */
#include "io/loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH = 128 };

typedef struct post {
    struct post *next;
    trn_fn fn;
    void *arg;
} post;

struct trn_loop {
    int ep, evfd;
    pthread_t thread;
    char name[16];
    bool stop; /* [loop] */

    _Atomic(post *) inbox; /* newest first */
    _Atomic bool asleep;

    trn_loop_task *later, **later_tail;

    trn_timer **heap; /* [1..n_timers], earliest first */
    size_t n_timers, cap_timers;

    /* The events being dispatched: stopping a watch removes it from the rest of them. */
    struct epoll_event ready[BATCH];
    int n_ready, i_ready;
};

static _Thread_local trn_loop *current;

trn_loop *trn_loop_current(void) { return current; }
bool trn_loop_here(const trn_loop *l) { return current == l; }

/* ---- inbox ---------------------------------------------------------------------------------------------------- */

void trn_loop_post(trn_loop *l, trn_fn fn, void *arg)
{
    post *p = malloc(sizeof *p);
    if (!p)
        p = trn_xalloc(sizeof *p); /* says so and ends the process */
    p->fn = fn;
    p->arg = arg;
    p->next = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&l->inbox, &p->next, p))
        ;
    if (current != l && atomic_load(&l->asleep) && atomic_exchange(&l->asleep, false)) {
        uint64_t one = 1;
        ssize_t w = write(l->evfd, &one,
                          sizeof one); /* edge-triggered and never read: only fails when it would count past 2^64 */
        (void)w;
    }
}

static void run_inbox(trn_loop *l)
{
    post *p = atomic_exchange(&l->inbox, NULL), *in_order = NULL;
    while (p) {
        post *next = p->next;
        p->next = in_order;
        in_order = p;
        p = next;
    }
    while (in_order) {
        post *next = in_order->next;
        in_order->fn(in_order->arg);
        free(in_order);
        in_order = next;
    }
}

/* ---- later ---------------------------------------------------------------------------------------------------- */

void trn_loop_later(trn_loop *l, trn_loop_task *t)
{
    if (t->armed)
        return;
    t->armed = true;
    t->next = NULL;
    *l->later_tail = t;
    l->later_tail = &t->next;
}

void trn_loop_later_stop(trn_loop *l, trn_loop_task *t)
{
    if (!t->armed)
        return;
    t->armed = false;
    for (trn_loop_task **at = &l->later; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            if (!t->next)
                l->later_tail = at;
            return;
        }
}

static void run_later(trn_loop *l)
{
    /* A task may arm itself or others again; a bounded number of rounds keeps sockets from starving. */
    for (int i = 0; l->later && i < 1024; i++) {
        trn_loop_task *t = l->later;
        l->later = t->next;
        if (!l->later)
            l->later_tail = &l->later;
        t->armed = false;
        t->fn(t->arg);
    }
}

/* ---- timers --------------------------------------------------------------------------------------------------- */

static void heap_put(trn_loop *l, size_t i, trn_timer *t)
{
    l->heap[i] = t;
    t->pos = i;
}

static void sift_up(trn_loop *l, size_t i)
{
    trn_timer *t = l->heap[i];
    for (; i > 1 && l->heap[i / 2]->at_ns > t->at_ns; i /= 2)
        heap_put(l, i, l->heap[i / 2]);
    heap_put(l, i, t);
}

static void sift_down(trn_loop *l, size_t i)
{
    trn_timer *t = l->heap[i];
    for (size_t child; (child = 2 * i) <= l->n_timers; i = child) {
        if (child < l->n_timers && l->heap[child + 1]->at_ns < l->heap[child]->at_ns)
            child++;
        if (l->heap[child]->at_ns >= t->at_ns)
            break;
        heap_put(l, i, l->heap[child]);
    }
    heap_put(l, i, t);
}

void trn_timer_start(trn_loop *l, trn_timer *t, uint64_t at_ns, trn_fn fn, void *arg)
{
    t->at_ns = at_ns;
    t->fn = fn;
    t->arg = arg;
    if (t->pos == 0) {
        if (l->n_timers + 1 >= l->cap_timers) {
            l->cap_timers = l->cap_timers ? 2 * l->cap_timers : 64;
            l->heap = trn_xrealloc(l->heap, l->cap_timers * sizeof *l->heap);
        }
        heap_put(l, ++l->n_timers, t);
    }
    sift_up(l, t->pos);
    sift_down(l, t->pos);
}

void trn_timer_stop(trn_loop *l, trn_timer *t)
{
    size_t i = t->pos;
    if (i == 0)
        return;
    t->pos = 0;
    trn_timer *last = l->heap[l->n_timers--];
    if (last == t)
        return;
    heap_put(l, i, last);
    sift_up(l, i);
    sift_down(l, last->pos);
}

static void run_timers(trn_loop *l)
{
    if (l->n_timers == 0)
        return;
    uint64_t now = trn_now_ns();
    while (l->n_timers && l->heap[1]->at_ns <= now) {
        trn_timer *t = l->heap[1];
        trn_timer_stop(l, t);
        t->fn(t->arg);
    }
}

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

static uint32_t to_epoll(int events)
{
    return (events & TRN_IO_READ ? (uint32_t)EPOLLIN : 0) | (events & TRN_IO_WRITE ? (uint32_t)EPOLLOUT : 0);
}

trn_err trn_watch_start(trn_loop *l, trn_watch *w, int fd, int events, void (*fn)(void *, int), void *arg)
{
    *w = (trn_watch){.fd = fd, .events = events, .fn = fn, .arg = arg};
    if (events == 0)
        return TRN_OK;
    struct epoll_event ev = {.events = to_epoll(events), .data.ptr = w};
    if (epoll_ctl(l->ep, EPOLL_CTL_ADD, fd, &ev) != 0) {
        int e = errno;
        w->fd = -1;
        return trn_err_errno(e, "epoll cannot watch descriptor %d", fd);
    }
    return TRN_OK;
}

void trn_watch_events(trn_loop *l, trn_watch *w, int events)
{
    if (w->events == events)
        return;
    /* A hang-up is reported even to those who asked for nothing, again and again: such a watch leaves the set. */
    int op = w->events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    struct epoll_event ev = {.events = to_epoll(events), .data.ptr = w};
    w->events = events;
    if (epoll_ctl(l->ep, op, w->fd, &ev) != 0)
        TRN_WARN("io", "epoll_ctl on descriptor %d: %s", w->fd, strerror(errno));
}

void trn_watch_stop(trn_loop *l, trn_watch *w)
{
    if (w->fn == NULL)
        return;
    if (w->events != 0)
        epoll_ctl(l->ep, EPOLL_CTL_DEL, w->fd, NULL);
    for (int i = l->i_ready; i < l->n_ready; i++)
        if (l->ready[i].data.ptr == w)
            l->ready[i].data.ptr = NULL;
    w->fn = NULL;
    w->fd = -1;
    w->events = 0;
}

static void dispatch(trn_loop *l)
{
    for (l->i_ready = 0; l->i_ready < l->n_ready;) {
        const struct epoll_event *ev = &l->ready[l->i_ready++];
        trn_watch *w = ev->data.ptr;
        if (w == NULL || w == (trn_watch *)l)
            continue;
        int events = 0;
        if (ev->events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP))
            events |= TRN_IO_READ;
        if (ev->events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            events |= TRN_IO_WRITE;
        events &= w->events;
        if (events)
            w->fn(w->arg, events);
    }
    l->n_ready = l->i_ready = 0;
}

/* ---- the thread ----------------------------------------------------------------------------------------------- */

/* Milliseconds until the next timer, rounded up; -1: none. */
static int timeout_ms(const trn_loop *l)
{
    if (l->n_timers == 0)
        return -1;
    uint64_t now = trn_now_ns(), at = l->heap[1]->at_ns;
    if (at <= now)
        return 0;
    uint64_t ms = (at - now + 999999) / 1000000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

static bool inbox_empty(trn_loop *l) { return atomic_load(&l->inbox) == NULL; }

static void *loop_main(void *arg)
{
    trn_loop *l = arg;
    current = l;
    pthread_setname_np(pthread_self(), l->name);
    while (!l->stop) {
        int timeout = timeout_ms(l);
        if (l->later)
            timeout = 0;
        atomic_store(&l->asleep, timeout != 0);
        if (!inbox_empty(l)) {
            timeout = 0;
            atomic_store(&l->asleep, false);
        }
        int n = epoll_wait(l->ep, l->ready, BATCH, timeout);
        atomic_store_explicit(&l->asleep, false, memory_order_relaxed);
        l->n_ready = n < 0 ? 0 : n; /* EINTR */
        dispatch(l);
        run_inbox(l);
        run_timers(l);
        run_later(l);
    }
    while (!inbox_empty(l) || l->later) {
        run_inbox(l);
        run_later(l);
    }
    current = NULL;
    return NULL;
}

trn_err trn_loop_open(trn_loop **out, const char *name)
{
    trn_loop *l = trn_xalloc(sizeof *l);
    l->later_tail = &l->later;
    snprintf(l->name, sizeof l->name, "%s", name ? name : "loop");
    trn_err err = TRN_OK;
    l->evfd = -1;
    l->ep = epoll_create1(EPOLL_CLOEXEC);
    if (l->ep < 0) {
        err = trn_err_errno(errno, "event loop %s: epoll_create1", l->name);
        goto fail;
    }
    l->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = l};
    if (l->evfd < 0 || epoll_ctl(l->ep, EPOLL_CTL_ADD, l->evfd, &ev) != 0) {
        err = trn_err_errno(errno, "event loop %s: eventfd", l->name);
        goto fail;
    }
    int e = pthread_create(&l->thread, NULL, loop_main, l);
    if (e != 0) {
        err = trn_err_errno(e, "event loop %s: cannot start its thread", l->name);
        goto fail;
    }
    *out = l;
    return TRN_OK;
fail:
    if (l->evfd >= 0)
        close(l->evfd);
    if (l->ep >= 0)
        close(l->ep);
    free(l);
    return err;
}

static void stop(void *arg) { ((trn_loop *)arg)->stop = true; }

void trn_loop_close(trn_loop *l)
{
    if (l == NULL)
        return;
    trn_loop_post(l, stop, l);
    pthread_join(l->thread, NULL);
    close(l->evfd);
    close(l->ep);
    free(l->heap);
    free(l);
}
