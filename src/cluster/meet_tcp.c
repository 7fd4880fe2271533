/* Meeting over TCP. The first task on the machine that the address names becomes the meeting point (it can bind the port), all others go there.
 *
 * A line of JSON each way: a task says its card; it hears {"waiting": "…"} now and then, at last {"members": […]} or {"error": "…"}. A task that was known
 * by another port hears {"port": N} and says its card again, with "moved". A connection is alive as long as it is open, so nothing can be stale.
 *
 * A second task of the same index is either a mistake or the next life of one that has just died: it is held until the first one's connection ends, and
 * refused when the first one's machine has acknowledged something since.
 *
 * When the meeting point dies, another task of its machine takes its place. Those that have met before come back with what they know ("known", all
 * addresses), so that the new meeting point, even a newly started task, has the list at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cluster/meet_int.h"
#include "io/net.h"

#define SECOND TRN_MEET_SECOND
enum { MAX_LINE = 8 << 20, MAX_GUESTS = 20000, NEWS_S = 2, CONNECT_MS = 3000 };
enum { HOLD_S = 5, HOLD_MAX_S = 14, BEAT_S = 2, BEATS = 4, REVISIT_S = 2, RENAME_S = 60 }; /* a lost machine is noticed after BEAT_S * (BEATS + 1) */

typedef struct guest {
    int fd;
    uint64_t since;
    trn_sb in;
    trn_meet_card card; /* nonce NULL: has said nothing yet */
    trn_meet_card held; /* said, but another one of this index is here */
    uint64_t held_at;
} guest;

typedef struct tcp_state {
    int listen_fd; /* -1: somebody else is the meeting point … */
    int point_fd;  /* … and this is our connection to it: as long as it is open we are known to live */
    guest *g;
    int n, cap;
    json_t *members; /* once complete */
    uint64_t next_news;
    uint64_t next_visit; /* a guest's, when the meeting point is gone */
    trn_addrs point;     /* where the meeting point was found … */
    uint64_t point_ns;   /* … and when its name was asked for */
    bool moved;          /* we have our earlier port, or cannot have it */
    char error[256];     /* the guest's last one */
} tcp_state;

/* ---- the meeting point ----------------------------------------------------------------------------------------------- */

static bool send_json(int fd, json_t *root)
{
    char *text = json_dumps(root, 0);
    char *line = trn_xasprintf("%s\n", text);
    free(text);
    size_t n = strlen(line), at = 0;
    uint64_t deadline = trn_now_ns() + SECOND;
    while (at < n && trn_now_ns() < deadline) {
        ssize_t w = send(fd, line + at, n - at, MSG_NOSIGNAL);
        if (w > 0)
            at += (size_t)w;
        else if (errno == EAGAIN)
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 100);
        else if (errno != EINTR)
            break;
    }
    free(line);
    return at == n;
}

static void drop(tcp_state *t, int i)
{
    close(t->g[i].fd);
    trn_sb_fini(&t->g[i].in);
    trn_meet__card_fini(&t->g[i].card);
    trn_meet__card_fini(&t->g[i].held);
    t->g[i] = t->g[--t->n];
}

static void refuse(tcp_state *t, int i, const char *why)
{
    json_t *root = json_pack("{s:s}", "error", why);
    send_json(t->g[i].fd, root);
    json_decref(root);
    drop(t, i);
}

static const trn_meet_card *card_of(const trn_meet *m, const tcp_state *t, int index)
{
    if (index == m->o.index)
        return &m->me;
    for (int i = 0; i < t->n; i++)
        if (t->g[i].card.nonce && t->g[i].card.index == index)
            return &t->g[i].card;
    return NULL;
}

static void runs_already(char *why, size_t n, const trn_meet *m, const trn_meet_card *same)
{
    snprintf(why, n, "task %d of job '%.100s' runs already: pid %lld on %.60s, at %.100s", same->index, m->o.job_id, (long long)same->pid, same->host, same->address);
}

static void replace_member(tcp_state *t, const trn_meet_card *c)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(t->members, "members"), i, e)
    {
        if (json_integer_value(json_object_get(e, "index")) == c->index) {
            json_object_set_new(e, "address", json_string(c->address));
            json_object_set_new(e, "nonce", json_string(c->nonce));
        }
    }
}

