/* The HTTP/2 + gRPC state machine without sockets: two sessions over a memory pipe that cuts the bytes anywhere, and hand-made frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "wire/h2.h"

/* ---- a server that echoes, a client that remembers --------------------------------------------------------------- */

typedef struct call {
    trn_stream s;
    int done, closed;
    trn_err err;
    trn_buf *buf;
    const uint8_t *p;
    size_t n;
} call;

typedef struct side {
    trn_h2 *h;
    int open, requests, refused, goaways, settings;
    trn_code refused_code;
    bool park;
    trn_stream *last;
} side;

static int64_t align_at_11(const uint8_t *p, size_t have, size_t total)
{
    (void)p;
    return have < 11 && have < total ? -2 : 11;
}

static trn_stream *on_open(void *user)
{
    ((side *)user)->open++;
    return trn_xalloc(sizeof(trn_stream));
}
static trn_err on_route(void *user, trn_stream *s, const char *path, size_t n)
{
    (void)user;
    s->streaming = n == 6 && memcmp(path, "/a.B/S", 6) == 0;
    if (n != 6 || (memcmp(path, "/a.B/C", 6) != 0 && !s->streaming))
        return trn_errorf(TRN_UNIMPLEMENTED, "unknown method %.*s", (int)n, path);
    s->align = align_at_11;
    return TRN_OK;
}
/* A large message's tensor begins where a copy out of the sender's pages is quick. */
static void expect_aligned(const uint8_t *p, size_t n)
{
    if (n >= TRN_H2_LARGE)
        assert_int_equal((uintptr_t)(p + 11) % TRN_H2_PAGE, TRN_H2_PAGE / 2);
    else if (n > 11)
        assert_int_equal((uintptr_t)(p + 11) % 64, 0);
}
static void on_request(void *user, trn_stream *s)
{
    side *me = user;
    me->requests++;
    me->last = s;
    expect_aligned(s->in.p, s->in.n);
    if (me->park)
        return;
    trn_out_msg out = {0};
    trn_out_slice(&out, s->in.buf, s->in.p, s->in.n);
    if (!s->streaming)
        trn_h2_reply(s, TRN_OK, &out);
    else if (s->in.n == 3 && memcmp(s->in.p, "end", 3) == 0)
        trn_h2_reply(s, trn_errorf(TRN_ABORTED, "as asked"), &out);
    else
        trn_h2_send(s, &out);
}
static void on_refused(void *user, trn_stream *s, trn_code code)
{
    (void)s;
    ((side *)user)->refused++;
    ((side *)user)->refused_code = code;
}
static void on_server_closed(void *user, trn_stream *s)
{
    ((side *)user)->open--;
    trn_stream_fini(s);
    free(s);
}
static void on_done(void *user, trn_stream *s, trn_err err)
{
    (void)user;
    call *c = (call *)s;
    assert_int_equal(c->done++, 0);
    c->err = err;
    if (!err && s->in.buf)
        c->buf = trn_buf_ref(s->in.buf);
    c->p = s->in.p;
    c->n = s->in.n;
}
static void on_client_closed(void *user, trn_stream *s)
{
    ((side *)user)->open--;
    ((call *)s)->closed++;
}
static void on_goaway(void *user, uint32_t code, const char *text, size_t n)
{
    (void)code, (void)text, (void)n;
    ((side *)user)->goaways++;
}
static void on_settings(void *user) { ((side *)user)->settings++; }

static const trn_h2_hooks server_hooks = {on_open, on_route,         on_request, on_refused,
                                          NULL,    on_server_closed, on_goaway,  on_settings};
static const trn_h2_hooks client_hooks = {
    .done = on_done, .closed = on_client_closed, .goaway = on_goaway, .settings = on_settings};

static void free_call(call *c)
{
    assert_int_equal(c->closed, 1);
    assert_int_equal(c->done, 1);
    trn_err_free(c->err);
    if (c->buf)
        trn_buf_unref(c->buf);
    trn_stream_fini(&c->s);
    free(c);
}

static unsigned seed = 1;
static size_t rnd(size_t n) { return (seed = seed * 1664525 + 1013904223) / 7 % n; }

