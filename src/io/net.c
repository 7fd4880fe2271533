#include "io/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- addresses ------------------------------------------------------------------------------------------------ */

const char *trn_addr_text(char buf[TRN_ADDR_TEXT], const trn_addr *a)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr)) {
        inet_ntop(AF_INET, a->v6.sin6_addr.s6_addr + 12, host, sizeof host);
        snprintf(buf, TRN_ADDR_TEXT, "%s:%d", host, ntohs(a->v6.sin6_port));
    } else if (a->sa.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->v6.sin6_addr, host, sizeof host);
        snprintf(buf, TRN_ADDR_TEXT, "[%s]:%d", host, ntohs(a->v6.sin6_port));
    } else if (a->sa.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->v4.sin_addr, host, sizeof host);
        snprintf(buf, TRN_ADDR_TEXT, "%s:%d", host, ntohs(a->v4.sin_port));
    } else {
        snprintf(buf, TRN_ADDR_TEXT, "%s", a->sa.sa_family == AF_UNIX ? "a process on this machine" : "?");
    }
    return buf;
}

bool trn_addr_is_loopback(const trn_addr *a)
{
    if (a->sa.sa_family == AF_INET)
        return (ntohl(a->v4.sin_addr.s_addr) >> 24) == 127;
    if (a->sa.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr) && a->v6.sin6_addr.s6_addr[12] == 127);
    return a->sa.sa_family == AF_UNIX;
}

static void set_port(trn_addr *a, int port)
{
    if (a->sa.sa_family == AF_INET6)
        a->v6.sin6_port = htons((uint16_t)port);
    else
        a->v4.sin_port = htons((uint16_t)port);
}

static trn_addr make_v4(struct in_addr ip, int port)
{
    trn_addr a = {.len = sizeof(struct sockaddr_in)};
    a.v4.sin_family = AF_INET;
    a.v4.sin_addr = ip;
    set_port(&a, port);
    return a;
}

static trn_addr make_v6(struct in6_addr ip, int port)
{
    trn_addr a = {.len = sizeof(struct sockaddr_in6)};
    a.v6.sin6_family = AF_INET6;
    a.v6.sin6_addr = ip;
    set_port(&a, port);
    return a;
}

trn_err trn_net_split(char **host, int *port, const char *text)
{
    const char *begin = text, *end, *colon;
    if (text[0] == '[') {
        begin = text + 1;
        end = strchr(begin, ']');
        if (!end || end[1] != ':')
            return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is not an address: want [v6]:port", text);
        colon = end + 1;
    } else {
        colon = end = strrchr(text, ':');
        if (!colon)
            return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is not an address: want host:port", text);
        if (memchr(text, ':', (size_t)(colon - text)))
            return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" is not an address: write [v6]:port", text);
    }
    if (end == begin)
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\" names no host", text);
    char *stop;
    errno = 0;
    long p = colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &stop, 10) : -1;
    if (p < 0 || p > 65535 || *stop != 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"%s\": the port is not a number from 0 to 65535", text);
    *host = trn_xstrndup(begin, (size_t)(end - begin));
    *port = (int)p;
    return TRN_OK;
}

bool trn_net_known(trn_addrs *out, const char *host, int port)
{
    struct in_addr v4;
    struct in6_addr v6;
    out->n = 0;
    if (inet_pton(AF_INET, host, &v4) == 1)
        out->a[out->n++] = make_v4(v4, port);
    else if (inet_pton(AF_INET6, host, &v6) == 1)
        out->a[out->n++] = make_v6(v6, port);
    else if (strcmp(host, "localhost") == 0) {
        out->a[out->n++] = make_v4((struct in_addr){htonl(INADDR_LOOPBACK)}, port);
        out->a[out->n++] = make_v6(in6addr_loopback, port);
    }
    return out->n > 0;
}

