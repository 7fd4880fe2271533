/* floorbench BYTES [EXCHANGES [OFFSET]]: the CPU time that a process needs to receive BYTES over the loopback device and to send as many back, doing nothing else.
 *
 * What a ps cannot fall below, whatever it is written in: RESULTS.md compares its CPU time per step with this. The buffer is the same each time, so it is as warm
 * as this machine's caches allow. It begins OFFSET bytes (2048) into a page: where that is a little more than where the bytes lie in the sender's pages, some
 * processors copy at a fraction of their speed (wire/h2.c, message_shift). With BYTES a multiple of 32768 the sender's begin at 0, and OFFSET 8 shows it. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, "floorbench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void move(int fd, char *p, size_t n, bool out)
{
    while (n > 0) {
        ssize_t k = out ? send(fd, p, n, 0) : recv(fd, p, n, 0);
        if (k <= 0)
            die(out ? "send" : "recv");
        p += k;
        n -= (size_t)k;
    }
}

static double cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    long bytes = argc > 1 ? strtol(argv[1], NULL, 10) : 0, times = argc > 2 ? strtol(argv[2], NULL, 10) : 1000;
    long offset = argc > 3 ? strtol(argv[3], NULL, 10) : 2048;
    if (bytes < 1 || times < 1 || offset < 0 || offset > 4095 || argc > 4) {
        fputs("usage: floorbench BYTES [EXCHANGES [OFFSET]]\n", stderr);
        return 2;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&a, len) != 0 || listen(l, 1) != 0 || getsockname(l, (struct sockaddr *)&a, &len) != 0)
        die("cannot listen");
    char *pages = aligned_alloc(4096, ((size_t)bytes + 8191) & ~(size_t)4095);
    if (pages == NULL)
        die("memory");
    char *p = pages + offset;
    memset(p, 1, (size_t)bytes);
    pid_t peer = fork();
    if (peer < 0)
        die("fork");
    int fd = peer ? accept(l, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || (!peer && connect(fd, (struct sockaddr *)&a, len) != 0))
        die("cannot connect");
    double since = cpu_us();
    for (long i = 0; i < times; i++) {
        move(fd, p, (size_t)bytes, !peer);
        move(fd, p, (size_t)bytes, peer);
    }
    if (!peer)
        return 0;
    printf("%.0f µs of CPU to receive and to send %ld bytes\n", (cpu_us() - since) / (double)times, bytes);
    int status;
    waitpid(peer, &status, 0);
    free(pages);
    return 0;
}
