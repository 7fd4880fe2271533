/* Event files. Adding encodes the event on the caller's thread and queues its bytes; one thread per writer takes what is there and writes it at once, so a
 * reader of the growing file lags by one write and never sees the order change. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <trainera/summary.h>

#include "ckpt/file.h"
#include "ckpt/media.h"
#include "ckpt/record.h"
#include "proto/pbw.h"
#include "tensor/tensor.h"
#include "train/save_priv.h"

/* Field numbers of Event, Summary.Value and friends in tensorflow.proto. */
enum { EV_TIME = 1, EV_STEP = 2, EV_VERSION = 3, EV_GRAPH = 4, EV_SUMMARY = 5, EV_SESSION_LOG = 7, EV_RUN_METADATA = 8, EV_SOURCE = 10 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_IMAGE = 4, VALUE_HISTO = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };

#define QUEUE 64
#define EVENT_MAX ((size_t)INT32_MAX) /* bytes: what readers of protocol buffers take */

typedef struct piece {
    char *p;
    size_t n;
} piece;

struct trn_event_writer {
    char *path;
    int fd;
    pthread_t thread;
    /* Under mu. */
    pthread_mutex_t mu;
    pthread_cond_t changed; /* any of the fields below */
    piece *queue;           /* framed records, oldest first */
    int n, cap;
    uint64_t added, written; /* events */
    bool closing;
    trn_err err; /* the first; after it events are dropped */
};

static trn_err write_all(const trn_event_writer *w, const char *p, size_t n)
{
    while (n) {
        ssize_t k = TRN_FAULT("events.write") ? (errno = ENOSPC, -1) : write(w->fd, p, TRN_MIN(n, (size_t)1 << 30));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return trn_err_errno(errno, "writing %s", w->path);
        p += k;
        n -= (size_t)k;
    }
    return TRN_OK;
}

static void *run(void *arg)
{
    trn_event_writer *w = arg;
    trn_sb batch = {0};
    pthread_mutex_lock(&w->mu);
    for (;;) {
        while (!w->n && !w->closing)
            pthread_cond_wait(&w->changed, &w->mu);
        if (!w->n)
            break;
        int n = w->n;
        bool bad = w->err != TRN_OK;
        batch.n = 0;
        for (int i = 0; i < n; i++) {
            trn_sb_add(&batch, w->queue[i].p, w->queue[i].n);
            free(w->queue[i].p);
        }
        w->n = 0;
        pthread_cond_broadcast(&w->changed); /* there is room */
        pthread_mutex_unlock(&w->mu);
        trn_err err = bad ? TRN_OK : write_all(w, batch.p, batch.n);
        if (batch.cap > 1 << 20)
            trn_sb_fini(&batch);
        pthread_mutex_lock(&w->mu);
        if (err)
            w->err = err;
        w->written += (uint64_t)n;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mu);
    trn_sb_fini(&batch);
    return NULL;
}

static void fail(trn_event_writer *w, trn_err err)
{
    pthread_mutex_lock(&w->mu);
    if (w->err)
        trn_err_free(err);
    else
        w->err = err;
    pthread_mutex_unlock(&w->mu);
}

static void put_double(trn_sb *s, uint32_t field, double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    trn_pbw_fixed64(s, field, u);
}

/* An Event with one field of bytes; frees the body. */
static void add(trn_event_writer *w, uint32_t field, TRN_OWN trn_sb *body, int64_t step)
{
    trn_sb head = {0};
    put_double(&head, EV_TIME, (double)trn_wall_us() / 1e6);
    trn_pbw_varint(&head, EV_STEP, (uint64_t)step);
    trn_pbw_head(&head, field, body->n);
    size_t n = head.n + body->n;
    if (n > EVENT_MAX) {
        fail(w, trn_errorf(TRN_INVALID_ARGUMENT, "%s: an event of %zu bytes is too large", w->path, n));
        trn_sb_fini(&head);
        trn_sb_fini(body);
        return;
    }
    piece p = {.n = TRN_RECORD_HEAD + n + TRN_RECORD_TAIL};
    p.p = trn_xrealloc(NULL, p.n);
    trn_record_head((uint8_t *)p.p, n);
    memcpy(p.p + TRN_RECORD_HEAD, head.p, head.n);
    if (body->n)
        memcpy(p.p + TRN_RECORD_HEAD + head.n, body->p, body->n);
    trn_record_tail((uint8_t *)p.p + TRN_RECORD_HEAD + n, p.p + TRN_RECORD_HEAD, n);
    trn_sb_fini(&head);
    trn_sb_fini(body);
    pthread_mutex_lock(&w->mu);
    while (w->n == w->cap)
        pthread_cond_wait(&w->changed, &w->mu);
    w->queue[w->n++] = p;
    w->added++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mu);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static void writer_free(trn_event_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    for (int i = 0; i < w->n; i++)
        free(w->queue[i].p);
    free(w->queue);
    free(w->path);
    pthread_mutex_destroy(&w->mu);
    pthread_cond_destroy(&w->changed);
    trn_err_free(w->err);
    free(w);
}

