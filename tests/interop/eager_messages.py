"""EagerService's and CoordinationService's messages, which TensorFlow's package does not have, as Python classes: from our own .proto files, in a pool of their own.

`pb.EnqueueRequest(…)`, `co.BarrierRequest(…)`; `own(m)` is a message of TensorFlow's package as the one of the same name here."""
import pathlib
import subprocess
import tempfile
import types

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[2] / "src" / "proto"


def _classes():
    with tempfile.NamedTemporaryFile() as f:
        subprocess.run(["protoc-c", "--include_imports", f"--descriptor_set_out={f.name}", f"--proto_path={PROTO}", "eager.proto", "coordination.proto"], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(f.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for d in files.file:
        pool.Add(d)
    return message_factory.GetMessageClassesForFiles([d.name for d in files.file], pool)


_ALL = _classes()
pb = types.SimpleNamespace(**{name.split(".")[-1]: c for name, c in _ALL.items() if name.startswith("tensorflow.eager.")})

co = types.SimpleNamespace(**{name.split(".")[-1]: c for name, c in _ALL.items() if c.DESCRIPTOR.file.name == "coordination.proto"})


def own(m):
    return _ALL[m.DESCRIPTOR.full_name].FromString(m.SerializeToString())

