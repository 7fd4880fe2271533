/* Who is in the job, at which addresses, and which of them this launcher starts. Ports are bound here, before anybody is told of them. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cluster/cluster.h"
#include "cluster/meet.h"

enum { MAX_TASKS = 512 };

static launch_task *add_task(launch_job *j, const char *job, int index)
{
    launch_task t = {.job = job, .index = index, .member = strcmp(job, "evaluator") != 0, .server = strcmp(job, "ps") == 0,
                     .listen_fd = -1, .hold_fd = -1, .log_fd = -1, .out = {{.fd = -1}, {.fd = -1}}};
    snprintf(t.name, sizeof t.name, "%s/%d", job, index);
    TRN_PUSH(j->tasks, j->n, j->cap, t);
    return &j->tasks[j->n - 1];
}

/* ---- ports --------------------------------------------------------------------------------------------------------- */

/* A server's socket listens already: who comes before the server has started waits in the queue, and a restarted one finds its port. */
static trn_err bind_server(launch_task *t, int *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return trn_err_errno(errno, "cannot make a socket for %s", t->name);
    t->listen_fd = fd;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return trn_err_errno(errno, "cannot listen for %s", t->name);
    *port = ntohs(a.sin_port);
    return TRN_OK;
}

/* A program binds its port itself, later. Until then a socket that is bound but does not listen keeps the kernel from giving the port to anybody who
 * asks for a free one, be it another launcher or an outgoing connection. The program can bind it all the same: for both sockets SO_REUSEADDR is set (gRPC
 * does so), and ours does not listen. On all addresses, as TensorFlow's servers bind all. */
static trn_err hold_port(launch_task *t, int *port)
{
    int yes = 1, no = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t n = sizeof a6;
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&a6, sizeof a6) == 0 && getsockname(fd, (struct sockaddr *)&a6, &n) == 0) {
            *port = ntohs(a6.sin6_port);
            t->hold_fd = fd;
            return TRN_OK;
        }
        int e = errno;
        close(fd);
        if (e == EADDRINUSE)
            return trn_err_errno(e, "port %d of %s is taken", *port, t->name);
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* a kernel without IPv6 */
    if (fd < 0)
        return trn_err_errno(errno, "cannot make a socket for %s", t->name);
    t->hold_fd = fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    n = sizeof a4;
    if (bind(fd, (struct sockaddr *)&a4, sizeof a4) != 0 || getsockname(fd, (struct sockaddr *)&a4, &n) != 0)
        return trn_err_errno(errno, "cannot reserve port %d for %s", *port, t->name);
    *port = ntohs(a4.sin_port);
    return TRN_OK;
}

/* ---- one machine ----------------------------------------------------------------------------------------------------- */

static trn_err on_this_machine(launch_job *j)
{
    const launch_options *o = j->o;
    const struct {
        const char *job;
        int64_t n;
    } jobs[] = {{"chief", o->chief}, {"ps", o->ps}, {"worker", o->workers}, {"evaluator", o->evaluator}};
    j->alone = true;
    for (size_t i = 0; i < TRN_COUNTOF(jobs); i++)
        for (int k = 0; k < jobs[i].n; k++) {
            launch_task *t = add_task(j, jobs[i].job, k);
            t->mine = true;
            int port = 0;
            if (t->member) {
                TRN_TRY(t->server ? bind_server(t, &port) : hold_port(t, &port));
                t->address = trn_xasprintf("127.0.0.1:%d", port);
            }
        }
    if (o->workers + o->chief + o->evaluator == 0)
        return trn_errorf(TRN_INVALID_ARGUMENT, "nobody would run the program: --workers is 0 and there is neither --chief nor --evaluator");
    return TRN_OK;
}

/* ---- all ------------------------------------------------------------------------------------------------------------- */

static char *spec_of(const launch_job *j)
{
    static const char *const jobs[] = {"chief", "ps", "worker"};
    trn_sb s = {0};
    trn_sb_adds(&s, "{");
    for (size_t i = 0; i < TRN_COUNTOF(jobs); i++) {
        int n = 0;
        for (int k = 0; k < j->n; k++)
            if (j->tasks[k].member && strcmp(j->tasks[k].job, jobs[i]) == 0) {
                if (n == 0)
                    trn_sb_addf(&s, "%s\"%s\": [", s.n > 1 ? ", " : "", jobs[i]);
                trn_sb_addf(&s, "%s\"%s\"", n++ ? ", " : "", j->tasks[k].address);
            }
        if (n)
            trn_sb_adds(&s, "]");
    }
    trn_sb_adds(&s, "}");
    return s.p;
}

trn_err launch_find_cluster(launch_job *j)
{
    snprintf(j->nonce, sizeof j->nonce, "%016llx", (unsigned long long)trn_random64());
    TRN_TRY(on_this_machine(j));
    j->spec = spec_of(j);
    if (!j->id)
        j->id = trn_xstrdup(j->nonce);
    return TRN_OK;
}

void launch_cluster_fini(launch_job *j)
{
    trn_meet_close(j->meet);
    j->meet = NULL;
    if (j->py_dir)
        launch_py_remove(j->py_dir);
}