/* Moves up to `most` bytes; false: nothing to move. */
static bool pump(trn_h2 *from, trn_h2 *to, size_t most)
{
    assert_null(trn_h2_fill(from));
    struct iovec iov[4];
    int n = trn_h2_iov(from, iov, 4);
    if (n == 0)
        return false;
    size_t left = most, moved = 0;
    for (int i = 0; i < n && left > 0; i++) {
        size_t k = TRN_MIN(iov[i].iov_len, left);
        const uint8_t *p = iov[i].iov_base;
        for (size_t at = 0; at < k;) {
            uint8_t *dest;
            size_t want = trn_h2_want(to, &dest), some = 1 + rnd(most), piece = TRN_MIN(k - at, some);
            if (want > 0 && rnd(2)) { /* as the socket does it: straight to where it belongs */
                piece = TRN_MIN(piece, want);
                memcpy(dest, p + at, piece);
                assert_null(trn_h2_recv(to, dest, piece));
            } else {
                assert_null(trn_h2_recv(to, p + at, piece));
            }
            at += piece;
        }
        left -= k;
        moved += k;
    }
    trn_h2_sent(from, moved);
    return true;
}

static void pump_all(side *a, side *b, size_t most)
{
    while (pump(a->h, b->h, most) | pump(b->h, a->h, most))
        ;
}

static call *start(side *client, const char *path, trn_buf *b, size_t n)
{
    call *c = trn_xalloc(sizeof *c);
    c->s.align = align_at_11;
    trn_out_msg m = {0};
    trn_out_slice(&m, b, b->data, n);
    bool gone;
    client->open++;
    assert_null(trn_h2_call(client->h, &c->s, "x:1", path, 0, &m, &gone));
    assert_false(gone);
    return c;
}

static void open_pair(side *s, side *c)
{
    *s = (side){0};
    *c = (side){0};
    assert_null(trn_h2_new(&s->h, true, &server_hooks, s));
    assert_null(trn_h2_new(&c->h, false, &client_hooks, c));
}

static void close_pair(side *s, side *c)
{
    trn_h2_free(s->h, NULL);
    trn_h2_free(c->h, NULL);
    assert_int_equal(s->open, 0);
    assert_int_equal(c->open, 0);
}

static void bytes_may_be_cut_anywhere(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 7, 1000, 70000, 3000000};
    static const size_t sizes[] = {0, 1, 10, 11, 12, 100, 4090, 4096, 4097, 20000, 65535, 65536, 70000, 1500000};
    trn_buf *b;
    assert_null(trn_buf_new(&b, 1500000));
    for (size_t i = 0; i < b->size; i++)
        b->data[i] = (uint8_t)(i * 13 + i / 255);
    for (size_t k = 0; k < TRN_COUNTOF(pieces); k++) {
        side s, c;
        open_pair(&s, &c);
        size_t n = TRN_COUNTOF(sizes) - (pieces[k] < 1000 ? 5 : 0);
        call *calls[TRN_COUNTOF(sizes)];
        for (size_t i = 0; i < n; i++)
            calls[i] = start(&c, i == 3 ? "/nope" : "/a.B/C", b, sizes[i]);
        pump_all(&s, &c, pieces[k]);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(trn_err_code(calls[i]->err), i == 3 ? TRN_UNIMPLEMENTED : TRN_CODE_OK);
            if (i != 3) {
                assert_int_equal(calls[i]->n, sizes[i]);
                assert_memory_equal(calls[i]->p, b->data, sizes[i]);
                expect_aligned(calls[i]->p, sizes[i]);
            }
            free_call(calls[i]);
        }
        assert_int_equal(s.settings, 1);
        assert_int_equal(c.settings, 1);
        assert_true(trn_h2_peer_pingable(c.h));
        close_pair(&s, &c);
    }
    assert_int_equal(atomic_load(&b->ref), 1);
    trn_buf_unref(b);
}

/* The parked call is answered with b, and the client hears it but says nothing; how many bytes of it were lent. */
static size_t answer_with(side *s, side *c, trn_buf *b)
{
    trn_out_msg out = {0};
    trn_out_slice(&out, b, b->data, b->size);
    trn_h2_reply(s->last, TRN_OK, &out);
    for (size_t lent = 0;;) {
        struct iovec v;
        assert_null(trn_h2_fill(s->h));
        if (trn_h2_to_lend(s->h, &v)) {
            size_t k = 1 + rnd(v.iov_len); /* sockets take what they like; the rest may be lent or not */
            lent += k;
            assert_null(trn_h2_recv(c->h, v.iov_base, k));
            trn_h2_lent(s->h, k);
            if (k < v.iov_len && rnd(2)) {
                assert_int_equal(trn_h2_iov(s->h, &v, 1), 1);
                assert_null(trn_h2_recv(c->h, v.iov_base, v.iov_len));
                trn_h2_sent(s->h, v.iov_len);
            }
        } else if (!pump(s->h, c->h, 1 << 20)) {
            return lent;
        }
    }
}

