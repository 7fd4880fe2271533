/* HTTP/2 + gRPC on top of nghttp2. See h2.h for the state machine.
 *
 * Bytes out: nghttp2 hands out frames one by one; heads and small pieces are copied behind one another into a staging
 * buffer, tensor bytes become iovec entries that hold a reference (NGHTTP2_DATA_FLAG_NO_COPY), so one sendmsg carries
 * everything that a wake-up produced.
 *
 * Bytes in: the message's length is known after 5 bytes, so its buffer is allocated once, with the start shifted so that the
 * tensor inside is aligned; trn_h2_want lets the socket read straight into it.
 */
#include "wire/h2.h"

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>

#include "wire/grpc.h"

enum {           /* trn_stream.message */
       M_PREFIX, /* entered at start; waits for 5 bytes */
       M_HEAD,   /* length known; waits for enough bytes to choose the alignment */
       M_BODY,   /* buffer there */
       M_DONE,   /* whole; any further byte is an error */
};

enum { STAGE = 16 << 10, COPY_UP_TO = 2048, HEAD_MAX = 4096, STREAM_TURNS = 64 };

typedef struct seg {
    trn_buf *buf; /* reference; NULL: static bytes */
    const uint8_t *p;
    size_t n;
    bool lend;     /* may go by reference */
    bool lent;     /* some of it did */
    uint32_t ping; /* then: the PING that goes out behind it */
} seg;

/* Buffers that the socket refers to, oldest first. */
typedef struct loan {
    trn_buf *buf;
    uint32_t ping;
} loan;

struct trn_h2_loans {
    size_t n, head, cap;
    loan *v;
};

struct trn_h2 {
    nghttp2_session *ng;
    const trn_h2_hooks *hooks;
    void *user;
    bool server;
    bool got_settings;
    bool peer_pingable;
    bool in_headers;
    bool got_agent;
    const char *agent;
    trn_err broken; /* found inside a callback; ends the connection */

    trn_stream *streams;
    size_t n_streams;
    trn_stream *ready; /* streaming, their answers are out: the next message's turn */
    bool draining;

    /* The DATA frame that is being received. */
    trn_stream *data_s;
    size_t data_left;
    bool data_padded;
    size_t claimed, partial; /* TRN_H2_MAX_CLAIMED, TRN_H2_MAX_PARTIAL */

    /* Segments to be written: [seg_head, seg_end). */
    seg *segs;
    size_t seg_head, seg_end, seg_cap;
    size_t pending;
    trn_buf *stage; /* filled up to stage_n */
    size_t stage_n;

    bool may_lend, ping_out;
    uint32_t ping;   /* the number of the next PING behind loans */
    size_t unasked;  /* bytes that go before it */
    size_t asked;    /* and those before the one that is out */
    trn_h2_loans loans;
};

static const char who[8] = "trainera"; /* payload of our server's first PING: frequent PINGs are welcome here */

/* ---- bytes out ------------------------------------------------------------------------------------------------ */

static void push_seg(trn_h2 *h, TRN_OWN trn_buf *buf, const uint8_t *p, size_t n)
{
    if (h->seg_end == h->seg_cap) {
        if (h->seg_head > 0) {
            memmove(h->segs, h->segs + h->seg_head, (h->seg_end - h->seg_head) * sizeof *h->segs);
            h->seg_end -= h->seg_head;
            h->seg_head = 0;
        }
        if (h->seg_end == h->seg_cap) {
            h->seg_cap = h->seg_cap ? 2 * h->seg_cap : 16;
            h->segs = trn_xrealloc(h->segs, h->seg_cap * sizeof *h->segs);
        }
    }
    h->segs[h->seg_end++] = (seg){.buf = buf, .p = p, .n = n};
    h->pending += n;
}

static bool push_copy(trn_h2 *h, const uint8_t *p, size_t n)
{
    while (n > 0) {
        if (h->stage && h->stage_n == h->stage->size) {
            trn_buf_unref(h->stage);
            h->stage = NULL;
        }
        if (!h->stage) {
            trn_err err = trn_buf_new(&h->stage, STAGE);
            if (err) {
                h->stage = NULL;
                trn_err_free(h->broken);
                h->broken = err;
                return false;
            }
            h->stage_n = 0;
        }
        size_t k = TRN_MIN(n, h->stage->size - h->stage_n);
        uint8_t *to = h->stage->data + h->stage_n;
        memcpy(to, p, k);
        h->stage_n += k;
        seg *last = h->seg_end > h->seg_head ? &h->segs[h->seg_end - 1] : NULL;
        if (last && last->buf == h->stage && last->p + last->n == to) {
            last->n += k;
            h->pending += k;
        } else {
            push_seg(h, trn_buf_ref(h->stage), to, k);
        }
        p += k;
        n -= k;
    }
    return true;
}

static bool next_messages(trn_h2 *h);

trn_err trn_h2_fill(trn_h2 *h)
{
    for (int turns = 0; h->pending < TRN_H2_SEND_BATCH;) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(h->ng, &p);
        if (n < 0 && !h->broken)
            h->broken = trn_errorf(TRN_INTERNAL, "HTTP/2: %s", nghttp2_strerror((int)n));
        if (n == 0 && turns++ < STREAM_TURNS && next_messages(h))
            continue;
        if (n <= 0)
            break;
        if (!push_copy(h, p, (size_t)n))
            break;
    }
    trn_err err = h->broken;
    h->broken = TRN_OK;
    return err;
}

static void add_loan(trn_h2_loans *l, TRN_OWN trn_buf *buf, uint32_t ping)
{
    if (l->n == l->cap && l->head > 0) {
        memmove(l->v, l->v + l->head, (l->n - l->head) * sizeof *l->v);
        l->n -= l->head;
        l->head = 0;
    }
    TRN_PUSH(l->v, l->n, l->cap, ((loan){buf, ping}));
}

/* Whether the peer has read what was lent so far: the next PING goes out behind it. One at a time. */
static void ask_for_loans(trn_h2 *h)
{
    if (h->unasked == 0 || h->ping_out)
        return;
    uint8_t text[8] = {'l', 'o', 'a', 'n', (uint8_t)(h->ping >> 24), (uint8_t)(h->ping >> 16), (uint8_t)(h->ping >> 8), (uint8_t)h->ping};
    if (nghttp2_submit_ping(h->ng, NGHTTP2_FLAG_NONE, text) != 0)
        return; /* no memory: the next message asks again */
    h->ping_out = true;
    h->asked = h->unasked;
    h->unasked = 0;
    h->ping++;
}

