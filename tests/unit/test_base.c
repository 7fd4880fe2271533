/* base/: errors, memory, buffers, maps, hashes, log, metrics, faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- errors --------------------------------------------------------------------------------------------------- */

static void err_values(void **state)
{
    trn_err e = trn_errorf(TRN_NOT_FOUND, "no node %s", "a/b");
    assert_int_equal(trn_err_code(e), TRN_NOT_FOUND);
    assert_string_equal(trn_err_msg(e), "no node a/b");
    e = trn_err_set_derived(e);
    e = trn_err_wrap(e, "step %d", 7);
    assert_string_equal(trn_err_msg(e), "no node a/b | step 7");
    assert_int_equal(trn_err_code(e), TRN_NOT_FOUND);
    assert_true(trn_err_is_derived(e));
    trn_err c = trn_err_copy(e);
    trn_err_free(e);
    assert_string_equal(trn_err_msg(c), "no node a/b | step 7");
    assert_true(trn_err_is_derived(c));
    trn_err_free(c);

    assert_null(trn_err_wrap(TRN_OK, "x"));
    assert_null(trn_err_copy(NULL));
    assert_int_equal(trn_err_code(NULL), TRN_CODE_OK);
    assert_string_equal(trn_err_msg(NULL), "");

    trn_err zero = trn_errorf(TRN_CODE_OK, "not ok");
    assert_int_equal(trn_err_code(zero), TRN_UNKNOWN);
    trn_err_free(zero);

    trn_err oom = trn_err_wrap(trn_err_oom(), "somewhere");
    assert_int_equal(trn_err_code(oom), TRN_RESOURCE_EXHAUSTED);
    assert_string_equal(trn_err_msg(oom), "out of memory");
    assert_false(trn_err_is_derived(trn_err_set_derived(oom)));
    trn_err_free(oom);

    trn_err io = trn_err_errno(ENOENT, "open %s", "/x");
    assert_int_equal(trn_err_code(io), TRN_NOT_FOUND);
    assert_string_equal(trn_err_msg(io), "open /x: No such file or directory");
    trn_err_free(io);
    io = trn_err_errno(ECONNRESET, "read");
    assert_int_equal(trn_err_code(io), TRN_UNAVAILABLE);
    trn_err_free(io);

    assert_string_equal(trn_code_name(TRN_INVALID_ARGUMENT), "InvalidArgument");
    assert_string_equal(trn_code_name(TRN_UNAUTHENTICATED), "Unauthenticated");
    assert_string_equal(trn_code_name((trn_code)99), "Unknown");
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static int hook_order[2], hook_n;
static void hook(void *arg) { hook_order[hook_n++] = *(int *)arg; }

static void arena(void **state)
{
    trn_arena *a = trn_arena_new();
    size_t total = 0;
    for (size_t i = 0; i < 3000; i++) {
        size_t n = i % 17 == 0 ? i * 40 : i % 90;
        uint8_t *p = trn_arena_alloc(a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < n; j += 7)
            assert_int_equal(p[j], 0);
        memset(p, 0xee, n);
        total += n;
    }
    assert_true(trn_arena_bytes(a) >= total);
    assert_true(trn_arena_bytes(a) < total * 2 + (1 << 20));
    assert_string_equal(trn_arena_strndup(a, "hello", 4), "hell");
    assert_string_equal(trn_arena_strdup(a, ""), "");
    assert_string_equal(trn_arena_printf(a, "%d-%s", 5, "x"), "5-x");
    assert_memory_equal(trn_arena_dup(a, "abc", 3), "abc", 3);
    assert_null(trn_arena_try_alloc(a, SIZE_MAX - 8));
    int *one = trn_arena_alloc(a, sizeof *one), *two = trn_arena_alloc(a, sizeof *two);
    *one = 1;
    *two = 2;
    hook_n = 0;
    trn_arena_on_free(a, hook, one);
    trn_arena_on_free(a, hook, two);
    trn_arena_free(a);
    assert_int_equal(hook_n, 2);
    assert_int_equal(hook_order[0], 2);
    assert_int_equal(hook_order[1], 1);
}

static void sb(void **state)
{
    trn_sb s = {0};
    for (int i = 0; i < 1000; i++)
        trn_sb_addf(&s, "%d,", i);
    assert_int_equal(s.n, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(s.p), s.n);
    trn_sb_fini(&s);
    assert_null(s.p);
    trn_sb_adds(&s, "");
    assert_string_equal(s.p, "");
    char big[300];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    trn_sb_addf(&s, "<%s>", big);
    assert_int_equal(s.n, 301);
    assert_int_equal(s.p[300], '>');
    trn_sb_fini(&s);

    int *v = NULL, n = 0, cap = 0;
    for (int i = 0; i < 100; i++)
        TRN_PUSH(v, n, cap, i);
    assert_int_equal(v[99], 99);
    free(v);
    char *t = trn_xasprintf("%s!", "hi");
    assert_string_equal(t, "hi!");
    free(t);
}

/* ---- buffers -------------------------------------------------------------------------------------------------- */

static trn_buf *buf_of(size_t n)
{
    trn_buf *b = NULL;
    trn_err e = trn_buf_new(&b, n);
    assert_null(e);
    assert_int_equal(b->size, n);
    assert_int_equal((uintptr_t)b->data % 64, 0);
    return b;
}

static void buf_sizes(void **state)
{
    static const size_t sizes[] = {0,     1,     63,    64,    65,      4096,          65535,
                                   65536, 65537, 81920, 81921, 1 << 20, (1 << 20) + 1, 5 << 20};
    for (size_t i = 0; i < TRN_COUNTOF(sizes); i++) {
        trn_buf *b = buf_of(sizes[i]);
        if (sizes[i]) {
            b->data[0] = 1;
            b->data[sizes[i] - 1] = 2;
        }
        assert_true(trn_buf_sole(b));
        assert_ptr_equal(trn_buf_ref(b), b);
        assert_false(trn_buf_sole(b));
        trn_buf_unref(b);
        trn_buf_unref(b);
    }
    for (size_t n = 65536; n < (size_t)64 << 20; n = n * 9 / 8 + 1) { /* a class never wastes more than a quarter */
        size_t before = trn_buf_pool_stats().live_bytes;
        trn_buf *b = buf_of(n);
        size_t took = trn_buf_pool_stats().live_bytes - before;
        assert_true(took >= n && took <= n + n / 4 + 1);
        trn_buf_unref(b);
    }
    trn_buf *none = NULL;
    trn_err e = trn_buf_new(&none, (size_t)1 << 60);
    assert_int_equal(trn_err_code(e), TRN_RESOURCE_EXHAUSTED);
    assert_null(none);
    trn_err_free(e);
    trn_buf_unref(NULL);
}

static void buf_pool(void **state)
{
    trn_buf_pool_trim(0);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 0);
    trn_buf_stats s0 = trn_buf_pool_stats();
    trn_buf *b = buf_of(10 << 20);
    uint8_t *data = b->data;
    assert_int_equal((uintptr_t)data % (2 << 20), 0);
    trn_buf_unref(b);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 10 << 20);
    b = buf_of((10 << 20) - 5); /* same class: the same warm pages */
    assert_ptr_equal(b->data, data);
    trn_buf_stats s1 = trn_buf_pool_stats();
    assert_int_equal(s1.hits, s0.hits + 1);
    assert_int_equal(s1.misses, s0.misses + 1);
    assert_int_equal(s1.cached_bytes, 0);
    trn_buf_unref(b);

    /* Over the budget the class that was not used lately goes first. */
    trn_buf_pool_trim(0);
    trn_buf_pool_limit(3 << 20);
    trn_buf *old = buf_of(2 << 20), *hot = buf_of(1 << 20), *hot2 = buf_of(1 << 20);
    trn_buf_unref(old);
    trn_buf_unref(hot);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 3 << 20);
    trn_buf_unref(hot2);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 2 << 20);
    s0 = trn_buf_pool_stats();
    hot = buf_of(1 << 20);
    hot2 = buf_of(1 << 20);
    assert_int_equal(trn_buf_pool_stats().hits, s0.hits + 2);
    trn_buf_unref(hot);
    trn_buf_unref(hot2);
    trn_buf *big = buf_of(8 << 20); /* larger than the budget: never kept */
    trn_buf_unref(big);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 2 << 20);
    trn_buf_pool_limit(0);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 0);
    trn_buf_pool_limit((size_t)256 << 20);
}

