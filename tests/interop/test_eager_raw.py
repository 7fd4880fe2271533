"""EagerService message by message: every kind of queue item and every method, on our server and on TensorFlow's, the same answers, codes and words that clients look for."""
import re
import threading
import time
import urllib.request

import grpc
import pytest
import tensorflow as tf
from clusters import Cluster, free_ports
from conftest import tf_server
from eager_messages import own, pb
from tensorflow.core.framework import device_attributes_pb2, tensor_pb2

SERVICE = "/tensorflow.eager.EagerService/"
OURS, THEIRS = 0, 1
pytestmark = pytest.mark.asan

IDS = iter(range(0xfedcba0000000000, 0xfedcba0000001000))


def proto(value):
    return own(tf.make_tensor_proto(value))


class Server:
    """One task's EagerService."""

    def __init__(self, spec, job):
        self.spec, self.job = spec, job
        self.device = f"/job:{job}/replica:0/task:0/device:CPU:0"
        self.channel = grpc.insecure_channel(spec[job][0], options=[("grpc.enable_http_proxy", 0)])

    def call(self, method, **fields):
        """(code, text) of an error, or the response."""
        q = getattr(pb, method + "Request")(**fields)
        answer = getattr(pb, method + "Response", None)  # those that are always empty are not declared
        r = self.channel.unary_unary(SERVICE + method, request_serializer=type(q).SerializeToString, response_deserializer=answer.FromString if answer else None)
        try:
            return r(q, timeout=60)
        except grpc.RpcError as e:
            return e.code().name, e.details()

    def stream(self, questions, timeout=60):
        return self.channel.stream_stream(SERVICE + "StreamingEnqueue", request_serializer=pb.EnqueueRequest.SerializeToString,
                                          response_deserializer=pb.EnqueueResponse.FromString)(questions, timeout=timeout)

    def context(self, keep=600, view=0, id=None):
        id = id or next(IDS)
        r = self.call("CreateContext", context_id=id, context_view_id=view, keep_alive_secs=keep, server_def=self.definition(), cluster_device_attributes=[self.attributes()])
        assert isinstance(r, pb.CreateContextResponse), r
        return id

    def definition(self):
        cluster = tf.train.ClusterSpec({self.job: self.spec[self.job]}).as_cluster_def()
        return own(tf.train.ServerDef(cluster=cluster, job_name=self.job, task_index=0, protocol="grpc"))

    def attributes(self):
        return own(device_attributes_pb2.DeviceAttributes(name=self.device, device_type="CPU", incarnation=1))

    def enqueue(self, id, *items):
        return self.call("Enqueue", context_id=id, queue=items)

    # ---- queue items

    def handle(self, op, output=0):
        return pb.RemoteTensorHandle(op_id=op, output_num=output, device=self.device, op_device=self.device, dtype=tf.float32.as_datatype_enum)

    def op(self, id, name, *inputs, function=False, step=None, **attrs):
        o = pb.Operation(id=id, name=name, device=self.device, is_function=function)
        if step is not None:
            o.is_component_function, o.func_step_id = True, step
        for i in inputs:
            o.op_inputs.append(pb.Operation.Input(tensor=proto(i)) if isinstance(i, (list, float)) else pb.Operation.Input(remote_handle=self.handle(*i)))
        for k, v in attrs.items():
            if isinstance(v, tf.DType):
                o.attrs[k].type = v.as_datatype_enum
            else:
                o.attrs[k].i = v
        return pb.QueueItem(operation=o)

    def send(self, op, *values, device=None):
        return pb.QueueItem(send_tensor=pb.SendTensorOp(op_id=op, tensors=[proto(v) for v in values], device_name=self.device if device is None else device))

    def drop(self, op, output=0):
        return pb.QueueItem(handle_to_decref=self.handle(op, output))


def define(name, f, *specs):
    """A FunctionDef of that name."""
    with tf.Graph().as_default():
        d = tf.function(f).get_concrete_function(*specs).function_def
    d.signature.name = name
    return own(d)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    c = Cluster(tmp_path_factory.mktemp("raw"), 1, 0, 0, "trn", "tf", ())
    try:
        c.start()
        spec = {"ps": [f"127.0.0.1:{free_ports(1)[0]}"]}
        yield Server(c.spec, "ps"), Server(spec, "ps"), tf_server(spec, "ps"), c.task("ps").log
    finally:
        c.stop()


@pytest.fixture
def both(servers):
    return servers[:2]


