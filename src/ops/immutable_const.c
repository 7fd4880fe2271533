/* ImmutableConst: a constant whose elements lie in a file. Read, not mapped: a file that others shorten must not end us. */
#include <errno.h>
#include <stdio.h>

#include "ops/kern.h"

static trn_err immutable_const(trn_kctx *k)
{
    const char *path = trn_attr_str(k->node, "memory_region_name");
    trn_dtype t = trn_attr_type(k->node, "dtype");
    const trn_shape *s = trn_attr_shape(k->node, "shape");
    int64_t count;
    TRN_CHECK_ARG(t != TRN_RESOURCE && t != TRN_VARIANT, "a file holds no handles and variants");
    TRN_CHECK_ARG(trn_shape_is_full(s), "shape must be fully known");
    TRN_TRY(trn_count_checked(&count, s));
    TRN_TRY(trn_k_check_path(k, path));
    FILE *f = fopen(trn_local_path(path), "rbe");
    if (!f)
        return trn_err_errno(errno, "%s", path);
    trn_tensor *y = NULL;
    trn_err err = t == TRN_STRING ? trn_errorf(TRN_UNIMPLEMENTED, "strings in a file are not supported") : trn_out_new(&y, k, 0, t, s);
    size_t want = err ? 0 : trn_tensor_bytes(y), got = err ? 0 : fread(y->data, 1, want, f);
    if (got < want)
        err = ferror(f) ? trn_err_errno(errno, "%s", path) : trn_errorf(TRN_INTERNAL, "%s has %zu bytes; the constant has %zu", path, got, want);
    for (size_t i = 0; i < want && t == TRN_BOOL; i++)
        TRN_DATA_MUT(y, uint8_t)[i] = TRN_DATA(y, uint8_t)[i] != 0;
    fclose(f);
    return err;
}

const trn_op trn_ops_immutable_const[] = {
    {"ImmutableConst", " -> tensor:dtype; dtype:any, shape:shape, memory_region_name:string", trn_sh_attr, immutable_const, TRN_OP_DISK | TRN_OP_BACK},
    {0},
};