static call *ask(side *s, side *c, trn_buf *b)
{
    call *k = start(c, "/a.B/C", b, 1);
    while (pump(c->h, s->h, 1 << 20))
        ;
    return k;
}

static void expect_answer(call *k, trn_buf *b)
{
    assert_int_equal(k->n, b->size);
    assert_memory_equal(k->p, b->data, b->size);
    free_call(k);
}

static void loans_end_with_the_peers_word(void **state)
{
    (void)state;
    trn_buf *b;
    assert_null(trn_buf_new(&b, 3 << 20));
    for (size_t i = 0; i < b->size; i++)
        b->data[i] = (uint8_t)(i * 7 + i / 255);
    side s, c;
    open_pair(&s, &c);
    s.park = true;
    pump_all(&s, &c, 1 << 20);
    call *k = ask(&s, &c, b);
    assert_int_equal(answer_with(&s, &c, b), 0); /* nobody said that it may */
    expect_answer(k, b);
    assert_true(trn_buf_sole(b));

    trn_h2_may_lend(s.h, true);
    k = ask(&s, &c, b);
    assert_true(answer_with(&s, &c, b) > 0);
    expect_answer(k, b);
    assert_false(trn_buf_sole(b)); /* the call is over, and all of it was read, but we do not know that */
    assert_null(trn_h2_recv(s.h, (const uint8_t *)"\0\0\10\6\1\0\0\0\0loan\0\0\0\1", 17)); /* not the one that was asked */
    assert_null(trn_h2_recv(s.h, (const uint8_t *)"\0\0\10\6\1\0\0\0\0soon\0\0\0\0", 17));
    assert_false(trn_buf_sole(b));
    pump_all(&s, &c, 1 << 20);
    assert_true(trn_buf_sole(b));

    /* Cut off in the middle: what went out is asked about all the same. */
    k = ask(&s, &c, b);
    trn_out_msg out = {0};
    trn_out_slice(&out, b, b->data, b->size);
    trn_h2_reply(s.last, TRN_OK, &out);
    struct iovec v;
    do {
        while (!trn_h2_to_lend(s.h, &v))
            assert_true(pump(s.h, c.h, 1 << 20));
        assert_null(trn_h2_recv(c.h, v.iov_base, v.iov_len));
        trn_h2_lent(s.h, v.iov_len);
    } while (rnd(2));
    trn_h2_cancel(&k->s);
    assert_false(trn_buf_sole(b));
    pump_all(&s, &c, 1 << 20);
    assert_true(trn_buf_sole(b));
    assert_int_equal(k->closed, 1);
    k->done = 1; /* cancelled calls are not told */
    free_call(k);

    /* A peer that never answers is sent copies in the end. */
    size_t lent = 0;
    trn_buf *one;
    assert_null(trn_buf_new(&one, 1));
    for (int i = 0; i < 30; i++) {
        trn_h2 *deaf = c.h;
        k = start(&c, "/a.B/C", one, 1);
        assert_null(trn_h2_fill(deaf));
        uint8_t *said = malloc(1 << 16);
        size_t n = 0;
        for (int m; (m = trn_h2_iov(deaf, &v, 1)) > 0; trn_h2_sent(deaf, v.iov_len)) {
            assert_true(n + v.iov_len <= 1 << 16);
            memcpy(said + n, v.iov_base, v.iov_len);
            n += v.iov_len;
        }
        for (size_t at = 0, len; at < n; at += 9 + len) {
            len = (size_t)said[at] << 16 | (size_t)said[at + 1] << 8 | said[at + 2];
            if (said[at + 3] != 6)
                assert_null(trn_h2_recv(s.h, said + at, 9 + len));
        }
        free(said);
        lent += answer_with(&s, &c, b);
        expect_answer(k, b);
    }
    assert_in_range(lent, TRN_H2_LEND_MAX / 4, TRN_H2_LEND_MAX + (4 << 20));
    assert_false(trn_buf_sole(b));
    trn_h2_loans *loans = trn_h2_take_loans(s.h);
    assert_non_null(loans);
    assert_null(trn_h2_take_loans(s.h));
    close_pair(&s, &c);
    assert_false(trn_buf_sole(b)); /* until somebody knows more */
    trn_h2_loans_free(loans);
    assert_true(trn_buf_sole(b));
    trn_buf_unref(b);
    trn_buf_unref(one);
}

