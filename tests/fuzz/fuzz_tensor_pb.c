/* tensorflow.TensorProto into a tensor and back: what was read must be written so that it reads the same. */
#include "proto/pb.h"
#include "tensor/tensor_pb.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(const trn_tensor *a, const trn_tensor *b)
{
    trn_sb x = {0}, y = {0};
    bool eq = a->dtype == b->dtype && trn_shape_eq(&a->shape, &b->shape);
    if (eq && a->dtype != TRN_VARIANT) {
        trn_err e = trn_tensor_to_content(&x, a), f = trn_tensor_to_content(&y, b);
        eq = !e && !f && x.n == y.n && (x.n == 0 || memcmp(x.p, y.p, x.n) == 0);
        trn_err_free(e);
        trn_err_free(f);
    }
    trn_sb_fini(&x);
    trn_sb_fini(&y);
    return eq;
}

/* Some bytes may rightly stand for 2 GiB of zeros; that would only slow the search. */
static bool too_large(const Tensorflow__TensorProto *pb)
{
    trn_shape s;
    int64_t n = 0;
    trn_err e = trn_shape_from_pb(&s, pb->tensor_shape);
    if (!e)
        e = trn_shape_count(&n, &s);
    trn_err_free(e);
    /* strings and handles are made one by one */
    return !e && n > (trn_dtype_is_plain((trn_dtype)pb->dtype) ? 1 << 20 : 1 << 17) && n < (int64_t)1 << 32 && pb->tensor_content.len == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trn_arena *a = trn_arena_new();
    Tensorflow__TensorProto *pb = NULL, *again;
    trn_tensor *t = NULL, *u = NULL;
    trn_err e = TRN_PB_UNPACK(&pb, a, tensorflow__tensor_proto__descriptor, data, size);
    if (!e && too_large(pb))
        goto done;
    if (!e)
        e = trn_tensor_from_pb(&t, pb);
    if (!e && t->dtype != TRN_VARIANT) {
        size_t n;
        uint8_t *p = trn_pb_pack_arena(a, &n, &trn_tensor_to_pb(a, t)->base);
        e = TRN_PB_UNPACK(&again, a, tensorflow__tensor_proto__descriptor, p, n);
        if (!e)
            e = trn_tensor_from_pb(&u, again);
        if (e || !same(t, u))
            abort();
    }
    if (t) {
        trn_sb text = {0};
        trn_tensor_text(&text, t, 10);
        trn_sb_fini(&text);
    }
done:
    trn_err_free(e);
    trn_tensor_unref(t);
    trn_tensor_unref(u);
    trn_arena_free(a);
    return 0;
}
