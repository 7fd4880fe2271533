/* Readers of TensorFlow 1: they take file names from a queue and give out one record at a time.
 *
 * A reader serves one request at a time, in order. A request that needs a file name waits in the queue (no thread); opening and reading happen on a disk
 * thread. A cancelled step takes its request out of either. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/stream.h"
#include "op/kctx.h"
#include "ops/data.h"
#include "ops/resop.h"
#include "proto/pbw.h"
#include "res/queue.h"

#define READER_TYPE_NAME "tensorflow::ReaderInterface"
#define MAX_WHOLE_FILE (1ull << 31)

typedef enum reader_kind { R_LINES, R_RECORDS, R_FIXED, R_WHOLE, R_IDENTITY } reader_kind;

typedef struct request request;

typedef struct reader {
    trn_resource r;
    trn_mutex mu;
    char *name;
    reader_kind kind;
    int64_t skip_lines, header, record, footer, hop;
    trn_compression c;
    request *busy;
    trn_waitlist queue;
    /* Of the one who is busy; the counts are read by others, under the lock. */
    int64_t started, finished, produced;
    char *work; /* the current file's name, n_work bytes and a zero */
    size_t n_work;
    trn_stream *s;
    int64_t number; /* of the line or record; TFRecord: its offset */
    uint64_t skip;  /* bytes to go before the next record */
} reader;

typedef struct piece {
    trn_tensor *key, *value;
} piece;

struct request {
    trn_wait w;
    reader *r;
    trn_kctx *k;
    trn_host host;
    trn_queue *q;
    void (*run)(request *q); /* its turn has come */
    int64_t want;
    bool many;
    int n, cap;
    piece *v;
};

/* ---- the resource ------------------------------------------------------------------------------------------------------ */

static void reader_free(trn_resource *r_)
{
    reader *r = (reader *)r_;
    trn_stream_close(r->s);
    trn_mutex_fini(&r->mu);
    free(r->work);
    free(r->name);
    free(r);
}

static const trn_restype reader_type = {.name = "Reader", .free = reader_free};

static reader_kind kind_of(const char *op)
{
    return *op == 'I' ? R_IDENTITY : *op == 'W' ? R_WHOLE : *op == 'F' ? R_FIXED : op[1] == 'F' ? R_RECORDS : R_LINES;
}

static trn_err make_reader(trn_resource **out, void *arg)
{
    const trn_kctx *k = arg;
    const trn_node *n = k->node;
    trn_compression c;
    TRN_TRY(trn_compression_parse(&c, trn_attr_str(n, kind_of(n->op) == R_FIXED ? "encoding" : "compression_type")));
    reader *r = trn_xalloc(sizeof *r);
    trn_resource_init(&r->r, &reader_type);
    trn_mutex_init(&r->mu, TRN_RANK_RES);
    r->name = trn_xstrdup(n->name);
    r->kind = kind_of(n->op);
    r->c = c;
    r->skip_lines = trn_attr_int(n, "skip_header_lines");
    r->header = trn_attr_int(n, "header_bytes");
    r->record = trn_attr_int(n, "record_bytes");
    r->footer = trn_attr_int(n, "footer_bytes");
    r->hop = trn_attr_int(n, "hop_bytes");
    if (!r->hop)
        r->hop = r->record;
    *out = &r->r;
    return TRN_OK;
}

static trn_err reader_op(trn_kctx *k)
{
    const trn_node *n = k->node;
    if (kind_of(n->op) == R_FIXED) {
        int64_t header = trn_attr_int(n, "header_bytes"), record = trn_attr_int(n, "record_bytes"), footer = trn_attr_int(n, "footer_bytes"),
                hop = trn_attr_int(n, "hop_bytes"), most = 1 << 30;
        TRN_CHECK_ARG(header >= 0 && header <= most, "header_bytes must be >= 0 not %" PRId64, header);
        TRN_CHECK_ARG(record >= 0 && record <= most, "record_bytes must be >= 0 not %" PRId64, record);
        TRN_CHECK_ARG(footer >= 0 && footer <= most, "footer_bytes must be >= 0 not %" PRId64, footer);
        TRN_CHECK_ARG(hop >= 0 && hop <= most, "hop_bytes must be >= 0 not %" PRId64, hop);
        TRN_CHECK_ARG(record > 0, "record_bytes must be > 0");
    }
    reader *r;
    TRN_TRY(trn_resop(&r, k, &reader_type, READER_TYPE_NAME, make_reader, k));
    trn_resource_unref(r);
    return TRN_OK;
}

