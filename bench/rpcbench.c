/* rpcbench [--address host:port] [--seconds S] [--bytes N] [--method /service/Method]: calls/s with 1 and 64 outstanding, and GB/s of large messages both ways.
 * With a method only that one is called, with an empty message. Without an address it serves itself from a second loop; CPU time is then both sides'. */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../tests/unit/echo.h"

typedef struct run {
    trn_channel *ch;
    const char *path;
    trn_buf *body;
    size_t n;
    uint64_t end_ns;
    long limit; /* calls; 0: until end_ns */
    long started, done, failed;
    int open;
    pthread_mutex_t mu;
    pthread_cond_t over;
    bool finished;
} run;

static void next(run *r);

static void on_done(void *arg, trn_err err, const trn_msg *msg)
{
    run *r = arg;
    (void)msg;
    if (err) {
        if (r->failed++ == 0)
            fprintf(stderr, "%s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
        trn_err_free(err);
    }
    r->done++;
    r->open--;
    bool more = r->failed == 0 && (r->limit ? r->started < r->limit : trn_now_ns() < r->end_ns);
    if (more) {
        next(r);
    } else if (r->open == 0) {
        pthread_mutex_lock(&r->mu);
        r->finished = true;
        pthread_cond_signal(&r->over);
        pthread_mutex_unlock(&r->mu);
    }
}

static void next(run *r)
{
    trn_out_msg m = {0};
    if (r->n)
        trn_out_slice(&m, r->body, r->body->data, r->n);
    r->started++;
    r->open++;
    trn_channel_call(NULL, r->ch, r->path, &m,
                     &(trn_call_opts){.wait_for_ready = true, .deadline_ns = trn_now_ns() + UINT64_C(60000000000)},
                     on_done, r);
}

typedef struct start {
    run *r;
    int outstanding;
} start;

static void begin(void *arg)
{
    start *s = arg;
    for (int i = 0; i < s->outstanding; i++)
        next(s->r);
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Bytes moved per call in `bytes`: GB/s is printed then. */
static int measure(const char *name, trn_loop *loop, trn_channel *ch, const char *path, trn_buf *body, size_t n,
                   int outstanding, double seconds, size_t bytes)
{
    run r = {.ch = ch,
             .path = path,
             .body = body,
             .n = n,
             .limit = 2,
             .mu = PTHREAD_MUTEX_INITIALIZER,
             .over = PTHREAD_COND_INITIALIZER};
    double t0 = 0, c0 = 0;
    for (int warm = 1; warm >= 0; warm--) {
        r.finished = false;
        r.started = r.done = 0;
        if (!warm) {
            r.limit = 0;
            r.end_ns = trn_now_ns() + (uint64_t)(seconds * 1e9);
        }
        t0 = (double)trn_now_ns() / 1e9;
        c0 = cpu();
        start s = {&r, warm ? 1 : outstanding};
        trn_loop_post(loop, begin, &s);
        pthread_mutex_lock(&r.mu);
        while (!r.finished)
            pthread_cond_wait(&r.over, &r.mu);
        pthread_mutex_unlock(&r.mu);
    }
    double t = (double)trn_now_ns() / 1e9 - t0, c = cpu() - c0;
    if (bytes)
        printf("%-28s %8.2f GB/s   %.3f CPU ns/byte\n", name, (double)r.done * (double)bytes / t / 1e9,
               c * 1e9 / ((double)r.done * (double)bytes));
    else
        printf("%-28s %8.0f calls/s %.2f CPU us/call\n", name, (double)r.done / t, c * 1e6 / (double)r.done);
    fflush(stdout);
    return r.failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *address = NULL;
    const char *path = "/echo.Echo/Echo";
    double seconds = 1;
    size_t small = 16, bytes = 100000000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--address") == 0)
            address = argv[i + 1];
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--bytes") == 0)
            bytes = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--method") == 0)
            path = argv[i + 1], small = bytes = 0;
    }
    trn_loop *server_loop = NULL, *loop = NULL;
    trn_rpc_server *s = NULL;
    echo e = {0};
    char self[32];
    trn_err err = trn_loop_open(&loop, "client");
    if (!err && !address) {
        int port;
        err = trn_loop_open(&server_loop, "server");
        if (!err)
            err = trn_rpc_server_open(&s, &(trn_server_opts){.loops = &server_loop, .n_loops = 1});
        if (!err) {
            trn_rpc_server_add(s, echo_methods, &e);
            err = trn_rpc_server_listen(s, "localhost", 0, &port);
        }
        if (!err) {
            snprintf(self, sizeof self, "127.0.0.1:%d", port);
            address = self;
        }
    }
    trn_buf *body = NULL;
    if (!err)
        err = trn_buf_new(&body, TRN_MAX(bytes, (size_t)64));
    if (err) {
        fprintf(stderr, "%s\n", trn_err_msg(err));
        return 1;
    }
    memset(body->data, 'y', body->size);
    trn_channel *ch = trn_channel_new(loop, address);
    int bad = measure("small, 1 outstanding", loop, ch, path, body, small, 1, seconds, 0);
    bad |= measure("small, 64 outstanding", loop, ch, path, body, small, 64, seconds, 0);
    if (bytes) {
        bad |= measure("push (request is large)", loop, ch, "/echo.Echo/Sink", body, bytes, 1, seconds, bytes);
        trn_buf *ask;
        err = trn_buf_new(&ask, 32);
        trn_err_free(err);
        int n = snprintf((char *)ask->data, 32, "%zu", bytes);
        bad |= measure("pull (answer is large)", loop, ch, "/echo.Echo/Source", ask, (size_t)n, 1, seconds, bytes);
        trn_buf_unref(ask);
    }
    trn_channel_unref(ch);
    trn_loop_close(loop);
    trn_rpc_server_close(s, 0);
    trn_loop_close(server_loop);
    trn_buf_unref(body);
    if (e.source)
        trn_buf_unref(e.source);
    return bad;
}
