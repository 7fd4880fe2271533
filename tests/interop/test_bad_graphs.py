"""Graphs that no TensorFlow client would send: each gets an error that says what is wrong, and the task goes on."""
import json
import threading
import time
import urllib.request

import grpc
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

from wire_messages import message

COMPARES = False

CODES = grpc.StatusCode
NEGATIVE = "shape { dim { size: -7 } }"
HUGE = "shape { dim { size: 4611686018427387904 } dim { size: 4611686018427387904 } }"


def const(name="c", dtype="DT_FLOAT", tensor="dtype: DT_FLOAT tensor_shape { } float_val: 1", more=""):
    return f"node {{ name: '{name}' op: 'Const' {more} attr {{ key: 'dtype' value {{ type: {dtype} }} }} attr {{ key: 'value' value {{ tensor {{ {tensor} }} }} }} }}"


def node(name, op, *inputs, more="", **attrs):
    attrs = " ".join(f"attr {{ key: '{k}' value {{ {v} }} }}" for k, v in attrs.items())
    return f"node {{ name: '{name}' op: '{op}' " + " ".join(f"input: '{i}'" for i in inputs) + f" {more} {attrs} }}"


F = "type: DT_FLOAT"


def csr(cols, rows="0, 1, 2", batch="0, 2"):
    """A constant: a sparse matrix of 2 x 2, as a variant is written. And what it is used for."""
    def ints(kind, v):
        n = v.count(",") + 1
        return f"tensors {{ dtype: DT_INT{kind} tensor_shape {{ dim {{ size: {n} }} }} int{'64' if kind == 64 else ''}_val: [{v}] }} "
    tensors = ints(64, "2, 2") + ints(32, batch) + ints(32, rows) + ints(32, cols) + "tensors { dtype: DT_FLOAT tensor_shape { dim { size: 2 } } float_val: [1, 2] }"
    meta = "\\001\\000\\000\\000\\001\\000\\000\\000"
    return (const("m", "DT_VARIANT", f"dtype: DT_VARIANT tensor_shape {{ }} variant_val {{ type_name: 'tensorflow::CSRSparseMatrix' metadata: '{meta}' {tensors} }}")
            + node("a", "CSRSparseMatrixToDense", "m", type=F))


