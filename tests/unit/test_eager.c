/* EagerService, as a coordinator sees it: contexts, handles, ops, functions; everything that is not there is an error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <cmocka.h>

#include <trainera/session.h>

#include "check.h"
#include "proto/eager.pb-c.h"
#include "proto/pb.h"
#include "proto/textproto.h"
#include "tensor/tensor_pb.h"
#include "wire/codec.h"
#include "wire/rpc.h"

#define ID 0xfedcba9876543210ull

static trn_server *server;
static trn_loop *loop;
static trn_channel *channel;

typedef struct answer {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool done;
    trn_err err;
    trn_arena *a;
    ProtobufCMessage *msg;
    const ProtobufCMessageDescriptor *type;
} answer;

static void answered(void *arg, trn_err err, const trn_msg *m)
{
    answer *w = arg;
    pthread_mutex_lock(&w->mu);
    w->err = err;
    if (!err && w->type)
        w->err = trn_pb_unpack(&w->msg, w->a, w->type, m->p, m->n);
    w->done = true;
    pthread_cond_signal(&w->cv);
    pthread_mutex_unlock(&w->mu);
}

/* The answer lives until the next call. */
static trn_err call(void *out, const ProtobufCMessageDescriptor *type, const char *method, const ProtobufCMessage *q)
{
    static trn_arena *last;
    trn_arena_free(last);
    answer w = {.mu = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER, .a = last = trn_arena_new(), .type = type};
    if (!q) {
        trn_arena_free(last);
        last = NULL;
        return TRN_OK;
    }
    char path[100];
    snprintf(path, sizeof path, "/tensorflow.eager.EagerService/%s", method);
    trn_out_msg m = {0};
    trn_sb s = {0};
    trn_pb_pack(&s, q);
    trn_out_sb(&m, &s);
    trn_channel_call(NULL, channel, path, &m, &(trn_call_opts){0}, answered, &w);
    pthread_mutex_lock(&w.mu);
    while (!w.done)
        pthread_cond_wait(&w.cv, &w.mu);
    pthread_mutex_unlock(&w.mu);
    if (out)
        *(void **)out = w.msg;
    return w.err;
}

static void expect(trn_err err, trn_code code, const char *part)
{
    assert_non_null(err);
    if (trn_err_code(err) != code || !strstr(trn_err_msg(err), part))
        fail_msg("%s: %s", trn_code_name(trn_err_code(err)), trn_err_msg(err));
    trn_err_free(err);
}

static void good(trn_err err)
{
    if (err)
        fail_msg("%s: %s", trn_code_name(trn_err_code(err)), trn_err_msg(err));
}

static void create(uint64_t id, uint64_t view, int64_t keep)
{
    Tensorflow__Eager__CreateContextRequest q = TENSORFLOW__EAGER__CREATE_CONTEXT_REQUEST__INIT;
    q.context_id = id;
    q.context_view_id = view;
    q.keep_alive_secs = keep;
    Tensorflow__Eager__CreateContextResponse *r;
    good(call(&r, &tensorflow__eager__create_context_response__descriptor, "CreateContext", &q.base));
    assert_int_equal(r->n_device_attributes, 1);
    assert_string_equal(r->device_attributes[0]->device_type, "CPU");
}

static trn_err enqueue(Tensorflow__Eager__EnqueueResponse **r, uint64_t id, Tensorflow__Eager__QueueItem **items, size_t n)
{
    Tensorflow__Eager__EnqueueRequest q = TENSORFLOW__EAGER__ENQUEUE_REQUEST__INIT;
    q.context_id = id;
    q.queue = items;
    q.n_queue = n;
    return call(r, &tensorflow__eager__enqueue_response__descriptor, "Enqueue", &q.base);
}

/* Queue items, valid until the arena goes. */
static trn_arena *mem;

static Tensorflow__Eager__QueueItem *item(int kind)
{
    Tensorflow__Eager__QueueItem *i = trn_arena_alloc(mem, sizeof *i);
    tensorflow__eager__queue_item__init(i);
    i->item_case = (Tensorflow__Eager__QueueItem__ItemCase)kind;
    return i;
}

