/* Event loop, timers, pool, addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/net.h"

typedef struct gate {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int n;
} gate;
#define GATE                                                                                                           \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                                         \
    }
static void gate_add(void *arg)
{
    gate *g = arg;
    pthread_mutex_lock(&g->mu);
    g->n++;
    pthread_cond_broadcast(&g->cv);
    pthread_mutex_unlock(&g->mu);
}
static void gate_wait(gate *g, int n)
{
    pthread_mutex_lock(&g->mu);
    while (g->n < n)
        pthread_cond_wait(&g->cv, &g->mu);
    pthread_mutex_unlock(&g->mu);
}

/* ---- loop ----------------------------------------------------------------------------------------------------- */

enum { POSTERS = 4, POSTS = 20000 };
typedef struct poster {
    trn_loop *l;
    int id, next_expected;
    gate *done;
} poster;
typedef struct item {
    poster *p;
    int i;
} item;

static void take_item(void *arg)
{
    item *it = arg;
    assert_int_equal(it->i, it->p->next_expected);
    it->p->next_expected++;
    if (it->i + 1 == POSTS)
        gate_add(it->p->done);
    free(it);
}

static void *poster_main(void *arg)
{
    poster *p = arg;
    for (int i = 0; i < POSTS; i++) {
        item *it = malloc(sizeof *it);
        *it = (item){p, i};
        trn_loop_post(p->l, take_item, it);
        if (i % 1000 == 0)
            usleep(50); /* lets the loop fall asleep now and then */
    }
    return NULL;
}

static void posts_run_in_order(void **state)
{
    (void)state;
    trn_loop *l;
    assert_null(trn_loop_open(&l, "test"));
    gate done = GATE;
    poster p[POSTERS];
    pthread_t t[POSTERS];
    for (int i = 0; i < POSTERS; i++) {
        p[i] = (poster){l, i, 0, &done};
        pthread_create(&t[i], NULL, poster_main, &p[i]);
    }
    gate_wait(&done, POSTERS);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(t[i], NULL);
    trn_loop_close(l);
}

static void close_runs_what_was_posted(void **state)
{
    (void)state;
    trn_loop *l;
    assert_null(trn_loop_open(&l, "test"));
    gate g = GATE;
    for (int i = 0; i < 100; i++)
        trn_loop_post(l, gate_add, &g);
    trn_loop_close(l);
    assert_int_equal(g.n, 100);
}

typedef struct timers {
    trn_loop *l;
    gate g;
    trn_timer t[64];
    int order[64], n;
    trn_loop_task later;
    int later_runs;
} timers;

static timers *the_timers;
static void fired(void *arg)
{
    timers *s = the_timers;
    assert_true(trn_now_ns() >= ((trn_timer *)arg)->at_ns);
    s->order[s->n++] = (int)((trn_timer *)arg - s->t);
    if (s->n == 33)
        gate_add(&s->g);
}
static void later_ran(void *arg) { ((timers *)arg)->later_runs++; }

static void start_timers(void *arg)
{
    timers *s = arg;
    uint64_t now = trn_now_ns();
    for (int i = 0; i < 64; i++) /* started in reverse */
        trn_timer_start(s->l, &s->t[63 - i], now + (uint64_t)(63 - i) * 100000, fired, &s->t[63 - i]);
    for (int i = 1; i < 64; i += 2) /* odd ones are stopped but for 1, which is moved to the end */
        if (i == 1)
            trn_timer_start(s->l, &s->t[1], now + 7000000, fired, &s->t[1]);
        else
            trn_timer_stop(s->l, &s->t[i]);
    trn_loop_later(s->l, &s->later);
    trn_loop_later(s->l, &s->later);
}

static void timers_fire_in_order(void **state)
{
    (void)state;
    timers s = {.g = GATE, .later = {.fn = later_ran}};
    s.later.arg = &s;
    the_timers = &s;
    assert_null(trn_loop_open(&s.l, "test"));
    trn_loop_post(s.l, start_timers, &s);
    gate_wait(&s.g, 1);
    trn_loop_close(s.l);
    assert_int_equal(s.n, 33);
    for (int i = 0; i < 32; i++)
        assert_int_equal(s.order[i], 2 * i);
    assert_int_equal(s.order[32], 1);
    assert_int_equal(s.later_runs, 1);
}

typedef struct pipes {
    trn_loop *l;
    int fd[2][2];
    trn_watch w[2];
    int reads[2];
    gate g;
} pipes;

/* Both are ready in one turn; whoever comes first stops the other. */
static void on_pipe(void *arg, int events)
{
    pipes *p = arg;
    assert_int_equal(events, TRN_IO_READ);
    char c[8];
    int which = p->w[0].fn && read(p->fd[0][0], c, sizeof c) > 0 ? 0 : 1;
    p->reads[which]++;
    trn_watch_stop(p->l, &p->w[0]);
    trn_watch_stop(p->l, &p->w[1]);
    gate_add(&p->g);
}

