/* Server and channel against each other in one process, and the small grammars of gRPC. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "echo.h"
#include "io/net.h"
#include "wire/grpc.h"
#include "wire/http1.h"

#define SECOND UINT64_C(1000000000)

/* ---- fixture: a server on one loop, a channel on another ------------------------------------------------------- */

typedef struct rig {
    trn_loop *sl, *cl;
    trn_rpc_server *s;
    trn_channel *ch;
    echo e;
    int port;
    bool impatient; /* short timeouts; not for all, since a loaded machine is slow to answer */
    bool two_loops;
    char address[32];
} rig;

static void serve(rig *r, int port)
{
    trn_loop *both[] = {r->sl, r->cl};
    assert_null(trn_rpc_server_open(&r->s, &(trn_server_opts){.loops = both,
                                                              .n_loops = r->two_loops ? 2 : 1,
                                                              .keepalive_ns = r->impatient ? SECOND / 5 : 0,
                                                              .header_ns = r->impatient ? SECOND / 4 : 0}));
    trn_rpc_server_add(r->s, echo_methods, &r->e);
    assert_null(trn_rpc_server_listen(r->s, "localhost", port, &r->port));
}

static int setup_rig(void **state, bool impatient)
{
    rig *r = trn_xalloc(sizeof *r);
    r->impatient = impatient;
    assert_null(trn_pool_open(&r->e.pool, 2, "pool"));
    assert_null(trn_loop_open(&r->sl, "server"));
    assert_null(trn_loop_open(&r->cl, "client"));
    serve(r, 0);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", r->port);
    r->ch = trn_channel_new(r->cl, r->address);
    *state = r;
    return 0;
}

static int setup(void **state) { return setup_rig(state, false); }
static int setup_impatient(void **state) { return setup_rig(state, true); }

static int teardown(void **state)
{
    rig *r = *state;
    trn_faults_set(NULL);
    trn_channel_unref(r->ch);
    trn_rpc_server_close(r->s, SECOND / 10);
    trn_pool_close(r->e.pool);
    trn_loop_close(r->cl);
    trn_loop_close(r->sl);
    if (r->e.source)
        trn_buf_unref(r->e.source);
    free(r);
    return 0;
}

/* ---- one call and its outcome ---------------------------------------------------------------------------------- */

typedef struct outcome {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int done;
    trn_err err;
    uint8_t *p;
    size_t n;
} outcome;

static void init_outcome(outcome *o)
{
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->mu, NULL);
    pthread_cond_init(&o->cv, NULL);
}

static void fini_outcome(outcome *o)
{
    trn_err_free(o->err);
    free(o->p);
    pthread_mutex_destroy(&o->mu);
    pthread_cond_destroy(&o->cv);
}

static void keep(void *arg, trn_err err, const trn_msg *m)
{
    outcome *o = arg;
    assert_true((err == NULL) == (m != NULL));
    pthread_mutex_lock(&o->mu);
    assert_int_equal(o->done, 0); /* exactly once */
    o->err = err;
    if (m) {
        o->p = malloc(m->n + 1);
        memcpy(o->p, m->p, m->n);
        o->p[m->n] = 0;
        o->n = m->n;
    }
    o->done = 1;
    pthread_cond_broadcast(&o->cv);
    pthread_mutex_unlock(&o->mu);
}

static void wait_for(outcome *o)
{
    pthread_mutex_lock(&o->mu);
    while (!o->done)
        pthread_cond_wait(&o->cv, &o->mu);
    pthread_mutex_unlock(&o->mu);
}

static void call_on(trn_rpc **h, trn_channel *ch, outcome *o, const char *method, const void *p, size_t n,
                    const trn_call_opts *opts)
{
    char path[64];
    snprintf(path, sizeof path, "/echo.Echo/%s", method);
    trn_out_msg m = {0};
    trn_out_bytes(&m, p, n);
    init_outcome(o);
    trn_channel_call(h, ch, path, &m, opts, keep, o);
}

static void call(rig *r, outcome *o, const char *method, const void *p, size_t n, const trn_call_opts *opts)
{
    call_on(NULL, r->ch, o, method, p, n, opts);
    wait_for(o);
}

static void expect_error(outcome *o, trn_code code, const char *part)
{
    if (trn_err_code(o->err) != code || !strstr(o->err ? trn_err_msg(o->err) : "", part))
        print_message("got %s: %s\n", trn_code_name(trn_err_code(o->err)), o->err ? trn_err_msg(o->err) : "");
    assert_int_equal(trn_err_code(o->err), code);
    assert_non_null(strstr(trn_err_msg(o->err), part));
    fini_outcome(o);
}

