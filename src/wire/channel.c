/* The client: one channel per peer address.
 *
 *   IDLE       no connection; the first call → RESOLVING
 *   RESOLVING  a name is being looked up → CONNECTING, or failed
 *   CONNECTING the addresses are tried one by one → READY, or failed
 *   READY      `cur` carries calls; lost → IDLE (BACKOFF when it never said SETTINGS); GOAWAY → IDLE, it finishes its calls aside
 *   BACKOFF    an attempt failed: calls that do not wait are failed with its reason; timer → RESOLVING if somebody waits, else IDLE
 *
 * Everything but the reference counts and the text for people belongs to the channel's loop. A call's callback never runs inside
 * trn_channel_call: failures found there are kept for the later-task `kick`.
 */
#include "wire/rpc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "wire/conn.h"
#include "wire/stats.h"

#define MS UINT64_C(1000000)
#define BACKOFF_MIN (50 * MS)
#define BACKOFF_MAX (5000 * MS)
#define CONNECT_NS (10000 * MS)
#define CONNECT_MORE_NS (2000 * MS) /* when more addresses follow */

enum { IDLE, RESOLVING, CONNECTING, READY, BACKOFF };

typedef struct cconn cconn; /* a connection of the channel */

struct cconn {
    trn_conn io;
    trn_channel *ch;
    cconn *next;
};

typedef struct queue {
    trn_rpc *head, *tail;
    size_t n;
} queue;

struct trn_channel {
    _Atomic int refs; /* memory: users (together one), calls, posted work */
    _Atomic int users;
    trn_loop *loop;
    char *address, *host;
    char *agent; /* NULL: the default */
    trn_traffic *traffic;
    int port;
    uint64_t keepalive_ns; /* 0: the default */
    trn_err bad_address;
    _Atomic bool ours; /* the peer is a Trainera task */

    /* [loop] */
    int state;
    bool shut;
    cconn *cur;     /* READY */
    cconn *leaving; /* after GOAWAY, until their calls are over */
    queue waiting;  /* for a connection */
    queue failed;   /* r->err is to be told */
    trn_loop_task kick;
    trn_lookup *lookup;
    trn_addrs addrs;
    int addr_i;
    int fd; /* being connected */
    trn_watch watch;
    trn_timer timer; /* connect timeout, backoff */
    uint64_t backoff_ns;
    trn_err why; /* of the last failure */

    trn_mutex mu; /* what follows is for trn_channel_state_text */
    int seen_state;
    int attempts; /* in a row without success */
    uint64_t since_ns;
    char why_text[160];
};

struct trn_rpc {
    trn_stream s; /* first: the hooks get this pointer */
    _Atomic int refs;
    trn_channel *ch; /* a reference */
    cconn *on;       /* the stream is on this connection */
    trn_rpc *prev, *next;
    queue *in;       /* waiting or failed */
    trn_out_msg out; /* until it is given to a stream */
    trn_err err;     /* while in `failed` */
    trn_rpc_done done;
    void *arg;
    trn_rpc_align align;
    uint64_t deadline_ns, start_ns;
    trn_rpc_stats *stats;
    trn_timer timer;
    bool wait, over, again;
    int tries;
    char path[];
};

/* ---- references ----------------------------------------------------------------------------------------------- */

static void channel_drop(trn_channel *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    trn_err_free(c->bad_address);
    trn_err_free(c->why);
    trn_mutex_fini(&c->mu);
    free(c->address);
    free(c->host);
    free(c->agent);
    free(c);
}

void trn_rpc_unref(trn_rpc *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    trn_stream_fini(&r->s);
    trn_out_fini(&r->out);
    trn_err_free(r->err);
    channel_drop(r->ch);
    free(r);
}

static void put(queue *q, trn_rpc *r)
{
    r->in = q;
    r->next = NULL;
    r->prev = q->tail;
    if (q->tail)
        q->tail->next = r;
    else
        q->head = r;
    q->tail = r;
    q->n++;
}

