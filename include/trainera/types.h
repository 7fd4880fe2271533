/* Trainera's vocabulary: error values, dtypes, shapes, tensors. Everything else builds on this page.
 *
 * Ownership is written in the prototype: TRN_OWN marks an argument that the callee takes over (also when it fails);
 * every other pointer argument is borrowed for the call. What a function returns or stores in `out` belongs to the caller.
 * `out` parameters come first and are written only on success.
 *
 * Threads: a tensor is immutable once it is shared, so any thread may read it; reference counts are atomic.
 */
#ifndef TRAINERA_TYPES_H
#define TRAINERA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRN_API __attribute__((visibility("default")))
#define TRN_OWN
#define TRN_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TRN_MUST_USE __attribute__((warn_unused_result))

/* ---- errors --------------------------------------------------------------------------------------------------- */

/* gRPC's codes, which are TensorFlow's: they go over the wire as they are. */
typedef enum trn_code {
    TRN_CODE_OK = 0,
    TRN_CANCELLED = 1,
    TRN_UNKNOWN = 2,
    TRN_INVALID_ARGUMENT = 3,
    TRN_DEADLINE_EXCEEDED = 4,
    TRN_NOT_FOUND = 5,
    TRN_ALREADY_EXISTS = 6,
    TRN_PERMISSION_DENIED = 7,
    TRN_RESOURCE_EXHAUSTED = 8,
    TRN_FAILED_PRECONDITION = 9,
    TRN_ABORTED = 10,
    TRN_OUT_OF_RANGE = 11,
    TRN_UNIMPLEMENTED = 12,
    TRN_INTERNAL = 13,
    TRN_UNAVAILABLE = 14,
    TRN_DATA_LOSS = 15,
    TRN_UNAUTHENTICATED = 16,
} trn_code;

/* An error is a value that somebody owns; NULL is success. Whoever receives one returns it, or frees it. */
typedef struct trn_error trn_error;
typedef trn_error *trn_err;
#define TRN_OK ((trn_err)0)

TRN_API trn_err trn_errorf(trn_code code, const char *fmt, ...) TRN_PRINTF(2, 3) TRN_MUST_USE
    __attribute__((returns_nonnull)); /* a new error; the message as by printf */
/* Puts `context` behind the message: "… | context". */
TRN_API trn_err trn_err_wrap(TRN_OWN trn_err err, const char *fmt, ...) TRN_PRINTF(2, 3) TRN_MUST_USE;
TRN_API trn_err trn_err_copy(const trn_error *err) TRN_MUST_USE;
TRN_API void trn_err_free(TRN_OWN trn_err err);
/* The first of two that happened one after the other, the second is freed: `err = trn_err_first(err, trn_monitored_close(m))`. */
TRN_API trn_err trn_err_first(TRN_OWN trn_err err, TRN_OWN trn_err later) TRN_MUST_USE;
TRN_API trn_code trn_err_code(const trn_error *err); /* NULL gives TRN_CODE_OK */
TRN_API const char *trn_err_msg(const trn_error *err);
TRN_API const char *trn_code_name(trn_code code); /* "InvalidArgument" */

#define TRN_TRY(expr)                                                                                                  \
    do {                                                                                                               \
        trn_err try_err_ = (expr);                                                                                     \
        if (__builtin_expect(try_err_ != TRN_OK, 0))                                                                   \
            return try_err_;                                                                                           \
    } while (0)

/* ---- dtypes --------------------------------------------------------------------------------------------------- */

/* TensorFlow's DataType numbers. A reference type is the base type + TRN_REF. */
typedef enum trn_dtype {
    TRN_INVALID = 0,
    TRN_FLOAT = 1,
    TRN_DOUBLE = 2,
    TRN_INT32 = 3,
    TRN_UINT8 = 4,
    TRN_INT16 = 5,
    TRN_INT8 = 6,
    TRN_STRING = 7,
    TRN_COMPLEX64 = 8,
    TRN_INT64 = 9,
    TRN_BOOL = 10,
    TRN_QINT8 = 11,
    TRN_QUINT8 = 12,
    TRN_QINT32 = 13,
    TRN_BFLOAT16 = 14,
    TRN_QINT16 = 15,
    TRN_QUINT16 = 16,
    TRN_UINT16 = 17,
    TRN_COMPLEX128 = 18,
    TRN_HALF = 19,
    TRN_RESOURCE = 20,
    TRN_VARIANT = 21,
    TRN_UINT32 = 22,
    TRN_UINT64 = 23,
    TRN_FLOAT8_E5M2 = 24,
    TRN_FLOAT8_E4M3FN = 25,
    TRN_INT4 = 29,
    TRN_UINT4 = 30,
    TRN_DTYPE_END = 31,
    TRN_REF = 100,
} trn_dtype;

