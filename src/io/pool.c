/* Thread pool: a ring of tasks behind one mutex, and for every worker a slot that holds what it submitted last.
 *
 * The slot keeps a chain of tasks on the core whose cache holds their data; it lies behind the same mutex, so idle workers
 * may take from it and a long task never hides work. A worker that finds nothing looks again for about a microsecond
 * before it sleeps: the next task of a step usually comes at once, and a sleep plus wake-up costs more. Among kernels that are
 * divided over the pool it looks for longer if the next one has usually followed within that time; it offers its core
 * to others meanwhile. The last kernel of a small step is not followed by any: a ps learns not to look.
 *
 * A worker that was called while all cores were busy may be put behind the very one that called it, and stay there for a time slice
 * of milliseconds while another core has long come free: the kernel looks for such cases only now and then. So whoever works on a divided kernel
 * looks after those that were called and have not come, and sends them away from its own core (fetch).
 */
#include "io/loop.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LATE_NS 80000 /* a worker that was called and is not here by then is behind somebody; the wake-up itself takes 20 to 50 µs */
#define SPIN_BUSY_NS 60000 /* among divided kernels; a sleep and the wake-up cost 20 to 50 µs on a virtual machine */
#define SPIN_JOIN_NS 100000 /* for the last piece of a divided kernel */

typedef struct task {
    trn_fn fn;
    void *arg;
} task;

typedef struct worker {
    trn_pool *pool;
    pthread_t thread;
    pthread_cond_t come;
    struct worker *next; /* of those that sleep */
    _Atomic uint64_t called_ns; /* != 0: it was called, or let others go first, then and is not here yet */
    pid_t tid;
    bool fetched;   /* sent away from a core; `cpus` is where it may be */
    cpu_set_t cpus;
    task slot; /* fn NULL: empty */
    unsigned turn;
    bool helped; /* its last task was a piece of a divided kernel */
    int hope;    /* > 0: after one, the next task has come soon of late */
} worker;

struct trn_pool {
    trn_mutex mu;
    task *ring; /* power of two */
    size_t cap, head, n;
    int slots; /* workers whose slot is full */
    trn_later *owed, **owed_last; /* what nobody waits for */
    int paying, pay_queued;       /* tasks for that, and those of them that are in the ring */
    worker *asleep; /* the last one to fall asleep first: its cache is the warmest */
    bool closing;
    _Atomic int called; /* workers that were called and are not here yet */
    _Atomic uint32_t waiting; /* tasks to be had: read without the lock while spinning */
    int n_workers;
    char name[12];
    worker w[];
};

static _Thread_local worker *self;

int trn_pool_threads(const trn_pool *p) { return p->n_workers; }
bool trn_pool_here(const trn_pool *p) { return self && self->pool == p; }

static void ring_push(trn_pool *p, task t)
{
    if (p->n == p->cap) {
        size_t cap = p->cap * 2;
        task *ring = trn_xalloc(cap * sizeof *ring);
        for (size_t i = 0; i < p->n; i++)
            ring[i] = p->ring[(p->head + i) & (p->cap - 1)];
        free(p->ring);
        p->ring = ring;
        p->cap = cap;
        p->head = 0;
    }
    p->ring[(p->head + p->n++) & (p->cap - 1)] = t;
}

static task ring_pop(trn_pool *p)
{
    task t = p->ring[p->head];
    p->head = (p->head + 1) & (p->cap - 1);
    p->n--;
    return t;
}

static bool slot_pop(trn_pool *p, worker *w, task *out)
{
    if (w->slot.fn == NULL)
        return false;
    *out = w->slot;
    w->slot.fn = NULL;
    p->slots--;
    return true;
}

