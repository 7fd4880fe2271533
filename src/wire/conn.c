#include "wire/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    SCRATCH = 64 << 10,    /* small messages and frame heads; on the stack, so an idle connection has no read buffer */
    DIRECT_FROM = 8 << 10, /* below this a copy is cheaper than a second iovec */
    BEHIND = 16 << 10,     /* room for the next frame's head and some of its payload behind a direct read */
    READ_TURN = 8 << 20,   /* bytes per wake-up: window updates and other connections get their turn */
    WRITE_TURN = 32 << 20,
    LOW = 256 << 10,       /* inside a large frame we are woken for this much, or its end; */
    LOW_PART = 16,         /* for a sixteenth of what is left, where that is more: each waking costs as much as copying 60 KiB, */
    LOW_MAX = 2 << 20,     /* and the sender must find room meanwhile */
    MAX_IOV = 256,
};

static trn_counter *bytes_in, *bytes_out, *bytes_lent;

static void register_metrics(void)
{
    bytes_in = trn_metric_counter("rpc_bytes_total{direction=\"in\"}", "Bytes on gRPC connections, both sides");
    bytes_out = trn_metric_counter("rpc_bytes_total{direction=\"out\"}", "Bytes on gRPC connections, both sides");
    bytes_lent = trn_metric_counter("rpc_bytes_lent_total", "Of those out: sent without a copy");
}

static void lose(trn_conn *c, trn_err why) { c->lost(c->owner, why); }

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

static trn_err lost_error(trn_conn *c, const char *what)
{
    return trn_errorf(TRN_UNAVAILABLE, "connection to %s lost: %s; last heard of %.1f s ago", c->peer, what,
                      seconds(trn_now_ns() - c->rx_ns));
}

/* ---- out ------------------------------------------------------------------------------------------------------ */

static void count_out(trn_conn *c, ssize_t k)
{
    if (k <= 0)
        return;
    trn_counter_add(bytes_out, (uint64_t)k);
    if (c->traffic)
        atomic_fetch_add_explicit(&c->traffic->out, (uint64_t)k, memory_order_relaxed);
}

static ssize_t write_socket(trn_conn *c, struct iovec *iov, int n, bool more)
{
    if (TRN_FAULT("io.write")) {
        errno = ECONNRESET;
        return -1;
    }
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t k;
    do
        k = sendmsg(c->fd, &m, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    while (k < 0 && errno == EINTR);
    count_out(c, k);
    return k;
}

/* What comes next out of the session: large pieces by reference, all else copied. 0: there is nothing. */
static ssize_t write_next(trn_conn *c)
{
    struct iovec iov[MAX_IOV];
    if (trn_h2_to_lend(c->h2, iov)) {
        trn_lender *l = trn_loop_lender(c->loop);
        ssize_t k = l ? trn_lend(l, c->fd, iov[0].iov_base, iov[0].iov_len, trn_h2_pending(c->h2) > iov[0].iov_len) : -1;
        if (k > 0) {
            trn_counter_add(bytes_lent, (uint64_t)k);
            count_out(c, k);
            trn_h2_lent(c->h2, (size_t)k);
            return k;
        }
        if (l && (errno == EAGAIN || errno == EWOULDBLOCK))
            return -1;
        trn_h2_may_lend(c->h2, false); /* whatever it was, sendmsg can do it or says why not */
    }
    int n = trn_h2_iov(c->h2, iov, MAX_IOV);
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += iov[i].iov_len;
    ssize_t k = n > 0 ? write_socket(c, iov, n, trn_h2_pending(c->h2) > sum) : 0;
    if (k > 0)
        trn_h2_sent(c->h2, (size_t)k);
    return k;
}

static void set_blocked(trn_conn *c, bool blocked)
{
    c->blocked = blocked;
    trn_watch_events(c->loop, &c->watch, TRN_IO_READ | (blocked ? TRN_IO_WRITE : 0));
}

/* False: the connection is lost and c must not be touched. */
static bool flush_raw(trn_conn *c)
{
    while (c->raw_off < c->raw_out.n) {
        struct iovec iov = {c->raw_out.p + c->raw_off, c->raw_out.n - c->raw_off};
        ssize_t k = write_socket(c, &iov, 1, false);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            set_blocked(c, true);
            return true;
        }
        if (k < 0) {
            c->peer_gone = true;
            lose(c, lost_error(c, strerror(errno)));
            return false;
        }
        c->raw_off += (size_t)k;
    }
    c->raw_off = 0;
    trn_sb_fini(&c->raw_out);
    if (c->close_when_sent && !c->half_closed) {
        /* Closing at once would send a reset when unread input is left, and the peer might never see the answer. */
        c->half_closed = true;
        shutdown(c->fd, SHUT_WR);
    }
    return true;
}