static void start_pipes(void *arg)
{
    pipes *p = arg;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write(p->fd[i][1], "x", 1), 1);
        assert_null(trn_watch_start(p->l, &p->w[i], p->fd[i][0], TRN_IO_READ, on_pipe, p));
    }
}

static void stopped_watch_is_silent(void **state)
{
    (void)state;
    pipes p = {.g = GATE};
    assert_int_equal(pipe2(p.fd[0], 04000), 0);
    assert_int_equal(pipe2(p.fd[1], 04000), 0);
    assert_null(trn_loop_open(&p.l, "test"));
    trn_loop_post(p.l, start_pipes, &p);
    gate_wait(&p.g, 1);
    usleep(2000);
    trn_loop_close(p.l);
    assert_int_equal(p.reads[0] + p.reads[1], 1);
    for (int i = 0; i < 4; i++)
        close(p.fd[i / 2][i % 2]);
}

typedef struct usage {
    gate done;
    struct rusage r;
} usage;
static void take_usage(void *arg)
{
    usage *u = arg;
    getrusage(RUSAGE_THREAD, &u->r);
    gate_add(&u->done);
}
static struct rusage usage_of(trn_loop *l)
{
    usage u = {.done = GATE};
    trn_loop_post(l, take_usage, &u);
    gate_wait(&u.done, 1);
    return u.r;
}
static trn_loop *loop_that_looks(const char *us)
{
    trn_loop *l = NULL;
    setenv("TRAINERA_LOOK_US", us, 1);
    assert_null(trn_loop_open(&l, "looks"));
    unsetenv("TRAINERA_LOOK_US");
    return l;
}
/* How often the loop's thread went to sleep while it was asked 200 times, each time after the answer, from another core: on its own one it has to sleep for
 * the asker to run, which takes less time than a wait that counts. */
static long sleeps(void)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int cpu[2] = {0}, n_cpu = 0;
    for (int i = 0; i < CPU_SETSIZE && n_cpu < 2; i++)
        if (CPU_ISSET(i, &all))
            cpu[n_cpu++] = i;
    if (n_cpu < 2)
        skip();
    CPU_ZERO(&one);
    CPU_SET(cpu[0], &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* the loop's thread inherits it */
    trn_loop *l = loop_that_looks("2000000");
    CPU_ZERO(&one);
    CPU_SET(cpu[1], &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct rusage before = {0};
    for (int i = 0; i < 300; i++) {
        gate g = GATE;
        trn_loop_post(l, gate_add, &g);
        gate_wait(&g, 1);
        if (i == 99)
            before = usage_of(l);
    }
    long n = usage_of(l).ru_nvcsw - before.ru_nvcsw;
    trn_loop_close(l);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    return n;
}
/* After short waits a loop looks for what comes: it does not sleep between questions that follow each other within its time. */
static void short_waits_do_not_sleep(void **state)
{
    (void)state;
    assert_true(sleeps() < 50);
}
/* After long ones it sleeps at once: 40 looks of 5 ms would be 200 ms of CPU. */
static void long_waits_cost_nothing(void **state)
{
    (void)state;
    trn_loop *l = loop_that_looks("5000");
    for (int i = 0; i < 40; i++) {
        gate g = GATE;
        usleep(12000);
        trn_loop_post(l, gate_add, &g);
        gate_wait(&g, 1);
    }
    struct rusage r = usage_of(l);
    trn_loop_close(l);
    assert_true(r.ru_utime.tv_sec + r.ru_stime.tv_sec == 0 && r.ru_utime.tv_usec + r.ru_stime.tv_usec < 50000);
}

/* Nor does it look when both come in no order: two looks in five would be in vain, 5 ms each. */
static void mixed_waits_cost_nothing(void **state)
{
    (void)state;
    trn_loop *l = loop_that_looks("5000");
    unsigned seed = 7;
    for (int i = 0; i < 80; i++) {
        gate g = GATE;
        seed = seed * 1664525u + 1013904223u;
        usleep((seed >> 24) % 5 < 3 ? 1000 : 10000);
        trn_loop_post(l, gate_add, &g);
        gate_wait(&g, 1);
    }
    struct rusage r = usage_of(l);
    trn_loop_close(l);
    assert_true(r.ru_utime.tv_sec + r.ru_stime.tv_sec == 0 && r.ru_utime.tv_usec + r.ru_stime.tv_usec < 50000);
}

/* ---- pool ----------------------------------------------------------------------------------------------------- */

typedef struct tree {
    trn_pool *p;
    int depth;
    gate *g;
} tree;

static void grow(void *arg)
{
    tree *t = arg;
    assert_true(trn_pool_here(t->p));
    for (int i = 0; t->depth > 0 && i < 2; i++) {
        tree *child = malloc(sizeof *child);
        *child = (tree){t->p, t->depth - 1, t->g};
        trn_pool_submit(t->p, grow, child);
    }
    gate_add(t->g);
    free(t);
}

static void pool_runs_everything(void **state)
{
    (void)state;
    trn_pool *p;
    assert_null(trn_pool_open(&p, 3, "test"));
    assert_int_equal(trn_pool_threads(p), 3);
    assert_false(trn_pool_here(p));
    gate g = GATE;
    for (int i = 0; i < 8; i++) {
        tree *t = malloc(sizeof *t);
        *t = (tree){p, 8, &g};
        trn_pool_submit(p, grow, t);
    }
    gate_wait(&g, 8 * 511);
    trn_pool_close(p);
    assert_int_equal(g.n, 8 * 511);
}

/* A task in a worker's slot must not wait for that worker. */
static void mark(void *arg) { gate_add(arg); }
typedef struct blocker {
    trn_pool *p;
    gate inner, outer;
} blocker;
static void block(void *arg)
{
    blocker *b = arg;
    trn_pool_submit(b->p, mark, &b->inner);
    gate_wait(&b->inner, 1); /* what no real task may do */
    gate_add(&b->outer);
}

static void pool_slot_can_be_stolen(void **state)
{
    (void)state;
    blocker b = {.inner = GATE, .outer = GATE};
    assert_null(trn_pool_open(&b.p, 2, "test"));
    trn_pool_submit(b.p, block, &b);
    gate_wait(&b.outer, 1);
    trn_pool_close(b.p);
}

static void fill(void *arg, int64_t begin, int64_t end)
{
    assert_true(begin < end);
    for (int64_t i = begin; i < end; i++)
        ((uint8_t *)arg)[i]++;
}

static void nested(void *arg, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        uint8_t hit[1000] = {0};
        trn_pool_for(arg, 1000, 10, fill, hit);
        for (int k = 0; k < 1000; k++)
            assert_int_equal(hit[k], 1);
    }
}