/* Locked. Own slot, then the ring, then other slots; every 16th time the ring first, so that nothing starves. */
static bool take(trn_pool *p, worker *w, task *out)
{
    bool ring_first = ++w->turn % 16 == 0 && p->n > 0;
    if (!ring_first && slot_pop(p, w, out))
        goto got;
    if (p->n > 0) {
        *out = ring_pop(p);
        goto got;
    }
    for (int i = 0; p->slots > 0 && i < p->n_workers; i++)
        if (slot_pop(p, &p->w[i], out))
            goto got;
    return false;
got:
    atomic_fetch_sub_explicit(&p->waiting, 1, memory_order_relaxed);
    return true;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Lets others have this core; while somebody does, whoever needs us may send us to another one (fetch). */
static void offer_core(worker *w)
{
    trn_pool *p = w->pool;
    atomic_store_explicit(&w->called_ns, trn_now_ns(), memory_order_relaxed);
    atomic_fetch_add_explicit(&p->called, 1, memory_order_relaxed);
    sched_yield();
    atomic_store_explicit(&w->called_ns, 0, memory_order_relaxed);
    atomic_fetch_sub_explicit(&p->called, 1, memory_order_relaxed);
}

/* Looks for a task without the lock, until then. */
static void spin_idle(trn_pool *p, uint64_t until)
{
    for (int i = 0; i < 64; i++, relax())
        if (atomic_load_explicit(&p->waiting, memory_order_relaxed))
            return;
    for (; trn_now_ns() < until; offer_core(self))
        for (int i = 0; i < 32; i++, relax())
            if (atomic_load_explicit(&p->waiting, memory_order_relaxed))
                return;
}

/* One time in three is enough: a wake-up that comes late holds up a whole kernel. */
static void learn(worker *w, bool soon)
{
    w->hope = soon ? TRN_MIN(w->hope + 2, 8) : TRN_MAX(w->hope - 1, -1);
}

/* Locked. Somebody who sleeps; the caller signals him when it has let the lock go. NULL: nobody does. */
static worker *call_one(trn_pool *p)
{
    worker *w = p->asleep;
    if (w) {
        p->asleep = w->next;
        w->called_ns = trn_now_ns();
        atomic_fetch_add_explicit(&p->called, 1, memory_order_relaxed);
    }
    return w;
}

/* Locked. */
static void wait_for_call(trn_pool *p, worker *w)
{
    w->next = p->asleep;
    p->asleep = w;
    while (!w->called_ns && !p->closing)
        pthread_cond_wait(&w->come, &p->mu.m);
    if (w->called_ns) {
        w->called_ns = 0;
        atomic_fetch_sub_explicit(&p->called, 1, memory_order_relaxed);
    }
}

/* Whoever was called and is late is told to run on any core but this one. He puts that right himself when he comes. */
static void fetch(trn_pool *p)
{
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE)
        return;
    trn_lock(&p->mu);
    uint64_t now = trn_now_ns();
    for (int i = 0; i < p->n_workers; i++) {
        worker *w = &p->w[i];
        uint64_t called = atomic_load_explicit(&w->called_ns, memory_order_relaxed);
        if (!called || w->fetched || now < called + LATE_NS || sched_getaffinity(w->tid, sizeof w->cpus, &w->cpus) != 0)
            continue;
        cpu_set_t others = w->cpus;
        CPU_CLR(here, &others);
        w->fetched = CPU_COUNT(&others) > 0 && sched_setaffinity(w->tid, sizeof others, &others) == 0;
    }
    trn_unlock(&p->mu);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    trn_pool *p = w->pool;
    self = w;
    w->tid = gettid();
    trn_fpu_flush(); /* pieces of divided kernels come here without the executor */
    pthread_setname_np(pthread_self(), p->name);
    for (;;) {
        task t;
        trn_lock(&p->mu);
        bool got = take(p, w, &t);
        if (!got) {
            trn_unlock(&p->mu);
            uint64_t until = w->helped ? trn_now_ns() + SPIN_BUSY_NS : 0;
            bool looks = until && w->hope > 0;
            spin_idle(p, looks ? until : 0);
            w->helped = false;
            trn_lock(&p->mu);
            while (!(got = take(p, w, &t)) && !p->closing)
                wait_for_call(p, w);
            if (until)
                learn(w, trn_now_ns() < until);
        }
        bool fetched = w->fetched;
        w->fetched = false;
        trn_unlock(&p->mu);
        if (TRN_UNLIKELY(fetched))
            sched_setaffinity(0, sizeof w->cpus, &w->cpus);
        if (!got)
            break;
        t.fn(t.arg);
    }
    self = NULL;
    return NULL;
}

