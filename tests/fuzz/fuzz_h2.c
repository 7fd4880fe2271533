/* A peer's bytes on a gRPC connection, server's and client's side, HTTP/1 too.
 * Byte 0: bit 0 client side, bit 1 HTTP/1, bit 2 without the preface and SETTINGS; byte 1: size of the pieces it comes in. The rest is the stream. */
#include <stdlib.h>

#include "wire/h2.h"
#include "wire/http1.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t align(const uint8_t *p, size_t have, size_t total) { return have < 7 && have < total ? -2 : p[0] % 64; }

/* ---- server ----------------------------------------------------------------------------------------------------- */

static trn_stream *hook_open(void *user)
{
    (void)user;
    return trn_xalloc(sizeof(trn_stream));
}

static trn_err hook_route(void *user, trn_stream *s, const char *path, size_t n)
{
    (void)user;
    if (n == 0 || path[n - 1] == '?')
        return trn_errorf(TRN_UNIMPLEMENTED, "unknown method %.*s", (int)n, path);
    s->align = align;
    if (path[n - 1] == 's')
        s->max_in = 100;
    s->streaming = path[n - 1] == 't';
    return TRN_OK;
}

static void hook_request(void *user, trn_stream *s)
{
    (void)user;
    uint8_t sum = 0;
    for (size_t i = 0; i < s->in.n; i++)
        sum += s->in.p[i];
    trn_out_msg out = {0};
    if (s->in.n > 0 && s->in.p[0] == 'p')
        return; /* parked for ever */
    if (s->in.n > 0 && s->in.p[0] == 'e') {
        trn_h2_reply(s, trn_errorf(TRN_ABORTED, "no: %d", sum), NULL);
        return;
    }
    trn_out_slice(&out, s->in.buf, s->in.p, s->in.n);
    if (s->streaming)
        trn_h2_send(s, &out);
    else
        trn_h2_reply(s, TRN_OK, &out);
}

static void hook_refused(void *user, trn_stream *s, trn_code code) { (void)user, (void)s, (void)code; }
static void hook_done(void *user, trn_stream *s, trn_err err)
{
    (void)user, (void)s;
    trn_err_free(err);
}
static void hook_closed(void *user, trn_stream *s)
{
    (void)user;
    trn_stream_fini(s);
    free(s);
}
static void hook_goaway(void *user, uint32_t code, const char *text, size_t n)
{
    (void)user, (void)code, (void)text, (void)n;
}
static void hook_settings(void *user) { (void)user; }

static const trn_h2_hooks hooks = {hook_open, hook_route,  hook_request, hook_refused,
                                   hook_done, hook_closed, hook_goaway,  hook_settings};

static bool drain(trn_h2 *h)
{
    trn_err err = trn_h2_fill(h);
    struct iovec iov[8];
    for (int n; !err && (n = trn_h2_iov(h, iov, 8)) > 0;) {
        size_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += iov[i].iov_len;
        size_t taken = sum - sum / 3; /* sockets rarely take everything */
        if (trn_h2_to_lend(h, iov))
            trn_h2_lent(h, TRN_MIN(taken, iov[0].iov_len));
        else
            trn_h2_sent(h, taken);
        err = trn_h2_pending(h) < 100 ? trn_h2_fill(h) : TRN_OK;
    }
    bool ok = !err;
    trn_err_free(err);
    return ok && trn_h2_alive(h);
}

static bool feed(trn_h2 *h, const uint8_t *p, size_t n)
{
    while (n > 0) {
        uint8_t *dest;
        size_t want = trn_h2_want(h, &dest), k = n;
        const uint8_t *from = p;
        if (want > 0) {
            k = TRN_MIN(n, want);
            memcpy(dest, p, k);
            from = dest;
        }
        trn_err err = trn_h2_recv(h, from, k);
        if (err) {
            trn_err_free(err);
            return false;
        }
        p += k;
        n -= k;
    }
    return true;
}

static void http_get(void *user, const char *path, const char *query, trn_http_reply *r)
{
    (void)user;
    trn_sb_addf(&r->body, "%s %s", path, query);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    bool client = data[0] & 1, http1 = data[0] & 2, bare = data[0] & 4;
    size_t piece = data[1] ? data[1] : 65536;
    data += 2;
    size -= 2;
    if (http1) {
        trn_http1 h1 = {0};
        trn_sb out = {0};
        for (size_t at = 0; at < size; at += TRN_MIN(piece, size - at))
            if (!trn_http1_recv(&h1, data + at, TRN_MIN(piece, size - at), &out, http_get, NULL))
                break;
        trn_sb_fini(&out);
        trn_http1_fini(&h1);
        return 0;
    }
    trn_h2 *h;
    trn_err err = trn_h2_new(&h, !client, &hooks, NULL);
    if (err)
        abort();
    trn_h2_may_lend(h, true);
    trn_stream *calls[4] = {0};
    for (int i = 0; client && i < 4; i++) {
        calls[i] = trn_xalloc(sizeof *calls[i]);
        calls[i]->align = align;
        trn_out_msg m = {0};
        trn_out_bytes(&m, "hello", 5);
        bool gone;
        err = trn_h2_call(h, calls[i], "localhost:1", "/a.B/C", (uint64_t)i, &m, &gone);
        if (err || gone)
            abort();
    }
    bool ok = drain(h);
    if (ok && client && data[0] & 1)
        trn_h2_cancel(calls[3]);
    static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    if (ok && !bare)
        ok = client ? feed(h, preface + 24, 9) : feed(h, preface, 33);
    for (size_t at = 0; ok && at < size; at += TRN_MIN(piece, size - at))
        ok = feed(h, data + at, TRN_MIN(piece, size - at)) && drain(h);
    trn_h2_free(h, NULL);
    return 0;
}