static void flush(void *arg)
{
    trn_conn *c = arg;
    if (c->blocked)
        return;
    if (!c->h2) {
        flush_raw(c);
        return;
    }
    for (size_t total = 0;;) {
        if (total >= WRITE_TURN) { /* a peer that reads as fast as we write: epoll says at once that there is room */
            set_blocked(c, true);
            return;
        }
        trn_err err = trn_h2_fill(c->h2);
        if (err) {
            lose(c, err);
            return;
        }
        ssize_t k = write_next(c);
        if (k == 0)
            break;
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            set_blocked(c, true);
            return;
        }
        if (k < 0) {
            c->peer_gone = true;
            lose(c, lost_error(c, strerror(errno)));
            return;
        }
        total += (size_t)k;
    }
    if (!trn_h2_alive(c->h2))
        lose(c, lost_error(c, "the session is over"));
}

void trn_conn_flush(trn_conn *c)
{
    for (int i = 0; c->fd >= 0 && c->h2 && !c->blocked && !c->reading && i < 64; i++) {
        trn_err err = trn_h2_fill(c->h2);
        ssize_t k = err ? 0 : write_next(c);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            set_blocked(c, true);
        trn_err_free(err); /* the task that is armed anyway meets it again, where losing the connection is safe */
        if (k <= 0)
            return;
    }
}

void trn_conn_dirty(trn_conn *c)
{
    if (c->fd >= 0)
        trn_loop_later(c->loop, &c->flush);
}

/* ---- in ------------------------------------------------------------------------------------------------------- */

/* One read: into the message that is being received if it is large, the rest into scratch. */
static ssize_t read_socket(trn_conn *c, struct iovec iov[2], int n)
{
    if (TRN_FAULT("io.read")) {
        errno = ECONNRESET;
        return -1;
    }
    ssize_t k;
    do {
        if (n == 1) {
            k = recv(c->fd, iov[0].iov_base, iov[0].iov_len, 0);
        } else {
            struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
            k = recvmsg(c->fd, &m, 0);
        }
    } while (k < 0 && errno == EINTR);
    if (k > 0) {
        trn_counter_add(bytes_in, (uint64_t)k);
        if (c->traffic)
            atomic_fetch_add_explicit(&c->traffic->in, (uint64_t)k, memory_order_relaxed);
    }
    return k;
}

/* A frame comes to its end before its sender can say anything else, so nothing is missed by sleeping until a good part of it is there; woken for every
 * segment, this thread would do the kernel's receive work beside the sender's. A socket that is short of memory wakes us all the same. */
static void set_low(trn_conn *c, size_t left)
{
    size_t part = TRN_MIN(TRN_MAX(left / LOW_PART, (size_t)LOW), (size_t)LOW_MAX);
    int low = left >= LOW / 4 ? (int)TRN_MIN(left, part) : 0;
    if (low != c->low && setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0)
        c->low = low;
}