/* The peer has read up to a PING of ours. */
static void loans_back(trn_h2 *h, const uint8_t text[8])
{
    uint32_t ping = (uint32_t)text[4] << 24 | (uint32_t)text[5] << 16 | (uint32_t)text[6] << 8 | text[7];
    if (!h->ping_out || memcmp(text, "loan", 4) != 0 || ping != h->ping - 1)
        return;
    h->ping_out = false;
    h->asked = 0;
    trn_h2_loans *l = &h->loans;
    for (; l->head < l->n && (int32_t)(l->v[l->head].ping - ping) <= 0; l->head++)
        trn_buf_unref(l->v[l->head].buf);
    if (l->head == l->n)
        l->head = l->n = 0;
    ask_for_loans(h);
}

void trn_h2_may_lend(trn_h2 *h, bool may)
{
    h->may_lend = may;
    for (size_t i = h->seg_head; i < h->seg_end && !may; i++)
        h->segs[i].lend = false;
}

bool trn_h2_to_lend(trn_h2 *h, struct iovec *v)
{
    if (h->seg_head == h->seg_end || !h->segs[h->seg_head].lend)
        return false;
    *v = (struct iovec){(void *)h->segs[h->seg_head].p, h->segs[h->seg_head].n};
    return true;
}

trn_h2_loans *trn_h2_take_loans(trn_h2 *h)
{
    if (h->seg_head < h->seg_end && h->segs[h->seg_head].lent) /* half of it */
        add_loan(&h->loans, trn_buf_ref(h->segs[h->seg_head].buf), h->segs[h->seg_head].ping);
    if (h->loans.head == h->loans.n)
        return NULL;
    trn_h2_loans *l = trn_xalloc(sizeof *l);
    *l = h->loans;
    h->loans = (trn_h2_loans){0};
    return l;
}

static void drop_loans(trn_h2_loans *l)
{
    for (; l->head < l->n; l->head++)
        trn_buf_unref(l->v[l->head].buf);
    free(l->v);
}

size_t trn_h2_loans_bytes(const trn_h2_loans *l)
{
    size_t n = 0; /* pieces of one buffer lie side by side */
    for (size_t i = l->head; i < l->n; i++)
        n += i > l->head && l->v[i].buf == l->v[i - 1].buf ? 0 : l->v[i].buf->size;
    return n;
}

void trn_h2_loans_free(trn_h2_loans *l)
{
    if (l)
        drop_loans(l);
    free(l);
}

int trn_h2_iov(trn_h2 *h, struct iovec *iov, int max)
{
    int k = 0;
    for (size_t i = h->seg_head; i < h->seg_end && k < max && (k == 0 || !h->segs[i].lend); i++, k++)
        iov[k] = (struct iovec){(void *)h->segs[i].p, h->segs[i].n};
    return k;
}

static void written(trn_h2 *h, size_t n, bool lent)
{
    h->pending -= n;
    while (n > 0) {
        seg *s = &h->segs[h->seg_head];
        s->lent |= lent;
        if (n < s->n) {
            s->p += n;
            s->n -= n;
            return;
        }
        n -= s->n;
        if (s->buf && s->lent)
            add_loan(&h->loans, s->buf, s->ping);
        else if (s->buf)
            trn_buf_unref(s->buf);
        h->seg_head++;
    }
    if (h->seg_head == h->seg_end) {
        h->seg_head = h->seg_end = 0;
        h->stage_n = 0; /* nobody refers to it any more */
    }
}

void trn_h2_sent(trn_h2 *h, size_t n) { written(h, n, false); }
void trn_h2_lent(trn_h2 *h, size_t n) { written(h, n, true); }
size_t trn_h2_pending(const trn_h2 *h) { return h->pending; }

static void mark_loan(trn_h2 *h, const trn_stream *of)
{
    seg *s = &h->segs[h->seg_end - 1];
    if (!h->may_lend || !s->buf || s->n < TRN_H2_LEND_FROM || h->asked + h->unasked > TRN_H2_LEND_MAX || !(h->server || (of->out.may_lend && h->peer_pingable)))
        return;
    s->lend = true;
    s->ping = h->ping;
    h->unasked += s->n;
    if (h->unasked >= TRN_H2_LEND_ASK)
        ask_for_loans(h);
}

/* Moves n bytes of the stream's message (prefix first) to the segments. */
static bool take_out(trn_h2 *h, trn_stream *s, size_t n)
{
    s->started = true;
    s->out_left -= n;
    if (s->out_prefix_n < 5) {
        size_t k = TRN_MIN(n, (size_t)(5 - s->out_prefix_n));
        if (!push_copy(h, s->out_prefix + s->out_prefix_n, k))
            return false;
        s->out_prefix_n += (uint8_t)k;
        n -= k;
    }
    while (n > 0) {
        trn_slice *sl = &s->out.slices[s->out_i];
        size_t k = TRN_MIN(n, sl->n - s->out_off);
        const uint8_t *p = sl->p + s->out_off;
        bool whole = s->out_off + k == sl->n;
        if (k <= COPY_UP_TO) {
            if (!push_copy(h, p, k))
                return false;
        } else if (whole) {
            push_seg(h, sl->buf, p, k); /* the reference moves */
            sl->buf = NULL;
            mark_loan(h, s);
        } else {
            push_seg(h, sl->buf ? trn_buf_ref(sl->buf) : NULL, p, k);
            mark_loan(h, s);
        }
        if (whole) {
            if (sl->buf)
                trn_buf_unref(sl->buf);
            sl->buf = NULL;
            s->out_i++;
            s->out_off = 0;
        } else {
            s->out_off += k;
        }
        n -= k;
    }
    return true;
}

static void set_out(trn_stream *s, trn_out_msg *out)
{
    if (out) {
        s->out = *out;
        *out = (trn_out_msg){0};
    }
    uint32_t n = (uint32_t)s->out.bytes;
    s->out_prefix[0] = 0;
    s->out_prefix[1] = (uint8_t)(n >> 24);
    s->out_prefix[2] = (uint8_t)(n >> 16);
    s->out_prefix[3] = (uint8_t)(n >> 8);
    s->out_prefix[4] = (uint8_t)n;
    s->out_prefix_n = 0;
    s->out_i = 0;
    s->out_off = 0;
    s->out_left = 5 + s->out.bytes;
}

