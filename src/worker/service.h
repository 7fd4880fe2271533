/* tensorflow.WorkerService over a trn_worker. */
#ifndef TRN_WORKER_SERVICE_H
#define TRN_WORKER_SERVICE_H

#include "worker/worker.h"

void trn_worker_serve(trn_rpc_server *s, trn_worker *w);

/* The message (packed with protobuf-c) as a reply; shared with master/. */
void trn_reply_pb(trn_call *call, const ProtobufCMessage *msg);
/* Unpacks the call's request; on failure replies and returns NULL. */
void *trn_request_pb(trn_arena *a, trn_call *call, const ProtobufCMessageDescriptor *d);
/* A session for the cluster and the place in it that `def` names (NULL or without a cluster: the task's own); the rest is `o`'s. */
trn_err trn_worker_session_from_def(trn_worker *w, trn_wsession_opts *o, const Tensorflow__ServerDef *def) TRN_MUST_USE;
/* device_attributes as TensorFlow's servers tell them; memory from the arena. */
Tensorflow__DeviceAttributes *trn_device_to_pb(trn_arena *a, const trn_device *d);

/* A call with a protobuf-c message to another task; done on the channel's loop. */
void trn_call_pb(trn_channel *ch, const char *path, const ProtobufCMessage *msg, uint64_t deadline_ns, bool wait_for_ready, trn_rpc **rpc, trn_rpc_done done, void *arg);

#endif
