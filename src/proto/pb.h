/* protobuf-c, made safe for a peer's bytes and cheap to free.
 *
 * protobuf-c allocates per field and recurses per nested message without a limit. So a message is unpacked into an arena (freed
 * as a whole), and only after a walk over the bytes by descriptor has shown that protobuf-c cannot be hurt by them: nesting at
 * most TRN_PB_MAX_DEPTH, every length inside its parent, every wire type the one the field has, no field that would be merged
 * over and over, and no tiny message that unpacks into gigabytes.
 */
#ifndef TRN_PROTO_PB_H
#define TRN_PROTO_PB_H

#include <protobuf-c/protobuf-c.h>

#include "base/base.h"

#define TRN_PB_MAX_DEPTH 64

/* The arena must outlive what is unpacked; free does nothing. */
ProtobufCAllocator trn_pb_allocator(trn_arena *a);

/* INVALID_ARGUMENT names message and field. The result lies in `a` and holds copies of the bytes. */
trn_err trn_pb_unpack(ProtobufCMessage **out, trn_arena *a, const ProtobufCMessageDescriptor *d, const uint8_t *p,
                      size_t n) TRN_MUST_USE;
/* The walk alone. */
trn_err trn_pb_check(const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n) TRN_MUST_USE;

/* TRN_PB_UNPACK(&msg, arena, tensorflow__graph_def__descriptor, p, n): checked, with the right type in `out`. */
#define TRN_PB_UNPACK(out, a, desc, p, n) trn_pb_unpack((ProtobufCMessage **)(void *)(out), (a), &(desc), (p), (n))

void trn_pb_pack(trn_sb *out, const ProtobufCMessage *m); /* appends */
uint8_t *trn_pb_pack_arena(trn_arena *a, size_t *n, const ProtobufCMessage *m);
trn_err trn_pb_pack_buf(trn_buf **out, const ProtobufCMessage *m) TRN_MUST_USE;

#endif
