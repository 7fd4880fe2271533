/* A bundle: u32 length of the index, the index, the bytes of every data file. Reads all that it lists, whole and in part. */
#include "ckpt/bundle.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct names {
    char **p;
    int n, cap;
} names;

static trn_err keep(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape)
{
    names *v = arg;
    (void)dtype;
    (void)shape;
    if (v->n < 50)
        TRN_PUSH(v->p, v->n, v->cap, trn_xstrndup(name, n));
    return TRN_OK;
}

static void read_one(trn_bundle *b, const char *name)
{
    trn_tensor *t;
    trn_dtype dtype;
    trn_shape shape;
    trn_err err = trn_bundle_read(&t, b, name, strlen(name));
    if (!err)
        trn_tensor_unref(t);
    trn_err_free(err);
    err = trn_bundle_find(&dtype, &shape, b, name, strlen(name));
    if (!err && shape.rank > 0 && shape.dim[0] > 1) {
        trn_slicespec s = trn_slicespec_full(shape.rank);
        s.start[0] = 1;
        s.length[0] = shape.dim[0] - 1;
        err = trn_bundle_read_slice(&t, b, name, strlen(name), &s);
        if (!err)
            trn_tensor_unref(t);
    }
    trn_err_free(err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_log_set_level(TRN_LOG_OFF);
    trn_faults_set("ckpt.crc"); /* checksums would hide everything behind them */
    uint32_t n;
    if (size < 4)
        return 0;
    memcpy(&n, data, 4);
    n = TRN_MIN(n, (uint32_t)(size - 4));
    trn_bundle *b;
    trn_err err = trn_bundle_open_memory(&b, data + 4, n, data + 4 + n, size - 4 - n);
    if (!err) {
        names v = {0};
        err = trn_bundle_each(b, keep, &v);
        for (int i = 0; i < v.n; i++) {
            read_one(b, v.p[i]);
            free(v.p[i]);
        }
        free(v.p);
        trn_bundle_close(b);
    }
    trn_err_free(err);
    /* The text form of a slice, from the same bytes. */
    trn_shape shape;
    trn_slicespec slice;
    trn_err_free(trn_slicespec_parse(&shape, &slice, (const char *)data, TRN_MIN(size, 100)));
    return 0;
}