/* ---- requests, one at a time ---------------------------------------------------------------------------------------------- */

static void serve(reader *r);

static void request_free(request *q)
{
    for (int i = 0; i < q->n; i++) {
        trn_tensor_unref(q->v[i].key);
        trn_tensor_unref(q->v[i].value);
    }
    free(q->v);
    trn_resource_unref(q->q);
    trn_resource_unref(q->r);
    free(q);
}

/* Cancelled before its turn. */
static void request_end(trn_wait *w)
{
    request *q = TRN_CONTAINER(w, request, w);
    trn_kctx *k = q->k;
    trn_err err = w->err;
    request_free(q);
    trn_k_done(k, err);
}

static void request_cancelled(void *w_)
{
    trn_wait *w = w_;
    reader *r = TRN_CONTAINER(w, request, w)->r;
    trn_waitlist ready = {0};
    trn_lock(&r->mu);
    if (trn_wait_in(w, &r->queue))
        trn_wait_ready(&ready, w, trn_cancel_why(w->cancel));
    trn_unlock(&r->mu);
    trn_wait_end_all(&ready);
}

static void start_request(request *q)
{
    reader *r = q->r;
    trn_resource_ref(r);
    q->w = (trn_wait){.cancel = trn_k_cancel(q->k), .end = request_end};
    trn_waitlist ready = {0};
    trn_lock(&r->mu);
    trn_wait_link(&r->queue, &q->w);
    if (!trn_wait_hook(&q->w, request_cancelled))
        trn_wait_ready(&ready, &q->w, trn_cancel_why(q->w.cancel));
    trn_unlock(&r->mu);
    trn_wait_end_all(&ready);
    serve(r);
    trn_resource_unref(r);
}

static void serve(reader *r)
{
    trn_waitlist mine = {0};
    trn_lock(&r->mu);
    trn_wait *w = r->busy ? NULL : r->queue.first;
    if (w) {
        r->busy = TRN_CONTAINER(w, request, w);
        trn_wait_ready(&mine, w, TRN_OK);
    }
    trn_unlock(&r->mu);
    if (!w)
        return;
    if (w->hooked)
        trn_cancel_remove(w->cancel, &w->hook);
    request *q = TRN_CONTAINER(w, request, w);
    q->run(q);
}

static trn_err set_records(request *q)
{
    trn_kctx *k = q->k;
    if (!q->many) {
        trn_out_set(k, 0, trn_tensor_ref(q->v[0].key));
        trn_out_set(k, 1, trn_tensor_ref(q->v[0].value));
        return TRN_OK;
    }
    trn_shape s = trn_shape_vector(q->n);
    trn_tensor *keys, *values;
    TRN_TRY(trn_out_new(&keys, k, 0, TRN_STRING, &s));
    TRN_TRY(trn_out_new(&values, k, 1, TRN_STRING, &s));
    for (int i = 0; i < q->n; i++) {
        TRN_TRY(trn_tensor_copy_elems(keys, i, q->v[i].key, 0, 1));
        TRN_TRY(trn_tensor_copy_elems(values, i, q->v[i].value, 0, 1));
    }
    return TRN_OK;
}

static void finish(request *q, trn_err err)
{
    reader *r = q->r;
    trn_kctx *k = q->k;
    if (!err && k->n_out == 2)
        err = set_records(q);
    trn_lock(&r->mu);
    r->busy = NULL;
    trn_unlock(&r->mu);
    trn_resource_ref(r);
    request_free(q);
    trn_k_done(k, err);
    serve(r);
    trn_resource_unref(r);
}