/* False: the connection is over and c must not be touched. */
static bool read_turn(trn_conn *c)
{
    _Alignas(4096) uint8_t scratch[SCRATCH]; /* at a known place in a page, for the reason that alloc_message has (h2.c) */
    for (size_t total = 0; total < READ_TURN;) {
        struct iovec iov[2];
        int n = 1;
        uint8_t *dest = NULL;
        size_t direct = c->h2 ? trn_h2_want(c->h2, &dest) : 0;
        if (direct >= DIRECT_FROM) {
            iov[0] = (struct iovec){dest, direct};
            iov[1] = (struct iovec){scratch, BEHIND};
            n = 2;
        } else {
            direct = 0;
            iov[0] = (struct iovec){scratch, SCRATCH};
        }
        ssize_t k = read_socket(c, iov, n);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (k <= 0) {
            c->peer_gone = true;
            lose(c, lost_error(c, k < 0 ? strerror(errno) : "closed by the peer"));
            return false;
        }
        size_t got = (size_t)k, asked = iov[0].iov_len + (n == 2 ? iov[1].iov_len : 0);
        total += got;
        trn_err err = TRN_OK;
        c->reading = true;
        if (c->h2) {
            size_t first = TRN_MIN(got, direct);
            if (first > 0)
                err = trn_h2_recv(c->h2, dest, first);
            if (!err && got > first)
                err = trn_h2_recv(c->h2, scratch, got - first);
        } else if (!c->half_closed) {
            err = c->bytes(c->owner, scratch, got);
        }
        c->reading = false;
        if (err) {
            /* What nghttp2 still wants to say (GOAWAY with the reason) goes out first, if the socket takes it. */
            if (c->h2 && !c->blocked) {
                trn_err ignored = trn_h2_fill(c->h2);
                trn_err_free(ignored);
                struct iovec out[8];
                int m = trn_h2_iov(c->h2, out, 8);
                if (m > 0 && write_socket(c, out, m, false) < 0)
                    m = 0;
            }
            lose(c, err);
            return false;
        }
        if (got < asked)
            break; /* drained; should more have come meanwhile, epoll says so */
    }
    if (!c->close_when_sent)
        c->rx_ns = trn_now_ns();
    c->ping_ns = 0;
    if (c->h2) {
        uint8_t *dest;
        set_low(c, trn_h2_want(c->h2, &dest));
        if (!trn_h2_in_headers(c->h2))
            c->header_ns = 0;
        else if (c->header_ns == 0)
            c->header_ns = c->rx_ns;
    }
    trn_conn_dirty(c);
    return true;
}

static void on_io(void *arg, int events)
{
    trn_conn *c = arg;
    if (events & TRN_IO_WRITE && c->blocked) {
        c->tx_ns = trn_now_ns(); /* the peer takes what we send: a slow link is not a dead one */
        set_blocked(c, false);
        trn_conn_dirty(c);
    }
    if (events & TRN_IO_READ)
        read_turn(c);
}

/* ---- silence -------------------------------------------------------------------------------------------------- */

static void on_tick(void *arg)
{
    trn_conn *c = arg;
    uint64_t now = trn_now_ns(), heard = TRN_MAX(c->rx_ns, c->tx_ns), silent = now - heard, next;
    if (!c->ready && now - c->start_ns >= c->patience_ns) {
        lose(c, lost_error(c, "no HTTP/2 settings came"));
        return;
    }
    if (c->header_ns && now - c->header_ns >= c->patience_ns) {
        lose(c, lost_error(c, "a block of headers does not end"));
        return;
    }
    if (!c->h2) {
        if (c->idle_ns && silent >= c->idle_ns) {
            lose(c, lost_error(c, "idle"));
            return;
        }
        next = heard + (c->idle_ns ? c->idle_ns : c->patience_ns);
    } else {
        uint64_t interval =
            trn_h2_peer_pingable(c->h2) ? c->keepalive_ns : TRN_MAX(c->keepalive_ns, TRN_CONN_SHY_KEEPALIVE_NS);
        next = heard + interval;
        if (c->ping_ns && now - TRN_MAX(c->ping_ns, c->tx_ns) >= c->keepalive_ns) {
            lose(c, lost_error(c, "it does not answer PING"));
            return;
        }
        if (c->low && silent >= interval) { /* what has come of the frame counts as a word, too; the answer to a PING would be behind it */
            set_low(c, 0);
            trn_timer_start(c->loop, &c->tick, now + TRN_MIN(interval, c->patience_ns), on_tick, c);
            return;
        }
        if (!c->ping_ns && silent >= interval && trn_h2_streams(c->h2) > 0) {
            trn_h2_ping(c->h2);
            c->ping_ns = now;
            trn_conn_dirty(c);
        }
        if (c->ping_ns)
            next = TRN_MAX(c->ping_ns, c->tx_ns) + c->keepalive_ns;
    }
    if (!c->ready)
        next = TRN_MIN(next, c->start_ns + c->patience_ns);
    if (c->h2 && next > now + c->patience_ns)
        next = now + c->patience_ns; /* headers may begin to dribble any time */
    if (next <= now)                 /* silent, but without calls that would be worth a PING */
        next = now + c->keepalive_ns;
    trn_timer_start(c->loop, &c->tick, next, on_tick, c);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

trn_err trn_conn_start(trn_conn *c, trn_loop *l, int fd, const trn_addr *peer, uint64_t keepalive_ns,
                       uint64_t patience_ns)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_metrics);
    c->loop = l;
    c->fd = fd;
    c->keepalive_ns = keepalive_ns ? keepalive_ns : TRN_CONN_KEEPALIVE_NS;
    c->patience_ns = patience_ns ? patience_ns : TRN_CONN_HEADER_NS;
    c->flush.fn = flush;
    c->flush.arg = c;
    c->start_ns = c->rx_ns = trn_now_ns();
    trn_addr_text(c->peer, peer);
    trn_err err = trn_watch_start(l, &c->watch, fd, TRN_IO_READ, on_io, c);
    if (err) {
        close(fd);
        c->fd = -1;
        return err;
    }
    trn_timer_start(l, &c->tick, c->start_ns + TRN_MIN(c->keepalive_ns, c->patience_ns), on_tick, c);
    return TRN_OK;
}

