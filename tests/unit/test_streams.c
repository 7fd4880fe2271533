/* How many threads passes over memory take, on machines with one core's and with many cores' worth of memory. */
#include <setjmp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op/kctx.h"
#include "op/streams.h"

/* CPU time of a pass on a machine whose memory keeps `cores` of them busy, now and then a tenth more or less. */
static uint64_t cost(int level, double cores, int i)
{
    double threads = 1 << level, noise = 1 + (double)(i % 3 - 1) / 10;
    return (uint64_t)(20000 * (threads > cores ? threads / cores : 1) * noise);
}

/* Where 400 passes settle, and that none after them but the trials runs elsewhere. */
static void settle(trn_streams *s, int top, double cores, int want)
{
    for (int i = 0; i < 400; i++) {
        int level = trn_streams_level(s, top);
        assert_in_range(level, 0, top);
        trn_streams_learn(s, top, level, cost(level, cores, i));
    }
    int elsewhere = 0;
    for (int i = 0; i < 400; i++) {
        int level = trn_streams_level(s, top);
        elsewhere += level != want;
        assert_in_range(level, want - 1 < 0 ? 0 : want - 1, want + 1);
        trn_streams_learn(s, top, level, cost(level, cores, i));
    }
    assert_in_range(elsewhere, 20, 100); /* one in eight */
}

static void settles(void **state)
{
    (void)state;
    static const struct {
        int top;
        double cores;
        int want;
    } machines[] = {{1, 1.25, 0}, {1, 1.9, 1}, {1, 64, 1}, {4, 1, 0}, {4, 4, 2}, {4, 6.5, 3}, {4, 64, 4}, {7, 16, 4}};
    for (size_t i = 0; i < TRN_COUNTOF(machines); i++) {
        trn_streams s;
        memset(&s, 0, sizeof s);
        settle(&s, machines[i].top, machines[i].cores, machines[i].want);
    }
}

/* What was learnt is learnt anew when the machine changes. */
static void follows(void **state)
{
    (void)state;
    trn_streams s;
    memset(&s, 0, sizeof s);
    settle(&s, 1, 64, 1);
    settle(&s, 1, 1.1, 0);
    settle(&s, 1, 64, 1);
}

/* ---- the pass itself ---- */

enum { N = 1000000, THREADS = 5, GRAIN = 1000 };
static struct {
    unsigned char seen[N];
    int pieces[64]; /* passes by their number of pieces */
    int now;
} pass;

static int threads(const trn_kctx *k)
{
    (void)k;
    return THREADS;
}

static void parallel_for(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    (void)k;
    int64_t step = grain * THREADS > n ? grain : n / THREADS;
    for (int64_t i = 0; i < n; i += step)
        fn(arg, i, i + step < n ? i + step : n);
}

static void piece(void *arg, int64_t begin, int64_t end)
{
    assert_ptr_equal(arg, &pass);
    pass.now++;
    for (int64_t i = begin; i < end; i++)
        pass.seen[i]++;
}

static void covers(void **state)
{
    (void)state;
    static const trn_step_api api = {.parallel_for = parallel_for, .threads = threads};
    trn_step step = {.api = &api};
    trn_kctx k = {.step = &step};
    trn_streams s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 200; i++) {
        pass.now = 0;
        trn_k_for_streams(&s, &k, (size_t)N * 16, N, GRAIN, piece, &pass);
        pass.pieces[pass.now]++;
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pass.seen[i], 200);
    assert_true(pass.pieces[5] > 0 && pass.pieces[4] > 0); /* all of them, and the next number down was tried */

    memset(pass.seen, 0, sizeof pass.seen);
    pass.now = 0;
    trn_k_for_streams(&s, &k, 100, GRAIN, GRAIN, piece, &pass); /* too little to be divided */
    assert_int_equal(pass.now, 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(pass.seen[i], i < GRAIN);
}

/* ---- many at once ---- */

typedef struct half {
    void (*fn)(void *, int64_t, int64_t);
    void *arg;
    int64_t begin, end;
} half;

static void *run_half(void *h_)
{
    half *h = h_;
    h->fn(h->arg, h->begin, h->end);
    return NULL;
}

/* The second half on a thread of its own. */
static void for_two(const trn_kctx *k, int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    (void)k;
    int64_t middle = grain < n ? n / 2 : n;
    half second = {fn, arg, middle, n};
    pthread_t t;
    bool two = pthread_create(&t, NULL, run_half, &second) == 0;
    fn(arg, 0, middle);
    if (two)
        pthread_join(t, NULL);
    else
        run_half(&second);
}

static void add_up(void *sum, int64_t begin, int64_t end) { atomic_fetch_add((_Atomic int64_t *)sum, end - begin); }

static void *passes(void *s)
{
    static const trn_step_api api = {.parallel_for = for_two, .threads = threads};
    trn_step step = {.api = &api};
    trn_kctx k = {.step = &step};
    for (int i = 0; i < 50; i++) {
        _Atomic int64_t sum = 0;
        trn_k_for_streams(s, &k, (size_t)N * 16, N, GRAIN, add_up, &sum);
        if (sum != N)
            return s;
    }
    return NULL;
}

/* Variables of one size that are updated at the same time learn together. */
static void crowd(void **state)
{
    (void)state;
    trn_streams s;
    memset(&s, 0, sizeof s);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, passes, &s), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(s.passes, 200);
    assert_in_range(s.below, 0, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(settles), cmocka_unit_test(follows), cmocka_unit_test(covers), cmocka_unit_test(crowd)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