static Tensorflow__Eager__RemoteTensorHandle *handle(int64_t op, int output)
{
    Tensorflow__Eager__RemoteTensorHandle *h = trn_arena_alloc(mem, sizeof *h);
    tensorflow__eager__remote_tensor_handle__init(h);
    h->op_id = op;
    h->output_num = output;
    return h;
}

static Tensorflow__Eager__QueueItem *given(int64_t op, float v)
{
    Tensorflow__Eager__QueueItem *i = item(TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_SEND_TENSOR);
    Tensorflow__Eager__SendTensorOp *s = i->send_tensor = trn_arena_alloc(mem, sizeof *s);
    tensorflow__eager__send_tensor_op__init(s);
    s->op_id = op;
    s->n_tensors = 1;
    s->tensors = trn_arena_alloc(mem, sizeof *s->tensors);
    Tensorflow__TensorProto *t = s->tensors[0] = trn_arena_alloc(mem, sizeof *t);
    tensorflow__tensor_proto__init(t);
    t->dtype = TENSORFLOW__DATA_TYPE__DT_FLOAT;
    t->n_float_val = 1;
    t->float_val = trn_arena_dup(mem, &v, sizeof v);
    return i;
}

static Tensorflow__Eager__QueueItem *run(int64_t id, const char *op, const int64_t *in, int n_in, const char *type_attr)
{
    Tensorflow__Eager__QueueItem *i = item(TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_OPERATION);
    Tensorflow__Eager__Operation *o = i->operation = trn_arena_alloc(mem, sizeof *o);
    tensorflow__eager__operation__init(o);
    o->id = id;
    o->name = trn_arena_strdup(mem, op);
    o->op_inputs = trn_arena_alloc(mem, sizeof *o->op_inputs * (size_t)(n_in + 1));
    for (int k = 0; k < n_in; k++) {
        Tensorflow__Eager__Operation__Input *x = o->op_inputs[o->n_op_inputs++] = trn_arena_alloc(mem, sizeof *x);
        tensorflow__eager__operation__input__init(x);
        x->item_case = TENSORFLOW__EAGER__OPERATION__INPUT__ITEM_REMOTE_HANDLE;
        x->remote_handle = handle(in[k], 0);
    }
    if (type_attr) {
        Tensorflow__Eager__Operation__AttrsEntry *e = trn_arena_alloc(mem, sizeof *e);
        tensorflow__eager__operation__attrs_entry__init(e);
        e->key = trn_arena_strdup(mem, type_attr);
        e->value = trn_arena_alloc(mem, sizeof *e->value);
        tensorflow__attr_value__init(e->value);
        e->value->value_case = TENSORFLOW__ATTR_VALUE__VALUE_TYPE;
        e->value->type = TENSORFLOW__DATA_TYPE__DT_FLOAT;
        o->attrs = trn_arena_alloc(mem, sizeof *o->attrs);
        o->attrs[o->n_attrs++] = e;
    }
    return i;
}