trn_err trn_net_resolve(trn_addrs *out, const char *host, int port)
{
    trn_addrs found;
    if (trn_net_known(&found, host, port)) {
        *out = found;
        return TRN_OK;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *list = NULL;
    int e = getaddrinfo(host, NULL, &hints, &list);
    if (e == EAI_SYSTEM)
        return trn_err_errno(errno, "cannot resolve host \"%s\"", host);
    if (e != 0)
        return trn_errorf(TRN_UNAVAILABLE, "cannot resolve host \"%s\": %s", host, gai_strerror(e));
    for (struct addrinfo *i = list; i && found.n < TRN_NET_ADDRS; i = i->ai_next) {
        if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) || i->ai_addrlen > sizeof(struct sockaddr_in6))
            continue;
        trn_addr a = {.len = i->ai_addrlen};
        memcpy(&a.sa, i->ai_addr, i->ai_addrlen);
        set_port(&a, port);
        found.a[found.n++] = a;
    }
    freeaddrinfo(list);
    if (found.n == 0)
        return trn_errorf(TRN_UNAVAILABLE, "host \"%s\" has no IP address", host);
    *out = found;
    return TRN_OK;
}

/* ---- lookups off the loop ------------------------------------------------------------------------------------- */

struct trn_lookup {
    trn_loop *loop; /* only touched under mu while not cancelled: a cancelled lookup may outlive the loop */
    trn_mutex mu;
    bool cancelled;
    int refs; /* under mu: the thread's and the loop's */
    trn_lookup_fn fn;
    void *arg;
    char *host;
    int port;
    trn_err err;
    trn_addrs addrs;
};

static void lookup_unref(trn_lookup *q)
{
    trn_lock(&q->mu);
    bool last = --q->refs == 0;
    trn_unlock(&q->mu);
    if (!last)
        return;
    trn_mutex_fini(&q->mu);
    trn_err_free(q->err);
    free(q->host);
    free(q);
}

static void lookup_done(void *arg) /* [loop] */
{
    trn_lookup *q = arg;
    if (!q->cancelled) { /* only this thread sets it */
        trn_err err = q->err;
        q->err = TRN_OK;
        q->fn(q->arg, err, &q->addrs);
        lookup_unref(q);
    }
    lookup_unref(q);
}

static void *lookup_main(void *arg)
{
    trn_lookup *q = arg;
    pthread_setname_np(pthread_self(), "resolver");
    q->err = trn_net_resolve(&q->addrs, q->host, q->port);
    trn_lock(&q->mu);
    bool drop = q->cancelled;
    if (!drop)
        trn_loop_post(q->loop, lookup_done, q); /* hands the thread's reference over */
    trn_unlock(&q->mu);
    if (drop)
        lookup_unref(q);
    return NULL;
}

trn_err trn_lookup_start(trn_lookup **out, trn_loop *l, const char *host, int port, trn_lookup_fn fn, void *arg)
{
    trn_lookup *q = trn_xalloc(sizeof *q);
    q->loop = l;
    trn_mutex_init(&q->mu, TRN_RANK_CHANNEL); /* posting takes nothing, freeing errors takes nothing */
    q->refs = 2;
    q->fn = fn;
    q->arg = arg;
    q->host = trn_xstrdup(host);
    q->port = port;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 256 << 10);
    pthread_t t;
    int e = pthread_create(&t, &attr, lookup_main, q);
    pthread_attr_destroy(&attr);
    if (e != 0) {
        q->refs = 1;
        lookup_unref(q);
        return trn_err_errno(e, "cannot start a thread to resolve \"%s\"", host);
    }
    *out = q;
    return TRN_OK;
}

void trn_lookup_cancel(trn_lookup *q)
{
    trn_lock(&q->mu);
    q->cancelled = true;
    trn_unlock(&q->mu);
    lookup_unref(q);
}

/* ---- sockets -------------------------------------------------------------------------------------------------- */