static void drop_out(trn_stream *s)
{
    trn_out_fini(&s->out);
    s->out_left = 0;
}

static void drop_in(trn_h2 *h, trn_stream *s)
{
    if (h && s->message == M_BODY) {
        h->claimed -= s->in.n - s->got;
        h->partial -= s->got;
    }
    s->message = M_DONE;
    trn_msg_fini(&s->in);
    free(s->head);
    s->head = NULL;
}

static void drop_back(trn_h2 *h, trn_stream *s)
{
    h->partial -= s->back.n - s->back_off;
    trn_sb_fini(&s->back);
    s->back_off = 0;
}

void trn_stream_fini(trn_stream *s)
{
    drop_in(NULL, s);
    drop_out(s);
    trn_err_free(s->end);
    s->end = TRN_OK;
    free(s->grpc_message);
    free(s->content_type);
    trn_err_free(s->early);
    s->grpc_message = s->content_type = NULL;
    s->early = TRN_OK;
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

static void link_stream(trn_h2 *h, trn_stream *s)
{
    s->h2 = h;
    s->prev = NULL;
    s->next = h->streams;
    if (s->next)
        s->next->prev = s;
    h->streams = s;
    h->n_streams++;
    s->grpc_status = -1;
}

static void unlink_stream(trn_h2 *h, trn_stream *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        h->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    h->n_streams--;
    if (h->data_s == s)
        h->data_s = NULL;
    if (!h->server || s->state == TRN_STREAM_READING) /* a handler may still be reading the request */
        drop_in(h, s);
    drop_back(h, s);
    ask_for_loans(h); /* it may have ended in the middle of its message */
    for (trn_stream **at = &h->ready; s->ready && *at; at = &(*at)->next_ready)
        if (*at == s) {
            *at = s->next_ready;
            break;
        }
    s->h2 = NULL;
    h->hooks->closed(h->user, s);
}

#define NV(name_, value_, len_, flags_)                                                                                \
    ((nghttp2_nv){(uint8_t *)(name_), (uint8_t *)(value_), sizeof(name_) - 1, (len_), (flags_)})
#define NV_STATIC(name_, value_)                                                                                       \
    NV(name_, value_, sizeof(value_) - 1, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE)

/* The status that ends an answer, as trailers; `text` holds the values until they are submitted. */
typedef struct status_text {
    char code[4], text[TRN_H2_STATUS_TEXT], details[TRN_GRPC_DETAILS_TEXT];
} status_text;

static size_t status_nv(trn_h2 *h, nghttp2_nv *nv, status_text *t, const trn_error *err)
{
    uint32_t peer_max = nghttp2_session_get_remote_settings(h->ng, NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE);
    size_t max = peer_max < sizeof t->text + 512 ? (peer_max > 1024 ? peer_max - 512 : 512) : sizeof t->text;
    size_t n = trn_grpc_message_encode(t->text, max, err ? trn_err_msg(err) : "");
    size_t code_n = (size_t)snprintf(t->code, sizeof t->code, "%d", err ? (int)trn_err_code(err) : 0);
    size_t nvs = 0;
    nv[nvs++] = NV("grpc-status", t->code, code_n, NGHTTP2_NV_FLAG_NO_COPY_NAME);
    nv[nvs++] = NV("grpc-message", t->text, n, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_INDEX);
    size_t details_n = trn_grpc_details_text(t->details, trn_err_marks(err));
    if (details_n)
        nv[nvs++] = NV("grpc-status-details-bin", t->details, details_n, NGHTTP2_NV_FLAG_NO_COPY_NAME);
    return nvs;
}

/* A stream between its messages, or at its end. */
static ssize_t read_between(trn_h2 *h, trn_stream *s, uint32_t *flags)
{
    if (s->state != TRN_STREAM_REPLIED)
        return NGHTTP2_ERR_DEFERRED;
    nghttp2_nv nv[3];
    status_text text;
    size_t n = status_nv(h, nv, &text, s->end);
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    return nghttp2_submit_trailer(h->ng, s->id, nv, n) == 0 ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static ssize_t read_out(nghttp2_session *ng, int32_t id, uint8_t *buf, size_t length, uint32_t *flags,
                        nghttp2_data_source *source, void *user)
{
    (void)buf;
    trn_h2 *h = user;
    trn_stream *s = source->ptr;
    if (s->streaming && s->out_left == 0)
        return read_between(h, s, flags);
    if (s->out_left == 0) /* cancelled: its RST_STREAM is on the way */
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (length < s->out_left)
        return (ssize_t)length;
    if (s->streaming)
        return (ssize_t)s->out_left;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (h->server) {
        static const nghttp2_nv ok[] = {NV_STATIC("grpc-status", "0")};
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(ng, id, ok, TRN_COUNTOF(ok)) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)s->out_left;
}

static int send_data(nghttp2_session *ng, nghttp2_frame *frame, const uint8_t *head, size_t length,
                     nghttp2_data_source *source, void *user)
{
    (void)ng, (void)frame;
    trn_h2 *h = user;
    trn_stream *s = source->ptr;
    if (s->out_left < length)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (h->pending >= TRN_H2_SEND_BATCH)
        return NGHTTP2_ERR_WOULDBLOCK;
    if (!push_copy(h, head, 9) || !take_out(h, s, length))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (s->out_left == 0)
        ask_for_loans(h);
    if (s->streaming && s->out_left == 0) {
        drop_out(s);
        if (s->state == TRN_STREAM_OPEN) {
            s->ready = true;
            s->next_ready = h->ready;
            h->ready = s;
        }
    }
    return 0;
}

/* nghttp2 reserves this many bytes, so ask for no more than the stream has. */
static ssize_t read_length(nghttp2_session *ng, uint8_t type, int32_t id, int32_t conn_window, int32_t stream_window,
                           uint32_t max_frame, void *user)
{
    (void)type, (void)conn_window, (void)stream_window, (void)user;
    const trn_stream *s = nghttp2_session_get_stream_user_data(ng, id);
    size_t n = TRN_MIN((size_t)max_frame, (size_t)TRN_H2_SEND_FRAME);
    if (s && s->out_left < n)
        n = s->out_left;
    return n > 0 ? (ssize_t)n : 1;
}

/* ---- answers (server) ----------------------------------------------------------------------------------------- */

static void reset(trn_h2 *h, trn_stream *s, uint32_t code)
{
    nghttp2_submit_rst_stream(h->ng, NGHTTP2_FLAG_NONE, s->id, code);
}

/* Headers and status in one; err NULL: it ended well, without a message. */
static void answer_status(trn_h2 *h, trn_stream *s, const trn_error *err)
{
    status_text text;
    nghttp2_nv nv[5] = {NV_STATIC(":status", "200"), NV_STATIC("content-type", "application/grpc")};
    size_t n = 2 + status_nv(h, nv + 2, &text, err);
    if (nghttp2_submit_response(h->ng, s->id, nv, n, NULL) != 0)
        reset(h, s, NGHTTP2_INTERNAL_ERROR);
}

static trn_err too_large(const trn_out_msg *body)
{
    if (!body || body->bytes <= UINT32_MAX)
        return TRN_OK;
    return trn_errorf(TRN_RESOURCE_EXHAUSTED, "the answer has %zu bytes, more than a gRPC message holds", body->bytes);
}

static void submit_answer(trn_h2 *h, trn_stream *s)
{
    static const nghttp2_nv nv[] = {NV_STATIC(":status", "200"), NV_STATIC("content-type", "application/grpc")};
    nghttp2_data_provider data = {.source.ptr = s, .read_callback = read_out};
    if (nghttp2_submit_response(h->ng, s->id, nv, TRN_COUNTOF(nv), &data) != 0)
        reset(h, s, NGHTTP2_INTERNAL_ERROR);
}

void trn_h2_send(trn_stream *s, trn_out_msg *body)
{
    trn_h2 *h = s->h2;
    trn_err err = too_large(body);
    if (err) {
        trn_h2_reply(s, err, body);
        return;
    }
    if (!h || !s->streaming || s->state != TRN_STREAM_OPEN) {
        if (body)
            trn_out_fini(body);
        return;
    }
    set_out(s, body);
    if (s->responding)
        nghttp2_session_resume_data(h->ng, s->id); /* refused when it was not told to wait yet */
    else {
        s->responding = true;
        submit_answer(h, s);
    }
}

void trn_h2_reply(trn_stream *s, trn_err err, trn_out_msg *body)
{
    trn_h2 *h = s->h2;
    if (!h || (s->state != TRN_STREAM_OPEN && s->state != TRN_STREAM_READING)) {
        trn_err_free(err);
        if (body)
            trn_out_fini(body);
        return;
    }
    s->state = TRN_STREAM_REPLIED;
    drop_back(h, s);
    if (!err)
        err = too_large(body);
    if (err || s->streaming) {
        if (body)
            trn_out_fini(body);
        if (s->responding) { /* behind what is on its way */
            s->end = err;
            nghttp2_session_resume_data(h->ng, s->id);
            return;
        }
        answer_status(h, s, err);
        trn_err_free(err);
        return;
    }
    set_out(s, body);
    submit_answer(h, s);
}

/* Input that no handler sees. What still comes of it is thrown away; the stream is reset once the answer is out. */
static void refuse(trn_h2 *h, trn_stream *s, trn_err err)
{
    if (s->state != TRN_STREAM_READING) {
        trn_err_free(err);
        return;
    }
    drop_in(h, s);
    h->hooks->refused(h->user, s, trn_err_code(err));
    trn_h2_reply(s, err, NULL);
}

/* ---- calls (client) ------------------------------------------------------------------------------------------- */

trn_err trn_h2_call(trn_h2 *h, trn_stream *s, const char *authority, const char *path, uint64_t timeout_ns,
                    trn_out_msg *out, bool *gone)
{
    *gone = false;
    if (out && out->bytes > UINT32_MAX) {
        trn_err err = trn_errorf(TRN_RESOURCE_EXHAUSTED,
                                 "%s: the request has %zu bytes, more than a gRPC message holds", path, out->bytes);
        trn_out_fini(out);
        return err;
    }
    char timeout[TRN_GRPC_TIMEOUT_TEXT];
    enum { COPY_VALUE = NGHTTP2_NV_FLAG_NO_COPY_NAME };
    nghttp2_nv nv[8] = {
        NV_STATIC(":method", "POST"),
        NV_STATIC(":scheme", "http"),
        NV(":path", path, strlen(path), COPY_VALUE),
        NV(":authority", authority, strlen(authority), COPY_VALUE),
        NV_STATIC("te", "trailers"),
        NV_STATIC("content-type", "application/grpc"),
        NV("user-agent", h->agent, strlen(h->agent), COPY_VALUE),
    };
    size_t nvs = 7;
    if (timeout_ns)
        nv[nvs++] = NV("grpc-timeout", timeout, trn_grpc_timeout_text(timeout, timeout_ns),
                       COPY_VALUE | NGHTTP2_NV_FLAG_NO_INDEX);
    nghttp2_data_provider data = {.source.ptr = s, .read_callback = read_out};
    int32_t id = nghttp2_submit_request(h->ng, NULL, nv, nvs, &data, s);
    if (id == NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE) {
        *gone = true;
        return TRN_OK;
    }
    if (id < 0) {
        if (out)
            trn_out_fini(out);
        return trn_errorf(TRN_INTERNAL, "%s: HTTP/2: %s", path, nghttp2_strerror(id));
    }
    set_out(s, out);
    s->id = id;
    s->state = TRN_STREAM_READING;
    if (!s->max_in)
        s->max_in = TRN_H2_MAX_MESSAGE;
    link_stream(h, s);
    return TRN_OK;
}

void trn_h2_cancel(trn_stream *s)
{
    trn_h2 *h = s->h2;
    if (!h || s->state == TRN_STREAM_OVER)
        return;
    s->state = TRN_STREAM_OVER;
    drop_in(h, s);
    drop_out(s);
    reset(h, s, NGHTTP2_CANCEL);
}

/* The call's outcome. The stream itself may live on until nghttp2 has closed it. */
static void finish(trn_h2 *h, trn_stream *s, trn_err err)
{
    if (s->state == TRN_STREAM_OVER) {
        trn_err_free(err);
        return;
    }
    s->state = TRN_STREAM_OVER;
    h->hooks->done(h->user, s, err);
    drop_in(h, s);
    drop_out(s);
}

static void bad_stream(trn_h2 *h, trn_stream *s, trn_err err)
{
    if (h->server) {
        refuse(h, s, err);
        return;
    }
    bool open = s->state != TRN_STREAM_OVER;
    finish(h, s, err);
    if (open)
        reset(h, s, NGHTTP2_CANCEL);
}

static void answer_over(trn_h2 *h, trn_stream *s)
{
    trn_err err;
    if (s->too_much_header)
        err = trn_errorf(TRN_RESOURCE_EXHAUSTED, "the answer's headers exceed %d bytes", TRN_H2_MAX_HEADERS);
    else if (s->grpc_status > 0) {
        err = trn_errorf(s->grpc_status > TRN_UNAUTHENTICATED ? TRN_UNKNOWN : (trn_code)s->grpc_status, "%s",
                         s->grpc_message ? s->grpc_message : "");
        err = trn_err_mark(err, s->marks);
    } else if (s->http_status != 200)
        err = trn_errorf(trn_grpc_code_from_http(s->http_status), "the peer answered with HTTP status %d",
                         s->http_status);
    else if (!s->grpc_type)
        err = trn_errorf(TRN_UNKNOWN, "the peer answered with content-type \"%s\", not application/grpc",
                         s->content_type ? s->content_type : "");
    else if (s->grpc_status < 0)
        err = trn_errorf(TRN_UNKNOWN, "the answer ended without grpc-status");
    else if (s->message == M_PREFIX && s->prefix_n == 0)
        err = trn_errorf(TRN_INTERNAL, "the answer ended without a message");
    else if (s->message != M_DONE)
        err = trn_errorf(TRN_INTERNAL, "the answer ended after %zu of %zu bytes", s->got, s->in.n);
    else
        err = TRN_OK;
    int32_t id = s->id;
    finish(h, s, err);
    if (nghttp2_session_get_stream_local_close(h->ng, id) == 0) /* answered before it had all of the request */
        nghttp2_submit_rst_stream(h->ng, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
}

/* ---- the message coming in ------------------------------------------------------------------------------------ */

static trn_err begin_message(trn_h2 *h, trn_stream *s)
{
    if (s->prefix[0] == 1)
        return trn_errorf(TRN_UNIMPLEMENTED, "the message is compressed: only identity is supported");
    if (s->prefix[0] != 0)
        return trn_errorf(TRN_INTERNAL, "bad gRPC framing: flag byte %d", s->prefix[0]);
    size_t n = (size_t)s->prefix[1] << 24 | (size_t)s->prefix[2] << 16 | (size_t)s->prefix[3] << 8 | s->prefix[4];
    if (n > s->max_in)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "a message of %zu bytes exceeds the limit of %zu", n, s->max_in);
    if (h->claimed + n > TRN_H2_MAX_CLAIMED)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "messages announced on this connection exceed %zu bytes",
                          TRN_H2_MAX_CLAIMED);
    s->in.n = n;
    s->in.p = (const uint8_t *)"";
    s->got = 0;
    s->message = n == 0 ? M_DONE : M_HEAD;
    return TRN_OK;
}

/* Where in its buffer a message begins, so that the tensor in it is aligned. That of a large one begins in the middle of a page: Zen 4 copies at a quarter of its
 * speed (rep movsb, the kernel's way and glibc's) when the destination lies 1 to 15 bytes further in its page than the source does in its own. A sender's kernel
 * fills pages from their start on, some 60 bytes of heads and then the tensor: just before the next multiple of 64. */
static size_t message_shift(size_t n, int64_t offset)
{
    size_t to = n >= TRN_H2_LARGE ? TRN_H2_PAGE / 2 : 0, unit = n >= TRN_H2_LARGE ? TRN_H2_PAGE : 64;
    return (to + unit - (size_t)TRN_MAX(offset, 0) % unit) % unit;
}

static trn_err alloc_message(trn_h2 *h, trn_stream *s, int64_t offset)
{
    size_t shift = message_shift(s->in.n, offset);
    trn_err err = TRN_FAULT("wire.alloc") ? trn_err_oom() : trn_buf_new(&s->in.buf, s->in.n + shift);
    if (err) {
        s->in.buf = NULL;
        trn_err_free(err);
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "no memory for a message of %zu bytes", s->in.n);
    }
    s->in.p = s->in.buf->data + shift;
    s->message = M_BODY;
    h->claimed += s->in.n - s->got;
    h->partial += s->got;
    return TRN_OK;
}