static void a_connection_that_dies_ends_its_calls(void **state)
{
    (void)state;
    trn_buf *b;
    assert_null(trn_buf_new(&b, 3 << 20));
    memset(b->data, 1, b->size);
    for (int turn = 0; turn < 60; turn++) {
        side s, c;
        open_pair(&s, &c);
        s.park = turn % 3 == 0;
        call *calls[5];
        for (int i = 0; i < 5; i++)
            calls[i] = start(&c, "/a.B/C", b, i % 2 ? b->size : 10);
        for (int i = 0; i < turn; i++) {
            pump(c.h, s.h, 1 + (size_t)i * i * 40);
            pump(s.h, c.h, 1 + (size_t)i * 100);
        }
        if (turn % 4 == 1)
            trn_h2_cancel(&calls[1]->s), calls[1]->done = 1; /* done is not called after a cancel */
        if (turn % 4 == 2)
            pump_all(&s, &c, 1 << 20);
        close_pair(&s, &c);
        for (int i = 0; i < 5; i++)
            free_call(calls[i]);
    }
    assert_int_equal(atomic_load(&b->ref), 1);
    trn_buf_unref(b);
}

static void goaway_lets_open_calls_finish(void **state)
{
    (void)state;
    trn_buf *b;
    assert_null(trn_buf_new(&b, 100));
    memset(b->data, 1, b->size);
    side s, c;
    open_pair(&s, &c);
    s.park = true;
    call *open = start(&c, "/a.B/C", b, 10);
    pump_all(&s, &c, 1 << 20);
    assert_int_equal(s.requests, 1);
    call *late = start(&c, "/a.B/C", b, 10);
    trn_h2_goaway(s.h);
    pump(s.h, c.h, 1 << 20); /* GOAWAY arrives before `late` leaves */
    pump_all(&s, &c, 1 << 20);
    assert_int_equal(c.goaways, 1);
    assert_int_equal(trn_err_code(late->err), TRN_UNAVAILABLE);
    assert_true(late->s.refused && !late->s.started);
    assert_int_equal(open->done, 0);
    assert_true(trn_h2_alive(s.h));
    trn_h2_reply(s.last, TRN_OK, NULL);
    pump_all(&s, &c, 1 << 20);
    assert_null(open->err);
    assert_false(trn_h2_alive(s.h));
    assert_false(trn_h2_alive(c.h));
    free_call(open);
    free_call(late);
    close_pair(&s, &c);
    trn_buf_unref(b);
}

/* ---- hand-made frames ---------------------------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t p[70000];
    size_t n;
} bytes;

static void add(bytes *b, const void *p, size_t n)
{
    assert_true(b->n + n <= sizeof b->p);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void frame(bytes *b, uint8_t type, uint8_t flags, uint32_t stream, const void *p, size_t n)
{
    uint8_t h[9] = {
        (uint8_t)(n >> 16),      (uint8_t)(n >> 8),      (uint8_t)n,     type, flags, (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    add(b, h, 9);
    add(b, p, n);
}

static void header(bytes *b, const char *name, const char *value)
{
    uint8_t n = (uint8_t)strlen(name), v = (uint8_t)strlen(value);
    add(b, "\0", 1);
    add(b, &n, 1);
    add(b, name, n);
    add(b, &v, 1);
    add(b, value, v);
}

static void headers_to(bytes *b, const char *path, uint32_t stream, uint8_t flags, const char *extra_name, const char *extra_value)
{
    bytes h = {.n = 0};
    header(&h, ":method", "POST");
    header(&h, ":scheme", "http");
    header(&h, ":path", path);
    header(&h, ":authority", "x");
    header(&h, "te", "trailers");
    header(&h, "content-type", "application/grpc+proto");
    if (extra_name)
        header(&h, extra_name, extra_value);
    frame(b, 1, 4 | flags, stream, h.p, h.n);
}

static void headers(bytes *b, uint32_t stream, uint8_t flags, const char *extra_name, const char *extra_value)
{
    headers_to(b, "/a.B/C", stream, flags, extra_name, extra_value);
}

static void preface(bytes *b)
{
    b->n = 0;
    add(b, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    frame(b, 4, 0, 0, "", 0);
}

/* All that the server says, as bytes. */
static void collect(trn_h2 *h, bytes *out)
{
    out->n = 0;
    struct iovec iov[16];
    for (;;) {
        assert_null(trn_h2_fill(h));
        int n = trn_h2_iov(h, iov, 16);
        if (n == 0)
            return;
        size_t sum = 0;
        for (int i = 0; i < n; i++) {
            add(out, iov[i].iov_base, iov[i].iov_len);
            sum += iov[i].iov_len;
        }
        trn_h2_sent(h, sum);
    }
}