# what: graph, fetch, words of the error (of TensorFlow where it has any), also on the other task
CASES = {
    "cycle": (node("a", "Identity", "b", T=F) + node("b", "Identity", "a", T=F), "a:0", "cycle"),
    "control cycle": (const() + node("a", "Identity", "c", "^b", T=F) + node("b", "Identity", "a", T=F), "b:0", "cycle"),
    "loops on itself": (node("a", "Identity", "a", T=F), "a:0", "cycle"),
    "cycle without NextIteration": (const() + node("e", "Enter", "c", T=F, frame_name="s: 'f'") + node("m", "Merge", "e", "i", T=F, N="i: 2") + node("i", "Identity", "m", T=F), "i:0", ""),
    "same name": (const("c") + const("c"), "c:0", "c"),
    "no name": (const(""), "c:0", ""),
    "odd name": (const("a b\\n\\001"), "c:0", ""),
    "missing input": (node("a", "Identity", "nobody", T=F), "a:0", "nobody"),
    "missing output": (const() + node("a", "Identity", "c:1", T=F), "a:0", "c"),
    "far output": (const() + node("a", "Identity", "c:99999999999", T=F), "a:0", ""),
    "too few inputs": (const() + node("a", "AddV2", "c", T=F), "a:0", "a"),
    "too many inputs": (const() + node("a", "Identity", "c", "c", T=F), "a:0", "a"),
    "data after control": (const() + node("a", "Identity", "^c", "c", T=F), "a:0", ""),
    "wrong dtype": (const() + node("a", "AddV2", "c", "c", T="type: DT_INT32"), "a:0", "a"),
    "dtype not allowed": (const(dtype="DT_STRING", tensor="dtype: DT_STRING tensor_shape { } string_val: 'x'") + node("a", "Sqrt", "c", T="type: DT_STRING"), "a:0", "a"),
    "no such dtype": (const() + node("a", "Identity", "c", T="type: 77"), "a:0", "a"),
    "attribute missing": (node("a", "Placeholder"), "a:0", "dtype"),
    "attribute of another kind": (const() + node("a", "Identity", "c", T="s: 'float'"), "a:0", "T"),
    "value of another dtype": (const(dtype="DT_INT32"), "c:0", ""),
    "negative shape": (const(tensor=f"dtype: DT_FLOAT tensor_{NEGATIVE} float_val: 1"), "c:0", ""),
    "huge shape": (const(tensor=f"dtype: DT_FLOAT tensor_{HUGE} float_val: 1"), "c:0", ""),
    "255 dimensions": (const(tensor="dtype: DT_FLOAT tensor_shape { " + "dim { size: 1 } " * 255 + "} float_val: 1"), "c:0", ""),
    "too few bytes": (const(tensor="dtype: DT_FLOAT tensor_shape { dim { size: 1000 } } tensor_content: 'abc'"), "c:0", ""),
    "variable too large": (node("v", "VariableV2", dtype=F, shape=HUGE) + const() + node("a", "Assign", "v", "c", T=F, validate_shape="b: false"), "v:0", ""),
    "fill too large": (const("d", "DT_INT64", "dtype: DT_INT64 tensor_shape { dim { size: 2 } } int64_val: 2147483647") + const() + node("a", "Fill", "d", "c", T=F, index_type="type: DT_INT64"), "a:0", ""),
    "fill negative": (const("d", "DT_INT32", "dtype: DT_INT32 tensor_shape { dim { size: 1 } } int_val: -5") + const() + node("a", "Fill", "d", "c", T=F, index_type="type: DT_INT32"), "a:0", ""),
    "list too long": (const() + node("a", "AddN", "c", T=F, N="i: 1000000000000"), "a:0", ""),
    "list negative": (const() + node("a", "AddN", "c", T=F, N="i: -1"), "a:0", ""),
    "sparse matrix with columns outside": (csr("0, 2"), "a:0", ""),
    "sparse matrix with a negative column": (csr("0, -1"), "a:0", ""),
    "sparse matrix with rows outside": (csr("0, 1", rows="0, 1, 7"), "a:0", ""),
    "sparse matrix with rows that descend": (csr("0, 1", rows="0, 9, 2"), "a:0", ""),
    "sparse matrix with rows missing": (csr("0, 1", rows="0, 2"), "a:0", ""),
    "sparse matrix with batches outside": (csr("0, 1", batch="0, 9"), "a:0", ""),
    "no sparse matrix": (const("s", "DT_INT32", "dtype: DT_INT32 tensor_shape { } int_val: -1") + node("l", "EmptyTensorList", "s", "s", element_dtype=F, shape_type="type: DT_INT32")
                         + node("a", "CSRSparseMatrixToDense", "l", type=F), "a:0", "sparse matrix"),
    "variant that stands for much": (const("s", "DT_VARIANT", "dtype: DT_VARIANT tensor_shape { } variant_val { type_name: 'tensorflow::TensorList' "
                                           "tensors { dtype: DT_FLOAT tensor_shape { dim { size: 100000000 } } } }"), "s:0", "limit"),
    "unknown op": (node("a", "NoSuchOp"), "a:0", "NoSuchOp"),
    "no such fetch": (const(), "d:0", "d"),
    "no such output": (const(), "c:3", "c"),
    "bad device": (const(more="device: '/job:ps/task:x/what'"), "c:0", "c"),
    "function calls itself": (const() + node("a", "PartitionedCall", "c", Tin="list { type: DT_FLOAT }", Tout="list { type: DT_FLOAT }", f="func { name: 'f' }")
                              + "library { function { signature { name: 'f' input_arg { name: 'x' type: DT_FLOAT } output_arg { name: 'y' type: DT_FLOAT } } "
                              "node_def { name: 'r' op: 'PartitionedCall' input: 'x' attr { key: 'Tin' value { list { type: DT_FLOAT } } } attr { key: 'Tout' value { list { type: DT_FLOAT } } } "
                              "attr { key: 'f' value { func { name: 'f' } } } } ret { key: 'y' value: 'r:output:0' } } }", "a:0", ""),
    "no such function": (const() + node("a", "PartitionedCall", "c", Tin="list { type: DT_FLOAT }", Tout="list { type: DT_FLOAT }", f="func { name: 'gone' }"), "a:0", "gone"),
    "Switch without Merge": (const() + const("p", "DT_BOOL", "dtype: DT_BOOL tensor_shape { } bool_val: true") + node("a", "Switch", "c", "p", T=F), "a:0", ""),  # dead fetch
    "Exit without Enter": (const() + node("a", "Exit", "c", T=F), "a:0", ""),
    "Recv by hand": (node("a", "_Recv", tensor_type=F, tensor_name="s: 'x'", send_device="s: 'nonsense'", recv_device="s: ''", send_device_incarnation="i: 1"), "a:0", ""),
}