static void test_ops(void **state)
{
    create(ID, 0, 600);
    Tensorflow__Eager__EnqueueResponse *r;
    Tensorflow__Eager__QueueItem *drop = item(TENSORFLOW__EAGER__QUEUE_ITEM__ITEM_HANDLE_TO_DECREF);
    drop->handle_to_decref = handle(1, 0);
    Tensorflow__Eager__QueueItem *q[] = {given(1, 3), given(2, 4), run(3, "AddV2", (int64_t[]){1, 2}, 2, "T"), run(-1, "Mul", (int64_t[]){3, 3}, 2, "T"), drop};
    good(enqueue(&r, ID, q, 5));
    assert_int_equal(r->n_queue_response, 5);
    assert_int_equal(r->queue_response[2]->n_shape, 1);
    assert_int_equal(r->queue_response[3]->n_tensor, 1); /* without an id the result comes back */
    trn_tensor *t;
    good(trn_tensor_from_pb(&t, r->queue_response[3]->tensor[0]));
    assert_true(TRN_DATA(t, float)[0] == 49);
    trn_tensor_unref(t);
    /* Dropped is gone; dropped twice is an error; so is what never was, and an op that is none. */
    expect(enqueue(&r, ID, (Tensorflow__Eager__QueueItem *[]){run(5, "Neg", (int64_t[]){1}, 1, "T")}, 1), TRN_INVALID_ARGUMENT, "Unable to find the relevant tensor remote_handle");
    expect(enqueue(&r, ID, &drop, 1), TRN_INVALID_ARGUMENT, "Op ID: 1");
    expect(enqueue(&r, ID, (Tensorflow__Eager__QueueItem *[]){run(6, "NoSuchOp", NULL, 0, NULL)}, 1), TRN_UNIMPLEMENTED, "NoSuchOp");
    Tensorflow__Eager__QueueItem *f = run(7, "no_such_function", NULL, 0, NULL);
    f->operation->is_function = true;
    expect(enqueue(&r, ID, &f, 1), TRN_NOT_FOUND, "no_such_function");
    expect(enqueue(&r, ID, (Tensorflow__Eager__QueueItem *[]){item(0)}, 1), TRN_UNIMPLEMENTED, "queue item");
    /* What came before an error has happened. */
    expect(enqueue(&r, ID, (Tensorflow__Eager__QueueItem *[]){given(8, 1), run(9, "Neg", (int64_t[]){77}, 1, "T")}, 2), TRN_INVALID_ARGUMENT, "Op ID: 77");
    good(enqueue(&r, ID, (Tensorflow__Eager__QueueItem *[]){run(10, "Neg", (int64_t[]){8}, 1, "T")}, 1));
}

static void test_contexts(void **state)
{
    Tensorflow__Eager__EnqueueResponse *r;
    expect(enqueue(&r, 12345, NULL, 0), TRN_ABORTED, "Unable to find a context_id");
    create(77, 3, 600);
    Tensorflow__Eager__CreateContextRequest again = TENSORFLOW__EAGER__CREATE_CONTEXT_REQUEST__INIT;
    again.context_id = 77;
    again.context_view_id = 2;
    expect(call(NULL, NULL, "CreateContext", &again.base), TRN_INVALID_ARGUMENT, "already exists");
    good(enqueue(&r, 77, (Tensorflow__Eager__QueueItem *[]){given(1, 2)}, 1));
    create(77, 3, 600); /* made anew: what it held is gone */
    expect(enqueue(&r, 77, (Tensorflow__Eager__QueueItem *[]){run(2, "Neg", (int64_t[]){1}, 1, "T")}, 1), TRN_INVALID_ARGUMENT, "Op ID: 1");
    Tensorflow__Eager__UpdateContextRequest u = TENSORFLOW__EAGER__UPDATE_CONTEXT_REQUEST__INIT;
    u.context_id = 77;
    u.context_view_id = 9;
    expect(call(NULL, NULL, "UpdateContext", &u.base), TRN_INVALID_ARGUMENT, "view #3");
    u.context_view_id = 4;
    good(call(NULL, NULL, "UpdateContext", &u.base));
    Tensorflow__Eager__KeepAliveRequest k = TENSORFLOW__EAGER__KEEP_ALIVE_REQUEST__INIT;
    Tensorflow__Eager__KeepAliveResponse *kr;
    k.context_id = 77;
    good(call(&kr, &tensorflow__eager__keep_alive_response__descriptor, "KeepAlive", &k.base));
    assert_int_equal(kr->context_view_id, 4);
    Tensorflow__Eager__CloseContextRequest c = TENSORFLOW__EAGER__CLOSE_CONTEXT_REQUEST__INIT;
    c.context_id = 77;
    c.context_view_id = 3; /* an older view's wish */
    good(call(NULL, NULL, "CloseContext", &c.base));
    good(enqueue(&r, 77, NULL, 0));
    c.context_view_id = 4;
    good(call(NULL, NULL, "CloseContext", &c.base));
    expect(enqueue(&r, 77, NULL, 0), TRN_ABORTED, "77");
    good(call(NULL, NULL, "CloseContext", &c.base)); /* twice is fine */
    Tensorflow__Eager__RunComponentFunctionRequest f = TENSORFLOW__EAGER__RUN_COMPONENT_FUNCTION_REQUEST__INIT;
    f.context_id = ID;
    expect(call(NULL, NULL, "RunComponentFunction", &f.base), TRN_INTERNAL, "component functions");
    f.context_id = 1;
    expect(call(NULL, NULL, "RunComponentFunction", &f.base), TRN_ABORTED, "context_id");
}

