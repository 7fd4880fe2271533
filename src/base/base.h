/* What every module may use: memory with named lifetimes, maps, a log, a clock, counters, locks, fault points.
 * Nothing here knows about tensors or networks.
 *
 * Why not plain malloc everywhere: graphs, calls and steps die as a whole, so they live in an arena that is dropped as a
 * whole; bulk bytes are shared between sockets, steps and variables, so they live in reference-counted buffers from a pool
 * that keeps large ones mapped and warm (fresh pages cost more than the copy: bench/RESULTS.md).
 */
#ifndef TRN_BASE_H
#define TRN_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <trainera/types.h>

/* Built with a sanitizer? gcc says so by a macro, clang by a question. */
#if defined(__has_feature)
#define TRN_ASAN __has_feature(address_sanitizer)
#define TRN_TSAN __has_feature(thread_sanitizer)
#else
#ifdef __SANITIZE_ADDRESS__
#define TRN_ASAN 1
#else
#define TRN_ASAN 0
#endif
#ifdef __SANITIZE_THREAD__
#define TRN_TSAN 1
#else
#define TRN_TSAN 0
#endif
#endif

#define TRN_LIKELY(x) __builtin_expect(!!(x), 1)
#define TRN_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TRN_COUNTOF(a) (sizeof(a) / sizeof((a)[0]))
#define TRN_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TRN_MAX(a, b) ((a) > (b) ? (a) : (b))
#define TRN_CONTAINER(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* ---- errors, inside ------------------------------------------------------------------------------------------- */

/* What an error says beside code and message; goes over the wire as TensorFlow's status payloads do. */
enum {
    TRN_MARK_DERIVED = 1,      /* it merely follows from another task's failure; the first one that is not derived is what the client sees */
    TRN_MARK_COORDINATION = 2, /* the coordination service's own word, not a failure to reach it */
};
unsigned trn_err_marks(const trn_error *err);
trn_err trn_err_mark(TRN_OWN trn_err err, unsigned marks) TRN_MUST_USE; /* adds them */
static inline bool trn_err_is_derived(const trn_error *err) { return trn_err_marks(err) & TRN_MARK_DERIVED; }
TRN_MUST_USE static inline trn_err trn_err_set_derived(TRN_OWN trn_err err) { return trn_err_mark(err, TRN_MARK_DERIVED); }
trn_err trn_err_oom(void) TRN_MUST_USE __attribute__((returns_nonnull)); /* static: reporting it cannot fail */
trn_err trn_err_errno(int errno_value, const char *fmt, ...) TRN_PRINTF(2, 3) TRN_MUST_USE __attribute__((returns_nonnull));

/* ---- memory --------------------------------------------------------------------------------------------------- */

/* Allocation that ends the process with a message when memory is gone: for small control structures, where unwinding would
 * add a branch to every line. Sizes that a peer chooses go through trn_buf_new or a checked malloc instead. */
void *trn_xalloc(size_t n); /* zeroed */
void *trn_xrealloc(void *p, size_t n);
char *trn_xstrdup(const char *s);
char *trn_xstrndup(const char *s, size_t n);
char *trn_xasprintf(const char *fmt, ...) TRN_PRINTF(1, 2);

/* Names of files may be URIs; errors and results keep them as they came, and what is given to the system is the path in them: "/a/b" of
 * "file:///a/b" and of "file://host/a/b", "/" of "file://", all of what is no URI. Points into the name, but for "/". */
const char *trn_local_path(const char *name);
/* UNIMPLEMENTED for URIs of other kinds ("gs://…"): there are only local files. */
trn_err trn_check_scheme(const char *name) TRN_MUST_USE;