/* Feeds `in` to a new server; expects exactly this outcome of stream 1. */
static void expect_refusal(const char *what, const bytes *in, trn_code code)
{
    side s = {0};
    bytes *out = malloc(sizeof *out);
    assert_null(trn_h2_new(&s.h, true, &server_hooks, &s));
    assert_null(trn_h2_recv(s.h, in->p, in->n));
    if (s.refused != (code != 0) || s.refused_code != code)
        print_message("%s: refused %d with %d\n", what, s.refused, s.refused_code);
    assert_int_equal(s.refused_code, code);
    assert_int_equal(s.refused, code != 0);
    assert_int_equal(s.requests, code == 0);
    collect(s.h, out);
    assert_int_equal(s.open, 0);
    trn_h2_free(s.h, NULL);
    free(out);
}

static void bad_messages_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *what, *data;
        size_t n;
        trn_code code;
    } rows[] = {
        {"good", "\0\0\0\0\3abc", 8, TRN_CODE_OK},
        {"empty", "\0\0\0\0\0", 5, TRN_CODE_OK},
        {"compressed", "\1\0\0\0\3abc", 8, TRN_UNIMPLEMENTED},
        {"flag", "\2\0\0\0\3abc", 8, TRN_INTERNAL},
        {"short", "\0\0\0\0\4abc", 8, TRN_INTERNAL},
        {"half a prefix", "\0\0\0", 3, TRN_INTERNAL},
        {"nothing", "", 0, TRN_INTERNAL},
        {"two messages", "\0\0\0\0\1a\0\0\0\0\1b", 12, TRN_INTERNAL},
        {"two empty messages", "\0\0\0\0\0\0\0\0\0\0", 10, TRN_INTERNAL},
        {"larger than the limit", "\0\x80\0\0\0abc", 8, TRN_RESOURCE_EXHAUSTED},
    };
    bytes *in = malloc(sizeof *in);
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        preface(in);
        headers(in, 1, 0, NULL, NULL);
        frame(in, 0, 1, 1, rows[i].data, rows[i].n);
        expect_refusal(rows[i].what, in, rows[i].code);
        /* the same with padding, byte by byte, END_STREAM apart */
        preface(in);
        headers(in, 1, 0, NULL, NULL);
        for (size_t k = 0; k < rows[i].n; k++) {
            uint8_t padded[6] = {4, (uint8_t)rows[i].data[k]};
            frame(in, 0, 8, 1, padded, sizeof padded);
        }
        frame(in, 0, 1, 1, "", 0);
        expect_refusal(rows[i].what, in, rows[i].code);
    }
    preface(in);
    headers(in, 1, 1, NULL, NULL);
    expect_refusal("headers only", in, TRN_INTERNAL);
    preface(in);
    headers(in, 1, 0, "grpc-timeout", "soon");
    frame(in, 0, 1, 1, "\0\0\0\0\0", 5);
    expect_refusal("bad timeout", in, TRN_INTERNAL);
    preface(in);
    bytes h = {.n = 0};
    for (int i = 0; i < 130; i++) {
        char value[120];
        memset(value, 'v', sizeof value);
        value[119] = 0;
        header(&h, "x", value);
    }
    bytes *first = malloc(sizeof *first);
    first->n = 0;
    headers(first, 1, 0, NULL, NULL);
    first->p[4] = 0; /* no END_HEADERS: they go on in a CONTINUATION */
    add(in, first->p, first->n);
    frame(in, 9, 4, 1, h.p, h.n);
    frame(in, 0, 1, 1, "\0\0\0\0\0", 5);
    expect_refusal("many headers", in, TRN_RESOURCE_EXHAUSTED);
    free(first);
    free(in);
}

