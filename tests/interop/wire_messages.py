"""The requests and responses of MasterService and WorkerService that tests send by hand: TensorFlow's package has the messages inside them, but not these."""
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import graph_pb2, tensor_pb2  # noqa: F401
from tensorflow.core.protobuf import config_pb2, debug_pb2, named_tensor_pb2  # noqa: F401

# message: {field: (number, type)}; "*" repeats
MESSAGES = {
    "CreateSessionRequest": {"graph_def": (1, "GraphDef"), "config": (2, "ConfigProto")},
    "CreateSessionResponse": {"session_handle": (1, "string"), "graph_version": (2, "int64")},
    "ExtendSessionRequest": {"session_handle": (1, "string"), "graph_def": (2, "GraphDef"), "current_graph_version": (3, "int64")},
    "ExtendSessionResponse": {"new_graph_version": (4, "int64")},
    "RunStepRequest": {"session_handle": (1, "string"), "feed": (2, "*NamedTensorProto"), "fetch": (3, "*string"), "target": (4, "*string"), "options": (5, "RunOptions"), "partial_run_handle": (6, "string")},
    "RunStepResponse": {"tensor": (1, "*NamedTensorProto")},
    "PartialRunSetupRequest": {"session_handle": (1, "string"), "feed": (2, "*string"), "fetch": (3, "*string"), "target": (4, "*string")},
    "PartialRunSetupResponse": {"partial_run_handle": (1, "string")},
    "ListDevicesRequest": {"session_handle": (1, "string")},
    "ListDevicesResponse": {},
    "CloseSessionRequest": {"session_handle": (1, "string")},
    "CloseSessionResponse": {},
    "CreateWorkerSessionRequest": {"session_handle": (1, "string"), "master_task": (5, "string"), "master_incarnation": (6, "int64")},
    "CreateWorkerSessionResponse": {},
    "DeleteWorkerSessionRequest": {"session_handle": (1, "string")},
    "DeleteWorkerSessionResponse": {},
    "LoggingRequest": {"enable_rpc_logging": (1, "bool"), "fetch_step_id": (3, "*int64")},
    "LoggingResponse": {},
    "RegisterGraphRequest": {"session_handle": (1, "string"), "graph_def": (2, "GraphDef"), "debug_options": (5, "DebugOptions"), "create_worker_session_called": (6, "bool")},
    "RegisterGraphResponse": {"graph_handle": (1, "string")},
    "CleanupGraphRequest": {"step_id": (1, "int64")},
    "CleanupGraphResponse": {},
    "DeregisterGraphRequest": {"graph_handle": (1, "string")},
    "DeregisterGraphResponse": {},
    "RunGraphRequest": {"graph_handle": (1, "string"), "step_id": (2, "int64"), "send": (3, "*NamedTensorProto"), "recv_key": (4, "*string"), "is_partial": (6, "bool"), "is_last_partial_run": (7, "bool"),
                        "session_handle": (8, "string"), "create_worker_session_called": (10, "bool")},
    "RunGraphResponse": {"recv": (1, "*NamedTensorProto")},
    "RecvTensorRequest": {"step_id": (1, "int64"), "rendezvous_key": (2, "string")},
    "RecvTensorResponse": {"tensor": (1, "TensorProto"), "is_dead": (2, "bool")},
}


def _file():
    f = descriptor_pb2.FileDescriptorProto(name="trainera_test_messages.proto", package="trainera_test", syntax="proto3")
    f.dependency.extend(m.DESCRIPTOR.name for m in (graph_pb2, tensor_pb2, config_pb2, debug_pb2, named_tensor_pb2))
    for name, fields in MESSAGES.items():
        m = f.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            d = m.field.add(name=field, number=number, label=3 if kind[0] == "*" else 1)
            kind = kind.lstrip("*")
            d.type = {"string": 9, "int64": 3, "bool": 8}.get(kind, 11)
            if d.type == 11:
                d.type_name = ".tensorflow." + kind
    return f


_pool = descriptor_pool.Default()
_pool.Add(_file())


def message(name):
    """The class of that message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName("trainera_test." + name))