static void pull(trn_rpc *r)
{
    queue *q = r->in;
    if (!q)
        return;
    if (r->prev)
        r->prev->next = r->next;
    else
        q->head = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        q->tail = r->prev;
    q->n--;
    r->in = NULL;
}

/* ---- outcomes ------------------------------------------------------------------------------------------------- */

static const char *short_name(const trn_rpc *r)
{
    const char *slash = strrchr(r->path, '/');
    return slash ? slash + 1 : r->path;
}

/* Tells the caller. The flight's reference is dropped when no stream refers to the call any more. */
static void tell(trn_rpc *r, trn_err err, const trn_msg *msg)
{
    r->over = true;
    trn_timer_stop(r->ch->loop, &r->timer);
    pull(r);
    trn_hist_add(r->stats->latency, trn_now_ns() - r->start_ns);
    if (err)
        trn_rpc_stats_error(r->stats, trn_err_code(err));
    r->done(r->arg, err, msg);
    if (!r->on)
        trn_rpc_unref(r);
}

/* Ends a call from our side: its stream is reset if it has one. */
static void give_up(trn_rpc *r, trn_err err)
{
    if (r->over) {
        trn_err_free(err);
        return;
    }
    if (r->on) {
        trn_h2_cancel(&r->s);
        trn_conn_dirty(&r->on->io);
    }
    tell(r, err, NULL);
}

/* An armed kick holds a reference. */
static void arm_kick(trn_channel *c)
{
    if (!c->kick.armed)
        atomic_fetch_add(&c->refs, 1);
    trn_loop_later(c->loop, &c->kick);
}

/* For failures that show while trn_channel_call is on the stack. */
static void fail_later(trn_rpc *r, trn_err err)
{
    pull(r);
    r->err = err;
    put(&r->ch->failed, r);
    arm_kick(r->ch);
}

static void set_state(trn_channel *c, int state)
{
    c->state = state;
    trn_lock(&c->mu);
    c->seen_state = state;
    trn_unlock(&c->mu);
}

static trn_err unavailable(trn_channel *c, const trn_rpc *r)
{
    double over = (double)(trn_now_ns() - c->since_ns) / 1e9;
    return trn_errorf(TRN_UNAVAILABLE, "%s: cannot connect to %s: %s (attempt %d, trying for %.1f s)", short_name(r),
                      c->address, c->why ? trn_err_msg(c->why) : "not connected", c->attempts, over);
}

/* ---- hooks of the session ------------------------------------------------------------------------------------- */

static void begin_connect(trn_channel *c);
static void start_call(trn_channel *c, trn_rpc *r);

static void hook_done(void *user, trn_stream *s, trn_err err)
{
    cconn *l = user;
    trn_rpc *r = (trn_rpc *)s;
    if (!err)
        atomic_store_explicit(&l->ch->ours, trn_h2_peer_pingable(l->io.h2), memory_order_relaxed);
    if (s->refused && !s->started && !l->ch->shut && r->tries < 3) {
        /* The peer never saw it, and the message is still whole. */
        r->again = true;
        r->out = s->out;
        s->out = (trn_out_msg){0};
        trn_err_free(err);
        return;
    }
    if (err && s->grpc_status <= 0) /* ours, not the peer's word */
        err = trn_err_wrap(err, "%s to %s", short_name(r), l->ch->address);
    tell(r, err, err ? NULL : &s->in);
}

static void hook_closed(void *user, trn_stream *s)
{
    (void)user;
    trn_rpc *r = (trn_rpc *)s;
    r->on = NULL;
    if (!r->again || r->over) {
        trn_rpc_unref(r);
        return;
    }
    r->again = false;
    trn_stream_fini(s);
    memset(s, 0, sizeof *s);
    put(&r->ch->waiting, r);
    arm_kick(r->ch);
}

/* No new calls on this connection; what it has goes on. */
static void set_leaving(cconn *l)
{
    trn_channel *c = l->ch;
    if (c->cur != l)
        return;
    c->cur = NULL;
    l->next = c->leaving;
    c->leaving = l;
    set_state(c, IDLE);
    arm_kick(c);
}