/* ---- one file --------------------------------------------------------------------------------------------------------------- */

static trn_err open_work(request *q)
{
    reader *r = q->r;
    r->number = 0;
    r->skip = r->kind == R_FIXED ? (uint64_t)r->header : 0;
    trn_stream_close(r->s);
    r->s = NULL;
    if (r->kind == R_IDENTITY)
        return TRN_OK;
    TRN_TRY(trn_host_check_path(&q->host, r->work));
    if (r->kind == R_WHOLE)
        return TRN_OK;
    TRN_TRY(trn_stream_open(&r->s, r->work, r->kind == R_LINES ? TRN_PLAIN : r->c, 0));
    while (r->kind == R_LINES && r->number < r->skip_lines) {
        const char *p;
        size_t n;
        trn_cut got;
        TRN_TRY(trn_stream_line(&got, r->s, &p, &n));
        if (got == TRN_CUT_END)
            break;
        if (got == TRN_CUT_MORE)
            TRN_TRY(trn_stream_fill(r->s));
        else
            r->number++;
    }
    return TRN_OK;
}

static trn_err add_record(request *q, const char *key, size_t n_key, const void *p, size_t n)
{
    piece v = {trn_tensor_str(key, n_key), trn_tensor_str(p, n)};
    if (!v.key || !v.value) {
        trn_tensor_unref(v.key);
        trn_tensor_unref(v.value);
        return trn_err_oom();
    }
    TRN_PUSH(q->v, q->n, q->cap, v);
    trn_lock(&q->r->mu);
    q->r->produced++;
    trn_unlock(&q->r->mu);
    return TRN_OK;
}

static trn_err add_numbered(request *q, int64_t number, const void *p, size_t n)
{
    trn_sb key = {0};
    trn_sb_add(&key, q->r->work, q->r->n_work);
    trn_sb_addf(&key, ":%" PRId64, number);
    trn_err err = add_record(q, key.p, key.n, p, n);
    trn_sb_fini(&key);
    return err;
}

static trn_err read_whole(request *q)
{
    reader *r = q->r;
    trn_stream *s;
    TRN_TRY(trn_stream_open(&s, r->work, TRN_PLAIN, 0));
    trn_err err = TRN_OK;
    while (!err && !trn_stream_at_end(s)) {
        err = trn_stream_fill(s);
        if (!err && trn_stream_have(s) > MAX_WHOLE_FILE)
            err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "%s has more than 2 GiB", r->work);
    }
    if (!err)
        err = add_record(q, r->work, r->n_work, trn_stream_have(s) ? (const void *)trn_stream_window(s) : "", trn_stream_have(s));
    trn_stream_close(s);
    return err;
}

static trn_err cut_fixed(trn_cut *out, reader *r, const char **p, size_t *n)
{
    *out = TRN_CUT_MORE;
    size_t have = trn_stream_have(r->s);
    if (r->skip) {
        size_t m = TRN_MIN(have, r->skip);
        trn_stream_skip(r->s, m);
        r->skip -= m;
        have -= m;
    }
    if (!r->skip && have >= (size_t)(r->record + r->footer)) {
        *p = (const char *)trn_stream_window(r->s);
        *n = (size_t)r->record;
        r->skip = (uint64_t)r->hop;
        *out = TRN_CUT_GOT;
    } else if (trn_stream_at_end(r->s)) {
        *out = TRN_CUT_END;
    }
    return TRN_OK;
}

