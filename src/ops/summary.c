/* Summaries: protocol buffers in scalar string tensors, for event files. Field numbers are those of Summary in tensorflow.proto. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ckpt/media.h"
#include "ops/kern.h"
#include "ops/summary.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_IMAGE = 4, VALUE_HISTO = 5, VALUE_AUDIO = 6, VALUE_NODE = 7, VALUE_TENSOR = 8, VALUE_METADATA = 9 };

/* The scalar output; frees the bytes. */
static trn_err put_summary(trn_kctx *k, trn_sb *s)
{
    trn_tensor *y;
    trn_shape sh = trn_shape_scalar();
    trn_err e = s->n > TRN_SUMMARY_MAX ? trn_errorf(TRN_INVALID_ARGUMENT, "the summary has more than 2 GiB") : trn_out_new(&y, k, 0, TRN_STRING, &sh);
    if (!e)
        e = trn_tensor_str_put(y, 0, s->p, s->n);
    trn_sb_fini(s);
    return e;
}

static void add_tag(trn_sb *s, uint32_t field, const trn_str *tag)
{
    if (tag->len)
        trn_pbw_bytes(s, field, trn_str_p(tag), tag->len);
}

static double as_double(const trn_tensor *t, int64_t i)
{
    float f;
    switch (t->dtype) {
    case TRN_FLOAT: return TRN_DATA(t, float)[i];
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    case TRN_HALF:
    case TRN_BFLOAT16: trn_widen(&f, TRN_DATA(t, uint16_t) + i, t->dtype, 1); return f;
    case TRN_UINT64: return (double)TRN_DATA(t, uint64_t)[i];
    case TRN_BOOL: return TRN_DATA(t, bool)[i];
    default: return (double)trn_int_at(t, i);
    }
}

/* To float at once: by way of double an integer would be rounded twice. */
static float as_float(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_INT64: return (float)TRN_DATA(t, int64_t)[i];
    case TRN_UINT64: return (float)TRN_DATA(t, uint64_t)[i];
    default: return (float)as_double(t, i);
    }
}

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

void trn_summary__scalar(trn_sb *out, const trn_str *tag, const trn_tensor *x, int64_t i)
{
    trn_pbw_head(out, SUMMARY_VALUE, (tag->len ? trn_pbw_bytes_size(VALUE_TAG, tag->len) : 0) + 5);
    add_tag(out, VALUE_TAG, tag);
    trn_pbw_fixed32(out, VALUE_SIMPLE, float_bits(as_float(x, i)));
    trn_scalar_note(trn_str_p(tag), tag->len, as_double(x, i)); /* for the status page */
}

/* Whether a SummaryMetadata names the plugin "scalars" (plugin_data.plugin_name). */
static bool is_scalar(const trn_str *meta)
{
    trn_pbr r = trn_pbr_init(trn_str_p(meta), meta->len);
    while (trn_pbr_next(&r)) {
        trn_pbr p = trn_pbr_init(r.b, r.field == 1 && r.type == TRN_PB_BYTES ? r.n : 0);
        while (trn_pbr_next(&p))
            if (p.field == 1 && p.type == TRN_PB_BYTES && p.n == 7 && memcmp(p.b, "scalars", 7) == 0)
                return true;
    }
    return false;
}

void trn_summary__note(const trn_str *tag, const trn_tensor *x, const trn_str *meta)
{
    if (x->count == 1 && (x->dtype == TRN_FLOAT || x->dtype == TRN_DOUBLE) && is_scalar(meta))
        trn_scalar_note(trn_str_p(tag), tag->len, as_double(x, 0));
}

static trn_err scalar_summary(trn_kctx *k)
{
    const trn_tensor *tags = trn_in(k, 0), *x = trn_in(k, 1);
    char a[TRN_SHAPE_TEXT], b[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_shape_eq(&tags->shape, &x->shape), "tags and values are not the same shape: %s and %s", trn_shape_text(a, &tags->shape),
                  trn_shape_text(b, &x->shape));
    trn_sb s = {0};
    for (int64_t i = 0; i < x->count; i++)
        trn_summary__scalar(&s, &TRN_DATA(tags, trn_str)[i], x, i);
    return put_summary(k, &s);
}

/* ---- histograms ----------------------------------------------------------------------------------------------------- */

trn_err trn_summary__histogram(trn_sb *out, const trn_str *tag, const trn_tensor *x, const char *who)
{
    trn_histo histo;
    trn_histo_init(&histo);
    for (int64_t i = 0; i < x->count; i++) {
        double d = as_double(x, i);
        TRN_CHECK_ARG(!isnan(d), "Nan in summary histogram for: %s", who);
        TRN_CHECK_ARG(!isinf(d), "Infinity in summary histogram for: %s", who);
        trn_histo_add(&histo, d);
    }
    trn_sb h = {0}, v = {0};
    trn_histo_put(&h, &histo);
    add_tag(&v, VALUE_TAG, tag);
    trn_pbw_bytes(&v, VALUE_HISTO, h.p, h.n);
    trn_pbw_bytes(out, SUMMARY_VALUE, v.p, v.n);
    trn_sb_fini(&h);
    trn_sb_fini(&v);
    return TRN_OK;
}

static trn_err histogram_summary(trn_kctx *k)
{
    const trn_tensor *tag = trn_in(k, 0);
    TRN_CHECK_ARG(trn_is_scalar(tag), "tags must be scalar");
    trn_sb s = {0};
    TRN_TRY(trn_summary__histogram(&s, TRN_DATA(tag, trn_str), trn_in(k, 1), k->node->name));
    return put_summary(k, &s);
}

/* ---- merging -------------------------------------------------------------------------------------------------------- */

