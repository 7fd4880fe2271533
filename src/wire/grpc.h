/* gRPC's small grammars: timeouts, percent-encoded status messages, TensorFlow's status payload. Pure functions. */
#ifndef TRN_GRPC_H
#define TRN_GRPC_H

#include "base/base.h"

#define TRN_GRPC_TIMEOUT_TEXT 16
/* "10100m": at most 8 digits and a unit, never shorter than asked. */
size_t trn_grpc_timeout_text(char buf[TRN_GRPC_TIMEOUT_TEXT], uint64_t ns);
bool trn_grpc_timeout_parse(uint64_t *ns, const char *p, size_t n);

/* Encodes at most `max` bytes of output, cut between characters; a cut text ends with "...". */
size_t trn_grpc_message_encode(char *out, size_t max, const char *text);
char *trn_grpc_message_decode(const char *p, size_t n); /* malloc'ed; broken escapes stay as they are */

/* grpc-status-details-bin: an error's marks (TRN_MARK_…) in TensorFlow's GrpcPayloadContainer, and the way back. Length of the text; 0: no marks. */
#define TRN_GRPC_DETAILS_TEXT 192
size_t trn_grpc_details_text(char out[TRN_GRPC_DETAILS_TEXT], unsigned marks);
unsigned trn_grpc_details_marks(const char *p, size_t n);

trn_code trn_grpc_code_from_http(int status);
trn_code trn_grpc_code_from_h2(uint32_t error_code);

#endif