static void announced_memory_is_bounded(void **state)
{
    (void)state;
    side s = {0};
    bytes *b = malloc(sizeof *b), *out = malloc(sizeof *out);
    assert_null(trn_h2_new(&s.h, true, &server_hooks, &s));
    preface(b);
    for (uint32_t i = 0; i < 20; i++) {
        headers(b, 2 * i + 1, 0, NULL, NULL);
        frame(b, 0, 0, 2 * i + 1,
              "\0\x7f\xff\xff\xff"
              "0123456789abc",
              18); /* says 2 GiB, sends 13 bytes */
    }
    assert_null(trn_h2_recv(s.h, b->p, b->n));
    assert_int_equal(s.refused_code, TRN_RESOURCE_EXHAUSTED);
    assert_true(s.refused >= 15 && s.refused < 20);
    collect(s.h, out);
    trn_h2_free(s.h, NULL);
    assert_int_equal(s.open, 0);
    trn_buf_pool_trim(0);
    free(b);
    free(out);
}

/* What the server said on stream 1, as "data;data;…" and E when it ended: the frames' payloads without the messages' prefixes. */
static void said(char *text, const bytes *out)
{
    *text = 0;
    for (size_t i = 0; i + 9 <= out->n;) {
        const uint8_t *f = out->p + i;
        size_t n = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
        if (f[3] == 0 && f[8] == 1 && n >= 5)
            sprintf(text + strlen(text), "%.*s;", (int)n - 5, (const char *)f + 9 + 5);
        if (f[3] == 1 && f[4] & 1)
            strcat(text, "E");
        i += 9 + n;
    }
}

static void expect_said(side *s, const bytes *in, size_t piece, const char *want)
{
    bytes *out = malloc(sizeof *out), *all = calloc(1, sizeof *all);
    for (size_t i = 0; i < in->n; i += piece) {
        assert_null(trn_h2_recv(s->h, in->p + i, TRN_MIN(piece, in->n - i)));
        if (rnd(2) || i + piece >= in->n) {
            collect(s->h, out);
            add(all, out->p, out->n);
        }
    }
    char text[4096];
    said(text, all);
    assert_string_equal(text, want);
    free(out);
    free(all);
}

static void streams_answer_message_by_message(void **state)
{
    (void)state;
    static const char three[] = "\0\0\0\0\5first\0\0\0\0\0\0\0\0\0\5third", end[] = "\0\0\0\0\3end\0\0\0\0\5never";
    bytes *b = malloc(sizeof *b);
    for (size_t piece = 1; piece < 60; piece = piece * 2 + 1)
        for (int how = 0; how < 4; how++) {
            side s = {0};
            assert_null(trn_h2_new(&s.h, true, &server_hooks, &s));
            preface(b);
            headers_to(b, "/a.B/S", 1, 0, NULL, NULL);
            frame(b, 0, 0, 1, three, 12);
            frame(b, 0, how == 0, 1, three + 12, sizeof three - 1 - 12);
            if (how == 1)
                frame(b, 0, 1, 1, "", 0); /* said all, a frame later */
            if (how == 2)
                frame(b, 0, 0, 1, end, sizeof end - 1);
            if (how == 3)
                frame(b, 0, 1, 1, end, 7); /* in the middle of a message */
            expect_said(&s, b, piece, "first;;third;E");
            assert_int_equal(s.open, 0);
            assert_int_equal(s.requests, how == 2 ? 4 : 3);
            assert_int_equal(s.refused, how == 3);
            trn_h2_free(s.h, NULL);
        }
    /* A connection that dies, or takes no more calls, with a stream open; one that ends before its first message. */
    for (int how = 0; how < 3; how++) {
        side s = {.park = how == 0};
        assert_null(trn_h2_new(&s.h, true, &server_hooks, &s));
        preface(b);
        headers_to(b, "/a.B/S", 1, how == 2, NULL, NULL);
        if (how < 2)
            frame(b, 0, 0, 1, three, sizeof three - 1);
        expect_said(&s, b, b->n, how == 0 ? "" : how == 1 ? "first;;third;" : "E");
        if (how == 1) {
            trn_h2_goaway(s.h);
            b->n = 0;
            bytes *out = malloc(sizeof *out);
            collect(s.h, out);
            free(out);
            assert_false(trn_h2_alive(s.h));
        }
        assert_int_equal(s.open, how == 0);
        trn_h2_free(s.h, NULL);
        assert_int_equal(s.open, 0);
    }
    free(b);
}

