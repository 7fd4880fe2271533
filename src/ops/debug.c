/* What tfdbg, TensorFlow's debugger, puts into graphs (graph/watch.c): copies of watched tensors, and ops that look at a copy and dump what they see.
 * A variable that is not initialised yet may be watched like any other: its copy is a tensor that says so. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "ckpt/dump.h"
#include "op/cancel.h"
#include "op/registry.h"
#include "ops/kern.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

/* ---- nothing ----------------------------------------------------------------------------------------------------------------- */

/* The bytes of all tensors that stand for an uninitialised one: [0], on this buffer. */
static trn_buf *nothing(void)
{
    static _Atomic(trn_buf *) shared;
    trn_buf *b = atomic_load(&shared), *none = NULL;
    if (b)
        return b;
    trn_err err = trn_buf_new(&b, 1);
    if (err) {
        trn_err_free(err);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&shared, &none, b))
        return b;
    trn_buf_unref(b);
    return none;
}

static bool is_nothing(const trn_tensor *t) { return !t || (t->count == 0 && t->buf && t->buf == nothing()); }

/* What a debug op tells of it. */
static trn_shape shape_of_nothing(const trn_kctx *k)
{
    const trn_attr *a = trn_node_attr(k->node, TRN_WATCHED_SHAPE);
    return a && a->kind == TRN_ATTR_SHAPE && !a->is_list && trn_shape_is_full(a->v.shape) ? *a->v.shape : trn_shape_vector(0);
}

static trn_err out_nothing(trn_kctx *k)
{
    trn_shape none = trn_shape_vector(0);
    trn_tensor *t;
    TRN_TRY(trn_out_new(&t, k, 0, k->node->out_types[0], &none));
    trn_buf *b = nothing(), *old = t->buf;
    if (!b)
        return trn_err_oom();
    t->buf = trn_buf_ref(b);
    if (old) { /* strings have one even when there are none */
        t->data = b->data;
        trn_buf_unref(old);
    }
    return TRN_OK;
}

/* A tensor does not change while somebody holds it, so holding it is a copy. */
static trn_err pass_on(trn_kctx *k)
{
    if (is_nothing(trn_in(k, 0)))
        return out_nothing(k);
    trn_out_set(k, 0, trn_tensor_ref(trn_in(k, 0)));
    return TRN_OK;
}

static trn_err copy(trn_kctx *k)
{
    const trn_attr *spec = trn_node_attr(k->node, "debug_ops_spec");
    for (int i = 0; spec && i < spec->n; i++) {
        int parts = 1;
        for (const char *p = spec->list[i].s.p; *p; p++)
            parts += *p == ';';
        if (parts != 3)
            return trn_errorf(TRN_INTERNAL, "debug_ops_spec: %s is not of the form op;url;gated", spec->list[i].s.p);
    }
    return pass_on(k);
}

/* ---- dumping ----------------------------------------------------------------------------------------------------------------- */

typedef struct watch {
    trn_dump_name name;
    char *node;
    const trn_attr *urls;
} watch;

static void watch_fini(watch *w) { free(w->node); }

static trn_err watch_init(watch *w, const trn_kctx *k)
{
    const char *tensor = trn_attr_str(k->node, "tensor_name"), *colon = strchr(tensor, ':');
    TRN_CHECK_ARG(*tensor && !(colon && strchr(colon + 1, ':')), "\"%s\" is not the name of a tensor, as in node:0", tensor);
    char *end = NULL;
    long slot = colon ? strtol(colon + 1, &end, 10) : 0;
    TRN_CHECK_ARG(!colon || (colon[1] && !*end && slot >= INT32_MIN && slot <= INT32_MAX), "\"%s\" is not the number of an output", colon + 1);
    *w = (watch){.node = colon ? trn_xstrndup(tensor, (size_t)(colon - tensor)) : trn_xstrdup(tensor), .urls = trn_node_attr(k->node, "debug_urls")};
    w->name = (trn_dump_name){w->node, k->node->op, trn_attr_str(k->node, "device_name"), (int)slot};
    return TRN_OK;
}

