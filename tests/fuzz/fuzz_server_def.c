/* tensorflow.ServerDef, binary and text, as a file on the command line may hold it. */
#include "cluster/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_log_set_level(TRN_LOG_OFF);
    trn_server_def d;
    trn_err err = trn_server_def_read(&d, data, size);
    if (err)
        trn_err_free(err);
    else
        trn_server_def_fini(&d);
    return 0;
}