static void hook_goaway(void *user, uint32_t code, const char *text, size_t n)
{
    cconn *l = user;
    if (code != 0)
        TRN_WARN("rpc", "%s said GOAWAY %u \"%.*s\"", l->ch->address, code, (int)TRN_MIN(n, (size_t)100), text);
    set_leaving(l);
}

static void hook_settings(void *user)
{
    cconn *l = user;
    trn_channel *c = l->ch;
    l->io.ready = true;
    c->backoff_ns = 0;
    trn_lock(&c->mu);
    c->attempts = 0;
    trn_unlock(&c->mu);
}

static const trn_h2_hooks hooks = {
    .done = hook_done,
    .closed = hook_closed,
    .goaway = hook_goaway,
    .settings = hook_settings,
};

/* ---- connecting ----------------------------------------------------------------------------------------------- */

static void on_backoff_over(void *arg)
{
    trn_channel *c = arg;
    set_state(c, IDLE);
    if (c->waiting.head)
        begin_connect(c);
}

static void attempt_failed(trn_channel *c, trn_err why)
{
    trn_err_free(c->why);
    c->why = why;
    c->backoff_ns = c->backoff_ns ? TRN_MIN(c->backoff_ns * 8 / 5, BACKOFF_MAX) : BACKOFF_MIN;
    uint64_t delay = c->backoff_ns * 4 / 5 + trn_random64() % (c->backoff_ns * 2 / 5 + 1); /* ±20 % */
    trn_lock(&c->mu);
    snprintf(c->why_text, sizeof c->why_text, "%s", trn_err_msg(why));
    trn_unlock(&c->mu);
    TRN_DEBUG("rpc", "%s: %s; next attempt in %.2f s", c->address, trn_err_msg(why), (double)delay / 1e9);
    set_state(c, BACKOFF);
    trn_timer_start(c->loop, &c->timer, trn_now_ns() + delay, on_backoff_over, c);
    arm_kick(c); /* fails those who do not wait */
}

static void on_lost(void *owner, trn_err why)
{
    cconn *l = owner;
    trn_channel *c = l->ch;
    bool was_cur = c->cur == l, ready = l->io.ready;
    if (was_cur)
        c->cur = NULL;
    else
        for (cconn **at = &c->leaving; *at; at = &(*at)->next)
            if (*at == l) {
                *at = l->next;
                break;
            }
    if (was_cur) {
        TRN_DEBUG("rpc", "%s", trn_err_msg(why));
        if (ready) { /* a working connection was lost: the next call may try at once */
            set_state(c, IDLE);
            arm_kick(c);
        } else {
            attempt_failed(c, trn_err_copy(why));
        }
    }
    if (trn_err_code(why) != TRN_UNAVAILABLE) { /* whatever it was, to the calls the peer is unavailable */
        trn_err copy = trn_errorf(TRN_UNAVAILABLE, "%s", trn_err_msg(why));
        trn_err_free(why);
        why = copy;
    }
    trn_conn_stop(&l->io, why);
    trn_err_free(why);
    channel_drop(c);
    free(l);
}

/* A connect to a free local port can meet itself: TCP's simultaneous open. */
static bool met_itself(int fd)
{
    trn_addr a = {.len = sizeof a.un}, b = {.len = sizeof b.un};
    char ta[TRN_ADDR_TEXT], tb[TRN_ADDR_TEXT];
    return getsockname(fd, &a.sa, &a.len) == 0 && a.sa.sa_family != AF_UNIX && getpeername(fd, &b.sa, &b.len) == 0 &&
           strcmp(trn_addr_text(ta, &a), trn_addr_text(tb, &b)) == 0;
}

static void try_next(trn_channel *c);