/* The debugger at a grpc:// URL says what it wants to see, and it has asked for nothing. */
static bool gated_off(const trn_kctx *k, const watch *w)
{
    if (!trn_attr_bool(k->node, "gated_grpc"))
        return false;
    for (int i = 0; i < w->urls->n; i++)
        if (!trn_dump_is_grpc(w->urls->list[i].s.p))
            return false;
    return true;
}

static trn_err out_gated(trn_kctx *k)
{
    trn_shape none = trn_shape_vector(0);
    trn_tensor *t;
    return trn_out_new(&t, k, 0, k->node->out_types[0], &none);
}

/* As TensorFlow has handles and variants in tensor_content: readers take what has none for uninitialised. */
static void variants(trn_sb *out, const Tensorflow__TensorProto *pb)
{
    trn_sb all = {0};
    for (size_t i = 0; i < pb->n_variant_val; i++) {
        size_t before = all.n;
        trn_pb_pack(&all, &pb->variant_val[i]->base);
        trn_pbw_raw_varint(out, all.n - before);
    }
    trn_sb_add(out, all.p, all.n);
    trn_sb_fini(&all);
}

/* dtype and shape alone for what is not there, and for variants that have no form as bytes. */
static trn_err tensor_bytes(trn_sb *out, const trn_kctx *k, const trn_tensor *t, trn_dtype dtype)
{
    trn_arena *a = trn_arena_new();
    trn_shape none = shape_of_nothing(k);
    trn_sb content = {0};
    trn_err err = TRN_OK;
    Tensorflow__TensorProto *pb = NULL, bare = TENSORFLOW__TENSOR_PROTO__INIT;
    bare.dtype = (Tensorflow__DataType)dtype;
    bare.tensor_shape = trn_shape_to_pb(a, is_nothing(t) ? &none : &t->shape);
    if (!is_nothing(t) && dtype == TRN_RESOURCE)
        err = trn_tensor_to_content(&content, t);
    else if (!is_nothing(t))
        pb = trn_tensor_to_pb(a, t);
    if (pb && dtype == TRN_VARIANT)
        variants(&content, pb);
    if (!pb || dtype == TRN_VARIANT) {
        bare.tensor_content = (ProtobufCBinaryData){content.n, (uint8_t *)content.p};
        pb = &bare;
    }
    if (!err)
        trn_pb_pack(out, &pb->base);
    trn_sb_fini(&content);
    trn_arena_free(a);
    return err;
}

/* Where in ROOT: by the node's name, or (DebugIdentityV3) by the node of which it is an input or output. */
static char *base_path(const trn_kctx *k, const watch *w, const char *root)
{
    const char *of = trn_attr_str(k->node, "io_of_node");
    trn_sb s = {0};
    trn_sb_adds(&s, root);
    if (*of) {
        trn_sb_addf(&s, "/node-io-dump/step-%" PRId64 "/", trn_k_step_id(k));
        for (; *of; of++)
            trn_sb_add(&s, *of == '/' ? "-" : of, 1);
        trn_sb_addf(&s, ":%s:%" PRId64, trn_attr_bool(k->node, "is_input") ? "in" : "out", trn_attr_int(k->node, "io_index"));
    } else {
        trn_dump_add_device(&s, w->name.device);
        trn_sb_addf(&s, "/%s_%d_%s", w->name.node, w->name.slot, w->name.op);
    }
    char *path = trn_xstrndup(s.p, s.n);
    trn_sb_fini(&s);
    return path;
}

static trn_err dump_to(trn_kctx *k, const watch *w, const char *root, const trn_tensor *t, const trn_sb *bytes)
{
    uint64_t now = trn_dump_now(); /* each file's own: if many URLs lead to one folder, none has to try the names of all before it */
    uint64_t size = is_nothing(t) ? 0 : trn_tensor_total_bytes(t);
    char *path = base_path(k, w, root);
    trn_err err = trn_k_check_path(k, path);
    if (!err && !trn_dump_take(size)) {
        free(path);
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "tfdbg may write no more than %" PRIu64 " bytes to this task's disk (TFDBG_DISK_BYTES_LIMIT in its environment), and %s:%d has %" PRIu64 " more",
                          trn_dump_limit(), w->name.node, w->name.slot, size);
    }
    if (!err) {
        trn_sb head = {0};
        trn_dump_tensor_head(&head, now, &w->name, bytes->n);
        err = trn_dump_write(path, now, &head, bytes);
        trn_sb_fini(&head);
    }
    free(path);
    if (!err || trn_err_code(err) == TRN_PERMISSION_DENIED)
        return err;
    trn_err why = trn_errorf(TRN_INTERNAL, "dumping %s:%d:%s: %s", w->name.node, w->name.slot, w->name.op, trn_err_msg(err)); /* TensorFlow's code for it */
    trn_err_free(err);
    return why;
}