/* The port of "host:port" when the host is that of `other`, else 0. */
static int port_on_host(const char *address, const char *other)
{
    const char *a = strrchr(address, ':'), *b = strrchr(other, ':');
    return a && b && a - address == b - other && memcmp(address, other, (size_t)(a - address)) == 0 ? atoi(a + 1) : 0;
}

static const char *member_address(const tcp_state *t, int index)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(t->members, "members"), i, e)
    {
        if (json_integer_value(json_object_get(e, "index")) == index)
            return json_string_value(json_object_get(e, "address"));
    }
    return NULL;
}

static json_t *member(int index, const char *role, const char *address, const char *nonce)
{
    return json_pack("{s:i, s:s, s:s, s:s}", "index", index, "role", role, "address", address, "nonce", nonce);
}

/* The others know this task by another port than it has now: have that one. */
static bool move_to(trn_meet *m, tcp_state *t, const char *known)
{
    int port = port_on_host(known, m->me.address);
    if (t->moved || !port || strcmp(known, m->me.address) == 0)
        return false;
    t->moved = true;
    if (!m->o.move || !m->o.move(m->o.arg, port))
        return false;
    free(m->me.address);
    m->me.address = trn_xstrdup(known);
    return true;
}

/* From one who had met before: we are a new meeting point of a job that runs. */
static void learn(trn_meet *m, tcp_state *t, json_t *known)
{
    if (t->members || (int)json_array_size(known) != m->o.n_tasks)
        return;
    json_t *members = json_array();
    for (int i = 0; i < m->o.n_tasks; i++) {
        const char *address = json_string_value(json_array_get(known, (size_t)i));
        if (!address) {
            json_decref(members);
            return;
        }
        if (i == m->o.index)
            move_to(m, t, address);
        json_array_append_new(members, i == m->o.index ? member(i, m->me.role, m->me.address, m->nonce) : member(i, "", address, ""));
    }
    t->members = json_pack("{s:s, s:o}", "job", m->o.job_id, "members", members);
    for (int i = 0; i < t->n; i++)
        if (t->g[i].card.nonce) { /* new here, as we are */
            replace_member(t, &t->g[i].card);
            send_json(t->g[i].fd, t->members);
        }
}

/* The last of the guests may take the place of a dropped one: returns where guest i is now. */
static int drop_for(tcp_state *t, int gone, int i)
{
    bool last = i == t->n - 1;
    drop(t, gone);
    return last && gone != i ? gone : i;
}

/* Takes the card. Returns where the guest is now. */
static int admit(trn_meet *m, tcp_state *t, int i, trn_meet_card c)
{
    for (int k = 0; k < t->n; k++)
        if (k != i && t->g[k].card.nonce && t->g[k].card.index == c.index) {
            i = drop_for(t, k, i);
            break;
        }
    trn_meet__card_fini(&t->g[i].card);
    t->g[i].card = c;
    if (t->members)
        replace_member(t, &t->g[i].card);
    return i;
}

static void say_to(int fd, const char *key, json_t *value)
{
    json_t *root = json_pack("{s:o}", key, value);
    send_json(fd, root);
    json_decref(root);
}

/* A whole line has come. False: the guest was sent away. */
static bool take_card(trn_meet *m, tcp_state *t, int i, const char *line, size_t n)
{
    json_t *root = json_loadb(line, n, 0, NULL), *known = json_object_get(root, "known");
    const char *job = json_string_value(json_object_get(root, "job"));
    bool moved = json_is_true(json_object_get(root, "moved"));
    char why[400] = "";
    trn_meet_card c;
    bool ok = trn_meet__card_read(&c, root);
    const trn_meet_card *same = ok ? card_of(m, t, c.index) : NULL;
    trn_err err = ok ? trn_meet__check(m, &c) : TRN_OK;
    if (!ok || !job)
        snprintf(why, sizeof why, "this is the meeting point of job '%s' of Trainera, and that was no greeting", m->o.job_id);
    else if (strcmp(job, m->o.job_id) != 0)
        snprintf(why, sizeof why, "this is the meeting point of job '%.100s', not of '%.100s': two jobs need two ports", m->o.job_id, job);
    else if (err)
        snprintf(why, sizeof why, "%s", trn_err_msg(err));
    else if (same == &m->me && strcmp(same->nonce, c.nonce) != 0 && !trn_meet__gone(m, same))
        runs_already(why, sizeof why, m, same);
    trn_err_free(err);
    if (*why || same == &m->me) { /* the next life of ourselves: we have been killed and are about to end, it will be the meeting point */
        trn_meet__card_fini(&c);
        json_decref(root);
        if (*why)
            refuse(t, i, why);
        else
            drop(t, i);
        return false;
    }
    if (json_is_array(known))
        learn(m, t, known);
    const char *was = t->members && !known && !moved ? member_address(t, c.index) : NULL;
    int port = was && strcmp(was, c.address) != 0 ? port_on_host(was, c.address) : 0;
    if (same && strcmp(same->nonce, c.nonce) != 0 && !trn_meet__gone(m, same)) {
        char what[200];
        snprintf(what, sizeof what, "an earlier process of task %d (pid %lld on %.60s) to be gone", c.index, (long long)same->pid, same->host);
        say_to(t->g[i].fd, "waiting", json_string(what));
        t->g[i].held = c;
        t->g[i].held_at = trn_now_ns();
    } else if (port > 0) {
        say_to(t->g[i].fd, "port", json_integer(port));
        trn_meet__card_fini(&c);
    } else {
        i = admit(m, t, i, c);
        if (t->members)
            send_json(t->g[i].fd, t->members);
    }
    json_decref(root);
    return true;
}