static void until(_Atomic int *v, int want)
{
    for (int i = 0; i < 2000 && atomic_load(v) != want; i++)
        usleep(1000);
    assert_int_equal(atomic_load(v), want);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void messages_of_all_sizes_come_back(void **state)
{
    rig *r = *state;
    static const size_t sizes[] = {0, 1, 5, 100, 4095, 16384, 65536, 70000, 1 << 20, (9 << 20) + 7};
    for (size_t i = 0; i < TRN_COUNTOF(sizes); i++) {
        uint8_t *p = malloc(sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++)
            p[k] = (uint8_t)(k * 31 + k / 257);
        outcome o;
        call(r, &o, i % 2 ? "Pool" : "Echo", p, sizes[i], NULL);
        assert_null(o.err);
        assert_int_equal(o.n, sizes[i]);
        assert_memory_equal(o.p, p, sizes[i]);
        fini_outcome(&o);
        free(p);
    }
}

/* Many slices, small and large, from shared buffers. */
static void slices_are_joined(void **state)
{
    rig *r = *state;
    trn_buf *b;
    assert_null(trn_buf_new(&b, 3 << 20));
    for (size_t i = 0; i < b->size; i++)
        b->data[i] = (uint8_t)(i * 7 + i / 251);
    trn_out_msg m = {0};
    uint8_t *expect = malloc(20 << 20);
    size_t n = 0;
    for (size_t i = 0; i < 200; i++) {
        size_t at = i * 997, len = i % 9 == 0 ? 300000 : i % 5 * 611 + 1;
        if (i % 3)
            trn_out_slice(&m, b, b->data + at, len);
        else
            trn_out_bytes(&m, b->data + at, len);
        memcpy(expect + n, b->data + at, len);
        n += len;
    }
    assert_int_equal(m.bytes, n);
    outcome o;
    init_outcome(&o);
    trn_channel_call(NULL, r->ch, "/echo.Echo/Echo", &m, NULL, keep, &o);
    wait_for(&o);
    assert_null(o.err);
    assert_int_equal(o.n, n);
    assert_memory_equal(o.p, expect, n);
    fini_outcome(&o);
    free(expect);
    assert_int_equal(atomic_load(&b->ref), 1); /* every reference was given back */
    trn_buf_unref(b);
}

static void tensors_land_aligned(void **state)
{
    rig *r = *state;
    static const size_t sizes[] = {200, 5000, 300000};
    for (size_t i = 0; i < TRN_COUNTOF(sizes); i++) {
        uint8_t *p = calloc(sizes[i], 1);
        outcome o;
        call(r, &o, "Aligned", p, sizes[i], NULL);
        assert_null(o.err);
        assert_string_equal((char *)o.p, "yes");
        fini_outcome(&o);
        free(p);
    }
}

static void errors_keep_code_and_text(void **state)
{
    rig *r = *state;
    outcome o;
    call(r, &o, "Fail", "3 100% wrong: \xC3\xA4\n\x01 end", 22, NULL);
    expect_error(&o, TRN_INVALID_ARGUMENT, "100% wrong: \xC3\xA4\n\x01 end");
    call(r, &o, "Nope", "", 0, NULL);
    expect_error(&o, TRN_UNIMPLEMENTED, "/echo.Echo/Nope");
    char big[20000];
    memset(big, 'e', sizeof big);
    memcpy(big, "9 ", 2);
    call(r, &o, "Fail", big, sizeof big, NULL);
    assert_true(strlen(trn_err_msg(o.err)) <= 4096);
    expect_error(&o, TRN_FAILED_PRECONDITION, "eee...");
    call(r, &o, "Small", big, 1024, NULL);
    assert_null(o.err);
    fini_outcome(&o);
    call(r, &o, "Small", big, 1025, NULL);
    expect_error(&o, TRN_RESOURCE_EXHAUSTED, "1025");
    /* refused in the middle of a large upload; the connection goes on */
    uint8_t *huge = calloc(1, 30 << 20);
    call(r, &o, "Small", huge, 30 << 20, NULL);
    expect_error(&o, TRN_RESOURCE_EXHAUSTED, "1024");
    call(r, &o, "Echo", "ok", 2, NULL);
    assert_null(o.err);
    fini_outcome(&o);
    free(huge);
}

static void no_memory_for_a_message(void **state)
{
    rig *r = *state;
    outcome o;
    trn_faults_set("wire.alloc:1");
    call(r, &o, "Echo", "0123456789", 10, NULL);
    expect_error(&o, TRN_RESOURCE_EXHAUSTED, "no memory");
    trn_faults_set(NULL);
    call(r, &o, "Echo", "0123456789", 10, NULL);
    assert_null(o.err);
    fini_outcome(&o);
}

static void cancel_reaches_the_server(void **state)
{
    rig *r = *state;
    enum { N = 200 };
    static outcome o[N];
    trn_rpc *h[N];
    for (int i = 0; i < N; i++)
        call_on(&h[i], r->ch, &o[i], "Park", "", 0, NULL);
    until(&r->e.parked, N);
    for (int i = 0; i < N; i++)
        trn_rpc_cancel(h[i]);
    for (int i = 0; i < N; i++) {
        wait_for(&o[i]);
        trn_rpc_cancel(h[i]); /* too late is fine */
        trn_rpc_unref(h[i]);
        expect_error(&o[i], TRN_CANCELLED, "Park to 127.0.0.1");
    }
    until(&r->e.cancelled, N);
    until(&r->e.parked, 0);
}

static void deadlines_end_calls_on_both_sides(void **state)
{
    rig *r = *state;
    outcome o;
    uint64_t t0 = trn_now_ns();
    call(r, &o, "Park", "", 0, &(trn_call_opts){.deadline_ns = t0 + SECOND / 20});
    assert_in_range(trn_now_ns() - t0, SECOND / 25, SECOND);
    assert_int_equal(trn_err_code(o.err), TRN_DEADLINE_EXCEEDED);
    fini_outcome(&o);
    until(&r->e.cancelled, 1);
    call(r, &o, "Park", "", 0, &(trn_call_opts){.deadline_ns = 1}); /* long past */
    assert_int_equal(trn_err_code(o.err), TRN_DEADLINE_EXCEEDED);
    fini_outcome(&o);
}

typedef struct storm {
    rig *r;
    int id, bad;
} storm;

static void *storm_main(void *arg)
{
    storm *s = arg;
    enum { N = 64 };
    outcome o[N];
    for (int round = 0; round < 6; round++) {
        char text[N][32];
        trn_rpc *h[N];
        for (int i = 0; i < N; i++) {
            int n = snprintf(text[i], sizeof text[i], "%d/%d/%d", s->id, round, i);
            call_on(i % 8 == 7 ? &h[i] : NULL, s->r->ch, &o[i], i % 2 ? "Pool" : "Echo", text[i], (size_t)n, NULL);
            if (i % 8 == 7) { /* some are cancelled on their way */
                trn_rpc_cancel(h[i]);
                trn_rpc_unref(h[i]);
            }
        }
        for (int i = 0; i < N; i++) {
            wait_for(&o[i]);
            bool ok =
                o[i].err ? i % 8 == 7 && trn_err_code(o[i].err) == TRN_CANCELLED : strcmp((char *)o[i].p, text[i]) == 0;
            s->bad += !ok;
            fini_outcome(&o[i]);
        }
    }
    return NULL;
}

static void threads_share_a_channel(void **state)
{
    enum { T = 4 };
    storm s[T];
    pthread_t t[T];
    for (int i = 0; i < T; i++) {
        s[i] = (storm){*state, i, 0};
        pthread_create(&t[i], NULL, storm_main, &s[i]);
    }
    for (int i = 0; i < T; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(s[i].bad, 0);
    }
}

/* A server on two loops, one of which carries the channels as well. */
static void connections_are_spread(void **state)
{
    rig *r = *state;
    enum { N = 6 };
    trn_rpc_server_close(r->s, 0);
    r->two_loops = true;
    serve(r, 0);
    snprintf(r->address, sizeof r->address, "localhost:%d", r->port);
    trn_channel *ch[N];
    outcome o[N];
    for (int i = 0; i < N; i++) {
        ch[i] = trn_channel_new(i % 2 ? r->cl : r->sl, r->address);
        call_on(NULL, ch[i], &o[i], i % 3 ? "Late" : "Pool", "hello", 5, NULL);
    }
    for (int i = 0; i < N; i++) {
        wait_for(&o[i]);
        assert_null(o[i].err);
        assert_string_equal((char *)o[i].p, "hello");
        fini_outcome(&o[i]);
        trn_channel_unref(ch[i]);
    }
}

static void thousands_of_parked_calls_do_not_starve_others(void **state)
{
    rig *r = *state;
    enum { N = 3000 };
    outcome *o = calloc(N, sizeof *o), echo_o;
    for (int i = 0; i < N; i++)
        call_on(NULL, r->ch, &o[i], "Park", "", 0, NULL);
    until(&r->e.parked, N);
    call(r, &echo_o, "Echo", "hi", 2, NULL);
    assert_null(echo_o.err);
    fini_outcome(&echo_o);
    trn_channel_shutdown(r->ch);
    for (int i = 0; i < N; i++) {
        wait_for(&o[i]);
        expect_error(&o[i], TRN_UNAVAILABLE, "shut down");
    }
    call(r, &echo_o, "Echo", "hi", 2, NULL);
    expect_error(&echo_o, TRN_UNAVAILABLE, "shut down");
    until(&r->e.parked, 0);
    free(o);
}

static void nobody_listens(void **state)
{
    rig *r = *state;
    int fds[TRN_NET_ADDRS], n, port;
    assert_null(trn_net_listen(fds, &n, &port, "localhost", 0));
    for (int i = 0; i < n; i++)
        close(fds[i]);
    char address[32];
    snprintf(address, sizeof address, "localhost:%d", port);
    trn_channel *ch = trn_channel_new(r->cl, address);
    outcome o;
    call_on(NULL, ch, &o, "Echo", "", 0, NULL);
    wait_for(&o);
    expect_error(&o, TRN_UNAVAILABLE, "refused");
    call_on(NULL, ch, &o, "Echo", "", 0,
            &(trn_call_opts){.wait_for_ready = true, .deadline_ns = trn_now_ns() + SECOND / 5});
    wait_for(&o);
    expect_error(&o, TRN_DEADLINE_EXCEEDED, "attempts");
    trn_channel_unref(ch);
    static const char *bad[] = {"nonsense", "no-such-host.invalid:1", "127.0.0.1:99999"};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        ch = trn_channel_new(r->cl, bad[i]);
        call_on(NULL, ch, &o, "Echo", "", 0, &(trn_call_opts){.wait_for_ready = i != 1});
        wait_for(&o);
        expect_error(&o, TRN_UNAVAILABLE, bad[i]);
        trn_channel_unref(ch);
    }
}

