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
 *
 * Driving: a thread that waits for something that the loop will bring (trn_loop_drive) does the loop's work meanwhile: its message is sent and its
 * answer read without waking another thread, which costs more than a small step itself. Whoever works holds `drive`; nobody holds it while he sleeps. The
 * loop's own thread stays aside while somebody drives, and for LINGER_NS after: steps follow each other closely. Only one thread drives, and only when nobody
 * else waits; with more of them the loop's own thread serves them all.
 *
 * Stepping in: a thread that posts the last thing it has to do (trn_loop_post_last: a pool thread with the answer of a step) and finds the loop asleep does the
 * loop's work itself, under the same lock: the answer is on its way before the loop's thread would have been woken. That one sleeps on, unless a timer is now
 * due sooner than it was told.
 *
 * Looking: on a virtual machine a thread on an idle core is woken after some 50 µs, longer than a small step takes. So a loop whose waits are short looks for
 * what comes before it sleeps, and yields its core to anybody who wants it. Whether the next wait will be short is guessed as processors guess branches:
 * from what waits have been after one like the last, since a worker in small steps sees short ones (for its ps) and long ones (for its client) in turn.
 * TRAINERA_LOOK_US in the environment says for how long a loop looks; 0: never.
 */
#include "io/loop.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH = 128 };
#define LINGER_NS UINT64_C(1000000)
#define LOOK_US 250
#define HOPE 8
#define ALREADY_NS 3000
#define STEP_IN_ROUNDS 4
#define TALLY_NS UINT64_C(32000000)

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
    trn_loop_task *at_close;

    trn_timer **heap; /* [1..n_timers], earliest first */
    size_t n_timers, cap_timers;

    /* The events being dispatched: stopping a watch removes it from the rest of them. */
    struct epoll_event *ready;
    int n_ready, i_ready;
    uint64_t stops; /* watches stopped so far */

    pthread_mutex_t drive; /* held by the thread that does the loop's work */
    pthread_cond_t aside;
    bool driven, sleeps_long; /* a thread drives; our own waits for it to end without looking at the clock */
    uint64_t left_ns;         /* when the last one that drove went */
    _Atomic int waiters;      /* threads in trn_loop_drive */

    uint64_t woke_ns, awake_ns, asleep_ns; /* since then; before, younger times weigh more */

    uint64_t look_ns;
    trn_lender *lender;
    bool has_lender; /* asked for once */

    int hope[2]; /* large: look before sleeping, when the last wait was long, short */
    bool was_short;
};

static _Thread_local trn_loop *current;

trn_loop *trn_loop_current(void) { return current; }
bool trn_loop_here(const trn_loop *l) { return current == l; }

static void wake(trn_loop *l)
{
    if (!atomic_load(&l->asleep) || !atomic_exchange(&l->asleep, false))
        return;
    uint64_t one = 1;
    ssize_t w = write(l->evfd, &one, sizeof one); /* edge-triggered and never read: only fails when it would count past 2^64 */
    (void)w;
}

/* ---- inbox ---------------------------------------------------------------------------------------------------- */

static void push(trn_loop *l, trn_fn fn, void *arg)
{
    post *p = malloc(sizeof *p);
    if (!p)
        p = trn_xalloc(sizeof *p); /* says so and ends the process */
    p->fn = fn;
    p->arg = arg;
    p->next = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&l->inbox, &p->next, p))
        ;
}