/* Bump allocator; freed as a whole. Not thread-safe: one owner at a time. */
typedef struct trn_arena trn_arena;
trn_arena *trn_arena_new(void);
void trn_arena_free(trn_arena *a);
void *trn_arena_alloc(trn_arena *a, size_t n); /* 16-byte aligned, zeroed */
void *trn_arena_try_alloc(trn_arena *a, size_t n); /* the same, but NULL when memory is gone: for sizes a peer chooses */
void *trn_arena_dup(trn_arena *a, const void *p, size_t n);
char *trn_arena_strndup(trn_arena *a, const char *s, size_t n);
char *trn_arena_strdup(trn_arena *a, const char *s);
char *trn_arena_printf(trn_arena *a, const char *fmt, ...) TRN_PRINTF(2, 3);
/* Runs when the arena is freed, last added first. */
void trn_arena_on_free(trn_arena *a, void (*fn)(void *), void *arg);
size_t trn_arena_bytes(const trn_arena *a);

/* Growing array in one line: TRN_PUSH(v, n, cap, item). */
#define TRN_PUSH(v, n, cap, ...)                                                                                       \
    do {                                                                                                               \
        if ((n) == (cap)) {                                                                                            \
            (cap) = (cap) ? (cap)*2 : 8;                                                                               \
            (v) = trn_xrealloc((v), (size_t)(cap) * sizeof *(v));                                                      \
        }                                                                                                              \
        (v)[(n)++] = (__VA_ARGS__);                                                                                    \
    } while (0)

/* Reference-counted bytes. [any] Large ones (>= 64 KiB) come from a pool that keeps freed ones mapped, up to a budget. */
typedef struct trn_buf {
    _Atomic uint32_t ref;
    size_t size; /* usable bytes */
    uint8_t *data; /* 64-byte aligned */
    void (*release)(void *arg, struct trn_buf *); /* foreign memory: frees the bytes and this head; NULL: ours */
    void *arg;
} trn_buf;
trn_err trn_buf_new(trn_buf **out, size_t size) TRN_MUST_USE;
trn_buf *trn_buf_ref(trn_buf *b);
void trn_buf_unref(trn_buf *b);
static inline bool trn_buf_sole(trn_buf *b) { return atomic_load_explicit(&b->ref, memory_order_acquire) == 1; }
void trn_buf_pool_limit(size_t bytes); /* how much freed memory stays cached; default 1/8 of RAM */
void trn_buf_pool_trim(size_t keep_bytes);
/* Gives one buffer that nobody wanted for some seconds back to the kernel; to be called again, not before the time that it returns. */
uint64_t trn_buf_pool_age(uint64_t now_ns);
/* Of the large ones, in whole size classes. */
typedef struct trn_buf_stats { size_t live_bytes, cached_bytes, hits, misses; } trn_buf_stats;
trn_buf_stats trn_buf_pool_stats(void);

/* A slice of a buffer; what messages are made of on their way out. */
typedef struct trn_slice {
    trn_buf *buf; /* holds a reference; NULL: static bytes */
    const uint8_t *p;
    size_t n;
} trn_slice;

/* ---- maps ----------------------------------------------------------------------------------------------------- */

/* Hash map from bytes to pointer; keys are copied (with a zero behind them). Not thread-safe. A NULL map reads as empty. */
typedef struct trn_map trn_map;
trn_map *trn_map_new(void);
void trn_map_free(trn_map *m, void (*value_free)(void *)); /* NULL map is fine */
void *trn_map_get(const trn_map *m, const void *key, size_t n);
void *trn_map_put(trn_map *m, const void *key, size_t n, void *value); /* the value that stood there, or NULL */
void *trn_map_del(trn_map *m, const void *key, size_t n);
size_t trn_map_count(const trn_map *m);
/* for (size_t it = 0; trn_map_next(m, &it, &key, &n, &value);) — order is unspecified, no change while iterating;
 * `key` is valid until the map changes. */
