/* Summary writers (tf.summary.create_file_writer): event files that steps write themselves.
 *
 * An event is encoded by the kernel, framed as a record and kept until there are max_queue of them, flush_millis have passed or they are large; then whoever
 * came last writes them all. So the file has them in the order in which they came. All of this happens on the disk threads. */
#include "ops/resop.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/record.h"
#include "ops/kern.h"
#include "ops/summary.h"
#include "proto/pb.h"
#include "proto/pbw.h"
#include "tensor/tensor_pb.h"

#define HANDLE "tensorflow::SummaryWriterInterface"
#define KEEP_BYTES ((size_t)16 << 20) /* however long the queue may be */

/* Field numbers of Event and Summary.Value in tensorflow.proto. */
enum { EV_TIME = 1, EV_STEP = 2, EV_VERSION = 3, EV_GRAPH = 4, EV_SUMMARY = 5, EV_SOURCE = 10 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_TENSOR = 8, VALUE_METADATA = 9 };

typedef struct writer {
    trn_resource base;
    char *path;
    int fd;
    int64_t max_queue, flush_us; /* < 0: no such limit */
    trn_mutex mu;
    trn_sb kept; /* framed records */
    int64_t n;   /* of them */
    uint64_t last_us;
} writer;

static trn_err flush_locked(writer *w)
{
    size_t at = 0;
    trn_err err = TRN_OK;
    while (at < w->kept.n && !err) {
        ssize_t k = TRN_FAULT("summary.write") ? (errno = ENOSPC, -1) : write(w->fd, w->kept.p + at, TRN_MIN(w->kept.n - at, (size_t)1 << 30));
        if (k >= 0)
            at += (size_t)k;
        else if (errno != EINTR)
            err = trn_err_errno(errno, "writing %s", w->path);
    }
    w->kept.n = 0; /* what cannot be written is lost: trying again and again would only fill the memory */
    w->n = 0;
    if (w->kept.cap > 1 << 20)
        trn_sb_fini(&w->kept);
    w->last_us = trn_wall_us();
    return err;
}

static trn_err flush(writer *w)
{
    trn_lock(&w->mu);
    trn_err err = flush_locked(w);
    trn_unlock(&w->mu);
    return err;
}

/* The bytes of an Event; frees them. */
static trn_err add(writer *w, TRN_OWN trn_sb *ev)
{
    trn_err err = TRN_OK;
    if (ev->n > TRN_SUMMARY_MAX) {
        err = TRN_BAD("%s: an event of %zu bytes is too large", w->path, ev->n);
        trn_sb_fini(ev);
        return err;
    }
    uint8_t head[TRN_RECORD_HEAD], tail[TRN_RECORD_TAIL];
    trn_record_head(head, ev->n);
    trn_record_tail(tail, ev->p ? ev->p : "", ev->n);
    trn_lock(&w->mu);
    trn_sb_add(&w->kept, head, sizeof head);
    trn_sb_add(&w->kept, ev->p, ev->n);
    trn_sb_add(&w->kept, tail, sizeof tail);
    w->n++;
    if ((w->max_queue >= 0 && w->n > w->max_queue) || (w->flush_us >= 0 && trn_wall_us() - w->last_us > (uint64_t)w->flush_us) || w->kept.n > KEEP_BYTES)
        err = flush_locked(w);
    trn_unlock(&w->mu);
    trn_sb_fini(ev);
    return err;
}

static void begin(trn_sb *ev, int64_t step)
{
    double now = (double)trn_wall_us() / 1e6;
    uint64_t bits;
    memcpy(&bits, &now, sizeof bits);
    trn_pbw_fixed64(ev, EV_TIME, bits);
    trn_pbw_varint(ev, EV_STEP, (uint64_t)step);
}

/* ---- the resource ------------------------------------------------------------------------------------------------------------- */

static void writer_close(trn_resource *r) { trn_err_free(flush((writer *)r)); }

static void writer_free(trn_resource *r)
{
    writer *w = (writer *)r;
    if (w->fd >= 0) {
        writer_close(r);
        close(w->fd);
    }
    trn_sb_fini(&w->kept);
    trn_mutex_fini(&w->mu);
    free(w->path);
    free(w);
}

static size_t writer_bytes(trn_resource *r)
{
    writer *w = (writer *)r;
    trn_lock(&w->mu);
    size_t n = w->kept.cap;
    trn_unlock(&w->mu);
    return n;
}

static const trn_restype writer_type = {.name = "SummaryWriter", .handle = HANDLE, .free = writer_free, .bytes = writer_bytes, .close = writer_close};