static void connected(trn_channel *c)
{
    int fd = c->fd;
    c->fd = -1;
    trn_timer_stop(c->loop, &c->timer);
    cconn *l = trn_xalloc(sizeof *l);
    l->ch = c;
    l->io.owner = l;
    l->io.lost = on_lost;
    trn_err err = trn_conn_start(&l->io, c->loop, fd, &c->addrs.a[c->addr_i], c->keepalive_ns, 0);
    if (!err) {
        err = trn_h2_new(&l->io.h2, false, &hooks, l);
        if (err)
            trn_conn_stop(&l->io, NULL);
    }
    if (err) {
        free(l);
        attempt_failed(c, err);
        return;
    }
    trn_conn_count_for(&l->io, c->traffic);
    trn_h2_may_lend(l->io.h2, true);
    if (c->agent)
        trn_h2_set_agent(l->io.h2, c->agent);
    atomic_fetch_add(&c->refs, 1);
    c->cur = l;
    set_state(c, READY);
    trn_conn_dirty(&l->io);
    while (c->waiting.head && c->state == READY) {
        trn_rpc *r = c->waiting.head;
        pull(r);
        start_call(c, r);
    }
}

static void address_failed(trn_channel *c, int e)
{
    char text[TRN_ADDR_TEXT];
    if (c->fd >= 0) {
        trn_watch_stop(c->loop, &c->watch);
        close(c->fd);
        c->fd = -1;
    }
    trn_err_free(c->why);
    c->why = trn_errorf(TRN_UNAVAILABLE, "%s: %s", trn_addr_text(text, &c->addrs.a[c->addr_i]), strerror(e));
    c->addr_i++;
    try_next(c);
}

static void on_connect(void *arg, int events)
{
    (void)events;
    trn_channel *c = arg;
    int e = trn_net_error(c->fd);
    if (e == 0 && met_itself(c->fd))
        e = ECONNREFUSED;
    if (e != 0) {
        address_failed(c, e);
        return;
    }
    trn_watch_stop(c->loop, &c->watch);
    connected(c);
}

static void on_connect_timeout(void *arg) { address_failed(arg, ETIMEDOUT); }

static void try_next(trn_channel *c)
{
    set_state(c, CONNECTING);
    for (; c->addr_i < c->addrs.n; c->addr_i++) {
        trn_err err = TRN_FAULT("io.connect") ? trn_errorf(TRN_UNAVAILABLE, "connection refused by a fault point")
                                              : trn_net_connect(&c->fd, &c->addrs.a[c->addr_i]);
        if (!err)
            err = trn_watch_start(c->loop, &c->watch, c->fd, TRN_IO_WRITE, on_connect, c);
        if (!err) {
            uint64_t limit = c->addr_i + 1 < c->addrs.n ? CONNECT_MORE_NS : CONNECT_NS;
            trn_timer_start(c->loop, &c->timer, trn_now_ns() + limit, on_connect_timeout, c);
            return;
        }
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        trn_err_free(c->why);
        c->why = err;
    }
    trn_timer_stop(c->loop, &c->timer);
    trn_err why = c->why;
    c->why = TRN_OK;
    attempt_failed(c, why ? why : trn_errorf(TRN_UNAVAILABLE, "no address"));
}

static void on_resolved(void *arg, trn_err err, const trn_addrs *addrs)
{
    trn_channel *c = arg;
    c->lookup = NULL;
    if (err) {
        attempt_failed(c, err);
        return;
    }
    c->addrs = *addrs;
    try_next(c);
}