/* How long ago this connection's machine acknowledged something; keepalive asks it every BEAT_S. */
static uint64_t last_ack_ns(int fd)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? (uint64_t)info.tcpi_last_ack_recv * 1000000 : 0;
}

/* Guests that came while another one of their index was here. */
static void look_at_held(trn_meet *m, tcp_state *t)
{
    uint64_t now = trn_now_ns();
    for (int i = 0; i < t->n; i++) {
        guest *g = &t->g[i];
        if (!g->held.nonce)
            continue;
        int other = -1;
        for (int k = 0; k < t->n; k++)
            if (t->g[k].card.nonce && t->g[k].card.index == g->held.index)
                other = k;
        trn_meet_card c = g->held;
        uint64_t waited = now - g->held_at;
        if (other < 0 || trn_meet__gone(m, &t->g[other].card)) {
            if (other >= 0)
                i = drop_for(t, other, i);
            g = &t->g[i];
            g->held = (trn_meet_card){0};
            const char *was = t->members ? member_address(t, c.index) : NULL;
            int port = was && strcmp(was, c.address) != 0 ? port_on_host(was, c.address) : 0;
            if (port > 0) {
                say_to(g->fd, "port", json_integer(port));
                trn_meet__card_fini(&c);
            } else {
                i = admit(m, t, i, c);
                if (t->members)
                    send_json(t->g[i].fd, t->members);
            }
        } else if ((waited > HOLD_S * SECOND && last_ack_ns(t->g[other].fd) < waited) || waited > HOLD_MAX_S * SECOND) {
            char why[400];
            runs_already(why, sizeof why, m, &t->g[other].card);
            refuse(t, i, why);
            i--;
        }
    }
}

/* False: it is gone. */
static bool read_guest(trn_meet *m, tcp_state *t, int i)
{
    char buf[4096];
    for (;;) {
        guest *g = &t->g[i];
        ssize_t got = recv(g->fd, buf, sizeof buf, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0 || g->in.n > MAX_LINE) {
            drop(t, i);
            return false;
        }
        if (g->card.nonce || g->held.nonce)
            continue; /* it has said all */
        trn_sb_add(&g->in, buf, (size_t)got);
        const char *nl = memchr(g->in.p, '\n', g->in.n);
        if (!nl)
            continue;
        trn_sb line = g->in; /* the guests may change places meanwhile */
        g->in = (trn_sb){0};
        bool stays = take_card(m, t, i, line.p, (size_t)(nl - line.p));
        trn_sb_fini(&line);
        return stays && i < t->n; /* more of it comes next time */
    }
}

static void take_guests(trn_meet *m, tcp_state *t)
{
    for (;;) {
        int fd = accept4(t->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        if (t->n >= MAX_GUESTS) {
            close(fd);
            continue;
        }
        int yes = 1, idle = BEAT_S, beats = BEATS;
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &beats, sizeof beats);
        guest g = {.fd = fd, .since = trn_now_ns()};
        TRN_PUSH(t->g, t->n, t->cap, g);
    }
    for (int i = 0; i < t->n;)
        if (read_guest(m, t, i))
            i++;
    look_at_held(m, t);
    uint64_t now = trn_now_ns();
    for (int i = 0; i < t->n;)
        if (!t->g[i].card.nonce && !t->g[i].held.nonce && now - t->g[i].since > 10 * SECOND) /* connected and silent */
            drop(t, i);
        else
            i++;
}

