/* Tensors, shapes and handles to and from TensorFlow's messages.
 *
 * Everything comes from a peer, so everything is checked: a tensor's bytes must be there in full, or be few values that
 * stand for many, of which at most TRN_PB_FILL_MAX bytes are made.
 */
#ifndef TRN_TENSOR_PB_H
#define TRN_TENSOR_PB_H

#include "proto/tensorflow.pb-c.h"
#include "tensor/tensor.h"

#define TRN_PB_FILL_MAX ((size_t)2 << 30)

/* All of TensorFlow's encodings: tensor_content; value lists; no values (zeros); fewer values than elements (the last one
 * repeats). More values than elements is an error, and so is a variant that holds a value (UNIMPLEMENTED). */
trn_err trn_tensor_from_pb(trn_tensor **out, const Tensorflow__TensorProto *pb) TRN_MUST_USE;
/* The same from the bytes of tensor_content: elements as they lie in memory; for strings, and handles and variants (as messages), all
 * lengths as varints, then all bytes. */
trn_err trn_tensor_from_content(trn_tensor **out, trn_dtype dtype, const trn_shape *shape, const void *p,
                                size_t n) TRN_MUST_USE;

/* Plain bytes are not copied: the message must not outlive the tensor. Strings go as string_val, handles as their values up to
 * the last one that differs from the one before it. NULL for variants. */
Tensorflow__TensorProto *trn_tensor_to_pb(trn_arena *a, const trn_tensor *t);
/* The same, but a large plain tensor that ends in one value over and over goes as the values up to there: what a peer sent
 * in a few bytes takes a few bytes again. For constants in graphs. */
Tensorflow__TensorProto *trn_tensor_to_pb_short(trn_arena *a, const trn_tensor *t);
/* Appends what tensor_content holds; UNIMPLEMENTED for variants that cannot be sent. */
trn_err trn_tensor_to_content(trn_sb *out, const trn_tensor *t) TRN_MUST_USE;

/* A missing message is a scalar. Unknown dims are fine here; more than TRN_MAX_RANK dims are UNIMPLEMENTED. */
/* What one element of a variant tensor holds; NULL for an empty one. UNIMPLEMENTED for types that we do not know. */
trn_err trn_variant_from_pb(trn_variant **out, const Tensorflow__VariantTensorDataProto *pb) TRN_MUST_USE;
/* What a message may still take: a few variants that hold each other may stand for more than any memory, written out. */
typedef struct trn_pb_room {
    int depth;
    int64_t values, bytes;
} trn_pb_room;
#define TRN_PB_ROOM ((trn_pb_room){.depth = 32, .values = 1 << 21, .bytes = INT64_C(2) << 30})
/* NULL: it cannot be sent. `room` is for all of a message. */
Tensorflow__VariantTensorDataProto *trn_variant_to_pb(trn_arena *a, const trn_variant *v, trn_pb_room *room);
Tensorflow__TensorProto *trn_tensor__to_pb(trn_arena *a, const trn_tensor *t, trn_pb_room *room);

trn_err trn_shape_from_pb(trn_shape *out, const Tensorflow__TensorShapeProto *pb) TRN_MUST_USE;
Tensorflow__TensorShapeProto *trn_shape_to_pb(trn_arena *a, const trn_shape *s);

trn_err trn_handle_from_pb(trn_handle **out, const Tensorflow__ResourceHandleProto *pb) TRN_MUST_USE;
/* Points into `h`; NULL makes the empty message. */
Tensorflow__ResourceHandleProto *trn_handle_to_pb(trn_arena *a, const trn_handle *h);

#endif