static void pool_for_covers_all_once(void **state)
{
    (void)state;
    trn_pool *p;
    assert_null(trn_pool_open(&p, 4, "test"));
    usleep(1000);
    static const int64_t sizes[] = {0, 1, 7, 1000, 65537};
    for (size_t s = 0; s < TRN_COUNTOF(sizes); s++)
        for (int64_t grain = 1; grain < 100000; grain *= 31) {
            uint8_t *hit = calloc((size_t)sizes[s] + 1, 1);
            trn_pool_for(p, sizes[s], grain, fill, hit);
            for (int64_t i = 0; i < sizes[s]; i++)
                assert_int_equal(hit[i], 1);
            free(hit);
        }
    trn_pool_for(p, 16, 1, nested, p);
    trn_pool_close(p);
}

typedef struct owed_job {
    uint8_t hit[1000];
    _Atomic int over, threads, most, slow;
} owed_job;
static void owed_piece(void *arg, int64_t begin, int64_t end)
{
    owed_job *o = arg;
    int n = atomic_fetch_add(&o->threads, 1) + 1;
    if (n > atomic_load(&o->most))
        atomic_store(&o->most, n);
    for (int64_t i = begin; i < end; i++)
        o->hit[i]++;
    if (atomic_load(&o->slow))
        usleep(1000);
    atomic_fetch_sub(&o->threads, 1);
}
static void owed_over(void *arg)
{
    owed_job *o = arg;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(o->hit[i], 1);
    atomic_fetch_add(&o->over, 1);
}
static void *end_it(void *arg)
{
    trn_later_end(arg);
    return NULL;
}

/* Everything once, by the pool alone, by several who need it at once, or by both; `over` once and before anybody goes on. */
static void what_is_owed_is_done_once(void **state)
{
    (void)state;
    trn_pool *p;
    assert_null(trn_pool_open(&p, 4, "test"));
    for (int turn = 0; turn < 200; turn++) {
        owed_job o[3] = {0};
        trn_later *l[3];
        for (int i = 0; i < 3; i++) {
            l[i] = trn_later_new(1000, 1 + turn % 7 * 13, owed_piece, &o[i], owed_over);
            if (turn % 3)
                trn_pool_later(p, trn_later_ref(l[i]));
        }
        pthread_t t[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&t[i], NULL, end_it, l[turn % 2 ? i : 0]);
        for (int i = 2; i >= 0; i--) {
            trn_later_end(l[i]);
            assert_int_equal(o[i].over, 1);
        }
        for (int i = 0; i < 3; i++)
            pthread_join(t[i], NULL);
        for (int i = 0; i < 3; i++)
            trn_later_unref(l[i]);
    }
    assert_int_equal(trn_later_count(), 0);
    /* Nobody needs it: half of the threads, and closing waits for it. */
    static owed_job o;
    o.slow = 1;
    trn_pool_later(p, trn_later_new(1000, 10, owed_piece, &o, owed_over));
    assert_int_equal(trn_later_count(), 1);
    static owed_job o2;
    trn_pool_later(p, trn_later_new(1000, 10, owed_piece, &o2, owed_over));
    trn_pool_close(p);
    assert_int_equal(o.over + o2.over, 2);
    assert_true(o.most <= 2);
    assert_int_equal(trn_later_count(), 0);
}