/* ---- a worker of a coordinator: its functions are spread over a ps and itself ------------------------------------------ */

#define PS "/job:ps/replica:0/task:0/device:CPU:0"
#define WORKER "/job:worker/replica:0/task:0/device:CPU:0"

/* A call to one of the tasks, written down as text. */
static trn_err told(void *out, const ProtobufCMessageDescriptor *type, trn_channel *to, const char *method, const ProtobufCMessageDescriptor *request, const char *text)
{
    trn_sb bytes = {0};
    good(trn_textproto_encode(&bytes, request, text, strlen(text)));
    ProtobufCMessage *q;
    good(trn_pb_unpack(&q, mem, request, (const uint8_t *)bytes.p, bytes.n));
    trn_channel *was = channel;
    channel = to;
    trn_err err = call(out, type, method, q);
    channel = was;
    trn_sb_fini(&bytes);
    return err;
}

static trn_err queued(Tensorflow__Eager__EnqueueResponse **r, trn_channel *to, const char *text)
{
    return told(r, &tensorflow__eager__enqueue_response__descriptor, to, "Enqueue", &tensorflow__eager__enqueue_request__descriptor, text);
}

static uint64_t incarnation(trn_channel *at)
{
    Tensorflow__Eager__CreateContextResponse *r;
    good(told(&r, &tensorflow__eager__create_context_response__descriptor, at, "CreateContext", &tensorflow__eager__create_context_request__descriptor, "context_id: 1 keep_alive_secs: 600"));
    return r->device_attributes[0]->incarnation;
}

#define F(name, value) "attr { key: \"" name "\" value { " value " } } "
#define A(name, value) "attrs { key: \"" name "\" value { " value " } } "
#define IN(op, device, type) "op_inputs { remote_handle { op_id: " op " device: \"" device "\" op_device: \"" device "\" dtype: " type " } } "
/* f(v, x): y = v * x, then v += x; z = v again, said to be on the ps. */
#define BODY                                                                                                                                          \
    "signature { name: \"f\" input_arg { name: \"v\" type: DT_RESOURCE } input_arg { name: \"x\" type: DT_FLOAT } output_arg { name: \"y\" type: DT_FLOAT } "  \
    "output_arg { name: \"z\" type: DT_FLOAT } is_stateful: true control_output: \"add\" } "                                                           \
    "node_def { name: \"read\" op: \"ReadVariableOp\" input: \"v\" " F("dtype", "type: DT_FLOAT") "} "                                                   \
    "node_def { name: \"mul\" op: \"Mul\" input: \"read:value:0\" input: \"x\" " F("T", "type: DT_FLOAT") "} "                                           \
    "node_def { name: \"add\" op: \"AssignAddVariableOp\" input: \"v\" input: \"x\" input: \"^read\" " F("dtype", "type: DT_FLOAT") "} "                 \
    "node_def { name: \"again\" op: \"ReadVariableOp\" device: \"" PS "\" input: \"v\" input: \"^add\" " F("dtype", "type: DT_FLOAT") "} "               \
    "ret { key: \"y\" value: \"mul:z:0\" } ret { key: \"z\" value: \"again:value:0\" } control_ret { key: \"add\" value: \"add\" } "

/* A ps and a worker, both in a context 5 of both. */
typedef struct pair {
    trn_cluster *spec;
    trn_server *task[2];
    trn_channel *to[2];
} pair;

