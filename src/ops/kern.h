/* What several kernel families share: loops that the compiler vectorises, broadcasting, copies between strided blocks, axes.
 *
 * Floors: an inner loop is a plain function over n elements without any check; the driver (elementwise.c, reduce.c, …) checks, splits the
 * work and calls it; the row names the driver. Half and bfloat16 have no inner loops of their own: the drivers widen blocks to float.
 */
#ifndef TRN_OPS_KERN_H
#define TRN_OPS_KERN_H

#include <trainera/op.h>

#include "tensor/tensor.h"

/* Inner loops are compiled once per instruction set; the loader picks. Not under sanitizers, whose run-time is not up yet when the loader
 * resolves such a function. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !TRN_ASAN && !TRN_TSAN && !defined(TRN_NO_CLONES) && !defined(__clang__)
#define TRN_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRN_SIMD
#endif

/* Code size: the types that training uses get clones, the others one version. */
#define TRN_SIMD_f32 TRN_SIMD
#define TRN_SIMD_f64 TRN_SIMD
#define TRN_SIMD_i32 TRN_SIMD
#define TRN_SIMD_i64 TRN_SIMD
#define TRN_SIMD_i8
#define TRN_SIMD_i16
#define TRN_SIMD_u8
#define TRN_SIMD_u16
#define TRN_SIMD_u32
#define TRN_SIMD_u64
#define TRN_SIMD_c64
#define TRN_SIMD_c128

/* Output and input may be the same memory, element by element: that is no dependence between iterations. */
#ifdef __clang__
#define TRN_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TRN_IVDEP _Pragma("GCC ivdep")
#endif

/* X(op, dtype, C type, unsigned type to compute in, suffix, …) */
#define TRN_EACH_INT(X, op, ...)                                                                                       \
    X(op, int8_t, uint32_t, i8, __VA_ARGS__)                                                                           \
    X(op, int16_t, uint32_t, i16, __VA_ARGS__)                                                                         \
    X(op, int32_t, uint32_t, i32, __VA_ARGS__)                                                                         \
    X(op, int64_t, uint64_t, i64, __VA_ARGS__)                                                                         \
    X(op, uint8_t, uint32_t, u8, __VA_ARGS__)                                                                          \
    X(op, uint16_t, uint32_t, u16, __VA_ARGS__)                                                                        \
    X(op, uint32_t, uint32_t, u32, __VA_ARGS__)                                                                        \
    X(op, uint64_t, uint64_t, u64, __VA_ARGS__)
#define TRN_EACH_FLOAT(X, op, ...)                                                                                     \
    X(op, float, float, f32, __VA_ARGS__)                                                                              \
    X(op, double, double, f64, __VA_ARGS__)
#define TRN_EACH_COMPLEX(X, op, ...)                                                                                   \
    X(op, float _Complex, float _Complex, c64, __VA_ARGS__)                                                            \
    X(op, double _Complex, double _Complex, c128, __VA_ARGS__)

/* Rows of a table indexed by dtype. */
#define TRN_TAB_INT(op)                                                                                                \
    [TRN_INT8] = op##_i8, [TRN_INT16] = op##_i16, [TRN_INT32] = op##_i32, [TRN_INT64] = op##_i64,                      \
    [TRN_UINT8] = op##_u8, [TRN_UINT16] = op##_u16, [TRN_UINT32] = op##_u32, [TRN_UINT64] = op##_u64
#define TRN_TAB_FLOAT(op) [TRN_FLOAT] = op##_f32, [TRN_DOUBLE] = op##_f64
#define TRN_TAB_COMPLEX(op) [TRN_COMPLEX64] = op##_c64, [TRN_COMPLEX128] = op##_c128

static inline bool trn_is_half(trn_dtype t) { return t == TRN_HALF || t == TRN_BFLOAT16; }
void trn_widen(float *y, const void *x, trn_dtype t, int64_t n);  /* half or bfloat16 to float */
void trn_narrow(void *y, const float *x, trn_dtype t, int64_t n); /* and back, to nearest even */

/* ---- element-wise (elementwise.c) ------------------------------------------------------------------------------ */

enum { TRN_EW_DIV0 = 1, TRN_EW_OOM = 2, TRN_EW_NEGPOW = 4 }; /* what an inner loop may object to */

/* p: the op's float attr, if it has one. */
typedef void (*trn_unary_fn)(void *y, const void *x, int64_t n, float p);
typedef struct trn_unary {
    trn_unary_fn f[TRN_DTYPE_END];
    int cost;         /* 0: a few cycles an element; 1: tens */
    const char *attr; /* name of p, or NULL */
} trn_unary;
/* sa, sb: 1 to walk along, 0 to stay on the first element. */
typedef void (*trn_binary_fn)(void *y, const void *a, const void *b, int64_t n, int sa, int sb, int *bad, float p);
typedef struct trn_binary {
    trn_binary_fn f[TRN_DTYPE_END];
    int cost;
    const char *attr;
} trn_binary;