static void note_time(void *arg) { *(uint64_t *)arg = trn_now_ns(); }

/* A single thread leaves it for what somebody waits for. */
static void what_is_owed_comes_last(void **state)
{
    (void)state;
    trn_pool *p;
    assert_null(trn_pool_open(&p, 1, "test"));
    owed_job o = {.slow = 1};
    trn_later *l = trn_later_new(1000, 1, owed_piece, &o, owed_over); /* a second's worth */
    trn_pool_later(p, trn_later_ref(l));
    usleep(20000);
    uint64_t ran = 0;
    trn_pool_submit(p, note_time, &ran);
    usleep(100000);
    assert_int_equal(o.over, 0);
    atomic_store(&o.slow, 0);
    trn_later_end(l);
    trn_pool_close(p);
    assert_true(ran != 0);
    trn_later_unref(l);
}

typedef struct pieces {
    pthread_mutex_t mu;
    int64_t size[200]; /* by where it begins */
} pieces;
static void note_piece(void *arg, int64_t begin, int64_t end)
{
    pieces *p = arg;
    pthread_mutex_lock(&p->mu);
    p->size[begin] = end - begin;
    pthread_mutex_unlock(&p->mu);
    usleep(200); /* the others come too */
}

/* Whole grains, never larger than the one before, the last ones single; the same every time. */
static void pieces_grow_smaller(void **state)
{
    (void)state;
    trn_pool *p;
    assert_null(trn_pool_open(&p, 3, "test"));
    pieces a[3] = {0};
    for (int turn = 0; turn < 3; turn++) {
        pthread_mutex_init(&a[turn].mu, NULL);
        trn_pool_for(p, 190, 4, note_piece, &a[turn]);
        pthread_mutex_destroy(&a[turn].mu);
        int64_t last = 190;
        int n = 0;
        for (int64_t at = 0; at < 190; at += last, n++) {
            int64_t size = a[turn].size[at];
            assert_in_range(size, 1, last);
            assert_true(size % 4 == 0 || at + size == 190);
            last = size;
        }
        assert_in_range(last, 1, 4);
        assert_in_range(n, 6, 40);
        assert_memory_equal(a[turn].size, a[0].size, sizeof a[0].size);
    }
    trn_pool_close(p);
}

/* A worker that gets no turn: it runs only when nobody else wants to, and on every core somebody does. */
typedef struct late {
    pthread_t caller;
    pid_t tid;
    int cores;
    _Atomic bool there, narrowed, wrong, over;
} late;

static void give_way(void *arg)
{
    late *t = arg;
    struct sched_param none = {0};
    t->tid = gettid();
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0)
        t->wrong = true;
    t->there = true;
}

static void *busy(void *arg)
{
    late *t = arg;
    while (!t->over)
        ;
    return NULL;
}

static void a_millisecond(void *arg, int64_t lo, int64_t hi)
{
    late *t = arg;
    bool mine = pthread_equal(pthread_self(), t->caller);
    cpu_set_t set;
    for (uint64_t end = trn_now_ns() + 1000000; trn_now_ns() < end;)
        if (sched_getaffinity(mine ? t->tid : 0, sizeof set, &set) == 0 && CPU_COUNT(&set) < t->cores)
            *(mine ? &t->narrowed : &t->wrong) = true;
}

static void late_helpers_are_fetched(void **state)
{
    (void)state;
    cpu_set_t all, two;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&two);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&two) < 2; c++)
        if (CPU_ISSET(c, &all))
            CPU_SET(c, &two);
    late t = {.caller = pthread_self(), .cores = CPU_COUNT(&two)};
    if (t.cores < 2)
        skip();
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0); /* and of all threads that are made here */
    trn_pool *p;
    assert_null(trn_pool_open(&p, 1, "test"));
    trn_pool_submit(p, give_way, &t);
    while (!t.there)
        sched_yield();
    for (int round = 0; round < 20 && !t.narrowed; round++) {
        usleep(5000); /* it falls asleep, and has to be called */
        pthread_t others[2];
        t.over = false;
        for (int i = 0; i < 2; i++)
            pthread_create(&others[i], NULL, busy, &t);
        trn_pool_for(p, 8, 1, a_millisecond, &t);
        t.over = true;
        for (int i = 0; i < 2; i++)
            pthread_join(others[i], NULL);
    }
    trn_pool_close(p);
    sched_setaffinity(0, sizeof all, &all);
    assert_true(t.narrowed); /* the caller saw it sent to another core */
    assert_false(t.wrong);   /* and where it ran it was free again */
}

