/* Protocol buffers' text format to wire bytes: `cluster { job { name: "ps" … } }`, as in a ServerDef that somebody wrote by hand.
 *
 * Goes by protobuf-c's descriptors, so it reads every message of tensorflow.proto. It writes wire bytes, not structs, so that text and
 * binary take one way from here on. Fields that we do not declare, and extensions, are skipped: newer TensorFlow versions have more.
 * Fields that we declare as opaque `bytes` but that are messages in TensorFlow (gpu_options) are skipped too.
 *
 * Limits: nesting of 64 levels; the caller limits the text's size.
 */
#ifndef TRN_TEXTPROTO_H
#define TRN_TEXTPROTO_H

#include <protobuf-c/protobuf-c.h>

#include "base/base.h"

/* Adds to `out`. Errors name the line: "line 3: …". [any] */
trn_err trn_textproto_encode(trn_sb *out, const ProtobufCMessageDescriptor *type, const char *text,
                             size_t n) TRN_MUST_USE;
/* The other way: a message as text, two spaces per level, as TensorFlow writes graph.pbtxt. Fields at their default are left out; map entries come in the
 * message's order. Adds to `out`. [any] */
void trn_textproto_write(trn_sb *out, const ProtobufCMessage *m);

#endif