@pytest.fixture(scope="module")
def stubs(shared):
    channel = grpc.insecure_channel(shared.spec["worker"][0], options=[("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)])

    def ask(method, request, service="MasterService"):
        answer = message(method + "Response")
        return channel.unary_unary(f"/tensorflow.{service}/{method}", type(request).SerializeToString, answer.FromString)(request, timeout=20)

    with channel:
        yield ask


def attempt(ask, graph, fetch):
    """A session with the graph and a step. Returns the error, or None."""
    created = message("CreateSessionRequest")(graph_def=graph)
    created.config.operation_timeout_in_ms = 5000
    handle = None
    try:
        handle = ask("CreateSession", created).session_handle
        run = message("RunStepRequest")(session_handle=handle, fetch=[fetch])
        run.options.timeout_in_ms = 5000
        ask("RunStep", run)
    except grpc.RpcError as e:
        return e
    finally:
        if handle:
            ask("CloseSession", message("CloseSessionRequest")(session_handle=handle))


@pytest.mark.asan
@pytest.mark.parametrize("what", CASES)
def test_bad_graph(stubs, what):
    text, fetch, words = CASES[what]
    for device in ("", "/job:ps/task:1"):
        graph = text_format.Parse(text, tf.GraphDef())
        graph.versions.producer = 1645
        for n in graph.node:
            n.device = n.device or device
        e = attempt(stubs, graph, fetch)
        assert e is not None, "accepted"
        assert e.code() not in (CODES.UNAVAILABLE, CODES.DEADLINE_EXCEEDED, CODES.UNKNOWN), e.details()
        assert words in e.details() and e.details()
    assert attempt(stubs, text_format.Parse(const(), tf.GraphDef()), "c:0") is None  # all is well


@pytest.mark.asan
def test_extend_badly(stubs):
    """A bad addition leaves the session as it was."""
    good, more = text_format.Parse(const(), tf.GraphDef()), text_format.Parse(node("a", "Identity", "c", T=F), tf.GraphDef())
    made = stubs("CreateSession", message("CreateSessionRequest")(graph_def=good))
    handle = made.session_handle
    run = lambda f: tf.make_ndarray(stubs("RunStep", message("RunStepRequest")(session_handle=handle, fetch=[f])).tensor[0].tensor)  # noqa: E731
    for graph in (good, text_format.Parse(node("x", "Identity", "nobody", T=F), tf.GraphDef())):
        with pytest.raises(grpc.RpcError):
            stubs("ExtendSession", message("ExtendSessionRequest")(session_handle=handle, graph_def=graph, current_graph_version=made.graph_version))
        assert run("c:0") == 1.0
    with pytest.raises(grpc.RpcError) as e:
        stubs("ExtendSession", message("ExtendSessionRequest")(session_handle=handle, graph_def=more, current_graph_version=made.graph_version + 5))
    assert e.value.code() == CODES.ABORTED
    stubs("ExtendSession", message("ExtendSessionRequest")(session_handle=handle, graph_def=more, current_graph_version=made.graph_version))
    assert run("a:0") == 1.0
    stubs("CloseSession", message("CloseSessionRequest")(session_handle=handle))
    with pytest.raises(grpc.RpcError) as e:
        run("a:0")
    assert e.value.code() in (CODES.ABORTED, CODES.CANCELLED)


def until(true, seconds=15):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.05)


def chain(n):
    """A chain of n nodes, longer than any stack that would follow it by calling itself."""
    graph = text_format.Parse(const("n0"), tf.GraphDef())
    for i in range(1, n):
        x = graph.node.add(name=f"n{i}", op="Neg", input=[f"n{i - 1}"])
        x.attr["T"].type = 1
    return graph


@pytest.mark.asan
def test_long_chain(stubs):
    n = 100_000
    graph = chain(n)
    assert attempt(stubs, graph, f"n{n - 1}:0") is None
    graph.node[1].input[0] = f"n{n - 1}"
    e = attempt(stubs, graph, f"n{n - 1}:0")
    assert e is not None and "cycle" in e.details()


@pytest.mark.asan
def test_worker_service(shared, stubs):
    """RegisterGraph and RunGraph directly, with what no master sends."""
    ask = lambda method, request: stubs(method, request, "WorkerService")  # noqa: E731
    for what, (text, _, _) in CASES.items():
        graph = text_format.Parse(text, tf.GraphDef())
        try:
            handle = ask("RegisterGraph", message("RegisterGraphRequest")(session_handle="", graph_def=graph)).graph_handle
        except grpc.RpcError as e:
            assert e.code() not in (CODES.UNAVAILABLE, CODES.DEADLINE_EXCEEDED), what
            continue
        ask("DeregisterGraph", message("DeregisterGraphRequest")(graph_handle=handle))
    for request in (message("RunGraphRequest")(graph_handle="none", step_id=1), message("RunGraphRequest")(graph_handle="0000000000000001", step_id=-1, is_partial=True)):
        with pytest.raises(grpc.RpcError) as e:
            ask("RunGraph", request)
        assert e.value.code() in (CODES.ABORTED, CODES.INVALID_ARGUMENT, CODES.NOT_FOUND), e.value.details()
    for key in ("", "x", ";;;;", "a" * 100000):
        with pytest.raises(grpc.RpcError) as e:
            stubs("RecvTensor", message("RecvTensorRequest")(step_id=5, rendezvous_key=key), "WorkerService")
        assert e.value.code() not in (CODES.UNAVAILABLE, CODES.DEADLINE_EXCEEDED)


@pytest.mark.asan
def test_watched_nodes_on_many_devices(shared, stubs, tmp_path):
    """Each device gets a folder, so what it may be is not up to the sender."""
    graph = text_format.Parse("".join(const(f"c{i}", more=f"device: '/job:x/task:{i}'") for i in range(1000)), tf.GraphDef())
    request = message("RegisterGraphRequest")(session_handle="", graph_def=graph)
    request.debug_options.debug_tensor_watch_opts.add(node_name="c1", output_slot=0, debug_ops=["DebugIdentity"], debug_urls=[f"file://{tmp_path}/d"])
    with pytest.raises(grpc.RpcError) as e:
        stubs("RegisterGraph", request, "WorkerService")
    assert e.value.code() == CODES.INVALID_ARGUMENT and "devices" in e.value.details() and not (tmp_path / "d").exists()


def live_steps(address):
    with urllib.request.urlopen(f"http://{address}/status.json", timeout=10) as r:
        return json.load(r)["task"]["steps"]["live"]


@pytest.mark.asan
def test_steps_end_with_their_session(shared, stubs):
    """A master that goes without CleanupGraph leaves nothing behind: its sessions' steps, those that wait among them, end with them."""
    ask = lambda method, **q: stubs(method, message(method + "Request")(**q), "WorkerService")  # noqa: E731
    queue = node("q", "FIFOQueueV2", component_types="list { type: DT_FLOAT }", capacity="i: 1") + node("d", "QueueDequeueV2", "q", component_types="list { type: DT_FLOAT }")
    before = live_steps(shared.spec["worker"][0])
    for how, incarnation in (("delete", 1), ("stale", 2)):
        session = f"gone {how}"
        ask("CreateWorkerSession", session_handle=session, master_task="/job:nobody/task:0", master_incarnation=incarnation)
        s = {"session_handle": session, "create_worker_session_called": True}
        done, waits = (ask("RegisterGraph", graph_def=text_format.Parse(text, tf.GraphDef()), **s).graph_handle for text in (const(), queue))
        for i in range(20):
            ask("RunGraph", graph_handle=done, step_id=1000 * incarnation + i, **s)
        failed = []

        def run():
            with pytest.raises(grpc.RpcError) as e:
                ask("RunGraph", graph_handle=waits, step_id=1000 * incarnation + 500, **s)
            failed.append(e.value.code())

        t = threading.Thread(target=run)
        t.start()
        until(lambda: live_steps(shared.spec["worker"][0]) == before + 21)
        if how == "delete":
            ask("DeleteWorkerSession", session_handle=session)
        else:
            ask("CreateWorkerSession", session_handle="next", master_task="/job:nobody/task:0", master_incarnation=3)
            ask("DeleteWorkerSession", session_handle="next")
        t.join(15)
        assert failed in ([CODES.CANCELLED], [CODES.ABORTED])
        assert live_steps(shared.spec["worker"][0]) == before


@pytest.mark.asan
def test_last_call_of_a_partial_run_twice(shared, stubs):
    """The second one is told so, and the first one gets its answer."""
    ask = lambda method, **q: stubs(method, message(method + "Request")(**q), "WorkerService")  # noqa: E731
    device = "/job:worker/replica:0/task:0/device:CPU:0"
    recv = node("r", "_Recv", tensor_type=F, tensor_name="s: 't'", send_device=f"s: '{device}'", recv_device=f"s: '{device}'", send_device_incarnation="i: 1", client_terminated="b: true")
    graph = ask("RegisterGraph", graph_def=text_format.Parse(recv, tf.GraphDef())).graph_handle
    codes = []

    def run():
        try:
            ask("RunGraph", graph_handle=graph, step_id=77001, is_partial=True, is_last_partial_run=True)
        except grpc.RpcError as e:
            codes.append(e.code())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for t in threads:
        t.start()
    until(lambda: codes)
    assert codes == [CODES.INVALID_ARGUMENT]
    ask("CleanupGraph", step_id=77001)
    for t in threads:
        t.join(15)
    assert len(codes) == 2 and codes[1] in (CODES.ABORTED, CODES.CANCELLED)


@pytest.mark.asan
def test_logging_of_one_step_again_and_again(stubs):
    one, many = (len(stubs("Logging", message("LoggingRequest")(fetch_step_id=[5] * n), "WorkerService").SerializeToString()) for n in (1, 1000))
    assert one == many
    with pytest.raises(grpc.RpcError) as e:
        stubs("Logging", message("LoggingRequest")(fetch_step_id=range(100_000)), "WorkerService")
    assert e.value.code() == CODES.INVALID_ARGUMENT


@pytest.mark.asan
def test_partial_run_asked_for_badly(shared, stubs):
    """The same name twice in one call is twice, and a client that does not wait for a call ends the run."""
    graph = text_format.Parse(node("x", "Placeholder", dtype=F) + node("y", "Neg", "x", T=F)
                              + node("q", "FIFOQueueV2", component_types="list { type: DT_FLOAT }", capacity="i: 1") + node("d", "QueueDequeueV2", "q", component_types="list { type: DT_FLOAT }"), tf.GraphDef())
    session = stubs("CreateSession", message("CreateSessionRequest")(graph_def=graph)).session_handle
    setup = lambda **q: stubs("PartialRunSetup", message("PartialRunSetupRequest")(session_handle=session, **q)).partial_run_handle  # noqa: E731
    run = message("RunStepRequest")(session_handle=session, partial_run_handle=setup(feed=["x"], fetch=["y:0"]), fetch=["y:0", "y"])
    x = run.feed.add(name="x")
    x.tensor.CopyFrom(tf.make_tensor_proto(2.0))
    for fetch, feeds in ((["y:0", "y"], 1), (["y:0"], 2)):
        bad = message("RunStepRequest")(session_handle=session, partial_run_handle=run.partial_run_handle, fetch=fetch)
        bad.feed.extend([x] * feeds)
        with pytest.raises(grpc.RpcError) as e:
            stubs("RunStep", bad)
        assert e.value.code() == CODES.INVALID_ARGUMENT and "already been" in e.value.details()
    del run.fetch[1:]
    assert tf.make_ndarray(stubs("RunStep", run).tensor[0].tensor) == -2.0
    before = live_steps(shared.spec["worker"][0])
    run = message("RunStepRequest")(session_handle=session, partial_run_handle=setup(fetch=["d:0"]), fetch=["d:0"])
    with grpc.insecure_channel(shared.spec["worker"][0], options=[("grpc.enable_http_proxy", 0)]) as channel, pytest.raises(grpc.RpcError) as e:
        channel.unary_unary("/tensorflow.MasterService/RunStep", type(run).SerializeToString, message("RunStepResponse").FromString)(run, timeout=1)
    assert e.value.code() == CODES.DEADLINE_EXCEEDED
    until(lambda: live_steps(shared.spec["worker"][0]) <= before)
    stubs("CloseSession", message("CloseSessionRequest")(session_handle=session))


def test_feeds_share_what_they_may_take(stubs):
    """Few bytes that stand for many: of all feeds of a step together."""
    graph = text_format.Parse("".join(node(f"x{i}", "Placeholder", dtype="type: DT_INT8") for i in range(2)), tf.GraphDef())
    session = stubs("CreateSession", message("CreateSessionRequest")(graph_def=graph)).session_handle
    run = message("RunStepRequest")(session_handle=session, fetch=["x0:0"])
    for i in range(2):
        x = run.feed.add(name=f"x{i}")
        x.tensor.dtype = 6
        x.tensor.tensor_shape.dim.add(size=1_200_000_000)
    with pytest.raises(grpc.RpcError) as e:
        stubs("RunStep", run)
    assert e.value.code() == CODES.RESOURCE_EXHAUSTED and "tensor x1" in e.value.details()
    stubs("CloseSession", message("CloseSessionRequest")(session_handle=session))


@pytest.mark.asan
def test_device_filters_times_tasks(stubs):
    request = message("CreateSessionRequest")()
    request.config.device_filters.extend(["/job:ps"] * 100_000)
    with pytest.raises(grpc.RpcError) as e:
        stubs("CreateSession", request)
    assert e.value.code() == CODES.INVALID_ARGUMENT and "too many" in e.value.details()


@pytest.mark.asan
def test_nobody_waits_for_the_devices(cluster):
    """ListDevices waits for every task, but no longer than the client."""
    c = cluster(ps=1, workers=1, start=False)
    c.task("worker").start()
    address = c.spec["worker"][0]

    def waits():
        with urllib.request.urlopen(f"http://{address}/status.json", timeout=10) as r:
            return json.load(r)["task"]["n_waits"] > 0

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = message("ListDevicesRequest")()
        call = channel.unary_unary("/tensorflow.MasterService/ListDevices", type(request).SerializeToString, message("ListDevicesResponse").FromString).future(request, timeout=10, wait_for_ready=True)
        until(waits)
        call.cancel()
    until(lambda: not waits())
