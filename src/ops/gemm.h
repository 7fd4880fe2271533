/* Our own matrix product, on the calling thread (gemm.c) and divided over the pool (matmul.c). */
#ifndef TRN_OPS_GEMM_H
#define TRN_OPS_GEMM_H

#include <trainera/op.h>

/* C[m,n] (row stride ldc) = A·B with A[i,k] at a[i·ars + k·acs], B[k,j] at b[k·brs + j·bcs]; all strides count elements. */
typedef struct trn_gemm_args {
    int64_t m, n, k;
    const void *a, *b;
    int64_t ars, acs, brs, bcs;
    void *c;
    int64_t ldc;
    bool conj_a, conj_b;
    bool add;    /* C += A·B; float and double only */
    bool stream; /* C is not read soon */
} trn_gemm_args;

/* f32, f64, i16, i32, i64, c64, c128; m, n and k at least 1. False: no memory. */
bool trn_gemm(trn_dtype t, const trn_gemm_args *g);

/* A piece of a divided product, while it is in the cache: rows from `row` and columns from `col` of the whole. */
typedef void (*trn_gemm_then)(void *arg, const trn_gemm_args *piece, int64_t row, int64_t col);
/* The whole product, for trn_k_for or a trn_later: piece(job, begin, end) over [0, n), `grain` at least. m, n and k may be 0. Without `c` every piece is computed
 * into memory of its own, which only `then` sees: nothing can go wrong then. */
typedef struct trn_gemm_job {
    trn_dtype t;
    size_t size;
    trn_gemm_args g;
    trn_gemm_then then; /* NULL: nothing */
    void *arg;
    void (*piece)(void *job, int64_t begin, int64_t end);
    int64_t n, grain;
    _Atomic bool failed; /* no memory */
} trn_gemm_job;
void trn_gemm_divide(trn_gemm_job *j, const trn_kctx *k, trn_dtype t, const trn_gemm_args *g, trn_gemm_then then, void *arg);
/* All of it now. */
trn_err trn_gemm_divided(trn_kctx *k, trn_dtype t, const trn_gemm_args *g, trn_gemm_then then, void *arg) TRN_MUST_USE;
/* The product of two matrices, each read transposed when asked: strides, sizes and factors; `c` is left to the caller. INVALID_ARGUMENT when they do not fit. */
trn_err trn_gemm_of(trn_gemm_args *g, const trn_tensor *a, const trn_tensor *b, bool ta, bool tb) TRN_MUST_USE;

/* The same for one kind of CPU, for tests; the caller has asked whether this CPU is one. */
typedef enum trn_gemm_isa { TRN_GEMM_PLAIN, TRN_GEMM_FMA, TRN_GEMM_AVX512 } trn_gemm_isa;
bool trn_gemm_has(trn_gemm_isa isa);
bool trn_gemm_as(trn_dtype t, const trn_gemm_args *g, trn_gemm_isa isa);

#endif