void trn_pool_submit(trn_pool *p, trn_fn fn, void *arg)
{
    task t = {fn, arg};
    worker *w = self && self->pool == p ? self : NULL;
    trn_lock(&p->mu);
    if (w == NULL) {
        ring_push(p, t);
    } else {
        if (w->slot.fn)
            ring_push(p, w->slot);
        else
            p->slots++;
        w->slot = t;
    }
    atomic_fetch_add_explicit(&p->waiting, 1, memory_order_relaxed);
    worker *called = call_one(p);
    trn_unlock(&p->mu);
    if (called)
        pthread_cond_signal(&called->come);
}

trn_err trn_pool_open(trn_pool **out, int threads, const char *name)
{
    if (threads < 1)
        threads = 1;
    trn_pool *p = trn_xalloc(sizeof *p + (size_t)threads * sizeof p->w[0]);
    trn_mutex_init(&p->mu, TRN_RANK_POOL);
    p->cap = 64;
    p->owed_last = &p->owed;
    p->ring = trn_xalloc(p->cap * sizeof *p->ring);
    snprintf(p->name, sizeof p->name, "%s", name ? name : "pool");
    for (int i = 0; i < threads; i++) {
        p->w[i].pool = p;
        pthread_cond_init(&p->w[i].come, NULL);
        int e = pthread_create(&p->w[i].thread, NULL, worker_main, &p->w[i]);
        if (e != 0) {
            trn_pool_close(p);
            return trn_err_errno(e, "pool %s: cannot start thread %d of %d", name, i + 1, threads);
        }
        trn_lock(&p->mu);
        p->n_workers = i + 1;
        trn_unlock(&p->mu);
    }
    *out = p;
    return TRN_OK;
}

void trn_pool_close(trn_pool *p)
{
    if (p == NULL)
        return;
    trn_lock(&p->mu);
    p->closing = true;
    for (int i = 0; i < p->n_workers; i++)
        pthread_cond_signal(&p->w[i].come);
    trn_unlock(&p->mu);
    for (int i = 0; i < p->n_workers; i++) {
        pthread_join(p->w[i].thread, NULL);
        pthread_cond_destroy(&p->w[i].come);
    }
    trn_mutex_fini(&p->mu);
    free(p->ring);
    free(p);
}

/* ---- parallel for --------------------------------------------------------------------------------------------- */

/* Shared by the caller and its helpers; a helper that comes late finds no piece left and only drops its reference. */
typedef struct split {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t n, grain, shares;
    _Atomic int64_t next; /* first index not yet taken */
    _Atomic int64_t done; /* indices finished */
    _Atomic int refs;
    trn_pool *pool;
    trn_mutex mu;
    pthread_cond_t all;
} split;

static void split_unref(split *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    trn_mutex_fini(&s->mu);
    pthread_cond_destroy(&s->all);
    free(s);
}

/* Large pieces first, then smaller and smaller ones: whoever starts late or shares a core is not waited for in the end. Where they begin depends on
 * n, grain and the number of threads only. */
static int64_t piece_end(const split *s, int64_t begin)
{
    int64_t left = s->n - begin;
    return begin + TRN_MIN(left, TRN_MAX(left / s->shares / s->grain, (int64_t)1) * s->grain);
}

static void split_work(split *s)
{
    for (;;) {
        int64_t begin = atomic_load_explicit(&s->next, memory_order_relaxed), end;
        do {
            if (begin >= s->n)
                return;
            end = piece_end(s, begin);
        } while (!atomic_compare_exchange_weak_explicit(&s->next, &begin, end, memory_order_relaxed, memory_order_relaxed));
        s->fn(s->arg, begin, end);
        if (atomic_fetch_add(&s->done, end - begin) + (end - begin) == s->n) {
            trn_lock(&s->mu);
            pthread_cond_signal(&s->all);
            trn_unlock(&s->mu);
        }
        if (TRN_UNLIKELY(atomic_load_explicit(&s->pool->called, memory_order_relaxed)))
            fetch(s->pool);
    }
}

