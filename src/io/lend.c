/* Sending without the copy: see lend.h. */
#include "io/lend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct trn_lender {
    int in, out; /* the pipe that references pass through; empty between two calls */
    int nowhere; /* takes what the socket did not */
    bool broken;
};

trn_lender *trn_lender_open(void)
{
    const char *v = getenv("TRAINERA_LEND");
    if (v && strcmp(v, "0") == 0)
        return NULL;
    int p[2];
    if (pipe2(p, O_CLOEXEC | O_NONBLOCK) != 0)
        return NULL;
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    /* A user's pipes share a bound; a pipe that may not grow would pass too little at a time. */
    if (nowhere < 0 || fcntl(p[0], F_SETPIPE_SZ, TRN_LEND_MAX) < TRN_LEND_MAX) {
        close(p[0]);
        close(p[1]);
        if (nowhere >= 0)
            close(nowhere);
        return NULL;
    }
    trn_lender *l = trn_xalloc(sizeof *l);
    *l = (trn_lender){.in = p[1], .out = p[0], .nowhere = nowhere};
    return l;
}

void trn_lender_close(trn_lender *l)
{
    if (!l)
        return;
    close(l->in);
    close(l->out);
    close(l->nowhere);
    free(l);
}

/* splice has no MSG_NOSIGNAL: whose thread this is may want SIGPIPE, but not for our sockets. The signal also comes where the peer goes away in the middle, and then the
 * call tells how far it came, not EPIPE. */
static ssize_t pass_on(trn_lender *l, int fd, size_t n, bool more)
{
    sigset_t pipe, was, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &was);
    ssize_t k;
    do
        k = splice(l->out, NULL, fd, NULL, n, SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0));
    while (k < 0 && errno == EINTR);
    int e = errno;
    if (k < (ssize_t)n && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    errno = e;
    return k;
}

ssize_t trn_lend(trn_lender *l, int fd, const void *p, size_t n, bool more)
{
    if (l->broken) {
        errno = EOPNOTSUPP;
        return -1;
    }
    struct iovec iov = {(void *)p, TRN_MIN(n, (size_t)TRN_LEND_MAX)};
    ssize_t in;
    do
        in = vmsplice(l->in, &iov, 1, SPLICE_F_NONBLOCK);
    while (in < 0 && errno == EINTR);
    if (in <= 0)
        return in;
    more |= (size_t)in < n;
    size_t left = (size_t)in;
    for (ssize_t k; left > 0 && (k = pass_on(l, fd, left, more)) > 0;)
        left -= (size_t)k;
    int e = errno;
    for (size_t rest = left; rest > 0;) { /* only references are thrown away */
        ssize_t k = splice(l->out, NULL, l->nowhere, NULL, rest, 0);
        if (k <= 0 && errno != EINTR) {
            l->broken = true; /* what is in the pipe now must not go to the next socket */
            break;
        }
        rest -= k > 0 ? (size_t)k : 0;
    }
    errno = e;
    return (size_t)in > left ? in - (ssize_t)left : -1;
}