/* Readers ask the first event for its version. */
static trn_err add_version(writer *w)
{
    trn_sb ev = {0};
    begin(&ev, 0);
    trn_pbw_str(&ev, EV_VERSION, "brain.Event:2");
    TRN_TRY(add(w, &ev));
    return flush(w);
}

static trn_err open_writer(writer **out, const char *dir, const char *suffix, int64_t max_queue, int64_t flush_millis)
{
    static _Atomic int number;
    struct stat st;
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return trn_errorf(TRN_FAILED_PRECONDITION, "%s: Not a directory", dir);
    TRN_TRY(trn_path_mkdirs(dir));
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    writer *w = trn_xalloc(sizeof *w);
    trn_resource_init(&w->base, &writer_type);
    trn_mutex_init(&w->mu, TRN_RANK_RES);
    w->max_queue = max_queue;
    w->flush_us = flush_millis * 1000;
    w->path = trn_xasprintf("%s/events.out.tfevents.%010" PRIu64 ".%s.%d.%d%s%s", dir, trn_wall_us() / 1000000, host, (int)getpid(), atomic_fetch_add(&number, 1),
                            *suffix == '.' ? "" : ".", suffix);
    w->fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    trn_err err = w->fd < 0 ? trn_err_errno(errno, "%s", w->path) : add_version(w);
    if (err)
        trn_resource_unref(w);
    else
        *out = w;
    return err;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------ */

#define STR(t) TRN_DATA(t, trn_str)

static trn_err handle(trn_kctx *k) { return trn_k_handle(k, HANDLE); }

static trn_err scalar(const trn_kctx *k, int i, const char *name)
{
    char t[TRN_SHAPE_TEXT];
    TRN_CHECK_ARG(trn_in(k, i)->shape.rank == 0, "%s must be scalar, got shape %s", name, trn_shape_text(t, &trn_in(k, i)->shape));
    return TRN_OK;
}

/* A scalar string as a path or part of one; the caller frees it. */
static trn_err text(char **out, const trn_kctx *k, int i, const char *name)
{
    TRN_TRY(scalar(k, i, name));
    const trn_str *s = STR(trn_in(k, i));
    TRN_CHECK_ARG(s->len < PATH_MAX && !memchr(trn_str_p(s), 0, s->len), "%s is no path", name);
    *out = trn_xstrndup(trn_str_p(s), s->len);
    return TRN_OK;
}

static trn_err create_in(trn_kctx *k, const char *dir, const char *suffix)
{
    TRN_TRY(trn_k_check_path(k, dir));
    TRN_TRY(trn_check_scheme(dir));
    TRN_CHECK_ARG(!strchr(suffix, '/'), "filename_suffix %s has a slash", suffix);
    writer *w;
    trn_err err = trn_k_resource(&w, k, 0, &writer_type);
    if (trn_err_code(err) != TRN_NOT_FOUND) { /* one that is there stays */
        if (!err)
            trn_resource_unref(w);
        return err;
    }
    trn_err_free(err);
    TRN_TRY(open_writer(&w, trn_local_path(dir), suffix, *TRN_DATA(trn_in(k, 2), int32_t), *TRN_DATA(trn_in(k, 3), int32_t)));
    const trn_handle *h = TRN_DATA(trn_in(k, 0), trn_handle *)[0];
    char *path = trn_xstrdup(w->path);
    err = trn_resmgr_put(trn_k_resmgr(k), h->container, h->name, &w->base);
    if (trn_err_code(err) == TRN_ALREADY_EXISTS) { /* another step was quicker */
        unlink(path);
        trn_err_free(err);
        err = TRN_OK;
    }
    free(path);
    return err;
}

static trn_err create(trn_kctx *k)
{
    char *dir, *suffix;
    TRN_TRY(scalar(k, 2, "max_queue"));
    TRN_TRY(scalar(k, 3, "flush_millis"));
    TRN_TRY(text(&dir, k, 1, "logdir"));
    trn_err err = text(&suffix, k, 4, "filename_suffix");
    if (!err) {
        err = create_in(k, dir, suffix);
        free(suffix);
    }
    free(dir);
    return err;
}

static trn_err flush_writer(trn_kctx *k)
{
    writer *w;
    TRN_TRY(trn_k_resource(&w, k, 0, &writer_type));
    trn_err err = flush(w);
    trn_resource_unref(w);
    return err;
}

static trn_err close_writer(trn_kctx *k)
{
    writer *w;
    TRN_TRY(trn_k_resource(&w, k, 0, &writer_type));
    trn_err err = flush(w);
    trn_resource_unref(w);
    trn_err gone = trn_resmgr_del_handle(trn_k_resmgr(k), TRN_DATA(trn_in(k, 0), trn_handle *)[0]);
    if (err)
        trn_err_free(gone);
    return err ? err : gone;
}

/* An event with one field of bytes, or (0) none. Frees the body, also when there is an error already. */
static trn_err write_event(trn_kctx *k, uint32_t field, TRN_OWN trn_sb *body, TRN_OWN trn_err err)
{
    writer *w = NULL;
    if (!err)
        err = trn_k_resource(&w, k, 0, &writer_type);
    if (!err) {
        trn_sb ev = {0};
        begin(&ev, *TRN_DATA(trn_in(k, 1), int64_t));
        if (field)
            trn_pbw_bytes(&ev, field, body->p, body->n);
        err = add(w, &ev);
        trn_resource_unref(w);
    }
    trn_sb_fini(body);
    return err;
}

static trn_err step_and_tag(const trn_kctx *k, int tag)
{
    TRN_TRY(scalar(k, 1, "step"));
    return scalar(k, tag, "tag");
}

static trn_err write_tensor(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 2);
    const trn_str *tag = STR(trn_in(k, 3)), *meta = STR(trn_in(k, 4));
    TRN_TRY(step_and_tag(k, 3));
    TRN_TRY(scalar(k, 4, "summary_metadata"));
    TRN_CHECK_ARG(trn_tensor_bytes(x) < TRN_SUMMARY_MAX, "the summary has more than 2 GiB");
    trn_arena *a = trn_arena_new();
    trn_sb body = {0}, v = {0};
    Tensorflow__TensorProto *pb = trn_tensor_to_pb(a, x);
    trn_err err = pb ? TRN_OK : trn_errorf(TRN_UNIMPLEMENTED, "a summary of a %s tensor", trn_dtype_name(x->dtype));
    if (!err) {
        size_t n = protobuf_c_message_get_packed_size(&pb->base);
        uint8_t *bytes = malloc(n + 1);
        if (bytes) {
            protobuf_c_message_pack(&pb->base, bytes);
            trn_pbw_bytes(&v, VALUE_TAG, trn_str_p(tag), tag->len);
            trn_pbw_bytes(&v, VALUE_TENSOR, bytes, n);
            trn_err bad = trn_pb_check(&tensorflow__summary_metadata__descriptor, (const uint8_t *)trn_str_p(meta), meta->len);
            if (meta->len && !bad) { /* TensorFlow overlooks what is no metadata */
                trn_pbw_bytes(&v, VALUE_METADATA, trn_str_p(meta), meta->len);
                trn_summary__note(tag, x, meta);
            }
            trn_err_free(bad);
            trn_pbw_bytes(&body, SUMMARY_VALUE, v.p, v.n);
        } else {
            err = trn_err_oom();
        }
        free(bytes);
    }
    trn_sb_fini(&v);
    trn_arena_free(a);
    return write_event(k, EV_SUMMARY, &body, err);
}