/* ---- addresses ------------------------------------------------------------------------------------------------ */

static void addresses_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        int port;
    } good[] = {{"localhost:2222", "localhost", 2222},
                {"[::1]:1", "::1", 1},
                {"10.0.0.1:65535", "10.0.0.1", 65535},
                {"a-b.c:0", "a-b.c", 0}};
    static const char *bad[] = {"",         "host",  ":1",   "host:", "host:x",  "host:65536", "host:-1",
                                "::1:2222", "[::1]", "[::1", "[]:1",  "host:1 ", "host:+1"};
    char *host;
    int port;
    for (size_t i = 0; i < TRN_COUNTOF(good); i++) {
        assert_null(trn_net_split(&host, &port, good[i].text));
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
        free(host);
    }
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_err err = trn_net_split(&host, &port, bad[i]);
        assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
        trn_err_free(err);
    }
    trn_addrs a;
    char text[TRN_ADDR_TEXT];
    assert_true(trn_net_known(&a, "localhost", 5));
    assert_int_equal(a.n, 2);
    assert_string_equal(trn_addr_text(text, &a.a[0]), "127.0.0.1:5");
    assert_string_equal(trn_addr_text(text, &a.a[1]), "[::1]:5");
    assert_true(trn_addr_is_loopback(&a.a[0]) && trn_addr_is_loopback(&a.a[1]));
    assert_false(trn_net_known(&a, "no-such-host", 5));
}

/* ---- driving ---- */

typedef struct echo_wait {
    trn_loop *l;
    trn_pool *pool;
    trn_latch latch;
    trn_timer timer;
    int how;
    bool started;
} echo_wait;

static void open_latch(void *arg) { trn_latch_open(&((echo_wait *)arg)->latch); }

static void open_later(void *arg)
{
    echo_wait *e = arg;
    trn_timer_start(e->l, &e->timer, trn_now_ns() + 300000, open_latch, e);
}

/* The end comes at once, from the inbox, from a timer, from another thread. */
static void start_echo(void *arg)
{
    echo_wait *e = arg;
    e->started = true;
    switch (e->how) {
    case 0: open_latch(e); break;
    case 1: trn_loop_post(e->l, open_latch, e); break;
    case 2: trn_loop_post(e->l, open_later, e); break;
    default: trn_pool_submit(e->pool, open_latch, e); break;
    }
}

static void *drive_often(void *arg)
{
    echo_wait *e = arg;
    for (int i = 0; i < 400; i++) {
        e->how = i % 16 == 2 ? 2 : i % 16 == 7 ? 0 : i % 2 ? 1 : 3;
        e->started = false;
        trn_latch_init(&e->latch);
        trn_loop_drive(e->l, start_echo, e, &e->latch);
        assert_true(e->started);
        if (i % 100 == 99)
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL); /* the loop's own thread takes over */
    }
    return NULL;
}

static _Atomic int posted_meanwhile;
static void count_post(void *arg) { (void)arg, atomic_fetch_add(&posted_meanwhile, 1); }

static void waiting_threads_drive_the_loop(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n += 3) { /* alone, and with others */
        trn_loop *l;
        trn_pool *pool;
        assert_null(trn_loop_open(&l, "driven"));
        assert_null(trn_pool_open(&pool, 2, "open"));
        pthread_t t[4];
        echo_wait e[4] = {0};
        posted_meanwhile = 0;
        for (int i = 0; i < n; i++) {
            e[i] = (echo_wait){.l = l, .pool = pool};
            pthread_create(&t[i], NULL, drive_often, &e[i]);
        }
        for (int i = 0; i < 200; i++) {
            trn_loop_post(l, count_post, NULL);
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        }
        for (int i = 0; i < n; i++)
            pthread_join(t[i], NULL);
        /* Nobody drives any more: posts are served all the same, soon. */
        for (int i = 0; i < 1000 && atomic_load(&posted_meanwhile) < 200; i++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        assert_int_equal(posted_meanwhile, 200);
        trn_pool_close(pool);
        trn_loop_close(l);
    }
}

/* He who drives really does the loop's work; without that a small step costs two more thread switches. */
static void see_thread(void *arg)
{
    echo_wait *e = arg;
    assert_true(trn_loop_here(e->l));
    *(pthread_t *)(void *)e->pool = pthread_self();
    open_latch(e);
}