/* Readers ask the first event for its version. */
static void add_version(trn_event_writer *w)
{
    trn_sb s = {0};
    trn_sb_adds(&s, "brain.Event:2");
    add(w, EV_VERSION, &s, 0);
}

trn_err trn_event_writer_open(trn_event_writer **out, const char *dir, const trn_event_writer_opts *opts)
{
    static _Atomic int number;
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    TRN_TRY(trn_check_scheme(dir));
    dir = trn_local_path(dir);
    TRN_TRY(trn_path_mkdirs(dir));
    trn_event_writer *w = trn_xalloc(sizeof *w);
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->cap = opts && opts->queue > 0 ? opts->queue : QUEUE;
    w->queue = trn_xalloc((size_t)w->cap * sizeof *w->queue);
    w->path = trn_xasprintf("%s/events.out.tfevents.%010" PRIu64 ".%s.%d.%d%s", dir, trn_wall_us() / 1000000, host, (int)getpid(),
                            atomic_fetch_add(&number, 1), opts && opts->suffix ? opts->suffix : "");
    w->fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        trn_err err = trn_err_errno(errno, "%s", w->path);
        writer_free(w);
        return err;
    }
    add_version(w);
    int rc = pthread_create(&w->thread, NULL, run, w);
    if (rc) {
        trn_err err = trn_err_errno(rc, "a thread for %s", w->path);
        unlink(w->path);
        writer_free(w);
        return err;
    }
    *out = w;
    return TRN_OK;
}

trn_err trn_event_writer_flush(trn_event_writer *w)
{
    pthread_mutex_lock(&w->mu);
    for (uint64_t upto = w->added; w->written < upto;)
        pthread_cond_wait(&w->changed, &w->mu);
    trn_err err = w->err ? trn_err_copy(w->err) : TRN_OK;
    pthread_mutex_unlock(&w->mu);
    return err;
}

trn_err trn_event_writer_close(trn_event_writer *w)
{
    if (!w)
        return TRN_OK;
    pthread_mutex_lock(&w->mu);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mu);
    pthread_join(w->thread, NULL);
    int rc = close(w->fd);
    w->fd = -1;
    trn_err err = w->err;
    w->err = TRN_OK;
    if (rc && !err)
        err = trn_err_errno(errno, "closing %s", w->path);
    writer_free(w);
    return err;
}

const char *trn_event_writer_path(const trn_event_writer *w) { return w->path; }

/* ---- events ------------------------------------------------------------------------------------------------------------ */

void trn_event_writer_add_summary(trn_event_writer *w, const void *summary, size_t n, int64_t step)
{
    trn_sb s = {0};
    trn_sb_add(&s, summary, n);
    add(w, EV_SUMMARY, &s, step);
}

void trn_event_writer_add_summary_tensor(trn_event_writer *w, const trn_tensor *fetched, int64_t step)
{
    if (fetched->dtype != TRN_STRING) {
        fail(w, trn_errorf(TRN_INVALID_ARGUMENT, "%s: a summary is a string, not %s", w->path, trn_dtype_name(fetched->dtype)));
        return;
    }
    for (int64_t i = 0; i < fetched->count; i++) {
        size_t n;
        const char *p = trn_tensor_str_at(fetched, i, &n);
        trn_event_writer_add_summary(w, p, n, step);
    }
}

/* A Summary of one value: tag, and a field that is given; frees the value. */
static void add_value(trn_event_writer *w, const char *tag, TRN_OWN trn_sb *rest, int64_t step)
{
    trn_sb s = {0};
    size_t n = strlen(tag);
    trn_pbw_head(&s, SUMMARY_VALUE, (n ? trn_pbw_bytes_size(VALUE_TAG, n) : 0) + rest->n);
    trn_pbw_str(&s, VALUE_TAG, tag);
    trn_sb_add(&s, rest->p, rest->n);
    trn_sb_fini(rest);
    add(w, EV_SUMMARY, &s, step);
}

void trn_event_writer_add_scalar(trn_event_writer *w, const char *tag, float value, int64_t step)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    trn_sb v = {0};
    trn_pbw_fixed32(&v, VALUE_SIMPLE, bits);
    add_value(w, tag, &v, step);
}

