/* The hand-coded messages: first byte picks one, the rest is it. What was read is written and must read again. */
#include "wire/codec.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes of an outgoing message in one buffer. */
static trn_msg joined(trn_out_msg *o)
{
    trn_msg m = {0};
    trn_err e = trn_buf_new(&m.buf, o->bytes + 1);
    if (e)
        abort();
    m.p = m.buf->data;
    for (int i = 0; i < o->n; i++) {
        memcpy(m.buf->data + m.n, o->slices[i].p, o->slices[i].n);
        m.n += o->slices[i].n;
    }
    trn_out_fini(o);
    return m;
}

/* An answer within the message, or a reason for none. */
static void check_align(int64_t at, size_t have)
{
    if (at < -2 || at > (int64_t)have)
        abort();
}

static void run_graph(trn_arena *a, const trn_msg *m)
{
    trn_run_graph_req q, again;
    trn_err e = trn_run_graph_req_parse(&q, a, m);
    if (!e) {
        trn_out_msg o = {0};
        trn_err bad = trn_run_graph_req_put(&o, &q);
        if (bad) {
            trn_out_fini(&o); /* variants cannot be written */
            trn_err_free(bad);
        } else {
            trn_msg w = joined(&o);
            bad = trn_run_graph_req_parse(&again, a, &w);
            if (bad || again.n_send != q.n_send || again.step_id != q.step_id || strcmp(again.graph, q.graph))
                abort();
            trn_run_graph_req_fini(&again);
            trn_msg_fini(&w);
        }
        trn_run_graph_req_fini(&q);
    }
    trn_err_free(e);
}

static void run_step(trn_arena *a, const trn_msg *m)
{
    trn_run_step_req q, again;
    trn_err e = trn_run_step_req_parse(&q, a, m);
    if (!e) {
        trn_out_msg o = {0};
        trn_err bad = trn_run_step_req_put(&o, &q);
        if (bad) {
            trn_out_fini(&o);
            trn_err_free(bad);
        } else {
            trn_msg w = joined(&o);
            bad = trn_run_step_req_parse(&again, a, &w);
            if (bad || again.n_feeds != q.n_feeds || again.trace_level != q.trace_level || strcmp(again.session, q.session))
                abort();
            trn_run_step_req_fini(&again);
            trn_msg_fini(&w);
        }
        trn_run_step_req_fini(&q);
    }
    trn_err_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    trn_msg m = {0};
    trn_err e = trn_buf_new(&m.buf, size - 1);
    if (e)
        abort();
    memcpy(m.buf->data, data + 1, size - 1);
    m.p = m.buf->data;
    m.n = size - 1;
    trn_arena *a = trn_arena_new();
    trn_tensor *t = NULL;
    bool dead;
    trn_recv_req recv;
    trn_run_graph_resp graph;
    trn_run_step_resp step;
    trn_run_callable_req call;
    for (size_t have = 0; have <= m.n && have < 64; have++) {
        check_align(trn_recv_resp_align(m.p, have, m.n), have);
        check_align(trn_run_graph_req_align(m.p, have, m.n), have);
        check_align(trn_run_step_req_align(m.p, have, m.n), have);
        check_align(trn_run_step_resp_align(m.p, have, m.n), have);
    }
    switch (data[0] % 7) {
    case 0: trn_err_free(trn_recv_req_parse(&recv, a, &m)); break;
    case 1:
        e = trn_recv_resp_parse(&t, &dead, &m);
        if (!e)
            trn_tensor_unref(t);
        trn_err_free(e);
        break;
    case 2: run_graph(a, &m); break;
    case 3:
        e = trn_run_graph_resp_parse(&graph, a, &m);
        if (!e) {
            trn_named_fini(graph.recv, graph.n_recv);
            trn_err_free(graph.status);
        }
        trn_err_free(e);
        break;
    case 4: run_step(a, &m); break;
    case 5:
        e = trn_run_step_resp_parse(&step, a, &m);
        if (!e) {
            trn_named_fini(step.tensors, step.n);
            trn_err_free(step.status);
        }
        trn_err_free(e);
        break;
    case 6:
        e = trn_run_callable_req_parse(&call, a, &m);
        if (!e)
            trn_run_callable_req_fini(&call);
        trn_err_free(e);
        break;
    }
    trn_arena_free(a);
    trn_msg_fini(&m);
    return 0;
}