/* ---- a server's bytes, by hand --------------------------------------------------------------------------------------- */

typedef struct answer {
    const char *what, *status, *type, *grpc; /* grpc-status in the first headers (NULL: none) */
    const char *data;
    size_t n;
    bool trailers;
    trn_code code;
} answer;

static void odd_answers_are_errors(void **state)
{
    (void)state;
    static const answer rows[] = {
        {"good", "200", "application/grpc", NULL, "\0\0\0\0\1a", 6, true, TRN_CODE_OK},
        {"trailers only", "200", "application/grpc", "5", NULL, 0, false, TRN_NOT_FOUND},
        {"status out of range", "200", "application/grpc", "99", NULL, 0, false, TRN_UNKNOWN},
        {"status no number", "200", "application/grpc", "x", NULL, 0, false, TRN_UNKNOWN},
        {"no message", "200", "application/grpc", "0", NULL, 0, false, TRN_INTERNAL},
        {"no trailers", "200", "application/grpc", NULL, "\0\0\0\0\1a", 6, false, TRN_UNKNOWN},
        {"404", "404", "text/html", NULL, "<html>", 6, false, TRN_UNIMPLEMENTED},
        {"503", "503", "text/html", NULL, NULL, 0, false, TRN_UNAVAILABLE},
        {"html", "200", "text/html", NULL, NULL, 0, false, TRN_UNKNOWN},
        {"compressed", "200", "application/grpc", NULL, "\1\0\0\0\1a", 6, true, TRN_UNIMPLEMENTED},
        {"two messages", "200", "application/grpc", NULL, "\0\0\0\0\1a\0\0\0\0\1b", 12, true, TRN_INTERNAL},
        {"cut", "200", "application/grpc", NULL, "\0\0\0\0\3a", 6, true, TRN_INTERNAL},
    };
    for (size_t i = 0; i < TRN_COUNTOF(rows); i++) {
        const answer *a = &rows[i];
        side c = {0};
        trn_buf *body;
        assert_null(trn_buf_new(&body, 64));
        memset(body->data, 0, body->size);
        assert_null(trn_h2_new(&c.h, false, &client_hooks, &c));
        call *k = start(&c, "/a.B/C", body, 4);
        bytes *b = malloc(sizeof *b), *h = malloc(sizeof *h);
        collect(c.h, b);
        b->n = h->n = 0;
        frame(b, 4, 0, 0, "", 0);
        header(h, ":status", a->status);
        header(h, "content-type", a->type);
        if (a->grpc)
            header(h, "grpc-status", a->grpc);
        bool last = !a->data && !a->trailers;
        frame(b, 1, last ? 5 : 4, 1, h->p, h->n);
        if (a->data)
            frame(b, 0, a->trailers ? 0 : 1, 1, a->data, a->n);
        if (a->trailers) {
            h->n = 0;
            header(h, "grpc-status", "0");
            frame(b, 1, 5, 1, h->p, h->n);
        }
        assert_null(trn_h2_recv(c.h, b->p, b->n));
        collect(c.h, b);
        if (trn_err_code(k->err) != a->code)
            print_message("%s: %s\n", a->what, k->err ? trn_err_msg(k->err) : "ok");
        assert_int_equal(trn_err_code(k->err), a->code);
        trn_h2_free(c.h, NULL);
        free_call(k);
        trn_buf_unref(body);
        free(b);
        free(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_may_be_cut_anywhere),     cmocka_unit_test(a_connection_that_dies_ends_its_calls),
        cmocka_unit_test(goaway_lets_open_calls_finish), cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(announced_memory_is_bounded),   cmocka_unit_test(odd_answers_are_errors),
        cmocka_unit_test(streams_answer_message_by_message), cmocka_unit_test(loans_end_with_the_peers_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
