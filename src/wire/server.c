/* The server: listeners, the table of methods, calls on their way through handlers, HTTP/1.1 GET on the same port.
 *
 * A connection lives on one loop. A call belongs to its connection's stream and to its handler, and is freed on the loop when
 * both are through with it; so a handler may answer from any thread at any time, also after the client went away.
 */
#include "wire/rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "wire/conn.h"
#include "wire/http1.h"
#include "wire/stats.h"

typedef struct method {
    const trn_rpc_method *m;
    void *svc;
    trn_rpc_stats stats;
} method;

typedef struct shard shard;
typedef struct sconn sconn;

struct trn_rpc_server {
    _Atomic int refs; /* the owner, each connection */
    trn_server_opts opts;
    trn_map *methods; /* path → method */
    method unknown;   /* counts what no method takes */
    trn_http_route *routes;
    int n_routes, cap_routes;

    struct listener {
        trn_rpc_server *s;
        int fd;
        trn_watch watch;
        trn_timer pause; /* after EMFILE */
    } * listeners;
    int n_listeners;
    unsigned next_loop;
    uint64_t warned_ns;

    _Atomic size_t n_conns;
    trn_mutex mu;
    pthread_cond_t changed;
    int open_shards; /* under mu, while closing */
    shard *shards;   /* one per loop */
};

struct shard {
    trn_rpc_server *s;
    trn_loop *loop;
    sconn *conns;
    bool draining;
    trn_timer drain;
    uint64_t drain_ns;
};

struct sconn {
    trn_conn io;
    trn_rpc_server *s;
    shard *sh;
    sconn *prev, *next;
    int refs; /* [loop] the list, each call */
    uint8_t first[24];
    size_t n_first;
    bool http1;
    trn_http1 h1;
};

enum { /* trn_call.cancel */
       CANCEL_NONE,
       CANCEL_FIRED,
       CANCEL_TOO_LATE, /* replied */
};

struct trn_call {
    trn_stream s; /* first: the hooks get this pointer */
    sconn *conn;  /* a reference */
    method *m;
    bool handed; /* to the handler, which owes a reply */
    bool replied;
    bool gone; /* the stream is closed */
    _Atomic int cancel;
    trn_fn cancel_fn;
    void *cancel_arg;
    trn_fn cancel_drop;
    uint64_t start_ns, deadline_ns;
    trn_timer timer;
    trn_err reply_err; /* on its way to the loop */
    trn_out_msg reply_body;
};

static void server_unref(trn_rpc_server *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    trn_map_free(s->methods, free);
    free(s->routes);
    free(s->listeners);
    free(s->shards);
    free(s->opts.loops);
    trn_mutex_fini(&s->mu);
    pthread_cond_destroy(&s->changed);
    free(s);
}

