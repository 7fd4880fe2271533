/* Reference-counted bytes and the pool that keeps large ones mapped.
 *
 * A fresh mapping costs a page fault per 4 KiB at first touch, which is more than the copy that fills it. So freed large
 * buffers stay mapped on a list per size class (four classes per power of two: at most a quarter is wasted) and the next
 * buffer of that class finds warm pages. When the budget is full, the class that was used longest ago gives way: a
 * one-off restore cannot push out the sizes that every step uses. What nobody wanted for some seconds goes back to the kernel
 * (trn_buf_pool_age): the fewest that a class had in its list over an interval is how many it could do without.
 *
 * Those below 4 MiB are cut from chunks of huge pages, one behind the other: on a virtual machine the look-ups of small pages cost a step's products and copies
 * some percent. A cut that goes back to the kernel leaves a hole in its chunk, without memory behind it; the chunk goes with its last cut.
 *
 * Small ones (< 64 KiB) are one aligned malloc, head and bytes together; freed ones of 1 KiB and more wait on a short list per power of two,
 * because aligned allocations of such sizes make malloc split and merge all the time (a step that moves 200 small variables frees 400).
 */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if TRN_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define LARGE_SHIFT 16 /* 64 KiB */
#define LARGE ((size_t)1 << LARGE_SHIFT)
#define MAX_SHIFT 44
#define N_CLASS ((MAX_SHIFT - LARGE_SHIFT) * 4 + 1)
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM ((size_t)4 << 20)
#define CHUNK ((size_t)8 << 20)
#define SMALL_HEAD 64
#define AGE_INTERVAL (UINT64_C(3) * 1000000000) /* unused for one to two of these: given back */
#define AGE_PAUSE (UINT64_C(10) * 1000000)
#define AGE_KEEP ((size_t)1 << 20)

typedef struct chunk {
    uint8_t *base;
    size_t at; /* where the next cut begins */
    int live;  /* cuts that have memory */
} chunk;

/* Our own buffers; `b` comes first, so a trn_buf without `release` is one of these. */
typedef struct own {
    trn_buf b;
    int cls;          /* -1: small, head and bytes in one malloc */
    struct own *next; /* on its class's list while cached */
    chunk *cut_from;  /* NULL: a mapping of its own */
} own;
_Static_assert(sizeof(own) <= SMALL_HEAD, "a small buffer's bytes start 64 bytes behind its head");

static struct {
    struct {
        pthread_mutex_t mu;
        own *list;
        size_t n, low, cold;      /* length of the list; its least in this interval; how many were not needed in the last one */
        _Atomic uint64_t used_at; /* pool.tick when it last served or took a buffer */
    } cls[N_CLASS];
    _Atomic uint64_t tick;
    _Atomic size_t limit; /* 0: not yet asked the kernel */
    _Atomic size_t live, cached, hits, misses;
    _Atomic bool limit_set;
} pool = {.cls = {[0 ... N_CLASS - 1] = {.mu = PTHREAD_MUTEX_INITIALIZER}}};

static size_t class_size(int c) { return ((size_t)4 + (size_t)(c & 3)) << (LARGE_SHIFT - 2 + (c >> 2)); }

/* The smallest class that holds `size`; -1 when none does. */
static int class_of(size_t size)
{
    if (size <= LARGE)
        return 0;
    int top = 63 - __builtin_clzll(size - 1); /* size - 1 in [2^top, 2^(top+1)) */
    if (top >= MAX_SHIFT)
        return -1;
    int quarter = (int)(((size - 1) >> (top - 2)) & 3);
    return (top - LARGE_SHIFT) * 4 + quarter + 1;
}

static size_t pool_limit(void)
{
    if (TRN_UNLIKELY(!atomic_load_explicit(&pool.limit_set, memory_order_acquire))) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        size_t eighth = pages > 0 && page > 0 ? (size_t)pages / 8 * (size_t)page : (size_t)256 << 20;
        size_t none = 0;
        atomic_compare_exchange_strong(&pool.limit, &none, eighth);
        atomic_store_explicit(&pool.limit_set, true, memory_order_release);
    }
    return atomic_load_explicit(&pool.limit, memory_order_relaxed);
}