static void reconnects_to_a_restarted_server(void **state)
{
    rig *r = *state;
    outcome o, parked;
    call(r, &o, "Echo", "a", 1, NULL);
    assert_null(o.err);
    fini_outcome(&o);
    call_on(NULL, r->ch, &parked, "Park", "", 0, NULL);
    until(&r->e.parked, 1);
    trn_rpc_server_close(r->s, 0);
    wait_for(&parked);
    expect_error(&parked, TRN_UNAVAILABLE, r->address);
    until(&r->e.parked, 0);
    call(r, &o, "Echo", "b", 1, NULL);
    expect_error(&o, TRN_UNAVAILABLE, "refused");
    outcome waiting;
    call_on(NULL, r->ch, &waiting, "Echo", "c", 1, &(trn_call_opts){.wait_for_ready = true});
    usleep(20000);
    serve(r, r->port);
    wait_for(&waiting);
    assert_null(waiting.err);
    assert_string_equal((char *)waiting.p, "c");
    fini_outcome(&waiting);
    char text[200];
    assert_string_equal(trn_channel_state_text(r->ch, text, sizeof text), "connected");
}

static void connection_lost_at_any_point(void **state)
{
    rig *r = *state;
    uint8_t *p = calloc(1, 200000);
    int lost = 0;
    for (int i = 1; i < 24; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "%s:%d", i % 2 ? "io.read" : "io.write", i / 2 + 1);
        trn_faults_set(spec);
        for (int k = 0; k < 4; k++) {
            outcome o;
            call(r, &o, "Echo", p, k % 2 ? 200000 : 10, &(trn_call_opts){.wait_for_ready = true});
            if (o.err) {
                assert_int_equal(trn_err_code(o.err), TRN_UNAVAILABLE);
                lost++;
            }
            fini_outcome(&o);
        }
    }
    trn_faults_set(NULL);
    assert_true(lost > 5);
    free(p);
}