def numbers(r):
    """An EnqueueResponse as plain data; an error as its code."""
    if isinstance(r, tuple):
        return r[0]
    return [([[d.size for d in s.dim] for s in q.shape], [tf.make_ndarray(tensor_pb2.TensorProto.FromString(t.SerializeToString())).tolist() for t in q.tensor], list(q.device)) for q in r.queue_response]


def same(both, act, words=None):
    """Both answer alike; an error has the words."""
    ours, theirs = (act(s) for s in both)
    assert numbers(ours) == numbers(theirs), (ours, theirs)
    if words:
        assert words in theirs[1] and words in ours[1], (ours, theirs)
    return ours


F = tf.float32


def test_ops(both):
    def act(s):
        id = s.context()
        r = s.enqueue(id, s.send(1, [1.0, 2.0], [[3.0]]), s.op(2, "AddV2", (1,), (1, 1), T=F), s.op(3, "Mul", (2,), [10.0], T=F), s.op(-1, "Sub", (3,), (2,), T=F), s.drop(1))
        assert not isinstance(r, tuple), r
        return r

    r = numbers(same(both, act))
    assert r[1][0] == [[1, 2]] and r[3][1] == [[[36.0, 45.0]]]


NO_CONTEXT = "Unable to find a context_id matching the specified one (12345)"


@pytest.mark.parametrize("method, fields", [("Enqueue", {}), ("KeepAlive", {}), ("WaitQueueDone", {}), ("RunComponentFunction", {}), ("UpdateContext", {"context_view_id": 1})])
def test_no_such_context(both, method, fields):
    same(both, lambda s: s.call(method, context_id=12345, **fields), NO_CONTEXT)


NO_HANDLE = "Unable to find the relevant tensor remote_handle: Op ID: 77, Output num: "


@pytest.mark.parametrize("items, words", [
    (lambda s: [s.op(5, "Neg", (77,), T=F)], NO_HANDLE + "0"),
    (lambda s: [s.send(77, 1.0), s.drop(77), s.op(5, "Neg", (77,), T=F)], NO_HANDLE + "0"),
    (lambda s: [s.drop(77, 3)], NO_HANDLE + "3"),
    (lambda s: [s.send(77, 1.0), s.drop(77), s.drop(77)], NO_HANDLE + "0"),
    (lambda s: [s.op(5, "no_such_function", function=True)], "no_such_function"),
    (lambda s: [s.op(5, "MatMul", [1.0], [1.0], T=F)], None),
    (lambda s: [pb.QueueItem(remove_function=pb.RemoveFunctionOp(function_name="nobody"))], "Tried to remove non-existent function 'nobody'"),
    (lambda s: [pb.QueueItem(cleanup_function=pb.CleanupFunctionOp(step_id=-99))], None),
    (lambda s: [pb.QueueItem(sync_remote_executor_for_stream=pb.SyncRemoteExecutorForStream())], None),
    (lambda s: [pb.QueueItem(send_packed_handle=pb.SendPackedHandleOp(op_id=9, device_name=s.device))], "Handles should not be empty."),
    (lambda s: [pb.QueueItem(send_tensor=pb.SendTensorOp(op_id=9, tensors=[{"dtype": 1, "tensor_shape": {"dim": [{"size": 5}]}, "tensor_content": b"abc"}]))],
     "Unable to parse tensor proto"),
    (lambda s: [s.send(9, 1.0, device="/job:ps/replica:0/task:7/device:CPU:0")], "/job:ps/replica:0/task:7/device:CPU:0"),
], ids=lambda x: re.sub(r"\W+", " ", str(x))[:40] if isinstance(x, str) else None)
def test_items_that_fail(both, items, words):
    same(both, lambda s: s.enqueue(s.context(), *items(s)), words)


def test_as_only_we_do(servers):
    """An op that we do not have is UNIMPLEMENTED, TensorFlow's or not; a wrong number of inputs, which TensorFlow's server does not survive."""
    s = servers[OURS]
    code, text = s.enqueue(s.context(), s.op(5, "NoSuchOp"))
    assert code == "UNIMPLEMENTED" and "NoSuchOp" in text
    for inputs in ((), (1.0, 2.0)):
        assert s.enqueue(s.context(), s.op(5, "Neg", *inputs, T=F))[0] == "INVALID_ARGUMENT"


