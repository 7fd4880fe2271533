/* TF_CONFIG and cluster specs in JSON: the first byte says which. What is accepted must survive the way to a ClusterDef and back. */
#include <stdlib.h>

#include "cluster/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_log_set_level(TRN_LOG_OFF);
    trn_cluster *c = NULL, *d = NULL;
    const char *text = (const char *)data;
    bool bare = size > 0 && text[0] == ' ';
    trn_err err = bare ? trn_cluster_from_json(&c, text, size) : trn_cluster_from_tf_config(&c, text, size);
    if (err) {
        trn_err_free(err);
        return 0;
    }
    trn_sb def = {0};
    trn_cluster_to_def(&def, c);
    if ((err = trn_cluster_from_def(&d, def.p ? def.p : "", def.n)) || !trn_cluster_eq(c, d))
        abort();
    trn_sb_fini(&def);
    trn_cluster_unref(c);
    trn_cluster_unref(d);
    return 0;
}
