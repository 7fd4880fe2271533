/* A small service for tests and benchmarks of the wire: what comes goes back, or fails, or waits. */
#ifndef TRN_TEST_ECHO_H
#define TRN_TEST_ECHO_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "wire/rpc.h"

typedef struct echo {
    _Atomic int cancelled; /* calls of Park that the client gave up */
    _Atomic int parked;
    trn_pool *pool; /* NULL: replies come from the loop */
    trn_buf *source;
} echo;

static inline void echo_reply(void *arg)
{
    trn_call *c = arg;
    const trn_msg *m = trn_call_request(c);
    trn_out_msg out = {0};
    trn_out_slice(&out, m->buf, m->p, m->n);
    trn_call_reply(c, TRN_OK, &out);
}

static inline void echo_echo(void *svc, trn_call *c) { (void)svc, echo_reply(c); }

static inline void echo_pool(void *svc, trn_call *c)
{
    echo *e = svc;
    if (e->pool)
        trn_pool_submit(e->pool, echo_reply, c);
    else
        echo_reply(c);
}

/* "<code> <message>" */
static inline void echo_fail(void *svc, trn_call *c)
{
    (void)svc;
    const trn_msg *m = trn_call_request(c);
    char *text = trn_xstrndup((const char *)m->p, m->n), *end;
    long code = strtol(text, &end, 10);
    trn_call_reply(c, trn_errorf((trn_code)code, "%s", *end ? end + 1 : ""), NULL);
    free(text);
}

typedef struct echo_parked {
    echo *e;
    trn_call *c;
} echo_parked;

static inline void echo_unpark(void *arg)
{
    echo_parked *p = arg;
    atomic_fetch_add(&p->e->cancelled, 1);
    atomic_fetch_sub(&p->e->parked, 1);
    trn_call_reply(p->c, trn_errorf(TRN_CANCELLED, "given up"), NULL);
    free(p);
}

/* Answers only when it is cancelled. */
static inline void echo_park(void *svc, trn_call *c)
{
    echo_parked *p = trn_xalloc(sizeof *p);
    p->e = svc;
    p->c = c;
    atomic_fetch_add(&p->e->parked, 1);
    trn_call_on_cancel(c, echo_unpark, p, NULL);
}

static _Atomic bool echo_hold; /* Late answers when it is over */

/* Answers from the pool a little later, whatever became of the client. */
static inline void echo_late_reply(void *arg)
{
    do
        usleep(30000);
    while (echo_hold);
    echo_reply(arg);
}

static inline void echo_late(void *svc, trn_call *c)
{
    echo *e = svc;
    trn_pool_submit(e->pool, echo_late_reply, c);
}

/* Request: a number of bytes as text; answer: that many. */
static inline void echo_source(void *svc, trn_call *c)
{
    echo *e = svc;
    const trn_msg *m = trn_call_request(c);
    char text[24] = "";
    memcpy(text, m->p, TRN_MIN(m->n, sizeof text - 1));
    size_t n = strtoull(text, NULL, 10);
    if (!e->source || e->source->size < n) {
        trn_buf *b;
        trn_err err = trn_buf_new(&b, n);
        if (err) {
            trn_call_reply(c, err, NULL);
            return;
        }
        memset(b->data, 'x', n);
        if (e->source)
            trn_buf_unref(e->source);
        e->source = b;
    }
    trn_out_msg out = {0};
    trn_out_slice(&out, e->source, e->source->data, n);
    trn_call_reply(c, TRN_OK, &out);
}

/* Answers with the number of bytes it got, as text. */
static inline void echo_sink(void *svc, trn_call *c)
{
    (void)svc;
    char text[24];
    int n = snprintf(text, sizeof text, "%zu", trn_call_request(c)->n);
    trn_out_msg out = {0};
    trn_out_bytes(&out, text, (size_t)n);
    trn_call_reply(c, TRN_OK, &out);
}

/* Wants byte 100 aligned, once it has seen 60 bytes. */
static inline int64_t echo_align(const uint8_t *p, size_t have, size_t total)
{
    (void)p;
    return total < 200 ? -1 : have < 60 ? -2 : 100;
}

static inline void echo_aligned(void *svc, trn_call *c)
{
    (void)svc;
    const trn_msg *m = trn_call_request(c);
    trn_out_msg out = {0};
    trn_out_bytes(&out, ((uintptr_t)(m->p + 100) & 63) == 0 ? "yes" : "no",
                  ((uintptr_t)(m->p + 100) & 63) == 0 ? 3 : 2);
    trn_call_reply(c, TRN_OK, &out);
}

/* Of a stream: "fail" ends it, "park" is answered when it is cancelled, everything else comes back, from the pool when it is long. */
static inline void echo_talk(void *svc, trn_call *c)
{
    const trn_msg *m = trn_call_request(c);
    if (m->n == 4 && memcmp(m->p, "fail", 4) == 0)
        trn_call_reply(c, trn_errorf(TRN_OUT_OF_RANGE, "100%% wrong ä"), NULL);
    else if (m->n == 4 && memcmp(m->p, "park", 4) == 0)
        echo_park(svc, c);
    else if (m->n % 3 == 1)
        echo_pool(svc, c);
    else
        echo_reply(c);
}

/* How many parked calls their clients gave up, how many wait. */
static inline void echo_count(void *svc, trn_call *c)
{
    echo *e = svc;
    char text[48];
    int n = snprintf(text, sizeof text, "%d %d", atomic_load(&e->cancelled), atomic_load(&e->parked));
    trn_out_msg out = {0};
    trn_out_bytes(&out, text, (size_t)n);
    trn_call_reply(c, TRN_OK, &out);
}

static const trn_rpc_method echo_methods[] = {
    {.path = "/echo.Echo/Echo", .handle = echo_echo},
    {.path = "/echo.Echo/Pool", .handle = echo_pool},
    {.path = "/echo.Echo/Fail", .handle = echo_fail},
    {.path = "/echo.Echo/Park", .handle = echo_park},
    {.path = "/echo.Echo/Late", .handle = echo_late},
    {.path = "/echo.Echo/Source", .handle = echo_source},
    {.path = "/echo.Echo/Sink", .handle = echo_sink},
    {.path = "/echo.Echo/Small", .handle = echo_echo, .max_request = 1024},
    {.path = "/echo.Echo/Aligned", .handle = echo_aligned, .align = echo_align},
    {.path = "/echo.Echo/Talk", .handle = echo_talk, .stream = true},
    {.path = "/echo.Echo/SmallTalk", .handle = echo_talk, .max_request = 1024, .stream = true},
    {.path = "/echo.Echo/Count", .handle = echo_count},
    {0},
};

#endif