static int missing_text(trn_sb *out, const trn_meet *m, const tcp_state *t)
{
    int n = 0;
    for (int i = 0; i < m->o.n_tasks; i++)
        if (!card_of(m, t, i) && n++ < 8)
            trn_sb_addf(out, "%stask %d", n > 1 ? ", " : "", i);
    if (n > 8)
        trn_sb_addf(out, " and %d more", n - 8);
    return n;
}

static void complete(trn_meet *m, tcp_state *t)
{
    json_t *members = json_array();
    for (int i = 0; i < m->o.n_tasks; i++) {
        const trn_meet_card *c = card_of(m, t, i);
        json_array_append_new(members, member(i, c->role, c->address, c->nonce));
    }
    t->members = json_pack("{s:s, s:o}", "job", m->o.job_id, "members", members);
    for (int i = 0; i < t->n; i++)
        if (t->g[i].card.nonce)
            send_json(t->g[i].fd, t->members);
}

static trn_err host(trn_meet *m, tcp_state *t)
{
    struct pollfd *p = NULL;
    trn_err err = TRN_OK;
    for (;;) {
        take_guests(m, t);
        trn_sb missing = {0};
        trn_sb_adds(&missing, "");
        int n = missing_text(&missing, m, t);
        if (n == 0 || t->members) {
            trn_sb_fini(&missing);
            if (!t->members)
                complete(m, t);
            if (!trn_meet__adopt(m, t->members))
                err = trn_errorf(TRN_INTERNAL, "the meeting point does not find itself in its own list");
            break;
        }
        double waited = (double)(trn_now_ns() - m->begin) / 1e9;
        if (trn_meet__say_due(m))
            trn_meet__say(m, "%s (task %d, the meeting point %s) waits since %.0f s for %d of %d tasks: %s", m->o.role, m->o.index, m->o.where, waited, n, m->o.n_tasks,
                          missing.p);
        if (trn_now_ns() > t->next_news) {
            json_t *news = json_pack("{s:s}", "waiting", missing.p);
            for (int i = 0; i < t->n; i++)
                if (t->g[i].card.nonce)
                    send_json(t->g[i].fd, news);
            json_decref(news);
            t->next_news = trn_now_ns() + NEWS_S * SECOND;
        }
        err = trn_meet__patience(m, missing.p);
        trn_sb_fini(&missing);
        if (err)
            break;
        p = realloc(p, sizeof *p * (size_t)(t->n + 1));
        if (!p)
            return trn_err_oom();
        p[0] = (struct pollfd){.fd = t->listen_fd, .events = POLLIN};
        for (int i = 0; i < t->n; i++)
            p[i + 1] = (struct pollfd){.fd = t->g[i].fd, .events = POLLIN};
        poll(p, (nfds_t)t->n + 1, 200);
    }
    free(p);
    return err;
}

/* ---- the others ------------------------------------------------------------------------------------------------------- */

static char *with_port(const char *address, json_int_t port)
{
    const char *colon = strrchr(address, ':');
    return trn_xasprintf("%.*s:%d", colon ? (int)(colon - address) : (int)strlen(address), address, (int)port);
}

/* TCP's simultaneous open: a port of the range for outgoing connections that nobody listens on may be given to the very connection that asks for it. */
static bool to_itself(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t na = sizeof a, nb = sizeof b;
    return getsockname(fd, (struct sockaddr *)&a, &na) == 0 && getpeername(fd, (struct sockaddr *)&b, &nb) == 0 && na == nb && memcmp(&a, &b, na) == 0;
}

