/* oneDNN, opened by the first kernel that wants it.
 *
 * What passes through: a kernel asks for a plan (one primitive for one geometry, kept in a bounded cache) and runs it on its own thread.
 *
 * Threads: Debian's oneDNN is an OpenMP build, in which every calling thread gets a team of its own. We give each caller a team of one and
 * split the batch over the executor's pool instead (trn_k_for): no second set of threads, nothing that spins, and the pieces, so the order of
 * sums, depend on the number of threads only. A plan may run on any number of threads at once.
 *
 * Matrix products are not here: measured on one thread, our own (gemm.h) are as fast as dnnl_sgemm and OpenBLAS, or faster, on the shapes of dense layers.
 *
 * No plan (the library is missing, or it has only its slow reference code for this geometry): the caller has code of its own. Setting
 * TRAINERA_ONEDNN=0 in the environment closes it off. [any]
 */
#ifndef TRN_OPS_MATHLIB_H
#define TRN_OPS_MATHLIB_H

#include <trainera/op.h>

#include "base/base.h"

/* A convolution over [n, in…, ic] with a filter [ker…, ic / groups, oc]; depth first, 1 for images. */
typedef struct trn_conv_geom {
    int64_t n, ic, oc, groups;
    int64_t in[3], ker[3], out[3], stride[3], dil[3];
    int64_t pad[3], pad_after[3];
} trn_conv_geom;

typedef enum trn_conv_kind { TRN_CONV_FWD, TRN_CONV_BWD_INPUT, TRN_CONV_BWD_FILTER } trn_conv_kind;

typedef struct trn_conv_plan trn_conv_plan;

/* float only; NULL: use your own code. */
trn_conv_plan *trn_mathlib_conv(trn_conv_kind kind, const trn_conv_geom *g);
void trn_conv_plan_unref(trn_conv_plan *p); /* NULL is fine */
/* The library's own order of the filter: 0 when it is the plain one. Two plans with one order can share a packed filter. */
size_t trn_conv_plan_packed(const trn_conv_plan *p);
bool trn_conv_plan_same_filter(const trn_conv_plan *a, const trn_conv_plan *b);
trn_err trn_conv_plan_pack(const trn_conv_plan *p, void *packed, const float *filter) TRN_MUST_USE;
trn_err trn_conv_plan_unpack(const trn_conv_plan *p, float *filter, const void *packed) TRN_MUST_USE;
/* What the kind computes is written, the others are read. */
trn_err trn_conv_plan_run(const trn_conv_plan *p, float *input, float *filter, float *output) TRN_MUST_USE;

const char *trn_mathlib_text(void); /* "oneDNN 2.6.3" or why there is none, for logs and tests */

#endif