/* The largest of the small and the smallest of the large buffers, whose lists are neighbours. */
static void *buf_edge_worker(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        trn_buf *small = buf_of(40000), *large = buf_of(65536);
        trn_buf_unref(small);
        trn_buf_unref(large);
    }
    return NULL;
}

static void buf_edge(void **state)
{
    pthread_t t[4];
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_create(&t[i], NULL, buf_edge_worker, NULL);
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_join(t[i], NULL);
}

/* Ages the pool as a timer would, from `*now` for `seconds`. */
static void age(uint64_t *now, int seconds)
{
    uint64_t end = *now + (uint64_t)seconds * 1000000000;
    while (*now < end)
        *now = trn_buf_pool_age(*now);
}

static void buf_pool_ages(void **state)
{
    uint64_t now = trn_now_ns();
    trn_buf_pool_trim(0);
    age(&now, 10);
    /* Five were in use once; then every second one of them is, for a while. */
    trn_buf *b[5];
    for (int i = 0; i < 5; i++)
        b[i] = buf_of(8 << 20);
    for (int i = 0; i < 5; i++)
        trn_buf_unref(b[i]);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 40 << 20);
    age(&now, 1);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 40 << 20);
    size_t misses = trn_buf_pool_stats().misses;
    for (int i = 0; i < 12; i++) {
        b[0] = buf_of(8 << 20);
        age(&now, 1);
        trn_buf_unref(b[0]);
    }
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 8 << 20); /* the one that is used stays warm, the others are gone */
    assert_int_equal(trn_buf_pool_stats().misses, misses);
    age(&now, 10);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 0);
}

