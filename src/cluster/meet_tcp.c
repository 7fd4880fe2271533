/* Meeting over TCP. The first task on the machine that the address names becomes the meeting point (it can bind the port), all others go there.
 *
 * A line of JSON each way: a task says its card; it hears {"waiting": "…"} now and then, at last {"members": […]} or {"error": "…"}. A connection is alive
 * as long as it is open, so nothing can be stale. When the meeting point dies before all have met, another task of its machine takes its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cluster/meet_int.h"
#include "io/net.h"

#define SECOND TRN_MEET_SECOND
enum { MAX_LINE = 8 << 20, MAX_GUESTS = 20000, NEWS_S = 2, CONNECT_S = 3 };

typedef struct guest {
    int fd;
    uint64_t since;
    trn_sb in;
    trn_meet_card card; /* nonce NULL: has said nothing yet */
    bool served;        /* has the members */
} guest;

typedef struct tcp_state {
    int listen_fd; /* -1: somebody else is the meeting point … */
    int point_fd;  /* … and this is our connection to it: as long as it is open we are known to live */
    guest *g;
    int n, cap;
    json_t *members; /* once complete */
    uint64_t next_news;
    char error[256]; /* the guest's last one */
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
    if (t->g[i].card.nonce)
        trn_meet__card_fini(&t->g[i].card);
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

/* A whole line has come. False: the guest was sent away. */
static bool take_card(trn_meet *m, tcp_state *t, int i, const char *line, size_t n)
{
    json_t *root = json_loadb(line, n, 0, NULL);
    const char *job = json_string_value(json_object_get(root, "job"));
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
    else if (same && strcmp(same->nonce, c.nonce) != 0)
        snprintf(why, sizeof why, "task %d of job '%.100s' runs already: pid %lld on %s, at %s", c.index, m->o.job_id, (long long)same->pid, same->host, same->address);
    trn_err_free(err);
    json_decref(root);
    if (*why) {
        if (ok)
            trn_meet__card_fini(&c);
        refuse(t, i, why);
        return false;
    }
    t->g[i].card = c;
    if (t->members) {
        replace_member(t, &c);
        t->g[i].served = send_json(t->g[i].fd, t->members);
    }
    return true;
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
        if (g->card.nonce)
            continue; /* it has said all */
        trn_sb_add(&g->in, buf, (size_t)got);
        const char *nl = memchr(g->in.p, '\n', g->in.n);
        if (nl && !take_card(m, t, i, g->in.p, (size_t)(nl - g->in.p)))
            return false;
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
        guest g = {.fd = fd, .since = trn_now_ns()};
        TRN_PUSH(t->g, t->n, t->cap, g);
    }
    for (int i = 0; i < t->n;)
        if (read_guest(m, t, i))
            i++;
    uint64_t now = trn_now_ns();
    for (int i = 0; i < t->n;)
        if (!t->g[i].card.nonce && now - t->g[i].since > 10 * SECOND) /* connected and silent */
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
        json_array_append_new(members, json_pack("{s:i, s:s, s:s, s:s}", "index", i, "role", c->role, "address", c->address, "nonce", c->nonce));
    }
    t->members = json_pack("{s:s, s:o}", "job", m->o.job_id, "members", members);
    for (int i = 0; i < t->n; i++)
        if (t->g[i].card.nonce)
            t->g[i].served = send_json(t->g[i].fd, t->members);
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
        if (n == 0) {
            trn_sb_fini(&missing);
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

static trn_err visit_on(trn_meet *m, tcp_state *t, int fd, bool *met)
{
    json_t *card = trn_meet__card_json(&m->me);
    json_object_set_new(card, "job", json_string(m->o.job_id));
    bool sent = send_json(fd, card);
    json_decref(card);
    if (!sent) {
        snprintf(t->error, sizeof t->error, "it hung up");
        return TRN_OK;
    }
    trn_sb in = {0};
    trn_err err = TRN_OK;
    t->error[0] = 0;
    for (json_t *root; !err && !*met && (root = next_line(m, t, fd, &in, &err));) {
        const char *refusal = json_string_value(json_object_get(root, "error")), *waiting = json_string_value(json_object_get(root, "waiting"));
        if (refusal)
            err = trn_errorf(TRN_FAILED_PRECONDITION, "%s: %s", m->o.where, refusal);
        else if (waiting && trn_meet__say_due(m))
            trn_meet__say(m, "%s (task %d) waits since %.0f s at %s, job '%s', for %s", m->o.role, m->o.index, (double)(trn_now_ns() - m->begin) / 1e9, m->o.where,
                          m->o.job_id, waiting);
        else if (!waiting)
            *met = trn_meet__adopt(m, root);
        if (waiting && !err)
            err = trn_meet__patience(m, waiting);
        json_decref(root);
    }
    trn_sb_fini(&in);
    return err;
}

static trn_err visit(trn_meet *m, tcp_state *t, const trn_addr *to, bool *met)
{
    int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return trn_err_errno(errno, "socket");
    trn_err err = TRN_OK;
    int e = connect(fd, &to->sa, to->len) == 0 ? 0 : errno;
    if (e == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        e = poll(&p, 1, CONNECT_S * 1000) > 0 ? trn_net_error(fd) : ETIMEDOUT;
    }
    if (e)
        snprintf(t->error, sizeof t->error, "%s", strerrordesc_np(e));
    else
        err = visit_on(m, t, fd, met);
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

/* The meeting point stays open for tasks that are started again. */
static uint64_t tend(trn_meet *m, uint64_t now)
{
    tcp_state *t = m->state;
    if (t->listen_fd < 0)
        return UINT64_MAX;
    take_guests(m, t);
    return now + SECOND / 2;
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