static void sconn_unref(sconn *c)
{
    if (--c->refs > 0)
        return;
    trn_http1_fini(&c->h1);
    server_unref(c->s);
    free(c);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static void call_free(trn_call *c)
{
    trn_timer_stop(c->conn->sh->loop, &c->timer);
    trn_stream_fini(&c->s);
    sconn_unref(c->conn);
    if (c->cancel_drop)
        c->cancel_drop(c->cancel_arg);
    free(c);
}

/* The call may be gone afterwards. */
static void call_cancelled(trn_call *c)
{
    int none = CANCEL_NONE;
    trn_fn fn = c->cancel_fn;
    if (atomic_compare_exchange_strong(&c->cancel, &none, CANCEL_FIRED) && fn)
        fn(c->cancel_arg);
}

static void on_deadline(void *arg)
{
    trn_call *c = arg;
    if (c->replied)
        return;
    trn_h2_reply(&c->s,
                 trn_errorf(TRN_DEADLINE_EXCEEDED, "%s: the caller's deadline passed after %.3f s", c->m->stats.name,
                            (double)(trn_now_ns() - c->start_ns) / 1e9),
                 NULL);
    trn_conn_dirty(&c->conn->io);
    call_cancelled(c);
}

/* A stream goes on: its handler is done with one message, and what was to be told if the client left with it. */
static void next_here(trn_call *c)
{
    c->handed = false;
    if (c->cancel_drop)
        c->cancel_drop(c->cancel_arg);
    c->cancel_fn = c->cancel_drop = NULL;
    atomic_store(&c->cancel, CANCEL_NONE);
}

static void reply_here(trn_call *c, trn_err err, trn_out_msg *body)
{
    bool goes_on = c->s.streaming && !err;
    if (goes_on)
        next_here(c);
    else {
        c->replied = true;
        trn_timer_stop(c->conn->sh->loop, &c->timer);
    }
    trn_hist_add(c->m->stats.latency, trn_now_ns() - c->start_ns);
    if (err)
        trn_rpc_stats_error(&c->m->stats, trn_err_code(err));
    trn_msg_fini(&c->s.in);
    if (c->gone) {
        trn_err_free(err);
        if (body)
            trn_out_fini(body);
        call_free(c);
        return;
    }
    trn_conn_dirty(&c->conn->io);
    if (goes_on)
        trn_h2_send(&c->s, body);
    else
        trn_h2_reply(&c->s, err, body);
}

static void reply_posted(void *arg)
{
    trn_call *c = arg;
    trn_err err = c->reply_err;
    trn_out_msg body = c->reply_body;
    c->reply_err = TRN_OK;
    c->reply_body = (trn_out_msg){0};
    reply_here(c, err, &body);
}

static void reply(trn_call *c, trn_err err, trn_out_msg *body, void (*post)(trn_loop *, trn_fn, void *))
{
    int none = CANCEL_NONE;
    atomic_compare_exchange_strong(&c->cancel, &none, CANCEL_TOO_LATE);
    trn_loop *l = c->conn->sh->loop;
    if (trn_loop_here(l)) {
        reply_here(c, err, body);
        return;
    }
    c->reply_err = err;
    if (body) {
        c->reply_body = *body;
        *body = (trn_out_msg){0};
    }
    post(l, reply_posted, c);
}

void trn_call_reply(trn_call *c, trn_err err, trn_out_msg *body) { reply(c, err, body, trn_loop_post); }
void trn_call_reply_last(trn_call *c, trn_err err, trn_out_msg *body) { reply(c, err, body, trn_loop_post_last); }

void trn_call_on_cancel(trn_call *c, trn_fn fn, void *arg, trn_fn drop)
{
    c->cancel_fn = fn;
    c->cancel_arg = arg;
    c->cancel_drop = drop;
    if (atomic_load(&c->cancel) == CANCEL_FIRED)
        fn(arg);
}

const trn_msg *trn_call_request(const trn_call *c) { return &c->s.in; }
const char *trn_call_peer(const trn_call *c) { return c->conn->io.peer; }
trn_loop *trn_call_loop(const trn_call *c) { return c->conn->sh->loop; }
uint64_t trn_call_deadline_ns(const trn_call *c) { return c->deadline_ns; }

/* ---- hooks of the session ------------------------------------------------------------------------------------- */

static trn_stream *hook_open(void *user)
{
    sconn *conn = user;
    trn_call *c = trn_xalloc(sizeof *c);
    c->conn = conn;
    c->m = &conn->s->unknown;
    conn->refs++;
    return &c->s;
}

static trn_err hook_route(void *user, trn_stream *s, const char *path, size_t n)
{
    sconn *conn = user;
    trn_call *c = (trn_call *)s;
    method *m = trn_map_get(conn->s->methods, path, n);
    if (!m)
        return trn_errorf(TRN_UNIMPLEMENTED, "unknown method %.*s", (int)TRN_MIN(n, (size_t)256), path);
    c->m = m;
    s->align = m->m->align;
    s->streaming = m->m->stream;
    if (m->m->max_request)
        s->max_in = m->m->max_request;
    return TRN_OK;
}

static void hook_request(void *user, trn_stream *s)
{
    (void)user;
    trn_call *c = (trn_call *)s;
    c->handed = true;
    c->start_ns = trn_now_ns();
    trn_counter_add(c->m->stats.calls, 1);
    if (s->timeout_ns && !c->deadline_ns) {
        c->deadline_ns = c->start_ns + s->timeout_ns;
        trn_timer_start(c->conn->sh->loop, &c->timer, c->deadline_ns, on_deadline, c);
    }
    c->m->m->handle(c->m->svc, c);
}

static void hook_refused(void *user, trn_stream *s, trn_code code)
{
    (void)user;
    trn_call *c = (trn_call *)s;
    trn_counter_add(c->m->stats.calls, 1);
    trn_rpc_stats_error(&c->m->stats, code);
}

static void hook_closed(void *user, trn_stream *s)
{
    (void)user;
    trn_call *c = (trn_call *)s;
    c->gone = true;
    if (!c->handed || c->replied) {
        call_free(c);
        return;
    }
    trn_timer_stop(c->conn->sh->loop, &c->timer);
    call_cancelled(c);
}

static void hook_done(void *user, trn_stream *s, trn_err err)
{
    (void)user, (void)s;
    trn_err_free(err); /* clients only */
}

static void hook_goaway(void *user, uint32_t code, const char *text, size_t n)
{
    sconn *c = user;
    if (code != 0)
        TRN_INFO("rpc", "%s said GOAWAY %u \"%.*s\"", c->io.peer, code, (int)TRN_MIN(n, (size_t)100), text);
}

/* "trainera/0.1.0 (worker/0)": one of us says who it is. It is only a name on a page: nothing is allowed because of it. */
static void hook_agent(void *user, const char *agent, size_t n)
{
    sconn *c = user;
    const char *open = memchr(agent, '(', n), *end = agent + n;
    if (n < 10 || memcmp(agent, "trainera/", 9) != 0 || !open || end[-1] != ')' || end - open < 3 || end - open > 64)
        return;
    for (const char *p = open + 1; p < end - 1; p++)
        if (!(*p >= '0' && *p <= '9') && !((*p | 32) >= 'a' && (*p | 32) <= 'z') && !strchr("/_.-", *p))
            return;
    trn_conn_count_for(&c->io, trn_traffic_of(open + 1, (size_t)(end - open - 2), true));
}

static void hook_settings(void *user) { ((sconn *)user)->io.ready = true; }

static const trn_h2_hooks hooks = {
    .open = hook_open,
    .route = hook_route,
    .request = hook_request,
    .refused = hook_refused,
    .done = hook_done,
    .closed = hook_closed,
    .agent = hook_agent,
    .goaway = hook_goaway,
    .settings = hook_settings,
};

/* ---- connections ---------------------------------------------------------------------------------------------- */

static void shard_maybe_done(shard *sh)
{
    if (!sh->draining || sh->conns)
        return;
    sh->draining = false;
    trn_timer_stop(sh->loop, &sh->drain);
    trn_rpc_server *s = sh->s;
    trn_lock(&s->mu);
    s->open_shards--;
    pthread_cond_signal(&s->changed);
    trn_unlock(&s->mu);
    server_unref(s);
}

static void sconn_close(sconn *c, const trn_error *why)
{
    shard *sh = c->sh;
    if (c->prev)
        c->prev->next = c->next;
    else
        sh->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    atomic_fetch_sub(&c->s->n_conns, 1);
    trn_conn_stop(&c->io, why);
    sconn_unref(c);
    shard_maybe_done(sh); /* the caller of close still holds the server */
}

static void on_lost(void *owner, trn_err why)
{
    sconn *c = owner;
    TRN_DEBUG("rpc", "%s", trn_err_msg(why));
    sconn_close(c, why);
    trn_err_free(why);
}

static void http_get(void *user, const char *path, const char *query, trn_http_reply *r)
{
    trn_rpc_server *s = user;
    for (int i = 0; i < s->n_routes; i++)
        if (strcmp(s->routes[i].path, path) == 0) {
            s->routes[i].handle(s->routes[i].svc, path, query, r);
            return;
        }
    if (strcmp(path, "/healthz") == 0) {
        trn_sb_adds(&r->body, "ok\n");
        return;
    }
    r->status = 404;
    trn_sb_adds(&r->body, "Not found. Known paths: /healthz");
    for (int i = 0; i < s->n_routes; i++)
        if (strcmp(s->routes[i].path, "/healthz") != 0)
            trn_sb_addf(&r->body, ", %s", s->routes[i].path);
    trn_sb_adds(&r->body, "\n");
}

static void http1_bytes(sconn *c, const uint8_t *p, size_t n)
{
    bool keep = trn_http1_recv(&c->h1, p, n, &c->io.raw_out, http_get, c->s);
    if (c->io.raw_out.n > 0)
        c->io.ready = true; /* it said something whole; from now on only silence counts */
    if (c->h1.in.n == 0)
        c->io.header_ns = 0;
    else if (c->io.header_ns == 0)
        c->io.header_ns = trn_now_ns();
    if (!keep) {
        c->io.close_when_sent = true;
        c->io.idle_ns = UINT64_C(2) * 1000000000;
        trn_timer_start(c->sh->loop, &c->io.tick, trn_now_ns() + c->io.idle_ns, c->io.tick.fn, c->io.tick.arg);
    }
}

/* The first bytes decide: HTTP/2's preface, or HTTP/1. */
static trn_err on_bytes(void *owner, const uint8_t *p, size_t n)
{
    static const char preface[24] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    sconn *c = owner;
    if (c->io.close_when_sent)
        return TRN_OK;
    if (c->http1) {
        http1_bytes(c, p, n);
        return TRN_OK;
    }
    size_t k = TRN_MIN(n, sizeof preface - c->n_first);
    memcpy(c->first + c->n_first, p, k);
    c->n_first += k;
    if (memcmp(c->first, preface, c->n_first) != 0) {
        c->http1 = true;
        c->io.idle_ns = UINT64_C(30) * 1000000000;
        http1_bytes(c, c->first, c->n_first);
        if (n > k && !c->io.close_when_sent)
            http1_bytes(c, p + k, n - k);
        return TRN_OK;
    }
    if (c->n_first < sizeof preface)
        return TRN_OK;
    TRN_TRY(trn_h2_new(&c->io.h2, true, &hooks, c));
    trn_h2_may_lend(c->io.h2, true);
    TRN_TRY(trn_h2_recv(c->io.h2, c->first, sizeof preface));
    return n > k ? trn_h2_recv(c->io.h2, p + k, n - k) : TRN_OK;
}

typedef struct newcomer {
    shard *sh;
    int fd;
    trn_addr peer;
} newcomer;

static void adopt(void *arg)
{
    newcomer *nc = arg;
    shard *sh = nc->sh;
    sconn *c = trn_xalloc(sizeof *c);
    c->s = sh->s;
    c->sh = sh;
    c->refs = 1;
    c->io.owner = c;
    c->io.lost = on_lost;
    c->io.bytes = on_bytes;
    trn_err err = sh->draining ? trn_errorf(TRN_UNAVAILABLE, "closing")
                               : trn_conn_start(&c->io, sh->loop, nc->fd, &nc->peer, sh->s->opts.keepalive_ns,
                                                sh->s->opts.header_ns);
    if (err) {
        if (sh->draining)
            close(nc->fd);
        trn_err_free(err);
        atomic_fetch_sub(&sh->s->n_conns, 1);
        sconn_unref(c);
    } else {
        const char *colon = strrchr(c->io.peer, ':'); /* every connection has another port */
        trn_conn_count_for(&c->io, trn_traffic_of(c->io.peer, colon ? (size_t)(colon - c->io.peer) : strlen(c->io.peer), true));
        c->next = sh->conns;
        if (c->next)
            c->next->prev = c;
        sh->conns = c;
    }
    free(nc);
}

/* ---- listening ------------------------------------------------------------------------------------------------ */

static void warn_sometimes(trn_rpc_server *s, const char *what)
{
    uint64_t now = trn_now_ns();
    if (s->warned_ns && now - s->warned_ns < UINT64_C(10) * 1000000000)
        return;
    s->warned_ns = now;
    TRN_WARN("rpc", "%s", what);
}

static void resume_accept(void *arg)
{
    struct listener *li = arg;
    trn_watch_events(li->s->shards[0].loop, &li->watch, TRN_IO_READ);
}

static void on_accept(void *arg, int events)
{
    (void)events;
    struct listener *li = arg;
    trn_rpc_server *s = li->s;
    for (int i = 0; i < 64; i++) {
        trn_addr peer = {.len = sizeof peer.un};
        int fd = accept4(li->fd, &peer.sa, &peer.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                /* The connection stays in the queue; looking again at once would spin. */
                warn_sometimes(s, "cannot accept connections: out of file descriptors or memory (ulimit -n); trying "
                                  "again every 100 ms");
                trn_watch_events(s->shards[0].loop, &li->watch, 0);
                trn_timer_start(s->shards[0].loop, &li->pause, trn_now_ns() + 100000000, resume_accept, li);
                return;
            }
            if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO)
                continue;
            return;
        }
        if (atomic_fetch_add(&s->n_conns, 1) >= s->opts.max_connections) {
            atomic_fetch_sub(&s->n_conns, 1);
            close(fd);
            warn_sometimes(s, "too many connections: new ones are closed");
            continue;
        }
        trn_net_tune(fd, &peer);
        newcomer *nc = trn_xalloc(sizeof *nc);
        nc->sh = &s->shards[s->next_loop++ % (unsigned)s->opts.n_loops];
        nc->fd = fd;
        nc->peer = peer;
        atomic_fetch_add(&s->refs, 1);
        if (nc->sh == &s->shards[0])
            adopt(nc);
        else
            trn_loop_post(nc->sh->loop, adopt, nc);
    }
}