/* Appends the values of one summary; `tags` has those that were seen. */
static trn_err merge_one(trn_sb *out, trn_map *tags, const trn_str *in)
{
    trn_err bad = trn_pb_check(&tensorflow__summary__descriptor, (const uint8_t *)trn_str_p(in), in->len);
    if (bad)
        return trn_err_wrap(bad, "Could not parse one of the summary inputs");
    trn_pbr r = trn_pbr_init(trn_str_p(in), in->len);
    while (trn_pbr_next(&r)) {
        if (r.field != SUMMARY_VALUE || r.type != TRN_PB_BYTES)
            continue;
        trn_pbr v = trn_pbr_init(r.b, r.n);
        const uint8_t *tag = NULL;
        size_t n = 0;
        while (trn_pbr_next(&v))
            if (v.field == VALUE_TAG && v.type == TRN_PB_BYTES)
                tag = v.b, n = v.n;
        /* TensorSummary leaves the tag empty: those are no duplicates. */
        TRN_CHECK_ARG(!n || !trn_map_put(tags, tag, n, tags), "Duplicate tag %.*s found in summary inputs", (int)TRN_MIN(n, 1000), (const char *)tag);
        trn_pbw_bytes(out, SUMMARY_VALUE, r.b, r.n);
    }
    return TRN_OK;
}

static trn_err merge_summary(trn_kctx *k)
{
    trn_sb s = {0};
    trn_map *tags = trn_map_new();
    trn_err e = TRN_OK;
    for (int i = 0; i < k->n_in && !e; i++) {
        const trn_tensor *x = trn_in(k, i);
        for (int64_t j = 0; j < x->count && !e; j++)
            e = merge_one(&s, tags, &TRN_DATA(x, trn_str)[j]);
    }
    trn_map_free(tags, NULL);
    if (e) {
        trn_sb_fini(&s);
        return e;
    }
    return put_summary(k, &s);
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

/* Straight into the output: a tensor may be large. `head`: the fields before the tensor, `tail` those behind it; frees both. */
static trn_err put_tensor(trn_kctx *k, const trn_tensor *x, trn_sb *head, trn_sb *tail)
{
    trn_arena *a = trn_arena_new();
    trn_err e = TRN_OK;
    Tensorflow__TensorProto *pb = trn_tensor_to_pb(a, x);
    if (!pb) {
        e = trn_errorf(TRN_UNIMPLEMENTED, "a summary of a %s tensor", trn_dtype_name(x->dtype));
        goto end;
    }
    size_t n = protobuf_c_message_get_packed_size(&pb->base);
    size_t value = head->n + trn_pbw_bytes_size(VALUE_TENSOR, n) + tail->n, total = trn_pbw_bytes_size(SUMMARY_VALUE, value);
    if (total > TRN_SUMMARY_MAX) {
        e = trn_errorf(TRN_INVALID_ARGUMENT, "the summary has more than 2 GiB");
        goto end;
    }
    trn_tensor *y;
    trn_shape sh = trn_shape_scalar();
    char *p;
    if ((e = trn_out_new(&y, k, 0, TRN_STRING, &sh)) || (e = trn_str_alloc(&p, TRN_DATA_MUT(y, trn_str), total)))
        goto end;
    trn_sb s = {0};
    trn_pbw_head(&s, SUMMARY_VALUE, value);
    trn_sb_add(&s, head->p, head->n);
    trn_pbw_head(&s, VALUE_TENSOR, n);
    memcpy(p, s.p, s.n);
    protobuf_c_message_pack(&pb->base, (uint8_t *)p + s.n);
    if (tail->n)
        memcpy(p + s.n + n, tail->p, tail->n);
    trn_sb_fini(&s);
end:
    trn_sb_fini(head);
    trn_sb_fini(tail);
    trn_arena_free(a);
    return e;
}

static trn_err tensor_summary(trn_kctx *k)
{
    trn_sb head = {0}, tail = {0};
    trn_pbw_str(&head, VALUE_NODE, k->node->name);
    return put_tensor(k, trn_in(k, 0), &head, &tail);
}

static trn_err tensor_summary_v2(trn_kctx *k)
{
    const trn_tensor *tag = trn_in(k, 0), *meta = trn_in(k, 2);
    TRN_CHECK_ARG(trn_is_scalar(tag), "tag must be scalar");
    TRN_CHECK_ARG(trn_is_scalar(meta), "serialized_summary_metadata must be scalar");
    const trn_str *m = TRN_DATA(meta, trn_str);
    trn_err bad = trn_pb_check(&tensorflow__summary_metadata__descriptor, (const uint8_t *)trn_str_p(m), m->len);
    if (bad)
        return trn_err_wrap(bad, "serialized_summary_metadata");
    trn_sb head = {0}, tail = {0};
    add_tag(&head, VALUE_TAG, TRN_DATA(tag, trn_str));
    trn_pbw_bytes(&tail, VALUE_METADATA, trn_str_p(m), m->len);
    return put_tensor(k, trn_in(k, 1), &head, &tail);
}

const trn_op trn_ops_summary[] = {
    {"ScalarSummary", "tags:str, values:T -> summary:str; T:real", trn_sh_scalar, scalar_summary, 0},
    {"HistogramSummary", "tag:str, values:T -> summary:str; T:real=f32", trn_sh_scalar, histogram_summary, 0},
    {"MergeSummary", "inputs:N*str -> summary:str; N:int>=1", trn_sh_scalar, merge_summary, 0},
    {"TensorSummary", "tensor:T -> summary:str; T:any, description:string=\"\", labels:list(string)=[], display_name:string=\"\"", trn_sh_scalar,
     tensor_summary, 0},
    {"TensorSummaryV2", "tag:str, tensor:T, serialized_summary_metadata:str -> summary:str; T:any", trn_sh_scalar, tensor_summary_v2, 0},
    {0},
};
