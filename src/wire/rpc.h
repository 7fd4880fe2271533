/* gRPC calls, both sides, over nghttp2 and epoll: bytes ⇄ calls.
 *
 * What passes through: a request message arrives in ONE contiguous trn_buf, is handed to the method's handler on the loop
 * thread, and is answered once, from any thread, with a list of slices that go to the socket without a copy.
 * Bulk receive: the DATA payload of a large message is read from the socket straight into that buffer, and the buffer's start is
 * chosen so that the tensor bytes in it are 64-byte aligned (trn_rpc_align below): tensors are then views, not copies.
 *
 * One port serves gRPC (HTTP/2 preface) and GET /healthz, /metrics, … (HTTP/1.1), told apart by the first bytes.
 *
 * Limits: header list 16 KiB, message 2 GiB, streams per connection 16384 (parked RecvTensor calls must not starve the RunGraph
 * that they wait for), bytes buffered for sending per connection are bounded by what callers hold anyway (slices are references).
 */
#ifndef TRN_RPC_H
#define TRN_RPC_H

#include "io/loop.h"

/* ---- messages ------------------------------------------------------------------------------------------------- */

/* A received message. `p` points into buf. */
typedef struct trn_msg {
    trn_buf *buf; /* NULL for an empty message */
    const uint8_t *p;
    size_t n;
} trn_msg;
void trn_msg_fini(trn_msg *m);

/* A message on its way out. Slices' references are taken over by whoever the message is given to. */
typedef struct trn_out_msg {
    trn_slice *slices; /* malloc'ed */
    int n, cap;
    size_t bytes;
    trn_buf *room; /* where copied bytes go */
    size_t room_at;
    bool may_lend; /* a request: nobody writes to its large slices while it refers to them, even when the call is over (io/lend.h). Answers are always so */
} trn_out_msg;
void trn_out_bytes(trn_out_msg *m, const void *p, size_t n);          /* copies; for heads */
void trn_out_slice(trn_out_msg *m, trn_buf *buf, const void *p, size_t n); /* adds a reference to buf */
void trn_out_fini(trn_out_msg *m);

/* Offset in the message of the bytes that want 64-byte alignment, from its first `have` bytes of `total`; -1: does not matter,
 * -2: cannot tell yet, give me more (at most 4 KiB are asked for). */
typedef int64_t (*trn_rpc_align)(const uint8_t *p, size_t have, size_t total);

/* ---- server --------------------------------------------------------------------------------------------------- */

typedef struct trn_call trn_call;

typedef struct trn_rpc_method {
    const char *path;                              /* "/tensorflow.WorkerService/GetStatus" */
    void (*handle)(void *svc, trn_call *call);     /* [loop] the whole request is there; must lead to exactly one trn_call_reply */
    trn_rpc_align align;                           /* NULL: start of the message is aligned */
    size_t max_request;                            /* 0: 2 GiB - 1 */
    bool stream;                                   /* many requests: `handle` for each in turn, when the one before is answered; an error ends the call */
} trn_rpc_method;

const trn_msg *trn_call_request(const trn_call *c); /* valid until the reply */
const char *trn_call_peer(const trn_call *c);       /* "127.0.0.1:41234" */
trn_loop *trn_call_loop(const trn_call *c);
uint64_t trn_call_deadline_ns(const trn_call *c);   /* monotonic, 0: none */
/* [any] Takes body (may be empty or NULL) and err. With err the body is dropped and the call ends with its code and message (percent-encoded,
 * cut at 4 KiB). Replying to a call that the client cancelled is fine and sends nothing. The call is gone afterwards, but for a
 * stream's that is answered without an error: then it is the next message's. */
void trn_call_reply(trn_call *c, TRN_OWN trn_err err, TRN_OWN trn_out_msg *body);
void trn_call_reply_last(trn_call *c, TRN_OWN trn_err err, TRN_OWN trn_out_msg *body); /* the caller may send it itself (trn_loop_post_last) */
/* [loop, from the handler] fn runs on the loop once if the client resets the stream, its deadline passes or its connection is lost before
 * the reply. The handler still owes the reply. `arg` is handed over: drop(arg) runs when the call itself is gone, so that a reply on another
 * thread at the same moment harms nothing. */
void trn_call_on_cancel(trn_call *c, trn_fn fn, TRN_OWN void *arg, trn_fn drop);

typedef struct trn_http_reply { int status; const char *content_type; trn_sb body; } trn_http_reply;
typedef struct trn_http_route {
    const char *path;                              /* exact path, or "/" */
    void (*handle)(void *svc, const char *path, const char *query, trn_http_reply *out); /* [loop], must be quick */
    void *svc;
} trn_http_route;