TRN_API size_t trn_dtype_size(trn_dtype t);      /* bytes of one element in memory; 0 for an unknown dtype */
TRN_API const char *trn_dtype_name(trn_dtype t); /* "float", "int32_ref": TensorFlow's words */
TRN_API trn_dtype trn_dtype_parse(const char *name, size_t len); /* both "float" and "f32", TRN_INVALID if unknown */
static inline trn_dtype trn_dtype_base(trn_dtype t) { return t >= TRN_REF ? (trn_dtype)(t - TRN_REF) : t; }
static inline bool trn_dtype_is_ref(trn_dtype t) { return t >= TRN_REF; }
/* Elements are plain bytes that may be copied with memcpy (everything but string, resource, variant). */
TRN_API bool trn_dtype_is_plain(trn_dtype t);

/* ---- shapes --------------------------------------------------------------------------------------------------- */

#define TRN_MAX_RANK 32

/* rank -1: unknown; dim -1: unknown. A tensor's shape has neither. */
typedef struct trn_shape {
    int32_t rank;
    int64_t dim[TRN_MAX_RANK];
} trn_shape;

TRN_API trn_shape trn_shape_of(int rank, ...); /* the dims as int64_t */
TRN_API trn_shape trn_shape_scalar(void);
TRN_API trn_shape trn_shape_vector(int64_t n);
TRN_API trn_shape trn_shape_unknown(void);
TRN_API bool trn_shape_eq(const trn_shape *a, const trn_shape *b);
/* Every known dim of one fits the other's. */
TRN_API bool trn_shape_compatible(const trn_shape *a, const trn_shape *b);
TRN_API bool trn_shape_is_full(const trn_shape *s); /* rank and all dims known */
/* Number of elements; fails on unknown or negative dims and on more than 2^62 elements. */
TRN_API trn_err trn_shape_count(int64_t *out, const trn_shape *s) TRN_MUST_USE;
/* "[32,784]", "[?,10]", "<unknown>"; returns buf. */
#define TRN_SHAPE_TEXT 256
TRN_API const char *trn_shape_text(char buf[TRN_SHAPE_TEXT], const trn_shape *s);

/* ---- tensors -------------------------------------------------------------------------------------------------- */

/* A view of `count` elements in a reference-counted buffer. New tensors are writable by their only owner. */
typedef struct trn_tensor trn_tensor;

/* Uninitialised elements for plain dtypes; empty strings, NULL handles otherwise. */
TRN_API trn_err trn_tensor_new(trn_tensor **out, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
TRN_API trn_tensor *trn_tensor_ref(const trn_tensor *t);
TRN_API void trn_tensor_unref(TRN_OWN trn_tensor *t); /* NULL is fine */
TRN_API trn_dtype trn_tensor_dtype(const trn_tensor *t);
TRN_API const trn_shape *trn_tensor_shape(const trn_tensor *t);
TRN_API int64_t trn_tensor_count(const trn_tensor *t);
TRN_API size_t trn_tensor_bytes(const trn_tensor *t); /* in memory, without what strings point to */
TRN_API const void *trn_tensor_data(const trn_tensor *t);
TRN_API void *trn_tensor_data_mut(trn_tensor *t); /* only while this is the only reference */

/* Shorthands for constants and feeds. The data is copied (of strings: an array of const char *). NULL only when memory is
 * gone or dtype and dims make no tensor. */
TRN_API trn_tensor *trn_tensor_from(trn_dtype dtype, int rank, const int64_t *dims, const void *data);
TRN_API trn_tensor *trn_tensor_f32(float v);
TRN_API trn_tensor *trn_tensor_f64(double v);
TRN_API trn_tensor *trn_tensor_i32(int32_t v);
TRN_API trn_tensor *trn_tensor_i64(int64_t v);
TRN_API trn_tensor *trn_tensor_bool(bool v);
TRN_API trn_tensor *trn_tensor_str(const char *p, size_t n);
/* Element i of a string tensor: bytes, not zero-terminated; NULL when there is no such element. */
TRN_API const char *trn_tensor_str_at(const trn_tensor *t, int64_t i, size_t *len);
TRN_API trn_err trn_tensor_str_put(trn_tensor *t, int64_t i, const char *p, size_t n) TRN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