static void set_int(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

/* Both ends have one address. (Whether it could be bound would say nothing: some systems let every address be.) */
static bool inside_machine(int fd, const trn_addr *peer)
{
    trn_addr own = {.len = sizeof own.v6};
    if (trn_addr_is_loopback(peer))
        return true;
    if (getsockname(fd, &own.sa, &own.len) != 0 || own.sa.sa_family != peer->sa.sa_family)
        return false;
    return own.sa.sa_family == AF_INET ? own.v4.sin_addr.s_addr == peer->v4.sin_addr.s_addr
                                       : own.sa.sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&own.v6.sin6_addr, &peer->v6.sin6_addr);
}

void trn_net_tune(int fd, const trn_addr *peer)
{
    int domain = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof domain}) == 0 && domain == AF_UNIX) {
        /* Room for a few of the messages that HTTP/2 sends at once; the kernel cuts it to its own limit. */
        set_int(fd, SOL_SOCKET, SO_SNDBUF, 4 << 20);
        return;
    }
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 20);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
    /* Inside this machine nothing is lost and nothing is gained by pacing, which a system-wide BBR would do here too: with a timer for every few segments. */
    if (inside_machine(fd, peer))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* the one algorithm that everybody has and may use */
}

int trn_net_error(int fd)
{
    int e = 0;
    socklen_t n = sizeof e;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n) == 0 ? e : errno;
}

/* ---- Unix sockets beside TCP ---------------------------------------------------------------------------------- */

static bool unix_wanted(void)
{
    const char *v = getenv("TRAINERA_UNIX_SOCKETS");
    return !v || strcmp(v, "0") != 0;
}

static bool is_wildcard(const trn_addr *a)
{
    return a->sa.sa_family == AF_INET ? a->v4.sin_addr.s_addr == htonl(INADDR_ANY)
                                      : a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr);
}

/* The twin of a TCP address, or of all addresses of this machine with its port. */
static trn_addr twin_of(const trn_addr *tcp, bool wildcard)
{
    trn_addr a = {.len = 0};
    char text[TRN_ADDR_TEXT];
    if (wildcard)
        snprintf(text, sizeof text, "*:%d", ntohs(tcp->sa.sa_family == AF_INET6 ? tcp->v6.sin6_port : tcp->v4.sin_port));
    else
        trn_addr_text(text, tcp);
    a.un.sun_family = AF_UNIX;
    int n = snprintf(a.un.sun_path + 1, sizeof a.un.sun_path - 1, "trainera/%s", text); /* a leading NUL: no file */
    a.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return a;
}

int trn_net_listen_twin(int fd)
{
    trn_addr tcp = {.len = sizeof tcp.v6};
    if (!unix_wanted() || getsockname(fd, &tcp.sa, &tcp.len) != 0)
        return -1;
    trn_addr a = twin_of(&tcp, is_wildcard(&tcp));
    int u = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* The name is taken by ourselves when we listen on all v4 and all v6 addresses: one twin is enough. */
    if (u >= 0 && (bind(u, &a.sa, a.len) != 0 || listen(u, SOMAXCONN) != 0)) {
        close(u);
        return -1;
    }
    return u;
}

/* An address of this machine can be bound. */
static bool is_local(const trn_addr *to)
{
    if (trn_addr_is_loopback(to))
        return true;
    trn_addr a = *to;
    set_port(&a, 0);
    int fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool local = fd >= 0 && bind(fd, &a.sa, a.len) == 0;
    if (fd >= 0)
        close(fd);
    return local;
}

static bool connect_twin(int *out, const trn_addr *to)
{
    if (!unix_wanted() || !is_local(to))
        return false;
    for (int wildcard = 0; wildcard < 2; wildcard++) {
        trn_addr a = twin_of(to, wildcard);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return false;
        struct ucred who;
        if (connect(fd, &a.sa, a.len) == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &(socklen_t){sizeof who}) == 0 &&
            (who.uid == geteuid() || who.uid == 0)) {
            trn_net_tune(fd, to);
            *out = fd;
            return true;
        }
        close(fd);
    }
    return false;
}