size_t trn_rpc_server_connections(const trn_rpc_server *s) { return atomic_load(&((trn_rpc_server *)s)->n_conns); }
static double read_conns(void *arg) { return (double)atomic_load(&((trn_rpc_server *)arg)->n_conns); }

static void init_method(method *m, const trn_rpc_method *row, void *svc, const char *name)
{
    m->m = row;
    m->svc = svc;
    trn_rpc_stats_init(&m->stats, "rpc", name, "Calls received", "From the whole request to the reply");
}

trn_err trn_rpc_server_open(trn_rpc_server **out, const trn_server_opts *o)
{
    if (o->n_loops < 1)
        return trn_errorf(TRN_INVALID_ARGUMENT, "a server needs at least one event loop");
    trn_rpc_server *s = trn_xalloc(sizeof *s);
    atomic_init(&s->refs, 1);
    s->opts = *o;
    s->opts.loops = trn_xalloc((size_t)o->n_loops * sizeof *o->loops);
    if (!s->opts.max_connections)
        s->opts.max_connections = 16384;
    s->shards = trn_xalloc((size_t)o->n_loops * sizeof *s->shards);
    for (int i = 0; i < o->n_loops; i++) {
        s->opts.loops[i] = o->loops[i];
        s->shards[i] = (shard){.s = s, .loop = o->loops[i]};
    }
    s->methods = trn_map_new();
    trn_mutex_init(&s->mu, TRN_RANK_LEAF);
    pthread_cond_init(&s->changed, NULL);
    init_method(&s->unknown, NULL, NULL, "other");
    trn_metric_gauge("rpc_connections", "Open connections of this server", read_conns, s);
    *out = s;
    return TRN_OK;
}

