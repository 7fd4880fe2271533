/* The text format reader alone, over the types with the most kinds of fields: what it writes must be wire bytes that unpack. */
#include <stdlib.h>

#include "proto/tensorflow.pb-c.h"
#include "proto/textproto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &tensorflow__server_def__descriptor, &tensorflow__graph_def__descriptor, &tensorflow__run_metadata__descriptor};
    for (size_t i = 0; i < TRN_COUNTOF(types); i++) {
        trn_sb out = {0};
        trn_err err = trn_textproto_encode(&out, types[i], (const char *)data, size);
        if (err) {
            trn_err_free(err);
        } else {
            ProtobufCMessage *m =
                protobuf_c_message_unpack(types[i], NULL, out.n, (const uint8_t *)(out.p ? out.p : ""));
            if (!m)
                abort();
            protobuf_c_message_free_unpacked(m, NULL);
        }
        trn_sb_fini(&out);
    }
    return 0;
}