/* One line, or an error in t->error. Blocks in small pieces, so that we can be stopped. */
static json_t *next_line(trn_meet *m, tcp_state *t, int fd, trn_sb *in, trn_err *err)
{
    uint64_t quiet = trn_now_ns();
    for (;;) {
        char *nl = in->n ? memchr(in->p, '\n', in->n) : NULL;
        if (nl) {
            json_t *root = json_loadb(in->p, (size_t)(nl - in->p), 0, NULL);
            if (!root)
                snprintf(t->error, sizeof t->error, "what answers there is no meeting point of Trainera: '%.*s'", (int)TRN_MIN((size_t)(nl - in->p), (size_t)60), in->p);
            size_t used = (size_t)(nl - in->p) + 1;
            memmove(in->p, in->p + used, in->n - used);
            in->n -= used;
            return root;
        }
        char buf[65536];
        ssize_t got = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
        if (got > 0) {
            trn_sb_add(in, buf, (size_t)got);
            quiet = trn_now_ns();
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR) || in->n > MAX_LINE) {
            if (in->n) /* an answer in another language */
                snprintf(t->error, sizeof t->error, "what answers there is no meeting point of Trainera: '%.60s'", in->p);
            else
                snprintf(t->error, sizeof t->error, "%s", got == 0 ? "it hung up" : strerrordesc_np(errno));
            return NULL;
        }
        if (trn_now_ns() - quiet > 15 * SECOND) {
            snprintf(t->error, sizeof t->error, "something listens there that says nothing: no meeting point of Trainera");
            return NULL;
        }
        if ((*err = trn_meet__patience(m, t->error[0] ? t->error : "the meeting point")))
            return NULL;
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 200);
    }
}

static bool say_card(trn_meet *m, tcp_state *t, int fd)
{
    json_t *card = trn_meet__card_json(&m->me);
    json_object_set_new(card, "job", json_string(m->o.job_id));
    if (t->moved)
        json_object_set_new(card, "moved", json_true());
    if (m->met) {
        json_t *known = json_array();
        for (int i = 0; i < m->o.n_tasks; i++)
            json_array_append_new(known, json_string(m->addresses[i]));
        json_object_set_new(card, "known", known);
    }
    bool sent = send_json(fd, card);
    json_decref(card);
    if (!sent)
        snprintf(t->error, sizeof t->error, "it hung up");
    return sent;
}

static trn_err visit_on(trn_meet *m, tcp_state *t, int fd, bool *met)
{
    if (!say_card(m, t, fd))
        return TRN_OK;
    trn_sb in = {0};
    trn_err err = TRN_OK;
    t->error[0] = 0;
    for (json_t *root; !err && !*met && (root = next_line(m, t, fd, &in, &err));) {
        const char *refusal = json_string_value(json_object_get(root, "error")), *waiting = json_string_value(json_object_get(root, "waiting"));
        json_t *port = json_object_get(root, "port");
        if (refusal)
            err = trn_errorf(TRN_FAILED_PRECONDITION, "%s: %s", m->o.where, refusal);
        else if (waiting && trn_meet__say_due(m))
            trn_meet__say(m, "%s (task %d) waits since %.0f s at %s, job '%s', for %s", m->o.role, m->o.index, (double)(trn_now_ns() - m->begin) / 1e9, m->o.where,
                          m->o.job_id, waiting);
        else if (json_is_integer(port)) {
            char *known = with_port(m->me.address, json_integer_value(port));
            move_to(m, t, known);
            free(known);
            t->moved = true;
            bool sent = say_card(m, t, fd);
            if (!sent) {
                json_decref(root);
                break;
            }
        } else if (!waiting)
            *met = trn_meet__adopt(m, root);
        if (waiting && !err)
            err = trn_meet__patience(m, waiting);
        json_decref(root);
    }
    trn_sb_fini(&in);
    return err;
}

/* A connection, or -1 and t->error. */
static int connect_to(tcp_state *t, const trn_addr *to, int ms)
{
    int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int e = fd < 0 ? errno : connect(fd, &to->sa, to->len) == 0 ? 0 : errno;
    if (fd >= 0 && e == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        e = poll(&p, 1, ms) > 0 ? trn_net_error(fd) : ETIMEDOUT;
    }
    if (!e && to_itself(fd))
        e = ECONNREFUSED;
    if (!e)
        return fd;
    snprintf(t->error, sizeof t->error, "%s", strerrordesc_np(e));
    if (fd >= 0)
        close(fd);
    return -1;
}

static trn_err visit(trn_meet *m, tcp_state *t, const trn_addr *to, bool *met)
{
    int fd = connect_to(t, to, CONNECT_MS);
    if (fd < 0)
        return TRN_OK;
    trn_err err = visit_on(m, t, fd, met);
    if (*met)
        t->point_fd = fd;
    else
        close(fd);
    return err;
}

/* The port is ours when the address is: EADDRINUSE, somebody else on this machine was first; EADDRNOTAVAIL, it is another machine's. */
static bool become_host(tcp_state *t, const trn_addr *a)
{
    int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, &a->sa, a->len) == 0 && listen(fd, SOMAXCONN) == 0) {
        t->listen_fd = fd;
        return true;
    }
    close(fd);
    return false;
}

