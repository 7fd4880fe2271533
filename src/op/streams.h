/* How many threads a pass over large memory is worth.
 *
 * One core may get most of what the memory gives (a Zen 5: 70 of 90 GB/s); a second one then costs half a core more and saves a fifth of the time, which a ps had
 * better leave to the others of the machine. On other machines a core gets a few GB/s, and every one counts. So passes are measured: CPU time per byte with 1, 2, 4…
 * threads, by size; one in eight tries a neighbouring number, and twice the threads must be half as fast again. CPU time does not count who was put behind whom.
 *
 * Results do not depend on it: for pieces that do the same however they are cut. [pool], any number of passes at once. */
#ifndef TRN_OP_STREAMS_H
#define TRN_OP_STREAMS_H

#include <stdatomic.h>

#include "op/kctx.h"

#define TRN_STREAMS_LEVELS 8 /* 1, 2, 4 … 128 threads */

/* Of passes of about one size. Zero is the beginning: all threads. */
typedef struct trn_streams {
    _Atomic int below;                         /* how many levels below the highest one passes run */
    _Atomic uint32_t passes;                   /* for who tries another number */
    _Atomic uint64_t cost[TRN_STREAMS_LEVELS]; /* ps of CPU time per KiB, smoothed; 0: not tried */
} trn_streams;

/* As trn_k_for, for passes over `bytes` of memory in all. */
void trn_k_for_streams(trn_streams *s, const trn_kctx *k, size_t bytes, int64_t n, int64_t grain,
                       void (*fn)(void *, int64_t, int64_t), void *arg);

/* Its two halves: the level to run the next pass at (1 << level threads, `top` at most), and what the pass cost. */
int trn_streams_level(trn_streams *s, int top);
void trn_streams_learn(trn_streams *s, int top, int level, uint64_t cost);

#endif