/* Takes as many bytes as `align` needs to decide; usually the first piece that comes. */
static trn_err choose_alignment(trn_h2 *h, trn_stream *s, const uint8_t **p, size_t *n)
{
    if (!s->head) {
        size_t have = TRN_MIN(*n, s->in.n);
        int64_t offset = s->align ? s->align(*p, have, s->in.n) : -1;
        if (offset != -2 || have == s->in.n || have >= HEAD_MAX)
            return alloc_message(h, s, offset);
        s->head = trn_xalloc(TRN_MIN(s->in.n, (size_t)HEAD_MAX));
    }
    size_t cap = TRN_MIN(s->in.n, (size_t)HEAD_MAX), k = TRN_MIN(*n, cap - s->got);
    memcpy(s->head + s->got, *p, k);
    s->got += k;
    *p += k;
    *n -= k;
    int64_t offset = s->align(s->head, s->got, s->in.n);
    if (offset == -2 && s->got < cap)
        return TRN_OK;
    TRN_TRY(alloc_message(h, s, offset));
    memcpy((uint8_t *)s->in.p, s->head, s->got);
    free(s->head);
    s->head = NULL;
    if (s->got == s->in.n) {
        h->partial -= s->got;
        s->message = M_DONE;
    }
    return TRN_OK;
}