void trn_rpc_server_add(trn_rpc_server *s, const trn_rpc_method *methods, void *svc)
{
    for (; methods->path; methods++) {
        method *m = trn_xalloc(sizeof *m);
        const char *slash = strrchr(methods->path, '/');
        init_method(m, methods, svc, slash ? slash + 1 : methods->path);
        free(trn_map_puts(s->methods, methods->path, m));
    }
}

void trn_rpc_server_route(trn_rpc_server *s, const trn_http_route *r)
{
    TRN_PUSH(s->routes, s->n_routes, s->cap_routes, *r);
}

static void start_listening(void *arg)
{
    trn_rpc_server *s = arg;
    for (int i = 0; i < s->n_listeners; i++) {
        struct listener *li = &s->listeners[i];
        if (li->watch.fn)
            continue;
        trn_err err = trn_watch_start(s->shards[0].loop, &li->watch, li->fd, TRN_IO_READ, on_accept, li);
        if (err) {
            TRN_WARN("rpc", "%s", trn_err_msg(err));
            trn_err_free(err);
        }
    }
    server_unref(s);
}

/* Sockets that listen already, all on port p. */
static void serve_on(trn_rpc_server *s, const int *fds, int n, int p)
{
    s->listeners = trn_xalloc(2 * (size_t)n * sizeof *s->listeners);
    bool open = false;
    for (int i = 0; i < n; i++) {
        s->listeners[s->n_listeners++] = (struct listener){.s = s, .fd = fds[i]};
        int twin = trn_net_listen_twin(fds[i]);
        if (twin >= 0)
            s->listeners[s->n_listeners++] = (struct listener){.s = s, .fd = twin};
        trn_addr a = {.len = sizeof a.v6};
        if (getsockname(fds[i], &a.sa, &a.len) == 0 && !trn_addr_is_loopback(&a))
            open = true;
    }
    if (open)
        TRN_WARN("rpc",
                 "port %d is plain text and open to the network: whoever reaches it can run programs here; "
                 "use localhost or a private address in the cluster spec, or close it with a firewall",
                 p);
    atomic_fetch_add(&s->refs, 1);
    trn_loop_post(s->shards[0].loop, start_listening, s);
}

