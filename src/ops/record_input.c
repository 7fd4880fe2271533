/* RecordInput: batches of TFRecords out of all files that match, for ever, shuffled.
 *
 * An epoch gives every record once: its files are shuffled and read a few at a time, sixteen records from each in turn; records change places in a buffer
 * of file_buffer_size, from whose end they are taken. Only when all of an epoch is given out does the next one begin.
 *
 * Requests are served one at a time, in order, and read only what they need: nothing happens between steps. Files are read on a disk thread, in slices, so
 * that others have their turn there. A cancelled step takes its request away. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/philox.h"
#include "ckpt/file.h"
#include "ckpt/stream.h"
#include "op/func.h"
#include "op/kctx.h"
#include "ops/kern.h"
#include "res/wait.h"

#define MAX_OPEN 64 /* files at once; a larger file_parallelism is taken for this */
#define TURN 16     /* records from a file before the next one's turn, as in TensorFlow */
#define SLICE 256   /* turns and records given out before other work of the disk thread has its turn */

typedef struct input {
    trn_mutex mu; /* over busy and queue; the rest is the one's who is busy */
    bool busy;
    trn_waitlist queue;
    char *patterns;
    uint64_t seed;
    double shift;
    int64_t most; /* records in the buffer */
    int lanes;    /* files open at once */
    int64_t batch;
    trn_compression c;
    trn_philox1 gen;
    trn_err failed; /* stays */
    /* the epoch */
    int64_t epoch, added;
    char **file;
    int n_files, at; /* files, and those that were opened */
    int n_open, turn;
    trn_stream *open[MAX_OPEN];
    bool started, ended; /* ended: all is in the buffer or given out */
    int64_t n, cap;
    trn_str *buf;
} input;

typedef struct request {
    trn_wait w;
    input *r;
    trn_kctx *k;
    trn_host host;
    trn_tensor *out; /* the context's */
    int64_t n;       /* records in it */
} request;

/* ---- the epoch -------------------------------------------------------------------------------------------------------- */

static void end_epoch(input *r)
{
    while (r->n_open)
        trn_stream_close(r->open[--r->n_open]);
    for (int i = 0; i < r->n_files; i++)
        free(r->file[i]);
    free(r->file);
    r->file = NULL;
    r->n_files = r->at = r->turn = 0;
    r->started = r->ended = false;
}

static trn_err find_files(input *r, const trn_host *host)
{
    int cap = 0;
    for (const char *p = r->patterns;; p++) {
        size_t n = strcspn(p, ",");
        char *pattern = trn_xstrndup(p, n), **found = NULL;
        int n_found = 0;
        trn_err err = n ? trn_path_glob(&found, &n_found, pattern) : TRN_OK;
        free(pattern);
        for (int i = 0; i < n_found; i++) {
            if (!err)
                err = trn_host_check_path(host, found[i]);
            TRN_PUSH(r->file, r->n_files, cap, found[i]);
        }
        free(found);
        TRN_TRY(err);
        p += n;
        if (!*p)
            break;
    }
    return r->n_files ? TRN_OK : trn_errorf(TRN_NOT_FOUND, "Found no files at %s", r->patterns);
}

static uint64_t below(trn_philox1 *g, uint64_t n)
{
    uint64_t hi = trn_philox1_next(g);
    return (hi << 32 | trn_philox1_next(g)) % n;
}

static trn_err start_epoch(input *r, const trn_host *host)
{
    r->started = true;
    r->added = 0;
    TRN_TRY(find_files(r, host));
    trn_philox1 g = trn_philox1_of(trn_philox_seed(r->seed, (uint64_t)++r->epoch));
    int n = r->n_files, shift = r->shift >= 0 && r->shift < 1 ? (int)(r->shift * n) : 0;
    char **turned = trn_xalloc((size_t)n * sizeof *turned);
    for (int i = n - 1; i > 0; i--) {
        int j = (int)below(&g, (uint64_t)i + 1);
        char *t = r->file[i];
        r->file[i] = r->file[j];
        r->file[j] = t;
    }
    for (int i = 0; i < n; i++)
        turned[i] = r->file[(i + shift) % n];
    free(r->file);
    r->file = turned;
    return TRN_OK;
}