typedef struct trn_server_opts {
    trn_loop **loops; /* connections are spread over them */
    int n_loops;
    size_t max_connections; /* 0: 16384 */
    uint64_t keepalive_ns;  /* ping an idle peer with open calls after this long, and lose it after as long again; 0: 20 s */
    uint64_t header_ns;     /* for the preface, a block of headers, an HTTP/1 request; 0: 10 s */
} trn_server_opts;

typedef struct trn_rpc_server trn_rpc_server;
trn_err trn_rpc_server_open(trn_rpc_server **out, const trn_server_opts *o) TRN_MUST_USE;
/* `methods` ends with a NULL path and outlives the server; unknown methods answer UNIMPLEMENTED by name. Before listening. */
void trn_rpc_server_add(trn_rpc_server *s, const trn_rpc_method *methods, void *svc);
void trn_rpc_server_route(trn_rpc_server *s, const trn_http_route *r);
/* host NULL or "": all interfaces, v4 and v6; "localhost": loopback v4 and v6. Port 0 picks one, the same for every address. `port_out` may be NULL. */
trn_err trn_rpc_server_listen(trn_rpc_server *s, const char *host, int port, int *port_out) TRN_MUST_USE;
/* Serves on a socket that listens already (inherited from a parent that chose the port); takes it over, also on error. */
trn_err trn_rpc_server_listen_fd(trn_rpc_server *s, int fd, int *port_out) TRN_MUST_USE;
size_t trn_rpc_server_connections(const trn_rpc_server *s); /* [any] open ones */
/* Stops accepting, GOAWAY, waits up to `drain_ns` for open calls, closes everything. Blocks: not from a loop. */
void trn_rpc_server_close(trn_rpc_server *s, uint64_t drain_ns);

/* ---- client --------------------------------------------------------------------------------------------------- */

/* One connection to one address, made on first use, made again with backoff (50 ms … 5 s, DNS asked again each time) after a loss.
 * Proxies in the environment are ignored. Counted: callbacks of pending calls run (UNAVAILABLE) before the last reference dies. */
typedef struct trn_channel trn_channel;
trn_channel *trn_channel_new(trn_loop *loop, const char *address); /* "host:port", "[::1]:2222" */
trn_channel *trn_channel_ref(trn_channel *c);
void trn_channel_unref(trn_channel *c); /* [any] */
void trn_channel_shutdown(trn_channel *c); /* [any] fails pending and future calls with UNAVAILABLE */
const char *trn_channel_address(const trn_channel *c);
bool trn_channel_ours(const trn_channel *c); /* [any] the last answer came from a Trainera task */
trn_loop *trn_channel_loop(const trn_channel *c);
/* Before the first call: how long a peer with open calls may be silent before it is pinged (20 s), and again before it is given up. gRPC's
 * servers hang up on frequent pings, so peers that are not ours are pinged every five minutes at most; TCP notices dead hosts earlier. */
void trn_channel_set_keepalive(trn_channel *c, uint64_t ns);
void trn_channel_set_from(trn_channel *c, const char *task); /* before the first call: whom the peer counts our bytes for, "worker/0" */
/* For messages to people: "connection refused, 3 attempts over 2.1 s". Writes into buf. [any] */
const char *trn_channel_state_text(trn_channel *c, char *buf, size_t n);

typedef struct trn_call_opts {
    uint64_t deadline_ns;   /* monotonic, 0: none; sent as grpc-timeout */
    bool wait_for_ready;    /* wait through connection failures until the deadline instead of failing with UNAVAILABLE */
    trn_rpc_align align;    /* for the response */
} trn_call_opts;

/* A call in flight; valid until its callback has returned. */
typedef struct trn_rpc trn_rpc;
/* [loop of the channel] msg is borrowed: trn_buf_ref msg->buf to keep it. err and msg: one of both. */
typedef void (*trn_rpc_done)(void *arg, TRN_OWN trn_err err, const trn_msg *msg);
/* [any] Never calls `done` before it returns. `*out` (may be NULL) is for trn_rpc_cancel. */
void trn_channel_call(trn_rpc **out, trn_channel *c, const char *method_path, TRN_OWN trn_out_msg *request, const trn_call_opts *o,
                      trn_rpc_done done, void *arg);
/* [loop of the channel] Writes what calls have queued now instead of before the loop sleeps: the peer starts while we go on making more. */
void trn_channel_flush(trn_channel *c);
/* [any] Resets the stream; done gets CANCELLED, unless it ran already. Counted handle: */
void trn_rpc_cancel(trn_rpc *r);
void trn_rpc_unref(trn_rpc *r); /* a handle that was asked for through `out` must be given back */

#endif