/* ---- mappings ------------------------------------------------------------------------------------------------- */

/* Large mappings start on a huge page, or the kernel could back their ends only with small ones. */
static void *map_bytes(size_t len)
{
    size_t extra = len >= HUGE_FROM ? HUGE_PAGE : 0;
    char *p = mmap(NULL, len + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (extra) {
        char *start = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
        if (start > p)
            munmap(p, (size_t)(start - p));
        size_t tail = (size_t)(p + len + extra - (start + len));
        if (tail)
            munmap(start + len, tail);
        p = start;
        madvise(p, len, MADV_HUGEPAGE); /* a hint: kernels without huge pages refuse it */
    }
    return p;
}

static struct {
    pthread_mutex_t mu;
    chunk *now; /* the one that is cut from */
} cutting = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void chunk_free(chunk *k)
{
    if (!k)
        return;
    munmap(k->base, CHUNK);
    free(k);
}

static chunk *chunk_new(void)
{
    chunk *k = malloc(sizeof *k);
    if (k)
        *k = (chunk){.base = map_bytes(CHUNK)};
    if (k && !k->base) {
        free(k);
        k = NULL;
    }
    return k;
}

static void *cut(chunk **from, size_t len)
{
    chunk *empty = NULL;
    void *p = NULL;
    pthread_mutex_lock(&cutting.mu);
    chunk *k = cutting.now;
    if (!k || CHUNK - k->at < len) {
        chunk *fresh = chunk_new();
        if (fresh) {
            empty = k && k->live == 0 ? k : NULL;
            cutting.now = fresh;
        }
        k = fresh;
    }
    if (k) {
        p = k->base + k->at;
        k->at += len;
        k->live++;
        *from = k;
    }
    pthread_mutex_unlock(&cutting.mu);
    chunk_free(empty);
    return p;
}

static void cut_back(chunk *k, void *p, size_t len)
{
    madvise(p, len, MADV_DONTNEED);
    pthread_mutex_lock(&cutting.mu);
    bool last = --k->live == 0 && k != cutting.now;
    if (k->live == 0)
        k->at = 0;
    pthread_mutex_unlock(&cutting.mu);
    if (last)
        chunk_free(k);
}

static void *own_map(chunk **from, size_t len)
{
    *from = NULL;
    return len < HUGE_FROM ? cut(from, len) : map_bytes(len);
}

static void own_unmap(chunk *from, void *p, size_t len)
{
    if (from)
        cut_back(from, p, len);
    else
        munmap(p, len);
}

static void unmap_own(own *o)
{
    size_t len = class_size(o->cls);
    UNPOISON(o->b.data, len);
    own_unmap(o->cut_from, o->b.data, len);
    free(o);
}

/* ---- the cache ------------------------------------------------------------------------------------------------ */

static uint64_t tick(void) { return atomic_fetch_add_explicit(&pool.tick, 1, memory_order_relaxed) + 1; }

static own *cache_pop(int c, bool only_cold)
{
    pthread_mutex_lock(&pool.cls[c].mu);
    own *o = only_cold && pool.cls[c].cold == 0 ? NULL : pool.cls[c].list;
    if (o) {
        pool.cls[c].list = o->next;
        size_t n = --pool.cls[c].n;
        pool.cls[c].low = TRN_MIN(pool.cls[c].low, n);
        pool.cls[c].cold = TRN_MIN(pool.cls[c].cold - only_cold, n);
    }
    pthread_mutex_unlock(&pool.cls[c].mu);
    if (o)
        atomic_fetch_sub_explicit(&pool.cached, class_size(c), memory_order_relaxed);
    return o;
}

static void cache_push(own *o)
{
    int c = o->cls;
    POISON(o->b.data, class_size(c));
    atomic_store_explicit(&pool.cls[c].used_at, tick(), memory_order_relaxed);
    pthread_mutex_lock(&pool.cls[c].mu);
    o->next = pool.cls[c].list;
    pool.cls[c].list = o;
    pool.cls[c].n++;
    pthread_mutex_unlock(&pool.cls[c].mu);
    atomic_fetch_add_explicit(&pool.cached, class_size(c), memory_order_relaxed);
}

/* Unmaps one cached buffer of the class that was used longest ago. False when nothing is cached. */
static bool evict_one(void)
{
    int best = -1;
    uint64_t best_at = UINT64_MAX;
    for (int c = 0; c < N_CLASS; c++) {
        uint64_t at = atomic_load_explicit(&pool.cls[c].used_at, memory_order_relaxed);
        if (at == 0 || at >= best_at)
            continue;
        pthread_mutex_lock(&pool.cls[c].mu);
        bool any = pool.cls[c].list != NULL;
        pthread_mutex_unlock(&pool.cls[c].mu);
        if (any) {
            best = c;
            best_at = at;
        }
    }
    if (best < 0)
        return false;
    own *o = cache_pop(best, false);
    if (o)
        unmap_own(o);
    return true; /* when somebody else took it first, the caller's sum has changed as well */
}

void trn_buf_pool_trim(size_t keep_bytes)
{
    while (atomic_load_explicit(&pool.cached, memory_order_relaxed) > keep_bytes && evict_one())
        ;
}

static bool evict_cold(void)
{
    for (int c = N_CLASS - 1; c >= 0; c--) {
        if (atomic_load_explicit(&pool.cls[c].used_at, memory_order_relaxed) == 0)
            continue;
        own *o = cache_pop(c, true);
        if (o) {
            unmap_own(o);
            return true;
        }
    }
    return false;
}

uint64_t trn_buf_pool_age(uint64_t now_ns)
{
    static _Atomic uint64_t interval_end;
    if (atomic_load_explicit(&pool.cached, memory_order_relaxed) > AGE_KEEP && evict_cold())
        return now_ns + AGE_PAUSE; /* one at a time: the caller has other things to do */
    uint64_t end = atomic_load(&interval_end);
    if (now_ns >= end && atomic_compare_exchange_strong(&interval_end, &end, now_ns + AGE_INTERVAL)) {
        for (int c = 0; c < N_CLASS; c++) {
            if (atomic_load_explicit(&pool.cls[c].used_at, memory_order_relaxed) == 0)
                continue;
            pthread_mutex_lock(&pool.cls[c].mu);
            pool.cls[c].cold = pool.cls[c].low;
            pool.cls[c].low = pool.cls[c].n;
            pthread_mutex_unlock(&pool.cls[c].mu);
        }
        return now_ns + AGE_PAUSE;
    }
    return end > now_ns ? end : now_ns + AGE_INTERVAL;
}

void trn_buf_pool_limit(size_t bytes)
{
    atomic_store_explicit(&pool.limit, bytes, memory_order_relaxed);
    atomic_store_explicit(&pool.limit_set, true, memory_order_release);
    trn_buf_pool_trim(bytes);
}

trn_buf_stats trn_buf_pool_stats(void)
{
    return (trn_buf_stats){
        .live_bytes = atomic_load_explicit(&pool.live, memory_order_relaxed),
        .cached_bytes = atomic_load_explicit(&pool.cached, memory_order_relaxed),
        .hits = atomic_load_explicit(&pool.hits, memory_order_relaxed),
        .misses = atomic_load_explicit(&pool.misses, memory_order_relaxed),
    };
}

/* ---- buffers -------------------------------------------------------------------------------------------------- */

static trn_err no_room(size_t size)
{
    return trn_errorf(TRN_RESOURCE_EXHAUSTED, "out of memory: a buffer of %zu bytes does not fit", size);
}

#define WAIT_FROM 10                            /* 1 KiB */
#define WAIT_MAX (TRN_ASAN ? 0 : 64)            /* per list: at most 4 MiB in the largest; fresh memory is what finds bugs */
#define N_WAITING (LARGE_SHIFT - WAIT_FROM + 1) /* powers of two that such sizes are rounded up to, both ends included */

static struct {
    pthread_mutex_t mu;
    own *list;
    int n;
} waiting[N_WAITING] = {[0 ... N_WAITING - 1] = {.mu = PTHREAD_MUTEX_INITIALIZER}};

/* -1: not of a size that waits. */
static int waiting_class(size_t size)
{
    return size > (size_t)1 << (WAIT_FROM - 1) && size < LARGE ? TRN_MAX(64 - __builtin_clzll(size - 1) - WAIT_FROM, 0) : -1;
}

static own *waiting_pop(int w)
{
    if (w < 0)
        return NULL;
    pthread_mutex_lock(&waiting[w].mu);
    own *o = waiting[w].list;
    if (o) {
        waiting[w].list = o->next;
        waiting[w].n--;
    }
    pthread_mutex_unlock(&waiting[w].mu);
    return o;
}

static bool waiting_push(int w, own *o)
{
    if (w < 0)
        return false;
    pthread_mutex_lock(&waiting[w].mu);
    bool room = waiting[w].n < WAIT_MAX;
    if (room) {
        o->next = waiting[w].list;
        waiting[w].list = o;
        waiting[w].n++;
    }
    pthread_mutex_unlock(&waiting[w].mu);
    return room;
}

static trn_err small_new(trn_buf **out, size_t size)
{
    int w = waiting_class(size);
    size_t len = SMALL_HEAD + (w < 0 ? (size + 63) & ~(size_t)63 : (size_t)1 << (w + WAIT_FROM));
    own *o = waiting_pop(w);
    if (!o)
        o = aligned_alloc(64, len);
    if (TRN_UNLIKELY(!o))
        return trn_err_oom();
    *o = (own){.b = {.size = size, .data = (uint8_t *)o + SMALL_HEAD}, .cls = -1};
    atomic_init(&o->b.ref, 1);
    POISON(o->b.data + size, len - SMALL_HEAD - size);
    *out = &o->b;
    return TRN_OK;
}

trn_err trn_buf_new(trn_buf **out, size_t size)
{
    if (TRN_FAULT("buf.new"))
        return no_room(size);
    if (size < LARGE)
        return small_new(out, size);
    int c = class_of(size);
    if (c < 0)
        return no_room(size);
    size_t len = class_size(c);
    atomic_store_explicit(&pool.cls[c].used_at, tick(), memory_order_relaxed);
    own *o = cache_pop(c, false);
    if (o) {
        atomic_fetch_add_explicit(&pool.hits, 1, memory_order_relaxed);
    } else {
        chunk *from;
        void *p = own_map(&from, len);
        if (!p) {
            trn_buf_pool_trim(0); /* what we hoard may be what is missing */
            p = own_map(&from, len);
        }
        if (!p)
            return no_room(size);
        o = malloc(sizeof *o);
        if (!o) {
            own_unmap(from, p, len);
            return trn_err_oom();
        }
        *o = (own){.b = {.data = p}, .cls = c, .cut_from = from};
        atomic_fetch_add_explicit(&pool.misses, 1, memory_order_relaxed);
    }
    o->next = NULL;
    o->b.size = size;
    atomic_store_explicit(&o->b.ref, 1, memory_order_relaxed);
    UNPOISON(o->b.data, len);
    POISON(o->b.data + size, len - size);
    atomic_fetch_add_explicit(&pool.live, len, memory_order_relaxed);
    *out = &o->b;
    return TRN_OK;
}

trn_buf *trn_buf_ref(trn_buf *b)
{
    atomic_fetch_add_explicit(&b->ref, 1, memory_order_relaxed);
    return b;
}

void trn_buf_unref(trn_buf *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->ref, 1, memory_order_acq_rel) != 1)
        return;
    if (b->release) {
        b->release(b->arg, b);
        return;
    }
    own *o = (own *)b;
    if (o->cls < 0) {
        UNPOISON(o->b.data, (o->b.size + 63) & ~(size_t)63);
        if (!waiting_push(waiting_class(o->b.size), o))
            free(o);
        return;
    }
    size_t len = class_size(o->cls), limit = pool_limit();
    atomic_fetch_sub_explicit(&pool.live, len, memory_order_relaxed);
    if (len > limit) {
        unmap_own(o);
        return;
    }
    cache_push(o);
    trn_buf_pool_trim(limit);
}