static trn_err write_scalar(trn_kctx *k)
{
    TRN_TRY(step_and_tag(k, 2));
    TRN_CHECK_ARG(trn_in(k, 3)->count, "value is empty");
    trn_sb body = {0};
    trn_summary__scalar(&body, STR(trn_in(k, 2)), trn_in(k, 3), 0);
    return write_event(k, EV_SUMMARY, &body, TRN_OK);
}

static trn_err write_histogram(trn_kctx *k)
{
    char *tag;
    TRN_TRY(step_and_tag(k, 2));
    const trn_str *s = STR(trn_in(k, 2));
    tag = trn_xstrndup(trn_str_p(s), TRN_MIN(s->len, (size_t)1000));
    trn_sb body = {0};
    trn_err err = trn_summary__histogram(&body, s, trn_in(k, 3), tag);
    free(tag);
    return write_event(k, EV_SUMMARY, &body, err);
}

static trn_err write_image(trn_kctx *k)
{
    TRN_TRY(step_and_tag(k, 2));
    int64_t max = trn_attr_int(k->node, "max_images");
    TRN_CHECK_ARG(max < INT64_C(1) << 31, "max_images must be < 2^31");
    TRN_CHECK_ARG(trn_in(k, 4)->shape.rank == 1, "bad_color must be a vector");
    trn_sb body = {0};
    trn_err err = trn_summary__image(&body, STR(trn_in(k, 2)), trn_in(k, 3), max, trn_in(k, 4));
    return write_event(k, EV_SUMMARY, &body, err);
}