trn_err trn_ew_unary(trn_kctx *k, const trn_unary *op) TRN_MUST_USE;             /* y has x's dtype */
trn_err trn_ew_unary_to(trn_kctx *k, const trn_unary *op, trn_dtype to) TRN_MUST_USE;
trn_err trn_ew_binary(trn_kctx *k, const trn_binary *op) TRN_MUST_USE;           /* broadcasts */
trn_err trn_ew_binary_to(trn_kctx *k, const trn_binary *op, trn_dtype to) TRN_MUST_USE;
trn_err trn_ew_binary_same(trn_kctx *k, const trn_binary *op) TRN_MUST_USE;      /* both shapes must be equal */

/* y[i] = y[i] op x[i], for kernels that gather several rows into one. Numbers of any type. */
typedef enum trn_accum_op { TRN_ACC_ADD, TRN_ACC_SUB, TRN_ACC_MUL, TRN_ACC_MAX, TRN_ACC_MIN } trn_accum_op;
bool trn_accum_has(trn_accum_op op, trn_dtype t);
void trn_accum(trn_accum_op op, trn_dtype t, void *y, const void *x, int64_t n);

#define TRN_UNARY_KERNEL(name, op)                                                                                     \
    static trn_err name(trn_kctx *k) { return trn_ew_unary(k, &op); }
#define TRN_BINARY_KERNEL(name, op)                                                                                    \
    static trn_err name(trn_kctx *k) { return trn_ew_binary(k, &op); }

/* Two shapes broadcast together, dims that can be walked as one merged. Strides count elements, 0 along a broadcast dim; the last dim's
 * strides are 0 or 1. Without elements the walk is one dim of 0. */
typedef struct trn_bcast {
    trn_shape out;
    int rank; /* of the merged walk, at least 1 */
    int64_t dim[TRN_MAX_RANK], sa[TRN_MAX_RANK], sb[TRN_MAX_RANK];
} trn_bcast;
trn_err trn_bcast_make(trn_bcast *b, const trn_shape *x, const trn_shape *y) TRN_MUST_USE;

/* log(1 + v), exact near zero (math_unary.c) */
float _Complex trn_log1p_c64(float _Complex v);
double _Complex trn_log1p_c128(double _Complex v);

/* ---- blocks (blocks.c) ------------------------------------------------------------------------------------------ */

/* dst[dst_at + Σ i·ds] = src[src_at + Σ i·ss] over the block `size`; strides count elements, may be 0 or negative on the source. The caller
 * has made sure that everything lies inside. Any dtype. `k` may be NULL (then it runs on this thread only). */
trn_err trn_block_copy(trn_kctx *k, trn_tensor *dst, int64_t dst_at, const int64_t *ds, const trn_tensor *src, int64_t src_at,
                       const int64_t *ss, const int64_t *size, int rank) TRN_MUST_USE;
/* Every element of [at, at+n) becomes element `from` of src. */
trn_err trn_fill_elems(trn_tensor *dst, int64_t at, int64_t n, const trn_tensor *src, int64_t from) TRN_MUST_USE;
/* Zero bytes, empty strings, no handles. */
void trn_zero_elems(trn_tensor *dst, int64_t at, int64_t n);
void trn_row_strides(int64_t *stride, const trn_shape *s);

/* A StridedSlice's inputs and masks applied to a shape: where it starts, how it walks, what comes out. */
typedef struct trn_strided {
    int64_t begin[TRN_MAX_RANK], stride[TRN_MAX_RANK], size[TRN_MAX_RANK]; /* per input dim; begin is inside unless size is 0 */
    trn_shape out;                                                        /* with new axes, without shrunk ones */
    bool whole;                                                           /* everything, in order */
} trn_strided;
/* begin, end, strides: i16, i32 or i64 vectors of one length; masks from the node's attrs. */
trn_err trn_strided_make(trn_strided *out, const trn_node *n, const trn_shape *x, const trn_tensor *begin, const trn_tensor *end,
                         const trn_tensor *strides) TRN_MUST_USE;

/* ---- small input tensors ---------------------------------------------------------------------------------------- */

