/* Addresses and sockets: what is left of the socket API for the rest of the program.
 *
 * Every socket is non-blocking, close-on-exec, TCP_NODELAY, and has kernel keepalive and a user timeout, so that a host that
 * vanished without a word is noticed within half a minute even when neither side has anything to say.
 *
 * Two of our tasks on one machine talk over a Unix socket: half the round trip of TCP over loopback. A listening TCP socket gets a twin in the abstract
 * name space, called after its address ("127.0.0.1:2222", "*:2222"), and trn_net_connect looks for the twin of a local address first. The name goes with
 * the process, and a twin that belongs to another user is not trusted. TRAINERA_UNIX_SOCKETS=0 in the environment switches it off.
 */
#ifndef TRN_NET_H
#define TRN_NET_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "io/loop.h"

typedef struct trn_addr {
    socklen_t len;
    union {
        struct sockaddr sa;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un un;
    };
} trn_addr;

#define TRN_ADDR_TEXT 72
const char *trn_addr_text(char buf[TRN_ADDR_TEXT], const trn_addr *a); /* "127.0.0.1:2222", "[::1]:2222", "a process on this machine" */
bool trn_addr_is_loopback(const trn_addr *a);

/* "host:port", "[v6]:port", "v4:port" → host (malloc'ed, without brackets) and port 0…65535. */
trn_err trn_net_split(char **host, int *port, const char *text) TRN_MUST_USE;

/* At most this many addresses of a name are used. */
enum { TRN_NET_ADDRS = 16 };
typedef struct trn_addrs {
    int n;
    trn_addr a[TRN_NET_ADDRS];
} trn_addrs;

/* Numeric addresses and "localhost" (v4, then v6): answered without asking anybody. False: a name for the resolver. */
bool trn_net_known(trn_addrs *out, const char *host, int port);
trn_err trn_net_resolve(trn_addrs *out, const char *host, int port) TRN_MUST_USE; /* blocks: not on a loop */

/* [loop] Asks the resolver on a thread of its own (a name server that does not answer blocks nobody else), fn runs on the loop. */
typedef struct trn_lookup trn_lookup;
typedef void (*trn_lookup_fn)(void *arg, TRN_OWN trn_err err, const trn_addrs *addrs);
trn_err trn_lookup_start(trn_lookup **out, trn_loop *l, const char *host, int port, trn_lookup_fn fn,
                         void *arg) TRN_MUST_USE;
void trn_lookup_cancel(trn_lookup *q); /* [loop] before fn ran: it never will */

/* Listening sockets for a host as trn_rpc_server_listen describes it; the same port on all. At most TRN_NET_ADDRS descriptors. */
trn_err trn_net_listen(int fds[TRN_NET_ADDRS], int *n, int *port_out, const char *host, int port) TRN_MUST_USE;
int trn_net_listen_twin(int fd); /* the Unix socket beside a listening TCP socket; -1: it gets none */
trn_err trn_net_connect(int *out, const trn_addr *to) TRN_MUST_USE; /* starts; writable when done, then trn_net_error */
int trn_net_error(int fd);                                          /* SO_ERROR */
void trn_net_tune(int fd, const trn_addr *peer);                    /* for accepted sockets */

#endif
