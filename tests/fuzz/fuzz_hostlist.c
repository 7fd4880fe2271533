/* Slurm's compressed lists: what is accepted is bounded and made of names; the first byte says which list. */
#include <stdlib.h>

#include "cluster/slurm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 4096)
        return 0;
    char *text = trn_xstrndup((const char *)data + 1, size - 1);
    trn_err err = TRN_OK;
    int n = 0;
    if (data[0] == 'c') {
        int *counts = NULL;
        if (!(err = trn_slurm_counts(&counts, &n, text))) {
            if (n < 1 || n > TRN_SLURM_MAX)
                abort();
            free(counts);
        }
    } else {
        char **hosts = NULL;
        if (!(err = trn_slurm_hostlist(&hosts, &n, text))) {
            if (n < 1 || n > TRN_SLURM_MAX)
                abort();
            for (int i = 0; i < n; i++)
                if (!hosts[i][0] || strpbrk(hosts[i], "[],"))
                    abort();
            trn_slurm_hostlist_free(hosts, n);
        }
    }
    trn_err_free(err);
    free(text);
    return 0;
}