void trn_loop_post(trn_loop *l, trn_fn fn, void *arg)
{
    push(l, fn, arg);
    if (current != l)
        wake(l);
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
    l->stops++;
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

/* [drive] Declares the loop asleep, and says for how long it may be. */
static int fall_asleep(trn_loop *l, const trn_latch *w)
{
    int timeout = l->later ? 0 : timeout_ms(l);
    atomic_store(&l->asleep, timeout != 0);
    if (!inbox_empty(l) || (w && atomic_load(&w->done))) {
        timeout = 0;
        atomic_store(&l->asleep, false);
    }
    return timeout;
}

/* Whoever posts something finds us asleep and writes the eventfd, so descriptors are all there is to look at. */
static int look(trn_loop *l, struct epoll_event *ready, uint64_t until)
{
    for (;;) {
        int n = epoll_wait(l->ep, ready, BATCH, 0);
        if (n != 0 || trn_now_ns() >= until)
            return n;
        sched_yield();
    }
}

/* It pays when nine waits in ten are short: a ps between large messages has short ones and long ones in no order, and would burn a fifth of its time. */
static void learn(trn_loop *l, bool looked, bool is_short)
{
    int *hope = &l->hope[l->was_short];
    if (is_short)
        *hope = TRN_MIN(*hope + 1, 2 * HOPE);
    else
        *hope = TRN_MAX(*hope - (looked ? HOPE : 3), -HOPE);
    l->was_short = is_short;
}

static void tally(trn_loop *l, uint64_t from, uint64_t to)
{
    l->awake_ns += TRN_MIN(from - l->woke_ns, TALLY_NS);
    l->asleep_ns += TRN_MIN(to - from, TALLY_NS);
    l->woke_ns = to;
    if (l->awake_ns + l->asleep_ns > TALLY_NS) {
        l->awake_ns /= 2;
        l->asleep_ns /= 2;
    }
}

bool trn_loop_has_time(const trn_loop *l) { return l->awake_ns < l->asleep_ns; }

/* [drive] Sleeps, without the lock, and does what there is to do. */
static void turn(trn_loop *l, const trn_latch *w)
{
    struct epoll_event ready[BATCH];
    int timeout = fall_asleep(l, w);
    uint64_t stops = l->stops, since = timeout != 0 ? trn_now_ns() : 0;
    bool looks = since && l->hope[l->was_short] > HOPE / 2;
    current = NULL;
    pthread_mutex_unlock(&l->drive);
    int n = looks ? look(l, ready, since + l->look_ns) : 0;
    if (n == 0)
        n = epoll_wait(l->ep, ready, BATCH, timeout);
    uint64_t now = since ? trn_now_ns() : 0, took = now - since;
    bool waits = took > ALREADY_NS, is_short = took < l->look_ns; /* what is there already says nothing about waits */
    atomic_store_explicit(&l->asleep, false, memory_order_relaxed);
    pthread_mutex_lock(&l->drive);
    current = l;
    if (since)
        tally(l, TRN_MAX(since, l->woke_ns), TRN_MAX(now, l->woke_ns)); /* somebody may have stepped in meanwhile */
    if (waits)
        learn(l, looks, is_short);
    /* Another thread may have stopped what we are told about; everything that still matters will be told again. */
    l->ready = ready;
    l->n_ready = n < 0 || stops != l->stops ? 0 : n; /* < 0: EINTR */
    dispatch(l);
    run_inbox(l);
    run_timers(l);
    run_later(l);
}

/* [drive] Another thread works for us, or has just done so and will be back. */
static bool not_needed(const trn_loop *l)
{
    return !l->stop && (l->driven || (l->left_ns && atomic_load(&l->waiters) == 0 && trn_now_ns() - l->left_ns < LINGER_NS));
}

static void stand_aside(trn_loop *l)
{
    if (l->driven) {
        /* What woke us may have been meant for him. */
        atomic_store(&l->asleep, true);
        wake(l);
    }
    while (not_needed(l)) {
        uint64_t left = l->left_ns;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LINGER_NS;
        if (until.tv_nsec >= 1000000000)
            until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&l->aside, &l->drive, &until);
        if (l->driven && left == l->left_ns) { /* it is a long wait */
            l->sleeps_long = true;
            while (l->driven && l->sleeps_long)
                pthread_cond_wait(&l->aside, &l->drive);
            l->sleeps_long = false;
        }
    }
}

static void *loop_main(void *arg)
{
    trn_loop *l = arg;
    pthread_setname_np(pthread_self(), l->name);
    pthread_mutex_lock(&l->drive);
    current = l;
    while (!l->stop) {
        if (not_needed(l))
            stand_aside(l);
        if (!l->stop)
            turn(l, NULL);
    }
    while (!inbox_empty(l) || l->later) {
        run_inbox(l);
        run_later(l);
    }
    current = NULL;
    pthread_mutex_unlock(&l->drive);
    return NULL;
}

/* [drive] What there is to do without looking at descriptors; then the loop is declared asleep again. False: there is more, after many rounds. */
static bool settle(trn_loop *l, int rounds)
{
    while (fall_asleep(l, NULL) == 0) {
        if (rounds-- == 0)
            return false;
        run_inbox(l);
        run_timers(l);
        run_later(l);
    }
    return true;
}

/* ---- stepping in ----------------------------------------------------------------------------------------------- */

static uint64_t earliest(const trn_loop *l) { return l->n_timers ? l->heap[1]->at_ns : UINT64_MAX; }