static void post_see_thread(void *arg) { trn_loop_post(((echo_wait *)arg)->l, see_thread, arg); }

static void the_waiter_runs_what_it_posted(void **state)
{
    (void)state;
    trn_loop *l;
    pthread_t ran;
    assert_null(trn_loop_open(&l, "driven"));
    echo_wait e = {.l = l, .pool = (trn_pool *)(void *)&ran};
    trn_latch_init(&e.latch);
    trn_loop_drive(l, post_see_thread, &e, &e.latch);
    assert_true(pthread_equal(ran, pthread_self()));
    assert_null(trn_loop_current());
    trn_loop_close(l);
}

/* He who posts the last thing he has to do does it himself while the loop sleeps: once the loop's thread has had time to fall asleep it is not woken for it. */
typedef struct last_post {
    trn_loop *l;
    pthread_t ran;
    trn_timer soon;
    gate *fired;
} last_post;

static void see_last(void *arg)
{
    last_post *p = arg;
    assert_true(trn_loop_here(p->l));
    p->ran = pthread_self();
}

static void see_last_and_time(void *arg)
{
    last_post *p = arg;
    see_last(arg);
    trn_timer_start(p->l, &p->soon, trn_now_ns() + 2000000, gate_add, p->fired); /* which the loop's thread, asleep for longer, must learn of */
}

static void the_last_post_is_run_by_its_poster(void **state)
{
    (void)state;
    trn_loop *l;
    gate fired = GATE;
    assert_null(trn_loop_open(&l, "stepped"));
    last_post p = {.l = l, .fired = &fired};
    int mine = 0;
    for (int i = 0; i < 20; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        trn_loop_post_last(l, see_last, &p);
        mine += pthread_equal(p.ran, pthread_self()) != 0;
        assert_null(trn_loop_current());
    }
    assert_true(mine >= 8);  /* the others: it was just awake */
    for (int i = 1; i <= 20; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        trn_loop_post_last(l, see_last_and_time, &p);
        gate_wait(&fired, i);
    }
    trn_loop_close(l);
}

typedef struct spell {
    trn_loop *l;
    int ms;
    bool had_time;
    gate *over;
} spell;

static void work_a_spell(void *arg)
{
    spell *s = arg;
    s->had_time = trn_loop_has_time(s->l);
    for (uint64_t end = trn_now_ns() + (uint64_t)s->ms * 1000000; trn_now_ns() < end;)
        ;
    gate_add(s->over);
}

/* Spells of work and of sleep, in milliseconds; the last one tells. */
static bool has_time_after(int n, int work_ms, int sleep_ms)
{
    trn_loop *l;
    gate over = GATE;
    assert_null(trn_loop_open(&l, "spells"));
    spell s = {.l = l, .ms = work_ms, .over = &over};
    for (int i = 1; i <= n; i++) {
        trn_loop_post(l, work_a_spell, &s);
        gate_wait(&over, i);
        nanosleep(&(struct timespec){.tv_nsec = sleep_ms * 1000000}, NULL);
    }
    trn_loop_close(l);
    return s.had_time;
}

static void knows_whether_it_has_time(void **state)
{
    (void)state;
    assert_true(has_time_after(4, 0, 60));
    assert_true(has_time_after(10, 1, 30));
    assert_false(has_time_after(10, 60, 1));
}

static void *post_last_often(void *arg)
{
    echo_wait *e = arg;
    for (int i = 0; i < 5000; i++)
        (i % 3 ? trn_loop_post_last : trn_loop_post)(e->l, count_post, NULL);
    return NULL;
}

/* Many at once, beside somebody who drives, and a loop that is closed under it: nothing is lost, nothing hangs. */
static void last_posts_of_many(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        trn_loop *l;
        trn_pool *pool;
        assert_null(trn_loop_open(&l, "stepped"));
        assert_null(trn_pool_open(&pool, 2, "open"));
        posted_meanwhile = 0;
        pthread_t t[4];
        echo_wait e[4] = {0};
        for (int i = 0; i < 4; i++) {
            e[i] = (echo_wait){.l = l, .pool = pool};
            pthread_create(&t[i], NULL, i == 3 && round % 2 ? drive_often : post_last_often, &e[i]);
        }
        for (int i = 0; i < 4; i++)
            pthread_join(t[i], NULL);
        trn_pool_close(pool);
        trn_loop_close(l); /* runs what was posted */
        assert_int_equal(posted_meanwhile, (round % 2 ? 3 : 4) * 5000);
    }
}

