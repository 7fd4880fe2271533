/* Tables: as such, and as version 1 checkpoints. */
#include "ckpt/sstable.h"
#include "ckpt/v1.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const uint8_t *data, size_t size)
{
    trn_infile f;
    trn_infile_on_memory(&f, "fuzz", data, size);
    trn_sst *t = NULL;
    trn_err err = trn_sst_open(&t, &f);
    trn_sb last = {0};
    trn_sst_entry e;
    bool found = true;
    for (int n = 0; !err && found && n < 500; n++) {
        err = trn_sst_next(&e, &found, t);
        if (err || !found)
            break;
        last.n = 0;
        trn_sb_add(&last, e.key, e.n_key);
        trn_sb_add(&last, e.val, TRN_MIN(e.n_val, 1)); /* touch it */
    }
    for (size_t n = 0; !err && n <= TRN_MIN(last.n, 4); n++) {
        err = trn_sst_seek(t, last.p ? last.p : "", n);
        if (!err)
            err = trn_sst_next(&e, &found, t);
    }
    trn_err_free(err);
    trn_sb_fini(&last);
    trn_sst_close(t);
    trn_infile_close(&f);
}

static void v1(const uint8_t *data, size_t size)
{
    trn_v1 *r;
    trn_err err = trn_v1_open_memory(&r, data, size);
    if (!err) {
        trn_dtype dtype;
        trn_shape shape;
        trn_tensor *t;
        err = trn_v1_find(&dtype, &shape, r, "x", 1);
        if (!err) {
            trn_slicespec all = trn_slicespec_full(shape.rank);
            err = trn_v1_read(&t, r, "x", 1, &all);
            if (!err)
                trn_tensor_unref(t);
        }
        trn_v1_close(r);
    }
    trn_err_free(err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_log_set_level(TRN_LOG_OFF);
    trn_faults_set("ckpt.crc"); /* checksums would hide everything behind them */
    walk(data, size);
    v1(data, size);
    return 0;
}