/* Up to the message's end; what follows is left. */
static trn_err take_in(trn_h2 *h, trn_stream *s, const uint8_t **p, size_t *n)
{
    while (*n > 0 && s->message != M_DONE) {
        switch (s->message) {
        case M_PREFIX: {
            size_t k = TRN_MIN(*n, (size_t)(5 - s->prefix_n));
            memcpy(s->prefix + s->prefix_n, *p, k);
            s->prefix_n += (uint8_t)k;
            *p += k;
            *n -= k;
            if (s->prefix_n == 5)
                TRN_TRY(begin_message(h, s));
            break;
        }
        case M_HEAD:
            TRN_TRY(choose_alignment(h, s, p, n));
            break;
        default: { /* M_BODY */
            size_t k = TRN_MIN(*n, s->in.n - s->got);
            uint8_t *to = (uint8_t *)s->in.p + s->got;
            if (to != *p)
                memcpy(to, *p, k);
            s->got += k;
            h->claimed -= k;
            h->partial += k;
            *p += k;
            *n -= k;
            if (s->got == s->in.n) {
                h->partial -= s->got;
                s->message = M_DONE;
            } else if (h->partial > TRN_H2_MAX_PARTIAL) {
                return trn_errorf(TRN_RESOURCE_EXHAUSTED, "unfinished messages on this connection exceed %zu bytes",
                                  TRN_H2_MAX_PARTIAL);
            }
            break;
        }
        }
    }
    return *n > 0 && !s->streaming ? trn_errorf(TRN_INTERNAL, "more than one message in a unary call") : TRN_OK;
}

