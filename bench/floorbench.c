/* floorbench [--adam] [--lend] [--idle BYTES] BYTES [EXCHANGES [OFFSET]]: the CPU time that a process needs to receive BYTES over the loopback device and to send as many
 * back, doing nothing else, or nothing but Adam: what came is the gradient of a variable, which goes back. Between two exchanges the peer writes --idle bytes on both
 * cores, as a worker that computes does, so that caches hold other things. With --lend what goes back is not copied (src/io/lend.h).
 *
 * What a ps cannot fall below, whatever it is written in: RESULTS.md compares its CPU time per step with this. The buffer is the same each time, so it is as warm
 * as this machine's caches allow. It begins OFFSET bytes (2048) into a page: where that is a little more than where the bytes lie in the sender's pages, some
 * processors copy at a fraction of their speed (wire/h2.c, message_shift). With BYTES a multiple of 32768 the sender's begin at 0, and OFFSET 8 shows it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
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

static void lend(int fd, int pipes[2], char *p, size_t n)
{
    while (n > 0) {
        struct iovec v = {p, n};
        ssize_t in = vmsplice(pipes[1], &v, 1, 0);
        if (in <= 0)
            die("vmsplice");
        p += in;
        n -= (size_t)in;
        for (ssize_t k; in > 0; in -= k)
            if ((k = splice(pipes[0], NULL, fd, NULL, (size_t)in, n > 0 ? SPLICE_F_MORE : 0)) <= 0)
                die("splice");
    }
}

static float *floats(size_t n)
{
    size_t huge = (size_t)2 << 20, bytes = (n * sizeof(float) + huge - 1) & ~(huge - 1);
    float *p = aligned_alloc(huge, bytes);
    if (p == NULL)
        die("memory");
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < n; i++)
        p[i] = 0.001f;
    return p;
}

__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) static void adam(float *restrict x, float *restrict m, float *restrict v,
                                                                                               const float *restrict g, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        m[i] += (g[i] - m[i]) * 0.1f;
        v[i] += (g[i] * g[i] - v[i]) * 0.001f;
        x[i] -= m[i] * 0.001f / (sqrtf(v[i]) + 1e-8f);
    }
}

static struct {
    size_t bytes;
    char *p[2];
    pthread_barrier_t begin, end;
} busy;

static void *keep_busy(void *arg)
{
    char *p = arg;
    for (int i = 0;; i++) {
        pthread_barrier_wait(&busy.begin);
        memset(p, i, busy.bytes / 2);
        pthread_barrier_wait(&busy.end);
    }
    return NULL;
}

static void be_busy(int i)
{
    if (busy.bytes == 0)
        return;
    if (busy.p[0] == NULL) {
        pthread_t t;
        for (int k = 0; k < 2; k++)
            busy.p[k] = (char *)floats(busy.bytes / 2 / sizeof(float) + 1);
        pthread_barrier_init(&busy.begin, NULL, 2);
        pthread_barrier_init(&busy.end, NULL, 2);
        if (pthread_create(&t, NULL, keep_busy, busy.p[1]) != 0)
            die("thread");
    }
    pthread_barrier_wait(&busy.begin);
    memset(busy.p[0], i, busy.bytes / 2);
    pthread_barrier_wait(&busy.end);
}

static double cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    bool with_adam = false, lends = false;
    for (; argc > 1 && strncmp(argv[1], "--", 2) == 0; argc--, argv++) {
        if (strcmp(argv[1], "--adam") == 0)
            with_adam = true;
        else if (strcmp(argv[1], "--lend") == 0)
            lends = true;
        else if (strcmp(argv[1], "--idle") == 0 && argc > 2)
            busy.bytes = strtoul(argv[2], NULL, 10), argc--, argv++;
        else
            argc = 1; /* usage */
    }
    long bytes = argc > 1 ? strtol(argv[1], NULL, 10) : 0, times = argc > 2 ? strtol(argv[2], NULL, 10) : 1000;
    long offset = argc > 3 ? strtol(argv[3], NULL, 10) : 2048;
    if (bytes < 1 || times < 1 || offset < 0 || offset > 4095 || argc > 4) {
        fputs("usage: floorbench [--adam] [--lend] [--idle BYTES] BYTES [EXCHANGES [OFFSET]]\n", stderr);
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
    for (long i = 0; i < bytes; i++)
        p[i] = (char)(0x3a831200 >> i % 4 * 8); /* numbers of a gradient's kind */
    pid_t peer = fork();
    if (peer < 0)
        die("fork");
    int fd = peer ? accept(l, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || (!peer && connect(fd, (struct sockaddr *)&a, len) != 0))
        die("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* as our tasks do inside a machine (io/net.c) */
    size_t n = (size_t)bytes / sizeof(float);
    float *x = with_adam ? floats(n) : NULL, *m = with_adam ? floats(n) : NULL, *v = with_adam ? floats(n) : NULL;
    double since = 0;
    int pipes[2];
    if (pipe(pipes) != 0 || fcntl(pipes[0], F_SETPIPE_SZ, 1 << 20) < 0)
        die("pipe");
    for (long i = -3; i < times; i++) {
        if (i == 0)
            since = cpu_us();
        if (!peer)
            be_busy((int)i);
        move(fd, p, (size_t)bytes, !peer);
        if (peer && with_adam)
            adam(x, m, v, (float *)(void *)p, n);
        char *back = peer && with_adam ? (char *)x : p;
        if (peer && lends)
            lend(fd, pipes, back, (size_t)bytes);
        else
            move(fd, back, (size_t)bytes, peer);
    }
    if (!peer)
        return 0;
    printf("%.0f µs of CPU to receive%s and to send %ld bytes\n", (cpu_us() - since) / (double)times, with_adam ? ", to update" : "", bytes);
    int status;
    waitpid(peer, &status, 0);
    free(pages);
    return 0;
}