static void pair_open(pair *p)
{
    int port[2];
    free_ports(port, 2);
    char json[128], text[4096], jobs[512];
    snprintf(json, sizeof json, "{\"ps\": [\"127.0.0.1:%d\"], \"worker\": [\"127.0.0.1:%d\"]}", port[0], port[1]);
    good(trn_cluster_parse(&p->spec, json));
    for (int i = 0; i < 2; i++) {
        good(trn_server_create(&p->task[i], p->spec, i ? "worker" : "ps", 0));
        p->to[i] = trn_channel_new(loop, trn_server_target(p->task[i]) + strlen("grpc://"));
    }
    snprintf(jobs, sizeof jobs, "cluster { job { name: \"ps\" tasks { key: 0 value: \"127.0.0.1:%d\" } } job { name: \"worker\" tasks { key: 0 value: \"127.0.0.1:%d\" } } }", port[0], port[1]);
    unsigned long long made[] = {incarnation(p->to[0]), incarnation(p->to[1])};
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text,
                 "context_id: 5 keep_alive_secs: 600 lazy_copy_remote_function_inputs: true server_def { %s job_name: \"%s\" } "
                 "cluster_device_attributes { name: \"" PS "\" device_type: \"CPU\" incarnation: %llu } cluster_device_attributes { name: \"" WORKER "\" device_type: \"CPU\" incarnation: %llu }",
                 jobs, i ? "worker" : "ps", made[0], made[1]);
        good(told(NULL, NULL, p->to[i], "CreateContext", &tensorflow__eager__create_context_request__descriptor, text));
    }
}

/* Those that are still there. */
static void pair_close(pair *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->task[i])
            trn_server_close(p->task[i], 0);
        trn_channel_shutdown(p->to[i]);
        trn_channel_unref(p->to[i]);
    }
    trn_cluster_free(p->spec);
}

static void test_divided(void **state)
{
    pair both;
    pair_open(&both);
    trn_channel **to = both.to;
    char text[4096];
    Tensorflow__Eager__EnqueueResponse *r;
    good(queued(&r, to[0],
                "context_id: 5 queue { operation { id: 1 name: \"VarHandleOp\" " A("dtype", "type: DT_FLOAT") A("shape", "shape { }") "} } "
                "queue { send_tensor { op_id: 2 tensors { dtype: DT_FLOAT tensor_shape { } float_val: 5 } } } "
                "queue { operation { id: 3 name: \"AssignVariableOp\" op_inputs { remote_handle { op_id: 1 } } op_inputs { remote_handle { op_id: 2 } } " A("dtype", "type: DT_FLOAT") "} }"));
    good(queued(&r, to[1], "context_id: 5 queue { register_function { function_def { " BODY " } } } queue { send_tensor { op_id: 10 tensors { dtype: DT_FLOAT tensor_shape { } float_val: 2 } } }"));
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "context_id: 5 queue { operation { id: %d is_function: true name: \"f\" device: \"" WORKER "\" " IN("1", PS, "DT_RESOURCE") IN("10", WORKER, "DT_FLOAT") "} }", 20 + i);
        good(queued(&r, to[1], text));
        assert_int_equal(r->queue_response[0]->n_device, 2);
        assert_string_equal(r->queue_response[0]->device[0], ""); /* ours: nothing is said */
        assert_string_equal(r->queue_response[0]->device[1], PS); /* stays there, under the same id */
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, "context_id: 5 queue { operation { id: -1 name: \"Neg\" op_inputs { remote_handle { op_id: %d output_num: %d } } " A("T", "type: DT_FLOAT") "} }", 20 + i, k);
            good(queued(&r, to[!k], text));
            trn_tensor *t;
            good(trn_tensor_from_pb(&t, r->queue_response[0]->tensor[0]));
            assert_true(TRN_DATA(t, float)[0] == (k ? -(7.0f + 2 * (float)i) : -2 * (5.0f + 2 * (float)i)));
            trn_tensor_unref(t);
        }
    }
    /* What is wrong is said, with the name of what it is about. */
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 30 is_function: true name: \"f\" " IN("1", "/job:nobody/replica:0/task:0/device:CPU:0", "DT_RESOURCE") IN("10", WORKER, "DT_FLOAT") "} }"),
           TRN_INVALID_ARGUMENT, "/job:nobody");
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 31 is_function: true name: \"f\" " IN("10", WORKER, "DT_FLOAT") IN("10", WORKER, "DT_FLOAT") "} }"), TRN_INVALID_ARGUMENT, "argument 0");
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 32 is_function: true name: \"f\" " IN("1", PS, "DT_RESOURCE") "} }"), TRN_INVALID_ARGUMENT, "argument 1");
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 33 is_function: true name: \"f\" " IN("99", PS, "DT_RESOURCE") IN("10", WORKER, "DT_FLOAT") "} }"), TRN_INVALID_ARGUMENT, "Op ID: 99");
    /* A function that is removed is gone, and so are its parts. */
    good(queued(&r, to[1], "context_id: 5 queue { remove_function { function_name: \"f\" } }"));
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 34 is_function: true name: \"f\" " IN("1", PS, "DT_RESOURCE") IN("10", WORKER, "DT_FLOAT") "} }"), TRN_NOT_FOUND, "neither a type of a primitive operation");
    good(queued(&r, to[1], "context_id: 5 queue { register_function { function_def { " BODY " } } }"));
    /* A lost ps is the ps's loss: the words by which a coordinator tells. */
    trn_server_close(both.task[0], 0);
    both.task[0] = NULL;
    expect(queued(&r, to[1], "context_id: 5 queue { operation { id: 35 is_function: true name: \"f\" " IN("1", PS, "DT_RESOURCE") IN("10", WORKER, "DT_FLOAT") "} }"), TRN_UNAVAILABLE,
           "GRPC error information from remote target /job:ps");
    pair_close(&both);
}