/* Handlers answer after the client, the connection or the server went away. */
static void late_replies_are_harmless(void **state)
{
    rig *r = *state;
    outcome o[6];
    trn_rpc *h[6];
    echo_hold = true;
    for (int i = 0; i < 6; i++)
        call_on(&h[i], r->ch, &o[i], "Late", "x", 1, NULL);
    outcome first;
    call(r, &first, "Echo", "", 0, NULL); /* they have arrived */
    fini_outcome(&first);
    trn_rpc_cancel(h[1]);
    trn_rpc_cancel(h[3]);
    usleep(10000);
    trn_channel_shutdown(r->ch);
    for (int i = 0; i < 6; i++) {
        wait_for(&o[i]);
        trn_rpc_unref(h[i]);
        assert_non_null(o[i].err);
        fini_outcome(&o[i]);
    }
    echo_hold = false;
    usleep(40000); /* some while there is a server */
    trn_rpc_server_close(r->s, 0);
    r->s = NULL;
    usleep(120000); /* the pool is still answering */
}

static void closing_lets_calls_finish(void **state)
{
    rig *r = *state;
    outcome o, first;
    call_on(NULL, r->ch, &o, "Late", "x", 1, NULL);
    call(r, &first, "Echo", "", 0, NULL);
    fini_outcome(&first);
    trn_rpc_server_close(r->s, SECOND);
    r->s = NULL;
    wait_for(&o);
    assert_null(o.err);
    assert_string_equal((char *)o.p, "x");
    fini_outcome(&o);
}

static void metrics_count(void **state)
{
    rig *r = *state;
    outcome o;
    call(r, &o, "Fail", "5 x", 3, NULL);
    fini_outcome(&o);
    trn_sb text = {0};
    trn_metrics_text(&text);
    assert_non_null(strstr(text.p, "rpc_calls_total{method=\"Fail\"}"));
    assert_non_null(strstr(text.p, "rpc_errors_total{method=\"Fail\",code=\"NotFound\"}"));
    assert_non_null(strstr(text.p, "rpc_connections"));
    trn_sb_fini(&text);
}

/* ---- raw bytes -------------------------------------------------------------------------------------------------- */

/* Sends bytes, half-closes, returns what comes until the server closes. */
static size_t talk(rig *r, const void *p, size_t n, char *out, size_t max)
{
    trn_addrs a;
    assert_true(trn_net_known(&a, "127.0.0.1", r->port));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, &a.a[0].sa, a.a[0].len), 0);
    struct timeval tv = {3, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
    shutdown(fd, SHUT_WR);
    size_t got = 0;
    ssize_t k;
    while (got < max && (k = recv(fd, out + got, max - got, 0)) > 0)
        got += (size_t)k;
    close(fd);
    return got;
}

