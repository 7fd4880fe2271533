/* A socket with an HTTP/2 session on it (or, on the server, with bytes that are not HTTP/2). All [loop].
 *
 * The owner embeds a trn_conn. Reading, writing and keepalive happen here; whatever ends the connection is told to the owner
 * through `lost`, at a moment when nothing of the session is on the stack, and the owner calls trn_conn_stop.
 * This file is the place where TLS goes: the two functions that read and write the descriptor.
 */
#ifndef TRN_CONN_H
#define TRN_CONN_H

#include "io/net.h"
#include "wire/h2.h"
#include "wire/stats.h"

#define TRN_CONN_KEEPALIVE_NS (UINT64_C(20) * 1000000000)
/* gRPC's servers hang up on clients that PING more often than every five minutes while nothing else is said. */
#define TRN_CONN_SHY_KEEPALIVE_NS (UINT64_C(310) * 1000000000)
#define TRN_CONN_PART_MAX ((size_t)1 << 30) /* what peers that were given up hold of our buffers; above it they have three keepalives' time */
#define TRN_CONN_HEADER_NS (UINT64_C(10) * 1000000000) /* preface, SETTINGS, a block of headers, an HTTP/1 request */

typedef struct trn_conn {
    trn_loop *loop;
    int fd;
    trn_watch watch;
    trn_loop_task flush;
    trn_timer tick;
    trn_h2 *h2; /* NULL: raw */

    void *owner;
    void (*lost)(void *owner, TRN_OWN trn_err why);            /* call trn_conn_stop(c, why) and forget it */
    trn_err (*bytes)(void *owner, const uint8_t *p, size_t n); /* raw input; may set h2 */

    trn_sb raw_out; /* raw output, from raw_off on */
    size_t raw_off;
    bool close_when_sent; /* raw: then half-close, and wait for the peer to do the same */
    bool half_closed;
    bool peer_gone; /* it reads no more: its end, or an error of the socket */

    bool blocked;                       /* the socket is full: EPOLLOUT continues */
    bool reading;                       /* its bytes are being handled: it cannot be written now */
    bool ready;                         /* the handshake is over (first SETTINGS, or a whole HTTP/1 request) */
    int low;                            /* bytes that the socket waits for before it wakes us; 0: any */
    uint64_t start_ns, rx_ns;           /* rx: last time anything came */
    uint64_t tx_ns;                     /* last time a full socket had room again */
    uint64_t ping_ns;                   /* sent, no byte since; 0: none */
    uint64_t header_ns;                 /* an unfinished block of headers began */
    uint64_t keepalive_ns, patience_ns; /* patience: for what begins and does not end */
    uint64_t idle_ns;                   /* raw: give up after this much silence; 0: never */
    trn_traffic *traffic;               /* who it is counted for; NULL: nobody */
    char peer[TRN_ADDR_TEXT];
} trn_conn;

/* Takes fd; times of 0 mean the defaults. c is zeroed storage with owner, lost (and bytes) set. On failure fd is closed. */
trn_err trn_conn_start(trn_conn *c, trn_loop *l, int fd, const trn_addr *peer, uint64_t keepalive_ns,
                       uint64_t patience_ns) TRN_MUST_USE;
void trn_conn_count_for(trn_conn *c, trn_traffic *t); /* what went before stays where it was */
void trn_conn_flush(trn_conn *c); /* writes now, as far as that is possible; what is left goes before the loop sleeps */
void trn_conn_dirty(trn_conn *c); /* something was submitted: flush before the loop sleeps */
/* Closes; every stream of the session is finished with `why`. */
void trn_conn_stop(trn_conn *c, const trn_error *why);

#endif
