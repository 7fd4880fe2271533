/* The messages that carry tensors, by hand: RecvTensor, RunGraph, RunStep, RunCallable. A tensor's bytes go out as a slice of its buffer and come in
 * as a view of the message's buffer; nothing is copied when the bytes are aligned (trn_*_align sees to the first tensor of a message).
 *
 * Parsed structs point into the message: they live as long as it does. Arrays come from the arena. */
#ifndef TRN_CODEC_H
#define TRN_CODEC_H

#include "tensor/tensor.h"
#include "wire/rpc.h"

/* ---- TensorProto */
/* Field `field` of the message under way, as a TensorProto. Resource handles and strings too; a variant tensor is UNIMPLEMENTED. */
trn_err trn_tensor_put(trn_out_msg *m, uint32_t field, const trn_tensor *t) TRN_MUST_USE;
/* `buf` (may be NULL: always copy) holds p; the tensor refers to it. */
trn_err trn_tensor_parse(trn_tensor **out, trn_buf *buf, const uint8_t *p, size_t n) TRN_MUST_USE;

typedef struct trn_named_tensor {
    const char *name; /* zero-terminated, in the arena */
    trn_tensor *t;    /* owned by whoever parsed: trn_named_fini */
} trn_named_tensor;
void trn_named_fini(trn_named_tensor *v, int n);
trn_err trn_named_put(trn_out_msg *m, uint32_t field, const char *name, const trn_tensor *t) TRN_MUST_USE;

/* ---- RecvTensor */
typedef struct trn_recv_req {
    int64_t step_id, request_id;
    const char *key; /* in the arena */
} trn_recv_req;
trn_err trn_recv_req_parse(trn_recv_req *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE;
void trn_recv_req_put(trn_out_msg *m, int64_t step_id, const char *key, int64_t request_id);
trn_err trn_recv_resp_put(trn_out_msg *m, const trn_tensor *t, bool dead) TRN_MUST_USE;
trn_err trn_recv_resp_parse(trn_tensor **out, bool *dead, const trn_msg *m) TRN_MUST_USE;
int64_t trn_recv_resp_align(const uint8_t *p, size_t have, size_t total);

/* ---- RunGraph */
typedef struct trn_run_graph_req {
    const char *session, *graph;
    bool session_created, is_partial, is_last_partial, errors_in_body;
    int64_t step_id, request_id;
    bool record_timeline, record_costs, record_partitions;
    int n_send;
    trn_named_tensor *send;
    int n_recv;
    const char **recv_key;
    /* Between Trainera tasks (unknown fields to TensorFlow): */
    bool push;      /* every task of the step is one of us: tensors are pushed to where they are needed, not asked for */
    int64_t *clean; /* earlier steps that are over: no CleanupGraph follows for them */
    int n_clean;
} trn_run_graph_req;
trn_err trn_run_graph_req_parse(trn_run_graph_req *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE; /* on error nothing is owned */
void trn_run_graph_req_fini(trn_run_graph_req *r);
/* Writes everything that is set in r. */
trn_err trn_run_graph_req_put(trn_out_msg *m, const trn_run_graph_req *r) TRN_MUST_USE;
int64_t trn_run_graph_req_align(const uint8_t *p, size_t have, size_t total);

typedef struct trn_run_graph_resp {
    int n_recv;
    trn_named_tensor *recv;
    trn_err status;            /* from the body */
    const uint8_t *step_stats; /* serialized StepStats, in the message */
    size_t step_stats_n;
    int n_dead; /* keys of dead tensors that were pushed */
    const char **dead;
} trn_run_graph_resp;
trn_err trn_run_graph_resp_parse(trn_run_graph_resp *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE;
int64_t trn_run_graph_resp_align(const uint8_t *p, size_t have, size_t total);

/* RegisterGraph's answer: the graph's handle, zero-terminated in `size` bytes that were zero. */
trn_err trn_register_graph_resp_parse(char *handle, size_t size, const trn_msg *m) TRN_MUST_USE;

/* ---- Push: tensors of one step for the receiver's rendezvous, and steps that are over. Ours alone, service "trainera.Worker".
 * A pushed tensor is the same bytes here and in a RunGraphResponse, so that it can ride on either. */
typedef struct trn_push {
    int64_t step_id;
    int n;
    trn_named_tensor *v; /* trn_named_fini */
    int n_dead, n_clean;
    const char **dead;
    int64_t *clean;
} trn_push;
trn_err trn_push_parse(trn_push *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE; /* on error nothing is owned */
trn_err trn_push_put_tensor(trn_out_msg *m, const char *key, const trn_tensor *t, bool dead) TRN_MUST_USE;
void trn_push_put_head(trn_out_msg *m, int64_t step_id, const int64_t *clean, int n_clean); /* may come last */
int64_t trn_push_align(const uint8_t *p, size_t have, size_t total);

/* ---- RunStep */
typedef struct trn_run_step_req {
    const char *session, *partial_handle;
    int n_feeds, n_fetches, n_targets;
    trn_named_tensor *feeds;
    const char **fetches, **targets;
    bool errors_in_body;
    int64_t request_id;
    /* RunOptions */
    int trace_level;
    int64_t timeout_ms;
    bool partition_graphs;
    const uint8_t *debug; /* DebugOptions, in the message */
    size_t debug_n;
} trn_run_step_req;
trn_err trn_run_step_req_parse(trn_run_step_req *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE;
void trn_run_step_req_fini(trn_run_step_req *r);
trn_err trn_run_step_req_put(trn_out_msg *m, const trn_run_step_req *r) TRN_MUST_USE;
int64_t trn_run_step_req_align(const uint8_t *p, size_t have, size_t total);

typedef struct trn_run_step_resp {
    int n;
    trn_named_tensor *tensors;
    trn_err status;
    const uint8_t *metadata;
    size_t metadata_n;
} trn_run_step_resp;
trn_err trn_run_step_resp_parse(trn_run_step_resp *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE;
int64_t trn_run_step_resp_align(const uint8_t *p, size_t have, size_t total);

/* ---- RunCallable */
typedef struct trn_run_callable_req {
    const char *session;
    int64_t handle, request_id;
    int n_feeds;
    trn_tensor **feeds;
} trn_run_callable_req;
trn_err trn_run_callable_req_parse(trn_run_callable_req *out, trn_arena *a, const trn_msg *m) TRN_MUST_USE;
void trn_run_callable_req_fini(trn_run_callable_req *r);

/* Small messages: bytes in a trn_sb become the message. */
void trn_out_sb(trn_out_msg *m, trn_sb *s); /* takes s */

#endif