static int dial(rig *r)
{
    trn_addrs a;
    assert_true(trn_net_known(&a, "127.0.0.1", r->port));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        return fd;
    assert_int_equal(connect(fd, &a.a[0].sa, a.a[0].len), 0);
    struct timeval tv = {3, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    return fd;
}

/* Reads until the server closes; how long that took. */
static uint64_t until_closed(int fd)
{
    char buf[4096];
    uint64_t t0 = trn_now_ns();
    while (recv(fd, buf, sizeof buf, 0) > 0)
        ;
    close(fd);
    return trn_now_ns() - t0;
}

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
static const char half_headers[] = "\0\0\1\1\0\0\0\0\1\x82"; /* HEADERS without END_HEADERS */

static void those_who_never_finish_are_dropped(void **state)
{
    rig *r = *state;
    static const struct {
        const char *p;
        size_t n;
    } rows[] = {{"", 0}, {"GET /", 5}, {preface, 10}, {preface, 24}};
    int fd[5];
    for (int i = 0; i < 4; i++) {
        fd[i] = dial(r);
        assert_int_equal(send(fd[i], rows[i].p, rows[i].n, MSG_NOSIGNAL), rows[i].n);
    }
    fd[4] = dial(r);
    assert_int_equal(send(fd[4], preface, 33, MSG_NOSIGNAL), 33);
    assert_int_equal(send(fd[4], half_headers, sizeof half_headers - 1, MSG_NOSIGNAL), sizeof half_headers - 1);
    for (int i = 0; i < 5; i++)
        assert_true(until_closed(fd[i]) < 2 * SECOND);
    outcome o; /* one that is merely idle stays */
    call(r, &o, "Echo", "a", 1, NULL);
    assert_null(o.err);
    fini_outcome(&o);
}

/* The start of a call of Park or Echo by hand, as far as the prefix of its message. */
static void send_request(int fd, const char *method, uint32_t message)
{
    static const char head[] = "\0\0\0\1\4\0\0\0\1\x83\x86" /* POST, http */
                               "\x04";
    static const char tail[] = "\x01\x01x"
                               "\0\x0c"
                               "content-type"
                               "\x10"
                               "application/grpc"
                               "\0\2te\x08trailers";
    uint32_t frame = message + 5;
    char settings[1024];
    assert_int_equal(send(fd, preface, 33, MSG_NOSIGNAL), 33);
    assert_true(recv(fd, settings, sizeof settings, 0) > 9); /* large frames may come once they are acknowledged */
    trn_sb out = {0};
    trn_sb_add(&out, "\0\0\0\4\1\0\0\0\0", 9);
    size_t begin = out.n;
    trn_sb_add(&out, head, sizeof head - 1);
    trn_sb_addf(&out, "%c/echo.Echo/%s", (char)(11 + strlen(method)), method);
    trn_sb_add(&out, tail, sizeof tail - 1);
    out.p[begin + 2] = (char)(out.n - begin - 9);
    const uint8_t data[] = {(uint8_t)(frame >> 16), (uint8_t)(frame >> 8), (uint8_t)frame, 0, 1, 0, 0, 0, 1,
                            0, (uint8_t)(message >> 24), (uint8_t)(message >> 16), (uint8_t)(message >> 8), (uint8_t)message};
    trn_sb_add(&out, data, sizeof data);
    assert_int_equal(send(fd, out.p, out.n, MSG_NOSIGNAL), out.n);
    trn_sb_fini(&out);
}

static uint64_t lent_bytes(void) { return atomic_load(&trn_metric_counter("rpc_bytes_lent_total", "")->v); }

/* Asks for n bytes by hand, in large frames, and does not read them. Most of them were lent when it returns. */
static int borrow(rig *r, size_t n)
{
    uint64_t before = lent_bytes();
    int fd = dial(r);
    char body[32];
    snprintf(body, sizeof body, "%zu", n);
    send_request(fd, "Source", (uint32_t)strlen(body));
    assert_int_equal(send(fd, body, strlen(body), MSG_NOSIGNAL), strlen(body));
    static const char wide[] = "\0\0\14\4\0\0\0\0\0\0\4\0\x7f\0\0\0\5\0\xff\xff\xff" /* SETTINGS: window, frames */
                               "\0\0\4\10\0\0\0\0\0\0\x7f\0\0";                          /* the connection's window */
    assert_int_equal(send(fd, wide, sizeof wide - 1, MSG_NOSIGNAL), sizeof wide - 1);
    for (int i = 0; i < 2000 && lent_bytes() < before + n / 2; i++)
        usleep(1000);
    assert_true(lent_bytes() >= before + n / 2);
    return fd;
}

static bool soon_sole(trn_buf *b, unsigned ms)
{
    for (unsigned i = 0; i < ms && !trn_buf_sole(b); i++)
        usleep(1000);
    return trn_buf_sole(b);
}

/* Reads until `text` came or the server closed; counts the answer's bytes. */
static size_t count_x(int fd, const char *text, size_t n)
{
    size_t all = 0, cap = 8 << 20, x = 0;
    char *p = malloc(cap), *at = NULL;
    for (ssize_t k; !at && all < cap && (k = recv(fd, p + all, cap - all, 0)) > 0;) {
        all += (size_t)k;
        at = n ? memmem(p, all, text, n) : NULL;
    }
    for (size_t i = 0; i < all; i++)
        x += p[i] == 'x';
    free(p);
    return x;
}

enum { LOAN = 400000 }; /* sockets hold it all */

/* The buffer is there, and everybody knows it. */
static bool can_lend(rig *r)
{
    trn_lender *l = trn_lender_open();
    trn_lender_close(l);
    outcome o;
    call(r, &o, "Source", "400000", 6, NULL);
    assert_int_equal(o.n, LOAN);
    fini_outcome(&o);
    return l != NULL && soon_sole(r->e.source, 2000);
}

static void what_is_lent_stays_until_it_was_read(void **state)
{
    rig *r = *state;
    if (!can_lend(r))
        skip();
    int fd = borrow(r, LOAN);
    assert_false(soon_sole(r->e.source, 100)); /* written, but nobody has read it */
    assert_int_equal(count_x(fd, "\0\0\10\6\0\0\0\0\0loan", 13), LOAN);
    assert_false(soon_sole(r->e.source, 50)); /* read, and nobody has said so */
    assert_int_equal(send(fd, "\0\0\10\6\1\0\0\0\0loan\0\0\0\0", 17, MSG_NOSIGNAL), 17);
    assert_true(soon_sole(r->e.source, 2000));
    close(fd);
}

static int borrow_and_part(rig *r)
{
    int fd = borrow(r, LOAN);
    trn_rpc_server_close(r->s, SECOND / 100);
    r->s = NULL;
    return fd;
}

/* The server goes while its answer waits in the sockets: whoever reads it later finds it whole. */
static void what_is_lent_outlives_its_connection(void **state)
{
    rig *r = *state;
    if (!can_lend(r))
        skip();
    int fd = borrow_and_part(r);
    assert_false(soon_sole(r->e.source, 50)); /* so nobody writes to it */
    assert_int_equal(count_x(fd, "", 0), LOAN);
    assert_false(trn_buf_sole(r->e.source));
    close(fd);
    assert_true(soon_sole(r->e.source, 2000));

    serve(r, 0); /* a peer that hangs up owes nothing; one that stays is given up with the loop */
    fd = borrow(r, LOAN);
    assert_false(soon_sole(r->e.source, 50));
    close(fd);
    assert_true(soon_sole(r->e.source, 2000));
    fd = borrow_and_part(r);
    assert_false(soon_sole(r->e.source, 50));
    trn_loop_close(r->sl);
    assert_true(trn_buf_sole(r->e.source));
    close(fd);
    assert_null(trn_loop_open(&r->sl, "server"));
}

/* Nor does a minute of silence (0.6 s here) change anything for a peer that was halted. */
static void what_is_lent_waits_for_a_halted_peer(void **state)
{
    rig *r = *state;
    if (!can_lend(r))
        skip();
    int fd = borrow_and_part(r);
    assert_false(soon_sole(r->e.source, 1300));
    assert_int_equal(count_x(fd, "", 0), LOAN);
    close(fd);
    assert_true(soon_sole(r->e.source, 2000));
}

/* A client with an open call that answers nothing any more. */
static void silent_client_is_noticed(void **state)
{
    rig *r = *state;
    int fd = dial(r);
    send_request(fd, "Park", 0);
    until(&r->e.parked, 1);
    assert_in_range(until_closed(fd), SECOND / 10, 2 * SECOND); /* pinged after 0.2 s, given up after 0.4 s */
    until(&r->e.cancelled, 1);
}

enum { PIECES = 20, PIECE = 10 << 10, BACK = 32 << 10 }; /* we never open our window, so only the start of the answer can come */

static bool echo_slowly(rig *r)
{
    static char piece[PIECE], back[64 << 10];
    int fd = dial(r);
    send_request(fd, "Echo", PIECES * PIECE);
    for (int i = 0; i < PIECES; i++) {
        usleep(50000);
        if (send(fd, piece, PIECE, MSG_NOSIGNAL) != PIECE)
            break;
    }
    size_t got = 0;
    for (ssize_t k; got < BACK && (k = recv(fd, back, sizeof back, 0)) > 0;)
        got += (size_t)k;
    close(fd);
    return got >= BACK;
}

/* One that takes a second for a frame which a socket could hold as a whole: slow, not silent. On a busy machine this side may really be silent for 0.4 s,
 * so it has a few tries. */
static void slow_client_is_waited_for(void **state)
{
    bool done = false;
    for (int i = 0; i < 5 && !done; i++)
        done = echo_slowly(*state);
    assert_true(done);
}

/* A server of ours that hangs: the listener accepts, says who it is, and then nothing. */
static void silent_server_is_noticed(void **state)
{
    rig *r = *state;
    int fds[TRN_NET_ADDRS], n, port;
    assert_null(trn_net_listen(fds, &n, &port, "127.0.0.1", 0));
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    trn_channel *ch = trn_channel_new(r->cl, address);
    trn_channel_set_keepalive(ch, SECOND / 10);
    outcome o;
    call_on(NULL, ch, &o, "Park", "", 0, NULL);
    int fd = -1;
    for (int i = 0; i < 1000 && fd < 0; i++, usleep(1000))
        fd = accept(fds[0], NULL, NULL);
    assert_true(fd >= 0);
    static const char hello[] = "\0\0\0\4\0\0\0\0\0"
                                "\0\0\x08\6\0\0\0\0\0trainera";
    assert_int_equal(send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL), sizeof hello - 1);
    wait_for(&o);
    expect_error(&o, TRN_UNAVAILABLE, "PING");
    trn_channel_unref(ch);
    close(fd);
    close(fds[0]);
}