bool trn_map_next(const trn_map *m, size_t *it, const char **key, size_t *n, void **value);
static inline void *trn_map_gets(const trn_map *m, const char *key) { return trn_map_get(m, key, strlen(key)); }
static inline void *trn_map_puts(trn_map *m, const char *key, void *v) { return trn_map_put(m, key, strlen(key), v); }
static inline void *trn_map_dels(trn_map *m, const char *key) { return trn_map_del(m, key, strlen(key)); }
/* 64-bit keys through the same map. */
static inline void *trn_map_geti(const trn_map *m, uint64_t k) { return trn_map_get(m, &k, sizeof k); }
static inline void *trn_map_puti(trn_map *m, uint64_t k, void *v) { return trn_map_put(m, &k, sizeof k, v); }
static inline void *trn_map_deli(trn_map *m, uint64_t k) { return trn_map_del(m, &k, sizeof k); }
uint64_t trn_hash(const void *p, size_t n);
/* TensorFlow's Hash64 (seed 0xDECAFCAFFE) and Hash64Combine: frame ids on the wire are made of them. */
uint64_t trn_hash64_tf(const void *p, size_t n);
uint64_t trn_hash64_tf_combine(uint64_t a, uint64_t b);

/* ---- string builder ------------------------------------------------------------------------------------------- */

typedef struct trn_sb {
    char *p; /* zero-terminated once something was added */
    size_t n, cap;
} trn_sb;
void trn_sb_add(trn_sb *s, const void *p, size_t n);
void trn_sb_adds(trn_sb *s, const char *str);
void trn_sb_addf(trn_sb *s, const char *fmt, ...) TRN_PRINTF(2, 3);
void trn_sb_addv(trn_sb *s, const char *fmt, va_list ap);
void trn_sb_reserve(trn_sb *s, size_t more); /* room for `more` bytes and the zero */
void trn_sb_fini(trn_sb *s);

/* ---- log ------------------------------------------------------------------------------------------------------ */

typedef enum trn_log_level { TRN_LOG_DEBUG, TRN_LOG_INFO, TRN_LOG_WARN, TRN_LOG_ERROR, TRN_LOG_OFF } trn_log_level;
/* One line on stderr: "2026-01-31T12:00:00.123 I worker/0 module: text". [any] */
void trn_log(trn_log_level level, const char *module, const char *fmt, ...) TRN_PRINTF(3, 4);
void trn_log_set_level(trn_log_level level);
bool trn_log_enabled(trn_log_level level);
void trn_log_set_task(const char *task); /* "worker/0": who speaks */
void trn_log_set_fd(int fd);             /* default 2 */
#define TRN_DEBUG(mod, ...)                                                                                            \
    do {                                                                                                               \
        if (trn_log_enabled(TRN_LOG_DEBUG))                                                                            \
            trn_log(TRN_LOG_DEBUG, mod, __VA_ARGS__);                                                                  \
    } while (0)
#define TRN_INFO(mod, ...) trn_log(TRN_LOG_INFO, mod, __VA_ARGS__)
#define TRN_WARN(mod, ...) trn_log(TRN_LOG_WARN, mod, __VA_ARGS__)

/* ---- clock, random -------------------------------------------------------------------------------------------- */

uint64_t trn_now_ns(void);      /* monotonic */
uint64_t trn_wall_us(void);     /* since 1970 */
uint64_t trn_memory_bytes(void); /* that this process may have: the machine's, or its control group's; 0: nobody says */
uint64_t trn_random64(void);    /* from the kernel, never 0: incarnations, step ids, handles */

/* ---- floating point ------------------------------------------------------------------------------------------- */

/* Kernels take subnormal numbers as zero and give zero instead of them, as TensorFlow's do: moments of an optimizer that fade away end there, and a CPU
 * may need a hundred times as long for them. trn_fpu_flush returns what trn_fpu_restore puts back; a thread that is in that state already pays for one read. */