def test_what_came_before_an_error_stays(both):
    def act(s):
        id = s.context()
        assert isinstance(s.enqueue(id, s.send(1, 2.0), s.op(2, "Neg", (77,), T=F), s.send(3, 1.0)), tuple)
        first = s.enqueue(id, s.op(-1, "Neg", (1,), T=F))
        assert isinstance(s.enqueue(id, s.op(-1, "Neg", (3,), T=F)), tuple)
        return first

    assert numbers(same(both, act))[0][1] == [-2.0]


def registered(name, k, component=False):
    f = define(name, lambda x: {"y": x * k}, tf.TensorSpec([None], F))
    return pb.QueueItem(register_function=pb.RegisterFunctionOp(function_def=f, is_component_function=component))


def test_functions(both):
    """Registered, run, removed as often, registered anew with another body; the same twice is fine, another under a taken name is not."""
    first, second = registered("f", 2.0), registered("f", 5.0)
    remove = pb.QueueItem(remove_function=pb.RemoveFunctionOp(function_name="f"))

    def act(s):
        id = s.context()
        return [s.enqueue(id, first, s.op(1, "f", [1.0, 2.0], function=True), s.op(-1, "Neg", (1,), T=F)), s.enqueue(id, first), s.enqueue(id, second),
                s.enqueue(id, remove), s.enqueue(id, s.op(-1, "f", [1.0], function=True)), s.enqueue(id, remove), s.enqueue(id, s.op(2, "f", [1.0], function=True)),
                s.enqueue(id, remove), s.enqueue(id, second, s.op(-1, "f", [1.0], function=True))]

    ours, theirs = (act(s) for s in both)
    assert [numbers(r) for r in ours] == [numbers(r) for r in theirs], (ours, theirs)
    assert numbers(ours[0])[2][1] == [[-2.0, -4.0]] and numbers(ours[4])[0][1] == [[2.0]] and numbers(ours[8])[1][1] == [[5.0]]


def test_functions_by_the_thousand(servers):
    """Registering and removing takes time with their number, not with its square; a library that does not fit leaves nothing behind."""
    s, n = servers[0], 40_000
    id = s.context()

    def function(name, *more):
        f = pb.RegisterFunctionOp()
        f.function_def.signature.name = name
        for m in more:
            f.library.function.add().signature.name = m
        return pb.QueueItem(register_function=f)

    start = time.monotonic()
    r = s.enqueue(id, *(function(f"f{i}") for i in range(n)))
    assert not isinstance(r, tuple), r
    wrong = function("new", "other", "f0")
    wrong.register_function.library.function[1].signature.description = "another"
    assert s.enqueue(id, wrong)[0] == "INVALID_ARGUMENT"
    for name in ("new", "other"):
        assert s.enqueue(id, pb.QueueItem(remove_function=pb.RemoveFunctionOp(function_name=name)))[0] == "INVALID_ARGUMENT"
        assert isinstance(s.enqueue(id, s.op(3, name, function=True)), tuple)
    r = s.enqueue(id, *(pb.QueueItem(remove_function=pb.RemoveFunctionOp(function_name=f"f{i}")) for i in range(n)))
    assert not isinstance(r, tuple), r
    assert time.monotonic() - start < 15


def test_tensors_share_what_they_may_take(servers):
    """Few bytes that stand for many: of all tensors of a request together, whatever keeps them."""
    s = servers[0]
    much = pb.QueueItem()
    t = much.send_tensor.tensors.add(dtype=6)
    t.tensor_shape.dim.add(size=1_200_000_000)
    much.send_tensor.op_id, much.send_tensor.device_name = 1, s.device
    identity = s.op(2, "Identity", 1.0, T=tf.int8)
    identity.operation.op_inputs[0].tensor.CopyFrom(t)
    id = s.context()
    for items in ((much, much), (identity, identity)):
        assert s.enqueue(id, *items)[0] == "RESOURCE_EXHAUSTED"
    assert not isinstance(s.call("CloseContext", context_id=id, context_view_id=0), tuple)