trn_err trn_net_connect(int *out, const trn_addr *to)
{
    char text[TRN_ADDR_TEXT];
    if (connect_twin(out, to))
        return TRN_OK;
    int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return trn_err_errno(errno, "socket for %s", trn_addr_text(text, to));
    if (connect(fd, &to->sa, to->len) != 0 && errno != EINPROGRESS) {
        int e = errno;
        close(fd);
        return trn_errorf(TRN_UNAVAILABLE, "%s: %s", trn_addr_text(text, to), strerror(e));
    }
    trn_net_tune(fd, to);
    *out = fd;
    return TRN_OK;
}

static int listen_on(int *out, const trn_addr *a)
{
    int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->sa.sa_family == AF_INET6)
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(fd, &a->sa, a->len) != 0 || listen(fd, SOMAXCONN) != 0) {
        int e = errno;
        close(fd);
        return e;
    }
    *out = fd;
    return 0;
}

static int bound_port(int fd)
{
    trn_addr a = {.len = sizeof a.v6};
    if (getsockname(fd, &a.sa, &a.len) != 0)
        return 0;
    return ntohs(a.sa.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

/* One port on all addresses. IPv6 that the machine lacks is passed over when v4 works. */
static int listen_all(int fds[TRN_NET_ADDRS], int *n, int *port, trn_addrs *addrs, int *which)
{
    int first_error = 0;
    *n = 0;
    for (int i = 0; i < addrs->n; i++) {
        set_port(&addrs->a[i], *port);
        int e = listen_on(&fds[*n], &addrs->a[i]);
        if (e == 0) {
            if (*port == 0)
                *port = bound_port(fds[*n]);
            ++*n;
        } else if (e == EAFNOSUPPORT || e == EADDRNOTAVAIL || e == EPROTONOSUPPORT) {
            if (!first_error)
                first_error = e, *which = i;
        } else {
            while (*n > 0)
                close(fds[--*n]);
            *which = i;
            return e;
        }
    }
    return *n > 0 ? 0 : first_error;
}

trn_err trn_net_listen(int fds[TRN_NET_ADDRS], int *n, int *port_out, const char *host, int port)
{
    trn_addrs all = {.n = 2};
    all.a[0] = make_v4((struct in_addr){htonl(INADDR_ANY)}, port);
    all.a[1] = make_v6(in6addr_any, port);

    trn_addrs addrs = all;
    bool named = false;
    if (host && host[0] && !trn_net_known(&addrs, host, port)) {
        /* A name: its own address when it has one here. Debian maps the host's name to 127.0.1.1, where nobody else
         * could reach it; behind NAT or in a container the name's address is not local at all. */
        named = true;
        trn_err err = trn_net_resolve(&addrs, host, port);
        bool loopback = !err;
        for (int i = 0; !err && i < addrs.n; i++)
            loopback &= trn_addr_is_loopback(&addrs.a[i]);
        if (err || loopback) {
            TRN_WARN("io", "host \"%s\" %s: listening on all interfaces instead", host,
                     err ? "does not resolve here" : "is a loopback address on this machine");
            trn_err_free(err);
            addrs = all;
            named = false;
        }
    }
    int e = 0, which = 0, p = port;
    for (int attempt = 0; attempt < 64; attempt++) {
        p = port;
        e = listen_all(fds, n, &p, &addrs, &which);
        if (e == EADDRNOTAVAIL && named) {
            TRN_WARN("io", "no address of host \"%s\" is local: listening on all interfaces instead", host);
            addrs = all;
            named = false;
            continue;
        }
        if (e != EADDRINUSE || port != 0) /* a picked port may be taken on the second address: pick again */
            break;
    }
    char text[TRN_ADDR_TEXT];
    if (e == EADDRINUSE)
        return trn_errorf(TRN_ALREADY_EXISTS, "cannot listen on %s: another process does already",
                          trn_addr_text(text, &addrs.a[which]));
    if (e != 0)
        return trn_err_errno(e, "cannot listen on %s", trn_addr_text(text, &addrs.a[which]));
    if (port_out)
        *port_out = p;
    return TRN_OK;
}