static void split_help(void *arg)
{
    if (self)
        self->helped = true;
    split_work(arg);
    split_unref(arg);
}

/* One task per helper. They go into the ring, not into the caller's slot, which keeps what the caller's chain goes on with. */
static void submit_helpers(trn_pool *p, int n, split *s)
{
    trn_lock(&p->mu);
    for (int i = 0; i < n; i++)
        ring_push(p, (task){split_help, s});
    atomic_fetch_add_explicit(&p->waiting, (uint32_t)n, memory_order_relaxed);
    /* Signalled under the lock, which they wait for at most as long as it takes to call the others. */
    for (worker *w; n > 0 && (w = call_one(p)); n--)
        pthread_cond_signal(&w->come);
    trn_unlock(&p->mu);
}

void trn_pool_for(trn_pool *p, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    /* Busy workers are asked too: one that finishes early finds the rest of this. */
    int helpers = p->n_workers - (trn_pool_here(p) ? 1 : 0);
    int64_t most = (n - 1) / grain; /* pieces beside the caller's */
    if (helpers > most)
        helpers = (int)most;
    if (helpers <= 0) {
        fn(arg, 0, n);
        return;
    }
    split *s = trn_xalloc(sizeof *s);
    s->pool = p;
    s->fn = fn;
    s->arg = arg;
    s->n = n;
    s->grain = grain;
    s->shares = (helpers + 1) * 2;
    trn_mutex_init(&s->mu, TRN_RANK_LEAF);
    pthread_cond_init(&s->all, NULL);
    atomic_init(&s->refs, helpers + 1);
    submit_helpers(p, helpers, s);
    split_work(s);
    if (self)
        self->helped = true;
    if (atomic_load(&s->done) != n)
        for (uint64_t until = trn_now_ns() + SPIN_JOIN_NS; atomic_load(&s->done) != n && trn_now_ns() < until; sched_yield())
            for (int i = 0; i < 32 && atomic_load_explicit(&s->done, memory_order_relaxed) != n; i++)
                relax();
    if (atomic_load(&s->done) != n) {
        trn_lock(&s->mu);
        while (atomic_load(&s->done) != n)
            pthread_cond_wait(&s->all, &s->mu.m);
        trn_unlock(&s->mu);
    }
    split_unref(s);
}

/* ---- what is owed --------------------------------------------------------------------------------------------- */

static void pay(void *arg);

/* Locked. */
static void queue_pay(trn_pool *p)
{
    ring_push(p, (task){pay, p});
    p->pay_queued++;
    atomic_fetch_add_explicit(&p->waiting, 1, memory_order_relaxed);
}

/* Piece by piece, and behind whatever else there is to do. */
static void pay(void *arg)
{
    trn_pool *p = arg;
    for (bool first = true;; first = false) {
        trn_lock(&p->mu);
        p->pay_queued -= first;
        trn_later *l = p->owed;
        if (!l) {
            p->paying--;
            trn_unlock(&p->mu);
            return;
        }
        if (p->n > (size_t)p->pay_queued || p->slots > 0) {
            queue_pay(p);
            trn_unlock(&p->mu);
            return;
        }
        trn_later_ref(l);
        trn_unlock(&p->mu);
        if (!trn_later_piece(l)) {
            trn_lock(&p->mu);
            bool gone = p->owed != l;
            if (!gone && !(p->owed = l->queued))
                p->owed_last = &p->owed;
            trn_unlock(&p->mu);
            if (!gone)
                trn_later_unref(l);
        }
        trn_later_unref(l);
        offer_core(self); /* the answer's reader, or the next request's, may have been put behind us */
    }
}

void trn_pool_later(trn_pool *p, trn_later *l)
{
    worker *called = NULL;
    trn_lock(&p->mu);
    l->queued = NULL;
    *p->owed_last = l;
    p->owed_last = &l->queued;
    if (p->paying < TRN_MAX(p->n_workers / 2, 1)) {
        p->paying++;
        queue_pay(p);
        called = call_one(p);
    }
    trn_unlock(&p->mu);
    if (called)
        pthread_cond_signal(&called->come);
}