void trn_conn_count_for(trn_conn *c, trn_traffic *t)
{
    if (c->traffic)
        atomic_fetch_sub_explicit(&c->traffic->connections, 1, memory_order_relaxed);
    if (t)
        atomic_fetch_add_explicit(&t->connections, 1, memory_order_relaxed);
    c->traffic = t;
}

/* We end the connection, but its bytes may still be read by the peer, out of buffers of ours. They stay as they are until its end closes, too: one that is halted for an hour
 * and goes on must not find other bytes. Only where halted peers hold too much are those let go whose time is over. */
static _Atomic size_t parted; /* bytes */

typedef struct parting {
    trn_loop *loop;
    int fd;
    trn_watch watch;
    trn_timer limit;
    uint64_t limit_ns;
    trn_loop_task at_close;
    trn_h2_loans *loans;
} parting;

static void part_over(void *arg)
{
    parting *p = arg;
    trn_watch_stop(p->loop, &p->watch);
    trn_timer_stop(p->loop, &p->limit);
    trn_loop_at_close_stop(p->loop, &p->at_close);
    close(p->fd);
    atomic_fetch_sub(&parted, trn_h2_loans_bytes(p->loans));
    trn_h2_loans_free(p->loans);
    free(p);
}

static void part_limit(void *arg)
{
    parting *p = arg;
    if (parted > TRN_CONN_PART_MAX)
        part_over(p);
    else
        trn_timer_start(p->loop, &p->limit, trn_now_ns() + p->limit_ns, part_limit, p);
}

static void on_parting(void *arg, int events)
{
    (void)events;
    parting *p = arg;
    char ignored[4096];
    ssize_t k = recv(p->fd, ignored, sizeof ignored, 0);
    if (k == 0 || (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        part_over(p);
}

static void part(trn_loop *l, int fd, uint64_t limit_ns, TRN_OWN trn_h2_loans *loans)
{
    parting *p = trn_xalloc(sizeof *p);
    *p = (parting){.loop = l, .fd = fd, .limit_ns = limit_ns, .loans = loans, .at_close = {.fn = part_over, .arg = p}};
    atomic_fetch_add(&parted, trn_h2_loans_bytes(loans));
    shutdown(fd, SHUT_WR);
    trn_loop_at_close(l, &p->at_close);
    trn_timer_start(l, &p->limit, trn_now_ns() + limit_ns, part_limit, p);
    trn_err err = trn_watch_start(l, &p->watch, fd, TRN_IO_READ, on_parting, p);
    trn_err_free(err); /* then it ends with the loop */
}

void trn_conn_stop(trn_conn *c, const trn_error *why)
{
    if (c->fd < 0)
        return;
    trn_conn_count_for(c, NULL);
    trn_watch_stop(c->loop, &c->watch);
    trn_timer_stop(c->loop, &c->tick);
    trn_h2_loans *loans = c->h2 && !c->peer_gone ? trn_h2_take_loans(c->h2) : NULL;
    if (loans)
        part(c->loop, c->fd, 3 * c->keepalive_ns, loans);
    else
        close(c->fd);
    c->fd = -1;
    trn_h2_free(c->h2, why);
    c->h2 = NULL;
    trn_loop_later_stop(c->loop, &c->flush);
    trn_sb_fini(&c->raw_out);
}