/* Element i of an i16, i32 or i64 tensor. */
static inline int64_t trn_int_at(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_INT32: return TRN_DATA(t, int32_t)[i];
    case TRN_INT64: return TRN_DATA(t, int64_t)[i];
    case TRN_INT16: return TRN_DATA(t, int16_t)[i];
    case TRN_INT8: return TRN_DATA(t, int8_t)[i];
    case TRN_UINT8: return TRN_DATA(t, uint8_t)[i];
    case TRN_UINT16: return TRN_DATA(t, uint16_t)[i];
    case TRN_UINT32: return TRN_DATA(t, uint32_t)[i];
    default: return (int64_t)TRN_DATA(t, uint64_t)[i];
    }
}
static inline void trn_int_put(trn_tensor *t, int64_t i, int64_t v)
{
    if (t->dtype == TRN_INT32)
        TRN_DATA_MUT(t, int32_t)[i] = (int32_t)v;
    else if (t->dtype == TRN_INT16)
        TRN_DATA_MUT(t, int16_t)[i] = (int16_t)v;
    else if (t->dtype == TRN_UINT16)
        TRN_DATA_MUT(t, uint16_t)[i] = (uint16_t)v;
    else
        TRN_DATA_MUT(t, int64_t)[i] = v;
}
/* n times a dim. In a shape without elements the dims beside the 0 may be of any size: their product stays at the largest number then. Nothing is addressed with it. */
static inline int64_t trn_times(int64_t n, int64_t dim)
{
    int64_t r;
    return __builtin_mul_overflow(n, dim, &r) ? INT64_MAX : r;
}
static inline bool trn_is_scalar(const trn_tensor *t) { return t->shape.rank == 0; }
static inline bool trn_is_vector(const trn_tensor *t) { return t->shape.rank == 1; }
/* Axis in [-rank, rank) to [0, rank). */
trn_err trn_axis(int *out, int64_t axis, int rank, const char *what) TRN_MUST_USE;
/* A shape written as a vector of i32 or i64 (a scalar counts as one dim when `scalar_ok`); no negative dims, at most 2^62 elements. */
trn_err trn_shape_from(trn_shape *out, const trn_tensor *t, bool scalar_ok) TRN_MUST_USE;
trn_err trn_count_checked(int64_t *out, const trn_shape *s) TRN_MUST_USE; /* trn_shape_count with INVALID_ARGUMENT */

/* ---- hashes (strhash.c) ------------------------------------------------------------------------------------------ */

void trn_fingerprint128(uint64_t out[2], const void *p, size_t n); /* FarmHash's 128 bits, the low half first */
uint64_t trn_fingerprint64(const void *p, size_t n); /* FarmHash's, TensorFlow's Fingerprint64 */
uint64_t trn_siphash(const uint64_t key[2], const void *p, size_t n);

/* ---- shape rules (shape_rules.c) -------------------------------------------------------------------------------- */

trn_err trn_sh_vector(trn_shctx *s);      /* output 0: a vector of unknown length */
trn_err trn_sh_reduce(trn_shctx *s);      /* inputs: x, axes; attr keep_dims */
trn_err trn_sh_arg_reduce(trn_shctx *s);  /* ArgMax */
trn_err trn_sh_like1(trn_shctx *s);       /* every output like input 1 */
trn_err trn_sh_merge(trn_shctx *s);       /* output 0: all inputs have one shape */
trn_err trn_sh_unsorted_segment(trn_shctx *s); /* inputs: data, segment ids, their number */
trn_err trn_sh_in0_shape(trn_shctx *s);   /* output 0: the shape that input 0's value says */
trn_err trn_sh_in1_shape(trn_shctx *s);   /* output 0: the shape that input 1's value says */
trn_err trn_sh_rank_of(trn_shctx *s, int i, int rank) TRN_MUST_USE; /* input i must have this rank if it is known */
/* One shape that fits both; INVALID_ARGUMENT when they differ. */
trn_err trn_sh_meet(trn_shape *out, const trn_shape *a, const trn_shape *b) TRN_MUST_USE;
trn_err trn_sh_broadcast(trn_shape *out, const trn_shape *a, const trn_shape *b) TRN_MUST_USE;
/* A constant shape vector: -1 is unknown. False when the value is not known (then *out: unknown, or of the known rank). */
bool trn_sh_value(trn_shape *out, const trn_shctx *s, int i);

/* Rows that are named in no order come from memory one by one unless they are asked for ahead of time. Into the second cache: a core may wait for more lines there than
 * in the first (4,096 rows of 256 bytes out of 256 MB on a Zen 4: 62 µs, 110 into the first, 130 without). */
enum { TRN_ROWS_AHEAD = 16 };
static inline void trn_fetch_row(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes && i < 1024; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* Element i of y from text, as StringToNumber reads it (f32, f64, i32, i64). False: it is no such number. */
bool trn_number_from_text(trn_tensor *y, int64_t i, const char *p, size_t n);

#endif
