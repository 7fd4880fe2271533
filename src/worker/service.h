/* tensorflow.WorkerService over a trn_worker. */
#ifndef TRN_WORKER_SERVICE_H
#define TRN_WORKER_SERVICE_H

#include "worker/worker.h"

void trn_worker_serve(trn_rpc_server *s, trn_worker *w);

/* The message (packed with protobuf-c) as a reply; shared with master/. */
void trn_reply_pb(trn_call *call, const ProtobufCMessage *msg);
/* Unpacks the call's request; on failure replies and returns NULL. */
void *trn_request_pb(trn_arena *a, trn_call *call, const ProtobufCMessageDescriptor *d);
/* device_attributes as TensorFlow's servers tell them; memory from the arena. */
Tensorflow__DeviceAttributes *trn_device_to_pb(trn_arena *a, const trn_device *d);

/* A call with a protobuf-c message to another task; done on the channel's loop. */
void trn_call_pb(trn_channel *ch, const char *path, const ProtobufCMessage *msg, uint64_t deadline_ns, bool wait_for_ready, trn_rpc **rpc, trn_rpc_done done, void *arg);

#endif