/* Connects to a listener on `host` at the address `to`; returns the family of the connection. */
static int family_to(const char *host, const char *to)
{
    int fds[TRN_NET_ADDRS], twins[TRN_NET_ADDRS], n, port, fd;
    assert_null(trn_net_listen(fds, &n, &port, host, 0));
    for (int i = 0; i < n; i++)
        twins[i] = trn_net_listen_twin(fds[i]);
    trn_addrs a;
    assert_true(trn_net_known(&a, to, port));
    assert_null(trn_net_connect(&fd, &a.a[0]));
    int family = 0;
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &(socklen_t){sizeof family}), 0);
    close(fd);
    for (int i = 0; i < n; i++) {
        close(fds[i]);
        if (twins[i] >= 0)
            close(twins[i]);
    }
    return family;
}

static void local_connections_are_unix_sockets(void **state)
{
    (void)state;
    assert_int_equal(family_to("127.0.0.1", "127.0.0.1"), AF_UNIX);
    assert_int_equal(family_to("", "127.0.0.1"), AF_UNIX); /* all interfaces */
    assert_int_equal(family_to("", "127.0.0.2"), AF_UNIX);
    setenv("TRAINERA_UNIX_SOCKETS", "0", 1);
    assert_int_equal(family_to("127.0.0.1", "127.0.0.1"), AF_INET);
    unsetenv("TRAINERA_UNIX_SOCKETS");

    /* Another server may have the same port at another address: its twin is not ours. */
    int fds[TRN_NET_ADDRS], n, port, fd = -1;
    assert_null(trn_net_listen(fds, &n, &port, "127.0.0.1", 0));
    int twin = trn_net_listen_twin(fds[0]);
    assert_true(twin >= 0);
    trn_addrs a;
    for (const char *const *to = (const char *const[]){"127.0.0.2", "192.0.2.1", NULL}; *to; to++) {
        assert_true(trn_net_known(&a, *to, port));
        trn_err err = trn_net_connect(&fd, &a.a[0]);
        int family = AF_INET;
        if (!err)
            getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &(socklen_t){sizeof family}), close(fd);
        trn_err_free(err);
        assert_int_equal(family, AF_INET);
    }
    close(fds[0]);
    close(twin);
}

static const char *algorithm_of(char buf[static 16], int fd)
{
    memset(buf, 0, 16);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, buf, &(socklen_t){15}), 0);
    return buf;
}

/* Both ends of a connection to `host`, an address of this machine. */
static void not_paced(const char *host)
{
    int fds[TRN_NET_ADDRS], n, port, fd;
    char algorithm[16];
    assert_null(trn_net_listen(fds, &n, &port, host, 0));
    trn_addrs a;
    assert_true(trn_net_known(&a, host, port));
    assert_null(trn_net_connect(&fd, &a.a[0]));
    assert_string_equal(algorithm_of(algorithm, fd), "reno");
    trn_addr peer = {.len = sizeof peer.v6};
    struct pollfd arrives = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&arrives, 1, 5000), 1);
    int accepted = accept(fds[0], &peer.sa, &peer.len);
    assert_true(accepted >= 0);
    trn_net_tune(accepted, &peer);
    assert_string_equal(algorithm_of(algorithm, accepted), "reno");
    close(fd);
    close(accepted);
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* Whatever the system's algorithm is: pacing inside a machine costs timers and time. */
static void local_connections_are_not_paced(void **state)
{
    (void)state;
    setenv("TRAINERA_UNIX_SOCKETS", "0", 1);
    not_paced("127.0.0.1");
    struct ifaddrs *all, *i;
    assert_int_equal(getifaddrs(&all), 0);
    for (i = all; i; i = i->ifa_next) { /* its name to others, where it has one */
        char host[INET_ADDRSTRLEN];
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK))
            not_paced(inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, host, sizeof host));
    }
    freeifaddrs(all);
    unsetenv("TRAINERA_UNIX_SOCKETS");

    /* Others keep the system's. */
    char usual[16], algorithm[16];
    trn_addrs a;
    int plain = socket(AF_INET, SOCK_STREAM, 0), far = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(trn_net_known(&a, "192.0.2.1", 2222));
    trn_net_tune(far, &a.a[0]);
    assert_string_equal(algorithm_of(algorithm, far), algorithm_of(usual, plain));
    close(plain);
    close(far);
}