static trn_err open_files(input *r)
{
    while (r->n_open < r->lanes && r->at < r->n_files) {
        trn_err err = trn_stream_open(&r->open[r->n_open], r->file[r->at], r->c, 0);
        if (err) {
            trn_err_free(err);
            return TRN_BAD("Can't open %s", r->file[r->at]);
        }
        r->n_open++;
        r->at++;
    }
    return TRN_OK;
}

/* The record changes places with any that is there. */
static trn_err add(input *r, const char *p, size_t n)
{
    trn_str s = {0};
    TRN_TRY(trn_str_set(&s, p, n));
    uint64_t at = below(&r->gen, (uint64_t)r->n + 1);
    TRN_PUSH(r->buf, r->n, r->cap, s);
    r->buf[r->n - 1] = r->buf[at];
    r->buf[at] = s;
    r->added++;
    return TRN_OK;
}

/* One file's turn, or the end of the epoch. */
static trn_err read_some(input *r)
{
    TRN_TRY(open_files(r));
    if (!r->n_open) {
        r->ended = true;
        return r->added ? TRN_OK : trn_errorf(TRN_OUT_OF_RANGE, "There are no records in the files at %s", r->patterns); /* TensorFlow would go on looking */
    }
    r->turn %= r->n_open;
    trn_stream *s = r->open[r->turn];
    for (int i = 0; i < TURN && r->n < r->most;) {
        const char *p;
        size_t n;
        trn_cut got;
        TRN_TRY(trn_stream_record(&got, s, &p, &n));
        if (got == TRN_CUT_END) {
            trn_stream_close(s);
            r->open[r->turn] = r->open[--r->n_open];
            return TRN_OK;
        }
        if (got == TRN_CUT_MORE)
            TRN_TRY(trn_stream_fill(s));
        else {
            TRN_TRY(add(r, p, n));
            i++;
        }
    }
    r->turn++;
    return TRN_OK;
}

/* ---- requests --------------------------------------------------------------------------------------------------------- */

static void start(request *q);

/* Cancelled before its turn. */
static void request_end(trn_wait *w)
{
    request *q = TRN_CONTAINER(w, request, w);
    trn_kctx *k = q->k;
    trn_err err = w->err;
    free(q);
    trn_k_done(k, err);
}

static void request_cancelled(void *w_)
{
    trn_wait *w = w_;
    input *r = TRN_CONTAINER(w, request, w)->r;
    trn_waitlist ready = {0};
    trn_lock(&r->mu);
    if (trn_wait_in(w, &r->queue))
        trn_wait_ready(&ready, w, trn_cancel_why(w->cancel));
    trn_unlock(&r->mu);
    trn_wait_end_all(&ready);
}

/* When the kernel of the last one is done the session may go, and all of this with it: that comes last. */
static void finish(request *q, trn_err err)
{
    input *r = q->r;
    trn_kctx *k = q->k;
    free(q);
    trn_waitlist mine = {0};
    trn_lock(&r->mu);
    trn_wait *w = r->queue.first;
    r->busy = w != NULL;
    if (w)
        trn_wait_ready(&mine, w, TRN_OK);
    trn_unlock(&r->mu);
    if (w) {
        if (w->hooked)
            trn_cancel_remove(w->cancel, &w->hook);
        start(TRN_CONTAINER(w, request, w));
    }
    trn_k_done(k, err);
}

/* false: there is more to do. */
static bool slice(request *q, trn_err *err)
{
    input *r = q->r;
    for (int i = 0; i < SLICE; i++) {
        if (q->n == r->batch)
            return true;
        if (r->n >= r->most || (r->ended && r->n)) {
            TRN_DATA_MUT(q->out, trn_str)[q->n++] = r->buf[--r->n];
            continue;
        }
        if (r->ended)
            end_epoch(r);
        if (!r->failed)
            r->failed = r->started ? read_some(r) : start_epoch(r, &q->host);
        if (r->failed) {
            *err = trn_err_copy(r->failed);
            return true;
        }
    }
    if (!trn_cancelled(trn_k_cancel(q->k)))
        return false;
    *err = trn_cancel_why(trn_k_cancel(q->k));
    return true;
}