/* t: NULL when it is not there. */
static trn_err publish(trn_kctx *k, const watch *w, const trn_tensor *t, trn_dtype dtype)
{
    trn_sb bytes = {0};
    trn_err err = TRN_OK;
    if (w->urls->n)
        err = tensor_bytes(&bytes, k, t, dtype);
    for (int i = 0; !err && i < w->urls->n; i++) {
        trn_cancel *cancel = trn_k_cancel(k);
        if (i && cancel && (err = trn_cancel_why(cancel))) /* the list may be long */
            break;
        const char *url = w->urls->list[i].s.p, *root = trn_dump_root(url);
        if (root)
            err = dump_to(k, w, root, t, &bytes);
        else if (trn_dump_is_grpc(url))
            err = trn_errorf(TRN_UNIMPLEMENTED, "watch %s:%d:%s goes to %s: Trainera dumps to file:// URLs only", w->name.node, w->name.slot, w->name.op, url);
        else
            err = trn_errorf(TRN_UNAVAILABLE, "%s is no URL that a debugger could have", url);
    }
    trn_sb_fini(&bytes);
    return err;
}

typedef trn_err (*look_fn)(trn_kctx *k, const watch *w);

static trn_err looked(trn_kctx *k, look_fn look)
{
    watch w;
    TRN_TRY(watch_init(&w, k));
    trn_err err = gated_off(k, &w) ? out_gated(k) : look(k, &w);
    watch_fini(&w);
    return err;
}

static trn_err look_whole(trn_kctx *k, const watch *w)
{
    TRN_TRY(publish(k, w, trn_in(k, 0), k->node->out_types[0]));
    return pass_on(k);
}

static trn_err identity(trn_kctx *k) { return looked(k, look_whole); }

/* ---- numbers ----------------------------------------------------------------------------------------------------------------- */

static double at(const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_FLOAT: return TRN_DATA(t, float)[i];
    case TRN_DOUBLE: return TRN_DATA(t, double)[i];
    case TRN_HALF: return trn_half_to_f32(TRN_DATA(t, trn_half)[i]);
    case TRN_BFLOAT16: return trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]);
    case TRN_INT8: return TRN_DATA(t, int8_t)[i];
    case TRN_INT16: return TRN_DATA(t, int16_t)[i];
    case TRN_INT32: return TRN_DATA(t, int32_t)[i];
    case TRN_INT64: return (double)TRN_DATA(t, int64_t)[i];
    case TRN_UINT8: return TRN_DATA(t, uint8_t)[i];
    case TRN_UINT16: return TRN_DATA(t, uint16_t)[i];
    case TRN_UINT32: return TRN_DATA(t, uint32_t)[i];
    case TRN_UINT64: return (double)TRN_DATA(t, uint64_t)[i];
    case TRN_BOOL: return TRN_DATA(t, bool)[i];
    default: return 0; /* the rows let none through */
    }
}

typedef struct counts {
    int64_t nan, neg_inf, neg, zero, pos, pos_inf;
} counts;

/* What lies on or beyond a finite bound counts as infinite. */
static void count(counts *c, double x, double lower, double upper)
{
    if (isnan(x))
        c->nan++;
    else if (x == -INFINITY || (isfinite(lower) && x <= lower))
        c->neg_inf++;
    else if (x == INFINITY || (isfinite(upper) && x >= upper))
        c->pos_inf++;
    else if (x < 0)
        c->neg++;
    else if (x > 0)
        c->pos++;
    else
        c->zero++;
}

