/* Tensors: dtype + shape + a view on bytes. The public half is <trainera/types.h>.
 *
 * A small plain tensor's elements lie in the same allocation as its head (one malloc); all others lie in a trn_buf: plain
 * ones from the pool, which is also what sockets receive into. Reshape and Identity share the buffer (small: copy).
 * A tensor is immutable once anybody else can see it; a kernel may write in place exactly when trn_tensor_sole() holds.
 *
 * String elements are trn_str; resource elements are `trn_handle *`, variant elements `trn_variant *` (both counted, NULL allowed).
 */
#ifndef TRN_TENSOR_H
#define TRN_TENSOR_H

#include "base/base.h"

#define TRN_TENSOR_INLINE 256 /* bytes that fit behind the head */

struct trn_tensor {
    _Atomic uint32_t ref;
    trn_dtype dtype; /* never a reference type */
    int64_t count;
    void *data;
    trn_buf *buf; /* NULL: elements lie behind this head */
    trn_shape shape;
};

/* Up to 12 bytes inside, longer ones on the heap. Bytes, not text. */
typedef struct trn_str {
    uint32_t len;
    union {
        char in[12];
        struct __attribute__((packed)) {
            uint32_t pad;
            char *p;
        };
    };
} trn_str;
static inline const char *trn_str_p(const trn_str *s) { return s->len <= sizeof s->in ? s->in : s->p; }
trn_err trn_str_set(trn_str *s, const char *p, size_t n) TRN_MUST_USE; /* replaces; fails over 4 GiB - 1 or without memory */
trn_err trn_str_alloc(char **out, trn_str *s, size_t n) TRN_MUST_USE;  /* n bytes to be filled by the caller */
void trn_str_fini(trn_str *s);
static inline bool trn_str_eq(const trn_str *a, const trn_str *b)
{
    return a->len == b->len && memcmp(trn_str_p(a), trn_str_p(b), a->len) == 0;
}

/* What a resource tensor's element says: where the thing lives and what it is called. Immutable, counted. */
typedef struct trn_handle {
    _Atomic uint32_t ref;
    char *device, *container, *name, *type_name;
    uint64_t hash_code;
    int n_dtypes; /* dtype and shape of a variable's value, when known */
    trn_dtype *dtypes;
    trn_shape *shapes;
    void *res; /* counted resource for anonymous ones, NULL when it is found by container and name */
    void (*res_unref)(void *);
} trn_handle;
trn_handle *trn_handle_new(const char *device, const char *container, const char *name, const char *type_name);
trn_handle *trn_handle_ref(trn_handle *h);
void trn_handle_unref(trn_handle *h);

/* Anything that travels in a variant: lists, datasets, optionals. The object starts with this head. */
typedef struct trn_variant trn_variant;
typedef struct trn_variant_type {
    const char *name; /* TensorFlow's type name, e.g. "tensorflow::TensorList" */
    void (*free)(void *obj);
    /* For AddN, ZerosLike and Conj; NULL: there is no such thing. Both arguments are of this type. */
    trn_err (*add)(trn_variant **out, const trn_variant *a, const trn_variant *b);
    trn_err (*zeros_like)(trn_variant **out, const trn_variant *v);
    trn_err (*conj)(trn_variant **out, const trn_variant *v);
    /* For the wire; NULL: it stays where it is. `pack` gives bytes of its own and an array (the caller frees it) of tensors that stay the variant's. */
    trn_err (*pack)(trn_sb *meta, trn_tensor ***t, int *n, const trn_variant *v);
    trn_err (*unpack)(trn_variant **out, const void *meta, size_t n, trn_tensor *const *t, int n_t);
} trn_variant_type;
struct trn_variant {
    _Atomic uint32_t ref;
    const trn_variant_type *type;
};
trn_variant *trn_variant_ref(trn_variant *v);
void trn_variant_type_add(const trn_variant_type *t); /* a type that can be unpacked; before main, by constructors */
void trn_variant_unref(trn_variant *v);
/* fn(obj), which may let go of more of its kind and so come here again: from the hundredth on the rest waits until the first ones have returned. Chains of variants
 * and of handles with their resources are as long as a graph makes them, stacks are not. */
void trn_free_flat(void (*fn)(void *obj), void *obj);

/* dtype and bytes of another tensor (or a piece of it) under another shape; shares the buffer, and copies only what lies
 * behind a head. The shape's elements, starting at element `first` of `t`, must lie inside it. */
trn_err trn_tensor_view(trn_tensor **out, const trn_tensor *t, int64_t first, const trn_shape *shape) TRN_MUST_USE;
/* A tensor on bytes inside `buf` (counted by the tensor). Plain dtypes only; copies when `p` is not aligned for the
 * dtype or the bytes fit behind the head. */
trn_err trn_tensor_on_buf(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, trn_buf *buf, const void *p) TRN_MUST_USE;
/* Same bits under another dtype of the same element size is the caller's business (Bitcast): view with this. */
trn_err trn_tensor_bitcast(trn_tensor **out, const trn_tensor *t, trn_dtype dtype, const trn_shape *shape) TRN_MUST_USE;
trn_err trn_tensor_copy(trn_tensor **out, const trn_tensor *t) TRN_MUST_USE; /* deep for strings, shares handles */
/* Nobody else sees the head or the bytes. */
static inline bool trn_tensor_sole(const trn_tensor *t)
{
    return atomic_load_explicit(&((trn_tensor *)t)->ref, memory_order_acquire) == 1 && (!t->buf || trn_buf_sole(t->buf));
}
/* Copies elements [src_at, src_at+n) of src over [dst_at, …) of dst, whatever the dtype (same on both). */
trn_err trn_tensor_copy_elems(trn_tensor *dst, int64_t dst_at, const trn_tensor *src, int64_t src_at, int64_t n) TRN_MUST_USE;
size_t trn_tensor_total_bytes(const trn_tensor *t); /* with what strings point to */
/* "float[2,3] 1 2 3 ..." for messages; at most `max` elements. */
void trn_tensor_text(trn_sb *out, const trn_tensor *t, int max);

#define TRN_DATA(t, T) ((const T *)(t)->data)
#define TRN_DATA_MUT(t, T) ((T *)(t)->data)

/* Unaligned-safe half and bfloat16 arithmetic goes through float. */
typedef struct trn_half { uint16_t bits; } trn_half;
typedef struct trn_bf16 { uint16_t bits; } trn_bf16;
float trn_half_to_f32(trn_half h);
trn_half trn_half_from_f32(float f); /* round to nearest even */
float trn_bf16_to_f32(trn_bf16 h);
trn_bf16 trn_bf16_from_f32(float f);

#endif