/* On a disk thread. */
static void work(void *arg)
{
    request *q = arg;
    trn_err err = TRN_OK;
    while (!slice(q, &err))
        if (trn_host_submit(&q->host, TRN_ON_DISK, work, q))
            return;
    finish(q, err);
}

static void start(request *q)
{
    if (!trn_host_submit(&q->host, TRN_ON_DISK, work, q))
        work(q);
}

static trn_err record_input(trn_kctx *k)
{
    input *r = k->state;
    trn_shape s = trn_shape_vector(r->batch);
    trn_tensor *out;
    TRN_TRY(trn_out_new(&out, k, 0, TRN_STRING, &s));
    request *q = trn_xalloc(sizeof *q);
    *q = (request){.w = {.cancel = trn_k_cancel(k), .end = request_end}, .r = r, .k = k, .host = trn_k_host(k), .out = out};
    trn_waitlist ready = {0};
    trn_lock(&r->mu);
    bool now = !r->busy;
    if (now) {
        r->busy = true;
    } else {
        trn_wait_link(&r->queue, &q->w);
        if (!trn_wait_hook(&q->w, request_cancelled))
            trn_wait_ready(&ready, &q->w, trn_cancel_why(q->w.cancel));
    }
    trn_unlock(&r->mu);
    trn_wait_end_all(&ready);
    if (now)
        start(q);
    return TRN_OK;
}

/* ---- state ------------------------------------------------------------------------------------------------------------ */

static trn_err input_init(trn_kinit *ki)
{
    const trn_node *n = ki->node;
    int64_t lanes = trn_attr_int(n, "file_parallelism"), most = trn_attr_int(n, "file_buffer_size"), batch = trn_attr_int(n, "batch_size");
    TRN_CHECK_ARG(lanes >= 0, "file_parallelism should >= 0, got %" PRId64, lanes);
    TRN_CHECK_ARG(most >= 1, "file_buffer_size is %" PRId64 "; at least one record must fit", most);
    TRN_CHECK_ARG(batch >= 0 && batch <= INT32_MAX, "batch_size is %" PRId64, batch);
    trn_compression c;
    TRN_TRY(trn_compression_parse(&c, trn_attr_str(n, "compression_type")));
    input *r = trn_xalloc(sizeof *r);
    trn_mutex_init(&r->mu, TRN_RANK_RES);
    r->patterns = trn_xstrdup(trn_attr_str(n, "file_pattern"));
    r->seed = (uint64_t)trn_attr_int(n, "file_random_seed");
    r->shift = (double)trn_attr_float(n, "file_shuffle_shift_ratio");
    r->most = most;
    r->lanes = (int)TRN_MIN(TRN_MAX(lanes, (int64_t)1), (int64_t)MAX_OPEN);
    r->batch = batch;
    r->c = c;
    r->gen = trn_philox1_of(trn_philox_seed(r->seed, 0));
    ki->state = r;
    return TRN_OK;
}

static void input_fini(void *state)
{
    input *r = state;
    if (!r)
        return;
    end_epoch(r);
    for (int64_t i = 0; i < r->n; i++)
        trn_str_fini(&r->buf[i]);
    free(r->buf);
    trn_err_free(r->failed);
    trn_mutex_fini(&r->mu);
    free(r->patterns);
    free(r);
}

static trn_err sh_record_input(trn_shctx *s)
{
    int64_t n = trn_attr_int(s->node, "batch_size");
    s->out[0] = trn_shape_vector(n < 0 ? -1 : n);
    return TRN_OK;
}

const trn_op trn_ops_record_input[] = {
    {"RecordInput",
     "-> records:str; file_pattern:string, file_random_seed:int=301, file_shuffle_shift_ratio:float=0, file_buffer_size:int=10000, file_parallelism:int=16, "
     "batch_size:int=32, compression_type:string=\"\"",
     sh_record_input, record_input, TRN_OP_ASYNC | TRN_OP_STATEFUL, input_init, input_fini},
    {0},
};