static trn_err look_nan_count(trn_kctx *k, const watch *w)
{
    const trn_tensor *x = trn_in(k, 0);
    trn_shape one = trn_shape_vector(1);
    trn_tensor *y;
    int64_t n = 0;
    for (int64_t i = 0; !is_nothing(x) && i < x->count; i++)
        n += isnan(at(x, i)) != 0;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_INT64, &one));
    TRN_DATA_MUT(y, int64_t)[0] = n;
    return publish(k, w, y, TRN_INT64);
}

static trn_err nan_count(trn_kctx *k) { return looked(k, look_nan_count); }

enum { SUMMARY_HEAD = 14 };

/* Behind the counts: smallest, largest, mean and variance of the finite ones. */
static void moments(double *out, const trn_tensor *x)
{
    double min = INFINITY, max = -INFINITY, sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < x->count; i++) {
        double v = at(x, i);
        if (!isfinite(v))
            continue;
        min = v < min ? v : min;
        max = v > max ? v : max;
        sum += v;
        n++;
    }
    double mean = n ? sum / (double)n : NAN;
    for (int64_t i = 0; n && i < x->count; i++) {
        double v = at(x, i);
        if (isfinite(v))
            squares += (v - mean) * (v - mean);
    }
    out[0] = min;
    out[1] = max;
    out[2] = mean;
    out[3] = n ? squares / (double)n : NAN;
}

static trn_err look_summary(trn_kctx *k, const watch *w)
{
    const trn_tensor *x = trn_in(k, 0);
    const bool there = !is_nothing(x);
    const double lower = trn_attr_float(k->node, "lower_bound"), upper = trn_attr_float(k->node, "upper_bound");
    counts c = {0};
    for (int64_t i = 0; there && i < x->count; i++)
        count(&c, at(x, i), lower, upper);
    const trn_shape none = shape_of_nothing(k), *s = there ? &x->shape : &none;
    trn_shape shape = trn_shape_vector(SUMMARY_HEAD + s->rank);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, TRN_DOUBLE, &shape));
    const double head[] = {there, there ? (double)x->count : 0, (double)c.nan, (double)c.neg_inf, (double)c.neg, (double)c.zero, (double)c.pos, (double)c.pos_inf, INFINITY, -INFINITY, NAN, NAN,
                           trn_dtype_base(k->node->in_types[0]), s->rank};
    double *out = TRN_DATA_MUT(y, double);
    memcpy(out, head, sizeof head);
    if (there)
        moments(out + 8, x);
    for (int i = 0; i < s->rank; i++)
        out[SUMMARY_HEAD + i] = (double)s->dim[i];
    bool healthy = !c.nan && !c.neg_inf && !c.pos_inf;
    return healthy && trn_attr_bool(k->node, "mute_if_healthy") ? TRN_OK : publish(k, w, y, TRN_DOUBLE);
}

static trn_err summary(trn_kctx *k) { return looked(k, look_summary); }

/* ---- the second tfdbg's summaries: no dump, a few numbers for the graph to go on with ------------------------------------------ */

enum { CURT = 2, CONCISE = 3, FULL = 4, SHAPE = 5, THREE_SLOTS = 8 };

static int shape_slots(double *v, const trn_tensor *x)
{
    enum { DIMS = 6 };
    int n = 0;
    for (int i = TRN_MAX(0, x->shape.rank - DIMS); i < x->shape.rank; i++)
        v[n++] = (double)x->shape.dim[i];
    while (n < DIMS)
        v[n++] = 0;
    return n;
}