static void out_of_descriptors(void **state)
{
    rig *r = *state;
    struct rlimit old, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    close(next);
    few = old;
    few.rlim_cur = (rlim_t)next + 21; /* sockets of both sides come out of this */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int fd[64], n = 0;
    while (n < 64 && (fd[n] = dial(r)) >= 0)
        n++;
    assert_in_range(n, 10, 22);
    struct rusage a, b;
    getrusage(RUSAGE_SELF, &a);
    usleep(200000);
    getrusage(RUSAGE_SELF, &b);
    assert_true((b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000 + b.ru_utime.tv_usec - a.ru_utime.tv_usec <
                100000); /* no spinning */
    for (int i = 0; i < n; i++)
        close(fd[i]);
    outcome o;
    call(r, &o, "Echo", "a", 1, &(trn_call_opts){.wait_for_ready = true});
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_null(o.err);
    fini_outcome(&o);
}

static void http1_on_the_same_port(void **state)
{
    rig *r = *state;
    char out[4096];
    static const struct {
        const char *ask, *start, *part;
    } rows[] = {
        {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK", "\r\n\r\nok\n"},
        {"GET /healthz?a=b HTTP/1.0\n\n", "HTTP/1.1 200 OK", "Connection: close"},
        {"HEAD /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK", "Content-Length: 3"},
        {"GET /nothing HTTP/1.1\r\n\r\n", "HTTP/1.1 404", "/healthz"},
        {"POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405", "Allow: GET"},
        {"\x16\x03\x01\x02hello tls", "HTTP/1.1 400", "gRPC"},
        {"PRI * HTTP/1.1\r\n\r\n", "HTTP/1.1 405", "GET"},
        {"lower case\r\n\r\n", "HTTP/1.1 400", ""},
        {"GET healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 400", "slash"},
        {"GET / HTTP/3.0\r\n\r\n", "HTTP/1.1 505", ""},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        size_t n = talk(r, rows[i].ask, strlen(rows[i].ask), out, sizeof out - 1);
        out[n] = 0;
        if (strncmp(out, rows[i].start, strlen(rows[i].start)) || !strstr(out, rows[i].part))
            print_message("%s → %s\n", rows[i].ask, out);
        assert_int_equal(strncmp(out, rows[i].start, strlen(rows[i].start)), 0);
        assert_non_null(strstr(out, rows[i].part));
    }
    char *huge = malloc(20000);
    memset(huge, 'a', 20000);
    memcpy(huge, "GET /", 5);
    size_t n = talk(r, huge, 20000, out, sizeof out - 1);
    free(huge);
    out[n] = 0;
    assert_int_equal(strncmp(out, "HTTP/1.1 431", 12), 0);
    /* two requests in one write, on one connection */
    static const char two[] = "GET /healthz HTTP/1.1\r\n\r\nGET /nothing HTTP/1.1\r\n\r\n";
    n = talk(r, two, sizeof two - 1, out, sizeof out - 1);
    out[n] = 0;
    assert_non_null(strstr(out, "200 OK"));
    assert_non_null(strstr(out, "404"));
}

static void long_answer(void *user, const char *path, const char *query, trn_http_reply *r)
{
    static const char text[4096];
    ++*(int *)user;
    trn_sb_add(&r->body, text, sizeof text);
}

/* A megabyte of requests at once is not gigabytes of answers, nor a megabyte moved for each. */
static void http1_asks_too_much(void **state)
{
    (void)state;
    static const char ask[] = "GET / HTTP/1.1\n\n";
    enum { LEN = sizeof ask - 1, N = 60000 };
    char *all = malloc((size_t)LEN * N);
    for (size_t i = 0; i < N; i++)
        memcpy(all + i * LEN, ask, LEN);
    trn_http1 h = {0};
    trn_sb out = {0};
    int asked = 0;
    assert_false(trn_http1_recv(&h, (uint8_t *)all, (size_t)LEN * N, &out, long_answer, &asked));
    assert_true(out.n > TRN_HTTP1_MAX_OUT && out.n < TRN_HTTP1_MAX_OUT + 10000);
    trn_sb_fini(&out);
    trn_http1_fini(&h);
    /* read as they come, all of them, cut wherever */
    h = (trn_http1){0};
    asked = 0;
    for (size_t at = 0; at < (size_t)LEN * N; at += 1000) {
        assert_true(trn_http1_recv(&h, (uint8_t *)all + at, TRN_MIN((size_t)1000, (size_t)LEN * N - at), &out, long_answer, &asked));
        out.n = 0;
    }
    assert_int_equal(asked, N);
    trn_sb_fini(&out);
    trn_http1_fini(&h);
    free(all);
}

static void random_bytes_harm_nobody(void **state)
{
    rig *r = *state;
    char out[65536];
    unsigned seed = 7;
    for (int i = 0; i < 40; i++) {
        uint8_t junk[2048];
        size_t head = i % 2 ? sizeof preface - 1 : 0;
        memcpy(junk, preface, head);
        for (size_t k = head; k < sizeof junk; k++) {
            seed = seed * 1664525 + 1013904223;
            junk[k] = (uint8_t)(seed >> 24);
            if (i % 4 == 3 && k % 9 < 3)
                junk[k] = 0; /* plausible frame lengths */
        }
        talk(r, junk, 1 + (size_t)i * 50 + head, out, sizeof out);
    }
    outcome o;
    call(r, &o, "Echo", "alive", 5, NULL);
    assert_null(o.err);
    fini_outcome(&o);
}

/* ---- grammars --------------------------------------------------------------------------------------------------- */

static void timeouts(void **state)
{
    (void)state;
    char buf[TRN_GRPC_TIMEOUT_TEXT];
    uint64_t ns;
    trn_grpc_timeout_text(buf, 10100 * UINT64_C(1000000));
    assert_string_equal(buf, "10100000u");
    trn_grpc_timeout_text(buf, 1);
    assert_string_equal(buf, "1u");
    trn_grpc_timeout_text(buf, UINT64_MAX);
    assert_true(trn_grpc_timeout_parse(&ns, buf, strlen(buf)));
    for (uint64_t v = 1; v < UINT64_C(1) << 60; v = v * 3 + 1) {
        size_t n = trn_grpc_timeout_text(buf, v);
        assert_true(n <= 9 && trn_grpc_timeout_parse(&ns, buf, n));
        assert_true(ns >= v && ns - v <= v / 1000 + 1000);
    }
    assert_true(trn_grpc_timeout_parse(&ns, "10100m", 6) && ns == UINT64_C(10100000000));
    static const char *bad[] = {"", "m", "10", "-1m", "1x", "1 m", "123456789m"};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++)
        assert_false(trn_grpc_timeout_parse(&ns, bad[i], strlen(bad[i])));
}

static void status_messages(void **state)
{
    (void)state;
    char out[64];
    size_t n = trn_grpc_message_encode(out, sizeof out, "a%b \xC3\xA4\n");
    assert_int_equal(n, 15);
    assert_memory_equal(out, "a%25b %C3%A4%0A", 15);
    char *back = trn_grpc_message_decode(out, n);
    assert_string_equal(back, "a%b \xC3\xA4\n");
    free(back);
    for (size_t max = 3; max < 28; max++) { /* never cuts an escape or a character */
        n = trn_grpc_message_encode(out, max, "aaaa\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4");
        assert_true(n <= max && memcmp(out + n - 3, "...", 3) == 0);
        back = trn_grpc_message_decode(out, n - 3);
        size_t len = strlen(back);
        assert_true(len <= 4 || (len - 4) % 2 == 0);
        free(back);
    }
    back = trn_grpc_message_decode("%%4%zz%41%00", 12);
    assert_string_equal(back, "%%4%zzA%00");
    free(back);
    for (unsigned marks = 0; marks < 4; marks++) {
        char d[TRN_GRPC_DETAILS_TEXT];
        size_t len = trn_grpc_details_text(d, marks);
        assert_int_equal(len != 0, marks != 0);
        assert_int_equal(trn_grpc_details_marks(d, len), marks);
    }
    assert_int_equal(trn_grpc_details_marks("AAAA", 4), 0);
}

#define RIG(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    trn_log_set_level(TRN_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timeouts),
        cmocka_unit_test(status_messages),
        RIG(messages_of_all_sizes_come_back),
        RIG(slices_are_joined),
        RIG(tensors_land_aligned),
        RIG(errors_keep_code_and_text),
        RIG(no_memory_for_a_message),
        RIG(cancel_reaches_the_server),
        RIG(deadlines_end_calls_on_both_sides),
        RIG(threads_share_a_channel),
        RIG(connections_are_spread),
        RIG(thousands_of_parked_calls_do_not_starve_others),
        RIG(nobody_listens),
        RIG(reconnects_to_a_restarted_server),
        RIG(connection_lost_at_any_point),
        RIG(late_replies_are_harmless),
        RIG(closing_lets_calls_finish),
        cmocka_unit_test_setup_teardown(those_who_never_finish_are_dropped, setup_impatient, teardown),
        cmocka_unit_test_setup_teardown(silent_client_is_noticed, setup_impatient, teardown),
        cmocka_unit_test_setup_teardown(slow_client_is_waited_for, setup_impatient, teardown),
        RIG(silent_server_is_noticed),
        RIG(what_is_lent_stays_until_it_was_read),
        RIG(what_is_lent_outlives_its_connection),
        cmocka_unit_test_setup_teardown(what_is_lent_waits_for_a_halted_peer, setup_impatient, teardown),
        RIG(out_of_descriptors),
        RIG(metrics_count),
        RIG(http1_on_the_same_port),
        cmocka_unit_test(http1_asks_too_much),
        RIG(random_bytes_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
