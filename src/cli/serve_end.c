#include "cli/serve_end.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "res/queue.h"
#include "tensor/tensor.h"

#define SECOND UINT64_C(1000000000)
enum { TICK_MS = 200, LINGER_MS = 2000, MAX_NAMED = 4096, SETTLE_S = 2, UNCLEAN_S = 60 };

/* ---- the done queue ------------------------------------------------------------------------------------------------ */

/* The pattern: each ps has a queue, each worker puts one element into every one of them when it is done, and the ps takes as many as there are workers.
 * The queue is made by whoever names it first, a worker here, so its type and capacity are the program's business, not ours. A worker written in C puts
 * -(its number + 1) (train/hook_done.c): one that was killed and says it again counts once. */
typedef struct done_queue {
    char *name;
    trn_queue *q; /* NULL: nobody has made it yet */
    int64_t want, got;
    bool said[MAX_NAMED]; /* by number, those who have one */
    trn_cancel *cancel;
    pthread_mutex_t mu;
    pthread_cond_t idle;
    bool busy;   /* a dequeue is under way */
    bool lost;   /* the queue was closed or cleared: look for it again */
    int fd;      /* eventfd */
} done_queue;

static char *fill_task(const char *pattern, int task)
{
    const char *p = strstr(pattern, "{task}");
    return p ? trn_xasprintf("%.*s%d%s", (int)(p - pattern), pattern, task, p + 6) : trn_xstrdup(pattern);
}

static void taken(void *arg, trn_err err, trn_tensor **tuple)
{
    done_queue *d = arg;
    bool again = false;
    if (!err) {
        const trn_dtype *types;
        int n = trn_queue_components(d->q, &types);
        if (n == 1 && types[0] == TRN_INT32 && trn_tensor_count(tuple[0]) == 1) {
            int64_t who = -((int64_t)*(const int32_t *)trn_tensor_data(tuple[0]) + 1);
            if (who >= 0 && who < MAX_NAMED) {
                again = d->said[who];
                d->said[who] = true;
            }
        }
        for (int i = 0; i < n; i++)
            trn_tensor_unref(tuple[i]);
    }
    pthread_mutex_lock(&d->mu);
    d->got += !err && !again;
    d->lost = err != NULL;
    d->busy = false;
    pthread_cond_signal(&d->idle);
    uint64_t one = 1;
    if (write(d->fd, &one, sizeof one) < 0)
        d->lost |= false;
    pthread_mutex_unlock(&d->mu);
    trn_err_free(err);
}

static void look_for(void *arg, const char *container, const char *name, trn_resource *r)
{
    done_queue *d = arg;
    if (!d->q && r->type == &trn_queue_type && strcmp(name, d->name) == 0)
        d->q = trn_resource_ref(r);
}

/* True: all are done. */
static bool done_queue_look(done_queue *d, trn_server *s)
{
    uint64_t ignored;
    if (read(d->fd, &ignored, sizeof ignored) < 0)
        ignored = 0;
    pthread_mutex_lock(&d->mu);
    bool busy = d->busy, lost = d->lost, all = d->got >= d->want;
    d->lost = false;
    pthread_mutex_unlock(&d->mu);
    if (all || busy)
        return all;
    if (lost && d->q) {
        trn_resource_unref(d->q);
        d->q = NULL;
    }
    if (!d->q)
        trn_resmgr_each(trn_server_resources(s), look_for, d);
    if (!d->q)
        return false;
    d->busy = true;
    trn_queue_dequeue(d->q, d->cancel, taken, d);
    return false;
}

static void done_queue_open(done_queue *d, const serve_end_opts *o)
{
    *d = (done_queue){.name = fill_task(o->done_queue, o->task), .want = o->done_count, .cancel = trn_cancel_new(), .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->idle, NULL);
    TRN_INFO("serve", "ending when %lld elements have been put into queue '%s'", (long long)d->want, d->name);
}

static void done_queue_close(done_queue *d)
{
    trn_cancel_fire(d->cancel, trn_errorf(TRN_CANCELLED, "the server is ending"));
    pthread_mutex_lock(&d->mu);
    while (d->busy)
        pthread_cond_wait(&d->idle, &d->mu);
    pthread_mutex_unlock(&d->mu);
    if (d->q)
        trn_resource_unref(d->q);
    trn_cancel_unref(d->cancel);
    close(d->fd);
    free(d->name);
}