trn_err trn_rpc_server_listen(trn_rpc_server *s, const char *host, int port, int *port_out)
{
    if (s->listeners)
        return trn_errorf(TRN_FAILED_PRECONDITION, "the server listens already");
    int fds[TRN_NET_ADDRS], n, p;
    TRN_TRY(trn_net_listen(fds, &n, &p, host, port));
    serve_on(s, fds, n, p);
    if (port_out)
        *port_out = p;
    return TRN_OK;
}

trn_err trn_rpc_server_listen_fd(trn_rpc_server *s, int fd, int *port_out)
{
    int listening = 0, flags = fcntl(fd, F_GETFL);
    trn_addr a = {.len = sizeof a.v6};
    trn_err err = TRN_OK;
    if (s->listeners)
        err = trn_errorf(TRN_FAILED_PRECONDITION, "the server listens already");
    else if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &(socklen_t){sizeof listening}) != 0 || !listening ||
             getsockname(fd, &a.sa, &a.len) != 0 || (a.sa.sa_family != AF_INET && a.sa.sa_family != AF_INET6))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "descriptor %d is not a listening TCP socket", fd);
    else if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        err = trn_err_errno(errno, "cannot prepare descriptor %d", fd);
    if (err) {
        close(fd);
        return err;
    }
    int p = ntohs(a.sa.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    serve_on(s, &fd, 1, p);
    if (port_out)
        *port_out = p;
    return TRN_OK;
}

