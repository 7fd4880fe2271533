/* ImmutableConst: a constant whose elements lie in a file. Read, not mapped: a file that others shorten must not end us. */
#include "ckpt/file.h"
#include "ops/kern.h"

static trn_err from_file(trn_tensor **out, trn_kctx *k, trn_infile *f, trn_dtype t, const trn_shape *s)
{
    if (t == TRN_STRING)
        return trn_errorf(TRN_UNIMPLEMENTED, "strings in a file are not supported");
    int64_t count;
    TRN_TRY(trn_count_checked(&count, s));
    size_t size = trn_dtype_size(t);
    if ((uint64_t)count > f->size / size) /* before there is memory for it */
        return trn_errorf(TRN_INTERNAL, "%s has %llu bytes; the constant has %lld elements of %zu", f->path, (unsigned long long)f->size, (long long)count, size);
    TRN_TRY(trn_out_new(out, k, 0, t, s));
    TRN_TRY(trn_infile_read(f, 0, (*out)->data, trn_tensor_bytes(*out)));
    for (int64_t i = 0; i < count && t == TRN_BOOL; i++)
        TRN_DATA_MUT(*out, uint8_t)[i] = TRN_DATA(*out, uint8_t)[i] != 0;
    return TRN_OK;
}

static trn_err immutable_const(trn_kctx *k)
{
    const char *path = trn_attr_str(k->node, "memory_region_name");
    trn_dtype t = trn_attr_type(k->node, "dtype");
    const trn_shape *s = trn_attr_shape(k->node, "shape");
    TRN_CHECK_ARG(t != TRN_RESOURCE && t != TRN_VARIANT, "a file holds no handles and variants");
    TRN_CHECK_ARG(trn_shape_is_full(s), "shape must be fully known");
    TRN_TRY(trn_k_check_path(k, path));
    trn_infile f;
    trn_tensor *y;
    TRN_TRY(trn_infile_open(&f, path));
    trn_err err = from_file(&y, k, &f, t, s);
    trn_infile_close(&f);
    return err;
}

const trn_op trn_ops_immutable_const[] = {
    {"ImmutableConst", " -> tensor:dtype; dtype:any, shape:shape, memory_region_name:string", trn_sh_attr, immutable_const, TRN_OP_DISK | TRN_OP_BACK},
    {0},
};