/* ---- streams of messages (server) ------------------------------------------------------------------------------ */

static void request_over(trn_h2 *h, trn_stream *s);

/* The client may send as much again. */
static void credit(trn_h2 *h, trn_stream *s, size_t n)
{
    if (n > 0)
        nghttp2_session_consume_stream(h->ng, s->id, n);
}

static void hand_over(trn_h2 *h, trn_stream *s)
{
    if (s->message != M_DONE)
        return;
    s->state = TRN_STREAM_OPEN;
    h->hooks->request(h->user, s);
}

/* What came while a message was with its handler. */
static void take_back(trn_h2 *h, trn_stream *s)
{
    while (s->state == TRN_STREAM_READING && s->back_off < s->back.n) {
        const uint8_t *p = (const uint8_t *)s->back.p + s->back_off;
        size_t n = s->back.n - s->back_off, before = n;
        trn_err err = take_in(h, s, &p, &n);
        s->back_off += before - n;
        h->partial -= before - n;
        credit(h, s, before - n);
        if (err)
            bad_stream(h, s, err);
        else
            hand_over(h, s);
    }
    if (s->back_off == s->back.n)
        drop_back(h, s);
    if (s->half_closed)
        request_over(h, s);
}

/* Those whose answers are out go on with their next message. False: there was none. */
static bool next_messages(trn_h2 *h)
{
    trn_stream *list = h->ready;
    h->ready = NULL;
    for (trn_stream *s = list; s; s = s->next_ready)
        s->ready = false;
    for (trn_stream *s = list, *next; s; s = next) {
        next = s->next_ready;
        if (s->state != TRN_STREAM_OPEN)
            continue;
        s->state = TRN_STREAM_READING;
        s->message = M_PREFIX;
        s->prefix_n = 0;
        s->got = 0;
        trn_msg_fini(&s->in);
        if (h->draining)
            trn_h2_reply(s, trn_errorf(TRN_UNAVAILABLE, "the server is closing"), NULL);
        else
            take_back(h, s);
    }
    return list;
}

static trn_err keep_back(trn_h2 *h, trn_stream *s, const uint8_t *p, size_t n)
{
    if (s->back_off > s->back.n / 2) {
        memmove(s->back.p, s->back.p + s->back_off, s->back.n - s->back_off);
        s->back.n -= s->back_off;
        s->back_off = 0;
    }
    trn_sb_add(&s->back, p, n);
    h->partial += n;
    if (h->partial > TRN_H2_MAX_PARTIAL)
        return trn_errorf(TRN_RESOURCE_EXHAUSTED, "unfinished messages on this connection exceed %zu bytes", TRN_H2_MAX_PARTIAL);
    return TRN_OK;
}

static void take_stream(trn_h2 *h, trn_stream *s, const uint8_t *p, size_t n)
{
    trn_err err = TRN_OK;
    if (s->state == TRN_STREAM_READING) {
        size_t before = n;
        err = take_in(h, s, &p, &n);
        credit(h, s, before - n);
        if (!err)
            hand_over(h, s);
    }
    if (!err && n > 0 && s->state == TRN_STREAM_OPEN)
        err = keep_back(h, s, p, n);
    if (err)
        bad_stream(h, s, err);
}

size_t trn_h2_want(trn_h2 *h, uint8_t **dest)
{
    trn_stream *s = h->data_s;
    if (!s || s->state != TRN_STREAM_READING || s->message != M_BODY || h->data_padded)
        return 0;
    *dest = (uint8_t *)s->in.p + s->got;
    return TRN_MIN(h->data_left, s->in.n - s->got);
}

/* ---- nghttp2's callbacks -------------------------------------------------------------------------------------- */

static trn_stream *stream_of(nghttp2_session *ng, int32_t id)
{
    return id ? nghttp2_session_get_stream_user_data(ng, id) : NULL;
}

static int on_begin_frame(nghttp2_session *ng, const nghttp2_frame_hd *hd, void *user)
{
    trn_h2 *h = user;
    h->data_s = NULL;
    if (hd->type == NGHTTP2_DATA) {
        h->data_s = stream_of(ng, hd->stream_id);
        h->data_left = hd->length;
        h->data_padded = hd->flags & NGHTTP2_FLAG_PADDED;
    } else if (hd->type == NGHTTP2_HEADERS) {
        h->in_headers = true;
    }
    return 0;
}

static int on_data_chunk(nghttp2_session *ng, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *user)
{
    (void)flags;
    trn_h2 *h = user;
    trn_stream *s = h->data_s;
    h->data_left -= TRN_MIN(n, h->data_left);
    nghttp2_session_consume_connection(ng, n); /* only streams push back */
    if (s && s->streaming && (s->state == TRN_STREAM_READING || s->state == TRN_STREAM_OPEN)) {
        take_stream(h, s, p, n);
        return 0;
    }
    nghttp2_session_consume_stream(ng, id, n);
    if (!s || s->state != TRN_STREAM_READING)
        return 0; /* answered or cancelled already */
    if (!h->server && (s->http_status != 200 || !s->grpc_type))
        return 0; /* some proxy's page for people: the status says it */
    trn_err err = take_in(h, s, &p, &n);
    if (err)
        bad_stream(h, s, err);
    return 0;
}