/* The float that an op of one input makes of a handle there. */
static float number(trn_channel *at, const char *op, int id)
{
    char text[512];
    snprintf(text, sizeof text, "context_id: 5 queue { operation { id: -1 name: \"%s\" op_inputs { remote_handle { op_id: %d } } " A("T", "type: DT_FLOAT") "} }", op, id);
    Tensorflow__Eager__EnqueueResponse *r;
    good(queued(&r, at, text));
    trn_tensor *t;
    good(trn_tensor_from_pb(&t, r->queue_response[0]->tensor[0]));
    float v = TRN_DATA(t, float)[trn_tensor_count(t) - 1];
    trn_tensor_unref(t);
    return v;
}

#define REMOTE(op, device) "handles { remote_handle { op_id: " op " device: \"" device "\" op_device: \"" device "\" dtype: DT_FLOAT } } "
#define LOCAL(type, value, device) "handles { local_handle { device: \"" device "\" tensor { dtype: " type " tensor_shape { } " value " } } } "
#define MUL(name, x, device) "node_def { name: \"" name "\" op: \"Mul\" device: \"" device "\" input: \"" x "\" input: \"" x "\" " F("T", "type: DT_FLOAT") "} "
/* g(p): the ps's member squared, minus ours squared. */
#define SQUARES                                                                                                                                             \
    "signature { name: \"g\" input_arg { name: \"p\" type: DT_FLOAT } output_arg { name: \"y\" type: DT_FLOAT } } " MUL("there", "p", PS) MUL("here", "p", WORKER) \
    "node_def { name: \"sub\" op: \"Sub\" input: \"there:z:0\" input: \"here:z:0\" " F("T", "type: DT_FLOAT") "} ret { key: \"y\" value: \"sub:z:0\" } "
#define RUN(id, packed) "queue { operation { id: " id " is_function: true name: \"g\" device: \"" WORKER "\" " IN(packed, WORKER, "DT_FLOAT") "} } "
#define SEND(op, value) "queue { send_tensor { op_id: " op " tensors { dtype: DT_FLOAT tensor_shape { } float_val: " value " } } } "
#define PACK(op, ...) "queue { send_packed_handle { op_id: " op " " __VA_ARGS__ "} } "

