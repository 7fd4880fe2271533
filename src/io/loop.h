/* Event loop (epoll) and thread pool: where every function of the program runs.
 *
 * A loop thread owns its connections, their HTTP/2 state and timers; it blocks on epoll only. Pool threads run kernels and
 * block on nothing. Crossing over is a message: trn_loop_post or trn_pool_submit, never a shared lock held across it.
 * Small steps never leave the loop thread: the executor runs cheap kernels where the bytes arrived (fewer thread switches
 * is where TensorFlow's counter step loses half its time).
 */
#ifndef TRN_LOOP_H
#define TRN_LOOP_H

#include "base/base.h"
#include "io/lend.h"

typedef void (*trn_fn)(void *arg);

typedef struct trn_loop trn_loop;
trn_err trn_loop_open(trn_loop **out, const char *name) TRN_MUST_USE; /* starts its thread */
void trn_loop_close(trn_loop *l);                   /* runs what was posted, stops and joins; not from the loop itself */
void trn_loop_post(trn_loop *l, trn_fn fn, void *arg); /* [any] in order; wakes the loop only when it sleeps */
/* [any] The same from a thread that holds no lock and has nothing urgent to do: if the loop sleeps, the caller does the loop's work instead of waking a thread for it. */
void trn_loop_post_last(trn_loop *l, trn_fn fn, void *arg);
bool trn_loop_here(const trn_loop *l);              /* [any] is the caller this loop's thread */
trn_loop *trn_loop_current(void);                   /* NULL on other threads */
bool trn_loop_has_time(const trn_loop *l);          /* [loop] has slept for most of the last milliseconds: a little work delays nobody */
/* [loop] Runs once before the loop sleeps again: batching writes. The same task may be armed many times, runs once. */
typedef struct trn_loop_task { struct trn_loop_task *next; trn_fn fn; void *arg; bool armed; } trn_loop_task;
void trn_loop_later(trn_loop *l, trn_loop_task *t);
void trn_loop_later_stop(trn_loop *l, trn_loop_task *t); /* before its storage goes */

/* Something that a thread outside the loops waits for. Opened once, from any thread; waited for once, by trn_latch_wait or trn_loop_drive, and then gone. */
typedef struct trn_latch { pthread_mutex_t mu; pthread_cond_t cv; _Atomic bool done; trn_loop *driving; } trn_latch;
void trn_latch_init(trn_latch *w);
void trn_latch_open(trn_latch *w);
void trn_latch_wait(trn_latch *w);
/* [any but loop] Runs fn(arg), which starts something that ends with trn_latch_open(w), and waits for that. Meanwhile the caller does the loop's work if
 * nobody else waits: then fn runs as on the loop. */
void trn_loop_drive(trn_loop *l, trn_fn fn, void *arg, trn_latch *w);

/* Timers, [loop]. A timer struct is the caller's storage; start on a running one moves it. */
typedef struct trn_timer { uint64_t at_ns; size_t pos; trn_fn fn; void *arg; } trn_timer; /* pos 0: not running */
void trn_timer_start(trn_loop *l, trn_timer *t, uint64_t at_ns, trn_fn fn, void *arg);
void trn_timer_stop(trn_loop *l, trn_timer *t);

/* [loop] Runs when the loop is closed, if it was not stopped before. */
void trn_loop_at_close(trn_loop *l, trn_loop_task *t);
void trn_loop_at_close_stop(trn_loop *l, trn_loop_task *t);

trn_lender *trn_loop_lender(trn_loop *l); /* [loop] NULL: bytes must be copied */

/* File descriptors, [loop]. */
enum { TRN_IO_READ = 1, TRN_IO_WRITE = 2 };
typedef struct trn_watch { int fd; int events; void (*fn)(void *arg, int events); void *arg; } trn_watch;
trn_err trn_watch_start(trn_loop *l, trn_watch *w, int fd, int events, void (*fn)(void *, int), void *arg) TRN_MUST_USE;
void trn_watch_events(trn_loop *l, trn_watch *w, int events);
void trn_watch_stop(trn_loop *l, trn_watch *w); /* does not close the fd */

/* Work-stealing is overkill at our sizes: one bounded-spin queue, LIFO slot for the submitting worker. */
typedef struct trn_pool trn_pool;
trn_err trn_pool_open(trn_pool **out, int threads, const char *name) TRN_MUST_USE;
void trn_pool_close(trn_pool *p); /* finishes what is queued, joins */
void trn_pool_submit(trn_pool *p, trn_fn fn, void *arg); /* [any] */
int trn_pool_threads(const trn_pool *p);
bool trn_pool_here(const trn_pool *p);
/* [any but loop] fn(arg, begin, end) over [0, n) in pieces of at least `grain`, on the caller and idle pool threads; returns when all are done. */
void trn_pool_for(trn_pool *p, int64_t n, int64_t grain, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

/* [any] Takes a reference's worth of work that nobody waits for: threads that have nothing else to do take its pieces, at most half of them (one at least), so that
 * whoever is about to bring something finds a free core. */
void trn_pool_later(trn_pool *p, TRN_OWN trn_later *l);

#endif