/* The next record, or the end of the file. */
static trn_err read_record(bool *at_end, request *q)
{
    reader *r = q->r;
    *at_end = true;
    if (r->kind == R_IDENTITY)
        return add_record(q, r->work, r->n_work, r->work, r->n_work);
    if (r->kind == R_WHOLE)
        return read_whole(q);
    *at_end = false;
    for (;;) {
        const char *p;
        size_t n;
        trn_cut got;
        int64_t number = r->kind == R_RECORDS ? (int64_t)trn_stream_pos(r->s) : r->kind == R_LINES ? r->number + 1 : r->number;
        TRN_TRY(r->kind == R_LINES ? trn_stream_line(&got, r->s, &p, &n) : r->kind == R_RECORDS ? trn_stream_record(&got, r->s, &p, &n) : cut_fixed(&got, r, &p, &n));
        if (got == TRN_CUT_GOT) {
            r->number++;
            return add_numbered(q, number, p, n);
        }
        if (got == TRN_CUT_END) {
            *at_end = true;
            return TRN_OK;
        }
        TRN_TRY(trn_stream_fill(r->s));
    }
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------- */

static void next_work(request *q);

static void set_count(reader *r, int64_t *count, int64_t v)
{
    trn_lock(&r->mu);
    *count = v;
    trn_unlock(&r->mu);
}

/* On a disk thread. */
static void read_job(void *arg)
{
    request *q = arg;
    reader *r = q->r;
    if (r->started == r->finished) { /* the name has just come */
        trn_err err = open_work(q);
        if (err) {
            finish(q, err);
            return;
        }
        set_count(r, &r->started, r->started + 1);
    }
    bool at_end = false;
    while (q->n < q->want && !at_end) {
        trn_err err = trn_cancelled(trn_k_cancel(q->k)) ? trn_cancel_why(trn_k_cancel(q->k)) : read_record(&at_end, q);
        if (err) {
            finish(q, err);
            return;
        }
    }
    if (at_end) {
        trn_stream_close(r->s);
        r->s = NULL;
        set_count(r, &r->finished, r->started);
    }
    if (q->n > 0)
        finish(q, TRN_OK);
    else
        next_work(q);
}

static void to_disk(request *q)
{
    if (!trn_host_submit(&q->host, TRN_ON_DISK, read_job, q)) /* never right here: a thousand empty files would be a thousand calls deep */
        read_job(q);
}

static void got_work(void *arg, trn_err err, trn_tensor **tuple)
{
    request *q = arg;
    const trn_dtype *types;
    int n = trn_queue_components(q->q, &types);
    if (!err && n != 1)
        err = TRN_BAD("Expected single component queue");
    if (!err && types[0] != TRN_STRING)
        err = TRN_BAD("Expected queue with single string component");
    if (!err && tuple[0]->count != 1)
        err = TRN_BAD("Expected to dequeue a one-element string tensor");
    free(q->r->work);
    q->r->work = NULL; /* a reader that got nothing has nothing in its state */
    q->r->n_work = 0;
    if (!err) {
        const trn_str *s = TRN_DATA(tuple[0], trn_str);
        q->r->work = trn_xstrndup(trn_str_p(s), s->len);
        q->r->n_work = s->len;
    }
    for (int i = 0; tuple && i < n; i++)
        trn_tensor_unref(tuple[i]);
    if (err)
        finish(q, err);
    else
        to_disk(q);
}

static void next_work(request *q) { trn_queue_dequeue(q->q, trn_k_cancel(q->k), got_work, q); }

static void run_read(request *q)
{
    if (q->want == 0)
        finish(q, TRN_OK);
    else if (q->r->started == q->r->finished)
        next_work(q);
    else
        to_disk(q);
}

static trn_err begin(trn_kctx *k, int64_t want, bool many)
{
    request *q = trn_xalloc(sizeof *q);
    trn_err err = trn_k_resource(&q->r, k, 0, &reader_type);
    if (!err)
        err = trn_k_resource(&q->q, k, 1, &trn_queue_type);
    if (err) {
        if (q->r)
            trn_resource_unref(q->r);
        free(q);
        return err;
    }
    q->k = k;
    q->host = trn_k_host(k);
    q->run = run_read;
    q->want = want;
    q->many = many;
    start_request(q);
    return TRN_OK;
}

static trn_err reader_read(trn_kctx *k) { return begin(k, 1, false); }

static trn_err reader_read_up_to(trn_kctx *k)
{
    const trn_tensor *n = trn_in(k, 2);
    TRN_CHECK_ARG(n->shape.rank == 0, "num_records must be a scalar");
    int64_t want = TRN_DATA(n, int64_t)[0];
    TRN_CHECK_ARG(want >= 0 && want <= INT32_MAX, "num_records is %" PRId64, want);
    return begin(k, want, true);
}

/* ---- counts, state ------------------------------------------------------------------------------------------------------------ */

static trn_err out_count(trn_kctx *k, bool units)
{
    reader *r;
    TRN_TRY(trn_k_resource(&r, k, 0, &reader_type));
    trn_lock(&r->mu);
    int64_t n = units ? r->finished : r->produced;
    trn_unlock(&r->mu);
    trn_resource_unref(r);
    trn_out_set(k, 0, trn_tensor_i64(n));
    return TRN_OK;
}

static trn_err num_records_produced(trn_kctx *k) { return out_count(k, false); }
static trn_err num_work_units_completed(trn_kctx *k) { return out_count(k, true); }

static void reset(reader *r)
{
    trn_lock(&r->mu);
    r->started = r->finished = r->produced = 0;
    trn_unlock(&r->mu);
    trn_stream_close(r->s);
    r->s = NULL;
    free(r->work);
    r->work = NULL;
    r->n_work = 0;
}

static void run_reset(request *q)
{
    reset(q->r);
    finish(q, TRN_OK);
}

/* ReaderBaseState */
enum { S_STARTED = 1, S_FINISHED = 2, S_PRODUCED = 3, S_WORK = 4 };

static bool has_state(const reader *r) { return r->kind == R_WHOLE || r->kind == R_IDENTITY; }

static trn_err serialize(trn_kctx *k)
{
    reader *r;
    TRN_TRY(trn_k_resource(&r, k, 0, &reader_type));
    trn_sb s = {0};
    trn_sb_reserve(&s, 1);
    trn_err err = has_state(r) ? TRN_OK : trn_errorf(TRN_UNIMPLEMENTED, "Reader SerializeState");
    if (!err) {
        trn_lock(&r->mu);
        int64_t v[] = {0, r->started, r->finished, r->produced};
        for (uint32_t i = S_STARTED; i <= S_PRODUCED; i++)
            if (v[i])
                trn_pbw_varint(&s, i, (uint64_t)v[i]);
        if (r->n_work && !r->busy)
            trn_pbw_bytes(&s, S_WORK, r->work, r->n_work);
        trn_unlock(&r->mu);
        trn_out_set(k, 0, trn_tensor_str(s.n ? s.p : "", s.n));
    }
    trn_sb_fini(&s);
    trn_resource_unref(r);
    return err;
}

static trn_err restore(reader *r, const trn_tensor *t)
{
    if (!has_state(r))
        return trn_errorf(TRN_UNIMPLEMENTED, "Reader RestoreState");
    const trn_str *s = TRN_DATA(t, trn_str);
    int64_t v[S_WORK] = {0};
    trn_pbr p = trn_pbr_init(trn_str_p(s), s->len);
    while (trn_pbr_next(&p)) {
        if (p.type == TRN_PB_VARINT && p.field >= S_STARTED && p.field <= S_PRODUCED)
            v[p.field] = (int64_t)p.v;
        if (p.type == TRN_PB_BYTES && p.field == S_WORK) {
            free(r->work);
            r->work = trn_xstrndup((const char *)p.b, p.n);
            r->n_work = p.n;
        }
    }
    TRN_CHECK_ARG(!p.bad, "Could not parse state for %s '%s'", r->kind == R_WHOLE ? "WholeFileReader" : "IdentityReader", r->name);
    TRN_CHECK_ARG(v[1] >= 0 && v[2] >= 0 && v[3] >= 0, "Unexpected negative value when restoring in %s '%s'", r->kind == R_WHOLE ? "WholeFileReader" : "IdentityReader", r->name);
    TRN_CHECK_ARG(v[1] <= v[2], "Inconsistent work started vs. finished when restoring in %s '%s'", r->kind == R_WHOLE ? "WholeFileReader" : "IdentityReader", r->name);
    trn_lock(&r->mu);
    r->started = r->finished = v[2];
    r->produced = v[3];
    trn_unlock(&r->mu);
    return TRN_OK;
}

static void run_restore(request *q)
{
    trn_err err = restore(q->r, trn_in(q->k, 1));
    if (err) /* also that it has no state at all */
        reset(q->r);
    finish(q, err);
}

static trn_err in_turn(trn_kctx *k, void (*run)(request *))
{
    request *q = trn_xalloc(sizeof *q);
    trn_err err = trn_k_resource(&q->r, k, 0, &reader_type);
    if (err) {
        free(q);
        return err;
    }
    q->k = k;
    q->run = run;
    start_request(q);
    return TRN_OK;
}

static trn_err reader_reset(trn_kctx *k) { return in_turn(k, run_reset); }

static trn_err reader_restore(trn_kctx *k)
{
    TRN_CHECK_ARG(trn_in(k, 1)->shape.rank == 0, "Reader state must be scalar");
    return in_turn(k, run_restore);
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------ */

#define SHARED "container:string=\"\", shared_name:string=\"\""
#define MAKE(name, attrs, attrs2)                                                                                      \
    {name, "-> reader_handle:&str; " attrs, trn_sh_handle, reader_op, TRN_OP_STATEFUL, trn_resop_init, trn_resop_fini}, \
    {                                                                                                                  \
        name "V2", "-> reader_handle:res; " attrs attrs2, trn_sh_handle, reader_op, TRN_OP_STATEFUL, trn_resop_init,   \
            trn_resop_fini                                                                                             \
    }
#define BOTH(name, in1, in2, out, shape, kernel, flags)                                                                \
    {name, "reader_handle:&str" in1 " -> " out, shape, kernel, (flags) | TRN_OP_STATEFUL},                             \
    {                                                                                                                  \
        name "V2", "reader_handle:res" in2 " -> " out, shape, kernel, (flags) | TRN_OP_STATEFUL                        \
    }
#define FIXED "header_bytes:int=0, record_bytes:int, footer_bytes:int=0, hop_bytes:int=0, " SHARED

const trn_op trn_ops_reader[] = {
    MAKE("TextLineReader", "skip_header_lines:int=0, " SHARED, ""),
    MAKE("TFRecordReader", SHARED ", compression_type:string=\"\"", ""),
    MAKE("FixedLengthRecordReader", FIXED, ", encoding:string=\"\""),
    MAKE("WholeFileReader", SHARED, ""),
    MAKE("IdentityReader", SHARED, ""),
    BOTH("ReaderRead", ", queue_handle:&str", ", queue_handle:res", "key:str, value:str", trn_sh_scalar, reader_read, TRN_OP_ASYNC),
    BOTH("ReaderReadUpTo", ", queue_handle:&str, num_records:i64", ", queue_handle:res, num_records:i64", "keys:str, values:str", trn_sh_unknown,
         reader_read_up_to, TRN_OP_ASYNC),
    BOTH("ReaderNumRecordsProduced", "", "", "records_produced:i64", trn_sh_scalar, num_records_produced, TRN_OP_CHEAP),
    BOTH("ReaderNumWorkUnitsCompleted", "", "", "units_completed:i64", trn_sh_scalar, num_work_units_completed, TRN_OP_CHEAP),
    BOTH("ReaderReset", "", "", "", trn_sh_none, reader_reset, TRN_OP_ASYNC),
    BOTH("ReaderSerializeState", "", "", "state:str", trn_sh_scalar, serialize, TRN_OP_CHEAP),
    BOTH("ReaderRestoreState", ", state:str", ", state:str", "", trn_sh_none, reader_restore, TRN_OP_ASYNC),
    {0},
};