static void listening_picks_one_port(void **state)
{
    (void)state;
    int fds[TRN_NET_ADDRS], n, port = 0, fds2[TRN_NET_ADDRS], n2;
    assert_null(trn_net_listen(fds, &n, &port, "localhost", 0));
    assert_true(n >= 1 && port > 0);
    trn_err err = trn_net_listen(fds2, &n2, NULL, "localhost", port);
    assert_int_equal(trn_err_code(err), TRN_ALREADY_EXISTS);
    trn_err_free(err);
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

typedef struct looked {
    trn_loop *l;
    trn_lookup *q;
    gate g;
    bool cancel;
} looked;
static void on_lookup(void *arg, trn_err err, const trn_addrs *addrs)
{
    looked *k = arg;
    (void)addrs;
    assert_false(k->cancel);
    assert_int_equal(trn_err_code(err), TRN_UNAVAILABLE);
    trn_err_free(err);
    gate_add(&k->g);
}
static void start_lookup(void *arg)
{
    looked *k = arg;
    assert_null(trn_lookup_start(&k->q, k->l, "no-such-host.invalid", 1, on_lookup, k));
    if (k->cancel) {
        trn_lookup_cancel(k->q);
        gate_add(&k->g);
    }
}

static void lookups_leave_the_loop_alone(void **state)
{
    (void)state;
    looked a = {.g = GATE}, b = {.g = GATE, .cancel = true};
    assert_null(trn_loop_open(&a.l, "test"));
    b.l = a.l;
    trn_loop_post(a.l, start_lookup, &a);
    trn_loop_post(b.l, start_lookup, &b);
    gate_wait(&a.g, 1);
    gate_wait(&b.g, 1);
    trn_loop_close(a.l);
}

/* A TCP connection inside the machine: ends[0] does not block. */
static void tcp_pair(int ends[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(ends[1], (struct sockaddr *)&a, len), 0);
    ends[0] = accept4(l, NULL, NULL, SOCK_NONBLOCK);
    assert_true(ends[0] >= 0);
    close(l);
}

static void lends_what_the_socket_takes(void **state)
{
    (void)state;
    trn_lender *l = trn_lender_open();
    if (!l)
        skip();
    size_t n = 32 << 20, sent = 0, got = 0;
    uint8_t *p = malloc(n), *back = malloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 11 + i / 253);
    for (int local = 0; local < 2; local++) {
        int ends[2], other[2];
        tcp_pair(other);
        if (local)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        else
            tcp_pair(ends);
        ssize_t k = 0;
        for (sent = got = 0; got < n;) {
            while (sent < n && (k = trn_lend(l, ends[0], p + sent, n - sent, false)) > 0)
                sent += (size_t)k;
            if (sent < n) { /* full: it says so, and nothing of it goes to the next socket */
                assert_int_equal(k, -1);
                assert_true(errno == EAGAIN || errno == EWOULDBLOCK);
                assert_int_equal(trn_lend(l, other[0], "end", 3, false), 3);
                char three[8];
                assert_int_equal(recv(other[1], three, sizeof three, 0), 3);
                assert_memory_equal(three, "end", 3);
            }
            while (got < sent && (k = recv(ends[1], back + got, sent - got, MSG_DONTWAIT)) > 0)
                got += (size_t)k;
        }
        assert_memory_equal(p, back, n);
        memset(back, 0, n);
        close(ends[1]); /* nobody reads any more: an error, and no signal */
        for (int i = 0; i < 3; i++) /* TCP learns of it in the middle of the first large piece */
            k = trn_lend(l, ends[0], p, i == 0 ? TRN_LEND_MAX : 1000, false);
        assert_int_equal(k, -1);
        assert_true(errno == EPIPE || errno == ECONNRESET);
        sigset_t pending;
        sigpending(&pending);
        assert_false(sigismember(&pending, SIGPIPE));
        close(ends[0]);
        close(other[0]);
        close(other[1]);
    }
    trn_lender_close(l);
    setenv("TRAINERA_LEND", "0", 1);
    assert_null(trn_lender_open());
    unsetenv("TRAINERA_LEND");
    free(p);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(posts_run_in_order),       cmocka_unit_test(close_runs_what_was_posted),
        cmocka_unit_test(timers_fire_in_order),     cmocka_unit_test(stopped_watch_is_silent),
        cmocka_unit_test(pool_runs_everything),     cmocka_unit_test(pool_slot_can_be_stolen),
        cmocka_unit_test(late_helpers_are_fetched), cmocka_unit_test(pool_for_covers_all_once), cmocka_unit_test(pieces_grow_smaller), cmocka_unit_test(what_is_owed_is_done_once), cmocka_unit_test(what_is_owed_comes_last), cmocka_unit_test(addresses_are_split),
        cmocka_unit_test(listening_picks_one_port), cmocka_unit_test(local_connections_are_unix_sockets), cmocka_unit_test(local_connections_are_not_paced),
        cmocka_unit_test(waiting_threads_drive_the_loop), cmocka_unit_test(the_waiter_runs_what_it_posted),
        cmocka_unit_test(the_last_post_is_run_by_its_poster), cmocka_unit_test(last_posts_of_many),
        cmocka_unit_test(knows_whether_it_has_time), cmocka_unit_test(lends_what_the_socket_takes),
        cmocka_unit_test(lookups_leave_the_loop_alone),
        cmocka_unit_test(short_waits_do_not_sleep), cmocka_unit_test(long_waits_cost_nothing), cmocka_unit_test(mixed_waits_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