#if defined(__x86_64__)
typedef uint32_t trn_fpu;
#define TRN_FPU__FLUSH 0x8040u /* results, arguments */
static inline trn_fpu trn_fpu_state(void) { return __builtin_ia32_stmxcsr(); }
static inline void trn_fpu__set(trn_fpu s) { __builtin_ia32_ldmxcsr(s); }
#elif defined(__aarch64__)
typedef uint64_t trn_fpu;
#define TRN_FPU__FLUSH (UINT64_C(1) << 24)
static inline trn_fpu trn_fpu_state(void) { return __builtin_aarch64_get_fpcr64(); }
static inline void trn_fpu__set(trn_fpu s) { __builtin_aarch64_set_fpcr64(s); }
#else
typedef uint32_t trn_fpu;
#define TRN_FPU__FLUSH 0u
static inline trn_fpu trn_fpu_state(void) { return 0; }
static inline void trn_fpu__set(trn_fpu s) { (void)s; }
#endif
static inline void trn_fpu_restore(trn_fpu s)
{
    if ((trn_fpu_state() ^ s) & TRN_FPU__FLUSH) /* flags that arithmetic has raised meanwhile are nobody's business */
        trn_fpu__set(s);
}
static inline trn_fpu trn_fpu_flush(void)
{
    trn_fpu was = trn_fpu_state();
    trn_fpu_restore(was | TRN_FPU__FLUSH);
    return was;
}
static inline trn_fpu trn_fpu_keep(void) /* the other way, for the few kernels that want subnormal numbers */
{
    trn_fpu was = trn_fpu_state();
    trn_fpu_restore(was & ~TRN_FPU__FLUSH);
    return was;
}

/* ---- locks ---------------------------------------------------------------------------------------------------- */

/* Mutexes are taken in rising rank; debug builds check it. Equal ranks nest in rising address order only
 * (an optimizer locks a variable and its slots). */
typedef enum trn_lock_rank {
    TRN_RANK_SESSION = 10, /* master and client sessions */
    TRN_RANK_WORKER = 20,  /* worker's tables */
    TRN_RANK_GRAPH = 30,
    TRN_RANK_OUTBOX = 35,  /* tensors for one peer */
    TRN_RANK_STEP = 40,    /* executor */
    TRN_RANK_RDV = 50,     /* rendezvous */
    TRN_RANK_RESMGR = 60,  /* resource table */
    TRN_RANK_RES = 70,     /* one resource */
    TRN_RANK_CANCEL = 75,
    TRN_RANK_CHANNEL = 80,
    TRN_RANK_LOOP = 85,
    TRN_RANK_POOL = 90,
    TRN_RANK_LEAF = 99,
} trn_lock_rank;
typedef struct trn_mutex {
    pthread_mutex_t m;
    int rank;
} trn_mutex;
void trn_mutex_init(trn_mutex *m, trn_lock_rank rank);
void trn_mutex_fini(trn_mutex *m);
void trn_lock(trn_mutex *m);
bool trn_lock_waits(trn_mutex *m); /* the same; true: somebody had it */
void trn_unlock(trn_mutex *m);
bool trn_trylock(trn_mutex *m) TRN_MUST_USE; /* for those who look in: false rather than wait */

/* Counts what is still pending and keeps the error that says most: the first, or the first that does not merely follow from another. [any] */
typedef struct trn_join {
    _Atomic int pending;
    trn_mutex mu;
    trn_err err;
} trn_join;
void trn_join_init(trn_join *j, int pending);
void trn_join_add(trn_join *j, int n); /* while at least one is pending */
bool trn_join_done(trn_join *j, TRN_OWN trn_err err); /* true: that was the last one, the caller goes on */
trn_err trn_join_fini(trn_join *j) TRN_MUST_USE; /* gives the error away */

/* Work in pieces that is owed: [0, n) in pieces of `piece`. Whoever has time takes one, whoever needs it done takes part until it is. Nothing in it can fail.
 * `over` runs once, on the thread with the last piece, before anybody learns that it is done. Counted; who calls a function has a reference. [any] */