static trn_err write_audio(trn_kctx *k)
{
    TRN_TRY(step_and_tag(k, 2));
    TRN_TRY(scalar(k, 4, "sample_rate"));
    trn_sb body = {0};
    trn_err err = trn_summary__audio(&body, STR(trn_in(k, 2)), trn_in(k, 3), trn_attr_int(k->node, "max_outputs"), *TRN_DATA(trn_in(k, 4), float));
    return write_event(k, EV_SUMMARY, &body, err);
}

static trn_err checked(const ProtobufCMessageDescriptor *d, const trn_str *s, const char *what)
{
    trn_err bad = trn_pb_check(d, (const uint8_t *)trn_str_p(s), s->len);
    if (!bad)
        return TRN_OK;
    trn_err err = trn_errorf(TRN_DATA_LOSS, "Bad %s binary proto tensor string: %s", what, trn_err_msg(bad));
    trn_err_free(bad);
    return err;
}

static trn_err write_raw(trn_kctx *k)
{
    const trn_tensor *x = trn_in(k, 2);
    TRN_TRY(scalar(k, 1, "step"));
    for (int64_t i = 0; i < x->count; i++)
        TRN_TRY(checked(&tensorflow__summary__descriptor, STR(x) + i, "tf.compat.v1.Summary"));
    trn_sb body = {0};
    for (int64_t i = 0; i < x->count && body.n <= TRN_SUMMARY_MAX; i++)
        trn_sb_add(&body, trn_str_p(STR(x) + i), STR(x)[i].len); /* a Summary is a list of values: they follow each other */
    return write_event(k, x->count ? EV_SUMMARY : 0, &body, TRN_OK);
}

static trn_err write_graph(trn_kctx *k)
{
    TRN_TRY(scalar(k, 1, "step"));
    TRN_TRY(scalar(k, 2, "tensor"));
    const trn_str *s = STR(trn_in(k, 2));
    TRN_TRY(checked(&tensorflow__graph_def__descriptor, s, "tf.GraphDef"));
    trn_sb body = {0};
    trn_sb_add(&body, trn_str_p(s), s->len);
    return write_event(k, EV_GRAPH, &body, TRN_OK);
}

static trn_err import_event(trn_kctx *k)
{
    TRN_TRY(scalar(k, 1, "event"));
    const trn_str *s = STR(trn_in(k, 1));
    TRN_TRY(checked(&tensorflow__event__descriptor, s, "tf.Event"));
    writer *w;
    TRN_TRY(trn_k_resource(&w, k, 0, &writer_type));
    trn_sb ev = {0};
    trn_sb_add(&ev, trn_str_p(s), s->len);
    trn_err err = add(w, &ev);
    trn_resource_unref(w);
    return err;
}

#define DISK (TRN_OP_DISK | TRN_OP_STATEFUL)
#define TO "writer:res, step:i64, "

const trn_op trn_ops_summary_writer[] = {
    {"SummaryWriter", " -> writer:res; shared_name:string=\"\", container:string=\"\"", trn_sh_scalar, handle, TRN_OP_CHEAP | TRN_OP_STATEFUL},
    {"CreateSummaryFileWriter", "writer:res, logdir:str, max_queue:i32, flush_millis:i32, filename_suffix:str -> ", trn_sh_none, create, DISK},
    {"FlushSummaryWriter", "writer:res -> ", trn_sh_none, flush_writer, DISK},
    {"CloseSummaryWriter", "writer:res -> ", trn_sh_none, close_writer, DISK},
    {"WriteSummary", TO "tensor:T, tag:str, summary_metadata:str -> ; T:any", trn_sh_none, write_tensor, DISK},
    {"WriteRawProtoSummary", TO "tensor:str -> ", trn_sh_none, write_raw, DISK},
    {"ImportEvent", "writer:res, event:str -> ", trn_sh_none, import_event, DISK},
    {"WriteScalarSummary", TO "tag:str, value:T -> ; T:real", trn_sh_none, write_scalar, DISK},
    {"WriteHistogramSummary", TO "tag:str, values:T -> ; T:real|bool=f32", trn_sh_none, write_histogram, DISK},
    {"WriteImageSummary", TO "tag:str, tensor:T, bad_color:u8 -> ; max_images:int>=1=3, T:u8|f64|f32|f16=f32", trn_sh_none, write_image, DISK},
    {"WriteAudioSummary", TO "tag:str, tensor:f32, sample_rate:f32 -> ; max_outputs:int>=1=3", trn_sh_none, write_audio, DISK},
    {"WriteGraphSummary", TO "tensor:str -> ", trn_sh_none, write_graph, DISK},
    {0},
};