def test_component_functions(both):
    """Their results go where the caller says; what is none, or has no function, is an error."""
    f = registered("part", 3.0, component=True)

    def act(s):
        id = s.context()
        assert not isinstance(s.enqueue(id, f), tuple)
        r = s.call("RunComponentFunction", context_id=id, operation=s.op(4, "part", [1.0, 2.0], function=True, step=-7).operation, output_num=[5])
        assert not isinstance(r, tuple), r
        kept = s.enqueue(id, s.op(-1, "Neg", (4, 5), T=F), pb.QueueItem(cleanup_function=pb.CleanupFunctionOp(step_id=-7)))
        bad = [s.call("RunComponentFunction", context_id=id, operation=o) for o in
               (s.op(4, "Neg", 1.0, T=F).operation, s.op(4, "nothing", function=True, step=3).operation, s.op(4, "part", (77,), function=True, step=3).operation)]
        assert all(isinstance(b, tuple) for b in bad), bad
        return [[[d.size for d in x.dim] for x in r.shape], numbers(kept), [b[0] for b in bad]]

    ours, theirs = (act(s) for s in both)
    assert ours == theirs
    assert ours[0] == [[2]] and ours[1][0][1] == [[-3.0, -6.0]]


def test_functions_that_lack_an_op(servers):
    """A component function comes only to be run: what it lacks is said when it is registered, and it is not. Of others, which may never run here, the log says it, once; then their run does."""
    s, id = servers[OURS], servers[OURS].context()

    def lacking(name, component, within=None):
        """Its last node is an op of nobody's; or in a function that it calls."""
        f = registered(name, 2.0, component)
        d = f.register_function.function_def
        if within:
            inner = define(within, lambda x: {"y": x * 2.0}, tf.TensorSpec([None], F))
            inner.node_def[-1].op = "NoSuchOp"
            f.register_function.library.function.append(inner)
            del d.node_def[:]
            call = d.node_def.add(name="call", op="PartitionedCall", input=["x"])
            for k in ("Tin", "Tout"):
                call.attr[k].list.type.append(F.as_datatype_enum)
            call.attr["f"].func.name = within
            for k in d.ret:
                d.ret[k] = "call:output:0"
        else:
            d.node_def[-1].op = "NoSuchOp"
        return f

    for f in (lacking("part", True), lacking("outer", True, within="inside")):
        code, text = s.enqueue(id, f)
        assert code == "UNIMPLEMENTED" and "NoSuchOp" in text and f.register_function.function_def.signature.name in text, text
        run = s.op(4, f.register_function.function_def.signature.name, [1.0], function=True, step=3)
        assert s.call("RunComponentFunction", context_id=id, operation=run.operation)[0] == "NOT_FOUND"
    before = gauge(s, "eager_functions_lacking")
    assert not isinstance(s.enqueue(id, lacking("whole", False), lacking("whole", False)), tuple)
    code, text = s.enqueue(id, s.op(5, "whole", [1.0], function=True))
    assert code == "UNIMPLEMENTED" and "NoSuchOp" in text
    assert gauge(s, "eager_functions_lacking") == before + 1
    assert not isinstance(s.enqueue(id, *[pb.QueueItem(remove_function=pb.RemoveFunctionOp(function_name="whole"))] * 2), tuple)
    assert gauge(s, "eager_functions_lacking") == before
    said = [line for line in servers[3]().splitlines() if "function whole cannot run here" in line]
    assert len(said) == 1 and " W " in said[0] and "no op NoSuchOp (node " in said[0], said


def test_views(both):
    """A newer view replaces a context, an older one is refused; updates count one by one; KeepAlive tells the view; an older view cannot close."""
    def act(s):
        id = s.context(view=3)
        assert not isinstance(s.enqueue(id, s.send(1, 1.0)), tuple)
        stale = s.call("CreateContext", context_id=id, context_view_id=2, server_def=s.definition(), cluster_device_attributes=[s.attributes()])
        s.context(view=3, id=id)
        lost = s.enqueue(id, s.op(2, "Neg", (1,), T=F))
        jump = s.call("UpdateContext", context_id=id, context_view_id=9, server_def=s.definition())
        assert not isinstance(s.enqueue(id, s.send(5, 1.0)), tuple)
        up = [s.call("UpdateContext", context_id=id, context_view_id=v, server_def=s.definition(), cluster_device_attributes=a) for v, a in ((4, []), (5, [s.attributes()]))]
        views = s.call("KeepAlive", context_id=id).context_view_id
        kept = s.enqueue(id, s.op(-1, "Neg", (5,), T=F))
        s.call("CloseContext", context_id=id, context_view_id=4)
        there = s.enqueue(id)
        closed = [s.call("CloseContext", context_id=id, context_view_id=5) for _ in range(2)]
        after = s.enqueue(id)
        return [stale[0], lost[0], jump[0], [[len(d.name) > 0 for d in u.device_attributes] for u in up], views, numbers(kept), numbers(there), [str(c) for c in closed], after[0]], stale[1], jump[1]

    ours, theirs = (act(s) for s in both)
    assert ours[0] == theirs[0]
    assert "already exists." in ours[1] and "already exists." in theirs[1]
    assert ours[0][4] == 5


