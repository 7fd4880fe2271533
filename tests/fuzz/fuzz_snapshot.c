/* Compressed bytes, saved datasets and their metadata, compressed elements that peers send. The first byte says what the others are. */
#include <stdlib.h>

#include "ckpt/snappy.h"
#include "ckpt/snapshot.h"
#include "op/kctx.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What comes out of bytes is whatever it is; what we compress comes out again. */
static void snappy(const uint8_t *p, size_t n)
{
    size_t size;
    trn_err err = trn_snappy_size(&size, p, n);
    if (!err) {
        uint8_t *out = malloc(size + 1);
        err = trn_snappy_uncompress(out, size, p, n);
        free(out);
    }
    trn_err_free(err);
    trn_sb s = {0};
    trn_snappy_compress(&s, p, n);
    if ((err = trn_snappy_size(&size, s.p, s.n)) || size != n)
        abort();
    uint8_t *back = malloc(n + 1);
    if ((err = trn_snappy_uncompress(back, n, s.p, s.n)) || (n && memcmp(back, p, n) != 0))
        abort();
    free(back);
    trn_sb_fini(&s);
}

static void file(const uint8_t *p, size_t n, trn_compression c, int64_t version)
{
    static const trn_dtype types[] = {TRN_INT64, TRN_STRING, TRN_VARIANT};
    trn_snapshot_file *f;
    trn_tensor *t[3];
    trn_cut got = TRN_CUT_MORE;
    if (trn_snapshot_file_on_memory(&f, p, n, c, version, types, 3))
        abort();
    trn_err err = TRN_OK;
    for (int i = 0; !err && got != TRN_CUT_END && i < 1000; i++) {
        err = trn_snapshot_file_next(&got, f, t);
        if (!err && got == TRN_CUT_MORE)
            err = trn_snapshot_file_fill(f);
        for (int k = 0; !err && got == TRN_CUT_GOT && k < 3; k++)
            trn_tensor_unref(t[k]);
    }
    trn_err_free(err);
    trn_snapshot_file_close(f);
}

static void meta(const uint8_t *p, size_t n)
{
    trn_snapshot_meta m;
    trn_err err = trn_snapshot_meta_parse(&m, p, n);
    if (err)
        trn_err_free(err);
    else
        trn_snapshot_meta_fini(&m);
}

/* As a variant that came over the wire, through the kernel. */
static void element(const uint8_t *p, size_t n)
{
    trn_sb v = {0};
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *x;
    uint8_t len[TRN_PB_VARINT_MAX];
    trn_sb list = {0};
    trn_pbw_str(&v, 1, "tensorflow.data.CompressedElement");
    trn_pbw_bytes(&v, 2, p, n);
    trn_sb_add(&list, len, trn_pbw_varint_to(len, v.n));
    trn_sb_add(&list, v.p, v.n);
    if (trn_tensor_from_content(&x, TRN_VARIANT, &scalar, list.p, list.n))
        abort();
    trn_sb_fini(&list);
    trn_sb_fini(&v);
    trn_attr_val types[] = {{.type = TRN_INT64}, {.type = TRN_STRING}, {.type = TRN_VARIANT}}, shapes[3];
    trn_shape any = trn_shape_unknown();
    for (int i = 0; i < 3; i++)
        shapes[i].shape = &any;
    const trn_attr attrs[] = {{.name = "output_types", .kind = TRN_ATTR_TYPE, .is_list = true, .n = 3, .list = types},
                              {.name = "output_shapes", .kind = TRN_ATTR_SHAPE, .is_list = true, .n = 3, .list = shapes}};
    trn_arena *a = trn_arena_new();
    trn_node node = {.name = "fuzz", .op = "UncompressElement", .device = "", .def = trn_op_find("UncompressElement"), .n_attrs = 2, .attrs = trn_arena_dup(a, attrs, sizeof attrs)};
    if (trn_node_resolve(&node, a))
        abort();
    trn_value io[4] = {{.t = x}};
    trn_step step = {.cancel = trn_cancel_new()};
    trn_kctx k = {.node = &node, .in = io, .out = io + 1, .n_in = 1, .n_out = 3, .step = &step};
    trn_err err = node.def->row->kernel(&k);
    for (int i = 1; i < 4; i++)
        if (!err && (!io[i].t || io[i].t->dtype != node.out_types[i - 1]))
            abort();
    trn_err_free(err);
    for (int i = 0; i < 4; i++)
        trn_tensor_unref(io[i].t);
    trn_cancel_unref(step.cancel);
    trn_arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 20)
        return 0;
    static bool once;
    if (!once) {
        trn_log_set_level(TRN_LOG_OFF);
        trn_faults_set("ckpt.crc");
        once = true;
    }
    const uint8_t *p = data + 1;
    size_t n = size - 1;
    switch (data[0] % 8) {
    case 0:
        snappy(p, n);
        break;
    case 1:
        meta(p, n);
        break;
    case 2:
        element(p, n);
        break;
    case 3:
        file(p, n, TRN_PLAIN, 2);
        break;
    case 4:
        file(p, n, TRN_SNAPPY, 2);
        break;
    case 5:
        file(p, n, TRN_PLAIN, 1);
        break;
    case 6:
        file(p, n, TRN_SNAPPY, 1);
        break;
    default:
        file(p, n, TRN_SNAPPY, 0);
    }
    return 0;
}