/* False: the loop, if it sleeps, must be woken. */
static bool step_in(trn_loop *l)
{
    if (current || !atomic_load(&l->asleep) || pthread_mutex_trylock(&l->drive) != 0)
        return false;
    bool done = false;
    if (!l->driven && !l->stop) { /* whoever drives waits for what this may bring, and would not be woken */
        uint64_t due = earliest(l);
        current = l;
        done = settle(l, STEP_IN_ROUNDS) && earliest(l) >= due && !l->stop;
        current = NULL;
        if (!done)
            atomic_store(&l->asleep, true); /* so that the caller wakes it */
    }
    pthread_mutex_unlock(&l->drive);
    return done;
}

void trn_loop_post_last(trn_loop *l, trn_fn fn, void *arg)
{
    push(l, fn, arg);
    if (current != l && !step_in(l))
        wake(l);
}

/* ---- driving -------------------------------------------------------------------------------------------------- */

void trn_latch_init(trn_latch *w)
{
    *w = (trn_latch){.mu = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER};
}

void trn_latch_open(trn_latch *w)
{
    pthread_mutex_lock(&w->mu);
    atomic_store(&w->done, true);
    if (!w->driving)
        pthread_cond_signal(&w->cv);
    else if (current != w->driving)
        wake(w->driving);
    pthread_mutex_unlock(&w->mu);
}

void trn_latch_wait(trn_latch *w)
{
    pthread_mutex_lock(&w->mu); /* even when done: the waker may still hold it */
    while (!atomic_load(&w->done))
        pthread_cond_wait(&w->cv, &w->mu);
    pthread_mutex_unlock(&w->mu);
    pthread_mutex_destroy(&w->mu);
    pthread_cond_destroy(&w->cv);
}

void trn_loop_drive(trn_loop *l, trn_fn fn, void *arg, trn_latch *w)
{
    if (current || atomic_fetch_add(&l->waiters, 1) > 0) {
        fn(arg);
        trn_latch_wait(w);
        if (!current)
            atomic_fetch_sub(&l->waiters, 1);
        return;
    }
    pthread_mutex_lock(&l->drive);
    l->driven = true; /* whoever drove before has gone: he counted among the waiters until then */
    pthread_mutex_lock(&w->mu);
    w->driving = l;
    pthread_mutex_unlock(&w->mu);
    current = l;
    fn(arg);
    run_inbox(l);
    run_later(l);
    while (!atomic_load(&w->done))
        turn(l, w);
    /* Whatever is posted from now on is found by the next one to come: the eventfd stays ready. */
    while (!settle(l, INT_MAX))
        ;
    l->driven = false;
    l->left_ns = trn_now_ns();
    if (atomic_fetch_sub(&l->waiters, 1) > 1 || l->sleeps_long) {
        l->sleeps_long = false;
        pthread_cond_signal(&l->aside);
    }
    current = NULL;
    pthread_mutex_unlock(&l->drive);
    trn_latch_wait(w);
}

trn_err trn_loop_open(trn_loop **out, const char *name)
{
    trn_loop *l = trn_xalloc(sizeof *l);
    l->later_tail = &l->later;
    l->woke_ns = trn_now_ns();
    const char *look_us = getenv("TRAINERA_LOOK_US");
    l->look_ns = (look_us ? strtoul(look_us, NULL, 10) : LOOK_US) * UINT64_C(1000);
    pthread_mutex_init(&l->drive, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->aside, &clock);
    pthread_condattr_destroy(&clock);
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

void trn_loop_at_close(trn_loop *l, trn_loop_task *t)
{
    t->next = l->at_close;
    l->at_close = t;
}

void trn_loop_at_close_stop(trn_loop *l, trn_loop_task *t)
{
    for (trn_loop_task **at = &l->at_close; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            return;
        }
}

trn_lender *trn_loop_lender(trn_loop *l)
{
    if (!l->has_lender) {
        l->has_lender = true;
        l->lender = trn_lender_open();
    }
    return l->lender;
}

static void stop(void *arg) { ((trn_loop *)arg)->stop = true; }

void trn_loop_close(trn_loop *l)
{
    if (l == NULL)
        return;
    trn_loop_post(l, stop, l);
    pthread_join(l->thread, NULL);
    for (trn_loop_task *t; (t = l->at_close);) {
        l->at_close = t->next;
        t->fn(t->arg);
    }
    close(l->evfd);
    close(l->ep);
    trn_lender_close(l->lender);
    pthread_cond_destroy(&l->aside);
    pthread_mutex_destroy(&l->drive);
    free(l->heap);
    free(l);
}
