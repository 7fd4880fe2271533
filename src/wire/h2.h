/* One HTTP/2 connection that carries gRPC calls, either side, without I/O: bytes in, iovecs out. Unary ones, and as a server streams
 * whose every message is answered by one, in order.
 *
 *   socket bytes → trn_h2_recv → hooks (request / done / closed)
 *   trn_h2_call, trn_h2_reply, … → nghttp2's queues → trn_h2_fill → trn_h2_iov → socket → trn_h2_sent
 *
 * A stream is one call. Its storage belongs to the server's call or the client's rpc; this module refers to it from `open`
 * (server) or trn_h2_call (client) until the hook `closed`, which always comes, exactly once.
 *
 *   server stream:  HEADERS      → READING   route() names the method's limits
 *                   END_STREAM   → OPEN      request(): the one message is whole
 *                   trn_h2_reply → REPLIED   (any bad input on the way: answered here, goes to REPLIED without request())
 *                   sent / reset → closed()
 *   with `streaming` (route() sets it), message by message:
 *                   a whole message → OPEN   request(); what comes meanwhile waits unacknowledged: its window is the bound
 *                   trn_h2_send, and all of it taken → READING
 *                   END_STREAM when READING, trn_h2_goaway, trn_h2_reply → REPLIED
 *   client stream:  trn_h2_call  → READING
 *                   trailers, reset, cancel, connection lost → OVER, done() exactly once
 *                   stream gone  → closed()
 *
 * Hooks run inside trn_h2_recv, trn_h2_fill and trn_h2_free. They may call trn_h2_call, _reply, _cancel, but not those three.
 */
#ifndef TRN_H2_H
#define TRN_H2_H

#include <sys/uio.h>

#include "wire/rpc.h"

#define TRN_H2_MAX_HEADERS (16 << 10) /* header list of a call, as HTTP/2 counts it */
#define TRN_H2_MAX_STREAMS 16384
#define TRN_H2_MAX_MESSAGE ((size_t)INT32_MAX)
#define TRN_H2_STREAM_WINDOW (64 << 20)
#define TRN_H2_CONN_WINDOW (1 << 30)
#define TRN_H2_SEND_FRAME ((1 << 20) - TRN_H2_PAGE) /* a small answer waits for at most this much of a large one; its pages pass a pipe at once (io/lend.h) */
#define TRN_H2_SEND_BATCH (2 << 20) /* bytes taken from the streams before they are written */
/* Announced but not yet received, and received of unfinished messages, per connection. The first is only address space. */
#define TRN_H2_MAX_CLAIMED ((size_t)8 << 30)
#define TRN_H2_MAX_PARTIAL ((size_t)8 << 30)
#define TRN_H2_LARGE (64 << 10) /* from here on a message's tensor begins in the middle of a page (message_shift) */
#define TRN_H2_PAGE 4096
#define TRN_H2_LEND_FROM (128 << 10) /* smaller pieces are copied: cheaper than the calls */
#define TRN_H2_LEND_ASK (16 << 20)   /* a PING behind so much of a long message, too */
#define TRN_H2_LEND_MAX (64 << 20)   /* a peer that does not answer them is not lent more, but sent copies */
#define TRN_H2_STATUS_TEXT 4096 /* grpc-message, encoded */

typedef struct trn_h2 trn_h2;

enum { TRN_STREAM_NEW, TRN_STREAM_READING, TRN_STREAM_OPEN, TRN_STREAM_REPLIED, TRN_STREAM_OVER };

typedef struct trn_stream {
    trn_h2 *h2; /* NULL before and after */
    struct trn_stream *prev, *next;
    int32_t id;
    uint8_t state;
    uint8_t message; /* how far the message is: an enum in h2.c */
    uint8_t prefix_n;
    uint8_t prefix[5];
    bool started;         /* bytes of the outgoing message were taken: it cannot be sent anew */
    bool too_much_header; /* more than TRN_H2_MAX_HEADERS */
    bool grpc_type;       /* content-type was application/grpc… */
    bool body_begun;      /* client: the answer's first headers are over */
    unsigned marks;       /* client: TRN_MARK_… of the error */
    bool streaming;       /* server: many messages, each answered by one */
    bool responding;      /* streaming: the answer's headers are out */
    bool half_closed;     /* streaming: the client has said all */
    bool ready;           /* streaming: in the list of those whose answer is out */
    uint32_t header_bytes;

    /* Message coming in. */
    trn_msg in; /* in.p points to its start in in.buf, which has room for all of in.n */
    size_t got;
    uint8_t *head; /* up to 4 KiB while `align` cannot tell yet */
    trn_rpc_align align;
    size_t max_in;

    /* Streaming: bytes behind the message that is with its handler, from back_off on; the next in the list of the ready; how it ends. */
    trn_sb back;
    size_t back_off;
    struct trn_stream *next_ready;
    trn_err end;

    /* Message going out. */
    trn_out_msg out;
    int out_i;       /* current slice */
    size_t out_off;  /* within it */
    size_t out_left; /* bytes to go, prefix included */
    uint8_t out_prefix[5];
    uint8_t out_prefix_n; /* taken */

    /* Request's side facts (server) and the answer's (client). */
    uint64_t timeout_ns; /* 0: none */
    trn_err early;       /* server: what is wrong with the headers; answered once they are whole */
    bool has_path, is_post;
    bool refused;                 /* client: the peer did not look at it, or it never left */
    int http_status, grpc_status; /* -1: not seen */
    char *grpc_message;           /* decoded */
    char *content_type;           /* kept only when it is a surprise */
} trn_stream;