static bool number_at(double *out, const trn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TRN_FLOAT: *out = (double)TRN_DATA(t, float)[i]; return true;
    case TRN_DOUBLE: *out = TRN_DATA(t, double)[i]; return true;
    case TRN_HALF: *out = (double)trn_half_to_f32(TRN_DATA(t, trn_half)[i]); return true;
    case TRN_BFLOAT16: *out = (double)trn_bf16_to_f32(TRN_DATA(t, trn_bf16)[i]); return true;
    case TRN_INT8: *out = TRN_DATA(t, int8_t)[i]; return true;
    case TRN_UINT8: *out = TRN_DATA(t, uint8_t)[i]; return true;
    case TRN_INT16: *out = TRN_DATA(t, int16_t)[i]; return true;
    case TRN_UINT16: *out = TRN_DATA(t, uint16_t)[i]; return true;
    case TRN_INT32: *out = TRN_DATA(t, int32_t)[i]; return true;
    case TRN_UINT32: *out = TRN_DATA(t, uint32_t)[i]; return true;
    case TRN_INT64: *out = (double)TRN_DATA(t, int64_t)[i]; return true;
    case TRN_UINT64: *out = (double)TRN_DATA(t, uint64_t)[i]; return true;
    case TRN_BOOL: *out = TRN_DATA(t, bool)[i]; return true;
    default: return false;
    }
}

void trn_event_writer_add_histogram(trn_event_writer *w, const char *tag, const trn_tensor *values, int64_t step)
{
    trn_histo *h = trn_xalloc(sizeof *h);
    trn_histo_init(h);
    for (int64_t i = 0; i < values->count; i++) {
        double d;
        if (!number_at(&d, values, i)) {
            fail(w, trn_errorf(TRN_INVALID_ARGUMENT, "%s: no histogram of %s values (%s)", w->path, trn_dtype_name(values->dtype), tag));
            free(h);
            return;
        }
        if (isfinite(d))
            trn_histo_add(h, d);
    }
    trn_sb msg = {0}, v = {0};
    trn_histo_put(&msg, h);
    trn_pbw_bytes(&v, VALUE_HISTO, msg.p, msg.n);
    trn_sb_fini(&msg);
    free(h);
    add_value(w, tag, &v, step);
}

void trn_event_writer_add_image(trn_event_writer *w, const char *tag, const uint8_t *pixels, int width, int height, int channels, int64_t step)
{
    if (width <= 0 || height <= 0 || (int64_t)width * height > INT64_C(1) << 28 || (channels != 1 && channels != 3 && channels != 4)) {
        fail(w, trn_errorf(TRN_INVALID_ARGUMENT, "%s: no image of %d x %d pixels and %d channels (%s)", w->path, width, height, channels, tag));
        return;
    }
    trn_sb png = {0}, img = {0}, v = {0};
    trn_err err = trn_png_encode(&png, pixels, width, height, channels, 8, -1);
    if (err) {
        trn_sb_fini(&png);
        fail(w, err);
        return;
    }
    trn_pbw_varint(&img, 1, (uint64_t)height);
    trn_pbw_varint(&img, 2, (uint64_t)width);
    trn_pbw_varint(&img, 3, (uint64_t)channels);
    trn_pbw_bytes(&img, 4, png.p, png.n);
    trn_pbw_bytes(&v, VALUE_IMAGE, img.p, img.n);
    trn_sb_fini(&png);
    trn_sb_fini(&img);
    add_value(w, tag, &v, step);
}

void trn_event_writer_add_text(trn_event_writer *w, const char *tag, const char *text, int64_t step)
{
    trn_sb tensor = {0}, v = {0};
    trn_pbw_varint(&tensor, 1, TRN_STRING);
    trn_pbw_bytes(&tensor, 2, "", 0); /* the shape of a scalar */
    trn_pbw_bytes(&tensor, 8, text, strlen(text));
    trn_pbw_bytes(&v, VALUE_TENSOR, tensor.p, tensor.n);
    trn_pbw_bytes(&v, VALUE_METADATA, TRN_TEXT_METADATA, sizeof TRN_TEXT_METADATA - 1);
    trn_sb_fini(&tensor);
    add_value(w, tag, &v, step);
}

void trn_event_writer_add_graph_def(trn_event_writer *w, const void *graph_def, size_t n)
{
    trn_sb s = {0};
    trn_sb_add(&s, graph_def, n);
    add(w, EV_GRAPH, &s, 0);
}

void trn_event_writer_add_graph(trn_event_writer *w, const trn_builder *b)
{
    void *def;
    size_t n;
    trn_err err = trn_builder_export(&def, &n, b);
    if (err) {
        fail(w, err);
        return;
    }
    trn_event_writer_add_graph_def(w, def, n);
    free(def);
}

void trn_event_writer_add_run_metadata(trn_event_writer *w, const void *run_metadata, size_t n, const char *tag, int64_t step)
{
    trn_sb s = {0};
    trn_pbw_str(&s, 1, tag);
    trn_pbw_bytes(&s, 2, run_metadata, n);
    add(w, EV_RUN_METADATA, &s, step);
}

void trn_event_writer_add_session_log(trn_event_writer *w, trn_session_status status, const char *checkpoint_path, const char *msg, int64_t step)
{
    trn_sb s = {0};
    trn_pbw_varint(&s, 1, (uint64_t)status);
    trn_pbw_str(&s, 2, checkpoint_path);
    trn_pbw_str(&s, 3, msg);
    add(w, EV_SESSION_LOG, &s, step);
}