static trn_err gather(trn_meet *m)
{
    tcp_state *t = m->state = trn_xalloc(sizeof *t);
    t->listen_fd = t->point_fd = -1;
    char *name;
    int port;
    TRN_TRY(trn_net_split(&name, &port, m->o.where + 6));
    if (port == 0) {
        free(name);
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: the meeting point needs a port that all know", m->o.where);
    }
    bool met = false;
    trn_err err = TRN_OK;
    while (!err && !met) {
        trn_addrs addrs = {0};
        trn_err unknown = trn_net_known(&addrs, name, port) ? TRN_OK : trn_net_resolve(&addrs, name, port);
        if (unknown) { /* names may come later, as in Kubernetes */
            snprintf(t->error, sizeof t->error, "%s", trn_err_msg(unknown));
            trn_err_free(unknown);
        } else {
            t->point = addrs;
            t->point_ns = trn_now_ns();
        }
        for (int i = 0; i < addrs.n && !err && !met; i++) {
            if (become_host(t, &addrs.a[i])) {
                err = host(m, t);
                met = !err;
            } else {
                err = visit(m, t, &addrs.a[i], &met);
            }
        }
        if (err || met)
            break;
        if (trn_meet__say_due(m))
            trn_meet__say(m, "%s (task %d) waits since %.0f s for the meeting point %s: %s; trying again%s", m->o.role, m->o.index,
                          (double)(trn_now_ns() - m->begin) / 1e9, m->o.where, t->error, m->o.timeout_ns ? " until --wait-timeout is over" : "");
        char what[400];
        snprintf(what, sizeof what, "the meeting point (%s)", t->error);
        err = trn_meet__patience(m, what);
        nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    }
    free(name);
    return err;
}

/* The meeting point is gone, and tasks that are started again will look for it: be it, or come back to whoever is. Short, for the caller has more to do. */
static void again(trn_meet *m, tcp_state *t)
{
    if (trn_now_ns() - t->point_ns > RENAME_S * SECOND) { /* may take long, so seldom */
        char *name;
        int port;
        trn_addrs found = {0};
        trn_err err = trn_net_split(&name, &port, m->o.where + 6);
        if (!err) {
            if (!trn_net_known(&found, name, port))
                err = trn_net_resolve(&found, name, port);
            free(name);
        }
        if (!err && found.n > 0)
            t->point = found;
        trn_err_free(err);
        t->point_ns = trn_now_ns();
    }
    trn_addrs addrs = t->point;
    for (int i = 0; i < addrs.n && t->listen_fd < 0 && t->point_fd < 0; i++) {
        if (become_host(t, &addrs.a[i])) {
            json_t *known = json_array();
            for (int k = 0; k < m->o.n_tasks; k++)
                json_array_append_new(known, json_string(m->addresses[k]));
            t->moved = true;
            learn(m, t, known);
            json_decref(known);
            return;
        }
        int fd = connect_to(t, &addrs.a[i], 200);
        if (fd >= 0 && say_card(m, t, fd))
            t->point_fd = fd;
        else if (fd >= 0)
            close(fd);
    }
}

/* The meeting point stays open for tasks that are started again, and the others stay connected to it. */
static uint64_t tend(trn_meet *m, uint64_t now)
{
    tcp_state *t = m->state;
    if (t->listen_fd >= 0) {
        take_guests(m, t);
        return now + SECOND / 2;
    }
    char buf[4096];
    ssize_t got = 1;
    while (t->point_fd >= 0 && (got = recv(t->point_fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
        ;
    if (t->point_fd >= 0 && got < 0 && (errno == EAGAIN || errno == EINTR))
        return now + REVISIT_S * SECOND;
    if (t->point_fd >= 0)
        close(t->point_fd);
    t->point_fd = -1;
    if (now >= t->next_visit) {
        again(m, t);
        t->next_visit = trn_now_ns() + REVISIT_S * SECOND;
    }
    return t->listen_fd >= 0 ? now + SECOND / 2 : now + REVISIT_S * SECOND;
}

static void close_tcp(trn_meet *m)
{
    tcp_state *t = m->state;
    if (!t)
        return;
    while (t->n > 0)
        drop(t, 0);
    free(t->g);
    if (t->listen_fd >= 0)
        close(t->listen_fd);
    if (t->point_fd >= 0)
        close(t->point_fd);
    json_decref(t->members);
    free(t);
}

const trn_meet_kind trn_meet__tcp = {gather, tend, close_tcp};