/* ---- closing -------------------------------------------------------------------------------------------------- */

static void stop_listening(void *arg)
{
    trn_rpc_server *s = arg;
    for (int i = 0; i < s->n_listeners; i++) {
        struct listener *li = &s->listeners[i];
        trn_watch_stop(s->shards[0].loop, &li->watch);
        trn_timer_stop(s->shards[0].loop, &li->pause);
        close(li->fd);
    }
    s->n_listeners = 0;
    trn_lock(&s->mu);
    s->open_shards--;
    pthread_cond_signal(&s->changed);
    trn_unlock(&s->mu);
    server_unref(s);
}

static void drain_over(void *arg)
{
    shard *sh = arg;
    trn_rpc_server *s = sh->s;
    atomic_fetch_add(&s->refs, 1); /* the last connection may end the shard */
    trn_err why = trn_errorf(TRN_UNAVAILABLE, "the server is closing");
    while (sh->draining && sh->conns)
        sconn_close(sh->conns, why);
    trn_err_free(why);
    server_unref(s);
}

static void drain_shard(void *arg)
{
    shard *sh = arg;
    trn_rpc_server *s = sh->s;
    atomic_fetch_add(&s->refs, 1);
    for (sconn *c = sh->conns, *next; c; c = next) {
        next = c->next;
        if (c->io.h2) {
            trn_h2_goaway(c->io.h2); /* the flush finds the session over once its calls are */
            trn_conn_dirty(&c->io);
        } else {
            sconn_close(c, NULL);
        }
    }
    sh->draining = true;
    trn_timer_start(sh->loop, &sh->drain, trn_now_ns() + sh->drain_ns, drain_over, sh);
    shard_maybe_done(sh);
    server_unref(s);
}

static void wait_shards(trn_rpc_server *s)
{
    trn_lock(&s->mu);
    while (s->open_shards > 0)
        pthread_cond_wait(&s->changed, &s->mu.m);
    trn_unlock(&s->mu);
}

void trn_rpc_server_close(trn_rpc_server *s, uint64_t drain_ns)
{
    if (!s)
        return;
    s->open_shards = 1;
    atomic_fetch_add(&s->refs, 1);
    trn_loop_post(s->shards[0].loop, stop_listening, s);
    wait_shards(s); /* nobody posts newcomers any more */
    s->open_shards = s->opts.n_loops;
    for (int i = 0; i < s->opts.n_loops; i++) {
        s->shards[i].drain_ns = drain_ns;
        atomic_fetch_add(&s->refs, 1); /* dropped by shard_maybe_done */
        trn_loop_post(s->shards[i].loop, drain_shard, &s->shards[i]);
    }
    wait_shards(s);
    trn_metric_gauge_drop(s);
    server_unref(s);
}