/* ---- until done ---------------------------------------------------------------------------------------------------- */

typedef struct until_done {
    bool seen;
    uint64_t closed_since, alone_since; /* 0: not */
} until_done;

/* -1: go on, else the exit code. */
static int until_done_look(until_done *u, trn_server *s, uint64_t now)
{
    trn_server_load l = trn_server_look(s);
    u->seen |= l.sessions + l.worker_sessions + l.graphs > 0 || l.steps_run > 0;
    if (!u->seen || l.connections > 0) {
        u->closed_since = u->alone_since = 0;
        return -1;
    }
    if (!u->alone_since)
        u->alone_since = now;
    if (l.sessions + l.worker_sessions + l.graphs > 0)
        u->closed_since = 0;
    else if (!u->closed_since)
        u->closed_since = now;
    if (u->closed_since && now - u->closed_since > SETTLE_S * SECOND) {
        TRN_INFO("serve", "every session has been closed and nobody is connected: ending");
        return CLI_OK;
    }
    if (now - u->alone_since > UNCLEAN_S * SECOND) {
        TRN_WARN("serve", "nobody has been connected for %d s, though %zu session%s never closed: ending", UNCLEAN_S, l.sessions + l.worker_sessions,
                 l.sessions + l.worker_sessions == 1 ? " was" : "s were");
        return CLI_LOST;
    }
    return -1;
}

/* ---- all of it ----------------------------------------------------------------------------------------------------- */

static int board_look(trn_board *b, uint64_t now)
{
    char why[256];
    int code;
    switch (trn_board_look(b, now, &code, why, sizeof why)) {
    case TRN_BOARD_OPEN:
        return -1;
    case TRN_BOARD_DONE:
        TRN_INFO("serve", "%s: ending", why);
        return CLI_OK;
    case TRN_BOARD_FAILED:
        TRN_WARN("serve", "%s: ending", why);
        return code;
    case TRN_BOARD_WAITED:
        TRN_WARN("serve", "%s: giving up (--wait-timeout)", why);
        return CLI_WAITED;
    case TRN_BOARD_LOST:
        TRN_WARN("serve", "%s: giving up (--peer-timeout)", why);
        return CLI_LOST;
    }
    return -1;
}

int serve_wait_for_end(trn_server *s, const serve_end_opts *o, const sigset_t *signals)
{
    int sfd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
    done_queue d;
    until_done u = {0};
    if (o->done_queue)
        done_queue_open(&d, o);
    struct pollfd p[] = {{.fd = sfd, .events = POLLIN},
                         {.fd = o->lifeline_fd, .events = POLLIN},
                         {.fd = o->board ? trn_board_fd(o->board) : -1, .events = POLLIN},
                         {.fd = o->done_queue ? d.fd : -1, .events = POLLIN}};
    bool ticks = o->board || o->done_queue || o->until_done;
    int code = -1;
    while (code < 0) {
        if (poll(p, TRN_COUNTOF(p), ticks ? TICK_MS : -1) < 0)
            continue;
        struct signalfd_siginfo info;
        uint64_t now = trn_now_ns();
        if (p[0].revents && read(sfd, &info, sizeof info) == (ssize_t)sizeof info) {
            TRN_INFO("serve", "%s: ending", info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
            code = CLI_OK;
        } else if (p[1].revents) {
            TRN_INFO("serve", "who started this task is gone: ending");
            code = CLI_OK;
        }
        if (code < 0 && o->board)
            code = board_look(o->board, now);
        if (code < 0 && o->done_queue && done_queue_look(&d, s)) {
            TRN_INFO("serve", "%lld elements were put into queue '%s': ending", (long long)d.want, d.name);
            trn_server_linger(s, LINGER_MS);
            code = CLI_OK;
        }
        if (code < 0 && o->until_done)
            code = until_done_look(&u, s, now);
    }
    if (o->done_queue)
        done_queue_close(&d);
    close(sfd);
    return code;
}
