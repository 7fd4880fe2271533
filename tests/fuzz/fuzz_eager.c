/* A coordinator's calls, through EagerService's own handlers and on into kernels, without a socket. Input: calls one after the other, each a byte for the method,
 * two for the length, the message. Every call must be answered exactly once, at the latest when its client has gone; nothing may outlive the contexts.
 * File ops stay inside a folder that does not exist. */
#define trn_call_request fuzz_request
#define trn_call_reply fuzz_reply
#define trn_call_on_cancel fuzz_on_cancel
#define trn_reply_pb fuzz_reply_pb
#define trn_request_pb fuzz_request_pb
#define trn_eager_serve fuzz_serve
#define trn_agent_connect fuzz_connect
#include "eager/service.c"

#include "proto/pb.h"
#include "exec/waits.h"
#include "worker/peers.h"

#include <pthread.h>
#include <time.h>

static void *fuzz_forgotten;

struct trn_call {
    trn_msg m;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int replies;
    trn_fn fn, drop;
    void *arg;
};

const trn_msg *trn_call_request(const trn_call *c) { return &c->m; }

void trn_call_on_cancel(trn_call *c, trn_fn fn, void *arg, trn_fn drop)
{
    c->fn = fn;
    c->arg = arg;
    c->drop = drop;
}

void trn_call_reply(trn_call *c, trn_err err, trn_out_msg *body)
{
    trn_err_free(err);
    if (body)
        trn_out_fini(body);
    pthread_mutex_lock(&c->mu);
    c->replies++;
    pthread_cond_signal(&c->cv);
    pthread_mutex_unlock(&c->mu);
}

void *trn_request_pb(trn_arena *a, trn_call *call, const ProtobufCMessageDescriptor *d)
{
    ProtobufCMessage *msg = NULL;
    trn_err err = trn_pb_unpack(&msg, a, d, call->m.p, call->m.n);
    if (err)
        trn_call_reply(call, err, NULL);
    return msg;
}

void trn_reply_pb(trn_call *call, const ProtobufCMessage *msg)
{
    trn_sb s = {0};
    trn_pb_pack(&s, msg); /* reads every byte of the answer */
    trn_sb_fini(&s);
    trn_call_reply(call, TRN_OK, NULL);
}

/* No fuzzer calls an address that it has made up: registering fails, ends well, or goes on until the client leaves. */
void trn_agent_connect(trn_eager *e, const Tensorflow__CoordinationServiceConfig *cfg, const trn_wsession *s, trn_agent_done done, void *arg)
{
    (void)e, (void)s;
    switch (cfg->heartbeat_timeout_in_ms % 3) {
    case 0:
        done(arg, TRN_OK);
        return;
    case 1:
        done(arg, trn_errorf(TRN_UNAVAILABLE, "no leader"));
        return;
    default: /* nobody answers: the reference is the agent's, which has gone */
        fuzz_forgotten = arg;
    }
}

static bool answered(trn_call *c, int ms)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ms / 1000;
    end.tv_nsec += ms % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000)
        end.tv_sec++, end.tv_nsec -= 1000000000;
    pthread_mutex_lock(&c->mu);
    while (!c->replies && pthread_cond_timedwait(&c->cv, &c->mu, &end) == 0)
        ;
    bool yes = c->replies > 0;
    pthread_mutex_unlock(&c->mu);
    return yes;
}

static void call(trn_eager *e, void (*handle)(void *, trn_call *), const uint8_t *p, size_t n)
{
    trn_call c = {.m = {.p = p, .n = n}, .mu = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER};
    handle(e, &c);
    if (!answered(&c, 20)) { /* waits for a peer that there is not: the client gives up */
        if (c.fn)
            c.fn(c.arg);
        if (!answered(&c, 60000))
            abort();
    }
    pthread_mutex_lock(&c.mu);
    if (c.replies != 1)
        abort();
    pthread_mutex_unlock(&c.mu);
    if (c.drop)
        c.drop(c.arg);
    if (fuzz_forgotten)
        join_over(fuzz_forgotten, TRN_OK);
    fuzz_forgotten = NULL;
}

static trn_err open_worker(trn_worker **out, trn_loop **loop)
{
    static const char spec[] = "{\"ps\": [\"localhost:1\"]}";
    static const char *const nowhere[] = {"/nonexistent/folder"};
    static _Atomic int background;
    static trn_exec_env env;
    trn_cluster *cluster;
    TRN_TRY(trn_cluster_from_json(&cluster, spec, sizeof spec - 1));
    TRN_TRY(trn_loop_open(loop, "loop"));
    env = (trn_exec_env){.intra = 1, .allow_paths = nowhere, .n_allow_paths = 1, .background = &background};
    TRN_TRY(trn_pool_open(&env.pool, 1, "pool"));
    TRN_TRY(trn_pool_open(&env.disk, 1, "disk"));
    env.waits = trn_waits_new();
    *out = trn_worker_new(&(trn_worker_opts){cluster, "ps", 0, 1, &env, trn_peers_new(loop, 1, "ps/0")});
    trn_cluster_unref(cluster);
    return TRN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const methods[])(void *, trn_call *) = {create_context, update_context, enqueue_call, run_component, wait_queue_done, keep_alive, close_context};
    static trn_eager *e;
    static trn_worker *w; /* for as long as we live */
    if (!e) {
        trn_log_set_level(TRN_LOG_OFF);
        static trn_loop *loop; /* peers keep where it is */
        if (open_worker(&w, &loop))
            abort();
        e = trn_eager_new(w, loop);
    }
    for (size_t at = 0; at + 3 <= size;) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8, left = size - at - 3;
        n = n < left ? n : left;
        call(e, methods[data[at] % TRN_COUNTOF(methods)], data + at + 3, n);
        at += 3 + n;
    }
    for (;;) {
        trn_ectx *c = NULL;
        const char *key;
        size_t len, it = 0;
        void *v;
        trn_lock(&e->mu);
        if (trn_map_next(e->contexts, &it, &key, &len, &v))
            c = trn_ectx_ref(v);
        trn_unlock(&e->mu);
        if (!c)
            break;
        trn_ectx_close(c, TRN_ABORTED, "the end");
        trn_ectx_unref(c);
    }
    trn_eager_stats left = trn_eager_count(e);
    if (left.contexts || left.handles)
        abort();
    return 0;
}
