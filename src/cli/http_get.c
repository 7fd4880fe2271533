/* The smallest HTTP client: one GET, one answer, the connection is closed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/net.h"

enum { MAX_ANSWER = 256 << 20 }; /* traces are the largest */

static trn_err wait_io(int fd, short events, uint64_t deadline, const char *address)
{
    for (;;) {
        uint64_t now = trn_now_ns();
        if (now >= deadline)
            return trn_errorf(TRN_DEADLINE_EXCEEDED, "%s does not answer", address);
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, (int)((deadline - now) / 1000000) + 1);
        if (n > 0)
            return TRN_OK;
        if (n < 0 && errno != EINTR)
            return trn_err_errno(errno, "poll");
    }
}

static trn_err talk(trn_sb *all, int fd, const char *address, const char *path, uint64_t deadline)
{
    TRN_TRY(wait_io(fd, POLLOUT, deadline, address));
    int e = trn_net_error(fd);
    if (e)
        return trn_errorf(TRN_UNAVAILABLE, "%s: %s", address, strerrordesc_np(e));
    char *request = trn_xasprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, address);
    size_t n = strlen(request), at = 0;
    trn_err err = TRN_OK;
    while (!err && at < n) {
        ssize_t w = write(fd, request + at, n - at);
        if (w > 0)
            at += (size_t)w;
        else if (errno == EAGAIN)
            err = wait_io(fd, POLLOUT, deadline, address);
        else if (errno != EINTR)
            err = trn_errorf(TRN_UNAVAILABLE, "%s: %s", address, strerrordesc_np(errno));
    }
    free(request);
    char buf[16384];
    while (!err && all->n < MAX_ANSWER) {
        ssize_t got = read(fd, buf, sizeof buf);
        if (got == 0)
            break;
        if (got > 0)
            trn_sb_add(all, buf, (size_t)got);
        else if (errno == EAGAIN)
            err = wait_io(fd, POLLIN, deadline, address);
        else if (errno != EINTR && all->n == 0)
            err = trn_errorf(TRN_UNAVAILABLE, "%s: %s", address, strerrordesc_np(errno));
        else if (errno != EINTR)
            break;
    }
    return err;
}

trn_err cli_http_get(trn_sb *body, int *status, const char *address, const char *path, uint64_t timeout_ns)
{
    char *host;
    int port;
    TRN_TRY(trn_net_split(&host, &port, address));
    trn_addrs addrs;
    trn_err err = trn_net_known(&addrs, host, port) ? TRN_OK : trn_net_resolve(&addrs, host, port);
    free(host);
    TRN_TRY(err);
    uint64_t deadline = trn_now_ns() + timeout_ns;
    trn_sb all = {0};
    err = trn_errorf(TRN_UNAVAILABLE, "%s has no address", address);
    for (int i = 0; i < addrs.n && err; i++) {
        trn_err_free(err);
        all.n = 0;
        int fd = -1;
        err = trn_net_connect(&fd, &addrs.a[i]);
        if (!err)
            err = talk(&all, fd, address, path, deadline);
        if (fd >= 0)
            close(fd);
    }
    const char *end = NULL;
    if (!err && (all.n < 12 || sscanf(all.p, "HTTP/1.%*d %d", status) != 1 || !(end = strstr(all.p, "\r\n\r\n"))))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "%s speaks no HTTP", address);
    if (!err)
        trn_sb_add(body, end + 4, all.n - (size_t)(end + 4 - all.p));
    trn_sb_fini(&all);
    return err;
}
