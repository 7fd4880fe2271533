/* A MetaGraphDef: imported with its variables, collections and saver, and written again. */
#include <trainera/save.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1 << 16)
        return 0;
    trn_builder *b = trn_builder_new();
    trn_saver *s = trn_meta_graph_import(b, data, size);
    void *out;
    size_t n;
    trn_err err = trn_meta_graph_export(&out, &n, b, s);
    if (!err) { /* what we write, we read */
        trn_builder *again = trn_builder_new();
        trn_meta_graph_import(again, out, n);
        trn_err_free(trn_builder_check(again));
        trn_builder_free(again);
        free(out);
    }
    trn_err_free(err);
    trn_builder_free(b);
    return 0;
}