static trn_err summary_v2(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 0);
    const int64_t mode = trn_attr_int(k->node, "tensor_debug_mode"), id = trn_attr_int(k->node, "tensor_id");
    const trn_dtype type = k->node->out_types[0];
    const int digits = type == TRN_FLOAT ? 24 : 53;
    TRN_CHECK_ARG(mode == THREE_SLOTS || id <= INT64_C(1) << digits, "tensor_id %" PRId64 " is more than 2^%d, which %s cannot hold", id, digits, trn_dtype_name(type));
    counts c = {0};
    for (int64_t i = 0; mode != SHAPE && i < x->count; i++)
        count(&c, at(x, i), -INFINITY, INFINITY);
    double v[16];
    int n = 0;
    switch (mode) {
    case CURT:
        v[n++] = (double)id;
        v[n++] = c.nan || c.neg_inf || c.pos_inf;
        break;
    case CONCISE:
    case FULL:
        v[n++] = (double)id;
        if (mode == FULL) {
            v[n++] = -1; /* the device, which TensorFlow does not number either */
            v[n++] = x->dtype;
            v[n++] = x->shape.rank;
        }
        v[n++] = (double)x->count;
        v[n++] = (double)c.neg_inf;
        v[n++] = (double)c.pos_inf;
        v[n++] = (double)c.nan;
        if (mode == FULL) {
            v[n++] = (double)c.neg;
            v[n++] = (double)c.zero;
            v[n++] = (double)c.pos;
        }
        break;
    case SHAPE:
        v[n++] = (double)id;
        v[n++] = x->dtype;
        v[n++] = x->shape.rank;
        v[n++] = (double)x->count;
        n += shape_slots(v + n, x);
        break;
    case THREE_SLOTS:
        v[n++] = c.neg_inf ? -INFINITY : 0;
        v[n++] = c.pos_inf ? INFINITY : 0;
        v[n++] = c.nan ? NAN : 0;
        break;
    default: return trn_errorf(TRN_UNIMPLEMENTED, "tensor_debug_mode %" PRId64 " makes no summary", mode);
    }
    trn_shape shape = trn_shape_vector(n);
    trn_tensor *y;
    TRN_TRY(trn_out_new(&y, k, 0, type, &shape));
    for (int i = 0; i < n; i++) {
        if (type == TRN_FLOAT)
            TRN_DATA_MUT(y, float)[i] = (float)v[i];
        else
            TRN_DATA_MUT(y, double)[i] = v[i];
    }
    return TRN_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------- */

static trn_err sh_identity(trn_shctx *s) { return trn_attr_bool(s->node, "gated_grpc") ? trn_sh_unknown(s) : trn_sh_same(s); }

static trn_err sh_nan_count(trn_shctx *s)
{
    if (!trn_attr_bool(s->node, "gated_grpc"))
        s->out[0] = trn_shape_vector(1);
    return TRN_OK;
}

#define COPY "input:T -> output:T; T:any, tensor_name:string=\"\", debug_ops_spec:list(string)=[]"
#define WATCHED "device_name:string=\"\", tensor_name:string=\"\", "
#define TARGETS "debug_urls:list(string)=[], "
#define GATE "gated_grpc:bool=false"
enum { COPIES = TRN_OP_UNINIT_VALUE, DUMPS = TRN_OP_UNINIT_VALUE | TRN_OP_DISK };

const trn_op trn_ops_debug[] = {
    {"Copy", COPY, trn_sh_same, copy, COPIES},
    {"CopyHost", COPY, trn_sh_same, copy, COPIES},
    {"DebugIdentity", "input:T -> output:T; T:any, " WATCHED TARGETS GATE, sh_identity, identity, DUMPS},
    {"DebugIdentityV3", "input:T -> output:T; T:any, " WATCHED "io_of_node:string=\"\", is_input:bool=false, io_index:int=-1, " TARGETS GATE, sh_identity, identity,
     DUMPS | TRN_OP_STATEFUL},
    {"DebugNanCount", "input:T -> output:i64; T:real, " WATCHED TARGETS GATE, sh_nan_count, nan_count, DUMPS},
    {"DebugNumericSummary", "input:T -> output:f64; T:int|bool|f32|f64, " WATCHED TARGETS "lower_bound:float=-inf, upper_bound:float=inf, mute_if_healthy:bool=false, " GATE,
     trn_sh_unknown, summary, DUMPS},
    {"DebugNumericSummaryV2", "input:T -> output:output_dtype; output_dtype:f32|f64=f32, T:real|bool, tensor_debug_mode:int=-1, tensor_id:int=-1", trn_sh_unknown, summary_v2, 0},
    {0},
};