static void begin_connect(trn_channel *c)
{
    trn_lock(&c->mu);
    if (c->attempts++ == 0)
        c->since_ns = trn_now_ns();
    trn_unlock(&c->mu);
    trn_timer_stop(c->loop, &c->timer);
    c->addr_i = 0;
    if (c->bad_address) {
        attempt_failed(c, trn_err_copy(c->bad_address));
    } else if (trn_net_known(&c->addrs, c->host, c->port)) {
        try_next(c);
    } else {
        set_state(c, RESOLVING);
        trn_err err = trn_lookup_start(&c->lookup, c->loop, c->host, c->port, on_resolved, c);
        if (err)
            attempt_failed(c, err);
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

static void start_call(trn_channel *c, trn_rpc *r)
{
    uint64_t left = 0;
    if (r->deadline_ns) {
        uint64_t now = trn_now_ns();
        left = r->deadline_ns > now ? r->deadline_ns - now : 1;
    }
    r->tries++;
    r->s.align = r->align;
    bool gone;
    trn_err err = trn_h2_call(c->cur->io.h2, &r->s, c->address, r->path, left, &r->out, &gone);
    if (err) {
        fail_later(r, err);
    } else if (gone) { /* all stream numbers of this connection are used up */
        r->tries--;
        put(&c->waiting, r);
        trn_h2_goaway(c->cur->io.h2);
        trn_conn_dirty(&c->cur->io);
        set_leaving(c->cur);
    } else {
        r->on = c->cur;
        trn_conn_dirty(&c->cur->io);
    }
}

/* What callbacks add meanwhile is for the next time: hence the count. */
static void tell_failed(trn_channel *c)
{
    for (size_t n = c->failed.n; n > 0 && c->failed.head; n--) {
        trn_rpc *r = c->failed.head;
        trn_err err = r->err;
        r->err = TRN_OK;
        tell(r, err, NULL);
    }
}

/* Before the loop sleeps: tells failures, starts connecting when somebody waits. */
static void on_kick(void *arg)
{
    trn_channel *c = arg;
    tell_failed(c);
    if (c->state == READY) {
        while (c->waiting.head && c->state == READY) {
            trn_rpc *r = c->waiting.head;
            pull(r);
            start_call(c, r);
        }
    } else if (c->state == BACKOFF) {
        for (size_t n = c->waiting.n; n > 0 && c->waiting.head; n--) {
            trn_rpc *r = c->waiting.head;
            if (r->wait && !c->bad_address) {
                pull(r);
                put(&c->waiting, r);
            } else {
                tell(r, unavailable(c, r), NULL);
            }
        }
    } else if (c->state == IDLE && c->waiting.head) {
        begin_connect(c);
    }
    channel_drop(c); /* the armed kick's */
}

static void on_deadline(void *arg)
{
    trn_rpc *r = arg;
    trn_channel *c = r->ch;
    char text[256];
    give_up(r, trn_errorf(TRN_DEADLINE_EXCEEDED, "%s to %s: deadline exceeded (%s)", short_name(r), c->address,
                          trn_channel_state_text(c, text, sizeof text)));
}

static void submit(trn_rpc *r)
{
    trn_channel *c = r->ch;
    if (r->deadline_ns)
        trn_timer_start(c->loop, &r->timer, r->deadline_ns, on_deadline, r);
    if (c->shut) {
        fail_later(r, trn_errorf(TRN_UNAVAILABLE, "%s: the channel to %s was shut down", short_name(r), c->address));
    } else if (c->state == READY) {
        start_call(c, r);
    } else {
        put(&c->waiting, r);
        arm_kick(c);
    }
}

static void submit_posted(void *arg) { submit(arg); }

void trn_channel_call(trn_rpc **out, trn_channel *c, const char *method_path, trn_out_msg *request,
                      const trn_call_opts *o, trn_rpc_done done, void *arg)
{
    size_t n = strlen(method_path) + 1;
    trn_rpc *r = trn_xalloc(sizeof *r + n);
    memcpy(r->path, method_path, n);
    atomic_init(&r->refs, out ? 2 : 1);
    r->ch = c;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    if (request) {
        r->out = *request;
        *request = (trn_out_msg){0};
    }
    r->done = done;
    r->arg = arg;
    r->start_ns = trn_now_ns();
    r->stats = trn_rpc_stats_client(method_path);
    trn_counter_add(r->stats->calls, 1);
    if (o) {
        r->deadline_ns = o->deadline_ns;
        r->wait = o->wait_for_ready;
        r->align = o->align;
    }
    if (out)
        *out = r;
    if (trn_loop_here(c->loop))
        submit(r);
    else
        trn_loop_post(c->loop, submit_posted, r);
}

void trn_channel_flush(trn_channel *c)
{
    if (c->state == READY && c->cur)
        trn_conn_flush(&c->cur->io);
}

static void cancel_posted(void *arg)
{
    trn_rpc *r = arg;
    give_up(r, trn_errorf(TRN_CANCELLED, "%s to %s was cancelled", short_name(r), r->ch->address));
    trn_rpc_unref(r);
}

void trn_rpc_cancel(trn_rpc *r)
{
    atomic_fetch_add(&r->refs, 1);
    trn_loop_post(r->ch->loop, cancel_posted, r);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

trn_channel *trn_channel_new(trn_loop *loop, const char *address)
{
    trn_channel *c = trn_xalloc(sizeof *c);
    atomic_init(&c->refs, 1);
    atomic_init(&c->users, 1);
    c->loop = loop;
    c->fd = -1;
    c->address = trn_xstrdup(address);
    c->traffic = trn_traffic_of(address, strlen(address), false);
    c->kick.fn = on_kick;
    c->kick.arg = c;
    trn_mutex_init(&c->mu, TRN_RANK_LEAF);
    c->bad_address = trn_net_split(&c->host, &c->port, address);
    return c;
}

trn_channel *trn_channel_ref(trn_channel *c)
{
    atomic_fetch_add(&c->users, 1);
    return c;
}

static void shut(trn_channel *c)
{
    if (c->shut)
        return;
    c->shut = true;
    trn_timer_stop(c->loop, &c->timer);
    if (c->lookup)
        trn_lookup_cancel(c->lookup);
    c->lookup = NULL;
    if (c->fd >= 0) {
        trn_watch_stop(c->loop, &c->watch);
        close(c->fd);
        c->fd = -1;
    }
    set_state(c, IDLE);
    trn_err why = trn_errorf(TRN_UNAVAILABLE, "the channel to %s was shut down", c->address);
    for (cconn *l; (l = c->cur ? c->cur : c->leaving);) {
        if (c->cur)
            c->cur = NULL;
        else
            c->leaving = l->next;
        trn_conn_stop(&l->io, why);
        channel_drop(c);
        free(l);
    }
    for (size_t n = c->waiting.n; n > 0 && c->waiting.head; n--)
        tell(c->waiting.head, trn_err_copy(why), NULL);
    tell_failed(c);
    trn_err_free(why);
}

static void shut_posted(void *arg)
{
    shut(arg);
    channel_drop(arg);
}

void trn_channel_shutdown(trn_channel *c)
{
    atomic_fetch_add(&c->refs, 1);
    trn_loop_post(c->loop, shut_posted, c);
}

void trn_channel_unref(trn_channel *c)
{
    if (c && atomic_fetch_sub(&c->users, 1) == 1)
        trn_loop_post(c->loop, shut_posted, c); /* hands the users' memory reference over */
}

void trn_channel_set_from(trn_channel *c, const char *task)
{
    free(c->agent);
    c->agent = trn_xasprintf("trainera/" TRAINERA_VERSION " (%s)", task);
}

void trn_channel_set_keepalive(trn_channel *c, uint64_t ns) { c->keepalive_ns = ns; }
bool trn_channel_ours(const trn_channel *c) { return atomic_load_explicit(&c->ours, memory_order_relaxed); }
trn_loop *trn_channel_loop(const trn_channel *c) { return c->loop; }
const char *trn_channel_address(const trn_channel *c) { return c->address; }

const char *trn_channel_state_text(trn_channel *c, char *buf, size_t n)
{
    trn_lock(&c->mu);
    int attempts = c->attempts;
    double over = attempts ? (double)(trn_now_ns() - c->since_ns) / 1e9 : 0;
    if (c->seen_state == READY)
        snprintf(buf, n, "connected");
    else if (attempts == 0)
        snprintf(buf, n, "not connected");
    else if (!c->why_text[0])
        snprintf(buf, n, "connecting for %.1f s", over);
    else
        snprintf(buf, n, "%s, %d attempt%s over %.1f s", c->why_text, attempts, attempts == 1 ? "" : "s", over);
    trn_unlock(&c->mu);
    return buf;
}