static int on_begin_headers(nghttp2_session *ng, const nghttp2_frame *frame, void *user)
{
    trn_h2 *h = user;
    if (!h->server || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    trn_stream *s = h->hooks->open(h->user);
    if (!s) {
        nghttp2_submit_rst_stream(ng, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
        return 0;
    }
    s->id = frame->hd.stream_id;
    s->state = TRN_STREAM_READING;
    s->max_in = TRN_H2_MAX_MESSAGE;
    link_stream(h, s);
    nghttp2_session_set_stream_user_data(ng, s->id, s);
    return 0;
}

static bool is(const uint8_t *p, size_t n, const char *text, size_t len)
{
    return n == len && memcmp(p, text, len) == 0;
}
#define IS(p, n, text) is(p, n, text, sizeof(text) - 1)

static void set_early(trn_stream *s, trn_err err)
{
    if (s->early)
        trn_err_free(err);
    else
        s->early = err;
}

static bool is_grpc(const uint8_t *v, size_t n)
{
    static const char t[] = "application/grpc";
    size_t k = sizeof t - 1;
    return n >= k && memcmp(v, t, k) == 0 && (n == k || v[k] == '+' || v[k] == ';');
}

static int small_number(const uint8_t *v, size_t n)
{
    int x = 0;
    if (n == 0 || n > 3)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9')
            return -1;
        x = x * 10 + (v[i] - '0');
    }
    return x;
}

static void request_header(trn_h2 *h, trn_stream *s, const uint8_t *name, size_t nl, const uint8_t *v, size_t vl)
{
    if (IS(name, nl, ":path")) {
        s->has_path = true;
        set_early(s, h->hooks->route(h->user, s, (const char *)v, vl));
    } else if (IS(name, nl, ":method")) {
        s->is_post = IS(v, vl, "POST");
    } else if (IS(name, nl, "content-type")) {
        s->grpc_type = is_grpc(v, vl);
    } else if (!h->got_agent && IS(name, nl, "user-agent")) {
        h->got_agent = true;
        if (h->hooks->agent)
            h->hooks->agent(h->user, (const char *)v, vl);
    } else if (IS(name, nl, "grpc-timeout")) {
        if (!trn_grpc_timeout_parse(&s->timeout_ns, (const char *)v, vl))
            set_early(s, trn_errorf(TRN_INTERNAL, "bad grpc-timeout \"%.*s\"", (int)TRN_MIN(vl, (size_t)32),
                                    (const char *)v));
        else if (s->timeout_ns == 0)
            s->timeout_ns = 1;
    }
}

static void answer_header(trn_stream *s, const uint8_t *name, size_t nl, const uint8_t *v, size_t vl)
{
    if (IS(name, nl, "grpc-status")) {
        s->grpc_status = small_number(v, vl);
        if (s->grpc_status < 0)
            s->grpc_status = TRN_UNKNOWN;
    } else if (IS(name, nl, ":status")) {
        s->http_status = small_number(v, vl);
    } else if (IS(name, nl, "content-type")) {
        s->grpc_type = is_grpc(v, vl);
        if (!s->grpc_type && !s->content_type)
            s->content_type = trn_xstrndup((const char *)v, TRN_MIN(vl, (size_t)128));
    } else if (IS(name, nl, "grpc-message")) {
        free(s->grpc_message);
        s->grpc_message = trn_grpc_message_decode((const char *)v, vl);
    } else if (IS(name, nl, "grpc-status-details-bin")) {
        s->marks = trn_grpc_details_marks((const char *)v, vl);
    }
}

static int on_header(nghttp2_session *ng, const nghttp2_frame *frame, const uint8_t *name, size_t nl, const uint8_t *v,
                     size_t vl, uint8_t flags, void *user)
{
    (void)flags;
    trn_h2 *h = user;
    trn_stream *s = stream_of(ng, frame->hd.stream_id);
    if (!s || s->state != TRN_STREAM_READING)
        return 0;
    s->header_bytes += (uint32_t)(nl + vl + 32);
    if (s->header_bytes > TRN_H2_MAX_HEADERS) {
        s->too_much_header = true;
        return 0;
    }
    if (h->server) {
        if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
            request_header(h, s, name, nl, v, vl);
    } else {
        answer_header(s, name, nl, v, vl);
    }
    return 0;
}

static void request_headers_over(trn_h2 *h, trn_stream *s)
{
    if (s->too_much_header) {
        trn_err_free(s->early);
        s->early = trn_errorf(TRN_RESOURCE_EXHAUSTED, "the request's headers exceed %d bytes", TRN_H2_MAX_HEADERS);
    } else if (!s->is_post || !s->has_path) {
        set_early(s, trn_errorf(TRN_UNIMPLEMENTED, "only POST is understood over HTTP/2"));
    } else if (!s->grpc_type) {
        trn_err_free(s->early);
        s->early = TRN_OK;
        static const nghttp2_nv nv[] = {NV_STATIC(":status", "415")};
        s->state = TRN_STREAM_REPLIED;
        h->hooks->refused(h->user, s, TRN_INTERNAL);
        nghttp2_submit_response(h->ng, s->id, nv, TRN_COUNTOF(nv), NULL);
        return;
    }
    if (s->early) {
        trn_err err = s->early;
        s->early = TRN_OK;
        refuse(h, s, err);
    }
}

static void request_over(trn_h2 *h, trn_stream *s)
{
    s->half_closed = true;
    if (s->state != TRN_STREAM_READING)
        return;
    if (s->message == M_PREFIX && s->prefix_n == 0 && s->streaming)
        trn_h2_reply(s, TRN_OK, NULL);
    else if (s->message == M_PREFIX && s->prefix_n == 0)
        refuse(h, s, trn_errorf(TRN_INTERNAL, "the request ended without a message"));
    else if (s->message == M_PREFIX)
        refuse(h, s, trn_errorf(TRN_INTERNAL, "the request ended after %d of a message's 5 prefix bytes", s->prefix_n));
    else if (s->message != M_DONE)
        refuse(h, s, trn_errorf(TRN_INTERNAL, "the request ended after %zu of %zu bytes", s->got, s->in.n));
    else {
        s->state = TRN_STREAM_OPEN;
        h->hooks->request(h->user, s);
    }
}

static int on_frame(nghttp2_session *ng, const nghttp2_frame *frame, void *user)
{
    trn_h2 *h = user;
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS: {
        h->in_headers = false;
        trn_stream *s = stream_of(ng, frame->hd.stream_id);
        if (!s)
            break;
        if (h->server && frame->headers.cat == NGHTTP2_HCAT_REQUEST && s->state == TRN_STREAM_READING)
            request_headers_over(h, s);
        if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
            break;
        if (h->server)
            request_over(h, s);
        else
            answer_over(h, s);
        break;
    }
    case NGHTTP2_DATA: {
        if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
            break;
        trn_stream *s = stream_of(ng, frame->hd.stream_id);
        if (!s)
            break;
        if (h->server)
            request_over(h, s);
        else
            answer_over(h, s); /* no trailers: says so */
        break;
    }
    case NGHTTP2_SETTINGS:
        if (!(frame->hd.flags & NGHTTP2_FLAG_ACK) && !h->got_settings) {
            h->got_settings = true;
            h->hooks->settings(h->user);
        }
        break;
    case NGHTTP2_PING:
        if (!(frame->hd.flags & NGHTTP2_FLAG_ACK) && memcmp(frame->ping.opaque_data, who, 8) == 0)
            h->peer_pingable = true;
        if (frame->hd.flags & NGHTTP2_FLAG_ACK)
            loans_back(h, frame->ping.opaque_data);
        break;
    case NGHTTP2_GOAWAY:
        h->hooks->goaway(h->user, frame->goaway.error_code, (const char *)frame->goaway.opaque_data,
                         frame->goaway.opaque_data_len);
        break;
    default:
        break;
    }
    return 0;
}