/* A handle of several, one of them on the ps: each part of a function takes its own. */
static void test_packed(void **state)
{
    pair both;
    pair_open(&both);
    trn_channel *ps = both.to[0], *worker = both.to[1];
    Tensorflow__Eager__EnqueueResponse *r;
    good(queued(&r, ps, "context_id: 5 " SEND("1", "5")));
    good(queued(&r, worker, "context_id: 5 queue { register_function { function_def { " SQUARES " } } } " SEND("2", "2") PACK("9", REMOTE("1", PS) REMOTE("2", WORKER))));
    good(queued(&r, worker, "context_id: 5 queue { handle_to_decref { op_id: 2 } } " RUN("10", "9"))); /* the bundle holds ours */
    assert_true(number(worker, "Neg", 10) == -21.0f);
    assert_true(number(worker, "Neg", 9) == -2.0f); /* an op gets both */
    good(queued(&r, worker, "context_id: 5 " PACK("8", LOCAL("DT_FLOAT", "float_val: 3", PS) LOCAL("DT_FLOAT", "float_val: 1", "")) RUN("11", "8")));
    assert_true(number(worker, "Neg", 11) == -8.0f);
    good(queued(&r, worker, "context_id: 5 " PACK("7", REMOTE("1", PS)) RUN("12", "7"))); /* the only one, for all */
    assert_true(number(worker, "Neg", 12) == 0.0f);
    /* What cannot be. */
    expect(queued(&r, worker, "context_id: 5 " PACK("6", "")), TRN_INVALID_ARGUMENT, "Handles should not be empty.");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", "handles { }")), TRN_INVALID_ARGUMENT, "handle 0 of packed handle 6 is empty");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", REMOTE("77", WORKER))), TRN_INVALID_ARGUMENT, "Op ID: 77");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", REMOTE("1", "/job:nobody/replica:0/task:0/device:CPU:0"))), TRN_INVALID_ARGUMENT, "unknown device");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", LOCAL("DT_FLOAT", "float_val: 1", "/job:ps"))), TRN_INVALID_ARGUMENT, "unknown device");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", LOCAL("DT_FLOAT", "float_val: 1", WORKER) LOCAL("DT_INT32", "int_val: 1", PS)) RUN("13", "6")), TRN_INVALID_ARGUMENT, "is float, not int32");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", REMOTE("9", WORKER) REMOTE("1", PS)) RUN("14", "6")), TRN_INVALID_ARGUMENT, "Nested packed handles");
    expect(queued(&r, worker, "context_id: 5 " PACK("6", REMOTE("77", PS) LOCAL("DT_FLOAT", "float_val: 1", WORKER)) RUN("15", "6")), TRN_INVALID_ARGUMENT, "Op ID: 77");
    good(queued(&r, worker, "context_id: 5 queue { handle_to_decref { op_id: 9 } }"));
    expect(queued(&r, worker, "context_id: 5 queue { handle_to_decref { op_id: 9 } }"), TRN_INVALID_ARGUMENT, "Op ID: 9");
    expect(queued(&r, worker, "context_id: 5 " RUN("16", "9")), TRN_INVALID_ARGUMENT, "Op ID: 9");
    pair_close(&both);
}

static int setup(void **state)
{
    mem = trn_arena_new();
    good(trn_server_create_local(&server));
    good(trn_loop_open(&loop, "test"));
    channel = trn_channel_new(loop, trn_server_target(server) + strlen("grpc://"));
    return 0;
}

static int teardown(void **state)
{
    good(call(NULL, NULL, "", NULL));
    trn_channel_shutdown(channel);
    trn_channel_unref(channel);
    trn_loop_close(loop);
    trn_server_close(server, 0);
    trn_arena_free(mem);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_contexts), cmocka_unit_test(test_divided), cmocka_unit_test(test_packed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
