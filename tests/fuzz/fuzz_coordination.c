/* CoordinationService's handlers, without a socket: tasks that register, beat, fail, wait at barriers and for values, in any order. Input: calls one after the other,
 * each a byte for the method (its high bit: the client leaves before it is answered), two for the length, the message. Every call is answered exactly once: at
 * the latest when the service ends. */
#define trn_call_request fuzz_request
#define trn_call_reply fuzz_reply
#define trn_call_on_cancel fuzz_on_cancel
#define trn_reply_pb fuzz_reply_pb
#define trn_request_pb fuzz_request_pb
#define trn_call_pb fuzz_call_pb
#define trn_coord_serve fuzz_serve
#define trn_coord_begin fuzz_begin
#define trn_coord__end fuzz_end
#define trn_agent__told fuzz_told
#include "eager/coordination.c"

#include "exec/waits.h"
#include "worker/peers.h"

struct trn_call {
    trn_msg m;
    int replies;
    trn_fn fn, drop;
    void *arg;
};

const trn_msg *trn_call_request(const trn_call *c) { return &c->m; }

void trn_call_on_cancel(trn_call *c, trn_fn fn, void *arg, trn_fn let_go)
{
    if (c->fn)
        abort();
    c->fn = fn;
    c->arg = arg;
    c->drop = let_go;
}

void trn_call_reply(trn_call *c, trn_err err, trn_out_msg *body)
{
    trn_err_free(err);
    if (body)
        trn_out_fini(body);
    c->replies++;
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

void trn_call_pb(trn_channel *ch, const char *path, const ProtobufCMessage *msg, uint64_t deadline_ns, bool wait_for_ready, trn_rpc **rpc, trn_rpc_done done, void *arg)
{
    (void)ch, (void)path, (void)deadline_ns, (void)wait_for_ready, (void)rpc;
    trn_sb s = {0};
    trn_pb_pack(&s, msg);
    trn_sb_fini(&s);
    done(arg, trn_errorf(TRN_UNAVAILABLE, "there is nobody"), NULL);
}

void trn_agent__told(trn_eager *e, trn_err err)
{
    (void)e;
    trn_err_free(err);
}

static trn_err open_eager(trn_eager **out)
{
    static trn_loop *loop;
    static trn_exec_env env;
    trn_cluster *cluster;
    static const char spec[] = "{\"ps\": [\"localhost:1\"], \"worker\": [\"localhost:2\", \"localhost:3\"]}";
    TRN_TRY(trn_cluster_from_json(&cluster, spec, sizeof spec - 1));
    TRN_TRY(trn_loop_open(&loop, "loop"));
    TRN_TRY(trn_pool_open(&env.pool, 1, "pool"));
    TRN_TRY(trn_pool_open(&env.disk, 1, "disk"));
    env.waits = trn_waits_new();
    *out = trn_eager_new(trn_worker_new(&(trn_worker_opts){cluster, "ps", 0, 1, &env, trn_peers_new(&loop, 1, "ps/0")}), loop);
    trn_cluster_unref(cluster);
    return TRN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const methods[])(void *, trn_call *) = {register_task,  heartbeat,     wait_for_all, shutdown_task, reset_task,   report_to_task, report_to_service, get_task_state,
                                                          insert_value,   get_value,     try_get_value, get_directory, delete_value, barrier_call,   cancel_barrier};
    static trn_eager *e; /* for as long as we live */
    static trn_wsession *s;
    if (!e) {
        trn_log_set_level(TRN_LOG_OFF);
        if (open_eager(&e))
            abort();
        trn_wsession_opts o = {.handle = "coordinated"};
        if (trn_worker_session_from_def(e->w, &o, NULL) || trn_worker_session(&s, e->w, "coordinated", true))
            abort();
    }
    Tensorflow__CoordinatedJob ps = TENSORFLOW__COORDINATED_JOB__INIT, worker = ps, *jobs[] = {&ps, &worker};
    ps.name = (char *)"ps";
    ps.num_tasks = 1;
    worker.name = (char *)"worker";
    worker.num_tasks = 2;
    Tensorflow__CoordinationServiceConfig cfg = TENSORFLOW__COORDINATION_SERVICE_CONFIG__INIT;
    cfg.service_type = (char *)"standalone";
    cfg.service_leader = (char *)"/job:ps/replica:0/task:0";
    cfg.heartbeat_timeout_in_ms = 60000;
    cfg.shutdown_barrier_timeout_in_ms = size && data[0] & 1 ? 1000 : 0;
    cfg.allow_new_incarnation_to_reconnect = size && data[0] & 2;
    cfg.coordinated_job_list = jobs;
    cfg.n_coordinated_job_list = 2;
    trn_coord_begin(e, &cfg, s);
    trn_call **calls = NULL;
    int n_calls = 0, cap = 0;
    for (size_t at = 0; at + 3 <= size && n_calls < 256;) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8, left = size - at - 3;
        n = n < left ? n : left;
        trn_call *c = trn_xalloc(sizeof *c);
        c->m = (trn_msg){.p = data + at + 3, .n = n};
        TRN_PUSH(calls, n_calls, cap, c);
        methods[(data[at] & 127) % TRN_COUNTOF(methods)](e, c);
        if (data[at] & 128 && c->fn && !c->replies)
            c->fn(c->arg);
        at += 3 + n;
    }
    trn_coord__end(e, "the end");
    for (int i = 0; i < n_calls; i++) {
        if (calls[i]->replies != 1)
            abort();
        if (calls[i]->drop)
            calls[i]->drop(calls[i]->arg);
        free(calls[i]);
    }
    free(calls);
    return 0;
}