static int on_frame_sent(nghttp2_session *ng, const nghttp2_frame *frame, void *user)
{
    trn_h2 *h = user;
    /* Answered before the request was whole: ask the client to stop sending. */
    if (h->server && frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) &&
        nghttp2_session_get_stream_remote_close(ng, frame->hd.stream_id) == 0)
        nghttp2_submit_rst_stream(ng, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

static int on_stream_close(nghttp2_session *ng, int32_t id, uint32_t code, void *user)
{
    trn_h2 *h = user;
    trn_stream *s = stream_of(ng, id);
    if (!s)
        return 0;
    if (!h->server && s->state != TRN_STREAM_OVER) {
        s->refused = code == NGHTTP2_REFUSED_STREAM;
        trn_err err =
            code == NGHTTP2_REFUSED_STREAM
                ? trn_errorf(TRN_UNAVAILABLE, "the peer takes no more calls on this connection")
            : code == NGHTTP2_NO_ERROR
                ? trn_errorf(TRN_UNKNOWN, "the stream ended without grpc-status")
                : trn_errorf(trn_grpc_code_from_h2(code), "the stream was reset with %s", nghttp2_http2_strerror(code));
        finish(h, s, err);
    }
    nghttp2_session_set_stream_user_data(ng, id, NULL);
    unlink_stream(h, s);
    return 0;
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

trn_err trn_h2_new(trn_h2 **out, bool server, const trn_h2_hooks *hooks, void *user)
{
    nghttp2_session_callbacks *cb = NULL;
    nghttp2_option *opt = NULL;
    trn_h2 *h = trn_xalloc(sizeof *h);
    h->server = server;
    h->agent = "trainera/" TRAINERA_VERSION;
    h->hooks = hooks;
    h->user = user;
    if (nghttp2_session_callbacks_new(&cb) != 0 || nghttp2_option_new(&opt) != 0)
        goto fail;
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_send_data_callback(cb, send_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(cb, read_length);
    nghttp2_option_set_no_closed_streams(opt, 1);
    nghttp2_option_set_no_auto_window_update(opt, 1); /* on_data_chunk and credit() open the windows again */
    /* A step that is cancelled resets all its parked calls at once: that is no attack. */
    nghttp2_option_set_stream_reset_rate_limit(opt, 4 * TRN_H2_MAX_STREAMS, TRN_H2_MAX_STREAMS);
    int rv = server ? nghttp2_session_server_new2(&h->ng, cb, h, opt) : nghttp2_session_client_new2(&h->ng, cb, h, opt);
    if (rv != 0)
        goto fail;
    nghttp2_settings_entry iv[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, TRN_H2_STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, (1 << 24) - 1},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, TRN_H2_MAX_HEADERS},
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, server ? TRN_H2_MAX_STREAMS : 0},
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}, /* clients only */
    };
    if (nghttp2_submit_settings(h->ng, NGHTTP2_FLAG_NONE, iv, server ? 4 : 5) != 0 ||
        nghttp2_session_set_local_window_size(h->ng, NGHTTP2_FLAG_NONE, 0, TRN_H2_CONN_WINDOW) != 0 ||
        (server && nghttp2_submit_ping(h->ng, NGHTTP2_FLAG_NONE, (const uint8_t *)who) != 0))
        goto fail;
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(opt);
    *out = h;
    return TRN_OK;
fail:
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(opt);
    nghttp2_session_del(h->ng);
    free(h);
    return trn_err_oom();
}

void trn_h2_free(trn_h2 *h, const trn_error *why)
{
    if (!h)
        return;
    while (h->streams) {
        trn_stream *s = h->streams;
        if (!h->server && s->state != TRN_STREAM_OVER)
            finish(h, s, why ? trn_err_copy(why) : trn_errorf(TRN_UNAVAILABLE, "the connection was closed"));
        unlink_stream(h, s);
    }
    nghttp2_session_del(h->ng);
    for (size_t i = h->seg_head; i < h->seg_end; i++)
        if (h->segs[i].buf)
            trn_buf_unref(h->segs[i].buf);
    free(h->segs);
    drop_loans(&h->loans);
    if (h->stage)
        trn_buf_unref(h->stage);
    trn_err_free(h->broken);
    free(h);
}

trn_err trn_h2_recv(trn_h2 *h, const uint8_t *p, size_t n)
{
    ssize_t k = nghttp2_session_mem_recv(h->ng, p, n);
    if (k < 0 && !h->broken)
        h->broken = trn_errorf(TRN_UNAVAILABLE, "HTTP/2: %s", nghttp2_strerror((int)k));
    trn_err err = h->broken;
    h->broken = TRN_OK;
    return err;
}

bool trn_h2_alive(trn_h2 *h)
{
    return h->pending > 0 || nghttp2_session_want_read(h->ng) || nghttp2_session_want_write(h->ng);
}
size_t trn_h2_streams(const trn_h2 *h) { return h->n_streams; }
bool trn_h2_in_headers(const trn_h2 *h) { return h->in_headers; }
void trn_h2_set_agent(trn_h2 *h, const char *agent) { h->agent = agent; }
bool trn_h2_peer_pingable(const trn_h2 *h) { return h->peer_pingable || h->server; /* clients never count PINGs */ }
void trn_h2_ping(trn_h2 *h) { nghttp2_submit_ping(h->ng, NGHTTP2_FLAG_NONE, NULL); }

void trn_h2_goaway(trn_h2 *h)
{
    nghttp2_submit_goaway(h->ng, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(h->ng), NGHTTP2_NO_ERROR,
                          NULL, 0);
    h->draining = true;
    for (trn_stream *s = h->streams; s; s = s->next)
        if (s->streaming && s->state == TRN_STREAM_READING)
            trn_h2_reply(s, trn_errorf(TRN_UNAVAILABLE, "the server is closing"), NULL);
}