typedef struct trn_h2_hooks {
    trn_stream *(*open)(void *user); /* server: storage for a call; NULL refuses it */
    trn_err (*route)(void *user, trn_stream *s, const char *path,
                     size_t n);                 /* server: sets s->align, s->max_in, s->streaming; an error is answered */
    void (*request)(void *user, trn_stream *s); /* server: s->in is whole */
    void (*refused)(void *user, trn_stream *s, trn_code code); /* server: answered by this module; for the counters */
    void (*done)(void *user, trn_stream *s,
                 TRN_OWN trn_err err); /* client: over; no error: s->in is whole. s->refused: may take s->out back */
    void (*closed)(void *user, trn_stream *s);                             /* s is no longer referred to */
    void (*goaway)(void *user, uint32_t code, const char *text, size_t n); /* the peer takes no new calls */
    void (*settings)(void *user); /* the peer's first SETTINGS: it really speaks HTTP/2 */
    void (*agent)(void *user, const char *agent, size_t n); /* server, may be NULL: user-agent of the connection's first request */
} trn_h2_hooks;

trn_err trn_h2_new(trn_h2 **out, bool server, const trn_h2_hooks *hooks, void *user) TRN_MUST_USE;
/* Every stream left gets done(err copied; NULL: UNAVAILABLE) if it is a client's, and closed(). */
void trn_h2_free(trn_h2 *h, const trn_error *why);

/* in */
trn_err trn_h2_recv(trn_h2 *h, const uint8_t *p, size_t n) TRN_MUST_USE; /* an error: the connection is over */
/* When the next bytes of the connection are payload of a large message: where they belong, and how many. Reading there and
 * passing the same pointer to trn_h2_recv saves the copy. 0: read anywhere. */
size_t trn_h2_want(trn_h2 *h, uint8_t **dest);

/* out */
trn_err trn_h2_fill(trn_h2 *h) TRN_MUST_USE;
int trn_h2_iov(trn_h2 *h, struct iovec *iov, int max); /* what is to be written now; the number of entries */
void trn_h2_sent(trn_h2 *h, size_t n);
size_t trn_h2_pending(const trn_h2 *h); /* bytes in the iovecs */

/* Lending (io/lend.h). Large pieces of answers may go to the socket by reference; they stay unchanged until the peer has answered a PING that went out behind them. */
void trn_h2_may_lend(trn_h2 *h, bool may);
bool trn_h2_to_lend(trn_h2 *h, struct iovec *v); /* the next bytes to be written are such a piece */
void trn_h2_lent(trn_h2 *h, size_t n);           /* instead of trn_h2_sent */
/* What the peer may not have read yet; the caller's from now on. NULL: nothing. */
typedef struct trn_h2_loans trn_h2_loans;
trn_h2_loans *trn_h2_take_loans(trn_h2 *h);
size_t trn_h2_loans_bytes(const trn_h2_loans *l);
void trn_h2_loans_free(trn_h2_loans *l);

/* False: nothing more to say or hear; close the socket once all is written. */
bool trn_h2_alive(trn_h2 *h);
size_t trn_h2_streams(const trn_h2 *h);
/* A block of headers has begun and not ended: for the slow-header timeout. */
bool trn_h2_in_headers(const trn_h2 *h);
void trn_h2_set_agent(trn_h2 *h, const char *agent); /* client: user-agent of its requests; must live as long */
bool trn_h2_peer_pingable(const trn_h2 *h); /* it said that frequent PINGs are welcome: it is one of us */
void trn_h2_ping(trn_h2 *h);
void trn_h2_goaway(trn_h2 *h); /* takes no new calls; streams end behind the message that is with its handler */

/* client. `authority` is borrowed for the call. STREAM_ID exhaustion: *gone = true and the stream is untouched. */
trn_err trn_h2_call(trn_h2 *h, trn_stream *s, const char *authority, const char *path, uint64_t timeout_ns,
                    TRN_OWN trn_out_msg *out, bool *gone) TRN_MUST_USE;
void trn_h2_cancel(trn_stream *s); /* RST_STREAM(CANCEL); done() is not called any more */

/* server */
void trn_h2_reply(trn_stream *s, TRN_OWN trn_err err, TRN_OWN trn_out_msg *body); /* ends it; a stream: without a body */
void trn_h2_send(trn_stream *s, TRN_OWN trn_out_msg *body);                       /* streaming: the answer to one message */

/* Frees what the stream's messages hold; the stream must be closed. */
void trn_stream_fini(trn_stream *s);

#endif