typedef struct trn_later {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void (*over)(void *arg);
    void *arg;
    int64_t n, piece;
    _Atomic int64_t next, done;
    _Atomic bool is_over;
    _Atomic int refs;
    trn_mutex mu;
    pthread_cond_t ended;
    struct trn_later *queued; /* behind this one, where it waits for a thread */
} trn_later;
trn_later *trn_later_new(int64_t n, int64_t piece, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg, void (*over)(void *arg));
trn_later *trn_later_ref(trn_later *l);
void trn_later_unref(trn_later *l);
bool trn_later_piece(trn_later *l); /* false: all are taken */
void trn_later_end(trn_later *l);   /* takes part, and returns when it is done */
int trn_later_count(void);          /* of those in this process that are not */

/* ---- metrics -------------------------------------------------------------------------------------------------- */

/* Registered once, by name with Prometheus labels already in it ("rpc_calls_total{method=\"RunStep\"}"); the page is in obs/. */
typedef struct trn_counter { _Atomic uint64_t v; } trn_counter;
#define TRN_HIST_BUCKETS 24 /* powers of two of a microsecond */
typedef struct trn_hist { _Atomic uint64_t bucket[TRN_HIST_BUCKETS]; _Atomic uint64_t sum_us, count; } trn_hist;
trn_counter *trn_metric_counter(const char *name, const char *help);
trn_hist *trn_metric_hist(const char *name, const char *help);
/* A gauge is asked when the page is read. Dropping waits for a page that is being read: hold no lock that `read` takes. */
void trn_metric_gauge(const char *name, const char *help, double (*read)(void *), void *arg);
void trn_metric_gauge_drop(void *arg); /* all gauges of that arg */
void trn_metrics_text(trn_sb *out);    /* Prometheus text format */
static inline void trn_counter_add(trn_counter *c, uint64_t n) { atomic_fetch_add_explicit(&c->v, n, memory_order_relaxed); }
void trn_hist_add(trn_hist *h, uint64_t ns);

/* ---- what happened lately ------------------------------------------------------------------------------------- */

/* A value over time in bounded memory: means of equal spans, which double when the whole run no longer fits. Not thread-safe. */
#define TRN_SERIES_BINS 240
#define TRN_SERIES_FIRST_NS UINT64_C(500000000)
typedef struct trn_series {
    uint64_t start_ns, bin_ns; /* a caller who knows how often values come may set bin_ns first */
    uint64_t total;            /* values ever added */
    double last;
    int n; /* bins begun */
    double sum[TRN_SERIES_BINS];
    uint64_t count[TRN_SERIES_BINS]; /* 0: nothing came in that span */
} trn_series;
void trn_series_add(trn_series *s, uint64_t now_ns, double v);

/* Warnings and errors of this process, the last few dozen; what repeats is counted. The log notes its own. [any] */
typedef struct trn_recent {
    trn_log_level level;
    uint64_t first_ns, last_ns; /* monotonic */
    uint64_t count;
    const char *module, *text;
} trn_recent;
void trn_recent_note(trn_log_level level, const char *module, const char *text, size_t n);
void trn_recent_each(int max, void (*fn)(void *arg, const trn_recent *r), void *arg); /* the newest first; fn must be quick */
/* Scalars that the program reports (its summaries), by tag; the first few dozen tags. [any] */
void trn_scalar_note(const char *tag, size_t n, double v);
void trn_scalar_each(int max, void (*fn)(void *arg, const char *tag, const trn_series *s), void *arg); /* fn must be quick */

/* ---- fault points --------------------------------------------------------------------------------------------- */

/* TRN_FAULT("rdv.send") is true when a test asked for it: TRAINERA_FAULTS="rdv.send:3,io.write:10%". Costs one load.
 * "p": always; "p:3": the third time only; "p:3+": from the third time on; "p:10%": by chance; "seed:7": that chance's seed. */
extern _Atomic int trn_faults_armed;
bool trn_fault_hit(const char *point);
#define TRN_FAULT(point) (TRN_UNLIKELY(atomic_load_explicit(&trn_faults_armed, memory_order_relaxed)) && trn_fault_hit(point))
void trn_faults_set(const char *spec); /* NULL clears */

#endif