def test_wait_queue_done(both):
    def act(s):
        id = s.context()
        s.enqueue(id, s.op(1, "Neg", 1.0, T=F))
        return [s.call("WaitQueueDone", context_id=id), s.call("WaitQueueDone", context_id=id, op_id=[1])[0]]

    ours, theirs = (act(s) for s in both)
    assert ours == theirs == [b"", "UNIMPLEMENTED"]


def answered(s, requests):
    """The stream stays open until all are: TensorFlow's server waits for ever when the client has said that there are no more."""
    over = threading.Event()

    def questions():
        yield from requests
        over.wait(60)

    call = s.stream(questions())
    try:
        return [numbers(next(call)) for _ in requests]
    finally:
        over.set()
        call.cancel()


def test_stream(both):
    """Answers in order; an error ends the stream, what was answered stays, and a new stream goes on with it."""
    def act(s):
        id = s.context()
        good = [[s.send(1, 1.0)], [s.op(2, "AddV2", (1,), 2.0, T=F), s.op(-1, "Neg", (2,), T=F)], [s.drop(1)],
                [pb.QueueItem(sync_remote_executor_for_stream=pb.SyncRemoteExecutorForStream())], []]
        answers = answered(s, [pb.EnqueueRequest(context_id=id, queue=q) for q in good])
        bad = s.stream(pb.EnqueueRequest(context_id=id, queue=[s.op(3, "Neg", (k,), T=F)]) for k in (2, 77, 2))
        got = [numbers(next(bad))]
        with pytest.raises(grpc.RpcError) as e:
            for r in bad:
                got.append(numbers(r))
        assert NO_HANDLE in e.value.details()
        with pytest.raises(grpc.RpcError) as none:
            list(s.stream(iter([pb.EnqueueRequest(context_id=12345)])))
        assert NO_CONTEXT in none.value.details()
        after = answered(s, [pb.EnqueueRequest(context_id=id, queue=[s.op(-1, "Neg", (3,), T=F)])])
        return answers, got, e.value.code().name, none.value.code().name, after

    ours, theirs = (act(s) for s in both)
    assert ours == theirs
    assert ours[0][1][1][1] == [-3.0] and ours[4][0][0][1] == [3.0]


def test_cancelled_while_it_runs(servers):
    """An op that waits ends with its call, streamed or not, and with its context."""
    s = servers[OURS]
    key = {"tensor_name": b"never", "send_device": s.device.encode(), "recv_device": s.device.encode()}

    def waiting(n):
        recv = s.op(n, "_Recv", tensor_type=F, send_device_incarnation=1)
        for k, v in key.items():
            recv.operation.attrs[k].s = v
        return recv

    id = s.context()
    with pytest.raises(grpc.RpcError) as e:
        list(s.stream(iter([pb.EnqueueRequest(context_id=id, queue=[s.send(1, 1.0)]), pb.EnqueueRequest(context_id=id, queue=[waiting(2)])]), timeout=1))
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    got = []
    t = threading.Thread(target=lambda: got.append(s.enqueue(id, waiting(3))))
    t.start()
    wait_for(lambda: gauge(s, "eager_running") == 1)
    s.call("CloseContext", context_id=id)
    t.join(60)
    assert got and got[0][0] == "ABORTED" and gauge(s, "eager_running") == 0


def gauge(s, name):
    text = urllib.request.urlopen(f"http://{s.spec['ps'][0]}/metrics", timeout=60).read().decode()
    return float(re.search(rf"^\w*{name}(?:{{.*}})? (\S+)$", text, re.M)[1])


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_keep_alive_expires(servers):
    """A context that nobody asks for is gone after its time; one that is asked for stays."""
    s = servers[OURS]
    other = s.context(keep=600)
    alive, dead = s.context(keep=3), s.context(keep=1)
    assert not isinstance(s.enqueue(dead, s.send(1, 1.0), s.send(2, 1.0)), tuple)
    before = gauge(s, "eager_contexts")

    def one_less():
        assert not isinstance(s.call("KeepAlive", context_id=alive), tuple)
        return gauge(s, "eager_contexts") == before - 1

    wait_for(one_less)
    assert s.enqueue(dead)[0] == "ABORTED"
    assert not isinstance(s.enqueue(alive), tuple) and not isinstance(s.enqueue(other), tuple)