enum { RESIDENT_TELLS = !TRN_ASAN && !TRN_TSAN }; /* shadow memory stays */

static size_t resident(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*s %ld", &pages), 1);
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Buffers below 4 MiB are neighbours in chunks: none reaches into another, and memory goes back to the kernel also while a neighbour stays. */
static void buf_neighbours(void **state)
{
    enum { N = 40 };
    static const size_t sizes[] = {70000, 300 << 10, 1 << 20, 1605632, (4 << 20) - 4096};
    trn_buf_pool_trim(0);
    trn_buf *b[N];
    size_t before = resident(), all = 0;
    for (int i = 0; i < N; i++) {
        b[i] = buf_of(sizes[i % 5]);
        memset(b[i]->data, i + 1, b[i]->size);
        all += b[i]->size;
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < b[i]->size; k += 509)
            assert_int_equal(b[i]->data[k], i + 1);
    if (RESIDENT_TELLS)
        assert_true(resident() >= before + all);
    for (int i = 0; i < N; i++)
        if (i % 10)
            trn_buf_unref(b[i]);
    trn_buf_pool_trim(0);
    if (RESIDENT_TELLS)
        assert_true(resident() < before + all / 4);
    for (int i = 0; i < N; i += 10) {
        assert_int_equal(b[i]->data[0], i + 1);
        assert_int_equal(b[i]->data[b[i]->size - 1], i + 1);
        trn_buf_unref(b[i]);
    }
    trn_buf_pool_trim(0);
    trn_buf *again = buf_of(1 << 20); /* from the chunk that is empty again, or from a new one */
    memset(again->data, 7, again->size);
    trn_buf_unref(again);
    trn_buf_pool_trim(0);
}

static int released;
static void release(void *arg, trn_buf *b)
{
    released++;
    assert_ptr_equal(arg, &released);
    free(b);
}

static void buf_foreign(void **state)
{
    trn_buf *b = trn_xalloc(sizeof *b);
    b->ref = 1;
    b->release = release;
    b->arg = &released;
    trn_buf_ref(b);
    trn_buf_unref(b);
    assert_int_equal(released, 0);
    trn_buf_unref(b);
    assert_int_equal(released, 1);
}

static void *buf_worker(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    trn_buf *held[4] = {0};
    for (int i = 0; i < 400; i++) {
        trn_buf **h = &held[rand_r(&seed) % 4];
        trn_buf_unref(*h);
        *h = NULL;
        size_t n = (size_t)1000 << (rand_r(&seed) % 9);
        trn_err e = trn_buf_new(h, n);
        if (e)
            abort();
        (*h)->data[0] = (*h)->data[n - 1] = (uint8_t)i;
        if (i % 50 == 0)
            trn_buf_pool_trim(1 << 20);
    }
    for (int i = 0; i < 4; i++)
        trn_buf_unref(held[i]);
    return NULL;
}

static void buf_threads(void **state)
{
    pthread_t t[4];
    trn_buf_pool_limit(2 << 20);
    size_t live = trn_buf_pool_stats().live_bytes;
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_create(&t[i], NULL, buf_worker, (void *)(i + 1));
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_join(t[i], NULL);
    assert_int_equal(trn_buf_pool_stats().live_bytes, live);
    assert_true(trn_buf_pool_stats().cached_bytes <= 2 << 20);
    trn_buf_pool_trim(0);
    assert_int_equal(trn_buf_pool_stats().cached_bytes, 0);
    trn_buf_pool_limit((size_t)256 << 20);
}

/* ---- maps ----------------------------------------------------------------------------------------------------- */

static void map_model(void **state)
{
    enum { KEYS = 600 };
    static intptr_t model[KEYS];
    trn_map *m = trn_map_new();
    unsigned seed = 5;
    size_t count = 0;
    for (int i = 0; i < 40000; i++) {
        int k = rand_r(&seed) % KEYS;
        char key[64];
        int n = snprintf(key, sizeof key, k % 2 ? "%d" : "a/longer/key/that/does/not/fit/%d", k);
        void *want = (void *)model[k];
        switch (rand_r(&seed) % 3) {
        case 0:
            assert_ptr_equal(trn_map_put(m, key, (size_t)n, (void *)(intptr_t)(i + 1)), want);
            count += !want;
            model[k] = i + 1;
            break;
        case 1:
            assert_ptr_equal(trn_map_del(m, key, (size_t)n), want);
            count -= want != NULL;
            model[k] = 0;
            break;
        default:
            assert_ptr_equal(trn_map_get(m, key, (size_t)n), want);
        }
        assert_int_equal(trn_map_count(m), count);
    }
    size_t seen = 0, n;
    const char *key;
    void *v;
    for (size_t it = 0; trn_map_next(m, &it, &key, &n, &v); seen++) {
        assert_int_equal(strlen(key), n);
        const char *digits = strrchr(key, '/');
        assert_int_equal(model[atoi(digits ? digits + 1 : key)], (intptr_t)v);
    }
    assert_int_equal(seen, count);
    trn_map_free(m, NULL);
}

static void map_edges(void **state)
{
    assert_null(trn_map_get(NULL, "a", 1));
    assert_int_equal(trn_map_count(NULL), 0);
    trn_map_free(NULL, free);
    trn_map *m = trn_map_new();
    assert_null(trn_map_gets(m, "x"));
    assert_null(trn_map_dels(m, "x"));
    trn_map_put(m, "", 0, m);
    assert_ptr_equal(trn_map_get(m, NULL, 0), m);
    trn_map_put(m, "a\0b", 3, &m);
    assert_null(trn_map_gets(m, "a"));
    assert_ptr_equal(trn_map_get(m, "a\0b", 3), &m);
    for (uint64_t i = 0; i < 2000; i++)
        trn_map_puti(m, i << 20, (void *)(uintptr_t)(i + 1));
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_equal((uintptr_t)trn_map_geti(m, i << 20), i + 1);
    assert_int_equal((uintptr_t)trn_map_deli(m, 0), 1);
    assert_null(trn_map_geti(m, 0));
    trn_map_free(m, NULL);
    m = trn_map_new();
    trn_map_puts(m, "x", trn_xstrdup("freed by the map"));
    trn_map_puts(m, "a longer name than fits", trn_xstrdup("this too"));
    trn_map_free(m, free);
}

static void hashes(void **state)
{
    /* TensorFlow 2.15's own answers. */
    assert_int_equal(trn_hash64_tf("", 0), 0x81769421199f9e3bu);
    assert_int_equal(trn_hash64_tf("a", 1), 0x29962dc026eac9fcu);
    assert_int_equal(trn_hash64_tf("while_context", 13), 0x7accd10e21053e7bu);
    assert_int_equal(trn_hash64_tf("12345678", 8), 0x5d826b62696d2b7u);
    assert_int_equal(trn_hash64_tf("0123456789abcdefXYZ", 19), 0xde873c06e339531fu);
    assert_int_equal(trn_hash64_tf("\xff\x80\xfe", 3), 0x58c5b4fdbb5e9bb5u);
    assert_int_equal(trn_hash64_tf_combine(0, 0), 0x9e3779b97f4a7800u);
    assert_int_equal(trn_hash64_tf_combine(0x10, 2), 0x10 ^ (2 + 0x9e3779b97f4a7800u + 0x4000 + 1));
    /* Low bits of near keys spread: 4096 keys into 4096 slots leave about 1/e of them empty. */
    static bool hit[4096];
    int used = 0;
    for (uint64_t i = 0; i < 4096; i++)
        hit[trn_hash(&i, sizeof i) % 4096] = true;
    for (int i = 0; i < 4096; i++)
        used += hit[i];
    assert_in_range(used, 2400, 2780);
}

/* ---- log ------------------------------------------------------------------------------------------------------ */

static char *log_of(void (*fn)(void))
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    trn_log_set_fd(fds[1]);
    fn();
    trn_log_set_fd(STDERR_FILENO);
    close(fds[1]);
    char *text = trn_xalloc(1 << 16);
    size_t n = 0;
    for (ssize_t r; (r = read(fds[0], text + n, (1 << 16) - 1 - n)) > 0;)
        n += (size_t)r;
    close(fds[0]);
    return text;
}

static void say(void)
{
    errno = 77;
    trn_log_set_level(TRN_LOG_WARN);
    trn_log(TRN_LOG_INFO, "m", "silent");
    trn_log_set_task("worker/0");
    trn_log(TRN_LOG_WARN, "mod", "two\nlines \x1b[31m%d\n", 5);
    trn_log_set_task(NULL);
    char big[5000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    trn_log(TRN_LOG_ERROR, "mod", "%s", big);
    trn_log_set_level(TRN_LOG_OFF);
    trn_log(TRN_LOG_ERROR, "mod", "silent");
    trn_log_set_level(TRN_LOG_INFO);
    assert_int_equal(errno, 77);
}

static void log_lines(void **state)
{
    char *t = log_of(say);
    assert_null(strstr(t, "silent"));
    char *nl = strchr(t, '\n');
    assert_non_null(nl);
    *nl = 0;
    assert_int_equal(t[10], 'T');
    assert_string_equal(t + 23, " W worker/0 mod: two lines ?[31m5");
    char *second = nl + 1;
    nl = strchr(second, '\n');
    assert_non_null(nl);
    assert_int_equal(nl - second, 23 + strlen(" E mod: ") + 4999);
    assert_int_equal(nl[1], 0);
    free(t);
}

static void *log_worker(void *arg)
{
    for (int i = 0; i < 50; i++) {
        trn_log_set_task(i % 2 ? "worker/1" : "worker/22");
        trn_log(TRN_LOG_INFO, "mt", "thread %d says %d and no more", (int)(intptr_t)arg, i);
    }
    return NULL;
}

static void say_together(void)
{
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, log_worker, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    trn_log_set_task(NULL);
}

/* Lines of threads do not mix. */
static void log_threads(void **state)
{
    char *t = log_of(say_together);
    int lines = 0;
    for (char *save, *l = strtok_r(t, "\n", &save); l; l = strtok_r(NULL, "\n", &save), lines++) {
        char who[20];
        int thread, i, end = 0;
        assert_int_equal(sscanf(l + 23, " I worker/%10s mt: thread %d says %d and no more%n", who, &thread, &i, &end),
                         3);
        assert_int_equal(strlen(l), 23 + end);
        assert_true(strcmp(who, "1") == 0 || strcmp(who, "22") == 0);
    }
    assert_int_equal(lines, 200);
    free(t);
}

/* ---- clock, locks --------------------------------------------------------------------------------------------- */

static void clock_random(void **state)
{
    uint64_t a = trn_now_ns(), b = trn_now_ns();
    assert_true(b >= a);
    assert_true(trn_wall_us() > 1600000000000000u);
    assert_int_not_equal(trn_random64(), trn_random64());
}

static void lock_order(void **state)
{
    trn_mutex a, b;
    trn_mutex_init(&a, TRN_RANK_WORKER);
    trn_mutex_init(&b, TRN_RANK_RES);
    trn_lock(&a);
    trn_lock(&b);
    trn_unlock(&a); /* giving back in any order is fine */
    trn_unlock(&b);
    trn_lock(&b);
    trn_unlock(&b);
#ifdef TRN_DEBUG_LOCKS
    pid_t pid = fork();
    if (pid == 0) {
        freopen("/dev/null", "w", stderr);
        signal(SIGABRT, SIG_DFL);
        trn_lock(&b);
        trn_lock(&a);
        _exit(0);
    }
    int st;
    assert_int_equal(waitpid(pid, &st, 0), pid);
    assert_false(WIFEXITED(st) && WEXITSTATUS(st) == 0);
#endif
    trn_mutex_fini(&a);
    trn_mutex_fini(&b);
}

/* ---- metrics -------------------------------------------------------------------------------------------------- */

static double gauge(void *arg) { return *(double *)arg; }

static void metrics(void **state)
{
    trn_counter *c = trn_metric_counter("t_calls_total{method=\"A\"}", "Calls.\nMore");
    trn_hist *h = trn_metric_hist("t_seconds{m=\"x\"}", "Time");
    trn_counter *d = trn_metric_counter("t_calls_total{method=\"B\"}", "Calls.");
    assert_ptr_equal(trn_metric_counter("t_calls_total{method=\"A\"}", "Calls."), c);
    assert_ptr_equal(trn_metric_hist("trainera_t_seconds{m=\"x\"}", NULL), h);
    double v = 2.5;
    trn_metric_gauge("t_depth", "Depth", gauge, &v);
    trn_counter_add(c, 3);
    trn_counter_add(d, 4);
    trn_hist_add(h, 1000);          /* 1 us: the first bucket */
    trn_hist_add(h, 1001);          /* the second */
    trn_hist_add(h, 3000000000u);   /* 3 s */
    trn_hist_add(h, 100000000000u); /* 100 s: beyond all */
    trn_sb s = {0};
    trn_metrics_text(&s);
    assert_non_null(strstr(s.p, "# HELP trainera_t_calls_total Calls.\\nMore\n# TYPE trainera_t_calls_total counter\n"
                                "trainera_t_calls_total{method=\"A\"} 3\ntrainera_t_calls_total{method=\"B\"} 4\n"));
    assert_non_null(strstr(s.p,
                           "# TYPE trainera_t_seconds histogram\ntrainera_t_seconds_bucket{m=\"x\",le=\"1e-06\"} 1\n"
                           "trainera_t_seconds_bucket{m=\"x\",le=\"2e-06\"} 2\n"));
    assert_non_null(strstr(s.p, "le=\"2.097152\"} 2\n"));
    assert_non_null(strstr(s.p, "le=\"4.194304\"} 3\n"));
    assert_non_null(strstr(
        s.p, "le=\"+Inf\"} 4\ntrainera_t_seconds_sum{m=\"x\"} 103.000002\ntrainera_t_seconds_count{m=\"x\"} 4\n"));
    assert_non_null(strstr(s.p, "# TYPE trainera_t_depth gauge\ntrainera_t_depth 2.5\n"));
    assert_null(strstr(strstr(s.p, "TYPE trainera_t_calls_total") + 1, "TYPE trainera_t_calls_total"));
    s.n = 0;
    trn_metric_gauge_drop(&v);
    trn_metrics_text(&s);
    assert_null(strstr(s.p, "t_depth"));
    trn_sb_fini(&s);
}

static void *metrics_worker(void *arg)
{
    double v = 1;
    for (int i = 0; i < 60; i++) {
        char name[64];
        snprintf(name, sizeof name, "t_mt_total{i=\"%d\"}", i % 7);
        trn_counter_add(trn_metric_counter(name, "x"), 1);
        trn_hist_add(trn_metric_hist("t_mt_seconds", "x"), 5);
        trn_metric_gauge("t_mt_gauge", "x", gauge, &v);
        trn_sb s = {0};
        trn_metrics_text(&s);
        trn_sb_fini(&s);
        trn_metric_gauge_drop(&v);
    }
    return NULL;
}

static void metrics_threads(void **state)
{
    pthread_t t[3];
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_create(&t[i], NULL, metrics_worker, NULL);
    for (size_t i = 0; i < TRN_COUNTOF(t); i++)
        pthread_join(t[i], NULL);
    uint64_t sum = 0;
    for (int i = 0; i < 7; i++) {
        char name[64];
        snprintf(name, sizeof name, "t_mt_total{i=\"%d\"}", i);
        sum += trn_metric_counter(name, "x")->v;
    }
    assert_int_equal(sum, 180);
    assert_int_equal(trn_metric_hist("t_mt_seconds", "x")->count, 180);
}

/* ---- faults --------------------------------------------------------------------------------------------------- */

static int hits_of(const char *spec, int times)
{
    trn_faults_set(spec);
    int mask = 0;
    for (int i = 0; i < times; i++)
        mask |= TRN_FAULT("p") ? 1 << i : 0;
    trn_faults_set(NULL);
    return mask;
}

static void faults(void **state)
{
    trn_log_set_level(TRN_LOG_OFF);
    assert_int_equal(hits_of(NULL, 4), 0);
    assert_int_equal(hits_of("q", 4), 0);
    assert_int_equal(hits_of("p", 4), 15);
    assert_int_equal(hits_of("q:1,p:3", 4), 4);
    assert_int_equal(hits_of("p:2+", 4), 14);
    assert_int_equal(hits_of("p:0%", 20), 0);
    assert_int_equal(hits_of("p:100%", 4), 15);
    int some = hits_of("seed:9,p:50%", 30);
    assert_in_range(__builtin_popcount((unsigned)some), 6, 24);
    assert_int_equal(hits_of("seed:9,p:50%", 30), some);
    trn_faults_set("buf.new:1");
    trn_buf *b = NULL;
    trn_err e = trn_buf_new(&b, 10);
    assert_int_equal(trn_err_code(e), TRN_RESOURCE_EXHAUSTED);
    trn_err_free(e);
    trn_faults_set(NULL);
    assert_int_equal(trn_faults_armed, 0);
    trn_log_set_level(TRN_LOG_INFO);
}

/* The error that says most is kept; the last one to end goes on. */
static void joins(void **state)
{
    trn_join j;
    trn_join_init(&j, 2);
    trn_join_add(&j, 3);
    assert_false(trn_join_done(&j, TRN_OK));
    assert_false(trn_join_done(&j, trn_err_set_derived(trn_errorf(TRN_ABORTED, "follows"))));
    assert_false(trn_join_done(&j, trn_errorf(TRN_INVALID_ARGUMENT, "cause")));
    assert_false(trn_join_done(&j, trn_errorf(TRN_INTERNAL, "later")));
    assert_true(trn_join_done(&j, trn_err_set_derived(trn_errorf(TRN_ABORTED, "follows"))));
    trn_err err = trn_join_fini(&j);
    assert_int_equal(trn_err_code(err), TRN_INVALID_ARGUMENT);
    trn_err_free(err);
    trn_join_init(&j, 1);
    assert_true(trn_join_done(&j, TRN_OK));
    assert_null(trn_join_fini(&j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_values),      cmocka_unit_test(arena),      cmocka_unit_test(sb),
        cmocka_unit_test(buf_sizes),       cmocka_unit_test(joins), cmocka_unit_test(buf_pool), cmocka_unit_test(buf_edge), cmocka_unit_test(buf_pool_ages), cmocka_unit_test(buf_neighbours),   cmocka_unit_test(buf_foreign),
        cmocka_unit_test(buf_threads),     cmocka_unit_test(map_model),  cmocka_unit_test(map_edges),
        cmocka_unit_test(hashes),          cmocka_unit_test(log_lines),  cmocka_unit_test(log_threads),
        cmocka_unit_test(clock_random),    cmocka_unit_test(lock_order), cmocka_unit_test(metrics),
        cmocka_unit_test(metrics_threads), cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
